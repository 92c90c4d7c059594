// SPDX-License-Identifier: Apache-2.0
//
// The page pool. See pages.h.

#include "runtime/pages.h"
#include "runtime/device.h"
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xff }; // not a number in every encoding of a cache

#ifdef PAGES_DEBUG
static void fault(const char *what, uint32_t page)
{
    fprintf(stderr, "pianola: page %u %s\n", page, what);
    abort();
}
#endif

static void order_free(struct pages *p, enum page_order order)
{
    for (uint32_t i = 0; i < p->low; i++)
        p->free[i] = order == PAGES_REVERSED ? i : p->low - 1 - i;
    uint64_t state = 1;
    for (uint32_t i = p->low; order == PAGES_SHUFFLED && i > 1; i--) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t j = (uint32_t)((state >> 33) % i), t = p->free[i - 1];
        p->free[i - 1] = p->free[j];
        p->free[j] = t;
    }
}

static void pages_free_tables(struct pages *pages)
{
    free(pages->free);
    free(pages->lanes);
    free(pages->states);
    free(pages->tag);
    *pages = (struct pages){0};
}

bool pages_open(struct pages *pages, uint32_t count, uint32_t run_zone, int64_t page_bytes, enum page_order order,
                struct error *error)
{
    int64_t bytes;
    uint32_t low = run_zone < count ? count - run_zone : 0;
    *pages = (struct pages){.count = count, .low = low, .free_count = low, .page_bytes = page_bytes, .generation = 1};
    if (__builtin_mul_overflow((int64_t)count, page_bytes, &bytes) || bytes <= 0)
        return error_set(error, "%u pages of %lld bytes are too many", count, (long long)page_bytes);
    void *arena = device_alloc(bytes, "the page pool", error);
    pages->free = malloc((low + 1) * sizeof *pages->free);
    pages->lanes = calloc(count, sizeof *pages->lanes);
    pages->states = calloc(count, sizeof *pages->states);
    pages->tag = calloc(count, sizeof *pages->tag);
    if (!arena || !pages->free || !pages->lanes || !pages->states || !pages->tag) {
        device_free(arena, bytes);
        pages_free_tables(pages);
        return arena ? error_set(error, "no memory for the tables of %u pages", count) : false;
    }
    pages->arena = arena;
    order_free(pages, order);
    return true;
}

void pages_close(struct pages *pages)
{
    device_free(pages->arena, (int64_t)pages->count * pages->page_bytes);
    pages_free_tables(pages);
}

bool pages_promise(struct pages *pages, uint32_t need, uint32_t *promise)
{
    if (need > pages_available(pages))
        return false;
    pages->promised += need;
    *promise += need;
    return true;
}

void pages_unpromise(struct pages *pages, uint32_t *promise)
{
    pages->promised -= *promise;
    *promise = 0;
}

// Marks a free page as claimed. Its poison must be whole: nobody may have written to it since it was given back.
static void take(struct pages *pages, uint32_t page)
{
#ifdef PAGES_DEBUG
    const uint8_t *bytes = pages_at(pages, page);
    for (int64_t i = 0; pages->tag[page] && i < pages->page_bytes; i++)
        if (bytes[i] != POISON)
            fault("was written to after it was given back", page);
    if (pages_held(pages, page))
        fault("is handed out twice", page);
#else
    (void)page;
#endif
    pages->claimed++;
    pages->most = pages->claimed > pages->most ? pages->claimed : pages->most;
}

static void take_promised(struct pages *pages, uint32_t page, uint32_t *promise)
{
    take(pages, page);
    pages->lanes[page] = 1;
    pages->promised--;
    --*promise;
}

// Gives up one state, so that the claim that found no page may look again.
static bool reclaim(struct pages *pages)
{
    return pages->reclaimable > 0 && pages->reclaim && pages->reclaim(pages->reclaim_user);
}

bool pages_claim(struct pages *pages, uint32_t *promise, uint32_t *page)
{
    if (*promise == 0)
        return false;
    while (pages->free_count == 0 && reclaim(pages)) // before a run's place is taken
        ;
    bool found = pages->free_count > 0;
    if (found)
        *page = pages->free[--pages->free_count];
    for (uint32_t i = pages->low; !found && i < pages->count; i++) {
        found = !pages_held(pages, i);
        *page = i;
    }
    if (found)
        take_promised(pages, *page, promise);
    return found;
}

// Nobody holds the page any more.
static void give_back(struct pages *pages, uint32_t page)
{
#ifdef PAGES_DEBUG
    memset(pages_at(pages, page), POISON, (size_t)pages->page_bytes);
#endif
    pages->tag[page]++;
    pages->claimed--;
    if (page < pages->low)
        pages->free[pages->free_count++] = page;
}

// Holders are counted; a fault here means that somebody gave back what was not theirs.
static void held(const struct pages *pages, const uint16_t *holders, uint32_t page)
{
#ifdef PAGES_DEBUG
    if (page >= pages->count || !holders[page])
        fault("is given back, but nobody holds it", page);
#else
    (void)pages, (void)holders, (void)page;
#endif
}

void pages_share(struct pages *pages, uint32_t page)
{
    pages->reclaimable -= pages->lanes[page] == 0;
    pages->lanes[page]++;
}

void pages_release(struct pages *pages, uint32_t page)
{
    held(pages, pages->lanes, page);
    if (--pages->lanes[page] > 0)
        return;
    if (pages->states[page])
        pages->reclaimable++;
    else
        give_back(pages, page);
}

void pages_keep(struct pages *pages, uint32_t page)
{
    pages->kept += pages->states[page] == 0;
    pages->states[page]++;
}

bool pages_claim_kept(struct pages *pages, uint32_t *page)
{
    if (pages->free_count == 0)
        return false;
    *page = pages->free[--pages->free_count];
    take(pages, *page);
    pages->states[*page] = 1;
    pages->kept++;
    pages->reclaimable++;
    return true;
}

void pages_forget(struct pages *pages, uint32_t page)
{
    held(pages, pages->states, page);
    if (--pages->states[page] > 0)
        return;
    pages->kept--;
    if (pages->lanes[page])
        return;
    pages->reclaimable--;
    give_back(pages, page);
}

// Takes used pages out of the stack, so that it holds exactly the free ones.
static void sweep(struct pages *pages)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < pages->free_count; i++)
        if (!pages_held(pages, pages->free[i]))
            pages->free[kept++] = pages->free[i];
    pages->free_count = kept;
}

static bool claim_gap(struct pages *pages, uint32_t length, uint32_t *promise, uint32_t *first)
{
    uint32_t gap = 0;
    for (uint32_t i = pages->count; *promise >= length && i-- > 0;) {
        gap = pages_held(pages, i) ? 0 : gap + 1;
        if (gap < length)
            continue;
        for (uint32_t k = 0; k < length; k++)
            take_promised(pages, i + k, promise);
        if (i < pages->low)
            sweep(pages);
        *first = i;
        return true;
    }
    return false;
}

bool pages_claim_run(struct pages *pages, uint32_t length, uint32_t *promise, uint32_t *first)
{
    do
        if (claim_gap(pages, length, promise, first))
            return true;
    while (*promise >= length && reclaim(pages));
    return false;
}

void pages_release_run(struct pages *pages, uint32_t first, uint32_t length)
{
    for (uint32_t i = length; i-- > 0;)
        pages_release(pages, first + i);
}

void pages_check(const struct pages *pages, const uint32_t *table, const uint32_t *tags, int32_t count, int32_t written)
{
#ifdef PAGES_DEBUG
    for (int32_t i = 0; i < count; i++)
        if (table[i] >= pages->count || !pages->lanes[table[i]] || pages->tag[table[i]] != tags[i])
            fault("is in a table, but of another generation", table[i]);
        else if (i >= written && (pages->lanes[table[i]] > 1 || pages->states[table[i]]))
            fault("is to be written, but others hold it too", table[i]);
#else
    (void)pages, (void)table, (void)tags, (void)count, (void)written;
#endif
}
