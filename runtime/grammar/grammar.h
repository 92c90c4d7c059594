// SPDX-License-Identifier: Apache-2.0
//
// Grammars that a reply must follow: JSON by a schema, any JSON object, a regular expression, a choice of texts, a
// grammar text, a tool call. All are compiled to one form over bytes; after every token of the reply a mask says which
// tokens may come next.
//
// Invariants: a token is allowed exactly when its bytes lead to a place from which the grammar can still end; end
// tokens are allowed exactly where it may end; added tokens (special ones, markers of a chat) never, but where the
// grammar names them. Time and memory are bounded whatever the grammar: what would exceed the bounds is refused or ends
// the one request.
//
// Threads: any thread may compile, hold and release; one thread at a time (the engine's) may match with a grammar.

#ifndef GRAMMAR_H
#define GRAMMAR_H

#include "runtime/error.h"
#include "runtime/tokenizer.h"
#include <jansson.h>
#include <stdint.h>

struct grammar;
struct grammar_vocabulary;

// ---- the vocabulary ------------------------------------------------------------------------------------------------------------

// Makes the tree of all tokens' bytes, once at the start. vocabulary: ids that the model draws from (masks have a bit
// for each; ids that the tokenizer does not know are never allowed). end: the ids that end a reply. tables must outlive
// it; the caller closes it after all grammars.
bool grammar_vocabulary_open(struct grammar_vocabulary **out, const struct tokenizer_tables *tables, int32_t vocabulary,
                             const int32_t *end, int end_count, struct error *error);
void grammar_vocabulary_close(struct grammar_vocabulary *vocabulary); // NULL is allowed
int64_t grammar_vocabulary_bytes(const struct grammar_vocabulary *vocabulary);
// The added token whose text this is, or -1.
int32_t grammar_marker(const struct grammar_vocabulary *vocabulary, const char *text, size_t bytes);
// The bytes of a token; *bytes is 0 for an id that has none.
const char *grammar_token(const struct grammar_vocabulary *vocabulary, int32_t id, size_t *bytes);

// ---- front ends ------------------------------------------------------------------------------------------------------------------
// Each makes *out, which the caller releases, or fails with one line that says what is wrong and where.

// A JSON value that meets a schema. A keyword that is not supported is an error that names it. Properties come in the
// order of the schema, then additional ones.
bool grammar_schema(struct grammar **out, const struct grammar_vocabulary *vocabulary, const json_t *schema,
                    struct error *error);
// Any JSON object.
bool grammar_json_object(struct grammar **out, const struct grammar_vocabulary *vocabulary, struct error *error);
// The whole reply matches the expression. README.md lists what is understood.
bool grammar_regex(struct grammar **out, const struct grammar_vocabulary *vocabulary, const char *pattern, size_t bytes,
                   struct error *error);
// The reply is one of the texts.
bool grammar_choice(struct grammar **out, const struct grammar_vocabulary *vocabulary, const char *const *texts,
                    const size_t *bytes, int count, struct error *error);
// A grammar text of rules `name ::= ...`, of which `root` is the reply.
bool grammar_text(struct grammar **out, const struct grammar_vocabulary *vocabulary, const char *text, size_t bytes,
                  struct error *error);

// A call of one of the tools, in the model's dialect.
enum grammar_dialect {
    GRAMMAR_TOOL_XML,  // <tool_call>\n<function=NAME>\n<parameter=P>\nVALUE\n</parameter>\n</function>\n</tool_call>
    GRAMMAR_TOOL_JSON, // <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>
};
struct grammar_tool {
    const char *name;
    const json_t *parameters; // schema of the arguments, or NULL: any object
    bool strict; // in XML, values that may be texts keep to the schema too, or it is refused; else they are free
};
// one: exactly one call, else one or more. otherwise: a schema whose value the reply may be instead, or NULL.
bool grammar_tool_call(struct grammar **out, const struct grammar_vocabulary *vocabulary, enum grammar_dialect dialect,
                       const struct grammar_tool *tools, int count, bool one, const json_t *otherwise,
                       struct error *error);

struct grammar *grammar_hold(struct grammar *grammar); // one more holder; returns it
void grammar_release(struct grammar *grammar);         // NULL is allowed

// ---- matching --------------------------------------------------------------------------------------------------------------------

enum { GRAMMAR_CONFIGS = 2048 };

struct grammar_config {
    int32_t node, frame;
};

// Where a reply stands: everything that the grammar could be in the middle of. Plain data, to be copied with
// grammar_copy.
struct grammar_state {
    int32_t count;
    struct grammar_config config[GRAMMAR_CONFIGS];
};

static inline void grammar_copy(struct grammar_state *to, const struct grammar_state *from)
{
    to->count = from->count;
    for (int32_t i = 0; i < from->count; i++)
        to->config[i] = from->config[i];
}

// The place before the first token. lead: up to two line ends may come first, as they do after reasoning.
bool grammar_begin(struct grammar *grammar, struct grammar_state *state, bool lead, struct error *error);

// Takes a token. False when it is not allowed, or when the grammar is too ambiguous to follow; the state is then
// undefined.
bool grammar_advance(struct grammar *grammar, struct grammar_state *state, int32_t token, struct error *error);
// The same for bytes that need not be a token.
bool grammar_advance_bytes(struct grammar *grammar, struct grammar_state *state, const char *bytes, size_t count,
                           struct error *error);

bool grammar_may_end(const struct grammar_state *state);

// The tokens that may come next: one bit an id in words[mask_words(vocabulary)]. *count: how many; 0 is a dead end, for
// the caller to report.
bool grammar_mask(struct grammar *grammar, const struct grammar_state *state, uint32_t *words, int32_t *count,
                  struct error *error);

// Why the last call that matched failed: the text is not allowed, a bound was hit, which another grammar would not, or
// memory ran out.
enum grammar_fault { GRAMMAR_FITS, GRAMMAR_DENIES, GRAMMAR_LARGE, GRAMMAR_STARVED };
enum grammar_fault grammar_fault(const struct grammar *grammar);

// Tokens that are likely because the grammar leaves no other bytes: up to `room` of them. A guess, for drafts.
int grammar_guess(struct grammar *grammar, const struct grammar_state *state, int32_t *tokens, int room);

// Bytes that the grammar and what it keeps for matching took after the last mask; any thread may ask.
int64_t grammar_bytes(const struct grammar *grammar);

#endif
