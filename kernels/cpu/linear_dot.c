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

// R rows over k columns of decoded lanes.
VEC_INLINE void dot_rows(int R, const struct row_view *v, const int32_t *rows, int64_t at, const float *w, int k,
                         float *sums, int first)
{
    vf acc[BLOCK_ROWS][PHASES];
    const float *row[BLOCK_ROWS];
    for (int r = 0; r < R; r++) {
        row[r] = v->x + rows[r] * v->ld + at;
        for (int i = 0; i < PHASES; i++)
            acc[r][i] = vf_zero();
    }
    for (int j = 0; j < k; j += PHASES)
        for (int i = 0; i < PHASES; i++) {
            vf lanes = vf_load(w + (j + i) * PANEL);
            for (int r = 0; r < R; r++)
                acc[r][i] = vf_fma(lanes, vf_set1(row[r][j + i]), acc[r][i]);
        }
    for (int r = 0; r < R; r++) {
        vf s = phase_sum(acc[r]);
        vf_store(sums + r * PANEL, first ? s : vf_add(vf_load(sums + r * PANEL), s));
    }
}

void ISA_SYM(lanes_panel)(const struct panel *p, const struct row_view *v, const int32_t *rows, int count, float *lanes,
                          float *sums)
{
    for (int b = 0; b < p->blocks; b += CHUNK_BLOCKS) {
        int end = b + CHUNK_BLOCKS < p->blocks ? b + CHUNK_BLOCKS : p->blocks, k = (end - b) * 32;
        panel_decode(p, b, end, lanes);
        int r = 0;
        for (; r + BLOCK_ROWS <= count; r += BLOCK_ROWS)
            dot_rows(BLOCK_ROWS, v, rows + r, (int64_t)b * 32, lanes, k, sums + r * PANEL, b == 0);
        for (; r < count; r++)
            dot_rows(1, v, rows + r, (int64_t)b * 32, lanes, k, sums + r * PANEL, b == 0);
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
        ISA_SYM(lanes_panel)(&p, v, rows, count, room->lanes, sums);
    }
    (void)need;
}
