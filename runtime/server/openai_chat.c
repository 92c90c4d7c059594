// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/chat/completions: OpenAI's chat, whole and streamed.

#include "runtime/json_exact.h"
#include "runtime/server/chat_request.h"
#include "runtime/server/routes.h"

#include <stdlib.h>
#include <string.h>

struct chat {
    struct chat_request request;
    int shown; // tokens whose log-probabilities were sent
};

// ---- replies ---------------------------------------------------------------------------------------------------------------------

static json_t *envelope(const struct exchange *x, const char *object)
{
    return json_pack("{s:o, s:s, s:I, s:s}", "id", json_sprintf("chatcmpl-%s", x->id), "object", object, "created",
                     (json_int_t)x->created, "model", x->server->options.name);
}

static json_t *one_logprob(const struct exchange *x, int32_t id, float logprob)
{
    return json_pack("{s:o, s:f, s:o}", "token", token_text(x->answer.stream.tokenizer, id), "logprob",
                     json_nine_digits((double)logprob), "bytes", token_bytes(x->answer.stream.tokenizer, id));
}

// Log-probabilities of the tokens that were read and not shown yet; null when none are wanted.
static json_t *take_logprobs(struct exchange *x)
{
    struct chat *chat = x->state;
    if (!chat->request.logprobs)
        return json_null();
    json_t *list = json_array();
    const int until = x->answer.tokens - (x->answer.ended ? 1 : 0);
    for (; chat->shown < until; chat->shown++) {
        const struct logprobs *p = &x->job->chances[chat->shown];
        json_t *token = one_logprob(x, x->job->tokens[chat->shown], p->chosen), *top = json_array();
        for (int i = 0; i < p->count && i < chat->request.alternatives; i++)
            json_array_append_new(top, one_logprob(x, p->id[i], p->logprob[i]));
        json_object_set_new(token, "top_logprobs", top);
        json_array_append_new(list, token);
    }
    return json_pack("{s:o}", "content", list);
}

// One chunk of a stream; delta is stolen.
static json_t *chunk(struct exchange *x, json_t *delta, const char *finish)
{
    json_t *root = envelope(x, "chat.completion.chunk");
    json_t *choice = json_pack("{s:i, s:o, s:o, s:s?}", "index", 0, "delta", delta, "logprobs", take_logprobs(x),
                               "finish_reason", finish);
    json_object_set_new(root, "choices", json_pack("[o]", choice));
    return root;
}

static void begin(struct exchange *x)
{
    const struct chat *chat = x->state;
    if (!chat->request.stream)
        return;
    exchange_stream(x);
    exchange_event(x, NULL, chunk(x, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL));
}

static json_t *call_id(const struct exchange *x, int call)
{
    return json_sprintf("call_%s_%d", x->id, call);
}

static json_t *delta_of(const struct exchange *x, const struct reply_event *e)
{
    switch (e->kind) {
    case REPLY_REASONING:
        return json_pack("{s:s%}", "reasoning_content", e->text, e->bytes);
    case REPLY_CONTENT:
        return json_pack("{s:s%}", "content", e->text, e->bytes);
    case REPLY_CALL_BEGIN:
        return json_pack("{s:[{s:i, s:o, s:s, s:{s:s, s:s}}]}", "tool_calls", "index", e->call, "id",
                         call_id(x, e->call), "type", "function", "function", "name", e->name, "arguments", "");
    case REPLY_CALL_ARGUMENTS:
        return json_pack("{s:[{s:i, s:{s:s%}}]}", "tool_calls", "index", e->call, "function", "arguments", e->text,
                         e->bytes);
    case REPLY_CALL_END:
        break;
    }
    return NULL;
}

static void piece(struct exchange *x, const struct reply_event *e)
{
    const struct chat *chat = x->state;
    json_t *delta = chat->request.stream ? delta_of(x, e) : NULL;
    if (delta)
        exchange_event(x, NULL, chunk(x, delta, NULL));
}

static json_t *text_or(const struct string *text, json_t *otherwise)
{
    if (!text->count)
        return otherwise;
    json_decref(otherwise);
    return json_stringn(text->bytes, text->count);
}

static json_t *calls_json(const struct exchange *x)
{
    json_t *list = json_array();
    for (int i = 0; i < x->answer.call_count; i++) {
        const struct answer_call *call = &x->answer.calls[i];
        json_array_append_new(list, json_pack("{s:o, s:s, s:{s:s, s:o}}", "id", call_id(x, i), "type", "function",
                                              "function", "name", call->name.bytes, "arguments",
                                              text_or(&call->arguments, json_string("{}"))));
    }
    return list;
}

static void end_whole(struct exchange *x, const struct outcome *o)
{
    const struct answer *a = &x->answer;
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content",
                                text_or(&a->content, a->call_count ? json_null() : json_string("")));
    if (a->reasoning.count)
        json_object_set_new(message, "reasoning_content", json_stringn(a->reasoning.bytes, a->reasoning.count));
    if (a->call_count)
        json_object_set_new(message, "tool_calls", calls_json(x));
    json_t *root = envelope(x, "chat.completion");
    json_object_set_new(root, "choices",
                        json_pack("[{s:i, s:o, s:o, s:s}]", "index", 0, "message", message, "logprobs",
                                  take_logprobs(x), "finish_reason", o->reason));
    json_object_set_new(root, "usage", usage_json(o));
    add_measured(root, x, o);
    exchange_json(x, 200, root);
}

static void end(struct exchange *x, const struct outcome *o)
{
    const struct chat *chat = x->state;
    if (!chat->request.stream) {
        end_whole(x, o);
        return;
    }
    json_t *last = chunk(x, json_object(), o->reason);
    add_measured(last, x, o);
    if (!chat->request.include_usage)
        json_object_set_new(last, "usage", usage_json(o));
    exchange_event(x, NULL, last);
    end_events(x, chat->request.include_usage ? envelope(x, "chat.completion.chunk") : NULL, o);
}

static void release(struct exchange *x)
{
    struct chat *chat = x->state;
    chat_request_close(&chat->request);
    free(chat);
    x->state = NULL;
}

static const struct dialect dialect = {begin, piece, end, fail_events, release};

void chat_handle(struct exchange *x)
{
    struct answer_rules rules = {0};
    json_t *root = exchange_input(x);
    struct chat *chat = root ? calloc(1, sizeof *chat) : NULL;
    struct job *job = chat ? job_new() : NULL;
    if (!job) {
        json_decref(root);
        free(chat);
        return; // an error was sent, or will be
    }
    x->state = chat;
    if (!chat_request_read(x, &chat->request, root, job, &rules)) {
        job_free(job);
        release(x);
        return;
    }
    exchange_submit(x, job, &dialect, &rules, "messages");
}
