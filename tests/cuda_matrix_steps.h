// SPDX-License-Identifier: Apache-2.0
//
// Steps that linear does in one launch: glu before a product, the mix of streams behind gates, choices of experts
// beside the first. Against double precision, and the same bits for any number of rows; the choices against route's.

#ifndef CUDA_MATRIX_STEPS_H
#define CUDA_MATRIX_STEPS_H

extern "C" {
cudaError_t cuda_glu_linear(cudaStream_t stream, const void *const *args, int rows);
cudaError_t cuda_route(cudaStream_t stream, const struct route_args *args, int rows);
cudaError_t cuda_route_glu_linear(cudaStream_t stream, const void *const *args, int rows);
cudaError_t cuda_linear_mix(cudaStream_t stream, const void *const *args, int rows);
}

enum { STEP_ROWS = 9, STEP_STREAMS = 4 };

static float *step_random(int64_t count, float scale)
{
    float *x = (float *)malloc((size_t)count * 4);
    for (int64_t i = 0; i < count; i++)
        x[i] = matrix_uniform() * scale;
    return x;
}

// Runs step(rows, y) for several numbers of rows; y is [rows][width] on the device. all gets the result for all rows; false when a
// row's bits depend on their number.
template <class STEP> static bool step_rows(int width, float *all, STEP step)
{
    static const int some[] = {STEP_ROWS, 1, 2, 4, 5, 8};
    float *part = (float *)malloc((size_t)(STEP_ROWS * width) * 4);
    bool equal = true;
    for (int rows : some) {
        int memory = rig_memory_count;
        float *y = (float *)put(NULL, (int64_t)STEP_ROWS * width * 4);
        step(rows, y);
        rig_finish("step");
        rig_copy(rows == STEP_ROWS ? all : part, y, (size_t)rows * (size_t)width * 4);
        equal = equal && (rows == STEP_ROWS || memcmp(all, part, (size_t)rows * (size_t)width * 4) == 0);
        put_back(memory);
    }
    free(part);
    return equal;
}

static struct linear_args step_linear(const struct matrix *m, const struct weight *w, int rows, const float *x,
                                      float *y)
{
    struct linear_args a = {};
    a.pass = put_pass(rows, NULL);
    a.row_class = CLASS_DECODE;
    a.k = a.ldx = m->w.k;
    a.x = x;
    a.scratch = put(NULL, linear_scratch_bytes(16, a.k));
    a.parts = 1;
    a.part[0].w = *w;
    a.part[0].ldy = m->w.n;
    a.part[0].y = y;
    a.part[0].alpha = 1;
    return a;
}

static void test_glu_linear(int encoding, int bits, int group, int row_class)
{
    const int n = 70, k = 640;
    const double most = row_class == CLASS_PROMPT ? 5e-3 : 5e-5;
    struct matrix m = matrix_make(encoding, bits, group, n, k, 5);
    struct weight w = put_weight(&m);
    float *g = step_random((int64_t)STEP_ROWS * k, 4), *u = step_random((int64_t)STEP_ROWS * k, 2),
          *x = step_random((int64_t)STEP_ROWS * k, 1);
    const float *dg = (const float *)put(g, (int64_t)STEP_ROWS * k * 4),
                *du = (const float *)put(u, (int64_t)STEP_ROWS * k * 4);
    float *all = (float *)malloc((size_t)(STEP_ROWS * n) * 4),
          *guarded = (float *)calloc((size_t)(STEP_ROWS * (n + GUARD)), 4);
    const bool equal = step_rows(n, all, [&](int rows, float *y) {
        struct glu_args glu = {put_pass(rows, NULL), k, k, k, k, ACT_SILU, dg, du, NULL};
        struct linear_args linear = step_linear(&m, &w, rows, NULL, y);
        const void *args[] = {&glu, &linear};
        linear.row_class = row_class;
        must(cuda_glu_linear(0, args, rows), "cuda_glu_linear");
    });
    double distance;
    for (int i = 0; i < STEP_ROWS * k; i++)
        x[i] = (float)((double)g[i] / (1 + exp(-(double)g[i])) * (double)u[i]);
    for (int r = 0; r < STEP_ROWS; r++)
        memcpy(guarded + r * (n + GUARD), all + r * n, (size_t)n * 4);
    const double error = linear_error(&m, row_class, x, k, guarded, STEP_ROWS, &distance);
    ok(error <= 1 && distance <= most, "glu and %s: agree with double precision (%.3g of the bound)",
       encoding_name(encoding), error);
    ok(equal, "glu and %s: a row's bits are its own", encoding_name(encoding));
    x[0] += row_class == CLASS_PROMPT ? 100 : 1;
    ok(linear_error(&m, row_class, x, k, guarded, STEP_ROWS, &distance) > 1, "glu and %s: another row is found",
       encoding_name(encoding));
    free(g), free(u), free(x), free(all), free(guarded);
    put_back(0);
    matrix_free(&m);
}

// What the step of choices, glu and product leaves, or what its ops do, route by itself: ids, weights, rows of the
// product; of STEP_ROWS rows, of which `rows` are there.
struct route_step {
    struct route_args route;
    struct glu_args glu;
    struct linear_args linear;
};

static size_t route_step_bytes(const struct route_step *s, int part)
{
    return (size_t)STEP_ROWS * (size_t)(part < 2 ? s->route.slots : s->linear.part[0].w.n) * 4;
}

static void route_step_call(struct route_step s, bool together, unsigned char *all)
{
    const int memory = rig_memory_count;
    const void *args[] = {&s.route, &s.glu, &s.linear};
    const void *made[3] = {s.route.ids = (int32_t *)put(NULL, (int64_t)route_step_bytes(&s, 0)),
                           s.route.weights = (float *)put(NULL, (int64_t)route_step_bytes(&s, 1)),
                           s.linear.part[0].y = (float *)put(NULL, (int64_t)route_step_bytes(&s, 2))};
    if (together) {
        must(cuda_route_glu_linear(0, args, STEP_ROWS), "cuda_route_glu_linear");
    } else {
        must(cuda_route(0, &s.route, STEP_ROWS), "cuda_route");
        must(cuda_glu_linear(0, args + 1, STEP_ROWS), "cuda_glu_linear");
    }
    rig_finish("route and product");
    for (int i = 0; i < 3; all += route_step_bytes(&s, i++))
        rig_copy(all, made[i], route_step_bytes(&s, i));
    put_back(memory);
}

// Whether a step leaves the bytes that the ops of another one leave.
static bool route_step_same(const struct route_step *s, const struct route_step *apart)
{
    const size_t bytes = route_step_bytes(s, 0) + route_step_bytes(s, 1) + route_step_bytes(s, 2);
    unsigned char *one = (unsigned char *)malloc(bytes), *other = (unsigned char *)malloc(bytes);
    route_step_call(*s, true, one);
    route_step_call(*apart, false, other);
    const bool same = memcmp(one, other, bytes) == 0;
    free(one);
    free(other);
    return same;
}

static void test_route_step(int encoding, int bits, int group, int experts, int slots, bool sigmoid)
{
    const int n = 300, k = 160; // more units than the host has blocks
    static const int some[] = {1, 5, STEP_ROWS};
    struct matrix m = matrix_make(encoding, bits, group, n, k, 7);
    struct weight w = put_weight(&m);
    float *g = step_random((int64_t)STEP_ROWS * k, 4), *u = step_random((int64_t)STEP_ROWS * k, 2),
          *logits = step_random((int64_t)(STEP_ROWS + 1) * experts, 6), *bias = step_random(experts, 1);
    for (int i = 0; i < experts; i += 7)
        logits[i] = logits[0]; // ties
    struct route_step s = {};
    s.linear = step_linear(&m, &w, 0, NULL, NULL);
    s.glu = {NULL,
             k,
             k,
             k,
             k,
             ACT_SILU,
             (const float *)put(g, (int64_t)STEP_ROWS * k * 4),
             (const float *)put(u, (int64_t)STEP_ROWS * k * 4),
             NULL};
    s.route = {NULL,
               experts,
               slots,
               sigmoid,
               1,
               experts,
               2.5f,
               (const float *)put(logits, (int64_t)(STEP_ROWS + 1) * experts * 4),
               sigmoid ? (const float *)put(bias, (int64_t)experts * 4) : NULL,
               NULL,
               NULL};
    bool same = true;
    for (int rows : some) {
        s.linear.pass = s.glu.pass = s.route.pass = put_pass(rows, NULL);
        same = route_step_same(&s, &s) && same;
    }
    ok(same, "%d of %d%s beside glu and %s: the bits of the ops", slots, experts, sigmoid ? ", sigmoid" : "",
       encoding_name(encoding));
    struct route_step other = s;
    other.route.logits += experts;
    ok(!route_step_same(&s, &other), "%d of %d beside glu and %s: choices of other rows are found", slots, experts,
       encoding_name(encoding));
    s.route.slots = 33;
    const void *args[] = {&s.route, &s.glu, &s.linear};
    ok(cuda_route_glu_linear(0, args, STEP_ROWS) == cudaErrorNotSupported, "choices of 33 slots are left to route");
    free(g), free(u), free(logits), free(bias);
    put_back(0);
    matrix_free(&m);
}

static void test_linear_mix(int encoding, int bits, int group)
{
    const int dim = 96, n = STEP_STREAMS * dim, k = 320;
    struct matrix m = matrix_make(encoding, bits, group, n, k, 6);
    struct weight w = put_weight(&m);
    float *x = step_random((int64_t)STEP_ROWS * k, 1), *xn = step_random((int64_t)STEP_ROWS * n, 2);
    const float *dx = (const float *)put(x, (int64_t)STEP_ROWS * k * 4),
                *dxn = (const float *)put(xn, (int64_t)STEP_ROWS * n * 4);
    float *all = (float *)malloc((size_t)(STEP_ROWS * dim) * 4);
    const bool equal = step_rows(dim, all, [&](int rows, float *y) {
        struct linear_args linear = step_linear(&m, &w, rows, dx, NULL);
        struct hc_mix_args mix = {linear.pass, STEP_STREAMS, dim, dxn, NULL, y};
        const void *args[] = {&linear, &mix};
        must(cuda_linear_mix(0, args, rows), "cuda_linear_mix");
    });
    double worst = 0, most = 0; // of a mix without its first stream
    for (int r = 0; r < STEP_ROWS; r++)
        for (int i = 0; i < dim; i++) {
            double sum = 0, first = 0;
            for (int c = 0; c < STEP_STREAMS; c++) {
                double gate = 0;
                for (int j = 0; j < k; j++)
                    gate += (double)x[r * k + j] * m.value[(int64_t)(c * dim + i) * k + j];
                sum += (double)xn[r * n + c * dim + i] / (1 + exp(-gate)) / STEP_STREAMS;
                first += c == 0 ? 0 : (double)xn[r * n + c * dim + i] / (1 + exp(-gate)) / STEP_STREAMS;
            }
            const double error = fabs(sum - (double)all[r * dim + i]), without = fabs(first - (double)all[r * dim + i]);
            worst = !(error <= worst) ? error : worst;
            most = without > most ? without : most;
        }
    ok(worst <= 1e-3, "%s and a mix: agree with double precision (%.2g)", encoding_name(encoding), worst);
    ok(equal, "%s and a mix: a row's bits are its own", encoding_name(encoding));
    ok(most > 0.1, "%s and a mix: a stream that is left out is found", encoding_name(encoding));
    free(x), free(xn), free(all);
    put_back(0);
    matrix_free(&m);
}

static void test_linear_steps(void)
{
    static const int codes[][3] = {
        {ENC_BF16, 0, 0}, {ENC_MXFP8, 0, 0}, {ENC_NVFP4, 0, 0}, {ENC_AFFINE, 4, 32}, {ENC_FP8_BLOCK, 0, 0}};
    for (const int *c : codes) {
        test_glu_linear(c[0], c[1], c[2], CLASS_DECODE);
        test_linear_mix(c[0], c[1], c[2]);
    }
    struct weight bf16 = {};
    bf16.encoding = ENC_BF16;
    if (wide_available(&bf16)) { // else the ops are one by one
        test_glu_linear(ENC_AFFINE, 4, 64, CLASS_PROMPT);
        test_glu_linear(ENC_BF16, 0, 0, CLASS_PROMPT);
    }
    test_route_step(ENC_AFFINE, 4, 32, 40, 3, false);
    test_route_step(ENC_BF16, 0, 0, 512, 10, false);
    test_route_step(ENC_NVFP4, 0, 0, 1000, 8, true);
}

#endif
