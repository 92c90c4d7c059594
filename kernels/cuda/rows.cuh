// SPDX-License-Identifier: Apache-2.0
//
// Decode-class products: a warp's part of a pair of panels with at most TILE_ROWS rows.
//
// Rows of x are held as two bf16 parts (16 significant bits) in shared memory of the block: of each row and block of 32
// k the high parts, then the low parts, then (behind all rows) the fp32 sums of both parts of the rows' 32 numbers. They come as they
// are, through the copy engine where that can be, and are taken apart in place. A product has eight columns: with up to
// four rows the first four have high parts and the others low ones, else there are two products. Weights come through
// the block's ring (ring.cuh); the blocks of k of a unit are dealt out to the warps of a pair.
//
// Invariant: what a row gets depends on its numbers and on the unit's blocks and splits alone: the products of a block in the order
// of its steps, a warp's blocks ascending, high and low parts apart to the end; scaled encodings add scale * (block's product), then
// bias * (block's sum). Then high plus low, then the warps in order.

#ifndef ROWS_CUH
#define ROWS_CUH

#include "kernels/cuda/ring.cuh"

enum { TILE_ROWS = 8 };

// Up to TILE_ROWS rows: row r is x + (list ? list[r] / divisor : first + r) * ld.
struct row_source_tile {
    const float *x;
    int64_t ld;
    const int32_t *list; // in shared memory
    int32_t divisor, first, count, k;
    int32_t aligned; // rows begin at multiples of 16 bytes
    bool bring;      // the copy engine may bring them: aligned, k in whole blocks, no up
    const float *up; // NULL, or x is silu(x) * up, whose rows lie ld_up apart
    int64_t ld_up;
};

// What a block holds of x in shared memory: blocks from .. to - 1 of k, of 1 << shift rows; it has place for `capacity` blocks.
struct x_window {
    unsigned char *memory;
    int32_t shift, capacity, from, to;
    uint64_t *come; // barrier of what the copy engine brings
    uint32_t parity;
};

// Bytes from a row to the next: neighbours lie in different banks.
__host__ __device__ __forceinline__ constexpr int window_stride(int capacity)
{
    return capacity * 128 + 64;
}

__host__ __device__ __forceinline__ constexpr int window_bytes(int rows, int capacity)
{
    return (rows * (window_stride(capacity) + capacity * 4) + 15) / 16 * 16;
}

__device__ __forceinline__ float *window_sums(const x_window &x)
{
    return (float *)(x.memory + (window_stride(x.capacity) << x.shift));
}

// Eight numbers in the order of fragments, as high and low bf16 parts.
__device__ __forceinline__ void split_eight(const float *v, uint4 *high, uint4 *low)
{
    uint32_t h[4], d[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = i / 2 * 4 + i % 2; // pairs (0, 2) (1, 3) (4, 6) (5, 7)
        h[i] = pair_pack(v[at], v[at + 2]);
        d[i] = pair_pack(v[at] - bits_float(h[i] << 16), v[at + 2] - bits_float(h[i] & 0xffff0000u));
    }
    *high = make_uint4(h[0], h[1], h[2], h[3]);
    *low = make_uint4(d[0], d[1], d[2], d[3]);
}

// x[k .. k + 7], zeros from `end` on. Past L1: a kernel may read rows before its wait, when an older kernel's lines may lie there.
__device__ __forceinline__ void load_eight(const float *x, int k, int end, bool aligned, float *v)
{
    if (aligned && k + 8 <= end) {
        const float4 a = __ldcg((const float4 *)(x + k)), b = __ldcg((const float4 *)(x + k + 4));
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = k + i < end ? __ldcg(x + k + i) : 0.0f;
}

__device__ __forceinline__ float sum_eight(const float *v)
{
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// The eight numbers that two parts are.
__device__ __forceinline__ void join_eight(const uint4 &high, const uint4 &low, float *v)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = i / 2 * 4 + i % 2;
        v[at] = bits_float(word(high, i) << 16) + bits_float(word(low, i) << 16);
        v[at + 2] = bits_float(word(high, i) & 0xffff0000u) + bits_float(word(low, i) & 0xffff0000u);
    }
}

// The sum of both parts of a block's 32 numbers, by its four lanes.
__device__ __forceinline__ float parts_sum(const uint4 &high, const uint4 &low)
{
    float v[8];
    join_eight(high, low, v);
    float sum = sum_eight(v);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

// A thread's piece of the window: eight numbers of a row. at: its row and block.
struct window_piece {
    int block, r;
    unsigned char *at;
};

__device__ __forceinline__ window_piece window_piece_at(const x_window &x, int item, int rows)
{
    const float turn = 1.0f / (float)rows; // the quotient is exact: far fewer than 2^20 pieces, 8 rows
    const int block = (int)(((float)(item >> 2) + 0.5f) * turn), r = (item >> 2) - block * rows;
    return {block, r, x.memory + r * window_stride(x.capacity) + block * 128};
}

__device__ __forceinline__ int64_t tile_row(const row_source_tile &t, int r)
{
    return t.list ? t.list[t.first + r] / t.divisor : t.first + r;
}

// Brings the rows as they are, by the first warp; whoever waits sees them.
__device__ __forceinline__ void window_bring(x_window *x, const row_source_tile &t, int from, int to)
{
    if (threadIdx.x < 32) {
        const int r = threadIdx.x, bytes = (to - from) * 128;
        stage_expect(x->come, t.count * bytes, r);
        stage_copy(x->memory + r * window_stride(x->capacity),
                   t.x + (r < t.count ? tile_row(t, r) * t.ld : 0) + from * 32, bytes, x->come, r < t.count);
        stage_commit(x->come);
    }
    stage_wait(x->come, x->parity);
    x->parity ^= 1;
}

// A piece's numbers: from where window_bring() left them, or from the row.
__device__ __forceinline__ void window_take(const row_source_tile &t, const window_piece &p, int k, bool brought,
                                            float *v)
{
    const int l = threadIdx.x & 3;
    if (brought) {
        const float4 a = *(const float4 *)(p.at + l * 32), b = *(const float4 *)(p.at + l * 32 + 16);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
    load_eight(t.x + tile_row(t, p.r) * t.ld, k, t.k, t.aligned != 0, v);
    if (!t.up)
        return;
    float u[8];
    load_eight(t.up + tile_row(t, p.r) * t.ld_up, k, t.k, t.aligned != 0, u);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = __fmul_rn(__fdiv_rn(v[i], __fadd_rn(1.0f, expf(-v[i]))), u[i]);
}

// Fills the window with blocks from .. to - 1 of the tile's rows, by all takers; nobody may still read what it held. Rows that
// the tile lacks are left as they are: a product's columns are apart, and theirs are never stored. SUMS: somebody reads the sums.
template <bool SUMS>
__device__ __forceinline__ void window_fill(x_window *x, const row_source_tile &t, int from, int to)
{
    const int items = (to - from) * t.count * 4, l = threadIdx.x & 3;
    const bool brought = t.bring && items > TAKERS; // else all are under way at once anyway
    if (brought)
        window_bring(x, t, from, to);
    for (int item = threadIdx.x; (item & ~31) < items; item += TAKERS) {
        const window_piece p = window_piece_at(*x, item, t.count);
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (item < items)
            window_take(t, p, (from + p.block) * 32 + l * 8, brought, v);
        uint4 high, low;
        float sum = 0;
        split_eight(v, &high, &low);
        if (SUMS)
            sum = parts_sum(high, low);
        __syncwarp(); // four lanes have their numbers before one writes its parts
        if (item < items) {
            *(uint4 *)(p.at + l * 16) = high;
            *(uint4 *)(p.at + 64 + l * 16) = low;
            if (SUMS && l == 0)
                window_sums(*x)[(p.block << x->shift) + p.r] = sum;
        }
    }
    x->from = from;
    x->to = to;
    some_wait(TAKERS);
}

// The products of a block with eight columns: d[4 t + i] of product t. x: the lane's part of its column.
template <class CODE> __device__ __forceinline__ void block_columns(const CODE &code, const uint4 &x, int l, float *d)
{
#pragma unroll
    for (int part = 0; part < CODE::PARTS; part++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t a[2][4];
            if constexpr (code_raw<CODE>::value)
                code.fragment_raw(j, l, a);
            else
                code.fragment(part, j, l, a);
#pragma unroll
            for (int t = 0; t < 2; t++)
                mma_bf16(d + 4 * t, a[t], word(x, 2 * j), word(x, 2 * j + 1));
        }
}

// sums += scale * d + bias * x for the lane's four outputs and two columns. BIAS: whether columns have x, which is not all zeros.
template <class CODE, bool BIAS>
__device__ __forceinline__ void block_scale(const CODE &code, const float *d, float x0, float x1, float *sums)
{
#pragma unroll
    for (int o = 0; o < 4; o++) {
        float scale, bias = 0;
        if constexpr (code_raw<CODE>::value)
            code.outcome_raw(o, &scale, &bias);
        else
            code.outcome(o, &scale, &bias);
        sums[2 * o] = fmaf(scale, d[2 * o], sums[2 * o]);
        sums[2 * o + 1] = fmaf(scale, d[2 * o + 1], sums[2 * o + 1]);
        if (CODE::BIASED && BIAS) {
            sums[2 * o] = fmaf(bias, x0, sums[2 * o]);
            sums[2 * o + 1] = fmaf(bias, x1, sums[2 * o + 1]);
        }
    }
}

// A block's products with eight columns, added to sums. x: the lane's part of its column; x0, x1: the sums of two columns.
template <class CODE, bool BIAS>
__device__ __forceinline__ void block_add(const CODE &code, const uint4 &x, float x0, float x1, int l, float *sums)
{
    float d[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    block_columns(code, x, l, CODE::SCALED ? d : sums);
    if (CODE::SCALED)
        block_scale<CODE, BIAS>(code, d, x0, x1, sums);
}

// The lane's part of a column in the window, in the order of its codes.
template <class CODE> __device__ __forceinline__ uint4 column_part(const unsigned char *x, int l)
{
    if (!CODE::CROSSED)
        return *(const uint4 *)x;
    const uint2 first = *(const uint2 *)(x + (l & 1) * 8), second = *(const uint2 *)(x + 8 - (l & 1) * 8);
    return make_uint4(first.x, first.y, second.x, second.y);
}

// One block. x: the lane's part of its column in the window, low parts 64 bytes behind high ones; s: the block's row
// sums. EIGHT: rows have the eight columns, and `low` gets the low parts' sums.
template <class CODE, bool EIGHT>
__device__ __forceinline__ void block_product(const CODE &code, const unsigned char *x, const float *s, int mask, int l,
                                              float *sums, float *low)
{
    const uint4 first = column_part<CODE>(x, l);
    float x0 = 0, x1 = 0;
    if (CODE::BIASED && (EIGHT || l < 2)) {
        x0 = s[2 * l & mask];
        x1 = s[(2 * l + 1) & mask];
    }
    block_add<CODE, true>(code, first, x0, x1, l, sums);
    if (EIGHT)
        block_add<CODE, false>(code, column_part<CODE>(x + 64, l), 0, 0, l, low);
}

// Which output of the pair and which row of the tile sum i of a lane is.
__device__ __forceinline__ int sum_output(int i, int lane)
{
    return (lane >> 2) * 4 + (i >> 1);
}
__device__ __forceinline__ int sum_row(int i, int lane)
{
    return 2 * (lane & 3) + (i & 1);
}

// What a warp does of a unit: pair number `own` of it, of which it has every `splits`th block, beginning with `part`.
struct share {
    const struct weight *w;
    int64_t expert;
    int32_t pair, from, to;        // the warp's pair, and the unit's blocks
    int32_t step, scale_at, shift; // of w, see stage_source
    int32_t splits, own, part, lane;
    float *sums;  // of the unit, for this warp: [32][rows]
    int32_t x_at; // staged.cuh: where x lies in a slot
    x_window x;
    row_source_tile tile;
    weight_ring ring;
};

// Computes a share whose stages come next in the ring; sums get what row r has for output o of the pair at o * rows + r, with the
// encoding's `factor` applied. All takers call it with the same unit. EIGHT: for eight rows, else for up to four. SUMS: whether any
// encoding of the launch has biases.
template <class CODE, bool EIGHT, bool SUMS> __device__ __forceinline__ void share_products(share *s)
{
    constexpr int DATA = CODE::DATA, SCALE = CODE::SCALE;
    const int lane = s->lane, l = lane & 3, quarter = lane >> 2 & 3, panel = 2 * s->own + (lane >> 4),
              shift = CODE::GROUPED ? s->shift : 0;
    const int rows = EIGHT ? 3 : s->x.shift, mask = (1 << rows) - 1, column = lane >> 2;
    const int stride = window_stride(s->x.capacity),
              column_at = EIGHT ? column * stride : (column >> 2) * 64 + (column & mask) * stride;
    const bool live = s->pair * 32 < s->w->n;
    const uint8_t *apart = s->w->scale; // scales that do not go through the ring
    if (CODE::APART) {
        const int last = (s->w->n + 15) / 16 - 1, own = 2 * s->pair + (panel & 1); // a pair may lack its second panel
        apart += s->expert * s->w->scale_stride + (int64_t)(own < last ? own : last) * scale_panel_bytes(s->w);
    }
    float sums[8], low[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums[i] = low[i] = 0;
    for (int b = s->from; b < s->to; b += s->step) {
        const int n = s->to - b < s->step ? s->to - b : s->step;
        if (b < s->x.from || b + n > s->x.to) {
            stage_written();
            some_wait(TAKERS);
            window_fill<SUMS>(&s->x, s->tile, b, s->to - b < s->x.capacity ? s->to : b + s->x.capacity);
        }
        const int scales = SCALE ? (((b + n - 1) >> shift) - (b >> shift) + 1) * SCALE : 0,
                  first = b - s->x.from + s->part;
        const unsigned char *x = s->x.memory + first * 128 + column_at + l * 16;
        const float *x_sums = window_sums(s->x) + (first << rows);
        const unsigned char *slot = ring_take(&s->ring);
        const unsigned char *data = slot + (panel * n + s->part) * DATA + quarter * CODE::DATA_QUARTER,
                            *scale = slot + s->scale_at + panel * scales + quarter * CODE::SCALE_QUARTER;
        int at = s->part;
        auto load = [&](CODE *code, int which) {
            const int block = at + which * s->splits;
            code->take(data + which * s->splits * DATA,
                       CODE::APART ? apart + ((b + block) >> 2) * 4
                                   : scale + (((b + block) >> shift) - (b >> shift)) * SCALE,
                       l);
        };
        auto product = [&](const CODE &code, int which) {
            block_product<CODE, EIGHT>(code, x + which * s->splits * 128, x_sums + (which * s->splits << rows), mask, l,
                                       sums, low);
        };
        for (; live && at + s->splits < n; at += 2 * s->splits) { // two at a time, so that their instructions mix
            CODE one, two;
            load(&one, 0);
            load(&two, 1);
            product(one, 0);
            product(two, 1);
            data += 2 * s->splits * DATA;
            x += 2 * s->splits * 128;
            x_sums += 2 * s->splits << rows;
        }
        if (live && at < n) {
            CODE one;
            load(&one, 0);
            product(one, 0);
        }
        ring_give(&s->ring, lane);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float other = EIGHT ? low[i] : __shfl_xor_sync(0xffffffffu, sums[i], 2);
        if (sum_row(i, lane) <= mask)
            s->sums[(sum_output(i, lane) << rows) + sum_row(i, lane)] = (sums[i] + other) * CODE::factor();
    }
}

// The sum of `splits` warps' numbers at `sums`, which lie `apart` floats apart, in order.
__device__ __forceinline__ float reduced(const float *sums, int splits, int apart)
{
    float t[WARPS], v;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        t[w] = w < splits ? sums[w * apart] : 0.0f;
    v = t[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++)
        v += t[w];
    return v;
}

// First block of share `share` of `shares`.
__host__ __device__ __forceinline__ int share_begin(int blocks, int share, int shares)
{
    return (int)((unsigned)blocks * (unsigned)share / (unsigned)shares);
}

__device__ __forceinline__ float activate(float v, int activation)
{
    switch (activation) {
    case ACT_SILU:
        return v / (1.0f + expf(-v));
    case ACT_SIGMOID:
        return 1.0f / (1.0f + expf(-v));
    case ACT_RELU2:
        return v > 0 ? v * v : (v == v ? 0.0f : v);
    default:
        return v;
    }
}

#endif
