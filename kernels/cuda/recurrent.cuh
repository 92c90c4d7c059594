// SPDX-License-Identifier: Apache-2.0
//
// What the recurrences share: how a state lies in a warp's registers, and how rows are brought to shared memory ahead of use.
//
// Invariant: a warp has 8 columns (value dims); 4 threads share a column, thread g of them has elements 16 m + 4 g + 0..3 of
// the other dimension. A product with the column is four chains a thread, combined in a fixed order, then over the threads.

#ifndef CUDA_RECURRENT_CUH
#define CUDA_RECURRENT_CUH

#include <cuda_pipeline.h>

#include "kernels/cuda/vec.cuh"

enum {
    STATE_COLUMNS = 8, // of a warp
    STATE_PARTS = 4,   // threads a column
};

// The element of a column that register n of thread `part` holds.
DEVICE int32_t state_element(int32_t n, int32_t part)
{
    return n / 4 * 16 + part * 4 + n % 4;
}

// sum over the chains of a thread, in a fixed order
DEVICE float chain_sum(const float *chain)
{
    return __fadd_rn(__fadd_rn(chain[0], chain[1]), __fadd_rn(chain[2], chain[3]));
}

// Copies rows 0 .. rows - 1 of n floats (from + r * ld) to shared memory (to + r * stride), zeros up to `padded`. Without
// waiting when ASYNC: the caller commits and waits.
template <bool ASYNC>
DEVICE void stage_rows(float *to, int32_t stride, const float *from, int64_t ld, int32_t rows, int32_t n,
                       int32_t padded)
{
    const bool wide = (((uintptr_t)from | (uintptr_t)(ld * 4)) % 16 == 0) && n % 4 == 0 && stride % 4 == 0;
    const int32_t threads = (int32_t)blockDim.x, width = wide ? n / 4 : n;
    for (int32_t i = (int32_t)threadIdx.x; i < rows * width; i += threads) {
        const int32_t r = i / width, at = (i - r * width) * (wide ? 4 : 1);
        float *place = to + r * stride + at;
        const float *source = from + r * ld + at;
        if constexpr (ASYNC) {
            if (wide)
                __pipeline_memcpy_async(place, source, 16);
            else
                __pipeline_memcpy_async(place, source, 4);
        } else {
            if (wide)
                *reinterpret_cast<float4 *>(place) = *reinterpret_cast<const float4 *>(source);
            else
                *place = *source;
        }
    }
    for (int32_t i = (int32_t)threadIdx.x; padded > n && i < rows * (padded - n); i += threads)
        to[i / (padded - n) * stride + n + i % (padded - n)] = 0.0f;
}

#endif
