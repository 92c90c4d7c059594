// SPDX-License-Identifier: Apache-2.0
//
// Opening and closing an engine: the memory plan, the weights, lanes, passes and graphs. Nothing is allocated afterwards but
// for a stream's own bookkeeping.

#include "runtime/engine_state.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { DEFAULT_CONTEXT = 8192, DEFAULT_PAGE = 64, GRAPHS = 256 };
static const int64_t GRAPH_BYTES = 64 << 20;

double engine_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool choose_kernels(struct engine *e, struct error *error)
{
    const struct kernel *const *kernels = kernels_find(e->options.isa, &e->isa);
    if (!kernels)
        return error_set(error, "--isa %s: this machine or build has no such kernels", e->options.isa);
    e->exec.kernels = kernels;
    return true;
}

static bool choose_sizes(struct engine *e, struct error *error)
{
    const struct engine_options *o = &e->options;
    static const char *const names[] = {"f32", "bf16", "fp8"};
    e->lanes = o->lanes ? o->lanes : 1;
    if (e->lanes < 1 || e->lanes > model.lanes)
        return error_set(error, "--lanes: this build has 1 to %d, found %d", model.lanes, e->lanes);
    int fallback = model.max_context < DEFAULT_CONTEXT ? model.max_context : DEFAULT_CONTEXT;
    e->context = o->context ? o->context : fallback;
    if (e->context < 1 || e->context > model.max_context)
        return error_set(error, "--context: this model takes 1 to %d, found %d", model.max_context, e->context);
    if (!e->options.page)
        e->options.page = DEFAULT_PAGE;
    if (e->options.page < 4 || e->options.page % 4 || e->options.page > 4096)
        return error_set(error, "--page: a multiple of 4 up to 4096 is expected, found %d", e->options.page);
    const char *kv = o->kv_cache ? o->kv_cache : "f32";
    for (e->kv_encoding = 0; e->kv_encoding < 3; e->kv_encoding++)
        if (!strcmp(kv, names[e->kv_encoding]))
            return true;
    return error_set(error, "--kv-cache: f32, bf16 or fp8 is expected, found %s", kv);
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

static bool load_weights(struct engine *e, struct error *error)
{
    const struct engine_options *o = &e->options;
    struct pack_shape shape = {model.identity, (uint64_t)model.weight_bytes, (uint64_t)model.table_bytes};
    char path[4096];
    bool ok;
    if (o->synthetic) {
        ok = pack_synthetic(&e->pack, model.entries, model.entry_count, &shape, error);
    } else if (!model.has_weights) {
        return error_set(
            error, "this build has no weights (its checkpoint was a config alone): use bench --weights synthetic");
    } else if (embedded_pack && !o->pack) {
        ok = pack_open_memory(&e->pack, embedded_pack, (uint64_t)(embedded_pack_end - embedded_pack), &shape, error);
    } else {
        if (!o->pack && !default_path(path, sizeof path, error))
            return false;
        struct progress progress = {0};
        ok = pack_open(&e->pack, o->pack ? o->pack : path, &shape, o->map ? PACK_MAP : PACK_READ,
                       o->quiet ? NULL : show_progress, &progress, error);
        if (progress.shown)
            fprintf(stderr, "\n");
    }
    if (!ok)
        return false;
    for (int i = 0; i < model.table_count; i++)
        e->rows[i] = pack_rows(&e->pack, &model.entries[model.tables[i]]);
    return true;
}

static bool open_passes(struct engine *e, struct error *error)
{
    int64_t rows = 0;
    for (int i = 0; i < PASS_COUNT; i++)
        rows += model.pass_rows[i];
    e->pass_rows = calloc((size_t)(rows * 3), sizeof *e->pass_rows);
    if (!e->pass_rows)
        return error_set(error, "no memory for the rows of a pass");
    int32_t *at = e->pass_rows;
    for (int i = 0; i < PASS_COUNT; i++) {
        e->pass[i].lane = at;
        e->pass[i].position = at + model.pass_rows[i];
        e->pass[i].token = at + 2 * model.pass_rows[i];
        at += 3 * model.pass_rows[i];
    }
    return true;
}

static bool open_memory(struct engine *e, struct error *error)
{
    int page = e->options.page;
    int64_t page_bytes = ((int64_t)page * model.position_bytes[e->kv_encoding] + 63) / 64 * 64;
    if (page_bytes == 0)
        page_bytes = 64 * page;
    e->run_pages = (uint32_t)((model.run_bytes + page_bytes - 1) / page_bytes);
    e->table_size = (e->context + MAX_WINDOW + page - 1) / page + 1;
    int64_t pages = e->lanes * (e->table_size + (int64_t)e->run_pages);
    if (pages > INT32_MAX)
        return error_set(error, "--context %d needs %" PRId64 " pages; a larger --page or a smaller context is needed",
                         e->context, pages);
    const char *order = e->options.page_order;
    enum page_order how = !order || !strcmp(order, "identity") ? PAGES_IDENTITY
                          : !strcmp(order, "reversed")         ? PAGES_REVERSED
                                                               : PAGES_SHUFFLED;
    if (!pages_open(&e->pages, (uint32_t)pages, page_bytes, how, error))
        return false;
    void *arena = mmap(NULL, (size_t)model.arena_bytes + 64, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED)
        return error_set(error, "no memory for an arena of %.1f MiB", (double)model.arena_bytes / (1 << 20));
    madvise(arena, (size_t)model.arena_bytes, MADV_HUGEPAGE);
    e->arena = arena;
    for (int i = 0; i < e->lanes; i++) {
        e->slot[i].tokens = calloc((size_t)e->context + MAX_WINDOW + 2, sizeof(int32_t));
        e->slot[i].table = calloc((size_t)e->table_size, sizeof(uint32_t));
        if (!e->slot[i].tokens || !e->slot[i].table)
            return error_set(error, "no memory for the tables of lane %d", i);
    }
    return true;
}

static bool open_all(struct engine *e, struct error *error)
{
    if (!choose_kernels(e, error) || !choose_sizes(e, error))
        return false;
    e->rows = calloc((size_t)model.table_count + 1, sizeof *e->rows);
    e->pool = pool_open(e->options.threads, KERNEL_SCRATCH, error);
    if (!e->pool)
        return false;
    e->threads = pool_threads(e->pool);
    e->exec.pool = e->pool;
    e->graphs = graph_store_open(GRAPH_BYTES, GRAPHS);
    if (!e->rows || !e->graphs)
        return error_set(error, "no memory to start");
    return open_passes(e, error) && open_memory(e, error) && load_weights(e, error);
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
        fprintf(stderr, "%s: %s kernels, %d threads, weights %.1f MiB%s, arena %.1f MiB, %d lane%s of %d positions\n",
                model.name, e->isa, e->threads, (double)model.weight_bytes / (1 << 20), options->map ? " (mapped)" : "",
                (double)model.arena_bytes / (1 << 20), e->lanes, e->lanes == 1 ? "" : "s", e->context);
    *out = e;
    return true;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    for (int i = 0; i < MAX_LANES; i++)
        stream_close(e->slot[i].stream);
    graph_store_close(e->graphs);
    for (int i = 0; i < MAX_LANES; i++) {
        free(e->slot[i].tokens);
        free(e->slot[i].table);
    }
    if (e->arena)
        munmap(e->arena, (size_t)model.arena_bytes + 64);
    pages_close(&e->pages);
    free(e->pass_rows);
    pack_close(&e->pack);
    free(e->rows);
    pool_close(e->pool);
    free(e);
}

const char *engine_isa(const struct engine *engine)
{
    return engine->isa;
}

int engine_threads(const struct engine *engine)
{
    return engine->threads;
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

struct bind engine_bind(struct engine *e, struct slot *only)
{
    struct bind b = {.arena = e->arena,
                     .weights = e->pack.weights,
                     .pass = e->pass,
                     .rows = e->rows,
                     .result = e->result,
                     .failed = &e->failed,
                     .kv_encoding = e->kv_encoding};
    b.lanes.page = e->options.page;
    b.lanes.pages = e->pages.arena;
    b.lanes.page_bytes = e->pages.page_bytes;
    for (int i = 0; i < e->lanes; i++) {
        struct slot *slot = &e->slot[i];
        if (only ? slot != only : !slot->stream)
            continue;
        b.lanes.lane[b.lanes.count] = &slot->lane;
        b.lanes.table[b.lanes.count++] = slot->table;
    }
    return b;
}

bool engine_run(struct engine *e, const struct program *program, struct slot *slot, struct error *error)
{
    struct bind b = engine_bind(e, slot);
    struct graph_key key = {.program = program,
                            .lanes = b.lanes.count,
                            .rows = program->rows,
                            .generation = e->pages.generation,
                            .kv_encoding = e->kv_encoding};
    for (int i = 0; i < b.lanes.count; i++) {
        key.lane[i] = b.lanes.lane[i];
        key.table[i] = b.lanes.table[i];
        key.draft[i] = slot->draft;
    }
    e->failed = 0;
    if (e->options.eager)
        program->emit(&e->exec, &b);
    else
        graph_store_run(e->graphs, &e->exec, &key, &b);
    if (e->failed)
        return error_set(error,
                         "%s: a row of the n-gram table could not be read; is the weight file still there and whole?",
                         program->name);
    return true;
}

bool engine_map(struct engine *e, struct slot *slot, int positions, struct error *error)
{
    int page = e->options.page, need = (positions + page - 1) / page;
    for (; slot->mapped < need && slot->mapped < e->table_size; slot->mapped++)
        if (!pages_claim(&e->pages, &slot->table[slot->mapped]))
            return error_set(error, "no page is free for position %d; fewer streams or a smaller --context is needed",
                             positions - 1);
    return true;
}
