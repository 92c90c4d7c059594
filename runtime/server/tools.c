// SPDX-License-Identifier: Apache-2.0
//
// Tools as clients offer them; see tools.h.

#include "runtime/server/tools.h"
#include "runtime/reply/schema.h"
#include "runtime/server/input.h"

#include <string.h>

// A tool that is looked at: of which dialect, its place, and where its error goes.
struct place {
    enum tools_shape shape;
    enum reply_dialect dialect;
    size_t index;
    struct error *error;
};

// field: "type", or one of the function's. False.
static bool wrong(const struct place *p, const char *field, const char *expected, const json_t *found)
{
    char shown[80];
    const bool inner = p->shape == TOOLS_CHAT && strcmp(field, "type") != 0;
    const char *what = found ? input_show(found, shown) : "nothing";
    if (p->shape == TOOLS_MESSAGES)
        return error_set(p->error, "tools.%zu.%s: %s is expected, found %s", p->index, field, expected, what);
    return error_set(p->error, "tools[%zu].%s%s: %s is expected, found %s", p->index, inner ? "function." : "", field,
                     expected, what);
}

// A server's own tools have types of their own; none is here.
static bool check_type(const struct place *p, const json_t *type)
{
    const char *only = p->shape == TOOLS_MESSAGES ? "custom" : "function", *word = json_string_value(type);
    if (p->shape != TOOLS_RESPONSES && !input_given(type))
        return true;
    if (word && !strcmp(word, only))
        return true;
    return wrong(p, "type", p->shape == TOOLS_MESSAGES ? "only custom" : "only function", type);
}

// names: those of the tools before, to which it is added.
static bool check_name(const struct place *p, const json_t *name, json_t *names)
{
    char expected[96];
    snprintf(expected, sizeof expected, "a text of 1 to %d bytes without <, > and line breaks", CALL_NAME_BYTES);
    if (!json_is_string(name) || !call_name_fits(json_string_value(name)))
        return wrong(p, "name", expected, name);
    if (json_object_get(names, json_string_value(name)))
        return wrong(p, "name", "a name that no other tool has", name);
    return !json_object_set_new(names, json_string_value(name), json_true()) ||
           error_set(p->error, "no memory for the tools");
}

// Arguments are an object.
static bool check_type_of(const struct place *p, const char *key, const json_t *type)
{
    const char *word = json_string_value(type);
    char field[32];
    bool object = !input_given(type) || (word && !strcmp(word, "object"));
    for (size_t i = 0; i < json_array_size(type); i++) {
        word = json_string_value(json_array_get(type, i));
        object = object || (word && !strcmp(word, "object"));
    }
    snprintf(field, sizeof field, "%s.type", key);
    return object || wrong(p, field, "\"object\"", type);
}

static bool check_parameters(const struct place *p, const char *key, const json_t *schema)
{
    const json_t *value;
    const char *name;
    char field[32], expected[96];
    if ((input_given(schema) || p->shape == TOOLS_MESSAGES) && !json_is_object(schema))
        return wrong(p, key, "an object", schema);
    if (!check_type_of(p, key, json_object_get(schema, "type")))
        return false;
    snprintf(field, sizeof field, "%s.properties", key);
    snprintf(expected, sizeof expected, "a name of 1 to %d bytes without <, > and line breaks", CALL_NAME_BYTES);
    json_object_foreach(json_object_get(schema, "properties"), name, value)
    {
        if (p->dialect != REPLY_XML || call_name_fits(name))
            continue;
        json_t *found = json_string(name);
        wrong(p, field, expected, found);
        json_decref(found);
        return false;
    }
    return true;
}

static bool check_one(const struct place *p, const json_t *tool, json_t *names)
{
    const json_t *function = p->shape == TOOLS_CHAT ? json_object_get(tool, "function") : tool;
    const char *key = p->shape == TOOLS_MESSAGES ? "input_schema" : "parameters";
    const json_t *text = json_object_get(function, "description"), *schema = json_object_get(function, key),
                 *strict = json_object_get(function, "strict");
    if (!json_is_object(tool))
        return error_set(p->error,
                         p->shape == TOOLS_MESSAGES ? "tools.%zu: an object is expected"
                                                    : "tools[%zu]: an object is expected",
                         p->index);
    if (!check_type(p, json_object_get(tool, "type")) || !check_name(p, json_object_get(function, "name"), names))
        return false;
    if (input_given(text) && !json_is_string(text))
        return wrong(p, "description", "a text", text);
    if (input_given(strict) && !json_is_boolean(strict))
        return wrong(p, "strict", "true or false", strict);
    return check_parameters(p, key, schema);
}

bool tools_check(const json_t *tools, enum tools_shape shape, enum reply_dialect dialect, struct error *error)
{
    struct place p = {shape, dialect, 0, error};
    if (!json_is_array(tools))
        return error_set(error, "tools: an array is expected");
    json_t *names = json_object();
    bool good = names || error_set(error, "no memory for the tools");
    for (; good && p.index < json_array_size(tools); p.index++)
        good = check_one(&p, json_array_get(tools, p.index), names);
    json_decref(names);
    return good;
}

// ---- tool_choice -----------------------------------------------------------------------------------------------------------------

static bool is_word(const json_t *value, const char *const *words)
{
    const char *text = json_string_value(value);
    for (; text && *words; words++)
        if (!strcmp(text, *words))
            return true;
    return false;
}

bool tools_choice_check(const json_t *choice, enum tools_shape shape, struct error *error)
{
    static const char *const words[] = {"none", "auto", "required", NULL},
                             *const types[] = {"none", "auto", "any", NULL}, *const function[] = {"function", NULL},
                             *const tool[] = {"tool", NULL};
    static const char *const expected[] = {
        [TOOLS_CHAT] = "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": NAME}}",
        [TOOLS_RESPONSES] = "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": NAME}",
        [TOOLS_MESSAGES] =
            "{\"type\": \"none\"}, \"auto\" or \"any\" as the type, or {\"type\": \"tool\", \"name\": NAME}"};
    const json_t *type = json_object_get(choice, "type"), *name = json_object_get(choice, "name"),
                 *alone = json_object_get(choice, "disable_parallel_tool_use");
    char shown[80];
    if (shape == TOOLS_CHAT)
        name = json_object_get(json_object_get(choice, "function"), "name");
    const bool named = json_is_string(name) && (is_word(type, shape == TOOLS_MESSAGES ? tool : function) ||
                                                (shape == TOOLS_CHAT && !input_given(type)));
    if (!named && !(shape == TOOLS_MESSAGES ? is_word(type, types) : is_word(choice, words)))
        return error_set(error, "tool_choice: %s is expected, found %s", expected[shape], input_show(choice, shown));
    if (shape == TOOLS_MESSAGES && input_given(alone) && !json_is_boolean(alone))
        return error_set(error, "tool_choice.disable_parallel_tool_use: true or false is expected, found %s",
                         input_show(alone, shown));
    return true;
}

bool tools_choice_offered(const json_t *tools, const char *name, struct error *error)
{
    char names[256] = "";
    size_t at = 0, i, left = json_array_size(tools);
    json_t *tool;
    json_array_foreach((json_t *)(uintptr_t)tools, i, tool)
    {
        const char *one = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (!one || !strcmp(one, name))
            return one != NULL;
        if (at + strlen(one) + 8 > sizeof names)
            continue;
        at += (size_t)snprintf(names + at, sizeof names - at, "%s\"%s\"", at ? ", " : "", one);
        left--;
    }
    return error_set(error, "tool_choice: the name of one of the tools is expected, which are %s%s, found \"%.80s\"",
                     names, left ? " and others" : "", name);
}
