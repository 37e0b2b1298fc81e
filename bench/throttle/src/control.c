/* Control: one line asks, some lines answer, on a Unix socket that no hanging mount can block.
 *
 *   set NAME=VALUE ...                      -> ok
 *   get | counters                          -> NAME=VALUE lines
 *   fail CLASS ERRNO AT COUNT               -> ok   (see fault_add; ERRNO 0 hangs, COUNT 0 is all)
 *   clear                                   -> ok   (ends all faults, lets go what hangs)
 *
 * An answer that begins with "error" says what was not understood; nothing is changed then.
 */
#include "throttle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { LINE_BYTES = 8192, WAIT_SECONDS = 5, SETTINGS_MAX = 256 };
enum { ERRNO_MAX = 511 }; /* what is beyond the kernel does not pass on: the call would hang */

static const char *const class_names[] = {"metadata", "open", "read", "write", "close", "any"};

/* All are understood before the first is set. */
static const char *set_all(char *words) {
    char *rest = NULL, *names[SETTINGS_MAX];
    int64_t numbers[SETTINGS_MAX];
    size_t count = 0;
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '='), *end = NULL;
        if (!value)
            return "error: NAME=VALUE\n";
        if (count == SETTINGS_MAX)
            return "error: too many\n";
        *value++ = 0;
        names[count] = word;
        numbers[count++] = strtoll(value, &end, 10);
        if (end == value || *end || !settings_has(word))
            return "error: no such setting, or no number\n";
    }
    for (size_t at = 0; at < count; at++)
        settings_set(names[at], numbers[at]);
    return "ok\n";
}

static const char *add_fault(const char *words) {
    char name[16];
    int error;
    long long at, count;
    if (sscanf(words, "%15s %d %lld %lld", name, &error, &at, &count) != 4)
        return "error: fail CLASS ERRNO AT COUNT\n";
    if (error < 0 || error > ERRNO_MAX)
        return "error: no errno\n";
    for (int class = METADATA; class <= CLASSES; class++)
        if (strcmp(name, class_names[class]) == 0)
            return fault_add((enum class)class, error, at, count) ? "ok\n" : "error: too many\n";
    return "error: no such class\n";
}

static const char *obey(char *line, char *text, size_t room) {
    char *words = strchr(line, ' ');
    if (words)
        *words++ = 0;
    if (strcmp(line, "set") == 0 && words)
        return set_all(words);
    if (strcmp(line, "fail") == 0 && words)
        return add_fault(words);
    if (strcmp(line, "clear") == 0) {
        faults_clear();
        return "ok\n";
    }
    if (strcmp(line, "get") == 0)
        settings_text(text, room);
    else if (strcmp(line, "counters") == 0)
        counters_text(text, room);
    else
        return "error: no such command\n";
    return text;
}

static void serve(int client) {
    char line[LINE_BYTES], text[LINE_BYTES];
    size_t used = 0;
    struct timeval patience = {WAIT_SECONDS, 0};
    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while (used < sizeof line - 1) {
        ssize_t got = read(client, line + used, sizeof line - 1 - used);
        if (got <= 0)
            return;
        used += (size_t)got;
        if (line[used - 1] == '\n')
            break;
    }
    line[used - 1] = 0;
    const char *reply = obey(line, text, sizeof text);
    if (send(client, reply, strlen(reply), MSG_NOSIGNAL) < 0)
        return; /* it went away: nothing to tell it */
}

static void *listener(void *context) {
    int server = (int)(intptr_t)context;
    for (;;) {
        int client = accept4(server, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0)
            continue;
        serve(client);
        close(client);
    }
    return NULL;
}

bool control_start(const char *socket_path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    pthread_t thread;
    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server < 0 || strlen(socket_path) >= sizeof address.sun_path)
        return false;
    strcpy(address.sun_path, socket_path);
    if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 64) ||
        pthread_create(&thread, NULL, listener, (void *)(intptr_t)server))
        return false;
    pthread_detach(thread);
    return true;
}
