// SPDX-License-Identifier: Apache-2.0
//
// The engine thread (runtime/server/host.c) over an engine of a few lines: two lanes, one token a turn, which fails when it is told
// to; once as on a target that is done when a launch returns, once as on one that works beside the host. Red control: with a reply that
// is made again differently, the check of what was sent must end the job.

#include "runtime/server/host.h"
#include "tests/tap.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LANES = 2 };

struct stream {
    struct request request;
    enum stream_phase phase;
    int made, taken;
    bool cancel;
    int salt; // of its tokens
    struct stream *next;
};

struct engine {
    struct stream *first;
    struct stream_counters counters;
    // the test's to set and to read
    atomic_int open, fail_after, salt; // fail_after: tokens after which the oldest stream fails, 0: none
    atomic_bool die, refuse;           // for good; every request
    bool behind, launching;            // launches return before they are done; one has just been made
    void (*work)(void *user);          // called then
    void *user;
    atomic_int within,
        between; // takes that brought tokens in the middle of a reply: after a launch, and at other times
};

static struct engine fake;

double engine_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool stream_submit(struct engine *e, struct stream **out, const struct request *request, struct error *error)
{
    *out = NULL;
    if (e->refuse)
        return error_set(error, "too large");
    struct stream *s = calloc(1, sizeof *s), **at = &e->first;
    s->request = *request;
    s->phase = STREAM_WAITING;
    s->salt = e->salt;
    while (*at)
        at = &(*at)->next;
    *at = s;
    e->open++;
    *out = s;
    return true;
}

void stream_close(struct stream *s)
{
    if (!s)
        return;
    struct stream **at = &fake.first;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    fake.open--;
    free(s);
}

static int decoding(const struct engine *e)
{
    int count = 0;
    for (const struct stream *s = e->first; s; s = s->next)
        count += s->phase == STREAM_DECODING;
    return count;
}

bool engine_turn(struct engine *e, bool *busy, struct error *error)
{
    const struct timespec step = {.tv_nsec = 50000};
    nanosleep(&step, NULL);
    *busy = false;
    if (e->die) {
        error_set(error, "the card is gone");
        return false;
    }
    if (e->work && decoding(e)) {
        e->launching = true;
        e->work(e->user);
        e->launching = false;
    }
    for (struct stream *s = e->first; s; s = s->next) {
        if (s->cancel && s->phase < STREAM_FINISHED)
            s->phase = STREAM_CANCELLED;
        if (s->phase == STREAM_WAITING && decoding(e) < LANES)
            s->phase = STREAM_DECODING;
        else if (s->phase == STREAM_DECODING) {
            s->made++;
            if (e->fail_after && s->made >= e->fail_after && s == e->first)
                s->phase = STREAM_FAILED;
            else if (s->made == s->request.reply)
                s->phase = STREAM_FINISHED;
        }
        *busy = *busy || s->phase == STREAM_DECODING;
    }
    return true;
}

int stream_take(struct stream *s, int32_t *out, int room)
{
    int count = 0;
    if (s->made > s->taken && s->taken > 0 && s->phase == STREAM_DECODING)
        (fake.launching ? &fake.within : &fake.between)[0]++;
    for (; s->taken < s->made && count < room; s->taken++)
        out[count++] = s->request.ids[0] * 1000 + s->taken + s->salt;
    return count;
}

bool engine_meanwhile(struct engine *e, void (*work)(void *user), void *user)
{
    e->work = e->behind ? work : NULL;
    e->user = user;
    return e->work != NULL;
}

enum stream_phase stream_phase(const struct stream *s)
{
    return s->phase;
}

bool stream_stuck(const struct stream *s)
{
    (void)s;
    return false;
}

const char *stream_error(const struct stream *s)
{
    return s->phase == STREAM_FAILED ? "a kernel failed" : "";
}

void stream_cancel(struct stream *s)
{
    s->cancel = true;
}

const struct stream_counters *stream_counters(const struct stream *s)
{
    (void)s;
    return &fake.counters;
}

const struct logprobs *stream_logprobs(const struct stream *s, int i)
{
    (void)s, (void)i;
    return NULL;
}

void engine_counters(const struct engine *e, struct engine_counters *c)
{
    *c = (struct engine_counters){.lanes = LANES, .lanes_decoding = decoding(e)};
    for (const struct stream *s = e->first; s; s = s->next)
        c->waiting += s->phase == STREAM_WAITING;
}

// ---- jobs ----------------------------------------------------------------------------------------------------------------------

struct told {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int news;
};

static void changed(void *user)
{
    struct told *t = user;
    pthread_mutex_lock(&t->lock);
    t->news++;
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

static struct told told = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

static struct job *ask(struct host *host, int id, int reply, bool background)
{
    struct error error;
    struct job *job = job_new();
    job->ids = malloc(sizeof *job->ids);
    job->ids[0] = id;
    job->count = 1;
    job->reply = reply;
    job->background = background;
    job->changed = changed;
    job->user = &told;
    job_prepare(job, &error);
    host_submit(host, job);
    return job;
}

static enum job_stage stage_of(struct job *job, int *made)
{
    pthread_mutex_lock(&job->lock);
    enum job_stage stage = job->stage;
    if (made)
        *made = job->made;
    pthread_mutex_unlock(&job->lock);
    return stage;
}

// Waits for the job's final stage (or `tokens` of it); JOB_QUEUED after a long time.
static enum job_stage await(struct job *job, int tokens)
{
    for (int i = 0; i < 4000; i++) {
        const struct timespec step = {.tv_nsec = 5000000};
        int made;
        enum job_stage stage = stage_of(job, &made);
        if (job_final(stage) || (tokens && made >= tokens))
            return stage;
        nanosleep(&step, NULL);
    }
    return JOB_QUEUED;
}

static bool whole(const struct job *job)
{
    bool good = job->made == job->reply;
    for (int i = 0; i < job->made; i++)
        good = good && job->tokens[i] == job->ids[0] * 1000 + i;
    return good;
}

static void replies(struct host *host)
{
    struct job *job[6];
    int good = 0;
    for (int i = 0; i < 6; i++)
        job[i] = ask(host, i + 1, 5 + 70 * i, false);
    for (int i = 0; i < 6; i++) {
        good += await(job[i], 0) == JOB_FINISHED && whole(job[i]);
        job_free(job[i]);
    }
    ok(good == 6 && fake.open == 0, "six replies on two lanes are whole, and their streams are closed", NULL);
    ok(fake.behind ? fake.within > 500 && fake.between == 0 : fake.within == 0 && fake.between > 500,
       "tokens go out while the next round runs, where it does", NULL);
}

static void refusals(struct host *host)
{
    fake.refuse = true;
    struct job *job = ask(host, 1, 5, false);
    ok(await(job, 0) == JOB_REFUSED && strstr(job->cause.text, "too large"), "a refusal says why", job->cause.text);
    job_free(job);
    fake.refuse = false;
    fake.fail_after = 4;
    job = ask(host, 1, 500, false);
    struct job *other = ask(host, 2, 300, false);
    ok(await(job, 0) == JOB_FAILED && strstr(job->cause.text, "kernel"), "a failed stream ends its job",
       job->cause.text);
    fake.fail_after = 0;
    ok(await(other, 0) >= JOB_FINISHED, "the other goes on or has its own end", NULL);
    job_free(job), job_free(other);
    job = ask(host, 3, 5, false);
    ok(await(job, 0) == JOB_FINISHED && whole(job), "and the next is served", NULL);
    job_free(job);
}

static void cancels(struct host *host)
{
    struct job *job[4];
    for (int i = 0; i < 4; i++)
        job[i] = ask(host, i + 1, 100000, i == 3); // two decode, one waits, one is held back
    await(job[0], 3);
    for (int i = 3; i >= 0; i--)
        host_cancel(host, job[i]);
    int good = 0;
    for (int i = 0; i < 4; i++) {
        good += await(job[i], 0) == JOB_CANCELLED;
        job_free(job[i]);
    }
    ok(good == 4 && fake.open == 0, "jobs that decode, wait or are held back are cancelled", NULL);
}

// A job of the background gives its lane up, is read again, and its reply is whole; beside a free lane it stays.
static void background(struct host *host)
{
    struct host_view view;
    struct job *back = ask(host, 7, 900, true);
    ok(await(back, 5) == JOB_ACCEPTED, "a job of the background is served when nobody waits", NULL);
    struct job *one = ask(host, 1, 200, false);
    await(one, 0);
    host_look(host, &view);
    ok(view.replays == 0, "it keeps its lane beside a free one", NULL);
    struct job *many[3];
    for (int i = 0; i < 3; i++)
        many[i] = ask(host, i + 2, 300, false);
    for (int i = 0; i < 3; i++)
        await(many[i], 0);
    bool stays = !job_final(stage_of(back, NULL));
    bool good = await(back, 0) == JOB_FINISHED && whole(back);
    host_look(host, &view);
    ok(stays && good && view.replays > 0, "it steps aside for those that wait, and its reply is whole",
       back->cause.text);
    for (int i = 0; i < 3; i++)
        job_free(many[i]);
    job_free(one), job_free(back);
    back = ask(host, 7, 5000, true);
    await(back, 5);
    fake.salt = 1; // from now on replies are others
    struct job *two[2] = {ask(host, 1, 50, false), ask(host, 2, 50, false)};
    ok(await(back, 0) == JOB_FAILED && strstr(back->cause.text, "differs"),
       "red control: a reply that is made again differently is caught", back->cause.text);
    await(two[0], 0), await(two[1], 0);
    job_free(two[0]), job_free(two[1]), job_free(back);
    fake.salt = 0;
}

static atomic_int idle_calls;

static double on_idle(void *user, struct engine *engine, double since)
{
    (void)user, (void)engine, (void)since;
    idle_calls++;
    return 0;
}

static void death(struct host *host)
{
    struct host_view view;
    struct job *job[3];
    for (int i = 0; i < 3; i++)
        job[i] = ask(host, i + 1, 100000, i == 2);
    await(job[0], 3);
    fake.die = true;
    int good = 0;
    for (int i = 0; i < 3; i++) {
        good += await(job[i], 0) == JOB_DEAD && strstr(job[i]->cause.text, "card");
        job_free(job[i]);
    }
    ok(good == 3, "an engine that fails for good ends every job", NULL);
    job[0] = ask(host, 1, 5, false);
    ok(await(job[0], 0) == JOB_DEAD, "and those that come later", NULL);
    job_free(job[0]);
    host_look(host, &view);
    ok(view.dead && strstr(view.cause, "card"), "what is seen of it says so", view.cause);
}

static void everything(bool behind)
{
    struct host *host;
    struct error error;
    memset(&fake, 0, sizeof fake);
    fake.behind = behind;
    idle_calls = 0;
    ok(host_open(&host, &fake, &error), "the thread starts", NULL);
    host_on_idle(host, on_idle, NULL);
    replies(host);
    refusals(host);
    cancels(host);
    background(host);
    ok(idle_calls > 0, "idle time is handed out", NULL);
    death(host);
    host_close(host);
    ok(fake.open == 0 && !fake.work, "nothing is left", NULL);
}

int main(void)
{
    everything(false);
    everything(true);
    return done();
}
