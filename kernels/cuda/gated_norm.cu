// SPDX-License-Identifier: Apache-2.0
//
// gated_norm: a warp a (row, head), or a block where heads are wide.
//
// Invariant: see gated_norm.cuh.

#include "kernels/cuda/gated_norm.cuh"
#include "kernels/cuda/launch.cuh"

template <int W, bool BLOCK>
__global__ void __launch_bounds__(512) gated_norm_kernel(const __grid_constant__ struct gated_norm_args a)
{
    __shared__ float space[WARP];
    const int32_t threads = BLOCK ? (int32_t)blockDim.x : WARP, thread = (int32_t)threadIdx.x % threads;
    const int32_t head = BLOCK ? (int32_t)blockIdx.x : (int32_t)(blockIdx.x * GATED_HEADS + threadIdx.x / WARP);
    const int64_t r = blockIdx.y, at = (int64_t)head * a.dim;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || head >= a.heads)
        return;
    const float *z = a.z + r * a.ldz + at, *w = a.w + (a.norm_after ? at : 0);
    const gated_first<W> first = gated_norm_take<W>(z, w, a.dim, thread);
    float *y = a.y + r * a.ldy + at;
    gated_norm_head<W, BLOCK, false>(
        &a, a.x + r * a.ldx + at, z, w, [&](int32_t i, const vec<W> &v) { vec_store<W>(y + i, v); }, first, thread,
        threads, space);
}

extern "C" cudaError_t cuda_gated_norm(cudaStream_t stream, const struct gated_norm_args *a, int rows)
{
    const bool wide = vec_fits(a->x, a->ldx, a->dim) && vec_fits(a->y, a->ldy, a->dim) &&
                      vec_fits(a->z, a->ldz, a->dim) && vec_fits(a->w, 0, a->dim);
    if (a->dim > 512) {
        const dim3 grid((unsigned)a->heads, (unsigned)rows);
        if (wide)
            return launch(stream, grid, threads_for(a->dim, 4, 512), 0, gated_norm_kernel<4, true>, *a);
        return launch(stream, grid, threads_for(a->dim, 4, 512), 0, gated_norm_kernel<1, true>, *a);
    }
    const dim3 grid(blocks_for(a->heads, GATED_HEADS), (unsigned)rows);
    if (wide)
        return launch(stream, grid, GATED_HEADS * WARP, 0, gated_norm_kernel<4, false>, *a);
    return launch(stream, grid, GATED_HEADS * WARP, 0, gated_norm_kernel<1, false>, *a);
}
