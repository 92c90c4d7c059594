// SPDX-License-Identifier: Apache-2.0
//
// bench of graphs: what each program's graph costs and takes, and how long the same program runs from its graph and launch by
// launch. Keys that differ in which lane they are of are one line: their programs are the same.

#include "runtime/bench.h"
#include "runtime/cli.h"

#include <stdlib.h>
#include <string.h>

enum { TIMED = 3, GRAPH_PROMPT = 512 };

// ---- what is held -------------------------------------------------------------------------------------------------------------

static void add(void *user, const struct graph_view *view)
{
    struct bench *b = user;
    int at = 0;
    while (at < b->graphs &&
           (b->graph[at].key.program != view->key->program || b->graph[at].key.lanes != view->key->lanes))
        at++;
    if (at == BENCH_GRAPHS)
        return;
    struct bench_graph *g = &b->graph[at];
    if (at == b->graphs) {
        *g = (struct bench_graph){.key = *view->key, .launches = view->facts->launches};
        b->graphs++;
    }
    g->keys++;
    g->bytes += view->bytes;
    g->capture_seconds += view->facts->capture_seconds;
    g->instantiate_seconds += view->facts->instantiate_seconds;
}

// By lanes, then in the model's order.
static int place(const struct bench_graph *g)
{
    int at = 0;
    while (at < model.program_count && model.programs[at] != g->key.program)
        at++;
    return (int)g->key.lanes * (model.program_count + 1) + at;
}

static int in_order(const void *a, const void *b)
{
    return place(a) - place(b);
}

// ---- times --------------------------------------------------------------------------------------------------------------------

// Makes a lane that has read `prompt` tokens ready for a program: a whole window, one row's logits, or the prompt once more.
static void ready(struct lane *lane, const struct program *program, int prompt)
{
    lane->rows = program->drafts + 1;
    lane->drafts = program->drafts;
    lane->headless = program->drafts == 0;
    lane->tail_first = lane->length - 1;
    lane->tail_rows = 1;
    if (program != model.plain_prompt && program != model.prompt)
        return;
    lane->rows = prompt < program->rows ? prompt : program->rows;
    lane->length = lane->fold = lane->streams_base = 0;
    lane->head_length = program == model.prompt ? 0 : INT32_MAX;
    lane->limit = prompt;
}

// Median seconds of a program over its lanes, whose fields are as before afterwards.
static bool time_program(struct bench *b, const struct graph_key *key, int prompt, bool eager, double *median,
                         struct error *error)
{
    struct engine *e = b->engine;
    struct lane *lanes = engine_block(e)->lane, saved[MAX_LANES];
    struct round_block *device = e->block.device;
    struct slot *slots[MAX_LANES] = {NULL};
    double seconds[TIMED];
    bool ok = true;
    memcpy(saved, lanes, sizeof saved);
    e->options.eager = eager;
    for (int i = 0; i < key->lanes; i++)
        slots[i] = key->lane[i] ? &e->slot[key->lane[i] - device->lane] : NULL;
    for (int n = -1; ok && n < TIMED; n++) { // the first is not timed
        for (int i = 0; i < key->lanes; i++)
            if (slots[i])
                ready(slots[i]->lane, key->program, prompt);
        const double start = cli_seconds();
        ok = engine_run(e, key->program, slots, key->lanes, error);
        if (n >= 0)
            seconds[n] = cli_seconds() - start;
        memcpy(lanes, saved, sizeof saved);
    }
    e->options.eager = false;
    *median = ok ? bench_median(seconds, TIMED) : 0;
    return ok;
}

bool bench_graphs(struct bench *b, struct error *error)
{
    struct engine *e = b->engine;
    struct stream *streams[MAX_LANES] = {NULL};
    const int prompt = b->prompt < GRAPH_PROMPT ? b->prompt : GRAPH_PROMPT;
    const struct stream_options options = {
        .sampling = {.top_p = 1}, .drafts = model.window - 1, .positions = prompt + 2 * MAX_WINDOW + 2};
    bool ok = true;
    graph_store_each(e->graphs, add, b);
    qsort(b->graph, (size_t)b->graphs, sizeof *b->graph, in_order);
    for (int i = 0; ok && i < e->lanes; i++)
        ok = stream_open(e, &streams[i], &options, error) &&
             stream_prompt(streams[i], b->ids, prompt, 0, 0, NULL, NULL, error) &&
             engine_map(e, streams[i]->slot, prompt + MAX_WINDOW + 2, error);
    for (int i = 0; ok && i < b->graphs; i++) {
        struct bench_graph *g = &b->graph[i];
        ok = time_program(b, &g->key, prompt, true, &g->eager, error) &&
             time_program(b, &g->key, prompt, false, &g->replay, error);
    }
    for (int i = 0; i < e->lanes; i++)
        stream_close(streams[i]);
    return ok;
}

// ---- printing -----------------------------------------------------------------------------------------------------------------

void bench_graphs_text(const struct bench *b)
{
    const struct warm_set *w = &b->engine->warm_set;
    if (b->graphs == 0)
        return;
    printf("warm set: %lld graphs in %.3f s, %.1f MiB\n", (long long)w->graphs, w->seconds,
           (double)w->bytes / (1 << 20));
    printf("  %-14s %5s %5s %6s %9s %9s %11s %9s %11s %11s %6s\n", "program", "lanes", "keys", "rows", "launches",
           "KiB a key", "capture ms", "made ms", "replay us", "eager us", "times");
    for (int i = 0; i < b->graphs; i++) {
        const struct bench_graph *g = &b->graph[i];
        printf("  %-14s %5d %5d %6d %9d %9.1f %11.3f %9.3f %11.1f %11.1f %6.2f\n", g->key.program->name,
               (int)g->key.lanes, g->keys, (int)g->key.program->rows, g->launches, (double)g->bytes / g->keys / 1024,
               g->capture_seconds / g->keys * 1e3, g->instantiate_seconds / g->keys * 1e3, g->replay * 1e6,
               g->eager * 1e6, g->replay > 0 ? g->eager / g->replay : 0);
    }
}

void bench_graphs_json(const struct bench *b, json_t *root)
{
    const struct warm_set *w = &b->engine->warm_set;
    json_t *all = json_array();
    for (int i = 0; i < b->graphs; i++) {
        const struct bench_graph *g = &b->graph[i];
        json_array_append_new(all, json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:f, s:f, s:f, s:f}", "program",
                                             g->key.program->name, "lanes", (int)g->key.lanes, "keys", g->keys, "rows",
                                             (int)g->key.program->rows, "launches", g->launches, "bytes",
                                             (json_int_t)g->bytes, "capture_seconds", g->capture_seconds,
                                             "instantiate_seconds", g->instantiate_seconds, "replay_seconds", g->replay,
                                             "eager_seconds", g->eager));
    }
    json_object_set_new(root, "programs", all);
    json_object_set_new(root, "warm_set",
                        json_pack("{s:I, s:I, s:f}", "graphs", (json_int_t)w->graphs, "bytes", (json_int_t)w->bytes,
                                  "seconds", w->seconds));
}
