// SPDX-License-Identifier: Apache-2.0
//
// One or four fp32 at a time, the elementary functions of the activations, and sums with a fixed tree.
//
// Invariant: a sum's order is a function of the number of threads alone, and an element's value of its operands alone; every
// fused multiply-add is written as one, so that no compiler flag changes a bit.

#ifndef CUDA_VEC_CUH
#define CUDA_VEC_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cpu/ops.h"

#define DEVICE static __device__ __forceinline__

enum { WARP = 32 };
static const unsigned WHOLE_WARP = 0xffffffffu;

template <int W> struct vec {
    float v[W];
};

template <int W> DEVICE vec<W> vec_load(const float *p)
{
    vec<W> r;
    if constexpr (W == 4) {
        const float4 t = *reinterpret_cast<const float4 *>(p);
        r.v[0] = t.x, r.v[1] = t.y, r.v[2] = t.z, r.v[3] = t.w;
    } else {
        r.v[0] = *p;
    }
    return r;
}

template <int W> DEVICE void vec_store(float *p, const vec<W> &a)
{
    if constexpr (W == 4)
        *reinterpret_cast<float4 *>(p) = make_float4(a.v[0], a.v[1], a.v[2], a.v[3]);
    else
        *p = a.v[0];
}

// Whether rows of `width` at p with `ld` elements between them can be read four at a time. For the host.
static inline bool vec_fits(const void *p, int64_t ld, int64_t width)
{
    return ((uintptr_t)p % 16 == 0 && ld % 4 == 0 && width % 4 == 0) || !p;
}

DEVICE float f_mul(float a, float b)
{
    return __fmul_rn(a, b);
}

DEVICE float f_sigmoid(float x)
{
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x)));
}

// f_sigmoid of N numbers, without a branch between one and the next: its division has one, behind which others wait.
template <int N> DEVICE void f_sigmoids(float (&x)[N])
{
#if defined(__CUDA_ARCH__)
    float below[N], most = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        below[i] = __fadd_rn(1.0f, expf(-x[i]));
        most = fmaxf(most, below[i]);
    }
    if (most < 0x1p126f) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float r;
            asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(below[i]));
            x[i] = fmaf(fmaf(-below[i], r, 1.0f), r, r); // the nearest number, as long as it is not subnormal
        }
        return;
    }
#endif
    for (int i = 0; i < N; i++)
        x[i] = f_sigmoid(x[i]);
}

DEVICE float f_silu(float x)
{
    return __fdiv_rn(x, __fadd_rn(1.0f, expf(-x)));
}

// f_silu of N numbers, without a branch between one and the next: its division has one, behind which others wait.
template <int N> DEVICE void f_silus(float *x)
{
#if defined(__CUDA_ARCH__)
    float below[N], most = 0, least = 1;
#pragma unroll
    for (int i = 0; i < N; i++) {
        below[i] = __fadd_rn(1.0f, expf(-x[i]));
        most = fmaxf(most, fmaxf(below[i], x[i]));
        least = fminf(least, fabsf(x[i]));
    }
    if (most < 0x1p60f && least > 0x1p-60f) { // nothing on the way is subnormal, and no number is none
#pragma unroll
        for (int i = 0; i < N; i++) {
            float r, y;
            asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(below[i]));
            r = fmaf(fmaf(-below[i], r, 1.0f), r, r);
            y = f_mul(x[i], r);
            y = fmaf(fmaf(-below[i], y, x[i]), r, y);
            x[i] = fmaf(fmaf(-below[i], y, x[i]), r, y); // the nearest number to x / below
        }
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = f_silu(x[i]);
}

// log(1 + exp(x)), and x itself above 20.
DEVICE float f_softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

DEVICE float f_activate(float x, int32_t activation)
{
    switch (activation) {
    case ACT_SILU:
        return f_silu(x);
    case ACT_SIGMOID:
        return f_sigmoid(x);
    case ACT_RELU2:
        x = x < 0 ? 0.0f : x;
        return f_mul(x, x);
    default:
        return x;
    }
}

// Asks for the line of an address in device memory.
DEVICE void prefetch_l2(const void *p)
{
#if defined(__CUDA_ARCH__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
    (void)p;
#endif
}

// Sum over groups of WIDTH neighbouring lanes; every lane gets it.
template <int WIDTH> DEVICE float warp_sum(float x)
{
#pragma unroll
    for (int half = WIDTH / 2; half > 0; half /= 2)
        x = __fadd_rn(x, __shfl_xor_sync(WHOLE_WARP, x, half));
    return x;
}

DEVICE float warp_max(float x)
{
#pragma unroll
    for (int half = WARP / 2; half > 0; half /= 2) {
        const float y = __shfl_xor_sync(WHOLE_WARP, x, half);
        x = y > x ? y : x;
    }
    return x;
}

// Sum over the block; every thread gets it. space: 32 floats of shared memory that nobody else uses until the next barrier
// but one. All threads must call, and the block is whole warps.
DEVICE float block_sum(float x, float *space)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_sum<WARP>(x);
    if (lane == 0)
        space[warp] = x;
    __syncthreads();
    return warp_sum<WARP>(lane < warps ? space[lane] : 0.0f);
}

// Threads for n elements taken `each` at a time: whole warps, `most` at most.
static inline unsigned threads_for(int64_t n, int64_t each, int64_t most)
{
    int64_t threads = ((n + each - 1) / each + WARP - 1) / WARP * WARP;
    return (unsigned)(threads < most ? threads : most);
}

static inline unsigned blocks_for(int64_t n, int64_t each)
{
    return (unsigned)((n + each - 1) / each);
}

#endif
