// SPDX-License-Identifier: Apache-2.0
//
// A request of Anthropic's messages API to OpenAI's shape. What has no meaning here (cache_control, metadata, signatures) is
// taken and left out; what would change the reply and cannot be done is refused.

#include "runtime/server/anthropic.h"
#include "runtime/server/input.h"
#include "runtime/server/openai.h"
#include "runtime/server/tools.h"

#include <stdlib.h>
#include <string.h>

static bool bad(struct exchange *x, const char *format, size_t index, const char *expected)
{
    char where[96];
    snprintf(where, sizeof where, format, index);
    exchange_error(x, 400, NULL, NULL, NULL, "%s: %s", where, expected);
    return false;
}

static bool is(const json_t *object, const char *key, const char *text)
{
    const char *found = json_string_value(json_object_get(object, key));
    return found && !strcmp(found, text);
}

static json_t *own(const json_t *value)
{
    return json_incref((json_t *)(uintptr_t)value);
}

// Adds `more` to a text under key, behind `between` where there is a text already.
static bool join(json_t *object, const char *key, const char *between, const json_t *more)
{
    const json_t *before = json_object_get(object, key);
    if (!before)
        return json_object_set_new(object, key, own(more)) == 0;
    struct string text = {0};
    bool ok = string_add(&text, json_string_value(before), json_string_length(before)) &&
              string_add(&text, between, strlen(between)) &&
              string_add(&text, json_string_value(more), json_string_length(more)) &&
              json_object_set_new(object, key, json_stringn(text.bytes, text.count)) == 0;
    free(text.bytes);
    return ok;
}

// ---- messages --------------------------------------------------------------------------------------------------------------------

// The system prompt's text into a message. Blocks are paragraphs.
static bool translate_system(struct exchange *x, const json_t *system, json_t *messages)
{
    // A client's accounting, new with every request: a prompt that begins with it could never be cached.
    static const char accounting[] = "x-anthropic-billing-header:";
    size_t i;
    json_t *block;
    if (!input_given(system))
        return true;
    json_t *message = json_pack("{s:s}", "role", "system");
    if (json_is_string(system))
        join(message, "content", "", system);
    else if (!json_is_array(system))
        return json_decref(message), bad(x, "system", 0, "a text or an array of text blocks is expected");
    json_array_foreach((json_t *)(uintptr_t)system, i, block)
    {
        const json_t *text = json_object_get(block, "text");
        if (!json_is_string(text))
            return json_decref(message), bad(x, "system.%zu", i, "a block of type text is expected");
        if (strncmp(json_string_value(text), accounting, sizeof accounting - 1))
            join(message, "content", "\n\n", text);
    }
    if (json_object_get(message, "content"))
        json_array_append(messages, message);
    json_decref(message);
    return true;
}

// What a tool gave: a text, or blocks of text.
static bool translate_result(struct exchange *x, const json_t *block, size_t index, json_t *messages)
{
    const json_t *content = json_object_get(block, "content"), *id = json_object_get(block, "tool_use_id");
    size_t i;
    json_t *part;
    if (!json_is_string(id))
        return bad(x, "messages.%zu: tool_result.tool_use_id", index, "a text is expected");
    json_t *message = json_pack("{s:s, s:o}", "role", "tool", "tool_call_id", own(id));
    if (json_is_string(content))
        join(message, "content", "", content);
    json_array_foreach((json_t *)(uintptr_t)content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        if (!json_is_string(text))
            return json_decref(message),
                   bad(x, "messages.%zu: tool_result.content", index, "this model reads text only");
        join(message, "content", "\n", text);
    }
    if (!json_object_get(message, "content"))
        json_object_set_new(message, "content", json_string(""));
    return json_array_append_new(messages, message) == 0;
}

static bool translate_use(struct exchange *x, const json_t *block, size_t index, json_t *message)
{
    const json_t *name = json_object_get(block, "name"), *id = json_object_get(block, "id"),
                 *input = json_object_get(block, "input");
    if (!json_is_string(name) || !json_is_string(id) || (input && !json_is_object(input)))
        return bad(x, "messages.%zu: tool_use", index, "id and name, texts, and input, an object, are expected");
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(message, "tool_calls", calls);
    }
    return json_array_append_new(calls,
                                 json_pack("{s:o, s:s, s:{s:o, s:o}}", "id", own(id), "type", "function", "function",
                                           "name", own(name), "arguments", input ? own(input) : json_object())) == 0;
}

// One block of a message. Results of tools become messages of their own, in their place among the user's texts.
static bool translate_block(struct exchange *x, const json_t *block, size_t index, json_t **message, const char *role,
                            json_t *messages)
{
    const json_t *text = json_object_get(block, "text"), *thinking = json_object_get(block, "thinking");
    const bool assistant = !strcmp(role, "assistant");
    if (is(block, "type", "tool_result") && !assistant) {
        if (*message)
            json_array_append_new(messages, *message);
        *message = NULL;
        return translate_result(x, block, index, messages);
    }
    if (is(block, "type", "redacted_thinking"))
        return true;
    if (!*message)
        *message = json_pack("{s:s}", "role", role);
    if (is(block, "type", "text") && json_is_string(text))
        return join(*message, "content", assistant ? "" : "\n", text);
    if (is(block, "type", "thinking") && json_is_string(thinking) && assistant)
        return join(*message, "reasoning_content", "\n", thinking);
    if (is(block, "type", "tool_use") && assistant)
        return translate_use(x, block, index, *message);
    const char *type = json_string_value(json_object_get(block, "type"));
    exchange_error(x, 400, NULL, NULL, NULL,
                   "messages.%zu: a block of type %.40s is not possible in a message of the %s here", index,
                   type ? type : "(none)", role);
    return false;
}

static bool translate_message(struct exchange *x, const json_t *message, size_t index, json_t *messages)
{
    const json_t *content = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    size_t i;
    json_t *block, *made = NULL;
    bool ok = true;
    if (!role || (strcmp(role, "user") && strcmp(role, "assistant") && strcmp(role, "system")))
        return bad(x, "messages.%zu.role", index, "user or assistant is expected");
    if (json_is_string(content))
        return json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content", own(content))) == 0;
    if (!json_is_array(content))
        return bad(x, "messages.%zu.content", index, "a text or an array of blocks is expected");
    json_array_foreach((json_t *)(uintptr_t)content, i, block)
    {
        ok = ok && translate_block(x, block, index, &made, role, messages);
    }
    if (made && ok)
        json_array_append(messages, made);
    json_decref(made);
    return ok;
}

// ---- tools and switches ----------------------------------------------------------------------------------------------------------

static bool translate_tools(struct exchange *x, const json_t *tools, json_t *out)
{
    struct error error = {0};
    size_t i;
    json_t *tool;
    if (!input_given(tools))
        return true;
    if (!tools_check(tools, TOOLS_MESSAGES, x->server->style.dialect, &error)) {
        exchange_error(x, 400, NULL, NULL, NULL, "%s", error.text);
        return false;
    }
    json_t *list = json_array();
    json_object_set_new(out, "tools", list);
    json_array_foreach((json_t *)(uintptr_t)tools, i, tool)
    {
        const json_t *name = json_object_get(tool, "name"), *schema = json_object_get(tool, "input_schema");
        json_t *text = json_object_get(tool, "description"), *strict = json_object_get(tool, "strict");
        json_t *function = json_pack("{s:o}", "name", own(name));
        if (text)
            json_object_set(function, "description", text);
        json_object_set_new(function, "parameters", own(schema));
        if (strict) // false too: templates show a tool as it is
            json_object_set(function, "strict", strict);
        json_array_append_new(list, json_pack("{s:s, s:o}", "type", "function", "function", function));
    }
    return true;
}

static bool translate_choice(struct exchange *x, const json_t *choice, json_t *out)
{
    const json_t *name = json_object_get(choice, "name");
    struct error error = {0};
    if (!input_given(choice))
        return true;
    if (!tools_choice_check(choice, TOOLS_MESSAGES, &error))
        return ask_refuse(x, "tool_choice", &error);
    if (is(choice, "type", "any"))
        json_object_set_new(out, "tool_choice", json_string("required"));
    else if (is(choice, "type", "tool"))
        json_object_set_new(out, "tool_choice",
                            json_pack("{s:s, s:{s:o}}", "type", "function", "function", "name", own(name)));
    else
        json_object_set(out, "tool_choice", json_object_get(choice, "type"));
    if (json_is_true(json_object_get(choice, "disable_parallel_tool_use")))
        json_object_set_new(out, "parallel_tool_calls", json_false());
    return true;
}

static bool translate_thinking(struct exchange *x, const json_t *root, json_t *out)
{
    const json_t *thinking = json_object_get(root, "thinking"), *budget = json_object_get(thinking, "budget_tokens"),
                 *config = json_object_get(root, "output_config"), *effort = json_object_get(config, "effort");
    ask_rename(x, "reasoning_effort", "output_config.effort");
    if (effort)
        json_object_set_new(out, "reasoning_effort", own(effort));
    if (!input_given(thinking))
        return true;
    if (!is(thinking, "type", "enabled") && !is(thinking, "type", "disabled") && !is(thinking, "type", "adaptive"))
        return bad(x, "thinking.type", 0, "enabled, adaptive or disabled is expected");
    const bool on = !is(thinking, "type", "disabled");
    json_object_set_new(out, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", on));
    if (on && budget) {
        ask_rename(x, "thinking_budget", "thinking.budget_tokens");
        json_object_set_new(out, "thinking_budget", own(budget));
    }
    if (!on)
        json_object_del(out, "reasoning_effort");
    return true;
}

// Fields that mean the same in both.
static void copy_fields(struct exchange *x, const json_t *root, json_t *out)
{
    static const char *const same[] = {"model",           "max_tokens", "stream", "temperature", "top_p",
                                       "top_k",           "min_p",      "seed",   "ignore_eos",  "chat_template_kwargs",
                                       "thinking_budget", "priority",   "draft"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (json_object_get(root, same[i]))
            json_object_set_new(out, same[i], own(json_object_get(root, same[i])));
    const json_t *stop = json_object_get(root, "stop_sequences");
    if (json_array_size(stop) || (stop && !json_is_array(stop)))
        json_object_set_new(out, "stop", own(stop));
    ask_rename(x, "stop", "stop_sequences");
}

// The form of the reply, by its newer or its older name.
static bool translate_format(struct exchange *x, const json_t *root, json_t *out)
{
    const json_t *config = json_object_get(root, "output_config"), *format = json_object_get(config, "format");
    const char *name = "output_config.format";
    if (input_given(config) && !json_is_object(config))
        return ask_bad(x, "output_config", "an object");
    if (!input_given(format)) {
        format = json_object_get(root, "output_format");
        name = "output_format";
    }
    if (!input_given(format))
        return true;
    ask_rename(x, "response_format", name);
    ask_rename(x, "response_format.json_schema", name);
    const json_t *schema = json_object_get(format, "schema");
    if (!is(format, "type", "json_schema"))
        return ask_bad(x, "response_format", "type json_schema");
    if (!input_given(schema))
        return ask_bad(x, "response_format", "the schema as its \"schema\"");
    json_t *given = json_copy((json_t *)(uintptr_t)format);
    json_object_del(given, "type");
    return json_object_set_new(out, "response_format",
                               json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", given)) == 0;
}

json_t *anthropic_translate(struct exchange *x, const json_t *root, bool counting)
{
    const json_t *messages = json_object_get(root, "messages");
    json_t *out = json_object(), *list = json_array(), *message;
    size_t i;
    json_object_set_new(out, "messages", list);
    copy_fields(x, root, out);
    bool ok = true;
    if (!counting && !json_object_get(root, "max_tokens"))
        ok = bad(x, "max_tokens", 0, "Field required");
    else if (!json_is_array(messages) || !json_array_size(messages))
        ok = bad(x, "messages", 0, "an array of at least one message is expected");
    ok = ok && translate_system(x, json_object_get(root, "system"), list);
    json_array_foreach((json_t *)(uintptr_t)messages, i, message)
    {
        ok = ok && translate_message(x, message, i, list);
    }
    ok = ok && translate_tools(x, json_object_get(root, "tools"), out) &&
         translate_choice(x, json_object_get(root, "tool_choice"), out) && translate_thinking(x, root, out) &&
         translate_format(x, root, out);
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}
