// SPDX-License-Identifier: Apache-2.0
//
// Attention over bf16 caches on the matrix units (attention_mma.cuh): a block's memory, its tiles of 32 positions, and what its
// warps do with one.
//
// A warp has a share of the dims for good: it multiplies all keys of a tile by its dims of the queries, which it keeps
// as fragments, and the tile's values of its dims by the weights. Between the two, warp w adds the warps' scores of
// heads 2w and 2w + 1 and takes their softmax. Queries are three bf16 parts (all 24 bits), weights two; keys and values
// are exact.
//
// Invariant: a tile's scores, weights and values depend on the row, the tile's positions and the tiles before it in its run; when
// things are fetched changes no bit.

#ifndef CUDA_ATTENTION_TILE_CUH
#define CUDA_ATTENTION_TILE_CUH

#include <cuda_pipeline.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

enum {
    MMA_HEADS = 16,
    MMA_TILE = 32,
    MMA_WARPS = 8,
    MMA_THREADS = MMA_WARPS * WARP,
    MMA_EACH = MMA_HEADS / MMA_WARPS,   // heads of a warp's softmax
    MMA_AHEAD = MMA_THREADS / MMA_TILE, // tiles whose addresses are found at once
    MMA_PAD = 8,                        // numbers behind a row, against bank conflicts
    MMA_Q_PARTS = 3,
    MMA_PARTS = 8, // blocks of a cluster, at most
    MMA_LINE = 128,
};

// Dims of a warp: WIDTH, or none for warps WAYS and on.
template <int DIM> struct mma_share {
    static constexpr int WIDTH = DIM / MMA_WARPS < 16 ? 16 : DIM / MMA_WARPS, WAYS = DIM / WIDTH, STEPS = WIDTH / 16,
                         COLUMNS = WIDTH / 8;
};

// What blocks leave to each other when their tiles are done (attention_sums.cuh).
template <int DIM> struct mma_ends {
    // What the parts of the cluster put here: maxima and totals, and their sums for the block's share of the dims.
    __align__(16) float sums[MMA_PARTS][MMA_HEADS][2];
    __align__(16) float out[MMA_HEADS * DIM]; // [parts][MMA_HEADS][DIM / parts]
    uint64_t came;                            // their bytes
    uint32_t arrived;
};

// Shared memory of a block, followed by STAGES tiles of keys and of values.
template <int DIM> struct mma_space : mma_ends<DIM> {
    __align__(16) float score[mma_share<DIM>::WAYS][MMA_HEADS][MMA_TILE + MMA_PAD];
    __align__(16) uint16_t weight[2][MMA_HEADS][MMA_TILE + MMA_PAD];
    __align__(16) float keep[MMA_HEADS];
    float2 weights[3][MMA_HEADS];       // of long rows (attention_long.cuh)
    const uint8_t *key[2][MMA_THREADS]; // rows of positions; values lie value_offset behind
};
template <int DIM> struct mma_tile {
    __align__(16) uint16_t row[MMA_TILE][DIM + MMA_PAD];
};

// The part of a row's list that a block has.
struct mma_span {
    int32_t begin, end, tiles;
};

DEVICE struct mma_span mma_span_of(int32_t positions, int32_t part, int32_t parts)
{
    const int32_t size = (positions + parts - 1) / parts, begin = size * part;
    const int32_t end = begin + size < positions ? begin + size : positions;
    return {begin, end, (end - begin + MMA_TILE - 1) / MMA_TILE};
}

// Rows of the positions of tiles first .. first + MMA_AHEAD - 1, one a thread, beyond the end the last one's; first is
// a multiple of MMA_AHEAD. Returns the thread's.
template <int DIM>
DEVICE const uint8_t *mma_find(const struct attention_args *a, struct mma_space<DIM> *s,
                               const struct attention_row *row, int32_t kv_head, const struct mma_span &span,
                               int32_t first)
{
    const int32_t i = span.begin + first * MMA_TILE + (int32_t)threadIdx.x;
    const uint8_t *key = kv_row(&a->lanes, &a->layout, row->table, KV_KEYS,
                                attention_position(a, row, i < span.end ? i : span.end - 1), 1) +
                         2 * kv_head * DIM;
    s->key[first / MMA_AHEAD % 2][threadIdx.x] = key;
    return i < span.end ? key : NULL;
}

// Asks L2 for the key and the values of a position, which may be written yet, there.
template <int DIM> DEVICE void mma_ask(const uint8_t *key, int64_t value_offset)
{
#pragma unroll
    for (int at = 0; key && at < 2 * DIM; at += MMA_LINE) {
        prefetch_l2(key + at);
        prefetch_l2(key + value_offset + at);
    }
}

// Asks for the rows of tile `index`, `offset` behind its keys; positions beyond the end become zeros.
template <int DIM>
DEVICE void mma_fetch(const struct mma_space<DIM> *s, struct mma_tile<DIM> *tile, const struct mma_span &span,
                      int32_t index, int64_t offset)
{
    constexpr int CHUNKS = DIM / 8; // of 16 bytes a row
    const uint8_t *const *keys = s->key[index / MMA_AHEAD % 2] + index % MMA_AHEAD * MMA_TILE;
    const int32_t live = span.end - span.begin - index * MMA_TILE;
#pragma unroll
    for (int n = 0; n < MMA_TILE * CHUNKS / MMA_THREADS; n++) {
        const int32_t i = n * MMA_THREADS + (int32_t)threadIdx.x, slot = i / CHUNKS, at = i % CHUNKS * 8;
        __pipeline_memcpy_async(&tile->row[slot][at], keys[slot] + offset + 2 * at, 16, slot < live ? 0 : 16);
    }
}

// Group t of copies, of the keys of tile t and the values of the one before, which lie STAGES tiles behind keys.
template <int DIM, int STAGES>
DEVICE void mma_group(const struct mma_space<DIM> *s, struct mma_tile<DIM> *keys, const struct mma_span &span,
                      int32_t t, int64_t value_offset)
{
    if (t < span.tiles)
        mma_fetch<DIM>(s, &keys[t % STAGES], span, t, 0);
    if (t > 0 && t <= span.tiles)
        mma_fetch<DIM>(s, &keys[STAGES + (t - 1) % STAGES], span, t - 1, value_offset);
    __pipeline_commit();
}

DEVICE uint32_t mma_word(const uint16_t *p)
{
    return *reinterpret_cast<const uint32_t *>(p);
}

// ---- queries -------------------------------------------------------------------------------------------------------------------

// The warp's dims of the queries: pair i of a step has head g + 8 (i % 2) of the lane, dims 2 t + 8 (i / 2) and the
// next. Heads that do not exist are zeros.
template <int DIM>
DEVICE void mma_queries(const struct attention_args *a, int64_t r, const struct attention_heads *heads, float2 (*q)[4])
{
    const int32_t lane = threadIdx.x % WARP, first = (int32_t)threadIdx.x / WARP * mma_share<DIM>::WIDTH;
    const float *from = a->q + r * a->ldq + (int64_t)heads->first * DIM;
#pragma unroll
    for (int step = 0; step < mma_share<DIM>::STEPS; step++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t h = lane / 4 + i % 2 * 8, d = first + step * 16 + lane % 4 * 2 + i / 2 * 8;
            q[step][i] = {0, 0};
            if (h < heads->count && d < DIM)
                q[step][i] = __ldcg(reinterpret_cast<const float2 *>(from + h * DIM + d));
        }
}

// The same scaled and in parts, as fragments.
template <int STEPS> DEVICE void mma_split(float scale, const float2 (*q)[4], uint32_t (*parts)[MMA_Q_PARTS][4])
{
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float low = f_mul(q[step][i].x, scale), high = f_mul(q[step][i].y, scale);
#pragma unroll
            for (int part = 0; part < MMA_Q_PARTS; part++) {
                const uint32_t pair = mma_pair(low, high);
                parts[step][part][i] = pair;
                low = __fadd_rn(low, -__uint_as_float(pair << 16));
                high = __fadd_rn(high, -__uint_as_float(pair & 0xffff0000u));
            }
        }
}

// ---- a tile --------------------------------------------------------------------------------------------------------------------

// The warp's share of the scores of a tile.
template <int DIM>
DEVICE void mma_scores(struct mma_space<DIM> *s, const struct mma_tile<DIM> *tile, const uint32_t (*q)[MMA_Q_PARTS][4])
{
    constexpr int STEPS = mma_share<DIM>::STEPS, KEYS = MMA_TILE / 8;
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    uint32_t b[KEYS][STEPS][2];
    float c[KEYS][4] = {};
#pragma unroll
    for (int n = 0; n < KEYS; n++)
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const uint16_t *key = &tile->row[n * 8 + g][warp * mma_share<DIM>::WIDTH + step * 16 + 2 * t];
            b[n][step][0] = mma_word(key);
            b[n][step][1] = mma_word(key + 8);
        }
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int part = 0; part < MMA_Q_PARTS; part++)
#pragma unroll
            for (int n = 0; n < KEYS; n++)
                mma_bf16(c[n], q[step][part], b[n][step][0], b[n][step][1]);
#pragma unroll
    for (int n = 0; n < KEYS; n++) {
        float *score = &s->score[warp][g][n * 8 + 2 * t];
        *reinterpret_cast<float2 *>(score) = {c[n][0], c[n][1]};
        *reinterpret_cast<float2 *>(score + 8 * (MMA_TILE + MMA_PAD)) = {c[n][2], c[n][3]};
    }
}

// A warp's heads: the maximum so far, and of each lane the sum of its weights.
struct mma_sums {
    float top[MMA_EACH], total[MMA_EACH];
};
static_assert(MMA_EACH == 2, "mma_none and mma_weigh have two");

// Those of no positions.
DEVICE struct mma_sums mma_none(void)
{
    return {{-INFINITY, -INFINITY}, {0, 0}};
}

// The lane's position of head h: the sum of all shares.
template <int WAYS, int HEADS, int LD> DEVICE float mma_score_sum(const float (*share)[HEADS][LD], int32_t h)
{
    const int32_t lane = threadIdx.x % WARP;
    float score = share[0][h][lane];
#pragma unroll
    for (int w = 1; w < WAYS; w++)
        score = __fadd_rn(score, share[w][h][lane]);
    return score;
}

// The highest of the lanes' x, in one step: unsigned numbers in the order of fp32.
DEVICE float mma_highest(float x)
{
    const uint32_t bits = __float_as_uint(x), sign = 0x80000000u;
    const uint32_t top = __reduce_max_sync(WHOLE_WARP, bits & sign ? ~bits : bits | sign);
    return __uint_as_float(top & sign ? top & ~sign : ~top);
}

// Weights of the heads of warp `warp` in a tile, of which `live` positions exist; score: the lane's position.
DEVICE void mma_weigh(const float *score, int32_t live, int32_t warp, struct mma_sums *sums, float *keeps,
                      uint16_t (*parts)[MMA_HEADS][MMA_TILE + MMA_PAD])
{
    const int32_t lane = threadIdx.x % WARP;
    float weight[MMA_EACH], keep[MMA_EACH], highest[MMA_EACH];
#pragma unroll
    for (int n = 0; n < MMA_EACH; n++) {
        weight[n] = lane < live ? score[n] : -INFINITY;
        highest[n] = mma_highest(weight[n]);
    }
#pragma unroll
    for (int n = 0; n < MMA_EACH; n++) {
        const float old = sums->top[n], top = highest[n] > old ? highest[n] : old;
        weight[n] = expf(__fadd_rn(weight[n], -top));
        keep[n] = expf(__fadd_rn(old, -top));
        sums->top[n] = top;
        sums->total[n] = fmaf(sums->total[n], keep[n], weight[n]);
    }
    if (lane == 0)
        *reinterpret_cast<float2 *>(keeps + warp * MMA_EACH) = {keep[0], keep[1]};
#pragma unroll
    for (int part = 0; part < 2; part++) {
        const uint32_t pair = mma_pair(weight[0], weight[1]);
        parts[part][warp * MMA_EACH][lane] = (uint16_t)pair;
        parts[part][warp * MMA_EACH + 1][lane] = (uint16_t)(pair >> 16);
        weight[0] = __fadd_rn(weight[0], -__uint_as_float(pair << 16));
        weight[1] = __fadd_rn(weight[1], -__uint_as_float(pair & 0xffff0000u));
    }
}

template <int DIM> DEVICE void mma_softmax(struct mma_space<DIM> *s, struct mma_sums *sums, int32_t live)
{
    const int32_t warp = threadIdx.x / WARP;
    float score[MMA_EACH];
#pragma unroll
    for (int n = 0; n < MMA_EACH; n++)
        score[n] = mma_score_sum<mma_share<DIM>::WAYS>(s->score, warp * MMA_EACH + n);
    mma_weigh(score, live, warp, sums, s->keep, s->weight);
}

// out = out * keep + weights * values, for the warp's dims.
template <int DIM>
DEVICE void mma_values(const uint16_t (*weight)[MMA_HEADS][MMA_TILE + MMA_PAD], const float *keep,
                       const struct mma_tile<DIM> *tile, float (*out)[4])
{
    constexpr int COLUMNS = mma_share<DIM>::COLUMNS;
    const int32_t lane = threadIdx.x % WARP, g = lane / 4;
    const int32_t first = (int32_t)threadIdx.x / WARP * mma_share<DIM>::WIDTH;
    const float low = keep[g], high = keep[g + 8];
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        out[n][0] = f_mul(out[n][0], low);
        out[n][1] = f_mul(out[n][1], low);
        out[n][2] = f_mul(out[n][2], high);
        out[n][3] = f_mul(out[n][3], high);
    }
#pragma unroll
    for (int k = 0; k < MMA_TILE; k += 16) {
        uint32_t a[2][4], b[COLUMNS / 2][4];
#pragma unroll
        for (int part = 0; part < 2; part++)
            mma_load<false>(a[part], mma_place_of(&weight[part][lane % 16][k + lane / 16 * 8]));
#pragma unroll
        for (int n = 0; n < COLUMNS / 2; n++)
            mma_load_transposed(b[n], &tile->row[k + lane % 16][first + n * 16 + lane / 16 * 8]);
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
            for (int n = 0; n < COLUMNS; n++)
                mma_bf16(out[n], a[part], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
}

#endif
