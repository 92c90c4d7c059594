// SPDX-License-Identifier: Apache-2.0
//
// Gives a conversation to the compiled template under the names that transformers uses, and its text back.
// Invariant: nothing that a caller passes can take the place of the conversation or of the template's own switches.

#include "runtime/chat.h"
#include <stdlib.h>
#include <string.h>

bool chat_present(void)
{
    return chat_template.name != NULL;
}

static bool reserved(const char *name)
{
    return !strcmp(name, "messages") || !strcmp(name, "tools") || !strcmp(name, "add_generation_prompt");
}

// The names that the template sees, as a new object; NULL with the reason in error.
static json_t *make_input(json_t *messages, json_t *tools, json_t *kwargs, bool add_generation_prompt,
                          struct error *error)
{
    json_t *input = json_object();
    const char *name;
    json_t *item;
    bool ok = input && json_object_set(input, "messages", messages) == 0 &&
              json_object_set_new(input, "tools", tools ? json_incref(tools) : json_null()) == 0 &&
              json_object_set_new(input, "documents", json_null()) == 0 &&
              json_object_set_new(input, "add_generation_prompt", json_boolean(add_generation_prompt)) == 0;
    if (kwargs)
        json_object_foreach(kwargs, name, item)
        {
            if (reserved(name)) {
                error_set(error, "chat template: '%s' cannot be given as an extra argument of the template", name);
                json_decref(input);
                return NULL;
            }
            ok = ok && json_object_set(input, name, item) == 0;
        }
    if (!ok) {
        json_decref(input);
        error_set(error, "out of memory");
        return NULL;
    }
    return input;
}

static struct chat_segment *make_segments(const struct span *spans, size_t count)
{
    struct chat_segment *segments = malloc((count + 1) * sizeof *segments);
    for (size_t i = 0; segments && i < count; i++)
        segments[i] = (struct chat_segment){i ? spans[i - 1].end : 0, spans[i].end, spans[i].trusted};
    return segments;
}

bool chat_render_with(const struct chat_template *templ, json_t *messages, json_t *tools, json_t *kwargs,
                      bool add_generation_prompt, time_t now, char **text, size_t *bytes,
                      struct chat_segment **segments, size_t *count, struct error *error)
{
    if (!templ->render)
        return error_set(error, "the checkpoint has no chat template: use plain completions");
    if (!json_is_array(messages))
        return error_set(error, "messages: expected an array");
    if (tools && !json_is_array(tools) && !json_is_null(tools))
        return error_set(error, "tools: expected an array");
    if (kwargs && !json_is_object(kwargs))
        return error_set(error, "the extra arguments of the chat template: expected an object");
    json_t *input = make_input(messages, tools, kwargs, add_generation_prompt, error);
    if (!input)
        return false;
    struct span *spans;
    size_t span_count;
    bool ok = template_render(templ, input, now, text, bytes, &spans, &span_count, error);
    json_decref(input);
    if (!ok)
        return false;
    if (segments) {
        *segments = make_segments(spans, span_count);
        *count = span_count;
        if (!*segments) {
            free(*text);
            ok = error_set(error, "out of memory");
        }
    }
    free(spans);
    return ok;
}

bool chat_render_segments(json_t *messages, json_t *tools, json_t *kwargs, bool add_generation_prompt, char **text,
                          size_t *bytes, struct chat_segment **segments, size_t *count, struct error *error)
{
    return chat_render_with(&chat_template, messages, tools, kwargs, add_generation_prompt, time(NULL), text, bytes,
                            segments, count, error);
}

bool chat_render(json_t *messages, json_t *tools, json_t *kwargs, bool add_generation_prompt, char **text,
                 size_t *bytes, struct error *error)
{
    return chat_render_segments(messages, tools, kwargs, add_generation_prompt, text, bytes, NULL, NULL, error);
}

bool chat_trusted(const struct chat_segment *segments, size_t count, size_t begin, size_t end)
{
    size_t low = 0, high = count;
    while (low < high) { // the first segment that ends after begin
        size_t middle = (low + high) / 2;
        if (segments[middle].end > begin)
            high = middle;
        else
            low = middle + 1;
    }
    if (begin >= end)
        return true;
    return low < count && segments[low].trusted && segments[low].end >= end;
}
