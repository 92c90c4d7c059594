// SPDX-License-Identifier: Apache-2.0
//
// How chat templates print values: Python's str(), repr() and json.dumps(), byte for byte.
// Invariant: what stands for a byte of the input (an escape, a digit, a bracket of an input container) is as untrusted as it.

#include "runtime/template.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

// The shortest digits that read back as `real`, laid out as Python does.
bool float_repr(double real, char out[80])
{
    if (!isfinite(real)) {
        strcpy(out, isnan(real) ? "nan" : real < 0 ? "-inf" : "inf");
        return false;
    }
    char digits[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision, real);
        if (strtod(digits, NULL) == real)
            break;
    }
    char *mark = strchr(digits, 'e');
    int exponent = atoi(mark + 1);
    *mark = 0;
    char plain[24];
    int count = 0;
    const char *sign = digits[0] == '-' ? "-" : "";
    for (const char *c = digits; *c; c++)
        if (*c >= '0' && *c <= '9' && count < 20)
            plain[count++] = *c;
    plain[count] = 0;
    if (exponent < -4 || exponent >= 16)
        snprintf(out, 80, "%s%c%s%sE%c%02d", sign, plain[0], count > 1 ? "." : "", plain + 1, exponent < 0 ? '-' : '+',
                 abs(exponent));
    else if (exponent < 0)
        snprintf(out, 80, "%s0.%.*s%s", sign, -exponent - 1, "0000", plain);
    else if (count <= exponent + 1)
        snprintf(out, 80, "%s%s%.*s.0", sign, plain, exponent + 1 - count, "0000000000000000");
    else
        snprintf(out, 80, "%s%.*s.%s", sign, exponent + 1, plain, plain + exponent + 1);
    char *big = strchr(out, 'E');
    if (big)
        *big = 'e';
    return true;
}

static void print_string(struct template_run *run, struct builder *b, const char *string, bool trusted)
{
    builder_bytes(run, b, string, strlen(string), trusted);
}

// Numbers, booleans and None, as both str() and repr() write them; false for other kinds.
static bool print_scalar(struct template_run *run, struct builder *b, struct value v)
{
    char buffer[80];
    switch (v.kind) {
    case VALUE_NONE:
        print_string(run, b, "None", v.trusted);
        return true;
    case VALUE_BOOL:
        print_string(run, b, v.flag ? "True" : "False", v.trusted);
        return true;
    case VALUE_INT:
        snprintf(buffer, sizeof buffer, "%" PRId64, v.integer);
        print_string(run, b, buffer, v.trusted);
        return true;
    case VALUE_WIDE:
        print_string(run, b, v.digits, v.trusted);
        return true;
    case VALUE_FLOAT:
        float_repr(v.real, buffer);
        print_string(run, b, buffer, v.trusted);
        return true;
    default:
        return false;
    }
}

static bool printable(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return code == ' ';
    default:
        return true;
    }
}

static void repr_text(struct template_run *run, struct builder *b, const struct text *text)
{
    bool single = memchr(text->data, '\'', text->size) != NULL, quotes = memchr(text->data, '"', text->size) != NULL;
    char quote = single && !quotes ? '"' : '\'';
    bool edge = text->size ? text_trusted(text, 0) : text->trusted;
    builder_bytes(run, b, &quote, 1, edge);
    size_t step;
    for (size_t i = 0; i < text->size; i += step) {
        uint32_t code;
        char escape[16] = "";
        step = text_code(text->data, text->size, i, &code);
        if (code == '\n' || code == '\r' || code == '\t')
            snprintf(escape, sizeof escape, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
        else if (code == '\\' || code == (uint32_t)quote)
            snprintf(escape, sizeof escape, "\\%c", (char)code);
        else if (!printable(code))
            snprintf(escape, sizeof escape, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
        if (escape[0])
            print_string(run, b, escape, text_trusted(text, i));
        else
            builder_text(run, b, text, i, i + step);
    }
    builder_bytes(run, b, &quote, 1, edge);
}

static void enter(struct template_run *run, struct value v)
{
    if (++run->depth > TEMPLATE_DEPTH)
        template_fail(run, "values nest deeper than %d", TEMPLATE_DEPTH);
    template_steps(run, 1 + (v.kind == VALUE_DICT ? v.dict->count : v.list->count));
}

void print_repr(struct template_run *run, struct builder *b, struct value v)
{
    if (print_scalar(run, b, v))
        return;
    if (v.kind == VALUE_TEXT) {
        if (v.text->markup)
            template_fail(run, "unsupported: printing a list that holds a |safe string");
        repr_text(run, b, v.text);
    } else if (v.kind == VALUE_LIST || v.kind == VALUE_TUPLE) {
        enter(run, v);
        print_string(run, b, v.kind == VALUE_LIST ? "[" : "(", v.trusted);
        for (size_t i = 0; i < v.list->count; i++) {
            if (i)
                print_string(run, b, ", ", v.trusted);
            print_repr(run, b, v.list->items[i]);
        }
        print_string(run, b, v.kind == VALUE_LIST ? "]" : v.list->count == 1 ? ",)" : ")", v.trusted);
        run->depth--;
    } else if (v.kind == VALUE_DICT) {
        enter(run, v);
        print_string(run, b, "{", v.trusted);
        for (size_t i = 0; i < v.dict->count; i++) {
            if (i)
                print_string(run, b, ", ", v.trusted);
            print_repr(run, b, v.dict->keys[i]);
            print_string(run, b, ": ", v.trusted);
            print_repr(run, b, v.dict->values[i]);
        }
        print_string(run, b, "}", v.trusted);
        run->depth--;
    } else if (v.kind == VALUE_UNDEFINED)
        print_string(run, b, "Undefined", true);
    else
        template_fail(run, "cannot print a value of type %s", value_type(v));
}

void print_value(struct template_run *run, struct builder *b, struct value v)
{
    if (v.kind == VALUE_TEXT)
        builder_text(run, b, v.text, 0, v.text->size);
    else if (v.kind != VALUE_UNDEFINED)
        print_repr(run, b, v);
}

const struct text *value_string(struct template_run *run, struct value v)
{
    if (v.kind == VALUE_TEXT)
        return v.text;
    struct builder b = {0};
    print_value(run, &b, v);
    return builder_finish(run, &b, false).text;
}

// JSON ------------------------------------------------------------------------------------------------------------------------

static void json_escape(char escape[16], uint32_t code, bool ascii)
{
    static const char *const letters = "\"\"\\\\\bb\ff\nn\rr\tt"; // pairs: character, letter after the backslash
    escape[0] = 0;
    if (code < 0x80) {
        for (const char *c = letters; *c; c += 2)
            if (code == (unsigned char)*c) {
                snprintf(escape, 16, "\\%c", c[1]);
                return;
            }
    }
    if (code < 0x20 || (ascii && code > 0x7E && code < 0x10000))
        snprintf(escape, 16, "\\u%04x", code);
    else if (ascii && code >= 0x10000)
        snprintf(escape, 16, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF));
}

static void json_text(struct template_run *run, struct builder *b, const struct text *text, bool ascii)
{
    bool edge = text->size ? text_trusted(text, 0) : text->trusted;
    print_string(run, b, "\"", edge);
    size_t from = 0, step;
    for (size_t i = 0; i < text->size; i += step) {
        uint32_t code;
        char escape[16];
        step = text_code(text->data, text->size, i, &code);
        json_escape(escape, code, ascii);
        if (!escape[0])
            continue;
        builder_text(run, b, text, from, i);
        print_string(run, b, escape, text_trusted(text, i));
        from = i + step;
    }
    builder_text(run, b, text, from, text->size);
    print_string(run, b, "\"", edge);
}

static void json_scalar(struct template_run *run, struct builder *b, struct value v)
{
    if (v.kind == VALUE_NONE)
        print_string(run, b, "null", v.trusted);
    else if (v.kind == VALUE_BOOL)
        print_string(run, b, v.flag ? "true" : "false", v.trusted);
    else if (v.kind == VALUE_FLOAT && !isfinite(v.real))
        print_string(run, b, isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity", v.trusted);
    else if (v.kind == VALUE_INT || v.kind == VALUE_WIDE || v.kind == VALUE_FLOAT)
        print_scalar(run, b, v);
    else
        template_fail(run, "tojson: a value of type %s is not JSON", value_type(v));
}

// A line break and its indentation, in the styles that have them.
static void json_line(struct template_run *run, struct builder *b, const struct json_style *style, int level,
                      bool trusted)
{
    if (!style->indent)
        return;
    print_string(run, b, "\n", trusted);
    for (int i = 0; i < level; i++)
        builder_text(run, b, style->indent, 0, style->indent->size);
}

static void json_between(struct template_run *run, struct builder *b, const struct text *given, const char *usual,
                         bool trusted)
{
    if (given)
        builder_text(run, b, given, 0, given->size);
    else
        print_string(run, b, usual, trusted);
}

// The order in which a dict's pairs are written.
static uint32_t *json_order(struct template_run *run, const struct dict *dict, bool sorted)
{
    uint32_t *order = template_alloc(run, dict->count + 1, 2 * sizeof *order), *spare = order + dict->count + 1;
    for (size_t i = 0; i < dict->count; i++)
        order[i] = (uint32_t)i;
    for (size_t width = 1; sorted && width < dict->count; width *= 2) {
        for (size_t low = 0; low < dict->count; low += 2 * width) {
            size_t middle = low + width < dict->count ? low + width : dict->count;
            size_t high = low + 2 * width < dict->count ? low + 2 * width : dict->count;
            for (size_t at = low, i = low, j = middle; at < high; at++) {
                bool right = i == middle || (j < high && value_lt(run, dict->keys[order[j]], dict->keys[order[i]]));
                spare[at] = right ? order[j++] : order[i++];
            }
        }
        memcpy(order, spare, dict->count * sizeof *order);
    }
    return order;
}

static void json_value(struct template_run *run, struct builder *b, struct value v, const struct json_style *style,
                       int level);

static void json_dict(struct template_run *run, struct builder *b, struct value v, const struct json_style *style,
                      int level)
{
    const uint32_t *order = json_order(run, v.dict, style->sort_keys);
    print_string(run, b, "{", v.trusted);
    for (size_t i = 0; i < v.dict->count; i++) {
        struct value key = v.dict->keys[order[i]];
        if (i)
            json_between(run, b, style->item_separator, style->indent ? "," : ", ", v.trusted);
        json_line(run, b, style, level + 1, v.trusted);
        if (key.kind == VALUE_TEXT)
            json_text(run, b, key.text, style->ascii);
        else {
            print_string(run, b, "\"", key.trusted);
            json_scalar(run, b, key);
            print_string(run, b, "\"", key.trusted);
        }
        json_between(run, b, style->key_separator, ": ", v.trusted);
        json_value(run, b, v.dict->values[order[i]], style, level + 1);
    }
    if (v.dict->count)
        json_line(run, b, style, level, v.trusted);
    print_string(run, b, "}", v.trusted);
}

static void json_value(struct template_run *run, struct builder *b, struct value v, const struct json_style *style,
                       int level)
{
    if (v.kind == VALUE_TEXT) {
        json_text(run, b, v.text, style->ascii);
    } else if (v.kind == VALUE_LIST || v.kind == VALUE_TUPLE) {
        enter(run, v);
        print_string(run, b, "[", v.trusted);
        for (size_t i = 0; i < v.list->count; i++) {
            if (i)
                json_between(run, b, style->item_separator, style->indent ? "," : ", ", v.trusted);
            json_line(run, b, style, level + 1, v.trusted);
            json_value(run, b, v.list->items[i], style, level + 1);
        }
        if (v.list->count)
            json_line(run, b, style, level, v.trusted);
        print_string(run, b, "]", v.trusted);
        run->depth--;
    } else if (v.kind == VALUE_DICT) {
        enter(run, v);
        json_dict(run, b, v, style, level);
        run->depth--;
    } else {
        json_scalar(run, b, v);
    }
}

void print_json(struct template_run *run, struct builder *b, struct value v, const struct json_style *style)
{
    json_value(run, b, v, style, 0);
}
