// SPDX-License-Identifier: Apache-2.0
//
// conv, gdn and gated_norm in one launch: a block a (value head, lane), whose state comes to shared memory by the copy engine, stays in
// registers over all rows of the lane, and goes back the same way. Blocks that share a key head are a cluster; each prepares the
// key head's rows for itself. A pass of a row a lane that updates its states has a kernel of its own, whose blocks are smaller.
//
// Invariant: the operations of conv, gdn and gated_norm in their order, by the same functions, so the same bits. What several
// blocks read of history and saved rows, one of them writes when all have read it.

#include "kernels/cuda/gdn_row.cuh"

enum {
    STEP_CLUSTER = 8,  // blocks at most
    STEP_TOGETHER = 2, // blocks of a multiprocessor
    ROW_TOGETHER = 3,  // of gdn_row_kernel
    STEP_ROWS = 8,     // staged at a time, where there is room
};

// ---- kernels -------------------------------------------------------------------------------------------------------------------

// dk = STATE_PARTS PER. WHOLE: dv and the rows staged are the largest. The grid: value heads of a key head, key heads, lanes.
template <int PER, bool WHOLE>
__global__ void __launch_bounds__(STEP_THREADS, WHOLE ? (int)STEP_TOGETHER : 1)
    gdn_step_kernel(const __grid_constant__ struct step_args a)
{
    SHARED_BYTES(shared);
    const struct step_shape s = {STATE_PARTS * PER, WHOLE ? (int32_t)STEP_VALUES : a.dv,
                                 WHOLE ? (int32_t)STEP_ROWS : a.staged};
    const struct step_place p = {(int32_t)blockIdx.y, (int32_t)(blockIdx.y * gridDim.x + blockIdx.x),
                                 (int32_t)blockIdx.z};
    const struct step_room room = step_room_at(s, reinterpret_cast<float *>(shared));
    if (threadIdx.x == 0)
        bulk_open(room.box, step_state_bytes(s));
    const struct step_lane lane = step_lane_of(a, p.l);
    if (lane.rows == 0) {
        pdl_wait();
        return;
    }
    float *home = step_home(a, s, p, lane.run);
    __syncthreads();
    step_ask_state(s, room, home);
    const float scalar = step_scalar(a, s, p, lane, 0);
    step_ask(a, s, p, lane, room);
    step_put_scalar(s, room, scalar);
    pdl_wait();
    pdl_trigger();
    const int32_t part = threadIdx.x % STATE_PARTS, column = (int32_t)threadIdx.x / STATE_PARTS * STATE_EACH;
    const struct gdn_stage saved = gdn_stage_of(room.saved, column), rows = gdn_stage_of(room.rows, column);
    const int32_t warps = (int32_t)blockDim.x / WARP;
    const bool leads = blockIdx.x == 0;
    float state[PER][STATE_EACH];
#pragma unroll 1
    for (int32_t at = 0; at < lane.rows; at += s.staged) {
        const int32_t n = lane.rows - at < s.staged ? lane.rows - at : s.staged;
        const bool folds = at == 0 && lane.fold > 0 && !a.direct, ends = a.direct && at + n == lane.rows;
        step_bring(a, s, p, lane, room, at, n);
        if (at == 0) {
            bulk_wait(room.box);
            step_load<PER>(state, room.state + column, s, part);
#pragma unroll 1
            for (int32_t done = 0; done < lane.fold; done += s.staged) {
                if (done > 0)
                    step_bring_pending(a, s, p, lane, room, done);
                gdn_fold<PER>(&saved, lane.fold - done < s.staged ? lane.fold - done : s.staged, state, part);
            }
            cluster_arrive_read();
        }
        if (folds)
            step_store<PER>(room.state + column, state, s, part);
        __syncthreads(); // keys are there, and nobody reads saved values any more
        if (folds)
            step_give_state(s, room, home, warps);
        gdn_run<PER>(&rows, n, state, part, STATE_EACH, saved.v, saved.stride);
        if (ends)
            step_store<PER>(room.state + column, state, s, part);
        __syncthreads();
        if (ends)
            step_give_state(s, room, home, (warps + 1) / 2); // the first are at the norm
        step_norm(a, s, p, lane, room, at, n);
        if (at == 0)
            cluster_wait();
        step_remember(a, s, p, lane, room, leads, at, n);
        if (!a.direct)
            step_keep(a, s, p, lane, room, leads, at, n);
    }
    bulk_given();
}

// How many blocks of a (key head, lane) have read what the last of them writes. Zero between launches.
enum { ROW_COUNTERS = 2048 };
static __device__ unsigned int row_readers[ROW_COUNTERS];

// The same for passes of a row a lane that update their states (longer ones take longer). No clusters, of which a card has not as many as
// it has places for blocks: the last block of a key head that has read its history writes it.
template <int PER, bool WHOLE>
__global__ void __launch_bounds__(STEP_THREADS, WHOLE ? (int)ROW_TOGETHER : (int)STEP_TOGETHER)
    gdn_row_kernel(const __grid_constant__ struct step_args a)
{
    SHARED_BYTES(shared);
    const struct step_shape s = {STATE_PARTS * PER, WHOLE ? (int32_t)STEP_VALUES : a.dv, 1};
    const struct step_place p = {(int32_t)blockIdx.y, (int32_t)(blockIdx.y * gridDim.x + blockIdx.x),
                                 (int32_t)blockIdx.z};
    const struct row_room room = row_room_at(s, reinterpret_cast<float *>(shared));
    const struct step_lane lane = step_lane_of(a, p.l);
    if (lane.rows == 0) {
        pdl_wait();
        return;
    }
    float *home = step_home(a, s, p, lane.run);
    unsigned int *reader = &row_readers[p.l * a.nk + p.key], read = 0;
    row_ask_state(s, room, home);
#pragma unroll 1
    for (int32_t at = 0; at < lane.rows; at++) {
        const bool last = at + 1 == lane.rows;
        row_prepare(a, s, p, lane, room, at);
        __syncthreads();
        if (last && threadIdx.x == 0 && gridDim.x > 1)
            read = atomicAdd(reader, 1u); // waited for at the end
        if (at == 0) {
            row_await_state(s, room);
            row_fold<PER>(a, s, p, lane, room);
        }
        row_update<PER, true>(s, room, room.row);
        bulk_written();
        __syncthreads();
        if (last)
            row_give_state(s, room, home);
        if (row_role() == ROW_NORM)
            step_norm_row(a, s, p, lane.row + at, room.outputs, room.gates, room.gain);
    }
    if (threadIdx.x == 0)
        *room.said = row_last(reader, read, gridDim.x);
    __syncthreads();
    if (*room.said)
        row_remember(a, s, p, lane, room);
    bulk_given();
}

// ---- launch --------------------------------------------------------------------------------------------------------------------

// Rows at a time that leave room for STEP_TOGETHER blocks on a multiprocessor, or for one where that would be few; less than 1: none.
static int32_t step_staged(const struct gdn_args *a)
{
    enum { FEW = 4, SYSTEM = 1024 }; // bytes of each block that are not its own
    const size_t all = block_room();
    const int64_t none = step_room_floats({a->dk, a->dv, 0}), one = step_room_floats({a->dk, a->dv, 1}) - none;
    for (size_t blocks = STEP_TOGETHER; blocks > 0; blocks--) {
        const int64_t floats = (int64_t)((all + SYSTEM) / blocks - SYSTEM) / (int64_t)sizeof(float);
        const int64_t rows = (floats - none) / one;
        if (rows >= FEW || blocks == 1)
            return (int32_t)(rows < (int64_t)STEP_ROWS ? rows : (int64_t)STEP_ROWS);
    }
    return 0;
}

// Whether gdn_step_kernel can do the three ops in passes of `rows`: by shapes and the device alone. A pass that updates its states has a row
// a lane at most, else it is a prompt's, which keeps states on its way, and the kernels here know nothing of those.
static bool step_fits(const struct conv_args *conv, const struct gdn_args *gdn, const struct gated_norm_args *norm,
                      int rows)
{
    if (conv->taps != STEP_TAPS || conv->dilation != 1 || conv->direct != gdn->direct || conv->y != gdn->c ||
        conv->ldy != gdn->ldc || conv->bias || !vec_fits(conv->w, 0, STEP_TAPS) ||
        !vec_fits(conv->u, conv->ldu, STEP_TAPS))
        return false;
    if (gdn->nk < 1 || gdn->nv % gdn->nk || gdn->nv / gdn->nk > STEP_CLUSTER || !clusters_available() || gdn->nv % 2 ||
        (gdn->dk != 32 && gdn->dk != 64 && gdn->dk != 128) || gdn->dv < STATE_COLUMNS || gdn->dv % STATE_COLUMNS ||
        gdn->dv > STEP_VALUES || (gdn->state | conv->state) % 16 ||
        conv->channels != 2 * gdn->nk * gdn->dk + gdn->nv * gdn->dv || step_staged(gdn) < 1)
        return false;
    return norm->x == gdn->y && norm->ldx == gdn->ldy && norm->heads == gdn->nv && norm->dim == gdn->dv &&
           !norm->norm_after && vec_fits(norm->x, norm->ldx, norm->dim) && vec_fits(norm->y, norm->ldy, norm->dim) &&
           vec_fits(norm->z, norm->ldz, norm->dim) && vec_fits(norm->w, 0, norm->dim) &&
           rows <= conv->lanes.count * (gdn->direct ? 1 : (int)MAX_WINDOW);
}

static struct step_args step_args_of(const struct conv_args *conv, const struct gdn_args *gdn,
                                     const struct gated_norm_args *norm)
{
    struct step_args a = {};
    a.pass = gdn->pass;
    for (int i = 0; i < gdn->lanes.count; i++)
        a.lane[i] = gdn->lanes.lane[i];
    a.nk = gdn->nk;
    a.nv = gdn->nv;
    a.dv = gdn->dv;
    a.staged = step_staged(gdn);
    a.direct = gdn->direct;
    a.ldu = conv->ldu;
    a.lda = gdn->lda;
    a.ldb = gdn->ldb;
    a.ldz = norm->ldz;
    a.ldy = norm->ldy;
    a.activation = conv->activation;
    a.gate = norm->activation;
    a.eps = norm->eps;
    a.history = conv->state;
    a.state = gdn->state;
    a.u = conv->u;
    a.w = conv->w;
    a.a = gdn->a;
    a.b = gdn->b;
    a.a_log = gdn->a_log;
    a.dt_bias = gdn->dt_bias;
    a.z = norm->z;
    a.gain = norm->w;
    a.y = norm->y;
    return a;
}

// Bytes of shared memory: where all blocks find a multiprocessor of their own, so much that none shares its own with another.
static size_t step_bytes(const void *kernel, unsigned threads, size_t needed, unsigned share, int clusters)
{
#if !defined(CUDA_FIBERS)
    const size_t alone = block_room() / STEP_TOGETHER + 1;
    if (needed < alone && clusters <= clusters_at_once(kernel, (int)threads, alone, (int)share))
        return alone;
#endif
    return needed;
}

static size_t row_needed(int dk, int dv)
{
    return sizeof(float) * (size_t)row_room_floats({dk, dv, 1});
}

// Whether gdn_row_kernel can do a pass of `rows`: at most one a lane, and states are updated.
static bool row_fits(const struct step_args &a, int dk, int lanes, int rows)
{
    return a.direct && rows <= lanes && lanes * a.nk <= ROW_COUNTERS && a.activation == ACT_SILU &&
           (a.gate == ACT_SILU || a.gate == ACT_SIGMOID) && row_needed(dk, a.dv) <= block_room();
}

static void (*row_kernel(int dk, bool whole))(struct step_args)
{
    return dk == 32   ? gdn_row_kernel<4, false>
           : dk == 64 ? gdn_row_kernel<8, false>
           : whole    ? gdn_row_kernel<16, true>
                      : gdn_row_kernel<16, false>;
}

// Blocks that a multiprocessor has where `clusters` of `share` blocks of gdn_step_kernel run at once, as far as ROW_TOGETHER.
static int row_beside(const void *kernel, unsigned share, int clusters)
{
#if defined(CUDA_FIBERS)
    const int alone = multiprocessors();
    (void)kernel, (void)share;
#else
    const int alone = clusters_at_once(kernel, STEP_THREADS, block_room() / 2 + 1, (int)share);
#endif
    int beside = 1;
    while (beside < ROW_TOGETHER && clusters > beside * alone)
        beside++;
    return beside;
}

// Launches gdn_row_kernel where every block has a multiprocessor, which it then asks for, or where two blocks on each do not do. Between
// the two gdn_step_kernel is as fast, and its clusters find their places: cudaErrorNotSupported.
static cudaError_t row_launch(cudaStream_t stream, const dim3 &grid, int dk, const struct step_args &a)
{
    void (*const kernel)(struct step_args) = row_kernel(dk, a.dv == STEP_VALUES && dk == STATE_PARTS * 16);
    const int beside = row_beside((const void *)kernel, grid.x, (int)(grid.y * grid.z));
    const size_t alone = block_room() / 2 + 1, needed = row_needed(dk, a.dv);
    if (beside > 1 && beside < ROW_TOGETHER)
        return cudaErrorNotSupported;
    return launch(stream, grid, STEP_THREADS, beside == 1 && needed < alone ? alone : needed, kernel, a);
}

static cudaError_t step_launch(cudaStream_t stream, int dk, int lanes, int rows, const struct step_args &a)
{
    const unsigned share = (unsigned)(a.nv / a.nk), threads = (unsigned)(a.dv / STATE_EACH * STATE_PARTS);
    const dim3 grid(share, (unsigned)a.nk, (unsigned)lanes);
    const bool whole = a.dv == STEP_VALUES && a.staged == STEP_ROWS;
    if (row_fits(a, dk, lanes, rows)) {
        const cudaError_t error = row_launch(stream, grid, dk, a);
        if (error != cudaErrorNotSupported)
            return error;
    }
    void (*const kernel)(struct step_args) = dk == 32   ? gdn_step_kernel<4, false>
                                             : dk == 64 ? gdn_step_kernel<8, false>
                                             : whole    ? gdn_step_kernel<16, true>
                                                        : gdn_step_kernel<16, false>;
    const size_t bytes =
        step_bytes((const void *)kernel, threads, sizeof(float) * (size_t)step_room_floats({dk, a.dv, a.staged}), share,
                   a.nk * lanes);
    return launch_cluster(stream, grid, threads, bytes, share, kernel, a);
}

// May say cudaErrorNotSupported, before it has launched anything.
extern "C" cudaError_t cuda_conv_gdn_norm(cudaStream_t stream, const void *const *args, int rows)
{
    const struct conv_args *conv = (const struct conv_args *)args[0];
    const struct gdn_args *gdn = (const struct gdn_args *)args[1];
    const struct gated_norm_args *norm = (const struct gated_norm_args *)args[2];
    if (!step_fits(conv, gdn, norm, rows))
        return cudaErrorNotSupported;
    return step_launch(stream, gdn->dk, gdn->lanes.count, rows, step_args_of(conv, gdn, norm));
}
