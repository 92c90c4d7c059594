// SPDX-License-Identifier: Apache-2.0
//
// Kernels for one shape (kernels/cuda/fixed.cuh): a row has the bits that the general kernels give it, for every number of rows of a
// tile; they are taken, and only for their shape. On other cards than those that they are made for nothing is taken.
//
// Red control: a table whose kernel was made for another shape is found.

#ifndef CUDA_MATRIX_FIXED_H
#define CUDA_MATRIX_FIXED_H

#include "kernels/cuda/fixed_make.cuh"

enum { FIXED_K = 640, FIXED_ROWS_MOST = 17, FIXED_CASE = 0 }; // FIXED_CASE: of expert_cases

struct fixed_one { // one part
    static constexpr linear_shape value = {FIXED_K, 0, 0, 0, 1, {{ENC_AFFINE, 4, 32, 70, ACT_SILU}}};
};
struct fixed_two { // parts of two encodings, as a router beside quantised matrices
    static constexpr linear_shape value = {
        FIXED_K,
        0,
        0,
        0,
        3,
        {{ENC_BF16, 16, 0, 48, ACT_NONE}, {ENC_AFFINE, 4, 32, 1, ACT_SIGMOID}, {ENC_AFFINE, 4, 32, 300, ACT_NONE}}};
};
struct fixed_glu {
    static constexpr linear_shape value = {FIXED_K, 1, 0, 0, 1, {{ENC_NVFP4, 4, 16, 70, ACT_NONE}}};
};
struct fixed_other { // as fixed_one, with another activation
    static constexpr linear_shape value = {FIXED_K, 0, 0, 0, 1, {{ENC_AFFINE, 4, 32, 70, ACT_NONE}}};
};
struct fixed_up {
    static constexpr experts_shape value = {1, 7, SLOTS, 64, 96, ACT_SILU, 0, {ENC_AFFINE, 4, 32}, {ENC_AFFINE, 4, 32}};
};
struct fixed_down {
    static constexpr experts_shape value = {0, 7, SLOTS, 96, 64, 0, 0, {ENC_AFFINE, 4, 32}, {}};
};

struct fixed_many { // more units than blocks: warps of their own add
    static constexpr linear_shape value = {
        64, 0, 0, 0, 2, {{ENC_NVFP4, 4, 16, 70, ACT_SILU}, {ENC_NVFP4, 4, 16, 70000, ACT_NONE}}};
};

// With a residual before them (cuda_matrix_before.h).
#define ONE(...) {{__VA_ARGS__, ACT_NONE}}, 1
struct before_plain {
    static constexpr linear_shape value = {1024, 0, 0, 0, 1, ONE(ENC_BF16, 0, 0, 300)};
};
struct before_two {
    static constexpr linear_shape value = {
        2048, 0,
        0,    0,
        3,    {{ENC_BF16, 0, 0, 48, ACT_NONE}, {ENC_AFFINE, 4, 64, 1, ACT_NONE}, {ENC_AFFINE, 4, 64, 1000, ACT_SILU}},
        1};
};
struct before_long {
    static constexpr linear_shape value = {4096, 0, 0, 0, 1, ONE(ENC_AFFINE, 4, 64, 70)};
};
struct before_many { // more units than blocks
    static constexpr linear_shape value = {64, 0, 0, 0, 1, ONE(ENC_NVFP4, 0, 0, 6000)};
};
struct before_part { // the last block of k is not whole
    static constexpr linear_shape value = {1040, 0, 0, 0, 1, ONE(ENC_BF16, 0, 0, 40)};
};
#undef ONE
// With hyper-connections before them (cuda_matrix_between.h).
template <int ENCODING, int BITS, int GROUP> struct before_gates {
    static constexpr linear_shape value = {
        2048,          0, 0, 0, 2, {{ENCODING, BITS, GROUP, 64, ACT_SILU}, {ENCODING, BITS, GROUP, 4, ACT_NONE}},
        BEFORE_STREAMS};
};

// Experts with choices and a shared expert's product beside them (cuda_matrix_beside.h).
struct beside_same { // one encoding
    static constexpr beside_shape value = {
        {1, 40, 3, 64, 96, ACT_SILU, 0, {ENC_AFFINE, 4, 32}, {ENC_AFFINE, 4, 32}}, 96, 64, {ENC_AFFINE, 4, 32}};
};
struct beside_other { // two, and more stages than one of the product's units
    static constexpr beside_shape value = {
        {1, 512, 10, 48, 544, ACT_SILU, 0, {ENC_NVFP4, 4, 16}, {ENC_NVFP4, 4, 16}}, 300, 1312, {ENC_BF16, 16, 0}};
};
struct beside_third { // three, and no gate
    static constexpr beside_shape value = {
        {0, 1000, 8, 32, 64, ACT_RELU2, 0, {ENC_AFFINE, 4, 64}, {}}, 4300, 64, {ENC_MXFP8, 8, 32}};
};

// fixed_many in a kernel that is staged though its k is short (kernels/cuda/eight.cuh).
struct fixed_staged_shape {
    static constexpr bool FIXED = true, TILES = true;
    static constexpr int ROWS = TILE_ROWS;
    static constexpr linear_shape shape = fixed_many::value;
    static constexpr linear_plan plan = linear_plan_of(shape, TILE_ROWS, {BLOCKS_AT_ONCE, SHARED_MOST, 0});
};

static bool fixed_wrong;  // the red control
static bool fixed_staged; // the table has fixed_staged_shape

template <int R> static const struct fixed_table *fixed_test_table(void)
{
    const struct fixed_table *right =
        fixed_table_made<R,
                         shape_list<fixed_one, fixed_two, fixed_glu, fixed_many, before_plain, before_two, before_long,
                                    before_many, before_gates<ENC_BF16, 0, 0>, before_gates<ENC_AFFINE, 4, 32>>,
                         shape_list<fixed_up>, shape_list<fixed_down>,
                         shape_list<beside_same, beside_other, beside_third>>();
    static linear_fixed lies[1];
    static struct fixed_table wrong;
    lies[0] = linear_entry<R, fixed_other>();
    lies[0].shape = fixed_one::value;
    wrong = {lies, NULL, NULL, NULL, 1, 0, 0, 0};
    if constexpr (R == TILE_ROWS) {
        using STAGED = fixed_staged_shape;
        static const linear_fixed one[] = {
            {STAGED::shape, STAGED::plan, linear_rows_kernel<code_nvfp4, linear_form(STAGED::plan), STAGED>}};
        static const struct fixed_table staged = {one, NULL, NULL, NULL, 1, 0, 0, 0};
        if (fixed_staged)
            return &staged;
    }
    return fixed_wrong ? &wrong : right;
}
extern "C" {
const struct fixed_table *fixed_table_1(void)
{
    return fixed_test_table<1>();
}
const struct fixed_table *fixed_table_2(void)
{
    return fixed_test_table<2>();
}
const struct fixed_table *fixed_table_4(void)
{
    return fixed_test_table<4>();
}
const struct fixed_table *fixed_table_8(void)
{
    return fixed_test_table<8>();
}
}

// A launch for `rows` rows of a shape in a pass of `live`; y: [part][row][output]. Returns how many kernels for one shape it took.
static int64_t fixed_call(const linear_shape &shape, const struct weight *w, const float *x, const float *up, int rows,
                          int live, bool used, float *y)
{
    const int memory = rig_memory_count;
    const int64_t before = fixed_taken;
    struct linear_args a = linear_args_of(shape);
    a.pass = put_pass(live, NULL);
    a.row_class = CLASS_DECODE;
    a.ldx = shape.k;
    a.x = x;
    a.scratch = put(NULL, linear_scratch_bytes(rows, shape.k));
    for (int i = 0; i < a.parts; i++) {
        a.part[i].w = w[i];
        a.part[i].w.bits = shape.part[i].bits;
        a.part[i].w.group = shape.part[i].group;
        a.part[i].ldy = w[i].n;
        a.part[i].y = (float *)put(NULL, (int64_t)rows * w[i].n * 4);
        a.part[i].alpha = 1.25f;
    }
    const struct glu_args glu = {a.pass, shape.k, shape.k, shape.k, shape.k, ACT_SILU, x, up, NULL};
    const void *step[] = {&glu, &a};
    fixed_used = used;
    must(shape.glu ? cuda_glu_linear(0, step, rows) : cuda_linear(0, &a, rows), "a kernel for one shape");
    fixed_used = true;
    rig_finish("a kernel for one shape");
    for (int i = 0; i < a.parts; y += rows * w[i++].n)
        rig_copy(y, a.part[i].y, (size_t)(rows * w[i].n) * 4);
    put_back(memory);
    return fixed_taken - before;
}

// Makes the weights of a shape's parts, of which the caller frees m. Returns how many outputs they have.
static int fixed_weights(const linear_shape &shape, int seed, struct matrix *m, struct weight *w)
{
    int outputs = 0;
    for (int i = 0; i < shape.parts; i++) {
        const bool grouped = shape.part[i].encoding == ENC_AFFINE || shape.part[i].encoding == ENC_INT4;
        m[i] = matrix_make(shape.part[i].encoding, grouped ? shape.part[i].bits : 0, grouped ? shape.part[i].group : 0,
                           shape.part[i].n, shape.k, (uint64_t)(seed + i));
        w[i] = put_weight(&m[i]);
        outputs += shape.part[i].n;
    }
    return outputs;
}

// Whether launches of 1 to FIXED_ROWS_MOST rows have the bits of general ones. *taken: how many launches were the shape's.
static bool fixed_same(const linear_shape &shape, const float *x, const float *up, int *launches, int64_t *taken)
{
    static const int all[] = {1, 2, 3, 4, 5, 7, 8, FIXED_ROWS_MOST}, few[] = {1, 8, FIXED_ROWS_MOST};
    const bool many = shape.part[shape.parts - 1].n > 1000; // takes long
    const int *const some = many ? few : all, count = many ? 3 : 8;
    struct matrix m[LINEAR_PARTS];
    struct weight w[LINEAR_PARTS];
    bool same = true;
    const int memory = rig_memory_count, outputs = fixed_weights(shape, 70, m, w);
    float *y = (float *)malloc((size_t)(FIXED_ROWS_MOST * outputs) * 4),
          *want = (float *)malloc((size_t)(FIXED_ROWS_MOST * outputs) * 4);
    for (int i = 0; i < count; i++) {
        const int rows = some[i];
        fixed_call(shape, w, x, up, rows, rows, false, want);
        *taken += fixed_call(shape, w, x, up, rows, rows, true, y);
        *launches += 1;
        same = memcmp(y, want, (size_t)(rows * outputs) * 4) == 0 && same;
    }
    if (many) // a pass without rows ends, though it was launched for several tiles of them
        fixed_call(shape, w, x, up, FIXED_ROWS_MOST, 0, true, y);
    free(y);
    free(want);
    put_back(memory);
    for (int i = 0; i < shape.parts; i++)
        matrix_free(&m[i]);
    return same;
}

// Whether the card is the one that kernels for one shape are made for.
static bool fixed_here(void)
{
    const card_room card = card_here(), made = fixed_card();
    return card.multiprocessors == made.multiprocessors && card.shared == made.shared &&
           card_attribute(cudaDevAttrComputeCapabilityMajor) == 9;
}

static void test_fixed(void)
{
    float *x = step_random((int64_t)2 * FIXED_ROWS_MOST * FIXED_K, 3);
    const float *dx = (const float *)put(x, (int64_t)2 * FIXED_ROWS_MOST * FIXED_K * 4),
                *up = dx + FIXED_ROWS_MOST * FIXED_K;
    const linear_shape shapes_here[] = {fixed_one::value, fixed_two::value, fixed_glu::value, fixed_many::value};
    static const char *const names[] = {"one part", "two encodings", "glu before it", "many units"};
    const bool here = fixed_here();
    for (int i = 0; i < (int)(sizeof names / sizeof *names) - !here; i++) { // the last one tells nothing elsewhere
        int launches = 0;
        int64_t taken = 0;
        const bool same = fixed_same(shapes_here[i], dx, up, &launches, &taken);
        ok(same && taken == (here ? launches : 0),
           "a kernel for one shape, %s: the general one's bits (%d of %d launches took it)", names[i], (int)taken,
           launches);
    }
    int launches = 0;
    int64_t taken = 0;
    fixed_wrong = true;
    ok(fixed_same(fixed_one::value, dx, up, &launches, &taken) != here, "a kernel for another shape is found");
    fixed_wrong = false;
    const int64_t before = fixed_taken;
    free(x);
    put_back(0);
    test_moe(FIXED_CASE); // whose rows beside many others have the general kernels' bits
    ok((fixed_taken > before) == here, "experts in few rows take kernels for one shape: %d launches",
       (int)(fixed_taken - before));
}

#endif
