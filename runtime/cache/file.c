// SPDX-License-Identifier: Apache-2.0
//
// Reading and writing files of kept states. See file.h.

#include "runtime/cache/file.h"
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char MAGIC[8] = "PIANOST\n";

static uint64_t up(uint64_t bytes)
{
    return (bytes + CACHE_FILE_PAGE - 1) / CACHE_FILE_PAGE * CACHE_FILE_PAGE;
}

// Where the parts lie; every count is at most 2^31, so nothing overflows.
static uint64_t checks_at(const struct cache_file_head *h)
{
    return CACHE_FILE_PAGE + up((uint64_t)h->length * sizeof(int32_t));
}

static uint64_t blocks_at(const struct cache_file_head *h)
{
    return checks_at(h) + up(h->blocks * sizeof(uint64_t));
}

static uint64_t head_hash(const struct cache_file_head *h)
{
    return XXH3_64bits(h, offsetof(struct cache_file_head, hash));
}

static uint64_t tables_hash(const struct cache_file *f)
{
    const uint64_t ids = XXH3_64bits(f->ids, (size_t)f->head.length * sizeof *f->ids);
    return XXH3_64bits_withSeed(f->checks, f->head.blocks * sizeof *f->checks, ids);
}

uint64_t cache_shape_hash(const struct cache_shape *shape)
{
    return XXH3_64bits(shape, sizeof *shape);
}

void cache_file_name(char name[CACHE_FILE_NAME], const struct cache_shape *shape, const int32_t *ids, int length)
{
    const XXH128_hash_t hash = XXH3_128bits(ids, (size_t)length * sizeof *ids);
    snprintf(name, CACHE_FILE_NAME, "%016llx-%016llx%016llx", (unsigned long long)cache_shape_hash(shape),
             (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

static bool read_at(int fd, void *to, uint64_t bytes, uint64_t at)
{
    for (uint8_t *p = to; bytes > 0;) {
        ssize_t n = pread(fd, p, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return true;
}

static bool write_at(int fd, const void *from, uint64_t bytes, uint64_t at)
{
    for (const uint8_t *p = from; bytes > 0;) {
        ssize_t n = pwrite(fd, p, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return true;
}

void cache_file_close(struct cache_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    free(f->ids);
    free(f->checks);
    *f = (struct cache_file){.fd = -1};
}

static bool room(struct cache_file *f, struct error *error)
{
    f->ids = calloc((size_t)f->head.length, sizeof *f->ids);
    f->checks = calloc((size_t)f->head.blocks, sizeof *f->checks);
    return (f->ids && f->checks) || error_set(error, "no memory for the tables of a kept state");
}

static uint64_t block_count(const struct cache_shape *shape, int length)
{
    return (uint64_t)((length - 1) / shape->page) + 1 + shape->run_pages;
}

static bool check_head(const struct cache_file_head *h, const struct cache_shape *shape, uint64_t bytes,
                       struct error *error)
{
    uint64_t payload, all;
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0 || h->version != CACHE_FILE_VERSION ||
        h->header_bytes != sizeof *h)
        return error_set(error, "is no kept state of this version");
    if (h->hash != head_hash(h))
        return error_set(error, "its head is damaged");
    if (memcmp(&h->shape, shape, sizeof *shape) != 0)
        return error_set(error, "is of another build, of other weights or of other settings");
    if (h->length < 1 || h->length >= shape->context || (h->follows != 0 && h->follows != 1) ||
        h->blocks != block_count(shape, h->length))
        return error_set(error, "its sizes contradict each other");
    if (__builtin_mul_overflow(h->blocks, (uint64_t)shape->page_bytes, &payload) ||
        __builtin_add_overflow(payload, blocks_at(h), &all) || all != h->file_bytes || all != bytes)
        return error_set(error, "is %llu bytes long, expected %llu", (unsigned long long)bytes,
                         (unsigned long long)h->file_bytes);
    return true;
}

static bool check_tables(const struct cache_file *f, struct error *error)
{
    if (f->head.tables != tables_hash(f))
        return error_set(error, "its ids or checksums are damaged");
    for (int i = 0; i < f->head.length; i++)
        if (f->ids[i] < 0 || f->ids[i] >= f->head.shape.vocabulary)
            return error_set(error, "id %d of it is outside the vocabulary", i);
    return true;
}

bool cache_file_open(struct cache_file *f, int fd, const struct cache_shape *shape, struct error *error)
{
    struct stat st;
    *f = (struct cache_file){.fd = fd};
    bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && read_at(fd, &f->head, sizeof f->head, 0);
    good = good ? check_head(&f->head, shape, (uint64_t)st.st_size, error)
                : error_set(error, "is no file, or shorter than a head");
    good = good && room(f, error);
    if (good && (!read_at(fd, f->ids, (uint64_t)f->head.length * sizeof *f->ids, CACHE_FILE_PAGE) ||
                 !read_at(fd, f->checks, f->head.blocks * sizeof *f->checks, checks_at(&f->head))))
        good = error_set(error, "its tables could not be read");
    if (good && check_tables(f, error))
        return true;
    cache_file_close(f);
    return false;
}

bool cache_file_block(const struct cache_file *f, uint64_t i, void *buffer, struct error *error)
{
    const uint64_t bytes = (uint64_t)f->head.shape.page_bytes;
    if (i >= f->head.blocks || !read_at(f->fd, buffer, bytes, blocks_at(&f->head) + i * bytes))
        return error_set(error, "block %llu of it could not be read", (unsigned long long)i);
    if (XXH3_64bits(buffer, bytes) != f->checks[i])
        return error_set(error, "block %llu of it is damaged", (unsigned long long)i);
    return true;
}

bool cache_file_create(struct cache_file *f, int fd, const struct cache_shape *shape, const int32_t *ids, int length,
                       bool follows, struct error *error)
{
    *f = (struct cache_file){.fd = fd, .head = {.version = CACHE_FILE_VERSION, .shape = *shape}};
    struct cache_file_head *h = &f->head;
    memcpy(h->magic, MAGIC, sizeof h->magic);
    h->header_bytes = sizeof *h;
    h->length = length;
    h->follows = follows;
    h->blocks = block_count(shape, length);
    h->file_bytes = blocks_at(h) + h->blocks * (uint64_t)shape->page_bytes;
    if (!room(f, error)) {
        cache_file_close(f);
        return false;
    }
    memcpy(f->ids, ids, (size_t)length * sizeof *ids);
    return true;
}

bool cache_file_put(struct cache_file *f, uint64_t i, const void *block, struct error *error)
{
    const uint64_t bytes = (uint64_t)f->head.shape.page_bytes;
    f->checks[i] = XXH3_64bits(block, bytes);
    return write_at(f->fd, block, bytes, blocks_at(&f->head) + i * bytes) ||
           error_set(error, "a kept state could not be written: %s", strerror(errno));
}

bool cache_file_finish(struct cache_file *f, struct error *error)
{
    struct cache_file_head *h = &f->head;
    h->tables = tables_hash(f);
    h->hash = head_hash(h);
    return (write_at(f->fd, f->ids, (uint64_t)h->length * sizeof *f->ids, CACHE_FILE_PAGE) &&
            write_at(f->fd, f->checks, h->blocks * sizeof *f->checks, checks_at(h)) &&
            write_at(f->fd, h, sizeof *h, 0) && fsync(f->fd) == 0) ||
           error_set(error, "a kept state could not be written: %s", strerror(errno));
}
