/* A stand-in for GekkoFS' preload client: one path prefix behaves as the quirk file says.
 *
 * Files below the prefix lie in a backing directory. A descriptor is a number that the kernel does
 * not know and an entry of a table here; it remembers a path, not a file, and each call opens and
 * closes that path anew. So whatever is not taken over below fails as it does there: with EBADF.
 * Settings and counters lie in a page shared by all clients and their test (control.py), and may
 * change at any time.
 */
#ifndef STANDIN_H
#define STANDIN_H

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* X(name): whole numbers; an errno is 0 where the call works. control.py reads these lists. */
#define SETTINGS(X)                                                                             \
    X(rename_errno)                                                                             \
    X(link_errno)                                                                               \
    X(symlink_errno)                                                                            \
    X(vectored_errno)                                                                           \
    X(mmap_errno)                                                                               \
    X(sendfile_errno)                                                                           \
    X(fadvise_errno)                                                                            \
    X(fallocate_errno)                                                                          \
    X(chmod_errno)                                                                              \
    X(utime_errno)                                                                              \
    X(xattr_errno)                                                                              \
    X(append_errno)                                                                             \
    X(direct_errno)                                                                             \
    X(zero_times)                                                                               \
    X(locks_lie)                                                                                \
    X(locks_break_others)  /* a lie drops the locks that this process really holds */           \
    X(bsize_only)                                                                               \
    X(object_bytes)                                                                             \
    X(excl_race_ppm)       /* chance that O_EXCL succeeds on a name that is taken */            \
    X(recreate_loses_data) /* bytes written to a name that was unlinked before vanish */        \
    X(unlink_poisons)      /* a write to an unlinked file makes its name half there, for ever */\
    X(poison_aborts)       /* and every call after that hangs */                                \
    X(size_before_data_us) /* a size is visible so long before the bytes under it */            \
    X(short_read_ppm)      /* chance that a read returns half of what it could, with a hole */  \
    X(listing_stale_us)    /* others' files so young may be left out of a listing */            \
    X(listing_miss_ppm)    /* chance for any entry of a directory that has just changed */      \
    X(fork_hangs)                                                                               \
    X(vfork_aborts)                                                                             \
    X(latency_us)          /* of each operation */                                              \
    X(hang)                /* operations do not return until this is 0 again */                 \
    X(seed)

#define COUNTERS(X)                                                                             \
    X(open) X(create) X(read) X(write) X(close) X(stat) X(list) X(unlink) X(mkdir) X(sync)      \
    X(refused) X(lies) X(locks_broken) X(excl_races) X(recreated) X(poisoned) X(short_reads)    \
    X(listings_short) X(hanging)

struct control {
#define X(name) _Atomic int64_t name;
    SETTINGS(X)
#undef X
#define X(name) _Atomic int64_t count_##name;
    COUNTERS(X)
#undef X
};
extern struct control *control;
#define COUNT(name) (control->count_##name++)

/* ---- state.c ------------------------------------------------------------------------------- */

bool standin_ready(void);
/* Counts are the caller's; this waits: for the latency, for ever in a forked child, or hanging. */
void operation(void);
bool chance(int64_t ppm);
/* The real path of one below the prefix into `to` (PATH_MAX bytes); false for any other path. */
bool ours(const char *path, char *to);
bool ours_at(int directory, const char *path, char *to);
/* What is known of a name for ever: 'u' it was unlinked, 'p' it is poisoned. */
void mark(char kind, const char *real);
bool marked(char kind, const char *real);
/* Names this process created: its own listings never miss them. */
void note_created(const char *real);
bool created_here(const char *real);

/* The libc's own function behind one of ours. */
void *next_symbol(const char *name);
#define REAL(type, name, ...)                                                                   \
    static type (*real_##name)(__VA_ARGS__);                                                    \
    if (!real_##name)                                                                           \
        real_##name = next_symbol(#name)

/* ---- table.c: descriptors ------------------------------------------------------------------ */

#define FIRST_FD (1 << 21) /* beyond what any kernel hands out */
struct file {
    bool used;
    int flags;
    off_t position;
    off_t size; /* when it was opened */
    char real[PATH_MAX];
};
static inline bool is_ours(int fd) { return fd >= FIRST_FD; }
int table_add(const char *real, int flags, off_t size);
/* A copy of the entry; false, and errno EBADF, for a number that stands for nothing. */
bool table_get(int fd, struct file *to);
void table_seek(int fd, off_t position);
bool table_remove(int fd);

/* A real descriptor for one call; -1 with errno. The caller closes it with real_close. */
int borrow(const struct file *file, int flags);
int real_open(const char *real, int flags, mode_t mode);
int real_close(int fd);
ssize_t file_read(const struct file *file, void *to, size_t bytes, off_t offset);
ssize_t file_write(const struct file *file, const void *from, size_t bytes, off_t offset);

static inline int refuse(int64_t error) {
    COUNT(refused);
    errno = (int)error;
    return -1;
}

#endif
