// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target: the pack loader on hostile bytes.
//   clang -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/pack.c runtime/pack.c -o fuzz_pack -lxxhash -lpthread
//   ./fuzz_pack -max_total_time=60
// The first byte chooses: the bytes as they are; a sound pack whose header takes the bytes, sealed again so that they get
// past the hash; and whether the build expects what the header says. Invariant: no crash, and an opened pack lies inside of
// its blob.

#include "runtime/pack.h"
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WEIGHTS = 3000, TABLE = 500, IMAGE = 3 * PACK_PAGE };

static void seal(uint8_t *image)
{
    struct pack_header *h = (struct pack_header *)(void *)image;
    uint64_t room = (IMAGE - sizeof *h) / 8, saved = h->blocks;
    uint64_t *sums = (uint64_t *)(void *)(image + sizeof *h);
    sums[0] = XXH3_64bits(image + PACK_PAGE, WEIGHTS);
    sums[1] = XXH3_64bits(image + 2 * PACK_PAGE, TABLE);
    if (h->blocks > room)
        h->blocks = room;
    h->blocks = saved > room ? saved : h->blocks;
    h->hash = saved > room ? 0 : pack_header_hash(h, sums);
}

static void base_image(uint8_t *image)
{
    memset(image, 0, IMAGE);
    struct pack_header h = {.version = PACK_VERSION,
                            .header_bytes = sizeof h,
                            .identity = 1,
                            .weight_offset = PACK_PAGE,
                            .weight_bytes = WEIGHTS,
                            .table_offset = 2 * PACK_PAGE,
                            .table_bytes = TABLE,
                            .block_bytes = PACK_BLOCK,
                            .blocks = 2,
                            .file_bytes = 2 * PACK_PAGE + TABLE};
    memcpy(h.magic, PACK_MAGIC, 8);
    memcpy(image, &h, sizeof h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    uint8_t mode = *data++;
    size--;
    size_t bytes = size > IMAGE ? IMAGE : size;
    uint8_t *blob;
    if (mode & 1) {
        uint64_t at = *data++ / 2;
        size--;
        bytes = 2 * PACK_PAGE + TABLE - (mode & 4 ? size % 600 : 0);
        blob = aligned_alloc(64, IMAGE);
        base_image(blob);
        memcpy(blob + at, data, size < 16 ? size : 16);
        seal(blob);
    } else {
        blob = aligned_alloc(64, (bytes + 127) / 64 * 64);
        memcpy(blob, data, bytes);
    }
    struct pack_shape shape = {1, WEIGHTS, TABLE};
    if (mode & 2 && bytes >= sizeof(struct pack_header)) {
        struct pack_header h;
        memcpy(&h, blob, sizeof h);
        shape = (struct pack_shape){h.identity, h.weight_bytes, h.table_bytes};
    }
    // A copy whose end is poisoned, so that a byte read past it is seen.
    size_t room = (bytes + 63) / 64 * 64 + 64;
    uint8_t *exact = aligned_alloc(64, room);
    memcpy(exact, blob, bytes);
    ASAN_POISON_MEMORY_REGION(exact + bytes, room - bytes);
    struct pack pack;
    struct error error;
    if (pack_open_memory(&pack, exact, bytes, &shape, &error)) {
        if (pack.weights < exact || pack.weights + shape.weight_bytes > exact + bytes ||
            (shape.table_bytes && pack.table + shape.table_bytes > exact + bytes))
            abort();
        pack_close(&pack);
    }
    ASAN_UNPOISON_MEMORY_REGION(exact, room);
    free(exact);
    free(blob);
    return 0;
}
