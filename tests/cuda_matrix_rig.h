// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the CUDA matrix kernels share: device memory that a case gives back as a whole, TAP.
//
// Invariant: a failed CUDA call ends the program with a line that names it; nothing of it is taken for a result.

#ifndef CUDA_MATRIX_RIG_H
#define CUDA_MATRIX_RIG_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/linear.cuh"
#include "tests/cuda_matrix_sample.h"

extern "C" {
#include "kernels/cpu/layout.h"
cudaError_t cuda_linear(cudaStream_t stream, const struct linear_args *args, int rows);
cudaError_t cuda_experts_up(cudaStream_t stream, const struct experts_up_args *args, int rows);
cudaError_t cuda_experts_down(cudaStream_t stream, const struct experts_down_args *args, int rows);
cudaError_t cuda_embed(cudaStream_t stream, const struct embed_args *args, int rows);
}

static int tests_run, tests_failed;

__attribute__((format(printf, 2, 3))) static void ok(bool good, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    tests_failed += !good;
    printf("%s %d - ", good ? "ok" : "not ok", ++tests_run);
    vprintf(format, list);
    printf("\n");
    va_end(list);
    fflush(stdout);
}

static int done(void)
{
    printf("1..%d\n", tests_run);
    return tests_failed != 0;
}

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
#ifdef CUDA_EMULATION
    printf("Bail out! %s: error %d\n", what, (int)error);
#else
    printf("Bail out! %s: %s\n", what, cudaGetErrorString(error));
#endif
    exit(1);
}

#ifdef CUDA_EMULATION
static inline void *rig_device(size_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 511) / 256 * 256);
    early_add(p, (bytes + 511) / 256 * 256);
    return p;
}
static inline void rig_free(void *p)
{
    early_drop(p);
    free(p);
}
static inline void rig_copy(void *to, const void *from, size_t bytes)
{
    early_settle();
    memcpy(to, from, bytes);
}
static inline void rig_fill(void *to, int byte, size_t bytes)
{
    early_settle();
    memset(to, byte, bytes);
}
static inline void rig_finish(const char *)
{
    early_settle();
}
#else
static inline void *rig_device(size_t bytes)
{
    void *p;
    must(cudaMalloc(&p, bytes + 256), "cudaMalloc");
    return p;
}
static inline void rig_free(void *p)
{
    must(cudaFree(p), "cudaFree");
}
static inline void rig_copy(void *to, const void *from, size_t bytes)
{
    must(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
}
static inline void rig_fill(void *to, int byte, size_t bytes)
{
    must(cudaMemset(to, byte, bytes), "cudaMemset");
}
static inline void rig_finish(const char *what)
{
    must(cudaGetLastError(), what);
    must(cudaDeviceSynchronize(), what);
}
#endif

// Device memory of the case in hand.
static void *rig_memory[4096];
static int rig_memory_count;

static void *put(const void *host, int64_t bytes)
{
    void *p = rig_device((size_t)bytes);
    if (rig_memory_count == 4096)
        exit(1);
    rig_memory[rig_memory_count++] = p;
    if (host && bytes)
        rig_copy(p, host, (size_t)bytes);
    else
        rig_fill(p, 0xff, (size_t)bytes); // NaN
    return p;
}

static void put_back(int count)
{
    while (rig_memory_count > count)
        rig_free(rig_memory[--rig_memory_count]);
}

extern "C" cudaError_t cuda_arrange(cudaStream_t stream, const struct weight *w, int32_t experts);

// Codes that a pack's bytes were copied to, as kernels read them.
static void put_arranged(const struct weight *w, int count)
{
    must(cuda_arrange(0, w, count), "arrange");
    rig_finish("arrange");
}

// The matrix with its data on the device.
static struct weight put_weight(const struct matrix *m)
{
    struct weight w = m->w;
    w.data = (const uint8_t *)put(m->w.data, m->data_bytes);
    w.scale = (const uint8_t *)put(m->scale_bytes ? m->w.scale : NULL, m->scale_bytes);
    w.global = m->global == 1 ? NULL : (const float *)put(&m->global, 4);
    put_arranged(&w, 1);
    return w;
}

static struct pass *put_pass(int rows, int32_t *token)
{
    struct pass pass = {};
    pass.rows = rows;
    pass.token = token;
    return (struct pass *)put(&pass, sizeof pass);
}

static const char *encoding_name(int encoding)
{
    static const char *const names[] = {"f32", "bf16", "f16", "affine", "nvfp4", "mxfp8", "fp8 block", "fp8", "int4"};
    return names[encoding];
}

#endif
