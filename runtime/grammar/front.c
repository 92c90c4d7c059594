// SPDX-License-Identifier: Apache-2.0
//
// The front ends that need little more than a form: schemas, any object, one expression, a choice.

#include "runtime/grammar/match.h"
#include "runtime/grammar/schema.h"
#include "runtime/grammar/tree.h"
#include <stdlib.h>
#include <string.h>

// The root is what `first` begins, built in front of a return.
static bool finish(struct grammar **out, const struct grammar_vocabulary *v, struct form *f, int32_t first,
                   struct error *error)
{
    f->root = form_rule(f);
    form_define(f, f->root, first);
    if (form_finish(f, NULL, NULL))
        return grammar_make(out, v, f, error);
    form_close(f);
    return false;
}

bool grammar_schema(struct grammar **out, const struct grammar_vocabulary *v, const json_t *schema, struct error *error)
{
    struct form f;
    struct schema_job job;
    int32_t first = -1;
    *out = NULL;
    if (!form_open(&f, error))
        return false;
    if (schema_open(&job, &f, schema)) {
        first = schema_value(&job, schema, 0, form_return(&f));
        schema_define(&job);
    }
    schema_close(&job);
    return finish(out, v, &f, first, error);
}

bool grammar_json_object(struct grammar **out, const struct grammar_vocabulary *v, struct error *error)
{
    struct form f;
    struct json_form json;
    *out = NULL;
    if (!form_open(&f, error))
        return false;
    jform_open(&json, &f);
    return finish(out, v, &f, jform_object(&json, form_return(&f)), error);
}

bool grammar_regex(struct grammar **out, const struct grammar_vocabulary *v, const char *pattern, size_t bytes,
                   struct error *error)
{
    struct form f;
    *out = NULL;
    if (!form_open(&f, error))
        return false;
    return finish(out, v, &f, regex_build(&f, pattern, bytes, false, TREE_PLAIN, form_return(&f)), error);
}

bool grammar_choice(struct grammar **out, const struct grammar_vocabulary *v, const char *const *texts,
                    const size_t *bytes, int count, struct error *error)
{
    struct form f;
    *out = NULL;
    if (count < 1)
        return error_set(error, "a choice needs at least one text");
    struct form_word *words = calloc((size_t)count, sizeof *words);
    if (!words || !form_open(&f, error)) {
        free(words);
        return error_set(error, "no memory for a grammar");
    }
    const int32_t end = form_return(&f);
    for (int i = 0; i < count; i++)
        words[i] = (struct form_word){texts[i], bytes ? bytes[i] : strlen(texts[i]), end};
    const int32_t first = form_words(&f, words, (size_t)count);
    free(words);
    return finish(out, v, &f, first, error);
}
