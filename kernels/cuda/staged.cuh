// SPDX-License-Identifier: Apache-2.0
//
// Decode-class products of eight rows whose k is too long for a window of x: x comes through the ring, with the blocks of k that it is
// multiplied by. A kernel of its own (staged_split_kernel) has taken the rows apart before, once for all blocks, and left them block of k
// after block of k, so that a stage's x is one copy.
//
// Invariant: a row's products and sums are those of share_parts() and share_groups() (rows.cuh), in the same order.

#ifndef STAGED_CUH
#define STAGED_CUH

#include "kernels/cuda/rows.cuh"

enum {
    STAGED_LOW = TILE_ROWS * 64, // of a block of k: where low parts lie behind the high ones, [row][32] each
    STAGED_PUTTERS = 4,          // warps that put, stage by stage in turn, at most
    STAGED_PANELS = 16,          // of a stage, at most: half of a warp's lanes
    SPLIT_THREADS = 128,
};

// Of a block of k: where factors lie behind the rows of a kind that has groups; where a kind lies; its bytes.
__host__ __device__ __forceinline__ constexpr int staged_factors(int kind)
{
    return TILE_ROWS * x_bytes(kind);
}
__host__ __device__ __forceinline__ constexpr int staged_at(int kinds, int kind)
{
    int at = 0;
    for (int before = 1; before < kind; before *= 2)
        at += kinds & before ? staged_factors(before) + (before == X_PARTS ? 0 : TILE_ROWS * 8) : 0;
    return at;
}
__host__ __device__ __forceinline__ constexpr int staged_block(int kinds)
{
    return staged_at(kinds, X_ANY + 1);
}

// What staged_split_kernel() takes apart: rows of x, or of silu(x) * up.
struct split_rows {
    const float *x, *up; // up: or NULL
    int64_t ld, ld_up;
    int32_t k, rows, aligned;
    struct x_form form;
    uint8_t *to; // [tile of TILE_ROWS rows][block of k], staged_block() bytes each
};

// A block of a row as a kind that has groups, where the launch has that. to: where the block of k lies.
template <int KIND> __device__ __forceinline__ void split_group(const x_form &form, uint8_t *to, int r, const float *v)
{
    if (form.kinds & KIND) {
        to += staged_at(form.kinds, KIND);
        group_write<KIND>(form.grain, to + r * x_bytes(KIND), (float2 *)(to + staged_factors(KIND)) + r, v, true);
    }
}

// A warp a block of 32 k of a tile (blockIdx.y), or two warps two blocks, half of the rows each, where they are a group. Rows that are
// not there are zeros.
static __global__ void __launch_bounds__(SPLIT_THREADS) staged_split_kernel(const __grid_constant__ struct split_rows a)
{
    const bool twos = a.form.grain == 2;
    const int blocks = (a.k + 31) / 32, warp = (int)blockIdx.x * (SPLIT_THREADS / 32) + (int)(threadIdx.x >> 5),
              lane = threadIdx.x & 31, l = lane & 3, block = twos ? (warp & ~1) + (lane >> 2 & 1) : warp,
              r = twos ? (warp & 1) * 4 + (lane >> 3) : lane >> 2, row = (int)blockIdx.y * TILE_ROWS + r;
    pdl_trigger(); // the product reads nothing but weights before its wait
    pdl_wait();
    if (block >= blocks) // whole warps: groups of two are whole
        return;
    const row_source_tile rows = {a.x,   a.ld, NULL,    1,    row,  1,    a.k, a.aligned,
                                  false, a.up, a.ld_up, NULL, NULL, NULL, 0};
    const window_piece piece = {block, 0, NULL};
    float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (row < a.rows)
        window_take(rows, piece, block * 32 + l * 8, false, v);
    uint8_t *to = a.to + ((int64_t)blockIdx.y * blocks + block) * staged_block(a.form.kinds);
    split_group<X_INTEGERS>(a.form, to, r, v);
    split_group<X_HALVES>(a.form, to, r, v);
    if (a.form.kinds & X_PARTS) {
        uint4 high, low;
        split_eight(v, &high, &low);
        *(uint4 *)(to + r * 64 + l * 16) = high;
        *(uint4 *)(to + STAGED_LOW + r * 64 + l * 16) = low;
    }
}

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
// x: the tile's rows, x_block bytes a block of k.
// Lanes 0 .. 15 have a panel's codes each, 16 .. 31 its scales.
__device__ __forceinline__ void staged_put(weight_ring *r, const stage_source &s, int first, int most, int from, int to,
                                           const uint8_t *x, int x_block, staged_putter *p, int lane)
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
        stage_expect(full, count * (data + scales) + n * x_block, lane);
        stage_copy(slot + (of_scales ? s.scale_at + piece * scales : piece * data),
                   source + (of_scales ? group * s.scale_bytes : b * s.data_bytes), of_scales ? scales : data, full,
                   mine);
        staged_wait(p);
        stage_copy(slot + s.x_at, x + (int64_t)b * x_block, n * x_block, full, lane == 0);
        stage_commit(full);
        stage_scales_soon(s, source, b, of_scales && piece < count);
    }
}

// share_parts() of stages with x in them. A block at a time: two at a time gain nothing here.
template <class CODE> __device__ __forceinline__ void staged_parts(share *s)
{
    constexpr int DATA = CODE::DATA, SCALE = CODE::SCALE;
    const int lane = s->lane, l = lane & 3, quarter = lane >> 2 & 3, panel = 2 * s->own + (lane >> 4),
              x_block = staged_block(s->x.form.kinds);
    const bool live = s->pair * 32 < s->w->n;
    float sums[8], low[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums[i] = low[i] = 0;
    for (int b = s->from; b < s->to; b += s->step) {
        const int n = s->to - b < s->step ? s->to - b : s->step;
        const unsigned char *slot = ring_take(&s->ring);
        const unsigned char *x = slot + s->x_at + s->part * x_block + (lane >> 2) * 64 + l * 16,
                            *data = slot + (panel * n + s->part) * DATA + quarter * CODE::DATA_QUARTER,
                            *scale = slot + s->scale_at + panel * n * SCALE + quarter * CODE::SCALE_QUARTER;
        for (int at = s->part; live && at < n; at += s->splits) {
            CODE code;
            code.take(data, scale + at * SCALE, l);
            block_add(code, *(const uint4 *)x, l, sums);
            block_add(code, *(const uint4 *)(x + STAGED_LOW), l, low);
            data += s->splits * DATA;
            x += s->splits * x_block;
        }
        ring_give(&s->ring, lane);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        s->sums[sum_output(i, lane) * TILE_ROWS + sum_row(i, lane)] = (sums[i] + low[i]) * CODE::factor();
}

// share_groups() of the same.
template <class CODE, int GRAIN> __device__ __forceinline__ void staged_groups(share *s)
{
    constexpr int DATA = CODE::DATA, SCALE = CODE::SCALE, KIND = x_of<CODE>::KIND;
    const int lane = s->lane, l = lane & 3, quarter = lane >> 2 & 3, panel = 2 * s->own + (lane >> 4), shift = s->shift,
              x_block = staged_block(s->x.form.kinds), splits = GRAIN * s->splits;
    const int column = (lane >> 3) * x_bytes(KIND) + (lane >> 2 & 1) * (x_bytes(KIND) / 2);
    const bool live = s->pair * 32 < s->w->n;
    const uint8_t *apart = share_apart<CODE>(s, panel);
    float sums[2][4] = {};
    for (int b = s->from; b < s->to; b += s->step) {
        const int n = s->to - b < s->step ? s->to - b : s->step, own = GRAIN * s->part,
                  scales = (((b + n - 1) >> shift) - (b >> shift) + 1) * SCALE;
        const unsigned char *slot = ring_take(&s->ring);
        const unsigned char *x = slot + s->x_at + staged_at(s->x.form.kinds, KIND) + own * x_block,
                            *data = slot + (panel * n + own) * DATA + quarter * CODE::DATA_QUARTER,
                            *scale = slot + s->scale_at + panel * scales + quarter * CODE::SCALE_QUARTER;
        for (int at = own; live && at < n; at += splits) {
            group_operands<CODE, GRAIN, 2> v;
#pragma unroll
            for (int i = 0; i < GRAIN; i++) {
                v.code[i].take(data + i * DATA, group_scale<CODE>(apart, scale, b, b + at, shift), l);
                v.column(0, i, x + i * x_block + column, l);
                v.column(1, i, x + i * x_block + column + 4 * x_bytes(KIND), l);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const unsigned char *factors = x + staged_factors(KIND);
                v.factors(h, ((const float2 *)factors)[l + 4 * h],
                          ((const float2 *)(factors + (GRAIN - 1) * x_block))[l + 4 * h]);
            }
            group_add(v, l, sums);
            data += splits * DATA;
            x += splits * x_block;
        }
        ring_give(&s->ring, lane);
    }
    group_store<2>(s, 3, sums);
}

#endif
