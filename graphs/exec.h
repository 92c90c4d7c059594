// SPDX-License-Identifier: Apache-2.0
//
// Where a program's launches go: run now (eager), or be recorded (capture). A program is one C function that launches its
// kernels; called plainly it is the eager path, called under capture it becomes a graph, so the two cannot drift apart.

#ifndef EXEC_H
#define EXEC_H

#include "kernels/cpu/kernel.h"
#include "runtime/error.h"

struct pool;

// Numbers of the kernels, in the order of gen/ops.lua.
enum kernel_number {
#define X(name) KERNEL_##name,
#include "kernel_list.h"
#undef X
    KERNEL_COUNT
};

// One recorded launch: the arguments as they were, pointers included.
struct recorded {
    int32_t kernel, number; // number: of the op in its program
    int64_t args;           // offset of the arguments in the recording's bytes
};

// A captured program: its list of bound calls. Owned by the graph store.
struct recording {
    struct recorded *launch;
    int32_t count, capacity;
    unsigned char *bytes;
    int64_t used, size;
};

struct exec {
    const struct kernel *const *kernels; // [KERNEL_COUNT] of the chosen ISA
    struct pool *pool;
    struct recording *record; // not NULL: capture
    bool failed;              // a capture ran out of memory
    double *seconds;          // not NULL: adds each launch's time to seconds[number]
    int64_t launches;
};

// Runs the kernel, or records the call. args are copied when recorded. number: of the op in its program; rows: the capacity
// of its pass, which a GPU's grid is made for.
void exec_launch(struct exec *exec, int kernel, const void *args, size_t bytes, int number, int rows);

// Runs a recording's launches in order.
void exec_replay(struct exec *exec, const struct recording *recording);

// Frees what a recording holds.
void recording_clear(struct recording *recording);

// The kernels of an ISA by name, or NULL when this machine or build lacks it; "best" of all with NULL.
const struct kernel *const *kernels_find(const char *isa, const char **chosen);

#endif
