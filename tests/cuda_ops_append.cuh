// SPDX-License-Identifier: Apache-2.0
//
// The steps of kernels/cuda/append_step.cu: the bits of head_norm, kv_append and index_pool one after the other, in the
// caches and in the normed queries.

#ifndef CUDA_OPS_APPEND_CUH
#define CUDA_OPS_APPEND_CUH

#include "tests/cuda_ops_steps.cuh"

extern "C" cudaError_t cuda_norm_append(cudaStream_t, const void *const *, int);
extern "C" cudaError_t cuda_norm_append_norm(cudaStream_t, const void *const *, int);
extern "C" cudaError_t cuda_norm_append_pool(cudaStream_t, const void *const *, int);
extern "C" cudaError_t cuda_norm_append_pool_norms(cudaStream_t, const void *const *, int);

enum { APPEND_LANES = 3, APPEND_PAGE = 8, APPEND_PAGES = 8, APPEND_CAPACITY = 48 };

struct append_shape {
    int32_t heads, kv_heads, dim, index_heads, index_dim, rotary, encoding; // index_dim 0: no indexer
};

struct append {
    struct head_norm_args key, query, index;
    struct kv_append_args append;
    struct index_pool_args pool;
    struct pass *pass;
    int64_t pages_bytes;
};

static struct head_norm_args append_norm(struct pass *pass, int32_t heads, int32_t dim, int32_t rotary,
                                         const float *frequency)
{
    struct head_norm_args a = {};
    a.pass = pass;
    a.heads = heads;
    a.head_stride = dim + 3;
    a.dim = dim;
    a.rotary = rotary;
    a.ldx = heads * a.head_stride;
    a.ldy = heads * dim;
    a.eps = 1e-6f;
    a.x = take_floats((int64_t)APPEND_CAPACITY * a.ldx, 1);
    a.w = take_floats(dim, 1);
    a.inverse_frequency = frequency;
    a.y = take<float>((int64_t)APPEND_CAPACITY * a.ldy);
    return a;
}

// Caches full of numbers, so that blocks which a window completes have keys of before it.
static struct append append_begin(const struct append_shape &s)
{
    struct append t = {};
    rig_reset();
    const int32_t width = s.kv_heads * s.dim, all = APPEND_LANES * APPEND_PAGES;
    struct kv_layout kv = {};
    struct lane_set lanes = {};
    kv.encoding = s.encoding;
    kv.index_encoding = s.encoding == KV_F32 ? KV_F32 : KV_BF16;
    kv.kv_heads = s.kv_heads;
    kv.dim = s.dim;
    kv.index_dim = s.index_dim;
    kv.base = 16;
    kv.key_bytes = s.encoding == KV_F32 ? 4 * width : s.encoding == KV_BF16 ? 2 * width : width + 4 * s.kv_heads;
    kv.index_bytes = s.index_dim * (s.encoding == KV_F32 ? 4 : 2);
    lanes.count = APPEND_LANES;
    lanes.page = APPEND_PAGE;
    lanes.page_bytes = APPEND_PAGE * (16 + 2 * kv.key_bytes + kv.index_bytes) + APPEND_PAGE / 4 * kv.index_bytes;
    t.pages_bytes = all * lanes.page_bytes;
    lanes.pages = take<uint8_t>(t.pages_bytes);
    for (int64_t i = 0; i < t.pages_bytes / 2; i++)
        ((uint16_t *)lanes.pages)[i] = (uint16_t)(0x3e80 + (rig_next() & 0x80ff));
    for (int32_t l = 0; l < APPEND_LANES; l++) {
        uint32_t *table = take<uint32_t>(APPEND_PAGES);
        for (int32_t i = 0; i < APPEND_PAGES; i++)
            table[i] = (uint32_t)(all - 1 - i * APPEND_LANES - l);
        lanes.table[l] = table;
        lanes.lane[l] = take_lane(64, 8);
    }
    float *frequency = take_floats(s.rotary / 2 + 1, 1);
    t.pass = take_pass(APPEND_CAPACITY);
    t.key = append_norm(t.pass, s.kv_heads, s.dim, s.rotary, frequency);
    t.query = append_norm(t.pass, s.heads, s.dim, s.rotary, frequency);
    t.append = {t.pass, lanes, kv, width, width + 5, s.index_dim + 7, t.key.y, NULL, NULL};
    t.append.v = take_floats((int64_t)APPEND_CAPACITY * t.append.ldv, 1);
    if (s.index_dim == 0)
        return t;
    t.index = append_norm(t.pass, s.index_heads, s.index_dim, s.rotary, frequency);
    t.append.index = take_floats((int64_t)APPEND_CAPACITY * t.append.ldi, 1);
    t.pool = {t.pass, lanes, kv, 4, s.rotary, 1e-6f, take_floats(s.index_dim, 1), frequency};
    return t;
}

// Windows of 1 .. most rows, of which lane 1 may have none.
static void append_pass(struct append *t, int32_t most)
{
    pass_clear(t->pass);
    for (int32_t l = 0; l < APPEND_LANES; l++)
        if (l != 1 || rig_below(2))
            pass_add(t->pass, l, rig_below(APPEND_PAGE * APPEND_PAGES - most), 1 + rig_below(most));
}

// Which ops follow: the pool, norms of queries and of the indexer's queries.
struct append_step_kind {
    bool pool, query, index;
};

enum append_fault { APPEND_RIGHT, APPEND_EPS, APPEND_POOLED };

static bool append_same(const struct append &t, const struct append_step_kind &kind, enum append_fault fault)
{
    const int64_t q_bytes = 4 * (int64_t)t.pass->rows * t.query.ldy, i_bytes = 4 * (int64_t)t.pass->rows * t.index.ldy;
    uint8_t *pages = (uint8_t *)malloc((size_t)t.pages_bytes), *q = (uint8_t *)malloc((size_t)q_bytes),
            *iq = (uint8_t *)malloc((size_t)i_bytes + 1);
    push_all();
    gpu(cuda_head_norm, &t.key, APPEND_CAPACITY);
    gpu(cuda_kv_append, &t.append, APPEND_CAPACITY);
    if (kind.pool)
        gpu(cuda_index_pool, &t.pool, APPEND_CAPACITY);
    gpu(cuda_head_norm, &t.query, APPEND_CAPACITY);
    if (kind.index)
        gpu(cuda_head_norm, &t.index, APPEND_CAPACITY);
    memcpy(pages, pull(t.append.lanes.pages, t.pages_bytes), (size_t)t.pages_bytes);
    memcpy(q, pull((uint8_t *)t.query.y, q_bytes), (size_t)q_bytes);
    if (kind.index)
        memcpy(iq, pull((uint8_t *)t.index.y, i_bytes), (size_t)i_bytes);
    push_all();
    struct head_norm_args key = translated(t.key);
    const struct head_norm_args query = translated(t.query), index = translated(t.index);
    const struct kv_append_args append = translated(t.append);
    struct index_pool_args pool = translated(t.pool);
    key.eps = fault == APPEND_EPS ? 1.0f : key.eps;
    pool.w = fault == APPEND_POOLED ? pool.inverse_frequency : pool.w;
    const void *five[] = {&key, &append, &pool, &query, &index}, *three[] = {&key, &append, &query};
    rig_check(kind.index   ? cuda_norm_append_pool_norms(0, five, APPEND_CAPACITY)
              : kind.pool  ? cuda_norm_append_pool(0, five, APPEND_CAPACITY)
              : kind.query ? cuda_norm_append_norm(0, three, APPEND_CAPACITY)
                           : cuda_norm_append(0, three, APPEND_CAPACITY),
              "append step");
    rig_check(cudaDeviceSynchronize(), "step");
    bool equal = same(pull(t.append.lanes.pages, t.pages_bytes), pages, t.pages_bytes);
    equal = (!kind.query || same(pull((uint8_t *)t.query.y, q_bytes), q, q_bytes)) && equal;
    equal = (!kind.index || same(pull((uint8_t *)t.index.y, i_bytes), iq, i_bytes)) && equal;
    free(pages);
    free(q);
    free(iq);
    return equal;
}

static void test_append_refusals(void)
{
    const struct append t = append_begin({4, 2, 32, 2, 16, 8, KV_BF16});
    struct head_norm_args key = t.key;
    struct index_pool_args pool = t.pool;
    const void *args[] = {&key, &t.append, &pool, &t.query, &t.index};
    key.y = t.query.y;
    ok(cuda_norm_append(0, args, 1) == cudaErrorNotSupported, "append: the norm of other keys is declined");
    key = t.key;
    key.heads = 1;
    ok(cuda_norm_append(0, args, 1) == cudaErrorNotSupported, "append: so is that of one head of two");
    key = t.key;
    pool.layout.base = 0;
    ok(cuda_norm_append_pool(0, args, 1) == cudaErrorNotSupported, "append: and the pool of another cache");
}

static void test_append(void)
{
    static const struct append_shape shapes[] = {
        {24, 2, 256, 4, 128, 64, KV_BF16}, {3, 1, 80, 3, 24, 8, KV_F32}, {4, 2, 64, 1, 16, 4, KV_FP8},
        {8, 2, 128, 0, 0, 128, KV_BF16},   {2, 1, 300, 0, 0, 0, KV_F32},
    };
    test_append_refusals();
    for (const struct append_shape &s : shapes) {
        struct append t = append_begin(s);
        const bool indexed = s.index_dim > 0;
        bool equal = true;
        for (int most = 1; most <= MAX_WINDOW; most = most == 1 ? 2 : most == 2 ? 5 : most + 11) {
            append_pass(&t, most);
            equal = append_same(t, {false, false, false}, APPEND_RIGHT) && equal;
            equal = append_same(t, {false, true, false}, APPEND_RIGHT) && equal;
            if (indexed)
                equal = append_same(t, {true, false, false}, APPEND_RIGHT) && equal;
            if (indexed)
                equal = append_same(t, {true, true, true}, APPEND_RIGHT) && equal;
        }
        ok(equal, "append %d/%d x %d, index %d x %d, encoding %d: the bits of its ops", s.heads, s.kv_heads, s.dim,
           s.index_heads, s.index_dim, s.encoding);
        append_pass(&t, MAX_WINDOW);
        ok(!append_same(t, {false, true, false}, APPEND_EPS), "append: another epsilon is found in the cache");
        if (indexed) {
            pass_clear(t.pass);
            pass_add(t.pass, 0, 9, 3);
            ok(append_same(t, {true, true, true}, APPEND_RIGHT), "append: a block of old and new keys");
            ok(!append_same(t, {true, true, true}, APPEND_POOLED), "append: another pool's weights are found");
        }
    }
}

#endif
