// SPDX-License-Identifier: Apache-2.0
//
// The fp32 dot products: a chunk of a panel is decoded once, then every row runs over it.
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
VEC_INLINE void dot_rows(int R, const float *const *x, int64_t at, const float *w, int k, float *sums, int first)
{
    vf acc[BLOCK_ROWS][PHASES];
    const float *row[BLOCK_ROWS];
    for (int r = 0; r < R; r++) {
        row[r] = x[r] + at;
        for (int i = 0; i < PHASES; i++)
            acc[r][i] = vf_zero();
    }
    for (int j = 0; j < k; j += PHASES)
        for (int i = 0; i < PHASES; i++) {
            vf v = vf_load(w + (j + i) * PANEL);
            for (int r = 0; r < R; r++)
                acc[r][i] = vf_fma(v, vf_set1(row[r][j + i]), acc[r][i]);
        }
    for (int r = 0; r < R; r++) {
        vf s = phase_sum(acc[r]);
        vf_store(sums + r * PANEL, first ? s : vf_add(vf_load(sums + r * PANEL), s));
    }
}

void ISA_SYM(panel_dot)(const struct panel *p, const float *const *x, int rows, float *decoded, float *sums)
{
    for (int b = 0; b < p->blocks; b += CHUNK_BLOCKS) {
        int end = b + CHUNK_BLOCKS < p->blocks ? b + CHUNK_BLOCKS : p->blocks, k = (end - b) * 32;
        panel_decode(p, b, end, decoded);
        int r = 0;
        for (; r + BLOCK_ROWS <= rows; r += BLOCK_ROWS)
            dot_rows(BLOCK_ROWS, x + r, (int64_t)b * 32, decoded, k, sums + r * PANEL, b == 0);
        for (; r < rows; r++)
            dot_rows(1, x + r, (int64_t)b * 32, decoded, k, sums + r * PANEL, b == 0);
    }
}
