// SPDX-License-Identifier: Apache-2.0
//
// The Mamba-2 recurrence, with a state that windows can be rolled back from (see recurrent.c).
//
// Invariant: S changes by one row update at a time, in row order, by one piece of code for prompt rows, windows and folds.

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/row.h"

// Phase 0 folds and runs (lane, head, block of S's rows); phase 1 saves the rows of a window once all have read the old ones.

enum { MAMBA_BLOCK = 32 };

static int64_t mamba_inner(const struct mamba_args *a)
{
    return (int64_t)a->heads * a->dim;
}

static int64_t mamba_shared(const struct mamba_args *a)
{
    return (int64_t)a->groups * a->state_dim;
}

static int64_t mamba_saved_width(const struct mamba_args *a)
{
    return mamba_inner(a) + mamba_shared(a) + a->heads;
}

static float *mamba_saved(const struct mamba_args *a, const struct lane *lane)
{
    return (float *)(lane->run + a->state) + mamba_inner(a) * a->state_dim;
}

static float mamba_dt(const struct mamba_args *a, int64_t row, int64_t head)
{
    float dt = f_softplus(a->dt[row * a->ldt + head] + a->dt_bias[head]);
    return dt < a->dt_min ? a->dt_min : dt;
}

// One row update of s [rows][stride]: S <- decay S + dt x B^T; y = S C + d x when c is not NULL. b and c hold n values.
VEC_INLINE void mamba_step(float *s, int32_t rows, int32_t stride, int32_t n, float decay, float dt, const float *x,
                           const float *b, const float *c, float d, float *y)
{
    const vf decays = vf_set1(decay);
    for (int32_t i = 0; i < rows; i++) {
        const vf step = vf_set1(dt * x[i]);
        vf sum = vf_zero();
        for (int32_t j = 0; j < n; j += VEC) {
            int lanes = row_lanes(n, j);
            float *at = s + (int64_t)i * stride + j;
            vf next = vf_fma(step, row_load(b + j, lanes), vf_mul(vf_load(at), decays));
            vf_store(at, next);
            if (c)
                sum = vf_fma(next, row_load(c + j, lanes), sum);
        }
        if (c)
            y[i] = vf_sum(sum) + d * x[i];
    }
}

static void mamba_copy(float *to, int64_t ld_to, const float *from, int64_t ld_from, int32_t rows, int32_t n)
{
    for (int32_t i = 0; i < rows; i++)
        memcpy(to + i * ld_to, from + i * ld_from, (size_t)n * sizeof *to);
}

// Rows first .. first + count - 1 of S of a head.
static void mamba_head(const struct mamba_args *a, int32_t l, int32_t head, int32_t first, int32_t count, float *s)
{
    const struct lane *lane = a->lanes.lane[l];
    const int32_t n = a->state_dim, stride = (int32_t)ceil_div(n, VEC) * VEC;
    const int64_t at = (int64_t)head * a->dim + first, group = (int64_t)(head / (a->heads / a->groups)) * n;
    const int64_t row = a->pass->lane_first[l], rows = a->pass->lane_rows[l];
    const float rate = -f_exp(a->a_log[head]);
    float *state = (float *)(lane->run + a->state) + at * n;
    memset(s, 0, (size_t)count * (size_t)stride * sizeof *s);
    mamba_copy(s, stride, state, n, count, n);
    const float *saved = mamba_saved(a, lane);
    for (int32_t r = 0; r < lane->fold; r++, saved += mamba_saved_width(a)) {
        const float *b = saved + mamba_inner(a), dt = b[mamba_shared(a) + head];
        mamba_step(s, count, stride, n, f_exp(rate * dt), dt, saved + at, b + group, NULL, 0, NULL);
    }
    if (lane->fold > 0 && !a->direct)
        mamba_copy(state, n, s, stride, count, n);
    for (int64_t r = row; r < row + rows; r++) {
        const float *c = a->c + r * a->ldc, *b = c + mamba_inner(a) + group;
        const float dt = mamba_dt(a, r, head);
        mamba_step(s, count, stride, n, f_exp(rate * dt), dt, c + at, b, b + mamba_shared(a), a->d[head],
                   a->y + r * a->ldy + at);
        for (int32_t i = 0; a->direct && i < LANE_KEEPS; i++)
            if (lane_keeps(lane, i, (int32_t)rows) == r - row + 1)
                mamba_copy((float *)(lane->keep_run[i] + a->state) + at * n, n, s, stride, count, n);
    }
    if (a->direct)
        mamba_copy(state, n, s, stride, count, n);
}

static int64_t mamba_items(const void *p)
{
    const struct mamba_args *a = p;
    return (int64_t)a->lanes.count * a->heads * ceil_div(a->dim, MAMBA_BLOCK);
}

static void mamba_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct mamba_args *a = p;
    const int64_t blocks = ceil_div(a->dim, MAMBA_BLOCK);
    for (int64_t item = begin; item < end; item++) {
        const int32_t first = (int32_t)(item % blocks) * MAMBA_BLOCK, l = (int32_t)(item / blocks / a->heads);
        if (a->lanes.lane[l] && a->pass->lane_rows[l] > 0)
            mamba_head(a, l, (int32_t)(item / blocks % a->heads), first, least(a->dim - first, MAMBA_BLOCK), scratch);
    }
}

static int64_t mamba_save_items(const void *p)
{
    const struct mamba_args *a = p;
    return a->direct ? 0 : a->pass->rows;
}

static void mamba_save(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct mamba_args *a = p;
    const int64_t width = mamba_inner(a) + mamba_shared(a);
    (void)scratch;
    for (int64_t r = begin; r < end; r++) {
        const int32_t l = a->pass->lane[r];
        float *saved = mamba_saved(a, a->lanes.lane[l]) + (r - a->pass->lane_first[l]) * mamba_saved_width(a);
        memcpy(saved, a->c + r * a->ldc, (size_t)width * sizeof *saved);
        for (int32_t h = 0; h < a->heads; h++)
            saved[width + h] = mamba_dt(a, r, h);
    }
}

const struct kernel ISA_SYM(kernel_mamba) = {"mamba", {{mamba_items, mamba_run}, {mamba_save_items, mamba_save}}};
