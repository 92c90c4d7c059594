// SPDX-License-Identifier: Apache-2.0
//
// The kernels of experts of decode rows (experts.cu): a unit of work is an expert that some row chose, some of its pairs of
// panels, and all rows that chose it, so that its weights are read once.
//
// There is no grouping beforehand: every block lists the experts from the ids, each at its first (row, slot), and takes
// a run of neighbouring units. One warp puts weights, sixteen multiply, and three more add their sums and store, while
// they are at the next unit. As in linear_decode.cuh a kernel is made for a SHAPE, or for whatever it is given.
// Invariant: a (row, slot) is a column of the products of its own; nothing of it depends on the other columns; a SHAPE changes no bit.

#ifndef CUDA_EXPERTS_DECODE_CUH
#define CUDA_EXPERTS_DECODE_CUH

#include "kernels/cuda/experts_plan.cuh"

// A launch whose shape the kernel is given.
struct experts_given {
    static constexpr bool FIXED = false;
};

// One that the kernel is made for: S::value is its shape.
template <class S, int ROWS> struct experts_fixed_shape {
    static constexpr bool FIXED = true;
    static constexpr int rows = ROWS;
    static constexpr experts_shape shape = S::value;
    static constexpr experts_plan plan = experts_plan_of(S::value, ROWS);
};

__device__ __forceinline__ void source_place(stage_source *s, const stage_source &given)
{
    s->data = given.data;
    s->scale = given.scale;
    s->data_stride = given.data_stride;
    s->scale_stride = given.scale_stride;
}

template <class SHAPE> __device__ __forceinline__ decltype(auto) experts_plan_here(const experts_plan &given)
{
    if constexpr (SHAPE::FIXED) {
        experts_plan plan = SHAPE::plan;
        source_place(&plan.gate, given.gate);
        source_place(&plan.up, given.up);
        source_place(&plan.shared, given.shared);
        return plan;
    } else {
        return (given);
    }
}

template <class SHAPE>
__device__ __forceinline__ struct weight weight_here(const struct weight &given, const code_shape &code)
{
    struct weight w = given;
    if constexpr (SHAPE::FIXED) {
        w.encoding = code.encoding;
        w.bits = code.bits;
        w.group = code.group;
        w.n = SHAPE::shape.n;
        w.k = SHAPE::shape.k;
    }
    return w;
}

// A unit: an expert, the first of its pairs, and the part of the list that chose it.
struct experts_unit {
    int32_t expert, first, from, count;
};

// The first of the units of block `block` of `blocks`: neighbours, which are mostly about the same rows of x.
// Beside a product, fewer units than blocks are the first blocks', one each: the product's are the last ones'.
__device__ __forceinline__ int experts_begin(const experts_plan &plan, const experts_chosen &c, unsigned block)
{
    const int units = c.count * plan.groups;
    if (plan.shared_units > 0 && units <= (int)gridDim.x)
        return (int)block < units ? (int)block : units;
    return share_begin(units, (int)block, (int)gridDim.x);
}

// The kernel before this one: what it wrote may be read, and what it reads be written, once it has ended.
struct kernel_before {
    bool ended;
    __device__ __forceinline__ void end(void)
    {
        if (!ended) {
            pdl_wait();
            pdl_trigger();
        }
        ended = true;
    }
};

// A block's tiles one after the other: at(unit, first, rows) of each unit, and of each part of an expert's list that a
// tile holds.
template <class AT>
__device__ __forceinline__ void experts_tiles(const experts_plan &plan, const experts_chosen &c, const AT &at)
{
    const int most = 1 << plan.room.shift, begin = experts_begin(plan, c, blockIdx.x);
    int left = experts_begin(plan, c, blockIdx.x + 1) - begin, which = begin / plan.groups,
        first = (begin - which * plan.groups) * plan.pairs;
    for (; left > 0; which++, first = 0) {
        const int from = c.offset[which], count = c.offset[which + 1] - from, expert = c.ids[c.first[which]];
        for (; left > 0 && first < plan.groups * plan.pairs; first += plan.pairs, left--)
            for (int row = 0; row < count; row += most)
                at(experts_unit{expert, first, from, count}, row, count - row < most ? count - row : most);
    }
}

// The warp that puts; put: stages so far. An expert that more rows chose than a tile holds comes once for each tile.
__device__ __forceinline__ void experts_put(const experts_plan &plan, const experts_chosen &c, bool gated,
                                            weight_ring *ring, int put)
{
    experts_tiles(plan, c, [&](const experts_unit &u, int, int) {
        for (int matrix = gated ? 0 : 1; matrix < 2; matrix++) {
            const stage_source &s = matrix ? plan.up : plan.gate;
            ring_put(ring, s, u.expert, 2 * u.first, 2 * plan.pairs, 0, s.blocks, &put, threadIdx.x & 31);
        }
    });
}

// The takers: gate first, then up. x: rows of k numbers, of which (row, slot) i is number i / divisor. turn: units so far, whose stages
// `ring` has given.
template <class CODE>
__device__ __forceinline__ void experts_take(const experts_plan &plan, const experts_chosen &c,
                                             const struct weight *gate, const struct weight *up, const float *x,
                                             int64_t ldx, int divisor, const weight_ring &ring, int turn,
                                             sum_barriers *barriers, unsigned char *memory)
{
    const int warp = threadIdx.x >> 5, wide = 32 << plan.room.shift, matrices = gate ? 2 : 1;
    int held = -1; // the (row, slot) that the window begins with
    share s = share_open(plan.room, plan.splits, memory);
    s.ring = ring;
    s.from = 0;
    s.to = plan.up.blocks;
    experts_tiles(plan, c, [&](const experts_unit &u, int first, int rows) {
        const int set = turn % SUM_SETS;
        sums_begin(barriers, turn);
        s.expert = u.expert;
        s.pair = u.first + s.own;
        s.tile = {
            x,    ldx, c.list + u.from, divisor, first, rows, up->k, plan.room.aligned, false, NULL, 0, NULL, NULL,
            NULL, 0};
        if (held != u.from + first && c.pairs != divisor) // else all of it is about the same row of x
            s.x.from = s.x.to = 0;
        held = u.from + first;
        for (int matrix = 2 - matrices; matrix < 2; matrix++) {
            const stage_source &source = matrix ? plan.up : plan.gate;
            s.w = matrix ? up : gate;
            s.sums = room_sums(plan.room, memory, matrices * set + matrix + matrices - 2) + warp * wide;
            s.step = source.step;
            s.scale_at = source.scale_at;
            s.shift = source.shift;
            s.grain = source.grain;
            share_run<CODE, FORM_FEW>::run(&s);
        }
        sums_end(barriers, turn++);
    });
}

// A lane's outputs of a unit: of(pair of the unit, place in a warp's sums, row of the tile, output of the unit).
template <class OF> __device__ __forceinline__ void each_output(const experts_plan &plan, int rows, const OF &of)
{
    for (int o = threadIdx.x - THREADS; o < plan.pairs * 32; o += 32 * ADDERS)
        for (int r = 0; r < rows; r++)
            of(o >> 5, ((o & 31) << plan.room.shift) + r, r, o);
}

// The warps that add: finish(unit, factors(expert), sums of gate, sums of up, rows, list of (row, slot)s) adds the
// takers' sums and stores. turn: units so far.
template <class FACTORS, class FINISH>
__device__ __forceinline__ void experts_add(const experts_plan &plan, const experts_chosen &c, int matrices, int turn,
                                            sum_barriers *barriers, unsigned char *memory, const FACTORS &factors,
                                            const FINISH &finish)
{
    experts_tiles(plan, c, [&](const experts_unit &u, int first, int rows) {
        const int set = turn % SUM_SETS;
        const float2 f = factors(u.expert);
        sums_take(barriers, turn);
        finish(u, f, room_sums(plan.room, memory, matrices * set),
               room_sums(plan.room, memory, matrices * set + matrices - 1), rows, c.list + u.from + first);
        sums_give(barriers, turn++);
    });
}

// Everything of a kernel: choices, then the three roles. What may be read before the wait is read past L1. early: x is
// there before the kernel before this one has ended. The ids of rows beyond the pass are loaded too and not looked at.
template <class CODE, class FACTORS, class FINISH>
__device__ __forceinline__ void
experts_run(const experts_plan &plan, const int32_t *ids, int pairs, int slots, int capacity, int experts,
            const struct weight *gate, const struct weight *up, const float *x, int64_t ldx, int divisor, bool early,
            kernel_before *before, unsigned char *memory, const FACTORS &factors, const FINISH &finish)
{
    __shared__ int count;
    experts_chosen c = chosen_view((int32_t *)room_extra(plan.room, memory), capacity, pairs);
    sum_barriers *barriers = (sum_barriers *)(memory + sizeof(ring_barriers));
    if (threadIdx.x < TAKERS) {
        const int chosen = choose(c, ids, capacity, slots, experts, 1 << plan.room.shift);
        if (threadIdx.x == 0)
            count = chosen;
    } else if (threadIdx.x == TAKERS) {
        sums_open(barriers, ADDERS);
        ring_open((ring_barriers *)memory, plan.room.slots);
    }
    __syncthreads();
    c.count = count;
    ring_registers<104, 64>();
    if (threadIdx.x < TAKERS) {
        if (!early)
            before->end();
        experts_take<CODE>(plan, c, gate, up, x, ldx, divisor, room_ring(plan.room, memory), 0, barriers, memory);
    } else if (threadIdx.x < THREADS) {
        weight_ring ring = room_ring(plan.room, memory);
        experts_put(plan, c, gate != NULL, &ring, 0);
    } else {
        before->end();
        experts_add(plan, c, gate ? 2 : 1, 0, barriers, memory, factors, finish);
    }
    before->end();
}

template <class SHAPE> __device__ __forceinline__ decltype(auto) experts_up_here(const struct experts_up_args &given)
{
    if constexpr (SHAPE::FIXED) {
        constexpr experts_shape shape = SHAPE::shape;
        struct experts_up_args a = given;
        a.experts = shape.experts;
        a.slots = shape.slots;
        a.k = shape.k;
        a.inner = shape.n;
        a.activation = shape.activation;
        a.early = shape.early;
        a.gate = weight_here<SHAPE>(given.gate, shape.gate);
        a.up = weight_here<SHAPE>(given.up, shape.code);
        return a;
    } else {
        return (given);
    }
}

template <class SHAPE>
__device__ __forceinline__ decltype(auto) experts_down_here(const struct experts_down_args &given)
{
    if constexpr (SHAPE::FIXED) {
        constexpr experts_shape shape = SHAPE::shape;
        struct experts_down_args a = given;
        a.experts = shape.experts;
        a.slots = shape.slots;
        a.k = shape.k;
        a.n = shape.n;
        a.down = weight_here<SHAPE>(given.down, shape.code);
        return a;
    } else {
        return (given);
    }
}

// (row, slot)s that the launch has room for.
template <class SHAPE> __device__ __forceinline__ int experts_capacity(int given)
{
    if constexpr (SHAPE::FIXED)
        return SHAPE::rows * SHAPE::shape.slots;
    else
        return given;
}

template <class SHAPE> __device__ __forceinline__ bool experts_gated(const struct experts_up_args &a)
{
    if constexpr (SHAPE::FIXED)
        return SHAPE::shape.gated;
    else
        return a.gate.data != NULL;
}

// What experts_add() wants of experts_up: an expert's factors, and the end of a unit.
__device__ __forceinline__ float2 experts_up_factors(const struct experts_up_args &a, bool gated, int expert)
{
    return float2{gated && a.gate.global ? a.gate.global[expert] : 1.0f, a.up.global ? a.up.global[expert] : 1.0f};
}
__device__ __forceinline__ void experts_up_finish(const struct experts_up_args &a, const experts_plan &plan, bool gated,
                                                  const experts_unit &u, float2 factor, const float *of_gate,
                                                  const float *of_up, int rows, const int32_t *list)
{
    const int wide = 32 << plan.room.shift;
    each_output(plan, rows, [&](int own, int f, int r, int o) {
        if (u.first * 32 + o >= a.inner)
            return;
        const float up = reduced(of_up + own * plan.splits * wide + f, plan.splits, wide) * factor.y;
        const float gate = gated ? reduced(of_gate + own * plan.splits * wide + f, plan.splits, wide) * factor.x : 0;
        a.h[(int64_t)list[r] * a.inner + u.first * 32 + o] =
            gated ? activate(gate, ACT_SILU) * up : activate(up, a.activation);
    });
}

template <class CODE, class SHAPE>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    experts_up_kernel(const __grid_constant__ struct experts_up_args given,
                      const __grid_constant__ experts_plan given_plan, int given_capacity)
{
    SHARED_ROOM(memory);
    const auto &a = experts_up_here<SHAPE>(given);
    const auto &plan = experts_plan_here<SHAPE>(given_plan);
    const int capacity = experts_capacity<SHAPE>(given_capacity);
    kernel_before before = {false};
    if (!a.early)
        before.end();
    const bool gated = experts_gated<SHAPE>(given);
    auto factors = [&](int expert) { return experts_up_factors(a, gated, expert); };
    auto finish = [&](const experts_unit &u, float2 factor, const float *of_gate, const float *of_up, int rows,
                      const int32_t *list) {
        experts_up_finish(a, plan, gated, u, factor, of_gate, of_up, rows, list);
    };
    experts_run<CODE>(plan, a.ids, __ldcg(&a.pass->rows) * a.slots, a.slots, capacity, a.experts,
                      gated ? &a.gate : NULL, &a.up, a.x, a.ldx, a.slots, true, &before, memory, factors, finish);
}

template <class CODE, class SHAPE>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    experts_down_kernel(const __grid_constant__ struct experts_down_args given,
                        const __grid_constant__ experts_plan given_plan, int given_capacity)
{
    SHARED_ROOM(memory);
    const auto &a = experts_down_here<SHAPE>(given);
    const auto &plan = experts_plan_here<SHAPE>(given_plan);
    const int capacity = experts_capacity<SHAPE>(given_capacity);
    kernel_before before = {
        false}; // experts_up at the earliest: the choices are older, or it let this one begin behind them
    auto factors = [&](int expert) { return float2{1.0f, a.down.global ? a.down.global[expert] : 1.0f}; };
    auto finish = [&](const experts_unit &u, float2 factor, const float *, const float *sums, int rows,
                      const int32_t *list) {
        const int wide = 32 << plan.room.shift;
        each_output(plan, rows, [&](int own, int f, int r, int o) {
            if (u.first * 32 + o < a.n)
                a.y[(int64_t)list[r] * a.n + u.first * 32 + o] =
                    reduced(sums + own * plan.splits * wide + f, plan.splits, wide) * factor.y;
        });
    };
    experts_run<CODE>(plan, a.ids, __ldcg(&a.pass->rows) * a.slots, a.slots, capacity, a.experts, NULL, &a.down, a.h,
                      a.k, 1, false, &before, memory, factors, finish);
}

#endif
