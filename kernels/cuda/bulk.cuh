// SPDX-License-Identifier: Apache-2.0
//
// Copies between device memory and a block's shared memory by the copy engine, for kernels of sm_90 and later. Bytes are multiples of 16,
// between places that are.
//
// Invariant: on older cards and as fibers (tests/cuda_fake) the thread that asks copies itself, and what waits for copies waits for
// nothing else, so that a missing barrier shows.

#ifndef CUDA_BULK_CUH
#define CUDA_BULK_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define BULK_ENGINE 1
#endif

// Opens a box for so many bytes, once. By one thread; a barrier of the block comes before anybody asks for copies or waits.
static __device__ __forceinline__ void bulk_open(uint64_t *box, unsigned bytes)
{
#if defined(BULK_ENGINE)
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(box);
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
#else
    *box = bytes;
#endif
}

// Asks for bytes of device memory, past L1.
static __device__ __forceinline__ void bulk_take(void *shared, const void *from, unsigned bytes, uint64_t *box)
{
#if defined(BULK_ENGINE)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(from), "r"(bytes), "r"((uint32_t)__cvta_generic_to_shared(box))
                 : "memory");
#else
    memcpy(shared, from, bytes);
    *box -= bytes;
#endif
}

// Waits until everything has come to the box. Every thread that reads it.
static __device__ __forceinline__ void bulk_wait(uint64_t *box)
{
#if defined(BULK_ENGINE)
    uint32_t done;
    do
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"((uint32_t)__cvta_generic_to_shared(box))
                     : "memory");
    while (!done);
#elif defined(CUDA_FIBERS)
    while (*box > 0)
        fake_yield();
#else
    (void)box;
#endif
}

// Before the barrier behind which bulk_give() reads what this thread wrote to shared memory.
static __device__ __forceinline__ void bulk_written(void)
{
#if defined(BULK_ENGINE)
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Copies to device memory without waiting.
static __device__ __forceinline__ void bulk_give(void *to, const void *shared, unsigned bytes)
{
#if defined(BULK_ENGINE)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"((uint32_t)__cvta_generic_to_shared(shared)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
    memcpy(to, shared, bytes);
#endif
}

// Waits until all that the thread gave is there, which it must before it ends.
static __device__ __forceinline__ void bulk_given(void)
{
#if defined(BULK_ENGINE)
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

#endif
