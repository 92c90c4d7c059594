// SPDX-License-Identifier: Apache-2.0
//
// Prompt-class products whose k is cut into slices: every encoding that has them against double precision, a row's bits
// for any number of rows in a launch, and the order in which slices are added. Where the build has no slices the same
// checks hold without them.

#ifndef CUDA_MATRIX_SLICES_H
#define CUDA_MATRIX_SLICES_H

#include "kernels/cuda/wide.cuh"

#ifdef CUDA_EMULATION
enum { SLICE_ROWS = 33 };
static const int slice_launches[][2] = {{1, 32}, {32, 32}, {33, 128}, {2, 512}}; // rows, capacity
#else
enum { SLICE_ROWS = 512 };
static const int slice_launches[][2] = {{1, 32},    {31, 32},   {32, 32},   {33, 128},   {65, 128},
                                        {128, 128}, {129, 512}, {512, 512}, {300, 2048}, {512, 2048}};
#endif

// Slices of 10 stages and more, k that no slice divides, tiles that lack outputs. The last ones take x in one part.
static const struct {
    int encoding, bits, group, n, k, slices;
} slice_shapes[] = {
    {ENC_BF16, 0, 0, 40, 1305, 2},        {ENC_FP8, 0, 0, 33, 1400, 2},       {ENC_FP8_BLOCK, 0, 0, 150, 2600, 4},
    {ENC_MXFP8, 0, 0, 35, 2592, 4},       {ENC_NVFP4, 0, 0, 40, 2576, 4},     {ENC_AFFINE, 4, 64, 20, 1344, 2},
    {ENC_AFFINE, 4, 32, 33, 5152, 8},     {ENC_BF16, 0, 0, 1026, 2570, 2},    {ENC_BF16, 0, 0, 290, 1305, 2},
    {ENC_AFFINE, 4, 64, 1152, 192, 1},    {ENC_AFFINE, 4, 32, 1152, 2560, 2}, {ENC_AFFINE, 4, 64, 1280, 192, 1},
    {ENC_AFFINE, 4, 32, 1280, 2560, 2},   {ENC_BF16, 0, 0, 1152, 192, 1},     {ENC_BF16, 0, 0, 1152, 2560, 2},
    {ENC_BF16, 0, 0, 1280, 192, 1},       {ENC_BF16, 0, 0, 1280, 2560, 2},
#ifndef CUDA_EMULATION
    {ENC_NVFP4, 0, 0, 1100, 5136, 4},     {ENC_NVFP4, 0, 0, 40, 5136, 8},     {ENC_BF16, 0, 0, 320, 10240, 8},
    {ENC_FP8_BLOCK, 0, 0, 1100, 5200, 4}, {ENC_MXFP8, 0, 0, 1100, 5152, 4},   {ENC_AFFINE, 4, 32, 1100, 5152, 4},
    {ENC_FP8, 0, 0, 1100, 5130, 4},       {ENC_BF16, 0, 0, 1000, 2570, 4},    {ENC_FP8_BLOCK, 0, 0, 1000, 2570, 4},
    {ENC_AFFINE, 4, 32, 1000, 2560, 4},
#endif
};

struct slice_rig {
    struct matrix m, other;
    struct linear_case c;
    float *x, *all; // [SLICE_ROWS][ldx], [SLICE_ROWS][n + GUARD]
};

static struct slice_rig slice_rig_make(int encoding, int bits, int group, int n, int k, uint64_t seed)
{
    struct slice_rig rig = {matrix_make(encoding, bits, group, n, k, seed), matrix_make(ENC_BF16, 0, 0, 41, k, 98), {}};
    rig.c = {NULL, NULL, put_weight(&rig.m), put_weight(&rig.other), CLASS_PROMPT, 0, NULL, (k + 7) / 4 * 4};
    rig.x = (float *)malloc((size_t)(SLICE_ROWS * rig.c.ldx) * 4);
    for (int i = 0; i < SLICE_ROWS * rig.c.ldx; i++)
        rig.x[i] = i % rig.c.ldx < k ? matrix_uniform() : NAN;
    rig.all = (float *)malloc((size_t)(SLICE_ROWS * (n + GUARD)) * 4);
    return rig;
}

static void slice_rig_free(struct slice_rig *rig)
{
    free(rig->x);
    free(rig->all);
    put_back(0);
    matrix_free(&rig->m);
    matrix_free(&rig->other);
}

// Rows 0 .. count - 1 of x, from k `from` to k `to` - 1 with zeros elsewhere; y: [count][n + GUARD].
static void slice_call(struct slice_rig *rig, int count, int capacity, bool mixed, int from, int to, float *y)
{
    const int memory = rig_memory_count, ld = rig->c.ldx;
    float *x = (float *)malloc((size_t)(SLICE_ROWS * ld) * 4);
    for (int i = 0; i < SLICE_ROWS * ld; i++)
        x[i] = i % ld >= rig->m.w.k || (i % ld >= from && i % ld < to) ? rig->x[i] : 0;
    rig->c.m = &rig->m;
    rig->c.other = &rig->other;
    rig->c.x = (const float *)put(x, (int64_t)SLICE_ROWS * ld * 4);
    linear_call(&rig->c, 0, count, capacity, mixed, y);
    put_back(memory);
    free(x);
}

static bool slice_same_bits(struct slice_rig *rig)
{
    const int ld = rig->m.w.n + GUARD;
    float *y = (float *)malloc((size_t)(SLICE_ROWS * ld) * 4);
    bool same = true;
    for (const int *launch : slice_launches) {
        slice_call(rig, launch[0], launch[1], launch[0] % 2, 0, rig->m.w.k, y);
        for (int r = 0; r < launch[0]; r++) {
            const bool row = memcmp(y + r * ld, rig->all + r * ld, (size_t)rig->m.w.n * 4) == 0;
            if (!row && same)
                printf("# %d rows in a launch for %d: row %d differs\n", launch[0], launch[1], r);
            same = same && row;
        }
    }
    free(y);
    return same;
}

static void test_slice_shape(int i)
{
    const int n = slice_shapes[i].n, k = slice_shapes[i].k;
    struct slice_rig rig =
        slice_rig_make(slice_shapes[i].encoding, slice_shapes[i].bits, slice_shapes[i].group, n, k, (uint64_t)i + 50);
    const char *encoding = encoding_name(rig.m.w.encoding);
    double distance;
    slice_call(&rig, SLICE_ROWS, SLICE_ROWS, false, 0, k, rig.all);
    const int checked = SLICE_ROWS < 40 ? SLICE_ROWS : 40;
    const double error = linear_error(&rig.m, CLASS_PROMPT, rig.x, rig.c.ldx, rig.all, checked, &distance);
    ok(wide_slices(&rig.m.w) == slice_shapes[i].slices, "slices, %s [%d, %d]: %d of them", encoding, n, k,
       slice_shapes[i].slices);
    ok(error <= 1 && distance <= 5e-3,
       "slices, %s [%d, %d]: agrees with double precision (%.3g of the bound, distance %.2g)", encoding, n, k, error,
       distance);
    ok(slice_same_bits(&rig), "slices, %s [%d, %d]: a row's bits are its own", encoding, n, k);
    slice_rig_free(&rig);
}

// A slice's own sum is what a launch gives whose x is zero elsewhere. Rows that every block of a cluster finishes.
static void test_slice_order(void)
{
    enum { N = 24, K = 2570, ROWS_SUMMED = 33, LD = N + GUARD };
    struct slice_rig rig = slice_rig_make(ENC_BF16, 0, 0, N, K, 77);
    const int slices = wide_available(&rig.m.w) ? wide_slices(&rig.m.w) : 1, stages = (K + 63) / 64;
    static float part[SLICES_WIDE][ROWS_SUMMED * LD];
    bool ascending = true, descending = true;
    slice_call(&rig, ROWS_SUMMED, ROWS_SUMMED, false, 0, K, rig.all);
    for (int s = 0; s < slices; s++)
        slice_call(&rig, ROWS_SUMMED, ROWS_SUMMED, false, share_begin(stages, s, slices) * 64,
                   share_begin(stages, s + 1, slices) * 64, part[s]);
    for (int i = 0; i < ROWS_SUMMED * LD; i++) {
        if (i % LD >= N)
            continue;
        float up = part[0][i], down = part[slices - 1][i];
        for (int s = 1; s < slices; s++) {
            up += part[s][i];
            down += part[slices - 1 - s][i];
        }
        ascending = ascending && up == rig.all[i];
        descending = descending && down == rig.all[i];
    }
    ok(ascending, "slices: added in ascending order of k");
    ok(slices == 1 || !descending, "slices: another order is found");
    for (int i = 0; i < ROWS_SUMMED * LD; i++)
        rig.all[i] -= part[slices - 1][i];
    double distance;
    ok(linear_error(&rig.m, CLASS_PROMPT, rig.x, rig.c.ldx, rig.all, ROWS_SUMMED, &distance) > 1,
       "slices: one that is left out is found");
    slice_rig_free(&rig);
}

static void test_slices(void)
{
    for (int i = 0; i < (int)(sizeof slice_shapes / sizeof *slice_shapes); i++)
        test_slice_shape(i);
    test_slice_order();
}

#endif
