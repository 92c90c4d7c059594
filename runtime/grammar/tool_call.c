// SPDX-License-Identifier: Apache-2.0
//
// Tool calls in the dialects of chat templates: the markers as the tokens that the vocabulary has for them, a name that
// was offered, arguments by the tool's schema.

#include "runtime/grammar/match.h"
#include "runtime/grammar/tool.h"
#include <stdlib.h>
#include <string.h>

// A marker: its token where there is one.
static int32_t marker(struct calls *c, const char *text, int32_t next)
{
    const int32_t id = grammar_marker(c->vocabulary, text, strlen(text));
    return id >= 0 ? form_token(&c->form, id, next) : form_text(&c->form, text, strlen(text), next);
}

bool calls_job_open(struct calls *c, struct schema_job *job)
{
    const bool good = schema_open(job, &c->form, c->tool->parameters);
    job->json = c->json;
    job->tool = c->tool->name;
    return good;
}

void calls_job_close(struct calls *c, struct schema_job *job)
{
    schema_define(job);
    c->json = job->json;
    schema_close(job);
}

// The arguments' schema as one of an object and of nothing else; NULL: failed.
static const json_t *as_object(struct calls *c, struct schema_job *job)
{
    const json_t *flat = schema_flat(job, c->tool->parameters, 0);
    json_t *object = json_pack("{s:s}", "type", "object"), *plain = json_copy((json_t *)(uintptr_t)flat);
    if (object)
        json_array_append_new(job->made, object);
    if (plain)
        json_array_append_new(job->made, plain);
    if (!json_is_object(flat))
        return json_is_true(flat) ? object : flat;
    json_object_del(plain, "nullable");
    return object && plain ? schema_both(job, plain, object) : NULL;
}

static int32_t json_arguments(struct calls *c, int32_t next)
{
    struct schema_job job;
    if (!c->tool->parameters || json_object_size(c->tool->parameters) == 0)
        return jform_object(&c->json, next);
    const json_t *flat = calls_job_open(c, &job) ? as_object(c, &job) : NULL;
    next = flat ? schema_value(&job, flat, 0, next) : -1;
    calls_job_close(c, &job);
    return next;
}

// ---- calls -----------------------------------------------------------------------------------------------------------------

static int32_t call_of(struct calls *c, enum grammar_dialect dialect, const struct grammar_tool *tool, int32_t end)
{
    c->tool = tool;
    if (dialect == GRAMMAR_TOOL_XML)
        return calls_xml(c, calls_text(c, "</function>\n", end));
    return json_arguments(c, calls_text(c, "}\n", end));
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
        const int32_t after_name = calls_text(c, dialect == GRAMMAR_TOOL_XML ? ">\n" : ", \"arguments\": ", arguments);
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
    first = calls_text(c, dialect == GRAMMAR_TOOL_XML ? "\n<function=" : "\n{\"name\": ", first);
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
    next = calls_job_open(c, &job) ? schema_value(&job, schema, 0, next) : -1;
    calls_job_close(c, &job);
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
    form_star_end(f, star, calls_text(&c, "\n", form_call(f, call, star)), end);
    int32_t first = form_call(f, call, one ? end : star);
    if (otherwise)
        first = form_either(f, first, other_value(&c, otherwise, end));
    form_define(f, f->root, first);
    if (form_finish(f, NULL, NULL))
        return grammar_make(out, v, f, error);
    form_close(f);
    return false;
}
