// SPDX-License-Identifier: Apache-2.0
//
// The inside of the prompt cache, shared by the files of this folder.

#ifndef CACHE_STATE_H
#define CACHE_STATE_H

#include "runtime/cache/cache.h"
#include "runtime/engine_state.h"

struct cache {
    struct store store;
    int interval; // positions: states are kept at its multiples
    int gap;      // least distance of other places from the one before
    int32_t common[CACHE_PROMPTS];
    struct stream *warm; // the warm pass, or NULL
};

static inline struct store *cache_store(const struct engine *engine)
{
    return &engine->cache->store;
}

#endif
