// SPDX-License-Identifier: Apache-2.0
//
// The kernel of decode-class products (linear.cu): memory-bound, weights decoded in registers and multiplied on the tensor cores.
//
// A unit of work is some pairs of panels (32 outputs each) of one part and one slice of k; `splits` warps share each pair.
// All parts' units form one list that the blocks, one a multiprocessor, walk with a stride. Where there are few pairs and a long
// k, several blocks share a pair (slices). They are a cluster whose first block gets all sums; where that cannot be, each leaves its
// sums in scratch, and the last to come adds them. Either way in the order of the slices.
// A step's launch may have blocks more, which make a row's choices of experts instead (route.cuh).
//
// The kernel is made for a SHAPE, whose numbers it then has as constants, or for whatever it is given: a launch is short, and what it
// waits for is mostly its own instructions, half of which work out places from sizes.
// Invariant: sums are added in ascending order of k, whoever adds them; a SHAPE changes no bit.

#ifndef CUDA_LINEAR_DECODE_CUH
#define CUDA_LINEAR_DECODE_CUH

#include "kernels/cuda/linear_plan.cuh"
#include "kernels/cuda/settle.cuh"
#ifndef CUDA_EMULATION
#include "kernels/cuda/cluster.cuh"
#endif

// How many slices of a group have come; zero between launches, since the last to come clears it.
static __device__ unsigned int slice_counter[COUNTERS];

// A launch whose shape the kernel is given.
struct shape_given {
    static constexpr bool FIXED = false;
};

// One that the kernel is made for: S::value is its shape. Sums of many tiles have places that follow from their number.
template <class S, int TILE> struct linear_fixed_shape {
    static constexpr bool FIXED = true, TILES = TILE == TILE_ROWS;
    static constexpr int ROWS = TILE;
    static constexpr linear_shape shape = S::value;
    static constexpr linear_plan plan = linear_plan_of(S::value, TILE);
};

// What x is made of: in kernels for one shape alone, since others would carry the code.
template <class SHAPE> static __host__ __device__ constexpr int linear_before(void)
{
    if constexpr (SHAPE::FIXED)
        return SHAPE::shape.norm;
    return BEFORE_NOTHING;
}

// The plan, without its parts.
template <class SHAPE> __device__ __forceinline__ decltype(auto) linear_plan_here(const linear_plan &given)
{
    if constexpr (SHAPE::FIXED) {
        constexpr linear_plan made = SHAPE::plan;
        linear_plan plan = {made.room, given.step, made.splits, made.slices, made.pairs};
        plan.step.dim = made.step.dim;
        if (!SHAPE::shape.glu)
            plan.step.up = NULL;
        plan.units = made.units;
        plan.blocks = made.blocks;
        plan.capacity = SHAPE::ROWS == 1 ? 1 : given.capacity;
        plan.tiles = SHAPE::TILES ? given.tiles : 1;
        plan.apart = made.apart;
        plan.staged = made.staged;
        plan.rows_at = given.rows_at;
        plan.cluster = SHAPE::TILES ? made.cluster && given.cluster : made.cluster;
        return plan;
    } else {
        return (given);
    }
}

template <class SHAPE> __device__ __forceinline__ decltype(auto) linear_piece_at(const linear_plan &given, int part)
{
    if constexpr (SHAPE::FIXED) {
        constexpr linear_plan made = SHAPE::plan;
        linear_piece piece = made.part[0];
#pragma unroll
        for (int i = 1; i < SHAPE::shape.parts; i++)
            if (part == i)
                piece = made.part[i];
        piece.source.data = given.part[part].source.data;
        piece.source.scale = given.part[part].source.scale;
        if (SHAPE::TILES) {
            piece.counter = given.part[part].counter;
            piece.partial = given.part[part].partial;
        }
        return piece;
    } else {
        return (given.part[part]);
    }
}

template <class SHAPE> __device__ __forceinline__ decltype(auto) linear_part_at(const struct linear_args &a, int part)
{
    if constexpr (SHAPE::FIXED) {
        constexpr linear_shape made = SHAPE::shape;
        linear_part p = a.part[part];
        auto take = [&](int i) {
            p.w.encoding = made.part[i].encoding;
            p.w.bits = made.part[i].bits;
            p.w.group = made.part[i].group;
            p.w.n = made.part[i].n;
            p.activation = made.part[i].activation;
        };
        take(0);
#pragma unroll
        for (int i = 1; i < made.parts; i++)
            if (part == i)
                take(i);
        p.w.k = made.k;
        return p;
    } else {
        return (a.part[part]);
    }
}

// Where in the list a block is: a part, a group of pairs and a slice, with its first pair and its blocks.
struct linear_unit {
    int32_t part, group, slice, first, from, to;
};

template <class SHAPE>
__device__ __forceinline__ linear_unit unit_at(const struct linear_args &a, const linear_plan &plan,
                                               const linear_plan &given, int unit)
{
    linear_unit u = {};
    if constexpr (SHAPE::FIXED) {
        constexpr linear_plan made = SHAPE::plan;
#pragma unroll
        for (int i = 1; i < SHAPE::shape.parts; i++)
            u.part += unit >= made.part[i].first;
    } else {
        while (u.part + 1 < a.parts && unit >= given.part[u.part + 1].first)
            u.part++;
    }
    const auto &piece = linear_piece_at<SHAPE>(given, u.part);
    u.group = unit - piece.first;
    u.to = piece.source.blocks;
    if (plan.slices > 1) {
        const int blocks = u.to;
        u.slice = u.group % plan.slices;
        u.group /= plan.slices;
        u.from = linear_slice_begin(blocks, u.slice, plan.slices);
        u.to = linear_slice_begin(blocks, u.slice + 1, plan.slices);
    }
    u.first = plan.step.dim ? u.group : u.group * plan.pairs;
    return u;
}

__device__ __forceinline__ int linear_rows(const struct linear_args &a, int live)
{
    return live * (a.row_multiple > 1 ? a.row_multiple : 1);
}

template <class SHAPE> __device__ __forceinline__ int linear_k(const struct linear_args &a)
{
    if constexpr (SHAPE::FIXED)
        return SHAPE::shape.k;
    else
        return a.k;
}

__device__ __forceinline__ int linear_tiles(const linear_plan &plan, int rows)
{
    return (rows + (1 << plan.room.shift) - 1) >> plan.room.shift;
}

// The warp that puts: all units, once for each tile. The first tile is there whatever the pass has, so that nothing waits for that.
template <class SHAPE>
__device__ __forceinline__ void linear_put(const struct linear_args &a, const linear_plan &plan,
                                           const linear_plan &given, weight_ring *ring)
{
    const int lane = threadIdx.x & 31;
    int put = 0, tiles = 1;
    for (int tile = 0; tile < tiles; tile++) {
        for (int unit = blockIdx.x; unit < plan.units; unit += plan.blocks) {
            const linear_unit u = unit_at<SHAPE>(a, plan, given, unit);
            ring_put(ring, linear_piece_at<SHAPE>(given, u.part).source, 0, 2 * u.first, 2 * plan.pairs, u.from, u.to,
                     &put, lane);
        }
        if (tile == 0) {
            pdl_wait();
            if (plan.tiles > 1)
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

// Warps that add and store, where blocks have several units: those that take need not meet at the end of each. In kernels for one shape
// alone; where x comes with the stages all warps put that can.
template <int FORM, class SHAPE> static __host__ __device__ constexpr int linear_adders(void)
{
    if constexpr (SHAPE::FIXED) {
        constexpr linear_plan plan = SHAPE::plan;
        return FORM != FORM_STAGED && plan.units > plan.blocks && plan.slices == 1 && plan.step.dim == 0 ? ADDERS : 0;
    }
    return 0;
}

__device__ __forceinline__ sum_barriers *linear_sums(unsigned char *memory)
{
    return (sum_barriers *)(memory + sizeof(ring_barriers));
}

// A tile's rows that were taken apart.
__device__ __forceinline__ const uint8_t *linear_apart_at(const struct linear_args &a, const linear_plan &plan, int k,
                                                          int tile)
{
    return (const uint8_t *)a.scratch + plan.rows_at + (int64_t)tile * ((k + 31) / 32) * x_blocks(plan.room.form.kinds);
}

// A warp that puts stages with x in them.
template <class SHAPE>
__device__ __forceinline__ void linear_put_staged(const struct linear_args &a, const linear_plan &plan,
                                                  const linear_plan &given, weight_ring *ring)
{
    const int lane = threadIdx.x & 31, slots = plan.room.slots;
    staged_putter putter = {0, ((int)threadIdx.x - TAKERS) >> 5, slots < STAGED_PUTTERS ? slots : STAGED_PUTTERS,
                            false};
    const int block = x_blocks(plan.room.form.kinds);
    int tiles = 1;
    for (int tile = 0; tile < tiles; tile++) {
        const uint8_t *x = linear_apart_at(a, plan, linear_k<SHAPE>(a), tile);
        for (int unit = blockIdx.x; unit < plan.units; unit += plan.blocks) {
            const linear_unit u = unit_at<SHAPE>(a, plan, given, unit);
            staged_put(ring, linear_piece_at<SHAPE>(given, u.part).source, 2 * u.first, 2 * plan.pairs, u.from, u.to, x,
                       block, &putter, lane);
        }
        if (tile == 0 && plan.tiles > 1) {
            staged_wait(&putter);
            tiles = linear_tiles(plan, linear_rows(a, a.pass->rows));
        }
    }
    staged_wait(&putter);
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
__device__ __forceinline__ void linear_meet(const linear_part &part, const linear_plan &plan, const linear_unit &u,
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
        linear_store(part, factor, u.first * 32 + (i >> shift), i & ((1 << shift) - 1), rows,
                     sliced(plan.slices, [&](int slice) { return box[slice * all + i]; }));
}

// Adds the warps' sums of each pair, then, with several slices, the blocks' sums; stores the outputs. turn: units so far; factor: of
// the part.
__device__ __forceinline__ void linear_reduce(const struct linear_args &a, const linear_part &part,
                                              const linear_plan &plan, const linear_piece &piece, const linear_unit &u,
                                              int tile, int rows, int turn, float factor, const float *sums,
                                              unsigned int *arrived)
{
    const int shift = plan.room.shift, wide = 32 << shift, all = plan.pairs * wide, slices = plan.slices;
    const int begin = (threadIdx.x + 32 * turn) & (TAKERS - 1); // so that no warp has always more to do
    const int64_t place = (int64_t)tile * piece.groups + u.group;
    float *partial = (float *)a.scratch + piece.partial + place * slices * all;
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
    unsigned int *counter = slice_counter + piece.counter + place;
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

// The rows of a tile: x, with `left` rows there.
template <class SHAPE>
__device__ __forceinline__ row_source_tile linear_tile(const struct linear_args &a, const linear_plan &plan, int first,
                                                       int left, int live, unsigned char *memory)
{
    const int wide = 1 << plan.room.shift, k = linear_k<SHAPE>(a);
    return {a.x,
            a.ldx,
            NULL,
            1,
            first,
            left < wide ? left : wide,
            k,
            plan.room.aligned,
            plan.room.aligned && !plan.step.up && k % 32 == 0,
            plan.step.up,
            plan.step.ld_up,
            linear_before<SHAPE>() != BEFORE_NOTHING ? &plan.step.before : NULL,
            (float *)(memory + ROOM_FIXED), // sums are made later
            &((ring_barriers *)memory)->rows_free,
            live,
            plan.apart ? linear_apart_at(a, plan, k, first / TILE_ROWS) : NULL};
}

// How many blocks of a launch have read its residual, for each warp that adds to it; zero between launches.
static __device__ unsigned int residual_readers[ADDERS];

// By the warps that neither take nor put: the addition to the residual, a third each, by the block that comes last: all have read it then,
// since a block counts when what its warps read has been used.
__device__ __forceinline__ void linear_residual(const struct residual_row &b, int k, const struct pass *pass,
                                                ring_barriers *barriers)
{
    enum { TOGETHER = 5 };
    const int lane = threadIdx.x & 31, warp = ((int)threadIdx.x - THREADS) >> 5, step = 32 * ADDERS * 4;
    unsigned int earlier = 0;
    pdl_wait();
    const int live = pass->rows;
    stage_wait(&barriers->rows_free, 0);
    if (lane == 0)
        earlier = atomicAdd(residual_readers + warp, 1u);
    earlier = __shfl_sync(0xffffffffu, earlier, 0);
    if (earlier != gridDim.x - 1)
        return;
    for (int first = (warp * 32 + lane) * 4; first < k && live > 0; first += TOGETHER * step) {
        float4 v[TOGETHER], y[TOGETHER];
#pragma unroll
        for (int n = 0; n < TOGETHER; n++) // all are under way before one is stored
            if (first + n * step < k) {
                v[n] = __ldcg((const float4 *)(b.residual + first + n * step));
                y[n] = __ldcg((const float4 *)(b.added + first + n * step));
            }
#pragma unroll
        for (int n = 0; n < TOGETHER; n++)
            if (first + n * step < k)
                *(float4 *)(b.residual + first + n * step) =
                    make_float4(fmaf(1.0f, y[n].x, v[n].x), fmaf(1.0f, y[n].y, v[n].y), fmaf(1.0f, y[n].z, v[n].z),
                                fmaf(1.0f, y[n].w, v[n].w));
    }
    if (lane == 0)
        residual_readers[warp] = 0;
}

// Whether streams may be changed beside the mix: of one row alone, others would carry the code.
template <class SHAPE> static __host__ __device__ constexpr bool linear_updates(void)
{
    if constexpr (SHAPE::FIXED)
        return SHAPE::ROWS == 1;
    return true;
}

// By a warp that neither takes nor puts: the injection into the streams of the block's outputs, of one row; hc_inject's operations.
__device__ __forceinline__ void linear_update(const linear_plan &plan, const struct pass *pass)
{
    const struct stream_update &u = plan.step.update;
    const int warp = ((int)threadIdx.x - THREADS) >> 5;
    pdl_wait();
    if (pass->rows == 0)
        return;
    for (int unit = blockIdx.x; unit < plan.units; unit += plan.blocks) {
        const int o = unit * 32 + (threadIdx.x & 31);
#pragma unroll 1
        for (int c = warp; c < STREAMS_MOST; c += ADDERS) {
            float *at = u.streams + c * plan.step.dim + o;
            *at = fmaf(f_mul(2.0f, f_sigmoid(__ldcg(u.inject + c))), __ldcg(u.added + o), __ldcg(at));
        }
    }
}

template <class CODE, int FORM, class SHAPE>
__device__ __forceinline__ void linear_take(const struct linear_args &a, const linear_plan &plan,
                                            const linear_plan &given, unsigned char *memory, unsigned int *arrived)
{
    const int warp = threadIdx.x >> 5, wide = 1 << plan.room.shift;
    int turn = 0;
    share s = share_open(plan.room, plan.splits, memory);
    pdl_wait();
    pdl_trigger();
    int live = a.pass->rows;
    for (int tile = 0; tile == 0 || (plan.tiles > 1 && tile < linear_tiles(plan, linear_rows(a, live))); tile++) {
        if (FORM != FORM_STAGED) // so that x need not wait for the number of rows
            s.tile = linear_tile<SHAPE>(a, plan, tile * wide, plan.capacity - tile * wide, live, memory);
        s.x.from = s.x.to = 0;
        for (int unit = blockIdx.x; unit < plan.units; unit += plan.blocks, turn++) {
            const linear_unit u = unit_at<SHAPE>(a, plan, given, unit);
            const auto &piece = linear_piece_at<SHAPE>(given, u.part);
            const auto &part = linear_part_at<SHAPE>(a, u.part);
            const stage_source &source = piece.source;
            float *sums = room_sums(plan.room, memory, turn);
            s.w = &part.w;
            s.pair = u.first + s.own * (source.stride >> 1);
            s.from = u.from;
            s.to = u.to;
            s.step = source.step;
            s.scale_at = source.scale_at;
            s.x_at = source.x_at;
            s.grain = source.grain;
            s.shift = source.shift;
            s.sums = sums + (warp * 32 << plan.room.shift);
            if (linear_adders<FORM, SHAPE>() > 0) {
                sums_begin(linear_sums(memory), turn);
                share_run<CODE, FORM, linear_before<SHAPE>()>::run(&s);
                sums_end(linear_sums(memory), turn);
                continue;
            }
            const float factor = part.alpha * (part.w.global ? *part.w.global : 1.0f);
            share_run<CODE, FORM, linear_before<SHAPE>()>::run(&s);
            settle(live);
            const int rows = linear_rows(a, live);
            if (plan.cluster)
                linear_meet(part, plan, u, rows, factor, sums, memory);
            else if (plan.step.dim)
                linear_mix(plan, u, tile, rows, turn, factor, sums);
            else
                linear_reduce(a, part, plan, piece, u, tile, rows, turn, factor, sums, arrived);
        }
    }
}

// A warp that adds and stores.
template <class SHAPE>
__device__ __forceinline__ void linear_add(const struct linear_args &a, const linear_plan &plan,
                                           const linear_plan &given, unsigned char *memory)
{
    const int shift = plan.room.shift, wide = 32 << shift, all = plan.pairs * wide;
    int turn = 0;
    pdl_wait();
    const int rows = linear_rows(a, a.pass->rows), tiles = plan.tiles > 1 ? linear_tiles(plan, rows) : 1;
    for (int tile = 0; tile == 0 || tile < tiles; tile++) // the first one is there whatever the pass has
        for (int unit = blockIdx.x; unit < plan.units; unit += plan.blocks, turn++) {
            const linear_unit u = unit_at<SHAPE>(a, plan, given, unit);
            const auto &part = linear_part_at<SHAPE>(a, u.part);
            const float factor = part.alpha * (part.w.global ? *part.w.global : 1.0f);
            const float *sums = room_sums(plan.room, memory, turn);
            sums_take(linear_sums(memory), turn);
            for (int i = threadIdx.x - THREADS; i < all; i += 32 * ADDERS) {
                const int f = i & (wide - 1);
                linear_store(part, factor, u.first * 32 + (i >> shift), (tile << shift) + (f & ((1 << shift) - 1)),
                             rows, reduced(sums + (i >> (shift + 5)) * plan.splits * wide + f, plan.splits, wide));
            }
            sums_give(linear_sums(memory), turn);
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

template <class CODE, int FORM, class SHAPE>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    linear_rows_kernel(const __grid_constant__ struct linear_args a, const __grid_constant__ linear_plan given)
{
    SHARED_ROOM(memory);
    const auto &plan = linear_plan_here<SHAPE>(given);
    __shared__ unsigned int arrived;
    constexpr int adders = linear_adders<FORM, SHAPE>();
    constexpr bool adds = linear_before<SHAPE>() == BEFORE_ADD, more = adders > 0 || adds; // warps that need registers
    if (blockIdx.x >= plan.blocks) {
        linear_route(plan, memory);
        return;
    }
    if (threadIdx.x == TAKERS) {
        ring_open((ring_barriers *)memory, plan.room.slots);
        if (adders)
            sums_open(linear_sums(memory), adders);
        if (plan.cluster)
            box_open(linear_came(memory), plan.slices * plan.pairs * (32 << plan.room.shift) * 4);
    }
    __syncthreads();
    if (plan.cluster)
        cluster_arrive_read();
    if (threadIdx.x < TAKERS) {
        registers_more<more ? 104 : 112>();
        linear_take<CODE, FORM, SHAPE>(a, plan, given, memory, &arrived);
        return;
    }
    registers_fewer<more ? 64 : 32>();
    if (FORM == FORM_STAGED) {
        weight_ring ring = room_ring(plan.room, memory);
        linear_put_staged<SHAPE>(a, plan, given, &ring);
    } else if (threadIdx.x < THREADS) {
        weight_ring ring = room_ring(plan.room, memory);
        linear_put<SHAPE>(a, plan, given, &ring);
    } else if (adders > 0) {
        linear_add<SHAPE>(a, plan, given, memory);
    }
    if (adds && threadIdx.x >= THREADS)
        linear_residual(plan.step.before, linear_k<SHAPE>(a), a.pass, (ring_barriers *)memory);
    if (linear_updates<SHAPE>() && plan.step.dim && plan.step.update.streams && threadIdx.x >= THREADS)
        linear_update(plan, a.pass);
}

#endif
