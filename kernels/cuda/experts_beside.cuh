// SPDX-License-Identifier: Apache-2.0
//
// experts_up of one decode row in a launch that makes its choices of experts too, and the second product of a shared expert, whose row is
// silu(g) * u (experts.cu): for one shape alone.
//
// Every block chooses for itself, by the warp that puts; sixteen warps multiply the shared expert's units meanwhile, whose weights were
// asked for before the wait. Its units come to the last blocks first, experts' to the first ones.
// Invariant: the bits of route, glu, linear and experts_up. The first block has stored the choices for the whole card to see before it lets
// the next kernel begin, so that one may read them before its wait.

#ifndef CUDA_EXPERTS_BESIDE_CUH
#define CUDA_EXPERTS_BESIDE_CUH

#include "kernels/cuda/experts_decode.cuh"
#include "kernels/cuda/route.cuh"

// Beside experts_up_args: x of the product is silu(g) * u.
struct beside_args {
    struct route_args route;
    const float *g, *u;
    int32_t ldg, ldu, aligned; // rows begin at multiples of 16 bytes
    linear_part part;
};

template <class S> struct beside_fixed_shape {
    static constexpr bool FIXED = true;
    static constexpr int rows = 1;
    static constexpr beside_shape all = S::value;
    static constexpr experts_shape shape = S::value.up;
    static constexpr experts_plan plan = beside_plan_of(S::value);
    static constexpr x_form form = beside_form(S::value);
    static constexpr int chosen = chosen_bytes(S::value.up.slots, S::value.up.experts);
};

// Behind the barriers of the ring and of sums: what was chosen is listed.
static_assert(sizeof(ring_barriers) + sizeof(sum_barriers) + sizeof(uint64_t) <= ROOM_FIXED, "a block's barriers");
__device__ __forceinline__ uint64_t *beside_chosen(unsigned char *memory)
{
    return (uint64_t *)(memory + sizeof(ring_barriers) + sizeof(sum_barriers));
}

// at(unit) of the block's units of the product.
template <class AT> __device__ __forceinline__ void beside_units(const experts_plan &plan, const AT &at)
{
    for (int unit = (int)(gridDim.x - 1 - blockIdx.x); unit < plan.shared_units; unit += (int)gridDim.x)
        at(unit);
}

// Where the warp that chooses and the product have their memory: behind the choices.
template <class SHAPE>
__device__ __forceinline__ unsigned char *beside_memory(const experts_plan &plan, unsigned char *memory)
{
    return room_extra(plan.room, memory) + SHAPE::chosen;
}

// Chooses, by a warp.
template <class SHAPE>
__device__ __forceinline__ void beside_choose(const struct route_args &route, const experts_plan &plan, int live,
                                              int32_t *ids, unsigned char *memory)
{
    constexpr int EACH = (SHAPE::shape.experts + 31) / 32;
    float logit[EACH];
    uint32_t key[EACH];
    route_load(route, 0, logit); // whether there is a row is on its way
#pragma unroll
    for (int n = 0; n < EACH; n++)
        key[n] = (int)(threadIdx.x & 31) + 32 * n < SHAPE::shape.experts ? route_key(logit[n]) : 0;
    if (live > 0)
        route_choose(key, SHAPE::shape.slots, (unsigned long long *)beside_memory<SHAPE>(plan, memory), ids);
}

// The takers: the product's units. Leaves in *ring and *turn where experts go on.
template <class SHARED, class SHAPE>
__device__ __forceinline__ void beside_take(const beside_args &b, const experts_plan &plan, weight_ring *ring,
                                            int *turn, sum_barriers *barriers, unsigned char *memory)
{
    constexpr beside_shape all = SHAPE::all;
    const int warp = threadIdx.x >> 5, matrices = SHAPE::shape.gated ? 2 : 1;
    struct weight w = b.part.w;
    w.encoding = all.code.encoding;
    w.bits = all.code.bits;
    w.group = all.code.group;
    w.n = all.n;
    w.k = all.k;
    share s = share_open(plan.room, plan.shared_splits, memory);
    s.x.memory = beside_memory<SHAPE>(plan, memory) + ROUTE_SOME * sizeof(unsigned long long);
    s.x.form = SHAPE::form;
    s.x.capacity = plan.shared.blocks;
    s.w = &w;
    s.from = 0;
    s.to = plan.shared.blocks;
    s.step = plan.shared.step;
    s.scale_at = plan.shared.scale_at;
    s.shift = plan.shared.shift;
    s.grain = plan.shared.grain;
    s.x.from = s.x.to = 0;
    s.tile = {b.g, b.ldg, NULL, 1, 0, 1, all.k, b.aligned, false, b.u, b.ldu, NULL, NULL, NULL, 0};
    beside_units(plan, [&](int unit) {
        sums_begin(barriers, *turn);
        s.pair = unit * (WARPS / plan.shared_splits) + s.own;
        s.sums = room_sums(plan.room, memory, matrices * (*turn % SUM_SETS)) + warp * 32;
        share_run<SHARED, FORM_FEW>::run(&s);
        sums_end(barriers, (*turn)++);
    });
    ring->slot = s.ring.slot;
    ring->parity = s.ring.parity;
}

// The warps that add: the product's units. Returns how many there were.
template <class SHAPE>
__device__ __forceinline__ int beside_add(const beside_args &b, const experts_plan &plan, int live,
                                          sum_barriers *barriers, unsigned char *memory)
{
    const int matrices = SHAPE::shape.gated ? 2 : 1, pairs = WARPS / plan.shared_splits;
    const float factor = b.part.alpha * (b.part.w.global ? *b.part.w.global : 1.0f);
    int turn = 0;
    beside_units(plan, [&](int unit) {
        const float *sums = room_sums(plan.room, memory, matrices * (turn % SUM_SETS));
        sums_take(barriers, turn);
        for (int i = threadIdx.x - THREADS; i < pairs * 32; i += 32 * ADDERS) {
            const int own = i >> 5, o = unit * pairs * 32 + i;
            const float v = reduced(sums + own * plan.shared_splits * 32 + (i & 31), plan.shared_splits, 32);
            if (o < SHAPE::all.n && live > 0)
                b.part.y[o] = v * factor;
        }
        sums_give(barriers, turn++);
    });
    return turn;
}

// Stores the choices, seen by the card. By a warp, when they are listed.
template <class SHAPE>
__device__ __forceinline__ void beside_store(const struct route_args &route, int live, const int32_t *ids)
{
    constexpr int EACH = (SHAPE::shape.experts + 31) / 32;
    if (live > 0)
        route_weigh<EACH>(route, 0, ids);
    __threadfence();
    __syncwarp();
}

template <class CODE, class SHARED, class SHAPE>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    experts_beside_kernel(const __grid_constant__ struct experts_up_args given, const __grid_constant__ beside_args b,
                          const __grid_constant__ experts_plan given_plan)
{
    SHARED_ROOM(memory);
    const auto &a = experts_up_here<SHAPE>(given);
    const auto &plan = experts_plan_here<SHAPE>(given_plan);
    constexpr bool gated = SHAPE::shape.gated;
    constexpr int slots = SHAPE::shape.slots, TAKE = 104, LEAVE = 64;
    static_assert(TAKE * TAKERS + LEAVE * (BLOCK_THREADS - TAKERS) <= 96 * BLOCK_THREADS, "registers of a block");
    sum_barriers *barriers = (sum_barriers *)(memory + sizeof(ring_barriers));
    uint64_t *chosen = beside_chosen(memory);
    experts_chosen c = chosen_view((int32_t *)room_extra(plan.room, memory), slots, 0);
    c.count = c.pairs = slots;
    if (threadIdx.x == TAKERS) {
        sums_open(barriers, ADDERS);
        stage_open(chosen, ARRIVALS);
        ring_open((ring_barriers *)memory, plan.room.slots);
    }
    __syncthreads();
    const bool stores = blockIdx.x == 0;
    const int lane = threadIdx.x & 31, own = ((int)threadIdx.x - TAKERS) >> 5;
    auto listed = [&](int live) { // false: no row, and nothing to do
        stage_wait(chosen, 0);
        return live > 0;
    };
    if (threadIdx.x < TAKERS) {
        registers_more<TAKE>(); // in the role itself: behind a place where roles meet the compiler would know of fewer
        weight_ring ring = room_ring(plan.room, memory);
        int turn = 0;
        pdl_wait();
        if (!stores)
            pdl_trigger();
        beside_take<SHARED, SHAPE>(b, plan, &ring, &turn, barriers, memory);
        if (!listed(__ldcg(&a.pass->rows)))
            return;
        experts_take<CODE>(plan, c, gated ? &a.gate : NULL, &a.up, a.x, a.ldx, slots, ring, turn, barriers, memory);
        return;
    }
    registers_fewer<LEAVE>();
    if (threadIdx.x < THREADS) {
        weight_ring ring = room_ring(plan.room, memory);
        int put = 0;
        beside_units(plan, [&](int unit) {
            const int panels = 2 * (WARPS / plan.shared_splits);
            ring_put(&ring, plan.shared, 0, unit * panels, panels, 0, plan.shared.blocks, &put, lane);
        });
        pdl_wait();
        const int live = __ldcg(&a.pass->rows);
        beside_choose<SHAPE>(b.route, plan, live, c.ids, memory);
        choose_one(c, slots, lane);
        choose_one(c, slots, lane + 32);
        stage_arrive_warp(chosen);
        if (listed(live))
            experts_put(plan, c, gated, &ring, put);
    } else {
        pdl_wait();
        const int live = __ldcg(&a.pass->rows);
        if (!stores)
            pdl_trigger();
        if (stores && own == 1) {
            listed(live);
            beside_store<SHAPE>(b.route, live, c.ids);
            pdl_trigger();
        }
        const int turn = beside_add<SHAPE>(b, plan, live, barriers, memory);
        if (!listed(live))
            return;
        experts_add(
            plan, c, gated ? 2 : 1, turn, barriers, memory,
            [&](int expert) { return experts_up_factors(a, gated, expert); },
            [&](const experts_unit &u, float2 factor, const float *of_gate, const float *of_up, int there,
                const int32_t *list) { experts_up_finish(a, plan, gated, u, factor, of_gate, of_up, there, list); });
    }
}

#endif
