// SPDX-License-Identifier: Apache-2.0
//
// residual_rows(), a residual's step for many rows: normed rows with the bits of its ops, and prepared rows, whose numbers are
// looked for one by one where wide.cuh says that products find them.

#ifndef CUDA_OPS_RESIDUAL_CUH
#define CUDA_OPS_RESIDUAL_CUH

#include "kernels/cuda/residual_rows.cuh"
#include "tests/cuda_ops_steps.cuh"

static cudaError_t rows_with_sum(cudaStream_t stream, const void *const *args, int rows)
{
    return residual_rows(stream, (const struct moe_sum_args *)args[0], (const struct hc_inject_args *)args[1],
                         (const struct norm_args *)args[2], NULL, rows);
}

static cudaError_t rows_without_sum(cudaStream_t stream, const void *const *args, int rows)
{
    return residual_rows(stream, NULL, (const struct hc_inject_args *)args[0], (const struct norm_args *)args[1], NULL,
                         rows);
}

static uint16_t nearest_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static float bf16_value(uint16_t bits)
{
    const uint32_t u = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

// Where number k of a prepared row lies: of 32 neighbours, in pieces of 16 bytes, piece 2 j + c has k 8 l + 4 j + c and the one two
// behind it, at word l.
static int prepared_place(int k)
{
    const int in = k % 32, l = in / 8, j = in / 4 % 2, c = in % 2, second = in / 2 % 2;
    return k / 32 * 64 + (2 * j + c) * 16 + l * 4 + second * 2;
}

// Whether the step leaves the streams, the factors and, in two parts, the normed rows that the ops leave. shift: numbers are looked
// for so many places further on.
static bool prepared_same(const struct residual_ops &ops, bool with_sum, int rows, int shift)
{
    const int width = ops.inject.streams * ops.inject.dim;
    const int64_t bytes = (int64_t)rows * width * 4, part = (int64_t)CAPACITY * width * 2;
    float *streams = (float *)malloc((size_t)bytes), *normed = (float *)malloc((size_t)bytes);
    struct residual_prepared to = {take<unsigned char>(2 * part), part, width / 32, 2, take<float>(CAPACITY * 4)};
    const struct moe_sum_args s = translated(ops.sum);
    const struct hc_inject_args i = translated(ops.inject);
    const struct norm_args n = translated(ops.norm);
    row_pass->rows = rows;
    push_all();
    if (with_sum)
        gpu(cuda_moe_sum, &ops.sum, CAPACITY);
    gpu(cuda_hc_inject, &ops.inject, CAPACITY);
    gpu(cuda_norm, &ops.norm, CAPACITY);
    memcpy(streams, pull((uint8_t *)ops.inject.r, bytes), (size_t)bytes);
    memcpy(normed, pull((uint8_t *)ops.norm.y, bytes), (size_t)bytes);
    push_all();
    const struct residual_prepared there = translated(to);
    rig_check(residual_rows(0, with_sum ? &s : NULL, &i, &n, &there, CAPACITY), "residual_rows");
    rig_check(cudaDeviceSynchronize(), "prepared rows");
    bool equal = same(pull((uint8_t *)ops.inject.r, bytes), streams, bytes);
    const unsigned char *data = pull(to.data, 2 * part);
    const float *factors = pull(to.factors, (int64_t)rows * 4);
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < width; k++) {
            const float x = normed[r * width + k];
            const uint16_t want[2] = {nearest_bf16(x), nearest_bf16(x - bf16_value(nearest_bf16(x)))};
            const unsigned char *place = data + (int64_t)r * width * 2 + prepared_place((k + shift) % width);
            const float again =
                streams[r * width + k] * factors[r * 4 + k / ops.inject.dim] * ops.norm.w[k]; // in this order
            equal = equal && memcmp(place, &want[0], 2) == 0 && memcmp(place + part, &want[1], 2) == 0 && again == x;
        }
    free(streams);
    free(normed);
    return equal;
}

static void test_residual_rows(void)
{
    static const int shapes[][2] = {{2560, 10}, {128, 3}, {4096, 1}};
    for (const int *s : shapes) {
        const int all = 4 * s[0];
        rows_begin();
        struct residual_ops ops = {};
        ops.sum = {
            row_pass,         s[1],          s[0],          1, s[0], s[0], rows_in(s[1] * s[0], 2), rows_in(s[1], 1),
            rows_in(s[0], 2), rows_in(1, 2), rows_out(s[0])};
        ops.inject = {row_pass, 4, s[0], 4, rows_in(4, 2), ops.sum.y, rows_changed(all, 2)};
        ops.norm = {row_pass, 4, s[0], all, all, 1e-6f, ops.inject.r, take_floats(all, 1), rows_out(all)};
        for (int i = 0; i < CAPACITY * s[0]; i++)
            ops.sum.y[i] = rig_float(2); // what a step without a sum injects
        for (int sum = 0; sum < 2; sum++) {
            bool equal = true;
            for (int rows = 1; rows <= MOST; rows += 8)
                equal = step_same_by(sum ? rows_with_sum : rows_without_sum, ops, sum, true, rows, false) && equal;
            ok(equal, "rows of 4 x %d%s: the bits of the ops", s[0], sum ? " with a sum" : "");
            ok(prepared_same(ops, sum, MOST, 0), "prepared rows of 4 x %d%s: the bits of the ops", s[0],
               sum ? " with a sum" : "");
        }
        ok(!step_same_by(rows_with_sum, ops, true, true, 3, true), "another epsilon in many rows is found");
        ok(!prepared_same(ops, true, 2, 1), "prepared numbers at their neighbours' places are found");
    }
    struct hc_inject_args odd = {NULL, 4, 64, 4, NULL, NULL, NULL};
    struct norm_args norm = {NULL, 4, 64, 256, 256, 1e-6f, NULL, NULL, NULL};
    struct residual_prepared to = {NULL, 0, 8, 2, NULL};
    ok(residual_rows(0, NULL, &odd, &norm, &to, 1) == cudaErrorNotSupported, "streams of 64 are not prepared");
    odd.streams = norm.groups = 2;
    ok(residual_rows(0, NULL, &odd, &norm, NULL, 1) == cudaErrorNotSupported, "two streams are left to others");
}

#endif
