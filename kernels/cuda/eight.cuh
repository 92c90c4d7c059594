// SPDX-License-Identifier: Apache-2.0
//
// Decode-class products of five to eight rows. x lies block of k after block of k, as each kind that the launch multiplies. A kernel of its
// own (split_kernel) has taken the rows apart before, once for all blocks, and left them like that; a block of the product copies what
// it needs to its window. Where k is too long for a window x comes through the ring, with the blocks of k that it is multiplied by: a
// stage's x is one copy. Where k is so short that all numbers are under way at once, or scratch has no room, blocks fill their windows from the rows themselves.
//
// Invariant: a row's products and sums are those of share_parts() and share_groups() (rows.cuh), in the same order.

#ifndef EIGHT_CUH
#define EIGHT_CUH

#include "kernels/cuda/rows.cuh"

enum {
    STAGED_PUTTERS = 4, // warps that put stages with x in them, stage by stage in turn, at most
    STAGED_PANELS = 16, // of such a stage, at most: half of a warp's lanes
    SPLIT_THREADS = 128,
    WINDOW_COPIES = 8, // of a window, each a share of its blocks
};

// ---- rows taken apart ----------------------------------------------------------------------------------------------------------

// A block of a row as KIND. to: where the block of k lies.
template <int KIND> __device__ __forceinline__ void split_write(int grain, uint8_t *to, int r, const float *v)
{
    if constexpr (KIND == X_PARTS) {
        const int l = threadIdx.x & 3;
        uint4 high, low;
        split_eight(v, &high, &low);
        *(uint4 *)(to + r * 64 + l * 16) = high;
        *(uint4 *)(to + X_LOW + r * 64 + l * 16) = low;
    } else {
        group_write<KIND>(grain, to + r * x_bytes(KIND), (float2 *)(to + x_factors(KIND)) + r, v, true);
    }
}

// Which block and row a lane of warp `warp` has: a warp a block, or two warps two blocks, half of the rows each, where they are a group.
struct split_place {
    int block, r;
};
__device__ __forceinline__ split_place split_place_of(int warp, int grain)
{
    const int lane = threadIdx.x & 31;
    return grain == 2 ? split_place{(warp & ~1) + (lane >> 2 & 1), (warp & 1) * 4 + (lane >> 3)}
                      : split_place{warp, lane >> 2};
}

// What split_kernel() takes apart: rows of x, or of silu(x) * up.
struct split_rows {
    const float *x, *up; // up: or NULL
    int64_t ld, ld_up;
    int32_t k, rows, aligned;
    struct x_form form;
    int32_t mixed; // a block's kinds lie beside each other, else a tile's do
    uint8_t *to;   // [tile of TILE_ROWS rows] of all blocks and kinds
};

template <int KIND>
__device__ __forceinline__ void split_kind(const split_rows &a, uint8_t *tile, const split_place &p, const float *v)
{
    const int all = x_blocks(a.form.kinds), before = x_before(a.form.kinds, KIND);
    if (a.form.kinds & KIND)
        split_write<KIND>(
            a.form.grain,
            tile + (a.mixed ? p.block * all + before : (a.k + 31) / 32 * before + p.block * x_block(KIND)), p.r, v);
}

// Writes eight numbers of a block and row of tile `tile`, by all lanes of a group.
__device__ __forceinline__ void split_store(const split_rows &a, int tile, const split_place &p, const float *v)
{
    uint8_t *to = a.to + (int64_t)tile * ((a.k + 31) / 32) * x_blocks(a.form.kinds);
    split_kind<X_INTEGERS>(a, to, p, v);
    split_kind<X_HALVES>(a, to, p, v);
    split_kind<X_PARTS>(a, to, p, v);
}

// A tile is blockIdx.y. Rows that are not there are zeros.
static __global__ void __launch_bounds__(SPLIT_THREADS) split_kernel(const __grid_constant__ struct split_rows a)
{
    const split_place p =
        split_place_of((int)blockIdx.x * (SPLIT_THREADS / 32) + (int)(threadIdx.x >> 5), a.form.grain);
    const int row = (int)blockIdx.y * TILE_ROWS + p.r;
    pdl_trigger(); // the product reads nothing but weights before its wait
    pdl_wait();
    if (p.block >= (a.k + 31) / 32) // whole warps: groups of two are whole
        return;
    const row_source_tile rows = {a.x,   a.ld, NULL,    1,    row,  1,    a.k, a.aligned,
                                  false, a.up, a.ld_up, NULL, NULL, NULL, 0};
    float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (row < a.rows)
        window_take(rows, {p.block, 0, NULL}, p.block * 32 + (threadIdx.x & 3) * 8, false, v);
    split_store(a, blockIdx.y, p, v);
}

// ---- a window of them ----------------------------------------------------------------------------------------------------------

// Brings blocks from .. to - 1 of the tile, by the first warp; whoever waits sees them.
template <int KIND> __device__ __forceinline__ void eight_bring(x_window *x, const row_source_tile &t, int from, int to)
{
    const int all = (t.k + 31) / 32 * x_before(x->form.kinds, KIND) + from * x_block(KIND);
    if (threadIdx.x < 32) {
        const int share =
                      (threadIdx.x + blockIdx.x) % WINDOW_COPIES, // so that blocks do not all ask for the same at once
            first = share_begin(to - from, share, WINDOW_COPIES) * x_block(KIND),
                  bytes = share_begin(to - from, share + 1, WINDOW_COPIES) * x_block(KIND) - first;
        stage_expect(x->come, (to - from) * x_block(KIND), threadIdx.x);
        stage_copy(x->memory + first, t.apart + all + first, bytes, x->come, threadIdx.x < WINDOW_COPIES && bytes > 0);
        stage_commit(x->come);
    }
    stage_wait(x->come, x->parity);
    x->parity ^= 1;
}

// Fills it from the rows themselves. Rows that the tile lacks are zeros.
template <int KIND> __device__ __forceinline__ void eight_fill(x_window *x, const row_source_tile &t, int from, int to)
{
    const int grain = x->form.grain;
    for (int warp = threadIdx.x >> 5; warp < to - from; warp += WARPS) { // groups of two are whole
        const split_place p = split_place_of(warp, grain);
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (p.r < t.count)
            window_take(t, {p.block, p.r, NULL}, (from + p.block) * 32 + (threadIdx.x & 3) * 8, false, v);
        split_write<KIND>(grain, x->memory + p.block * x_block(KIND), p.r, v);
    }
    some_wait(TAKERS);
}

template <int KIND> __device__ __forceinline__ void eight_window(share *s, int b, int n)
{
    int to;
    if (window_has<KIND>(s, b, n, &to))
        return;
    if (s->tile.apart)
        eight_bring<KIND>(&s->x, s->tile, b, to);
    else
        eight_fill<KIND>(&s->x, s->tile, b, to);
    s->x.from = b;
    s->x.to = to;
    s->x.kind = KIND;
}

// ---- stages that bring x -------------------------------------------------------------------------------------------------------

// A warp that puts: every `turns`th stage of the block. There are no more such warps than slots: so a warp that waits for a slot knows that
// the stage before the last one in it has been taken, and a barrier's parity says what it should.
struct staged_putter {
    int32_t put, own, turns; // stages so far; which of the warps
    bool waited;             // for the kernel before, whose rows x is
};

__device__ __forceinline__ void staged_wait(staged_putter *p)
{
    if (!p->waited)
        pdl_wait();
    p->waited = true;
}

// Puts the stages of blocks from .. to - 1 of a unit of `most` panels from `first` on, as far as there are so many.
// x: the tile's rows, `block` bytes a block of k.
// Lanes 0 .. 15 have a panel's codes each, 16 .. 31 its scales.
__device__ __forceinline__ void staged_put(weight_ring *r, const stage_source &s, int first, int most, int from, int to,
                                           const uint8_t *x, int block, staged_putter *p, int lane)
{
    const int count = s.stride == 2 && s.panels - first < most ? s.panels - first : most, piece = lane & 15,
              of_scales = lane >> 4, panel = first + (piece >> 1) * s.stride + (piece & 1);
    const bool mine = piece < count && (!of_scales || s.scale_bytes);
    const uint8_t *source =
        of_scales ? s.scale + (int64_t)panel * s.scale_panel : s.data + (int64_t)panel * s.panel_bytes;
    for (int b = from; b < to; b += s.step, p->put++, ring_next(r)) {
        if (p->put % p->turns != p->own)
            continue;
        const int n = to - b < s.step ? to - b : s.step, group = b >> s.shift, data = n * s.data_bytes,
                  scales = (((b + n - 1) >> s.shift) - group + 1) * s.scale_bytes;
        if (p->put >= r->slots)
            stage_wait(r->barriers->empty + r->slot, r->parity ^ 1);
        uint64_t *full = r->barriers->full + r->slot;
        unsigned char *slot = r->memory + r->slot * r->slot_bytes;
        stage_expect(full, count * (data + scales) + n * block, lane);
        stage_copy(slot + (of_scales ? s.scale_at + piece * scales : piece * data),
                   source + (of_scales ? group * s.scale_bytes : b * s.data_bytes), of_scales ? scales : data, full,
                   mine);
        staged_wait(p);
        stage_copy(slot + s.x_at, x + (int64_t)b * block, n * block, full, lane == 0);
        stage_commit(full);
        stage_scales_soon(s, source, b, of_scales && piece < count);
    }
}

// ---- shares ------------------------------------------------------------------------------------------------------------------

// share_parts() of eight rows. STAGED: x is in the stages, where two blocks at a time gain nothing.
template <class CODE, bool STAGED> __device__ __forceinline__ void eight_parts(share *s)
{
    constexpr int DATA = CODE::DATA, SCALE = CODE::SCALE;
    const int lane = s->lane, l = lane & 3, quarter = lane >> 2 & 3, panel = 2 * s->own + (lane >> 4),
              block = STAGED ? x_blocks(s->x.form.kinds) : x_block(X_PARTS);
    const bool live = s->pair * 32 < s->w->n;
    float sums[8], low[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums[i] = low[i] = 0;
    for (int b = s->from; b < s->to; b += s->step) {
        const int n = s->to - b < s->step ? s->to - b : s->step;
        if (!STAGED)
            eight_window<X_PARTS>(s, b, n);
        const unsigned char *slot = ring_take(&s->ring);
        const unsigned char *x = (STAGED ? slot + s->x_at : s->x.memory + (b - s->x.from) * block) + s->part * block +
                                 (lane >> 2) * 64 + l * 16,
                            *data = slot + (panel * n + s->part) * DATA + quarter * CODE::DATA_QUARTER,
                            *scale = slot + s->scale_at + panel * n * SCALE + quarter * CODE::SCALE_QUARTER;
        int at = s->part;
        auto load = [&](CODE *code, int which) {
            code->take(data + which * s->splits * DATA, scale + (at + which * s->splits) * SCALE, l);
        };
        auto product = [&](const CODE &code, int which) {
            const unsigned char *from = x + which * s->splits * block;
            block_add(code, *(const uint4 *)from, l, sums);
            block_add(code, *(const uint4 *)(from + X_LOW), l, low);
        };
        for (; !STAGED && live && at + s->splits < n; at += 2 * s->splits) {
            CODE one, two;
            load(&one, 0);
            load(&two, 1);
            product(one, 0);
            product(two, 1);
            data += 2 * s->splits * DATA;
            x += 2 * s->splits * block;
        }
        for (; live && at < n; at += s->splits) {
            CODE one;
            load(&one, 0);
            product(one, 0);
            data += s->splits * DATA;
            x += s->splits * block;
        }
        ring_give(&s->ring, lane);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        s->sums[sum_output(i, lane) * TILE_ROWS + sum_row(i, lane)] = (sums[i] + low[i]) * CODE::factor();
}

// share_groups() of the same.
template <class CODE, int GRAIN, bool STAGED> __device__ __forceinline__ void eight_groups(share *s)
{
    constexpr int DATA = CODE::DATA, SCALE = CODE::SCALE, KIND = x_of<CODE>::KIND;
    const int lane = s->lane, l = lane & 3, quarter = lane >> 2 & 3, panel = 2 * s->own + (lane >> 4), shift = s->shift,
              block = STAGED ? x_blocks(s->x.form.kinds) : x_block(KIND), splits = GRAIN * s->splits;
    const int column = (lane >> 3) * x_bytes(KIND) + (lane >> 2 & 1) * (x_bytes(KIND) / 2);
    const bool live = s->pair * 32 < s->w->n;
    const uint8_t *apart = share_apart<CODE>(s, panel);
    float sums[2][4] = {};
    for (int b = s->from; b < s->to; b += s->step) {
        const int n = s->to - b < s->step ? s->to - b : s->step, own = GRAIN * s->part,
                  scales = (((b + n - 1) >> shift) - (b >> shift) + 1) * SCALE;
        if (!STAGED)
            eight_window<KIND>(s, b, n);
        const unsigned char *slot = ring_take(&s->ring);
        const unsigned char *x = (STAGED ? slot + s->x_at + x_before(s->x.form.kinds, KIND)
                                         : s->x.memory + (b - s->x.from) * block) +
                                 own * block,
                            *data = slot + (panel * n + own) * DATA + quarter * CODE::DATA_QUARTER,
                            *scale = slot + s->scale_at + panel * scales + quarter * CODE::SCALE_QUARTER;
        for (int at = own; live && at < n; at += splits) {
            group_operands<CODE, GRAIN, 2> v;
#pragma unroll
            for (int i = 0; i < GRAIN; i++) {
                v.code[i].take(data + i * DATA, group_scale<CODE>(apart, scale, b, b + at, shift), l);
                v.column(0, i, x + i * block + column, l);
                v.column(1, i, x + i * block + column + 4 * x_bytes(KIND), l);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const unsigned char *factors = x + x_factors(KIND);
                v.factors(h, ((const float2 *)factors)[l + 4 * h],
                          ((const float2 *)(factors + (GRAIN - 1) * block))[l + 4 * h]);
            }
            group_add(v, l, sums);
            data += splits * DATA;
            x += splits * block;
        }
        ring_give(&s->ring, lane);
    }
    group_store<2>(s, 3, sums);
}

#endif
