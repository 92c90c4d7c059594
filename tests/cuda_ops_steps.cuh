// SPDX-License-Identifier: Apache-2.0
//
// Steps that have one kernel (graphs/exec_cuda.c): the same bits as their ops one after the other, for 1 to 17 rows.

#ifndef CUDA_OPS_STEPS_CUH
#define CUDA_OPS_STEPS_CUH

#include "tests/cuda_ops_rows.cuh"

typedef cudaError_t (*step_launcher)(cudaStream_t, const void *const *, int);
extern "C" {
cudaError_t cuda_inject_norm(cudaStream_t, const void *const *, int);
cudaError_t cuda_sum_inject(cudaStream_t, const void *const *, int);
cudaError_t cuda_sum_inject_norm(cudaStream_t, const void *const *, int);
cudaError_t cuda_add_norm(cudaStream_t, const void *const *, int);
cudaError_t cuda_sum_add(cudaStream_t, const void *const *, int);
cudaError_t cuda_sum_add_norm(cudaStream_t, const void *const *, int);
}

// Ops around a residual, of which a step has the sum or not, and the norm or not. plain: add in place of hc_inject.
struct residual_ops {
    struct moe_sum_args sum;
    struct hc_inject_args inject;
    struct add_args add;
    struct norm_args norm;
    bool plain;
};

static step_launcher residual_step(bool plain, bool with_sum, bool with_norm)
{
    if (!with_sum)
        return plain ? cuda_add_norm : cuda_inject_norm;
    if (!with_norm)
        return plain ? cuda_sum_add : cuda_sum_inject;
    return plain ? cuda_sum_add_norm : cuda_sum_inject_norm;
}

// The arrays that a step promises, of its ops run one by one and of the step itself. break_it: the step gets another epsilon.
static bool step_same_by(step_launcher step, const struct residual_ops &ops, bool with_sum, bool with_norm, int rows,
                         bool break_it)
{
    const int width = ops.inject.streams * ops.inject.dim;
    const int64_t bytes = (int64_t)rows * width * 4;
    uint8_t *streams = (uint8_t *)malloc((size_t)bytes), *normed = (uint8_t *)malloc((size_t)bytes);
    const struct moe_sum_args s = translated(ops.sum);
    const struct hc_inject_args i = translated(ops.inject);
    const struct add_args plain = translated(ops.add);
    struct norm_args n = translated(ops.norm);
    row_pass->rows = rows;
    push_all();
    if (with_sum)
        gpu(cuda_moe_sum, &ops.sum, CAPACITY);
    if (ops.plain)
        gpu(cuda_add, &ops.add, CAPACITY);
    else
        gpu(cuda_hc_inject, &ops.inject, CAPACITY);
    if (with_norm)
        gpu(cuda_norm, &ops.norm, CAPACITY);
    memcpy(streams, pull((uint8_t *)ops.inject.r, bytes), (size_t)bytes);
    memcpy(normed, pull((uint8_t *)ops.norm.y, bytes), (size_t)bytes);
    push_all();
    n.eps = break_it ? 1.0f : n.eps;
    const void *const residual = ops.plain ? (const void *)&plain : &i;
    const void *const all[] = {&s, residual, &n};
    // A launch for one row may go another way than one with room for many.
    rig_check(step(0, with_sum ? all : all + 1, rows == 1 ? 1 : CAPACITY), "a residual's step");
    rig_check(cudaDeviceSynchronize(), "step");
    const bool equal = same(pull((uint8_t *)ops.inject.r, bytes), streams, bytes) &&
                       (!with_norm || same(pull((uint8_t *)ops.norm.y, bytes), normed, bytes));
    free(streams);
    free(normed);
    return equal;
}

static bool step_same(const struct residual_ops &ops, bool with_sum, bool with_norm, int rows, bool break_it)
{
    return step_same_by(residual_step(ops.plain, with_sum, with_norm), ops, with_sum, with_norm, rows, break_it);
}

static void test_steps(void)
{
    static const int shapes[][3] = {{4, 2560, 10}, {4, 64, 3}, {2, 4096, 1}, {1, 5120, 8}, {1, 1024, 2}};
    static const int counts[] = {1, 2, 5, 8, 17};
    for (const int *s : shapes) {
        const int all = s[0] * s[1];
        rows_begin();
        struct residual_ops ops = {};
        ops.plain = s[0] == 1;
        ops.sum = {
            row_pass,         s[2],          s[1],          1, s[1], s[1], rows_in(s[2] * s[1], 2), rows_in(s[2], 1),
            rows_in(s[1], 2), rows_in(1, 2), rows_out(s[1])};
        ops.inject = {row_pass, s[0], s[1], s[0], rows_in(s[0], 2), ops.sum.y, rows_changed(all, 2)};
        ops.add = {row_pass, s[1], s[1], s[1], ops.inject.r, ops.sum.y};
        ops.norm = {row_pass, s[0], s[1], all, all, 1e-6f, ops.inject.r, take_floats(all, 1), rows_out(all)};
        for (int way = 0; way < 3; way++) {
            bool equal = true;
            for (int rows : counts)
                equal = step_same(ops, way > 0, way != 1, rows, false) && equal;
            ok(equal, "step %d of %d x %d: the bits of its ops", way, s[0], s[1]);
        }
        ok(!step_same(ops, true, true, 3, true), "another epsilon in the step is found");
    }
}

#endif
