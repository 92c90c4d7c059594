// SPDX-License-Identifier: Apache-2.0
//
// The Mamba-2 recurrence: a block a (lane, head, slice of S's rows); S stays in registers over all rows of the lane.
//
// Invariant: S changes by one row update at a time, in row order, by one piece of code for prompt rows, windows and folds;
// saved rows are replaced by a second kernel, after all blocks have read the old ones.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/recurrent.cuh"

enum { MAMBA_T = 16, MAMBA_WARPS = 4, MAMBA_ROWS = MAMBA_WARPS * STATE_COLUMNS };

static __host__ __device__ inline int64_t mamba_inner(const struct mamba_args *a)
{
    return (int64_t)a->heads * a->dim;
}

static __host__ __device__ inline int64_t mamba_shared(const struct mamba_args *a)
{
    return (int64_t)a->groups * a->state_dim;
}

static __host__ __device__ inline int64_t mamba_saved_width(const struct mamba_args *a)
{
    return mamba_inner(a) + mamba_shared(a) + a->heads;
}

DEVICE float *mamba_saved(const struct mamba_args *a, const struct lane *lane)
{
    return reinterpret_cast<float *>(lane->run + a->state) + mamba_inner(a) * a->state_dim;
}

DEVICE float mamba_dt(const struct mamba_args *a, float raw, int32_t head)
{
    const float dt = f_softplus(__fadd_rn(raw, a->dt_bias[head]));
    return dt < a->dt_min ? a->dt_min : dt;
}

// MAMBA_T rows: b and c padded, x of the block's rows of S; dt (raw until it is finished) and the decay.
struct mamba_stage {
    float *b, *c, *x, *dt, *decay;
};

static __host__ __device__ inline int32_t mamba_stage_floats(int32_t padded)
{
    return MAMBA_T * (2 * padded + MAMBA_ROWS + 4);
}

DEVICE struct mamba_stage mamba_stage_at(float *shared, int32_t padded, int32_t which)
{
    struct mamba_stage s;
    s.b = shared + which * mamba_stage_floats(padded);
    s.c = s.b + MAMBA_T * padded;
    s.x = s.c + MAMBA_T * padded;
    s.dt = s.x + MAMBA_T * MAMBA_ROWS;
    s.decay = s.dt + MAMBA_T;
    return s;
}

// What a block works on: rows first .. first + width - 1 of S of its head.
struct mamba_block {
    int32_t head, first, width;
    int64_t at, group; // offsets of x and of the head's group of B in a row
    int64_t row, rows;
    float rate;
};

DEVICE struct mamba_block mamba_block_of(const struct mamba_args *a, int32_t l)
{
    const int32_t slices = (int32_t)gridDim.x / a->heads;
    struct mamba_block b;
    b.head = (int32_t)blockIdx.x / slices;
    b.first = (int32_t)blockIdx.x % slices * MAMBA_ROWS;
    b.width = a->dim - b.first < MAMBA_ROWS ? a->dim - b.first : (int32_t)MAMBA_ROWS;
    b.at = (int64_t)b.head * a->dim + b.first;
    b.group = (int64_t)(b.head / (a->heads / a->groups)) * a->state_dim;
    b.row = a->pass->lane_first[l];
    b.rows = a->pass->lane_rows[l];
    b.rate = -expf(a->a_log[b.head]);
    return b;
}

// One row of the thread's rows of S: S <- decay S + step B^T; with READ the sum with c of row state_column(part), in parts 0 .. 3.
template <int PER, bool READ>
DEVICE float mamba_step(float (*s)[STATE_EACH], const float *b, const float *c, const float *step, float decay,
                        int32_t part)
{
    const float4 *bs = reinterpret_cast<const float4 *>(b) + part, *cs = reinterpret_cast<const float4 *>(c) + part;
    float out[STATE_EACH] = {};
#pragma unroll
    for (int m = 0; m < PER / 4; m++) {
        const float4 t = bs[m * STATE_PARTS], u = READ ? cs[m * STATE_PARTS] : make_float4(0, 0, 0, 0);
        const float add[4] = {t.x, t.y, t.z, t.w}, take[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < STATE_EACH; i++) {
                s[4 * m + j][i] = fmaf(step[i], add[j], f_mul(s[4 * m + j][i], decay));
                if (READ)
                    out[i] = fmaf(s[4 * m + j][i], take[j], out[i]);
            }
    }
    return READ ? state_sum_one(out, part) : 0.0f;
}

// Moves the thread's rows of S, of which `live` exist, between memory and registers.
template <int PER, bool STORE>
DEVICE void mamba_move(const struct mamba_args *a, float *state, float (*s)[STATE_EACH], int32_t part, int32_t live)
{
    const bool wide = (a->state_dim % 4 | (int32_t)((uintptr_t)state & 15)) == 0;
#pragma unroll
    for (int i = 0; i < STATE_EACH; i++)
#pragma unroll
        for (int m = 0; m < PER / 4; m++) {
            const int32_t j = state_element(4 * m, part);
            float *row = state + (int64_t)i * a->state_dim + j;
            if (wide) {
                const bool real = i < live && j < a->state_dim;
                if (STORE && real)
                    *reinterpret_cast<float4 *>(row) =
                        make_float4(s[4 * m][i], s[4 * m + 1][i], s[4 * m + 2][i], s[4 * m + 3][i]);
                if (!STORE) {
                    const float4 t = real ? *reinterpret_cast<const float4 *>(row) : make_float4(0, 0, 0, 0);
                    s[4 * m][i] = t.x, s[4 * m + 1][i] = t.y, s[4 * m + 2][i] = t.z, s[4 * m + 3][i] = t.w;
                }
            } else {
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    if (STORE && i < live && j + n < a->state_dim)
                        row[n] = s[4 * m + n][i];
                    if (!STORE)
                        s[4 * m + n][i] = i < live && j + n < a->state_dim ? row[n] : 0.0f;
                }
            }
        }
}

// dt x of the thread's rows.
DEVICE void mamba_steps(float *step, const float *x, float dt, int32_t live)
{
#pragma unroll
    for (int i = 0; i < STATE_EACH; i++)
        step[i] = i < live ? f_mul(dt, x[i]) : 0.0f;
}

// Rows of the pass, or saved ones; returns before they are there.
DEVICE void mamba_bring(const struct mamba_args *a, const struct mamba_block *b, const struct mamba_stage *s, int64_t r,
                        int32_t n, int32_t padded)
{
    const float *c = a->c + r * a->ldc;
    stage_rows<true>(s->b, padded, c + mamba_inner(a) + b->group, a->ldc, n, a->state_dim, padded);
    stage_rows<true>(s->c, padded, c + mamba_inner(a) + mamba_shared(a) + b->group, a->ldc, n, a->state_dim, padded);
    stage_rows<true>(s->x, MAMBA_ROWS, c + b->at, a->ldc, n, b->width, 0);
    stage_rows<true>(s->dt, 1, a->dt + r * a->ldt + b->head, a->ldt, n, 1, 1);
}

DEVICE void mamba_bring_saved(const struct mamba_args *a, const struct mamba_block *b, const struct mamba_stage *s,
                              const float *saved, int32_t n, int32_t padded)
{
    const int64_t ld = mamba_saved_width(a);
    stage_rows<true>(s->b, padded, saved + mamba_inner(a) + b->group, ld, n, a->state_dim, padded);
    stage_rows<true>(s->x, MAMBA_ROWS, saved + b->at, ld, n, b->width, 0);
    stage_rows<true>(s->dt, 1, saved + mamba_inner(a) + mamba_shared(a) + b->head, ld, n, 1, 1);
}

// Rows of a stage from row `at` of the lane's on.
DEVICE int32_t mamba_some(const struct mamba_args *a, const struct mamba_block *b, const struct lane *lane, int64_t at)
{
    if (a->direct)
        return rows_to_keep(lane, (int32_t)at, (int32_t)b->rows, MAMBA_T);
    return (int32_t)(b->rows - at < MAMBA_T ? b->rows - at : MAMBA_T);
}

template <int PER>
__global__ void __launch_bounds__(MAMBA_WARPS *WARP) mamba_kernel(const __grid_constant__ struct mamba_args a)
{
    extern __shared__ __align__(16) float shared[];
    constexpr int PADDED = STATE_PARTS * PER;
    const int32_t l = (int32_t)blockIdx.y, part = threadIdx.x % STATE_PARTS;
    const int32_t i = (int32_t)threadIdx.x / STATE_PARTS * STATE_EACH, mine = i + state_column(part);
    pdl_wait();
    pdl_trigger();
    const struct lane *lane = a.lanes.lane[l];
    if (!lane || a.pass->lane_rows[l] == 0)
        return;
    const struct mamba_block b = mamba_block_of(&a, l);
    const int32_t live = b.width - i;
    const int32_t fold = lane->fold;
    const int64_t place = (b.at + i) * a.state_dim;
    float *home = reinterpret_cast<float *>(lane->run + a.state) + place;
    float state[PER][STATE_EACH], step[STATE_EACH];
    mamba_move<PER, false>(&a, home, state, part, live);
    if (fold > 0) {
        const struct mamba_stage s = mamba_stage_at(shared, PADDED, 0);
        mamba_bring_saved(&a, &b, &s, mamba_saved(&a, lane), fold, PADDED);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
        for (int32_t t = 0; t < fold; t++) {
            mamba_steps(step, s.x + t * MAMBA_ROWS + i, s.dt[t], live);
            mamba_step<PER, false>(state, s.b + t * PADDED, s.b, step, expf(f_mul(b.rate, s.dt[t])), part);
        }
        __syncthreads();
        if (!a.direct)
            mamba_move<PER, true>(&a, home, state, part, live);
    }
    struct mamba_stage here = mamba_stage_at(shared, PADDED, 0);
    mamba_bring(&a, &b, &here, b.row, mamba_some(&a, &b, lane, 0), PADDED);
    __pipeline_commit();
    for (int64_t at = 0, which = 0, next; at < b.rows; at = next, which ^= 1) {
        const int32_t n = mamba_some(&a, &b, lane, at);
        next = at + n;
        here = mamba_stage_at(shared, PADDED, (int32_t)which);
        const struct mamba_stage there = mamba_stage_at(shared, PADDED, (int32_t)which ^ 1);
        if (next < b.rows)
            mamba_bring(&a, &b, &there, b.row + next, mamba_some(&a, &b, lane, next), PADDED);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        if ((int32_t)threadIdx.x < n) {
            const float dt = mamba_dt(&a, here.dt[threadIdx.x], b.head);
            here.dt[threadIdx.x] = dt;
            here.decay[threadIdx.x] = expf(f_mul(b.rate, dt));
        }
        __syncthreads();
        float *y = a.y + (b.row + at) * a.ldy + b.at + mine;
        for (int32_t t = 0; t < n; t++) {
            mamba_steps(step, here.x + t * MAMBA_ROWS + i, here.dt[t], live);
            const float sum =
                mamba_step<PER, true>(state, here.b + t * PADDED, here.c + t * PADDED, step, here.decay[t], part);
            if (part < STATE_EACH && mine < b.width)
                y[(int64_t)t * a.ldy] = fmaf(a.d[b.head], here.x[t * MAMBA_ROWS + mine], sum);
        }
#pragma unroll 1
        for (int32_t k = 0; a.direct && k < LANE_KEEPS; k++)
            if (lane_keeps(lane, k, (int32_t)b.rows) == next)
                mamba_move<PER, true>(&a, reinterpret_cast<float *>(lane->keep_run[k] + a.state) + place, state, part,
                                      live);
        __syncthreads();
    }
    if (a.direct)
        mamba_move<PER, true>(&a, home, state, part, live);
}

// A thread a number of a saved row.
__global__ void __launch_bounds__(256) mamba_save_kernel(const __grid_constant__ struct mamba_args a)
{
    const int64_t r = blockIdx.y, i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    const int64_t width = mamba_inner(&a) + mamba_shared(&a);
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows || i >= mamba_saved_width(&a))
        return;
    const int32_t l = a.pass->lane[r];
    float *saved = mamba_saved(&a, a.lanes.lane[l]) + (r - a.pass->lane_first[l]) * mamba_saved_width(&a);
    const int32_t head = (int32_t)(i - width);
    saved[i] = i < width ? a.c[r * a.ldc + i] : mamba_dt(&a, a.dt[r * a.ldt + head], head);
}

template <int PER> static cudaError_t mamba_launch(cudaStream_t stream, const struct mamba_args *a)
{
    const dim3 grid((unsigned)a->heads * blocks_for(a->dim, MAMBA_ROWS), (unsigned)a->lanes.count);
    const size_t bytes = 2 * sizeof(float) * (size_t)mamba_stage_floats(STATE_PARTS * PER);
    return launch(stream, grid, MAMBA_WARPS * WARP, bytes, mamba_kernel<PER>, *a);
}

extern "C" cudaError_t cuda_mamba(cudaStream_t stream, const struct mamba_args *a, int rows)
{
    cudaError_t error = cudaErrorInvalidValue;
    if (a->state_dim <= 32)
        error = mamba_launch<4>(stream, a);
    else if (a->state_dim <= 64)
        error = mamba_launch<8>(stream, a);
    else if (a->state_dim <= 128)
        error = mamba_launch<16>(stream, a);
    else if (a->state_dim <= 256)
        error = mamba_launch<32>(stream, a);
    if (error == cudaSuccess && !a->direct)
        error =
            launch(stream, dim3(blocks_for(mamba_saved_width(a), 256), (unsigned)rows), 256, 0, mamba_save_kernel, *a);
    return error;
}
