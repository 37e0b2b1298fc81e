/* A lookup in the catalog's tables, called by searching.py: hundreds of keys in one call, instead of
 * some thirty passes over small arrays, each of which finds its code out of the caches.
 *
 * What the tables mean stands in keytable.py, rows.py and packtable.py; what a lookup answers in
 * catalog.py. Nothing is written but the answer. The caller holds the catalog's lock.
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { WIDTH = 8, HIDDEN = 2, ANY_SPACE = -1, NO_SPACE = -2, UNKNOWN = -1 };

struct tables {
    const uint64_t *tags; /* a bucket's eight */
    const uint8_t *passed;
    const int32_t *slots;
    const uint64_t *mask; /* of each shard: its buckets less one */
    const uint64_t *keys; /* of each row, two words */
    const int32_t *packs;
    const uint8_t *flags;
    const int32_t *space; /* of each pack */
    const double *suspended_until;
    const int64_t *numbers;
    int64_t shards;
    int64_t shard_shift;
    int64_t base_shift;
};

/* What is asked for beside keys: a space for each key or the first for all, and the realm that
 * ANY_SPACE stands for. */
struct question {
    const int32_t *spaces;
    const int32_t *realm_of_space;
    int64_t spaces_differ;
    int64_t realm;
    double now;
};

struct answer {
    int64_t *rows, *numbers;
    int32_t *spaces;
};

static uint64_t hash_key(const uint64_t *key)
{
    uint64_t value = key[0] ^ (key[1] * 0x9E3779B97F4A7C15u);
    value ^= value >> 32;
    value *= 0xD6E8FEB86659FD93u;
    return value ^ (value >> 29);
}

/* The row that answers for one key, or -1. */
static int64_t find_one(const struct tables *in, const struct question *asked, const uint64_t *key,
                        int32_t wanted)
{
    uint64_t hash = hash_key(key), tag = (hash & 255) ? hash & 255 : 1;
    uint64_t shard = in->shards == 1 ? 0 : hash >> in->shard_shift;
    uint64_t base = shard << in->base_shift, mask = in->mask[shard];
    uint64_t home = (hash >> 8) & mask, at = home;
    int64_t found = -1, copies = 0;
    for (;;) {
        uint64_t bucket = base + at, tags = in->tags[bucket];
        for (int column = 0; tags; column++, tags >>= 8) {
            if ((tags & 255) != tag)
                continue;
            int64_t row = in->slots[bucket * WIDTH + column];
            if (in->keys[2 * row] != key[0] || in->keys[2 * row + 1] != key[1])
                continue;
            int32_t held = in->space[in->packs[row]];
            if (in->flags[row] & HIDDEN)
                continue;
            if (wanted == ANY_SPACE ? asked->realm_of_space[held] == asked->realm : held == wanted) {
                found = row;
                copies++;
            }
        }
        at = (at + 1) & mask;
        if (!in->passed[bucket] || at == home)
            break;
    }
    return wanted == ANY_SPACE && copies != 1 ? -1 : found;
}

void sf_search(const struct tables *in, const struct question *asked, const char *keys,
               int64_t count, const struct answer *out)
{
    for (int64_t number = 0; number < count; number++) {
        uint64_t key[2];
        memcpy(key, keys + 16 * number, sizeof key);
        int32_t wanted = asked->spaces[asked->spaces_differ ? number : 0];
        int64_t row = find_one(in, asked, key, wanted);
        int32_t pack = row < 0 ? 0 : in->packs[row];
        /* After the choice: a suspended pack is still the one a load would have to read. */
        bool hit = row >= 0 && in->suspended_until[pack] <= asked->now;
        out->rows[number] = hit ? row : 0;
        out->numbers[number] = hit ? in->numbers[pack] : UNKNOWN;
        out->spaces[number] = hit ? in->space[pack] : NO_SPACE;
    }
}
