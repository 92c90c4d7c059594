// SPDX-License-Identifier: Apache-2.0
//
// Routed experts against double precision, some popular, some nobody's; and the embedding against the table's numbers.

#ifndef CUDA_MATRIX_EXPERTS_H
#define CUDA_MATRIX_EXPERTS_H

#include "kernels/cuda/wide.cuh"

extern "C" cudaError_t cuda_experts_up_down(cudaStream_t stream, const void *const *args, int rows);

enum { SLOTS = 3, EXPERTS_MOST = 90 };

static const struct {
    int encoding, bits, group, experts, inner, k, gated;
} expert_cases[] = {
    {ENC_AFFINE, 4, 32, 7, 64, 96, 1},   {ENC_NVFP4, 0, 0, 90, 48, 544, 1},  {ENC_MXFP8, 0, 0, 5, 96, 64, 1},
    {ENC_BF16, 0, 0, 4, 33, 72, 1},      {ENC_AFFINE, 4, 64, 6, 128, 64, 0}, {ENC_FP8_BLOCK, 0, 0, 5, 128, 1600, 1},
    {ENC_AFFINE, 6, 32, 40, 32, 128, 1}, {ENC_NVFP4, 0, 0, 7, 32, 1152, 1},  {ENC_NVFP4, 0, 0, 3, 64, 96, 1},
    {ENC_AFFINE, 4, 32, 3, 64, 96, 0}, // the last two: as many pairs an expert as there are rows
};

struct moe {
    int experts, inner, k, gated, row_class;
    struct matrix gate[EXPERTS_MOST], up[EXPERTS_MOST], down[EXPERTS_MOST];
    struct weight gate_w, up_w, down_w;
    float *x; // host [ROWS][k]
    int32_t *ids;
    const float *x_device;
};

static struct weight put_stack(const struct matrix *m, int count)
{
    struct weight w = m[0].w;
    w.data_stride = m[0].data_bytes;
    w.scale_stride = m[0].scale_bytes;
    uint8_t *data = (uint8_t *)put(NULL, w.data_stride * count), *scale = (uint8_t *)put(NULL, w.scale_stride * count);
    float globals[EXPERTS_MOST];
    for (int e = 0; e < count; e++) {
        rig_copy(data + e * w.data_stride, m[e].w.data, (size_t)w.data_stride);
        if (w.scale_stride)
            rig_copy(scale + e * w.scale_stride, m[e].w.scale, (size_t)w.scale_stride);
        globals[e] = m[e].global;
    }
    w.data = data;
    w.scale = scale;
    w.global = m[0].global == 1 ? NULL : (const float *)put(globals, count * 4);
    put_arranged(&w, count);
    return w;
}

// Rows first .. first + count - 1 in a launch for `capacity`; h [count][SLOTS][inner] and y [count][SLOTS][k] on the host. step: both
// halves as one, which leave h alone; false when they are declined.
static bool moe_call_as(const struct moe *m, bool step, int first, int count, int capacity, float *h, float *y)
{
    int memory = rig_memory_count;
    int64_t scratch = 8 * (((int64_t)capacity * SLOTS + 15) / 16 * 16), widest = m->k > m->inner ? m->k : m->inner;
    struct experts_up_args up = {};
    up.pass = put_pass(count, NULL);
    up.row_class = m->row_class;
    up.experts = m->experts;
    up.slots = SLOTS;
    up.k = m->k;
    up.inner = m->inner;
    up.ldx = m->k;
    up.activation = m->gated ? ACT_SILU : ACT_RELU2;
    up.x = m->x_device + (int64_t)first * m->k;
    int32_t *ids = (int32_t *)calloc((size_t)(capacity * SLOTS), 4); // of all rows that the launch is made for
    memcpy(ids, m->ids + first * SLOTS, (size_t)(count * SLOTS) * 4);
    up.ids = (const int32_t *)put(ids, capacity * SLOTS * 4);
    free(ids);
    if (m->gated)
        up.gate = m->gate_w;
    up.up = m->up_w;
    up.h = (float *)put(NULL, (int64_t)count * SLOTS * m->inner * 4);
    up.groups = put(NULL, (64 + 4 * (2 * m->experts + 1 + capacity * SLOTS) + 63) / 64 * 64);
    up.scratch = put(NULL, scratch * ((widest + 127) / 128 * 128));
    if (!step) {
        must(cuda_experts_up(0, &up, capacity), "cuda_experts_up");
        rig_finish("experts_up");
    }
    struct experts_down_args down = {};
    down.pass = up.pass;
    down.row_class = m->row_class;
    down.experts = m->experts;
    down.slots = SLOTS;
    down.k = m->inner;
    down.n = m->k;
    down.h = up.h;
    down.ids = up.ids;
    down.down = m->down_w;
    down.y = (float *)put(NULL, (int64_t)count * SLOTS * m->k * 4);
    down.groups = up.groups;
    down.scratch = step ? put(NULL, scratch * ((widest + 127) / 128 * 128)) : up.scratch;
    const void *args[] = {&up, &down};
    const bool taken = !step || cuda_experts_up_down(0, args, capacity) == cudaSuccess;
    if (!step)
        must(cuda_experts_down(0, &down, capacity), "cuda_experts_down");
    rig_finish("experts_down");
    rig_copy(h, up.h, (size_t)(count * SLOTS * m->inner) * 4);
    rig_copy(y, down.y, (size_t)(count * SLOTS * m->k) * 4);
    put_back(memory);
    return taken;
}

static void moe_call(const struct moe *m, int first, int count, int capacity, float *h, float *y)
{
    moe_call_as(m, false, first, count, capacity, h, y);
}

static double matrix_dot(const struct matrix *m, int o, const float *x)
{
    double sum = 0;
    for (int i = 0; i < m->w.k; i++)
        sum += m->value[(int64_t)o * m->w.k + i] * (double)x[i];
    return sum;
}

// ||h - ref|| / ||ref|| and the same of y, with the references of y made from the device's h.
static void moe_distance(const struct moe *m, const float *h, const float *y, double *of_h, double *of_y)
{
    double difference[2] = {0, 0}, norm[2] = {1e-300, 1e-300};
    for (int i = 0; i < ROWS * SLOTS; i++) {
        int e = m->ids[i];
        const float *x = m->x + (int64_t)(i / SLOTS) * m->k;
        for (int o = 0; o < m->inner; o++) {
            double u = matrix_dot(&m->up[e], o, x), want = u > 0 ? u * u : 0;
            if (m->gated) {
                double g = matrix_dot(&m->gate[e], o, x);
                want = g / (1 + exp(-g)) * u;
            }
            double d = want - (double)h[(int64_t)i * m->inner + o];
            difference[0] += d * d;
            norm[0] += want * want;
        }
        for (int o = 0; o < m->k; o++) {
            double want = matrix_dot(&m->down[e], o, h + (int64_t)i * m->inner);
            double d = want - (double)y[(int64_t)i * m->k + o];
            difference[1] += d * d;
            norm[1] += want * want;
        }
    }
    *of_h = sqrt(difference[0] / norm[0]);
    *of_y = sqrt(difference[1] / norm[1]);
}

static bool moe_same_bits(const struct moe *m, const float *h, const float *y)
{
    float *h2 = (float *)malloc((size_t)(ROWS * SLOTS * m->inner) * 4);
    float *y2 = (float *)malloc((size_t)(ROWS * SLOTS * m->k) * 4);
    bool same = true;
    for (int i = 0; i < COUNTS; i++) {
        int count = counts[i], first = (int)(matrix_random() % (unsigned)(ROWS - count + 1));
        moe_call(m, first, count, i % 2 ? 3 * ROWS : count, h2, y2); // tiles of all sizes
        same = same && memcmp(h2, h + first * SLOTS * m->inner, (size_t)(count * SLOTS * m->inner) * 4) == 0;
        same = same && memcmp(y2, y + first * SLOTS * m->k, (size_t)(count * SLOTS * m->k) * 4) == 0;
    }
    free(h2);
    free(y2);
    return same;
}

static void test_moe(int c)
{
    static struct moe m;
    int enc = expert_cases[c].encoding, bits = expert_cases[c].bits, group = expert_cases[c].group;
    m.experts = expert_cases[c].experts;
    m.inner = expert_cases[c].inner;
    m.k = expert_cases[c].k;
    m.gated = expert_cases[c].gated;
    int down = m.inner % (group ? group : 16) ? ENC_BF16 : enc;
    for (int e = 0; e < m.experts; e++) {
        uint64_t seed = (uint64_t)(c * 1000 + e);
        m.gate[e] = matrix_make(c == 2 ? ENC_BF16 : enc, bits, group, m.inner, m.k, seed + 1); // c == 2: mixed
        m.up[e] = matrix_make(enc, bits, group, m.inner, m.k, seed + 300);
        m.down[e] = matrix_make(down, bits, group, m.k, m.inner, seed + 600);
    }
    m.gate_w = put_stack(m.gate, m.experts);
    m.up_w = put_stack(m.up, m.experts);
    m.down_w = put_stack(m.down, m.experts);
    m.x = (float *)malloc((size_t)(ROWS * m.k) * 4);
    m.ids = (int32_t *)malloc(ROWS * SLOTS * 4);
    for (int i = 0; i < ROWS * m.k; i++)
        m.x[i] = matrix_uniform() * 0.2f;
    // some experts are popular, some are nobody's; a row never chooses one twice
    for (int i = 0; i < ROWS * SLOTS; i++) {
        static int base;
        if (i % SLOTS == 0)
            base = i / SLOTS % 3 ? 0 : (int)(matrix_random() % (unsigned)m.experts);
        m.ids[i] = (base + i % SLOTS) % m.experts;
    }
    m.x_device = (const float *)put(m.x, (int64_t)ROWS * m.k * 4);
    float *h = (float *)malloc((size_t)(ROWS * SLOTS * m.inner) * 4);
    float *y = (float *)malloc((size_t)(ROWS * SLOTS * m.k) * 4);
    for (m.row_class = CLASS_DECODE; m.row_class <= CLASS_PROMPT; m.row_class++) {
        double of_h, of_y, most = m.row_class == CLASS_PROMPT ? 1e-2 : 1e-4;
        moe_call(&m, 0, ROWS, ROWS, h, y);
        moe_distance(&m, h, y, &of_h, &of_y);
        ok(of_h <= most && of_y <= most, "experts %s case %d class %d: agree with double precision (%.2g, %.2g)",
           encoding_name(enc), c, m.row_class, of_h, of_y);
        ok(moe_same_bits(&m, h, y), "experts %s case %d class %d: bits whoever else is there", encoding_name(enc), c,
           m.row_class);
    }
    m.row_class = CLASS_PROMPT;
    float *together = (float *)malloc((size_t)(ROWS * SLOTS * m.k) * 4);
    const bool fit = m.inner % 32 == 0 && c != 2 && m.up_w.encoding != ENC_AFFINE && wide_available(&m.up_w),
               taken = moe_call_as(&m, true, 0, ROWS, ROWS, h, together);
    ok(taken == fit && (!taken || memcmp(together, y, (size_t)(ROWS * SLOTS * m.k) * 4) == 0),
       "experts %s case %d: both halves as one: %s", encoding_name(enc), c,
       fit ? "the bits of the ops" : "left to them");
    free(together);
    free(m.x);
    free(m.ids);
    free(h);
    free(y);
    put_back(0);
    for (int e = 0; e < m.experts; e++) {
        matrix_free(&m.gate[e]);
        matrix_free(&m.up[e]);
        matrix_free(&m.down[e]);
    }
}

static void test_embed(int encoding, int bits, int group)
{
    enum { N = 50, K = 352 };
    struct matrix m = matrix_make(encoding, bits, group, N, K, 5);
    int32_t token[3] = {49, 0, 17};
    for (int panel = 0; panel < 2; panel++) {
        if (!panel && !m.rows)
            continue;
        struct embed_args a = {};
        a.pass = put_pass(2, (int32_t *)put(token, sizeof token));
        a.table = put_weight(&m);
        if (!panel)
            a.table.data = (const uint8_t *)put(m.rows, m.row_bytes * N);
        a.panel = panel;
        a.copies = 2;
        a.ldy = 2 * K + 1;
        a.y = (float *)put(NULL, 3 * a.ldy * 4);
        must(cuda_embed(0, &a, 3), "cuda_embed");
        rig_finish("embed");
        static float y[3 * (2 * K + 1)];
        rig_copy(y, a.y, sizeof y);
        bool good = true;
        for (int r = 0; r < 3; r++)
            for (int i = 0; i < a.ldy; i++) {
                float v = y[r * a.ldy + i];
                double want = m.value[(int64_t)token[r] * K + i % K];
                double most = 1e-6 * m.magnitude[(int64_t)token[r] * K + i % K];
                good = good && (r < 2 && i < 2 * K ? fabs((double)v - want) <= most : v != v);
            }
        ok(good, "embedding of %s %d bits from a table in %s", encoding_name(encoding), bits,
           panel ? "panels" : "rows");
        put_back(0);
    }
    matrix_free(&m);
}

static void test_experts(void)
{
    for (int c = 0; c < (int)(sizeof expert_cases / sizeof *expert_cases); c++)
        test_moe(c);
    test_embed(ENC_F32, 0, 0);
    test_embed(ENC_BF16, 0, 0);
    test_embed(ENC_F16, 0, 0);
    for (int bits = 2; bits <= 8; bits++)
        if (bits != 7)
            test_embed(ENC_AFFINE, bits, 32);
    test_embed(ENC_NVFP4, 0, 0);
    test_embed(ENC_MXFP8, 0, 0);
    test_embed(ENC_FP8, 0, 0);
    test_embed(ENC_FP8_BLOCK, 0, 0);
}

#endif
