// SPDX-License-Identifier: Apache-2.0
//
// How threads that make rows leave them prepared for products of warpgroups (wide_rows of wide.cuh), without scales. Whoever includes
// it has pair_pack() (device.cuh).
//
// Invariant: the numbers are those that wide_prepare() makes of the same row.

#ifndef PREPARED_CUH
#define PREPARED_CUH

#include "kernels/cuda/vec.cuh"

// Where a thread that has numbers k .. k + 3 of a row, k a multiple of 4, finds its place in the row: piece of 16 bytes, counted from the
// row's first, and byte of it.
struct prepared_place {
    int32_t piece, byte;
};

DEVICE struct prepared_place prepared_place_of(int32_t k)
{
    const int32_t eight = k / 8 % 4, odd = eight & 1;
    return {k / 32 * 4 + k / 4 % 2 * 2 + odd, (eight - odd) * 4};
}

// Stores numbers k .. k + 3 of a row at `place` of their piece, in `parts` bf16 parts. A piece has a pair of each of four neighbouring
// eights of k: neighbours but one change words, so that each has two of a piece. By whole warps, whose lanes have neighbouring numbers.
DEVICE void put_prepared(unsigned char *place, int64_t part_bytes, int32_t parts, int32_t k, vec<4> v)
{
    const bool odd = k / 8 & 1;
    for (int p = 0; p < parts; p++) {
        const uint32_t w[2] = {pair_pack(v.v[0], v.v[2]), pair_pack(v.v[1], v.v[3])};
        const uint32_t got = __shfl_xor_sync(WHOLE_WARP, odd ? w[0] : w[1], 2);
        *(uint2 *)(place + p * part_bytes) = odd ? uint2{got, w[1]} : uint2{w[0], got};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            v.v[i] = __fadd_rn(v.v[i], -__uint_as_float(w[i] << 16));
            v.v[i + 2] = __fadd_rn(v.v[i + 2], -__uint_as_float(w[i] & 0xffff0000u));
        }
    }
}

#endif
