// SPDX-License-Identifier: Apache-2.0
//
// Gated DeltaNet over many rows: a block a (lane, key head, 16 columns of S), a thread an eighth of one column of each of the key head's
// HEADS value heads, so that a number of a key serves them all and few shuffles do. A scheduler has one warp, whose instructions
// must hide each other's latency: a head's update of a row, its output and its product with the next row's key are one stretch of
// independent chains, and while the threads add that product for one head, another's stretch runs. More warps of fewer heads would
// wait for shared memory, a load of which takes four cycles whatever a warp's threads share.
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
    LONG_ROWS = 16,  // staged at a time
    LONG_STAGES = 3, // one that is worked on, the next, and one on its way
    LONG_GROUP = 4,  // rows whose outputs are added together
    LONG_HEADS = 4,  // value heads of a key head at most
    LONG_AHEAD = 1,  // heads a thread up to which it asks a row early
};

// Rows in shared memory.
template <int HEADS> struct long_stage {
    float k[LONG_ROWS][LONG_DK], q[LONG_ROWS][LONG_DK];
    float v[LONG_ROWS][HEADS][LONG_COLUMNS];
    float2 scalars[LONG_ROWS][HEADS]; // decay, beta
};

// A thread's numbers of a key or a query.
struct long_numbers {
    float4 at[LONG_PER / 4];
};

// What the next row needs of the heads: v, decay and beta, then, once the threads have added, delta.
template <int HEADS> struct long_row {
    struct long_numbers k;
    float v[HEADS], delta[HEADS];
    float2 scalars[HEADS];
};

// A thread's place: its column of the block, its part of that.
struct gdn_place {
    int32_t column, part;
};

DEVICE struct gdn_place gdn_place_of(void)
{
    return {(int32_t)threadIdx.x / STATE_PARTS, (int32_t)threadIdx.x % STATE_PARTS};
}

// Where a kind of rows lies: k, q (or NULL), v of the first head, decay, beta of the first head; distances between rows.
struct long_source {
    const float *k, *q, *v, *decay, *beta;
    int64_t ld, ldv;
};

// Asks for LONG_ROWS rows from `first` on; commits. Behind row `last` that one is brought again, which nobody looks at: so all is in
// one straight line. QUERIES: whether there are any.
template <int HEADS, bool QUERIES>
DEVICE void long_fetch(struct long_stage<HEADS> *s, const struct long_source *from, int32_t first, int32_t last,
                       int32_t dv)
{
    enum { PIECES = LONG_DK / 4, VALUES = HEADS * LONG_COLUMNS / 4 };
    static_assert(LONG_THREADS % PIECES == 0 && LONG_ROWS * PIECES % LONG_THREADS == 0 &&
                      LONG_ROWS * HEADS <= LONG_THREADS,
                  "a thread has the same piece of each of its rows, and at most one row's scalars");
    const int32_t t = (int32_t)threadIdx.x, at = t % PIECES * 4;
#pragma unroll
    for (int n = 0; n < LONG_ROWS * PIECES / LONG_THREADS; n++) {
        const int32_t r = t / PIECES + n * (LONG_THREADS / PIECES), row = first + r < last ? first + r : last;
        __pipeline_memcpy_async(&s->k[r][at], from->k + row * from->ld + at, 16);
        if (QUERIES)
            __pipeline_memcpy_async(&s->q[r][at], from->q + row * from->ld + at, 16);
    }
#pragma unroll
    for (int n = 0; n < (LONG_ROWS * VALUES + LONG_THREADS - 1) / LONG_THREADS; n++) {
        const int32_t i = t + n * LONG_THREADS, r = i / VALUES, h = i % VALUES / (LONG_COLUMNS / 4),
                      c = i % (LONG_COLUMNS / 4) * 4, row = first + r < last ? first + r : last;
        if (r < LONG_ROWS)
            __pipeline_memcpy_async(&s->v[r][h][c], from->v + row * from->ldv + (int64_t)h * dv + c, 16);
    }
    const int32_t r = t / HEADS, h = t % HEADS, row = first + r < last ? first + r : last;
    if (r < LONG_ROWS) {
        __pipeline_memcpy_async(&s->scalars[r][h].x, from->decay + row * from->ld + h, 4);
        __pipeline_memcpy_async(&s->scalars[r][h].y, from->beta + row * from->ld + h, 4);
    }
    __pipeline_commit();
}

DEVICE struct long_numbers long_numbers_of(const float *row, int32_t part)
{
    const float4 *from = reinterpret_cast<const float4 *>(row) + part;
    struct long_numbers x;
#pragma unroll
    for (int m = 0; m < LONG_PER / 4; m++)
        x.at[m] = from[m * STATE_PARTS];
    return x;
}

template <int HEADS>
DEVICE void long_take(struct long_row<HEADS> *row, const struct long_stage<HEADS> *s, int32_t r,
                      const struct gdn_place &at)
{
    row->k = long_numbers_of(s->k[r], at.part);
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        row->v[h] = s->v[r][h][at.column];
        row->scalars[h] = s->scalars[r][h];
    }
}

// delta of a head, from what the thread has of its product with the key.
template <int HEADS> DEVICE void long_delta(struct long_row<HEADS> *row, int h, float read)
{
    row->delta[h] = f_mul(row->scalars[h].y, __fadd_rn(row->v[h], -warp_sum<STATE_PARTS>(read)));
}

// The decay of a row and the product with its key.
template <int HEADS> DEVICE void long_read(float (*s)[LONG_PER], struct long_row<HEADS> *row)
{
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float read = 0;
#pragma unroll
        for (int m = 0; m < LONG_PER / 4; m++) {
            const float key[4] = {row->k.at[m].x, row->k.at[m].y, row->k.at[m].z, row->k.at[m].w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[h][4 * m + j] = f_mul(s[h][4 * m + j], row->scalars[h].x);
                read = fmaf(s[h][4 * m + j], key[j], read);
            }
        }
        long_delta<HEADS>(row, h, read);
    }
}

// The rest of a row: its update, what the thread has of its outputs, and, unless next is NULL, what long_read() does of the next one.
template <int HEADS>
DEVICE void long_write(float (*s)[LONG_PER], const struct long_row<HEADS> *row, const struct long_numbers *q,
                       struct long_row<HEADS> *next, float *out)
{
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float read = 0;
        out[h] = 0;
#pragma unroll
        for (int m = 0; m < LONG_PER / 4; m++) {
            const float key[4] = {row->k.at[m].x, row->k.at[m].y, row->k.at[m].z, row->k.at[m].w};
            const float query[4] = {q->at[m].x, q->at[m].y, q->at[m].z, q->at[m].w};
            const float4 after = next ? next->k.at[m] : make_float4(0, 0, 0, 0);
            const float then[4] = {after.x, after.y, after.z, after.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float *x = &s[h][4 * m + j];
                *x = fmaf(key[j], row->delta[h], *x);
                out[h] = fmaf(*x, query[j], out[h]);
                if (next) {
                    *x = f_mul(*x, next->scalars[h].x);
                    read = fmaf(*x, then[j], read);
                }
            }
        }
        if (next)
            long_delta<HEADS>(next, h, read);
    }
}

// The outputs of LONG_GROUP rows, by the tree of state_sum_one(): threads with part p get that of row p % LONG_GROUP, so that an exchange
// halves what is left.
template <int HEADS> DEVICE float long_outputs(const float (*out)[HEADS], int h, int32_t part)
{
    static_assert(LONG_GROUP == 4 && STATE_PARTS == 8, "the exchanges below");
    const bool odd = part & 1, second = part & 2;
    const float low =
        __fadd_rn(odd ? out[1][h] : out[0][h], __shfl_xor_sync(WHOLE_WARP, odd ? out[0][h] : out[1][h], 1));
    const float high =
        __fadd_rn(odd ? out[3][h] : out[2][h], __shfl_xor_sync(WHOLE_WARP, odd ? out[2][h] : out[3][h], 1));
    const float x = __fadd_rn(second ? high : low, __shfl_xor_sync(WHOLE_WARP, second ? low : high, 2));
    return __fadd_rn(x, __shfl_xor_sync(WHOLE_WARP, x, 4));
}

// Stores n of LONG_GROUP rows' outputs. y: the column of the first row.
template <int HEADS>
DEVICE void long_store(float *y, int64_t ldy, int32_t dv, const float (*out)[HEADS], int32_t part, int32_t n)
{
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        const float x = long_outputs<HEADS>(out, h, part);
        if (part < n)
            y[part * ldy + (int64_t)h * dv] = x;
    }
}

// The rows, in groups; of the last group, which has no row behind it, one after the other. A thread of few heads has the registers to ask
// for a row's numbers a row early (AHEAD); what it takes of rows beyond the last, which may not be there, is never used.
template <int HEADS>
DEVICE void long_scan(struct long_stage<HEADS> *stages, const struct long_source *from, float (*s)[LONG_PER],
                      int32_t rows, const struct gdn_place &at, float *y, int64_t ldy, int32_t dv)
{
    constexpr bool AHEAD = HEADS <= LONG_AHEAD;
    struct long_row<HEADS> row, next, behind;
    struct long_numbers q, asked;
    float out[LONG_GROUP][HEADS];
    const struct long_stage<HEADS> *stage = stages;
    auto fetch = [&](int32_t first) {
        if (first < rows)
            long_fetch<HEADS, true>(&stages[first / LONG_ROWS % LONG_STAGES], from, first, rows - 1, dv);
    };
    fetch(0);
    __pipeline_wait_prior(0);
    __syncthreads();
    fetch(LONG_ROWS);
    long_take<HEADS>(&row, stage, 0, at);
    if (AHEAD) {
        q = long_numbers_of(stage->q[0], at.part);
        long_take<HEADS>(&next, stage, 1, at);
    }
    long_read<HEADS>(s, &row);
    int32_t first = 0;
    for (; first + LONG_GROUP < rows; first += LONG_GROUP) {
        const int32_t in = first % LONG_ROWS, then = (first + LONG_GROUP) % LONG_ROWS;
        const struct long_stage<HEADS> *after = stage;
        if (then == 0) { // the next stage is there, and all are done with the one before this
            __pipeline_wait_prior(0);
            __syncthreads();
            fetch(first + LONG_GROUP + LONG_ROWS);
            after = &stages[(first + LONG_GROUP) / LONG_ROWS % LONG_STAGES];
        }
        auto stage_of = [&](int t) { return t < LONG_GROUP ? stage : after; };
        auto place_of = [&](int t) { return t < LONG_GROUP ? in + t : then + t - LONG_GROUP; };
#pragma unroll
        for (int t = 0; t < LONG_GROUP; t++) {
            const int one = t + AHEAD, two = one + 1; // rows whose query and whose key are asked for
            asked = long_numbers_of(stage_of(one)->q[place_of(one)], at.part);
            long_take<HEADS>(&behind, stage_of(two), place_of(two), at);
            if (!AHEAD) {
                q = asked;
                next = behind;
            }
            long_write<HEADS>(s, &row, &q, &next, out[t]);
            row = next;
            if (AHEAD) {
                q = asked;
                next = behind;
            }
        }
        long_store<HEADS>(y + (int64_t)first * ldy, ldy, dv, out, at.part, LONG_GROUP);
        stage = after;
    }
    const int32_t left = rows - first;
#pragma unroll
    for (int t = 0; t < LONG_GROUP; t++) {
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            out[t][h] = 0;
        if (t < left) {
            q = long_numbers_of(stage->q[first % LONG_ROWS + t], at.part);
            long_write<HEADS>(s, &row, &q, NULL, out[t]);
        }
        if (t + 1 < left) {
            long_take<HEADS>(&row, stage, first % LONG_ROWS + t + 1, at);
            long_read<HEADS>(s, &row);
        }
    }
    long_store<HEADS>(y + (int64_t)first * ldy, ldy, dv, out, at.part, left);
}

// Stores a thread's numbers of S. home: its column of the first head.
template <int HEADS>
DEVICE void long_give(const struct gdn_args *a, float *home, const float (*s)[LONG_PER], int32_t part)
{
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int n = 0; n < LONG_PER; n++)
            home[((int64_t)h * a->dk + state_element(n, part)) * a->dv] = s[h][n];
}

template <int HEADS>
__global__ void __launch_bounds__(LONG_THREADS, 1) gdn_long_kernel(const __grid_constant__ struct gdn_args a)
{
    SHARED_BYTES(room);
    struct long_stage<HEADS> *stages = reinterpret_cast<struct long_stage<HEADS> *>(room);
    const int32_t slices = a.dv / LONG_COLUMNS, key = (int32_t)blockIdx.x / slices,
                  first = (int32_t)blockIdx.x % slices * LONG_COLUMNS;
    const int32_t l = (int32_t)blockIdx.y;
    const struct gdn_place at = gdn_place_of();
    const struct lane *lane = a.lanes.lane[l];
    pdl_wait();
    pdl_trigger();
    if (!lane || a.pass->lane_rows[l] == 0)
        return;
    const int64_t keys = (int64_t)a.nk * a.dk, values = (int64_t)a.nv * a.dv, top = a.pass->lane_first[l];
    const int32_t rows = a.pass->lane_rows[l], fold = lane->fold;
    const int64_t head = key * HEADS;
    const int64_t place = head * a.dk * a.dv + first + at.column;
    float *home = reinterpret_cast<float *>(lane->run + a.state) + place;
    float s[HEADS][LONG_PER], out[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int n = 0; n < LONG_PER; n++)
            s[h][n] = home[((int64_t)h * a.dk + state_element(n, at.part)) * a.dv];
    if (fold) { // rows of the last window, at most as many as a stage holds
        const float *saved = gdn_saved(&a, lane->run);
        const struct long_source from = {saved + (int64_t)key * a.dk,
                                         NULL,
                                         saved + keys + (int64_t)key * HEADS * a.dv + first,
                                         saved + keys + values + key * HEADS,
                                         saved + keys + values + a.nv + key * HEADS,
                                         gdn_saved_width(&a),
                                         gdn_saved_width(&a)};
        struct long_row<HEADS> row;
        for (int32_t r = 0; r < fold; r++) {
            __syncthreads();
            long_fetch<HEADS, false>(&stages[0], &from, r, r, a.dv);
            __pipeline_wait_prior(0);
            __syncthreads();
            long_take<HEADS>(&row, &stages[0], 0, at);
            long_read<HEADS>(s, &row);
            long_write<HEADS>(s, &row, &row.k, NULL, out);
        }
        __syncthreads();
    }
    // One scan, or one up to each state that is kept on the way.
#pragma unroll 1
    for (int32_t done = 0, n; done < rows; done += n) {
        n = rows_to_keep(lane, done, rows, rows);
        const int64_t r = top + done;
        const float *prepared = a.prepared + r * gdn_prepared_width(&a);
        const struct long_source from = {prepared + keys + (int64_t)key * a.dk,
                                         prepared + (int64_t)key * a.dk,
                                         a.c + r * a.ldc + 2 * keys + (int64_t)key * HEADS * a.dv + first,
                                         prepared + 2 * keys + key * HEADS,
                                         prepared + 2 * keys + a.nv + key * HEADS,
                                         gdn_prepared_width(&a),
                                         a.ldc};
        if (done > 0)
            __syncthreads(); // nobody reads the stages any more
        long_scan<HEADS>(stages, &from, s, n, at, a.y + r * a.ldy + head * a.dv + first + at.column, a.ldy, a.dv);
#pragma unroll 1
        for (int32_t i = 0; i < LANE_KEEPS; i++)
            if (lane_keeps(lane, i, rows) == done + n)
                long_give<HEADS>(&a, reinterpret_cast<float *>(lane->keep_run[i] + a.state) + place, s, at.part);
    }
    long_give<HEADS>(&a, home, s, at.part);
}

// Whether shapes and places are what the kernel is made for.
static inline bool gdn_long_fits(const struct gdn_args *a)
{
    const bool shapes =
        a->dk == LONG_DK && a->dv % LONG_COLUMNS == 0 && a->nv % a->nk == 0 && a->nv / a->nk <= LONG_HEADS;
    return shapes && a->direct && a->state % 16 == 0 && a->ldc % 4 == 0 && (2 * a->nv) % 4 == 0 &&
           (((uintptr_t)a->c | (uintptr_t)a->prepared) & 15) == 0;
}

// Where every block finds a multiprocessor of its own it asks for more than half of the shared memory: else two may lie on one while
// others have none, since blocks of the preparation are still on their way out.
template <int HEADS> static cudaError_t gdn_long_launch(cudaStream_t stream, const struct gdn_args *a)
{
    const dim3 grid((unsigned)(a->nk * (a->dv / LONG_COLUMNS)), (unsigned)a->lanes.count);
    const size_t needed = LONG_STAGES * sizeof(struct long_stage<HEADS>), alone = (size_t)block_room() / 2 + 1;
    const bool apart = needed < alone && grid.x * grid.y <= (unsigned)multiprocessors();
    return launch(stream, grid, LONG_THREADS, apart ? alone : needed, gdn_long_kernel<HEADS>, *a);
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
