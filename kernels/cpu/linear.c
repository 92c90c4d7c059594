// SPDX-License-Identifier: Apache-2.0
//
// linear_args: fused projections of the live rows. Phase 0 pads the rows to what the panels read, phase 1 takes one panel an
// item.
// Invariant: an item writes its own 16 outputs of every row and reads nothing that another item of its phase writes.

#include "kernels/cpu/linear.h"

static int64_t linear_rows(const struct linear_args *a)
{
    int64_t multiple = a->row_multiple > 1 ? a->row_multiple : 1;
    return a->pass->rows * multiple;
}

// ---- phase 0: rows whose k is not a multiple of 32 are copied to the scratch, padded with zeros --------------------------

static int64_t padded(const struct linear_args *a)
{
    return round_up(a->k, 128);
}

static int64_t prepare_items(const void *args)
{
    const struct linear_args *a = args;
    return a->k % PANEL_BLOCK ? linear_rows(a) : 0;
}

static void prepare_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    const struct linear_args *a = args;
    (void)scratch;
    for (int64_t r = begin; r < end; r++) {
        float *row = (float *)a->scratch + r * padded(a);
        memcpy(row, a->x + r * a->ldx, (size_t)a->k * sizeof *row);
        memset(row + a->k, 0, (size_t)(padded(a) - a->k) * sizeof *row);
    }
}

static const float *linear_row(const struct linear_args *a, int64_t r)
{
    return a->k % PANEL_BLOCK ? (const float *)a->scratch + r * padded(a) : a->x + r * a->ldx;
}

// ---- phase 1 ------------------------------------------------------------------------------------------------------------

struct linear_room {
    float decoded[CHUNK_BLOCKS * 32 * PANEL];
    float sums[CHUNK_ROWS * PANEL];
    const float *x[CHUNK_ROWS];
};
_Static_assert(sizeof(struct linear_room) <= KERNEL_SCRATCH, "linear scratch");

static int64_t linear_items(const void *args)
{
    const struct linear_args *a = args;
    int64_t items = 0;
    if (linear_rows(a) > 0)
        for (int i = 0; i < a->parts; i++)
            items += weight_panels(&a->part[i].w);
    return items;
}

static void linear_panel(const struct linear_args *a, const struct linear_part *part, int64_t p,
                         struct linear_room *room)
{
    struct panel panel = weight_panel(&part->w, 0, p);
    float alpha = part->alpha * weight_factor(&part->w, 0);
    int outputs = panel_outputs(part->w.n, p);
    int64_t rows = linear_rows(a);
    for (int64_t first = 0; first < rows; first += CHUNK_ROWS) {
        int count = (int)(rows - first < CHUNK_ROWS ? rows - first : CHUNK_ROWS);
        for (int r = 0; r < count; r++)
            room->x[r] = linear_row(a, first + r);
        ISA_SYM(panel_dot)(&panel, room->x, count, room->decoded, room->sums);
        for (int r = 0; r < count; r++)
            finish_row(room->sums + r * PANEL, alpha, part->activation, outputs,
                       part->y + (first + r) * part->ldy + p * PANEL);
    }
}

static void linear_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    const struct linear_args *a = args;
    int64_t base = 0;
    for (int i = 0; i < a->parts; i++) {
        int64_t panels = weight_panels(&a->part[i].w);
        int64_t from = begin > base ? begin - base : 0, to = end - base < panels ? end - base : panels;
        for (int64_t p = from; p < to; p++)
            linear_panel(a, &a->part[i], p, scratch);
        base += panels;
    }
}

const struct kernel ISA_SYM(kernel_linear) = {
    "linear",
    {{prepare_items, prepare_run}, {linear_items, linear_run}, {NULL, NULL}},
};
