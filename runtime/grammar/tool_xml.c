// SPDX-License-Identifier: Apache-2.0
//
// Arguments of a call as XML writes them: parameters between markers, in the schema's order. A value is JSON where it cannot be
// a text, else free text up to its end marker. Invariant: of a strict tool every keyword is kept to or refused; a value that is
// given in its schema is read back (runtime/reply) as that value.

#include "runtime/grammar/tool.h"
#include "runtime/json_exact.h"
#include "runtime/reply/schema.h"
#include <stdlib.h>

static const char value_end[] = "\n</parameter>\n";

// How much of value_end the text ends with after `length` of it and one more byte.
static int after(int length, char byte)
{
    for (int n = length + 1; n > 0; n--)
        if (value_end[n - 1] == byte && !memcmp(value_end, value_end + length - (n - 1), (size_t)(n - 1)))
            return n;
    return 0;
}

// Any text up to the first value_end, which it takes with it: one node for each part of value_end that was seen.
static int32_t free_text(struct calls *c)
{
    enum { LENGTH = sizeof value_end - 1 };
    struct form *f = &c->form;
    int32_t state[LENGTH + 1];
    if (c->value >= 0)
        return c->value;
    c->value = form_rule(f);
    for (int i = 0; i < LENGTH; i++)
        state[i] = form_star(f);
    state[LENGTH] = form_return(f);
    for (int i = 0; i < LENGTH && !f->failed; i++) {
        struct form_set to[LENGTH + 1] = {{{0}}};
        int32_t all = form_points(f, 0x80, 0x10ffff, state[0]);
        for (int b = 1; b < 0x80; b++)
            form_set_add(&to[after(i, (char)b)], b);
        for (int n = 0; n <= LENGTH; n++)
            if (to[n].bits[0] | to[n].bits[1])
                all = form_either(f, all, form_set(f, &to[n], state[n]));
        form_star_end(f, state[i], all, all);
    }
    form_define(f, c->value, state[0]);
    return c->value;
}

// ---- values that are given --------------------------------------------------------------------------------------------------

// Whether the reader of calls makes this value of its text.
static bool reads_back(const struct calls *c, const json_t *value, const char *text)
{
    static const char *const markers[] = {"</parameter>", "</function>", "</tool_call>",
                                          "<parameter=",  "<function=",  "<tool_call>"};
    struct bytes out = {0};
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++)
        if (strstr(text, markers[i]))
            return false;
    value_write(&out, c->types, text, strlen(text));
    json_t *read = out.failed ? NULL : json_exact_load(out.data, out.size, JSON_DECODE_ANY, JSON_KEEP_ALL, NULL);
    const bool same = json_equal(read, value);
    json_decref(read);
    bytes_free(&out);
    return same;
}

// The values that enum and const of a strict tool allow, each as its text, or as JSON where it is none.
static int32_t given(struct calls *c, struct schema_job *job, const json_t *flat, int32_t next)
{
    struct form *f = &c->form;
    const json_t *list = schema_given(job, flat);
    const size_t n = json_array_size(list);
    struct form_word *words = calloc(n + 1, sizeof *words);
    const int32_t end = calls_text(c, value_end, next);
    size_t count = 0;
    int32_t all = -1;
    if (list && n == 0)
        schema_fail(job, "enum, const and type allow no value");
    for (size_t i = 0; words && i < n && !f->failed; i++) {
        const json_t *value = json_array_get(list, i);
        char *dumped = json_exact_dump(value, NULL);
        const char *text = json_is_text(value) ? json_text_value(value) : dumped;
        if (!dumped || !reads_back(c, value, text))
            schema_fail(job, "a call cannot give the value %.60s, since its text would be read as another one",
                        dumped ? dumped : "");
        else if (json_is_text(value))
            words[count++] = (struct form_word){text, strlen(text), end};
        else
            all = form_either(f, all, jform_constant(&job->json, value, 0, end));
        free(dumped);
    }
    if (count > 0 && !f->failed)
        all = form_either(f, all, form_words(f, words, count));
    if (!words)
        form_fail(f, "no memory for a grammar");
    free(words);
    return f->failed ? -1 : all;
}

// The texts of an enum.
static int32_t texts(struct calls *c, const json_t *list, int32_t next)
{
    struct form *f = &c->form;
    struct form_word *words = calloc(json_array_size(list), sizeof *words);
    const int32_t end = calls_text(c, value_end, next);
    for (size_t i = 0; words && i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        words[i] = (struct form_word){json_text_value(one), json_string_length(one), end};
    }
    const int32_t first = words ? form_words(f, words, json_array_size(list)) : form_fail(f, "no memory for a grammar");
    free(words);
    return first;
}

static bool only_texts(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_text(json_array_get(list, i)))
            return false;
    return json_array_size(list) > 0;
}

// ---- values of one parameter -------------------------------------------------------------------------------------------------

static int32_t parameter_value(struct calls *c, struct schema_job *job, const json_t *schema, int depth, int32_t next);

// Whether a schema with ways says nothing else about values, so that each way stands for itself.
static bool only_ways(const json_t *flat, const char *keyword)
{
    const json_t *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)flat, key, value)
    {
        if (strcmp(key, keyword) && schema_word(key) != WORD_NOTE)
            return false;
    }
    return true;
}

static int32_t ways(struct calls *c, struct schema_job *job, const json_t *flat, int depth, int32_t next)
{
    const char *keyword = json_object_get(flat, "oneOf") ? "oneOf" : "anyOf";
    const json_t *list = json_object_get(flat, keyword);
    int32_t all = -1;
    if (json_array_size(list) == 0)
        return schema_fail(job, "%s must be a list of schemas", keyword);
    if (!only_ways(flat, keyword))
        return schema_fail(job, "of a strict tool's parameter that may be a text, %s stands alone", keyword);
    if (!strcmp(keyword, "oneOf") && !schema_all_apart(job, list))
        return -1;
    const size_t before = schema_down(job, keyword);
    for (size_t i = 0; i < json_array_size(list) && !c->form.failed; i++) {
        const size_t at = schema_down_at(job, i);
        all = form_either(&c->form, all, parameter_value(c, job, json_array_get(list, i), depth + 1, next));
        schema_up(job, at);
    }
    schema_up(job, before);
    return all;
}

// Whether a text is limited; with the form failed where a keyword limits what is no text, which a free text may be read as.
static bool limited(struct schema_job *job, const json_t *flat, int types)
{
    static const int of_word[] = {
        [WORD_OBJECT] = TYPE_OBJECT, [WORD_ARRAY] = TYPE_ARRAY, [WORD_NUMBER] = TYPE_NUMBER | TYPE_INTEGER};
    const json_t *value;
    const char *key;
    bool is = false;
    json_object_foreach((json_t *)(uintptr_t)flat, key, value)
    {
        const enum schema_word word = schema_word(key);
        is = is || word == WORD_STRING;
        if ((word == WORD_OBJECT || word == WORD_ARRAY || word == WORD_NUMBER) && (of_word[word] & types))
            schema_fail(job, "\"%s\" of a strict tool's parameter that may be a text is not supported", key);
    }
    return is;
}

// Of a strict tool, with its end.
static int32_t strict_value(struct calls *c, struct schema_job *job, const json_t *schema, const json_t *flat,
                            int depth, int32_t next)
{
    const int types = schema_type_set(job, flat);
    if (depth > FORM_DEPTH)
        return schema_fail(job, "nested deeper than %d", FORM_DEPTH);
    if (c->form.failed)
        return -1;
    if (!(types & TYPE_STRING))
        return schema_value(job, schema, 1, calls_text(c, value_end, next));
    if (json_object_get(flat, "anyOf") || json_object_get(flat, "oneOf"))
        return ways(c, job, flat, depth, next);
    if (json_object_get(flat, "enum") || json_object_get(flat, "const"))
        return given(c, job, flat, next);
    const bool limits = limited(job, flat, types);
    if (c->form.failed)
        return -1;
    return limits ? schema_text(job, flat, value_end, next) : form_call(&c->form, free_text(c), next);
}

// The value of a parameter with its end.
static int32_t parameter_value(struct calls *c, struct schema_job *job, const json_t *schema, int depth, int32_t next)
{
    struct form *f = &c->form;
    const json_t *flat = schema_charge(job, 1) ? schema_flat(job, schema, 0) : NULL,
                 *list = json_object_get(flat, "enum");
    if (!flat || f->failed)
        return -1;
    if (json_is_false(flat))
        return form_never(f);
    if (json_is_object(flat) && c->tool->strict)
        return strict_value(c, job, schema, flat, depth, next);
    if (json_object_get(flat, "type") && !(schema_type_set(job, flat) & TYPE_STRING))
        return schema_value(job, schema, 1, calls_text(c, value_end, next));
    return only_texts(list) ? texts(c, list, next) : form_call(f, free_text(c), next);
}

// ---- all parameters ------------------------------------------------------------------------------------------------------------

static bool is_required(const json_t *schema, const char *name)
{
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *one = json_text_value(json_array_get(list, i));
        if (one && !strcmp(one, name))
            return true;
    }
    return false;
}

// Of a parameter of this name; "": of one that is not named.
static void see_types(struct calls *c, const char *name)
{
    json_t *function = c->tool->strict ? json_pack("{s:O}", "parameters", c->tool->parameters) : NULL;
    c->types = schema_types(function, name, strlen(name));
    json_decref(function);
}

// The parameter `name` and its value, then next. -1: it cannot be given.
static int32_t parameter(struct calls *c, struct schema_job *job, const char *name, const json_t *schema, int32_t next)
{
    const size_t before = schema_down(job, name);
    const int32_t from = c->form.node_count;
    see_types(c, name);
    if (!call_name_fits(name))
        schema_fail(job, "a name of 1 to %d bytes without <, > and line breaks is expected", CALL_NAME_BYTES);
    const int32_t inside = json_is_false(schema) ? -1 : parameter_value(c, job, schema, 0, next);
    schema_mark(job, from, inside, next);
    schema_up(job, before);
    return inside < 0 ? -1 : calls_text(c, "<parameter=", calls_text(c, name, calls_text(c, ">\n", inside)));
}

// Parameters in the order of `properties`, from the last to the first.
static int32_t named(struct calls *c, struct schema_job *job, const json_t *schema, const json_t *properties,
                     int32_t next)
{
    const size_t count = json_object_size(properties);
    const char **names = calloc(count + 1, sizeof *names), *key;
    const json_t *value;
    size_t n = 0;
    if (!names)
        return form_fail(&c->form, "no memory for a grammar");
    json_object_foreach((json_t *)(uintptr_t)properties, key, value) names[n++] = key;
    while (n-- > 0 && !c->form.failed) {
        const size_t before = schema_down(job, "properties");
        const int32_t one = parameter(c, job, names[n], json_object_get(properties, names[n]), next);
        schema_up(job, before);
        const bool required = is_required(schema, names[n]);
        if (required && one < 0 && !c->form.failed)
            schema_fail(job, "\"%.60s\" is required, and its schema allows no value", names[n]);
        next = required ? one : form_either(&c->form, one, next);
    }
    free(names);
    return c->form.failed ? -1 : next;
}

// Parameters of any name.
static int32_t unnamed(struct calls *c, struct schema_job *job, const json_t *others, int32_t next)
{
    struct form *f = &c->form;
    struct form_set letters = {{0}};
    for (int b = '0'; b <= 'z'; b++)
        if ((b <= '9') || (b >= 'A' && b <= 'Z') || b == '_' || b >= 'a')
            form_set_add(&letters, b);
    const int32_t star = form_star(f), name = form_star(f);
    const size_t before = others ? schema_down(job, "additionalProperties") : 0;
    const int32_t inside = others ? parameter_value(c, job, others, 0, star) : form_call(f, free_text(c), star);
    if (others)
        schema_up(job, before);
    form_star_end(f, name, form_set(f, &letters, name), calls_text(c, ">\n", inside));
    return form_star_end(f, star, calls_text(c, "<parameter=", form_set(f, &letters, name)), next);
}

// The properties of a strict tool, with those that are only required, or NULL where none are named. What the parameters' schema says
// beside them is kept to, or the form has failed.
static const json_t *strict_properties(struct schema_job *job, const json_t *flat)
{
    static const char *const kept[] = {
        "type", "nullable", "properties", "required", "additionalProperties", "minProperties", "maxProperties"};
    const json_t *properties = json_object_get(flat, "properties"), *required = json_object_get(flat, "required"),
                 *others = json_object_get(flat, "additionalProperties"), *value;
    const char *key;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)flat, key, value)
    {
        const enum schema_word word = schema_word(key);
        bool is = word != WORD_WHOLE && word != WORD_OBJECT;
        for (i = 0; !is && i < sizeof kept / sizeof *kept; i++)
            is = !strcmp(key, kept[i]);
        if (!is)
            return schema_fail(job, "\"%s\" at the top of a strict tool's parameters is not supported", key), NULL;
    }
    if ((properties && !json_is_object(properties)) || (required && !json_is_array(required)))
        return schema_fail(job, "properties must be an object, and required a list of names"), NULL;
    json_t *all = json_copy((json_t *)(uintptr_t)properties);
    all = all ? all : json_object();
    json_array_append_new(job->made, all);
    json_array_foreach((json_t *)(uintptr_t)required, i, value)
    {
        const char *name = json_text_value(value);
        if (!name)
            return schema_fail(job, "required must be a list of names"), NULL;
        if (json_object_get(all, name))
            continue;
        if (json_is_false(others) || (properties && !others))
            return schema_fail(job, "\"%.60s\" is required and none of the properties", name), NULL;
        json_object_set_new(all, name, others ? json_incref((json_t *)(uintptr_t)others) : json_true());
    }
    const int32_t least = schema_count(job, flat, "minProperties", 0),
                  most = schema_count(job, flat, "maxProperties", FORM_ENDLESS);
    if ((size_t)least > json_array_size(required) ||
        (most != FORM_ENDLESS && ((size_t)most < json_object_size(all) || !json_object_size(all))))
        schema_fail(job, "minProperties and maxProperties of a strict tool's parameters are not supported");
    return properties || json_object_size(all) ? all : NULL;
}

// The arguments by their schema.
static int32_t by_schema(struct calls *c, struct schema_job *job, int32_t next)
{
    const json_t *flat = schema_flat(job, c->tool->parameters, 0),
                 *others = json_object_get(flat, "additionalProperties");
    const json_t *properties =
        flat && c->tool->strict ? strict_properties(job, flat) : json_object_get(flat, "properties");
    if (!flat || c->form.failed)
        return -1;
    if (json_is_false(flat))
        return form_never(&c->form);
    if (properties)
        return named(c, job, flat, properties, next);
    if (json_is_false(others))
        return next;
    see_types(c, "");
    return unnamed(c, job, c->tool->strict ? others : NULL, next);
}

int32_t calls_xml(struct calls *c, int32_t next)
{
    struct schema_job job;
    if (!c->tool->parameters)
        return unnamed(c, NULL, NULL, next);
    const int32_t from = c->form.node_count, first = calls_job_open(c, &job) ? by_schema(c, &job, next) : -1;
    schema_mark(&job, from, first, next);
    next = first;
    calls_job_close(c, &job);
    return next;
}
