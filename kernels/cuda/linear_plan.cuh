// SPDX-License-Identifier: Apache-2.0
//
// How a decode-class product is cut and where a block's memory goes (linear_decode.cuh): worked out at the launch, or, for a kernel
// that is made for one shape, by the compiler.
//
// Invariant: cuts of k come from the shapes of the launch alone.

#ifndef CUDA_LINEAR_PLAN_CUH
#define CUDA_LINEAR_PLAN_CUH

#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/route.cuh"
#include "kernels/cuda/shape.cuh"

enum { COUNTERS = 1 << 17, SLICES_MOST = 8, STREAMS_MOST = 4 };

// Blocks of k up to which a window of eight rows is as soon filled from the rows themselves: of a slice, and where all of k is one or the
// rows are those of a glu.
enum { APART_SLICE = 48, APART_ALL = 24 };

// The injection that a row was normed behind (residual_row): streams of dim numbers get theirs once nobody reads them any more.
struct stream_update {
    float *streams; // NULL: none
    const float *added, *inject;
};

// What a step does beside the product.
struct linear_step {
    const float *up; // glu before it: x is silu(x) * up
    int64_t ld_up;
    int32_t glu; // 1: whether it does
    const float
        *xn; // hc_mix behind it: the outputs are gates of xn's four streams of dim numbers, y their mix; dim 0: no mix
    float *y;
    int32_t dim;
    struct route_args route; // beside it, if it has slots: the choices of `rows` rows, a block each
    int32_t rows;
    struct residual_row before;  // what x is made of; before.residual NULL: nothing
    struct stream_update update; // of one row, beside a mix
};

struct linear_piece {
    stage_source source;
    int32_t first, groups; // first unit; groups of WARPS / splits pairs
    int32_t counter;       // first counter
    int64_t partial;       // first float in scratch
};

struct linear_plan {
    room_plan room;
    linear_step step;
    int32_t splits, slices, pairs; // warps of a pair; blocks of a pair; pairs of a unit
    int32_t capacity;              // rows that the launch is made for
    int32_t units, tiles;          // tiles of TILE_ROWS rows that the capacity has
    int32_t blocks;                // that have units
    int32_t cluster;               // slices of a group are a cluster
    int32_t apart;                 // rows are taken apart before (eight.cuh)
    int32_t staged;                // and x comes with the weights' stages
    int64_t rows_at;               // bytes in scratch before the rows that were taken apart
    linear_piece part[LINEAR_PARTS];
};

// Clusters of so many blocks, one a multiprocessor, up to which a cut takes its slices for clusters. It only weighs cuts by this; whether
// slices are clusters is for linear_card_clusters() and the card.
static constexpr int cut_clusters(int slices)
{
    constexpr int at_once[SLICES_MOST + 1] = {0, BLOCKS_AT_ONCE, 66, 42, 30, 21, 20, 14, 15};
    return at_once[slices];
}

// Blocks of the longest slice, at most.
static constexpr int linear_slice_most(int blocks, int slices)
{
    return slices == 1 ? blocks : blocks / slices + 2;
}

// First block of slice `slice`: with k in whole groups of 64 slices are, too.
__host__ __device__ __forceinline__ int linear_slice_begin(int blocks, int slice, int slices)
{
    return blocks % 2 ? share_begin(blocks, slice, slices) : 2 * share_begin(blocks / 2, slice, slices);
}

// Units of a launch, and whether the sums of their slices have room in scratch.
static constexpr int linear_units(const struct linear_args *a, int splits, int slices, bool *fits)
{
    const int each = WARPS / splits;
    int64_t outputs = 0;
    int units = 0;
    for (int i = 0; i < a->parts; i++) {
        const int groups = (weight_pairs(&a->part[i].w) + each - 1) / each;
        units += groups * slices;
        outputs += (int64_t)groups * each * 32;
    }
    *fits = slices == 1 || 4 * outputs * slices <= 10 * (int64_t)a->k; // linear_scratch_bytes(), a row
    return units;
}

// Warps and blocks of a pair, for `blocks` blocks of k: the least time, counted in blocks that a warp does one after the other (with
// slices fewer on average count a little too), with what a round of units and a sum over blocks cost beside: once in
// clusters, through scratch each round.
static constexpr void linear_cut(struct linear_plan *plan, const struct linear_args *a, int blocks)
{
    double best = 1e30;
    bool fits = true;
    for (int splits = 2; splits <= WARPS; splits *= 2)
        for (int slices = 1; slices <= SLICES_MOST; slices++) {
            const int units = linear_units(a, splits, slices, &fits), shares = splits * slices;
            if (!fits || (shares > blocks && splits > 2))
                continue;
            const int rounds = (units + BLOCKS_AT_ONCE - 1) / BLOCKS_AT_ONCE;
            const int most = (blocks + shares - 1) / shares; // blocks of a warp
            const double less = most - (double)blocks / shares;
            const bool clusters = slices * (WARPS / splits) <= WARPS && units <= slices * cut_clusters(slices);
            const double sums = clusters ? 2.5 + 0.1 * slices - 0.4 * less : 5.0 * rounds;
            const double cost = rounds * (most + 1.0) + (slices > 1 ? sums : 0);
            if (cost < best) {
                best = cost;
                plan->splits = splits;
                plan->slices = slices;
            }
        }
}

// The longest stages with x in them of which a block has STAGES_LEAST to read and the ring SLOTS_LEAST; false: even the shortest are too
// long.
static constexpr bool linear_stages(linear_plan *plan, const card_room &card, const struct linear_args *a, int blocks,
                                    size_t *shared)
{
    const x_form form = plan->room.form;
    const int used = ROOM_FIXED + sums_bytes(TILE_ROWS, 2) + window_bytes(form, TILE_ROWS, 0), panels = 2 * plan->pairs,
              x_all = x_blocks(form.kinds), turns = (plan->units + plan->blocks - 1) / plan->blocks;
    int grain = 1; // blocks of a warp side by side
    for (int i = 0; i < a->parts; i++)
        grain = weight_grain(&a->part[i].w) > grain ? weight_grain(&a->part[i].w) : grain;
    const int warps = plan->splits * grain, each = (blocks / plan->slices + warps - 1) / warps;
    for (int length = each; length > 0; length--) {
        const int stages = (each + length - 1) / length, step = warps * ((each + stages - 1) / stages);
        int most = 0; // bytes of a part's stage without x
        for (int i = 0; i < a->parts; i++) {
            const int bytes = panels * stage_panel_bytes(&a->part[i].w, step);
            most = bytes > most ? bytes : most;
        }
        const int slot = most + step * x_all, slots = (card.shared - used) / slot;
        if (slots < SLOTS_LEAST || (stages * turns < STAGES_LEAST && length > 1))
            continue;
        plan->room = {form, 3, 0, slot, slots < SLOTS_MOST ? slots : SLOTS_MOST, 2, 0};
        *shared = (size_t)(used + plan->room.slots * slot);
        for (int i = 0; i < a->parts; i++) {
            stage_source *s = &plan->part[i].source;
            *s = stage_source_make(&a->part[i].w, plan->splits, {0, 0});
            s->step = step;
            s->scale_at = panels * step * s->data_bytes;
            s->x_at = most;
            s->stride = plan->step.dim ? plan->step.dim / 16 : s->stride;
        }
        return true;
    }
    return false;
}

// Whether there is room for eight rows taken apart, behind `partial` floats of scratch.
static constexpr bool linear_apart(linear_plan *plan, const card_room &card, int k, int blocks, int64_t rows,
                                   int64_t partial)
{
    const int64_t bytes = (int64_t)plan->tiles * blocks * x_blocks(plan->room.form.kinds),
                  room = 10 * ((rows + 15) / 16 * 16) * ((k + 127) / 128 * 128); // linear_scratch_bytes()
    plan->rows_at = (partial * 4 + 15) / 16 * 16;
    return tile_rows_for(card, rows) == TILE_ROWS && plan->rows_at + bytes <= room;
}

// Whether x, which is taken apart before, comes with the stages: a window would leave the weights little room.
static constexpr bool linear_staged(linear_plan *plan, const card_room &card, const struct linear_args *a, int blocks,
                                    size_t *shared)
{
    return linear_slice_most(blocks, plan->slices) > card.window && 2 * plan->pairs <= STAGED_PANELS &&
           linear_stages(plan, card, a, blocks, shared);
}

// The sources of the parts, and where a block's memory goes: stages as long as leaves place for enough of them.
static constexpr void linear_room(linear_plan *plan, const card_room &card, const struct linear_args *a, int blocks,
                                  int64_t rows, size_t *shared)
{
    const x_form form = plan->room.form;
    int64_t bytes = 0;
    for (int i = 0; i < a->parts; i++)
        bytes += stage_weight_bytes(&a->part[i].w);
    for (int number = 0; number < STAGE_RULES + STAGE_HALVES; number++) {
        const stage_rule rule = stage_rule_at(card, number, bytes);
        int slot = 0, most = 0;
        for (int i = 0; i < a->parts; i++) {
            const int length = stage_bytes(&a->part[i].w, plan->splits, rule);
            plan->part[i].source = stage_source_make(&a->part[i].w, plan->splits, rule);
            if (plan->step.dim)
                plan->part[i].source.stride = plan->step.dim / 16;
            slot = length > slot ? length : slot;
            most = plan->part[i].source.step > most ? plan->part[i].source.step : most;
        }
        plan->room = room_plan_make(card, form, linear_slice_most(blocks, plan->slices), tile_rows_for(card, rows),
                                    slot, most, 2, 0, shared);
        if (room_plan_good(card, plan->room, number, *shared))
            break;
    }
}

// All but room.aligned and cluster. units is 0 where there are too few counters.
static constexpr linear_plan linear_plan_make(const card_room &card, const struct linear_args *a,
                                              const linear_step *step, int64_t rows, size_t *shared)
{
    linear_plan plan = {};
    int blocks = (a->k + 31) / 32, counter = 0;
    int64_t partial = 0;
    if (step)
        plan.step = *step;
    plan.room.form = x_form_of(a->parts, a->k, [&](int i) { return &a->part[i].w; });
    linear_cut(&plan, a, blocks);
    if (plan.step.dim) { // a unit has a pair of each stream
        plan.splits = WARPS / STREAMS_MOST;
        plan.slices = 1;
    }
    const int tile = tile_rows_for(card, rows);
    plan.pairs = WARPS / plan.splits;
    plan.capacity = (int)rows;
    plan.tiles = (int)((rows + tile - 1) / tile);
    for (int i = 0; i < a->parts; i++) {
        const int each = plan.pairs, groups = (weight_pairs(&a->part[i].w) + each - 1) / each;
        plan.part[i].first = plan.units;
        plan.part[i].groups = groups;
        plan.part[i].counter = counter;
        plan.part[i].partial = partial;
        plan.units += groups * plan.slices;
        if (plan.slices > 1) {
            partial += (int64_t)groups * each * plan.slices * 32 * tile * plan.tiles;
            counter += groups * plan.tiles;
        }
    }
    if (counter > COUNTERS)
        plan.units = 0;
    plan.blocks = plan.units < card.multiprocessors ? plan.units : card.multiprocessors;
    plan.apart = linear_apart(&plan, card, a->k, blocks, rows, partial);
    plan.staged = plan.apart && linear_staged(&plan, card, a, blocks, shared);
    if (!plan.staged) {
        plan.apart = plan.apart && linear_slice_most(blocks, plan.slices) >
                                       (plan.slices > 1 && !plan.step.glu ? APART_SLICE : APART_ALL);
        linear_room(&plan, card, a, blocks, rows, shared);
    }
    if (plan.step.rows && *shared < sizeof(route_space))
        *shared = sizeof(route_space);
    return plan;
}

// Whether a block makes its x once, so that a residual may be changed when all have read it.
static constexpr bool linear_fills_once(const linear_plan &plan)
{
    const int kinds = plan.room.form.kinds; // a window holds one at a time
    return plan.tiles == 1 && !plan.staged && (kinds & (kinds - 1)) == 0 &&
           (plan.slices == 1 || plan.units == plan.blocks) &&
           plan.room.capacity >= linear_slice_most(plan.part[0].source.blocks, plan.slices);
}

// Whether a kernel for one shape can make its row of what `kind` says. Of streams a slice has one, and slices are equally long.
static constexpr bool linear_before_fits(const linear_plan &plan, int k, int kind)
{
    const int blocks = k / 32, slices = plan.slices;
    if (!linear_fills_once(plan) || k % 32)
        return false;
    return kind == BEFORE_ADD ? k <= RESIDUAL_MOST
                              : k <= BEFORE_STREAM_COUNT * RESIDUAL_MOST && slices % BEFORE_STREAM_COUNT == 0 &&
                                    blocks % (2 * slices) == 0;
}

// What kernel a plan is for.
static constexpr int linear_form(const linear_plan &plan)
{
    return plan.staged ? FORM_STAGED : 1 << plan.room.shift == TILE_ROWS ? FORM_EIGHT : FORM_FEW;
}

// Whether slices may be clusters, if they all run at once: each block has one unit and one tile, whose sums fit into a box.
static constexpr bool linear_may_cluster(const linear_plan &plan)
{
    return plan.slices > 1 && plan.slices * plan.pairs <= WARPS && plan.tiles == 1 && plan.step.rows == 0 &&
           plan.units == plan.blocks;
}

// The same, if it is the card that kernels for one shape are made for: as many clusters as it has at once, as far as they were counted.
static constexpr bool linear_card_clusters(const linear_plan &plan)
{
    const int most[SLICES_MOST + 1] = {0, 132, 66, 39, 30, 21, 20, 14, 15};
    return linear_may_cluster(plan) && plan.units / plan.slices <= most[plan.slices];
}

// ---- kernels for one shape -------------------------------------------------------------------------------------------------

// Arguments of that shape, without places.
static constexpr struct linear_args linear_args_of(const linear_shape &shape)
{
    struct linear_args a = {};
    a.k = shape.k;
    a.parts = shape.parts;
    for (int i = 0; i < shape.parts; i++) {
        a.part[i].w.encoding = shape.part[i].encoding;
        a.part[i].w.bits = shape.part[i].bits;
        a.part[i].w.group = shape.part[i].group;
        a.part[i].w.n = shape.part[i].n;
        a.part[i].w.k = shape.k;
        a.part[i].activation = shape.part[i].activation;
    }
    return a;
}

// What the row of a step is made of.
static inline int32_t linear_before_kind(const linear_step *step)
{
    if (!step || !step->before.residual)
        return BEFORE_NOTHING;
    return step->before.inject ? BEFORE_STREAMS : BEFORE_ADD;
}

// The shape that a launch has.
static inline linear_shape linear_shape_of(const struct linear_args *a, const linear_step *step)
{
    linear_shape shape = {a->k, step ? step->glu : 0,    step ? step->dim : 0, step && step->rows > 0, a->parts,
                          {},   linear_before_kind(step)};
    for (int i = 0; i < a->parts; i++)
        shape.part[i] = {a->part[i].w.encoding, a->part[i].w.bits, a->part[i].w.group, a->part[i].w.n,
                         a->part[i].activation};
    return shape;
}

static inline bool linear_shape_same(const linear_shape &a, const linear_shape &b)
{
    bool same =
        a.k == b.k && a.glu == b.glu && a.mix == b.mix && a.route == b.route && a.parts == b.parts && a.norm == b.norm;
    for (int i = 0; same && i < a.parts; i++)
        same = a.part[i].encoding == b.part[i].encoding && a.part[i].bits == b.part[i].bits &&
               a.part[i].group == b.part[i].group && a.part[i].n == b.part[i].n &&
               a.part[i].activation == b.part[i].activation;
    return same;
}

// The plan of a shape for tiles of `rows` rows, on the card that the kernels are made for.
static constexpr linear_plan linear_plan_of(const linear_shape &shape, int rows, const card_room &card = fixed_card())
{
    const struct linear_args a = linear_args_of(shape);
    linear_step step = {};
    size_t shared = 0;
    step.glu = shape.glu;
    step.dim = shape.mix;
    step.rows = shape.route;
    linear_plan plan = linear_plan_make(card, &a, &step, rows, &shared);
    plan.room.aligned = 1;
    plan.cluster = linear_card_clusters(plan);
    return plan;
}

// Whether `plan` is that of a kernel made for `fixed`, but for places and what follows from the number of tiles, of which only those of
// TILE_ROWS rows may be several.
static inline bool linear_plan_is(const linear_plan &plan, const linear_plan &fixed, int parts)
{
    bool same = room_plan_same(plan.room, fixed.room) && plan.splits == fixed.splits && plan.slices == fixed.slices &&
                plan.pairs == fixed.pairs && plan.units == fixed.units && plan.blocks == fixed.blocks &&
                plan.step.dim == fixed.step.dim && plan.apart == fixed.apart && plan.staged == fixed.staged &&
                (plan.tiles > 1 ? 1 << fixed.room.shift == TILE_ROWS : plan.cluster == fixed.cluster);
    for (int i = 0; i < parts; i++)
        same = same && stage_source_same(plan.part[i].source, fixed.part[i].source) &&
               plan.part[i].first == fixed.part[i].first && plan.part[i].groups == fixed.part[i].groups;
    return same;
}

#endif
