// SPDX-License-Identifier: Apache-2.0
//
// A request of OpenAI's responses API to the shape of its chat. Items of an assistant's turn become one message. What would change
// the reply and cannot be done is refused.

#include "runtime/json_exact.h"
#include "runtime/server/input.h"
#include "runtime/server/openai.h"
#include "runtime/server/responses.h"
#include "runtime/server/tools.h"

#include <stdlib.h>
#include <string.h>

static bool bad(struct exchange *x, const char *param, size_t index, const char *expected)
{
    exchange_error(x, 400, NULL, "invalid_value", param, "%s[%zu]: %s", param, index, expected);
    return false;
}

static json_t *own(const json_t *value)
{
    return json_incref((json_t *)(uintptr_t)value);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool is(const json_t *object, const char *key, const char *text)
{
    return !strcmp(text_of(object, key), text);
}

// The text of a content: a string, or parts that have one. NULL: it has others.
static json_t *content_text(const json_t *content)
{
    struct string text = {0};
    size_t i;
    json_t *part;
    bool ok = true;
    if (!input_given(content))
        return json_string("");
    if (json_is_string(content))
        return own(content);
    json_array_foreach((json_t *)(uintptr_t)content, i, part)
    {
        const json_t *inner = json_object_get(part, "text");
        ok = ok && json_is_string(inner) && string_add(&text, json_string_value(inner), json_string_length(inner));
    }
    json_t *joined = ok && json_is_array(content) ? string_json(&text) : NULL;
    free(text.bytes);
    return joined;
}

// ---- items -----------------------------------------------------------------------------------------------------------------------

// Messages being made; the last one is the assistant's and may grow where `growing`.
struct making {
    struct exchange *x;
    json_t *messages;
    bool growing;
};

static json_t *assistant(struct making *m)
{
    if (!m->growing)
        json_array_append_new(m->messages, json_pack("{s:s}", "role", "assistant"));
    m->growing = true;
    return json_array_get(m->messages, json_array_size(m->messages) - 1);
}

static bool take_message(struct making *m, const json_t *item, size_t index)
{
    const char *role = text_of(item, "role");
    json_t *text = content_text(json_object_get(item, "content"));
    if (!text || !input_given(json_object_get(item, "content"))) {
        json_decref(text);
        return bad(m->x, "input", index, "content: a text, or parts of text, is expected; this model reads text only");
    }
    if (!strcmp(role, "assistant")) {
        json_t *last = assistant(m);
        if (json_object_get(last, "content") || json_object_get(last, "tool_calls")) {
            m->growing = false;
            last = assistant(m);
        }
        return json_object_set_new(last, "content", text) == 0;
    }
    m->growing = false;
    if (!strcmp(role, "user") || !strcmp(role, "system") || !strcmp(role, "developer"))
        return json_array_append_new(m->messages, json_pack("{s:s, s:o}", "role", role, "content", text)) == 0;
    json_decref(text);
    return bad(m->x, "input", index, "role: one of user, assistant, system, developer is expected");
}

// Whether a call's arguments are the text of an object; as elsewhere, no text is an empty one.
static bool is_object_text(const json_t *text)
{
    json_t *object = json_exact_load(json_string_value(text), json_string_length(text), 0, JSON_KEEP_ALL, NULL);
    const bool good = !json_string_length(text) || json_is_object(object);
    json_decref(object);
    return good;
}

static bool take_call(struct making *m, const json_t *item, size_t index)
{
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
                 *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return bad(m->x, "input", index, "call_id, name and arguments, texts, are expected");
    if (!is_object_text(arguments))
        return bad(m->x, "input", index, "arguments: the text of a JSON object is expected");
    json_t *last = assistant(m), *calls = json_object_get(last, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(last, "tool_calls", calls);
    }
    return json_array_append_new(calls, json_pack("{s:o, s:s, s:{s:o, s:o}}", "id", own(id), "type", "function",
                                                  "function", "name", own(name), "arguments", own(arguments))) == 0;
}

static bool take_output(struct making *m, const json_t *item, size_t index)
{
    const json_t *id = json_object_get(item, "call_id");
    json_t *text = content_text(json_object_get(item, "output"));
    m->growing = false;
    if (text && json_is_string(id) && input_given(json_object_get(item, "output")))
        return json_array_append_new(m->messages, json_pack("{s:s, s:o, s:o}", "role", "tool", "tool_call_id", own(id),
                                                            "content", text)) == 0;
    json_decref(text);
    return bad(m->x, "input", index, "call_id and output, texts, are expected");
}

static bool take_reasoning(struct making *m, const json_t *item, size_t index)
{
    const json_t *content = json_object_get(item, "content");
    json_t *text = content_text(json_array_size(content) ? content : json_object_get(item, "summary"));
    if (!text)
        return bad(m->x, "input", index, "content: parts of text are expected");
    if (m->growing)
        m->growing = !json_object_get(assistant(m), "content") && !json_object_get(assistant(m), "tool_calls");
    if (json_string_length(text))
        json_object_set(assistant(m), "reasoning_content", text);
    json_decref(text);
    return true;
}

static bool take_item(struct making *m, const json_t *item, size_t index)
{
    const char *type = text_of(item, "type");
    if (!strcmp(type, "message") || (!*type && json_object_get(item, "role")))
        return take_message(m, item, index);
    if (!strcmp(type, "function_call"))
        return take_call(m, item, index);
    if (!strcmp(type, "function_call_output"))
        return take_output(m, item, index);
    if (!strcmp(type, "reasoning"))
        return take_reasoning(m, item, index);
    return bad(m->x, "input", index,
               "type: one of message, function_call, function_call_output, reasoning is expected");
}

static bool take_input(struct exchange *x, const json_t *input, json_t *messages)
{
    struct making m = {x, messages, false};
    size_t i;
    json_t *item;
    bool ok = true;
    if (json_is_string(input))
        return json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", own(input))) == 0;
    if (!json_is_array(input) || !json_array_size(input)) {
        exchange_error(x, 400, NULL, "invalid_value", "input",
                       "input: a text, or an array of at least one item, is expected");
        return false;
    }
    json_array_foreach((json_t *)(uintptr_t)input, i, item)
    {
        ok = ok && take_item(&m, item, i);
    }
    for (i = 0; ok && i < json_array_size(messages); i++) // calls alone have no content
        if (!json_object_get(json_array_get(messages, i), "content"))
            json_object_set_new(json_array_get(messages, i), "content", json_string(""));
    return ok;
}

// ---- the rest --------------------------------------------------------------------------------------------------------------------

static bool take_tools(struct exchange *x, const json_t *tools, json_t *out)
{
    size_t i;
    json_t *tool;
    struct error error = {0};
    if (!input_given(tools))
        return true;
    if (!tools_check(tools, TOOLS_RESPONSES, x->server->style.dialect, &error))
        return ask_refuse(x, "tools", &error);
    json_t *list = json_array();
    json_object_set_new(out, "tools", list);
    json_array_foreach((json_t *)(uintptr_t)tools, i, tool)
    {
        json_t *function = json_copy(tool);
        json_object_del(function, "type");
        json_array_append_new(list, json_pack("{s:s, s:o}", "type", "function", "function", function));
    }
    return true;
}

static bool take_choice(struct exchange *x, const json_t *choice, json_t *out)
{
    struct error error = {0};
    if (!input_given(choice))
        return true;
    if (!tools_choice_check(choice, TOOLS_RESPONSES, &error))
        return ask_refuse(x, "tool_choice", &error);
    return json_object_set_new(out, "tool_choice",
                               json_is_string(choice) ? own(choice)
                                                      : json_pack("{s:s, s:{s:s}}", "type", "function", "function",
                                                                  "name", text_of(choice, "name"))) == 0;
}

static bool take_format(struct exchange *x, const json_t *root, json_t *out)
{
    const json_t *text = json_object_get(root, "text"), *format = json_object_get(text, "format"),
                 *asked = json_object_get(format, "schema");
    ask_rename(x, "response_format", "text.format");
    ask_rename(x, "response_format.json_schema", "text.format");
    if (!input_given(format) || is(format, "type", "text"))
        return true;
    if (is(format, "type", "json_schema") && (!input_given(asked)))
        return ask_bad(x, "response_format", "the schema as its \"schema\"");
    if (is(format, "type", "json_schema")) {
        json_t *schema = json_copy((json_t *)(uintptr_t)format);
        json_object_del(schema, "type");
        return json_object_set_new(out, "response_format",
                                   json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", schema)) == 0;
    }
    if (is(format, "type", "json_object"))
        return json_object_set_new(out, "response_format", own(format)) == 0;
    exchange_error(x, 400, NULL, "invalid_value", "text.format",
                   "text.format.type: one of text, json_object, json_schema is expected");
    return false;
}

static void copy_fields(struct exchange *x, const json_t *root, json_t *out)
{
    static const struct {
        const char *from, *to;
    } same[] = {{"model", "model"},
                {"max_output_tokens", "max_tokens"},
                {"stream", "stream"},
                {"temperature", "temperature"},
                {"top_p", "top_p"},
                {"top_k", "top_k"},
                {"min_p", "min_p"},
                {"seed", "seed"},
                {"stop", "stop"},
                {"ignore_eos", "ignore_eos"},
                {"draft", "draft"},
                {"priority", "priority"},
                {"parallel_tool_calls", "parallel_tool_calls"},
                {"chat_template_kwargs", "chat_template_kwargs"},
                {"thinking_budget", "thinking_budget"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        if (strcmp(same[i].from, same[i].to))
            ask_rename(x, same[i].to, same[i].from);
        if (json_object_get(root, same[i].from))
            json_object_set_new(out, same[i].to, own(json_object_get(root, same[i].from)));
    }
    ask_rename(x, "reasoning_effort", "reasoning.effort");
    ask_rename(x, "messages", "input");
    const json_t *effort = json_object_get(json_object_get(root, "reasoning"), "effort");
    if (effort)
        json_object_set_new(out, "reasoning_effort", own(effort));
}

// ---- fields that are looked at alone ---------------------------------------------------------------------------------------------

enum { WORDS = 5 };

// Whether a field, where it is given, is one of some words, or any text where there are none.
static bool check_text(struct exchange *x, const json_t *value, const char *field, const char *const words[WORDS])
{
    char expected[96] = "a text";
    const char *text = json_string_value(value);
    size_t at = 0;
    if (!input_given(value) || (text && !words[0]))
        return true;
    for (int i = 0; i < WORDS && words[i]; i++) {
        if (text && !strcmp(text, words[i]))
            return true;
        at += (size_t)snprintf(expected + at, sizeof expected - at, i ? ", %s" : "one of %s", words[i]);
    }
    return ask_wrong(x, field, expected, value);
}

// Fields that change no reply: what is in them is checked all the same.
static bool check_texts(struct exchange *x, const json_t *root)
{
    static const struct {
        const char *within, *key, *field, *words[WORDS];
    } rows[] = {
        {NULL, "instructions", "instructions", {NULL}},
        {NULL, "user", "user", {NULL}},
        {NULL, "safety_identifier", "safety_identifier", {NULL}},
        {NULL, "prompt_cache_key", "prompt_cache_key", {NULL}},
        {NULL, "truncation", "truncation", {"auto", "disabled"}},
        {NULL, "service_tier", "service_tier", {"auto", "default", "flex", "scale", "priority"}},
        {"text", "verbosity", "text.verbosity", {"low", "medium", "high"}},
        {"reasoning", "summary", "reasoning.summary", {NULL}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const json_t *object = rows[i].within ? json_object_get(root, rows[i].within) : root;
        if (!check_text(x, json_object_get(object, rows[i].key), rows[i].field, rows[i].words))
            return false;
    }
    return true;
}

// What would be added to the reply. Reasoning comes as text anyway, and needs no other way to be sent back.
static bool check_include(struct exchange *x, const json_t *include)
{
    static const char only[] = "reasoning.encrypted_content";
    char field[32];
    size_t i;
    json_t *value;
    if (input_given(include) && !json_is_array(include))
        return ask_wrong(x, "include", "an array", include);
    json_array_foreach((json_t *)(uintptr_t)include, i, value)
    {
        snprintf(field, sizeof field, "include[%zu]", i);
        if (!json_is_string(value) || strcmp(json_string_value(value), only))
            return ask_wrong(x, field, "only \"reasoning.encrypted_content\"", value);
    }
    return true;
}

static bool check_stream_options(struct exchange *x, const json_t *options)
{
    const json_t *padded = json_object_get(options, "include_obfuscation");
    if (input_given(options) && !json_is_object(options))
        return ask_wrong(x, "stream_options", "an object", options);
    return !input_given(padded) || json_is_boolean(padded) ||
           ask_wrong(x, "stream_options.include_obfuscation", "true or false", padded);
}

static bool check_metadata(struct exchange *x, const json_t *metadata)
{
    const json_t *value;
    const char *key;
    if (input_given(metadata) && !json_is_object(metadata))
        return ask_wrong(x, "metadata", "an object of texts", metadata);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value))
            return ask_wrong(x, "metadata", "an object of texts", value);
    }
    return true;
}

// What is kept elsewhere by its id is not kept here.
static bool check_kept(struct exchange *x, const json_t *root)
{
    static const struct {
        const char *field, *instead;
    } rows[] = {
        {"conversation", "conversations are not kept here: send its items as input, or previous_response_id"},
        {"prompt", "prompts are not kept here: send the text as instructions and input"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (input_given(json_object_get(root, rows[i].field))) {
            exchange_error(x, 400, NULL, "invalid_value", rows[i].field, "%s: %s", rows[i].field, rows[i].instead);
            return false;
        }
    return true;
}

// Fields that change no reply, or only by what is in them, would go unseen with a wrong type.
static bool check_fields(struct exchange *x, const json_t *root)
{
    const json_t *reasoning = json_object_get(root, "reasoning"), *text = json_object_get(root, "text"),
                 *background = json_object_get(root, "background"), *tops = json_object_get(root, "top_logprobs");
    struct fields fields;
    if (input_given(background) && !json_is_false(background))
        return ask_wrong(x, "background", "only false", background);
    if (input_given(reasoning) && !json_is_object(reasoning))
        return ask_wrong(x, "reasoning", "an object", reasoning);
    if (input_given(text) && !json_is_object(text))
        return ask_wrong(x, "text", "an object", text);
    if (!ask_fields(x, &fields, root, FIELD_BIT(FIELD_TOP_LOGPROBS) | FIELD_BIT(FIELD_MAX_TOOL_CALLS)))
        return false;
    if (fields.at[FIELD_TOP_LOGPROBS].integer)
        return ask_wrong(x, "top_logprobs", "0, since only /v1/chat/completions gives log-probabilities,", tops);
    return check_kept(x, root) && check_texts(x, root) && check_metadata(x, json_object_get(root, "metadata")) &&
           check_include(x, json_object_get(root, "include")) &&
           check_stream_options(x, json_object_get(root, "stream_options"));
}

// ---- the whole request -----------------------------------------------------------------------------------------------------------

json_t *responses_translate(struct exchange *x, const json_t *root, const json_t *before, json_t **history)
{
    const json_t *instructions = json_object_get(root, "instructions");
    json_t *out = json_object(), *messages = json_array();
    *history = before ? json_copy((json_t *)(uintptr_t)before) : json_array();
    copy_fields(x, root, out);
    bool ok = check_fields(x, root);
    if (json_is_string(instructions))
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "system", "content", own(instructions)));
    ok = ok && take_input(x, json_object_get(root, "input"), *history) &&
         take_tools(x, json_object_get(root, "tools"), out) &&
         take_choice(x, json_object_get(root, "tool_choice"), out) && take_format(x, root, out);
    json_array_extend(messages, *history);
    json_object_set_new(out, "messages", messages);
    if (ok)
        return out;
    json_decref(out);
    json_decref(*history);
    *history = NULL;
    return NULL;
}

json_t *responses_call_id(const struct exchange *x, const struct block *block)
{
    return json_sprintf("call_%s_%d", x->id, block->call);
}

json_t *responses_message(const struct exchange *x, const struct blocks *blocks)
{
    static const char *const keys[] = {[BLOCK_REASONING] = "reasoning_content", [BLOCK_TEXT] = "content"};
    json_t *message = json_pack("{s:s, s:s}", "role", "assistant", "content", ""), *calls = json_array();
    for (int i = 0; i < blocks->count; i++) {
        const struct block *block = &blocks->list[i];
        if (block->kind == BLOCK_CALL) {
            json_array_append_new(calls, json_pack("{s:o, s:s, s:{s:o, s:o}}", "id", responses_call_id(x, block),
                                                   "type", "function", "function", "name", string_json(&block->name),
                                                   "arguments", string_json(&block->text)));
            continue;
        }
        const char *before = json_string_value(json_object_get(message, keys[block->kind]));
        json_object_set_new(message, keys[block->kind],
                            json_sprintf("%s%s", before ? before : "", block->text.count ? block->text.bytes : ""));
    }
    if (json_array_size(calls))
        json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    return message;
}
