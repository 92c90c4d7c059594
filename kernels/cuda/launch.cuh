// SPDX-License-Identifier: Apache-2.0
//
// Launching with programmatic dependent launch, the two device calls that go with it, and a barrier of some of a block's threads.
//
// Invariant: every kernel calls pdl_wait() in all its threads before it first reads what an earlier kernel of the program
// wrote, and before it exits; so a finished kernel implies that all kernels before it have finished. Weights may be read
// before the wait, since nothing writes them. pdl_trigger() lets the next kernel start its part before its own wait.

#ifndef LAUNCH_CUH
#define LAUNCH_CUH

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

// A barrier of the first `threads` threads of a block.
__device__ __forceinline__ void some_wait(int threads)
{
#if defined(CUDA_FIBERS) // tests/cuda_fake
    fake_some_wait(threads);
#else
    asm volatile("barrier.sync 1, %0;" ::"r"(threads) : "memory");
#endif
}
#endif

// Whether launches ask for programmatic serialisation: yes on cards that have it, unless the environment says PDL=off.
inline int *pdl_switch(void)
{
    static int state = -1;
    if (state < 0) {
        const char *off = getenv("PDL");
        int device = 0, major = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        state = major >= 9 && !(off && off[0] == 'o' && off[1] == 'f') ? 1 : 0;
    }
    return &state;
}

// Launches kernel<<<grid, block, shared bytes, stream>>>(args...). More than 48 KiB of shared memory is asked for here. Every
// kernel asks for the same division of a multiprocessor's memory: one that wants another waits until the multiprocessor is
// empty, and could not begin beside the kernel before.
template <typename... P, typename... A>
inline cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared, void (*kernel)(P...), A... args)
{
    if (shared > 48 * 1024) {
        cudaError_t error =
            cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error != cudaSuccess)
            return error;
    }
    if (*pdl_switch())
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
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
