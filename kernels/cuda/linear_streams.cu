// SPDX-License-Identifier: Apache-2.0
//
// Hyper-connections of prompt rows on warpgroups: the gates' product with the mix of the streams behind it, and the step from a
// block's output to the next block's input.
//
// A warp has a pair of panels of one stream, the four of a warpgroup the same pair of all streams, so that gates never leave the
// block. Normed rows are not stored either: they are worked out from the streams where they are mixed.
//
// Invariant: the bits of moe_sum, hc_inject, norm, linear, linear and hc_mix one after the other; see wide.cuh.

#include "kernels/cuda/linear_streams.cuh"
#include "kernels/cuda/residual_rows.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/cuda/wide.cuh"

// A block's outputs of a stream; registers of a thread that mixes.
enum { MIX_STREAMS = ROWS_STREAMS, MIX_OUTPUTS = 32, MIX_REGISTERS = 128, MIX_FEW_ROWS = 64 };

// FEW: for rows so few that a tile of 64 holds them, most stages on their way.
template <class CODE, bool FEW>
struct mix_shape : wide_shape<CODE, FEW || wide_code<CODE>::FOLD ? 8 : 16, 1, 1, FEW ? 1 : 2> {
};

struct mix_launch {
    const struct pass *pass;
    struct weight w;
    float alpha;
    int32_t dim;
    int32_t early; // whether weights are asked for before the rows are there
    wide_rows x;
    struct mix_streams from; // factors NULL: rows are normed
    float *y;
};

// The mix of four neighbouring numbers of row r, from `at` of each stream on; sums: the first stream's products with them.
template <class SHAPE>
__device__ __forceinline__ void mix_four(const mix_launch &a, int64_t r, int at, const float *sums, float factor,
                                         const vec<4> (&weight)[MIX_STREAMS])
{
    vec<4> x[MIX_STREAMS], sum = {};
#pragma unroll
    for (int c = 0; c < MIX_STREAMS; c++)
        x[c] = vec_load<4>(a.from.rows + (r * MIX_STREAMS + c) * a.dim + at);
    const float scale = wide_code<typename SHAPE::CODE>::HALF ? factor * a.x.scale[r] : factor;
    vec<4> factors = {};
    if (a.from.factors)
        factors = vec_load<4>(a.from.factors + r * MIX_STREAMS);
    float gates[MIX_STREAMS * 4];
#pragma unroll
    for (int c = 0; c < MIX_STREAMS; c++) {
        const vec<4> product = vec_load<4>(sums + c * (SHAPE::ROWS * PARKED));
#pragma unroll
        for (int j = 0; j < 4; j++)
            gates[c * 4 + j] = f_mul(product.v[j], scale);
    }
    f_sigmoids(gates);
#pragma unroll
    for (int c = 0; c < MIX_STREAMS; c++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float normed = a.from.factors ? f_mul(f_mul(x[c].v[j], factors.v[c]), weight[c].v[j]) : x[c].v[j];
            sum.v[j] = fmaf(gates[c * 4 + j], normed, sum.v[j]);
        }
#pragma unroll
    for (int j = 0; j < 4; j++)
        sum.v[j] = f_mul(sum.v[j], 1.0f / (float)MIX_STREAMS);
    vec_store<4>(a.y + r * a.dim + at, sum);
}

// The same of all rows of a tile, by all threads of the block.
template <class SHAPE>
__device__ __forceinline__ void mix_tile(const mix_launch &a, const float *parked, int first, int rows)
{
    const int column = threadIdx.x % 8 * 4, at = (int)blockIdx.y * MIX_OUTPUTS + column;
    const float factor = a.alpha * (a.w.global ? *a.w.global : 1.0f);
    vec<4> weight[MIX_STREAMS] = {};
    if (a.from.factors)
#pragma unroll
        for (int c = 0; c < MIX_STREAMS; c++)
            weight[c] = vec_load<4>(a.from.w + (int64_t)c * a.dim + at);
#pragma unroll 2
    for (int r = threadIdx.x / 8; r < SHAPE::ROWS; r += 32)
        if (r < rows)
            mix_four<SHAPE>(a, first + r, at, parked + r * PARKED + column, factor, weight);
}

template <class CODE, bool FEW>
__global__ void __launch_bounds__(256, 2) linear_mix_kernel(const __grid_constant__ mix_launch a)
{
    typedef mix_shape<CODE, FEW> SHAPE;
    constexpr int NT = SHAPE::NT;
    static_assert(SHAPE::WARPS == MIX_STREAMS, "a warp a stream");
    static_assert(SHAPE::WARPS * SHAPE::ROWS * PARKED * 4 <= SHAPE::STAGES * SHAPE::STAGE, "sums go where stages were");
    SHARED_ROOM(memory);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, first = blockIdx.x * SHAPE::ROWS,
              pairs = a.dim / MIX_OUTPUTS;
    const auto place = [&](int w, int of) { return lane_place(&a.w, 0, w * pairs + (int)blockIdx.y, of); };
    int early = 0;
    wide_tile<SHAPE> tile;
    wide_copier<SHAPE> copier;
    wide_sources<SHAPE> weights;
    pdl_trigger();
    wide_open<SHAPE>(&tile, memory, a.x, 0, 1);
    if (warp >= SHAPE::WARPS) {
        copier.find(tile);
        weights.find([&](int w, int half) { return place(w, half * 16); });
        for (; a.early && early < SHAPE::STAGES && early < tile.main_stages; early++, tile.advance())
            wide_copy_weights<SHAPE>(tile, copier, weights, early);
        tile.slot = 0;
        tile.parity = 0;
    }
    pdl_wait();
    const int rows = a.pass->rows - first;
    __syncthreads();
    if (rows <= 0) {
        copy_wait<0>();
        return;
    }
    if (warp >= SHAPE::WARPS) {
        registers_fewer<SHAPE::COPY_REGISTERS>();
        const int r = threadIdx.x - SHAPE::WARPS * 32;
        for (int c = 0; c < MIX_STREAMS && r < rows && r < SHAPE::ROWS; c++)
            prefetch_l2(a.from.rows + ((int64_t)(first + r) * MIX_STREAMS + c) * a.dim + blockIdx.y * MIX_OUTPUTS);
        wide_copy<SHAPE>(tile, copier, weights, early, SHAPE::ROWS, [&](int i) { return i < rows ? first + i : -1; });
        registers_more<MIX_REGISTERS>();
        barrier_some(2, SHAPE::THREADS);
        mix_tile<SHAPE>(a, (const float *)tile.memory, first, rows);
    } else {
        registers_more<SHAPE::REGISTERS>();
        float acc[2][NT * 4];
        wide_taker<SHAPE> taker;
        taker.find(tile);
        wide_run<SHAPE, NT>(tile, taker, place(warp, lane), acc);
        barrier_some(1, SHAPE::WARPS * 32); // all are done with the stages
        wide_park<NT, 0, NT>((float *)tile.memory + warp * (SHAPE::ROWS * PARKED), acc);
        registers_fewer<MIX_REGISTERS>(); // for those that copied, who mix too
        barrier_some(2, SHAPE::THREADS);
        mix_tile<SHAPE>(a, (const float *)tile.memory, first, rows);
    }
}

template <class CODE, bool FEW> static cudaError_t mix_start(cudaStream_t stream, const mix_launch &a, int rows)
{
    typedef mix_shape<CODE, FEW> SHAPE;
    const dim3 grid((unsigned int)((rows + SHAPE::ROWS - 1) / SHAPE::ROWS), a.dim / MIX_OUTPUTS);
    return launch(stream, grid, dim3(SHAPE::THREADS), (size_t)SHAPE::BYTES, linear_mix_kernel<CODE, FEW>, a);
}

// Whether the product and the mix have a kernel.
static bool linear_mix_takes(const struct linear_args *linear, const struct hc_mix_args *mix,
                             const struct mix_streams *from)
{
    const struct weight *w = &linear->part[0].w;
    return linear->row_class == CLASS_PROMPT && linear->row_multiple <= 1 && linear->parts == 1 && wide_available(w) &&
           linear->part[0].activation == ACT_NONE && mix->streams == MIX_STREAMS && mix->dim % MIX_OUTPUTS == 0 &&
           w->n == MIX_STREAMS * mix->dim && prompt_parts(w) == 1 && wide_slices(w) == 1 &&
           vec_fits(from->rows, 0, mix->dim) && vec_fits(mix->y, 0, mix->dim);
}

cudaError_t linear_mix_prompt(cudaStream_t stream, const struct linear_args *linear, const struct hc_mix_args *mix,
                              const struct mix_streams *streams, int rows)
{
    const struct mix_streams from = streams ? *streams : (struct mix_streams){mix->xn, NULL, NULL};
    const struct weight *w = &linear->part[0].w;
    if (!linear_mix_takes(linear, mix, &from))
        return cudaErrorNotSupported;
    const wide_rows x = wide_rows_at(linear->scratch, rows, linear->k);
    // Of more rows, blocks wait for each other's places, and the first stage would wait for all that was asked for.
    const bool few = rows <= MIX_FEW_ROWS && mix->dim / MIX_OUTPUTS <= multiprocessors();
    const mix_launch a = {linear->pass, *w, linear->part[0].alpha, mix->dim, few, x, from, mix->y};
    cudaError_t error =
        wide_prepare(stream, linear->pass, 1, linear->x, linear->ldx, linear->k, rows, wide_half(w), 1, false, x);
    if (error != cudaSuccess)
        return error;
    with_code(w, [&](auto code) {
        typedef typename decltype(code)::type CODE;
        error = cudaErrorInvalidValue;
        if constexpr (wide_code<CODE>::AVAILABLE)
            error = few ? mix_start<CODE, true>(stream, a, rows) : mix_start<CODE, false>(stream, a, rows);
    });
    return error;
}

cudaError_t linear_streams_prompt(cudaStream_t stream, const struct moe_sum_args *sum, const void *const *args,
                                  int rows)
{
    const struct hc_inject_args *inject = (const struct hc_inject_args *)args[0];
    const struct norm_args *norm = (const struct norm_args *)args[1];
    const struct linear_args *down = (const struct linear_args *)args[2], *up = (const struct linear_args *)args[3];
    const struct hc_mix_args *mix = (const struct hc_mix_args *)args[4];
    bool second = false;
    if (down->row_class != CLASS_PROMPT || down->row_multiple > 1 || down->k != norm->groups * norm->dim ||
        down->ldx != norm->ldy || mix->dim != norm->dim)
        return cudaErrorNotSupported;
    for (int i = 0; i < down->parts; i++) {
        if (!wide_available(&down->part[i].w) || wide_half(&down->part[i].w))
            return cudaErrorNotSupported;
        second = second || prompt_parts(&down->part[i].w) == 2;
    }
    const int all = (1 << down->parts) - 1;
    const wide_rows x = linear_wide_rows(down, rows, all);
    const struct residual_prepared to = {x.data, x.part_bytes, x.blocks, second ? 2 : 1, norm->y};
    const struct mix_streams streams = {inject->r, norm->w, norm->y};
    if (x.mask || !linear_mix_takes(up, mix, &streams)) // rows are left one after the other
        return cudaErrorNotSupported;
    cudaError_t error = residual_rows(stream, sum, inject, norm, &to, rows);
    if (error == cudaSuccess)
        error = linear_wide(stream, down, rows, all, true);
    return error == cudaSuccess ? linear_mix_prompt(stream, up, mix, &streams, rows) : error;
}
