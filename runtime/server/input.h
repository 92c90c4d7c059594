// SPDX-License-Identifier: Apache-2.0
//
// What a client may send: JSON of bounded depth and size, and numbers from one table of ranges. Nothing else in the server
// reads a number out of a body. Invariant: a body that passes costs memory in proportion to its bytes.

#ifndef SERVER_INPUT_H
#define SERVER_INPUT_H

#include "runtime/error.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { INPUT_DEPTH = 64, INPUT_VALUES = 1 << 20 };

// Parses a body: one JSON object, keys distinct, UTF-8, at most INPUT_DEPTH deep with at most INPUT_VALUES values. NULL with the
// reason in error, which calls it `what`: "the body".
json_t *input_parse(const char *what, const char *body, size_t bytes, struct error *error);

// Whether a field is there and not null.
static inline bool input_given(const json_t *value)
{
    return value && !json_is_null(value);
}

enum field {
    FIELD_MAX_TOKENS,
    FIELD_MAX_COMPLETION_TOKENS,
    FIELD_MAX_OUTPUT_TOKENS,
    FIELD_TEMPERATURE,
    FIELD_TOP_P,
    FIELD_TOP_K,
    FIELD_MIN_P,
    FIELD_SEED,
    FIELD_PRESENCE_PENALTY,
    FIELD_FREQUENCY_PENALTY,
    FIELD_REPETITION_PENALTY,
    FIELD_N,
    FIELD_BEST_OF,
    FIELD_TOP_LOGPROBS,
    FIELD_LOGPROBS,
    FIELD_MAX_TOOL_CALLS,
    FIELD_THINKING_BUDGET,
    FIELD_BUDGET_TOKENS,
    FIELD_STREAM,
    FIELD_IGNORE_EOS,
    FIELD_DRAFT,
    FIELD_PARALLEL_TOOL_CALLS,
    FIELD_WANT_LOGPROBS, // "logprobs" where it is a switch
    FIELD_ECHO,
    FIELD_ADD_SPECIAL_TOKENS,
    FIELD_SKIP_SPECIAL_TOKENS,
    FIELD_RETURN_TOKEN_STRS,
    FIELD_ADD_GENERATION_PROMPT,
    FIELD_COUNT
};

struct field_value {
    bool given; // and not null
    bool truth;
    int64_t integer;
    double real;
};

struct fields {
    struct field_value at[FIELD_COUNT];
    const char *wrong; // name of the field that was refused
};

#define FIELD_BIT(field) (UINT64_C(1) << (field))

// Reads the fields of `mask` out of an object. false: error names the field, its range and what was found.
bool fields_read(struct fields *fields, const json_t *object, uint64_t mask, struct error *error);

// A value for an error message: at most about 60 bytes of JSON.
const char *input_show(const json_t *value, char buffer[80]);

#endif
