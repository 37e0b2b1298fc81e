/* The pass-through's parts and what they promise each other.
 *
 * Each request takes a turn (pacing.c): it is counted, may be made to fail or hang (faults.c), is
 * carried out at once (names.c, data.c), and its answer is sent when its time has come. Nobody
 * sleeps for a latency: one thread waits for the next answer due, so latency costs no worker and
 * any number of requests can be in flight. Settings are read afresh for each request.
 */
#ifndef THROTTLE_H
#define THROTTLE_H

#define _GNU_SOURCE
#define FUSE_USE_VERSION 312

#include <fuse3/fuse_lowlevel.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* ---- settings.c: numbers that may change at any time ------------------------------------- */

/* X(name, default). Units are part of the name; errno settings are 0 for "the call works". */
#define SETTINGS(X)                                                                             \
    X(latency_metadata_us, 0)                                                                   \
    X(latency_open_us, 0)                                                                       \
    X(latency_read_us, 0)                                                                       \
    X(latency_write_us, 0)                                                                      \
    X(latency_close_us, 0)                                                                      \
    X(jitter_us, 0)              /* a latency is uniform within +- this, never negative */     \
    X(seed, 1)                   /* of every random choice */                                   \
    X(read_bytes_per_second, 0)  /* 0: no limit */                                              \
    X(write_bytes_per_second, 0)                                                                \
    X(burst_us, 1000)            /* what a limit owes for so long passes at once */             \
    X(metadata_per_second, 0)    /* metadata operations and opens; 0: no limit */               \
    X(direct_io, 1)              /* the kernel's page cache is not used */                      \
    X(keep_cache, 0)             /* where it is used: kept from one open to the next */         \
    X(entry_us, 0)               /* the kernel may believe a name of a file so long */          \
    X(directory_us, 0)           /* the same for a directory's name */                          \
    X(attribute_us, 0)           /* the same for sizes and times: stale for other mounts */     \
    X(negative_us, 0)            /* the same for a name that does not exist */                  \
    X(rename_errno, 0)                                                                          \
    X(link_errno, 0)             /* link and symlink */                                         \
    X(chmod_errno, 0)                                                                           \
    X(utime_errno, 0)                                                                           \
    X(fallocate_errno, 0)                                                                       \
    X(append_errno, 0)           /* open with O_APPEND */                                       \
    X(direct_errno, 0)           /* open with O_DIRECT */                                       \
    X(zero_times, 0)                                                                            \
    X(excl_race_ppm, 0)          /* chance that O_EXCL succeeds on a name that is taken */      \
    X(recreate_loses_data, 0)    /* writes to a name that was unlinked before vanish */         \
    X(unlink_poisons, 0)         /* the same for a name unlinked while open for writing */      \
    X(unlinked_read_errno, 0)    /* a read through a descriptor whose file has no name left */  \
    X(size_before_data_us, 0)    /* a size is visible so long before the bytes under it */      \
    X(visible_at_close, 0)       /* written bytes reach the backing directory at close */       \
    X(size_at_open, 0)           /* a reader sees nothing beyond the size it opened with */     \
    X(short_read_ppm, 0)         /* chance that a read returns half of what it could */         \
    X(short_read_holes, 0)       /* and that half of that is zeros */                           \
    X(listing_stale_us, 0)       /* a listing may be so old */                                  \
    X(listing_miss_ppm, 0)       /* chance that an entry is left out of a listing */

struct settings {
#define X(name, value) _Atomic int64_t name;
    SETTINGS(X)
#undef X
};
extern struct settings settings;

/* Operations, counted one by one, with the class whose latency they pay. */
enum class { METADATA, OPEN, READ, WRITE, CLOSE, CLASSES, FREE = CLASSES };
#define OPERATIONS(X)                                                                           \
    X(lookup, METADATA) X(getattr, METADATA) X(setattr, METADATA) X(mkdir, METADATA)            \
    X(rmdir, METADATA) X(unlink, METADATA) X(rename, METADATA) X(link, METADATA)                \
    X(symlink, METADATA) X(readlink, METADATA) X(list, METADATA) X(statfs, METADATA)            \
    X(open, OPEN) X(create, OPEN) X(read, READ) X(write, WRITE) X(fsync, WRITE)                 \
    X(fallocate, WRITE) X(close, CLOSE) X(release, FREE)
enum operation {
#define X(name, class) OP_##name,
    OPERATIONS(X)
#undef X
};

#define COUNTERS(X)                                                                             \
    X(bytes_read) X(bytes_written) X(failed) X(hanging) X(excl_races) X(names_recreated)        \
    X(unlinked_while_written) X(short_reads) X(published)
struct counters {
#define X(name, class) _Atomic int64_t name;
    OPERATIONS(X)
#undef X
#define X(name) _Atomic int64_t name;
    COUNTERS(X)
#undef X
};
extern struct counters counters;
#define COUNT(name) atomic_fetch_add(&counters.name, 1)

bool settings_has(const char *name);
bool settings_set(const char *name, int64_t value);
/* Text of `name=value` lines into `to`; returns its length. */
size_t settings_text(char *to, size_t room);
size_t counters_text(char *to, size_t room);
/* True with the given chance in a million; the sequence depends on the seed only. */
bool chance(int64_t ppm);
uint64_t random_bits(void);

/* ---- pacing.c: when an answer is due ------------------------------------------------------- */

struct listing;
struct stage;

struct turn {
    fuse_req_t req;
    enum class class;
    int64_t latency_ns; /* what is added to the time the transfer ends */
    int64_t due_ns;     /* monotonic */
    int error;          /* what the request must fail with, 0 for none */
};

int64_t now_ns(void);
/* Counts the request and says what is to become of it; blocks while it is made to hang. */
struct turn turn_begin(fuse_req_t req, enum operation operation);
/* Charges a transfer of `bytes` to the bandwidth of the turn's class. */
void turn_pay(struct turn *turn, size_t bytes);

void answer_error(struct turn turn, int error);
void answer_entry(struct turn turn, const struct fuse_entry_param *entry);
void answer_attributes(struct turn turn, const struct stat *found);
void answer_open(struct turn turn, const struct fuse_file_info *info);
void answer_create(struct turn turn, const struct fuse_entry_param *entry,
                   const struct fuse_file_info *info);
/* The answer to opendir: `info->fh` is a listing. */
void answer_listing(struct turn turn, const struct fuse_file_info *info);
void answer_written(struct turn turn, size_t bytes);
void answer_text(struct turn turn, const char *text);
void answer_statfs(struct turn turn, const struct statvfs *found);
/* Takes a buffer from `buffer_take`, which goes back once it is sent. */
/* `buffer` is given back once `data` has been sent; NULL where there is none. */
void answer_data(struct turn turn, const char *data, size_t bytes, char *buffer);
/* Runs `work(context)` at `at_ns` on an answering thread. */
void run_later(int64_t at_ns, void (*work)(void *), void *context);
char *buffer_take(size_t bytes);
void buffer_give(char *buffer);
bool pacing_start(void);
/* Nothing is sent any more once it returns: the session may be closed. */
void pacing_stop(void);

/* ---- faults.c: requests that fail or hang ------------------------------------------------------ */

/* From the at-th request of that class on (CLASSES: of any), `count` of them (0: all) fail with
 * `error`, or hang until `faults_clear` when it is 0. False when there are too many rules. */
bool fault_add(enum class class, int error, int64_t at, int64_t count);
void faults_clear(void);
/* The errno for this request, 0 for none; does not return before a hanging one is let go. */
int fault_next(enum class class);

/* ---- nodes.c: what the kernel knows of the backing directory ------------------------------------ */

struct handle {
    struct handle *next;
    struct node *node;
    int fd;
    bool writes;
    off_t size_at_open;
    char *mapping; /* of the first `mapped` bytes; both guarded by the node's lock */
    off_t mapped;
    int reads; /* before there was one */
};

struct node {
    struct node *next; /* in its hash chain */
    dev_t dev;
    ino_t ino;
    mode_t kind; /* the part of the mode that says whether it is a file or a directory */
    uint64_t lookups; /* what the kernel holds */
    uint64_t users;   /* children and handles */
    struct node *parent;
    char *name;
    int dir_fd; /* -1 for what is no directory */
    bool loses_data;
    pthread_mutex_t lock; /* of what follows */
    struct handle *handles;
    struct stage *stage;
    struct listing *listing;
};

struct place {
    int dir_fd;
    char name[NAME_MAX + 1];
};

bool nodes_start(const char *backing);
struct node *node_of(fuse_ino_t number);
fuse_ino_t number_of(struct node *node);
/* The node of a name in `parent`, with one more reference for the kernel. 0 or an errno. */
int node_find(struct node *parent, const char *name, struct node **node, struct stat *found);
void node_forget(struct node *node, uint64_t lookups);
/* Where a node lies now, for the *at calls. */
struct place place_of(struct node *node);
/* What stat says, through an open descriptor where the name is gone. 0 or an errno. */
int node_stat(struct node *node, struct stat *found);
void node_renamed(struct node *parent, const char *name, const struct stat *found);
/* Whether the kernel knows the file with that number and somebody has it open for writing. */
bool node_is_written(const struct stat *found);
void node_entry(struct node *node, const struct stat *found, struct fuse_entry_param *entry);
struct handle *handle_make(struct node *node, int fd, bool writes);
void handle_drop(struct handle *handle);

/* Names that were unlinked: creating one again is what some file systems cannot bear. */
void name_unlinked(struct node *parent, const char *name, bool poisoned);
enum past { NEVER, UNLINKED, POISONED };
enum past name_past(struct node *parent, const char *name);

/* ---- mapping.c: reads with one copy instead of two ------------------------------------------------- */

/* Where to find up to `*bytes` of the file, set to what is there, until the handle is dropped; NULL
 * where they have to be read into a buffer. */
const char *mapping_read(struct handle *handle, size_t *bytes, off_t offset);
void mapping_drop(struct handle *handle);

/* ---- staging.c: bytes that are not visible before close ------------------------------------------ */

/* 0 or an errno; `done` bytes were taken into the stage. The node's lock is taken inside. */
int stage_write(struct handle *handle, const char *data, size_t bytes, off_t offset);
/* -1 where there is no stage. */
ssize_t stage_read(struct node *node, char *into, size_t bytes, off_t offset);
/* Moves what is staged into the backing file. 0 or an errno; the stage is gone either way. */
int stage_publish(struct handle *handle, bool discard);
void stage_resize(struct node *node, off_t size);
/* With the node's lock held: the size that this mount sees. */
void stage_size(const struct node *node, struct stat *found);
void stage_free(struct stage *stage);

/* ---- listing.c ------------------------------------------------------------------------------------ */

int listing_open(struct node *node, struct listing **opened);
size_t listing_fill(fuse_req_t req, struct listing *listing, char *to, size_t room, off_t from);
void listing_close(struct listing *listing);
/* This mount changed the directory: it sees its own changes at once. */
void listing_changed(struct node *node);

/* ---- names.c, data.c, control.c -------------------------------------------------------------------- */

void names_operations(struct fuse_lowlevel_ops *operations);
void data_operations(struct fuse_lowlevel_ops *operations);
bool control_start(const char *socket_path);

#endif
