// SPDX-License-Identifier: Apache-2.0
//
// The warm pass: the engine reads a prompt that nobody has sent yet, so that whoever sends it begins where the pass ended.
// Invariant: it runs a chunk only in a turn in which nothing waits, decodes or fills, and of busy size, so that a request that comes
// meanwhile waits for one such chunk at most.

#include "runtime/cache/cache_state.h"

bool warm_waits(const struct engine *e)
{
    return e->cache && e->cache->warm;
}

bool warm_is(const struct stream *s)
{
    return s->engine->cache && s->engine->cache->warm == s;
}

static void end(struct engine *e)
{
    struct stream *s = e->cache->warm;
    e->cache->warm = NULL;
    stream_close(s);
}

bool engine_warm(struct engine *e, const int32_t *ids, int count, const int *marks, int mark_count)
{
    const struct request request = {.ids = ids,
                                    .count = count,
                                    .marks = marks,
                                    .mark_count = mark_count,
                                    .prompt_only = true,
                                    .background = true,
                                    .options = {.drafts = -1, .sampling = {.top_p = 1}}};
    struct error error;
    struct stream *s;
    if (!e->cache || e->dead || !admission_make(e, &s, &request, &error))
        return false;
    warm_aside(e);
    s->submitted = false; // no turn takes it for a request
    e->cache->warm = s;
    return true;
}

void warm_aside(struct engine *e)
{
    struct stream *s = e->cache ? e->cache->warm : NULL;
    if (!s)
        return;
    engine_wait(e, NULL);
    if (s->phase == STREAM_FILLING && s->slot) {
        cache_keep_here(s, KEEP_MARK);
        cache_end(s);
        cache_store(e)->counters.warm_aside++;
    }
    end(e);
}

static bool begin(struct stream *s)
{
    if (!admission_begin(s))
        return false;
    cache_store(s->engine)->counters.warm_passes++;
    return true;
}

void warm_step(struct engine *e)
{
    struct stream *s = e->cache ? e->cache->warm : NULL;
    int rows;
    if (!s)
        return;
    if ((!s->slot && !begin(s)) || s->phase != STREAM_FILLING) {
        end(e); // no room for it now, or a chunk of it failed
        return;
    }
    if (s->slot->lane->length < s->prompt_count) {
        e->chunk_start = engine_seconds();
        e->chunk_beside = false;
        cache_store(e)->counters.warm_chunks++;
        if (stream_chunk(s, s->prompt_count, e->options.busy_chunk, false, &rows, NULL))
            return;
    } else {
        cache_end(s);
    }
    end(e);
}
