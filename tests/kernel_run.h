// SPDX-License-Identifier: Apache-2.0
//
// TAP output, the matrix kernels of every instruction set, and a kernel's phases run one after the other with items cut up.

#ifndef KERNEL_RUN_H
#define KERNEL_RUN_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel.h"

#define MATRIX_KERNELS(isa)                                                                                            \
    extern const struct kernel kernel_linear_##isa, kernel_experts_up_##isa, kernel_experts_down_##isa,                \
        kernel_embed_##isa
#define MATRIX_ROW(isa)                                                                                                \
    {                                                                                                                  \
        &kernel_linear_##isa, &kernel_experts_up_##isa, &kernel_experts_down_##isa, &kernel_embed_##isa                \
    }

MATRIX_KERNELS(portable);
#if defined(__x86_64__)
MATRIX_KERNELS(avx2);
MATRIX_KERNELS(avx512);
MATRIX_KERNELS(amx);
#endif

// By instruction set, in the order of isa_names: linear, experts_up, experts_down, embed.
__attribute__((unused)) static const struct kernel *const matrix_kernels[ISA_COUNT][4] = {
#if defined(__x86_64__)
    MATRIX_ROW(amx),
    MATRIX_ROW(avx512),
    MATRIX_ROW(avx2),
    MATRIX_ROW(portable),
#else
    [3] = MATRIX_ROW(portable),
#endif
};

static int test_count, test_failures;

__attribute__((format(printf, 2, 3), unused)) static void ok(bool good, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("%s %d - ", good ? "ok" : "not ok", ++test_count);
    vprintf(format, list);
    printf("\n");
    va_end(list);
    test_failures += !good;
}

__attribute__((format(printf, 1, 2), unused)) static void skip(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("ok %d # SKIP ", ++test_count);
    vprintf(format, list);
    printf("\n");
    va_end(list);
}

__attribute__((unused)) static int done(void)
{
    printf("1..%d\n", test_count);
    return test_failures != 0;
}

// Runs every phase with its items in `cut` pieces, the last piece first.
__attribute__((unused)) static void kernel_run(const struct kernel *kernel, const void *args, int cut)
{
    void *scratch = aligned_alloc(64, KERNEL_SCRATCH);
    for (int i = 0; i < KERNEL_PHASES && kernel->phase[i].run; i++) {
        int64_t items = kernel->phase[i].items(args);
        for (int64_t c = cut - 1; c >= 0; c--) {
            memset(scratch, 0xff, KERNEL_SCRATCH);
            if (items * c / cut < items * (c + 1) / cut)
                kernel->phase[i].run(args, items * c / cut, items * (c + 1) / cut, scratch);
        }
    }
    free(scratch);
}

#endif
