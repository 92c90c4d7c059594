// SPDX-License-Identifier: Apache-2.0
//
// The dialect <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> </function> </tool_call>.
// A call has begun once a parameter, or the function's end, follows an offered name. A value ends at a marker after which the call
// goes on as it should, so that a file with such markers in it can be written; a marker that the model left out is made up.

#include "runtime/reply/internal.h"

enum phase { XML_OPEN, XML_BETWEEN, XML_VALUE, XML_CLOSE };

enum { BLANKS = 64 }; // most blanks between markers of a call that has not begun

// A text that is looked at from the left.
struct cursor {
    const char *text;
    size_t count;
};

static void skip(struct cursor *c, size_t count)
{
    c->text += count;
    c->count -= count;
}

static size_t skip_blanks(struct cursor *c)
{
    size_t at = 0;
    while (at < c->count && text_blank(c->text[at]))
        at++;
    skip(c, at);
    return at;
}

// Takes a marker that is wholly there.
static enum match take(struct cursor *c, const char *marker)
{
    enum match match = text_match(c->text, c->count, marker);
    if (match == MATCH_FULL)
        skip(c, strlen(marker));
    return match;
}

// Takes a marker like <parameter=KEY>; *name and *bytes are the key.
static enum match take_named(struct cursor *c, const char *marker, const char **name, size_t *bytes)
{
    struct cursor at = *c;
    enum match match = take(&at, marker);
    if (match != MATCH_FULL)
        return match;
    size_t end = 0;
    while (end < at.count && end <= CALL_NAME_BYTES && at.text[end] != '>') {
        if (at.text[end] == '<' || at.text[end] == '\n' || !at.text[end])
            return MATCH_NO;
        end++;
    }
    if (end == 0 ? at.count > 0 : end > CALL_NAME_BYTES)
        return MATCH_NO;
    if (end == at.count)
        return MATCH_PART;
    *name = at.text;
    *bytes = end;
    skip(&at, end + 1);
    *c = at;
    return MATCH_FULL;
}

static enum match either(enum match a, enum match b)
{
    return a > b ? a : b;
}

// The head of a call, up to what makes it one.
static enum match head(struct cursor *c, const char **name, size_t *bytes)
{
    enum match match = take(c, "<tool_call>");
    if (match == MATCH_FULL && skip_blanks(c) > BLANKS)
        return MATCH_NO;
    if (!c->count)
        return MATCH_PART;
    match = take_named(c, "<function=", name, bytes);
    if (match != MATCH_FULL)
        return match;
    if (skip_blanks(c) > BLANKS)
        return MATCH_NO;
    if (!c->count)
        return MATCH_PART;
    struct cursor at = *c;
    const char *key;
    size_t key_bytes;
    match = take_named(&at, "<parameter=", &key, &key_bytes);
    match = either(match, text_match(c->text, c->count, "</function>"));
    return either(match, text_match(c->text, c->count, "</tool_call>"));
}

static enum step open_step(struct reply *reply)
{
    struct cursor c = {reply->text.data, reply->text.size};
    const char *text;
    size_t bytes = 0;
    char name[CALL_NAME_BYTES + 1];
    enum match match = head(&c, &text, &bytes);
    if (match == MATCH_PART)
        return reply->final ? STEP_CUT : STEP_MORE;
    if (match != MATCH_FULL)
        return STEP_BAD;
    const json_t *function = tools_find(reply->options.tools, text, bytes);
    if (!function)
        return STEP_BAD;
    memcpy(name, text, bytes);
    name[bytes] = 0;
    reply_consume(reply, reply->text.size - c.count);
    reply_call_begin(reply, name);
    bytes_text(&reply->arguments, "{");
    reply->call.function = function;
    reply->call.phase = XML_BETWEEN;
    return STEP_ON;
}

static bool given(const struct call *call, const char *key, size_t bytes)
{
    for (size_t at = 0; at < call->keys.size; at += strlen(call->keys.data + at) + 1)
        if (strlen(call->keys.data + at) == bytes && !memcmp(call->keys.data + at, key, bytes))
            return true;
    return false;
}

static void begin_value(struct reply *reply, const char *key, size_t bytes)
{
    struct call *call = &reply->call;
    call->phase = XML_VALUE;
    call->entered = false;
    call->value.size = 0;
    if (given(call, key, bytes)) {
        call->kind = CALL_DROPPED;
        return;
    }
    bytes_add(&call->keys, key, bytes);
    bytes_add(&call->keys, "", 1);
    if (call->second)
        bytes_text(&reply->arguments, ",");
    call->second = true;
    write_string(&reply->arguments, key, bytes);
    bytes_text(&reply->arguments, ":");
    call->types = schema_types(call->function, key, bytes);
    call->kind = call->types == PARAMETER_STRING ? CALL_STRING : CALL_HELD;
    if (call->kind == CALL_STRING)
        bytes_text(&reply->arguments, "\"");
}

static enum step end_function(struct reply *reply, bool cut)
{
    bytes_text(&reply->arguments, "}");
    reply_call_end(reply, cut);
    reply->call.phase = XML_CLOSE;
    return STEP_ON;
}

static enum step between_step(struct reply *reply)
{
    struct cursor c = {reply->text.data, reply->text.size};
    skip_blanks(&c);
    const char *key;
    size_t bytes;
    enum match match = take_named(&c, "<parameter=", &key, &bytes);
    if (match == MATCH_FULL) {
        begin_value(reply, key, bytes);
        reply_consume(reply, reply->text.size - c.count);
        return STEP_ON;
    }
    enum match end = take(&c, "</function>");
    match = either(match, either(end, text_match(c.text, c.count, "</tool_call>")));
    if (match == MATCH_FULL) {
        reply_consume(reply, reply->text.size - c.count);
        return end_function(reply, false);
    }
    if (!c.count || match == MATCH_PART) {
        if (!reply->final)
            return STEP_MORE;
        reply_consume(reply, reply->text.size);
        return end_function(reply, true);
    }
    reply_consume(reply, reply->text.size - c.count + 1); // nothing that belongs here
    return STEP_ON;
}

// ---- values -------------------------------------------------------------------------------------------------------------

static void take_value(struct reply *reply, const char *text, size_t count)
{
    struct call *call = &reply->call;
    if (call->kind == CALL_HELD) {
        bytes_add(&call->value, text, count);
        size_t at = 0;
        while (at < call->value.size && text_blank(call->value.data[at]))
            at++;
        char first = 0;
        if (at < call->value.size)
            first = call->value.data[at];
        bool json = !(call->types & PARAMETER_STRING) && (((call->types & PARAMETER_ARRAY) && first == '[') ||
                                                          ((call->types & PARAMETER_OBJECT) && first == '{'));
        if (!json && !value_is_string(call->types, call->value.data, call->value.size))
            return;
        call->kind = json ? CALL_JSON : CALL_STRING;
        call->json = (struct json_stream){0};
        if (!json)
            bytes_text(&reply->arguments, "\"");
        text = call->value.data;
        count = call->value.size;
    }
    if (call->kind == CALL_STRING)
        write_escaped(&reply->arguments, text, count);
    else if (call->kind == CALL_JSON)
        json_stream_feed(&call->json, text, count, &reply->arguments);
}

static void end_value(struct reply *reply)
{
    struct call *call = &reply->call;
    if (call->kind == CALL_STRING)
        bytes_text(&reply->arguments, "\"");
    else if (call->kind == CALL_JSON)
        json_stream_end(&call->json, &reply->arguments);
    else if (call->kind == CALL_HELD)
        value_write(&reply->arguments, call->types, call->value.data ? call->value.data : "", call->value.size);
    call->phase = XML_BETWEEN;
}

// Whether a marker of the call's shape may stand inside the value as text.
static bool literal_markers(const struct call *call)
{
    return call->kind == CALL_STRING || (call->kind == CALL_HELD && (call->types & PARAMETER_STRING)) ||
           (call->kind == CALL_JSON && json_stream_quoted(&call->json));
}

// Whether nothing, or one of the markers, follows. PART: it cannot be told yet.
static enum match followed_by(struct cursor c, const char *const *markers, bool final)
{
    enum match match = MATCH_NO;
    skip_blanks(&c);
    if (!c.count)
        return final ? MATCH_FULL : MATCH_PART;
    for (; *markers; markers++)
        match = either(match, text_match(c.text, c.count, *markers));
    return match == MATCH_PART && final ? MATCH_FULL : match;
}

// Whether a parameter follows that was not given before; PART only where more may come.
static enum match new_parameter(const struct call *call, struct cursor c, bool declared)
{
    const char *key;
    size_t bytes;
    skip_blanks(&c);
    enum match match = take_named(&c, "<parameter=", &key, &bytes);
    if (match == MATCH_FULL && (given(call, key, bytes) || (declared && !schema_declares(call->function, key, bytes))))
        return MATCH_NO;
    return match;
}

// Whether the value ends at c, where a '<' stands; line: as the first of its line. *skip_bytes: how much of the marker goes with it.
static enum match value_ends(const struct call *call, struct cursor c, bool line, bool final, size_t *skip_bytes)
{
    static const char *const after_value[] = {"</function>", "</tool_call>", "<tool_call>", "<function=", NULL};
    static const char *const after_function[] = {"</tool_call>", "<tool_call>", NULL};
    static const char *const after_call[] = {"<tool_call>", NULL};
    static const struct {
        const char *marker;
        const char *const *after;
    } ends[] = {{"</parameter>", after_value}, {"</function>", after_function}, {"</tool_call>", after_call}};
    bool literal = literal_markers(call);
    *skip_bytes = 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct cursor at = c;
        enum match match = take(&at, ends[i].marker);
        if (match == MATCH_NO)
            continue;
        if (match == MATCH_PART && !final)
            return MATCH_PART;
        if (match == MATCH_PART) // the reply ends here: cut in the marker, or a sign that is text
            return c.count < 2 && !line ? MATCH_NO : MATCH_FULL;
        if (i == 0)
            *skip_bytes = c.count - at.count;
        if (!literal)
            return MATCH_FULL;
        match = followed_by(at, ends[i].after, final);
        match = i ? match : either(match, new_parameter(call, at, false));
        return match == MATCH_PART && final ? MATCH_FULL : match;
    }
    enum match match = literal && !line ? MATCH_NO : new_parameter(call, c, literal);
    return match == MATCH_PART && final ? MATCH_NO : match;
}

static enum step value_step(struct reply *reply)
{
    struct call *call = &reply->call;
    const char *text = reply->text.data;
    size_t count = reply->text.size;
    if (!call->entered) {
        if (!count && !reply->final)
            return STEP_MORE;
        call->entered = true;
        reply_consume(reply, count && text[0] == '\n');
        return STEP_ON;
    }
    size_t at = 0, skip_bytes = 0;
    while (at < count && text[at] != '<')
        at++;
    // One line break belongs to the marker. The text before it goes first: whether the marker counts may depend on it.
    size_t before = at && text[at - 1] == '\n' ? at - 1 : at;
    if (before) {
        take_value(reply, text, before);
        reply_consume(reply, before);
        return STEP_ON;
    }
    if (at == count && !reply->final)
        return STEP_MORE;
    enum match match = MATCH_FULL;
    if (at < count)
        match = value_ends(call, (struct cursor){text + at, count - at}, at > 0, reply->final, &skip_bytes);
    if (match == MATCH_PART)
        return STEP_MORE;
    if (match == MATCH_FULL)
        end_value(reply);
    else
        take_value(reply, text, at + 1);
    reply_consume(reply, match == MATCH_FULL ? at + skip_bytes : at + 1);
    return STEP_ON;
}

// Behind the function's end: the end of the call, which may be missing.
static enum step close_step(struct reply *reply)
{
    struct cursor c = {reply->text.data, reply->text.size};
    skip_blanks(&c);
    enum match match = c.count ? take(&c, "</tool_call>") : MATCH_PART;
    if (match == MATCH_PART && !reply->final)
        return STEP_MORE;
    reply_consume(reply, match == MATCH_FULL ? reply->text.size - c.count : match == MATCH_PART ? reply->text.size : 0);
    call_free(reply);
    reply->state = REPLY_AFTER_CALL;
    return STEP_ON;
}

enum step call_xml_step(struct reply *reply)
{
    switch ((enum phase)reply->call.phase) {
    case XML_OPEN:
        return open_step(reply);
    case XML_BETWEEN:
        return between_step(reply);
    case XML_VALUE:
        return value_step(reply);
    case XML_CLOSE:
        return close_step(reply);
    }
    return STEP_MORE;
}
