// SPDX-License-Identifier: Apache-2.0
//
// The thread pool. Invariants:
//
//   claim = launch number << 32 | items left. An item is taken by lowering `claim` with a compare-and-swap, so it is taken
//   once; a late worker's swap fails because the launch number has moved on. A successful swap pins the launch: its
//   description cannot change before the taker has reported its items in `done`.
//
//   A worker announces itself in `parked`, then looks at `claim` again, then sleeps; a launch writes `claim`, then reads
//   `parked`. Both orders are sequentially consistent, so one of the two sees the other and no wake-up is lost. The same
//   holds for `done` and `waiting`.

#define _GNU_SOURCE // sched_getaffinity
#include "runtime/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    CACHE_LINE = 64,
    SPIN_NS = 40 * 1000,    // how long an idle thread looks for work before it sleeps
    SPIN_CROWDED_NS = 1000, // the same where threads outnumber processors
    SPINS_PER_CLOCK = 32,   // looks between two readings of the clock
    YIELDS = 8,             // of the caller, before it sleeps
    FINE_SHARE = 16,        // items
    MAX_ITEMS = 0x7fffffff, // of one launch; longer phases are cut
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
    void *scratch;
};

struct pool {
    // Written by the caller between launches, read by whoever has taken items.
    _Alignas(CACHE_LINE) const struct kernel_phase *phase;
    const void *args;
    int64_t base;   // of this launch within the phase
    uint32_t items; // of this launch

    _Alignas(CACHE_LINE) _Atomic uint64_t claim;
    _Atomic uint32_t calls; // number of pool_each calls; the stop flag below ends the workers
    _Atomic bool stop;

    _Alignas(CACHE_LINE) _Atomic uint32_t done; // items finished of this launch
    _Atomic uint32_t waiting;                   // the caller sleeps on done

    _Alignas(CACHE_LINE) _Atomic uint32_t parked; // workers that may be asleep
    _Atomic uint32_t wake;                        // futex word of sleeping workers

    _Alignas(CACHE_LINE) _Atomic uint32_t called; // workers that have answered the pool_each call
    void (*call)(void *, int, void *);
    void *call_user;

    int threads, started;
    uint32_t launches;
    int64_t spin_ns;
    size_t scratch_bytes;
    struct worker worker[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// Takes and runs items of the current launch until none is left to take.
static void work(struct pool *pool, void *scratch)
{
    uint64_t claim = atomic_load_explicit(&pool->claim, memory_order_acquire);
    for (;;) {
        uint32_t left = (uint32_t)claim;
        if (!left)
            return;
        // An equal share of what is left, half of one while that is many: few claims for a short launch, an even end for a long
        // one though threads run at different speeds; the last claims are single items.
        uint32_t share = left / (uint32_t)pool->threads, take = share > FINE_SHARE ? share / 2 : share;
        take = take ? take : 1;
        if (!atomic_compare_exchange_weak_explicit(&pool->claim, &claim, claim - take, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        int64_t begin = pool->base + (pool->items - left);
        uint32_t items = pool->items;
        pool->phase->run(pool->args, begin, begin + take, scratch);
        if (atomic_fetch_add(&pool->done, take) + take == items && atomic_load(&pool->waiting))
            futex_wake(&pool->done);
        claim = atomic_load_explicit(&pool->claim, memory_order_acquire);
    }
}

static bool idle(struct pool *pool, uint32_t calls)
{
    return !(uint32_t)atomic_load(&pool->claim) && atomic_load(&pool->calls) == calls && !atomic_load(&pool->stop);
}

// Returns when there may be something to do: spins for a while, then sleeps.
static void await_work(struct pool *pool, uint32_t calls)
{
    int64_t end = now_ns() + pool->spin_ns;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (!idle(pool, calls))
                return;
            relax();
        }
    } while (now_ns() < end);
    uint32_t wake = atomic_load(&pool->wake);
    atomic_fetch_add(&pool->parked, 1);
    if (idle(pool, calls))
        futex_wait(&pool->wake, wake);
}

static void *worker_main(void *argument)
{
    struct worker *self = argument;
    struct pool *pool = self->pool;
    uint32_t calls = 0;
    if (self->scratch)
        memset(self->scratch, 0, pool->scratch_bytes);
    for (;;) {
        await_work(pool, calls);
        if (atomic_load(&pool->calls) != calls) {
            calls++;
            pool->call(pool->call_user, self->index, self->scratch);
            atomic_fetch_add(&pool->called, 1);
            futex_wake(&pool->called);
        }
        if (atomic_load(&pool->stop))
            return NULL;
        work(pool, self->scratch);
    }
}

// Wakes the workers that sleep. `parked` counts at least those; a count too high costs one system call.
static void wake_parked(struct pool *pool)
{
    if (atomic_load(&pool->parked)) {
        atomic_store(&pool->parked, 0);
        atomic_fetch_add(&pool->wake, 1);
        futex_wake(&pool->wake);
    }
}

static void await_done(struct pool *pool, uint32_t items)
{
    if (atomic_load_explicit(&pool->done, memory_order_acquire) == items)
        return;
    int64_t end = now_ns() + pool->spin_ns;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (atomic_load_explicit(&pool->done, memory_order_acquire) == items)
                return;
            relax();
        }
    } while (now_ns() < end);
    // A worker that holds items is not running: leave it the processor.
    for (int i = 0; i < YIELDS; i++) {
        sched_yield();
        if (atomic_load_explicit(&pool->done, memory_order_acquire) == items)
            return;
    }
    atomic_store(&pool->waiting, 1);
    for (uint32_t done; (done = atomic_load(&pool->done)) != items;)
        futex_wait(&pool->done, done);
    atomic_store(&pool->waiting, 0);
}

static void launch(struct pool *pool, const struct kernel_phase *phase, const void *args, int64_t base, uint32_t items)
{
    pool->phase = phase;
    pool->args = args;
    pool->base = base;
    pool->items = items;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store(&pool->claim, (uint64_t)++pool->launches << 32 | items);
    wake_parked(pool);
    work(pool, pool->worker[0].scratch);
    await_done(pool, items);
}

void pool_run(struct pool *pool, const struct kernel_phase *phase, const void *args)
{
    int64_t items = phase->items(args);
    if (items <= 0)
        return;
    if (pool->threads == 1 || items == 1) {
        phase->run(args, 0, items, pool->worker[0].scratch);
        return;
    }
    for (int64_t base = 0; base < items; base += MAX_ITEMS)
        launch(pool, phase, args, base, (uint32_t)(items - base < MAX_ITEMS ? items - base : MAX_ITEMS));
}

void pool_run_kernel(struct pool *pool, const struct kernel *kernel, const void *args)
{
    for (int i = 0; i < KERNEL_PHASES && kernel->phase[i].run; i++)
        pool_run(pool, &kernel->phase[i], args);
}

void pool_each(struct pool *pool, void (*call)(void *user, int thread, void *scratch), void *user)
{
    pool->call = call;
    pool->call_user = user;
    uint32_t others = (uint32_t)pool->threads - 1;
    atomic_store(&pool->called, 0);
    atomic_fetch_add(&pool->calls, 1);
    wake_parked(pool);
    call(user, 0, pool->worker[0].scratch);
    for (uint32_t called; (called = atomic_load(&pool->called)) != others;)
        futex_wait(&pool->called, called);
}

int pool_threads(const struct pool *pool)
{
    return pool->threads;
}

static bool start_workers(struct pool *pool, struct error *error)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); // signals go to the caller's thread
    int rc = 0;
    while (!rc && pool->started < pool->threads) {
        struct worker *worker = &pool->worker[pool->started];
        rc = pthread_create(&worker->thread, NULL, worker_main, worker);
        pool->started += !rc;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return error_set(error, "thread %d of %d cannot be started: %s; try fewer --threads", pool->started + 1,
                         pool->threads, strerror(rc));
    return true;
}

struct pool *pool_open(int threads, size_t scratch_bytes, struct error *error)
{
    int cores = pool_cores();
    threads = threads ? threads : cores;
    if (threads < 1 || threads > POOL_MAX_THREADS) {
        error_set(error, "threads: expected 1 to %d, found %d", POOL_MAX_THREADS, threads);
        return NULL;
    }
    size_t bytes = sizeof(struct pool) + (size_t)threads * sizeof(struct worker);
    struct pool *pool = aligned_alloc(CACHE_LINE, (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    if (!pool) {
        error_set(error, "no memory for a pool of %d threads", threads);
        return NULL;
    }
    memset(pool, 0, bytes);
    pool->threads = threads;
    pool->started = 1; // the caller
    pool->spin_ns = threads > cores ? SPIN_CROWDED_NS : SPIN_NS;
    pool->scratch_bytes = (scratch_bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    bool ok = true;
    for (int i = 0; i < threads && ok; i++) {
        pool->worker[i] = (struct worker){.pool = pool, .index = i};
        if (pool->scratch_bytes)
            ok = (pool->worker[i].scratch = aligned_alloc(CACHE_LINE, pool->scratch_bytes)) != NULL;
    }
    if (!ok)
        error_set(error, "no memory for %d times %zu bytes of scratch; try fewer --threads", threads, scratch_bytes);
    if (!ok || !start_workers(pool, error)) {
        pool_close(pool);
        return NULL;
    }
    if (pool->worker[0].scratch)
        memset(pool->worker[0].scratch, 0, pool->scratch_bytes);
    return pool;
}

void pool_close(struct pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->wake, 1);
    futex_wake(&pool->wake);
    for (int i = 1; i < pool->started; i++)
        pthread_join(pool->worker[i].thread, NULL);
    for (int i = 0; i < pool->threads; i++)
        free(pool->worker[i].scratch);
    free(pool);
}

// ---- how many threads -----------------------------------------------------------------------------------------------

// The lowest number in a file of the form "0-3,8": the first sibling of a processor; -1 when it cannot be read.
static int first_number(const char *path)
{
    FILE *file = fopen(path, "re");
    int number = -1;
    if (file) {
        if (fscanf(file, "%d", &number) != 1)
            number = -1;
        fclose(file);
    }
    return number;
}

// Processors' worth of time that the control group allows, rounded up; INT_MAX when there is no limit.
static int quota(void)
{
    long long limit, period;
    int processors = INT_MAX;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!file)
        return processors;
    if (fscanf(file, "%lld %lld", &limit, &period) == 2 && limit > 0 && period > 0 &&
        (limit + period - 1) / period < INT_MAX)
        processors = (int)((limit + period - 1) / period);
    fclose(file);
    return processors;
}

int pool_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set)) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        return online < 1 ? 1 : (int)(online < POOL_MAX_THREADS ? online : POOL_MAX_THREADS);
    }
    int cores = 0, processors = 0;
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &set))
            continue;
        char path[96];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", (int)i);
        int first = first_number(path);
        processors++;
        cores += first < 0 || first >= CPU_SETSIZE || (size_t)first == i || !CPU_ISSET((size_t)first, &set);
    }
    int least = processors < 2 ? processors : 2;
    cores = cores > least ? cores : least;
    int most = quota();
    most = most < POOL_MAX_THREADS ? most : POOL_MAX_THREADS;
    cores = cores < most ? cores : most;
    return cores > 1 ? cores : 1;
}
