// SPDX-License-Identifier: Apache-2.0
//
// Gated DeltaNet: rows of a block in shared memory, the state between memory and registers, folds, runs and what a window saves.
//
// Invariant: of the saved rows a block writes what it alone reads, and of those that share a key head one block the rest.

#ifndef CUDA_GDN_STAGE_CUH
#define CUDA_GDN_STAGE_CUH

#include "kernels/cuda/gdn.cuh"

// ---- rows in shared memory ---------------------------------------------------------------------------------------------------

// Prepared rows, `stride` floats apart: k, q, v of the block's columns, decay and beta.
struct gdn_stage {
    float *k, *q, *v, *decay, *beta;
    int32_t stride;
};

// Floats of a row, keys padded to `padded`.
static __host__ __device__ inline int32_t gdn_stage_stride(int32_t padded, int32_t columns)
{
    return 2 * padded + columns + 4;
}

DEVICE struct gdn_stage gdn_stage_at(float *at, int32_t padded, int32_t columns)
{
    struct gdn_stage s;
    s.k = at;
    s.q = s.k + padded;
    s.v = s.q + padded;
    s.decay = s.v + columns;
    s.beta = s.decay + 1;
    s.stride = gdn_stage_stride(padded, columns);
    return s;
}

// The same with values from column `column` on.
DEVICE struct gdn_stage gdn_stage_of(struct gdn_stage s, int32_t column)
{
    s.v += column;
    return s;
}

// What a block works on.
struct gdn_block {
    int32_t head, key, first, columns,
        width; // key: first element of its key head; columns of S from `first`, `width` exist
    int64_t keys, values, row, rows;
    bool owner, leads; // of the scalars' and of the keys' saved rows
};

// Keys and queries of n rows (rows of ld floats), normalised, MANY at once a warp. They may lie where they go.
template <int MANY>
DEVICE void gdn_stage_keys(const struct gdn_stage *s, const float *q, const float *k, int64_t ld, int32_t n, int32_t dk,
                           int32_t padded)
{
    const int32_t lane = threadIdx.x % WARP, step = (int32_t)blockDim.x / WARP * MANY;
    for (int32_t first = (int32_t)threadIdx.x / WARP * MANY; first < 2 * n; first += step) {
        float held[MANY][GDN_LANE];
#pragma unroll
        for (int u = 0; u < MANY; u++) {
            const int32_t item = first + u < 2 * n ? first + u : first;
            gdn_take(held[u], (item % 2 ? k : q) + item / 2 * ld, dk, lane);
        }
#pragma unroll
        for (int u = 0; u < MANY; u++)
            if (first + u < 2 * n) {
                const bool key = (first + u) % 2;
                gdn_normalise((key ? s->k : s->q) + (first + u) / 2 * s->stride, held[u], dk, padded,
                              key ? 1.0f : 1.0f / sqrtf((float)dk), lane);
            }
    }
}

// Saves n staged rows as rows base .. of the window: a warp a row.
DEVICE void gdn_keep(const struct gdn_args *a, const struct gdn_block *b, const struct gdn_stage *s, float *saved,
                     int32_t base, int32_t n)
{
    const int32_t lane = threadIdx.x % WARP, warps = (int32_t)blockDim.x / WARP;
#pragma unroll 1
    for (int32_t t = (int32_t)threadIdx.x / WARP; t < n; t += warps) {
        float *keys = saved + (base + t) * gdn_saved_width(a), *values = keys + b->keys, *scalars = values + b->values;
        const int32_t from = t * s->stride;
#pragma unroll 1
        for (int32_t i = lane; i < b->width; i += WARP)
            values[(int64_t)b->head * a->dv + b->first + i] = s->v[from + i];
#pragma unroll 1
        for (int32_t i = lane; b->leads && i < a->dk; i += WARP)
            keys[b->key + i] = s->k[from + i];
        if (b->owner && lane == 0) {
            scalars[b->head] = s->decay[from];
            scalars[a->nv + b->head] = s->beta[from];
        }
    }
}

// ---- the state ----------------------------------------------------------------------------------------------------------------

// Folds n staged rows. s: values from the thread's columns on.
template <int PER> DEVICE void gdn_fold(const struct gdn_stage *s, int32_t n, float (*state)[STATE_EACH], int32_t part)
{
#pragma unroll 1
    for (int32_t t = 0; t < n * s->stride; t += s->stride)
        gdn_step<PER, false>(state, s->k + t, s->k, s->v + t, s->decay[t], s->beta[t], part);
}

// Runs n staged rows; outputs of the thread's columns, of which `live` exist, go to y.
template <int PER>
DEVICE void gdn_run(const struct gdn_stage *s, int32_t n, float (*state)[STATE_EACH], int32_t part, int32_t live,
                    float *y, int64_t ldy)
{
    const int32_t mine = state_column(part);
    y += mine;
#pragma unroll 1
    for (int32_t t = 0; t < n * s->stride; t += s->stride, y += ldy) {
        const float out = gdn_step<PER, true>(state, s->k + t, s->q + t, s->v + t, s->decay[t], s->beta[t], part);
        if (part < STATE_EACH && mine < live)
            *y = out;
    }
}

#endif
