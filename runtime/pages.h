// SPDX-License-Identifier: Apache-2.0
//
// The page pool: one arena of equal pages. Cache pages come from the bottom, runs (consecutive pages for a lane's recurrent
// states) from the top. A page is held by lanes and by kept states, by any number of each, or free. A page that only states hold
// can be had back by giving the states up: it is reclaimable.
// Invariants: claimed + free == all pages; promised <= free + reclaimable, so that a stream that was admitted never fails to
// grow; a page that is written is held by one lane and by nothing else; which page a lane gets never changes a bit.
// Built with PAGES_DEBUG, a page that was given back is poisoned, the poison must be whole when it is claimed again, and
// pages_check compares the generation tags that a table was filled with; a fault ends the process with one line.

#ifndef PAGES_H
#define PAGES_H

#include "runtime/error.h"
#include <stdbool.h>
#include <stdint.h>

enum page_order { PAGES_IDENTITY, PAGES_REVERSED, PAGES_SHUFFLED };

struct pages {
    uint8_t *arena;
    int64_t page_bytes;
    uint32_t count, claimed, promised;
    uint32_t low;         // pages below this are handed out first; the rest is for runs as long as that lasts
    uint32_t free_count;  // of the stack
    uint32_t *free;       // stack of free low pages; the top is handed out next
    uint16_t *lanes;      // [count] lanes that hold the page
    uint16_t *states;     // [count] kept states that hold it
    uint32_t kept;        // pages that states hold
    uint32_t reclaimable; // pages that only states hold
    // Gives up one state and true, or false when there is none; NULL: no states are kept. Called by a claim that finds no page.
    bool (*reclaim)(void *user);
    void *reclaim_user;
    uint32_t *tag;       // [count] how often the page was given back
    uint32_t most;       // most pages that were ever claimed at once
    uint64_t generation; // grows when the arena is replaced: part of every graph key
};

// Maps an arena of count pages (memory is touched when it is used), of which the highest run_zone are kept for runs while
// others are free. False with the size when that fails.
bool pages_open(struct pages *pages, uint32_t count, uint32_t run_zone, int64_t page_bytes, enum page_order order,
                struct error *error);
void pages_close(struct pages *pages);

// Pages that no lane has claimed and that are promised to nobody. None while a lane has begun to share pages that promises count on,
// until its own promise is made or the pages are given back.
static inline uint32_t pages_available(const struct pages *pages)
{
    const uint32_t open = pages->count - pages->claimed + pages->reclaimable;
    return open > pages->promised ? open - pages->promised : 0;
}

static inline bool pages_held(const struct pages *pages, uint32_t page)
{
    return pages->lanes[page] || pages->states[page];
}

// Sets `need` pages aside for a stream, or false when fewer are available. Each claim for it takes one from *promise.
bool pages_promise(struct pages *pages, uint32_t need, uint32_t *promise);
// Gives the rest of a promise back.
void pages_unpromise(struct pages *pages, uint32_t *promise);

// One page against a promise; false when the promise is used up.
bool pages_claim(struct pages *pages, uint32_t *promise, uint32_t *page);
// Another lane holds the page too: of a kept state, to be read only.
void pages_share(struct pages *pages, uint32_t page);
// A lane holds the page no more. The device must have drained everything that touches it.
void pages_release(struct pages *pages, uint32_t page);

// A state holds the page too, which a lane or a state holds already.
void pages_keep(struct pages *pages, uint32_t page);
// A free page for a state, none of those that are kept for runs; false when there is none.
bool pages_claim_kept(struct pages *pages, uint32_t *page);
// A state holds the page no more.
void pages_forget(struct pages *pages, uint32_t page);

// `length` consecutive pages, the highest that are free, against a promise; false when there is no such gap. What lies in
// them is whatever was there before.
bool pages_claim_run(struct pages *pages, uint32_t length, uint32_t *promise, uint32_t *first);
void pages_release_run(struct pages *pages, uint32_t first, uint32_t length);

// PAGES_DEBUG: every page of the table must be claimed and of the generation that tags say, and those from `written` on must be
// the lane's alone.
void pages_check(const struct pages *pages, const uint32_t *table, const uint32_t *tags, int32_t count,
                 int32_t written);

static inline uint8_t *pages_at(const struct pages *pages, uint32_t page)
{
    return pages->arena + (int64_t)page * pages->page_bytes;
}

#endif
