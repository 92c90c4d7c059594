// SPDX-License-Identifier: Apache-2.0
//
// linear_args. The decode class: memory-bound, weights decoded in registers and multiplied on the tensor cores.
//
// A unit of work is some pairs of panels (32 outputs each) of one part and one slice of k; `splits` warps share each pair.
// All parts' units form one list that the blocks, one a multiprocessor, walk with a stride. Where there are few pairs and a long
// k, several blocks share a pair (slices). They are a cluster whose first block gets all sums; where that cannot be, each leaves its
// sums in scratch, and the last to come adds them. Either way in the order of the slices.
// A step's launch may have blocks more, which make a row's choices of experts instead (route.cuh).
// Invariant: cuts of k come from the shapes of the launch; sums are added in ascending order of k, whoever adds them.

#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/route.cuh"
#include "kernels/cuda/settle.cuh"
#ifndef CUDA_EMULATION
#include "kernels/cuda/cluster.cuh"
#endif

enum { COUNTERS = 1 << 17, SLICES_MOST = 8, STREAMS_MOST = 4 };

// How many slices of a group have come; zero between launches, since the last to come clears it.
__device__ unsigned int slice_counter[COUNTERS];

// What a step does beside the product.
struct linear_step {
    const float *up; // glu before it: x is silu(x) * up
    int64_t ld_up;
    const float *xn; // hc_mix behind it: the outputs are gates of xn's four streams of dim numbers, y their mix
    float *y;
    int32_t dim;
    struct route_args route; // beside it, if it has slots: the choices of `rows` rows, a block each
    int32_t rows;
};

struct linear_plan {
    room_plan room;
    linear_step step;
    int32_t splits, slices, pairs; // warps of a pair; blocks of a pair; pairs of a unit
    int32_t capacity;              // rows that the launch is made for
    int32_t units, tiles;          // tiles of TILE_ROWS rows that the capacity has
    int32_t blocks;                // that have units
    int32_t cluster;               // slices of a group are a cluster
    struct {
        stage_source source;
        int32_t first, groups; // first unit; groups of WARPS / splits pairs
        int32_t counter;       // first counter
        int64_t partial;       // first float in scratch
    } part[LINEAR_PARTS];
};

// Where in the list a block is: a part, a group of pairs and a slice, with its first pair and its blocks.
struct linear_unit {
    int32_t part, group, slice, first, from, to;
};

__device__ __forceinline__ linear_unit unit_at(const struct linear_args &a, const linear_plan &plan, int unit)
{
    linear_unit u = {};
    while (u.part + 1 < a.parts && unit >= plan.part[u.part + 1].first)
        u.part++;
    u.group = unit - plan.part[u.part].first;
    u.to = plan.part[u.part].source.blocks;
    if (plan.slices > 1) {
        const int blocks = u.to;
        u.slice = u.group % plan.slices;
        u.group /= plan.slices;
        u.from = share_begin(blocks, u.slice, plan.slices);
        u.to = share_begin(blocks, u.slice + 1, plan.slices);
    }
    u.first = plan.step.y ? u.group : u.group * plan.pairs;
    return u;
}

__device__ __forceinline__ int linear_rows(const struct linear_args &a, int live)
{
    return live * (a.row_multiple > 1 ? a.row_multiple : 1);
}

__device__ __forceinline__ int linear_tiles(const linear_plan &plan, int rows)
{
    return (rows + (1 << plan.room.shift) - 1) >> plan.room.shift;
}

// The warp that puts: all units, once for each tile. The first tile is there whatever the pass has, so that nothing waits for that.
__device__ __forceinline__ void linear_put(const struct linear_args &a, const linear_plan &plan, weight_ring *ring)
{
    const int lane = threadIdx.x & 31;
    int put = 0, tiles = 1;
    for (int tile = 0; tile < tiles; tile++) {
        for (int unit = blockIdx.x; unit < plan.units; unit += plan.blocks) {
            const linear_unit u = unit_at(a, plan, unit);
            ring_put(ring, plan.part[u.part].source, 0, 2 * u.first, 2 * plan.pairs, u.from, u.to, &put, lane);
        }
        if (tile == 0) {
            pdl_wait();
            tiles = linear_tiles(plan, linear_rows(a, a.pass->rows));
        }
    }
}

__device__ __forceinline__ void linear_store(const linear_part &part, float factor, int o, int r, int rows, float v)
{
    if (o < part.w.n && r < rows)
        part.y[(int64_t)r * part.ldy + o] = activate(v * factor, part.activation);
}

// The mix of the streams' pairs, which are those of the unit: hc_mix's operations in its order.
__device__ __forceinline__ void linear_mix(const linear_plan &plan, const linear_unit &u, int tile, int rows, int turn,
                                           float factor, const float *sums)
{
    const int shift = plan.room.shift, wide = 32 << shift, i = (threadIdx.x + 32 * turn) & (TAKERS - 1);
    const int r = (tile << shift) + (i & ((1 << shift) - 1)), o = u.first * 32 + (i >> shift);
    const bool mine = i < wide && r < rows;
    float x[STREAMS_MOST], sum = 0;
#pragma unroll
    for (int c = 0; c < STREAMS_MOST; c++)
        x[c] = mine ? plan.step.xn[((int64_t)r * STREAMS_MOST + c) * plan.step.dim + o] : 0.0f;
    some_wait(TAKERS);
    if (!mine)
        return;
#pragma unroll
    for (int c = 0; c < STREAMS_MOST; c++) {
        const float gate = reduced(sums + c * plan.splits * wide + i, plan.splits, wide) * factor;
        sum = fmaf(__fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-gate))), x[c], sum);
    }
    plan.step.y[(int64_t)r * plan.step.dim + o] = __fmul_rn(sum, 1.0f / (float)STREAMS_MOST);
}

// Where the first block of a cluster gets the sums: in the second set of its own, which a block of one unit leaves alone.
__device__ __forceinline__ uint64_t *linear_came(unsigned char *memory)
{
    return (uint64_t *)(memory + sizeof(ring_barriers));
}

// Adds the slices' numbers i of a unit, each `all` behind the one before, in their order.
template <class NUMBER> __device__ __forceinline__ float sliced(int slices, const NUMBER &number)
{
    float t[SLICES_MOST], v;
#pragma unroll
    for (int s = 0; s < SLICES_MOST; s++)
        t[s] = s < slices ? number(s) : 0.0f;
    v = t[0];
#pragma unroll
    for (int s = 1; s < SLICES_MOST; s++)
        v += t[s];
    return v;
}

// Adds the warps' sums of each pair, puts them into the first block's box, and stores there.
__device__ __forceinline__ void linear_meet(const struct linear_args &a, const linear_plan &plan, const linear_unit &u,
                                            int rows, float factor, const float *sums, unsigned char *memory)
{
    const int shift = plan.room.shift, wide = 32 << shift, all = plan.pairs * wide;
    float *box = room_sums(plan.room, memory, 1);
    some_wait(TAKERS);
    cluster_wait(); // the first block has opened its box
    for (int i = 2 * threadIdx.x; i < all; i += 2 * TAKERS) {
        const float *from = sums + (i >> (shift + 5)) * plan.splits * wide + (i & (wide - 1));
        box_put(box + u.slice * all + i, linear_came(memory), 0, reduced(from, plan.splits, wide),
                reduced(from + 1, plan.splits, wide));
    }
    if (u.slice != 0)
        return;
    box_wait(linear_came(memory));
    for (int i = threadIdx.x; i < all; i += TAKERS)
        linear_store(a.part[u.part], factor, u.first * 32 + (i >> shift), i & ((1 << shift) - 1), rows,
                     sliced(plan.slices, [&](int slice) { return box[slice * all + i]; }));
}

// Adds the warps' sums of each pair, then, with several slices, the blocks' sums; stores the outputs. turn: units so far; factor: of
// the part.
__device__ __forceinline__ void linear_reduce(const struct linear_args &a, const linear_plan &plan,
                                              const linear_unit &u, int tile, int rows, int turn, float factor,
                                              const float *sums, unsigned int *arrived)
{
    const linear_part &part = a.part[u.part];
    const int shift = plan.room.shift, wide = 32 << shift, all = plan.pairs * wide, slices = plan.slices;
    const int begin = (threadIdx.x + 32 * turn) & (TAKERS - 1); // so that no warp has always more to do
    const int64_t place = (int64_t)tile * plan.part[u.part].groups + u.group;
    float *partial = (float *)a.scratch + plan.part[u.part].partial + place * slices * all;
    some_wait(TAKERS);
    for (int i = begin; i < all; i += TAKERS) {
        const int own = i >> (shift + 5), f = i & (wide - 1);
        const float v = reduced(sums + own * plan.splits * wide + f, plan.splits, wide);
        if (slices == 1)
            linear_store(part, factor, u.first * 32 + (i >> shift), (tile << shift) + (f & ((1 << shift) - 1)), rows,
                         v);
        else
            __stcg(partial + u.slice * all + i, v);
    }
    if (slices == 1)
        return;
    unsigned int *counter = slice_counter + plan.part[u.part].counter + place;
    some_wait(TAKERS);
    if (threadIdx.x == 0) { // a fence of one thread behind a barrier of all is a fence of all
        __threadfence();
        *arrived = atomicAdd(counter, 1u);
        __threadfence();
    }
    some_wait(TAKERS);
    if (*arrived != (unsigned int)slices - 1)
        return;
    for (int i = begin; i < all; i += TAKERS) {
        const float *from = partial + i; // moves on: as many addresses would take as many registers
        const float v = sliced(slices, [&](int slice) {
            const float *at = from;
            from += all;
            return slice < slices ? __ldcg(at) : 0.0f;
        });
        linear_store(part, factor, u.first * 32 + (i >> shift), (tile << shift) + (i & ((1 << shift) - 1)), rows, v);
    }
    if (threadIdx.x == 0)
        *counter = 0;
}

template <class CODE, bool EIGHT>
__device__ __forceinline__ void linear_take(const struct linear_args &a, const linear_plan &plan, unsigned char *memory,
                                            unsigned int *arrived)
{
    const int warp = threadIdx.x >> 5;
    int turn = 0;
    share s = share_open(plan.room, plan.splits, memory);
    pdl_wait();
    pdl_trigger();
    int live = a.pass->rows;
    const int wide = 1 << plan.room.shift;
    for (int tile = 0; tile == 0 || tile < linear_tiles(plan, linear_rows(a, live)); tile++) {
        const int left = plan.capacity - tile * wide; // so that x need not wait for the number of rows
        s.tile = {a.x,
                  a.ldx,
                  NULL,
                  1,
                  tile * wide,
                  left < wide ? left : wide,
                  a.k,
                  plan.room.aligned,
                  plan.room.aligned && !plan.step.up && a.k % 32 == 0,
                  plan.step.up,
                  plan.step.ld_up};
        s.x.from = s.x.to = 0;
        for (int unit = blockIdx.x; unit < plan.units; unit += plan.blocks, turn++) {
            const linear_unit u = unit_at(a, plan, unit);
            float *sums = room_sums(plan.room, memory, turn);
            const stage_source &source = plan.part[u.part].source;
            s.w = &a.part[u.part].w;
            s.pair = u.first + s.own * (source.stride >> 1);
            s.from = u.from;
            s.to = u.to;
            s.step = source.step;
            s.scale_at = source.scale_at;
            s.shift = source.shift;
            s.sums = sums + (warp * 32 << plan.room.shift);
            const float factor = a.part[u.part].alpha * (s.w->global ? *s.w->global : 1.0f);
            share_run<CODE, EIGHT>::run(&s);
            settle(live);
            const int rows = linear_rows(a, live);
            if (plan.cluster)
                linear_meet(a, plan, u, rows, factor, sums, memory);
            else if (plan.step.y)
                linear_mix(plan, u, tile, rows, turn, factor, sums);
            else
                linear_reduce(a, plan, u, tile, rows, turn, factor, sums, arrived);
        }
    }
}

// A block behind those that have units: the choices of a row.
__device__ __forceinline__ void linear_route(const linear_plan &plan, unsigned char *memory)
{
    const struct route_args &a = plan.step.route;
    const int32_t r = blockIdx.x - plan.blocks;
    route_space *space = (route_space *)memory;
    auto sync = []() { some_wait(TAKERS); };
    static_assert(ROUTE_THREADS == TAKERS, "those who take choose");
    pdl_wait();
    pdl_trigger();
    if (threadIdx.x >= TAKERS || r >= a.pass->rows)
        return;
    if (a.sigmoid)
        route_row<true>(a, r, space, sync);
    else
        route_row<false>(a, r, space, sync);
}

template <class CODE, bool EIGHT>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    linear_rows_kernel(const __grid_constant__ struct linear_args a, const __grid_constant__ linear_plan plan)
{
    SHARED_ROOM(memory);
    __shared__ unsigned int arrived;
    if (blockIdx.x >= plan.blocks) {
        linear_route(plan, memory);
        return;
    }
    if (threadIdx.x == TAKERS) {
        ring_open((ring_barriers *)memory, plan.room.slots);
        if (plan.cluster)
            box_open(linear_came(memory), plan.slices * plan.pairs * (32 << plan.room.shift) * 4);
    }
    __syncthreads();
    if (plan.cluster)
        cluster_arrive_read();
    ring_registers<112, 32>();
    if (threadIdx.x < TAKERS) {
        linear_take<CODE, EIGHT>(a, plan, memory, &arrived);
    } else if (threadIdx.x < THREADS) {
        weight_ring ring = room_ring(plan.room, memory);
        linear_put(a, plan, &ring);
    }
}

// Warps and blocks of a pair, for `pairs` of `blocks` blocks: the least time, counted in blocks that a warp does one after
// the other (with slices fewer on average count a little too), with what a round of units and a sum over blocks cost beside.
static void cut(struct linear_plan *plan, const struct linear_args *a, int blocks, int64_t budget)
{
    double best = 1e30;
    int64_t outputs = 0;
    for (int i = 0; i < a->parts; i++)
        outputs += (int64_t)weight_pairs(&a->part[i].w) * 32;
    for (int splits = 2; splits <= WARPS; splits *= 2)
        for (int slices = 1; slices <= SLICES_MOST && (slices == 1 || outputs * slices <= budget); slices++) {
            int units = 0, each = WARPS / splits;
            for (int i = 0; i < a->parts; i++)
                units += (weight_pairs(&a->part[i].w) + each - 1) / each * slices;
            if (splits * slices > blocks && splits > 2)
                continue;
            const int rounds = (units + BLOCKS_AT_ONCE - 1) / BLOCKS_AT_ONCE, shares = splits * slices;
            const int most = (blocks + shares - 1) / shares; // blocks of a warp
            const double less = most - (double)blocks / shares;
            const double cost = rounds * (most + 1.0) + (slices > 1 ? 2.5 + 0.1 * slices - 0.4 * less : 0);
            if (cost < best) {
                best = cost;
                plan->splits = splits;
                plan->slices = slices;
            }
        }
}

// The sources of the parts, and where a block's memory goes: stages as long as leaves place for enough of them.
static void linear_room(linear_plan *plan, const struct linear_args *a, int blocks, int64_t rows, size_t *shared)
{
    int64_t bytes = 0;
    for (int i = 0; i < a->parts; i++)
        bytes += stage_weight_bytes(&a->part[i].w);
    for (int number = 0; number < STAGE_RULES + STAGE_HALVES; number++) {
        const stage_rule rule = stage_rule_at(number, bytes);
        int slot = 0, most = 0;
        for (int i = 0; i < a->parts; i++) {
            const int length = stage_bytes(&a->part[i].w, plan->splits, rule);
            plan->part[i].source = stage_source_make(&a->part[i].w, plan->splits, rule);
            if (plan->step.y)
                plan->part[i].source.stride = plan->step.dim / 16;
            slot = length > slot ? length : slot;
            most = plan->part[i].source.step > most ? plan->part[i].source.step : most;
        }
        plan->room = room_plan_make(blocks / plan->slices + 1, tile_rows_for(rows), slot, most, 2, 0, shared);
        if (room_plan_good(plan->room, number, *shared))
            break;
    }
    plan->room.aligned = rows_aligned(a->x, a->ldx);
}

static linear_plan linear_plan_make(const struct linear_args *a, const linear_step *step, int64_t rows, size_t *shared)
{
    linear_plan plan = {};
    int blocks = (a->k + 31) / 32, counter = 0;
    int64_t partial = 0;
    if (step)
        plan.step = *step;
    cut(&plan, a, blocks, 2 * (int64_t)a->k); // so that the sums of slices fit in scratch
    if (plan.step.y) {                        // a unit has a pair of each stream
        plan.splits = WARPS / STREAMS_MOST;
        plan.slices = 1;
    }
    plan.pairs = WARPS / plan.splits;
    plan.capacity = (int)rows;
    plan.tiles = (int)((rows + tile_rows_for(rows) - 1) / tile_rows_for(rows));
    for (int i = 0; i < a->parts; i++) {
        const int each = plan.pairs, groups = (weight_pairs(&a->part[i].w) + each - 1) / each;
        plan.part[i].first = plan.units;
        plan.part[i].groups = groups;
        plan.part[i].counter = counter;
        plan.part[i].partial = partial;
        plan.units += groups * plan.slices;
        if (plan.slices > 1) {
            partial += (int64_t)groups * each * plan.slices * 32 * tile_rows_for(rows) * plan.tiles;
            counter += groups * plan.tiles;
        }
    }
    if (counter > COUNTERS)
        plan.units = 0;
    plan.blocks = plan.units < multiprocessors() ? plan.units : multiprocessors();
    linear_room(&plan, a, blocks, rows, shared);
    if (plan.step.rows && *shared < sizeof(route_space))
        *shared = sizeof(route_space);
    return plan;
}

// do_it(code, flag) for the kernel of the parts' encodings.
template <class DO> static void linear_kernel(const struct linear_args *a, int rows, const DO &do_it)
{
    const struct weight *first = &a->part[0].w, *other = first;
    bool two = true; // encodings at most
    for (int i = 1; i < a->parts; i++) {
        const struct weight *w = &a->part[i].w;
        if (same_code(other, first))
            other = w;
        two = two && (same_code(w, first) || same_code(w, other));
    }
    if (same_code(other, first) || !two)
        with_kernel(first, !two, rows, do_it);
    else
        with_two_kernel(first, other, rows, do_it);
}

// Whether slices may be clusters: each block has one unit and one tile, whose sums fit into a box, and they all run at once.
static bool linear_clusters(const linear_plan &plan, const void *kernel, size_t shared)
{
    return plan.slices > 1 && plan.slices * plan.pairs <= WARPS && plan.tiles == 1 && plan.step.rows == 0 &&
           plan.units == plan.blocks &&
           plan.units / plan.slices <= clusters_at_once(kernel, BLOCK_THREADS, shared, plan.slices);
}

static cudaError_t linear_launch(cudaStream_t stream, const struct linear_args *args, const linear_step *step, int rows)
{
    size_t shared;
    const int64_t all = (int64_t)rows * (args->row_multiple > 1 ? args->row_multiple : 1);
    linear_plan plan = linear_plan_make(args, step, all, &shared);
    if (plan.units == 0)
        return cudaErrorInvalidValue;
    cudaError_t error = cudaErrorInvalidValue;
    linear_kernel(args, tile_rows_for(all), [&](auto code, auto eight) {
        auto kernel = linear_rows_kernel<typename decltype(code)::type, decltype(eight)::value>;
        plan.cluster = linear_clusters(plan, (const void *)kernel, shared);
        plan.blocks = plan.cluster ? plan.units : plan.blocks;
        error = launch_cluster(stream, dim3(plan.blocks + plan.step.rows), dim3(BLOCK_THREADS), shared,
                               plan.cluster ? (unsigned)plan.slices : 1u, kernel, *args, plan);
    });
    return error;
}

extern "C" cudaError_t cuda_linear(cudaStream_t stream, const struct linear_args *args, int rows)
{
    return args->row_class == CLASS_PROMPT ? linear_prompt(stream, args, rows)
                                           : linear_launch(stream, args, NULL, rows);
}

// args: of glu and of the product of its rows. step: what else the launch does.
static cudaError_t glu_linear(cudaStream_t stream, const void *const *args, linear_step step, int rows)
{
    const struct glu_args *glu = (const struct glu_args *)args[0];
    struct linear_args linear = *(const struct linear_args *)args[1];
    if (linear.row_class == CLASS_PROMPT || linear.row_multiple > 1 || !glu->g || glu->activation != ACT_SILU ||
        glu->width != linear.k || rows_aligned(glu->g, glu->ldg) != rows_aligned(glu->u, glu->ldu))
        return cudaErrorNotSupported;
    linear.x = glu->g;
    linear.ldx = glu->ldg;
    step.up = glu->u;
    step.ld_up = glu->ldu;
    return linear_launch(stream, &linear, &step, rows);
}

extern "C" cudaError_t cuda_glu_linear(cudaStream_t stream, const void *const *args, int rows)
{
    return glu_linear(stream, args, linear_step(), rows);
}

// Where the product's blocks and the rows are more than the multiprocessors, rows wait for blocks that have ended.
extern "C" cudaError_t cuda_route_glu_linear(cudaStream_t stream, const void *const *args, int rows)
{
    linear_step step = {};
    step.route = *(const struct route_args *)args[0];
    step.rows = rows;
    return route_fits(&step.route) ? glu_linear(stream, args + 1, step, rows) : cudaErrorNotSupported;
}

extern "C" cudaError_t cuda_linear_mix(cudaStream_t stream, const void *const *args, int rows)
{
    const struct linear_args *linear = (const struct linear_args *)args[0];
    const struct hc_mix_args *mix = (const struct hc_mix_args *)args[1];
    linear_step step = {};
    if (linear->row_class == CLASS_PROMPT || linear->row_multiple > 1 || linear->parts != 1 ||
        mix->streams != STREAMS_MOST || mix->dim % 32 || linear->part[0].w.n != mix->streams * mix->dim ||
        linear->part[0].activation != ACT_NONE)
        return cudaErrorNotSupported;
    step.xn = mix->xn;
    step.y = mix->y;
    step.dim = mix->dim;
    return linear_launch(stream, linear, &step, rows);
}
