// SPDX-License-Identifier: Apache-2.0
//
// Where a program's launches go: run now (eager), or be recorded (capture). A program is one C function that launches its
// kernels; called plainly it is the eager path, called under capture it becomes a graph, so the two cannot drift apart.
// One implementation a target: exec_cpu.c (a captured program is its list of bound calls), exec_cuda.c (a CUDA graph).

#ifndef EXEC_H
#define EXEC_H

#include "runtime/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bind;
struct exchange;
struct exec;
struct recording;

// Numbers of the kernels, in the order of gen/ops.lua.
enum kernel_number {
#define X(name) KERNEL_##name,
#include "kernel_list.h"
#undef X
    KERNEL_COUNT
};

struct exec_options {
    const char *isa; // CPU: instruction set by name; NULL: the best
    int threads;     // CPU: 0: one a core
    int device;      // GPU: number
};

// Opens the target. NULL with an error when this machine lacks it. The caller closes it.
struct exec *exec_open(const struct exec_options *options, struct error *error);
void exec_close(struct exec *exec);

// Name of the kernels in use ("avx512", "sm_90"), and how many threads run them (GPU: multiprocessors).
const char *exec_kernels(const struct exec *exec);
int exec_threads(const struct exec *exec);

// Decode kernels of this binary that are made for its model's shapes, for passes or tiles of `rows` rows (1, 2, 4, 8). Asks no card.
int exec_fixed_kernels(int rows);

// For comparisons: whether launches from now on, in this process, take them; captured ones keep what they have. They do at first.
void exec_fixed_use(bool used);

// Whether launches return before they are done, so that the host can do something else meanwhile.
bool exec_behind(const struct exec *exec);

// Runs the kernel, or records the call. args are copied when recorded. number: of the op in its program; rows: the capacity
// of its pass, which a GPU's grid is made for. Errors are kept until exec_sync.
void exec_launch(struct exec *exec, int kernel, const void *args, size_t bytes, int number, int rows);

// The next `count` launches are one step: of what they write only the last one's outputs, and what one changes in place, are read
// later. A target may do them in one launch.
void exec_together(struct exec *exec, int count);

// Every program that runs or is recorded from now on begins by taking `bytes` of the block at `host`, which begins with a struct
// exchange, into the one at `device`, and ends by giving it back: the host calls nothing for it. bytes is a multiple of
// EXCHANGE_UNIT. The host's copy, which is pinned, changes in exec_sync. Does nothing on a target without memory of its own.
bool exec_exchange(struct exec *exec, struct exchange *host, void *device, int64_t bytes, struct error *error);

// When the last program was handed over, by engine_seconds' clock: `begun` is the moment from which the target has work, `call`
// the seconds until the whole program was handed over (0 where handing over is running).
struct exec_times {
    double begun, call;
};
const struct exec_times *exec_times(const struct exec *exec);

// What a recording cost and takes.
struct recording_facts {
    int64_t bytes;
    int launches;
    double capture_seconds, instantiate_seconds; // instantiate: until it lies where it runs
};

// Records what emit launches, without running it. NULL when memory is short or a launch failed; bytes tells how far it came.
struct recording *exec_capture(struct exec *exec, void (*emit)(struct exec *, const struct bind *),
                               const struct bind *bind, int64_t *bytes);
void exec_replay(struct exec *exec, const struct recording *recording);
void exec_forget(struct recording *recording);
const struct recording_facts *exec_recording_facts(const struct recording *recording);

// Waits until the program that was launched last is done, and everything before it. False with program-independent text when something failed.
bool exec_sync(struct exec *exec, struct error *error);

// Adds the time of each launch of the program that emits with `emit` to seconds[number] until called with NULL. The launches
// of that program then run one by one; other programs run as ever.
void exec_profile(struct exec *exec, void (*emit)(struct exec *, const struct bind *), double *seconds);

// Whether a program's launches are timed one by one, which a replayed graph cannot be on every target.
bool exec_profiling(const struct exec *exec, void (*emit)(struct exec *, const struct bind *));

// Runs a program eagerly.
void exec_run(struct exec *exec, void (*emit)(struct exec *, const struct bind *), const struct bind *bind);

// Names of the instruction sets of this build that this machine can run, best first; ends with NULL.
const char *const *exec_available(void);

#endif
