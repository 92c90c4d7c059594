// SPDX-License-Identifier: Apache-2.0
//
// What a CPU kernel is, and the memory that every kernel sees.
//
// A kernel is one or more phases; a phase is a range of independent items that the thread pool cuts up as it likes, with a
// barrier between phases. The invariant that everything else stands on: an item's result depends on the item alone, never on
// which thread ran it, on how items were cut, or on how many rows share the pass.
//
// "Device" memory is ordinary memory here, but kernels see it only through pointers in their arguments, as on a GPU.

#ifndef KERNEL_H
#define KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MAX_LANES = 8,
    MAX_WINDOW = 16, // rows of one window: the pending token and up to 15 drafts
    KERNEL_PHASES = 3,
    KERNEL_SCRATCH = 1 << 20, // bytes of 64-byte aligned scratch a thread owns
    LOGPROBS_MOST = 20,       // alternatives of a token whose log-probabilities are kept
    LANE_KEEPS = 2,           // states that a prompt's pass keeps on its way at most
};

#ifdef __CUDACC__
#define KERNEL_INLINE __host__ __device__ inline
#else
#define KERNEL_INLINE inline
#endif

// One token whose logit is changed before the draw. count: how often the reply holds it; seen: prompt or reply hold it.
struct penalised {
    int32_t id, count, seen;
    float bias;
};

// What changes a stream's logits, for all tokens up to the pending one; the draw adds those of the window itself. A logit x becomes
// x + bias, then x / repetition (x * repetition when negative) when seen, then x - frequency * count - presence (count > 0).
struct penalties {
    float presence, frequency, repetition; // 0, 0, 1: off
    int32_t count;                         // tokens, distinct ids; they follow
    float *
        kept; // [MAX_WINDOW][room] where a device's draw keeps what it changes; NULL on the CPU, whose threads have scratch
    int64_t room; // at least count + MAX_WINDOW
};

// Natural logarithms of probabilities at temperature 1, before any penalty: of the token, and of the likeliest, ties to the
// lower id.
struct logprobs {
    float chosen;
    int32_t count;
    int32_t id[LOGPROBS_MOST];
    float logprob[LOGPROBS_MOST];
};

// One stream's slot. Everything that changes between rounds is in here (or in memory it points to) and is read by kernels;
// everything that identifies (the pointers) is captured with a graph.
struct lane {
    int32_t length; // positions committed to the caches
    int32_t rows; // rows of the next trunk pass: positions length .. length + rows - 1; 0: the lane sits this pass out
    int32_t fold; // rows of the last window that recurrent states have yet to fold in
    int32_t head_length;  // cells that the head's cache holds
    int32_t drafts;       // drafted tokens of the window (rows - 1 in a decode pass)
    int32_t accepted;     // of the last window: drafts that equalled the target's draw
    int32_t streams_base; // oldest position that the ring of saved streams holds
    int32_t top_k;        // 0: off
    float temperature;    // 0: greedy
    float top_p;          // 1: off
    float min_p;          // 0: off
    int32_t limit;        // ids known: head cells need position + 1 < limit
    uint64_t seed;
    int32_t tail_first; // first position and number of rows whose logits a ROWS_TAIL pass computes
    int32_t tail_rows;
    int32_t headless; // 1: the head drafts nothing for this lane in this round (no drafts, or ones that the host wrote)
    int32_t force;    // benches: n + 1 accepts n drafts, right or wrong; 0: off
    int32_t halt;     // id + 1: no draft is accepted after a draw of id, which is then pending; 0: off
    int32_t alternatives;              // of logprobs: 0 .. LOGPROBS_MOST
    struct logprobs *logprobs;         // [MAX_WINDOW] of the rows of the window, by row; NULL: not wanted
    const struct penalties *penalties; // NULL: none
    const uint32_t *mask; // [rows of the lane in the pass][mask_words(vocabulary)] tokens that may be drawn; NULL: all
    int32_t *tokens;      // [context + MAX_WINDOW + 1] ids by position; tokens[length] is the pending token
    uint8_t *run;         // recurrent states, at the offsets of the state table
    // States that a prompt's pass keeps on its way: what the run would be if the pass ended behind position keep_at[i] - 1 goes to
    // keep_run[i], but for the rows of a window and, of the saved streams, all but those of that position. Ascending; those
    // outside of length + 1 .. length + rows are none.
    int32_t keep_at[LANE_KEEPS];
    uint8_t *keep_run[LANE_KEEPS];
};

// Rows of a pass of `rows` rows behind which the lane keeps state i; 0: it does not in this pass.
static KERNEL_INLINE int32_t lane_keeps(const struct lane *lane, int32_t i, int32_t rows)
{
    const int32_t behind = lane->keep_at[i] - lane->length;
    return behind > 0 && behind <= rows ? behind : 0;
}

// Words of one row of a mask: bit id % 32 of word id / 32 says whether token id may be drawn.
static inline int32_t mask_words(int32_t vocabulary)
{
    return (vocabulary + 31) / 32;
}

// The lanes of a pass and their page tables. Captured by value: a graph keeps the tables that it was captured with.
struct lane_set {
    int32_t count;
    int32_t page;   // positions a page, a multiple of 4
    uint8_t *pages; // the arena of pages; page i starts at pages + i * page_bytes
    int64_t page_bytes;
    struct lane *lane[MAX_LANES];     // NULL: a null lane, which has no rows
    const uint32_t *table[MAX_LANES]; // page index by position / page
};

// The rows of one pass, compact: the rows of lane 0, then of lane 1, ... Written by the first op of a program.
struct pass {
    int32_t rows; // live rows
    int32_t reserved;
    int32_t lane_first[MAX_LANES];
    int32_t lane_rows[MAX_LANES];
    int32_t *lane;     // [rows] index in the lane set
    int32_t *position; // [rows]
    int32_t *token;    // [rows]
};

// items: how many items this launch has, from the arguments (pass->rows and the like). run: does items begin .. end - 1.
// scratch: KERNEL_SCRATCH bytes that belong to the calling thread, contents undefined.
struct kernel_phase {
    int64_t (*items)(const void *args);
    void (*run)(const void *args, int64_t begin, int64_t end, void *scratch);
};

struct kernel {
    const char *name;
    struct kernel_phase phase[KERNEL_PHASES]; // a phase with run == NULL ends the list
};

#endif
