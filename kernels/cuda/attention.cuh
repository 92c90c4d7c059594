// SPDX-License-Identifier: Apache-2.0
//
// What the attention kernels share: a row's list of positions, its heads, the merge of parts, the gate.
//
// Invariant: the list is ascending and depends on the row alone; parts are merged by one rule, in ascending order, so that a
// part without positions changes nothing.

#ifndef CUDA_ATTENTION_CUH
#define CUDA_ATTENTION_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/kv.cuh"

// The positions of a row: those of `chosen` blocks, then from `tail` on; count of them in all. Dense rows have chosen 0, tail 0.
struct attention_row {
    const uint32_t *table;
    const int32_t *blocks;
    int32_t chosen, tail, count;
};

// chosen: blocks of the row's choice, or -1 for all positions.
DEVICE struct attention_row attention_row_at(const struct attention_args *a, int64_t r, int32_t lane, int32_t position,
                                             int32_t chosen)
{
    struct attention_row row;
    row.table = a->lanes.table[lane];
    row.blocks = a->blocks + (chosen < 0 ? 0 : r * a->keep);
    row.chosen = chosen < 0 ? 0 : chosen;
    row.tail = chosen < 0 ? 0 : (position + 1) / a->ratio * a->ratio;
    row.count = row.chosen * a->ratio + position + 1 - row.tail;
    return row;
}

DEVICE struct attention_row attention_row_of(const struct attention_args *a, int64_t r)
{
    return attention_row_at(a, r, a->pass->lane[r], a->pass->position[r], a->counts ? a->counts[r] : -1);
}

// Position i of the list.
DEVICE int32_t attention_position(const struct attention_args *a, const struct attention_row *row, int32_t i)
{
    const int32_t listed = row->chosen * a->ratio;
    if (i >= listed)
        return row->tail + i - listed;
    const int32_t block = i / a->ratio;
    return row->blocks[block] * a->ratio + i - block * a->ratio;
}

// Query heads are taken in groups of up to `few` that share a kv head.
struct attention_heads {
    int32_t kv_head, first, count;
};

static __host__ __device__ inline int32_t attention_groups(const struct attention_args *a, int32_t few)
{
    const int32_t share = a->heads / a->layout.kv_heads;
    return (share + few - 1) / few * a->layout.kv_heads;
}

DEVICE struct attention_heads attention_heads_of(const struct attention_args *a, int32_t few, int32_t group)
{
    const int32_t share = a->heads / a->layout.kv_heads, groups = (share + few - 1) / few, at = group % groups * few;
    struct attention_heads heads;
    heads.kv_head = group / groups;
    heads.first = heads.kv_head * share + at;
    heads.count = share - at < few ? share - at : few;
    return heads;
}

struct attention_sum {
    float top, total, out;
};

// Parts 0 .. n - 1 in order; part(p, &top, &total) returns the part's weighted values.
template <typename P> DEVICE struct attention_sum attention_merge(int32_t n, P part)
{
    struct attention_sum sum = {-INFINITY, 0, 0};
    for (int32_t p = 0; p < n; p++) {
        float top, total;
        const float out = part(p, &top, &total);
        if (top == -INFINITY)
            continue;
        const float highest = top > sum.top ? top : sum.top;
        const float keep = expf(__fadd_rn(sum.top, -highest)), weight = expf(__fadd_rn(top, -highest));
        sum.top = highest;
        sum.total = fmaf(total, weight, f_mul(sum.total, keep));
        sum.out = fmaf(out, weight, f_mul(sum.out, keep));
    }
    return sum;
}

// y of dim d of head h of row r, through the gate.
DEVICE void attention_write(const struct attention_args *a, int64_t r, int32_t h, int32_t d, float out)
{
    if (a->gate)
        out = f_mul(out, f_sigmoid(a->gate[r * a->ldg + (int64_t)h * a->gate_stride + d]));
    a->y[r * a->ldy + (int64_t)h * a->layout.dim + d] = out;
}

#endif
