// SPDX-License-Identifier: Apache-2.0
//
// The server over a loopback connection: heads of requests, methods and paths. A part of server_test.c.

#ifndef SERVER_HEADS_H
#define SERVER_HEADS_H

#include "tests/server_limits.h"

// A name of 200 bytes.
#define TEN  "0123456789"
#define LONG "org/a b/" TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN "\xc3\xa9"

// Models by their names, whose bytes may be escaped in a path.
static void model_paths(void)
{
    static const struct {
        const char *path;
        int status;
        const char *key, *value;
    } rows[] = {{"one", 200, "id", "one"},
                {"%74%77o", 200, "id", "two"},
                {"org%2fa%20b%2F" TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN "%c3%A9",
                 200, "id", LONG},
                {"one%00", 404, "error.type", "not_found_error"},
                {"one%", 404, "error.code", "model_not_found"},
                {"%6fne%2", 404, "error.message", "the model \"one%2\" is not served here"},
                {"%zz%ff", 404, "error.message", "the model \"%zz?\" is not served here"}};
    char path[700];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(path, sizeof path, "/v1/models/%s", rows[i].path);
        struct reply r = http_get(port, path);
        ok(r.status == rows[i].status && !strcmp(json_at(r.body.data, rows[i].key), rows[i].value), path, r.body.data);
        reply_free_all(&r);
    }
}

static void heads(void)
{
    char request[80000];
    int bytes = snprintf(request, sizeof request, "GET /health HTTP/1.1\r\nHost: t\r\nX: ");
    memset(request + bytes, 'a', 17000);
    strcpy(request + bytes + 17000, "\r\n\r\n");
    raw(request, strlen(request), 431, "a head of 17 kB is 431");
    memset(request + bytes, 'a', 70000);
    strcpy(request + bytes + 70000, "\r\n\r\n");
    raw(request, strlen(request), 431, "a head of 70 kB is 431");
#define RAW(text, status, name) raw(text, sizeof text - 1, status, name)
    RAW(POST "Host: t\r\nContent-Length: 99999999999\r\n\r\n", 413, "a length of 99 GB is 413 before the body");
    RAW(POST "Host: t\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "two lengths are 400");
    RAW(POST "Host: t\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400,
        "a length and chunks are 400");
    RAW(POST "Content-Length: 2\r\n\r\n{}", 400, "no host is 400");
    RAW(POST "Host: t\r\nContent-Length: -2\r\n\r\n{}", 400, "a negative length is 400");
    RAW(POST "Host: t\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{}", 413,
        "a chunk of 2^64 bytes is 413");
    RAW(POST "Host: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400, "a chunked body is read");
    RAW(POST "Host: t\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400,
        "an encoding that is not known is 400");
    RAW("POST /tokenize HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 5000000\r\n\r\n", 413,
        "a client that asks whether it may send too much is answered at once");
    RAW("GET /%68ealth HTTP/1.1\r\nHost: t\r\n\r\n", 404, "paths are not decoded");
    for (int count = 15; count <= 7000;
         count = count * 3 - 1) { // from 400 or so on they were more than the library has memory for
        char *at = request + sprintf(request, "GET /health?");
        for (int i = 0; i < count; i++)
            *at++ = 'a', *at++ = '&';
        strcpy(at, " HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
        raw(request, strlen(request), 200, "a path with many parameters is answered");
    }
    RAW("GET /health?a=?&b=??&?& HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", 200, "so is one with odd ones");
    struct reply none = http_raw(port, "nonsense\r\n\r\n", 12);
    ok(none.closed && !none.raw.count, "nonsense is cut", none.raw.data);
    reply_free_all(&none);
    static const char two[] =
        "GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\nGET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    int fd = http_connect(port);
    struct bytes_in all = {0};
    char piece[4096];
    http_put(fd, two, sizeof two - 1);
    for (ssize_t got; (got = recv(fd, piece, sizeof piece, 0)) > 0;)
        bytes_in_add(&all, piece, (size_t)got);
    const char *first = all.data ? strstr(all.data, "\"data\"") : NULL;
    ok(first && strstr(first, "\"status\""), "two requests in one packet have two replies", all.data);
    free(all.data);
    close(fd);
}

// What HTTP says of methods and of the first line.
static void methods(void)
{
#define CLOSE " HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
    static const struct {
        const char *request;
        int status;
        const char *holds, *name;
    } rows[] = {
        {"HEAD /health" CLOSE, 200, "Content-Length: ", "HEAD is for what GET is for"},
        {"HEAD /" CLOSE, 200, "text/html", "the chat page too"},
        {"HEAD /v1/messages" CLOSE, 405, "Allow: POST\r\n", "and not for what is posted"},
        {"PUT /v1/models" CLOSE, 405, "Allow: GET, HEAD\r\n", "another method is told those that are there"},
        {"PATCH /v1/responses/x" CLOSE, 405, "Allow: GET, HEAD, DELETE\r\n", "all of them"},
        {"GET http://t/v1/models" CLOSE, 200, "\"data\"", "a whole URL is taken, as proxies send it"},
        {"GET http://t" CLOSE, 200, "<html", "without a path too"},
        {"POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415,
         "Content-Encoding gzip is not read here: send the body as it is", "a packed body is told so"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct reply r = http_raw(port, rows[i].request, strlen(rows[i].request));
        const int status = r.raw.count > 12 ? atoi(r.raw.data + 9) : 0;
        const bool empty = r.raw.count > 4 && !strcmp(r.raw.data + r.raw.count - 4, "\r\n\r\n");
        ok(status == rows[i].status && strstr(r.raw.data, rows[i].holds) &&
               empty == !strncmp(rows[i].request, "HEAD", 4),
           rows[i].name, r.raw.data);
        reply_free_all(&r);
    }
}

// A message is one line, whatever it quotes.
static void one_line(void)
{
    refused(CHAT, "{" ASK ",\"guided_json\":{\"$ref\":\"a\\nb\\u007f\"}}", 400, "$ref \"a?b?\"",
            "a line break in what is quoted is none of the message");
}

#endif
