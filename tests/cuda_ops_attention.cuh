// SPDX-License-Identifier: Apache-2.0
//
// Attention of decode rows over contexts of many tiles: against the CPU target, and the same bits for a row alone, in a
// window, in a launch of more rows, with other pages, and begun early; and of rows around the length from which they are cut, alone and
// in all company, which is what decides how many clusters share one. Faults that must be found: a counter that is not cleared, slots of
// another cluster, units of another length where there are fewer clusters, a row too many in its pass, a place in shared memory that is
// read before it is full or written before it is free.

#ifndef CUDA_OPS_ATTENTION_CUH
#define CUDA_OPS_ATTENTION_CUH

#include "tests/cuda_ops_rig.cuh"

enum { ATTEND_WINDOW = 3, ATTEND_CAPACITY = 24 };

struct attend_shape {
    int32_t heads, kv_heads, dim, context;
    int32_t keep; // blocks of a choice; 0: none is made
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
    t.args.scratch = take<uint8_t>(attention_scratch_bytes(s.dim));
    if (!s.keep)
        return t;
    int32_t *blocks = take<int32_t>(ATTEND_CAPACITY * s.keep), *counts = take<int32_t>(ATTEND_CAPACITY);
    t.args.ratio = 4;
    t.args.keep = s.keep;
    t.args.blocks = blocks;
    t.args.counts = counts;
    for (int32_t r = 0; r < ATTEND_CAPACITY; r++) {
        counts[r] = (s.context - ATTEND_WINDOW + r % ATTEND_WINDOW + 1) / 4 > s.keep ? s.keep : -1;
        for (int32_t i = 0; i < s.keep; i++)
            blocks[r * s.keep + i] = i * 2 + r % ATTEND_WINDOW % 2;
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
    a.blocks = a.blocks ? a.blocks + first * a.keep : NULL;
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
       s.kv_heads, s.dim, s.context, s.keep ? ", sparse" : "");
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

// ---- long rows --------------------------------------------------------------------------------------------------------------------

enum { LONG_ROWS = 10, LONG_LEAST = 2048 }; // rows of a launch; positions of one that is cut
enum { LONG_ALL = 24576 };                  // and of one that has all its clusters where they are more than run at once
// Up to the length from which the last units are short; and, for a larger context, around it.
static const int32_t long_counts[2][LONG_ROWS] = {{100, 2047, 2048, 2049, 8192, 7, 32, 33, 64, 65},
                                                  {31, 2080, 4096, 5000, 8191, 8192, 8193, 9000, 25000, 2047}};

// Rows first .. first + rows - 1 of the ten in a launch of `capacity`, to their places in out. Returns whether clusters left sums in
// scratch.
static bool long_run(struct attend *t, int32_t first, int32_t rows, int32_t capacity, float *out)
{
    struct attention_args a = t->args;
    const int32_t *counts = long_counts[t->context > long_counts[0][4]];
    pass_clear(t->pass);
    for (int32_t i = first; i < first + rows; i++)
        pass_add(t->pass, 0, counts[i] - 1, 1);
    a.q += (int64_t)first * t->width;
    a.gate += (int64_t)first * t->width;
    memset(a.y, 0xff, 4 * (size_t)(rows + 1) * (size_t)t->width);
    push_all();
    gpu(cuda_attention, &a, capacity);
    const float *seen = pull(a.y, (int64_t)(rows + 1) * t->width);
    memcpy(out + (int64_t)first * t->width, seen, 4 * (size_t)rows * (size_t)t->width);
    for (int32_t i = 0; i < t->width; i++) // a row that the pass does not have
        if (!same(seen + (int64_t)rows * t->width + i, a.y + (int64_t)rows * t->width + i, 4))
            memset(out, 0xff, 4 * (size_t)t->width);
    const uint32_t *slots = (const uint32_t *)t->args.scratch;
    if (!slots)
        return false;
    slots = pull(slots, attention_scratch_bytes(t->args.layout.dim) / 4);
    bool left = false;
    for (int64_t i = 0; i < attention_scratch_bytes(t->args.layout.dim) / 4; i++)
        left = left || slots[i] != 0xffffffffu;
    return left;
}

static void long_check(const struct attend_shape &s)
{
    struct attend t = attend_begin(s, 64);
    const int64_t all = (int64_t)LONG_ROWS * t.width, bytes = 4 * all;
    const int32_t groups = (s.heads / s.kv_heads + 15) / 16 * s.kv_heads,
                  *counts = long_counts[t.context > long_counts[0][4]];
    float *together = (float *)malloc((size_t)bytes), *other = (float *)malloc((size_t)bytes);
    bool shared = long_run(&t, 0, LONG_ROWS, LONG_ROWS, together), good = true;
    for (int32_t r = 0; r < LONG_ROWS; r++) { // whose rows of a lane are neighbours
        struct attention_args a = t.args;
        pass_clear(t.pass);
        pass_add(t.pass, 0, counts[r] - 1, 1);
        a.q += (int64_t)r * t.width;
        a.gate += (int64_t)r * t.width;
        a.y += (int64_t)r * t.width;
        cpu(&kernel_attention_portable, &a);
    }
    ok(close_to(together, t.args.y, all, 2e-5) && !shared,
       "attention %d/%d x %d, long rows: agrees with the CPU target", s.heads, s.kv_heads, s.dim);
    // As many at a time as make a row's clusters 1, 2, 4 and 8; every other launch is made for more of them.
    for (int32_t rows = 1; rows <= 8; rows *= 2) {
        memset(other, 0xff, (size_t)bytes);
        for (int32_t first = 0; first < LONG_ROWS; first += rows) {
            const int32_t count = LONG_ROWS - first < rows ? LONG_ROWS - first : rows;
            bool cut = false;
            for (int32_t r = first; r < first + count; r++)
                cut = cut ||
                      (counts[r] >= LONG_LEAST && count * groups <= 8 && (count * groups < 8 || counts[r] >= LONG_ALL));
            good = long_run(&t, first, count, first / rows % 2 ? ATTEND_CAPACITY : count, other) == cut && good;
        }
        good = same(other, together, bytes) && good;
    }
    ok(good, "attention %d/%d x %d, long rows: few at a time, with several clusters each, have the same bits", s.heads,
       s.kv_heads, s.dim);
    t.args.scratch = NULL;
    shared = long_run(&t, 0, 1, 1, other) || long_run(&t, 1, LONG_ROWS - 1, LONG_ROWS, other);
    ok(!shared && same(other, together, bytes), "attention, long rows: without scratch the same bits");
    if (s.dim != 64)
        return free(together), free(other);
    t.args.row_class = CLASS_PROMPT; // whose kernel for this dim is the same one, which leaves rows whole
    long_run(&t, 0, LONG_ROWS, LONG_ROWS, other);
    const int64_t row = 4 * t.width;
    bool changed = true;
    for (int32_t r = 0; r < LONG_ROWS; r++)
        changed = changed && (memcmp((char *)other + r * row, (char *)together + r * row, (size_t)row) != 0) ==
                                 (counts[r] >= LONG_LEAST);
    ok(changed, "attention: rows from 2,048 positions on are cut, and that shows in their bits; shorter ones are not");
    free(together);
    free(other);
}

static void test_attention(void)
{
    static const struct attend_shape shapes[] = {
        {12, 1, 256, ATTEND_WINDOW, 0}, {12, 1, 256, 100, 40}, {3, 1, 64, 2330, 0},
        {8, 1, 128, 420, 40},           {8, 1, 256, 1900, 0},
#ifndef CUDA_EMULATION
        {24, 2, 256, 128, 40},          {24, 2, 256, 2049, 0}, {24, 4, 256, 5000, 0},
        {24, 2, 256, 700, 40},          {16, 1, 128, 3000, 0}, {20, 4, 64, 9000, 0},
#endif
    };
    for (const struct attend_shape &s : shapes)
        attend_check(s);
}

static void test_long(void)
{
    static const struct attend_shape lengths[] = {
        {3, 1, 64, 8192, 0},
#ifndef CUDA_EMULATION
        {16, 2, 256, 8192, 0}, {16, 2, 256, 25000, 0}, {12, 1, 128, 25000, 0}, {40, 4, 64, 25000, 0},
#endif
    };
    for (const struct attend_shape &s : lengths)
        long_check(s);
    attend_check({3, 1, 64, 4200, 515}); // choices that are long
#ifndef CUDA_EMULATION
    attend_check({24, 2, 256, 9000, 512});
#endif
}

#endif
