// SPDX-License-Identifier: Apache-2.0
//
// Preparation of rows: padding, digits, tiles. One item is PREPARE_COLUMNS columns of a row.
// Invariant: what is prepared for a row is a function of that row alone.

#include "kernels/cpu/linear.h"

struct row_view ISA_SYM(view_make)(const float *x, int64_t ld, int32_t k, int64_t rows, void *scratch, int needs)
{
    struct row_view v = {.x = x, .ld = ld, .k = k, .kp = (int32_t)round_up(k, 128)};
    v.tiles = scratch;
    v.digits = (uint8_t *)scratch + 2 * ROW_PARTS * round_up(rows, 16) * v.kp;
    // tiles and padded copies share a place: padded rows live in the digits' place when there are no digits to hold
    if (needs & NEED_PADDED) {
        v.x = (const float *)(const void *)(needs & NEED_TILES ? v.digits : v.tiles);
        v.ld = v.kp;
    }
    return v;
}

int64_t ISA_SYM(view_items)(int64_t rows, int32_t k, int needs)
{
    int64_t items = (k + PREPARE_COLUMNS - 1) / PREPARE_COLUMNS;
    if (needs & NEED_TILES)
        return round_up(rows, 16) * items;
    return needs ? rows * items : 0;
}

#if defined(__AVX512VNNI__)

// Digits of x[0 .. count - 1] (count <= 128) for columns `at` .. at + 127 of the row.
static void digits_block(const float *x, int count, uint8_t *row, int32_t kp, int32_t at)
{
    float t[128] = {0};
    memcpy(t, x, (size_t)count * sizeof *t);
    vf top = vf_zero(), bad = vf_zero();
    for (int i = 0; i < 128; i += VEC) {
        top = _mm512_max_ps(top, _mm512_abs_ps(vf_load(t + i)));
        bad = vf_fma(vf_load(t + i), vf_zero(), bad); // NaN when a number is not finite
    }
    float most = vf_top(top);
    uint32_t bits;
    memcpy(&bits, &most, 4);
    int e = (int)(bits >> 23) - 126; // |x| < 2^e
    bool good = e <= 64 && vf_sum(bad) == 0;
    e = !good ? 0 : e < -60 ? -60 : e;
    vf scale = vf_bits(vi_set1((127 + 22 - e) << 23));
    const vi place = _mm512_setr_epi32(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11, 12, 13, 14, 15);
    const vi first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    int32_t *offset = (int32_t *)(uintptr_t)(digits_offset(row, kp) + at / 16 * 3);
    float *sum = (float *)(uintptr_t)(digits_sum(row, kp) + at / 32);
    float *unit = (float *)(uintptr_t)(digits_unit(row, kp) + at / 128);
    for (int i = 0; i < 128; i += VEC) {
        vi q = _mm512_cvtps_epi32(vf_mul(vf_load(t + i), scale)), digit[3];
        for (int d = 2; d > 0; d--) {
            digit[d] = vi_sra(vi_sll(q, 24), 24);
            q = vi_sra(vi_sub(q, digit[d]), 8);
        }
        digit[0] = q;
        // the digits' fours side by side, and the sum of each digit
        __m512i all = _mm512_castsi128_si512(_mm512_cvtepi32_epi8(digit[0]));
        all = _mm512_inserti32x4(all, _mm512_cvtepi32_epi8(digit[1]), 1);
        all = _mm512_inserti32x4(all, _mm512_cvtepi32_epi8(digit[2]), 2);
        all = _mm512_inserti32x4(all, _mm_setzero_si128(), 3);
        _mm512_mask_storeu_epi32(row + (at + i) * 3, 0xfff, _mm512_permutexvar_epi32(place, all));
        vi sums = _mm512_dpbusd_epi32(vi_set1(0), vi_set1(0x01010101), all);
        sums = vi_add(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
        sums = vi_add(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC));
        sums = _mm512_permutexvar_epi32(first, _mm512_mullo_epi32(sums, vi_set1(-12)));
        _mm512_mask_storeu_epi32(offset + i / 16 * 3, 7, sums);
    }
    for (int i = 0; i < 4; i++)
        sum[i] = vf_sum(vf_add(vf_load(t + i * 32), vf_load(t + i * 32 + 16)));
    unit[0] = good ? vf_first(vf_bits(vi_set1((127 - 22 + e) << 23))) : vf_first(vf_bits(vi_set1(0x7fc00000)));
    unit[kp / 128] = unit[0] * 0x1p59f;
}

static void digits_make(const struct row_view *v, const float *x, int64_t r, int32_t begin, int32_t end)
{
    uint8_t *row = v->digits + r * 4 * v->kp;
    for (int32_t at = begin; at < end; at += 128)
        digits_block(x + at, v->k - at < 128 ? v->k - at : 128, row, v->kp, at);
}

#else

static void digits_make(const struct row_view *v, const float *x, int64_t r, int32_t begin, int32_t end)
{
    (void)v;
    (void)x;
    (void)r;
    (void)begin;
    (void)end;
}

#endif

#if defined(__AMX_BF16__)

// 16 columns from `at` on of a row of k; zeros beyond, and for x == NULL.
static vf columns(const float *x, int32_t at, int32_t k)
{
    if (!x || at >= k)
        return vf_zero();
    return k - at >= VEC ? vf_load(x + at) : vf_load_n(x + at, k - at);
}

// The bf16 parts of a row to its place in the tiles; x == NULL: zeros. Each part is what the parts before it leave over.
static void tiles_make(const struct row_view *v, const float *x, int64_t r, int32_t begin, int32_t end)
{
    uint8_t *place = v->tiles + r / 16 * 32 * ROW_PARTS * v->kp + r % 16 * 64 + (int64_t)begin * 32 * ROW_PARTS;
    for (int32_t at = begin; at < end; at += 32, place += ROW_BLOCK) {
        vf a = columns(x, at, v->k), b = columns(x, at + VEC, v->k);
        for (int part = 0; part < ROW_PARTS; part++) {
            vi bits = (vi)_mm512_cvtne2ps_pbh(b, a);
            vi_store(place + part * 1024, bits);
            a = vf_sub(a, vf_bits(vi_sll(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(bits)), 16)));
            b = vf_sub(b, vf_bits(vi_sll(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bits, 1)), 16)));
        }
    }
}

#else

static void tiles_make(const struct row_view *v, const float *x, int64_t r, int32_t begin, int32_t end)
{
    (void)v;
    (void)x;
    (void)r;
    (void)begin;
    (void)end;
}

#endif

// Columns begin .. end - 1 of a row, zeros beyond k, to its padded copy.
static void padded_make(const struct row_view *v, const float *x, int64_t r, int32_t begin, int32_t end)
{
    float *row = (float *)(uintptr_t)(v->x + r * v->ld);
    int32_t live = v->k < end ? v->k : end;
    memcpy(row + begin, x + begin, (size_t)(live - begin) * sizeof *row);
    memset(row + live, 0, (size_t)(end - live) * sizeof *row);
}

void ISA_SYM(view_prepare)(const struct row_view *v, const float *x, int64_t ld, int64_t rows, int needs, int64_t first,
                           int64_t last)
{
    int64_t items = (v->k + PREPARE_COLUMNS - 1) / PREPARE_COLUMNS;
    for (int64_t item = first; item < last; item++) {
        int64_t r = item / items;
        int32_t begin = (int32_t)(item % items) * PREPARE_COLUMNS, end = begin + PREPARE_COLUMNS;
        const float *from = x + r * ld;
        end = end < v->kp ? end : v->kp;
        if (needs & NEED_TILES)
            tiles_make(v, r < rows ? from : NULL, r, begin, end);
        if (r >= rows)
            continue;
        if (needs & NEED_DIGITS)
            digits_make(v, from, r, begin, end);
        if (needs & NEED_PADDED)
            padded_make(v, from, r, begin, end);
    }
}
