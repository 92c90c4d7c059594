// SPDX-License-Identifier: Apache-2.0
//
// Clients that vanish, stall or send rubbish, in every phase of a request, while others are served. Afterwards lanes, pages and
// requests are as they were at the start, and whoever was served beside them got the reply that it gets alone.
//   server_hostile_test [--cycles N] [--seed S] [--chats N]
// --cycles: random connect, request, kill cycles; --chats: chats one after the other, whose speed must not fall.
// Red controls: a client that stays is seen as load by the check that finds everything at rest; a reply with another seed is another.

#include "tests/http.h"
#include "tests/tap.h"

static int port;
static uint64_t state = 1;

#define CHAT "/v1/chat/completions"

static uint32_t pick(uint32_t most)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % most;
}

static void pause_ms(double most)
{
    http_sleep(most / 1000 * (double)pick(1000) / 1000);
}

// Closes with a reset instead of a farewell.
static void reset(int fd)
{
    const struct linger now = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static const char *request_of(bool streamed, int tokens)
{
    static char body[2048];
    static const char *const words[] = {"tar", "grep", "ls", "cp", "find", "sed", "awk", "cat"};
    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"What does %s do? "
             "%.*s\"}],\"max_tokens\":%d,\"ignore_eos\":true,\"stream\":%s%s}",
             words[pick(8)], (int)pick(300),
             "It can be a long question, with many words that say little, so that its prompt takes some chunks to be "
             "read and the "
             "client can go while that is done; it goes on and on, and nobody knows why it does, since nothing of it "
             "matters at all "
             "for the reply, which is thrown away in any case as soon as it comes.",
             tokens, streamed ? "true" : "false", pick(5) == 0 ? ",\"priority\":\"background\"" : "");
    return body;
}

// One client that does not behave.
static void one(void)
{
    char junk[512];
    int fd = http_connect(port);
    const char *body = request_of(pick(2), 20 + (int)pick(400));
    const uint32_t kind = pick(9);
    if (fd < 0)
        return;
    if (kind == 0) { // says nothing
        pause_ms(2);
    } else if (kind == 1) { // half a head
        http_put(fd, "POST /v1/chat/comp", pick(18));
        pause_ms(2);
    } else if (kind == 2) { // a head, and half a body
        int bytes = snprintf(junk, sizeof junk, "POST " CHAT " HTTP/1.1\r\nHost: t\r\nContent-Length: %zu\r\n\r\n",
                             strlen(body));
        http_put(fd, junk, (size_t)bytes);
        http_put(fd, body, pick((uint32_t)strlen(body)));
        pause_ms(2);
    } else if (kind == 3) { // rubbish
        for (size_t i = 0; i < sizeof junk; i++)
            junk[i] = (char)pick(256);
        memcpy(junk, "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 400\r\n\r\n{\"prompt\":", pick(76));
        http_put(fd, junk, sizeof junk);
        pause_ms(2);
    } else if (kind == 4) { // closes its sending half and waits
        http_post(fd, CHAT, NULL, body);
        pause_ms(10);
        shutdown(fd, SHUT_WR);
        pause_ms(5);
    } else if (kind == 5) { // reads a little of its reply
        http_post(fd, CHAT, NULL, body);
        pause_ms(30);
        (void)!recv(fd, junk, sizeof junk, MSG_DONTWAIT);
    } else { // goes while it waits, is read, or is answered
        http_post(fd, CHAT, NULL, body);
        pause_ms(60);
    }
    pick(2) ? reset(fd) : (void)close(fd);
}

// ---- beside them -----------------------------------------------------------------------------------------------------------------

static const char *const good =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"What does the tar command do?\"}],\"max_tokens\":60,"
    "\"ignore_eos\":true,\"temperature\":0.9,\"seed\":%d}";

static char *sha_of(int seed)
{
    char body[512];
    snprintf(body, sizeof body, good, seed);
    struct reply r = http_ask(port, CHAT, body);
    char *sha = strdup(json_at(r.body.data, "pianola.token_sha"));
    reply_free_all(&r);
    return sha;
}

static void cycles(int count)
{
    char *alone = sha_of(1), *other = sha_of(2), text[96];
    int wrong = 0, served = 0, fd = -1;
    ok(strlen(alone) == 64 && strcmp(alone, other) != 0, "red control: another seed is another reply", other);
    for (int i = 0; i < count; i++) {
        if (fd < 0) {
            char body[512];
            snprintf(body, sizeof body, good, 1);
            fd = http_connect(port);
            http_post(fd, CHAT, NULL, body);
        }
        one();
        struct pollfd there = {.fd = fd, .events = POLLIN};
        if (i < count - 1 && poll(&there, 1, 0) <= 0)
            continue;
        struct reply r = http_read(fd); // the last one is waited for
        served++;
        wrong += strcmp(alone, json_at(r.body.data, "pianola.token_sha")) != 0;
        reply_free_all(&r);
        close(fd);
        fd = -1;
    }
    snprintf(text, sizeof text, "%d of %d replies beside them are not as alone", wrong, served);
    ok(wrong == 0 && served > 0, "replies beside hostile clients are as alone", text);
    printf("# %d cycles, %d replies beside them\n", count, served);
    ok(server_rests(port), "lanes, pages and requests are back", NULL);
    free(alone), free(other);
}

// ---- phases ----------------------------------------------------------------------------------------------------------------------

static int lanes_in(const char *what)
{
    char path[64];
    struct reply r = http_get(port, "/health");
    snprintf(path, sizeof path, "streams.%s", what);
    int count = atoi(json_at(r.body.data, strcmp(what, "waiting") ? path : "requests_waiting"));
    reply_free_all(&r);
    return count;
}

static bool until_in(const char *what)
{
    const double until = http_now() + WAIT_SECONDS;
    while (!lanes_in(what))
        if (http_now() > until)
            return false;
    return true;
}

// A client goes in a known phase: whole and streamed, closed and reset.
static void phases(void)
{
    static const char *const names[] = {"decoding", "waiting"};
    for (int phase = 0; phase < 2; phase++)
        for (int how = 0; how < 4; how++) {
            char name[96];
            int holder[2] = {-1, -1}, fd = http_connect(port);
            for (int i = 0; i < 2 && phase == 1; i++) { // both lanes are taken
                holder[i] = http_connect(port);
                http_post(holder[i], CHAT, NULL, request_of(false, 400));
            }
            if (phase == 1)
                until_in("decoding");
            http_post(fd, CHAT, NULL, request_of(how & 1, 400));
            bool there = until_in(names[phase]) && server_load(port) > 0;
            how & 2 ? reset(fd) : (void)close(fd);
            for (int i = 0; i < 2; i++)
                if (holder[i] >= 0)
                    close(holder[i]);
            snprintf(name, sizeof name, "a client goes, %s, %s, %s: everything is back", names[phase],
                     how & 1 ? "streamed" : "whole", how & 2 ? "reset" : "closed");
            ok(there && server_rests(port), name, there ? "it did not come back" : "it was not seen as load");
        }
}

// A client that reads nothing does not keep its lane longer than its reply takes; others are served meanwhile.
static void slow_reader(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 2048;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (const struct sockaddr *)&to, sizeof to))
        return;
    http_post(fd, CHAT, NULL, request_of(true, 400));
    until_in("decoding");
    const double until = http_now() + WAIT_SECONDS;
    while (lanes_in("decoding") && http_now() < until)
        http_sleep(0.005);
    ok(!lanes_in("decoding"), "a client that does not read keeps no lane when its reply is made", NULL);
    struct reply r = http_read(fd);
    ok(r.status == 200 && strstr(r.body.data, "[DONE]"), "and can read it later", NULL);
    reply_free_all(&r);
    close(fd);
    ok(server_rests(port), "everything is back", NULL);
}

static void many_idle(void)
{
    enum { IDLE = 600 };
    static int fd[IDLE];
    int open = 0;
    for (int i = 0; i < IDLE; i++)
        open += (fd[i] = http_connect(port)) >= 0;
    char *sha = sha_of(1);
    ok(open == IDLE && strlen(sha) == 64, "600 idle connections: a request is served", NULL);
    free(sha);
    for (int i = 0; i < IDLE; i++)
        if (fd[i] >= 0)
            close(fd[i]);
}

// ---- a long row of chats ---------------------------------------------------------------------------------------------------------

static int64_t memory_of_server(void)
{
    struct reply r = http_get(port, "/memory");
    int64_t bytes = atoll(json_at(r.body.data, "host_resident_bytes"));
    reply_free_all(&r);
    return bytes;
}

// Processor seconds that the server has used.
static double processor(pid_t pid)
{
    char path[64], line[1024] = "";
    unsigned long long user = 0, kernel = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file && fgets(line, sizeof line, file) && strrchr(line, ')'))
        sscanf(strrchr(line, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &kernel);
    if (file)
        fclose(file);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static void chats(int count, pid_t pid)
{
    double first = 0, last = 0, used[3] = {processor(pid), 0, 0};
    int tokens = 0, failed = 0;
    for (int i = 0; i < count; i++) {
        char body[512];
        snprintf(body, sizeof body, good, i % 100);
        const double start = http_now();
        struct reply r = http_ask(port, CHAT, body);
        const double took = http_now() - start;
        if (r.status != 200)
            printf("# chat %d after %.2f s: status %d%s: %s\n", i, took, r.status, r.closed ? ", cut" : "",
                   r.raw.data ? r.raw.data : "");
        failed += r.status != 200;
        tokens += atoi(json_at(r.body.data, "usage.completion_tokens"));
        reply_free_all(&r);
        first += i < 100 ? took : 0;
        last += i >= count - 100 ? took : 0;
        if (i == 99)
            used[1] = processor(pid);
        if (i == count - 101)
            used[2] = processor(pid);
    }
    printf("# %d chats, %d tokens; first 100: %.3f s, last 100: %.3f s, speed of the last %.3f of the first\n", count,
           tokens, first, last, first / last);
    printf("# processor seconds: first 100: %.2f, last 100: %.2f\n", used[1] - used[0], processor(pid) - used[2]);
    ok(!failed && server_rests(port), "chats in a row are all answered", NULL);
}

int main(int argc, char **argv)
{
    const char *const arguments[] = {"--quiet", "--context",          "768", "--parallel",
                                     "2",       "--prompt-cache-gib", "0.1", NULL};
    int count = 150, row = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--cycles"))
            count = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--chats"))
            row = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--seed"))
            state = strtoull(argv[i + 1], NULL, 10) | 1;
    }
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct served s = serve_start(arguments);
    port = s.port;
    ok(port > 0 && server_rests(port), "the server listens", NULL);
    if (!port)
        return done();
    phases();
    slow_reader();
    many_idle();
    cycles(count > 10 ? count / 10 : count);
    const int64_t before = memory_of_server();
    cycles(count);
    const int64_t after = memory_of_server();
    printf("# resident bytes before the cycles %lld, after %lld\n", (long long)before, (long long)after);
    ok(after - before < (16 << 20), "memory has not grown by 16 MiB", NULL);
    if (row > 0)
        chats(row, s.pid);
    ok(serve_stop(&s) == 0, "SIGTERM ends it with code 0", NULL);
    return done();
}
