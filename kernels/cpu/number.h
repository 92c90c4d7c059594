// SPDX-License-Identifier: Apache-2.0
//
// Published number formats to fp32, one at a time; memory need not be aligned.
// Invariant: every conversion is exact.

#ifndef NUMBER_H
#define NUMBER_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/layout.h"

static inline uint32_t number_u32(const void *p, int64_t i)
{
    uint32_t u;
    memcpy(&u, (const uint8_t *)p + i * 4, 4);
    return u;
}
static inline uint16_t number_u16(const void *p, int64_t i)
{
    uint16_t u;
    memcpy(&u, (const uint8_t *)p + i * 2, 2);
    return u;
}
static inline float number_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline float number_bf16(uint16_t u)
{
    return number_bits((uint32_t)u << 16);
}
static inline float number_f16(uint16_t u)
{
    uint32_t sign = (uint32_t)(u & 0x8000) << 16, exponent = (u >> 10) & 31, mantissa = u & 1023;
    if (exponent == 31)
        return number_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) {
        float f = (float)mantissa * 0x1p-24f;
        return sign ? -f : f;
    }
    return number_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}
static inline float number_e4m3(uint8_t u)
{
    uint32_t sign = (uint32_t)(u & 0x80) << 24, exponent = (u >> 3) & 15, mantissa = u & 7;
    if ((u & 0x7f) == 0x7f)
        return number_bits(0x7fc00000u);
    if (exponent == 0) {
        float f = (float)mantissa * 0x1p-9f;
        return sign ? -f : f;
    }
    return number_bits(sign | (exponent + 120) << 23 | mantissa << 20);
}
static inline float number_e2m1(uint32_t u)
{
    static const float value[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return u & 8 ? -value[u & 7] : value[u & 7];
}
// Number i of an array of the type; NaN for a type that has no number.
static inline float number_float(int32_t type, const void *p, int64_t i)
{
    switch (type) {
    case NUMBER_F32:
        return number_bits(number_u32(p, i));
    case NUMBER_BF16:
        return number_bf16(number_u16(p, i));
    case NUMBER_F16:
        return number_f16(number_u16(p, i));
    case NUMBER_E4M3:
        return number_e4m3(((const uint8_t *)p)[i]);
    default:
        return number_bits(0x7fc00000u);
    }
}

// Bytes of the scales of one panel.
static inline int64_t panel_scale_size(const struct weight *w)
{
    int64_t k = round_up(w->k, PANEL_BLOCK);
    switch (w->encoding) {
    case ENC_AFFINE:
    case ENC_INT4:
        return round_up(w->k, w->group) / w->group * 64;
    case ENC_NVFP4:
        return k;
    case ENC_MXFP8:
        return k / 2;
    case ENC_FP8_BLOCK:
        return round_up(k, 128) / 128 * 4;
    default:
        return 0;
    }
}

#endif
