// SPDX-License-Identifier: Apache-2.0
//
// What the launchers of linear.cu, linear_prompt.cu, experts.cu and experts_prompt.cu share.
//
// Invariant: a kernel's way is chosen by class and shape only.

#ifndef LINEAR_CUH
#define LINEAR_CUH

#include "kernels/cuda/card.cuh"
#include "kernels/cuda/share.cuh"

enum {
    SHARED_OWN = 256,         // bytes of a block that kernels with dynamic shared memory declare beside it, at most
    SHARED_LEAST = 99 * 1024, // what the cards with the least room allow a block
    SHARED_MOST = 227 * 1024 - SHARED_OWN,
    BLOCKS_AT_ONCE = 132, // blocks that run together on the chip that the cuts of k are made for
};

typedef linear_args::linear_part linear_part;

// Prompt class (linear_prompt.cu, experts_prompt.cu).
cudaError_t linear_prompt(cudaStream_t stream, const struct linear_args *args, int rows);
// Of the outputs of glu, which are stored nowhere; cudaErrorNotSupported: not of these weights.
cudaError_t linear_prompt_glu(cudaStream_t stream, const struct glu_args *glu, const struct linear_args *args,
                              int rows);
cudaError_t experts_up_prompt(cudaStream_t stream, const struct experts_up_args *args, int rows);
cudaError_t experts_down_prompt(cudaStream_t stream, const struct experts_down_args *args, int rows);

// Dynamic shared memory that a block may have on this card.
static inline int shared_most(void)
{
    static int bytes = 0;
    if (bytes == 0) {
        bytes = card_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - SHARED_OWN;
        bytes = bytes < 48 * 1024 ? 48 * 1024 : bytes > SHARED_MOST ? SHARED_MOST : bytes;
    }
    return bytes;
}

// What planning asks of a card. window: blocks of k of the longest window of x that launches of eight rows have; longer ones are staged.
struct card_room {
    int32_t multiprocessors, shared, window;
};

enum { WINDOW_MOST = 100 };

// Tests have shorter ones.
inline int32_t window_most = WINDOW_MOST;

static inline card_room card_here(void)
{
    return {multiprocessors(), shared_most(), window_most};
}

// The card that kernels for one shape are made for (H100, H200).
static constexpr card_room fixed_card(void)
{
    return {BLOCKS_AT_ONCE, SHARED_MOST, WINDOW_MOST};
}

static constexpr int weight_pairs(const struct weight *w)
{
    return (w->n + 31) / 32;
}

// Whether a block has the room of the chip that the kernels are made for; on others tiles and stages are smaller. No bit depends on it.
static constexpr bool card_roomy(const card_room &card)
{
    return card.shared >= 200 * 1024;
}

static inline bool roomy(void)
{
    return card_roomy(card_here());
}

enum { STAGE_RULES = 4, STAGE_HALVES = 4, SLOTS_LEAST = 3, STAGES_LEAST = 8 };

// The rules of a launch that reads `bytes` of weights, longest stages first: a block should have STAGES_LEAST of them, and the ring place for
// SLOTS_LEAST. STAGE_HALVES more are for launches whose whole units have no place as one stage.
static constexpr stage_rule stage_rule_at(const card_room &card, int number, int64_t bytes)
{
    const int32_t limit = (card_roomy(card) ? 66 : 33) * 1024, longest = limit / 4 * (4 - number);
    const int64_t each = bytes / BLOCKS_AT_ONCE / STAGES_LEAST;
    if (number >= STAGE_RULES)
        return {limit >> (number - STAGE_RULES + 1), 0};
    return {limit, number == STAGE_RULES - 1 ? 0 : each < longest ? (int32_t)each : longest};
}

// Bytes of w's codes and scales, of one expert.
static constexpr int64_t stage_weight_bytes(const struct weight *w)
{
    return (int64_t)weight_pairs(w) * 2 * ((w->k + 31) / 32) *
           (code_block_bytes(w->encoding, w->bits) + ring_scale_bytes(w->encoding));
}

static constexpr int tile_rows_for(const card_room &card, int64_t rows)
{
    return rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 || !card_roomy(card) ? 4 : TILE_ROWS;
}

static inline int32_t rows_aligned(const float *x, int64_t ld)
{
    return (uintptr_t)x % 16 == 0 && ld % 4 == 0;
}

// A block's shared memory: barriers, `turns` sets of sums, the ring, the window of x, then what the kernel has of its
// own.
struct room_plan {
    struct x_form form;
    int32_t shift, capacity; // of the window
    int32_t slot_bytes, slots;
    int32_t turns;   // sets of sums
    int32_t aligned; // rows of x begin at multiples of 16 bytes
};

enum {
    ROOM_FIXED = 256, // bytes of barriers
    ADDERS = 3,       // warps that add and store, where warps that take go on to the next unit
    SUM_SETS = 2,     // of a unit's sums: those that are added, and those that are made
};

// For each set of sums: its warps' sums are there; they have been added.
struct sum_barriers {
    uint64_t made[SUM_SETS], added[SUM_SETS];
};
static_assert(THREADS + 32 * ADDERS == BLOCK_THREADS, "a block's warps");
static_assert(sizeof(ring_barriers) + sizeof(sum_barriers) <= ROOM_FIXED, "a block's barriers");

// Called by one thread, before a barrier of the block; adders: warps.
__device__ __forceinline__ void sums_open(sum_barriers *b, int adders)
{
    for (int i = 0; i < SUM_SETS; i++) {
        stage_open(b->made + i, WARPS * ARRIVALS);
        stage_open(b->added + i, adders * ARRIVALS);
    }
}

// By a warp that takes, before it makes the sums of unit number `turn`, and behind it.
__device__ __forceinline__ void sums_begin(sum_barriers *b, int turn)
{
    if (turn >= SUM_SETS)
        stage_wait(b->added + turn % SUM_SETS, (turn / SUM_SETS & 1) ^ 1);
}
__device__ __forceinline__ void sums_end(sum_barriers *b, int turn)
{
    stage_arrive_warp(b->made + turn % SUM_SETS);
}

// By a warp that adds: when the sums are there, and when it has done with them.
__device__ __forceinline__ void sums_take(sum_barriers *b, int turn)
{
    stage_wait(b->made + turn % SUM_SETS, turn / SUM_SETS & 1);
}
__device__ __forceinline__ void sums_give(sum_barriers *b, int turn)
{
    stage_arrive_warp(b->added + turn % SUM_SETS);
}

static inline bool room_plan_same(const room_plan &a, const room_plan &b)
{
    return x_form_same(a.form, b.form) && a.shift == b.shift && a.capacity == b.capacity &&
           a.slot_bytes == b.slot_bytes && a.slots == b.slots && a.turns == b.turns && a.aligned == b.aligned;
}

// Whether a plan by rule `number` of `shared` bytes is to be taken, rather than the next rule.
static constexpr bool room_plan_good(const card_room &card, const room_plan &plan, int number, size_t shared)
{
    return plan.slots >= SLOTS_LEAST || (number >= STAGE_RULES - 1 && shared <= (size_t)card.shared);
}

__host__ __device__ __forceinline__ constexpr int sums_bytes(int rows, int turns)
{
    return turns * WARPS * 32 * rows * 4;
}

// For units of `blocks` blocks and 1, 2, 4 or 8 rows; slot_bytes: of the longest stage, step: blocks of the longest one. The window
// holds a whole unit where that leaves place for two slots, else as much as does.
static constexpr room_plan room_plan_make(const card_room &card, const x_form &form, int blocks, int rows,
                                          int slot_bytes, int step, int turns, int extra, size_t *shared)
{
    room_plan plan = {form, rows == 8 ? 3 : rows / 2, blocks, slot_bytes, 1, turns, 0};
    const int fixed = ROOM_FIXED + sums_bytes(rows, turns) + extra, most = card.shared;
    const int nothing = window_bytes(form, rows, 0), block = (window_bytes(form, rows, 2) - nothing) / 2;
    const int spare = ((most - fixed - 2 * slot_bytes - nothing) / block - 1) / form.grain * form.grain;
    if (plan.capacity > spare)
        plan.capacity = spare > step ? spare : step;
    const int used = fixed + window_bytes(form, rows, plan.capacity);
    while (plan.slots < SLOTS_MOST && used + (plan.slots + 1) * slot_bytes <= most)
        plan.slots++;
    *shared = (size_t)(used + plan.slots * slot_bytes);
    return plan;
}

__device__ __forceinline__ weight_ring room_ring(const room_plan &plan, unsigned char *memory)
{
    return ring_view((ring_barriers *)memory, memory + ROOM_FIXED + sums_bytes(1 << plan.shift, plan.turns),
                     plan.slot_bytes, plan.slots);
}

__device__ __forceinline__ x_window room_window(const room_plan &plan, unsigned char *memory)
{
    return {memory + ROOM_FIXED + sums_bytes(1 << plan.shift, plan.turns) + plan.slots * plan.slot_bytes,
            plan.form,
            plan.shift,
            plan.capacity,
            0,
            0,
            0,
            &((ring_barriers *)memory)->rows,
            0};
}

// What lies behind: `extra` bytes.
__device__ __forceinline__ unsigned char *room_extra(const room_plan &plan, unsigned char *memory)
{
    return room_window(plan, memory).memory + window_bytes(plan.form, 1 << plan.shift, plan.capacity);
}

// A taker's share as far as it is the same for all units. splits: a power of two.
__device__ __forceinline__ share share_open(const room_plan &plan, int splits, unsigned char *memory)
{
    share s = {};
    s.lane = threadIdx.x & 31;
    s.splits = splits;
    s.own = (threadIdx.x >> 5) >> (__ffs(splits) - 1);
    s.part = (threadIdx.x >> 5) & (splits - 1);
    s.ring = room_ring(plan, memory);
    s.x = room_window(plan, memory);
    return s;
}

// Sums of the product with number `turn`: a warp's, then the next warp's.
__device__ __forceinline__ float *room_sums(const room_plan &plan, unsigned char *memory, int turn)
{
    return (float *)(memory + ROOM_FIXED) + ((turn & (plan.turns - 1)) * WARPS * 32 << plan.shift);
}

// Whether two weights are decoded by the same kernel.
static inline bool same_code(const struct weight *a, const struct weight *b)
{
    return a->encoding == b->encoding && (a->encoding != ENC_AFFINE || a->bits == b->bits);
}

template <int F> struct form_type {
    static constexpr int value = F;
};

// do_it(code, form_type<form>()).
template <class CODE, class DO> static inline void with_form(CODE code, int form, const DO &do_it)
{
    if (form == FORM_STAGED)
        do_it(code, form_type<FORM_STAGED>());
    else if (form == FORM_EIGHT)
        do_it(code, form_type<FORM_EIGHT>());
    else
        do_it(code, form_type<FORM_FEW>());
}

// do_it(code_type<...>(), form_type<form>()).
template <class DO> static inline void with_kernel(const struct weight *w, bool mixed, int form, DO do_it)
{
    if (mixed)
        with_form(code_type<code_mixed>(), form, do_it);
    else
        with_code(w, [&](auto code) { with_form(code, form, do_it); });
}

// The same for weights of two encodings, which do not come in any order: a kernel for both where checkpoints have such
// products (routers and gates beside quantised matrices), else code_mixed.
template <class A, class B, class DO>
static inline bool with_two(const struct weight *a, const struct weight *b, int form, const DO &do_it)
{
    if (!(code_is<A>(a) && code_is<B>(b)) && !(code_is<A>(b) && code_is<B>(a)))
        return false;
    with_form(code_type<code_two<A, B>>(), form, do_it);
    return true;
}
template <class DO>
static inline void with_two_kernel(const struct weight *a, const struct weight *b, int form, DO do_it)
{
    if (!with_two<code_bf16, code_affine<4>>(a, b, form, do_it) &&
        !with_two<code_bf16, code_affine<8>>(a, b, form, do_it) &&
        !with_two<code_bf16, code_nvfp4>(a, b, form, do_it) &&
        !with_two<code_bf16, code_e4m3<ENC_MXFP8>>(a, b, form, do_it) &&
        !with_two<code_bf16, code_e4m3<ENC_FP8>>(a, b, form, do_it) &&
        !with_two<code_bf16, code_e4m3<ENC_FP8_BLOCK>>(a, b, form, do_it) &&
        !with_two<code_bf16, code_int4>(a, b, form, do_it) &&
        !with_two<code_affine<8>, code_affine<4>>(a, b, form, do_it))
        with_form(code_type<code_mixed>(), form, do_it);
}

#endif
