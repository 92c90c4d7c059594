// SPDX-License-Identifier: Apache-2.0
//
// Routed experts and embeddings on every instruction set of this machine. A (row, slot) must have the bits of the linear
// kernel on that expert's matrix alone (tests/linear_test.c holds that one to double precision), whoever shares the expert.

#include <stdio.h>

#include "kernels/cpu/ops.h"
#include "tests/kernel_run.h"
#include "tests/matrix_sample.h"

enum { ROWS = 40, SLOTS = 3 };

static const struct {
    int encoding, bits, group, experts, inner, k, gated;
} cases[] = {
    {ENC_BF16, 0, 0, 7, 33, 72, 1},     {ENC_BF16, 0, 0, 90, 48, 96, 0},      {ENC_NVFP4, 0, 0, 5, 48, 160, 1},
    {ENC_AFFINE, 4, 32, 4, 160, 96, 1}, {ENC_FP8_BLOCK, 0, 0, 3, 40, 200, 1}, {ENC_MXFP8, 0, 0, 2, 32, 64, 0},
    {ENC_INT4, 4, 128, 3, 64, 128, 1},  {ENC_F32, 0, 0, 3, 20, 40, 1},
};

// One stacked weight of `experts` random matrices; the samples are kept for comparison.
static struct weight stack(struct sample *s, int experts, float *globals)
{
    struct weight w = s[0].w;
    w.data_stride = panel_data_bytes(&w);
    w.scale_stride = panel_scale_bytes(&w);
    uint8_t *data = sample_bytes(w.data_stride * experts), *scale = sample_bytes(w.scale_stride * experts);
    for (int e = 0; e < experts; e++) {
        memcpy(data + e * w.data_stride, s[e].w.data, (size_t)w.data_stride);
        memcpy(scale + e * w.scale_stride, s[e].w.scale, (size_t)w.scale_stride);
        globals[e] = s[e].global * (float)(e + 1);
    }
    w.data = data;
    w.scale = scale;
    w.global = globals;
    return w;
}

static void free_stack(struct weight *w, struct sample *s, int experts)
{
    free((void *)(uintptr_t)w->data);
    free((void *)(uintptr_t)w->scale);
    for (int e = 0; e < experts; e++)
        sample_free(&s[e]);
}

// The linear kernel on expert e of w and one row.
static void linear_alone(const struct kernel *kernel, const struct weight *w, int e, int class, int activation,
                         const float *x, float *y)
{
    struct pass pass = {.rows = 1};
    struct linear_args a = {.pass = &pass, .row_class = class, .k = w->k, .ldx = w->k, .x = x, .parts = 1};
    a.scratch = sample_bytes(linear_scratch_bytes(1, w->k));
    a.part[0] = (struct linear_part){*w, y, w->n, activation, 1.0f};
    a.part[0].w.data += e * w->data_stride;
    a.part[0].w.scale += e * w->scale_stride;
    a.part[0].w.global += e;
    kernel_run(kernel, &a, 1);
    free(a.scratch);
}

struct moe {
    int experts, inner, k, gated;
    struct weight gate, up, down;
    float *x;
    int32_t *ids;
};

// Runs both halves on rows first .. first + count - 1.
static void moe_run(const struct kernel *const *kernels, const struct moe *m, int class, int first, int count, int cut,
                    float *h, float *y)
{
    struct pass pass = {.rows = count};
    struct experts_up_args up = {.pass = &pass, .row_class = class, .experts = m->experts, .slots = SLOTS, .k = m->k};
    int64_t size = linear_scratch_bytes(count * SLOTS, m->inner), other = linear_scratch_bytes(count, m->k);
    void *groups = sample_bytes(experts_groups_bytes(count, SLOTS, m->experts));
    void *scratch = sample_bytes(size > other ? size : other);
    up.inner = m->inner;
    up.ldx = m->k;
    up.activation = ACT_RELU2;
    up.x = m->x + first * m->k;
    up.ids = m->ids + first * SLOTS;
    if (m->gated)
        up.gate = m->gate;
    up.up = m->up;
    up.h = h;
    up.groups = groups;
    up.scratch = scratch;
    kernel_run(kernels[1], &up, cut);
    struct experts_down_args down = {.pass = &pass, .row_class = class, .experts = m->experts, .slots = SLOTS};
    down.k = m->inner;
    down.n = m->k;
    down.h = h;
    down.ids = up.ids;
    down.down = m->down;
    down.y = y;
    down.groups = groups;
    down.scratch = scratch;
    kernel_run(kernels[2], &down, cut);
    free(groups);
    free(scratch);
}

// Whether (row, slot) results equal the linear kernel's.
static bool agrees(const struct kernel *const *kernels, const struct moe *m, int class, const float *h, const float *y)
{
    float *want = sample_bytes(m->inner * 4), *gate = sample_bytes(m->inner * 4), *out = sample_bytes(m->k * 4);
    bool good = true;
    for (int i = 0; i < ROWS * SLOTS; i++) {
        const float *x = m->x + i / SLOTS * m->k;
        int e = m->ids[i];
        linear_alone(kernels[0], &m->up, e, class, m->gated ? ACT_NONE : ACT_RELU2, x, want);
        if (m->gated) {
            linear_alone(kernels[0], &m->gate, e, class, ACT_SILU, x, gate);
            for (int j = 0; j < m->inner; j++)
                want[j] = gate[j] * want[j];
        }
        linear_alone(kernels[0], &m->down, e, class, ACT_NONE, h + i * m->inner, out);
        good = good && memcmp(want, h + i * m->inner, (size_t)m->inner * 4) == 0;
        good = good && memcmp(out, y + i * m->k, (size_t)m->k * 4) == 0;
    }
    free(want);
    free(gate);
    free(out);
    return good;
}

// Whether fewer rows and other cuts give the same bits.
static bool same_bits(const struct kernel *const *kernels, const struct moe *m, int class, const float *h,
                      const float *y)
{
    static const int counts[] = {1, 2, 5, 16, 17};
    float *h2 = sample_bytes(ROWS * SLOTS * m->inner * 4), *y2 = sample_bytes(ROWS * SLOTS * m->k * 4);
    bool good = true;
    for (int c = 0; c < 5; c++) {
        int first = (int)(sample_random() % (unsigned)(ROWS - counts[c])), at = first * SLOTS, n = counts[c] * SLOTS;
        moe_run(kernels, m, class, first, counts[c], c + 2, h2, y2);
        good = good && memcmp(h2, h + at * m->inner, (size_t)(n * m->inner) * 4) == 0;
        good = good && memcmp(y2, y + at * m->k, (size_t)(n * m->k) * 4) == 0;
    }
    free(h2);
    free(y2);
    return good;
}

static void test_case(const struct kernel *const *kernels, const char *isa, int c)
{
    struct sample gate[90], up[90], down[90];
    float globals[3][90];
    struct moe m = {.experts = cases[c].experts, .inner = cases[c].inner, .k = cases[c].k, .gated = cases[c].gated};
    int enc = cases[c].encoding, down_enc = m.inner % (cases[c].group ? cases[c].group : 16) ? ENC_BF16 : enc;
    down_enc = enc == ENC_MXFP8 && m.inner % 32 ? ENC_BF16 : down_enc;
    sample_state = (uint64_t)c + 77;
    for (int e = 0; e < m.experts; e++) {
        gate[e] = sample_make(enc, cases[c].bits, cases[c].group, m.inner, m.k);
        up[e] = sample_make(enc, cases[c].bits, cases[c].group, m.inner, m.k);
        down[e] = sample_make(down_enc, cases[c].bits, cases[c].group, m.k, m.inner);
    }
    m.gate = stack(gate, m.experts, globals[0]);
    m.up = stack(up, m.experts, globals[1]);
    m.down = stack(down, m.experts, globals[2]);
    m.x = sample_bytes(ROWS * m.k * 4);
    m.ids = sample_bytes(ROWS * SLOTS * 4);
    for (int i = 0; i < ROWS * m.k; i++)
        m.x[i] = sample_uniform();
    // some experts are popular, some are nobody's; a row never chooses one twice
    for (int i = 0; i < ROWS * SLOTS; i++) {
        int first = i / SLOTS % 3 ? 0 : (int)(sample_random() % (unsigned)m.experts);
        m.ids[i] = (first + i % SLOTS) % m.experts;
    }
    float *h = sample_bytes(ROWS * SLOTS * m.inner * 4), *y = sample_bytes(ROWS * SLOTS * m.k * 4);
    for (int class = CLASS_DECODE; class <= CLASS_PROMPT; class ++) {
        moe_run(kernels, &m, class, 0, ROWS, 1, h, y);
        ok(agrees(kernels, &m, class, h, y), "%s case %d class %d: experts have the linear kernel's bits", isa, c,
           class);
        ok(same_bits(kernels, &m, class, h, y), "%s case %d class %d: whoever else is there", isa, c, class);
    }
    m.ids[SLOTS] = (m.ids[SLOTS] + 1) % m.experts;
    ok(m.experts == 1 || !agrees(kernels, &m, CLASS_PROMPT, h, y), "%s case %d: a wrong expert is caught", isa, c);
    free_stack(&m.gate, gate, m.experts);
    free_stack(&m.up, up, m.experts);
    free_stack(&m.down, down, m.experts);
    free(m.x);
    free(m.ids);
    free(h);
    free(y);
}

static void test_embed(const struct kernel *kernel, const char *isa)
{
    struct sample s = sample_make(ENC_AFFINE, 4, 32, 50, 96);
    int32_t token[2] = {49, 3};
    struct pass pass = {.rows = 2, .token = token};
    float y[2][2][96];
    struct embed_args a = {.pass = &pass, .table = s.w, .copies = 2, .ldy = 192, .y = &y[0][0][0]};
    uint8_t *rows = sample_bytes(row_bytes(ENC_AFFINE, 4, 32, 96) * 50);
    ok(row_pack(&s.w, &s.source, rows, NULL), "%s: a table packs in rows", isa);
    for (a.panel = 0; a.panel < 2; a.panel++) {
        a.table.data = a.panel ? s.w.data : rows;
        memset(y, 0xff, sizeof y);
        kernel_run(kernel, &a, 2);
        bool good = true;
        for (int r = 0; r < 2; r++)
            for (int i = 0; i < 192; i++)
                good = good && fabs((double)y[r][i / 96][i % 96] - s.value[token[r] * 96 + i % 96]) < 1e-6;
        ok(good, "%s: embedding from a table in %s", isa, a.panel ? "panels" : "rows");
    }
    free(rows);
    sample_free(&s);
}

int main(void)
{
    for (int i = 0; i < ISA_COUNT; i++) {
        if (!matrix_kernels[i][0] || !isa_available(isa_names[i])) {
            skip("%s: not on this machine", isa_names[i]);
            continue;
        }
        for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++)
            test_case(matrix_kernels[i], isa_names[i], c);
        test_embed(matrix_kernels[i][3], isa_names[i]);
    }
    return done();
}
