// SPDX-License-Identifier: Apache-2.0
//
// Kept states between the pool and the folder: which are written, and which prompts begin at one that is read. A block a turn
// beside replies, as many as there are buffers when nothing else is to be done.
// Invariants: a stream whose state is being read has pages of its own, and reads no prompt until all of it is there; what cannot be
// read is dropped from the folder, and the stream waits for admission again, first in line.

#include "runtime/cache/cache_state.h"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const double SETTLE = 2, LOOK_EVERY = 0.2, FLUSH = 10, BLOCK_WAIT = 0.005; // seconds
enum { LEAST_WRITTEN = 16, DEFAULT_GIB = 16 };

// ---- open and close ----------------------------------------------------------------------------------------------------------

// Hash of the running program: of everything that decides a state's bits, but for the weights and the kernels that were chosen.
static bool program_hash(uint64_t *hash, struct error *error)
{
    struct stat st;
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    void *text =
        fd >= 0 && fstat(fd, &st) == 0 ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (text == MAP_FAILED)
        return error_set(error,
                         "the running binary cannot be read, so states on disk cannot be told from another build's");
    *hash = XXH3_64bits(text, (size_t)st.st_size);
    munmap(text, (size_t)st.st_size);
    return true;
}

bool tier_open(struct engine *e, struct error *error)
{
    const struct engine_options *o = &e->options;
    const int64_t budget = o->cache_disk_bytes > 0 ? o->cache_disk_bytes : (int64_t)DEFAULT_GIB << 30;
    uint64_t program = 0;
    if (!o->cache_disk)
        return true;
    if (!program_hash(&program, error))
        return false;
    struct cache_shape shape = {.build = XXH3_64bits_withSeed(engine_isa(e), strlen(engine_isa(e)), program),
                                .weights = e->pack.hash,
                                .kv_encoding = e->kv_encoding,
                                .page = o->page,
                                .context = model.max_context,
                                .vocabulary = model.vocabulary,
                                .page_bytes = e->pages.page_bytes,
                                .run_bytes = model.run_bytes,
                                .run_pages = e->plan.run_pages};
    e->cache->settle = SETTLE;
    return disk_open(&e->cache->disk, o->cache_disk, budget, &shape, error);
}

void tier_count(const struct engine *e, struct cache_counters *counters)
{
    struct disk_counters d;
    if (!e->cache->disk)
        return;
    disk_count(e->cache->disk, &d);
    counters->disk_states = d.states;
    counters->disk_bytes = d.bytes;
    counters->disk_budget = d.budget;
    counters->disk_reads = d.reads;
    counters->disk_writes = d.writes;
    counters->disk_refused = d.refused;
}

// ---- prices ------------------------------------------------------------------------------------------------------------------

static double bytes_of(const struct engine *e, int length)
{
    return ((double)((length - 1) / e->options.page) + 1 + e->plan.run_pages) * (double)e->pages.page_bytes;
}

// Whether reading a state of `length` takes less time than prompt rows from `from` on, by what both have taken so far.
static bool pays(const struct engine *e, int length, int from)
{
    const double rows = (double)e->counters.prompt_tokens, seconds = e->counters.prompt_seconds;
    return rows <= 0 || seconds <= 0 ||
           bytes_of(e, length) / disk_rate(e->cache->disk) < (length - from) * seconds / rows;
}

// ---- reading -----------------------------------------------------------------------------------------------------------------

struct disk_entry *tier_choose(const struct stream *s, int least)
{
    const struct engine *e = s->engine;
    if (!e->cache->disk || warm_is(s))
        return NULL;
    struct disk_entry *entry = disk_find(e->cache->disk, s->prompt, s->prompt_count, least);
    return entry && pays(e, entry->length, least) ? entry : NULL;
}

bool cache_loading(const struct stream *s)
{
    return s->pass.entry != NULL;
}

void tier_leave(struct stream *s)
{
    struct cache *c = s->engine->cache;
    if (c->loading == s) {
        disk_read_end(c->disk);
        c->loading = NULL;
    }
    s->pass.entry->users--;
    s->pass.entry = NULL;
}

// The stream that was admitted first of those that wait for a state, its reading begun; NULL: there is none, or not yet.
static struct stream *next_loading(struct engine *e)
{
    struct cache *c = e->cache;
    struct stream *first = c->loading;
    for (int i = 0; i < e->lanes && !c->loading; i++) {
        struct stream *s = e->slot[i].stream;
        if (s && cache_loading(s) && (!first || s->served < first->served))
            first = s;
    }
    if (!first || c->loading)
        return first;
    if (!disk_read_begin(c->disk, first->pass.entry))
        return NULL;
    c->loading = first;
    c->loaded = 0;
    return first;
}

// Puts a block where it belongs: a page of the table, or a part of the run.
static bool put_block(struct engine *e, struct stream *s, const void *block)
{
    struct slot *slot = s->slot;
    const int64_t page = e->pages.page_bytes;
    const uint32_t i = e->cache->loaded, tables = (uint32_t)((s->pass.entry->length - 1) / e->options.page) + 1;
    if (!engine_map(e, slot, s->pass.entry->length, NULL))
        return false;
    if (i < tables) {
        device_upload(pages_at(&e->pages, ((const uint32_t *)slot->table.host)[i]), block, page);
    } else {
        const int64_t at = (i - tables) * page, left = model.run_bytes - at;
        device_upload(slot->lane->run + at, block, left < page ? left : page);
    }
    device_settle();
    e->cache->loaded++;
    return true;
}

// Others that wait for the same file look again.
static void send_back(struct engine *e, const struct disk_entry *entry)
{
    for (int i = 0; i < e->lanes; i++) {
        struct stream *s = e->slot[i].stream;
        if (s && s->pass.entry == entry) {
            tier_leave(s);
            admission_again(s);
        }
    }
}

static void loaded(struct engine *e, struct stream *s)
{
    struct disk_entry *entry = s->pass.entry;
    const int length = entry->length;
    const bool follows = s->follows && entry->follows;
    tier_leave(s);
    stream_resume(s, length, follows);
    cache_resumed(s, length);
    s->pass.resumed = 0;
    cache_keep_here(s, KEEP_HISTORY);
    s->pass.resumed = length;
    send_back(e, entry);
}

// A file that is damaged, or has no place: the prompt begins elsewhere.
static void not_loaded(struct engine *e, struct stream *s)
{
    struct disk_entry *entry = s->pass.entry;
    if (!e->options.quiet)
        fprintf(stderr, "prompt cache: %s in the folder %s; the prompt is read instead\n", entry->name,
                disk_read_error(e->cache->disk));
    send_back(e, entry);
    disk_refuse(e->cache->disk, entry);
}

void cache_load(struct engine *e, bool alone)
{
    struct stream *s = e->cache && e->cache->disk ? next_loading(e) : NULL;
    enum disk_news news = DISK_BLOCK;
    for (int i = 0; s && news == DISK_BLOCK && i < (alone ? 64 : 1); i++) {
        const void *block;
        news = disk_read_next(e->cache->disk, alone ? BLOCK_WAIT : 0, &block);
        if (news == DISK_BLOCK && put_block(e, s, block))
            disk_read_taken(e->cache->disk);
        else if (news == DISK_BLOCK)
            news = DISK_BAD;
    }
    if (s && news == DISK_END)
        loaded(e, s);
    else if (s && news == DISK_BAD)
        not_loaded(e, s);
}

// ---- writing -----------------------------------------------------------------------------------------------------------------

void tier_gone(struct engine *e, const struct cache_state *state)
{
    struct cache *c = e->cache;
    if (!c->disk || c->writing != state->serial)
        return;
    disk_write_abort(c->disk);
    c->writing = 0;
}

static bool wanted(const struct engine *e, const struct cache_state *s, double settled)
{
    return !s->stored && s->length >= LEAST_WRITTEN && (s->kind >= KEEP_REWIND || s->rewind || s->branched) &&
           s->since <= settled && !store_superseded(cache_store(e), s) && pays(e, s->length, 0);
}

// Begins to write the state that was wanted last of those that nothing stands for; false when there is none.
static bool begin(struct engine *e, double settled)
{
    struct cache *c = e->cache;
    for (;;) {
        struct cache_state *best = NULL;
        bool there;
        for (struct cache_state *s = c->store.first; s; s = s->next)
            if ((!best || s->used > best->used) && wanted(e, s, settled))
                best = s;
        if (!best || disk_write_goes_on(c->disk))
            return false;
        best->stored = true; // or as good as: there already, or too large
        if (!disk_write_begin(c->disk, best->ids->id, best->length, best->follows, &there))
            continue;
        c->writing = best->serial;
        c->written = 0;
        return true;
    }
}

// The next block of the state that is written. False when there is no buffer for it now.
static bool write_block(struct engine *e, double seconds)
{
    struct cache *c = e->cache;
    const struct cache_state *s = store_serial(&c->store, c->writing);
    uint8_t *buffer = disk_write_room(c->disk, seconds);
    if (!buffer)
        return false;
    const int64_t page = e->pages.page_bytes;
    const int64_t run = (int64_t)c->written - s->shared - 1, left = model.run_bytes - run * page;
    const int64_t bytes = run >= 0 && left < page ? left : page;
    device_download(buffer, pages_at(&e->pages, s->page[c->written]), bytes);
    memset(buffer + bytes, 0, (size_t)(page - bytes));
    disk_write_put(c->disk);
    if (++c->written == s->page_count)
        c->writing = 0;
    return true;
}

bool cache_write(struct engine *e, bool idle)
{
    struct cache *c = e->cache;
    if (!c || !c->disk || e->flight)
        return false;
    const double now = engine_seconds();
    if (!c->writing) {
        if (!idle || now < c->next_look)
            return false;
        c->next_look = now + LOOK_EVERY;
        if (!begin(e, now - c->settle))
            return false;
    }
    if (!idle) {
        write_block(e, 0);
        return false;
    }
    for (int i = 0; i < 64 && c->writing && write_block(e, BLOCK_WAIT); i++)
        ;
    if (c->writing && !disk_write_goes_on(c->disk))
        c->writing = 0; // it failed
    return c->writing != 0;
}

// Before the end: what is worth it is written, as far as there is time.
static void flush(struct engine *e)
{
    struct cache *c = e->cache;
    const double until = engine_seconds() + FLUSH;
    while (engine_seconds() < until) {
        if (!c->writing && disk_write_goes_on(c->disk)) {
            usleep(1000);
            continue;
        }
        if (!c->writing && !begin(e, engine_seconds()))
            return;
        while (c->writing && write_block(e, BLOCK_WAIT))
            ;
        if (c->writing && !disk_write_goes_on(c->disk))
            c->writing = 0;
    }
}

void tier_close(struct engine *e)
{
    struct cache *c = e->cache;
    if (!c->disk)
        return;
    if (!e->dead && engine_wait(e, NULL))
        flush(e);
    if (c->writing)
        disk_write_abort(c->disk);
    c->writing = 0;
    disk_close(c->disk);
    c->disk = NULL;
}
