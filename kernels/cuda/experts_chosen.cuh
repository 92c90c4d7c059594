// SPDX-License-Identifier: Apache-2.0
//
// Which experts a launch has to do with, and for which rows: made by every block from the ids, in shared memory.
//
// Invariant: experts stand in the order of their first (row, slot), and an expert's (row, slot)s ascend. One that more (row, slot)s chose than
// a tile has rows stands there several times where lists are made by a lane each, so that no block has twice the work of others.

#ifndef EXPERTS_CHOSEN_CUH
#define EXPERTS_CHOSEN_CUH

#include "kernels/cuda/ring.cuh"

enum {
    CHOSEN_WORDS = 4,
    CHOSEN_LANES = 32 * CHOSEN_WORDS,
    EXPERT_TILE_ROWS = 4, // rows of a tile at most: an expert is seldom chosen by more
};

// Whether so many (row, slot)s are listed by a lane each; up to 32, and more than CHOSEN_LANES, are by one warp.
__host__ __device__ __forceinline__ constexpr bool chosen_by_lanes(int capacity)
{
    return capacity > 32 && capacity <= CHOSEN_LANES;
}

// first[i] of `count` experts is the lowest (row, slot) that chose it, and list[offset[i]] .. list[offset[i + 1] - 1]
// are all that did; one that stands here several times has as many of them each time as a tile has rows.
struct experts_chosen {
    int32_t *ids, *first, *list, *offset;
    int32_t *which, *rank; // of a (row, slot): its expert among those listed, and its place in that one's list
    int32_t *warps;        // two numbers of each warp whose lanes have a (row, slot)
    int32_t *place; // of an expert: CHOSEN_WORDS words of who chose it, or (by one warp) 0 or one more than its place
    int32_t pairs, count;
};

// For `capacity` (row, slot)s, in memory that begins at a multiple of 16 bytes.
__device__ __forceinline__ experts_chosen chosen_view(int32_t *memory, int capacity, int pairs)
{
    experts_chosen c = {memory, memory + capacity, memory + 2 * capacity, memory + 5 * capacity};
    c.which = memory + 3 * capacity;
    c.rank = memory + 4 * capacity;
    c.warps = memory + (6 * capacity + 4) / 4 * 4;
    c.place = c.warps + 2 * CHOSEN_WORDS;
    c.pairs = pairs;
    return c;
}

// Numbers of `place`, which are cleared before lists are made.
__host__ __device__ __forceinline__ constexpr int chosen_places(int capacity, int experts)
{
    return (chosen_by_lanes(capacity) ? CHOSEN_WORDS : 1) * experts;
}

static constexpr int chosen_bytes(int capacity, int experts)
{
    return (6 * capacity + 4) / 4 * 16 + 8 * CHOSEN_WORDS + (chosen_places(capacity, experts) + 3) / 4 * 16;
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

// One warp: numbers the experts of (row, slot)s base .. base + 31, of which this lane has i, and their (row, slot)s.
// Returns how many experts are listed by now.
__device__ __forceinline__ int choose_some(const experts_chosen &c, int i, int experts, int count)
{
    const int lane = threadIdx.x & 31, e = i < c.pairs ? c.ids[i] : -1;
    const unsigned int lower = (1u << lane) - 1;
    const bool valid = e >= 0 && e < experts;
    const unsigned int same = __match_any_sync(0xffffffffu, valid ? e : -1 - lane);
    const int leader = __ffs((int)same) - 1, known = valid ? c.place[e] : 0;
    const unsigned int fresh = __ballot_sync(0xffffffffu, valid && leader == lane && known == 0);
    const int next = __shfl_sync(0xffffffffu, count + __popc(fresh & lower), leader);
    const int which = known ? known - 1 : next, before = known ? c.offset[which + 1] : 0;
    __syncwarp();
    if (valid) {
        c.which[i] = which;
        c.rank[i] = before + __popc(same & lower);
    }
    if (valid && leader == lane) {
        if (known == 0) {
            c.place[e] = which + 1;
            c.first[which] = i;
        }
        c.offset[which + 1] = before + __popc(same);
    }
    __syncwarp();
    return count + __popc(fresh);
}

// One warp: the lists of the ids, when `place` has been cleared. Returns the count.
__device__ __forceinline__ int choose_list(const experts_chosen &c, int experts)
{
    const int lane = threadIdx.x & 31;
    int count = 0;
    for (int base = 0; base < c.pairs; base += 32)
        count = choose_some(c, base + lane, experts, count);
    end_offsets(c.offset, count);
    __syncwarp();
    for (int i = lane; i < c.pairs; i += 32)
        if (c.ids[i] >= 0 && c.ids[i] < experts)
            c.list[c.offset[c.which[i]] + c.rank[i]] = i;
    return count;
}

// The same of a single row, whose experts are all different: nobody has to look for them. i: a number of the caller's own up to slots.
__device__ __forceinline__ void choose_one(const experts_chosen &c, int slots, int i)
{
    if (i < slots)
        c.first[i] = c.list[i] = i;
    if (i <= slots)
        c.offset[i] = i;
}

// Some of the (row, slot)s that have a lane each.
struct chosen_some {
    uint32_t word[CHOSEN_WORDS];
    __device__ __forceinline__ int lowest(void) const
    {
        int number = CHOSEN_LANES;
#pragma unroll
        for (int w = CHOSEN_WORDS - 1; w >= 0; w--)
            number = word[w] ? 32 * w + __ffs((int)word[w]) - 1 : number;
        return number;
    }
    // Without the `count` lowest.
    __device__ __forceinline__ void drop(int count)
    {
#pragma unroll
        for (int w = 0; w < CHOSEN_WORDS; w++) {
            const int here = __popc(word[w]), gone = count < here ? count : here;
            for (int n = 0; n < gone; n++)
                word[w] &= word[w] - 1;
            count -= gone;
        }
    }
    __device__ __forceinline__ int before(int number) const // how many
    {
        int count = 0;
#pragma unroll
        for (int w = 0; w < CHOSEN_WORDS; w++) {
            const int bits = number - 32 * w;
            count += __popc(bits >= 32 ? word[w] : bits > 0 ? word[w] & ((1u << bits) - 1) : 0);
        }
        return count;
    }
};

// By all takers.
__device__ __forceinline__ void choose_clear(const experts_chosen &c, int capacity, int experts)
{
    for (int n = threadIdx.x; n < (chosen_places(capacity, experts) + 3) / 4; n += TAKERS)
        ((int4 *)c.place)[n] = int4{0, 0, 0, 0};
}

// By a lane for each (row, slot), `words` warps, when `place` is cleared; own: its id. At most `most` that chose an expert, EXPERT_TILE_ROWS or
// fewer, stand together; their list begins behind those of the experts before: a prefix sum, bit by bit. Returns the count.
__device__ __forceinline__ int choose_by_lanes(const experts_chosen &c, int own, int words, int experts, int most)
{
    const int i = threadIdx.x, lane = i & 31;
    const bool valid = i < c.pairs && own >= 0 && own < experts;
    uint32_t *by = (uint32_t *)c.place + (valid ? own : 0) * CHOSEN_WORDS;
    if (valid)
        atomicOr(by + (i >> 5), 1u << lane);
    some_wait(32 * words);
    const uint4 all_by = valid ? *(const uint4 *)by : uint4{0, 0, 0, 0};
    chosen_some same = {{all_by.x, all_by.y, all_by.z, all_by.w}};
    const int all_same = same.before(CHOSEN_LANES);
    int rank = same.before(i), size = all_same < most ? all_same : most;
    if (all_same > most) { // seldom
        const int gone = rank / most * most;
        same.drop(gone);
        rank -= gone;
        size = all_same - gone < most ? all_same - gone : most;
    }
    const int first = valid ? same.lowest() : 0;
    const bool leads = valid && first == i;
    const uint32_t leaders = __ballot_sync(0xffffffffu, leads);
    int before = 0, all = 0;
#pragma unroll
    for (int bit = 0; EXPERT_TILE_ROWS >> bit; bit++) {
        const uint32_t have = __ballot_sync(0xffffffffu, leads && (size >> bit & 1));
        before += __popc(have & ((1u << lane) - 1)) << bit;
        all += __popc(have) << bit;
    }
    if (leads)
        c.which[i] = before; // within its warp
    if (lane < 2)
        c.warps[(i >> 5) * 2 + lane] = lane ? all : (int)leaders;
    some_wait(32 * words);
    chosen_some lead = {};
    int at = 0, listed = 0;
#pragma unroll
    for (int w = 0; w < CHOSEN_WORDS; w++) {
        const int2 of = w < words ? ((const int2 *)c.warps)[w] : int2{0, 0};
        lead.word[w] = (uint32_t)of.x;
        at += w < first >> 5 ? of.y : 0;
        listed += of.y;
    }
    const int count = lead.before(CHOSEN_LANES);
    if (valid) {
        at += c.which[first];
        c.list[at + rank] = i;
    }
    if (leads) {
        const int number = lead.before(i);
        c.first[number] = i;
        c.offset[number] = at;
    }
    if (i == 0)
        c.offset[count] = listed;
    return count;
}

// The lists of c.pairs (row, slot)s of `capacity`, whose ids lie in memory: all that there is room for, since how many count may be on its
// way. By all takers; what it wrote may be read after a barrier of the block. most: rows of a tile. Returns the count to warp 0.
__device__ __forceinline__ int choose(const experts_chosen &c, const int32_t *ids, int capacity, int slots, int experts,
                                      int most)
{
    const int i = threadIdx.x, words = (capacity + 31) / 32, own = i < capacity ? __ldcg(ids + i) : -1;
    const bool by_lanes = chosen_by_lanes(capacity);
    if (by_lanes) // while the ids are on their way
        choose_clear(c, capacity, experts);
    for (int n = i; n < capacity; n += TAKERS)
        c.ids[n] = n < TAKERS ? own : __ldcg(ids + n);
    if (c.pairs == slots) {
        choose_one(c, slots, i);
        return slots;
    }
    if (!by_lanes)
        choose_clear(c, capacity, experts);
    some_wait(TAKERS);
    if (!by_lanes)
        return i < 32 ? choose_list(c, experts) : 0;
    return i < 32 * words ? choose_by_lanes(c, own, words, experts, most) : 0;
}

#endif
