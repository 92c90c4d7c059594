// SPDX-License-Identifier: Apache-2.0
//
// Decode-class products of eight rows whose k is too long for a window of x: x comes through the ring, with the blocks of k that it is
// multiplied by. A kernel of its own (staged_split_kernel) has taken the rows apart before, once for all blocks, and left them block of k
// after block of k, so that a stage's x is one copy.
//
// Invariant: a row's products and sums are those of share_products() (rows.cuh), in the same order.

#ifndef STAGED_CUH
#define STAGED_CUH

#include "kernels/cuda/rows.cuh"

enum {
    STAGED_LOW = TILE_ROWS * 64,  // of a block of k: where low parts lie behind the high ones, [row][32] each
    STAGED_SUMS = 2 * STAGED_LOW, // and the sums of both parts of the rows, fp32
    STAGED_BLOCK = STAGED_SUMS + TILE_ROWS * 4,
    STAGED_PUTTERS = 4, // warps that put, stage by stage in turn, at most
    STAGED_PANELS = 16, // of a stage, at most: half of a warp's lanes
    SPLIT_THREADS = 128,
};

// What staged_split_kernel() takes apart: rows of x, or of silu(x) * up.
struct split_rows {
    const float *x, *up; // up: or NULL
    int64_t ld, ld_up;
    int32_t k, rows, aligned;
    uint8_t *to; // [tile of TILE_ROWS rows][block of k], STAGED_BLOCK bytes each
};

// A warp a block of 32 k of a tile (blockIdx.y). Rows that are not there are zeros.
static __global__ void __launch_bounds__(SPLIT_THREADS) staged_split_kernel(const __grid_constant__ struct split_rows a)
{
    const int blocks = (a.k + 31) / 32, block = (int)blockIdx.x * (SPLIT_THREADS / 32) + (int)(threadIdx.x >> 5),
              l = threadIdx.x & 3, r = threadIdx.x >> 2 & (TILE_ROWS - 1), row = (int)blockIdx.y * TILE_ROWS + r;
    pdl_trigger(); // the product reads nothing but weights before its wait
    pdl_wait();
    if (block >= blocks)
        return;
    const row_source_tile rows = {a.x, a.ld, NULL, 1, row, 1, a.k, a.aligned, false, a.up, a.ld_up};
    const window_piece piece = {block, 0, NULL};
    float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (row < a.rows)
        window_take(rows, piece, block * 32 + l * 8, false, v);
    uint4 high, low;
    split_eight(v, &high, &low);
    const float sum = parts_sum(high, low);
    uint8_t *to = a.to + ((int64_t)blockIdx.y * blocks + block) * STAGED_BLOCK;
    *(uint4 *)(to + r * 64 + l * 16) = high;
    *(uint4 *)(to + STAGED_LOW + r * 64 + l * 16) = low;
    if (l == 0)
        *(float *)(to + STAGED_SUMS + r * 4) = sum;
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

// Puts the stages of blocks from .. to - 1 of a unit of `most` panels from `first` on, as far as there are so many. x: the tile's rows.
// Lanes 0 .. 15 have a panel's codes each, 16 .. 31 its scales.
__device__ __forceinline__ void staged_put(weight_ring *r, const stage_source &s, int first, int most, int from, int to,
                                           const uint8_t *x, staged_putter *p, int lane)
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
        stage_expect(full, count * (data + scales) + n * STAGED_BLOCK, lane);
        stage_copy(slot + (of_scales ? s.scale_at + piece * scales : piece * data),
                   source + (of_scales ? group * s.scale_bytes : b * s.data_bytes), of_scales ? scales : data, full,
                   mine);
        staged_wait(p);
        stage_copy(slot + s.x_at, x + (int64_t)b * STAGED_BLOCK, n * STAGED_BLOCK, full, lane == 0);
        stage_commit(full);
    }
}

// A lane's x of a block: its column's high and low parts, and two columns' sums.
struct staged_x {
    uint4 high, low;
    float2 sums;
};

template <class CODE> __device__ __forceinline__ staged_x staged_x_at(const unsigned char *block, int lane)
{
    const unsigned char *x = block + (lane >> 2) * 64 + (lane & 3) * 16;
    staged_x v = {column_part<CODE>(x, lane & 3), column_part<CODE>(x + STAGED_LOW, lane & 3), float2{0, 0}};
    if (CODE::BIASED)
        v.sums = *(const float2 *)(block + STAGED_SUMS + (lane & 3) * 8);
    return v;
}

// share_products() of stages with x in them. A block at a time: two at a time gain nothing here.
template <class CODE> __device__ __forceinline__ void staged_products(share *s)
{
    constexpr int DATA = CODE::DATA, SCALE = CODE::SCALE;
    const int lane = s->lane, l = lane & 3, quarter = lane >> 2 & 3, panel = 2 * s->own + (lane >> 4),
              shift = CODE::GROUPED ? s->shift : 0;
    const bool live = s->pair * 32 < s->w->n;
    const uint8_t *apart = s->w->scale; // scales that do not go through the ring
    if (CODE::APART) {
        const int last = (s->w->n + 15) / 16 - 1, own = 2 * s->pair + (panel & 1); // a pair may lack its second panel
        apart += (int64_t)(own < last ? own : last) * scale_panel_bytes(s->w);
    }
    float sums[8], low[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums[i] = low[i] = 0;
    for (int b = s->from; b < s->to; b += s->step) {
        const int n = s->to - b < s->step ? s->to - b : s->step;
        const int scales = SCALE ? (((b + n - 1) >> shift) - (b >> shift) + 1) * SCALE : 0;
        const unsigned char *slot = ring_take(&s->ring);
        const unsigned char *x = slot + s->x_at + s->part * STAGED_BLOCK,
                            *data = slot + (panel * n + s->part) * DATA + quarter * CODE::DATA_QUARTER,
                            *scale = slot + s->scale_at + panel * scales + quarter * CODE::SCALE_QUARTER;
        for (int at = s->part; live && at < n; at += s->splits) {
            CODE code;
            code.take(data,
                      CODE::APART ? apart + ((b + at) >> 2) * 4 : scale + (((b + at) >> shift) - (b >> shift)) * SCALE,
                      l);
            const staged_x v = staged_x_at<CODE>(x, lane);
            block_add<CODE, true>(code, v.high, v.sums.x, v.sums.y, l, sums);
            block_add<CODE, false>(code, v.low, 0, 0, l, low);
            data += s->splits * DATA;
            x += s->splits * STAGED_BLOCK;
        }
        ring_give(&s->ring, lane);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        s->sums[sum_output(i, lane) * TILE_ROWS + sum_row(i, lane)] = (sums[i] + low[i]) * CODE::factor();
}

#endif
