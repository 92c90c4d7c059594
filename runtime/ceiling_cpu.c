// SPDX-License-Identifier: Apache-2.0
//
// Read ceiling. Invariant: every byte of the buffer is loaded in every pass (the loads feed a sum that is kept), so a rate can
// only be too low, never too high. The buffer must be larger than the caches for the rate to be that of memory; the caller
// chooses its size.

#define _GNU_SOURCE // MAP_ANONYMOUS, MADV_HUGEPAGE
#include "runtime/ceiling.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    LINE = 64,
    STEP = 4 * LINE, // read by one turn of the loop, of each strand
    UNIT = 4096,
    PASSES = 2,  // of each pattern in one measurement
    PATTERNS = 3 // 1, 2 and 4 strands: places that a thread reads from in turn
};

struct ceiling {
    struct pool *pool;
    uint8_t *memory;
    size_t slice; // bytes a thread
    int strands;
    uint64_t sum[POOL_MAX_THREADS]; // keeps the loads alive
};

typedef uint64_t wide __attribute__((vector_size(LINE)));

// Sums `strands` pieces of `bytes` each that lie one after the other. Compiled for several instruction sets.
#define SUM_BODY                                                                                                       \
    wide a = {0}, b = {0}, c = {0}, d = {0};                                                                           \
    for (size_t at = 0; at < bytes; at += STEP)                                                                        \
        for (int s = 0; s < strands; s++) {                                                                            \
            const wide *p = (const wide *)(const void *)(from + (size_t)s * bytes + at);                               \
            a += p[0];                                                                                                 \
            b += p[1];                                                                                                 \
            c += p[2];                                                                                                 \
            d += p[3];                                                                                                 \
        }                                                                                                              \
    a += b + c + d;                                                                                                    \
    uint64_t sum = 0;                                                                                                  \
    for (int i = 0; i < 8; i++)                                                                                        \
        sum += a[i];                                                                                                   \
    return sum;

typedef uint64_t summer(const uint8_t *from, size_t bytes, int strands);

#if defined(__x86_64__)
// gcc's -O2 leaves such loops as they are; clang's does not, and has no word for it.
#ifdef __clang__
#define WITH(isa) __attribute__((target(isa)))
#else
#define WITH(isa) __attribute__((target(isa), optimize("O3")))
#endif
WITH("avx512f")
static uint64_t sum_avx512(const uint8_t *from, size_t bytes, int strands){SUM_BODY}

WITH("avx2") static uint64_t sum_avx2(const uint8_t *from, size_t bytes, int strands)
{
    SUM_BODY
}
#endif

static uint64_t sum_plain(const uint8_t *from, size_t bytes, int strands)
{
    SUM_BODY
}

static summer *best_summer(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return sum_avx512;
    if (__builtin_cpu_supports("avx2"))
        return sum_avx2;
#endif
    return sum_plain;
}

static void touch(void *user, int thread, void *scratch)
{
    struct ceiling *c = user;
    (void)scratch;
    memset(c->memory + (size_t)thread * c->slice, thread + 1, c->slice);
}

static void read_slice(void *user, int thread, void *scratch)
{
    struct ceiling *c = user;
    (void)scratch;
    c->sum[thread] += best_summer()(c->memory + (size_t)thread * c->slice, c->slice / (size_t)c->strands, c->strands);
}

struct ceiling *ceiling_open(struct pool *pool, int64_t bytes, struct error *error)
{
    struct ceiling *c = calloc(1, sizeof *c);
    size_t threads = (size_t)pool_threads(pool);
    if (!c || bytes <= 0) {
        free(c);
        error_set(error, "no memory for the read ceiling's buffer");
        return NULL;
    }
    c->pool = pool;
    c->slice = ((size_t)bytes / threads / UNIT + 1) * UNIT;
    c->memory = mmap(NULL, c->slice * threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c->memory == MAP_FAILED) {
        free(c);
        error_set(error, "no memory for the read ceiling's buffer of %lld bytes", (long long)bytes);
        return NULL;
    }
    madvise(c->memory, c->slice * threads, MADV_HUGEPAGE);
    pool_each(pool, touch, c);
    return c;
}

void ceiling_close(struct ceiling *c)
{
    if (!c)
        return;
    munmap(c->memory, c->slice * (size_t)pool_threads(c->pool));
    free(c);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double ceiling_measure(struct ceiling *c)
{
    double bytes = (double)c->slice * pool_threads(c->pool), best = 0;
    for (int pass = 0; pass < PASSES * PATTERNS; pass++) {
        c->strands = 1 << pass % PATTERNS;
        double start = seconds();
        pool_each(c->pool, read_slice, c);
        double rate = bytes / (seconds() - start);
        best = rate > best ? rate : best;
    }
    return best;
}
