// SPDX-License-Identifier: Apache-2.0
//
// Reductions and activations over a row of fp32 that several kernels share.
//
// Invariant: the order of a sum is a function of the length alone: four accumulators of sixteen lanes, taken in turn, then a
// fixed tree. The ragged end adds zeros to lanes that have no element.

#ifndef ROW_H
#define ROW_H

#include "kernels/cpu/ops.h"
#include "kernels/cpu/vec.h"

enum { ROW_BLOCK = 512 }; // elements of one item of an element-wise kernel

VEC_INLINE int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

VEC_INLINE int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

// How many of the sixteen lanes from element i on exist in a row of n.
VEC_INLINE int row_lanes(int32_t n, int32_t i)
{
    return n - i < VEC ? n - i : VEC;
}

// Loads and stores of the lanes that exist: whole vectors by the short way.
VEC_INLINE vf row_load(const float *p, int lanes)
{
    return lanes == VEC ? vf_load(p) : vf_load_n(p, lanes);
}

VEC_INLINE void row_store(float *p, vf a, int lanes)
{
    if (lanes == VEC)
        vf_store(p, a);
    else
        vf_store_n(p, a, lanes);
}

// sum_i a[i] * b[i]
VEC_INLINE float row_dot(const float *a, const float *b, int32_t n)
{
    vf s0 = vf_zero(), s1 = s0, s2 = s0, s3 = s0;
    int32_t i = 0;
    for (; i + 4 * VEC <= n; i += 4 * VEC) {
        s0 = vf_fma(vf_load(a + i), vf_load(b + i), s0);
        s1 = vf_fma(vf_load(a + i + VEC), vf_load(b + i + VEC), s1);
        s2 = vf_fma(vf_load(a + i + 2 * VEC), vf_load(b + i + 2 * VEC), s2);
        s3 = vf_fma(vf_load(a + i + 3 * VEC), vf_load(b + i + 3 * VEC), s3);
    }
    for (; i + VEC <= n; i += VEC)
        s0 = vf_fma(vf_load(a + i), vf_load(b + i), s0);
    if (i < n)
        s1 = vf_fma(vf_load_n(a + i, n - i), vf_load_n(b + i, n - i), s1);
    return vf_sum(vf_add(vf_add(s0, s1), vf_add(s2, s3)));
}

// 1 / sqrt(mean_i x[i]^2 + eps)
VEC_INLINE float row_rms(const float *x, int32_t n, float eps)
{
    return 1.0f / __builtin_sqrtf(row_dot(x, x, n) / (float)n + eps);
}

VEC_INLINE vf vf_activate(vf x, int32_t activation)
{
    switch (activation) {
    case ACT_SILU:
        return vf_silu(x);
    case ACT_SIGMOID:
        return vf_sigmoid(x);
    case ACT_RELU2:
        return vf_relu2(x);
    default:
        return x;
    }
}

#endif
