// SPDX-License-Identifier: Apache-2.0
//
// Hyper-connections: the gated mix of the residual streams into one row, and the injection of a row into the streams.
//
// Invariant: streams are summed in the order of their index; a thread has one vector of a row.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

enum { STREAM_THREADS = 64, STREAM_FEW = 32 };

// STREAMS 0: any number.
template <int W, int STREAMS>
__global__ void __launch_bounds__(STREAM_THREADS) hc_mix_kernel(const __grid_constant__ struct hc_mix_args a)
{
    const int64_t r = blockIdx.y;
    const int32_t i = (int32_t)(blockIdx.x * STREAM_THREADS + threadIdx.x) * W;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || i >= a.dim)
        return;
    const int32_t streams = STREAMS ? STREAMS : a.streams;
    const int64_t row = r * a.streams * a.dim + i;
    vec<W> sum = {};
    if constexpr (STREAMS > 0) {
        float gate[STREAMS * W];
        vec<W> x[STREAMS];
#pragma unroll
        for (int c = 0; c < STREAMS; c++) {
            const vec<W> g = vec_load<W>(a.gate + row + (int64_t)c * a.dim);
#pragma unroll
            for (int j = 0; j < W; j++)
                gate[c * W + j] = g.v[j];
            x[c] = vec_load<W>(a.xn + row + (int64_t)c * a.dim);
        }
        f_sigmoids(gate);
#pragma unroll
        for (int c = 0; c < STREAMS; c++)
#pragma unroll
            for (int j = 0; j < W; j++)
                sum.v[j] = fmaf(gate[c * W + j], x[c].v[j], sum.v[j]);
    } else {
        for (int32_t c = 0; c < streams; c++) {
            const vec<W> gate = vec_load<W>(a.gate + row + (int64_t)c * a.dim);
            const vec<W> x = vec_load<W>(a.xn + row + (int64_t)c * a.dim);
#pragma unroll
            for (int j = 0; j < W; j++)
                sum.v[j] = fmaf(f_sigmoid(gate.v[j]), x.v[j], sum.v[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < W; j++)
        sum.v[j] = f_mul(sum.v[j], 1.0f / (float)streams);
    vec_store<W>(a.y + r * a.dim + i, sum);
}

extern "C" cudaError_t cuda_hc_mix(cudaStream_t stream, const struct hc_mix_args *a, int rows)
{
    const bool wide = vec_fits(a->xn, a->dim, a->dim) && vec_fits(a->gate, a->dim, a->dim) && vec_fits(a->y, 0, a->dim);
    const dim3 grid(blocks_for(a->dim, (wide ? 4 : 1) * STREAM_THREADS), (unsigned)rows);
    if (rows <= STREAM_FEW && a->streams == 4) // more threads, each with fewer exponentials in line
        return launch(stream, dim3(blocks_for(a->dim, STREAM_THREADS), (unsigned)rows), STREAM_THREADS, 0,
                      hc_mix_kernel<1, 4>, *a);
    if (!wide)
        return launch(stream, grid, STREAM_THREADS, 0, hc_mix_kernel<1, 0>, *a);
    if (a->streams == 4)
        return launch(stream, grid, STREAM_THREADS, 0, hc_mix_kernel<4, 4>, *a);
    return launch(stream, grid, STREAM_THREADS, 0, hc_mix_kernel<4, 0>, *a);
}

template <int W>
__global__ void __launch_bounds__(STREAM_THREADS) hc_inject_kernel(const __grid_constant__ struct hc_inject_args a)
{
    const int64_t r = blockIdx.y, c = blockIdx.z;
    const int32_t i = (int32_t)(blockIdx.x * STREAM_THREADS + threadIdx.x) * W;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || i >= a.dim)
        return;
    float *out = a.r + (r * a.streams + c) * a.dim + i;
    const float factor = f_mul(2.0f, f_sigmoid(a.inject[r * a.ldi + c]));
    const vec<W> y = vec_load<W>(a.y + r * a.dim + i);
    vec<W> t = vec_load<W>(out);
#pragma unroll
    for (int j = 0; j < W; j++)
        t.v[j] = fmaf(factor, y.v[j], t.v[j]);
    vec_store<W>(out, t);
}

extern "C" cudaError_t cuda_hc_inject(cudaStream_t stream, const struct hc_inject_args *a, int rows)
{
    const bool wide = vec_fits(a->y, 0, a->dim) && vec_fits(a->r, 0, a->dim);
    const dim3 grid(blocks_for(a->dim, (wide ? 4 : 1) * STREAM_THREADS), (unsigned)rows, (unsigned)a->streams);
    if (wide)
        return launch(stream, grid, STREAM_THREADS, 0, hc_inject_kernel<4>, *a);
    return launch(stream, grid, STREAM_THREADS, 0, hc_inject_kernel<1>, *a);
}

template <int W>
__global__ void __launch_bounds__(STREAM_THREADS) streams_add_kernel(const __grid_constant__ struct streams_add_args a)
{
    const int64_t r = blockIdx.y, c = blockIdx.z;
    const int32_t i = (int32_t)(blockIdx.x * STREAM_THREADS + threadIdx.x) * W;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || i >= a.dim)
        return;
    const int64_t at = (r * a.streams + c) * a.dim + i;
    const vec<W> e = vec_load<W>(a.e + r * a.dim + i);
    vec<W> t = vec_load<W>(a.h + at);
#pragma unroll
    for (int j = 0; j < W; j++)
        t.v[j] = __fadd_rn(e.v[j], t.v[j]);
    vec_store<W>(a.y + at, t);
}

extern "C" cudaError_t cuda_streams_add(cudaStream_t stream, const struct streams_add_args *a, int rows)
{
    const bool wide = vec_fits(a->e, 0, a->dim) && vec_fits(a->h, 0, a->dim) && vec_fits(a->y, 0, a->dim);
    const dim3 grid(blocks_for(a->dim, (wide ? 4 : 1) * STREAM_THREADS), (unsigned)rows, (unsigned)a->streams);
    if (wide)
        return launch(stream, grid, STREAM_THREADS, 0, streams_add_kernel<4>, *a);
    return launch(stream, grid, STREAM_THREADS, 0, streams_add_kernel<1>, *a);
}
