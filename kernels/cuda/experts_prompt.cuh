// SPDX-License-Identifier: Apache-2.0
//
// (row, slot) pairs sorted by expert and cut into tiles, for the prompt class of experts_up and experts_down.
//
// In the groups memory, as int32: from 16 on where each expert's pairs begin (experts + 1); then each expert's first
// tile (experts); then the pairs as row * slots + slot, by expert.
// Invariant: the order of the pairs of an expert is of no consequence, since a pair's result is its own.

#ifndef EXPERTS_PROMPT_CUH
#define EXPERTS_PROMPT_CUH

#include "kernels/cuda/prompt.cuh"

enum { EXPERT_TILE = 128 }; // pairs of a tile, which blocks of fewer rows share

struct expert_groups {
    int32_t *start, *first_tile, *pairs;
};

__host__ __device__ __forceinline__ expert_groups groups_at(void *memory, int experts)
{
    int32_t *p = (int32_t *)memory;
    expert_groups g = {p + 16, p + 17 + experts, p + 17 + 2 * experts};
    return g;
}

// Blocks of `rows` rows at most: those of full tiles, and of one that is not an expert.
static inline int most_tiles(int64_t pairs, int experts, int rows)
{
    return (int)(pairs / EXPERT_TILE + (pairs < experts ? pairs : experts)) * (EXPERT_TILE / rows);
}

// A block's tile: its expert and pairs first .. first + count - 1 of the list; count <= 0: none.
struct expert_tile {
    int expert, first, count;
};

// Of block `block` of those that take up to `rows` rows each.
__device__ __forceinline__ expert_tile find_tile(const expert_groups &g, int experts, int block, int rows,
                                                 expert_tile *shared)
{
    const int tile = block / (EXPERT_TILE / rows), part = block % (EXPERT_TILE / rows) * rows;
    if (threadIdx.x == 0)
        shared->count = 0;
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += blockDim.x) { // nobody's where there are fewer tiles
        int first = g.first_tile[e], begin = g.start[e], end = g.start[e + 1];
        int at = begin + (tile - first) * EXPERT_TILE;
        if (tile >= first && at < end) {
            shared->expert = e;
            shared->first = at + part;
            shared->count = end - at - part < rows ? end - at - part : rows;
        }
    }
    __syncthreads();
    return *shared;
}

// Rows of a tile: pairs of the list over `divisor`.
struct tile_list {
    const int32_t *pairs;
    int32_t count, divisor, room;
    __device__ __forceinline__ int operator()(int32_t *rows) const
    {
        for (int r = threadIdx.x; r < room; r += blockDim.x)
            rows[r] = r < count ? pairs[r] / divisor : -1;
        return count;
    }
};

#endif
