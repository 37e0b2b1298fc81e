/* Faults: rules that make the n-th request of a class fail, or hang until all rules are cleared. */
#include "throttle.h"

enum { RULES_MAX = 32 };

struct rule {
    enum class class; /* CLASSES: any */
    int error;        /* 0: hangs */
    int64_t at, count, seen;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cleared = PTHREAD_COND_INITIALIZER;
static struct rule rules[RULES_MAX];
static int rules_used;
static _Atomic bool any; /* so that a mount without rules takes no lock */
static uint64_t generation;

bool fault_add(enum class class, int error, int64_t at, int64_t count) {
    pthread_mutex_lock(&lock);
    bool fits = rules_used < RULES_MAX;
    if (fits) {
        rules[rules_used++] = (struct rule){class, error, at < 1 ? 1 : at, count, 0};
        any = true;
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

void faults_clear(void) {
    pthread_mutex_lock(&lock);
    rules_used = 0;
    any = false;
    generation++;
    pthread_cond_broadcast(&cleared);
    pthread_mutex_unlock(&lock);
}

int fault_next(enum class class) {
    int error = 0;
    bool hangs = false;
    if (!any)
        return 0;
    pthread_mutex_lock(&lock);
    for (int number = 0; number < rules_used; number++) {
        struct rule *rule = &rules[number];
        if (rule->class != CLASSES && rule->class != class)
            continue;
        rule->seen++;
        if (rule->seen < rule->at || (rule->count && rule->seen >= rule->at + rule->count))
            continue;
        if (!rule->error)
            hangs = true;
        else if (!error)
            error = rule->error;
    }
    if (hangs) {
        uint64_t since = generation;
        COUNT(hanging);
        while (generation == since)
            pthread_cond_wait(&cleared, &lock);
        atomic_fetch_sub(&counters.hanging, 1);
        error = 0; /* it goes on where it was held up */
    }
    pthread_mutex_unlock(&lock);
    return error;
}
