/* Nodes: what the kernel's numbers stand for. A directory is an open descriptor; a file is its
 * directory and its name there, so that a million known files cost no descriptors.
 *
 * Found by device and inode number of the backing file. The table's lock guards references, parents
 * and names; it is held around no call that may wait but a rename's or an unlink's look at a number.
 */
#include "throttle.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHAINS = 1 << 16, NAMES = 1 << 20 };

static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static struct node *chains[CHAINS];
static struct node root;

static size_t chain_of(ino_t ino) {
    return (size_t)(ino * 0x9E3779B97F4A7C15u >> 40) % CHAINS;
}

bool nodes_start(const char *backing) {
    struct stat found;
    root.dir_fd = open(backing, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root.dir_fd < 0 || fstat(root.dir_fd, &found))
        return false;
    root.dev = found.st_dev;
    root.ino = found.st_ino;
    root.kind = S_IFDIR;
    root.lookups = root.users = 1; /* for ever */
    root.name = strdup(".");
    pthread_mutex_init(&root.lock, NULL);
    return true;
}

struct node *node_of(fuse_ino_t number) {
    return number == FUSE_ROOT_ID ? &root : (struct node *)(uintptr_t)number;
}

fuse_ino_t number_of(struct node *node) {
    return node == &root ? FUSE_ROOT_ID : (fuse_ino_t)(uintptr_t)node;
}

/* With the table's lock: the node of a backing file, if the kernel knows it. Most file systems give
 * the number of a file that went to the next one: where the kind differs it is another. */
static struct node *known(const struct stat *found) {
    for (struct node *node = chains[chain_of(found->st_ino)]; node; node = node->next)
        if (node->ino == found->st_ino && node->dev == found->st_dev &&
            node->kind == (found->st_mode & S_IFMT))
            return node;
    return NULL;
}

/* With the table's lock: drops nodes that nobody needs, from `node` upwards. Returns them chained
 * by `next`, to be freed without the lock. */
static struct node *detach(struct node *node) {
    struct node *gone = NULL;
    while (node && !node->lookups && !node->users) {
        struct node **at = &chains[chain_of(node->ino)], *parent = node->parent;
        while (*at != node)
            at = &(*at)->next;
        *at = node->next;
        node->next = gone;
        gone = node;
        if (parent)
            parent->users--;
        node = parent;
    }
    return gone;
}

static void release_all(struct node *gone) {
    while (gone) {
        struct node *next = gone->next;
        if (gone->dir_fd >= 0)
            close(gone->dir_fd);
        stage_free(gone->stage);
        if (gone->listing)
            listing_close(gone->listing);
        pthread_mutex_destroy(&gone->lock);
        free(gone->name);
        free(gone);
        gone = next;
    }
}

/* With the table's lock: the node lies in `parent` under `name` from now on. */
static struct node *move(struct node *node, struct node *parent, const char *name) {
    struct node *before = node->parent;
    char *copy = strdup(name);
    if (copy) {
        free(node->name);
        node->name = copy;
    }
    parent->users++;
    node->parent = parent;
    if (!before)
        return NULL;
    before->users--;
    return detach(before);
}

int node_find(struct node *parent, const char *name, struct node **node, struct stat *found) {
    if (fstatat(parent->dir_fd, name, found, AT_SYMLINK_NOFOLLOW))
        return errno;
    int dir_fd = -1;
    if (S_ISDIR(found->st_mode)) {
        dir_fd = openat(parent->dir_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (dir_fd < 0 || fstat(dir_fd, found))
            return errno;
    }
    struct node *fresh = calloc(1, sizeof *fresh), *gone = NULL;
    if (!fresh)
        abort();
    pthread_mutex_init(&fresh->lock, NULL);
    fresh->dev = found->st_dev;
    fresh->ino = found->st_ino;
    fresh->kind = found->st_mode & S_IFMT;
    fresh->dir_fd = dir_fd;

    pthread_mutex_lock(&table);
    struct node *one = known(found);
    if (!one) {
        one = fresh;
        fresh = NULL;
        one->next = chains[chain_of(one->ino)];
        chains[chain_of(one->ino)] = one;
    }
    if (one != &root) {
        one->lookups++;
        if (one->parent != parent || strcmp(one->name, name) != 0)
            gone = move(one, parent, name);
    }
    pthread_mutex_unlock(&table);

    if (fresh)
        fresh->next = gone;
    release_all(fresh ? fresh : gone);
    *node = one;
    return 0;
}

void node_forget(struct node *node, uint64_t lookups) {
    if (node == &root)
        return;
    pthread_mutex_lock(&table);
    node->lookups -= lookups < node->lookups ? lookups : node->lookups;
    struct node *gone = detach(node);
    pthread_mutex_unlock(&table);
    release_all(gone);
}

struct place place_of(struct node *node) {
    struct place place;
    pthread_mutex_lock(&table);
    place.dir_fd = node->dir_fd >= 0 ? node->dir_fd : node->parent->dir_fd;
    strncpy(place.name, node->dir_fd >= 0 ? "." : node->name, NAME_MAX);
    place.name[NAME_MAX] = 0;
    pthread_mutex_unlock(&table);
    return place;
}

int node_stat(struct node *node, struct stat *found) {
    int failed;
    pthread_mutex_lock(&node->lock);
    if (node->dir_fd >= 0) {
        failed = fstat(node->dir_fd, found);
    } else if (node->handles) {
        failed = fstat(node->handles->fd, found);
    } else {
        struct place place = place_of(node);
        failed = fstatat(place.dir_fd, place.name, found, AT_SYMLINK_NOFOLLOW);
        if (!failed && (found->st_ino != node->ino || found->st_dev != node->dev)) {
            failed = -1; /* another file has the name by now */
            errno = ESTALE;
        }
    }
    int error = failed ? errno : 0;
    if (!error)
        stage_size(node, found);
    pthread_mutex_unlock(&node->lock);
    if (settings.zero_times && !error)
        found->st_atim = found->st_mtim = found->st_ctim = (struct timespec){0, 0};
    return error == ENOENT ? ESTALE : error;
}

void node_renamed(struct node *parent, const char *name, const struct stat *found) {
    struct node *gone = NULL;
    pthread_mutex_lock(&table);
    struct node *node = known(found);
    if (node)
        gone = move(node, parent, name);
    pthread_mutex_unlock(&table);
    release_all(gone);
}

bool node_is_written(const struct stat *found) {
    bool written = false;
    pthread_mutex_lock(&table);
    struct node *node = known(found);
    if (node)
        node->users++;
    pthread_mutex_unlock(&table);
    if (!node)
        return false;
    pthread_mutex_lock(&node->lock);
    for (struct handle *handle = node->handles; handle; handle = handle->next)
        written |= handle->writes;
    pthread_mutex_unlock(&node->lock);
    pthread_mutex_lock(&table);
    node->users--;
    struct node *gone = detach(node);
    pthread_mutex_unlock(&table);
    release_all(gone);
    return written;
}

void node_entry(struct node *node, const struct stat *found, struct fuse_entry_param *entry) {
    int64_t believed = node->dir_fd >= 0 ? settings.directory_us : settings.entry_us;
    *entry = (struct fuse_entry_param){
        .ino = number_of(node),
        .attr = *found,
        .entry_timeout = (double)believed / 1e6,
        .attr_timeout = (double)settings.attribute_us / 1e6,
    };
    pthread_mutex_lock(&node->lock);
    stage_size(node, &entry->attr);
    pthread_mutex_unlock(&node->lock);
    if (settings.zero_times)
        entry->attr.st_atim = entry->attr.st_mtim = entry->attr.st_ctim = (struct timespec){0, 0};
}

/* ---- open files -------------------------------------------------------------------------------------- */

struct handle *handle_make(struct node *node, int fd, bool writes) {
    struct handle *handle = malloc(sizeof *handle);
    struct stat found;
    if (!handle)
        abort();
    *handle = (struct handle){.node = node, .fd = fd, .writes = writes};
    if (fstat(fd, &found) == 0)
        handle->size_at_open = found.st_size;
    pthread_mutex_lock(&table);
    node->users++;
    pthread_mutex_unlock(&table);
    pthread_mutex_lock(&node->lock);
    handle->next = node->handles;
    node->handles = handle;
    pthread_mutex_unlock(&node->lock);
    return handle;
}

void handle_drop(struct handle *handle) {
    struct node *node = handle->node;
    pthread_mutex_lock(&node->lock);
    struct handle **at = &node->handles;
    while (*at != handle)
        at = &(*at)->next;
    *at = handle->next;
    pthread_mutex_unlock(&node->lock);
    mapping_drop(handle);
    close(handle->fd);
    free(handle);
    pthread_mutex_lock(&table);
    node->users--;
    struct node *gone = detach(node);
    pthread_mutex_unlock(&table);
    release_all(gone);
}

/* ---- names of the past --------------------------------------------------------------------------------- */

/* An open-addressed set of 64-bit digests; the lowest bit says "poisoned". Once it is three quarters
 * full no more are remembered: a benchmark's unlinks are fewer. */
static pthread_mutex_t past = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *digests;
static size_t remembered;

/* The slot that holds the name's digest, or the empty one where it belongs. */
static uint64_t *slot_of(struct node *parent, const char *name, uint64_t *digest) {
    uint64_t mixed = (0xCBF29CE484222325u ^ (uint64_t)parent->ino) * 0x100000001B3u;
    for (const char *at = name; *at; at++)
        mixed = (mixed ^ (unsigned char)*at) * 0x100000001B3u;
    *digest = ((mixed ^ mixed >> 29) | 2) & ~(uint64_t)1;
    size_t at = (size_t)(*digest >> 20) % NAMES;
    while (digests[at] && (digests[at] & ~(uint64_t)1) != *digest)
        at = (at + 1) % NAMES;
    return &digests[at];
}

void name_unlinked(struct node *parent, const char *name, bool poisoned) {
    uint64_t digest;
    pthread_mutex_lock(&past);
    if (!digests)
        digests = calloc(NAMES, sizeof *digests);
    if (digests && remembered < NAMES / 4 * 3) {
        uint64_t *slot = slot_of(parent, name, &digest);
        remembered += !*slot;
        *slot |= digest | poisoned;
    }
    pthread_mutex_unlock(&past);
}

enum past name_past(struct node *parent, const char *name) {
    enum past found = NEVER;
    uint64_t digest, held;
    pthread_mutex_lock(&past);
    if (remembered && (held = *slot_of(parent, name, &digest)))
        found = held & 1 ? POISONED : UNLINKED;
    pthread_mutex_unlock(&past);
    return found;
}
