// SPDX-License-Identifier: Apache-2.0
//
// The choice of a row's experts, as a function of one block: route, and products that do it in blocks of their own.
//
// Invariant: the router is fp32; experts are chosen by value, ties to the lower id. Every operation is named, so that
// no compiler flag changes a bit.

#ifndef ROUTE_CUH
#define ROUTE_CUH

#include "kernels/cuda/vec.cuh"

enum {
    ROUTE_MOST = 1024,
    ROUTE_THREADS = 512,
    ROUTE_WARPS = ROUTE_THREADS / WARP,
    ROUTE_EACH = ROUTE_MOST / ROUTE_THREADS
};

// Order of floats as order of integers, NaN below everything. 0 is left to mean "taken".
DEVICE uint32_t route_key(float value)
{
    if (value != value)
        return 1;
    const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The warp's highest key and, of those that have it, the lowest id.
DEVICE void route_best(uint32_t key, uint32_t id, uint32_t *best, uint32_t *who)
{
    *best = __reduce_max_sync(WHOLE_WARP, key);
    *who = __reduce_min_sync(WHOLE_WARP, key == *best ? id : ~0u);
}

struct route_space {
    uint32_t key[ROUTE_WARPS][WARP + 1], id[ROUTE_WARPS][WARP + 1]; // each warp's best, in order; then a key of 0
    float p[ROUTE_MOST], top[ROUTE_WARPS];
};

// Whether a row's choices can be made at all. For the host.
static inline bool route_fits(const struct route_args *a)
{
    return a->slots <= WARP && a->slots <= a->experts && a->experts <= ROUTE_MOST;
}

// The choices of row r, by threads 0 .. ROUTE_THREADS - 1 of a block; sync() is a barrier of those. Each warp puts its
// experts in order as far as there are slots, then the first warp merges.
template <bool SIGMOID, class SYNC>
DEVICE void route_row(const struct route_args &a, int64_t r, route_space *space, const SYNC &sync)
{
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float logit[ROUTE_EACH], top = -INFINITY;
    uint32_t key[ROUTE_EACH], best, who;
#pragma unroll
    for (int n = 0; n < ROUTE_EACH; n++) {
        const int32_t e = (int32_t)threadIdx.x + n * ROUTE_THREADS;
        logit[n] = e < a.experts ? a.logits[r * a.ldl + e] : -INFINITY;
        top = logit[n] > top ? logit[n] : top;
    }
    top = warp_max(top);
    if (lane == 0)
        space->top[warp] = top;
#pragma unroll
    for (int n = 0; n < ROUTE_EACH; n++) {
        const int32_t e = (int32_t)threadIdx.x + n * ROUTE_THREADS;
        const float value =
            __fadd_rn(SIGMOID ? f_sigmoid(logit[n]) : logit[n], a.bias && e < a.experts ? a.bias[e] : 0.0f);
        key[n] = e < a.experts ? route_key(value) : 0;
    }
    for (int32_t s = 0; s < a.slots; s++) {
        const bool second = key[1] > key[0];
        const uint32_t mine = threadIdx.x + (second ? ROUTE_THREADS : 0);
        route_best(second ? key[1] : key[0], mine, &best, &who);
        if (lane == 0) {
            space->key[warp][s] = best;
            space->id[warp][s] = who;
        }
        key[0] = who == mine && !second ? 0 : key[0]; // no index that is known at run time: both stay in registers
        key[1] = who == mine && second ? 0 : key[1];
    }
    if (lane == 0)
        space->key[warp][a.slots] = 0;
    sync();
    top = warp_max(space->top[lane % ROUTE_WARPS]);
#pragma unroll
    for (int n = 0; n < ROUTE_EACH; n++) {
        const int32_t e = (int32_t)threadIdx.x + n * ROUTE_THREADS;
        space->p[e] = e >= a.experts ? 0.0f : SIGMOID ? f_sigmoid(logit[n]) : expf(__fadd_rn(logit[n], -top));
    }
    sync();
    if (warp > 0)
        return;
    float total = 0;
    for (int32_t e = lane; e < a.experts; e += WARP)
        total = __fadd_rn(total, space->p[e]);
    total = warp_sum<WARP>(total);
    uint32_t chosen = 0; // the expert in slot `lane`
    int32_t at = 0;
    for (int32_t s = 0; s < a.slots; s++) {
        const bool list = lane < ROUTE_WARPS;
        const uint32_t head = list ? space->id[lane][at] : ~0u;
        route_best(list ? space->key[lane][at] : 0, head, &best, &who);
        chosen = lane == s ? who : chosen;
        at += list && head == who && at < a.slots;
    }
    float weight = 0, sum = 0;
    if (lane < a.slots)
        weight = SIGMOID ? space->p[chosen] : __fdiv_rn(space->p[chosen], total);
    for (int32_t s = 0; s < a.slots; s++)
        sum = __fadd_rn(sum, __shfl_sync(WHOLE_WARP, weight, s));
    sum = a.normalise ? (SIGMOID ? __fadd_rn(sum, 1e-20f) : sum) : 1.0f;
    if (lane < a.slots) {
        a.ids[r * a.slots + lane] = (int32_t)chosen;
        a.weights[r * a.slots + lane] = f_mul(__fdiv_rn(weight, sum), a.factor);
    }
}

#endif
