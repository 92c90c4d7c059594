// SPDX-License-Identifier: Apache-2.0
//
// The server over a loopback connection, with the embedded model: what clients rely on, what is refused and how.
// Red controls: a stop string that is not asked for is in the text; another seed has another hash; a held stream is seen as load.

#include "tests/server_heads.h"

#include <fcntl.h>
#include <sys/stat.h>

static char *sha_of(const char *body)
{
    struct reply r = http_ask(port, CHAT, body);
    char *sha = strdup(json_at(r.body.data, "pianola.token_sha"));
    reply_free_all(&r);
    return sha;
}

// ---- what works ------------------------------------------------------------------------------------------------------------------

static void pages(void)
{
    static const char *const paths[] = {"/health", "/v1/models", "/metrics", "/v1/metrics", "/memory"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct reply r = http_get(port, paths[i]);
        ok(r.status == 200 && r.body.count > 20, paths[i], r.raw.data);
        reply_free_all(&r);
    }
    struct reply r = http_get(port, "/v1/models");
    ok(!strcmp(json_at(r.body.data, "data.0.id"), "one") && !strcmp(json_at(r.body.data, "data.1.id"), "two"),
       "the name and the alias are listed", r.body.data);
    reply_free_all(&r);
    model_paths();
    r = http_get(port, "/v1/chat/completions");
    ok(r.status == 405, "a path for another method is 405", r.raw.data);
    reply_free_all(&r);
    r = http_get(port, "/v1/Models");
    ok(r.status == 404, "a path that is not there is 404", r.raw.data);
    reply_free_all(&r);
}

// Of a metric without labels; -1: it is not there.
static double metric(const char *page, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\npianola:%s ", name);
    const char *at = strstr(page, key);
    return at ? strtod(at + strlen(key), NULL) : -1;
}

// After replies: the host's time between rounds, and graphs.
static void gaps(void)
{
    struct reply r = http_get(port, "/metrics");
    const double rounds = metric(r.body.data, "round_gaps_total"),
                 host = metric(r.body.data, "round_host_seconds_total");
    ok(rounds > 10 && rounds < metric(r.body.data, "decode_rounds_total") && host > 0 &&
           metric(r.body.data, "round_launch_seconds_total") >= 0 && metric(r.body.data, "graph_bytes") > 0,
       "the host's time between rounds is counted", NULL);
    reply_free_all(&r);
}

static void whole_and_streamed(void)
{
    struct reply whole =
        http_ask(port, CHAT, "{" ASK ",\"max_tokens\":40,\"temperature\":0.8,\"seed\":5,\"model\":\"two\"}");
    struct reply streamed = http_ask(port, CHAT,
                                     "{" ASK ",\"max_tokens\":40,\"temperature\":0.8,\"seed\":5,\"stream\":true,"
                                     "\"stream_options\":{\"include_usage\":true}}");
    char *last, *text = stream_text(streamed.body.data, &last), *other;
    char *sha = strdup(json_at(whole.body.data, "tensorfold.token_sha"));
    ok(whole.status == 200 && *json_at(whole.body.data, "choices.0.message.content"), "a chat is answered",
       whole.raw.data);
    ok(!strcmp(text, json_at(whole.body.data, "choices.0.message.content")), "streamed pieces are the whole reply",
       text);
    ok(strlen(sha) == 64 && !strcmp(sha, json_at(last, "pianola.token_sha")), "both have the same hash of tokens",
       last);
    ok(strstr(streamed.body.data, "data: [DONE]\n\n") && !strcmp(json_at(last, "choices"), "[]") &&
           !strcmp(json_at(last, "usage.total_tokens"), json_at(whole.body.data, "usage.total_tokens")),
       "the last event is usage without choices", last);
    other = sha_of("{" ASK ",\"max_tokens\":40,\"temperature\":0.8,\"seed\":6}");
    ok(strcmp(sha, other) != 0, "red control: another seed has another hash", other);
    free(other);
    other = sha_of("{" ASK ",\"max_tokens\":40,\"temperature\":0.8,\"seed\":5,\"draft\":false}");
    ok(!strcmp(sha, other), "the same without drafts", other);
    free(other);
    char *first = sha_of("{" ASK ",\"max_tokens\":40,\"temperature\":1}"),
         *again = sha_of("{" ASK ",\"max_tokens\":40,\"temperature\":1}");
    ok(!strcmp(first, again), "without a seed a repeated request repeats its reply", again);
    free(first), free(again), free(sha), free(text), free(last);
    reply_free_all(&whole);
    reply_free_all(&streamed);
}

static void completions(void)
{
    struct reply r = http_ask(port, "/v1/completions",
                              "{\"prompt\":\"The tar command\",\"max_tokens\":12,\"temperature\":0,\"logprobs\":2}");
    char *text = strdup(json_at(r.body.data, "choices.0.text"));
    ok(r.status == 200 && *text && *json_at(r.body.data, "choices.0.logprobs.token_logprobs.11"),
       "a text goes on, with log-probabilities", r.body.data);
    reply_free_all(&r);
    struct reply ids = http_ask(port, "/tokenize", "{\"prompt\":\"The tar command\"}");
    char body[512];
    snprintf(body, sizeof body, "{\"prompt\":%.300s,\"max_tokens\":12,\"temperature\":0}",
             json_at(ids.body.data, "tokens"));
    r = http_ask(port, "/v1/completions", body);
    ok(!strcmp(text, json_at(r.body.data, "choices.0.text")), "token ids go on like their text", r.body.data);
    snprintf(body, sizeof body, "{\"tokens\":%.300s}", json_at(ids.body.data, "tokens"));
    struct reply back = http_ask(port, "/detokenize", body);
    ok(!strcmp(json_at(back.body.data, "prompt"), "The tar command"), "tokens become their text again", back.body.data);
    reply_free_all(&back), reply_free_all(&ids), reply_free_all(&r);
    r = http_ask(port, "/v1/completions",
                 "{\"prompt\":\"The tar command\",\"max_tokens\":12,\"temperature\":0,\"stream\":true}");
    char *streamed = stream_text(r.body.data, NULL);
    ok(!strcmp(streamed, text), "a streamed completion is the same", streamed);
    free(streamed), free(text);
    reply_free_all(&r);
    r = http_ask(port, "/v1/completions", "{\"prompt\":[[1,2,3]],\"max_tokens\":3,\"ignore_eos\":true}");
    ok(!strcmp(json_at(r.body.data, "usage.completion_tokens"), "3") &&
           !strcmp(json_at(r.body.data, "choices.0.finish_reason"), "length"),
       "a limit is counted and told", r.body.data);
    reply_free_all(&r);
}

// No beginning of the stop string reaches the client, wherever tokens cut it.
static void stops(void)
{
    static const char *const stop[] = {"archiv", "n arch", "utility."};
    struct reply r = http_ask(port, CHAT, "{" ASK ",\"max_tokens\":30,\"temperature\":0}");
    char *full = strdup(json_at(r.body.data, "choices.0.message.content"));
    reply_free_all(&r);
    for (size_t i = 0; i < sizeof stop / sizeof *stop; i++) {
        char body[512], name[64];
        const char *at = strstr(full, stop[i]);
        snprintf(name, sizeof name, "red control: \"%s\" is in the text without a stop", stop[i]);
        ok(at != NULL, name, full);
        for (int streamed = 0; streamed < 2; streamed++) {
            snprintf(body, sizeof body, "{" ASK ",\"max_tokens\":30,\"temperature\":0,\"stop\":[\"%s\"],\"stream\":%s}",
                     stop[i], streamed ? "true" : "false");
            r = http_ask(port, CHAT, body);
            char *text =
                streamed ? stream_text(r.body.data, NULL) : strdup(json_at(r.body.data, "choices.0.message.content"));
            snprintf(name, sizeof name, "it ends before \"%s\", %s", stop[i], streamed ? "streamed" : "whole");
            ok(at && strlen(text) == (size_t)(at - full) && !strncmp(text, full, strlen(text)) &&
                   strstr(r.body.data, "\"stop\""),
               name, text);
            free(text);
            reply_free_all(&r);
        }
    }
    free(full);
}

static void messages(void)
{
    struct reply r =
        http_ask(port, "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"a<|im_end|><think>b\"}]}");
    const char *ids = json_at(r.body.data, "tokens");
    const char *first = strstr(ids, "6137");
    ok(r.status == 200 && first && !strstr(first + 4, "6137") && !strstr(ids, "6138"),
       "control tokens in a message stay text", ids);
    reply_free_all(&r);
    struct reply a = http_ask(
        port, "/tokenize",
        "{\"messages\":[{\"role\":\"system\",\"content\":\"x\\n\\ny\"},{\"role\":\"user\",\"content\":\"ab\"}]}");
    r = http_ask(port, "/tokenize",
                 "{\"messages\":[{\"role\":\"developer\",\"content\":\"x\"},{\"role\":\"system\",\"content\":\"y\"},{"
                 "\"role\":\"user\",\"content\":"
                 "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]}");
    ok(a.status == 200 && !strcmp(json_at(a.body.data, "tokens"), json_at(r.body.data, "tokens")),
       "developer joins system, parts join", r.body.data);
    reply_free_all(&r), reply_free_all(&a);
    refused(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400, "content[0]",
            "an image is refused");
    refused(CHAT, "{\"messages\":[{\"role\":\"robot\",\"content\":\"\"}]}", 400, "messages[0].role",
            "an unknown role is refused");
    refused(CHAT, "{\"messages\":[]}", 400, "messages", "no messages are refused");
    refused(CHAT,
            "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"[1\"}"
            "}]}]}",
            400, "arguments", "arguments that are no object are refused");
    refused(CHAT, "{" ASK ",\"tools\":[{}]}", 400, "tools[0]", "a tool without a name is refused");
    refused(CHAT, "{" ASK ",\"tool_choice\":\"required\"}", 400, "tools", "a call of nothing is refused");
    refused(CHAT, "{" ASK ",\"model\":\"three\"}", 404, "three", "another model is not found");
    refused(CHAT, "{" ASK ",\"max_tokens\":100000}", 400, "This server's maximum context length is 512 tokens",
            "a context overflow says so");
    refused("/v1/completions", "{\"prompt\":[1,2,999999]}", 400, "prompt[2]",
            "an id outside the vocabulary is refused");
    refused("/v1/completions", "{\"prompt\":\"\"}", 400, "at least one token", "an empty prompt is refused");
}

// ---- what is refused ---------------------------------------------------------------------------------------------------------------

static void ranges(void)
{
    static const struct {
        const char *field, *bad[5];
    } rows[] = {
        {"temperature", {"-0.1", "1e308", "true", "\"1\"", "[]"}},
        {"top_p", {"-1", "1.01", "false", "\"\"", "{}"}},
        {"min_p", {"-1", "2", "true", "\"\"", "1e300"}},
        {"top_k", {"1.5", "-2", "3000000000", "true", "\"4\""}},
        {"seed", {"1.5", "1e300", "true", "\"4\"", "[1]"}},
        {"max_tokens", {"0", "-1", "1.5", "true", "1e308"}},
        {"max_completion_tokens", {"0", "-9223372036854775808", "0.5", "\"1\"", "1e18"}},
        {"n", {"0", "2", "-1", "true", "1e9"}},
        {"presence_penalty", {"-2.1", "2.1", "true", "\"0\"", "1e308"}},
        {"frequency_penalty", {"-3", "3", "true", "\"0\"", "1e308"}},
        {"repetition_penalty", {"0", "-1", "101", "true", "\"1\""}},
        {"top_logprobs", {"-1", "21", "1.5", "true", "5"}},
        {"thinking_budget", {"-1", "1.5", "true", "1e300", "\"\""}},
        {"stream", {"1", "\"true\"", "[]", "{}", "0.5"}},
        {"ignore_eos", {"1", "\"true\"", "[]", "{}", "0"}},
        {"draft", {"1", "\"false\"", "[]", "{}", "0"}},
        {"logprobs", {"1", "\"true\"", "[]", "{}", "0"}},
        {"stop", {"1", "[1]", "\"\"", "[\"\"]", "{}"}},
        {"logit_bias", {"1", "{\"x\":1}", "{\"-1\":1}", "{\"1\":101}", "{\"999999\":1}"}},
        {"priority", {"true", "0", "\"high\"", "\"\"", "[\"background\"]"}},
        {"stream_options", {"1", "true", "\"x\"", "[]", "{\"include_usage\":1}"}},
        {"reasoning_effort", {"1", "\"lots\"", "[]", "true", "{}"}},
        {"chat_template_kwargs", {"1", "\"x\"", "[]", "true", "{\"messages\":[]}"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool good = true;
        char body[512], last[600] = "";
        for (int j = 0; j < 5; j++) {
            snprintf(body, sizeof body, "{" ASK ",\"stream\":%s,\"%s\":%s}",
                     strcmp(rows[i].field, "stream") ? "true" : "false", rows[i].field, rows[i].bad[j]);
            if (!strcmp(rows[i].field, "stream"))
                snprintf(body, sizeof body, "{" ASK ",\"stream\":%s}", rows[i].bad[j]);
            struct reply r = http_ask(port, CHAT, body);
            bool one = r.status == 400 && r.body.data &&
                       (strstr(json_at(r.body.data, "error.message"), rows[i].field) ||
                        !strcmp(rows[i].field, "chat_template_kwargs"));
            if (!one)
                snprintf(last, sizeof last, "%.80s: %d %.400s", rows[i].bad[j], r.status,
                         r.body.data ? r.body.data : "");
            good = good && one;
            reply_free_all(&r);
        }
        snprintf(body, sizeof body, "%s: five values out of range are 400 and named", rows[i].field);
        ok(good, body, last);
    }
}

static void bodies(void)
{
    static const struct {
        const char *body, *text;
    } rows[] = {
        {"", "empty"},
        {"[]", "must be a JSON object, found []"},
        {"null", "must be a JSON object, found null"},
        {"3", "must be a JSON object, found 3"},
        {"{", "not valid JSON"},
        {"{\"a\":1,\"a\":2}", "not valid JSON"},
        {"{\"a\":1e400}", "a number is too large"},
        {"{\"a\":NaN}", "not valid JSON"},
        {"{\"a\":\"\\u0000\"}", "the body, line 1, column 13: the character \\u0000 (NUL) cannot be"},
        {"{\"a\\u0000\":1}", "the character \\u0000 (NUL) cannot be"},
        {"{\"a\":\"\xff\xfe\"}", "not valid JSON"},
        {"{\"a\":99999999999999999999}", "messages: an array"},
        {"{\"a\":\"\\ud800\"}", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(CHAT, rows[i].body, 400, rows[i].text, i < 5 ? rows[i].text : rows[i].body);
    enum { DEEP = 1000000 };
    char *deep = malloc(DEEP + 1);
    memset(deep, '[', DEEP);
    deep[DEEP] = '\0';
    refused(CHAT, deep, 400, "nested", "a million brackets are refused");
    memset(deep, ',', DEEP);
    deep[0] = '[';
    memcpy(deep + 1, "1", 1);
    char *many = malloc(3 * DEEP + 16);
    strcpy(many, "{\"a\":[1");
    size_t at = strlen(many);
    for (int i = 0; i < DEEP + 100000; i++, at += 2)
        memcpy(many + at, ",1", 2);
    strcpy(many + at, "]}");
    refused(CHAT, many, 400, "more than", "more than 2^20 values are refused");
    free(deep), free(many);
}

// A schema with alternatives that nothing tells apart: one text can be read in more ways than are followed.
static char *ambiguous(const char *before, const char *after, bool stream)
{
    enum { ALTERNATIVES = 70 };
    char *body = malloc(8192), *at = body;
    at += sprintf(at,
                  "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":0,\"stream\":%s,"
                  "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":%s{\"anyOf\":[",
                  stream ? "true" : "false", before);
    for (int i = 0; i < ALTERNATIVES; i++)
        at += sprintf(at, "%s{\"type\":\"string\",\"pattern\":\"a*%.*s\"}", i ? "," : "", i,
                      "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb");
    sprintf(at, "]}%s}}}", after);
    return body;
}

static void forms(void)
{
    static const char before[] = "{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false,"
                                 "\"properties\":{\"a\":";
    for (int late = 0; late < 2; late++) {
        char *body = ambiguous(late ? before : "", late ? "}}" : "", false);
        struct reply r = http_ask(port, CHAT, body);
        ok(r.status == 400 &&
               strstr(json_at(r.body.data, "error.message"), "response_format: the grammar is too ambiguous") &&
               !strcmp(json_at(r.body.data, "error.param"), "response_format") &&
               !strcmp(json_at(r.body.data, "error.type"), "invalid_request_error"),
           late ? "and when that shows in the middle of the reply" : "a form that is too ambiguous to follow is 400",
           r.body.data);
        reply_free_all(&r);
        free(body);
    }
    char *body = ambiguous(before, "}}", true), *last;
    struct reply r = http_ask(port, CHAT, body);
    free(stream_text(r.body.data, &last));
    ok(r.status == 200 && strstr(json_at(last, "error.message"), "too ambiguous") &&
           !strcmp(json_at(last, "error.type"), "invalid_request_error"),
       "a stream ends with an event that says so", r.body.data);
    free(last);
    free(body);
    reply_free_all(&r);
}

// A fault is said of the field that has it.
static void fields(void)
{
    static const struct {
        const char *body, *param;
    } rows[] = {
        {"{" ASK ",\"tools\":{}}", "tools"},
        {"{" ASK ",\"tools\":[{\"function\":{\"name\":1}}]}", "tools"},
        {"{" ASK ",\"chat_template_kwargs\":1}", "chat_template_kwargs"},
        {"{\"messages\":[{\"role\":\"robot\"}]}", "messages"},
        {"{\"messages\":3,\"tools\":[]}", "messages"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[80];
        struct reply r = http_ask(port, CHAT, rows[i].body);
        snprintf(name, sizeof name, "%s: what is wrong with it names it (%zu)", rows[i].param, i);
        ok(r.status == 400 && !strcmp(json_at(r.body.data, "error.param"), rows[i].param), name, r.body.data);
        reply_free_all(&r);
    }
}

// ---- several at once ---------------------------------------------------------------------------------------------------------------

static void together(void)
{
    enum { STREAMS = 10 };
    static const char *const words[] = {"tar", "grep", "ls", "cp", "find"};
    char body[STREAMS][512], *alone[STREAMS];
    int fd[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        snprintf(body[i], sizeof *body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"What does %s "
                 "do?\"}],\"max_tokens\":%d,\"temperature\":%d,\"seed\":%d,"
                 "\"ignore_eos\":true%s}",
                 words[i % 5], 20 + 7 * i, i % 2, i, i % 3 == 2 ? ",\"priority\":\"background\"" : "");
        alone[i] = sha_of(body[i]);
    }
    for (int i = 0; i < STREAMS; i++) {
        fd[i] = http_connect(port);
        http_post(fd[i], CHAT, NULL, body[i]);
    }
    int equal = 0;
    for (int i = 0; i < STREAMS; i++) {
        struct reply r = http_read(fd[i]);
        equal += strlen(alone[i]) == 64 && !strcmp(alone[i], json_at(r.body.data, "pianola.token_sha"));
        reply_free_all(&r);
        close(fd[i]);
        free(alone[i]);
    }
    snprintf(body[0], sizeof *body, "%d of %d", equal, STREAMS);
    ok(equal == STREAMS, "ten at once on four lanes, three in the background: each as alone", body[0]);
}

static void load(void)
{
    int fd = http_connect(port);
    http_post(fd, CHAT, NULL, "{" ASK ",\"max_tokens\":400,\"ignore_eos\":true}");
    const double until = http_now() + WAIT_SECONDS;
    while (!server_load(port) && http_now() < until)
        http_sleep(0.001);
    ok(server_load(port) > 0, "red control: a reply that runs is seen as load", NULL);
    close(fd);
    ok(server_rests(port), "its client is gone: lane and pages are back", NULL);
}

// ---- keys, and the end -------------------------------------------------------------------------------------------------------------

static int status_with(const char *path, const char *header)
{
    char request[512];
    int bytes = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: t\r\n%s\r\n", path, header);
    struct reply r = http_raw(port, request, (size_t)bytes);
    int status = r.status;
    if (status == 401 && !reply_header(&r, "WWW-Authenticate"))
        status = -401;
    reply_free_all(&r);
    return status;
}

static bool write_keys(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    bool good = file && fputs(text, file) >= 0;
    return file && !fclose(file) && !chmod(path, 0600) && good;
}

static void keys(void)
{
    const char *path = "build/tests/server.keys";
    const char *const arguments[] = {"--quiet", "--context",      "512", "--parallel", "1", "--prompt-cache-gib",
                                     "0",       "--api-key-file", path,  NULL};
    ok(write_keys(path, "# who\nalice: secret-1\nbob:secret-2\n"), "a key file is written", NULL);
    struct served s = serve_start(arguments);
    port = s.port;
    ok(status_with("/v1/models", "") == 401 && status_with("/nowhere", "") == 401 && status_with("/metrics", "") == 401,
       "without a key everything is 401, with WWW-Authenticate", NULL);
    ok(status_with("/health", "") == 200, "but not /health", NULL);
    ok(status_with("/v1/models", "Authorization: Bearer secret-1\r\n") == 200 &&
           status_with("/v1/models", "x-api-key: secret-2\r\n") == 200,
       "with a key it is 200", NULL);
    struct reply r = http_raw(port, "GET /v1/models\0 HTTP/1.1\r\nHost: t\r\n\r\n", 38);
    ok(r.status == 401 || r.status == 400, "a NUL in a path is no way around it", r.raw.data);
    reply_free_all(&r);
    ok(status_with("/v1/models", "Authorization: Bearer secret-\r\n") == 401 &&
           status_with("/v1/models", "Authorization: Bearer\r\n") == 401 && status_with("/%76%31/models", "") == 401 &&
           status_with("//v1/models", "") == 401 && status_with("/health/../v1/models", "") == 401,
       "no way around it", NULL);
    write_keys(path, "carol: secret-3\n");
    kill(s.pid, SIGHUP);
    const double until = http_now() + WAIT_SECONDS;
    while (status_with("/v1/models", "x-api-key: secret-3\r\n") != 200 && http_now() < until)
        http_sleep(0.01);
    ok(status_with("/v1/models", "x-api-key: secret-1\r\n") == 401 &&
           status_with("/v1/models", "x-api-key: secret-3\r\n") == 200,
       "SIGHUP reads the keys again", NULL);
    ok(serve_stop(&s) == 0, "SIGTERM ends it with code 0", NULL);
    unlink(path);
}

static void drain(struct served *s)
{
    int fd = http_connect(port);
    http_post(fd, CHAT, NULL, "{" ASK ",\"max_tokens\":100,\"ignore_eos\":true,\"stream\":true}");
    char first[64];
    bool begun = recv(fd, first, sizeof first, MSG_PEEK) > 0;
    kill(s->pid, SIGTERM);
    struct reply r = http_read(fd);
    ok(begun && r.status == 200 && strstr(r.body.data, "[DONE]") && strstr(r.body.data, "\"completion_tokens\":100"),
       "SIGTERM: a reply that runs is finished",
       r.raw.data ? r.raw.data + (r.raw.count > 300 ? r.raw.count - 300 : 0) : "");
    reply_free_all(&r);
    close(fd);
    ok(serve_wait(s) == 0, "then the server ends with code 0", NULL);
    ok(http_connect(port) < 0, "and nobody listens", NULL);
}

int main(void)
{
    const char *const arguments[] = {"--quiet", "--context", "512", "--parallel", "4",  "--name",
                                     "one",     "--alias",   "two", "--alias",    LONG, NULL};
    struct served s = serve_start(arguments);
    port = s.port;
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    ok(port > 0, "the server listens", NULL);
    if (!port)
        return done();
    pages();
    whole_and_streamed();
    gaps();
    completions();
    stops();
    messages();
    ranges();
    bodies();
    forms();
    fields();
    heads();
    methods();
    one_line();
    long_body();
    tokens_of_long_texts(s.pid);
    tokens_unread(s.pid);
    together();
    load();
    drain(&s);
    keys();
    return done();
}
