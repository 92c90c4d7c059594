// SPDX-License-Identifier: Apache-2.0
//
// Words of nvfp4 panels as they lie on the card: the pack's bits in an order in which pairs of codes cost little.
//
// A word of nvfp4 has k .. k + 7 of an output. In the pack byte b has k + b and k + 4 + b as its halves (kernels/cpu/layout.h). On the card
// each half of the word has four codes: k and k + 2 have signs and magnitudes where bf16 has its sign (bit 15) and the end of its
// exponent and beginning of its mantissa (8 to 6), k + 1 and k + 3 three bits further down, k + 4 and k + 6 six, and k + 5 and k + 7 what
// is left: signs at 11, magnitudes at 10, 14 and 13. So a pair takes at most a shift and a mask, but for the last one.
//
// Invariant: a word of the card has the codes of the pack's word, and zeros are zeros.

#ifndef NVFP4_WORD_CUH
#define NVFP4_WORD_CUH

#include "kernels/cuda/device.cuh"

enum : uint32_t { NVFP4_PAIR = 0x81c081c0u, NVFP4_LEFT = 0x6c006c00u };

// The word of the card from that of the pack.
__host__ __device__ __forceinline__ uint32_t nvfp4_arranged(uint32_t w)
{
    const uint32_t first = w & 0x000f000fu, third = w >> 4 & 0x000f000fu, second = w >> 8 & 0x000f000fu,
                   fourth = w >> 12 & 0x000f000fu;
    return (first & 0x00070007u) << 6 | (first & 0x00080008u) << 12 | (second & 0x00070007u) << 3 |
           (second & 0x00080008u) << 9 | (third & 0x00070007u) | (third & 0x00080008u) << 6 |
           (fourth & 0x00030003u) << 13 | (fourth & 0x000c000cu) << 8;
}

// Codes k + 4 j + c and k + 4 j + c + 2 of a word: signs and magnitudes at their places in a pair of bf16, exponents 126 short.
__host__ __device__ __forceinline__ uint32_t nvfp4_pair(uint32_t w, int j, int c)
{
    // bits 2, 3, 5 and 6 to 8, 15, 6 and 7 by one multiplication, in which nothing meets
    const uint32_t moved = !j ? (c ? w << 3 : w) : c ? ((w & NVFP4_LEFT) >> 8) * 0x1042u : w << 6;
    return moved & NVFP4_PAIR;
}

// Code k + i of a word, as published.
__host__ __device__ __forceinline__ uint32_t nvfp4_code(uint32_t w, int i)
{
    const uint32_t v = nvfp4_pair(w, i >> 2, i & 1) >> (i & 2 ? 16 : 0);
    return (v >> 6 & 7u) | (v >> 12 & 8u);
}

#endif
