// SPDX-License-Identifier: Apache-2.0
//
// Objects, arrays, strings and numbers of a schema. Anything larger than a few nodes is a rule of its own, so that
// masks of equal places are shared.

#include "runtime/grammar/schema.h"
#include "runtime/grammar/tree.h"
#include <stdlib.h>
#include <string.h>

// ---- strings ---------------------------------------------------------------------------------------------------------------

// A rule that is one string between quotes, and its call.
static int32_t quoted(struct schema_job *job, const char *pattern, size_t bytes, bool search, int32_t next)
{
    struct form *f = job->form;
    const int32_t rule = form_rule(f), end = form_text(f, "\"", 1, form_return(f));
    form_define(f, rule, form_text(f, "\"", 1, regex_build(f, pattern, bytes, search, TREE_JSON, end)));
    return schema_blame(job, "pattern", form_call(f, rule, next));
}

// The expression of a string that is not of any text: of its pattern, or its format's. NULL: there is none, or failed.
static const char *expression(struct schema_job *job, const json_t *schema, size_t *bytes, bool *search)
{
    const json_t *pattern = json_object_get(schema, "pattern");
    *bytes = json_string_length(pattern);
    *search = pattern != NULL;
    if (pattern && !json_is_text(pattern))
        schema_fail(job, "pattern must be a text");
    if (pattern)
        return json_text_value(pattern);
    const char *format = schema_format_pattern(job, json_object_get(schema, "format"));
    *bytes = format ? strlen(format) : 0;
    return format;
}

// What a schema says of a string.
struct limits {
    int32_t least, most;
    const char *text; // an expression, or NULL
    size_t bytes;
    bool search;
};

// False: failed.
static bool read_limits(struct schema_job *job, const json_t *schema, struct limits *l)
{
    int64_t low, high;
    l->least = schema_count(job, schema, "minLength", 0);
    l->most = schema_count(job, schema, "maxLength", FORM_ENDLESS);
    l->text = expression(job, schema, &l->bytes, &l->search);
    if (job->form->failed)
        return false;
    if (json_object_get(schema, "pattern") && json_object_get(schema, "format"))
        return schema_fail(job, "pattern beside format is not supported"), false;
    // A length beside an expression must follow from it.
    if (l->text && (l->least > 0 || l->most != FORM_ENDLESS) &&
        (!regex_lengths(job->form, l->text, l->bytes, l->search, &low, &high) || low < l->least || high > l->most))
        schema_fail(job, "minLength and maxLength are supported only where the pattern or format keeps them");
    schema_blame(job, "pattern", 0);
    return !job->form->failed;
}

int32_t schema_string(struct schema_job *job, const json_t *schema, int32_t next)
{
    struct limits l;
    if (!read_limits(job, schema, &l))
        return -1;
    if (!l.text && l.least == 0 && l.most == FORM_ENDLESS)
        return jform_string(&job->json, next);
    if (!l.text)
        return jform_length(&job->json, l.least, l.most, next);
    return quoted(job, l.text, l.bytes, l.search, next);
}

// least..most characters that are none of < and NUL.
static int32_t characters(struct form *f, int32_t least, int32_t most, int32_t next)
{
    struct form_set plain = {{0}};
    int32_t again;
    if (least > most)
        return form_never(f);
    if (most == 0)
        return next;
    for (int b = 1; b < 0x80; b++)
        if (b != '<')
            form_set_add(&plain, b);
    const int32_t loop = form_loop(f, least, most, next, &again);
    const int32_t body = form_either(f, form_set(f, &plain, again), form_points(f, 0x80, 0x10ffff, again));
    return form_loop_end(f, loop, body);
}

int32_t schema_text(struct schema_job *job, const json_t *schema, const char *close, int32_t next)
{
    struct form *f = job->form;
    struct limits l;
    if (!read_limits(job, schema, &l))
        return -1;
    const int32_t rule = form_rule(f), end = form_text(f, close, strlen(close), form_return(f));
    form_define(f, rule,
                l.text ? regex_build(f, l.text, l.bytes, l.search, TREE_BETWEEN, end)
                       : characters(f, l.least, l.most, end));
    return schema_blame(job, "pattern", form_call(f, rule, next));
}

// ---- numbers ---------------------------------------------------------------------------------------------------------------

// A bound as digits; numbers that are too large for digits are open bounds.
static bool as_digits(struct schema_job *job, const json_t *value, char text[40])
{
    const char *digits = json_wide(value);
    if (!json_is_numeric(value))
        return schema_fail(job, "bounds of numbers must be numbers"), false;
    if (digits) {
        snprintf(text, 40, "%s", digits);
        return true;
    }
    if (json_is_integer(value)) {
        snprintf(text, 40, "%lld", (long long)json_integer_value(value));
        return true;
    }
    const double x = json_real_value(value);
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(text, 40, "%.*g", precision, x);
        if (strtod(text, NULL) == x)
            break;
    }
    if (strchr(text, 'e'))
        snprintf(text, 40, x > -1e18 && x < 1e18 ? "%.18f" : "%.0f", x > 1e30 ? 1e30 : x < -1e30 ? -1e30 : x);
    return true;
}

struct bound_words {
    const char *plain, *exclusive;
};

// The sharper of a plain and an exclusive bound; sign: 1 for a low one. Older schemas have `exclusive...: true`.
static const json_t *sharper(const json_t *schema, const struct bound_words *words, int sign, bool *strict)
{
    const json_t *plain = json_object_get(schema, words->plain), *other = json_object_get(schema, words->exclusive);
    *strict = json_is_true(other);
    if (!other || json_is_boolean(other))
        return plain;
    *strict = !plain || (json_numeric_value(other) - json_numeric_value(plain)) * sign >= 0;
    return *strict ? other : plain;
}

// The sharper of a schema's bound, as digits or NULL, and its format's; sign: 1 for a low one. *strict: whether the bound itself is
// left out.
static const char *sharper_text(const char *own, const char *of_format, int sign, bool *strict)
{
    if (!own || (of_format && (strtod(of_format, NULL) - strtod(own, NULL)) * sign > 0)) {
        *strict = false;
        return of_format;
    }
    return own;
}

int32_t schema_number(struct schema_job *job, const json_t *schema, bool integer, int32_t next)
{
    static const struct bound_words low_words = {"minimum", "exclusiveMinimum"},
                                    high_words = {"maximum", "exclusiveMaximum"};
    struct json_bounds b = {.integer = integer};
    const json_t *low = sharper(schema, &low_words, 1, &b.above), *high = sharper(schema, &high_words, -1, &b.below),
                 *step = json_object_get(schema, "multipleOf");
    const struct schema_bounds format = schema_format_bounds(json_object_get(schema, "format"));
    char low_text[40], high_text[40];
    if (step && !(integer && json_number_value(step) == 1))
        return schema_fail(job, "multipleOf is not supported");
    if ((low && !as_digits(job, low, low_text)) || (high && !as_digits(job, high, high_text)))
        return -1;
    b.low = sharper_text(low ? low_text : NULL, format.low, 1, &b.above);
    b.high = sharper_text(high ? high_text : NULL, format.high, -1, &b.below);
    if (!b.low && !b.high)
        return integer ? jform_integer(&job->json, next) : jform_number(&job->json, next);
    const char *fault = jform_bounds_fault(&b);
    if (fault)
        return schema_fail(job, "%s", fault);
    const int32_t rule = form_rule(job->form);
    form_define(job->form, rule, jform_between(&job->json, &b, form_return(job->form)));
    return form_call(job->form, rule, next);
}

// ---- arrays ----------------------------------------------------------------------------------------------------------------

struct items {
    const json_t *prefix, *rest;         // rest: NULL: none after the prefix
    const char *prefix_word, *rest_word; // where they stand
    int32_t least, most;
};

static bool read_items(struct schema_job *job, const json_t *schema, struct items *it)
{
    const json_t *items = json_object_get(schema, "items"), *unique = json_object_get(schema, "uniqueItems");
    const json_t *more = json_is_array(items) ? json_object_get(schema, "additionalItems") : items;
    it->prefix = json_is_array(items) ? items : json_object_get(schema, "prefixItems");
    it->prefix_word = json_is_array(items) ? "items" : "prefixItems";
    it->rest_word = json_is_array(items) ? "additionalItems" : "items";
    it->least = schema_count(job, schema, "minItems", 0);
    it->most = schema_count(job, schema, "maxItems", FORM_ENDLESS);
    if (unique && !json_is_false(unique))
        return schema_fail(job, "uniqueItems is not supported"), false;
    if (it->prefix && !json_is_array(it->prefix))
        return schema_fail(job, "prefixItems must be a list of schemas"), false;
    const int32_t fixed = (int32_t)json_array_size(it->prefix);
    // Nothing is said about items after a prefix: there are none, unless more are asked for.
    it->rest = more ? more : fixed > 0 && it->least <= fixed ? NULL : json_true();
    it->rest = json_is_false(it->rest) ? NULL : it->rest;
    return !job->form->failed;
}

// The item at a place of the prefix, or one of the rest: index negative.
static int32_t item(struct schema_job *job, const struct items *it, int32_t index, int depth, int32_t next)
{
    const size_t before = schema_down(job, index < 0 ? it->rest_word : it->prefix_word);
    const json_t *schema = index < 0 ? it->rest : json_array_get(it->prefix, (size_t)index);
    if (index >= 0)
        schema_down_at(job, (size_t)index);
    next = schema_value(job, schema, depth + 1, next);
    schema_up(job, before);
    return next;
}

// ", item" of the rest at least `least` and at most `most` times, then the end.
static int32_t more_items(struct schema_job *job, const struct items *it, int32_t least, int32_t most, int depth,
                          int32_t end)
{
    struct form *f = job->form;
    int32_t again;
    if (least > most)
        return form_never(f);
    if (most == 0)
        return end;
    if (most == FORM_ENDLESS && least == 0) {
        const int32_t star = form_star(f);
        return form_star_end(f, star, jform_sign(&job->json, ',', item(job, it, -1, depth, star)), end);
    }
    const int32_t loop = form_loop(f, least, most, end, &again);
    return form_loop_end(f, loop, jform_sign(&job->json, ',', item(job, it, -1, depth, again)));
}

static int32_t items_of(struct schema_job *job, const struct items *it, int depth)
{
    struct form *f = job->form;
    struct json_form *j = &job->json;
    const int32_t fixed = (int32_t)json_array_size(it->prefix), close = form_text(f, "]", 1, form_return(f));
    const int32_t end = jform_blank(j, close);
    int32_t all, least = it->least, most = it->most;
    if (least > most)
        return form_never(f);
    if (most == 0 || (fixed == 0 && !it->rest))
        return least > 0 ? form_never(f) : form_text(f, "[", 1, end);
    if (fixed == 0) {
        all = more_items(job, it, least > 0 ? least - 1 : 0, most == FORM_ENDLESS ? most : most - 1, depth, end);
        all = item(job, it, -1, depth, all);
    } else {
        const int32_t left = most == FORM_ENDLESS ? most : most - fixed;
        all = it->rest && left > 0 ? more_items(job, it, least > fixed ? least - fixed : 0, left, depth, end)
              : least > fixed      ? form_never(f)
                                   : end;
        for (int32_t i = fixed; i-- > 0 && !f->failed;) {
            if (i >= most)
                all = end; // the list ends before this one
            else
                all = item(job, it, i, depth, all);
            if (i > 0 && i < most) {
                all = jform_sign(j, ',', all);
                all = least <= i ? form_either(f, all, end) : all;
            }
        }
    }
    if (least == 0)
        all = form_either(f, all, close);
    return form_text(f, "[", 1, jform_blank(j, all));
}

int32_t schema_array(struct schema_job *job, const json_t *schema, int depth, int32_t next)
{
    struct items it;
    if (!read_items(job, schema, &it))
        return -1;
    if (!it.prefix && json_is_true(it.rest) && it.least == 0 && it.most == FORM_ENDLESS)
        return jform_array(&job->json, next);
    const int32_t rule = form_rule(job->form);
    form_define(job->form, rule, items_of(job, &it, depth));
    return form_call(job->form, rule, next);
}
