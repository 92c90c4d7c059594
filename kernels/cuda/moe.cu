// SPDX-License-Identifier: Apache-2.0
//
// The router of a mixture of experts, and the sum of its experts' outputs.
//
// Invariant: the router is fp32; experts are chosen by value, ties to the lower id; outputs are summed in slot order.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

// ---- route: a warp a row -----------------------------------------------------------------------------------------------------

enum { ROUTE_MOST = 1024 }; // experts

// Order of floats as order of integers, NaN below everything. 0 is left to mean "taken".
DEVICE uint32_t route_key(float value)
{
    if (value != value)
        return 1;
    const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE float route_logit(const struct route_args *a, int64_t r, int32_t e)
{
    return e < a->experts ? a->logits[r * a->ldl + e] : -INFINITY;
}

// The highest of a lane's keys: a tree, since one warp alone has only its own instructions to overlap.
template <int N> DEVICE uint32_t route_highest(const uint32_t *key)
{
    uint32_t t[N];
#pragma unroll
    for (int n = 0; n < N; n++)
        t[n] = key[n];
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2)
#pragma unroll
        for (int n = 0; n < half; n++)
            t[n] = t[n] > t[n + half] ? t[n] : t[n + half];
    return t[0];
}

// The lowest expert of this lane that has the key, or ~0.
template <int N> DEVICE uint32_t route_lowest(const uint32_t *key, uint32_t highest, int32_t lane)
{
    uint32_t t[N];
#pragma unroll
    for (int n = 0; n < N; n++)
        t[n] = key[n] == highest ? (uint32_t)(lane + n * WARP) : ~0u;
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2)
#pragma unroll
        for (int n = 0; n < half; n++)
            t[n] = t[n] < t[n + half] ? t[n] : t[n + half];
    return t[0];
}

// N: experts a lane; lane has experts lane, lane + 32, ...
template <int N, bool SIGMOID>
__global__ void __launch_bounds__(WARP) route_kernel(const __grid_constant__ struct route_args a)
{
    const int32_t lane = threadIdx.x;
    const int64_t r = blockIdx.x;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows)
        return;
    float p[N], top = -INFINITY, total = 0;
    uint32_t key[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        p[n] = route_logit(&a, r, lane + n * WARP);
        top = p[n] > top ? p[n] : top;
    }
    top = warp_max(top);
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int32_t e = lane + n * WARP;
        const float logit = p[n];
        p[n] = e >= a.experts ? 0.0f : SIGMOID ? f_sigmoid(logit) : expf(__fadd_rn(logit, -top));
        total = __fadd_rn(total, p[n]);
        const float value = e < a.experts ? __fadd_rn(SIGMOID ? p[n] : logit, a.bias ? a.bias[e] : 0.0f) : 0.0f;
        key[n] = e < a.experts ? route_key(value) : 0;
    }
    total = warp_sum<WARP>(total);
    uint32_t mine = 0; // the expert in slot `lane`
    for (int32_t s = 0; s < a.slots; s++) {
        const uint32_t highest = __reduce_max_sync(WHOLE_WARP, route_highest<N>(key));
        const uint32_t id = __reduce_min_sync(WHOLE_WARP, route_lowest<N>(key, highest, lane));
        mine = lane == s ? id : mine;
#pragma unroll
        for (int n = 0; n < N; n++)
            key[n] = id == (uint32_t)(lane + n * WARP) ? 0 : key[n];
    }
    float weight = 0, sum = 0;
    if (lane < a.slots) {
        const float logit = a.logits[r * a.ldl + mine];
        weight = SIGMOID ? f_sigmoid(logit) : __fdiv_rn(expf(__fadd_rn(logit, -top)), total);
    }
    for (int32_t s = 0; s < a.slots; s++)
        sum = __fadd_rn(sum, __shfl_sync(WHOLE_WARP, weight, s));
    sum = a.normalise ? (SIGMOID ? __fadd_rn(sum, 1e-20f) : sum) : 1.0f;
    if (lane < a.slots) {
        a.ids[r * a.slots + lane] = (int32_t)mine;
        a.weights[r * a.slots + lane] = f_mul(__fdiv_rn(weight, sum), a.factor);
    }
}

template <bool SIGMOID> static cudaError_t route_launch(cudaStream_t stream, const struct route_args *a, unsigned rows)
{
    if (a->experts <= 4 * WARP)
        return launch(stream, rows, WARP, 0, route_kernel<4, SIGMOID>, *a);
    if (a->experts <= 8 * WARP)
        return launch(stream, rows, WARP, 0, route_kernel<8, SIGMOID>, *a);
    if (a->experts <= 16 * WARP)
        return launch(stream, rows, WARP, 0, route_kernel<16, SIGMOID>, *a);
    return launch(stream, rows, WARP, 0, route_kernel<32, SIGMOID>, *a);
}

extern "C" cudaError_t cuda_route(cudaStream_t stream, const struct route_args *a, int rows)
{
    if (a->slots > WARP || a->slots > a->experts || a->experts > ROUTE_MOST)
        return cudaErrorInvalidValue;
    return a->sigmoid ? route_launch<true>(stream, a, (unsigned)rows) : route_launch<false>(stream, a, (unsigned)rows);
}

// ---- moe_sum: a thread a vector ------------------------------------------------------------------------------------------------

enum { MOE_THREADS = 64, MOE_AHEAD = 5 }; // slots that are in flight at once

template <int W>
__global__ void __launch_bounds__(MOE_THREADS) moe_sum_kernel(const __grid_constant__ struct moe_sum_args a)
{
    const int64_t r = blockIdx.y;
    const int32_t i = (int32_t)(blockIdx.x * MOE_THREADS + threadIdx.x) * W;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || i >= a.width)
        return;
    const float *routed = a.routed + r * a.slots * a.width + i, *weights = a.weights + r * a.slots;
    vec<W> sum = {}, shared = {};
    if (a.shared)
        shared = vec_load<W>(a.shared + r * a.lds + i);
    const float gate = a.gate ? f_sigmoid(a.gate[r * a.ldg]) : 1.0f;
    for (int32_t s = 0; s < a.slots; s += MOE_AHEAD) {
        vec<W> t[MOE_AHEAD];
        float weight[MOE_AHEAD];
#pragma unroll
        for (int n = 0; n < MOE_AHEAD; n++)
            if (s + n < a.slots) {
                t[n] = vec_load<W>(routed + (int64_t)(s + n) * a.width);
                weight[n] = weights[s + n];
            }
#pragma unroll
        for (int n = 0; n < MOE_AHEAD; n++)
            if (s + n < a.slots)
#pragma unroll
                for (int j = 0; j < W; j++)
                    sum.v[j] = fmaf(weight[n], t[n].v[j], sum.v[j]);
    }
    if (a.shared)
#pragma unroll
        for (int j = 0; j < W; j++)
            sum.v[j] = fmaf(gate, shared.v[j], sum.v[j]);
    vec_store<W>(a.y + r * a.ldy + i, sum);
}

extern "C" cudaError_t cuda_moe_sum(cudaStream_t stream, const struct moe_sum_args *a, int rows)
{
    const bool wide = vec_fits(a->routed, a->width, a->width) && vec_fits(a->shared, a->lds, a->width) &&
                      vec_fits(a->y, a->ldy, a->width);
    const dim3 grid(blocks_for(a->width, (wide ? 4 : 1) * MOE_THREADS), (unsigned)rows);
    if (wide)
        return launch(stream, grid, MOE_THREADS, 0, moe_sum_kernel<4>, *a);
    return launch(stream, grid, MOE_THREADS, 0, moe_sum_kernel<1>, *a);
}
