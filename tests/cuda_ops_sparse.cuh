// SPDX-License-Identifier: Apache-2.0
//
// Attention of prompt rows that chose blocks: against sums in double precision over what they chose, and the same bits whatever rows share
// a pass, for any pages and capacity. Rows lie at the ends of tiles, of chunks of choices, and where rows begin to go another way.
// Faults that must be found: another number in a block that a row chose. Faults that must not show: numbers in a block that only its
// neighbours chose.

#ifndef CUDA_OPS_SPARSE_CUH
#define CUDA_OPS_SPARSE_CUH

#include "tests/cuda_ops_dense.cuh"

enum { SPARSE_LANES = 2, SPARSE_KEEP = 20, SPARSE_RATIO = 4, SPARSE_MOST = 64 };

struct sparse_rig {
    struct attention_args args;
    struct pass *pass;
    int32_t width, rows, lane[SPARSE_MOST], position[SPARSE_MOST];
    float *q, *gate, *y;                                                                       // of all rows
    int32_t blocks[SPARSE_MOST][SPARSE_KEEP], counts[SPARSE_MOST], pages, lanes[SPARSE_LANES]; // positions of lanes
};

// Rows' choices: half of them near the row, half anywhere.
static void sparse_choose(struct sparse_rig *t, int32_t r)
{
    const int32_t n = (t->position[r] + 1) / SPARSE_RATIO;
    uint8_t *taken = (uint8_t *)calloc((size_t)n + 1, 1);
    t->counts[r] = n <= SPARSE_KEEP ? -1 : SPARSE_KEEP;
    for (int32_t i = 0; i < SPARSE_KEEP && n > SPARSE_KEEP;) {
        const int32_t near = n < 100 ? n : 100, block = i % 2 ? rig_below(n) : n - 1 - rig_below(near);
        i += !taken[block];
        taken[block] = 1;
    }
    for (int32_t b = 0, i = 0; b < n && n > SPARSE_KEEP; b++)
        if (taken[b])
            t->blocks[r][i++] = b;
    free(taken);
}

static bool sparse_has(const struct sparse_rig *t, int32_t r, int32_t block)
{
    const int32_t n = (t->position[r] + 1) / SPARSE_RATIO;
    bool has = t->counts[r] < 0 || block == n;
    for (int32_t i = 0; i < t->counts[r]; i++)
        has = has || t->blocks[r][i] == block;
    return has && block <= n;
}

// The numbers of a position's keys or values.
static uint8_t *sparse_row(const struct sparse_rig *t, int32_t l, int32_t position, int32_t part)
{
    const struct attention_args *a = &t->args;
    const int32_t page = a->lanes.page;
    return a->lanes.pages + a->lanes.table[l][position / page] * a->lanes.page_bytes + page * 32 +
           (part * page + position % page) * a->layout.key_bytes;
}

static struct sparse_rig sparse_open(const struct dense_shape &s, int32_t page, bool descend)
{
    static const int32_t runs[][3] = {{0, 62, 3}, {0, 2045, 5}, {0, 8189, 5}, {1, 158, 1}, {1, 190, 3}};
    struct sparse_rig t = {};
    rig_reset();
    struct attention_args &a = t.args;
    const int32_t each = s.encoding == KV_F32 ? 4 : 2, all = s.kv_heads * s.dim;
    t.width = s.heads * s.dim;
    a.layout.encoding = a.layout.index_encoding = s.encoding;
    a.layout.kv_heads = s.kv_heads;
    a.layout.dim = s.dim;
    a.layout.base = 32;
    a.layout.key_bytes = each * all;
    a.lanes.count = SPARSE_LANES;
    a.lanes.page = page;
    a.lanes.page_bytes = page * (32 + 2 * a.layout.key_bytes);
    for (const auto &run : runs)
        for (int32_t i = 0; i < run[2]; i++) {
            t.lane[t.rows] = run[0];
            t.position[t.rows++] = run[1] + i;
            t.lanes[run[0]] = run[1] + i + 1;
        }
    for (int32_t l = 0; l < SPARSE_LANES; l++)
        t.pages += (t.lanes[l] + page - 1) / page;
    a.lanes.pages = take<uint8_t>(a.lanes.page_bytes * t.pages);
    rig_state = 99;
    for (int32_t l = 0, used = 0; l < SPARSE_LANES; l++) {
        const int32_t pages = (t.lanes[l] + page - 1) / page;
        uint32_t *table = take<uint32_t>(pages);
        for (int32_t i = 0; i < pages; i++)
            table[i] = (uint32_t)(descend ? t.pages - 1 - used - i : used + i);
        used += pages;
        a.lanes.table[l] = table;
        a.lanes.lane[l] = take_lane(64, 8);
        for (int32_t i = 0; i < 2 * t.lanes[l]; i++)
            for (int32_t d = 0; d < all; d++) {
                const uint32_t code = (uint32_t)(0x3e80 + (rig_next() >> 20 & 0x80ff));
                const float x = dense_number(code);
                memcpy(sparse_row(&t, l, i / 2, i % 2) + d * each,
                       s.encoding == KV_F32 ? (const void *)&x : (const void *)&code, (size_t)each);
            }
    }
    for (int32_t r = 0; r < t.rows; r++)
        sparse_choose(&t, r);
    t.q = take_floats((int64_t)t.rows * t.width, 1);
    t.gate = take_floats((int64_t)t.rows * t.width, 2);
    t.y = take<float>((int64_t)t.rows * t.width);
    a.pass = t.pass = take_pass(1000);
    a.heads = s.heads;
    a.ldq = a.ldg = a.ldy = t.width;
    a.gate_stride = s.dim;
    a.ratio = SPARSE_RATIO;
    a.keep = SPARSE_KEEP;
    a.scale = 0.4f;
    a.q = take<float>((int64_t)t.rows * t.width);
    a.gate = take<float>((int64_t)t.rows * t.width);
    a.y = take<float>((int64_t)t.rows * t.width);
    a.blocks = take<int32_t>((int64_t)t.rows * SPARSE_KEEP);
    a.counts = take<int32_t>(t.rows);
    a.row_class = CLASS_PROMPT;
    return t;
}

// Rows first .. first + rows - 1 in a launch of `capacity`, to their places in t->y.
static void sparse_run(struct sparse_rig *t, int32_t first, int32_t rows, int32_t capacity)
{
    struct pass *p = t->pass;
    const size_t width = (size_t)t->width;
    pass_clear(p);
    for (int32_t r = first; r < first + rows; r++) {
        p->lane[p->rows] = t->lane[r];
        p->position[p->rows++] = t->position[r];
    }
    memcpy((float *)t->args.q, t->q + first * t->width, 4 * (size_t)rows * width);
    memcpy((float *)t->args.gate, t->gate + first * t->width, 4 * (size_t)rows * width);
    memcpy((int32_t *)t->args.blocks, t->blocks[first], sizeof t->blocks[0] * (size_t)rows);
    memcpy((int32_t *)t->args.counts, t->counts + first, 4 * (size_t)rows);
    memset(t->args.y, 0xff, 4 * (size_t)t->rows * width);
    push_all();
    gpu(cuda_attention, &t->args, capacity);
    memcpy(t->y + first * t->width, pull(t->args.y, (int64_t)rows * t->width), 4 * (size_t)rows * width);
}

// A row's outputs in double precision.
static void sparse_reference(const struct sparse_rig *t, int32_t r, float *y)
{
    const struct attention_args *a = &t->args;
    const int32_t dim = a->layout.dim, count = t->position[r] + 1;
    double *weight = (double *)malloc(sizeof(double) * (size_t)count);
    auto number = [&](int32_t i, int32_t part, int32_t at) {
        const uint8_t *row = sparse_row(t, t->lane[r], i, part);
        return (double)(a->layout.encoding == KV_F32 ? ((const float *)row)[at]
                                                     : dense_number(((const uint16_t *)row)[at]));
    };
    for (int32_t h = 0; h < a->heads; h++) {
        const int32_t kv = h / (a->heads / a->layout.kv_heads) * dim, at = r * t->width + h * dim;
        double top = -INFINITY, total = 0;
        for (int32_t i = 0; i < count; i++) {
            weight[i] = sparse_has(t, r, i / SPARSE_RATIO) ? 0 : -INFINITY;
            for (int32_t d = 0; d < dim && weight[i] != -INFINITY; d++)
                weight[i] += (double)a->scale * (double)t->q[at + d] * number(i, 0, kv + d);
            top = weight[i] > top ? weight[i] : top;
        }
        for (int32_t i = 0; i < count; i++)
            total += weight[i] = exp(weight[i] - top);
        for (int32_t d = 0; d < dim; d++) {
            double sum = 0;
            for (int32_t i = 0; i < count; i++)
                sum += weight[i] > 0 ? weight[i] * number(i, 1, kv + d) : 0;
            y[h * dim + d] = (float)(sum / total / (1 + exp(-(double)t->gate[at + d])));
        }
    }
    free(weight);
}

static bool sparse_equal(const struct sparse_rig *t, const float *kept, int32_t r)
{
    return memcmp(t->y + r * t->width, kept + r * t->width, 4 * (size_t)t->width) == 0;
}

static void sparse_check_numbers(struct sparse_rig *t, const struct dense_shape &s)
{
    float *want = (float *)malloc(4 * (size_t)t->width);
    bool close = true;
    for (int32_t r = 0; r < t->rows; r++) {
        sparse_reference(t, r, want);
        close = close && close_to(t->y + r * t->width, want, t->width, s.bound);
    }
    ok(close, "sparse %d/%d x %d: agrees with sums in double precision to %g", s.heads, s.kv_heads, s.dim, s.bound);
    free(want);
}

static void sparse_check_bits(const struct dense_shape &s, const float *kept)
{
    static const struct {
        int32_t page, chunk, capacity;
        bool descend;
    } settings[] = {{16, 64, 200, false}, {64, 1, 1, true}, {256, 5, 64, true}, {12, 11, 0, false}};
    for (const auto &how : settings) {
        struct sparse_rig t = sparse_open(s, how.page, how.descend);
        bool equal = true;
        for (int32_t at = 0; at < t.rows; at += how.chunk) {
            const int32_t rows = t.rows - at < how.chunk ? t.rows - at : how.chunk;
            sparse_run(&t, at, rows, how.capacity ? how.capacity : rows);
        }
        for (int32_t r = 0; r < t.rows; r++)
            equal = equal && sparse_equal(&t, kept, r);
        ok(equal, "sparse %d/%d x %d: same bits with pages of %d, %d rows a pass, capacity %d", s.heads, s.kv_heads,
           s.dim, how.page, how.chunk, how.capacity);
    }
}

// Other numbers in a block that row 7 chose and row 8 did not.
static void sparse_check_company(const struct dense_shape &s, const float *kept)
{
    enum { MINE = 5, OTHER = 6 };
    struct sparse_rig t = sparse_open(s, 32, true);
    int32_t block = 0;
    while (!sparse_has(&t, MINE, block) || sparse_has(&t, OTHER, block))
        block++;
    for (int part = 0; part < 2; part++)
        for (int32_t d = 0; d < s.kv_heads * s.dim; d += s.dim)
            sparse_row(&t, t.lane[MINE], block * SPARSE_RATIO,
                       part)[d * (s.encoding == KV_F32 ? 4 : 2) + (s.encoding == KV_F32 ? 3 : 1)] ^= 0x80;
    sparse_run(&t, 0, t.rows, t.rows);
    ok(!sparse_equal(&t, kept, MINE), "sparse: another number in a chosen block is found");
    ok(sparse_equal(&t, kept, OTHER), "sparse %d/%d x %d: a row does not see what its neighbours chose", s.heads,
       s.kv_heads, s.dim);
}

static void test_sparse(void)
{
    static const struct dense_shape shapes[] = {
        {12, 1, 128, KV_BF16, {}, 5e-5},
#ifndef CUDA_EMULATION
        {24, 2, 256, KV_BF16, {}, 5e-5},
        {32, 2, 128, KV_F32, {}, 2e-2},
#endif
    };
    for (const struct dense_shape &s : shapes) {
        struct sparse_rig t = sparse_open(s, 64, false);
        sparse_run(&t, 0, t.rows, t.rows);
        const size_t bytes = 4 * (size_t)t.rows * (size_t)t.width;
        float *kept = (float *)malloc(bytes);
        memcpy(kept, t.y, bytes);
        sparse_check_numbers(&t, s);
        sparse_check_bits(s, kept);
        sparse_check_company(s, kept);
        free(kept);
    }
}

#endif
