// SPDX-License-Identifier: Apache-2.0
//
// An addition to a residual and its norm, whose rows are taken apart for the product behind them at once (eight.cuh): a block a row.
//
// Invariant: operations and their order are those of residual.cu's inject_kernel with one stream, and the numbers those of split_kernel().

#ifndef NORM_SPLIT_CUH
#define NORM_SPLIT_CUH

#include "kernels/cuda/eight.cuh"
#include "kernels/cuda/launch.cuh"

enum {
    NORM_THREADS = 1024,
    NORM_KEEP = 2, // vectors of four numbers a thread, at most
    NORM_MOST = NORM_THREADS * 4 * NORM_KEEP,
    NORM_WHOLE = 256, // numbers that a warp takes apart at once
};

// row: the first one; others lie k numbers behind each other, normed ones ld. k: a multiple of NORM_WHOLE, NORM_MOST at most.
struct norm_split {
    const struct pass *pass;
    struct residual_row row;
    int64_t ld;
    struct split_rows to;
};

// Rows that are not there are zeros.
template <int KEEP>
static __global__ void __launch_bounds__(NORM_THREADS) norm_split_kernel(const __grid_constant__ struct norm_split a)
{
    SHARED_ROOM(memory);
    __shared__ float space[WARP];
    float *normed = (float *)memory;
    const int k = a.to.k, r = (int)blockIdx.x, step = (int)blockDim.x * 4, first = (int)threadIdx.x * 4;
    vec<4> weight[KEEP], kept[KEEP], y[KEEP];
#pragma unroll
    for (int n = 0; n < KEEP; n++)
        if (first + n * step < k)
            weight[n] = vec_load<4>(a.row.weight + first + n * step);
    float *residual = a.row.residual + (int64_t)r * k, *to = a.row.normed + r * a.ld, sum = 0;
    const float *added = a.row.added + (int64_t)r * k;
    pdl_trigger(); // the product reads nothing but weights before its wait
    pdl_wait();
    const int live = *(const volatile int32_t *)&a.pass->rows;
#pragma unroll
    for (int n = 0; n < KEEP; n++)
        if (first + n * step < k && r < a.to.rows) { // all are under way before one is stored
            kept[n] = vec_load<4>(residual + first + n * step);
            y[n] = vec_load<4>(added + first + n * step);
        }
#pragma unroll
    for (int n = 0; n < KEEP; n++)
        if (first + n * step < k && r < live) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                kept[n].v[j] = fmaf(1.0f, y[n].v[j], kept[n].v[j]);
            vec_store<4>(residual + first + n * step, kept[n]);
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum = fmaf(kept[n].v[j], kept[n].v[j], sum);
        }
    const float factor = 1.0f / sqrtf(__fadd_rn(block_sum(sum, space) / (float)k, a.row.eps));
#pragma unroll
    for (int n = 0; n < KEEP; n++)
        if (first + n * step < k) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                kept[n].v[j] = r < live ? f_mul(f_mul(kept[n].v[j], factor), weight[n].v[j]) : 0.0f;
            vec_store<4>(normed + first + n * step, kept[n]);
            if (r < live)
                vec_store<4>(to + first + n * step, kept[n]);
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < k / 8; i += (int)blockDim.x) { // whole warps
        float v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = normed[i * 8 + j];
        split_store(a.to, r / TILE_ROWS, {i >> 2, r % TILE_ROWS}, v);
    }
}

#endif
