// SPDX-License-Identifier: Apache-2.0
//
// The bytes way of linear.h (AVX-512 VBMI): E4M3 codes become bf16 by two table look-ups, and run in fp32. Sums over a span that
// shares its scale (32 k of MXFP8, 128 of FP8_BLOCK, 256 of FP8) in four phases; the span's sum times its scale is added to
// the row's running sum, spans in ascending order.
// Invariant: decoding is exact, and the order does not depend on the rows.

#include "kernels/cpu/linear.h"

#if defined(__AVX512VBMI__)

enum { BLOCK_ROWS = 4 };

// The two bytes of the bf16 of each magnitude.
static const uint8_t e4m3_high[128] __attribute__((aligned(64))) = {
    0x00, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3d, 0x3d, 0x3d,
    0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e,
    0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f,
    0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40,
    0x40, 0x40, 0x40, 0x40, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41,
    0x41, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x43, 0x43,
    0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43,
};
static const uint8_t e4m3_low[128] __attribute__((aligned(64))) = {
    0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0, 0x00, 0x10, 0x20,
    0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0, 0x00, 0x10, 0x20, 0x30, 0x40, 0x50,
    0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0, 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80,
    0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0, 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0,
    0xc0, 0xd0, 0xe0, 0xf0, 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0,
    0xf0, 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0, 0x00, 0x10,
    0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0,
};

struct tables {
    vi high[2], low[2];
};

// Four columns of a line as fp32.
VEC_INLINE void fp8_columns(const struct tables *t, const uint8_t *line, vf *w)
{
    const vi top = vi_set1((int32_t)0xffff0000u);
    vi v = vi_load(line);
    vi high = _mm512_permutex2var_epi8(t->high[0], v, t->high[1]);
    vi low = _mm512_permutex2var_epi8(t->low[0], v, t->low[1]);
    high = _mm512_ternarylogic_epi32(high, v, vi_set1((int32_t)0x80808080u), 0xf8); // high | (v & sign)
    vi first = _mm512_unpacklo_epi8(low, high), second = _mm512_unpackhi_epi8(low, high);
    w[0] = vf_bits(vi_sll(first, 16));
    w[1] = vf_bits(vi_and(first, top));
    w[2] = vf_bits(vi_sll(second, 16));
    w[3] = vf_bits(vi_and(second, top));
}

VEC_INLINE void fp8_rows(const struct panel *p, int span, int R, const struct row_view *v, const int32_t *rows,
                         float *sums)
{
    const struct tables t = {{vi_load(e4m3_high), vi_load(e4m3_high + 64)},
                             {vi_load(e4m3_low), vi_load(e4m3_low + 64)}};
    const float *row[BLOCK_ROWS];
    vf total[BLOCK_ROWS];
#pragma GCC unroll 32
    for (int r = 0; r < R; r++) {
        row[r] = v->x + rows[r] * v->ld;
        total[r] = vf_zero();
    }
    for (int b = 0; b < p->blocks; b += span) {
        int end = b + span < p->blocks ? b + span : p->blocks;
        vf acc[BLOCK_ROWS][4];
#pragma GCC unroll 32
        for (int r = 0; r < R; r++)
            acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = vf_zero();
#pragma GCC unroll 8
        for (int64_t line = b * 8; line < end * 8; line++) {
            vf w[4];
            fp8_columns(&t, p->data + line * 64, w);
#pragma GCC unroll 32
            for (int i = 0; i < 4; i++)
#pragma GCC unroll 32
                for (int r = 0; r < R; r++)
                    acc[r][i] = vf_fma(w[i], vf_set1(row[r][line * 4 + i]), acc[r][i]);
        }
        vf scale = vf_set1(1.0f);
        if (span == 1)
            scale = vf_bits(vi_sll(vi_load_u8(p->scale + b * 16), 23));
        else if (span == 4)
            scale = vf_set1(((const float *)(const void *)p->scale)[b / 4]);
#pragma GCC unroll 32
        for (int r = 0; r < R; r++) {
            vf s = vf_add(vf_add(acc[r][0], acc[r][1]), vf_add(acc[r][2], acc[r][3]));
            total[r] = vf_fma(s, scale, total[r]);
        }
    }
#pragma GCC unroll 32
    for (int r = 0; r < R; r++)
        vf_store(sums + r * PANEL, total[r]);
}

VEC_INLINE void fp8_blocks(const struct panel *p, int span, const struct row_view *v, const int32_t *rows, int count,
                           float *sums)
{
    for (; count > BLOCK_ROWS; count -= BLOCK_ROWS, rows += BLOCK_ROWS, sums += BLOCK_ROWS * PANEL)
        fp8_rows(p, span, BLOCK_ROWS, v, rows, sums);
    switch (count) {
    case 1:
        fp8_rows(p, span, 1, v, rows, sums);
        break;
    case 2:
        fp8_rows(p, span, 2, v, rows, sums);
        break;
    case 3:
        fp8_rows(p, span, 3, v, rows, sums);
        break;
    default:
        fp8_rows(p, span, BLOCK_ROWS, v, rows, sums);
    }
}

void ISA_SYM(bytes_panel)(const struct panel *p, const struct row_view *v, const int32_t *rows, int count, float *sums)
{
    switch (p->encoding) {
    case ENC_MXFP8:
        fp8_blocks(p, 1, v, rows, count, sums);
        break;
    case ENC_FP8_BLOCK:
        fp8_blocks(p, 4, v, rows, count, sums);
        break;
    default:
        fp8_blocks(p, CHUNK_BLOCKS, v, rows, count, sums);
    }
}

#endif
