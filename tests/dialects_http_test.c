// SPDX-License-Identifier: Apache-2.0
//
// The dialects of chat and the page over HTTP, with the embedded model: the same question has the same reply in each, streamed and whole;
// kept replies, each for its key; errors in the dialect's own shape.

#include "tests/http.h"
#include "tests/tap.h"

#include <sys/stat.h>

static int port;

static const char question[] = "\"What does the tar command do?\"";

// A copy of a value of a reply's body, to be freed.
static char *value_at(const struct reply *r, const char *path)
{
    return strdup(json_at(r->body.data, path));
}

static struct reply ask(const char *method, const char *path, const char *key, const char *body)
{
    struct bytes_in text = {0};
    char head[512];
    int bytes =
        snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: test\r\nContent-Length: %zu\r\nx-api-key: %s\r\n\r\n",
                 method, path, strlen(body), key);
    bytes_in_add(&text, head, (size_t)bytes);
    bytes_in_add(&text, body, strlen(body));
    struct reply r = http_raw(port, text.data, text.count);
    free(text.data);
    return r;
}

static struct reply post(const char *path, const char *format, ...)
{
    char body[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(body, sizeof body, format, list);
    va_end(list);
    return ask("POST", path, "k", body);
}

// The texts of all events of a stream put together, to be freed; the names of its events must be as they are said.
static char *deltas(const struct reply *r, const char *path, const char *last)
{
    struct bytes_in text = {0};
    bytes_in_add(&text, "", 0);
    const char *name = "";
    for (const char *at = r->body.data; at && (at = strstr(at, "event: ")); at++) {
        const char *data = strstr(at, "\ndata: "), *end = data ? strstr(data, "\n\n") : NULL;
        if (!end)
            return text.data;
        char *event = strndup(data + 7, (size_t)(end - data - 7));
        name = json_at(event, "type");
        if (strncmp(at + 7, name, strlen(name)))
            bytes_in_add(&text, "(another name)", 14);
        const char *piece = json_at(event, path);
        bytes_in_add(&text, piece, strlen(piece));
        free(event);
    }
    if (strcmp(name, last))
        bytes_in_add(&text, "(another end)", 13);
    return text.data;
}

static void same_replies(void)
{
    const char *messages =
        "\"messages\": [{\"role\": \"user\", \"content\": %s}], \"max_tokens\": 40, \"temperature\": 0";
    char format[256];
    snprintf(format, sizeof format, "{%s}", messages);
    struct reply chat = post("/v1/chat/completions", format, question), whole = post("/v1/messages", format, question);
    snprintf(format, sizeof format, "{%s, \"stream\": true}", messages);
    struct reply stream = post("/v1/messages?beta=true", format, question);
    struct reply response =
        post("/v1/responses", "{\"input\": %s, \"max_output_tokens\": 40, \"temperature\": 0}", question);
    struct reply events = post(
        "/v1/responses", "{\"input\": %s, \"max_output_tokens\": 40, \"temperature\": 0, \"stream\": true}", question);
    char *said = value_at(&chat, "choices.0.message.content"), *put = deltas(&stream, "delta.text", "message_stop"),
         *other = deltas(&events, "delta", "response.completed");
    ok(*said && !strcmp(said, json_at(whole.body.data, "content.0.text")) && !strcmp(said, put),
       "messages: whole and streamed", put);
    ok(!strcmp(json_at(whole.body.data, "stop_reason"), "end_turn") &&
           atoi(json_at(whole.body.data, "usage.output_tokens")) > 3,
       "with their end and their counts", whole.body.data);
    ok(!strcmp(said, json_at(response.body.data, "output.0.content.0.text")) && !strcmp(said, other),
       "responses: whole and streamed", other);
    ok(!strcmp(json_at(chat.body.data, "pianola.token_sha"), json_at(whole.body.data, "pianola.token_sha")) &&
           !strcmp(json_at(chat.body.data, "pianola.token_sha"), json_at(response.body.data, "pianola.token_sha")),
       "and the same tokens", NULL);
    struct reply *all[] = {&chat, &whole, &stream, &response, &events};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        reply_free_all(all[i]);
    free(said);
    free(put);
    free(other);
}

static int status_of(struct reply r)
{
    int status = r.status;
    reply_free_all(&r);
    return status;
}

static void kept(void)
{
    char path[128], body[512];
    struct reply first =
        post("/v1/responses", "{\"input\": %s, \"max_output_tokens\": 40, \"temperature\": 0}", question);
    snprintf(path, sizeof path, "/v1/responses/%s", json_at(first.body.data, "id"));
    struct reply again = ask("GET", path, "k", "");
    ok(again.status == 200 && !strcmp(first.body.data, again.body.data), "a kept reply is given back", again.body.data);
    struct reply next =
        post("/v1/responses", "{\"input\": \"And gzip?\", \"previous_response_id\": \"%s\", \"max_output_tokens\": 4}",
             json_at(first.body.data, "id"));
    ok(atoi(json_at(next.body.data, "usage.input_tokens")) > atoi(json_at(first.body.data, "usage.total_tokens")) &&
           !strcmp(json_at(next.body.data, "status"), "incomplete"),
       "a request goes on from it", next.body.data);
    snprintf(body, sizeof body, "{\"input\": \"x\", \"previous_response_id\": \"%s\"}", json_at(first.body.data, "id"));
    ok(status_of(ask("GET", path, "other", "")) == 404 && status_of(ask("DELETE", path, "other", "")) == 404 &&
           status_of(ask("POST", "/v1/responses", "other", body)) == 404,
       "another key does not see it", NULL);
    ok(status_of(ask("DELETE", path, "k", "")) == 200 && status_of(ask("GET", path, "k", "")) == 404,
       "it can be deleted", NULL);
    reply_free_all(&first);
    reply_free_all(&again);
    reply_free_all(&next);
}

static void errors(void)
{
    static const struct {
        const char *path, *body, *at, *type;
        int status;
    } bad[] = {
        {"/v1/messages", "{", "error.type", "invalid_request_error", 400},
        {"/v1/messages", "{\"max_tokens\": 9999, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", "type",
         "error", 400},
        {"/v1/messages",
         "{\"model\": \"none\", \"max_tokens\": 9, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
         "error.type", "not_found_error", 404},
        {"/v1/messages/count_tokens", "{}", "type", "error", 400},
        {"/v1/responses", "{\"input\": \"x\", \"max_output_tokens\": 9999}", "error.code", "context_length_exceeded",
         400},
        {"/v1/responses", "[]", "error.type", "invalid_request_error", 400},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct reply r = ask("POST", bad[i].path, "k", bad[i].body);
        if (r.status != bad[i].status || strcmp(json_at(r.body.data, bad[i].at), bad[i].type)) {
            printf("# %s %s: %d %s\n", bad[i].path, bad[i].body, r.status, r.body.data ? r.body.data : "");
            wrong++;
        }
        reply_free_all(&r);
    }
    ok(!wrong, "errors come in the dialect's shape", NULL);
    struct reply r = ask("POST", "/v1/messages", "wrong", "{}");
    ok(r.status == 401 && !strcmp(json_at(r.body.data, "error.type"), "authentication_error") &&
           !strcmp(json_at(r.body.data, "type"), "error"),
       "also for a wrong key", r.body.data);
    reply_free_all(&r);
    r = ask("GET", "/v1/messages", "k", "");
    ok(r.status == 405, "and a wrong method", NULL);
    reply_free_all(&r);
}

static void page(void)
{
    struct reply r = http_get(port, "/");
    const char *policy = reply_header(&r, "Content-Security-Policy"), *type = reply_header(&r, "Content-Type");
    ok(r.status == 200 && policy && !strncmp(policy, " default-src 'none'; script-src 'sha256-", 40) && type &&
           strstr(type, "text/html") && r.body.data && strstr(r.body.data, "</html>"),
       "the page needs no key and allows only its own script", r.raw.data);
    reply_free_all(&r);
}

int main(void)
{
    const char *path = "build/tests/dialects.keys";
    const char *const arguments[] = {"--quiet", "--context", "512", "--parallel", "2", "--api-key-file", path, NULL};
    FILE *file = fopen(path, "w");
    if (!file || fputs("one: k\ntwo: other\n", file) < 0 || fclose(file) || chmod(path, 0600))
        return 1;
    struct served s = serve_start(arguments);
    port = s.port;
    signal(SIGPIPE, SIG_IGN);
    ok(port > 0, "the server listens", NULL);
    if (!port)
        return done();
    same_replies();
    kept();
    errors();
    page();
    ok(serve_stop(&s) == 0, "it ends with code 0", NULL);
    unlink(path);
    return done();
}
