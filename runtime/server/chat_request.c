// SPDX-License-Identifier: Apache-2.0
//
// A chat in OpenAI's shape to a job; see chat_request.h. What is wrong is said before anything is rendered.

#include "runtime/server/chat_request.h"
#include "runtime/server/input.h"
#include "runtime/server/structured.h"
#include "runtime/server/tools.h"

#include <stdlib.h>
#include <string.h>

// tool_choice: which tools are offered, and whether one must be called.
static bool ask_tools(struct exchange *x, struct chat_request *r, json_t **tools, bool *must, const char **name)
{
    struct error error = {0};
    json_t *choice = json_object_get(r->root, "tool_choice");
    *tools = json_object_get(r->root, "tools");
    *must = false;
    *name = NULL;
    if (input_given(*tools) && !tools_check(*tools, TOOLS_CHAT, x->server->style.dialect, &error))
        return ask_refuse(x, "tools", &error);
    if (!input_given(choice))
        return true;
    if (!tools_choice_check(choice, TOOLS_CHAT, &error))
        return ask_refuse(x, "tool_choice", &error);
    const char *word = json_string_value(choice);
    if (word && !strcmp(word, "none"))
        *tools = NULL;
    *must = !word || !strcmp(word, "required");
    *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    if (*must && !json_array_size(*tools))
        return ask_bad(x, "tools", "an array of at least one tool, since tool_choice asks for one,");
    return !*name || tools_choice_offered(*tools, *name, &error) || ask_refuse(x, "tool_choice", &error);
}

static bool ask_stream(struct exchange *x, struct chat_request *r, const struct fields *f)
{
    const json_t *options = json_object_get(r->root, "stream_options");
    const json_t *usage = json_object_get(options, "include_usage");
    r->stream = f->at[FIELD_STREAM].truth;
    if (input_given(options) && !json_is_object(options))
        return ask_bad(x, "stream_options", "an object");
    if (input_given(usage) && !json_is_boolean(usage))
        return ask_bad(x, "stream_options.include_usage", "true or false");
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
        return ask_bad(x, "top_logprobs", "logprobs: true beside it");
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

static bool parallel(const struct fields *f)
{
    return !f->at[FIELD_PARALLEL_TOOL_CALLS].given || f->at[FIELD_PARALLEL_TOOL_CALLS].truth;
}

// The grammar of the reply: a call that must be made, else the form that is asked for.
static bool ask_form(struct exchange *x, const struct chat_request *r, const json_t *tools, bool must, const char *name,
                     const struct fields *f, struct job *job)
{
    if (must)
        return structured_check(x, r->root) && structured_calls(x, tools, name, parallel(f), job);
    return structured_ask(x, r->root, tools, job);
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
        exchange_error(x, 400, NULL, "invalid_value", ask_name(x, r->conversation.wrong), "%s", error.text);
        return false;
    }
    if (!ask_thinking(x, &f, r->root, r->conversation.kwargs, &rules->budget))
        return false;
    const struct reply_style *style = &x->server->style;
    if (!ask_form(x, r, tools, must, name, &f, job))
        return false;
    if (must && !job->grammar && !(r->opener = reply_call_opener(style->dialect, name)))
        return ask_bad(x, "tool_choice", "auto or none, since this model has no tool calls,");
    if (!conversation_encode(&r->conversation, x->tokenizer, style, r->opener, job, &reasons, &error)) {
        exchange_error(x, 400, NULL, NULL, ask_name(x, "messages"), "%s", error.text);
        return false;
    }
    ask_seed(&f, job);
    x->conversation = &r->conversation;
    job->grammar_after = reasons ? style->reasoning_close : NULL;
    rules->keep_special = f.at[FIELD_SKIP_SPECIAL_TOKENS].given && !f.at[FIELD_SKIP_SPECIAL_TOKENS].truth;
    rules->opener = reasons ? NULL : r->opener;
    rules->forced = reasons ? r->opener : NULL;
    rules->reply = (struct reply_options){
        .dialect = style->dialect,
        .reasoning = reasons,
        .reasoning_open = style->reasoning_open,
        .reasoning_close = style->reasoning_close,
        .tools = r->conversation.tools,
        .stop = r->stops.text,
        .stop_count = r->stops.count,
        .call_asked = must,
        .parallel_calls = parallel(&f),
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
