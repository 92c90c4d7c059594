// SPDX-License-Identifier: Apache-2.0
//
// Normalisations, rotary embedding, and the element-wise operations around them.
//
// Invariant: a block, or a warp, has one row (or a group or head of it); nothing is read that belongs to another row.

#include "kernels/cuda/head_norm.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

// ---- norm: a block a (group, row) ------------------------------------------------------------------------------------------

enum { NORM_KEEP = 2 }; // vectors a thread keeps in registers between the sum and the product

template <int W> __global__ void __launch_bounds__(1024) norm_kernel(const __grid_constant__ struct norm_args a)
{
    __shared__ float space[WARP];
    const int64_t r = blockIdx.y, at = (int64_t)blockIdx.x * a.dim;
    const int32_t step = (int32_t)blockDim.x * W, first = (int32_t)threadIdx.x * W;
    const float *w = a.w + at;
    vec<W> weight[NORM_KEEP], kept[NORM_KEEP];
#pragma unroll
    for (int n = 0; n < NORM_KEEP; n++)
        if (first + n * step < a.dim)
            weight[n] = vec_load<W>(w + first + n * step);
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows)
        return;
    const float *x = a.x + r * a.ldx + at;
    float *y = a.y + r * a.ldy + at, sum = 0;
#pragma unroll
    for (int n = 0; n < NORM_KEEP; n++)
        if (first + n * step < a.dim) {
            kept[n] = vec_load<W>(x + first + n * step);
#pragma unroll
            for (int j = 0; j < W; j++)
                sum = fmaf(kept[n].v[j], kept[n].v[j], sum);
        }
    for (int32_t i = first + NORM_KEEP * step; i < a.dim; i += step) {
        const vec<W> t = vec_load<W>(x + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum = fmaf(t.v[j], t.v[j], sum);
    }
    const float factor = 1.0f / sqrtf(block_sum(sum, space) / (float)a.dim + a.eps);
#pragma unroll
    for (int n = 0; n < NORM_KEEP; n++)
        if (first + n * step < a.dim) {
#pragma unroll
            for (int j = 0; j < W; j++)
                kept[n].v[j] = f_mul(f_mul(kept[n].v[j], factor), weight[n].v[j]);
            vec_store<W>(y + first + n * step, kept[n]);
        }
    for (int32_t i = first + NORM_KEEP * step; i < a.dim; i += step) {
        vec<W> t = vec_load<W>(x + i);
        const vec<W> scale = vec_load<W>(w + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            t.v[j] = f_mul(f_mul(t.v[j], factor), scale.v[j]);
        vec_store<W>(y + i, t);
    }
}

extern "C" cudaError_t cuda_norm(cudaStream_t stream, const struct norm_args *a, int rows)
{
    const bool wide = vec_fits(a->x, a->ldx, a->dim) && vec_fits(a->y, a->ldy, a->dim) && vec_fits(a->w, 0, a->dim);
    const dim3 grid((unsigned)a->groups, (unsigned)rows);
    if (wide)
        return launch(stream, grid, threads_for(a->dim, 4, 1024), 0, norm_kernel<4>, *a);
    return launch(stream, grid, threads_for(a->dim, 1, 1024), 0, norm_kernel<1>, *a);
}

// ---- head_norm: a warp a (row, head) -----------------------------------------------------------------------------------------

enum { HEAD_WARPS = 4 }; // heads a block

__global__ void __launch_bounds__(HEAD_WARPS *WARP) head_norm_kernel(const __grid_constant__ struct head_norm_args a)
{
    extern __shared__ float heads[]; // [HEAD_WARPS][dim]
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = blockIdx.x * HEAD_WARPS + warp;
    const int64_t r = blockIdx.y;
    const struct head_weights weights = head_weights_of(&a, lane);
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || head >= a.heads)
        return;
    const float *x = head_of(&a, r, head);
    float *y = a.y + r * a.ldy + (int64_t)head * a.dim, *row = heads + (int64_t)warp * a.dim;
    head_norm_row(&a, x, head_numbers_of(x, a.dim, lane), weights, row, a.pass->position[r], lane);
    for (int32_t i = lane; i < a.dim; i += WARP)
        y[i] = row[i];
}

extern "C" cudaError_t cuda_head_norm(cudaStream_t stream, const struct head_norm_args *a, int rows)
{
    const dim3 grid(blocks_for(a->heads, HEAD_WARPS), (unsigned)rows);
    return launch(stream, grid, HEAD_WARPS * WARP, sizeof(float) * HEAD_WARPS * (size_t)a->dim, head_norm_kernel, *a);
}

// ---- add, glu: a thread a vector ---------------------------------------------------------------------------------------------

enum { ELEMENT_THREADS = 128 };

template <int W>
__global__ void __launch_bounds__(ELEMENT_THREADS) add_kernel(const __grid_constant__ struct add_args a)
{
    const int64_t r = blockIdx.y;
    const int32_t i = (int32_t)(blockIdx.x * ELEMENT_THREADS + threadIdx.x) * W;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || i >= a.width)
        return;
    vec<W> x = vec_load<W>(a.x + r * a.ldx + i);
    const vec<W> y = vec_load<W>(a.y + r * a.ldy + i);
#pragma unroll
    for (int j = 0; j < W; j++)
        x.v[j] = __fadd_rn(x.v[j], y.v[j]);
    vec_store<W>(a.x + r * a.ldx + i, x);
}

extern "C" cudaError_t cuda_add(cudaStream_t stream, const struct add_args *a, int rows)
{
    if (vec_fits(a->x, a->ldx, a->width) && vec_fits(a->y, a->ldy, a->width))
        return launch(stream, dim3(blocks_for(a->width, 4 * ELEMENT_THREADS), (unsigned)rows), ELEMENT_THREADS, 0,
                      add_kernel<4>, *a);
    return launch(stream, dim3(blocks_for(a->width, ELEMENT_THREADS), (unsigned)rows), ELEMENT_THREADS, 0,
                  add_kernel<1>, *a);
}

template <int W>
__global__ void __launch_bounds__(ELEMENT_THREADS) glu_kernel(const __grid_constant__ struct glu_args a)
{
    const int64_t r = blockIdx.y;
    const int32_t i = (int32_t)(blockIdx.x * ELEMENT_THREADS + threadIdx.x) * W;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || i >= a.width)
        return;
    vec<W> t = vec_load<W>(a.u + r * a.ldu + i);
    if (a.g) {
        const vec<W> gate = vec_load<W>(a.g + r * a.ldg + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            t.v[j] = f_mul(f_activate(gate.v[j], a.activation), t.v[j]);
    } else {
#pragma unroll
        for (int j = 0; j < W; j++)
            t.v[j] = f_activate(t.v[j], a.activation);
    }
    vec_store<W>(a.y + r * a.ldy + i, t);
}

extern "C" cudaError_t cuda_glu(cudaStream_t stream, const struct glu_args *a, int rows)
{
    if (vec_fits(a->g, a->ldg, a->width) && vec_fits(a->u, a->ldu, a->width) && vec_fits(a->y, a->ldy, a->width))
        return launch(stream, dim3(blocks_for(a->width, 4 * ELEMENT_THREADS), (unsigned)rows), ELEMENT_THREADS, 0,
                      glu_kernel<4>, *a);
    return launch(stream, dim3(blocks_for(a->width, ELEMENT_THREADS), (unsigned)rows), ELEMENT_THREADS, 0,
                  glu_kernel<1>, *a);
}
