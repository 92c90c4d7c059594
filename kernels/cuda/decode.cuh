// SPDX-License-Identifier: Apache-2.0
//
// Encoded panels to the left operand of the 16x8x16 product, in registers: one struct an encoding.
//
// A warp works on a pair of panels (32 outputs) and on blocks of 32 k. Lane = 4 * row + l: row 0..3 are the quarters of the
// first panel, 4..7 of the second; a lane holds outputs 4 * quarter .. + 3 and k = 8 l .. 8 l + 7 of each block. Two products
// cover the pair: product t has outputs 2t and 2t + 1 of each lane at its rows `row` and `row + 8`; step j (0, 1) of a block has
// k = 8 l + 4 j + (0, 2) in a's first column pair and + (1, 3) in its second. Rows of x lie in shared memory in that order.
//
// Lanes of odd l take the two halves of what they hold in the other order (bf16, codes of 8 bits), since in the pack's
// order all four l would ask the same banks of shared memory; CROSSED: their steps are exchanged, and so must the
// halves of x be.
//
// Invariant: a fragment is exact; what is not in it (scale, bias) is added in fp32 by outcome(). `factor` is a power of two
// that the sums still lack. take() reads a lane's part of a block that lies in shared memory as in the pack (decode class: ring.cuh);
// request() starts its copy to shared memory, BLOCK_BYTES a warp, and fetch() takes it from there (prompt class).

#ifndef DECODE_CUH
#define DECODE_CUH

#include "kernels/cuda/nvfp4_word.cuh"
extern "C" {
#include "kernels/cpu/ops.h"
}

// A lane's place in the pair: where its codes and its scales of block 0 begin.
struct lane_weights {
    const uint8_t *data, *scale;
    int group_shift; // log2 of the blocks a group
};

// Bytes of a block of codes of one panel.
__host__ __device__ __forceinline__ constexpr int code_block_bytes(int encoding, int bits)
{
    switch (encoding) {
    case ENC_F32:
        return 2048;
    case ENC_BF16:
    case ENC_F16:
        return 1024;
    case ENC_AFFINE:
        return bits * 64;
    case ENC_NVFP4:
    case ENC_INT4:
        return 256;
    default:
        return 512;
    }
}

// Bytes of the scales of one panel.
__host__ __device__ __forceinline__ constexpr int scale_panel_bytes(const struct weight *w)
{
    int blocks = (w->k + 31) / 32;
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

// Bytes from a quarter to the next, in the scales of a group.
__device__ __forceinline__ int scale_quarter_bytes(int encoding)
{
    return encoding == ENC_AFFINE || encoding == ENC_INT4 ? 16 : encoding == ENC_NVFP4 || encoding == ENC_MXFP8 ? 4 : 0;
}

// The lane's place in pair `pair` of expert e. A pair's missing second panel is its first once more; nobody stores it.
__device__ __forceinline__ lane_weights lane_place(const struct weight *w, int64_t e, int pair, int lane)
{
    int panels = (w->n + 15) / 16, panel = 2 * pair + (lane >> 4), quarter = lane >> 2 & 3;
    panel = panel < panels ? panel : panels - 1;
    int64_t blocks = (w->k + 31) / 32;
    lane_weights p;
    p.data = w->data + e * w->data_stride + panel * blocks * code_block_bytes(w->encoding, w->bits);
    p.data += w->encoding == ENC_F16 ? quarter * 8 : quarter * 16;
    p.scale = w->scale + e * w->scale_stride + (int64_t)panel * scale_panel_bytes(w) +
              quarter * scale_quarter_bytes(w->encoding);
    p.group_shift = w->group >= 128 ? 2 : w->group >= 64 ? 1 : 0;
    return p;
}

__device__ __forceinline__ uint32_t word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// ---- codes of 2 to 8 bits, as integers ----------------------------------------------------------------------------------

template <int BITS> struct integer_codes {
    static constexpr int FOUR = BITS != 8 && (BITS & 4) != 0, TWO = BITS != 8 && (BITS & 2) != 0,
                         ONE = BITS != 8 && (BITS & 1) != 0, LOADS = BITS == 8 ? 2 : FOUR + TWO + ONE;
    uint4 v[LOADS];

    // Bytes a warp: pieces of 16 bytes a lane; the 1-bit line is the same for four lanes.
    static constexpr int BYTES = (LOADS - ONE) * 512 + ONE * 128;

    static __device__ __forceinline__ void request(unsigned char *to, const uint8_t *data, int block, int lane)
    {
        int l = lane & 3;
        data += (int64_t)block * (BITS * 64);
        if (BITS == 8) {
            copy16(to + lane * 16, data + l * 128, 16);
            copy16(to + 512 + lane * 16, data + l * 128 + 64, 16);
            return;
        }
        if (FOUR)
            copy16(to + lane * 16, data + l * 64, 16);
        if (TWO)
            copy16(to + FOUR * 512 + lane * 16, data + FOUR * 256 + (l >> 1) * 64, 16);
        if (ONE && l == 0)
            copy16(to + (LOADS - 1) * 512 + lane * 4, data + FOUR * 256 + TWO * 128, 16);
    }
    __device__ __forceinline__ void fetch(const unsigned char *from, int lane)
    {
#pragma unroll
        for (int i = 0; i < LOADS - ONE; i++)
            v[i] = *(const uint4 *)(from + i * 512 + lane * 16);
        if (ONE)
            v[LOADS - 1] = *(const uint4 *)(from + (LOADS - 1) * 512 + (lane & 28) * 4);
    }

    // The lane's codes of a block that lies in shared memory as in the pack.
    __device__ __forceinline__ void take(const unsigned char *data, int l)
    {
        if (BITS == 8) {
            v[0] = *(const uint4 *)(data + l * 128 + (l & 1) * 64);
            v[LOADS - 1] = *(const uint4 *)(data + l * 128 + 64 - (l & 1) * 64);
            return;
        }
        if (FOUR)
            v[0] = *(const uint4 *)(data + l * 64);
        if (TWO)
            v[FOUR] = *(const uint4 *)(data + FOUR * 256 + (l >> 1) * 64);
        if (ONE)
            v[LOADS - 1] = *(const uint4 *)(data + FOUR * 256 + TWO * 128);
    }

    // Codes of output o, step j, column pair c, as bf16 pair, less their middle.
    __device__ __forceinline__ uint32_t pair(int o, int j, int c, int l) const
    {
        if (BITS == 8) {
            uint32_t w = word(v[j ? LOADS - 1 : 0], o) >> (8 * c);
            uint32_t low = pair_fma(and_or<0x000f000fu>(w, 0x43004300u), 0x3f803f80u, 0xc380c380u);       // - 256
            uint32_t high = pair_fma(and_or<0x000f000fu>(w >> 4, 0x43004300u), 0x3f803f80u, 0xc300c300u); // - 128
            return pair_fma(high, 0x41804180u, low);                                                      // * 16
        }
        uint32_t q = 0x43004300u; // 128 + code
        if (FOUR)
            q = and_or<0x000f000fu>(word(v[0], o) >> (4 * j + 8 * c), q);
        if (TWO)
            q |= ((word(v[FOUR], o) >> (4 * (l & 1)) >> (2 * j + 8 * c)) & 0x00030003u) << (4 * FOUR);
        if (ONE)
            q |= ((word(v[LOADS - 1], o) >> (2 * l) >> (j + 8 * c)) & 0x00010001u) << (4 * FOUR + 2 * TWO);
        const uint32_t middle = 0xc300u + (1u << (BITS - 1)); // -(128 + middle)
        return pair_fma(q, 0x3f803f80u, middle | middle << 16);
    }

    // Codes of output o, step j, as four bytes in the order of k, times 2^LEFT.
    static constexpr int LEFT = BITS == 4 ? 4 : 0;
    __device__ __forceinline__ uint32_t bytes(int o, int j, int l) const
    {
        if (BITS == 8)
            return word(v[j ? LOADS - 1 : 0], o);
        if (BITS == 4)
            return (j ? word(v[0], o) : word(v[0], o) << 4) & 0xf0f0f0f0u;
        uint32_t q = 0;
        if (FOUR)
            q = word(v[0], o) >> (4 * j) & 0x0f0f0f0fu;
        if (TWO)
            q |= ((word(v[FOUR], o) >> (4 * (l & 1)) >> (2 * j)) & 0x03030303u) << (4 * FOUR);
        if (ONE)
            q |= ((word(v[LOADS - 1], o) >> (2 * l) >> j) & 0x01010101u) << (4 * FOUR + 2 * TWO);
        return q;
    }
};

// Fragments of step j from a function of (output, step, column pair).
#define FRAGMENT(a, EXPRESSION)                                                                                        \
    _Pragma("unroll") for (int t = 0; t < 2; t++) _Pragma("unroll") for (int i = 0; i < 4; i++)                        \
    {                                                                                                                  \
        const int o = 2 * t + (i & 1), c = i >> 1;                                                                     \
        (a)[t][i] = (EXPRESSION);                                                                                      \
    }

template <int BITS> struct code_affine {
    static constexpr bool SCALED = true, BIASED = true;
    static constexpr int PARTS = 1, BLOCK_BYTES = integer_codes<BITS>::BYTES + 128, DATA = BITS * 64, SCALE = 64,
                         DATA_QUARTER = 16, SCALE_QUARTER = 16;
    static constexpr bool APART = false, CROSSED = BITS == 8;
    integer_codes<BITS> q;
    uint4 s;
    static __device__ __forceinline__ float factor()
    {
        return 1.0f;
    }
    __device__ __forceinline__ void take(const unsigned char *data, const unsigned char *scale, int l)
    {
        q.take(data, l);
        s = *(const uint4 *)scale;
    }
    static __device__ __forceinline__ void request(unsigned char *to, const lane_weights &p, int block, int lane)
    {
        integer_codes<BITS>::request(to, p.data, block, lane);
        request_scale(to, p, block, lane);
    }
    static __device__ __forceinline__ void request_scale(unsigned char *to, const lane_weights &p, int block, int lane)
    {
        if ((lane & 3) == 0)
            copy16(to + integer_codes<BITS>::BYTES + lane * 4, p.scale + (int64_t)(block >> p.group_shift) * 64, 16);
    }
    __device__ __forceinline__ void fetch(const unsigned char *from, int lane)
    {
        q.fetch(from, lane);
        s = *(const uint4 *)(from + integer_codes<BITS>::BYTES + (lane & 28) * 4);
    }
    __device__ __forceinline__ void fragment(int, int j, int l, uint32_t a[2][4]) const
    {
        FRAGMENT(a, q.pair(o, j, c, l));
    }
    // Scale and bias of the lane's output o.
    __device__ __forceinline__ void outcome(int o, float *scale, float *bias) const
    {
        uint32_t u = word(s, o);
        *scale = bits_float(u << 16);
        *bias = fmaf((float)(1 << (BITS - 1)), *scale, bits_float(u & 0xffff0000u));
    }
    // Decode class (integer.cuh): bytes, and what code bytes / 2^BYTES_LEFT are multiplied by, and what is added.
    static constexpr int BYTES_LEFT = integer_codes<BITS>::LEFT;
    __device__ __forceinline__ uint32_t bytes(int o, int j, int l) const
    {
        return q.bytes(o, j, l);
    }
    __device__ __forceinline__ void outcome_bytes(int o, float *scale, float *bias) const
    {
        uint32_t u = word(s, o);
        *scale = bits_float(u << 16);
        *bias = bits_float(u & 0xffff0000u);
    }
};

struct code_int4 : code_affine<4> {
    __device__ __forceinline__ void outcome(int o, float *scale, float *bias) const
    {
        uint32_t u = word(s, o);
        *scale = bits_float(u & ~31u);
        *bias = *scale * (8.0f - (float)(u & 31u));
    }
    __device__ __forceinline__ void outcome_bytes(int o, float *scale, float *bias) const
    {
        uint32_t u = word(s, o);
        *scale = bits_float(u & ~31u);
        *bias = -(*scale * (float)(u & 31u));
    }
};

// ---- floating-point codes -----------------------------------------------------------------------------------------------

// E2M1 * scale has at most six significant bits: exact in bf16, less 2^16.
struct code_nvfp4 {
    static constexpr bool SCALED = false, BIASED = false;
    static constexpr int PARTS = 1, BLOCK_BYTES = 512 + 128, DATA = 256, SCALE = 32, DATA_QUARTER = 16,
                         SCALE_QUARTER = 4;
    static constexpr bool APART = false, CROSSED = false;
    uint4 q;
    uint32_t s;
    static __device__ __forceinline__ float factor()
    {
        return 65536.0f;
    }
    __device__ __forceinline__ void take(const unsigned char *data, const unsigned char *scale, int l)
    {
        q = *(const uint4 *)(data + l * 64);
        s = *(const uint32_t *)(scale + (l >> 1) * 16);
    }
    static __device__ __forceinline__ void request(unsigned char *to, const lane_weights &p, int block, int lane)
    {
        copy16(to + lane * 16, p.data + (int64_t)block * 256 + (lane & 3) * 64, 16);
        request_scale(to, p, block, lane);
    }
    static __device__ __forceinline__ void request_scale(unsigned char *to, const lane_weights &p, int block, int lane)
    {
        copy4(to + 512 + lane * 4, p.scale + (int64_t)block * 32 + (lane & 2) * 8, 4);
    }
    __device__ __forceinline__ void fetch(const unsigned char *from, int lane)
    {
        q = *(const uint4 *)(from + lane * 16);
        s = *(const uint32_t *)(from + 512 + lane * 4);
    }
    // scale * 2^110 of outputs 0 and 2, or 1 and 3: the byte is the top of a bf16 whose exponent is 227 short. A scale of 0 comes out as
    // 2^100; its codes are zeros.
    __device__ __forceinline__ uint32_t scales(int odd) const
    {
        return __byte_perm(s, 0, odd ? 0x4341u : 0x4240u) * 0x10u + 0x71807180u;
    }
    __device__ __forceinline__ void fragment(int, int j, int, uint32_t a[2][4]) const
    {
        const uint32_t scale[2] = {scales(0), scales(1)};
        FRAGMENT(a, pair_mul(nvfp4_pair(word(q, o), j, c), pair_twice(scale[o & 1], o >> 1)));
    }
    __device__ __forceinline__ void outcome(int, float *, float *) const
    {
    }
};

struct e4m3_codes {
    uint4 v[2];
    // The codes as the high bytes of a pair, moved to bf16's places and scaled by 2^(127 - 7).
    __device__ __forceinline__ uint32_t pair(int o, int j, int c) const
    {
        const uint32_t pick = (o & 1 ? 0x6622u : 0x4400u) + (c ? 0x1111u : 0u);
        uint32_t w = __byte_perm(word(v[j], o >> 1), word(v[j], 2 + (o >> 1)), pick);
        return pair_mul((w & 0x80008000u) | ((w >> 4) & 0x07f007f0u), 0x7b807b80u);
    }
};

template <int ENCODING> struct code_e4m3 {
    static constexpr bool SCALED = ENCODING != ENC_FP8, BIASED = false;
    static constexpr int PARTS = 1, BLOCK_BYTES = 1024 + (SCALED ? 128 : 0), DATA = 512,
                         SCALE = ENCODING == ENC_MXFP8 ? 16 : 0, DATA_QUARTER = 16, SCALE_QUARTER = 4;
    static constexpr bool APART = ENCODING == ENC_FP8_BLOCK; // scales do not go through the ring
    static constexpr bool CROSSED = true;
    e4m3_codes q;
    uint32_t s;
    static __device__ __forceinline__ float factor()
    {
        return 1.0f;
    }
    __device__ __forceinline__ void take(const unsigned char *data, const unsigned char *scale, int l)
    {
        q.v[0] = *(const uint4 *)(data + l * 128 + (l & 1) * 64);
        q.v[1] = *(const uint4 *)(data + l * 128 + 64 - (l & 1) * 64);
        if (SCALED)
            s = *(const uint32_t *)scale;
    }
    static __device__ __forceinline__ void request(unsigned char *to, const lane_weights &p, int block, int lane)
    {
        const uint8_t *data = p.data + (int64_t)block * 512 + (lane & 3) * 128;
        copy16(to + lane * 16, data, 16);
        copy16(to + 512 + lane * 16, data + 64, 16);
        request_scale(to, p, block, lane);
    }
    static __device__ __forceinline__ void request_scale(unsigned char *to, const lane_weights &p, int block, int lane)
    {
        if (ENCODING == ENC_MXFP8)
            copy4(to + 1024 + lane * 4, p.scale + (int64_t)block * 16, 4);
        if (ENCODING == ENC_FP8_BLOCK)
            copy4(to + 1024 + lane * 4, p.scale + (int64_t)(block >> 2) * 4, 4);
    }
    __device__ __forceinline__ void fetch(const unsigned char *from, int lane)
    {
        q.v[0] = *(const uint4 *)(from + lane * 16);
        q.v[1] = *(const uint4 *)(from + 512 + lane * 16);
        if (SCALED)
            s = *(const uint32_t *)(from + 1024 + lane * 4);
    }
    __device__ __forceinline__ void fragment(int, int j, int, uint32_t a[2][4]) const
    {
        FRAGMENT(a, q.pair(o, j, c));
    }
    __device__ __forceinline__ void outcome(int o, float *scale, float *) const
    {
        *scale = bits_float(ENCODING == ENC_MXFP8 ? (s >> (8 * o) & 255u) << 23 : s);
    }
};

// ---- plain numbers --------------------------------------------------------------------------------------------------------

struct code_bf16 {
    static constexpr bool SCALED = false, BIASED = false;
    static constexpr int PARTS = 1, BLOCK_BYTES = 2048, DATA = 1024, SCALE = 0, DATA_QUARTER = 16, SCALE_QUARTER = 0;
    static constexpr bool APART = false, CROSSED = false;
    uint4 v[4];
    uint32_t even, odd; // how numbers of k 0 and 2, of 1 and 3 are picked out of two of v
    static __device__ __forceinline__ float factor()
    {
        return 1.0f;
    }
    __device__ __forceinline__ void take(const unsigned char *data, const unsigned char *, int l)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = *(const uint4 *)(data + (4 * l + (i ^ (l & 1))) * 64);
        even = l & 1 ? 0x1054u : 0x5410u;
        odd = l & 1 ? 0x3276u : 0x7632u;
    }
    static __device__ __forceinline__ void request(unsigned char *to, const lane_weights &p, int block, int lane)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            copy16(to + i * 512 + lane * 16, p.data + (int64_t)block * 1024 + (4 * (lane & 3) + i) * 64, 16);
    }
    static __device__ __forceinline__ void request_scale(unsigned char *, const lane_weights &, int, int)
    {
    }
    __device__ __forceinline__ void fetch(const unsigned char *from, int lane)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = *(const uint4 *)(from + i * 512 + lane * 16);
        even = 0x5410u;
        odd = 0x7632u;
    }
    __device__ __forceinline__ void fragment(int, int j, int, uint32_t a[2][4]) const
    {
        FRAGMENT(a, __byte_perm(word(v[2 * j], o), word(v[2 * j + 1], o), c ? odd : even));
    }
    __device__ __forceinline__ void outcome(int, float *, float *) const
    {
    }
};

// Part `part` of two numbers as bf16: the nearest, then the nearest of what is left, and so on.
__device__ __forceinline__ uint32_t pair_part(float a, float b, int part)
{
    uint32_t d = pair_pack(a, b);
    for (int i = 0; i < part; i++) {
        a -= bits_float(d << 16);
        b -= bits_float(d & 0xffff0000u);
        d = pair_pack(a, b);
    }
    return d;
}

// Eleven significant bits: exact in two parts.
struct code_f16 {
    static constexpr bool SCALED = false, BIASED = false;
    static constexpr int PARTS = 2, BLOCK_BYTES = 2048, DATA = 1024, SCALE = 0, DATA_QUARTER = 8, SCALE_QUARTER = 0;
    static constexpr bool APART = false, CROSSED = false;
    uint2 v[8];
    static __device__ __forceinline__ float factor()
    {
        return 1.0f;
    }
    __device__ __forceinline__ void take(const unsigned char *data, const unsigned char *, int l)
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = *(const uint2 *)(data + (8 * l + i) * 32);
    }
    static __device__ __forceinline__ void request(unsigned char *to, const lane_weights &p, int block, int lane)
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            copy8(to + i * 256 + lane * 8, p.data + (int64_t)block * 1024 + (8 * (lane & 3) + i) * 32);
    }
    __device__ __forceinline__ void fetch(const unsigned char *from, int lane)
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = *(const uint2 *)(from + i * 256 + lane * 8);
    }
    __device__ __forceinline__ float number(int k, int o) const
    {
        uint32_t u = o < 2 ? v[k].x : v[k].y;
        return half_float(o & 1 ? u >> 16 : u & 0xffffu);
    }
    __device__ __forceinline__ void fragment(int part, int j, int, uint32_t a[2][4]) const
    {
        FRAGMENT(a, pair_part(number(4 * j + c, o), number(4 * j + c + 2, o), part));
    }
    __device__ __forceinline__ void outcome(int, float *, float *) const
    {
    }
};

// Twenty-four significant bits: exact in three parts.
struct code_f32 {
    static constexpr bool SCALED = false, BIASED = false;
    static constexpr int PARTS = 3, BLOCK_BYTES = 4096, DATA = 2048, SCALE = 0, DATA_QUARTER = 16, SCALE_QUARTER = 0;
    static constexpr bool APART = false, CROSSED = false;
    uint4 v[8];
    static __device__ __forceinline__ float factor()
    {
        return 1.0f;
    }
    __device__ __forceinline__ void take(const unsigned char *data, const unsigned char *, int l)
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = *(const uint4 *)(data + (8 * l + i) * 64);
    }
    static __device__ __forceinline__ void request(unsigned char *to, const lane_weights &p, int block, int lane)
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            copy16(to + i * 512 + lane * 16, p.data + (int64_t)block * 2048 + (8 * (lane & 3) + i) * 64, 16);
    }
    __device__ __forceinline__ void fetch(const unsigned char *from, int lane)
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = *(const uint4 *)(from + i * 512 + lane * 16);
    }
    __device__ __forceinline__ void fragment(int part, int j, int, uint32_t a[2][4]) const
    {
        FRAGMENT(a, pair_part(bits_float(word(v[4 * j + c], o)), bits_float(word(v[4 * j + c + 2], o)), part));
    }
    __device__ __forceinline__ void outcome(int, float *, float *) const
    {
    }
};

// do_it(code_type<...>()) for the struct of a weight's encoding.
template <class CODE> struct code_type {
    typedef CODE type;
};

#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <class DO> __host__ __device__ __forceinline__ void with_code(const struct weight *w, DO do_it)
{
    switch (w->encoding) {
    case ENC_F32:
        return do_it(code_type<code_f32>());
    case ENC_BF16:
        return do_it(code_type<code_bf16>());
    case ENC_F16:
        return do_it(code_type<code_f16>());
    case ENC_NVFP4:
        return do_it(code_type<code_nvfp4>());
    case ENC_MXFP8:
        return do_it(code_type<code_e4m3<ENC_MXFP8>>());
    case ENC_FP8_BLOCK:
        return do_it(code_type<code_e4m3<ENC_FP8_BLOCK>>());
    case ENC_FP8:
        return do_it(code_type<code_e4m3<ENC_FP8>>());
    case ENC_INT4:
        return do_it(code_type<code_int4>());
    default:
        break;
    }
    switch (w->bits) {
    case 2:
        return do_it(code_type<code_affine<2>>());
    case 3:
        return do_it(code_type<code_affine<3>>());
    case 4:
        return do_it(code_type<code_affine<4>>());
    case 5:
        return do_it(code_type<code_affine<5>>());
    case 6:
        return do_it(code_type<code_affine<6>>());
    default:
        return do_it(code_type<code_affine<8>>());
    }
}

template <class A, class B> struct code_equal {
    static constexpr bool value = false;
};
template <class A> struct code_equal<A, A> {
    static constexpr bool value = true;
};

// Whether a weight is decoded by CODE.
template <class CODE> __host__ __device__ __forceinline__ bool code_is(const struct weight *w)
{
    bool is = false;
    with_code(w, [&](auto code) { is = code_equal<typename decltype(code)::type, CODE>::value; });
    return is;
}

#endif
