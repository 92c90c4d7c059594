// SPDX-License-Identifier: Apache-2.0
//
// Gated DeltaNet over many rows: a block a (lane, key head, 16 columns of S), a thread one column of every value head of that key
// head, so that a number of a key serves them all and few shuffles do.
//
// Invariant: the arithmetic of gdn_step() on a column, in its order; what a thread holds of a column is the same too. So rows
// leave the same bits here and there.

#ifndef CUDA_GDN_LONG_CUH
#define CUDA_GDN_LONG_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/gdn.cuh"

enum {
    LONG_DK = 128,
    LONG_PER = LONG_DK / STATE_PARTS, // numbers of a column a thread
    LONG_COLUMNS = 16,                // of a block
    LONG_THREADS = LONG_COLUMNS * STATE_PARTS,
    LONG_ROWS = 16, // staged at a time
    LONG_SHARE = 4, // value heads of a key head at most
};

// Rows in shared memory.
template <int SHARE> struct long_stage {
    float k[LONG_ROWS][LONG_DK], q[LONG_ROWS][LONG_DK];
    float v[LONG_ROWS][SHARE][LONG_COLUMNS];
    float2 scalars[LONG_ROWS][SHARE]; // decay, beta
};

// One row in registers.
template <int SHARE> struct long_row {
    float4 k[LONG_PER / 4], q[LONG_PER / 4];
    float v[SHARE];
    float2 scalars[SHARE];
};

// Where a kind of rows lies: k, q (or NULL), v of the first head, decay, beta of the first head; distances between rows.
struct long_source {
    const float *k, *q, *v, *decay, *beta;
    int64_t ld, ldv;
};

// Asks for n rows from `first` on; commits.
template <int SHARE>
DEVICE void long_fetch(struct long_stage<SHARE> *s, const struct long_source *from, int64_t first, int32_t n,
                       int32_t dv)
{
    const int32_t t = (int32_t)threadIdx.x;
    for (int32_t i = t; i < n * (LONG_DK / 4); i += LONG_THREADS) {
        const int32_t r = i / (LONG_DK / 4), at = i % (LONG_DK / 4) * 4;
        __pipeline_memcpy_async(&s->k[r][at], from->k + (first + r) * from->ld + at, 16);
        if (from->q)
            __pipeline_memcpy_async(&s->q[r][at], from->q + (first + r) * from->ld + at, 16);
    }
    for (int32_t i = t; i < n * SHARE * (LONG_COLUMNS / 4); i += LONG_THREADS) {
        const int32_t r = i / (SHARE * LONG_COLUMNS / 4), h = i / (LONG_COLUMNS / 4) % SHARE,
                      at = i % (LONG_COLUMNS / 4) * 4;
        __pipeline_memcpy_async(&s->v[r][h][at], from->v + (first + r) * from->ldv + (int64_t)h * dv + at, 16);
    }
    for (int32_t i = t; i < n * SHARE; i += LONG_THREADS) {
        const int32_t r = i / SHARE, h = i % SHARE;
        __pipeline_memcpy_async(&s->scalars[r][h].x, from->decay + (first + r) * from->ld + h, 4);
        __pipeline_memcpy_async(&s->scalars[r][h].y, from->beta + (first + r) * from->ld + h, 4);
    }
    __pipeline_commit();
}

template <int SHARE>
DEVICE void long_take(struct long_row<SHARE> *row, const struct long_stage<SHARE> *s, int32_t r, int32_t part,
                      int32_t column)
{
    const float4 *k = reinterpret_cast<const float4 *>(s->k[r]) + part,
                 *q = reinterpret_cast<const float4 *>(s->q[r]) + part;
#pragma unroll
    for (int m = 0; m < LONG_PER / 4; m++) {
        row->k[m] = k[m * STATE_PARTS];
        row->q[m] = q[m * STATE_PARTS];
    }
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        row->v[h] = s->v[r][h][column];
        row->scalars[h] = s->scalars[r][h];
    }
}

// One row: what gdn_step() does to each column; out: what the thread has of its columns' outputs.
template <int SHARE> DEVICE void long_step(float (*s)[SHARE], const struct long_row<SHARE> *row, float *out)
{
    float delta[SHARE];
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        float read = 0;
#pragma unroll
        for (int m = 0; m < LONG_PER / 4; m++) {
            const float key[4] = {row->k[m].x, row->k[m].y, row->k[m].z, row->k[m].w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[4 * m + j][h] = f_mul(s[4 * m + j][h], row->scalars[h].x);
                read = fmaf(s[4 * m + j][h], key[j], read);
            }
        }
        delta[h] = f_mul(row->scalars[h].y, __fadd_rn(row->v[h], -warp_sum<STATE_PARTS>(read)));
    }
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        out[h] = 0;
#pragma unroll
        for (int m = 0; m < LONG_PER / 4; m++) {
            const float key[4] = {row->k[m].x, row->k[m].y, row->k[m].z, row->k[m].w};
            const float query[4] = {row->q[m].x, row->q[m].y, row->q[m].z, row->q[m].w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[4 * m + j][h] = fmaf(key[j], delta[h], s[4 * m + j][h]);
                out[h] = fmaf(s[4 * m + j][h], query[j], out[h]);
            }
        }
    }
}

// The tree of state_sum_one(), then the store of a row's outputs, a head by each of the first threads that share the column.
template <int SHARE> DEVICE void long_store(float *y, const float *out, int32_t part, int32_t dv, bool live)
{
    float mine = 0;
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        float x = out[h];
#pragma unroll
        for (int step = 1; step < STATE_PARTS; step *= 2)
            x = __fadd_rn(x, __shfl_xor_sync(WHOLE_WARP, x, step));
        mine = part == h ? x : mine;
    }
    if (live && part < SHARE)
        y[(int64_t)part * dv] = mine;
}

// The rows, a stage after the other; the next row is taken, and the sums of the row before are finished, while one is worked on.
template <int SHARE>
DEVICE void long_scan(struct long_stage<SHARE> *stages, const struct long_source *from, float (*s)[SHARE], int32_t rows,
                      float *y, int64_t ldy, int32_t dv)
{
    const int32_t part = threadIdx.x % STATE_PARTS, column = (int32_t)threadIdx.x / STATE_PARTS;
    struct long_row<SHARE> row, next;
    float out[SHARE] = {};
    long_fetch<SHARE>(&stages[0], from, 0, rows < LONG_ROWS ? rows : LONG_ROWS, dv);
    for (int32_t first = 0, which = 0; first < rows; first += LONG_ROWS, which ^= 1) {
        const int32_t left = rows - first, n = left < LONG_ROWS ? left : LONG_ROWS, after = left - n;
        __pipeline_wait_prior(0);
        __syncthreads(); // the stage is there, and all are done with the other
        if (after > 0)
            long_fetch<SHARE>(&stages[which ^ 1], from, first + n, after < LONG_ROWS ? after : LONG_ROWS, dv);
        const struct long_stage<SHARE> *stage = &stages[which];
        long_take<SHARE>(&next, stage, 0, part, column);
#pragma unroll 2
        for (int32_t t = 0; t < n; t++) {
            row = next;
            long_take<SHARE>(&next, stage, (t + 1) % LONG_ROWS, part, column);
            long_store<SHARE>(y + (int64_t)(first + t - 1) * ldy, out, part, dv, first + t > 0);
            long_step<SHARE>(s, &row, out);
        }
    }
    long_store<SHARE>(y + (int64_t)(rows - 1) * ldy, out, part, dv, true);
}

template <int SHARE>
__global__ void __launch_bounds__(LONG_THREADS, 1) gdn_long_kernel(const __grid_constant__ struct gdn_args a)
{
    SHARED_BYTES(room);
    struct long_stage<SHARE> *stages = reinterpret_cast<struct long_stage<SHARE> *>(room);
    const int32_t slices = a.dv / LONG_COLUMNS, key = (int32_t)blockIdx.x / slices,
                  first = (int32_t)blockIdx.x % slices * LONG_COLUMNS;
    const int32_t l = (int32_t)blockIdx.y, part = threadIdx.x % STATE_PARTS,
                  column = (int32_t)threadIdx.x / STATE_PARTS;
    const struct lane *lane = a.lanes.lane[l];
    pdl_wait();
    pdl_trigger();
    if (!lane || a.pass->lane_rows[l] == 0)
        return;
    const int64_t keys = (int64_t)a.nk * a.dk, values = (int64_t)a.nv * a.dv, top = a.pass->lane_first[l];
    const int32_t rows = a.pass->lane_rows[l], fold = lane->fold;
    float *home = reinterpret_cast<float *>(lane->run + a.state) + (int64_t)key * SHARE * a.dk * a.dv + first + column;
    float s[LONG_PER][SHARE], out[SHARE];
#pragma unroll
    for (int h = 0; h < SHARE; h++)
#pragma unroll
        for (int n = 0; n < LONG_PER; n++)
            s[n][h] = home[((int64_t)h * a.dk + state_element(n, part)) * a.dv];
    if (fold) { // rows of the last window, at most as many as a stage holds
        const float *saved = gdn_saved(&a, lane->run);
        const struct long_source from = {saved + (int64_t)key * a.dk,
                                         NULL,
                                         saved + keys + (int64_t)key * SHARE * a.dv + first,
                                         saved + keys + values + key * SHARE,
                                         saved + keys + values + a.nv + key * SHARE,
                                         gdn_saved_width(&a),
                                         gdn_saved_width(&a)};
        struct long_row<SHARE> row;
        for (int32_t r = 0; r < fold; r++) {
            __syncthreads();
            long_fetch<SHARE>(&stages[0], &from, r, 1, a.dv);
            __pipeline_wait_prior(0);
            __syncthreads();
            long_take<SHARE>(&row, &stages[0], 0, part, column);
            long_step<SHARE>(s, &row, out);
        }
        __syncthreads();
    }
    const float *prepared = a.prepared + top * gdn_prepared_width(&a);
    const struct long_source from = {prepared + keys + (int64_t)key * a.dk,
                                     prepared + (int64_t)key * a.dk,
                                     a.c + top * a.ldc + 2 * keys + (int64_t)key * SHARE * a.dv + first,
                                     prepared + 2 * keys + key * SHARE,
                                     prepared + 2 * keys + a.nv + key * SHARE,
                                     gdn_prepared_width(&a),
                                     a.ldc};
    long_scan<SHARE>(stages, &from, s, rows, a.y + top * a.ldy + (int64_t)key * SHARE * a.dv + first + column, a.ldy,
                     a.dv);
#pragma unroll
    for (int h = 0; h < SHARE; h++)
#pragma unroll
        for (int n = 0; n < LONG_PER; n++)
            home[((int64_t)h * a.dk + state_element(n, part)) * a.dv] = s[n][h];
}

// Whether shapes and places are what the kernel is made for.
static inline bool gdn_long_fits(const struct gdn_args *a)
{
    const bool shapes =
        a->dk == LONG_DK && a->dv % LONG_COLUMNS == 0 && a->nv % a->nk == 0 && a->nv / a->nk <= LONG_SHARE;
    return shapes && a->direct && a->state % 16 == 0 && a->ldc % 4 == 0 && (2 * a->nv) % 4 == 0 &&
           (((uintptr_t)a->c | (uintptr_t)a->prepared) & 15) == 0;
}

template <int SHARE> static cudaError_t gdn_long_launch(cudaStream_t stream, const struct gdn_args *a)
{
    const dim3 grid((unsigned)(a->nk * (a->dv / LONG_COLUMNS)), (unsigned)a->lanes.count);
    return launch(stream, grid, LONG_THREADS, 2 * sizeof(struct long_stage<SHARE>), gdn_long_kernel<SHARE>, *a);
}

// The scan of prepared rows.
static inline cudaError_t gdn_long(cudaStream_t stream, const struct gdn_args *a)
{
    switch (a->nv / a->nk) {
    case 1:
        return gdn_long_launch<1>(stream, a);
    case 2:
        return gdn_long_launch<2>(stream, a);
    case 3:
        return gdn_long_launch<3>(stream, a);
    default:
        return gdn_long_launch<4>(stream, a);
    }
}

#endif
