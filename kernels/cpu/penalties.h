// SPDX-License-Identifier: Apache-2.0
//
// What the history of a stream does to its next draw: bias, repetition, frequency, presence.
//
// Invariant: a logit's new value depends on the stream's tokens up to the draw, never on which of them were drafted: the counts
// are summed first and applied once, so a drafted window and single steps give the same bits.

#ifndef PENALTIES_H
#define PENALTIES_H

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/sampler_math.h"

// Tokens between the pending one and the draw.
struct penalty_window {
    const int32_t *token;
    int32_t count; // at most MAX_WINDOW; negative: none
};

SAMPLER_FUNCTION const struct penalised *penalties_tokens(const struct penalties *p)
{
    return (const struct penalised *)(const void *)(p + 1);
}

SAMPLER_FUNCTION float penalties_value(const struct penalties *p, float x, int32_t count, int32_t seen, float bias)
{
    x += bias;
    if (seen && p->repetition != 1)
        x = x > 0 ? x / p->repetition : x * p->repetition;
    const float often = p->frequency * (float)count;
    x -= often;
    return count > 0 ? x - p->presence : x;
}

// Places of the window that hold `id`.
SAMPLER_FUNCTION int32_t penalties_places(struct penalty_window w, int32_t id)
{
    int32_t places = 0;
    for (int32_t i = 0; i < w.count; i++)
        places |= (w.token[i] == id) << i;
    return places;
}

// How many places there are.
SAMPLER_FUNCTION int32_t penalties_count(int32_t places)
{
    int32_t count = 0;
    for (; places; places &= places - 1)
        count++;
    return count;
}

// Changes the logits; kept: [penalties->count + MAX_WINDOW] gets the old values.
static inline void penalties_apply(const struct penalties *p, struct penalty_window w, float *logits, float *kept)
{
    int32_t done = 0; // places of the window whose token is in the list
    for (int32_t i = 0; i < p->count; i++) {
        const struct penalised *t = &penalties_tokens(p)[i];
        const int32_t places = penalties_places(w, t->id), more = penalties_count(places);
        done |= places;
        kept[i] = logits[t->id];
        logits[t->id] = penalties_value(p, kept[i], t->count + more, t->seen || more, t->bias);
    }
    float *own = kept + p->count;
    for (int32_t i = 0; i < w.count; i++) {
        own[i] = logits[w.token[i]];
        if (done >> i & 1)
            continue;
        const int32_t places = penalties_places(w, w.token[i]);
        done |= places;
        logits[w.token[i]] = penalties_value(p, own[i], penalties_count(places), 1, 0);
    }
}

// Puts the old values back, last first, since a token may have been kept twice.
static inline void penalties_undo(const struct penalties *p, struct penalty_window w, float *logits, const float *kept)
{
    const float *own = kept + p->count;
    for (int32_t i = w.count; i-- > 0;)
        logits[w.token[i]] = own[i];
    for (int32_t i = p->count; i-- > 0;)
        logits[penalties_tokens(p)[i].id] = kept[i];
}

#endif
