// SPDX-License-Identifier: Apache-2.0
//
// Rotary embedding of the first dims of a head, pairs (i, i + rotary/2), by one warp.
//
// Invariant: an angle is the fp32 product of position and inverse frequency; it is brought into a quarter turn in double, so
// that positions far out lose nothing, and its cosine and sine are polynomials there.

#ifndef CUDA_ROTARY_CUH
#define CUDA_ROTARY_CUH

#include "kernels/cuda/vec.cuh"

// Cosine and sine of an angle of magnitude below 2^30.
DEVICE void angle_turn(float angle, float *cosine, float *sine)
{
    const double turns = rint(__dmul_rn((double)angle, 0.63661977236758134));
    const float r = (float)fma(turns, -6.123233995736766e-17, fma(turns, -1.5707963267948966, (double)angle));
    const float z = f_mul(r, r);
    float s = fmaf(z, 2.718311493989822e-6f, -1.9839334836096632e-4f);
    s = fmaf(s, z, 8.333329385889463e-3f);
    s = fmaf(s, z, -1.6666666641626524e-1f);
    s = fmaf(f_mul(s, z), r, r);
    float c = fmaf(z, 2.439044879627741e-5f, -1.388676377460993e-3f);
    c = fmaf(c, z, 4.166664568298827e-2f);
    c = fmaf(c, f_mul(z, z), fmaf(z, -0.5f, 1.0f));
    const int quarter = (int)turns & 3;
    const float x = quarter & 1 ? s : c, y = quarter & 1 ? c : s;
    *cosine = quarter == 1 || quarter == 2 ? -x : x;
    *sine = quarter >= 2 ? -y : y;
}

// Rotates `row` in shared memory. Each lane takes pairs lane, lane + 32, ...; the caller keeps lanes in step around it.
// first: the frequency of the lane's first pair, if it has one.
DEVICE void rotary_row(float *row, int32_t rotary, const float *inverse_frequency, float first, int32_t position,
                       int32_t lane)
{
    const int32_t half = rotary / 2;
#pragma unroll 1
    for (int32_t i = lane; i < half; i += WARP) {
        float cosine, sine;
        angle_turn(f_mul((float)position, i == lane ? first : inverse_frequency[i]), &cosine, &sine);
        const float low = row[i], high = row[i + half];
        row[i] = fmaf(low, cosine, -f_mul(high, sine));
        row[i + half] = fmaf(high, cosine, f_mul(low, sine));
    }
}

#endif
