// SPDX-License-Identifier: Apache-2.0
//
// Prompt rows' products around the streams of hyper-connections.

#ifndef LINEAR_STREAMS_CUH
#define LINEAR_STREAMS_CUH

#include <cuda_runtime.h>

#include "kernels/cpu/ops.h"

// What a mix takes in place of normed rows: the streams, the norm's weights, and its factor for each row and stream.
struct mix_streams {
    const float *rows, *w, *factors;
};

// A product and the mix of streams behind it, prompt class; the product's y is left alone. streams NULL: mix->xn has the rows.
// cudaErrorNotSupported, and nothing done, where it has no kernel.
cudaError_t linear_mix_prompt(cudaStream_t stream, const struct linear_args *linear, const struct hc_mix_args *mix,
                              const struct mix_streams *streams, int rows);

// From one block's output to the next block's input, prompt class. args: of hc_inject, norm, the gates' two products and hc_mix. sum:
// of the experts before, or NULL. cudaErrorNotSupported, and nothing done, where it has no kernel.
cudaError_t linear_streams_prompt(cudaStream_t stream, const struct moe_sum_args *sum, const void *const *args,
                                  int rows);

#endif
