// SPDX-License-Identifier: Apache-2.0
//
// What stands between an attention layer's first product and its choice, in one launch: the norm of keys and their way
// into the cache, that of values and index keys, the pooling of a block, the norms of queries and of the indexer's
// queries. A warp a (row, head).
//
// Invariant: the operations of head_norm, kv_append and index_pool by the same functions, so the same bits. No warp
// reads what another one writes: a block's keys that are rows of this pass are taken from there and rounded as the
// cache does.

#include "kernels/cuda/head_norm.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pool.cuh"

enum { ITEM_WARPS = 4 };

struct append_step_args {
    struct head_norm_args keys, norm[2]; // norm[i].heads 0: there is none
    struct kv_append_args append;
    struct index_pool_args pool; // ratio 0: there is none
};

// What a warp does, by its number in the row: the index key, keys, values, heads of norm[0], of norm[1].
enum item_kind { ITEM_INDEX, ITEM_KEY, ITEM_VALUE, ITEM_NORM, ITEM_NORM_TOO, ITEM_NONE };

struct item {
    int32_t kind, head;
};

static __host__ __device__ inline int32_t item_count(const struct append_step_args &a, int kind)
{
    return kind == ITEM_INDEX      ? (a.append.index ? 1 : 0)
           : kind == ITEM_NORM     ? a.norm[0].heads
           : kind == ITEM_NORM_TOO ? a.norm[1].heads
                                   : a.append.layout.kv_heads;
}

DEVICE struct item item_of(const struct append_step_args &a, int32_t number)
{
    struct item item = {ITEM_NONE, number};
#pragma unroll
    for (int kind = ITEM_INDEX; kind < ITEM_NONE; kind++) {
        const int32_t count = item_count(a, kind);
        if (item.kind == ITEM_NONE && item.head < count)
            item.kind = kind;
        else if (item.kind == ITEM_NONE)
            item.head -= count;
    }
    return item;
}

// Numbers of row r that the item reads.
struct item_source {
    const float *x;
    int32_t dim;
};

DEVICE struct item_source item_source_of(const struct append_step_args &a, const struct item &item,
                                         const struct head_norm_args *norm, int64_t r)
{
    const struct kv_layout *kv = &a.append.layout;
    if (item.kind == ITEM_INDEX)
        return {a.append.index + r * a.append.ldi, kv->index_dim};
    if (item.kind == ITEM_VALUE)
        return {a.append.v + r * a.append.ldv + (int64_t)item.head * kv->dim, kv->dim};
    return {head_of(norm, r, item.head), norm->dim};
}

// Puts a row of a warp's into the cache.
DEVICE void item_append(const struct append_step_args &a, const struct item &item, const uint32_t *table,
                        int32_t position, const float *row, int32_t lane)
{
    const struct kv_layout *kv = &a.append.layout;
    const bool index = item.kind == ITEM_INDEX;
    const enum kv_part part = index ? KV_INDEX : item.kind == ITEM_KEY ? KV_KEYS : KV_VALUES;
    kv_encode(kv_row(&a.append.lanes, kv, table, part, position, 1), row, index ? 1 : kv->kv_heads,
              index ? 0 : item.head, index ? kv->index_dim : kv->dim, index ? kv->index_encoding : kv->encoding, lane);
}

// Pools the block that row r completes, if it does; `before`: rows of the lane in the pass before it.
DEVICE void item_pool(const struct append_step_args &a, int64_t r, const uint32_t *table, int32_t position,
                      int32_t before, float *row, int32_t lane)
{
    const struct kv_layout *kv = &a.append.layout;
    const int32_t ratio = a.pool.ratio;
    if (ratio == 0 || (position + 1) % ratio != 0)
        return;
    const int32_t fresh = before + 1 < ratio ? before + 1 : ratio;
    const struct pool_keys keys = {kv_row(&a.append.lanes, kv, table, KV_INDEX, position + 1 - ratio, 1),
                                   kv->index_bytes, a.append.index + (r + 1 - fresh) * a.append.ldi, a.append.ldi,
                                   ratio - fresh};
    pool_block(&a.pool, keys, table, position, row, lane);
}

__global__ void __launch_bounds__(ITEM_WARPS *WARP)
    append_step_kernel(const __grid_constant__ struct append_step_args a, int32_t room)
{
    extern __shared__ float rows[]; // [ITEM_WARPS][room]
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const struct item item = item_of(a, (int32_t)blockIdx.x * ITEM_WARPS + warp);
    const struct head_norm_args *norm = item.kind == ITEM_KEY    ? &a.keys
                                        : item.kind == ITEM_NORM ? &a.norm[0]
                                                                 : &a.norm[1];
    const bool norms = item.kind == ITEM_NORM || item.kind == ITEM_NORM_TOO, normed = norms || item.kind == ITEM_KEY;
    const int64_t r = blockIdx.y;
    const struct item_source from = item_source_of(a, item, norm, r);
    const volatile struct pass *pass = a.append.pass; // so that no number waits for another one
    const volatile int32_t *lane_of = pass->lane, *position_of = pass->position; // nobody moves them
    float *row = rows + warp * room;
    struct head_weights weights = {};
    if (normed)
        weights = head_weights_of(norm, lane);
    pdl_wait();
    pdl_trigger();
    if (item.kind == ITEM_NONE)
        return;
    const int32_t live = pass->rows, l = lane_of[r], position = position_of[r];
    const struct head_numbers numbers = head_numbers_of(from.x, from.dim, lane);
    if (r >= live)
        return;
    const uint32_t *table = a.append.lanes.table[l];
    if (normed)
        head_norm_row(norm, from.x, numbers, weights, row, position, lane);
    else
        head_copy(from.x, from.dim, numbers, row, lane);
    if (norms) {
        float *y = norm->y + r * norm->ldy + (int64_t)item.head * norm->dim;
#pragma unroll 4
        for (int32_t i = lane; i < norm->dim; i += WARP)
            y[i] = row[i];
        return;
    }
    item_append(a, item, table, position, row, lane);
    if (item.kind == ITEM_INDEX)
        item_pool(a, r, table, position, (int32_t)r - pass->lane_first[l], row, lane);
}

// ---- launch --------------------------------------------------------------------------------------------------------------------

static bool same_cache(const struct kv_append_args *a, const struct index_pool_args *b)
{
    return a->index && a->pass == b->pass && a->lanes.pages == b->lanes.pages && a->layout.base == b->layout.base &&
           a->layout.key_bytes == b->layout.key_bytes && a->layout.index_bytes == b->layout.index_bytes &&
           a->layout.index_dim == b->layout.index_dim && a->layout.index_encoding == b->layout.index_encoding &&
           b->ratio > 0;
}

// pool, first, second: NULL where the step is without.
static cudaError_t append_launch(cudaStream_t stream, const void *const *args, const void *pool, const void *first,
                                 const void *second, int rows)
{
    struct append_step_args a = {};
    a.keys = *(const struct head_norm_args *)args[0];
    a.append = *(const struct kv_append_args *)args[1];
    if (pool)
        a.pool = *(const struct index_pool_args *)pool;
    if (first)
        a.norm[0] = *(const struct head_norm_args *)first;
    if (second)
        a.norm[1] = *(const struct head_norm_args *)second;
    if (a.keys.y != a.append.k || a.keys.ldy != a.append.ldk || a.keys.heads != a.append.layout.kv_heads ||
        a.keys.dim != a.append.layout.dim || a.keys.pass != a.append.pass || (pool && !same_cache(&a.append, &a.pool)))
        return cudaErrorNotSupported;
    int32_t items = 0, room = a.keys.dim;
    for (const struct head_norm_args &norm : a.norm) {
        if (norm.heads > 0 && (norm.pass != a.append.pass || norm.x == a.append.k))
            return cudaErrorNotSupported;
        room = norm.dim > room ? norm.dim : room;
    }
    room = a.append.index && a.append.layout.index_dim > room ? a.append.layout.index_dim : room;
    for (int kind = ITEM_INDEX; kind < ITEM_NONE; kind++)
        items += item_count(a, kind);
    const dim3 grid(blocks_for(items, ITEM_WARPS), (unsigned)rows);
    return launch(stream, grid, ITEM_WARPS * WARP, sizeof(float) * ITEM_WARPS * (size_t)room, append_step_kernel, a,
                  room);
}

// May say cudaErrorNotSupported, before they have launched anything.
extern "C" cudaError_t cuda_norm_append(cudaStream_t stream, const void *const *args, int rows)
{
    return append_launch(stream, args, NULL, NULL, NULL, rows);
}

extern "C" cudaError_t cuda_norm_append_norm(cudaStream_t stream, const void *const *args, int rows)
{
    return append_launch(stream, args, NULL, args[2], NULL, rows);
}

extern "C" cudaError_t cuda_norm_append_pool(cudaStream_t stream, const void *const *args, int rows)
{
    return append_launch(stream, args, args[2], NULL, NULL, rows);
}

extern "C" cudaError_t cuda_norm_append_pool_norms(cudaStream_t stream, const void *const *args, int rows)
{
    return append_launch(stream, args, args[2], args[3], args[4], rows);
}
