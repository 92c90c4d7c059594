// SPDX-License-Identifier: Apache-2.0
//
// The step of choices, a shared expert's product and experts (cuda_route_experts()): of one row all that its ops leave, by general kernels
// one after the other, bit for bit; and the row has the bits that it has among others.
//
// Red controls: other logits, another gate of the shared expert, a choice that is another one are found.

#ifndef CUDA_MATRIX_BESIDE_H
#define CUDA_MATRIX_BESIDE_H

extern "C" cudaError_t cuda_route_experts(cudaStream_t stream, const void *const *args, int rows);

#ifdef CUDA_EMULATION
enum { BESIDE_STEP = 3 }; // rows that are tried
#else
enum { BESIDE_STEP = 1 };
#endif
enum { BESIDE_ROWS = 8, BESIDE_EXPERTS = 40, BESIDE_OUTPUTS = 5 }; // BESIDE_EXPERTS: that have weights of their own

struct beside_case {
    struct beside_shape shape;
    struct matrix gate[BESIDE_EXPERTS], up[BESIDE_EXPERTS], down[BESIDE_EXPERTS], own;
    struct route_args route;
    struct glu_args glu;
    struct linear_args linear;
    struct experts_up_args up_args;
    struct experts_down_args down_args;
    int64_t bytes[BESIDE_OUTPUTS], all; // of a row's ids, weights, shared output, h and y
};

// Of a stack of weights. Where there are more experts than weights they all have the first one.
static struct weight beside_stack(struct matrix *m, const code_shape &code, int n, int k, int experts, int seed)
{
    const bool grouped = code.encoding == ENC_AFFINE;
    const int count = experts > BESIDE_EXPERTS ? 1 : experts;
    for (int e = 0; e < count; e++)
        m[e] =
            matrix_make(code.encoding, grouped ? code.bits : 0, grouped ? code.group : 0, n, k, (uint64_t)(seed + e));
    struct weight w = put_stack(m, count);
    if (count < experts) {
        w.data_stride = w.scale_stride = 0;
        w.global = NULL;
    }
    w.bits = code.bits;
    w.group = code.group;
    return w;
}

static const float *beside_rows(int64_t count, float scale)
{
    float *x = step_random(count, scale);
    const float *device = (const float *)put(x, count * 4);
    free(x);
    return device;
}

static void beside_open(struct beside_case *c, const struct beside_shape &shape)
{
    const struct experts_shape &e = shape.up;
    c->shape = shape;
    c->up_args = {NULL, CLASS_DECODE, e.experts, e.slots, e.k, e.n, e.k, e.activation};
    c->up_args.x = beside_rows((int64_t)BESIDE_ROWS * e.k, 0.2f);
    if (e.gated)
        c->up_args.gate = beside_stack(c->gate, e.gate, e.n, e.k, e.experts, 100);
    c->up_args.up = beside_stack(c->up, e.code, e.n, e.k, e.experts, 300);
    c->down_args = {NULL, CLASS_DECODE, e.experts, e.slots, e.n, e.k};
    c->down_args.down = beside_stack(c->down, {ENC_BF16, 16, 0}, e.k, e.n, e.experts, 500);
    c->linear.row_class = CLASS_DECODE;
    c->linear.row_multiple = 1;
    c->linear.k = c->linear.ldx = shape.k;
    c->linear.parts = 1;
    c->linear.part[0].w = beside_stack(&c->own, shape.code, shape.n, shape.k, 1, 700);
    c->linear.part[0].ldy = shape.n;
    c->linear.part[0].alpha = 1.5f;
    c->linear.scratch = put(NULL, linear_scratch_bytes(16, shape.k));
    c->glu = {NULL,
              shape.k,
              shape.k,
              shape.k,
              shape.k,
              ACT_SILU,
              beside_rows((int64_t)BESIDE_ROWS * shape.k, 4),
              beside_rows((int64_t)BESIDE_ROWS * shape.k, 2),
              (float *)put(NULL, (int64_t)BESIDE_ROWS * shape.k * 4)};
    c->linear.x = c->glu.y;
    c->route = {NULL, e.experts, e.slots, 0, 1, e.experts, 1};
    const int64_t bytes[] = {4 * e.slots, 4 * e.slots, 4 * shape.n, 4 * e.slots * e.n, 4 * e.slots * e.k};
    c->all = 0;
    for (int i = 0; i < BESIDE_OUTPUTS; i++)
        c->all += BESIDE_ROWS * (c->bytes[i] = bytes[i]);
}

static void beside_close(struct beside_case *c)
{
    put_back(0);
    const int count = c->shape.up.experts > BESIDE_EXPERTS ? 1 : c->shape.up.experts;
    for (int e = 0; e < count; e++) {
        if (c->shape.up.gated)
            matrix_free(&c->gate[e]);
        matrix_free(&c->up[e]);
        matrix_free(&c->down[e]);
    }
    matrix_free(&c->own);
}

// Rows first .. first + live - 1 in a launch for `rows`, as one step or by its ops; all: [output][row of the launch]. Returns what the
// step says.
static cudaError_t beside_call(struct beside_case c, bool step, int first, int live, int rows, unsigned char *all)
{
    const int memory = rig_memory_count;
    unsigned char *made[BESIDE_OUTPUTS];
    struct pass *pass = put_pass(live, NULL);
    for (int i = 0; i < BESIDE_OUTPUTS; i++)
        made[i] = (unsigned char *)put(NULL, c.bytes[i] * BESIDE_ROWS);
    c.route.pass = c.glu.pass = c.linear.pass = c.up_args.pass = c.down_args.pass = pass;
    c.route.logits += first * c.shape.up.experts;
    c.glu.g += first * c.shape.k;
    c.glu.u += first * c.shape.k;
    c.up_args.x += first * c.shape.up.k;
    c.up_args.ids = c.down_args.ids = c.route.ids = (int32_t *)made[0];
    c.route.weights = (float *)made[1];
    c.linear.part[0].y = (float *)made[2];
    c.down_args.h = c.up_args.h = (float *)made[3];
    c.down_args.y = (float *)made[4];
    const void *args[] = {&c.route, &c.glu, &c.linear, &c.up_args, &c.down_args};
    const int64_t taken = fixed_taken;
    cudaError_t says = cudaSuccess;
    if (step) {
        says = cuda_route_experts(0, args, rows);
        if (says == cudaSuccess && fixed_taken == taken)
            says = cudaErrorInvalidValue;
    } else {
        fixed_used = false;
        must(cuda_route(0, &c.route, rows), "cuda_route");
        must(cuda_glu_linear(0, args + 1, rows), "cuda_glu_linear");
        must(cuda_experts_up(0, &c.up_args, rows), "cuda_experts_up");
        must(cuda_experts_down(0, &c.down_args, rows), "cuda_experts_down");
        fixed_used = true;
    }
    rig_finish("choices and experts");
    for (int i = 0; i < BESIDE_OUTPUTS; all += c.bytes[i++] * BESIDE_ROWS)
        rig_copy(all, made[i], (size_t)c.bytes[i] * BESIDE_ROWS);
    put_back(memory);
    return says;
}

// Whether row r of one result is row s of another one.
static bool beside_row_same(const struct beside_case *c, const unsigned char *one, int r, const unsigned char *other,
                            int s)
{
    bool same = true;
    for (int i = 0; i < BESIDE_OUTPUTS; one += c->bytes[i] * BESIDE_ROWS, other += c->bytes[i++] * BESIDE_ROWS)
        same = same && memcmp(one + r * c->bytes[i], other + s * c->bytes[i], (size_t)c->bytes[i]) == 0;
    return same;
}

// Whether the step leaves of each row what the ops of `other` do, until it does not, and, in *alone, what they leave among eight.
static bool beside_same_bits(const struct beside_case *c, const struct beside_case *other, bool *alone)
{
    unsigned char *one = (unsigned char *)malloc((size_t)c->all), *want = (unsigned char *)malloc((size_t)c->all),
                  *eight = (unsigned char *)malloc((size_t)c->all);
    bool same = true;
    *alone = true;
    beside_call(*c, false, 0, BESIDE_ROWS, BESIDE_ROWS, eight);
    for (int live = 0; live < 2; live++)
        for (int first = 0; same && first < BESIDE_ROWS; first += BESIDE_STEP) {
            const cudaError_t says = beside_call(*c, true, first, live, 1, one);
            beside_call(*other, false, first, live, 1, want);
            same = says == cudaSuccess && memcmp(one, want, (size_t)c->all) == 0;
            *alone = *alone && (live == 0 || beside_row_same(c, one, 0, eight, first));
        }
    free(one);
    free(want);
    free(eight);
    return same;
}

static void test_beside_shape(const struct beside_shape &shape, const char *name)
{
    static struct beside_case c;
    beside_open(&c, shape);
    const int experts = shape.up.experts;
    float *logits = step_random((int64_t)BESIDE_ROWS * experts, 6);
    for (int e = 0; e < experts; e++) {
        logits[experts + e] = e % 3 ? logits[experts] : logits[experts + e]; // a third of them is the same
        logits[2 * experts + e] = 1.25f;                                     // all are
        logits[3 * experts + e] = e % 5 == 2 ? NAN : logits[3 * experts + e];
        logits[4 * experts + e] = e % 2 ? 0.0f : -0.0f;
        logits[5 * experts + e] = (float)(e % 2 ? e : -e); // the best are neighbours
    }
    c.route.logits = (const float *)put(logits, (int64_t)BESIDE_ROWS * experts * 4);
    bool alone, whatever;
    ok(beside_same_bits(&c, &c, &alone), "choices and %s: the bits of the ops", name);
    ok(alone, "choices and %s: a row's bits are its own", name);
    struct beside_case other = c;
    logits[0] = 50;
    other.route.logits = (const float *)put(logits, (int64_t)BESIDE_ROWS * experts * 4);
    ok(!beside_same_bits(&c, &other, &whatever), "choices and %s: other logits are found", name);
    other = c;
    other.glu.g = c.glu.u;
    ok(!beside_same_bits(&c, &other, &whatever), "choices and %s: another gate of the shared expert is found", name);
    free(logits);
    beside_close(&c);
}

// What the step leaves to its ops.
static void test_beside_declined(void)
{
    static struct beside_case c;
    beside_open(&c, beside_same::value);
    c.route.logits = beside_rows((int64_t)BESIDE_ROWS * c.shape.up.experts, 6);
    unsigned char *all = (unsigned char *)malloc((size_t)c.all);
    auto declined = [&](const struct beside_case &as, int rows) {
        return beside_call(as, true, 0, rows, rows, all) == cudaErrorNotSupported;
    };
    struct beside_case other = c;
    bool good = declined(c, 2) && declined(c, 5);
    other.route.sigmoid = 1;
    good = good && declined(other, 1);
    other = c;
    other.route.bias = c.route.logits;
    good = good && declined(other, 1);
    other = c;
    other.linear.part[0].activation = ACT_SILU;
    good = good && declined(other, 1);
    other = c;
    other.up_args.row_class = CLASS_PROMPT;
    good = good && declined(other, 1);
    other = c;
    other.linear.part[0].w.n--;
    good = good && declined(other, 1);
    fixed_used = false;
    good = good && declined(c, 1);
    fixed_used = true;
    ok(good && declined(c, 1) != fixed_here(), "choices and experts: what has no kernel is left to the ops");
    free(all);
    beside_close(&c);
}

static void test_beside(void)
{
    test_beside_declined();
    if (!fixed_here())
        return;
    test_beside_shape(beside_same::value, "one encoding");
    test_beside_shape(beside_other::value, "two encodings");
    test_beside_shape(beside_third::value, "three encodings, no gate");
}

#endif
