// SPDX-License-Identifier: Apache-2.0
//
// The keyed draw: which token a row of logits gives under (seed, position) and the sampling settings.
//
// Invariant: the token is a pure function of the logits, the settings, the seed and the position. Every sum that decides is an
// integer sum and every function is evaluated in scalar double here, so no order, library or instruction set can change a draw.
// That is what lets a draft be right exactly when it equals the target's own draw.

#ifndef SAMPLER_H
#define SAMPLER_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/sampler_math.h"

enum {
    SAMPLER_HEAP = 1024, // top_k up to here takes one pass over the vocabulary
    SAMPLER_SCRATCH = 2048 * 8 + SAMPLER_HEAP * 8,
};

struct sampler {
    float temperature; // <= 0: greedy
    float top_p;       // >= 1: off
    float min_p;       // <= 0: off
    int32_t top_k;     // <= 0: off
    uint64_t seed;
    const int32_t *names; // token of each column, which keys its noise; NULL: its number
    const uint32_t *mask; // bit id: the token may be drawn; at least one may. NULL: all may
};

// Candidates: every token whose key is above `key`, and the `equal` lowest ids among those whose key equals it.
struct sampler_cut {
    uint32_t key;
    int32_t equal;
};

// The ids that a pass looks at, ascending: id[0 .. n - 1], or 0 .. n - 1 when id is NULL.
struct sampler_ids {
    const int32_t *id;
    int32_t n;
};

static inline int32_t sampler_id(struct sampler_ids ids, int32_t i)
{
    return ids.id ? ids.id[i] : i;
}

// A token that a mask rules out is no candidate of any step; that gives the draw of a logit of -infinity.
static inline bool sampler_allowed(const uint32_t *mask, int32_t id)
{
    return !mask || (mask[id / 32] >> (id % 32) & 1) != 0;
}

// Puts a key into a heap of `size` keys (the smallest first) whose place 0 is free.
static inline void sampler_sink(uint32_t *heap, int32_t size, uint32_t key)
{
    int32_t at = 0;
    for (int32_t child; (child = 2 * at + 1) < size; at = child) {
        child += child + 1 < size && heap[child + 1] < heap[child];
        if (heap[child] >= key)
            break;
        heap[at] = heap[child];
    }
    heap[at] = key;
}

// Key of the k-th highest of n logits and how many tokens of that key belong to the k highest; 1 <= k <= SAMPLER_HEAP, k <= n.
// heap: room for k keys.
static inline struct sampler_cut sampler_cut_heap(const float *logits, const uint32_t *mask, int32_t n, int32_t k,
                                                  uint32_t *heap)
{
    memset(heap, 0, (size_t)k * sizeof *heap);
    float bar = -INFINITY; // what a logit must exceed to enter
    bool full = false;     // every key of the heap is a logit's
    for (int32_t i = 0; i < n; i++) {
        if ((full && !(logits[i] > bar)) || !sampler_allowed(mask, i))
            continue;
        uint32_t key = sampler_key(logits[i]);
        if (key > heap[0])
            sampler_sink(heap, k, key);
        full = heap[0] > 0;
        bar = sampler_value(heap[0]);
    }
    struct sampler_cut cut = {heap[0], 0};
    for (int32_t i = 0; i < k; i++)
        cut.equal += heap[i] == cut.key;
    return cut;
}

static inline int sampler_within(uint32_t key, const struct sampler_cut *cut, int32_t *equal)
{
    return key > cut->key || (key == cut->key && (*equal)-- > 0);
}

// Where a running total must stop: `share` of the whole, or `limit` when share is 0.
struct sampler_stop {
    double share;
    uint64_t limit;
};

static inline uint64_t sampler_limit(struct sampler_stop stop, const uint64_t *mass)
{
    if (stop.limit > 0)
        return stop.limit;
    uint64_t total = 0;
    for (int32_t i = 0; i < 2048; i++)
        total += mass[i];
    double part = stop.share * (double)total;
    uint64_t limit = part >= 1.0 ? (uint64_t)part : 1;
    return limit < total ? limit : total;
}

// Narrows `cut` to the tokens before which the running total, in the order (logit descending, id ascending), is below the
// stop. temperature 0: every token weighs 1. The total of the candidates is at least the stop. mass: [2048].
static inline struct sampler_cut sampler_cut_mass(const float *logits, const uint32_t *mask, struct sampler_ids ids,
                                                  struct sampler_cut cut, float top, double temperature,
                                                  struct sampler_stop stop, uint64_t *mass)
{
    uint32_t found = 0;
    uint64_t before = 0, weight = 1, limit = 0;
    for (int level = 0; level < 3; level++) {
        memset(mass, 0, 2048 * sizeof *mass);
        int32_t equal = cut.equal;
        for (int32_t i = 0; i < ids.n; i++) {
            float logit = logits[sampler_id(ids, i)];
            uint32_t key = sampler_key(logit);
            if (!sampler_allowed(mask, sampler_id(ids, i)) || !sampler_within(key, &cut, &equal) ||
                sampler_prefix(key, level) != found)
                continue;
            weight = temperature > 0 ? sampler_weight(logit, top, temperature) : 1;
            mass[sampler_digit(key, level)] += weight;
        }
        if (level == 0)
            limit = sampler_limit(stop, mass);
        uint32_t digit = level == 2 ? 1023 : 2047;
        for (; digit > 0 && before + mass[digit] < limit; digit--)
            before += mass[digit];
        found = level == 2 ? found << 10 | digit : level == 1 ? found << 11 | digit : digit;
    }
    weight = temperature > 0 ? sampler_weight(sampler_value(found), top, temperature) : 1;
    uint64_t count = weight ? (limit - before + weight - 1) / weight : 1;
    return (struct sampler_cut){found, count > INT32_MAX ? INT32_MAX : (int32_t)count};
}

// The k highest, any k.
static inline struct sampler_cut sampler_cut_count(const float *logits, const uint32_t *mask, int32_t n, int32_t k,
                                                   void *scratch)
{
    if (k <= SAMPLER_HEAP)
        return sampler_cut_heap(logits, mask, n, k, scratch);
    struct sampler_cut all = {0, INT32_MAX};
    return sampler_cut_mass(logits, mask, (struct sampler_ids){NULL, n}, all, 0, 0,
                            (struct sampler_stop){0, (uint64_t)k}, scratch);
}

// The highest logit, ties to the lowest id; a NaN is never the highest, but all NaN give 0.
static inline int32_t sampler_greedy(const float *logits, int32_t n)
{
    float lane[16];
    for (int j = 0; j < 16; j++)
        lane[j] = -INFINITY;
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++)
            lane[j] = logits[i + j] > lane[j] ? logits[i + j] : lane[j];
    for (; i < n; i++)
        lane[0] = logits[i] > lane[0] ? logits[i] : lane[0];
    float best = -INFINITY;
    for (int j = 0; j < 16; j++)
        best = lane[j] > best ? lane[j] : best;
    for (i = 0; i < n; i++)
        if (logits[i] == best)
            return i;
    return 0;
}

// The same among the tokens of a mask; without a usable logit the lowest id of the mask.
static inline int32_t sampler_greedy_masked(const float *logits, const uint32_t *mask, int32_t n)
{
    int32_t token = 0;
    bool found = false, usable = false;
    for (int32_t base = 0; base < n; base += 32) {
        for (uint32_t bits = mask[base / 32]; bits; bits &= bits - 1) {
            const int32_t id = base + __builtin_ctz(bits);
            if (id >= n)
                break;
            if (!found || (logits[id] > -INFINITY && (!usable || logits[id] > logits[token])))
                token = id;
            found = true;
            usable = usable || logits[id] > -INFINITY;
        }
    }
    return token;
}

// argmax of logit / temperature + Gumbel(seed, position, id) over the candidates, ties to the lower id. A candidate is
// passed over without its logarithms when even an upper bound of its noise could not win.
static inline int32_t sampler_gumbel(const float *logits, struct sampler_ids ids, struct sampler_cut cut, int32_t top,
                                     const struct sampler *s, int64_t position)
{
    uint64_t base = sampler_base(s->seed, position);
    double best = -INFINITY, peak = (double)logits[top];
    int32_t token = top;
    for (int32_t i = 0, equal = cut.equal; i < ids.n; i++) {
        int32_t id = sampler_id(ids, i);
        if (!sampler_allowed(s->mask, id) || !sampler_within(sampler_key(logits[id]), &cut, &equal))
            continue;
        double x = ((double)logits[id] - peak) / (double)s->temperature;
        if (s->min_p > 0 && id != top && sampler_exp(x) < (double)s->min_p)
            continue;
        uint64_t k = sampler_noise(base, s->names ? s->names[id] : id);
        if (!(x + sampler_noise_bound(k) >= best))
            continue;
        double score = x - sampler_gumbel_of(k);
        if (score > best) {
            best = score;
            token = id;
        }
    }
    return token;
}

// The token that `n` logits give at `position`. Kept, of the tokens that the mask allows: the top_k highest (ties to the lower id), of those the ones before
// which less than top_p of the probability lies, of those the ones at least min_p times as probable as the best.
// scratch: SAMPLER_SCRATCH bytes, 8-byte aligned.
static inline int32_t sampler_draw(const float *logits, int32_t n, const struct sampler *s, int64_t position,
                                   void *scratch)
{
    int32_t top = s->mask ? sampler_greedy_masked(logits, s->mask, n) : sampler_greedy(logits, n);
    if (!(s->temperature > 0) || !isfinite(logits[top]))
        return top;
    struct sampler_cut cut = {0, INT32_MAX};
    struct sampler_ids ids = {NULL, n};
    if (s->top_k > 0 && s->top_k < n) {
        cut = sampler_cut_count(logits, s->mask, n, s->top_k, scratch);
        if (s->top_k <= SAMPLER_HEAP) {
            int32_t *list = (int32_t *)((char *)scratch + 2048 * 8), count = 0, equal = cut.equal;
            const float bar = sampler_value(cut.key);
            for (int32_t i = 0; i < n; i++)
                if (!(logits[i] < bar) && sampler_allowed(s->mask, i) &&
                    sampler_within(sampler_key(logits[i]), &cut, &equal))
                    list[count++] = i;
            ids = (struct sampler_ids){list, count};
        }
    }
    if (s->top_p < 1) {
        struct sampler_stop stop = {(double)s->top_p, 0};
        cut = sampler_cut_mass(logits, s->mask, ids, cut, logits[top], (double)s->temperature, stop, scratch);
    }
    return sampler_gumbel(logits, ids, cut, top, s, position);
}

#endif
