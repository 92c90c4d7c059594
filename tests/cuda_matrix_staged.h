// SPDX-License-Identifier: Apache-2.0
//
// Products whose x comes with the stages of weights (kernels/cuda/eight.cuh): a row has the bits that it has with a window, which is filled
// from the rows (few blocks of k) or copied, for every encoding, with several units a block, with slices, for several tiles, behind a glu, and in a kernel for one shape.
//
// Red control: rows that were taken apart of another x are found.

#ifndef CUDA_MATRIX_STAGED_H
#define CUDA_MATRIX_STAGED_H

enum { STAGED_ROWS_MOST = 17, STAGED_K_MOST = 1312 };
static const int staged_rows[] = {5, STAGED_ROWS_MOST};

#define ONE(encoding, bits, group, n)                                                                                  \
    {                                                                                                                  \
        {                                                                                                              \
            encoding, bits, group, n, ACT_NONE                                                                         \
        }                                                                                                              \
    }
static const struct {
    linear_shape shape;
    const char *name;
} staged_shapes[] = {
    {{333, 0, 0, 0, 1, ONE(ENC_BF16, 0, 0, 140)}, "bf16"},
    {{192, 0, 0, 0, 1, ONE(ENC_F16, 0, 0, 140)}, "fp16"},
    {{320, 0, 0, 0, 1, ONE(ENC_AFFINE, 3, 32, 140)}, "affine 3"},
    {{832, 0, 0, 0, 1, ONE(ENC_AFFINE, 4, 64, 330)}, "affine 4"},
    {{352, 0, 0, 0, 1, ONE(ENC_AFFINE, 8, 32, 140)}, "affine 8"},
    {{304, 0, 0, 0, 1, ONE(ENC_NVFP4, 4, 16, 300)}, "nvfp4"},
    {{800, 0, 0, 0, 1, ONE(ENC_MXFP8, 8, 0, 140)}, "mxfp8"},
    {{896, 0, 0, 0, 1, ONE(ENC_FP8_BLOCK, 8, 0, 300)}, "fp8 block"},
    {{384, 0, 0, 0, 1, ONE(ENC_INT4, 4, 128, 140)}, "int4"},
    {{STAGED_K_MOST, 0, 0, 0, 1, ONE(ENC_AFFINE, 4, 32, 70)}, "slices"},
    {{832, 1, 0, 0, 1, ONE(ENC_AFFINE, 4, 64, 70)}, "glu before it"},
    {{832,
      0,
      0,
      0,
      3,
      {{ENC_BF16, 0, 0, 140, ACT_NONE}, {ENC_AFFINE, 4, 32, 1, ACT_SIGMOID}, {ENC_AFFINE, 4, 32, 200, ACT_SILU}}},
     "two encodings"},
    {{320,
      0,
      0,
      0,
      3,
      {{ENC_F16, 0, 0, 70, ACT_NONE}, {ENC_AFFINE, 4, 32, 70, ACT_NONE}, {ENC_MXFP8, 8, 0, 70, ACT_NONE}}},
     "three encodings"},
};
#undef ONE

// Whether launches of a shape whose rows begin at `x` have staged the bits that those of `other` have with a window. *staged: a bit for
// each number that the plans said; *taken: kernels for one shape.
static bool staged_same(const linear_shape &shape, const float *x, const float *other, const float *up, int *staged,
                        int64_t *taken)
{
    struct matrix m[LINEAR_PARTS];
    struct weight w[LINEAR_PARTS];
    bool same = true;
    const int memory = rig_memory_count, outputs = fixed_weights(shape, 30, m, w);
    float *y = (float *)malloc((size_t)(STAGED_ROWS_MOST * outputs) * 4),
          *want = (float *)malloc((size_t)(STAGED_ROWS_MOST * outputs) * 4);
    for (int rows : staged_rows) {
        size_t shared = 0;
        const struct linear_args a = linear_args_of(shape);
        fixed_call(shape, w, other, up, rows, rows, false, want);
        window_most = 0;
        *staged |= 1 << linear_plan_make(card_here(), &a, NULL, rows, &shared).staged;
        *taken += fixed_call(shape, w, x, up, rows, rows, true, y);
        window_most = WINDOW_MOST;
        same = memcmp(y, want, (size_t)(rows * outputs) * 4) == 0 && same;
    }
    free(y);
    free(want);
    put_back(memory);
    for (int i = 0; i < shape.parts; i++)
        matrix_free(&m[i]);
    return same;
}

static void test_staged(void)
{
    float *x = step_random((int64_t)2 * STAGED_ROWS_MOST * STAGED_K_MOST, 3);
    const float *dx = (const float *)put(x, (int64_t)2 * STAGED_ROWS_MOST * STAGED_K_MOST * 4),
                *up = dx + STAGED_ROWS_MOST * STAGED_K_MOST;
    const linear_shape *const first = &staged_shapes[0].shape;
    const bool made = fixed_here(), big = roomy();
    int none = 0;
    int64_t taken = 0;
    for (size_t i = 0; i < sizeof staged_shapes / sizeof *staged_shapes; i++) {
        int staged = 0;
        const bool same = staged_same(staged_shapes[i].shape, dx, dx, up, &staged, &taken);
        ok(same && (staged & 1) == !big, "x with the stages, %s: the bits of a window", staged_shapes[i].name);
    }
    ok(!staged_same(*first, dx, dx + first->k, up, &none, &taken), "x with the stages: another row's x is found");
    fixed_staged = true;
    taken = 0;
    const bool same = !made || staged_same(fixed_staged_shape::shape, dx, dx, up, &none, &taken);
    fixed_staged = false;
    ok(same && taken == (made ? (int)(sizeof staged_rows / sizeof *staged_rows) : 0),
       "x with the stages: a kernel for one shape, %d launches took it", (int)taken);
    free(x);
    put_back(0);
}

#endif
