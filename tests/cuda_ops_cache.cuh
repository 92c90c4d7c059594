// SPDX-License-Identifier: Apache-2.0
//
// kv_append, index_pool, index_select and attention on the device: caches equal to the CPU target's in bits, choices and outputs
// against it, and bit for bit across page sizes, orders of pages, chunks of a prompt, lanes and capacities.

#ifndef CUDA_OPS_CACHE_CUH
#define CUDA_OPS_CACHE_CUH

#include "tests/cuda_ops_rig.cuh"

#ifdef CUDA_EMULATION
enum { CACHE_ROWS = 50 };
#else
enum { CACHE_ROWS = 150 };
#endif
enum { CACHE_LANES = 2, RATIO = 4, MOST_PAGES = 64 };

struct cache_shape {
    const char *name;
    int32_t heads, kv_heads, dim, index_heads, index_dim, rotary, keep, encoding;
    double bound;
    int32_t row_class;
};

struct cache_setting {
    int32_t page, chunk, order,
        capacity; // order 0: ascending, 1: descending, 2: shuffled; capacity 0: the rows of the pass
};

// The whole rig of one run: rows of a pass, caches, what came out.
struct cache_rig {
    const struct cache_shape *s;
    struct pass *pass;
    struct lane_set lanes;
    struct kv_layout layout;
    float *k, *v, *index, *q, *iq, *gate, *y; // rows of a pass
    int32_t *blocks, *counts;
    float *w, *frequency;
    int64_t arena_bytes;
};

// What a lane puts in, and what comes out of it.
struct cache_script {
    float *k, *v, *index, *q, *iq, *gate, *y;
    int32_t *blocks, *counts;
};

static int64_t cache_layout(struct cache_rig *c, const struct cache_setting *how)
{
    const struct cache_shape *s = c->s;
    const int32_t width = s->kv_heads * s->dim;
    c->layout = {};
    c->layout.encoding = s->encoding;
    c->layout.kv_heads = s->kv_heads;
    c->layout.dim = s->dim;
    c->layout.index_dim = s->index_dim;
    c->layout.index_encoding = s->encoding == KV_F32 ? KV_F32 : KV_BF16;
    c->layout.base = 32;
    c->layout.key_bytes = s->encoding == KV_F32    ? 4 * width
                          : s->encoding == KV_BF16 ? 2 * width
                                                   : width + 4 * s->kv_heads;
    c->layout.index_bytes = s->index_dim * (s->encoding == KV_F32 ? 4 : 2);
    return how->page * (32 + 2 * c->layout.key_bytes + c->layout.index_bytes + c->layout.index_bytes / RATIO);
}

static void cache_open(struct cache_rig *c, const struct cache_shape *s, const struct cache_setting *how)
{
    rig_reset();
    c->s = s;
    const int32_t pages = (CACHE_ROWS + how->page - 1) / how->page, all = CACHE_LANES * pages,
                  rows = CACHE_LANES * CACHE_ROWS;
    c->lanes = {};
    c->lanes.count = CACHE_LANES + 1; // and a null lane
    c->lanes.page = how->page;
    c->lanes.page_bytes = cache_layout(c, how);
    c->arena_bytes = c->lanes.page_bytes * all;
    c->lanes.pages = take<uint8_t>(c->arena_bytes);
    uint32_t page[CACHE_LANES * MOST_PAGES];
    for (int32_t i = 0; i < all; i++)
        page[i] = (uint32_t)(how->order == 1 ? all - 1 - i : i);
    for (int32_t i = all - 1; how->order == 2 && i > 0; i--) {
        const int32_t j = rig_below(i + 1);
        const uint32_t t = page[i];
        page[i] = page[j];
        page[j] = t;
    }
    for (int32_t l = 0; l < CACHE_LANES; l++) {
        uint32_t *table = take<uint32_t>(pages);
        memcpy(table, page + l * pages, 4 * (size_t)pages);
        c->lanes.table[l] = table;
        c->lanes.lane[l] = take_lane(64, 8);
    }
    c->pass = take_pass(rows);
    c->k = take<float>((int64_t)rows * s->kv_heads * s->dim);
    c->v = take<float>((int64_t)rows * s->kv_heads * s->dim);
    c->index = take<float>((int64_t)rows * s->index_dim);
    c->q = take<float>((int64_t)rows * s->heads * s->dim);
    c->gate = take<float>((int64_t)rows * s->heads * s->dim);
    c->y = take<float>((int64_t)rows * s->heads * s->dim);
    c->iq = take<float>((int64_t)rows * s->index_heads * s->index_dim);
    c->blocks = take<int32_t>((int64_t)rows * s->keep);
    c->counts = take<int32_t>(rows);
    c->w = take<float>(s->index_dim);
    c->frequency = take<float>(s->rotary / 2);
    for (int i = 0; i < s->index_dim; i++)
        c->w[i] = 1 + 0.5f * sinf((float)i);
    for (int i = 0; i < s->rotary / 2; i++)
        c->frequency[i] = powf(10000, -(float)i / 8);
    push_all();
}

// Copies rows of width floats between a lane's script and the pass.
static void cache_copy(float *pass, float *lane, int32_t at, int32_t position, int32_t rows, int32_t width, bool back)
{
    float *a = pass + (int64_t)at * width, *b = lane + (int64_t)position * width;
    memcpy(back ? b : a, back ? a : b, 4 * (size_t)rows * (size_t)width);
}

static void cache_ops(struct cache_rig *c, bool device, int capacity)
{
    const struct cache_shape *s = c->s;
    const int32_t kw = s->kv_heads * s->dim, qw = s->heads * s->dim, iw = s->index_heads * s->index_dim;
    struct kv_append_args append = {c->pass, c->lanes, c->layout, kw, kw, s->index_dim, c->k, c->v, c->index};
    struct index_pool_args pool = {c->pass, c->lanes, c->layout, RATIO, s->rotary, 1e-6f, c->w, c->frequency};
    struct index_select_args select = {c->pass, c->lanes, c->layout, s->index_heads, RATIO, s->keep,
                                       iw,      c->iq,    c->blocks, c->counts,      NULL,  s->row_class};
    struct attention_args attend = {};
    attend.pass = c->pass;
    attend.lanes = c->lanes;
    attend.layout = c->layout;
    attend.heads = s->heads;
    attend.ldq = attend.ldg = attend.ldy = qw;
    attend.gate_stride = s->dim;
    attend.ratio = RATIO;
    attend.keep = s->keep;
    attend.scale = 0.7f;
    attend.q = c->q;
    attend.gate = c->gate;
    attend.blocks = c->blocks;
    attend.counts = c->counts;
    attend.y = c->y;
    attend.row_class = s->row_class;
    if (device) {
        gpu(cuda_kv_append, &append, capacity);
        gpu(cuda_index_pool, &pool, capacity);
        gpu(cuda_index_select, &select, capacity);
        gpu(cuda_attention, &attend, capacity);
    } else {
        cpu(&kernel_kv_append_portable, &append);
        cpu(&kernel_index_pool_portable, &pool);
        cpu(&kernel_index_select_portable, &select);
        cpu(&kernel_attention_portable, &attend);
    }
}

// Runs rows of every lane from `position` on.
static void cache_pass(struct cache_rig *c, struct cache_script *script, bool device, int32_t position, int32_t rows,
                       int capacity)
{
    const struct cache_shape *s = c->s;
    const int32_t kw = s->kv_heads * s->dim, qw = s->heads * s->dim, iw = s->index_heads * s->index_dim,
                  all = CACHE_LANES * rows;
    pass_clear(c->pass);
    for (int32_t l = 0; l < CACHE_LANES; l++) {
        pass_add(c->pass, l, position, rows);
        cache_copy(c->k, script[l].k, l * rows, position, rows, kw, false);
        cache_copy(c->v, script[l].v, l * rows, position, rows, kw, false);
        cache_copy(c->index, script[l].index, l * rows, position, rows, s->index_dim, false);
        cache_copy(c->q, script[l].q, l * rows, position, rows, qw, false);
        cache_copy(c->gate, script[l].gate, l * rows, position, rows, qw, false);
        cache_copy(c->iq, script[l].iq, l * rows, position, rows, iw, false);
    }
    if (device) {
        push_pass(c->pass, CACHE_LANES * CACHE_ROWS);
        push(c->k, 4 * (int64_t)all * kw);
        push(c->v, 4 * (int64_t)all * kw);
        push(c->index, 4 * (int64_t)all * s->index_dim);
        push(c->q, 4 * (int64_t)all * qw);
        push(c->gate, 4 * (int64_t)all * qw);
        push(c->iq, 4 * (int64_t)all * iw);
    }
    cache_ops(c, device, capacity ? capacity : all);
    float *y = device ? pull(c->y, (int64_t)all * qw) : c->y;
    const int32_t *blocks = device ? pull(c->blocks, (int64_t)all * s->keep) : c->blocks;
    const int32_t *counts = device ? pull(c->counts, all) : c->counts;
    for (int32_t l = 0; l < CACHE_LANES; l++) {
        cache_copy(y, script[l].y, l * rows, position, rows, qw, true);
        memcpy(script[l].blocks + (int64_t)position * s->keep, blocks + (int64_t)l * rows * s->keep,
               4 * (size_t)(rows * s->keep));
        memcpy(script[l].counts + position, counts + l * rows, 4 * (size_t)rows);
    }
}

static void cache_run(struct cache_rig *c, const struct cache_shape *s, struct cache_script *script, bool device,
                      const struct cache_setting *how)
{
    cache_open(c, s, how);
    for (int32_t at = 0; at < CACHE_ROWS; at += how->chunk)
        cache_pass(c, script, device, at, CACHE_ROWS - at < how->chunk ? CACHE_ROWS - at : how->chunk, how->capacity);
}

static struct cache_script script_open(const struct cache_shape *s)
{
    struct cache_script t;
    const int64_t kw = s->kv_heads * s->dim, qw = s->heads * s->dim, iw = s->index_heads * s->index_dim;
    const int64_t widths[] = {kw, kw, s->index_dim, qw, iw, qw, qw};
    float **arrays[] = {&t.k, &t.v, &t.index, &t.q, &t.iq, &t.gate, &t.y};
    for (int i = 0; i < 7; i++) {
        *arrays[i] = (float *)malloc(4 * CACHE_ROWS * (size_t)widths[i]);
        for (int64_t j = 0; j < CACHE_ROWS * widths[i]; j++)
            (*arrays[i])[j] = rig_float(1);
    }
    t.blocks = (int32_t *)malloc(4 * CACHE_ROWS * (size_t)s->keep);
    t.counts = (int32_t *)malloc(4 * CACHE_ROWS);
    // Every third row asks with a zero query, so that all its blocks tie.
    for (int32_t r = 0; r < CACHE_ROWS; r += 3)
        memset(t.iq + r * iw, 0, 4 * (size_t)iw);
    return t;
}

// A copy with the same inputs and outputs of its own.
static struct cache_script script_twin(const struct cache_shape *s, const struct cache_script *from)
{
    struct cache_script t = *from;
    t.y = (float *)malloc(4 * CACHE_ROWS * (size_t)(s->heads * s->dim));
    t.blocks = (int32_t *)malloc(4 * CACHE_ROWS * (size_t)s->keep);
    t.counts = (int32_t *)malloc(4 * CACHE_ROWS);
    return t;
}

// Rows whose choice is the CPU target's, of those where a choice was made; outputs are compared where choices agree.
static void cache_compare(const struct cache_shape *s, const struct cache_script *got, const struct cache_script *want)
{
    bool close = true, counts = true, ties = true;
    int agree = 0, all = 0;
    const int32_t qw = s->heads * s->dim;
    for (int32_t l = 0; l < CACHE_LANES; l++) {
        counts = counts && same(got[l].counts, want[l].counts, 4 * CACHE_ROWS);
        for (int32_t r = 0; r < CACHE_ROWS; r++) {
            const int64_t at = (int64_t)r * s->keep;
            const bool equal =
                want[l].counts[r] < 0 || memcmp(got[l].blocks + at, want[l].blocks + at, 4 * (size_t)s->keep) == 0;
            ties = ties && (r % 3 > 0 || equal);
            agree += equal;
            all++;
            close =
                close && (!equal || close_to(got[l].y + (int64_t)r * qw, want[l].y + (int64_t)r * qw, qw, s->bound));
        }
    }
    ok(counts && ties && agree >= all - all / 50,
       "%s: chooses the CPU target's blocks, ties exactly (%d of %d rows agree)", s->name, agree, all);
    ok(close, "%s: attention agrees with the CPU target to %g", s->name, s->bound);
}

static void cache_check(const struct cache_shape *s)
{
    static const struct cache_setting base = {64, CACHE_ROWS, 0, 0};
    static const struct cache_setting settings[] = {{4, CACHE_ROWS, 0, 0}, {4, 7, 2, 0},    {16, 64, 1, 300},
                                                    {16, 1, 2, 8},         {256, 33, 0, 0}, {12, 10, 1, 20}};
    struct cache_rig c;
    struct cache_script want[CACHE_LANES], got[CACHE_LANES], again[CACHE_LANES];
    for (int l = 0; l < CACHE_LANES; l++) {
        want[l] = script_open(s);
        got[l] = script_twin(s, &want[l]);
        again[l] = script_twin(s, &want[l]);
    }
    cache_run(&c, s, want, false, &base);
    uint8_t *pages = (uint8_t *)malloc((size_t)c.arena_bytes);
    memcpy(pages, c.lanes.pages, (size_t)c.arena_bytes);
    cache_run(&c, s, got, true, &base);
    const uint8_t *there = pull(c.lanes.pages, c.arena_bytes);
    int64_t off = 0;
    for (int64_t i = 0; i < c.arena_bytes; i++)
        off += pages[i] != there[i];
    // Pooled rows come from sums whose order differs, so single codes of them may be off by one.
    ok(off <= c.arena_bytes / 200, "%s: caches hold the CPU target's bytes (%ld of %ld differ)", s->name, (long)off,
       (long)c.arena_bytes);
    cache_compare(s, got, want);
    for (const struct cache_setting &how : settings) {
        cache_run(&c, s, again, true, &how);
        bool bits = true;
        for (int l = 0; l < CACHE_LANES; l++)
            bits = bits && same(again[l].y, got[l].y, 4 * CACHE_ROWS * s->heads * s->dim) &&
                   same(again[l].counts, got[l].counts, 4 * CACHE_ROWS);
        ok(bits, "%s: same bits with pages of %d (order %d), chunks of %d, capacity %d", s->name, how.page, how.order,
           how.chunk, how.capacity);
    }
}

static void test_caches(void)
{
    static const struct cache_shape shapes[] = {
        {"sparse f32", 6, 2, 80, 3, 24, 8, 5, KV_F32, 1e-5, CLASS_DECODE},
        {"sparse bf16", 12, 2, 256, 4, 128, 64, 9, KV_BF16, 2e-5, CLASS_DECODE},
        {"dense bf16", 5, 1, 19, 2, 16, 8, 99, KV_BF16, 2e-5, CLASS_DECODE},
        {"sparse bf16, 8 to 1", 16, 2, 128, 5, 64, 32, 7, KV_BF16, 2e-5, CLASS_DECODE},
        {"prompt rows, sparse bf16", 12, 2, 256, 4, 128, 64, 9, KV_BF16, 2e-4, CLASS_PROMPT},
        {"prompt rows, sparse f32", 16, 2, 128, 5, 64, 32, 7, KV_F32, 1e-2, CLASS_PROMPT},
        {"prompt rows, dense bf16", 5, 1, 128, 2, 16, 8, 99, KV_BF16, 2e-4, CLASS_PROMPT},
        {"sparse fp8", 24, 2, 64, 1, 16, 4, 7, KV_FP8, 2e-5, CLASS_DECODE},
    };
    for (const struct cache_shape &s : shapes)
        cache_check(&s);
}

#endif
