// SPDX-License-Identifier: Apache-2.0
//
// Random matrices in published form with their meaning in double precision, for the tests of the matrix kernels.
// Invariant: the meaning is computed here from the published bits alone, by other code than the kernels'.

#ifndef MATRIX_SAMPLE_H
#define MATRIX_SAMPLE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/layout.h"

struct sample {
    struct weight w; // packed: data and scale are owned
    struct panel_source source;
    uint8_t *codes, *scales, *biases; // published
    float global;
    double *value;     // [n][k] with the global factor
    double *magnitude; // [n][k]: |scale * q| + |bias|
};

static uint64_t sample_state = 1;

static uint32_t sample_random(void)
{
    sample_state = sample_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(sample_state >> 32);
}

static float sample_uniform(void)
{
    return (float)sample_random() * 0x1p-31f - 1.0f;
}

static uint16_t sample_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}

static double sample_bf16_value(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return (double)f;
}

// A small floating-point format: sign, exponent bits, mantissa bits, bias.
static double sample_float(uint32_t u, int exponent_bits, int mantissa_bits, int bias)
{
    int e = (int)(u >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double m = (double)(u & ((1u << mantissa_bits) - 1u)) / (double)(1 << mantissa_bits);
    double v = e ? ldexp(1.0 + m, e - bias) : ldexp(m, 1 - bias);
    return u >> (exponent_bits + mantissa_bits) & 1 ? -v : v;
}

static void *sample_bytes(int64_t count)
{
    void *p = aligned_alloc(64, (size_t)round_up(count + 1, 64));
    memset(p, 0, (size_t)round_up(count + 1, 64));
    return p;
}

static int64_t sample_groups(const struct weight *w)
{
    switch (w->encoding) {
    case ENC_NVFP4:
        return w->k / 16;
    case ENC_MXFP8:
        return w->k / 32;
    case ENC_FP8_BLOCK:
        return (w->k + 127) / 128;
    case ENC_AFFINE:
    case ENC_INT4:
        return w->k / w->group;
    default:
        return 1;
    }
}

static void sample_scales(struct sample *s)
{
    int64_t n = s->w.n, groups = sample_groups(&s->w), count = n * groups;
    s->scales = sample_bytes(count * 4);
    s->biases = sample_bytes(count * 4 + 64);
    for (int64_t i = 0; i < count; i++) {
        uint16_t *h = (uint16_t *)s->scales, *b = (uint16_t *)s->biases;
        switch (s->w.encoding) {
        case ENC_AFFINE:
            h[i] = sample_bf16(sample_uniform() * 0.01f);
            b[i] = sample_bf16(sample_uniform() * 0.1f);
            break;
        case ENC_INT4:
            h[i] = (uint16_t)(0x2000u + sample_random() % 0x800u); // fp16
            if (i < groups * (n / 8))
                ((uint32_t *)s->biases)[i] = sample_random();
            break;
        case ENC_NVFP4:
            s->scales[i] = (uint8_t)(sample_random() % 0x7f) | (uint8_t)(sample_random() % 16 == 0 ? 0x80 : 0);
            break;
        case ENC_MXFP8:
            s->scales[i] = (uint8_t)(110 + sample_random() % 12);
            break;
        default:
            ((float *)s->scales)[i] = 0.01f + 0.01f * sample_uniform();
        }
    }
}

static void sample_codes(struct sample *s)
{
    int64_t n = s->w.n, k = s->w.k;
    s->codes = sample_bytes(n * k * 4);
    for (int64_t i = 0; i < n * k; i++)
        switch (s->w.encoding) {
        case ENC_F32:
            ((float *)s->codes)[i] = sample_uniform();
            break;
        case ENC_BF16:
            ((uint16_t *)s->codes)[i] = sample_bf16(sample_uniform());
            break;
        case ENC_F16:
            ((uint16_t *)s->codes)[i] = (uint16_t)((sample_random() & 0x8000) | sample_random() % 0x3c00);
            break;
        case ENC_MXFP8:
        case ENC_FP8:
        case ENC_FP8_BLOCK:
            s->codes[i] = (uint8_t)((sample_random() & 0x80) | sample_random() % 0x7f);
            break;
        default:
            s->codes[i] = (uint8_t)sample_random();
        }
}

static uint32_t sample_affine_code(const struct sample *s, int64_t row, int64_t k)
{
    uint32_t q = 0;
    for (int i = 0; i < s->w.bits; i++) {
        int64_t at = (row * s->w.k + k) * s->w.bits + i;
        q |= (uint32_t)(s->codes[at / 8] >> (at % 8) & 1) << i;
    }
    return q;
}

static double sample_value(const struct sample *s, int64_t row, int64_t k, double *magnitude)
{
    int64_t n = s->w.n, width = s->w.k, groups = sample_groups(&s->w), at = row * width + k;
    const uint16_t *h = (const uint16_t *)s->scales, *b = (const uint16_t *)s->biases;
    double v = 0, bias = 0, scale;
    switch (s->w.encoding) {
    case ENC_F32:
        v = (double)((const float *)s->codes)[at];
        break;
    case ENC_BF16:
        v = sample_bf16_value(((const uint16_t *)s->codes)[at]);
        break;
    case ENC_F16:
        v = sample_float(((const uint16_t *)s->codes)[at], 5, 10, 15);
        break;
    case ENC_AFFINE:
        v = sample_bf16_value(h[row * groups + k / s->w.group]) * sample_affine_code(s, row, k);
        bias = sample_bf16_value(b[row * groups + k / s->w.group]);
        break;
    case ENC_INT4: {
        int64_t g = k / s->w.group;
        uint32_t word, zeros;
        memcpy(&word, s->codes + (k / 8 * n + row) * 4, 4);
        memcpy(&zeros, s->biases + (g * (n / 8) + row / 8) * 4, 4);
        scale = sample_float(h[g * n + row], 5, 10, 15);
        v = scale * (word >> (k % 8 * 4) & 15);
        bias = -scale * (s->source.biases ? (zeros >> (row % 8 * 4) & 15) + 1 : 8);
        break;
    }
    case ENC_NVFP4:
        v = sample_float((uint32_t)s->codes[at / 2] >> (k % 2 * 4) & 15u, 2, 1, 1) *
            sample_float(s->scales[row * groups + k / 16], 4, 3, 7);
        break;
    case ENC_MXFP8:
        v = sample_float(s->codes[at], 4, 3, 7) * ldexp(1, s->scales[row * groups + k / 32] - 127);
        break;
    case ENC_FP8_BLOCK:
        v = sample_float(s->codes[at], 4, 3, 7) * (double)((const float *)s->scales)[row / 128 * groups + k / 128];
        break;
    default:
        v = sample_float(s->codes[at], 4, 3, 7);
    }
    *magnitude = (fabs(v) + fabs(bias)) * fabs((double)s->global);
    return (v + bias) * (double)s->global;
}

static void sample_publish(struct sample *s)
{
    static const uint8_t codes[ENC_COUNT] = {
        [ENC_F32] = NUMBER_F32,    [ENC_BF16] = NUMBER_BF16, [ENC_F16] = NUMBER_F16,
        [ENC_AFFINE] = NUMBER_U32, [ENC_NVFP4] = NUMBER_FP4, [ENC_MXFP8] = NUMBER_E4M3,
        [ENC_FP8] = NUMBER_E4M3,   [ENC_INT4] = NUMBER_GPTQ, [ENC_FP8_BLOCK] = NUMBER_E4M3,
    };
    static const uint8_t scales[ENC_COUNT] = {
        [ENC_AFFINE] = NUMBER_BF16, [ENC_NVFP4] = NUMBER_E4M3,    [ENC_MXFP8] = NUMBER_E8M0,
        [ENC_INT4] = NUMBER_F16,    [ENC_FP8_BLOCK] = NUMBER_F32,
    };
    struct panel_source *p = &s->source;
    p->code_type = codes[s->w.encoding];
    p->scale_type = scales[s->w.encoding];
    p->bias_type = NUMBER_BF16;
    p->codes = s->codes;
    p->scales = s->scales;
    bool zeros = s->w.encoding == ENC_INT4 && s->w.n % 8 == 0;
    p->biases = s->w.encoding == ENC_AFFINE || zeros ? s->biases : NULL;
    p->zero_offset = 1;
    p->rows = s->w.n;
}

// A packed random matrix; exits when packing fails.
static struct sample sample_make(int encoding, int bits, int group, int n, int k)
{
    struct sample s = {.w = {.encoding = encoding, .bits = bits, .group = group, .n = n, .k = k}, .global = 1};
    sample_scales(&s);
    sample_codes(&s);
    sample_publish(&s);
    if (encoding == ENC_NVFP4 || encoding == ENC_FP8)
        s.global = 0.0123f;
    s.value = sample_bytes((int64_t)n * k * 8);
    s.magnitude = sample_bytes((int64_t)n * k * 8);
    for (int64_t i = 0; i < (int64_t)n * k; i++)
        s.value[i] = sample_value(&s, i / k, i % k, &s.magnitude[i]);
    uint8_t *data = sample_bytes(panel_data_bytes(&s.w)), *scale = sample_bytes(panel_scale_bytes(&s.w));
    struct error error = {.text = {0}};
    if (!panel_pack(&s.w, &s.source, data, scale, &error)) {
        fprintf(stderr, "cannot pack: %s\n", error.text);
        exit(1);
    }
    s.w.data = data;
    s.w.scale = scale;
    return s;
}

static void sample_free(struct sample *s)
{
    free((void *)(uintptr_t)s->w.data);
    free((void *)(uintptr_t)s->w.scale);
    free(s->codes);
    free(s->scales);
    free(s->biases);
    free(s->value);
    free(s->magnitude);
}

#endif
