// SPDX-License-Identifier: Apache-2.0
//
// Red controls of the sanitizers: `planted TOOL` makes the error that the tool must find, and is right otherwise.

#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>

enum { THREADS = 64, ROOM = 4 << 20 };

// memcheck: a write behind the memory that was asked for.
static __global__ void outside(float *x)
{
    x[ROOM / 4 + threadIdx.x] = 1;
}

// racecheck: threads of another warp read what was not waited for.
static __global__ void race(float *x)
{
    __shared__ float held[THREADS];
    held[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = held[THREADS - 1 - threadIdx.x];
}

// initcheck: reads what nobody has written.
static __global__ void unwritten(const float *x, float *y)
{
    y[threadIdx.x] = x[threadIdx.x] + 1;
}

// synccheck: threads wait in a mask that they are not in.
static __global__ void stranger(float *x)
{
    const unsigned mask = __ballot_sync(0xffffffffu, threadIdx.x % 32 < 16);
    __syncwarp(mask);
    x[threadIdx.x] = 1;
}

int main(int count, char **words)
{
    const char *tool = count == 2 ? words[1] : "";
    float *x = nullptr, *y = nullptr;
    if (cudaMalloc(&x, ROOM) != cudaSuccess || cudaMalloc(&y, ROOM) != cudaSuccess) {
        std::fprintf(stderr, "no GPU, or no memory\n");
        return 2;
    }
    cudaMemset(y, 0, ROOM);
    if (!std::strcmp(tool, "memcheck"))
        outside<<<1, THREADS>>>(y);
    else if (!std::strcmp(tool, "racecheck"))
        race<<<1, THREADS>>>(y);
    else if (!std::strcmp(tool, "initcheck"))
        unwritten<<<1, THREADS>>>(x, y);
    else if (!std::strcmp(tool, "synccheck"))
        stranger<<<1, THREADS>>>(y);
    else {
        std::fprintf(stderr, "usage: planted memcheck|racecheck|initcheck|synccheck\n");
        return 2;
    }
    cudaDeviceSynchronize();
    return 0;
}
