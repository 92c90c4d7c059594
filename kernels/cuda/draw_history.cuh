// SPDX-License-Identifier: Apache-2.0
//
// Penalties and logit bias of a draw: a row is changed for its own draw and put back, as kernels/cpu/penalties.h does it.
//
// Invariant: a block changes only ids of its own range, and each id once, since those of the list are distinct and a token of the
// window is changed at its first place only; so no order of threads matters.

#ifndef CUDA_DRAW_HISTORY_CUH
#define CUDA_DRAW_HISTORY_CUH

#include "kernels/cpu/penalties.h"
#include "kernels/cuda/draw.cuh"

struct draw_history {
    const struct penalties *list; // NULL: nothing to change
    struct penalty_window window;
    float *kept; // old values by place in the list, then by place in the window
};

// What changes the row at `place` of its lane.
DEVICE struct draw_history draw_history_of(const struct draw_args *a, const struct lane *lane, int32_t place,
                                           int32_t position)
{
    struct draw_history h = {};
    const int32_t after = a->pass->lane_rows[a->pass->lane[blockIdx.y]] - 1 - place;
    if (!lane->penalties || after >= MAX_WINDOW || a->ids)
        return h;
    h.list = lane->penalties;
    h.window.token = lane->tokens + lane->length + 1;
    h.window.count = position + a->ahead - 1 - lane->length;
    h.kept = h.list->kept + after * h.list->room;
    return h;
}

DEVICE bool draw_owns(const struct draw_row *row, int32_t id)
{
    return row->first <= id && id < row->end;
}

// The id that the thread answers for in the window, or -1: one that is not in the list, at its first place.
DEVICE int32_t draw_window_id(const struct draw_space *s, const struct draw_row *row, const struct draw_history *h)
{
    const int32_t i = (int32_t)threadIdx.x;
    if (i >= h->window.count || (s->changed >> i & 1))
        return -1;
    const int32_t id = h->window.token[i];
    return (penalties_places(h->window, id) & ((1 << i) - 1)) || !draw_owns(row, id) ? -1 : id;
}

DEVICE void draw_penalise(struct draw_space *s, const struct draw_row *row, const struct draw_history *h)
{
    const struct penalties *p = h->list;
    float *logits = const_cast<float *>(row->logits);
    if (threadIdx.x == 0)
        s->changed = 0;
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < p->count; i += DRAW_THREADS) {
        const struct penalised t = penalties_tokens(p)[i];
        const int32_t places = penalties_places(h->window, t.id), more = penalties_count(places);
        if (places)
            atomicOr(&s->changed, places);
        if (!draw_owns(row, t.id))
            continue;
        h->kept[i] = logits[t.id];
        logits[t.id] = penalties_value(p, logits[t.id], t.count + more, t.seen || more, t.bias);
    }
    __syncthreads();
    const int32_t id = draw_window_id(s, row, h);
    if (id >= 0) {
        const int32_t count = penalties_count(penalties_places(h->window, id));
        h->kept[p->count + (int32_t)threadIdx.x] = logits[id];
        logits[id] = penalties_value(p, logits[id], count, 1, 0);
    }
    cluster_sync();
}

// Puts the old values back; the cluster has read what it wanted.
DEVICE void draw_restore(const struct draw_space *s, const struct draw_row *row, const struct draw_history *h)
{
    const struct penalties *p = h->list;
    float *logits = const_cast<float *>(row->logits);
    for (int32_t i = (int32_t)threadIdx.x; i < p->count; i += DRAW_THREADS) {
        const int32_t id = penalties_tokens(p)[i].id;
        if (draw_owns(row, id))
            logits[id] = h->kept[i];
    }
    const int32_t id = draw_window_id(s, row, h);
    if (id >= 0)
        logits[id] = h->kept[p->count + (int32_t)threadIdx.x];
    cluster_sync();
}

#endif
