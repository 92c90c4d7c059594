// SPDX-License-Identifier: Apache-2.0
//
// Python's ==, < and `in` for chat templates. Invariant: == accepts any two values; an order exists only where Python has one.

#define _GNU_SOURCE // memmem
#include "runtime/template.h"
#include <string.h>

static int compare_text(const struct text *a, const struct text *b)
{
    size_t common = a->size < b->size ? a->size : b->size;
    int order = common ? memcmp(a->data, b->data, common) : 0;
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

static void enter(struct template_run *run, size_t count)
{
    if (++run->depth > TEMPLATE_DEPTH)
        template_fail(run, "values nest deeper than %d", TEMPLATE_DEPTH);
    template_steps(run, count);
}

// The order of two whole numbers of which one has more than 64 bits: that one's sign decides, else its length, else its digits.
static int compare_wide(struct value a, struct value b)
{
    if (a.kind != VALUE_WIDE)
        return -compare_wide(b, a);
    const int sign = *a.digits == '-' ? -1 : 1;
    if (b.kind != VALUE_WIDE || (*b.digits == '-') != (sign < 0))
        return sign;
    const size_t left = strlen(a.digits), right = strlen(b.digits);
    const int order = left != right ? (left > right) - (left < right) : strcmp(a.digits, b.digits);
    return sign * ((order > 0) - (order < 0));
}

static bool equal_numbers(struct value a, struct value b)
{
    if (a.kind != VALUE_FLOAT && b.kind != VALUE_FLOAT && (a.kind == VALUE_WIDE || b.kind == VALUE_WIDE))
        return compare_wide(a, b) == 0;
    if (a.kind != VALUE_FLOAT && b.kind != VALUE_FLOAT)
        return (a.kind == VALUE_BOOL ? a.flag : a.integer) == (b.kind == VALUE_BOOL ? b.flag : b.integer);
    return value_number(a) == value_number(b);
}

bool value_eq(struct template_run *run, struct value a, struct value b)
{
    if (value_numeric(a) && value_numeric(b))
        return equal_numbers(a, b);
    if (a.kind != b.kind)
        return false;
    bool equal = true;
    switch (a.kind) {
    case VALUE_TEXT:
        return a.text->size == b.text->size && memcmp(a.text->data, b.text->data, a.text->size) == 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
        if (a.list->count != b.list->count)
            return false;
        enter(run, a.list->count);
        for (size_t i = 0; i < a.list->count && equal; i++)
            equal = value_eq(run, a.list->items[i], b.list->items[i]);
        run->depth--;
        return equal;
    case VALUE_DICT:
        if (a.dict->count != b.dict->count)
            return false;
        enter(run, a.dict->count);
        for (size_t i = 0; i < a.dict->count && equal; i++) {
            const struct value *other = dict_get(run, b, a.dict->keys[i]);
            equal = other && value_eq(run, a.dict->values[i], *other);
        }
        run->depth--;
        return equal;
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return true;
    default:
        return a.list == b.list;
    }
}

// a < b, or a <= b where `equal`.
static bool ordered(struct template_run *run, struct value a, struct value b, bool equal)
{
    if (a.kind == VALUE_UNDEFINED || b.kind == VALUE_UNDEFINED)
        template_fail_undefined(run, a.kind == VALUE_UNDEFINED ? a : b);
    if (value_numeric(a) && value_numeric(b)) {
        if (a.kind != VALUE_FLOAT && b.kind != VALUE_FLOAT && (a.kind == VALUE_WIDE || b.kind == VALUE_WIDE))
            return compare_wide(a, b) < (equal ? 1 : 0);
        if (a.kind != VALUE_FLOAT && b.kind != VALUE_FLOAT) {
            int64_t left = a.kind == VALUE_BOOL ? a.flag : a.integer, right = b.kind == VALUE_BOOL ? b.flag : b.integer;
            return left < right || (equal && left == right);
        }
        return value_number(a) < value_number(b) || (equal && value_number(a) == value_number(b));
    }
    if (a.kind == VALUE_TEXT && b.kind == VALUE_TEXT) {
        int order = compare_text(a.text, b.text);
        return order < 0 || (equal && order == 0);
    }
    if (a.kind != b.kind || (a.kind != VALUE_LIST && a.kind != VALUE_TUPLE))
        template_fail(run, "'<' is not supported between %s and %s", value_type(a), value_type(b));
    size_t common = a.list->count < b.list->count ? a.list->count : b.list->count;
    enter(run, common);
    size_t i = 0;
    while (i < common && value_eq(run, a.list->items[i], b.list->items[i]))
        i++;
    bool result = i < common ? ordered(run, a.list->items[i], b.list->items[i], equal)
                             : a.list->count < b.list->count || (equal && a.list->count == b.list->count);
    run->depth--;
    return result;
}

bool value_lt(struct template_run *run, struct value a, struct value b)
{
    return ordered(run, a, b, false);
}

bool value_le(struct template_run *run, struct value a, struct value b)
{
    return ordered(run, a, b, true);
}

bool value_in(struct template_run *run, struct value a, struct value b)
{
    switch (b.kind) {
    case VALUE_TEXT:
        if (a.kind == VALUE_UNDEFINED)
            template_fail_undefined(run, a);
        if (a.kind != VALUE_TEXT)
            template_fail(run, "'in <string>' needs a string on the left, found %s", value_type(a));
        return !a.text->size || memmem(b.text->data, b.text->size, a.text->data, a.text->size);
    case VALUE_DICT:
        return dict_get(run, b, a) != NULL;
    case VALUE_UNDEFINED:
        return false;
    default:
        break;
    }
    if (!value_listlike(b))
        template_fail(run, "a %s cannot be searched with 'in'", value_type(b));
    const struct list *list = value_elements(run, b);
    template_steps(run, list->count);
    for (size_t i = 0; i < list->count; i++)
        if (value_eq(run, list->items[i], a))
            return true;
    return false;
}
