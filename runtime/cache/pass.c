// SPDX-License-Identifier: Apache-2.0
//
// The prompt cache as a request's prompt meets it: the state that it begins at, the places where it keeps one, the line that
// it leaves in the log.
// Invariant: a state is what prompt rows alone have left, at the end of a chunk or on its way, so it holds nothing of a reply or a draft.

#include "runtime/cache/cache_state.h"
#include <stdlib.h>
#include <string.h>

#ifdef ENGINE_TEST
int cache_test_keep_late; // red control: a state that is kept on the way is one row late
#endif

enum { LEAST_INTERVAL = 256, GAPS = 8, LEAST_PROMPT = 16, CUTS = 4 };

// The memory of states at multiples of the interval is about that of the pages between them; more where that would leave much to
// be read again.
static int interval_of(const struct engine *e)
{
    const int64_t position = model.position_bytes[e->kv_encoding];
    int64_t interval = position > 0 ? model.run_bytes / position : LEAST_INTERVAL;
    if (e->options.cache_interval > 0)
        return e->options.cache_interval;
    interval = interval > LEAST_INTERVAL ? interval : LEAST_INTERVAL;
    interval = interval < CACHE_MOST_INTERVAL ? interval : CACHE_MOST_INTERVAL;
    interval = (interval + model.chunk - 1) / model.chunk * model.chunk; // where chunks end anyway
    return interval < e->context ? (int)interval : e->context;
}

static bool reclaim(void *user)
{
    return store_evict(user, true);
}

static void gone(void *user, const struct cache_state *state)
{
    tier_gone(user, state);
}

bool cache_open(struct engine *e, struct error *error)
{
    if (e->sizes.cache_pages == 0)
        return !e->options.cache_disk ||
               error_set(error,
                         "%s: states on disk pass through a prompt cache in memory, and there is none: raise "
                         "--prompt-cache-gib, or leave --prompt-cache-disk out",
                         e->options.cache_disk);
    struct cache *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(error, "no memory for the prompt cache");
    e->cache = c;
    c->interval = interval_of(e);
    c->gap = c->interval / GAPS > 1 ? c->interval / GAPS : 1;
    if (!store_open(&c->store, &e->pages, e->options.page, e->plan.run_pages, model.run_bytes, e->sizes.cache_pages,
                    error))
        return false;
    e->pages.reclaim = reclaim;
    e->pages.reclaim_user = &c->store;
    c->store.gone = gone;
    c->store.gone_user = e;
    return tier_open(e, error);
}

void cache_close(struct engine *e)
{
    if (!e->cache)
        return;
    tier_close(e);
    e->pages.reclaim = NULL;
    store_close(&e->cache->store);
    free(e->cache);
    e->cache = NULL;
}

void cache_count(const struct engine *e, struct cache_counters *counters)
{
    *counters = (struct cache_counters){0};
    if (!e->cache)
        return;
    *counters = cache_store(e)->counters;
    counters->bytes = e->pages.kept * e->pages.page_bytes;
    tier_count(e, counters);
}

void cache_forget(struct engine *e, int length)
{
    struct cache_state *next;
    for (struct cache_state *s = e->cache ? cache_store(e)->first : NULL; s; s = next) {
        next = s->next;
        if (s->length > length)
            store_forget(cache_store(e), s);
    }
}

// ---- where a prompt begins ---------------------------------------------------------------------------------------------------

struct cache_state *cache_find(struct stream *s)
{
    struct cache *c = s->engine->cache;
    if (!c || !s->prompt)
        return NULL;
    store_compare(&c->store, s->prompt, s->prompt_count, c->common);
    struct cache_state *state = store_find(&c->store, c->common, s->prompt_count);
    s->pass.entry = tier_choose(s, state ? state->length : 0);
    if (s->pass.entry)
        return NULL;
    if (state)
        state->pinned = true;
    return state;
}

void cache_unpin(struct engine *e, struct cache_state *state)
{
    state->pinned = false;
    if (!state->broken)
        return;
    cache_store(e)->counters.failed++;
    store_forget(cache_store(e), state);
}

bool cache_copy_out(struct engine *e, struct cache_state *state, void *tail, void *run)
{
    state->broken = !engine_wait(e, NULL) || !store_copy_out(cache_store(e), state, tail, run);
    return !state->broken;
}

// A prompt that leaves the ids that a state was kept for, and not just before their end: other prompts may do so too.
static bool branches(const struct cache *c, const struct cache_state *state)
{
    return state->ids->count - c->common[state->ids->slot] > c->gap;
}

// ---- where it stops ----------------------------------------------------------------------------------------------------------

struct plan {
    struct cache_stop *stops;
    int count, room;
    int from, end; // places lie between
};

static void add(struct plan *p, int at, enum keep_kind kind)
{
    if (at > p->from && at < p->end && p->count < p->room)
        p->stops[p->count++] = (struct cache_stop){at, kind};
}

static int by_place(const void *a, const void *b)
{
    const struct cache_stop *x = a, *y = b;
    return x->at != y->at ? (x->at > y->at) - (x->at < y->at) : (x->kind < y->kind) - (x->kind > y->kind);
}

// The longest beginnings that the prompt shares with others: where they part, more will.
static void add_cuts(struct plan *p, const struct cache *c)
{
    int32_t above = INT32_MAX;
    for (int n = 0; n < CUTS; n++) {
        int32_t best = 0;
        for (int i = 0; i < CACHE_PROMPTS; i++)
            if (c->common[i] < above && c->common[i] > best)
                best = c->common[i];
        if (best <= p->from)
            return;
        add(p, best, KEEP_MARK);
        above = best - c->gap;
    }
}

// Drops places that are too near to the one before; multiples of the interval and the last places stay.
static void thin(struct plan *p, int gap)
{
    int kept = 0, last = p->from;
    for (int i = 0; i < p->count; i++) {
        const struct cache_stop stop = p->stops[i];
        if (kept > 0 && stop.at == p->stops[kept - 1].at)
            continue;
        if (stop.kind == KEEP_MARK && stop.at - last < gap)
            continue;
        last = stop.at;
        p->stops[kept++] = stop;
    }
    p->count = kept;
}

// Where the last message begins: where the prompt goes on when that is edited. 0: there is no such mark.
static int rewind_of(const struct stream *s)
{
    return s->mark_count > 1 ? s->marks[s->mark_count - 2] : 0;
}

static void plan_stops(struct stream *s, int from)
{
    const struct cache *c = s->engine->cache;
    const int end = s->prompt_count, marks = s->mark_count;
    struct plan p = {.from = from, .end = end, .room = marks + end / c->interval + CUTS + 2};
    if (end <= from || s->prompt_count <= LEAST_PROMPT)
        return;
    p.stops = malloc((size_t)p.room * sizeof *p.stops);
    if (!p.stops)
        return;
    for (int i = 0; i + 2 < marks; i++)
        add(&p, s->marks[i], KEEP_MARK);
    add(&p, rewind_of(s), KEEP_REWIND);
    add(&p, marks > 0 ? s->marks[marks - 1] : end - model.opening, KEEP_HISTORY);
    for (int at = c->interval; at < end; at += c->interval)
        add(&p, at, KEEP_INTERVAL);
    add_cuts(&p, c);
    qsort(p.stops, (size_t)p.count, sizeof *p.stops, by_place);
    thin(&p, c->gap);
    p.stops[p.count++] = (struct cache_stop){end, KEEP_END};
    s->pass.stops = p.stops;
    s->pass.count = p.count;
}

void cache_resumed(struct stream *s, int length)
{
    struct cache_counters *c = &cache_store(s->engine)->counters;
    s->pass.resumed = length;
    s->counters.cached_tokens = length;
    if (warm_is(s))
        return;
    c->hits += length > 0;
    c->misses += length == 0;
    c->cached_tokens += length;
}

// The place before the last message may have been kept by the pass before, as whatever it was then, a few tokens less far than that.
static void note_rewind(const struct stream *s)
{
    const struct cache *c = s->engine->cache;
    const int end = rewind_of(s) + 1, from = end - model.opening;
    struct cache_state *found = NULL;
    for (struct cache_state *x = c->store.first; x && from > 0; x = x->next)
        if (x->length >= from && x->length < end && c->common[x->ids->slot] >= x->length &&
            (!found || x->length < found->length))
            found = x;
    if (found)
        found->rewind = true;
}

void cache_begin(struct stream *s, struct cache_state *state)
{
    struct cache *c = s->engine->cache;
    if (!c || !s->prompt)
        return;
    s->pass = (struct cache_pass){.open = true, .entry = s->pass.entry};
    if (s->pass.entry) { // counted once it is there
        s->pass.entry->users++;
        plan_stops(s, s->pass.entry->length);
        return;
    }
    if (state) {
        cache_unpin(s->engine, state);
        state->branched = state->branched || branches(c, state);
        state->users++;
        s->pass.source = state->serial;
        store_touch(&c->store, state);
    }
    cache_resumed(s, state ? state->length : 0);
    note_rewind(s);
    s->pass.history = s->mark_count > 0 && s->pass.resumed >= s->marks[s->mark_count - 1];
    plan_stops(s, s->pass.resumed);
}

int cache_next_stop(const struct stream *s, int at, int end)
{
    int passed = 0;
    for (int i = s->pass.next; i < s->pass.count; i++)
        if (s->pass.stops[i].at > at && passed++ == LANE_KEEPS)
            return s->pass.stops[i].at < end ? s->pass.stops[i].at : end;
    return end;
}

void cache_keep_on_way(struct stream *s, int end)
{
    struct lane *lane = s->slot->lane;
    int n = 0;
    memset(lane->keep_at, 0, sizeof lane->keep_at);
    for (int i = s->pass.next; i < s->pass.count && s->pass.stops[i].at < end; i++) {
        if (s->pass.stops[i].at <= lane->length)
            continue;
        lane->keep_at[n] = s->pass.stops[i].at;
#ifdef ENGINE_TEST
        lane->keep_at[n] += cache_test_keep_late;
#endif
        lane->keep_run[n] = s->engine->keeps + n * model.run_bytes;
        n++;
    }
}

// ---- keeping -----------------------------------------------------------------------------------------------------------------

// Whether others' states may go for this one: not for a short prompt, which is soon read again, nor for a second state of one
// prompt, nor for anything in the background.
static bool worth_others(const struct stream *s, enum keep_kind kind)
{
    return (kind == KEEP_HISTORY || (kind == KEEP_END && !s->pass.history)) && !s->background &&
           s->prompt_count >= s->engine->cache->gap;
}

// Keeps the state at position `length`, which `run` holds.
static void keep(struct stream *s, enum keep_kind kind, int length, uint8_t *run)
{
    struct cache_pass *pass = &s->pass;
    const struct cache_source source = {s->slot->table.host, run, length, s->follows};
    if (!pass->ids)
        pass->ids = cache_ids_new(s->prompt, s->prompt_count);
    if (!pass->ids) {
        cache_store(s->engine)->counters.failed++;
        return;
    }
    if (!store_keep(cache_store(s->engine), pass->ids, &source, kind, worth_others(s, kind)))
        return;
    pass->kept = length;
    pass->history = pass->history || kind == KEEP_HISTORY;
}

// Where the state of position `at` lies after the chunk that has just run; NULL: nowhere.
static uint8_t *run_of(const struct lane *lane, int at)
{
#ifdef ENGINE_TEST
    at += cache_test_keep_late && at < lane->length;
#endif
    uint8_t *run = at == lane->length ? lane->run : NULL;
    for (int i = 0; i < LANE_KEEPS; i++)
        run = lane->keep_at[i] == at ? lane->keep_run[i] : run;
    return run;
}

void cache_reached(struct stream *s)
{
    struct cache_pass *pass = &s->pass;
    const struct lane *lane = s->slot ? s->slot->lane : NULL;
    for (; lane && pass->next < pass->count && pass->stops[pass->next].at <= lane->length; pass->next++) {
        const struct cache_stop stop = pass->stops[pass->next];
        uint8_t *run = run_of(lane, stop.at);
        if (run)
            keep(s, stop.kind, stop.at, run);
    }
}

void cache_keep_here(struct stream *s, enum keep_kind kind)
{
    const struct lane *lane = s->slot->lane;
    if (lane->length > s->pass.resumed && lane->length > s->pass.kept)
        keep(s, kind, lane->length, lane->run);
}

void cache_drop(struct stream *s)
{
    struct cache *c = s->engine->cache;
    struct cache_state *source = c && s->pass.source ? store_serial(&c->store, s->pass.source) : NULL;
    if (source)
        source->users--;
    if (s->pass.open && s->pass.entry)
        tier_leave(s);
    if (c)
        cache_ids_drop(&c->store, s->pass.ids);
    free(s->pass.stops);
    s->pass = (struct cache_pass){0};
}

static void say(const struct stream *s)
{
    const struct engine *e = s->engine;
    struct cache_counters c;
    cache_count(e, &c);
    fprintf(stderr,
            "prompt cache: %d tokens, resumed at %d, kept %d; %lld states, %.1f MiB and %.1f MiB spare of %.1f MiB "
            "(hits %lld, misses %lld, evicted %lld, refused %lld, failed %lld)\n",
            s->prompt_count, s->pass.resumed, s->pass.kept, (long long)c.states, (double)c.bytes / (1 << 20),
            (double)(c.budget - c.bytes) / (1 << 20), (double)c.budget / (1 << 20), (long long)c.hits,
            (long long)c.misses, (long long)c.evicted, (long long)c.refused, (long long)c.failed);
}

void cache_end(struct stream *s)
{
    if (s->pass.open && !s->engine->options.quiet)
        say(s);
    cache_drop(s);
}
