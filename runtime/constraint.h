// SPDX-License-Identifier: Apache-2.0
//
// A stream's grammar while its reply is made: when it begins, where the reply stands in it, which drafts it takes, and
// the masks of a window's rows where the draw reads them. Invariant: a row's mask is a function of the reply's tokens
// before that row's draw, so drafts change nothing.

#ifndef CONSTRAINT_H
#define CONSTRAINT_H

#include "runtime/device.h"
#include "runtime/engine.h"
#include "runtime/grammar/grammar.h"

enum { CONSTRAINT_AFTER = 64 }; // bytes of the text that a grammar begins after

struct constraint {
    struct grammar *grammar; // held
    int32_t rows, words;     // of the masks; rows: of a window
    char after[CONSTRAINT_AFTER];
    size_t after_bytes; // 0: the grammar begins with the reply
    int32_t marker;     // the token that `after` is, or -1
    int32_t read;       // of the prompt's last tokens, those that the reply began with
    bool active, over;  // it has begun; and ended
    bool stuck;         // it cannot be followed any further: another grammar could
    char tail[2 * CONSTRAINT_AFTER];
    size_t tail_bytes; // the last bytes of the reply, where there is no marker
    struct grammar_state state, path;
};

// vocabulary: ids that the model draws from; rows: of a window. NULL with an error when memory is short or the text too
// long.
struct constraint *constraint_new(const struct stream_options *options, int32_t vocabulary, int32_t rows,
                                  struct error *error);
void constraint_free(struct constraint *constraint); // NULL is allowed

// Back to the beginning of a reply; tokens: the prompt.
bool constraint_begin(struct constraint *constraint, const int32_t *tokens, int count, struct error *error);

// Takes reply tokens in their order. False when one is not allowed.
bool constraint_read(struct constraint *constraint, const int32_t *tokens, int count, struct error *error);

// Whether the next token is drawn under a mask.
static inline bool constraint_masks_now(const struct constraint *c)
{
    return c && c->active && !c->over;
}

// Tokens that may be drafted next: those of `copy` (copies of them) as long as they are allowed, else what the grammar
// leaves no choice about. At most `room`.
int constraint_drafts(struct constraint *constraint, const int32_t *copy, int copies, int32_t *drafts, int room);

// Masks of the rows after none, one, ... of the drafts into `masks`, uint32 [rows][words], where the draw finds them. *count: drafts,
// cut where one leads to a place from which no token goes on. False when that is so before the first.
bool constraint_mask(struct constraint *constraint, const struct mirror *masks, const int32_t *drafts, int *count,
                     struct error *error);

#endif
