/* Operations on open files: open, create, read, write, close. */
#include "throttle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct handle *handle_of(const struct fuse_file_info *info) {
    return (struct handle *)(uintptr_t)info->fh;
}

/* Flags for the backing file. Written files are readable too, for staging. Offsets are the kernel's
 * affair, and so is the page cache: O_APPEND and O_DIRECT stay in front. */
static int backing_flags(int flags) {
    int kept = flags & ~(O_APPEND | O_DIRECT | O_CREAT | O_EXCL | O_ACCMODE);
    return kept | ((flags & O_ACCMODE) == O_RDONLY ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW;
}

/* The errno that opening with these flags gives here, 0 for none. */
static int refused(int flags) {
    if (flags & O_APPEND && settings.append_errno)
        return (int)settings.append_errno;
    return flags & O_DIRECT ? (int)settings.direct_errno : 0;
}

static void fill(struct fuse_file_info *info, struct node *node, int fd) {
    info->fh = (uintptr_t)handle_make(node, fd, (info->flags & O_ACCMODE) != O_RDONLY);
    info->direct_io = settings.direct_io != 0;
    info->keep_cache = settings.keep_cache != 0;
}

static void do_open(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *info) {
    struct turn turn = turn_begin(req, OP_open);
    struct node *node = node_of(number);
    struct place place = place_of(node);
    struct stat found;
    int fd = -1, error = turn.error ? turn.error : refused(info->flags);
    if (!error) {
        fd = openat(place.dir_fd, place.name, backing_flags(info->flags));
        if (fd < 0 && errno == EACCES && (info->flags & O_ACCMODE) == O_WRONLY)
            fd = openat(place.dir_fd, place.name, (backing_flags(info->flags) & ~O_RDWR) | O_WRONLY);
        if (fd < 0)
            error = errno == ENOENT ? ESTALE : errno; /* the kernel looks the name up again */
        else if (fstat(fd, &found) || found.st_ino != node->ino || found.st_dev != node->dev)
            error = ESTALE;
    }
    if (error) {
        if (fd >= 0)
            close(fd);
        answer_error(turn, error);
        return;
    }
    fill(info, node, fd);
    answer_open(turn, info);
}

static void do_create(fuse_req_t req, fuse_ino_t number, const char *name, mode_t mode,
                      struct fuse_file_info *info) {
    struct turn turn = turn_begin(req, OP_create);
    struct node *parent = node_of(number), *node;
    struct stat found;
    bool fresh = true;
    int fd = -1, flags = backing_flags(info->flags);
    int error = turn.error ? turn.error : refused(info->flags);
    if (!error) {
        fd = openat(parent->dir_fd, name, flags | O_CREAT | O_EXCL, mode);
        bool race = fd < 0 && errno == EEXIST && info->flags & O_EXCL;
        if (race && chance(settings.excl_race_ppm))
            COUNT(excl_races);
        else if (race)
            error = EEXIST;
        if (fd < 0 && !error) {
            fresh = false;
            fd = openat(parent->dir_fd, name, flags | O_CREAT, mode);
        }
        if (fd < 0 && !error)
            error = errno;
    }
    listing_changed(parent);
    if (!error)
        error = node_find(parent, name, &node, &found);
    if (error) {
        if (fd >= 0)
            close(fd);
        answer_error(turn, error);
        return;
    }
    if (fresh) {
        enum past past = name_past(parent, name);
        if (past != NEVER)
            COUNT(names_recreated);
        node->loses_data = (past != NEVER && settings.recreate_loses_data) ||
                           (past == POISONED && settings.unlink_poisons);
    }
    struct fuse_entry_param entry;
    node_entry(node, &found, &entry);
    fill(info, node, fd);
    answer_create(turn, &entry, info);
}

/* How many bytes a reader gets of `got`; what is left out may not be a prefix's end. */
static size_t shorten(char *buffer, size_t got) {
    if (got < 2 || !chance(settings.short_read_ppm))
        return got;
    COUNT(short_reads);
    size_t kept = got / 2;
    if (settings.short_read_holes)
        memset(buffer + kept / 4, 0, kept / 2 + 1);
    return kept;
}

static void do_read(fuse_req_t req, fuse_ino_t number, size_t size, off_t offset,
                    struct fuse_file_info *info) {
    (void)number;
    struct turn turn = turn_begin(req, OP_read);
    struct handle *handle = handle_of(info);
    struct stat found;
    if (!turn.error && settings.unlinked_read_errno && fstat(handle->fd, &found) == 0 &&
        found.st_nlink == 0)
        turn.error = (int)settings.unlinked_read_errno;
    if (settings.size_at_open && !handle->writes) {
        off_t left = handle->size_at_open - offset;
        size = left <= 0 ? 0 : (off_t)size > left ? (size_t)left : size;
    }
    const char *data = turn.error ? NULL : mapping_read(handle, &size, offset);
    if (data) {
        turn_pay(&turn, size);
        atomic_fetch_add(&counters.bytes_read, (int64_t)size);
        answer_data(turn, data, size, NULL);
        return;
    }
    char *buffer = turn.error ? NULL : buffer_take(size);
    if (!buffer) {
        answer_error(turn, turn.error ? turn.error : EINVAL);
        return;
    }
    ssize_t got = stage_read(handle->node, buffer, size, offset);
    if (got < 0)
        got = pread(handle->fd, buffer, size, offset);
    if (got < 0) {
        int error = errno;
        buffer_give(buffer);
        answer_error(turn, error);
        return;
    }
    turn_pay(&turn, (size_t)got);
    got = (ssize_t)shorten(buffer, (size_t)got);
    atomic_fetch_add(&counters.bytes_read, got);
    answer_data(turn, buffer, (size_t)got, buffer);
}

/* A write whose bytes come after its size. */
struct late_write {
    struct turn turn;
    int fd;
    char *data;
    size_t bytes;
    off_t offset;
};

static void finish_late(void *context) {
    struct late_write *late = context;
    ssize_t put = pwrite(late->fd, late->data, late->bytes, late->offset);
    if (put < 0)
        answer_error(late->turn, errno);
    else
        answer_written(late->turn, (size_t)put);
    buffer_give(late->data);
    free(late);
}

/* False where the size does not grow: then there is nothing to show early. */
static bool size_first(struct turn turn, struct handle *handle, const char *data, size_t bytes,
                       off_t offset) {
    struct stat found;
    off_t end = offset + (off_t)bytes;
    if (fstat(handle->fd, &found) || found.st_size >= end || ftruncate(handle->fd, end))
        return false;
    struct late_write *late = malloc(sizeof *late);
    char *copy = buffer_take(bytes);
    if (!late || !copy)
        abort();
    memcpy(copy, data, bytes);
    *late = (struct late_write){turn, handle->fd, copy, bytes, offset};
    int64_t shown_ns = now_ns() + settings.size_before_data_us * 1000;
    run_later(turn.due_ns > shown_ns ? turn.due_ns : shown_ns, finish_late, late);
    return true;
}

static void do_write(fuse_req_t req, fuse_ino_t number, const char *data, size_t bytes,
                     off_t offset, struct fuse_file_info *info) {
    (void)number;
    struct turn turn = turn_begin(req, OP_write);
    struct handle *handle = handle_of(info);
    if (turn.error) {
        answer_error(turn, turn.error);
        return;
    }
    turn_pay(&turn, bytes);
    atomic_fetch_add(&counters.bytes_written, (int64_t)bytes);
    if (handle->node->loses_data) {
        answer_written(turn, bytes);
    } else if (settings.visible_at_close) {
        int error = stage_write(handle, data, bytes, offset);
        if (error)
            answer_error(turn, error);
        else
            answer_written(turn, bytes);
    } else if (!settings.size_before_data_us || !size_first(turn, handle, data, bytes, offset)) {
        ssize_t put = pwrite(handle->fd, data, bytes, offset);
        if (put < 0)
            answer_error(turn, errno);
        else
            answer_written(turn, (size_t)put);
    }
}

static void do_flush(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *info) {
    (void)number;
    struct turn turn = turn_begin(req, OP_close);
    int error = stage_publish(handle_of(info), turn.error != 0);
    answer_error(turn, turn.error ? turn.error : error);
}

static void do_release(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *info) {
    (void)number;
    turn_begin(req, OP_release);
    stage_publish(handle_of(info), false);
    handle_drop(handle_of(info));
    fuse_reply_err(req, 0); /* nobody waits for it */
}

static void do_fsync(fuse_req_t req, fuse_ino_t number, int data_only,
                     struct fuse_file_info *info) {
    (void)number;
    struct turn turn = turn_begin(req, OP_fsync);
    struct handle *handle = handle_of(info);
    int error = turn.error ? turn.error : stage_publish(handle, false);
    if (!error && (data_only ? fdatasync(handle->fd) : fsync(handle->fd)))
        error = errno;
    answer_error(turn, error);
}

static void do_fallocate(fuse_req_t req, fuse_ino_t number, int mode, off_t offset, off_t length,
                         struct fuse_file_info *info) {
    (void)number;
    struct turn turn = turn_begin(req, OP_fallocate);
    int error = turn.error ? turn.error : (int)settings.fallocate_errno;
    if (!error && fallocate(handle_of(info)->fd, mode, offset, length))
        error = errno;
    answer_error(turn, error);
}

void data_operations(struct fuse_lowlevel_ops *operations) {
    operations->open = do_open;
    operations->create = do_create;
    operations->read = do_read;
    operations->write = do_write;
    operations->flush = do_flush;
    operations->release = do_release;
    operations->fsync = do_fsync;
    operations->fallocate = do_fallocate;
}
