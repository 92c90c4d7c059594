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
    int32_t splits, split_shift, room_rows, capacity, aligned;
    int32_t units, tiles;   // tiles of TILE_ROWS rows that the capacity has
    int32_t rows, multiple; // capacity, in rows of x; of them for a row of the pass
    struct {
        int32_t first, groups, slices; // first unit; groups of WARPS / splits pairs
        int32_t counter;               // first counter
        int64_t partial;               // first float in scratch
    } part[LINEAR_PARTS];
};

// A place in the block's list of units, tile by tile.
struct linear_unit {
    int32_t unit, tile; // unit >= units: past the end
    int32_t part, group, slice, pair;
    bool live; // the warp has a pair
    share s;
};

__device__ __forceinline__ void unit_find(const struct linear_args &a, const linear_plan &plan, linear_unit *u)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    u->s.count = 0;
    if (u->unit >= plan.units)
        return;
    u->part = 0;
    while (u->part + 1 < a.parts && u->unit >= plan.part[u->part + 1].first)
        u->part++;
    int at = u->unit - plan.part[u->part].first, blocks = (a.k + 31) / 32, slices = plan.part[u->part].slices;
    int groups = plan.part[u->part].groups, shift = plan.split_shift;
    u->slice = slices == 1 ? 0 : at / groups;
    u->group = at - u->slice * groups;
    u->pair = u->group * (WARPS >> shift) + (warp >> shift);
    u->s.w = &a.part[u->part].w;
    u->live = u->pair * 32 < u->s.w->n;
    u->s.place = lane_place(u->s.w, 0, u->live ? u->pair : 0, lane);
    share_cut(&u->s, blocks * u->slice / slices, u->live ? blocks * (u->slice + 1) / slices : 0, shift,
              warp & (plan.splits - 1));
    u->s.tile = {a.x, a.ldx, NULL, 1, u->tile * TILE_ROWS, plan.rows - u->tile * TILE_ROWS, a.k, plan.aligned};
}

__device__ __forceinline__ void linear_store(const linear_part &part, int pair, int r, int rows, int lane, float v)
{
    int o = pair * 32 + lane;
    if (o < part.w.n && r < rows) {
        float factor = part.alpha * (part.w.global ? *part.w.global : 1.0f);
        part.y[(int64_t)r * part.ldy + o] = activate(v * factor, part.activation);
    }
}

// Adds the warps' sums of each pair, then, with several slices, the blocks' sums; stores the outputs. One barrier without
// slices: the block's next sums go to other memory.
__device__ __forceinline__ void linear_reduce(const struct linear_args &a, const linear_plan &plan,
                                              const linear_unit &u, int rows, const float *reduce,
                                              unsigned int *arrived)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, part_of = warp & (plan.splits - 1), first = warp - part_of;
    const linear_part &part = a.part[u.part];
    int slices = plan.part[u.part].slices;
    int64_t place = (int64_t)u.tile * plan.part[u.part].groups + u.group;
    float *partial = (float *)a.scratch + plan.part[u.part].partial + place * slices * 256;
    __syncthreads();
    for (int r = part_of; r < plan.room_rows; r += plan.splits) {
        float v = reduced(reduce, first, plan.splits, r, lane);
        if (slices == 1)
            linear_store(part, u.pair, u.tile * TILE_ROWS + r, rows, lane, v);
        else
            __stcg(partial + u.slice * 256 + r * 32 + lane, v);
    }
    if (slices == 1)
        return;
    // splits == WARPS: one pair, and row r is warp r's
    unsigned int *counter = slice_counter + plan.part[u.part].counter + place;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        *arrived = atomicAdd(counter, 1u);
    __syncthreads();
    if (*arrived == (unsigned int)slices - 1) {
        __threadfence();
        if (warp < plan.room_rows) {
            float v = __ldcg(partial + threadIdx.x);
            for (int s = 1; s < slices; s++)
                v += __ldcg(partial + s * 256 + threadIdx.x);
            linear_store(part, u.pair, u.tile * TILE_ROWS + warp, rows, lane, v);
        }
        if (threadIdx.x == 0)
            *counter = 0;
    }
    __syncthreads();
}

template <class CODE>
__global__ void __launch_bounds__(THREADS, 2)
    linear_rows_kernel(const __grid_constant__ struct linear_args a, const __grid_constant__ linear_plan plan)
{
    SHARED_ROOM(memory);
    __shared__ unsigned int arrived;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, odd = 0;
    warp_room room = {memory + REDUCE_BYTES + warp * room_bytes(plan.room_rows, plan.capacity),
                      plan.room_rows,
                      plan.capacity,
                      0,
                      0,
                      0};
    share_runner<CODE> runner;
    linear_unit u, next;
    u.unit = blockIdx.x;
    u.tile = 0;
    pdl_trigger();
    unit_find(a, plan, &u);
    runner.begin(u.s, lane);
    pdl_wait();
    int rows = a.pass->rows * plan.multiple; // rows past it are computed too, and not stored
    while (u.unit < plan.units) {
        next.tile = u.tile + 1 < plan.tiles ? u.tile + 1 : 0;
        next.unit = next.tile ? u.unit : u.unit + gridDim.x;
        unit_find(a, plan, &next);
        float *reduce = (float *)memory + odd * (REDUCE_BYTES / 8);
        runner.run(u.s, next.s, &room, lane, reduce + warp * 256);
        if (next.tile != u.tile)
            room.from = room.to = 0;
        linear_reduce(a, plan, u, rows, reduce, &arrived);
        odd ^= 1;
        u = next;
    }
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
    while (1 << plan.split_shift < plan.splits)
        plan.split_shift++;
    plan.rows = (int32_t)rows;
    plan.multiple = a->row_multiple > 1 ? a->row_multiple : 1;
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
        int most = (blocks / slices + 1) / plan.splits + 1;
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
