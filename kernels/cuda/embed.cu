// SPDX-License-Identifier: Apache-2.0
//
// embed_args: a row of the table for every live row; a thread has one number and its copies.
// Invariant: a number has the bits that the CPU target decodes, in the row layout and in the panel layout.

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/rowcode.cuh"

// Where the code (o, k) of a panel of byte codes lies.
__device__ __forceinline__ int byte_place(int o, int k)
{
    return k / 4 * 64 + o / 4 * 16 + k % 4 / 2 * 8 + o % 4 * 2 + k % 2;
}

// Code (o, k) of a panel of `bits`-bit codes.
__device__ __forceinline__ uint32_t panel_code(const uint8_t *panel, int bits, int o, int k)
{
    const uint8_t *block = panel + (int64_t)(k / 32) * bits * 64;
    int r = k % 32, b = o * 4 + r % 4, at = 0;
    if (bits == 8)
        return block[r / 4 * 64 + b];
    uint32_t q = 0;
    if (bits & 4) {
        q = block[r / 8 * 64 + b] >> (r % 8 / 4 * 4) & 15u;
        block += 256;
        at = 4;
    }
    if (bits & 2) {
        q |= (uint32_t)(block[r / 16 * 64 + b] >> (r % 16 / 4 * 2) & 3) << at;
        block += 128;
        at += 2;
    }
    if (bits & 1)
        q |= (uint32_t)(block[b] >> (r / 4) & 1) << at;
    return q;
}

__device__ __forceinline__ uint32_t word_at(const uint8_t *p, int i)
{
    return *(const uint32_t *)(p + (int64_t)i * 4);
}

// Number k of row `row` of a packed matrix.
__device__ __forceinline__ float panel_value(const struct weight &w, int64_t row, int k, float global)
{
    int o = (int)(row % 16);
    const uint8_t *panel = w.data + row / 16 * ((w.k + 31) / 32) * code_block_bytes(w.encoding, w.bits);
    const uint8_t *scales = w.scale + row / 16 * scale_panel_bytes(&w);
    switch (w.encoding) {
    case ENC_F32:
        return bits_float(word_at(panel, k * 16 + o));
    case ENC_BF16:
        return rowcode_bf16(panel + (k / 2 * 32 + o * 2 + k % 2) * 2);
    case ENC_F16:
        return rowcode_f16(panel + (k * 16 + o) * 2);
    case ENC_AFFINE: {
        uint32_t u = word_at(scales, k / w.group * 16 + o);
        float q = (float)panel_code(panel, w.bits, o, k);
        return __fadd_rn(__fmul_rn(bits_float(u << 16), q), bits_float(u & 0xffff0000u));
    }
    case ENC_INT4: {
        uint32_t u = word_at(scales, k / w.group * 16 + o);
        float scale = bits_float(u & ~31u), bias = -__fmul_rn(scale, (float)(u & 31u));
        return __fadd_rn(__fmul_rn(scale, (float)panel_code(panel, 4, o, k)), bias);
    }
    case ENC_NVFP4: {
        float scale = bits_float((uint32_t)scales[k / 16 * 16 + o] << 20) * 0x1p117f;
        const uint32_t code = nvfp4_code(word_at(panel, k / 8 * 16 + o), k % 8);
        return __fmul_rn(__fmul_rn(rowcode_e2m1(code), scale), global);
    }
    case ENC_MXFP8:
        return __fmul_rn(
            __fmul_rn(rowcode_e4m3(panel[byte_place(o, k)]), rowcode_e8m0(scales[(int64_t)(k / 32) * 16 + o])), global);
    case ENC_FP8_BLOCK:
        return __fmul_rn(__fmul_rn(rowcode_e4m3(panel[byte_place(o, k)]), bits_float(word_at(scales, k / 128))),
                         global);
    default:
        return __fmul_rn(rowcode_e4m3(panel[byte_place(o, k)]), global);
    }
}

__global__ void __launch_bounds__(256)
    embed_kernel(const __grid_constant__ struct embed_args a, const __grid_constant__ int64_t bytes)
{
    pdl_wait();
    pdl_trigger();
    int k = blockIdx.x * 256 + threadIdx.x, r = blockIdx.y;
    if (r >= a.pass->rows || k >= a.table.k)
        return;
    const struct weight &w = a.table;
    int64_t token = a.pass->token[r];
    float global = w.global ? *w.global : 1.0f, v;
    if (a.panel)
        v = panel_value(w, token, k, global);
    else
        v = rowcode_value(w.encoding, w.bits, w.group, w.k, w.data + token * bytes, global, k);
    float *y = a.y + (int64_t)r * a.ldy + k;
    for (int i = 0; i < a.copies; i++)
        y[(int64_t)i * w.k] = v;
}

// Bytes of a row of the table in the row layout.
static int64_t table_row_bytes(const struct weight *w)
{
    int64_t k = w->k;
    switch (w->encoding) {
    case ENC_F32:
        return k * 4;
    case ENC_BF16:
    case ENC_F16:
        return k * 2;
    case ENC_AFFINE:
        return k * w->bits / 8 + k / w->group * 4;
    case ENC_NVFP4:
        return k / 2 + k / 16;
    case ENC_MXFP8:
        return k + k / 32;
    default:
        return k;
    }
}

extern "C" cudaError_t cuda_embed(cudaStream_t stream, const struct embed_args *args, int rows)
{
    return launch(stream, dim3((args->table.k + 255) / 256, rows), dim3(256), 0, embed_kernel, *args,
                  table_row_bytes(&args->table));
}
