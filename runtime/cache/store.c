// SPDX-License-Identifier: Apache-2.0
//
// Kept states. See store.h.

#include "runtime/cache/store.h"
#include <stdlib.h>
#include <string.h>

#ifdef ENGINE_TEST
int cache_test_share_tail; // red control: the page that is written to is shared too
#endif

// A prompt that parts from an older one this close to an old state's end stands for that state too: what lies between is
// the opening of a reply, which the conversation's next version spells in another way.
enum { NEAR = 64, NEAR_SHARE = 4 }; // positions, and no more than one in so many

bool store_open(struct store *store, struct pages *pages, int page, uint32_t run_pages, int64_t run_bytes,
                uint32_t budget, struct error *error)
{
    *store =
        (struct store){.pages = pages, .page = page, .run_pages = run_pages, .run_bytes = run_bytes, .budget = budget};
    store->counters.budget = budget * pages->page_bytes;
    store->common = calloc(CACHE_PROMPTS, sizeof *store->common);
    return store->common || error_set(error, "no memory for the prompt cache's tables");
}

void store_close(struct store *store)
{
    while (store->first)
        store_forget(store, store->first);
    free(store->common);
    store->common = NULL;
}

// ---- prompts -----------------------------------------------------------------------------------------------------------------

struct cache_ids *cache_ids_new(const int32_t *ids, int count)
{
    struct cache_ids *copy = malloc(sizeof *copy + (size_t)count * sizeof *ids);
    if (!copy)
        return NULL;
    *copy = (struct cache_ids){.refs = 1, .slot = -1, .count = count};
    memcpy(copy->id, ids, (size_t)count * sizeof *ids);
    return copy;
}

void cache_ids_drop(struct store *store, struct cache_ids *ids)
{
    if (!ids || --ids->refs > 0)
        return;
    if (ids->slot >= 0)
        store->ids[ids->slot] = NULL;
    free(ids);
}

static int common_of(const int32_t *a, int a_count, const int32_t *b, int b_count)
{
    enum { STEP = 512 };
    const int most = a_count < b_count ? a_count : b_count;
    int at = 0;
    while (at + STEP <= most && !memcmp(a + at, b + at, STEP * sizeof *a))
        at += STEP;
    while (at < most && a[at] == b[at])
        at++;
    return at;
}

void store_compare(const struct store *store, const int32_t *ids, int count, int32_t *common)
{
    for (int i = 0; i < CACHE_PROMPTS; i++)
        common[i] = store->ids[i] ? common_of(store->ids[i]->id, store->ids[i]->count, ids, count) : 0;
}

// Puts a prompt into the store; false when there are too many.
static bool enter(struct store *store, struct cache_ids *ids)
{
    int slot = 0;
    if (ids->slot >= 0)
        return true;
    while (slot < CACHE_PROMPTS && store->ids[slot])
        slot++;
    if (slot == CACHE_PROMPTS)
        return false;
    store_compare(store, ids->id, ids->count, store->common[slot]);
    for (int i = 0; i < CACHE_PROMPTS; i++)
        store->common[i][slot] = store->common[slot][i];
    store->common[slot][slot] = ids->count;
    store->ids[slot] = ids;
    ids->slot = slot;
    return true;
}

static int common(const struct store *store, const struct cache_ids *a, const struct cache_ids *b)
{
    return store->common[a->slot][b->slot];
}

struct cache_state *store_find(const struct store *store, const int32_t *common, int most)
{
    struct cache_state *found = NULL;
    for (struct cache_state *s = store->first; s; s = s->next)
        if (!s->broken && s->length <= most && s->length <= common[s->ids->slot] &&
            (!found || s->length > found->length))
            found = s;
    return found;
}

// ---- who goes ----------------------------------------------------------------------------------------------------------------

static bool near_end(const struct cache_state *x, int length)
{
    const int left = x->length - length;
    return left <= NEAR && left <= x->length / NEAR_SHARE;
}

// The end of a prompt whose messages end just before it: a next turn most likely spells what lies between in another way, so
// the end of the messages stands for it, and not the other way round.
static bool opening(const struct cache_state *x, const struct cache_state *y)
{
    return x->ids == y->ids && x->kind == KEEP_END && y->kind == KEEP_HISTORY && near_end(x, y->length);
}

// Whether y stands for x: it begins with x's ids; or it is newer and parts from them just before x's end.
static bool stands_for(const struct store *store, const struct cache_state *y, const struct cache_state *x)
{
    const int same = common(store, x->ids, y->ids);
    return !opening(y, x) && y->length > x->length && (same >= x->length || (near_end(x, same) && y->used > x->used));
}

bool store_superseded(const struct store *store, const struct cache_state *x)
{
    bool later = false, rewind = !x->rewind;
    if (x->branched || x->users > 0)
        return false;
    for (const struct cache_state *y = store->first; y; y = y->next) {
        if (y == x)
            continue;
        if (opening(x, y))
            return true;
        if (stands_for(store, y, x)) {
            later = true;
            rewind = rewind || y->rewind; // going back has a later place
        }
    }
    return later && rewind;
}

bool store_evict(struct store *store, bool live)
{
    struct cache_state *worst = NULL;
    bool worst_superseded = false;
    for (struct cache_state *s = store->first; s; s = s->next) {
        if (s->pinned || (s->users > 0 && !live))
            continue;
        // The oldest wanted first; only states that are older than what is found, or of a lower class, need the longer look.
        if (worst && worst_superseded && s->used >= worst->used)
            continue;
        const bool superseded = store_superseded(store, s);
        if (!superseded && (!live || worst_superseded))
            continue;
        if (!worst || superseded > worst_superseded || s->used < worst->used) {
            worst = s;
            worst_superseded = superseded;
        }
    }
    if (!worst)
        return false;
    store->counters.evicted++;
    store_forget(store, worst);
    return true;
}

struct cache_state *store_serial(const struct store *store, int64_t serial)
{
    struct cache_state *s = store->first;
    while (s && s->serial != serial)
        s = s->next;
    return s;
}

void store_touch(struct store *store, struct cache_state *state)
{
    state->used = ++store->clock;
}

void store_forget(struct store *store, struct cache_state *state)
{
    struct cache_state **at = &store->first;
    while (*at != state)
        at = &(*at)->next;
    *at = state->next;
    if (store->gone)
        store->gone(store->gone_user, state);
    for (uint32_t i = 0; i < state->page_count; i++)
        pages_forget(store->pages, state->page[i]);
    cache_ids_drop(store, state->ids);
    store->counters.states--;
    free(state);
}

// ---- keeping -----------------------------------------------------------------------------------------------------------------

// Copies a run between its place in a lane and the state's pages, as many pages at a time as are neighbours.
static bool copy_run(const struct store *store, const struct cache_state *state, uint8_t *run, bool out)
{
    const uint32_t *page = state->page + state->shared + 1, count = store->run_pages;
    const int64_t each = store->pages->page_bytes;
    bool good = true;
    for (uint32_t i = 0, n; good && i < count; i += n) {
        for (n = 1; i + n < count && page[i + n] == page[i] + n; n++)
            ;
        const int64_t left = store->run_bytes - i * each, bytes = left < n * each ? left : n * each;
        uint8_t *kept = pages_at(store->pages, page[i]), *own = run + i * each;
        good = device_copy(out ? own : kept, out ? kept : own, bytes);
    }
    return good;
}

bool store_copy_out(const struct store *store, const struct cache_state *state, void *tail, void *run)
{
    const struct pages *pages = store->pages;
    return device_copy(tail, pages_at(pages, state->page[state->shared]), pages->page_bytes) &&
           copy_run(store, state, run, true);
}

static bool copy_in(const struct store *store, const struct cache_state *state, const struct cache_source *source)
{
    const struct pages *pages = store->pages;
    bool good = true;
    if (state->page[state->shared] != source->table[state->shared])
        good = device_copy(pages_at(pages, state->page[state->shared]), pages_at(pages, source->table[state->shared]),
                           pages->page_bytes);
    return good && copy_run(store, state, source->run, false);
}

// Pages that states would hold more of with a state of these shared pages.
static uint32_t more_pages(const struct store *store, const uint32_t *table, uint32_t shared)
{
    uint32_t more = 1 + store->run_pages;
    for (uint32_t i = 0; i < shared; i++)
        more += store->pages->states[table[i]] == 0;
    return more;
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// A state whose pages are claimed and hold nothing yet; NULL when there is no room.
static struct cache_state *claim(struct store *store, const struct cache_source *source, bool live)
{
    const uint32_t shared = (uint32_t)((source->length - 1) / store->page), own = 1 + store->run_pages;
    struct pages *pages = store->pages;
    if (pages->free_count + pages->reclaimable < own)
        return NULL; // lanes hold too much for that
    struct cache_state *s = malloc(sizeof *s + (shared + own) * sizeof s->page[0]);
    if (!s) {
        store->counters.failed++;
        return NULL;
    }
    *s = (struct cache_state){.shared = shared};
    while (pages->kept + more_pages(store, source->table, shared) > store->budget || pages->free_count < own)
        if (!store_evict(store, live)) {
            free(s);
            return NULL;
        }
    for (uint32_t i = 0; i < shared; i++) {
        s->page[s->page_count++] = source->table[i];
        pages_keep(pages, source->table[i]);
    }
#ifdef ENGINE_TEST
    if (cache_test_share_tail) {
        s->page[s->page_count++] = source->table[shared];
        pages_keep(pages, source->table[shared]);
    }
#endif
    const uint32_t first = s->page_count;
    while (s->page_count < shared + own && pages_claim_kept(pages, &s->page[s->page_count]))
        s->page_count++;
    qsort(s->page + first, s->page_count - first, sizeof s->page[0], by_number); // neighbours are copied at once
    return s;
}

// The state of these ids at this length, or NULL.
static struct cache_state *same_state(const struct store *store, const struct cache_ids *ids, int length)
{
    for (struct cache_state *s = store->first; s; s = s->next)
        if (s->length == length && common(store, s->ids, ids) >= length)
            return s;
    return NULL;
}

struct cache_state *store_keep(struct store *store, struct cache_ids *ids, const struct cache_source *source,
                               enum keep_kind kind, bool live)
{
    const uint32_t all = (uint32_t)((source->length - 1) / store->page) + 1 + store->run_pages;
    while (!enter(store, ids))
        if (!store_evict(store, live))
            return NULL;
    struct cache_state *s = same_state(store, ids, source->length);
    if (s && (s->follows || !source->follows)) {
        s->kind = kind > s->kind ? kind : s->kind;
        s->rewind = s->rewind || kind == KEEP_REWIND;
        store_touch(store, s);
        return s;
    }
    if (s)
        store_forget(store, s); // the head's cells were missing
    if (all > store->budget) {
        store->counters.refused++;
        return NULL;
    }
    s = claim(store, source, live);
    if (!s)
        return NULL;
    s->ids = ids;
    ids->refs++;
    s->length = source->length;
    s->kind = kind;
    s->rewind = kind == KEEP_REWIND;
    s->follows = source->follows;
    s->serial = ++store->serials;
    s->since = engine_seconds();
    s->next = store->first;
    store->first = s;
    store->counters.states++;
    store_touch(store, s);
    if (!copy_in(store, s, source)) {
        store->counters.failed++;
        store_forget(store, s);
        return NULL;
    }
    store->counters.saved++;
    return s;
}
