// SPDX-License-Identifier: Apache-2.0
//
// The toy model of the simulator: its sizes, its arithmetic, its faults. A row's output is a hash of every token of the stream up
// to the row, of the recurrent state and of every cache cell, so one wrong byte anywhere changes the reply.

#ifndef TOY_H
#define TOY_H

#include "runtime/engine.h"
#include <stdbool.h>
#include <stdint.h>

enum { TOY_VOCABULARY = 24, TOY_LANES = 4, TOY_WINDOW = 6, TOY_CHUNK = 16, TOY_OPENING = 3, TOY_CONTEXT = 96 };
enum { TOY_END = 5 };

// What the toy, its target and the clock do wrong on purpose.
struct faults {
    // red controls: each breaks a contract and must be found
    bool shared_table, key_without_table, no_drain, commit_twice, drafted_state;
    bool asks; // replays ask for memory of the target
    // events: rare, and everything must go on
    uint32_t allocation, capture, row, copy; // chance of a failure each time, of 2^32
    bool armed;                              // allocations fail only where a caller can be told
    // what the target sees
    bool ready;   // an engine has opened
    int64_t late; // allocations since
};
extern struct faults faults;

extern uint64_t toy_random_state;
uint64_t toy_random(void); // of the schedule: seeded
static inline uint32_t toy_below(uint32_t n)
{
    return (uint32_t)((toy_random() >> 32) * n >> 32);
}
static inline bool toy_chance(uint32_t chance)
{
    return chance && (uint32_t)(toy_random() >> 32) < chance;
}

extern double toy_clock; // what engine_seconds gives

static inline uint64_t toy_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
    x ^= x >> 32;
    return x * 0xc4ceb9fe1a85ec53u;
}

// decode: the row is of the decode class, as those of a reply are. The classes differ, as kernels' bits may, so that a
// state which others go on from is seen to be of prompt rows alone.
static inline uint64_t toy_input(int32_t token, int64_t position, bool decode)
{
    return toy_mix((uint64_t)token + 1 + (decode ? TOY_VOCABULARY : 0), (uint64_t)position);
}

// Logits of a row: mostly a peak that the token before and the position tell, so that drafts often land.
void toy_logits(uint64_t output, int32_t token, int64_t position, float *logits);

// The reply that a stream of these ids must give, by plain recomputation: no lanes, pages, rounds or graphs.
// outputs: of each position, or NULL; ids holds count tokens and gets `reply` more.
void toy_reply(int32_t *ids, int count, int reply, const struct sampling *sampling, uint64_t *outputs);

// Head cells of a stream are this, so that a wrong one is seen although it only changes drafts.
static inline uint64_t toy_head_cell(uint64_t output, int32_t next)
{
    return toy_mix(output, (uint64_t)next + 77);
}

#endif
