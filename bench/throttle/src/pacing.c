/* Pacing: when an answer is due, and the threads that send each at its time.
 *
 * An answer is due when its bytes have passed the bandwidth limit, plus the latency of its class.
 * The limit is a virtual clock: `free_ns` is when the link has sent what was promised so far; a
 * burst allowance lets it lag behind real time. Of the answering threads one waits for the earliest
 * deadline, the others for their turn, so that no deadline waits for a copy of somebody's data.
 */
#include "throttle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { ANSWERERS = 4, BUFFER_BYTES = 1 << 20, BUFFERS_KEPT = 256 };
static const int64_t SECOND = 1000000000;

struct answer {
    int64_t due_ns;
    uint64_t order; /* of equal deadlines the first come is first served */
    void (*send)(struct answer *answer);
    struct turn turn;
    union {
        int error;
        struct fuse_entry_param entry;
        struct stat stat;
        struct statvfs statvfs;
        size_t bytes;
        char *text;
        struct {
            void (*work)(void *);
            void *context;
        };
    };
    struct fuse_file_info info;
    const char *data;
    char *buffer;
};

/* ---- the clock and the limits ------------------------------------------------------------------ */

int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

struct link {
    pthread_mutex_t lock;
    int64_t free_ns;
};
static struct link links[CLASSES] = {[0 ... CLASSES - 1] = {PTHREAD_MUTEX_INITIALIZER, 0}};

/* When `units` have passed a link of `per_second` that was asked at `from_ns`. */
static int64_t pass(struct link *link, int64_t from_ns, int64_t units, int64_t per_second) {
    if (per_second <= 0)
        return from_ns;
    pthread_mutex_lock(&link->lock);
    if (link->free_ns < from_ns)
        link->free_ns = from_ns;
    link->free_ns += (int64_t)((double)units / (double)per_second * 1e9);
    int64_t done = link->free_ns - settings.burst_us * 1000;
    pthread_mutex_unlock(&link->lock);
    return done > from_ns ? done : from_ns;
}

static int64_t latency_ns(enum class class) {
    const _Atomic int64_t *of[] = {&settings.latency_metadata_us, &settings.latency_open_us,
                                   &settings.latency_read_us, &settings.latency_write_us,
                                   &settings.latency_close_us};
    if (class >= CLASSES)
        return 0;
    int64_t latency = *of[class] * 1000, jitter = settings.jitter_us * 1000;
    if (latency > 0 && jitter > 0)
        latency += (int64_t)(random_bits() % (uint64_t)(2 * jitter + 1)) - jitter;
    return latency > 0 ? latency : 0;
}

static const enum class class_of[] = {
#define X(name, class) [OP_##name] = class,
    OPERATIONS(X)
#undef X
};
static _Atomic int64_t *const counter_of[] = {
#define X(name, class) [OP_##name] = &counters.name,
    OPERATIONS(X)
#undef X
};

struct turn turn_begin(fuse_req_t req, enum operation operation) {
    enum class class = class_of[operation];
    struct turn turn = {.req = req, .class = class};
    int64_t arrived = now_ns();
    atomic_fetch_add(counter_of[operation], 1);
    if (class < CLASSES) {
        turn.error = fault_next(class);
        if (turn.error)
            COUNT(failed);
    }
    turn.latency_ns = latency_ns(class);
    turn.due_ns = arrived + turn.latency_ns;
    if (class == METADATA || class == OPEN)
        turn.due_ns = turn.latency_ns +
                      pass(&links[METADATA], arrived, 1, settings.metadata_per_second);
    return turn;
}

void turn_pay(struct turn *turn, size_t bytes) {
    int64_t rate = turn->class == READ    ? settings.read_bytes_per_second
                   : turn->class == WRITE ? settings.write_bytes_per_second
                                          : 0;
    if (rate > 0)
        turn->due_ns = turn->latency_ns + pass(&links[turn->class],
                                               turn->due_ns - turn->latency_ns, (int64_t)bytes,
                                               rate);
}

/* ---- buffers: as many as are in flight, the warmest first ----------------------------------------- */

static pthread_mutex_t buffers_lock = PTHREAD_MUTEX_INITIALIZER;
static char *buffers[BUFFERS_KEPT];
static int buffers_kept;

/* At least BUFFER_BYTES, which is the most that the kernel asks for at once. */
char *buffer_take(size_t bytes) {
    char *buffer = NULL;
    if (bytes > BUFFER_BYTES)
        return NULL;
    pthread_mutex_lock(&buffers_lock);
    if (buffers_kept)
        buffer = buffers[--buffers_kept];
    pthread_mutex_unlock(&buffers_lock);
    return buffer ? buffer : aligned_alloc(4096, BUFFER_BYTES);
}

void buffer_give(char *buffer) {
    pthread_mutex_lock(&buffers_lock);
    if (buffers_kept < BUFFERS_KEPT) {
        buffers[buffers_kept++] = buffer;
        buffer = NULL;
    }
    pthread_mutex_unlock(&buffers_lock);
    free(buffer);
}

/* ---- the queue: a binary heap by deadline ---------------------------------------------------------- */

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t earlier, promoted = PTHREAD_COND_INITIALIZER;
static struct answer **heap;
static size_t waiting, room;
static uint64_t orders;
static bool led; /* somebody waits for the earliest deadline */
static int sending;

static bool before(const struct answer *a, const struct answer *b) {
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void heap_push(struct answer *answer) {
    size_t at = waiting++;
    for (; at && before(answer, heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = answer;
}

static struct answer *heap_pop(void) {
    struct answer *first = heap[0], *last = heap[--waiting];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < waiting; at = child) {
        if (child + 1 < waiting && before(heap[child + 1], heap[child]))
            child++;
        if (!before(heap[child], last))
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return first;
}

static void queue(struct answer *answer) {
    pthread_mutex_lock(&queue_lock);
    if (waiting == room) {
        size_t more = room ? 2 * room : 1024;
        struct answer **grown = realloc(heap, more * sizeof *grown);
        if (!grown)
            abort(); /* an answer that is never sent would hang a process for ever */
        heap = grown;
        room = more;
    }
    answer->order = orders++;
    heap_push(answer);
    if (heap[0] == answer) {
        pthread_cond_signal(&earlier);
        if (!led)
            pthread_cond_signal(&promoted);
    }
    pthread_mutex_unlock(&queue_lock);
}

/* The next answer that is due; the caller has handed the lead to somebody else. */
static struct answer *next_due(void) {
    pthread_mutex_lock(&queue_lock);
    while (led)
        pthread_cond_wait(&promoted, &queue_lock);
    led = true;
    for (;;) {
        if (!waiting) {
            pthread_cond_wait(&earlier, &queue_lock);
            continue;
        }
        int64_t due = heap[0]->due_ns;
        if (due <= now_ns())
            break;
        struct timespec until = {due / SECOND, due % SECOND};
        pthread_cond_timedwait(&earlier, &queue_lock, &until);
    }
    struct answer *answer = heap_pop();
    sending++;
    led = false;
    pthread_cond_signal(&promoted);
    pthread_mutex_unlock(&queue_lock);
    return answer;
}

static void *answerer(void *unused) {
    (void)unused;
    prctl(PR_SET_TIMERSLACK, 1000UL); /* 1 microsecond; by default deadlines are 50 late */
    for (;;) {
        struct answer *answer = next_due();
        answer->send(answer);
        free(answer);
        pthread_mutex_lock(&queue_lock);
        sending--;
        pthread_mutex_unlock(&queue_lock);
    }
    return NULL;
}

void pacing_stop(void) {
    pthread_mutex_lock(&queue_lock); /* and keeps it: nothing more can become due */
    while (sending) {
        pthread_mutex_unlock(&queue_lock);
        usleep(200);
        pthread_mutex_lock(&queue_lock);
    }
}

bool pacing_start(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&earlier, &monotonic);
    for (int number = 0; number < ANSWERERS; number++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, answerer, NULL))
            return false;
        pthread_detach(thread);
    }
    return true;
}

/* ---- the answers ------------------------------------------------------------------------------------ */

/* Sends now what is due, else a copy at its time. */
static void answer(struct answer one) {
    if (one.due_ns <= now_ns()) {
        one.send(&one);
        return;
    }
    struct answer *kept = malloc(sizeof *kept);
    if (!kept)
        abort(); /* see `queue` */
    *kept = one;
    queue(kept);
}

#define ANSWER(function, ...)                                                                   \
    answer((struct answer){.due_ns = turn.due_ns, .turn = turn, .send = function, __VA_ARGS__})

static double seconds(int64_t microseconds) {
    return (double)microseconds / 1e6;
}

static void send_error(struct answer *answer) {
    fuse_reply_err(answer->turn.req, answer->error);
}
static void send_entry(struct answer *answer) {
    if (fuse_reply_entry(answer->turn.req, &answer->entry) && answer->entry.ino)
        node_forget(node_of(answer->entry.ino), 1);
}
static void send_attributes(struct answer *answer) {
    fuse_reply_attr(answer->turn.req, &answer->stat, seconds(settings.attribute_us));
}
static void send_open(struct answer *answer) {
    if (fuse_reply_open(answer->turn.req, &answer->info))
        handle_drop((struct handle *)(uintptr_t)answer->info.fh);
}
static void send_listing(struct answer *answer) {
    if (fuse_reply_open(answer->turn.req, &answer->info))
        listing_close((struct listing *)(uintptr_t)answer->info.fh);
}
static void send_create(struct answer *answer) {
    if (fuse_reply_create(answer->turn.req, &answer->entry, &answer->info)) {
        handle_drop((struct handle *)(uintptr_t)answer->info.fh);
        node_forget(node_of(answer->entry.ino), 1);
    }
}
static void send_written(struct answer *answer) {
    fuse_reply_write(answer->turn.req, answer->bytes);
}
static void send_text(struct answer *answer) {
    fuse_reply_readlink(answer->turn.req, answer->text);
    free(answer->text);
}
static void send_statfs(struct answer *answer) {
    fuse_reply_statfs(answer->turn.req, &answer->statvfs);
}
static void send_data(struct answer *answer) {
    fuse_reply_buf(answer->turn.req, answer->data, answer->bytes);
    if (answer->buffer)
        buffer_give(answer->buffer);
}
static void send_work(struct answer *answer) {
    answer->work(answer->context);
}

void answer_error(struct turn turn, int error) {
    ANSWER(send_error, .error = error);
}
void answer_entry(struct turn turn, const struct fuse_entry_param *entry) {
    ANSWER(send_entry, .entry = *entry);
}
void answer_attributes(struct turn turn, const struct stat *found) {
    ANSWER(send_attributes, .stat = *found);
}
void answer_open(struct turn turn, const struct fuse_file_info *info) {
    ANSWER(send_open, .info = *info);
}
void answer_listing(struct turn turn, const struct fuse_file_info *info) {
    ANSWER(send_listing, .info = *info);
}
void answer_create(struct turn turn, const struct fuse_entry_param *entry,
                   const struct fuse_file_info *info) {
    ANSWER(send_create, .entry = *entry, .info = *info);
}
void answer_written(struct turn turn, size_t bytes) {
    ANSWER(send_written, .bytes = bytes);
}
void answer_text(struct turn turn, const char *text) {
    ANSWER(send_text, .text = strdup(text));
}
void answer_statfs(struct turn turn, const struct statvfs *found) {
    ANSWER(send_statfs, .statvfs = *found);
}
void answer_data(struct turn turn, const char *data, size_t bytes, char *buffer) {
    ANSWER(send_data, .data = data, .bytes = bytes, .buffer = buffer);
}
void run_later(int64_t at_ns, void (*work)(void *), void *context) {
    struct turn turn = {.due_ns = at_ns};
    ANSWER(send_work, .work = work, .context = context);
}
