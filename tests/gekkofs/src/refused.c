/* What is refused, what lies, and what a second process meets. */
#include "standin.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

/* ---- on two names: refused if one of them is ours ------------------------------------------ */

#define TWO_NAMES(name, error)                                                                  \
    int name(const char *from, const char *to) {                                                \
        char a[PATH_MAX], b[PATH_MAX];                                                          \
        REAL(int, name, const char *, const char *);                                            \
        bool first = ours(from, a), second = ours(to, b);                                       \
        if (!first && !second)                                                                  \
            return real_##name(from, to);                                                       \
        operation();                                                                            \
        return control->error ? refuse(control->error)                                          \
                              : real_##name(first ? a : from, second ? b : to);                 \
    }
TWO_NAMES(rename, rename_errno)
TWO_NAMES(link, link_errno)
TWO_NAMES(symlink, symlink_errno)

int renameat(int a, const char *from, int b, const char *to) {
    char one[PATH_MAX], two[PATH_MAX];
    REAL(int, renameat, int, const char *, int, const char *);
    bool first = ours_at(a, from, one), second = ours_at(b, to, two);
    if (!first && !second)
        return real_renameat(a, from, b, to);
    return control->rename_errno ? refuse(control->rename_errno)
                                 : real_renameat(a, first ? one : from, b, second ? two : to);
}

/* ---- on a path: mode, owner, times, attributes --------------------------------------------- */

#define ON_PATH(name, error, parameters, ...)                                                   \
    int name parameters {                                                                       \
        char real[PATH_MAX];                                                                    \
        REAL(int, name, CALL_TYPES);                                                            \
        if (!ours(path, real))                                                                  \
            return real_##name(path, __VA_ARGS__);                                              \
        operation();                                                                            \
        return control->error ? refuse(control->error) : real_##name(real, __VA_ARGS__);        \
    }
#define CALL_TYPES const char *, mode_t
ON_PATH(chmod, chmod_errno, (const char *path, mode_t mode), mode)
#undef CALL_TYPES
#define CALL_TYPES const char *, uid_t, gid_t
ON_PATH(chown, chmod_errno, (const char *path, uid_t uid, gid_t gid), uid, gid)
#undef CALL_TYPES
#define CALL_TYPES const char *, const struct timeval *
ON_PATH(utimes, utime_errno, (const char *path, const struct timeval times[2]), times)
#undef CALL_TYPES
#define CALL_TYPES const char *, const char *, const void *, size_t, int
ON_PATH(setxattr, xattr_errno,
        (const char *path, const char *key, const void *value, size_t bytes, int flags), key,
        value, bytes, flags)
#undef CALL_TYPES

ssize_t getxattr(const char *path, const char *key, void *value, size_t bytes) {
    char real[PATH_MAX];
    REAL(ssize_t, getxattr, const char *, const char *, void *, size_t);
    if (!ours(path, real))
        return real_getxattr(path, key, value, bytes);
    return control->xattr_errno ? refuse(control->xattr_errno)
                                : real_getxattr(real, key, value, bytes);
}

ssize_t listxattr(const char *path, char *list, size_t bytes) {
    char real[PATH_MAX];
    REAL(ssize_t, listxattr, const char *, char *, size_t);
    if (!ours(path, real))
        return real_listxattr(path, list, bytes);
    return control->xattr_errno ? refuse(control->xattr_errno) : real_listxattr(real, list, bytes);
}

int fchmodat(int directory, const char *path, mode_t mode, int flags) {
    char real[PATH_MAX];
    REAL(int, fchmodat, int, const char *, mode_t, int);
    if (!ours_at(directory, path, real))
        return real_fchmodat(directory, path, mode, flags);
    return control->chmod_errno ? refuse(control->chmod_errno)
                                : real_fchmodat(AT_FDCWD, real, mode, flags);
}

int utimensat(int directory, const char *path, const struct timespec times[2], int flags) {
    char real[PATH_MAX];
    REAL(int, utimensat, int, const char *, const struct timespec *, int);
    if (!ours_at(directory, path, real))
        return real_utimensat(directory, path, times, flags);
    return control->utime_errno ? refuse(control->utime_errno)
                                : real_utimensat(AT_FDCWD, real, times, flags);
}

/* ---- on a descriptor: refused, or done on a borrowed one ----------------------------------- */

#define ON_FD(type, name, error, open_flags, parameters, types, ...)                            \
    type name parameters {                                                                      \
        REAL(type, name, __VA_ARGS__);                                                          \
        if (!is_ours(fd))                                                                       \
            return real_##name types;                                                           \
        operation();                                                                            \
        struct file file;                                                                       \
        if (control->error || !table_get(fd, &file))                                            \
            return (type)refuse(control->error ? control->error : EBADF);                       \
        fd = borrow(&file, open_flags);                                                         \
        type done = fd < 0 ? (type)-1 : real_##name types;                                      \
        if (fd >= 0)                                                                            \
            real_close(fd);                                                                     \
        return done;                                                                            \
    }
#define READV(name, offset_t)                                                                   \
    ON_FD(ssize_t, name, vectored_errno, O_RDONLY,                                              \
          (int fd, const struct iovec *parts, int count, offset_t offset),                      \
          (fd, parts, count, offset), int, const struct iovec *, int, offset_t)
#define WRITEV(name, offset_t)                                                                  \
    ON_FD(ssize_t, name, vectored_errno, O_WRONLY,                                              \
          (int fd, const struct iovec *parts, int count, offset_t offset),                      \
          (fd, parts, count, offset), int, const struct iovec *, int, offset_t)
#define VECTOR2(name, open_flags, offset_t)                                                     \
    ON_FD(ssize_t, name, vectored_errno, open_flags,                                            \
          (int fd, const struct iovec *parts, int count, offset_t offset, int flags),           \
          (fd, parts, count, offset, flags), int, const struct iovec *, int, offset_t, int)
READV(preadv, off_t)
READV(preadv64, off64_t)
WRITEV(pwritev, off_t)
WRITEV(pwritev64, off64_t)
VECTOR2(preadv2, O_RDONLY, off_t)
VECTOR2(preadv64v2, O_RDONLY, off64_t)
VECTOR2(pwritev2, O_WRONLY, off_t)
VECTOR2(pwritev64v2, O_WRONLY, off64_t)
ON_FD(int, fchmod, chmod_errno, O_RDONLY, (int fd, mode_t mode), (fd, mode), int, mode_t)
ON_FD(int, fchown, chmod_errno, O_RDONLY, (int fd, uid_t uid, gid_t gid), (fd, uid, gid), int,
      uid_t, gid_t)
ON_FD(int, futimens, utime_errno, O_RDONLY, (int fd, const struct timespec times[2]),
      (fd, times), int, const struct timespec *)
ON_FD(int, fallocate64, fallocate_errno, O_WRONLY,
      (int fd, int mode, off64_t offset, off64_t length), (fd, mode, offset, length), int, int,
      off64_t, off64_t)

/* These return their error instead of setting it. */
#define ADVISE(name, offset_t)                                                                  \
    int name(int fd, offset_t offset, offset_t length, int advice) {                            \
        REAL(int, name, int, offset_t, offset_t, int);                                          \
        if (!is_ours(fd))                                                                       \
            return real_##name(fd, offset, length, advice);                                     \
        if (control->fadvise_errno)                                                             \
            refuse(control->fadvise_errno);                                                     \
        return (int)control->fadvise_errno;                                                     \
    }
ADVISE(posix_fadvise, off_t)
ADVISE(posix_fadvise64, off64_t)

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    REAL(int, posix_fallocate64, int, off64_t, off64_t);
    if (!is_ours(fd))
        return real_posix_fallocate64(fd, offset, length);
    refuse(control->fallocate_errno);
    return (int)control->fallocate_errno;
}

#define MAP(name, offset_t)                                                                     \
    void *name(void *at, size_t bytes, int protection, int flags, int fd, offset_t offset) {    \
        REAL(void *, name, void *, size_t, int, int, int, offset_t);                            \
        if (is_ours(fd) && !(flags & MAP_ANONYMOUS)) {                                          \
            refuse(control->mmap_errno ? control->mmap_errno : EBADF);                          \
            return MAP_FAILED;                                                                  \
        }                                                                                       \
        return real_##name(at, bytes, protection, flags, fd, offset);                           \
    }
MAP(mmap, off_t)
MAP(mmap64, off64_t)

ssize_t sendfile64(int to, int from, off64_t *offset, size_t bytes) {
    REAL(ssize_t, sendfile64, int, int, off64_t *, size_t);
    if (is_ours(to) || is_ours(from))
        return refuse(control->sendfile_errno ? control->sendfile_errno : EBADF);
    return real_sendfile64(to, from, offset, bytes);
}

/* ---- locks --------------------------------------------------------------------------------- */

#define LOCKED_MAX 1024
static _Atomic bool locked[LOCKED_MAX]; /* real descriptors that this process has locked */

static int lie(void) {
    COUNT(lies);
    if (control->locks_break_others) {
        REAL(int, flock, int, int);
        for (int fd = 0; fd < LOCKED_MAX; fd++)
            if (locked[fd]) {
                locked[fd] = false;
                COUNT(locks_broken);
                real_flock(fd, LOCK_UN);
            }
    }
    return 0;
}

int flock(int fd, int what) {
    REAL(int, flock, int, int);
    if (is_ours(fd) && control->locks_lie)
        return lie();
    int done = real_flock(fd, what);
    if (!done && fd >= 0 && fd < LOCKED_MAX)
        locked[fd] = (what & ~LOCK_NB) != LOCK_UN;
    return done;
}

static int fcntl_ours(int fd, int what, long argument) {
    struct file file;
    if (!table_get(fd, &file))
        return -1;
    switch (what) {
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
        return table_add(file.real, file.flags, file.size);
    case F_GETFD:
        return FD_CLOEXEC;
    case F_SETFD:
    case F_SETFL:
        return 0;
    case F_GETFL:
        return file.flags;
    case F_SETLK:
    case F_SETLKW:
    case F_OFD_SETLK:
    case F_OFD_SETLKW:
        return control->locks_lie ? lie() : refuse(ENOSYS);
    default:
        (void)argument;
        return refuse(EINVAL);
    }
}

#define FCNTL(name)                                                                             \
    int name(int fd, int what, ...) {                                                           \
        va_list rest;                                                                           \
        va_start(rest, what);                                                                   \
        long argument = va_arg(rest, long);                                                     \
        va_end(rest);                                                                           \
        REAL(int, name, int, int, ...);                                                         \
        return is_ours(fd) ? fcntl_ours(fd, what, argument) : real_##name(fd, what, argument);  \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

int dup(int fd) {
    REAL(int, dup, int);
    return is_ours(fd) ? fcntl_ours(fd, F_DUPFD, 0) : real_dup(fd);
}

/* ---- processes ----------------------------------------------------------------------------- */

static void no_vfork(const char *call) {
    if (standin_ready() && control->vfork_aborts) {
        fprintf(stderr, "gkfs stand-in: %s under the client: this process dies\n", call);
        abort();
    }
}

pid_t vfork(void) {
    no_vfork("vfork");
    return fork(); /* a vfork cannot be wrapped: its frame would be gone */
}

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const words[], char *const environ[]) {
    no_vfork("posix_spawn");
    REAL(int, posix_spawn, pid_t *, const char *, const posix_spawn_file_actions_t *,
         const posix_spawnattr_t *, char *const[], char *const[]);
    return real_posix_spawn(pid, path, actions, attributes, words, environ);
}

int posix_spawnp(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const words[], char *const environ[]) {
    no_vfork("posix_spawnp");
    REAL(int, posix_spawnp, pid_t *, const char *, const posix_spawn_file_actions_t *,
         const posix_spawnattr_t *, char *const[], char *const[]);
    return real_posix_spawnp(pid, path, actions, attributes, words, environ);
}
