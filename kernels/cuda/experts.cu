// SPDX-License-Identifier: Apache-2.0
//
// experts_up_args and experts_down_args, decode class: a unit of work is an expert that some row chose, some of its pairs of
// panels, and all rows that chose it, so that its weights are read once.
//
// There is no grouping beforehand: every block lists the experts from the ids, each at its first (row, slot), and takes a run of
// neighbouring units.
// Invariant: a (row, slot) is a column of the products of its own; nothing of it depends on the other columns.

#include "kernels/cuda/linear.cuh"

enum { EXPERT_TILE_ROWS = 4 }; // rows of a tile at most: an expert is seldom chosen by more

struct experts_plan {
    room_plan room;
    int32_t splits, groups, pairs; // warps of a pair; units of an expert; pairs of a unit
    stage_source gate, up;         // or down
};

// What a block knows of the choices, in shared memory: first[i] of `count` experts is the lowest (row, slot) that chose it, and
// list[offset[i]] .. list[offset[i + 1] - 1] are all that did, ascending.
struct experts_chosen {
    int32_t *ids, *first, *list, *offset;
    int32_t pairs, count;
};

__device__ __forceinline__ experts_chosen chosen_view(int32_t *memory, int capacity, int pairs)
{
    return {memory, memory + capacity, memory + 2 * capacity, memory + 3 * capacity, pairs, 0};
}

static inline int chosen_bytes(int capacity)
{
    return (4 * capacity + 4) * 4;
}

// The numbers i in 0 .. pairs - 1 for which yes(i), ascending, into list. All takers call it and get how many there are.
template <class YES> __device__ __forceinline__ int gather(int pairs, int32_t *list, YES yes)
{
    __shared__ int counts[WARPS];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int total = 0;
    for (int base = 0; base < pairs; base += TAKERS) {
        const int i = base + threadIdx.x;
        const bool mine = i < pairs && yes(i);
        const unsigned int votes = __ballot_sync(0xffffffffu, mine);
        if (lane == 0)
            counts[warp] = __popc(votes);
        some_wait(TAKERS);
        int before = total;
        for (int w = 0; w < WARPS; w++) {
            before += w < warp ? counts[w] : 0;
            total += counts[w];
        }
        if (mine)
            list[before + __popc(votes & ((1u << lane) - 1))] = i;
        some_wait(TAKERS);
    }
    return total;
}

// One warp: those that chose expert e; into list, unless NULL. Returns how many.
__device__ __forceinline__ int choosers(const experts_chosen &c, int e, int32_t *list)
{
    const int lane = threadIdx.x & 31;
    int count = 0;
    for (int base = 0; base < c.pairs; base += 32) {
        const bool mine = base + lane < c.pairs && c.ids[base + lane] == e;
        const unsigned int votes = __ballot_sync(0xffffffffu, mine);
        if (list && mine)
            list[count + __popc(votes & ((1u << lane) - 1))] = base + lane;
        count += __popc(votes);
    }
    return count;
}

// One warp: offset[i + 1] holds the count of expert i, and then where its list ends.
__device__ __forceinline__ void end_offsets(int32_t *offset, int count)
{
    const int lane = threadIdx.x & 31;
    int before = 0;
    for (int base = 0; base < count; base += 32) {
        int v = base + lane < count ? offset[base + lane + 1] : 0;
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, v, step);
            v += lane >= step ? other : 0;
        }
        if (base + lane < count)
            offset[base + lane + 1] = before + v;
        before += __shfl_sync(0xffffffffu, v, 31);
    }
    if (lane == 0)
        offset[0] = 0;
}

// By all takers; what it wrote may be read after a barrier of the block. The experts of a single row are all different.
__device__ __forceinline__ int choose(const experts_chosen &c, int slots, int experts)
{
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (c.pairs == slots) {
        if (threadIdx.x < slots)
            c.first[threadIdx.x] = c.list[threadIdx.x] = threadIdx.x;
        if (threadIdx.x <= slots)
            c.offset[threadIdx.x] = threadIdx.x;
        return slots;
    }
    some_wait(TAKERS); // the ids are there
    const int count = gather(c.pairs, c.first, [&](int i) {
        const int e = c.ids[i];
        bool fresh = e >= 0 && e < experts;
        for (int j = 0; j < i; j++)
            fresh = fresh && c.ids[j] != e;
        return fresh;
    });
    for (int i = warp; i < count; i += WARPS) {
        const int chose = choosers(c, c.ids[c.first[i]], NULL);
        if (lane == 0)
            c.offset[i + 1] = chose;
    }
    some_wait(TAKERS);
    if (warp == 0)
        end_offsets(c.offset, count);
    some_wait(TAKERS);
    for (int i = warp; i < count; i += WARPS)
        choosers(c, c.ids[c.first[i]], c.list + c.offset[i]);
    return count;
}

// Unit `unit`: an expert, the first of its pairs, and the part of the list that chose it.
struct experts_unit {
    int32_t which, expert, first, from, count; // which: of the listed experts
};

// The first of the units of block `block` of `blocks`: neighbours, which are mostly about the same rows of x.
__device__ __forceinline__ int experts_begin(const experts_plan &plan, const experts_chosen &c, unsigned block)
{
    return share_begin(c.count * plan.groups, (int)block, (int)gridDim.x);
}

__device__ __forceinline__ experts_unit experts_unit_at(const experts_plan &plan, const experts_chosen &c, int unit)
{
    const int which = unit / plan.groups, from = c.offset[which];
    return {which, c.ids[c.first[which]], (unit - which * plan.groups) * plan.pairs, from, c.offset[which + 1] - from};
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

// The warp that puts. An expert that more rows chose than a tile holds comes once for each tile.
__device__ __forceinline__ void experts_put(const experts_plan &plan, const experts_chosen &c, bool gated,
                                            weight_ring *ring)
{
    int put = 0;
    auto go_on = []() { return true; };
    const int end = experts_begin(plan, c, blockIdx.x + 1);
    for (int unit = experts_begin(plan, c, blockIdx.x); unit < end; unit++) {
        const experts_unit u = experts_unit_at(plan, c, unit);
        for (int first = 0; first < u.count; first += 1 << plan.room.shift)
            for (int matrix = gated ? 0 : 1; matrix < 2; matrix++) {
                const stage_source &s = matrix ? plan.up : plan.gate;
                ring_put(ring, s, u.expert, 2 * u.first, 2 * plan.pairs, 0, s.blocks, &put, threadIdx.x & 31, go_on);
            }
    }
}

// The takers: gate first, then up; then finish(unit, sums of gate, sums of up, rows, list of (row, slot)s) adds the warps' sums and stores.
// x: rows of k numbers, of which (row, slot) i is number i / divisor.
template <class CODE, class FINISH>
__device__ __forceinline__ void experts_take(const experts_plan &plan, const experts_chosen &c,
                                             const struct weight *gate, const struct weight *up, const float *x,
                                             int64_t ldx, int divisor, kernel_before *before, unsigned char *memory,
                                             const FINISH &finish)
{
    const int warp = threadIdx.x >> 5, wide = 32 << plan.room.shift, most = 1 << plan.room.shift;
    const int end = experts_begin(plan, c, blockIdx.x + 1);
    int turn = 0, held = -1; // held: the (row, slot) that the window begins with
    share s = share_open(plan.room, plan.splits, memory);
    for (int unit = experts_begin(plan, c, blockIdx.x); unit < end; unit++) {
        const experts_unit u = experts_unit_at(plan, c, unit);
        s.expert = u.expert;
        s.pair = u.first + s.own;
        s.from = 0;
        s.to = plan.up.blocks;
        for (int first = 0; first < u.count; first += most) {
            const int rows = u.count - first < most ? u.count - first : most;
            float *of_gate = room_sums(plan.room, memory, turn),
                  *of_up = gate ? room_sums(plan.room, memory, turn + 1) : of_gate;
            turn += gate ? 2 : 1;
            s.tile = {x, ldx, c.list + u.from, divisor, first, rows, up->k, plan.room.aligned, NULL, 0};
            if (held != u.from + first && c.pairs != divisor) // else all of it is about the same row of x
                s.x.from = s.x.to = 0;
            held = u.from + first;
            for (int matrix = gate ? 0 : 1; matrix < 2; matrix++) {
                const stage_source &source = matrix ? plan.up : plan.gate;
                s.w = matrix ? up : gate;
                s.sums = (matrix ? of_up : of_gate) + warp * wide;
                s.step = source.step;
                s.scale_at = source.scale_at;
                s.shift = source.shift;
                share_run<CODE, false>::run(&s);
            }
            some_wait(TAKERS);
            before->end();
            finish(u, of_gate, of_up, rows, c.list + u.from + first);
        }
    }
}

// Everything of a kernel: choices, then the two roles. What may be read before the wait is read past L1. early: x is there before the kernel before has ended.
template <class CODE, class FINISH>
__device__ __forceinline__ void
experts_run(const experts_plan &plan, const int32_t *ids, int pairs, int slots, int capacity, int experts,
            const struct weight *gate, const struct weight *up, const float *x, int64_t ldx, int divisor, bool early,
            kernel_before *before, unsigned char *memory, const FINISH &finish)
{
    __shared__ int count;
    experts_chosen c = chosen_view((int32_t *)room_extra(plan.room, memory), capacity, pairs);
    if (threadIdx.x < TAKERS) {
        for (int i = threadIdx.x; i < pairs; i += TAKERS)
            c.ids[i] = __ldcg(ids + i);
        const int chosen = choose(c, slots, experts);
        if (threadIdx.x == 0)
            count = chosen;
    } else if (threadIdx.x == TAKERS) {
        ring_open((ring_barriers *)memory, plan.room.slots);
    }
    __syncthreads();
    c.count = count;
    if (threadIdx.x < TAKERS) {
        if (!early)
            before->end();
        experts_take<CODE>(plan, c, gate, up, x, ldx, divisor, before, memory, finish);
    } else {
        weight_ring ring = room_ring(plan.room, memory);
        experts_put(plan, c, gate != NULL, &ring);
    }
    before->end();
}

template <class CODE>
__global__ void __launch_bounds__(THREADS, 1) experts_up_kernel(const __grid_constant__ struct experts_up_args a,
                                                                const __grid_constant__ experts_plan plan, int capacity)
{
    SHARED_ROOM(memory);
    kernel_before before = {false};
    if (!a.early)
        before.end();
    const bool gated = a.gate.data != NULL;
    auto finish = [&](const experts_unit &u, const float *of_gate, const float *of_up, int rows, const int32_t *list) {
        const int shift = plan.room.shift, wide = 32 << shift;
        const float up_factor = a.up.global ? a.up.global[u.expert] : 1.0f,
                    gate_factor = gated && a.gate.global ? a.gate.global[u.expert] : 1.0f;
        for (int i = threadIdx.x; i < plan.pairs * wide; i += TAKERS) {
            const int own = i >> (shift + 5), f = i & (wide - 1), o = u.first * 32 + (i >> shift),
                      r = i & ((1 << shift) - 1);
            if (o >= a.inner || r >= rows)
                continue;
            const float up = reduced(of_up + own * plan.splits * wide + f, plan.splits, wide) * up_factor;
            const float gate =
                gated ? reduced(of_gate + own * plan.splits * wide + f, plan.splits, wide) * gate_factor : 0;
            a.h[(int64_t)list[r] * a.inner + o] = gated ? activate(gate, ACT_SILU) * up : activate(up, a.activation);
        }
    };
    experts_run<CODE>(plan, a.ids, __ldcg(&a.pass->rows) * a.slots, a.slots, capacity, a.experts,
                      gated ? &a.gate : NULL, &a.up, a.x, a.ldx, a.slots, true, &before, memory, finish);
}

template <class CODE>
__global__ void __launch_bounds__(THREADS, 1)
    experts_down_kernel(const __grid_constant__ struct experts_down_args a, const __grid_constant__ experts_plan plan,
                        int capacity)
{
    SHARED_ROOM(memory);
    kernel_before before = {false}; // experts_up at the earliest: the choices are older
    auto finish = [&](const experts_unit &u, const float *, const float *sums, int rows, const int32_t *list) {
        const int shift = plan.room.shift, wide = 32 << shift;
        const float factor = a.down.global ? a.down.global[u.expert] : 1.0f;
        for (int i = threadIdx.x; i < plan.pairs * wide; i += TAKERS) {
            const int own = i >> (shift + 5), f = i & (wide - 1), o = u.first * 32 + (i >> shift),
                      r = i & ((1 << shift) - 1);
            if (o < a.n && r < rows)
                a.y[(int64_t)list[r] * a.n + o] =
                    reduced(sums + own * plan.splits * wide + f, plan.splits, wide) * factor;
        }
    };
    experts_run<CODE>(plan, a.ids, __ldcg(&a.pass->rows) * a.slots, a.slots, capacity, a.experts, NULL, &a.down, a.h,
                      a.k, 1, false, &before, memory, finish);
}

// Cuts are made for `slots` experts of one row. other: gate, or NULL.
static experts_plan experts_plan_make(const struct weight *w, const struct weight *other, const float *x, int64_t ldx,
                                      int rows, int slots, size_t *shared)
{
    experts_plan plan = {};
    const int blocks = (w->k + 31) / 32, pairs = weight_pairs(w);
    double best = 1e30;
    for (int splits = 4; splits <= WARPS && splits <= blocks; splits *= 2) {
        const int each = WARPS / splits, groups = (pairs + each - 1) / each;
        const int rounds = (groups * slots + BLOCKS_AT_ONCE - 1) / BLOCKS_AT_ONCE;
        const double cost = rounds * ((other ? 2 : 1) * ((blocks + splits - 1) / splits) + 1.0);
        if (cost < best) {
            best = cost;
            plan.splits = splits;
            plan.groups = groups;
        }
    }
    if (plan.splits == 0) {
        plan.splits = 2;
        plan.groups = (pairs + WARPS / 2 - 1) / (WARPS / 2);
    }
    plan.pairs = WARPS / plan.splits;
    const int tile = tile_rows_for(rows) < EXPERT_TILE_ROWS ? tile_rows_for(rows) : EXPERT_TILE_ROWS;
    const int64_t bytes = stage_weight_bytes(w) * (other ? 2 : 1) * slots * rows;
    for (int number = 0; number < STAGE_RULES; number++) {
        const stage_rule rule = stage_rule_at(number, bytes);
        plan.up = stage_source_make(w, plan.splits, rule);
        int slot = stage_bytes(w, plan.splits, rule);
        if (other) {
            plan.gate = stage_source_make(other, plan.splits, rule);
            slot = stage_bytes(other, plan.splits, rule) > slot ? stage_bytes(other, plan.splits, rule) : slot;
        }
        plan.room = room_plan_make(blocks, tile, slot, plan.up.step, other ? 4 : 2, chosen_bytes(rows * slots), shared);
        if (plan.room.slots >= SLOTS_LEAST)
            break;
    }
    plan.room.aligned = rows_aligned(x, ldx);
    return plan;
}

// Blocks that have something to do when every row chooses experts of its own.
static unsigned experts_blocks(const experts_plan &plan, int rows, int slots)
{
    const int64_t units = (int64_t)plan.groups * rows * slots, most = multiprocessors();
    return (unsigned)(units < most ? units : most);
}

extern "C" cudaError_t cuda_experts_up(cudaStream_t stream, const struct experts_up_args *args, int rows)
{
    if (args->row_class == CLASS_PROMPT)
        return experts_up_prompt(stream, args, rows);
    size_t shared;
    const bool gated = args->gate.data != NULL;
    const experts_plan plan =
        experts_plan_make(&args->up, gated ? &args->gate : NULL, args->x, args->ldx, rows, args->slots, &shared);
    cudaError_t error = cudaErrorInvalidValue;
    with_kernel(&args->up, gated && !same_code(&args->up, &args->gate), 1, [&](auto code, auto) {
        error = launch(stream, dim3(experts_blocks(plan, rows, args->slots)), dim3(THREADS), shared,
                       experts_up_kernel<typename decltype(code)::type>, *args, plan, rows * args->slots);
    });
    return error;
}

extern "C" cudaError_t cuda_experts_down(cudaStream_t stream, const struct experts_down_args *args, int rows)
{
    if (args->row_class == CLASS_PROMPT)
        return experts_down_prompt(stream, args, rows);
    size_t shared;
    const experts_plan plan = experts_plan_make(&args->down, NULL, args->h, args->k, rows, args->slots, &shared);
    cudaError_t error = cudaErrorInvalidValue;
    with_kernel(&args->down, false, 1, [&](auto code, auto) {
        error = launch(stream, dim3(experts_blocks(plan, rows, args->slots)), dim3(THREADS), shared,
                       experts_down_kernel<typename decltype(code)::type>, *args, plan, rows * args->slots);
    });
    return error;
}
