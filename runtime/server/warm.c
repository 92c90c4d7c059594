// SPDX-License-Identifier: Apache-2.0
//
// Warm turns; see warm.h. Two continuations with different words are rendered; what they begin with alike is what the next turn
// begins with, since both go through the template and the tokenizer as it will: reasoning is stripped, calls are spelled and
// replies are closed as they are then.

#include "runtime/server/warm.h"
#include "runtime/server/conversation.h"

#include <stdlib.h>
#include <string.h>

enum { OFFERS = 8 }; // conversations that wait for a quiet moment; the oldest go
static const double QUIET = 0.15;

struct warm {
    struct host *host;
    pthread_mutex_t lock;
    struct job *offer[OFFERS]; // ids and marks alone
    double since[OFFERS];
    int count;
};

// ---- what the next turn begins with ------------------------------------------------------------------------------------------

enum habit { SENDS, DROPS, UNKNOWN };

// Whether the client sends reasoning back, by what it did with the last reply.
static enum habit habit_of(const json_t *messages)
{
    for (size_t i = json_array_size(messages); i-- > 0;) {
        const json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (role && !strcmp(role, "assistant"))
            return json_object_get(message, "reasoning_content") ? SENDS : DROPS;
    }
    return UNKNOWN;
}

// What comes after the reply: results of its calls, or words of the user.
static bool append_next(json_t *messages, const json_t *reply, const char *words)
{
    const json_t *calls = json_object_get(reply, "tool_calls");
    const size_t count = json_array_size(calls);
    bool good = true;
    for (size_t i = 0; good && i < count; i++) {
        const json_t *call = json_array_get(calls, i);
        good = !json_array_append_new(messages, json_pack("{s:s, s:s, s:O, s:O}", "role", "tool", "content", words,
                                                          "tool_call_id", json_object_get(call, "id"), "name",
                                                          json_object_get(json_object_get(call, "function"), "name")));
    }
    return good &&
           (count > 0 || !json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", words)));
}

// The conversation with the reply and `words` behind it, to a job.
static struct job *continuation(const struct conversation *old, const json_t *reply, const char *words,
                                struct tokenizer *tokenizer, const struct reply_style *style)
{
    struct conversation more = {0}, whole = {0};
    struct error error;
    struct job *job = job_new();
    json_t *added = json_array();
    bool reasons, good = job && added && !json_array_append(added, (json_t *)(uintptr_t)reply) &&
                         append_next(added, reply, words) && conversation_read(&more, added, NULL, NULL, &error);
    whole.messages = good ? json_deep_copy(old->messages) : NULL;
    whole.kwargs = json_incref(old->kwargs);
    whole.tools = json_incref(old->tools);
    good = good && whole.messages && !json_array_extend(whole.messages, more.messages) &&
           conversation_encode(&whole, tokenizer, style, NULL, job, &reasons, &error);
    conversation_close(&more);
    conversation_close(&whole);
    json_decref(added);
    if (good)
        return job;
    job_free(job);
    return NULL;
}

// What two continuations begin with alike; NULL when that is nothing.
static struct job *beginning(const struct conversation *conversation, const json_t *reply, struct tokenizer *tokenizer,
                             const struct reply_style *style)
{
    struct job *a = continuation(conversation, reply, "A", tokenizer, style);
    struct job *b = a ? continuation(conversation, reply, "B", tokenizer, style) : NULL;
    int same = 0;
    while (b && same < a->count && same < b->count && a->ids[same] == b->ids[same])
        same++;
    job_free(b);
    if (!a || same < 2) {
        job_free(a);
        return NULL;
    }
    a->count = same;
    while (a->mark_count > 0 && a->marks[a->mark_count - 1] > same)
        a->mark_count--;
    return a;
}

int warm_render(const struct conversation *conversation, const json_t *reply, struct tokenizer *tokenizer,
                const struct reply_style *style, struct job *jobs[2])
{
    const bool reasoned = json_object_get(reply, "reasoning_content") != NULL;
    const enum habit habit = reasoned ? habit_of(conversation->messages) : DROPS;
    json_t *without = json_copy((json_t *)(uintptr_t)reply);
    int count = 0;
    json_object_del(without, "reasoning_content");
    jobs[0] = jobs[1] = NULL;
    if (habit != SENDS && without && (jobs[0] = beginning(conversation, without, tokenizer, style)))
        count++;
    if (habit != DROPS && (jobs[count] = beginning(conversation, reply, tokenizer, style)))
        count++;
    json_decref(without);
    const bool same = count == 2 && jobs[0]->count == jobs[1]->count &&
                      !memcmp(jobs[0]->ids, jobs[1]->ids, (size_t)jobs[0]->count * sizeof jobs[0]->ids[0]);
    if (same)
        job_free(jobs[--count]); // the template strips it
    return count;
}

// ---- offers ------------------------------------------------------------------------------------------------------------------

// The reply as a message in OpenAI's shape.
static json_t *reply_message(const struct answer *a)
{
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content",
                                json_stringn(a->content.bytes ? a->content.bytes : "", a->content.count));
    json_t *calls = a->call_count ? json_array() : NULL;
    for (int i = 0; i < a->call_count; i++) {
        const struct answer_call *call = &a->calls[i];
        json_array_append_new(calls, json_pack("{s:o, s:s, s:{s:s, s:s}}", "id", json_sprintf("call_%d", i), "type",
                                               "function", "function", "name", call->name.bytes ? call->name.bytes : "",
                                               "arguments", call->arguments.bytes ? call->arguments.bytes : "{}"));
    }
    if (calls)
        json_object_set_new(message, "tool_calls", calls);
    if (a->reasoning.count)
        json_object_set_new(message, "reasoning_content", json_stringn(a->reasoning.bytes, a->reasoning.count));
    return message;
}

// ---- quiet times ---------------------------------------------------------------------------------------------------------------

static struct job *take(struct warm *w)
{
    struct job *job = w->offer[0];
    w->count--;
    memmove(w->offer, w->offer + 1, (size_t)w->count * sizeof w->offer[0]);
    memmove(w->since, w->since + 1, (size_t)w->count * sizeof w->since[0]);
    return job;
}

static double idle(void *user, struct engine *engine, double since)
{
    struct warm *w = user;
    struct job *job = NULL;
    pthread_mutex_lock(&w->lock);
    const double now = engine_seconds();
    double next = w->count ? (since > w->since[0] ? since : w->since[0]) + QUIET : 0;
    if (w->count && now >= next) {
        job = take(w);
        next = now; // the engine's next turn begins with it
    }
    pthread_mutex_unlock(&w->lock);
    if (job)
        engine_warm(engine, job->ids, job->count, job->marks, job->mark_count);
    job_free(job);
    return next;
}

void warm_offer(struct warm *w, struct exchange *x)
{
    if (!w || !x->conversation || atomic_load(&x->server->draining))
        return;
    json_t *reply = reply_message(&x->answer);
    struct job *jobs[2];
    const int count = reply ? warm_render(x->conversation, reply, x->tokenizer, &x->server->style, jobs) : 0;
    json_decref(reply);
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < count; i++) {
        if (w->count == OFFERS)
            job_free(take(w));
        w->offer[w->count] = jobs[i];
        w->since[w->count++] = engine_seconds();
    }
    pthread_mutex_unlock(&w->lock);
    if (count)
        host_on_idle(w->host, idle, w); // something has changed
}

bool warm_open(struct warm **out, struct host *host, struct error *error)
{
    struct host_view view;
    *out = NULL;
    host_look(host, &view);
    if (view.engine.cache.budget == 0)
        return true;
    struct warm *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(error, "no memory for the server");
    w->host = host;
    pthread_mutex_init(&w->lock, NULL);
    *out = w;
    return true;
}

void warm_close(struct warm *w)
{
    if (!w)
        return;
    while (w->count)
        job_free(take(w));
    pthread_mutex_destroy(&w->lock);
    free(w);
}
