// SPDX-License-Identifier: Apache-2.0
//
// Where a position's keys, values and index rows lie in the pages, and how they are stored.
//
// Invariant: a row is found through the page table by its position alone, and its stored form is a function of the row alone.

#ifndef KV_H
#define KV_H

#include "kernels/cpu/ops.h"
#include "kernels/cpu/vec.h"

enum kv_part { KV_KEYS, KV_VALUES, KV_INDEX, KV_POOLED };

// Address of a row of a lane's cache. For KV_POOLED, `position` is the block and `ratio` positions a block; else ratio is 1.
VEC_INLINE uint8_t *kv_row(const struct lane_set *lanes, const struct kv_layout *kv, int32_t l, enum kv_part part,
                           int64_t position, int32_t ratio)
{
    const int64_t n = lanes->page, rows = n / ratio;
    const int64_t page = lanes->table[l][position / rows], at = position % rows;
    uint8_t *base = lanes->pages + page * lanes->page_bytes;
    switch (part) {
    case KV_KEYS:
        return base + n * kv->base + at * kv->key_bytes;
    case KV_VALUES:
        return base + n * (kv->base + kv->key_bytes) + at * kv->key_bytes;
    case KV_INDEX:
        return base + n * (kv->base + 2 * kv->key_bytes) + at * kv->index_bytes;
    default:
        return base + n * (kv->base + 2 * kv->key_bytes + kv->index_bytes) + at * kv->index_bytes;
    }
}

// The E4M3 code (bias 7, largest 448) nearest to x, ties to even; what is larger becomes 448.
VEC_INLINE uint8_t e4m3_encode(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 31 << 7;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (bits >= 0x43e00000u) // 448
        return (uint8_t)(sign | 0x7eu);
    if (bits < 0x3c800000u) { // below 2^-6: multiples of 2^-9
        float magnitude, rounded;
        memcpy(&magnitude, &bits, sizeof magnitude);
        rounded = magnitude * 512.0f + 8388608.0f;
        memcpy(&bits, &rounded, sizeof bits);
        return (uint8_t)(sign | (bits & 0xfu));
    }
    bits += 0x7ffffu + (bits >> 20 & 1u);
    return (uint8_t)(sign | ((bits >> 20) - (120u << 3)));
}

// Sixteen E4M3 codes. An E4M3 pattern moved to the exponent and mantissa of fp32 is its value times 2^-120, subnormals too.
VEC_INLINE vf e4m3_decode(const uint8_t *p)
{
    const vi code = vi_load_u8(p);
    const vi sign = vi_sll(vi_and(code, vi_set1(0x80)), 24), magnitude = vi_sll(vi_and(code, vi_set1(0x7f)), 20);
    vf value = vf_mul(vf_bits(magnitude), vf_set1(0x1p120f));
    return vf_bits(vi_or(vi_bits(value), sign));
}

// Stores n = heads * dim values. For KV_FP8 a scale a head follows the codes.
VEC_INLINE void kv_encode(uint8_t *to, const float *x, int32_t heads, int32_t dim, int32_t encoding)
{
    const int32_t n = heads * dim;
    if (encoding == KV_F32) {
        memcpy(to, x, (size_t)n * sizeof *x);
    } else if (encoding == KV_BF16) {
        for (int32_t i = 0; i < n; i++) {
            uint16_t code = bf16_f(x[i]);
            memcpy(to + 2 * i, &code, sizeof code);
        }
    } else {
        for (int32_t h = 0; h < heads; h++) {
            float top = 0;
            for (int32_t i = h * dim; i < (h + 1) * dim; i++)
                top = __builtin_fabsf(x[i]) > top ? __builtin_fabsf(x[i]) : top;
            const float scale = top > 0 ? top / 448.0f : 1.0f;
            for (int32_t i = h * dim; i < (h + 1) * dim; i++)
                to[i] = e4m3_encode(x[i] / scale);
            memcpy(to + n + 4 * h, &scale, sizeof scale);
        }
    }
}

// Head `head` of a stored row, as dim values. heads: how many the row has.
VEC_INLINE void kv_decode(float *to, const uint8_t *from, int32_t heads, int32_t head, int32_t dim, int32_t encoding)
{
    if (encoding == KV_F32) {
        memcpy(to, from + 4 * (int64_t)head * dim, (size_t)dim * sizeof *to);
    } else if (encoding == KV_BF16) {
        from += 2 * (int64_t)head * dim;
        int32_t i = 0;
        for (; i + VEC <= dim; i += VEC)
            vf_store(to + i, vf_load_bf16((const uint16_t *)(const void *)(from + 2 * i)));
        for (; i < dim; i++) {
            uint16_t code;
            memcpy(&code, from + 2 * i, sizeof code);
            to[i] = f_bf16(code);
        }
    } else {
        float scale;
        memcpy(&scale, from + (int64_t)heads * dim + 4 * head, sizeof scale);
        from += (int64_t)head * dim;
        int32_t i = 0;
        for (; i + VEC <= dim; i += VEC)
            vf_store(to + i, vf_mul(e4m3_decode(from + i), vf_set1(scale)));
        if (i < dim) {
            uint8_t rest[VEC] = {0};
            memcpy(rest, from + i, (size_t)(dim - i));
            vf_store_n(to + i, vf_mul(e4m3_decode(rest), vf_set1(scale)), dim - i);
        }
    }
}

#endif
