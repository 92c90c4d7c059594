// SPDX-License-Identifier: Apache-2.0
//
// Starting and ending a server: what is opened in one order is closed in the other.

#include "runtime/server/server.h"
#include "runtime/chat.h"
#include "runtime/server/http.h"
#include "runtime/server/keys.h"
#include "runtime/server/response_store.h"
#include "runtime/server/structured.h"
#include "runtime/server/warm.h"
#include "runtime/server/watch.h"
#include "runtime/server/workers.h"
#include "runtime/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <time.h>

enum { WORKERS = 4 };

static bool open_parts(struct server *s, struct error *error)
{
    struct tokenizer *tokenizer = NULL;
    if (!tokenizer_open(&tokenizer, &tokenizer_tables, error))
        return false;
    tokenizer_close(tokenizer); // it can be opened; each worker has its own
    s->responses = response_store_open(STORE_COUNT, STORE_BYTES);
    if (!s->responses)
        return error_set(error, "no memory for the server");
    return structured_open(&s->structured, error) &&
           (!s->options.key_file || keys_open(&s->keys, s->options.key_file, error)) && http_bind(s, error);
}

bool server_open(struct server **out, const struct server_options *options, struct error *error)
{
    struct server *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return error_set(error, "no memory for the server");
    json_object_seed(0);
    s->options = *options;
    s->socket = -1;
    s->started = engine_seconds();
    s->created = (int64_t)time(NULL);
    s->style = reply_style_of(&chat_template);
    if (s->style.reasoning_close)
        snprintf(s->closing, sizeof s->closing, "\n%s\n\n", s->style.reasoning_close);
    metrics_open(&s->metrics);
    if (!open_parts(s, error)) {
        server_close(s);
        return false;
    }
    *out = s;
    return true;
}

bool server_start(struct server *s, struct engine *engine, struct error *error)
{
    s->engine = engine;
    s->context = engine_longest(engine);
    return host_open(&s->host, s->engine, error) && warm_open(&s->warm, s->host, error) &&
           watch_open(&s->watch, &s->large, error) && workers_open(&s->workers, WORKERS, error) && http_open(s, error);
}

// Waits until nothing is being answered.
static bool settle(struct server *s, double seconds, bool (*hurry)(void *user), void *user)
{
    const double until = engine_seconds() + seconds;
    const struct timespec step = {.tv_nsec = 20 * 1000 * 1000};
    while (atomic_load(&s->exchanges) > 0 && engine_seconds() < until && !(hurry && hurry(user)))
        nanosleep(&step, NULL);
    return atomic_load(&s->exchanges) == 0;
}

void server_drain(struct server *s, double seconds, bool (*hurry)(void *user), void *user)
{
    atomic_store(&s->draining, true);
    http_quiet(s);
    if (settle(s, seconds, hurry, user))
        return;
    watch_cut(s->watch);
    settle(s, 5, NULL, NULL);
}

void server_close(struct server *s)
{
    if (!s)
        return;
    if (s->daemon && !atomic_load(&s->draining))
        server_drain(s, 0, NULL, NULL);
    http_close(s);
    host_close(s->host); // its last news go to the workers
    workers_close(s->workers);
    warm_close(s->warm);
    watch_close(s->watch);
    keys_close(s->keys);
    response_store_close(s->responses);
    structured_close(s->structured);
    metrics_close(&s->metrics);
    free(s);
}
