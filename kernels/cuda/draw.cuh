// SPDX-License-Identifier: Apache-2.0
//
// What a draw and the log-probabilities of its row are made of: a row's ids shared by a cluster of blocks, maxima, and the
// radix descent that finds the k-th highest.
//
// Invariant: what crosses threads and blocks are integer sums and maxima; so a result does not depend on the number of blocks.

#ifndef CUDA_DRAW_CUH
#define CUDA_DRAW_CUH

#include "kernels/cpu/sampler_math.h"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/scan.cuh"

enum {
    DRAW_THREADS = 1024,
    DRAW_PARTS = 8,
    DRAW_BINS = 2048,                         // of levels 0 and 1
    DRAW_ALL = 2 * DRAW_BINS + DRAW_BINS / 2, // and of all three: the last digit is a bit shorter
    DRAW_LIMBS = 4, // 12 bits of a weight each, so that a sum of them over a million ids fits 32 bits
    DRAW_EACH = DRAW_BINS / DRAW_THREADS,
    DRAW_MANY = 4,
};

// Candidates: every token whose key is above `key`, and those whose key equals it up to id `last`.
struct draw_cut {
    uint32_t key;
    int32_t last;
};

// Shared memory of a block, which has place in the 99 KiB that some cards allow.
struct draw_space {
    uint32_t mass[DRAW_LIMBS * DRAW_ALL]; // level after level, limb after limb: draw_bins()
    uint64_t sum[DRAW_BINS];              // of a level over the cluster: this block's share of the bins
    uint64_t scan[DRAW_THREADS / WARP];
    uint64_t top; // key and complement of the id of the block's highest
    double score; // of the block's best candidate
    int32_t token, last;
    uint32_t equal;
    int32_t changed; // places of the window whose tokens are in the list of penalties
    unsigned best;   // pairs that this block has
    uint64_t pair[LOGPROBS_MOST];
    uint64_t weight; // of the block's ids
    uint32_t found;
    uint64_t left;
};
static_assert(sizeof(struct draw_space) <= 99 * 1024, "the least that a card with compute capability 8 or more allows");

// What a block looks at, and how the row is drawn.
struct draw_row {
    const float *logits;
    const int32_t *names; // token of each column, or NULL: its number
    const uint32_t *mask; // of the ids that may be drawn, or NULL
    int32_t first, end, n, part, parts;
    float temperature, top_p, min_p;
    int32_t top_k;
    uint64_t seed;
    float peak; // the highest logit
};

DEVICE bool draw_within(uint32_t key, int32_t id, struct draw_cut cut)
{
    return key > cut.key || (key == cut.key && id <= cut.last);
}

DEVICE bool draw_allowed(const struct draw_row *row, int32_t id)
{
    return !row->mask || (row->mask[id / 32] >> (id % 32) & 1) != 0;
}

// Calls f(id, logit) for the thread's ids, ascending; several logits are under way at once. An id that the mask rules out has a
// logit of -infinity, which no draw takes.
template <typename F> DEVICE void draw_each(const struct draw_row *row, F f)
{
    for (int32_t base = row->first + (int32_t)threadIdx.x; base < row->end; base += DRAW_MANY * DRAW_THREADS) {
        float x[DRAW_MANY];
#pragma unroll
        for (int n = 0; n < DRAW_MANY; n++)
            x[n] = base + n * DRAW_THREADS < row->end ? row->logits[base + n * DRAW_THREADS] : 0.0f;
        for (int n = 0; row->mask && n < DRAW_MANY; n++)
            if (base + n * DRAW_THREADS < row->end && !draw_allowed(row, base + n * DRAW_THREADS))
                x[n] = -INFINITY;
        for (int n = 0; n < DRAW_MANY; n++) {
            const float logit = n == 0 ? x[0] : n == 1 ? x[1] : n == 2 ? x[2] : x[3];
            if (base + n * DRAW_THREADS < row->end)
                f(base + n * DRAW_THREADS, logit);
        }
    }
}

DEVICE uint64_t draw_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

// The highest of one number a thread over the cluster, in every thread.
DEVICE uint64_t draw_highest(struct draw_space *s, uint64_t mine, int32_t parts)
{
#pragma unroll
    for (int half = WARP / 2; half > 0; half /= 2)
        mine = draw_max(mine, __shfl_xor_sync(WHOLE_WARP, mine, half));
    if (threadIdx.x % WARP == 0)
        s->scan[threadIdx.x / WARP] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < DRAW_THREADS / WARP; w++)
            mine = draw_max(mine, s->scan[w]);
        s->top = mine;
    }
    cluster_sync();
    mine = 0;
    for (int32_t p = 0; p < parts; p++)
        mine = draw_max(mine, *cluster_map(&s->top, (unsigned)p));
    return mine;
}

DEVICE int32_t draw_level_bins(int level)
{
    return level == 2 ? DRAW_BINS / 2 : DRAW_BINS;
}

// Bins of a limb of a level.
DEVICE uint32_t *draw_bins(struct draw_space *s, int level, int limb)
{
    return s->mass + level * DRAW_LIMBS * DRAW_BINS + limb * draw_level_bins(level);
}

DEVICE void draw_clear(struct draw_space *s)
{
    for (int32_t i = (int32_t)threadIdx.x; i < DRAW_LIMBS * DRAW_ALL; i += DRAW_THREADS)
        s->mass[i] = 0;
    if (threadIdx.x == 0)
        s->found = 0;
    __syncthreads();
}

// Adds a weight to its bin of a level. Counts have one limb.
DEVICE void draw_add(struct draw_space *s, int level, uint32_t key, uint64_t weight, bool count)
{
    const uint32_t digit = sampler_digit(key, level);
    atomicAdd(&draw_bins(s, level, 0)[digit], (uint32_t)weight & 0xfffu);
    for (int limb = 1; !count && limb < DRAW_LIMBS; limb++)
        if (weight >> (12 * limb))
            atomicAdd(&draw_bins(s, level, limb)[digit], (uint32_t)(weight >> (12 * limb)) & 0xfffu);
}

// Sums the bins of a level over the cluster and takes the digit at which a running total from the top reaches what is left.
// count: the bins have one limb. share >= 0: what is left is that share of the whole first.
DEVICE void draw_digit(struct draw_space *s, int level, int32_t parts, bool count, double share)
{
    const int32_t bins = draw_level_bins(level), each = bins / DRAW_THREADS;
    const int32_t top = bins - 1 - (int32_t)threadIdx.x * each;
    uint64_t mass[DRAW_EACH] = {}, mine = 0;
    const int32_t share_of_bins = bins / parts, from = (int32_t)blockIdx.x * share_of_bins;
    cluster_sync();
    for (int32_t i = (int32_t)threadIdx.x; i < share_of_bins; i += DRAW_THREADS) {
        uint64_t sum = 0;
#pragma unroll DRAW_PARTS
        for (int32_t p = 0; p < parts; p++)
#pragma unroll
            for (int limb = 0; limb < DRAW_LIMBS; limb++)
                if (limb == 0 || !count)
                    sum += (uint64_t)cluster_map(draw_bins(s, level, limb), (unsigned)p)[from + i] << (12 * limb);
        s->sum[from + i] = sum;
    }
    cluster_sync();
#pragma unroll
    for (int n = 0; n < DRAW_EACH; n++)
        if (n < each)
            mass[n] = cluster_map(s->sum, (unsigned)((top - n) / share_of_bins))[top - n];
#pragma unroll
    for (int n = 0; n < DRAW_EACH; n++)
        mine += mass[n];
    uint64_t before = block_scan<DRAW_THREADS>(mine, s->scan);
    if (share >= 0 && threadIdx.x == DRAW_THREADS - 1) {
        const uint64_t total = before + mine;
        const double part = share * (double)total;
        const uint64_t limit = part >= 1.0 ? (uint64_t)part : 1;
        s->left = limit < total ? limit : total;
    }
    __syncthreads();
    const uint64_t left = s->left;
    const uint32_t found = s->found;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < DRAW_EACH; n++) {
        if (n < each && before < left && left <= before + mass[n]) {
            const uint32_t digit = (uint32_t)(top - n);
            s->found = level == 0 ? digit : found << (level == 1 ? 11 : 10) | digit;
            s->left = left - before;
        }
        before += mass[n];
    }
    __syncthreads();
}

// The id of the `equal`-th token whose key is `key`; the largest id when there are no more than that.
DEVICE int32_t draw_last(struct draw_space *s, const struct draw_row *row, uint32_t key, uint64_t equal)
{
    const int32_t each = (row->end - row->first + DRAW_THREADS - 1) / DRAW_THREADS;
    const int32_t from = row->first + (int32_t)threadIdx.x * each, to = from + each < row->end ? from + each : row->end;
    uint64_t mine = 0;
    for (int32_t i = from; i < to; i++)
        mine += sampler_key(row->logits[i]) == key && draw_allowed(row, i);
    uint64_t before = block_scan<DRAW_THREADS>(mine, s->scan);
    if (threadIdx.x == DRAW_THREADS - 1)
        s->equal = (uint32_t)(before + mine);
    cluster_sync();
    uint64_t total = 0;
    int32_t owner = -1;
    for (int32_t p = 0; p < row->parts; p++) {
        const uint64_t theirs = *cluster_map(&s->equal, (unsigned)p);
        if (p == row->part)
            before += total;
        if (total < equal && equal <= total + theirs)
            owner = p;
        total += theirs;
    }
    if (total <= equal)
        return INT32_MAX;
    for (int32_t i = from; owner == row->part && i < to; i++)
        if (sampler_key(row->logits[i]) == key && draw_allowed(row, i) && ++before == equal)
            s->last = i;
    cluster_sync();
    return *cluster_map(&s->last, (unsigned)owner);
}

// The top_k highest. mine: the highest key of the thread; the k-th highest of those is a bound that spares most tokens.
DEVICE struct draw_cut draw_count(struct draw_space *s, const struct draw_row *row, uint32_t mine)
{
    uint32_t bound = 0;
    if (row->top_k <= row->parts * DRAW_THREADS) {
        draw_clear(s);
        if (threadIdx.x == 0)
            s->left = (uint64_t)row->top_k;
        draw_add(s, 0, mine, 1, true);
        draw_digit(s, 0, row->parts, true, -1);
        bound = s->found << 21;
        cluster_sync();
    }
    draw_clear(s);
    if (threadIdx.x == 0)
        s->left = (uint64_t)row->top_k;
    for (int level = 0; level < 3; level++) {
        const uint32_t found = s->found;
        draw_each(row, [&](int32_t, float logit) {
            const uint32_t key = sampler_key(logit);
            if (key >= bound && sampler_prefix(key, level) == found)
                draw_add(s, level, key, 1, true);
        });
        draw_digit(s, level, row->parts, true, -1);
    }
    struct draw_cut cut;
    cut.key = s->found;
    cut.last = draw_last(s, row, cut.key, s->left);
    return cut;
}

// Key and complement of the id of the thread's highest logit, the lowest id of equal ones; 0 when none is above -infinity.
// Threads share groups of four neighbours in turn.
DEVICE uint64_t draw_mine(const struct draw_row *row)
{
    float best = -INFINITY;
    int32_t id = -1;
    const bool wide = (((uintptr_t)row->logits | (uintptr_t)row->first * 4) & 15) == 0;
    const int32_t groups = wide ? (row->end - row->first) / 4 : 0;
    const float4 *from = reinterpret_cast<const float4 *>(row->logits + row->first);
#pragma unroll 4
    for (int32_t i = (int32_t)threadIdx.x; i < groups; i += DRAW_THREADS) {
        const float4 x = from[i];
        const float four[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (four[n] > best && draw_allowed(row, row->first + 4 * i + n)) {
                best = four[n];
                id = row->first + 4 * i + n;
            }
    }
    for (int32_t i = row->first + 4 * groups + (int32_t)threadIdx.x; i < row->end; i += DRAW_THREADS)
        if (row->logits[i] > best && draw_allowed(row, i)) {
            best = row->logits[i];
            id = i;
        }
    return id < 0 ? 0 : (uint64_t)sampler_key(best) << 32 | (uint32_t)~id;
}

#endif
