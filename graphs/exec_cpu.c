// SPDX-License-Identifier: Apache-2.0
//
// Eager launches, recording and replay on the CPU. See exec.h.

#include "graphs/exec.h"
#include "graphs/kernels.h"
#include "kernels/cpu/kernel.h"
#include "runtime/pool.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

// One recorded launch: the arguments as they were, pointers included.
struct recorded {
    int32_t kernel, number;
    int64_t args; // offset of the arguments in the recording's bytes
};

struct recording {
    struct recorded *launch;
    int64_t count, capacity;
    unsigned char *bytes;
    int64_t used, size;
    struct recording_facts facts;
};

struct exec {
    const struct kernel *const *kernels; // [KERNEL_COUNT]
    const char *isa;
    struct pool *pool;
    struct recording *record;                             // not NULL: capture
    bool failed;                                          // a capture ran out of memory
    void (*profiled)(struct exec *, const struct bind *); // whose launches are timed, or NULL
    double *profile;                                      // where to
    double *seconds;                                      // profile while that program runs, else NULL
    struct exec_times times;
};

struct exec *exec_open(const struct exec_options *options, struct error *error)
{
    struct exec *exec = calloc(1, sizeof *exec);
    if (!exec) {
        error_set(error, "no memory to start");
        return NULL;
    }
    exec->kernels = kernels_find(options->isa, &exec->isa);
    if (!exec->kernels)
        error_set(error, "--isa %s: this machine or build has no such kernels", options->isa);
    else
        exec->pool = pool_open(options->threads, KERNEL_SCRATCH, error);
    if (exec->pool)
        return exec;
    free(exec);
    return NULL;
}

void exec_close(struct exec *exec)
{
    if (exec)
        pool_close(exec->pool);
    free(exec);
}

const char *exec_kernels(const struct exec *exec)
{
    return exec->isa;
}

int exec_threads(const struct exec *exec)
{
    return pool_threads(exec->pool);
}

bool exec_behind(const struct exec *exec)
{
    (void)exec;
    return false;
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

bool exec_sync(struct exec *exec, struct error *error)
{
    (void)exec;
    (void)error;
    return true;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void exec_run(struct exec *exec, void (*emit)(struct exec *, const struct bind *), const struct bind *bind)
{
    exec->times.begun = seconds_now();
    exec->seconds = exec->profiled == emit ? exec->profile : NULL;
    emit(exec, bind);
    exec->seconds = NULL;
}

bool exec_exchange(struct exec *exec, struct exchange *host, void *device, int64_t bytes, struct error *error)
{
    (void)exec, (void)host, (void)device, (void)bytes, (void)error;
    return true;
}

const struct exec_times *exec_times(const struct exec *exec)
{
    return &exec->times;
}

static void run(struct exec *exec, int kernel, const void *args, int number)
{
    double start = exec->seconds ? seconds_now() : 0;
    pool_run_kernel(exec->pool, exec->kernels[kernel], args);
    if (exec->seconds)
        exec->seconds[number] += seconds_now() - start;
}

// Grows *block to hold `need` items of `size` bytes; false when memory is short.
static bool reserve(void **block, int64_t *have, int64_t need, size_t size)
{
    if (need <= *have)
        return true;
    int64_t grown = *have * 2 > need ? *have * 2 : need + 64;
    void *moved = realloc(*block, (size_t)grown * size);
    if (!moved)
        return false;
    *block = moved;
    *have = grown;
    return true;
}

static void record(struct exec *exec, int kernel, const void *args, size_t bytes, int number)
{
    struct recording *r = exec->record;
    int64_t aligned = ((int64_t)bytes + 15) / 16 * 16;
    void *launch = r->launch, *block = r->bytes;
    bool ok = reserve(&launch, &r->capacity, r->count + 1, sizeof *r->launch);
    r->launch = launch;
    ok = reserve(&block, &r->size, r->used + aligned, 1) && ok;
    r->bytes = block;
    if (!ok) {
        exec->failed = true;
        return;
    }
    memcpy(r->bytes + r->used, args, bytes);
    r->launch[r->count++] = (struct recorded){kernel, number, r->used};
    r->used += aligned;
}

void exec_launch(struct exec *exec, int kernel, const void *args, size_t bytes, int number, int rows)
{
    (void)rows;
    if (exec->record)
        record(exec, kernel, args, bytes, number);
    else
        run(exec, kernel, args, number);
}

void exec_together(struct exec *exec, int count)
{
    (void)exec, (void)count; // a call costs nothing here
}

struct recording *exec_capture(struct exec *exec, void (*emit)(struct exec *, const struct bind *),
                               const struct bind *bind, int64_t *bytes)
{
    struct recording *r = calloc(1, sizeof *r);
    const double start = seconds_now();
    *bytes = 0;
    if (!r)
        return NULL;
    exec->record = r;
    exec->failed = false;
    emit(exec, bind);
    exec->record = NULL;
    r->facts = (struct recording_facts){
        .bytes = (int64_t)sizeof *r + r->size + r->capacity * (int64_t)sizeof *r->launch,
        .launches = (int)r->count,
        .capture_seconds = seconds_now() - start,
    };
    *bytes = r->facts.bytes;
    if (!exec->failed)
        return r;
    exec_forget(r);
    return NULL;
}

void exec_replay(struct exec *exec, const struct recording *recording)
{
    exec->times.begun = seconds_now();
    for (int64_t i = 0; i < recording->count; i++) {
        const struct recorded *r = &recording->launch[i];
        run(exec, r->kernel, recording->bytes + r->args, r->number);
    }
}

void exec_forget(struct recording *recording)
{
    if (!recording)
        return;
    free(recording->launch);
    free(recording->bytes);
    free(recording);
}

const struct recording_facts *exec_recording_facts(const struct recording *recording)
{
    return &recording->facts;
}

int exec_fixed_kernels(int rows)
{
    (void)rows;
    return 0;
}

void exec_fixed_use(bool used)
{
    (void)used;
}
