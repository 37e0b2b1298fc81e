/* throttlefs MOUNTPOINT BACKING SOCKET [NAME=VALUE...]
 *
 * Mounts BACKING at MOUNTPOINT, listens for control on SOCKET, writes "ready" to standard output,
 * and serves until standard input ends, SIGTERM comes or somebody unmounts.
 */
#include "throttle.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    WORKERS_MAX = 1024, /* those that hang keep one each */
    WORKERS_IDLE = 16,  /* more would only spread the requests' buffers over the caches */
    BACKGROUND_MAX = 512,
};

static void on_init(void *context, struct fuse_conn_info *connection) {
    (void)context;
    connection->max_background = BACKGROUND_MAX;
    connection->congestion_threshold = BACKGROUND_MAX;
    puts("ready");
    fflush(stdout);
}

/* The parent holds the other end: when it is gone, however it went, so is the mount. */
static void *watch_parent(void *unused) {
    (void)unused;
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    faults_clear();
    kill(getpid(), SIGTERM);
    return NULL;
}

static bool set_given(int count, char **words) {
    for (int at = 0; at < count; at++) {
        char *value = strchr(words[at], '=');
        if (!value)
            return false;
        *value++ = 0;
        if (!settings_set(words[at], strtoll(value, NULL, 10)))
            return false;
    }
    return true;
}

static void start_watching(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch_parent, NULL) == 0)
        pthread_detach(thread);
}

static int serve(struct fuse_session *session) {
    struct fuse_loop_config *loop = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(loop, WORKERS_MAX);
    fuse_loop_cfg_set_idle_threads(loop, WORKERS_IDLE);
    int failed = fuse_session_loop_mt(session, loop);
    fuse_loop_cfg_destroy(loop);
    return failed;
}

/* Our own threads leave signals to the thread that runs the loop, which they end. */
static bool start_threads(const char *socket_path) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pacing_start() && control_start(socket_path);
    start_watching();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

int main(int count, char **words) {
    if (count < 4 || !set_given(count - 4, words + 4)) {
        fprintf(stderr, "usage: throttlefs MOUNTPOINT BACKING SOCKET [NAME=VALUE...]\n");
        return 2;
    }
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    umask(0); /* the kernel has applied the caller's */
    if (!nodes_start(words[2])) {
        fprintf(stderr, "throttlefs: %s: %s\n", words[2], strerror(errno));
        return 1;
    }
    struct fuse_lowlevel_ops operations = {.init = on_init};
    names_operations(&operations);
    data_operations(&operations);
    char *options[] = {"throttlefs", "-o", "fsname=throttle,subtype=throttle",
                       geteuid() == 0 ? "-oallow_other" : "-oauto_unmount"};
    struct fuse_args arguments = FUSE_ARGS_INIT(geteuid() == 0 ? 4 : 3, options);
    struct fuse_session *session =
        fuse_session_new(&arguments, &operations, sizeof operations, NULL);
    if (!session || fuse_set_signal_handlers(session) || fuse_session_mount(session, words[1]))
        return 1;
    int failed = 1;
    if (start_threads(words[3]))
        failed = serve(session);
    else
        fprintf(stderr, "throttlefs: %s: %s\n", words[3], strerror(errno));
    pacing_stop();
    fuse_session_unmount(session);
    unlink(words[3]);
    _exit(failed < 0 || failed == 1); /* answering threads may still hold requests */
}
