// SPDX-License-Identifier: Apache-2.0
//
// The dialect <tool_call> {"name": NAME, "arguments": {...}} </tool_call>.
// A call has begun once its arguments' bracket follows an offered name; an object in another order, or without arguments, is
// waited for. Where a string is open, </tool_call> is text.

#include "runtime/json_exact.h"
#include "runtime/reply/internal.h"

enum phase { JSON_OPEN, JSON_WHOLE, JSON_ARGUMENTS, JSON_TAIL, JSON_SKIP };

static const char opener[] = "<tool_call>", closer[] = "</tool_call>";

// A place in text that moves over what is expected there.
struct reader {
    const char *text;
    size_t count;
    enum match match; // of all so far
};

static void blanks(struct reader *r)
{
    while (r->count && text_blank(*r->text)) {
        r->text++;
        r->count--;
    }
}

static void expect(struct reader *r, const char *text)
{
    if (r->match != MATCH_FULL)
        return;
    blanks(r);
    r->match = text_match(r->text, r->count, text);
    if (r->match == MATCH_FULL) {
        r->text += strlen(text);
        r->count -= strlen(text);
    }
}

// The usual beginning, up to the bracket of the arguments. *name is set once it is whole.
static enum match usual_head(struct reader *r, const char **name, size_t *bytes)
{
    r->match = MATCH_FULL;
    expect(r, opener);
    expect(r, "{");
    expect(r, "\"name\"");
    expect(r, ":");
    expect(r, "\"");
    if (r->match != MATCH_FULL)
        return r->match;
    size_t end = 0;
    while (end < r->count && end <= CALL_NAME_BYTES && r->text[end] != '"' && r->text[end] != '\\')
        end++;
    if (end > CALL_NAME_BYTES || (end < r->count && r->text[end] == '\\'))
        return MATCH_NO;
    if (end == r->count)
        return MATCH_PART;
    *name = r->text;
    *bytes = end;
    r->text += end + 1;
    r->count -= end + 1;
    expect(r, ",");
    struct reader other = *r;
    expect(r, "\"arguments\"");
    expect(&other, "\"parameters\"");
    if (other.match > r->match)
        *r = other;
    expect(r, ":");
    if (r->match == MATCH_FULL)
        blanks(r);
    if (r->match == MATCH_FULL)
        r->match = text_match(r->text, r->count, "{");
    return r->match;
}

static void begin(struct reply *reply, const char *text, size_t bytes)
{
    char name[CALL_NAME_BYTES + 1];
    memcpy(name, text, bytes);
    name[bytes] = 0;
    reply_call_begin(reply, name);
}

static enum step open_step(struct reply *reply)
{
    struct reader r = {.text = reply->text.data, .count = reply->text.size};
    const char *name = NULL;
    size_t bytes = 0;
    enum match match = usual_head(&r, &name, &bytes);
    if (name && !tools_find(reply->options.tools, name, bytes))
        return STEP_BAD;
    if (match == MATCH_PART && !reply->final)
        return STEP_MORE;
    if (match == MATCH_PART && !name)
        return STEP_CUT;
    if (match == MATCH_FULL) {
        char copy[CALL_NAME_BYTES];
        memcpy(copy, name, bytes);
        reply_consume(reply, reply->text.size - r.count);
        begin(reply, copy, bytes);
        reply->call.phase = JSON_ARGUMENTS;
        return STEP_ON;
    }
    r = (struct reader){.text = reply->text.data + strlen(opener), .count = reply->text.size - strlen(opener)};
    blanks(&r);
    if (!r.count || *r.text != '{')
        return STEP_BAD;
    reply->call.scanned = reply->text.size - r.count;
    reply->call.phase = JSON_WHOLE;
    return STEP_ON;
}

// Feeds text[at..] to the call's object until it is whole (FULL), the closing marker stands there (FULL), or the text ends (PART).
static enum match feed(struct reply *reply, size_t *at, struct bytes *out)
{
    struct json_stream *json = &reply->call.json;
    const char *text = reply->text.data;
    size_t count = reply->text.size;
    while (*at < count && !json->done) {
        if (text[*at] == '<' && !json_stream_quoted(json)) {
            enum match match = text_match(text + *at, count - *at, closer);
            if (match == MATCH_FULL || (match == MATCH_PART && !reply->final))
                return match;
        }
        *at += json_stream_feed(json, text + *at, 1, out);
    }
    return json->done ? MATCH_FULL : MATCH_PART;
}

// The arguments as an object's text, from an object or from a string that holds one; NULL: there are none. To be freed.
static char *arguments_text(const json_t *object)
{
    const json_t *arguments = json_object_get(object, "arguments");
    if (!arguments)
        arguments = json_object_get(object, "parameters");
    if (!arguments || json_is_null(arguments))
        return strdup("{}");
    json_t *inner = NULL;
    if (json_is_text(arguments))
        arguments = inner = json_exact_load(json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL,
                                            JSON_KEEP_ALL, NULL);
    char *text = json_is_object(arguments) ? json_exact_dump(arguments, NULL) : NULL;
    json_decref(inner);
    return text;
}

// An object whose name does not come first, once it is whole.
static enum step whole_step(struct reply *reply)
{
    struct call *call = &reply->call;
    enum match match = feed(reply, &call->scanned, &call->value);
    if (match == MATCH_PART && !reply->final)
        return STEP_MORE;
    bool cut = match == MATCH_PART;
    json_stream_end(&call->json, &call->value);
    json_t *object = call->value.data ? json_exact_load(call->value.data, call->value.size,
                                                        JSON_ALLOW_NUL | JSON_DISABLE_EOF_CHECK, JSON_KEEP_ALL, NULL)
                                      : NULL;
    const json_t *name = json_object_get(object, "name");
    char *arguments = NULL;
    if (json_is_string(name) && json_string_length(name) <= CALL_NAME_BYTES &&
        tools_find(reply->options.tools, json_string_value(name), json_string_length(name)))
        arguments = arguments_text(object);
    if (!arguments) {
        json_decref(object);
        return STEP_BAD;
    }
    begin(reply, json_string_value(name), json_string_length(name));
    bytes_text(&reply->arguments, arguments);
    reply_call_end(reply, cut);
    free(arguments);
    json_decref(object);
    reply_consume(reply, call->scanned);
    call->phase = JSON_TAIL;
    return STEP_ON;
}

static enum step arguments_step(struct reply *reply)
{
    size_t at = 0;
    enum match match = feed(reply, &at, &reply->arguments);
    reply_consume(reply, at);
    if (match == MATCH_PART && !reply->final)
        return STEP_MORE;
    bool cut = match == MATCH_PART;
    json_stream_end(&reply->call.json, &reply->arguments);
    reply_call_end(reply, cut);
    reply->call.phase = JSON_TAIL;
    return STEP_ON;
}

static enum step call_over(struct reply *reply)
{
    call_free(reply);
    reply->state = REPLY_AFTER_CALL;
    return STEP_ON;
}

// Behind the arguments: the object's end, then the marker. Other keys are left out with all up to the marker.
static enum step tail_step(struct reply *reply)
{
    size_t at = 0;
    const char *text = reply->text.data;
    while (at < reply->text.size && (text_blank(text[at]) || text[at] == '}'))
        at++;
    reply_consume(reply, at);
    if (!reply->text.size)
        return reply->final ? call_over(reply) : STEP_MORE;
    if (reply->text.data[0] == ',') {
        reply->call.phase = JSON_SKIP;
        return STEP_ON;
    }
    enum match match = text_match(reply->text.data, reply->text.size, closer);
    if (match == MATCH_PART && !reply->final)
        return STEP_MORE;
    if (match != MATCH_NO)
        reply_consume(reply, match == MATCH_FULL ? strlen(closer) : reply->text.size);
    return call_over(reply);
}

static enum step skip_step(struct reply *reply)
{
    size_t at = 0, count = reply->text.size;
    enum match match = MATCH_NO;
    while (at < count) {
        match = text_match(reply->text.data + at, count - at, closer);
        if (match != MATCH_NO)
            break;
        at++;
    }
    reply_consume(reply, match == MATCH_FULL ? at + strlen(closer) : at);
    return match == MATCH_FULL || reply->final ? call_over(reply) : STEP_MORE;
}

enum step call_json_step(struct reply *reply)
{
    switch ((enum phase)reply->call.phase) {
    case JSON_OPEN:
        return open_step(reply);
    case JSON_WHOLE:
        return whole_step(reply);
    case JSON_ARGUMENTS:
        return arguments_step(reply);
    case JSON_TAIL:
        return tail_step(reply);
    case JSON_SKIP:
        return skip_step(reply);
    }
    return STEP_MORE;
}
