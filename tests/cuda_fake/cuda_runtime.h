// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for the CUDA runtime that runs kernels on the host: a fiber a thread, a cluster of blocks at a time. For tests of
// the kernels' arithmetic, indices and barriers on machines without a GPU.
//
// Invariant: a fiber runs until it waits for others; those that wait are resumed in ascending order of threads, or descending
// with FAKE_ORDER=down, so a missing barrier shows as a difference between the two. With FAKE_ORDER=blocks a block of a cluster goes as
// far as it can before the next one begins, which shows a missing barrier of clusters; with FAKE_ORDER=warps so does a warp, which shows
// a missing barrier of blocks where warps meet often. Shared memory starts as NaN bits. Red control: with FAKE_BARRIERS=lost the barriers
// of blocks hold nobody up.

#ifndef CUDA_FAKE_RUNTIME_H
#define CUDA_FAKE_RUNTIME_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tuple>

#define CUDA_FIBERS 1
#define __CUDACC__  1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__   static

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};
struct __align__(8) float2
{
    float x, y;
};
struct __align__(16) float4
{
    float x, y, z, w;
};
struct __align__(8) uint2
{
    unsigned x, y;
};
struct __align__(16) uint4
{
    unsigned x, y, z, w;
};
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

// ---- runtime ------------------------------------------------------------------------------------------------------------------

typedef void *cudaStream_t;
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorNotSupported };
enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum { cudaDevAttrComputeCapabilityMajor, cudaDevAttrMaxSharedMemoryPerBlockOptin, cudaDevAttrMultiProcessorCount };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum { cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared };
enum { cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeClusterDimension };
struct cudaLaunchAttribute {
    int id;
    struct {
        int programmaticStreamSerializationAllowed;
        dim3 clusterDim;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};
static inline const char *cudaGetErrorString(cudaError_t)
{
    return "invalid value";
}
static inline cudaError_t cudaMalloc(void **p, size_t n)
{
    *p = aligned_alloc(4096, n);
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t n, int)
{
    memcpy(to, from, n);
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceSynchronize()
{
    return cudaSuccess;
}
static inline cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}
// FAKE_MAJOR=8: a card without clusters. FAKE_ROOM=99: one with so many KiB of shared memory a block. It has few multiprocessors, so that
// few blocks fill it.
static inline cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int)
{
    const char *major = getenv("FAKE_MAJOR"), *room = getenv("FAKE_ROOM");
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? (major ? atoi(major) : 9)
             : attribute == cudaDevAttrMultiProcessorCount  ? 4
                                                            : (room ? atoi(room) : 227) * 1024;
    return cudaSuccess;
}
static inline cudaError_t cudaFuncSetAttribute(const void *, int attribute, int bytes)
{
    int most = 0;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    return attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || bytes <= most ? cudaSuccess
                                                                                     : cudaErrorInvalidValue;
}

// ---- fibers -------------------------------------------------------------------------------------------------------------------

enum { FAKE_STACK = 48 << 10, FAKE_MOST = 8192, FAKE_SHARED = 228 << 10 };

struct fake_meeting { // a barrier
    int arrived, live;
    unsigned turn;
};
struct fake_warp {
    struct fake_meeting meeting;
    uint64_t value[2][32];
};
struct fake_block {
    struct fake_meeting meeting;
    struct fake_warp warp[32];
    uint8_t *shared;
    dim3 index;
};
struct fake_fiber {
    void *stack, *at;
    struct fake_block *block;
    struct fake_warp *warp;
    dim3 thread;
    unsigned lane, cluster_turn, warp_turn;
    bool done;
};
struct fake_world {
    struct fake_fiber fiber[FAKE_MOST], *now;
    struct fake_block block[16];
    struct fake_meeting cluster;
    bool lost; // FAKE_BARRIERS=lost
    void *home;
    dim3 grid, threads;
    void (*body)(void *);
    void *argument;
};
inline struct fake_world fake;

extern "C" void fake_switch(void **save, void *load);
#ifdef CUDA_FAKE_MAIN
__asm__(".text\n.globl fake_switch\nfake_switch:\n"
        "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n");
#endif

static inline void fake_yield()
{
    fake_switch(&fake.now->at, fake.home);
}

static inline void fake_meet_check(struct fake_meeting *m)
{
    if (m->live > 0 && m->arrived == m->live) {
        m->arrived = 0;
        m->turn++;
    }
}

static inline void fake_meet(struct fake_meeting *m)
{
    const unsigned turn = m->turn;
    m->arrived++;
    fake_meet_check(m);
    while (m->turn == turn)
        fake_yield();
}

static inline void fake_leave(struct fake_meeting *m)
{
    m->live--;
    fake_meet_check(m);
}

inline void fake_entry()
{
    fake.body(fake.argument);
    fake.now->done = true;
    fake_leave(&fake.now->warp->meeting);
    fake_leave(&fake.now->block->meeting);
    fake_leave(&fake.cluster);
    fake_yield();
    abort();
}

static inline void fake_start(struct fake_fiber *f)
{
    if (!f->stack)
        f->stack = malloc(FAKE_STACK);
    void **top = (void **)(((uintptr_t)f->stack + FAKE_STACK) & ~(uintptr_t)15);
    *--top = nullptr;
    *--top = (void *)fake_entry;
    top -= 6;
    f->at = top;
    f->done = false;
}

// Resumes each of `count` fibers once. Returns how many are not done.
static inline unsigned fake_resume(struct fake_fiber *fiber, unsigned count, bool down)
{
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++) {
        struct fake_fiber *f = &fiber[down ? count - 1 - i : i];
        if (f->done)
            continue;
        fake.now = f;
        fake_switch(&fake.home, f->at);
        left += !f->done;
    }
    return left;
}

// Resumes `count` fibers of block b from `first` on until they all wait for others, or are done.
static inline unsigned fake_resume_alone(unsigned b, unsigned first, unsigned count)
{
    unsigned before, after = 0, left;
    do {
        before = after;
        left = fake_resume(&fake.fiber[b * fake.threads.x + first], count, false);
        after = fake.cluster.turn + fake.block[b].meeting.turn + count - left;
        for (unsigned w = first / 32; w < (first + count) / 32; w++)
            after += fake.block[b].warp[w].meeting.turn;
    } while (left > 0 && after != before);
    return left;
}

inline void fake_run_cluster(unsigned blocks, unsigned bx, unsigned by, unsigned bz)
{
    const unsigned threads = fake.threads.x;
    const char *order = getenv("FAKE_ORDER"), *barriers = getenv("FAKE_BARRIERS");
    fake.lost = barriers && barriers[0] == 'l';
    const bool down = order && order[0] == 'd';
    const unsigned alone = order && order[0] == 'b' ? threads : order && order[0] == 'w' ? 32 : 0;
    fake.cluster = {0, (int)(blocks * threads), 0};
    for (unsigned b = 0; b < blocks; b++) {
        struct fake_block *block = &fake.block[b];
        if (!block->shared)
            block->shared = (uint8_t *)aligned_alloc(4096, FAKE_SHARED);
        memset(block->shared, 0xff, FAKE_SHARED);
        block->index = dim3(bx + b, by, bz);
        block->meeting = {0, (int)threads, 0};
        for (unsigned w = 0; w < threads / 32; w++)
            block->warp[w].meeting = {0, 32, 0};
        for (unsigned t = 0; t < threads; t++) {
            struct fake_fiber *f = &fake.fiber[b * threads + t];
            fake_start(f);
            f->block = block;
            f->warp = &block->warp[t / 32];
            f->thread = dim3(t, 0, 0);
            f->lane = t % 32;
            f->warp_turn = 0;
        }
    }
    const unsigned all = blocks * threads;
    for (unsigned left = all, idle = 0; left > 0;) {
        left = alone ? 0 : fake_resume(fake.fiber, all, down);
        for (unsigned t = 0; alone && t < all; t += alone)
            left += fake_resume_alone(t / threads, t % threads, alone);
        if (++idle > 1000000)
            exit(printf("Bail out! threads wait for each other\n"));
    }
}

template <typename... P, typename... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A... args)
{
    unsigned cluster = 1;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = config->attrs[i].val.clusterDim.x;
    int room = 0;
    cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    if (config->dynamicSmemBytes > (size_t)room || config->dynamicSmemBytes > FAKE_SHARED ||
        config->gridDim.x % cluster || config->blockDim.x % 32 || config->blockDim.x > 1024 ||
        config->gridDim.x * config->gridDim.y * config->gridDim.z == 0)
        return cudaErrorInvalidValue;
    struct call {
        void (*kernel)(P...);
        std::tuple<P...> args;
    } call = {kernel, std::tuple<P...>(args...)};
    fake.grid = config->gridDim;
    fake.threads = config->blockDim;
    fake.argument = &call;
    fake.body = [](void *p) {
        struct call *c = (struct call *)p;
        std::apply(c->kernel, c->args);
    };
    for (unsigned z = 0; z < fake.grid.z; z++)
        for (unsigned y = 0; y < fake.grid.y; y++)
            for (unsigned x = 0; x < fake.grid.x; x += cluster)
                fake_run_cluster(cluster, x, y, z);
    return cudaSuccess;
}

// ---- device functions -----------------------------------------------------------------------------------------------------------

#define threadIdx (fake.now->thread)
#define blockIdx  (fake.now->block->index)
static dim3 &blockDim = fake.threads, &gridDim = fake.grid;

static inline void *fake_shared()
{
    return fake.now->block->shared;
}
static inline void __syncthreads()
{
    if (!fake.lost)
        fake_meet(&fake.now->block->meeting);
}
static inline void __threadfence_system()
{
}
static inline void __threadfence()
{
}
template <typename T> static inline void __stcg(T *p, T x)
{
    *p = x;
}
template <typename T> static inline T __ldcv(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}

// Every lane's value, in a buffer that stays until the next exchange but one.
static inline const uint64_t *fake_exchange(uint64_t mine)
{
    struct fake_warp *w = fake.now->warp;
    uint64_t *values = w->value[fake.now->warp_turn++ % 2];
    values[fake.now->lane] = mine;
    fake_meet(&w->meeting);
    return values;
}
static inline void __syncwarp()
{
    fake_exchange(0);
}
template <typename T> static inline T fake_shuffle(T x, unsigned from)
{
    uint64_t word = 0;
    memcpy(&word, &x, sizeof x);
    const uint64_t *values = fake_exchange(word);
    memcpy(&x, &values[from & 31], sizeof x);
    return x;
}
template <typename T> static inline T __shfl_xor_sync(unsigned, T x, int mask)
{
    return fake_shuffle(x, fake.now->lane ^ (unsigned)mask);
}
template <typename T> static inline T __shfl_sync(unsigned, T x, int from)
{
    return fake_shuffle(x, (unsigned)from);
}
template <typename T> static inline T __shfl_up_sync(unsigned, T x, unsigned step)
{
    return fake_shuffle(x, fake.now->lane >= step ? fake.now->lane - step : fake.now->lane);
}
static inline unsigned __reduce_max_sync(unsigned, unsigned x)
{
    const uint64_t *values = fake_exchange(x);
    for (int i = 0; i < 32; i++)
        x = values[i] > x ? (unsigned)values[i] : x;
    return x;
}
static inline unsigned __reduce_min_sync(unsigned, unsigned x)
{
    const uint64_t *values = fake_exchange(x);
    for (int i = 0; i < 32; i++)
        x = values[i] < x ? (unsigned)values[i] : x;
    return x;
}
static inline unsigned __reduce_add_sync(unsigned, unsigned x)
{
    const uint64_t *values = fake_exchange(x);
    unsigned sum = 0;
    for (int i = 0; i < 32; i++)
        sum += (unsigned)values[i];
    return sum;
}
static inline unsigned __ballot_sync(unsigned, bool x)
{
    const uint64_t *values = fake_exchange(x);
    unsigned mask = 0;
    for (int i = 0; i < 32; i++)
        mask |= (unsigned)values[i] << i;
    return mask;
}
static inline int __any_sync(unsigned mask, bool x)
{
    return __ballot_sync(mask, x) != 0;
}
#ifndef __byte_perm
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t pick)
{
    const uint64_t all = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++)
        d |= (uint32_t)(all >> (8 * (pick >> (4 * i) & 7)) & 255) << (8 * i);
    return d;
}
#endif
static inline float fake_half(uint32_t word, int high)
{
    const uint32_t bits = (high ? word >> 16 : word & 0xffffu) << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
// The products of tests of kernels/cuda/mma.cuh, from the fragments of all lanes.
static inline void fake_mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    uint32_t all_a[32][4], all_b[32][2];
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    for (int i = 0; i < 6; i++) {
        const uint64_t *values = fake_exchange(mine[i]);
        for (int l = 0; l < 32; l++)
            (i < 4 ? all_a[l][i] : all_b[l][i - 4]) = (uint32_t)values[l];
    }
    const int g = (int)fake.now->lane / 4, t = (int)fake.now->lane % 4;
    for (int j = 0; j < 4; j++) {
        const int row = g + j / 2 * 8, column = 2 * t + j % 2;
        for (int k = 0; k < 16; k++) {
            const int from = k % 8 / 2, high = k % 2;
            c[j] += fake_half(all_a[row % 8 * 4 + from][row / 8 + k / 8 * 2], high) *
                    fake_half(all_b[column * 4 + from][k / 8], high);
        }
    }
}
static inline const uint64_t *fake_matrix_rows(const uint16_t *row)
{
    if ((uintptr_t)row % 16)
        exit(printf("Bail out! a matrix row is not aligned\n"));
    return fake_exchange((uint64_t)row);
}
static inline void fake_load_transposed(uint32_t *r, const uint16_t *row)
{
    const uint64_t *rows = fake_matrix_rows(row);
    const int g = (int)fake.now->lane / 4, t = (int)fake.now->lane % 4;
    for (int m = 0; m < 4; m++) {
        const uint16_t *low = (const uint16_t *)rows[8 * m + 2 * t], *high = (const uint16_t *)rows[8 * m + 2 * t + 1];
        r[m] = low[g] | (uint32_t)high[g] << 16;
    }
}
static inline void fake_load_rows(uint32_t *r, const uint16_t *row)
{
    const uint64_t *rows = fake_matrix_rows(row);
    const int g = (int)fake.now->lane / 4, t = (int)fake.now->lane % 4;
    for (int m = 0; m < 4; m++)
        memcpy(&r[m], (const uint16_t *)rows[8 * m + g] + 2 * t, 4);
}
static inline void fake_cluster_arrive()
{
    fake.now->cluster_turn = fake.cluster.turn;
    fake.cluster.arrived++;
    fake_meet_check(&fake.cluster);
}
static inline void fake_cluster_wait()
{
    while (fake.cluster.turn == fake.now->cluster_turn)
        fake_yield();
}
template <typename T> static inline T *fake_cluster_map(T *mine, unsigned rank)
{
    return (T *)(fake.block[rank].shared + ((uint8_t *)mine - fake.now->block->shared));
}

static inline unsigned atomicAdd(unsigned *p, unsigned x)
{
    const unsigned old = *p;
    *p += x;
    return old;
}
template <typename T> static inline T atomicOr(T *p, T x)
{
    const T old = *p;
    *p |= x;
    return old;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
static inline int __popcll(long long x)
{
    return __builtin_popcountll((unsigned long long)x);
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
template <typename To, typename From> static inline To fake_bits(From x)
{
    To y;
    static_assert(sizeof x == sizeof y, "bits");
    memcpy(&y, &x, sizeof y);
    return y;
}
#define __uint_as_float      fake_bits<float, unsigned>
#define __float_as_uint      fake_bits<unsigned, float>
#define __double_as_longlong fake_bits<long long, double>
#define __longlong_as_double fake_bits<double, long long>
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

#endif
