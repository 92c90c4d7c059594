// SPDX-License-Identifier: Apache-2.0
//
// (row, slot) pairs sorted by expert and cut into tiles, for the prompt class of experts_up and experts_down.
//
// In the groups memory, as int32: first the number of tiles; from 16 on where each expert's pairs begin (experts + 1);
// then each expert's first tile (experts); then the pairs as row * slots + slot, by expert.
// Invariant: the order of the pairs of an expert is of no consequence, since a pair's result is its own.

#ifndef EXPERTS_PROMPT_CUH
#define EXPERTS_PROMPT_CUH

#include "kernels/cuda/prompt.cuh"

// Pairs of a tile, by how many an expert has on average. Blocks that take fewer rows share a tile.
enum { TILE_FEW = 16, TILE_SOME = 32, TILE_MORE = 48, TILE_MANY = 128 };

struct expert_groups {
    int32_t *tiles, *start, *first_tile, *pairs;
};

__host__ __device__ __forceinline__ expert_groups groups_at(void *memory, int experts)
{
    int32_t *p = (int32_t *)memory;
    expert_groups g = {p, p + 16, p + 17 + experts, p + 17 + 2 * experts};
    return g;
}

// The same for both halves.
static inline int expert_tile_rows(int64_t pairs, int experts)
{
    const int64_t each = (pairs + experts - 1) / experts;
    return each <= 10 ? TILE_FEW : each <= 20 ? TILE_SOME : each <= 40 ? TILE_MORE : TILE_MANY;
}

// Blocks of `rows` rows that a tile is shared by.
__host__ __device__ __forceinline__ int tile_parts(int tile, int rows)
{
    return tile > rows ? tile / rows : 1;
}

// Tiles at most: full ones, and one an expert that is not.
static inline int most_tiles(int64_t pairs, int experts, int tile)
{
    return (int)(pairs / tile + (pairs < experts ? pairs : experts));
}

// Some pairs of an expert: first .. first + count - 1 of the list; count 0: none.
struct expert_tile {
    int expert, first, count;
};

// Part `part` of `rows` rows of tile number `which` of expert e.
__device__ __forceinline__ expert_tile tile_of(const expert_groups &g, int e, int which, int part, int tile, int rows)
{
    const int begin = g.start[e] + which * tile, end = begin + tile < g.start[e + 1] ? begin + tile : g.start[e + 1],
              first = begin + part * rows < end ? begin + part * rows : end;
    return {e, first, end - first < rows ? end - first : rows};
}

// What block `block` of those that take up to `rows` rows each has of tiles of `tile`.
__device__ __forceinline__ expert_tile find_tile(const expert_groups &g, int experts, int block, int tile, int rows,
                                                 expert_tile *shared)
{
    const int parts = tile_parts(tile, rows), number = block / parts;
    if (threadIdx.x == 0)
        shared->count = 0;
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += blockDim.x) { // nobody's where there are fewer tiles
        const int which = number - g.first_tile[e];
        if (which >= 0 && g.start[e] + which * tile < g.start[e + 1])
            *shared = tile_of(g, e, which, block % parts, tile, rows);
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
