// SPDX-License-Identifier: Apache-2.0
//
// Random matrices in every encoding for the tests of the CUDA matrix kernels, packed on the host, with their meaning in double.

#ifndef CUDA_MATRIX_SAMPLE_H
#define CUDA_MATRIX_SAMPLE_H

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/cpu/ops.h"

struct matrix {
    struct weight w; // data and scale in host memory
    int64_t data_bytes, scale_bytes;
    float global;                    // 1: none
    const double *value, *magnitude; // [n][k] with the global factor; |scale * q| + |bias|
    const uint8_t *rows;             // in the row layout, or NULL
    int64_t row_bytes;               // of one row
    void *owner;
};

struct matrix matrix_make(int encoding, int bits, int group, int n, int k, uint64_t seed);
void matrix_free(struct matrix *m);

// Uniform in (-1, 1), of a generator of its own.
float matrix_uniform(void);
uint32_t matrix_random(void);

#ifdef __cplusplus
}
#endif
#endif
