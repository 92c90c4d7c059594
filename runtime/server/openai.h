// SPDX-License-Identifier: Apache-2.0
//
// What the dialects share: from numbers to a job, stop strings, the model's name, and the blocks of a reply that count.

#ifndef SERVER_OPENAI_H
#define SERVER_OPENAI_H

#include "runtime/server/exchange.h"
#include "runtime/server/input.h"

enum { STOPS_MOST = 16 };

// Fields of a request that any dialect may allow.
#define SAMPLING_FIELDS                                                                                                \
    (FIELD_BIT(FIELD_TEMPERATURE) | FIELD_BIT(FIELD_TOP_P) | FIELD_BIT(FIELD_TOP_K) | FIELD_BIT(FIELD_MIN_P) |         \
     FIELD_BIT(FIELD_SEED) | FIELD_BIT(FIELD_PRESENCE_PENALTY) | FIELD_BIT(FIELD_FREQUENCY_PENALTY) |                  \
     FIELD_BIT(FIELD_REPETITION_PENALTY) | FIELD_BIT(FIELD_IGNORE_EOS) | FIELD_BIT(FIELD_DRAFT) |                      \
     FIELD_BIT(FIELD_STREAM) | FIELD_BIT(FIELD_N) | FIELD_BIT(FIELD_SKIP_SPECIAL_TOKENS))

// Reads the fields; sends the error and returns false when one is out of range.
bool ask_fields(struct exchange *x, struct fields *fields, const json_t *root, uint64_t mask);
// Whether the model that is asked for is served here; sends the error.
bool ask_model(struct exchange *x, const json_t *root);
// Sampling, ends, drafts, priority and biases into the job; sends the error.
bool ask_sampling(struct exchange *x, const struct fields *fields, const json_t *root, struct job *job);
// Where no seed is given: one that follows from the prompt, so that the same request has the same reply.
void ask_seed(const struct fields *fields, struct job *job);

// Whether thinking is wanted, from all the ways to say it in OpenAI's dialect and from the server's flags, into the template's
// switches; and how many tokens of it (as in struct answer_rules). Sends the error.
bool ask_thinking(struct exchange *x, const struct fields *fields, const json_t *root, json_t *kwargs, int *budget);
// Only what the server's flags say.
void ask_thinking_defaults(const struct exchange *x, json_t *kwargs, int *budget);

// From here on errors call a field of OpenAI's chat what this client calls it; both texts are static.
void ask_rename(struct exchange *x, const char *ours, const char *theirs);
// What the client calls a field of OpenAI's chat.
const char *ask_name(const struct exchange *x, const char *ours);

// Sends "FIELD: EXPECTED is expected"; false.
bool ask_bad(struct exchange *x, const char *field, const char *expected);

// The same with what was found instead.
bool ask_wrong(struct exchange *x, const char *field, const char *expected, const json_t *found);
// Sends what is wrong with a field, whose name the text begins with; false.
bool ask_refuse(struct exchange *x, const char *field, const struct error *error);

// Stop strings: a text or an array of texts. They point into root.
struct stops {
    const char *text[STOPS_MOST];
    int count;
};
bool ask_stops(struct exchange *x, const json_t *stop, const char *name, struct stops *stops);

json_t *usage_json(const struct outcome *outcome);

// Ends a streamed reply: with usage in an event of its own, built on `chunk` (taken; NULL: none), then the end mark.
void end_events(struct exchange *x, json_t *chunk, const struct outcome *outcome);

// Ends a streamed reply that failed.
void fail_events(struct exchange *x, const char *type, const char *message);

// The block that tells how the reply was made: sets it under "pianola" and "tensorfold".
void add_measured(json_t *root, const struct exchange *x, const struct outcome *outcome);

// Text that a token id stands for, U+FFFD where it is a part of a character; and its bytes as numbers.
json_t *token_text(const struct tokenizer *tokenizer, int32_t id);
json_t *token_bytes(const struct tokenizer *tokenizer, int32_t id);

#endif
