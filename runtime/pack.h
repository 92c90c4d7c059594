// SPDX-License-Identifier: Apache-2.0
//
// The weight file of one build ("pack"): opened by reading it into memory, by mapping it, or in place inside the binary.
//
//   struct pack pack;
//   struct pack_shape shape = {model.identity, model.weight_bytes, model.row_bytes};
//   if (!pack_open(&pack, path, &shape, PACK_READ, progress, user, error)) ...
//   pack.weights + entry->data_offset          a matrix or vector of the resident section
//   struct row_source rows = pack_rows(&pack, entry);
//   pack_close(&pack);
//
// File: struct pack_header, checksums (XXH3-64 of each block of PACK_BLOCK bytes: blocks of the resident section, then of the
// table section), zeros up to a multiple of PACK_PAGE, the resident section, zeros up to PACK_PAGE, the table section.
//
// Invariant: a pack that opened is of this build, whole and unchanged: magic, version, identity, sizes and checksums are
// checked before a byte of it is used. The table section is never made resident; it is verified at opening when it has at
// most PACK_TABLE_CHECK bytes, since larger tables would take minutes to read.

#ifndef PACK_H
#define PACK_H

#include "kernels/cpu/ops.h"
#include "runtime/error.h"
#include <stdbool.h>
#include <stdint.h>

#define PACK_MAGIC "PIANOLA\n"

enum {
    PACK_VERSION = 1,
    PACK_BLOCK = 1 << 20,
    PACK_PAGE = 4096,
    PACK_TABLE_CHECK = 1 << 30,
};

enum pack_mode { PACK_READ, PACK_MAP };
enum pack_section { PACK_RESIDENT, PACK_TABLE };
enum pack_layout { PACK_PANEL, PACK_ROWS, PACK_VECTOR }; // kernels/cpu/layout.h; a vector is n fp32

// One weight. Offsets are from the start of its section, those of globals always from the start of the resident section;
// -1: none. Strides are bytes from one expert to the next. experts 0: not stacked.
struct pack_entry {
    const char *name;
    int32_t layout, section, encoding, bits, group, n, k, experts;
    int64_t data_offset, data_stride, scale_offset, scale_stride, global_offset;
    int64_t row_bytes; // of PACK_ROWS
    int64_t bytes;     // from data_offset on
};

// What a build expects of its pack.
struct pack_shape {
    uint64_t identity;
    uint64_t weight_bytes, table_bytes; // sections
};

struct pack_header {
    char magic[8];
    uint32_t version, header_bytes; // header_bytes: sizeof(struct pack_header)
    uint64_t identity;
    uint64_t weight_offset, weight_bytes;
    uint64_t table_offset, table_bytes;
    uint64_t block_bytes, blocks;
    uint64_t file_bytes;
    uint64_t reserved[5];
    uint64_t hash; // XXH3-64 of the bytes before it, then of the checksums (seeded with the former)
};

struct pack {
    const uint8_t *weights; // the resident section, 64-byte aligned
    const uint8_t *table;   // the table section in memory, or NULL
    int64_t table_offset;   // of the table section in the file
    int32_t file;           // descriptor of the file, or -1
    void *memory;           // what pack_close gives back
    uint64_t memory_bytes;
    uint64_t hash; // of its header, and so of all of it; 0: generated weights
};

// Called from the opening thread now and then with bytes done and in all. May be NULL.
typedef void pack_progress(void *user, uint64_t done, uint64_t total);

// Opens the pack at path. PACK_READ: the resident section is read into huge-page-aligned anonymous memory; PACK_MAP: the file
// is mapped read-only. On failure *pack is empty and error has one line. The caller closes it.
bool pack_open(struct pack *pack, const char *path, const struct pack_shape *shape, enum pack_mode mode,
               pack_progress *progress, void *user, struct error *error);

// Opens a pack that lies in memory at a 64-byte aligned address; no copy is made, and blob must outlive the pack.
bool pack_open_memory(struct pack *pack, const void *blob, uint64_t bytes, const struct pack_shape *shape,
                      struct error *error);

// Generated weights at the places of entries: deterministic, small, finite numbers in every encoding; tables are zeros.
bool pack_synthetic(struct pack *pack, const struct pack_entry *entries, int32_t count, const struct pack_shape *shape,
                    struct error *error);

// Where the rows of a PACK_ROWS entry are; valid while the pack is open.
struct row_source pack_rows(const struct pack *pack, const struct pack_entry *entry);

void pack_close(struct pack *pack);

// ---- shared by the packer and the loader ----------------------------------------------------------------------------------

// Runs items 0 .. items - 1 on at most `threads` threads (0: one a core); the first failure stops the rest and is reported.
bool pack_parallel(int64_t items, int threads, bool (*run)(void *user, int64_t item, struct error *error), void *user,
                   struct error *error);

// Hash of a header and its checksums.
uint64_t pack_header_hash(const struct pack_header *header, const uint64_t *checksums);

// Blocks of a section.
static inline uint64_t pack_blocks(uint64_t bytes)
{
    return bytes / PACK_BLOCK + (bytes % PACK_BLOCK != 0);
}

#endif
