// SPDX-License-Identifier: Apache-2.0
//
// Reading a checkpoint's tensors and bringing them into the pack's layouts, a chunk of rows at a time.
// Invariant: numbers move and are re-spelt, never rounded; the exceptions are forms that no kernel reads, which the generator
// has asked to be decoded to fp32.

#include "runtime/packer.h"

#include "kernels/cpu/layout.h"
#include "kernels/cpu/number.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TILE = 128,
    PART_ROWS = 256, // rows that one thread packs; their scales are a multiple of 64 bytes in every encoding
    CHUNK_ROWS = 64 * PART_ROWS,
    CHUNK_BYTES = 64 << 20,
};

static const int dtype_bytes[DTYPE_COUNT] = {4, 2, 2, 1, 1, 4};

// ---- reading ------------------------------------------------------------------------------------------------------------

static bool read_bytes(const struct plan *plan, const struct part *part, int64_t offset, int64_t count, void *into,
                       struct error *error)
{
    const struct source_file *f = &plan->files[part->file];
    uint8_t *p = into;
    int64_t at;
    if (__builtin_add_overflow(part->offset, offset, &at) || count > f->bytes - at)
        return error_set(error, "its data lies outside of %s", f->path);
    while (count > 0) {
        ssize_t got = pread(f->descriptor, p, (size_t)count, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_set(error, "%s cannot be read (%s)", f->path, got < 0 ? strerror(errno) : "end of file");
        p += got;
        at += got;
        count -= got;
    }
    return true;
}

static int64_t piece_rows(const struct plan *plan, const struct piece *piece)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < piece->runs; i++)
        rows += plan->runs[piece->first_run + i].count;
    return piece->runs ? rows : piece->source_rows;
}

// The source row of output row `row` of a piece; *span gets how many rows follow in the same order.
static int64_t source_row(const struct plan *plan, const struct piece *piece, int64_t row, int64_t *span)
{
    for (int64_t i = 0; i < piece->runs; i++) {
        const struct run *run = &plan->runs[piece->first_run + i];
        if (row < run->count) {
            *span = run->count - row;
            return run->first + row;
        }
        row -= run->count;
    }
    *span = piece->source_rows - row;
    return row;
}

// Reads what belongs to output rows first * unit .. : count rows of the part, of which one serves `unit` rows of codes.
static bool read_rows(const struct plan *plan, const struct piece *piece, enum part_role role, int64_t unit,
                      int64_t first, int64_t count, int64_t row_size, uint8_t *into, struct error *error)
{
    const struct part *part = &piece->part[role];
    if (part->file < 0)
        return error_set(error, "the plan names no source for it");
    if (part->stride != row_size)
        return error_set(error, "the plan says %lld bytes a row, %lld are needed", (long long)part->stride,
                         (long long)row_size);
    for (int64_t done = 0; done < count;) {
        int64_t span, row = source_row(plan, piece, (first + done) * unit, &span);
        int64_t rows = (span + unit - 1) / unit < count - done ? (span + unit - 1) / unit : count - done;
        if (rows <= 0)
            return error_set(error, "the plan asks for more rows than there are");
        if (!read_bytes(plan, part, row / unit * row_size, rows * row_size, into + done * row_size, error))
            return false;
        done += rows;
    }
    return true;
}

static float part_float(int32_t dtype, const void *data, int64_t i)
{
    int32_t type = dtype == DTYPE_F32 ? NUMBER_F32 : dtype == DTYPE_BF16 ? NUMBER_BF16 : NUMBER_F16;
    return number_float(type, data, i);
}

// ---- one chunk ----------------------------------------------------------------------------------------------------------

// What is read for a chunk of rows, and where its packed form goes.
struct chunk {
    struct weight w;            // of the whole matrix
    struct panel_source source; // of the rows at hand
    uint8_t *codes, *scales, *biases;
    uint8_t *data, *scale; // packed: of the chunk; of the whole matrix
    int64_t first, rows;   // of the matrix
    int64_t capacity;      // rows
};

static int64_t code_row_bytes(int32_t encoding, int32_t bits, int64_t k)
{
    switch (encoding) {
    case ENC_F32:
        return 4 * k;
    case ENC_BF16:
    case ENC_F16:
        return 2 * k;
    case ENC_AFFINE:
        return k * bits / 8;
    case ENC_NVFP4:
    case ENC_INT4:
        return k / 2;
    default:
        return k;
    }
}

static int32_t code_type(int32_t encoding)
{
    static const uint8_t types[ENC_COUNT] = {
        [ENC_F32] = NUMBER_F32,    [ENC_BF16] = NUMBER_BF16,      [ENC_F16] = NUMBER_F16,
        [ENC_AFFINE] = NUMBER_U32, [ENC_NVFP4] = NUMBER_FP4,      [ENC_MXFP8] = NUMBER_E4M3,
        [ENC_FP8] = NUMBER_E4M3,   [ENC_FP8_BLOCK] = NUMBER_E4M3, [ENC_INT4] = NUMBER_GPTQ,
    };
    return types[encoding];
}

static int32_t scale_type(int32_t encoding, int32_t dtype)
{
    if (encoding == ENC_NVFP4)
        return NUMBER_E4M3;
    if (encoding == ENC_MXFP8)
        return NUMBER_E8M0;
    return dtype == DTYPE_F32 ? NUMBER_F32 : dtype == DTYPE_BF16 ? NUMBER_BF16 : NUMBER_F16;
}

static int64_t scale_columns(const struct item *item)
{
    int64_t k = item->entry.k;
    switch (item->stored_encoding) {
    case ENC_AFFINE:
    case ENC_INT4:
        return k / item->stored_group;
    case ENC_NVFP4:
        return k / 16;
    case ENC_MXFP8:
        return k / 32;
    case ENC_FP8_BLOCK:
        return (k + TILE - 1) / TILE;
    default:
        return 0;
    }
}

static bool chunk_claim(struct chunk *c, const struct item *item, bool whole, struct error *error)
{
    const struct pack_entry *e = &item->entry;
    *c = (struct chunk){.w = {.encoding = e->encoding, .bits = e->bits, .group = e->group, .n = e->n, .k = e->k}};
    int64_t codes = code_row_bytes(item->stored_encoding, item->stored_bits, e->k), columns = scale_columns(item);
    int64_t widest = e->encoding == ENC_F32 ? 4 * (int64_t)e->k : codes;
    int64_t rows = CHUNK_BYTES / widest / PART_ROWS * PART_ROWS;
    rows = rows < PART_ROWS ? PART_ROWS : rows > CHUNK_ROWS ? CHUNK_ROWS : rows;
    c->capacity = round_up(e->n, PART_ROWS) < rows ? round_up(e->n, PART_ROWS) : rows;
    int64_t source_rows = whole ? round_up(e->n, PART_ROWS) : c->capacity;
    struct weight part = c->w;
    part.n = (int32_t)c->capacity;
    int64_t data = e->layout == PACK_ROWS ? row_bytes(e->encoding, e->bits, e->group, e->k) * c->capacity
                                          : panel_data_bytes(&part);
    c->codes = malloc((size_t)(source_rows * widest));
    c->scales = malloc((size_t)(source_rows * (columns ? columns : 1) * 4));
    c->biases = malloc((size_t)(source_rows * (columns ? columns : 1) * 4));
    c->data = malloc((size_t)data);
    c->scale = calloc(1, e->layout == PACK_ROWS ? 1 : (size_t)panel_scale_bytes(&c->w) + 1);
    return (c->codes && c->scales && c->biases && c->data && c->scale) || error_set(error, "out of memory");
}

static void chunk_free(struct chunk *c)
{
    free(c->codes);
    free(c->scales);
    free(c->biases);
    free(c->data);
    free(c->scale);
}

// Reads codes, scales and biases of rows first .. first + rows - 1 of a piece, as they are stored.
static bool chunk_read(const struct plan *plan, const struct item *item, const struct piece *piece, struct chunk *c,
                       struct error *error)
{
    int32_t encoding = item->stored_encoding;
    int64_t columns = scale_columns(item), unit = encoding == ENC_FP8_BLOCK ? TILE : 1;
    const struct part *scale = &piece->part[PART_SCALE], *bias = &piece->part[PART_BIAS];
    if (!read_rows(plan, piece, PART_DATA, 1, c->first, c->rows,
                   code_row_bytes(encoding, item->stored_bits, item->entry.k), c->codes, error))
        return false;
    c->source = (struct panel_source){.code_type = code_type(encoding), .codes = c->codes, .rows = c->rows};
    if (columns == 0)
        return true;
    if (!read_rows(plan, piece, PART_SCALE, unit, c->first / unit, (c->rows + unit - 1) / unit,
                   columns * (scale->file < 0 ? 1 : dtype_bytes[scale->dtype]), c->scales, error))
        return false;
    c->source.scale_type = scale_type(encoding, scale->dtype);
    c->source.scales = c->scales;
    if (encoding != ENC_AFFINE)
        return true;
    if (!read_rows(plan, piece, PART_BIAS, 1, c->first, c->rows,
                   columns * (bias->file < 0 ? 1 : dtype_bytes[bias->dtype]), c->biases, error))
        return false;
    c->source.bias_type = scale_type(encoding, bias->dtype);
    c->source.biases = c->biases;
    return true;
}

// Rows of FP8 codes with block scales or a scale a row, decoded to fp32 in place of the codes.
static bool chunk_decode(const struct plan *plan, const struct item *item, const struct piece *piece, struct chunk *c,
                         struct error *error)
{
    const struct part *scale = &piece->part[PART_SCALE];
    int64_t k = item->entry.k, tiles = (k + TILE - 1) / TILE, span;
    if (scale->file < 0 || (item->stored_encoding != ENC_FP8 && item->stored_encoding != ENC_FP8_BLOCK))
        return error_set(error, "the plan asks for a decoding that is not known");
    int64_t size = dtype_bytes[scale->dtype], width = piece->channel ? 1 : tiles;
    if (scale->stride != width * size)
        return error_set(error, "the plan says %lld bytes of scales, %lld are needed", (long long)scale->stride,
                         (long long)(width * size));
    uint8_t *codes = malloc((size_t)k), *scales = malloc((size_t)(width * size));
    bool ok = (codes && scales) || error_set(error, "out of memory");
    for (int64_t r = 0; ok && r < c->rows; r++) {
        int64_t row = source_row(plan, piece, c->first + r, &span), at = piece->channel ? row : row / TILE;
        ok = read_bytes(plan, &piece->part[PART_DATA], row * k, k, codes, error) &&
             read_bytes(plan, scale, at * scale->stride, scale->stride, scales, error);
        for (int64_t i = 0; ok && i < k; i++) {
            float s = part_float(scale->dtype, scales, piece->channel ? 0 : i / TILE);
            float value = number_e4m3(codes[i]) * s;
            if (!isfinite(value))
                ok = error_set(error, "NaN or infinite code or scale at row %lld, column %lld", (long long)row,
                               (long long)i);
            memcpy(c->codes + (r * k + i) * 4, &value, 4);
        }
    }
    free(codes);
    free(scales);
    c->source = (struct panel_source){.code_type = NUMBER_F32, .codes = c->codes, .rows = c->rows};
    return ok;
}

// ---- int4 ---------------------------------------------------------------------------------------------------------------

// Activation order is not kept by the kernels: column i must belong to group i / group.
static bool check_order(const struct plan *plan, const struct piece *piece, int64_t k, int64_t group,
                        struct error *error)
{
    if (piece->part[PART_ORDER].file < 0)
        return true;
    int32_t *order = malloc((size_t)k * 4);
    bool ok =
        order ? read_bytes(plan, &piece->part[PART_ORDER], 0, k * 4, order, error) : error_set(error, "out of memory");
    for (int64_t i = 0; ok && i < k; i++)
        if (order[i] != i / group)
            ok = error_set(error, "column %lld is of group %d: int4 in activation order is not read", (long long)i,
                           order[i]);
    free(order);
    return ok;
}

// Turns rows of `columns` elements into columns.
static void transpose(uint8_t *into, const uint8_t *from, int64_t rows, int64_t columns, int64_t size)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            memcpy(into + (c * rows + r) * size, from + (r * columns + c) * size, (size_t)size);
}

// Reads a whole int4 matrix as GPTQ stores it: words [k/8, n], scales and zero points [k/group, n].
static bool chunk_read_int4(const struct plan *plan, const struct item *item, const struct piece *piece,
                            struct chunk *c, struct error *error)
{
    int64_t n = item->entry.n, k = item->entry.k, groups = scale_columns(item), words = k / 8;
    const struct part *scale = &piece->part[PART_SCALE], *zero = &piece->part[PART_ZERO];
    if (piece->runs || piece->source_rows != n || scale->file < 0 || piece->part[PART_DATA].file < 0)
        return error_set(error, "the plan has no such int4 matrix");
    int64_t size = dtype_bytes[scale->dtype];
    if (!check_order(plan, piece, k, item->stored_group, error) ||
        !read_bytes(plan, &piece->part[PART_DATA], 0, words * n * 4, c->codes, error) ||
        !read_bytes(plan, scale, 0, groups * n * size, c->scales, error))
        return false;
    c->source = (struct panel_source){.code_type = NUMBER_GPTQ, .codes = c->codes, .rows = n, .scales = c->scales};
    c->source.scale_type = scale_type(ENC_INT4, scale->dtype);
    if (zero->file >= 0) {
        if (!read_bytes(plan, zero, 0, groups * (n / 8) * 4, c->biases, error))
            return false;
        c->source.biases = c->biases;
        c->source.zero_offset = zero->mark;
    }
    if (piece->transposed)
        return true;
    uint8_t *copy = malloc((size_t)(words * n * 4 > groups * n * size ? words * n * 4 : groups * n * size));
    if (!copy)
        return error_set(error, "out of memory");
    memcpy(copy, c->codes, (size_t)(words * n * 4));
    transpose(c->codes, copy, n, words, 4);
    memcpy(copy, c->scales, (size_t)(groups * n * size));
    transpose(c->scales, copy, n, groups, size);
    free(copy);
    return true;
}

// ---- matrices -----------------------------------------------------------------------------------------------------------

static int64_t part_data_bytes(const struct chunk *c)
{
    struct weight w = c->w;
    w.n = PART_ROWS;
    return panel_data_bytes(&w);
}

static bool pack_part(void *user, int64_t part, struct error *error)
{
    const struct chunk *c = user;
    struct weight w = c->w;
    struct panel_source source = c->source;
    int64_t first = part * PART_ROWS, rows = c->rows - first < PART_ROWS ? c->rows - first : PART_ROWS;
    w.n = PART_ROWS;
    int64_t scale = panel_scale_bytes(&w) * (c->first / PART_ROWS + part);
    w.n = (int32_t)rows;
    source.first_row = source.rows == c->w.n ? c->first + first : first;
    return panel_pack(&w, &source, c->data + part * part_data_bytes(c), c->scale + scale, error);
}

// One expert, or the whole matrix: codes chunk by chunk, then the scales.
static bool pack_matrix(const struct plan *plan, const struct item *item, const struct piece *piece, struct chunk *c,
                        struct output *out, struct error *error)
{
    const struct pack_entry *e = &item->entry;
    int64_t data = e->data_offset + e->data_stride * piece->expert,
            scale = e->scale_offset + e->scale_stride * piece->expert;
    bool int4 = e->encoding == ENC_INT4, decode = e->encoding != item->stored_encoding;
    if (piece_rows(plan, piece) != e->n)
        return error_set(error, "expected %d rows, the plan has %lld", e->n, (long long)piece_rows(plan, piece));
    if (int4 && !chunk_read_int4(plan, item, piece, c, error))
        return false;
    for (c->first = 0; c->first < e->n; c->first += c->capacity) {
        c->rows = e->n - c->first < c->capacity ? e->n - c->first : c->capacity;
        bool ok =
            int4 || (decode ? chunk_decode(plan, item, piece, c, error) : chunk_read(plan, item, piece, c, error));
        struct weight w = c->w;
        w.n = (int32_t)c->rows;
        if (!ok || !pack_parallel((c->rows + PART_ROWS - 1) / PART_ROWS, 0, pack_part, c, error))
            return false;
        if (!output_put(out, e->section, data, c->data, panel_data_bytes(&w), error))
            return false;
        data += panel_data_bytes(&w);
    }
    return e->scale_offset < 0 || output_put(out, e->section, scale, c->scale, panel_scale_bytes(&c->w), error);
}

// ---- factors, vectors, tables -------------------------------------------------------------------------------------------

static bool read_global(const struct plan *plan, const struct piece *piece, float *value, struct error *error)
{
    const struct part *part = &piece->part[PART_GLOBAL];
    uint8_t bytes[4] = {0};
    *value = 1.0f;
    if (part->file < 0)
        return true;
    if (!read_bytes(plan, part, 0, dtype_bytes[part->dtype], bytes, error))
        return false;
    *value = part_float(part->dtype, bytes, 0);
    if (!isfinite(*value) || (part->mark && *value == 0))
        return error_set(error, "its global scale is %g", (double)*value);
    if (part->mark)
        *value = 1.0f / *value;
    return true;
}

static bool named(const struct item *item, int32_t expert, struct error *error)
{
    struct error inner = *error;
    if (item->entry.experts)
        return error_set(error, "weight %s, expert %d: %.400s", item->entry.name, expert, inner.text);
    return error_set(error, "weight %s: %.400s", item->entry.name, inner.text);
}

bool item_pack_globals(const struct plan *plan, const struct item *item, struct output *out, struct error *error)
{
    const struct pack_entry *e = &item->entry;
    if (e->global_offset < 0)
        return true;
    for (int32_t i = 0; i < (e->experts ? e->experts : 1); i++) {
        float value;
        if (!read_global(plan, &plan->pieces[item->first_piece + i], &value, error))
            return named(item, i, error);
        if (!output_put(out, PACK_RESIDENT, e->global_offset + 4 * i, &value, 4, error))
            return false;
    }
    return true;
}

static bool pack_experts(const struct plan *plan, const struct item *item, struct output *out, struct error *error)
{
    int64_t experts = item->entry.experts ? item->entry.experts : 1;
    struct chunk c;
    bool ok = item->pieces == experts || error_set(error, "the plan has %lld sources", (long long)item->pieces);
    ok = chunk_claim(&c, item, item->entry.encoding == ENC_INT4, error) && ok;
    for (int64_t i = 0; ok && i < experts; i++) {
        const struct piece *piece = &plan->pieces[item->first_piece + i];
        ok = (piece->expert == i || error_set(error, "the plan's experts are out of order")) &&
             pack_matrix(plan, item, piece, &c, out, error);
        if (!ok)
            named(item, (int32_t)i, error);
    }
    chunk_free(&c);
    return ok && item_pack_globals(plan, item, out, error);
}

static bool pack_vector(const struct plan *plan, const struct item *item, struct output *out, struct error *error)
{
    const struct pack_entry *e = &item->entry;
    const struct piece *piece = &plan->pieces[item->first_piece];
    if (item->pieces != 1 || piece_rows(plan, piece) != e->n)
        return error_set(error, "weight %s: expected %d values", e->name, e->n);
    int32_t dtype = piece->part[PART_DATA].dtype;
    int64_t size = dtype_bytes[dtype];
    uint8_t *stored = malloc((size_t)(e->n * size));
    float *values = malloc((size_t)e->n * 4);
    bool ok = (stored && values) || error_set(error, "out of memory");
    ok = ok && read_rows(plan, piece, PART_DATA, 1, 0, e->n, size, stored, error);
    for (int64_t i = 0; ok && i < e->n; i++) {
        values[i] = part_float(dtype, stored, i) + (item->plus_one ? 1.0f : 0.0f);
        ok = isfinite(values[i]) || error_set(error, "value %lld is NaN or infinite", (long long)i);
    }
    ok = (ok || named(item, 0, error)) && output_put(out, e->section, e->data_offset, values, 4 * (int64_t)e->n, error);
    free(stored);
    free(values);
    return ok;
}

static bool pack_table(const struct plan *plan, const struct item *item, struct output *out, struct error *error)
{
    const struct pack_entry *e = &item->entry;
    int64_t bytes = row_bytes(e->encoding, e->bits, e->group, e->k), offset = e->data_offset, rows = 0;
    struct chunk c;
    bool ok = chunk_claim(&c, item, false, error);
    for (int64_t i = 0; ok && i < item->pieces; i++) {
        const struct piece *piece = &plan->pieces[item->first_piece + i];
        int64_t total = piece_rows(plan, piece);
        rows += total;
        ok = rows <= e->n || error_set(error, "expected %d rows, the plan has more", e->n);
        for (c.first = 0; ok && c.first < total; c.first += c.capacity) {
            c.rows = total - c.first < c.capacity ? total - c.first : c.capacity;
            c.w.n = (int32_t)c.rows;
            ok = (e->encoding != item->stored_encoding ? chunk_decode(plan, item, piece, &c, error)
                                                       : chunk_read(plan, item, piece, &c, error)) &&
                 row_pack(&c.w, &c.source, c.data, error) &&
                 output_put(out, e->section, offset, c.data, c.rows * bytes, error);
            offset += c.rows * bytes;
        }
    }
    ok = ok && (rows == e->n || error_set(error, "expected %d rows, the plan has %lld", e->n, (long long)rows));
    if (!ok)
        named(item, 0, error);
    chunk_free(&c);
    return ok && (e->section == PACK_TABLE || item_pack_globals(plan, item, out, error));
}

bool item_pack(const struct plan *plan, const struct item *item, struct output *out, struct error *error)
{
    if (item->pieces == 0)
        return error_set(error, "weight %s: the plan names no source", item->entry.name);
    if (item->entry.layout == PACK_VECTOR)
        return pack_vector(plan, item, out, error);
    if (item->entry.layout == PACK_ROWS)
        return pack_table(plan, item, out, error);
    return pack_experts(plan, item, out, error);
}
