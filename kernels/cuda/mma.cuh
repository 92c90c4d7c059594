// SPDX-License-Identifier: Apache-2.0
//
// The 16x8x16 product of bf16 with fp32 sums, and numbers as sums of bf16 parts.
//
// Fragments, with g = lane / 4 and t = lane % 4: A holds rows g and g + 8 at k 2t, 2t + 1, then at k + 8; B holds column g at
// k 2t, 2t + 1, then at k + 8; C holds rows g and g + 8 at columns 2t, 2t + 1.
// Invariant: a row of C depends on the same row of A alone.

#ifndef CUDA_MMA_CUH
#define CUDA_MMA_CUH

#include "kernels/cuda/vec.cuh"

// c += a b
DEVICE void mma_bf16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
#if defined(CUDA_FIBERS) // tests/cuda_fake
    fake_mma(c, a, b0, b1);
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// An address of shared memory as a number, which the compiler need not work out anew at each use.
#if defined(CUDA_FIBERS)
typedef uintptr_t mma_place;
#else
typedef uint32_t mma_place;
#endif

DEVICE mma_place mma_place_of(const void *shared)
{
#if defined(CUDA_FIBERS)
    return (uintptr_t)shared;
#else
    return (uint32_t)__cvta_generic_to_shared(shared);
#endif
}

// Four 8x8 matrices of 16-bit numbers, as they lie or transposed; lane i gives the place of row i % 8 of matrix i / 8.
template <bool TRANSPOSED> DEVICE void mma_load(uint32_t *r, mma_place row)
{
#if defined(CUDA_FIBERS)
    if (TRANSPOSED)
        fake_load_transposed(r, (const uint16_t *)row);
    else
        fake_load_rows(r, (const uint16_t *)row);
#else
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(row)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(row)
                     : "memory");
#endif
}

DEVICE void mma_load_transposed(uint32_t *r, const uint16_t *row)
{
    mma_load<true>(r, mma_place_of(row));
}

// The bf16 nearest to x, ties to even, as bits; x is finite.
DEVICE uint16_t mma_round(float x)
{
    const uint32_t bits = __float_as_uint(x);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// The nearest bf16 of both, x in the low half.
DEVICE uint32_t mma_pair(float x, float y)
{
#if defined(CUDA_FIBERS)
    return mma_round(x) | (uint32_t)mma_round(y) << 16;
#else
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
#endif
}

// Takes the nearest bf16 out of *x and leaves the rest.
DEVICE uint16_t mma_part(float *x)
{
    const uint16_t part = mma_round(*x);
    *x = __fadd_rn(*x, -__uint_as_float((uint32_t)part << 16));
    return part;
}

#endif
