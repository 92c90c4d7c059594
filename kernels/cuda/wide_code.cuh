// SPDX-License-Identifier: Apache-2.0
//
// Encodings whose weights are exact in one 16-bit number, scale included: fragments for products of whole warpgroups
// (wgmma.cuh).
//
// wide_code<CODE>: AVAILABLE says whether there is such a form; ROWS how many 64-byte rows of a panel's block of codes
// each lane has, which codes() gives; HALF whether the numbers are fp16 (else bf16); BIASED whether a bias a group of k
// is left, which bias_fragment gives in two parts; FOLD how many blocks of 32 k a scale is left for, which
// CODE::outcome gives (0: none). FACTOR is a power of two that sums still lack.
//
// Invariant: a fragment is exact. Affine codes of 4 bits less 8 have three significant bits and their scale eight:
// eleven in all, what fp16 holds, for scales from 2^-19 to 2^10.

#ifndef WIDE_CODE_CUH
#define WIDE_CODE_CUH

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/wgmma.cuh"

template <class CODE> struct wide_code {
    static constexpr bool AVAILABLE = false;
};

// Where row i of ROWS of a lane's codes waits in a warp's block in shared memory, for the lane's l (lane % 4), its
// quarter of a row, and panel. Eight neighbouring pieces of 16 bytes of memory, and what eight neighbouring lanes
// fetch, are eight different places of a line.
__device__ __forceinline__ int wide_piece(int i, int panel, int quarter, int l)
{
    return i * 512 + panel * 256 + ((l * 4 + (quarter ^ (l & 2))) ^ (i & 1) * 4) * 16;
}

// Where a lane's pieces of a pair of panels begin in memory: of codes, which are copied in the order of memory, one
// panel's for lanes of a half, or both for every lane; and the scales of its half's panel.
template <int ROWS> struct wide_pieces {
    const uint8_t *from[ROWS > 1 ? 2 : 1], *scale;
    int shift;

    __device__ __forceinline__ void find(const lane_weights &first, const lane_weights &second, int lane)
    {
        const lane_weights &mine = lane >> 4 ? second : first;
        scale = mine.scale;
        shift = mine.group_shift;
        if (ROWS == 1) {
            from[0] = mine.data + lane % 16 * 16;
            return;
        }
        from[0] = first.data + lane * 16;
        from[ROWS > 1] = second.data + lane * 16;
    }
};

// Where the pieces go that a lane copies of a warp's block, and where it finds its own.
template <int ROWS> struct wide_places {
    shared_place to[ROWS > 2 ? 2 : 1], from[ROWS > 1 ? 2 : 1];

    // block: where the warp's first block lies, at a multiple of 128.
    __device__ __forceinline__ void find_to(unsigned char *block, int lane)
    {
        const int at = ROWS > 1 ? lane : lane % 16, row = at / 4, panel = ROWS > 1 ? 0 : lane >> 4;
        to[0] = shared_opaque(block + wide_piece(row % ROWS, panel, at % 4, row / ROWS));
        if (ROWS > 2)
            to[ROWS > 2] = shared_opaque(block + wide_piece((row + 8) % ROWS, panel, at % 4, (row + 8) / ROWS));
    }
    __device__ __forceinline__ void find_from(unsigned char *block, int lane)
    {
        const int own = wide_piece(0, lane >> 4, lane >> 2 & 3, lane & 3);
        from[0] = shared_opaque(block + own);
        if (ROWS > 1)
            from[ROWS > 1] = shared_opaque(block + (own ^ 64));
    }
};

// Starts the copy of the codes of a block that lies `bytes` behind a panel's beginning, to `at` behind the warp's first.
template <int ROWS>
__device__ __forceinline__ void wide_request(const wide_places<ROWS> &places, int at, const wide_pieces<ROWS> &pieces,
                                             int64_t bytes)
{
    constexpr int HALF = ROWS > 1 ? ROWS / 2 : 1;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int panel = i / HALF, turn = i % HALF;
        copy16(places.to[turn] + (at + panel * 256), pieces.from[panel] + bytes + turn * 512, 16);
    }
}

// A lane's codes of a block that wide_request brought.
template <class CODE, class WIDE>
__device__ __forceinline__ void wide_fetch(CODE &code, const wide_places<WIDE::ROWS> &places, int at)
{
#pragma unroll
    for (int i = 0; i < WIDE::ROWS; i++)
        WIDE::codes(&code)[i] = shared_load<uint4>(places.from[i & 1] + (at + i * 512));
}

// The scales of a stage of EACH blocks of 32 k, of a pair of panels, in 128 EACH bytes. request() starts the copy of a
// lane's piece of blocks `first` and on, of which there are `blocks` in all, to the place to(lane); fetch() takes those of
// block i of the stage, for which a lane looks from from(lane) on.
struct scales_none {
    template <int EACH> static __device__ __forceinline__ int to(int)
    {
        return 0;
    }
    template <int EACH> static __device__ __forceinline__ int from(int)
    {
        return 0;
    }
    template <int EACH, int ROWS>
    static __device__ __forceinline__ void request(shared_place, const wide_pieces<ROWS> &, int, int, int)
    {
    }
    template <class CODE> static __device__ __forceinline__ void fetch(CODE &, shared_place, int, int)
    {
    }
};

// PIECES of 16 bytes a panel and block; a quarter has 4 bytes in each.
template <int PIECES> struct scales_small {
    template <int EACH> static __device__ __forceinline__ int to(int lane)
    {
        return ((lane >> 4) * EACH * PIECES + (lane & 15)) * 16;
    }
    template <int EACH> static __device__ __forceinline__ int from(int lane)
    {
        return (lane >> 4) * EACH * PIECES * 16 + (lane >> 2 & 3) * 4 + (PIECES > 1 ? (lane >> 1 & 1) * 16 : 0);
    }
    template <int EACH, int ROWS>
    static __device__ __forceinline__ void request(shared_place to, const wide_pieces<ROWS> &pieces, int first,
                                                   int blocks, int lane)
    {
        const int piece = lane & 15, last = (blocks - first) * PIECES - 1;
        if (piece < EACH * PIECES)
            copy16(to, pieces.scale + (int64_t)(first * PIECES + (piece < last ? piece : last)) * 16, 16);
    }
    template <class CODE> static __device__ __forceinline__ void fetch(CODE &code, shared_place from, int, int i)
    {
        code.s = shared_load<uint32_t>(from + i * PIECES * 16);
    }
};

// 4 bytes a panel and four blocks.
struct scales_block {
    template <int EACH> static __device__ __forceinline__ int to(int lane)
    {
        static_assert(EACH <= 4, "a stage's blocks share a scale");
        return lane * 4;
    }
    template <int EACH> static __device__ __forceinline__ int from(int lane)
    {
        return lane * 4;
    }
    template <int EACH, int ROWS>
    static __device__ __forceinline__ void request(shared_place to, const wide_pieces<ROWS> &pieces, int first, int,
                                                   int)
    {
        copy4(to, pieces.scale + (int64_t)(first >> 2) * 4, 4);
    }
    template <class CODE> static __device__ __forceinline__ void fetch(CODE &code, shared_place from, int, int)
    {
        code.s = shared_load<uint32_t>(from);
    }
};

// 64 bytes a panel and group of 1 << shift blocks, 16 a quarter.
struct scales_group {
    template <int EACH> static __device__ __forceinline__ int to(int lane)
    {
        return (lane >> 4) * EACH * 64 + (lane & 15) * 16;
    }
    template <int EACH> static __device__ __forceinline__ int from(int lane)
    {
        return (lane >> 4) * EACH * 64 + (lane >> 2 & 3) * 16;
    }
    template <int EACH, int ROWS>
    static __device__ __forceinline__ void request(shared_place to, const wide_pieces<ROWS> &pieces, int first,
                                                   int blocks, int lane)
    {
        const int piece = lane & 15, begin = first >> pieces.shift, last = (blocks - 1) >> pieces.shift,
                  group = begin + piece / 4;
        if (piece / 4 << pieces.shift < EACH)
            copy16(to, pieces.scale + (int64_t)(group < last ? group : last) * 64 + piece % 4 * 16, 16);
    }
    template <class CODE> static __device__ __forceinline__ void fetch(CODE &code, shared_place from, int shift, int i)
    {
        code.s = shared_load<uint4>(from + (i >> shift) * 64);
    }
};

// Those that decode.cuh has in one exact part already.
template <class CODE, int FOLDED> struct wide_plain {
    static constexpr bool AVAILABLE = true, HALF = false, BIASED = false;
    static constexpr int FOLD = FOLDED;
    static __device__ __forceinline__ float factor()
    {
        return CODE::factor();
    }
    static __device__ __forceinline__ void fragments(const CODE &code, int l, uint32_t a[2][2][4])
    {
        code.fragment(0, 0, l, a[0]);
        code.fragment(0, 1, l, a[1]);
    }
};
template <> struct wide_code<code_nvfp4> : wide_plain<code_nvfp4, 0>, scales_small<2> {
    static constexpr int ROWS = 1;
    static __device__ __forceinline__ uint4 *codes(code_nvfp4 *code)
    {
        return &code->q;
    }
};
template <> struct wide_code<code_bf16> : wide_plain<code_bf16, 0>, scales_none {
    static constexpr int ROWS = 4;
    static __device__ __forceinline__ uint4 *codes(code_bf16 *code)
    {
        return code->v;
    }
    // No scales, but the order in which halves of words lie.
    static __device__ __forceinline__ void fetch(code_bf16 &code, shared_place, int, int)
    {
        code.even = 0x5410u;
        code.odd = 0x7632u;
    }
};
template <int ENCODING> struct wide_bytes {
    static constexpr int ROWS = 2;
    static __device__ __forceinline__ uint4 *codes(code_e4m3<ENCODING> *code)
    {
        return code->q.v;
    }
};
template <> struct wide_code<code_e4m3<ENC_FP8>> : wide_plain<code_e4m3<ENC_FP8>, 0>, wide_bytes<ENC_FP8>, scales_none {
};
template <>
struct wide_code<code_e4m3<ENC_FP8_BLOCK>>
    : wide_plain<code_e4m3<ENC_FP8_BLOCK>, 4>, wide_bytes<ENC_FP8_BLOCK>, scales_block {
};

// Four significant bits times a power of two. A scale of 2^-127 is a subnormal bf16.
template <> struct wide_code<code_e4m3<ENC_MXFP8>> : wide_bytes<ENC_MXFP8>, scales_small<1> {
    static constexpr bool AVAILABLE = true, HALF = false, BIASED = false;
    static constexpr int FOLD = 0;
    static __device__ __forceinline__ float factor()
    {
        return 1.0f;
    }
    static __device__ __forceinline__ void fragments(const code_e4m3<ENC_MXFP8> &code, int l, uint32_t a[2][2][4])
    {
        uint32_t scale[4];
#pragma unroll
        for (int o = 0; o < 4; o++) {
            uint32_t e = code.s >> (8 * o) & 255u;
            e = e ? e << 7 : 0x40u;
            scale[o] = e | e << 16;
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            code.fragment(0, j, l, a[j]);
#pragma unroll
            for (int t = 0; t < 2; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[j][t][i] = pair_mul(a[j][t][i], scale[2 * t + (i & 1)]);
        }
    }
};

template <> struct wide_code<code_affine<4>> : scales_group {
    static constexpr bool AVAILABLE = true, HALF = true, BIASED = true;
    static constexpr int FOLD = 0, ROWS = 1;
    static __device__ __forceinline__ uint4 *codes(code_affine<4> *code)
    {
        return code->q.v;
    }
    static __device__ __forceinline__ float factor()
    {
        return 0.25f;
    }
    // Scales times four, as fp16.
    static __device__ __forceinline__ float scale_of(uint32_t word)
    {
        return bits_float(word << 16) * 4.0f;
    }
    // An output's eight codes of a lane, with the word of its scale and bias: k of steps 0 and 1, then those 8 on.
    static __device__ __forceinline__ void output(uint32_t q, uint32_t scale_word, uint32_t *first, uint32_t *second,
                                                  uint32_t *first_on, uint32_t *second_on)
    {
        const float s = scale_of(scale_word);
        const uint32_t scale = half_pack(s, s), r = q >> 8;
        // 1024 + code, and 1024 + 16 code, less what they hold too much.
        *first = half_mul(half_fma((q & 0x000f000fu) | 0x64006400u, 0x3c003c00u, 0xe408e408u), scale);
        *second = half_mul(half_fma((q & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, 0xd480d480u), scale);
        *first_on = half_mul(half_fma((r & 0x000f000fu) | 0x64006400u, 0x3c003c00u, 0xe408e408u), scale);
        *second_on = half_mul(half_fma((r & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, 0xd480d480u), scale);
    }
    static __device__ __forceinline__ void fragments(const code_affine<4> &code, int, uint32_t a[2][2][4])
    {
#pragma unroll
        for (int o = 0; o < 4; o++) {
            const int t = o >> 1, i = o & 1;
            output(word(code.q.v[0], o), word(code.s, o), &a[0][t][i], &a[1][t][i], &a[0][t][i + 2], &a[1][t][i + 2]);
        }
    }
    // What two neighbouring blocks add for each unit of their sums of x, in two parts.
    static __device__ __forceinline__ float bias_of(uint32_t scale_word)
    {
        return fmaf(8.0f, scale_of(scale_word), bits_float(scale_word & 0xffff0000u) * 4.0f);
    }
    static __device__ __forceinline__ void bias_parts(float x, float y, uint32_t *high, uint32_t *low)
    {
        *high = half_pack(x, y);
        *low = half_pack(x - half_float(*high & 0xffffu), y - half_float(*high >> 16));
    }
    static __device__ __forceinline__ void bias_pair(uint32_t first, uint32_t second, uint32_t *high, uint32_t *low)
    {
        bias_parts(bias_of(first), bias_of(second), high, low);
    }
    // The biases of blocks first .. first + 15, column by column, in two parts: what a block adds for each unit of its
    // sum of x.
    static __device__ __forceinline__ void bias_fragments(const lane_weights &place, int first, int blocks, int l,
                                                          uint32_t a[2][2][4])
    {
        float bias[4][4]; // [k][output]
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int block = first + 2 * l + (k & 1) + (k >> 1) * 8;
            const bool live = block < blocks;
            const uint4 s = load_kept16(place.scale + (int64_t)((live ? block : first) >> place.group_shift) * 64);
#pragma unroll
            for (int o = 0; o < 4; o++)
                bias[k][o] = live ? bias_of(word(s, o)) : 0.0f;
        }
#pragma unroll
        for (int o = 0; o < 4; o++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                bias_parts(bias[2 * c][o], bias[2 * c + 1][o], &a[0][o >> 1][(o & 1) + 2 * c],
                           &a[1][o >> 1][(o & 1) + 2 * c]);
    }
};

// Whether the build is for cards with these products alone, so that no other way for CODE is compiled.
#if defined(ONLY_WGMMA)
template <class CODE> struct wide_only {
    static constexpr bool VALUE = wide_code<CODE>::AVAILABLE;
};
#else
template <class CODE> struct wide_only {
    static constexpr bool VALUE = false;
};
#endif

// Whether a weight has a form here.
static inline bool wide_encoding(const struct weight *w)
{
    switch (w->encoding) {
    case ENC_NVFP4:
    case ENC_BF16:
    case ENC_FP8:
    case ENC_FP8_BLOCK:
    case ENC_MXFP8:
        return true;
    default:
        return w->encoding == ENC_AFFINE && w->bits == 4;
    }
}

#endif
