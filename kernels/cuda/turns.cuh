// SPDX-License-Identifier: Apache-2.0
//
// Turns: barriers in shared memory at which some warps of a block wait for what others, or the copy engine, have done.
//
// Invariant: a turn ends when as many have come as it was opened for, and the next one begins. Who waits for a turn is at most one
// turn behind. What a thread wrote before it came is seen by those that waited.

#ifndef CUDA_TURNS_CUH
#define CUDA_TURNS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/arrivals.cuh"

#if defined(CUDA_FIBERS)
#include "tests/cuda_fake/turns.h"
#endif

// By one thread, once; a barrier of the block comes before anybody comes or waits.
static __device__ __forceinline__ void turn_open(uint64_t *turn, unsigned count)
{
#if defined(CUDA_FIBERS)
    fake_turn_open(turn, count);
#else
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"((uint32_t)__cvta_generic_to_shared(turn)), "r"(count)
                 : "memory");
#endif
}

static __device__ __forceinline__ void turn_come(uint64_t *turn)
{
#if defined(CUDA_FIBERS)
    fake_turn_come(turn);
#else
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"((uint32_t)__cvta_generic_to_shared(turn))
                 : "memory");
#endif
}

// Comes with all lanes of the warp, together: ARRIVALS times.
static __device__ __forceinline__ void turn_come_warp(uint64_t *turn)
{
    __syncwarp();
    turn_come(turn);
}

// Behind turn_open() of all, by the same thread: the copy engine may come.
static __device__ __forceinline__ void turn_opened(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Comes, and with it the bytes that turn_take() is asked for until the turn ends, which waits for them.
static __device__ __forceinline__ void turn_come_bytes(uint64_t *turn, unsigned bytes)
{
#if defined(CUDA_FIBERS)
    fake_turn_bytes(turn, bytes);
    fake_turn_come(turn);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"((uint32_t)__cvta_generic_to_shared(turn)),
        "r"(bytes)
        : "memory");
#endif
}

// Asks the copy engine for bytes of device memory, a multiple of 16 between places that are. For sm_90 and later.
static __device__ __forceinline__ void turn_take(uint64_t *turn, void *shared, const void *from, unsigned bytes)
{
#if defined(CUDA_FIBERS)
    fake_turn_take(turn, shared, from, bytes);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(from), "r"(bytes), "r"((uint32_t)__cvta_generic_to_shared(turn))
                 : "memory");
#endif
}

// Whether the lane is the one of its warp that asks for copies; all lanes call. The compiler knows that it is one.
static __device__ __forceinline__ bool turn_taker(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t mine;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(mine));
    return mine;
#else
    return threadIdx.x % 32 == 0;
#endif
}

// Waits until turn number `index`, from 0 on, has ended; that before the first one has.
static __device__ __forceinline__ void turn_wait(uint64_t *turn, int32_t index)
{
#if defined(CUDA_FIBERS)
    fake_turn_wait(turn, index);
#else
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TURN_TEST "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define TURN_TEST "mbarrier.test_wait.parity.shared.b64"
#endif
    uint32_t done;
    do
        asm volatile("{ .reg .pred p; " TURN_TEST " p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"((uint32_t)__cvta_generic_to_shared(turn)), "r"((uint32_t)index & 1u)
                     : "memory");
    while (!done);
#endif
}

#endif
