// SPDX-License-Identifier: Apache-2.0
//
// Log-probabilities of a row that is being drawn, as kernels/cpu/logprobs.h makes them.
//
// Invariant: the bits of the CPU target: the sum is an integer sum, and the likeliest are ordered by (logit, id).

#ifndef CUDA_DRAW_LOGPROBS_CUH
#define CUDA_DRAW_LOGPROBS_CUH

#include "kernels/cuda/draw.cuh"

// What sampler_logprob needs beside a logit.
struct draw_whole {
    float peak;
    double log;
};

// Sum of one number a thread over the cluster, in every thread.
DEVICE uint64_t draw_sum(struct draw_space *s, uint64_t mine, int32_t parts)
{
    const uint64_t before = block_scan<DRAW_THREADS>(mine, s->scan);
    if (threadIdx.x == DRAW_THREADS - 1)
        s->weight = before + mine;
    cluster_sync();
    uint64_t sum = 0;
    for (int32_t p = 0; p < parts; p++)
        sum += *cluster_map(&s->weight, (unsigned)p);
    return sum;
}

// Writes the `count` candidates within the cut in the order (logit descending, id ascending).
DEVICE void draw_ranked(struct draw_space *s, const struct draw_row *row, struct draw_cut cut, int32_t count,
                        struct draw_whole whole, struct logprobs *out)
{
    if (threadIdx.x == 0)
        s->best = 0;
    __syncthreads();
    draw_each(row, [&](int32_t id, float logit) {
        const uint32_t key = sampler_key(logit);
        if (draw_within(key, id, cut))
            s->pair[atomicAdd(&s->best, 1u)] = (uint64_t)key << 32 | (uint32_t)~id;
    });
    cluster_sync();
    uint64_t mine = 0;
    int32_t rank = 0, at = (int32_t)threadIdx.x;
    if (row->part == 0 && at < count) {
        for (int32_t p = 0; p < row->parts; p++) {
            const int32_t theirs = (int32_t)*cluster_map(&s->best, (unsigned)p);
            if (0 <= at && at < theirs)
                mine = cluster_map(s->pair, (unsigned)p)[at];
            at -= theirs;
        }
        for (int32_t p = 0; p < row->parts; p++)
            for (int32_t i = 0; i < (int32_t)*cluster_map(&s->best, (unsigned)p); i++)
                rank += cluster_map(s->pair, (unsigned)p)[i] > mine;
        const int32_t id = (int32_t) ~(uint32_t)mine;
        out->id[rank] = id;
        out->logprob[rank] = sampler_logprob(row->logits[id], whole.peak, whole.log);
    }
    cluster_sync();
}

// Everything but the chosen token's, for which the sum is returned.
DEVICE struct draw_whole draw_logprobs(struct draw_space *s, const struct draw_row *row, int32_t most,
                                       struct logprobs *out)
{
    struct draw_whole whole;
    const uint64_t mine = draw_mine(row), highest = draw_highest(s, mine, row->parts);
    whole.peak = highest ? row->logits[(int32_t) ~(uint32_t)highest] : -INFINITY;
    uint64_t weight = 0;
    draw_each(row, [&](int32_t, float logit) { weight += sampler_weight(logit, whole.peak, 1.0); });
    whole.log = sampler_whole(draw_sum(s, weight, row->parts));
    const int32_t count = most < row->n ? most : row->n;
    if (row->part == 0 && threadIdx.x == 0)
        out->count = count;
    if (count > 0) {
        struct draw_row likeliest = *row;
        struct draw_cut cut = {0, INT32_MAX};
        likeliest.top_k = count;
        cluster_sync();
        if (count < row->n)
            cut = draw_count(s, &likeliest, (uint32_t)(mine >> 32));
        cluster_sync();
        draw_ranked(s, row, cut, count, whole, out);
    }
    cluster_sync();
    return whole;
}

#endif
