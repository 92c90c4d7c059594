// SPDX-License-Identifier: Apache-2.0
//
// conv, gdn and gated_norm in one launch: a block a (value head, lane), whose state stays in registers over all rows of the lane. Blocks
// that share a key head are a cluster; each prepares the key head's rows for itself.
//
// Invariant: the operations of conv, gdn and gated_norm in their order, by the same functions, so the same bits. What several
// blocks read of history and saved rows, the first of them writes when all have read it.

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/conv.cuh"
#include "kernels/cuda/gated_norm.cuh"
#include "kernels/cuda/gdn_stage.cuh"
#include "kernels/cuda/launch.cuh"

enum {
    STEP_THREADS = 256, // at most: those of STEP_VALUES columns
    STEP_VALUES = 128,
    STEP_CLUSTER = 8,
    STEP_ROWS = MAX_WINDOW, // staged at a time, so that a window is one piece
    STEP_TAPS = 4,
    STEP_DEPTH = STEP_TAPS - 1,
};

struct gdn_step_args {
    struct conv_args conv;
    struct gdn_args gdn;
    struct gated_norm_args norm;
};

// ---- shared memory -------------------------------------------------------------------------------------------------------------

// Channels of a block: its key head's k and q, its values; as a stage has them.
static __host__ __device__ inline int32_t step_channels(const struct gdn_args *a)
{
    return 2 * a->dk + a->dv;
}

struct step_room {
    float *weights; // [channels][taps] of the convolution
    float *gain;    // [dv] of the norm
    float *gates;   // [rows][dv]
    float *inputs;  // [STEP_DEPTH + rows][channels] of the convolution, rows before the piece first
    struct gdn_stage saved, rows;
};

static __host__ __device__ inline int32_t step_room_floats(const struct gdn_args *a)
{
    const int32_t channels = step_channels(a);
    return STEP_TAPS * channels + a->dv + STEP_ROWS * a->dv + (STEP_DEPTH + STEP_ROWS) * channels +
           2 * STEP_ROWS * gdn_stage_stride(a->dk, a->dv);
}

DEVICE struct step_room step_room_at(const struct gdn_args *a, float *at)
{
    const int32_t channels = step_channels(a);
    struct step_room room;
    room.weights = at;
    room.gain = room.weights + STEP_TAPS * channels;
    room.gates = room.gain + a->dv;
    room.inputs = room.gates + STEP_ROWS * a->dv;
    room.saved = gdn_stage_at(room.inputs + (STEP_DEPTH + STEP_ROWS) * channels, a->dk, a->dv);
    room.rows = gdn_stage_at(room.saved.k + STEP_ROWS * room.saved.stride, a->dk, a->dv);
    return room;
}

// ---- what comes before pdl_wait() ------------------------------------------------------------------------------------------------

// Between the `rows` op of the pass and this op nobody writes a lane's run and fold, nor what the three ops keep there: `take`, `accept`
// and `commit` come before `rows`, and a pass has one op of each state. A kernel starts when the one before has let it, hence after
// rows_kernel let its successors start, which it does after its own pdl_wait(): when everything before `rows` had finished. Loads
// go past L1, which may hold what was there before.
struct step_lane {
    uint8_t *run; // NULL: no lane
    int32_t fold;
};

DEVICE struct step_lane step_lane_of(const struct gdn_args *a, int32_t l)
{
    const volatile struct lane *lane = a->lanes.lane[l];
    if (!lane)
        return {NULL, 0};
    return {lane->run, lane->fold};
}

// The state of the thread's columns, where it is at home.
DEVICE float *step_home(const struct gdn_args *a, uint8_t *run, int32_t head)
{
    return reinterpret_cast<float *>(run + a->state) + (int64_t)head * a->dk * a->dv +
           (int32_t)threadIdx.x / STATE_PARTS * STATE_EACH;
}

template <int PER> DEVICE void step_load(float (*state)[STATE_EACH], const float *home, int32_t dv)
{
    const int32_t part = threadIdx.x % STATE_PARTS;
#pragma unroll
    for (int n = 0; n < PER; n++) {
        const float4 t = __ldcg(reinterpret_cast<const float4 *>(home + state_element(n, part) * dv));
        state[n][0] = t.x, state[n][1] = t.y, state[n][2] = t.z, state[n][3] = t.w;
    }
}

template <int PER> DEVICE void step_store(float *home, const float (*state)[STATE_EACH], int32_t dv)
{
    const int32_t part = threadIdx.x % STATE_PARTS;
#pragma unroll
    for (int n = 0; n < PER; n++)
        *reinterpret_cast<float4 *>(home + state_element(n, part) * dv) =
            make_float4(state[n][0], state[n][1], state[n][2], state[n][3]);
}

// Copies rows of n floats past L1, n a multiple of 4 and of 128 at most: a warp a row. The caller commits and waits.
DEVICE void step_rows(float *to, int32_t stride, const float *from, int64_t ld, int32_t rows, int32_t n)
{
    const int32_t i = threadIdx.x % WARP * 4, warps = (int32_t)blockDim.x / WARP;
#pragma unroll 1
    for (int32_t r = (int32_t)threadIdx.x / WARP; i < n && r < rows; r += warps)
        __pipeline_memcpy_async(to + r * stride + i, from + r * ld + i, 16);
}

// The same with n floats of one row, of any number.
DEVICE void step_row(float *to, const float *from, int32_t n)
{
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x * 4; i < n; i += (int32_t)blockDim.x * 4)
        __pipeline_memcpy_async(to + i, from + i, 16);
}

// What the block works on: in a grid of (value heads of a key head, key heads, lanes).
struct step_place {
    int32_t key, head, l;       // key head, value head, lane
    int32_t first[3], count[3]; // channels of the block: keys, queries, values
};

DEVICE struct step_place step_place_of(const struct gdn_args *a)
{
    const int32_t key = (int32_t)blockIdx.y, head = key * (int32_t)gridDim.x + (int32_t)blockIdx.x;
    return {key,
            head,
            (int32_t)blockIdx.z,
            {(a->nk + key) * a->dk, key * a->dk, 2 * a->nk * a->dk + head * a->dv},
            {a->dk, a->dk, a->dv}};
}

// Copies rows of the block's channels.
DEVICE void step_channel_rows(const struct step_place &p, float *to, int32_t stride, const float *from, int64_t ld,
                              int32_t rows)
{
#pragma unroll
    for (int kind = 0, at = 0; kind < 3; at += p.count[kind++])
        step_rows(to + at, stride, from + p.first[kind], ld, rows, p.count[kind]);
}

// Asks for weights, and for the rows before the lane's first: history and saved rows laid end to end; and for keys and values of what is
// pending. Returns the thread's number of the scalars of that, row after row.
DEVICE float step_ask(const struct gdn_step_args &a, const struct step_place &p, const struct step_lane &lane,
                      const struct step_room &room)
{
    const int64_t channels = a.conv.channels, ld = gdn_saved_width(&a.gdn);
    const int32_t thread = (int32_t)threadIdx.x;
    const float *past = reinterpret_cast<const float *>(lane.run + a.conv.state) + lane.fold * channels;
    const float *keys = gdn_saved(&a.gdn, lane.run), *values = keys + a.gdn.nk * a.gdn.dk;
    const float *scalars = values + a.gdn.nv * a.gdn.dv;
#pragma unroll
    for (int kind = 0, at = 0; kind < 3; at += p.count[kind++])
        step_row(room.weights + at * STEP_TAPS, a.conv.w + (int64_t)p.first[kind] * STEP_TAPS,
                 p.count[kind] * STEP_TAPS);
    step_row(room.gain, a.norm.w, a.gdn.dv);
    step_channel_rows(p, room.inputs, step_channels(&a.gdn), past, channels, STEP_DEPTH);
    step_rows(room.saved.k, room.saved.stride, keys + p.key * a.gdn.dk, ld, lane.fold, a.gdn.dk);
    step_rows(room.saved.v, room.saved.stride, values + p.head * a.gdn.dv, ld, lane.fold, a.gdn.dv);
    __pipeline_commit();
    return thread < 2 * lane.fold ? __ldcg(scalars + thread / 2 * ld + thread % 2 * a.gdn.nv + p.head) : 0.0f;
}

// ---- rows ----------------------------------------------------------------------------------------------------------------------

DEVICE struct gdn_block step_block(const struct gdn_args *a, const struct step_place &p)
{
    const volatile struct pass *pass = a->pass; // so that no number waits for another one
    struct gdn_block b;
    b.head = p.head;
    b.key = p.key * a->dk;
    b.first = 0;
    b.columns = b.width = a->dv;
    b.keys = (int64_t)a->nk * a->dk;
    b.values = (int64_t)a->nv * a->dv;
    b.row = pass->lane_first[p.l];
    b.rows = pass->lane_rows[p.l];
    b.owner = true;
    b.leads = blockIdx.x == 0;
    return b;
}

// n rows of the block's channels to its stage, queries and keys not normalised yet.
DEVICE void step_convolve(const struct gdn_step_args &a, const struct step_room &room, int32_t n)
{
    const int32_t channels = step_channels(&a.gdn);
#pragma unroll 1
    for (int32_t j = (int32_t)threadIdx.x; j < channels; j += (int32_t)blockDim.x) {
        const vec<STEP_TAPS> w = vec_load<STEP_TAPS>(room.weights + j * STEP_TAPS);
        const float *x = room.inputs + j;
        float *y = room.rows.k + j;
#pragma unroll 1
        for (int32_t r = 0; r < n; r++) {
            float held[STEP_TAPS];
#pragma unroll
            for (int i = 0; i < STEP_TAPS; i++)
                held[i] = x[(r + i) * channels];
            y[r * room.rows.stride] = conv_output<STEP_TAPS, 1>(w.v, held, 0.0f, a.conv.activation);
        }
    }
}

// Moves the history on by what was pending (a window), or by that and the rows of the pass (direct, at the last piece), and saves a window's
// rows: the block's own channels, and those of the key head where it leads.
DEVICE void step_remember(const struct gdn_step_args &a, const struct step_place &p, const struct gdn_block &b,
                          const struct step_room &room, const struct step_lane &lane, int32_t at, int32_t n)
{
    const int32_t channels = step_channels(&a.gdn), dk = a.gdn.dk, from = a.conv.direct ? n : 0;
    const bool moves = a.conv.direct ? at + n == b.rows : lane.fold > 0;
#pragma unroll 1
    for (int32_t j = (b.leads ? 0 : 2 * dk) + (int32_t)threadIdx.x; j < channels; j += (int32_t)blockDim.x) {
        const int32_t channel = j + (j < dk ? p.first[0] : j < 2 * dk ? p.first[1] - dk : p.first[2] - 2 * dk);
        float *history = reinterpret_cast<float *>(lane.run + a.conv.state) + channel;
        const float *x = room.inputs + j;
#pragma unroll
        for (int d = 0; d < STEP_DEPTH; d++)
            if (moves)
                history[(int64_t)d * a.conv.channels] = x[(from + d) * channels];
#pragma unroll 1
        for (int32_t r = STEP_DEPTH; !a.conv.direct && r < STEP_DEPTH + n; r++)
            history[(int64_t)r * a.conv.channels] = x[r * channels];
    }
}

// n rows of outputs, which lie in the places of saved values: a warp a row.
DEVICE void step_norm(const struct gated_norm_args *a, const struct gdn_block &b, const struct step_room &room,
                      int32_t at, int32_t n)
{
    const int32_t lane = threadIdx.x % WARP, warps = (int32_t)blockDim.x / WARP;
    for (int32_t t = (int32_t)threadIdx.x / WARP; t < n; t += warps) {
        const float *gate = room.gates + t * a->dim;
        float *y = a->y + (b.row + at + t) * a->ldy + (int64_t)b.head * a->dim;
        gated_norm_head<4, false, true>(a, room.saved.v + t * room.saved.stride, gate, room.gain, y,
                                        gated_norm_take<4>(gate, room.gain, a->dim, lane), lane, WARP, NULL);
    }
}

// Brings rows at .. at + n - 1 of the lane to the block, with what was asked for before. Keys and queries are not normalised yet.
DEVICE void step_bring(const struct gdn_step_args &a, const struct step_place &p, const struct gdn_block &b,
                       const struct step_room &room, int32_t at, int32_t n)
{
    const int32_t item = (int32_t)(blockDim.x - 1 - threadIdx.x); // the last threads have the fewest channels
    const int32_t channels = step_channels(&a.gdn);
    const int32_t again = at == 0 ? 0 : STEP_DEPTH; // rows of the piece before
    const float *u = a.conv.u + (b.row + at - again) * a.conv.ldu;
    const float *z = a.norm.z + (b.row + at) * a.norm.ldz + (int64_t)b.head * a.gdn.dv;
    struct gdn_raw raw = {};
    step_channel_rows(p, room.inputs + (STEP_DEPTH - again) * channels, channels, u, a.conv.ldu, n + again);
    step_rows(room.gates, a.gdn.dv, z, a.norm.ldz, n, a.gdn.dv);
    __pipeline_commit();
    if (item < n)
        raw = gdn_raw_of(&a.gdn, b.row + at + item, b.head);
    __pipeline_wait_prior(0);
    if (at == 0)
        cluster_arrive_read();
    __syncthreads();
    step_convolve(a, room, n);
    if (item < n)
        gdn_raw_scalars(raw, &room.rows.decay[item * room.rows.stride], &room.rows.beta[item * room.rows.stride]);
}

// ---- kernel --------------------------------------------------------------------------------------------------------------------

// dk = STATE_PARTS PER.
template <int PER>
__global__ void __launch_bounds__(STEP_THREADS, 2) gdn_step_kernel(const __grid_constant__ struct gdn_step_args a)
{
    SHARED_BYTES(shared);
    const struct step_place p = step_place_of(&a.gdn);
    const struct step_lane lane = step_lane_of(&a.gdn, p.l);
    const struct step_room room = step_room_at(&a.gdn, reinterpret_cast<float *>(shared));
    float state[PER][STATE_EACH], scalar = 0;
    if (lane.run) {
        step_load<PER>(state, step_home(&a.gdn, lane.run, p.head), a.gdn.dv);
        scalar = step_ask(a, p, lane, room);
    }
    pdl_wait();
    pdl_trigger();
    const struct gdn_block b = step_block(&a.gdn, p);
    if (!lane.run || b.rows == 0) {
        __pipeline_wait_prior(0);
        return;
    }
    const int32_t part = threadIdx.x % STATE_PARTS, column = (int32_t)threadIdx.x / STATE_PARTS * STATE_EACH;
    const struct gdn_stage saved = gdn_stage_of(room.saved, column), rows = gdn_stage_of(room.rows, column);
#pragma unroll 1
    for (int32_t at = 0; at < b.rows; at += STEP_ROWS) {
        const int32_t n = (int32_t)(b.rows - at < STEP_ROWS ? b.rows - at : STEP_ROWS);
        if (at > 0)
            __syncthreads();
        step_bring(a, p, b, room, at, n);
        if (at == 0 && (int32_t)threadIdx.x < 2 * lane.fold)
            room.saved.decay[(int32_t)threadIdx.x / 2 * room.saved.stride + (int32_t)threadIdx.x % 2] = scalar;
        __syncthreads();
        gdn_stage_keys<1>(&room.rows, room.rows.q, room.rows.k, room.rows.stride, n, STATE_PARTS * PER,
                          STATE_PARTS * PER);
        if (at == 0 && lane.fold > 0) {
            gdn_fold<PER>(&saved, lane.fold, state, part);
            if (!a.gdn.direct)
                step_store<PER>(step_home(&a.gdn, lane.run, p.head), state, a.gdn.dv);
        }
        __syncthreads(); // nobody reads saved values any more
        gdn_run<PER>(&rows, n, state, part, STATE_EACH, saved.v, saved.stride);
        __syncthreads();
        step_norm(&a.norm, b, room, at, n);
        if (at == 0)
            cluster_wait();
        step_remember(a, p, b, room, lane, at, n);
        if (!a.gdn.direct)
            gdn_keep(&a.gdn, &b, &room.rows, gdn_saved(&a.gdn, lane.run), at, n);
    }
    if (a.gdn.direct)
        step_store<PER>(step_home(&a.gdn, lane.run, p.head), state, a.gdn.dv);
}

// ---- launch --------------------------------------------------------------------------------------------------------------------

// Whether the kernel can do the three ops in passes of `rows`: by shapes and the device alone.
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
        conv->channels != 2 * gdn->nk * gdn->dk + gdn->nv * gdn->dv)
        return false;
    return norm->x == gdn->y && norm->ldx == gdn->ldy && norm->heads == gdn->nv && norm->dim == gdn->dv &&
           !norm->norm_after && vec_fits(norm->x, norm->ldx, norm->dim) && vec_fits(norm->y, norm->ldy, norm->dim) &&
           vec_fits(norm->z, norm->ldz, norm->dim) && vec_fits(norm->w, 0, norm->dim) &&
           rows <= conv->lanes.count * MAX_WINDOW;
}

template <int PER> static cudaError_t step_launch(cudaStream_t stream, const struct gdn_step_args &a)
{
    const unsigned share = (unsigned)(a.gdn.nv / a.gdn.nk);
    const dim3 grid(share, (unsigned)a.gdn.nk, (unsigned)a.gdn.lanes.count);
    const unsigned threads = (unsigned)(a.gdn.dv / STATE_EACH * STATE_PARTS);
    const size_t bytes = sizeof(float) * (size_t)step_room_floats(&a.gdn);
    return launch_cluster(stream, grid, threads, bytes, share, gdn_step_kernel<PER>, a);
}

// May say cudaErrorNotSupported, before it has launched anything.
extern "C" cudaError_t cuda_conv_gdn_norm(cudaStream_t stream, const void *const *args, int rows)
{
    const struct gdn_step_args a = {*(const struct conv_args *)args[0], *(const struct gdn_args *)args[1],
                                    *(const struct gated_norm_args *)args[2]};
    if (!step_fits(&a.conv, &a.gdn, &a.norm, rows))
        return cudaErrorNotSupported;
    return a.gdn.dk == 32   ? step_launch<4>(stream, a)
           : a.gdn.dk == 64 ? step_launch<8>(stream, a)
                            : step_launch<16>(stream, a);
}
