// SPDX-License-Identifier: Apache-2.0
//
// embed_args: a row of the table for every live row. One item a row.
// Invariant: the table's row is decoded by the same code in the row layout and in the panel layout of a tied projection.

#include "kernels/cpu/isa.h"
#include "kernels/cpu/layout.h"

#include <string.h>

static int64_t embed_items(const void *args)
{
    const struct embed_args *a = args;
    return a->pass->rows;
}

static void embed_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    const struct embed_args *a = args;
    const struct weight *w = &a->table;
    (void)scratch;
    for (int64_t r = begin; r < end; r++) {
        float *y = a->y + r * a->ldy;
        int64_t token = a->pass->token[r];
        if (a->panel)
            panel_row_decode(w, token, y);
        else
            row_decode(w->encoding, w->bits, w->group, w->k,
                       w->data + token * row_bytes(w->encoding, w->bits, w->group, w->k), w->global, y);
        for (int i = 1; i < a->copies; i++)
            memcpy(y + (int64_t)i * w->k, y, (size_t)w->k * sizeof *y);
    }
}

const struct kernel ISA_SYM(kernel_embed) = {"embed", {{embed_items, embed_run}, {NULL, NULL}, {NULL, NULL}}};
