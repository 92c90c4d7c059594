// SPDX-License-Identifier: Apache-2.0
//
// Opening and closing an engine: the memory plan, the weights, lanes, passes and graphs. Nothing is allocated afterwards but
// for a stream's own bookkeeping.

#include "runtime/engine_state.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { GRAPHS = 256 };
static const int64_t GRAPH_BYTES = 64 << 20;

double engine_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool choose_sizes(struct engine *e, struct error *error)
{
    const struct engine_options *o = &e->options;
    const struct memory_request request = {
        .context = o->context, .lanes = o->lanes, .page = o->page, .kv_cache = o->kv_cache};
    if (!memory_plan_make(&e->plan, &request, error))
        return false;
    e->lanes = e->plan.lanes;
    e->context = e->plan.context;
    e->options.page = e->plan.page;
    e->kv_encoding = e->plan.kv_encoding;
    e->run_pages = e->plan.run_pages;
    e->table_size = e->plan.lane_pages;
    return true;
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

// The blocks of all passes, with the arrays of their rows behind them.
static bool open_passes(struct engine *e, struct error *error)
{
    int64_t rows = 0, head = PASS_COUNT * (int64_t)sizeof(struct pass);
    for (int i = 0; i < PASS_COUNT; i++)
        rows += model.pass_rows[i];
    if (!mirror_open(&e->passes, head + rows * 3 * (int64_t)sizeof(int32_t), "the rows of a pass", error))
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

static bool open_pages(struct engine *e, struct error *error)
{
    return pages_open(&e->pages, e->plan.pages, e->plan.page_bytes, page_order(e->options.page_order), error);
}

static bool open_lanes(struct engine *e, struct error *error)
{
    if (!mirror_open(&e->block, sizeof(struct round_block), "the lanes", error))
        return false;
    e->arena = device_alloc(model.arena_bytes, "the arena", error);
    e->logits = malloc((size_t)model.tail * (size_t)model.logits_width * sizeof *e->logits);
    if (!e->arena || !e->logits)
        return e->arena ? error_set(error, "no memory for logits") : false;
    for (int i = 0; i < e->lanes; i++) {
        e->slot[i].lane = &engine_block(e)->lane[i];
        if (!mirror_open(&e->slot[i].tokens, (e->context + MAX_WINDOW + 2) * (int64_t)sizeof(int32_t),
                         "a lane's tokens", error) ||
            !mirror_open(&e->slot[i].table, e->table_size * (int64_t)sizeof(uint32_t), "a lane's page table", error))
            return false;
    }
    return true;
}

static bool open_all(struct engine *e, struct error *error)
{
    struct exec_options options = {.isa = e->options.isa, .threads = e->options.threads};
    if (!choose_sizes(e, error))
        return false;
    e->exec = exec_open(&options, error);
    if (!e->exec)
        return false;
    e->graphs = graph_store_open(GRAPH_BYTES, GRAPHS);
    if (!e->graphs)
        return error_set(error, "no memory to start");
    return open_passes(e, error) && open_pages(e, error) && open_lanes(e, error) && load_weights(e, error);
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
                model.name, engine_isa(e), engine_threads(e), (double)model.weight_bytes / (1 << 20),
                options->map ? " (mapped)" : "", (double)model.arena_bytes / (1 << 20), e->lanes,
                e->lanes == 1 ? "" : "s", e->context);
    const char *note = memory_kv_note(e->kv_encoding);
    if (note && !options->quiet)
        fprintf(stderr, "--kv-cache %s: %s\n", kv_kinds[e->kv_encoding], note);
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
        mirror_close(&e->slot[i].tokens);
        mirror_close(&e->slot[i].table);
    }
    weights_release(&e->weights);
    mirror_close(&e->block);
    mirror_close(&e->passes);
    device_free(e->arena, model.arena_bytes);
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
