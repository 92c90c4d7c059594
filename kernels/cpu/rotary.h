// SPDX-License-Identifier: Apache-2.0
//
// Rotary embedding of the first dims of a head, pairs (i, i + rotary/2).
//
// Invariant: an angle is the fp32 product of position and inverse frequency; its cosine and sine are the double ones, rounded.

#ifndef ROTARY_H
#define ROTARY_H

#include <math.h>
#include <stdint.h>

// cosine, sine: [rotary/2]
static inline void rotary_angles(const float *inverse_frequency, int32_t rotary, int32_t position, float *cosine,
                                 float *sine)
{
    for (int32_t i = 0; i < rotary / 2; i++) {
        float angle = (float)position * inverse_frequency[i];
        cosine[i] = (float)cos((double)angle);
        sine[i] = (float)sin((double)angle);
    }
}

static inline void rotary_apply(float *y, int32_t rotary, const float *cosine, const float *sine)
{
    const int32_t half = rotary / 2;
    for (int32_t i = 0; i < half; i++) {
        float low = y[i], high = y[i + half];
        y[i] = low * cosine[i] - high * sine[i];
        y[i + half] = high * cosine[i] + low * sine[i];
    }
}

#endif
