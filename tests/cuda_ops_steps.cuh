// SPDX-License-Identifier: Apache-2.0
//
// Steps that have one kernel (graphs/exec_cuda.c): the same bits as their ops one after the other, for 1 to 17 rows.

#ifndef CUDA_OPS_STEPS_CUH
#define CUDA_OPS_STEPS_CUH

#include "tests/cuda_ops_rows.cuh"

extern "C" cudaError_t cuda_inject_norm(cudaStream_t, const void *const *, int);
extern "C" cudaError_t cuda_sum_inject(cudaStream_t, const void *const *, int);
extern "C" cudaError_t cuda_sum_inject_norm(cudaStream_t, const void *const *, int);

// The arrays that a step promises, of its ops run one by one and of the step itself. break_it: the step gets another epsilon.
static bool step_same(const struct moe_sum_args &sum, const struct hc_inject_args &inject, const struct norm_args &norm,
                      bool with_sum, bool with_norm, int rows, bool break_it)
{
    const int width = inject.streams * inject.dim;
    const int64_t bytes = (int64_t)rows * width * 4;
    uint8_t *streams = (uint8_t *)malloc((size_t)bytes), *normed = (uint8_t *)malloc((size_t)bytes);
    const struct moe_sum_args s = translated(sum);
    const struct hc_inject_args i = translated(inject);
    struct norm_args n = translated(norm);
    row_pass->rows = rows;
    push_all();
    if (with_sum)
        gpu(cuda_moe_sum, &sum, CAPACITY);
    gpu(cuda_hc_inject, &inject, CAPACITY);
    if (with_norm)
        gpu(cuda_norm, &norm, CAPACITY);
    memcpy(streams, pull((uint8_t *)inject.r, bytes), (size_t)bytes);
    memcpy(normed, pull((uint8_t *)norm.y, bytes), (size_t)bytes);
    push_all();
    n.eps = break_it ? 1.0f : n.eps;
    if (with_sum && with_norm) {
        const void *args[] = {&s, &i, &n};
        rig_check(cuda_sum_inject_norm(0, args, CAPACITY), "sum_inject_norm");
    } else if (with_sum) {
        const void *args[] = {&s, &i};
        rig_check(cuda_sum_inject(0, args, CAPACITY), "sum_inject");
    } else {
        const void *args[] = {&i, &n};
        rig_check(cuda_inject_norm(0, args, CAPACITY), "inject_norm");
    }
    rig_check(cudaDeviceSynchronize(), "step");
    const bool equal = same(pull((uint8_t *)inject.r, bytes), streams, bytes) &&
                       (!with_norm || same(pull((uint8_t *)norm.y, bytes), normed, bytes));
    free(streams);
    free(normed);
    return equal;
}

static void test_steps(void)
{
    static const int shapes[][3] = {{4, 2560, 10}, {4, 64, 3}, {2, 4096, 1}};
    static const int counts[] = {1, 2, 5, 8, 17};
    for (const int *s : shapes) {
        const int all = s[0] * s[1];
        rows_begin();
        struct moe_sum_args sum = {
            row_pass,         s[2],          s[1],          1, s[1], s[1], rows_in(s[2] * s[1], 2), rows_in(s[2], 1),
            rows_in(s[1], 2), rows_in(1, 2), rows_out(s[1])};
        struct hc_inject_args inject = {row_pass, s[0], s[1], s[0], rows_in(s[0], 2), sum.y, rows_changed(all, 2)};
        struct norm_args norm = {row_pass, s[0], s[1], all, all, 1e-6f, inject.r, take_floats(all, 1), rows_out(all)};
        for (int way = 0; way < 3; way++) {
            bool equal = true;
            for (int rows : counts)
                equal = step_same(sum, inject, norm, way > 0, way != 1, rows, false) && equal;
            ok(equal, "step %d of %d x %d: the bits of its ops", way, s[0], s[1]);
        }
        ok(!step_same(sum, inject, norm, true, true, 3, true), "another epsilon in the step is found");
    }
}

#endif
