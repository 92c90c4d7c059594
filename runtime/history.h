// SPDX-License-Identifier: Apache-2.0
//
// What penalties look at: the distinct tokens of a stream with their counts, kept where the draw reads them. A function of the
// stream's own tokens.

#ifndef HISTORY_H
#define HISTORY_H

#include "runtime/device.h"
#include "runtime/engine.h"

struct history {
    struct mirror list;   // struct penalties; host NULL: no penalties
    int64_t kept_bytes;   // of the list's `kept`
    int32_t *where;       // [vocabulary] place in the list + 1
    int32_t biases, upto; // the first entries are the biases; tokens that were counted
};

// Whether the settings need a history at all.
bool history_wanted(const struct sampling *sampling);

// positions: most tokens. rows: rows of a window for which the device needs memory to keep what it changes; 0: none. False when memory is short, an id is outside the vocabulary or there twice, or a number is not finite.
bool history_open(struct history *history, const struct sampling *sampling, int vocabulary, int positions, int rows,
                  struct error *error);
void history_close(struct history *history);

// Forgets all tokens.
void history_reset(struct history *history);

// Counts tokens that were not counted yet, up to `upto`; those from reply_from on belong to the reply.
void history_add(struct history *history, const int32_t *tokens, int upto, int reply_from);

#endif
