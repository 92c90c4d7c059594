// SPDX-License-Identifier: Apache-2.0
//
// The gated norm of one head of one row.
//
// Invariant: a sum's order depends on the width of a load and the number of threads alone.

#ifndef CUDA_GATED_NORM_CUH
#define CUDA_GATED_NORM_CUH

#include "kernels/cuda/vec.cuh"

enum { GATED_HEADS = 4 }; // of a block, a warp each

// The thread's first gates and weights.
template <int W> struct gated_first {
    vec<W> gate, weight;
};

template <int W> DEVICE gated_first<W> gated_norm_take(const float *z, const float *w, int32_t dim, int32_t thread)
{
    gated_first<W> first = {};
    if (thread * W < dim) {
        first.gate = vec_load<W>(z + thread * W);
        first.weight = vec_load<W>(w + thread * W);
    }
    return first;
}

// store(i, y) of numbers i .. i + W - 1: y = x * rsqrt(mean x^2 + eps) * w * act(z), or x * act(z) normalised, times w. `threads` threads
// share the head: a warp, or with BLOCK a block, whose `space` is that of block_sum(). ONE: a thread has one vector at most.
template <int W, bool BLOCK, bool ONE, class STORE>
DEVICE void gated_norm_head(const struct gated_norm_args *a, const float *x, const float *z, const float *w,
                            const STORE &store, const gated_first<W> &first, int32_t thread, int32_t threads,
                            float *space)
{
    float sum = 0;
    vec<W> kept, gates; // of the thread's first vector
    for (int32_t i = thread * W; i < a->dim; i += threads * W) {
        vec<W> t = vec_load<W>(x + i);
        vec<W> gate = ONE || i == thread * W ? first.gate : vec_load<W>(z + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            gate.v[j] = f_activate(gate.v[j], a->activation);
            if (a->norm_after)
                t.v[j] = f_mul(t.v[j], gate.v[j]);
            sum = fmaf(t.v[j], t.v[j], sum);
        }
        if (i == thread * W) {
            kept = t;
            gates = gate;
        }
        if (ONE)
            break;
    }
    sum = BLOCK ? block_sum(sum, space) : warp_sum<WARP>(sum);
    const float factor = 1.0f / sqrtf(sum / (float)a->dim + a->eps);
    for (int32_t i = thread * W; i < a->dim; i += threads * W) {
        vec<W> t, gate, weight;
        if (ONE || i == thread * W) {
            t = kept;
            gate = gates;
            weight = first.weight;
        } else {
            t = vec_load<W>(x + i);
            gate = vec_load<W>(z + i);
            weight = vec_load<W>(w + i);
#pragma unroll
            for (int j = 0; j < W; j++) {
                gate.v[j] = f_activate(gate.v[j], a->activation);
                t.v[j] = a->norm_after ? f_mul(t.v[j], gate.v[j]) : t.v[j];
            }
        }
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float normed = f_mul(f_mul(t.v[j], factor), weight.v[j]);
            t.v[j] = a->norm_after ? normed : f_mul(normed, gate.v[j]);
        }
        store(i, t);
        if (ONE)
            break;
    }
}

#endif
