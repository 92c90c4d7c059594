// SPDX-License-Identifier: Apache-2.0
//
// Opening and closing an engine: the memory plan, the weights, lanes, passes and graphs. Afterwards nothing is allocated on the target
// but for graphs, which have their reserve and do without.

#include "runtime/engine_state.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t POOL_RESERVE = 512 << 20; // what the driver may still take
static const float DECODE_SHARE = 0.25f, MOST_SHARE = 0.9f;
// A reply beside a prompt waits for a chunk, so such chunks stay short on targets whose own are long.
static const int BUSY_CHUNK_MOST = 512;

static bool choose_pace(struct engine *e, struct error *error)
{
    struct engine_options *o = &e->options;
    if (o->pool_pages < 0 || o->round_rows < 0 || o->solo_chunk < 0 || o->busy_chunk < 0)
        return error_set(error, "pages of the pool, rows of a round and rows of a chunk must not be negative");
    o->solo_chunk = o->solo_chunk && o->solo_chunk < model.chunk ? o->solo_chunk : model.chunk;
    const int quarter = (model.chunk + 3) / 4;
    o->busy_chunk = o->busy_chunk ? o->busy_chunk : quarter < BUSY_CHUNK_MOST ? quarter : BUSY_CHUNK_MOST;
    o->busy_chunk = o->busy_chunk < model.chunk ? o->busy_chunk : model.chunk;
    o->decode_share = o->decode_share == 0 ? DECODE_SHARE : o->decode_share < 0 ? 0 : o->decode_share;
    o->decode_share = o->decode_share < MOST_SHARE ? o->decode_share : MOST_SHARE;
    return true;
}

static bool choose_sizes(struct engine *e, struct error *error)
{
    const struct engine_options *o = &e->options;
    const struct memory_request request = {.context = o->context,
                                           .lanes = o->lanes,
                                           .page = o->page,
                                           .pool_pages = o->pool_pages,
                                           .kv_cache = o->kv_cache,
                                           .no_rewind = o->no_rewind,
                                           .cache_bytes = o->cache_bytes};
    if (!memory_plan_make(&e->sizes, &request, error))
        return false;
    e->lanes = e->sizes.lanes;
    e->context = e->sizes.context;
    e->options.page = e->sizes.page;
    e->kv_encoding = e->sizes.kv_encoding;
    return choose_pace(e, error);
}

struct progress {
    double last;
    bool shown;
};

static void show_progress(void *user, uint64_t done, uint64_t total)
{
    struct progress *p = user;
    double now = engine_seconds();
    if (now - p->last < 0.5 || total < (64u << 20))
        return;
    p->last = now;
    p->shown = true;
    fprintf(stderr, "\rloading weights: %.1f of %.1f GiB", (double)done / (1 << 30), (double)total / (1 << 30));
}

// NAME.pack beside the binary.
static bool default_path(char *path, size_t size, struct error *error)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    if (n <= 0)
        return error_set(error, "the binary's folder is unknown; give --pack FILE");
    path[n] = 0;
    char *slash = strrchr(path, '/');
    size_t at = (size_t)(slash - path) + 1;
    if (at + strlen(model.name) + 6 > size)
        return error_set(error, "%s: the path is too long", path);
    snprintf(path + at, size - at, "%s.pack", model.name);
    return true;
}

static bool load_pack(struct engine *e, const struct pack_shape *shape, struct error *error)
{
    const struct engine_options *o = &e->options;
    if (!model.has_weights)
        return error_set(
            error, "this build has no weights (its checkpoint was a config alone): use bench --weights synthetic");
    if (embedded_pack && !o->pack)
        return pack_open_memory(&e->pack, embedded_pack, (uint64_t)(embedded_pack_end - embedded_pack), shape, error);
    char path[4096];
    if (!o->pack && !default_path(path, sizeof path, error))
        return false;
    struct progress progress = {0};
    bool ok = pack_open(&e->pack, o->pack ? o->pack : path, shape, o->map ? PACK_MAP : PACK_READ,
                        o->quiet ? NULL : show_progress, &progress, error);
    if (progress.shown)
        fprintf(stderr, "\n");
    return ok;
}

static bool load_weights(struct engine *e, struct error *error)
{
    struct pack_shape shape = {model.identity, (uint64_t)model.weight_bytes, (uint64_t)model.table_bytes};
    if (e->options.synthetic)
        return weights_synthetic(&e->weights, &e->pack, &shape, error);
    return load_pack(e, &shape, error) && weights_place(&e->weights, &e->pack, error);
}

// What the engine will claim, from the shapes alone, before anything loads.
static void make_plan(struct engine *e)
{
    struct engine_plan *p = &e->plan;
    int64_t rows = 0;
    for (int i = 0; i < PASS_COUNT; i++)
        rows += model.pass_rows[i];
    p->page_bytes = e->sizes.page_bytes;
    p->run_pages = e->sizes.run_pages;
    p->table_size = e->sizes.lane_pages;
    p->page_count = e->sizes.pages + e->sizes.cache_pages;
    p->pages = p->page_count * p->page_bytes;
    p->passes = PASS_COUNT * (int64_t)sizeof(struct pass) + rows * 3 * (int64_t)sizeof(int32_t);
    p->block = sizeof(struct round_block);
    p->arena = model.arena_bytes;
    p->tokens = (e->context + MAX_WINDOW + 2) * (int64_t)sizeof(int32_t);
    p->tables = p->table_size * (int64_t)sizeof(uint32_t);
    p->history = e->sizes.history_bytes;
    p->masks = e->sizes.mask_bytes;
    p->kept = e->sizes.kept_bytes / e->lanes;
    p->keeps = e->sizes.keep_bytes;
}

// What was allocated is what was planned: a buffer that is added without its line in the plan ends here, not in a full memory.
static bool check_plan(const struct engine *e, struct error *error)
{
    const struct engine_plan *p = &e->plan;
    int64_t planned =
        p->passes + p->block + p->arena + p->pages + e->lanes * (p->tokens + p->tables + p->history + p->masks);
    int64_t claimed = e->passes.bytes + e->block.bytes + model.arena_bytes + e->pages.count * e->pages.page_bytes;
    for (int i = 0; i < e->lanes; i++)
        claimed += e->slot[i].tokens.bytes + e->slot[i].table.bytes + e->slot[i].masks.bytes +
                   history_claimed(&e->slot[i].history, model.vocabulary);
    if (claimed != planned || p->run_pages * p->page_bytes < model.run_bytes)
        return error_set(error, "the memory plan is wrong: %" PRId64 " bytes were planned, %" PRId64 " are claimed",
                         planned, claimed);
    return true;
}

// The blocks of all passes, with the arrays of their rows behind them.
static bool open_passes(struct engine *e, struct error *error)
{
    const int64_t head = PASS_COUNT * (int64_t)sizeof(struct pass);
    if (!mirror_open(&e->passes, e->plan.passes, "the rows of a pass", error))
        return false;
    struct pass *pass = e->passes.host;
    int32_t *at = (int32_t *)(void *)((uint8_t *)e->passes.device + head);
    for (int i = 0; i < PASS_COUNT; i++) {
        pass[i].lane = at;
        pass[i].position = at + model.pass_rows[i];
        pass[i].token = at + 2 * model.pass_rows[i];
        at += 3 * model.pass_rows[i];
    }
    mirror_push(&e->passes, 0, head);
    return true;
}

static enum page_order page_order(const char *name)
{
    if (name && !strcmp(name, "reversed"))
        return PAGES_REVERSED;
    return name && !strcmp(name, "shuffled") ? PAGES_SHUFFLED : PAGES_IDENTITY;
}

static bool open_slot(struct engine *e, int i, struct error *error)
{
    struct slot *slot = &e->slot[i];
    slot->lane = &engine_block(e)->lane[i];
    slot->draft = i + 1;
    slot->tags = calloc((size_t)e->plan.table_size, sizeof *slot->tags);
    if (!slot->tags || !copy_index_open(&slot->copy))
        return error_set(error, "no memory for a lane");
    if (!e->options.no_rewind && !(slot->kept_run = device_alloc(e->plan.kept, "a kept state", error)))
        return false;
    return mirror_open(&slot->tokens, e->plan.tokens, "a lane's tokens", error) &&
           mirror_open(&slot->table, e->plan.tables, "a lane's page table", error) &&
           mirror_open(&slot->masks, e->plan.masks, "a lane's masks", error) &&
           history_open(&slot->history, model.vocabulary, e->context, error);
}

// What is too much, and the largest context that fits.
static bool too_large(const struct engine *e, int64_t room, struct error *error)
{
    const struct engine_plan *p = &e->plan;
    const double gib = 1 << 30;
    const int64_t pages = room / p->page_bytes - p->run_pages - 1;
    const int64_t context = pages * e->options.page - MAX_WINDOW;
    if (context < 1)
        return error_set(error,
                         "%.2f GiB of GPU memory are left for streams, and the state of one takes %.2f GiB: a smaller "
                         "encoding or a larger card is needed",
                         (double)room / gib, (double)((p->run_pages + 2) * p->page_bytes) / gib);
    return error_set(
        error,
        "one stream of --context %d takes %.2f GiB and %.2f GiB of GPU memory are left for streams: one of "
        "--context %lld fits, or several of shorter ones",
        e->context, (double)((e->sizes.lane_pages + (int64_t)p->run_pages) * p->page_bytes) / gib, (double)room / gib,
        (long long)context);
}

// What --pool-pages asks for must fit as it is: nobody who named a number wants another.
static bool check_pool(const struct engine *e, int64_t room, struct error *error)
{
    const int64_t page = e->plan.page_bytes, fits = room > 0 ? room / page : 0;
    if (!e->options.pool_pages || room < 0 || fits >= e->sizes.pages)
        return true;
    return error_set(error, "--pool-pages: %u take %.2f GiB and %.2f GiB of %s are left for them: %lld fit",
                     e->sizes.pages, (double)(e->sizes.pages * page) / (1 << 30), (double)room / (1 << 30),
                     device_apart ? "GPU memory" : "memory", (long long)fits);
}

// The pool comes last: on a device of its own it takes no more than what everything else has left, less a reserve for graphs.
static bool open_pool(struct engine *e, struct error *error)
{
    struct engine_plan *p = &e->plan;
    const int64_t free_bytes = device_free_bytes(), room = free_bytes - GRAPH_BYTES - POOL_RESERVE,
                  fits = room / p->page_bytes;
    if (!check_pool(e, device_apart ? room > 0 ? room : 0 : free_bytes, error))
        return false;
    if (device_apart && fits < p->page_count) {
        if (!e->options.pool_pages && fits < e->sizes.lane_pages + (int64_t)p->run_pages)
            return too_large(e, room, error);
        if (!e->options.quiet && fits < e->sizes.pages)
            fprintf(
                stderr,
                "the pool has %lld pages of %d positions, what the card has left; %u would hold %d whole contexts, so "
                "long streams may wait for each other\n",
                (long long)fits, e->options.page, e->sizes.pages, e->lanes);
        p->page_count = (uint32_t)fits;
        p->pages = fits * p->page_bytes;
        // Kept states then lie in pages that streams may claim back, so one stream's are all that must be left to them.
        const int64_t most = fits - e->sizes.lane_pages - p->run_pages;
        if (e->sizes.cache_pages > most)
            e->sizes.cache_pages = most > p->run_pages ? (uint32_t)most : 0;
        if (!e->options.quiet && e->options.cache_bytes)
            fprintf(stderr, "the prompt cache has up to %.2f GiB of those, as far as streams leave them\n",
                    (double)(e->sizes.cache_pages * p->page_bytes) / (1 << 30));
    }
    return pages_open(&e->pages, p->page_count, (uint32_t)e->lanes * p->run_pages, p->page_bytes,
                      page_order(e->options.page_order), error) &&
           check_plan(e, error);
}

static bool open_lanes(struct engine *e, struct error *error)
{
    const struct engine_plan *p = &e->plan;
    if (!mirror_open(&e->block, p->block, "the lanes", error))
        return false;
    e->arena = device_alloc(p->arena, "the arena", error);
    if (p->keeps && !(e->keeps = device_alloc(p->keeps, "states of prompts", error)))
        return false;
    e->logits = malloc((size_t)model.tail * (size_t)model.logits_width * sizeof *e->logits);
    if (!e->arena || !e->logits)
        return e->arena ? error_set(error, "no memory for logits") : false;
    for (int i = 0; i < e->lanes; i++)
        if (!open_slot(e, i, error))
            return false;
    return exec_exchange(e->exec, &engine_block(e)->exchange, e->block.device, EXCHANGED, error);
}

// The common keys as far as there is room for them: all lanes, then each lane alone, the first one first, as streams get them.
static void warm(struct engine *e)
{
    struct slot *all[MAX_LANES];
    for (int i = 0; i < e->lanes; i++)
        all[i] = &e->slot[i];
    const double start = engine_seconds();
    bool room = e->lanes == 1 || engine_lane_count(e->lanes) != e->lanes || engine_capture(e, all, e->lanes);
    for (int i = 0; room && i < e->lanes; i++)
        room = engine_capture(e, &all[i], 1);
    e->warm_set = (struct warm_set){.graphs = graph_store_counters(e->graphs)->captured,
                                    .bytes = graph_store_bytes(e->graphs),
                                    .seconds = engine_seconds() - start};
}

static bool open_all(struct engine *e, struct error *error)
{
    struct exec_options options = {.isa = e->options.isa, .threads = e->options.threads};
    if (!choose_sizes(e, error))
        return false;
    make_plan(e);
    e->exec = exec_open(&options, error);
    if (!e->exec)
        return false;
    e->graphs = graph_store_open(GRAPH_BYTES, GRAPH_COUNT);
    if (!e->graphs)
        return error_set(error, "no memory to start");
    depth_init(&e->depth, model.window - 1);
    e->force = -1;
    e->weights.spare = e->plan.pages;
    if (!open_passes(e, error) || !open_lanes(e, error) || !load_weights(e, error) || !open_pool(e, error) ||
        !cache_open(e, error))
        return false;
    if (!e->options.eager)
        warm(e);
    return true;
}

bool engine_open(struct engine **out, const struct engine_options *options, struct error *error)
{
    struct engine *e = calloc(1, sizeof *e);
    *out = NULL;
    if (!e)
        return error_set(error, "no memory to start");
    e->options = *options;
    e->pack.file = -1;
    if (!open_all(e, error)) {
        engine_close(e);
        return false;
    }
    if (!options->quiet)
        fprintf(
            stderr,
            "%s: %s kernels, %d thread%s, weights %.1f MiB%s, arena %.1f MiB, %d lane%s of %d positions, %u pages of "
            "%d positions\n",
            model.name, engine_isa(e), engine_threads(e), plural(engine_threads(e)),
            (double)model.weight_bytes / (1 << 20), options->map ? " (mapped)" : "",
            (double)model.arena_bytes / (1 << 20), e->lanes, plural(e->lanes), e->context, e->pages.count,
            e->options.page);
    const char *note = memory_kv_note(e->kv_encoding);
    if (note && options->kv_cache && !options->quiet)
        fprintf(stderr, "--kv-cache %s: %s\n", kv_kinds[e->kv_encoding], note);
    *out = e;
    return true;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    warm_aside(e);
    while (e->first)
        stream_close(e->first);
    for (int i = 0; i < MAX_LANES; i++)
        stream_close(e->slot[i].stream);
    if (e->exec)
        engine_wait(e, NULL);
    graph_store_close(e->graphs);
    for (int i = 0; i < MAX_LANES; i++) {
        free(e->slot[i].tags);
        copy_index_close(&e->slot[i].copy);
        mirror_close(&e->slot[i].tokens);
        mirror_close(&e->slot[i].table);
        mirror_close(&e->slot[i].masks);
        history_close(&e->slot[i].history);
        device_free(e->slot[i].kept_run, e->plan.kept);
    }
    weights_release(&e->weights);
    mirror_close(&e->block);
    mirror_close(&e->passes);
    device_free(e->arena, model.arena_bytes);
    device_free(e->keeps, e->plan.keeps);
    cache_close(e);
    pages_close(&e->pages);
    pack_close(&e->pack);
    free(e->logits);
    exec_close(e->exec);
    free(e);
}

const char *engine_isa(const struct engine *engine)
{
    return exec_kernels(engine->exec);
}

int engine_threads(const struct engine *engine)
{
    return exec_threads(engine->exec);
}

int engine_context(const struct engine *engine)
{
    return engine->context;
}

int engine_chunk(const struct engine *engine)
{
    (void)engine;
    return model.chunk;
}

void engine_force_acceptance(struct engine *engine, double chance)
{
    engine->force = chance;
}

void engine_counters(const struct engine *e, struct engine_counters *c)
{
    const struct graph_counters *g = graph_store_counters(e->graphs);
    *c = e->counters;
    c->graphs_replayed = g->replayed;
    c->graphs_captured = g->captured;
    c->graphs_eager = g->eager;
    c->graphs_evicted = g->evicted;
    c->graphs_failed = g->failed;
    c->graph_bytes = graph_store_bytes(e->graphs);
    c->warm_graphs = e->warm_set.graphs;
    c->warm_graph_bytes = e->warm_set.bytes;
    c->warm_graph_seconds = e->warm_set.seconds;
    c->pages = e->pages.count;
    c->pages_claimed = e->pages.claimed;
    c->pages_promised = e->pages.promised;
    c->pages_most = e->pages.most;
    c->page_bytes = e->pages.page_bytes;
    cache_count(e, &c->cache);
    c->lanes = e->lanes;
    for (int i = 0; i < e->lanes; i++) {
        const struct stream *s = e->slot[i].stream;
        c->lanes_decoding += s && s->phase == STREAM_DECODING;
        c->lanes_filling += s && !warm_is(s) && (s->phase == STREAM_FILLING || s->phase == STREAM_OPEN);
    }
    for (const struct stream *s = e->first; s; s = s->next)
        c->waiting++;
}
