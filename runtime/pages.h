// SPDX-License-Identifier: Apache-2.0
//
// The page pool: one arena of equal pages. Cache pages come from the bottom, runs (consecutive pages for a lane's recurrent
// states) from the top. A page belongs to nobody or to one lane.
// Invariants: claimed + free == all pages; promised <= free, so that a stream that was admitted never fails to grow; a page is
// never handed out twice; which page a lane gets never changes a bit.
// Built with PAGES_DEBUG, a page that was given back is poisoned, the poison must be whole when it is claimed again, and
// pages_check compares the generation tags that a table was filled with; a fault ends the process with one line.

#ifndef PAGES_H
#define PAGES_H

#include "runtime/error.h"
#include <stdint.h>

enum page_order { PAGES_IDENTITY, PAGES_REVERSED, PAGES_SHUFFLED };

struct pages {
    uint8_t *arena;
    int64_t page_bytes;
    uint32_t count, claimed, promised;
    uint32_t low;        // pages below this are handed out first; the rest is for runs as long as that lasts
    uint32_t free_count; // of the stack
    uint32_t *free;      // stack of free low pages; the top is handed out next
    uint8_t *used;       // [count] 1: claimed
    uint32_t *tag;       // [count] how often the page was given back
    uint32_t most;       // most pages that were ever claimed at once
    uint64_t generation; // grows when the arena is replaced: part of every graph key
};

// Maps an arena of count pages (memory is touched when it is used), of which the highest run_zone are kept for runs while
// others are free. False with the size when that fails.
bool pages_open(struct pages *pages, uint32_t count, uint32_t run_zone, int64_t page_bytes, enum page_order order,
                struct error *error);
void pages_close(struct pages *pages);

// Pages that nobody has claimed and that are promised to nobody.
static inline uint32_t pages_available(const struct pages *pages)
{
    return pages->count - pages->claimed - pages->promised;
}

// Sets `need` pages aside for a stream, or false when fewer are available. Each claim for it takes one from *promise.
bool pages_promise(struct pages *pages, uint32_t need, uint32_t *promise);
// Gives the rest of a promise back.
void pages_unpromise(struct pages *pages, uint32_t *promise);

// One page against a promise; false when the promise is used up.
bool pages_claim(struct pages *pages, uint32_t *promise, uint32_t *page);
// The device must have drained everything that touches the page.
void pages_release(struct pages *pages, uint32_t page);

// `length` consecutive pages, the highest that are free, against a promise; false when there is no such gap. Zeroed.
bool pages_claim_run(struct pages *pages, uint32_t length, uint32_t *promise, uint32_t *first);
void pages_release_run(struct pages *pages, uint32_t first, uint32_t length);

// PAGES_DEBUG: every page of the table must be claimed and of the generation that tags say.
void pages_check(const struct pages *pages, const uint32_t *table, const uint32_t *tags, int32_t count);

static inline uint8_t *pages_at(const struct pages *pages, uint32_t page)
{
    return pages->arena + (int64_t)page * pages->page_bytes;
}

#endif
