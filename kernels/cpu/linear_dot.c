// SPDX-License-Identifier: Apache-2.0
//
// The lanes way of linear.h, and the choice of a way.
// Invariant: the order of linear.h, whatever the block of rows.

#include "kernels/cpu/linear.h"

#if defined(__AVX512F__)
enum { PHASES = 4, BLOCK_ROWS = 6 };
#elif defined(__AVX2__)
enum { PHASES = 2, BLOCK_ROWS = 3 };
#else
enum { PHASES = 2, BLOCK_ROWS = 2 };
#endif

VEC_INLINE vf phase_sum(const vf *a)
{
    return PHASES == 4 ? vf_add(vf_add(a[0], a[1]), vf_add(a[2 % PHASES], a[3 % PHASES])) : vf_add(a[0], a[1]);
}

// Four columns of a bf16 panel, two lines.
VEC_INLINE void bf16_columns(const uint8_t *lines, vf *w)
{
    for (int i = 0; i < 2; i++) {
        vi v = vi_load(lines + i * 64);
        w[2 * i] = vf_bits(vi_sll(v, 16));
        w[2 * i + 1] = vf_bits(vi_and(v, vi_set1((int32_t)0xffff0000u)));
    }
}

// R rows over k columns: of decoded lanes, or (bf16) of the panel itself.
VEC_INLINE void dot_rows(int R, int bf16, const struct row_view *v, const int32_t *rows, int64_t at,
                         const void *weights, int k, float *sums, int first)
{
    vf acc[BLOCK_ROWS][PHASES];
    const float *row[BLOCK_ROWS];
#pragma GCC unroll 32
    for (int r = 0; r < R; r++) {
        row[r] = v->x + rows[r] * v->ld + at;
#pragma GCC unroll 32
        for (int i = 0; i < PHASES; i++)
            acc[r][i] = vf_zero();
    }
    for (int j = 0; j < k; j += 4) {
        vf w[4];
        if (bf16)
            bf16_columns((const uint8_t *)weights + j * 32, w);
#pragma GCC unroll 32
        for (int i = 0; i < 4; i++) {
            vf lanes = bf16 ? w[i] : vf_load((const float *)weights + (j + i) * PANEL);
#pragma GCC unroll 32
            for (int r = 0; r < R; r++)
                acc[r][i % PHASES] = vf_fma(lanes, vf_set1(row[r][j + i]), acc[r][i % PHASES]);
        }
    }
#pragma GCC unroll 32
    for (int r = 0; r < R; r++) {
        vf s = phase_sum(acc[r]);
        vf_store(sums + r * PANEL, first ? s : vf_add(vf_load(sums + r * PANEL), s));
    }
}

// `count` rows in blocks.
VEC_INLINE void dot_blocks(int bf16, const struct row_view *v, const int32_t *rows, int count, int64_t at,
                           const void *weights, int k, float *sums)
{
    for (; count > BLOCK_ROWS; count -= BLOCK_ROWS, rows += BLOCK_ROWS, sums += BLOCK_ROWS * PANEL)
        dot_rows(BLOCK_ROWS, bf16, v, rows, at, weights, k, sums, at == 0);
    switch (count) {
    case 1:
        dot_rows(1, bf16, v, rows, at, weights, k, sums, at == 0);
        break;
    case 2:
        dot_rows(2, bf16, v, rows, at, weights, k, sums, at == 0);
        break;
#if defined(__AVX2__)
    case 3:
        dot_rows(3, bf16, v, rows, at, weights, k, sums, at == 0);
        break;
#endif
#if defined(__AVX512F__)
    case 4:
        dot_rows(4, bf16, v, rows, at, weights, k, sums, at == 0);
        break;
    case 5:
        dot_rows(5, bf16, v, rows, at, weights, k, sums, at == 0);
        break;
    case 6:
        dot_rows(6, bf16, v, rows, at, weights, k, sums, at == 0);
        break;
#endif
    default:
        break;
    }
}

void ISA_SYM(lanes_panel)(const struct panel *p, const struct row_view *v, const int32_t *rows, int count, float *lanes,
                          float *sums)
{
    for (int b = 0; b < p->blocks; b += CHUNK_BLOCKS) {
        int end = b + CHUNK_BLOCKS < p->blocks ? b + CHUNK_BLOCKS : p->blocks, k = (end - b) * 32;
        if (p->encoding == ENC_BF16 && count <= 2 * BLOCK_ROWS) {
            dot_blocks(1, v, rows, count, (int64_t)b * 32, p->data + (int64_t)b * 1024, k, sums);
            continue;
        }
        if (p->encoding == ENC_F32) {
            dot_blocks(0, v, rows, count, (int64_t)b * 32, p->data + (int64_t)b * 2048, k, sums);
            continue;
        }
        panel_decode(p, b, end, lanes);
        dot_blocks(0, v, rows, count, (int64_t)b * 32, lanes, k, sums);
    }
}

int ISA_SYM(product_need)(int class, const struct weight *w, int k)
{
#if defined(__AMX_BF16__)
    if (class == CLASS_PROMPT && w->encoding != ENC_F32)
        return NEED_TILES;
#endif
#if defined(__AVX512VNNI__)
    if (w->encoding == ENC_AFFINE || w->encoding == ENC_NVFP4 || w->encoding == ENC_INT4)
        return NEED_DIGITS;
#endif
    (void)class;
    (void)w;
    return k % PANEL_BLOCK ? NEED_PADDED : 0;
}

void ISA_SYM(products)(int class, const struct weight *w, int64_t e, int64_t first, int panels,
                       const struct row_view *v, const int32_t *rows, int count, int consecutive,
                       struct linear_room *room, float *sums)
{
    int need = ISA_SYM(product_need)(class, w, v->k);
    (void)consecutive;
#if defined(__AMX_BF16__)
    if (need & NEED_TILES) {
        ISA_SYM(tiles_panels)(w, e, first, panels, v, rows, count, consecutive, room, sums);
        return;
    }
#endif
    for (int i = 0; i < panels; i++, sums += CHUNK_ROWS * PANEL) {
        struct panel p = weight_panel(w, e, first + i);
#if defined(__AVX512VNNI__)
        if (need & NEED_DIGITS) {
            ISA_SYM(digits_panel)(&p, v, rows, count, sums);
            continue;
        }
#endif
#if defined(__AVX512VBMI__)
        if (w->encoding == ENC_MXFP8 || w->encoding == ENC_FP8_BLOCK || w->encoding == ENC_FP8) {
            ISA_SYM(bytes_panel)(&p, v, rows, count, sums);
            continue;
        }
#endif
        ISA_SYM(lanes_panel)(&p, v, rows, count, room->lanes, sums);
    }
    (void)need;
}
