// SPDX-License-Identifier: Apache-2.0
//
// A server under test and a small HTTP client, for the tests of runtime/server. BINARY names another build than that of the
// embedded model. Nothing here waits longer than WAIT_SECONDS.

#ifndef HTTP_H
#define HTTP_H

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_SECONDS = 60, REST_SECONDS = 20 }; // REST: less than the server's own deadlines

static inline double http_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void http_sleep(double seconds)
{
    const struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

// ---- the server ------------------------------------------------------------------------------------------------------------------

struct served {
    pid_t pid;
    int port; // 0: it did not start
};

// Starts `serve` with more arguments (ends with NULL), and waits until it listens.
static inline struct served serve_start(const char *const *more)
{
    const char *binary = getenv("BINARY"),
               *argv[40] = {binary ? binary : "build/flashnext/flashnext", "serve", "--port", "0"};
    int pipes[2], count = 4;
    struct served s = {0};
    char line[256] = "";
    while (more && *more)
        argv[count++] = *more++;
    if (pipe(pipes))
        return s;
    s.pid = fork();
    if (s.pid == 0) {
        dup2(pipes[1], STDOUT_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(pipes[1]);
    FILE *file = fdopen(pipes[0], "r");
    if (file && fgets(line, sizeof line, file))
        sscanf(line, "listening on http://127.0.0.1:%d", &s.port);
    if (file)
        fclose(file);
    return s;
}

// Waits for its end; the exit code, or -1.
static inline int serve_wait(struct served *s)
{
    int status = 0;
    const double until = http_now() + WAIT_SECONDS;
    while (http_now() < until) {
        if (waitpid(s->pid, &status, WNOHANG) == s->pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        http_sleep(0.01);
    }
    kill(s->pid, SIGKILL);
    waitpid(s->pid, &status, 0);
    return -1;
}

static inline int serve_stop(struct served *s)
{
    kill(s->pid, SIGTERM);
    return serve_wait(s);
}

// ---- a client --------------------------------------------------------------------------------------------------------------------

struct bytes_in {
    char *data; // ends in a NUL
    size_t count, room;
};

static inline void bytes_in_add(struct bytes_in *b, const char *data, size_t count)
{
    if (b->room - b->count <= count) {
        b->room = 2 * b->room + count + 4096;
        b->data = realloc(b->data, b->room);
        if (!b->data)
            abort();
    }
    memcpy(b->data + b->count, data, count);
    b->count += count;
    b->data[b->count] = '\0';
}

static inline int http_connect(int port)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof to)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

// Sends all of it; false when the server stops taking.
static inline bool http_put(int fd, const char *data, size_t count)
{
    while (count) {
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        if (poll(&wait, 1, WAIT_SECONDS * 1000) <= 0)
            return false;
        ssize_t sent = send(fd, data, count, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        data += sent;
        count -= (size_t)sent;
    }
    return true;
}

static inline bool http_post(int fd, const char *path, const char *more_headers, const char *body)
{
    char head[1024];
    int bytes =
        snprintf(head, sizeof head,
                 "POST %s HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n",
                 path, strlen(body), more_headers ? more_headers : "");
    return http_put(fd, head, (size_t)bytes) && http_put(fd, body, strlen(body));
}

struct reply {
    int status; // 0: none came, or it was cut
    struct bytes_in raw, body;
    bool closed;    // by the server
    double seconds; // until it was complete
};

static inline void reply_free_all(struct reply *r)
{
    free(r->raw.data);
    free(r->body.data);
    *r = (struct reply){0};
}

static inline const char *reply_header(const struct reply *r, const char *name)
{
    const char *end = r->raw.data ? strstr(r->raw.data, "\r\n\r\n") : NULL;
    for (const char *at = r->raw.data; end && at < end; at++)
        if (*at == '\n' && !strncasecmp(at + 1, name, strlen(name)) && at[1 + strlen(name)] == ':')
            return at + 2 + strlen(name);
    return NULL;
}

// Takes the chunks that have come into body; true when the last one has.
static inline bool http_chunks(struct reply *r, size_t *at)
{
    for (;;) {
        const char *line = r->raw.data + *at, *end = strstr(line, "\r\n");
        if (!end)
            return false;
        const size_t size = strtoul(line, NULL, 16), head = (size_t)(end - line) + 2;
        if (r->raw.count < *at + head + size + 2)
            return false;
        if (!size)
            return true;
        bytes_in_add(&r->body, line + head, size);
        *at += head + size + 2;
    }
}

// Reads one response, and no byte after it that belongs to the next one unless it came with it (then *left keeps it).
static inline struct reply http_read(int fd)
{
    struct reply r = {0};
    char piece[16384];
    size_t head = 0, at = 0;
    long length = -1;
    bool chunked = false;
    const double start = http_now();
    while (http_now() - start < WAIT_SECONDS) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, WAIT_SECONDS * 1000) <= 0)
            return r;
        ssize_t got = recv(fd, piece, sizeof piece, 0);
        if (got <= 0) {
            r.closed = true;
            return r; // cut, unless the length was said before
        }
        bytes_in_add(&r.raw, piece, (size_t)got);
        const char *end = head ? NULL : strstr(r.raw.data, "\r\n\r\n");
        if (end) {
            head = at = (size_t)(end - r.raw.data) + 4;
            const char *said = reply_header(&r, "Content-Length"), *encoding = reply_header(&r, "Transfer-Encoding");
            length = said ? atol(said) : -1;
            chunked = encoding != NULL;
        }
        bool whole =
            head && ((chunked && http_chunks(&r, &at)) || (length >= 0 && r.raw.count >= head + (size_t)length));
        if (!whole)
            continue;
        if (!chunked)
            bytes_in_add(&r.body, r.raw.data + head, (size_t)length);
        r.status = atoi(r.raw.data + 9);
        r.seconds = http_now() - start;
        return r;
    }
    return r;
}

static inline struct reply http_raw(int port, const char *data, size_t count)
{
    struct reply r = {0};
    int fd = http_connect(port);
    if (fd < 0)
        return r;
    http_put(fd, data, count); // a server may answer before all is sent
    r = http_read(fd);
    close(fd);
    return r;
}

static inline struct reply http_ask(int port, const char *path, const char *body)
{
    struct reply r = {0};
    int fd = http_connect(port);
    if (fd >= 0 && http_post(fd, path, NULL, body))
        r = http_read(fd);
    if (fd >= 0)
        close(fd);
    return r;
}

static inline struct reply http_get(int port, const char *path)
{
    char head[512];
    int bytes = snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: test\r\n\r\n", path);
    return http_raw(port, head, (size_t)bytes);
}

// ---- what replies say --------------------------------------------------------------------------------------------------------------

// The value at a path such as "choices.0.message.content" of a JSON text, as a text; "" where there is none. Static: copy it.
static inline const char *json_at(const char *text, const char *path)
{
    static char value[8][65536];
    static int turn;
    char *out = value[turn = (turn + 1) % 8], name[64];
    json_t *root = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL, *at = root;
    *out = '\0';
    while (at && *path) {
        size_t bytes = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)bytes, path);
        at = json_is_array(at) ? json_array_get(at, (size_t)atol(name)) : json_object_get(at, name);
        path += bytes + (path[bytes] == '.');
    }
    if (json_is_string(at))
        snprintf(out, sizeof value[0], "%s", json_string_value(at));
    else if (at)
        out[json_dumpb(at, out, sizeof value[0] - 1, JSON_ENCODE_ANY | JSON_COMPACT)] = '\0';
    json_decref(root);
    return out;
}

// The texts of a streamed chat or completion put together; *last: the last event before [DONE], to be freed.
static inline char *stream_text(const char *events, char **last)
{
    struct bytes_in text = {0};
    bytes_in_add(&text, "", 0);
    if (last)
        *last = NULL;
    for (const char *at = events; at && (at = strstr(at, "data: ")); at++) {
        const char *end = strstr(at, "\n\n");
        if (!end || !strncmp(at + 6, "[DONE]", 6))
            break;
        char *event = strndup(at + 6, (size_t)(end - at - 6));
        const char *piece = json_at(event, "choices.0.delta.content");
        bytes_in_add(&text, piece, strlen(piece));
        piece = json_at(event, "choices.0.text");
        bytes_in_add(&text, piece, strlen(piece));
        if (last) {
            free(*last);
            *last = event;
        } else {
            free(event);
        }
        at = end;
    }
    return text.data;
}

// Lanes in use, waiting requests, pages but those of the prompt cache, and exchanges but for this one: 0 when all is at rest.
static inline int server_load(int port)
{
    static const char *const counts[] = {"streams.decoding", "streams.prefilling", "pages.claimed",
                                         "pages.promised",   "requests_waiting",   "requests_running"};
    struct reply r = http_get(port, "/health");
    int sum = r.status == 200 ? atoi(json_at(r.body.data, "connections_requests")) - 1 : 1000000;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        sum += atoi(json_at(r.body.data, counts[i]));
    sum -= atoi(json_at(r.body.data, "pages.cached"));
    reply_free_all(&r);
    return sum;
}

// Waits until everything is back; false when it does not come back.
static inline bool server_rests(int port)
{
    const double until = http_now() + REST_SECONDS;
    while (server_load(port)) {
        if (http_now() > until) {
            struct reply r = http_get(port, "/health");
            printf("# not at rest: %s\n", r.body.data ? r.body.data : "no reply");
            reply_free_all(&r);
            return false;
        }
        http_sleep(0.005);
    }
    return true;
}

#endif
