// SPDX-License-Identifier: Apache-2.0
//
// The thread pool that runs kernels. A launch is done when its items are done, not when every worker has answered: a worker
// that sleeps or was descheduled holds nobody up, and the calling thread can do all the work alone.
//
// Results cannot depend on the pool: items are independent (kernels/cpu/kernel.h), so how they are cut is free.

#ifndef POOL_H
#define POOL_H

#include "kernels/cpu/kernel.h"
#include "runtime/error.h"

enum { POOL_MAX_THREADS = 512 };

struct pool;

// Starts threads - 1 workers (threads 0: pool_cores()); the caller is thread 0. Every thread owns scratch_bytes of 64-byte
// aligned memory, touched first by itself. NULL with an error when the system refuses. The owner closes it.
struct pool *pool_open(int threads, size_t scratch_bytes, struct error *error);

// Ends the workers. No launch may be running. NULL is ignored.
void pool_close(struct pool *pool);

int pool_threads(const struct pool *pool);

// Runs all items of one phase and returns when they are done; what they wrote is visible to the caller and to later launches.
// One thread at a time may launch. Allocates nothing.
void pool_run(struct pool *pool, const struct kernel_phase *phase, const void *args);

// The phases of a kernel, one after the other.
void pool_run_kernel(struct pool *pool, const struct kernel *kernel, const void *args);

// Runs `call` exactly once on every thread and waits for all: for state that a thread has (tile configuration, rounding
// mode, first touch). thread is 0 .. threads - 1, 0 the caller's. Slow; not for launches.
void pool_each(struct pool *pool, void (*call)(void *user, int thread, void *scratch), void *user);

// Processors that this process can use, one a core: affinity mask, siblings and the group's time quota are taken into
// account; at least 1.
int pool_cores(void);

#endif
