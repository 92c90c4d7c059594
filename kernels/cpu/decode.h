// SPDX-License-Identifier: Apache-2.0
//
// Encoded panels to fp32 lanes: the meaning of layout.h in vector form, for every instruction set.
// Invariant: the decoded number is the published one with at most one rounding, that of scale * code (+ bias); factors of a
// whole tensor are the caller's (weight_factor).

#ifndef DECODE_H
#define DECODE_H

#include "kernels/cpu/layout.h"
#include "kernels/cpu/vec.h"

// One panel of a matrix.
struct panel {
    int32_t encoding, bits, group_blocks; // blocks of 32 k a group
    int32_t blocks;                       // blocks of 32 k
    const uint8_t *data, *scale;
};

static inline int64_t weight_panels(const struct weight *w)
{
    return (w->n + PANEL - 1) / PANEL;
}

// Bytes of codes and of scales of `blocks` blocks of a panel; scales only for encodings whose scale spans at most a block.
static inline int64_t block_bytes(int32_t encoding, int32_t bits)
{
    switch (encoding) {
    case ENC_F32:
        return 32 * 64;
    case ENC_BF16:
    case ENC_F16:
        return 32 * 32;
    case ENC_AFFINE:
        return bits * 64;
    case ENC_NVFP4:
    case ENC_INT4:
        return 4 * 64;
    default:
        return 32 * 16;
    }
}

static inline int64_t panel_scales(const struct weight *w)
{
    int64_t blocks = (w->k + 31) / 32;
    switch (w->encoding) {
    case ENC_AFFINE:
    case ENC_INT4:
        return (w->k + w->group - 1) / w->group * 64;
    case ENC_NVFP4:
        return blocks * 32;
    case ENC_MXFP8:
        return blocks * 16;
    case ENC_FP8_BLOCK:
        return (blocks + 3) / 4 * 4;
    default:
        return 0;
    }
}

// Panel p of expert e.
static inline struct panel weight_panel(const struct weight *w, int64_t e, int64_t p)
{
    struct panel r;
    r.encoding = w->encoding;
    r.bits = w->encoding == ENC_AFFINE ? w->bits : 4;
    r.blocks = (w->k + 31) / 32;
    r.group_blocks = w->encoding == ENC_AFFINE || w->encoding == ENC_INT4 ? w->group / 32 : 1;
    r.data = w->data + e * w->data_stride + p * r.blocks * block_bytes(r.encoding, r.bits);
    r.scale = w->scale ? w->scale + e * w->scale_stride + p * panel_scales(w) : NULL;
    return r;
}

// What the dot product of expert e is to be multiplied with.
static inline float weight_factor(const struct weight *w, int64_t e)
{
    return w->global ? w->global[e] : 1.0f;
}

// ---- one block of 32 k: out[k][16] -------------------------------------------------------------------------------------

VEC_INLINE void decode_block_bf16(const uint8_t *data, float *out)
{
    for (int i = 0; i < 16; i++) {
        vi v = vi_load(data + i * 64);
        vf_store(out + i * 32, vf_bits(vi_sll(v, 16)));
        vf_store(out + i * 32 + 16, vf_bits(vi_and(v, vi_set1((int32_t)0xffff0000u))));
    }
}

// Sixteen fp16.
VEC_INLINE vf vf_load_f16(const uint8_t *p)
{
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__AVX2__)
    return (vf)VEC_EACH(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                        _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1)));
#else
    // sign, and the other bits at fp32's place, scaled by 2^(127 - 15): exact for subnormal numbers too
    uint16_t u[16];
    memcpy(u, p, sizeof u);
    vi v = vi_load_u16(u);
    vf magnitude = vf_mul(vf_bits(vi_sll(vi_and(v, vi_set1(0x7fff)), 13)), vf_set1(0x1p112f));
    return vf_bits(vi_or(vi_bits(magnitude), vi_sll(vi_and(v, vi_set1(0x8000)), 16)));
#endif
}

// Codes of the j-th 4 k of a block (j = 0..7): byte b of each lane is the code of k = 4 j + b.
VEC_INLINE vi code_bytes(const uint8_t *block, int bits, int j)
{
    if (bits == 8)
        return vi_load(block + j * 64);
    vi q = vi_set1(0);
    int at = 0;
    if (bits & 4) {
        vi v = vi_load(block + j / 2 * 64);
        q = vi_and(j % 2 ? vi_srl(v, 4) : v, vi_set1(0x0f0f0f0f));
        block += 4 * 64;
        at = 4;
    }
    if (bits & 2) {
        vi v = vi_and(vi_srl(vi_load(block + j / 4 * 64), j % 4 * 2), vi_set1(0x03030303));
        q = vi_or(q, vi_sll(v, at));
        block += 2 * 64;
        at += 2;
    }
    if (bits & 1) {
        vi v = vi_and(vi_srl(vi_load(block), j), vi_set1(0x01010101));
        q = vi_or(q, vi_sll(v, at));
    }
    return q;
}

VEC_INLINE vf byte_float(vi bytes, int b)
{
    return vf_from_int(vi_and(vi_srl(bytes, 8 * b), vi_set1(255)));
}

VEC_INLINE void decode_block_codes(const uint8_t *block, int bits, vf scale, vf bias, float *out)
{
#if defined(__AVX2__)
#pragma GCC unroll 8
#endif
    for (int j = 0; j < 8; j++) {
        vi q = code_bytes(block, bits, j);
#if defined(__AVX2__)
#pragma GCC unroll 8
#endif
        for (int b = 0; b < 4; b++)
            vf_store(out + (4 * j + b) * 16, vf_fma(byte_float(q, b), scale, bias));
    }
}

// fp32 of the E2M1 codes in bits at .. at + 3 of each lane.
VEC_INLINE vf e2m1_float(vi v, int at)
{
#if defined(__AVX512F__)
    const vf value = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_permutexvar_ps(vi_srl(v, at), value);
#else
    // the bits at fp32's place, scaled by 2^(127 - 1)
    vi q = vi_srl(v, at);
    vf magnitude = vf_mul(vf_bits(vi_sll(vi_and(q, vi_set1(7)), 22)), vf_set1(0x1p126f));
    return vf_bits(vi_or(vi_bits(magnitude), vi_sll(vi_and(q, vi_set1(8)), 28)));
#endif
}

// scale: the 32 bytes of the block's two groups.
VEC_INLINE void decode_block_nvfp4(const uint8_t *block, const uint8_t *scale, float *out)
{
    for (int g = 0; g < 2; g++) {
        vf s = vf_mul(vf_bits(vi_sll(vi_load_u8(scale + g * 16), 20)), vf_set1(0x1p117f));
#if defined(__AVX2__)
#pragma GCC unroll 8
#endif
        for (int j = 4 * g; j < 4 * g + 4; j++) {
            vi line = vi_load(block + j / 2 * 64);
            for (int b = 0; b < 4; b++)
                vf_store(out + (4 * j + b) * 16, vf_mul(e2m1_float(line, 8 * b + j % 2 * 4), s));
        }
    }
}

// fp32 of E4M3 codes in bits 15..8 of each lane (others ignored): the bits at fp32's place, scaled by 2^(127 - 7).
VEC_INLINE vf e4m3_float(vi v)
{
    vf magnitude = vf_mul(vf_bits(vi_sll(vi_and(v, vi_set1(0x7f00)), 12)), vf_set1(0x1p120f));
    return vf_bits(vi_or(vi_bits(magnitude), vi_sll(vi_and(v, vi_set1(0x8000)), 16)));
}

// 64 codes (4 k): the layout's quarters to lanes that hold the pair (k, k + 1) in their low 16 bits, (k + 2, k + 3) above.
VEC_INLINE vi e4m3_lanes(const uint8_t *line)
{
    uint32_t lanes[16];
    for (int q = 0; q < 4; q++)
        for (int i = 0; i < 4; i++) {
            uint16_t a, b;
            memcpy(&a, line + q * 16 + i * 2, 2);
            memcpy(&b, line + q * 16 + 8 + i * 2, 2);
            lanes[q * 4 + i] = (uint32_t)a | (uint32_t)b << 16;
        }
    return vi_load(lanes);
}

VEC_INLINE vi e4m3_pairs(const uint8_t *line)
{
#if defined(__AVX512F__)
    const __m512i place = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    return _mm512_shuffle_epi8(_mm512_loadu_si512(line), place);
#elif defined(__AVX2__)
    const __m256i place =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    vi v = vi_load(line);
    return (vi)VEC_EACH(_mm256_shuffle_epi8(v.q[0], place), _mm256_shuffle_epi8(v.q[1], place));
#else
    return e4m3_lanes(line);
#endif
}

VEC_INLINE void decode_block_fp8(const uint8_t *block, vf scale, float *out)
{
#if defined(__AVX2__)
#pragma GCC unroll 8
#endif
    for (int j = 0; j < 8; j++) {
        vi v = e4m3_pairs(block + j * 64);
        vf_store(out + j * 64, vf_mul(e4m3_float(vi_sll(v, 8)), scale));
        vf_store(out + j * 64 + 16, vf_mul(e4m3_float(v), scale));
        vf_store(out + j * 64 + 32, vf_mul(e4m3_float(vi_srl(v, 8)), scale));
        vf_store(out + j * 64 + 48, vf_mul(e4m3_float(vi_srl(v, 16)), scale));
    }
}

// Scale and bias of the group that block b is in.
VEC_INLINE void group_scale(const struct panel *p, int b, vf *scale, vf *bias)
{
    vi v = vi_load(p->scale + b / p->group_blocks * 64);
    if (p->encoding == ENC_AFFINE) {
        *scale = vf_bits(vi_sll(v, 16));
        *bias = vf_bits(vi_and(v, vi_set1((int32_t)0xffff0000u)));
        return;
    }
    *scale = vf_bits(vi_and(v, vi_set1(~31)));
    *bias = vf_sub(vf_zero(), vf_mul(*scale, vf_from_int(vi_and(v, vi_set1(31)))));
}

// Blocks begin .. end - 1 of the panel to out[(block - begin) * 32 + k][16].
static inline void panel_decode(const struct panel *p, int begin, int end, float *out)
{
    int64_t bytes = block_bytes(p->encoding, p->bits);
    for (int b = begin; b < end; b++, out += 512) {
        const uint8_t *data = p->data + b * bytes;
        vf scale, bias;
        float tile;
        switch (p->encoding) {
        case ENC_F32:
            memcpy(out, data, 32 * 64);
            break;
        case ENC_BF16:
            decode_block_bf16(data, out);
            break;
        case ENC_F16:
            for (int k = 0; k < 32; k++)
                vf_store(out + k * 16, vf_load_f16(data + k * 32));
            break;
        case ENC_NVFP4:
            decode_block_nvfp4(data, p->scale + b * 32, out);
            break;
        case ENC_MXFP8:
            decode_block_fp8(data, vf_bits(vi_sll(vi_load_u8(p->scale + b * 16), 23)), out);
            break;
        case ENC_FP8_BLOCK:
            memcpy(&tile, p->scale + b / 4 * 4, 4);
            decode_block_fp8(data, vf_set1(tile), out);
            break;
        case ENC_FP8:
            decode_block_fp8(data, vf_set1(1.0f), out);
            break;
        default:
            group_scale(p, b, &scale, &bias);
            switch (p->bits) {
            case 2:
                decode_block_codes(data, 2, scale, bias, out);
                break;
            case 3:
                decode_block_codes(data, 3, scale, bias, out);
                break;
            case 4:
                decode_block_codes(data, 4, scale, bias, out);
                break;
            case 5:
                decode_block_codes(data, 5, scale, bias, out);
                break;
            case 6:
                decode_block_codes(data, 6, scale, bias, out);
                break;
            default:
                decode_block_codes(data, 8, scale, bias, out);
            }
        }
    }
}

#endif
