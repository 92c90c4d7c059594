// SPDX-License-Identifier: Apache-2.0
//
// Routed experts. Phase 0 of experts_up groups the (row, slot) pairs by expert and prepares the rows; an item of the products
// is one active expert and one span of its panels.
// Invariant: every (row, slot) is computed once, by the same steps whoever else chose its expert.

#include "kernels/cpu/linear.h"

// In the groups memory: 64 bytes of header, active expert ids, where each active expert's pairs begin (and one past the last),
// pairs as row * slots + slot, ascending within an expert.
struct groups {
    int32_t *active, *start, *pairs;
    int32_t *count; // active experts
};

static struct groups groups_at(void *memory, int32_t experts)
{
    int32_t *p = memory;
    return (struct groups){.count = p, .active = p + 16, .start = p + 16 + experts, .pairs = p + 17 + 2 * experts};
}

static void group_pairs(const int32_t *ids, int64_t pairs, int32_t experts, void *memory)
{
    struct groups g = groups_at(memory, experts);
    int32_t *at = g.start; // counts, then where the next pair of each expert goes
    memset(at, 0, (size_t)(experts + 1) * sizeof *at);
    for (int64_t i = 0; i < pairs; i++)
        if (ids[i] >= 0 && ids[i] < experts)
            at[ids[i]]++;
    int32_t total = 0, active = 0;
    for (int32_t e = 0; e < experts; e++) {
        int32_t count = at[e];
        at[e] = total;
        total += count;
        if (count)
            g.active[active++] = e;
    }
    for (int64_t i = 0; i < pairs; i++)
        if (ids[i] >= 0 && ids[i] < experts)
            g.pairs[at[ids[i]]++] = (int32_t)i;
    // at[e] is now the end of expert e: keep the beginnings of the active ones
    int32_t begin = 0;
    for (int32_t i = 0; i < active; i++) {
        int32_t end = at[g.active[i]];
        g.start[i] = begin; // i <= active[i], so no end is overwritten before it is read
        begin = end;
    }
    g.start[active] = begin;
    *g.count = active;
}

// ---- first half ---------------------------------------------------------------------------------------------------------

static int up_need(const struct experts_up_args *a)
{
    int need = ISA_SYM(product_need)(a->row_class, &a->up, a->k);
    return need | (a->gate.data ? ISA_SYM(product_need)(a->row_class, &a->gate, a->k) : 0);
}

static int64_t up_prepare_items(const void *args)
{
    const struct experts_up_args *a = args;
    return a->pass->rows > 0 ? 1 + ISA_SYM(view_items)(a->pass->rows, a->k, up_need(a)) : 0;
}

static void up_prepare_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    const struct experts_up_args *a = args;
    int need = up_need(a);
    (void)scratch;
    if (begin == 0 && end > 0) {
        group_pairs(a->ids, (int64_t)a->pass->rows * a->slots, a->experts, a->groups);
        begin = 1;
    }
    struct row_view v = ISA_SYM(view_make)(a->x, a->ldx, a->k, a->pass->rows, a->scratch, need);
    ISA_SYM(view_prepare)(&v, a->x, a->ldx, a->pass->rows, need, begin - 1, end - 1);
}

// Panels of an item: half a tiles item of each matrix, since gate and up share the sums' place.
static int up_span(const struct experts_up_args *a)
{
    int span = item_panels(up_need(a));
    return span > 1 ? span / 2 : 1;
}

static int64_t up_spans(const struct experts_up_args *a)
{
    return (weight_panels(&a->up) + up_span(a) - 1) / up_span(a);
}

static int64_t up_items(const void *args)
{
    const struct experts_up_args *a = args;
    return a->pass->rows > 0 ? *groups_at(a->groups, a->experts).count * up_spans(a) : 0;
}

// One expert's pairs (at most CHUNK_ROWS) with panels first .. first + panels - 1 of gate and up.
static void up_item(const struct experts_up_args *a, const struct row_view *v, int32_t e, int64_t first, int panels,
                    const int32_t *pairs, int count, struct linear_room *room)
{
    float *up = room->sums, *gate = room->sums + TILE_PANELS / 2 * CHUNK_ROWS * PANEL;
    for (int i = 0; i < count; i++)
        room->rows[i] = pairs[i] / a->slots;
    ISA_SYM(products)(a->row_class, &a->up, e, first, panels, v, room->rows, count, 0, room, up);
    if (a->gate.data)
        ISA_SYM(products)(a->row_class, &a->gate, e, first, panels, v, room->rows, count, 0, room, gate);
    float up_factor = weight_factor(&a->up, e), gate_factor = a->gate.data ? weight_factor(&a->gate, e) : 1.0f;
    for (int p = 0; p < panels; p++)
        for (int i = 0; i < count; i++) {
            int64_t at = (p * CHUNK_ROWS + i) * PANEL;
            vf y = finish(vf_load(up + at), up_factor, a->gate.data ? ACT_NONE : a->activation);
            if (a->gate.data)
                y = vf_mul(finish(vf_load(gate + at), gate_factor, ACT_SILU), y);
            store_outputs(a->h + (int64_t)pairs[i] * a->inner + (first + p) * PANEL, y,
                          panel_outputs(a->inner, first + p));
        }
}

static void up_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    const struct experts_up_args *a = args;
    struct groups g = groups_at(a->groups, a->experts);
    struct row_view v = ISA_SYM(view_make)(a->x, a->ldx, a->k, a->pass->rows, a->scratch, up_need(a));
    int64_t spans = up_spans(a), span = up_span(a);
    for (int64_t item = begin; item < end; item++) {
        int64_t i = item / spans, first = item % spans * span, left = weight_panels(&a->up) - first;
        for (int32_t at = g.start[i]; at < g.start[i + 1]; at += CHUNK_ROWS) {
            int32_t count = g.start[i + 1] - at;
            up_item(a, &v, g.active[i], first, (int)(left < span ? left : span), g.pairs + at,
                    count < CHUNK_ROWS ? count : CHUNK_ROWS, scratch);
        }
    }
}

// ---- second half --------------------------------------------------------------------------------------------------------

static int64_t down_rows(const struct experts_down_args *a)
{
    return (int64_t)a->pass->rows * a->slots;
}

static int64_t down_prepare_items(const void *args)
{
    const struct experts_down_args *a = args;
    return ISA_SYM(view_items)(down_rows(a), a->k, ISA_SYM(product_need)(a->row_class, &a->down, a->k));
}

static void down_prepare_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    const struct experts_down_args *a = args;
    int need = ISA_SYM(product_need)(a->row_class, &a->down, a->k);
    struct row_view v = ISA_SYM(view_make)(a->h, a->k, a->k, down_rows(a), a->scratch, need);
    (void)scratch;
    ISA_SYM(view_prepare)(&v, a->h, a->k, down_rows(a), need, begin, end);
}

static int64_t down_spans(const struct experts_down_args *a)
{
    int span = item_panels(ISA_SYM(product_need)(a->row_class, &a->down, a->k));
    return (weight_panels(&a->down) + span - 1) / span;
}

static int64_t down_items(const void *args)
{
    const struct experts_down_args *a = args;
    return a->pass->rows > 0 ? *groups_at(a->groups, a->experts).count * down_spans(a) : 0;
}

static void down_item(const struct experts_down_args *a, const struct row_view *v, int32_t e, int64_t first, int panels,
                      const int32_t *pairs, int count, struct linear_room *room)
{
    ISA_SYM(products)(a->row_class, &a->down, e, first, panels, v, pairs, count, 0, room, room->sums);
    float factor = weight_factor(&a->down, e);
    for (int p = 0; p < panels; p++)
        for (int i = 0; i < count; i++) {
            vf y = finish(vf_load(room->sums + (p * CHUNK_ROWS + i) * PANEL), factor, ACT_NONE);
            store_outputs(a->y + (int64_t)pairs[i] * a->n + (first + p) * PANEL, y, panel_outputs(a->n, first + p));
        }
}

static void down_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    const struct experts_down_args *a = args;
    struct groups g = groups_at(a->groups, a->experts);
    int need = ISA_SYM(product_need)(a->row_class, &a->down, a->k);
    struct row_view v = ISA_SYM(view_make)(a->h, a->k, a->k, down_rows(a), a->scratch, need);
    int64_t spans = down_spans(a), span = item_panels(need);
    for (int64_t item = begin; item < end; item++) {
        int64_t i = item / spans, first = item % spans * span, left = weight_panels(&a->down) - first;
        for (int32_t at = g.start[i]; at < g.start[i + 1]; at += CHUNK_ROWS) {
            int32_t count = g.start[i + 1] - at;
            down_item(a, &v, g.active[i], first, (int)(left < span ? left : span), g.pairs + at,
                      count < CHUNK_ROWS ? count : CHUNK_ROWS, scratch);
        }
    }
}

const struct kernel ISA_SYM(kernel_experts_up) = {
    "experts_up",
    {{up_prepare_items, up_prepare_run}, {up_items, up_run}, {NULL, NULL}},
};

const struct kernel ISA_SYM(kernel_experts_down) = {
    "experts_down",
    {{down_prepare_items, down_prepare_run}, {down_items, down_run}, {NULL, NULL}},
};
