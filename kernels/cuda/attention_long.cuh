// SPDX-License-Identifier: Apache-2.0
//
// Long rows of decode attention: cut in units, which are dealt out to as many clusters as there are for a row.
//
// A unit is a run of whole tiles; a long row has LONG_UNITS of them for each block of a cluster, of nearly equal length (the last
// cluster's are short in rows of LONG_UNEVEN positions, see below), and none without a tile. Their sums are added in pairs: neighbouring units, then neighbouring pairs, and so on. A block adds those of its
// own units in registers, a cluster those of its blocks where they put them, and the last of a row's clusters those of all of
// them, from scratch: the fewer clusters a row has, the more of the same tree is done in registers.
//
// Invariant: whether a row is long, and its units, follow from its positions and the card, and the tree from the number of units.
// How many clusters it has, which follows from the rows of the pass, changes no bit.

#ifndef CUDA_ATTENTION_LONG_CUH
#define CUDA_ATTENTION_LONG_CUH

#include "kernels/cuda/attention_tile.cuh"

enum {
    LONG_UNITS = 8,                                // of each block of a cluster
    LONG_LEVELS = 3,                               // of the tree of a block's units
    LONG_FROM = LONG_UNITS * MMA_PARTS * MMA_TILE, // positions of a long row
    LONG_CLUSTERS = ATTENTION_SLOTS,               // of a launch
    // A launch of all clusters has one more than a card runs at once. The last of each row are short, so that the last of the launch comes
    // behind another one in the time of a whole one; rows of less than LONG_WIDE positions have half as many instead.
    LONG_AT_ONCE = LONG_CLUSTERS - 1,
    LONG_UNEVEN = 4 * LONG_FROM,
    LONG_WIDE = 12 * LONG_FROM,
    LONG_WEIGHT = 8, // of a unit
    LONG_LIGHT = 3,  // of those of the last cluster
};
static_assert(1 << LONG_LEVELS == LONG_UNITS, "a tree");
enum { MMA_DOUBLED = 3 };
static_assert(1 << MMA_DOUBLED == MMA_PARTS, "a tree of parts");

// Clusters of each of `items` (rows times groups of heads), at most, as a power of two.
static __host__ __device__ inline int32_t long_doubled(const struct attention_args *a, int32_t items)
{
    if (!a->scratch || a->row_class != CLASS_DECODE) // the prompt class has rows enough
        return 0;
    return items <= LONG_CLUSTERS / 8 ? 3 : items <= LONG_CLUSTERS / 4 ? 2 : items <= LONG_CLUSTERS / 2 ? 1 : 0;
}

// What a cluster works at: a row, a group of its heads, and which of their clusters it is. Read before the wait, past L1
// (launch.cuh). Where a row's choice can be said from the position alone, nothing is waited for.
struct long_place {
    bool real, dense, cut; // a row of the pass; of all positions; and long
    bool leave;            // nothing to do, where others of the launch have
    int32_t r, group, lane, position;
    int32_t slot, counter;  // the first of the row and group in scratch; theirs
    int32_t share, doubled; // of 1 << doubled clusters of the row
};

// Clusters that do without company come first.
DEVICE struct long_place long_place_of(const struct attention_args *a, int32_t cluster)
{
    const volatile struct pass *pass = a->pass; // so that no number waits for another one
    const int32_t *lane = pass->lane, *position = pass->position;
    const int32_t rows = pass->rows, groups = attention_groups(a, MMA_HEADS), items = rows * groups;
    const int32_t most = long_doubled(a, items);
    struct long_place place = {};
    place.share = most > 0 && items > 0 ? cluster / items : 0;
    place.counter = cluster - place.share * items;
    place.slot = place.counter << most;
    place.r = place.counter / groups;
    place.group = place.counter - place.r * groups;
    place.real = place.r < rows && place.share < 1 << most;
    place.dense = true;
    place.leave = a->row_class == CLASS_DECODE && rows > 0;
    if (!place.real)
        return place;
    place.lane = __ldcg(lane + place.r);
    place.position = __ldcg(position + place.r);
    place.dense = !a->counts || (place.position + 1) / a->ratio <= a->keep;
    const int32_t count = place.dense ? place.position + 1 : a->keep * a->ratio + (place.position + 1) % a->ratio;
    place.cut = a->row_class == CLASS_DECODE && count >= LONG_FROM;
    place.doubled = !place.cut ? 0 : items << most > LONG_AT_ONCE && most > 0 && count < LONG_WIDE ? most - 1 : most;
    place.leave = place.share >= 1 << place.doubled;
    return place;
}

// ---- units of a block --------------------------------------------------------------------------------------------------------

// `count` units from `first` on, of the 1 << doubled of a row of `tiles` tiles. What a block has of a row that is not cut is one unit.
struct long_units {
    int32_t tiles, first, count, doubled;
    bool uneven;
};

DEVICE int32_t long_tile(const struct long_units &units, int32_t unit)
{
    constexpr int32_t ALL = LONG_UNITS * MMA_PARTS, HEAVY = ALL - MMA_PARTS;
    const int32_t i = units.first + unit;
    if (!units.uneven)
        return (int32_t)((int64_t)units.tiles * i >> units.doubled);
    const int32_t weight = i * LONG_WEIGHT - (i > HEAVY ? (i - HEAVY) * (LONG_WEIGHT - LONG_LIGHT) : 0);
    return (int32_t)((int64_t)units.tiles * weight / (HEAVY * LONG_WEIGHT + MMA_PARTS * LONG_LIGHT));
}

// The tile of the block at which a unit of it ends.
DEVICE int32_t long_end(const struct long_units &units, int32_t unit)
{
    return long_tile(units, unit + 1) - long_tile(units, 0);
}

// Units and positions of a block.
template <int PARTS>
DEVICE struct mma_span long_span(const struct long_place &place, int32_t positions, int32_t part,
                                 struct long_units *units)
{
    if (!place.cut) {
        const struct mma_span span = mma_span_of(positions, part, PARTS);
        *units = {span.tiles, 0, 1, 0, false};
        return span;
    }
    const int32_t count = LONG_UNITS >> place.doubled;
    *units = {(positions + MMA_TILE - 1) / MMA_TILE, (place.share * PARTS + part) * count, count,
              LONG_LEVELS + (PARTS > 1 ? MMA_DOUBLED : 0), PARTS > 1 && positions >= LONG_UNEVEN};
    const int32_t begin = long_tile(*units, 0), tiles = long_end(*units, count - 1), end = (begin + tiles) * MMA_TILE;
    return {begin * MMA_TILE, end < positions ? end : positions, tiles};
}

// ---- pairs -------------------------------------------------------------------------------------------------------------------

// What two neighbours' sums are multiplied with; both have positions.
DEVICE float2 long_weights(float top, float other)
{
    const float highest = other > top ? other : top;
    return {expf(__fadd_rn(top, -highest)), expf(__fadd_rn(other, -highest))};
}

DEVICE float long_add(float2 weights, float a, float b)
{
    return fmaf(b, weights.y, f_mul(a, weights.x));
}

// Sums of two dims of a head, as they lie in scratch.
struct __align__(16) long_sum
{
    float top, total, out[2];
};

DEVICE void long_store(struct long_sum *to, const struct long_sum &sum)
{
    __stcg(reinterpret_cast<float4 *>(to), make_float4(sum.top, sum.total, sum.out[0], sum.out[1]));
}

DEVICE struct long_sum long_load(const struct long_sum *from)
{
    const float4 sum = __ldcg(reinterpret_cast<const float4 *>(from));
    return {sum.x, sum.y, {sum.z, sum.w}};
}

// The sum of `count` neighbours, at most 8, a power of two; of(i) has those of neighbour i.
template <typename OF> DEVICE struct long_sum long_tree(int32_t count, const OF &of)
{
    struct long_sum sum[LONG_UNITS];
#pragma unroll
    for (int i = 0; i < LONG_UNITS; i++)
        if (i < count)
            sum[i] = of(i);
#pragma unroll
    for (int step = 1; step < LONG_UNITS; step *= 2)
#pragma unroll
        for (int i = 0; i < LONG_UNITS; i += 2 * step)
            if (i + step < count) {
                const struct long_sum &b = sum[i + step];
                const float2 weights = long_weights(sum[i].top, b.top);
                sum[i] = {b.top > sum[i].top ? b.top : sum[i].top,
                          long_add(weights, sum[i].total, b.total),
                          {long_add(weights, sum[i].out[0], b.out[0]), long_add(weights, sum[i].out[1], b.out[1])}};
            }
    return sum[0];
}

// ---- the tree of a block's units, while it runs ----------------------------------------------------------------------------------

// Sums that wait for their neighbour, of 1, 2 and 4 units, are held. Their place is found at run time, which keeps them out of registers.

// The heads of warp `warp` behind the last tile of unit `unit`: adds the totals of its lanes and what waits for this unit, leaves the
// weights of both in `weights` for long_fold(), and begins anew unless it is the block's last one.
DEVICE void long_close(float2 (*weights)[MMA_HEADS], struct mma_sums *held, struct mma_sums *sums, int32_t warp,
                       int32_t unit, bool last)
{
    const int32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < MMA_EACH; n++)
        sums->total[n] = warp_sum<WARP>(sums->total[n]);
    int32_t level = 0;
#pragma unroll 1
    for (; unit >> level & 1; level++) {
        const struct mma_sums other = held[level];
#pragma unroll
        for (int n = 0; n < MMA_EACH; n++) {
            const float2 both = long_weights(other.top[n], sums->top[n]);
            if (lane == 0)
                weights[level][warp * MMA_EACH + n] = both;
            sums->top[n] = other.top[n] > sums->top[n] ? other.top[n] : sums->top[n];
            sums->total[n] = long_add(both, other.total[n], sums->total[n]);
        }
    }
    if (last)
        return;
    held[level] = *sums;
    *sums = mma_none();
}

// The same for the values of a warp's dims, when the weights are there.
template <int COLUMNS>
DEVICE void long_fold(const float2 (*weights)[MMA_HEADS], float (*held)[COLUMNS][4], float (*out)[4], int32_t unit,
                      bool last)
{
    const int32_t g = (int32_t)threadIdx.x % WARP / 4;
    int32_t level = 0;
#pragma unroll 1
    for (; unit >> level & 1; level++) {
        const float2 both[2] = {weights[level][g], weights[level][g + 8]};
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                out[n][i] = long_add(both[i / 2], held[level][n][i], out[n][i]);
    }
    if (last)
        return;
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            held[level][n][i] = out[n][i];
            out[n][i] = 0;
        }
}

#endif
