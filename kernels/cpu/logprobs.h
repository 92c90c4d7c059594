// SPDX-License-Identifier: Apache-2.0
//
// Log-probabilities of a row of logits.
//
// Invariant: the same bits on every target: the sum of the weights is an integer sum, and every function of a number is one of
// sampler_math.h.

#ifndef LOGPROBS_H
#define LOGPROBS_H

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/sampler.h"

// Of `token` and of the `most` likeliest, 0 .. LOGPROBS_MOST. -infinity for what is no number.
static inline void logprobs_of(const float *logits, int32_t vocabulary, int32_t token, int32_t most,
                               struct logprobs *out)
{
    const float peak = logits[sampler_greedy(logits, vocabulary)];
    uint64_t sum = 0;
    for (int32_t i = 0; i < vocabulary; i++)
        sum += sampler_weight(logits[i], peak, 1.0);
    const double whole = sampler_whole(sum);
    out->chosen = sampler_logprob(logits[token], peak, whole);
    out->count = 0;
    uint32_t bar = 0;
    for (int32_t i = 0; i < vocabulary && most > 0; i++) {
        const uint32_t key = sampler_key(logits[i]);
        if (out->count == most && key <= bar)
            continue;
        int32_t at = out->count < most ? out->count++ : most - 1;
        for (; at > 0 && key > sampler_key(logits[out->id[at - 1]]); at--)
            out->id[at] = out->id[at - 1];
        out->id[at] = i;
        bar = sampler_key(logits[out->id[out->count - 1]]);
    }
    for (int32_t k = 0; k < out->count; k++)
        out->logprob[k] = sampler_logprob(logits[out->id[k]], peak, whole);
}

#endif
