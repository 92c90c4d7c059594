// SPDX-License-Identifier: Apache-2.0
//
// The inside of the prompt cache, shared by the files of this folder.

#ifndef CACHE_STATE_H
#define CACHE_STATE_H

#include "runtime/cache/cache.h"
#include "runtime/cache/disk.h"
#include "runtime/engine_state.h"

struct cache {
    struct store store;
    int interval; // positions: states are kept at its multiples
    int gap;      // least distance of other places from the one before
    int32_t common[CACHE_PROMPTS];
    struct stream *warm; // the warm pass, or NULL
    // the tier on disk
    struct disk *disk;      // NULL: there is none
    double settle;          // seconds that a state is left alone before it is written
    double next_look;       // for one to write
    int64_t writing;        // serial of the state that is written; 0: none
    uint32_t written;       // its pages so far
    struct stream *loading; // whose state is being read, or NULL
    uint32_t loaded;        // its blocks so far
};

// ---- tier.c ----------------------------------------------------------------------------------------------------------------

bool tier_open(struct engine *engine, struct error *error);
// Writes what is worth it first.
void tier_close(struct engine *engine);
void tier_count(const struct engine *engine, struct cache_counters *counters);

// A state on disk of more than `least` ids that the prompt had better begin at; NULL: none.
struct disk_entry *tier_choose(const struct stream *stream, int least);
// The stream waits for its state no more.
void tier_leave(struct stream *stream);
// A state goes from the pool.
void tier_gone(struct engine *engine, const struct cache_state *state);

// ---- pass.c ----------------------------------------------------------------------------------------------------------------

// The stream goes on from a state of `length` positions: counted.
void cache_resumed(struct stream *stream, int length);

static inline struct store *cache_store(const struct engine *engine)
{
    return &engine->cache->store;
}

#endif
