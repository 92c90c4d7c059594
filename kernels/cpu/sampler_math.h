// SPDX-License-Identifier: Apache-2.0
//
// The numbers that a keyed draw stands on: order keys, hashes, integer weights, noise. For C and for CUDA.
//
// Invariant: every function gives the same bits on every target: integers, and scalar double steps each rounded once.

#ifndef SAMPLER_MATH_H
#define SAMPLER_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SAMPLER_FUNCTION static inline __host__ __device__
#else
#define SAMPLER_FUNCTION static inline
#endif

// a * b as a step of its own: a compiler that fuses multiply and add must not take it in.
SAMPLER_FUNCTION double sampler_times(double a, double b)
{
#ifdef __CUDA_ARCH__
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}

// Order of floats as order of integers: -0 equals 0, NaN is below everything.
SAMPLER_FUNCTION uint32_t sampler_key(float value)
{
    if (value != value)
        return 0;
    value += 0.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

SAMPLER_FUNCTION uint64_t sampler_mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// exp(x) for x <= 0; 0 below -700.
SAMPLER_FUNCTION double sampler_exp(double x)
{
    if (!(x >= -700.0))
        return 0.0;
    double k = (double)(int32_t)(sampler_times(x, 1.4426950408889634) - 0.5); // to the nearest, since x <= 0
    double r = (x - sampler_times(k, 0x1.62e42fee00000p-1)) - sampler_times(k, 0x1.a39ef35793c76p-33);
    static const double c[] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
                               1.0 / 120,      1.0 / 24,      1.0 / 6,      1.0 / 2,     1.0,        1.0};
    double y = 1.0 / 479001600;
    for (int i = 0; i < 12; i++)
        y = sampler_times(y, r) + c[i];
    uint64_t power = (uint64_t)((int64_t)k + 1023) << 52; // 2^k is a normal number
    double scale;
    memcpy(&scale, &power, sizeof scale);
    return y * scale;
}

// log(x) for normal x > 0, with a small relative error next to 1 as well.
SAMPLER_FUNCTION double sampler_log(double x)
{
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    double s = (m - 1.0) / (m + 1.0), q = s * s, y = 0.0;
    for (int i = 21; i >= 1; i -= 2)
        y = sampler_times(y, q) + 1.0 / i;
    return sampler_times(e, 0.69314718055994531) + sampler_times(2.0 * s, y);
}

// The float of a key; a NaN for key 0.
SAMPLER_FUNCTION float sampler_value(uint32_t key)
{
    uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Bits of a key that level 0, 1, 2 of a radix descent looks at, and the prefix above them.
SAMPLER_FUNCTION uint32_t sampler_digit(uint32_t key, int level)
{
    return level == 0 ? key >> 21 : level == 1 ? (key >> 10) & 2047 : key & 1023;
}

SAMPLER_FUNCTION uint32_t sampler_prefix(uint32_t key, int level)
{
    return level == 0 ? 0 : level == 1 ? key >> 21 : key >> 10;
}

// The weight of a token in integers: 2^44 for the highest logit, so that any vocabulary sums exactly.
SAMPLER_FUNCTION uint64_t sampler_weight(float logit, float top, double temperature)
{
    return (uint64_t)(sampler_exp(((double)logit - (double)top) / temperature) * 0x1p44);
}

// The logarithm of a sum of weights at temperature 1, for sampler_logprob.
SAMPLER_FUNCTION double sampler_whole(uint64_t sum)
{
    return sum ? sampler_log((double)sum * 0x1p-44) : 0.0;
}

SAMPLER_FUNCTION float sampler_logprob(float logit, float peak, double whole)
{
    const double x = ((double)logit - (double)peak) - whole;
    return x == x ? (float)x : -INFINITY;
}

// What a draw's noise is keyed by.
SAMPLER_FUNCTION uint64_t sampler_base(uint64_t seed, int64_t position)
{
    return sampler_mix(sampler_mix(seed) ^ (uint64_t)position * 0xD1342543DE82EF95u);
}

// 52 random bits of a token.
SAMPLER_FUNCTION uint64_t sampler_noise(uint64_t base, int32_t id)
{
    return sampler_mix(base + 0x9E3779B97F4A7C15u * ((uint64_t)id + 1)) >> 12;
}

// log(-log u) of the bits k, u = (k + 1/2) / 2^52: less the Gumbel noise.
SAMPLER_FUNCTION double sampler_gumbel_of(uint64_t k)
{
    return sampler_log(-sampler_log(((double)k + 0.5) * 0x1p-52));
}

// An upper bound of the noise without its logarithms: -log(-log u) <= -log(1 - u).
SAMPLER_FUNCTION double sampler_noise_bound(uint64_t k)
{
    uint64_t rest = ~k & 0xfffffffffffffu;
#ifdef __CUDA_ARCH__
    int bits = 64 - __clzll((long long)rest);
#else
    int bits = rest ? 64 - __builtin_clzll(rest) : 0;
#endif
    return (53 - bits) * 0.69314719 + 1e-9;
}

#endif
