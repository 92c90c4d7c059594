// SPDX-License-Identifier: Apache-2.0
//
// Dense attention of prompt rows (attention_dense.cuh): pairs of a row and a query head, tiles of 64 keys or values in shared memory, and
// what a warp does with sixteen pairs and a tile.
//
// Queries are two bf16 parts, scaled so that weights are powers of two, and weights are two bf16 parts; numbers of an fp32 cache are
// taken as bf16. A pair is a row of the 16x8x16 products, which keep their rows apart.
// Invariant: tiles lie at absolute multiples of 64 positions and are taken in ascending order. A score is one chain over the dims, a sum
// of weighted values one chain over the positions, high parts before low ones, and a total one tree a tile, whichever warp works at them.
// A tile that lies wholly behind a pair's position leaves its sums as they are: its weights are 0 and the factor is 1.

#ifndef CUDA_DENSE_TILE_CUH
#define CUDA_DENSE_TILE_CUH

#include <cuda_pipeline.h>

#include "kernels/cuda/attention_rows.cuh"

enum {
    DENSE_TILE = 64,
    DENSE_PAIRS = 16,
    DENSE_PARTS = 2,
    DENSE_KEYS = DENSE_TILE / 8,   // products of a tile's scores
    DENSE_STEPS = DENSE_TILE / 16, // of its values
    DENSE_PIECE = 8,               // numbers of 16 bytes
};

// Piece c of position r lies at c ^ r % 8, so that eight rows of a matrix have all banks.
template <int DIM> struct dense_tile {
    __align__(16) uint16_t row[DENSE_TILE][DIM];

    __device__ __forceinline__ uint16_t *place(int32_t r, int32_t piece)
    {
        return row[r] + (piece ^ r % 8) * DENSE_PIECE;
    }
};

// Queries of sixteen pairs as fragments.
template <int DIM> struct dense_queries {
    __align__(16) uint32_t word[DENSE_PARTS][DIM / 16][WARP][4];
};

// What a lane has of its two pairs, g and g + 8: position (-1: nothing to do), running maximum, share of the total.
struct dense_sums {
    int32_t position[2];
    float top[2], total[2];
};

DEVICE struct dense_sums dense_none(void)
{
    return {{-1, -1}, {-INFINITY, -INFINITY}, {0, 0}};
}

// Pair p of a kv head is query head p % share of row p / share; a block has those from `first` on.
struct dense_pairs {
    int32_t kv_head, share, first, all;
};

// Rows from .. to - 1 of the pass, of one lane, with positions 0 .. count - 1 before and in them.
struct dense_run {
    const uint32_t *table;
    int32_t from, to, count;
};

// The run that begins at row `from`, up to row `end`.
DEVICE struct dense_run dense_run_of(const struct attention_args *a, int32_t from, int32_t end)
{
    struct dense_run run;
    const int32_t lane = a->pass->lane[from];
    run.from = from;
    run.to = end;
    if (a->pass->lane[end - 1] != lane) // lanes ascend
        for (run.to = from + 1; a->pass->lane[run.to] == lane; run.to++)
            ;
    run.table = a->lanes.table[lane];
    run.count = a->pass->position[run.to - 1] + 1;
    return run;
}

// Positions of the lane's pairs of sixteen from `first` on, as far as they are of the run.
DEVICE void dense_positions(const struct attention_args *a, const struct dense_pairs *pairs,
                            const struct dense_run *run, int32_t first, struct dense_sums *sums)
{
    const int32_t g = (int32_t)(threadIdx.x % WARP) / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t p = first + g + 8 * h, row = p / pairs->share;
        sums->position[h] = p < pairs->all && row >= run->from && row < run->to ? a->pass->position[row] : -1;
    }
}

// Steps step, step + every, ... of the queries of sixteen pairs from `first` on: put(part, step, i, word) of the lane's words of a
// fragment. Base 2: a weight is 2 to the power of its score.
template <int DIM, typename PUT>
DEVICE void dense_take_queries(const struct attention_args *a, const struct dense_pairs *pairs, int32_t first,
                               int32_t step, int32_t every, const PUT &put)
{
    const float scale = f_mul(a->scale, 1.44269504f);
    const int32_t lane = threadIdx.x % WARP;
    const float *from[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t p = first + lane / 4 + 8 * h, row = p / pairs->share, head = p - row * pairs->share;
        from[h] = p < pairs->all ? a->q + (int64_t)row * a->ldq + (int64_t)(pairs->kv_head * pairs->share + head) * DIM
                                 : NULL;
    }
#pragma unroll 2
    for (; step < DIM / 16; step += every)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 x = {0, 0};
            if (from[i % 2])
                x = *reinterpret_cast<const float2 *>(from[i % 2] + step * 16 + i / 2 * 8 + lane % 4 * 2);
            x = {f_mul(x.x, scale), f_mul(x.y, scale)};
#pragma unroll
            for (int p = 0; p < DENSE_PARTS; p++) {
                const uint32_t part = mma_pair(x.x, x.y);
                put(p, step, i, part);
                x.x = __fadd_rn(x.x, -__uint_as_float(part << 16));
                x.y = __fadd_rn(x.y, -__uint_as_float(part & 0xffff0000u));
            }
        }
}

template <int DIM>
DEVICE void dense_load_queries(const struct attention_args *a, const struct dense_pairs *pairs, int32_t first,
                               struct dense_queries<DIM> *q, int32_t step, int32_t every)
{
    dense_take_queries<DIM>(a, pairs, first, step, every, [&](int p, int32_t at, int i, uint32_t word) {
        q->word[p][at][threadIdx.x % WARP][i] = word;
    });
}

// A number that the compiler works with anew at each use, so that what follows from it takes no registers meanwhile.
DEVICE int32_t dense_opaque(int32_t x)
{
#if !defined(CUDA_FIBERS)
    asm volatile("" : "+r"(x));
#endif
    return x;
}

// ---- copies --------------------------------------------------------------------------------------------------------------------

// The first of a warp's EACH rows of a tile; more warps than bring one tile bring several.
template <int EACH> DEVICE int32_t dense_first(int32_t thread)
{
    return thread / WARP % (DENSE_TILE / EACH) * EACH;
}

// Where the lane's key of the tile lies: lane l of warp w has row w * EACH + l % EACH; beyond the end: the last one.
template <int DIM, bool F32, int EACH>
DEVICE uint64_t dense_find(const struct attention_args *a, const struct dense_pairs *pairs, const struct dense_run *run,
                           int32_t tile)
{
    const int32_t row = dense_first<EACH>((int32_t)threadIdx.x) + (int32_t)threadIdx.x % EACH,
                  at = tile * DENSE_TILE + row;
    const int32_t i = at < run->count ? at : run->count - 1;
    return (uint64_t)(uintptr_t)(kv_row(&a->lanes, &a->layout, run->table, KV_KEYS, i, 1) +
                                 (F32 ? 4 : 2) * pairs->kv_head * DIM);
}

// Asks for the warp's EACH rows of a tile; `offset` is that of values behind keys.
template <int DIM, bool F32, int EACH, typename TILE> DEVICE void dense_copy(TILE *to, uint64_t place, int64_t offset)
{
    constexpr int PIECES = DIM / DENSE_PIECE;
    const int32_t thread = dense_opaque((int32_t)threadIdx.x), lane = thread % WARP, first = dense_first<EACH>(thread),
                  piece = lane % PIECES;
#pragma unroll
    for (int n = 0; n < EACH * PIECES / WARP; n++) {
        const int32_t row = n * WARP / PIECES + lane / PIECES;
        const uint8_t *from =
            reinterpret_cast<const uint8_t *>((uintptr_t)__shfl_sync(WHOLE_WARP, place, row)) + offset;
        uint16_t *into = to->place(first + row, piece);
        if constexpr (F32)
            *reinterpret_cast<uint4 *>(into) = rows_load<true>(from, piece * DENSE_PIECE);
        else
            __pipeline_memcpy_async(into, from + piece * 16, 16);
    }
}

// ---- products ------------------------------------------------------------------------------------------------------------------

// Scores of sixteen pairs and all keys of a tile: c[n] of keys 8n .. 8n + 7. What c had goes.
template <int DIM>
DEVICE void dense_scores(const struct dense_tile<DIM> *keys, const struct dense_queries<DIM> *q, float (*c)[4])
{
    const int32_t lane = threadIdx.x % WARP;
    const mma_place from = mma_place_of(keys->row[lane / 16 * 8 + lane % 8]);
    const uint32_t piece = (uint32_t)(lane / 8 % 2 ^ lane % 8) * 16;
#pragma unroll
    for (int n = 0; n < DENSE_KEYS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = 0;
    constexpr int HALVES = DIM / 16 * 2; // of a step, each four products wide
    uint32_t b[2][2][4];
    auto load = [&](int i) {
        const int k = i / 2, n = i % 2 * 2;
#pragma unroll
        for (int j = 0; j < 2; j++)
            mma_load<false>(b[i % 2][j],
                            from + (uint32_t)((n + j) * 16 * 2 * DIM + k / 4 * 128) + (piece ^ (uint32_t)(k % 4 * 32)));
    };
    uint32_t word[DENSE_PARTS][4];
    load(0);
#pragma unroll
    for (int i = 0; i < HALVES; i++) {
        if (i + 1 < HALVES)
            load(i + 1);
#pragma unroll
        for (int p = 0; p < DENSE_PARTS; p++) {
            if (i % 2 == 0) {
                const uint4 part = *reinterpret_cast<const uint4 *>(q->word[p][i / 2][lane]);
                word[p][0] = part.x, word[p][1] = part.y, word[p][2] = part.z, word[p][3] = part.w;
            }
#pragma unroll
            for (int n = 0; n < 4; n++)
                mma_bf16(c[i % 2 * 4 + n], word[p], b[i % 2][n / 2][n % 2 * 2], b[i % 2][n / 2][n % 2 * 2 + 1]);
        }
    }
}

// Those of keys 8n .. 8n + 7 alone, of queries that the lane holds.
template <int DIM>
DEVICE void dense_some_scores(const struct dense_tile<DIM> *keys, const uint32_t (*q)[DIM / 16][4], int32_t n, float *c)
{
    const int32_t lane = threadIdx.x % WARP;
    const mma_place from = mma_place_of(keys->row[n * 8 + lane % 8]);
    const uint32_t piece = (uint32_t)(lane / 8 ^ lane % 8) * 16;
#pragma unroll
    for (int k = 0; k < DIM / 16; k += 2) {
        uint32_t b[4];
        mma_load<false>(b, from + (uint32_t)(k / 4 * 128) + (piece ^ (uint32_t)(k % 4 * 32)));
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int p = 0; p < DENSE_PARTS; p++)
                mma_bf16(c, q[p][k + i], b[2 * i], b[2 * i + 1]);
    }
}

// Takes fragments of queries from shared memory.
template <int DIM> DEVICE void dense_hold(const struct dense_queries<DIM> *s, uint32_t (*q)[DIM / 16][4])
{
#pragma unroll
    for (int p = 0; p < DENSE_PARTS; p++)
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            const uint4 word = *reinterpret_cast<const uint4 *>(s->word[p][k][threadIdx.x % WARP]);
            q[p][k][0] = word.x, q[p][k][1] = word.y, q[p][k][2] = word.z, q[p][k][3] = word.w;
        }
}

// 2 to the power of x.
DEVICE float dense_exp2(float x)
{
#if defined(CUDA_FIBERS)
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// Two neighbouring numbers as parts.
DEVICE void dense_split(float x, float y, uint32_t *high, uint32_t *low)
{
    *high = mma_pair(x, y);
    *low = mma_pair(__fadd_rn(x, -__uint_as_float(*high << 16)), __fadd_rn(y, -__uint_as_float(*high & 0xffff0000u)));
}

// Takes scores of COUNT groups of eight positions from `first` on out that lie behind their pairs' positions.
template <int COUNT> DEVICE void dense_mask(const struct dense_sums *sums, float (*c)[4], int32_t first)
{
    const int32_t at = first + (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < COUNT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = at + n * 8 + i % 2 <= sums->position[i / 2] ? c[n][i] : -INFINITY;
}

// Takes a tile's scores to weights. Sums must be multiplied by keep; returns whether that changes any of the warp's.
DEVICE bool dense_softmax(struct dense_sums *sums, float (*c)[4], float *keep)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = -INFINITY;
#pragma unroll
        for (int n = 0; n < DENSE_KEYS; n++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++)
                most = fmaxf(most, c[n][i]);
#pragma unroll
        for (int step = 1; step < 4; step *= 2)
            most = fmaxf(most, __shfl_xor_sync(WHOLE_WARP, most, step));
        const float top = fmaxf(most, sums->top[h]), base = top == -INFINITY ? 0.0f : top;
        float sum[DENSE_KEYS];
        keep[h] = dense_exp2(__fadd_rn(sums->top[h], -base));
        sums->top[h] = top;
#pragma unroll
        for (int n = 0; n < DENSE_KEYS; n++) {
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++)
                c[n][i] = dense_exp2(__fadd_rn(c[n][i], -base));
            sum[n] = __fadd_rn(c[n][2 * h], c[n][2 * h + 1]);
        }
#pragma unroll
        for (int half = DENSE_KEYS / 2; half > 0; half /= 2)
#pragma unroll
            for (int n = 0; n < half; n++)
                sum[n] = __fadd_rn(sum[n], sum[n + half]);
        sums->total[h] = fmaf(sums->total[h], keep[h], sum[0]);
    }
    return __any_sync(WHOLE_WARP, keep[0] != 1.0f || keep[1] != 1.0f);
}

// Multiplies sums of pairs g and g + 8 by keep.
template <int COLUMNS> DEVICE void dense_keep(float (*out)[4], const float *keep)
{
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[n][i] = f_mul(out[n][i], keep[i / 2]);
}

// Adds a tile's values of WIDTH dims from `first` on, a multiple of WIDTH, times weights c: out[n] of dims first + 8n .. first + 8n + 7.
template <int DIM, int WIDTH>
DEVICE void dense_values(const struct dense_tile<DIM> *values, const float (*c)[4], int32_t first, float (*out)[4])
{
    constexpr int AT_ONCE = WIDTH < 32 ? 1 : 2, GROUPS = WIDTH / 16 / AT_ONCE, ALL = DENSE_STEPS * GROUPS;
    const int32_t lane = threadIdx.x % WARP;
    const mma_place from = mma_place_of(values->row[lane % 16] + first / 64 * 64);
    const uint32_t piece = (uint32_t)(first % 64 / DENSE_PIECE ^ lane / 16 ^ lane % 8) * 16;
    uint32_t b[2][AT_ONCE][4], weight[DENSE_PARTS][4];
    auto load = [&](int i) {
        const int k = i / GROUPS, n = i % GROUPS * AT_ONCE;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            mma_load<true>(b[i % 2][j], from + (uint32_t)(k * 16 * 2 * DIM + (n + j) / 4 * 128) +
                                            (piece ^ (uint32_t)((n + j) % 4 * 32)));
    };
    load(0);
#pragma unroll
    for (int i = 0; i < ALL; i++) {
        if (i + 1 < ALL)
            load(i + 1);
        const int k = i / GROUPS, n = i % GROUPS * AT_ONCE * 2;
        if (i % GROUPS == 0)
#pragma unroll
            for (int w = 0; w < 4; w++)
                dense_split(c[2 * k + w / 2][w % 2 * 2], c[2 * k + w / 2][w % 2 * 2 + 1], &weight[0][w], &weight[1][w]);
#pragma unroll
        for (int p = 0; p < DENSE_PARTS; p++)
#pragma unroll
            for (int j = 0; j < 2 * AT_ONCE; j++)
                mma_bf16(out[n + j], weight[p], b[i % 2][j / 2][j % 2 * 2], b[i % 2][j / 2][j % 2 * 2 + 1]);
    }
}

// Writes the lane's outputs of WIDTH dims from `dim` on of the sixteen pairs from `first` on, through the gate.
template <int DIM, int WIDTH>
DEVICE void dense_write(const struct attention_args *a, const struct dense_pairs *pairs, int32_t first, int32_t dim,
                        const struct dense_sums *sums, const float (*out)[4])
{
    const int32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float total = sums->total[h];
        total = __fadd_rn(total, __shfl_xor_sync(WHOLE_WARP, total, 1));
        total = __fadd_rn(total, __shfl_xor_sync(WHOLE_WARP, total, 2));
        const int32_t p = first + lane / 4 + 8 * h, row = p / pairs->share, head = p - row * pairs->share;
        if (p >= pairs->all || total == 0) // 0: the pair has had no positions
            continue;
        const int32_t all = pairs->kv_head * pairs->share + head, d = dim + lane % 4 * 2;
        const float *gate = a->gate ? a->gate + (int64_t)row * a->ldg + (int64_t)all * a->gate_stride + d : NULL;
        float *y = a->y + (int64_t)row * a->ldy + (int64_t)all * DIM + d;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            float2 x = {__fdiv_rn(out[n][2 * h], total), __fdiv_rn(out[n][2 * h + 1], total)};
            if (gate) {
                const float2 g = *reinterpret_cast<const float2 *>(gate + n * 8);
                x = {f_mul(x.x, f_sigmoid(g.x)), f_mul(x.y, f_sigmoid(g.y))};
            }
            *reinterpret_cast<float2 *>(y + n * 8) = x;
        }
    }
}

#endif
