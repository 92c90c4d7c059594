// SPDX-License-Identifier: Apache-2.0
//
// The digits way of linear.h: codes of at most 8 bits times base-256 digits of the row, summed exactly in 32-bit integers.
// A group of at most 128 codes below 2^8 with digits of at most 2^7 stays below 2^22, and with the two low digits together
// below 2^30. NVFP4 codes are taken as 2 * value + 12 (0 .. 24); the 12 is taken back by starting from -12 * sum of the digits.
// Invariant: integer sums are exact, and the fp32 steps of a row come group by group in ascending order.

#include "kernels/cpu/linear.h"

#if defined(__AVX512VNNI__)

enum { BLOCK_ROWS = 4 };

typedef struct {
    vi digit[3];
} digit_sums;

VEC_INLINE vi digit_at(const uint8_t *row, int64_t at)
{
    int32_t four;
    memcpy(&four, row + at, 4);
    return vi_set1(four);
}

// s += codes (16 outputs x 4 k) times the four digits of each rank at `at`.
VEC_INLINE void digits_add(digit_sums *s, vi codes, const uint8_t *row, int64_t at)
{
#pragma GCC unroll 32
    for (int d = 0; d < 3; d++)
        s->digit[d] = _mm512_dpbusd_epi32(s->digit[d], codes, digit_at(row, at * 3 + d * 4));
}

// The number that the three sums spell, in units.
VEC_INLINE vf digits_value(const digit_sums *s)
{
    vf low = vf_from_int(vi_add(vi_sll(s->digit[1], 8), s->digit[2]));
    return vf_fma(vf_from_int(s->digit[0]), vf_set1(65536.0f), low);
}

// Groups of affine and int4 codes.
VEC_INLINE void codes_rows(const struct panel *p, int bits, int R, const struct row_view *v, const int32_t *rows,
                           float *sums)
{
    vf total[BLOCK_ROWS];
    const uint8_t *row[BLOCK_ROWS];
#pragma GCC unroll 32
    for (int r = 0; r < R; r++) {
        row[r] = digits_row(v, rows[r]);
        total[r] = vf_zero();
    }
    for (int b = 0; b < p->blocks; b += p->group_blocks) {
        digit_sums s[BLOCK_ROWS];
#pragma GCC unroll 32
        for (int r = 0; r < R; r++)
            s[r] = (digit_sums){{vi_set1(0), vi_set1(0), vi_set1(0)}};
#pragma GCC unroll 2
        for (int i = b; i < b + p->group_blocks; i++) {
            const uint8_t *block = p->data + (int64_t)i * bits * 64;
#pragma GCC unroll 32
            for (int j = 0; j < 8; j++) {
                vi codes = code_bytes(block, bits, j);
#pragma GCC unroll 32
                for (int r = 0; r < R; r++)
                    digits_add(&s[r], codes, row[r], (int64_t)i * 32 + j * 4);
            }
        }
        vf scale, bias;
        group_scale(p, b, &scale, &bias);
#pragma GCC unroll 32
        for (int r = 0; r < R; r++) {
            const float *sum = digits_sum(row[r], v->kp) + b;
            float x = sum[0];
            for (int i = 1; i < p->group_blocks; i++)
                x = x + sum[i];
            vf unit = vf_mul(scale, vf_set1(digits_unit(row[r], v->kp)[b / 4]));
            total[r] = vf_fma(digits_value(&s[r]), unit, total[r]);
            total[r] = vf_fma(bias, vf_set1(x), total[r]);
        }
    }
#pragma GCC unroll 32
    for (int r = 0; r < R; r++)
        vf_store(sums + r * PANEL, total[r]);
}

// 2 * value + 12 of the E2M1 code in the low 4 bits of each byte; bits 5 and 4 of a byte are ignored by repeating the table.
VEC_INLINE vi nvfp4_codes(vi v)
{
    const vi table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return _mm512_permutexvar_epi8(v, table);
}

VEC_INLINE void nvfp4_rows(const struct panel *p, int R, const struct row_view *v, const int32_t *rows, float *sums)
{
    vf total[BLOCK_ROWS];
    const uint8_t *row[BLOCK_ROWS];
#pragma GCC unroll 32
    for (int r = 0; r < R; r++) {
        row[r] = digits_row(v, rows[r]);
        total[r] = vf_zero();
    }
#pragma GCC unroll 4
    for (int g = 0; g < p->blocks * 2; g++) {
        digit_sums s[BLOCK_ROWS];
        const uint8_t *lines = p->data + (int64_t)g * 128;
#pragma GCC unroll 32
        for (int r = 0; r < R; r++) {
            const int32_t *offset = digits_offset(row[r], v->kp) + g * 3;
            s[r] = (digit_sums){{vi_set1(offset[0]), vi_set1(offset[1]), vi_set1(offset[2])}};
        }
#pragma GCC unroll 32
        for (int j = 0; j < 4; j++) {
            vi line = vi_load(lines + j / 2 * 64), codes = nvfp4_codes(j % 2 ? vi_srl(line, 4) : line);
#pragma GCC unroll 32
            for (int r = 0; r < R; r++)
                digits_add(&s[r], codes, row[r], (int64_t)g * 16 + j * 4);
        }
        vf scale = vf_bits(vi_sll(vi_load_u8(p->scale + g * 16), 20));
#pragma GCC unroll 32
        for (int r = 0; r < R; r++) {
            vf unit = vf_mul(scale, vf_set1(digits_unit(row[r], v->kp)[v->kp / 128 + g / 8]));
            total[r] = vf_fma(digits_value(&s[r]), unit, total[r]);
        }
    }
    // scales are short of 2^117, of which units held 2^59; codes are twice their value
#pragma GCC unroll 32
    for (int r = 0; r < R; r++)
        vf_store(sums + r * PANEL, vf_mul(total[r], vf_set1(0x1p57f)));
}

// Blocks of rows for the widths that are common.
VEC_INLINE void codes_blocks(const struct panel *p, int bits, const struct row_view *v, const int32_t *rows, int count,
                             float *sums)
{
    for (; count >= BLOCK_ROWS; count -= BLOCK_ROWS, rows += BLOCK_ROWS, sums += BLOCK_ROWS * PANEL)
        codes_rows(p, bits, BLOCK_ROWS, v, rows, sums);
    if (count >= 2) {
        codes_rows(p, bits, 2, v, rows, sums);
        count -= 2;
        rows += 2;
        sums += 2 * PANEL;
    }
    if (count)
        codes_rows(p, bits, 1, v, rows, sums);
}

static void nvfp4_blocks(const struct panel *p, const struct row_view *v, const int32_t *rows, int count, float *sums)
{
    for (; count >= BLOCK_ROWS; count -= BLOCK_ROWS, rows += BLOCK_ROWS, sums += BLOCK_ROWS * PANEL)
        nvfp4_rows(p, BLOCK_ROWS, v, rows, sums);
    if (count >= 2) {
        nvfp4_rows(p, 2, v, rows, sums);
        count -= 2;
        rows += 2;
        sums += 2 * PANEL;
    }
    if (count)
        nvfp4_rows(p, 1, v, rows, sums);
}

// One row of the rarer widths.
static void codes_row(const struct panel *p, const struct row_view *v, const int32_t *row, float *sums)
{
    switch (p->bits) {
    case 2:
        codes_rows(p, 2, 1, v, row, sums);
        break;
    case 3:
        codes_rows(p, 3, 1, v, row, sums);
        break;
    case 5:
        codes_rows(p, 5, 1, v, row, sums);
        break;
    default:
        codes_rows(p, 6, 1, v, row, sums);
    }
}

void ISA_SYM(digits_panel)(const struct panel *p, const struct row_view *v, const int32_t *rows, int count, float *sums)
{
    if (p->encoding == ENC_NVFP4)
        nvfp4_blocks(p, v, rows, count, sums);
    else if (p->bits == 4)
        codes_blocks(p, 4, v, rows, count, sums);
    else if (p->bits == 8)
        codes_blocks(p, 8, v, rows, count, sums);
    else
        for (int r = 0; r < count; r++)
            codes_row(p, v, rows + r, sums + r * PANEL);
}

#endif
