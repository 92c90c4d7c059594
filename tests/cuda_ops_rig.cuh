// SPDX-License-Identifier: Apache-2.0
//
// What the tests of CUDA ops share: memory that exists on both sides, launches on either, comparisons, TAP.
//
// Everything that a kernel sees lies in one arena of the host with a copy on the device at the same offsets. Arguments hold
// host addresses; a launch on the device translates every word of them that is one, and pointers within the arena are
// registered as slots, which are translated when they are pushed.
//
// Invariant: what is compared was written by the kernel under test: outputs are poisoned with NaN bits before each run.

#ifndef CUDA_OPS_RIG_CUH
#define CUDA_OPS_RIG_CUH

#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "kernels/cpu/ops.h"
}

// clang-format off
#define RIG_OPS(X)                                                                                                     \
    X(norm)                                                                                                            \
    X(gated_norm)                                                                                                      \
    X(head_norm)                                                                                                       \
    X(add)                                                                                                             \
    X(glu)                                                                                                             \
    X(hc_mix)                                                                                                          \
    X(hc_inject) X(streams_add) X(ngram) X(ple_gate) X(ple_add) X(conv) X(gdn) X(mamba) X(kv_append) X(index_pool)     \
        X(index_select) X(attention) X(route) X(moe_sum) X(rows) X(gather) X(save_streams) X(draw) X(accept) X(commit)
// clang-format on
#define RIG_DECLARE(op)                                                                                                \
    extern "C" const struct kernel kernel_##op##_portable;                                                             \
    extern "C" cudaError_t cuda_##op(cudaStream_t, const struct op##_args *, int);
RIG_OPS(RIG_DECLARE)

// ---- TAP, numbers ------------------------------------------------------------------------------------------------------------

static int rig_tests, rig_failures;

__attribute__((format(printf, 2, 3), unused)) static bool ok(bool good, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    rig_failures += !good;
    printf("%sok %d - ", good ? "" : "not ", ++rig_tests);
    vprintf(format, list);
    printf("\n");
    fflush(stdout);
    va_end(list);
    return good;
}

static uint64_t rig_state = 1;

static inline uint64_t rig_next(void)
{
    rig_state ^= rig_state << 13;
    rig_state ^= rig_state >> 7;
    rig_state ^= rig_state << 17;
    return rig_state;
}

static inline int rig_below(int n)
{
    return (int)((rig_next() >> 33) % (uint64_t)n);
}

// Uniform in (-scale, scale).
static inline float rig_float(float scale)
{
    return ((float)(rig_next() >> 40) / 8388608.0f - 1.0f) * scale;
}

// ---- memory on both sides ------------------------------------------------------------------------------------------------------

enum { RIG_ARENA = 512 << 20, RIG_SLOTS = 256 };

static uint8_t *rig_host, *rig_device, *rig_seen;
static size_t rig_used;
static uint8_t *rig_slots[RIG_SLOTS]; // where pointers lie
static int rig_slot_count;

static void rig_check(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        printf("Bail out! %s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

static void rig_open(void)
{
    rig_host = (uint8_t *)aligned_alloc(4096, RIG_ARENA);
    rig_seen = (uint8_t *)aligned_alloc(4096, RIG_ARENA);
    rig_check(cudaMalloc((void **)&rig_device, RIG_ARENA), "cudaMalloc");
}

static void rig_reset(void)
{
    rig_used = 0;
    rig_slot_count = 0;
}

// n elements, poisoned.
template <typename T> static T *take(int64_t n)
{
    T *p = (T *)(rig_host + rig_used);
    rig_used += ((size_t)n * sizeof(T) + 255) / 256 * 256;
    if (rig_used > RIG_ARENA) {
        printf("Bail out! the arena of the test is too small\n");
        exit(1);
    }
    memset(p, 0xff, (size_t)n * sizeof(T));
    return p;
}

static inline float *take_floats(int64_t n, float scale)
{
    float *x = take<float>(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = rig_float(scale);
    return x;
}

// Registers a pointer that lies in the arena and points into it.
template <typename T> static void slot(T **place)
{
    if (rig_slot_count == RIG_SLOTS)
        exit(printf("Bail out! too many slots\n"));
    rig_slots[rig_slot_count++] = (uint8_t *)place;
}

static inline bool rig_inside(uint64_t word)
{
    return word >= (uint64_t)rig_host && word < (uint64_t)rig_host + rig_used;
}

// Copies a range to the device, pointers translated.
static void push(const void *p, int64_t bytes)
{
    const size_t at = (size_t)((const uint8_t *)p - rig_host);
    uint8_t *copy = (uint8_t *)malloc((size_t)bytes);
    memcpy(copy, p, (size_t)bytes);
    for (int i = 0; i < rig_slot_count; i++) {
        const int64_t offset = rig_slots[i] - rig_host - (int64_t)at;
        uint8_t *there;
        memcpy(&there, rig_slots[i], sizeof there);
        if (offset >= 0 && offset < bytes && there) {
            there = rig_device + (there - rig_host);
            memcpy(copy + offset, &there, sizeof there);
        }
    }
    rig_check(cudaMemcpy(rig_device + at, copy, (size_t)bytes, cudaMemcpyHostToDevice), "copy to the device");
    free(copy);
}

static inline void push_all(void)
{
    push(rig_host, (int64_t)rig_used);
}

// What the device has in a range; valid until the next pull of it.
template <typename T> static T *pull(const T *p, int64_t n)
{
    const size_t at = (size_t)((const uint8_t *)p - rig_host);
    rig_check(cudaMemcpy(rig_seen + at, rig_device + at, (size_t)n * sizeof(T), cudaMemcpyDeviceToHost), "copy back");
    return (T *)(rig_seen + at);
}

// ---- launches ------------------------------------------------------------------------------------------------------------------

// Arguments with the device's addresses.
template <typename A> static A translated(const A &args)
{
    A copy = args;
    uint64_t words[sizeof(A) / 8];
    memcpy(words, &copy, sizeof words);
    for (uint64_t &word : words)
        if (rig_inside(word))
            word = (uint64_t)(rig_device + (word - (uint64_t)rig_host));
    memcpy(&copy, words, sizeof words);
    return copy;
}

// Runs an op on the device with `capacity` rows.
template <typename A> static void gpu(cudaError_t (*op)(cudaStream_t, const A *, int), const A *args, int capacity)
{
    const A copy = translated(*args);
    rig_check(op(0, &copy, capacity), "launch");
    rig_check(cudaDeviceSynchronize(), "kernel");
}

static void cpu(const struct kernel *kernel, const void *args)
{
    static void *scratch = aligned_alloc(64, KERNEL_SCRATCH);
    for (int p = 0; p < KERNEL_PHASES && kernel->phase[p].run; p++)
        kernel->phase[p].run(args, 0, kernel->phase[p].items(args), scratch);
}

// ---- comparisons -----------------------------------------------------------------------------------------------------------------

// Whether |x - y| <= bound (1 + |y|) everywhere.
static bool close_to(const float *x, const float *y, int64_t n, double bound)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)x[i] - (double)y[i]) <= bound * (1 + fabs((double)y[i])))) {
            printf("# element %ld: %.9g, expected %.9g\n", (long)i, (double)x[i], (double)y[i]);
            return false;
        }
    return true;
}

static bool same(const void *x, const void *y, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        if (((const uint8_t *)x)[i] != ((const uint8_t *)y)[i]) {
            printf("# byte %ld of %ld differs\n", (long)i, (long)bytes);
            return false;
        }
    return true;
}

// ---- passes and lanes --------------------------------------------------------------------------------------------------------------

static struct pass *take_pass(int32_t capacity)
{
    struct pass *p = take<struct pass>(1);
    memset(p, 0, sizeof *p);
    p->lane = take<int32_t>(capacity);
    p->position = take<int32_t>(capacity);
    p->token = take<int32_t>(capacity);
    slot(&p->lane);
    slot(&p->position);
    slot(&p->token);
    return p;
}

// Gives lane l `rows` rows from `position` on; lanes in ascending order.
static void pass_add(struct pass *p, int32_t l, int32_t position, int32_t rows)
{
    p->lane_first[l] = p->rows;
    p->lane_rows[l] = rows;
    for (int32_t i = 0; i < rows; i++) {
        p->lane[p->rows] = l;
        p->token[p->rows] = rig_below(1000);
        p->position[p->rows++] = position + i;
    }
}

static void pass_clear(struct pass *p)
{
    p->rows = 0;
    memset(p->lane_first, 0, sizeof p->lane_first);
    memset(p->lane_rows, 0, sizeof p->lane_rows);
}

static void push_pass(const struct pass *p, int32_t capacity)
{
    push(p, sizeof *p);
    push(p->lane, 4 * capacity);
    push(p->position, 4 * capacity);
    push(p->token, 4 * capacity);
}

static struct lane *take_lane(int64_t run_bytes, int32_t tokens)
{
    struct lane *lane = take<struct lane>(1);
    memset(lane, 0, sizeof *lane);
    lane->tokens = take<int32_t>(tokens);
    lane->run = take<uint8_t>(run_bytes);
    memset(lane->run, 0, (size_t)run_bytes);
    for (int32_t i = 0; i < tokens; i++)
        lane->tokens[i] = rig_below(1000);
    slot(&lane->tokens);
    slot(&lane->run);
    for (int i = 0; i < LANE_KEEPS; i++)
        slot(&lane->keep_run[i]);
    return lane;
}

#endif
