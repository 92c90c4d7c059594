// SPDX-License-Identifier: Apache-2.0
//
// Linear kernels against double precision, in every encoding, on every instruction set of this machine; and the bits of a row
// whatever the number of rows, the row's place and the cut of the items.

#include <stdio.h>

#include "kernels/cpu/isa.h"
#include "tests/kernel_run.h"
#include "tests/matrix_sample.h"

enum { ROWS = 64, GUARD = 3 };

static const struct {
    int encoding, bits, group, n, k;
} shapes[] = {
    {ENC_F32, 0, 0, 1, 1},          {ENC_F32, 0, 0, 37, 100},        {ENC_BF16, 0, 0, 3, 24},
    {ENC_BF16, 0, 0, 16, 64},       {ENC_BF16, 0, 0, 53, 333},       {ENC_BF16, 0, 0, 80, 1056},
    {ENC_F16, 0, 0, 21, 97},        {ENC_AFFINE, 2, 64, 20, 192},    {ENC_AFFINE, 3, 32, 20, 96},
    {ENC_AFFINE, 4, 32, 33, 160},   {ENC_AFFINE, 4, 64, 48, 576},    {ENC_AFFINE, 4, 128, 7, 1152},
    {ENC_AFFINE, 5, 32, 16, 320},   {ENC_AFFINE, 6, 64, 19, 320},    {ENC_AFFINE, 8, 32, 19, 352},
    {ENC_AFFINE, 8, 128, 19, 256},  {ENC_NVFP4, 0, 0, 35, 16},       {ENC_NVFP4, 0, 0, 35, 304},
    {ENC_NVFP4, 0, 0, 64, 1024},    {ENC_MXFP8, 0, 0, 35, 32},       {ENC_MXFP8, 0, 0, 50, 608},
    {ENC_FP8_BLOCK, 0, 0, 150, 65}, {ENC_FP8_BLOCK, 0, 0, 160, 640}, {ENC_FP8, 0, 0, 17, 200},
    {ENC_INT4, 4, 128, 24, 384},    {ENC_INT4, 4, 32, 9, 96},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const char *const encoding_names[] = {"f32",   "bf16",      "f16", "affine", "nvfp4",
                                             "mxfp8", "fp8 block", "fp8", "int4"};

// One linear call on rows first .. first + count - 1 of x, items cut in `cut` pieces; y: [count][n + GUARD].
static void linear_call(const struct kernel *kernel, const struct sample *s, int class, const float *x, int first,
                        int count, int cut, float *y)
{
    struct pass pass = {.rows = count};
    int k = s->w.k, ldx = k + 5;
    struct linear_args a = {.pass = &pass, .row_class = class, .k = k, .ldx = ldx, .x = x + first * ldx, .parts = 2};
    a.scratch = sample_bytes(linear_scratch_bytes(count, k));
    memset(a.scratch, 0xff, (size_t)linear_scratch_bytes(count, k));
    float *twice = sample_bytes((int64_t)count * s->w.n * 4);
    a.part[0] = (struct linear_part){s->w, twice, s->w.n, ACT_RELU2, -2.0f};
    a.part[1] = (struct linear_part){s->w, y, s->w.n + GUARD, ACT_NONE, 1.0f};
    a.part[0].w.global = a.part[1].w.global = s->global == 1 ? NULL : &s->global;
    kernel_run(kernel, &a, cut);
    for (int r = 0; r < count; r++)
        for (int o = 0; o < s->w.n; o++) {
            float v = -2.0f * y[r * (s->w.n + GUARD) + o], t = v > 0 ? v * v : 0;
            if (fabsf(twice[r * s->w.n + o] - t) > 1e-5f * fabsf(t) + 1e-30f)
                y[r * (s->w.n + GUARD) + o] = NAN; // the other part disagrees: shows as a wrong result
        }
    free(a.scratch);
    free(twice);
}

// Largest error over its bound. The bound: fp32 sums (2^-19 of the sum of magnitudes), activations held to 2^-21 of the
// largest of their 128; 2^-15 in the prompt class where an encoding's numbers may be held as two bf16.
static double linear_error(const struct sample *s, int class, const float *x, const float *y, int rows)
{
    int enc = s->w.encoding;
    bool rounded = enc == ENC_AFFINE || enc == ENC_INT4 || enc == ENC_F16 || enc == ENC_FP8_BLOCK;
    double worst = 0;
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < s->w.n; o++) {
            double sum = 0, bound = 1e-30, top = 0;
            for (int i = 0; i < s->w.k; i++) {
                double v = (double)x[r * (s->w.k + 5) + i], m = s->magnitude[(int64_t)o * s->w.k + i];
                if (i % 128 == 0)
                    for (int j = i, n = i + 128; (top = j == i ? 0 : top, j < n && j < s->w.k); j++)
                        top = fmax(top, fabs((double)x[r * (s->w.k + 5) + j]));
                sum += v * s->value[(int64_t)o * s->w.k + i];
                bound += fabs(v) * m * (class == CLASS_PROMPT && rounded ? 0x1p-15 : 0x1p-19) + 0x1p-21 * top * m;
            }
            double error = fabs(sum - (double)y[r * (s->w.n + GUARD) + o]) / bound;
            worst = !(error <= worst) ? error : worst;
        }
    return worst;
}

// Whether every row has the bits of the run with all rows, for several counts, places and cuts; guards must stay.
static bool same_bits(const struct kernel *kernel, const struct sample *s, int class, const float *x, const float *all)
{
    static const int counts[] = {1, 2, 3, 5, 8, 16, 17, 64};
    int ld = s->w.n + GUARD;
    float *y = sample_bytes((int64_t)ROWS * ld * 4);
    bool same = true;
    for (int c = 0; c < 8; c++) {
        int count = counts[c], first = (int)(sample_random() % (unsigned)(ROWS - count + 1));
        for (int i = 0; i < ROWS * ld; i++)
            y[i] = 77.0f;
        linear_call(kernel, s, class, x, first, count, c + 1, y);
        for (int r = 0; r < count; r++) {
            same = same && memcmp(y + r * ld, all + (first + r) * ld, (size_t)s->w.n * 4) == 0;
            for (int i = s->w.n; i < ld; i++)
                same = same && y[r * ld + i] == 77.0f;
        }
    }
    free(y);
    return same;
}

static void test_shape(const struct kernel *kernel, const char *isa, int i)
{
    sample_state = (uint64_t)i + 1;
    struct sample s = sample_make(shapes[i].encoding, shapes[i].bits, shapes[i].group, shapes[i].n, shapes[i].k);
    int k = s.w.k, ld = s.w.n + GUARD;
    float *x = sample_bytes((int64_t)ROWS * (k + 5) * 4), *all = sample_bytes((int64_t)ROWS * ld * 4);
    for (int j = 0; j < ROWS * (k + 5); j++)
        x[j] = j % (k + 5) < k ? sample_uniform() * (j % 61 == 0 ? 30.0f : 1.0f) : NAN;
    for (int class = CLASS_DECODE; class <= CLASS_PROMPT; class ++) {
        char name[128];
        snprintf(name, sizeof name, "%s %s %d bits, group %d, [%d, %d], %s", isa, encoding_names[s.w.encoding],
                 s.w.bits, s.w.group, s.w.n, k, class == CLASS_PROMPT ? "prompt" : "decode");
        linear_call(kernel, &s, class, x, 0, ROWS, 1, all);
        double error = linear_error(&s, class, x, all, ROWS);
        ok(error <= 1, "%s: agrees with double precision (%.3g of the bound)", name, error);
        ok(same_bits(kernel, &s, class, x, all), "%s: a row's bits are its own", name);
    }
    free(x);
    free(all);
    sample_free(&s);
}

// Red control: the same kernel, but k is cut in two when there are more than four rows.
static const struct kernel *split_kernel;

static int64_t split_items(const void *args)
{
    (void)args;
    return 1;
}

static void split_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    struct linear_args a = *(const struct linear_args *)args;
    (void)scratch;
    if (begin >= end)
        return;
    kernel_run(split_kernel, &a, 1);
    if (a.pass->rows <= 4)
        return;
    const struct linear_part *p = &a.part[1];
    int64_t size = (int64_t)a.pass->rows * a.k;
    float *x = sample_bytes(size * 4), *low = sample_bytes((int64_t)a.pass->rows * p->ldy * 4), *to = p->y;
    for (int half = 0; half < 2; half++) {
        for (int64_t i = 0; i < size; i++)
            x[i] = (i % a.k < a.k / 2) == (half == 0) ? a.x[i / a.k * a.ldx + i % a.k] : 0.0f;
        struct linear_args b = a;
        b.x = x;
        b.ldx = a.k;
        b.part[1].y = half ? to : low;
        kernel_run(split_kernel, &b, 1);
    }
    for (int r = 0; r < a.pass->rows; r++)
        for (int o = 0; o < p->w.n; o++)
            to[r * p->ldy + o] += low[r * p->ldy + o];
    free(x);
    free(low);
}

static void test_red_control(const struct kernel *kernel, const char *isa)
{
    struct kernel wrong = {"wrong", {{split_items, split_run}}};
    split_kernel = kernel;
    struct sample s = sample_make(ENC_BF16, 0, 0, 40, 600);
    int ld = s.w.n + GUARD;
    float *x = sample_bytes((int64_t)ROWS * 605 * 4), *all = sample_bytes((int64_t)ROWS * ld * 4);
    for (int j = 0; j < ROWS * 605; j++)
        x[j] = sample_uniform();
    linear_call(&wrong, &s, CLASS_DECODE, x, 0, ROWS, 1, all);
    ok(!same_bits(&wrong, &s, CLASS_DECODE, x, all), "%s: a kernel that cuts k by the number of rows is caught", isa);
    free(x);
    free(all);
    sample_free(&s);
}

int main(void)
{
    for (int i = 0; i < ISA_COUNT; i++) {
        const struct kernel *kernel = matrix_kernels[i][0];
        if (!kernel || !isa_available(isa_names[i])) {
            skip("%s: not on this machine", isa_names[i]);
            continue;
        }
        for (int j = 0; j < SHAPES; j++)
            test_shape(kernel, isa_names[i], j);
        test_red_control(kernel, isa_names[i]);
    }
    return done();
}
