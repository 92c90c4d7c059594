// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of --parallel; see fit.h. Sizes come from memory_plan.c, which engine_open uses too.

#include "runtime/server/fit.h"
#include "runtime/cli.h"
#include "runtime/device.h"
#include "runtime/pool.h"

#include <string.h>

// Part of the memory that is left alone: the process, its graphs, and others.
static const double RESERVE = 0.08;

static bool plan_of(struct memory_plan *plan, const struct engine_options *o, int lanes, struct error *error)
{
    const struct memory_request request = {.context = o->context,
                                           .lanes = lanes,
                                           .page = o->page,
                                           .pool_pages = o->pool_pages,
                                           .threads = o->threads ? o->threads : pool_cores(),
                                           .kv_cache = o->kv_cache,
                                           .no_rewind = o->no_rewind,
                                           .cache_bytes = o->cache_bytes};
    return memory_plan_make(plan, &request, error);
}

// What must be there. On a device of its own the pool takes what is left: it must hold the states of all streams and one whole
// context, and long streams and kept states may wait for each other.
static int64_t need(const struct memory_plan *plan)
{
    const int64_t least = (plan->lane_pages + (int64_t)plan->lanes * plan->run_pages) * plan->page_bytes;
    if (device_apart)
        return plan->total - plan->kv_bytes - plan->run_bytes - plan->cache_bytes - plan->scratch_bytes + least;
    return plan->total;
}

void fit_print(const struct fit *fit)
{
    const struct memory_plan *p = &fit->plan;
    char weights[24], arena[24], stream[24], cache[24], sum[24], left[24];
    fprintf(
        stderr,
        "memory: weights %s, arena %s, %d stream%s of %d positions at %s each, prompt cache up to %s; %s of the %s "
        "that "
        "were free\n",
        cli_bytes(weights, model.weight_bytes), cli_bytes(arena, model.arena_bytes), p->lanes, plural(p->lanes),
        p->context,
        cli_bytes(stream, (p->kv_bytes + p->run_bytes + p->tables_bytes + p->kept_bytes + p->draw_bytes) / p->lanes),
        cli_bytes(cache, p->cache_bytes), cli_bytes(sum, need(p)),
        fit->free_bytes < 0 ? "unknown bytes" : cli_bytes(left, fit->free_bytes));
}

// The most lanes, up to `most`, whose plan fits; 0: not even one.
static int most_lanes(const struct engine_options *o, int most, int64_t budget)
{
    struct memory_plan plan;
    while (most > 0 && (!plan_of(&plan, o, most, NULL) || need(&plan) > budget))
        most--;
    return most;
}

// The most of --pool-pages that the streams leave room for; 0: too few for one stream.
static int64_t most_pages(const struct memory_plan *plan, int64_t budget)
{
    const int64_t pages = (budget - (plan->total - plan->pages * plan->page_bytes)) / plan->page_bytes;
    return pages >= plan->run_pages + 2 ? pages : 0;
}

static bool refuse(const struct engine_options *o, int wanted, int fits, int64_t free_bytes, int64_t budget,
                   struct error *error)
{
    struct memory_plan plan;
    char takes[24], left[24];
    if (!plan_of(&plan, o, wanted, error))
        return false;
    cli_bytes(takes, need(&plan));
    cli_bytes(left, free_bytes);
    const int64_t pages = o->pool_pages && !device_apart ? most_pages(&plan, budget) : 0;
    if (pages)
        return error_set(error,
                         "--pool-pages %d takes %s with the model and the rest, and %s are free: %lld fit beside %d "
                         "stream%s of %d positions",
                         o->pool_pages, takes, left, (long long)pages, wanted, plural(wanted), plan.context);
    if (fits)
        return error_set(error,
                         "--parallel %d needs %s for its streams of %d positions and the rest, and %s are free: serve "
                         "--parallel %d, or lower --context or --prompt-cache-gib",
                         wanted, takes, plan.context, left, fits);
    return error_set(error,
                     "one stream of %d positions takes %s with the model and the prompt cache, and %s are free: lower "
                     "--context or --prompt-cache-gib, or free memory",
                     plan.context, takes, left);
}

// Kept states where nobody said how much they may take: what the streams leave, down to nothing.
static int64_t spare_cache(const struct engine_options *o, int lanes, int64_t budget)
{
    struct memory_plan plan;
    if (!plan_of(&plan, o, lanes, NULL))
        return 0;
    const int64_t room = budget - (need(&plan) - plan.cache_bytes);
    const int64_t bytes = room < plan.cache_bytes ? room : plan.cache_bytes;
    return bytes >= (plan.run_pages + 1ll) * plan.page_bytes ? bytes : 0;
}

bool fit_lanes(struct fit *fit, struct engine_options *options, int wanted, struct error *error)
{
    struct memory_plan plan;
    struct engine_options bare = *options;
    const bool spare = options->cache_bytes < 0 && !device_apart; // a device of its own: engine_open sees what is left
    const int64_t free_bytes = device_free_bytes();
    const int64_t budget = free_bytes < 0 ? INT64_MAX : (int64_t)((double)free_bytes * (1 - RESERVE));
    if (spare)
        bare.cache_bytes = 0;
    if (!plan_of(&plan, &bare, wanted ? wanted : model.lanes, error))
        return false;
    const int fits = most_lanes(&bare, wanted ? wanted : model.lanes, budget);
    if (fits < (wanted ? wanted : 1))
        return refuse(&bare, wanted ? wanted : 1, fits, free_bytes, budget, error);
    options->lanes = fits;
    if (spare)
        options->cache_bytes = spare_cache(options, fits, budget);
    fit->free_bytes = free_bytes;
    return plan_of(&fit->plan, options, fits, error);
}
