// SPDX-License-Identifier: Apache-2.0
//
// experts_up_args and experts_down_args, decode class: a block has one expert, some of its pairs of panels, and all rows that
// chose the expert, so that its weights are read once.
//
// There is no grouping beforehand: the grid has a block for each (row, slot); the block of an expert's first (row, slot)
// collects the others from the ids and works, the rest end at once.
// Invariant: a (row, slot) is a column of the products of its own; nothing of it depends on the other columns.

#include "kernels/cuda/linear.cuh"

enum { EXPERT_TILE_ROWS = 4 }; // rows of a tile at most: an expert is seldom chosen by more

struct experts_plan {
    int32_t splits, split_shift, room_rows, capacity, aligned;
    int32_t groups; // of the pairs that a block has at once
};

// As collect below, for at most 32 numbers, each warp for itself; the warp's list.
__device__ __forceinline__ int collect_few(const int32_t *ids, int pairs, int own, int experts, int32_t *list)
{
    int lane = threadIdx.x & 31, id = ids[lane < (int)gridDim.y ? lane : 0];
    int expert = __shfl_sync(0xffffffffu, id, own);
    unsigned int votes = __ballot_sync(0xffffffffu, lane < pairs && id == expert);
    if (own >= pairs || expert < 0 || expert >= experts || (votes & ((1u << own) - 1)))
        return 0;
    if (votes >> lane & 1)
        list[__popc(votes & ((1u << lane) - 1))] = lane;
    __syncwarp();
    return __popc(votes);
}

// The (row, slot) numbers of the expert of number `own`, ascending, into list; 0 when an earlier one has the same expert.
// Every thread of the block calls it and gets the count.
__device__ __forceinline__ int collect(const int32_t *ids, int pairs, int own, int experts, int32_t *list)
{
    __shared__ int counts[WARPS + 1];
    __shared__ int earlier;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, total = 0;
    if (own >= pairs)
        return 0;
    int expert = ids[own];
    if (expert < 0 || expert >= experts)
        return 0;
    if (threadIdx.x == 0)
        earlier = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < own; i += THREADS)
        if (ids[i] == expert)
            earlier = 1;
    __syncthreads();
    if (earlier)
        return 0;
    for (int base = own; base < pairs; base += THREADS) {
        int i = base + threadIdx.x;
        bool mine = i < pairs && ids[i] == expert;
        unsigned int votes = __ballot_sync(0xffffffffu, mine);
        if (lane == 0)
            counts[warp] = __popc(votes);
        __syncthreads();
        int before = total;
        for (int w = 0; w < WARPS; w++) {
            before += w < warp ? counts[w] : 0;
            total += counts[w];
        }
        if (mine)
            list[before + __popc(votes & ((1u << lane) - 1))] = i;
        __syncthreads();
    }
    return total;
}

// Where a warp finds the list: its own copy when there are few (row, slot) numbers.
__device__ __forceinline__ int32_t *experts_list(const experts_plan &plan, unsigned char *memory)
{
    int32_t *list = (int32_t *)(memory + REDUCE_BYTES + WARPS * room_bytes(plan.room_rows, plan.capacity));
    return gridDim.y <= 32 ? list + (threadIdx.x >> 5) * 32 : list;
}

__device__ __forceinline__ int experts_collect(const struct pass *pass, const int32_t *ids, int slots, int experts,
                                               int32_t *list)
{
    int pairs = pass->rows * slots;
    return gridDim.y <= 32 ? collect_few(ids, pairs, blockIdx.y, experts, list)
                           : collect(ids, pairs, blockIdx.y, experts, list);
}

// A place in the block's work: groups of pairs with a stride, for one tile of the list after the other.
struct experts_unit {
    int32_t group, first; // first >= the list's count: past the end
    int32_t pair;
    share s;
};

// The next place; `count` of the list.
__device__ __forceinline__ void unit_step(const experts_plan &plan, experts_unit *u)
{
    u->group += gridDim.x;
    if (u->group >= plan.groups) {
        u->group = blockIdx.x;
        u->first += plan.room_rows;
    }
}

// The warp's share of pair u->pair of w, for the list's numbers from u->first on.
__device__ __forceinline__ void unit_share(const experts_plan &plan, const struct weight *w, int expert, int count,
                                           experts_unit *u)
{
    int blocks = (w->k + 31) / 32, part = (threadIdx.x >> 5) & (plan.splits - 1);
    bool live = u->first < count && u->pair * 32 < w->n;
    u->s.w = w;
    u->s.place = lane_place(w, expert, live ? u->pair : 0, threadIdx.x & 31);
    share_cut(&u->s, 0, live ? blocks : 0, plan.split_shift, part);
}

// Gated: the warps of even pairs of a block have gate, of odd ones up.
template <class CODE>
__global__ void __launch_bounds__(THREADS, 2)
    experts_up_kernel(const __grid_constant__ struct experts_up_args a, const __grid_constant__ experts_plan plan)
{
    SHARED_ROOM(memory);
    int32_t *list = experts_list(plan, memory);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, gated = a.gate.data != NULL, odd = 0;
    int shift = plan.split_shift + gated, spread = 1 << shift, begin = warp & ~(spread - 1);
    const struct weight *w = gated && !(warp >> plan.split_shift & 1) ? &a.gate : &a.up;
    pdl_trigger();
    pdl_wait();
    int count = experts_collect(a.pass, a.ids, a.slots, a.experts, list);
    if (count == 0)
        return;
    int expert = a.ids[blockIdx.y];
    warp_room room = {memory + REDUCE_BYTES + warp * room_bytes(plan.room_rows, plan.capacity),
                      plan.room_rows,
                      plan.capacity,
                      0,
                      0,
                      0};
    share_runner<CODE> runner;
    experts_unit u, next;
    auto find = [&](experts_unit *at) {
        at->pair = at->group * (WARPS >> shift) + (warp >> shift);
        unit_share(plan, w, expert, count, at);
        at->s.tile = {a.x, a.ldx, list, a.slots, at->first, count - at->first, a.k, plan.aligned};
    };
    u.group = blockIdx.x;
    u.first = 0;
    find(&u);
    runner.begin(u.s, lane);
    float up_factor = a.up.global ? a.up.global[expert] : 1.0f,
          gate_factor = gated && a.gate.global ? a.gate.global[expert] : 1.0f;
    while (u.first < count) {
        next.group = u.group;
        next.first = u.first;
        unit_step(plan, &next);
        find(&next);
        float *reduce = (float *)memory + odd * (REDUCE_BYTES / 8);
        runner.run(u.s, next.s, &room, lane, reduce + warp * 256);
        if (next.first != u.first)
            room.from = room.to = 0;
        __syncthreads();
        int o = u.pair * 32 + lane;
        for (int r = warp - begin; r < plan.room_rows; r += spread) {
            float v = reduced(reduce, begin, plan.splits, r, lane);
            if (gated) {
                float up = reduced(reduce, begin + plan.splits, plan.splits, r, lane);
                v = activate(v * gate_factor, ACT_SILU) * (up * up_factor);
            } else {
                v = activate(v * up_factor, a.activation);
            }
            if (o < a.inner && u.first + r < count)
                a.h[(int64_t)list[u.first + r] * a.inner + o] = v;
        }
        odd ^= 1;
        u = next;
    }
}

template <class CODE>
__global__ void __launch_bounds__(THREADS, 2)
    experts_down_kernel(const __grid_constant__ struct experts_down_args a, const __grid_constant__ experts_plan plan)
{
    SHARED_ROOM(memory);
    int32_t *list = experts_list(plan, memory);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, odd = 0, begin = warp & ~(plan.splits - 1);
    pdl_trigger();
    pdl_wait();
    int count = experts_collect(a.pass, a.ids, a.slots, a.experts, list);
    if (count == 0)
        return;
    int expert = a.ids[blockIdx.y];
    warp_room room = {memory + REDUCE_BYTES + warp * room_bytes(plan.room_rows, plan.capacity),
                      plan.room_rows,
                      plan.capacity,
                      0,
                      0,
                      0};
    share_runner<CODE> runner;
    experts_unit u, next;
    auto find = [&](experts_unit *at) {
        at->pair = at->group * (WARPS >> plan.split_shift) + (warp >> plan.split_shift);
        unit_share(plan, &a.down, expert, count, at);
        at->s.tile = {a.h, a.k, list, 1, at->first, count - at->first, a.k, plan.aligned};
    };
    u.group = blockIdx.x;
    u.first = 0;
    find(&u);
    runner.begin(u.s, lane);
    float factor = a.down.global ? a.down.global[expert] : 1.0f;
    while (u.first < count) {
        next.group = u.group;
        next.first = u.first;
        unit_step(plan, &next);
        find(&next);
        float *reduce = (float *)memory + odd * (REDUCE_BYTES / 8);
        runner.run(u.s, next.s, &room, lane, reduce + warp * 256);
        if (next.first != u.first)
            room.from = room.to = 0;
        __syncthreads();
        int o = u.pair * 32 + lane;
        for (int r = warp - begin; r < plan.room_rows; r += plan.splits) {
            float v = reduced(reduce, begin, plan.splits, r, lane);
            if (o < a.n && u.first + r < count)
                a.y[(int64_t)list[u.first + r] * a.n + o] = v * factor;
        }
        odd ^= 1;
        u = next;
    }
}

// `together` matrices' pairs are in a block side by side.
static experts_plan experts_plan_make(const struct weight *w, int together, const float *x, int64_t ldx, int rows,
                                      int slots, size_t *shared)
{
    experts_plan plan = {};
    int blocks = (w->k + 31) / 32;
    plan.splits = warp_splits(blocks);
    if (plan.splits * together > WARPS)
        plan.splits = WARPS / together;
    while (1 << plan.split_shift < plan.splits)
        plan.split_shift++;
    int each = WARPS / (plan.splits * together);
    plan.groups = (weight_pairs(w) + each - 1) / each;
    plan.room_rows = tile_rows_for(rows);
    plan.room_rows = plan.room_rows < EXPERT_TILE_ROWS ? plan.room_rows : EXPERT_TILE_ROWS;
    plan.aligned = rows_aligned(x, ldx);
    int share = blocks / plan.splits + 1;
    plan.capacity = room_capacity(share < 8 ? 8 : share, plan.room_rows, shared);
    *shared += (size_t)(rows * slots < 32 * WARPS ? 32 * WARPS : rows * slots) * 4;
    return plan;
}

// Blocks an expert: together about as many as run at once, each with the same number of groups.
static int experts_blocks(const experts_plan &plan, int pairs)
{
    int most = (BLOCKS_AT_ONCE + pairs - 1) / pairs, turns = (plan.groups + most - 1) / most;
    return (plan.groups + turns - 1) / turns;
}

extern "C" cudaError_t cuda_experts_up(cudaStream_t stream, const struct experts_up_args *args, int rows)
{
    if (args->row_class == CLASS_PROMPT)
        return experts_up_prompt(stream, args, rows);
    size_t shared;
    bool gated = args->gate.data != NULL;
    experts_plan plan = experts_plan_make(&args->up, gated ? 2 : 1, args->x, args->ldx, rows, args->slots, &shared);
    cudaError_t error = cudaErrorInvalidValue;
    with_kernel(&args->up, gated && !same_code(&args->up, &args->gate), [&](auto code) {
        error = launch(stream, dim3(experts_blocks(plan, rows * args->slots), rows * args->slots), dim3(THREADS),
                       shared, experts_up_kernel<typename decltype(code)::type>, *args, plan);
    });
    return error;
}

extern "C" cudaError_t cuda_experts_down(cudaStream_t stream, const struct experts_down_args *args, int rows)
{
    if (args->row_class == CLASS_PROMPT)
        return experts_down_prompt(stream, args, rows);
    size_t shared;
    experts_plan plan = experts_plan_make(&args->down, 1, args->h, args->k, rows, args->slots, &shared);
    cudaError_t error = cudaErrorInvalidValue;
    with_kernel(&args->down, false, [&](auto code) {
        error = launch(stream, dim3(experts_blocks(plan, rows * args->slots), rows * args->slots), dim3(THREADS),
                       shared, experts_down_kernel<typename decltype(code)::type>, *args, plan);
    });
    return error;
}
