// SPDX-License-Identifier: Apache-2.0
//
// The inside of an engine and of a stream, shared by engine.c, stream.c and the tests.

#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include "graphs/exec.h"
#include "graphs/store.h"
#include "runtime/depth.h"
#include "runtime/engine.h"
#include "runtime/model.h"
#include "runtime/pages.h"
#include "runtime/pool.h"

// A lane's slot: the block that kernels read, its page table, and what it has claimed.
struct slot {
    struct lane lane;
    int32_t *tokens; // [context + MAX_WINDOW + 2]
    uint32_t *table; // [table_size]
    int32_t mapped;  // pages in the table
    uint32_t run;    // first page of the run
    int32_t draft;   // draft id: part of every graph key
    struct stream *stream; // NULL: free
};

struct engine {
    struct engine_options options;
    const char *isa;
    int threads, context, lanes, kv_encoding;
    struct pool *pool;
    struct pack pack;
    struct row_source *rows; // [model.table_count]
    struct pages pages;
    uint32_t run_pages;
    int32_t table_size;
    uint8_t *arena;
    struct pass pass[PASS_COUNT];
    int32_t *pass_rows; // one block for the arrays of all passes
    struct slot slot[MAX_LANES];
    int32_t result[MAX_LANES * (1 + MAX_WINDOW)];
    int32_t failed;
    struct exec exec;
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
    // the kept state: lane->length == kept_length when it was taken, made by prompt-class rows
    int kept_length;
    uint8_t *kept_run; // run_bytes, or NULL
};

// Binds lanes of the engine for one program; `only` NULL: all of them.
struct bind engine_bind(struct engine *engine, struct slot *only);

// Runs a program for one lane, through the graph store unless the engine is eager. False when a kernel could not read a row.
bool engine_run(struct engine *engine, const struct program *program, struct slot *slot, struct error *error);

// Maps pages so that positions below `positions` are backed. False when the pool is empty.
bool engine_map(struct engine *engine, struct slot *slot, int positions, struct error *error);

double engine_seconds(void);

#endif
