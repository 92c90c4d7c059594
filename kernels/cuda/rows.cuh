// SPDX-License-Identifier: Apache-2.0
//
// Decode-class products: a warp's share of k of one pair of panels with at most TILE_ROWS rows.
//
// Rows of x are held as two bf16 parts (16 significant bits) in shared memory that belongs to the warp: per block of 32 k the
// high parts of all rows, then the low parts, then (from `sums` on) the fp32 sums of the rows' 32 numbers. Weights come
// through a ring of registers, STAGES blocks deep, which may be filled before the rows are known.
//
// Invariant: what a row gets depends on its numbers and on the share's blocks alone. Two sums run over ascending blocks: of the
// high and of the low parts, or, in scaled encodings, of scale * (block's product) and of bias * (block's sum); they are added last.

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

// A warp's room in shared memory, for `capacity` blocks of `rows` (1, 2, 4 or 8) rows, and which blocks lie there: from .. to - 1
// of the share that begins with block `first`.
struct warp_room {
    unsigned char *memory;
    int32_t rows, capacity, first, from, to;
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

// Fills the warp's room with blocks first + (i << shift), i = from .. to - 1, of the tile's rows; rows that the tile lacks are left
// as they are, and so are their sums: their products are never stored.
__device__ __forceinline__ void room_fill(warp_room *room, const row_source_tile &t, int first_block, int shift,
                                          int from, int to, int lane)
{
    __syncwarp();
    int rows = t.count < room->rows ? t.count : room->rows, items = (to - from) * rows * 4, l = lane & 3;
    float *sums = room_sums(room);
    for (int first = 0; first < items; first += 32) {
        int item = first + lane, at = item >> 2, block = at / rows, r = at - block * rows;
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (item < items) {
            int64_t row = t.list ? t.list[t.first + r] / t.divisor : t.first + r;
            load_eight(t.x + row * t.ld, (first_block + ((from + block) << shift)) * 32 + l * 8, t.k, t.aligned != 0,
                       v);
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
    room->first = first_block;
    room->from = from;
    room->to = to;
    __syncwarp();
}

// A warp's share of one pair, in the order in which a block meets them.
struct share {
    const struct weight *w;
    lane_weights place;
    int32_t first, count, shift; // blocks of 32 k: first + (i << shift), i < count
    row_source_tile tile;
};

// The weights under way: the first blocks of a share, STAGES of them.
template <class CODE> struct weight_ring {
    CODE stage[CODE::STAGES];
};

template <class CODE> __device__ __forceinline__ void ring_fill(weight_ring<CODE> *ring, const share &s, int lane)
{
#pragma unroll
    for (int i = 0; i < CODE::STAGES; i++)
        if (i < s.count)
            ring->stage[i].load(s.place, s.first + (i << s.shift), lane & 3);
}

// One block: high[4 t + i] and low[] of product t get the products with the rows' two parts; a scaled encoding adds both to high,
// scaled.
template <class CODE>
__device__ __forceinline__ void block_product(const CODE &code, const warp_room &room, int block, int lane, float *high,
                                              float *low)
{
    int row = lane >> 2, l = lane & 3;
    const unsigned char *x = room.memory + block * room.rows * 128 + row * 64 + l * 16;
    uint4 x0 = make_uint4(0, 0, 0, 0), x1 = x0;
    if (row < room.rows) {
        x0 = *(const uint4 *)x;
        x1 = *(const uint4 *)(x + room.rows * 64);
    }
    float fresh[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    float *d0 = CODE::SCALED ? fresh : high, *d1 = CODE::SCALED ? fresh + 8 : low;
#pragma unroll
    for (int part = 0; part < CODE::PARTS; part++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t a[2][4];
            code.fragment(part, j, l, a);
#pragma unroll
            for (int t = 0; t < 2; t++) {
                mma_bf16(d0 + 4 * t, a[t], word(x0, 2 * j), word(x0, 2 * j + 1));
                mma_bf16(d1 + 4 * t, a[t], word(x1, 2 * j), word(x1, 2 * j + 1));
            }
        }
    if (!CODE::SCALED)
        return;
    float2 sum = make_float2(0, 0);
    if (CODE::BIASED && 2 * l < room.rows) {
        const float *s = room_sums(&room) + block * room.rows + 2 * l;
        sum.x = s[0];
        sum.y = room.rows > 1 ? s[1] : 0.0f;
    }
#pragma unroll
    for (int o = 0; o < 4; o++) {
        float scale, bias = 0;
        code.outcome(o, &scale, &bias);
        high[2 * o] = fmaf(scale, d0[2 * o] + d1[2 * o], high[2 * o]);
        high[2 * o + 1] = fmaf(scale, d0[2 * o + 1] + d1[2 * o + 1], high[2 * o + 1]);
        if (CODE::BIASED) {
            low[2 * o] = fmaf(bias, sum.x, low[2 * o]);
            low[2 * o + 1] = fmaf(bias, sum.y, low[2 * o + 1]);
        }
    }
}

// The share s, whose first blocks are in the ring, with its tile's rows: sums[2 o + c] of the lane's outputs o = 0..3 and the
// rows 2 (lane % 4) + c. The ring then holds the first blocks of `next` (count 0: none).
template <class CODE>
__device__ __forceinline__ void ring_run(weight_ring<CODE> *ring, const share &s, const share &next, warp_room *room,
                                         int lane, float *sums)
{
    constexpr int STAGES = CODE::STAGES;
    float low[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums[i] = low[i] = 0;
#pragma unroll
    for (int i = 0; i < STAGES; i++) // stages that the share does not use
        if (i >= s.count && i < next.count)
            ring->stage[i].load(next.place, next.first + (i << next.shift), lane & 3);
    for (int b = 0; b < s.count; b += STAGES) {
        int last = b + STAGES < s.count ? b + STAGES : s.count;
        if (s.first != room->first || b < room->from || last > room->to)
            room_fill(room, s.tile, s.first, s.shift, b, s.count - b < room->capacity ? s.count : b + room->capacity,
                      lane);
#pragma unroll
        for (int i = 0; i < STAGES; i++)
            if (b + i < s.count) {
                block_product(ring->stage[i], *room, b + i - room->from, lane, sums, low);
                bool own = b + i + STAGES < s.count;
                lane_weights place = s.place;
                int block = s.first + ((b + i + STAGES) << s.shift);
                if (!own) {
                    place = next.place;
                    block = next.first + (i << next.shift);
                }
                if (own || i < next.count)
                    ring->stage[i].load(place, block, lane & 3);
            }
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums[i] = (sums[i] + low[i]) * CODE::factor();
}

// A warp's sums to its part of the block's reduce memory: [row][output of the pair].
__device__ __forceinline__ void reduce_put(float *reduce, const float *sums, int rows, int lane)
{
    int row = 2 * (lane & 3), o = lane >> 2 << 2;
#pragma unroll
    for (int c = 0; c < 2; c++)
        if (row + c < rows)
            *(float4 *)(reduce + (row + c) * 32 + o) = make_float4(sums[c], sums[2 + c], sums[4 + c], sums[6 + c]);
}

// Row `row`, output `lane` of the pair whose first warp is `first`: its `splits` warps' sums in order.
__device__ __forceinline__ float reduced(const float *reduce, int first, int splits, int row, int lane)
{
    float v = reduce[first * 256 + row * 32 + lane];
    for (int w = 1; w < splits; w++)
        v += reduce[(first + w) * 256 + row * 32 + lane];
    return v;
}

// Kernels are made for one encoding (CODE) or, with code_mixed, for whatever the weight says: then each encoding is a function
// of its own, so that it has the registers it needs, and a share's weights are asked for when its turn comes.
struct code_mixed {
};
template <class CODE> struct share_runner {
    weight_ring<CODE> ring;
    __device__ __forceinline__ void begin(const share &s, int lane)
    {
        ring_fill(&ring, s, lane);
    }
    __device__ __forceinline__ void run(const share &s, const share &next, warp_room *room, int lane, float *reduce)
    {
        float sums[8];
        ring_run(&ring, s, next, room, lane, sums);
        reduce_put(reduce, sums, room->rows, lane);
    }
};
template <class CODE> __device__ __noinline__ void share_call(const share *s, warp_room *room, int lane, float *reduce)
{
    share_runner<CODE> runner;
    share none = {};
    runner.begin(*s, lane);
    runner.run(*s, none, room, lane, reduce);
}
template <> struct share_runner<code_mixed> {
    __device__ __forceinline__ void begin(const share &, int)
    {
    }
    __device__ __forceinline__ void run(const share &s, const share &, warp_room *room, int lane, float *reduce)
    {
        with_code(s.w, [&](auto code) { share_call<typename decltype(code)::type>(&s, room, lane, reduce); });
    }
};

// How many warps of a block share a pair's k.
__host__ __device__ __forceinline__ int warp_splits(int blocks)
{
    return blocks >= 48 ? 8 : blocks >= 16 ? 4 : blocks >= 8 ? 2 : 1;
}

// Gives the share every 2^shift-th block of from .. to - 1, from the `part`-th on: the warps of a pair then read side by side.
__device__ __forceinline__ void share_cut(share *s, int from, int to, int shift, int part)
{
    s->first = from + part;
    s->shift = shift;
    s->count = to - s->first > 0 ? ((to - s->first - 1) >> shift) + 1 : 0;
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
