// SPDX-License-Identifier: Apache-2.0
//
// A 16x16 transposition of fp32. Moves only, so there is nothing to agree on between instruction sets.

#ifndef TRANSPOSE_H
#define TRANSPOSE_H

#include "kernels/cpu/vec.h"

// to[c * 16 + r] = from[r * ld + c] for r, c < 16.
#if defined(__AVX512F__)

VEC_INLINE void transpose_16(float *to, const float *from, int64_t ld)
{
    __m512 t[16], u[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        __m512 a = _mm512_loadu_ps(from + 2 * i * ld), b = _mm512_loadu_ps(from + (2 * i + 1) * ld);
        t[2 * i] = _mm512_unpacklo_ps(a, b);
        t[2 * i + 1] = _mm512_unpackhi_ps(a, b);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
        __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
        u[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        u[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        u[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        u[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512 a = _mm512_shuffle_f32x4(u[j], u[4 + j], 0x88), b = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0x88);
        __m512 c = _mm512_shuffle_f32x4(u[j], u[4 + j], 0xdd), d = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0xdd);
        _mm512_storeu_ps(to + j * 16, _mm512_shuffle_f32x4(a, b, 0x88));
        _mm512_storeu_ps(to + (4 + j) * 16, _mm512_shuffle_f32x4(c, d, 0x88));
        _mm512_storeu_ps(to + (8 + j) * 16, _mm512_shuffle_f32x4(a, b, 0xdd));
        _mm512_storeu_ps(to + (12 + j) * 16, _mm512_shuffle_f32x4(c, d, 0xdd));
    }
}

#elif defined(__AVX2__)

VEC_INLINE void transpose_8(float *to, const float *from, int64_t ld)
{
    __m256 t[8], u[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256 a = _mm256_loadu_ps(from + 2 * i * ld), b = _mm256_loadu_ps(from + (2 * i + 1) * ld);
        t[2 * i] = _mm256_unpacklo_ps(a, b);
        t[2 * i + 1] = _mm256_unpackhi_ps(a, b);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        _mm256_storeu_ps(to + j * 16, _mm256_permute2f128_ps(u[j], u[4 + j], 0x20));
        _mm256_storeu_ps(to + (4 + j) * 16, _mm256_permute2f128_ps(u[j], u[4 + j], 0x31));
    }
}

VEC_INLINE void transpose_16(float *to, const float *from, int64_t ld)
{
    transpose_8(to, from, ld);
    transpose_8(to + 8, from + 8 * ld, ld);
    transpose_8(to + 8 * 16, from + 8, ld);
    transpose_8(to + 8 * 16 + 8, from + 8 * ld + 8, ld);
}

#else

VEC_INLINE void transpose_16(float *to, const float *from, int64_t ld)
{
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++)
            to[c * 16 + r] = from[r * ld + c];
}

#endif

#endif
