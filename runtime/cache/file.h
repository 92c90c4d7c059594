// SPDX-License-Identifier: Apache-2.0
//
// The file of one kept state. It is read as untrusted: another build's, cut, flipped or made up, it is refused in one line.
//
// File: struct cache_file_head and zeros up to CACHE_FILE_PAGE; the ids and zeros up to CACHE_FILE_PAGE; the XXH3-64 of each
// block and zeros up to CACHE_FILE_PAGE; the blocks, one a page of the pool: the pages of positions below length, then those of
// the run.
// Invariants: sizes are checked before anything is allocated or read by them; ids and checksums are verified when a file is opened, a
// block before a byte of it is used; a file has its name only once all of it is on the disk.

#ifndef CACHE_FILE_H
#define CACHE_FILE_H

#include "runtime/error.h"
#include <stdbool.h>
#include <stdint.h>

enum { CACHE_FILE_PAGE = 4096, CACHE_FILE_VERSION = 1, CACHE_FILE_NAME = 64 };

// What must be equal for a state to be of use: who made it, and how it lies in pages.
struct cache_shape {
    uint64_t build, weights; // hashes of the program and of the weights
    int32_t kv_encoding, page, context, vocabulary;
    int64_t page_bytes, run_bytes;
    uint32_t run_pages, reserved;
};

struct cache_file_head {
    char magic[8];
    uint32_t version, header_bytes;
    struct cache_shape shape;
    int32_t length, follows;
    uint64_t blocks, file_bytes;
    uint64_t tables; // XXH3-64 of ids and checksums, as they lie in the file
    uint64_t hash;   // XXH3-64 of the bytes before it
};

// An open file; fd -1: closed.
struct cache_file {
    int fd;
    struct cache_file_head head;
    int32_t *ids;     // [length]
    uint64_t *checks; // [blocks]
};

// Identity of a shape: the first part of a name.
uint64_t cache_shape_hash(const struct cache_shape *shape);

// The name of the state of these ids.
void cache_file_name(char name[CACHE_FILE_NAME], const struct cache_shape *shape, const int32_t *ids, int length);

// Takes over fd, also on failure. Verifies everything but the blocks. *file is closed by the caller, or closed already on failure.
bool cache_file_open(struct cache_file *file, int fd, const struct cache_shape *shape, struct error *error);
// Block i into buffer[page_bytes].
bool cache_file_block(const struct cache_file *file, uint64_t i, void *buffer, struct error *error);
void cache_file_close(struct cache_file *file);

// A file that is written: blocks in any order, then the end of it. fd is an empty file.
bool cache_file_create(struct cache_file *file, int fd, const struct cache_shape *shape, const int32_t *ids, int length,
                       bool follows, struct error *error);
bool cache_file_put(struct cache_file *file, uint64_t i, const void *block, struct error *error);
// Writes the head and waits until all of it is on the disk.
bool cache_file_finish(struct cache_file *file, struct error *error);

#endif
