// SPDX-License-Identifier: Apache-2.0
//
// Attention of prompt rows with choices (others: attention_dense.cuh) over plain caches on the 16x8x16 products: a block a row and a kv
// head, a warp every fourth group of sixteen positions, straight from memory to fragments.
//
// A lane's sixteen bytes of a key are eight neighbouring dims, which serve two products in an order of dims that the queries
// follow; those of four values are dims of eight columns, which pairs of positions are packed from. Queries and weights are two
// bf16 parts; numbers of an fp32 cache are taken as bf16.
// Invariant: what a warp does depends on the row's list of positions alone, and warps are merged in order.

#ifndef CUDA_ATTENTION_ROWS_CUH
#define CUDA_ATTENTION_ROWS_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/cache_rows.cuh"
#include "kernels/cuda/launch.cuh"

enum {
    ROWS_WARPS = 4,
    ROWS_THREADS = ROWS_WARPS * WARP,
    ROWS_HEADS = 16,
    ROWS_GROUP = 16, // positions that a warp takes at a time
    ROWS_PARTS = 2,
};

// Shared memory of a block: queries as fragments; then, when positions are done, the warps' sums.
template <int DIM> struct rows_space {
    __align__(16) uint32_t q[ROWS_PARTS][DIM / 16][WARP][4];
    float top[ROWS_WARPS][ROWS_HEADS], total[ROWS_WARPS][ROWS_HEADS];
    float out[ROWS_WARPS][ROWS_HEADS][DIM + 1];
};

// What a warp has: of heads g and g + 8 of the lane, g = lane / 4.
template <int DIM> struct rows_sums {
    float out[DIM / 8][4], top[2], total[2];
};

DEVICE uint32_t rows_word(const uint4 &v, int32_t i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Queries, scaled, in parts: word i of lane (g, t) of step s is head g + 8 (i % 2), dims 32 (s / 2) + 8 t + 4 (s % 2) + 2 (i / 2)
// and the next.
template <int DIM>
DEVICE void rows_queries(const struct attention_args *a, struct rows_space<DIM> *s, int64_t r,
                         const struct attention_heads *heads)
{
    for (int32_t n = (int32_t)threadIdx.x; n < DIM / 16 * WARP * 4; n += ROWS_THREADS) {
        const int32_t i = n % 4, lane = n / 4 % WARP, step = n / (4 * WARP);
        const int32_t h = lane / 4 + i % 2 * 8, d = step / 2 * 32 + lane % 4 * 8 + step % 2 * 4 + i / 2 * 2;
        float x = 0, y = 0;
        if (h < heads->count) {
            const float *q = a->q + r * a->ldq + (int64_t)(heads->first + h) * DIM + d;
            x = f_mul(q[0], a->scale);
            y = f_mul(q[1], a->scale);
        }
#pragma unroll
        for (int p = 0; p < ROWS_PARTS; p++) {
            const uint32_t part = mma_pair(x, y);
            s->q[p][step][lane][i] = part;
            x = __fadd_rn(x, -__uint_as_float(part << 16));
            y = __fadd_rn(y, -__uint_as_float(part & 0xffff0000u));
        }
    }
}

// Where the key of position `at` of the list lies; beyond the end: of the last one. Values lie `value_offset` behind.
template <int DIM, bool F32>
DEVICE uint64_t rows_find(const struct attention_args *a, const struct attention_row *row, int32_t kv_head, int32_t at)
{
    const int32_t i = at < row->count ? at : row->count - 1;
    return (uint64_t)(uintptr_t)(kv_row(&a->lanes, &a->layout, row->table, KV_KEYS, attention_position(a, row, i), 1) +
                                 (F32 ? 4 : 2) * kv_head * DIM);
}

// Half `half` of the dims of the group's values: b[4 i + n] is key n of 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
template <int DIM, bool F32> DEVICE void rows_values(uint4 *b, uint64_t place, int64_t value_offset, int32_t half)
{
    const int32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const uint64_t at = __shfl_sync(WHOLE_WARP, place, lane % 4 * 2 + n % 2 + n / 2 * 8);
        const uint8_t *value = reinterpret_cast<const uint8_t *>((uintptr_t)at) + value_offset;
#pragma unroll
        for (int i = 0; i < DIM / 128; i++)
            b[4 * i + n] = rows_load<F32>(value, (half * (DIM / 128) + i) * 64 + lane / 4 * 8);
    }
}

// Scores of eight keys: c[0..1] of head g, c[2..3] of head g + 8, keys 2 t and 2 t + 1. Four chains, added in order.
template <int DIM> DEVICE void rows_scores(const struct rows_space<DIM> *s, const uint4 *b, float *c)
{
    const int32_t lane = threadIdx.x % WARP;
    float chain[2 * ROWS_PARTS][4] = {};
#pragma unroll
    for (int j = 0; j < DIM / 32; j++)
#pragma unroll
        for (int p = 0; p < ROWS_PARTS; p++) {
            mma_bf16(chain[2 * p], s->q[p][2 * j][lane], b[j].x, b[j].y);
            mma_bf16(chain[2 * p + 1], s->q[p][2 * j + 1][lane], b[j].z, b[j].w);
        }
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = __fadd_rn(__fadd_rn(chain[0][i], chain[1][i]), __fadd_rn(chain[2][i], chain[3][i]));
}

// Takes the scores of sixteen positions, of which `live` exist, to weights in parts.
template <int DIM>
DEVICE void rows_softmax(struct rows_sums<DIM> *sums, const float (*c)[4], int32_t live, uint32_t (*weight)[4])
{
    const int32_t t = threadIdx.x % 4;
    float keep[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float x[4], most = -INFINITY;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = i / 2 * 8 + 2 * t + i % 2 < live ? c[i / 2][2 * h + i % 2] : -INFINITY;
            most = x[i] > most ? x[i] : most;
        }
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            const float other = __shfl_xor_sync(WHOLE_WARP, most, step);
            most = other > most ? other : most;
        }
        const float top = most > sums->top[h] ? most : sums->top[h];
        keep[h] = expf(__fadd_rn(sums->top[h], -top));
        sums->top[h] = top;
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = expf(__fadd_rn(x[i], -top));
        sums->total[h] = fmaf(sums->total[h], keep[h], __fadd_rn(__fadd_rn(x[0], x[1]), __fadd_rn(x[2], x[3])));
#pragma unroll
        for (int p = 0; p < ROWS_PARTS; p++)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const uint32_t part = mma_pair(x[i], x[i + 1]);
                weight[p][h + i] = part;
                x[i] = __fadd_rn(x[i], -__uint_as_float(part << 16));
                x[i + 1] = __fadd_rn(x[i + 1], -__uint_as_float(part & 0xffff0000u));
            }
    }
    if (__any_sync(WHOLE_WARP, keep[0] != 1.0f || keep[1] != 1.0f)) // a factor of one changes nothing
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums->out[n][i] = f_mul(sums->out[n][i], keep[i / 2]);
}

// Adds the weighted values of half of the dims: column c of product 8 i + e is dim 64 i + 8 c + e.
template <int DIM>
DEVICE void rows_add(struct rows_sums<DIM> *sums, const uint4 *b, const uint32_t (*weight)[4], int32_t half)
{
#pragma unroll
    for (int i = 0; i < DIM / 128; i++)
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const uint32_t pick = e % 2 ? 0x7632u : 0x5410u;
            const uint32_t low = __byte_perm(rows_word(b[4 * i], e / 2), rows_word(b[4 * i + 1], e / 2), pick);
            const uint32_t high = __byte_perm(rows_word(b[4 * i + 2], e / 2), rows_word(b[4 * i + 3], e / 2), pick);
            float *out = sums->out[(half * (DIM / 128) + i) * 8 + e];
#pragma unroll
            for (int p = 0; p < ROWS_PARTS; p++)
                mma_bf16(out, weight[p], low, high);
        }
}

// The warps' sums, in order, to the row's outputs.
template <int DIM>
DEVICE void rows_merge(const struct attention_args *a, struct rows_space<DIM> *s, int64_t r,
                       const struct attention_heads *heads, const struct rows_sums<DIM> *sums)
{
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float total = sums->total[h];
        total = __fadd_rn(total, __shfl_xor_sync(WHOLE_WARP, total, 1));
        total = __fadd_rn(total, __shfl_xor_sync(WHOLE_WARP, total, 2));
        s->top[warp][g + 8 * h] = sums->top[h];
        s->total[warp][g + 8 * h] = total;
    }
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s->out[warp][g + i / 2 * 8][n / 8 * 64 + (2 * t + i % 2) * 8 + n % 8] = sums->out[n][i];
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < heads->count * DIM; i += ROWS_THREADS) {
        const int32_t h = i / DIM, d = i % DIM;
        const struct attention_sum sum = attention_merge(ROWS_WARPS, [&](int32_t w, float *top, float *total) {
            *top = s->top[w][h];
            *total = s->total[w][h];
            return s->out[w][h][d];
        });
        attention_write(a, r, heads->first + h, d, __fdiv_rn(sum.out, sum.total));
    }
}

template <int DIM, bool F32>
__global__ void __launch_bounds__(ROWS_THREADS, 2)
    attention_rows_kernel(const __grid_constant__ struct attention_args a, int32_t least)
{
    SHARED_BYTES(room);
    struct rows_space<DIM> *s = reinterpret_cast<struct rows_space<DIM> *>(room);
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t r = blockIdx.y;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || a.pass->position[r] < least)
        return;
    const struct attention_row row = attention_row_of(&a, r);
    const struct attention_heads heads = attention_heads_of(&a, ROWS_HEADS, (int32_t)blockIdx.x);
    const int64_t value_offset =
        kv_offset(&a.layout, a.lanes.page, KV_VALUES) - kv_offset(&a.layout, a.lanes.page, KV_KEYS);
    struct rows_sums<DIM> sums = {
        {}, {-INFINITY, -INFINITY},
        {
        }
    };
    const int32_t step = ROWS_WARPS * ROWS_GROUP;
    uint4 first[DIM / 32], second[DIM / 32];
    int32_t at = warp * ROWS_GROUP;
    uint64_t place = rows_find<DIM, F32>(&a, &row, heads.kv_head, at + lane % ROWS_GROUP);
    if (at < row.count) {
        rows_keys<DIM, F32>(first, place, 0);
        rows_keys<DIM, F32>(second, place, 1);
    }
    rows_queries<DIM>(&a, s, r, &heads);
    __syncthreads();
    for (; at < row.count; at += step) { // the two buffers are filled again as soon as they are used
        float c[2][4];
        uint32_t weight[ROWS_PARTS][4];
        const uint64_t next = rows_find<DIM, F32>(&a, &row, heads.kv_head, at + step + lane % ROWS_GROUP);
        rows_scores<DIM>(s, first, c[0]);
        rows_values<DIM, F32>(first, place, value_offset, 0);
        rows_scores<DIM>(s, second, c[1]);
        rows_values<DIM, F32>(second, place, value_offset, 1);
        rows_softmax<DIM>(&sums, c, row.count - at, weight);
        rows_add<DIM>(&sums, first, weight, 0);
        rows_keys<DIM, F32>(first, next, 0);
        rows_add<DIM>(&sums, second, weight, 1);
        rows_keys<DIM, F32>(second, next, 1);
        place = next;
    }
    rows_merge<DIM>(&a, s, r, &heads, &sums);
}

// Whether the caches can be read sixteen bytes at a time.
static inline bool attention_rows_fits(const struct attention_args *a)
{
    const struct kv_layout *kv = &a->layout;
    return a->row_class == CLASS_PROMPT && kv->encoding != KV_FP8 && (kv->dim == 128 || kv->dim == 256) &&
           kv_fits(&a->lanes, kv, 8, KV_KEYS) && kv_fits(&a->lanes, kv, 8, KV_VALUES);
}

// Rows at position `least` or behind it.
template <int DIM>
static cudaError_t attention_rows(cudaStream_t stream, const struct attention_args *a, int rows, int32_t least)
{
    const dim3 grid((unsigned)attention_groups(a, ROWS_HEADS), (unsigned)rows);
    return launch(stream, grid, ROWS_THREADS, sizeof(struct rows_space<DIM>),
                  a->layout.encoding == KV_F32 ? attention_rows_kernel<DIM, true> : attention_rows_kernel<DIM, false>,
                  *a, least);
}

#endif
