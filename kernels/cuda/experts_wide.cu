// SPDX-License-Identifier: Apache-2.0
//
// experts_up_args and experts_down_args, prompt class, on warpgroups: tiles of an expert's pairs by 128 outputs (gated:
// 64 of gate and up).
//
// Invariant: see wide.cuh and experts_prompt.cuh. A tile's products are cut to the least of 8, 32, 64, 96, 128 rows
// that holds it.

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
    if (count <= 8)
        return do_it.template run<1>();
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
template <class CODE> struct expert_copy {
    enum { NT = expert_nt<CODE>::N };
    const wide_tile<CODE, NT, 1, 1> &tile;
    const wide_sources<1> &weights;
    int early;

    template <int USED> __device__ __forceinline__ void run(void) const
    {
        wide_copy<CODE, NT, 1, 1, USED>(tile, weights, early);
    }
};

// One warpgroup multiplies, the other copies; weights are asked for before the list of rows is read.
template <class CODE, class WORK>
__device__ __forceinline__ void expert_roles(const wide_tile<CODE, expert_nt<CODE>::N, 1, 1> &tile, const WORK &work,
                                             const tile_list &list)
{
    enum { NT = expert_nt<CODE>::N };
    wide_sources<1> weights;
    int early = 0;
    if (threadIdx.x >= 128) {
        weights.find([&](int w, int l) { return work.place_of(w, l); });
        for (; early < wide_shape<CODE, NT, 1, 1>::STAGES && early < tile.main_stages; early++)
            wide_copy_weights<CODE, NT, 1, 1>(tile, weights, early);
    }
    wide_begin<CODE, NT, 1, 1>(tile, list);
    if (threadIdx.x >= 128) {
        registers_fewer<COPY_REGISTERS>();
        const expert_copy<CODE> copy = {tile, weights, early};
        with_used<NT>(list.count, copy);
    } else {
        registers_more<wide_shape<CODE, NT, 1, 1>::REGISTERS>();
        with_used<NT>(list.count, work);
    }
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
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        float acc[2][USED * 4];
        wide_run<CODE, NT, 1, 1, USED>(tile, place_of(warp, lane), acc);
        wide_park<CODE, NT, 1, 1, USED>(tile, acc);
        barrier_some(1, 128);
        // Gated: the two warps of a pair share its rows.
        const int pair = pair_of(warp), o = lane % 8 * 4, sharing = gated ? 2 : 1;
        if (pair * 32 >= a.inner)
            return;
        const float up = a.up.global ? a.up.global[expert] : 1.0f;
        const float gate = gated && a.gate.global ? a.gate.global[expert] : 1.0f;
        const float *gates = wide_parking(tile, warp / 2 * 2), *ups = wide_parking(tile, gated ? warp | 1 : warp);
#pragma unroll 1
        for (int r = (gated ? warp % 2 * 4 : 0) + lane / 8; r < count; r += 4 * sharing) {
            const float scale = wide_code<CODE>::HALF ? plan.x.scale[tile.rows[r]] : 1.0f;
            const float4 sum = *(const float4 *)(ups + r * PARKED + o),
                         other = *(const float4 *)(gates + r * PARKED + o);
            const float u[4] = {sum.x, sum.y, sum.z, sum.w}, g[4] = {other.x, other.y, other.z, other.w};
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i] = u[i] * (up * scale);
                v[i] = gated ? activate(g[i] * (gate * scale), ACT_SILU) * v[i] : activate(v[i], a.activation);
            }
            store_four(a.h + (int64_t)pairs[r] * a.inner, pair * 32 + o, a.inner, plan.aligned != 0, v);
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
    wide_open<CODE, NT, 1, 1>(&tile, memory, plan.x, 0, 1);
    const expert_up_work<CODE> work = {a, plan, tile, list.pairs, found.count, found.expert, a.gate.data != NULL};
    expert_roles<CODE>(tile, work, list);
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
        float acc[2][USED * 4];
        wide_run<CODE, NT, 1, 1, USED>(tile, place_of(warp, lane), acc);
        wide_park<CODE, NT, 1, 1, USED>(tile, acc);
        if (pair * 32 >= a.n)
            return;
        __syncwarp();
        const float factor = a.down.global ? a.down.global[expert] : 1.0f;
        const float *sums = wide_parking(tile, warp);
        const int o = lane % 8 * 4;
#pragma unroll 1
        for (int r = lane / 8; r < count; r += 4) {
            const float scale = wide_code<CODE>::HALF ? factor * plan.x.scale[pairs[r]] : factor;
            const float4 sum = *(const float4 *)(sums + r * PARKED + o);
            const float v[4] = {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
            store_four(a.y + (int64_t)pairs[r] * a.n, pair * 32 + o, a.n, plan.aligned != 0, v);
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
    wide_open<CODE, NT, 1, 1>(&tile, memory, plan.x, 0, 1);
    const expert_down_work<CODE> work = {a, plan, tile, list.pairs, found.count, found.expert};
    expert_roles<CODE>(tile, work, list);
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
