// SPDX-License-Identifier: Apache-2.0
//
// The server over a loopback connection: what is asked, and bodies that are too long. A part of server_test.c.

#ifndef SERVER_LIMITS_H
#define SERVER_LIMITS_H

#include "tests/http.h"
#include "tests/tap.h"

static int port;

#define CHAT "/v1/chat/completions"
#define POST "POST " CHAT " HTTP/1.1\r\n"
#define ASK  "\"messages\":[{\"role\":\"user\",\"content\":\"What does the tar command do?\"}]"

// A POST is answered with this status, and its error's message holds this text.
static void refused(const char *path, const char *body, int status, const char *text, const char *name)
{
    struct reply r = http_ask(port, path, body);
    ok(r.status == status && strstr(json_at(r.body.data, "error.message"), text), name, r.body.data);
    reply_free_all(&r);
}

// A raw request is answered with this status.
static void raw(const char *request, size_t bytes, int status, const char *name)
{
    struct reply r = http_raw(port, request, bytes);
    ok(r.status == status, name, r.raw.data);
    reply_free_all(&r);
}

// A chunked body without end is cut off, and costs no memory beyond the limit.
static void long_body(void)
{
    enum { PIECE = 1 << 20 };
    char *piece = malloc(PIECE + 32);
    int head = snprintf(piece, 32, "%x\r\n", PIECE);
    memset(piece + head, ' ', PIECE);
    memcpy(piece + head + PIECE, "\r\n", 2);
    int fd = http_connect(port);
    static const char start[] = POST "Host: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    bool sent = http_put(fd, start, sizeof start - 1);
    for (int i = 0; sent && i < 33; i++)
        sent = http_put(fd, piece, (size_t)head + PIECE + 2);
    sent = sent && http_put(fd, "0\r\n\r\n", 5);
    struct reply r = http_read(fd);
    ok(r.status == 413, "33 MB in chunks are 413", r.raw.data);
    reply_free_all(&r);
    close(fd);
    free(piece);
}

// A process's resident bytes; 0: not known.
static long resident(pid_t pid)
{
    char path[64];
    long pages = 0, whole = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%ld %ld", &whole, &pages) != 2)
        pages = 0;
    if (file)
        fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

// Tokens of a text take many times its bytes: what is too long is refused, and what was taken is given back.
static void tokens_of_long_texts(pid_t pid)
{
    enum { MOST = 4 << 20, ROOM = 24 << 20 };
    char *body = malloc(MOST + 64);
    int good = 0;
    memset(body, 'a', MOST + 64);
    memcpy(body, "{\"prompt\":\"", 11);
    memcpy(body + MOST + 1 - 2, "\"}", 3);
    refused("/tokenize", body, 413, "4194304 bytes, which are the most that /tokenize takes",
            "a text that is too long");
    refused("/v1/detokenize", body, 413, "4194304 bytes", "and so are tokens");
    memcpy(body + MOST - 2, "\"}", 3);
    struct reply r = http_ask(port, "/tokenize", "{\"prompt\":\"a\"}");
    reply_free_all(&r);
    const long before = resident(pid);
    for (int i = 0; i < 4; i++) {
        r = http_ask(port, "/tokenize", body);
        good += r.status == 200;
        reply_free_all(&r);
    }
    const double until = http_now() + REST_SECONDS;
    while (resident(pid) > before + ROOM && http_now() < until)
        http_sleep(0.05);
    ok(good == 4, "the longest text is taken, though it is one word", NULL);
    char detail[80];
    snprintf(detail, sizeof detail, "%ld bytes before, %ld after", before, resident(pid));
    if (getenv("BINARY")) // a sanitizer's allocator keeps what it has
        ok(true, "memory is given back # SKIP of another build", NULL);
    else
        ok(resident(pid) <= before + ROOM, "and its memory is given back", detail);
    free(body);
}

// Replies that nobody reads hold little more than their own bytes, and those of many are refused; then all is given back.
static void tokens_unread(pid_t pid)
{
    enum { CLIENTS = 8, MOST = 4 << 20, REPLY = 48 << 20, ROOM = 48 << 20 };
    static const char head[] = "{ \"return_token_strs\":true,\"prompt\": \"", rare[] = "\xf4\x8f\xbf\xbd"; // no token's
    _Static_assert((MOST - 2 - (sizeof head - 1)) % 4 == 0, "the last character is whole");
    char *body = malloc(MOST + 1);
    int fd[CLIENTS], refused_ones = 0, taken = 0;
    if (getenv("BINARY")) { // a sanitizer's allocator keeps what it has, and its server is too slow for so many
        ok(true, "replies that nobody reads # SKIP of another build", NULL);
        free(body);
        return;
    }
    memcpy(body, head, sizeof head - 1);
    for (size_t i = sizeof head - 1; i < MOST; i++)
        body[i] = rare[(i - (sizeof head - 1)) % 4];
    memcpy(body + MOST - 2, "\"}", 3);
    const long before = resident(pid);
    for (int i = 0; i < CLIENTS; i++) {
        fd[i] = http_connect(port);
        http_post(fd[i], "/tokenize", NULL, body);
    }
    for (int i = 0; i < CLIENTS; i++) {
        char first[16] = "";
        if (recv(fd[i], first, sizeof first - 1, MSG_PEEK) > 0) {
            taken += strstr(first, " 200") != NULL;
            refused_ones += strstr(first, " 503") != NULL;
        }
    }
    free(body);
    double until = http_now() + REST_SECONDS;
    while (resident(pid) > before + taken * (long)REPLY + ROOM && http_now() < until)
        http_sleep(0.05);
    char detail[120];
    snprintf(detail, sizeof detail, "%d taken, %d refused; %ld bytes before, %ld held", taken, refused_ones, before,
             resident(pid));
    printf("# %s\n", detail);
    ok(taken + refused_ones == CLIENTS && refused_ones > 0, "replies that wait to be read are limited", detail);
    ok(resident(pid) <= before + taken * (long)REPLY + ROOM, "and hold little more than their bytes", detail);
    struct reply r = http_get(port, "/health");
    ok(r.status == 200, "small replies go on", r.body.data);
    reply_free_all(&r);
    for (int i = 0; i < CLIENTS; i++)
        close(fd[i]);
    until = http_now() + REST_SECONDS;
    while (resident(pid) > before + ROOM && http_now() < until)
        http_sleep(0.05);
    snprintf(detail, sizeof detail, "%ld bytes before, %ld after", before, resident(pid));
    ok(resident(pid) <= before + ROOM, "and all is given back when their clients go", detail);
}

#endif
