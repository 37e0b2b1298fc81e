/* Listings: a directory is read whole when it is opened. With `listing_stale_us` one that was read
 * lately answers again, until this mount changes the directory; `listing_miss_ppm` leaves names out.
 */
#include "throttle.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct entry {
    char *name;
    ino_t ino;
    mode_t mode;
};

struct listing {
    _Atomic int holders;
    int64_t read_ns;
    struct entry *entries;
    size_t count;
};

void listing_close(struct listing *listing) {
    if (atomic_fetch_sub(&listing->holders, 1) > 1)
        return;
    for (size_t at = 0; at < listing->count; at++)
        free(listing->entries[at].name);
    free(listing->entries);
    free(listing);
}

static struct listing *read_all(int dir_fd) {
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    struct listing *listing = calloc(1, sizeof *listing);
    size_t room = 0;
    listing->holders = 1;
    listing->read_ns = now_ns();
    for (struct dirent *found; (found = readdir(stream));) {
        if (found->d_name[0] != '.' && chance(settings.listing_miss_ppm))
            continue;
        if (listing->count == room) {
            room = room ? 2 * room : 64;
            listing->entries = realloc(listing->entries, room * sizeof(struct entry));
            if (!listing->entries)
                abort();
        }
        listing->entries[listing->count++] = (struct entry){
            strdup(found->d_name), found->d_ino, (mode_t)DTTOIF(found->d_type)};
    }
    closedir(stream);
    return listing;
}

int listing_open(struct node *node, struct listing **opened) {
    int64_t stale_ns = settings.listing_stale_us * 1000;
    *opened = NULL;
    pthread_mutex_lock(&node->lock);
    if (stale_ns && node->listing && now_ns() - node->listing->read_ns < stale_ns) {
        *opened = node->listing;
        atomic_fetch_add(&node->listing->holders, 1);
    }
    pthread_mutex_unlock(&node->lock);
    if (*opened)
        return 0;
    struct listing *fresh = read_all(node->dir_fd);
    if (!fresh)
        return errno;
    if (stale_ns) {
        listing_changed(node);
        pthread_mutex_lock(&node->lock);
        if (!node->listing) {
            node->listing = fresh;
            atomic_fetch_add(&fresh->holders, 1);
        }
        pthread_mutex_unlock(&node->lock);
    }
    *opened = fresh;
    return 0;
}

size_t listing_fill(fuse_req_t req, struct listing *listing, char *to, size_t room, off_t from) {
    size_t used = 0;
    for (size_t at = (size_t)from; at < listing->count; at++) {
        struct entry *entry = &listing->entries[at];
        struct stat found = {.st_ino = entry->ino, .st_mode = entry->mode};
        size_t size = fuse_add_direntry(req, to + used, room - used, entry->name, &found,
                                        (off_t)at + 1);
        if (size > room - used)
            break;
        used += size;
    }
    return used;
}

void listing_changed(struct node *node) {
    pthread_mutex_lock(&node->lock);
    struct listing *old = node->listing;
    node->listing = NULL;
    pthread_mutex_unlock(&node->lock);
    if (old)
        listing_close(old);
}
