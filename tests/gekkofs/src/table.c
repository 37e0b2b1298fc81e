/* Descriptors in this client's memory, and the bytes behind them. */
#include "standin.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES_MAX 8192
static struct file *files[FILES_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int table_add(const char *real, int flags, off_t size) {
    int found = -1;
    pthread_mutex_lock(&lock);
    for (int at = 0; at < FILES_MAX && found < 0; at++) {
        if (!files[at])
            files[at] = calloc(1, sizeof **files);
        if (files[at] && !files[at]->used)
            found = at;
    }
    if (found >= 0) {
        *files[found] = (struct file){.used = true, .flags = flags, .size = size};
        strncpy(files[found]->real, real, PATH_MAX - 1);
    }
    pthread_mutex_unlock(&lock);
    if (found < 0)
        errno = EMFILE;
    return found < 0 ? -1 : FIRST_FD + found;
}

static struct file *at(int fd) {
    int index = fd - FIRST_FD;
    struct file *file = index >= 0 && index < FILES_MAX ? files[index] : NULL;
    return file && file->used ? file : NULL;
}

bool table_get(int fd, struct file *to) {
    pthread_mutex_lock(&lock);
    struct file *file = at(fd);
    if (file)
        *to = *file;
    pthread_mutex_unlock(&lock);
    if (!file)
        errno = EBADF;
    return file != NULL;
}

void table_seek(int fd, off_t position) {
    pthread_mutex_lock(&lock);
    struct file *file = at(fd);
    if (file)
        file->position = position;
    pthread_mutex_unlock(&lock);
}

bool table_remove(int fd) {
    pthread_mutex_lock(&lock);
    struct file *file = at(fd);
    if (file)
        file->used = false;
    pthread_mutex_unlock(&lock);
    if (!file)
        errno = EBADF;
    return file != NULL;
}

/* ---- the bytes ----------------------------------------------------------------------------- */

int real_open(const char *real, int flags, mode_t mode) {
    REAL(int, open64, const char *, int, ...);
    return real_open64(real, flags | O_CLOEXEC, mode);
}

int real_close(int fd) {
    static int (*call)(int);
    if (!call)
        call = next_symbol("close");
    return call(fd);
}

int borrow(const struct file *file, int flags) { return real_open(file->real, flags, 0); }

/* Half of what could have been read, and of that the second half was never there. */
static ssize_t with_a_hole(void *to, ssize_t bytes) {
    COUNT(short_reads);
    memset((char *)to + bytes / 4, 0, (size_t)(bytes / 2 - bytes / 4));
    return bytes / 2;
}

ssize_t file_read(const struct file *file, void *to, size_t bytes, off_t offset) {
    REAL(ssize_t, pread64, int, void *, size_t, off64_t);
    if ((file->flags & O_ACCMODE) == O_WRONLY) {
        errno = EBADF;
        return -1;
    }
    int fd = borrow(file, O_RDONLY);
    if (fd < 0) { /* its name is gone, and with it the data */
        if (errno != ENOENT)
            return -1;
        off_t there = file->size > offset ? file->size - offset : 0;
        ssize_t wanted = there < (off_t)bytes ? (ssize_t)there : (ssize_t)bytes;
        memset(to, 0, (size_t)wanted);
        return with_a_hole(to, wanted);
    }
    ssize_t done = real_pread64(fd, to, bytes, offset);
    real_close(fd);
    if (done > 1 && (marked('p', file->real) || chance(control->short_read_ppm)))
        return with_a_hole(to, done);
    return done;
}

/* The name was unlinked under its writer: it is half there from now on. */
static ssize_t poison(const struct file *file, size_t bytes, off_t offset) {
    COUNT(poisoned);
    mark('p', file->real);
    int fd = real_open(file->real, O_WRONLY | O_CREAT, 0666);
    if (fd >= 0) {
        if (ftruncate(fd, offset + (off_t)bytes))
            errno = 0; /* a size more or less: nothing of it can be relied on */
        real_close(fd);
    }
    if (control->poison_aborts)
        control->hang = 1;
    return (ssize_t)bytes;
}

ssize_t file_write(const struct file *file, const void *from, size_t bytes, off_t offset) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    if ((file->flags & O_ACCMODE) == O_RDONLY) {
        errno = EBADF;
        return -1;
    }
    int fd = borrow(file, O_WRONLY);
    if (fd < 0)
        return errno == ENOENT && control->unlink_poisons ? poison(file, bytes, offset) : -1;
    struct stat found;
    off_t end = offset + (off_t)bytes;
    bool loses = (control->recreate_loses_data && marked('u', file->real)) ||
                 marked('p', file->real);
    if ((loses || control->size_before_data_us) && !fstat(fd, &found) && found.st_size < end) {
        if (ftruncate(fd, end)) {
            int error = errno;
            real_close(fd);
            errno = error;
            return -1;
        }
        usleep((useconds_t)control->size_before_data_us);
    }
    ssize_t done = loses ? (ssize_t)bytes : real_pwrite64(fd, from, bytes, offset);
    int error = errno;
    real_close(fd);
    errno = error;
    return done;
}
