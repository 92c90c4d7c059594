// SPDX-License-Identifier: Apache-2.0
//
// The inside of an engine and of a stream, shared by engine*.c, stream.c and the tests.

#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include "graphs/exec.h"
#include "graphs/store.h"
#include "runtime/depth.h"
#include "runtime/device.h"
#include "runtime/engine.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "runtime/pages.h"
#include "runtime/weights.h"

// What host and device exchange once a round: the host pushes the lanes before it and pulls everything after it.
struct round_block {
    struct lane lane[MAX_LANES];
    int32_t result[MAX_LANES * (1 + MAX_WINDOW)]; // a lane: count, then the new tokens
    int32_t failed;                               // a kernel could not read a row
};

// A lane's slot: its page table and tokens, and what it has claimed.
struct slot {
    struct lane *lane;     // in the round block, host side
    struct mirror tokens;  // int32 [context + MAX_WINDOW + 2] ids by position
    struct mirror table;   // uint32 [table_size] page by position / page
    int32_t mapped;        // pages in the table
    uint32_t run;          // first page of the run
    int32_t draft;         // draft id: part of every graph key
    struct stream *stream; // NULL: free
};

struct engine {
    struct engine_options options;
    struct memory_plan plan;
    int context, lanes, kv_encoding;
    struct exec *exec;
    struct pack pack;
    struct weights weights;
    struct pages pages;
    uint32_t run_pages;
    int32_t table_size;
    uint8_t *arena;
    struct mirror passes; // struct pass [PASS_COUNT], then the arrays of their rows
    struct mirror block;  // struct round_block
    struct slot slot[MAX_LANES];
    float *logits; // host copy of logits where the device's are not visible
    struct graph_store *graphs;
    int32_t draft_ids; // handed out so far
};

struct stream {
    struct engine *engine;
    struct slot *slot;
    struct stream_options options;
    struct depth depth;
    struct stream_counters counters;
    bool started;  // the prompt's draw has been made
    bool drafting; // the head follows this stream
    int last_rows; // tokens that the last stream_next gave
    // the kept state: the prompt but its last token, made by prompt-class rows
    int kept_length;
    uint8_t *kept_run; // device, run_bytes; NULL: none
};

static inline struct round_block *engine_block(const struct engine *engine)
{
    return engine->block.host;
}

// Binds one lane of the engine for a program.
struct bind engine_bind(struct engine *engine, struct slot *slot);

// Runs a program for one lane, through the graph store unless the engine is eager, and pulls the round block. False when the
// target failed or a kernel could not read a row.
bool engine_run(struct engine *engine, const struct program *program, struct slot *slot, struct error *error);

// Maps pages so that positions below `positions` are backed. False when the pool is empty.
bool engine_map(struct engine *engine, struct slot *slot, int positions, struct error *error);

// Puts tokens from..from+count of the host's list where kernels read them.
void engine_push_tokens(struct slot *slot, int from, int count);

// Row i of the logits of the last program, [vocabulary], on the host.
const float *engine_logits(struct engine *engine, int row);

double engine_seconds(void);

#endif
