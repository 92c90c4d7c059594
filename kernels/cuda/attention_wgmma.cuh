// SPDX-License-Identifier: Apache-2.0
//
// Products of warpgroups (sm_90a) for attention: 64 pairs by 64 keys, both from shared memory, and 64 pairs by 128 dims, with weights from
// registers and values from shared memory.
//
// Tiles lie in shared memory as 64 rows of 64 numbers (128 bytes) for each 64 dims, one part of the dims after the other; the sixteen-byte
// pieces of a row are permuted: piece p of row r at p ^ r % 8. Sums and fragments of warp w of a group are those of the 16x8x16
// product with pairs 16 w and on.
// Invariant: a pair's sums depend on its own queries or weights alone.

#ifndef CUDA_ATTENTION_WGMMA_CUH
#define CUDA_ATTENTION_WGMMA_CUH

#include "kernels/cuda/dense_tile.cuh"

enum {
    WIDE_PAIRS = 64, // of a warpgroup
    WIDE_DIMS = 64,  // of a part
    WIDE_WARPS = 4,  // of a warpgroup
    WIDE_ALIGN = 1024,
};

// 64 keys, values, or queries of pairs.
template <int DIM> struct wide_tile {
    __align__(16) uint16_t part[DIM / WIDE_DIMS][DENSE_TILE][WIDE_DIMS];
};

// Where piece `piece` of a row lies.
template <int DIM> DEVICE uint16_t *wide_place(struct wide_tile<DIM> *tile, int32_t row, int32_t piece)
{
    return &tile->part[piece / 8][row][(piece % 8 ^ row % 8) * DENSE_PIECE];
}

// The first place in shared memory for tiles.
DEVICE uint8_t *wide_align(uint8_t *shared)
{
    return shared + (-mma_place_of(shared) & (WIDE_ALIGN - 1));
}

// A number that is the same in all lanes of a warp, where the compiler knows that it is: what follows from it is worked out once a warp.
DEVICE uint32_t wide_uniform(uint32_t x)
{
    return __reduce_max_sync(WHOLE_WARP, x);
}

#if defined(CUDA_FIBERS)
template <int DIM> DEVICE float wide_number(const struct wide_tile<DIM> *tile, int32_t row, int32_t dim)
{
    const uint16_t *piece = wide_place<DIM>(const_cast<struct wide_tile<DIM> *>(tile), row, dim / DENSE_PIECE);
    return __uint_as_float((uint32_t)piece[dim % DENSE_PIECE] << 16);
}

DEVICE void wide_publish(void)
{
}

template <int DIM>
DEVICE void wide_scores_begin(const struct wide_tile<DIM> *keys, const struct wide_tile<DIM> *q, float (*c)[4])
{
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP % WIDE_WARPS;
    for (int n = 0; n < DENSE_KEYS; n++)
        for (int i = 0; i < 4; i++) {
            const int32_t pair = warp * 16 + lane / 4 + i / 2 * 8, key = n * 8 + lane % 4 * 2 + i % 2;
            c[n][i] = 0;
            for (int32_t piece = 0; piece < DIM / DENSE_PIECE * DENSE_PARTS;
                 piece++) { // two of high parts, the same two of low ones
                const int32_t at = piece / 4 * 2 + piece % 2, part = piece / 2 % 2;
                const uint16_t *x = wide_place<DIM>(const_cast<struct wide_tile<DIM> *>(q + part), pair, at),
                               *y = wide_place<DIM>(const_cast<struct wide_tile<DIM> *>(keys), key, at);
                for (int d = 0; d < DENSE_PIECE; d++)
                    c[n][i] += __uint_as_float((uint32_t)x[d] << 16) * __uint_as_float((uint32_t)y[d] << 16);
            }
        }
}

DEVICE void wide_scores_end(float (*)[4])
{
}

template <int DIM>
DEVICE void wide_values(const struct wide_tile<DIM> *values, uint32_t (*weight)[DENSE_PARTS][4], float (*out)[4])
{
    const int32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    auto code = [&](int32_t row, int32_t dim) { return __float_as_uint(wide_number(values, row, dim)) >> 16; };
    for (int k = 0; k < DENSE_STEPS; k++)
        for (int p = 0; p < DENSE_PARTS; p++)
            for (int n = 0; n < DIM / 8; n++) {
                const int32_t row = k * 16 + 2 * t, dim = n * 8 + g;
                mma_bf16(out[n], weight[k][p], code(row, dim) | code(row + 1, dim) << 16,
                         code(row + 8, dim) | code(row + 9, dim) << 16);
            }
}
#else

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WIDE_HERE 1
#else
#define WIDE_HERE 0
#endif

// Makes what this thread brought to shared memory visible to products that start after the next barrier.
DEVICE void wide_publish(void)
{
#if WIDE_HERE
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// What a product reads, `offset` bytes behind a place: rows of 128 bytes, eight of them 1024 bytes; parts of the dims are 64 rows apart,
// which counts where dims are columns. place: wide_source().
DEVICE uint64_t wide_source_at(uint32_t place, int32_t offset)
{
    const uint32_t high = 1u << 30 | 1024 >> 4;
    return (uint64_t)high << 32 | (place + (uint32_t)(offset >> 4));
}
DEVICE uint32_t wide_source(const void *shared)
{
    return (uint32_t)(DENSE_TILE * 128 >> 4) << 16 | (mma_place_of(shared) & 0x3ffff) >> 4;
}

// Keeps N sums before, and their later uses behind, what comes next.
template <int N> DEVICE void wide_settle(float *d)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
DEVICE void wide_fence(void)
{
#if WIDE_HERE
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
DEVICE void wide_commit(void)
{
#if WIDE_HERE
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits for all products that were asked for.
DEVICE void wide_wait(void)
{
#if WIDE_HERE
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}

#define WIDE4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WIDE16(i) WIDE4(i), WIDE4(i + 4), WIDE4(i + 8), WIDE4(i + 12)
#define WIDE_SUMS_32                                                                                                   \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"   \
    "%30,%31"
#define WIDE_SUMS_64                                                                                                   \
    WIDE_SUMS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,"   \
                 "%56,%57,%58,%59,%60,%61,%62,%63"

// d (+)= a b of 16 dims: 64 pairs by 64 keys.
template <bool ADD> DEVICE void wide_product_scores(float *d, uint64_t a, uint64_t b)
{
#if WIDE_HERE
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WIDE_SUMS_32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : WIDE16(0), WIDE16(16)
                 : "l"(a), "l"(b), "n"(ADD ? 1 : 0));
#else
    (void)d, (void)a, (void)b;
#endif
}

// d += a b of 16 positions: 64 pairs by 128 dims.
DEVICE void wide_product_values(float *d, const uint32_t *a, uint64_t b)
{
#if WIDE_HERE
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WIDE_SUMS_64
                 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1;\n}"
                 : WIDE16(0), WIDE16(16), WIDE16(32), WIDE16(48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#else
    (void)d, (void)a, (void)b;
#endif
}

// Asks for scores of the group's pairs, whose queries are q[0] and q[1], and all keys of a tile: c[n] of keys 8n .. 8n + 7. What c had goes.
// Until wide_scores_end() nothing may touch c, nor may anything branch: else the compiler waits for each product.
template <int DIM>
DEVICE void wide_scores_begin(const struct wide_tile<DIM> *keys, const struct wide_tile<DIM> *q, float (*c)[4])
{
    const uint32_t a = wide_source(q), b = wide_source(keys);
    float *d = c[0];
    wide_settle<4 * DENSE_KEYS>(d);
    wide_fence();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        const int at = k / 4 * (DENSE_TILE * 128) + k % 4 * 32;
        if (k == 0)
            wide_product_scores<false>(d, wide_source_at(a, 0), wide_source_at(b, 0));
        else
            wide_product_scores<true>(d, wide_source_at(a, at), wide_source_at(b, at));
        wide_product_scores<true>(d, wide_source_at(a, at + (int)sizeof *q), wide_source_at(b, at));
    }
    wide_commit();
}

DEVICE void wide_scores_end(float (*c)[4])
{
    wide_wait();
    wide_settle<4 * DENSE_KEYS>(c[0]);
}

// Adds a tile's values times weights, a fragment of each part for each 16 positions: out[n] of dims 8n .. 8n + 7.
template <int DIM>
DEVICE void wide_values(const struct wide_tile<DIM> *values, uint32_t (*weight)[DENSE_PARTS][4], float (*out)[4])
{
    const uint32_t b = wide_source(values);
    wide_settle<DIM / 2>(out[0]);
#pragma unroll
    for (int k = 0; k < DENSE_STEPS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+r"(weight[k][0][i]), "+r"(weight[k][1][i])::"memory");
    wide_fence();
#pragma unroll
    for (int k = 0; k < DENSE_STEPS; k++)
#pragma unroll
        for (int p = 0; p < DENSE_PARTS; p++)
#pragma unroll
            for (int half = 0; half < DIM / 128; half++)
                wide_product_values(out[half * 16], weight[k][p],
                                    wide_source_at(b, k * 16 * 128 + half * 2 * DENSE_TILE * 128));
    wide_commit();
    wide_wait();
    wide_settle<DIM / 2>(out[0]);
}
#endif

#endif
