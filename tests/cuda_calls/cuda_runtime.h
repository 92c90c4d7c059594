// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for the CUDA runtime that does what graphs/exec_cuda.c orders, late, and counts what it was called for. For
// exec_cuda_test.c, which includes it once.
//
// Invariant: nothing that was launched is done before the driver is asked `fake.patience` times, or waited for; with a patience of 0
// it is done when the launch returns.

#ifndef CUDA_CALLS_RUNTIME_H
#define CUDA_CALLS_RUNTIME_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    cudaSuccess,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorUnknown = 999,
} cudaError_t;

enum { cudaHostAllocDefault, cudaStreamCaptureModeThreadLocal };
enum { FAKE_NODES = 256 };

struct cudaDeviceProp {
    int major, minor, multiProcessorCount, canMapHostMemory, unifiedAddressing;
};

struct fake_node {
    void (*run)(void *to, const void *from, int units);
    void *to;
    const void *from;
    int units;
};

struct fake_graph {
    struct fake_node node[FAKE_NODES];
    size_t count;
};

typedef void *cudaStream_t, *cudaEvent_t;
typedef struct fake_graph *cudaGraph_t, *cudaGraphExec_t;
#define cudaStreamPerThread NULL

static struct {
    struct fake_graph queue, *capture; // what is launched and not done; what is being captured
    int patience, asked;
    int launches, queries, waits, others; // calls; launches: of graphs and of kernels that run
    int kernels, uploads, instances;
    int fail_end;       // so many captures from now on one is found broken when it ends; 0: none
    size_t first;       // launches of the graph that was launched first since somebody cleared this
    cudaError_t broken; // what the device fails with
} fake;

static inline void fake_run(struct fake_graph *g)
{
    for (size_t i = 0; i < g->count && fake.broken == cudaSuccess; i++)
        g->node[i].run(g->node[i].to, g->node[i].from, g->node[i].units);
    g->count = 0;
}

// A kernel goes where the stream says.
static inline cudaError_t fake_launch(struct fake_node node)
{
    struct fake_graph *g = fake.capture ? fake.capture : &fake.queue;
    fake.kernels++;
    fake.launches += !fake.capture;
    g->node[g->count++] = node;
    if (!fake.capture && fake.patience == 0)
        fake_run(g);
    return cudaSuccess;
}

static inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)stream;
    fake.launches++;
    fake.first = fake.first ? fake.first : exec->count;
    memcpy(fake.queue.node + fake.queue.count, exec->node, exec->count * sizeof exec->node[0]);
    fake.queue.count += exec->count;
    if (fake.patience == 0)
        fake_run(&fake.queue);
    return cudaSuccess;
}

static inline cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    (void)stream;
    fake.queries++;
    if (fake.broken != cudaSuccess)
        return fake.broken;
    if (++fake.asked < fake.patience)
        return cudaErrorNotReady;
    fake.asked = 0;
    fake_run(&fake.queue);
    return cudaSuccess;
}

static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    fake.waits++;
    fake_run(&fake.queue);
    return fake.broken;
}

static inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode)
{
    (void)stream, (void)mode;
    fake.capture = calloc(1, sizeof *fake.capture);
    return cudaSuccess;
}

static inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    (void)stream;
    const bool fails = fake.fail_end > 0 && --fake.fail_end == 0;
    if (fails)
        free(fake.capture);
    *graph = fails ? NULL : fake.capture;
    fake.capture = NULL;
    return *graph ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}

static inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void *nodes, size_t *count)
{
    (void)nodes;
    *count = graph->count;
    return cudaSuccess;
}

static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned flags)
{
    (void)flags;
    fake.instances++;
    *exec = malloc(sizeof **exec);
    **exec = *graph;
    return cudaSuccess;
}

static inline cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)exec, (void)stream;
    fake.uploads++;
    return cudaSuccess;
}

static inline void cudaGraphDestroy(cudaGraph_t graph)
{
    free(graph);
}

static inline void cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    fake.instances--;
    free(exec);
}

static inline cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    *memory = malloc(bytes);
    return cudaSuccess;
}

static inline void cudaFreeHost(void *memory)
{
    free(memory);
}

static inline cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    fake.others++;
    *free_bytes = *total = 1 << 30;
    return cudaSuccess;
}

static inline cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

static inline const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "an error";
}

static inline const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}

static inline cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

static inline cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    (void)device;
    *p = (struct cudaDeviceProp){9, 0, 132, 1, 1};
    return cudaSuccess;
}

static inline cudaError_t fake_version(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

// Calls that only openings and timed launches make.
#define cudaDriverGetVersion(version)  fake_version(version)
#define cudaRuntimeGetVersion(version) fake_version(version)
#define cudaSetDevice(device)          ((void)(device), cudaSuccess)
#define cudaEventCreate(event)         (void)(*(event) = NULL)
#define cudaEventDestroy(event)        (void)(event)
#define cudaEventRecord(event, stream) (fake.others++, (void)(event), (void)(stream))
#define cudaEventSynchronize(event)    (fake.others++, (void)(event))
#define cudaEventElapsedTime(ms, a, b) (fake.others++, *(ms) = 0)

#endif
