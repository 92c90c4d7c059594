// SPDX-License-Identifier: Apache-2.0
//
// The side of an exchange that faces its connection, without one: when a stream that is quiet sends a comment, and what replies
// may hold that nobody reads.

#include "runtime/server/exchange_side.h"
#include "tests/tap.h"

#include <stdlib.h>
#include <string.h>

static struct server server;

static struct exchange *fresh(void)
{
    return exchange_new(&server, NULL);
}

// A whole reply of so many bytes; gives its status.
static int whole(struct exchange *x, size_t bytes)
{
    char *text = calloc(bytes, 1);
    exchange_text(x, 200, "text/plain", text, bytes);
    free(text);
    return x->side->status;
}

// One event of so many bytes.
static void say(struct exchange *x, int bytes)
{
    exchange_event(x, NULL, json_pack("[o]", json_sprintf("%*s", bytes, "")));
}

static void test_room(void)
{
    const int_fast64_t others = REPLIES_MOST + 1; // that wait to be read
    struct exchange *x = fresh();
    ok(whole(x, 3 * REPLY_SMALL) == 200 && atomic_load(&server.reply_bytes) == 3 * REPLY_SMALL,
       "a large reply is booked", NULL);
    exchange_drop(x);
    ok(atomic_load(&server.reply_bytes) == 0, "and no more when it is dropped", NULL);
    atomic_store(&server.reply_bytes, others);
    x = fresh();
    ok(whole(x, REPLY_SMALL) == 200, "beside too many a small reply is taken", NULL);
    exchange_drop(x);
    x = fresh();
    ok(whole(x, REPLY_SMALL + 1) == 503 && x->side->out_bytes < 1024, "and a large one is 503", NULL);
    exchange_drop(x);
    x = fresh();
    exchange_stream(x);
    for (int i = 0; i < 2; i++)
        say(x, 30000);
    ok(!x->side->gone && x->side->out_bytes > 60000, "a stream may grow that far", NULL);
    say(x, 300000);
    ok(x->side->gone && !x->side->out && atomic_load(&server.reply_bytes) == others,
       "a longer one that is not read is cut, and holds nothing", NULL);
    exchange_drop(x);
    atomic_store(&server.reply_bytes, 0);
}

// Many small replies have a bound too.
static void test_small(void)
{
    atomic_store(&server.reply_bytes, 2 * (int_fast64_t)REPLIES_MOST + 1);
    struct exchange *x = fresh();
    ok(whole(x, REPLY_LEAST) == 200, "beside twice too many the smallest replies are taken", NULL);
    exchange_drop(x);
    x = fresh();
    ok(whole(x, REPLY_LEAST + 1) == 503, "and others are 503", NULL);
    exchange_drop(x);
    x = fresh();
    exchange_stream(x);
    for (int i = 0; i < 9 && !x->side->gone; i++)
        say(x, 3000);
    ok(x->side->gone && !x->side->out, "or cut, where they are streams", NULL);
    exchange_drop(x);
    atomic_store(&server.reply_bytes, 0);
}

static int releases;

static void release(struct exchange *x)
{
    (void)x;
    releases++;
}

// What made a reply is not held until its client has read it.
static void test_done(void)
{
    static const struct dialect dialect = {.release = release};
    struct exchange *x = fresh();
    x->dialect = &dialect;
    x->job = job_new();
    x->body = calloc(2 << 20, 1);
    x->body_bytes = 2 << 20;
    x->side->counted = 2 << 20;
    atomic_store(&server.body_bytes, 2 << 20);
    whole(x, 100);
    exchange_done(x);
    ok(releases == 1 && !x->job && !x->body && atomic_load(&server.body_bytes) == 0 && atomic_load(&server.large) &&
           x->side->out_bytes == 100,
       "when a reply is made, its output alone is held", NULL);
    exchange_drop(x);
    ok(releases == 1 && atomic_load(&server.exchanges) == 0, "and given back once", NULL);
}

// ---- how a reply came out --------------------------------------------------------------------------------------------------------

static void begin(struct exchange *x)
{
    if (x->query[0])
        exchange_stream(x);
}

static void end(struct exchange *x, const struct outcome *o)
{
    (void)o;
    if (x->query[0])
        say(x, 300000);
    else
        whole(x, 300000);
}

// A reply that ends while others hold so many bytes; gives how many replies were counted under `kind`.
static int64_t ended(struct tokenizer *tokenizer, int_fast64_t held, bool streamed, enum end_kind kind)
{
    static const struct dialect dialect = {.begin = begin, .end = end, .release = release};
    static const struct route route = {.path = "/"};
    static const struct answer_rules rules = {.reply = {.dialect = REPLY_PLAIN}};
    struct error error = {0};
    struct exchange *x = fresh();
    x->dialect = &dialect;
    x->route = &route;
    x->query[0] = streamed;
    x->job = job_new();
    x->job->reply = 1;
    x->job->user = x;
    x->job->stage = JOB_FINISHED;
    answer_open(&x->answer, tokenizer, &rules, NULL, NULL, &error);
    metrics_open(&server.metrics);
    exchange_hold(x); // as the engine does
    atomic_store(&server.jobs, 1);
    atomic_store(&server.reply_bytes, held);
    exchange_progress(x);
    exchange_drop(x);
    atomic_store(&server.reply_bytes, 0);
    const int64_t count = server.metrics.ends[kind];
    metrics_close(&server.metrics);
    return count;
}

static void test_end(void)
{
    struct tokenizer *tokenizer = NULL;
    struct error error = {0};
    server.options.no_log = true;
    tokenizer_open(&tokenizer, &tokenizer_tables, &error);
    for (int streamed = 0; streamed < 2; streamed++) {
        ok(ended(tokenizer, 0, streamed, END_STOP) == 1, "a reply that is whole is counted as one", NULL);
        ok(ended(tokenizer, REPLIES_MOST + 1, streamed, streamed ? END_CANCELLED : END_FAILED) == 1,
           "one that is lost at its end is not", NULL);
    }
    tokenizer_close(tokenizer);
}

int main(void)
{
    struct exchange *x = fresh();
    struct connection_side *side = x->side;
    exchange_quiet(x);
    ok(side->out_bytes == 0, "what is no stream sends no comment", NULL);
    exchange_stream(x);
    exchange_quiet(x);
    ok(side->out_bytes == 0, "nor does a stream that has just been opened", NULL);
    side->put -= QUIET_SECONDS + 1;
    exchange_quiet(x);
    ok(side->out_bytes == 3 && !memcmp(side->out, ":\n\n", 3), "one that was quiet for long does", NULL);
    side->put -= QUIET_SECONDS + 1;
    exchange_quiet(x);
    ok(side->out_bytes == 3, "but not before the last was taken", NULL);
    side->out_taken = side->out_bytes;
    exchange_event(x, NULL, json_object());
    exchange_quiet(x);
    ok(side->out_bytes - side->out_taken == 10, "nor soon after an event", NULL);
    exchange_drop(x);
    test_room();
    test_small();
    test_done();
    test_end();
    return done();
}
