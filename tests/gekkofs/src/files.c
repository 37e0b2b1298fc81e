/* Opening, reading, writing, seeking, closing. */
#include "standin.h"

#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static int open_ours(const char *real, int flags, mode_t mode) {
    if (flags & O_CREAT)
        COUNT(create);
    else
        COUNT(open);
    operation();
    if (flags & O_APPEND && control->append_errno)
        return refuse(control->append_errno);
    if (flags & O_DIRECT && control->direct_errno)
        return refuse(control->direct_errno);
    REAL(int, access, const char *, int);
    bool was_there = !(flags & O_CREAT) || !real_access(real, F_OK);
    int plain = flags & ~(O_APPEND | O_DIRECT);
    int fd = real_open(real, plain, mode);
    if (fd < 0 && errno == EEXIST && flags & O_EXCL && chance(control->excl_race_ppm)) {
        COUNT(excl_races);
        fd = real_open(real, plain & ~O_EXCL, mode);
    }
    if (fd < 0)
        return -1;
    off_t size = lseek(fd, 0, SEEK_END);
    real_close(fd);
    if (!was_there) {
        note_created(real);
        if (marked('u', real))
            COUNT(recreated);
    }
    return table_add(real, flags, size > 0 ? size : 0);
}

#define MODE(last)                                                                              \
    mode_t mode = 0;                                                                            \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                                      \
        va_list rest;                                                                           \
        va_start(rest, last);                                                                   \
        mode = va_arg(rest, mode_t);                                                            \
        va_end(rest);                                                                           \
    }

#define OPEN(name)                                                                              \
    int name(const char *path, int flags, ...) {                                                \
        char real[PATH_MAX];                                                                    \
        MODE(flags)                                                                             \
        if (ours(path, real))                                                                   \
            return open_ours(real, flags, mode);                                                \
        REAL(int, name, const char *, int, ...);                                                \
        return real_##name(path, flags, mode);                                                  \
    }
#define OPENAT(name)                                                                            \
    int name(int directory, const char *path, int flags, ...) {                                 \
        char real[PATH_MAX];                                                                    \
        MODE(flags)                                                                             \
        if (ours_at(directory, path, real))                                                     \
            return open_ours(real, flags, mode);                                                \
        REAL(int, name, int, const char *, int, ...);                                           \
        return real_##name(directory, path, flags, mode);                                       \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
    if (!is_ours(fd))
        return real_close(fd);
    COUNT(close);
    return table_remove(fd) ? 0 : -1;
}

#define POSITIONED(name, offset_t)                                                              \
    ssize_t name(int fd, void *to, size_t bytes, offset_t offset) {                             \
        if (is_ours(fd)) {                                                                      \
            struct file file;                                                                   \
            COUNT(read);                                                                        \
            operation();                                                                        \
            return table_get(fd, &file) ? file_read(&file, to, bytes, offset) : -1;             \
        }                                                                                       \
        REAL(ssize_t, name, int, void *, size_t, offset_t);                                     \
        return real_##name(fd, to, bytes, offset);                                              \
    }
POSITIONED(pread, off_t)
POSITIONED(pread64, off64_t)

#define POSITIONED_WRITE(name, offset_t)                                                        \
    ssize_t name(int fd, const void *from, size_t bytes, offset_t offset) {                     \
        if (is_ours(fd)) {                                                                      \
            struct file file;                                                                   \
            COUNT(write);                                                                       \
            operation();                                                                        \
            return table_get(fd, &file) ? file_write(&file, from, bytes, offset) : -1;          \
        }                                                                                       \
        REAL(ssize_t, name, int, const void *, size_t, offset_t);                               \
        return real_##name(fd, from, bytes, offset);                                            \
    }
POSITIONED_WRITE(pwrite, off_t)
POSITIONED_WRITE(pwrite64, off64_t)

ssize_t read(int fd, void *to, size_t bytes) {
    if (is_ours(fd)) {
        struct file file;
        COUNT(read);
        operation();
        if (!table_get(fd, &file))
            return -1;
        ssize_t done = file_read(&file, to, bytes, file.position);
        if (done > 0)
            table_seek(fd, file.position + done);
        return done;
    }
    REAL(ssize_t, read, int, void *, size_t);
    return real_read(fd, to, bytes);
}

ssize_t write(int fd, const void *from, size_t bytes) {
    if (is_ours(fd)) {
        struct file file;
        COUNT(write);
        operation();
        if (!table_get(fd, &file))
            return -1;
        ssize_t done = file_write(&file, from, bytes, file.position);
        if (done > 0)
            table_seek(fd, file.position + done);
        return done;
    }
    REAL(ssize_t, write, int, const void *, size_t);
    return real_write(fd, from, bytes);
}

#define SEEK(name, offset_t)                                                                    \
    offset_t name(int fd, offset_t offset, int whence) {                                        \
        if (is_ours(fd)) {                                                                      \
            struct file file;                                                                   \
            struct stat found = {0};                                                            \
            if (!table_get(fd, &file) || (whence == SEEK_END && stat(file.real, &found)))       \
                return -1;                                                                      \
            if (whence == SEEK_CUR)                                                             \
                offset += file.position;                                                        \
            else if (whence == SEEK_END)                                                        \
                offset += found.st_size;                                                        \
            table_seek(fd, offset);                                                             \
            return offset;                                                                      \
        }                                                                                       \
        REAL(offset_t, name, int, offset_t, int);                                               \
        return real_##name(fd, offset, whence);                                                 \
    }
SEEK(lseek, off_t)
SEEK(lseek64, off64_t)

#define TRUNCATE(name, offset_t)                                                                \
    int f##name(int fd, offset_t length) {                                                      \
        REAL(int, f##name, int, offset_t);                                                      \
        if (is_ours(fd)) {                                                                      \
            struct file file;                                                                   \
            COUNT(write);                                                                       \
            operation();                                                                        \
            int real = table_get(fd, &file) ? borrow(&file, O_WRONLY) : -1;                     \
            int done = real < 0 ? -1 : real_f##name(real, length);                              \
            if (real >= 0)                                                                      \
                real_close(real);                                                               \
            return done;                                                                        \
        }                                                                                       \
        return real_f##name(fd, length);                                                        \
    }                                                                                           \
    int name(const char *path, offset_t length) {                                               \
        char real[PATH_MAX];                                                                    \
        REAL(int, name, const char *, offset_t);                                                \
        if (ours(path, real)) {                                                                 \
            COUNT(write);                                                                       \
            operation();                                                                        \
            return real_##name(real, length);                                                   \
        }                                                                                       \
        return real_##name(path, length);                                                       \
    }
TRUNCATE(truncate, off_t)
TRUNCATE(truncate64, off64_t)

/* There is nothing to write back: a write has been sent when it returns. */
#define SYNC(name)                                                                              \
    int name(int fd) {                                                                          \
        if (is_ours(fd)) {                                                                      \
            struct file file;                                                                   \
            COUNT(sync);                                                                        \
            return table_get(fd, &file) ? 0 : -1;                                               \
        }                                                                                       \
        REAL(int, name, int);                                                                   \
        return real_##name(fd);                                                                 \
    }
SYNC(fsync)
SYNC(fdatasync)
