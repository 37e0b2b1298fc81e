/* Reads answered from a mapping of the backing file: each byte is copied once, where a buffer takes
 * two copies, so that less of what is measured is this process's own work.
 *
 * A mapping pays from the second read of an open file on. It covers the file as it was then: what
 * has grown since is read into a buffer. If the file is cut short before the answer leaves, the
 * kernel fails that read with EIO.
 */
#include "throttle.h"

#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; older ones refuse it, and nothing is lost */
#endif

/* With the node's lock held: whether a mapping of `handle` reaches to `end`. */
static bool covered(struct handle *handle, off_t end, off_t size) {
    if (!handle->mapped && ++handle->reads > 1 && size > 0) {
        void *at = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, handle->fd, 0);
        handle->mapping = at == MAP_FAILED ? NULL : at;
        handle->mapped = size; /* where it failed it is not tried again */
    }
    return handle->mapping && end <= handle->mapped;
}

const char *mapping_read(struct handle *handle, size_t *bytes, off_t offset) {
    struct stat found;
    if (settings.short_read_ppm || fstat(handle->fd, &found))
        return NULL;
    off_t left = found.st_size - offset;
    size_t got = left <= 0 ? 0 : (off_t)*bytes > left ? (size_t)left : *bytes;
    pthread_mutex_lock(&handle->node->lock);
    bool usable = !handle->node->stage && got &&
                  covered(handle, offset + (off_t)got, found.st_size);
    pthread_mutex_unlock(&handle->node->lock);
    if (!usable)
        return NULL;
    const char *from = handle->mapping + offset;
    size_t ahead = (uintptr_t)from % 4096;
    madvise((void *)(from - ahead), got + ahead, MADV_POPULATE_READ); /* else page by page */
    *bytes = got;
    return from;
}

void mapping_drop(struct handle *handle) {
    if (handle->mapping)
        munmap(handle->mapping, (size_t)handle->mapped);
}
