// SPDX-License-Identifier: Apache-2.0
//
// The graph store: captured programs by key. A key says everything that a captured program depends on: the program, its lanes
// and rows, each lane's draft and the identity of its page table, and the generation of the page pool. What a key leaves out
// may be replayed wrongly, so the full key is compared on a hit and the hash only finds the bucket.

#ifndef STORE_H
#define STORE_H

#include "graphs/exec.h"
#include "runtime/model.h"

struct graph_key {
    const struct program *program;
    int32_t lanes, rows;
    uint64_t generation;              // of the page pool
    int32_t draft[MAX_LANES];         // draft id of each lane, in order
    const uint32_t *table[MAX_LANES]; // its page table
    const struct lane *lane[MAX_LANES];
    int32_t kv_encoding, reserved;
};

struct graph_counters {
    int64_t replayed, captured, eager, evicted, failed;
};

struct graph_store;

// budget_bytes and budget_count bound what is kept. NULL when memory is short. The owner closes it.
struct graph_store *graph_store_open(int64_t budget_bytes, int budget_count);
void graph_store_close(struct graph_store *store);

// Runs a program once for this key: replays its graph when one is held; on the second sight of a key captures and keeps it
// (least recently used out first), on the first runs eagerly. The bits are the same in every case. A failed capture is logged
// once with key and bytes, and the program runs eagerly.
void graph_store_run(struct graph_store *store, struct exec *exec, const struct graph_key *key,
                     const struct bind *bind);

// Captures without running, for the keys that every round will use. False when the capture failed, or when the store would then
// hold more than `most` bytes: it is as before then.
bool graph_store_warm(struct graph_store *store, struct exec *exec, const struct graph_key *key,
                      const struct bind *bind, int64_t most);

// Forgets every graph (a pool that was rebuilt, a lane that went away).
void graph_store_clear(struct graph_store *store);

// A graph that is held: what it cost, and how often it was replayed. bytes: with what the store keeps beside it.
struct graph_view {
    const struct graph_key *key;
    const struct recording_facts *facts;
    int64_t bytes, replayed;
};

// Calls `see` for every graph, the least recently used first. The store must not change meanwhile.
void graph_store_each(const struct graph_store *store, void (*see)(void *user, const struct graph_view *view),
                      void *user);

const struct graph_counters *graph_store_counters(const struct graph_store *store);
int64_t graph_store_bytes(const struct graph_store *store);

#ifdef GRAPH_TEST
// Red controls: leave a part of the key out, or fail the n-th capture. Tests only.
extern int graph_test_ignore_tables, graph_test_ignore_generation, graph_test_fail_capture;
#endif

#endif
