// SPDX-License-Identifier: Apache-2.0
//
// Products whose parts have two encodings: the bits of each part are those of a launch of the same shapes whose parts
// all have its encoding, and the pairs that checkpoints have are not left to the kernel for whatever comes.

#ifndef CUDA_MATRIX_TWO_H
#define CUDA_MATRIX_TWO_H

enum { TWO_PARTS = 3, TWO_K = 640, TWO_ROWS = 9 };

static const int two_outputs[TWO_PARTS] = {48, 1, 70};

struct two_code {
    int encoding, bits, group;
};

static struct matrix two_matrix(const struct two_code *c, int part)
{
    return matrix_make(c->encoding, c->bits, c->group, two_outputs[part], TWO_K, (uint64_t)(40 + part));
}

// All rows of all parts, part i in the encoding codes[i]; y: [part][row][output], one behind the other.
static void two_call(const struct two_code *const codes[TWO_PARTS], const float *x, int rows, float *y)
{
    const int memory = rig_memory_count;
    struct linear_args a = {};
    a.pass = put_pass(rows, NULL);
    a.row_class = CLASS_DECODE;
    a.k = a.ldx = TWO_K;
    a.x = x;
    a.scratch = put(NULL, linear_scratch_bytes(16, TWO_K));
    a.parts = TWO_PARTS;
    for (int i = 0; i < TWO_PARTS; i++) {
        struct matrix m = two_matrix(codes[i], i);
        a.part[i].w = put_weight(&m);
        a.part[i].ldy = two_outputs[i];
        a.part[i].y = (float *)put(NULL, (int64_t)rows * two_outputs[i] * 4);
        a.part[i].alpha = 1;
        matrix_free(&m);
    }
    must(cuda_linear(0, &a, rows), "cuda_linear");
    rig_finish("two encodings");
    for (int i = 0; i < TWO_PARTS; y += rows * two_outputs[i++])
        rig_copy(y, a.part[i].y, (size_t)(rows * two_outputs[i]) * 4);
    put_back(memory);
}

// Whether the parts of a launch in codes[] are those of launches in one encoding each.
static bool two_same(const struct two_code *const codes[TWO_PARTS], const float *x, const float *other_x, int rows)
{
    const int all = rows * (two_outputs[0] + two_outputs[1] + two_outputs[2]);
    float *y = (float *)malloc((size_t)all * 4), *want = (float *)malloc((size_t)all * 4);
    bool same = true;
    two_call(codes, x, rows, y);
    for (int i = 0, at = 0; i < TWO_PARTS; at += rows * two_outputs[i++]) {
        const struct two_code *const alone[TWO_PARTS] = {codes[i], codes[i], codes[i]};
        two_call(alone, other_x, rows, want);
        same = memcmp(y + at, want + at, (size_t)(rows * two_outputs[i]) * 4) == 0 && same;
    }
    free(y);
    free(want);
    return same;
}

// Whether there is a kernel for the two, whichever comes first.
static bool two_kernel(const struct two_code *a, const struct two_code *b)
{
    struct weight w[2] = {};
    bool mixed = false;
    w[0].encoding = a->encoding, w[0].bits = a->bits;
    w[1].encoding = b->encoding, w[1].bits = b->bits;
    for (int i = 0; i < 2; i++)
        with_two_kernel(&w[i], &w[1 - i], 1, [&](auto code, auto) {
            mixed = mixed || code_equal<typename decltype(code)::type, code_mixed>::value;
        });
    return !mixed;
}

static void test_two(void)
{
    static const struct two_code pairs[][2] = {
        {{ENC_BF16, 0, 0}, {ENC_AFFINE, 4, 32}},    {{ENC_BF16, 0, 0}, {ENC_AFFINE, 8, 64}},
        {{ENC_BF16, 0, 0}, {ENC_NVFP4, 0, 0}},      {{ENC_BF16, 0, 0}, {ENC_MXFP8, 0, 0}},
        {{ENC_BF16, 0, 0}, {ENC_FP8, 0, 0}},        {{ENC_BF16, 0, 0}, {ENC_FP8_BLOCK, 0, 0}},
        {{ENC_BF16, 0, 0}, {ENC_INT4, 4, 128}},     {{ENC_AFFINE, 8, 64}, {ENC_AFFINE, 4, 64}},
        {{ENC_AFFINE, 6, 64}, {ENC_AFFINE, 4, 64}},
    };
    static const int some[] = {1, 4, 8};
    const int count = sizeof pairs / sizeof *pairs;
    float *x = (float *)malloc(TWO_ROWS * TWO_K * 4);
    for (int i = 0; i < TWO_ROWS * TWO_K; i++)
        x[i] = matrix_uniform() * (i % 61 == 0 ? 30.0f : 1.0f);
    const float *dx = (const float *)put(x, TWO_ROWS * TWO_K * 4);
    for (int i = 0; i < count; i++) {
        const struct two_code *const a = &pairs[i][0], *const b = &pairs[i][1], *const router[] = {a, b, b},
                                     *const last[] = {b, b, a};
        bool same = two_same(last, dx, dx, some[i % 3]);
        for (int rows : some)
            same = two_same(router, dx, dx, rows) && same;
        ok(same, "%s beside %s, %d bits: each has the bits of a launch of its own", encoding_name(a->encoding),
           encoding_name(b->encoding), b->bits);
        ok(two_kernel(a, b) == (i < count - 1), "%s beside %s, %d bits: %s", encoding_name(a->encoding),
           encoding_name(b->encoding), b->bits, i < count - 1 ? "a kernel for both" : "the kernel for all");
    }
    const struct two_code *const router[] = {&pairs[0][0], &pairs[0][1], &pairs[0][1]};
    ok(!two_same(router, dx, dx + TWO_K, 1), "two encodings: another row is found");
    free(x);
    put_back(0);
}

#endif
