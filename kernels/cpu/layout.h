// SPDX-License-Identifier: Apache-2.0
//
// How weights lie in memory for the CPU kernels: sizes, packing from the published row-major form, decoding of one row.
//
// Panel layout. A matrix [n, k] is cut into panels of 16 outputs; a panel holds all of its k, so that one thread streams it
// from end to end. k is padded to 32 and n to 16 with zeros. In a panel, with o the output (0..15) and block = 32 k:
//   F32               [k][16] fp32
//   F16               [k][16] fp16
//   BF16              [k/2][16][2] bf16: a 32-bit lane is the pair (k, k + 1) of one output
//   AFFINE INT4 NVFP4 [block][line][16] uint32: `bits` lines of 64 bytes a block: the 4-bit lines, then the 2-bit lines, then
//                     the 1-bit line, as `bits` is made of them (3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2; 8 bits: 8 lines of bytes).
//                     Byte b of lane o of a 4-bit line holds k = 8 line + b in its low half and k + 4 in its high half; of a
//                     2-bit line k = 16 line + 4 c + b in bits 2c; of the 1-bit line k = 4 t + b in bit t; of an 8-bit line
//                     k = 4 line + b. A field of wider codes is split low bits first.
//   MXFP8 FP8*        [k/4][4 quarters][2][4][2] bytes: quarter q holds outputs 4q..4q+3: their pairs (k, k + 1), then their
//                     pairs (k + 2, k + 3)
// Scales, a panel:
//   AFFINE            [group][16] uint32: scale bf16 in the low half, bias bf16 in the high half
//   INT4              [group][16] uint32: fp32 bits of the scale, whose low 5 bits hold the zero point
//   NVFP4             [k/16][16] bytes: 0, or 8 * (exponent + 10) + mantissa of the E4M3 scale in normalised form; a negative
//                     scale is folded into the signs of its codes, those of a scale of 0 are 0
//   MXFP8             [k/32][16] bytes E8M0
//   FP8_BLOCK         [k/128] fp32 (the scale of the panel's tiles; a panel never straddles tiles when first_row % 128 == 0)
// Panels follow each other; the scales of a matrix are padded to 64 bytes at the end.
//
// Invariant: every published number is kept exactly; what could not be is refused.

#ifndef LAYOUT_H
#define LAYOUT_H

#include "kernels/cpu/ops.h"
#include "runtime/error.h"

enum {
    PANEL = 16,      // outputs of a panel
    PANEL_BLOCK = 32 // k is padded to a multiple
};

// Types of published numbers.
enum number_type {
    NUMBER_NONE,
    NUMBER_F32,
    NUMBER_BF16,
    NUMBER_F16,
    NUMBER_E4M3, // F8_E4M3
    NUMBER_E8M0, // U8 exponents
    NUMBER_U32,  // MLX affine codes [n, k * bits / 32], a bit stream, lowest bits first
    NUMBER_FP4,  // U8 [n, k / 2] E2M1 pairs, low half = even k
    NUMBER_GPTQ, // I32 [k / 8, n] codes, lowest bits first
};

// One matrix in its published form. Rows first_row .. first_row + n - 1 of a matrix of `rows` rows are taken.
struct panel_source {
    int32_t code_type, scale_type, bias_type;
    const void *codes;
    const void *scales; // affine [rows, k/group]; NVFP4 [rows, k/16]; MXFP8 [rows, k/32]; FP8_BLOCK [ceil(rows/128),
                        // ceil(k/128)]; INT4 [k/group, rows]
    const void *biases; // affine: as scales; INT4: qzeros I32 [k/group, rows/8], or NULL: 8
    int64_t rows, first_row;
    int32_t zero_offset; // INT4: added to each qzeros number (GPTQ's first format: 1)
};

static inline int64_t round_up(int64_t a, int64_t unit)
{
    return (a + unit - 1) / unit * unit;
}

// Bytes of one matrix of w's encoding, bits, group, n and k: codes and scales. Multiples of 64. 0 for an encoding without scales.
int64_t panel_data_bytes(const struct weight *w);
int64_t panel_scale_bytes(const struct weight *w);

// Packs one matrix into data and scale (panel_data_bytes and panel_scale_bytes of them, all written). w gives encoding, bits,
// group, n and k; nothing else of it is read. False when the shape, a type or a number is refused (NaN codes; NaN or infinite
// scales; scales that the layout cannot hold exactly), with row and column in the message; data is then undefined.
bool panel_pack(const struct weight *w, const struct panel_source *source, uint8_t *data, uint8_t *scale,
                struct error *error);

// Row `row` of a packed matrix as k fp32. global is w->global of the expert, or NULL: 1.
void panel_row_decode(const struct weight *w, int64_t row, float *out);

// Row layout (tables that are read by row): codes as published (affine: the uint32 stream; NVFP4: pairs; FP8: bytes), then the
// row's scales, then its biases (affine: bf16 both; NVFP4: E4M3; MXFP8: E8M0; FP8: none). Encodings: F32, BF16, F16, AFFINE,
// NVFP4, MXFP8, FP8. 0 for one that has no row layout, or a k that is no multiple of its group.
int64_t row_bytes(int32_t encoding, int32_t bits, int32_t group, int32_t k);

// Packs rows first_row .. first_row + w->n - 1 of the source, one after the other. Refuses what panel_pack refuses.
bool row_pack(const struct weight *w, const struct panel_source *source, uint8_t *rows, struct error *error);

// Decodes one row to k fp32. global: the encoding's factor, or NULL: 1.
void row_decode(int32_t encoding, int32_t bits, int32_t group, int32_t k, const uint8_t *row, const float *global,
                float *out);

// Bytes of linear_args.scratch and of experts_*_args.scratch for `rows` rows of k:
//   10 * round_up(rows, 16) * round_up(k, 128)
static inline int64_t linear_scratch_bytes(int64_t rows, int64_t k)
{
    return 10 * round_up(rows, 16) * round_up(k, 128);
}

// Bytes of experts_*_args.groups: 64 + 4 * (2 * experts + 1 + rows * slots), rounded up to 64.
static inline int64_t experts_groups_bytes(int64_t rows, int64_t slots, int64_t experts)
{
    return round_up(64 + 4 * (2 * experts + 1 + rows * slots), 64);
}

#endif
