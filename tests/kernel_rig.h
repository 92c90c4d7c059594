// SPDX-License-Identifier: Apache-2.0
//
// What the tests of CPU kernels share: the kernels of every instruction set that this machine runs, launches that cut items in
// unfriendly ways, random numbers, comparisons, TAP.
//
// Invariant: a launch hands every run call a scratch full of NaN bits and cuts items as told, so that a kernel which leans on
// what an earlier item left there, or on the cut, changes its bits.

#ifndef KERNEL_RIG_H
#define KERNEL_RIG_H

#include "kernels/cpu/isa.h"
#include "kernels/cpu/ops.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
#define RIG_OPS(X) \
    X(norm) X(gated_norm) X(head_norm) X(add) X(glu) X(hc_mix) X(hc_inject) X(streams_add) X(ngram) \
    X(ple_gate) X(ple_add) X(conv) X(gdn) X(mamba) X(kv_append) X(index_pool) X(index_select) X(attention) \
    X(route) X(moe_sum) X(rows) X(gather) X(save_streams) X(draw) X(accept) X(commit)
// clang-format on

struct rig_ops {
    const char *isa;
#define X(op) const struct kernel *op;
    RIG_OPS(X)
#undef X
};

#define X_PORTABLE(op) extern const struct kernel kernel_##op##_portable;
RIG_OPS(X_PORTABLE)
#if defined(__x86_64__)
#define X_AVX2(op)   extern const struct kernel kernel_##op##_avx2;
#define X_AVX512(op) extern const struct kernel kernel_##op##_avx512;
RIG_OPS(X_AVX2)
RIG_OPS(X_AVX512)
#endif

static const struct rig_ops rig_all[] = {
#define X(op) .op = &kernel_##op##_portable,
    {.isa = "portable", RIG_OPS(X)},
#undef X
#if defined(__x86_64__)
#define X(op) .op = &kernel_##op##_avx2,
    {.isa = "avx2", RIG_OPS(X)},
#undef X
#define X(op) .op = &kernel_##op##_avx512,
    {.isa = "avx512", RIG_OPS(X)},
#undef X
#endif
};

// ---- TAP -------------------------------------------------------------------------------------------------------------------

static int rig_tests, rig_failures;

__attribute__((format(printf, 2, 3), unused)) static void ok(bool good, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    rig_tests++;
    rig_failures += !good;
    printf("%sok %d - ", good ? "" : "not ", rig_tests);
    vprintf(format, list);
    printf("\n");
    va_end(list);
}

__attribute__((unused)) static int rig_done(void)
{
    printf("1..%d\n", rig_tests);
    return rig_failures > 0;
}

// Runs a test function for every instruction set of this machine.
__attribute__((unused)) static void rig_each(void (*test)(const struct rig_ops *))
{
    for (size_t i = 0; i < sizeof rig_all / sizeof *rig_all; i++)
        if (isa_available(rig_all[i].isa))
            test(&rig_all[i]);
}

// ---- numbers ----------------------------------------------------------------------------------------------------------------

static uint64_t rig_state = 1;

static uint64_t rig_next(void)
{
    rig_state ^= rig_state << 13;
    rig_state ^= rig_state >> 7;
    rig_state ^= rig_state << 17;
    return rig_state;
}

__attribute__((unused)) static int rig_below(int n)
{
    return (int)((rig_next() >> 33) % (uint64_t)n);
}

// Uniform in (-scale, scale).
__attribute__((unused)) static float rig_float(float scale)
{
    return ((float)(rig_next() >> 40) / 8388608.0f - 1.0f) * scale;
}

// n random numbers. The caller frees.
__attribute__((unused)) static float *rig_floats(int64_t n, float scale)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = rig_float(scale);
    return x;
}

__attribute__((unused)) static float *rig_copy(const float *x, int64_t n)
{
    float *y = malloc((size_t)n * sizeof *y);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

__attribute__((unused)) static bool rig_same(const void *a, const void *b, int64_t bytes)
{
    return memcmp(a, b, (size_t)bytes) == 0;
}

// Whether |x - y| <= bound (1 + |y|) everywhere.
__attribute__((unused)) static bool rig_close(const float *x, const double *y, int64_t n, double bound)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)x[i] - y[i]) <= bound * (1 + fabs(y[i])))) {
            printf("# element %ld: %.9g, expected %.9g\n", (long)i, (double)x[i], y[i]);
            return false;
        }
    return true;
}

__attribute__((unused)) static double sigmoid_of(double x)
{
    return 1 / (1 + exp(-x));
}

// ---- launches ---------------------------------------------------------------------------------------------------------------

enum {
    RIG_ROWS = 512,
    RIG_POISON = 1 << 16, // bytes of scratch that are poisoned before each call
};

// cut > 0: that many items a call, ascending; cut < 0: -cut items a call, from the last to the first; 0: one call.
__attribute__((unused)) static void launch(const struct kernel *kernel, const void *args, int64_t cut)
{
    static uint8_t *scratch;
    if (!scratch)
        scratch = aligned_alloc(64, KERNEL_SCRATCH);
    for (int p = 0; p < KERNEL_PHASES && kernel->phase[p].run; p++) {
        const int64_t items = kernel->phase[p].items(args), size = cut == 0 ? items : cut < 0 ? -cut : cut;
        const int64_t calls = size ? (items + size - 1) / size : 0;
        for (int64_t c = 0; c < calls; c++) {
            int64_t begin = (cut < 0 ? calls - 1 - c : c) * size, end = begin + size < items ? begin + size : items;
            memset(scratch, 0xff, RIG_POISON);
            kernel->phase[p].run(args, begin, end, scratch);
        }
    }
}

// A pass with room for RIG_ROWS rows.
struct rig_pass {
    struct pass pass;
    int32_t lane[RIG_ROWS], position[RIG_ROWS], token[RIG_ROWS];
};

__attribute__((unused)) static void rig_pass_begin(struct rig_pass *p)
{
    p->pass = (struct pass){.lane = p->lane, .position = p->position, .token = p->token};
}

// Gives lane l `rows` rows from `position` on; lanes in ascending order.
__attribute__((unused)) static void rig_pass_add(struct rig_pass *p, int32_t l, int32_t position, int32_t rows)
{
    p->pass.lane_first[l] = p->pass.rows;
    p->pass.lane_rows[l] = rows;
    for (int32_t i = 0; i < rows; i++) {
        p->lane[p->pass.rows] = l;
        p->position[p->pass.rows++] = position + i;
    }
}

#endif
