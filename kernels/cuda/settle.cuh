// SPDX-License-Identifier: Apache-2.0
//
// When a number is worked out: what a kernel knows before it waits for the one before it should not be left to do behind the wait, and what it
// needs late should not hold up what it needs first.
//
// Invariant: no value changes.

#ifndef SETTLE_CUH
#define SETTLE_CUH

// Works v out here, neither earlier nor where it is used.
template <typename T> __device__ __forceinline__ void settle(T &v)
{
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(T) == 8)
        asm volatile("" : "+l"(v));
    else if constexpr (__is_same(T, float))
        asm volatile("" : "+f"(v));
    else
        asm volatile("" : "+r"(v));
#endif
}

#endif
