// SPDX-License-Identifier: Apache-2.0
//
// experts_up_args and experts_down_args, prompt class, on warpgroups: tiles of an expert's pairs by 128 outputs (gated: 64 of gate
// and up).
//
// Invariant: see wide.cuh and experts_prompt.cuh. A tile's products are cut to the least of 32, 64, 96, 128 rows that holds it.

#include "kernels/cuda/experts_prompt.cuh"
#include "kernels/cuda/wide.cuh"

struct expert_wide_plan {
    wide_rows x;
    int32_t aligned;
};

// Rows of a block's tile, over 8: what its sums leave room for.
template <class CODE> struct expert_nt {
    static constexpr int N = wide_code<CODE>::FOLD ? 8 : 16;
};

// do_it.run<USED>() with the least that holds count rows.
template <int NT, class DO> __device__ __forceinline__ void with_used(int count, DO do_it)
{
    if (count <= 32)
        return do_it.template run<4>();
    if (count <= 64 || NT <= 8)
        return do_it.template run<8>();
    if constexpr (NT > 8) {
        if (count <= 96)
            return do_it.template run<12>();
        return do_it.template run<16>();
    }
}

// The copying half of a tile's work.
template <class CODE, class WORK> struct expert_copy {
    enum { NT = expert_nt<CODE>::N };
    const wide_tile<CODE, NT, 1, 1> &tile;
    const WORK &work;

    template <int USED> __device__ __forceinline__ void run(void) const
    {
        wide_copy<CODE, NT, 1, 1, USED>(tile, [&](int w, int l) { return work.place_of(w, l); });
    }
};

// One warpgroup multiplies, the other copies.
template <class CODE, class WORK>
__device__ __forceinline__ void expert_roles(const wide_tile<CODE, expert_nt<CODE>::N, 1, 1> &tile, const WORK &work,
                                             int count)
{
    if (threadIdx.x >= 128) {
        registers_fewer<COPY_REGISTERS>();
        const expert_copy<CODE, WORK> copy = {tile, work};
        with_used<expert_nt<CODE>::N>(count, copy);
    } else {
        registers_more<wide_shape<CODE, expert_nt<CODE>::N, 1, 1>::REGISTERS>();
        with_used<expert_nt<CODE>::N>(count, work);
    }
}

// The lane's four outputs of row c of rows 8 n + 2 (lane % 4).
template <int USED> __device__ __forceinline__ void four_of(const float acc[2][USED * 4], int n, int c, float *v)
{
#pragma unroll
    for (int o = 0; o < 4; o++)
        v[o] = acc[o >> 1][n * 4 + (o & 1) * 2 + c];
}

// Warps of even number have gate, of odd number up, of the same pair of panels.
template <class CODE> struct expert_up_work {
    enum { NT = expert_nt<CODE>::N };
    const struct experts_up_args &a;
    const expert_wide_plan &plan;
    const wide_tile<CODE, NT, 1, 1> &tile;
    const int32_t *pairs;
    int count, expert, gated;

    // Of a warp: its pair of panels, and whether it has gate.
    __device__ __forceinline__ int pair_of(int warp) const
    {
        return gated ? blockIdx.y * 2 + warp / 2 : blockIdx.y * 4 + warp;
    }
    __device__ __forceinline__ bool gate_of(int warp) const
    {
        return gated && warp % 2 == 0;
    }
    __device__ __forceinline__ lane_weights place_of(int warp, int lane) const
    {
        const int pair = pair_of(warp);
        return lane_place(gate_of(warp) ? &a.gate : &a.up, expert, pair * 32 < a.inner ? pair : 0, lane);
    }

    template <int USED> __device__ __forceinline__ void run(void) const
    {
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, pair = pair_of(warp);
        const bool gate = gate_of(warp), live = pair * 32 < a.inner;
        const struct weight &w = gate ? a.gate : a.up;
        const float factor = w.global ? w.global[expert] : 1.0f;
        float acc[2][USED * 4];
        float *exchange = (float *)tile.memory + warp / 2 * (USED * 8 * 32) + lane;
        wide_run<CODE, NT, 1, 1, USED>(tile, place_of(warp, lane), acc);
        barrier_some(1, 128); // the gates go where the stages were
#pragma unroll
        for (int n = 0; n < USED; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = tile.rows[n * 8 + sum_row(i, lane)];
                const float scale = wide_code<CODE>::HALF && row >= 0 ? factor * plan.x.scale[row] : factor;
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    acc[t][n * 4 + i] *= scale;
                    if (gate)
                        exchange[((t * USED + n) * 4 + i) * 32] = activate(acc[t][n * 4 + i], ACT_SILU);
                }
            }
        barrier_some(1, 128);
        if (gate || !live)
            return;
#pragma unroll
        for (int n = 0; n < USED; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int r = n * 8 + sum_row(c, lane);
                if (r >= count)
                    continue;
                float v[4];
#pragma unroll
                for (int o = 0; o < 4; o++) {
                    const int i = n * 4 + (o & 1) * 2 + c, t = o >> 1;
                    v[o] = gated ? exchange[(t * USED * 4 + i) * 32] * acc[t][i] : activate(acc[t][i], a.activation);
                }
                store_four(a.h + (int64_t)pairs[r] * a.inner, pair * 32 + sum_output(0, lane), a.inner,
                           plan.aligned != 0, v);
            }
    }
};

template <class CODE>
__global__ void __launch_bounds__(256, 2) experts_up_wide_kernel(const __grid_constant__ struct experts_up_args a,
                                                                 const __grid_constant__ expert_wide_plan plan)
{
    constexpr int NT = expert_nt<CODE>::N, ROWS = NT * 8;
    SHARED_ROOM(memory);
    __shared__ expert_tile shared;
    pdl_trigger();
    pdl_wait();
    const expert_groups g = groups_at(a.groups, a.experts);
    const expert_tile found = find_tile(g, a.experts, blockIdx.x, ROWS, &shared);
    if (found.count <= 0)
        return;
    const tile_list list = {g.pairs + found.first, found.count, a.slots, ROWS};
    wide_tile<CODE, NT, 1, 1> tile;
    wide_begin<CODE, NT, 1, 1>(&tile, memory, plan.x, list);
    const expert_up_work<CODE> work = {a, plan, tile, list.pairs, found.count, found.expert, a.gate.data != NULL};
    expert_roles<CODE>(tile, work, found.count);
}

template <class CODE> struct expert_down_work {
    enum { NT = expert_nt<CODE>::N };
    const struct experts_down_args &a;
    const expert_wide_plan &plan;
    const wide_tile<CODE, NT, 1, 1> &tile;
    const int32_t *pairs;
    int count, expert;

    __device__ __forceinline__ lane_weights place_of(int warp, int lane) const
    {
        const int pair = blockIdx.y * 4 + warp;
        return lane_place(&a.down, expert, pair * 32 < a.n ? pair : 0, lane);
    }

    template <int USED> __device__ __forceinline__ void run(void) const
    {
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, pair = blockIdx.y * 4 + warp;
        const float factor = a.down.global ? a.down.global[expert] : 1.0f;
        float acc[2][USED * 4];
        wide_run<CODE, NT, 1, 1, USED>(tile, place_of(warp, lane), acc);
        if (pair * 32 >= a.n)
            return;
#pragma unroll
        for (int n = 0; n < USED; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int r = n * 8 + sum_row(c, lane);
                if (r >= count)
                    continue;
                const float scale = wide_code<CODE>::HALF ? factor * plan.x.scale[pairs[r]] : factor;
                float v[4];
                four_of<USED>(acc, n, c, v);
#pragma unroll
                for (int o = 0; o < 4; o++)
                    v[o] *= scale;
                store_four(a.y + (int64_t)pairs[r] * a.n, pair * 32 + sum_output(0, lane), a.n, plan.aligned != 0, v);
            }
    }
};

template <class CODE>
__global__ void __launch_bounds__(256, 2) experts_down_wide_kernel(const __grid_constant__ struct experts_down_args a,
                                                                   const __grid_constant__ expert_wide_plan plan)
{
    constexpr int NT = expert_nt<CODE>::N, ROWS = NT * 8;
    SHARED_ROOM(memory);
    __shared__ expert_tile shared;
    pdl_trigger();
    pdl_wait();
    const expert_groups g = groups_at(a.groups, a.experts);
    const expert_tile found = find_tile(g, a.experts, blockIdx.x, ROWS, &shared);
    if (found.count <= 0)
        return;
    const tile_list list = {g.pairs + found.first, found.count, 1, ROWS};
    wide_tile<CODE, NT, 1, 1> tile;
    wide_begin<CODE, NT, 1, 1>(&tile, memory, plan.x, list);
    const expert_down_work<CODE> work = {a, plan, tile, list.pairs, found.count, found.expert};
    expert_roles<CODE>(tile, work, found.count);
}

cudaError_t experts_up_wide(cudaStream_t stream, const struct experts_up_args *args, int rows)
{
    expert_wide_plan plan = {wide_rows_at(args->scratch, rows, args->k),
                             (uintptr_t)args->h % 16 == 0 && args->inner % 4 == 0};
    cudaError_t error =
        wide_prepare(stream, args->pass, 1, args->x, args->ldx, args->k, rows, wide_half(&args->up), 1, plan.x);
    if (error != cudaSuccess)
        return error;
    const int pairs = weight_pairs(&args->up), each = args->gate.data ? 2 : 4;
    with_code(&args->up, [&](auto code) {
        typedef typename decltype(code)::type CODE;
        if constexpr (wide_code<CODE>::AVAILABLE) {
            constexpr int NT = expert_nt<CODE>::N;
            const dim3 grid(most_tiles((int64_t)rows * args->slots, args->experts, NT * 8), (pairs + each - 1) / each);
            static_assert(2 * NT * 8 * 32 * 4 <= wide_shape<CODE, NT, 1, 1>::STAGES * wide_shape<CODE, NT, 1, 1>::STAGE,
                          "gates are handed over where the stages were");
            error = launch(stream, grid, dim3(256), (size_t)(wide_shape<CODE, NT, 1, 1>::BYTES),
                           experts_up_wide_kernel<CODE>, *args, plan);
        }
    });
    return error;
}

cudaError_t experts_down_wide(cudaStream_t stream, const struct experts_down_args *args, int rows)
{
    const int64_t pairs = (int64_t)rows * args->slots;
    expert_wide_plan plan = {wide_rows_at(args->scratch, pairs, args->k),
                             (uintptr_t)args->y % 16 == 0 && args->n % 4 == 0};
    cudaError_t error = wide_prepare(stream, args->pass, args->slots, args->h, args->k, args->k, pairs,
                                     wide_half(&args->down), 1, plan.x);
    if (error != cudaSuccess)
        return error;
    with_code(&args->down, [&](auto code) {
        typedef typename decltype(code)::type CODE;
        if constexpr (wide_code<CODE>::AVAILABLE) {
            constexpr int NT = expert_nt<CODE>::N;
            const dim3 grid(most_tiles(pairs, args->experts, NT * 8), (weight_pairs(&args->down) + 3) / 4);
            error = launch(stream, grid, dim3(256), (size_t)(wide_shape<CODE, NT, 1, 1>::BYTES),
                           experts_down_wide_kernel<CODE>, *args, plan);
        }
    });
    return error;
}
