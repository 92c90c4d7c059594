// SPDX-License-Identifier: Apache-2.0
//
// Runs CUDA kernels on the host: each thread of a cluster of blocks is a coroutine, clusters run one after the other, barriers and
// the collective operations of a warp meet as on the device. Slow; for the logic of kernels where there is no GPU.
//
// EMULATED_LAUNCH=early: before its wait a kernel does not see what the launch before it wrote (tests/cuda_emulation_early.h).
//
// Invariant: a barrier that not all its threads reach hangs no test: it ends the program with a line. Kernels that run in clusters have
// dynamic shared memory only, since variables in shared memory are the process's.

#ifndef CUDA_EMULATION_H
#define CUDA_EMULATION_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#undef __shared__
#define __shared__ static
#undef __grid_constant__
#define __grid_constant__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __noinline__
#define __noinline__      __attribute__((noinline))
#define SHARED_ROOM(name) unsigned char *name = emulation.here->shared
#define LAUNCH_CUH
#define CUDA_CLUSTER_CUH

#include "tests/cuda_emulation_early.h"

struct emulated_index {
    unsigned int x, y, z;
};
static struct emulated_index threadIdx, blockIdx, blockDim, gridDim;

enum { EMULATED_THREADS = 5120, EMULATED_STACK = 128 * 1024, EMULATED_CLUSTER = 8, EMULATED_STATIC = 128 };

struct emulated_barrier {
    unsigned int arrived, generation;
};

// What the threads of one block share.
struct emulated_room {
    unsigned char *shared;
    unsigned int left; // threads that have not ended; then its shared memory is gone
    bool fenced, triggered;
    struct emulated_barrier block, warp[32], some[16];
    uint32_t operand[32][32][6];
};

static struct {
    ucontext_t scheduler, thread[EMULATED_THREADS];
    bool done[EMULATED_THREADS];
    unsigned int cluster_turn[EMULATED_THREADS]; // of the cluster's barrier, when the thread came
    unsigned char *stack;
    unsigned int current, progress, threads; // of the cluster
    size_t shared;                           // bytes of a block
    struct emulated_room room[EMULATED_CLUSTER], *here;
    struct emulated_barrier cluster;
    bool lost; // EMULATED_BARRIERS=lost: barriers of blocks hold nobody up, and the last threads go first
    void (*body)(void *);
    void *arguments;
} emulation;

static void emulated_yield(void)
{
    swapcontext(&emulation.thread[emulation.current], &emulation.scheduler);
}

static void emulated_wait(struct emulated_barrier *b, unsigned int count)
{
    unsigned int generation = b->generation;
    emulation.progress++;
    if (++b->arrived == count) {
        b->arrived = 0;
        b->generation++;
        return;
    }
    while (b->generation == generation)
        emulated_yield();
    emulation.progress++;
}

static inline void __syncthreads(void)
{
    if (!emulation.lost)
        emulated_wait(&emulation.here->block, blockDim.x);
}
static inline void __syncwarp(void)
{
    emulated_wait(&emulation.here->warp[threadIdx.x / 32], 32);
}

static void emulated_entry(void)
{
    emulation.body(emulation.arguments);
    emulation.done[emulation.current] = true;
    emulation.progress++;
    swapcontext(&emulation.thread[emulation.current], &emulation.scheduler);
}

// Runs the blocks blockIdx.x .. blockIdx.x + cluster - 1 of `threads` threads together.
static void emulated_blocks(unsigned int threads, unsigned int cluster)
{
    const unsigned int first = blockIdx.x, all = emulation.threads = threads * cluster;
    const char *barriers = getenv("EMULATED_BARRIERS");
    emulation.lost = barriers && strcmp(barriers, "lost") == 0;
    early.released = !early_wanted();
    early_swap();
    for (unsigned int t = 0; t < all; t++) {
        emulation.room[t / threads].left = threads;
        emulation.room[t / threads].fenced = emulation.room[t / threads].triggered = false;
        emulation.done[t] = false;
        getcontext(&emulation.thread[t]);
        emulation.thread[t].uc_stack.ss_sp = emulation.stack + (size_t)t * EMULATED_STACK;
        emulation.thread[t].uc_stack.ss_size = EMULATED_STACK;
        emulation.thread[t].uc_link = NULL;
        makecontext(&emulation.thread[t], emulated_entry, 0);
    }
    for (unsigned int left = all; left;) {
        unsigned int before = emulation.progress;
        left = 0;
        for (unsigned int i = 0; i < all; i++) {
            const unsigned int t = emulation.lost ? all - 1 - i : i;
            if (emulation.done[t])
                continue;
            emulation.current = t;
            emulation.here = &emulation.room[t / threads];
            threadIdx.x = t % threads;
            blockIdx.x = first + t / threads;
            swapcontext(&emulation.scheduler, &emulation.thread[t]);
            left += !emulation.done[t];
            if (emulation.done[t] && --emulation.here->left == 0) {
                memset(emulation.here->shared, 0xff, emulation.shared);
                early.late = early.late || !emulation.here->triggered;
            }
        }
        if ((!left || before == emulation.progress) && !early.released) {
            early_swap();
            if (blockIdx.x + blockIdx.y + blockIdx.z < cluster && !early_same())
                exit(printf("Bail out! a kernel stores before its wait\n"));
            early.released = true;
            emulation.progress++;
        }
        if (left && before == emulation.progress) {
            printf("Bail out! %u threads of a block wait for a barrier that the others do not reach\n", left);
            exit(1);
        }
    }
    blockIdx.x = first;
    memset(&emulation.cluster, 0, sizeof emulation.cluster);
    for (struct emulated_room *room = emulation.room; room < emulation.room + cluster; room++) {
        memset(&room->block, 0, sizeof room->block);
        memset(room->warp, 0, sizeof room->warp);
        memset(room->some, 0, sizeof room->some);
    }
}

template <typename BODY> static void emulated_call(void *body)
{
    (*(BODY *)body)();
}

// Shared memory of a block: 227 KiB, or what EMULATED_SHARED says, EMULATED_STATIC of it for what kernels declare beside the dynamic part.
static int emulated_shared(void)
{
    const char *bytes = getenv("EMULATED_SHARED");
    return bytes ? atoi(bytes) : 227 * 1024;
}

template <typename... P, typename... A>
static cudaError_t launch_cluster(cudaStream_t, dim3 grid, dim3 block, size_t shared, unsigned int cluster,
                                  void (*kernel)(P...), A... args)
{
    auto body = [&]() { kernel(P(args)...); };
    if (cluster > EMULATED_CLUSTER || grid.x % cluster || block.x * cluster > EMULATED_THREADS ||
        shared + EMULATED_STATIC > (size_t)emulated_shared())
        return cudaErrorInvalidConfiguration;
    if (!emulation.stack)
        emulation.stack = (unsigned char *)malloc((size_t)EMULATED_THREADS * EMULATED_STACK);
    emulation.shared = (shared + 127) / 128 * 128 + 128;
    for (unsigned int i = 0; i < cluster; i++) {
        emulation.room[i].shared = (unsigned char *)aligned_alloc(1024, (emulation.shared + 1023) / 1024 * 1024);
        memset(emulation.room[i].shared, 0xff, shared);
    }
    emulation.body = emulated_call<decltype(body)>;
    emulation.arguments = &body;
    blockDim = {block.x, 1, 1};
    gridDim = {grid.x, grid.y, grid.z};
    early_begin();
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x += cluster)
                emulated_blocks(block.x, cluster);
    early_end();
    for (unsigned int i = 0; i < cluster; i++)
        free(emulation.room[i].shared);
    return cudaSuccess;
}

template <typename... P, typename... A>
static cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared, void (*kernel)(P...), A... args)
{
    return launch_cluster(stream, grid, block, shared, 1, kernel, args...);
}

static inline cudaError_t launch_prepare(const void *, size_t, bool)
{
    return cudaSuccess;
}

// The barrier of a cluster, and the same place of another block's shared memory.
static inline void cluster_arrive(void)
{
    emulation.cluster_turn[emulation.current] = emulation.cluster.generation;
    emulation.progress++;
    if (++emulation.cluster.arrived == emulation.threads) {
        emulation.cluster.arrived = 0;
        emulation.cluster.generation++;
    }
}
static inline void cluster_arrive_read(void)
{
    cluster_arrive();
}
static inline void cluster_wait(void)
{
    while (emulation.cluster.generation == emulation.cluster_turn[emulation.current])
        emulated_yield();
    emulation.progress++;
}
static inline void cluster_sync(void)
{
    cluster_arrive();
    cluster_wait();
}
template <typename T> static inline T *cluster_map(T *mine, unsigned int rank)
{
    return (T *)(emulation.room[rank].shared + ((unsigned char *)mine - emulation.here->shared));
}

static inline bool clusters_available(void)
{
    return true;
}
static inline int clusters_at_once(const void *, int threads, size_t, int cluster)
{
    return cluster <= EMULATED_CLUSTER && cluster * threads <= EMULATED_THREADS ? 1 << 20 : 0;
}

// Two multiprocessors, so that blocks have several units; EMULATED_CARD=fixed: what kernels for one shape are made for.
static inline int emulated_attribute(int attribute)
{
    if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin)
        return emulated_shared();
    if (!getenv("EMULATED_CARD"))
        return 2;
    return attribute == cudaDevAttrMultiProcessorCount ? 132 : attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 2;
}

#define cudaGetDevice(device) (*(device) = 0, cudaSuccess)
#define cudaDeviceGetAttribute(value, attribute, device)                                                               \
    (*(value) = emulated_attribute(attribute), (void)(device), cudaSuccess)

static inline void pdl_wait(void)
{
    while (!early.released)
        emulated_yield();
}
static inline void pdl_trigger(void)
{
    if (early_wanted() && !emulation.here->triggered) {
        emulation.here->triggered = true;
        early.late = early.late || early.released;
        if (emulation.here->fenced && !early.unfenced)
            early_keep();
    }
}
static inline void __threadfence(void)
{
    emulation.here->fenced = true;
}
template <typename T> static inline T atomicAdd(T *p, T v)
{
    T old = *p;
    *p += v;
    return old;
}
static inline uint32_t atomicOr(uint32_t *p, uint32_t v)
{
    const uint32_t old = *p;
    *p |= v;
    return old;
}
static inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t __float_as_uint(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t pick)
{
    uint64_t all = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++)
        d |= (uint32_t)(all >> (8 * (pick >> (4 * i) & 7)) & 255) << (8 * i);
    return d;
}
template <typename T> static inline void __stcg(T *p, T v)
{
    *p = v;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}

template <typename T> static inline T emulated_load(const void *p)
{
    if ((uintptr_t)p % sizeof(T)) {
        printf("Bail out! load of %zu bytes from a misaligned place\n", sizeof(T));
        exit(1);
    }
    T v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint4 load_kept16(const void *p)
{
    return emulated_load<uint4>(p);
}

static inline uint2 load_kept8(const void *p)
{
    return emulated_load<uint2>(p);
}

static inline void load_soon(const void *)
{
}

static inline uint32_t emulated_bf16(float f)
{
    uint32_t u = __float_as_uint(f);
    return f != f ? 0x7fc0u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
static inline float emulated_half(uint32_t pair, int i)
{
    return __uint_as_float(i ? pair & 0xffff0000u : pair << 16);
}
static inline uint32_t pair_pack(float low, float high)
{
    return emulated_bf16(low) | emulated_bf16(high) << 16;
}
static inline uint32_t pair_twice(uint32_t pair, int high)
{
    return (high ? pair >> 16 : pair & 0xffffu) * 0x10001u;
}
static inline uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c)
{
    float d[2]; // the products and sums that occur here are exact in double
    for (int i = 0; i < 2; i++)
        d[i] = (float)((double)emulated_half(a, i) * (double)emulated_half(b, i) + (double)emulated_half(c, i));
    return pair_pack(d[0], d[1]);
}
template <uint32_t MASK> static inline uint32_t and_or(uint32_t w, uint32_t more)
{
    return (w & MASK) | more;
}
static inline float half_float(uint32_t h)
{
    int e = (int)(h >> 10 & 31);
    float m = (float)(h & 1023), v = e ? ldexpf(1024.0f + m, e - 25) : ldexpf(m, -24);
    v = e < 31 ? v : m > 0 ? NAN : INFINITY;
    return h & 0x8000u ? -v : v;
}
static inline uint32_t half_pack(float low, float high)
{
    _Float16 h[2] = {(_Float16)low, (_Float16)high};
    uint32_t u;
    memcpy(&u, h, 4);
    return u;
}
static inline uint32_t half_fma(uint32_t a, uint32_t b, uint32_t c)
{
    float d[2]; // the products and sums that occur here are exact in fp32
    for (int i = 0; i < 2; i++)
        d[i] =
            half_float(a >> 16 * i & 0xffffu) * half_float(b >> 16 * i & 0xffffu) + half_float(c >> 16 * i & 0xffffu);
    return half_pack(d[0], d[1]);
}
static inline uint32_t half_mul(uint32_t a, uint32_t b)
{
    return half_fma(a, b, 0x80008000u);
}

template <typename T> static inline T emulated_shuffle(T v, unsigned int from)
{
    unsigned int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    static_assert(sizeof(T) == 4, "one word a lane");
    memcpy(&emulation.here->operand[warp][lane][0], &v, 4);
    __syncwarp();
    memcpy(&v, &emulation.here->operand[warp][from < 32 ? from : lane][0], 4);
    __syncwarp();
    return v;
}
template <typename T> static inline T __shfl_xor_sync(uint32_t, T v, unsigned int mask)
{
    return emulated_shuffle(v, threadIdx.x % 32 ^ mask);
}
template <typename T> static inline T __shfl_up_sync(uint32_t, T v, unsigned int step)
{
    return emulated_shuffle(v, threadIdx.x % 32 - step);
}
template <typename T> static inline T __shfl_sync(uint32_t, T v, unsigned int from)
{
    return emulated_shuffle(v, from);
}

static inline uint32_t __ballot_sync(uint32_t, bool vote)
{
    unsigned int warp = threadIdx.x / 32;
    emulation.here->operand[warp][threadIdx.x % 32][0] = vote;
    __syncwarp();
    uint32_t all = 0;
    for (int i = 0; i < 32; i++)
        all |= emulation.here->operand[warp][i][0] << i;
    __syncwarp();
    return all;
}
// The warp's greatest or least operand.
template <class PICK> static inline uint32_t emulated_reduce(uint32_t v, PICK pick)
{
    unsigned int warp = threadIdx.x / 32;
    emulation.here->operand[warp][threadIdx.x % 32][0] = v;
    __syncwarp();
    for (int i = 0; i < 32; i++)
        v = pick(v, emulation.here->operand[warp][i][0]);
    __syncwarp();
    return v;
}
static inline uint32_t __reduce_max_sync(uint32_t, uint32_t v)
{
    return emulated_reduce(v, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}
static inline uint32_t __reduce_min_sync(uint32_t, uint32_t v)
{
    return emulated_reduce(v, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
}
static inline uint32_t __match_any_sync(uint32_t, int v)
{
    unsigned int warp = threadIdx.x / 32;
    emulation.here->operand[warp][threadIdx.x % 32][0] = (uint32_t)v;
    __syncwarp();
    uint32_t same = 0;
    for (int i = 0; i < 32; i++)
        same |= (uint32_t)(emulation.here->operand[warp][i][0] == (uint32_t)v) << i;
    __syncwarp();
    return same;
}
#define __ffs(u)           __builtin_ffs((int)(u))
#define __popc(u)          __builtin_popcount(u)
#define __fadd_rn(a, b)    ((a) + (b))
#define __fsub_rn(a, b)    ((a) - (b))
#define __fmul_rn(a, b)    ((a) * (b))
#define __fdiv_rn(a, b)    ((a) / (b))
#define __fmaf_rn(a, b, c) fmaf(a, b, c)
#define __fsqrt_rn(a)      sqrtf(a)

// d += a b, 16 x K times K x 8, spread over the warp as PTX says. product(left, right, i): of number i of the words that hold them.
template <unsigned int K, class T, class PRODUCT>
static inline void emulated_mma(T *d, const uint32_t *a, uint32_t b0, uint32_t b1, PRODUCT product)
{
    unsigned int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned int word = K / 8; // numbers of one
    uint32_t(*all)[6] = emulation.here->operand[warp];
    memcpy(all[lane], a, 16);
    all[lane][4] = b0;
    all[lane][5] = b1;
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        unsigned int row = lane / 4 + (i >> 1) * 8, column = lane % 4 * 2 + (i & 1);
        for (unsigned int k = 0; k < K; k++) {
            const uint32_t *left = all[row % 8 * 4 + k % (K / 2) / word], *right = all[column * 4 + k % (K / 2) / word];
            d[i] += product(left[(row >= 8) + 2 * (k >= K / 2)], right[4 + (k >= K / 2)], k % word);
        }
    }
    __syncwarp();
}
static inline void mma_bf16(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    emulated_mma<16>(d, a, b0, b1, [](uint32_t left, uint32_t right, unsigned int i) {
        return emulated_half(left, (int)i) * emulated_half(right, (int)i);
    });
}
static inline void mma_half(float *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    static float numbers[65536];
    if (numbers[1] == 0)
        for (uint32_t h = 0; h < 65536; h++)
            numbers[h] = half_float(h);
    emulated_mma<16>(d, a, b0, b1, [](uint32_t left, uint32_t right, unsigned int i) {
        return numbers[left >> 16 * i & 0xffffu] * numbers[right >> 16 * i & 0xffffu];
    });
}

static inline float max_nan(float a, float b)
{
    return a != a || a > b ? a : b;
}
static inline void mma_bytes(int32_t *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    emulated_mma<32>(d, a, b0, b1, [](uint32_t left, uint32_t right, unsigned int i) {
        return (int32_t)(left >> 8 * i & 255u) * (int8_t)(right >> 8 * i & 255u);
    });
}
template <int FROM> static inline void mma_bytes_from(int32_t *d, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    for (int i = 0; i < 4; i++)
        d[i] = FROM;
    mma_bytes(d, a, b0, b1);
}

// The product of a warpgroup, a warp at a time: 16 outputs by 8 NT rows by 16 k (kernels/cuda/wgmma.cuh).
typedef const unsigned char *wgmma_source;
typedef unsigned char *shared_place;
static inline shared_place shared_opaque(void *p)
{
    return (shared_place)p;
}
template <class T> static inline T shared_load(shared_place p)
{
    return emulated_load<T>(p);
}
static inline wgmma_source wgmma_rows(const void *shared)
{
    if ((uintptr_t)shared % 1024) {
        printf("Bail out! rows of a product at no multiple of 1024 bytes\n");
        exit(1);
    }
    return (wgmma_source)shared;
}
static inline wgmma_source wgmma_at(wgmma_source rows, int bytes, int piece)
{
    return rows + bytes + piece * 16;
}
static inline unsigned char *wgmma_align(unsigned char *shared)
{
    return shared + (-(uintptr_t)shared & 1023u);
}
static inline void wgmma_fence(uint32_t a[2][2][4])
{
}
static inline void wgmma_fence_half(uint32_t a[2][4])
{
}
static inline void wgmma_commit(void)
{
}
template <int N> static inline void wgmma_wait(void)
{
}
template <int N, int LEFT = 0> static inline void wgmma_settle(float *)
{
}
static inline void wgmma_publish(void)
{
}
#include "tests/cuda_emulation_stages.h"

#endif
