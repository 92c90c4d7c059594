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

DEVICE float *gdn_saved(const struct gdn_args *a, const struct lane *lane)
{
    return reinterpret_cast<float *>(lane->run + a->state) + (int64_t)a->nv * a->dk * a->dv;
}

// y = x / |x| * scale, zeros from n to padded; one warp.
DEVICE void gdn_normalise(float *y, const float *x, int32_t n, int32_t padded, float scale, int32_t lane)
{
    float sum = 0;
    for (int32_t i = lane; i < n; i += WARP)
        sum = fmaf(x[i], x[i], sum);
    const float factor = 1.0f / sqrtf(warp_sum<WARP>(sum) + 1e-6f);
    for (int32_t i = lane; i < padded; i += WARP)
        y[i] = i < n ? f_mul(f_mul(x[i], factor), scale) : 0.0f;
}

// exp(g) and beta of row r of the pass.
DEVICE void gdn_scalars(const struct gdn_args *a, int64_t r, int32_t head, float *decay, float *beta)
{
    const float g = f_mul(-expf(a->a_log[head]), f_softplus(__fadd_rn(a->a[r * a->lda + head], a->dt_bias[head])));
    *decay = expf(g);
    *beta = f_sigmoid(a->b[r * a->ldb + head]);
}

// One row: decay, read, correct; with READ the output is returned in every thread of the column. k, q: in shared memory.
template <int PER, bool READ>
DEVICE float gdn_step(float *s, const float *k, const float *q, float v, float decay, float beta, int32_t part)
{
    const float4 *keys = reinterpret_cast<const float4 *>(k) + part,
                 *queries = reinterpret_cast<const float4 *>(q) + part;
    float read[4] = {}, out[4] = {};
    float4 held[PER / 4];
#pragma unroll
    for (int m = 0; m < PER / 4; m++) {
        held[m] = keys[m * STATE_PARTS];
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[4 * m + j] = f_mul(s[4 * m + j], decay);
        read[0] = fmaf(s[4 * m], held[m].x, read[0]);
        read[1] = fmaf(s[4 * m + 1], held[m].y, read[1]);
        read[2] = fmaf(s[4 * m + 2], held[m].z, read[2]);
        read[3] = fmaf(s[4 * m + 3], held[m].w, read[3]);
    }
    const float delta = f_mul(beta, __fadd_rn(v, -warp_sum<STATE_PARTS>(chain_sum(read))));
#pragma unroll
    for (int m = 0; m < PER / 4; m++) {
        s[4 * m] = fmaf(held[m].x, delta, s[4 * m]);
        s[4 * m + 1] = fmaf(held[m].y, delta, s[4 * m + 1]);
        s[4 * m + 2] = fmaf(held[m].z, delta, s[4 * m + 2]);
        s[4 * m + 3] = fmaf(held[m].w, delta, s[4 * m + 3]);
        if constexpr (READ) {
            const float4 query = queries[m * STATE_PARTS];
            out[0] = fmaf(s[4 * m], query.x, out[0]);
            out[1] = fmaf(s[4 * m + 1], query.y, out[1]);
            out[2] = fmaf(s[4 * m + 2], query.z, out[2]);
            out[3] = fmaf(s[4 * m + 3], query.w, out[3]);
        }
    }
    return READ ? warp_sum<STATE_PARTS>(chain_sum(out)) : 0.0f;
}

#endif
