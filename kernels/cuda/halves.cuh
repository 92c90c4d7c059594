// SPDX-License-Identifier: Apache-2.0
//
// Rows of x as two f16 halves, for codes that f16 holds (E4M3): decode class.
//
// Two neighbouring codes are two f16 numbers by one conversion, where the card has it. A group of 64 numbers of a row (of 32 where k is no
// multiple of 64) is multiplied by a power of two, so that the largest magnitude is in [2^14, 2^15); of each number the high half is the
// nearest f16, the low one the nearest of what is left. So v * 2^s is held to 2^-22 of itself or to 2^-25, whichever is more. The 16x8x16
// product has both halves of a row as neighbouring columns, so four rows are one product and both sums of an output lie in one lane:
// scale * ((high + low) 2^-s) is added in fp32 for each block of 32.
//
// Invariant: what a group of a row is depends on its numbers and k alone.

#ifndef HALVES_CUH
#define HALVES_CUH

#include "kernels/cuda/integer.cuh"

// Eight numbers of a group that LANES neighbouring lanes have together, four a block: their halves, those of the lane's last four before
// those of its first where `crossed`; and the group's 2^-s. A group that is not finite has a factor that is no number, so its products are
// none either.
template <int LANES>
__device__ __forceinline__ void half_eight(const float *v, bool crossed, uint4 *high, uint4 *low, float *factor)
{
    const uint32_t most = group_most<LANES>(v), e = most >> 23 < 15 ? 15 : most >> 23;
    const float up = bits_float((268 - e) << 23);
    uint32_t h[4], d[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float a = v[2 * i] * up, b = v[2 * i + 1] * up;
        h[i] = half_pack(a, b);
        d[i] = half_pack(a - half_float(h[i] & 0xffffu), b - half_float(h[i] >> 16));
    }
    *high = crossed ? make_uint4(h[2], h[3], h[0], h[1]) : make_uint4(h[0], h[1], h[2], h[3]);
    *low = crossed ? make_uint4(d[2], d[3], d[0], d[1]) : make_uint4(d[0], d[1], d[2], d[3]);
    *factor = bits_float(most < 0x7f800000u ? (e - 14) << 23 : 0x7fffffffu);
}

// A lane's part of GRAIN blocks of one scale: codes, its columns' halves, and its rows' factors.
template <class CODE, int GRAIN, int ROWS> struct half_operands {
    CODE code[GRAIN];
    uint4 x[ROWS][GRAIN];
    float factor[ROWS];

    // The lane's part of the column at x of block i, which was crossed when it was written.
    __device__ __forceinline__ void column(int h, int i, const unsigned char *at, int l)
    {
        static_assert(CODE::CROSSED, "halves of x are written for codes that are crossed");
        x[h][i] = *(const uint4 *)(at + l * 16);
    }
    // Two blocks of a group have the same.
    __device__ __forceinline__ void factors(int h, const float2 &one, const float2 &)
    {
        factor[h] = one.x;
    }
};

// sums[h] of the lane's four outputs and row h += the products.
template <class CODE, int GRAIN, int ROWS>
__device__ __forceinline__ void group_add(const half_operands<CODE, GRAIN, ROWS> &v, int, float sums[ROWS][4])
{
    float d[ROWS][8];
#pragma unroll
    for (int h = 0; h < ROWS; h++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            d[h][i] = 0;
#pragma unroll
    for (int b = 0; b < GRAIN; b++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int t = 0; t < 2;
                 t++) { // a word has k and k + 1 of outputs 2 t and 2 t + 1, that two on k + 2 and k + 3
                uint32_t a[4];
                half_codes(word(v.code[b].q.v[j], t), a, a + 1);
                half_codes(word(v.code[b].q.v[j], 2 + t), a + 2, a + 3);
#pragma unroll
                for (int h = 0; h < ROWS; h++)
                    mma_half(d[h] + 4 * t, a, word(v.x[h][b], 2 * j), word(v.x[h][b], 2 * j + 1));
            }
#pragma unroll
    for (int o = 0; o < 4; o++) {
        float scale = 1, none;
        if (CODE::SCALED)
            v.code[0].outcome(o, &scale, &none);
#pragma unroll
        for (int h = 0; h < ROWS; h++) {
            const float both = d[h][2 * o] + d[h][2 * o + 1];
            sums[h][o] =
                CODE::SCALED ? fmaf(scale, both * v.factor[h], sums[h][o]) : fmaf(both, v.factor[h], sums[h][o]);
        }
    }
}

// The operands of CODE.
template <class CODE, int GRAIN, int ROWS, int KIND> struct operands_by_kind {
    typedef integer_operands<CODE, GRAIN, ROWS> type;
};
template <class CODE, int GRAIN, int ROWS> struct operands_by_kind<CODE, GRAIN, ROWS, X_HALVES> {
    typedef half_operands<CODE, GRAIN, ROWS> type;
};
template <class CODE, int GRAIN, int ROWS>
using group_operands = typename operands_by_kind<CODE, GRAIN, ROWS, x_of<CODE>::KIND>::type;

#endif
