// SPDX-License-Identifier: Apache-2.0
//
// An addition to a residual, its norm and a product as one step (cuda_add_norm_linear(); of one row in one launch, of five and more in the
// launch that takes rows apart and the product's): the bits of the launches that it stands for, in the outputs, the normed rows and the
// residual, launch after launch; rows that the pass lacks are left alone.
//
// Red control: another addend is found.

#ifndef CUDA_MATRIX_BEFORE_H
#define CUDA_MATRIX_BEFORE_H

#include "tests/cuda_matrix_fixed.h"

extern "C" {
cudaError_t cuda_add_norm(cudaStream_t stream, const void *const *args, int rows);
cudaError_t cuda_add_norm_linear(cudaStream_t stream, const void *const *args, int rows);
}

enum { BEFORE_TIMES = 2, BEFORE_K_MOST = 5120 };

// What BEFORE_TIMES launches for `capacity` rows one after the other leave: outputs, the normed rows, the residual. declined: the step has
// no kernel.
static void before_call(const linear_shape &shape, const struct weight *w, const float *residual, const float *added,
                        const float *weight, int capacity, int rows, bool step, float *all, bool *declined)
{
    const int memory = rig_memory_count, k = shape.k;
    struct linear_args linear = linear_args_of(shape);
    const struct pass *pass = put_pass(rows, NULL);
    const int64_t bytes = (int64_t)capacity * k * 4;
    float *x = (float *)put(residual, bytes), *y = (float *)put(NULL, bytes);
    struct add_args add = {pass, k, k, k, x, (const float *)put(added, bytes)};
    struct norm_args norm = {pass, 1, k, k, k, 1e-6f, x, (const float *)put(weight, (int64_t)k * 4), y};
    linear.pass = pass;
    linear.row_class = CLASS_DECODE;
    linear.ldx = k;
    linear.x = y;
    linear.scratch = put(NULL, linear_scratch_bytes(capacity, k));
    for (int i = 0; i < linear.parts; i++) {
        linear.part[i].w = w[i];
        linear.part[i].ldy = w[i].n;
        linear.part[i].y = (float *)put(NULL, (int64_t)capacity * w[i].n * 4);
        linear.part[i].alpha = 1;
    }
    const void *args[] = {&add, &norm, &linear};
    for (int i = 0; i < BEFORE_TIMES; i++) {
        const cudaError_t error = step ? cuda_add_norm_linear(0, args, capacity) : cudaErrorNotSupported;
        *declined = error == cudaErrorNotSupported;
        if (!*declined) {
            must(error, "cuda_add_norm_linear");
            continue;
        }
        must(cuda_add_norm(0, args, capacity), "cuda_add_norm");
        must(cuda_linear(0, &linear, capacity), "cuda_linear");
    }
    rig_finish("a residual before a product");
    for (int i = 0; i < linear.parts; all += capacity * w[i++].n)
        rig_copy(all, linear.part[i].y, (size_t)capacity * w[i].n * 4);
    rig_copy(all, y, (size_t)bytes);
    rig_copy(all + (int64_t)capacity * k, x, (size_t)bytes);
    put_back(memory);
}

static void test_before_of(const linear_shape &shape, const char *name)
{
    size_t shared = 0;
    const struct linear_args a = linear_args_of(shape);
    const bool taken = fixed_here() && shape.k % 32 == 0 && shape.k <= RESIDUAL_MOST &&
                       linear_fills_once(linear_plan_make(card_here(), &a, NULL, 1, &shared));
    struct matrix m[LINEAR_PARTS];
    struct weight w[LINEAR_PARTS];
    const int k = shape.k, outputs = fixed_weights(shape, 50, m, w), all = outputs + 2 * k;
    float *residual = step_random(k, 3), *added = step_random(k, 2), *weight = step_random(k, 1),
          *want = (float *)malloc((size_t)all * 4), *got = (float *)malloc((size_t)all * 4);
    bool declined, without;
    before_call(shape, w, residual, added, weight, 1, 1, false, want, &without);
    before_call(shape, w, residual, added, weight, 1, 1, true, got, &declined);
    ok(declined != taken && memcmp(want, got, (size_t)all * 4) == 0, "a residual before %s: the bits of its ops%s",
       name, declined ? ", which it left to them" : "");
    before_call(shape, w, residual, added, weight, 1, 0, true, got, &declined);
    ok(memcmp(got + outputs + k, residual, (size_t)k * 4) == 0 && got[outputs] != want[outputs],
       "a residual before %s: no rows, no addition", name);
    added[k - 1] += 1;
    before_call(shape, w, residual, added, weight, 1, 1, true, got, &declined);
    ok(memcmp(want, got, (size_t)outputs * 4) != 0 && want[all - 1] != got[all - 1],
       "a residual before %s: another addend is found", name);
    free(residual), free(added), free(weight), free(want), free(got);
    put_back(0);
    for (int i = 0; i < shape.parts; i++)
        matrix_free(&m[i]);
}

// The same of a capacity with more than one row, of which the pass has `rows`.
static void test_before_rows(const linear_shape &shape, const char *name, int capacity, int rows, bool taken)
{
    struct matrix m[LINEAR_PARTS];
    struct weight w[LINEAR_PARTS];
    const int k = shape.k, outputs = fixed_weights(shape, 50, m, w), all = capacity * (outputs + 2 * k),
              x = all - capacity * k;
    float *residual = step_random((int64_t)capacity * k, 3), *added = step_random((int64_t)capacity * k, 2),
          *weight = step_random(k, 1), *want = (float *)calloc((size_t)all, 4), *got = (float *)calloc((size_t)all, 4);
    bool declined, without;
    before_call(shape, w, residual, added, weight, capacity, rows, false, want, &without);
    before_call(shape, w, residual, added, weight, capacity, rows, true, got, &declined);
    ok(declined != taken && memcmp(want, got, (size_t)all * 4) == 0,
       "a residual before %s, %d of %d rows: the bits of its ops%s", name, rows, capacity,
       declined ? ", which it left to them" : "");
    ok(memcmp(got + x + rows * k, residual + rows * k, (size_t)((capacity - rows) * k) * 4) == 0 &&
           memcmp(got + x, residual, (size_t)(rows * k) * 4) != 0,
       "a residual before %s, %d of %d rows: no more are changed", name, rows, capacity);
    added[(rows - 1) * k + 5] += 1;
    before_call(shape, w, residual, added, weight, capacity, rows, true, got, &declined);
    ok(memcmp(want, got, (size_t)all * 4) != 0, "a residual before %s, %d of %d rows: another addend is found", name,
       rows, capacity);
    free(residual), free(added), free(weight), free(want), free(got);
    put_back(0);
    for (int i = 0; i < shape.parts; i++)
        matrix_free(&m[i]);
}

static void test_before(void)
{
    const linear_shape halves = {1024, 0, 0, 0, 1, {{ENC_FP8_BLOCK, 8, 0, 70, ACT_NONE}}},
                       stages = {BEFORE_K_MOST, 0, 0, 0, 1, {{ENC_AFFINE, 4, 64, 1440, ACT_NONE}}},
                       other = {1312, 0, 0, 0, 1, {{ENC_AFFINE, 4, 32, 70, ACT_NONE}}};
    test_before_of(before_plain::value, "bf16");
    test_before_of(before_two::value, "two encodings");
    test_before_of(before_long::value, "affine");
    test_before_of(before_many::value, "nvfp4, many units");
    test_before_of(before_part::value, "a row of a block in part");
    test_before_rows(before_plain::value, "bf16", 8, 8, roomy());
    test_before_rows(before_two::value, "two encodings", 8, 5, roomy());
    test_before_rows(halves, "fp8 block", 17, 11, roomy());
    test_before_rows(stages, "stages", 6, 6, roomy());
    test_before_rows(before_long::value, "affine", 4, 4, false);
    test_before_rows(other, "parts of a warp", 8, 8, false);
}

#endif
