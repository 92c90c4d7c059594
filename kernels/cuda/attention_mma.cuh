// SPDX-License-Identifier: Apache-2.0
//
// Attention over bf16 caches on the matrix units: a cluster a (row, up to 16 query heads of a kv head), a block a part of the
// row's positions, taken in tiles of 32 that are fetched ahead (attention_tile.cuh). Long rows have several clusters where the
// pass has few (attention_long.cuh).
//
// Invariant: see attention.cu; the number of stages and what is read before the wait change when things are fetched,
// never a bit.

#ifndef CUDA_ATTENTION_MMA_CUH
#define CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/attention_roles.cuh"

template <int DIM, int STAGES, int PARTS>
__global__ void __launch_bounds__(MMA_THREADS, 2) attention_mma_kernel(const __grid_constant__ struct attention_args a)
{
    SHARED_BYTES(room);
    constexpr int WAYS = mma_share<DIM>::WAYS, COLUMNS = mma_share<DIM>::COLUMNS;
    struct mma_space<DIM> *s = reinterpret_cast<struct mma_space<DIM> *>(room);
    struct mma_tile<DIM> *keys = reinterpret_cast<struct mma_tile<DIM> *>(room + sizeof *s), *values = keys + STAGES;
    const int32_t part = (int32_t)blockIdx.x % PARTS, warp = (int32_t)threadIdx.x / WARP;
    const int64_t value_offset =
        kv_offset(&a.layout, a.lanes.page, KV_VALUES) - kv_offset(&a.layout, a.lanes.page, KV_KEYS);
    const struct long_place place = long_place_of(&a, (int32_t)blockIdx.x / PARTS);
    if (place.leave)
        return; // others wait
    if (!place.real || !place.dense)
        pdl_wait();
    if (!place.real) {
        pdl_trigger();
        return;
    }
    const struct attention_heads heads = attention_heads_of(&a, MMA_HEADS, place.group);
    if (threadIdx.x == 0)
        box_open(&s->came, mma_bytes<DIM, PARTS, MMA_HEADS>(heads.count));
    cluster_arrive_read();
    const struct attention_row row =
        attention_row_at(&a, place.r, place.lane, place.position, place.dense ? -1 : __ldcg(a.counts + place.r));
    struct long_units units;
    const struct mma_span span = long_span<PARTS>(place, row.count, part, &units);
    if (span.tiles > 0) {
        const uint8_t *key = mma_find<DIM>(&a, s, &row, heads.kv_head, span, 0);
        if (!a.early)
            mma_ask<DIM>(key, value_offset);
    }
    if (!a.early)
        pdl_wait();
    __syncthreads();
#pragma unroll 1
    for (int32_t t = 0; t < STAGES; t++)
        mma_group<DIM, STAGES>(s, keys, span, t, value_offset);
    float2 x[mma_share<DIM>::STEPS][4];
    uint32_t q[mma_share<DIM>::STEPS][MMA_Q_PARTS][4];
    mma_queries<DIM>(&a, place.r, &heads, x);
    const struct mma_item first = mma_item_of(&a, place.r, &heads, DIM / PARTS, part, (int32_t)threadIdx.x);
    pdl_wait();
    pdl_trigger();
    mma_split<mma_share<DIM>::STEPS>(a.scale, x, q);
    float out[COLUMNS][4] = {};
    struct mma_sums sums = mma_none();
    struct mma_sums held[LONG_LEVELS];
    float held_out[LONG_LEVELS][COLUMNS][4];
    int32_t unit = 0, end = long_end(units, 0);
    __pipeline_wait_prior(STAGES - 1);
    __syncthreads();
    for (int32_t t = 0; t < span.tiles; t++) {
        if (warp < WAYS && t > 0)
            mma_values<DIM>(s->weight, s->keep, &values[(t - 1) % STAGES], out);
        if (t == end) {
            long_fold<COLUMNS>(s->weights, held_out, out, unit++, false);
            end = long_end(units, unit);
        }
        if (warp < WAYS)
            mma_scores<DIM>(s, &keys[t % STAGES], q);
        __syncthreads(); // the places of these keys and values are free
        const int32_t next = t + STAGES;
        mma_group<DIM, STAGES>(s, keys, span, next, value_offset);
        if ((next + 1) % MMA_AHEAD == 0 && next + 1 < span.tiles) // STAGES < MMA_AHEAD
            mma_find<DIM>(&a, s, &row, heads.kv_head, span, next + 1);
        mma_softmax<DIM>(s, &sums, span.end - span.begin - t * MMA_TILE);
        if (t + 1 == end)
            long_close(s->weights, held, &sums, warp, unit, unit + 1 == units.count);
        __pipeline_wait_prior(STAGES - 1);
        __syncthreads();
    }
    if (warp < WAYS && span.tiles > 0)
        mma_values<DIM>(s->weight, s->keep, &values[(span.tiles - 1) % STAGES], out);
    long_fold<COLUMNS>(s->weights, held_out, out, unit, true);
    cluster_wait(); // all blocks have opened their boxes
    mma_put_sums<DIM, PARTS>(s, &sums, warp, part);
    mma_put_out<DIM, PARTS>(s, out, heads.count, part);
    mma_end<DIM, PARTS>(&a, s, place, &heads, first);
}

// Whether the caches can be read 16 bytes at a time, and rows of two numbers.
static inline bool attention_mma_fits(const struct attention_args *a)
{
    const struct kv_layout *kv = &a->layout;
    const uint64_t rows = (uintptr_t)a->q | (uintptr_t)a->gate | (uintptr_t)a->y;
    return rows % 8 == 0 && (a->ldq | a->ldg | a->gate_stride | a->ldy) % 2 == 0 && kv->encoding == KV_BF16 &&
           (kv->dim == 64 || kv->dim == 128 || kv->dim == 256) && kv_fits(&a->lanes, kv, 8, KV_KEYS) &&
           kv_fits(&a->lanes, kv, 8, KV_VALUES);
}

template <int DIM> static size_t attention_mma_bytes(int stages)
{
    return sizeof(struct mma_space<DIM>) + 2 * (size_t)stages * sizeof(struct mma_tile<DIM>);
}

// Clusters of `parts` blocks: as many as there are rows times groups of heads, and as may share them.
static dim3 attention_mma_grid(const struct attention_args *a, int rows, unsigned parts)
{
    const int32_t items = rows * attention_groups(a, MMA_HEADS), least = long_doubled(a, 1) ? LONG_CLUSTERS : 1;
    return dim3(parts * (unsigned)(items < least ? least : items));
}

template <int DIM, int STAGES, int PARTS>
static cudaError_t attention_mma_stages(cudaStream_t stream, const struct attention_args *a, int rows)
{
    static_assert(STAGES < MMA_AHEAD, "addresses are found that far ahead");
    return launch_cluster(stream, attention_mma_grid(a, rows, PARTS), MMA_THREADS, attention_mma_bytes<DIM>(STAGES),
                          PARTS, attention_mma_kernel<DIM, STAGES, PARTS>, *a);
}

// Whether the launch's clusters run at once with a multiprocessor for each of their blocks, long rows' shares apart.
template <int DIM, int N> static bool attention_roles_fit(const struct attention_args *a, int rows)
{
    if (!clusters_available() || role_bytes<DIM, N>() > block_room())
        return false;
#if defined(CUDA_FIBERS)
    const int32_t most = LONG_AT_ONCE;
#else
    const int32_t most = clusters_at_once((const void *)attention_roles_kernel<DIM, N>, role_warps<N>::THREADS,
                                          role_bytes<DIM, N>(), MMA_PARTS);
#endif
    return rows * attention_groups(a, MMA_HEADS) <= most;
}

template <int DIM, int N>
static cudaError_t attention_roles(cudaStream_t stream, const struct attention_args *a, int rows)
{
    return launch_cluster(stream, attention_mma_grid(a, rows, MMA_PARTS), role_warps<N>::THREADS, role_bytes<DIM, N>(),
                          MMA_PARTS, attention_roles_kernel<DIM, N>, *a);
}

// Warps with roles of their own where a block has a processor for itself; else stages: MANY where it shares one, LEAST where those have
// no place.
template <int DIM, int MANY, int LEAST>
static cudaError_t attention_mma_launch(cudaStream_t stream, const struct attention_args *a, int rows)
{
    const bool clusters = clusters_available();
    if (attention_mma_bytes<DIM>(MANY) > block_room())
        return clusters ? attention_mma_stages<DIM, LEAST, MMA_PARTS>(stream, a, rows)
                        : attention_mma_stages<DIM, LEAST, 1>(stream, a, rows);
    if (!clusters)
        return attention_mma_stages<DIM, MANY, 1>(stream, a, rows);
    const bool octet = a->heads / a->layout.kv_heads <= 8;
    if (octet && attention_roles_fit<DIM, 1>(a, rows))
        return attention_roles<DIM, 1>(stream, a, rows);
    if (!octet && attention_roles_fit<DIM, 2>(a, rows))
        return attention_roles<DIM, 2>(stream, a, rows);
    return attention_mma_stages<DIM, MANY, MMA_PARTS>(stream, a, rows);
}

#endif
