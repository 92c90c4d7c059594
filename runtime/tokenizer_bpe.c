// SPDX-License-Identifier: Apache-2.0
//
// Two ways to the same merges: short words rescan a small array of ranks, long ones keep the pairs in a heap.

#include "runtime/tokenizer_bpe.h"
#include <string.h>

#define SHORT_WORD 32

struct symbol {
    int32_t id; // -1: merged into the one before it
    int32_t previous, next;
};

static const int32_t *merge_at(const struct tokenizer_tables *tables, int32_t rank)
{
    return tables->merge + 3 * (size_t)rank;
}

// The rank of a pair, INT32_MAX when it does not merge.
static int32_t rank_of(const struct tokenizer_tables *tables, int32_t left, int32_t right)
{
    uint32_t mask = (UINT32_C(1) << tables->merge_bits) - 1;
    for (uint32_t slot = tokenizer_pair_hash(left, right, tables->merge_bits);; slot = (slot + 1) & mask) {
        int32_t rank = tables->merge_slot[slot];
        if (rank < 0)
            return INT32_MAX;
        const int32_t *merge = merge_at(tables, rank);
        if (merge[0] == left && merge[1] == right)
            return rank;
    }
}

static size_t merge_short(const struct tokenizer_tables *tables, int32_t *ids, size_t count)
{
    int32_t ranks[SHORT_WORD];
    for (size_t i = 0; i + 1 < count; i++)
        ranks[i] = rank_of(tables, ids[i], ids[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == INT32_MAX)
            break;
        ids[best] = merge_at(tables, ranks[best])[2];
        count--;
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof *ids);
        if (best + 1 < count)
            memmove(ranks + best, ranks + best + 1, (count - best - 1) * sizeof *ranks);
        if (best > 0)
            ranks[best - 1] = rank_of(tables, ids[best - 1], ids[best]);
        if (best + 1 < count)
            ranks[best] = rank_of(tables, ids[best], ids[best + 1]);
    }
    return count;
}

// The heap holds rank << 32 | position; the least is on top.
static void heap_push(uint64_t *heap, size_t *size, uint64_t key)
{
    size_t at = (*size)++;
    for (; at > 0 && heap[(at - 1) / 2] > key; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *size)
{
    uint64_t top = heap[0], key = heap[--*size];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < *size; at = child) {
        if (child + 1 < *size && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= key)
            break;
        heap[at] = heap[child];
    }
    heap[at] = key;
    return top;
}

static void push_pair(const struct tokenizer_tables *tables, const struct symbol *symbols, int32_t left, uint64_t *heap,
                      size_t *size)
{
    if (left < 0 || symbols[left].next < 0)
        return;
    int32_t rank = rank_of(tables, symbols[left].id, symbols[symbols[left].next].id);
    if (rank != INT32_MAX)
        heap_push(heap, size, (uint64_t)(uint32_t)rank << 32 | (uint32_t)left);
}

// Each merge pushes at most two pairs, so the heap never holds more than three a byte.
static size_t merge_long(const struct tokenizer_tables *tables, struct symbol *symbols, uint64_t *heap, int32_t *ids,
                         size_t count)
{
    size_t size = 0, kept = 0;
    for (size_t i = 0; i < count; i++)
        symbols[i] = (struct symbol){ids[i], (int32_t)i - 1, i + 1 < count ? (int32_t)i + 1 : -1};
    for (size_t i = 0; i + 1 < count; i++)
        push_pair(tables, symbols, (int32_t)i, heap, &size);
    while (size > 0) {
        uint64_t key = heap_pop(heap, &size);
        int32_t rank = (int32_t)(key >> 32), at = (int32_t)(key & UINT32_MAX), next = symbols[at].next;
        const int32_t *merge = merge_at(tables, rank);
        if (next < 0 || symbols[at].id != merge[0] || symbols[next].id != merge[1])
            continue; // an earlier merge took a part of this pair
        symbols[at].id = merge[2];
        symbols[at].next = symbols[next].next;
        if (symbols[next].next >= 0)
            symbols[symbols[next].next].previous = at;
        symbols[next].id = -1;
        push_pair(tables, symbols, symbols[at].previous, heap, &size);
        push_pair(tables, symbols, at, heap, &size);
    }
    for (int32_t i = 0; i >= 0; i = symbols[i].next)
        ids[kept++] = symbols[i].id;
    return kept;
}

// The id of the whole word, or -1.
static int32_t whole_word(const struct tokenizer_tables *tables, const char *word, size_t bytes)
{
    uint32_t mask = (UINT32_C(1) << tables->word_bits) - 1;
    for (uint32_t slot = tokenizer_word_hash(word, bytes, tables->word_bits);; slot = (slot + 1) & mask) {
        int32_t id = tables->word_slot[slot];
        if (id < 0)
            return -1;
        uint32_t at = tables->offset[id];
        if (tables->offset[id + 1] - at == bytes && memcmp(tables->bytes + at, word, bytes) == 0)
            return id;
    }
}

bool bpe_word(const struct tokenizer_tables *tables, struct bpe_scratch *scratch, const char *word, size_t bytes,
              int32_t *ids, size_t *count)
{
    if (tables->word_slot && bytes <= TOKENIZER_TOKEN_BYTES && (ids[0] = whole_word(tables, word, bytes)) >= 0) {
        *count = 1;
        return true;
    }
    for (size_t i = 0; i < bytes; i++)
        ids[i] = tables->byte_id[(uint8_t)word[i]];
    if (bytes <= SHORT_WORD) {
        *count = merge_short(tables, ids, bytes);
        return true;
    }
    if (!scratch_reserve(&scratch->symbols, bytes, sizeof(struct symbol)) ||
        !scratch_reserve(&scratch->heap, 3 * bytes, sizeof(uint64_t)))
        return false;
    *count = merge_long(tables, scratch->symbols.data, scratch->heap.data, ids, bytes);
    return true;
}
