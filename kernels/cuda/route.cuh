// SPDX-License-Identifier: Apache-2.0
//
// The choice of a row's experts, as a function of one block: route, and products that do it in blocks of their own; and as one of a warp,
// for experts whose blocks choose for themselves (experts_beside.cuh).
//
// Invariant: the router is fp32; experts are chosen by value, ties to the lower id. Every operation is named, so that
// no compiler flag changes a bit.

#ifndef ROUTE_CUH
#define ROUTE_CUH

#include "kernels/cuda/settle.cuh"
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

// By a warp: normalises the weights of row r's chosen experts, that of slot `lane` in each lane, and stores both.
DEVICE void route_store(const struct route_args &a, int64_t r, uint32_t chosen, float weight)
{
    const int32_t lane = threadIdx.x % WARP;
    float sum = 0;
    for (int32_t s = 0; s < a.slots; s++)
        sum = __fadd_rn(sum, __shfl_sync(WHOLE_WARP, weight, s));
    sum = a.normalise ? (a.sigmoid ? __fadd_rn(sum, 1e-20f) : sum) : 1.0f;
    if (lane < a.slots) {
        a.ids[r * a.slots + lane] = (int32_t)chosen;
        a.weights[r * a.slots + lane] = f_mul(__fdiv_rn(weight, sum), a.factor);
    }
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
    float weight = 0;
    if (lane < a.slots)
        weight = SIGMOID ? space->p[chosen] : __fdiv_rn(space->p[chosen], total);
    route_store(a, r, chosen, weight);
}

// ---- by a warp ---------------------------------------------------------------------------------------------------------------

enum { ROUTE_SOME = 64 }; // experts that are looked at twice, at most

// The logits of row r of a softmax router, lane + 32 n in number n, past L1; -infinity where there is no expert.
template <int EACH> DEVICE void route_load(const struct route_args &a, int64_t r, float (&logit)[EACH])
{
    int32_t lane = threadIdx.x % WARP;
    settle(lane);
#pragma unroll
    for (int n = 0; n < EACH; n++)
        logit[n] = lane + WARP * n < a.experts ? __ldcg(a.logits + r * a.ldl + lane + WARP * n) : -INFINITY;
}

// The experts with the highest keys, the best first, to ids[0 .. slots - 1]: which they are follows from keys and numbers alone, so they
// are route_row()'s. key[n]: of expert lane + 32 n, 0 where there is none; there are `slots` experts at least. some: ROUTE_SOME numbers.
// The best of each lane say above what the chosen ones lie; what lies there is mostly so little that each is compared with all others.
template <int EACH>
DEVICE void route_choose(uint32_t (&key)[EACH], int32_t slots, unsigned long long *some, int32_t *ids)
{
    int32_t lane = threadIdx.x % WARP;
    uint32_t top = 0;
    settle(lane); // else a caller's loop keeps every expert's number
#pragma unroll
    for (int n = 0; n < EACH; n++)
        top = key[n] > top ? key[n] : top;
    int32_t before = 0, count = 0;
#pragma unroll
    for (int other = 0; other < WARP; other++) {
        const uint32_t theirs = __shfl_sync(WHOLE_WARP, top, other);
        before += theirs > top || (theirs == top && other < lane);
    }
    const unsigned int last = __ballot_sync(WHOLE_WARP, before == slots - 1);
    const uint32_t least = __shfl_sync(WHOLE_WARP, top, __ffs((int)last) - 1);
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const unsigned int are = __ballot_sync(WHOLE_WARP, key[n] >= least);
        const int32_t at = count + __popc(are & ((1u << lane) - 1));
        if (key[n] >= least && at < ROUTE_SOME)
            some[at] = (unsigned long long)key[n] << 32 | ~(uint32_t)(lane + WARP * n);
        count += __popc(are);
    }
    __syncwarp();
    for (int32_t i = lane; count <= ROUTE_SOME && i < count; i += WARP) {
        const unsigned long long mine = some[i];
        int32_t place = 0;
        for (int32_t other = 0; other < count; other++)
            place += some[other] > mine;
        if (place < slots)
            ids[place] = (int32_t) ~(uint32_t)mine;
    }
    for (int32_t s = 0; count > ROUTE_SOME && s < slots; s++) { // many that are equal
        uint32_t best = 0, who = 0, chosen, id;
#pragma unroll
        for (int n = EACH - 1; n >= 0; n--) {
            who = key[n] >= best ? lane + WARP * n : who;
            best = key[n] >= best ? key[n] : best;
        }
        route_best(best, who, &chosen, &id);
#pragma unroll
        for (int n = 0; n < EACH; n++)
            key[n] = lane + WARP * n == (int32_t)id ? 0 : key[n];
        if (lane == 0)
            ids[s] = (int32_t)id;
    }
    __syncwarp();
}

// Stores a softmax router's choices of row r, ids[0 .. slots - 1], and their weights: route_row()'s operations.
template <int EACH> DEVICE void route_weigh(const struct route_args &a, int64_t r, const int32_t *ids)
{
    const int32_t lane = threadIdx.x % WARP;
    float logit[EACH], top = -INFINITY, total = 0;
    route_load(a, r, logit);
#pragma unroll
    for (int n = 0; n < EACH; n++)
        top = logit[n] > top ? logit[n] : top;
    top = warp_max(top);
    const int32_t chosen = lane < a.slots ? ids[lane] : 0;
    const float own = __ldcg(a.logits + r * a.ldl + chosen);
#pragma unroll
    for (int n = 0; n < EACH; n++)
        total = lane + WARP * n < a.experts ? __fadd_rn(total, expf(__fadd_rn(logit[n], -top))) : total;
    total = warp_sum<WARP>(total);
    route_store(a, r, (uint32_t)chosen, lane < a.slots ? __fdiv_rn(expf(__fadd_rn(own, -top)), total) : 0.0f);
}

#endif
