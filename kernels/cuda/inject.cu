// SPDX-License-Identifier: Apache-2.0
//
// Steps around a residual in one launch: the sum of the experts before it, a hyper-connection's injection or a plain addition, and
// the norm behind it.
//
// Invariant: the same operations in the same order as moe_sum, hc_inject or add, and norm one after the other; a block has
// one stream of one row. A plain residual is one stream with the factor 1, which a product and sum of one rounding leaves alone.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mixture.cuh"

enum {
    INJECT_KEEP = 2,
    SUM_ROWS = 64
}; // vectors a thread; rows up to which each stream's block may sum the experts anew

struct inject_step {
    struct moe_sum_args sum;
    struct hc_inject_args inject;
    struct norm_args norm;
};

template <bool SUM, bool NORM>
__global__ void __launch_bounds__(1024) inject_kernel(const __grid_constant__ struct inject_step a)
{
    __shared__ float space[WARP];
    const int64_t r = blockIdx.y, c = blockIdx.x, at = c * a.inject.dim;
    const int32_t dim = a.inject.dim, step = (int32_t)blockDim.x * 4, first = (int32_t)threadIdx.x * 4;
    vec<4> weight[INJECT_KEEP], kept[INJECT_KEEP];
#pragma unroll
    for (int n = 0; n < INJECT_KEEP; n++)
        if (NORM && first + n * step < dim)
            weight[n] = vec_load<4>(a.norm.w + at + first + n * step);
    pdl_wait();
    pdl_trigger();
    const int32_t live = *(const volatile int32_t *)&a.inject.pass->rows; // looked at when all else is on its way
    const float inject = a.inject.inject ? f_mul(2.0f, f_sigmoid(a.inject.inject[r * a.inject.ldi + c])) : 1.0f;
    float *stream = a.inject.r + r * a.inject.streams * dim + at, sum = 0;
#pragma unroll
    for (int n = 0; n < INJECT_KEEP; n++)
        if (first + n * step < dim) {
            const int32_t i = first + n * step;
            kept[n] = vec_load<4>(stream + i);
            const vec<4> y = SUM ? moe_sum_at<4>(a.sum, r, i) : vec_load<4>(a.inject.y + r * dim + i);
#pragma unroll
            for (int j = 0; j < 4; j++)
                kept[n].v[j] = fmaf(inject, y.v[j], kept[n].v[j]);
            if (r < live)
                vec_store<4>(stream + i, kept[n]);
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum = fmaf(kept[n].v[j], kept[n].v[j], sum);
        }
    if (!NORM || r >= live)
        return;
    float *y = a.norm.y + r * a.norm.ldy + at;
    const float factor = 1.0f / sqrtf(block_sum(sum, space) / (float)dim + a.norm.eps);
#pragma unroll
    for (int n = 0; n < INJECT_KEEP; n++)
        if (first + n * step < dim) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                kept[n].v[j] = f_mul(f_mul(kept[n].v[j], factor), weight[n].v[j]);
            vec_store<4>(y + first + n * step, kept[n]);
        }
}

// sum, norm: NULL when the step is without.
static cudaError_t inject_launch(cudaStream_t stream, const struct moe_sum_args *sum,
                                 const struct hc_inject_args *inject, const struct norm_args *norm, int rows)
{
    const int32_t dim = inject->dim;
    const unsigned threads = threads_for(dim, 4, 1024);
    struct inject_step a = {};
    if (!vec_fits(inject->y, 0, dim) || !vec_fits(inject->r, 0, dim) || (int64_t)threads * 4 * INJECT_KEEP < dim)
        return cudaErrorNotSupported;
    if (sum && (!moe_sum_wide(sum) || sum->width != dim || (inject->streams > 1 && rows > SUM_ROWS)))
        return cudaErrorNotSupported;
    if (norm && (norm->groups != inject->streams || norm->dim != dim || norm->ldx != inject->streams * dim ||
                 !vec_fits(norm->y, norm->ldy, dim) || !vec_fits(norm->w, 0, dim)))
        return cudaErrorNotSupported;
    a.inject = *inject;
    if (sum)
        a.sum = *sum;
    if (norm)
        a.norm = *norm;
    const dim3 grid((unsigned)inject->streams, (unsigned)rows);
    if (sum && norm)
        return launch(stream, grid, threads, 0, inject_kernel<true, true>, a);
    if (sum)
        return launch(stream, grid, threads, 0, inject_kernel<true, false>, a);
    return launch(stream, grid, threads, 0, inject_kernel<false, true>, a);
}

extern "C" cudaError_t cuda_inject_norm(cudaStream_t stream, const void *const *args, int rows)
{
    return inject_launch(stream, NULL, (const struct hc_inject_args *)args[0], (const struct norm_args *)args[1], rows);
}

extern "C" cudaError_t cuda_sum_inject(cudaStream_t stream, const void *const *args, int rows)
{
    return inject_launch(stream, (const struct moe_sum_args *)args[0], (const struct hc_inject_args *)args[1], NULL,
                         rows);
}

extern "C" cudaError_t cuda_sum_inject_norm(cudaStream_t stream, const void *const *args, int rows)
{
    return inject_launch(stream, (const struct moe_sum_args *)args[0], (const struct hc_inject_args *)args[1],
                         (const struct norm_args *)args[2], rows);
}

// The same with add in place of hc_inject, where rows lie one behind the other.
static cudaError_t add_launch(cudaStream_t stream, const struct moe_sum_args *sum, const struct add_args *add,
                              const struct norm_args *norm, int rows)
{
    const struct hc_inject_args plain = {add->pass, 1, add->width, 0, NULL, add->y, add->x};
    if (add->ldx != add->width || (!sum && add->ldy != add->width))
        return cudaErrorNotSupported;
    return inject_launch(stream, sum, &plain, norm, rows);
}

extern "C" cudaError_t cuda_add_norm(cudaStream_t stream, const void *const *args, int rows)
{
    return add_launch(stream, NULL, (const struct add_args *)args[0], (const struct norm_args *)args[1], rows);
}

extern "C" cudaError_t cuda_sum_add(cudaStream_t stream, const void *const *args, int rows)
{
    return add_launch(stream, (const struct moe_sum_args *)args[0], (const struct add_args *)args[1], NULL, rows);
}

extern "C" cudaError_t cuda_sum_add_norm(cudaStream_t stream, const void *const *args, int rows)
{
    return add_launch(stream, (const struct moe_sum_args *)args[0], (const struct add_args *)args[1],
                      (const struct norm_args *)args[2], rows);
}
