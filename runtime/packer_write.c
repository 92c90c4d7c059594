// SPDX-License-Identifier: Apache-2.0
//
// Writing a pack forward: sections with their checksums, the header last, then the rename that makes it visible.
// Invariant: the pack's own name never holds an unfinished file; the temporary one is gone after an error or a signal.

#include "runtime/packer.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { NAME = 4096 };

struct output {
    char path[NAME], temporary[NAME + 8];
    int file;
    struct pack_header header;
    uint64_t *checksums;
    uint8_t *block; // the block being filled
    int64_t filled;
    int section;
    int64_t position; // in the section
    int64_t done;
};

// The temporary file that a signal removes.
static char signal_path[NAME + 8];

static void on_signal(int number)
{
    (void)number;
    if (signal_path[0])
        unlink(signal_path);
    _exit(2);
}

static uint64_t page_up(uint64_t bytes)
{
    return (bytes + PACK_PAGE - 1) / PACK_PAGE * PACK_PAGE;
}

static void fill_header(struct pack_header *h, const struct pack_shape *shape)
{
    *h = (struct pack_header){
        .version = PACK_VERSION,
        .header_bytes = sizeof *h,
        .identity = shape->identity,
        .weight_bytes = shape->weight_bytes,
        .table_bytes = shape->table_bytes,
        .block_bytes = PACK_BLOCK,
        .blocks = pack_blocks(shape->weight_bytes) + pack_blocks(shape->table_bytes),
    };
    memcpy(h->magic, PACK_MAGIC, sizeof h->magic);
    h->weight_offset = page_up(sizeof *h + h->blocks * sizeof(uint64_t));
    h->table_offset = page_up(h->weight_offset + h->weight_bytes);
    h->file_bytes = h->table_bytes ? h->table_offset + h->table_bytes : h->weight_offset + h->weight_bytes;
}

bool output_begin(struct output **result, const char *path, const struct pack_shape *shape, struct error *error)
{
    *result = NULL;
    if (strlen(path) >= NAME)
        return error_set(error, "%s: the path is too long", path);
    struct output *out = calloc(1, sizeof *out);
    if (!out)
        return error_set(error, "%s: out of memory", path);
    fill_header(&out->header, shape);
    snprintf(out->path, sizeof out->path, "%s", path);
    snprintf(out->temporary, sizeof out->temporary, "%s.tmp", path);
    out->checksums = calloc(out->header.blocks + 1, sizeof(uint64_t));
    out->block = malloc(PACK_BLOCK);
    out->file = open(out->temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (out->file < 0)
        error_set(error, "%s: cannot be written (%s)", out->temporary, strerror(errno));
    else {
        snprintf(signal_path, sizeof signal_path, "%s", out->temporary);
        signal(SIGINT, on_signal);
        signal(SIGTERM, on_signal);
        signal(SIGHUP, on_signal);
    }
    if (out->file < 0 || !out->checksums || !out->block) {
        if (out->file >= 0)
            error_set(error, "%s: out of memory", path);
        output_drop(out);
        return false;
    }
    *result = out;
    return true;
}

static bool write_at(struct output *out, const void *data, uint64_t bytes, uint64_t offset, struct error *error)
{
    const uint8_t *p = data;
    while (bytes > 0) {
        ssize_t put = pwrite(out->file, p, bytes, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return error_set(error, "%s: cannot be written (%s)", out->temporary,
                             put < 0 ? strerror(errno) : "no space");
        p += put;
        offset += (uint64_t)put;
        bytes -= (uint64_t)put;
    }
    return true;
}

static bool flush_block(struct output *out, struct error *error)
{
    if (out->filled == 0)
        return true;
    uint64_t start = (uint64_t)(out->position - out->filled), index = start / PACK_BLOCK;
    uint64_t base = out->section == PACK_TABLE ? out->header.table_offset : out->header.weight_offset;
    if (out->section == PACK_TABLE)
        index += pack_blocks(out->header.weight_bytes);
    out->checksums[index] = XXH3_64bits(out->block, (size_t)out->filled);
    bool ok = write_at(out, out->block, (uint64_t)out->filled, base + start, error);
    out->filled = 0;
    return ok;
}

// Appends bytes (zeros when data is NULL) to the current section.
static bool append(struct output *out, const uint8_t *data, int64_t bytes, struct error *error)
{
    while (bytes > 0) {
        int64_t room = PACK_BLOCK - out->filled, count = bytes < room ? bytes : room;
        if (data) {
            memcpy(out->block + out->filled, data, (size_t)count);
            data += count;
        } else
            memset(out->block + out->filled, 0, (size_t)count);
        out->filled += count;
        out->position += count;
        out->done += count;
        bytes -= count;
        if (out->filled == PACK_BLOCK && !flush_block(out, error))
            return false;
    }
    return true;
}

static int64_t section_bytes(const struct output *out, int section)
{
    return (int64_t)(section == PACK_TABLE ? out->header.table_bytes : out->header.weight_bytes);
}

static bool enter_section(struct output *out, int section, struct error *error)
{
    if (section == out->section)
        return true;
    if (section < out->section)
        return error_set(error, "%s: the plan goes back to an earlier section", out->path);
    if (!append(out, NULL, section_bytes(out, out->section) - out->position, error) || !flush_block(out, error))
        return false;
    out->section = section;
    out->position = 0;
    return true;
}

bool output_put(struct output *out, int section, int64_t offset, const void *data, int64_t bytes, struct error *error)
{
    if (!enter_section(out, section, error))
        return false;
    if (offset < out->position || bytes < 0 || bytes > section_bytes(out, section) - offset)
        return error_set(error, "%s: the plan places a weight at %lld, after %lld and in a section of %lld bytes",
                         out->path, (long long)offset, (long long)out->position,
                         (long long)section_bytes(out, section));
    return append(out, NULL, offset - out->position, error) && append(out, data, bytes, error);
}

// Makes the rename itself durable.
static void sync_folder(const char *path)
{
    char copy[NAME];
    snprintf(copy, sizeof copy, "%s", path);
    int folder = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
}

bool output_end(struct output *out, struct error *error)
{
    bool ok = enter_section(out, PACK_TABLE, error) &&
              append(out, NULL, section_bytes(out, PACK_TABLE) - out->position, error) && flush_block(out, error);
    if (ok) {
        out->header.hash = pack_header_hash(&out->header, out->checksums);
        ok = write_at(out, &out->header, sizeof out->header, 0, error) &&
             write_at(out, out->checksums, out->header.blocks * sizeof(uint64_t), sizeof out->header, error);
    }
    if (ok && ftruncate(out->file, (off_t)out->header.file_bytes) != 0)
        ok = error_set(error, "%s: cannot be written (%s)", out->temporary, strerror(errno));
    if (ok && fsync(out->file) != 0)
        ok = error_set(error, "%s: cannot be written (%s)", out->temporary, strerror(errno));
    if (ok && rename(out->temporary, out->path) != 0)
        ok = error_set(error, "%s: cannot be renamed to %s (%s)", out->temporary, out->path, strerror(errno));
    if (ok) {
        signal_path[0] = 0;
        sync_folder(out->path);
        out->temporary[0] = 0;
    }
    output_drop(out);
    return ok;
}

void output_drop(struct output *out)
{
    if (!out)
        return;
    if (out->file >= 0) {
        close(out->file);
        if (out->temporary[0])
            unlink(out->temporary);
    }
    signal_path[0] = 0;
    free(out->checksums);
    free(out->block);
    free(out);
}

int64_t output_done(const struct output *out)
{
    return out->done;
}
