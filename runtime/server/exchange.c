// SPDX-License-Identifier: Apache-2.0
//
// One request and its reply: output towards the connection, requests towards the engine. See exchange.h.

#include "runtime/json_exact.h"
#include "runtime/server/exchange_side.h"
#include "runtime/server/input.h"
#include "runtime/server/watch.h"
#include "runtime/server/workers.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- life ----------------------------------------------------------------------------------------------------------------------

struct exchange *exchange_new(struct server *server, struct MHD_Connection *connection)
{
    struct exchange *x = calloc(1, sizeof *x);
    struct connection_side *side = calloc(1, sizeof *side);
    if (!x || !side) {
        free(x);
        free(side);
        return NULL;
    }
    pthread_mutex_init(&side->lock, NULL);
    side->connection = connection;
    atomic_init(&side->references, 1);
    side->link = -1;
    x->side = side;
    x->server = server;
    x->started = engine_seconds();
    x->created = (int64_t)time(NULL);
    x->number = atomic_fetch_add(&server->number, 1) + 1;
    snprintf(x->id, sizeof x->id, "%08llx%08llx", (unsigned long long)server->created & 0xffffffff,
             (unsigned long long)x->number);
    snprintf(x->label, sizeof x->label, "-");
    atomic_fetch_add(&server->exchanges, 1);
    return x;
}

void exchange_hold(struct exchange *x)
{
    atomic_fetch_add(&x->side->references, 1);
}

void exchange_done(struct exchange *x)
{
    const bool large = x->body && x->body_bytes >= BODY_LARGE;
    if (x->dialect)
        x->dialect->release(x);
    answer_close(&x->answer);
    job_free(x->job);
    free(x->body);
    atomic_fetch_sub(&x->server->body_bytes, (int_fast64_t)x->side->counted);
    x->dialect = NULL;
    x->conversation = NULL; // was a part of the state
    x->job = NULL;
    x->body = NULL;
    x->side->counted = 0;
    if (large)
        atomic_store(&x->server->large, true);
}

// Bytes of output are held, or given back where negative. Lock held, or nobody else is there.
static void book(struct exchange *x, ptrdiff_t bytes)
{
    x->side->out_room += (size_t)bytes;
    atomic_fetch_add(&x->server->reply_bytes, bytes);
}

// Whether output of so many bytes, which waits to be read, is too much beside that of others.
static bool crowded(const struct exchange *x, size_t bytes)
{
    const int_fast64_t held = atomic_load(&x->server->reply_bytes);
    return (bytes > REPLY_SMALL && held > REPLIES_MOST) || (bytes > REPLY_LEAST && held > 2 * REPLIES_MOST);
}

void exchange_drop(struct exchange *x)
{
    struct connection_side *side = x->side;
    if (atomic_fetch_sub(&side->references, 1) > 1)
        return;
    struct server *server = x->server;
    const bool large = side->out_room >= BODY_LARGE;
    exchange_done(x);
    book(x, -(ptrdiff_t)side->out_room);
    pthread_mutex_destroy(&side->lock);
    free(side->out);
    free(side);
    free(x);
    if (large)
        atomic_store(&server->large, true);
    atomic_fetch_sub(&server->exchanges, 1);
}

// ---- output --------------------------------------------------------------------------------------------------------------------

void side_resume(struct connection_side *side)
{
    if (!side->suspended || !side->connection)
        return;
    side->suspended = false;
    MHD_resume_connection(side->connection);
}

// Ends the reply where it is: the client, which may not be reading at all, sees it cut. Lock held.
static void cut(struct exchange *x)
{
    struct connection_side *side = x->side;
    side->gone = side->cut = true;
    book(x, -(ptrdiff_t)side->out_room);
    free(side->out);
    side->out = NULL;
    side->out_bytes = side->out_taken = 0;
    if (side->connection && side->link >= 0)
        watch_deadline(x->server->watch, side->link, CUT_SECONDS);
    side_resume(side);
}

// Appends to what the connection will send. Lock held. What cannot be kept ends the reply.
static void put(struct exchange *x, const char *bytes, size_t count)
{
    struct connection_side *side = x->side;
    if (side->gone || side->closed)
        return;
    if (side->out_room - side->out_bytes < count && side->out_taken) {
        side->out_bytes -= side->out_taken;
        memmove(side->out, side->out + side->out_taken, side->out_bytes);
        side->out_taken = 0;
    }
    if (side->out_room - side->out_bytes < count) {
        size_t room = 2 * side->out_bytes + count + 256;
        char *longer = crowded(x, side->out_bytes + count) ? NULL : realloc(side->out, room);
        if (!longer) {
            cut(x);
            return;
        }
        side->out = longer;
        book(x, (ptrdiff_t)(room - side->out_room));
    }
    memcpy(side->out + side->out_bytes, bytes, count);
    side->out_bytes += count;
    side->put = engine_seconds();
}

void exchange_own(struct exchange *x, int status, const char *type, char *text, size_t bytes)
{
    struct connection_side *side = x->side;
    if (crowded(x, bytes)) {
        free(text);
        exchange_error(x, 503, NULL, NULL, NULL,
                       "replies of more than %d MiB wait to be read by their clients; try again later",
                       REPLIES_MOST >> 20);
        return;
    }
    pthread_mutex_lock(&side->lock);
    const bool taken = side->state == SIDE_NOTHING;
    if (taken) {
        side->state = SIDE_WHOLE;
        side->status = status;
        side->type = type;
        side->out = text;
        side->out_bytes = bytes;
        book(x, (ptrdiff_t)bytes);
        side->closed = true;
        side_resume(side);
    }
    pthread_mutex_unlock(&side->lock);
    if (!taken)
        free(text);
}

void exchange_text(struct exchange *x, int status, const char *type, const char *text, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    exchange_own(x, status, type, copy ? memcpy(copy, text, bytes) : NULL, copy ? bytes : 0);
}

void exchange_json(struct exchange *x, int status, json_t *body)
{
    char *text = body ? json_exact_dump(body, NULL) : NULL;
    static const char lost[] = "{\"error\":{\"message\":\"no memory for the reply\",\"type\":\"server_error\","
                               "\"param\":null,\"code\":null}}";
    json_decref(body);
    if (text)
        exchange_own(x, status, "application/json", text, strlen(text));
    else
        exchange_text(x, 500, "application/json", lost, strlen(lost));
}

void exchange_stream(struct exchange *x)
{
    struct connection_side *side = x->side;
    pthread_mutex_lock(&side->lock);
    if (side->state == SIDE_NOTHING) {
        side->state = SIDE_STREAM;
        side->put = engine_seconds(); // its first event is still to come
        side->status = 200;
        side->type = "text/event-stream";
        side_resume(side);
    }
    pthread_mutex_unlock(&side->lock);
}

static void put_event(struct exchange *x, const char *name, const char *data)
{
    struct connection_side *side = x->side;
    pthread_mutex_lock(&side->lock);
    if (name) {
        put(x, "event: ", 7);
        put(x, name, strlen(name));
        put(x, "\n", 1);
    }
    put(x, "data: ", 6);
    put(x, data, strlen(data));
    put(x, "\n\n", 2);
    side_resume(side);
    pthread_mutex_unlock(&side->lock);
}

void exchange_event(struct exchange *x, const char *name, json_t *data)
{
    char *text = data ? json_exact_dump(data, NULL) : NULL;
    if (text)
        put_event(x, name, text);
    free(text);
    json_decref(data);
}

void exchange_quiet(struct exchange *x)
{
    struct connection_side *side = x->side;
    pthread_mutex_lock(&side->lock);
    if (side->state == SIDE_STREAM && !side->closed && side->out_taken == side->out_bytes &&
        engine_seconds() - side->put > QUIET_SECONDS) {
        put(x, ":\n\n", 3);
        side_resume(side);
    }
    pthread_mutex_unlock(&side->lock);
}

void exchange_line(struct exchange *x, const char *data)
{
    put_event(x, NULL, data);
}

void exchange_close(struct exchange *x)
{
    pthread_mutex_lock(&x->side->lock);
    x->side->closed = true;
    if (!x->side->gone && x->side->connection && x->side->link >= 0) // a reply that is cut has its own, shorter one
        watch_deadline(x->server->watch, x->side->link, READ_SECONDS);
    side_resume(x->side);
    pthread_mutex_unlock(&x->side->lock);
}

bool exchange_opened(const struct exchange *x)
{
    pthread_mutex_lock(&x->side->lock);
    bool opened = x->side->state != SIDE_NOTHING;
    pthread_mutex_unlock(&x->side->lock);
    return opened;
}

const char *exchange_error_type(int status, enum error_style style)
{
    if (style == STYLE_ANTHROPIC)
        return status == 401   ? "authentication_error"
               : status == 404 ? "not_found_error"
               : status == 413 ? "request_too_large"
               : status == 429 ? "rate_limit_error"
               : status == 503 ? "overloaded_error"
               : status >= 500 ? "api_error"
                               : "invalid_request_error";
    return status == 401   ? "authentication_error"
           : status == 404 ? "not_found_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

void exchange_error(struct exchange *x, int status, const char *type, const char *code, const char *param,
                    const char *format, ...)
{
    char text[768];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    const enum error_style style = x->route ? x->route->style : STYLE_OPENAI;
    for (char *c = text; *c; c++) // it quotes the request, and is one line
        *c = (unsigned char)*c < ' ' || *c == 127 ? '?' : *c;
    json_t *message = json_string(text);
    for (char *c = message ? NULL : text; c && *c; c++) // it quotes bytes that are no UTF-8, or a part of a character
        *c = *c & 0x80 ? '?' : *c;
    message = message ? message : json_string(text);
    type = type ? type : exchange_error_type(status, style);
    if (style == STYLE_ANTHROPIC)
        exchange_json(x, status,
                      json_pack("{s:s, s:{s:s, s:o}}", "type", "error", "error", "type", type, "message", message));
    else
        exchange_json(x, status,
                      json_pack("{s:{s:o, s:s, s:s?, s:s?}}", "error", "message", message, "type", type, "param", param,
                                "code", code));
}

// ---- asking --------------------------------------------------------------------------------------------------------------------

json_t *exchange_input(struct exchange *x)
{
    struct error error = {0};
    json_t *root = input_parse("the body", x->body, x->body_bytes, &error);
    if (!root)
        exchange_error(x, 400, NULL, NULL, NULL, "%s", error.text);
    return root;
}

static void news(void *user)
{
    exchange_wake(user);
}

static void pass_on(void *user, const struct reply_event *event)
{
    struct exchange *x = user;
    x->dialect->piece(x, event);
}

// Whether the job fits; with an error sent when it does not.
static bool fits(struct exchange *x, struct job *job, const char *param)
{
    const int context = x->server->context, left = context - job->count;
    if (job->count < 1) {
        exchange_error(x, 400, NULL, NULL, param, "%s: a prompt needs at least one token", param);
        return false;
    }
    if (left < 1 || job->reply > left) {
        // Clients know an overflow by how this sentence begins.
        exchange_error(
            x, 400, NULL, "context_length_exceeded", param,
            "This server's maximum context length is %d tokens. However, you requested %d tokens (%d in the %s, "
            "%d for the reply). Please shorten the %s or ask for a shorter reply.",
            context, job->count + (job->reply > 0 ? job->reply : 1), job->count, param, job->reply > 0 ? job->reply : 1,
            param);
        return false;
    }
    if (job->reply < 1)
        job->reply = left < x->server->options.max_tokens ? left : x->server->options.max_tokens;
    return true;
}

bool exchange_submit(struct exchange *x, struct job *job, const struct dialect *dialect,
                     const struct answer_rules *rules, const char *param)
{
    struct error error = {0};
    x->job = job;
    x->dialect = dialect;
    if (!fits(x, job, param))
        return false;
    if (atomic_load(&x->server->jobs) >= JOBS_MOST) {
        exchange_error(x, 429, NULL, NULL, NULL, "%d requests wait already; try again later", JOBS_MOST);
        return false;
    }
    x->side->prompt_count = job->count;
    x->side->budget = rules->budget;
    x->side->forced = rules->forced;
    if (!job_prepare(job, &error) || !answer_open(&x->answer, x->tokenizer, rules, pass_on, x, &error)) {
        exchange_error(x, error.code == 2 ? 400 : 500, NULL, NULL, NULL, "%s", error.text);
        return false;
    }
    job->changed = news;
    job->user = x;
    x->side->param = param;
    exchange_hold(x); // the engine's, until the last news
    atomic_fetch_add(&x->server->jobs, 1);
    host_submit(x->server->host, job);
    return true;
}

void exchange_gone(struct exchange *x)
{
    pthread_mutex_lock(&x->side->lock);
    x->side->gone = true;
    side_resume(x->side);
    pthread_mutex_unlock(&x->side->lock);
    exchange_wake(x);
}

bool exchange_is_gone(struct exchange *x)
{
    pthread_mutex_lock(&x->side->lock);
    bool is = x->side->gone;
    pthread_mutex_unlock(&x->side->lock);
    return is;
}

const char *exchange_came_out(struct exchange *x, const char *reason)
{
    pthread_mutex_lock(&x->side->lock);
    reason = x->side->cut ? "cancelled" : x->side->status >= 500 ? "failed" : reason;
    pthread_mutex_unlock(&x->side->lock);
    return reason;
}

// ---- in a worker -------------------------------------------------------------------------------------------------------------

void exchange_wake(struct exchange *x)
{
    workers_add(x->server->workers, x);
}

void exchange_run(struct exchange *x, struct tokenizer *tokenizer)
{
    x->tokenizer = tokenizer;
    if (!x->side->handled) {
        x->side->handled = true;
        if (exchange_is_gone(x))
            return;
        x->route->handle(x);
        if (!x->job && !exchange_opened(x))
            exchange_error(x, 500, NULL, NULL, NULL, "the request was not answered");
        if (!x->job || !x->job->user)
            exchange_done(x);
        return;
    }
    if (x->job && x->job->user)
        exchange_progress(x);
}
