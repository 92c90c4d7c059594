// SPDX-License-Identifier: Apache-2.0
//
// Steps around a residual in one launch: the sum of the experts before it, a hyper-connection's injection or a plain addition, and
// the norm behind it.
//
// Invariant: the same operations in the same order as moe_sum, hc_inject or add, and norm one after the other; a block has
// one stream of one row, or of many rows a whole one (residual_rows.cu). A plain residual is one stream with the factor 1, which a product and sum of one rounding leaves alone.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mixture.cuh"
#include "kernels/cuda/residual_rows.cuh"
#include "kernels/cuda/settle.cuh"

enum {
    INJECT_THREADS = 1024,
    INJECT_FEW = 640, // threads up to which a block's threads have registers for more slots of the sum
    INJECT_KEEP = 2,  // vectors a thread, at most
    SUM_ROWS = 64,    // rows up to which each stream's block may sum the experts anew
};

struct inject_step {
    struct moe_sum_args sum;
    struct hc_inject_args inject;
    struct norm_args norm;
};

template <bool SUM, bool NORM, int KEEP, int THREADS>
__global__ void __launch_bounds__(THREADS) inject_kernel(const __grid_constant__ struct inject_step a)
{
    __shared__ float space[WARP];
    constexpr int AHEAD = THREADS == INJECT_FEW ? MOE_MORE : MOE_AHEAD;
    const int64_t r = blockIdx.y, c = blockIdx.x, at = c * a.inject.dim;
    const int32_t dim = a.inject.dim, step = (int32_t)blockDim.x * 4, first = (int32_t)threadIdx.x * 4;
    vec<4> weight[KEEP], kept[KEEP];
#pragma unroll
    for (int n = 0; n < KEEP; n++)
        if (NORM && first + n * step < dim)
            weight[n] = vec_load<4>(a.norm.w + at + first + n * step);
    float *stream = a.inject.r + r * a.inject.streams * dim + at, sum = 0;
    float *normed = a.norm.y + r * a.norm.ldy + at;
    const float *added = a.inject.y + r * dim, *gates = a.inject.inject ? a.inject.inject + r * a.inject.ldi + c : NULL;
    settle(stream);
    settle(normed);
    settle(added);
    settle(gates);
    pdl_wait();
    pdl_trigger();
    const int32_t live = *(const volatile int32_t *)&a.inject.pass->rows; // looked at when all else is on its way
    const float gate = gates ? *gates : 0.0f;
    vec<4> y[KEEP];
#pragma unroll
    for (int n = 0; n < KEEP; n++)
        if (first + n * step < dim) { // all are under way before one is stored
            const int32_t i = first + n * step;
            kept[n] = vec_load<4>(stream + i);
            y[n] = SUM ? moe_sum_at<4, AHEAD>(a.sum, r, i) : vec_load<4>(added + i);
        }
    const float inject = gates ? f_mul(2.0f, f_sigmoid(gate)) : 1.0f;
#pragma unroll
    for (int n = 0; n < KEEP; n++)
        if (first + n * step < dim) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                kept[n].v[j] = fmaf(inject, y[n].v[j], kept[n].v[j]);
            if (r < live)
                vec_store<4>(stream + first + n * step, kept[n]);
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum = fmaf(kept[n].v[j], kept[n].v[j], sum);
        }
    if (!NORM || r >= live)
        return;
    const float factor = 1.0f / sqrtf(block_sum(sum, space) / (float)dim + a.norm.eps);
#pragma unroll
    for (int n = 0; n < KEEP; n++)
        if (first + n * step < dim) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                kept[n].v[j] = f_mul(f_mul(kept[n].v[j], factor), weight[n].v[j]);
            vec_store<4>(normed + first + n * step, kept[n]);
        }
}

template <int KEEP, int THREADS>
static cudaError_t inject_launch_of(cudaStream_t stream, const struct inject_step &a, bool sum, bool norm, dim3 grid,
                                    unsigned threads)
{
    if (sum && norm)
        return launch(stream, grid, threads, 0, inject_kernel<true, true, KEEP, THREADS>, a);
    if (sum)
        return launch(stream, grid, threads, 0, inject_kernel<true, false, KEEP, THREADS>, a);
    return launch(stream, grid, threads, 0, inject_kernel<false, true, KEEP, THREADS>, a);
}

// sum, norm: NULL when the step is without.
static cudaError_t inject_launch(cudaStream_t stream, const struct moe_sum_args *sum,
                                 const struct hc_inject_args *inject, const struct norm_args *norm, int rows)
{
    const int32_t dim = inject->dim;
    const unsigned threads = threads_for(dim, 4, INJECT_THREADS);
    struct inject_step a = {};
    if (norm && inject->streams > 1 && rows > SUM_ROWS) {
        const cudaError_t error = residual_rows(stream, sum, inject, norm, NULL, rows);
        if (error != cudaErrorNotSupported)
            return error;
    }
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
    if ((int64_t)threads * 4 < dim)
        return inject_launch_of<INJECT_KEEP, INJECT_THREADS>(stream, a, sum != NULL, norm != NULL, grid, threads);
    return threads <= INJECT_FEW
               ? inject_launch_of<1, INJECT_FEW>(stream, a, sum != NULL, norm != NULL, grid, threads)
               : inject_launch_of<1, INJECT_THREADS>(stream, a, sum != NULL, norm != NULL, grid, threads);
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
