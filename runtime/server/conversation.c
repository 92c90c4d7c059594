// SPDX-License-Identifier: Apache-2.0
//
// Messages to a prompt; see conversation.h. Invariant: what a message says reaches the model as text, never as a control token
// and never as another message.

#include "runtime/server/conversation.h"
#include "runtime/json_exact.h"
#include "runtime/prompt.h"
#include "runtime/server/input.h"
#include "runtime/server/tools.h"

#include <stdlib.h>
#include <string.h>

static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};

// ---- reading ---------------------------------------------------------------------------------------------------------------------

// The text of a content: a string, null, or an array of text parts, which follow each other.
static json_t *content_text(const json_t *content, size_t index, struct error *error)
{
    if (!input_given(content))
        return json_string("");
    if (json_is_string(content))
        return json_incref((json_t *)(uintptr_t)content);
    if (!json_is_array(content)) {
        error_set(error, "messages[%zu].content: a text or an array of parts is expected", index);
        return NULL;
    }
    size_t i, bytes = 0;
    json_t *part;
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        if (!json_is_string(text)) {
            const char *type = json_string_value(json_object_get(part, "type"));
            error_set(error, "messages[%zu].content[%zu]: only parts of text are possible, found %.40s", index, i,
                      type ? type : "no type");
            return NULL;
        }
        bytes += json_string_length(text);
    }
    char *joined = malloc(bytes + 1), *at = joined;
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        if (at)
            at = (char *)memcpy(at, json_string_value(text), json_string_length(text)) + json_string_length(text);
    }
    json_t *result = joined ? json_stringn(joined, bytes) : NULL;
    free(joined);
    if (!result)
        error_set(error, "no memory for a message");
    return result;
}

// One call of an assistant's message, its arguments as an object.
static json_t *read_call(json_t *call, size_t index, size_t number, struct error *error)
{
    const json_t *function = json_object_get(call, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    json_t *arguments = json_object_get(function, "arguments");
    if (!name) {
        error_set(error, "messages[%zu].tool_calls[%zu]: function.name is missing", index, number);
        return NULL;
    }
    json_t *object = NULL;
    if (json_is_object(arguments))
        object = json_incref(arguments);
    else if (!input_given(arguments) || (json_is_string(arguments) && !json_string_length(arguments)))
        object = json_object();
    else if (json_is_string(arguments))
        object = json_exact_load(json_string_value(arguments), json_string_length(arguments), 0, JSON_KEEP_ALL, NULL);
    if (!json_is_object(object)) {
        json_decref(object);
        error_set(error, "messages[%zu].tool_calls[%zu].function.arguments: the text of a JSON object is expected",
                  index, number);
        return NULL;
    }
    json_t *read = json_pack("{s:s, s:{s:s, s:o}}", "type", "function", "function", "name", name, "arguments", object);
    json_t *id = json_object_get(call, "id");
    if (read && json_is_string(id))
        json_object_set(read, "id", id);
    return read;
}

static bool read_calls(json_t *message, const json_t *calls, size_t index, struct error *error)
{
    size_t i;
    json_t *call;
    if (!input_given(calls) || (json_is_array(calls) && !json_array_size(calls)))
        return true;
    if (!json_is_array(calls))
        return error_set(error, "messages[%zu].tool_calls: an array is expected", index);
    json_t *list = json_array();
    json_array_foreach(calls, i, call)
    {
        json_t *read = read_call(call, index, i, error);
        if (!read || json_array_append_new(list, read)) {
            json_decref(list);
            return false;
        }
    }
    return !json_object_set_new(message, "tool_calls", list);
}

static const char *read_role(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    for (size_t i = 0; role && i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(role, roles[i]))
            return !strcmp(role, "developer") ? "system" : !strcmp(role, "function") ? "tool" : roles[i];
    return NULL;
}

static json_t *read_message(const json_t *message, size_t index, struct error *error)
{
    static const char *const kept[] = {"name", "tool_call_id", "reasoning_content"};
    const char *role = read_role(message);
    if (!role) {
        error_set(error, "messages[%zu].role: one of system, developer, user, assistant, tool is expected", index);
        return NULL;
    }
    json_t *text = content_text(json_object_get(message, "content"), index, error);
    if (!text)
        return NULL;
    json_t *read = json_pack("{s:s, s:o}", "role", role, "content", text);
    for (size_t i = 0; read && i < sizeof kept / sizeof *kept; i++) {
        json_t *value = json_object_get(message, kept[i]);
        if (json_is_string(value))
            json_object_set(read, kept[i], value);
    }
    json_t *reasoning = json_object_get(message, "reasoning");
    if (read && json_is_string(reasoning) && !json_object_get(read, "reasoning_content"))
        json_object_set(read, "reasoning_content", reasoning);
    if (read && !read_calls(read, json_object_get(message, "tool_calls"), index, error)) {
        json_decref(read);
        return NULL;
    }
    return read;
}

static bool is_system(const json_t *message)
{
    return !strcmp(json_string_value(json_object_get(message, "role")), "system");
}

// Leading system messages become one.
static bool merge_system(json_t *messages)
{
    while (json_array_size(messages) > 1 && is_system(json_array_get(messages, 0)) &&
           is_system(json_array_get(messages, 1))) {
        json_t *both =
            json_sprintf("%s\n\n%s", json_string_value(json_object_get(json_array_get(messages, 0), "content")),
                         json_string_value(json_object_get(json_array_get(messages, 1), "content")));
        if (!both || json_object_set_new(json_array_get(messages, 0), "content", both) ||
            json_array_remove(messages, 1))
            return false;
    }
    return true;
}

bool conversation_read(struct conversation *c, const json_t *messages, json_t *tools, const json_t *kwargs,
                       struct error *error)
{
    size_t i;
    json_t *message;
    *c = (struct conversation){.wrong = "messages"};
    if (!json_is_array(messages) || !json_array_size(messages))
        return error_set(error, "messages: an array of at least one message is expected");
    c->wrong = "chat_template_kwargs";
    if (input_given(kwargs) && !json_is_object(kwargs))
        return error_set(error, "chat_template_kwargs: an object is expected");
    c->wrong = "tools";
    if (input_given(tools) && !tools_check(tools, TOOLS_CHAT, REPLY_PLAIN, error))
        return false;
    c->wrong = "messages";
    c->messages = json_array();
    c->kwargs = json_is_object(kwargs) ? json_copy((json_t *)(uintptr_t)kwargs) : json_object();
    json_array_foreach(messages, i, message)
    {
        json_t *read = read_message(message, i, error);
        if (!read || json_array_append_new(c->messages, read)) {
            conversation_close(c);
            return false;
        }
    }
    if (!c->messages || !c->kwargs || !merge_system(c->messages)) {
        conversation_close(c);
        return error_set(error, "no memory for the messages");
    }
    c->tools = json_array_size(tools) ? json_incref(tools) : NULL;
    return true;
}

void conversation_close(struct conversation *c)
{
    json_decref(c->messages);
    json_decref(c->tools);
    json_decref(c->kwargs);
    *c = (struct conversation){.wrong = c->wrong};
}

// ---- rendering -------------------------------------------------------------------------------------------------------------------

struct rendered {
    char *text;
    size_t bytes;
    struct chat_segment *segments;
    size_t segment_count;
};

static bool later_systems_to_user(json_t *messages)
{
    bool any = false;
    for (size_t i = 1; i < json_array_size(messages); i++)
        if (is_system(json_array_get(messages, i)))
            any = !json_object_set_new(json_array_get(messages, i), "role", json_string("user"));
    return any;
}

static bool render(struct conversation *c, struct rendered *r, struct error *error)
{
    if (!chat_present())
        return error_set(error, "this model has no chat template; use /v1/completions");
    if (chat_render_segments(c->messages, c->tools, c->kwargs, true, &r->text, &r->bytes, &r->segments,
                             &r->segment_count, error))
        return true;
    return later_systems_to_user(c->messages) &&
           chat_render_segments(c->messages, c->tools, c->kwargs, true, &r->text, &r->bytes, &r->segments,
                                &r->segment_count, error);
}

// Appends the opener, which is ours: its special tokens count.
static bool append(struct rendered *r, const char *opener, struct error *error)
{
    const size_t more = strlen(opener);
    char *text = realloc(r->text, r->bytes + more + 1);
    r->text = text ? text : r->text;
    struct chat_segment *segments = realloc(r->segments, (r->segment_count + 1) * sizeof *segments);
    r->segments = segments ? segments : r->segments;
    if (!text || !segments)
        return error_set(error, "no memory for the prompt");
    memcpy(text + r->bytes, opener, more + 1);
    segments[r->segment_count++] = (struct chat_segment){r->bytes, r->bytes + more, true};
    r->bytes += more;
    return true;
}

// A message starts where the token stands that every message starts with: the prompt's first, when it is special.
static bool set_marks(struct job *job, const struct tokenizer *tokenizer, struct error *error)
{
    if (job->count < 1 || !tokenizer_is_special(tokenizer, job->ids[0]))
        return true;
    int count = 0;
    for (int i = 1; i < job->count; i++)
        count += job->ids[i] == job->ids[0];
    job->marks = malloc((size_t)(count + 1) * sizeof *job->marks);
    if (!job->marks)
        return error_set(error, "no memory for the prompt");
    for (int i = 1; i < job->count; i++)
        if (job->ids[i] == job->ids[0])
            job->marks[job->mark_count++] = i;
    return true;
}

bool conversation_encode(struct conversation *c, struct tokenizer *tokenizer, const struct reply_style *style,
                         const char *opener, struct job *job, bool *reasons, struct error *error)
{
    struct rendered r = {0};
    size_t count = 0;
    if (!render(c, &r, error))
        return false;
    *reasons = reply_prompt_reasons(style, r.text, r.bytes);
    bool ok = (!opener || *reasons || append(&r, opener, error)) &&
              prompt_encode(tokenizer, &tokenizer_tables, r.text, r.bytes, r.segments, r.segment_count, &job->ids,
                            &count, error);
    free(r.text);
    free(r.segments);
    if (ok && count > INT32_MAX / 2)
        return error_set(error, "the prompt has %zu tokens", count);
    job->count = (int)count;
    return ok && set_marks(job, tokenizer, error);
}
