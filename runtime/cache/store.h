// SPDX-License-Identifier: Apache-2.0
//
// The store of the prompt cache: kept states, what they take of the page pool, and which of them goes when room is short.
//
// A state at position p of exact ids is what a lane holds when its prompt rows below p have run: the cache pages of positions
// below p, and the lane's run. Pages that lie whole below p - 1 are shared with whoever holds them; the page of p - 1 is copied,
// since whoever goes on writes to it (the head reads its last cell again), and the run is copied into pages of its own,
// which need not be consecutive.
// Invariants: a shared page is never written; states hold at most `budget` distinct pages; two states have different ids or
// different positions; ids are compared whole, never by a hash alone.

#ifndef CACHE_STORE_H
#define CACHE_STORE_H

#include "runtime/device.h"
#include "runtime/engine.h"
#include "runtime/pages.h"
#include <stdbool.h>
#include <stdint.h>

enum { CACHE_PROMPTS = 256 }; // most different prompts that states are of

// How much a state is worth, ascending.
enum keep_kind {
    KEEP_INTERVAL, // somewhere in a prompt
    KEEP_MARK,     // where another prompt may part from this one
    KEEP_REWIND,   // the place before a prompt's last message: where it goes on when that is edited
    KEEP_HISTORY,  // the end of its messages: where the next turn goes on
    KEEP_END,      // the end of a prompt, what opens the reply included: the same again
};

// The ids of one prompt, shared by its states. Counted: free at no references.
struct cache_ids {
    int refs, slot; // slot: in the store; -1: not in it
    int count;
    int32_t id[];
};

struct cache_state {
    struct cache_state *next; // in no order
    struct cache_ids *ids;
    int length; // positions that it stands for; ids->id[0 .. length - 1]
    enum keep_kind kind;
    bool follows;  // the head's cache is there too
    bool branched; // prompts went on from here in different ways: never superseded
    bool rewind;   // where its prompt goes on when the last message is edited: superseded by a later such place only
    int users;     // streams that began here and whose prompt is still read
    bool stored;   // on disk, or not wanted there
    double since;  // by engine_seconds, when it was kept
    bool pinned;   // it is being copied out
    bool broken;   // it could not be
    int64_t used;  // when it was last wanted
    int64_t serial;
    uint32_t shared, page_count; // page: `shared` of the prompt, the copied one, then those of the run
    uint32_t page[];
};

struct store {
    struct pages *pages;
    int page;                   // positions a page
    uint32_t run_pages, budget; // pages
    int64_t run_bytes;
    struct cache_ids *ids[CACHE_PROMPTS];
    int32_t (*common)[CACHE_PROMPTS]; // [CACHE_PROMPTS] ids that two prompts begin with
    struct cache_state *first;
    int64_t clock, serials;
    // Told of a state that goes, before its pages do; NULL: nobody is.
    void (*gone)(void *user, const struct cache_state *state);
    void *gone_user;
    struct cache_counters counters;
};

bool store_open(struct store *store, struct pages *pages, int page, uint32_t run_pages, int64_t run_bytes,
                uint32_t budget, struct error *error);
// The pool must still be open.
void store_close(struct store *store);

// A copy of ids with one reference; NULL when memory is short.
struct cache_ids *cache_ids_new(const int32_t *ids, int count);
void cache_ids_drop(struct store *store, struct cache_ids *ids);

// For each prompt of the store how many ids it and these begin with. common: [CACHE_PROMPTS]; 0 where there is no prompt.
void store_compare(const struct store *store, const int32_t *ids, int count, int32_t *common);

// The longest state of at most `most` ids, by what store_compare told; NULL when there is none.
struct cache_state *store_find(const struct store *store, const int32_t *common, int most);

// What a lane holds at a position.
struct cache_source {
    const uint32_t *table; // pages of positions below length
    uint8_t *run;
    int length;
    bool follows;
};

// Keeps the state at source->length of ids. live: others may be given up for it that no later state stands for. NULL, and nothing
// has changed but what was given up and counters, when it does not fit or could not be copied. A state that is there already is
// returned. The device must have drained what writes the source.
struct cache_state *store_keep(struct store *store, struct cache_ids *ids, const struct cache_source *source,
                               enum keep_kind kind, bool live);

// Copies a state's own page to `tail` and its run to `run`. False when a copy failed.
bool store_copy_out(const struct store *store, const struct cache_state *state, void *tail, void *run);

// The state of that serial number, or NULL when it has gone.
struct cache_state *store_serial(const struct store *store, int64_t serial);
void store_touch(struct store *store, struct cache_state *state);
void store_forget(struct store *store, struct cache_state *state);

// Whether a later state stands for this one too.
bool store_superseded(const struct store *store, const struct cache_state *state);

// Gives up the state that is worth least; false when there is none. live: as in store_keep.
bool store_evict(struct store *store, bool live);

#endif
