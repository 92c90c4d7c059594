// SPDX-License-Identifier: Apache-2.0
//
// Integer scans and sums over a block.
// Invariant: integers only, so the order of adding does not matter.

#ifndef CUDA_SCAN_CUH
#define CUDA_SCAN_CUH

#include "kernels/cuda/vec.cuh"

// Sum of `mine` over the threads before this one. space: THREADS / 32 words of shared memory. Ends with a barrier, so that
// space may be used again at once.
template <int THREADS> DEVICE uint64_t block_scan(uint64_t mine, uint64_t *space)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint64_t sum = mine;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const uint64_t other = __shfl_up_sync(WHOLE_WARP, sum, (unsigned)step);
        sum += lane >= step ? other : 0;
    }
    if (lane == WARP - 1)
        space[warp] = sum;
    __syncthreads();
    uint64_t before = 0;
    for (int w = 0; w < warp; w++)
        before += space[w];
    __syncthreads();
    return before + sum - mine;
}

#endif
