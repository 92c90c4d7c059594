// SPDX-License-Identifier: Apache-2.0
//
// The graph store over a toy program: first sight eager, second captured, then replayed; budgets; failed captures; and red
// controls: a key without its table or generation replays a graph with another lane's table, and the test sees it. On either target.

#include "graphs/store.h"
#include "runtime/device.h"
#include "tests/tap.h"
#include <stdlib.h>
#include <string.h>

// The toy program adds the bound lane's table entry to the result through one real kernel: `add` with the table as addend.
// Everything that a kernel sees lies in one block of the target's memory.
struct block {
    struct pass pass;
    float total, table[3];
};

static const struct block start = {.pass = {.rows = 1}, .table = {1, 10, 100}};
static struct block *block; // on the target

static const uint32_t *table_of(int table)
{
    return (const uint32_t *)(const void *)&block->table[table];
}

static void emit(struct exec *e, const struct bind *b)
{
    struct add_args args = {.pass = &block->pass,
                            .width = 1,
                            .ldx = 1,
                            .ldy = 1,
                            .x = &block->total,
                            .y = (const float *)(const void *)b->lanes.table[0]};
    exec_launch(e, KERNEL_add, &args, sizeof args, 0, 1);
}

enum { LONG = 100 }; // launches, more than a GPU gets at once

static void emit_long(struct exec *e, const struct bind *b)
{
    for (int i = 0; i < LONG; i++)
        emit(e, b);
}

static const struct program lengthy = {.name = "lengthy", .rows = 1, .launches = LONG, .emit = emit_long};
static const struct program toy = {.name = "toy", .rows = 1, .launches = 1, .emit = emit};
static const struct program other = {.name = "other", .rows = 1, .launches = 1, .emit = emit};

enum { ROOM = 64 << 20 }; // bytes, for more graphs than any scene makes

struct scene {
    struct exec *exec;
    struct graph_store *store;
};

static float result(void)
{
    float total;
    device_download(&total, &block->total, sizeof total);
    return total;
}

static float run(struct scene *s, const struct program *program, int table, uint64_t generation, int draft)
{
    struct bind b = {.lanes = {.count = 1, .table = {table_of(table)}}};
    struct graph_key key = {.program = program,
                            .lanes = 1,
                            .rows = 1,
                            .generation = generation,
                            .draft = {draft},
                            .table = {b.lanes.table[0]}};
    device_zero(&block->total, sizeof block->total);
    graph_store_run(s->store, s->exec, &key, &b);
    return result();
}

static struct scene open_scene(int64_t bytes, int count)
{
    struct error error;
    struct exec_options options = {.isa = "portable", .threads = 1};
    struct scene s = {exec_open(&options, &error), graph_store_open(bytes, count)};
    if (!s.exec || !s.store) {
        fprintf(stderr, "%s\n", s.exec ? "no memory" : error.text);
        exit(1);
    }
    return s;
}

static void close_scene(struct scene *s)
{
    graph_store_close(s->store);
    exec_close(s->exec);
}

static void order_of_sights(void)
{
    struct scene s = open_scene(ROOM, 8);
    const struct graph_counters *c = graph_store_counters(s.store);
    ok(run(&s, &toy, 0, 1, 1) == 1 && c->eager == 1 && c->captured == 0, "first sight runs eagerly", NULL);
    ok(run(&s, &toy, 0, 1, 1) == 1 && c->captured == 1 && c->replayed == 1,
       "second sight is captured and gives the same", NULL);
    ok(run(&s, &toy, 0, 1, 1) == 1 && c->replayed == 2 && c->eager == 1, "third sight replays", NULL);
    ok(run(&s, &toy, 1, 1, 1) == 10 && c->eager == 2, "another table is another key", NULL);
    ok(run(&s, &toy, 0, 2, 1) == 1 && c->eager == 3, "another generation is another key", NULL);
    ok(run(&s, &toy, 0, 1, 2) == 1 && c->eager == 4, "another draft is another key", NULL);
    ok(run(&s, &other, 0, 1, 1) == 1 && c->eager == 5, "another program is another key", NULL);
    close_scene(&s);
}

static void budgets(void)
{
    struct scene s = open_scene(ROOM, 2);
    const struct graph_counters *c = graph_store_counters(s.store);
    for (int t = 0; t < 3; t++) {
        run(&s, &toy, t, 1, 1);
        run(&s, &toy, t, 1, 1);
    }
    ok(c->captured == 3 && c->evicted == 1, "the least recently used graph leaves when the count is full", NULL);
    ok(run(&s, &toy, 1, 1, 1) == 10 && run(&s, &toy, 2, 1, 1) == 100 && c->captured == 3,
       "the younger ones are still held", NULL);
    graph_store_clear(s.store);
    ok(graph_store_bytes(s.store) == 0, "clearing gives every byte back", NULL);
    close_scene(&s);
    s = open_scene(16, 8);
    run(&s, &toy, 0, 1, 1);
    ok(run(&s, &toy, 0, 1, 1) == 1 && graph_store_counters(s.store)->failed == 1 &&
           graph_store_counters(s.store)->eager == 2,
       "a graph larger than the budget: eager, with the same result", NULL);
    close_scene(&s);
}

static void failed_capture(void)
{
    struct scene s = open_scene(ROOM, 8);
    graph_test_fail_capture = 1;
    run(&s, &toy, 0, 1, 1);
    ok(run(&s, &toy, 0, 1, 1) == 1 && graph_store_counters(s.store)->failed == 1,
       "a failed capture: eager, with the same result", NULL);
    graph_test_fail_capture = 0;
    ok(run(&s, &toy, 0, 1, 1) == 1 && graph_store_counters(s.store)->captured == 1, "and captured when it can be",
       NULL);
    close_scene(&s);
}

static void warm(void)
{
    struct scene s = open_scene(ROOM, 8);
    struct bind b = {.lanes = {.count = 1, .table = {table_of(1)}}};
    struct graph_key key = {
        .program = &toy, .lanes = 1, .rows = 1, .generation = 1, .draft = {1}, .table = {b.lanes.table[0]}};
    device_zero(&block->total, sizeof block->total);
    const struct graph_counters *c = graph_store_counters(s.store);
    bool kept = graph_store_warm(s.store, s.exec, &key, &b, ROOM);
    ok(kept && result() == 0, "warming captures and does not run", NULL);
    ok(run(&s, &toy, 1, 1, 1) == 10 && c->replayed == 1, "a warmed key replays at first sight", NULL);
    const int64_t bytes = graph_store_bytes(s.store);
    ok(graph_store_warm(s.store, s.exec, &key, &b, 0) && c->captured == 1, "one that is held is not captured anew",
       NULL);
    key.program = &other;
    kept = graph_store_warm(s.store, s.exec, &key, &b, bytes);
    ok(!kept && graph_store_bytes(s.store) == bytes && c->captured == 1 && c->evicted == 0,
       "one for which there is no room is not kept, and no other leaves for it", NULL);
    ok(run(&s, &other, 1, 1, 1) == 10 && c->eager == 1, "its key runs eagerly at first sight", NULL);
    kept = graph_store_warm(s.store, s.exec, &key, &b, ROOM);
    ok(kept && graph_store_bytes(s.store) > bytes, "red: with room it is kept, and takes more", NULL);
    close_scene(&s);
}

static void many_launches(void)
{
    struct scene s = open_scene(ROOM, 8);
    const float eager = run(&s, &lengthy, 1, 1, 1), first = run(&s, &lengthy, 1, 1, 1);
    ok(eager == 10 * LONG && first == eager && run(&s, &lengthy, 1, 1, 1) == eager &&
           graph_store_counters(s.store)->replayed == 2,
       "a program of many launches: all of them in each replay", NULL);
    close_scene(&s);
}

struct seen {
    int graphs;
    int64_t bytes, replayed;
    bool costs;
};

static void see(void *user, const struct graph_view *view)
{
    struct seen *seen = user;
    seen->graphs++;
    seen->bytes += view->bytes;
    seen->replayed += view->replayed;
    seen->costs = seen->costs && view->key->lanes == 1 && view->facts->launches == 1 && view->facts->bytes > 0 &&
                  view->facts->bytes < view->bytes && view->facts->capture_seconds > 0;
}

static void views(void)
{
    struct scene s = open_scene(ROOM, 8);
    struct seen seen = {.costs = true};
    for (int t = 0; t < 3; t++)
        for (int n = 0; n < t + 1; n++) // one sight, two, three: not held, one replay, two
            run(&s, &toy, t, 1, 1);
    graph_store_each(s.store, see, &seen);
    ok(seen.graphs == 2 && seen.replayed == 3 && graph_store_counters(s.store)->replayed == 3,
       "each graph that is held is seen once, with its replays", NULL);
    ok(seen.costs && seen.bytes == graph_store_bytes(s.store), "and what it cost and takes", NULL);
    close_scene(&s);
}

// The faults that the key must catch: each control is seen to go wrong when the key leaves the part out.
static void red_controls(void)
{
    struct scene s = open_scene(ROOM, 8);
    graph_test_ignore_tables = 1;
    run(&s, &toy, 0, 1, 1);
    run(&s, &toy, 0, 1, 1);
    ok(run(&s, &toy, 1, 1, 1) != 10, "red: without the table in the key a swapped table is missed", NULL);
    graph_test_ignore_tables = 0;
    close_scene(&s);
    s = open_scene(ROOM, 8);
    graph_test_ignore_generation = 1;
    run(&s, &toy, 0, 1, 1);
    run(&s, &toy, 0, 1, 1);
    run(&s, &toy, 0, 2, 1);
    ok(graph_store_counters(s.store)->replayed == 2, "red: without the generation in the key a stale graph is replayed",
       NULL);
    graph_test_ignore_generation = 0;
    close_scene(&s);
}

// The target's memory can be claimed once it was opened.
static bool open_block(void)
{
    struct error error;
    struct scene s = open_scene(ROOM, 1);
    block = device_alloc(sizeof *block, "the toy program", &error);
    if (block)
        device_upload(block, &start, sizeof start);
    else
        fprintf(stderr, "%s\n", error.text);
    device_settle();
    close_scene(&s);
    return block != NULL;
}

int main(void)
{
    if (!open_block())
        return 1;
    order_of_sights();
    budgets();
    failed_capture();
    warm();
    many_launches();
    views();
    red_controls();
    device_free(block, sizeof *block);
    return done();
}
