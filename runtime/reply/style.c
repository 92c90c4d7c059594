// SPDX-License-Identifier: Apache-2.0
//
// How a model writes calls and reasoning, from what its chat template renders.
// Invariant: what is asked is the template's own rendering, so no name of a model or of a file counts.

#include "runtime/reply/bytes.h"
#include "runtime/reply/reply.h"

#include "runtime/chat.h"

static const char think_open[] = "<think>", think_close[] = "</think>";

enum { EFFORTS = 6 };
static const char *const efforts[EFFORTS] = {"minimal", "low", "medium", "high", "xhigh", "max"};

// What the template makes of a conversation, given as JSON; NULL when it refuses it. To be freed.
static char *rendered(const struct chat_template *templ, const char *conversation, const char *effort)
{
    char *text = NULL;
    size_t bytes;
    struct error error;
    json_t *json = json_loads(conversation, 0, NULL), *kwargs = json_object();
    if (effort)
        json_object_set_new(kwargs, "reasoning_effort", json_string(effort));
    if (!json || !chat_render_with(templ, json_object_get(json, "messages"), NULL, kwargs, true, 0, &text, &bytes, NULL,
                                   NULL, &error))
        text = NULL;
    json_decref(json);
    json_decref(kwargs);
    return text;
}

struct reply_style reply_style_of(const struct chat_template *templ)
{
    struct reply_style style = {.dialect = REPLY_PLAIN};
    char *call = rendered(templ,
                          "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
                          "\"content\": \"\", \"tool_calls\": [{\"id\": \"1\", \"type\": \"function\", \"function\": "
                          "{\"name\": \"probe\", \"arguments\": {\"key\": \"value\"}}}]}, "
                          "{\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"r\"}]}",
                          NULL);
    if (call && strstr(call, "<function=probe>") && strstr(call, "<parameter=key>"))
        style.dialect = REPLY_XML;
    else if (call && strstr(call, "<tool_call>") && strstr(call, "\"name\": \"probe\""))
        style.dialect = REPLY_JSON;
    char *thought = rendered(templ,
                             "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
                             "\"content\": \"a\", \"reasoning_content\": \"thought\"}]}",
                             NULL);
    if (thought && strstr(thought, think_open) && strstr(thought, think_close)) {
        style.reasoning_open = think_open;
        style.reasoning_close = think_close;
    }
    free(call);
    free(thought);
    for (int i = 0; i < EFFORTS; i++) {
        char *text = rendered(templ, "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}", efforts[i]);
        style.efforts |= text ? 1u << i : 0;
        free(text);
    }
    return style;
}

const char *reply_effort(const struct reply_style *style, const char *asked)
{
    int level = 0;
    if (!strcmp(asked, "none"))
        return "none";
    while (level < EFFORTS && strcmp(asked, efforts[level]))
        level++;
    if (level == EFFORTS)
        return NULL;
    for (int away = 0; away < EFFORTS; away++) {
        if (level + away < EFFORTS && style->efforts >> (level + away) & 1)
            return efforts[level + away];
        if (level - away >= 0 && style->efforts >> (level - away) & 1)
            return efforts[level - away];
    }
    return efforts[level];
}

bool reply_is_marker(const char *text, size_t bytes)
{
    static const char *const markers[] = {think_open, think_close, "<tool_call>", "</tool_call>"};
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++)
        if (strlen(markers[i]) == bytes && !memcmp(markers[i], text, bytes))
            return true;
    return false;
}

bool reply_prompt_reasons(const struct reply_style *style, const char *prompt, size_t bytes)
{
    if (!style->reasoning_open)
        return false;
    size_t length = strlen(style->reasoning_open);
    while (bytes && (prompt[bytes - 1] == '\n' || prompt[bytes - 1] == ' '))
        bytes--;
    return bytes >= length && !memcmp(prompt + bytes - length, style->reasoning_open, length);
}

char *reply_call_opener(enum reply_dialect dialect, const char *name)
{
    struct bytes text = {0};
    if (dialect == REPLY_PLAIN)
        return NULL;
    bytes_text(&text, dialect == REPLY_XML ? "<tool_call>\n<function=" : "<tool_call>\n{\"name\": \"");
    if (name) {
        bytes_text(&text, name);
        bytes_text(&text, dialect == REPLY_XML ? ">\n" : "\", \"arguments\": ");
    }
    bytes_add(&text, "", 1);
    if (text.failed)
        bytes_free(&text);
    return text.data;
}
