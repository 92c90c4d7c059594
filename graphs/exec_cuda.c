// SPDX-License-Identifier: Apache-2.0
//
// Launches, capture and replay on a GPU: a captured program is one CUDA graph. See exec.h.
// Invariant: between exec_capture and exec_sync nothing allocates, waits or decides on the host.

#include "graphs/exec.h"
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

#define X(name) cudaError_t cuda_##name(cudaStream_t stream, const void *args, int rows);
#include "kernel_list.h"
#undef X

typedef cudaError_t launcher(cudaStream_t stream, const void *args, int rows);

static launcher *const launchers[KERNEL_COUNT] = {
#define X(name) cuda_##name,
#include "kernel_list.h"
#undef X
};

static const char *const names[KERNEL_COUNT] = {
#define X(name) #name,
#include "kernel_list.h"
#undef X
};

// Steps that have a kernel of their own: its launcher gets the arguments of each op, and may say cudaErrorNotSupported before it
// has launched anything.
#define STEPS(X)                                                                                                       \
    X(inject_norm, KERNEL_hc_inject, KERNEL_norm)                                                                      \
    X(sum_inject, KERNEL_moe_sum, KERNEL_hc_inject)                                                                    \
    X(sum_inject_norm, KERNEL_moe_sum, KERNEL_hc_inject, KERNEL_norm)                                                  \
    X(glu_linear, KERNEL_glu, KERNEL_linear)                                                                           \
    X(linear_mix, KERNEL_linear, KERNEL_hc_mix)                                                                        \
    X(conv_gdn_norm, KERNEL_conv, KERNEL_gdn, KERNEL_gated_norm)
#define X(name, ...) cudaError_t cuda_##name(cudaStream_t stream, const void *const *args, int rows);
STEPS(X)
#undef X

enum { STEP_MOST = 3, ARGS_MOST = 1024 };

static const struct step {
    cudaError_t (*launch)(cudaStream_t, const void *const *args, int rows);
    int kernels[STEP_MOST + 1];
} steps[] = {
#define X(name, ...) {cuda_##name, {__VA_ARGS__, -1}},
    STEPS(X)
#undef X
};

// A launch that waits for the rest of its step.
struct held {
    int kernel, number, rows;
    _Alignas(16) unsigned char args[ARGS_MOST];
};

struct recording {
    cudaGraphExec_t graph;
    int64_t bytes;
    size_t launches;
};

struct exec {
    cudaStream_t stream;
    struct cudaDeviceProp properties;
    char name[16];
    cudaError_t status;                                   // the first that failed since the last exec_sync
    int failed_kernel;                                    // which launch it was, or -1
    void (*profiled)(struct exec *, const struct bind *); // whose launches are timed, or NULL
    double *profile;                                      // where to
    double *seconds;                                      // profile while that program runs, else NULL
    cudaEvent_t start, stop;
    int together, held_count; // launches of the step, and how many of them are held
    struct held held[STEP_MOST];
};

// "need and have" of a machine that cannot run this build.
static bool check_device(struct exec *exec, int device, struct error *error)
{
    int count = 0, driver = 0, runtime = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (status == cudaErrorInsufficientDriver)
        return error_set(error, "the GPU driver is for CUDA %d.%d, this build needs %d.%d: update the driver",
                         driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (status != cudaSuccess || count == 0)
        return error_set(error, "no GPU is here (%s): build with TARGET=cpu, or run on a machine with one",
                         cudaGetErrorString(status));
    if (device < 0 || device >= count)
        return error_set(error, "--device %d: this machine has GPUs 0 to %d", device, count - 1);
    if ((status = cudaSetDevice(device)) != cudaSuccess ||
        (status = cudaGetDeviceProperties(&exec->properties, device)) != cudaSuccess)
        return error_set(error, "GPU %d cannot be used: %s", device, cudaGetErrorString(status));
    snprintf(exec->name, sizeof exec->name, "sm_%d%d", exec->properties.major, exec->properties.minor);
    return true;
}

struct exec *exec_open(const struct exec_options *options, struct error *error)
{
    struct exec *exec = calloc(1, sizeof *exec);
    if (!exec) {
        error_set(error, "no memory to start");
        return NULL;
    }
    exec->stream = cudaStreamPerThread;
    exec->failed_kernel = -1;
    if (!check_device(exec, options->device, error)) {
        free(exec);
        return NULL;
    }
    cudaEventCreate(&exec->start);
    cudaEventCreate(&exec->stop);
    return exec;
}

void exec_close(struct exec *exec)
{
    if (!exec)
        return;
    cudaEventDestroy(exec->start);
    cudaEventDestroy(exec->stop);
    free(exec);
}

const char *exec_kernels(const struct exec *exec)
{
    return exec->name;
}

int exec_threads(const struct exec *exec)
{
    return exec->properties.multiProcessorCount;
}

struct pool *exec_pool(struct exec *exec)
{
    (void)exec;
    return NULL;
}

void exec_profile(struct exec *exec, void (*emit)(struct exec *, const struct bind *), double *seconds)
{
    exec->profiled = seconds ? emit : NULL;
    exec->profile = seconds;
    exec->seconds = NULL;
}

bool exec_profiling(const struct exec *exec, void (*emit)(struct exec *, const struct bind *))
{
    return exec->profiled == emit;
}

void exec_run(struct exec *exec, void (*emit)(struct exec *, const struct bind *), const struct bind *bind)
{
    exec->seconds = exec->profiled == emit ? exec->profile : NULL;
    emit(exec, bind);
    exec->seconds = NULL;
}

const char *const *exec_available(void)
{
    static const char *const none[] = {NULL};
    return none;
}

static void note(struct exec *exec, cudaError_t status, int kernel)
{
    if (status == cudaSuccess || exec->status != cudaSuccess)
        return;
    exec->status = status;
    exec->failed_kernel = kernel;
}

static void launch_one(struct exec *exec, int kernel, const void *args, int number, int rows)
{
    if (exec->seconds)
        cudaEventRecord(exec->start, exec->stream);
    note(exec, launchers[kernel](exec->stream, args, rows), kernel);
    if (exec->seconds) {
        float ms = 0;
        cudaEventRecord(exec->stop, exec->stream);
        cudaEventSynchronize(exec->stop);
        cudaEventElapsedTime(&ms, exec->start, exec->stop);
        exec->seconds[number] += (double)ms * 1e-3;
    }
}

static bool is_step(const struct step *step, const struct held *held, int count)
{
    for (int i = 0; i < count; i++)
        if (step->kernels[i] != held[i].kernel)
            return false;
    return step->kernels[count] < 0;
}

// Launches what is held: with the step's own kernel, else one after the other.
static void launch_held(struct exec *exec)
{
    const int count = exec->held_count;
    const void *args[STEP_MOST];
    exec->together = exec->held_count = 0;
    for (int i = 0; i < count; i++)
        args[i] = exec->held[i].args;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (!is_step(&steps[i], exec->held, count))
            continue;
        const cudaError_t status = steps[i].launch(exec->stream, args, exec->held[0].rows);
        if (status == cudaErrorNotSupported)
            break;
        note(exec, status, exec->held[count - 1].kernel);
        return;
    }
    for (int i = 0; i < count; i++)
        launch_one(exec, exec->held[i].kernel, args[i], exec->held[i].number, exec->held[i].rows);
}

void exec_together(struct exec *exec, int count)
{
    if (!exec->seconds && count <= STEP_MOST)
        exec->together = count;
}

void exec_launch(struct exec *exec, int kernel, const void *args, size_t bytes, int number, int rows)
{
    if (!exec->together || bytes > ARGS_MOST) {
        exec->together = exec->held_count ? exec->together : 0;
        if (exec->held_count)
            launch_held(exec);
        launch_one(exec, kernel, args, number, rows);
        return;
    }
    struct held *held = &exec->held[exec->held_count++];
    *held = (struct held){.kernel = kernel, .number = number, .rows = rows};
    memcpy(held->args, args, bytes);
    if (exec->held_count == exec->together)
        launch_held(exec);
}

// What a capture took, by what the card has left. Others may allocate meanwhile, so no graph counts for more than its launches can take.
static int64_t bytes_of(size_t before, size_t after, size_t launches)
{
    const int64_t most = (4 << 20) + (int64_t)launches * (16 << 10);
    const int64_t taken = before > after ? (int64_t)(before - after) : 0;
    return taken < most ? taken : most;
}

struct recording *exec_capture(struct exec *exec, void (*emit)(struct exec *, const struct bind *),
                               const struct bind *bind, int64_t *bytes)
{
    struct recording *r = calloc(1, sizeof *r);
    size_t before = 0, after = 0, total = 0;
    cudaGraph_t graph = NULL;
    *bytes = 0;
    if (!r)
        return NULL;
    cudaMemGetInfo(&before, &total);
    cudaError_t status = cudaStreamBeginCapture(exec->stream, cudaStreamCaptureModeThreadLocal);
    if (status == cudaSuccess) {
        emit(exec, bind);
        status = cudaStreamEndCapture(exec->stream, &graph);
    }
    if (status == cudaSuccess)
        status = exec->status;
    if (status == cudaSuccess)
        status = cudaGraphGetNodes(graph, NULL, &r->launches);
    if (status == cudaSuccess)
        status = cudaGraphInstantiate(&r->graph, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    cudaMemGetInfo(&after, &total);
    r->bytes = bytes_of(before, after, r->launches) + (int64_t)sizeof *r;
    *bytes = r->bytes;
    if (status == cudaSuccess)
        return r;
    cudaGetLastError();
    exec->status = cudaSuccess; // a failed capture has run nothing: the eager path goes on
    exec_forget(r);
    return NULL;
}

void exec_replay(struct exec *exec, const struct recording *recording)
{
    note(exec, cudaGraphLaunch(recording->graph, exec->stream), -1);
}

void exec_forget(struct recording *recording)
{
    if (!recording)
        return;
    if (recording->graph)
        cudaGraphExecDestroy(recording->graph);
    free(recording);
}

int64_t exec_recording_bytes(const struct recording *recording)
{
    return recording->bytes;
}

int exec_recording_launches(const struct recording *recording)
{
    return (int)recording->launches;
}

bool exec_sync(struct exec *exec, struct error *error)
{
    cudaError_t status = cudaStreamSynchronize(exec->stream);
    if (exec->status == cudaSuccess && status == cudaSuccess)
        return true;
    cudaError_t cause = exec->status != cudaSuccess ? exec->status : status;
    const char *where = exec->failed_kernel >= 0 ? names[exec->failed_kernel] : "a launch";
    exec->status = cudaSuccess;
    exec->failed_kernel = -1;
    return error_fatal(error, "the GPU failed in %s: %s (%s); the process must be started anew", where,
                       cudaGetErrorName(cause), cudaGetErrorString(cause));
}
