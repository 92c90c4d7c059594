// SPDX-License-Identifier: Apache-2.0
//
// Reads a buffer from end to end with 16-byte loads, eight in flight a thread: what `bench` calls the read ceiling.

#include <cuda_runtime.h>
#include <stdint.h>

__global__ static void read_all(const uint4 *buffer, int64_t count, uint32_t *sum)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    uint32_t total = 0;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 7 * step < count; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = __ldcs(buffer + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; j++)
            total += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < count; i += step)
        total += buffer[i].x;
    if (total == 0xdeadbeefu) // never, but the compiler cannot know
        *sum = total;
}

extern "C" cudaError_t cuda_read(cudaStream_t stream, const void *buffer, int64_t bytes, void *sum)
{
    read_all<<<132 * 4, 512, 0, stream>>>((const uint4 *)buffer, bytes / 16, (uint32_t *)sum);
    return cudaGetLastError();
}
