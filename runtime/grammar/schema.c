// SPDX-License-Identifier: Apache-2.0
//
// JSON schemas: the job, what a schema stands for, references. Each reference's target is one rule, so schemas may be
// recursive. Invariant: what is built is a part of what the schema allows: where it leaves a choice that says nothing
// (the order of properties, ones that are not named), one of them is taken.

#include "runtime/grammar/schema.h"
#include "runtime/grammar/match.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

bool schema_open(struct schema_job *job, struct form *form, const json_t *root)
{
    *job = (struct schema_job){.form = form, .root = root, .path = "#"};
    jform_open(&job->json, form);
    job->made = json_array();
    job->refs = calloc(SCHEMA_REFS, sizeof *job->refs);
    job->ref_slot = calloc(2 * SCHEMA_REFS, sizeof *job->ref_slot);
    if (job->made && job->refs && job->ref_slot)
        return true;
    form_fail(form, "no memory for a grammar");
    return false;
}

void schema_close(struct schema_job *job)
{
    json_decref(job->made);
    free(job->refs);
    free(job->ref_slot);
}

bool schema_charge(struct schema_job *job, int64_t work)
{
    job->visits += work;
    if (job->visits > SCHEMA_VISITS)
        form_fail(job->form, "the schema is too large");
    return job->visits <= SCHEMA_VISITS;
}

int32_t schema_fail(struct schema_job *job, const char *format, ...)
{
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return form_fail(job->form, "schema, %s: %s", job->path, text);
}

int32_t schema_blame(struct schema_job *job, const char *keyword, int32_t first)
{
    static const char head[] = "regex, ";
    struct error *error = job->form->error;
    char cause[400];
    if (!job->form->failed || !error || strncmp(error->text, head, sizeof head - 1))
        return first;
    snprintf(cause, sizeof cause, "%.390s", error->text + sizeof head - 1);
    error_set(error, "schema, %s: %s, %s", job->path, keyword, cause);
    return -1;
}

void schema_mark(struct schema_job *job, int32_t from, int32_t first, int32_t next)
{
    char place[SCHEMA_PATH + 96];
    if (job->tool)
        snprintf(place, sizeof place, "tool \"%.60s\": schema, %s", job->tool, job->path);
    else
        snprintf(place, sizeof place, "schema, %s", job->path);
    form_mark(job->form, from, first, next, place);
}

size_t schema_down(struct schema_job *job, const char *name)
{
    const size_t before = strlen(job->path);
    snprintf(job->path + before, sizeof job->path - before, "/%.40s", name);
    return before;
}

size_t schema_down_at(struct schema_job *job, size_t index)
{
    char name[24];
    snprintf(name, sizeof name, "%zu", index);
    return schema_down(job, name);
}

void schema_up(struct schema_job *job, size_t before)
{
    job->path[before] = 0;
}

int32_t schema_count(struct schema_job *job, const json_t *schema, const char *keyword, int32_t otherwise)
{
    const json_t *value = json_object_get(schema, keyword);
    double number = json_number_value(value);
    if (!value)
        return otherwise;
    if (!json_is_number(value) || number < 0 || (number < 0x1p53 && number != (double)(int64_t)number))
        return schema_fail(job, "%s must be a whole number that is not negative", keyword);
    return number < FORM_ENDLESS ? (int32_t)number : FORM_ENDLESS - 1;
}

// ---- references ------------------------------------------------------------------------------------------------------------

static int32_t rule_of(struct schema_job *job, const json_t *target, const json_t *reference)
{
    uint32_t at = (uint32_t)((uintptr_t)target >> 4) * 0x9E3779B1u % (2 * SCHEMA_REFS);
    for (; job->ref_slot[at]; at = (at + 1) % (2 * SCHEMA_REFS))
        if (job->refs[job->ref_slot[at] - 1].target == target)
            return job->refs[job->ref_slot[at] - 1].rule;
    if (job->ref_count == SCHEMA_REFS)
        return schema_fail(job, "more than %d things are referred to", SCHEMA_REFS);
    const int32_t rule = form_rule(job->form);
    job->refs[job->ref_count++] = (struct schema_ref){target, json_text_value(reference), rule};
    job->ref_slot[at] = job->ref_count;
    return rule;
}

void schema_define(struct schema_job *job)
{
    for (; job->ref_done < job->ref_count && !job->form->failed; job->ref_done++) {
        const struct schema_ref ref = job->refs[job->ref_done];
        snprintf(job->path, sizeof job->path, "%s", ref.name);
        form_define(job->form, ref.rule, schema_value(job, ref.target, 0, form_return(job->form)));
        schema_up(job, 1);
    }
}

// ---- ways ------------------------------------------------------------------------------------------------------------------

static bool says_nothing(const json_t *schema)
{
    const json_t *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        if (schema_word(key) != WORD_NOTE)
            return false;
    }
    return true;
}

bool schema_all_apart(struct schema_job *job, const json_t *ways)
{
    enum { MOST = 128 };
    const json_t *flat[MOST];
    const size_t n = json_array_size(ways);
    if (n > MOST)
        return schema_fail(job, "oneOf may have at most %d ways: use anyOf", MOST), false;
    for (size_t i = 0; i < n; i++) {
        flat[i] = schema_flat(job, json_array_get(ways, i), 0);
        if (!flat[i])
            return false;
        for (size_t k = 0; k < i; k++)
            if (!schema_apart(job, flat[k], flat[i]))
                return schema_fail(job, "ways %zu and %zu of oneOf may both fit one value: use anyOf", k, i), false;
    }
    return true;
}

static int32_t ways(struct schema_job *job, const json_t *flat, const char *keyword, int depth, int32_t next)
{
    const json_t *list = json_object_get(flat, keyword);
    const size_t before = schema_down(job, keyword);
    json_t *base = json_copy((json_t *)(uintptr_t)flat);
    int32_t all = -1;
    if (!base || json_array_append_new(job->made, base))
        return form_fail(job->form, "no memory for a grammar");
    if (!schema_charge(job, (int64_t)json_object_size(base)))
        return -1;
    json_object_del(base, keyword);
    const bool alone = says_nothing(base);
    if (json_array_size(list) == 0)
        return schema_fail(job, "a list of schemas is expected");
    if (!strcmp(keyword, "oneOf") && !schema_all_apart(job, list))
        return -1;
    for (size_t i = 0; i < json_array_size(list) && !job->form->failed; i++) {
        const json_t *way = json_array_get(list, i);
        const size_t at = schema_down_at(job, i);
        if (!alone) {
            way = schema_flat(job, way, depth + 1);
            way = way ? schema_both(job, base, way) : NULL;
        }
        if (way)
            all = form_either(job->form, all, schema_value(job, way, depth + 1, next));
        schema_up(job, at);
    }
    schema_up(job, before);
    return all;
}

// ---- given values ----------------------------------------------------------------------------------------------------------

static int type_of(const json_t *value)
{
    if (json_wide(value))
        return TYPE_INTEGER;
    switch (json_typeof(value)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    default:
        return TYPE_NUMBER;
    }
}

// Texts and the like share their beginnings; lists and objects have blanks and are built one by one.
static int32_t values(struct schema_job *job, const json_t *list, int32_t next)
{
    struct form *f = job->form;
    const size_t n = json_array_size(list);
    struct form_word *words = calloc(n + 1, sizeof *words);
    size_t count = 0;
    int32_t all = -1;
    for (size_t i = 0; words && i < n && !f->failed; i++) {
        const json_t *value = json_array_get(list, i);
        char *text = json_is_text(value) ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
        if (text)
            words[count++] = (struct form_word){text, strlen(text), next};
        else
            all = form_either(f, all, jform_constant(&job->json, value, 0, next));
    }
    if (count > 0 && !f->failed)
        all = form_either(f, all, form_words(f, words, count));
    for (size_t i = 0; i < count; i++)
        free((char *)(uintptr_t)words[i].text);
    if (!words)
        return form_fail(f, "no memory for a grammar");
    free(words);
    return all >= 0 || f->failed ? all : form_never(f);
}

// enum and const beside keywords that would have to be checked value by value.
static bool check_given(struct schema_job *job, const json_t *flat)
{
    const json_t *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)flat, key, value)
    {
        if (schema_word(key) != WORD_NOTE && schema_word(key) != WORD_WHOLE)
            return schema_fail(job, "\"%s\" beside enum or const is not supported", key), false;
    }
    return true;
}

const json_t *schema_given(struct schema_job *job, const json_t *flat)
{
    const json_t *one = json_object_get(flat, "const"), *list = json_object_get(flat, "enum");
    const int types = schema_type_set(job, flat);
    json_t *allowed = json_array();
    if (!allowed || json_array_append_new(job->made, allowed))
        return form_fail(job->form, "no memory for a grammar"), NULL;
    if (!check_given(job, flat) || job->form->failed)
        return NULL;
    if (list && !json_is_array(list))
        return schema_fail(job, "enum must be a list of values"), NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *value = json_array_get(list, i);
        if ((type_of(value) & types) && (!one || json_equal(one, value)))
            json_array_append(allowed, value);
    }
    if (!list && (type_of(one) & types))
        json_array_append(allowed, (json_t *)(uintptr_t)one);
    return allowed;
}

static int32_t given(struct schema_job *job, const json_t *flat, int32_t next)
{
    const json_t *list = schema_given(job, flat);
    return list ? values(job, list, next) : -1;
}

// ---- a schema ----------------------------------------------------------------------------------------------------------------

static int32_t of_type(struct schema_job *job, const json_t *flat, int type, int depth, int32_t next)
{
    struct form *f = job->form;
    switch (type) {
    case TYPE_NULL:
        return form_text(f, "null", 4, next);
    case TYPE_BOOLEAN:
        return form_either(f, form_text(f, "true", 4, next), form_text(f, "false", 5, next));
    case TYPE_STRING:
        return schema_string(job, flat, next);
    case TYPE_OBJECT:
        return schema_object(job, flat, depth, next);
    case TYPE_ARRAY:
        return schema_array(job, flat, depth, next);
    default:
        return schema_number(job, flat, type == TYPE_INTEGER, next);
    }
}

static int32_t by_types(struct schema_job *job, const json_t *flat, int depth, int32_t next)
{
    int types = schema_type_set(job, flat);
    int32_t all = -1;
    if (job->form->failed)
        return -1;
    if (types == TYPE_ALL && !json_object_get(flat, "type") && says_nothing(flat))
        return jform_value(&job->json, next);
    if (types & TYPE_NUMBER)
        types &= ~TYPE_INTEGER;
    for (int type = 1; type <= TYPE_INTEGER && !job->form->failed; type *= 2)
        if (types & type)
            all = form_either(job->form, all, of_type(job, flat, type, depth, next));
    return all >= 0 || job->form->failed ? all : form_never(job->form);
}

static int32_t value(struct schema_job *job, const json_t *schema, int depth, int32_t next)
{
    if (next < 0 || job->form->failed)
        return -1;
    if (depth > FORM_DEPTH)
        return schema_fail(job, "nested deeper than %d", FORM_DEPTH);
    if (!schema_charge(job, 1))
        return -1;
    const json_t *reference = json_is_object(schema) ? schema_only_reference(schema) : NULL;
    if (reference) {
        const json_t *target = schema_target(job, reference);
        return target ? form_call(job->form, rule_of(job, target, reference), next) : -1;
    }
    const json_t *flat = schema_flat(job, schema, depth);
    if (!flat)
        return -1;
    if (json_is_boolean(flat))
        return json_is_true(flat) ? jform_value(&job->json, next) : form_never(job->form);
    if (json_object_get(flat, "anyOf"))
        return ways(job, flat, "anyOf", depth, next);
    if (json_object_get(flat, "oneOf"))
        return ways(job, flat, "oneOf", depth, next);
    if (json_object_get(flat, "const") || json_object_get(flat, "enum"))
        return given(job, flat, next);
    return by_types(job, flat, depth, next);
}

int32_t schema_value(struct schema_job *job, const json_t *schema, int depth, int32_t next)
{
    const int32_t from = job->form->node_count, first = value(job, schema, depth, next);
    schema_mark(job, from, first, next);
    return first;
}
