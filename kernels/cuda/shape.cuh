// SPDX-License-Identifier: Apache-2.0
//
// Shapes of decode-class launches: what a kernel that is made for one shape has as constants. The generator lists a model's
// (shapes.cuh in its folder), fixed.cu makes their kernels, and the launchers look for theirs in fixed.cuh's tables.
//
// Invariant: a shape and a card give the same plan when the kernel is made and when it is launched, since one function makes both.

#ifndef CUDA_SHAPE_CUH
#define CUDA_SHAPE_CUH

extern "C" {
#include "kernels/cpu/ops.h"
}

// linear_args, and the step that it is launched with.
struct linear_shape {
    int32_t k;
    int32_t glu;   // 1: a glu before it
    int32_t mix;   // numbers a stream of the hc_mix behind it, or 0
    int32_t route; // 1: choices of experts beside it
    int32_t parts;
    struct {
        int32_t encoding, bits, group, n, activation;
    } part[LINEAR_PARTS];
    int32_t norm; // before_kind (window_norm.cuh): what its one row is made of, or 0
};

struct code_shape {
    int32_t encoding, bits, group;
};

// experts_up_args (n: inner), or experts_down_args (gated, activation and early 0).
struct experts_shape {
    int32_t gated, experts, slots, n, k, activation, early;
    struct code_shape code, gate; // of up or down; zeros without a gate
};

// experts_up_args whose launch makes the choices too, and the product of a shared expert: rows of k numbers, silu(g) * u, by [n, k].
struct beside_shape {
    struct experts_shape up;
    int32_t n, k;
    struct code_shape code;
};

#endif
