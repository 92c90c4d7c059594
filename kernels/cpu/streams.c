// SPDX-License-Identifier: Apache-2.0
//
// Hyper-connections: the gated mix of the residual streams into one row, and the injection of a row into the streams.
//
// Invariant: streams are summed in the order of their index; an item is a row's block of elements.

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/row.h"

static int64_t hc_mix_items(const void *p)
{
    const struct hc_mix_args *a = p;
    return a->pass->rows * ceil_div(a->dim, ROW_BLOCK);
}

static void hc_mix_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct hc_mix_args *a = p;
    const int64_t blocks = ceil_div(a->dim, ROW_BLOCK), width = (int64_t)a->streams * a->dim;
    const vf share = vf_set1(1.0f / (float)a->streams);
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        int64_t r = item / blocks;
        int32_t first = (int32_t)(item % blocks) * ROW_BLOCK, last = least(first + ROW_BLOCK, a->dim);
        for (int32_t i = first; i < last; i += VEC) {
            int lanes = row_lanes(last, i);
            vf sum = vf_zero();
            for (int32_t c = 0; c < a->streams; c++) {
                int64_t at = r * width + (int64_t)c * a->dim + i;
                sum = vf_fma(vf_sigmoid(row_load(a->gate + at, lanes)), row_load(a->xn + at, lanes), sum);
            }
            row_store(a->y + r * a->dim + i, vf_mul(sum, share), lanes);
        }
    }
}

const struct kernel ISA_SYM(kernel_hc_mix) = {"hc_mix", {{hc_mix_items, hc_mix_run}}};

static int64_t hc_inject_items(const void *p)
{
    const struct hc_inject_args *a = p;
    return (int64_t)a->pass->rows * a->streams;
}

static void hc_inject_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct hc_inject_args *a = p;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        int64_t r = item / a->streams, c = item % a->streams;
        const vf factor = vf_set1(2.0f * f_sigmoid(a->inject[r * a->ldi + c]));
        const float *y = a->y + r * a->dim;
        float *out = a->r + item * a->dim;
        for (int32_t i = 0; i < a->dim; i += VEC) {
            int lanes = row_lanes(a->dim, i);
            row_store(out + i, vf_fma(factor, row_load(y + i, lanes), row_load(out + i, lanes)), lanes);
        }
    }
}

const struct kernel ISA_SYM(kernel_hc_inject) = {"hc_inject", {{hc_inject_items, hc_inject_run}}};

static int64_t streams_add_items(const void *p)
{
    const struct streams_add_args *a = p;
    return (int64_t)a->pass->rows * a->streams;
}

static void streams_add_run(const void *p, int64_t begin, int64_t end, void *scratch)
{
    const struct streams_add_args *a = p;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const float *e = a->e + item / a->streams * a->dim, *h = a->h + item * a->dim;
        for (int32_t i = 0; i < a->dim; i += VEC) {
            int lanes = row_lanes(a->dim, i);
            row_store(a->y + item * a->dim + i, vf_add(row_load(e + i, lanes), row_load(h + i, lanes)), lanes);
        }
    }
}

const struct kernel ISA_SYM(kernel_streams_add) = {"streams_add", {{streams_add_items, streams_add_run}}};
