// SPDX-License-Identifier: Apache-2.0
//
// Rows of x as integers, for codes that are integers themselves (affine, int4): decode class.
//
// A group of 64 numbers of a row (of 32 where k is no multiple of 64) is v * 2^e with 16-bit integers v, of which the largest has its leading bit in place 14 or 15; v
// is two digits of 8 bits, v = 256 high + low, both signed. The 16x8x32 product of bytes has the two digits of a row as neighbouring
// columns, so four rows are one product and the sums of both digits of an output lie in one lane. They are exact, and begin at
// INTEGER_MAGIC, the bits of a float whose last place is 1: so sums are floats without a conversion. Then scale * (sum of code * v) 2^e and
// bias * (sum of v) 2^e are added in fp32: for each block of 32, or, of weights whose own groups are 64 and more, for each two blocks.
//
// Invariant: what a group of a row is depends on its numbers and k alone, how it is added on the weight's own group.

#ifndef INTEGER_CUH
#define INTEGER_CUH

#include "kernels/cuda/x_form.cuh"

enum { INTEGER_MAGIC = 0x4b400000 }; // 1.5 * 2^23

// The bits of the largest magnitude of a group, or of no number: LANES neighbouring lanes have eight numbers of it each.
template <int LANES> __device__ __forceinline__ uint32_t group_most(const float *v)
{
    float largest = fabsf(v[0]);
#pragma unroll
    for (int i = 1; i < 8; i++)
        largest = max_nan(largest, fabsf(v[i]));
#pragma unroll
    for (int mask = 1; mask < LANES; mask *= 2)
        largest = max_nan(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
    return __float_as_uint(largest);
}

// Eight numbers of a group that LANES neighbouring lanes have together, four a block: their digits in the order of k; the group's 2^e
// and the block's (sum of v) 2^e. A group that is not finite has a factor that is no number, so its products are none either; nor may they be finite
// from 2^110 on, where a factor times the magic number has no place in fp32. Numbers under 2^-127 or so are zeros.
template <int LANES>
__device__ __forceinline__ void integer_eight(const float *v, uint2 *high, uint2 *low, float2 *factor)
{
    const uint32_t most = group_most<LANES>(v);
    uint32_t u[8], d[4], all = 0;
    uint32_t e = (most + 0x20000u) >> 23; // so that |v| < 2^15 - 128 rounds to two digits
    e = e < 15 ? 15 : e;
    const float down = bits_float((e - 14) << 23), up = bits_float((268 - e) << 23);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u[i] = __float_as_uint(fmaf(v[i], up, 12582912.0f));
        all += u[i];
    }
    int sum = (int)(all - 8u * (uint32_t)INTEGER_MAGIC);
#pragma unroll
    for (int i = 0; i < 4; i++)
        d[i] = __byte_perm(u[2 * i], u[2 * i + 1], 0x0040);
    *low = make_uint2(__byte_perm(d[0], d[1], 0x5410), __byte_perm(d[2], d[3], 0x5410));
#pragma unroll
    for (int i = 0; i < 4; i++)
        d[i] = __byte_perm(u[2 * i] + 128u, u[2 * i + 1] + 128u, 0x0051);
    *high = make_uint2(__byte_perm(d[0], d[1], 0x5410), __byte_perm(d[2], d[3], 0x5410));
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    *factor = most < 0x7f800000u ? make_float2(down, down * (float)sum)
                                 : make_float2(bits_float(0x7fffffffu), bits_float(0x7fffffffu));
}

// A lane's part of GRAIN blocks of one scale: codes, its columns' digits, and its rows' factors of all of them: their 2^e and sum.
template <class CODE, int GRAIN, int ROWS> struct integer_operands {
    CODE code[GRAIN];
    uint2 x[ROWS][GRAIN];
    float2 factor[ROWS];

    // The lane's part of the column at x of block i, in the order of its codes.
    __device__ __forceinline__ void column(int h, int i, const unsigned char *at, int l)
    {
        const uint2 v = *(const uint2 *)(at + l * 8);
        x[h][i] = CODE::CROSSED && l & 1 ? make_uint2(v.y, v.x) : v;
    }
    // Factors of two blocks, or of one twice: sums of v are exact, 2^e times small integers.
    __device__ __forceinline__ void factors(int h, const float2 &one, const float2 &other)
    {
        factor[h] = make_float2(one.x, GRAIN == 2 ? one.y + other.y : one.y);
    }
};

// sums[h] of the lane's four outputs and row h += the products.
template <class CODE, int GRAIN, int ROWS>
__device__ __forceinline__ void group_add(const integer_operands<CODE, GRAIN, ROWS> &v, int l, float sums[ROWS][4])
{
    int32_t d[ROWS][8];
#pragma unroll
    for (int b = 0; b < GRAIN; b++)
#pragma unroll
        for (int t = 0; t < 2; t++) {
            const uint32_t a[4] = {v.code[b].bytes(2 * t, 0, l), v.code[b].bytes(2 * t + 1, 0, l),
                                   v.code[b].bytes(2 * t, 1, l), v.code[b].bytes(2 * t + 1, 1, l)};
#pragma unroll
            for (int h = 0; h < ROWS; h++)
                if (b == 0)
                    mma_bytes_from<INTEGER_MAGIC>(d[h] + 4 * t, a, v.x[h][b].x, v.x[h][b].y);
                else
                    mma_bytes(d[h] + 4 * t, a, v.x[h][b].x, v.x[h][b].y);
        }
    float scale[4], bias[4];
#pragma unroll
    for (int o = 0; o < 4; o++)
        v.code[0].outcome_bytes(o, scale + o, bias + o);
#pragma unroll
    for (int h = 0; h < ROWS; h++) {
        // (magic + digits) * factor less what magic is too much: exact but for the last rounding
        const float low = v.factor[h].x * (1.0f / (float)(1 << CODE::BYTES_LEFT)), high = low * 256.0f,
                    less = low * (-257.0f * 12582912.0f);
#pragma unroll
        for (int o = 0; o < 4; o++) {
            const float sum =
                fmaf(bits_float((uint32_t)d[h][2 * o + 1]), low, fmaf(bits_float((uint32_t)d[h][2 * o]), high, less));
            sums[h][o] = fmaf(scale[o], sum, sums[h][o]);
            sums[h][o] = fmaf(bias[o], v.factor[h].y, sums[h][o]);
        }
    }
}

#endif
