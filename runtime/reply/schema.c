// SPDX-License-Identifier: Apache-2.0
//
// Types from a tool's JSON schema, and text as JSON of a type.
// Invariant: schemas come from outside, so depth is bounded and nothing in them is trusted to have the right kind.

#include "runtime/reply/schema.h"

#include "runtime/json_exact.h"
#include "runtime/json_pointer.h"
#include "runtime/reply/json_stream.h"
#include <strings.h>

enum {
    SCHEMA_DEPTH = 64,
    SCHEMA_VISITED = 1 << 14
}; // schemas that are looked at for one parameter; behind that any type

const json_t *tools_find(const json_t *tools, const char *name, size_t bytes)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *inner = json_object_get(tool, "function");
        const json_t *function = json_is_object(inner) ? inner : tool, *known = json_object_get(function, "name");
        if (json_is_text(known) && json_string_length(known) == bytes && !memcmp(json_text_value(known), name, bytes))
            return function;
    }
    return NULL;
}

static unsigned type_of_name(const char *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } names[] = {{"string", PARAMETER_STRING},   {"str", PARAMETER_STRING},    {"integer", PARAMETER_INTEGER},
                 {"int", PARAMETER_INTEGER},     {"number", PARAMETER_NUMBER}, {"float", PARAMETER_NUMBER},
                 {"boolean", PARAMETER_BOOLEAN}, {"bool", PARAMETER_BOOLEAN},  {"null", PARAMETER_NULL},
                 {"array", PARAMETER_ARRAY},     {"list", PARAMETER_ARRAY},    {"object", PARAMETER_OBJECT},
                 {"dict", PARAMETER_OBJECT}};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (!strcasecmp(name, names[i].name))
            return names[i].type;
    return 0;
}

static unsigned type_of_value(const json_t *value)
{
    static const unsigned types[] = {
        [JSON_OBJECT] = PARAMETER_OBJECT,   [JSON_ARRAY] = PARAMETER_ARRAY, [JSON_STRING] = PARAMETER_STRING,
        [JSON_INTEGER] = PARAMETER_INTEGER, [JSON_REAL] = PARAMETER_NUMBER, [JSON_TRUE] = PARAMETER_BOOLEAN,
        [JSON_FALSE] = PARAMETER_BOOLEAN,   [JSON_NULL] = PARAMETER_NULL};
    return json_wide(value) ? PARAMETER_INTEGER : types[json_typeof(value)];
}

static unsigned types_at(const json_t *root, const json_t *schema, int depth, int *left);

static unsigned types_of_all(const json_t *root, const json_t *list, bool all, int depth, int *left)
{
    unsigned types = all ? PARAMETER_ANY : 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        unsigned one = types_at(root, json_array_get(list, i), depth, left);
        types = all ? types & one : types | one;
    }
    return types;
}

static unsigned types_at(const json_t *root, const json_t *schema, int depth, int *left)
{
    if (!json_is_object(schema) || depth == SCHEMA_DEPTH || --*left < 0)
        return PARAMETER_ANY;
    const json_t *type = json_object_get(schema, "type"), *list;
    unsigned types = type_of_name(json_text_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        types |= type_of_name(json_text_value(json_array_get(type, i)));
    if (types)
        return types;
    const json_t *reference = json_pointer_target(root, json_text_value(json_object_get(schema, "$ref")));
    if (reference)
        return types_at(root, reference, depth + 1, left);
    list = json_object_get(schema, "enum");
    for (size_t i = 0; i < json_array_size(list); i++)
        types |= type_of_value(json_array_get(list, i));
    if (json_object_get(schema, "const"))
        types |= type_of_value(json_object_get(schema, "const"));
    if (types)
        return types;
    if ((list = json_object_get(schema, "anyOf")) || (list = json_object_get(schema, "oneOf")))
        types = types_of_all(root, list, false, depth + 1, left);
    else if ((list = json_object_get(schema, "allOf")))
        types = types_of_all(root, list, true, depth + 1, left);
    return types ? types : PARAMETER_ANY;
}

// A look for a parameter's schemas among those of all of a tool's arguments.
struct search {
    const json_t *root;
    const char *name; // or NULL: what additionalProperties says
    bool found;
    int left;
};

// The types that schema, and what it is joined from, leave the parameter.
static unsigned search_in(struct search *s, const json_t *schema, int depth)
{
    if (!json_is_object(schema) || depth == SCHEMA_DEPTH || --s->left < 0)
        return PARAMETER_ANY;
    const json_t *properties = json_object_get(schema, "properties"), *all = json_object_get(schema, "allOf");
    const json_t *own =
        s->name ? json_object_get(properties, s->name) : json_object_get(schema, "additionalProperties");
    unsigned types = PARAMETER_ANY;
    if (own && (s->name || !json_is_false(own))) {
        s->found = true;
        types &= json_is_false(own) ? PARAMETER_STRING : types_at(s->root, own, 0, &s->left);
    }
    const json_t *target = json_pointer_target(s->root, json_text_value(json_object_get(schema, "$ref")));
    if (target)
        types &= search_in(s, target, depth + 1);
    for (size_t i = 0; i < json_array_size(all); i++)
        types &= search_in(s, json_array_get(all, i), depth + 1);
    return types ? types : PARAMETER_ANY;
}

static unsigned search_types(const json_t *function, const char *name, bool *found)
{
    struct search s = {.root = json_object_get(function, "parameters"), .name = name, .left = SCHEMA_VISITED};
    const unsigned types = search_in(&s, s.root, 0);
    *found = s.found;
    return types;
}

static bool name_of(char name[CALL_NAME_BYTES + 1], const char *key, size_t bytes)
{
    if (bytes > CALL_NAME_BYTES)
        return false;
    memcpy(name, key, bytes);
    name[bytes] = 0;
    return true;
}

bool schema_declares(const json_t *function, const char *key, size_t bytes)
{
    char name[CALL_NAME_BYTES + 1];
    bool found = false;
    if (name_of(name, key, bytes))
        search_types(function, name, &found);
    return found;
}

unsigned schema_types(const json_t *function, const char *key, size_t bytes)
{
    char name[CALL_NAME_BYTES + 1];
    bool found = false;
    unsigned types = PARAMETER_STRING;
    if (name_of(name, key, bytes))
        types = search_types(function, name, &found);
    if (!found)
        types = search_types(function, NULL, &found);
    return found ? types : PARAMETER_STRING;
}

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static const char *trim(const char *text, size_t *bytes)
{
    while (*bytes && blank(text[*bytes - 1]))
        --*bytes;
    while (*bytes && blank(*text)) {
        text++;
        --*bytes;
    }
    return text;
}

// The words that are literals of `types` and not strings, as models spell them.
static const char *literal(unsigned types, const char *text, size_t bytes)
{
    static const char *const spelled[] = {"true", "True", "false", "False", "null", "None"};
    const char *json = word_literal(text, bytes);
    bool exact = false;
    for (size_t i = 0; i < sizeof spelled / sizeof *spelled; i++)
        exact = exact || (bytes == strlen(spelled[i]) && !memcmp(text, spelled[i], bytes));
    if (!json || ((types & PARAMETER_STRING) && !exact))
        return NULL;
    if (*json == 'n')
        return !(types & PARAMETER_STRING) || (types & PARAMETER_NULL) ? json : NULL;
    return types & PARAMETER_BOOLEAN ? json : NULL;
}

static bool begins(const char *word, const char *text, size_t bytes)
{
    return bytes <= strlen(word) && !memcmp(word, text, bytes);
}

static bool bracket(unsigned types, char c)
{
    return ((types & PARAMETER_ARRAY) && c == '[') || ((types & PARAMETER_OBJECT) && c == '{');
}

bool value_is_string(unsigned types, const char *text, size_t bytes)
{
    text = trim(text, &bytes);
    if (!(types & PARAMETER_STRING) || !bytes || bracket(types, *text))
        return false;
    if ((types & PARAMETER_BOOLEAN) && (begins("true", text, bytes) || begins("True", text, bytes) ||
                                        begins("false", text, bytes) || begins("False", text, bytes)))
        return false;
    if ((types & PARAMETER_NULL) && (begins("null", text, bytes) || begins("None", text, bytes)))
        return false;
    if (!(types & (PARAMETER_INTEGER | PARAMETER_NUMBER)) || bytes > 64)
        return true;
    for (size_t i = 0; i < bytes; i++)
        if (!text[i] || !strchr("0123456789+-.eE", text[i]))
            return true;
    return false;
}

// A list or object. Where it may also be a string, only valid JSON counts.
static bool write_container(struct bytes *out, unsigned types, const char *text, size_t bytes)
{
    if (!bytes || !bracket(types, *text))
        return false;
    if (types & PARAMETER_STRING) {
        json_t *value = json_loadb(text, bytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        json_decref(value);
        if (!value)
            return false;
    }
    struct json_stream s = {0};
    json_stream_feed(&s, text, bytes, out);
    json_stream_end(&s, out);
    return true;
}

void value_write(struct bytes *out, unsigned types, const char *text, size_t bytes)
{
    size_t inner_bytes = bytes;
    const char *inner = trim(text, &inner_bytes), *word = literal(types, inner, inner_bytes);
    if (word)
        bytes_text(out, word);
    else if (!((types & PARAMETER_INTEGER) && write_integer(out, inner, inner_bytes)) &&
             !((types & PARAMETER_NUMBER) && write_number(out, inner, inner_bytes)) &&
             !write_container(out, types, inner, inner_bytes))
        write_string(out, text, bytes);
}
