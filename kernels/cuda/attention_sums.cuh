// SPDX-License-Identifier: Apache-2.0
//
// Attention over bf16 caches on the matrix units (attention_mma.cuh): how a row's outputs come from the sums of its blocks. Each block
// adds a share of the dims: those that the blocks of its cluster put into its box, and, of a long row with several clusters, those that
// blocks like it left in scratch, if it is the last of them.
//
// Invariant: parts are added in ascending order, units of long rows in pairs (attention_long.cuh), whoever adds them. Counters are
// zero between launches.

#ifndef CUDA_ATTENTION_SUMS_CUH
#define CUDA_ATTENTION_SUMS_CUH

#include "kernels/cuda/attention_long.cuh"

// How many of a long row's clusters have put a block's share of the dims into scratch.
static __device__ unsigned int long_counter[LONG_CLUSTERS / 2 * MMA_PARTS];

// Every part puts its sums where their dims are added: maxima and totals of the heads of warp `warp`,

template <int DIM, int PARTS>
DEVICE void mma_put_sums(struct mma_ends<DIM> *s, const struct mma_sums *sums, int32_t warp, int32_t part)
{
    const int32_t lane = threadIdx.x % WARP;
    if (lane < PARTS)
#pragma unroll
        for (int n = 0; n < MMA_EACH; n++)
            box_put(s->sums[part][warp * MMA_EACH + n], &s->came, (unsigned)lane, sums->top[n], sums->total[n]);
}

// and weighted values of the warp's dims.
template <int DIM, int PARTS>
DEVICE void mma_put_out(struct mma_ends<DIM> *s, const float (*out)[4], int32_t heads, int32_t part)
{
    constexpr int OWNED = DIM / PARTS;
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (warp < mma_share<DIM>::WAYS)
#pragma unroll
        for (int n = 0; n < mma_share<DIM>::COLUMNS; n++) {
            const int32_t d = warp * mma_share<DIM>::WIDTH + n * 8 + lane % 4 * 2;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int32_t h = lane / 4 + half * 8;
                if (h < heads)
                    box_put(s->out + (part * MMA_HEADS + h) * OWNED + d % OWNED, &s->came, (unsigned)(d / OWNED),
                            out[n][2 * half], out[n][2 * half + 1]);
            }
        }
}

// Bytes that a block gets. HEADS: those whose sums are put, whether they exist or not.
template <int DIM, int PARTS, int HEADS> DEVICE int mma_bytes(int32_t heads)
{
    return 4 * (heads * DIM + 2 * HEADS * PARTS);
}

// A part's sums of two dims of a head, `at` in the block's share of them.
template <int DIM, int PARTS>
DEVICE struct long_sum mma_part_sum(const struct mma_ends<DIM> *s, int32_t part, int32_t h, int32_t at)
{
    const float2 sums = *reinterpret_cast<const float2 *>(s->sums[part][h]);
    const float2 out = *reinterpret_cast<const float2 *>(s->out + (part * MMA_HEADS + h) * (DIM / PARTS) + at);
    return {sums.x, sums.y, {out.x, out.y}};
}

// Adds the parts for two dims of a head, in order. A part without positions has the weight 0.
template <int DIM, int PARTS> DEVICE struct long_sum mma_merge(const struct mma_ends<DIM> *s, int32_t h, int32_t at)
{
    struct long_sum part[PARTS], sum = {-INFINITY, 0, {0, 0}};
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        part[p] = mma_part_sum<DIM, PARTS>(s, p, h, at);
        sum.top = part[p].top > sum.top ? part[p].top : sum.top;
    }
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        const float weight = expf(__fadd_rn(part[p].top, -sum.top));
        sum.total = fmaf(part[p].total, weight, sum.total);
        sum.out[0] = fmaf(part[p].out[0], weight, sum.out[0]);
        sum.out[1] = fmaf(part[p].out[1], weight, sum.out[1]);
    }
    return sum;
}

// Two dims of a head that a thread adds up, and what their gates say.
struct mma_item {
    int32_t h, at; // at: in the block's share of the dims
    float2 gate;
};

DEVICE struct mma_item mma_item_of(const struct attention_args *a, int64_t r, const struct attention_heads *heads,
                                   int32_t owned, int32_t part, int32_t i)
{
    struct mma_item item = {i / (owned / 2), i % (owned / 2) * 2, {0, 0}};
    if (a->gate && item.h < heads->count) {
        const float *gate =
            a->gate + r * a->ldg + (int64_t)(heads->first + item.h) * a->gate_stride + part * owned + item.at;
        item.gate = __ldcg(reinterpret_cast<const float2 *>(gate));
    }
    return item;
}

// Calls then(item, factors of its gates) for each item of the thread. first: its first one, factor: that one's factors.
template <int OWNED, typename THEN>
DEVICE void mma_items(const struct attention_args *a, int64_t r, const struct attention_heads *heads, int32_t part,
                      struct mma_item first, float2 factor, const THEN &then)
{
    for (int32_t i = (int32_t)threadIdx.x; i < heads->count * OWNED / 2; i += MMA_THREADS) {
        if (i >= MMA_THREADS) {
            first = mma_item_of(a, r, heads, OWNED, part, i);
            factor = {f_sigmoid(first.gate.x), f_sigmoid(first.gate.y)};
        }
        then(first, factor);
    }
}

// Adds the block's share of the dims and writes it, or leaves it to the last of the row's clusters.
template <int DIM, int PARTS>
DEVICE void mma_end(const struct attention_args *a, struct mma_ends<DIM> *s, const struct long_place &place,
                    const struct attention_heads *heads, struct mma_item first)
{
    constexpr int OWNED = DIM / PARTS, SLOT = MMA_HEADS * DIM / 2;
    const int32_t part = (int32_t)blockIdx.x % PARTS;
    const float2 factor = {f_sigmoid(first.gate.x), f_sigmoid(first.gate.y)};
    struct long_sum *slots = (struct long_sum *)a->scratch + part * (OWNED / 2);
    auto slot = [&](int32_t share, const struct mma_item &item) {
        return slots + (place.slot + share) * SLOT + (item.h * DIM + item.at) / 2;
    };
    auto write = [&](const struct mma_item &item, float2 gate, const struct long_sum &sum) {
        float *y = a->y + place.r * (int64_t)a->ldy + (int64_t)(heads->first + item.h) * DIM + part * OWNED + item.at;
        const float2 out = {__fdiv_rn(sum.out[0], sum.total), __fdiv_rn(sum.out[1], sum.total)};
        *reinterpret_cast<float2 *>(y) = {a->gate ? f_mul(out.x, gate.x) : out.x,
                                          a->gate ? f_mul(out.y, gate.y) : out.y};
    };
    const int32_t shares = 1 << place.doubled;
    const bool shared = place.cut && shares > 1;
    box_wait(&s->came);
    mma_items<OWNED>(a, place.r, heads, part, first, factor, [&](const struct mma_item &item, float2 gate) {
        const struct long_sum sum =
            place.cut ? long_tree(PARTS, [&](int32_t p) { return mma_part_sum<DIM, PARTS>(s, p, item.h, item.at); })
                      : mma_merge<DIM, PARTS>(s, item.h, item.at);
        if (shared)
            long_store(slot(place.share, item), sum);
        else
            write(item, gate, sum);
    });
    if (!shared || !come_last(&long_counter[place.counter * PARTS + part], (unsigned)shares, &s->arrived))
        return;
    mma_items<OWNED>(a, place.r, heads, part, first, factor, [&](const struct mma_item &item, float2 gate) {
        write(item, gate, long_tree(shares, [&](int32_t share) { return long_load(slot(share, item)); }));
    });
}

#endif
