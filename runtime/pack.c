// SPDX-License-Identifier: Apache-2.0
//
// Opening a pack. Everything in the file is untrusted until its checksum has been compared, and the header's own numbers
// are only compared with what this build expects, never used to size anything before that.
// Invariant: a failed open leaves nothing open, mapped or allocated.

#include "runtime/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { HUGE_PAGE = 2 << 20, THREADS = 16 };

_Static_assert(sizeof(struct pack_header) == 128, "the header has no padding");

// ---- threads ------------------------------------------------------------------------------------------------------------

struct parallel {
    int64_t items;
    bool (*run)(void *, int64_t, struct error *);
    void *user;
    atomic_llong next;
    atomic_bool failed;
    pthread_mutex_t lock;
    struct error *error;
};

static void *parallel_worker(void *user)
{
    struct parallel *p = user;
    struct error own = {0};
    while (!atomic_load(&p->failed)) {
        int64_t item = atomic_fetch_add(&p->next, 1);
        if (item >= p->items)
            break;
        if (p->run(p->user, item, &own))
            continue;
        pthread_mutex_lock(&p->lock);
        if (!atomic_exchange(&p->failed, true) && p->error)
            *p->error = own;
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

bool pack_parallel(int64_t items, int threads, bool (*run)(void *, int64_t, struct error *), void *user,
                   struct error *error)
{
    struct parallel p = {.items = items, .run = run, .user = user, .error = error};
    pthread_t handles[THREADS];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int most = threads > 0 ? threads : cores > 0 && cores < THREADS ? (int)cores : THREADS, started = 0;
    if (most > THREADS)
        most = THREADS;
    pthread_mutex_init(&p.lock, NULL);
    while (started + 1 < most && started + 1 < items &&
           pthread_create(&handles[started], NULL, parallel_worker, &p) == 0)
        started++;
    parallel_worker(&p);
    for (int i = 0; i < started; i++)
        pthread_join(handles[i], NULL);
    pthread_mutex_destroy(&p.lock);
    return !atomic_load(&p.failed);
}

// ---- the header -----------------------------------------------------------------------------------------------------------

uint64_t pack_header_hash(const struct pack_header *header, const uint64_t *checksums)
{
    uint64_t seed = XXH3_64bits(header, offsetof(struct pack_header, hash));
    return XXH3_64bits_withSeed(checksums, header->blocks * sizeof *checksums, seed);
}

static uint64_t page_up(uint64_t bytes)
{
    return (bytes + PACK_PAGE - 1) / PACK_PAGE * PACK_PAGE;
}

// Compares a header with what this build expects of a file of `bytes` bytes; afterwards all of its numbers are known good.
static bool check_header(const struct pack_header *h, const char *path, uint64_t bytes, const struct pack_shape *shape,
                         struct error *error)
{
    if (memcmp(h->magic, PACK_MAGIC, sizeof h->magic) != 0)
        return error_set(error, "%s: is not a weight file (wrong magic)", path);
    if (h->version != PACK_VERSION || h->header_bytes != sizeof *h)
        return error_set(error, "%s: expected version %d, found %u; run make again", path, PACK_VERSION, h->version);
    if (h->identity != shape->identity || h->weight_bytes != shape->weight_bytes ||
        h->table_bytes != shape->table_bytes)
        return error_set(error, "%s: is of another build (expected identity %016llx, found %016llx); run make again",
                         path, (unsigned long long)shape->identity, (unsigned long long)h->identity);
    uint64_t blocks, checksum_bytes, weight_offset, weight_end, table_offset, end;
    if (__builtin_add_overflow(pack_blocks(h->weight_bytes), pack_blocks(h->table_bytes), &blocks) ||
        __builtin_mul_overflow(blocks, sizeof(uint64_t), &checksum_bytes) ||
        __builtin_add_overflow(checksum_bytes, sizeof *h + PACK_PAGE, &weight_offset) ||
        __builtin_add_overflow(h->weight_bytes, weight_offset, &weight_end) ||
        __builtin_add_overflow(weight_end, (uint64_t)PACK_PAGE, &table_offset) ||
        __builtin_add_overflow(h->table_bytes, table_offset, &end) || end > INT64_MAX)
        return error_set(error, "%s: the sizes in its header overflow", path);
    weight_offset = page_up(sizeof *h + checksum_bytes);
    table_offset = page_up(weight_offset + h->weight_bytes);
    end = h->table_bytes ? table_offset + h->table_bytes : weight_offset + h->weight_bytes;
    if (h->block_bytes != PACK_BLOCK || h->blocks != blocks || h->weight_offset != weight_offset ||
        h->table_offset != table_offset || h->file_bytes != end)
        return error_set(error, "%s: its header is damaged", path);
    if (bytes != end)
        return error_set(error, "%s: expected %llu bytes, found %llu; it is %s", path, (unsigned long long)end,
                         (unsigned long long)bytes,
                         bytes < end ? "truncated: make it again" : "not a whole weight file");
    return true;
}

static bool check_hash(const struct pack_header *h, const uint64_t *checksums, const char *path, struct error *error)
{
    if (pack_header_hash(h, checksums) != h->hash)
        return error_set(error, "%s: the checksum of its header is wrong: the file is damaged, make it again", path);
    return true;
}

// ---- blocks -------------------------------------------------------------------------------------------------------------

// Blocks of one section: hashed where they lie in memory, or read from the file first (into `into`, or dropped).
struct section_job {
    const char *path, *what;
    int file;             // -1: the section is at `memory`
    uint64_t file_offset; // of the section
    const uint8_t *memory;
    uint8_t *into; // NULL: a block is read to be compared, then dropped
    uint64_t bytes;
    const uint64_t *checksums;
    atomic_ullong done;
    pack_progress *progress;
    void *user;
    uint64_t done_before, total;
    pthread_t opener;
};

static bool read_at(int file, uint8_t *into, uint64_t count, uint64_t offset)
{
    while (count > 0) {
        ssize_t got = pread(file, into, count, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        into += got;
        offset += (uint64_t)got;
        count -= (uint64_t)got;
    }
    return true;
}

static bool check_block(void *user, int64_t block, struct error *error)
{
    struct section_job *job = user;
    uint64_t at = (uint64_t)block * PACK_BLOCK, count = job->bytes - at < PACK_BLOCK ? job->bytes - at : PACK_BLOCK;
    uint8_t *buffer = NULL;
    const uint8_t *data = job->memory ? job->memory + at : NULL;
    if (!data) {
        uint8_t *into = job->into ? job->into + at : (buffer = malloc(PACK_BLOCK));
        if (!into)
            return error_set(error, "%s: out of memory", job->path);
        if (!read_at(job->file, into, count, job->file_offset + at)) {
            free(buffer);
            return error_set(error, "%s: byte %llu cannot be read (%s)", job->path,
                             (unsigned long long)(job->file_offset + at), errno ? strerror(errno) : "end of file");
        }
        data = into;
    }
    bool same = XXH3_64bits(data, count) == job->checksums[block];
    free(buffer);
    if (!same)
        return error_set(error, "%s: wrong checksum of %s, bytes %llu to %llu: the file is damaged, make it again",
                         job->path, job->what, (unsigned long long)(job->file_offset + at),
                         (unsigned long long)(job->file_offset + at + count));
    uint64_t done = atomic_fetch_add(&job->done, count) + count;
    if (job->progress && pthread_equal(pthread_self(), job->opener))
        job->progress(job->user, job->done_before + done, job->total);
    return true;
}

static bool check_section(struct section_job *job, struct error *error)
{
    job->opener = pthread_self();
    return pack_parallel((int64_t)pack_blocks(job->bytes), 0, check_block, job, error);
}

// Bytes that belong to no section are zeros.
static bool check_zeros(const uint8_t *data, uint64_t count, const char *path, uint64_t offset, struct error *error)
{
    for (uint64_t i = 0; i < count; i++)
        if (data[i] != 0)
            return error_set(error, "%s: byte %llu is not zero: the file is damaged, make it again", path,
                             (unsigned long long)(offset + i));
    return true;
}

static bool check_gap(int file, const uint8_t *base, uint64_t from, uint64_t to, const char *path, struct error *error)
{
    uint8_t gap[PACK_PAGE];
    uint64_t count = to - from;
    if (to < from || count > sizeof gap)
        return error_set(error, "%s: its header is damaged", path);
    if (base)
        return check_zeros(base + from, count, path, from, error);
    errno = 0;
    if (!read_at(file, gap, count, from))
        return error_set(error, "%s: cannot be read (%s)", path, strerror(errno));
    return check_zeros(gap, count, path, from, error);
}

// The gap after the checksums and, when there is a table, the one before it.
static bool check_gaps(int file, const uint8_t *base, const struct pack_header *h, const char *path,
                       struct error *error)
{
    return check_gap(file, base, sizeof *h + h->blocks * sizeof(uint64_t), h->weight_offset, path, error) &&
           (h->table_bytes == 0 ||
            check_gap(file, base, h->weight_offset + h->weight_bytes, h->table_offset, path, error));
}

// ---- opening ------------------------------------------------------------------------------------------------------------

static const struct pack EMPTY = {.file = -1};

// Anonymous memory whose start is aligned to huge pages; the mapping is remembered in the pack.
static uint8_t *claim_memory(struct pack *pack, uint64_t bytes)
{
    if (bytes > SIZE_MAX - HUGE_PAGE)
        return NULL;
    size_t size = bytes + HUGE_PAGE;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    uint8_t *start = (uint8_t *)(((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    madvise(start, bytes, MADV_HUGEPAGE);
    pack->memory = memory;
    pack->memory_bytes = size;
    return start;
}

static bool read_header(int file, const char *path, const struct pack_shape *shape, struct pack_header *h,
                        uint64_t **checksums, struct error *error)
{
    struct stat info;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode))
        return error_set(error, "%s: is not a file", path);
    uint64_t bytes = (uint64_t)info.st_size;
    if (bytes < sizeof *h)
        return error_set(error, "%s: expected a header of %zu bytes, found a file of %llu", path, sizeof *h,
                         (unsigned long long)bytes);
    errno = 0;
    if (!read_at(file, (uint8_t *)h, sizeof *h, 0))
        return error_set(error, "%s: cannot be read (%s)", path, strerror(errno));
    if (!check_header(h, path, bytes, shape, error))
        return false;
    *checksums = malloc(h->blocks * sizeof(uint64_t) + 1);
    if (!*checksums)
        return error_set(error, "%s: out of memory", path);
    if (!read_at(file, (uint8_t *)*checksums, h->blocks * sizeof(uint64_t), sizeof *h))
        return error_set(error, "%s: cannot be read (%s)", path, strerror(errno));
    return check_hash(h, *checksums, path, error) && check_gaps(file, NULL, h, path, error);
}

static bool fill_sections(struct pack *pack, const char *path, const struct pack_header *h, const uint64_t *checksums,
                          enum pack_mode mode, pack_progress *progress, void *user, struct error *error)
{
    bool check_table = h->table_bytes <= PACK_TABLE_CHECK;
    uint64_t total = h->weight_bytes + (check_table ? h->table_bytes : 0);
    struct section_job job = {.path = path,
                              .what = "the weights",
                              .file = pack->file,
                              .file_offset = h->weight_offset,
                              .bytes = h->weight_bytes,
                              .checksums = checksums,
                              .progress = progress,
                              .user = user,
                              .total = total};
    if (mode == PACK_MAP) {
        void *map = mmap(NULL, h->file_bytes, PROT_READ, MAP_SHARED, pack->file, 0);
        if (map == MAP_FAILED)
            return error_set(error, "%s: cannot be mapped (%s)", path, strerror(errno));
        pack->memory = map;
        pack->memory_bytes = h->file_bytes;
        pack->weights = job.memory = (const uint8_t *)map + h->weight_offset;
    } else {
        job.into = claim_memory(pack, h->weight_bytes);
        if (!job.into)
            return error_set(error, "%s: %llu bytes of memory for the weights cannot be had", path,
                             (unsigned long long)h->weight_bytes);
        pack->weights = job.into;
    }
    if (!check_section(&job, error))
        return false;
    if (mode == PACK_READ)
        mprotect(pack->memory, pack->memory_bytes, PROT_READ);
    pack->table_offset = (int64_t)h->table_offset;
    if (!check_table)
        return true;
    struct section_job table = {.path = path,
                                .what = "the table",
                                .file = pack->file,
                                .file_offset = h->table_offset,
                                .bytes = h->table_bytes,
                                .checksums = checksums + pack_blocks(h->weight_bytes),
                                .progress = progress,
                                .user = user,
                                .done_before = h->weight_bytes,
                                .total = total};
    return check_section(&table, error);
}

bool pack_open(struct pack *pack, const char *path, const struct pack_shape *shape, enum pack_mode mode,
               pack_progress *progress, void *user, struct error *error)
{
    *pack = EMPTY;
    struct pack_header header = {0};
    uint64_t *checksums = NULL;
    pack->file = open(path, O_RDONLY | O_CLOEXEC);
    if (pack->file < 0)
        return error_set(error, "%s: cannot be opened (%s)", path, strerror(errno));
    bool ok = read_header(pack->file, path, shape, &header, &checksums, error) &&
              fill_sections(pack, path, &header, checksums, mode, progress, user, error);
    free(checksums);
    pack->hash = header.hash;
    if (!ok)
        pack_close(pack);
    return ok;
}

bool pack_open_memory(struct pack *pack, const void *blob, uint64_t bytes, const struct pack_shape *shape,
                      struct error *error)
{
    static const char name[] = "embedded weights";
    *pack = EMPTY;
    const uint8_t *base = blob;
    struct pack_header header;
    if ((uintptr_t)blob % 64 != 0)
        return error_set(error, "%s: are not aligned to 64 bytes", name);
    if (bytes < sizeof header)
        return error_set(error, "%s: expected a header of %zu bytes, found %llu", name, sizeof header,
                         (unsigned long long)bytes);
    memcpy(&header, base, sizeof header);
    const uint64_t *checksums = (const uint64_t *)(const void *)(base + sizeof header);
    if (!check_header(&header, name, bytes, shape, error) || !check_hash(&header, checksums, name, error) ||
        !check_gaps(-1, base, &header, name, error))
        return false;
    struct section_job job = {.path = name,
                              .what = "the weights",
                              .file = -1,
                              .file_offset = header.weight_offset,
                              .memory = base + header.weight_offset,
                              .bytes = header.weight_bytes,
                              .checksums = checksums};
    struct section_job table = {.path = name,
                                .what = "the table",
                                .file = -1,
                                .file_offset = header.table_offset,
                                .memory = base + header.table_offset,
                                .bytes = header.table_bytes,
                                .checksums = checksums + pack_blocks(header.weight_bytes)};
    if (!check_section(&job, error) || !check_section(&table, error))
        return false;
    pack->hash = header.hash;
    pack->weights = job.memory;
    pack->table = table.memory;
    return true;
}

struct row_source pack_rows(const struct pack *pack, const struct pack_entry *entry)
{
    struct row_source rows = {.file = -1, .row_bytes = entry->row_bytes};
    if (entry->section == PACK_RESIDENT)
        rows.memory = pack->weights + entry->data_offset;
    else if (pack->table)
        rows.memory = pack->table + entry->data_offset;
    else {
        rows.file = pack->file;
        rows.offset = pack->table_offset + entry->data_offset;
    }
    return rows;
}

void pack_close(struct pack *pack)
{
    if (pack->memory)
        munmap(pack->memory, pack->memory_bytes);
    if (pack->file >= 0)
        close(pack->file);
    *pack = EMPTY;
}
