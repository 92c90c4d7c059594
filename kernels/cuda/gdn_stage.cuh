// SPDX-License-Identifier: Apache-2.0
//
// Gated DeltaNet: rows of a block in shared memory, the state between memory and registers, folds, runs and what a window saves.
//
// Invariant: of the saved rows a block writes what it alone reads, and of those that share a key head one block the rest.

#ifndef CUDA_GDN_STAGE_CUH
#define CUDA_GDN_STAGE_CUH

#include "kernels/cuda/gdn.cuh"

// ---- rows in shared memory ---------------------------------------------------------------------------------------------------

// Prepared rows, `stride` floats apart: k, q, v of the block's columns, decay and beta of its heads.
struct gdn_stage {
    float *k, *q, *v, *decay, *beta;
    int32_t stride;
};

// Floats of a row, keys padded to `padded`. queries: whether there are any, 0 or 1.
static __host__ __device__ inline int32_t gdn_stage_stride(int32_t padded, int32_t columns, int32_t heads,
                                                           int32_t queries)
{
    return (1 + queries) * padded + columns + (2 * heads + 3) / 4 * 4;
}

DEVICE struct gdn_stage gdn_stage_at(float *at, int32_t padded, int32_t columns, int32_t heads, int32_t queries)
{
    struct gdn_stage s;
    s.k = at;
    s.q = s.k + padded * queries;
    s.v = s.q + padded;
    s.decay = s.v + columns;
    s.beta = s.decay + heads;
    s.stride = gdn_stage_stride(padded, columns, heads, queries);
    return s;
}

// The same with values from column `column` and scalars from head `head` on.
DEVICE struct gdn_stage gdn_stage_of(struct gdn_stage s, int32_t column, int32_t head)
{
    s.v += column;
    s.decay += head;
    s.beta += head;
    return s;
}

// What a block works on.
struct gdn_block {
    int32_t head, key, first, columns,
        width; // key: first element of its key head; columns of S from `first`, `width` exist
    int64_t keys, values, row, rows;
    bool owner, leads; // of the scalars' and of the keys' saved rows
};

// Keys and queries of n rows (rows of ld floats), normalised, MANY at once a warp, by the first `threads` threads. They may lie
// where they go.
template <int MANY>
DEVICE void gdn_stage_keys(const struct gdn_stage *s, const float *q, const float *k, int64_t ld, int32_t n, int32_t dk,
                           int32_t padded, int32_t threads)
{
    const int32_t lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int32_t first = (int32_t)threadIdx.x / WARP * MANY; first < 2 * n; first += threads / WARP * MANY) {
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

// n saved rows from row `base` of the window on.
DEVICE void gdn_stage_saved(const struct gdn_args *a, const struct gdn_block *b, const struct gdn_stage *s,
                            const float *saved, int32_t base, int32_t n, int32_t padded)
{
    const int64_t ld = gdn_saved_width(a);
    const float *from = saved + base * ld, *scalars = from + b->keys + b->values + b->head;
    stage_rows<true>(s->k, s->stride, from + b->key, ld, n, a->dk, padded);
    stage_rows<true>(s->v, s->stride, from + b->keys + (int64_t)b->head * a->dv + b->first, ld, n, b->width, 0);
    stage_rows<true>(s->decay, s->stride, scalars, ld, n, 1, 1);
    stage_rows<true>(s->beta, s->stride, scalars + a->nv, ld, n, 1, 1);
}

// Saves n staged rows as rows base .. of the window.
DEVICE void gdn_keep(const struct gdn_args *a, const struct gdn_block *b, const struct gdn_stage *s, float *saved,
                     int32_t base, int32_t n)
{
    const int64_t ld = gdn_saved_width(a);
    float *to = saved + base * ld;
    for (int32_t i = (int32_t)threadIdx.x; i < n * b->width; i += (int32_t)blockDim.x) {
        const int32_t t = i / b->width, j = i % b->width;
        to[t * ld + b->keys + (int64_t)b->head * a->dv + b->first + j] = s->v[t * s->stride + j];
    }
    for (int32_t i = (int32_t)threadIdx.x; b->leads && i < n * a->dk; i += (int32_t)blockDim.x)
        to[i / a->dk * ld + b->key + i % a->dk] = s->k[i / a->dk * s->stride + i % a->dk];
    for (int32_t t = (int32_t)threadIdx.x; b->owner && t < n; t += (int32_t)blockDim.x) {
        to[t * ld + b->keys + b->values + b->head] = s->decay[t * s->stride];
        to[t * ld + b->keys + b->values + a->nv + b->head] = s->beta[t * s->stride];
    }
}

// ---- the state ---------------------------------------------------------------------------------------------------------------

// Moves the thread's columns, of which `live` exist, between memory and registers.
template <int PER, bool STORE>
DEVICE void gdn_move(const struct gdn_args *a, float *state, float (*s)[STATE_EACH], int32_t part, int32_t live)
{
    const bool wide = live >= STATE_EACH && (a->dv % 4 | (int32_t)((uintptr_t)state & 15)) == 0;
#pragma unroll
    for (int n = 0; n < PER; n++) {
        const int32_t i = state_element(n, part);
        float *row = state + (int64_t)i * a->dv;
        if (wide) {
            if (STORE && i < a->dk)
                *reinterpret_cast<float4 *>(row) = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
            if (!STORE) {
                const float4 t = i < a->dk ? *reinterpret_cast<const float4 *>(row) : make_float4(0, 0, 0, 0);
                s[n][0] = t.x, s[n][1] = t.y, s[n][2] = t.z, s[n][3] = t.w;
            }
        } else {
#pragma unroll
            for (int c = 0; c < STATE_EACH; c++) {
                if (STORE && c < live && i < a->dk)
                    row[c] = s[n][c];
                if (!STORE)
                    s[n][c] = c < live && i < a->dk ? row[c] : 0.0f;
            }
        }
    }
}

// Folds n staged rows. s: values from the thread's columns on, scalars from their head on.
template <int PER, bool HOLD, int EACH>
DEVICE void gdn_fold(const struct gdn_stage *s, int32_t n, float (*state)[EACH], int32_t part)
{
#pragma unroll 1
    for (int32_t t = 0; t < n * s->stride; t += s->stride)
        gdn_step<PER, false, HOLD>(state, s->k + t, s->k, s->v + t, s->decay[t], s->beta[t], part);
}

// Runs n staged rows; outputs of the thread's columns, of which `live` exist, go to y, which may be s->v: nobody reads a row's
// values after its outputs.
template <int PER, bool HOLD, int EACH>
DEVICE void gdn_run(const struct gdn_stage *s, int32_t n, float (*state)[EACH], int32_t part, int32_t live, float *y,
                    int64_t ldy)
{
    const int32_t mine = state_column<EACH>(part);
    y += mine;
#pragma unroll 1
    for (int32_t t = 0; t < n * s->stride; t += s->stride, y += ldy) {
        const float out = gdn_step<PER, true, HOLD>(state, s->k + t, s->q + t, s->v + t, s->decay[t], s->beta[t], part);
        if (part < EACH && mine < live)
            *y = out;
    }
}

#endif
