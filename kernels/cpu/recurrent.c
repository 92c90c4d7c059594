// SPDX-License-Identifier: Apache-2.0
//
// The causal convolution and the Gated DeltaNet recurrence, with states that windows can be rolled back from.
//
// Invariant: a state changes by one row update at a time, in row order, by one piece of code, whether the row comes from a
// prompt, from a window of one, or is folded in after a window was accepted; so all three leave the same bits. A lane
// without rows in the pass is not touched, nor are its pending rows.

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/row.h"

// ---- conv: items are (lane, block of channels); an item owns its columns of history and saved rows -------------------------

enum { CONV_BLOCK = 512 };

static int64_t conv_items(const void *p)
{
    const struct conv_args *a = p;
    return a->lanes.count * ceil_div(a->channels, CONV_BLOCK);
}

// Moves the history, `rows` rows of `n` columns, on by `count` rows of `source`, to `to`, which may be the history.
static void conv_shift(float *to, const float *history, int32_t rows, int64_t ld, const float *source,
                       int64_t ld_source, int32_t count, int32_t n)
{
    for (int32_t i = 0; i < rows; i++) {
        int64_t from = (int64_t)i + count;
        const float *row = from < rows ? history + from * ld : source + (from - rows) * ld_source;
        memmove(to + i * ld, row, (size_t)n * sizeof *row);
    }
}

// y = act(bias + sum of taps) for n columns of row r; w is [taps][CONV_BLOCK].
static void conv_row(const struct conv_args *a, const float *u, const float *history, int32_t r, int32_t n,
                     const float *w, const float *bias, float *y)
{
    const int32_t rows = a->dilation * (a->taps - 1);
    for (int32_t j = 0; j < n; j += VEC) {
        int lanes = row_lanes(n, j);
        vf sum = bias ? row_load(bias + j, lanes) : vf_zero();
        for (int32_t i = 0; i < a->taps; i++) {
            int64_t at = (int64_t)r - (int64_t)a->dilation * (a->taps - 1 - i);
            const float *row = at >= 0 ? u + at * a->ldu : history + (rows + at) * a->channels;
            sum = vf_fma(vf_load(w + i * CONV_BLOCK + j), row_load(row + j, lanes), sum);
        }
        row_store(y + j, vf_activate(sum, a->activation), lanes);
    }
}

static void conv_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct conv_args *a = p;
    const int64_t blocks = ceil_div(a->channels, CONV_BLOCK);
    const int32_t depth = a->dilation * (a->taps - 1);
    float *w = scratch;
    for (int64_t item = begin; item < end; item++) {
        const int32_t l = (int32_t)(item / blocks), first = (int32_t)(item % blocks) * CONV_BLOCK;
        const int32_t n = least(a->channels - first, CONV_BLOCK), rows = a->pass->lane_rows[l];
        const struct lane *lane = a->lanes.lane[l];
        if (!lane || rows == 0)
            continue;
        float *history = (float *)(lane->run + a->state) + first;
        float *saved = history + (int64_t)depth * a->channels;
        const float *u = a->u + (int64_t)a->pass->lane_first[l] * a->ldu + first;
        float *y = a->y + (int64_t)a->pass->lane_first[l] * a->ldy + first;
        for (int32_t j = 0; j < n; j++)
            for (int32_t i = 0; i < a->taps; i++)
                w[i * CONV_BLOCK + j] = a->w[(int64_t)(first + j) * a->taps + i];
        conv_shift(history, history, depth, a->channels, saved, a->channels, lane->fold, n);
        for (int32_t r = 0; r < rows; r++)
            conv_row(a, u, history, r, n, w, a->bias ? a->bias + first : NULL, y + (int64_t)r * a->ldy);
        for (int32_t i = 0; a->direct && i < LANE_KEEPS; i++) {
            const int32_t behind = lane_keeps(lane, i, rows);
            if (behind)
                conv_shift((float *)(lane->keep_run[i] + a->state) + first, history, depth, a->channels, u, a->ldu,
                           behind, n);
        }
        if (a->direct)
            conv_shift(history, history, depth, a->channels, u, a->ldu, rows, n);
        for (int32_t r = 0; !a->direct && r < rows; r++)
            memcpy(saved + (int64_t)r * a->channels, u + (int64_t)r * a->ldu, (size_t)n * sizeof *u);
    }
}

const struct kernel ISA_SYM(kernel_conv) = {"conv", {{conv_items, conv_run}}};

// ---- gdn -----------------------------------------------------------------------------------------------------------------
//
// Phase 0 prepares rows; phase 1 folds and runs (lane, value head, block of columns of S); phase 2 saves the rows of a window,
// after every item of phase 1 has read the rows that lay there.

enum { GDN_BLOCK = 64 }; // columns of S that an item holds in scratch

// A loop over at most GDN_BLOCK / VEC vectors that must live in registers.
#define EACH_VECTOR(j, width) _Pragma("GCC unroll 4") for (int j = 0; j < width; j++)

static int64_t gdn_prepared_width(const struct gdn_args *a)
{
    return 2 * (int64_t)a->nk * a->dk + 2 * a->nv;
}

static int64_t gdn_saved_width(const struct gdn_args *a)
{
    return (int64_t)a->nk * a->dk + (int64_t)a->nv * a->dv + 2 * a->nv;
}

static float *gdn_saved(const struct gdn_args *a, const struct lane *lane)
{
    return (float *)(lane->run + a->state) + (int64_t)a->nv * a->dk * a->dv;
}

static int64_t gdn_prepare_items(const void *p)
{
    const struct gdn_args *a = p;
    return (int64_t)a->pass->rows * a->nk;
}

static void gdn_normalise(float *y, const float *x, int32_t n, float scale)
{
    const vf f = vf_set1(1.0f / __builtin_sqrtf(row_dot(x, x, n) + 1e-6f)), s = vf_set1(scale);
    for (int32_t i = 0; i < n; i += VEC) {
        int lanes = row_lanes(n, i);
        row_store(y + i, vf_mul(vf_mul(row_load(x + i, lanes), f), s), lanes);
    }
}

static void gdn_prepare(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct gdn_args *a = p;
    const int32_t share = a->nv / a->nk, dk = a->dk;
    const int64_t keys = (int64_t)a->nk * dk;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        int64_t r = item / a->nk, head = item % a->nk;
        const float *c = a->c + r * a->ldc + head * dk;
        float *out = a->prepared + r * gdn_prepared_width(a);
        gdn_normalise(out + head * dk, c, dk, 1.0f / __builtin_sqrtf((float)dk));
        gdn_normalise(out + keys + head * dk, c + keys, dk, 1.0f);
        for (int64_t h = head * share; h < (head + 1) * share; h++) {
            float g = -f_exp(a->a_log[h]) * f_softplus(a->a[r * a->lda + h] + a->dt_bias[h]);
            out[2 * keys + h] = f_exp(g);
            out[2 * keys + a->nv + h] = f_sigmoid(a->b[r * a->ldb + h]);
        }
    }
}

// One row update of S [dk][16*width], the columns of an item: decay, read (which is decayed as a sum), correct; then
// o = S^T q when q is not NULL.
VEC_INLINE void gdn_step(float *s, int32_t dk, const int width, const float *k, const float *q, const vf *v,
                         float decay, float beta, vf *o)
{
    const vf decays = vf_set1(decay), betas = vf_set1(beta);
    vf even[4], odd[4], delta[4];
    EACH_VECTOR(j, width)
    even[j] = odd[j] = vf_zero();
    int32_t i = 0;
    for (; i + 2 <= dk; i += 2) {
        const vf k0 = vf_set1(k[i]), k1 = vf_set1(k[i + 1]);
        const float *row = s + (int64_t)i * width * VEC;
        EACH_VECTOR(j, width)
        {
            even[j] = vf_fma(vf_load(row + j * VEC), k0, even[j]);
            odd[j] = vf_fma(vf_load(row + (width + j) * VEC), k1, odd[j]);
        }
    }
    for (; i < dk; i++)
        EACH_VECTOR(j, width)
        {
            vf row = vf_load(s + ((int64_t)i * width + j) * VEC);
            even[j] = vf_fma(row, vf_set1(k[i]), even[j]);
        }
    EACH_VECTOR(j, width)
    {
        delta[j] = vf_mul(betas, vf_sub(v[j], vf_mul(decays, vf_add(even[j], odd[j]))));
        o[j] = vf_zero();
    }
    for (i = 0; i < dk; i++) {
        const vf ki = vf_set1(k[i]), qi = vf_set1(q ? q[i] : 0.0f);
        EACH_VECTOR(j, width)
        {
            float *row = s + ((int64_t)i * width + j) * VEC;
            vf next = vf_fma(ki, delta[j], vf_mul(vf_load(row), decays));
            vf_store(row, next);
            if (q)
                o[j] = vf_fma(next, qi, o[j]);
        }
    }
}

// What an item of phase 1 works on.
struct gdn_item {
    int32_t lane, head, first, columns; // columns first .. first + columns - 1 of S of a value head
    float *state;                       // S of the head, at its first column
    float *s;                           // scratch: [dk][16 * width]
};

// The item's part of S in a run.
static float *gdn_place(const struct gdn_args *a, const struct gdn_item *t, uint8_t *run)
{
    return (float *)(run + a->state) + (int64_t)t->head * a->dk * a->dv + t->first;
}

VEC_INLINE void gdn_load(const struct gdn_args *a, const struct gdn_item *t, const int width)
{
    for (int32_t i = 0; i < a->dk; i++)
        EACH_VECTOR(j, width)
        {
            int lanes = row_lanes(t->columns, j * VEC);
            vf_store(t->s + ((int64_t)i * width + j) * VEC, row_load(t->state + (int64_t)i * a->dv + j * VEC, lanes));
        }
}

// state: the item's part of S in a run.
VEC_INLINE void gdn_store(const struct gdn_args *a, const struct gdn_item *t, float *state, const int width)
{
    for (int32_t i = 0; i < a->dk; i++)
        EACH_VECTOR(j, width)
        {
            int lanes = row_lanes(t->columns, j * VEC);
            row_store(state + (int64_t)i * a->dv + j * VEC, vf_load(t->s + ((int64_t)i * width + j) * VEC), lanes);
        }
}

VEC_INLINE void gdn_head(const struct gdn_args *a, const struct gdn_item *t, const int width)
{
    const struct lane *lane = a->lanes.lane[t->lane];
    const int64_t keys = (int64_t)a->nk * a->dk, values = (int64_t)a->nv * a->dv;
    const int64_t key = (int64_t)(t->head / (a->nv / a->nk)) * a->dk, value = (int64_t)t->head * a->dv + t->first;
    const int64_t first = a->pass->lane_first[t->lane], rows = a->pass->lane_rows[t->lane];
    vf v[4], o[4];
    gdn_load(a, t, width);
    const float *saved = gdn_saved(a, lane);
    for (int32_t r = 0; r < lane->fold; r++, saved += gdn_saved_width(a)) {
        EACH_VECTOR(j, width)
        v[j] = row_load(saved + keys + value + j * VEC, row_lanes(t->columns, j * VEC));
        const float *scalars = saved + keys + values + t->head;
        gdn_step(t->s, a->dk, width, saved + key, NULL, v, scalars[0], scalars[a->nv], o);
    }
    if (lane->fold > 0 && !a->direct)
        gdn_store(a, t, t->state, width);
    for (int64_t r = first; r < first + rows; r++) {
        const float *prepared = a->prepared + r * gdn_prepared_width(a), *scalars = prepared + 2 * keys + t->head;
        EACH_VECTOR(j, width)
        v[j] = row_load(a->c + r * a->ldc + 2 * keys + value + j * VEC, row_lanes(t->columns, j * VEC));
        gdn_step(t->s, a->dk, width, prepared + keys + key, prepared + key, v, scalars[0], scalars[a->nv], o);
        EACH_VECTOR(j, width)
        row_store(a->y + r * a->ldy + value + j * VEC, o[j], row_lanes(t->columns, j * VEC));
        for (int32_t i = 0; a->direct && i < LANE_KEEPS; i++)
            if (lane_keeps(lane, i, (int32_t)rows) == r - first + 1)
                gdn_store(a, t, gdn_place(a, t, lane->keep_run[i]), width);
    }
    if (a->direct)
        gdn_store(a, t, t->state, width);
}

static int64_t gdn_items(const void *p)
{
    const struct gdn_args *a = p;
    return (int64_t)a->lanes.count * a->nv * ceil_div(a->dv, GDN_BLOCK);
}

static void gdn_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct gdn_args *a = p;
    const int64_t blocks = ceil_div(a->dv, GDN_BLOCK);
    for (int64_t item = begin; item < end; item++) {
        struct gdn_item t = {.head = (int32_t)(item / blocks % a->nv), .s = scratch};
        t.lane = (int32_t)(item / blocks / a->nv);
        t.first = (int32_t)(item % blocks) * GDN_BLOCK;
        t.columns = least(a->dv - t.first, GDN_BLOCK);
        if (!a->lanes.lane[t.lane] || a->pass->lane_rows[t.lane] == 0)
            continue;
        t.state = gdn_place(a, &t, a->lanes.lane[t.lane]->run);
        switch (ceil_div(t.columns, VEC)) {
        case 1:
            gdn_head(a, &t, 1);
            break;
        case 2:
            gdn_head(a, &t, 2);
            break;
        case 3:
            gdn_head(a, &t, 3);
            break;
        default:
            gdn_head(a, &t, 4);
        }
    }
}

static int64_t gdn_save_items(const void *p)
{
    const struct gdn_args *a = p;
    return a->direct ? 0 : a->pass->rows;
}

static void gdn_save(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct gdn_args *a = p;
    const size_t keys = (size_t)a->nk * (size_t)a->dk, values = (size_t)a->nv * (size_t)a->dv;
    (void)scratch;
    for (int64_t r = begin; r < end; r++) {
        const int32_t l = a->pass->lane[r];
        const float *prepared = a->prepared + r * gdn_prepared_width(a);
        float *saved = gdn_saved(a, a->lanes.lane[l]) + (r - a->pass->lane_first[l]) * gdn_saved_width(a);
        memcpy(saved, prepared + keys, keys * sizeof *saved);
        memcpy(saved + keys, a->c + r * a->ldc + 2 * keys, values * sizeof *saved);
        memcpy(saved + keys + values, prepared + 2 * keys, 2 * (size_t)a->nv * sizeof *saved);
    }
}

const struct kernel ISA_SYM(kernel_gdn) = {
    "gdn", {{gdn_prepare_items, gdn_prepare}, {gdn_items, gdn_run}, {gdn_save_items, gdn_save}}};
