/* Five functions in the place of XXH3's, which the compiled loops call: a checksum that costs nothing.
 * For measuring only (ceiling.py). */
#include <stddef.h>
#include <stdint.h>

struct digest {
    uint64_t low, high;
};

long updates;
static char state;

void *create(void)
{
    return &state;
}

int release(void *unused)
{
    (void)unused;
    return 0;
}

int reset(void *unused)
{
    (void)unused;
    return 0;
}

int update(void *unused, const void *data, size_t length)
{
    (void)unused, (void)data, (void)length;
    __atomic_fetch_add(&updates, 1, __ATOMIC_RELAXED);
    return 0;
}

struct digest digest(const void *unused)
{
    (void)unused;
    return (struct digest){0, 0};
}
