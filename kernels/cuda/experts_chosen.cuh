// SPDX-License-Identifier: Apache-2.0
//
// Which experts a launch has to do with, and for which rows: made by every block from the ids, in shared memory.
//
// Invariant: experts stand in the order of their first (row, slot), and an expert's (row, slot)s ascend.

#ifndef EXPERTS_CHOSEN_CUH
#define EXPERTS_CHOSEN_CUH

#include "kernels/cuda/ring.cuh"

// first[i] of `count` experts is the lowest (row, slot) that chose it, and list[offset[i]] .. list[offset[i + 1] - 1]
// are all that did.
struct experts_chosen {
    int32_t *ids, *first, *list, *offset;
    int32_t *which, *rank; // of a (row, slot): its expert among those listed, and its place in that one's list
    int32_t *place;        // of an expert: 0, or one more than its place among those listed
    int32_t pairs, count;
};

// For `capacity` (row, slot)s.
__device__ __forceinline__ experts_chosen chosen_view(int32_t *memory, int capacity, int pairs)
{
    experts_chosen c = {memory, memory + capacity, memory + 2 * capacity, memory + 5 * capacity};
    c.which = memory + 3 * capacity;
    c.rank = memory + 4 * capacity;
    c.place = c.offset + capacity + 1;
    c.pairs = pairs;
    return c;
}

static constexpr int chosen_bytes(int capacity, int experts)
{
    return (6 * capacity + 1 + experts + 3) / 4 * 16;
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

// By all takers, when each has brought its part of the ids; what it wrote may be read after a barrier of the block.
// Returns the count to warp 0.
__device__ __forceinline__ int choose(const experts_chosen &c, int slots, int experts)
{
    if (c.pairs == slots) {
        choose_one(c, slots, threadIdx.x);
        return slots;
    }
    for (int e = threadIdx.x; e < experts; e += TAKERS)
        c.place[e] = 0;
    some_wait(TAKERS);
    return threadIdx.x < 32 ? choose_list(c, experts) : 0;
}

#endif
