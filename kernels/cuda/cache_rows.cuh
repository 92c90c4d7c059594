// SPDX-License-Identifier: Apache-2.0
//
// Rows of a cache as fragments of the 16x8x16 product, straight from memory: a lane's sixteen bytes are eight neighbouring numbers, which
// serve two products in an order of dims that the other operand follows.
//
// Invariant: the words of a lane depend on its row and its place in the warp alone.

#ifndef CUDA_CACHE_ROWS_CUH
#define CUDA_CACHE_ROWS_CUH

#include "kernels/cuda/mma.cuh"

// Eight neighbouring numbers as bf16.
template <bool F32> DEVICE uint4 rows_load(const uint8_t *row, int32_t at)
{
    if constexpr (!F32)
        return *reinterpret_cast<const uint4 *>(row + 2 * at);
    const float4 a = *reinterpret_cast<const float4 *>(row + 4 * at),
                 b = *reinterpret_cast<const float4 *>(row + 4 * at + 16);
    return make_uint4(mma_pair(a.x, a.y), mma_pair(a.z, a.w), mma_pair(b.x, b.y), mma_pair(b.z, b.w));
}

// Keys 8 `tile` .. of the group whose places the lanes have.
template <int DIM, bool F32> DEVICE void rows_keys(uint4 *b, uint64_t place, int32_t tile)
{
    const int32_t lane = threadIdx.x % WARP;
    const uint8_t *key =
        reinterpret_cast<const uint8_t *>((uintptr_t)__shfl_sync(WHOLE_WARP, place, tile * 8 + lane / 4));
#pragma unroll
    for (int j = 0; j < DIM / 32; j++)
        b[j] = rows_load<F32>(key, j * 32 + lane % 4 * 8);
}

#endif
