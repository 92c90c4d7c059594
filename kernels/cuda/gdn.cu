// SPDX-License-Identifier: Apache-2.0
//
// Gated DeltaNet: a block a (lane, value head, slice of columns of S); S stays in registers over all rows of the lane.
//
// Invariant: saved rows are replaced only when every block that folds them has read them: the blocks of a key head are a
// cluster with a barrier in between, or, where there are no clusters, a second kernel saves.

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/gdn_long.cuh"
#include "kernels/cuda/gdn_stage.cuh"
#include "kernels/cuda/launch.cuh"

enum {
    GDN_FUSED_ROWS = 128,     // passes of up to so many rows prepare their rows where they use them,
    GDN_FUSED_ROWS_LONG = 16, // or of so many where the others have the kernel for many rows
    GDN_CLUSTER = 8,
};

DEVICE struct gdn_block gdn_block_of(const struct gdn_args *a, int32_t l)
{
    const int32_t slices = (int32_t)gridDim.x / a->nv, slice = (int32_t)blockIdx.x % slices, share = a->nv / a->nk;
    struct gdn_block b;
    b.head = (int32_t)blockIdx.x / slices;
    b.key = b.head / share * a->dk;
    b.columns = (int32_t)blockDim.x / WARP * STATE_COLUMNS;
    b.first = slice * b.columns;
    b.width = a->dv - b.first < b.columns ? a->dv - b.first : b.columns;
    b.keys = (int64_t)a->nk * a->dk;
    b.values = (int64_t)a->nv * a->dv;
    b.row = a->pass->lane_first[l];
    b.rows = a->pass->lane_rows[l];
    b.owner = slice == 0;
    b.leads = b.owner && b.head % share == 0;
    return b;
}

// n saved rows from row `base` of the window on.
DEVICE void gdn_stage_saved(const struct gdn_args *a, const struct gdn_block *b, const struct gdn_stage *s,
                            const float *saved, int32_t base, int32_t n, int32_t padded)
{
    const int64_t ld = gdn_saved_width(a);
    const float *from = saved + base * ld, *scalars = from + b->keys + b->values + b->head;
    stage_rows<true>(s->k, s->stride, from + b->key, ld, n, a->dk, padded);
    stage_rows<true>(s->v, s->stride, from + b->keys + (int64_t)b->head * a->dv + b->first, ld, n, b->width, 0);
    stage_rows<true>(s->decay, s->stride, scalars, ld, n, 1, 1);
    stage_rows<true>(s->beta, s->stride, scalars + a->nv, ld, n, 1, 1);
}

// Moves the thread's columns, of which `live` exist, between memory and registers.
template <int PER, bool STORE>
DEVICE void gdn_move(const struct gdn_args *a, float *state, float (*s)[STATE_EACH], int32_t part, int32_t live)
{
    const bool wide = live >= STATE_EACH && (a->dv % 4 | (int32_t)((uintptr_t)state & 15)) == 0;
#pragma unroll
    for (int n = 0; n < PER; n++) {
        const int32_t i = state_element(n, part);
        float *row = state + (int64_t)i * a->dv;
        if (wide) {
            if (STORE && i < a->dk)
                *reinterpret_cast<float4 *>(row) = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
            if (!STORE) {
                const float4 t = i < a->dk ? *reinterpret_cast<const float4 *>(row) : make_float4(0, 0, 0, 0);
                s[n][0] = t.x, s[n][1] = t.y, s[n][2] = t.z, s[n][3] = t.w;
            }
        } else {
#pragma unroll
            for (int c = 0; c < STATE_EACH; c++) {
                if (STORE && c < live && i < a->dk)
                    row[c] = s[n][c];
                if (!STORE)
                    s[n][c] = c < live && i < a->dk ? row[c] : 0.0f;
            }
        }
    }
}

// The thread's columns of S in a run.
DEVICE float *gdn_home(const struct gdn_args *a, const struct gdn_block *b, uint8_t *run, int32_t column)
{
    return reinterpret_cast<float *>(run + a->state) + (int64_t)b->head * a->dk * a->dv + b->first + column;
}

// Rows of a stage from row `at` of the lane's on.
template <int T>
DEVICE int32_t gdn_some(const struct gdn_args *a, const struct gdn_block *b, const struct lane *lane, int64_t at)
{
    if (a->direct)
        return rows_to_keep(lane, (int32_t)at, (int32_t)b->rows, T);
    return (int32_t)(b->rows - at < T ? b->rows - at : T);
}

// Stores the thread's columns where the lane keeps the state behind row `at` - 1.
template <int PER>
DEVICE void gdn_keep_state(const struct gdn_args *a, const struct gdn_block *b, const struct lane *lane, int64_t at,
                           float (*s)[STATE_EACH], int32_t part, int32_t column)
{
#pragma unroll 1
    for (int32_t i = 0; a->direct && i < LANE_KEEPS; i++)
        if (lane_keeps(lane, i, (int32_t)b->rows) == at)
            gdn_move<PER, true>(a, gdn_home(a, b, lane->keep_run[i], column), s, part, b->width - column);
}

// n rows from row r of the pass on, prepared here from the convolution's output.
DEVICE void gdn_stage_raw(const struct gdn_args *a, const struct gdn_block *b, const struct gdn_stage *s, int64_t r,
                          int32_t n, int32_t padded)
{
    const float *c = a->c + r * a->ldc + b->key;
    gdn_stage_keys<GDN_MANY>(s, c, c + b->keys, a->ldc, n, a->dk, padded);
    stage_rows<false>(s->v, s->stride, a->c + r * a->ldc + 2 * b->keys + (int64_t)b->head * a->dv + b->first, a->ldc, n,
                      b->width, 0);
    for (int32_t t = (int32_t)threadIdx.x; t < n; t += (int32_t)blockDim.x)
        gdn_scalars(a, r + t, b->head, &s->decay[t * s->stride], &s->beta[t * s->stride]);
}

// n rows that phase 0 prepared; returns before they are there.
DEVICE void gdn_stage_prepared(const struct gdn_args *a, const struct gdn_block *b, const struct gdn_stage *s,
                               int64_t r, int32_t n, int32_t padded)
{
    const int64_t ld = gdn_prepared_width(a);
    const float *from = a->prepared + r * ld;
    stage_rows<true>(s->q, s->stride, from + b->key, ld, n, a->dk, padded);
    stage_rows<true>(s->k, s->stride, from + b->keys + b->key, ld, n, a->dk, padded);
    stage_rows<true>(s->v, s->stride, a->c + r * a->ldc + 2 * b->keys + (int64_t)b->head * a->dv + b->first, a->ldc, n,
                     b->width, 0);
    stage_rows<true>(s->decay, s->stride, from + 2 * b->keys + b->head, ld, n, 1, 1);
    stage_rows<true>(s->beta, s->stride, from + 2 * b->keys + a->nv + b->head, ld, n, 1, 1);
}

// Asks for the block's part of S while earlier kernels still run: a hint, which changes no bits. lane->run never changes.
DEVICE void gdn_prefetch(const struct gdn_args *a, const uint8_t *run)
{
    const int32_t slices = (int32_t)gridDim.x / a->nv, columns = (int32_t)blockDim.x / WARP * STATE_COLUMNS;
    const int32_t head = (int32_t)blockIdx.x / slices, first = (int32_t)blockIdx.x % slices * columns;
    const uint8_t *state = run + a->state + 4 * ((int64_t)head * a->dk * a->dv + first);
    const int32_t lines = (4 * (a->dv - first < columns ? a->dv - first : columns) + 127) / 128;
    for (int32_t i = (int32_t)threadIdx.x; i < a->dk * lines; i += (int32_t)blockDim.x)
        prefetch_l2(state + (int64_t)(i / lines) * a->dv * 4 + i % lines * 128);
}

// ---- kernels -----------------------------------------------------------------------------------------------------------------

// PER: elements of a column a thread. T: rows staged at a time.
template <int PER, int T, bool FUSED>
__global__ void __launch_bounds__(128) gdn_kernel(const __grid_constant__ struct gdn_args a)
{
    extern __shared__ __align__(16) float shared[];
    constexpr int PADDED = STATE_PARTS * PER;
    const int32_t l = (int32_t)blockIdx.y, part = threadIdx.x % STATE_PARTS;
    const int32_t column = (int32_t)threadIdx.x / STATE_PARTS * STATE_EACH;
    const struct lane *lane = a.lanes.lane[l];
    if (lane)
        gdn_prefetch(&a, lane->run);
    pdl_wait();
    pdl_trigger();
    if (!lane || a.pass->lane_rows[l] == 0)
        return;
    const struct gdn_block b = gdn_block_of(&a, l);
    const int32_t room = T * gdn_stage_stride(PADDED, b.columns);
    const struct gdn_stage first = gdn_stage_at(shared, PADDED, b.columns);
    const int32_t fold = lane->fold;
    const int32_t live = b.width - column;
    float *home = gdn_home(&a, &b, lane->run, column);
    float *y = a.y + b.row * a.ldy + (int64_t)b.head * a.dv + b.first + column;
    float *saved = gdn_saved(&a, lane->run), state[PER][STATE_EACH];
    gdn_move<PER, false>(&a, home, state, part, live);
    // What the first rows need is under way before the first barrier.
    const struct gdn_stage rows = gdn_stage_at(shared + (FUSED ? room : 0), PADDED, b.columns);
    const int32_t start = gdn_some<T>(&a, &b, lane, 0);
    struct gdn_stage own; // as the thread reads it
    for (int32_t base = 0; base < fold || base == 0; base += T) {
        const int32_t n = fold - base < T ? fold - base : T;
        if (n > 0)
            gdn_stage_saved(&a, &b, &first, saved, base, n, PADDED);
        __pipeline_commit();
        if (FUSED && base == 0)
            gdn_stage_raw(&a, &b, &rows, b.row, start, PADDED);
        __pipeline_wait_prior(0);
        __syncthreads();
        own = gdn_stage_of(first, column);
        gdn_fold<PER>(&own, n, state, part);
        __syncthreads();
    }
    if (fold > 0 && !a.direct)
        gdn_move<PER, true>(&a, home, state, part, live);
    if constexpr (FUSED) {
        if (!a.direct)
            cluster_arrive();
        for (int64_t at = 0, n; at < b.rows; at += n) {
            n = gdn_some<T>(&a, &b, lane, at);
            if (at > 0) {
                __syncthreads();
                gdn_stage_raw(&a, &b, &rows, b.row + at, (int32_t)n, PADDED);
                __syncthreads();
            }
            own = gdn_stage_of(rows, column);
            gdn_run<PER>(&own, (int32_t)n, state, part, live, y + at * a.ldy, a.ldy);
            gdn_keep_state<PER>(&a, &b, lane, at + n, state, part, column);
            if (!a.direct && at == 0)
                cluster_wait();
            if (!a.direct)
                gdn_keep(&a, &b, &rows, saved, (int32_t)at, (int32_t)n);
        }
    } else {
        gdn_stage_prepared(&a, &b, &rows, b.row, start, PADDED);
        __pipeline_commit();
        for (int64_t at = 0, which = 0, next; at < b.rows; at = next, which ^= 1) {
            const int32_t n = gdn_some<T>(&a, &b, lane, at);
            next = at + n;
            const struct gdn_stage here = gdn_stage_at(shared + which * room, PADDED, b.columns);
            const struct gdn_stage there = gdn_stage_at(shared + (which ^ 1) * room, PADDED, b.columns);
            if (next < b.rows)
                gdn_stage_prepared(&a, &b, &there, b.row + next, gdn_some<T>(&a, &b, lane, next), PADDED);
            __pipeline_commit();
            __pipeline_wait_prior(1);
            __syncthreads();
            own = gdn_stage_of(here, column);
            gdn_run<PER>(&own, n, state, part, live, y + at * a.ldy, a.ldy);
            gdn_keep_state<PER>(&a, &b, lane, next, state, part, column);
            __syncthreads();
        }
    }
    if (a.direct)
        gdn_move<PER, true>(&a, home, state, part, live);
}

// A warp a (row, key head): normalised q and k, and the scalars of its value heads.
__global__ void __launch_bounds__(128) gdn_prepare_kernel(const __grid_constant__ struct gdn_args a)
{
    const int32_t lane = threadIdx.x % WARP, head = (int32_t)blockIdx.x * 4 + (int32_t)threadIdx.x / WARP;
    const int64_t r = blockIdx.y, keys = (int64_t)a.nk * a.dk;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || head >= a.nk)
        return;
    const float *c = a.c + r * a.ldc + (int64_t)head * a.dk;
    float *out = a.prepared + r * gdn_prepared_width(&a);
    float q[GDN_LANE], k[GDN_LANE];
    gdn_take(q, c, a.dk, lane);
    gdn_take(k, c + keys, a.dk, lane);
    gdn_normalise(out + (int64_t)head * a.dk, q, a.dk, a.dk, 1.0f / sqrtf((float)a.dk), lane);
    gdn_normalise(out + keys + (int64_t)head * a.dk, k, a.dk, a.dk, 1.0f, lane);
    const int32_t share = a.nv / a.nk;
    for (int32_t h = head * share + lane; h < (head + 1) * share; h += WARP)
        gdn_scalars(&a, r, h, out + 2 * keys + h, out + 2 * keys + a.nv + h);
}

// A block a row of a window.
__global__ void __launch_bounds__(256) gdn_save_kernel(const __grid_constant__ struct gdn_args a)
{
    const int64_t r = blockIdx.y, keys = (int64_t)a.nk * a.dk, values = (int64_t)a.nv * a.dv;
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || i >= gdn_saved_width(&a))
        return;
    const int32_t l = a.pass->lane[r];
    const float *prepared = a.prepared + r * gdn_prepared_width(&a);
    float *saved = gdn_saved(&a, a.lanes.lane[l]->run) + (r - a.pass->lane_first[l]) * gdn_saved_width(&a);
    if (i < keys)
        saved[i] = prepared[keys + i];
    else if (i < keys + values)
        saved[i] = a.c[r * a.ldc + keys + i];
    else
        saved[i] = prepared[keys - values + i];
}

// ---- launch ------------------------------------------------------------------------------------------------------------------

// Columns of a block: `most` or fewer, whole warps.
static int32_t gdn_columns(const struct gdn_args *a, int32_t most)
{
    const int32_t padded = (a->dv + STATE_COLUMNS - 1) / STATE_COLUMNS * STATE_COLUMNS;
    return padded < most ? padded : most;
}

template <int PER, int T, bool FUSED>
static cudaError_t gdn_launch(cudaStream_t stream, const struct gdn_args *a, int32_t columns, unsigned cluster)
{
    const dim3 grid((unsigned)a->nv * blocks_for(a->dv, columns), (unsigned)a->lanes.count);
    const size_t floats = (size_t)(T * gdn_stage_stride(STATE_PARTS * PER, columns)) * 2;
    return launch_cluster(stream, grid, (unsigned)(columns / STATE_COLUMNS * WARP), floats * sizeof(float), cluster,
                          gdn_kernel<PER, T, FUSED>, *a);
}

template <bool FUSED>
static cudaError_t gdn_launch_per(cudaStream_t stream, const struct gdn_args *a, int32_t columns, unsigned cluster)
{
    if (a->dk <= 32)
        return gdn_launch<4, 16, FUSED>(stream, a, columns, cluster);
    if (a->dk <= 64)
        return gdn_launch<8, 16, FUSED>(stream, a, columns, cluster);
    if (a->dk <= 128)
        return gdn_launch<16, 16, FUSED>(stream, a, columns, cluster);
    if (a->dk <= 256)
        return gdn_launch<32, 8, FUSED>(stream, a, columns, cluster);
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_gdn(cudaStream_t stream, const struct gdn_args *a, int rows)
{
    const int32_t share = a->nv / a->nk, fused = gdn_long_fits(a) ? GDN_FUSED_ROWS_LONG : GDN_FUSED_ROWS;
    for (int32_t most = 64; rows <= fused && clusters_available() && most >= STATE_COLUMNS; most /= 2) {
        // The narrowest slices that a cluster of all blocks of a key head allows, but no narrower than 16 columns.
        const int32_t columns = gdn_columns(a, most), blocks = share * (int32_t)blocks_for(a->dv, columns);
        const int32_t next = gdn_columns(a, most / 2), finer = share * (int32_t)blocks_for(a->dv, next);
        if (blocks > GDN_CLUSTER)
            break;
        if (most / 2 < 16 || finer > GDN_CLUSTER)
            return gdn_launch_per<true>(stream, a, columns, (unsigned)blocks);
    }
    cudaError_t error = launch(stream, dim3(blocks_for(a->nk, 4), (unsigned)rows), 128, 0, gdn_prepare_kernel, *a);
    if (error == cudaSuccess)
        error = gdn_long_fits(a) ? gdn_long(stream, a) : gdn_launch_per<false>(stream, a, gdn_columns(a, 32), 1);
    if (error == cudaSuccess && !a->direct)
        error = launch(stream, dim3(blocks_for(gdn_saved_width(a), 256), (unsigned)rows), 256, 0, gdn_save_kernel, *a);
    return error;
}
