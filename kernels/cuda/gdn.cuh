// SPDX-License-Identifier: Apache-2.0
//
// The Gated DeltaNet row update on registers, and the preparation of its rows.
//
// Invariant: prompt rows, windows and folds run the same update on the same prepared numbers, so all three leave the same bits.

#ifndef CUDA_GDN_CUH
#define CUDA_GDN_CUH

#include "kernels/cuda/recurrent.cuh"

static __host__ __device__ inline int64_t gdn_prepared_width(const struct gdn_args *a)
{
    return 2 * (int64_t)a->nk * a->dk + 2 * a->nv;
}

static __host__ __device__ inline int64_t gdn_saved_width(const struct gdn_args *a)
{
    return (int64_t)a->nk * a->dk + (int64_t)a->nv * a->dv + 2 * a->nv;
}

DEVICE float *gdn_saved(const struct gdn_args *a, uint8_t *run)
{
    return reinterpret_cast<float *>(run + a->state) + (int64_t)a->nv * a->dk * a->dv;
}

enum { GDN_LANE = 8, GDN_MANY = 4 }; // numbers of a key that a lane holds at most; keys that a warp normalises at once

// The lane's numbers of a key of n.
DEVICE void gdn_take(float *held, const float *x, int32_t n, int32_t lane)
{
#pragma unroll
    for (int m = 0; m < GDN_LANE; m++)
        held[m] = lane + m * WARP < n ? x[lane + m * WARP] : 0.0f;
}

// y = x / |x| * scale, zeros from n to padded; one warp.
DEVICE void gdn_normalise(float *y, const float *held, int32_t n, int32_t padded, float scale, int32_t lane)
{
    float sum = 0;
#pragma unroll
    for (int m = 0; m < GDN_LANE; m++)
        sum = fmaf(held[m], held[m], sum);
    const float factor = 1.0f / sqrtf(warp_sum<WARP>(sum) + 1e-6f);
#pragma unroll
    for (int m = 0; m < GDN_LANE; m++)
        if (lane + m * WARP < padded)
            y[lane + m * WARP] = lane + m * WARP < n ? f_mul(f_mul(held[m], factor), scale) : 0.0f;
}

// What exp(g) and beta of a row and value head are made of.
struct gdn_raw {
    float a_log, a, dt_bias, b;
};

DEVICE struct gdn_raw gdn_raw_of(const struct gdn_args *a, int64_t r, int32_t head)
{
    return {a->a_log[head], a->a[r * a->lda + head], a->dt_bias[head], a->b[r * a->ldb + head]};
}

DEVICE void gdn_raw_scalars(const struct gdn_raw &raw, float *decay, float *beta)
{
    const float g = f_mul(-expf(raw.a_log), f_softplus(__fadd_rn(raw.a, raw.dt_bias)));
    *decay = expf(g);
    *beta = f_sigmoid(raw.b);
}

// exp(g) and beta of row r of the pass.
DEVICE void gdn_scalars(const struct gdn_args *a, int64_t r, int32_t head, float *decay, float *beta)
{
    gdn_raw_scalars(gdn_raw_of(a, r, head), decay, beta);
}

// The thread's values, in shared memory at a multiple of their bytes.
template <int EACH> DEVICE void gdn_values(float *held, const float *v)
{
    static_assert(EACH == 2 || EACH == 4, "columns of a thread");
    if constexpr (EACH == 2) {
        const float2 t = *reinterpret_cast<const float2 *>(v);
        held[0] = t.x, held[1] = t.y;
    } else {
        const float4 t = *reinterpret_cast<const float4 *>(v);
        held[0] = t.x, held[1] = t.y, held[2] = t.z, held[3] = t.w;
    }
}

// One row: decay, read, correct; with READ returns the output of column state_column<EACH>(part) in parts 0 .. EACH - 1. k, q, v: in
// shared memory, v at the thread's columns, of which it has EACH. A column's bits do not depend on EACH.
template <int PER, bool READ, int EACH = STATE_EACH>
DEVICE float gdn_step(float (*s)[EACH], const float *k, const float *q, const float *v, float decay, float beta,
                      int32_t part)
{
    const float4 *keys = reinterpret_cast<const float4 *>(k) + part,
                 *queries = reinterpret_cast<const float4 *>(q) + part;
    float read[EACH] = {}, out[EACH] = {}, delta[EACH], values[EACH];
    float4 held[PER / 4];
#pragma unroll
    for (int m = 0; m < PER / 4; m++) {
        held[m] = keys[m * STATE_PARTS];
        const float key[4] = {held[m].x, held[m].y, held[m].z, held[m].w};
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < EACH; c++) {
                s[4 * m + j][c] = f_mul(s[4 * m + j][c], decay);
                read[c] = fmaf(s[4 * m + j][c], key[j], read[c]);
            }
    }
    state_sum<EACH>(read);
    gdn_values<EACH>(values, v);
#pragma unroll
    for (int c = 0; c < EACH; c++)
        delta[c] = f_mul(beta, __fadd_rn(values[c], -read[c]));
#pragma unroll
    for (int m = 0; m < PER / 4; m++) {
        const float4 asked = READ ? queries[m * STATE_PARTS] : make_float4(0, 0, 0, 0);
        const float key[4] = {held[m].x, held[m].y, held[m].z, held[m].w},
                    query[4] = {asked.x, asked.y, asked.z, asked.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < EACH; c++) {
                s[4 * m + j][c] = fmaf(key[j], delta[c], s[4 * m + j][c]);
                if (READ)
                    out[c] = fmaf(s[4 * m + j][c], query[j], out[c]);
            }
    }
    return READ ? state_sum_one<EACH>(out, part) : 0.0f;
}

#endif
