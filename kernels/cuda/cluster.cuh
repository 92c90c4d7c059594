// SPDX-License-Identifier: Apache-2.0
//
// Clusters of blocks: a barrier, shared memory of each other, and their launch.
//
// Invariant: where a card has no clusters the code runs with clusters of one block, and a result never depends on the
// number of blocks: what crosses blocks are maxima and integer sums, or nothing but an order of reads before writes.
// Sums in fp32 cross blocks only where the number of blocks comes from a weight's shape (linear_wide.cu) or from the
// card alone (the parts of attention), or where they are one tree whoever adds them (attention_long.cuh, residual_rows.cu).

#ifndef CUDA_CLUSTER_CUH
#define CUDA_CLUSTER_CUH

#include <stdint.h>

#include "kernels/cuda/launch.cuh"

// A block's dynamic shared memory, for kernels in headers.
#if defined(CUDA_FIBERS)
#define SHARED_BYTES(name) uint8_t *name = (uint8_t *)fake_shared()
#else
#define SHARED_BYTES(name) extern __shared__ __align__(16) uint8_t name[]
#endif

static __device__ __forceinline__ void cluster_arrive(void)
{
#if defined(CUDA_FIBERS)
    fake_cluster_arrive();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// The same by threads that have done nothing but reading that matters to the others, and have what they read: it orders no writes.
static __device__ __forceinline__ void cluster_arrive_read(void)
{
#if defined(CUDA_FIBERS)
    fake_cluster_arrive();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

static __device__ __forceinline__ void cluster_wait(void)
{
#if defined(CUDA_FIBERS)
    fake_cluster_wait();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// A barrier of the whole cluster, which for a cluster of one is a barrier of the block.
static __device__ __forceinline__ void cluster_sync(void)
{
#if defined(CUDA_FIBERS) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
    cluster_arrive();
    cluster_wait();
#else
    __syncthreads();
#endif
}

// The same place of another block's shared memory.
template <typename T> static __device__ __forceinline__ T *cluster_map(T *mine, unsigned rank)
{
#if defined(CUDA_FIBERS) // tests/cuda_fake
    return fake_cluster_map(mine, rank);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint64_t theirs;
    asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"((uint64_t)mine), "r"(rank));
    return reinterpret_cast<T *>(theirs);
#else
    (void)rank;
    return mine;
#endif
}

// A box is a place in a block's shared memory that the blocks of its cluster put pairs of numbers into. Its owner knows
// how many bytes will come. One thread opens it; all blocks pass cluster_arrive_read() after that, and cluster_wait()
// before they put anything.
static __device__ __forceinline__ void box_open(uint64_t *came, int bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(came);
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
#else
    (void)came;
    (void)bytes;
#endif
}

// Puts x and y into the box of block `rank`; to, came: the same places of the own block. to is a multiple of 8 bytes.
static __device__ __forceinline__ void box_put(float *to, uint64_t *came, unsigned rank, float x, float y)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t place, barrier;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"((uint32_t)__cvta_generic_to_shared(to)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(barrier)
        : "r"((uint32_t)__cvta_generic_to_shared(came)), "r"(rank));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(place),
                 "f"(x), "f"(y), "r"(barrier)
                 : "memory");
#else
    to = cluster_map(to, rank);
    to[0] = x;
    to[1] = y;
    (void)came;
#endif
}

// Waits, with all threads of the block, until everything has come to its box.
static __device__ __forceinline__ void box_wait(uint64_t *came)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t done;
    do
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.u32 "
                     "%0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"((uint32_t)__cvta_generic_to_shared(came))
                     : "memory");
    while (!done);
#else
    (void)came;
    cluster_sync();
#endif
}

// Whether this block is the last of `blocks` to come here, which clears the counter; it then sees what the others wrote past L1.
// All threads call; said: a word of shared memory.
static __device__ __forceinline__ bool come_last(unsigned int *counter, unsigned int blocks, uint32_t *said)
{
    __syncthreads();
    if (threadIdx.x == 0) { // a fence of one thread behind a barrier of all is a fence of all
        __threadfence();
        *said = atomicAdd(counter, 1u) == blocks - 1;
        if (*said)
            *counter = 0;
        __threadfence();
    }
    __syncthreads();
    return *said;
}

static inline bool clusters_available(void)
{
    static int state = -1;
    if (state < 0) {
        state = card_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
    }
    return state;
}

// Bytes of shared memory that a block may have.
static inline size_t block_room(void)
{
    static int bytes = 0;
    if (bytes == 0) {
        bytes = card_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    }
    return (size_t)bytes;
}

#if !defined(CUDA_FIBERS) // whose kernels do not ask
// How many clusters of `cluster` blocks run at once, when the kernel's blocks have a multiprocessor each: the same for
// all such kernels.
static inline int clusters_at_once(const void *kernel, int threads, size_t shared, int cluster)
{
    enum { LARGEST = 8 };
    static int most[LARGEST + 1];
    if (!clusters_available() || cluster > LARGEST || cluster < 1)
        return 0;
    if (most[cluster] == 0) {
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = (unsigned)cluster;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3((unsigned)cluster);
        config.blockDim = dim3((unsigned)threads);
        config.dynamicSmemBytes = shared;
        config.attrs = &attribute;
        config.numAttrs = 1;
        if (launch_prepare(kernel, shared, *pdl_switch()) != cudaSuccess ||
            cudaOccupancyMaxActiveClusters(&most[cluster], kernel, &config) != cudaSuccess || most[cluster] < 1)
            most[cluster] = -1; // none
    }
    return most[cluster];
}
#endif

// launch() with clusters of `cluster` blocks along x.
template <typename... P, typename... A>
static inline cudaError_t launch_cluster(cudaStream_t stream, dim3 grid, dim3 block, size_t shared, unsigned cluster,
                                         void (*kernel)(P...), A... args)
{
    if (cluster == 1)
        return launch(stream, grid, block, shared, kernel, args...);
    cudaError_t error = launch_prepare((const void *)kernel, shared, *pdl_switch());
    if (error != cudaSuccess)
        return error;
    cudaLaunchAttribute attribute[2] = {};
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = cluster;
    attribute[0].val.clusterDim.y = 1;
    attribute[0].val.clusterDim.z = 1;
    attribute[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attribute;
    config.numAttrs = *pdl_switch() ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, P(args)...);
}

#endif
