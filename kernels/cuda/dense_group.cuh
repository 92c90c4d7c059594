// SPDX-License-Identifier: Apache-2.0
//
// Products of warpgroups (sm_90a) for dense attention of prompt rows: 64 pairs of a row and a query head by a tile of 64 positions,
// keys and values straight from shared memory.
//
// 64 rows of DIM numbers lie as planes of 64 dims; a row of a plane is 128 bytes, whose eight pieces are permuted: piece p of row r at
// p ^ r % 8. Queries (the left operand of scores), keys and values lie so alike; values are read across. Sums lie in registers as
// those of four warps' 16x8x16 products (mma.cuh), a warp having sixteen pairs.
// Invariant: a score is one chain over the dims, a sum of weighted values one chain over the positions, high parts before low ones.

#ifndef CUDA_DENSE_GROUP_CUH
#define CUDA_DENSE_GROUP_CUH

#include "kernels/cuda/dense_tile.cuh"
#include "kernels/cuda/wgmma_group.cuh"

enum {
    GROUP_WARPS = 4,
    GROUP_PAIRS = GROUP_WARPS * DENSE_PAIRS,
    GROUP_PLANE = 64 * 128, // bytes
};

template <int DIM> struct dense_planes {
    __align__(1024) uint16_t plane[DIM / 64][64][64];

    __device__ __forceinline__ uint16_t *place(int32_t r, int32_t piece)
    {
        return plane[piece / 8][r] + (piece % 8 ^ r % 8) * DENSE_PIECE;
    }
};

#if defined(CUDA_FIBERS)
#include "tests/cuda_fake/group.h"
#else
// What a product reads: the place in shared memory, how far eight rows are from the next, and for values planes.
typedef uint64_t dense_source;

DEVICE dense_source dense_source_of(const void *planes)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(planes);
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(GROUP_PLANE >> 4) << 16 | (at & 0x3ffff) >> 4;
}

DEVICE dense_source dense_source_at(dense_source from, int32_t bytes)
{
    return from + (uint64_t)(bytes >> 4);
}

// Before products whose sums or weights were made since the last ones.
template <int N> DEVICE void dense_fence(float *d)
{
#if WGMMA_HERE
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Weights that are made before the next fence.
DEVICE void dense_keep_weights(uint32_t (*a)[4])
{
#if WGMMA_HERE
#pragma unroll
    for (int p = 0; p < DENSE_PARTS; p++)
        asm volatile("" : "+r"(a[p][0]), "+r"(a[p][1]), "+r"(a[p][2]), "+r"(a[p][3])::"memory");
#endif
}

// d += q k: 64 pairs by 64 keys by 16 dims.
DEVICE void dense_score_product(float *d, dense_source q, dense_source k)
{
#if WGMMA_HERE
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" P0 "," P16 "}, %32, %33, 1, 1, 1, 0, 0;"
                 : D16(0), D16(16)
                 : "l"(q), "l"(k));
#endif
}

// d += weights v: 64 pairs by DIM dims by 16 positions.
template <int DIM> DEVICE void dense_value_product(float *d, const uint32_t *a, dense_source v)
{
#if WGMMA_HERE
    if constexpr (DIM == 256)
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" P0 "," P16 "," P32 "," P48 "," P64
                     "," P80 "," P96 "," P112 "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;"
                     : D16(0), D16(16), D16(32), D16(48), D16(64), D16(80), D16(96), D16(112)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(v));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" P0 "," P16 "," P32 "," P48
                     "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                     : D16(0), D16(16), D16(32), D16(48)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(v));
#endif
}
#endif

// Asks for scores of a warpgroup's pairs and all keys of a tile: c[n] of keys 8n .. 8n + 7. What c had goes. They are there behind
// wgmma_settle().
template <int DIM>
DEVICE void dense_group_scores(const struct dense_planes<DIM> *keys, const struct dense_planes<DIM> *q, float *c)
{
    const dense_source from = dense_source_of(keys);
    dense_source part[DENSE_PARTS];
#pragma unroll
    for (int p = 0; p < DENSE_PARTS; p++)
        part[p] = dense_source_of(q + p);
#pragma unroll
    for (int i = 0; i < DENSE_KEYS * 4; i++)
        c[i] = 0;
    dense_fence<DENSE_KEYS * 4>(c);
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        const int32_t at = k / 4 * GROUP_PLANE + k % 4 * 32;
#pragma unroll
        for (int p = 0; p < DENSE_PARTS; p++)
            dense_score_product(c, dense_source_at(part[p], at), dense_source_at(from, at));
    }
    wgmma_commit();
}

// A tile's weights as left operands.
struct dense_weights {
    uint32_t word[DENSE_STEPS][DENSE_PARTS][4];
};

DEVICE void dense_weights_of(const float (*c)[4], struct dense_weights *w)
{
#pragma unroll
    for (int k = 0; k < DENSE_STEPS; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            dense_split(c[2 * k + i / 2][i % 2 * 2], c[2 * k + i / 2][i % 2 * 2 + 1], &w->word[k][0][i],
                        &w->word[k][1][i]);
        dense_keep_weights(w->word[k]);
    }
}

// Asks for a tile's values times weights to be added to sums of all dims: out[4 n ..] of dims 8n .. 8n + 7. The same.
template <int DIM>
DEVICE void dense_group_values(const struct dense_planes<DIM> *values, const struct dense_weights *w, float *out)
{
    const dense_source from = dense_source_of(values);
    dense_fence<DIM / 2>(out);
#pragma unroll
    for (int k = 0; k < DENSE_STEPS; k++)
#pragma unroll
        for (int p = 0; p < DENSE_PARTS; p++)
            dense_value_product<DIM>(out, w->word[k][p], dense_source_at(from, k * 16 * 128));
    wgmma_commit();
}

#endif
