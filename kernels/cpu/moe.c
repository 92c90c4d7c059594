// SPDX-License-Identifier: Apache-2.0
//
// The router of a mixture of experts, and the sum of its experts' outputs.
//
// Invariant: the router is fp32; experts are chosen by value, ties to the lower id; outputs are summed in slot order.

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/row.h"

static int64_t route_items(const void *p)
{
    return ((const struct route_args *)p)->pass->rows;
}

// The `slots` highest of n values, highest first, ties to the lower index. No value is a NaN.
static void choose(const float *value, int32_t n, int32_t slots, int32_t *ids)
{
    int32_t size = 0;
    for (int32_t e = 0; e < n; e++) {
        if (size == slots && !(value[e] > value[ids[size - 1]]))
            continue;
        int32_t at = size < slots ? size++ : size - 1;
        for (; at > 0 && value[e] > value[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = e;
    }
}

// p[e] = softmax or sigmoid of the logits
static void probabilities(const struct route_args *a, const float *logits, float *p)
{
    const int32_t n = a->experts;
    float top = -__builtin_inff();
    for (int32_t e = 0; e < n; e++)
        top = logits[e] > top ? logits[e] : top;
    vf total = vf_zero();
    for (int32_t e = 0; e < n; e += VEC) {
        int lanes = row_lanes(n, e);
        vf x = row_load(logits + e, lanes);
        x = a->sigmoid ? vf_sigmoid(x) : vf_exp(vf_sub(x, vf_set1(top)));
        row_store(p + e, x, lanes);
        total = vf_add(total, row_load(p + e, lanes));
    }
    if (a->sigmoid)
        return;
    const vf sum = vf_set1(vf_sum(total));
    for (int32_t e = 0; e < n; e += VEC) {
        int lanes = row_lanes(n, e);
        row_store(p + e, vf_div(row_load(p + e, lanes), sum), lanes);
    }
}

static void route_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    const struct route_args *a = args;
    float *p = scratch, *rank = p + a->experts;
    for (int64_t r = begin; r < end; r++) {
        const float *logits = a->logits + r * a->ldl;
        int32_t *ids = a->ids + r * a->slots;
        float *weights = a->weights + r * a->slots;
        probabilities(a, logits, p);
        for (int32_t e = 0; e < a->experts; e++) {
            float value = (a->sigmoid ? p[e] : logits[e]) + (a->bias ? a->bias[e] : 0.0f);
            rank[e] = value == value ? value : -__builtin_inff();
        }
        choose(rank, a->experts, a->slots, ids);
        float sum = 0;
        for (int32_t s = 0; s < a->slots; s++)
            sum += p[ids[s]];
        sum = a->normalise ? (a->sigmoid ? sum + 1e-20f : sum) : 1.0f;
        for (int32_t s = 0; s < a->slots; s++)
            weights[s] = p[ids[s]] / sum * a->factor;
    }
}

const struct kernel ISA_SYM(kernel_route) = {"route", {{route_items, route_run}}};

static int64_t moe_sum_items(const void *p)
{
    const struct moe_sum_args *a = p;
    return a->pass->rows * ceil_div(a->width, ROW_BLOCK);
}

static void moe_sum_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct moe_sum_args *a = p;
    const int64_t blocks = ceil_div(a->width, ROW_BLOCK);
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        int64_t r = item / blocks;
        int32_t first = (int32_t)(item % blocks) * ROW_BLOCK, last = least(first + ROW_BLOCK, a->width);
        const vf gate = vf_set1(a->gate ? f_sigmoid(a->gate[r * a->ldg]) : 1.0f);
        const float *routed = a->routed + r * a->slots * a->width, *weights = a->weights + r * a->slots;
        for (int32_t i = first; i < last; i += VEC) {
            int lanes = row_lanes(last, i);
            vf sum = vf_zero();
            for (int32_t s = 0; s < a->slots; s++)
                sum = vf_fma(vf_set1(weights[s]), row_load(routed + (int64_t)s * a->width + i, lanes), sum);
            if (a->shared)
                sum = vf_fma(gate, row_load(a->shared + r * a->lds + i, lanes), sum);
            row_store(a->y + r * a->ldy + i, sum, lanes);
        }
    }
}

const struct kernel ISA_SYM(kernel_moe_sum) = {"moe_sum", {{moe_sum_items, moe_sum_run}}};
