// SPDX-License-Identifier: Apache-2.0
//
// Normalisations, rotary embedding, and the element-wise operations around them.
//
// Invariant: an item is a row, a group of a row or a block of a row's elements; nothing is read that belongs to another row.

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/rotary.h"
#include "kernels/cpu/row.h"

// y[i] = x[i] * factor * w[i]
static void scale_row(float *y, const float *x, float factor, const float *w, int32_t n)
{
    const vf f = vf_set1(factor);
    for (int32_t i = 0; i < n; i += VEC) {
        int lanes = row_lanes(n, i);
        row_store(y + i, vf_mul(vf_mul(row_load(x + i, lanes), f), row_load(w + i, lanes)), lanes);
    }
}

// ---- norm: items are (row, group) ----------------------------------------------------------------------------------------

static int64_t norm_items(const void *p)
{
    const struct norm_args *a = p;
    return (int64_t)a->pass->rows * a->groups;
}

static void norm_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct norm_args *a = p;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        int64_t r = item / a->groups, at = item % a->groups * a->dim;
        const float *x = a->x + r * a->ldx + at;
        scale_row(a->y + r * a->ldy + at, x, row_rms(x, a->dim, a->eps), a->w + at, a->dim);
    }
}

const struct kernel ISA_SYM(kernel_norm) = {"norm", {{norm_items, norm_run}}};

// ---- gated_norm: items are (row, head) -----------------------------------------------------------------------------------

static int64_t gated_norm_items(const void *p)
{
    const struct gated_norm_args *a = p;
    return (int64_t)a->pass->rows * a->heads;
}

static void gated_norm_head(const struct gated_norm_args *a, const float *x, const float *z, const float *w, float *y)
{
    const int32_t n = a->dim;
    if (a->norm_after) {
        for (int32_t i = 0; i < n; i += VEC) {
            int lanes = row_lanes(n, i);
            vf gate = vf_activate(row_load(z + i, lanes), a->activation);
            row_store(y + i, vf_mul(row_load(x + i, lanes), gate), lanes);
        }
        scale_row(y, y, row_rms(y, n, a->eps), w, n);
        return;
    }
    const vf factor = vf_set1(row_rms(x, n, a->eps));
    for (int32_t i = 0; i < n; i += VEC) {
        int lanes = row_lanes(n, i);
        vf gate = vf_activate(row_load(z + i, lanes), a->activation);
        vf t = vf_mul(vf_mul(row_load(x + i, lanes), factor), row_load(w + i, lanes));
        row_store(y + i, vf_mul(t, gate), lanes);
    }
}

static void gated_norm_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct gated_norm_args *a = p;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        int64_t r = item / a->heads, at = item % a->heads * a->dim;
        gated_norm_head(a, a->x + r * a->ldx + at, a->z + r * a->ldz + at, a->w + (a->norm_after ? at : 0),
                        a->y + r * a->ldy + at);
    }
}

const struct kernel ISA_SYM(kernel_gated_norm) = {"gated_norm", {{gated_norm_items, gated_norm_run}}};

// ---- head_norm: items are rows, so that a row's angles are computed once ---------------------------------------------------

static int64_t head_norm_items(const void *p)
{
    return ((const struct head_norm_args *)p)->pass->rows;
}

static void head_norm_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct head_norm_args *a = p;
    float *cosine = scratch, *sine = cosine + a->rotary / 2;
    for (int64_t r = begin; r < end; r++) {
        rotary_angles(a->inverse_frequency, a->rotary, a->pass->position[r], cosine, sine);
        for (int32_t h = 0; h < a->heads; h++) {
            const float *x = a->x + r * a->ldx + (int64_t)h * a->head_stride;
            float *y = a->y + r * a->ldy + (int64_t)h * a->dim;
            if (a->w)
                scale_row(y, x, row_rms(x, a->dim, a->eps), a->w, a->dim);
            else if (y != x)
                memmove(y, x, (size_t)a->dim * sizeof *y);
            rotary_apply(y, a->rotary, cosine, sine);
        }
    }
}

const struct kernel ISA_SYM(kernel_head_norm) = {"head_norm", {{head_norm_items, head_norm_run}}};

// ---- add, glu: items are (row, block of elements) --------------------------------------------------------------------------

static int64_t add_items(const void *p)
{
    const struct add_args *a = p;
    return a->pass->rows * ceil_div(a->width, ROW_BLOCK);
}

static void add_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct add_args *a = p;
    const int64_t blocks = ceil_div(a->width, ROW_BLOCK);
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        int64_t r = item / blocks;
        int32_t first = (int32_t)(item % blocks) * ROW_BLOCK, last = least(first + ROW_BLOCK, a->width);
        float *x = a->x + r * a->ldx;
        const float *y = a->y + r * a->ldy;
        for (int32_t i = first; i < last; i += VEC) {
            int lanes = row_lanes(last, i);
            row_store(x + i, vf_add(row_load(x + i, lanes), row_load(y + i, lanes)), lanes);
        }
    }
}

const struct kernel ISA_SYM(kernel_add) = {"add", {{add_items, add_run}}};

static int64_t glu_items(const void *p)
{
    const struct glu_args *a = p;
    return a->pass->rows * ceil_div(a->width, ROW_BLOCK);
}

static void glu_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct glu_args *a = p;
    const int64_t blocks = ceil_div(a->width, ROW_BLOCK);
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        int64_t r = item / blocks;
        int32_t first = (int32_t)(item % blocks) * ROW_BLOCK, last = least(first + ROW_BLOCK, a->width);
        const float *u = a->u + r * a->ldu;
        float *y = a->y + r * a->ldy;
        for (int32_t i = first; i < last; i += VEC) {
            int lanes = row_lanes(last, i);
            vf t = row_load(u + i, lanes);
            if (a->g)
                t = vf_mul(vf_activate(row_load(a->g + r * a->ldg + i, lanes), a->activation), t);
            else
                t = vf_activate(t, a->activation);
            row_store(y + i, t, lanes);
        }
    }
}

const struct kernel ISA_SYM(kernel_glu) = {"glu", {{glu_items, glu_run}}};
