// SPDX-License-Identifier: Apache-2.0
//
// Attention over bf16 caches on the matrix units: a cluster a (row, up to 16 query heads of a kv head), a block a part of the
// row's positions, taken in tiles of 32 that are fetched ahead.
//
// A warp has a share of the dims for good: it multiplies all keys of a tile by its dims of the queries, which it keeps
// as fragments, and the tile's values of its dims by the weights. Between the two, warp w adds the warps' scores of
// heads 2w and 2w + 1 and takes their softmax. Queries are three bf16 parts (all 24 bits), weights two; keys and values
// are exact.
//
// Invariant: see attention.cu; the number of stages and what is read before the wait change when things are fetched,
// never a bit.

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

// Shared memory of a block, followed by STAGES tiles of keys and of values.
template <int DIM> struct mma_space {
    __align__(16) float score[mma_share<DIM>::WAYS][MMA_HEADS][MMA_TILE + MMA_PAD];
    __align__(16) uint16_t weight[2][MMA_HEADS][MMA_TILE + MMA_PAD];
    __align__(16) float keep[MMA_HEADS];
    // What the parts of the cluster put here: maxima and totals, and their sums for the block's share of the dims.
    __align__(16) float sums[MMA_PARTS][MMA_HEADS][2];
    __align__(16) float out[MMA_HEADS * DIM]; // [parts][MMA_HEADS][DIM / parts]
    uint64_t came;                            // their bytes
    const uint8_t *key[2][MMA_THREADS];       // rows of positions; values lie value_offset behind
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
static_assert(MMA_EACH == 2, "the kernel starts with two");

// Weights of the warp's heads of the tile, of which `live` positions exist.
template <int DIM> DEVICE void mma_softmax(struct mma_space<DIM> *s, struct mma_sums *sums, int32_t live)
{
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float weight[MMA_EACH], keep[MMA_EACH];
#pragma unroll
    for (int n = 0; n < MMA_EACH; n++) {
        float score = s->score[0][warp * MMA_EACH + n][lane];
#pragma unroll
        for (int w = 1; w < mma_share<DIM>::WAYS; w++)
            score = __fadd_rn(score, s->score[w][warp * MMA_EACH + n][lane]);
        weight[n] = lane < live ? score : -INFINITY;
    }
#pragma unroll
    for (int n = 0; n < MMA_EACH; n++) {
        const float old = sums->top[n], highest = warp_max(weight[n]), top = highest > old ? highest : old;
        weight[n] = expf(__fadd_rn(weight[n], -top));
        keep[n] = expf(__fadd_rn(old, -top));
        sums->top[n] = top;
        sums->total[n] = fmaf(sums->total[n], keep[n], weight[n]);
    }
#pragma unroll
    for (int n = 0; n < MMA_EACH; n++) {
        const int32_t h = warp * MMA_EACH + n;
        if (lane == 0)
            s->keep[h] = keep[n];
        s->weight[0][h][lane] = mma_part(&weight[n]);
        s->weight[1][h][lane] = mma_part(&weight[n]);
    }
}

// out = out * keep + weights * values, for the warp's dims.
template <int DIM>
DEVICE void mma_values(const struct mma_space<DIM> *s, const struct mma_tile<DIM> *tile, float (*out)[4])
{
    constexpr int COLUMNS = mma_share<DIM>::COLUMNS;
    const int32_t lane = threadIdx.x % WARP, g = lane / 4;
    const int32_t first = (int32_t)threadIdx.x / WARP * mma_share<DIM>::WIDTH;
    const float low = s->keep[g], high = s->keep[g + 8];
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
        mma_rows(a[0], &s->weight[0][0][0], MMA_TILE + MMA_PAD, k);
        mma_rows(a[1], &s->weight[1][0][0], MMA_TILE + MMA_PAD, k);
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

// ---- the end: every part puts its sums where their dims are added ------------------------------------------------------------------

template <int DIM, int PARTS>
DEVICE void mma_put(struct mma_space<DIM> *s, const struct mma_sums *sums, const float (*out)[4], int32_t heads,
                    int32_t part)
{
    constexpr int OWNED = DIM / PARTS;
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (lane < PARTS)
#pragma unroll
        for (int n = 0; n < MMA_EACH; n++)
            box_put(s->sums[part][warp * MMA_EACH + n], &s->came, (unsigned)lane, sums->top[n], sums->total[n]);
    if (warp < mma_share<DIM>::WAYS)
#pragma unroll
        for (int n = 0; n < mma_share<DIM>::COLUMNS; n++) {
            const int32_t d = warp * mma_share<DIM>::WIDTH + n * 8 + lane % 4 * 2;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int32_t h = lane / 4 + half * 8;
                if (h < heads)
                    box_put(s->out + (part * MMA_HEADS + h) * OWNED + d % OWNED, &s->came, (unsigned)(d / OWNED),
                            out[n][2 * half], out[n][2 * half + 1]);
            }
        }
}

// Bytes that a block gets.
template <int DIM, int PARTS> DEVICE int mma_bytes(int32_t heads)
{
    return 4 * (heads * DIM + 2 * MMA_HEADS * PARTS);
}

// Adds the parts for two dims of a head, in order. A part without positions has the weight 0.
template <int DIM, int PARTS> DEVICE void mma_merge(const struct mma_space<DIM> *s, int32_t h, int32_t at, float *out)
{
    float2 sums[PARTS], part[PARTS];
    float highest = -INFINITY, total = 0;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        sums[p] = *reinterpret_cast<const float2 *>(s->sums[p][h]);
        part[p] = *reinterpret_cast<const float2 *>(s->out + (p * MMA_HEADS + h) * (DIM / PARTS) + at);
        highest = sums[p].x > highest ? sums[p].x : highest;
    }
    out[0] = out[1] = 0;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        const float weight = expf(__fadd_rn(sums[p].x, -highest));
        total = fmaf(sums[p].y, weight, total);
        out[0] = fmaf(part[p].x, weight, out[0]);
        out[1] = fmaf(part[p].y, weight, out[1]);
    }
    out[0] = __fdiv_rn(out[0], total);
    out[1] = __fdiv_rn(out[1], total);
}

// Two dims of a head that a thread adds up, and what their gates say.
struct mma_item {
    int32_t h, at; // at: in the block's share of the dims
    float2 gate;
};

DEVICE struct mma_item mma_item_of(const struct attention_args *a, int64_t r, const struct attention_heads *heads,
                                   int32_t owned, int32_t part, int32_t i)
{
    struct mma_item item = {i / (owned / 2), i % (owned / 2) * 2, {0, 0}};
    if (a->gate && item.h < heads->count) {
        const float *gate =
            a->gate + r * a->ldg + (int64_t)(heads->first + item.h) * a->gate_stride + part * owned + item.at;
        item.gate = __ldcg(reinterpret_cast<const float2 *>(gate));
    }
    return item;
}

// Adds the parts of the block's share of the dims and writes it; first: the thread's first item.
template <int DIM, int PARTS>
DEVICE void mma_end(const struct attention_args *a, struct mma_space<DIM> *s, int64_t r,
                    const struct attention_heads *heads, int32_t part, struct mma_item item)
{
    constexpr int OWNED = DIM / PARTS;
    float factor[2] = {f_sigmoid(item.gate.x), f_sigmoid(item.gate.y)};
    box_wait(&s->came);
    for (int32_t i = (int32_t)threadIdx.x; i < heads->count * OWNED / 2; i += MMA_THREADS) {
        if (i >= MMA_THREADS) {
            item = mma_item_of(a, r, heads, OWNED, part, i);
            factor[0] = f_sigmoid(item.gate.x);
            factor[1] = f_sigmoid(item.gate.y);
        }
        float out[2];
        mma_merge<DIM, PARTS>(s, item.h, item.at, out);
        float *y = a->y + r * a->ldy + (int64_t)(heads->first + item.h) * DIM + part * OWNED + item.at;
        *reinterpret_cast<float2 *>(y) = {a->gate ? f_mul(out[0], factor[0]) : out[0],
                                          a->gate ? f_mul(out[1], factor[1]) : out[1]};
    }
}

// A row that this op's pass has: read before the wait, past L1 (launch.cuh). Where its choice can be said from the
// position alone, nothing is waited for.
struct mma_row {
    bool real, dense;
    int32_t lane, position;
};

DEVICE struct mma_row mma_row_of(const struct attention_args *a, int64_t r)
{
    const volatile struct pass *pass = a->pass; // so that no number waits for another one
    const int32_t *lane = pass->lane, *position = pass->position;
    struct mma_row row = {r < pass->rows, true, 0, 0};
    if (!row.real)
        return row;
    row.lane = __ldcg(lane + r);
    row.position = __ldcg(position + r);
    row.dense = !a->counts || (row.position + 1) / a->ratio <= a->keep;
    return row;
}

template <int DIM, int STAGES, int PARTS>
__global__ void __launch_bounds__(MMA_THREADS, STAGES > 2 ? 1 : 2)
    attention_mma_kernel(const __grid_constant__ struct attention_args a)
{
    SHARED_BYTES(room);
    constexpr int WAYS = mma_share<DIM>::WAYS;
    struct mma_space<DIM> *s = reinterpret_cast<struct mma_space<DIM> *>(room);
    struct mma_tile<DIM> *keys = reinterpret_cast<struct mma_tile<DIM> *>(room + sizeof *s), *values = keys + STAGES;
    const int32_t part = (int32_t)blockIdx.x % PARTS, warp = (int32_t)threadIdx.x / WARP;
    const int64_t r = blockIdx.y;
    const struct attention_heads heads = attention_heads_of(&a, MMA_HEADS, (int32_t)blockIdx.x / PARTS);
    const int64_t value_offset =
        kv_offset(&a.layout, a.lanes.page, KV_VALUES) - kv_offset(&a.layout, a.lanes.page, KV_KEYS);
    const struct mma_row mine = mma_row_of(&a, r);
    if (!mine.real || !mine.dense)
        pdl_wait();
    if (!mine.real) {
        pdl_trigger();
        return;
    }
    if (threadIdx.x == 0)
        box_open(&s->came, mma_bytes<DIM, PARTS>(heads.count));
    cluster_arrive_read();
    const struct attention_row row =
        attention_row_at(&a, r, mine.lane, mine.position, mine.dense ? -1 : __ldcg(a.counts + r));
    const struct mma_span span = mma_span_of(row.count, part, PARTS);
    if (span.tiles > 0) {
        const uint8_t *key = mma_find<DIM>(&a, s, &row, heads.kv_head, span, 0);
        if (!a.early)
            mma_ask<DIM>(key, value_offset);
    }
    if (!a.early)
        pdl_wait();
    __syncthreads();
#pragma unroll 1
    for (int32_t t = 0; t < STAGES; t++)
        mma_group<DIM, STAGES>(s, keys, span, t, value_offset);
    float2 x[mma_share<DIM>::STEPS][4];
    uint32_t q[mma_share<DIM>::STEPS][MMA_Q_PARTS][4];
    mma_queries<DIM>(&a, r, &heads, x);
    const struct mma_item first = mma_item_of(&a, r, &heads, DIM / PARTS, part, (int32_t)threadIdx.x);
    pdl_wait();
    pdl_trigger();
    mma_split<mma_share<DIM>::STEPS>(a.scale, x, q);
    float out[mma_share<DIM>::COLUMNS][4] = {};
    struct mma_sums sums = {{-INFINITY, -INFINITY}, {0, 0}};
    __pipeline_wait_prior(STAGES - 1);
    __syncthreads();
    for (int32_t t = 0; t < span.tiles; t++) {
        if (warp < WAYS && t > 0)
            mma_values<DIM>(s, &values[(t - 1) % STAGES], out);
        if (warp < WAYS)
            mma_scores<DIM>(s, &keys[t % STAGES], q);
        __syncthreads(); // the places of these keys and values are free
        const int32_t next = t + STAGES;
        mma_group<DIM, STAGES>(s, keys, span, next, value_offset);
        if ((next + 1) % MMA_AHEAD == 0 && next + 1 < span.tiles) // STAGES < MMA_AHEAD
            mma_find<DIM>(&a, s, &row, heads.kv_head, span, next + 1);
        mma_softmax<DIM>(s, &sums, span.end - span.begin - t * MMA_TILE);
        __pipeline_wait_prior(STAGES - 1);
        __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < MMA_EACH; n++)
        sums.total[n] = warp_sum<WARP>(sums.total[n]);
    if (warp < WAYS && span.tiles > 0)
        mma_values<DIM>(s, &values[(span.tiles - 1) % STAGES], out);
    cluster_wait(); // all blocks have opened their boxes
    mma_put<DIM, PARTS>(s, &sums, out, heads.count, part);
    mma_end<DIM, PARTS>(&a, s, r, &heads, part, first);
}

// Whether the caches can be read 16 bytes at a time, and rows of two numbers.
static inline bool attention_mma_fits(const struct attention_args *a)
{
    const struct kv_layout *kv = &a->layout;
    const uint64_t rows = (uintptr_t)a->q | (uintptr_t)a->gate | (uintptr_t)a->y;
    return rows % 8 == 0 && (a->ldq | a->ldg | a->gate_stride | a->ldy) % 2 == 0 && kv->encoding == KV_BF16 &&
           (kv->dim == 64 || kv->dim == 128 || kv->dim == 256) && kv_fits(&a->lanes, kv, 8, KV_KEYS) &&
           kv_fits(&a->lanes, kv, 8, KV_VALUES);
}

template <int DIM> static size_t attention_mma_bytes(int stages)
{
    return sizeof(struct mma_space<DIM>) + 2 * (size_t)stages * sizeof(struct mma_tile<DIM>);
}

template <int DIM, int STAGES, int PARTS>
static cudaError_t attention_mma_stages(cudaStream_t stream, const struct attention_args *a, int rows)
{
    static_assert(STAGES < MMA_AHEAD, "addresses are found that far ahead");
    const dim3 grid(PARTS * (unsigned)attention_groups(a, MMA_HEADS), (unsigned)rows);
    return launch_cluster(stream, grid, MMA_THREADS, attention_mma_bytes<DIM>(STAGES), PARTS,
                          attention_mma_kernel<DIM, STAGES, PARTS>, *a);
}

// Stages: FEW where a block has a processor for itself, MANY where it shares one, LEAST where those have no place.
template <int DIM, int FEW, int MANY, int LEAST>
static cudaError_t attention_mma_launch(cudaStream_t stream, const struct attention_args *a, int rows, bool few)
{
    const bool clusters = clusters_available();
    if (attention_mma_bytes<DIM>(MANY) > block_room())
        return clusters ? attention_mma_stages<DIM, LEAST, MMA_PARTS>(stream, a, rows)
                        : attention_mma_stages<DIM, LEAST, 1>(stream, a, rows);
    if (!clusters)
        return attention_mma_stages<DIM, MANY, 1>(stream, a, rows);
    return few && attention_mma_bytes<DIM>(FEW) <= block_room()
               ? attention_mma_stages<DIM, FEW, MMA_PARTS>(stream, a, rows)
               : attention_mma_stages<DIM, MANY, MMA_PARTS>(stream, a, rows);
}

#endif
