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
    int32_t splits, room_rows, capacity, aligned;
    int32_t groups; // of pairs
};

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

// The tile's rows are known before the weights are asked for.
struct experts_ready {
    __device__ __forceinline__ void operator()(share *) const
    {
    }
};

// What a warp does: its share of one pair of w, for the rows list[0 .. count - 1].
__device__ __forceinline__ share experts_share(const experts_plan &plan, const struct weight *w, int expert, int pair,
                                               unsigned char *memory)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, blocks = (w->k + 31) / 32, part = warp % plan.splits;
    bool live = pair * 32 < w->n;
    share s;
    s.w = w;
    s.expert = expert;
    s.pair = live ? pair : 0;
    s.from = share_begin(blocks, part, plan.splits);
    s.to = live ? share_begin(blocks, part + 1, plan.splits) : s.from;
    s.lane = lane;
    s.reduce = (float *)memory + warp * 256 + lane;
    s.room = {memory + REDUCE_BYTES + warp * room_bytes(plan.room_rows, plan.capacity), plan.room_rows, plan.capacity,
              0, 0};
    return s;
}

__device__ __forceinline__ int32_t *experts_list(const experts_plan &plan, unsigned char *memory)
{
    return (int32_t *)(memory + REDUCE_BYTES + WARPS * room_bytes(plan.room_rows, plan.capacity));
}

// Gated: the warps of even pairs of a block have gate, of odd ones up.
template <class CODE>
__global__ void __launch_bounds__(THREADS, 2)
    experts_up_kernel(const __grid_constant__ struct experts_up_args a, const __grid_constant__ experts_plan plan)
{
    SHARED_ROOM(memory);
    int32_t *list = experts_list(plan, memory);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, gated = a.gate.data != NULL, spread = plan.splits << gated;
    pdl_trigger();
    pdl_wait();
    int count = collect(a.ids, a.pass->rows * a.slots, blockIdx.y, a.experts, list);
    if (count == 0)
        return;
    int expert = a.ids[blockIdx.y], slot = warp / plan.splits, pair = blockIdx.x * (WARPS / spread) + warp / spread;
    share s = experts_share(plan, gated && slot % 2 == 0 ? &a.gate : &a.up, expert, pair, memory);
    experts_ready ready;
    float up_factor = a.up.global ? a.up.global[expert] : 1.0f,
          gate_factor = gated && a.gate.global ? a.gate.global[expert] : 1.0f;
    const float *reduce = (const float *)memory;
    for (int first = 0; first < count; first += plan.room_rows) {
        int rows = count - first < plan.room_rows ? count - first : plan.room_rows;
        s.tile = {a.x, a.ldx, list, a.slots, first, rows, a.k, plan.aligned};
        s.room.from = s.room.to = 0;
        share_run<CODE>::run(&s, &ready);
        __syncthreads();
        int begin = warp / spread * spread;
        for (int i = warp - begin; i < 8; i += spread) {
            float v = reduced(reduce, begin, plan.splits, i, lane);
            if (gated) {
                float u = reduced(reduce, begin + plan.splits, plan.splits, i, lane);
                v = activate(v * gate_factor, ACT_SILU) * (u * up_factor);
            } else {
                v = activate(v * up_factor, a.activation);
            }
            int o = pair * 32 + sum_output(i, lane), r = sum_row(i, lane);
            if (o < a.inner && r < rows)
                a.h[(int64_t)list[first + r] * a.inner + o] = v;
        }
        __syncthreads();
    }
}

template <class CODE>
__global__ void __launch_bounds__(THREADS, 2)
    experts_down_kernel(const __grid_constant__ struct experts_down_args a, const __grid_constant__ experts_plan plan)
{
    SHARED_ROOM(memory);
    int32_t *list = experts_list(plan, memory);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    pdl_trigger();
    pdl_wait();
    int count = collect(a.ids, a.pass->rows * a.slots, blockIdx.y, a.experts, list);
    if (count == 0)
        return;
    int expert = a.ids[blockIdx.y], pair = blockIdx.x * (WARPS / plan.splits) + warp / plan.splits;
    share s = experts_share(plan, &a.down, expert, pair, memory);
    experts_ready ready;
    float factor = a.down.global ? a.down.global[expert] : 1.0f;
    for (int first = 0; first < count; first += plan.room_rows) {
        int rows = count - first < plan.room_rows ? count - first : plan.room_rows;
        s.tile = {a.h, a.k, list, 1, first, rows, a.k, plan.aligned};
        s.room.from = s.room.to = 0;
        share_run<CODE>::run(&s, &ready);
        __syncthreads();
        int begin = warp / plan.splits * plan.splits;
        for (int i = warp - begin; i < 8; i += plan.splits) {
            float v = reduced((const float *)memory, begin, plan.splits, i, lane);
            int o = pair * 32 + sum_output(i, lane), r = sum_row(i, lane);
            if (o < a.n && r < rows)
                a.y[(int64_t)list[first + r] * a.n + o] = v * factor;
        }
        __syncthreads();
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
    int each = WARPS / (plan.splits * together);
    plan.groups = (weight_pairs(w) + each - 1) / each;
    plan.room_rows = tile_rows_for(rows);
    plan.room_rows = plan.room_rows < EXPERT_TILE_ROWS ? plan.room_rows : EXPERT_TILE_ROWS;
    plan.aligned = rows_aligned(x, ldx);
    int share = blocks / plan.splits + 1;
    plan.capacity = room_capacity(share < 8 ? 8 : share, plan.room_rows, shared);
    *shared += (size_t)rows * (size_t)slots * 4;
    return plan;
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
        error = launch(stream, dim3(plan.groups, rows * args->slots), dim3(THREADS), shared,
                       experts_up_kernel<typename decltype(code)::type>, *args, plan);
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
        error = launch(stream, dim3(plan.groups, rows * args->slots), dim3(THREADS), shared,
                       experts_down_kernel<typename decltype(code)::type>, *args, plan);
    });
    return error;
}
