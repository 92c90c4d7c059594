// SPDX-License-Identifier: Apache-2.0
//
// The prompt cache of an engine: where a request's prompt begins, where its pass stops to keep a state, warm passes, and the tier on
// disk. Engine thread only.
// Invariants: resumed == fresh, bit for bit, since a kept state is made by prompt rows alone; whatever fails here costs time
// and nothing else.

#ifndef CACHE_H
#define CACHE_H

#include "runtime/cache/store.h"

struct engine;
struct stream;
struct cache;
struct disk_entry;

enum { CACHE_MOST_INTERVAL = 4096 }; // positions between states of a long prompt, unless the options say otherwise

// Where a pass stops.
struct cache_stop {
    int at;
    enum keep_kind kind;
};

// What the cache knows of a stream whose prompt is read; all zero: it has no part in the cache.
struct cache_pass {
    bool open, history;       // history: the end of its messages is kept
    struct cache_stop *stops; // [count] ascending
    int count, next;
    struct cache_ids *ids;    // once a state is kept
    int64_t source;           // serial of the state that it began at; 0: none
    struct disk_entry *entry; // the state on disk that it waits for, or NULL
    int resumed, kept;        // positions
};

// Opens the cache that the options ask for (none: engine->cache stays NULL), once pages are open.
bool cache_open(struct engine *engine, struct error *error);
void cache_close(struct engine *engine);
void cache_count(const struct engine *engine, struct cache_counters *counters);

// Between turns: gives up every kept state of more than `length` positions; 0: all. What lies on disk stays.
void cache_forget(struct engine *engine, int length);

// The state that a request's prompt can begin at, pinned until cache_begin or cache_unpin; NULL: none.
struct cache_state *cache_find(struct stream *stream);
void cache_unpin(struct engine *engine, struct cache_state *state);
// Copies the state's own page to `tail` and its run to `run`. False when a copy failed; the state goes when it is unpinned.
bool cache_copy_out(struct engine *engine, struct cache_state *state, void *tail, void *run);

// A stream has its lane and begins at `state` (NULL: at 0): plans where it stops.
void cache_begin(struct stream *stream, struct cache_state *state);

// The first position after `at`, and at most `end`, at which a chunk must end: at the stop behind those that it can keep on its way.
int cache_next_stop(const struct stream *stream, int at, int end);

// Before the chunk that ends at position `end`: tells the lane which states to keep on the way.
void cache_keep_on_way(struct stream *stream, int end);

// Right after a chunk, before another one of any stream, with the device drained: keeps the states at the stops that it has reached.
void cache_reached(struct stream *stream);

// Keeps the state at the stream's length, whatever was planned; the device is drained.
void cache_keep_here(struct stream *stream, enum keep_kind kind);

// The prompt has been read, or its pass ends here; says so in one line. Nothing when it was said already.
void cache_end(struct stream *stream);

// Ends a pass without a word.
void cache_drop(struct stream *stream);

// ---- tier.c ----------------------------------------------------------------------------------------------------------------

// Whether the stream waits for a state from the disk; it reads no prompt meanwhile.
bool cache_loading(const struct stream *stream);

// Goes on with the states that streams wait for. alone: there is nothing else to do.
void cache_load(struct engine *engine, bool alone);

// Goes on with what is written to the disk; true: it could go on at once. idle: nothing else is to be done.
bool cache_write(struct engine *engine, bool idle);

// ---- warm.c ----------------------------------------------------------------------------------------------------------------

// The warm pass gives way: it keeps what it reached and frees its lane.
void warm_aside(struct engine *engine);

// One busy chunk of the warm pass, if there is one; the caller has seen that nothing else is to be done.
void warm_step(struct engine *engine);

bool warm_waits(const struct engine *engine); // there is one
bool warm_is(const struct stream *stream);

#endif
