// SPDX-License-Identifier: Apache-2.0
//
// Copy drafts: where the stream's own tokens last held the 8 tokens that it ends with, what followed there is likely to follow
// here. The index knows one place for each hash of 8 tokens; a place is believed only after the tokens are compared.
// Changes speed only.

#ifndef COPY_DRAFT_H
#define COPY_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

enum { COPY_MATCH = 8, COPY_SLOTS = 1 << 13 };

struct copy_index {
    int32_t *place;  // [COPY_SLOTS] one past the last token of a match, 0: none
    int32_t indexed; // tokens that are in the index
};

// False when memory is short.
bool copy_index_open(struct copy_index *index);
void copy_index_close(struct copy_index *index);
// Forgets everything: the tokens are others now.
void copy_index_reset(struct copy_index *index);

// Looks for the last COPY_MATCH of count tokens before their end, and adds all tokens to the index. Returns where the tokens
// that followed begin (at least one follows), or 0 when there is no such place.
int32_t copy_index_find(struct copy_index *index, const int32_t *tokens, int32_t count);

#endif
