// SPDX-License-Identifier: Apache-2.0
//
// The sum of a row's experts, as a function of a place in the row: moe_sum, and the kernels that go on with the sum.
//
// Invariant: slots in their order, then the shared expert.

#ifndef MIXTURE_CUH
#define MIXTURE_CUH

#include "kernels/cuda/vec.cuh"

enum { MOE_AHEAD = 5, MOE_MORE = 10 }; // slots that are in flight at once; where there are registers

// Whether vectors of four fit. For the host.
static inline bool moe_sum_wide(const struct moe_sum_args *a)
{
    return vec_fits(a->routed, a->width, a->width) && vec_fits(a->shared, a->lds, a->width) &&
           vec_fits(a->y, a->ldy, a->width);
}

template <int W, int AHEAD = MOE_AHEAD> DEVICE vec<W> moe_sum_at(const struct moe_sum_args &a, int64_t r, int32_t i)
{
    const float *routed = a.routed + r * a.slots * a.width + i, *weights = a.weights + r * a.slots;
    vec<W> sum = {}, shared = {};
    if (a.shared)
        shared = vec_load<W>(a.shared + r * a.lds + i);
    const float gate = a.gate ? f_sigmoid(a.gate[r * a.ldg]) : 1.0f;
    for (int32_t s = 0; s < a.slots; s += AHEAD) {
        vec<W> t[AHEAD];
        float weight[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (s + n < a.slots) {
                t[n] = vec_load<W>(routed + (int64_t)(s + n) * a.width);
                weight[n] = weights[s + n];
            }
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (s + n < a.slots)
#pragma unroll
                for (int j = 0; j < W; j++)
                    sum.v[j] = fmaf(weight[n], t[n].v[j], sum.v[j]);
    }
    if (a.shared)
#pragma unroll
        for (int j = 0; j < W; j++)
            sum.v[j] = fmaf(gate, shared.v[j], sum.v[j]);
    return sum;
}

#endif
