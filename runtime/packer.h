// SPDX-License-Identifier: Apache-2.0
//
// The packer's parts: the plan (what the generator wrote), the sources (a checkpoint's files), the output (a pack, written
// strictly forward). Invariant: memory is bounded by a few chunks of one matrix, whatever the size of the checkpoint.

#ifndef PACKER_H
#define PACKER_H

#include "runtime/pack.h"
#include <stdio.h>

// ---- packer_plan.c --------------------------------------------------------------------------------------------------------

enum part_role { PART_DATA, PART_SCALE, PART_BIAS, PART_ZERO, PART_ORDER, PART_GLOBAL, PART_COUNT };
enum part_dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F8, DTYPE_U8, DTYPE_U32, DTYPE_COUNT };

// Where one tensor's rows lie in the checkpoint.
struct part {
    int32_t file; // -1: the piece has no such tensor
    int32_t dtype;
    int64_t offset, stride; // bytes
    int32_t mark;           // PART_GLOBAL: 1 when it divides; PART_ZERO: what is added to each stored number
};

struct run {
    int64_t first, count;
};

// Rows of one source tensor that follow one another in the output.
struct piece {
    int32_t expert;
    bool transposed, channel; // words are [k/8, n]; scales are one a row
    int64_t source_rows;
    struct part part[PART_COUNT];
    int64_t first_run, runs; // none: all rows in order
};

struct item {
    struct pack_entry entry;
    bool plus_one;
    int32_t stored_encoding, stored_bits, stored_group;
    int64_t first_piece, pieces;
};

struct source_file {
    char *path;
    int64_t bytes;
    int descriptor;
};

struct plan {
    struct pack_shape shape;
    struct source_file *files;
    struct item *items;
    struct piece *pieces;
    struct run *runs;
    int64_t file_count, item_count, piece_count, run_count;
};

// Reads a plan and opens nothing. On failure *plan is empty. The caller frees it.
bool plan_read(struct plan *plan, const char *path, struct error *error);
void plan_free(struct plan *plan);

// Opens the files of a plan and checks their sizes.
bool plan_open_files(struct plan *plan, struct error *error);

// ---- packer_write.c -------------------------------------------------------------------------------------------------------

struct output; // a pack being written, under a temporary name

// Starts a pack of this shape at path. The temporary file is removed by output_drop and by output_end when it fails.
bool output_begin(struct output **out, const char *path, const struct pack_shape *shape, struct error *error);
// Writes at `offset` of a section, which must not lie before what was written; the gap is filled with zeros.
bool output_put(struct output *out, int section, int64_t offset, const void *data, int64_t bytes, struct error *error);
// Completes both sections, writes checksums and header, syncs and renames. Frees out.
bool output_end(struct output *out, struct error *error);
void output_drop(struct output *out);
// Bytes of both sections that were written.
int64_t output_done(const struct output *out);

// ---- packer_source.c ------------------------------------------------------------------------------------------------------

// Converts one weight and writes it.
bool item_pack(const struct plan *plan, const struct item *item, struct output *out, struct error *error);
// Writes the globals of a table entry, which lie in the resident section.
bool item_pack_globals(const struct plan *plan, const struct item *item, struct output *out, struct error *error);

#endif
