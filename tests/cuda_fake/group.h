// SPDX-License-Identifier: Apache-2.0
//
// Products of warpgroups of the stand-in for CUDA (kernels/cuda/dense_group.cuh), a warp at a time.
// Invariant: sources are where the device would refuse no others: planes at multiples of 1024 bytes.

#ifndef CUDA_FAKE_GROUP_H
#define CUDA_FAKE_GROUP_H

#include <cuda_runtime.h>

typedef const uint8_t *dense_source;

static inline dense_source dense_source_of(const void *planes)
{
    if ((uintptr_t)planes % 1024)
        exit(printf("Bail out! planes at no multiple of 1024 bytes\n"));
    return (dense_source)planes;
}
static inline dense_source dense_source_at(dense_source from, int32_t bytes)
{
    return from + bytes;
}
template <int N> static inline void dense_fence(float *)
{
}
static inline void dense_keep_weights(uint32_t (*)[4])
{
}
static inline void wgmma_commit(void)
{
}
static inline void wgmma_publish(void)
{
}
template <int N, int LEFT = 0> static inline void wgmma_settle(float *)
{
}

// Number `at` of row r, from the beginning of a plane's row 0 with pieces in order.
static inline float fake_plane(dense_source rows, int r, int at)
{
    const int first = (int)((uintptr_t)rows / 16 % 8);
    uint16_t bits;
    memcpy(&bits, rows - first * 16 + r * 128 + ((first + at / 8) ^ (r & 7)) * 16 + at % 8 * 2, 2);
    return fake_half(bits, 0);
}
static inline void dense_score_product(float *d, dense_source q, dense_source k)
{
    const int g = (int)fake.now->lane / 4, t = (int)fake.now->lane % 4, first = (int)(threadIdx.x / 32 % 4) * 16;
    for (int j = 0; j < 32; j++)
        for (int i = 0; i < 16; i++)
            d[j] += fake_plane(q, first + g + (j >> 1 & 1) * 8, i) * fake_plane(k, j / 4 * 8 + 2 * t + (j & 1), i);
}
template <int DIM> static inline void dense_value_product(float *d, const uint32_t *a, dense_source v)
{
    uint32_t all[32][4];
    for (int i = 0; i < 4; i++) {
        const uint64_t *values = fake_exchange(a[i]);
        for (int l = 0; l < 32; l++)
            all[l][i] = (uint32_t)values[l];
    }
    const int g = (int)fake.now->lane / 4, t = (int)fake.now->lane % 4;
    for (int j = 0; j < DIM / 2; j++)
        for (int i = 0; i < 16; i++) {
            const int dim = j / 4 * 8 + 2 * t + (j & 1);
            d[j] += fake_half(all[g * 4 + i % 8 / 2][(j >> 1 & 1) + i / 8 * 2], i & 1) *
                    fake_plane(v + dim / 64 * 8192, i, dim % 64);
        }
}

#endif
