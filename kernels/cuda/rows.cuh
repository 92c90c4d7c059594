// SPDX-License-Identifier: Apache-2.0
//
// Decode-class products: a warp's part of a pair of panels with at most four rows; eight.cuh has those of up to eight.
//
// Rows of x are held in shared memory of the block as the launch's encodings need them (x_form.cuh): two bf16 parts (16 significant
// bits), halves or digits, of each row and block of 32 k the high ones, then the low ones. They come as they are, through the copy engine
// where that can be, and are taken apart in place. A product has eight columns: both parts of each row.
// Weights come through the block's ring (ring.cuh); the blocks of k of a unit are dealt out to the warps of a pair.
//
// Invariant: what a row gets depends on its numbers and on the unit's blocks and splits alone: a warp's blocks ascending. Of bf16 parts the
// products of a block in the order of its steps, high and low parts apart to the end, and at the end high plus
// low; of halves and integers group by group. Then the warps in order.

#ifndef ROWS_CUH
#define ROWS_CUH

#include "kernels/cuda/halves.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/window_norm.cuh"

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
    const struct residual_row *before; // where a kernel makes x of it
    float *space;                      // 32 floats for that
    uint64_t *read;                    // its barrier: the warps have read it
    int32_t live;                      // rows of the pass
    const uint8_t *apart;              // eight.cuh: NULL, or the tile as it was taken apart before
};

// What a block holds of x in shared memory: blocks from .. to - 1 of k, of 1 << shift rows; it has place for `capacity` blocks.
struct x_window {
    unsigned char *memory;
    struct x_form form;
    int32_t shift, capacity, from, to;
    int32_t kind;   // of what it holds
    uint64_t *come; // barrier of what the copy engine brings
    uint32_t parity;
};

// The factor of row r in block `block` of the window; an even number of blocks further on it lies (blocks << shift) behind.
__device__ __forceinline__ float2 *window_factor(const x_window &x, int block, int r)
{
    float2 *factors = (float2 *)(x.memory + factors_at(1 << x.shift, x.capacity));
    return factors + (x.form.grain == 2 ? (((block >> 1) << x.shift) + r) * 2 + (block & 1) : (block << x.shift) + r);
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

// A thread's piece of the window: eight numbers of a row. at: its row and block.
struct window_piece {
    int block, r;
    unsigned char *at;
};

// grain: neighbouring threads have so many blocks of a row.
__device__ __forceinline__ window_piece window_piece_at(const x_window &x, int item, int rows, int grain)
{
    const float turn = 1.0f / (float)rows; // the quotient is exact: far fewer than 2^20 pieces, 8 rows
    const int shift = grain == 2 ? 3 : 2, group = (int)(((float)(item >> shift) + 0.5f) * turn),
              r = (item >> shift) - group * rows, block = grain == 2 ? 2 * group + (item >> 2 & 1) : group;
    return {block, r, x.memory + r * window_stride(x.capacity) + block * X_PITCH};
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

// Eight numbers of a piece as digits and, by the first lane of a block, its factor. GRAIN: blocks of a group.
template <int GRAIN>
__device__ __forceinline__ void digits_write(unsigned char *digits, float2 *factor, const float *v, bool mine)
{
    const int l = threadIdx.x & 3;
    uint2 high, low;
    float2 f;
    integer_eight<4 * GRAIN>(v, &high, &low, &f);
    __syncwarp(); // a block's lanes have their numbers before one writes digits
    if (!mine)
        return;
    *(uint2 *)(digits + l * 8) = high;
    *(uint2 *)(digits + x_bytes(X_INTEGERS) / 2 + l * 8) = low;
    if (l == 0)
        *factor = f;
}
// The same as halves.
template <int GRAIN>
__device__ __forceinline__ void halves_write(unsigned char *halves, float2 *factor, const float *v, bool mine)
{
    const int l = threadIdx.x & 3;
    uint4 high, low;
    float f;
    half_eight<4 * GRAIN>(v, l & 1, &high, &low, &f);
    __syncwarp();
    if (!mine)
        return;
    *(uint4 *)(halves + l * 16) = high;
    *(uint4 *)(halves + x_bytes(X_HALVES) / 2 + l * 16) = low;
    if (l == 0)
        *factor = make_float2(f, 0);
}
// The same as whatever kind has groups; grain: blocks of one.
template <int KIND>
__device__ __forceinline__ void group_write(int grain, unsigned char *to, float2 *factor, const float *v, bool mine)
{
    if constexpr (KIND == X_HALVES) {
        if (grain == 2)
            halves_write<2>(to, factor, v, mine);
        else
            halves_write<1>(to, factor, v, mine);
    } else {
        if (grain == 2)
            digits_write<2>(to, factor, v, mine);
        else
            digits_write<1>(to, factor, v, mine);
    }
}

// Fills the window with blocks from .. to - 1 of the tile's rows as KIND, by all takers; nobody may still read what it held. Rows that
// the tile lacks are left as they are: a product's columns are apart, and theirs are never stored.
// BEFORE: what x is made of (before_kind).
template <int KIND, int BEFORE>
__device__ __forceinline__ void window_fill(x_window *x, const row_source_tile &t, int from, int to)
{
    const int grain = KIND == X_PARTS ? 1 : x->form.grain, items = (to - from) * t.count * 4, l = threadIdx.x & 3;
    const bool brought =
        BEFORE != BEFORE_NOTHING || (t.bring && items > TAKERS); // else all are under way at once anyway
    if constexpr (BEFORE != BEFORE_NOTHING)
        window_norm<BEFORE>(*t.before, {(float *)x->memory, t.k, from * 32, to * 32, t.live > 0, t.space, t.read});
    else if (brought)
        window_bring(x, t, from, to);
    for (int item = threadIdx.x; (item & ~31) < items; item += TAKERS) {
        const window_piece p = window_piece_at(*x, item, t.count, grain);
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (item < items)
            window_take(t, p, (from + p.block) * 32 + l * 8, brought, v);
        if constexpr (KIND == X_PARTS) {
            uint4 high, low;
            split_eight(v, &high, &low);
            __syncwarp(); // four lanes have their numbers before one writes its parts
            if (item < items) {
                *(uint4 *)(p.at + l * 16) = high;
                *(uint4 *)(p.at + 64 + l * 16) = low;
            }
        } else {
            group_write<KIND>(grain, p.at, window_factor(*x, p.block, p.r), v, item < items);
        }
    }
    x->from = from;
    x->to = to;
    x->kind = KIND;
    some_wait(TAKERS);
}

// d[4 t + i] of product t += the products of a block with eight columns. x: the lane's part of its column.
template <class CODE> __device__ __forceinline__ void block_add(const CODE &code, uint4 x, int l, float *d)
{
    static_assert(!CODE::SCALED && !CODE::APART && !CODE::CROSSED, "codes with scales beside them have x in groups");
#pragma unroll
    for (int part = 0; part < CODE::PARTS; part++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t a[2][4];
            code.fragment(part, j, l, a);
#pragma unroll
            for (int t = 0; t < 2; t++)
                mma_bf16(d + 4 * t, a[t], word(x, 2 * j), word(x, 2 * j + 1));
        }
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
    float *sums;   // of the unit, for this warp: [32][rows]
    int32_t x_at;  // eight.cuh: where x lies in a slot
    int32_t grain; // of w, see stage_source
    x_window x;
    row_source_tile tile;
    weight_ring ring;
};

// The scales of a lane's panel that do not go through the ring.
template <class CODE> __device__ __forceinline__ const uint8_t *share_apart(const share *s, int panel)
{
    const int last = (s->w->n + 15) / 16 - 1, own = 2 * s->pair + (panel & 1); // a pair may lack its second panel
    return CODE::APART ? s->w->scale + s->expert * s->w->scale_stride +
                             (int64_t)(own < last ? own : last) * scale_panel_bytes(s->w)
                       : s->w->scale;
}

// Whether a stage of n blocks from b on is in the window as KIND; if not, where the window is to end, and nobody reads it any more.
template <int KIND> __device__ __forceinline__ bool window_has(const share *s, int b, int n, int *to)
{
    if (b >= s->x.from && b + n <= s->x.to && (s->x.form.kinds == KIND || s->x.kind == KIND))
        return true;
    *to = s->to - b < s->x.capacity ? s->to : b + s->x.capacity;
    stage_written();
    some_wait(TAKERS);
    return false;
}

template <int KIND, int BEFORE> __device__ __forceinline__ void share_window(share *s, int b, int n)
{
    int to;
    if (!window_has<KIND>(s, b, n, &to))
        window_fill<KIND, BEFORE>(&s->x, s->tile, b, to);
}

// Computes a share whose stages come next in the ring; sums get what row r has for output o of the pair at o * rows + r, with the
// encoding's `factor` applied. All takers call it with the same unit. This form: of bf16 parts.
template <class CODE, int BEFORE> __device__ __forceinline__ void share_parts(share *s)
{
    constexpr int DATA = CODE::DATA, SCALE = CODE::SCALE;
    const int lane = s->lane, l = lane & 3, quarter = lane >> 2 & 3, panel = 2 * s->own + (lane >> 4);
    const int rows = s->x.shift, mask = (1 << rows) - 1, column = lane >> 2;
    const int column_at = (column >> 2) * 64 + (column & mask) * window_stride(s->x.capacity);
    const bool live = s->pair * 32 < s->w->n;
    float sums[8] = {};
    for (int b = s->from; b < s->to; b += s->step) {
        const int n = s->to - b < s->step ? s->to - b : s->step;
        share_window<X_PARTS, BEFORE>(s, b, n);
        const unsigned char *x = s->x.memory + (b - s->x.from + s->part) * 128 + column_at + l * 16;
        const unsigned char *slot = ring_take(&s->ring);
        const unsigned char *data = slot + (panel * n + s->part) * DATA + quarter * CODE::DATA_QUARTER,
                            *scale = slot + s->scale_at + panel * n * SCALE + quarter * CODE::SCALE_QUARTER;
        int at = s->part;
        auto load = [&](CODE *code, int which) {
            const int block = at + which * s->splits;
            code->take(data + which * s->splits * DATA, scale + block * SCALE, l);
        };
        auto product = [&](const CODE &code, int which) {
            block_add(code, *(const uint4 *)(x + which * s->splits * 128), l, sums);
        };
        for (; live && at + s->splits < n; at += 2 * s->splits) { // two at a time, so that their instructions mix
            CODE one, two;
            load(&one, 0);
            load(&two, 1);
            product(one, 0);
            product(two, 1);
            data += 2 * s->splits * DATA;
            x += 2 * s->splits * 128;
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
        const float other = __shfl_xor_sync(0xffffffffu, sums[i], 2);
        if (sum_row(i, lane) <= mask)
            s->sums[(sum_output(i, lane) << rows) + sum_row(i, lane)] = (sums[i] + other) * CODE::factor();
    }
}

// Where the scale of block k lies, in a stage that begins with block b and has its scales at `scale`.
template <class CODE>
__device__ __forceinline__ const unsigned char *group_scale(const uint8_t *apart, const unsigned char *scale, int b,
                                                            int k, int shift)
{
    return CODE::APART ? apart + (k >> 2) * 4 : scale + ((k >> shift) - (b >> shift)) * CODE::SCALE;
}

// Stores a share of halves or integers: a lane has row l and, of eight, row l + 4.
template <int ROWS> __device__ __forceinline__ void group_store(const share *s, int rows, const float sums[ROWS][4])
{
#pragma unroll
    for (int h = 0; h < ROWS; h++)
#pragma unroll
        for (int o = 0; o < 4; o++)
            if ((s->lane & 3) + 4 * h < 1 << rows)
                s->sums[(((s->lane >> 2) * 4 + o) << rows) + (s->lane & 3) + 4 * h] = sums[h][o];
}

// share_parts() of halves and integers, by groups of GRAIN blocks.
template <class CODE, int GRAIN, int BEFORE> __device__ __forceinline__ void share_groups(share *s)
{
    constexpr int DATA = CODE::DATA, SCALE = CODE::SCALE, KIND = x_of<CODE>::KIND;
    const int lane = s->lane, l = lane & 3, quarter = lane >> 2 & 3, panel = 2 * s->own + (lane >> 4), shift = s->shift;
    const int rows = s->x.shift, mask = (1 << rows) - 1, stride = window_stride(s->x.capacity),
              splits = GRAIN * s->splits;
    const unsigned char *column = s->x.memory + (lane >> 3 & mask) * stride + (lane >> 2 & 1) * (x_bytes(KIND) / 2);
    const bool live = s->pair * 32 < s->w->n;
    const uint8_t *apart = share_apart<CODE>(s, panel);
    float sums[1][4] = {};
    for (int b = s->from; b < s->to; b += s->step) {
        const int n = s->to - b < s->step ? s->to - b : s->step;
        share_window<KIND, BEFORE>(s, b, n);
        const int scales = (((b + n - 1) >> shift) - (b >> shift) + 1) * SCALE, own = GRAIN * s->part,
                  first = b - s->x.from + own;
        const unsigned char *x = column + first * X_PITCH;
        const float2 *factors = window_factor(s->x, first, l & mask);
        const unsigned char *slot = ring_take(&s->ring);
        const unsigned char *data = slot + (panel * n + own) * DATA + quarter * CODE::DATA_QUARTER,
                            *scale = slot + s->scale_at + panel * scales + quarter * CODE::SCALE_QUARTER;
        for (int at = own; live && at < n; at += splits) { // one at a time: the least code is the fastest here
            group_operands<CODE, GRAIN, 1> v;
#pragma unroll
            for (int i = 0; i < GRAIN; i++) {
                v.code[i].take(data + i * DATA, group_scale<CODE>(apart, scale, b, b + at, shift), l);
                v.column(0, i, x + i * X_PITCH, l);
            }
            if (GRAIN == 2) {
                const float4 f = *(const float4 *)factors;
                v.factors(0, make_float2(f.x, f.y), make_float2(f.z, f.w));
            } else {
                v.factors(0, *factors, *factors);
            }
            group_add(v, l, sums);
            data += splits * DATA;
            x += splits * X_PITCH;
            factors += splits << rows;
        }
        ring_give(&s->ring, lane);
    }
    group_store<1>(s, rows, sums);
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
