// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target: the reader of kept states on hostile files.
//   clang -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/cache_file.c runtime/cache/file.c -o fuzz_cache_file -lxxhash
//   ./fuzz_cache_file -max_total_time=60
// The first byte chooses: the bytes as they are, or a sound file into whose head, ids or checksums the bytes go, sealed again so that
// they get past the hashes, and cut where they say. Invariant: no crash; what opens has sizes that its shape allows, and only blocks
// that were written as they are come out.

#include "runtime/cache/file.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PAGE = 64, LENGTH = 21, BLOCKS = 6 + 3, IMAGE = 3 * CACHE_FILE_PAGE + BLOCKS * PAGE };

static const struct cache_shape shape = {.build = 1,
                                         .weights = 2,
                                         .page = 4,
                                         .context = 64,
                                         .vocabulary = 100,
                                         .page_bytes = PAGE,
                                         .run_bytes = 150,
                                         .run_pages = 3};

static uint8_t image[IMAGE];

static void base_image(void)
{
    struct cache_file file;
    int32_t ids[LENGTH] = {0};
    uint8_t block[PAGE];
    const int fd = memfd_create("state", 0), copy = dup(fd);
    if (!cache_file_create(&file, fd, &shape, ids, LENGTH, true, NULL))
        abort();
    for (int i = 0; i < BLOCKS; i++) {
        memset(block, i, sizeof block);
        if (!cache_file_put(&file, (uint64_t)i, block, NULL))
            abort();
    }
    if (!cache_file_finish(&file, NULL) || pread(copy, image, IMAGE, 0) != IMAGE)
        abort();
    cache_file_close(&file);
    close(copy);
}

// Hashes that fit what the head now says, as far as the image goes.
static void seal(uint8_t *bytes)
{
    struct cache_file_head *h = (struct cache_file_head *)(void *)bytes;
    const uint64_t ids = (uint64_t)(uint32_t)h->length * 4, checks = (CACHE_FILE_PAGE + ids + 4095) / 4096 * 4096;
    if (ids < CACHE_FILE_PAGE && h->blocks < 512 && checks + h->blocks * 8 <= IMAGE)
        h->tables = XXH3_64bits_withSeed(bytes + checks, h->blocks * 8, XXH3_64bits(bytes + CACHE_FILE_PAGE, ids));
    h->hash = XXH3_64bits(h, offsetof(struct cache_file_head, hash));
}

static void read_all(const uint8_t *bytes, size_t size)
{
    struct cache_file file;
    uint8_t block[PAGE];
    const int fd = memfd_create("state", 0);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size)
        abort();
    if (!cache_file_open(&file, fd, &shape, NULL))
        return;
    if (file.head.length < 1 || file.head.length >= shape.context || file.head.file_bytes != size)
        abort();
    for (uint64_t i = 0; i <= file.head.blocks; i++)
        if (cache_file_block(&file, i, block, NULL) && XXH3_64bits(block, PAGE) != file.checks[i])
            abort();
    cache_file_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t bytes[IMAGE];
    if (!image[0])
        base_image();
    if (size < 4)
        return 0;
    const int mode = data[0] % 4;
    const size_t at = data[1] + 256u * (data[2] % 4), cut = data[3] % 8 ? 0 : size % IMAGE;
    data += 4;
    size -= 4;
    if (mode == 0) {
        read_all(data, size);
        return 0;
    }
    memcpy(bytes, image, IMAGE);
    size_t from = mode == 1 ? at % sizeof(struct cache_file_head) : (size_t)(mode - 1) * CACHE_FILE_PAGE + at;
    for (size_t i = 0; i < size && from + i < IMAGE; i++)
        bytes[from + i] ^= data[i];
    seal(bytes);
    read_all(bytes, IMAGE - cut);
    return 0;
}
