// SPDX-License-Identifier: Apache-2.0
//
// The page pool. See pages.h.

#include "runtime/pages.h"
#include "runtime/device.h"
#include <stdlib.h>
#include <string.h>

static void order_free(struct pages *p, enum page_order order)
{
    for (uint32_t i = 0; i < p->count; i++)
        p->free[i] = order == PAGES_REVERSED ? i : p->count - 1 - i;
    uint64_t state = 1;
    for (uint32_t i = p->count; order == PAGES_SHUFFLED && i > 1; i--) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t j = (uint32_t)((state >> 33) % i), t = p->free[i - 1];
        p->free[i - 1] = p->free[j];
        p->free[j] = t;
    }
}

bool pages_open(struct pages *pages, uint32_t count, int64_t page_bytes, enum page_order order, struct error *error)
{
    int64_t bytes;
    *pages = (struct pages){.count = count, .free_count = count, .page_bytes = page_bytes, .generation = 1};
    if (__builtin_mul_overflow((int64_t)count, page_bytes, &bytes) || bytes <= 0)
        return error_set(error, "%u pages of %lld bytes are too many", count, (long long)page_bytes);
    void *arena = device_alloc(bytes, "the page pool", error);
    pages->free = malloc(count * sizeof *pages->free);
    pages->used = calloc(count, 1);
    if (!arena || !pages->free || !pages->used) {
        device_free(arena, bytes);
        free(pages->free);
        free(pages->used);
        *pages = (struct pages){0};
        return arena ? error_set(error, "no memory for the tables of %u pages", count) : false;
    }
    pages->arena = arena;
    order_free(pages, order);
    return true;
}

void pages_close(struct pages *pages)
{
    device_free(pages->arena, (int64_t)pages->count * pages->page_bytes);
    free(pages->free);
    free(pages->used);
    *pages = (struct pages){0};
}

bool pages_claim(struct pages *pages, uint32_t *page)
{
    while (pages->free_count > 0) {
        uint32_t candidate = pages->free[--pages->free_count];
        if (!pages->used[candidate]) { // a run may have taken it from the middle of the stack
            pages->used[candidate] = 1;
            *page = candidate;
            return true;
        }
    }
    return false;
}

void pages_release(struct pages *pages, uint32_t page)
{
    pages->used[page] = 0;
    pages->free[pages->free_count++] = page;
}

// Takes used pages out of the stack, so that it holds exactly the free ones.
static void sweep(struct pages *pages)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < pages->free_count; i++)
        if (!pages->used[pages->free[i]])
            pages->free[kept++] = pages->free[i];
    pages->free_count = kept;
}

bool pages_claim_run(struct pages *pages, uint32_t length, uint32_t *first)
{
    uint32_t gap = 0;
    for (uint32_t i = pages->count; i-- > 0;) {
        gap = pages->used[i] ? 0 : gap + 1;
        if (gap < length)
            continue;
        memset(pages->used + i, 1, length);
        sweep(pages);
        device_zero(pages_at(pages, i), length * pages->page_bytes);
        *first = i;
        return true;
    }
    return false;
}

void pages_release_run(struct pages *pages, uint32_t first, uint32_t length)
{
    for (uint32_t i = length; i-- > 0;)
        pages_release(pages, first + i);
}
