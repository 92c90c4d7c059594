// SPDX-License-Identifier: Apache-2.0
//
// The norm of one head of a row and its rotation, by one warp.
//
// Invariant: a head's bits depend on its numbers, its weights and its position alone, whoever calls.

#ifndef CUDA_HEAD_NORM_CUH
#define CUDA_HEAD_NORM_CUH

#include "kernels/cuda/rotary.cuh"

enum { HEAD_HELD = 8 }; // numbers of a lane that are under way at once

// Weights of a lane's first numbers, and the frequency of its first pair: nobody writes them, so they may be taken
// before pdl_wait().
struct head_weights {
    float w[HEAD_HELD], frequency;
};

DEVICE struct head_weights head_weights_of(const struct head_norm_args *a, int32_t lane)
{
    struct head_weights held;
#pragma unroll
    for (int n = 0; n < HEAD_HELD; n++)
        held.w[n] = a->w && lane + n * WARP < a->dim ? a->w[lane + n * WARP] : 0.0f;
    held.frequency = lane < a->rotary / 2 ? a->inverse_frequency[lane] : 0.0f;
    return held;
}

// Numbers of a lane that come first.
struct head_numbers {
    float x[HEAD_HELD];
};

DEVICE const float *head_of(const struct head_norm_args *a, int64_t r, int32_t head)
{
    return a->x + r * a->ldx + (int64_t)head * a->head_stride;
}

// volatile: asked for at once, here.
DEVICE struct head_numbers head_numbers_of(const volatile float *x, int32_t dim, int32_t lane)
{
    struct head_numbers held;
#pragma unroll
    for (int n = 0; n < HEAD_HELD; n++)
        held.x[n] = lane + n * WARP < dim ? x[lane + n * WARP] : 0.0f;
    return held;
}

// Leaves the head's numbers in `row` as they are, each where its lane reads it.
DEVICE void head_copy(const float *x, int32_t dim, const struct head_numbers &numbers, float *row, int32_t lane)
{
#pragma unroll
    for (int n = 0; n < HEAD_HELD; n++)
        if (lane + n * WARP < dim)
            row[lane + n * WARP] = numbers.x[n];
#pragma unroll 1
    for (int32_t i = lane + HEAD_HELD * WARP; i < dim; i += WARP)
        row[i] = x[i];
}

// Leaves the head, normed and rotated, in `row`, dim floats of shared memory that the warp has for itself; all lanes
// see all of it.
DEVICE void head_norm_row(const struct head_norm_args *a, const float *x, const struct head_numbers &numbers,
                          const struct head_weights &weights, float *row, int32_t position, int32_t lane)
{
    float sum = 0, factor = 1;
#pragma unroll
    for (int n = 0; n < HEAD_HELD; n++)
        if (lane + n * WARP < a->dim)
            sum = fmaf(numbers.x[n], numbers.x[n], sum);
#pragma unroll 1
    for (int32_t i = lane + HEAD_HELD * WARP; i < a->dim; i += WARP)
        sum = fmaf(x[i], x[i], sum);
    if (a->w)
        factor = 1.0f / sqrtf(warp_sum<WARP>(sum) / (float)a->dim + a->eps);
#pragma unroll
    for (int n = 0; n < HEAD_HELD; n++)
        if (lane + n * WARP < a->dim)
            row[lane + n * WARP] = a->w ? f_mul(f_mul(numbers.x[n], factor), weights.w[n]) : numbers.x[n];
#pragma unroll 1
    for (int32_t i = lane + HEAD_HELD * WARP; i < a->dim; i += WARP)
        row[i] = a->w ? f_mul(f_mul(x[i], factor), a->w[i]) : x[i];
    __syncwarp();
    rotary_row(row, a->rotary, a->inverse_frequency, weights.frequency, position, lane);
    __syncwarp();
}

#endif
