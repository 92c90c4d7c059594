// SPDX-License-Identifier: Apache-2.0
//
// Prints what bench measured: for people and as JSON.

#include "runtime/bench.h"
#include "runtime/cli.h"

#include <stdlib.h>
#include <string.h>

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

static void print_streams(const struct bench *b)
{
    for (int i = 1; i <= MAX_LANES && b->lanes > 1; i++)
        if (b->lanes_rate[i] > 0)
            printf("%d lane%s       %8.2f tok/s together, %.2f times one\n", i, i > 1 ? "s" : " ", b->lanes_rate[i],
                   b->lanes_rate[i] / b->lanes_rate[1]);
    bench_drafts_text(b);
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
    printf("prompt        %8.2f tok/s  (%.2f to %.2f), %d token%s, %.1f times decode\n", prompt,
           bench_least(b->prompt_rate, n), bench_best(b->prompt_rate, n), b->prompt, plural(b->prompt),
           prompt / decode);
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
    bench_rows_text(b);
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
    bench_drafts_json(b, root);
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
    bench_rows_json(b, root);
    json_dumpf(root, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(root);
}
