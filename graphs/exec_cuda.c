// SPDX-License-Identifier: Apache-2.0
//
// Launches, capture and replay on a GPU: a captured program is a CUDA graph. See exec.h.
// Invariant: between exec_capture and exec_sync nothing allocates, waits or decides on the host. A round that is replayed calls the
// driver for its pieces and for nothing else.

#include "graphs/exchange.h"
#include "graphs/exec.h"
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
// has launched anything. Then the longest beginning of the step that is one takes its place, and so on with what is left.
#define STEPS(X)                                                                                                       \
    X(inject_norm_mix, KERNEL_hc_inject, KERNEL_norm, KERNEL_linear, KERNEL_linear, KERNEL_hc_mix)                     \
    X(sum_inject_norm_mix, KERNEL_moe_sum, KERNEL_hc_inject, KERNEL_norm, KERNEL_linear, KERNEL_linear, KERNEL_hc_mix) \
    X(inject_norm, KERNEL_hc_inject, KERNEL_norm)                                                                      \
    X(sum_inject, KERNEL_moe_sum, KERNEL_hc_inject)                                                                    \
    X(sum_inject_norm, KERNEL_moe_sum, KERNEL_hc_inject, KERNEL_norm)                                                  \
    X(add_norm, KERNEL_add, KERNEL_norm)                                                                               \
    X(add_norm_linear, KERNEL_add, KERNEL_norm, KERNEL_linear)                                                         \
    X(sum_add, KERNEL_moe_sum, KERNEL_add)                                                                             \
    X(sum_add_norm, KERNEL_moe_sum, KERNEL_add, KERNEL_norm)                                                           \
    X(glu_linear, KERNEL_glu, KERNEL_linear)                                                                           \
    X(route_glu_linear, KERNEL_route, KERNEL_glu, KERNEL_linear)                                                       \
    X(route_experts, KERNEL_route, KERNEL_glu, KERNEL_linear, KERNEL_experts_up, KERNEL_experts_down)                  \
    X(linear_mix, KERNEL_linear, KERNEL_hc_mix)                                                                        \
    X(experts_up_down, KERNEL_experts_up, KERNEL_experts_down)                                                         \
    X(gated_norm_linear, KERNEL_gated_norm, KERNEL_linear)                                                             \
    X(conv_gdn_norm, KERNEL_conv, KERNEL_gdn, KERNEL_gated_norm)                                                       \
    X(norm_append, KERNEL_head_norm, KERNEL_kv_append)                                                                 \
    X(norm_append_norm, KERNEL_head_norm, KERNEL_kv_append, KERNEL_head_norm)                                          \
    X(norm_append_pool, KERNEL_head_norm, KERNEL_kv_append, KERNEL_index_pool)                                         \
    X(norm_append_pool_norms, KERNEL_head_norm, KERNEL_kv_append, KERNEL_index_pool, KERNEL_head_norm, KERNEL_head_norm)
#define X(name, ...) cudaError_t cuda_##name(cudaStream_t stream, const void *const *args, int rows);
STEPS(X)
#undef X

enum { STEP_MOST = 6, ARGS_MOST = 1024 };

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

cudaError_t cuda_take(cudaStream_t stream, const void *host, void *device, int units);
cudaError_t cuda_give(cudaStream_t stream, void *host, const void *device, int units);
int cuda_fixed_count(int rows);
void cuda_fixed_use(int used);

// A captured program is handed over in pieces, each a graph: handing one over takes the longer the more launches it has, and the device
// has work once the first is there. So that one is short.
enum { PIECES_MOST = 2, PIECE_LAUNCHES = 32 };

struct recording {
    cudaGraphExec_t piece[PIECES_MOST];
    int pieces;
    struct recording_facts facts;
};

// Of waiting: how often to ask the driver, and when to let go of the core.
static const double ASK_SECONDS = 1e-3, SPIN_SECONDS = 40e-3;

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
    struct exchange *host;  // the block of every program, as the host has it; NULL: none
    struct exchange *given; // what the last program gave back, until somebody waits for it
    void *device;           // the block that kernels work in
    int units;
    bool told; // the program that runs says itself when it is done
    struct exec_times times;
    bool capturing;
    cudaGraph_t captured[PIECES_MOST]; // the pieces of what is captured that are complete
    int pieces, in_piece;              // how many, and the launches of the one that is not
    int together, held_count;          // launches of the step, and how many of them are held
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
    cudaFreeHost(exec->given);
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

bool exec_behind(const struct exec *exec)
{
    (void)exec;
    return true;
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

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool exec_exchange(struct exec *exec, struct exchange *host, void *device, int64_t bytes, struct error *error)
{
    // Pinned memory has the same address on both sides.
    cudaError_t status = cudaHostAlloc((void **)&exec->given, (size_t)bytes, cudaHostAllocDefault);
    if (status != cudaSuccess || !exec->properties.canMapHostMemory || !exec->properties.unifiedAddressing)
        return error_set(error, "GPU %s cannot share the lanes with the host: %s", exec->name,
                         cudaGetErrorString(status));
    memset(exec->given, 0, (size_t)bytes);
    exec->host = host;
    exec->device = device;
    exec->units = (int)(bytes / EXCHANGE_UNIT);
    return true;
}

const struct exec_times *exec_times(const struct exec *exec)
{
    return &exec->times;
}

static void take(struct exec *exec)
{
    if (exec->host)
        note(exec, cuda_take(exec->stream, exec->host, exec->device, exec->units), -1);
}

static void give(struct exec *exec)
{
    if (exec->host)
        note(exec, cuda_give(exec->stream, exec->given, exec->device, exec->units), -1);
}

// Numbers the program that is about to be handed over.
static void number(struct exec *exec)
{
    if (exec->host)
        exec->host->wanted++;
    exec->told = exec->host != NULL;
}

void exec_run(struct exec *exec, void (*emit)(struct exec *, const struct bind *), const struct bind *bind)
{
    const double start = seconds_now();
    number(exec);
    take(exec);
    exec->times.begun = seconds_now();
    exec->seconds = exec->profiled == emit ? exec->profile : NULL;
    emit(exec, bind);
    exec->seconds = NULL;
    give(exec);
    exec->times.call = seconds_now() - start;
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

// Launches the first `count` of `held` with a kernel of their own, or says that they have none.
static bool launch_step(struct exec *exec, const struct held *held, int count)
{
    const void *args[STEP_MOST];
    for (int i = 0; i < count; i++)
        args[i] = held[i].args;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (!is_step(&steps[i], held, count))
            continue;
        const cudaError_t status = steps[i].launch(exec->stream, args, held->rows);
        if (status != cudaErrorNotSupported)
            note(exec, status, held[count - 1].kernel);
        return status != cudaErrorNotSupported;
    }
    return false;
}

// Launches what is held, as much of it at a time as has a kernel.
static void launch_held(struct exec *exec)
{
    const int all = exec->held_count;
    exec->together = exec->held_count = 0;
    for (int i = 0, count; i < all; i += count) {
        const struct held *held = &exec->held[i];
        for (count = all - i; count > 1 && !launch_step(exec, held, count); count--)
            ;
        if (count == 1)
            launch_one(exec, held->kernel, held->args, held->number, held->rows);
    }
}

void exec_together(struct exec *exec, int count)
{
    if (!exec->seconds && count <= STEP_MOST)
        exec->together = count;
}

static cudaError_t piece_begin(struct exec *exec)
{
    exec->in_piece = 0;
    return cudaStreamBeginCapture(exec->stream, cudaStreamCaptureModeThreadLocal);
}

static cudaError_t piece_end(struct exec *exec)
{
    return cudaStreamEndCapture(exec->stream, &exec->captured[exec->pieces++]);
}

// Before a launch that is captured: a piece that is long enough ends, and another begins.
static void cut(struct exec *exec)
{
    if (exec->in_piece++ < PIECE_LAUNCHES || exec->pieces + 1 == PIECES_MOST || exec->together)
        return;
    cudaError_t status = piece_end(exec);
    note(exec, status == cudaSuccess ? piece_begin(exec) : status, -1);
}

void exec_launch(struct exec *exec, int kernel, const void *args, size_t bytes, int number, int rows)
{
    if (exec->capturing && exec->status == cudaSuccess)
        cut(exec);
    if (exec->capturing && exec->status != cudaSuccess)
        return; // it has failed, and the stream may not be captured any more
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

// Records the program's pieces; those that there are lie in exec->captured also when it fails.
static cudaError_t capture(struct exec *exec, void (*emit)(struct exec *, const struct bind *), const struct bind *bind)
{
    exec->pieces = 0;
    cudaError_t status = piece_begin(exec);
    if (status != cudaSuccess)
        return status;
    exec->capturing = true;
    take(exec);
    emit(exec, bind);
    if (exec->status == cudaSuccess)
        give(exec);
    exec->capturing = false;
    exec->together = exec->held_count = 0;
    status = piece_end(exec);
    return exec->status != cudaSuccess ? exec->status : status;
}

// Makes graphs of what was captured and puts them on the device, so that the first replay is as fast as the others.
static cudaError_t instantiate(struct exec *exec, struct recording *r)
{
    cudaError_t status = cudaSuccess;
    for (int i = 0; i < exec->pieces && status == cudaSuccess; i++) {
        size_t nodes = 0;
        status = cudaGraphGetNodes(exec->captured[i], NULL, &nodes);
        r->facts.launches += (int)nodes;
        if (status == cudaSuccess)
            status = cudaGraphInstantiate(&r->piece[i], exec->captured[i], 0);
        if (status == cudaSuccess)
            status = cudaGraphUpload(r->piece[r->pieces++], exec->stream);
    }
    // Another thread, whose stream is another one, may replay them.
    return status == cudaSuccess ? cudaStreamSynchronize(exec->stream) : status;
}

struct recording *exec_capture(struct exec *exec, void (*emit)(struct exec *, const struct bind *),
                               const struct bind *bind, int64_t *bytes)
{
    struct recording *r = calloc(1, sizeof *r);
    size_t before = 0, after = 0, total = 0;
    *bytes = 0;
    if (!r)
        return NULL;
    cudaMemGetInfo(&before, &total);
    const double start = seconds_now();
    cudaError_t status = capture(exec, emit, bind);
    const double captured = seconds_now();
    if (status == cudaSuccess)
        status = instantiate(exec, r);
    r->facts.capture_seconds = captured - start;
    r->facts.instantiate_seconds = seconds_now() - captured;
    for (int i = 0; i < exec->pieces; i++)
        if (exec->captured[i])
            cudaGraphDestroy(exec->captured[i]);
    cudaMemGetInfo(&after, &total);
    r->facts.bytes = bytes_of(before, after, (size_t)r->facts.launches) + (int64_t)sizeof *r;
    *bytes = r->facts.bytes;
    if (status == cudaSuccess)
        return r;
    cudaGetLastError();
    exec->status = cudaSuccess; // a failed capture has run nothing: the eager path goes on
    exec->failed_kernel = -1;
    exec_forget(r);
    return NULL;
}

void exec_replay(struct exec *exec, const struct recording *recording)
{
    const double start = seconds_now();
    number(exec);
    for (int i = 0; i < recording->pieces; i++) {
        note(exec, cudaGraphLaunch(recording->piece[i], exec->stream), -1);
        if (i == 0)
            exec->times.begun = seconds_now();
    }
    exec->times.call = seconds_now() - start;
}

void exec_forget(struct recording *recording)
{
    if (!recording)
        return;
    for (int i = 0; i < recording->pieces; i++)
        cudaGraphExecDestroy(recording->piece[i]);
    free(recording);
}

const struct recording_facts *exec_recording_facts(const struct recording *recording)
{
    return &recording->facts;
}

// Waits for the word that a program's last kernel writes. The driver is asked now and then, since a program that failed writes none.
static cudaError_t wait_for_word(struct exec *exec)
{
    const uint32_t wanted = exec->host->wanted, *done = &exec->given->done;
    const double start = seconds_now();
    double asked = start;
    while (__atomic_load_n(done, __ATOMIC_ACQUIRE) != wanted) {
        const double now = seconds_now();
        if (now - asked < ASK_SECONDS)
            continue;
        asked = now;
        const cudaError_t status = cudaStreamQuery(exec->stream);
        if (status == cudaSuccess)
            return __atomic_load_n(done, __ATOMIC_ACQUIRE) == wanted ? status : cudaErrorUnknown;
        if (status != cudaErrorNotReady)
            return status;
        cudaGetLastError(); // not an error
        if (now - start > SPIN_SECONDS)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return cudaSuccess;
}

bool exec_sync(struct exec *exec, struct error *error)
{
    const bool told = exec->told && exec->status == cudaSuccess;
    cudaError_t status = told ? wait_for_word(exec) : cudaStreamSynchronize(exec->stream);
    exec->told = false;
    if (told && status == cudaSuccess)
        memcpy(exec->host, exec->given, (size_t)exec->units * EXCHANGE_UNIT);
    if (exec->status == cudaSuccess && status == cudaSuccess)
        return true;
    cudaError_t cause = exec->status != cudaSuccess ? exec->status : status;
    const char *where = exec->failed_kernel >= 0 ? names[exec->failed_kernel] : "a launch";
    exec->status = cudaSuccess;
    exec->failed_kernel = -1;
    return error_fatal(error, "the GPU failed in %s: %s (%s); the process must be started anew", where,
                       cudaGetErrorName(cause), cudaGetErrorString(cause));
}

int exec_fixed_kernels(int rows)
{
    return cuda_fixed_count(rows);
}

void exec_fixed_use(bool used)
{
    cuda_fixed_use(used);
}
