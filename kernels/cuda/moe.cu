// SPDX-License-Identifier: Apache-2.0
//
// The router of a mixture of experts, and the sum of its experts' outputs.
//
// Invariant: outputs are summed in slot order; how experts are chosen is in route.cuh.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mixture.cuh"
#include "kernels/cuda/route.cuh"

// ---- route: a block a row ----------------------------------------------------------------------------------------------------

template <bool SIGMOID>
__global__ void __launch_bounds__(ROUTE_THREADS) route_kernel(const __grid_constant__ struct route_args a)
{
    __shared__ route_space space;
    pdl_wait();
    pdl_trigger();
    if ((int32_t)blockIdx.x < a.pass->rows)
        route_row<SIGMOID>(a, blockIdx.x, &space, []() { __syncthreads(); });
}

extern "C" cudaError_t cuda_route(cudaStream_t stream, const struct route_args *a, int rows)
{
    if (!route_fits(a))
        return cudaErrorInvalidValue;
    if (a->sigmoid)
        return launch(stream, (unsigned)rows, ROUTE_THREADS, 0, route_kernel<true>, *a);
    return launch(stream, (unsigned)rows, ROUTE_THREADS, 0, route_kernel<false>, *a);
}

// ---- moe_sum: a thread a vector ------------------------------------------------------------------------------------------------

enum { MOE_THREADS = 64 };

template <int W>
__global__ void __launch_bounds__(MOE_THREADS) moe_sum_kernel(const __grid_constant__ struct moe_sum_args a)
{
    const int64_t r = blockIdx.y;
    const int32_t i = (int32_t)(blockIdx.x * MOE_THREADS + threadIdx.x) * W;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || i >= a.width)
        return;
    vec_store<W>(a.y + r * a.ldy + i, moe_sum_at<W>(a, r, i));
}

extern "C" cudaError_t cuda_moe_sum(cudaStream_t stream, const struct moe_sum_args *a, int rows)
{
    const bool wide = moe_sum_wide(a);
    const dim3 grid(blocks_for(a->width, (wide ? 4 : 1) * MOE_THREADS), (unsigned)rows);
    if (wide)
        return launch(stream, grid, MOE_THREADS, 0, moe_sum_kernel<4>, *a);
    return launch(stream, grid, MOE_THREADS, 0, moe_sum_kernel<1>, *a);
}
