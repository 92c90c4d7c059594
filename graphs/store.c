// SPDX-License-Identifier: Apache-2.0
//
// The graph store. See store.h.

#include "graphs/store.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BUCKETS = 256, SEEN = 1024 };

struct entry {
    struct graph_key key;
    uint64_t hash;
    struct recording *recording;
    int64_t bytes, replayed;
    struct entry *next;          // in the bucket
    struct entry *newer, *older; // by last use
};

struct graph_store {
    struct entry *bucket[BUCKETS];
    struct entry *newest, *oldest;
    uint64_t seen[SEEN]; // hashes of keys that ran eagerly once
    int64_t bytes, budget_bytes;
    int count, budget_count;
    bool complained;
    struct graph_counters counters;
};

#ifdef GRAPH_TEST
int graph_test_ignore_tables, graph_test_ignore_generation, graph_test_fail_capture;
#endif

// The key as it is compared: a copy whose padding and unused lanes are zero.
static struct graph_key canonical(const struct graph_key *key)
{
    struct graph_key k;
    memset(&k, 0, sizeof k);
    k.program = key->program;
    k.lanes = key->lanes;
    k.rows = key->rows;
    k.generation = key->generation;
    k.kv_encoding = key->kv_encoding;
    for (int i = 0; i < key->lanes; i++) {
        k.draft[i] = key->draft[i];
        k.table[i] = key->table[i];
        k.lane[i] = key->lane[i];
    }
#ifdef GRAPH_TEST
    if (graph_test_ignore_tables) {
        memset(k.table, 0, sizeof k.table);
        memset(k.draft, 0, sizeof k.draft); // a lane has one table, and its draft goes with that
        memset(k.lane, 0, sizeof k.lane);
    }
    if (graph_test_ignore_generation)
        k.generation = 0;
#endif
    return k;
}

struct graph_store *graph_store_open(int64_t budget_bytes, int budget_count)
{
    struct graph_store *store = calloc(1, sizeof *store);
    if (store) {
        store->budget_bytes = budget_bytes;
        store->budget_count = budget_count;
    }
    return store;
}

static void unlink_use(struct graph_store *store, struct entry *e)
{
    *(e->newer ? &e->newer->older : &store->newest) = e->older;
    *(e->older ? &e->older->newer : &store->oldest) = e->newer;
    e->newer = e->older = NULL;
}

static void link_newest(struct graph_store *store, struct entry *e)
{
    e->older = store->newest;
    *(store->newest ? &store->newest->newer : &store->oldest) = e;
    store->newest = e;
}

static void drop(struct graph_store *store, struct entry *e)
{
    struct entry **at = &store->bucket[e->hash % BUCKETS];
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    unlink_use(store, e);
    store->bytes -= e->bytes;
    store->count--;
    exec_forget(e->recording);
    free(e);
}

void graph_store_clear(struct graph_store *store)
{
    while (store->oldest)
        drop(store, store->oldest);
    memset(store->seen, 0, sizeof store->seen);
}

void graph_store_close(struct graph_store *store)
{
    if (!store)
        return;
    graph_store_clear(store);
    free(store);
}

static struct entry *find(struct graph_store *store, const struct graph_key *key, uint64_t hash)
{
    for (struct entry *e = store->bucket[hash % BUCKETS]; e; e = e->next)
        if (e->hash == hash && !memcmp(&e->key, key, sizeof *key))
            return e;
    return NULL;
}

// A capture that failed: said once, since every round would say it again.
static void complain(struct graph_store *store, const struct graph_key *key, int64_t bytes)
{
    store->counters.failed++;
    if (store->complained)
        return;
    store->complained = true;
    fprintf(
        stderr,
        "pianola: capture of %s (%d lane%s, %d row%s) failed after %lld bytes; %lld of %lld bytes are in use; going on "
        "eagerly with the same results\n",
        key->program->name, (int)key->lanes, plural(key->lanes), (int)key->rows, plural(key->rows), (long long)bytes,
        (long long)store->bytes, (long long)store->budget_bytes);
}

static struct recording *record(struct exec *exec, const struct graph_key *key, const struct bind *bind, int64_t *bytes)
{
    struct recording *r = exec_capture(exec, key->program->emit, bind, bytes);
#ifdef GRAPH_TEST
    if (r && graph_test_fail_capture && --graph_test_fail_capture == 0) {
        exec_forget(r);
        return NULL;
    }
#endif
    return r;
}

// Records the program and keeps it. NULL when memory or the budget is short.
static struct entry *capture(struct graph_store *store, struct exec *exec, const struct graph_key *key, uint64_t hash,
                             const struct bind *bind)
{
    int64_t bytes = 0;
    struct entry *e = calloc(1, sizeof *e);
    if (e)
        e->recording = record(exec, key, bind, &bytes);
    if (!e || !e->recording || bytes > store->budget_bytes) {
        complain(store, key, bytes);
        if (e)
            exec_forget(e->recording);
        free(e);
        return NULL;
    }
    e->key = *key;
    e->hash = hash;
    e->bytes = bytes + (int64_t)sizeof *e;
    store->counters.captured++;
    store->bytes += e->bytes;
    store->count++;
    e->next = store->bucket[hash % BUCKETS];
    store->bucket[hash % BUCKETS] = e;
    link_newest(store, e);
    while (store->oldest != e && (store->bytes > store->budget_bytes || store->count > store->budget_count)) {
        drop(store, store->oldest);
        store->counters.evicted++;
    }
    return e;
}

static uint64_t hash_of(const struct graph_key *key)
{
    uint64_t hash = XXH3_64bits(key, sizeof *key);
    return hash ? hash : 1;
}

void graph_store_run(struct graph_store *store, struct exec *exec, const struct graph_key *key, const struct bind *bind)
{
    struct graph_key k = canonical(key);
    uint64_t hash = hash_of(&k), *seen = &store->seen[hash % SEEN];
    struct entry *e = find(store, &k, hash);
    if (exec_profiling(exec, key->program->emit))
        e = NULL;
    else if (!e && *seen == hash)
        e = capture(store, exec, &k, hash, bind);
    if (!e) {
        *seen = hash;
        store->counters.eager++;
        exec_run(exec, key->program->emit, bind);
        return;
    }
    if (e != store->newest) {
        unlink_use(store, e);
        link_newest(store, e);
    }
    store->counters.replayed++;
    e->replayed++;
    exec_replay(exec, e->recording);
}

bool graph_store_warm(struct graph_store *store, struct exec *exec, const struct graph_key *key,
                      const struct bind *bind, int64_t most)
{
    struct graph_key k = canonical(key);
    uint64_t hash = hash_of(&k);
    if (find(store, &k, hash))
        return true;
    struct entry *e = capture(store, exec, &k, hash, bind);
    if (!e || store->bytes <= most)
        return e != NULL;
    drop(store, e); // what it takes is known only now
    store->counters.captured--;
    return false;
}

void graph_store_each(const struct graph_store *store, void (*see)(void *user, const struct graph_view *view),
                      void *user)
{
    for (const struct entry *e = store->oldest; e; e = e->newer) {
        const struct graph_view view = {&e->key, exec_recording_facts(e->recording), e->bytes, e->replayed};
        see(user, &view);
    }
}

const struct graph_counters *graph_store_counters(const struct graph_store *store)
{
    return &store->counters;
}

int64_t graph_store_bytes(const struct graph_store *store)
{
    return store->bytes;
}
