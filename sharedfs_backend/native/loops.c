/* The inner loops of a load and a store: move bytes in steps that stay in a core's own cache, and
 * checksum each step while it is there. Called through ctypes, so without the interpreter's lock.
 *
 * File calls go through libc's dynamic symbols, never as system calls of their own, so a preloaded
 * client library sees them. XXH3 is the one that Python's xxhash brings: its functions are handed
 * in once by sf_use(). What this must not know: packs, tasks. Every address is valid for the duration
 * of a call, or, where sf_load() fills memory, as long as its door is open; the caller sees to that.
 */
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64 /* the names that Python calls too, and that preloaded clients hook */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { DIGEST_BYTES = 16, VECTORS = 64, SKIPPED = 0, HASHED = 1, UNIT_ENDS = 2 };

/* `length` bytes at `at`. SKIPPED: padding, in nobody's checksum. UNIT_ENDS: hashed, and the
 * unit's digest is due after it. */
struct extent {
    char *at;
    int64_t length;
    int64_t mark;
};

struct hash128 {
    uint64_t low, high;
};

static void *(*create_state)(void);
static int (*free_state)(void *);
static int (*reset_state)(void *);
static int (*update_state)(void *, const void *, size_t);
static struct hash128 (*digest_state)(const void *);

void sf_use(void *(*create)(void), int (*release)(void *), int (*reset)(void *),
            int (*update)(void *, const void *, size_t), struct hash128 (*digest)(const void *))
{
    create_state = create;
    free_state = release;
    reset_state = reset;
    update_state = update;
    digest_state = digest;
}

/* Another name with every change of a signature or a struct: an older build is then not used. */
void sf_abi_5(void)
{
}

void *sf_new(void)
{
    void *state = create_state();
    if (state != NULL)
        reset_state(state);
    return state;
}

void sf_delete(void *state)
{
    free_state(state);
}

static void put_big_endian(uint64_t value, unsigned char *to)
{
    for (int byte = 0; byte < 8; byte++)
        to[byte] = (unsigned char)(value >> (56 - 8 * byte));
}

static unsigned char *end_unit(void *state, unsigned char *digests)
{
    struct hash128 found = digest_state(state);
    put_big_endian(found.high, digests);
    put_big_endian(found.low, digests + 8);
    reset_state(state);
    return digests + DIGEST_BYTES;
}

/* Where a walk over extents stands. */
struct place {
    int64_t extent, done;
};

/* The next at most `step` bytes as vectors; how many bytes that is. */
static int64_t gather(const struct extent *extents, int64_t count, struct place from, int64_t step,
                      struct iovec *vectors, int *used)
{
    int64_t bytes = 0;
    *used = 0;
    while (from.extent < count && bytes < step && *used < VECTORS) {
        const struct extent *one = &extents[from.extent];
        int64_t length = one->length - from.done;
        if (length > step - bytes)
            length = step - bytes;
        if (length > 0) {
            vectors[*used].iov_base = one->at + from.done;
            vectors[*used].iov_len = (size_t)length;
            ++*used;
        }
        bytes += length;
        from.done += length;
        if (from.done == one->length) {
            from.extent++;
            from.done = 0;
        }
    }
    return bytes;
}

/* Hash the next `bytes` bytes and move on; where the next digest goes. */
static unsigned char *hash(const struct extent *extents, struct place *from, int64_t bytes,
                           void *state, unsigned char *digests)
{
    while (bytes > 0) {
        const struct extent *one = &extents[from->extent];
        int64_t length = one->length - from->done;
        if (length > bytes)
            length = bytes;
        if (one->mark != SKIPPED)
            update_state(state, one->at + from->done, (size_t)length);
        bytes -= length;
        from->done += length;
        if (from->done == one->length) {
            if (one->mark == UNIT_ENDS)
                digests = end_unit(state, digests);
            from->extent++;
            from->done = 0;
        }
    }
    return digests;
}

/* Whether every extent has bytes: the walks below rely on it. */
static int are_full(const struct extent *extents, int64_t count)
{
    for (int64_t number = 0; number < count; number++)
        if (extents[number].length <= 0)
            return 0;
    return 1;
}

/* Read to the extents, `step` bytes at a time, from `offset` on; hash each step. With `flags` as
 * for preadv2. 0, or 1 if a read brought less than asked, or -errno. */
int64_t sf_read(int fd, int64_t offset, const struct extent *extents, int64_t count, int64_t step,
                int flags, unsigned char *digests)
{
    if (!are_full(extents, count))
        return -EINVAL;
    struct iovec vectors[VECTORS];
    struct place at = {0, 0};
    void *state = sf_new();
    int64_t result = state == NULL ? -ENOMEM : 0;
    while (result == 0 && at.extent < count) {
        int used;
        int64_t bytes = gather(extents, count, at, step, vectors, &used);
        ssize_t got;
        do
            got = preadv2(fd, vectors, used, offset, flags);
        while (got < 0 && errno == EINTR);
        if (got != bytes) {
            result = got < 0 ? -errno : 1;
            break;
        }
        offset += got;
        digests = hash(extents, &at, bytes, state, digests);
    }
    if (state != NULL)
        sf_delete(state);
    return result;
}

static int is_stopped(const volatile unsigned char *const *stops, int64_t count)
{
    for (int64_t number = 0; number < count; number++)
        if (*stops[number])
            return 1;
    return 0;
}

/* Write the extents, `step` bytes at a time, from `offset` on, and hash each step after the kernel
 * has read it. `state` goes on where the last call left it. 0 or -errno; a write of nothing is EIO.
 * After each write, which may have hung, `stops` are looked at before a byte is touched: -ECANCELED
 * once one is not 0. */
int64_t sf_write(int fd, int64_t offset, const struct extent *extents, int64_t count, int64_t step,
                 void *state, const volatile unsigned char *const *stops, int64_t stop_count,
                 unsigned char *digests)
{
    if (!are_full(extents, count))
        return -EINVAL;
    struct iovec vectors[VECTORS];
    struct place at = {0, 0};
    while (at.extent < count) {
        int used;
        gather(extents, count, at, step, vectors, &used);
        ssize_t done = pwritev(fd, vectors, used, offset);
        if (done < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        if (is_stopped(stops, stop_count))
            return -ECANCELED;
        if (done == 0)
            return -EIO;
        offset += done;
        digests = hash(extents, &at, done, state, digests);
    }
    return 0;
}

/* memcpy to memory that nobody here reads soon: past the caches, so its lines are not fetched first.
 * A tenth less for a whole load (docs/bench-l2.md). */
static void copy_past_caches(char *to, const char *from, int64_t length)
{
#ifdef __SSE2__
    int64_t head = (int64_t)(-(uintptr_t)to & 63);
    if (head > length)
        head = length;
    memcpy(to, from, (size_t)head);
    int64_t end = head + (length - head) / 64 * 64;
    for (int64_t at = head; at < end; at += 64) {
        const __m128i *source = (const __m128i *)(from + at);
        __m128i *target = (__m128i *)(to + at);
        __m128i first = _mm_loadu_si128(source), second = _mm_loadu_si128(source + 1);
        __m128i third = _mm_loadu_si128(source + 2), fourth = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, first);
        _mm_stream_si128(target + 1, second);
        _mm_stream_si128(target + 2, third);
        _mm_stream_si128(target + 3, fourth);
    }
    memcpy(to + end, from + end, (size_t)(length - end));
    _mm_sfence();
#else
    memcpy(to, from, (size_t)length);
#endif
}

/* Hash `from` as the extents say and copy it to where they are, `step` bytes at a time. `state` goes
 * on where the last call left it; NULL for whole units. 0, or -ENOMEM. */
int sf_copy(const char *from, const struct extent *extents, int64_t count, int64_t step,
            void *state, unsigned char *digests)
{
    void *own = state == NULL ? state = sf_new() : NULL;
    if (state == NULL)
        return -ENOMEM;
    for (int64_t number = 0; number < count; number++) {
        const struct extent *one = &extents[number];
        for (int64_t done = 0; done < one->length; done += step) {
            int64_t length = one->length - done < step ? one->length - done : step;
            if (one->mark != SKIPPED) {
                update_state(state, from, (size_t)length);
                copy_past_caches(one->at + done, from, length);
            }
            from += length;
        }
        if (one->mark == UNIT_ENDS)
            digests = end_unit(state, digests);
    }
    if (own != NULL)
        sf_delete(own);
    return 0;
}

/* Where a load's bytes go: `length` of them to `to`, a whole unit, or padding if that is NULL. `door`
 * is the door of the memory's owner. */
struct part {
    char *to;
    int64_t length;
    int32_t *door;
};

/* A door: bit 0 says that it is shut, the rest counts those inside, two each. Whoever shuts it waits
 * until nobody is inside; from then on nobody gets in (I7). */
static int enter(int32_t *door)
{
    if ((__atomic_fetch_add(door, 2, __ATOMIC_SEQ_CST) & 1) == 0)
        return 1;
    __atomic_fetch_sub(door, 2, __ATOMIC_SEQ_CST);
    return 0;
}

/* Shut `count` doors; how many are inside. */
int64_t sf_shut(int32_t *doors, int64_t count)
{
    int64_t inside = 0;
    for (int64_t number = 0; number < count; number++)
        inside += __atomic_fetch_or(&doors[number], 1, __ATOMIC_SEQ_CST) >> 1;
    return inside;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Read into `buffer`, `step` bytes at a time, from `offset` on; hash what came and copy it to where the
 * parts say, each inside its door. `moved` says which parts are there whole, `digests` what each adds up
 * to, `spent` the nanoseconds of reading, of the rest and of the quickest read. 0, or 1 if a read
 * brought less than asked, -ECANCELED once `stop` is not 0, or -errno. */
int64_t sf_load(int fd, int64_t offset, char *buffer, int64_t step, const struct part *parts,
                int64_t count, const volatile unsigned char *stop, unsigned char *moved,
                unsigned char *digests, int64_t *spent)
{
    enum { BLOCK_BYTES = 32 * 1024 };
    void *state = sf_new();
    if (state == NULL)
        return -ENOMEM;
    int64_t result = 0, total = 0, number = 0, done = 0;
    for (int64_t at = 0; at < count; at++) {
        total += parts[at].length;
        moved[at] = parts[at].to != NULL;
    }
    for (int64_t at = 0; result == 0 && at < total;) {
        int64_t wanted = total - at < step ? total - at : step, began = now_ns();
        ssize_t got;
        do
            got = pread(fd, buffer, (size_t)wanted, offset + at);
        while (got < 0 && errno == EINTR);
        if (got != wanted)
            result = got < 0 ? -errno : 1;
        else if (*stop)
            result = -ECANCELED;
        int64_t came = now_ns();
        for (int64_t from = 0; result == 0 && from < wanted;) {
            const struct part *one = &parts[number];
            int64_t length = one->length - done < wanted - from ? one->length - done : wanted - from;
            if (moved[number] && enter(one->door)) {
                for (int64_t block = 0; block < length; block += BLOCK_BYTES) {
                    int64_t bytes = length - block < BLOCK_BYTES ? length - block : BLOCK_BYTES;
                    update_state(state, buffer + from + block, (size_t)bytes);
                    copy_past_caches(one->to + done + block, buffer + from + block, bytes);
                }
                __atomic_fetch_sub(one->door, 2, __ATOMIC_SEQ_CST);
            } else {
                moved[number] = 0;
            }
            from += length;
            done += length;
            if (done == one->length) {
                digests = end_unit(state, digests);
                number++;
                done = 0;
            }
        }
        at += wanted;
        spent[0] += came - began;
        if (at == wanted || came - began < spent[2])
            spent[2] = came - began;
        spent[1] += now_ns() - came;
    }
    sf_delete(state);
    return result;
}
