// SPDX-License-Identifier: Apache-2.0
//
// Jinja2's tests (`x is defined`), dict methods and global functions for chat templates.

#include "runtime/template_library.h"
#include <string.h>

// Tests of the kind of value: they accept every value, undefined included ---------------------------------------------------------

bool test_defined(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind != VALUE_UNDEFINED;
}

bool test_undefined(struct template_run *run, struct value self, const struct value *args)
{
    return !test_defined(run, self, args);
}

bool test_none(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind == VALUE_NONE;
}

bool test_string(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind == VALUE_TEXT;
}

bool test_mapping(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind == VALUE_DICT;
}

bool test_iterable(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind == VALUE_UNDEFINED || (self.kind >= VALUE_TEXT && self.kind <= VALUE_DICT);
}

bool test_sequence(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind == VALUE_UNDEFINED || self.kind == VALUE_TEXT || self.kind == VALUE_LIST ||
           self.kind == VALUE_TUPLE || self.kind == VALUE_DICT;
}

bool test_number(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind >= VALUE_BOOL && self.kind <= VALUE_FLOAT;
}

bool test_integer(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind == VALUE_INT || self.kind == VALUE_WIDE;
}

bool test_float(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind == VALUE_FLOAT;
}

bool test_boolean(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind == VALUE_BOOL;
}

bool test_true(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind == VALUE_BOOL && self.flag;
}

bool test_false(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind == VALUE_BOOL && !self.flag;
}

bool test_callable(struct template_run *run, struct value self, const struct value *args)
{
    (void)run, (void)args;
    return self.kind == VALUE_MACRO || self.kind == VALUE_METHOD || self.kind == VALUE_UNDEFINED;
}

// Comparisons -----------------------------------------------------------------------------------------------------------------

bool test_eq(struct template_run *run, struct value self, const struct value *args)
{
    return value_eq(run, self, args[0]);
}

bool test_ne(struct template_run *run, struct value self, const struct value *args)
{
    return !value_eq(run, self, args[0]);
}

bool test_lt(struct template_run *run, struct value self, const struct value *args)
{
    return value_lt(run, self, args[0]);
}

bool test_le(struct template_run *run, struct value self, const struct value *args)
{
    return value_le(run, self, args[0]);
}

bool test_gt(struct template_run *run, struct value self, const struct value *args)
{
    return value_lt(run, args[0], self);
}

bool test_ge(struct template_run *run, struct value self, const struct value *args)
{
    return value_le(run, args[0], self);
}

bool test_in(struct template_run *run, struct value self, const struct value *args)
{
    return value_in(run, self, args[0]);
}

bool test_sameas(struct template_run *run, struct value self, const struct value *args)
{
    if (self.kind != args[0].kind)
        return false;
    if (self.kind != VALUE_NONE && self.kind != VALUE_BOOL)
        template_fail(run, "unsupported: 'is sameas' of a %s", value_type(self));
    return value_eq(run, self, args[0]);
}

static bool remainder_is(struct template_run *run, struct value self, struct value by, int64_t rest)
{
    return value_eq(run, value_mod(run, self, by), value_int(rest));
}

bool test_divisibleby(struct template_run *run, struct value self, const struct value *args)
{
    return remainder_is(run, self, args[0], 0);
}

bool test_even(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return remainder_is(run, self, value_int(2), 0);
}

bool test_odd(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return remainder_is(run, self, value_int(2), 1);
}

static bool in_case(struct template_run *run, struct value self, int style)
{
    const struct text *text = value_string(run, self);
    return value_eq(run, value_text(text), text_case(run, text, style)) &&
           !value_eq(run, value_text(text), text_case(run, text, style == 'u' ? 'l' : 'u'));
}

bool test_upper(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return in_case(run, self, 'u');
}

bool test_lower(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    return in_case(run, self, 'l');
}

// Dict methods ----------------------------------------------------------------------------------------------------------------

static const struct dict *self_dict(struct template_run *run, struct value self, const char *method)
{
    if (self.kind == VALUE_UNDEFINED)
        template_fail_undefined(run, self);
    if (self.kind != VALUE_DICT)
        template_fail(run, "a value of type %s has no method %s", value_type(self), method);
    return self.dict;
}

struct value method_items(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    const struct dict *dict = self_dict(run, self, "items");
    template_steps(run, dict->count);
    struct value view = value_list(run, VALUE_VIEW, dict->count);
    for (size_t i = 0; i < dict->count; i++) {
        struct value pair = value_list(run, VALUE_TUPLE, 2);
        pair.trusted = self.trusted;
        list_push(run, pair, dict->keys[i]);
        list_push(run, pair, dict->values[i]);
        list_push(run, view, pair);
    }
    return view;
}

static struct value view_of(struct template_run *run, const struct value *items, size_t count)
{
    template_steps(run, count);
    struct value view = value_list(run, VALUE_VIEW, count);
    for (size_t i = 0; i < count; i++)
        list_push(run, view, items[i]);
    return view;
}

struct value method_keys(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    const struct dict *dict = self_dict(run, self, "keys");
    return view_of(run, dict->keys, dict->count);
}

struct value method_values(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    const struct dict *dict = self_dict(run, self, "values");
    return view_of(run, dict->values, dict->count);
}

struct value method_get(struct template_run *run, struct value self, const struct value *args)
{
    self_dict(run, self, "get");
    const struct value *found = dict_get(run, self, args[0]);
    return found ? *found : args[1].kind == VALUE_MISSING ? NONE : args[1];
}

void dict_update(struct template_run *run, struct value into, struct value from)
{
    if (from.kind == VALUE_UNDEFINED)
        template_fail_undefined(run, from);
    if (from.kind == VALUE_DICT || from.kind == VALUE_NAMESPACE) {
        template_steps(run, from.dict->count);
        for (size_t i = 0; i < from.dict->count; i++)
            dict_set(run, into, from.dict->keys[i], from.dict->values[i]);
        return;
    }
    const struct list *pairs = value_elements(run, from);
    template_steps(run, pairs->count);
    for (size_t i = 0; i < pairs->count; i++) {
        struct value pair[2];
        value_unpack(run, pairs->items[i], pair, 2);
        dict_set(run, into, pair[0], pair[1]);
    }
}

struct value method_copy(struct template_run *run, struct value self, const struct value *args)
{
    (void)args;
    if (self.kind == VALUE_LIST) {
        struct value list = view_of(run, self.list->items, self.list->count);
        list.kind = VALUE_LIST;
        list.trusted = self.trusted;
        return list;
    }
    self_dict(run, self, "copy");
    struct value copy = value_dict(run, VALUE_DICT);
    copy.trusted = self.trusted;
    dict_update(run, copy, self);
    return copy;
}

// Functions -------------------------------------------------------------------------------------------------------------------

struct value function_range(struct template_run *run, struct value self, const struct value *args)
{
    (void)self;
    int64_t from = argument_int(run, args[0], "range", 0), to = 0, step = argument_int(run, args[2], "range", 1);
    if (args[1].kind == VALUE_MISSING) {
        to = from;
        from = 0;
    } else {
        to = argument_int(run, args[1], "range", 0);
    }
    if (step == 0)
        template_fail(run, "range: the step cannot be zero");
    struct value result = value_list(run, VALUE_VIEW, 0);
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        if (result.list->count == 100000) // Jinja2's own limit in a sandbox
            template_fail(run, "range: more than 100000 numbers");
        list_push(run, result, value_int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    template_steps(run, result.list->count);
    return result;
}

struct value function_raise_exception(struct template_run *run, struct value self, const struct value *args)
{
    (void)self;
    const struct text *message = value_string(run, args[0]);
    template_fail(run, "%.*s", (int)(message->size < 300 ? message->size : 300), message->data);
}

struct value function_strftime_now(struct template_run *run, struct value self, const struct value *args)
{
    (void)self;
    const struct text *format = value_string(run, args[0]);
    char pattern[128], out[512];
    struct tm when;
    if (!format->size)
        return value_text(format);
    if (format->size >= sizeof pattern - 1 || !localtime_r(&run->now, &when))
        template_fail(run, "strftime_now: the format is too long");
    memcpy(pattern, format->data, format->size);
    pattern[format->size] = '.'; // so that an empty result is told from a failure
    pattern[format->size + 1] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t size = strftime(out, sizeof out, pattern, &when);
#pragma GCC diagnostic pop
    if (!size)
        template_fail(run, "strftime_now: the result is too long");
    struct builder b = {0};
    builder_bytes(run, &b, out, size - 1, !format->size || text_trusted(format, 0));
    return builder_finish(run, &b, false);
}
