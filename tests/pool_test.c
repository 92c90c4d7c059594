// SPDX-License-Identifier: Apache-2.0
//
// The thread pool: every item once, whatever the threads; memory visible from launch to launch; sleeping workers wake.
// Meant to be run under ThreadSanitizer too. With an argument it prints nanoseconds a launch instead of testing.

#include "runtime/pool.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int tests, failures;

static void check(bool ok, const char *name)
{
    tests++;
    failures += !ok;
    printf("%sok %d - %s\n", ok ? "" : "not ", tests, name);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_us(long us)
{
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

// ---- items ----------------------------------------------------------------------------------------------------------

struct count_args {
    int64_t items;
    uint32_t *hits; // plain memory: a race is ThreadSanitizer's to find
};

static int64_t count_items(const void *args)
{
    return ((const struct count_args *)args)->items;
}

static void count_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    const struct count_args *a = args;
    memset(scratch, (int)begin, 64);
    for (int64_t i = begin; i < end; i++)
        a->hits[i]++;
}

static const struct kernel_phase count_phase = {count_items, count_run};

static bool once(struct pool *pool, int64_t items, int launches)
{
    struct count_args args = {items, calloc((size_t)items + 1, sizeof(uint32_t))};
    if (!args.hits)
        return false;
    for (int i = 0; i < launches; i++)
        pool_run(pool, &count_phase, &args);
    bool ok = args.hits[items] == 0;
    for (int64_t i = 0; i < items; i++)
        ok = ok && args.hits[i] == (uint32_t)launches;
    free(args.hits);
    return ok;
}

// Two items that each wait for the other: they end only when two threads take part.
struct meet_args {
    _Atomic int arrived;
    _Atomic bool late;
};

static int64_t meet_items(const void *args)
{
    (void)args;
    return 2;
}

static void meet_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    struct meet_args *a = (struct meet_args *)(uintptr_t)args;
    (void)scratch;
    if (end - begin != 1)
        atomic_store(&a->late, true);
    atomic_fetch_add(&a->arrived, 1);
    double stop = seconds() + 10;
    while (atomic_load(&a->arrived) < 2 && !atomic_load(&a->late))
        if (seconds() > stop)
            atomic_store(&a->late, true);
}

static const struct kernel_phase meet_phase = {meet_items, meet_run};

static _Atomic int64_t total;

static int64_t long_items(const void *args)
{
    (void)args;
    return INT64_C(10000000007);
}

static void long_run(const void *args, int64_t begin, int64_t end, void *scratch)
{
    (void)args;
    (void)scratch;
    if (begin >= 0 && end > begin && end <= long_items(NULL))
        atomic_fetch_add(&total, end - begin);
}

static const struct kernel_phase long_phase = {long_items, long_run};

struct each_record {
    int calls[8];
    void *scratch[8];
};

static void record(void *user, int thread, void *scratch)
{
    struct each_record *r = user;
    r->calls[thread]++;
    r->scratch[thread] = scratch;
}

// ---- tests ----------------------------------------------------------------------------------------------------------

static void test_threads(int threads)
{
    char name[96];
    struct error error = {0};
    struct pool *pool = pool_open(threads, 4096, &error);
    snprintf(name, sizeof name, "%d threads: the pool opens with as many", threads);
    check(pool && pool_threads(pool) == threads, name);
    if (!pool)
        return;

    static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, 1000};
    bool ok = true;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        ok = ok && once(pool, sizes[i], sizes[i] < 100 ? 20000 : 1000);
    snprintf(name, sizeof name, "%d threads: every item runs once a launch", threads);
    check(ok, name);

    struct each_record r = {{0}, {0}};
    for (int i = 0; i < 20; i++)
        pool_each(pool, record, &r);
    ok = true;
    for (int i = 0; i < threads; i++) {
        ok = ok && r.calls[i] == 20 && r.scratch[i] && (uintptr_t)r.scratch[i] % 64 == 0;
        for (int j = 0; j < i; j++)
            ok = ok && r.scratch[i] != r.scratch[j];
    }
    snprintf(name, sizeof name, "%d threads: pool_each runs once a thread, with aligned scratch of its own", threads);
    check(ok, name);

    ok = true;
    for (int i = 0; i < 12 && threads > 1 && ok; i++) {
        struct meet_args meet = {0, false};
        sleep_us(i % 3 * 1000); // workers are looking for work, or asleep, or about to sleep
        pool_run(pool, &meet_phase, &meet);
        ok = !atomic_load(&meet.late);
    }
    snprintf(name, sizeof name, "%d threads: workers wake for a launch after a pause", threads);
    check(ok, name);

    atomic_store(&total, 0);
    pool_run(pool, &long_phase, NULL);
    snprintf(name, sizeof name, "%d threads: more items than 32 bits hold", threads);
    check(atomic_load(&total) == long_items(NULL), name);
    pool_close(pool);
}

static int bench(void)
{
    static const int64_t items[] = {1, 2, 16, 64};
    for (int threads = 1; threads <= 2; threads++) {
        struct pool *pool = pool_open(threads, 4096, NULL);
        for (size_t i = 0; pool && i < sizeof items / sizeof *items; i++) {
            uint32_t hits[64] = {0};
            struct count_args args = {items[i], hits};
            double best = 1e9;
            for (int repeat = 0; repeat < 20; repeat++) {
                double start = seconds();
                for (int j = 0; j < 5000; j++)
                    pool_run(pool, &count_phase, &args);
                double each = (seconds() - start) / 5000 * 1e9;
                best = each < best ? each : best;
            }
            printf("%d threads, %2d items: %.0f ns a launch\n", threads, (int)items[i], best);
        }
        pool_close(pool);
    }
    return 0;
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        return bench();
    test_threads(1);
    test_threads(2);
    test_threads(5);
    struct error error = {0};
    check(!pool_open(-1, 0, &error) && strstr(error.text, "found -1"), "a negative number of threads is refused");
    check(!pool_open(POOL_MAX_THREADS + 1, 0, &error) && strstr(error.text, "expected 1 to"),
          "too many threads are refused");
    struct pool *pool = pool_open(0, 0, &error);
    check(pool && pool_threads(pool) == pool_cores(), "0 threads: one a core");
    pool_close(pool);
    printf("1..%d\n", tests);
    return failures != 0;
}
