// SPDX-License-Identifier: Apache-2.0
//
// A chat in OpenAI's shape to a job; see chat_request.h. What is wrong is said before anything is rendered.

#include "runtime/server/chat_request.h"

#include <stdlib.h>
#include <string.h>

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
static bool ask_tools(struct exchange *x, struct chat_request *r, json_t **tools, bool *must, const char **name)
{
    json_t *choice = json_object_get(r->root, "tool_choice");
    *tools = json_object_get(r->root, "tools");
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

static bool ask_stream(struct exchange *x, struct chat_request *r, const struct fields *f)
{
    const json_t *options = json_object_get(r->root, "stream_options");
    const json_t *usage = json_object_get(options, "include_usage");
    r->stream = f->at[FIELD_STREAM].truth;
    if (options && !json_is_null(options) && !json_is_object(options))
        return bad(x, "stream_options", "an object");
    if (usage && !json_is_null(usage) && !json_is_boolean(usage))
        return bad(x, "stream_options.include_usage", "true or false");
    r->include_usage = json_is_true(usage);
    return true;
}

static bool ask_limits(struct exchange *x, struct chat_request *r, const struct fields *f, struct job *job)
{
    const enum field limit = f->at[FIELD_MAX_COMPLETION_TOKENS].given ? FIELD_MAX_COMPLETION_TOKENS : FIELD_MAX_TOKENS;
    job->reply = f->at[limit].given ? (int)f->at[limit].integer : 0;
    r->logprobs = f->at[FIELD_WANT_LOGPROBS].truth;
    r->alternatives = (int)f->at[FIELD_TOP_LOGPROBS].integer;
    if (r->alternatives && !r->logprobs)
        return bad(x, "top_logprobs", "logprobs: true beside it");
    job->logprobs = !r->logprobs ? 0 : r->alternatives ? r->alternatives : -1;
    return true;
}

// Everything but the prompt: what is wrong with it is said before anything is rendered.
static bool ask(struct exchange *x, struct chat_request *r, struct job *job, struct fields *f)
{
    const uint64_t mask = SAMPLING_FIELDS | FIELD_BIT(FIELD_MAX_TOKENS) | FIELD_BIT(FIELD_MAX_COMPLETION_TOKENS) |
                          FIELD_BIT(FIELD_TOP_LOGPROBS) | FIELD_BIT(FIELD_WANT_LOGPROBS) |
                          FIELD_BIT(FIELD_PARALLEL_TOOL_CALLS) | FIELD_BIT(FIELD_THINKING_BUDGET);
    return ask_fields(x, f, r->root, mask) && ask_model(x, r->root) && ask_stream(x, r, f) &&
           ask_limits(x, r, f, job) && ask_sampling(x, f, r->root, job) &&
           ask_stops(x, json_object_get(r->root, "stop"), "stop", &r->stops);
}

bool chat_request_read(struct exchange *x, struct chat_request *r, json_t *root, struct job *job,
                       struct answer_rules *rules)
{
    struct fields f;
    struct error error = {0};
    json_t *tools;
    bool must, reasons = false;
    const char *name;
    r->root = root;
    if (!ask(x, r, job, &f) || !ask_tools(x, r, &tools, &must, &name))
        return false;
    if (!conversation_read(&r->conversation, json_object_get(r->root, "messages"), tools,
                           json_object_get(r->root, "chat_template_kwargs"), &error)) {
        exchange_error(x, 400, NULL, "invalid_value", "messages", "%s", error.text);
        return false;
    }
    if (!ask_thinking(x, r->root, r->conversation.kwargs))
        return false;
    const struct reply_style *style = &x->server->style;
    if (must && !(r->opener = reply_call_opener(style->dialect, name)))
        return bad(x, "tool_choice", "auto or none: this model has no tool calls, so auto or none");
    if (!conversation_encode(&r->conversation, x->tokenizer, style, r->opener, job, &reasons, &error)) {
        exchange_error(x, 400, NULL, NULL, "messages", "%s", error.text);
        return false;
    }
    ask_seed(&f, job);
    rules->keep_special = f.at[FIELD_SKIP_SPECIAL_TOKENS].given && !f.at[FIELD_SKIP_SPECIAL_TOKENS].truth;
    rules->opener = r->opener;
    rules->reply = (struct reply_options){
        .dialect = style->dialect,
        .reasoning = reasons,
        .reasoning_open = style->reasoning_open,
        .reasoning_close = style->reasoning_close,
        .tools = r->conversation.tools,
        .stop = r->stops.text,
        .stop_count = r->stops.count,
        .parallel_calls = !f.at[FIELD_PARALLEL_TOOL_CALLS].given || f.at[FIELD_PARALLEL_TOOL_CALLS].truth,
    };
    return true;
}

void chat_request_close(struct chat_request *r)
{
    conversation_close(&r->conversation);
    json_decref(r->root);
    free(r->opener);
    *r = (struct chat_request){0};
}
