// SPDX-License-Identifier: Apache-2.0
//
// The pooled key of a completed block, by one warp: the mean of its raw keys as stored, its norm and its rotation.
//
// Invariant: a pooled row depends on its block's raw keys as stored and on the block's number alone, whether they were
// read back from the cache or are on their way there.

#ifndef CUDA_POOL_CUH
#define CUDA_POOL_CUH

#include "kernels/cuda/kv.cuh"
#include "kernels/cuda/rotary.cuh"

// A number as it is read from the cache, and what reading it back gives of a number that is stored.
DEVICE float pool_number(float x)
{
    return x;
}
DEVICE float pool_number(uint16_t x)
{
    return kv_bf16_value(x);
}
template <typename T> DEVICE float pool_stored(float x)
{
    if constexpr (sizeof(T) == 4)
        return x;
    return kv_bf16_value(kv_bf16(x));
}

// Raw keys of a block: the first `old` of them lie in the cache, the others are rows of the pass.
struct pool_keys {
    const uint8_t *stored;
    int64_t bytes; // from one to the next
    const float *fresh;
    int64_t ld;
    int32_t old;
};

// The mean of `ratio` keys of n numbers; returns the lane's share of its sum of squares. All keys of four numbers are
// under way at once.
template <typename T>
DEVICE float pool_mean(float *mean, const struct pool_keys &keys, int32_t ratio, int32_t n, int32_t lane)
{
    float sum = 0;
    for (int32_t base = lane; base < n; base += 4 * WARP) {
        float t[4] = {};
#pragma unroll 4
        for (int32_t i = 0; i < ratio; i++) {
            const T *stored = reinterpret_cast<const T *>(keys.stored + i * keys.bytes);
            const float *fresh = keys.fresh + (i - keys.old) * keys.ld;
            float x[4];
#pragma unroll
            for (int m = 0; m < 4; m++) {
                const int32_t d = base + m * WARP;
                const T old = d < n && i < keys.old ? stored[d] : T(0);
                x[m] = d < n && i >= keys.old ? pool_stored<T>(fresh[d]) : pool_number(old);
            }
#pragma unroll
            for (int m = 0; m < 4; m++)
                t[m] = __fadd_rn(t[m], x[m]);
        }
#pragma unroll
        for (int m = 0; m < 4; m++)
            if (base + m * WARP < n) {
                t[m] = __fdiv_rn(t[m], (float)ratio);
                mean[base + m * WARP] = t[m];
                sum = fmaf(t[m], t[m], sum);
            }
    }
    return sum;
}

// Pools the block that `position` completes; row: index_dim floats of shared memory of the warp. A page holds whole
// blocks.
DEVICE void pool_block(const struct index_pool_args *a, const struct pool_keys &keys, const uint32_t *table,
                       int32_t position, float *row, int32_t lane)
{
    const struct kv_layout *kv = &a->layout;
    const int32_t n = kv->index_dim, block = position / a->ratio;
    uint8_t *pooled = kv_row(&a->lanes, kv, table, KV_POOLED, block, a->ratio);
    const float sum = kv->index_encoding == KV_F32 ? pool_mean<float>(row, keys, a->ratio, n, lane)
                                                   : pool_mean<uint16_t>(row, keys, a->ratio, n, lane);
    const float factor = 1.0f / sqrtf(warp_sum<WARP>(sum) / (float)n + a->eps);
    for (int32_t d = lane; d < n; d += WARP)
        row[d] = f_mul(f_mul(row[d], factor), a->w[d]);
    __syncwarp();
    rotary_row(row, a->rotary, a->inverse_frequency, lane < a->rotary / 2 ? a->inverse_frequency[lane] : 0.0f,
               block * a->ratio, lane);
    __syncwarp();
    kv_encode(pooled, row, 1, 0, n, kv->index_encoding, lane);
}

#endif
