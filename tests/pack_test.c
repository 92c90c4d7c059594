// SPDX-License-Identifier: Apache-2.0
//
// The pack loader: what opens, what is refused and with which message; synthetic weights. The pack is built here, from the
// description in pack.h. Invariant under test: no changed byte, size or name leads to an open pack, or to a crash.

#include "kernels/cpu/layout.h"
#include "runtime/pack.h"
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static int count, failed;

static void ok(bool good, const char *name, const char *detail)
{
    count++;
    failed += !good;
    printf("%sok %d - %s\n", good ? "" : "not ", count, name);
    if (!good && detail && detail[0])
        printf("# %s\n", detail);
}

// ---- an image -----------------------------------------------------------------------------------------------------------

struct image {
    uint8_t *bytes;
    uint64_t size;
    struct pack_shape shape;
    uint64_t weight_offset, table_offset;
};

static uint64_t page_up(uint64_t a)
{
    return (a + PACK_PAGE - 1) / PACK_PAGE * PACK_PAGE;
}

static void image_seal(struct image *m)
{
    struct pack_header h;
    memcpy(&h, m->bytes, sizeof h);
    uint64_t *sums = (uint64_t *)(void *)(m->bytes + sizeof h);
    uint64_t block = 0;
    for (int section = 0; section < 2; section++) {
        uint64_t size = section ? h.table_bytes : h.weight_bytes;
        const uint8_t *data = m->bytes + (section ? m->table_offset : m->weight_offset);
        for (uint64_t at = 0; at < size; at += PACK_BLOCK)
            sums[block++] = XXH3_64bits(data + at, size - at < PACK_BLOCK ? size - at : PACK_BLOCK);
    }
    h.hash = XXH3_64bits_withSeed(sums, block * 8, XXH3_64bits(&h, offsetof(struct pack_header, hash)));
    memcpy(m->bytes, &h, sizeof h);
}

static struct image image_make(uint64_t weights, uint64_t table)
{
    struct image m = {.shape = {0x1122334455667788ull, weights, table}};
    struct pack_header h = {.version = 1,
                            .header_bytes = sizeof h,
                            .identity = m.shape.identity,
                            .weight_bytes = weights,
                            .table_bytes = table,
                            .block_bytes = PACK_BLOCK,
                            .blocks = pack_blocks(weights) + pack_blocks(table)};
    memcpy(h.magic, "PIANOLA\n", 8);
    m.weight_offset = h.weight_offset = page_up(sizeof h + 8 * h.blocks);
    m.table_offset = h.table_offset = page_up(h.weight_offset + weights);
    m.size = h.file_bytes = table ? h.table_offset + table : h.weight_offset + weights;
    m.bytes = aligned_alloc(PACK_PAGE, page_up(m.size));
    memset(m.bytes, 0, page_up(m.size));
    memcpy(m.bytes, &h, sizeof h);
    for (uint64_t i = 0; i < weights; i++)
        m.bytes[h.weight_offset + i] = (uint8_t)(i * 7 + i / 256);
    for (uint64_t i = 0; i < table; i++)
        m.bytes[h.table_offset + i] = (uint8_t)(i * 13 + 5);
    image_seal(&m);
    return m;
}

static char path[256];

static void image_write(const struct image *m, uint64_t bytes)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, m->bytes, bytes < m->size ? bytes : m->size) < 0 ||
        (bytes > m->size && write(file, "surplus", bytes - m->size) < 0))
        abort();
    close(file);
}

// ---- opening ------------------------------------------------------------------------------------------------------------

static bool opens(const struct image *m, enum pack_mode mode, struct error *error)
{
    struct pack pack;
    error->text[0] = 0;
    bool good = pack_open(&pack, path, &m->shape, mode, NULL, NULL, error);
    if (good)
        pack_close(&pack);
    return good;
}

static void refused(const struct image *m, uint64_t bytes, const char *name, const char *message)
{
    struct error error;
    image_write(m, bytes);
    bool good = !opens(m, PACK_READ, &error) && strstr(error.text, message) && !strchr(error.text, '\n');
    good = good && !opens(m, PACK_MAP, &error) && strstr(error.text, message);
    ok(good, name, error.text);
}

static uint64_t progress_last, progress_total;

static void on_progress(void *user, uint64_t done, uint64_t total)
{
    (void)user;
    progress_last = done;
    progress_total = total;
}

static void test_good(const struct image *m)
{
    struct pack_entry rows = {.layout = PACK_ROWS, .section = PACK_TABLE, .row_bytes = 100, .data_offset = 200};
    static const char *const names[] = {"opens by reading", "opens by mapping", "opens in memory"};
    image_write(m, m->size);
    for (int way = 0; way < 3; way++) {
        struct pack pack;
        struct error error = {0};
        bool good = way == 2 ? pack_open_memory(&pack, m->bytes, m->size, &m->shape, &error)
                             : pack_open(&pack, path, &m->shape, (enum pack_mode)way, on_progress, NULL, &error);
        if (!good) {
            ok(false, names[way], error.text);
            continue;
        }
        good = memcmp(pack.weights, m->bytes + m->weight_offset, m->shape.weight_bytes) == 0;
        good = good && (uintptr_t)pack.weights % 64 == 0 && (way != 2 || pack.weights == m->bytes + m->weight_offset);
        struct row_source source = pack_rows(&pack, &rows);
        uint8_t row[100];
        if (source.memory)
            memcpy(row, source.memory + 3 * source.row_bytes, 100);
        else
            good = good && pread(source.file, row, 100, source.offset + 3 * source.row_bytes) == 100;
        good = good && memcmp(row, m->bytes + m->table_offset + 500, 100) == 0 && (way == 2) == (source.memory != NULL);
        ok(good, names[way], "other bytes");
        pack_close(&pack);
    }
    ok(progress_total == m->shape.weight_bytes + m->shape.table_bytes && progress_last <= progress_total,
       "progress is told", NULL);
}

static void test_messages(struct image *m)
{
    struct pack_header *h = (struct pack_header *)(void *)m->bytes, saved = *h;
    struct error error;
    refused(m, 0, "an empty file", "expected a header of 128 bytes, found a file of 0");
    refused(m, 100, "a cut header", "found a file of 100");
    refused(m, m->size - 1, "one byte short", "truncated: make it again");
    refused(m, PACK_PAGE, "header only", "truncated: make it again");
    refused(m, m->size + 7, "bytes too many", "not a whole weight file");
    h->magic[0] = 'p';
    refused(m, m->size, "wrong magic", "is not a weight file (wrong magic)");
    *h = saved;
    h->version = 2;
    refused(m, m->size, "wrong version", "expected version 1, found 2");
    *h = saved;
    h->identity++;
    refused(m, m->size, "of another build",
            "is of another build (expected identity 1122334455667788, found 1122334455667789)");
    *h = saved;
    h->weight_bytes -= 64;
    refused(m, m->size, "other sizes", "is of another build");
    *h = saved;
    h->blocks++;
    refused(m, m->size, "other blocks", "its header is damaged");
    *h = saved;
    h->weight_offset -= 64;
    refused(m, m->size, "another place of the weights", "its header is damaged");
    *h = saved;
    h->hash++;
    refused(m, m->size, "wrong hash", "the checksum of its header is wrong");
    *h = saved;
    m->bytes[m->weight_offset + 5]++;
    refused(m, m->size, "a changed weight", "wrong checksum of the weights");
    m->bytes[m->weight_offset + 5]--;
    m->bytes[m->table_offset + 5]++;
    refused(m, m->size, "a changed table", "wrong checksum of the table");
    m->bytes[m->table_offset + 5]--;
    struct image huge = *m;
    huge.shape.weight_bytes = h->weight_bytes = UINT64_MAX - 100;
    refused(&huge, m->size, "sizes that overflow", "overflow");
    *h = saved;
    unlink(path);
    ok(!opens(m, PACK_READ, &error) && strstr(error.text, "cannot be opened"), "no file", error.text);
    mkdir(path, 0700);
    ok(!opens(m, PACK_READ, &error) && strstr(error.text, "is not a file"), "a folder", error.text);
    rmdir(path);
    struct pack pack;
    ok(!pack_open_memory(&pack, m->bytes + 1, m->size - 1, &m->shape, &error) && strstr(error.text, "not aligned"),
       "unaligned memory", error.text);
}

// Every byte of a small pack, changed; every length of it.
static void test_sweep(void)
{
    struct image m = image_make(3000, 500);
    struct error error;
    uint64_t accepted = 0, first = 0;
    for (uint64_t i = 0; i < m.size; i++) {
        struct pack pack;
        uint8_t saved = m.bytes[i];
        m.bytes[i] ^= (uint8_t)(1 << i % 8);
        if (pack_open_memory(&pack, m.bytes, m.size, &m.shape, &error)) {
            first = accepted++ ? first : i;
            pack_close(&pack);
        }
        m.bytes[i] = saved;
    }
    snprintf(error.text, sizeof error.text, "%llu accepted, the first at %llu", (unsigned long long)accepted,
             (unsigned long long)first);
    ok(accepted == 0, "every changed bit is refused", error.text);
    accepted = 0;
    for (uint64_t size = 0; size < m.size; size += size < 300 ? 1 : 97) {
        struct pack pack;
        uint8_t *copy = aligned_alloc(64, (size + 64) / 64 * 64); // so that a read past the end is seen
        memcpy(copy, m.bytes, size);
        accepted += pack_open_memory(&pack, copy, size, &m.shape, &error);
        free(copy);
    }
    ok(accepted == 0, "every shorter length is refused", NULL);
    image_write(&m, m.size);
    bool good = true;
    for (uint64_t i = 0; i < m.size; i += 61) {
        m.bytes[i] ^= 0x10;
        image_write(&m, m.size);
        good = good && !opens(&m, PACK_READ, &error) && !opens(&m, PACK_MAP, &error);
        m.bytes[i] ^= 0x10;
    }
    ok(good, "changed bytes of a file are refused", error.text);
    unlink(path);
    free(m.bytes);
}

// ---- synthetic weights --------------------------------------------------------------------------------------------------

static bool plausible(const struct pack *pack, const struct pack_entry *e, double *size)
{
    float *row = malloc((size_t)e->k * 4);
    double sum = 0;
    bool good = row != NULL;
    int64_t experts = e->experts ? e->experts : 1;
    for (int64_t x = 0; good && x < experts; x++) {
        struct weight w = {.encoding = e->encoding, .bits = e->bits, .group = e->group, .n = e->n, .k = e->k};
        w.data = pack->weights + e->data_offset + x * e->data_stride;
        w.scale = e->scale_offset < 0 ? NULL : pack->weights + e->scale_offset + x * e->scale_stride;
        w.global =
            e->global_offset < 0 ? NULL : (const float *)(const void *)(pack->weights + e->global_offset + 4 * x);
        for (int32_t i = 0; i < e->n; i++) {
            if (e->layout == PACK_ROWS)
                row_decode(e->encoding, e->bits, e->group, e->k, w.data + i * e->row_bytes, w.global, row);
            else
                panel_row_decode(&w, i, row);
            for (int32_t k = 0; k < e->k; k++) {
                good = good && isfinite(row[k]);
                sum += (double)row[k] * row[k];
            }
        }
    }
    free(row);
    *size = sqrt(sum / (double)(experts * e->n) / (e->layout == PACK_ROWS ? e->k : 1));
    return good;
}

static int32_t synthetic_entries(struct pack_entry *entries, int64_t *bytes)
{
    static const int32_t shapes[][3] = {{ENC_F32, 32, 0},    {ENC_BF16, 16, 0},   {ENC_F16, 16, 0},
                                        {ENC_AFFINE, 4, 32}, {ENC_AFFINE, 3, 64}, {ENC_AFFINE, 8, 128},
                                        {ENC_NVFP4, 4, 16},  {ENC_MXFP8, 8, 32},  {ENC_FP8_BLOCK, 8, 128},
                                        {ENC_FP8, 8, 0},     {ENC_INT4, 4, 128}};
    int32_t n = 0;
    *bytes = 0;
    for (int32_t layout = PACK_PANEL; layout <= PACK_ROWS; layout++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            struct pack_entry e = {
                .layout = layout, .encoding = shapes[i][0], .bits = shapes[i][1], .group = shapes[i][2]};
            e.n = 72;
            e.k = 256;
            e.experts = layout == PACK_PANEL && i % 2 ? 3 : 0;
            struct weight w = {.encoding = e.encoding, .bits = e.bits, .group = e.group, .n = e.n, .k = e.k};
            e.row_bytes = row_bytes(e.encoding, e.bits, e.group, e.k);
            int64_t data = layout == PACK_ROWS ? e.row_bytes * e.n : panel_data_bytes(&w);
            int64_t scale = layout == PACK_ROWS ? 0 : panel_scale_bytes(&w);
            if (data == 0)
                continue;
            e.data_offset = *bytes;
            e.scale_offset = scale ? *bytes + round_up(data, 64) : -1;
            int64_t stride = round_up(data, 64) + round_up(scale, 64);
            e.data_stride = e.experts ? stride : 0;
            e.scale_stride = scale ? e.data_stride : 0;
            *bytes += stride * (e.experts ? e.experts : 1);
            e.global_offset = e.encoding == ENC_NVFP4 || e.encoding == ENC_FP8 ? *bytes : -1;
            *bytes += 64;
            entries[n++] = e;
        }
    return n;
}

static void test_synthetic(void)
{
    struct pack_entry entries[32];
    int64_t bytes;
    int32_t n = synthetic_entries(entries, &bytes);
    struct pack_shape shape = {1, (uint64_t)bytes, 5000};
    struct pack pack, again;
    struct error error = {0};
    if (!pack_synthetic(&pack, entries, n, &shape, &error) || !pack_synthetic(&again, entries, n, &shape, &error)) {
        ok(false, "synthetic weights", error.text);
        return;
    }
    ok(memcmp(pack.weights, again.weights, (size_t)bytes) == 0, "synthetic weights are the same each time", NULL);
    for (int32_t i = 0; i < n; i++) {
        double size;
        char name[96];
        bool good = plausible(&pack, &entries[i], &size);
        snprintf(name, sizeof name, "synthetic %s, encoding %d of %d bits: finite, row norm %.2f",
                 entries[i].layout == PACK_ROWS ? "rows" : "panels", entries[i].encoding, entries[i].bits, size);
        ok(good && size > 0.1 && size < 4, name, NULL);
    }
    ok(pack.table[4999] == 0, "a synthetic table is zeros", NULL);
    pack_close(&pack);
    pack_close(&again);
}

int main(void)
{
    snprintf(path, sizeof path, "/tmp/pack_test.%d", (int)getpid());
    struct image m = image_make(3 * PACK_BLOCK + 12345 / 64 * 64, 5000);
    test_good(&m);
    test_messages(&m);
    free(m.bytes);
    m = image_make(6400, 0);
    image_write(&m, m.size);
    struct error error;
    ok(opens(&m, PACK_READ, &error), "a pack without a table", error.text);
    free(m.bytes);
    test_sweep();
    test_synthetic();
    unlink(path);
    printf("1..%d\n", count);
    return failed ? 1 : 0;
}
