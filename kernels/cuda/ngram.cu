// SPDX-License-Identifier: Apache-2.0
//
// The n-gram embedding (hashed rows of a table in device memory, or in host memory that the device reads) and its gated
// injection into the streams.
//
// Invariant: a row's hashes depend on the ids up to its position alone; every row and head is fetched at once, so that a table
// behind the bus costs one trip.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rowcode.cuh"
#include "kernels/cuda/vec.cuh"

// ---- ngram: a warp a (row, head) -------------------------------------------------------------------------------------------

enum {
    NGRAM_WARPS = 4,
    NGRAM_BYTES = 2048
}; // a row's bytes that are staged in shared memory; longer rows are read in place

// The table row of head `head` for the id at `position`.
static __device__ int64_t ngram_row(const struct ngram_args *a, const int32_t *tokens, int32_t position, int32_t head,
                                    const int64_t *multiplier, int64_t size, int64_t offset)
{
    const int32_t n = 2 + head / (a->heads / (a->ngram - 1));
    uint64_t hash = (uint64_t)tokens[position] * (uint64_t)multiplier[0];
    int32_t id = -1;
    for (int32_t i = 1; i < n; i++) {
        id = i > position || (i > 1 && id == a->eos) ? a->eos : tokens[position - i];
        hash ^= (uint64_t)id * (uint64_t)multiplier[i];
    }
    const int64_t rest = (int64_t)hash % size;
    return offset + (rest < 0 ? rest + size : rest);
}

// Copies a row to shared memory by the widest loads that its address allows.
DEVICE void ngram_stage(uint8_t *to, const uint8_t *from, int64_t bytes, int32_t lane)
{
    if (((uintptr_t)from | (uintptr_t)bytes) % 16 == 0)
        for (int64_t i = lane; i < bytes / 16; i += WARP)
            reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
    else if (((uintptr_t)from | (uintptr_t)bytes) % 4 == 0)
        for (int64_t i = lane; i < bytes / 4; i += WARP)
            reinterpret_cast<uint32_t *>(to)[i] = reinterpret_cast<const uint32_t *>(from)[i];
    else
        for (int64_t i = lane; i < bytes; i += WARP)
            to[i] = from[i];
}

__global__ void __launch_bounds__(NGRAM_WARPS *WARP) ngram_kernel(const __grid_constant__ struct ngram_args a)
{
    __shared__ __align__(16) uint8_t stage[NGRAM_WARPS][NGRAM_BYTES];
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = blockIdx.x * NGRAM_WARPS + warp;
    const int64_t r = blockIdx.y;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || head >= a.heads)
        return;
    float *y = a.y + (r * a.heads + head) * a.dim;
    const struct row_source source = *a.table;
    if (!source.memory) {
        for (int32_t i = lane; i < a.dim; i += WARP)
            y[i] = 0.0f;
        if (lane == 0)
            *a.failed = 1;
        return;
    }
    const int32_t *tokens = a.lanes.lane[a.pass->lane[r]]->tokens;
    const int64_t row = ngram_row(&a, tokens, a.pass->position[r], head, a.multiplier, a.size[head], a.offset[head]);
    const uint8_t *from = source.memory + row * source.row_bytes;
    if (source.row_bytes <= NGRAM_BYTES) {
        ngram_stage(stage[warp], from, source.row_bytes, lane);
        __syncwarp();
        from = stage[warp];
    }
    const float factor = a.global ? *a.global : 1.0f;
    for (int32_t i = lane; i < a.dim; i += WARP)
        y[i] = rowcode_value(a.encoding, a.bits, a.group, a.dim, from, factor, i);
}

extern "C" cudaError_t cuda_ngram(cudaStream_t stream, const struct ngram_args *a, int rows)
{
    return launch(stream, dim3(blocks_for(a->heads, NGRAM_WARPS), (unsigned)rows), NGRAM_WARPS * WARP, 0, ngram_kernel,
                  *a);
}

// ---- ple_gate: a block a (stream, row) ---------------------------------------------------------------------------------------

template <int W> __global__ void __launch_bounds__(1024) ple_gate_kernel(const __grid_constant__ struct ple_gate_args a)
{
    __shared__ float space[WARP];
    const int64_t r = blockIdx.y, at = (r * a.streams + blockIdx.x) * a.dim;
    const int32_t first = (int32_t)threadIdx.x * W, step = (int32_t)blockDim.x * W;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows)
        return;
    float sum = 0;
    for (int32_t i = first; i < a.dim; i += step) {
        const vec<W> k = vec_load<W>(a.k + at + i), q = vec_load<W>(a.q + at + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum = fmaf(k.v[j], q.v[j], sum);
    }
    const float s = block_sum(sum, space) / sqrtf((float)a.dim), size = fabsf(s);
    const float root = sqrtf(size > 1e-6f ? size : 1e-6f);
    const float gate = f_sigmoid(s > 0 ? root : s < 0 ? -root : 0.0f);
    for (int32_t i = first; i < a.dim; i += step) {
        vec<W> v = vec_load<W>(a.v + r * a.dim + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            v.v[j] = f_mul(gate, v.v[j]);
        vec_store<W>(a.u + at + i, v);
    }
}

extern "C" cudaError_t cuda_ple_gate(cudaStream_t stream, const struct ple_gate_args *a, int rows)
{
    const dim3 grid((unsigned)a->streams, (unsigned)rows);
    if (vec_fits(a->k, 0, a->dim) && vec_fits(a->q, 0, a->dim) && vec_fits(a->v, 0, a->dim) &&
        vec_fits(a->u, 0, a->dim))
        return launch(stream, grid, threads_for(a->dim, 4, 1024), 0, ple_gate_kernel<4>, *a);
    return launch(stream, grid, threads_for(a->dim, 1, 1024), 0, ple_gate_kernel<1>, *a);
}

// ---- ple_add: a thread a vector ----------------------------------------------------------------------------------------------

enum { PLE_THREADS = 128 };

template <int W>
__global__ void __launch_bounds__(PLE_THREADS) ple_add_kernel(const __grid_constant__ struct ple_add_args a)
{
    const int64_t r = blockIdx.y;
    const int32_t i = (int32_t)(blockIdx.x * PLE_THREADS + threadIdx.x) * W;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || i >= a.width)
        return;
    const int64_t at = r * a.width + i;
    const vec<W> u = vec_load<W>(a.u + at), y = vec_load<W>(a.y + at);
    vec<W> t = vec_load<W>(a.r + at);
#pragma unroll
    for (int j = 0; j < W; j++)
        t.v[j] = __fadd_rn(t.v[j], __fadd_rn(u.v[j], f_silu(y.v[j])));
    vec_store<W>(a.r + at, t);
}

extern "C" cudaError_t cuda_ple_add(cudaStream_t stream, const struct ple_add_args *a, int rows)
{
    const bool wide = vec_fits(a->u, 0, a->width) && vec_fits(a->y, 0, a->width) && vec_fits(a->r, 0, a->width);
    const dim3 grid(blocks_for(a->width, (wide ? 4 : 1) * PLE_THREADS), (unsigned)rows);
    if (wide)
        return launch(stream, grid, PLE_THREADS, 0, ple_add_kernel<4>, *a);
    return launch(stream, grid, PLE_THREADS, 0, ple_add_kernel<1>, *a);
}
