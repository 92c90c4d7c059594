// SPDX-License-Identifier: Apache-2.0
//
// Tool calls in the dialects of chat templates: the markers as the tokens that the vocabulary has for them, a name that
// was offered, arguments by the tool's schema.

#include "runtime/grammar/match.h"
#include "runtime/grammar/schema.h"
#include <stdlib.h>
#include <string.h>

struct calls {
    struct form form;
    struct json_form json; // shared by all tools
    const struct grammar_vocabulary *vocabulary;
    const struct grammar_tool *tool; // in hand
    int32_t value;                   // rule: free text up to the end of a parameter
    struct error *error;
};

static const char value_end[] = "\n</parameter>\n";

// A marker: its token where there is one.
static int32_t marker(struct calls *c, const char *text, int32_t next)
{
    const int32_t id = grammar_marker(c->vocabulary, text, strlen(text));
    return id >= 0 ? form_token(&c->form, id, next) : form_text(&c->form, text, strlen(text), next);
}

static int32_t text(struct calls *c, const char *plain, int32_t next)
{
    return form_text(&c->form, plain, strlen(plain), next);
}

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

// ---- arguments -------------------------------------------------------------------------------------------------------------

static bool job_open(struct calls *c, struct schema_job *job)
{
    const bool good = schema_open(job, &c->form, c->tool->parameters);
    job->json = c->json;
    return good;
}

static void job_close(struct calls *c, struct schema_job *job)
{
    schema_define(job);
    c->json = job->json;
    schema_close(job);
}

static bool only_texts(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i)))
            return false;
    return json_array_size(list) > 0;
}

static bool limited(const json_t *flat)
{
    static const char *const words[] = {"pattern", "format", "minLength", "maxLength"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (json_object_get(flat, words[i]))
            return true;
    return false;
}

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
    return json_array_size(json_object_get(flat, keyword)) > 0;
}

static int32_t parameter_value(struct calls *c, struct schema_job *job, const json_t *schema, int depth, int32_t next);

// A text of a strict tool, with its end: within its limits, by each of its ways, or free where there are none.
static int32_t strict_text(struct calls *c, struct schema_job *job, const json_t *flat, int depth, int32_t next)
{
    struct form *f = &c->form;
    const char *keyword = json_object_get(flat, "oneOf") ? "oneOf" : "anyOf";
    const json_t *list = json_object_get(flat, keyword);
    int32_t all = -1;
    if (depth > FORM_DEPTH)
        return schema_fail(job, "nested deeper than %d", FORM_DEPTH);
    if (!list)
        return limited(flat) ? schema_text(job, flat, value_end, next) : form_call(f, free_text(c), next);
    if (!only_ways(flat, keyword))
        return schema_fail(job, "of a strict tool's parameter that may be a text, %s stands alone", keyword);
    if (!strcmp(keyword, "oneOf") && !schema_all_apart(job, list))
        return -1;
    for (size_t i = 0; i < json_array_size(list) && !f->failed; i++)
        all = form_either(f, all, parameter_value(c, job, json_array_get(list, i), depth + 1, next));
    return all;
}

// The value of a parameter with its end: JSON where it cannot be a text, one of the texts of enum, or text, which is free
// unless the tool is strict.
static int32_t parameter_value(struct calls *c, struct schema_job *job, const json_t *schema, int depth, int32_t next)
{
    struct form *f = &c->form;
    const json_t *flat = schema_charge(job, 1) ? schema_flat(job, schema, 0) : NULL,
                 *list = json_object_get(flat, "enum");
    const bool typed = json_object_get(flat, "type") && !(schema_type_set(job, flat) & TYPE_STRING);
    if (!flat || f->failed)
        return -1;
    if (typed)
        return schema_value(job, schema, 1, text(c, value_end, next));
    if (!only_texts(list))
        return c->tool->strict ? strict_text(c, job, flat, depth, next) : form_call(f, free_text(c), next);
    struct form_word *words = calloc(json_array_size(list), sizeof *words);
    const int32_t end = text(c, value_end, next);
    for (size_t i = 0; words && i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        words[i] = (struct form_word){json_string_value(one), json_string_length(one), end};
    }
    const int32_t first = words ? form_words(f, words, json_array_size(list)) : form_fail(f, "no memory for a grammar");
    free(words);
    return first;
}

static bool is_required(const json_t *schema, const char *name)
{
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one && !strcmp(one, name))
            return true;
    }
    return false;
}

// Parameters in the order of the schema, from the last to the first.
static int32_t named_parameters(struct calls *c, struct schema_job *job, const json_t *schema, int32_t next)
{
    json_t *properties = json_object_get(schema, "properties"), *value;
    const size_t count = json_object_size(properties);
    const char **names = calloc(count + 1, sizeof *names), *key;
    size_t n = 0;
    if (!names)
        return form_fail(&c->form, "no memory for a grammar");
    json_object_foreach(properties, key, value) names[n++] = key;
    while (n-- > 0 && next >= 0) {
        const size_t before = schema_down(job, names[n]);
        const int32_t inside = parameter_value(c, job, json_object_get(properties, names[n]), 0, next);
        schema_up(job, before);
        const int32_t one = text(c, "<parameter=", text(c, names[n], text(c, ">\n", inside)));
        next = is_required(schema, names[n]) || one < 0 ? one : form_either(&c->form, one, next);
    }
    free(names);
    return next;
}

static int32_t xml_arguments(struct calls *c, int32_t next)
{
    struct form *f = &c->form;
    struct schema_job job;
    if (c->tool->parameters && job_open(c, &job)) {
        const json_t *flat = schema_flat(&job, c->tool->parameters, 0);
        const bool named = json_object_get(flat, "properties") != NULL;
        if (named)
            next = named_parameters(c, &job, flat, next);
        job_close(c, &job);
        if (named || f->failed)
            return f->failed ? -1 : next;
    }
    struct form_set letters = {{0}};
    for (int b = '0'; b <= 'z'; b++)
        if ((b <= '9') || (b >= 'A' && b <= 'Z') || b == '_' || b >= 'a')
            form_set_add(&letters, b);
    const int32_t star = form_star(f), name = form_star(f);
    const int32_t value = text(c, ">\n", form_call(f, free_text(c), star));
    form_star_end(f, name, form_set(f, &letters, name), value);
    return form_star_end(f, star, text(c, "<parameter=", form_set(f, &letters, name)), next);
}

static int32_t json_arguments(struct calls *c, int32_t next)
{
    struct schema_job job;
    if (!c->tool->parameters || json_object_size(c->tool->parameters) == 0)
        return jform_object(&c->json, next);
    if (!job_open(c, &job)) {
        schema_close(&job);
        return -1;
    }
    const json_t *flat = schema_flat(&job, c->tool->parameters, 0);
    json_t *object = json_pack("{s:s}", "type", "object");
    if (object)
        json_array_append_new(job.made, object);
    if (flat && json_is_object(flat) && !json_object_get(flat, "type"))
        flat = schema_both(&job, flat, object);
    next = flat ? schema_value(&job, flat, 0, next) : -1;
    job_close(c, &job);
    return next;
}

// ---- calls -----------------------------------------------------------------------------------------------------------------

static int32_t call_of(struct calls *c, enum grammar_dialect dialect, const struct grammar_tool *tool, int32_t end)
{
    c->tool = tool;
    if (dialect == GRAMMAR_TOOL_XML)
        return xml_arguments(c, text(c, "</function>\n", end));
    return json_arguments(c, text(c, "}\n", end));
}

// A name that was offered and its arguments; the rule of one call between the markers.
static int32_t any_call(struct calls *c, enum grammar_dialect dialect, const struct grammar_tool *tools, int count)
{
    struct form *f = &c->form;
    struct form_word *words = calloc((size_t)count, sizeof *words);
    char **names = calloc((size_t)count, sizeof *names);
    const int32_t end = marker(c, "</tool_call>", form_return(f));
    bool memory = words && names;
    for (int i = 0; memory && i < count && !f->failed; i++) {
        const int32_t arguments = call_of(c, dialect, &tools[i], end);
        json_t *name = json_string(tools[i].name);
        char *dumped = dialect == GRAMMAR_TOOL_JSON && name ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
        json_decref(name);
        const int32_t after_name = text(c, dialect == GRAMMAR_TOOL_XML ? ">\n" : ", \"arguments\": ", arguments);
        names[i] = dumped;
        words[i].text = dumped ? dumped : tools[i].name;
        words[i].bytes = strlen(words[i].text);
        words[i].next = after_name;
        memory = dialect == GRAMMAR_TOOL_XML || dumped;
        if (f->failed && c->error) {
            char cause[400];
            snprintf(cause, sizeof cause, "%.390s", c->error->text);
            error_set(c->error, "tool \"%.60s\": %s", tools[i].name, cause);
        }
    }
    int32_t first = !memory     ? form_fail(f, "no memory for a grammar")
                    : f->failed ? -1
                                : form_words(f, words, (size_t)count);
    for (int i = 0; names && i < count; i++)
        free(names[i]);
    free(names);
    free(words);
    first = text(c, dialect == GRAMMAR_TOOL_XML ? "\n<function=" : "\n{\"name\": ", first);
    const int32_t rule = form_rule(f);
    form_define(f, rule, marker(c, "<tool_call>", first));
    return rule;
}

// A value that comes instead of calls.
static int32_t other_value(struct calls *c, const json_t *schema, int32_t next)
{
    struct schema_job job;
    const struct grammar_tool whole = {.parameters = schema};
    c->tool = &whole;
    next = job_open(c, &job) ? schema_value(&job, schema, 0, next) : -1;
    job_close(c, &job);
    return next;
}

bool grammar_tool_call(struct grammar **out, const struct grammar_vocabulary *v, enum grammar_dialect dialect,
                       const struct grammar_tool *tools, int count, bool one, const json_t *otherwise,
                       struct error *error)
{
    struct calls c = {.vocabulary = v, .value = -1, .error = error};
    struct form *f = &c.form;
    *out = NULL;
    if (count < 1)
        return error_set(error, "a tool call needs at least one tool");
    if (!form_open(f, error))
        return false;
    jform_open(&c.json, f);
    const int32_t call = any_call(&c, dialect, tools, count), star = form_star(f), end = form_return(f);
    f->root = form_rule(f);
    form_star_end(f, star, text(&c, "\n", form_call(f, call, star)), end);
    int32_t first = form_call(f, call, one ? end : star);
    if (otherwise)
        first = form_either(f, first, other_value(&c, otherwise, end));
    form_define(f, f->root, first);
    if (form_finish(f, NULL, NULL))
        return grammar_make(out, v, f, error);
    form_close(f);
    return false;
}
