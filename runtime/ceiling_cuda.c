// SPDX-License-Identifier: Apache-2.0
//
// The read ceiling of a GPU: a buffer much larger than its L2 is summed with 16-byte loads. See ceiling.h; the pool is not used.

#include "runtime/ceiling.h"
#include <cuda_runtime.h>
#include <stdlib.h>

enum { PASSES = 4 };

// kernels/cuda/ceiling.cu: sums `bytes` (a multiple of 4096) of the buffer; the sum keeps the loads alive.
cudaError_t cuda_read(cudaStream_t stream, const void *buffer, int64_t bytes, void *sum);

struct ceiling {
    void *buffer, *sum;
    int64_t bytes;
    cudaEvent_t start, stop;
};

struct ceiling *ceiling_open(struct pool *pool, int64_t bytes, struct error *error)
{
    (void)pool;
    struct ceiling *c = calloc(1, sizeof *c);
    int64_t most = 4ll << 30;
    if (!c) {
        error_set(error, "no memory to measure the read ceiling");
        return NULL;
    }
    c->bytes = (bytes < most ? most : bytes > 2 * most ? 2 * most : bytes) / 4096 * 4096;
    if (cudaMalloc(&c->buffer, (size_t)c->bytes) != cudaSuccess || cudaMalloc(&c->sum, 256) != cudaSuccess ||
        cudaMemset(c->buffer, 1, (size_t)c->bytes) != cudaSuccess) {
        error_set(error, "no GPU memory to measure the read ceiling (%.1f GiB)", (double)c->bytes / (1 << 30));
        ceiling_close(c);
        return NULL;
    }
    cudaEventCreate(&c->start);
    cudaEventCreate(&c->stop);
    return c;
}

void ceiling_close(struct ceiling *c)
{
    if (!c)
        return;
    cudaFree(c->buffer);
    cudaFree(c->sum);
    free(c);
}

double ceiling_measure(struct ceiling *c)
{
    double best = 0;
    for (int i = 0; i < PASSES; i++) {
        float ms = 0;
        cudaEventRecord(c->start, cudaStreamPerThread);
        cuda_read(cudaStreamPerThread, c->buffer, c->bytes, c->sum);
        cudaEventRecord(c->stop, cudaStreamPerThread);
        cudaEventSynchronize(c->stop);
        cudaEventElapsedTime(&ms, c->start, c->stop);
        double rate = ms > 0 ? (double)c->bytes / ((double)ms * 1e-3) : 0;
        best = rate > best ? rate : best;
    }
    return best;
}
