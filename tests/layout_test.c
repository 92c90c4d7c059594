// SPDX-License-Identifier: Apache-2.0
//
// Packing: every number comes back from panels and rows exactly (up to the one rounding of scale * code + bias), slices of a
// matrix pack like the matrix, and what cannot be kept is refused with its place.

#include <stdio.h>

#include "tests/kernel_run.h"
#include "tests/matrix_sample.h"

static const struct {
    int encoding, bits, group, n, k;
} shapes[] = {
    {ENC_F32, 0, 0, 19, 33},     {ENC_BF16, 0, 0, 19, 33},     {ENC_F16, 0, 0, 19, 33},
    {ENC_AFFINE, 2, 32, 19, 96}, {ENC_AFFINE, 3, 64, 19, 192}, {ENC_AFFINE, 4, 128, 19, 256},
    {ENC_AFFINE, 5, 32, 19, 64}, {ENC_AFFINE, 6, 32, 19, 160}, {ENC_AFFINE, 8, 64, 19, 128},
    {ENC_NVFP4, 0, 0, 19, 80},   {ENC_MXFP8, 0, 0, 19, 96},    {ENC_FP8_BLOCK, 0, 0, 300, 150},
    {ENC_FP8, 0, 0, 19, 70},     {ENC_INT4, 4, 128, 32, 256},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static bool close_to(const float *got, const struct sample *s, int64_t row)
{
    bool good = true;
    for (int k = 0; k < s->w.k; k++) {
        double want = s->value[row * s->w.k + k], bound = 0x1p-22 * s->magnitude[row * s->w.k + k];
        good = good && fabs((double)got[k] - want) <= bound;
    }
    return good;
}

static void test_panels(int i, const struct sample *s)
{
    struct weight w = s->w;
    float *row = sample_bytes(w.k * 4);
    bool good = true;
    w.global = &s->global;
    for (int r = 0; r < w.n; r++) {
        panel_row_decode(&w, r, row);
        good = good && close_to(row, s, r);
    }
    ok(good, "shape %d: panels hold the published numbers", i);
    // rows 16 .. n - 1 (tiles of 128 for the encoding whose scales are tiles) packed alone
    int first = w.encoding == ENC_FP8_BLOCK ? 128 : 16;
    struct panel_source source = s->source;
    source.first_row = first;
    w.n -= first;
    uint8_t *data = sample_bytes(panel_data_bytes(&w)), *scale = sample_bytes(panel_scale_bytes(&w));
    struct error error = {.text = {0}};
    good = panel_pack(&w, &source, data, scale, &error);
    int64_t panels = (s->w.n + PANEL - 1) / PANEL, skip_data = panel_data_bytes(&s->w) / panels * first / PANEL;
    good = good && memcmp(data, s->w.data + skip_data, (size_t)panel_data_bytes(&w)) == 0;
    w.data = data;
    w.scale = scale;
    for (int r = 0; r < w.n; r++) {
        panel_row_decode(&w, r, row);
        good = good && close_to(row, s, r + first);
    }
    ok(good, "shape %d: a slice of rows packs like the whole", i);
    free(data);
    free(scale);
    free(row);
}

static void test_rows(int i, const struct sample *s)
{
    const struct weight *w = &s->w;
    int64_t bytes = row_bytes(w->encoding, w->bits, w->group, w->k);
    if (w->encoding == ENC_INT4 || w->encoding == ENC_FP8_BLOCK) {
        ok(bytes == 0, "shape %d: no row layout", i);
        return;
    }
    uint8_t *rows = sample_bytes(bytes * w->n);
    float *row = sample_bytes(w->k * 4);
    bool good = bytes > 0 && row_pack(w, &s->source, rows, NULL);
    for (int r = 0; r < w->n; r++) {
        row_decode(w->encoding, w->bits, w->group, w->k, rows + r * bytes, &s->global, row);
        good = good && close_to(row, s, r);
    }
    ok(good, "shape %d: rows hold the published numbers", i);
    rows[bytes / 2] ^= 0x55;
    row_decode(w->encoding, w->bits, w->group, w->k, rows, &s->global, row);
    ok(!close_to(row, s, 0), "shape %d: a changed row is noticed", i);
    free(rows);
    free(row);
}

// Expects panel_pack, and row_pack where there is one, to refuse with a message that holds `word`.
static void refused(const struct sample *s, const struct weight *w, const char *word, const char *what)
{
    uint8_t *data = sample_bytes(1 << 20), *scale = sample_bytes(1 << 20);
    struct error error = {.text = {0}};
    bool good = !panel_pack(w, &s->source, data, scale, &error) && strstr(error.text, word);
    ok(good, "refused: %s (%s)", what, error.text);
    free(data);
    free(scale);
}

static void test_refusals(void)
{
    struct sample s = sample_make(ENC_NVFP4, 0, 0, 20, 64);
    s.scales[3 * 4 + 2] = 0x7f;
    refused(&s, &s.w, "row 3, column 2", "NaN scale of NVFP4");
    ok(!row_pack(&s.w, &s.source, (uint8_t[20 * 36]){0}, NULL), "refused: NaN scale of NVFP4 in rows");
    struct weight w = s.w;
    w.k = 63;
    refused(&s, &w, "multiple", "k that is no multiple of the group");
    w = s.w;
    w.n = 21;
    refused(&s, &w, "rows", "more rows than the source has");
    w = s.w;
    w.encoding = ENC_BF16;
    refused(&s, &w, "codes", "codes of another type");
    w.encoding = 99;
    refused(&s, &w, "no layout", "an encoding that is none");
    sample_free(&s);
    s = sample_make(ENC_MXFP8, 0, 0, 20, 64);
    s.scales[5 * 2 + 1] = 255;
    refused(&s, &s.w, "row 5, column 1", "NaN scale of MXFP8");
    s.scales[5 * 2 + 1] = 120;
    s.codes[7 * 64 + 9] = 0xff;
    refused(&s, &s.w, "row 7, column 9", "NaN code");
    sample_free(&s);
    s = sample_make(ENC_AFFINE, 4, 32, 20, 64);
    ((uint16_t *)s.biases)[9] = 0x7f80;
    refused(&s, &s.w, "row 4, column 1", "infinite bias");
    w = s.w;
    w.bits = 7;
    refused(&s, &w, "7 bits", "codes of 7 bits");
    w = s.w;
    w.group = 48;
    refused(&s, &w, "group of 48", "a group of 48");
    sample_free(&s);
    s = sample_make(ENC_FP8_BLOCK, 0, 0, 200, 200);
    ((float *)s.scales)[3] = NAN;
    refused(&s, &s.w, "row 128, column 1", "NaN scale of a tile");
    sample_free(&s);
    s = sample_make(ENC_BF16, 0, 0, 4, 8);
    ((uint16_t *)s.codes)[9] = 0x7fc0;
    refused(&s, &s.w, "row 1, column 1", "NaN weight");
    sample_free(&s);
    s = sample_make(ENC_INT4, 4, 128, 16, 128);
    s.source.scale_type = NUMBER_F32;
    for (int i = 0; i < 16; i++)
        ((float *)s.scales)[i] = 0.1f;
    refused(&s, &s.w, "fp16 or bf16", "a scale that is wider than its place");
    sample_free(&s);
}

// Whether the codes of row 3, group 2 of an NVFP4 matrix count for nothing: it packs as if they were 0.
static bool group_ignored(struct sample *s, uint8_t scale)
{
    const int64_t bytes = panel_data_bytes(&s->w);
    uint8_t *one = sample_bytes(bytes), *other = sample_bytes(bytes), *scales = sample_bytes(panel_scale_bytes(&s->w)),
            *codes = s->codes + (3 * s->w.k + 2 * 16) / 2;
    struct error error;
    s->scales[3 * (s->w.k / 16) + 2] = scale;
    memset(codes, 0x5b, 8);
    bool good = panel_pack(&s->w, &s->source, one, scales, &error);
    memset(codes, 0, 8);
    good = good && panel_pack(&s->w, &s->source, other, scales, &error);
    const bool same = memcmp(one, other, (size_t)bytes) == 0;
    free(one);
    free(other);
    free(scales);
    return good && same;
}

static void test_zero_scales(void)
{
    struct sample s = sample_make(ENC_NVFP4, 0, 0, 20, 64);
    ok(group_ignored(&s, 0), "codes under a scale of 0 are packed as zeros");
    ok(group_ignored(&s, 0x80), "codes under a scale of -0 are packed as zeros");
    ok(!group_ignored(&s, 1), "codes under the smallest scale are kept");
    sample_free(&s);
}

int main(void)
{
    for (int i = 0; i < SHAPES; i++) {
        struct sample s = sample_make(shapes[i].encoding, shapes[i].bits, shapes[i].group, shapes[i].n, shapes[i].k);
        test_panels(i, &s);
        test_rows(i, &s);
        sample_free(&s);
    }
    test_refusals();
    test_zero_scales();
    return done();
}
