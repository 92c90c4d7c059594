// SPDX-License-Identifier: Apache-2.0
//
// linear_args: fused projections of the live rows. Phase 0 prepares the rows, phase 1 takes one panel (or, the tiles way,
// up to TILE_PANELS panels) of one part an item.
// Invariant: an item writes its own outputs of every row and reads nothing that another item of its phase writes.

#include "kernels/cpu/linear.h"

_Static_assert(sizeof(struct linear_room) <= KERNEL_SCRATCH, "a thread's scratch holds the room");

static int64_t linear_rows(const struct linear_args *a)
{
    return a->row_multiple > 1 ? (int64_t)a->pass->rows * a->row_multiple : a->pass->rows;
}

static int linear_need(const struct linear_args *a)
{
    int need = 0;
    for (int i = 0; i < a->parts; i++)
        need |= ISA_SYM(product_need)(a->row_class, &a->part[i].w, a->k);
    return need;
}

static int64_t prepare_items(const void *args)
{
    const struct linear_args *a = args;
    return ISA_SYM(view_items)(linear_rows(a), a->k, linear_need(a));
}

static void prepare_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    const struct linear_args *a = args;
    int need = linear_need(a);
    struct row_view v = ISA_SYM(view_make)(a->x, a->ldx, a->k, linear_rows(a), a->scratch, need);
    (void)scratch;
    ISA_SYM(view_prepare)(&v, a->x, a->ldx, linear_rows(a), need, begin, end);
}

// Panels of an item of a part: fewer for a small matrix, so that its items still balance.
static int part_span(const struct linear_args *a, const struct linear_part *part)
{
    int span = item_panels(ISA_SYM(product_need)(a->row_class, &part->w, a->k));
    while (span > 2 && weight_panels(&part->w) < 16 * span)
        span /= 2;
    return span;
}

static int64_t part_items(const struct linear_args *a, int i)
{
    int span = part_span(a, &a->part[i]);
    return (weight_panels(&a->part[i].w) + span - 1) / span;
}

static int64_t linear_items(const void *args)
{
    const struct linear_args *a = args;
    int64_t items = 0;
    if (linear_rows(a) > 0)
        for (int i = 0; i < a->parts; i++)
            items += part_items(a, i);
    return items;
}

// Item `item` of a part: its panels with every row.
static void linear_item(const struct linear_args *a, const struct linear_part *part, const struct row_view *v,
                        int64_t item, struct linear_room *room)
{
    int span = part_span(a, part);
    int64_t first = item * span, left = weight_panels(&part->w) - first, rows = linear_rows(a);
    int panels = left < span ? (int)left : span;
    float alpha = part->alpha * weight_factor(&part->w, 0);
    for (int64_t top = 0; top < rows; top += CHUNK_ROWS) {
        int count = (int)(rows - top < CHUNK_ROWS ? rows - top : CHUNK_ROWS);
        for (int r = 0; r < count; r++)
            room->rows[r] = (int32_t)(top + r);
        ISA_SYM(products)(a->row_class, &part->w, 0, first, panels, v, room->rows, count, 1, room, room->sums);
        for (int i = 0; i < panels; i++) {
            int outputs = panel_outputs(part->w.n, first + i);
            float *y = part->y + top * part->ldy + (first + i) * PANEL;
            for (int r = 0; r < count; r++) {
                vf sum = vf_load(room->sums + (i * CHUNK_ROWS + r) * PANEL);
                store_outputs(y + (int64_t)r * part->ldy, finish(sum, alpha, part->activation), outputs);
            }
        }
    }
}

static void linear_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    const struct linear_args *a = args;
    struct row_view v = ISA_SYM(view_make)(a->x, a->ldx, a->k, linear_rows(a), a->scratch, linear_need(a));
    int64_t base = 0;
    for (int i = 0; i < a->parts; i++) {
        int64_t items = part_items(a, i);
        int64_t from = begin > base ? begin - base : 0, to = end - base < items ? end - base : items;
        for (int64_t item = from; item < to; item++)
            linear_item(a, &a->part[i], &v, item, scratch);
        base += items;
    }
}

const struct kernel ISA_SYM(kernel_linear) = {
    "linear",
    {{prepare_items, prepare_run}, {linear_items, linear_run}, {NULL, NULL}},
};
