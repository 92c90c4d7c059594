// SPDX-License-Identifier: Apache-2.0
//
// Strings of chat templates: UTF-8, counted in code points, each byte with its provenance.
// Invariant: spans cover a string exactly, in order, and neighbours differ in provenance.

#include "runtime/template.h"
#include <string.h>

bool text_trusted(const struct text *text, size_t at)
{
    if (!text->spans)
        return text->trusted;
    size_t low = 0, high = text->span_count - 1;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (text->spans[middle].end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return text->spans[low].trusted;
}

static void grow_bytes(struct template_run *run, struct builder *b, size_t count)
{
    if (count > TEMPLATE_OUTPUT_BYTES || b->size + count > TEMPLATE_OUTPUT_BYTES)
        template_fail(run, "the text grows past %d bytes", TEMPLATE_OUTPUT_BYTES);
    if (b->room - b->size >= count)
        return;
    size_t room = b->room ? b->room * 2 : 128;
    while (room < b->size + count)
        room *= 2;
    char *data = template_alloc(run, room, 1);
    if (b->size)
        memcpy(data, b->data, b->size);
    b->data = data;
    b->room = room;
}

static void add_span(struct template_run *run, struct builder *b, size_t end, bool trusted)
{
    if (b->span_count && b->spans[b->span_count - 1].trusted == trusted) {
        b->spans[b->span_count - 1].end = end;
        return;
    }
    if (b->span_count == b->span_room) {
        size_t room = b->span_room ? b->span_room * 2 : 4;
        struct span *spans = template_alloc(run, room, sizeof *spans);
        if (b->span_count)
            memcpy(spans, b->spans, b->span_count * sizeof *spans);
        b->spans = spans;
        b->span_room = room;
    }
    b->spans[b->span_count++] = (struct span){end, trusted};
}

void builder_bytes(struct template_run *run, struct builder *b, const char *bytes, size_t count, bool trusted)
{
    if (!count)
        return;
    grow_bytes(run, b, count);
    memcpy(b->data + b->size, bytes, count);
    b->size += count;
    add_span(run, b, b->size, trusted);
}

// The index of the first span that ends after `at`.
static size_t span_at(const struct text *text, size_t at)
{
    size_t low = 0, high = text->span_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (text->spans[middle].end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void builder_text(struct template_run *run, struct builder *b, const struct text *text, size_t from, size_t to)
{
    if (!text->spans) {
        if (to > from)
            builder_bytes(run, b, text->data + from, to - from, text->trusted);
        return;
    }
    for (size_t i = span_at(text, from); i < text->span_count && from < to; i++) {
        size_t end = text->spans[i].end < to ? text->spans[i].end : to;
        builder_bytes(run, b, text->data + from, end - from, text->spans[i].trusted);
        from = end;
    }
}

static struct value make_text(struct template_run *run, struct text text)
{
    struct text *made = template_alloc(run, 1, sizeof *made);
    *made = text;
    return value_text(made);
}

struct value builder_finish(struct template_run *run, struct builder *b, bool markup)
{
    struct text text = {.data = b->data, .size = b->size, .trusted = true, .markup = markup};
    if (!b->size)
        text.data = "";
    else if (b->span_count == 1)
        text.trusted = b->spans[0].trusted;
    else {
        text.spans = b->spans;
        text.span_count = b->span_count;
    }
    return make_text(run, text);
}

// Shares the bytes; copies only the spans that the piece has.
struct value text_cut(struct template_run *run, const struct text *text, size_t from, size_t to)
{
    if (to < from)
        to = from;
    if (from == 0 && to == text->size)
        return value_text(text);
    struct text piece = {
        .data = text->data + from, .size = to - from, .trusted = text->trusted, .markup = text->markup};
    if (text->spans && to > from) {
        size_t first = span_at(text, from), last = span_at(text, to - 1);
        piece.trusted = text->spans[first].trusted;
        if (last > first) {
            struct span *spans = template_alloc(run, last - first + 1, sizeof *spans);
            for (size_t i = first; i <= last; i++) {
                size_t end = text->spans[i].end < to ? text->spans[i].end : to;
                spans[i - first] = (struct span){end - from, text->spans[i].trusted};
            }
            piece.spans = spans;
            piece.span_count = last - first + 1;
        }
    }
    return make_text(run, piece);
}

static bool continues(char byte)
{
    return ((unsigned char)byte & 0xC0) == 0x80;
}

size_t text_length(const char *data, size_t size)
{
    size_t count = 0;
    for (size_t i = 0; i < size; i++)
        count += !continues(data[i]);
    return count;
}

size_t text_offset(const char *data, size_t size, size_t index)
{
    size_t at = 0;
    while (at < size && index) {
        at++;
        while (at < size && continues(data[at]))
            at++;
        index--;
    }
    return at;
}

size_t text_code(const char *data, size_t size, size_t at, uint32_t *code)
{
    unsigned char lead = (unsigned char)data[at];
    size_t count = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    *code = lead < 0x80 ? lead : lead & (0x7Fu >> count);
    for (size_t i = 1; i < count; i++) {
        if (at + i >= size || !continues(data[at + i]) || lead < 0xC0) {
            *code = 0xFFFD;
            return 1;
        }
        *code = *code << 6 | ((unsigned char)data[at + i] & 0x3Fu);
    }
    return count;
}

// What Python's str.isspace accepts.
bool text_is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || (code >= 28 && code <= 32) || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

struct value text_escape(struct template_run *run, const struct text *text)
{
    struct builder b = {0};
    size_t from = 0;
    for (size_t i = 0; i < text->size; i++) {
        const char *with = NULL;
        switch (text->data[i]) {
        case '&':
            with = "&amp;";
            break;
        case '<':
            with = "&lt;";
            break;
        case '>':
            with = "&gt;";
            break;
        case '"':
            with = "&#34;";
            break;
        case '\'':
            with = "&#39;";
            break;
        default:
            continue;
        }
        builder_text(run, &b, text, from, i);
        builder_bytes(run, &b, with, strlen(with), text_trusted(text, i));
        from = i + 1;
    }
    builder_text(run, &b, text, from, text->size);
    return builder_finish(run, &b, true);
}
