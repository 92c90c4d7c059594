// SPDX-License-Identifier: Apache-2.0
//
// Objects of a schema. Named properties come in the schema's order, those that are not required may be left out,
// additional ones come last. Where properties are named and nothing is said of others, there are no others.

#include "runtime/grammar/schema.h"
#include "runtime/grammar/tree.h"
#include <stdlib.h>
#include <string.h>

enum { OPTIONAL_MOST = 200 }; // properties in a row that may be left out: each is a way to go on

struct property {
    const char *name;
    const json_t *schema;
    bool required;
};

struct object {
    struct property *properties;
    size_t count;
    const json_t *others; // of properties that are not named; NULL: none
    const json_t *names;  // propertyNames, or NULL
    const char *pattern;  // of the names of others, or NULL
    int32_t least, most;
};

static struct property *find(struct object *o, const char *name)
{
    for (size_t i = 0; i < o->count; i++)
        if (!strcmp(o->properties[i].name, name))
            return &o->properties[i];
    return NULL;
}

static bool read_properties(struct schema_job *job, const json_t *schema, struct object *o)
{
    const json_t *named = json_object_get(schema, "properties"), *required = json_object_get(schema, "required"),
                 *value;
    const char *key;
    if ((named && !json_is_object(named)) || (required && !json_is_array(required)))
        return schema_fail(job, "properties must be an object, and required a list of names"), false;
    o->properties = calloc(json_object_size(named) + json_array_size(required) + 1, sizeof *o->properties);
    if (!o->properties)
        return form_fail(job->form, "no memory for a grammar"), false;
    json_object_foreach((json_t *)(uintptr_t)named, key, value) o->properties[o->count++] =
        (struct property){key, value, false};
    if (json_array_size(required) * o->count > 1 << 22)
        return form_fail(job->form, "the schema is too large"), false;
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_text_value(json_array_get(required, i));
        struct property *p = name ? find(o, name) : NULL;
        if (!name)
            return schema_fail(job, "required must be a list of names"), false;
        if (!p) {
            p = &o->properties[o->count++];
            *p = (struct property){name, o->others ? o->others : json_false(), true};
        }
        p->required = true;
    }
    return true;
}

static bool read_others(struct schema_job *job, const json_t *schema, struct object *o)
{
    const json_t *others = json_object_get(schema, "additionalProperties");
    const json_t *patterns = json_object_get(schema, "patternProperties"), *value;
    const bool named = json_object_get(schema, "properties") != NULL;
    const char *key;
    o->others = others ? others : named || patterns ? json_false() : json_true();
    if (patterns) {
        if (json_object_size(patterns) != 1 || named || !json_is_false(o->others))
            return schema_fail(job, "patternProperties is supported with one pattern and without other properties"),
                   false;
        json_object_foreach((json_t *)(uintptr_t)patterns, key, value)
        {
            o->pattern = key;
            o->others = value;
        }
    }
    o->names = json_object_get(schema, "propertyNames");
    if (o->names && (o->pattern || named || json_object_get(schema, "required")))
        return schema_fail(job, "propertyNames is supported only where no properties are named"), false;
    o->others = json_is_false(o->others) ? NULL : o->others;
    return true;
}

static bool read_object(struct schema_job *job, const json_t *schema, struct object *o)
{
    size_t required = 0;
    o->least = schema_count(job, schema, "minProperties", 0);
    o->most = schema_count(job, schema, "maxProperties", FORM_ENDLESS);
    if (!read_others(job, schema, o) || !read_properties(job, schema, o) || job->form->failed)
        return false;
    for (size_t i = 0; i < o->count; i++)
        required += o->properties[i].required;
    // Names that come twice are one property, and a grammar cannot see that they are the same.
    if (o->count == 0 && o->least > 1)
        return schema_fail(job, "minProperties above 1 is not supported"), false;
    if (o->count == 0)
        return true;
    if (o->pattern)
        return schema_fail(job, "patternProperties beside required is not supported"), false;
    if ((size_t)o->least <= required)
        o->least = 0;
    if ((size_t)o->most >= o->count && !o->others)
        o->most = FORM_ENDLESS;
    if (o->least > 0 || o->most != FORM_ENDLESS)
        return schema_fail(job, "minProperties and maxProperties are supported only where no properties are named"),
               false;
    return true;
}

// The name of a property that the schema does not name.
static int32_t other_name(struct schema_job *job, const struct object *o, int32_t next)
{
    struct form *f = job->form;
    if (o->names) {
        const size_t before = schema_down(job, "propertyNames");
        json_t *text = json_pack("{s:s}", "type", "string");
        const json_t *flat = schema_flat(job, o->names, 0);
        const json_t *names = flat ? schema_both(job, text, flat) : NULL;
        if (text)
            json_array_append_new(job->made, text);
        next = names ? schema_value(job, names, 0, next) : -1;
        schema_up(job, before);
        return next;
    }
    if (o->pattern) {
        next = regex_build(f, o->pattern, strlen(o->pattern), true, TREE_JSON, form_text(f, "\"", 1, next));
        return schema_blame(job, "patternProperties", form_text(f, "\"", 1, next));
    }
    if (o->count == 0)
        return jform_string(&job->json, next);
    const char **names = calloc(o->count, sizeof *names);
    for (size_t i = 0; names && i < o->count; i++)
        names[i] = o->properties[i].name;
    const int32_t first =
        names ? jform_other_key(&job->json, names, o->count, next) : form_fail(f, "no memory for a grammar");
    free(names);
    return first;
}

static int32_t other_pair(struct schema_job *job, const struct object *o, int depth, int32_t next)
{
    const size_t before = schema_down(job, o->pattern ? "patternProperties" : "additionalProperties");
    const int32_t value = schema_value(job, o->others, depth + 1, next);
    schema_up(job, before);
    return other_name(job, o, jform_sign(&job->json, ':', value));
}

// A map: o->least .. o->most pairs of any name.
static int32_t map(struct schema_job *job, const struct object *o, int depth, int32_t close)
{
    struct form *f = job->form;
    struct json_form *j = &job->json;
    int32_t rest = jform_blank(j, close), again;
    if (!o->others || o->most == 0)
        return o->least > 0 ? form_never(f) : close;
    if (o->least > o->most)
        return form_never(f);
    const int32_t pair = form_rule(f);
    form_define(f, pair, other_pair(job, o, depth, form_return(f)));
    if (o->least < 2 && o->most == FORM_ENDLESS) {
        const int32_t star = form_star(f);
        rest = form_star_end(f, star, jform_sign(j, ',', form_call(f, pair, star)), rest);
    } else if (o->most > 1) {
        const int32_t loop = form_loop(f, o->least > 0 ? o->least - 1 : 0,
                                       o->most == FORM_ENDLESS ? o->most : o->most - 1, rest, &again);
        rest = form_loop_end(f, loop, jform_sign(j, ',', form_call(f, pair, again)));
    }
    rest = form_call(f, pair, rest);
    return o->least > 0 ? rest : form_either(f, rest, close);
}

// Pairs of the named properties from the last to the first. `from`: a pair of this property or of a later one.
static int32_t named(struct schema_job *job, const struct object *o, int depth, int32_t close)
{
    struct form *f = job->form;
    struct json_form *j = &job->json;
    int32_t from = -1, rest;
    bool may_end = true; // no later property is required
    int optional = 0;
    if (o->others) {
        const int32_t pair = form_rule(f), star = form_star(f);
        form_define(f, pair, other_pair(job, o, depth, form_return(f)));
        form_star_end(f, star, jform_sign(j, ',', form_call(f, pair, star)), jform_blank(j, close));
        from = form_call(f, pair, star);
    }
    const size_t top = schema_down(job, "properties");
    for (size_t i = o->count; i-- > 0 && !f->failed;) {
        const struct property *p = &o->properties[i];
        const size_t before = schema_down(job, p->name);
        const int32_t comma = from >= 0 ? form_text(f, ",", 1, jform_blank(j, from)) : -1;
        rest = jform_blank(j, form_either(f, comma, may_end ? close : -1));
        json_t *name = json_string(p->name);
        const int32_t pair =
            jform_constant(j, name, 0, jform_sign(j, ':', schema_value(job, p->schema, depth + 1, rest)));
        json_decref(name);
        schema_up(job, before);
        optional = p->required ? 0 : optional + 1;
        if (optional > OPTIONAL_MOST)
            return schema_fail(job, "more than %d properties in a row may be left out", OPTIONAL_MOST);
        from = p->required ? pair : form_either(f, pair, from);
        may_end = may_end && !p->required;
    }
    schema_up(job, top);
    return may_end ? form_either(f, from, close) : from;
}

int32_t schema_object(struct schema_job *job, const json_t *schema, int depth, int32_t next)
{
    struct form *f = job->form;
    struct object o = {0};
    const bool good = read_object(job, schema, &o);
    int32_t rule = -1;
    if (good && o.count == 0 && json_is_true(o.others) && !o.names && !o.pattern && o.least == 0 &&
        o.most == FORM_ENDLESS) {
        next = jform_object(&job->json, next);
    } else if (good) {
        rule = form_rule(f);
        const int32_t close = form_text(f, "}", 1, form_return(f));
        const int32_t inside = o.count ? named(job, &o, depth, close) : map(job, &o, depth, close);
        form_define(f, rule, form_text(f, "{", 1, jform_blank(&job->json, inside)));
        next = form_call(f, rule, next);
    }
    free(o.properties);
    return good && !f->failed ? next : -1;
}
