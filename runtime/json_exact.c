// SPDX-License-Identifier: Apache-2.0
//
// Numbers of any length, and texts that are written as they are; see json_exact.h.

#include "runtime/json_exact.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char mark = (char)0xff;

// ---- reading -----------------------------------------------------------------------------------------------------------------

// Whether a number's text is a whole number of more than 64 bits.
static bool is_wide(const char *number, size_t bytes)
{
    char digits[32];
    const size_t sign = *number == '-';
    for (size_t i = sign; i < bytes; i++)
        if (number[i] < '0' || number[i] > '9')
            return false;
    if (bytes > sign + 20)
        return true;
    snprintf(digits, sizeof digits, "%.*s", (int)bytes, number);
    errno = 0;
    strtoll(digits, NULL, 10);
    return errno != 0;
}

// The same JSON with `before` and `after` around each whole number of more than 64 bits; NULL: no memory.
static char *around_wide(const char *text, size_t bytes, const char *before, const char *after, size_t *count)
{
    static const char digits[15] = "0123456789+-.eE";
    char *out = malloc(2 * bytes + 16), *at = out; // such a number has 19 digits, and gets up to 14 bytes
    bool in_text = false;
    for (size_t i = 0, n = 1; out && i < bytes; i += n) {
        n = 1;
        if (in_text && text[i] == '\\' && i + 1 < bytes)
            n = 2;
        else if (text[i] == '"')
            in_text = !in_text;
        else if (!in_text)
            while (i + n < bytes && memchr(digits, text[i], sizeof digits) &&
                   memchr(digits, text[i + n], sizeof digits))
                n++;
        const bool wide = n > 2 && is_wide(text + i, n);
        at = wide ? stpcpy(at, before) : at;
        at = (char *)memcpy(at, text + i, n) + n;
        at = wide ? stpcpy(at, after) : at;
    }
    *count = out ? (size_t)(at - out) : 0;
    return out;
}

static json_t *load_around(const char *text, size_t bytes, const char *before, const char *after, size_t flags,
                           json_error_t *cause)
{
    size_t count;
    char *wide = around_wide(text, bytes, before, after, &count);
    json_t *value = wide ? json_loadb(wide, count, flags, cause) : NULL;
    free(wide);
    return value;
}

// Whether what stands under a key is data, by itself or as an object.
static bool is_data(const char *key, const json_t *value)
{
    static const char *const data[] = {"const",   "enum",    "default",          "examples",         "example",
                                       "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++)
        if (!strcmp(key, data[i]))
            return true;
    return json_is_object(value) && (!strcmp(key, "arguments") || !strcmp(key, "input"));
}

static bool is_marked(const json_t *value)
{
    const char *text = json_string_value(value);
    const size_t bytes = json_string_length(value);
    return bytes > 4 && !text[0] && !text[1] && is_wide(text + 2, bytes - 2);
}

// What a marked string stands for: a number that is kept, or a real one. NULL: no memory.
static json_t *number_of(const json_t *value, bool kept)
{
    const char *digits = json_string_value(value) + 2;
    return kept ? json_verbatim(digits, strlen(digits)) : json_real(strtod(digits, NULL));
}

// Puts numbers in the place of marked strings. False: no memory.
static bool settle(json_t *value, bool kept)
{
    bool good = true;
    for (size_t i = 0; good && json_is_array(value) && i < json_array_size(value); i++) {
        json_t *one = json_array_get(value, i);
        good = is_marked(one) ? !json_array_set_new(value, i, number_of(one, kept)) : settle(one, kept);
    }
    for (void *at = json_object_iter(value); good && at; at = json_object_iter_next(value, at)) {
        json_t *one = json_object_iter_value(at);
        const bool data = kept || is_data(json_object_iter_key(at), one);
        good = is_marked(one) ? !json_object_iter_set_new(value, at, number_of(one, data)) : settle(one, data);
    }
    return good;
}

json_t *json_exact_load(const char *text, size_t bytes, size_t flags, enum json_kept kept, json_error_t *cause)
{
    json_error_t own;
    cause = cause ? cause : &own;
    json_t *value = json_loadb(text, bytes, flags, cause);
    if (value || json_error_code(cause) != json_error_numeric_overflow)
        return value;
    // An exponent makes a real number of a whole one: so the text is checked. Then it has no NULs, and numbers are marked with two.
    value = load_around(text, bytes, "", "e0", flags, cause);
    if (!value)
        return NULL;
    json_decref(value);
    value = load_around(text, bytes, "\"\\u0000\\u0000", "\"", flags | JSON_ALLOW_NUL, cause);
    if (value && is_marked(value)) {
        json_t *number = number_of(value, kept == JSON_KEEP_ALL);
        json_decref(value);
        return number;
    }
    if (value && settle(value, kept == JSON_KEEP_ALL))
        return value;
    json_decref(value);
    return NULL;
}

// ---- values ------------------------------------------------------------------------------------------------------------------

json_t *json_verbatim(const char *text, size_t bytes)
{
    char *marked = malloc(bytes + 1);
    if (!marked)
        return NULL;
    marked[0] = mark;
    memcpy(marked + 1, text, bytes);
    json_t *value = json_stringn_nocheck(marked, bytes + 1);
    free(marked);
    return value;
}

static bool is_verbatim(const json_t *value)
{
    return json_is_string(value) && *json_string_value(value) == mark;
}

const char *json_wide(const json_t *value)
{
    const char *text = is_verbatim(value) ? json_string_value(value) + 1 : "";
    return *text == '-' || (*text >= '0' && *text <= '9') ? text : NULL;
}

bool json_is_text(const json_t *value)
{
    return json_is_string(value) && !is_verbatim(value);
}

const char *json_text_value(const json_t *value)
{
    return json_is_text(value) ? json_string_value(value) : NULL;
}

bool json_is_numeric(const json_t *value)
{
    return json_is_number(value) || json_wide(value);
}

double json_numeric_value(const json_t *value)
{
    const char *digits = json_wide(value);
    return digits ? strtod(digits, NULL) : json_number_value(value);
}

// ---- writing -----------------------------------------------------------------------------------------------------------------

void json_real_text(const json_t *real, char text[JSON_REAL_BYTES])
{
    for (size_t precision = 15; precision <= 17; precision++) {
        text[json_dumpb(real, text, JSON_REAL_BYTES - 1, JSON_ENCODE_ANY | JSON_REAL_PRECISION(precision))] = '\0';
        if (strtod(text, NULL) == json_real_value(real))
            break;
    }
}

double json_nine_digits(double value)
{
    char text[JSON_REAL_BYTES];
    snprintf(text, sizeof text, "%.9g", value);
    return strtod(text, NULL);
}

struct output {
    char *text;
    size_t bytes, room;
    bool fixed; // it cannot grow
    size_t flags;
};

// Appends; -1: no memory. In the form that jansson calls.
static int put(const char *bytes, size_t count, void *user)
{
    struct output *out = user;
    if (out->room - out->bytes <= count) {
        const size_t room = 2 * out->room + count + 256;
        char *longer = out->fixed ? NULL : realloc(out->text, room);
        if (!longer)
            return -1;
        out->text = longer;
        out->room = room;
    }
    memcpy(out->text + out->bytes, bytes, count);
    out->bytes += count;
    out->text[out->bytes] = '\0';
    return 0;
}

static int put_key(struct output *out, void *at)
{
    json_t *key = json_string_nocheck(json_object_iter_key(at)); // jansson reads no key with a NUL
    const int failed = key ? json_dump_callback(key, put, out, out->flags) : -1;
    json_decref(key);
    return failed;
}

static int put_value(struct output *out, const json_t *value)
{
    char text[JSON_REAL_BYTES];
    json_t *object = (json_t *)(uintptr_t)value; // jansson iterates without changing
    int failed = 0;
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_ARRAY:
        failed = put("[", 1, out);
        for (size_t i = 0; !failed && i < json_array_size(value); i++)
            failed = (i && put(",", 1, out)) || put_value(out, json_array_get(value, i));
        return failed || put("]", 1, out) ? -1 : 0;
    case JSON_OBJECT:
        failed = put("{", 1, out);
        for (void *first = json_object_iter(object), *at = first; !failed && at; at = json_object_iter_next(object, at))
            failed = (at != first && put(",", 1, out)) || put_key(out, at) || put(":", 1, out) ||
                     put_value(out, json_object_iter_value(at));
        return failed || put("}", 1, out) ? -1 : 0;
    case JSON_REAL:
        json_real_text(value, text);
        return put(text, strlen(text), out);
    case JSON_STRING:
        if (is_verbatim(value))
            return put(json_string_value(value) + 1, json_string_length(value) - 1, out);
        // fall through
    default:
        return value ? json_dump_callback(value, put, out, out->flags) : -1;
    }
}

char *json_exact_dump(const json_t *value, size_t *bytes)
{
    struct output out = {.flags = JSON_ENCODE_ANY};
    const bool good = !put_value(&out, value);
    if (!good)
        free(out.text);
    if (bytes)
        *bytes = good ? out.bytes : 0;
    return good ? out.text : NULL;
}

bool json_exact_short(const json_t *value, char *text, size_t most)
{
    struct output out = {text, 0, most + 1, true, JSON_ENCODE_ANY | JSON_ENSURE_ASCII};
    const bool fits = !put_value(&out, value);
    text[fits ? out.bytes : 0] = '\0';
    return fits;
}
