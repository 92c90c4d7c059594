// SPDX-License-Identifier: Apache-2.0
//
// What linear.c and experts.c share: dot products of rows with the panels of a weight.
//
// Arithmetic of the fp32 classes. k is cut into chunks of CHUNK_BLOCKS * 32. In a chunk, PHASES partial sums take every
// PHASES-th k; they are added as a tree; the chunk's sum is added to the row's running sum; chunks go in ascending order.
// Invariant: nothing of that depends on the number of rows, their places, or who runs them.

#ifndef LINEAR_H
#define LINEAR_H

#include "kernels/cpu/decode.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel.h"

enum {
    CHUNK_BLOCKS = 8,
    CHUNK_ROWS = 512, // rows that run together, so that running sums fit the scratch
};

// Rows of activations and where their results go: row i is x[i], its 16 results go to y[i] (`outputs` of them).
struct row_list {
    int32_t count;
    const float *const *x;
    float *const *y;
};

// sums[row][16] = products of `rows` rows (at most CHUNK_ROWS, each padded with zeros to 32) with one panel.
// decoded: room for CHUNK_BLOCKS * 512 floats.
void ISA_SYM(panel_dot)(const struct panel *p, const float *const *x, int rows, float *decoded, float *sums);

// act(alpha * sum) of `outputs` of 16 lanes to y.
static inline void finish_row(const float *sum, float alpha, int activation, int outputs, float *y)
{
    vf v = vf_mul(vf_load(sum), vf_set1(alpha));
    switch (activation) {
    case ACT_SILU:
        v = vf_silu(v);
        break;
    case ACT_SIGMOID:
        v = vf_sigmoid(v);
        break;
    case ACT_RELU2:
        v = vf_relu2(v);
        break;
    default:
        break;
    }
    if (outputs >= PANEL)
        vf_store(y, v);
    else
        vf_store_n(y, v, outputs);
}

static inline int panel_outputs(int n, int64_t p)
{
    int64_t left = n - p * PANEL;
    return left < PANEL ? (int)left : PANEL;
}

#endif
