// SPDX-License-Identifier: Apache-2.0
//
// Requests to grammars; see structured.h. Kept grammars are found by the whole text that they were made of, and the
// ones that were used longest ago go first.

#include "runtime/server/structured.h"
#include "runtime/server/input.h"

#include "runtime/json_exact.h"
#include "runtime/model.h"
#include "runtime/reply/schema.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { KEPT = 32, TOOLS_MOST = 256 };
static const int64_t KEPT_BYTES = 256 << 20;

struct kept {
    uint64_t hash;
    char *key; // kind, then its text
    struct grammar *grammar;
    uint64_t used;
};

struct structured {
    pthread_mutex_t lock;
    struct grammar_vocabulary *vocabulary;
    struct kept kept[KEPT];
    uint64_t uses;
};

bool structured_open(struct structured **out, struct error *error)
{
    struct structured *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return error_set(error, "no memory for the server");
    pthread_mutex_init(&s->lock, NULL);
    if (!grammar_vocabulary_open(&s->vocabulary, &tokenizer_tables, model.vocabulary, model.end_tokens, model.end_count,
                                 error)) {
        structured_close(s);
        return false;
    }
    *out = s;
    return true;
}

static void forget(struct kept *k)
{
    grammar_release(k->grammar);
    free(k->key);
    *k = (struct kept){0};
}

void structured_close(struct structured *s)
{
    if (!s)
        return;
    for (int i = 0; i < KEPT; i++)
        forget(&s->kept[i]);
    grammar_vocabulary_close(s->vocabulary);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int64_t kept_bytes(const struct structured *s)
{
    int64_t bytes = 0;
    for (int i = 0; i < KEPT; i++)
        bytes += s->kept[i].grammar ? grammar_bytes(s->kept[i].grammar) : 0;
    return bytes;
}

int64_t structured_bytes(struct structured *s)
{
    if (!s)
        return 0;
    pthread_mutex_lock(&s->lock);
    const int64_t bytes = kept_bytes(s);
    pthread_mutex_unlock(&s->lock);
    return bytes + grammar_vocabulary_bytes(s->vocabulary);
}

// ---- grammars that are kept ----------------------------------------------------------------------------------------------------

static struct kept *oldest(struct structured *s)
{
    struct kept *found = &s->kept[0];
    for (int i = 0; i < KEPT && found->grammar; i++)
        if (!s->kept[i].grammar || s->kept[i].used < found->used)
            found = &s->kept[i];
    return found;
}

// One more holder of the grammar of this key, or NULL.
static struct grammar *recall(struct structured *s, const char *key)
{
    const uint64_t hash = XXH3_64bits(key, strlen(key));
    struct grammar *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < KEPT && !found; i++) {
        struct kept *k = &s->kept[i];
        if (k->grammar && k->hash == hash && !strcmp(k->key, key)) {
            found = grammar_hold(k->grammar);
            k->used = ++s->uses;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

// Keeps a grammar beside its caller's hold; takes the key.
static void remember(struct structured *s, char *key, struct grammar *grammar)
{
    pthread_mutex_lock(&s->lock);
    while (kept_bytes(s) + grammar_bytes(grammar) > KEPT_BYTES) {
        struct kept *last = NULL;
        for (int i = 0; i < KEPT; i++)
            if (s->kept[i].grammar && (!last || s->kept[i].used < last->used))
                last = &s->kept[i];
        if (!last)
            break;
        forget(last);
    }
    struct kept *place = oldest(s);
    forget(place);
    *place = (struct kept){XXH3_64bits(key, strlen(key)), key, grammar_hold(grammar), ++s->uses};
    pthread_mutex_unlock(&s->lock);
}

// ---- what is asked for -----------------------------------------------------------------------------------------------------------

enum kind { KIND_SCHEMA, KIND_REGEX, KIND_CHOICE, KIND_TEXT, KIND_CALLS };

struct wish {
    enum kind kind;
    const char *param; // the field that asks
    const json_t *value;
    int count; // of fields that asked
    // calls
    const json_t *tools;
    const char *name;
    bool one;
};

static bool bad(struct exchange *x, const char *param, const char *text)
{
    exchange_error(x, 400, NULL, "invalid_value", param, "%s: %s", param, text);
    return false;
}

static bool make_choice(struct grammar **out, const struct grammar_vocabulary *v, const json_t *list,
                        struct error *error)
{
    const size_t count = json_array_size(list);
    const char **texts = calloc(count + 1, sizeof *texts);
    size_t *bytes = calloc(count + 1, sizeof *bytes);
    bool good = texts && bytes ? true : error_set(error, "no memory for a grammar");
    for (size_t i = 0; good && i < count; i++) {
        const json_t *one = json_array_get(list, i);
        good = json_is_string(one) ? true : error_set(error, "an array of texts is expected");
        texts[i] = json_string_value(one);
        bytes[i] = json_string_length(one);
    }
    good = good && grammar_choice(out, v, texts, bytes, (int)count, error);
    free(texts);
    free(bytes);
    return good;
}

static bool make_calls(struct grammar **out, struct exchange *x, const struct wish *w, struct error *error)
{
    struct grammar_tool tools[TOOLS_MOST];
    int count = 0;
    for (size_t i = 0; i < json_array_size(w->tools); i++) {
        const json_t *function = json_object_get(json_array_get(w->tools, i), "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!name || (w->name && strcmp(name, w->name)))
            continue;
        if (count == TOOLS_MOST)
            return error_set(error, "at most %d tools can be asked for", TOOLS_MOST);
        const json_t *parameters = json_object_get(function, "parameters");
        tools[count++] = (struct grammar_tool){.name = name,
                                               .parameters = json_is_null(parameters) ? NULL : parameters,
                                               .strict = json_is_true(json_object_get(function, "strict"))};
    }
    return grammar_tool_call(out, x->server->structured->vocabulary,
                             x->server->style.dialect == REPLY_XML ? GRAMMAR_TOOL_XML : GRAMMAR_TOOL_JSON, tools, count,
                             w->one, w->value, error);
}

static bool compile(struct grammar **out, struct exchange *x, const struct wish *w, struct error *error)
{
    const struct grammar_vocabulary *v = x->server->structured->vocabulary;
    const char *text = json_string_value(w->value);
    const size_t bytes = json_string_length(w->value);
    switch (w->kind) {
    case KIND_SCHEMA:
        return grammar_schema(out, v, w->value, error);
    case KIND_REGEX:
        return grammar_regex(out, v, text, bytes, error);
    case KIND_CHOICE:
        return make_choice(out, v, w->value, error);
    case KIND_TEXT:
        return grammar_text(out, v, text, bytes, error);
    default:
        return make_calls(out, x, w, error);
    }
}

// Everything that the grammar depends on, as text; the caller frees it.
static char *key_of(const struct exchange *x, const struct wish *w)
{
    json_t *all = json_pack("[i, i, O*, O*, s*, b]", (int)w->kind, (int)x->server->style.dialect, w->value, w->tools,
                            w->name, w->one);
    char *key = all ? json_exact_dump(all, NULL) : NULL;
    json_decref(all);
    return key;
}

// The job's grammar: one that is kept, or a new one. False: error says why.
static bool fulfil(struct exchange *x, struct wish *w, struct job *job, struct error *error)
{
    struct structured *s = x->server->structured;
    char *key = key_of(x, w);
    if (!key)
        return error_set(error, "no memory for a grammar");
    job->grammar_field = w->param;
    job->grammar = recall(s, key);
    if (!job->grammar && compile(&job->grammar, x, w, error)) {
        remember(s, key, job->grammar);
        return true;
    }
    free(key);
    return job->grammar != NULL;
}

// The names of a tool's parameters and which of them are required, and nothing of what the values are; of one that names none, NULL.
static json_t *names_of(const json_t *schema)
{
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");
    json_t *names = json_object(), *needed = json_array(), *value;
    const char *name;
    size_t i;
    if (!json_is_object(properties)) {
        json_decref(names);
        json_decref(needed);
        return NULL;
    }
    json_object_foreach((json_t *)(uintptr_t)properties, name, value)
    {
        if (!json_is_false(value) && call_name_fits(name))
            json_object_set_new(names, name, json_object());
    }
    json_array_foreach((json_t *)(uintptr_t)required, i, value)
    {
        if (json_is_string(value) && json_object_get(names, json_string_value(value)))
            json_array_append(needed, value);
    }
    return json_pack("{s:s, s:o, s:o}", "type", "object", "properties", names, "required", needed);
}

// The tools as far as they can always be followed, but for strict ones, which stay as they are; NULL: no memory.
static json_t *loosened(const json_t *tools)
{
    json_t *all = json_array();
    for (size_t i = 0; all && i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i);
        const json_t *function = json_object_get(tool, "function");
        if (json_is_true(json_object_get(function, "strict"))) {
            json_array_append(all, tool);
            continue;
        }
        json_t *one = json_pack("{s:{s:O?, s:o*}}", "function", "name", json_object_get(function, "name"), "parameters",
                                names_of(json_object_get(function, "parameters")));
        if (json_array_append_new(all, one)) {
            json_decref(all);
            all = NULL;
        }
    }
    return all;
}

// The same for calls: where the tools cannot be followed, as far as they can be.
static bool fulfil_calls(struct exchange *x, struct wish *w, struct job *job, struct error *error)
{
    if (fulfil(x, w, job, error))
        return true;
    json_t *loose = loosened(w->tools);
    w->tools = loose;
    const bool good = loose && fulfil(x, w, job, error);
    json_decref(loose);
    return good;
}

static void wish_for(struct wish *w, enum kind kind, const char *param, const json_t *value)
{
    if (!input_given(value))
        return;
    w->kind = kind;
    w->param = param;
    w->value = value;
    w->count++;
}

// ---- fields ----------------------------------------------------------------------------------------------------------------------

static const char *type_of(const json_t *format)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    return type ? type : "";
}

// What stands beside a schema changes no reply, so a wrong one would go unseen.
static bool check_beside(struct exchange *x, const json_t *given)
{
    static const char *const texts[] = {"name", "description"};
    const json_t *strict = json_object_get(given, "strict");
    const char *field = ask_name(x, "response_format.json_schema");
    char param[64];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const json_t *text = json_object_get(given, texts[i]);
        snprintf(param, sizeof param, "%s.%s", field, texts[i]);
        if (input_given(text) && !json_is_string(text))
            return bad(x, param, "a text is expected");
    }
    snprintf(param, sizeof param, "%s.strict", field);
    return !input_given(strict) || json_is_boolean(strict) || bad(x, param, "true or false is expected");
}

static bool read_format(struct exchange *x, const json_t *format, const json_t *object, struct wish *w)
{
    const json_t *given = json_object_get(format, "json_schema"), *schema = json_object_get(given, "schema");
    const char *field = ask_name(x, "response_format");
    if (!input_given(format) || !strcmp(type_of(format), "text"))
        return true;
    if (!strcmp(type_of(format), "json_object")) {
        wish_for(w, KIND_SCHEMA, field, object);
        return true;
    }
    if (strcmp(type_of(format), "json_schema"))
        return bad(x, field, "type must be one of text, json_object, json_schema");
    if (!json_is_object(given) || !input_given(schema))
        return bad(x, field, "json_schema must be an object with the schema as its \"schema\"");
    wish_for(w, KIND_SCHEMA, field, schema);
    return check_beside(x, given);
}

static bool read_outputs(struct exchange *x, const json_t *outputs, const json_t *object, struct wish *w)
{
    const json_t *value;
    const char *key;
    if (!input_given(outputs))
        return true;
    if (!json_is_object(outputs))
        return bad(x, "structured_outputs", "an object is expected");
    json_object_foreach((json_t *)(uintptr_t)outputs, key, value)
    {
        if (!strcmp(key, "json"))
            wish_for(w, KIND_SCHEMA, "structured_outputs", value);
        else if (!strcmp(key, "regex"))
            wish_for(w, KIND_REGEX, "structured_outputs", value);
        else if (!strcmp(key, "choice"))
            wish_for(w, KIND_CHOICE, "structured_outputs", value);
        else if (!strcmp(key, "grammar"))
            wish_for(w, KIND_TEXT, "structured_outputs", value);
        else if (!strcmp(key, "json_object") && json_is_true(value))
            wish_for(w, KIND_SCHEMA, "structured_outputs", object);
        else if (!json_is_null(value) && !json_is_false(value))
            return bad(x, "structured_outputs", "json, regex, choice, grammar and json_object are understood");
    }
    return true;
}

// A schema may come as a text that holds it.
static bool parse_schema(struct exchange *x, struct wish *w, json_t **parsed)
{
    if (w->kind != KIND_SCHEMA || !json_is_string(w->value))
        return true;
    struct error error;
    *parsed = input_parse("the text", json_string_value(w->value), json_string_length(w->value), &error);
    w->value = *parsed;
    return *parsed || bad(x, w->param, error.text);
}

static bool check_value(struct exchange *x, const struct wish *w)
{
    if (w->kind == KIND_SCHEMA)
        return json_is_object(w->value) || json_is_boolean(w->value) ||
               bad(x, w->param, "a schema, which is an object, true or false, is expected");
    if (w->kind == KIND_CHOICE)
        return json_is_array(w->value) || bad(x, w->param, "an array of texts is expected");
    return json_is_string(w->value) || bad(x, w->param, "a text is expected");
}

// The one form that the request asks for, if any; nothing is compiled. *parsed is the caller's. False: an error was sent.
static bool read_wish(struct exchange *x, const json_t *root, const json_t *object, struct wish *w, json_t **parsed)
{
    *parsed = NULL;
    if (!read_format(x, json_object_get(root, "response_format"), object, w) ||
        !read_outputs(x, json_object_get(root, "structured_outputs"), object, w))
        return false;
    wish_for(w, KIND_SCHEMA, "guided_json", json_object_get(root, "guided_json"));
    wish_for(w, KIND_REGEX, "guided_regex", json_object_get(root, "guided_regex"));
    wish_for(w, KIND_CHOICE, "guided_choice", json_object_get(root, "guided_choice"));
    wish_for(w, KIND_TEXT, "guided_grammar", json_object_get(root, "guided_grammar"));
    if (w->count > 1)
        return bad(x, w->param, "only one form can be asked for");
    return w->count == 0 || (parse_schema(x, w, parsed) && check_value(x, w));
}

bool structured_check(struct exchange *x, const json_t *root)
{
    json_t *object = json_object(), *parsed;
    struct wish w = {.one = true};
    const bool good = read_wish(x, root, object, &w, &parsed);
    json_decref(parsed);
    json_decref(object);
    return good;
}

bool structured_ask(struct exchange *x, const json_t *root, const json_t *tools, struct job *job)
{
    json_t *object = json_pack("{s:s}", "type", "object"), *parsed = NULL;
    struct wish w = {.one = true};
    struct error error = {0};
    bool good = object && read_wish(x, root, object, &w, &parsed);
    if (good && w.count == 1 && !x->server->structured)
        good = bad(x, w.param, "this build has no tokenizer, so replies cannot follow a form");
    if (good && w.count == 1 && w.kind == KIND_SCHEMA && json_array_size(tools) &&
        x->server->style.dialect != REPLY_PLAIN) {
        w.kind = KIND_CALLS;
        w.tools = tools;
        w.one = false;
    }
    if (good && w.count == 1 && job->ignore_end)
        good = bad(x, "ignore_eos", "a reply that follows a form ends where that ends: leave it out");
    if (good && w.count == 1 && !(w.kind == KIND_CALLS ? fulfil_calls : fulfil)(x, &w, job, &error))
        good = bad(x, w.param, error.text);
    json_decref(parsed);
    json_decref(object);
    return good;
}

bool structured_calls(struct exchange *x, const json_t *tools, const char *name, bool parallel, struct job *job)
{
    struct wish w = {.kind = KIND_CALLS, .param = "tools", .tools = tools, .name = name, .one = name || !parallel};
    struct error error = {0};
    if (!x->server->structured || x->server->style.dialect == REPLY_PLAIN)
        return true;
    if (job->ignore_end)
        return bad(x, "ignore_eos", "a call that is asked for ends where it ends: leave it out");
    return fulfil_calls(x, &w, job, &error) || bad(x, "tools", error.text);
}
