// SPDX-License-Identifier: Apache-2.0
//
// Where a position's keys, values and index rows lie in the pages, and how they are stored: kernels/cpu/kv.h for the device.
//
// Invariant: a row is found through the page table by its position alone, and its stored form is a function of the row alone,
// bit for bit that of the CPU target.

#ifndef CUDA_KV_CUH
#define CUDA_KV_CUH

#include "kernels/cuda/vec.cuh"

enum kv_part { KV_KEYS, KV_VALUES, KV_INDEX, KV_POOLED };

// Bytes from the start of a page of n positions to the rows of a part, and bytes of one row.
static __host__ __device__ inline int64_t kv_offset(const struct kv_layout *kv, int32_t n, enum kv_part part)
{
    const int64_t before = part == KV_KEYS     ? 0
                           : part == KV_VALUES ? kv->key_bytes
                           : part == KV_INDEX  ? 2 * kv->key_bytes
                                               : 2 * kv->key_bytes + kv->index_bytes;
    return n * (kv->base + before);
}

static __host__ __device__ inline int64_t kv_bytes(const struct kv_layout *kv, enum kv_part part)
{
    return part == KV_KEYS || part == KV_VALUES ? kv->key_bytes : kv->index_bytes;
}

// Address of a row of a lane's cache. For KV_POOLED, `position` is the block and `ratio` positions a block; else ratio is 1.
static __host__ __device__ inline uint8_t *kv_row(const struct lane_set *lanes, const struct kv_layout *kv,
                                                  const uint32_t *table, enum kv_part part, int32_t position,
                                                  int32_t ratio)
{
    const uint32_t rows = (uint32_t)lanes->page / (uint32_t)ratio, page = (uint32_t)position / rows;
    const uint32_t at = (uint32_t)position - page * rows;
    return lanes->pages + (int64_t)table[page] * lanes->page_bytes + kv_offset(kv, lanes->page, part) +
           at * kv_bytes(kv, part);
}

// To the nearest bf16, ties to even; a NaN stays a NaN.
DEVICE uint16_t kv_bf16(float x)
{
    const uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// The E4M3 code (bias 7, largest 448) nearest to x, ties to even; what is larger becomes 448.
DEVICE uint8_t kv_e4m3(float x)
{
    uint32_t bits = __float_as_uint(x);
    const uint32_t sign = bits >> 31 << 7;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (bits >= 0x43e00000u) // 448
        return (uint8_t)(sign | 0x7eu);
    if (bits < 0x3c800000u) // below 2^-6: multiples of 2^-9
        return (uint8_t)(sign | (__float_as_uint(__fadd_rn(f_mul(__uint_as_float(bits), 512.0f), 8388608.0f)) & 0xfu));
    bits += 0x7ffffu + (bits >> 20 & 1u);
    return (uint8_t)(sign | ((bits >> 20) - (120u << 3)));
}

// An E4M3 pattern moved to the exponent and mantissa of fp32 is its value times 2^-120, subnormals too.
DEVICE float kv_e4m3_value(uint32_t code)
{
    const float magnitude = f_mul(__uint_as_float((code & 0x7fu) << 20), 0x1p120f);
    return __uint_as_float(__float_as_uint(magnitude) | (code & 0x80u) << 24);
}

DEVICE float kv_bf16_value(uint32_t code)
{
    return __uint_as_float(code << 16);
}

// Stores dim values of head `head` of `heads` with one warp. For KV_FP8 a scale a head follows the codes.
DEVICE void kv_encode(uint8_t *to, const float *x, int32_t heads, int32_t head, int32_t dim, int32_t encoding,
                      int32_t lane)
{
    const int32_t at = head * dim;
    if (encoding != KV_FP8) {
        for (int32_t base = lane; base < dim; base += 8 * WARP) {
            float held[8];
#pragma unroll
            for (int n = 0; n < 8; n++)
                held[n] = base + n * WARP < dim ? x[base + n * WARP] : 0.0f;
#pragma unroll
            for (int n = 0; n < 8; n++)
                if (base + n * WARP < dim && encoding == KV_F32)
                    reinterpret_cast<float *>(to)[at + base + n * WARP] = held[n];
                else if (base + n * WARP < dim)
                    reinterpret_cast<uint16_t *>(to)[at + base + n * WARP] = kv_bf16(held[n]);
        }
    } else {
        float top = 0;
        for (int32_t i = lane; i < dim; i += WARP)
            top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
        top = warp_max(top);
        const float scale = top > 0 ? __fdiv_rn(top, 448.0f) : 1.0f;
        for (int32_t i = lane; i < dim; i += WARP)
            to[at + i] = kv_e4m3(__fdiv_rn(x[i], scale));
        if (lane == 0)
            *reinterpret_cast<float *>(to + heads * dim + 4 * head) = scale;
    }
}

// Value i of head `head`, without the scale of KV_FP8.
DEVICE float kv_value(const uint8_t *row, int32_t head, int32_t dim, int32_t encoding, int32_t i)
{
    const int32_t at = head * dim + i;
    if (encoding == KV_F32)
        return reinterpret_cast<const float *>(row)[at];
    if (encoding == KV_BF16)
        return kv_bf16_value(reinterpret_cast<const uint16_t *>(row)[at]);
    return kv_e4m3_value(row[at]);
}

DEVICE float kv_scale(const uint8_t *row, int32_t heads, int32_t head, int32_t dim, int32_t encoding)
{
    return encoding == KV_FP8 ? *reinterpret_cast<const float *>(row + heads * dim + 4 * head) : 1.0f;
}

// Values first .. first + D - 1 of head `head`, zeros beyond dim, without the scale of KV_FP8. fast: rows, heads and groups
// of D values are aligned to what D values take.
template <int D>
DEVICE void kv_load(float *out, const uint8_t *row, int32_t head, int32_t dim, int32_t encoding, int32_t first,
                    bool fast)
{
    if (fast && first + D <= dim && encoding == KV_BF16) {
        __align__(16) uint32_t words[D / 2];
        const uint8_t *from = row + 2 * (head * dim + first);
        if constexpr (D % 8 == 0) {
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *reinterpret_cast<uint4 *>(words + 4 * n) = reinterpret_cast<const uint4 *>(from)[n];
        } else if constexpr (D == 4) {
            *reinterpret_cast<uint2 *>(words) = *reinterpret_cast<const uint2 *>(from);
        } else {
            words[0] = *reinterpret_cast<const uint32_t *>(from);
        }
#pragma unroll
        for (int n = 0; n < D / 2; n++) {
            out[2 * n] = __uint_as_float(words[n] << 16);
            out[2 * n + 1] = __uint_as_float(words[n] & 0xffff0000u);
        }
        return;
    }
    if (fast && first + D <= dim && encoding == KV_F32) {
        const float *from = reinterpret_cast<const float *>(row) + head * dim + first;
        if constexpr (D % 4 == 0) {
#pragma unroll
            for (int n = 0; n < D / 4; n++)
                *reinterpret_cast<float4 *>(out + 4 * n) = reinterpret_cast<const float4 *>(from)[n];
        } else {
            *reinterpret_cast<float2 *>(out) = *reinterpret_cast<const float2 *>(from);
        }
        return;
    }
#pragma unroll
    for (int n = 0; n < D; n++)
        out[n] = first + n < dim ? kv_value(row, head, dim, encoding, first + n) : 0.0f;
}

// Whether kv_load<d> may take its wide way: everything that adds up to an address is a multiple of what it reads at once.
static inline bool kv_fits(const struct lane_set *lanes, const struct kv_layout *kv, int32_t d, enum kv_part part)
{
    const int32_t encoding = part == KV_KEYS || part == KV_VALUES ? kv->encoding : kv->index_encoding;
    const int32_t dim = part == KV_KEYS || part == KV_VALUES ? kv->dim : kv->index_dim;
    const int64_t unit = encoding == KV_F32 ? (d < 4 ? 4 * d : 16) : (d < 8 ? 2 * d : 16);
    const int64_t all = (int64_t)(uintptr_t)lanes->pages | lanes->page_bytes | kv_offset(kv, lanes->page, part) |
                        kv_bytes(kv, part) | (int64_t)dim * (encoding == KV_F32 ? 4 : 2);
    return encoding != KV_FP8 && all % unit == 0;
}

#endif
