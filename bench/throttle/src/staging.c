/* Staging: bytes written to a file are kept in this mount until it is closed, as clients with
 * close-to-open visibility do. This mount sees them at once; another mount of the same backing
 * directory sees the name from the start, and size and bytes only after the close.
 *
 * A stage is an anonymous file with the whole content as this mount sees it, and the one range that
 * covers everything written. Publishing copies that range.
 */
#include "throttle.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct stage {
    int fd;
    off_t size, from, to;
};

enum { COPY_BYTES = 1 << 20 };

static int copy(int from, int to, off_t offset, off_t end) {
    char *buffer = buffer_take(COPY_BYTES);
    int error = buffer ? 0 : ENOMEM;
    while (!error && offset < end) {
        size_t wanted = end - offset < COPY_BYTES ? (size_t)(end - offset) : COPY_BYTES;
        ssize_t got = pread(from, buffer, wanted, offset);
        ssize_t put = got > 0 ? pwrite(to, buffer, (size_t)got, offset) : got;
        if (put < 0)
            error = errno;
        if (put <= 0)
            break;
        offset += put;
    }
    if (buffer)
        buffer_give(buffer);
    return error;
}

void stage_free(struct stage *stage) {
    if (stage) {
        close(stage->fd);
        free(stage);
    }
}

/* With the node's lock: the stage, made from what the backing file holds. NULL with errno set. */
static struct stage *stage_of(struct handle *handle) {
    struct node *node = handle->node;
    struct stat found;
    if (node->stage)
        return node->stage;
    struct stage *stage = calloc(1, sizeof *stage);
    if (!stage)
        return NULL;
    stage->fd = memfd_create("stage", MFD_CLOEXEC);
    int error = stage->fd < 0 || fstat(handle->fd, &found) ? errno : 0;
    if (!error)
        error = copy(handle->fd, stage->fd, 0, found.st_size);
    if (error) {
        if (stage->fd >= 0)
            close(stage->fd);
        free(stage);
        errno = error;
        return NULL;
    }
    stage->size = found.st_size;
    stage->from = stage->to = -1;
    return node->stage = stage;
}

int stage_write(struct handle *handle, const char *data, size_t bytes, off_t offset) {
    int error = 0;
    pthread_mutex_lock(&handle->node->lock);
    struct stage *stage = stage_of(handle);
    if (!stage || pwrite(stage->fd, data, bytes, offset) != (ssize_t)bytes) {
        error = errno ? errno : EIO;
    } else {
        off_t end = offset + (off_t)bytes;
        stage->from = stage->from < 0 || offset < stage->from ? offset : stage->from;
        stage->to = end > stage->to ? end : stage->to;
        stage->size = end > stage->size ? end : stage->size;
    }
    pthread_mutex_unlock(&handle->node->lock);
    return error;
}

ssize_t stage_read(struct node *node, char *into, size_t bytes, off_t offset) {
    ssize_t got = -1;
    pthread_mutex_lock(&node->lock);
    if (node->stage)
        got = pread(node->stage->fd, into, bytes, offset);
    pthread_mutex_unlock(&node->lock);
    return got;
}

int stage_publish(struct handle *handle, bool discard) {
    int error = 0;
    pthread_mutex_lock(&handle->node->lock);
    struct stage *stage = handle->node->stage;
    if (stage && handle->writes) {
        handle->node->stage = NULL;
        if (!discard && stage->from >= 0)
            error = copy(stage->fd, handle->fd, stage->from, stage->to);
        stage_free(stage);
        COUNT(published);
    }
    pthread_mutex_unlock(&handle->node->lock);
    return error;
}

void stage_resize(struct node *node, off_t size) {
    pthread_mutex_lock(&node->lock);
    struct stage *stage = node->stage;
    if (stage && ftruncate(stage->fd, size) == 0) {
        stage->size = size;
        stage->to = stage->to > size ? size : stage->to;
        stage->from = stage->from > size ? size : stage->from;
    }
    pthread_mutex_unlock(&node->lock);
}

void stage_size(const struct node *node, struct stat *found) {
    if (node->stage && S_ISREG(found->st_mode))
        found->st_size = node->stage->size;
}
