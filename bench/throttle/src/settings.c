/* Settings and counters: plain atomic numbers with names, and the source of every random choice. */
#include "throttle.h"

#include <stdio.h>
#include <string.h>

struct settings settings = {
#define X(name, value) .name = value,
    SETTINGS(X)
#undef X
};
struct counters counters;

static _Atomic uint64_t drawn;

bool settings_set(const char *name, int64_t value) {
#define X(field, unused)                                                                        \
    if (strcmp(name, #field) == 0) {                                                            \
        atomic_store(&settings.field, value);                                                   \
        if (strcmp(name, "seed") == 0)                                                          \
            atomic_store(&drawn, 0);                                                            \
        return true;                                                                            \
    }
    SETTINGS(X)
#undef X
    return false;
}

bool settings_has(const char *name) {
#define X(field, unused)                                                                        \
    if (strcmp(name, #field) == 0)                                                              \
        return true;
    SETTINGS(X)
#undef X
    return false;
}

#define LINE(field, from)                                                                       \
    used += (size_t)snprintf(to + used, room - used, "%s=%lld\n", #field,                       \
                             (long long)atomic_load(&from.field));

size_t settings_text(char *to, size_t room) {
    size_t used = 0;
#define X(name, unused) LINE(name, settings)
    SETTINGS(X)
#undef X
    return used;
}

size_t counters_text(char *to, size_t room) {
    size_t used = 0;
#define X(name, unused) LINE(name, counters)
    OPERATIONS(X)
#undef X
#define X(name) LINE(name, counters)
    COUNTERS(X)
#undef X
    return used;
}

/* The n-th number of the sequence that the seed names (a 64-bit mix of a counter). */
uint64_t random_bits(void) {
    uint64_t mixed = (uint64_t)settings.seed * 0x9E3779B97F4A7C15u +
                     atomic_fetch_add(&drawn, 1) * 0xD1B54A32D192ED03u;
    for (int round = 0; round < 3; round++) {
        mixed ^= mixed >> 32;
        mixed *= 0xD6E8FEB86659FD93u;
    }
    return mixed ^ mixed >> 32;
}

bool chance(int64_t ppm) {
    return ppm > 0 && (int64_t)(random_bits() % 1000000) < ppm;
}
