// SPDX-License-Identifier: Apache-2.0
//
// Ops that take rows one by one: against the CPU target, and bit for bit whatever the number of rows, the capacity, the order.

#ifndef CUDA_OPS_ROWS_CUH
#define CUDA_OPS_ROWS_CUH

#include "tests/cuda_ops_rig.cuh"

enum { MOST = 17, CAPACITY = 40 };

// Row-major arrays of the case at hand: inputs, and outputs (or what is changed in place).
struct row_array {
    uint8_t *p;
    int64_t bytes; // a row
    bool out, exact;
};
static struct row_array arrays[16];
static int array_count;
static struct pass *row_pass;

static void rows_begin(void)
{
    rig_reset();
    array_count = 0;
    row_pass = take_pass(CAPACITY);
    pass_add(row_pass, 0, 0, 9);
    pass_add(row_pass, 1, 5, MOST - 9);
    for (int32_t r = 0; r < MOST; r++)
        row_pass->position[r] = rig_below(200000);
    arrays[array_count++] = {(uint8_t *)row_pass->position, 4, false, false};
    arrays[array_count++] = {(uint8_t *)row_pass->lane, 4, false, false};
}

static float *rows_in(int32_t width, float scale)
{
    float *x = take_floats((int64_t)CAPACITY * width, scale);
    arrays[array_count++] = {(uint8_t *)x, 4 * (int64_t)width, false, false};
    return x;
}

static float *rows_out(int32_t width)
{
    float *x = take<float>((int64_t)CAPACITY * width);
    arrays[array_count++] = {(uint8_t *)x, 4 * (int64_t)width, true, false};
    return x;
}

static float *rows_changed(int32_t width, float scale)
{
    float *x = rows_in(width, scale);
    arrays[array_count - 1].out = true;
    return x;
}

static int32_t *rows_ids(int32_t width)
{
    int32_t *x = take<int32_t>((int64_t)CAPACITY * width);
    arrays[array_count++] = {(uint8_t *)x, 4 * (int64_t)width, true, true};
    return x;
}

// Reverses the first n rows of every array.
static void rows_reverse(int32_t n)
{
    static uint8_t t[1 << 18];
    for (int i = 0; i < array_count; i++)
        for (int32_t r = 0; r < n / 2; r++) {
            uint8_t *a = arrays[i].p + r * arrays[i].bytes, *b = arrays[i].p + (n - 1 - r) * arrays[i].bytes;
            memcpy(t, a, (size_t)arrays[i].bytes);
            memcpy(a, b, (size_t)arrays[i].bytes);
            memcpy(b, t, (size_t)arrays[i].bytes);
        }
}

// Whether outputs on the device are those of `want` (the arena of an earlier run) for n rows, and untouched beyond.
static bool rows_equal(const uint8_t *want, int32_t n, bool reversed)
{
    for (int i = 0; i < array_count; i++)
        for (int32_t r = 0; arrays[i].out && r < CAPACITY; r++) {
            const int64_t at = arrays[i].p - rig_host, bytes = arrays[i].bytes;
            const uint8_t *got = pull(arrays[i].p + r * bytes, bytes);
            const uint8_t *expect = want + at + (reversed && r < n ? n - 1 - r : r) * bytes;
            if (r >= n)
                expect = arrays[i].p + r * bytes;
            if (!same(got, expect, bytes)) {
                printf("# array %d, row %d of %d\n", i, r, n);
                return false;
            }
        }
    return true;
}

template <typename A>
static void rows_check(const char *name, const struct kernel *kernel, cudaError_t (*op)(cudaStream_t, const A *, int),
                       const A *args, double bound)
{
    static uint8_t *pristine = (uint8_t *)malloc(RIG_ARENA), *want = (uint8_t *)malloc(RIG_ARENA);
    bool close = true, bits = true;
    memcpy(pristine, rig_host, rig_used);
    push_all();
    gpu(op, args, CAPACITY);
    cpu(kernel, args);
    for (int i = 0; i < array_count; i++)
        if (arrays[i].out) {
            const int64_t bytes = MOST * arrays[i].bytes;
            const uint8_t *got = pull(arrays[i].p, bytes);
            close =
                close && (arrays[i].exact ? same(got, arrays[i].p, bytes)
                                          : close_to((const float *)got, (const float *)arrays[i].p, bytes / 4, bound));
        }
    memcpy(rig_host, pristine, rig_used);
    rig_check(cudaMemcpy(want, rig_device, rig_used, cudaMemcpyDeviceToHost), "copy back");
    static const int counts[] = {1, 2, 3, 5, 8, 17};
    for (int n : counts) {
        memcpy(rig_host, pristine, rig_used);
        row_pass->rows = n;
        push_all();
        gpu(op, args, n == 5 ? CAPACITY : n);
        bits = bits && rows_equal(want, n, false);
    }
    rows_reverse(MOST);
    push_all();
    gpu(op, args, MOST);
    bits = bits && rows_equal(want, MOST, true);
    memcpy(rig_host, pristine, rig_used);
    ok(close, "%s: agrees with the CPU target to %g", name, bound);
    ok(bits, "%s: same bits for 1 to 17 rows, any capacity, reversed; nothing written beyond", name);
}

#define CHECK(name, op, args, bound) rows_check(name, &kernel_##op##_portable, cuda_##op, &args, bound)

// ---- cases -----------------------------------------------------------------------------------------------------------------------

static void test_norms(void)
{
    static const int shapes[][2] = {{4, 2560}, {1, 5120}, {1, 32}, {3, 83}, {1, 9000}};
    for (const int *s : shapes) {
        char name[64];
        rows_begin();
        const int width = s[0] * s[1];
        struct norm_args a = {
            row_pass,       s[0], s[1], width + 4, width, 1e-6f, rows_in(width + 4, 2), take_floats(width, 1),
            rows_out(width)};
        snprintf(name, sizeof name, "norm %d x %d", s[0], s[1]);
        CHECK(name, norm, a, 2e-6);
    }
    static const int gated[][3] = {{48, 128, 0}, {3, 19, 0}, {4, 1024, 1}, {2, 96, 1}};
    for (const int *s : gated) {
        char name[64];
        rows_begin();
        const int width = s[0] * s[1];
        struct gated_norm_args a = {row_pass,
                                    s[0],
                                    s[1],
                                    width,
                                    width + 8,
                                    width,
                                    s[2] ? ACT_SILU : ACT_SIGMOID,
                                    s[2],
                                    1e-6f,
                                    rows_in(width, 2),
                                    rows_in(width + 8, 4),
                                    take_floats(width, 1),
                                    rows_out(width)};
        snprintf(name, sizeof name, "gated_norm %d x %d, %s", s[0], s[1], s[2] ? "after" : "before");
        CHECK(name, gated_norm, a, 3e-6);
    }
    static const int heads[][4] = {{24, 256, 64, 1}, {4, 128, 128, 1}, {3, 24, 8, 1}, {2, 32, 16, 0}, {2, 32, 0, 1}};
    for (const int *s : heads) {
        char name[64];
        rows_begin();
        float *frequency = take<float>(s[2] / 2 + 1);
        for (int i = 0; i < s[2] / 2; i++)
            frequency[i] = powf(1e7f, -2.0f * (float)i / (float)s[2]);
        struct head_norm_args a = {row_pass,
                                   s[0],
                                   2 * s[1],
                                   s[1],
                                   s[2],
                                   2 * s[0] * s[1],
                                   s[0] * s[1],
                                   1e-6f,
                                   rows_in(2 * s[0] * s[1], 2),
                                   s[3] ? take_floats(s[1], 1) : NULL,
                                   frequency,
                                   rows_out(s[0] * s[1])};
        snprintf(name, sizeof name, "head_norm %d x %d, %d rotated%s", s[0], s[1], s[2], s[3] ? "" : ", no norm");
        CHECK(name, head_norm, a, 3e-6);
    }
}

static void test_elements(void)
{
    static const int widths[] = {2560, 1, 129};
    for (int w : widths) {
        char name[64];
        rows_begin();
        struct add_args add = {row_pass, w, w, w + 4, rows_changed(w, 2), rows_in(w + 4, 2)};
        snprintf(name, sizeof name, "add %d", w);
        CHECK(name, add, add, 0);
        for (int act = ACT_NONE; act <= ACT_RELU2; act++) {
            rows_begin();
            struct glu_args glu = {
                row_pass, w, 2 * w, w, w, act, act == ACT_RELU2 ? NULL : rows_in(2 * w, 4), rows_in(w, 4), rows_out(w)};
            snprintf(name, sizeof name, "glu %d, activation %d", w, act);
            CHECK(name, glu, glu, 2e-6);
        }
        rows_begin();
        struct ple_add_args ple = {row_pass, w, rows_in(w, 2), rows_in(w, 4), rows_changed(w, 2)};
        snprintf(name, sizeof name, "ple_add %d", w);
        CHECK(name, ple_add, ple, 2e-6);
    }
    static const int streams[][2] = {{4, 2560}, {2, 36}, {3, 17}};
    for (const int *s : streams) {
        char name[64];
        const int all = s[0] * s[1];
        rows_begin();
        struct hc_mix_args mix = {row_pass, s[0], s[1], rows_in(all, 2), rows_in(all, 4), rows_out(s[1])};
        snprintf(name, sizeof name, "hc_mix %d x %d", s[0], s[1]);
        CHECK(name, hc_mix, mix, 2e-6);
        rows_begin();
        struct hc_inject_args inject = {
            row_pass, s[0], s[1], s[0], rows_in(s[0], 2), rows_in(s[1], 2), rows_changed(all, 2)};
        snprintf(name, sizeof name, "hc_inject %d x %d", s[0], s[1]);
        CHECK(name, hc_inject, inject, 2e-6);
        rows_begin();
        struct streams_add_args add = {row_pass, s[0], s[1], rows_in(s[1], 2), rows_in(all, 2), rows_out(all)};
        snprintf(name, sizeof name, "streams_add %d x %d", s[0], s[1]);
        CHECK(name, streams_add, add, 0);
        rows_begin();
        struct ple_gate_args gate = {row_pass,         s[0],         s[1], rows_in(all, 2), rows_in(all, 2),
                                     rows_in(s[1], 2), rows_out(all)};
        snprintf(name, sizeof name, "ple_gate %d x %d", s[0], s[1]);
        CHECK(name, ple_gate, gate, 5e-6);
    }
}

static void test_mixtures(void)
{
    static const int shapes[][4] = {{512, 10, 0, 1}, {16, 4, 0, 0}, {130, 8, 1, 1}, {4, 1, 1, 0}, {1000, 32, 0, 1}};
    for (const int *s : shapes) {
        char name[64];
        rows_begin();
        float *logits = rows_in(s[0] + 3, 5);
        for (int i = 0; i < 3 * (s[0] + 3); i++)
            logits[i] = floorf(logits[i]); // ties
        struct route_args a = {row_pass,       s[0],          s[1],
                               s[2],           s[3],          s[0] + 3,
                               2.5f,           logits,        s[2] ? take_floats(s[0], 0.1f) : NULL,
                               rows_ids(s[1]), rows_out(s[1])};
        snprintf(name, sizeof name, "route %d of %d%s", s[1], s[0], s[2] ? ", sigmoid" : "");
        CHECK(name, route, a, 3e-6);
    }
    static const int sums[][2] = {{10, 2560}, {4, 130}, {1, 7}};
    for (const int *s : sums) {
        char name[64];
        rows_begin();
        struct moe_sum_args a = {row_pass,
                                 s[0],
                                 s[1],
                                 5,
                                 s[1],
                                 s[1],
                                 rows_in(s[0] * s[1], 2),
                                 rows_in(s[0], 1),
                                 s[0] > 1 ? rows_in(s[1], 2) : NULL,
                                 s[0] > 1 ? rows_in(5, 2) : NULL,
                                 rows_out(s[1])};
        snprintf(name, sizeof name, "moe_sum %d x %d", s[0], s[1]);
        CHECK(name, moe_sum, a, 2e-6);
    }
}

static void test_ngram(void)
{
    static const int shapes[][5] = {{ENC_FP8, 8, 0, 160, 160},        {ENC_BF16, 0, 0, 160, 320},
                                    {ENC_F32, 0, 0, 19, 76},          {ENC_AFFINE, 5, 32, 64, 40 + 8},
                                    {ENC_NVFP4, 4, 16, 160, 80 + 10}, {ENC_MXFP8, 8, 32, 160, 165},
                                    {ENC_F16, 0, 0, 24, 48}};
    enum { HEADS = 6, SIZE = 97 };
    for (const int *s : shapes) {
        char name[64];
        rows_begin();
        struct lane_set lanes = {};
        lanes.count = 2;
        for (int l = 0; l < 2; l++)
            lanes.lane[l] = take_lane(64, 200);
        for (int r = 0; r < MOST; r++)
            row_pass->position[r] = r < 4 ? r : rig_below(190);
        int64_t *multiplier = take<int64_t>(3), *size = take<int64_t>(HEADS), *offset = take<int64_t>(HEADS);
        for (int i = 0; i < 3; i++)
            multiplier[i] = (int64_t)(rig_next() | 1);
        for (int h = 0; h < HEADS; h++) {
            size[h] = SIZE - h;
            offset[h] = h * SIZE;
        }
        struct row_source *source = take<struct row_source>(1);
        memset(source, 0, sizeof *source);
        uint8_t *table = take<uint8_t>((int64_t)s[4] * HEADS * SIZE);
        for (int i = 0; i < s[4] * HEADS * SIZE; i++)
            table[i] = (uint8_t)(s[0] == ENC_F32 && i % 4 == 3                               ? 0x3f
                                 : s[0] == ENC_BF16 || s[0] == ENC_F16 || s[0] == ENC_AFFINE ? rig_below(60)
                                                                                             : rig_below(120));
        source->memory = table;
        source->row_bytes = s[4];
        slot(&source->memory);
        float *global = take<float>(1);
        *global = 0.75f;
        int32_t *failed = take<int32_t>(1);
        *failed = 0;
        struct ngram_args a = {row_pass, lanes,
                               HEADS,    s[3],
                               3,        7,
                               s[0],     s[1],
                               s[2],     multiplier,
                               size,     offset,
                               source,   s[0] == ENC_FP8 || s[0] == ENC_NVFP4 ? global : NULL,
                               failed,   rows_out(HEADS * s[3])};
        snprintf(name, sizeof name, "ngram encoding %d", s[0]);
        CHECK(name, ngram, a, 0);
    }
}

#endif
