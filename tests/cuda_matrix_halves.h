// SPDX-License-Identifier: Apache-2.0
//
// What products of E4M3 codes begin with (kernels/cuda/halves.cuh): every code is its number in f16, by the conversion of the card and by
// what stands in for it, and rows are held as two halves of a group within the bound that the header states.
//
// Rows that are hard to hold are those of integers.
//
// Red controls: numbers without their low halves, and codes as those of their neighbours, are found.

#ifndef CUDA_MATRIX_HALVES_H
#define CUDA_MATRIX_HALVES_H

#include "tests/cuda_matrix_integers.h"

extern "C" {
#include "kernels/cpu/number.h"
}

enum { HALVES_LANES = 32, HALVES_NUMBERS = 8 * HALVES_LANES };

struct halves_seen {
    uint32_t codes[2][256]; // f16, by half_codes() and by half_codes_moved()
    uint32_t high[2][HALVES_NUMBERS], low[2][HALVES_NUMBERS];
    float factor[2][HALVES_LANES]; // [groups of four lanes, of eight]
};

template <int LANES> static __device__ void halves_of(const float *v, struct halves_seen *seen)
{
    const int lane = threadIdx.x, which = LANES == 8;
    uint4 high, low;
    half_eight<LANES>(v + 8 * lane, lane & 1, &high, &low, &seen->factor[which][lane]);
    for (int i = 0; i < 4; i++) {
        const int at = 8 * lane + (2 * i + 4 * (lane & 1)) % 8;
        seen->high[which][at] = word(high, i) & 0xffffu;
        seen->high[which][at + 1] = word(high, i) >> 16;
        seen->low[which][at] = word(low, i) & 0xffffu;
        seen->low[which][at + 1] = word(low, i) >> 16;
    }
}

// A warp.
static __global__ void halves_kernel(const float *v, struct halves_seen *seen)
{
    for (uint32_t i = 4 * threadIdx.x; i < 256; i += 4 * HALVES_LANES) {
        uint32_t low, high;
        half_codes(i | (i + 1) << 8 | (i + 2) << 16 | (i + 3) << 24, &low, &high);
        seen->codes[0][i] = low & 0xffffu;
        seen->codes[0][i + 1] = low >> 16;
        seen->codes[0][i + 2] = high & 0xffffu;
        seen->codes[0][i + 3] = high >> 16;
        for (uint32_t j = i; j < i + 4; j += 2) {
            const uint32_t moved = half_codes_moved(j << 8 | (j + 1) << 24);
            seen->codes[1][j] = moved & 0xffffu;
            seen->codes[1][j + 1] = moved >> 16;
        }
    }
    halves_of<4>(v, seen);
    halves_of<8>(v, seen);
}

// Whether f16 numbers are those of the codes that lie `off` behind theirs.
static bool halves_codes_right(const uint32_t *numbers, uint32_t off)
{
    bool right = true;
    for (uint32_t i = 0; i < 256; i++) {
        const float want = number_e4m3((uint8_t)(i + off)), is = number_f16((uint16_t)numbers[i]);
        right = right && (want == want ? memcmp(&want, &is, 4) == 0 : is != is);
    }
    return right;
}

// Largest error of the numbers held, over its bound: 2^-22 of the number, or 2^-25 where its group is scaled, which the factor undoes.
// Groups that are not finite must have a factor that is none. parts: 2, or 1 without the low halves.
static double halves_error(const float *v, const struct halves_seen *seen, int which, int parts)
{
    double worst = 0;
    for (int i = 0; i < HALVES_NUMBERS; i++) {
        const int lanes = which ? 8 : 4, from = i / (8 * lanes) * 8 * lanes;
        const double factor = (double)seen->factor[which][i / 8];
        bool finite = true;
        for (int j = from; j < from + 8 * lanes; j++)
            finite = finite && isfinite(v[j]);
        if (!finite) {
            worst = factor == factor ? INFINITY : worst;
            continue;
        }
        const double is = (double)number_f16((uint16_t)seen->high[which][i]) +
                          (parts == 2 ? (double)number_f16((uint16_t)seen->low[which][i]) : 0);
        const double error = fabs((double)v[i] - is * factor) / fmax(fabs((double)v[i]) * 0x1p-22, 0x1p-25 * factor);
        worst = !(error <= worst) ? error : worst;
    }
    return worst;
}

static void test_halves(void)
{
    static struct halves_seen seen;
    static float v[HALVES_NUMBERS];
    // Each 64 numbers of their own kind: usual ones, of all sizes down to subnormal ones, the largest, then zeros beside a group that is
    // not finite.
    for (int i = 0; i < 64; i++) {
        v[i] = matrix_uniform() * (i % 61 == 0 ? 30.0f : 1.0f);
        v[64 + i] = ldexpf(matrix_uniform(), i < 32 ? -i : -110 - i / 2);
        v[128 + i] = ldexpf(matrix_uniform(), 127 - i / 4);
        v[192 + i] = i < 32 ? 0 : i == 50 ? INFINITY : i == 51 ? NAN : matrix_uniform();
    }
    const float *dv = (const float *)put(v, sizeof v);
    struct halves_seen *to = (struct halves_seen *)put(NULL, sizeof seen);
    must(launch(0, dim3(1), dim3(HALVES_LANES), 0, halves_kernel, dv, to), "halves");
    rig_finish("halves");
    rig_copy(&seen, to, sizeof seen);
    ok(halves_codes_right(seen.codes[0], 0), "all E4M3 codes are their numbers in f16");
    ok(halves_codes_right(seen.codes[1], 0), "all E4M3 codes are their numbers in f16 where no card converts them");
    ok(!halves_codes_right(seen.codes[0], 1), "codes of their neighbours are found");
    for (int which = 0; which < 2; which++) {
        const double error = halves_error(v, &seen, which, 2);
        ok(error <= 1, "x as halves of groups of %d: within the bound (%.3g of it)", which ? 64 : 32, error);
        ok(!(halves_error(v, &seen, which, 1) <= 1), "x as halves of groups of %d: lost low ones are found",
           which ? 64 : 32);
    }
    put_back(0);
    test_hard(ENC_MXFP8, 0, 0, 40, 192);
    test_hard(ENC_FP8_BLOCK, 0, 0, 140, 192);
    test_hard(ENC_FP8, 0, 0, 20, 96);
}

#endif
