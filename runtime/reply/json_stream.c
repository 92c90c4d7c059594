// SPDX-License-Identifier: Apache-2.0
//
// A model's nearly-JSON as valid JSON, character by character.
// Invariant: see json_stream.h; each state below knows what closes it.

#include "runtime/reply/json_stream.h"

#include <ctype.h>
#include <stdio.h>

enum state {
    AT_VALUE, // before a value, or in an array before its end
    AFTER,    // behind a value of a container
    AT_KEY,
    AT_COLON,
    IN_STRING,
    IN_ESCAPE,
    IN_HEX,
    IN_WORD,
    IN_SKIPPED
};

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool in_object(const struct json_stream *s)
{
    return s->depth && s->stack[s->depth - 1] == '{';
}

static void value_end(struct json_stream *s)
{
    s->comma = true;
    s->state = AFTER;
    s->done = !s->depth;
}

// The comma before a key, or before a value of an array.
static void begin(struct json_stream *s, bool key, struct bytes *out)
{
    if (s->comma && (key || !in_object(s)))
        bytes_text(out, ",");
    s->comma = false;
    s->key = key;
}

static void open_bracket(struct json_stream *s, char c, struct bytes *out)
{
    begin(s, false, out);
    if (s->depth == JSON_STREAM_DEPTH) {
        bytes_text(out, "null");
        s->state = IN_SKIPPED;
        s->skipped = 1;
        s->quote = 0;
        return;
    }
    s->stack[s->depth++] = c;
    bytes_add(out, &c, 1);
    s->state = c == '{' ? AT_KEY : AT_VALUE;
}

// What the innermost object lacks behind its last key.
static void fill_value(struct json_stream *s, struct bytes *out)
{
    if (s->state == AT_COLON)
        bytes_text(out, ":null");
    else if (s->state == AT_VALUE && (in_object(s) || !s->depth))
        bytes_text(out, "null");
}

static void pop(struct json_stream *s, struct bytes *out)
{
    bytes_text(out, s->stack[--s->depth] == '{' ? "}" : "]");
    value_end(s);
}

// Closes up to the bracket that c matches; a bracket that matches none is left out.
static void close_bracket(struct json_stream *s, char c, struct bytes *out)
{
    char wanted = c == '}' ? '{' : '[';
    int level = s->depth;
    while (level && s->stack[level - 1] != wanted)
        level--;
    if (!level)
        return;
    fill_value(s, out);
    while (s->depth >= level)
        pop(s, out);
}

static void open_string(struct json_stream *s, char quote, bool key, struct bytes *out)
{
    begin(s, key, out);
    bytes_text(out, "\"");
    s->quote = quote;
    s->state = IN_STRING;
}

static void open_word(struct json_stream *s, bool key, struct bytes *out)
{
    begin(s, key, out);
    s->word.size = 0;
    s->state = IN_WORD;
}

static void text_end(struct json_stream *s)
{
    if (s->key)
        s->state = AT_COLON;
    else
        value_end(s);
}

static void word_end(struct json_stream *s, struct bytes *out)
{
    while (s->word.size && blank(s->word.data[s->word.size - 1]))
        s->word.size--;
    if (s->key)
        write_string(out, s->word.data, s->word.size);
    else
        write_word(out, s->word.data, s->word.size);
    text_end(s);
}

// A half of a pair of escapes that has no other half.
static void flush_high(struct json_stream *s, struct bytes *out)
{
    if (s->high)
        bytes_text(out, "\\ufffd");
    s->high = 0;
}

static void escaped_code(struct json_stream *s, struct bytes *out)
{
    char text[24];
    unsigned code = (unsigned)strtoul(s->hex, NULL, 16);
    bool low = code >= 0xDC00 && code < 0xE000;
    if (s->high && low) {
        snprintf(text, sizeof text, "\\u%04x\\u%04x", s->high, code);
        bytes_text(out, text);
        s->high = 0;
        return;
    }
    flush_high(s, out);
    if (code >= 0xD800 && code < 0xDC00) {
        s->high = code;
        return;
    }
    snprintf(text, sizeof text, "\\u%04x", low || (s->key && !code) ? 0xFFFD : code);
    bytes_text(out, text);
}

static void string_char(struct json_stream *s, char c, struct bytes *out)
{
    if (c == '\\') {
        s->state = IN_ESCAPE;
        return;
    }
    flush_high(s, out);
    if (c != s->quote) {
        write_escaped(out, &c, 1);
        return;
    }
    bytes_text(out, "\"");
    text_end(s);
}

static void escape_char(struct json_stream *s, char c, struct bytes *out)
{
    char text[2] = {'\\', c};
    s->state = IN_STRING;
    if (c == 'u') {
        s->state = IN_HEX;
        s->hex_count = 0;
        return;
    }
    flush_high(s, out);
    if (c && strchr("\"\\/bfnrt", c)) {
        bytes_add(out, text, 2);
    } else if (c == '\'') {
        bytes_add(out, &c, 1);
    } else {
        bytes_text(out, "\\\\");
        string_char(s, c, out);
    }
}

// An escape \u without four digits stays the text that it is.
static void broken_hex(struct json_stream *s, struct bytes *out)
{
    flush_high(s, out);
    bytes_text(out, "\\\\u");
    bytes_add(out, s->hex, (size_t)s->hex_count);
    s->state = IN_STRING;
}

static void hex_char(struct json_stream *s, char c, struct bytes *out)
{
    if (!isxdigit((unsigned char)c)) {
        broken_hex(s, out);
        string_char(s, c, out);
        return;
    }
    s->hex[s->hex_count++] = c;
    if (s->hex_count < 4)
        return;
    s->hex[4] = 0;
    s->state = IN_STRING;
    escaped_code(s, out);
}

static void skipped_char(struct json_stream *s, char c)
{
    if (s->quote == '\\') {
        s->quote = '"';
        return;
    }
    if (s->quote) {
        s->quote = c == s->quote ? 0 : c == '\\' ? c : s->quote;
        return;
    }
    if (c == '"')
        s->quote = c;
    else if (c == '{' || c == '[')
        s->skipped++;
    else if ((c == '}' || c == ']') && --s->skipped == 0)
        value_end(s);
}

static void value_char(struct json_stream *s, char c, struct bytes *out);

static void key_char(struct json_stream *s, char c, struct bytes *out)
{
    if (c == '"' || c == '\'') {
        open_string(s, c, true, out);
    } else if (c == '}' || c == ']') {
        close_bracket(s, c, out);
    } else if (!strchr(" \n\t\r,:{[", c)) {
        open_word(s, true, out);
        bytes_add(&s->word, &c, 1);
    }
}

static void colon_char(struct json_stream *s, char c, struct bytes *out)
{
    if (c == '}' || c == ']') {
        close_bracket(s, c, out);
    } else if (c == ',') {
        bytes_text(out, ":null");
        s->comma = true;
        s->state = AT_KEY;
    } else if (!blank(c)) {
        bytes_text(out, ":");
        s->state = AT_VALUE;
        if (c != ':')
            value_char(s, c, out);
    }
}

static void value_char(struct json_stream *s, char c, struct bytes *out)
{
    if (c == '{' || c == '[') {
        open_bracket(s, c, out);
    } else if (c == '"' || c == '\'') {
        open_string(s, c, false, out);
    } else if (c == '}' || c == ']') {
        close_bracket(s, c, out);
    } else if (c == ',') {
        if (in_object(s)) {
            bytes_text(out, "null");
            s->comma = true;
            s->state = AT_KEY;
        }
    } else if (!blank(c) && c != ':') {
        open_word(s, false, out);
        bytes_add(&s->word, &c, 1);
    }
}

static void after_char(struct json_stream *s, char c, struct bytes *out)
{
    if (blank(c) || c == ':')
        return;
    if (c == '}' || c == ']') {
        close_bracket(s, c, out);
        return;
    }
    s->state = in_object(s) ? AT_KEY : AT_VALUE;
    if (c != ',' && in_object(s))
        key_char(s, c, out);
    else if (c != ',')
        value_char(s, c, out);
}

static void word_char(struct json_stream *s, char c, struct bytes *out)
{
    if (c != ',' && c != ']' && c != '}' && c != '\n' && !(c == ':' && s->key)) {
        bytes_add(&s->word, &c, 1);
        return;
    }
    word_end(s, out);
    if (s->done)
        return;
    if (s->state == AT_COLON)
        colon_char(s, c, out);
    else
        after_char(s, c, out);
}

static void take(struct json_stream *s, char c, struct bytes *out)
{
    switch ((enum state)s->state) {
    case AT_VALUE:
        value_char(s, c, out);
        break;
    case AFTER:
        after_char(s, c, out);
        break;
    case AT_KEY:
        key_char(s, c, out);
        break;
    case AT_COLON:
        colon_char(s, c, out);
        break;
    case IN_STRING:
        string_char(s, c, out);
        break;
    case IN_ESCAPE:
        escape_char(s, c, out);
        break;
    case IN_HEX:
        hex_char(s, c, out);
        break;
    case IN_WORD:
        word_char(s, c, out);
        break;
    case IN_SKIPPED:
        skipped_char(s, c);
        break;
    }
}

size_t json_stream_feed(struct json_stream *s, const char *text, size_t count, struct bytes *out)
{
    size_t at = 0;
    while (at < count && !s->done)
        take(s, text[at++], out);
    return at;
}

void json_stream_end(struct json_stream *s, struct bytes *out)
{
    out->failed = out->failed || s->word.failed;
    if (s->done) {
        json_stream_free(s);
        return;
    }
    if (s->state == IN_HEX)
        broken_hex(s, out);
    if (s->state == IN_STRING || s->state == IN_ESCAPE) {
        flush_high(s, out);
        bytes_text(out, "\"");
        text_end(s);
    } else if (s->state == IN_WORD) {
        word_end(s, out);
    }
    fill_value(s, out);
    while (s->depth)
        pop(s, out);
    json_stream_free(s);
}

bool json_stream_quoted(const struct json_stream *s)
{
    return !s->done && (s->state == IN_STRING || s->state == IN_ESCAPE || s->state == IN_HEX);
}

void json_stream_free(struct json_stream *s)
{
    bytes_free(&s->word);
}
