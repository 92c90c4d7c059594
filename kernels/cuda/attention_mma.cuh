// SPDX-License-Identifier: Apache-2.0
//
// Attention over bf16 caches on the matrix units: a cluster a (row, up to 16 query heads of a kv head), a block a part of the
// row's positions, taken in tiles of 32 that are fetched ahead.
//
// Queries are three bf16 parts (all 24 bits), weights two; keys and values are exact. Warp w multiplies keys 8 (w % 4) .. of a
// tile over one half of the dims, then takes the softmax of rows 2w and 2w + 1, then multiplies values of its dims.
//
// Invariant: see attention.cu; the number of stages changes when things are fetched, never a bit.

#ifndef CUDA_ATTENTION_MMA_CUH
#define CUDA_ATTENTION_MMA_CUH

#include <cuda_pipeline.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

enum {
    MMA_HEADS = 16,
    MMA_TILE = 32,
    MMA_WARPS = 8,
    MMA_THREADS = MMA_WARPS * WARP,
    MMA_AHEAD = MMA_THREADS / MMA_TILE, // tiles whose addresses are found at once
    MMA_PAD = 8,                        // bf16 numbers behind a row, against bank conflicts
    MMA_Q_PARTS = 3,
};

// Shared memory of a block, followed by STAGES tiles of keys and values, where the block's output lies at the end.
template <int DIM> struct mma_space {
    float top[MMA_HEADS], total[MMA_HEADS], keep[MMA_HEADS];
    float score[2][MMA_HEADS][MMA_TILE + 4];
    const uint8_t *key[MMA_THREADS]; // rows of positions; values lie value_offset behind
    __align__(16) uint16_t q[MMA_Q_PARTS][MMA_HEADS][DIM + MMA_PAD];
    __align__(16) uint16_t weight[2][MMA_HEADS][MMA_TILE + MMA_PAD];
};
template <int DIM> struct mma_tile {
    __align__(16) uint16_t key[MMA_TILE][DIM + MMA_PAD], value[MMA_TILE][DIM + MMA_PAD];
};

// Rows of the positions of tiles first .. first + MMA_AHEAD - 1, one a thread.
template <int DIM>
DEVICE void mma_find(const struct attention_args *a, struct mma_space<DIM> *s, const struct attention_row *row,
                     int32_t kv_head, int32_t begin, int32_t end, int32_t first)
{
    const int32_t i = begin + first * MMA_TILE + (int32_t)threadIdx.x;
    s->key[threadIdx.x] = NULL;
    if (i < end)
        s->key[threadIdx.x] =
            kv_row(&a->lanes, &a->layout, row->table, KV_KEYS, attention_position(a, row, i), 1) + 2 * kv_head * DIM;
}

// Asks for a tile; positions beyond the end become zeros.
template <int DIM>
DEVICE void mma_fetch(const struct mma_space<DIM> *s, struct mma_tile<DIM> *tile, int32_t index, int64_t value_offset)
{
    constexpr int CHUNKS = DIM / 8; // of 16 bytes a row
#pragma unroll
    for (int n = 0; n < MMA_TILE * CHUNKS / MMA_THREADS; n++) {
        const int32_t i = n * MMA_THREADS + (int32_t)threadIdx.x, slot = i / CHUNKS, at = i % CHUNKS * 8;
        const uint8_t *key = s->key[index % MMA_AHEAD * MMA_TILE + slot];
        const uint8_t *from = key ? key + 2 * at : reinterpret_cast<const uint8_t *>(s->key);
        __pipeline_memcpy_async(&tile->key[slot][at], from, 16, key ? 0 : 16);
        __pipeline_memcpy_async(&tile->value[slot][at], key ? from + value_offset : from, 16, key ? 0 : 16);
    }
}

DEVICE uint32_t mma_word(const uint16_t *p)
{
    return *reinterpret_cast<const uint32_t *>(p);
}

// A fragment of rows of `ld` numbers, at k.
DEVICE void mma_rows(uint32_t *a, const uint16_t *rows, int32_t ld, int32_t k)
{
    const int32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint16_t *p = rows + g * ld + k + 2 * t;
    a[0] = mma_word(p);
    a[1] = mma_word(p + 8 * ld);
    a[2] = mma_word(p + 8);
    a[3] = mma_word(p + 8 * ld + 8);
}

// Scores of 8 keys over half of the dims.
template <int DIM> DEVICE void mma_scores(struct mma_space<DIM> *s, const struct mma_tile<DIM> *tile)
{
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const int32_t half = warp / 4, first = warp % 4 * 8;
    float c[4] = {};
#pragma unroll
    for (int k = 0; k < DIM / 2; k += 16) {
        const int32_t at = half * (DIM / 2) + k;
        const uint16_t *key = &tile->key[first + g][at + 2 * t];
        const uint32_t b0 = mma_word(key), b1 = mma_word(key + 8);
#pragma unroll
        for (int part = 0; part < MMA_Q_PARTS; part++) {
            uint32_t a[4];
            mma_rows(a, &s->q[part][0][0], DIM + MMA_PAD, at);
            mma_bf16(c, a, b0, b1);
        }
    }
    float *score = &s->score[half][g][first + 2 * t];
    score[0] = c[0];
    score[1] = c[1];
    score[8 * (MMA_TILE + 4)] = c[2];
    score[8 * (MMA_TILE + 4) + 1] = c[3];
}

// Weights of two rows of the tile, of which `live` positions exist.
template <int DIM> DEVICE void mma_softmax(struct mma_space<DIM> *s, int32_t live)
{
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int n = 0; n < MMA_HEADS / MMA_WARPS; n++) {
        const int32_t h = warp * (MMA_HEADS / MMA_WARPS) + n;
        const float score = lane < live ? __fadd_rn(s->score[0][h][lane], s->score[1][h][lane]) : -INFINITY;
        const float old = s->top[h], highest = warp_max(score), top = highest > old ? highest : old;
        float weight = expf(__fadd_rn(score, -top));
        const float sum = warp_sum<WARP>(weight), keep = expf(__fadd_rn(old, -top));
        __syncwarp();
        if (lane == 0) {
            s->top[h] = top;
            s->total[h] = fmaf(s->total[h], keep, sum);
            s->keep[h] = keep;
        }
        s->weight[0][h][lane] = mma_part(&weight);
        s->weight[1][h][lane] = mma_part(&weight);
    }
}

// out = out * keep + weights * values, for the warp's NT tiles of 8 dims.
template <int DIM, int NT>
DEVICE void mma_values(struct mma_space<DIM> *s, const struct mma_tile<DIM> *tile, float (*out)[4])
{
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, first = warp * NT * 8;
    const float low = s->keep[g], high = s->keep[g + 8];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        out[n][0] = f_mul(out[n][0], low);
        out[n][1] = f_mul(out[n][1], low);
        out[n][2] = f_mul(out[n][2], high);
        out[n][3] = f_mul(out[n][3], high);
    }
#pragma unroll
    for (int k = 0; k < MMA_TILE; k += 16) {
        uint32_t a[2][4];
        mma_rows(a[0], &s->weight[0][0][0], MMA_TILE + MMA_PAD, k);
        mma_rows(a[1], &s->weight[1][0][0], MMA_TILE + MMA_PAD, k);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t b[4];
            mma_load_transposed(b, &tile->value[k + lane % 16][first + n * 8 + lane / 16 * 8]);
#pragma unroll
            for (int part = 0; part < 2; part++) {
                mma_bf16(out[n], a[part], b[0], b[1]);
                mma_bf16(out[n + 1], a[part], b[2], b[3]);
            }
        }
    }
}

// Queries in parts, scaled; heads that do not exist are zeros.
template <int DIM>
DEVICE void mma_queries(const struct attention_args *a, struct mma_space<DIM> *s, int64_t r,
                        const struct attention_heads *heads)
{
    for (int32_t i = (int32_t)threadIdx.x; i < MMA_HEADS * DIM; i += MMA_THREADS) {
        const int32_t h = i / DIM, d = i % DIM;
        float x = h < heads->count ? f_mul(a->q[r * a->ldq + (int64_t)(heads->first + h) * DIM + d], a->scale) : 0.0f;
#pragma unroll
        for (int part = 0; part < MMA_Q_PARTS; part++)
            s->q[part][h][d] = mma_part(&x);
    }
    if (threadIdx.x < MMA_HEADS) {
        s->top[threadIdx.x] = -INFINITY;
        s->total[threadIdx.x] = 0;
    }
}

template <int DIM, int STAGES>
__global__ void __launch_bounds__(MMA_THREADS) attention_mma_kernel(const __grid_constant__ struct attention_args a)
{
    SHARED_BYTES(room);
    constexpr int NT = DIM / 8 / MMA_WARPS < 2 ? 2 : DIM / 8 / MMA_WARPS;
    struct mma_space<DIM> *s = reinterpret_cast<struct mma_space<DIM> *>(room);
    struct mma_tile<DIM> *tiles = reinterpret_cast<struct mma_tile<DIM> *>(room + sizeof *s);
    const int32_t groups = attention_groups(&a, MMA_HEADS), parts = (int32_t)gridDim.x / groups;
    const int32_t part = (int32_t)blockIdx.x % parts, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t r = blockIdx.y;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows)
        return;
    const struct attention_row row = attention_row_of(&a, r);
    const struct attention_heads heads = attention_heads_of(&a, MMA_HEADS, (int32_t)blockIdx.x / parts);
    const int64_t value_offset =
        kv_offset(&a.layout, a.lanes.page, KV_VALUES) - kv_offset(&a.layout, a.lanes.page, KV_KEYS);
    const int32_t size = (row.count + parts - 1) / parts, begin = size * part;
    const int32_t end = begin + size < row.count ? begin + size : row.count,
                  count = (end - begin + MMA_TILE - 1) / MMA_TILE;
    float out[NT][4] = {};
    mma_find<DIM>(&a, s, &row, heads.kv_head, begin, end, 0);
    __syncthreads();
    for (int32_t t = 0; t < STAGES - 1; t++) { // STAGES <= MMA_AHEAD
        if (t < count)
            mma_fetch<DIM>(s, &tiles[t], t, value_offset);
        __pipeline_commit();
    }
    mma_queries<DIM>(&a, s, r, &heads);
    for (int32_t t = 0; t < count; t++) {
        const struct mma_tile<DIM> *tile = &tiles[t % STAGES];
        const int32_t next = t + STAGES - 1;
        __syncthreads(); // nobody reads the tile of step t - 1 or the addresses any more
        if (next % MMA_AHEAD == 0) {
            mma_find<DIM>(&a, s, &row, heads.kv_head, begin, end, next);
            __syncthreads();
        }
        if (next < count)
            mma_fetch<DIM>(s, &tiles[next % STAGES], next, value_offset);
        __pipeline_commit();
        __pipeline_wait_prior(STAGES - 1);
        __syncthreads();
        mma_scores<DIM>(s, tile);
        __syncthreads();
        mma_softmax<DIM>(s, end - begin - t * MMA_TILE);
        __syncthreads();
        if (warp * NT * 8 < DIM)
            mma_values<DIM, NT>(s, tile, out);
    }
    __syncthreads();
    float *sums = reinterpret_cast<float *>(tiles); // [MMA_HEADS][DIM]
    if (warp * NT * 8 < DIM)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                sums[(lane / 4 + j / 2 * 8) * DIM + warp * NT * 8 + n * 8 + lane % 4 * 2 + j % 2] = out[n][j];
    cluster_sync();
    for (int32_t i = part * MMA_THREADS + (int32_t)threadIdx.x; i < heads.count * DIM; i += parts * MMA_THREADS) {
        const int32_t h = i / DIM, d = i % DIM;
        const struct attention_sum sum = attention_merge(parts, [&](int32_t p, float *top, float *total) {
            const struct mma_space<DIM> *other = cluster_map(s, (unsigned)p);
            *top = other->top[h];
            *total = other->total[h];
            return cluster_map(sums, (unsigned)p)[i];
        });
        attention_write(&a, r, heads.first + h, d, __fdiv_rn(sum.out, sum.total));
    }
    cluster_sync();
}

// Whether the caches can be read 16 bytes at a time.
static inline bool attention_mma_fits(const struct attention_args *a)
{
    const struct kv_layout *kv = &a->layout;
    return kv->encoding == KV_BF16 && (kv->dim == 64 || kv->dim == 128 || kv->dim == 256) &&
           kv_fits(&a->lanes, kv, 8, KV_KEYS) && kv_fits(&a->lanes, kv, 8, KV_VALUES);
}

template <int DIM, int STAGES>
static cudaError_t attention_mma_launch(cudaStream_t stream, const struct attention_args *a, int rows, unsigned parts)
{
    const dim3 grid(parts * (unsigned)attention_groups(a, MMA_HEADS), (unsigned)rows);
    const size_t bytes = sizeof(struct mma_space<DIM>) + STAGES * sizeof(struct mma_tile<DIM>);
    return launch_cluster(stream, grid, MMA_THREADS, bytes, parts, attention_mma_kernel<DIM, STAGES>, *a);
}

#endif
