// SPDX-License-Identifier: Apache-2.0
//
// Prompt-class products: tiles of 8 NT rows by 256 outputs, a pair of panels a warp.
//
// Rows of x are prepared in scratch as bf16 in the order of fragments (decode.cuh), with a second part of what the first leaves
// when XP is 2, and the fp32 sums of each block of 32 k; tiles of them go through shared memory by asynchronous copies. Weights
// are decoded in registers, straight from memory, once a tile.
//
// Invariant: a row's result is one chain over ascending blocks whatever NT, its place and its company; XP comes from the
// weight's shape.

#ifndef PROMPT_CUH
#define PROMPT_CUH

#include "kernels/cuda/linear.cuh"

enum {
    STAGE_BLOCKS = 2, // blocks of 32 k a stage
    TILE_STAGES = 3,
    PRECISE_OUTPUTS = 1024, // matrices of at most so many outputs (routers, gates) take x in two parts
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

template <int NT, int XP> __host__ __device__ constexpr int stage_bytes(void)
{
    return STAGE_BLOCKS * (XP * NT * 8 * 64 + NT * 8 * 4);
}

// Tile rows' numbers among the prepared rows come after the stages.
template <int NT, int XP> __host__ __device__ constexpr int tile_bytes(void)
{
    return TILE_STAGES * stage_bytes<NT, XP>() + NT * 8 * 4;
}

// Starts the copies of stage `stage` (blocks stage * STAGE_BLOCKS and on); rows[] < 0 are zeros.
template <int NT, int XP>
__device__ __forceinline__ void stage_copy(unsigned char *memory, const prepared &x, const int32_t *rows, int stage)
{
    unsigned char *to = memory + stage % TILE_STAGES * stage_bytes<NT, XP>();
    const int each = NT * 8 * 4, chunks = STAGE_BLOCKS * XP * each; // chunks of 16 bytes
    for (int c = threadIdx.x; c < chunks; c += THREADS) {
        int plane = c / each, r = c % each / 4, part = plane % XP, block = stage * STAGE_BLOCKS + plane / XP;
        bool live = rows[r] >= 0 && block < x.blocks;
        const unsigned char *from = x.data;
        if (live)
            from += part * x.part_bytes + ((int64_t)rows[r] * x.blocks + block) * 64 + c % 4 * 16;
        copy16(to + c * 16, from, live ? 16 : 0);
    }
    float *sums = (float *)(to + STAGE_BLOCKS * XP * NT * 8 * 64);
    for (int c = threadIdx.x; c < STAGE_BLOCKS * NT * 8; c += THREADS) {
        int r = c % (NT * 8), block = stage * STAGE_BLOCKS + c / (NT * 8);
        bool live = rows[r] >= 0 && block < x.blocks;
        copy4(sums + c, live ? x.sums + (int64_t)rows[r] * x.blocks + block : x.sums, live ? 4 : 0);
    }
    copy_commit();
}

// One block of 32 k with the first `count` rows of the tile; x and sums: the block's planes in shared memory.
template <class CODE, int NT, int XP>
__device__ __forceinline__ void tile_block(const CODE &code, const unsigned char *x, const float *sums, int count,
                                           int lane, float acc[NT][8])
{
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
#pragma unroll
        for (int t = 0; t < NT; t++) {
            if (t * 8 >= count)
                continue;
            float fresh[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            float *d = CODE::SCALED ? fresh : acc[t];
#pragma unroll
            for (int p = 0; p < XP; p++) {
                uint4 b = *(const uint4 *)(mine + (p * NT + t) * 512);
                mma_bf16(d, a[0][0], b.x, b.y);
                mma_bf16(d + 4, a[0][1], b.x, b.y);
                mma_bf16(d, a[1][0], b.z, b.w);
                mma_bf16(d + 4, a[1][1], b.z, b.w);
            }
            if (!CODE::SCALED)
                continue;
            float2 s = make_float2(0, 0);
            if (CODE::BIASED)
                s = *(const float2 *)(sums + t * 8 + 2 * l);
#pragma unroll
            for (int o = 0; o < 4; o++) {
                acc[t][2 * o] = fmaf(scale[o], d[2 * o], acc[t][2 * o]);
                acc[t][2 * o + 1] = fmaf(scale[o], d[2 * o + 1], acc[t][2 * o + 1]);
                if (CODE::BIASED) {
                    acc[t][2 * o] = fmaf(bias[o], s.x, acc[t][2 * o]);
                    acc[t][2 * o + 1] = fmaf(bias[o], s.y, acc[t][2 * o + 1]);
                }
            }
        }
    }
}

// The tile's products with pair `pair` of expert e of w: acc[t][2 o + c] of the lane's outputs o and rows 8 t + 2 (lane % 4) + c.
// The rows' numbers lie in rows[8 NT] (-1: none), `count` of them; READY is called before anything but weights is read and
// fills them.
template <class CODE, int NT, int XP, class READY>
__device__ __forceinline__ void tile_run(const struct weight *w, int64_t e, int pair, unsigned char *memory,
                                         const prepared &x, READY ready, float acc[NT][8])
{
    constexpr int DEPTH = CODE::STAGES < 2 ? 1 : 2;
    int lane = threadIdx.x & 31, blocks = x.blocks, stages = (blocks + STAGE_BLOCKS - 1) / STAGE_BLOCKS;
    int32_t *rows = (int32_t *)(memory + TILE_STAGES * stage_bytes<NT, XP>());
    lane_weights place = lane_place(w, e, pair, lane);
    CODE ring[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        if (i < blocks)
            ring[i].load(place, i, lane & 3);
    int count = ready(rows);
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc[t][i] = 0;
    if (count <= 0)
        return;
    __syncthreads();
    for (int s = 0; s < TILE_STAGES - 1; s++)
        stage_copy<NT, XP>(memory, x, rows, s);
    for (int s = 0; s < stages; s++) {
        copy_wait<TILE_STAGES - 2>();
        __syncthreads();
        stage_copy<NT, XP>(memory, x, rows, s + TILE_STAGES - 1);
        const unsigned char *at = memory + s % TILE_STAGES * stage_bytes<NT, XP>();
#pragma unroll
        for (int i = 0; i < STAGE_BLOCKS; i++) {
            int block = s * STAGE_BLOCKS + i;
            if (block >= blocks)
                continue;
            const float *sums = (const float *)(at + STAGE_BLOCKS * XP * NT * 512) + i * NT * 8;
            tile_block<CODE, NT, XP>(ring[i % DEPTH], at + i * XP * NT * 512, sums, count, lane, acc);
            if (block + DEPTH < blocks)
                ring[i % DEPTH].load(place, block + DEPTH, lane & 3);
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
