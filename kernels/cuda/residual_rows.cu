// SPDX-License-Identifier: Apache-2.0
//
// residual_rows(): a block has a row, a thread four neighbouring numbers of every stream, so that the experts are summed once and
// a row's streams are read once.
//
// Invariant: the same operations in the same order as moe_sum, hc_inject and norm one after the other, whose block has as many
// threads for a stream as this one for a row.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mixture.cuh"
#include "kernels/cuda/residual_rows.cuh"
#if defined(CUDA_FIBERS) // tests/cuda_fake
#include "kernels/cuda/mma.cuh"
#define pair_pack mma_pair
#else
#include "kernels/cuda/device.cuh"
#endif

enum { ROWS_THREADS = 1024, ROWS_FEW = 640, STREAMS = ROWS_STREAMS };

struct row_step {
    struct moe_sum_args sum;
    struct hc_inject_args inject;
    struct norm_args norm;
    struct residual_prepared to;
};

// Sums over the block, by whole warps, each as block_sum() makes it. space: as many floats for every warp as there are sums.
DEVICE void block_sums(float (&x)[STREAMS], float (*space)[WARP])
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
#pragma unroll
    for (int c = 0; c < STREAMS; c++) {
        x[c] = warp_sum<WARP>(x[c]);
        if (lane == 0)
            space[c][warp] = x[c];
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < STREAMS; c++)
        x[c] = warp_sum<WARP>(lane < warps ? space[c][lane] : 0.0f);
}

// Stores the thread's numbers k .. k + 3 of a prepared row, k = 4 thread of some stream. A piece of 16 bytes has a pair of each of
// four neighbouring eights of k: neighbours but one change words, so that each has two of a piece.
DEVICE void put_prepared(const struct residual_prepared &to, unsigned char *row, int32_t k, vec<4> v)
{
    const int eight = k / 8 % 4, odd = eight & 1;
    unsigned char *place = row + k / 32 * 64 + (k / 4 % 2 * 2 + odd) * 16 + (eight - odd) * 4;
    for (int p = 0; p < to.parts; p++) {
        const uint32_t w[2] = {pair_pack(v.v[0], v.v[2]), pair_pack(v.v[1], v.v[3])};
        const uint32_t got = __shfl_xor_sync(WHOLE_WARP, odd ? w[0] : w[1], 2);
        *(uint2 *)(place + p * to.part_bytes) = odd ? uint2{got, w[1]} : uint2{w[0], got};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            v.v[i] = __fadd_rn(v.v[i], -__uint_as_float(w[i] << 16));
            v.v[i + 2] = __fadd_rn(v.v[i + 2], -__uint_as_float(w[i] & 0xffff0000u));
        }
    }
}

template <bool SUM, bool PREPARE, int THREADS>
__global__ void __launch_bounds__(THREADS, !SUM && THREADS == ROWS_FEW ? 2 : 1)
    residual_rows_kernel(const __grid_constant__ struct row_step a)
{
    __shared__ float space[STREAMS][WARP];
    constexpr int AHEAD = THREADS == ROWS_FEW ? MOE_MORE : MOE_AHEAD;
    const int64_t r = blockIdx.x;
    const int32_t dim = a.inject.dim, i = (int32_t)threadIdx.x * 4;
    float *row = a.inject.r + r * STREAMS * dim + i, gates[STREAMS], sums[STREAMS] = {};
    vec<4> kept[STREAMS], weight[STREAMS], y = {};
    pdl_wait();
    pdl_trigger();
    const int32_t live = *(const volatile int32_t *)&a.inject.pass->rows; // looked at when all else is on its way
#pragma unroll
    for (int c = 0; c < STREAMS; c++) {
        gates[c] = a.inject.inject[r * a.inject.ldi + c];
        if (i < dim)
            kept[c] = vec_load<4>(row + (int64_t)c * dim);
    }
    if (i < dim)
        y = SUM ? moe_sum_at<4, AHEAD>(a.sum, r, i) : vec_load<4>(a.inject.y + r * dim + i);
    if (r >= live)
        return;
#pragma unroll
    for (int c = 0; c < STREAMS; c++) {
        const float inject = f_mul(2.0f, f_sigmoid(gates[c]));
        if (i >= dim)
            continue;
        weight[c] = vec_load<4>(a.norm.w + (int64_t)c * dim + i);
#pragma unroll
        for (int j = 0; j < 4; j++)
            kept[c].v[j] = fmaf(inject, y.v[j], kept[c].v[j]);
        vec_store<4>(row + (int64_t)c * dim, kept[c]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            sums[c] = fmaf(kept[c].v[j], kept[c].v[j], sums[c]);
    }
    block_sums(sums, space);
    if (i >= dim) // in whole warps, where rows are prepared
        return;
#pragma unroll
    for (int c = 0; c < STREAMS; c++) {
        const float factor = 1.0f / sqrtf(sums[c] / (float)dim + a.norm.eps);
#pragma unroll
        for (int j = 0; j < 4; j++)
            kept[c].v[j] = f_mul(f_mul(kept[c].v[j], factor), weight[c].v[j]);
        if (!PREPARE) {
            vec_store<4>(a.norm.y + r * a.norm.ldy + (int64_t)c * dim + i, kept[c]);
            continue;
        }
        put_prepared(a.to, a.to.data + r * a.to.blocks * 64, c * dim + i, kept[c]);
        if (threadIdx.x == 0)
            a.to.factors[r * STREAMS + c] = factor;
    }
}

template <bool SUM, bool PREPARE>
static cudaError_t residual_rows_launch(cudaStream_t stream, const struct row_step &a, int rows)
{
    const unsigned threads = threads_for(a.inject.dim, 4, ROWS_THREADS);
    if (threads <= ROWS_FEW)
        return launch(stream, (unsigned)rows, threads, 0, residual_rows_kernel<SUM, PREPARE, ROWS_FEW>, a);
    return launch(stream, (unsigned)rows, threads, 0, residual_rows_kernel<SUM, PREPARE, ROWS_THREADS>, a);
}

cudaError_t residual_rows(cudaStream_t stream, const struct moe_sum_args *sum, const struct hc_inject_args *inject,
                          const struct norm_args *norm, const struct residual_prepared *to, int rows)
{
    const int32_t dim = inject->dim, all = STREAMS * dim;
    struct row_step a = {};
    if (inject->streams != STREAMS || norm->groups != STREAMS || norm->dim != dim || norm->ldx != all ||
        dim > 4 * ROWS_THREADS || (to && (dim % (4 * WARP) || to->blocks != all / 32)))
        return cudaErrorNotSupported;
    if (!vec_fits(inject->r, 0, dim) || !vec_fits(norm->w, 0, dim) || !vec_fits(norm->y, norm->ldy, dim) ||
        (sum ? !moe_sum_wide(sum) || sum->width != dim : !vec_fits(inject->y, 0, dim)))
        return cudaErrorNotSupported;
    a.inject = *inject;
    a.norm = *norm;
    if (sum)
        a.sum = *sum;
    if (to) {
        a.to = *to;
        return sum ? residual_rows_launch<true, true>(stream, a, rows)
                   : residual_rows_launch<false, true>(stream, a, rows);
    }
    return sum ? residual_rows_launch<true, false>(stream, a, rows)
               : residual_rows_launch<false, false>(stream, a, rows);
}
