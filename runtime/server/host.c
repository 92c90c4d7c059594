// SPDX-License-Identifier: Apache-2.0
//
// The engine thread; see host.h.

#include "runtime/server/host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAKE = 64 };
static const double BEAT = 0.5, BACKGROUND_WAIT = 0.15, RATE_SECONDS = 2;

struct list {
    struct job *first, *last;
};

// What had been made at a time.
struct sample {
    double at;
    int64_t reply, prompt;
};

struct host {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    // under lock
    struct list mail;
    bool woken, stop;
    struct host_view view;
    double (*idle)(void *user, struct engine *engine, double since);
    void *idle_user;
    // the engine thread's own
    struct engine *engine;
    struct list live, held; // jobs with a stream; jobs of the background without one
    double worked;          // when there was work, last
    int64_t replays;
    struct sample sample; // that rates are counted from
    bool later, launched; // tokens go out while the next round runs; something was launched in this turn
    bool dead;
    struct error cause;
};

static void append(struct list *list, struct job *job)
{
    job->next = NULL;
    *(list->last ? &list->last->next : &list->first) = job;
    list->last = job;
}

// Takes the job at *link, whose predecessor is `before`, out of its list.
static void unlink_job(struct list *list, struct job **link, struct job *before)
{
    struct job *job = *link;
    *link = job->next;
    if (list->last == job)
        list->last = before;
    job->next = NULL;
}

// ---- ends and deliveries ----------------------------------------------------------------------------------------------------

// The job's last news. It may be freed as soon as the lock is open.
static void end(struct job *job, enum job_stage stage, const struct error *cause)
{
    stream_close(job->stream);
    pthread_mutex_lock(&job->lock);
    job->stream = NULL;
    if (cause)
        job->cause = *cause;
    job->ended = engine_seconds();
    job->stage = stage;
    job->changed(job->user);
    pthread_mutex_unlock(&job->lock);
}

// Puts tokens where readers see them. False when a token that is made again is another one.
static bool keep(struct job *job, const int32_t *tokens, int count, int from)
{
    for (int i = 0; i < count; i++) {
        const int at = from + i;
        if (at < job->replayed) {
            if (job->tokens[at] != tokens[i])
                return false;
            continue;
        }
        const struct logprobs *chances = job->chances ? stream_logprobs(job->stream, at - job->base) : NULL;
        job->tokens[at] = tokens[i];
        if (job->chances)
            job->chances[at] = chances ? *chances : (struct logprobs){0};
        job->made = at + 1;
    }
    return true;
}

// Takes what the stream has made. False when the reply is not the one that was sent before.
static bool collect(struct job *job, int *taken)
{
    int32_t tokens[TAKE];
    int count;
    bool same = true;
    const int before = job->made;
    pthread_mutex_lock(&job->lock);
    while (same && *taken < job->reply &&
           (count = stream_take(job->stream, tokens, job->reply - *taken < TAKE ? job->reply - *taken : TAKE)) > 0) {
        same = keep(job, tokens, count, *taken);
        *taken += count;
    }
    job->counters = *stream_counters(job->stream);
    if (job->made > before && job->first == 0)
        job->first = engine_seconds();
    if (job->made > before)
        job->changed(job->user);
    pthread_mutex_unlock(&job->lock);
    return same;
}

static enum job_stage stage_of(enum stream_phase phase)
{
    switch (phase) {
    case STREAM_FINISHED:
        return JOB_FINISHED;
    case STREAM_CANCELLED:
        return JOB_CANCELLED;
    case STREAM_FAILED:
        return JOB_FAILED;
    default:
        return JOB_ACCEPTED;
    }
}

// News of one live job; true when it is over.
static bool deliver(struct job *job)
{
    struct error cause = {0};
    enum job_stage stage = stage_of(stream_phase(job->stream));
    if (!collect(job, &job->taken)) {
        error_set(&cause, "a reply that was made again differs from what was sent");
        end(job, JOB_FAILED, &cause);
        return true;
    }
    if (!job_final(stage))
        return false;
    if (stage != JOB_FAILED) {
        end(job, stage, NULL);
        return true;
    }
    error_set(&cause, "%s", stream_error(job->stream));
    end(job, stream_stuck(job->stream) ? JOB_STUCK : JOB_FAILED, &cause);
    return true;
}

// Whether the job's news may wait until the next launch: then they cost the target no time. Not the first token, nor a reply that
// is checked against what was sent.
static bool can_wait(const struct job *job)
{
    return job->first > 0 && job->taken >= job->replayed && !job_final(stage_of(stream_phase(job->stream)));
}

// While the target runs: the tokens of the round before.
static void hand_out(void *user)
{
    struct host *h = user;
    h->launched = true;
    for (struct job *job = h->live.first; job; job = job->next)
        if (can_wait(job))
            collect(job, &job->taken);
}

// soon: something will be launched next, so what can wait is left to that.
static void deliver_all(struct host *h, bool soon)
{
    struct job *before = NULL;
    for (struct job **link = &h->live.first, *job; (job = *link);) {
        struct job *next = job->next;
        if (!(soon && can_wait(job)) && deliver(job)) {
            *link = next;
            if (h->live.last == job)
                h->live.last = before;
        } else {
            before = job;
            link = &job->next;
        }
    }
}

// ---- jobs in -----------------------------------------------------------------------------------------------------------------

static void start(struct host *h, struct job *job)
{
    const struct request request = {
        .ids = job->ids,
        .count = job->count,
        .reply = job->reply - job->base,
        .ignore_end = job->ignore_end,
        .marks = job->marks,
        .mark_count = job->mark_count,
        .background = job->background,
        .options = {.sampling = job->sampling,
                    .drafts = job->no_drafts ? 0 : -1,
                    .logprobs = job->logprobs,
                    .grammar = job->grammar,
                    .grammar_after = job->grammar_after,
                    .grammar_read = job->base},
    };
    struct error error = {0};
    if (atomic_load(&job->cancel)) {
        end(job, JOB_CANCELLED, NULL);
        return;
    }
    job->taken = job->base;
    if (!stream_submit(h->engine, &job->stream, &request, &error)) {
        end(job, JOB_REFUSED, &error);
        return;
    }
    append(&h->live, job);
    pthread_mutex_lock(&job->lock);
    if (job->stage == JOB_QUEUED) {
        job->stage = JOB_ACCEPTED;
        job->accepted = engine_seconds();
        job->changed(job->user);
    }
    pthread_mutex_unlock(&job->lock);
}

static void take_mail(struct host *h)
{
    pthread_mutex_lock(&h->lock);
    struct job *job = h->mail.first;
    h->mail = (struct list){0};
    pthread_mutex_unlock(&h->lock);
    for (struct job *next; job; job = next) {
        next = job->next;
        job->next = NULL;
        if (h->dead)
            end(job, JOB_DEAD, &h->cause);
        else if (job->background)
            append(&h->held, job);
        else
            start(h, job);
    }
}

static void take_cancels(struct host *h)
{
    for (struct job *job = h->live.first; job; job = job->next)
        if (atomic_load(&job->cancel))
            stream_cancel(job->stream);
    struct job *before = NULL;
    for (struct job **link = &h->held.first, *job; (job = *link);) {
        if (atomic_load(&job->cancel)) {
            unlink_job(&h->held, link, before);
            end(job, JOB_CANCELLED, NULL);
        } else {
            before = job;
            link = &job->next;
        }
    }
}

// ---- the background ----------------------------------------------------------------------------------------------------------

// Whether a job that is not of the background waits for a lane or for pages.
static bool others_wait(const struct host *h)
{
    for (const struct job *job = h->live.first; job; job = job->next)
        if (!job->background && stream_phase(job->stream) == STREAM_WAITING)
            return true;
    return false;
}

// The stream goes; the job is read again later, from its prompt, and what it makes again is checked against what was sent.
static void step_aside(struct host *h, struct job **link, struct job *before)
{
    struct job *job = *link;
    unlink_job(&h->live, link, before);
    stream_close(job->stream);
    job->stream = NULL;
    job->replayed = job->made;
    append(&h->held, job);
    h->replays++;
}

static void serve_background(struct host *h)
{
    struct engine_counters now;
    if (others_wait(h)) {
        struct job *before = NULL;
        for (struct job **link = &h->live.first; *link;) {
            if ((*link)->background) {
                step_aside(h, link, before);
                return; // one a turn: what it held may be enough
            }
            before = *link;
            link = &(*link)->next;
        }
        return;
    }
    struct job *job = h->held.first;
    engine_counters(h->engine, &now);
    if (!job || now.waiting || now.lanes_decoding + now.lanes_filling >= now.lanes ||
        engine_seconds() - job->submitted < BACKGROUND_WAIT)
        return;
    unlink_job(&h->held, &h->held.first, NULL);
    start(h, job);
}

// ---- the thread ----------------------------------------------------------------------------------------------------------------

static void die(struct host *h, const struct error *cause)
{
    h->dead = true;
    h->cause = *cause;
    for (struct job *job; (job = h->live.first);) {
        unlink_job(&h->live, &h->live.first, NULL);
        end(job, JOB_DEAD, cause);
    }
    for (struct job *job; (job = h->held.first);) {
        unlink_job(&h->held, &h->held.first, NULL);
        end(job, JOB_DEAD, cause);
    }
}

static int length(const struct list *list)
{
    int count = 0;
    for (const struct job *job = list->first; job; job = job->next)
        count++;
    return count;
}

// Tokens a second over the last RATE_SECONDS or a little more. Lock held.
static void count_rates(struct host *h, const struct engine_counters *c)
{
    const struct sample now = {engine_seconds(), c->reply_tokens, c->prompt_tokens};
    const double passed = now.at - h->sample.at;
    if (passed < RATE_SECONDS)
        return;
    h->view.reply_rate = (double)(now.reply - h->sample.reply) / passed;
    h->view.prompt_rate = (double)(now.prompt - h->sample.prompt) / passed;
    h->sample = now;
}

static void publish(struct host *h, bool busy)
{
    struct engine_counters counters;
    engine_counters(h->engine, &counters);
    pthread_mutex_lock(&h->lock);
    h->view.engine = counters;
    h->view.replays = h->replays;
    count_rates(h, &counters);
    h->view.background = length(&h->held);
    h->view.running = length(&h->live) + h->view.background;
    h->view.beat = engine_seconds();
    h->view.busy = busy;
    h->view.dead = h->dead;
    snprintf(h->view.cause, sizeof h->view.cause, "%s", h->dead ? h->cause.text : "");
    pthread_mutex_unlock(&h->lock);
}

// Sleeps until there is mail, at most until `until`. False when the thread is to end.
static bool rest(struct host *h, double until)
{
    pthread_mutex_lock(&h->lock);
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double wait = until - engine_seconds();
    wait = wait < 0 ? 0 : wait > BEAT ? BEAT : wait;
    t.tv_nsec += (long)(wait * 1e9);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    while (!h->woken && !h->stop && pthread_cond_timedwait(&h->wake, &h->lock, &t) != ETIMEDOUT)
        ;
    h->woken = false;
    bool go_on = !h->stop;
    pthread_mutex_unlock(&h->lock);
    return go_on;
}

// Work for quiet times; returns when it wants to be called again.
static double use_idle_time(struct host *h, double now)
{
    pthread_mutex_lock(&h->lock);
    double (*idle)(void *, struct engine *, double) = h->dead ? NULL : h->idle;
    void *user = h->idle_user;
    pthread_mutex_unlock(&h->lock);
    double next = idle ? idle(user, h->engine, h->worked) : 0;
    return next > 0 ? next : now + BEAT;
}

static void *run(void *argument)
{
    struct host *h = argument;
    bool busy = false, go_on = true;
    double next = 0;
    while (go_on) {
        if (!busy)
            go_on = rest(h, next);
        struct error cause = {0};
        busy = false;
        take_mail(h);
        take_cancels(h);
        h->launched = false;
        if (!h->dead) {
            if (engine_turn(h->engine, &busy, &cause)) {
                serve_background(h); // who waits now has not found a lane
            } else {
                hand_out(h); // what was left to the launch that never came
                die(h, &cause);
            }
            deliver_all(h, h->later && h->launched && busy);
        }
        publish(h, busy);
        const double now = engine_seconds();
        // A stream that was closed just now may let the next one in.
        busy = busy || (!h->dead && h->live.first);
        if (busy)
            h->worked = now;
        next = busy ? now : h->held.first ? now + 0.02 : use_idle_time(h, now);
        if (busy) {
            pthread_mutex_lock(&h->lock);
            go_on = !h->stop;
            pthread_mutex_unlock(&h->lock);
        }
    }
    return NULL;
}

// ---- what the other threads call -------------------------------------------------------------------------------------------------

bool host_open(struct host **out, struct engine *engine, struct error *error)
{
    struct host *h = calloc(1, sizeof *h);
    pthread_condattr_t clock;
    *out = NULL;
    if (!h)
        return error_set(error, "no memory for the engine's thread");
    h->engine = engine;
    h->worked = engine_seconds();
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&h->wake, &clock);
    pthread_condattr_destroy(&clock);
    publish(h, false);
    h->later = engine_meanwhile(engine, hand_out, h);
    int failed = pthread_create(&h->thread, NULL, run, h);
    if (failed) {
        engine_meanwhile(engine, NULL, NULL);
        free(h);
        return error_set(error, "the engine's thread cannot be started: %s", strerror(failed));
    }
    *out = h;
    return true;
}

static void wake(struct host *h)
{
    h->woken = true;
    pthread_cond_signal(&h->wake);
}

void host_close(struct host *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    wake(h);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    engine_meanwhile(h->engine, NULL, NULL);
    struct error cause = {0};
    error_set(&cause, "the server ends");
    take_mail(h);
    die(h, &cause);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

void host_submit(struct host *h, struct job *job)
{
    if (job->submitted == 0)
        job->submitted = engine_seconds();
    pthread_mutex_lock(&h->lock);
    append(&h->mail, job);
    wake(h);
    pthread_mutex_unlock(&h->lock);
}

void host_cancel(struct host *h, struct job *job)
{
    atomic_store(&job->cancel, true);
    pthread_mutex_lock(&h->lock);
    wake(h);
    pthread_mutex_unlock(&h->lock);
}

void host_look(struct host *h, struct host_view *view)
{
    pthread_mutex_lock(&h->lock);
    *view = h->view;
    pthread_mutex_unlock(&h->lock);
}

void host_on_idle(struct host *h, double (*idle)(void *user, struct engine *engine, double since), void *user)
{
    pthread_mutex_lock(&h->lock);
    h->idle = idle;
    h->idle_user = user;
    wake(h);
    pthread_mutex_unlock(&h->lock);
}
