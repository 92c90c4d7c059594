// SPDX-License-Identifier: Apache-2.0
//
// Time of an op in a replayed graph of equal launches, at the shapes of the real models; data of one launch stays in the cache.

#ifndef CUDA_OPS_BENCH_CUH
#define CUDA_OPS_BENCH_CUH

#include "kernels/cuda/launch.cuh"
#include "tests/cuda_ops_rig.cuh"

#ifdef CUDA_EMULATION
static void bench_all(const char *)
{
}
#else

// Keeps every processor busy for about `us` microseconds, and tells the cycles that one counted in that time: a card that was idle
// runs at a fraction of its clock for a while, and kernels that wait for themselves then take as many times longer.
__global__ void __launch_bounds__(256) bench_burn(long long us, long long *cycles, float *sink)
{
    pdl_wait();
    long long from, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(from));
    const long long start = clock64();
    float x = (float)threadIdx.x;
    do {
        for (int i = 0; i < 256; i++)
            x = fmaf(x, 0.999f, 1.0f);
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - from < us * 1000);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *cycles = (clock64() - start) / ((now - from) / 1000);
    *sink = x;
}

// Brings the clock up and returns it in MHz.
static int bench_warm(int us)
{
    static long long *cycles;
    static float *sink;
    if (!cycles) {
        rig_check(cudaMalloc((void **)&cycles, 8), "cudaMalloc");
        rig_check(cudaMalloc((void **)&sink, 4), "cudaMalloc");
    }
    long long mhz = 0;
    rig_check(launch(0, 132 * 4, 256, 0, bench_burn, (long long)us, cycles, sink), "burn");
    rig_check(cudaMemcpy(&mhz, cycles, 8, cudaMemcpyDeviceToHost), "burn");
    return (int)mhz;
}

// Least milliseconds of twelve replays of what make(stream) launches. mhz: of the multiprocessors then, or NULL.
template <typename MAKE> static float bench_replays(const char *name, int us, int *mhz, const MAKE &make)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    float best = 1e9f;
    rig_check(cudaStreamCreate(&stream), "stream");
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    rig_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    make(stream);
    rig_check(cudaStreamEndCapture(stream, &graph), "capture");
    rig_check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    const int clock = bench_warm(us);
    if (mhz)
        *mhz = clock;
    for (int i = 0; i < 12; i++) {
        float ms;
        cudaEventRecord(from, stream);
        cudaGraphLaunch(exec, stream);
        cudaEventRecord(to, stream);
        rig_check(cudaEventSynchronize(to), name);
        cudaEventElapsedTime(&ms, from, to);
        best = ms < best ? ms : best;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    cudaStreamDestroy(stream);
    return best;
}

// Microseconds a launch of op with args (host addresses).
template <typename A>
static void bench(const char *name, cudaError_t (*op)(cudaStream_t, const A *, int), const A *args, int rows, int count)
{
    const A copy = translated(*args);
    int mhz;
    const float best = bench_replays(name, 20000, &mhz, [&](cudaStream_t stream) {
        for (int i = 0; i < count; i++)
            rig_check(op(stream, &copy, rows), name);
    });
    printf("# %-44s %4d rows %9.2f us at %d MHz\n", name, rows, (double)best * 1000 / count, mhz);
    fflush(stdout);
}

static struct pass *bench_pass(int rows, int position)
{
    struct pass *p = take_pass(rows);
    pass_add(p, 0, position, rows);
    return p;
}

static void bench_rows(int rows)
{
    rig_reset();
    struct pass *p = bench_pass(rows, 100);
    float *x = take_floats(rows * 10240LL, 1), *y = take_floats(rows * 12288LL, 1), *w = take_floats(12288, 1);
    float *z = take_floats(rows * 12288LL, 1), *t = take_floats(rows * 10 * 2560LL, 1);
    int32_t *ids = take<int32_t>(rows * 16);
    push_all();
    struct norm_args norm = {p, 4, 2560, 10240, 10240, 1e-6f, x, w, y};
    bench("norm 4 x 2560", cuda_norm, &norm, rows, 50);
    struct gated_norm_args gated = {p, 48, 128, 6144, 6144, 6144, ACT_SIGMOID, 0, 1e-6f, x, z, w, y};
    bench("gated_norm 48 x 128", cuda_gated_norm, &gated, rows, 50);
    struct head_norm_args head = {p, 24, 512, 256, 64, 12288, 6144, 1e-6f, z, w, w, y};
    bench("head_norm 24 x 256, 64 rotated", cuda_head_norm, &head, rows, 50);
    struct glu_args glu = {p, 640, 640, 640, 640, ACT_SILU, x, y, z};
    bench("glu 640", cuda_glu, &glu, rows, 50);
    struct hc_mix_args mix = {p, 4, 2560, x, z, y};
    bench("hc_mix 4 x 2560", cuda_hc_mix, &mix, rows, 50);
    struct hc_inject_args inject = {p, 4, 2560, 4, w, z, x};
    bench("hc_inject 4 x 2560", cuda_hc_inject, &inject, rows, 50);
    struct route_args route = {p, 512, 10, 0, 1, 512, 1, x, NULL, ids, y};
    bench("route 10 of 512", cuda_route, &route, rows, 50);
    struct moe_sum_args sum = {p, 10, 2560, 1, 2560, 2560, t, w, z, w, y};
    bench("moe_sum 10 x 2560", cuda_moe_sum, &sum, rows, 50);
    struct ple_gate_args gate = {p, 4, 2560, x, z, w, y};
    bench("ple_gate 4 x 2560", cuda_ple_gate, &gate, rows, 50);
}

// A DeltaNet layer between its products.
struct bench_delta {
    struct conv_args conv;
    struct gdn_args gdn;
    struct gated_norm_args norm;
};

extern "C" cudaError_t cuda_conv_gdn_norm(cudaStream_t, const void *const *, int);

// One after the other, these read states that the one before may still write: the bits are those of no order, the time is right.
static cudaError_t bench_delta_step(cudaStream_t stream, const struct bench_delta *d, int rows)
{
    const void *args[] = {&d->conv, &d->gdn, &d->norm};
    return cuda_conv_gdn_norm(stream, args, rows);
}

static cudaError_t bench_delta_ops(cudaStream_t stream, const struct bench_delta *d, int rows)
{
    cudaError_t error = cuda_conv(stream, &d->conv, rows);
    error = error == cudaSuccess ? cuda_gdn(stream, &d->gdn, rows) : error;
    return error == cudaSuccess ? cuda_gated_norm(stream, &d->norm, rows) : error;
}

static void bench_states(int rows, int direct, int count)
{
    rig_reset();
    struct pass *p = bench_pass(rows, 100);
    struct lane_set lanes = {};
    const int64_t history = 10240 * (3 + MAX_WINDOW),
                  states = history + 48 * 128 * 128 + MAX_WINDOW * (2048 + 6144 + 96);
    lanes.count = 1;
    lanes.lane[0] = take_lane(4 * states, 8);
    lanes.lane[0]->fold = direct ? 0 : rows < 3 ? rows : 3;
    float *c = take_floats(rows * 10240LL, 1), *y = take<float>(rows * 10240LL), *b = take_floats(rows * 96LL, 1),
          *w = take_floats(40960, 1);
    float *prepared = take<float>(rows * 4192LL), *o = take<float>(rows * 6144LL), *z = take_floats(rows * 6144LL, 1);
    push_all();
    struct conv_args conv = {p, lanes, 10240, 4, 1, ACT_SILU, 10240, 10240, direct, 0, c, w, NULL, y};
    bench(direct ? "conv 10240, direct" : "conv 10240, window", cuda_conv, &conv, rows, count);
    struct gdn_args gdn = {p,      lanes,       16, 48, 128,    128, 10240,  96,       96, 6144,
                           direct, 4 * history, y,  b,  b + 48, w,   w + 48, prepared, o};
    bench(direct ? "gdn 48 x 128 x 128, direct" : "gdn 48 x 128 x 128, window", cuda_gdn, &gdn, rows, count);
    struct bench_delta delta = {
        conv, gdn, {p, 48, 128, 6144, 6144, 6144, ACT_SIGMOID, 0, 1e-6f, o, z, w, take<float>(rows * 6144LL)}};
    bench(direct ? "conv, gdn, gated_norm, direct" : "conv, gdn, gated_norm, window", bench_delta_ops, &delta, rows,
          count);
    if (rows <= MAX_WINDOW)
        bench(direct ? "the same in one step, direct" : "the same in one step, window", bench_delta_step, &delta, rows,
              count);
}

enum { BENCH_LAYERS = 6, BENCH_ROUNDS = 8 };

// What stands between two steps: blocks that fill their multiprocessors, as the products do, with as much code as takes the place of all
// other code near them. There are two, so that one's code is not there either when it begins.
template <int WHICH> __global__ void __launch_bounds__(512, 1) bench_between(int cycles, float *sink)
{
    enum { CHAINS = 8, LENGTH = 1024 };
    pdl_wait();
    pdl_trigger();
    const long long start = clock64();
    if (threadIdx.x < 32) {
        float x[CHAINS];
#pragma unroll
        for (int i = 0; i < CHAINS; i++)
            x[i] = (float)(threadIdx.x + i);
#pragma unroll
        for (int i = 0; i < CHAINS * LENGTH; i++)
            x[i % CHAINS] = fmaf(x[i % CHAINS], 0.999f, (float)(i + WHICH));
#pragma unroll
        for (int i = 1; i < CHAINS; i++)
            x[0] += x[i];
        if (x[0] == 0.5f)
            *sink = x[0];
    }
    while (clock64() - start < cycles)
        ;
}

// Microseconds of each step of `d` (several layers, one after the other) behind a kernel that fills the card, less that kernel alone.
static void bench_between_steps(const char *name, const struct bench_delta *d, int rows)
{
    float best[2];
    for (int with = 0; with < 2; with++)
        best[with] = bench_replays(name, 5000, NULL, [&](cudaStream_t stream) {
            for (int i = 0; i < BENCH_LAYERS * BENCH_ROUNDS; i++) {
                rig_check(launch(stream, 132, 512, 200 << 10, i % 2 ? bench_between<0> : bench_between<1>, 4000,
                                 (float *)rig_device),
                          name);
                if (with)
                    rig_check(bench_delta_step(stream, &d[i % BENCH_LAYERS], rows), name);
            }
        });
    printf("# %-52s %9.2f us\n", name, (double)(best[1] - best[0]) * 1000 / (BENCH_LAYERS * BENCH_ROUNDS));
    fflush(stdout);
}

// Several layers of `heads` value heads with states that do not fit in the cache together; 1 .. `lanes` lanes, each a power of two or 6.
static void bench_layers(int heads, int lanes)
{
    const int channels = 4096 + heads * 128, most = lanes * 6;
    const int64_t history = 4LL * channels * (3 + MAX_WINDOW),
                  state = 4 * ((int64_t)heads * 128 * 128 + MAX_WINDOW * (2048 + heads * 130));
    struct lane_set set = {};
    struct lane *lane[MAX_LANES];
    rig_reset();
    struct pass *p = take_pass(most);
    for (int l = 0; l < lanes; l++) {
        lane[l] = set.lane[l] = take_lane(BENCH_LAYERS * (history + state), 8);
        for (int64_t i = 0; i < BENCH_LAYERS * (history + state) / 4; i++)
            ((float *)lane[l]->run)[i] = rig_float(0.5f);
    }
    float *c = take_floats((int64_t)most * channels, 1), *y = take<float>((int64_t)most * channels),
          *b = take_floats(most * 2LL * heads, 1), *w = take_floats(4LL * channels, 1),
          *prepared = take<float>(most * 4352LL), *o = take<float>(most * heads * 128LL),
          *z = take_floats(most * heads * 128LL, 1), *out = take<float>(most * heads * 128LL);
    push_all();
    for (int mode = 0; mode < 4; mode++) // one row direct, a window of one, of two and of six
        for (int n = 1; n <= lanes; n += n < 2 ? 1 : 2) {
            static const int rows[] = {1, 1, 2, 6}, folds[] = {0, 1, 2, 4};
            struct bench_delta layers[BENCH_LAYERS];
            char name[80];
            pass_clear(p);
            set.count = n;
            for (int l = 0; l < n; l++) {
                pass_add(p, l, 50, rows[mode]);
                lane[l]->fold = folds[mode];
                push(lane[l], sizeof *lane[l]);
            }
            push_pass(p, most);
            for (int i = 0; i < BENCH_LAYERS; i++) {
                const int64_t at = i * (history + state);
                layers[i].conv = {p, set, channels, 4, 1, ACT_SILU, channels, channels, !mode, at, c, w, NULL, y};
                layers[i].gdn = {p,         set,         16,    heads,        128, 128, channels,         heads,
                                 heads,     heads * 128, !mode, at + history, y,   b,   b + most * heads, w,
                                 w + heads, prepared,    o};
                layers[i].norm = {p, heads, 128, heads * 128, heads * 128, heads * 128, ACT_SIGMOID,
                                  0, 1e-6f, o,   z,           w,           out};
                layers[i] = translated(layers[i]);
            }
            snprintf(name, sizeof name, "16/%d heads, %d lanes of %d rows, %d before, %s", heads, n, rows[mode],
                     folds[mode], mode ? "window" : "direct");
            bench_between_steps(name, layers, n * rows[mode]);
        }
}

// The step of a DeltaNet layer behind a product.
static void bench_deltanet(void)
{
    bench_layers(48, 8);
    bench_layers(32, 8);
    bench_layers(16, 8);
}

// A choice and the attention that follows it.
struct bench_choice {
    struct index_select_args select;
    struct attention_args attend;
};

static cudaError_t bench_choice_ops(cudaStream_t stream, const struct bench_choice *c, int rows)
{
    const cudaError_t error = cuda_index_select(stream, &c->select, rows);
    return error == cudaSuccess ? cuda_attention(stream, &c->attend, rows) : error;
}

// What stands before a choice: the ops one after the other, and their step.
struct bench_append {
    struct head_norm_args key;
    struct kv_append_args append;
    struct index_pool_args pool;
    struct head_norm_args query, index;
};

extern "C" cudaError_t cuda_norm_append_pool_norms(cudaStream_t, const void *const *, int);

static cudaError_t bench_append_ops(cudaStream_t stream, const struct bench_append *t, int rows)
{
    cudaError_t error = cuda_head_norm(stream, &t->key, rows);
    error = error == cudaSuccess ? cuda_kv_append(stream, &t->append, rows) : error;
    error = error == cudaSuccess ? cuda_index_pool(stream, &t->pool, rows) : error;
    error = error == cudaSuccess ? cuda_head_norm(stream, &t->query, rows) : error;
    return error == cudaSuccess ? cuda_head_norm(stream, &t->index, rows) : error;
}

static cudaError_t bench_append_step(cudaStream_t stream, const struct bench_append *t, int rows)
{
    const void *args[] = {&t->key, &t->append, &t->pool, &t->query, &t->index};
    return cuda_norm_append_pool_norms(stream, args, rows);
}

// qg, k: queries with gates, and keys, as a product leaves them.
static void bench_norms(const struct kv_append_args &append, const struct index_pool_args &pool, float *qg, float *k,
                        int rows, int count)
{
    const float *w = pool.w;
    struct bench_append all = {{append.pass, 2, 256, 256, 64, 512, 512, 1e-6f, k, w, w, (float *)append.k},
                               append,
                               pool,
                               {append.pass, 24, 512, 256, 64, 12288, 6144, 1e-6f, qg, w, w, qg},
                               {append.pass, 4, 128, 128, 64, 512, 512, 1e-6f, append.index, w, w, k}};
    bench("norms, kv_append, index_pool", bench_append_ops, &all, rows, count);
    bench("the same in one step", bench_append_step, &all, rows, count);
}

enum { BENCH_LONG = 2048 }; // positions of contexts whose rows may have several clusters

static void bench_select(struct index_select_args *a, int rows, int context, int count)
{
    char name[64];
    if (context >= BENCH_LONG) {
        snprintf(name, sizeof name, "index_select at %d, one cluster a row", context);
        bench(name, cuda_index_select, a, rows, count);
    }
    a->scratch = take<uint8_t>(index_select_scratch_bytes(rows));
    snprintf(name, sizeof name, "index_select at %d", context);
    bench(name, cuda_index_select, a, rows, count);
}

static void bench_attend(struct attention_args *a, int rows, int context, int count)
{
    char name[64];
    const int heads = a->heads, kv_heads = a->layout.kv_heads;
    if (context >= BENCH_LONG) {
        snprintf(name, sizeof name, "attention %d/%d at %d, one cluster a row", heads, kv_heads, context);
        bench(name, cuda_attention, a, rows, count);
    }
    a->scratch = take<uint8_t>(attention_scratch_bytes(a->layout.dim));
    snprintf(name, sizeof name, "attention %d/%d %s at %d", heads, kv_heads, a->counts ? "sparse" : "dense", context);
    bench(name, cuda_attention, a, rows, count);
}

// A prompt's rows at the end of a context, over bf16 caches of dim 256; and with choices of all positions, which have a kernel of their own.
static void bench_dense_rows(int rows, int context, int heads, int kv_heads)
{
    rig_reset();
    const int page = 64, pages = context / page;
    struct attention_args a = {};
    a.layout.encoding = a.layout.index_encoding = KV_BF16;
    a.layout.kv_heads = kv_heads;
    a.layout.dim = 256;
    a.layout.key_bytes = 512 * kv_heads;
    a.lanes.count = 1;
    a.lanes.page = page;
    a.lanes.page_bytes = page * 2 * a.layout.key_bytes;
    a.lanes.pages = take<uint8_t>(a.lanes.page_bytes * pages);
    for (int64_t i = 0; i < a.lanes.page_bytes * pages / 8; i++)
        ((uint64_t *)a.lanes.pages)[i] = 0x3f003f003f003f00 + (rig_next() & 0x80ff80ff80ff80ff);
    uint32_t *table = take<uint32_t>(pages);
    for (int i = 0; i < pages; i++)
        table[i] = (uint32_t)i;
    a.lanes.table[0] = table;
    a.lanes.lane[0] = take_lane(64, 8);
    a.pass = bench_pass(rows, context - rows);
    a.heads = heads;
    a.ldq = a.ldg = a.ldy = heads * 256;
    a.gate_stride = 256;
    a.ratio = 4;
    a.scale = 0.0625f;
    a.q = take_floats((int64_t)rows * heads * 256, 1);
    a.gate = take_floats((int64_t)rows * heads * 256, 1);
    a.y = take<float>((int64_t)rows * heads * 256);
    a.row_class = CLASS_PROMPT;
    a.blocks = take<int32_t>(1);
    int32_t *counts = take<int32_t>(rows);
    for (int i = 0; i < rows; i++)
        counts[i] = -1;
    push_all();
    const int launches = rows < 512 ? 4 : 1;
    char name[64];
    snprintf(name, sizeof name, "dense %d/%d at %d", heads, kv_heads, context);
    bench(name, cuda_attention, &a, rows, launches);
    a.counts = counts;
    snprintf(name, sizeof name, "dense %d/%d at %d, a block a row", heads, kv_heads, context);
    bench(name, cuda_attention, &a, rows, launches);
}

static void bench_dense(void)
{
    static const int heads[][2] = {{24, 4}, {16, 2}, {8, 2}}, rows[] = {2048, 512, 128, 63, 32};
    for (const auto &h : heads)
        for (int r : rows)
            for (int context = 8192; context <= 32768; context *= 4)
                bench_dense_rows(r, context, h[0], h[1]);
}

// rows rows at the end of a context.
static void bench_cache(int rows, int context, int heads, int kv_heads, bool sparse, int count,
                        enum row_class row_class = CLASS_DECODE)
{
    const bool prompt = row_class == CLASS_PROMPT;
    rig_reset();
    const int page = 64, pages = (context + page - 1) / page;
    struct kv_layout kv = {};
    kv.encoding = KV_BF16;
    kv.kv_heads = kv_heads;
    kv.dim = 256;
    kv.index_dim = 128;
    kv.index_encoding = KV_BF16;
    kv.key_bytes = 512 * kv_heads;
    kv.index_bytes = 256;
    struct lane_set lanes = {};
    lanes.count = 1;
    lanes.page = page;
    lanes.page_bytes = page * (2 * kv.key_bytes + 256 + 64);
    lanes.pages = take<uint8_t>(lanes.page_bytes * pages);
    for (int64_t i = 0; i < lanes.page_bytes * pages / 2; i++)
        ((uint16_t *)lanes.pages)[i] = (uint16_t)(0x3f00 + (rig_next() & 0x80ff));
    uint32_t *table = take<uint32_t>(pages);
    for (int i = 0; i < pages; i++)
        table[i] = (uint32_t)i;
    lanes.table[0] = table;
    lanes.lane[0] = take_lane(64, 8);
    struct pass *p = bench_pass(rows, context - rows);
    float *q = take_floats(rows * 24LL * 256, 0.1f), *gate = take_floats(rows * 24LL * 256, 1),
          *y = take<float>(rows * 24LL * 256);
    float *iq = take_floats(rows * 512LL, 1), *w = take_floats(256, 1);
    int32_t *blocks = take<int32_t>(rows * 512LL), *counts = take<int32_t>(rows);
    float *qg = take_floats(rows * 24LL * 512, 1), *k = take_floats(rows * 512LL, 1);
    push_all();
    struct kv_append_args append = {p, lanes, kv, 512, 512, 128, q, q, iq};
    struct index_pool_args pool = {p, lanes, kv, 4, 64, 1e-6f, w, w};
    struct index_select_args select = {p, lanes, kv, 4, 4, 512, 512, iq, blocks, counts, NULL, CLASS_DECODE};
    if (sparse && prompt) {
        char name[64];
        snprintf(name, sizeof name, "index_select at %d, as of decode rows", context);
        bench(name, cuda_index_select, &select, rows, count);
        select.row_class = row_class;
        snprintf(name, sizeof name, "index_select at %d", context);
        bench(name, cuda_index_select, &select, rows, count);
    } else if (sparse) {
        bench_norms(append, pool, qg, k, rows, count);
        bench("kv_append", cuda_kv_append, &append, rows, count);
        bench("index_pool", cuda_index_pool, &pool, rows, count);
        bench_select(&select, rows, context, count);
    }
    struct attention_args a = {};
    a.pass = p;
    a.lanes = lanes;
    a.layout = kv;
    a.heads = heads;
    a.ldq = a.ldg = a.ldy = heads * 256;
    a.gate_stride = 256;
    a.ratio = 4;
    a.keep = 512;
    a.scale = 0.0625f;
    a.q = q;
    a.gate = gate;
    a.blocks = sparse ? blocks : NULL;
    a.counts = sparse ? counts : NULL;
    a.y = y;
    a.row_class = row_class;
    bench_attend(&a, rows, context, count);
    if (prompt)
        return;
    a.early = 1;
    const struct bench_choice choice = {select, a};
    if (sparse)
        bench("index_select, then attention begun early", bench_choice_ops, &choice, rows, count);
}

static void bench_draw(int rows, float temperature, float top_p, int top_k)
{
    rig_reset();
    struct pass *p = bench_pass(rows, 20);
    struct lane_set lanes = {};
    lanes.count = 1;
    lanes.lane[0] = take_lane(64, 200);
    lanes.lane[0]->temperature = temperature;
    lanes.lane[0]->top_p = top_p;
    lanes.lane[0]->top_k = top_k;
    float *logits = take<float>(rows * 248320LL);
    for (int64_t i = 0; i < rows * 248320LL; i++)
        logits[i] = rig_float(4) + rig_float(4) + rig_float(4) + rig_float(4);
    int32_t *drawn = take<int32_t>(rows);
    push_all();
    struct draw_args a = {p, lanes, 248320, 248320, 1, -1, logits, drawn, NULL};
    char name[64];
    snprintf(name, sizeof name, "draw: temperature %g, top_p %g, top_k %d", (double)temperature, (double)top_p, top_k);
    bench(name, cuda_draw, &a, rows, 20);
    struct rows_args rows_of = {p, lanes, ROWS_TRUNK, 0, rows};
    bench("rows", cuda_rows, &rows_of, rows, 50);
}

// One row or a window at contexts of a chat's length.
static void bench_attention(void)
{
    for (int rows = 1; rows <= 4; rows += 3) {
        bench_cache(rows, 128, 24, 2, true, 50);
        bench_cache(rows, 1024, 24, 2, true, 50);
        bench_cache(rows, 2048, 24, 2, true, 50);
        bench_cache(rows, 2048, 24, 4, false, 50);
    }
}

// Rows of long contexts: a lane's, a window's, those of eight lanes.
static void bench_long(void)
{
    for (int rows = 1; rows <= 8; rows *= rows == 1 ? 4 : 2)
        for (int context = 1024; context <= 131072; context *= rows == 1 ? 2 : 8) {
            bench_cache(rows, context, 16, 2, false, 20);
            if (context >= 8192)
                bench_cache(rows, context, 24, 2, true, 20);
        }
}

// Rows of prompts that choose, many and few.
static void bench_sparse(void)
{
    static const int rows[] = {2048, 512, 63};
    for (int r : rows)
        for (int context = 2048; context <= 32768; context *= 2)
            bench_cache(r, context, 24, 2, true, r < 512 ? 4 : 1, CLASS_PROMPT);
}

// what: NULL, everything; "attention", "deltanet", "long", "dense" or "sparse".
static void bench_all(const char *what)
{
    bench_warm(500000);
    if (!what || strcmp(what, "deltanet") == 0)
        bench_deltanet();
    if (what && strcmp(what, "deltanet") == 0)
        return;
    if (what && strcmp(what, "long") == 0)
        return bench_long();
    if (what && strcmp(what, "dense") == 0)
        return bench_dense();
    if (what && strcmp(what, "sparse") == 0)
        return bench_sparse();
    bench_attention();
    if (what)
        return;
    for (int rows = 1; rows <= 24; rows += rows == 1 ? 5 : 18)
        bench_rows(rows);
    bench_states(1, 1, 20);
    bench_states(1, 0, 20);
    bench_states(6, 0, 20);
    bench_states(1024, 1, 3);
    for (int rows = 1; rows <= 6; rows += 5) {
        bench_cache(rows, 1024, 24, 2, true, 20);
        bench_cache(rows, 8192, 24, 2, true, 20);
        bench_cache(rows, 16384, 24, 2, true, 20);
        bench_cache(rows, 8192, 24, 4, false, 20);
    }
    bench_cache(512, 8192, 24, 2, true, 2, CLASS_PROMPT);
    bench_cache(512, 8192, 24, 4, false, 2, CLASS_PROMPT);
    bench_draw(1, 0, 1, 0);
    bench_draw(6, 0, 1, 0);
    bench_draw(6, 0.8f, 0.95f, 20);
    bench_draw(6, 0.8f, 1, 0);
    bench_draw(6, 0.8f, 0.95f, 0);
}
#endif

#endif
