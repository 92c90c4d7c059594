// SPDX-License-Identifier: Apache-2.0
//
// Prints what bench measured: for people, as JSON, as a chart.

#include "runtime/bench.h"
#include "runtime/cli.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 256 };

// The launches of one op, or of one op and shape, in a program, added up.
struct row {
    const char *op, *shape;
    int launches;
    int64_t bytes, flops;
    double seconds;
};

static int make_rows(const struct program *program, const double *seconds, bool shapes, struct row rows[MAX_ROWS])
{
    int count = 0;
    for (int i = 0; i < program->launches; i++) {
        const struct model_op *op = &program->ops[i];
        int at = 0;
        while (at < count && (strcmp(rows[at].op, op->op) || (shapes && strcmp(rows[at].shape, op->shape))))
            at++;
        if (at == MAX_ROWS)
            continue;
        if (at == count)
            rows[count++] = (struct row){.op = op->op, .shape = op->shape};
        rows[at].launches++;
        rows[at].bytes += op->bytes;
        rows[at].flops += op->flops;
        rows[at].seconds += seconds[i];
    }
    return count;
}

double bench_best(const double *values, int count)
{
    double most = 0;
    for (int i = 0; i < count; i++)
        most = values[i] > most ? values[i] : most;
    return most;
}

double bench_least(const double *values, int count)
{
    double low = values[0];
    for (int i = 1; i < count; i++)
        low = values[i] < low ? values[i] : low;
    return low;
}

static double gigabytes(int64_t bytes, double seconds)
{
    return seconds > 0 ? (double)bytes / seconds * 1e-9 : 0;
}

static int longest_first(const void *a, const void *b)
{
    double x = ((const struct row *)a)->seconds, y = ((const struct row *)b)->seconds;
    return (x < y) - (x > y);
}

// Every op and shape of a program, the longest first. passes: how often the program ran for these seconds; share: which part
// of its rows a pass had on average.
static void print_ops(const char *title, const struct program *program, const double *seconds, int passes, double share)
{
    char size[24];
    struct row rows[MAX_ROWS];
    int count = make_rows(program, seconds, true, rows);
    double all = 0;
    for (int i = 0; i < count; i++)
        all += rows[i].seconds;
    qsort(rows, (size_t)count, sizeof *rows, longest_first);
    printf("%s: %.1f us in kernels, launches one by one\n", title, all * 1e6);
    printf("  %-14s %-44s %8s %11s %7s %11s %8s %8s\n", "kernel", "shape", "launches", "us", "time", "bytes", "GB/s",
           "TFLOP/s");
    for (int i = 0; i < count; i++) {
        const struct row *r = &rows[i];
        printf("  %-14s %-44.44s %8d %11.1f %6.1f%% %11s %8.1f %8.2f\n", r->op, r->shape, r->launches * passes,
               r->seconds * 1e6, all > 0 ? 100 * r->seconds / all : 0, cli_bytes(size, r->bytes * passes),
               gigabytes(r->bytes * passes, r->seconds),
               r->seconds > 0 ? (double)r->flops * share * passes / r->seconds * 1e-12 : 0);
    }
}

static void print_streams(const struct bench *b)
{
    for (int i = 1; i <= MAX_LANES && b->lanes > 1; i++)
        if (b->lanes_rate[i] > 0)
            printf("%d lane%s       %8.2f tok/s together, %.2f times one\n", i, i > 1 ? "s" : " ", b->lanes_rate[i],
                   b->lanes_rate[i] / b->lanes_rate[1]);
    if (b->forced_rate > 0)
        printf("accept %.2f   %8.2f tok/s, %.2f times the undrafted %.2f; drafted %lld, accepted %lld\n", b->chance,
               b->forced_rate, b->forced_rate / b->forced_plain, b->forced_plain, (long long)b->forced_drafted,
               (long long)b->forced_accepted);
    if (b->beside)
        printf("beside        %8.2f tok/s while a prompt of %d is read at %.2f tok/s: %.1f %% of the time, longest gap "
               "%.1f ms\n",
               b->beside_rate, b->beside, b->beside_prompt, 100 * b->beside_share, 1e3 * b->beside_gap);
}

void bench_print_text(const struct bench *b)
{
    char size[24];
    int n = b->repeats;
    double decode = bench_median(b->decode_rate, n), prompt = bench_median(b->prompt_rate, n);
    printf("%s%s: %s kernels, %d thread%s, median of %d, load before %s\n", model.name,
           b->synthetic ? " (synthetic weights)" : "", engine_isa(b->engine), engine_threads(b->engine),
           plural(engine_threads(b->engine)), n, b->load);
    printf("read ceiling  %8.2f GB/s   (best %.2f)\n", bench_median(b->ceiling_rate, 2 * n) * 1e-9,
           bench_best(b->ceiling_rate, 2 * n) * 1e-9);
    printf("decode        %8.2f tok/s  (%.2f to %.2f), %s a token, %.2f GB/s, %.1f %% of the ceiling\n", decode,
           bench_least(b->decode_rate, n), bench_best(b->decode_rate, n), cli_bytes(size, b->bytes_a_token),
           decode * (double)b->bytes_a_token * 1e-9, 100 * bench_median(b->share, n));
    if (b->drafting)
        printf("drafted       %8.2f tok/s  (%.2f to %.2f), drafted %lld, accepted %lld\n",
               bench_median(b->drafted_rate, n), bench_least(b->drafted_rate, n), bench_best(b->drafted_rate, n),
               (long long)b->drafted, (long long)b->accepted);
    printf("prompt        %8.2f tok/s  (%.2f to %.2f), %d tokens, %.1f times decode\n", prompt,
           bench_least(b->prompt_rate, n), bench_best(b->prompt_rate, n), b->prompt, prompt / decode);
    print_streams(b);
    printf("host          %8.2f us/round  (%.2f to %.2f), half of them below %.2f, nine of ten below %.2f; launch call "
           "%.2f us, device idle %.2f us/round\n",
           bench_median(b->host, n) * 1e6, bench_least(b->host, n) * 1e6, bench_best(b->host, n) * 1e6,
           bench_median(b->host_half, n) * 1e6, bench_median(b->host_most, n) * 1e6, bench_median(b->launch, n) * 1e6,
           bench_median(b->idle, n) * 1e6);
    bench_graphs_text(b);
    const struct graph_counters *g = graph_store_counters(b->engine->graphs);
    printf("a round, its launches one by one: %.1f us, of which kernels %.1f us; graphs: %lld replayed, %lld captured, "
           "%lld eager, %lld evicted\n",
           b->round_seconds * 1e6, b->kernel_seconds * 1e6, (long long)g->replayed, (long long)g->captured,
           (long long)g->eager, (long long)g->evicted);
    struct row rows[MAX_ROWS];
    int count = make_rows(b->program, b->seconds, false, rows);
    printf("  %-14s %8s %10s %11s %8s %7s\n", "kernel", "launches", "us", "bytes", "GB/s", "time");
    for (int i = 0; i < count; i++)
        printf("  %-14s %8d %10.1f %11s %8.2f %6.1f%%\n", rows[i].op, rows[i].launches, rows[i].seconds * 1e6,
               cli_bytes(size, rows[i].bytes), gigabytes(rows[i].bytes, rows[i].seconds),
               b->kernel_seconds > 0 ? 100 * rows[i].seconds / b->kernel_seconds : 0);
    if (!b->per_op)
        return;
    print_ops("a round", b->program, b->seconds, 1, 1);
    // Its last token is a pass of another program.
    const int most = b->prompt_program->rows, read = b->prompt - 1, passes = (read + most - 1) / most;
    if (passes > 0)
        print_ops("a prompt but its last token", b->prompt_program, b->prompt_seconds, passes,
                  (double)read / passes / most);
}

void bench_print_chart(const struct bench *b)
{
    struct row rows[MAX_ROWS];
    const int count = make_rows(b->program, b->seconds, false, rows);
    qsort(rows, (size_t)count, sizeof *rows, longest_first);
    printf(
        "# gnuplot reads this and writes an SVG to standard output.\n"
        "set terminal svg size 900,%d font 'sans-serif,12'\n"
        "set title \"%s on %s: %.0f us in kernels a round, launches one by one\" noenhanced\n"
        "set style fill solid 0.7\nset xlabel 'microseconds'\nset yrange [%d.5:-0.5]\nset ytics noenhanced\nunset key\n"
        "$time << END\n",
        120 + 24 * count, model.name, engine_isa(b->engine), b->kernel_seconds * 1e6, count - 1);
    for (int i = 0; i < count; i++)
        printf("%.1f \"%s, %d\"\n", rows[i].seconds * 1e6, rows[i].op, rows[i].launches);
    printf("END\nplot $time using ($1/2):0:($1/2):(0.35):ytic(2) with boxxyerror\n");
}

json_t *bench_series(const double *values, int count)
{
    json_t *all = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(all, json_real(values[i]));
    return json_pack("{s:f, s:f, s:f, s:o}", "median", bench_median(values, count), "least", bench_least(values, count),
                     "best", bench_best(values, count), "all", all);
}

static json_t *microseconds(const double *seconds, int count)
{
    double us[BENCH_REPEATS];
    for (int i = 0; i < count; i++)
        us[i] = seconds[i] * 1e6;
    return bench_series(us, count);
}

static void streams_json(const struct bench *b, json_t *root)
{
    json_t *lanes = json_array();
    for (int i = 1; i <= MAX_LANES; i++)
        if (b->lanes_rate[i] > 0)
            json_array_append_new(lanes,
                                  json_pack("{s:i, s:f}", "lanes", i, "decode_tokens_per_second", b->lanes_rate[i]));
    json_object_set_new(root, "lanes", lanes);
    if (b->forced_rate > 0)
        json_object_set_new(root, "forced",
                            json_pack("{s:f, s:f, s:f, s:I, s:I}", "acceptance", b->chance, "decode_tokens_per_second",
                                      b->forced_rate, "undrafted_tokens_per_second", b->forced_plain, "drafted",
                                      (json_int_t)b->forced_drafted, "accepted", (json_int_t)b->forced_accepted));
    if (b->beside)
        json_object_set_new(root, "beside",
                            json_pack("{s:i, s:f, s:f, s:f, s:f}", "prompt", b->beside, "share", b->beside_share,
                                      "decode_tokens_per_second", b->beside_rate, "prompt_tokens_per_second",
                                      b->beside_prompt, "longest_gap_seconds", b->beside_gap));
}

void bench_print_json(const struct bench *b)
{
    int n = b->repeats;
    const struct graph_counters *g = graph_store_counters(b->engine->graphs);
    json_t *root = json_pack("{s:s, s:b, s:s, s:i, s:s, s:i, s:i, s:i}", "name", model.name, "synthetic", b->synthetic,
                             "isa", engine_isa(b->engine), "threads", engine_threads(b->engine), "load", b->load,
                             "repeats", n, "prompt", b->prompt, "decode", b->tokens);
    json_object_set_new(root, "bytes_a_token", json_integer(b->bytes_a_token));
    json_object_set_new(root, "ceiling_bytes_per_second", bench_series(b->ceiling_rate, 2 * n));
    json_object_set_new(root, "decode_tokens_per_second", bench_series(b->decode_rate, n));
    json_object_set_new(root, "share_of_ceiling", bench_series(b->share, n));
    json_object_set_new(root, "prompt_tokens_per_second", bench_series(b->prompt_rate, n));
    if (b->drafting) {
        json_object_set_new(root, "drafted_tokens_per_second", bench_series(b->drafted_rate, n));
        json_object_set_new(root, "drafted", json_integer(b->drafted));
        json_object_set_new(root, "accepted", json_integer(b->accepted));
    }
    json_object_set_new(root, "host_us_per_round", microseconds(b->host, n));
    json_object_set_new(root, "host_us_median", microseconds(b->host_half, n));
    json_object_set_new(root, "host_us_nine_of_ten", microseconds(b->host_most, n));
    json_object_set_new(root, "launch_call_us", microseconds(b->launch, n));
    json_object_set_new(root, "device_idle_us_per_round", microseconds(b->idle, n));
    bench_graphs_json(b, root);
    json_object_set_new(root, "round_seconds", json_real(b->round_seconds));
    json_object_set_new(root, "kernel_seconds", json_real(b->kernel_seconds));
    json_object_set_new(root, "graphs",
                        json_pack("{s:I, s:I, s:I, s:I}", "replayed", (json_int_t)g->replayed, "captured",
                                  (json_int_t)g->captured, "eager", (json_int_t)g->eager, "evicted",
                                  (json_int_t)g->evicted));
    streams_json(b, root);
    struct row rows[MAX_ROWS];
    int count = make_rows(b->program, b->seconds, false, rows);
    json_t *kernels = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(kernels,
                              json_pack("{s:s, s:i, s:I, s:f, s:f}", "op", rows[i].op, "launches", rows[i].launches,
                                        "bytes", (json_int_t)rows[i].bytes, "seconds", rows[i].seconds,
                                        "gigabytes_per_second", gigabytes(rows[i].bytes, rows[i].seconds)));
    json_object_set_new(root, "kernels", kernels);
    json_dumpf(root, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(root);
}
