// SPDX-License-Identifier: Apache-2.0
//
// Decode-class products: a warp's share of k of one pair of panels with at most TILE_ROWS rows.
//
// Rows of x are held as two bf16 parts (16 significant bits) in shared memory that belongs to the warp: per block of 32 k the
// high parts of all rows, then the low parts, then (from `sums` on) the fp32 sums of the rows' 32 numbers. Weights come
// through a ring of registers, STAGES blocks deep, which may be filled before the rows are known.
//
// Invariant: what a row gets depends on its numbers and on the share [from, to) alone: products of a block in the order high,
// low of step 0, then of step 1; blocks ascending; scaled encodings add scale * (block's product), then bias * (block's sum).

#ifndef ROWS_CUH
#define ROWS_CUH

#include "kernels/cuda/decode.cuh"

enum { TILE_ROWS = 8, WARPS = 8, THREADS = 32 * WARPS };

// Up to TILE_ROWS rows: row r is x + (list ? list[r] / divisor : first + r) * ld.
struct row_source_tile {
    const float *x;
    int64_t ld;
    const int32_t *list; // in shared memory
    int32_t divisor, first, count, k;
    int32_t aligned; // rows begin at multiples of 16 bytes
};

// A warp's room in shared memory, for `capacity` blocks of `rows` (1, 2, 4 or 8) rows, and which blocks lie there.
struct warp_room {
    unsigned char *memory;
    int32_t rows, capacity, from, to;
};

__host__ __device__ __forceinline__ int room_bytes(int rows, int capacity)
{
    return capacity * rows * 132 + (16 - capacity * rows * 132 % 16) % 16;
}

__device__ __forceinline__ float *room_sums(const warp_room *room)
{
    return (float *)(room->memory + room->capacity * room->rows * 128);
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

// x[k .. k + 7], zeros from `end` on.
__device__ __forceinline__ void load_eight(const float *x, int k, int end, bool aligned, float *v)
{
    if (aligned && k + 8 <= end) {
        float4 a = *(const float4 *)(x + k), b = *(const float4 *)(x + k + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = k + i < end ? x[k + i] : 0.0f;
}

__device__ __forceinline__ float sum_eight(const float *v)
{
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// Fills the warp's room with blocks from .. to - 1 of the tile's rows; rows that the tile lacks are left as they are, and
// so are their sums: their products are never stored.
__device__ __forceinline__ void room_fill(warp_room *room, const row_source_tile &t, int from, int to, int lane)
{
    __syncwarp();
    int rows = t.count < room->rows ? t.count : room->rows, items = (to - from) * rows * 4, l = lane & 3;
    float *sums = room_sums(room);
    for (int first = 0; first < items; first += 32) {
        int item = first + lane, at = item >> 2, block = at / rows, r = at - block * rows;
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (item < items) {
            int64_t row = t.list ? t.list[t.first + r] / t.divisor : t.first + r;
            load_eight(t.x + row * t.ld, (from + block) * 32 + l * 8, t.k, t.aligned != 0, v);
        }
        float sum = sum_eight(v);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (item < items) {
            uint4 high, low;
            split_eight(v, &high, &low);
            unsigned char *to_row = room->memory + block * room->rows * 128 + r * 64 + l * 16;
            *(uint4 *)to_row = high;
            *(uint4 *)(to_row + room->rows * 64) = low;
            if (l == 0)
                sums[block * room->rows + r] = sum;
        }
    }
    room->from = from;
    room->to = to;
    __syncwarp();
}

// The ring of one weight.
template <class CODE> struct weight_ring {
    CODE stage[CODE::STAGES];
};

template <class CODE>
__device__ __forceinline__ void ring_fill(weight_ring<CODE> *ring, const lane_weights &p, int from, int to, int lane)
{
#pragma unroll
    for (int i = 0; i < CODE::STAGES; i++)
        if (from + i < to)
            ring->stage[i].load(p, from + i, lane & 3);
}

// One block: sums[4 t + i] of product t.
template <class CODE>
__device__ __forceinline__ void block_product(const CODE &code, const warp_room &room, int block, int lane, float *sums)
{
    int row = lane >> 2, l = lane & 3;
    const unsigned char *x = room.memory + block * room.rows * 128 + row * 64 + l * 16;
    uint4 high = make_uint4(0, 0, 0, 0), low = high;
    if (row < room.rows) {
        high = *(const uint4 *)x;
        low = *(const uint4 *)(x + room.rows * 64);
    }
    float fresh[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    float *d = CODE::SCALED ? fresh : sums;
#pragma unroll
    for (int part = 0; part < CODE::PARTS; part++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t a[2][4];
            code.fragment(part, j, l, a);
#pragma unroll
            for (int t = 0; t < 2; t++) {
                mma_bf16(d + 4 * t, a[t], word(high, 2 * j), word(high, 2 * j + 1));
                mma_bf16(d + 4 * t, a[t], word(low, 2 * j), word(low, 2 * j + 1));
            }
        }
    if (!CODE::SCALED)
        return;
    float x0 = 0, x1 = 0;
    if (CODE::BIASED && 2 * l < room.rows) {
        const float *s = room_sums(&room) + block * room.rows + 2 * l;
        x0 = s[0];
        x1 = room.rows > 1 ? s[1] : 0.0f;
    }
#pragma unroll
    for (int o = 0; o < 4; o++) {
        float scale, bias = 0;
        code.outcome(o, &scale, &bias);
        sums[2 * o] = fmaf(scale, d[2 * o], sums[2 * o]);
        sums[2 * o + 1] = fmaf(scale, d[2 * o + 1], sums[2 * o + 1]);
        if (CODE::BIASED) {
            sums[2 * o] = fmaf(bias, x0, sums[2 * o]);
            sums[2 * o + 1] = fmaf(bias, x1, sums[2 * o + 1]);
        }
    }
}

// Blocks from .. to - 1 with the tile's rows, of a ring filled from `from` on: sums[2 o + c] of the lane's outputs o = 0..3 and
// the rows 2 (lane % 4) + c. `factor` of the encoding is applied.
template <class CODE>
__device__ __forceinline__ void ring_run(weight_ring<CODE> *ring, const lane_weights &p, int from, int to,
                                         warp_room *room, const row_source_tile &tile, int lane, float *sums)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums[i] = 0;
    for (int b = from; b < to; b += CODE::STAGES) {
        int last = b + CODE::STAGES < to ? b + CODE::STAGES : to;
        if (b < room->from || last > room->to)
            room_fill(room, tile, b, to - b < room->capacity ? to : b + room->capacity, lane);
#pragma unroll
        for (int i = 0; i < CODE::STAGES; i++)
            if (b + i < to) {
                block_product(ring->stage[i], *room, b + i - room->from, lane, sums);
                if (b + i + CODE::STAGES < to)
                    ring->stage[i].load(p, b + i + CODE::STAGES, lane & 3);
            }
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums[i] *= CODE::factor();
}

// A warp's share of one pair, of expert e where there are several: reduce gets the lane's eight sums, 32 floats apart.
struct share {
    const struct weight *w;
    int64_t expert;
    int32_t pair, from, to, lane;
    float *reduce;
    warp_room room;
    row_source_tile tile;
};

// Computes a share. ready() is called when the first weights are under way, and tells the tile's rows.
template <class CODE, class READY> __device__ __forceinline__ void share_products(share *s, READY *ready)
{
    int lane = s->lane, from = s->from, to = s->to;
    lane_weights place = lane_place(s->w, s->expert, s->pair, lane);
    weight_ring<CODE> ring;
    ring_fill(&ring, place, from, to, lane);
    (*ready)(s);
    float sums[8];
    ring_run(&ring, place, from, to, &s->room, s->tile, lane, sums);
#pragma unroll
    for (int i = 0; i < 8; i++)
        s->reduce[i * 32] = sums[i];
}

// The same as a function of its own, so that each encoding of a mixed launch has the registers it needs.
template <class CODE, class READY> __device__ __noinline__ void share_call(share *s, READY *ready)
{
    share_products<CODE>(s, ready);
}

// Kernels are made for one encoding (CODE) or, with code_mixed, for whatever the weight says.
struct code_mixed {
};
template <class CODE> struct share_run {
    template <class READY> static __device__ __forceinline__ void run(share *s, READY *ready)
    {
        share_products<CODE>(s, ready);
    }
};
template <> struct share_run<code_mixed> {
    template <class READY> static __device__ __forceinline__ void run(share *s, READY *ready)
    {
        with_code(s->w, [&](auto code) { share_call<typename decltype(code)::type>(s, ready); });
    }
};

// Sum i of the pair whose first warp is `first`, over its `splits` warps in order.
__device__ __forceinline__ float reduced(const float *reduce, int first, int splits, int i, int lane)
{
    float v = reduce[(first * 8 + i) * 32 + lane];
    for (int w = 1; w < splits; w++)
        v += reduce[((first + w) * 8 + i) * 32 + lane];
    return v;
}

__host__ __device__ __forceinline__ int warp_splits(int blocks)
{
    return blocks >= 48 ? 8 : blocks >= 16 ? 4 : blocks >= 8 ? 2 : 1;
}

// First block of share `share` of `shares`.
__host__ __device__ __forceinline__ int share_begin(int blocks, int share, int shares)
{
    return (int)((int64_t)blocks * share / shares);
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

// Which output of the pair and which row of the tile sum i of a lane is.
__device__ __forceinline__ int sum_output(int i, int lane)
{
    return (lane >> 2) * 4 + (i >> 1);
}
__device__ __forceinline__ int sum_row(int i, int lane)
{
    return 2 * (lane & 3) + (i & 1);
}

#endif
