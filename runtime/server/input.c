// SPDX-License-Identifier: Apache-2.0
//
// Bounded JSON, and the table of ranges; see input.h.

#include "runtime/server/input.h"
#include "runtime/json_exact.h"

#include <math.h>
#include <string.h>

// ---- JSON --------------------------------------------------------------------------------------------------------------------

// Depth and number of values, before any of them is made. Text that is no JSON may be counted wrong; the parser refuses it.
static bool measure(const char *what, const char *body, size_t bytes, struct error *error)
{
    int depth = 0;
    int64_t values = 1;
    bool in_text = false;
    for (size_t i = 0; i < bytes; i++) {
        const char c = body[i];
        if (in_text) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_text = false;
            continue;
        }
        if (c == '"')
            in_text = true;
        else if ((c == '{' || c == '[') && ++depth > INPUT_DEPTH)
            return error_set(error, "%s is nested more than %d deep", what, INPUT_DEPTH);
        else if (c == '}' || c == ']')
            depth--;
        if ((c == ',' || c == ':' || c == '{' || c == '[') && ++values > INPUT_VALUES)
            return error_set(error, "%s has more than %d values", what, INPUT_VALUES);
    }
    return true;
}

// What is wrong with a text that the parser refused, in a line of ours.
static void explain(const char *what, const json_error_t *cause, struct error *error)
{
    char text[JSON_ERROR_TEXT_LENGTH];
    snprintf(text, sizeof text, "%s", cause->text);
    for (char *c = text; *c; c++) // it quotes the body
        *c = (unsigned char)*c < ' ' || *c == 127 ? '?' : *c;
    const enum json_error_code code = json_error_code(cause);
    if (code == json_error_null_character || code == json_error_null_byte_in_key)
        error_set(error,
                  "%s, line %d, column %d: the character \\u0000 (NUL) cannot be in a text here; leave it out or write "
                  "\\ufffd for it",
                  what, cause->line, cause->column);
    else if (code == json_error_numeric_overflow)
        error_set(error, "%s, line %d, column %d: a number is too large", what, cause->line, cause->column);
    else
        error_set(error, "%s is not valid JSON: line %d, column %d: %s", what, cause->line, cause->column, text);
}

json_t *input_parse(const char *what, const char *body, size_t bytes, struct error *error)
{
    json_error_t cause;
    if (!bytes) {
        error_set(error, "%s is empty; a JSON object is expected", what);
        return NULL;
    }
    if (!measure(what, body, bytes, error))
        return NULL;
    json_t *root = json_exact_load(body, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, JSON_KEEP_DATA, &cause);
    if (!root) {
        explain(what, &cause, error);
        return NULL;
    }
    if (!json_is_object(root)) {
        char shown[80];
        error_set(error, "%s must be a JSON object, found %s", what, input_show(root, shown));
        json_decref(root);
        return NULL;
    }
    return root;
}

const char *input_show(const json_t *value, char buffer[80])
{
    if (!json_exact_short(value, buffer, 64))
        snprintf(buffer, 80, "%s", json_is_text(value) ? "a long text" : "something long");
    else if (strlen(buffer) > 60)
        snprintf(buffer + 57, 4, "...");
    return buffer;
}

// ---- numbers -----------------------------------------------------------------------------------------------------------------

enum kind { KIND_SWITCH, KIND_INTEGER, KIND_REAL };

struct range {
    const char *name;
    enum kind kind;
    double least, most;
};

static const double TOKENS = 1 << 24, COUNT = 2147483647, ANY = 9223372036854775807.0;

// clang-format off
static const struct range ranges[FIELD_COUNT] = {
    [FIELD_MAX_TOKENS]            = {"max_tokens", KIND_INTEGER, 1, TOKENS},
    [FIELD_MAX_COMPLETION_TOKENS] = {"max_completion_tokens", KIND_INTEGER, 1, TOKENS},
    [FIELD_MAX_OUTPUT_TOKENS]     = {"max_output_tokens", KIND_INTEGER, 1, TOKENS},
    [FIELD_TEMPERATURE]           = {"temperature", KIND_REAL, 0, 100},
    [FIELD_TOP_P]                 = {"top_p", KIND_REAL, 0, 1},
    [FIELD_TOP_K]                 = {"top_k", KIND_INTEGER, -1, COUNT},
    [FIELD_MIN_P]                 = {"min_p", KIND_REAL, 0, 1},
    [FIELD_SEED]                  = {"seed", KIND_INTEGER, -ANY, ANY},
    [FIELD_PRESENCE_PENALTY]      = {"presence_penalty", KIND_REAL, -2, 2},
    [FIELD_FREQUENCY_PENALTY]     = {"frequency_penalty", KIND_REAL, -2, 2},
    [FIELD_REPETITION_PENALTY]    = {"repetition_penalty", KIND_REAL, 0.01, 100},
    [FIELD_N]                     = {"n", KIND_INTEGER, 1, 1},
    [FIELD_BEST_OF]               = {"best_of", KIND_INTEGER, 1, 1},
    [FIELD_TOP_LOGPROBS]          = {"top_logprobs", KIND_INTEGER, 0, 20},
    [FIELD_LOGPROBS]              = {"logprobs", KIND_INTEGER, 0, 20},
    [FIELD_MAX_TOOL_CALLS]        = {"max_tool_calls", KIND_INTEGER, 1, COUNT},
    [FIELD_THINKING_BUDGET]       = {"thinking_budget", KIND_INTEGER, 0, TOKENS},
    [FIELD_BUDGET_TOKENS]         = {"budget_tokens", KIND_INTEGER, 0, TOKENS},
    [FIELD_STREAM]                = {"stream", KIND_SWITCH, 0, 0},
    [FIELD_IGNORE_EOS]            = {"ignore_eos", KIND_SWITCH, 0, 0},
    [FIELD_DRAFT]                 = {"draft", KIND_SWITCH, 0, 0},
    [FIELD_PARALLEL_TOOL_CALLS]   = {"parallel_tool_calls", KIND_SWITCH, 0, 0},
    [FIELD_WANT_LOGPROBS]         = {"logprobs", KIND_SWITCH, 0, 0},
    [FIELD_ECHO]                  = {"echo", KIND_SWITCH, 0, 0},
    [FIELD_ADD_SPECIAL_TOKENS]    = {"add_special_tokens", KIND_SWITCH, 0, 0},
    [FIELD_SKIP_SPECIAL_TOKENS]   = {"skip_special_tokens", KIND_SWITCH, 0, 0},
    [FIELD_RETURN_TOKEN_STRS]     = {"return_token_strs", KIND_SWITCH, 0, 0},
    [FIELD_ADD_GENERATION_PROMPT] = {"add_generation_prompt", KIND_SWITCH, 0, 0},
};
// clang-format on

static bool refuse(struct fields *fields, const struct range *r, const json_t *found, struct error *error)
{
    char shown[80];
    fields->wrong = r->name;
    input_show(found, shown);
    if (r->kind == KIND_SWITCH)
        return error_set(error, "%s: true or false is expected, found %s", r->name, shown);
    const char *what = r->kind == KIND_REAL ? "a number" : "a whole number";
    if (r->least == r->most)
        return error_set(error, "%s: only %.10g is possible, found %s", r->name, r->least, shown);
    if (r->most == ANY)
        return error_set(error, "%s: a whole number from -2^63 to 2^63 - 1 is expected, found %s", r->name, shown);
    return error_set(error, "%s: %s from %.10g to %.10g is expected, found %s", r->name, what, r->least, r->most,
                     shown);
}

static bool read_one(struct field_value *value, const struct range *r, const json_t *found)
{
    if (r->kind == KIND_SWITCH) {
        value->truth = json_is_true(found);
        return json_is_boolean(found);
    }
    if (!json_is_number(found))
        return false;
    value->real = json_number_value(found);
    if (!isfinite(value->real) || value->real < r->least || value->real > r->most)
        return false;
    if (r->kind == KIND_REAL)
        return true;
    if (json_is_integer(found)) {
        value->integer = json_integer_value(found);
        return true;
    }
    if (value->real != floor(value->real) || fabs(value->real) > 0x1p53)
        return false;
    value->integer = (int64_t)value->real;
    return true;
}

bool fields_read(struct fields *fields, const json_t *object, uint64_t mask, struct error *error)
{
    *fields = (struct fields){0};
    for (int i = 0; i < FIELD_COUNT; i++) {
        const json_t *found = mask >> i & 1 ? json_object_get(object, ranges[i].name) : NULL;
        if (!input_given(found))
            continue;
        if (!read_one(&fields->at[i], &ranges[i], found))
            return refuse(fields, &ranges[i], found, error);
        fields->at[i].given = true;
    }
    return true;
}
