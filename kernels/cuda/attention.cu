// SPDX-License-Identifier: Apache-2.0
//
// Appending to the caches, and causal attention over all or over selected positions of a paged cache, in fp32.
//
// Invariant: a row's positions form an ascending list that depends on the row alone; the list is cut into parts by its length
// alone, a part's positions go to warps in turn, and warps and parts are merged in ascending order, or in pairs where a row is
// long (attention_long.cuh). So neither the page size, nor the order of pages, nor the rows that share the launch change a bit.

#include "kernels/cuda/attention_group.cuh"
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_wide.cuh"

// ---- kv_append: a warp a (row, head of keys or of values, or index key) ------------------------------------------------------

enum { APPEND_WARPS = 4 };

__global__ void __launch_bounds__(APPEND_WARPS *WARP) kv_append_kernel(const __grid_constant__ struct kv_append_args a)
{
    const struct kv_layout *kv = &a.layout;
    const int32_t lane = threadIdx.x % WARP, item = (int32_t)(blockIdx.x * APPEND_WARPS + threadIdx.x / WARP);
    const int64_t r = blockIdx.y;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || item > 2 * kv->kv_heads - (a.index ? 0 : 1))
        return;
    const uint32_t *table = a.lanes.table[a.pass->lane[r]];
    const int32_t at = a.pass->position[r];
    if (item == 2 * kv->kv_heads) {
        kv_encode(kv_row(&a.lanes, kv, table, KV_INDEX, at, 1), a.index + r * a.ldi, 1, 0, kv->index_dim,
                  kv->index_encoding, lane);
        return;
    }
    const bool value = item >= kv->kv_heads;
    const int32_t head = value ? item - kv->kv_heads : item;
    const float *x = value ? a.v + r * a.ldv : a.k + r * a.ldk;
    kv_encode(kv_row(&a.lanes, kv, table, value ? KV_VALUES : KV_KEYS, at, 1), x + (int64_t)head * kv->dim,
              kv->kv_heads, head, kv->dim, kv->encoding, lane);
}

extern "C" cudaError_t cuda_kv_append(cudaStream_t stream, const struct kv_append_args *a, int rows)
{
    const dim3 grid(blocks_for(2 * a->layout.kv_heads + (a->index ? 1 : 0), APPEND_WARPS), (unsigned)rows);
    return launch(stream, grid, APPEND_WARPS * WARP, 0, kv_append_kernel, *a);
}

// ---- attention: a cluster a (row, up to FEW query heads of a kv head), a block a part of its positions -------------------------

enum {
    FEW = 4,   // query heads that share a decoded key
    WARPS = 8, // of a block
    PARTS = 8, // blocks of a cluster
};

// A warp's share: running maximum, sum of weights, and weighted values of dims first .. first + D - 1 of the lane.
template <int D> struct share {
    float top[FEW], total[FEW], out[FEW][D];
};

// Adds one position.
template <int D>
DEVICE void share_add(struct share<D> *s, const float (*q)[D], const float *key, const float *value, float key_scale,
                      float value_scale)
{
#pragma unroll
    for (int h = 0; h < FEW; h++) {
        float dot = 0;
#pragma unroll
        for (int d = 0; d < D; d++)
            dot = fmaf(q[h][d], key[d], dot);
        const float score = f_mul(warp_sum<WARP>(dot), key_scale), top = score > s->top[h] ? score : s->top[h];
        const float keep = expf(__fadd_rn(s->top[h], -top)), weight = expf(__fadd_rn(score, -top));
        s->top[h] = top;
        s->total[h] = fmaf(s->total[h], keep, weight);
        const float scaled = f_mul(weight, value_scale);
#pragma unroll
        for (int d = 0; d < D; d++)
            s->out[h][d] = fmaf(scaled, value[d], f_mul(s->out[h][d], keep));
    }
}

// Positions begin + warp, begin + warp + WARPS, ... of the row's list.
template <int D>
DEVICE void share_run(const struct attention_args *a, const struct attention_row *row, int32_t kv_head,
                      const float (*q)[D], struct share<D> *s, int32_t begin, int32_t end, bool fast)
{
    const struct kv_layout *kv = &a->layout;
    const int32_t first = (int32_t)(threadIdx.x % WARP) * D;
    for (int32_t i = begin + (int32_t)threadIdx.x / WARP; i < end; i += WARPS) {
        const int32_t position = attention_position(a, row, i);
        const uint8_t *k = kv_row(&a->lanes, kv, row->table, KV_KEYS, position, 1);
        const uint8_t *v = kv_row(&a->lanes, kv, row->table, KV_VALUES, position, 1);
        float key[D], value[D];
        kv_load<D>(key, k, kv_head, kv->dim, kv->encoding, first, fast);
        kv_load<D>(value, v, kv_head, kv->dim, kv->encoding, first, fast);
        share_add<D>(s, q, key, value, kv_scale(k, kv->kv_heads, kv_head, kv->dim, kv->encoding),
                     kv_scale(v, kv->kv_heads, kv_head, kv->dim, kv->encoding));
    }
}

// Shared memory of a block: what its warps have, then what the block has.
struct attention_space {
    float *top, *total, *out; // [WARPS + 1][FEW], [WARPS + 1][FEW], [WARPS + 1][FEW][dims]
};

DEVICE struct attention_space attention_space_of(float *shared)
{
    struct attention_space s;
    s.top = shared;
    s.total = s.top + (WARPS + 1) * FEW;
    s.out = s.total + (WARPS + 1) * FEW;
    return s;
}

template <int D>
__global__ void __launch_bounds__(WARPS *WARP)
    attention_kernel(const __grid_constant__ struct attention_args a, bool fast)
{
    extern __shared__ __align__(16) float shared[];
    constexpr int DIMS = D * WARP;
    const int32_t parts = (int32_t)(gridDim.x / (unsigned)attention_groups(&a, FEW)),
                  part = (int32_t)blockIdx.x % parts;
    const int32_t group = (int32_t)blockIdx.x / parts, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t r = blockIdx.y;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows)
        return;
    const struct attention_space space = attention_space_of(shared);
    const struct attention_row row = attention_row_of(&a, r);
    const struct attention_heads heads = attention_heads_of(&a, FEW, group);
    float q[FEW][D];
    struct share<D> mine;
#pragma unroll
    for (int h = 0; h < FEW; h++) {
        mine.top[h] = -INFINITY;
        mine.total[h] = 0;
#pragma unroll
        for (int d = 0; d < D; d++) {
            const int32_t at = lane * D + d;
            const bool real = h < heads.count && at < a.layout.dim;
            q[h][d] = real ? f_mul(a.q[r * a.ldq + (int64_t)(heads.first + h) * a.layout.dim + at], a.scale) : 0.0f;
            mine.out[h][d] = 0;
        }
    }
    const int32_t size = (row.count + parts - 1) / parts, begin = size * part;
    share_run<D>(&a, &row, heads.kv_head, q, &mine, begin, begin + size < row.count ? begin + size : row.count, fast);
#pragma unroll
    for (int h = 0; h < FEW; h++) {
        space.top[warp * FEW + h] = mine.top[h];
        space.total[warp * FEW + h] = mine.total[h];
#pragma unroll
        for (int d = 0; d < D; d++)
            space.out[(warp * FEW + h) * DIMS + lane * D + d] = mine.out[h][d];
    }
    __syncthreads();
    // The block's own sum over its warps.
    for (int32_t i = (int32_t)threadIdx.x; i < FEW * DIMS; i += WARPS * WARP) {
        const int32_t h = i / DIMS;
        const struct attention_sum sum = attention_merge(WARPS, [&](int32_t w, float *top, float *total) {
            *top = space.top[w * FEW + h];
            *total = space.total[w * FEW + h];
            return space.out[w * FEW * DIMS + i];
        });
        space.out[WARPS * FEW * DIMS + i] = sum.out;
        if (i % DIMS == 0) {
            space.top[WARPS * FEW + h] = sum.top;
            space.total[WARPS * FEW + h] = sum.total;
        }
    }
    cluster_sync();
    // The cluster's, each block a share of the dims.
    for (int32_t i = part * WARPS * WARP + (int32_t)threadIdx.x; i < heads.count * DIMS; i += parts * WARPS * WARP) {
        const int32_t h = i / DIMS, d = i % DIMS;
        const struct attention_sum sum = attention_merge(parts, [&](int32_t p, float *top, float *total) {
            const struct attention_space other = attention_space_of(cluster_map(shared, (unsigned)p));
            *top = other.top[WARPS * FEW + h];
            *total = other.total[WARPS * FEW + h];
            return other.out[WARPS * FEW * DIMS + i];
        });
        if (d < a.layout.dim)
            attention_write(&a, r, heads.first + h, d, __fdiv_rn(sum.out, sum.total));
    }
    cluster_sync();
}

template <int D> static cudaError_t attention_launch(cudaStream_t stream, const struct attention_args *a, int rows)
{
    const bool fast = kv_fits(&a->lanes, &a->layout, D, KV_KEYS) && kv_fits(&a->lanes, &a->layout, D, KV_VALUES);
    const unsigned parts = clusters_available() ? PARTS : 1;
    const dim3 grid(parts * (unsigned)attention_groups(a, FEW), (unsigned)rows);
    const size_t bytes = sizeof(float) * (WARPS + 1) * FEW * (2 + D * WARP);
    return launch_cluster(stream, grid, WARPS * WARP, bytes, parts, attention_kernel<D>, *a, fast);
}

extern "C" cudaError_t cuda_attention(cudaStream_t stream, const struct attention_args *args, int rows)
{
    struct attention_args all = *args;
    const struct attention_args *a = &all;
    if (a->row_class != CLASS_DECODE) // kernels of the prompt class let the next one start before their own wait
        all.early = 0;
    if (attention_dense_fits(a))
        return attention_group_available() ? attention_group(stream, a, rows) : attention_dense(stream, a, rows);
    const bool wide = attention_wide_fits(a);
    const cudaError_t error = wide ? attention_wide(stream, a, rows) : cudaSuccess;
    if (error != cudaSuccess)
        return error;
    if (attention_rows_fits(a))
        return a->layout.dim == 256 ? attention_rows<256>(stream, a, rows, wide ? WIDE_POSITIONS : 0)
                                    : attention_rows<128>(stream, a, rows, wide ? WIDE_POSITIONS : 0);
    if (attention_mma_fits(a))
        return a->layout.dim == 256   ? attention_mma_launch<256, 2, 1>(stream, a, rows)
               : a->layout.dim == 128 ? attention_mma_launch<128, 2, 2>(stream, a, rows)
                                      : attention_mma_launch<64, 4, 4>(stream, a, rows);
    if (a->layout.dim <= 64)
        return attention_launch<2>(stream, a, rows);
    if (a->layout.dim <= 128)
        return attention_launch<4>(stream, a, rows);
    if (a->layout.dim <= 256)
        return attention_launch<8>(stream, a, rows);
    return cudaErrorInvalidValue;
}
