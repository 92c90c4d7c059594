// SPDX-License-Identifier: Apache-2.0
//
// News of a job: tokens to the dialect, the end, and text of ours that goes into a reply.
//
// A reply that must close its reasoning, or begin with a call, gets that text in place of a token: the job is cancelled, and asked
// anew with what was said so far and the text as its prompt. Which token that is follows from the tokens before it alone, so
// such replies are as exact as all others.

#include "runtime/server/exchange_side.h"
#include "runtime/server/log.h"
#include "runtime/server/warm.h"

#include <stdlib.h>
#include <string.h>

// ---- the end ----------------------------------------------------------------------------------------------------------------------

struct news {
    enum job_stage stage;
    int made;
    struct stream_counters counters;
    double submitted, first, ended;
    struct error cause;
};

static void look(struct job *job, struct news *n)
{
    pthread_mutex_lock(&job->lock);
    n->stage = job->stage;
    n->made = job->made;
    n->counters = job->counters;
    n->submitted = job->submitted;
    n->first = job->first;
    n->ended = job->ended;
    n->cause = job->cause;
    pthread_mutex_unlock(&job->lock);
}

static void sum_up(struct exchange *x, const struct news *n, struct outcome *o)
{
    const struct answer *a = &x->answer;
    const double first = n->first > 0 ? n->first : n->ended;
    const char *reason = n->stage == JOB_FINISHED && a->tokens >= x->job->reply && !a->ended ? "length" : "stop";
    *o = (struct outcome){
        .reason = a->call_count && !strcmp(reason, "stop") ? "tool_calls" : reason,
        .prompt_tokens = x->side->prompt_count,
        .cached_tokens = (int)n->counters.cached_tokens,
        .reply_tokens = a->tokens,
        .reasoning_tokens = a->reasoning_tokens,
        .counters = &n->counters,
        .prompt = n->counters.prompt_seconds,
        .first = first - n->submitted,
        .decode = n->ended - first,
        .total = n->ended - n->submitted,
    };
    sha256_hex(&a->hash, o->token_sha);
}

static void report(struct exchange *x, const struct news *n, const char *end)
{
    struct outcome o;
    sum_up(x, n, &o);
    metrics_reply(&x->server->metrics, x->label, &o, end);
    log_reply(x, &o, end);
}

static const char *end_name(const struct exchange *x, enum job_stage stage)
{
    switch (stage) {
    case JOB_CANCELLED:
        return x->answer.stopped ? "stop" : "cancelled";
    case JOB_REFUSED:
    case JOB_STUCK:
        return "refused";
    case JOB_FAILED:
    case JOB_DEAD:
        return "failed";
    default:
        return NULL;
    }
}

// The reply cannot go on: an error where nothing was sent yet, else what the dialect has for that.
static void fail(struct exchange *x, int status, const char *param, const char *message)
{
    if (!exchange_opened(x)) {
        exchange_error(x, status, NULL, NULL, param, "%s", message);
        return;
    }
    x->dialect->fail(x, exchange_error_type(status, x->route->style), message);
    exchange_close(x);
}

// The form that was asked for cannot be followed: asking again would not help.
static void stuck(struct exchange *x, const char *why)
{
    const char *field = x->job->grammar_field ? x->job->grammar_field : "response_format";
    char text[sizeof((struct error *)0)->text];
    snprintf(text, sizeof text, "%s: %.400s", field, why);
    fail(x, 400, field, text);
}

static void finish(struct exchange *x, const struct news *n)
{
    struct error cause = n->cause;
    enum job_stage stage = n->stage;
    const bool away = exchange_is_gone(x), stopped = x->answer.stopped;
    if (!away && stage != JOB_REFUSED)
        answer_end(&x->answer);
    if (x->answer.failed) {
        stage = JOB_FAILED;
        error_set(&cause, "no memory for the reply's text");
    }
    if (!away && (stage == JOB_FINISHED || (stage == JOB_CANCELLED && stopped))) {
        struct outcome o;
        sum_up(x, n, &o);
        x->dialect->end(x, &o);
        exchange_close(x);
        report(x, n, exchange_came_out(x, o.reason));
        warm_offer(x->server->warm, x);
    } else {
        if (!away && stage == JOB_REFUSED)
            fail(x, 400, x->side->param, cause.text);
        else if (!away && stage == JOB_STUCK)
            stuck(x, cause.text);
        else if (!away && stage == JOB_CANCELLED)
            fail(x, 503, NULL, "the server ends; ask again when it is back");
        else if (!away)
            fail(x, stage == JOB_DEAD ? 503 : 500, NULL, *cause.text ? cause.text : "the reply could not be made");
        report(x, n, away ? "cancelled" : end_name(x, stage));
    }
}

// ---- text that goes in ----------------------------------------------------------------------------------------------------------

static void add_counters(struct stream_counters *sum, const struct stream_counters *more)
{
    sum->reply_tokens += more->reply_tokens;
    sum->rounds += more->rounds;
    sum->drafted += more->drafted;
    sum->accepted += more->accepted;
    sum->copied += more->copied;
    sum->copies_accepted += more->copies_accepted;
    sum->prompt_seconds += more->prompt_seconds;
    sum->decode_seconds += more->decode_seconds;
}

// Asks for the job's end, and for `text` in place of what comes after `keep` tokens.
static void insert(struct exchange *x, int keep, const char *text)
{
    x->side->insert = text;
    x->side->keep = keep;
    host_cancel(x->server->host, x->job);
}

// Whether the next token must be another one than the model's: `token` is it, or -1 when it is not known yet.
static bool steer(struct exchange *x, int32_t token)
{
    struct connection_side *side = x->side;
    const bool reasons = answer_reasons(&x->answer);
    // A reply whose form was asked for cannot end before its reasoning does.
    const bool early = reasons && token >= 0 && answer_is_end(token) && (x->job->grammar_after || side->forced);
    if (early || (reasons && side->budget && x->answer.reasoning_tokens >= side->budget - 1)) {
        x->answer.uncounted = side->budget < 0;
        side->budget = 0;
        insert(x, side->fed, x->server->closing);
        return true;
    }
    if (token < 0 || reasons || !side->forced || answer_blank(&x->answer, token))
        return false;
    insert(x, side->fed, side->forced);
    side->forced = NULL;
    return true;
}

// Puts the text behind what was kept, in the prompt of the job and in its reply, as far as the reply's limit goes.
static bool extend(struct exchange *x, struct error *error)
{
    struct job *job = x->job;
    const int keep = x->side->keep, from = job->base;
    int32_t *ids = NULL;
    size_t count = 0;
    if (!tokenizer_encode(x->tokenizer, x->side->insert, strlen(x->side->insert), true, &ids, &count, error))
        return false;
    const int most = job->reply - keep, more = (int)count < most ? (int)count : most;
    int32_t *longer = realloc(job->ids, (size_t)(job->count + keep - from + more) * sizeof *longer);
    if (!longer) {
        free(ids);
        return error_set(error, "no memory for the reply");
    }
    job->ids = longer;
    memcpy(job->tokens + keep, ids, (size_t)more * sizeof *ids);
    memcpy(job->ids + job->count, job->tokens + from, (size_t)(keep - from + more) * sizeof *ids);
    if (job->chances)
        memset(job->chances + keep, 0, (size_t)more * sizeof *job->chances);
    job->count += keep - from + more;
    job->base = job->made = keep + more;
    free(ids);
    return true;
}

// The job has ended for the text's sake: on with it. False when it cannot go on; *n then says how it ended.
static bool go_on(struct exchange *x, struct news *n)
{
    struct job *job = x->job;
    struct error error = {0};
    const bool first = job->base == 0; // it read the prompt that was asked for
    bool ok = extend(x, &error);
    x->side->insert = NULL;
    add_counters(&x->side->earlier, &n->counters);
    if (first)
        x->side->earlier.cached_tokens = n->counters.cached_tokens;
    while (ok && x->side->fed < job->base && answer_feed(&x->answer, job->tokens[x->side->fed], &error))
        x->side->fed++;
    x->answer.uncounted = false;
    n->counters = (struct stream_counters){0};
    if (ok && !x->answer.stopped && !x->answer.failed && job->base < job->reply) {
        atomic_store(&job->cancel, false);
        job->stage = JOB_QUEUED;
        job->replayed = 0;
        host_submit(x->server->host, job);
        return true;
    }
    n->stage = ok ? JOB_FINISHED : JOB_FAILED;
    n->cause = error;
    return false;
}

// ---- news ------------------------------------------------------------------------------------------------------------------------

static void feed(struct exchange *x, int made)
{
    struct connection_side *side = x->side;
    struct error error = {0};
    while (side->fed < made && !side->insert && !x->answer.stopped && !x->answer.failed) {
        const int32_t token = x->job->tokens[side->fed];
        if (steer(x, token))
            return;
        side->fed++;
        if (!answer_feed(&x->answer, token, &error))
            host_cancel(x->server->host, x->job);
    }
    if (!side->insert && !x->answer.stopped && !x->answer.ended && side->fed < x->job->reply)
        steer(x, -1);
}

void exchange_progress(struct exchange *x)
{
    struct connection_side *side = x->side;
    struct news n;
    if (side->over)
        return;
    look(x->job, &n);
    const bool away = exchange_is_gone(x);
    if (away && !job_final(n.stage))
        host_cancel(x->server->host, x->job);
    if (!away && !side->began && (n.stage == JOB_ACCEPTED || n.made > 0 || n.stage == JOB_FINISHED)) {
        side->began = true;
        x->dialect->begin(x);
        answer_begin(&x->answer);
    }
    if (!away && side->began)
        feed(x, n.made);
    if (!job_final(n.stage))
        return;
    if (!away && side->insert && (n.stage == JOB_FINISHED || n.stage == JOB_CANCELLED) && go_on(x, &n))
        return;
    side->over = true;
    add_counters(&n.counters, &side->earlier);
    if (x->job->base > 0)
        n.counters.cached_tokens = side->earlier.cached_tokens;
    finish(x, &n);
    exchange_done(x); // only its output is needed any more
    atomic_fetch_sub(&x->server->jobs, 1);
    exchange_drop(x); // the engine's
}
