// SPDX-License-Identifier: Apache-2.0
//
// What bench measures, shared by the measuring (cmd_bench.c, bench_lanes.c, bench_drafts.c, bench_graphs.c) and the printing
// (bench_print.c, bench_rows.c, bench_chart.c).

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
    BENCH_LEAST_ROUNDS = 8,
    // Rounds before and after the clock starts where the depth is the engine's: until it has looked at other depths and learned
    // what lands; all of the looks around that it goes on with.
    BENCH_SETTLE = 64,
    BENCH_CYCLE = 72,
    BENCH_ROWS = 256, // ops and shapes of a program
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

// Rounds at a forced acceptance. made, rounds and seconds: of what was timed.
struct bench_cell {
    int asked, lanes;       // drafts a round; -1: as many as the engine finds to pay
    double chance, seconds; // chance: that a draft lands
    double expected;        // tokens that such rounds make on average over all luck
    int64_t rounds, made;
    int64_t tried, landed;                        // drafts that were looked at, and accepted, in all rounds
    int64_t early[MAX_WINDOW], timed[MAX_WINDOW]; // rounds of a lane by its drafts, before the clock started and after
};

// Cells of one number of lanes: [repeats][count], of which the first and the last are undrafted, those between rows of
// acceptances: a cell a depth, then one where the engine chooses.
struct bench_table {
    int lanes, count;
    struct bench_cell *cell;
};

// The launches of one op, or of one op and shape, or of one group of ops, added up over all passes of a program.
struct bench_row {
    const char *op, *shape; // op: the group's name in rows of groups
    int launches;
    int64_t bytes;
    double flops, seconds;
};

// A program's times. passes: how often it ran for these seconds; share: which part of its rows a pass had on average.
struct bench_part {
    const struct program *program;
    const double *seconds; // [program->launches]
    int passes;
    double share;
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
    double *lanes_seconds;  // [program->launches] of a round of all of `lanes`
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
    // drafts at given acceptances, one lane and then all of `lanes`; none: not asked for
    struct real_list accept;
    struct number_list drafts;
    struct bench_table table[2];
    int tables;
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

// Time of each launch of a plain round of all of bench->lanes, averaged over a few rounds.
bool bench_lanes_profile(struct bench *bench, struct error *error);

// Streams of `lanes` different prompts, each with its first token taken. streams[lanes] begin as NULL; the caller closes them,
// also after a failure.
bool bench_open_streams(struct bench *bench, struct stream **streams, int lanes, const struct stream_options *options,
                        struct error *error);

// Times rounds of so many lanes, each with `asked` drafts (-1: as many as pay, found out anew) that land with a chance,
// right or wrong, until a lane has made bench->tokens.
bool bench_cell(struct bench *bench, double chance, int asked, int lanes, struct bench_cell *cell, struct error *error);

// Whether a cell is of what was asked for, by what its rounds were. False: error says what they were instead.
bool bench_cell_check(const struct bench_cell *cell, double chance, int asked, int lanes, struct error *error);

// Tables of all of bench->accept by bench->drafts. The caller frees them with bench_drafts_free.
bool bench_drafts(struct bench *bench, struct error *error);
void bench_drafts_free(struct bench *bench);
void bench_drafts_text(const struct bench *bench);
void bench_drafts_json(const struct bench *bench, json_t *root);

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

// A round of one lane, one of all lanes (bytes are those that one of them touches), and a prompt.
struct bench_part bench_round(const struct bench *bench);
struct bench_part bench_lanes_round(const struct bench *bench);
struct bench_part bench_prompt(const struct bench *bench);

// Launches by op, or by op and shape; seconds and bytes are those of all passes. How many rows there are.
int bench_rows(const struct bench_part *part, bool shapes, struct bench_row rows[BENCH_ROWS]);

// The same by group of ops, of rows by op; groups without launches are left out. Rows that another build wrote fit too: an op
// that no group knows is in the last one.
int bench_groups(const struct bench_row *rows, int count, struct bench_row groups[BENCH_ROWS]);

void bench_sort(struct bench_row *rows, int count); // the longest first
void bench_rows_text(const struct bench *bench);
void bench_rows_json(const struct bench *bench, json_t *root);

void bench_print_text(const struct bench *bench);
void bench_print_json(const struct bench *bench);
void bench_print_chart(const struct bench *bench); // a script for gnuplot, which writes an SVG

// Draws two runs from what --json printed of them, by groups of ops: bars of text, or a script for gnuplot.
bool bench_compare(const char *before, const char *after, bool gnuplot, struct error *error);

#endif
