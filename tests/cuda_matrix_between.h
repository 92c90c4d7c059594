// SPDX-License-Identifier: Apache-2.0
//
// One decode row between two blocks (cuda_inject_norm_mix()): the bits of the launches that it stands
// for, in the streams, what is to be injected next and the mix, where it has kernels for one shape; else it is left to them.
//
// Red controls: another epsilon, another gate of the injection and another addend are found.

#ifndef CUDA_MATRIX_BETWEEN_H
#define CUDA_MATRIX_BETWEEN_H

#include "tests/cuda_matrix_fixed.h"
#include "tests/cuda_matrix_streams.h"

extern "C" {
cudaError_t cuda_inject_norm(cudaStream_t stream, const void *const *args, int rows);
cudaError_t cuda_linear_mix(cudaStream_t stream, const void *const *args, int rows);
}

// What a run leaves: the streams, the four gates of the next injection, the mix.
enum { ROW_BETWEEN_ALL = BETWEEN_WIDTH + 4 + BETWEEN_DIM };

// One row, of which the pass has `rows`. False: the step was declined.
static bool row_between_run(struct between *b, int rows, bool step, float *all)
{
    const int memory = rig_memory_count;
    b->injected.pass = b->norm.pass = b->gates.pass = b->wide.pass = b->mix.pass = put_pass(rows, NULL);
    const void *ops[] = {&b->injected, &b->norm, &b->gates, &b->wide, &b->mix};
    cudaError_t error = cudaErrorNotSupported;
    rig_copy(b->injected.r, b->streams, BETWEEN_WIDTH * 4);
    rig_fill(b->mix.y, 0, BETWEEN_DIM * 4);
    rig_fill(b->gates.part[1].y, 0, 4 * 4);
    if (step)
        error = cuda_inject_norm_mix(0, ops, 1);
    const bool taken = error != cudaErrorNotSupported;
    if (!taken) {
        must(cuda_inject_norm(0, ops, 1), "the injection");
        must(cuda_linear(0, &b->gates, 1), "the first product");
        error = cuda_linear_mix(0, ops + 3, 1);
    }
    must(error, "a row between blocks");
    rig_finish("a row between blocks");
    rig_copy(all, b->injected.r, BETWEEN_WIDTH * 4);
    rig_copy(all + BETWEEN_WIDTH, b->gates.part[1].y, 4 * 4);
    rig_copy(all + BETWEEN_WIDTH + 4, b->mix.y, BETWEEN_DIM * 4);
    put_back(memory);
    return taken;
}

static void test_row_between_of(int encoding, int bits, int group)
{
    struct between b = between_make(encoding, bits, group, encoding);
    const char *name = encoding_name(encoding);
    const struct hc_inject_args injected = b.injected;
    const float eps = b.norm.eps;
    static float want[ROW_BETWEEN_ALL], got[ROW_BETWEEN_ALL];
    b.gates.row_class = b.wide.row_class = CLASS_DECODE;
    row_between_run(&b, 1, false, want);
    const bool taken = row_between_run(&b, 1, true, got);
    ok(taken == fixed_here() && memcmp(want, got, sizeof want) == 0, "%s: a row between blocks: the bits of its ops%s",
       name, taken ? "" : ", which it left to them");
    ok(memcmp(got, b.streams, BETWEEN_WIDTH * 4) != 0, "%s: a row between blocks: streams are changed", name);
    row_between_run(&b, 0, true, got);
    ok(memcmp(got, b.streams, BETWEEN_WIDTH * 4) == 0, "%s: a row between blocks: no rows, no injection", name);
    b.norm.eps = 1;
    row_between_run(&b, 1, true, got);
    ok(memcmp(want, got, BETWEEN_WIDTH * 4) == 0 &&
           memcmp(want + BETWEEN_WIDTH, got + BETWEEN_WIDTH, sizeof want - BETWEEN_WIDTH * 4) != 0,
       "%s: a row between blocks: another epsilon is found", name);
    b.norm.eps = eps;
    b.injected.inject += 4;
    row_between_run(&b, 1, true, got);
    ok(want[BETWEEN_WIDTH - 1] != got[BETWEEN_WIDTH - 1] && want[BETWEEN_WIDTH] != got[BETWEEN_WIDTH],
       "%s: a row between blocks: other gates of the injection are found", name);
    b.injected = injected;
    b.injected.y += 4;
    row_between_run(&b, 1, true, got);
    ok(want[BETWEEN_WIDTH - 1] != got[BETWEEN_WIDTH - 1] && want[BETWEEN_WIDTH] != got[BETWEEN_WIDTH],
       "%s: a row between blocks: another addend is found", name);
    between_free(&b);
}

static void test_row_between(void)
{
    test_row_between_of(ENC_BF16, 0, 0);
    test_row_between_of(ENC_AFFINE, 4, 32);
}

#endif
