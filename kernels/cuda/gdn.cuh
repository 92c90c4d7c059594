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

// One row: decay, read, correct; with READ returns the output of column state_column(part) in parts 0 .. 3. k, q, v: in shared
// memory, v at the thread's columns.
template <int PER, bool READ>
DEVICE float gdn_step(float (*s)[STATE_EACH], const float *k, const float *q, const float *v, float decay, float beta,
                      int32_t part)
{
    const float4 *keys = reinterpret_cast<const float4 *>(k) + part,
                 *queries = reinterpret_cast<const float4 *>(q) + part;
    float read[STATE_EACH] = {}, out[STATE_EACH] = {}, delta[STATE_EACH];
    float4 held[PER / 4];
#pragma unroll
    for (int m = 0; m < PER / 4; m++) {
        held[m] = keys[m * STATE_PARTS];
        const float key[4] = {held[m].x, held[m].y, held[m].z, held[m].w};
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < STATE_EACH; c++) {
                s[4 * m + j][c] = f_mul(s[4 * m + j][c], decay);
                read[c] = fmaf(s[4 * m + j][c], key[j], read[c]);
            }
    }
    state_sum(read);
    const float4 values = *reinterpret_cast<const float4 *>(v);
    delta[0] = f_mul(beta, __fadd_rn(values.x, -read[0]));
    delta[1] = f_mul(beta, __fadd_rn(values.y, -read[1]));
    delta[2] = f_mul(beta, __fadd_rn(values.z, -read[2]));
    delta[3] = f_mul(beta, __fadd_rn(values.w, -read[3]));
#pragma unroll
    for (int m = 0; m < PER / 4; m++) {
        const float4 asked = READ ? queries[m * STATE_PARTS] : make_float4(0, 0, 0, 0);
        const float key[4] = {held[m].x, held[m].y, held[m].z, held[m].w},
                    query[4] = {asked.x, asked.y, asked.z, asked.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < STATE_EACH; c++) {
                s[4 * m + j][c] = fmaf(key[j], delta[c], s[4 * m + j][c]);
                if (READ)
                    out[c] = fmaf(s[4 * m + j][c], query[j], out[c]);
            }
    }
    return READ ? state_sum_one(out, part) : 0.0f;
}

#endif
