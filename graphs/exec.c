// SPDX-License-Identifier: Apache-2.0
//
// Eager launches, recording and replay on the CPU. See exec.h.

#include "graphs/exec.h"
#include "runtime/pool.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run(struct exec *exec, int kernel, const void *args, int number)
{
    double start = exec->seconds ? seconds_now() : 0;
    pool_run_kernel(exec->pool, exec->kernels[kernel], args);
    exec->launches++;
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
    int64_t aligned = ((int64_t)bytes + 15) / 16 * 16, capacity = r->capacity;
    void *launch = r->launch, *block = r->bytes;
    bool ok = reserve(&launch, &capacity, r->count + 1, sizeof *r->launch);
    r->launch = launch;
    r->capacity = (int32_t)capacity;
    ok = ok && reserve(&block, &r->size, r->used + aligned, 1);
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

void exec_replay(struct exec *exec, const struct recording *recording)
{
    for (int32_t i = 0; i < recording->count; i++) {
        const struct recorded *r = &recording->launch[i];
        run(exec, r->kernel, recording->bytes + r->args, r->number);
    }
}

void recording_clear(struct recording *recording)
{
    free(recording->launch);
    free(recording->bytes);
    *recording = (struct recording){0};
}
