// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/chat/completions: OpenAI's chat, whole and streamed.

#include "runtime/server/conversation.h"
#include "runtime/server/openai.h"
#include "runtime/server/routes.h"

#include <stdlib.h>
#include <string.h>

struct chat {
    json_t *root; // the request; stop strings and tools point into it
    struct conversation conversation;
    struct stops stops;
    char *opener; // text that the reply was made to begin with, or NULL
    bool stream, include_usage, logprobs;
    int alternatives; // of log-probabilities
    int shown;        // tokens whose log-probabilities were sent
};

// ---- replies ---------------------------------------------------------------------------------------------------------------------

static json_t *envelope(const struct exchange *x, const char *object)
{
    return json_pack("{s:o, s:s, s:I, s:s}", "id", json_sprintf("chatcmpl-%s", x->id), "object", object, "created",
                     (json_int_t)x->created, "model", x->server->options.name);
}

static json_t *one_logprob(const struct exchange *x, int32_t id, float logprob)
{
    return json_pack("{s:o, s:f, s:o}", "token", token_text(x->answer.stream.tokenizer, id), "logprob", (double)logprob,
                     "bytes", token_bytes(x->answer.stream.tokenizer, id));
}

// Log-probabilities of the tokens that were read and not shown yet; null when none are wanted.
static json_t *take_logprobs(struct exchange *x)
{
    struct chat *chat = x->state;
    if (!chat->logprobs)
        return json_null();
    json_t *list = json_array();
    const int until = x->answer.tokens - (x->answer.ended ? 1 : 0);
    for (; chat->shown < until; chat->shown++) {
        const struct logprobs *p = &x->job->chances[chat->shown];
        json_t *token = one_logprob(x, x->job->tokens[chat->shown], p->chosen), *top = json_array();
        for (int i = 0; i < p->count && i < chat->alternatives; i++)
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
    if (!chat->stream)
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
    json_t *delta = chat->stream ? delta_of(x, e) : NULL;
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
    if (!chat->stream) {
        end_whole(x, o);
        return;
    }
    json_t *last = chunk(x, json_object(), o->reason);
    add_measured(last, x, o);
    if (!chat->include_usage)
        json_object_set_new(last, "usage", usage_json(o));
    exchange_event(x, NULL, last);
    if (chat->include_usage) {
        json_t *usage = envelope(x, "chat.completion.chunk");
        json_object_set_new(usage, "choices", json_array());
        json_object_set_new(usage, "usage", usage_json(o));
        add_measured(usage, x, o);
        exchange_event(x, NULL, usage);
    }
    exchange_line(x, "[DONE]");
}

static void fail(struct exchange *x, const char *type, const char *message)
{
    exchange_event(x, NULL,
                   json_pack("{s:{s:s, s:s, s:n, s:n}}", "error", "message", message, "type", type, "param", "code"));
    exchange_line(x, "[DONE]");
}

static void release(struct exchange *x)
{
    struct chat *chat = x->state;
    conversation_close(&chat->conversation);
    json_decref(chat->root);
    free(chat->opener);
    free(chat);
    x->state = NULL;
}

static const struct dialect dialect = {begin, piece, end, fail, release};

// ---- requests --------------------------------------------------------------------------------------------------------------------

static bool bad(struct exchange *x, const char *field, const char *expected)
{
    exchange_error(x, 400, NULL, "invalid_value", field, "%s: %s is expected", field, expected);
    return false;
}

// Whether thinking is wanted, from all the ways to say it, into the template's switches.
static bool ask_thinking(struct exchange *x, const json_t *root, json_t *kwargs)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    const json_t *effort = json_object_get(root, "reasoning_effort"),
                 *thinking = json_object_get(root, "enable_thinking");
    if (!effort || json_is_null(effort))
        effort = json_object_get(kwargs, "reasoning_effort");
    if (json_is_boolean(json_object_get(kwargs, "thinking")) && !json_object_get(kwargs, "enable_thinking"))
        json_object_set(kwargs, "enable_thinking", json_object_get(kwargs, "thinking"));
    if (thinking && !json_is_null(thinking)) {
        if (!json_is_boolean(thinking))
            return bad(x, "enable_thinking", "true or false");
        json_object_set(kwargs, "enable_thinking", (json_t *)(uintptr_t)thinking);
    }
    if (!effort || json_is_null(effort))
        return true;
    bool known = false;
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++)
        known = known || (json_is_string(effort) && !strcmp(json_string_value(effort), efforts[i]));
    if (!known)
        return bad(x, "reasoning_effort", "one of none, minimal, low, medium, high, xhigh, max");
    if (!json_object_get(kwargs, "enable_thinking"))
        json_object_set_new(kwargs, "enable_thinking", json_boolean(strcmp(json_string_value(effort), "none") != 0));
    json_object_set(kwargs, "reasoning_effort", (json_t *)(uintptr_t)effort);
    return true;
}

// tool_choice: which tools are offered, and whether one must be called.
static bool ask_tools(struct exchange *x, struct chat *chat, json_t **tools, bool *must, const char **name)
{
    json_t *choice = json_object_get(chat->root, "tool_choice");
    *tools = json_object_get(chat->root, "tools");
    *must = false;
    *name = NULL;
    if (!choice || json_is_null(choice))
        return true;
    const char *word = json_string_value(choice);
    if (word && !strcmp(word, "none"))
        *tools = NULL;
    else if (word && !strcmp(word, "required"))
        *must = true;
    else if (!word) {
        *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
        *must = true;
    }
    if ((word && strcmp(word, "auto") && strcmp(word, "none") && !*must) || (!word && !*name))
        return bad(x, "tool_choice", "none, auto, required or a function's name");
    if (*must && !json_array_size(*tools))
        return bad(x, "tools", "an array of at least one tool, since tool_choice asks for one,");
    bool offered = !*name;
    for (size_t i = 0; !offered && i < json_array_size(*tools); i++) {
        const char *one =
            json_string_value(json_object_get(json_object_get(json_array_get(*tools, i), "function"), "name"));
        offered = one && !strcmp(one, *name);
    }
    return offered || bad(x, "tool_choice", "the name of one of the tools");
}

static bool ask_stream(struct exchange *x, struct chat *chat, const struct fields *f)
{
    const json_t *options = json_object_get(chat->root, "stream_options");
    const json_t *usage = json_object_get(options, "include_usage");
    chat->stream = f->at[FIELD_STREAM].truth;
    if (options && !json_is_null(options) && !json_is_object(options))
        return bad(x, "stream_options", "an object");
    if (usage && !json_is_null(usage) && !json_is_boolean(usage))
        return bad(x, "stream_options.include_usage", "true or false");
    chat->include_usage = json_is_true(usage);
    return true;
}

static bool ask_limits(struct exchange *x, struct chat *chat, const struct fields *f, struct job *job)
{
    const enum field limit = f->at[FIELD_MAX_COMPLETION_TOKENS].given ? FIELD_MAX_COMPLETION_TOKENS : FIELD_MAX_TOKENS;
    job->reply = f->at[limit].given ? (int)f->at[limit].integer : 0;
    chat->logprobs = f->at[FIELD_WANT_LOGPROBS].truth;
    chat->alternatives = (int)f->at[FIELD_TOP_LOGPROBS].integer;
    if (chat->alternatives && !chat->logprobs)
        return bad(x, "top_logprobs", "logprobs: true beside it");
    job->logprobs = !chat->logprobs ? 0 : chat->alternatives ? chat->alternatives : -1;
    return true;
}

// Everything but the prompt: what is wrong with it is said before anything is rendered.
static bool ask(struct exchange *x, struct chat *chat, struct job *job, struct fields *f)
{
    const uint64_t mask = SAMPLING_FIELDS | FIELD_BIT(FIELD_MAX_TOKENS) | FIELD_BIT(FIELD_MAX_COMPLETION_TOKENS) |
                          FIELD_BIT(FIELD_TOP_LOGPROBS) | FIELD_BIT(FIELD_WANT_LOGPROBS) |
                          FIELD_BIT(FIELD_PARALLEL_TOOL_CALLS) | FIELD_BIT(FIELD_THINKING_BUDGET);
    return ask_fields(x, f, chat->root, mask) && ask_model(x, chat->root) && ask_stream(x, chat, f) &&
           ask_limits(x, chat, f, job) && ask_sampling(x, f, chat->root, job) &&
           ask_stops(x, json_object_get(chat->root, "stop"), "stop", &chat->stops);
}

static bool prepare(struct exchange *x, struct chat *chat, struct job *job, struct answer_rules *rules)
{
    struct fields f;
    struct error error = {0};
    json_t *tools;
    bool must, reasons = false;
    const char *name;
    if (!ask(x, chat, job, &f) || !ask_tools(x, chat, &tools, &must, &name))
        return false;
    if (!conversation_read(&chat->conversation, json_object_get(chat->root, "messages"), tools,
                           json_object_get(chat->root, "chat_template_kwargs"), &error)) {
        exchange_error(x, 400, NULL, "invalid_value", "messages", "%s", error.text);
        return false;
    }
    if (!ask_thinking(x, chat->root, chat->conversation.kwargs))
        return false;
    const struct reply_style *style = &x->server->style;
    if (must && !(chat->opener = reply_call_opener(style->dialect, name)))
        return bad(x, "tool_choice", "auto or none: this model has no tool calls, so auto or none");
    if (!conversation_encode(&chat->conversation, x->tokenizer, style, chat->opener, job, &reasons, &error)) {
        exchange_error(x, 400, NULL, NULL, "messages", "%s", error.text);
        return false;
    }
    ask_seed(&f, job);
    rules->keep_special = f.at[FIELD_SKIP_SPECIAL_TOKENS].given && !f.at[FIELD_SKIP_SPECIAL_TOKENS].truth;
    rules->opener = chat->opener;
    rules->reply = (struct reply_options){
        .dialect = style->dialect,
        .reasoning = reasons,
        .reasoning_open = style->reasoning_open,
        .reasoning_close = style->reasoning_close,
        .tools = chat->conversation.tools,
        .stop = chat->stops.text,
        .stop_count = chat->stops.count,
        .parallel_calls = !f.at[FIELD_PARALLEL_TOOL_CALLS].given || f.at[FIELD_PARALLEL_TOOL_CALLS].truth,
    };
    return true;
}

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
    chat->root = root;
    x->state = chat;
    if (!prepare(x, chat, job, &rules)) {
        job_free(job);
        release(x);
        return;
    }
    exchange_submit(x, job, &dialect, &rules, "messages");
}
