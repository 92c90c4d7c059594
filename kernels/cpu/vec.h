// SPDX-License-Identifier: Apache-2.0
//
// Sixteen lanes of fp32 on AVX-512, AVX2 or portable C, and the elementary functions of the activations.
//
// Invariant: a lane's result depends on that lane's operands only, never on its place in the vector; the scalar forms (f_*)
// run the same steps, so that an element has the same bits in the middle of a row and at its ragged end. Different builds
// need not agree: vf_fma is one rounding where the instruction set has it and two in the portable build.

#ifndef VEC_H
#define VEC_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define VEC_INLINE static inline __attribute__((always_inline, unused))

enum { VEC = 16 };

// ---- types and primitive operations -----------------------------------------------------------------------------------
//
// vf: fp32 lanes; vi: int32 lanes. vf_max(a, b) is a > b ? a : b and vf_min(a, b) is a < b ? a : b, so a NaN in b comes
// through and a NaN in a does not. vf_load_n reads n lanes (0..16) and zeros the rest; vf_store_n writes n lanes.
// vf_pick_gt(a, b, x, y) is a > b ? x : y a lane. vi_sra and vi_sll take a constant count.

#if defined(__AVX512F__)

typedef __m512 vf;
typedef __m512i vi;

VEC_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
VEC_INLINE void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
VEC_INLINE vf vf_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
}
VEC_INLINE void vf_store_n(float *p, vf a, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), a);
}
VEC_INLINE vf vf_set1(float a)
{
    return _mm512_set1_ps(a);
}
VEC_INLINE float vf_first(vf a)
{
    return _mm512_cvtss_f32(a);
}
VEC_INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
VEC_INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
VEC_INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
VEC_INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
VEC_INLINE vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}
VEC_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
VEC_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
VEC_INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
VEC_INLINE vf vf_pick_gt(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}
VEC_INLINE vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
VEC_INLINE void vi_store(void *p, vi a)
{
    _mm512_storeu_si512(p, a);
}
VEC_INLINE vi vi_set1(int32_t a)
{
    return _mm512_set1_epi32(a);
}
VEC_INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
VEC_INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
VEC_INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
VEC_INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
#define vi_sll(a, n) _mm512_slli_epi32(a, (unsigned)(n))
#define vi_srl(a, n) _mm512_srli_epi32(a, (unsigned)(n))
#define vi_sra(a, n) _mm512_srai_epi32(a, (unsigned)(n))
VEC_INLINE vf vf_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}
VEC_INLINE vi vi_bits(vf a)
{
    return _mm512_castps_si512(a);
}
// int32 to the nearest fp32
VEC_INLINE vf vf_from_int(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
// 16 unsigned 16-bit numbers, zero extended
VEC_INLINE vi vi_load_u16(const uint16_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}
// 16 bytes, zero extended
VEC_INLINE vi vi_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

#elif defined(__AVX2__)

typedef struct {
    __m256 q[2];
} vf;
typedef struct {
    __m256i q[2];
} vi;

#define VEC_EACH(a, b)                                                                                                 \
    {                                                                                                                  \
        {                                                                                                              \
            (a), (b)                                                                                                   \
        }                                                                                                              \
    }

VEC_INLINE vf vf_load(const float *p)
{
    return (vf)VEC_EACH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
VEC_INLINE void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a.q[0]);
    _mm256_storeu_ps(p + 8, a.q[1]);
}
VEC_INLINE vf vf_set1(float a)
{
    return (vf)VEC_EACH(_mm256_set1_ps(a), _mm256_set1_ps(a));
}
VEC_INLINE float vf_first(vf a)
{
    return _mm256_cvtss_f32(a.q[0]);
}
VEC_INLINE vf vf_add(vf a, vf b)
{
    return (vf)VEC_EACH(_mm256_add_ps(a.q[0], b.q[0]), _mm256_add_ps(a.q[1], b.q[1]));
}
VEC_INLINE vf vf_sub(vf a, vf b)
{
    return (vf)VEC_EACH(_mm256_sub_ps(a.q[0], b.q[0]), _mm256_sub_ps(a.q[1], b.q[1]));
}
VEC_INLINE vf vf_mul(vf a, vf b)
{
    return (vf)VEC_EACH(_mm256_mul_ps(a.q[0], b.q[0]), _mm256_mul_ps(a.q[1], b.q[1]));
}
VEC_INLINE vf vf_div(vf a, vf b)
{
    return (vf)VEC_EACH(_mm256_div_ps(a.q[0], b.q[0]), _mm256_div_ps(a.q[1], b.q[1]));
}
VEC_INLINE vf vf_sqrt(vf a)
{
    return (vf)VEC_EACH(_mm256_sqrt_ps(a.q[0]), _mm256_sqrt_ps(a.q[1]));
}
VEC_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return (vf)VEC_EACH(_mm256_fmadd_ps(a.q[0], b.q[0], c.q[0]), _mm256_fmadd_ps(a.q[1], b.q[1], c.q[1]));
}
VEC_INLINE vf vf_max(vf a, vf b)
{
    return (vf)VEC_EACH(_mm256_max_ps(a.q[0], b.q[0]), _mm256_max_ps(a.q[1], b.q[1]));
}
VEC_INLINE vf vf_min(vf a, vf b)
{
    return (vf)VEC_EACH(_mm256_min_ps(a.q[0], b.q[0]), _mm256_min_ps(a.q[1], b.q[1]));
}
VEC_INLINE vf vf_pick_gt(vf a, vf b, vf x, vf y)
{
    return (vf)VEC_EACH(_mm256_blendv_ps(y.q[0], x.q[0], _mm256_cmp_ps(a.q[0], b.q[0], _CMP_GT_OQ)),
                        _mm256_blendv_ps(y.q[1], x.q[1], _mm256_cmp_ps(a.q[1], b.q[1], _CMP_GT_OQ)));
}
VEC_INLINE vi vi_load(const void *p)
{
    return (vi)VEC_EACH(_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1));
}
VEC_INLINE void vi_store(void *p, vi a)
{
    _mm256_storeu_si256((__m256i *)p, a.q[0]);
    _mm256_storeu_si256((__m256i *)p + 1, a.q[1]);
}
VEC_INLINE vi vi_set1(int32_t a)
{
    return (vi)VEC_EACH(_mm256_set1_epi32(a), _mm256_set1_epi32(a));
}
VEC_INLINE vi vi_add(vi a, vi b)
{
    return (vi)VEC_EACH(_mm256_add_epi32(a.q[0], b.q[0]), _mm256_add_epi32(a.q[1], b.q[1]));
}
VEC_INLINE vi vi_sub(vi a, vi b)
{
    return (vi)VEC_EACH(_mm256_sub_epi32(a.q[0], b.q[0]), _mm256_sub_epi32(a.q[1], b.q[1]));
}
VEC_INLINE vi vi_and(vi a, vi b)
{
    return (vi)VEC_EACH(_mm256_and_si256(a.q[0], b.q[0]), _mm256_and_si256(a.q[1], b.q[1]));
}
VEC_INLINE vi vi_or(vi a, vi b)
{
    return (vi)VEC_EACH(_mm256_or_si256(a.q[0], b.q[0]), _mm256_or_si256(a.q[1], b.q[1]));
}
VEC_INLINE vi vi_sll(vi a, int n)
{
    return (vi)VEC_EACH(_mm256_slli_epi32(a.q[0], n), _mm256_slli_epi32(a.q[1], n));
}
VEC_INLINE vi vi_srl(vi a, int n)
{
    return (vi)VEC_EACH(_mm256_srli_epi32(a.q[0], n), _mm256_srli_epi32(a.q[1], n));
}
VEC_INLINE vi vi_sra(vi a, int n)
{
    return (vi)VEC_EACH(_mm256_srai_epi32(a.q[0], n), _mm256_srai_epi32(a.q[1], n));
}
VEC_INLINE vf vf_bits(vi a)
{
    return (vf)VEC_EACH(_mm256_castsi256_ps(a.q[0]), _mm256_castsi256_ps(a.q[1]));
}
VEC_INLINE vi vi_bits(vf a)
{
    return (vi)VEC_EACH(_mm256_castps_si256(a.q[0]), _mm256_castps_si256(a.q[1]));
}
VEC_INLINE vf vf_from_int(vi a)
{
    return (vf)VEC_EACH(_mm256_cvtepi32_ps(a.q[0]), _mm256_cvtepi32_ps(a.q[1]));
}
VEC_INLINE vi vi_load_u16(const uint16_t *p)
{
    return (vi)VEC_EACH(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)),
                        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + 1)));
}
VEC_INLINE vi vi_load_u8(const uint8_t *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    return (vi)VEC_EACH(_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)));
}

#else

typedef float vf_4 __attribute__((vector_size(16)));
typedef int32_t vi_4 __attribute__((vector_size(16)));
typedef uint32_t vu_4 __attribute__((vector_size(16)));
typedef struct {
    vf_4 q[4];
} vf;
typedef struct {
    vi_4 q[4];
} vi;

#define VEC_BINARY(type, name, expression)                                                                             \
    VEC_INLINE type name(type a, type b)                                                                               \
    {                                                                                                                  \
        for (int i = 0; i < 4; i++)                                                                                    \
            a.q[i] = expression;                                                                                       \
        return a;                                                                                                      \
    }

VEC_INLINE vf_4 vf_pick_4(vi_4 mask, vf_4 x, vf_4 y)
{
    return (vf_4)((mask & (vi_4)x) | (~mask & (vi_4)y));
}
VEC_BINARY(vf, vf_add, a.q[i] + b.q[i])
VEC_BINARY(vf, vf_sub, a.q[i] - b.q[i])
VEC_BINARY(vf, vf_mul, a.q[i] * b.q[i])
VEC_BINARY(vf, vf_div, a.q[i] / b.q[i])
VEC_BINARY(vf, vf_max, vf_pick_4(a.q[i] > b.q[i], a.q[i], b.q[i]))
VEC_BINARY(vf, vf_min, vf_pick_4(a.q[i] < b.q[i], a.q[i], b.q[i]))
VEC_BINARY(vi, vi_add, a.q[i] + b.q[i])
VEC_BINARY(vi, vi_sub, a.q[i] - b.q[i])
VEC_BINARY(vi, vi_and, a.q[i] & b.q[i])
VEC_BINARY(vi, vi_or, a.q[i] | b.q[i])
#undef VEC_BINARY

VEC_INLINE vf vf_load(const float *p)
{
    vf r;
    memcpy(&r, p, sizeof r);
    return r;
}
VEC_INLINE void vf_store(float *p, vf a)
{
    memcpy(p, &a, sizeof a);
}
VEC_INLINE vf vf_set1(float a)
{
    vf_4 v = {a, a, a, a};
    return (vf){{v, v, v, v}};
}
VEC_INLINE float vf_first(vf a)
{
    return a.q[0][0];
}
VEC_INLINE vf vf_fma(vf a, vf b, vf c)
{
    for (int i = 0; i < 4; i++)
        a.q[i] = a.q[i] * b.q[i] + c.q[i];
    return a;
}
VEC_INLINE vf vf_sqrt(vf a)
{
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            a.q[i][j] = __builtin_sqrtf(a.q[i][j]);
    return a;
}
VEC_INLINE vf vf_pick_gt(vf a, vf b, vf x, vf y)
{
    for (int i = 0; i < 4; i++)
        a.q[i] = vf_pick_4(a.q[i] > b.q[i], x.q[i], y.q[i]);
    return a;
}
VEC_INLINE vi vi_load(const void *p)
{
    vi r;
    memcpy(&r, p, sizeof r);
    return r;
}
VEC_INLINE void vi_store(void *p, vi a)
{
    memcpy(p, &a, sizeof a);
}
VEC_INLINE vi vi_set1(int32_t a)
{
    vi_4 v = {a, a, a, a};
    return (vi){{v, v, v, v}};
}
VEC_INLINE vi vi_sll(vi a, int n)
{
    for (int i = 0; i < 4; i++)
        a.q[i] = (vi_4)((vu_4)a.q[i] << (uint32_t)n);
    return a;
}
VEC_INLINE vi vi_srl(vi a, int n)
{
    for (int i = 0; i < 4; i++)
        a.q[i] = (vi_4)((vu_4)a.q[i] >> (uint32_t)n);
    return a;
}
VEC_INLINE vi vi_sra(vi a, int n)
{
    for (int i = 0; i < 4; i++)
        a.q[i] = a.q[i] >> n;
    return a;
}
VEC_INLINE vf vf_bits(vi a)
{
    return (vf){{(vf_4)a.q[0], (vf_4)a.q[1], (vf_4)a.q[2], (vf_4)a.q[3]}};
}
VEC_INLINE vi vi_bits(vf a)
{
    return (vi){{(vi_4)a.q[0], (vi_4)a.q[1], (vi_4)a.q[2], (vi_4)a.q[3]}};
}
VEC_INLINE vf vf_from_int(vi a)
{
    vf r;
    for (int i = 0; i < 4; i++)
        r.q[i] = __builtin_convertvector(a.q[i], vf_4);
    return r;
}
VEC_INLINE vi vi_load_u16(const uint16_t *p)
{
    vi r;
    for (int i = 0; i < 16; i++)
        r.q[i / 4][i % 4] = p[i];
    return r;
}
VEC_INLINE vi vi_load_u8(const uint8_t *p)
{
    vi r;
    for (int i = 0; i < 16; i++)
        r.q[i / 4][i % 4] = p[i];
    return r;
}

#endif

#if !defined(__AVX512F__)
VEC_INLINE vf vf_load_n(const float *p, int n)
{
    float t[VEC] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return vf_load(t);
}
VEC_INLINE void vf_store_n(float *p, vf a, int n)
{
    float t[VEC];
    vf_store(t, a);
    memcpy(p, t, (size_t)n * sizeof *p);
}
#endif

VEC_INLINE vf vf_zero(void)
{
    return vf_set1(0.0f);
}

// The scalar form of vf_fma, with the same rounding.
VEC_INLINE float f_fma(float a, float b, float c)
{
#if defined(__FMA__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// ---- horizontal --------------------------------------------------------------------------------------------------------
//
// A fixed tree on every build: lane i with lane i + 8, then i + 4, i + 2, i + 1.

VEC_INLINE float vf_sum(vf a)
{
    float t[VEC];
    vf_store(t, a);
    for (int half = VEC / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            t[i] = t[i] + t[i + half];
    return t[0];
}
VEC_INLINE float vf_top(vf a)
{
    float t[VEC];
    vf_store(t, a);
    for (int half = VEC / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            t[i] = t[i] > t[i + half] ? t[i] : t[i + half];
    return t[0];
}

// ---- bf16 ----------------------------------------------------------------------------------------------------------------

VEC_INLINE float f_bf16(uint16_t a)
{
    uint32_t bits = (uint32_t)a << 16;
    float r;
    memcpy(&r, &bits, sizeof r);
    return r;
}
// To the nearest bf16, ties to even; a NaN stays a NaN.
VEC_INLINE uint16_t bf16_f(float a)
{
    uint32_t bits;
    memcpy(&bits, &a, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
VEC_INLINE vf vf_load_bf16(const uint16_t *p)
{
    return vf_bits(vi_sll(vi_load_u16(p), 16));
}

// ---- elementary functions ---------------------------------------------------------------------------------------------

// exp(x): about 1 ulp; 0 far below, infinity far above, NaN for NaN.
VEC_INLINE vf vf_exp(vf x)
{
    const vf magic = vf_set1(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer
    x = vf_min(vf_set1(89.0f), vf_max(vf_set1(-104.0f), x));
    vf t = vf_fma(x, vf_set1(1.44269504f), magic);
    vi n = vi_sub(vi_bits(t), vi_bits(magic));
    vf k = vf_sub(t, magic);
    vf r = vf_fma(k, vf_set1(-0.693359375f), x);
    r = vf_fma(k, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
    // 2^n in two factors, so that both ends of the range come out right
    vi half = vi_sra(n, 1);
    vf a = vf_bits(vi_sll(vi_add(half, vi_set1(127)), 23));
    vf b = vf_bits(vi_sll(vi_add(vi_sub(n, half), vi_set1(127)), 23));
    return vf_mul(vf_mul(p, a), b);
}

// Natural logarithm of a positive normal number.
VEC_INLINE vf vf_log(vf x)
{
    vi bits = vi_bits(x);
    // mantissa in [sqrt(1/2), sqrt(2))
    vi shifted = vi_sub(bits, vi_set1(0x3f3504f3));
    vf e = vf_from_int(vi_sra(shifted, 23));
    vf m = vf_bits(vi_add(vi_and(shifted, vi_set1(0x007fffff)), vi_set1(0x3f3504f3)));
    vf f = vf_sub(m, vf_set1(1.0f));
    vf z = vf_mul(f, f);
    vf p = vf_set1(7.0376836292e-2f);
    p = vf_fma(p, f, vf_set1(-1.1514610310e-1f));
    p = vf_fma(p, f, vf_set1(1.1676998740e-1f));
    p = vf_fma(p, f, vf_set1(-1.2420140846e-1f));
    p = vf_fma(p, f, vf_set1(1.4249322787e-1f));
    p = vf_fma(p, f, vf_set1(-1.6668057665e-1f));
    p = vf_fma(p, f, vf_set1(2.0000714765e-1f));
    p = vf_fma(p, f, vf_set1(-2.4999993993e-1f));
    p = vf_fma(p, f, vf_set1(3.3333331174e-1f));
    vf y = vf_mul(vf_mul(f, z), p);
    y = vf_fma(e, vf_set1(-2.12194440e-4f), y);
    y = vf_fma(z, vf_set1(-0.5f), y);
    return vf_fma(e, vf_set1(0.693359375f), vf_add(f, y));
}

VEC_INLINE vf vf_sigmoid(vf x)
{
    const vf one = vf_set1(1.0f);
    return vf_div(one, vf_add(one, vf_exp(vf_sub(vf_zero(), x))));
}
VEC_INLINE vf vf_silu(vf x)
{
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}
// log(1 + exp(x)), and x itself above 20.
VEC_INLINE vf vf_softplus(vf x)
{
    const vf one = vf_set1(1.0f);
    vf e = vf_exp(vf_min(vf_set1(21.0f), x));
    vf u = vf_add(one, e);
    // log(1 + e) = log(u) * e / (u - 1) takes back the rounding of u
    vf d = vf_sub(u, one);
    vf y = vf_pick_gt(d, vf_zero(), vf_div(vf_mul(vf_log(u), e), vf_max(d, vf_set1(1e-30f))), e);
    return vf_pick_gt(x, vf_set1(20.0f), x, y);
}
VEC_INLINE vf vf_relu2(vf x)
{
    vf p = vf_max(vf_zero(), x);
    return vf_mul(p, p);
}

VEC_INLINE float f_exp(float x)
{
    return vf_first(vf_exp(vf_set1(x)));
}
VEC_INLINE float f_log(float x)
{
    return vf_first(vf_log(vf_set1(x)));
}
VEC_INLINE float f_sigmoid(float x)
{
    return vf_first(vf_sigmoid(vf_set1(x)));
}
VEC_INLINE float f_silu(float x)
{
    return vf_first(vf_silu(vf_set1(x)));
}
VEC_INLINE float f_softplus(float x)
{
    return vf_first(vf_softplus(vf_set1(x)));
}

#endif
