// SPDX-License-Identifier: Apache-2.0
//
// One output of the causal depthwise convolution.
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

#endif
