// SPDX-License-Identifier: Apache-2.0
//
// One number of a table row in the row layout of kernels/cpu/layout.h.
// Invariant: the same value as row_decode of the CPU target, bit for bit: products and sums are rounded one by one.

#ifndef CUDA_ROWCODE_CUH
#define CUDA_ROWCODE_CUH

#include "kernels/cuda/vec.cuh"

DEVICE float rowcode_bf16(const uint8_t *p)
{
    return __uint_as_float((uint32_t)p[0] << 16 | (uint32_t)p[1] << 24);
}

DEVICE float rowcode_f16(const uint8_t *p)
{
    const uint32_t u = (uint32_t)p[0] | (uint32_t)p[1] << 8, sign = (u & 0x8000u) << 16, exponent = u >> 10 & 31u;
    const uint32_t mantissa = u & 1023u;
    if (exponent == 0)
        return __uint_as_float(__float_as_uint((float)mantissa * 0x1p-24f) | sign);
    return __uint_as_float(sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 | mantissa << 13);
}

DEVICE float rowcode_e4m3(uint32_t u)
{
    const uint32_t sign = (u & 0x80u) << 24, exponent = u >> 3 & 15u, mantissa = u & 7u;
    if (exponent == 0)
        return __uint_as_float(__float_as_uint((float)mantissa * 0x1p-9f) | sign);
    return __uint_as_float(sign | (exponent + 120) << 23 | mantissa << 20);
}

DEVICE float rowcode_e2m1(uint32_t u)
{
    // 0, 0.5, 1, 1.5, 2, 3, 4, 6 in halves
    const float magnitude = (float)(0xc8643210u >> (u & 7u) * 4 & 15u) * 0.5f;
    return u & 8u ? -magnitude : magnitude;
}

// `bits` bits of the stream from bit k * bits on.
DEVICE uint32_t rowcode_affine(const uint8_t *row, int32_t bits, int32_t k)
{
    const int32_t at = k * bits;
    uint32_t u = row[at / 8];
    if (at % 8 + bits > 8)
        u |= (uint32_t)row[at / 8 + 1] << 8;
    return u >> (at % 8) & ((1u << bits) - 1u);
}

// 2^(e - 127), e = 0 .. 254.
DEVICE float rowcode_e8m0(uint32_t e)
{
    return __uint_as_float(e ? e << 23 : 0x00400000u);
}

// Number i of a row of k.
DEVICE float rowcode_value(int32_t encoding, int32_t bits, int32_t group, int32_t k, const uint8_t *row, float factor,
                           int32_t i)
{
    switch (encoding) {
    case ENC_F32:
        return __uint_as_float((uint32_t)row[4 * i] | (uint32_t)row[4 * i + 1] << 8 | (uint32_t)row[4 * i + 2] << 16 |
                               (uint32_t)row[4 * i + 3] << 24);
    case ENC_BF16:
        return rowcode_bf16(row + 2 * i);
    case ENC_F16:
        return rowcode_f16(row + 2 * i);
    case ENC_AFFINE: {
        const uint8_t *scales = row + (int64_t)k * bits / 8;
        const float scale = rowcode_bf16(scales + 2 * (i / group)),
                    bias = rowcode_bf16(scales + 2 * (k / group + i / group));
        return f_mul(__fadd_rn(f_mul(scale, (float)rowcode_affine(row, bits, i)), bias), factor);
    }
    case ENC_NVFP4:
        return f_mul(f_mul(rowcode_e2m1((uint32_t)row[i / 2] >> (i % 2 * 4)), rowcode_e4m3(row[k / 2 + i / 16])),
                     factor);
    case ENC_MXFP8:
        return f_mul(f_mul(rowcode_e4m3(row[i]), rowcode_e8m0(row[k + i / 32])), factor);
    default:
        return f_mul(rowcode_e4m3(row[i]), factor);
    }
}

#endif
