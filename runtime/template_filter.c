// SPDX-License-Identifier: Apache-2.0
//
// Jinja2's filters for chat templates; tojson is the one that transformers puts in place of Jinja2's (no HTML escapes).

#include "runtime/template_library.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noreturn)) static void fail_kind(struct template_run *run, const char *filter, struct value v)
{
    if (v.kind == VALUE_UNDEFINED)
        template_fail_undefined(run, v);
    template_fail(run, "%s: a value of type %s does not fit", filter, value_type(v));
}

// Text ------------------------------------------------------------------------------------------------------------------------

struct value filter_tojson(struct template_run *run, struct value self, const struct value *args)
{
    struct json_style style = {.ascii = argument_truth(run, args[0], false),
                               .sort_keys = argument_truth(run, args[3], false)};
    if (args[1].kind == VALUE_TEXT)
        style.indent = args[1].text;
    else if (args[1].kind != VALUE_MISSING && args[1].kind != VALUE_NONE) {
        int64_t width = argument_int(run, args[1], "indent", 0);
        static const char blanks[] = "                                ";
        width = width < 0 ? 0 : width;
        if (width >= (int64_t)sizeof blanks)
            template_fail(run, "tojson: an indent of more than %zu", sizeof blanks - 1);
        struct text *indent = template_alloc(run, 1, sizeof *indent);
        *indent = (struct text){.data = blanks, .size = (size_t)width, .trusted = true};
        style.indent = indent;
    }
    if (args[2].kind != VALUE_MISSING && args[2].kind != VALUE_NONE) {
        struct value separators[2];
        value_unpack(run, args[2], separators, 2);
        if (separators[0].kind != VALUE_TEXT || separators[1].kind != VALUE_TEXT)
            template_fail(run, "tojson: separators must be two strings");
        style.item_separator = separators[0].text;
        style.key_separator = separators[1].text;
    }
    struct builder b = {0};
    print_json(run, &b, self, &style);
    return builder_finish(run, &b, false);
}

struct value filter_trim(struct template_run *run, struct value self, const struct value *args)
{
    bool given = args[0].kind != VALUE_MISSING && args[0].kind != VALUE_NONE;
    return text_strip(run, value_string(run, self), given ? value_string(run, args[0]) : NULL, true, true);
}

struct value filter_string(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return value_text(value_string(run, self));
}

static struct value marked(struct template_run *run, const struct text *text)
{
    struct text *copy = template_alloc(run, 1, sizeof *copy);
    *copy = *text;
    copy->markup = true;
    return value_text(copy);
}

struct value filter_safe(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return marked(run, value_string(run, self));
}

struct value filter_escape(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    const struct text *text = value_string(run, self);
    return text->markup ? value_text(text) : text_escape(run, text);
}

struct value filter_upper(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return text_case(run, value_string(run, self), 'u');
}

struct value filter_lower(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return text_case(run, value_string(run, self), 'l');
}

struct value filter_capitalize(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return text_case(run, value_string(run, self), 'c');
}

// Words begin after white space, '-' and opening brackets; unlike the method, an apostrophe does not begin one.
struct value filter_title(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    const struct text *text = value_string(run, self);
    struct builder b = {0};
    size_t from = 0, at = 0, step;
    for (; at <= text->size; at += step) {
        uint32_t code = ' ';
        step = at < text->size ? text_code(text->data, text->size, at, &code) : 1;
        if (at < text->size && !text_is_space(code) && (code > 0x7F || !strchr("-({[<", (int)code)))
            continue;
        if (at > from) {
            size_t first = from + text_offset(text->data + from, text->size - from, 1);
            const struct text *head = text_case(run, text_cut(run, text, from, first).text, 'u').text;
            const struct text *tail = text_case(run, text_cut(run, text, first, at).text, 'l').text;
            builder_text(run, &b, head, 0, head->size);
            builder_text(run, &b, tail, 0, tail->size);
        }
        if (at < text->size)
            builder_text(run, &b, text, at, at + step);
        from = at + step;
    }
    return builder_finish(run, &b, text->markup);
}

struct value filter_replace(struct template_run *run, struct value self, const struct value *args)
{
    return text_replace(run, value_string(run, self), value_string(run, args[0]), value_string(run, args[1]),
                        argument_int(run, args[2], "count", -1));
}

struct value filter_indent(struct template_run *run, struct value self, const struct value *args)
{
    struct value indent = args[0];
    if (self.kind != VALUE_TEXT)
        fail_kind(run, "indent", self);
    const struct text *text = self.text;
    if (text->markup)
        template_fail(run, "unsupported: indent of a |safe string");
    if (indent.kind != VALUE_TEXT) {
        static const struct text blank = {.data = " ", .size = 1, .trusted = true};
        indent = value_mul(run, value_text(&blank), value_int(argument_int(run, args[0], "width", 4)));
    }
    bool first = argument_truth(run, args[1], false), blank_lines = argument_truth(run, args[2], false);
    struct builder b = {0};
    builder_text(run, &b, text, 0, text->size);
    builder_bytes(run, &b, "\n", 1, true);
    const struct list *lines = text_lines(run, builder_finish(run, &b, false).text).list;
    struct builder out = {0};
    for (size_t i = 0; i < lines->count; i++) {
        const struct text *line = lines->items[i].text;
        if (i)
            builder_bytes(run, &out, "\n", 1, text->size && text_trusted(text, 0));
        if (i ? blank_lines || line->size : first)
            builder_text(run, &out, indent.text, 0, indent.text->size);
        builder_text(run, &out, line, 0, line->size);
    }
    return builder_finish(run, &out, false);
}

// Numbers ---------------------------------------------------------------------------------------------------------------------

// A whole string as a number; NaN where it is none.
static double parse_float(struct template_run *run, const struct text *text)
{
    const struct text *trimmed = text_strip(run, text, NULL, true, true).text;
    char buffer[400], *end;
    if (!trimmed->size || trimmed->size >= sizeof buffer || memchr(trimmed->data, 'x', trimmed->size) ||
        memchr(trimmed->data, 'X', trimmed->size) || memchr(trimmed->data, '(', trimmed->size))
        return NAN;
    memcpy(buffer, trimmed->data, trimmed->size);
    buffer[trimmed->size] = 0;
    double real = strtod(buffer, &end);
    return end == buffer + trimmed->size ? real : NAN;
}

static bool parse_int(struct template_run *run, const struct text *text, int base, int64_t *out)
{
    const struct text *trimmed = text_strip(run, text, NULL, true, true).text;
    char buffer[80], *end;
    if (!trimmed->size || trimmed->size >= sizeof buffer)
        return false;
    memcpy(buffer, trimmed->data, trimmed->size);
    buffer[trimmed->size] = 0;
    errno = 0;
    long long integer = strtoll(buffer, &end, base);
    if (end != buffer + trimmed->size)
        return false;
    if (errno == ERANGE)
        template_fail(run, "a number does not fit 64 bits");
    *out = integer;
    return true;
}

struct value filter_int(struct template_run *run, struct value self, const struct value *args)
{
    struct value usual = args[0].kind == VALUE_MISSING ? value_int(0) : args[0], result = value_int(0);
    double real = NAN;
    switch (self.kind) {
    case VALUE_UNDEFINED:
        fail_kind(run, "int", self);
    case VALUE_INT:
    case VALUE_WIDE:
        return self;
    case VALUE_BOOL:
        result.integer = self.flag;
        break;
    case VALUE_FLOAT:
        real = self.real;
        break;
    case VALUE_TEXT:
        result.trusted = self.text->size && text_trusted(self.text, 0);
        if (parse_int(run, self.text, (int)argument_int(run, args[1], "base", 10), &result.integer))
            return result;
        real = parse_float(run, self.text);
        break;
    default:
        return usual;
    }
    if (self.kind != VALUE_BOOL) {
        if (!isfinite(real))
            return usual;
        if (fabs(real) >= 0x1p63)
            template_fail(run, "a number does not fit 64 bits");
        result.integer = (int64_t)real;
    }
    return result;
}

struct value filter_float(struct template_run *run, struct value self, const struct value *args)
{
    struct value usual = args[0].kind == VALUE_MISSING ? value_float(0) : args[0], result = value_float(0);
    if (self.kind == VALUE_UNDEFINED)
        fail_kind(run, "float", self);
    if (self.kind == VALUE_FLOAT)
        return self;
    if (self.kind == VALUE_TEXT) {
        result.real = parse_float(run, self.text);
        result.trusted = self.text->size && text_trusted(self.text, 0);
        return isnan(result.real) ? usual : result;
    }
    if (!value_numeric(self))
        return usual;
    result.real = value_number(self);
    result.trusted = self.trusted;
    return result;
}

struct value filter_abs(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    if (self.kind == VALUE_FLOAT)
        self.real = fabs(self.real);
    else if (self.kind == VALUE_INT)
        return self.integer < 0 ? value_neg(run, self) : self;
    else if (self.kind == VALUE_BOOL)
        return value_pos(run, self);
    else if (self.kind == VALUE_WIDE)
        self.digits += *self.digits == '-';
    else
        fail_kind(run, "abs", self);
    return self;
}

struct value filter_round(struct template_run *run, struct value self, const struct value *args)
{
    int64_t precision = argument_int(run, args[0], "precision", 0);
    const char *method = "common";
    if (args[1].kind == VALUE_TEXT) {
        const struct text *name = args[1].text;
        method = name->size == 4 && !memcmp(name->data, "ceil", 4)     ? "ceil"
                 : name->size == 5 && !memcmp(name->data, "floor", 5)  ? "floor"
                 : name->size == 6 && !memcmp(name->data, "common", 6) ? "common"
                                                                       : NULL;
    }
    if (!method)
        template_fail(run, "round: the method must be common, ceil or floor");
    if (self.kind == VALUE_BOOL)
        self = value_pos(run, self);
    if (self.kind != VALUE_FLOAT && self.kind != VALUE_INT)
        fail_kind(run, "round", self);
    if (precision < 0 || precision > 30)
        template_fail(run, "unsupported: round to %lld digits", (long long)precision);
    if (*method == 'c' && method[1] == 'o') {
        char buffer[400];
        if (self.kind == VALUE_INT)
            return self;
        snprintf(buffer, sizeof buffer, "%.*f", (int)precision, self.real);
        self.real = strtod(buffer, NULL);
        return self;
    }
    double scale = pow(10, (double)precision),
           real = (self.kind == VALUE_INT ? (double)self.integer : self.real) * scale;
    return value_float((*method == 'c' ? ceil(real) : floor(real)) / scale);
}

// Any value -------------------------------------------------------------------------------------------------------------------

struct value filter_default(struct template_run *run, struct value self, const struct value *args)
{
    static const struct text empty = {.data = "", .trusted = true};
    if (self.kind != VALUE_UNDEFINED && (!argument_truth(run, args[1], false) || value_truth(run, self)))
        return self;
    return args[0].kind == VALUE_MISSING ? value_text(&empty) : args[0];
}

struct value filter_length(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    switch (self.kind) {
    case VALUE_UNDEFINED:
        return value_int(0);
    case VALUE_TEXT:
        return value_int((int64_t)text_length(self.text->data, self.text->size));
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
        return value_int((int64_t)self.list->count);
    case VALUE_DICT:
        return value_int((int64_t)self.dict->count);
    default:
        fail_kind(run, "length", self);
    }
}

// An attribute path as filters take it: "a.b.0", or a whole number.
static struct value follow(struct template_run *run, struct value v, struct value path)
{
    if (path.kind == VALUE_INT)
        return value_item(run, v, path);
    if (path.kind != VALUE_TEXT)
        template_fail(run, "an attribute must be a string or a whole number, found %s", value_type(path));
    for (size_t from = 0; from <= path.text->size;) {
        size_t to = from, digits = 0;
        while (to < path.text->size && path.text->data[to] != '.')
            digits += path.text->data[to] >= '0' && path.text->data[to] <= '9', to++;
        struct value key = text_cut(run, path.text, from, to);
        int64_t index;
        if (digits && digits == to - from && parse_int(run, key.text, 10, &index))
            key = value_int(index);
        v = value_item(run, v, key);
        from = to + 1;
    }
    return v;
}

struct value filter_attr(struct template_run *run, struct value self, const struct value *args)
{
    if (args[0].kind != VALUE_TEXT)
        fail_kind(run, "attr", args[0]);
    if (self.kind == VALUE_UNDEFINED)
        fail_kind(run, "attr", self);
    return self.kind == VALUE_NAMESPACE ? value_attribute(run, self, args[0].text) : value_undefined("attr");
}

// Lists -----------------------------------------------------------------------------------------------------------------------

struct value filter_list(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    const struct list *elements = value_elements(run, self);
    struct value list = value_list(run, VALUE_LIST, elements->count);
    list.trusted = self.kind == VALUE_TEXT || self.trusted;
    for (size_t i = 0; i < elements->count; i++)
        list_push(run, list, elements->items[i]);
    return list;
}

struct value filter_first(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    const struct list *elements = value_elements(run, self);
    return elements->count ? elements->items[0] : value_undefined("No first item, sequence was empty.");
}

struct value filter_last(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    if (self.kind == VALUE_GENERATOR)
        fail_kind(run, "last", self);
    const struct list *elements = value_elements(run, self);
    return elements->count ? elements->items[elements->count - 1]
                           : value_undefined("No last item, sequence was empty.");
}

struct value filter_reverse(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    if (self.kind == VALUE_TEXT)
        return value_slice(run, self, UNSET, UNSET, value_int(-1));
    const struct list *elements = value_elements(run, self);
    struct value result = value_list(run, self.kind == VALUE_GENERATOR ? VALUE_LIST : VALUE_GENERATOR, elements->count);
    for (size_t i = elements->count; i-- > 0;)
        list_push(run, result, elements->items[i]);
    return result;
}

struct value filter_join(struct template_run *run, struct value self, const struct value *args)
{
    static const struct text empty = {.data = "", .trusted = true};
    const struct text *between = args[0].kind == VALUE_MISSING ? &empty : value_string(run, args[0]);
    struct builder b = {0};
    const struct list *elements = value_elements(run, self);
    template_steps(run, elements->count);
    for (size_t i = 0; i < elements->count; i++) {
        struct value item =
            args[1].kind == VALUE_MISSING ? elements->items[i] : follow(run, elements->items[i], args[1]);
        if (i)
            builder_text(run, &b, between, 0, between->size);
        print_value(run, &b, item);
    }
    return builder_finish(run, &b, false);
}

struct value filter_items(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    if (self.kind == VALUE_UNDEFINED)
        return value_list(run, VALUE_GENERATOR, 0);
    if (self.kind != VALUE_DICT)
        template_fail(run, "items: needs a mapping, found %s", value_type(self));
    struct value view = method_items(run, self, NULL);
    view.kind = VALUE_GENERATOR;
    return view;
}

// Sorting ---------------------------------------------------------------------------------------------------------------------

static struct value fold_case(struct template_run *run, struct value key, bool case_sensitive)
{
    return key.kind == VALUE_TEXT && !case_sensitive ? text_case(run, key.text, 'l') : key;
}

// Keys are ordered as one-element lists are: what is equal is not compared further, so it need not have an order.
static bool sorts_before(struct template_run *run, struct value a, struct value b)
{
    return !value_eq(run, a, b) && value_lt(run, a, b);
}

// A stable merge sort of items by keys.
static void sort(struct template_run *run, struct value *keys, struct value *items, size_t count, bool reverse)
{
    struct value *spare_keys = template_alloc(run, count, 2 * sizeof *keys), *spare_items = spare_keys + count;
    for (size_t width = 1; width < count; width *= 2) {
        template_steps(run, count);
        for (size_t low = 0; low < count; low += 2 * width) {
            size_t middle = low + width < count ? low + width : count,
                   high = low + 2 * width < count ? low + 2 * width : count;
            for (size_t at = low, i = low, j = middle; at < high; at++) {
                bool right =
                    i == middle ||
                    (j < high && (reverse ? sorts_before(run, keys[i], keys[j]) : sorts_before(run, keys[j], keys[i])));
                size_t from = right ? j++ : i++;
                spare_keys[at] = keys[from];
                spare_items[at] = items[from];
            }
        }
        memcpy(keys, spare_keys, count * sizeof *keys);
        memcpy(items, spare_items, count * sizeof *items);
    }
}

struct value filter_sort(struct template_run *run, struct value self, const struct value *args)
{
    struct value list = filter_list(run, self, NULL);
    bool reverse = argument_truth(run, args[0], false), case_sensitive = argument_truth(run, args[1], false);
    size_t count = list.list->count;
    struct value *keys = template_alloc(run, count, sizeof *keys);
    if (args[2].kind == VALUE_TEXT && memchr(args[2].text->data, ',', args[2].text->size))
        template_fail(run, "unsupported: sort by several attributes");
    bool attribute = args[2].kind != VALUE_MISSING && args[2].kind != VALUE_NONE;
    for (size_t i = 0; i < count; i++) {
        struct value item = list.list->items[i];
        keys[i] = fold_case(run, attribute ? follow(run, item, args[2]) : item, case_sensitive);
    }
    sort(run, keys, list.list->items, count, reverse);
    return list;
}

struct value filter_dictsort(struct template_run *run, struct value self, const struct value *args)
{
    if (self.kind != VALUE_DICT)
        fail_kind(run, "dictsort", self);
    struct value list = filter_list(run, method_items(run, self, NULL), NULL);
    size_t count = list.list->count, by = 0;
    if (args[1].kind == VALUE_TEXT && args[1].text->size == 5 && !memcmp(args[1].text->data, "value", 5))
        by = 1;
    struct value *keys = template_alloc(run, count, sizeof *keys);
    for (size_t i = 0; i < count; i++)
        keys[i] = fold_case(run, list.list->items[i].list->items[by], argument_truth(run, args[0], false));
    sort(run, keys, list.list->items, count, argument_truth(run, args[2], false));
    return list;
}

struct value filter_unique(struct template_run *run, struct value self, const struct value *args)
{
    struct value seen = value_dict(run, VALUE_DICT), result = value_list(run, VALUE_GENERATOR, 0);
    const struct list *elements = value_elements(run, self);
    template_steps(run, elements->count);
    for (size_t i = 0; i < elements->count; i++) {
        struct value item = elements->items[i], key = args[1].kind == VALUE_MISSING ? item : follow(run, item, args[1]);
        key = fold_case(run, key, argument_truth(run, args[0], false));
        if (dict_get(run, seen, key))
            continue;
        dict_set(run, seen, key, NONE);
        list_push(run, result, item);
    }
    return result;
}

static struct value extreme(struct template_run *run, struct value self, const struct value *args, bool largest)
{
    const struct list *elements = value_elements(run, self);
    struct value best = value_undefined("No aggregated item, sequence was empty."), best_key = NONE;
    for (size_t i = 0; i < elements->count; i++) {
        struct value item = elements->items[i], key = args[1].kind == VALUE_MISSING ? item : follow(run, item, args[1]);
        key = fold_case(run, key, argument_truth(run, args[0], false));
        if (i == 0 || (largest ? value_lt(run, best_key, key) : value_lt(run, key, best_key))) {
            best = item;
            best_key = key;
        }
    }
    return best;
}

struct value filter_max(struct template_run *run, struct value self, const struct value *args)
{
    return extreme(run, self, args, true);
}

struct value filter_min(struct template_run *run, struct value self, const struct value *args)
{
    return extreme(run, self, args, false);
}

struct value filter_sum(struct template_run *run, struct value self, const struct value *args)
{
    const struct list *elements = value_elements(run, self);
    struct value total = args[1].kind == VALUE_MISSING ? value_int(0) : args[1];
    for (size_t i = 0; i < elements->count; i++) {
        struct value item = elements->items[i];
        total = value_add(run, total, args[0].kind == VALUE_MISSING ? item : follow(run, item, args[0]));
    }
    return total;
}
