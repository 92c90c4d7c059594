// SPDX-License-Identifier: Apache-2.0
//
// Red controls of the sanitizers: `planted TOOL` makes the error that the tool must find, and is right otherwise.
// `planted gpu` says which GPU is here, once a kernel of this build has run on it: exit code 2 and one line when there
// is none that can be used.

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

static __global__ void nothing(float *x)
{
    x[threadIdx.x] = 0;
}

static int gpu(float *x)
{
    cudaDeviceProp properties;
    nothing<<<1, THREADS>>>(x);
    cudaError_t status = cudaGetLastError();
    status = status == cudaSuccess ? cudaDeviceSynchronize() : status;
    status = status == cudaSuccess ? cudaGetDeviceProperties(&properties, 0) : status;
    if (status != cudaSuccess) {
        std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
        return 2;
    }
    std::puts(properties.name);
    return 0;
}

int main(int count, char **words)
{
    const char *tool = count == 2 ? words[1] : "";
    float *x = nullptr, *y = nullptr;
    cudaError_t status = cudaMalloc(&x, ROOM);
    status = status == cudaSuccess ? cudaMalloc(&y, ROOM) : status;
    if (status != cudaSuccess) {
        std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
        return 2;
    }
    cudaMemset(y, 0, ROOM);
    if (!std::strcmp(tool, "gpu"))
        return gpu(y);
    if (!std::strcmp(tool, "memcheck"))
        outside<<<1, THREADS>>>(y);
    else if (!std::strcmp(tool, "racecheck"))
        race<<<1, THREADS>>>(y);
    else if (!std::strcmp(tool, "initcheck"))
        unwritten<<<1, THREADS>>>(x, y);
    else if (!std::strcmp(tool, "synccheck"))
        stranger<<<1, THREADS>>>(y);
    else {
        std::fprintf(stderr, "usage: planted gpu|memcheck|racecheck|initcheck|synccheck\n");
        return 2;
    }
    cudaDeviceSynchronize();
    return 0;
}
