// SPDX-License-Identifier: Apache-2.0
//
// What bench measures, shared by the measuring (cmd_bench.c) and the printing (bench_print.c).

#ifndef BENCH_H
#define BENCH_H

#include "runtime/ceiling.h"
#include "runtime/engine_state.h"
#include "runtime/tokenizer.h"

enum {
    BENCH_REPEATS = 1000,
    BENCH_PROFILED = 8, // rounds that the kernels' times are averaged over
    BENCH_LEAST_BYTES = 1 << 30,
};
#define BENCH_MOST_BYTES (INT64_C(4) << 30)

struct bench {
    struct engine *engine;
    struct pool *pool; // the ceiling's; the engine has its own
    struct ceiling *ceiling;
    const struct program *program; // of one token
    const struct program *prompt_program;
    int32_t *ids; // [prompt]
    int prompt, tokens, repeats;
    bool synthetic, drafting, per_op;
    char load[128]; // of the machine before the run
    int64_t bytes_a_token, drafted, accepted;
    double *seconds;        // [program->launches] of one launch
    double *prompt_seconds; // [prompt_program->launches] of all chunks of a prompt
    double round_seconds, kernel_seconds;
    double prompt_rate[BENCH_REPEATS], decode_rate[BENCH_REPEATS], drafted_rate[BENCH_REPEATS], share[BENCH_REPEATS];
    double ceiling_rate[2 * BENCH_REPEATS];
};

// Median of up to 2 * BENCH_REPEATS values.
double bench_median(const double *values, int count);

void bench_print_text(const struct bench *bench);
void bench_print_json(const struct bench *bench);

#endif
