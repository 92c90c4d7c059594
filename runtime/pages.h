// SPDX-License-Identifier: Apache-2.0
//
// The page pool: one arena of equal pages. Cache pages come from the bottom, runs (consecutive pages for a lane's recurrent
// states) from the top. A page belongs to nobody or to one lane.
// Invariants: claimed + free == all pages; a page is never handed out twice; which page a lane gets never changes a bit.

#ifndef PAGES_H
#define PAGES_H

#include "runtime/error.h"
#include <stdint.h>

enum page_order { PAGES_IDENTITY, PAGES_REVERSED, PAGES_SHUFFLED };

struct pages {
    uint8_t *arena;
    int64_t page_bytes;
    uint32_t count, free_count;
    uint32_t *free;      // stack of free pages; the top is handed out next
    uint8_t *used;       // [count] 1: claimed
    uint64_t generation; // grows when the arena is replaced: part of every graph key
};

// Maps an arena of count pages (memory is touched when it is used). False with the size when that fails.
bool pages_open(struct pages *pages, uint32_t count, int64_t page_bytes, enum page_order order, struct error *error);
void pages_close(struct pages *pages);

// One page, or false when none is free.
bool pages_claim(struct pages *pages, uint32_t *page);
void pages_release(struct pages *pages, uint32_t page);

// `length` consecutive pages, the highest that are free; false when there is no such gap. Zeroed.
bool pages_claim_run(struct pages *pages, uint32_t length, uint32_t *first);
void pages_release_run(struct pages *pages, uint32_t first, uint32_t length);

static inline uint8_t *pages_at(const struct pages *pages, uint32_t page)
{
    return pages->arena + (int64_t)page * pages->page_bytes;
}

#endif
