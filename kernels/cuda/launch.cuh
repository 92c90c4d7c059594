// SPDX-License-Identifier: Apache-2.0
//
// Launching with programmatic dependent launch, and the two device calls that go with it.
//
// Invariant: every kernel calls pdl_wait() in all its threads before it first reads what an earlier kernel of the program
// wrote, and before it exits; so a finished kernel implies that all kernels before it have finished. (Blocks that have nothing
// to do may leave before that where another block of their launch is sure to wait.) Weights may be read before the wait, since
// nothing writes them. pdl_trigger() lets the next kernel start its part before its own wait; kernels of the decode class call
// it after their wait, so one that runs may read what kernels before the one before it wrote, past L1. Those that take rows apart
// (eight.cuh, norm_split.cuh) call it before: the product behind them reads nothing but weights before its wait. A kernel may call it in
// every block that has stored something, behind a fence of the card, for the next kernel to read that before its wait (experts_beside.cuh). Of
// the products of the same prompt rows (linear_wide.cu) the first calls it behind its wait, and the next ones read those rows, past L1,
// without one of their own.

#ifndef LAUNCH_CUH
#define LAUNCH_CUH

#include "kernels/cuda/card.cuh"

#include <cuda_runtime.h>
#include <stdlib.h>

#ifdef __CUDACC__
__device__ __forceinline__ void pdl_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void pdl_trigger(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

// Whether launches ask for programmatic serialisation: yes on cards that have it, unless the environment says PDL=off.
inline int *pdl_switch(void)
{
    static int state = -1;
    if (state < 0) {
        const char *off = getenv("PDL");
        state =
            card_attribute(cudaDevAttrComputeCapabilityMajor) >= 9 && !(off && off[0] == 'o' && off[1] == 'f') ? 1 : 0;
    }
    return &state;
}

// What a kernel was last told about its shared memory. Nothing forgets, so a kernel is told once and not at every launch; one that
// finds no room in the table is told each time.
struct launch_told {
    const void *kernel;
    size_t shared;
    bool divided;
};

inline struct launch_told *launch_told_of(const void *kernel)
{
    enum { ROOM = 1024 };
    static struct launch_told told[ROOM];
    const size_t at = ((size_t)kernel >> 4) * 0x9e3779b97f4a7c15u >> 54;
    for (size_t i = 0; i < ROOM; i++) {
        struct launch_told *t = &told[(at + i) % ROOM];
        if (!t->kernel)
            t->kernel = kernel;
        if (t->kernel == kernel)
            return t;
    }
    return NULL;
}

// Makes `shared` bytes of dynamic shared memory allowed, and with `divide` the largest share of a multiprocessor's memory shared memory.
inline cudaError_t launch_prepare(const void *kernel, size_t shared, bool divide)
{
    struct launch_told *told = launch_told_of(kernel);
    if (shared > 48 * 1024 && (!told || told->shared < shared)) {
        cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error != cudaSuccess)
            return error;
        if (told)
            told->shared = shared;
    }
    if (divide && (!told || !told->divided)) {
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
        if (told)
            told->divided = true;
    }
    return cudaSuccess;
}

// Launches kernel<<<grid, block, shared bytes, stream>>>(args...). More than 48 KiB of shared memory is asked for here. Every
// kernel asks for the same division of a multiprocessor's memory: one that wants another waits until the multiprocessor is
// empty, and could not begin beside the kernel before.
template <typename... P, typename... A>
inline cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared, void (*kernel)(P...), A... args)
{
    cudaError_t error = launch_prepare((const void *)kernel, shared, *pdl_switch());
    if (error != cudaSuccess)
        return error;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = *pdl_switch() ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, P(args)...);
}

#endif
