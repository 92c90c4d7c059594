// SPDX-License-Identifier: Apache-2.0
//
// What bench measures, shared by the measuring (cmd_bench.c) and the printing (bench_print.c).

#ifndef BENCH_H
#define BENCH_H

#include "runtime/ceiling.h"
#include "runtime/engine_state.h"
#include "runtime/options.h"
#include "runtime/tokenizer.h"
#include <jansson.h>

enum {
    BENCH_REPEATS = 1000,
    BENCH_PROFILED = 8,    // rounds that the kernels' times are averaged over
    BENCH_GRAPHS = 128,    // programs by number of lanes
    BENCH_WARM_ROUNDS = 8, // of lanes together and of drafts at a given acceptance, before the clock starts
    BENCH_LEAST_BYTES = 1 << 30,
    BENCH_LOAD = 128,
};
#define BENCH_MOST_BYTES (INT64_C(4) << 30)

// The graphs of one program and number of lanes. bytes, capture, instantiate: of all its keys together; launches, replay and eager
// seconds: of the first.
struct bench_graph {
    struct graph_key key;
    int keys, launches;
    int64_t bytes;
    double capture_seconds, instantiate_seconds, replay, eager;
};

struct bench {
    struct engine *engine;
    struct pool *pool; // the ceiling's; the engine has its own
    struct ceiling *ceiling;
    const struct program *program; // of one token
    const struct program *prompt_program;
    int32_t *ids; // [prompt]
    int prompt, tokens, repeats;
    bool synthetic, drafting, per_op;
    char load[BENCH_LOAD]; // of the machine before the run
    int64_t bytes_a_token, drafted, accepted;
    double *seconds;        // [program->launches] of one launch
    double *prompt_seconds; // [prompt_program->launches] of all chunks of a prompt
    double round_seconds, kernel_seconds;
    double prompt_rate[BENCH_REPEATS], decode_rate[BENCH_REPEATS], drafted_rate[BENCH_REPEATS], share[BENCH_REPEATS];
    double ceiling_rate[2 * BENCH_REPEATS];
    // seconds a round of the undrafted decode: host and device between two rounds, handing a round over
    double host[BENCH_REPEATS], idle[BENCH_REPEATS], launch[BENCH_REPEATS];
    double host_half[BENCH_REPEATS],
        host_most[BENCH_REPEATS]; // what half and nine tenths of a repeat's rounds are below
    struct bench_graph graph[BENCH_GRAPHS];
    int graphs;
    int lanes;
    double lanes_rate[MAX_LANES + 1]; // tokens a second of n lanes together, undrafted; 0: not measured
    // drafted rounds of one lane at a given acceptance, and undrafted ones before and after; rate 0: not asked for
    double chance, forced_rate, forced_plain;
    int64_t forced_drafted, forced_accepted;
    // a reply beside a prompt of `beside` tokens: share of the time, tokens a second of both, longest gap in seconds
    int beside;
    double beside_share, beside_rate, beside_prompt, beside_gap;
};

// Median of up to 2 * BENCH_REPEATS values.
double bench_median(const double *values, int count);
double bench_least(const double *values, int count);
double bench_best(const double *values, int count); // the largest

// Ids to read, the caller's: any do for time, but a real model drafts well on real text only. NULL when memory is short.
int32_t *bench_ids(int count, bool synthetic, struct error *error);

// The load of the machine now.
void bench_load(char load[BENCH_LOAD]);

// Decode of 1, 2, 4, 8 lanes, up to bench->lanes.
bool bench_lanes(struct bench *bench, struct error *error);

// One lane whose drafts are accepted with a chance, right or wrong; drafts a round, -1: as many as pay.
bool bench_accept(struct bench *bench, double chance, int drafts, struct error *error);

// A reply while a prompt of so many tokens is read.
bool bench_beside(struct bench *bench, int prompt, struct error *error);

// The whole of bench --turns: measures and prints. False with exit code 1 when replies differ that must not.
bool bench_turns(const struct settings *settings, struct error *error);

// A series of repeats as JSON: median, least, best, all.
json_t *bench_series(const double *values, int count);

// Times every graph of the store against the same program launch by launch.
bool bench_graphs(struct bench *bench, struct error *error);
void bench_graphs_text(const struct bench *bench);
void bench_graphs_json(const struct bench *bench, json_t *root);

void bench_print_text(const struct bench *bench);
void bench_print_json(const struct bench *bench);
void bench_print_chart(const struct bench *bench); // a script for gnuplot, which writes an SVG

#endif
