// SPDX-License-Identifier: Apache-2.0
//
// The gated norm of prompt rows and the product of what it leaves, which is stored as the product wants it prepared and not as rows.
//
// Invariant: the bits of gated_norm and linear one after the other; see gated_norm.cuh and prepared.cuh.

#include "kernels/cuda/wide.cuh"

#include "kernels/cuda/gated_norm.cuh"
#include "kernels/cuda/prepared.cuh"

enum {
    GATED_DIM = 4 * WARP,
    GATED_MOST = 512
}; // dims of a warp's turn, and those that gated_norm gives a warp at most

// A warp a (row, head).
__global__ void __launch_bounds__(GATED_HEADS *WARP)
    gated_rows_kernel(const __grid_constant__ struct gated_norm_args a, int32_t parts,
                      const __grid_constant__ wide_rows to)
{
    const int32_t lane = threadIdx.x % WARP, head = (int32_t)(blockIdx.x * GATED_HEADS + threadIdx.x / WARP);
    const int64_t r = blockIdx.y, at = (int64_t)head * a.dim;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || head >= a.heads)
        return;
    const float *z = a.z + r * a.ldz + at, *w = a.w + (a.norm_after ? at : 0);
    const gated_first<4> first = gated_norm_take<4>(z, w, a.dim, lane);
    const auto store = [&](int32_t i, const vec<4> &v) {
        const int32_t k = (int32_t)at + i;
        const struct prepared_place place = prepared_place_of(k);
        put_prepared(to.data + wide_at(to, r, place.piece) * 16 + place.byte, to.part_bytes, parts, k, v);
    };
    gated_norm_head<4, false, false>(&a, a.x + r * a.ldx + at, z, w, store, first, lane, WARP, NULL);
}

// args: of gated_norm and linear.
extern "C" cudaError_t cuda_gated_norm_linear(cudaStream_t stream, const void *const *args, int rows)
{
    const struct gated_norm_args *norm = (const struct gated_norm_args *)args[0];
    const struct linear_args *linear = (const struct linear_args *)args[1];
    const int all = (1 << linear->parts) - 1;
    int parts = 1;
    if (linear->row_class != CLASS_PROMPT || linear->row_multiple > 1 || linear->k != norm->heads * norm->dim ||
        norm->dim % GATED_DIM || norm->dim > GATED_MOST || !vec_fits(norm->x, norm->ldx, norm->dim) ||
        !vec_fits(norm->z, norm->ldz, norm->dim) || !vec_fits(norm->w, 0, norm->dim))
        return cudaErrorNotSupported;
    for (int i = 0; i < linear->parts; i++) {
        const struct weight *w = &linear->part[i].w;
        if (!wide_available(w) || wide_half(w))
            return cudaErrorNotSupported;
        parts = prompt_parts(w) == 2 ? 2 : parts;
    }
    const dim3 grid(blocks_for(norm->heads, GATED_HEADS), (unsigned)rows);
    const cudaError_t error = launch(stream, grid, GATED_HEADS * WARP, 0, gated_rows_kernel, *norm, (int32_t)parts,
                                     linear_wide_rows(linear, rows, all));
    return error == cudaSuccess ? linear_wide(stream, linear, rows, all, true) : error;
}
