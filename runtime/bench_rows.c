// SPDX-License-Identifier: Apache-2.0
//
// bench's times of launches: by op, by op and shape, and by group of ops.
// Invariant: every op of the op table (gen/ops.lua) has its group here.

#include "runtime/bench.h"
#include "runtime/cli.h"

#include <stdlib.h>
#include <string.h>

// The ops of a group, separated by spaces; the last one takes what no other has.
static const struct {
    const char *name, *ops;
} groups_of[] = {
    {"products", "linear glu"},
    {"experts", "experts_up experts_down moe_sum"},
    {"DeltaNet, Mamba", "conv gdn mamba gated_norm"},
    {"attention", "head_norm kv_append index_pool index_select attention"},
    {"residuals, norms", "norm add hc_mix hc_inject streams_add"},
    {"router", "route"},
    {"sampling", "draw accept commit"},
    {"other", "embed ngram ple_gate ple_add rows gather save_streams"},
};
enum { GROUPS = sizeof groups_of / sizeof *groups_of };

static int group_of(const char *op)
{
    const size_t bytes = strlen(op);
    for (int g = 0; g < GROUPS; g++)
        for (const char *at = groups_of[g].ops; *at; at += strcspn(at, " "), at += *at == ' ')
            if (strcspn(at, " ") == bytes && !memcmp(at, op, bytes))
                return g;
    return GROUPS - 1;
}

// ---- rows ---------------------------------------------------------------------------------------------------------------------

struct bench_part bench_round(const struct bench *b)
{
    return (struct bench_part){.program = b->program, .seconds = b->seconds, .passes = 1, .share = 1};
}

struct bench_part bench_lanes_round(const struct bench *b)
{
    return (struct bench_part){
        .program = b->program, .seconds = b->lanes_seconds, .passes = b->lanes > 1, .share = b->lanes};
}

struct bench_part bench_prompt(const struct bench *b)
{
    const int most = b->prompt_program->rows, read = b->prompt;
    const int passes = (read + most - 1) / most;
    return (struct bench_part){.program = b->prompt_program,
                               .seconds = b->prompt_seconds,
                               .passes = passes,
                               .share = passes > 0 ? (double)read / passes / most : 0};
}

int bench_rows(const struct bench_part *part, bool shapes, struct bench_row rows[BENCH_ROWS])
{
    int count = 0;
    for (int i = 0; i < part->program->launches; i++) {
        const struct model_op *op = &part->program->ops[i];
        int at = 0;
        while (at < count && (strcmp(rows[at].op, op->op) || (shapes && strcmp(rows[at].shape, op->shape))))
            at++;
        if (at == BENCH_ROWS)
            continue;
        if (at == count)
            rows[count++] = (struct bench_row){.op = op->op, .shape = op->shape};
        rows[at].launches += part->passes;
        rows[at].bytes += op->bytes * part->passes;
        rows[at].flops += (double)op->flops * part->share * part->passes;
        rows[at].seconds += part->seconds[i];
    }
    return count;
}

int bench_groups(const struct bench_row *rows, int count, struct bench_row groups[BENCH_ROWS])
{
    struct bench_row all[GROUPS] = {0};
    int found = 0;
    for (int i = 0; i < count; i++) {
        struct bench_row *g = &all[group_of(rows[i].op)];
        g->launches += rows[i].launches;
        g->bytes += rows[i].bytes;
        g->flops += rows[i].flops;
        g->seconds += rows[i].seconds;
    }
    for (int g = 0; g < GROUPS; g++) {
        all[g].op = groups_of[g].name;
        if (all[g].launches > 0)
            groups[found++] = all[g];
    }
    return found;
}

static int longest_first(const void *a, const void *b)
{
    const double x = ((const struct bench_row *)a)->seconds, y = ((const struct bench_row *)b)->seconds;
    return (x < y) - (x > y);
}

void bench_sort(struct bench_row *rows, int count)
{
    qsort(rows, (size_t)count, sizeof *rows, longest_first);
}

static double gigabytes(const struct bench_row *row)
{
    return row->seconds > 0 ? (double)row->bytes / row->seconds * 1e-9 : 0;
}

static double sum(const struct bench_row *rows, int count)
{
    double all = 0;
    for (int i = 0; i < count; i++)
        all += rows[i].seconds;
    return all;
}

static double percent(double part, double all)
{
    return all > 0 ? 100 * part / all : 0;
}

// ---- text ---------------------------------------------------------------------------------------------------------------------

// Every op and shape of a program, and its groups, the longest first.
static void print_ops(const char *title, const struct bench_part *part)
{
    char size[24];
    struct bench_row rows[BENCH_ROWS], groups[BENCH_ROWS];
    const int count = bench_rows(part, true, rows), found = bench_groups(rows, count, groups);
    const double all = sum(rows, count);
    bench_sort(rows, count);
    bench_sort(groups, found);
    printf("%s: %.1f us in kernels, launches one by one\n", title, all * 1e6);
    printf("  %-14s %-44s %8s %11s %7s %11s %8s %8s\n", "kernel", "shape", "launches", "us", "time", "bytes", "GB/s",
           "TFLOP/s");
    for (int i = 0; i < count; i++) {
        const struct bench_row *r = &rows[i];
        printf("  %-14s %-44.44s %8d %11.1f %6.1f%% %11s %8.1f %8.2f\n", r->op, r->shape, r->launches, r->seconds * 1e6,
               percent(r->seconds, all), cli_bytes(size, r->bytes), gigabytes(r),
               r->seconds > 0 ? r->flops / r->seconds * 1e-12 : 0);
    }
    printf("%s, by group\n", title);
    for (int i = 0; i < found; i++)
        printf("  %-59s %8d %11.1f %6.1f%% %11s %8.1f\n", groups[i].op, groups[i].launches, groups[i].seconds * 1e6,
               percent(groups[i].seconds, all), cli_bytes(size, groups[i].bytes), gigabytes(&groups[i]));
}

void bench_rows_text(const struct bench *b)
{
    char size[24];
    struct bench_row rows[BENCH_ROWS];
    const struct bench_part round = bench_round(b), lanes = bench_lanes_round(b), prompt = bench_prompt(b);
    const int count = bench_rows(&round, false, rows);
    printf("  %-14s %8s %10s %11s %8s %7s\n", "kernel", "launches", "us", "bytes", "GB/s", "time");
    for (int i = 0; i < count; i++)
        printf("  %-14s %8d %10.1f %11s %8.2f %6.1f%%\n", rows[i].op, rows[i].launches, rows[i].seconds * 1e6,
               cli_bytes(size, rows[i].bytes), gigabytes(&rows[i]), percent(rows[i].seconds, b->kernel_seconds));
    if (!b->per_op)
        return;
    print_ops("a round", &round);
    if (lanes.passes > 0)
        print_ops("a round of all lanes, bytes those of one", &lanes);
    if (prompt.passes > 0)
        print_ops("a prompt", &prompt);
}

// ---- JSON ---------------------------------------------------------------------------------------------------------------------

static json_t *list(const char *name, const struct bench_row *rows, int count, bool shapes)
{
    json_t *all = json_array();
    for (int i = 0; i < count; i++) {
        json_t *row = json_pack("{s:s, s:i, s:I, s:f, s:f}", name, rows[i].op, "launches", rows[i].launches, "bytes",
                                (json_int_t)rows[i].bytes, "seconds", rows[i].seconds, "gigabytes_per_second",
                                gigabytes(&rows[i]));
        if (shapes)
            json_object_set_new(row, "shape", json_string(rows[i].shape));
        json_array_append_new(all, row);
    }
    return all;
}

static json_t *part_json(const struct bench_part *part)
{
    struct bench_row rows[BENCH_ROWS], groups[BENCH_ROWS];
    const int count = bench_rows(part, true, rows), found = bench_groups(rows, count, groups);
    bench_sort(rows, count);
    bench_sort(groups, found);
    return json_pack("{s:o, s:o}", "ops", list("op", rows, count, true), "groups", list("group", groups, found, false));
}

void bench_rows_json(const struct bench *b, json_t *root)
{
    struct bench_row rows[BENCH_ROWS];
    const struct bench_part round = bench_round(b), lanes = bench_lanes_round(b), prompt = bench_prompt(b);
    json_object_set_new(root, "kernels", list("op", rows, bench_rows(&round, false, rows), false));
    if (!b->per_op)
        return;
    json_object_set_new(root, "round", part_json(&round));
    if (lanes.passes > 0)
        json_object_set_new(root, "lanes_round", part_json(&lanes));
    if (prompt.passes > 0) {
        json_object_set_new(root, "prompt_kernels", list("op", rows, bench_rows(&prompt, false, rows), false));
        json_object_set_new(root, "prompt_read", part_json(&prompt));
    }
}
