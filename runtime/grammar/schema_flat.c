// SPDX-License-Identifier: Apache-2.0
//
// Schemas made flat: references resolved, allOf and siblings merged into one schema of plain keywords. What cannot be
// merged exactly is refused.

#include "runtime/grammar/schema.h"
#include "runtime/json_pointer.h"
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    enum schema_word word;
} words[] = {
    {"title", WORD_NOTE},
    {"description", WORD_NOTE},
    {"default", WORD_NOTE},
    {"example", WORD_NOTE},
    {"examples", WORD_NOTE},
    {"$schema", WORD_NOTE},
    {"$id", WORD_NOTE},
    {"id", WORD_NOTE},
    {"$comment", WORD_NOTE},
    {"deprecated", WORD_NOTE},
    {"readOnly", WORD_NOTE},
    {"writeOnly", WORD_NOTE},
    {"$defs", WORD_NOTE},
    {"definitions", WORD_NOTE},
    {"$anchor", WORD_NOTE},
    {"contentEncoding", WORD_NOTE},
    {"contentMediaType", WORD_NOTE},
    {"discriminator", WORD_NOTE},
    {"strict", WORD_NOTE},
    {"type", WORD_WHOLE},
    {"enum", WORD_WHOLE},
    {"const", WORD_WHOLE},
    {"anyOf", WORD_WHOLE},
    {"oneOf", WORD_WHOLE},
    {"allOf", WORD_WHOLE},
    {"$ref", WORD_WHOLE},
    {"nullable", WORD_WHOLE},
    {"properties", WORD_OBJECT},
    {"required", WORD_OBJECT},
    {"additionalProperties", WORD_OBJECT},
    {"minProperties", WORD_OBJECT},
    {"maxProperties", WORD_OBJECT},
    {"propertyNames", WORD_OBJECT},
    {"patternProperties", WORD_OBJECT},
    {"items", WORD_ARRAY},
    {"prefixItems", WORD_ARRAY},
    {"additionalItems", WORD_ARRAY},
    {"minItems", WORD_ARRAY},
    {"maxItems", WORD_ARRAY},
    {"uniqueItems", WORD_ARRAY},
    {"minLength", WORD_STRING},
    {"maxLength", WORD_STRING},
    {"pattern", WORD_STRING},
    {"format", WORD_STRING},
    {"minimum", WORD_NUMBER},
    {"maximum", WORD_NUMBER},
    {"exclusiveMinimum", WORD_NUMBER},
    {"exclusiveMaximum", WORD_NUMBER},
    {"multipleOf", WORD_NUMBER},
};

enum schema_word schema_word(const char *keyword)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].name, keyword))
            return words[i].word;
    return !strncmp(keyword, "x-", 2) ? WORD_NOTE : WORD_UNKNOWN;
}

// ---- types -----------------------------------------------------------------------------------------------------------------

static int type_of_name(const char *name)
{
    static const char *const names[] = {"null", "boolean", "object", "array", "string", "number", "integer"};
    for (int i = 0; i < 7; i++)
        if (name && !strcmp(name, names[i]))
            return names[i][0] == 'n' && i == 5 ? TYPE_NUMBER | TYPE_INTEGER : 1 << i;
    return 0;
}

static int named_types(struct schema_job *job, const json_t *type)
{
    int set = 0;
    if (json_is_text(type))
        set = type_of_name(json_text_value(type));
    if (json_is_array(type) && json_array_size(type) == 0)
        return 0; // what two lists without a common type come to
    for (size_t i = 0; i < json_array_size(type); i++) {
        const int one = type_of_name(json_text_value(json_array_get(type, i)));
        if (one == 0)
            set = 0;
        if (one == 0)
            break;
        set |= one;
    }
    if (set == 0)
        schema_fail(job,
                    "type must be one of null, boolean, object, array, string, number, integer, or a list of them");
    return set;
}

int schema_type_set(struct schema_job *job, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *value;
    const char *key;
    int set = 0;
    if (type) {
        set = named_types(job, type);
    } else {
        json_object_foreach((json_t *)(uintptr_t)schema, key, value)
        {
            const enum schema_word word = strcmp(key, "format") ? schema_word(key) : schema_format_word(value);
            set |= word == WORD_OBJECT   ? TYPE_OBJECT
                   : word == WORD_ARRAY  ? TYPE_ARRAY
                   : word == WORD_STRING ? TYPE_STRING
                   : word == WORD_NUMBER ? TYPE_NUMBER | TYPE_INTEGER
                                         : 0;
        }
        set = set ? set : TYPE_ALL;
    }
    return json_is_true(json_object_get(schema, "nullable")) ? set | TYPE_NULL : set;
}

// ---- references --------------------------------------------------------------------------------------------------------------

const json_t *schema_target(struct schema_job *job, const json_t *reference)
{
    const char *text = json_text_value(reference);
    const json_t *found = json_pointer_target(job->root, text);
    if (!json_pointer_local(text))
        schema_fail(job, "$ref \"%.80s\" is not supported: only \"#\" and \"#/...\" are", text ? text : "");
    else if (!found)
        schema_fail(job, "$ref \"%.80s\" leads nowhere", text);
    return found;
}

const json_t *schema_only_reference(const json_t *schema)
{
    const json_t *reference = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf"), *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        if (schema_word(key) != WORD_NOTE && value != reference && value != all)
            return NULL;
    }
    if (reference)
        return all ? NULL : reference;
    return json_array_size(all) == 1 ? schema_only_reference(json_array_get(all, 0)) : NULL;
}

// ---- merging -----------------------------------------------------------------------------------------------------------------

// Makes the job own a new value; NULL: failed.
static json_t *own(struct schema_job *job, json_t *value)
{
    if (!value || json_array_append_new(job->made, value)) {
        form_fail(job->form, "no memory for a grammar");
        return NULL;
    }
    return value;
}

static json_t *all_of(const json_t *a, const json_t *b)
{
    return json_pack("{s:[O,O]}", "allOf", a, b);
}

static bool holds(const json_t *list, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), value))
            return true;
    return false;
}

// The values of enum that the other one allows, or the types that both name.
static json_t *common(const json_t *a, const json_t *b)
{
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(a); i++)
        if (holds(b, json_array_get(a, i)))
            json_array_append(list, json_array_get(a, i));
    return list;
}

static json_t *as_types(struct schema_job *job, const json_t *a, const json_t *b)
{
    static const char *const names[] = {"null", "boolean", "object", "array", "string", "number", "integer"};
    int set = named_types(job, a) & named_types(job, b);
    json_t *list = json_array();
    for (int i = 0; i < 7; i++)
        if (set >> i & 1 && !(i == 6 && set & TYPE_NUMBER))
            json_array_append_new(list, json_string(names[i]));
    return list;
}

static json_t *joined(const json_t *a, const json_t *b)
{
    json_t *list = json_copy((json_t *)(uintptr_t)a);
    for (size_t i = 0; i < json_array_size(b); i++)
        if (!holds(a, json_array_get(b, i)))
            json_array_append(list, json_array_get(b, i));
    return list;
}

static json_t *joined_properties(const json_t *a, const json_t *b)
{
    json_t *all = json_copy((json_t *)(uintptr_t)a), *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)b, key, value)
    {
        json_t *mine = json_object_get(a, key);
        if (mine && !json_equal(mine, value))
            json_object_set_new(all, key, all_of(mine, value));
        else
            json_object_set(all, key, value);
    }
    return all;
}

// Ways of one and ways of the other: each way of a, with b's list beside it.
static json_t *crossed(const char *key, const json_t *a, const json_t *b)
{
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(a); i++)
        json_array_append_new(list, json_pack("{s:[O,{s:O}]}", "allOf", json_array_get(a, i), key, b));
    return list;
}

static bool one_of(const char *key, const char *const *names)
{
    for (; *names; names++)
        if (!strcmp(key, *names))
            return true;
    return false;
}

// What a keyword that both have comes to. NULL: it cannot be said; then the job has failed.
static json_t *both_of(struct schema_job *job, const char *key, const json_t *a, const json_t *b)
{
    static const char *const lows[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", NULL};
    static const char *const highs[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", NULL};
    if (json_equal(a, b) || schema_word(key) == WORD_NOTE)
        return json_incref((json_t *)(uintptr_t)a);
    if (one_of(key, lows) && json_is_numeric(a) && json_is_numeric(b))
        return json_incref((json_t *)(uintptr_t)(json_numeric_value(a) > json_numeric_value(b) ? a : b));
    if (one_of(key, highs) && json_is_numeric(a) && json_is_numeric(b))
        return json_incref((json_t *)(uintptr_t)(json_numeric_value(a) < json_numeric_value(b) ? a : b));
    if (!strcmp(key, "type"))
        return as_types(job, a, b);
    if (!strcmp(key, "enum"))
        return common(a, b);
    if (!strcmp(key, "required"))
        return joined(a, b);
    if (!strcmp(key, "properties"))
        return joined_properties(a, b);
    if (!strcmp(key, "anyOf"))
        return crossed(key, a, b);
    if (!strcmp(key, "additionalProperties") || !strcmp(key, "items") || !strcmp(key, "propertyNames"))
        return json_is_false(a) || json_is_true(b)   ? json_incref((json_t *)(uintptr_t)a)
               : json_is_false(b) || json_is_true(a) ? json_incref((json_t *)(uintptr_t)b)
                                                     : all_of(a, b);
    schema_fail(job, "\"%s\" is there twice through allOf, $ref or the ways of anyOf, which is not supported", key);
    return NULL;
}

// Properties that one side names and the other does not fall under the other's additionalProperties.
static void restrict_properties(json_t *all, const json_t *a, const json_t *b)
{
    const json_t *others = json_object_get(a, "additionalProperties"), *known = json_object_get(a, "properties");
    json_t *properties = json_object_get(b, "properties"), *mine, *value;
    const char *key;
    if (!others || json_is_true(others) || !properties)
        return;
    mine = json_copy(json_object_get(all, "properties"));
    json_object_foreach(properties, key, value)
    {
        if (!json_object_get(known, key))
            json_object_set_new(mine, key,
                                json_is_false(others) ? json_false() : all_of(json_object_get(mine, key), others));
    }
    json_object_set_new(all, "properties", mine);
}

// Entries of a schema that merging copies.
static int64_t cost_of(const json_t *schema)
{
    static const char *const lists[] = {"enum", "required", "anyOf", "type"};
    size_t cost = 1 + json_object_size(schema) + json_object_size(json_object_get(schema, "properties"));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        cost += json_array_size(json_object_get(schema, lists[i]));
    return (int64_t)cost;
}

// Comparisons that two lists take.
static int64_t product(const json_t *a, const json_t *b, const char *keyword)
{
    return (int64_t)(json_array_size(json_object_get(a, keyword)) * json_array_size(json_object_get(b, keyword)) / 16);
}

const json_t *schema_both(struct schema_job *job, const json_t *a, const json_t *b)
{
    json_t *value;
    const char *key;
    if (!schema_charge(job, cost_of(a) + cost_of(b) + product(a, b, "enum") + product(a, b, "required")))
        return NULL;
    if (json_is_true(a) || json_is_false(b))
        return b;
    if (json_is_true(b) || json_is_false(a))
        return a;
    json_t *all = own(job, json_copy((json_t *)(uintptr_t)a));
    if (!all)
        return NULL;
    json_object_foreach((json_t *)(uintptr_t)b, key, value)
    {
        json_t *mine = json_object_get(a, key);
        if (!mine) {
            json_object_set(all, key, value);
            continue;
        }
        json_t *both = both_of(job, key, mine, value);
        if (!both)
            return NULL;
        json_object_set_new(all, key, both);
    }
    restrict_properties(all, a, b);
    restrict_properties(all, b, a);
    return all;
}

static bool check_words(struct schema_job *job, const json_t *schema)
{
    const json_t *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        if (schema_word(key) == WORD_UNKNOWN) {
            schema_fail(job, "keyword \"%.60s\" is not supported", key);
            return false;
        }
    }
    return true;
}

// The same without a format that says nothing of the values: one that is not known, or of another type than theirs.
static const json_t *without_note(struct schema_job *job, const json_t *schema)
{
    const json_t *format = json_object_get(schema, "format");
    if (!format)
        return schema;
    if (!json_is_text(format))
        return schema_fail(job, "format must be a text"), NULL;
    const enum schema_word word = schema_format_word(format);
    const int types = schema_type_set(job, schema);
    const bool given = json_object_get(schema, "enum") || json_object_get(schema, "const");
    if (job->form->failed)
        return NULL;
    if (word == WORD_STRING
            ? types & TYPE_STRING
            : word == WORD_NUMBER && !given && !(types & TYPE_STRING) && types & (TYPE_NUMBER | TYPE_INTEGER))
        return schema;
    json_t *rest = own(job, json_copy((json_t *)(uintptr_t)schema));
    if (rest)
        json_object_del(rest, "format");
    return rest;
}

const json_t *schema_flat(struct schema_job *job, const json_t *schema, int depth)
{
    if (depth > FORM_DEPTH) {
        schema_fail(job, "nested deeper than %d, or refers to itself", FORM_DEPTH);
        return NULL;
    }
    if (json_is_boolean(schema))
        return schema;
    if (!json_is_object(schema)) {
        schema_fail(job, "a schema must be an object, true or false");
        return NULL;
    }
    if (!check_words(job, schema) || !schema_charge(job, (int64_t)json_object_size(schema)))
        return NULL;
    const json_t *reference = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
    if (!reference && !all)
        return without_note(job, schema);
    json_t *rest = own(job, json_copy((json_t *)(uintptr_t)schema));
    if (!rest)
        return NULL;
    json_object_del(rest, "$ref");
    json_object_del(rest, "allOf");
    const json_t *flat = without_note(job, rest);
    if (flat && reference) {
        const json_t *target = schema_target(job, reference);
        target = target ? schema_flat(job, target, depth + 1) : NULL;
        flat = target ? schema_both(job, flat, target) : NULL;
    }
    if (all && json_array_size(all) == 0) {
        schema_fail(job, "allOf must be a list of schemas");
        return NULL;
    }
    for (size_t i = 0; flat && i < json_array_size(all); i++) {
        const json_t *part = schema_flat(job, json_array_get(all, i), depth + 1);
        flat = part ? schema_both(job, flat, part) : NULL;
    }
    return flat && json_is_object(flat) ? without_note(job, flat) : flat;
}

// ---- ways that exclude each other ----------------------------------------------------------------------------------------------

// The values that a schema names, as a list; NULL: it names none.
static json_t *values_of(struct schema_job *job, const json_t *schema)
{
    json_t *one = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    return one ? own(job, json_pack("[O]", one)) : list;
}

static bool differ(struct schema_job *job, const json_t *a, const json_t *b)
{
    const json_t *x = values_of(job, a), *y = values_of(job, b);
    if (!x || !y)
        return false;
    for (size_t i = 0; i < json_array_size(x); i++)
        if (holds(y, json_array_get(x, i)))
            return false;
    return true;
}

static bool needs(const json_t *schema, const char *name)
{
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_text(json_array_get(list, i)) && !strcmp(json_text_value(json_array_get(list, i)), name))
            return true;
    return false;
}

// A property that both need and that tells them apart, or one that only one of them can have and the other needs.
static bool objects_apart(struct schema_job *job, const json_t *a, const json_t *b)
{
    const json_t *mine = json_object_get(a, "properties"), *theirs = json_object_get(b, "properties"), *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)mine, key, value)
    {
        const json_t *other = json_object_get(theirs, key);
        if (other && needs(a, key) && needs(b, key) && differ(job, value, other))
            return true;
        if (!other && needs(a, key) && json_is_false(json_object_get(b, "additionalProperties")))
            return true;
    }
    return false;
}

bool schema_apart(struct schema_job *job, const json_t *a, const json_t *b)
{
    const int x = schema_type_set(job, a), y = schema_type_set(job, b);
    const int64_t names =
        (int64_t)(json_array_size(json_object_get(a, "required")) + json_array_size(json_object_get(b, "required")));
    if (!schema_charge(job, (cost_of(a) + cost_of(b)) * (1 + names / 16) / 4 + product(a, b, "enum")))
        return false;
    if ((x & y) == 0 || differ(job, a, b))
        return true;
    return (x & y) == TYPE_OBJECT && (objects_apart(job, a, b) || objects_apart(job, b, a));
}
