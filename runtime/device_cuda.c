// SPDX-License-Identifier: Apache-2.0
//
// Target memory on a GPU. Everything is ordered on the calling thread's stream, as the launches are. See device.h.

#include "kernels/cpu/ops.h"
#include "runtime/device.h"
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

const bool device_apart = true;
const int device_kv_encoding = KV_BF16;

void *device_alloc(int64_t bytes, const char *what, struct error *error)
{
    void *memory = NULL;
    size_t size = (size_t)(bytes > 0 ? bytes : 1);
    cudaError_t status = cudaMalloc(&memory, size);
    if (status == cudaSuccess)
        status = cudaMemsetAsync(memory, 0, size, cudaStreamPerThread);
    if (status == cudaSuccess)
        return memory;
    cudaGetLastError();
    cudaFree(memory);
    error_set(error, "no GPU memory for %s: %.1f MiB are needed, %.1f MiB are free (%s); lower --context or --lanes",
              what, (double)bytes / (1 << 20), (double)device_free_bytes() / (1 << 20), cudaGetErrorString(status));
    return NULL;
}

void device_free(void *memory, int64_t bytes)
{
    (void)bytes;
    if (memory)
        cudaFree(memory);
}

bool device_copy(void *to, const void *from, int64_t bytes)
{
    return cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, cudaStreamPerThread) == cudaSuccess;
}

void device_zero(void *memory, int64_t bytes)
{
    cudaMemsetAsync(memory, 0, (size_t)bytes, cudaStreamPerThread);
}

void device_upload(void *device, const void *host, int64_t bytes)
{
    cudaMemcpyAsync(device, host, (size_t)bytes, cudaMemcpyHostToDevice, cudaStreamPerThread);
}

void device_download(void *host, const void *device, int64_t bytes)
{
    cudaMemcpyAsync(host, device, (size_t)bytes, cudaMemcpyDeviceToHost, cudaStreamPerThread);
    cudaStreamSynchronize(cudaStreamPerThread);
}

void *device_host_alloc(int64_t bytes, const char *what, struct error *error)
{
    void *memory = NULL;
    if (cudaHostAlloc(&memory, (size_t)bytes, cudaHostAllocDefault) == cudaSuccess)
        return memory;
    cudaGetLastError();
    error_set(error, "no pinned memory for %s (%.1f MiB)", what, (double)bytes / (1 << 20));
    return NULL;
}

void device_host_free(void *memory, int64_t bytes)
{
    (void)bytes;
    if (memory)
        cudaFreeHost(memory);
}

void device_settle(void)
{
    cudaStreamSynchronize(cudaStreamPerThread);
}

const void *device_view(const void *device, int64_t bytes, void *buffer)
{
    device_download(buffer, device, bytes);
    return buffer;
}

int64_t device_free_bytes(void)
{
    size_t free_bytes = 0, total = 0;
    return cudaMemGetInfo(&free_bytes, &total) == cudaSuccess ? (int64_t)free_bytes : -1;
}

bool mirror_open(struct mirror *mirror, int64_t bytes, const char *what, struct error *error)
{
    *mirror = (struct mirror){.bytes = bytes, .device = device_alloc(bytes, what, error)};
    if (!mirror->device)
        return false;
    if (cudaHostAlloc(&mirror->host, (size_t)bytes, cudaHostAllocDefault) == cudaSuccess) {
        memset(mirror->host, 0, (size_t)bytes);
        return true;
    }
    cudaGetLastError();
    mirror->host = NULL;
    mirror_close(mirror);
    return error_set(error, "no pinned memory for %s (%.1f MiB)", what, (double)bytes / (1 << 20));
}

void mirror_close(struct mirror *mirror)
{
    device_free(mirror->device, mirror->bytes);
    if (mirror->host)
        cudaFreeHost(mirror->host);
    *mirror = (struct mirror){0};
}

void mirror_push(const struct mirror *mirror, int64_t offset, int64_t bytes)
{
    device_upload((char *)mirror->device + offset, (const char *)mirror->host + offset, bytes);
}

void mirror_pull(const struct mirror *mirror, int64_t offset, int64_t bytes)
{
    device_download((char *)mirror->host + offset, (const char *)mirror->device + offset, bytes);
}
