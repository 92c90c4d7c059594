// SPDX-License-Identifier: Apache-2.0
//
// The toy's arithmetic, and its reply by plain recomputation. See toy.h.

#include "tests/sim/toy.h"
#include "kernels/cpu/sampler.h"
#include "tests/sim/alloc.h"

// The real ones, below.
#undef malloc
#undef calloc

struct faults faults;
uint64_t toy_random_state;
double toy_clock;

uint64_t toy_random(void)
{
    toy_random_state += 0x9e3779b97f4a7c15u;
    return toy_mix(toy_random_state, 0x5bd1e995);
}

double engine_seconds(void)
{
    return toy_clock;
}

void *sim_malloc(size_t size)
{
    return faults.armed && toy_chance(faults.allocation) ? NULL : malloc(size);
}

void *sim_calloc(size_t count, size_t size)
{
    return faults.armed && toy_chance(faults.allocation) ? NULL : calloc(count, size);
}

void toy_logits(uint64_t output, int32_t token, int64_t position, float *logits)
{
    uint64_t guess = ((uint64_t)token * 7 + 3 + (uint64_t)(position % 3)) % TOY_VOCABULARY;
    uint64_t peak = output % 8 ? guess : (output >> 8) % TOY_VOCABULARY;
    for (uint64_t i = 0; i < TOY_VOCABULARY; i++)
        logits[i] = (float)(toy_mix(output, i) >> 40) / (float)(1 << 24) + (i == peak ? 4 : 0);
}

// The penalties by their definition: count, then change.
static void penalise(const struct sampling *s, const int32_t *ids, int count, int reply_from, float *logits)
{
    for (int t = 0; t < TOY_VOCABULARY; t++) {
        int seen = 0, used = 0;
        for (int i = 0; i < count; i++) {
            seen += ids[i] == t;
            used += ids[i] == t && i >= reply_from;
        }
        for (int i = 0; i < s->bias_count; i++)
            logits[t] += s->bias[i].id == t ? s->bias[i].bias : 0;
        if (seen && s->repetition != 0)
            logits[t] = logits[t] > 0 ? logits[t] / s->repetition : logits[t] * s->repetition;
        const float often = s->frequency * (float)used;
        logits[t] -= often;
        logits[t] -= used ? s->presence : 0;
    }
}

void toy_reply(int32_t *ids, int count, int reply, const struct sampling *sampling, uint64_t *outputs)
{
    static uint64_t scratch[SAMPLER_SCRATCH / 8 + 1];
    uint64_t cell[TOY_CONTEXT + 1], state = 0;
    const struct sampler s = {sampling->temperature, sampling->top_p, sampling->min_p, sampling->top_k, sampling->seed};
    for (int p = 0; p < count + reply; p++) {
        uint64_t seen = 0;
        state = toy_mix(state, toy_input(ids[p], p, p >= count));
        cell[p] = state;
        for (int i = 0; i <= p; i++)
            seen = toy_mix(seen, cell[i]);
        uint64_t output = toy_mix(state, seen);
        if (outputs)
            outputs[p] = output;
        if (p < count - 1 || p == count + reply - 1)
            continue;
        float logits[TOY_VOCABULARY];
        toy_logits(output, ids[p], p, logits);
        if (sampling->presence != 0 || sampling->frequency != 0 || sampling->repetition != 0 || sampling->bias_count)
            penalise(sampling, ids, p + 1, count, logits);
        ids[p + 1] = sampler_draw(logits, TOY_VOCABULARY, &s, p + 1, scratch);
    }
}
