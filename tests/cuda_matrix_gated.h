// SPDX-License-Identifier: Apache-2.0
//
// The gated norm of prompt rows and the product of what it leaves as one step (kernels/cuda/gated_rows.cu), with the bits of its ops
// one by one, for any rows of a launch, whether rows lie one after the other or by stages.

#ifndef CUDA_MATRIX_GATED_H
#define CUDA_MATRIX_GATED_H

#include "tests/cuda_matrix_steps.h"

extern "C" {
cudaError_t cuda_gated_norm(cudaStream_t stream, const struct gated_norm_args *args, int rows);
cudaError_t cuda_gated_norm_linear(cudaStream_t stream, const void *const *args, int rows);
}

enum { GATED_CAPACITY = 136, GATED_LD = 12 };

struct gated {
    struct matrix m, second; // of the product: both its parts
    struct gated_norm_args norm;
    struct linear_args linear;
};

static struct gated gated_make(int encoding, int bits, int group, int n, int heads, int dim, bool after)
{
    const int k = heads * dim;
    struct gated g = {};
    g.m = matrix_make(encoding, bits, group, n, k, 21);
    g.second = matrix_make(ENC_BF16, 0, 0, 40, k, 22);
    float *x = step_random((int64_t)GATED_CAPACITY * (k + GATED_LD), 2), *w = step_random(k, 1);
    for (int i = 0; i < 2; i++) {
        const struct matrix *m = i ? &g.second : &g.m;
        g.linear.part[i].w = put_weight(m);
        g.linear.part[i].y = (float *)put(NULL, (int64_t)GATED_CAPACITY * m->w.n * 4);
        g.linear.part[i].ldy = m->w.n;
        g.linear.part[i].alpha = 1;
    }
    g.norm = {NULL,  heads, dim,  k + GATED_LD, k,    k,   after ? ACT_SILU : ACT_SIGMOID,
              after, 1e-6f, NULL, NULL,         NULL, NULL};
    g.norm.x = (const float *)put(x, (int64_t)GATED_CAPACITY * (k + GATED_LD) * 4);
    g.norm.z = (const float *)put(x + 4, (int64_t)GATED_CAPACITY * k * 4);
    g.norm.w = (const float *)put(w, (int64_t)k * 4);
    g.norm.y = (float *)put(NULL, (int64_t)GATED_CAPACITY * k * 4);
    g.linear.row_class = CLASS_PROMPT;
    g.linear.k = g.linear.ldx = k;
    g.linear.x = g.norm.y;
    g.linear.scratch = put(NULL, linear_scratch_bytes(GATED_CAPACITY, k));
    free(x);
    free(w);
    return g;
}

// The rows of both parts, [rows][n] each, by the step or by its ops, in a launch for `capacity` rows. False when the step declines.
static bool gated_run(struct gated *g, bool step, int rows, int capacity, float *y)
{
    const int memory = rig_memory_count;
    const void *args[] = {&g->norm, &g->linear};
    cudaError_t error = cudaSuccess;
    g->norm.pass = g->linear.pass = put_pass(rows, NULL);
    for (int i = 0; i < g->linear.parts; i++)
        rig_fill(g->linear.part[i].y, 0xff, (size_t)GATED_CAPACITY * (size_t)g->linear.part[i].ldy * 4);
    rig_fill(g->norm.y, 0xff, (size_t)GATED_CAPACITY * (size_t)g->norm.ldy * 4);
    if (step) {
        error = cuda_gated_norm_linear(0, args, capacity);
    } else {
        must(cuda_gated_norm(0, &g->norm, capacity), "cuda_gated_norm");
        must(cuda_linear(0, &g->linear, capacity), "cuda_linear");
    }
    rig_finish("gated norm and product");
    for (int i = 0; i < g->linear.parts; i++) {
        const size_t bytes = (size_t)rows * (size_t)g->linear.part[i].ldy * 4;
        rig_copy(y, g->linear.part[i].y, bytes);
        y += bytes / 4;
    }
    put_back(memory);
    return error == cudaSuccess;
}

static void test_gated_shape(int encoding, int bits, int group, int n, int heads, int dim, bool after, int parts)
{
    struct gated g = gated_make(encoding, bits, group, n, heads, dim, after);
    static const int launches[][2] = {{9, GATED_CAPACITY}, {9, 9}, {1, 1}, {GATED_CAPACITY, GATED_CAPACITY}};
    const size_t floats = (size_t)GATED_CAPACITY * (size_t)(n + 40);
    float *one = (float *)malloc(floats * 4), *other = (float *)malloc(floats * 4);
    const bool takes = encoding != ENC_AFFINE && wide_available(&g.m.w);
    bool same = true;
    g.linear.parts = parts;
    for (const int *launch : launches) {
#ifdef CUDA_EMULATION
        if (launch[0] > 9)
            continue;
#endif
        gated_run(&g, false, launch[0], launch[1], one);
        same = gated_run(&g, true, launch[0], launch[1], other) == takes && same;
        const size_t bytes = (size_t)launch[0] * (size_t)(n + (parts > 1 ? 40 : 0)) * 4;
        same = same && (!takes || memcmp(one, other, bytes) == 0);
    }
    ok(same, "gated norm and %s [%d, %d], %d part%s: %s", encoding_name(encoding), n, heads * dim, parts,
       parts > 1 ? "s" : "", takes ? "the bits of the ops" : "left to the ops");
    if (takes) {
        gated_run(&g, false, 9, 9, one);
        g.norm.eps = 1;
        gated_run(&g, true, 9, 9, other);
        ok(memcmp(one, other, (size_t)9 * (size_t)n * 4) != 0, "gated norm and %s [%d, %d]: another epsilon is found",
           encoding_name(encoding), n, heads * dim);
    }
    free(one);
    free(other);
    put_back(0);
    matrix_free(&g.m);
    matrix_free(&g.second);
}

static void test_gated(void)
{
    test_gated_shape(ENC_BF16, 0, 0, 1152, 3, 128, false, 1); // by stages
    test_gated_shape(ENC_BF16, 0, 0, 1280, 1, 256, true, 2);  // the same, in two parts
    test_gated_shape(ENC_BF16, 0, 0, 1056, 3, 128, true, 1);
    test_gated_shape(ENC_NVFP4, 0, 0, 70, 2, 128, false, 1);
    test_gated_shape(ENC_AFFINE, 4, 32, 70, 2, 128, false, 1);
}

#endif
