// SPDX-License-Identifier: Apache-2.0
//
// How the experts of decode rows are cut and where a block's memory goes (experts_decode.cuh): worked out at the launch, or, for a
// kernel that is made for one shape, by the compiler.
//
// Invariant: cuts of k come from the shapes of the launch alone.

#ifndef CUDA_EXPERTS_PLAN_CUH
#define CUDA_EXPERTS_PLAN_CUH

#include "kernels/cuda/experts_chosen.cuh"
#include "kernels/cuda/linear_plan.cuh"
#include "kernels/cuda/shape.cuh"

struct experts_plan {
    room_plan room;
    int32_t splits, groups, pairs;       // warps of a pair; units of an expert; pairs of a unit
    stage_source gate, up;               // or down
    stage_source shared;                 // of a product beside it (experts_beside.cuh)
    int32_t shared_splits, shared_units; // as splits; units in all, 0: no such product
};

// A product beside experts has a window of x of its own, as long as k.
static constexpr x_form shared_form(const struct weight *w)
{
    return x_form_of(1, w->k, [&](int) { return w; });
}

static constexpr int beside_bytes(const struct weight *w, int tile)
{
    return ROUTE_SOME * (int)sizeof(unsigned long long) +
           (window_bytes(shared_form(w), tile, (w->k + 31) / 32) + 15) / 16 * 16;
}

// The cut of a product beside experts: as if it were a launch of its own; no units where that would have several slices.
static constexpr void shared_cut(struct experts_plan *plan, const struct weight *w)
{
    struct linear_args a = {};
    linear_plan cut = {};
    a.k = w->k;
    a.parts = 1;
    a.part[0].w.n = w->n;
    linear_cut(&cut, &a, (w->k + 31) / 32);
    plan->shared_splits = cut.splits;
    plan->shared_units = cut.slices == 1 ? (weight_pairs(w) + WARPS / cut.splits - 1) / (WARPS / cut.splits) : 0;
}

// Its stages: as long as slots of `slot` bytes allow. Returns how many bytes a slot has to have.
static constexpr int shared_stages(struct experts_plan *plan, const struct weight *w, int slot)
{
    const int splits = plan->shared_splits, panels = 2 * (WARPS / splits), each = splits * weight_grain(w);
    int step = ((w->k + 31) / 32 + each - 1) / each * each;
    while (step > each && panels * stage_panel_bytes(w, step) > slot)
        step -= each;
    plan->shared = stage_source_make(w, splits, {0, 0});
    plan->shared.step = step;
    plan->shared.scale_at = panels * step * plan->shared.data_bytes;
    const int bytes = panels * stage_panel_bytes(w, step);
    return bytes > slot ? bytes : slot;
}

// Bytes of a slot, with room for a group's scales beside each block (NOTES.md: exact slots were slower).
static constexpr int experts_slot_bytes(const struct weight *w, int splits, const stage_rule &rule)
{
    return 2 * (WARPS / splits) * stage_step(w, splits, rule) *
           (code_block_bytes(w->encoding, w->bits) + ring_scale_bytes(w->encoding));
}

// Where a block's memory goes with tiles of `tile` rows: stages as long as leaves place for enough of them. bytes: of all weights
// of the launch; chosen: of what lies behind. beside: a product beside it, or NULL.
static constexpr void experts_room(experts_plan *plan, const card_room &card, const struct weight *w,
                                   const struct weight *other, const struct weight *beside, int tile, int64_t bytes,
                                   int chosen, size_t *shared)
{
    for (int number = 0; number < STAGE_RULES + STAGE_HALVES; number++) {
        const stage_rule rule = stage_rule_at(card, number, bytes);
        plan->up = stage_source_make(w, plan->splits, rule);
        int slot = experts_slot_bytes(w, plan->splits, rule), step = plan->up.step;
        if (other) {
            const int length = experts_slot_bytes(other, plan->splits, rule);
            plan->gate = stage_source_make(other, plan->splits, rule);
            slot = length > slot ? length : slot;
            step = plan->gate.step > step ? plan->gate.step : step;
        }
        if (beside)
            slot = shared_stages(plan, beside, slot);
        plan->room =
            room_plan_make(card, plan->room.form, (w->k + 31) / 32, tile, slot, step, SUM_SETS * (other ? 2 : 1),
                           chosen + (beside ? beside_bytes(beside, tile) : 0), shared);
        if (room_plan_good(card, plan->room, number, *shared))
            break;
    }
}

// All but room.aligned. Cuts are made for `slots` experts of one row. other: gate, or NULL; beside: a product beside it, or NULL.
static constexpr experts_plan experts_plan_make(const card_room &card, const struct weight *w,
                                                const struct weight *other, int rows, int slots, int experts,
                                                size_t *shared, const struct weight *beside = NULL)
{
    experts_plan plan = {};
    const int blocks = (w->k + 31) / 32, pairs = weight_pairs(w);
    double best = 1e30;
    plan.room.form = x_form_of(other ? 2 : 1, w->k, [&](int i) { return i ? other : w; });
    const int grain = weight_grain(w);
    for (int splits = 4; splits <= WARPS && (splits == 4 || splits * grain <= blocks); splits *= 2) {
        const int each = WARPS / splits, groups = (pairs + each - 1) / each;
        const int rounds = (groups * slots + BLOCKS_AT_ONCE - 1) / BLOCKS_AT_ONCE;
        const double cost =
            rounds * ((other ? 2 : 1) * ((blocks + splits * grain - 1) / (splits * grain) * grain) + 1.0);
        if (cost < best) {
            best = cost;
            plan.splits = splits;
            plan.groups = groups;
        }
    }
    plan.pairs = WARPS / plan.splits;
    int tile = tile_rows_for(card, rows) < EXPERT_TILE_ROWS ? tile_rows_for(card, rows) : EXPERT_TILE_ROWS;
    const int64_t bytes = stage_weight_bytes(w) * (other ? 2 : 1) * slots * rows;
    if (beside)
        shared_cut(&plan, beside);
    experts_room(&plan, card, w, other, beside, tile, bytes, chosen_bytes(rows * slots, experts), shared);
    // Many choices, or long codes, and a card with little room.
    for (; tile > 1 && *shared > (size_t)card.shared; tile /= 2)
        experts_room(&plan, card, w, other, beside, tile / 2, bytes, chosen_bytes(rows * slots, experts), shared);
    return plan;
}

// ---- kernels for one shape -------------------------------------------------------------------------------------------------

static constexpr struct weight experts_weight_of(const experts_shape &shape, const code_shape &code)
{
    struct weight w = {};
    w.encoding = code.encoding;
    w.bits = code.bits;
    w.group = code.group;
    w.n = shape.n;
    w.k = shape.k;
    return w;
}

static inline code_shape code_shape_of(const struct weight *w)
{
    return {w->encoding, w->bits, w->group};
}

static inline bool code_shape_same(const code_shape &a, const code_shape &b)
{
    return a.encoding == b.encoding && a.bits == b.bits && a.group == b.group;
}

static inline bool experts_shape_same(const experts_shape &a, const experts_shape &b)
{
    return a.gated == b.gated && a.experts == b.experts && a.slots == b.slots && a.n == b.n && a.k == b.k &&
           a.activation == b.activation && a.early == b.early && code_shape_same(a.code, b.code) &&
           (!a.gated || code_shape_same(a.gate, b.gate));
}

// The plan of a shape for `rows` rows, on the card that the kernels are made for.
static constexpr experts_plan experts_plan_of(const experts_shape &shape, int rows)
{
    const struct weight w = experts_weight_of(shape, shape.code), gate = experts_weight_of(shape, shape.gate);
    size_t shared = 0;
    experts_plan plan =
        experts_plan_make(fixed_card(), &w, shape.gated ? &gate : NULL, rows, shape.slots, shape.experts, &shared);
    plan.room.aligned = 1;
    return plan;
}

static constexpr struct weight beside_weight_of(const beside_shape &shape)
{
    struct weight w = {};
    w.encoding = shape.code.encoding;
    w.bits = shape.code.bits;
    w.group = shape.code.group;
    w.n = shape.n;
    w.k = shape.k;
    return w;
}

static constexpr x_form beside_form(const beside_shape &shape)
{
    const struct weight w = beside_weight_of(shape);
    return shared_form(&w);
}

static inline bool beside_shape_same(const beside_shape &a, const beside_shape &b)
{
    return experts_shape_same(a.up, b.up) && a.n == b.n && a.k == b.k && code_shape_same(a.code, b.code);
}

// The same of a launch of one row with choices and a product beside it.
static constexpr experts_plan beside_plan_of(const beside_shape &shape)
{
    const struct weight w = experts_weight_of(shape.up, shape.up.code),
                        gate = experts_weight_of(shape.up, shape.up.gate), beside = beside_weight_of(shape);
    size_t shared = 0;
    experts_plan plan = experts_plan_make(fixed_card(), &w, shape.up.gated ? &gate : NULL, 1, shape.up.slots,
                                          shape.up.experts, &shared, &beside);
    plan.room.aligned = 1;
    return plan;
}

// Whether such a launch can be: the product is in one slice, and the ring has place for its stages and those of experts.
static constexpr bool beside_fits(const experts_plan &plan)
{
    return plan.shared_units > 0 && plan.room.slots >= SLOTS_LEAST;
}

// Whether two plans differ in nothing but places.
static inline bool experts_plan_same(const experts_plan &a, const experts_plan &b, bool gated)
{
    return room_plan_same(a.room, b.room) && a.splits == b.splits && a.groups == b.groups && a.pairs == b.pairs &&
           stage_source_same(a.up, b.up) && (!gated || stage_source_same(a.gate, b.gate)) &&
           a.shared_units == b.shared_units && a.shared_splits == b.shared_splits &&
           (!a.shared_units || stage_source_same(a.shared, b.shared));
}

#endif
