// SPDX-License-Identifier: Apache-2.0
//
// The product of a group of four warps (sm_90a): 64 outputs by 8 NT rows by 16 k, weights from registers, rows of x from shared
// memory, sums in registers.
//
// A warp's sixteen outputs and their fragments lie as in the 16x8x16 product (device.cuh). Rows of x lie in shared memory in
// tiles of 8 rows by 128 bytes (64 k), tile after tile, the tiles' sixteen-byte pieces permuted: piece p of row r at p ^ r % 8. A
// tile begins at a multiple of 1024 bytes.
// Invariant: a sum depends on its output and its row alone, not on NT.

#ifndef WGMMA_CUH
#define WGMMA_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/wgmma_group.cuh"

// Where piece `piece` of row r of a tile of 8 NT rows is.
__device__ __forceinline__ int wgmma_place(int r, int piece)
{
    return r * 128 + (piece ^ (r & 7)) * 16;
}

#ifndef CUDA_EMULATION
// What a product reads: the place in shared memory; 8 rows are 1024 bytes, pieces permuted.
typedef uint64_t wgmma_source;

__device__ __forceinline__ wgmma_source wgmma_rows(const void *shared)
{
    const uint32_t at = shared_address(shared);
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 16 | (at & 0x3ffff) >> 4;
}

// The same `bytes` on, a multiple of 1024, at piece `piece` of each row.
__device__ __forceinline__ wgmma_source wgmma_at(wgmma_source rows, int bytes, int piece)
{
    return rows + (uint64_t)((bytes + piece * 16) >> 4);
}

__device__ __forceinline__ unsigned char *wgmma_align(unsigned char *shared)
{
    return shared + (-(uint32_t)__cvta_generic_to_shared(shared) & 1023u);
}

// Before products whose fragments a were made since the last ones: none of them is made later.
__device__ __forceinline__ void wgmma_fence(uint32_t a[2][2][4])
{
#if WGMMA_HERE
#pragma unroll
    for (int j = 0; j < 2; j++)
        asm volatile(""
                     : "+r"(a[j][0][0]), "+r"(a[j][0][1]), "+r"(a[j][0][2]), "+r"(a[j][0][3]), "+r"(a[j][1][0]),
                       "+r"(a[j][1][1]), "+r"(a[j][1][2]), "+r"(a[j][1][3])
                     :
                     : "memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_fence_half(uint32_t a[2][4])
{
#if WGMMA_HERE
    asm volatile(""
                 : "+r"(a[0][0]), "+r"(a[0][1]), "+r"(a[0][2]), "+r"(a[0][3]), "+r"(a[1][0]), "+r"(a[1][1]),
                   "+r"(a[1][2]), "+r"(a[1][3])
                 :
                 : "memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
// Barriers in shared memory: `count` arrivals end a phase; the phases' parities are 0, 1, 0, ...
__device__ __forceinline__ void barrier_init(uint64_t *barrier, int count)
{
#if WGMMA_HERE
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((uint32_t)__cvta_generic_to_shared(barrier)),
                 "r"(count)
                 : "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(shared_place barrier)
{
#if WGMMA_HERE
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
// Arrives when the thread's asynchronous copies so far are done.
__device__ __forceinline__ void barrier_arrive_copied(shared_place barrier)
{
#if WGMMA_HERE
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}
// Waits for the end of the phase of that parity.
__device__ __forceinline__ void barrier_wait(shared_place barrier, int parity)
{
#if WGMMA_HERE
    asm volatile(
        "{\n.reg .pred p;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}" ::"r"(
            barrier),
        "r"(parity)
        : "memory");
#endif
}
// Waits for a stage's bytes (device.cuh) the same way, without a branch that the compiler sees.
__device__ __forceinline__ void stage_wait_here(uint64_t *barrier, int parity)
{
    barrier_wait(shared_address(barrier), parity);
}
// Says that `bytes` more come to a stage (stage_open()), one of its arrivals.
__device__ __forceinline__ void stage_announce(uint64_t *barrier, int bytes)
{
#if WGMMA_HERE
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
#endif
}
// Copies to the same place of the first `team` blocks of the cluster, one or two, whose stages get the bytes.
__device__ __forceinline__ void stage_send(void *shared, const void *global, int bytes, uint64_t *barrier, int team)
{
#if WGMMA_HERE
    const uint32_t to = shared_address(shared), at = shared_address(barrier);
    if (team == 1)
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
            "l"(global), "r"(bytes), "r"(at)
            : "memory");
    else
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], "
                     "%2, [%3], %4;" ::"r"(to),
                     "l"(global), "r"(bytes), "r"(at), "h"((uint16_t)3)
                     : "memory");
#endif
}
// barrier_arrive() at the same barrier of another block of the cluster, by a thread of a warp that has done nothing but reading: it orders
// no writes of others' (a release of the cluster's scope is a fence of the whole card).
__device__ __forceinline__ void barrier_arrive_at(shared_place barrier, int rank)
{
#if WGMMA_HERE
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
#endif
}
// As barrier_wait(), by somebody who has time, and leaves the issue slots to others.
__device__ __forceinline__ void barrier_wait_idle(shared_place barrier, int parity)
{
#if WGMMA_HERE
    asm volatile("{\n.reg .pred p;\n"
                 "again:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nnanosleep.u32 64;\n"
                 "bra again;\ndone:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#endif
}
// A barrier of `threads` threads of the block, whole warps; number: 1 to 15.
__device__ __forceinline__ void barrier_some(int number, int threads)
{
#if WGMMA_HERE
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
#endif
}

#if WGMMA_HERE
#define INPUTS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows), "r"(1)
#define WGMMA(N, TYPE, SUMS, A, ROWS, ADD, ...)                                                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" SUMS "}, {" A "}, " ROWS          \
                 ", p, 1, 1, 0;\n}"                                                                                    \
                 : __VA_ARGS__                                                                                         \
                 : INPUTS)
#endif

// d += a b, with b at rows (wgmma_rows, plus k / 8 of the k within the tile). HALF: fp16, else bf16.
template <int NT, bool HALF> __device__ __forceinline__ void wgmma(float *d, const uint32_t *a, wgmma_source rows)
{
#if WGMMA_HERE
    static_assert(NT == 1 || NT == 2 || NT == 6 || (NT % 4 == 0 && NT <= 20) || NT == 32,
                  "sizes with an instruction below");
#define VARIANTS(TYPE)                                                                                                 \
    if constexpr (NT == 1)                                                                                             \
        WGMMA("8", TYPE, P4, "%4,%5,%6,%7", "%8", "%9", D4(0));                                                        \
    else if constexpr (NT == 2)                                                                                        \
        WGMMA("16", TYPE, P8, "%8,%9,%10,%11", "%12", "%13", D4(0), D4(4));                                            \
    else if constexpr (NT == 4)                                                                                        \
        WGMMA("32", TYPE, P0, "%16,%17,%18,%19", "%20", "%21", D16(0));                                                \
    else if constexpr (NT == 6)                                                                                        \
        WGMMA("48", TYPE, P24, "%24,%25,%26,%27", "%28", "%29", D16(0), D4(16), D4(20));                               \
    else if constexpr (NT == 8)                                                                                        \
        WGMMA("64", TYPE, P0 "," P16, "%32,%33,%34,%35", "%36", "%37", D16(0), D16(16));                               \
    else if constexpr (NT == 12)                                                                                       \
        WGMMA("96", TYPE, P0 "," P16 "," P32, "%48,%49,%50,%51", "%52", "%53", D16(0), D16(16), D16(32));              \
    else if constexpr (NT == 16)                                                                                       \
        WGMMA("128", TYPE, P0 "," P16 "," P32 "," P48, "%64,%65,%66,%67", "%68", "%69", D16(0), D16(16), D16(32),      \
              D16(48));                                                                                                \
    else if constexpr (NT == 20)                                                                                       \
        WGMMA("160", TYPE, P0 "," P16 "," P32 "," P48 "," P64, "%80,%81,%82,%83", "%84", "%85", D16(0), D16(16),       \
              D16(32), D16(48), D16(64));                                                                              \
    else                                                                                                               \
        WGMMA("256", TYPE, P0 "," P16 "," P32 "," P48 "," P64 "," P80 "," P96 "," P112, "%128,%129,%130,%131", "%132", \
              "%133", D16(0), D16(16), D16(32), D16(48), D16(64), D16(80), D16(96), D16(112));
    if constexpr (HALF) {
        VARIANTS("f16")
    } else {
        VARIANTS("bf16")
    }
#undef VARIANTS
#else
    (void)d, (void)a, (void)rows;
#endif
}

// a * b + c of fp16 pairs, each with one rounding.
__device__ __forceinline__ uint32_t half_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
#endif

#endif
