// SPDX-License-Identifier: Apache-2.0
//
// Reading the plan that gen/pack.lua writes. Invariant: after plan_read every index of a piece is inside its table, every
// source lies inside its file, and the sizes of every entry are those of kernels/cpu/layout.h.

#include "runtime/packer.h"

#include "kernels/cpu/layout.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE = 8192, DIMENSION_LIMIT = 1 << 30 };

static const char *const encoding_names[ENC_COUNT] = {"f32",   "bf16",      "f16", "affine", "nvfp4",
                                                      "mxfp8", "fp8_block", "fp8", "int4"};
static const char *const role_names[PART_COUNT] = {"data", "scale", "bias", "zero", "order", "global"};

struct reader {
    const char *path;
    FILE *file;
    int64_t line;
    struct plan *plan;
    int64_t file_room, item_room, piece_room, run_room;
    struct error *error;
};

static bool bad(struct reader *r, const char *what)
{
    return error_set(r->error, "%s: line %lld: %s; run make again", r->path, (long long)r->line, what);
}

static int32_t find_name(const char *const *names, int32_t count, const char *name)
{
    for (int32_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

// Room for one more element of a growing array; returns NULL when memory is out.
static void *grow(void *array, int64_t count, int64_t *room, size_t size)
{
    if (count < *room)
        return array;
    int64_t next = *room ? *room * 2 : 64;
    void *bigger = realloc(array, (size_t)next * size);
    if (bigger)
        *room = next;
    return bigger;
}

#define GROW(r, field, room)                                                                                           \
    do {                                                                                                               \
        void *bigger_ = grow((r)->plan->field##s, (r)->plan->field##_count, &(r)->room, sizeof *(r)->plan->field##s);  \
        if (!bigger_)                                                                                                  \
            return bad(r, "out of memory");                                                                            \
        (r)->plan->field##s = bigger_;                                                                                 \
    } while (0)

static bool read_file_line(struct reader *r, const char *line)
{
    long long bytes;
    int at = 0;
    if (sscanf(line, "file %lld %n", &bytes, &at) != 1 || at == 0 || bytes < 0)
        return bad(r, "expected: file BYTES PATH");
    GROW(r, file, file_room);
    char *path = strdup(line + at);
    if (!path)
        return bad(r, "out of memory");
    r->plan->files[r->plan->file_count++] = (struct source_file){path, bytes, -1};
    return true;
}

// Sizes of an entry against the layout's own functions.
static bool check_entry(struct reader *r, const struct pack_entry *e)
{
    struct weight w = {.encoding = e->encoding, .bits = e->bits, .group = e->group, .n = e->n, .k = e->k};
    int64_t experts = e->experts ? e->experts : 1, limit = INT64_MAX / 4 / experts;
    int64_t section =
        e->section == PACK_TABLE ? (int64_t)r->plan->shape.table_bytes : (int64_t)r->plan->shape.weight_bytes;
    int64_t data = 0, scale = 0;
    if (e->layout == PACK_VECTOR)
        data = 4 * (int64_t)e->n;
    else if (e->layout == PACK_ROWS)
        data = row_bytes(e->encoding, e->bits, e->group, e->k) * e->n;
    else {
        data = panel_data_bytes(&w);
        scale = panel_scale_bytes(&w);
    }
    int64_t stride = round_up(data, 64) + round_up(scale, 64);
    if (data <= 0 || data > limit || scale < 0 || (scale > 0) != (e->scale_offset >= 0))
        return bad(r, "the entry has no such layout");
    if (e->experts && (e->data_stride != stride || (scale && e->scale_stride != stride)))
        return bad(r, "the sizes of the entry are not those of this packer");
    if (scale && e->scale_offset != e->data_offset + round_up(data, 64))
        return bad(r, "the scales of the entry do not follow its codes");
    if (e->data_offset < 0 || e->data_offset > section || stride * (experts - 1) + data > section - e->data_offset)
        return bad(r, "the entry lies outside of its section");
    return true;
}

static bool read_entry_line(struct reader *r, const char *line)
{
    char layout[16], section[16], encoding[16], transform[16], stored[16];
    struct item item = {.first_piece = r->plan->piece_count};
    struct pack_entry *e = &item.entry;
    int at = 0;
    long long place[5];
    if (sscanf(line, "entry %15s %15s %15s %d %d %d %d %d %lld %lld %lld %lld %lld %15s %15s %d %d %n", layout, section,
               encoding, &e->bits, &e->group, &e->n, &e->k, &e->experts, &place[0], &place[1], &place[2], &place[3],
               &place[4], transform, stored, &item.stored_bits, &item.stored_group, &at) != 17 ||
        at == 0)
        return bad(r, "expected an entry");
    e->data_offset = place[0];
    e->data_stride = place[1];
    e->scale_offset = place[2];
    e->scale_stride = place[3];
    e->global_offset = place[4];
    e->layout = strcmp(layout, "panel") == 0 ? PACK_PANEL : strcmp(layout, "rows") == 0 ? PACK_ROWS : PACK_VECTOR;
    e->section = strcmp(section, "table") == 0 ? PACK_TABLE : PACK_RESIDENT;
    e->encoding = find_name(encoding_names, ENC_COUNT, encoding);
    item.stored_encoding = find_name(encoding_names, ENC_COUNT, stored);
    item.plus_one = strcmp(transform, "plus_one") == 0;
    if (e->encoding < 0 || item.stored_encoding < 0)
        return bad(r, "unknown encoding");
    if (e->n <= 0 || e->k <= 0 || e->experts < 0 || e->n > DIMENSION_LIMIT || e->k > DIMENSION_LIMIT || e->group < 0 ||
        e->bits <= 0 || e->bits > 32 || item.stored_group < 0 || item.stored_bits <= 0 || item.stored_bits > 32)
        return bad(r, "the shape of the entry is out of range");
    bool grouped = e->encoding == ENC_AFFINE || e->encoding == ENC_INT4;
    bool stored_grouped = item.stored_encoding == ENC_AFFINE || item.stored_encoding == ENC_INT4;
    if ((grouped && (e->group == 0 || e->k % e->group)) || (stored_grouped && item.stored_group != e->group))
        return bad(r, "the groups of the entry do not fit its columns");
    GROW(r, item, item_room);
    e->name = strdup(line + at);
    if (!e->name)
        return bad(r, "out of memory");
    r->plan->items[r->plan->item_count++] = item;
    return check_entry(r, e);
}

static struct item *last_item(struct reader *r)
{
    return r->plan->item_count ? &r->plan->items[r->plan->item_count - 1] : NULL;
}

static struct piece *last_piece(struct reader *r)
{
    struct item *item = last_item(r);
    return item && item->pieces ? &r->plan->pieces[r->plan->piece_count - 1] : NULL;
}

static bool read_piece_line(struct reader *r, const char *line)
{
    struct item *item = last_item(r);
    struct piece piece = {.first_run = r->plan->run_count};
    char flags[8];
    long long rows;
    if (!item || sscanf(line, "piece %d %lld %7s", &piece.expert, &rows, flags) != 3)
        return bad(r, "expected a piece of an entry");
    piece.source_rows = rows;
    piece.transposed = strchr(flags, 't') != NULL;
    piece.channel = strchr(flags, 'c') != NULL;
    for (int i = 0; i < PART_COUNT; i++)
        piece.part[i].file = -1;
    int32_t most = item->entry.experts ? item->entry.experts : 1;
    if (piece.expert < 0 || piece.expert >= most || rows <= 0 || rows > DIMENSION_LIMIT * 4LL)
        return bad(r, "the piece is out of range");
    GROW(r, piece, piece_room);
    r->plan->pieces[r->plan->piece_count++] = piece;
    item->pieces++;
    return true;
}

static int32_t dtype_of(const char *name)
{
    static const char *const names[] = {"F32", "BF16", "F16", "F8_E4M3", "U8", "U32", "I32", "F8_E8M0", "F4"};
    static const int32_t dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F8, DTYPE_U8,
                                     DTYPE_U32, DTYPE_U32,  DTYPE_U8,  DTYPE_U8};
    int32_t at = find_name(names, 9, name);
    return at < 0 ? -1 : dtypes[at];
}

static bool read_tensor_line(struct reader *r, const char *line)
{
    struct piece *piece = last_piece(r);
    struct part part;
    char role[16], dtype[16];
    long long offset, stride;
    if (!piece ||
        sscanf(line, "tensor %15s %d %lld %lld %15s %d", role, &part.file, &offset, &stride, dtype, &part.mark) != 6)
        return bad(r, "expected a tensor of a piece");
    int32_t at = find_name(role_names, PART_COUNT, role);
    part.dtype = dtype_of(dtype);
    part.offset = offset;
    part.stride = stride;
    if (at < 0 || part.dtype < 0 || part.file < 0 || part.file >= r->plan->file_count || offset < 0 || stride < 0 ||
        offset > r->plan->files[part.file].bytes || stride > r->plan->files[part.file].bytes)
        return bad(r, "the tensor is out of range");
    piece->part[at] = part;
    return true;
}

static bool read_run_line(struct reader *r, const char *line)
{
    struct piece *piece = last_piece(r);
    long long first, count;
    if (!piece || sscanf(line, "run %lld %lld", &first, &count) != 2)
        return bad(r, "expected rows of a piece");
    if (first < 0 || count <= 0 || first > piece->source_rows || count > piece->source_rows - first)
        return bad(r, "the rows lie outside of the tensor");
    GROW(r, run, run_room);
    r->plan->runs[r->plan->run_count++] = (struct run){first, count};
    piece->runs++;
    return true;
}

static bool read_line(struct reader *r, char *line, bool *end)
{
    unsigned long long identity;
    long long weights, tables;
    if (strncmp(line, "piece ", 6) == 0)
        return read_piece_line(r, line);
    if (strncmp(line, "tensor ", 7) == 0)
        return read_tensor_line(r, line);
    if (strncmp(line, "run ", 4) == 0)
        return read_run_line(r, line);
    if (strncmp(line, "entry ", 6) == 0)
        return read_entry_line(r, line);
    if (strncmp(line, "file ", 5) == 0)
        return read_file_line(r, line);
    if (sscanf(line, "identity %llx", &identity) == 1) {
        r->plan->shape.identity = identity;
        return true;
    }
    if (sscanf(line, "sections %lld %lld", &weights, &tables) == 2 && weights >= 0 && tables >= 0) {
        r->plan->shape.weight_bytes = (uint64_t)weights;
        r->plan->shape.table_bytes = (uint64_t)tables;
        return true;
    }
    *end = strcmp(line, "end") == 0;
    return *end || bad(r, "is not understood");
}

bool plan_read(struct plan *plan, const char *path, struct error *error)
{
    *plan = (struct plan){0};
    struct reader r = {.path = path, .file = fopen(path, "rbe"), .plan = plan, .error = error};
    if (!r.file)
        return error_set(error, "%s: cannot be opened (%s)", path, strerror(errno));
    char *line = malloc(LINE);
    bool ok = line != NULL, end = false;
    while (ok && !end && fgets(line, LINE, r.file)) {
        r.line++;
        line[strcspn(line, "\n")] = 0;
        if (r.line == 1)
            ok = strcmp(line, "pianola-plan 1") == 0 || bad(&r, "is not a plan of this packer");
        else
            ok = read_line(&r, line, &end);
    }
    if (ok && !end)
        ok = bad(&r, "the plan is truncated");
    free(line);
    fclose(r.file);
    if (!ok)
        plan_free(plan);
    return ok;
}

bool plan_open_files(struct plan *plan, struct error *error)
{
    for (int64_t i = 0; i < plan->file_count; i++) {
        struct source_file *f = &plan->files[i];
        struct stat info;
        f->descriptor = open(f->path, O_RDONLY | O_CLOEXEC);
        if (f->descriptor < 0 || fstat(f->descriptor, &info) != 0)
            return error_set(error, "%s: cannot be opened (%s)", f->path, strerror(errno));
        if (info.st_size != f->bytes)
            return error_set(error, "%s: expected %lld bytes, found %lld; run make again", f->path, (long long)f->bytes,
                             (long long)info.st_size);
    }
    return true;
}

void plan_free(struct plan *plan)
{
    for (int64_t i = 0; i < plan->file_count; i++) {
        if (plan->files[i].descriptor >= 0)
            close(plan->files[i].descriptor);
        free(plan->files[i].path);
    }
    for (int64_t i = 0; i < plan->item_count; i++)
        free((void *)(uintptr_t)plan->items[i].entry.name);
    free(plan->files);
    free(plan->items);
    free(plan->pieces);
    free(plan->runs);
    *plan = (struct plan){0};
}
