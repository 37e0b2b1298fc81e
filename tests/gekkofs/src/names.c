/* Names, attributes, directories. */
#include "standin.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

static int stat_ours(const char *real, struct stat *to, int flags) {
    REAL(int, fstatat64, int, const char *, struct stat *, int);
    COUNT(stat);
    operation();
    if (real_fstatat64(AT_FDCWD, real, to, flags))
        return -1;
    if (control->zero_times)
        to->st_atim = to->st_mtim = to->st_ctim = (struct timespec){0, 0};
    return 0;
}

static int stat_fd(int fd, struct stat *to) {
    struct file file;
    return table_get(fd, &file) ? stat_ours(file.real, to, 0) : -1;
}

#define STAT(name, kind, flags)                                                                 \
    int name(const char *path, struct kind *to) {                                               \
        char real[PATH_MAX];                                                                    \
        if (ours(path, real))                                                                   \
            return stat_ours(real, (struct stat *)to, flags);                                   \
        REAL(int, name, const char *, struct kind *);                                           \
        return real_##name(path, to);                                                           \
    }
#define FSTAT(name, kind)                                                                       \
    int name(int fd, struct kind *to) {                                                         \
        if (is_ours(fd))                                                                        \
            return stat_fd(fd, (struct stat *)to);                                              \
        REAL(int, name, int, struct kind *);                                                    \
        return real_##name(fd, to);                                                             \
    }
#define STATAT(name, kind)                                                                      \
    int name(int directory, const char *path, struct kind *to, int flags) {                     \
        char real[PATH_MAX];                                                                    \
        if (flags & AT_EMPTY_PATH && is_ours(directory) && !*path)                              \
            return stat_fd(directory, (struct stat *)to);                                       \
        if (ours_at(directory, path, real))                                                     \
            return stat_ours(real, (struct stat *)to, flags);                                   \
        REAL(int, name, int, const char *, struct kind *, int);                                 \
        return real_##name(directory, path, to, flags);                                         \
    }
STAT(stat, stat, 0)
STAT(stat64, stat64, 0)
STAT(lstat, stat, AT_SYMLINK_NOFOLLOW)
STAT(lstat64, stat64, AT_SYMLINK_NOFOLLOW)
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

/* A libc older than 2.33 knew stat by these names, and so do programs built for one. */
int __xstat64(int v, const char *path, struct stat64 *to) { return (void)v, stat64(path, to); }
int __lxstat64(int v, const char *path, struct stat64 *to) { return (void)v, lstat64(path, to); }
int __fxstat64(int v, int fd, struct stat64 *to) { return (void)v, fstat64(fd, to); }
int __fxstatat64(int v, int directory, const char *path, struct stat64 *to, int flags) {
    return (void)v, fstatat64(directory, path, to, flags);
}

/* Refused, so that callers fall back: the client knows nothing of it. */
int statx(int directory, const char *path, int flags, unsigned mask, struct statx *to) {
    char real[PATH_MAX];
    if (is_ours(directory) || ours_at(directory, path, real))
        return refuse(ENOSYS);
    REAL(int, statx, int, const char *, int, unsigned, struct statx *);
    return real_statx(directory, path, flags, mask, to);
}

static int access_ours(const char *real, int mode) {
    REAL(int, access, const char *, int);
    COUNT(stat);
    operation();
    return real_access(real, mode);
}

int access(const char *path, int mode) {
    char real[PATH_MAX];
    if (ours(path, real))
        return access_ours(real, mode);
    REAL(int, access, const char *, int);
    return real_access(path, mode);
}

int faccessat(int directory, const char *path, int mode, int flags) {
    char real[PATH_MAX];
    if (ours_at(directory, path, real))
        return access_ours(real, mode);
    REAL(int, faccessat, int, const char *, int, int);
    return real_faccessat(directory, path, mode, flags);
}

ssize_t readlink(const char *path, char *to, size_t room) {
    char real[PATH_MAX];
    REAL(ssize_t, readlink, const char *, char *, size_t);
    return real_readlink(ours(path, real) ? real : path, to, room);
}

static int unlink_ours(const char *real, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    COUNT(unlink);
    operation();
    if (real_unlinkat(AT_FDCWD, real, flags))
        return -1;
    if (!(flags & AT_REMOVEDIR))
        mark('u', real);
    return 0;
}

#define UNLINK(name, flags)                                                                     \
    int name(const char *path) {                                                                \
        char real[PATH_MAX];                                                                    \
        if (ours(path, real))                                                                   \
            return unlink_ours(real, flags);                                                    \
        REAL(int, name, const char *);                                                          \
        return real_##name(path);                                                               \
    }
UNLINK(unlink, 0)
UNLINK(rmdir, AT_REMOVEDIR)

int unlinkat(int directory, const char *path, int flags) {
    char real[PATH_MAX];
    if (ours_at(directory, path, real))
        return unlink_ours(real, flags);
    REAL(int, unlinkat, int, const char *, int);
    return real_unlinkat(directory, path, flags);
}

static int mkdir_ours(const char *real, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    COUNT(mkdir);
    operation();
    int done = real_mkdir(real, mode);
    if (!done)
        note_created(real);
    return done;
}

int mkdir(const char *path, mode_t mode) {
    char real[PATH_MAX];
    if (ours(path, real))
        return mkdir_ours(real, mode);
    REAL(int, mkdir, const char *, mode_t);
    return real_mkdir(path, mode);
}

int mkdirat(int directory, const char *path, mode_t mode) {
    char real[PATH_MAX];
    if (ours_at(directory, path, real))
        return mkdir_ours(real, mode);
    REAL(int, mkdirat, int, const char *, mode_t);
    return real_mkdirat(directory, path, mode);
}

/* ---- listing ------------------------------------------------------------------------------- */

struct listing {
    struct listing *next;
    int fd;
    int count, at;
    struct dirent **entries;
};
static struct listing *listings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int64_t age_us(const struct timespec *since) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (now.tv_sec - since->tv_sec) * 1000000 + (now.tv_nsec - since->tv_nsec) / 1000;
}

/* Whether this client's listing of a directory lacks that entry. */
static bool is_missed(const char *real, const char *name, bool just_changed) {
    REAL(int, fstatat64, int, const char *, struct stat *, int);
    char path[PATH_MAX];
    struct stat found;
    if (name[0] == '.' || !just_changed)
        return false;
    if (chance(control->listing_miss_ppm))
        return true;
    snprintf(path, sizeof path, "%.*s/%.255s", PATH_MAX - 300, real, name);
    return control->listing_stale_us && !created_here(path) &&
           !real_fstatat64(AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW) &&
           age_us(&found.st_ctim) < control->listing_stale_us && chance(500000);
}

static DIR *list_ours(const char *real, int fd) {
    REAL(int, fstatat64, int, const char *, struct stat *, int);
    REAL(DIR *, opendir, const char *);
    REAL(struct dirent *, readdir, DIR *);
    REAL(int, closedir, DIR *);
    struct stat found;
    COUNT(list);
    operation();
    DIR *directory = real_opendir(real);
    struct listing *made = directory ? calloc(1, sizeof *made) : NULL;
    if (!made)
        return NULL;
    bool just_changed = !real_fstatat64(AT_FDCWD, real, &found, 0) &&
                        age_us(&found.st_mtim) < 1000000;
    struct dirent *entry;
    while ((entry = real_readdir(directory))) {
        if (is_missed(real, entry->d_name, just_changed)) {
            COUNT(listings_short);
            continue;
        }
        if (made->count % 64 == 0)
            made->entries = realloc(made->entries, (size_t)(made->count + 64) * sizeof(void *));
        made->entries[made->count] = malloc(sizeof *entry);
        *made->entries[made->count++] = *entry;
    }
    real_closedir(directory);
    made->fd = fd;
    pthread_mutex_lock(&lock);
    made->next = listings;
    listings = made;
    pthread_mutex_unlock(&lock);
    return (DIR *)made;
}

static struct listing *listing_of(DIR *directory) {
    pthread_mutex_lock(&lock);
    struct listing *found = listings;
    while (found && found != (struct listing *)directory)
        found = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

DIR *opendir(const char *path) {
    char real[PATH_MAX];
    if (ours(path, real)) {
        int fd = table_add(real, O_RDONLY, 0);
        DIR *made = list_ours(real, fd);
        if (!made)
            table_remove(fd);
        return made;
    }
    REAL(DIR *, opendir, const char *);
    return real_opendir(path);
}

DIR *fdopendir(int fd) {
    struct file file;
    if (is_ours(fd))
        return table_get(fd, &file) ? list_ours(file.real, fd) : NULL;
    REAL(DIR *, fdopendir, int);
    return real_fdopendir(fd);
}

struct dirent *readdir(DIR *directory) {
    struct listing *mine = listing_of(directory);
    if (mine)
        return mine->at < mine->count ? mine->entries[mine->at++] : NULL;
    REAL(struct dirent *, readdir, DIR *);
    return real_readdir(directory);
}

struct dirent64 *readdir64(DIR *directory) { return (struct dirent64 *)readdir(directory); }

void rewinddir(DIR *directory) {
    struct listing *mine = listing_of(directory);
    if (mine) {
        mine->at = 0;
        return;
    }
    REAL(void, rewinddir, DIR *);
    real_rewinddir(directory);
}

int dirfd(DIR *directory) {
    struct listing *mine = listing_of(directory);
    if (mine)
        return mine->fd;
    REAL(int, dirfd, DIR *);
    return real_dirfd(directory);
}

int closedir(DIR *directory) {
    struct listing *mine = listing_of(directory);
    if (mine) {
        pthread_mutex_lock(&lock);
        struct listing **link = &listings;
        while (*link != mine)
            link = &(*link)->next;
        *link = mine->next;
        pthread_mutex_unlock(&lock);
        for (int at = 0; at < mine->count; at++)
            free(mine->entries[at]);
        free(mine->entries);
        table_remove(mine->fd);
        free(mine);
        return 0;
    }
    REAL(int, closedir, DIR *);
    return real_closedir(directory);
}

/* ---- space --------------------------------------------------------------------------------- */

#define STATFS(name, kind)                                                                      \
    int name(const char *path, struct kind *to) {                                               \
        char real[PATH_MAX];                                                                    \
        REAL(int, name, const char *, struct kind *);                                           \
        if (!ours(path, real))                                                                  \
            return real_##name(path, to);                                                       \
        COUNT(stat);                                                                            \
        operation();                                                                            \
        if (real_##name(real, to))                                                              \
            return -1;                                                                          \
        if (control->bsize_only) {                                                              \
            uint64_t unit = (uint64_t)(to->f_frsize ? to->f_frsize : to->f_bsize);              \
            uint64_t object = (uint64_t)control->object_bytes;                                  \
            to->f_blocks = to->f_blocks * unit / object;                                        \
            to->f_bfree = to->f_bfree * unit / object;                                          \
            to->f_bavail = to->f_bavail * unit / object;                                        \
            to->f_bsize = object;                                                               \
            to->f_frsize = 0;                                                                   \
        }                                                                                       \
        TYPE                                                                                    \
        return 0;                                                                               \
    }
#define TYPE to->f_type = 0;
STATFS(statfs, statfs)
STATFS(statfs64, statfs64)
#undef TYPE
#define TYPE
STATFS(statvfs, statvfs)
STATFS(statvfs64, statvfs64)
