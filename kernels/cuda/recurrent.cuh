// SPDX-License-Identifier: Apache-2.0
//
// What the recurrences share: how a state lies in a warp's registers, and how rows are brought to shared memory ahead of use.
//
// Invariant: a warp has 16 columns (value dims); 8 threads share 4 columns, thread `part` of them has elements
// 32 m + 4 part + 0..3 of the other dimension, of each. A product with a column is one chain a thread, then a fixed tree over the
// threads. So one number from shared memory serves 4 columns, whose bandwidth is what would bound the update.

#ifndef CUDA_RECURRENT_CUH
#define CUDA_RECURRENT_CUH

#include <cuda_pipeline.h>

#include "kernels/cuda/vec.cuh"

enum {
    STATE_COLUMNS = 16, // of a warp
    STATE_PARTS = 8,    // threads that share columns
    STATE_EACH = 4,     // columns of a thread
};

// The element of its columns that register n of thread `part` holds.
DEVICE int32_t state_element(int32_t n, int32_t part)
{
    return n / 4 * 4 * STATE_PARTS + part * 4 + n % 4;
}

// Sums the columns' x over the threads that share them; every one of them gets all. EACH: columns of a thread, 4 or 2.
template <int EACH = STATE_EACH> DEVICE void state_sum(float *x)
{
#pragma unroll
    for (int c = 0; c < EACH; c++)
        x[c] = warp_sum<STATE_PARTS>(x[c]);
}

// The same numbers of one column only, added as another tree, one for any EACH: column state_column<EACH>(part), for parts 0 .. EACH - 1.
template <int EACH = STATE_EACH> DEVICE float state_sum_one(const float *x, int32_t part)
{
    const bool odd = part & 1, second = part & 2;
    if constexpr (EACH == 2) {
        const float a = __fadd_rn(odd ? x[1] : x[0], __shfl_xor_sync(WHOLE_WARP, odd ? x[0] : x[1], 1));
        const float c = __fadd_rn(a, __shfl_xor_sync(WHOLE_WARP, a, 2));
        return __fadd_rn(c, __shfl_xor_sync(WHOLE_WARP, c, 4));
    }
    const float low = __shfl_xor_sync(WHOLE_WARP, odd ? x[0] : x[2], 1),
                high = __shfl_xor_sync(WHOLE_WARP, odd ? x[1] : x[3], 1);
    const float a = __fadd_rn(odd ? x[2] : x[0], low), b = __fadd_rn(odd ? x[3] : x[1], high);
    const float c = __fadd_rn(second ? b : a, __shfl_xor_sync(WHOLE_WARP, second ? a : b, 2));
    return __fadd_rn(c, __shfl_xor_sync(WHOLE_WARP, c, 4));
}

template <int EACH = STATE_EACH> DEVICE int32_t state_column(int32_t part)
{
    return EACH == 2 ? part & 1 : (part & 1) * 2 + (part >> 1 & 1);
}

// Rows of a pass of `rows` rows from row `at` on, at most `most`, up to the next state that the lane keeps on the way.
DEVICE int32_t rows_to_keep(const struct lane *lane, int32_t at, int32_t rows, int32_t most)
{
    int32_t end = rows - at < most ? rows : at + most;
#pragma unroll
    for (int32_t i = 0; i < LANE_KEEPS; i++) {
        const int32_t behind = lane_keeps(lane, i, rows);
        end = behind > at && behind < end ? behind : end;
    }
    return end - at;
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
