// SPDX-License-Identifier: Apache-2.0
//
// Generated weights in the pack's layout, made on the device: every encoding gets codes and scales that decode to small finite
// numbers of about 1/sqrt(k), so that the real shapes can be timed without a checkpoint, a disk or host memory.
// Invariant: the bytes depend on the entry and the position in it only.

#include "runtime/pack.h"
#include <cuda_runtime.h>
#include <math.h>
#include <string.h>

// What a 32-bit word of a region holds.
enum word_kind {
    WORD_BF16,
    WORD_F16,
    WORD_F32,
    WORD_CODES,
    WORD_E4M3,
    WORD_AFFINE_SCALE,
    WORD_INT4_SCALE,
    WORD_NVFP4_SCALE,
    WORD_BYTES
};

__device__ static uint32_t mixed(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(x >> 32);
}

// A number of random sign with magnitude in [size / 2, size), as fp32 bits.
__device__ static uint32_t number(uint32_t random, float size)
{
    float f = size * (0.5f + (float)(random & 0xffff) * (0.5f / 65536.0f));
    return __float_as_uint(random >> 31 ? -f : f);
}

__device__ static uint32_t f16_bits(uint32_t f32)
{
    uint32_t exponent = f32 >> 23 & 255;
    return exponent < 113 ? 0 : (f32 >> 16 & 0x8000) | (exponent - 112) << 10 | (f32 >> 13 & 1023);
}

__device__ static uint32_t word(int kind, uint32_t random, float size, uint32_t extra)
{
    uint32_t a = number(random, size), b = number(random * 2654435761u + 1, size);
    switch (kind) {
    case WORD_BF16:
        return a >> 16 | (b & 0xffff0000u);
    case WORD_F16:
        return f16_bits(a) | f16_bits(b) << 16;
    case WORD_F32:
        return a;
    case WORD_E4M3: // below 2, never NaN
        return random & 0xbfbfbfbfu;
    case WORD_AFFINE_SCALE: { // scale, and the bias that centres the codes
        float scale = __uint_as_float(a & 0x7fff0000u);
        return __float_as_uint(scale) >> 16 | (__float_as_uint(-scale * (float)extra * 0.5f) & 0xffff0000u);
    }
    case WORD_INT4_SCALE: // the low 5 bits hold the zero point
        return (a & 0x7fffffe0u) | 8;
    case WORD_NVFP4_SCALE: // 1 to 1.875: 8 * (exponent + 10) + mantissa
        return 0x50505050u + (random & 0x07070707u);
    case WORD_BYTES:
        return extra * 0x01010101u;
    default:
        return random;
    }
}

__global__ static void fill(uint32_t *words, int64_t count, int kind, float size, uint32_t extra, uint64_t seed)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        words[i] = word(kind, mixed(seed + (uint64_t)i), size, extra);
}

static cudaError_t region(cudaStream_t stream, uint8_t *at, int64_t bytes, int kind, float size, uint32_t extra,
                          uint64_t seed)
{
    if (bytes >= 4)
        fill<<<1024, 256, 0, stream>>>((uint32_t *)at, bytes / 4, kind, size, extra, seed);
    return cudaGetLastError();
}

static int code_kind(const struct pack_entry *e)
{
    switch (e->encoding) {
    case ENC_F32:
        return WORD_F32;
    case ENC_BF16:
        return WORD_BF16;
    case ENC_F16:
        return WORD_F16;
    case ENC_MXFP8:
    case ENC_FP8_BLOCK:
    case ENC_FP8:
        return WORD_E4M3;
    default:
        return WORD_CODES;
    }
}

// Scales of one expert; `size` is what a weight should be.
static cudaError_t scales(cudaStream_t stream, uint8_t *at, int64_t bytes, const struct pack_entry *e, float size,
                          uint64_t seed)
{
    float levels = (float)(1 << (e->bits > 0 ? e->bits : 4));
    switch (e->encoding) {
    case ENC_AFFINE:
        return region(stream, at, bytes, WORD_AFFINE_SCALE, 3.46f * size / levels, (1u << e->bits) - 1, seed);
    case ENC_INT4:
        return region(stream, at, bytes, WORD_INT4_SCALE, 3.46f * size / levels, 0, seed);
    case ENC_NVFP4:
        return region(stream, at, bytes, WORD_NVFP4_SCALE, 0, 0, seed);
    case ENC_MXFP8:
        return region(stream, at, bytes, WORD_BYTES, 0, (uint32_t)(127 + (int)lrintf(log2f(size))), seed);
    case ENC_FP8_BLOCK:
        return region(stream, at, bytes, WORD_F32, size, 0, seed);
    default:
        return cudaSuccess;
    }
}

// Fills one resident entry; base: the section on the device.
extern "C" cudaError_t cuda_synthetic(cudaStream_t stream, uint8_t *base, const struct pack_entry *e)
{
    int64_t experts = e->experts > 0 ? e->experts : 1, past = e->data_offset + e->bytes;
    int64_t end =
        e->global_offset >= 0 && e->global_offset > e->data_offset && e->global_offset < past ? e->global_offset : past;
    float size = e->layout == PACK_PANEL ? 1.0f / sqrtf((float)e->k) : 1.0f;
    bool plain = e->encoding == ENC_F32 || e->encoding == ENC_BF16 || e->encoding == ENC_F16;
    // rows hold their scales as published: words that are fine as codes and as scales
    int rows_kind = e->layout != PACK_ROWS || plain ? code_kind(e) : e->encoding == ENC_AFFINE ? WORD_BF16 : WORD_E4M3;
    cudaError_t status = cudaSuccess;
    for (int64_t x = 0; x < experts && status == cudaSuccess; x++) {
        int64_t data = e->data_offset + x * e->data_stride;
        int64_t data_end = e->scale_offset >= 0 ? e->scale_offset + x * e->scale_stride
                           : e->experts > 0     ? data + e->data_stride
                                                : end;
        int64_t scale_end = e->experts > 0 ? data + e->data_stride : end;
        uint64_t seed = ((uint64_t)e->data_offset << 8) + (uint64_t)x * 0x9e3779b97f4a7c15ull;
        status = region(stream, base + data, data_end - data, rows_kind, size, 0, seed);
        if (status == cudaSuccess && e->scale_offset >= 0)
            status = scales(stream, base + data_end, scale_end - data_end, e, size, seed + 1);
    }
    if (status == cudaSuccess && e->global_offset >= 0) {
        float global = e->layout == PACK_ROWS ? 1.0f : size / (e->encoding == ENC_NVFP4 ? 4.0f : 1.0f);
        uint32_t bits;
        memcpy(&bits, &global, sizeof bits);
        for (int64_t x = 0; x < experts && status == cudaSuccess; x++)
            status =
                cudaMemcpyAsync(base + e->global_offset + 4 * x, &bits, sizeof bits, cudaMemcpyHostToDevice, stream);
    }
    return status;
}
