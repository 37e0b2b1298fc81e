/* The shared page, the prefix, and what every operation does first. */
#include "standin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct control *control;
static char prefix[PATH_MAX], backing[PATH_MAX], marks[PATH_MAX];
static size_t prefix_length;
static volatile bool in_forked_child;
static _Thread_local uint64_t random_state;

void *next_symbol(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort();
    return found;
}

static void in_child(void) { in_forked_child = true; }

__attribute__((constructor)) static void start(void) {
    const char *mount = getenv("GKFS_STANDIN_MOUNT"), *data = getenv("GKFS_STANDIN_BACKING");
    const char *page = getenv("GKFS_STANDIN_CONTROL");
    if (!mount || !data || !page || control)
        return;
    int fd = real_open(page, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    REAL(void *, mmap64, void *, size_t, int, int, int, off64_t);
    void *at = real_mmap64(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    real_close(fd);
    if (at == MAP_FAILED)
        return;
    snprintf(prefix, sizeof prefix, "%s", mount);
    snprintf(backing, sizeof backing, "%s", data);
    snprintf(marks, sizeof marks, "%s.marks", page);
    prefix_length = strlen(prefix);
    control = at;
    pthread_atfork(NULL, NULL, in_child);
}

bool standin_ready(void) { return control != NULL; }

void operation(void) {
    if (in_forked_child && control->fork_hangs)
        for (;;)
            pause();
    if (control->latency_us)
        usleep((useconds_t)control->latency_us);
    if (control->hang) {
        COUNT(hanging);
        while (control->hang)
            usleep(10000);
        control->count_hanging--;
    }
}

bool chance(int64_t ppm) {
    if (!ppm)
        return false;
    if (!random_state)
        random_state = (uint64_t)control->seed * 0x9E3779B97F4A7C15u + (uint64_t)getpid();
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (int64_t)(random_state % 1000000) < ppm;
}

/* Without "//", "." and "..": a path is a string there too. */
static void normalise(const char *path, char *to) {
    size_t length = 0;
    while (*path) {
        while (*path == '/')
            path++;
        const char *end = strchrnul(path, '/');
        size_t part = (size_t)(end - path);
        if (part == 2 && path[0] == '.' && path[1] == '.') {
            while (length && to[--length] != '/')
                ;
        } else if (part && !(part == 1 && path[0] == '.') && length + part + 2 < PATH_MAX) {
            to[length++] = '/';
            memcpy(to + length, path, part);
            length += part;
        }
        path = end;
    }
    to[length] = 0;
}

bool ours(const char *path, char *to) {
    char plain[PATH_MAX];
    if (!control || !path || path[0] != '/')
        return false;
    normalise(path, plain);
    if (strncmp(plain, prefix, prefix_length) ||
        (plain[prefix_length] && plain[prefix_length] != '/'))
        return false;
    return (size_t)snprintf(to, PATH_MAX, "%s%s", backing, plain + prefix_length) < PATH_MAX;
}

bool ours_at(int directory, const char *path, char *to) {
    if (!path)
        return false;
    if (path[0] == '/' || directory == AT_FDCWD)
        return ours(path, to);
    struct file file;
    if (!is_ours(directory) || !table_get(directory, &file))
        return false;
    return (size_t)snprintf(to, PATH_MAX, "%s/%s", file.real, path) < PATH_MAX;
}

static uint64_t hash_of(const char *text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

static void mark_path(char kind, const char *real, char *to) {
    snprintf(to, PATH_MAX, "%.*s/%c%016lx", PATH_MAX - 32, marks, kind, hash_of(real));
}

void mark(char kind, const char *real) {
    char path[PATH_MAX];
    mark_path(kind, real, path);
    int fd = real_open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0)
        real_close(fd);
}

bool marked(char kind, const char *real) {
    REAL(int, access, const char *, int);
    char path[PATH_MAX];
    int before = errno;
    mark_path(kind, real, path);
    bool found = !real_access(path, F_OK);
    errno = before;
    return found;
}

#define CREATED_MAX (1 << 20)
static _Atomic uint64_t created[CREATED_MAX];

void note_created(const char *real) {
    uint64_t hash = hash_of(real);
    created[hash % CREATED_MAX] = hash;
}

bool created_here(const char *real) {
    uint64_t hash = hash_of(real);
    return created[hash % CREATED_MAX] == hash;
}
