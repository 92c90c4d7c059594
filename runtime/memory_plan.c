// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of memory: pages of whole positions, a run of whole pages a lane. See memory_plan.h.

#include "runtime/memory_plan.h"
#include "kernels/cpu/kernel.h"
#include "runtime/device.h"
#include "runtime/history.h"
#include "runtime/model.h"
#include <inttypes.h>
#include <string.h>

enum { DEFAULT_CONTEXT = 8192, DEFAULT_PAGE = 64, PAGE_ALIGN = 64 };

const char *const kv_kinds[KV_KINDS] = {"f32", "bf16", "fp8"};

static const int64_t CACHE_MOST = (int64_t)16 << 30; // where nobody says how much

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

int memory_context(int asked)
{
    return asked ? asked : model.max_context < DEFAULT_CONTEXT ? model.max_context : DEFAULT_CONTEXT;
}

static bool choose(struct memory_plan *p, const struct memory_request *r, struct error *error)
{
    p->lanes = r->lanes ? r->lanes : 1;
    if (p->lanes < 1 || p->lanes > model.lanes)
        return error_set(error, "--lanes: this build has 1 to %d, found %d", model.lanes, p->lanes);
    p->context = memory_context(r->context);
    if (p->context < 1 || p->context > model.max_context)
        return error_set(error, "--context: this model takes 1 to %d, found %d", model.max_context, p->context);
    p->page = r->page ? r->page : DEFAULT_PAGE;
    if (p->page < 4 || p->page % 4 || p->page > 4096)
        return error_set(error, "--page: a multiple of 4 up to 4096 is expected, found %d", p->page);
    const char *kv = r->kv_cache ? r->kv_cache : kv_kinds[device_kv_encoding];
    for (p->kv_encoding = 0; p->kv_encoding < KV_KINDS; p->kv_encoding++)
        if (!strcmp(kv, kv_kinds[p->kv_encoding]))
            return true;
    return error_set(error, "--kv-cache: f32, bf16 or fp8 is expected, found %s", kv);
}

// A smaller pool lets streams wait for each other; it must hold one of them.
static bool choose_pool(struct memory_plan *p, const struct memory_request *r, struct error *error)
{
    const uint32_t runs = (uint32_t)p->lanes * p->run_pages;
    p->pages = r->pool_pages ? (uint32_t)r->pool_pages : p->whole_pages;
    if (p->pages < p->run_pages + 2)
        return error_set(error,
                         "--pool-pages: one stream needs at least %u pages of %d positions, %u of them for its state, "
                         "found %u; %d lane%s with whole contexts would have %u",
                         p->run_pages + 2, p->page, p->run_pages, p->pages, p->lanes, plural(p->lanes), p->whole_pages);
    p->run_bytes = (runs < p->pages ? runs : p->pages) * p->page_bytes;
    p->kv_bytes = p->pages * p->page_bytes - p->run_bytes;
    return true;
}

// Whole pages within the budget; at least one state of one page must fit.
static bool choose_cache(struct memory_plan *p, const struct memory_request *r, struct error *error)
{
    const int64_t lanes = p->pages * p->page_bytes, own = device_apart || lanes > CACHE_MOST ? CACHE_MOST : lanes;
    const int64_t pages = (r->cache_bytes < 0 ? own : r->cache_bytes) / p->page_bytes;
    const int64_t least = (int64_t)p->run_pages + 1;
    if (r->cache_bytes == 0 || (r->cache_bytes < 0 && pages < least))
        return true;
    if (pages < least)
        return error_set(error,
                         "the prompt cache needs at least %.1f MiB for one state, found %.1f MiB; 0 turns it off",
                         (double)(least * p->page_bytes) / (1 << 20), (double)r->cache_bytes / (1 << 20));
    if (r->pool_pages && pages < INT32_MAX && pages > INT32_MAX - p->pages)
        return error_set(error,
                         "--pool-pages: at most %" PRId64 " are possible beside the %" PRId64
                         " of the prompt cache, found %u",
                         INT32_MAX - pages, pages, p->pages);
    if (pages > INT32_MAX - p->pages)
        return error_set(error, "a prompt cache of %.1f GiB has too many pages; a larger --page is needed",
                         (double)r->cache_bytes / (1 << 30));
    p->cache_pages = (uint32_t)pages;
    p->cache_bytes = pages * p->page_bytes;
    return true;
}

bool memory_plan_make(struct memory_plan *plan, const struct memory_request *request, struct error *error)
{
    struct memory_plan p = {0};
    if (!choose(&p, request, error))
        return false;
    int64_t bytes = p.page * model.position_bytes[p.kv_encoding];
    p.page_bytes = bytes ? ceil_div(bytes, PAGE_ALIGN) * PAGE_ALIGN : (int64_t)PAGE_ALIGN * p.page;
    p.run_pages = (uint32_t)ceil_div(model.run_bytes, p.page_bytes);
    p.lane_pages = (int32_t)ceil_div((int64_t)p.context + MAX_WINDOW, p.page) + 1;
    int64_t pages = p.lanes * ((int64_t)p.lane_pages + p.run_pages);
    if (pages > INT32_MAX)
        return error_set(error, "--context %d needs %" PRId64 " pages; a larger --page or a smaller context is needed",
                         p.context, pages);
    p.whole_pages = (uint32_t)pages;
    if (!choose_pool(&p, request, error))
        return false;
    p.tables_bytes = p.lanes * (((int64_t)p.context + MAX_WINDOW + 2) * 4 + (int64_t)p.lane_pages * 4);
    if (!choose_cache(&p, request, error))
        return false;
    p.kept_bytes = request->no_rewind ? 0 : p.lanes * model.run_bytes;
    p.keep_bytes = p.cache_pages ? LANE_KEEPS * model.run_bytes : 0;
    p.history_bytes = history_bytes(model.vocabulary, p.context);
    p.mask_bytes = (int64_t)model.window * mask_words(model.vocabulary) * (int64_t)sizeof(uint32_t);
    p.draw_bytes = p.lanes * (p.history_bytes + p.mask_bytes);
    p.scratch_bytes = (int64_t)request->threads * KERNEL_SCRATCH;
    p.total = model.weight_bytes + model.arena_bytes + p.kv_bytes + p.run_bytes + p.cache_bytes + p.tables_bytes +
              p.kept_bytes + p.keep_bytes + p.draw_bytes + p.scratch_bytes;
    *plan = p;
    return true;
}

const char *memory_kv_note(int kv_encoding)
{
    static const char *const notes[KV_KINDS] = {
        NULL,
        "keys and values in bf16: logits move by thousandths, by more where a near tie of experts or blocks turns",
        "keys and values in E4M3 with a scale a row: logits move by hundredths, more at near ties; replies may differ",
    };
    return notes[kv_encoding];
}
