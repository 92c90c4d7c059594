// SPDX-License-Identifier: Apache-2.0
//
// A row that is made of others before it is multiplied: an addition to a residual, or the injection into the streams of
// hyper-connections, and the norm behind it. Each block makes what its part of k needs for itself.
//
// Invariant: operations and their order are those of residual.cu's inject_kernel, each of whose threads has a vector of four
// numbers; a taker stands for BEFORE_VECTORS of them.

#ifndef WINDOW_NORM_CUH
#define WINDOW_NORM_CUH

#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/vec.cuh"

// What x is made of: the values of linear_shape's norm. A residual of one row, or four streams of which a slice of k has one.
enum before_kind { BEFORE_NOTHING, BEFORE_ADD, BEFORE_STREAMS };
enum { BEFORE_STREAM_COUNT = 4, BEFORE_VECTORS = 2, RESIDUAL_MOST = 4096 }; // numbers of a norm
static_assert(RESIDUAL_MOST == 4 * TAKERS * BEFORE_VECTORS, "a taker stands for so many vectors");

// norm(residual + factor * added) * weight, of k numbers in whole blocks. BEFORE_ADD: the factor is 1, and the kernel puts the sum in the
// residual's place. Streams: each of k / 4 numbers has a norm of its own and the factor 2 sigmoid(inject[stream]); added is a row
// of k / 4; the launch behind changes the streams (stream_update). The normed row is stored too, where the pass has rows.
struct residual_row {
    float *residual;
    const float *added, *weight;
    float *normed;
    float eps;
    const float *inject; // of streams
};

// The window: numbers from .. to - 1 of the k go to memory. space: 32 floats. read: BEFORE_ADD, its barrier: the warps have read the
// residual. live: whether the pass has the row.
struct norm_window {
    float *memory;
    int32_t k, from, to;
    bool live;
    float *space;
    uint64_t *read;
};

// Which share of the whole a block stores: BEFORE_ADD, its own part of k; streams: the first block of a slice the slice.
template <int BEFORE> __device__ __forceinline__ bool norm_stores(const norm_window &w, int i)
{
    if constexpr (BEFORE == BEFORE_ADD) {
        const int own = (w.k / 4 + gridDim.x - 1) / gridDim.x, first = own * blockIdx.x;
        return i / 4 >= first && i / 4 < first + own;
    } else {
        return blockIdx.x * (w.to - w.from) < w.k; // slices are equally long, and first in the list of units
    }
}

// By all takers.
template <int BEFORE> __device__ __forceinline__ void window_norm(const residual_row &b, const norm_window &w)
{
    constexpr bool streams = BEFORE == BEFORE_STREAMS;
    const int dim = streams ? w.k / BEFORE_STREAM_COUNT : w.k, stream = streams ? w.from / dim : 0, base = stream * dim;
    const int warps = (dim / 4 + 31) / 32, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    auto at = [&](int n) { return (int)(threadIdx.x + n * TAKERS) * 4; };
    float4 kept[BEFORE_VECTORS], y[BEFORE_VECTORS], weight[BEFORE_VECTORS];
    const float gate = streams ? __ldcg(b.inject + stream) : 0.0f;
#pragma unroll
    for (int n = 0; n < BEFORE_VECTORS; n++)
        if (at(n) < dim) {
            kept[n] = __ldcg((const float4 *)(b.residual + base + at(n)));
            weight[n] = *(const float4 *)(b.weight + base + at(n));
            y[n] = __ldcg((const float4 *)(b.added + at(n)));
        }
    const float factor_of = streams ? f_mul(2.0f, f_sigmoid(gate)) : 1.0f;
    float sum[BEFORE_VECTORS] = {0, 0};
#pragma unroll
    for (int n = 0; n < BEFORE_VECTORS; n++)
        if (at(n) < dim) {
            float4 &v = kept[n];
            v = make_float4(fmaf(factor_of, y[n].x, v.x), fmaf(factor_of, y[n].y, v.y), fmaf(factor_of, y[n].z, v.z),
                            fmaf(factor_of, y[n].w, v.w));
            sum[n] = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum[n]))));
        }
#pragma unroll
    for (int n = 0; n < BEFORE_VECTORS; n++) {
        sum[n] = warp_sum<WARP>(sum[n]);
        if (lane == 0)
            w.space[warp + n * WARPS] = sum[n];
    }
    some_wait(TAKERS);
    if (BEFORE == BEFORE_ADD && lane == 0)
        stage_arrive(w.read);
    const float all = warp_sum<WARP>(lane < warps ? w.space[lane] : 0.0f),
                factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(all, (float)dim), b.eps)));
#pragma unroll
    for (int n = 0; n < BEFORE_VECTORS; n++)
        if (at(n) < dim) {
            const float4 v = make_float4(__fmul_rn(__fmul_rn(kept[n].x, factor), weight[n].x),
                                         __fmul_rn(__fmul_rn(kept[n].y, factor), weight[n].y),
                                         __fmul_rn(__fmul_rn(kept[n].z, factor), weight[n].z),
                                         __fmul_rn(__fmul_rn(kept[n].w, factor), weight[n].w));
            const int i = base + at(n);
            const bool inside = i >= w.from && i < w.to;
            if (inside)
                *(float4 *)(w.memory + i - w.from) = v;
            if (w.live && norm_stores<BEFORE>(w, i) && (!streams || inside))
                *(float4 *)(b.normed + i) = v;
        }
    some_wait(TAKERS);
}

#endif
