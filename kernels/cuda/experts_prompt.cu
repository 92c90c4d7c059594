// SPDX-License-Identifier: Apache-2.0
//
// experts_up_args and experts_down_args, prompt class: (row, slot) pairs are sorted by expert, and an expert's pairs go in tiles.
//
// Invariant: the order of the pairs of an expert is of no consequence, since a pair's result is its own.

#include "kernels/cuda/experts_prompt.cuh"
#include "kernels/cuda/wide.cuh"

enum { EXPERT_NT = 8, EXPERT_ROWS = EXPERT_NT * 8, SORT_THREADS = 1024 };

// Sums of v over the threads before this one, and in *all of all threads; space: a number a warp. Barriers of the block.
__device__ __forceinline__ int sort_before(int v, int32_t *space, int *all)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int sum = v;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31)
        space[warp] = sum;
    __syncthreads();
    int before = 0, total = 0;
    for (int w = 0; w < SORT_THREADS / 32; w++) {
        before += w < warp ? space[w] : 0;
        total += space[w];
    }
    __syncthreads();
    *all = total;
    return before + sum - v;
}

// One block. Shared memory: a count an expert. The next launch may start when those before this one have ended.
__global__ void __launch_bounds__(SORT_THREADS)
    experts_sort_kernel(const struct pass *pass, const int32_t *ids, int slots, int experts, int tile, void *memory)
{
    SHARED_ROOM(room);
    __shared__ int32_t space[SORT_THREADS / 32];
    int32_t *count = (int32_t *)room;
    expert_groups g = groups_at(memory, experts);
    for (int e = threadIdx.x; e < experts; e += SORT_THREADS)
        count[e] = 0;
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    int pairs = pass->rows * slots, total = 0, tiles = 0;
    for (int i = threadIdx.x; i < pairs; i += SORT_THREADS)
        if (ids[i] >= 0 && ids[i] < experts)
            atomicAdd(&count[ids[i]], 1);
    __syncthreads();
    for (int base = 0; base < experts; base += SORT_THREADS) {
        const int e = base + threadIdx.x, own = e < experts ? count[e] : 0, own_tiles = (own + tile - 1) / tile;
        int all, all_tiles;
        const int before = total + sort_before(own, space, &all);
        const int before_tiles = tiles + sort_before(own_tiles, space, &all_tiles);
        if (e < experts) {
            g.start[e] = count[e] = before; // where the expert's next pair goes
            g.first_tile[e] = before_tiles;
        }
        total += all;
        tiles += all_tiles;
    }
    if (threadIdx.x == 0) {
        g.start[experts] = total;
        *g.tiles = tiles;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < pairs; i += SORT_THREADS)
        if (ids[i] >= 0 && ids[i] < experts)
            g.pairs[atomicAdd(&count[ids[i]], 1)] = i;
}

// What a launch of the first half does: everything, or (gate and up of different encodings) only gate, then only up.
enum { UP_WHOLE, UP_GATE, UP_TIMES };

struct expert_plan {
    prepared x;
    int32_t aligned, mode, tile;
};

// Gated: warps of even number have gate, of odd number up, of the same pair of panels.
template <class SHAPE>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    experts_up_prompt_kernel(const __grid_constant__ struct experts_up_args a, const __grid_constant__ expert_plan plan)
{
    SHARED_ROOM(memory);
    __shared__ expert_tile shared;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, gated = a.gate.data && plan.mode == UP_WHOLE;
    int activation = plan.mode == UP_GATE ? ACT_SILU : plan.mode == UP_TIMES ? ACT_NONE : a.activation;
    pdl_trigger();
    pdl_wait();
    expert_groups g = groups_at(a.groups, a.experts);
    expert_tile tile = find_tile(g, a.experts, blockIdx.x, plan.tile, EXPERT_ROWS, &shared);
    if (tile.count <= 0)
        return;
    int pair = gated ? blockIdx.y * (TILE_WARPS / 2) + warp / 2 : blockIdx.y * TILE_WARPS + warp;
    bool live = pair * 32 < a.inner, gate = gated && warp % 2 == 0;
    const struct weight &w = gate || plan.mode == UP_GATE ? a.gate : a.up;
    float acc[EXPERT_NT][8];
    tile_list list = {g.pairs + tile.first, tile.count, a.slots, EXPERT_ROWS};
    tile_run<SHAPE>(&w, tile.expert, live ? pair : 0, memory, plan.x, list, acc);
    float factor = w.global ? w.global[tile.expert] : 1.0f;
    float *exchange = (float *)memory + warp / 2 * (EXPERT_NT * 8 * 32) + lane;
    if (gate)
#pragma unroll
        for (int t = 0; t < EXPERT_NT; t++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                exchange[(t * 8 + i) * 32] = activate(acc[t][i] * factor, ACT_SILU);
    __syncthreads();
    if (gate || !live)
        return;
#pragma unroll
    for (int t = 0; t < EXPERT_NT; t++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            int r = t * 8 + sum_row(c, lane);
            if (r >= tile.count)
                continue;
            float v[4], *h = a.h + (int64_t)list.pairs[r] * a.inner;
            int first = pair * 32 + sum_output(0, lane);
            for (int o = 0; o < 4; o++) {
                v[o] = acc[t][2 * o + c] * factor;
                v[o] = gated ? exchange[(t * 8 + 2 * o + c) * 32] * v[o] : activate(v[o], activation);
                if (plan.mode == UP_TIMES && first + o < a.inner)
                    v[o] *= h[first + o];
            }
            store_four(h, first, a.inner, plan.aligned != 0, v);
        }
}

template <class SHAPE>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    experts_down_prompt_kernel(const __grid_constant__ struct experts_down_args a,
                               const __grid_constant__ expert_plan plan)
{
    SHARED_ROOM(memory);
    __shared__ expert_tile shared;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    pdl_trigger();
    pdl_wait();
    expert_groups g = groups_at(a.groups, a.experts);
    expert_tile tile = find_tile(g, a.experts, blockIdx.x, plan.tile, EXPERT_ROWS, &shared);
    if (tile.count <= 0)
        return;
    int pair = blockIdx.y * TILE_WARPS + warp;
    bool live = pair * 32 < a.n;
    float acc[EXPERT_NT][8];
    tile_list list = {g.pairs + tile.first, tile.count, 1, EXPERT_ROWS};
    tile_run<SHAPE>(&a.down, tile.expert, live ? pair : 0, memory, plan.x, list, acc);
    if (!live)
        return;
    float factor = a.down.global ? a.down.global[tile.expert] : 1.0f;
#pragma unroll
    for (int t = 0; t < EXPERT_NT; t++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            int r = t * 8 + sum_row(c, lane);
            if (r >= tile.count)
                continue;
            float v[4];
            for (int o = 0; o < 4; o++)
                v[o] = acc[t][2 * o + c] * factor;
            store_four(a.y + (int64_t)list.pairs[r] * a.n, pair * 32 + sum_output(0, lane), a.n, plan.aligned, v);
        }
}

template <class SHAPE> static size_t expert_shared(void)
{
    size_t tile = SHAPE::BYTES, exchange = TILE_WARPS / 2 * EXPERT_NT * 8 * 32 * 4;
    return tile > exchange ? tile : exchange;
}

static bool experts_mixed(const struct experts_up_args *args)
{
    return args->gate.data != NULL && !same_code(&args->gate, &args->up);
}

// to: experts_up_wide(), which is taken then.
static cudaError_t experts_up_to(cudaStream_t stream, const struct experts_up_args *args, const wide_rows *to, int rows)
{
    const int64_t all = (int64_t)rows * args->slots;
    expert_plan plan = {prepared_at(args->scratch, rows, args->k), (uintptr_t)args->h % 16 == 0 && args->inner % 4 == 0,
                        UP_WHOLE, expert_tile_rows(all, args->experts)};
    cudaError_t error = launch(stream, dim3(1), dim3(SORT_THREADS), (size_t)args->experts * 4, experts_sort_kernel,
                               args->pass, args->ids, args->slots, args->experts, plan.tile, args->groups);
    const bool gated = args->gate.data != NULL, mixed = experts_mixed(args);
    if (error == cudaSuccess && !mixed && wide_available(&args->up))
        return experts_up_wide(stream, args, to, rows);
    if (error == cudaSuccess)
        error = prompt_prepare(stream, args->pass, 1, args->x, args->ldx, args->k, rows, plan.x);
    int pairs = weight_pairs(&args->up), each = gated && !mixed ? TILE_WARPS / 2 : TILE_WARPS;
    dim3 grid(most_tiles(all, args->experts, plan.tile) * tile_parts(plan.tile, EXPERT_ROWS),
              (pairs + each - 1) / each);
    for (plan.mode = mixed ? UP_GATE : UP_WHOLE; error == cudaSuccess; plan.mode++) {
        with_code(plan.mode == UP_GATE ? &args->gate : &args->up, [&](auto code) {
            error = with_tile_shape<typename decltype(code)::type, EXPERT_NT, 1>([&](auto shape) {
                typedef decltype(shape) SHAPE;
                return launch(stream, grid, dim3(TILE_THREADS), expert_shared<SHAPE>(), experts_up_prompt_kernel<SHAPE>,
                              *args, plan);
            });
        });
        if (plan.mode == UP_WHOLE || plan.mode == UP_TIMES)
            break;
    }
    return error;
}

cudaError_t experts_up_prompt(cudaStream_t stream, const struct experts_up_args *args, int rows)
{
    return experts_up_to(stream, args, NULL, rows);
}

cudaError_t experts_down_prompt(cudaStream_t stream, const struct experts_down_args *args, int rows)
{
    if (wide_available(&args->down))
        return experts_down_wide(stream, args, false, rows);
    int64_t pairs = (int64_t)rows * args->slots;
    expert_plan plan = {prepared_at(args->scratch, pairs, args->k), (uintptr_t)args->y % 16 == 0 && args->n % 4 == 0,
                        UP_WHOLE, expert_tile_rows(pairs, args->experts)};
    cudaError_t error = prompt_prepare(stream, args->pass, args->slots, args->h, args->k, args->k, pairs, plan.x);
    if (error != cudaSuccess)
        return error;
    dim3 grid(most_tiles(pairs, args->experts, plan.tile) * tile_parts(plan.tile, EXPERT_ROWS),
              (weight_pairs(&args->down) + TILE_WARPS - 1) / TILE_WARPS);
    with_code(&args->down, [&](auto code) {
        error = with_tile_shape<typename decltype(code)::type, EXPERT_NT, 1>([&](auto shape) {
            typedef decltype(shape) SHAPE;
            return launch(stream, grid, dim3(TILE_THREADS), expert_shared<SHAPE>(), experts_down_prompt_kernel<SHAPE>,
                          *args, plan);
        });
    });
    return error;
}

// Both halves of a prompt's experts: what the first leaves is prepared for the second, and h is left alone.
extern "C" cudaError_t cuda_experts_up_down(cudaStream_t stream, const void *const *args, int rows)
{
    const struct experts_up_args *up = (const struct experts_up_args *)args[0];
    const struct experts_down_args *down = (const struct experts_down_args *)args[1];
    if (up->row_class != CLASS_PROMPT || experts_mixed(up) || !wide_available(&up->up) ||
        !wide_available(&down->down) || wide_half(&down->down) || up->inner % 32)
        return cudaErrorNotSupported;
    const wide_rows to = wide_rows_at(down->scratch, (int64_t)rows * up->slots, down->k);
    const cudaError_t error = experts_up_to(stream, up, &to, rows);
    return error == cudaSuccess ? experts_down_wide(stream, down, true, rows) : error;
}
