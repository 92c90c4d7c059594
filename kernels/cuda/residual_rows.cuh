// SPDX-License-Identifier: Apache-2.0
//
// What stands between a block of a prompt and the gates of the next one: the sum of the experts, the injection into the streams,
// and their norm, as rows or as rows prepared for products of warpgroups.

#ifndef RESIDUAL_ROWS_CUH
#define RESIDUAL_ROWS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cpu/ops.h"

enum { ROWS_STREAMS = 4 }; // streams that it is made for

// Where rows lie as bf16 parts in the order of fragments (wide_rows of wide.cuh, without scales), and where the norms' factors
// go: [rows][ROWS_STREAMS].
struct residual_prepared {
    unsigned char *data;
    int64_t part_bytes;
    int32_t blocks, parts;
    float *factors;
};

// moe_sum (sum NULL: none), hc_inject and norm of prompt rows in one pass over them. to NULL: the normed rows go to norm->y;
// else they go there, as bf16 parts, and norm->y is left alone. Whether y of the sum is written is not promised.
// cudaErrorNotSupported, and nothing done, for shapes that it is not made for.
cudaError_t residual_rows(cudaStream_t stream, const struct moe_sum_args *sum, const struct hc_inject_args *inject,
                          const struct norm_args *norm, const struct residual_prepared *to, int rows);

#endif
