// SPDX-License-Identifier: Apache-2.0
//
// Times the CUDA matrix kernels at the shapes of Flash Next, as chains of launches in a graph over so many weight sets
// that the L2 cache holds none of them; figures against a read of memory measured in the same run. Arguments: decode,
// prompt (both classes without), few: the products of prompts of few rows, with 512 and 2,048 beside, experts: those of
// prompts, together: those of eight decode rows that share some, dense: the products of a dense model's prompts, or long: decode rows of long k (WINDOW_MOST in the environment: blocks of x
// from which on it comes with the stages).

#ifndef CUDA_MATRIX_BENCH_H
#define CUDA_MATRIX_BENCH_H

#ifdef CUDA_EMULATION
static int bench(int, char **)
{
    printf("no device\n");
    return 2;
}
#else

enum { BENCH_RUNS = 5, BENCH_CHAIN = 48 };
static const int64_t bench_memory = (int64_t)768 << 20; // of weight sets at least, unless one is larger

__global__ void bench_fill_kernel(uint32_t *p, int64_t words, uint32_t seed, int floats)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u + seed;
        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        h ^= h >> 16;
        p[i] = floats ? __float_as_uint((float)h * 0x1p-31f - 1.0f) : h & 0xbf3fbf3fu; // no NaN in any encoding
    }
}

__global__ void __launch_bounds__(512) bench_read_kernel(const uint4 *p, int64_t count, uint32_t *out)
{
    uint32_t sum = 0;
    int64_t step = (int64_t)gridDim.x * 512 * 4;
    for (int64_t i = (int64_t)blockIdx.x * 2048 + threadIdx.x; i < count; i += step)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + j * 512 < count) {
                uint4 v = __ldcg(p + i + j * 512);
                sum ^= v.x ^ v.y ^ v.z ^ v.w;
            }
    if (sum == 0x12345678u)
        *out = sum;
}

static void *bench_random(int64_t bytes, int floats)
{
    static uint32_t seed;
    void *p = rig_device((size_t)bytes + 4096);
    rig_memory[rig_memory_count++] = p;
    bench_fill_kernel<<<1024, 256>>>((uint32_t *)p, bytes / 4 + 16, seed += 77777, floats);
    rig_finish("fill");
    return p;
}

// Keeps every multiprocessor busy for about `ms`, so that clocks are up when something is timed; counts one's cycles and time.
__global__ void bench_spin_kernel(uint64_t ns, uint64_t *count)
{
    uint64_t begin, now;
    int64_t cycles = clock64();
    float x = (float)threadIdx.x;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        for (int i = 0; i < 256; i++)
            x = fmaf(x, 0.999f, 0.5f);
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < ns);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        count[0] = (uint64_t)(clock64() - cycles);
        count[1] = now - begin;
    }
    if (x == 1e9f)
        count[2] = 1;
}

// Megahertz of the multiprocessors while they spin for `ms`.
static double bench_warm(double ms)
{
    static uint64_t *count;
    if (!count)
        count = (uint64_t *)rig_device(64);
    uint64_t seen[2];
    bench_spin_kernel<<<132 * 4, 256>>>((uint64_t)(ms * 1e6), count);
    rig_finish("spin");
    rig_copy(seen, count, sizeof seen);
    return (double)seen[0] * 1e3 / (double)seen[1];
}

// Microseconds of one of `launches` calls of chain(stream, i) in a graph: the median of BENCH_RUNS replays.
template <typename CHAIN> static double bench_graph(int launches, CHAIN chain)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    cudaEvent_t begin, end;
    must(cudaStreamCreate(&stream), "stream");
    must(cudaEventCreate(&begin), "event");
    must(cudaEventCreate(&end), "event");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < launches; i++)
        must(chain(stream, i), "launch");
    must(cudaStreamEndCapture(stream, &graph), "capture");
    must(cudaGraphInstantiate(&instance, graph, 0), "instantiate");
    double times[BENCH_RUNS];
    bench_warm(60);
    for (int r = -2; r < BENCH_RUNS; r++) {
        float ms = 0;
        must(cudaEventRecord(begin, stream), "record");
        must(cudaGraphLaunch(instance, stream), "replay");
        must(cudaEventRecord(end, stream), "record");
        must(cudaStreamSynchronize(stream), "replay");
        must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
        if (r >= 0)
            times[r] = (double)ms * 1000 / launches;
    }
    for (int i = 0; i < BENCH_RUNS; i++)
        for (int j = i + 1; j < BENCH_RUNS; j++)
            if (times[j] < times[i]) {
                double t = times[i];
                times[i] = times[j];
                times[j] = t;
            }
    must(cudaGraphExecDestroy(instance), "destroy");
    must(cudaGraphDestroy(graph), "destroy");
    must(cudaStreamDestroy(stream), "destroy");
    return times[BENCH_RUNS / 2];
}

static double bench_ceiling(void)
{
    int64_t bytes = (int64_t)4 << 30;
    const uint4 *p = (const uint4 *)bench_random(bytes, 0);
    uint32_t *out = (uint32_t *)bench_random(64, 0);
    double us = bench_graph(2, [&](cudaStream_t stream, int) {
        bench_read_kernel<<<132 * 4, 512, 0, stream>>>(p, bytes / 16, out);
        return cudaGetLastError();
    });
    put_back(0);
    double gbs = (double)bytes / us * 1e-3;
    printf("read ceiling %.0f GB/s\n", gbs);
    return gbs;
}

static int64_t bench_bytes(const struct weight *w, int64_t *scales)
{
    int64_t panels = (w->n + 15) / 16, blocks = (w->k + 31) / 32;
    *scales = panels * scale_panel_bytes(w);
    return panels * blocks * code_block_bytes(w->encoding, w->bits);
}

static void bench_name(const char *what, const struct weight *w, int rows)
{
    printf("%-12s %6s%d [%6d,%6d] %4d rows ", what, encoding_name(w->encoding), w->bits, w->n, w->k, rows);
}

// Launches of a graph: `most` of a long prompt.
static int bench_chain(int rows, int row_class, int most)
{
    return row_class == CLASS_PROMPT && rows > 128 ? most : BENCH_CHAIN;
}

static void bench_linear(int encoding, int bits, int group, int n, int k, int rows, int row_class, double ceiling)
{
    struct weight w = {encoding, bits, group, n, k, NULL, NULL, NULL, 0, 0};
    int64_t scales, bytes = bench_bytes(&w, &scales), all = bytes + scales;
    int sets = (int)(bench_memory / all) + 1, chain = bench_chain(rows, row_class, 4);
    sets = sets > chain ? chain : sets;
    const uint8_t *data = (const uint8_t *)bench_random(bytes * sets, 0);
    const uint8_t *scale = (const uint8_t *)bench_random(scales * sets + 64, 0);
    static struct linear_args a[BENCH_CHAIN];
    a[0] = {};
    a[0].pass = put_pass(rows, NULL);
    a[0].row_class = row_class;
    a[0].k = a[0].ldx = k;
    a[0].x = (const float *)bench_random((int64_t)rows * k * 4, 1);
    a[0].scratch = put(NULL, linear_scratch_bytes(rows, k));
    a[0].parts = 1;
    a[0].part[0].ldy = n;
    a[0].part[0].alpha = 1;
    a[0].part[0].y = (float *)put(NULL, (int64_t)rows * n * 4);
    for (int i = chain - 1; i >= 0; i--) {
        a[i] = a[0];
        w.data = data + i % sets * bytes;
        w.scale = scale + i % sets * scales;
        a[i].part[0].w = w;
    }
    double us = bench_graph(chain, [&](cudaStream_t stream, int i) { return cuda_linear(stream, &a[i], rows); });
    bench_name(row_class == CLASS_PROMPT ? "prompt" : "linear", &w, rows);
    printf("%8.2f us %6.0f GB/s %5.1f %% %7.1f TFLOP/s\n", us, (double)all / us * 1e-3,
           (double)all / us * 0.1 / ceiling, 2e-6 * rows * n * k / us);
    put_back(0);
}

static int bench_together; // slots of each row that have the experts of the first row

// `experts` experts, `slots` a row, all different while there are enough, but for those of bench_together.
static void bench_experts_of(int experts, int encoding, int bits, int group, int inner, int k, int rows, int slots,
                             int row_class, double ceiling)
{
    const int EXPERTS = experts;
    struct weight up = {encoding, bits, group, inner, k, NULL, NULL, NULL, 0, 0}, down = up;
    down.n = k;
    down.k = inner;
    up.data_stride = bench_bytes(&up, &up.scale_stride);
    down.data_stride = bench_bytes(&down, &down.scale_stride);
    up.scale_stride = (up.scale_stride + 63) / 64 * 64;
    down.scale_stride = (down.scale_stride + 63) / 64 * 64;
    struct weight gate = up;
    up.data = (const uint8_t *)bench_random(up.data_stride * EXPERTS, 0);
    up.scale = (const uint8_t *)bench_random(up.scale_stride * EXPERTS, 0);
    gate.data = (const uint8_t *)bench_random(up.data_stride * EXPERTS, 0);
    gate.scale = (const uint8_t *)bench_random(up.scale_stride * EXPERTS, 0);
    down.data = (const uint8_t *)bench_random(down.data_stride * EXPERTS, 0);
    down.scale = (const uint8_t *)bench_random(down.scale_stride * EXPERTS, 0);
    int chain = bench_chain(rows, row_class, 2);
    static struct experts_up_args u[BENCH_CHAIN];
    static struct experts_down_args d[BENCH_CHAIN];
    u[0] = {};
    d[0] = {};
    u[0].pass = d[0].pass = put_pass(rows, NULL);
    u[0].row_class = d[0].row_class = row_class;
    u[0].experts = d[0].experts = EXPERTS;
    u[0].slots = d[0].slots = slots;
    u[0].k = u[0].ldx = d[0].n = k;
    u[0].inner = d[0].k = inner;
    u[0].activation = ACT_SILU;
    u[0].x = (const float *)bench_random((int64_t)rows * k * 4, 1);
    u[0].gate = gate;
    u[0].up = up;
    d[0].down = down;
    u[0].h = (float *)bench_random((int64_t)rows * slots * inner * 4, 1);
    d[0].h = u[0].h;
    d[0].y = (float *)put(NULL, (int64_t)rows * slots * k * 4);
    u[0].groups = d[0].groups = put(NULL, 64 * 64 + 4 * (2 * EXPERTS + 1 + (int64_t)rows * slots));
    u[0].scratch = d[0].scratch = put(NULL, 8 * ((int64_t)rows * slots + 16) * ((k + 127) / 128 * 128));
    int32_t *ids = (int32_t *)malloc((size_t)rows * (size_t)slots * 4);
    int64_t active = (int64_t)rows * slots < EXPERTS ? (int64_t)rows * slots : EXPERTS;
    for (int i = chain - 1; i >= 0; i--) {
        for (int r = 0; r < rows * slots; r++)
            ids[r] = (int)(((int64_t)(r % slots < bench_together ? r % slots : r) * 7 + i * 11 * slots) % EXPERTS);
        u[i] = u[0];
        d[i] = d[0];
        u[i].ids = d[i].ids = (const int32_t *)put(ids, (int64_t)rows * slots * 4);
    }
    free(ids);
    double us = bench_graph(chain, [&](cudaStream_t stream, int i) { return cuda_experts_up(stream, &u[i], rows); });
    int64_t bytes = 2 * active * (up.data_stride + up.scale_stride);
    bench_name("experts up", &up, rows);
    printf("%8.2f us %6.0f GB/s %5.1f %% %7.1f TFLOP/s\n", us, (double)bytes / us * 1e-3,
           (double)bytes / us * 0.1 / ceiling, 4e-6 * rows * slots * inner * k / us);
    us = bench_graph(chain, [&](cudaStream_t stream, int i) { return cuda_experts_down(stream, &d[i], rows); });
    bytes = active * (down.data_stride + down.scale_stride);
    bench_name("experts down", &down, rows);
    printf("%8.2f us %6.0f GB/s %5.1f %% %7.1f TFLOP/s\n", us, (double)bytes / us * 1e-3,
           (double)bytes / us * 0.1 / ceiling, 2e-6 * rows * slots * inner * k / us);
    put_back(0);
}

static void bench_experts(int encoding, int bits, int group, int inner, int k, int rows, int slots, int row_class,
                          double ceiling)
{
    bench_experts_of(512, encoding, bits, group, inner, k, rows, slots, row_class, ceiling);
}

// Experts of eight decode rows, some of which all rows have chosen.
static void bench_experts_together(double ceiling)
{
    static const int some[] = {0, 1, 2, 5};
    for (int together : some) {
        bench_together = together;
        printf("%d of slots of eight rows have the same expert:\n", together);
        bench_experts(ENC_NVFP4, 4, 0, 640, 2560, 8, 10, CLASS_DECODE, ceiling);
        bench_experts_of(256, ENC_AFFINE, 4, 64, 512, 2048, 8, 8, CLASS_DECODE, ceiling);
    }
    bench_together = 0;
}

// Experts of prompts: Flash Next's, and those of Qwen3.5-35B-A3B; of the numbers of rows given, or of some.
static void bench_prompt_experts(int count, char **arguments, double ceiling)
{
    static const int some[] = {32, 64, 128, 256, 512, 1024, 2048};
    const int all = count > 0 ? count : (int)(sizeof some / sizeof *some);
    for (int i = 0; i < 2 * all; i++) {
        const int rows = count > 0 ? atoi(arguments[i % all]) : some[i % all];
        if (i < all)
            bench_experts(ENC_NVFP4, 4, 0, 640, 2560, rows, 10, CLASS_PROMPT, ceiling);
        else
            bench_experts_of(256, ENC_AFFINE, 4, 64, 512, 2048, rows, 8, CLASS_PROMPT, ceiling);
    }
}

static const struct {
    int encoding, bits, group;
} bench_codes[] = {
    {ENC_NVFP4, 4, 0}, {ENC_AFFINE, 4, 32},   {ENC_MXFP8, 8, 0},
    {ENC_BF16, 0, 0},  {ENC_FP8_BLOCK, 8, 0}, {ENC_AFFINE, 4, 64},
};

// Prompts of few rows are launched for 32 and 128 of them.
static void bench_few(double ceiling)
{
    static const int shapes[][2] = {{320, 10240},  {2560, 6144}, {512, 2560}, {640, 2560},
                                    {10240, 2560}, {10240, 320}, {2560, 640}},
                     rows[] = {32, 128, 512, 2048};
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        for (int r : rows)
            bench_linear(ENC_BF16, 0, 0, shapes[i][0], shapes[i][1], r, CLASS_PROMPT, ceiling);
    for (int r : rows)
        bench_experts(ENC_NVFP4, 4, 0, 640, 2560, r, 10, CLASS_PROMPT, ceiling);
}

// Products of many outputs of prompts (Qwen3.5-27B, and those of Flash Next that stay bf16): of the numbers of rows given, or of 512 and
// 2,048.
static void bench_dense(int count, char **arguments, double ceiling)
{
    static const struct {
        int encoding, bits, group, n, k;
    } shapes[] = {
        {ENC_AFFINE, 4, 64, 34816, 5120}, {ENC_AFFINE, 4, 64, 5120, 17408}, {ENC_AFFINE, 4, 64, 16384, 5120},
        {ENC_AFFINE, 4, 64, 5120, 6144},  {ENC_AFFINE, 4, 64, 2048, 4096},  {ENC_BF16, 0, 0, 16384, 2560},
        {ENC_BF16, 0, 0, 12288, 2560},    {ENC_BF16, 0, 0, 2560, 6144},     {ENC_BF16, 0, 0, 2560, 640},
        {ENC_BF16, 0, 0, 640, 2560},
    };
    static const int some[] = {512, 2048};
    for (const auto &s : shapes)
        for (int i = 0; i < (count > 0 ? count : 2); i++)
            bench_linear(s.encoding, s.bits, s.group, s.n, s.k, count > 0 ? atoi(arguments[i]) : some[i], CLASS_PROMPT,
                         ceiling);
}

// Decode rows of long k: products of Qwen3.5-27B and 9B, of the numbers of rows given, or of some.
static void bench_long(int count, char **arguments, double ceiling)
{
    static const int shapes[][2] = {{34816, 5120},  {16480, 5120}, {5120, 6144}, {5120, 17408},
                                    {248320, 5120}, {24576, 4096}, {4096, 4096}, {4096, 12288}},
                     codes[][3] = {{ENC_AFFINE, 4, 64}, {ENC_FP8_BLOCK, 8, 0}}, some[] = {1, 2, 4, 8};
    const int all = count > 0 ? count : (int)(sizeof some / sizeof *some);
    for (const int *code : codes)
        for (const int *shape : shapes)
            for (int i = 0; i < all; i++)
                bench_linear(code[0], code[1], code[2], shape[0], shape[1], count > 0 ? atoi(arguments[i]) : some[i],
                             CLASS_DECODE, ceiling);
}

static int bench(int count, char **arguments)
{
    static const int shapes[][2] = {{12288, 2560}, {10240, 2560}, {2560, 6144}, {2560, 2560},  {320, 10240},
                                    {10240, 320},  {640, 2560},   {2560, 640},  {2560, 12288}, {248320, 2560}};
    if (getenv("WINDOW_MOST"))
        window_most = atoi(getenv("WINDOW_MOST"));
    double cold = bench_warm(2), warm = bench_warm(300), ceiling = bench_ceiling();
    printf("multiprocessors at %.0f MHz at first, then %.0f; %.0f after the read\n", cold, warm, bench_warm(2));
    bool prompt_only = count > 0 && strcmp(arguments[0], "prompt") == 0;
    bool decode_only = count > 0 && strcmp(arguments[0], "decode") == 0;
    if (count > 0 && strcmp(arguments[0], "few") == 0) {
        bench_few(ceiling);
        return 0;
    }
    if (count > 0 && strcmp(arguments[0], "dense") == 0) {
        bench_dense(count - 1, arguments + 1, ceiling);
        return 0;
    }
    if (count > 0 && strcmp(arguments[0], "long") == 0) {
        bench_long(count - 1, arguments + 1, ceiling);
        return 0;
    }
    if (count > 0 && strcmp(arguments[0], "together") == 0) {
        bench_experts_together(ceiling);
        return 0;
    }
    if (count > 0 && strcmp(arguments[0], "experts") == 0) {
        bench_prompt_experts(count - 1, arguments + 1, ceiling);
        return 0;
    }
    for (int c = 0; c < (int)(sizeof bench_codes / sizeof *bench_codes) && !prompt_only; c++) {
        int e = bench_codes[c].encoding, b = bench_codes[c].bits, g = bench_codes[c].group;
        for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
            for (int rows = 1; rows <= 8; rows *= 8)
                if (c < 4 || i < 3)
                    bench_linear(e, b, g, shapes[i][0], shapes[i][1], rows, CLASS_DECODE, ceiling);
        if (c < 3)
            for (int rows = 1; rows <= 8; rows *= 8)
                bench_experts(e, b, g, 640, 2560, rows, 10, CLASS_DECODE, ceiling);
    }
    for (int c = 0; c < 4 && !decode_only; c++) {
        int e = bench_codes[c].encoding, b = bench_codes[c].bits, g = bench_codes[c].group;
        bench_linear(e, b, g, 12288, 2560, 256, CLASS_PROMPT, ceiling);
        bench_linear(e, b, g, 12288, 2560, 2048, CLASS_PROMPT, ceiling);
        bench_linear(e, b, g, 2560, 12288, 2048, CLASS_PROMPT, ceiling);
        bench_linear(e, b, g, 320, 10240, 2048, CLASS_PROMPT, ceiling);
        if (c < 3) {
            bench_experts(e, b, g, 640, 2560, 256, 10, CLASS_PROMPT, ceiling);
            bench_experts(e, b, g, 640, 2560, 2048, 10, CLASS_PROMPT, ceiling);
        }
    }
    if (!decode_only)
        bench_few(ceiling);
    return 0;
}
#endif

#endif
