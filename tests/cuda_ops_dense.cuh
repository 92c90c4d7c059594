// SPDX-License-Identifier: Apache-2.0
//
// Dense attention of prompt rows: against sums in double precision, and the same bits for a row whatever rows and lanes are in its pass,
// wherever a chunk begins, for any pages and any capacity, which is what decides how many pairs a block has.
// Faults that must be found: another number in the cache of the row's lane. Faults that must not show: numbers behind a row's position,
// and those of another lane.

#ifndef CUDA_OPS_DENSE_CUH
#define CUDA_OPS_DENSE_CUH

#include "tests/cuda_ops_rig.cuh"

enum { DENSE_LANES = 2 };

struct dense_shape {
    int32_t heads, kv_heads, dim, encoding;
    int32_t context[DENSE_LANES]; // positions of each lane, and rows
    double bound;
};

struct dense_rig {
    struct attention_args args;
    struct pass *pass;
    int32_t width, capacity;
    float *q[DENSE_LANES], *gate[DENSE_LANES], *y[DENSE_LANES]; // by lane and position
};

static float dense_number(uint32_t bits)
{
    float x;
    bits <<= 16;
    memcpy(&x, &bits, 4);
    return x;
}

// Lanes with pages of `page` positions, which ascend or descend. What they hold follows from the lane and the position alone; what lies
// behind a lane's last position is no number.
static struct dense_rig dense_open(const struct dense_shape &s, int32_t page, bool descend)
{
    struct dense_rig t = {};
    rig_reset();
    const int32_t each = s.encoding == KV_F32 ? 4 : 2, all = s.kv_heads * s.dim;
    struct attention_args &a = t.args;
    t.width = s.heads * s.dim;
    t.capacity = s.context[0] + s.context[1];
    a.layout.encoding = a.layout.index_encoding = s.encoding;
    a.layout.kv_heads = s.kv_heads;
    a.layout.dim = s.dim;
    a.layout.base = 32;
    a.layout.key_bytes = each * all;
    a.lanes.count = DENSE_LANES;
    a.lanes.page = page;
    a.lanes.page_bytes = page * (32 + 2 * a.layout.key_bytes);
    int32_t pages[DENSE_LANES], sum = 0;
    for (int32_t l = 0; l < DENSE_LANES; l++)
        sum += pages[l] = (s.context[l] + page - 1) / page;
    a.lanes.pages = take<uint8_t>(a.lanes.page_bytes * sum);
    rig_state = 99;
    for (int32_t l = 0, used = 0; l < DENSE_LANES; used += pages[l++]) {
        uint32_t *table = take<uint32_t>(pages[l]);
        for (int32_t i = 0; i < pages[l]; i++)
            table[i] = (uint32_t)(descend ? sum - 1 - used - i : used + i);
        a.lanes.table[l] = table;
        a.lanes.lane[l] = take_lane(64, 8);
        for (int32_t i = 0; i < s.context[l]; i++)
            for (int part = 0; part < 2; part++) {
                uint8_t *row = a.lanes.pages + table[i / page] * a.lanes.page_bytes + page * 32 +
                               (part * page + i % page) * a.layout.key_bytes;
                for (int32_t d = 0; d < all; d++) {
                    const uint32_t code = (uint32_t)(0x3e80 + (rig_next() >> 20 & 0x80ff));
                    const float x = dense_number(code);
                    memcpy(row + d * each, s.encoding == KV_F32 ? (const void *)&x : (const void *)&code, (size_t)each);
                }
            }
        t.q[l] = take_floats((int64_t)s.context[l] * t.width, 1);
        t.gate[l] = take_floats((int64_t)s.context[l] * t.width, 2);
        t.y[l] = take<float>((int64_t)s.context[l] * t.width);
    }
    a.pass = t.pass = take_pass(t.capacity);
    a.heads = s.heads;
    a.ldq = a.ldg = a.ldy = t.width;
    a.gate_stride = s.dim;
    a.scale = 0.4f;
    a.q = take<float>((int64_t)t.capacity * t.width);
    a.gate = take<float>((int64_t)t.capacity * t.width);
    a.y = take<float>((int64_t)t.capacity * t.width);
    a.row_class = CLASS_PROMPT;
    return t;
}

// Rows first .. first + rows - 1 of each lane (rows 0: none) in a launch of `capacity`, to their places in t->y.
static void dense_run(struct dense_rig *t, const int32_t *first, const int32_t *rows, int32_t capacity)
{
    pass_clear(t->pass);
    float *q = (float *)t->args.q, *gate = (float *)t->args.gate;
    const size_t width = (size_t)t->width;
    for (int32_t l = 0; l < DENSE_LANES; l++) {
        const int64_t at = (int64_t)t->pass->rows * t->width, from = (int64_t)first[l] * t->width;
        if (rows[l] > 0)
            pass_add(t->pass, l, first[l], rows[l]);
        memcpy(q + at, t->q[l] + from, 4 * (size_t)rows[l] * width);
        memcpy(gate + at, t->gate[l] + from, 4 * (size_t)rows[l] * width);
    }
    memset(t->args.y, 0xff, 4 * (size_t)t->capacity * width);
    push_all();
    gpu(cuda_attention, &t->args, capacity);
    const float *y = pull(t->args.y, (int64_t)t->pass->rows * t->width);
    for (int32_t l = 0; l < DENSE_LANES; y += rows[l++] * t->width)
        memcpy(t->y[l] + (int64_t)first[l] * t->width, y, 4 * (size_t)rows[l] * width);
}

// One row's outputs in double precision.
static void dense_reference(const struct dense_rig *t, int32_t l, int32_t position, float *y)
{
    const struct attention_args *a = &t->args;
    const int32_t dim = a->layout.dim, page = a->lanes.page;
    double *weight = (double *)malloc(sizeof(double) * (size_t)(position + 1));
    auto number = [&](int32_t i, int32_t part, int32_t at) {
        const uint8_t *row = a->lanes.pages + a->lanes.table[l][i / page] * a->lanes.page_bytes +
                             page * a->layout.base + (part * page + i % page) * a->layout.key_bytes;
        return (double)(a->layout.encoding == KV_F32 ? ((const float *)row)[at]
                                                     : dense_number(((const uint16_t *)row)[at]));
    };
    for (int32_t h = 0; h < a->heads; h++) {
        const int32_t kv = h / (a->heads / a->layout.kv_heads) * dim;
        const int64_t at = (int64_t)position * t->width + h * dim;
        double top = -INFINITY, total = 0;
        for (int32_t i = 0; i <= position; i++) {
            weight[i] = 0;
            for (int32_t d = 0; d < dim; d++)
                weight[i] += (double)a->scale * (double)t->q[l][at + d] * number(i, 0, kv + d);
            top = weight[i] > top ? weight[i] : top;
        }
        for (int32_t i = 0; i <= position; i++)
            total += weight[i] = exp(weight[i] - top);
        for (int32_t d = 0; d < dim; d++) {
            double sum = 0;
            for (int32_t i = 0; i <= position; i++)
                sum += weight[i] * number(i, 1, kv + d);
            y[h * dim + d] = (float)(sum / total / (1 + exp(-(double)t->gate[l][at + d])));
        }
    }
    free(weight);
}

// All rows of both lanes, a chunk of each at a time; chunk 0: all at once.
static void dense_chunks(struct dense_rig *t, const struct dense_shape &s, const int32_t *chunk, int32_t capacity)
{
    for (int32_t at[DENSE_LANES] = {}; at[0] < s.context[0] || at[1] < s.context[1];) {
        int32_t rows[DENSE_LANES];
        for (int32_t l = 0; l < DENSE_LANES; l++) {
            const int32_t left = s.context[l] - at[l];
            rows[l] = chunk[l] && chunk[l] < left ? chunk[l] : left;
        }
        dense_run(t, at, rows, capacity ? capacity : rows[0] + rows[1]);
        for (int32_t l = 0; l < DENSE_LANES; l++)
            at[l] += rows[l];
    }
}

// What is kept of a run to compare others with.
struct dense_kept {
    float *y[DENSE_LANES];
};

static struct dense_kept dense_keep_outputs(const struct dense_rig *t, const struct dense_shape &s)
{
    struct dense_kept kept;
    for (int32_t l = 0; l < DENSE_LANES; l++) {
        const size_t bytes = 4 * (size_t)s.context[l] * (size_t)t->width;
        kept.y[l] = (float *)malloc(bytes);
        memcpy(kept.y[l], t->y[l], bytes);
    }
    return kept;
}

// Whether rows from .. to - 1 of a lane are what was kept.
static bool dense_equal(const struct dense_rig *t, const struct dense_kept *kept, int32_t l, int32_t from, int32_t to)
{
    return memcmp(t->y[l] + (int64_t)from * t->width, kept->y[l] + (int64_t)from * t->width,
                  4 * (size_t)(to - from) * (size_t)t->width) == 0;
}

static void dense_check_numbers(struct dense_rig *t, const struct dense_shape &s)
{
    float *want = (float *)malloc(4 * (size_t)t->width);
    bool close = true;
    for (int32_t l = 0; l < DENSE_LANES; l++)
        for (int32_t at = 0; at < s.context[l]; at += at % 16 == 0 ? 15 : 1) {
            dense_reference(t, l, at, want);
            close = close && close_to(t->y[l] + (int64_t)at * t->width, want, t->width, s.bound);
        }
    ok(close, "dense %d/%d x %d: agrees with sums in double precision to %g", s.heads, s.kv_heads, s.dim, s.bound);
    free(want);
}

static void dense_check_bits(const struct dense_shape &s, const struct dense_kept *kept)
{
    static const struct {
        int32_t page, chunk[DENSE_LANES], capacity;
        bool descend;
    } settings[] = {
        {16, {0, 0}, 2000, false}, {64, {62, 20}, 0, true}, {12, {50, 50}, 100, true}, {256, {90, 9}, 400, false}};
    for (const auto &how : settings) {
        struct dense_rig t = dense_open(s, how.page, how.descend);
        dense_chunks(&t, s, how.chunk, how.capacity);
        bool equal = true;
        for (int32_t l = 0; l < DENSE_LANES; l++)
            equal = equal && dense_equal(&t, kept, l, 0, s.context[l]);
        ok(equal, "dense %d/%d x %d: same bits with pages of %d, chunks of %d and %d, capacity %d", s.heads, s.kv_heads,
           s.dim, how.page, how.chunk[0], how.chunk[1], how.capacity);
    }
}

// Rows alone, and what other numbers in the caches change.
static void dense_check_company(const struct dense_shape &s, const struct dense_kept *kept)
{
    struct dense_rig t = dense_open(s, 32, true);
    bool equal = true;
    static const int32_t alone[] = {0, 1, 63, 64, 65};
    for (int32_t at : alone)
        for (int32_t l = 0; l < DENSE_LANES; l++) {
            const int32_t first[] = {l ? 0 : at, l ? at : 0}, rows[] = {!l, l};
            if (at >= s.context[l])
                continue;
            dense_run(&t, first, rows, l ? 1 : 30);
            equal = equal && dense_equal(&t, kept, l, at, at + 1);
        }
    ok(equal, "dense %d/%d x %d: rows alone have the same bits", s.heads, s.kv_heads, s.dim);
    const int32_t last = s.context[0] - 1, zero[DENSE_LANES] = {}, rows[] = {s.context[0], s.context[1]};
    for (int part = 0; part < 2; part++) {
        uint8_t *row = t.args.lanes.pages + t.args.lanes.table[0][last / 32] * t.args.lanes.page_bytes + 32 * 32 +
                       (part * 32 + last % 32) * t.args.layout.key_bytes;
        const int32_t high = s.encoding == KV_F32 ? 3 : 1;
        for (int32_t d = 0; d < 8; d++) // of one dim, of every kv head
            row[t.args.layout.key_bytes / 8 * d + high] ^= 0x80;
    }
    dense_run(&t, zero, rows, t.capacity);
    ok(dense_equal(&t, kept, 0, 0, last) && dense_equal(&t, kept, 1, 0, s.context[1]),
       "dense %d/%d x %d: rows before a position and of another lane do not see it", s.heads, s.kv_heads, s.dim);
    ok(!dense_equal(&t, kept, 0, last, last + 1), "dense: another number in the cache is found");
}

static void test_dense(void)
{
    static const struct dense_shape shapes[] = {
        {6, 1, 256, KV_BF16, {80, 30}, 5e-5},    {4, 2, 128, KV_BF16, {40, 129}, 5e-5},
        {3, 1, 128, KV_F32, {66, 5}, 2e-2},
#ifndef CUDA_EMULATION
        {24, 4, 256, KV_BF16, {300, 150}, 5e-5}, {16, 2, 256, KV_BF16, {400, 64}, 5e-5},
        {8, 2, 256, KV_F32, {130, 130}, 2e-2},   {40, 2, 128, KV_BF16, {200, 300}, 5e-5},
#endif
    };
    for (const struct dense_shape &s : shapes) {
        static const int32_t whole[DENSE_LANES] = {};
        struct dense_rig t = dense_open(s, 64, false);
        dense_chunks(&t, s, whole, 0);
        const struct dense_kept kept = dense_keep_outputs(&t, s);
        dense_check_numbers(&t, s);
        dense_check_bits(s, &kept);
        dense_check_company(s, &kept);
        for (int32_t l = 0; l < DENSE_LANES; l++)
            free(kept.y[l]);
    }
}

#endif
