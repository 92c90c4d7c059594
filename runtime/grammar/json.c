// SPDX-License-Identifier: Apache-2.0
//
// Pieces of JSON. See json.h.

#include "runtime/grammar/json.h"
#include "runtime/json_exact.h"
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 18 };

void jform_open(struct json_form *j, struct form *form)
{
    *j = (struct json_form){form, -1, -1, -1, -1, -1, -1, -1, -1, -1};
}

// A rule on its first use: true when the caller is to define it.
static bool fresh(struct json_form *j, int32_t *rule)
{
    if (*rule >= 0 || j->form->failed)
        return false;
    *rule = form_rule(j->form);
    return *rule >= 0;
}

int32_t jform_blank(struct json_form *j, int32_t next)
{
    struct form *f = j->form;
    if (fresh(j, &j->blank)) {
        struct form_set blanks = {{0}};
        int32_t again;
        for (const char *b = " \t\n\r"; *b; b++)
            form_set_add(&blanks, *b);
        const int32_t loop = form_loop(f, 0, JSON_BLANKS, form_return(f), &again);
        form_define(f, j->blank, form_loop_end(f, loop, form_set(f, &blanks, again)));
    }
    return form_call(f, j->blank, next);
}

static int32_t hex(struct form *f, const char *digits, int32_t next)
{
    struct form_set set = {{0}};
    for (const char *d = digits; *d; d++)
        form_set_add(&set, *d);
    return form_set(f, &set, next);
}

static const char any_hex[] = "0123456789abcdefABCDEF", not_zero[] = "123456789abcdefABCDEF";

static int32_t any(struct form *f, int count, int32_t next)
{
    while (count-- > 0)
        next = hex(f, any_hex, next);
    return next;
}

// After a backslash. Pairs of surrogates are complete, and NUL is left out: not every reader takes it.
static int32_t after_backslash(struct form *f)
{
    const int32_t end = form_return(f), low = hex(f, "dD", hex(f, "cdefCDEF", any(f, 2, end)));
    // Four digits: the first of them tells.
    const int32_t plain = hex(f, "123456789abcefABCEF", any(f, 3, end));
    int32_t first_zero = hex(f, not_zero, end);
    for (int i = 1; i < 3; i++)
        first_zero = form_either(f, form_text(f, "0", 1, first_zero), hex(f, not_zero, any(f, i, end)));
    first_zero = form_text(f, "0", 1, first_zero);
    const int32_t not_pair = hex(f, "01234567", any(f, 2, end));
    const int32_t pair = hex(f, "89abAB", any(f, 2, form_text(f, "\\u", 2, low)));
    const int32_t digits =
        form_either(f, form_either(f, plain, first_zero), hex(f, "dD", form_either(f, not_pair, pair)));
    return form_either(f, hex(f, "\"\\/bfnrt", end), form_text(f, "u", 1, digits));
}

int32_t jform_character(struct json_form *j, int32_t next)
{
    struct form *f = j->form;
    if (fresh(j, &j->escape))
        form_define(f, j->escape, after_backslash(f));
    struct form_set plain = {{0}};
    for (int b = 0x20; b < 0x80; b++)
        if (b != '"' && b != '\\')
            form_set_add(&plain, b);
    return form_either(
        f, form_set(f, &plain, next),
        form_either(f, form_points(f, 0x80, 0x10ffff, next), form_text(f, "\\", 1, form_call(f, j->escape, next))));
}

int32_t jform_string(struct json_form *j, int32_t next)
{
    struct form *f = j->form;
    if (fresh(j, &j->string)) {
        const int32_t star = form_star(f), end = form_text(f, "\"", 1, form_return(f));
        form_define(f, j->string, form_text(f, "\"", 1, form_star_end(f, star, jform_character(j, star), end)));
    }
    return form_call(f, j->string, next);
}

int32_t jform_length(struct json_form *j, int32_t least, int32_t most, int32_t next)
{
    struct form *f = j->form;
    int32_t again;
    if (least > most)
        return form_never(f);
    if (most == 0)
        return form_text(f, "\"\"", 2, next);
    if (j->counted < 0) {
        j->counted = form_loop(f, 0, FORM_ENDLESS, form_text(f, "\"", 1, form_return(f)), &again);
        form_loop_end(f, j->counted, jform_character(j, again));
    }
    const int32_t rule = form_rule(f);
    form_define(f, rule, form_text(f, "\"", 1, form_loop_like(f, j->counted, least, most)));
    return form_call(f, rule, next);
}

// ---- numbers ---------------------------------------------------------------------------------------------------------------

// One to `most` digits.
static int32_t digits(struct form *f, int most, int32_t next)
{
    int32_t more = next;
    for (int i = 1; i < most; i++)
        more = form_either(f, form_range(f, '0', '9', more), next);
    return form_range(f, '0', '9', more);
}

static int32_t whole(struct form *f, int32_t next)
{
    int32_t more = next;
    for (int i = 1; i < DIGITS; i++)
        more = form_either(f, form_range(f, '0', '9', more), next);
    const int32_t some = form_either(f, form_range(f, '0', '0', next), form_range(f, '1', '9', more));
    return form_either(f, form_text(f, "-", 1, some), some);
}

int32_t jform_number(struct json_form *j, int32_t next)
{
    struct form *f = j->form;
    if (fresh(j, &j->number)) {
        const int32_t end = form_return(f), power = digits(f, 2, end);
        struct form_set e = {{0}}, sign = {{0}};
        form_set_add(&e, 'e');
        form_set_add(&e, 'E');
        form_set_add(&sign, '+');
        form_set_add(&sign, '-');
        const int32_t exponent = form_either(f, form_set(f, &e, form_either(f, form_set(f, &sign, power), power)), end);
        const int32_t fraction = form_text(f, ".", 1, digits(f, DIGITS, exponent));
        form_define(f, j->number, whole(f, form_either(f, fraction, exponent)));
    }
    return form_call(f, j->number, next);
}

int32_t jform_integer(struct json_form *j, int32_t next)
{
    if (fresh(j, &j->integer))
        form_define(j->form, j->integer, whole(j->form, form_return(j->form)));
    return form_call(j->form, j->integer, next);
}

// ---- any value -------------------------------------------------------------------------------------------------------------

int32_t jform_sign(struct json_form *j, char sign, int32_t next)
{
    return jform_blank(j, form_text(j->form, &sign, 1, jform_blank(j, next)));
}

// `first (, first)*` or nothing, between two brackets.
static int32_t list(struct json_form *j, const char *brackets, int32_t (*item)(struct json_form *, int32_t))
{
    struct form *f = j->form;
    const int32_t end = form_text(f, &brackets[1], 1, form_return(f)), close = jform_blank(j, end);
    const int32_t star = form_star(f);
    form_star_end(f, star, jform_sign(j, ',', item(j, star)), close);
    return form_text(f, &brackets[0], 1, jform_blank(j, form_either(f, item(j, star), end)));
}

static int32_t pair(struct json_form *j, int32_t next)
{
    return jform_string(j, jform_sign(j, ':', jform_value(j, next)));
}

int32_t jform_object(struct json_form *j, int32_t next)
{
    if (fresh(j, &j->object)) {
        j->form->rules[j->object].nests = 1;
        form_define(j->form, j->object, list(j, "{}", pair));
    }
    return form_call(j->form, j->object, next);
}

int32_t jform_array(struct json_form *j, int32_t next)
{
    if (fresh(j, &j->array)) {
        j->form->rules[j->array].nests = 1;
        form_define(j->form, j->array, list(j, "[]", jform_value));
    }
    return form_call(j->form, j->array, next);
}

int32_t jform_value(struct json_form *j, int32_t next)
{
    struct form *f = j->form;
    if (fresh(j, &j->value)) {
        const int32_t end = form_return(f);
        int32_t all = form_either(f, jform_string(j, end), jform_number(j, end));
        all = form_either(f, all, form_either(f, jform_object(j, end), jform_array(j, end)));
        all = form_either(f, all, form_either(f, form_text(f, "true", 4, end), form_text(f, "false", 5, end)));
        form_define(f, j->value, form_either(f, all, form_text(f, "null", 4, end)));
    }
    return form_call(f, j->value, next);
}

// ---- given values ----------------------------------------------------------------------------------------------------------

static int32_t constant_list(struct json_form *j, const json_t *value, int depth, int32_t next)
{
    struct form *f = j->form;
    const size_t n = json_array_size(value);
    next = form_text(f, "]", 1, next);
    for (size_t i = n; i-- > 0;) {
        next = jform_constant(j, json_array_get(value, i), depth + 1, i + 1 == n ? jform_blank(j, next) : next);
        next = i > 0 ? jform_sign(j, ',', next) : jform_blank(j, next);
    }
    return form_text(f, "[", 1, next);
}

static int32_t constant_key(struct json_form *j, const char *key, size_t bytes, int32_t next)
{
    json_t *string = json_stringn_nocheck(key, bytes);
    next = jform_constant(j, string, 0, next);
    json_decref(string);
    return next;
}

static int32_t constant_object(struct json_form *j, const json_t *value, int depth, int32_t next)
{
    struct form *f = j->form;
    const size_t n = json_object_size(value);
    const char **keys = calloc(n + 1, sizeof *keys);
    size_t i = 0;
    if (!keys)
        return form_fail(f, "no memory for a grammar");
    for (void *at = json_object_iter((json_t *)(uintptr_t)value); at;
         at = json_object_iter_next((json_t *)(uintptr_t)value, at))
        keys[i++] = json_object_iter_key(at);
    next = form_text(f, "}", 1, next);
    for (i = n; i-- > 0;) {
        next = jform_constant(j, json_object_get(value, keys[i]), depth + 1, i + 1 == n ? jform_blank(j, next) : next);
        next = constant_key(j, keys[i], strlen(keys[i]), jform_sign(j, ':', next));
        next = i > 0 ? jform_sign(j, ',', next) : jform_blank(j, next);
    }
    free(keys);
    return form_text(f, "{", 1, next);
}

int32_t jform_constant(struct json_form *j, const json_t *value, int depth, int32_t next)
{
    struct form *f = j->form;
    if (depth > FORM_DEPTH)
        return form_fail(f, "a value is nested deeper than %d", FORM_DEPTH);
    if (next < 0 || f->failed)
        return -1;
    if (json_is_array(value))
        return constant_list(j, value, depth, next);
    if (json_is_object(value))
        return constant_object(j, value, depth, next);
    char *text = json_exact_dump(value, NULL);
    if (!text)
        return form_fail(f, "no memory for a grammar");
    next = form_text(f, text, strlen(text), next);
    free(text);
    return next;
}
