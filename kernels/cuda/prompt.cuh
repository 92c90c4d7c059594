// SPDX-License-Identifier: Apache-2.0
//
// Prompt-class products: tiles of 8 NT rows by 256 outputs, a pair of panels a warp.
//
// Rows of x are prepared in scratch as bf16 in the order of fragments (decode.cuh), with a second part of what the first leaves
// when XP is 2, and the fp32 sums of each block of 32 k; tiles of them go through shared memory by asynchronous copies. Weights
// are decoded in registers, straight from memory, once a tile.
//
// Invariant: a row's result is one chain over ascending blocks whatever NT, its place, its company and the room of the card; XP
// comes from the weight's shape.

#ifndef PROMPT_CUH
#define PROMPT_CUH

#include "kernels/cuda/linear.cuh"

enum {
    TILE_WARPS = 8,
    TILE_THREADS = 32 * TILE_WARPS,
    PRECISE_OUTPUTS = 1024,                 // matrices of at most so many outputs (routers, gates) take x in two parts
    TILE_SMALL = SHARED_LEAST - SHARED_OWN, // bytes of a block on the cards that allow least
};

// Where prepared rows lie: row r of part p at data + p * part_bytes + r * 64 * blocks, its sums at sums + r * blocks.
struct prepared {
    unsigned char *data;
    float *sums;
    int64_t part_bytes;
    int32_t blocks;
};

static inline prepared prepared_at(void *scratch, int64_t rows, int k)
{
    prepared p;
    p.blocks = (k + 31) / 32;
    p.part_bytes = rows * p.blocks * 64;
    p.data = (unsigned char *)scratch;
    p.sums = (float *)(p.data + 2 * p.part_bytes);
    return p;
}

static inline int prompt_parts(const struct weight *w)
{
    return w->n <= PRECISE_OUTPUTS ? 2 : 1;
}

// Prepares pass->rows * multiple rows of x for at most `rows`.
cudaError_t prompt_prepare(cudaStream_t stream, const struct pass *pass, int multiple, const float *x, int64_t ldx,
                           int k, int64_t rows, const prepared &to);

// Bytes of a stage: rows, their sums, then the warps' weights. SMALL: a block has TILE_SMALL bytes.
template <class WEIGHT, int TILES, int X_PARTS, bool SMALL> struct tile_shape {
    typedef WEIGHT CODE;
    static constexpr int NT = TILES, XP = X_PARTS, ROWS = NT * 8, PLANE = ROWS * 64;
    static constexpr int BLOCK = XP * PLANE + ROWS * 4 + TILE_WARPS * CODE::BLOCK_BYTES;
    // Two blocks to a multiprocessor, or one.
    static constexpr int PLACE = SMALL ? TILE_SMALL - ROWS * 4 : (NT <= 8 ? 110 : 220) * 1024;
    static constexpr int BLOCKS = SMALL && PLACE < 4 * BLOCK ? 1 : 2; // of 32 k a stage
    static constexpr int SUMS_AT = BLOCKS * XP * PLANE, WEIGHTS_AT = SUMS_AT + BLOCKS * ROWS * 4;
    static constexpr int STAGE = BLOCKS * BLOCK, ROOM = PLACE / STAGE;
    static constexpr int STAGES = ROOM < 2 ? 2 : ROOM > 4 ? 4 : ROOM;
    static constexpr int BYTES = STAGES * STAGE + ROWS * 4; // with the tile rows' numbers among the prepared rows
    static_assert(!SMALL || BYTES <= TILE_SMALL, "a card with the least room has place for it");
};

// do_it(shape) with the shape that the card has room for. No bit depends on it.
template <class CODE, int NT, int XP, class DO> static inline cudaError_t with_tile_shape(const DO &do_it)
{
    typedef tile_shape<CODE, NT, XP, false> LARGE;
#if !defined(ONLY_WGMMA) // cards that all have the room
    if constexpr (LARGE::BYTES > TILE_SMALL)
        if (LARGE::BYTES > shared_most())
            return do_it(tile_shape<CODE, NT, XP, true>());
#endif
    return do_it(LARGE());
}

// Starts the copies of stage `stage` (blocks stage * BLOCKS and on) of the rows; rows[] < 0 are zeros.
template <class SHAPE>
__device__ __forceinline__ void stage_rows(unsigned char *memory, const prepared &x, const int32_t *rows, int stage)
{
    typedef typename SHAPE::CODE CODE;
    constexpr int XP = SHAPE::XP, BLOCKS = SHAPE::BLOCKS;
    unsigned char *to = memory + stage % SHAPE::STAGES * SHAPE::STAGE;
    const int each = SHAPE::ROWS * 4, chunks = BLOCKS * XP * each; // chunks of 16 bytes
    for (int c = threadIdx.x; c < chunks; c += TILE_THREADS) {
        int plane = c / each, r = c % each / 4, part = plane % XP, block = stage * BLOCKS + plane / XP;
        bool live = rows[r] >= 0 && block < x.blocks;
        const unsigned char *from = x.data;
        if (live)
            from += part * x.part_bytes + ((int64_t)rows[r] * x.blocks + block) * 64 + c % 4 * 16;
        copy16(to + c * 16, from, live ? 16 : 0);
    }
    const int sums = CODE::BIASED ? BLOCKS * SHAPE::ROWS : 0;
    for (int c = threadIdx.x; c < sums; c += TILE_THREADS) {
        int r = c % SHAPE::ROWS, block = stage * BLOCKS + c / SHAPE::ROWS;
        bool live = rows[r] >= 0 && block < x.blocks;
        copy4(to + SHAPE::SUMS_AT + c * 4, live ? x.sums + (int64_t)rows[r] * x.blocks + block : x.sums, live ? 4 : 0);
    }
}

// The same of the warp's weights.
template <class SHAPE>
__device__ __forceinline__ void stage_weights(unsigned char *memory, const lane_weights &place, int blocks, int stage)
{
    typedef typename SHAPE::CODE CODE;
    constexpr int BLOCKS = SHAPE::BLOCKS;
    unsigned char *to = memory + stage % SHAPE::STAGES * SHAPE::STAGE + SHAPE::WEIGHTS_AT +
                        (threadIdx.x >> 5) * BLOCKS * CODE::BLOCK_BYTES;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
        if (stage * BLOCKS + i < blocks)
            CODE::request(to + i * CODE::BLOCK_BYTES, place, stage * BLOCKS + i, threadIdx.x & 31);
}

// Rows 8 t .. 8 (t + COUNT) - 1 of the tile with one block's fragments a[step][product].
template <class CODE, int NT, int XP, int COUNT>
__device__ __forceinline__ void tile_rows(const uint32_t a[2][2][4], const float *scale, const float *bias,
                                          const unsigned char *mine, const float *sums, float acc[COUNT][8])
{
    float fresh[COUNT][8];
#pragma unroll
    for (int t = 0; t < COUNT; t++) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            fresh[t][i] = 0;
        float *d = CODE::SCALED ? fresh[t] : acc[t];
#pragma unroll
        for (int p = 0; p < XP; p++) {
            uint4 b = *(const uint4 *)(mine + (p * NT + t) * 512);
            mma_bf16(d, a[0][0], b.x, b.y);
            mma_bf16(d + 4, a[0][1], b.x, b.y);
            mma_bf16(d, a[1][0], b.z, b.w);
            mma_bf16(d + 4, a[1][1], b.z, b.w);
        }
    }
    if constexpr (CODE::SCALED)
#pragma unroll
        for (int t = 0; t < COUNT; t++) {
            float2 s = make_float2(0, 0);
            if (CODE::BIASED)
                s = *(const float2 *)(sums + t * 8);
#pragma unroll
            for (int o = 0; o < 4; o++) {
                acc[t][2 * o] = fmaf(scale[o], fresh[t][2 * o], acc[t][2 * o]);
                acc[t][2 * o + 1] = fmaf(scale[o], fresh[t][2 * o + 1], acc[t][2 * o + 1]);
                if (CODE::BIASED) {
                    acc[t][2 * o] = fmaf(bias[o], s.x, acc[t][2 * o]);
                    acc[t][2 * o + 1] = fmaf(bias[o], s.y, acc[t][2 * o + 1]);
                }
            }
        }
}

// One block of 32 k with the first `count` rows of the tile (rows are taken eight, or 32, at a time, so that products overlap);
// x and sums: the block's planes in shared memory.
template <class CODE, int NT, int XP>
__device__ __forceinline__ void tile_block(const CODE &code, const unsigned char *x, const float *sums, int count,
                                           int lane, float acc[NT][8])
{
    constexpr int GROUP = 4;
    int l = lane & 3;
    const unsigned char *mine = x + (lane >> 2) * 64 + l * 16;
    float scale[4] = {1, 1, 1, 1}, bias[4] = {0, 0, 0, 0};
    if (CODE::SCALED)
#pragma unroll
        for (int o = 0; o < 4; o++)
            code.outcome(o, &scale[o], &bias[o]);
#pragma unroll
    for (int part = 0; part < CODE::PARTS; part++) {
        uint32_t a[2][2][4];
        code.fragment(part, 0, l, a[0]);
        code.fragment(part, 1, l, a[1]);
        if (count <= 8) {
            tile_rows<CODE, NT, XP, 1>(a, scale, bias, mine, sums + 2 * l, acc);
            continue;
        }
#pragma unroll
        for (int t = 0; t < NT; t += GROUP)
            if (t * 8 < count)
                tile_rows<CODE, NT, XP, GROUP>(a, scale, bias, mine + t * 512, sums + t * 8 + 2 * l, acc + t);
    }
}

// The tile's products with pair `pair` of expert e of w: acc[t][2 o + c] of the lane's outputs o and rows 8 t + 2 (lane % 4) + c.
// The rows' numbers lie in rows[8 NT] (-1: none), `count` of them; READY is called before anything but weights is read and
// fills them.
template <class SHAPE, class READY>
__device__ __forceinline__ void tile_run(const struct weight *w, int64_t e, int pair, unsigned char *memory,
                                         const prepared &x, READY ready, float acc[SHAPE::NT][8])
{
    typedef typename SHAPE::CODE CODE;
    constexpr int NT = SHAPE::NT, XP = SHAPE::XP, STAGES = SHAPE::STAGES, BLOCKS = SHAPE::BLOCKS;
    int lane = threadIdx.x & 31, blocks = x.blocks, stages = (blocks + BLOCKS - 1) / BLOCKS;
    int32_t *rows = (int32_t *)(memory + STAGES * SHAPE::STAGE);
    lane_weights place = lane_place(w, e, pair, lane);
    for (int s = 0; s < STAGES - 1; s++)
        stage_weights<SHAPE>(memory, place, blocks, s);
    int count = ready(rows);
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc[t][i] = 0;
    if (count <= 0) {
        copy_wait<0>();
        return;
    }
    __syncthreads();
    for (int s = 0; s < STAGES - 1; s++) { // the weights of these stages are in the first group
        stage_rows<SHAPE>(memory, x, rows, s);
        copy_commit();
    }
    for (int s = 0; s < stages; s++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        stage_rows<SHAPE>(memory, x, rows, s + STAGES - 1);
        stage_weights<SHAPE>(memory, place, blocks, s + STAGES - 1);
        copy_commit();
        const unsigned char *at = memory + s % STAGES * SHAPE::STAGE;
        const unsigned char *weights = at + SHAPE::WEIGHTS_AT + (threadIdx.x >> 5) * BLOCKS * CODE::BLOCK_BYTES;
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            if (s * BLOCKS + i >= blocks)
                continue;
            CODE code;
            code.fetch(weights + i * CODE::BLOCK_BYTES, lane);
            tile_block<CODE, NT, XP>(code, at + i * XP * SHAPE::PLANE,
                                     (const float *)(at + SHAPE::SUMS_AT) + i * SHAPE::ROWS, count, lane, acc);
        }
    }
    copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc[t][i] *= CODE::factor();
}

// Four neighbouring outputs of a row: y[o .. o + 3], those below n.
__device__ __forceinline__ void store_four(float *y, int o, int n, bool aligned, const float *v)
{
    if (aligned && o + 4 <= n) {
        *(float4 *)(y + o) = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
    for (int i = 0; i < 4; i++)
        if (o + i < n)
            y[o + i] = v[i];
}

#endif
