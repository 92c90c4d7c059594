// SPDX-License-Identifier: Apache-2.0
//
// One output of the causal depthwise convolution, and the activation of several.
//
// Invariant: bias, then the taps in ascending order, one chain.

#ifndef CUDA_CONV_CUH
#define CUDA_CONV_CUH

#include "kernels/cuda/vec.cuh"

// x: the oldest input, and the others of the taps DILATION apart.
template <int TAPS, int DILATION>
DEVICE float conv_output(const float *w, const float *x, float bias, int32_t activation)
{
    float sum = bias;
#pragma unroll
    for (int i = 0; i < TAPS; i++)
        sum = fmaf(w[i], x[DILATION * i], sum);
    return f_activate(sum, activation);
}

// f_silu of N numbers, without a branch between one and the next: its division has one, behind which others wait.
template <int N> DEVICE void conv_silus(float *x)
{
#if defined(__CUDA_ARCH__)
    float below[N], most = 0, least = 1;
#pragma unroll
    for (int i = 0; i < N; i++) {
        below[i] = __fadd_rn(1.0f, expf(-x[i]));
        most = fmaxf(most, fmaxf(below[i], x[i]));
        least = fminf(least, fabsf(x[i]));
    }
    if (most < 0x1p60f && least > 0x1p-60f) { // nothing on the way is subnormal, and no number is none
#pragma unroll
        for (int i = 0; i < N; i++) {
            float r, y;
            asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(below[i]));
            r = fmaf(fmaf(-below[i], r, 1.0f), r, r);
            y = f_mul(x[i], r);
            y = fmaf(fmaf(-below[i], y, x[i]), r, y);
            x[i] = fmaf(fmaf(-below[i], y, x[i]), r, y); // the nearest number to x / below
        }
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = f_silu(x[i]);
}

#endif
