// SPDX-License-Identifier: Apache-2.0
//
// pack_dump PLAN PACK: opens a pack as a build would and writes every weight, decoded to fp32 row by row, to stdout: what the
// tests of checkpoint reading compare. Invariant: only the public functions of pack.h and layout.h are used.

#include "kernels/cpu/layout.h"
#include "runtime/packer.h"
#include <stdlib.h>
#include <unistd.h>

static bool dump(const struct pack *pack, const struct pack_entry *e)
{
    float *row = malloc((size_t)(e->layout == PACK_VECTOR ? e->n : e->k) * 4);
    struct row_source rows = {.file = -1};
    if (e->layout == PACK_ROWS)
        rows = pack_rows(pack, e);
    if (!row)
        return false;
    if (e->layout == PACK_VECTOR) {
        fwrite(pack->weights + e->data_offset, 4, (size_t)e->n, stdout);
        free(row);
        return true;
    }
    for (int64_t x = 0; x < (e->experts ? e->experts : 1); x++) {
        const uint8_t *global = e->global_offset >= 0 ? pack->weights + e->global_offset + 4 * x : NULL;
        struct weight w = {.encoding = e->encoding, .bits = e->bits, .group = e->group, .n = e->n, .k = e->k};
        w.data = pack->weights + e->data_offset + x * e->data_stride;
        w.scale = e->scale_offset >= 0 ? pack->weights + e->scale_offset + x * e->scale_stride : NULL;
        w.global = (const float *)(const void *)global;
        uint8_t *bytes = malloc((size_t)e->row_bytes + 1);
        for (int64_t i = 0; bytes && i < e->n; i++) {
            if (e->layout == PACK_ROWS) {
                const uint8_t *at = rows.memory ? rows.memory + i * e->row_bytes : bytes;
                if (!rows.memory &&
                    pread(rows.file, bytes, (size_t)e->row_bytes, rows.offset + i * e->row_bytes) != e->row_bytes)
                    return false;
                row_decode(e->encoding, e->bits, e->group, e->k, at, w.global, row);
            } else
                panel_row_decode(&w, i, row);
            fwrite(row, 4, (size_t)e->k, stdout);
        }
        free(bytes);
    }
    free(row);
    return true;
}

int main(int argc, char **argv)
{
    struct error error = {0};
    struct plan plan;
    struct pack pack;
    if (argc != 3 && argc != 4)
        return 1;
    enum pack_mode mode = argc == 4 ? PACK_MAP : PACK_READ;
    if (!plan_read(&plan, argv[1], &error) || !pack_open(&pack, argv[2], &plan.shape, mode, NULL, NULL, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 2;
    }
    bool ok = true;
    for (int64_t i = 0; ok && i < plan.item_count; i++) {
        struct pack_entry *e = &plan.items[i].entry;
        if (e->layout == PACK_ROWS)
            e->row_bytes = row_bytes(e->encoding, e->bits, e->group, e->k);
        ok = dump(&pack, e);
    }
    pack_close(&pack);
    plan_free(&plan);
    return ok ? 0 : 1;
}
