// SPDX-License-Identifier: Apache-2.0
//
// linear_args. The decode class: memory-bound, weights decoded in registers and multiplied on the tensor cores.
//
// A unit of work is some pairs of panels (32 outputs each) of one part and one slice of k; `splits` warps share each pair.
// All parts' units form one list that the blocks walk with a stride. Where a part has few pairs and a long k, several blocks
// share a pair (slices): each leaves its sums in scratch, and the last to come adds them in the order of the slices.
// Invariant: cuts of k come from the part's shape; sums are added in ascending order of k, whoever adds them.

#include "kernels/cuda/linear.cuh"

enum { COUNTERS = 1 << 17 };

// How many slices of a group have come; zero between launches, since the last to come clears it.
__device__ unsigned int slice_counter[COUNTERS];

struct linear_plan {
    int32_t splits, room_rows, capacity, aligned;
    int32_t units, tiles; // tiles of TILE_ROWS rows that the capacity has
    struct {
        int32_t first, groups, slices; // first unit; groups of WARPS / splits pairs
        int32_t counter;               // first counter
        int64_t partial;               // first float in scratch
    } part[LINEAR_PARTS];
};

// Where in the list a block is.
struct linear_unit {
    int32_t part, group, slice, pair, from, to;
    bool live; // the warp has a pair
};

__device__ __forceinline__ linear_unit unit_at(const struct linear_args &a, const linear_plan &plan, int unit, int warp)
{
    linear_unit u;
    u.part = 0;
    while (u.part + 1 < a.parts && unit >= plan.part[u.part + 1].first)
        u.part++;
    int at = unit - plan.part[u.part].first, blocks = (a.k + 31) / 32, slices = plan.part[u.part].slices;
    u.slice = at / plan.part[u.part].groups;
    u.group = at - u.slice * plan.part[u.part].groups;
    u.pair = u.group * (WARPS / plan.splits) + warp / plan.splits;
    u.live = u.pair * 32 < a.part[u.part].w.n;
    int share = u.slice * plan.splits + warp % plan.splits, shares = slices * plan.splits;
    u.from = share_begin(blocks, share, shares);
    u.to = u.live ? share_begin(blocks, share + 1, shares) : u.from;
    return u;
}

__device__ __forceinline__ void linear_store(const linear_part &part, int pair, int first_row, int rows, int i,
                                             int lane, float v)
{
    int o = pair * 32 + sum_output(i, lane), r = first_row + sum_row(i, lane);
    if (o < part.w.n && r < rows) {
        float factor = part.alpha * (part.w.global ? *part.w.global : 1.0f);
        part.y[(int64_t)r * part.ldy + o] = activate(v * factor, part.activation);
    }
}

// Adds the warps' sums of each pair, then, with several slices, the blocks' sums; stores the outputs.
__device__ __forceinline__ void linear_reduce(const struct linear_args &a, const linear_plan &plan,
                                              const linear_unit &u, int tile, int rows, const float *reduce,
                                              unsigned int *arrived)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, first = warp / plan.splits * plan.splits;
    const linear_part &part = a.part[u.part];
    int slices = plan.part[u.part].slices, groups = plan.part[u.part].groups;
    int64_t place = (int64_t)tile * groups + u.group;
    float *partial = (float *)a.scratch + plan.part[u.part].partial + place * slices * 256;
    __syncthreads();
    for (int i = warp - first; i < 8; i += plan.splits) {
        float v = reduced(reduce, first, plan.splits, i, lane);
        if (slices == 1)
            linear_store(part, u.pair, tile * TILE_ROWS, rows, i, lane, v);
        else
            __stcg(partial + u.slice * 256 + i * 32 + lane, v);
    }
    if (slices > 1) { // splits == WARPS: one pair, and sum i is warp i's
        unsigned int *counter = slice_counter + plan.part[u.part].counter + place;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            *arrived = atomicAdd(counter, 1u);
        __syncthreads();
        if (*arrived == (unsigned int)slices - 1) {
            __threadfence();
            float v = __ldcg(partial + threadIdx.x);
            for (int s = 1; s < slices; s++)
                v += __ldcg(partial + s * 256 + threadIdx.x);
            linear_store(part, u.pair, tile * TILE_ROWS, rows, warp, lane, v);
            if (threadIdx.x == 0)
                *counter = 0;
        }
    }
    __syncthreads();
}

// Waits for the earlier kernels the first time, and tells the tile's rows.
struct linear_ready {
    const struct pass *pass;
    int32_t multiple, rows; // rows < 0: not known yet
    __device__ __forceinline__ void operator()(share *s)
    {
        if (rows < 0) {
            pdl_wait();
            rows = pass->rows * multiple;
        }
        int left = rows - s->tile.first;
        s->tile.count = left < TILE_ROWS ? left : TILE_ROWS;
    }
};

template <class CODE>
__global__ void __launch_bounds__(THREADS, 2)
    linear_rows_kernel(const __grid_constant__ struct linear_args a, const __grid_constant__ linear_plan plan)
{
    SHARED_ROOM(memory);
    __shared__ unsigned int arrived;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, staged = -1;
    linear_ready ready = {a.pass, a.row_multiple > 1 ? a.row_multiple : 1, -1};
    share s;
    s.room = {memory + REDUCE_BYTES + warp * room_bytes(plan.room_rows, plan.capacity), plan.room_rows, plan.capacity,
              0, 0};
    s.reduce = (float *)memory + warp * 256 + lane;
    s.expert = 0;
    s.lane = lane;
    pdl_trigger();
    for (int unit = blockIdx.x; unit < plan.units; unit += gridDim.x) {
        linear_unit u = unit_at(a, plan, unit, warp);
        s.w = &a.part[u.part].w;
        s.pair = u.live ? u.pair : 0;
        s.from = u.from;
        s.to = u.to;
        for (int tile = 0; tile == 0 || tile * TILE_ROWS < ready.rows; tile++) {
            s.tile = {a.x, a.ldx, NULL, 1, tile * TILE_ROWS, 0, a.k, plan.aligned};
            if (staged != tile)
                s.room.from = s.room.to = 0;
            staged = tile;
            share_run<CODE>::run(&s, &ready);
            if (ready.rows <= 0)
                return;
            linear_reduce(a, plan, u, tile, ready.rows, (const float *)memory, &arrived);
        }
    }
    if (ready.rows < 0)
        pdl_wait();
}

// Blocks of a pair: few enough groups to leave multiprocessors idle, and a k long enough to be worth a second stage.
static int part_slices(int groups, int blocks, int splits, int n, int k, int64_t budget)
{
    if (splits < WARPS || blocks < 128 || groups >= BLOCKS_AT_ONCE)
        return 1;
    int best = 1;
    double best_cost = 1e9;
    for (int z = 1; z <= 16 && blocks / (splits * z) >= 3 && (z == 1 || (int64_t)n * z <= budget); z++) {
        double cost = (double)((groups * z + BLOCKS_AT_ONCE - 1) / BLOCKS_AT_ONCE) / z + (z > 1 ? 0.02 : 0) + 0.005 * z;
        if (cost < best_cost)
            best_cost = cost, best = z;
    }
    (void)k;
    return best;
}

static linear_plan linear_plan_make(const struct linear_args *a, int64_t rows, size_t *shared)
{
    linear_plan plan = {};
    int blocks = (a->k + 31) / 32, counter = 0, share = 1;
    int64_t budget = 2 * (int64_t)a->k, partial = 0; // so that the sums of slices fit in scratch
    plan.splits = warp_splits(blocks);
    plan.room_rows = tile_rows_for(rows);
    plan.tiles = (int)((rows + TILE_ROWS - 1) / TILE_ROWS);
    plan.aligned = rows_aligned(a->x, a->ldx);
    for (int i = 0; i < a->parts; i++) {
        int each = WARPS / plan.splits, groups = (weight_pairs(&a->part[i].w) + each - 1) / each, n = a->part[i].w.n;
        int slices = part_slices(groups, blocks, plan.splits, n, a->k, budget);
        plan.part[i].first = plan.units;
        plan.part[i].groups = groups;
        plan.part[i].slices = slices;
        plan.part[i].counter = counter;
        plan.part[i].partial = partial;
        plan.units += groups * slices;
        if (slices > 1) {
            budget -= (int64_t)n * slices;
            partial += (int64_t)groups * slices * 256 * plan.tiles;
            counter += groups * plan.tiles;
        }
        int most = blocks / (plan.splits * slices) + 1;
        share = most > share ? most : share;
    }
    if (counter > COUNTERS)
        plan.units = 0;
    plan.capacity = room_capacity(share < 8 ? 8 : share, plan.room_rows, shared);
    return plan;
}

extern "C" cudaError_t cuda_linear(cudaStream_t stream, const struct linear_args *args, int rows)
{
    if (args->row_class == CLASS_PROMPT)
        return linear_prompt(stream, args, rows);
    size_t shared;
    int64_t all = (int64_t)rows * (args->row_multiple > 1 ? args->row_multiple : 1);
    linear_plan plan = linear_plan_make(args, all, &shared);
    if (plan.units == 0)
        return cudaErrorInvalidValue;
    int most = multiprocessors() * (shared <= SHARED_HALF ? 2 : 1);
    bool mixed = false;
    for (int i = 1; i < args->parts; i++)
        mixed = mixed || !same_code(&args->part[i].w, &args->part[0].w);
    cudaError_t error = cudaErrorInvalidValue;
    with_kernel(&args->part[0].w, mixed, [&](auto code) {
        error = launch(stream, dim3(plan.units < most ? plan.units : most), dim3(THREADS), shared,
                       linear_rows_kernel<typename decltype(code)::type>, *args, plan);
    });
    return error;
}
