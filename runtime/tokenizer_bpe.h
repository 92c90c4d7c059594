// SPDX-License-Identifier: Apache-2.0
//
// Byte-pair merging of one word. Invariant: of all adjacent pairs the one of lowest rank merges next, the leftmost among equals.

#ifndef TOKENIZER_BPE_H
#define TOKENIZER_BPE_H

#include "runtime/tokenizer.h"
#include "runtime/tokenizer_text.h"

struct bpe_scratch {
    struct scratch symbols, heap;
};

// Writes the ids of `word` (bytes > 0, below 2^31) to ids, which has room for `bytes` of them, and their count. Takes time
// proportional to bytes * log(bytes). False when memory runs out.
bool bpe_word(const struct tokenizer_tables *tables, struct bpe_scratch *scratch, const char *word, size_t bytes,
              int32_t *ids, size_t *count);

#endif
