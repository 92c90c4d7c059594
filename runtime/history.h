// SPDX-License-Identifier: Apache-2.0
//
// What penalties look at: the distinct tokens of a lane's stream with their counts, kept where the draw reads them. A function of the
// stream's own tokens. A lane has one for good, as large as any of its streams needs: nothing but opening can fail.

#ifndef HISTORY_H
#define HISTORY_H

#include "runtime/device.h"
#include "runtime/engine.h"

struct history {
    struct mirror list;   // struct penalties, then the tokens
    float *kept;          // of the target: what a draw changes, by row of a window; NULL where draws have scratch
    int64_t room;         // values a row of it
    int32_t *where;       // [vocabulary] place in the list + 1
    int32_t biases, upto; // the first entries are the biases; tokens that were counted
    bool on;              // its stream has penalties
};

// False when there are too many biases, an id is outside the vocabulary or there twice, or a number is not finite.
bool history_check(const struct sampling *sampling, int vocabulary, struct error *error);

// Bytes of a history for streams of at most `positions` tokens, in the memory that the target's are of.
int64_t history_bytes(int vocabulary, int positions);
int64_t history_claimed(const struct history *history, int vocabulary); // those of an open one

bool history_open(struct history *history, int vocabulary, int positions, struct error *error);
void history_close(struct history *history);

// Another stream, with settings that were checked and no tokens.
void history_begin(struct history *history, const struct sampling *sampling);

// Forgets all tokens.
void history_reset(struct history *history);

// Counts tokens that were not counted yet, up to `upto`; those from reply_from on belong to the reply.
void history_add(struct history *history, const int32_t *tokens, int upto, int reply_from);

#endif
