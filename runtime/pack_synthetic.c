// SPDX-License-Identifier: Apache-2.0
//
// Generated weights: every encoding filled with codes and scales that decode to small finite numbers, about 1/sqrt(k) in
// size, so that activations neither vanish nor overflow. For plans and benches of real shapes without a checkpoint.
// Invariant: the bytes depend on the entries only, not on threads.

#include "runtime/pack.h"

#include "kernels/cpu/layout.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20, NUMBERS = 4096 };

struct fill {
    uint8_t *base; // of the resident section
    const struct pack_entry *entries;
    const int64_t *first_item; // an item is an expert of an entry; [count + 1]
    int32_t count;
};

static uint64_t mix(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

// In [-1, 1).
static float draw(uint64_t *state)
{
    return (float)(int32_t)(mix(state) >> 32) * 0x1p-31f;
}

static uint16_t bf16_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}

// fp16 of a small number, rounded down.
static uint16_t f16_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t exponent = u >> 23 & 255;
    if (exponent < 113)
        return 0;
    return (uint16_t)((u >> 16 & 0x8000) | (exponent - 112) << 10 | (u >> 13 & 1023));
}

// Random bytes; mask is applied to each (FP8 codes: 0xbf, which keeps them below 2 and away from NaN).
static void fill_codes(uint8_t *p, int64_t bytes, uint8_t mask, uint64_t *state)
{
    uint64_t masks = mask * 0x0101010101010101ull;
    for (int64_t i = 0; i < bytes; i += 8) {
        uint64_t u = mix(state) & masks;
        memcpy(p + i, &u, (size_t)(bytes - i < 8 ? bytes - i : 8));
    }
}

// Numbers of `size` bytes, drawn from a table of spelled ones.
static void fill_numbers(uint8_t *p, int64_t bytes, int32_t encoding, float range, uint64_t *state)
{
    uint32_t table[NUMBERS];
    int64_t size = encoding == ENC_F32 ? 4 : 2;
    for (int i = 0; i < NUMBERS; i++) {
        float f = range * draw(state);
        table[i] = encoding == ENC_BF16 ? bf16_bits(f) : encoding == ENC_F16 ? f16_bits(f) : 0;
        if (encoding == ENC_F32)
            memcpy(&table[i], &f, 4);
    }
    for (int64_t i = 0; i < bytes / size;) {
        uint64_t u = mix(state);
        for (int j = 0; j < 5 && i < bytes / size; j++, i++, u >>= 12)
            memcpy(p + i * size, &table[u % NUMBERS], (size_t)size);
    }
}

// A scale near `s` for each word of the panel layout's scales.
static void fill_word_scales(uint8_t *p, int64_t bytes, const struct pack_entry *e, float s, uint64_t *state)
{
    float middle = (float)((1 << e->bits) - 1) * 0.5f;
    for (int64_t i = 0; i < bytes / 4; i++) {
        float f = s * (1.0f + 0.25f * draw(state));
        uint32_t u;
        memcpy(&u, &f, 4);
        if (e->encoding == ENC_AFFINE)
            u = u >> 16 | (uint32_t)bf16_bits(-middle * f) << 16;
        else if (e->encoding == ENC_INT4)
            u = (u & ~31u) | 8;
        memcpy(p + i * 4, &u, 4);
    }
}

static void fill_scales(uint8_t *p, int64_t bytes, const struct pack_entry *e, uint64_t *state)
{
    float size = 1.0f / sqrtf((float)e->k);
    switch (e->encoding) {
    case ENC_AFFINE:
    case ENC_INT4:
        fill_word_scales(p, bytes, e, size * 3.46f / (float)(1 << e->bits), state);
        break;
    case ENC_FP8_BLOCK:
        fill_word_scales(p, bytes, e, size, state);
        break;
    case ENC_NVFP4: // 1, 1.125 .. 1.875; the global scale does the rest
        fill_codes(p, bytes, 7, state);
        for (int64_t i = 0; i < bytes; i++)
            p[i] = (uint8_t)(p[i] + 80);
        break;
    case ENC_MXFP8:
        memset(p, 127 + (int)lrintf(log2f(size)), (size_t)bytes);
        break;
    default:
        break;
    }
}

// Rows of a resident table: codes, then scales as the row layout spells them.
static void fill_row(uint8_t *p, const struct pack_entry *e, uint64_t *state)
{
    int64_t groups = e->group > 0 ? e->k / e->group : 0;
    fill_codes(p, e->row_bytes, e->encoding == ENC_FP8 || e->encoding == ENC_MXFP8 ? 0xbf : 0xff, state);
    if (e->encoding == ENC_AFFINE) {
        uint8_t *scales = p + e->row_bytes - 4 * groups;
        float s = 1.0f / (float)(1 << e->bits), middle = (float)((1 << e->bits) - 1) * 0.5f;
        for (int64_t g = 0; g < groups; g++) {
            memcpy(scales + 2 * g, &(uint16_t){bf16_bits(s)}, 2);
            memcpy(scales + 2 * (groups + g), &(uint16_t){bf16_bits(-middle * s)}, 2);
        }
    } else if (e->encoding == ENC_NVFP4)
        memset(p + e->row_bytes - e->k / 16, 0x38, (size_t)(e->k / 16)); // 1
    else if (e->encoding == ENC_MXFP8)
        memset(p + e->row_bytes - e->k / 32, 127, (size_t)(e->k / 32));
}

static void fill_global(const struct fill *f, const struct pack_entry *e, int64_t expert)
{
    if (e->global_offset < 0)
        return;
    float size = e->layout == PACK_ROWS ? 1.0f : 1.0f / sqrtf((float)e->k);
    float global = e->encoding == ENC_NVFP4 ? size / 4 : size;
    memcpy(f->base + e->global_offset + 4 * expert, &global, 4);
}

static bool fill_item(void *user, int64_t item, struct error *error)
{
    (void)error;
    const struct fill *f = user;
    int32_t low = 0, high = f->count;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (f->first_item[middle] <= item)
            low = middle;
        else
            high = middle;
    }
    const struct pack_entry *e = &f->entries[low];
    int64_t expert = item - f->first_item[low];
    uint64_t state = (uint64_t)item + 1;
    fill_global(f, e, expert);
    if (e->section == PACK_TABLE)
        return true;
    uint8_t *data = f->base + e->data_offset + expert * e->data_stride;
    if (e->layout == PACK_VECTOR) {
        for (int64_t i = 0; i < e->n; i++) {
            float value = 1.0f + 0.25f * draw(&state);
            memcpy(data + 4 * i, &value, 4);
        }
        return true;
    }
    bool plain = e->encoding == ENC_F32 || e->encoding == ENC_BF16 || e->encoding == ENC_F16;
    float range = e->layout == PACK_ROWS ? 1.0f : 1.73f / sqrtf((float)e->k);
    struct weight w = {.encoding = e->encoding, .bits = e->bits, .group = e->group, .n = e->n, .k = e->k};
    int64_t bytes = e->layout == PACK_ROWS ? e->row_bytes * e->n : panel_data_bytes(&w);
    if (plain)
        fill_numbers(data, bytes, e->encoding, range, &state);
    else if (e->layout == PACK_ROWS)
        for (int64_t i = 0; i < e->n; i++)
            fill_row(data + i * e->row_bytes, e, &state);
    else
        fill_codes(data, bytes,
                   e->encoding == ENC_MXFP8 || e->encoding == ENC_FP8 || e->encoding == ENC_FP8_BLOCK ? 0xbf : 0xff,
                   &state);
    if (e->scale_offset >= 0)
        fill_scales(f->base + e->scale_offset + expert * e->scale_stride, panel_scale_bytes(&w), e, &state);
    return true;
}

bool pack_synthetic(struct pack *pack, const struct pack_entry *entries, int32_t count, const struct pack_shape *shape,
                    struct error *error)
{
    *pack = (struct pack){.file = -1};
    uint64_t bytes, tables = (shape->weight_bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    if (__builtin_add_overflow(tables + 2 * (uint64_t)HUGE_PAGE, shape->table_bytes, &bytes))
        return error_set(error, "synthetic weights: the sizes overflow");
    // Untouched pages of the table section read as zeros and take no memory.
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return error_set(error, "synthetic weights: %llu bytes of memory cannot be had", (unsigned long long)bytes);
    uint8_t *base = (uint8_t *)(((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    madvise(base, tables, MADV_HUGEPAGE);
    pack->memory = memory;
    pack->memory_bytes = bytes;
    pack->weights = base;
    pack->table = base + tables;
    int64_t *first = calloc((size_t)count + 1, sizeof *first);
    if (!first) {
        pack_close(pack);
        return error_set(error, "synthetic weights: out of memory");
    }
    for (int32_t i = 0; i < count; i++)
        first[i + 1] = first[i] + (entries[i].experts ? entries[i].experts : 1);
    struct fill fill = {.base = base, .entries = entries, .first_item = first, .count = count};
    bool ok = pack_parallel(first[count], 0, fill_item, &fill, error);
    free(first);
    if (ok)
        mprotect(memory, bytes, PROT_READ);
    else
        pack_close(pack);
    return ok;
}
