// SPDX-License-Identifier: Apache-2.0
//
// The few machine operations of the matrix kernels: loads past the caches, bf16 pairs, the 16x8x16 product, asynchronous
// copies. With CUDA_EMULATION a host program supplies them and the launches (tests/cuda_emulation.h), so that the kernels'
// index arithmetic runs without a GPU.
//
// Invariant: nothing else in the matrix kernels is written in assembly but launches, clusters and products of
// warpgroups (launch.cuh, cluster.cuh, wgmma.cuh), and every operation has a form that is there from sm_80 on.

#ifndef DEVICE_CUH
#define DEVICE_CUH

#include <stdint.h>

#include "kernels/cuda/arrivals.cuh"

#ifdef CUDA_EMULATION
#include "tests/cuda_emulation.h"
#else
#include "kernels/cuda/launch.cuh"

#define SHARED_ROOM(name) extern __shared__ __align__(128) unsigned char name[]

// 16 bytes that several lanes or blocks share: kept.
__device__ __forceinline__ uint4 load_kept16(const void *p)
{
    uint4 v;
    asm("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ uint2 load_kept8(const void *p)
{
    uint2 v;
    asm("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

// a * b + c of bf16 pairs, each with one rounding; subnormal numbers are numbers.
__device__ __forceinline__ uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// One half of a pair, twice; a product takes it so for nothing.
__device__ __forceinline__ uint32_t pair_twice(uint32_t pair, int high)
{
    uint32_t d;
    if (high)
        asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h}; }" : "=r"(d) : "r"(pair));
    else
        asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l}; }" : "=r"(d) : "r"(pair));
    return d;
}

// (w & MASK) | more, in one instruction, which the compiler does not find when both are constants.
template <uint32_t MASK> __device__ __forceinline__ uint32_t and_or(uint32_t w, uint32_t more)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(w), "n"(MASK), "r"(more));
    return d;
}

// The larger of two numbers, or no number if one is none.
__device__ __forceinline__ float max_nan(float a, float b)
{
    float d;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
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

// f16 of low in the low half, of high in the high half, to nearest even.
__device__ __forceinline__ uint32_t half_pack(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

// A product of f16 pairs; subnormal numbers are numbers.
__device__ __forceinline__ uint32_t half_mul(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// d += a b: a is [16][16] bf16, b [16][8], d fp32 [16][8], spread over the warp as PTX's m16n8k16 says.
__device__ __forceinline__ void mma_bf16(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of f16.
__device__ __forceinline__ void mma_half(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += a b: a is [16][32] unsigned bytes, b [32][8] signed ones, d [16][8] integers, spread over the warp as PTX's m16n8k32 says.
__device__ __forceinline__ void mma_bytes(int32_t *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d = FROM + a b.
template <int FROM>
__device__ __forceinline__ void mma_bytes_from(int32_t *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(FROM));
}

// Asks for what lies at p, so that it is nearer when it is read.
__device__ __forceinline__ void load_soon(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
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

// Stages: copies of whole pieces (multiples of 16 bytes, between places that are) by one warp to shared memory, a piece a lane that
// says `mine`; each stage has a barrier that says when all its bytes have come. From sm_90 on the lanes ask the copy engine;
// before, they copy.
__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
// Of a barrier for `count` arrivals a turn. All are ready after stage_opened() and a barrier of the block.
__device__ __forceinline__ void stage_open(uint64_t *barrier, int count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ __forceinline__ void stage_arrive(uint64_t *barrier)
{
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(shared_address(barrier)) : "memory");
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define STAGE_TEST "mbarrier.try_wait.parity.shared::cta.b64"
enum { STAGE_PUTTERS = 1 };
__device__ __forceinline__ void stage_opened(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void stage_expect(uint64_t *barrier, int bytes, int lane)
{
    if (lane == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                     : "memory");
}
__device__ __forceinline__ void stage_copy(void *shared, const void *global, int bytes, uint64_t *barrier, bool mine)
{
    if (mine)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(shared)),
                     "l"(global), "r"(bytes), "r"(shared_address(barrier))
                     : "memory");
}
__device__ __forceinline__ void stage_commit(uint64_t *)
{
}
// Before a barrier behind which a copy writes to where this thread wrote.
__device__ __forceinline__ void stage_written(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#else
#define STAGE_TEST "mbarrier.test_wait.parity.shared.b64"
enum { STAGE_PUTTERS = 32 };
__device__ __forceinline__ void stage_opened(void)
{
}
__device__ __forceinline__ void stage_expect(uint64_t *, int, int)
{
}
__device__ __forceinline__ void stage_copy(void *shared, const void *global, int bytes, uint64_t *, bool mine)
{
    for (unsigned int left = __ballot_sync(0xffffffffu, mine); left; left &= left - 1) {
        const int from = __ffs((int)left) - 1, length = __shfl_sync(0xffffffffu, bytes, from);
        unsigned char *to = (unsigned char *)__shfl_sync(0xffffffffu, (unsigned long long)shared, from);
        const unsigned char *source = (const unsigned char *)__shfl_sync(0xffffffffu, (unsigned long long)global, from);
        for (int i = (threadIdx.x & 31) * 16; i < length; i += 512)
            copy16(to + i, source + i, 16);
    }
}
__device__ __forceinline__ void stage_written(void)
{
}
__device__ __forceinline__ void stage_commit(uint64_t *barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
#endif
__device__ __forceinline__ void stage_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t done;
    do
        asm volatile("{ .reg .pred p; " STAGE_TEST " p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    while (!done);
}

// A place in the block's shared memory as a number. An opaque one is kept in a register: else the compiler works an
// address out anew wherever it is used, which costs more than what is done there.
typedef uint32_t shared_place;
__device__ __forceinline__ shared_place shared_opaque(const void *p)
{
    uint32_t at = shared_address(p);
    asm volatile("" : "+r"(at));
    return at;
}
template <class T> __device__ __forceinline__ T shared_load(shared_place p)
{
    return *(const T *)__cvta_shared_to_generic(p);
}
__device__ __forceinline__ void copy16(shared_place to, const void *global, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy4(shared_place to, const void *global, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}

// A barrier of the first `threads` threads of a block.
__device__ __forceinline__ void some_wait(int threads)
{
    asm volatile("barrier.sync 1, %0;" ::"r"(threads) : "memory");
}
#endif

// Arrives with all lanes of the warp, together: ARRIVALS times.
__device__ __forceinline__ void stage_arrive_warp(uint64_t *barrier)
{
    __syncwarp();
    stage_arrive(barrier);
}

// A warpgroup has N registers a thread from here on, more or fewer than before; all four warps call it. Where that cannot
// be, the compiler's share stays.
template <int N> __device__ __forceinline__ void registers_more(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N> __device__ __forceinline__ void registers_fewer(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

__device__ __forceinline__ float bits_float(uint32_t u)
{
    return __uint_as_float(u);
}

// A product of bf16 pairs.
__device__ __forceinline__ uint32_t pair_mul(uint32_t a, uint32_t b)
{
    return pair_fma(a, b, 0x80008000u);
}

// Two E4M3 codes, the high bytes of the halves of w, as a pair of f16: moved to its places and scaled by 2^(15 - 7); 7f and ff are no numbers.
__device__ __forceinline__ uint32_t half_codes_moved(uint32_t w)
{
    const uint32_t none = ((w & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
    return half_mul((w & 0x80008000u) | ((w >> 1) & 0x3f803f80u), 0x5c005c00u) | (none - (none >> 15));
}

// Four E4M3 codes as two pairs of f16, which hold them exactly; 7f and ff are no numbers.
__device__ __forceinline__ void half_codes(uint32_t codes, uint32_t *low, uint32_t *high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
        : "=r"(*low), "=r"(*high)
        : "r"(codes));
#else
    *low = half_codes_moved(__byte_perm(codes, 0, 0x1404));
    *high = half_codes_moved(__byte_perm(codes, 0, 0x3424));
#endif
}

#endif
