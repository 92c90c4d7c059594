// SPDX-License-Identifier: Apache-2.0
//
// Packing of published weights into panels. Compiled once, without instruction set flags.
// Invariant: packing moves and re-spells numbers, and never rounds one.

#include "kernels/cpu/layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/number.h"

static int32_t code_bits(const struct weight *w)
{
    return w->encoding == ENC_AFFINE ? w->bits : 4;
}

int64_t panel_data_bytes(const struct weight *w)
{
    int64_t cells = round_up(w->n, PANEL) * round_up(w->k, PANEL_BLOCK);
    switch (w->encoding) {
    case ENC_F32:
        return cells * 4;
    case ENC_BF16:
    case ENC_F16:
        return cells * 2;
    case ENC_AFFINE:
    case ENC_NVFP4:
    case ENC_INT4:
        return cells / 8 * code_bits(w);
    default:
        return cells;
    }
}

int64_t panel_scale_bytes(const struct weight *w)
{
    int64_t panels = round_up(w->n, PANEL) / PANEL, k = round_up(w->k, PANEL_BLOCK);
    switch (w->encoding) {
    case ENC_AFFINE:
    case ENC_INT4:
        return panels * (round_up(w->k, w->group) / w->group) * 64;
    case ENC_NVFP4:
        return round_up(panels * k, 64);
    case ENC_MXFP8:
        return round_up(panels * k / 2, 64);
    case ENC_FP8_BLOCK:
        return round_up(panels * (round_up(k, 128) / 128) * 4, 64);
    default:
        return 0;
    }
}

// ---- codes --------------------------------------------------------------------------------------------------------------

// Where code (o, k) of a panel of `bits`-bit codes lies: adds its bits into the lines.
static void put_bits(uint8_t *panel, int32_t bits, int64_t o, int64_t k, uint32_t q)
{
    uint8_t *block = panel + k / 32 * bits * 64;
    int64_t r = k % 32, b = r % 4;
    if (bits == 8) {
        block[r / 4 * 64 + o * 4 + b] = (uint8_t)q;
        return;
    }
    if (bits & 4) {
        block[r / 8 * 64 + o * 4 + b] |= (uint8_t)((q & 15) << (r % 8 / 4 * 4));
        block += 4 * 64;
        q >>= 4;
    }
    if (bits & 2) {
        block[r / 16 * 64 + o * 4 + b] |= (uint8_t)((q & 3) << (r % 16 / 4 * 2));
        block += 2 * 64;
        q >>= 2;
    }
    if (bits & 1)
        block[o * 4 + b] |= (uint8_t)((q & 1) << (r / 4));
}

static uint32_t get_bits(const uint8_t *panel, int32_t bits, int64_t o, int64_t k)
{
    const uint8_t *block = panel + k / 32 * bits * 64;
    int64_t r = k % 32, b = r % 4;
    uint32_t q = 0, at = 0;
    if (bits == 8)
        return block[r / 4 * 64 + o * 4 + b];
    if (bits & 4) {
        q = (uint32_t)block[r / 8 * 64 + o * 4 + b] >> (r % 8 / 4 * 4) & 15u;
        block += 4 * 64;
        at = 4;
    }
    if (bits & 2) {
        q |= ((uint32_t)block[r / 16 * 64 + o * 4 + b] >> (r % 16 / 4 * 2) & 3u) << at;
        block += 2 * 64;
        at += 2;
    }
    if (bits & 1)
        q |= ((uint32_t)block[o * 4 + b] >> (r / 4) & 1u) << at;
    return q;
}

static int64_t byte_place(int64_t o, int64_t k)
{
    return k / 4 * 64 + o / 4 * 16 + k % 4 / 2 * 8 + o % 4 * 2 + k % 2;
}

// Bits first .. first + count - 1 (at most 8) of a stream of little-endian uint32.
static uint32_t stream_bits(const uint8_t *stream, int64_t first, int32_t count)
{
    uint32_t u = stream[first / 8];
    if (first % 8 + count > 8)
        u |= (uint32_t)stream[first / 8 + 1] << 8;
    return u >> (first % 8) & ((1u << count) - 1u);
}

static uint32_t source_code(const struct weight *w, const struct panel_source *s, int64_t row, int64_t k)
{
    const uint8_t *codes = s->codes;
    switch (s->code_type) {
    case NUMBER_U32:
        return stream_bits(codes + row * ((int64_t)w->k * w->bits / 8), k * w->bits, w->bits);
    case NUMBER_FP4:
        return (uint32_t)codes[(row * w->k + k) / 2] >> (k % 2 * 4) & 15u;
    case NUMBER_GPTQ:
        return number_u32(codes, k / 8 * s->rows + row) >> (k % 8 * 4) & 15u;
    case NUMBER_E4M3:
        return codes[row * w->k + k];
    case NUMBER_F32:
        return number_u32(codes, row * w->k + k);
    default:
        return number_u16(codes, row * w->k + k);
    }
}

static void put_code(const struct weight *w, uint8_t *panel, int64_t o, int64_t k, uint32_t q)
{
    switch (w->encoding) {
    case ENC_F32:
        memcpy(panel + (k * PANEL + o) * 4, &q, 4);
        break;
    case ENC_BF16:
        memcpy(panel + (k / 2 * 32 + o * 2 + k % 2) * 2, &(uint16_t){(uint16_t)q}, 2);
        break;
    case ENC_F16:
        memcpy(panel + (k * PANEL + o) * 2, &(uint16_t){(uint16_t)q}, 2);
        break;
    case ENC_AFFINE:
    case ENC_NVFP4:
    case ENC_INT4:
        put_bits(panel, code_bits(w), o, k, q);
        break;
    default:
        panel[byte_place(o, k)] = (uint8_t)q;
    }
}

// Eight 4-bit codes of a row from column k (a multiple of 8) on, the first in the low bits: all three published forms agree.
static uint32_t source_eight(const struct weight *w, const struct panel_source *s, int64_t row, int64_t k)
{
    if (s->code_type == NUMBER_GPTQ)
        return number_u32(s->codes, k / 8 * s->rows + row);
    return number_u32((const uint8_t *)s->codes + (row * w->k + k) / 2, 0);
}

// The four nibbles of a half, one a byte.
static uint32_t spread(uint32_t half)
{
    half = (half | half << 8) & 0x00ff00ffu;
    return (half | half << 4) & 0x0f0f0f0fu;
}

// put_bits of eight codes at once.
static void put_eight(uint8_t *panel, int64_t o, int64_t k, uint32_t codes)
{
    uint32_t lane = spread(codes & 0xffffu) | spread(codes >> 16) << 4;
    memcpy(panel + k / 8 * 64 + o * 4, &lane, 4);
}

// ---- scales -------------------------------------------------------------------------------------------------------------

static int32_t scale_span(const struct weight *w)
{
    switch (w->encoding) {
    case ENC_AFFINE:
    case ENC_INT4:
        return w->group;
    case ENC_NVFP4:
        return 16;
    case ENC_MXFP8:
        return 32;
    case ENC_FP8_BLOCK:
        return 128;
    default:
        return 0;
    }
}

// bf16 bits of a finite number that bf16 holds exactly; false otherwise.
static bool exact_bf16(float a, uint16_t *bits)
{
    uint32_t u;
    memcpy(&u, &a, 4);
    *bits = (uint16_t)(u >> 16);
    return isfinite(a) && (u & 0xffffu) == 0;
}

// The NVFP4 spelling of |scale|: 0, or 8 * (exponent + 10) + mantissa.
static uint8_t nvfp4_scale_code(uint8_t e4m3)
{
    float a = fabsf(number_e4m3(e4m3));
    if (a == 0)
        return 0;
    int exponent;
    float m = frexpf(a, &exponent); // a = m * 2^exponent, m in [1/2, 1)
    return (uint8_t)(8 * (exponent - 1 + 10) + (int)(m * 16) - 8);
}

static bool refuse(struct error *error, const char *what, int64_t row, int64_t column)
{
    return error_set(error, "%s at row %lld, column %lld", what, (long long)row, (long long)column);
}

static bool pack_affine_scale(const struct panel_source *s, int64_t at, int64_t row, int64_t g, uint8_t *place,
                              struct error *error)
{
    uint16_t a, b;
    if (!exact_bf16(number_float(s->scale_type, s->scales, at), &a))
        return refuse(error, "scale that is not a finite bf16 number", row, g);
    if (!exact_bf16(number_float(s->bias_type, s->biases, at), &b))
        return refuse(error, "bias that is not a finite bf16 number", row, g);
    memcpy(place, &(uint32_t){(uint32_t)a | (uint32_t)b << 16}, 4);
    return true;
}

static bool pack_int4_scale(const struct panel_source *s, int64_t row, int64_t g, uint8_t *place, struct error *error)
{
    float f = number_float(s->scale_type, s->scales, g * s->rows + row);
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (!isfinite(f) || (bits & 31u) != 0)
        return refuse(error, "scale that is not a finite fp16 or bf16 number", row, g);
    uint32_t zero = 8;
    if (s->biases)
        zero = (number_u32(s->biases, g * (s->rows / 8) + row / 8) >> (row % 8 * 4) & 15u) + (uint32_t)s->zero_offset;
    memcpy(place, &(uint32_t){bits | zero}, 4);
    return true;
}

// What a group's scale makes of its codes: code & keep ^ flip, of eight codes of 4 bits.
struct code_change {
    uint32_t keep, flip;
};

// Packs the scale of (row, group g) into the panel's scales.
static bool pack_scale(const struct weight *w, const struct panel_source *s, int64_t o, int64_t row, int64_t g,
                       uint8_t *panel, struct code_change *codes, struct error *error)
{
    int64_t groups = round_up(w->k, scale_span(w)) / scale_span(w), at = row * groups + g;
    *codes = (struct code_change){~0u, 0};
    switch (w->encoding) {
    case ENC_AFFINE:
        return pack_affine_scale(s, at, row, g, panel + (g * PANEL + o) * 4, error);
    case ENC_INT4:
        return pack_int4_scale(s, row, g, panel + (g * PANEL + o) * 4, error);
    case ENC_NVFP4: {
        uint8_t e4m3 = ((const uint8_t *)s->scales)[at];
        if ((e4m3 & 0x7f) == 0x7f)
            return refuse(error, "NaN scale", row, g);
        panel[g * PANEL + o] = nvfp4_scale_code(e4m3);
        if (panel[g * PANEL + o] == 0)
            codes->keep = 0;
        else if (e4m3 & 0x80)
            codes->flip = 0x88888888u;
        return true;
    }
    case ENC_MXFP8: {
        uint8_t e8m0 = ((const uint8_t *)s->scales)[at];
        if (e8m0 == 255)
            return refuse(error, "NaN scale", row, g);
        panel[g * PANEL + o] = e8m0;
        return true;
    }
    default: {
        float f = number_float(s->scale_type, s->scales, row / 128 * groups + g);
        if (!isfinite(f))
            return refuse(error, "NaN or infinite scale of the tile", row, g);
        memcpy(panel + g * 4, &f, 4);
        return true;
    }
    }
}

static bool check_types(const struct weight *w, const struct panel_source *s, struct error *error)
{
    static const uint8_t code_types[ENC_COUNT] = {
        [ENC_F32] = NUMBER_F32,    [ENC_BF16] = NUMBER_BF16, [ENC_F16] = NUMBER_F16,
        [ENC_AFFINE] = NUMBER_U32, [ENC_NVFP4] = NUMBER_FP4, [ENC_MXFP8] = NUMBER_E4M3,
        [ENC_FP8] = NUMBER_E4M3,   [ENC_INT4] = NUMBER_GPTQ, [ENC_FP8_BLOCK] = NUMBER_E4M3,
    };
    if (w->encoding < 0 || w->encoding >= ENC_COUNT || w->n <= 0 || w->k <= 0)
        return error_set(error, "no layout for encoding %d, shape [%d, %d]", w->encoding, w->n, w->k);
    if (s->code_type != code_types[w->encoding])
        return error_set(error, "codes of type %d do not fit encoding %d", s->code_type, w->encoding);
    if (s->first_row < 0 || s->first_row + w->n > s->rows)
        return error_set(error, "rows %lld to %lld of a matrix of %lld rows", (long long)s->first_row,
                         (long long)(s->first_row + w->n), (long long)s->rows);
    bool affine = w->encoding == ENC_AFFINE, grouped = affine || w->encoding == ENC_INT4;
    if (affine && (w->bits < 2 || w->bits > 8 || w->bits == 7))
        return error_set(error, "affine codes of %d bits: 2, 3, 4, 5, 6 and 8 are known", w->bits);
    if (grouped && w->group != 32 && w->group != 64 && w->group != 128)
        return error_set(error, "group of %d: 32, 64 and 128 are known", w->group);
    int32_t span = scale_span(w);
    if (span && !s->scales)
        return error_set(error, "encoding %d without scales", w->encoding);
    if (span && w->encoding != ENC_FP8_BLOCK && w->k % span != 0)
        return error_set(error, "%d columns are not a multiple of the group of %d", w->k, span);
    if (affine && !s->biases)
        return error_set(error, "affine codes without biases");
    if (w->encoding == ENC_INT4 && s->biases && s->rows % 8 != 0)
        return error_set(error, "%lld rows of packed zero points: not a multiple of 8", (long long)s->rows);
    if (w->encoding == ENC_FP8_BLOCK && s->first_row % PANEL != 0)
        return error_set(error, "row %lld does not begin a panel of its tile", (long long)s->first_row);
    return true;
}

static bool check_code(const struct weight *w, uint32_t q, int64_t row, int64_t k, struct error *error)
{
    switch (w->encoding) {
    case ENC_MXFP8:
    case ENC_FP8:
    case ENC_FP8_BLOCK:
        return (q & 0x7f) != 0x7f || refuse(error, "NaN code", row, k);
    case ENC_BF16:
        return (q & 0x7f80u) != 0x7f80u || refuse(error, "NaN or infinite number", row, k);
    case ENC_F16:
        return (q & 0x7c00u) != 0x7c00u || refuse(error, "NaN or infinite number", row, k);
    case ENC_F32:
        return (q & 0x7f800000u) != 0x7f800000u || refuse(error, "NaN or infinite number", row, k);
    default:
        return true;
    }
}

bool panel_pack(const struct weight *w, const struct panel_source *s, uint8_t *data, uint8_t *scale,
                struct error *error)
{
    if (!check_types(w, s, error))
        return false;
    int64_t panels = round_up(w->n, PANEL) / PANEL, data_bytes = panel_data_bytes(w);
    int64_t panel_bytes = data_bytes / panels;
    int32_t span = scale_span(w);
    int64_t groups = span ? round_up(w->k, span) / span : 0, scale_panel = panel_scale_size(w);
    bool four = code_bits(w) == 4 && (w->encoding == ENC_AFFINE || w->encoding == ENC_NVFP4 || w->encoding == ENC_INT4);
    memset(data, 0, (size_t)data_bytes);
    if (span)
        memset(scale, 0, (size_t)panel_scale_bytes(w));
    for (int64_t i = 0; i < w->n; i++) {
        int64_t o = i % PANEL, row = s->first_row + i;
        uint8_t *panel = data + i / PANEL * panel_bytes;
        int64_t k = 0;
        for (int64_t g = 0; g < (groups ? groups : 1); g++) {
            struct code_change codes = {~0u, 0};
            if (span && !pack_scale(w, s, o, row, g, scale + i / PANEL * scale_panel, &codes, error))
                return false;
            int64_t end = span && (g + 1) * span < w->k ? (g + 1) * span : w->k;
            for (; four && k < end; k += 8)
                put_eight(panel, o, k, (source_eight(w, s, row, k) & codes.keep) ^ codes.flip);
            for (; k < end; k++) {
                uint32_t q = source_code(w, s, row, k);
                if (!check_code(w, q, row, k, error))
                    return false;
                put_code(w, panel, o, k, (q & codes.keep) ^ (codes.flip & 15u));
            }
        }
    }
    return true;
}

// ---- decoding of one row ------------------------------------------------------------------------------------------------

static float panel_scale(const struct weight *w, const uint8_t *panel, int64_t o, int64_t k, float *bias)
{
    uint32_t u;
    switch (w->encoding) {
    case ENC_AFFINE:
        u = number_u32(panel, k / w->group * PANEL + o);
        *bias = number_bf16((uint16_t)(u >> 16));
        return number_bf16((uint16_t)u);
    case ENC_INT4:
        u = number_u32(panel, k / w->group * PANEL + o);
        *bias = -number_bits(u & ~31u) * (float)(u & 31u);
        return number_bits(u & ~31u);
    case ENC_NVFP4:
        return ldexpf(number_bits((uint32_t)panel[k / 16 * PANEL + o] << 20), 117);
    case ENC_MXFP8:
        return ldexpf(1.0f, panel[k / 32 * PANEL + o] - 127);
    case ENC_FP8_BLOCK:
        return number_bits(number_u32(panel, k / 128));
    default:
        return 1.0f;
    }
}

void panel_row_decode(const struct weight *w, int64_t row, float *out)
{
    int64_t o = row % PANEL, panels = round_up(w->n, PANEL) / PANEL;
    const uint8_t *panel = w->data + row / PANEL * (panel_data_bytes(w) / panels);
    const uint8_t *scales = w->scale ? w->scale + row / PANEL * panel_scale_size(w) : NULL;
    float global = w->global ? *w->global : 1.0f;
    for (int64_t k = 0; k < w->k; k++) {
        float bias = 0, s = panel_scale(w, scales, o, k, &bias);
        switch (w->encoding) {
        case ENC_F32:
            out[k] = number_bits(number_u32(panel, k * PANEL + o));
            break;
        case ENC_BF16:
            out[k] = number_bf16(number_u16(panel, k / 2 * 32 + o * 2 + k % 2));
            break;
        case ENC_F16:
            out[k] = number_f16(number_u16(panel, k * PANEL + o));
            break;
        case ENC_AFFINE:
        case ENC_INT4:
            out[k] = s * (float)get_bits(panel, code_bits(w), o, k) + bias;
            break;
        case ENC_NVFP4:
            out[k] = number_e2m1(get_bits(panel, 4, o, k)) * s * global;
            break;
        default:
            out[k] = number_e4m3(panel[byte_place(o, k)]) * s * global;
        }
    }
}
