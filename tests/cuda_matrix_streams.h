// SPDX-License-Identifier: Apache-2.0
//
// Prompt rows between two blocks (kernels/cuda/linear_streams.cu): the sum of experts, the injection, the norm, the gates' two
// products and the mix as one step, and the last two as one, with the bits of their ops one by one, for any rows of a launch.

#ifndef CUDA_MATRIX_STREAMS_H
#define CUDA_MATRIX_STREAMS_H

#include "kernels/cuda/linear_streams.cuh"
#include "kernels/cuda/residual_rows.cuh"

extern "C" {
cudaError_t cuda_hc_mix(cudaStream_t stream, const struct hc_mix_args *args, int rows);
cudaError_t cuda_inject_norm_mix(cudaStream_t stream, const void *const *args, int rows);
cudaError_t cuda_sum_inject_norm_mix(cudaStream_t stream, const void *const *args, int rows);
}

#ifdef CUDA_EMULATION
enum { BETWEEN_ROWS = 9, BETWEEN_CAPACITY = 9 };
static const int between_counts[] = {1, BETWEEN_ROWS};
#else
enum { BETWEEN_ROWS = 600, BETWEEN_CAPACITY = 700 };
static const int between_counts[] = {1, 5, 64, 129, 300, BETWEEN_ROWS};
#endif
enum { BETWEEN_DIM = 512, BETWEEN_WIDTH = 4 * BETWEEN_DIM, BETWEEN_LOW = 64, BETWEEN_SLOTS = 3, BETWEEN_RESULTS = 3 };

// All ops of the step, and the weights on the device.
struct between {
    struct matrix down, inject, up;
    struct moe_sum_args sum;
    struct hc_inject_args injected;
    struct norm_args norm;
    struct linear_args gates, wide;
    struct hc_mix_args mix;
    float *streams; // [capacity][width], what r is at first
};

static struct linear_args between_linear(int k, const float *x)
{
    struct linear_args a = {};
    a.row_class = CLASS_PROMPT;
    a.k = a.ldx = k;
    a.x = x;
    a.scratch = put(NULL, 10 * (int64_t)((BETWEEN_CAPACITY + 15) / 16 * 16) * ((k + 127) / 128 * 128));
    return a;
}

static void between_part(struct linear_args *a, const struct matrix *m, float *y, int activation, float alpha)
{
    a->part[a->parts].w = put_weight(m);
    a->part[a->parts].y = y;
    a->part[a->parts].ldy = m->w.n;
    a->part[a->parts].activation = activation;
    a->part[a->parts++].alpha = alpha;
}

static float *between_floats(int64_t width, float scale)
{
    float *x = step_random(BETWEEN_CAPACITY * width, scale), *there = (float *)put(x, BETWEEN_CAPACITY * width * 4);
    free(x);
    return there;
}

static float *between_room(int64_t width)
{
    return (float *)put(NULL, BETWEEN_CAPACITY * width * 4);
}

// injects: the encoding of the gates of the next injection, bf16 or that of the others.
static struct between between_make(int encoding, int bits, int group, int injects)
{
    const int dim = BETWEEN_DIM, width = BETWEEN_WIDTH;
    struct between b = {};
    b.down = matrix_make(encoding, bits, group, BETWEEN_LOW, width, 11);
    b.inject = injects == encoding ? matrix_make(encoding, bits, group, 4, width, 12)
                                   : matrix_make(injects, 0, 0, 4, width, 12);
    b.up = matrix_make(encoding, bits, group, width, BETWEEN_LOW, 13);
    b.streams = step_random((int64_t)BETWEEN_CAPACITY * width, 2);
    float *w = step_random(width, 1);
    b.sum = {NULL,
             BETWEEN_SLOTS,
             dim,
             1,
             dim,
             dim,
             between_floats(BETWEEN_SLOTS * dim, 1),
             between_floats(BETWEEN_SLOTS, 1),
             between_floats(dim, 1),
             between_floats(1, 1),
             between_floats(dim, 1)};
    b.injected = {NULL, 4, dim, 4, between_floats(4, 1), b.sum.y, between_room(width)};
    b.norm = {NULL, 4, dim, width, width, 1e-6f, b.injected.r, (const float *)put(w, width * 4), between_room(width)};
    b.gates = between_linear(width, b.norm.y);
    between_part(&b.gates, &b.down, between_room(BETWEEN_LOW), ACT_SILU, 0.25f);
    between_part(&b.gates, &b.inject, between_room(4), ACT_NONE, 0.25f);
    b.wide = between_linear(BETWEEN_LOW, b.gates.part[0].y);
    between_part(&b.wide, &b.up, between_room(width), ACT_NONE, 1);
    b.mix = {NULL, 4, dim, b.norm.y, b.wide.part[0].y, between_room(dim)};
    free(w);
    return b;
}

static void between_free(struct between *b)
{
    free(b->streams);
    put_back(0);
    matrix_free(&b->down);
    matrix_free(&b->inject);
    matrix_free(&b->up);
}

enum between_way { BETWEEN_OPS, BETWEEN_MIXED, BETWEEN_STEP };

// The ops of `rows` rows one by one, with the last two as one, or as one step. False when they are declined.
static bool between_run(struct between *b, enum between_way way, bool with_sum, int rows)
{
    const int memory = rig_memory_count, capacity = rows > 128 ? BETWEEN_CAPACITY : rows;
    b->sum.pass = b->injected.pass = b->norm.pass = b->gates.pass = b->wide.pass = b->mix.pass = put_pass(rows, NULL);
    const void *all[] = {&b->sum, &b->injected, &b->norm, &b->gates, &b->wide, &b->mix};
    cudaError_t error = cudaSuccess;
    rig_copy(b->injected.r, b->streams, (size_t)BETWEEN_CAPACITY * BETWEEN_WIDTH * 4);
    rig_fill(b->norm.y, 0xff, (size_t)BETWEEN_CAPACITY * BETWEEN_WIDTH * 4);
    rig_fill(b->mix.y, 0xff, (size_t)BETWEEN_CAPACITY * BETWEEN_DIM * 4);
    if (way == BETWEEN_STEP) {
        error = with_sum ? cuda_sum_inject_norm_mix(0, all, capacity) : cuda_inject_norm_mix(0, all + 1, capacity);
    } else {
        must(residual_rows(0, with_sum ? &b->sum : NULL, &b->injected, &b->norm, NULL, capacity), "residual_rows");
        must(cuda_linear(0, &b->gates, capacity), "the first product");
        if (way == BETWEEN_MIXED) {
            error = linear_mix_prompt(0, &b->wide, &b->mix, NULL, capacity);
        } else {
            must(cuda_linear(0, &b->wide, capacity), "the second product");
            must(cuda_hc_mix(0, &b->mix, capacity), "the mix");
        }
    }
    rig_finish("rows between blocks");
    put_back(memory);
    return error == cudaSuccess;
}

// Whether a way leaves what the ops leave: streams, what is to be injected next, the mix.
static bool between_same(struct between *b, enum between_way way, bool with_sum, int rows)
{
    const float *const there[BETWEEN_RESULTS] = {b->injected.r, b->gates.part[1].y, b->mix.y};
    static const int widths[BETWEEN_RESULTS] = {BETWEEN_WIDTH, 4, BETWEEN_DIM};
    static float one[BETWEEN_RESULTS][BETWEEN_CAPACITY * BETWEEN_WIDTH], other[BETWEEN_CAPACITY * BETWEEN_WIDTH];
    bool equal = between_run(b, BETWEEN_OPS, with_sum, rows);
    for (int i = 0; i < BETWEEN_RESULTS; i++)
        rig_copy(one[i], there[i], (size_t)rows * (size_t)widths[i] * 4);
    equal = between_run(b, way, with_sum, rows) && equal;
    for (int i = 0; i < BETWEEN_RESULTS; i++) {
        rig_copy(other, there[i], (size_t)rows * (size_t)widths[i] * 4);
        equal = equal && memcmp(other, one[i], (size_t)rows * (size_t)widths[i] * 4) == 0;
    }
    return equal;
}

static void test_between(int encoding, int bits, int group)
{
    struct between b = between_make(encoding, bits, group, ENC_BF16);
    const bool half = encoding == ENC_AFFINE, wide = wide_available(&b.up.w);
    bool mixed = true, step = true;
    for (int rows : between_counts) {
        mixed = between_same(&b, BETWEEN_MIXED, true, rows) && mixed;
        for (int sum = 0; sum < 2 && !half; sum++)
            step = between_same(&b, BETWEEN_STEP, sum, rows) && step;
    }
    ok(mixed == wide, "%s: a prompt's gates and mix: the bits of the ops", encoding_name(encoding));
    ok(half ? !between_run(&b, BETWEEN_STEP, true, 1) : step == wide, "%s: a prompt's rows between blocks: %s",
       encoding_name(encoding), half ? "left to the ops" : "the bits of the ops");
    if (!half && wide) {
        between_run(&b, BETWEEN_OPS, true, 2);
        static float y[2 * BETWEEN_DIM], without[2 * BETWEEN_DIM];
        rig_copy(y, b.mix.y, sizeof y);
        b.norm.eps = 1;
        between_run(&b, BETWEEN_STEP, true, 2);
        rig_copy(without, b.mix.y, sizeof without);
        ok(memcmp(y, without, sizeof y) != 0, "%s: another epsilon between blocks is found", encoding_name(encoding));
    }
    between_free(&b);
}

static void test_streams(void)
{
    test_between(ENC_BF16, 0, 0);
    test_between(ENC_FP8_BLOCK, 0, 0);
#ifndef CUDA_EMULATION
    test_between(ENC_NVFP4, 0, 0);
    test_between(ENC_MXFP8, 0, 0);
#endif
    test_between(ENC_AFFINE, 4, 32);
}

#endif
