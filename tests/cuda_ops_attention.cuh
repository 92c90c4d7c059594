// SPDX-License-Identifier: Apache-2.0
//
// Attention of decode rows over contexts of many tiles: against the CPU target, and the same bits for a row alone, in a
// window, in a launch of more rows, with other pages, and begun early.

#ifndef CUDA_OPS_ATTENTION_CUH
#define CUDA_OPS_ATTENTION_CUH

#include "tests/cuda_ops_rig.cuh"

enum { ATTEND_WINDOW = 3, ATTEND_CAPACITY = 24, ATTEND_KEEP = 40 };

struct attend_shape {
    int32_t heads, kv_heads, dim, context;
    bool sparse;
};

// One lane with `context` positions and a row at each of the last ATTEND_WINDOW of them.
struct attend {
    struct attention_args args;
    struct pass *pass;
    int32_t context, width;
};

// The caches' numbers and the rows' depend on the seed and the position, not on pages.
static struct attend attend_begin(const struct attend_shape &s, int32_t page)
{
    struct attend t = {};
    rig_reset();
    rig_state = 77;
    const int32_t pages = (s.context + page - 1) / page, width = s.kv_heads * s.dim;
    struct lane_set lanes = {};
    struct kv_layout kv = {};
    kv.encoding = kv.index_encoding = KV_BF16;
    kv.kv_heads = s.kv_heads;
    kv.dim = s.dim;
    kv.key_bytes = 2 * width;
    lanes.count = 1;
    lanes.page = page;
    lanes.page_bytes = page * 2 * kv.key_bytes;
    lanes.pages = take<uint8_t>(lanes.page_bytes * pages);
    uint32_t *table = take<uint32_t>(pages);
    for (int32_t i = 0; i < pages; i++)
        table[i] = (uint32_t)(pages - 1 - i);
    lanes.table[0] = table;
    lanes.lane[0] = take_lane(64, 8);
    for (int32_t i = 0; i < s.context; i++)
        for (int part = 0; part < 2; part++)
            for (int32_t d = 0; d < width; d++)
                ((uint16_t *)(lanes.pages + table[i / page] * lanes.page_bytes))[(part * page + i % page) * width + d] =
                    (uint16_t)(0x3e80 + (rig_next() & 0x80ff));
    t.context = s.context;
    t.width = s.heads * s.dim;
    t.pass = take_pass(ATTEND_CAPACITY);
    const int64_t all = (int64_t)ATTEND_CAPACITY * t.width;
    t.args.pass = t.pass;
    t.args.lanes = lanes;
    t.args.layout = kv;
    t.args.heads = s.heads;
    t.args.ldq = t.args.ldg = t.args.ldy = t.width;
    t.args.gate_stride = s.dim;
    t.args.scale = 0.3f;
    t.args.q = take_floats(all, 1);
    t.args.gate = take_floats(all, 2);
    t.args.y = take<float>(all);
    t.args.row_class = CLASS_DECODE;
    if (!s.sparse)
        return t;
    int32_t *blocks = take<int32_t>(ATTEND_CAPACITY * ATTEND_KEEP), *counts = take<int32_t>(ATTEND_CAPACITY);
    t.args.ratio = 4;
    t.args.keep = ATTEND_KEEP;
    t.args.blocks = blocks;
    t.args.counts = counts;
    for (int32_t r = 0; r < ATTEND_CAPACITY; r++) {
        counts[r] = (s.context - ATTEND_WINDOW + r % ATTEND_WINDOW + 1) / 4 > ATTEND_KEEP ? ATTEND_KEEP : -1;
        for (int32_t i = 0; i < ATTEND_KEEP; i++)
            blocks[r * ATTEND_KEEP + i] = i * 2 + r % ATTEND_WINDOW % 2;
    }
    return t;
}

// Rows first .. first + rows - 1 of the window on the device; out has a place for each row of it. q and gate move with
// the rows.
static void attend_run(struct attend *t, int32_t first, int32_t rows, int32_t capacity, int early, float *out)
{
    struct attention_args a = t->args;
    pass_clear(t->pass);
    pass_add(t->pass, 0, t->context - ATTEND_WINDOW + first, rows);
    a.q += (int64_t)first * t->width;
    a.gate += (int64_t)first * t->width;
    a.counts = a.counts ? a.counts + first : NULL;
    a.blocks = a.blocks ? a.blocks + first * ATTEND_KEEP : NULL;
    a.early = early;
    memset(a.y, 0xff, 4 * (size_t)rows * (size_t)t->width);
    push_all();
    gpu(cuda_attention, &a, capacity);
    memcpy(out + (int64_t)first * t->width, pull(a.y, (int64_t)rows * t->width), 4 * (size_t)rows * (size_t)t->width);
}

static void attend_check(const struct attend_shape &s)
{
    struct attend t = attend_begin(s, 64);
    const int64_t all = (int64_t)ATTEND_WINDOW * t.width, bytes = 4 * all;
    float *window = (float *)malloc((size_t)bytes), *other = (float *)malloc((size_t)bytes);
    attend_run(&t, 0, ATTEND_WINDOW, ATTEND_WINDOW, 0, window);
    cpu(&kernel_attention_portable, &t.args);
    ok(close_to(window, t.args.y, all, 2e-5), "attention %d/%d x %d at %d%s: agrees with the CPU target", s.heads,
       s.kv_heads, s.dim, s.context, s.sparse ? ", sparse" : "");
    for (int32_t r = 0; r < ATTEND_WINDOW; r++)
        attend_run(&t, r, 1, 1, r % 2, other);
    bool equal = same(other, window, bytes);
    attend_run(&t, 0, ATTEND_WINDOW, ATTEND_CAPACITY, 1, other);
    equal = same(other, window, bytes) && equal;
    t = attend_begin(s, 12);
    attend_run(&t, 0, 2, 2, 1, other);
    attend_run(&t, 2, 1, 16, 0, other);
    equal = same(other, window, bytes) && equal;
    ok(equal, "attention %d/%d x %d at %d: a row alone, early, of many, with other pages has the same bits", s.heads,
       s.kv_heads, s.dim, s.context);
    ((uint16_t *)(t.args.lanes.pages + t.args.lanes.table[0][0] * t.args.lanes.page_bytes))[5] ^= 0x40;
    attend_run(&t, 0, ATTEND_WINDOW, ATTEND_WINDOW, 0, other);
    ok(!same(other, window, bytes), "attention: another number in the cache is found");
    free(window);
    free(other);
}

static void test_attention(void)
{
    static const struct attend_shape shapes[] = {
        {12, 1, 256, ATTEND_WINDOW, false},
        {12, 1, 256, 100, true},
        {3, 1, 64, 2330, false},
        {8, 1, 128, 420, true},
#ifndef CUDA_EMULATION
        {24, 2, 256, 128, true},
        {24, 2, 256, 2049, false},
        {24, 4, 256, 5000, false},
        {24, 2, 256, 700, true},
        {16, 1, 128, 3000, false},
        {20, 4, 64, 9000, false},
#endif
    };
    for (const struct attend_shape &s : shapes)
        attend_check(s);
}

#endif
