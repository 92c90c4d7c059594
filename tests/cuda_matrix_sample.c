// SPDX-License-Identifier: Apache-2.0
//
// The C half of the CUDA matrix tests: samples as the CPU tests make them.

#include "tests/cuda_matrix_sample.h"

#include <stdio.h>

#include "tests/matrix_sample.h"

struct matrix matrix_make(int encoding, int bits, int group, int n, int k, uint64_t seed)
{
    uint64_t state = sample_state;
    sample_state = seed;
    struct sample *s = malloc(sizeof *s);
    *s = sample_make(encoding, bits, group, n, k);
    sample_state = state;
    struct matrix m = {.w = s->w, .global = s->global, .value = s->value, .magnitude = s->magnitude, .owner = s};
    m.data_bytes = panel_data_bytes(&s->w);
    m.scale_bytes = panel_scale_bytes(&s->w);
    m.row_bytes = row_bytes(encoding, bits, group, k);
    if (m.row_bytes) {
        uint8_t *rows = sample_bytes(m.row_bytes * n);
        struct error error = {.code = 0};
        if (!row_pack(&s->w, &s->source, rows, &error)) {
            fprintf(stderr, "cannot pack rows: %s\n", error.text);
            exit(1);
        }
        m.rows = rows;
    }
    return m;
}

void matrix_free(struct matrix *m)
{
    struct sample *s = m->owner;
    sample_free(s);
    free(s);
    free((void *)(uintptr_t)m->rows);
}

float matrix_uniform(void)
{
    return sample_uniform();
}

uint32_t matrix_random(void)
{
    return sample_random();
}
