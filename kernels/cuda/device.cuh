// SPDX-License-Identifier: Apache-2.0
//
// The few machine operations of the matrix kernels: loads past the caches, bf16 pairs, the 16x8x16 product, asynchronous
// copies. With CUDA_EMULATION a host program supplies them and the launches (tests/cuda_emulation.h), so that the kernels'
// index arithmetic runs without a GPU.
//
// Invariant: nothing else in the matrix kernels is written in assembly, and all of it is there from sm_80 on.

#ifndef DEVICE_CUH
#define DEVICE_CUH

#include <stdint.h>

#ifdef CUDA_EMULATION
#include "tests/cuda_emulation.h"
#else
#include "kernels/cuda/launch.cuh"

#define SHARED_ROOM(name) extern __shared__ __align__(128) unsigned char name[]

// 16, 8 and 4 bytes of weights, which are read once: not kept in L1.
__device__ __forceinline__ uint4 load_once16(const void *p)
{
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
}
__device__ __forceinline__ uint2 load_once8(const void *p)
{
    uint2 v;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
// Bytes that several lanes or blocks of k share: kept.
__device__ __forceinline__ uint4 load_kept16(const void *p)
{
    uint4 v;
    asm("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ uint32_t load_kept4(const void *p)
{
    uint32_t v;
    asm("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

// a * b + c of bf16 pairs, each with one rounding; subnormal numbers are numbers.
__device__ __forceinline__ uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// bf16 of low in the low half, of high in the high half, to nearest even.
__device__ __forceinline__ uint32_t pair_pack(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

__device__ __forceinline__ float half_float(uint32_t h)
{
    float f;
    asm("{ .reg .b16 t; cvt.u16.u32 t, %1; cvt.f32.f16 %0, t; }" : "=f"(f) : "r"(h));
    return f;
}

// d += a b: a is [16][16] bf16, b [16][8], d fp32 [16][8], spread over the warp as PTX's m16n8k16 says.
__device__ __forceinline__ void mma_bf16(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Asynchronous copies to shared memory, in groups. Only `bytes` are read, the rest is zeros. copy16 goes past L1.
__device__ __forceinline__ void copy16(void *shared, const void *global, int bytes)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy8(void *shared, const void *global)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(global) : "memory");
}
__device__ __forceinline__ void copy4(void *shared, const void *global, int bytes)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most N of the newest groups are under way.
template <int N> __device__ __forceinline__ void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif

__device__ __forceinline__ float bits_float(uint32_t u)
{
    return __uint_as_float(u);
}

// A product of bf16 pairs.
__device__ __forceinline__ uint32_t pair_mul(uint32_t a, uint32_t b)
{
    return pair_fma(a, b, 0x80008000u);
}

#endif
