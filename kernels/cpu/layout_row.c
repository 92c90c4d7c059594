// SPDX-License-Identifier: Apache-2.0
//
// The row layout: tables whose rows are read one at a time, from memory or from the file. Compiled once.
// Invariant: a row is self-contained but for the encoding's one global factor, and keeps every published number.

#include <math.h>

#include "kernels/cpu/layout.h"
#include "kernels/cpu/number.h"

// Bytes of the codes and of one scale, and k of a scale; false for an encoding without a row layout.
static bool row_shape(int32_t encoding, int32_t bits, int32_t group, int32_t k, int64_t *codes, int32_t *scale,
                      int32_t *span)
{
    *scale = 0;
    *span = 1;
    switch (encoding) {
    case ENC_F32:
        *codes = (int64_t)k * 4;
        return true;
    case ENC_BF16:
    case ENC_F16:
        *codes = (int64_t)k * 2;
        return true;
    case ENC_AFFINE:
        *codes = (int64_t)k * bits / 8;
        *scale = 2;
        *span = group;
        return group > 0 && k % group == 0 && k % 32 == 0 && bits >= 2 && bits <= 8;
    case ENC_NVFP4:
        *codes = k / 2;
        *scale = 1;
        *span = 16;
        return k % 16 == 0;
    case ENC_MXFP8:
        *codes = k;
        *scale = 1;
        *span = 32;
        return k % 32 == 0;
    case ENC_FP8:
        *codes = k;
        return true;
    default:
        return false;
    }
}

int64_t row_bytes(int32_t encoding, int32_t bits, int32_t group, int32_t k)
{
    int64_t codes;
    int32_t scale, span;
    if (!row_shape(encoding, bits, group, k, &codes, &scale, &span))
        return 0;
    return codes + (int64_t)(k / span) * scale * (encoding == ENC_AFFINE ? 2 : 1);
}

// An affine number as bf16 bits; false when it is not finite or not a bf16 number.
static bool take_bf16(int32_t type, const void *numbers, int64_t at, uint8_t *place)
{
    float f = number_float(type, numbers, at);
    uint32_t u;
    memcpy(&u, &f, 4);
    memcpy(place, &(uint16_t){(uint16_t)(u >> 16)}, 2);
    return isfinite(f) && (u & 0xffffu) == 0;
}

static bool pack_row_scales(const struct weight *w, const struct panel_source *s, int64_t row, int32_t span,
                            uint8_t *place, struct error *error)
{
    int64_t groups = w->k / span;
    for (int64_t g = 0; g < groups; g++) {
        int64_t at = row * groups + g;
        if (w->encoding == ENC_AFFINE) {
            if (!take_bf16(s->scale_type, s->scales, at, place + g * 2) ||
                !take_bf16(s->bias_type, s->biases, at, place + (groups + g) * 2))
                return error_set(error, "scale or bias that is not a finite bf16 number at row %lld, column %lld",
                                 (long long)row, (long long)g);
            continue;
        }
        uint8_t u = ((const uint8_t *)s->scales)[at];
        if (w->encoding == ENC_NVFP4 ? (u & 0x7f) == 0x7f : u == 255)
            return error_set(error, "NaN scale at row %lld, column %lld", (long long)row, (long long)g);
        place[g] = u;
    }
    return true;
}

bool row_pack(const struct weight *w, const struct panel_source *s, uint8_t *rows, struct error *error)
{
    static const uint8_t types[ENC_COUNT] = {
        [ENC_F32] = NUMBER_F32,   [ENC_BF16] = NUMBER_BF16,  [ENC_F16] = NUMBER_F16,  [ENC_AFFINE] = NUMBER_U32,
        [ENC_NVFP4] = NUMBER_FP4, [ENC_MXFP8] = NUMBER_E4M3, [ENC_FP8] = NUMBER_E4M3,
    };
    int64_t codes, bytes = row_bytes(w->encoding, w->bits, w->group, w->k);
    int32_t scale, span;
    if (bytes == 0 || !row_shape(w->encoding, w->bits, w->group, w->k, &codes, &scale, &span))
        return error_set(error, "no row layout for encoding %d, %d bits, group %d, %d columns", w->encoding, w->bits,
                         w->group, w->k);
    if (s->code_type != types[w->encoding] || (scale && !s->scales) || (w->encoding == ENC_AFFINE && !s->biases))
        return error_set(error, "codes of type %d, scales or biases do not fit encoding %d", s->code_type, w->encoding);
    if (s->first_row < 0 || s->first_row + w->n > s->rows)
        return error_set(error, "rows %lld to %lld of a table of %lld rows", (long long)s->first_row,
                         (long long)(s->first_row + w->n), (long long)s->rows);
    for (int64_t i = 0; i < w->n; i++) {
        int64_t row = s->first_row + i;
        const uint8_t *from = (const uint8_t *)s->codes + row * codes;
        memcpy(rows + i * bytes, from, (size_t)codes);
        if (s->code_type == NUMBER_E4M3)
            for (int64_t k = 0; k < codes; k++)
                if ((from[k] & 0x7f) == 0x7f)
                    return error_set(error, "NaN code at row %lld, column %lld", (long long)row, (long long)k);
        if (scale && !pack_row_scales(w, s, row, span, rows + i * bytes + codes, error))
            return false;
    }
    return true;
}

// `bits` bits of the stream from bit k * bits on.
static uint32_t affine_code(const uint8_t *row, int32_t bits, int64_t k)
{
    int64_t at = k * bits;
    uint32_t u = row[at / 8];
    if (at % 8 + bits > 8)
        u |= (uint32_t)row[at / 8 + 1] << 8;
    return u >> (at % 8) & ((1u << bits) - 1u);
}

void row_decode(int32_t encoding, int32_t bits, int32_t group, int32_t k, const uint8_t *row, const float *global,
                float *out)
{
    int64_t codes = 0;
    int32_t scale, span;
    if (!row_shape(encoding, bits, group, k, &codes, &scale, &span))
        return;
    const uint8_t *scales = row + codes;
    float factor = global ? *global : 1.0f;
    for (int32_t i = 0; i < k; i++)
        switch (encoding) {
        case ENC_F32:
            out[i] = number_bits(number_u32(row, i));
            break;
        case ENC_BF16:
            out[i] = number_bf16(number_u16(row, i));
            break;
        case ENC_F16:
            out[i] = number_f16(number_u16(row, i));
            break;
        case ENC_AFFINE:
            out[i] = number_bf16(number_u16(scales, i / span)) * (float)affine_code(row, bits, i) +
                     number_bf16(number_u16(scales, k / span + i / span));
            out[i] *= factor;
            break;
        case ENC_NVFP4:
            out[i] = number_e2m1((uint32_t)row[i / 2] >> (i % 2 * 4) & 15u) * number_e4m3(scales[i / 16]) * factor;
            break;
        case ENC_MXFP8:
            out[i] = number_e4m3(row[i]) * ldexpf(1.0f, scales[i / 32] - 127) * factor;
            break;
        default:
            out[i] = number_e4m3(row[i]) * factor;
        }
}
