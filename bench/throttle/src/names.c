/* Operations on names and attributes: each takes its turn, acts on the backing directory, answers. */
#include "throttle.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Answers with the entry of a name that is there now. */
static void answer_found(struct turn turn, struct node *parent, const char *name) {
    struct fuse_entry_param entry;
    struct stat found;
    struct node *node;
    int error = node_find(parent, name, &node, &found);
    if (error) {
        answer_error(turn, error);
        return;
    }
    node_entry(node, &found, &entry);
    answer_entry(turn, &entry);
}

static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name) {
    struct turn turn = turn_begin(req, OP_lookup);
    struct fuse_entry_param missing = {.entry_timeout = (double)settings.negative_us / 1e6};
    struct stat found;
    if (turn.error)
        answer_error(turn, turn.error);
    else if (settings.negative_us &&
             fstatat(node_of(parent)->dir_fd, name, &found, AT_SYMLINK_NOFOLLOW) &&
             errno == ENOENT)
        answer_entry(turn, &missing); /* number 0: the kernel remembers that there is none */
    else
        answer_found(turn, node_of(parent), name);
}

static void do_forget(fuse_req_t req, fuse_ino_t number, uint64_t lookups) {
    node_forget(node_of(number), lookups);
    fuse_reply_none(req);
}

static void do_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets) {
    for (size_t at = 0; at < count; at++)
        node_forget(node_of(forgets[at].ino), forgets[at].nlookup);
    fuse_reply_none(req);
}

static void answer_stat(struct turn turn, struct node *node) {
    struct stat found;
    int error = node_stat(node, &found);
    if (error)
        answer_error(turn, error);
    else
        answer_attributes(turn, &found);
}

static void do_getattr(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *info) {
    (void)info;
    struct turn turn = turn_begin(req, OP_getattr);
    if (turn.error)
        answer_error(turn, turn.error);
    else
        answer_stat(turn, node_of(number));
}

static int set_size(struct node *node, struct fuse_file_info *info, off_t size) {
    stage_resize(node, size); /* of what is not visible yet, beside what is */
    if (info)
        return ftruncate(((struct handle *)(uintptr_t)info->fh)->fd, size) ? errno : 0;
    struct place place = place_of(node);
    int fd = openat(place.dir_fd, place.name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = ftruncate(fd, size) ? errno : 0;
    close(fd);
    return error;
}

static struct timespec time_of(int valid, int set, int now, struct timespec given) {
    if (valid & now)
        return (struct timespec){0, UTIME_NOW};
    return valid & set ? given : (struct timespec){0, UTIME_OMIT};
}

static void do_setattr(fuse_req_t req, fuse_ino_t number, struct stat *wanted, int valid,
                       struct fuse_file_info *info) {
    struct turn turn = turn_begin(req, OP_setattr);
    struct node *node = node_of(number);
    struct place place = place_of(node);
    int error = turn.error;
    if (!error && valid & FUSE_SET_ATTR_MODE) {
        error = (int)settings.chmod_errno;
        if (!error && fchmodat(place.dir_fd, place.name, wanted->st_mode & 07777, 0))
            error = errno;
    }
    if (!error && valid & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) {
        uid_t uid = valid & FUSE_SET_ATTR_UID ? wanted->st_uid : (uid_t)-1;
        gid_t gid = valid & FUSE_SET_ATTR_GID ? wanted->st_gid : (gid_t)-1;
        error = (int)settings.chmod_errno;
        if (!error && fchownat(place.dir_fd, place.name, uid, gid, AT_SYMLINK_NOFOLLOW))
            error = errno;
    }
    if (!error && valid & FUSE_SET_ATTR_SIZE)
        error = set_size(node, info, wanted->st_size);
    if (!error && valid & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME)) {
        struct timespec times[] = {
            time_of(valid, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW, wanted->st_atim),
            time_of(valid, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW, wanted->st_mtim)};
        error = (int)settings.utime_errno;
        if (!error && utimensat(place.dir_fd, place.name, times, AT_SYMLINK_NOFOLLOW))
            error = errno;
    }
    if (error)
        answer_error(turn, error);
    else
        answer_stat(turn, node);
}

static void do_mkdir(fuse_req_t req, fuse_ino_t number, const char *name, mode_t mode) {
    struct turn turn = turn_begin(req, OP_mkdir);
    struct node *parent = node_of(number);
    if (!turn.error && mkdirat(parent->dir_fd, name, mode))
        turn.error = errno;
    listing_changed(parent);
    if (turn.error)
        answer_error(turn, turn.error);
    else
        answer_found(turn, parent, name);
}

static void do_rmdir(fuse_req_t req, fuse_ino_t number, const char *name) {
    struct turn turn = turn_begin(req, OP_rmdir);
    struct node *parent = node_of(number);
    if (!turn.error && unlinkat(parent->dir_fd, name, AT_REMOVEDIR))
        turn.error = errno;
    listing_changed(parent);
    answer_error(turn, turn.error);
}

static void do_unlink(fuse_req_t req, fuse_ino_t number, const char *name) {
    struct turn turn = turn_begin(req, OP_unlink);
    struct node *parent = node_of(number);
    struct stat found;
    bool written = !turn.error &&
                   fstatat(parent->dir_fd, name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
                   node_is_written(&found);
    if (!turn.error && unlinkat(parent->dir_fd, name, 0))
        turn.error = errno;
    if (!turn.error) {
        if (written)
            COUNT(unlinked_while_written);
        name_unlinked(parent, name, written);
    }
    listing_changed(parent);
    answer_error(turn, turn.error);
}

static void do_rename(fuse_req_t req, fuse_ino_t from, const char *old, fuse_ino_t to,
                      const char *name, unsigned int flags) {
    struct turn turn = turn_begin(req, OP_rename);
    struct node *source = node_of(from), *target = node_of(to);
    struct stat found;
    int error = turn.error ? turn.error : (int)settings.rename_errno;
    if (!error && (fstatat(source->dir_fd, old, &found, AT_SYMLINK_NOFOLLOW) ||
                   renameat2(source->dir_fd, old, target->dir_fd, name, flags)))
        error = errno;
    if (!error)
        node_renamed(target, name, &found);
    listing_changed(source);
    listing_changed(target);
    answer_error(turn, error);
}

static void do_link(fuse_req_t req, fuse_ino_t number, fuse_ino_t to, const char *name) {
    struct turn turn = turn_begin(req, OP_link);
    struct node *parent = node_of(to);
    struct place place = place_of(node_of(number));
    int error = turn.error ? turn.error : (int)settings.link_errno;
    if (!error && linkat(place.dir_fd, place.name, parent->dir_fd, name, 0))
        error = errno;
    listing_changed(parent);
    if (error)
        answer_error(turn, error);
    else
        answer_found(turn, parent, name);
}

static void do_symlink(fuse_req_t req, const char *target, fuse_ino_t number, const char *name) {
    struct turn turn = turn_begin(req, OP_symlink);
    struct node *parent = node_of(number);
    int error = turn.error ? turn.error : (int)settings.link_errno;
    if (!error && symlinkat(target, parent->dir_fd, name))
        error = errno;
    listing_changed(parent);
    if (error)
        answer_error(turn, error);
    else
        answer_found(turn, parent, name);
}

static void do_readlink(fuse_req_t req, fuse_ino_t number) {
    struct turn turn = turn_begin(req, OP_readlink);
    struct place place = place_of(node_of(number));
    char target[PATH_MAX + 1];
    ssize_t length = turn.error ? -1 : readlinkat(place.dir_fd, place.name, target, PATH_MAX);
    if (length < 0) {
        answer_error(turn, turn.error ? turn.error : errno);
        return;
    }
    target[length] = 0;
    answer_text(turn, target);
}

static void do_opendir(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *info) {
    struct turn turn = turn_begin(req, OP_list);
    struct listing *listing;
    int error = turn.error ? turn.error : listing_open(node_of(number), &listing);
    if (error) {
        answer_error(turn, error);
        return;
    }
    info->fh = (uintptr_t)listing;
    answer_listing(turn, info);
}

static void do_readdir(fuse_req_t req, fuse_ino_t number, size_t size, off_t offset,
                       struct fuse_file_info *info) {
    (void)number; /* its time was paid when the directory was opened, and read */
    char *buffer = buffer_take(size);
    if (!buffer) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    size_t used = listing_fill(req, (struct listing *)(uintptr_t)info->fh, buffer, size, offset);
    fuse_reply_buf(req, buffer, used);
    buffer_give(buffer);
}

static void do_releasedir(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *info) {
    (void)number;
    listing_close((struct listing *)(uintptr_t)info->fh);
    fuse_reply_err(req, 0);
}

static void do_statfs(fuse_req_t req, fuse_ino_t number) {
    struct turn turn = turn_begin(req, OP_statfs);
    struct statvfs found;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", place_of(node_of(number)).dir_fd);
    if (!turn.error && statvfs(path, &found))
        turn.error = errno;
    if (turn.error)
        answer_error(turn, turn.error);
    else
        answer_statfs(turn, &found);
}

void names_operations(struct fuse_lowlevel_ops *operations) {
    operations->lookup = do_lookup;
    operations->forget = do_forget;
    operations->forget_multi = do_forget_multi;
    operations->getattr = do_getattr;
    operations->setattr = do_setattr;
    operations->mkdir = do_mkdir;
    operations->rmdir = do_rmdir;
    operations->unlink = do_unlink;
    operations->rename = do_rename;
    operations->link = do_link;
    operations->symlink = do_symlink;
    operations->readlink = do_readlink;
    operations->opendir = do_opendir;
    operations->readdir = do_readdir;
    operations->releasedir = do_releasedir;
    operations->statfs = do_statfs;
}
