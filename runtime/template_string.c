// SPDX-License-Identifier: Apache-2.0
//
// Python's string methods for chat templates. Invariant: every byte of a result keeps the provenance of the byte it came from.

#define _GNU_SOURCE // memmem, memrchr
#include "runtime/template_library.h"
#include <string.h>
#include <utf8proc.h>

static const struct text *self_text(struct template_run *run, struct value self, const char *method)
{
    if (self.kind == VALUE_UNDEFINED)
        template_fail_undefined(run, self);
    if (self.kind != VALUE_TEXT)
        template_fail(run, "a value of type %s has no method %s", value_type(self), method);
    return self.text;
}

static const struct text *plain_text(struct template_run *run, struct value self, const char *method)
{
    const struct text *text = self_text(run, self, method);
    if (text->markup)
        template_fail(run, "unsupported: %s of a |safe string", method);
    return text;
}

static const struct text *argument_text(struct template_run *run, struct value argument, const char *method)
{
    if (argument.kind == VALUE_UNDEFINED)
        template_fail_undefined(run, argument);
    if (argument.kind != VALUE_TEXT)
        template_fail(run, "%s needs a string, found %s", method, value_type(argument));
    return argument.text;
}

int64_t argument_int(struct template_run *run, struct value argument, const char *what, int64_t usual)
{
    if (argument.kind == VALUE_MISSING || argument.kind == VALUE_NONE)
        return usual;
    if (argument.kind == VALUE_BOOL)
        return argument.flag;
    if (argument.kind == VALUE_UNDEFINED)
        template_fail_undefined(run, argument);
    if (argument.kind != VALUE_INT)
        template_fail(run, "%s must be a whole number, found %s", what, value_type(argument));
    return argument.integer;
}

bool argument_truth(struct template_run *run, struct value argument, bool usual)
{
    return argument.kind == VALUE_MISSING ? usual : value_truth(run, argument);
}

// Strip -----------------------------------------------------------------------------------------------------------------------

// Whether the code point at `at` is to be stripped: one of `chars`, or white space where chars is NULL.
static bool stripped(const struct text *text, size_t at, size_t step, const struct text *chars)
{
    if (chars)
        for (size_t i = 0; i < chars->size;) {
            uint32_t code;
            size_t width = text_code(chars->data, chars->size, i, &code);
            if (width == step && memcmp(chars->data + i, text->data + at, step) == 0)
                return true;
            i += width;
        }
    uint32_t code;
    text_code(text->data, text->size, at, &code);
    return !chars && text_is_space(code);
}

struct value text_strip(struct template_run *run, const struct text *text, const struct text *chars, bool left,
                        bool right)
{
    size_t from = 0, to = text->size;
    while (left && from < to) {
        uint32_t code;
        size_t step = text_code(text->data, text->size, from, &code);
        if (!stripped(text, from, step, chars))
            break;
        from += step;
    }
    while (right && from < to) {
        size_t at = to - 1;
        while (at > from && ((unsigned char)text->data[at] & 0xC0) == 0x80)
            at--;
        if (!stripped(text, at, to - at, chars))
            break;
        to = at;
    }
    return text_cut(run, text, from, to);
}

static struct value strip(struct template_run *run, struct value self, const struct value *args, const char *method,
                          bool left, bool right)
{
    const struct text *text = self_text(run, self, method);
    bool given = args[0].kind != VALUE_MISSING && args[0].kind != VALUE_NONE;
    return text_strip(run, text, given ? argument_text(run, args[0], method) : NULL, left, right);
}

struct value method_strip(struct template_run *run, struct value self, const struct value *args)
{
    return strip(run, self, args, "strip", true, true);
}

struct value method_lstrip(struct template_run *run, struct value self, const struct value *args)
{
    return strip(run, self, args, "lstrip", true, false);
}

struct value method_rstrip(struct template_run *run, struct value self, const struct value *args)
{
    return strip(run, self, args, "rstrip", false, true);
}

// Split -----------------------------------------------------------------------------------------------------------------------

static struct value split_space(struct template_run *run, const struct text *text, int64_t limit)
{
    struct value parts = value_list(run, VALUE_LIST, 0);
    size_t at = 0, size = text->size;
    while (at < size) {
        uint32_t code;
        size_t step = text_code(text->data, size, at, &code);
        if (text_is_space(code)) {
            at += step;
            continue;
        }
        size_t from = at;
        if (limit >= 0 && (int64_t)parts.list->count == limit) {
            list_push(run, parts, text_cut(run, text, from, size));
            return parts;
        }
        while (at < size && !text_is_space(code)) {
            at += step;
            if (at < size)
                step = text_code(text->data, size, at, &code);
        }
        list_push(run, parts, text_cut(run, text, from, at));
    }
    return parts;
}

static const struct text *separator(struct template_run *run, struct value argument, const char *method)
{
    const struct text *sep = argument_text(run, argument, method);
    if (!sep->size)
        template_fail(run, "%s: empty separator", method);
    return sep;
}

struct value method_split(struct template_run *run, struct value self, const struct value *args)
{
    const struct text *text = plain_text(run, self, "split");
    int64_t limit = argument_int(run, args[1], "maxsplit", -1);
    if (args[0].kind == VALUE_MISSING || args[0].kind == VALUE_NONE)
        return split_space(run, text, limit);
    const struct text *sep = separator(run, args[0], "split");
    struct value parts = value_list(run, VALUE_LIST, 0);
    size_t from = 0;
    while (limit < 0 || (int64_t)parts.list->count < limit) {
        const char *found = memmem(text->data + from, text->size - from, sep->data, sep->size);
        if (!found)
            break;
        size_t at = (size_t)(found - text->data);
        list_push(run, parts, text_cut(run, text, from, at));
        from = at + sep->size;
    }
    list_push(run, parts, text_cut(run, text, from, text->size));
    return parts;
}

// The last place of `what` that ends at or before `end`; SIZE_MAX where there is none.
static size_t find_last(const struct text *text, const struct text *what, size_t end)
{
    if (what->size > end)
        return SIZE_MAX;
    for (size_t at = end - what->size + 1; at-- > 0;)
        if (!what->size || memcmp(text->data + at, what->data, what->size) == 0)
            return at;
    return SIZE_MAX;
}

static void reverse(struct list *list)
{
    for (size_t i = 0, j = list->count; i + 1 < j; i++) {
        struct value swap = list->items[--j];
        list->items[j] = list->items[i];
        list->items[i] = swap;
    }
}

struct value method_rsplit(struct template_run *run, struct value self, const struct value *args)
{
    const struct text *text = plain_text(run, self, "rsplit");
    int64_t limit = argument_int(run, args[1], "maxsplit", -1);
    if (args[0].kind == VALUE_MISSING || args[0].kind == VALUE_NONE) {
        if (limit >= 0)
            template_fail(run, "unsupported: rsplit with maxsplit but no separator");
        return split_space(run, text, limit);
    }
    const struct text *sep = separator(run, args[0], "rsplit");
    struct value parts = value_list(run, VALUE_LIST, 0);
    size_t to = text->size;
    while (limit < 0 || (int64_t)parts.list->count < limit) {
        size_t at = find_last(text, sep, to);
        if (at == SIZE_MAX)
            break;
        list_push(run, parts, text_cut(run, text, at + sep->size, to));
        to = at;
    }
    list_push(run, parts, text_cut(run, text, 0, to));
    reverse(parts.list);
    return parts;
}

static bool breaks_line(uint32_t code)
{
    return (code >= 10 && code <= 13) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

struct value text_lines(struct template_run *run, const struct text *text)
{
    struct value lines = value_list(run, VALUE_LIST, 0);
    size_t from = 0, at = 0;
    while (at < text->size) {
        uint32_t code;
        size_t step = text_code(text->data, text->size, at, &code);
        if (breaks_line(code)) {
            list_push(run, lines, text_cut(run, text, from, at));
            if (code == '\r' && at + 1 < text->size && text->data[at + 1] == '\n')
                step = 2;
            from = at + step;
        }
        at += step;
    }
    if (from < text->size)
        list_push(run, lines, text_cut(run, text, from, text->size));
    return lines;
}

struct value method_splitlines(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return text_lines(run, plain_text(run, self, "splitlines"));
}

// Search ----------------------------------------------------------------------------------------------------------------------

static bool matches_edge(struct template_run *run, const struct text *text, struct value what, bool start,
                         const char *method)
{
    if (what.kind == VALUE_TUPLE) {
        for (size_t i = 0; i < what.list->count; i++)
            if (matches_edge(run, text, what.list->items[i], start, method))
                return true;
        return false;
    }
    const struct text *edge = argument_text(run, what, method);
    return edge->size <= text->size &&
           memcmp(start ? text->data : text->data + text->size - edge->size, edge->data, edge->size) == 0;
}

struct value method_startswith(struct template_run *run, struct value self, const struct value *args)
{
    return value_bool(matches_edge(run, self_text(run, self, "startswith"), args[0], true, "startswith"));
}

struct value method_endswith(struct template_run *run, struct value self, const struct value *args)
{
    return value_bool(matches_edge(run, self_text(run, self, "endswith"), args[0], false, "endswith"));
}

struct value method_removeprefix(struct template_run *run, struct value self, const struct value *args)
{
    const struct text *text = plain_text(run, self, "removeprefix"),
                      *edge = argument_text(run, args[0], "removeprefix");
    return matches_edge(run, text, args[0], true, "removeprefix") ? text_cut(run, text, edge->size, text->size) : self;
}

struct value method_removesuffix(struct template_run *run, struct value self, const struct value *args)
{
    const struct text *text = plain_text(run, self, "removesuffix"),
                      *edge = argument_text(run, args[0], "removesuffix");
    return matches_edge(run, text, args[0], false, "removesuffix") ? text_cut(run, text, 0, text->size - edge->size)
                                                                   : self;
}

// The code point index of `what` in text at or after args[1]; -1 where it is not.
static int64_t find(struct template_run *run, const struct text *text, const struct value *args, bool last,
                    const char *method)
{
    const struct text *what = argument_text(run, args[0], method);
    int64_t start = argument_int(run, args[1], "start", 0), length = (int64_t)text_length(text->data, text->size);
    start = start < 0 ? start + length : start;
    if (start > length)
        return -1;
    size_t from = text_offset(text->data, text->size, (size_t)(start < 0 ? 0 : start)), at;
    if (last) {
        at = find_last(text, what, text->size);
        if (at == SIZE_MAX || at < from)
            return -1;
    } else {
        const char *found =
            what->size ? memmem(text->data + from, text->size - from, what->data, what->size) : text->data + from;
        if (!found)
            return -1;
        at = (size_t)(found - text->data);
    }
    return (int64_t)text_length(text->data, at);
}

struct value method_find(struct template_run *run, struct value self, const struct value *args)
{
    return value_int(find(run, self_text(run, self, "find"), args, false, "find"));
}

struct value method_rfind(struct template_run *run, struct value self, const struct value *args)
{
    return value_int(find(run, self_text(run, self, "rfind"), args, true, "rfind"));
}

struct value method_index(struct template_run *run, struct value self, const struct value *args)
{
    int64_t at = -1;
    if (self.kind == VALUE_LIST || self.kind == VALUE_TUPLE) {
        template_steps(run, self.list->count);
        for (size_t i = 0; i < self.list->count && at < 0; i++)
            at = value_eq(run, self.list->items[i], args[0]) ? (int64_t)i : -1;
    } else {
        at = find(run, self_text(run, self, "index"), args, false, "index");
    }
    if (at < 0)
        template_fail(run, "index: the value is not there");
    return value_int(at);
}

struct value method_count(struct template_run *run, struct value self, const struct value *args)
{
    int64_t count = 0;
    if (self.kind == VALUE_LIST || self.kind == VALUE_TUPLE) {
        template_steps(run, self.list->count);
        for (size_t i = 0; i < self.list->count; i++)
            count += value_eq(run, self.list->items[i], args[0]);
        return value_int(count);
    }
    const struct text *text = self_text(run, self, "count"), *what = argument_text(run, args[0], "count");
    if (!what->size)
        return value_int((int64_t)text_length(text->data, text->size) + 1);
    const char *at = text->data, *end = text->data + text->size;
    while ((at = memmem(at, (size_t)(end - at), what->data, what->size))) {
        at += what->size;
        count++;
    }
    return value_int(count);
}

// Case ------------------------------------------------------------------------------------------------------------------------

static bool cased(uint32_t code)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

struct value text_case(struct template_run *run, const struct text *text, int style)
{
    struct builder b = {0};
    bool inside = false; // past the first letter of a word (title) or of the string (capitalize)
    size_t step;
    for (size_t at = 0; at < text->size; at += step) {
        uint32_t code;
        step = text_code(text->data, text->size, at, &code);
        bool up = style == 'u' || (style != 'l' && !inside), trusted = text_trusted(text, at);
        inside = style == 't' ? cased(code) : true;
        if (code == 0xDF && up) { // the one letter of Latin text that grows
            builder_bytes(run, &b, style == 'u' ? "SS" : "Ss", 2, trusted);
            continue;
        }
        utf8proc_int32_t point = (utf8proc_int32_t)code;
        utf8proc_int32_t changed = !up            ? utf8proc_tolower(point)
                                   : style == 'u' ? utf8proc_toupper(point)
                                                  : utf8proc_totitle(point);
        utf8proc_uint8_t bytes[4];
        if (changed == point)
            builder_text(run, &b, text, at, at + step);
        else
            builder_bytes(run, &b, (char *)bytes, (size_t)utf8proc_encode_char(changed, bytes), trusted);
    }
    return builder_finish(run, &b, text->markup);
}

struct value method_upper(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return text_case(run, self_text(run, self, "upper"), 'u');
}

struct value method_lower(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return text_case(run, self_text(run, self, "lower"), 'l');
}

struct value method_capitalize(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return text_case(run, self_text(run, self, "capitalize"), 'c');
}

struct value method_title(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return text_case(run, self_text(run, self, "title"), 't');
}

enum { CLASS_DIGIT = 1, CLASS_ALPHA = 2, CLASS_SPACE = 4 };

static struct value all_in(struct template_run *run, struct value self, const char *method, int classes)
{
    const struct text *text = self_text(run, self, method);
    size_t step;
    for (size_t at = 0; at < text->size; at += step) {
        uint32_t code;
        step = text_code(text->data, text->size, at, &code);
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
        bool letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
        if (!((classes & CLASS_DIGIT && category == UTF8PROC_CATEGORY_ND) || (classes & CLASS_ALPHA && letter) ||
              (classes & CLASS_SPACE && text_is_space(code))))
            return value_bool(false);
    }
    return value_bool(text->size != 0);
}

struct value method_isdigit(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return all_in(run, self, "isdigit", CLASS_DIGIT);
}

struct value method_isalpha(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return all_in(run, self, "isalpha", CLASS_ALPHA);
}

struct value method_isalnum(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return all_in(run, self, "isalnum", CLASS_ALPHA | CLASS_DIGIT);
}

struct value method_isspace(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return all_in(run, self, "isspace", CLASS_SPACE);
}

// Replace and join ------------------------------------------------------------------------------------------------------------

struct value text_replace(struct template_run *run, const struct text *text, const struct text *from,
                          const struct text *to, int64_t count)
{
    struct builder b = {0};
    size_t at = 0;
    while (count != 0) {
        if (!from->size) { // between all characters and at both ends
            builder_text(run, &b, to, 0, to->size);
            if (at == text->size)
                break;
            size_t next = at + text_offset(text->data + at, text->size - at, 1);
            builder_text(run, &b, text, at, next);
            at = next;
        } else {
            const char *found = memmem(text->data + at, text->size - at, from->data, from->size);
            if (!found)
                break;
            size_t next = (size_t)(found - text->data);
            builder_text(run, &b, text, at, next);
            builder_text(run, &b, to, 0, to->size);
            at = next + from->size;
        }
        count--;
    }
    builder_text(run, &b, text, at, text->size);
    return builder_finish(run, &b, false);
}

struct value method_replace(struct template_run *run, struct value self, const struct value *args)
{
    const struct text *text = plain_text(run, self, "replace");
    const struct text *from = argument_text(run, args[0], "replace"), *to = argument_text(run, args[1], "replace");
    return text_replace(run, text, from, to, argument_int(run, args[2], "count", -1));
}

struct value method_join(struct template_run *run, struct value self, const struct value *args)
{
    const struct text *between = plain_text(run, self, "join");
    struct builder b = {0};
    const struct list *parts = value_elements(run, args[0]);
    template_steps(run, parts->count);
    for (size_t i = 0; i < parts->count; i++) {
        const struct text *part = argument_text(run, parts->items[i], "join");
        if (i)
            builder_text(run, &b, between, 0, between->size);
        builder_text(run, &b, part, 0, part->size);
    }
    return builder_finish(run, &b, false);
}
