// SPDX-License-Identifier: Apache-2.0
//
// The parts of a DeltaNet layer's step (gdn_step.cu): rows of a lane for a value head in shared memory, from the convolution's inputs to
// the norm's outputs, and its state between there, device memory and registers.
//
// Invariant: sizes that a kernel knows are constants of its step_shape: addresses are then a few instructions, and instructions are
// what a step of few lanes waits for.

#ifndef CUDA_GDN_STEP_CUH
#define CUDA_GDN_STEP_CUH

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/conv.cuh"
#include "kernels/cuda/gated_norm.cuh"
#include "kernels/cuda/gdn_stage.cuh"
#include "kernels/cuda/launch.cuh"

enum {
    STEP_THREADS = 256, // at most: those of STEP_VALUES columns
    STEP_VALUES = 128,
    STEP_TAPS = 4,
    STEP_DEPTH = STEP_TAPS - 1,
    STEP_PIECE =
        4,        // elements of a column that a thread has beside each other: rows of a state that are copied at a time
    STEP_GAP = 4, // floats between pieces, so that threads that share columns ask different banks
};

// The arguments of the three ops that matter, in few lines of the constant bank.
struct step_args {
    const struct pass *pass;
    const struct lane *lane[MAX_LANES];
    int32_t nk, nv, dv, staged, direct, ldu, lda, ldb, ldz, ldy, activation, gate; // gate: the norm's activation
    float eps;
    int64_t history, state; // of the convolution and of gdn, in a lane's run
    const float *u, *w, *a, *b, *a_log, *dt_bias, *z, *gain;
    float *y;
};

// Dims of a block's heads, rows staged at a time.
struct step_shape {
    int32_t dk, dv, staged;
};

// What a block works on: a key head, a value head of it, a lane.
struct step_place {
    int32_t key, head, l;
};

// ---- shared memory -------------------------------------------------------------------------------------------------------------

struct step_room {
    float *state;   // [dk / STEP_PIECE] pieces
    float *weights; // [channels][taps] of the convolution
    float *gain;    // [dv] of the norm
    float *gates;   // [rows][dv]
    float *inputs;  // [STEP_DEPTH + rows][channels] of the convolution, rows before the piece first
    struct gdn_stage saved, rows;
    uint64_t *box; // of the state
};

// Channels of a block: its key head's k and q, its values; as a stage has them.
static __host__ __device__ inline int32_t step_channels(const struct step_shape &s)
{
    return 2 * s.dk + s.dv;
}

static __host__ __device__ inline int32_t step_pitch(const struct step_shape &s)
{
    return STEP_PIECE * s.dv + STEP_GAP;
}

static __host__ __device__ inline int32_t step_pieces(const struct step_shape &s)
{
    return s.dk / STEP_PIECE;
}

// Saved rows have no queries.
static __host__ __device__ inline int32_t step_saved_stride(const struct step_shape &s)
{
    return gdn_stage_stride(s.dk, s.dv) - s.dk;
}

static __host__ __device__ inline int32_t step_room_floats(const struct step_shape &s)
{
    const int32_t channels = step_channels(s), box = 2;
    return step_pieces(s) * step_pitch(s) + (STEP_TAPS + STEP_DEPTH) * channels + s.dv +
           s.staged * (s.dv + channels + step_saved_stride(s) + gdn_stage_stride(s.dk, s.dv)) + box;
}

DEVICE struct step_room step_room_at(const struct step_shape &s, float *at)
{
    const int32_t channels = step_channels(s);
    struct step_room room;
    room.state = at;
    room.weights = room.state + step_pieces(s) * step_pitch(s);
    room.gain = room.weights + STEP_TAPS * channels;
    room.gates = room.gain + s.dv;
    room.inputs = room.gates + s.staged * s.dv;
    room.saved.k = room.saved.q = room.inputs + (STEP_DEPTH + s.staged) * channels;
    room.saved.v = room.saved.k + s.dk;
    room.saved.decay = room.saved.v + s.dv;
    room.saved.beta = room.saved.decay + 1;
    room.saved.stride = step_saved_stride(s);
    room.rows = gdn_stage_at(room.saved.k + s.staged * room.saved.stride, s.dk, s.dv);
    room.box = reinterpret_cast<uint64_t *>(room.rows.k + s.staged * room.rows.stride);
    return room;
}

// ---- the state -------------------------------------------------------------------------------------------------------------------

// The block's state where it is at home.
DEVICE float *step_home(const struct step_args &a, const struct step_shape &s, const struct step_place &p, uint8_t *run)
{
    return reinterpret_cast<float *>(run + a.state) + (int64_t)p.head * s.dk * s.dv;
}

DEVICE unsigned step_state_bytes(const struct step_shape &s)
{
    return (unsigned)(s.dk * s.dv) * (unsigned)sizeof(float);
}

// Asks for it, neighbouring pieces by different warps.
DEVICE void step_ask_state(const struct step_shape &s, const struct step_room &room, const float *home)
{
    const int32_t warps = (int32_t)blockDim.x / WARP, n = STEP_PIECE * s.dv;
    for (int32_t i = (int32_t)(threadIdx.x % WARP) * warps + (int32_t)threadIdx.x / WARP; i < step_pieces(s);
         i += warps * WARP)
        bulk_take(room.state + i * step_pitch(s), home + i * n, (unsigned)n * (unsigned)sizeof(float), room.box);
}

// Sends it home, behind a barrier after step_store(), by the last `givers` warps, which wait for that with bulk_given().
DEVICE void step_give_state(const struct step_shape &s, const struct step_room &room, float *home, int32_t givers)
{
    const int32_t giver = (int32_t)(blockDim.x - 1 - threadIdx.x) / WARP, n = STEP_PIECE * s.dv;
    if (giver >= givers)
        return;
    bulk_written();
    for (int32_t i = (int32_t)(threadIdx.x % WARP) * givers + giver; i < step_pieces(s); i += givers * WARP)
        bulk_give(home + i * n, room.state + i * step_pitch(s), (unsigned)n * (unsigned)sizeof(float));
}

// Between shared memory and the thread's registers; at: the state from the thread's columns on.
template <int PER>
DEVICE void step_load(float (*state)[STATE_EACH], const float *at, const struct step_shape &s, int32_t part)
{
    static_assert((int)STEP_PIECE == 4 && (int)STATE_EACH == 4, "elements of a column beside each other, columns");
#pragma unroll
    for (int n = 0; n < PER; n++) {
        const vec<4> t = vec_load<4>(at + (n / 4 * STATE_PARTS + part) * step_pitch(s) + n % 4 * s.dv);
#pragma unroll
        for (int c = 0; c < STATE_EACH; c++)
            state[n][c] = t.v[c];
    }
}

template <int PER>
DEVICE void step_store(float *at, const float (*state)[STATE_EACH], const struct step_shape &s, int32_t part)
{
#pragma unroll
    for (int n = 0; n < PER; n++) {
        vec<4> t;
#pragma unroll
        for (int c = 0; c < STATE_EACH; c++)
            t.v[c] = state[n][c];
        vec_store<4>(at + (n / 4 * STATE_PARTS + part) * step_pitch(s) + n % 4 * s.dv, t);
    }
}

// ---- what comes before pdl_wait() ------------------------------------------------------------------------------------------------

// Between the `rows` op of the pass and this op nobody writes a lane's run and fold, nor what the three ops keep there: `take`, `accept`
// and `commit` come before `rows`, and a pass has one op of each state. A kernel starts when the one before has let it, hence after
// rows_kernel let its successors start, which it does after its own pdl_wait(): when everything before `rows` had finished. Between
// `rows` and this op stands what makes the convolution's inputs, from an embedding or a gathering on, whose kernels let their
// successors start after their own wait too: so what `rows` wrote is there as well. Loads go past L1, which may hold what was there before.
struct step_lane {
    uint8_t *run;
    int32_t fold;
    int32_t row, rows; // of the pass; no rows: there is nothing to do
};

DEVICE struct step_lane step_lane_of(const struct step_args &a, int32_t l)
{
    const volatile struct lane *lane = a.lane[l];
    const volatile struct pass *pass = a.pass;
    if (!lane)
        return {NULL, 0, 0, 0};
    return {lane->run, lane->fold, pass->lane_first[l], pass->lane_rows[l]};
}

// Rows of n floats that a warp copies past L1, n a multiple of 4.
struct step_copy {
    float *to;
    const float *from;
    int64_t ld;
    int32_t stride, rows, n;
};

DEVICE void step_copy_rows(const struct step_copy &c)
{
    for (int32_t i = threadIdx.x % WARP * 4; i < c.n; i += 4 * WARP) {
        float *to = c.to + i;
        const float *from = c.from + i;
#pragma unroll 1
        for (int32_t r = 0; r < c.rows; r++, to += c.stride, from += c.ld)
            __pipeline_memcpy_async(to, from, 16);
    }
}

// First channel of the block's keys, queries or values.
DEVICE int32_t step_first(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                          int32_t kind)
{
    return kind == 0 ? (a.nk + p.key) * s.dk : kind == 1 ? p.key * s.dk : 2 * a.nk * s.dk + p.head * s.dv;
}

// Channels of all heads.
DEVICE int64_t step_width(const struct step_args &a, const struct step_shape &s)
{
    return 2 * a.nk * s.dk + a.nv * s.dv;
}

DEVICE float *step_saved(const struct step_args &a, const struct step_shape &s, uint8_t *run)
{
    return reinterpret_cast<float *>(run + a.state) + (int64_t)a.nv * s.dk * s.dv;
}

DEVICE int64_t step_saved_width(const struct step_args &a, const struct step_shape &s)
{
    return a.nk * s.dk + a.nv * s.dv + 2 * a.nv;
}

// Pending rows, keys or values, from row `done` of what is saved on.
DEVICE struct step_copy step_pending(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                                     const struct step_lane &lane, const struct step_room &room, bool keys,
                                     int32_t done)
{
    const int64_t ld = step_saved_width(a, s);
    const int32_t left = lane.fold - done;
    return {keys ? room.saved.k : room.saved.v,
            step_saved(a, s, lane.run) + done * ld + (keys ? p.key * s.dk : a.nk * s.dk + p.head * s.dv),
            ld,
            room.saved.stride,
            left < s.staged ? left : s.staged,
            keys ? s.dk : s.dv};
}

// The thread's number of their decays and betas, row after row, and where it goes.
DEVICE float step_scalar(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                         const struct step_lane &lane, int32_t done)
{
    const int32_t row = (int32_t)threadIdx.x / 2, beta = (int32_t)threadIdx.x % 2;
    const float *scalars = step_saved(a, s, lane.run) + a.nk * s.dk + a.nv * s.dv + p.head;
    if (row >= s.staged || row >= lane.fold - done)
        return 0.0f;
    return __ldcg(scalars + (done + row) * step_saved_width(a, s) + beta * a.nv);
}

DEVICE void step_put_scalar(const struct step_shape &s, const struct step_room &room, float scalar)
{
    const int32_t row = (int32_t)threadIdx.x / 2, beta = (int32_t)threadIdx.x % 2;
    if (row < s.staged)
        room.saved.decay[row * room.saved.stride + beta] = scalar;
}

// Asks for weights, for the rows before the lane's first (history and saved rows laid end to end), and for the first keys and values
// of what is pending: a warp an item.
DEVICE void step_ask(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                     const struct step_lane &lane, const struct step_room &room)
{
    enum { PAST = 3, WEIGHTS = 6, PENDING = 8, ITEMS = 9 };
    const int64_t width = step_width(a, s);
    const float *past = reinterpret_cast<const float *>(lane.run + a.history) + lane.fold * width;
#pragma unroll 1
    for (int32_t item = (int32_t)threadIdx.x / WARP; item < ITEMS; item += (int32_t)blockDim.x / WARP) {
        const int32_t kind = item % 3, first = step_first(a, s, p, kind), n = kind == 2 ? s.dv : s.dk;
        struct step_copy c;
        if (item < PAST)
            c = {room.inputs + kind * s.dk, past + first, width, step_channels(s), STEP_DEPTH, n};
        else if (item < WEIGHTS)
            c = {room.weights + kind * s.dk * STEP_TAPS, a.w + (int64_t)first * STEP_TAPS, n, n, STEP_TAPS, n};
        else if (item < PENDING)
            c = step_pending(a, s, p, lane, room, kind == 0, 0);
        else
            c = {room.gain, a.gain, 0, 0, 1, s.dv};
        step_copy_rows(c);
    }
}

// ---- rows ----------------------------------------------------------------------------------------------------------------------

// Asks for rows at .. at + n - 1 of the lane: a warp a kind.
DEVICE void step_ask_rows(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                          const struct step_lane &lane, const struct step_room &room, int32_t at, int32_t n)
{
    enum { KINDS = 4 };
    const int32_t channels = step_channels(s), values = s.dv;
    const int64_t row = lane.row + at;
#pragma unroll 1
    for (int32_t kind = (int32_t)threadIdx.x / WARP; kind < KINDS; kind += (int32_t)blockDim.x / WARP) {
        struct step_copy c;
        if (kind < 3)
            c = {room.inputs + STEP_DEPTH * channels + kind * s.dk,
                 a.u + row * a.ldu + step_first(a, s, p, kind),
                 a.ldu,
                 channels,
                 n,
                 kind == 2 ? values : s.dk};
        else
            c = {room.gates, a.z + row * a.ldz + p.head * s.dv, a.ldz, values, n, values};
        step_copy_rows(c);
    }
}

// Between two pieces: the last inputs of the one before become those before the first of the next.
DEVICE void step_shift(const struct step_shape &s, const struct step_room &room)
{
    const int32_t channels = step_channels(s);
    __syncthreads();
#pragma unroll 1
    for (int32_t j = (int32_t)threadIdx.x; j < channels; j += (int32_t)blockDim.x) {
        float held[STEP_DEPTH];
#pragma unroll
        for (int d = 0; d < STEP_DEPTH; d++)
            held[d] = room.inputs[(s.staged + d) * channels + j];
#pragma unroll
        for (int d = 0; d < STEP_DEPTH; d++)
            room.inputs[d * channels + j] = held[d];
    }
    __syncthreads();
}

// n rows of the block's channels to its stage, queries and keys not normalised yet; gates become what the norm multiplies with.
DEVICE void step_convolve(const struct step_args &a, const struct step_shape &s, const struct step_room &room,
                          int32_t n)
{
    const int32_t channels = step_channels(s), values = s.dv;
#pragma unroll 1
    for (int32_t j = (int32_t)threadIdx.x; j < channels + values; j += (int32_t)blockDim.x) {
        float *gate = room.gates + j - channels, *y = room.rows.k + j;
        const float *x = room.inputs + j;
        const vec<STEP_TAPS> w = vec_load<STEP_TAPS>(room.weights + (j < channels ? j : 0) * STEP_TAPS);
#pragma unroll 1
        for (int32_t r = 0; r < n; r++, gate += values, x += channels, y += room.rows.stride) {
            float held[STEP_TAPS];
            if (j >= channels) {
                *gate = f_activate(*gate, a.gate);
                continue;
            }
#pragma unroll
            for (int i = 0; i < STEP_TAPS; i++)
                held[i] = x[i * channels];
            *y = conv_output<STEP_TAPS, 1>(w.v, held, 0.0f, a.activation);
        }
    }
}

// Brings rows at .. at + n - 1 of the lane to the block, with what was asked for before, up to the last barrier.
DEVICE void step_bring(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                       const struct step_lane &lane, const struct step_room &room, int32_t at, int32_t n)
{
    const int32_t t = (int32_t)(blockDim.x - 1 - threadIdx.x); // the first threads have the keys
    const int64_t r = lane.row + at + t;
    struct gdn_raw raw = {};
    if (at > 0)
        step_shift(s, room);
    step_ask_rows(a, s, p, lane, room, at, n);
    __pipeline_commit();
    if (t < n)
        raw = {a.a_log[p.head], a.a[r * a.lda + p.head], a.dt_bias[p.head], a.b[r * a.ldb + p.head]};
    __pipeline_wait_prior(0);
    __syncthreads();
    step_convolve(a, s, room, n);
    __syncthreads();
    if (t < n)
        gdn_raw_scalars(raw, &room.rows.decay[t * room.rows.stride], &room.rows.beta[t * room.rows.stride]);
    gdn_stage_keys<1>(&room.rows, room.rows.q, room.rows.k, room.rows.stride, n, s.dk, s.dk);
}

// Brings pending rows `done` .. to the block; nobody reads those before them any more when all threads are here.
DEVICE void step_bring_pending(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                               const struct step_lane &lane, const struct step_room &room, int32_t done)
{
    __syncthreads();
#pragma unroll 1
    for (int32_t kind = (int32_t)threadIdx.x / WARP; kind < 2; kind += (int32_t)blockDim.x / WARP)
        step_copy_rows(step_pending(a, s, p, lane, room, kind == 0, done));
    __pipeline_commit();
    step_put_scalar(s, room, step_scalar(a, s, p, lane, done));
    __pipeline_wait_prior(0);
    __syncthreads();
}

// Moves the history on by what was pending (a window, at its first piece), or by that and the rows of the pass (direct, at the last
// piece), and saves a window's rows: the block's own channels, and those of the key head where it leads.
DEVICE void step_remember(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                          const struct step_lane &lane, const struct step_room &room, bool leads, int32_t at, int32_t n)
{
    const int64_t width = step_width(a, s);
    const int32_t channels = step_channels(s), from = a.direct ? n : 0;
    const bool moves = a.direct ? at + n == lane.rows : at == 0 && lane.fold > 0;
    const int32_t thread = (int32_t)(blockDim.x - 1 - threadIdx.x); // the first are at the norm
#pragma unroll 1
    for (int32_t j = (leads ? 0 : 2 * s.dk) + thread; j < channels; j += (int32_t)blockDim.x) {
        const int32_t kind = j < s.dk ? 0 : j < 2 * s.dk ? 1 : 2;
        float *history = reinterpret_cast<float *>(lane.run + a.history) + step_first(a, s, p, kind) + j - kind * s.dk;
        const float *x = room.inputs + j;
#pragma unroll
        for (int d = 0; d < STEP_DEPTH; d++)
            if (moves)
                history[d * width] = x[(from + d) * channels];
#pragma unroll 1
        for (int32_t r = STEP_DEPTH; !a.direct && r < STEP_DEPTH + n; r++)
            history[(at + r) * width] = x[r * channels];
    }
}

// Saves a window's prepared rows.
DEVICE void step_keep(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                      const struct step_lane &lane, const struct step_room &room, bool leads, int32_t at, int32_t n)
{
    struct gdn_args g = {};
    struct gdn_block b = {};
    g.nk = a.nk;
    g.nv = a.nv;
    g.dk = s.dk;
    g.dv = s.dv;
    b.head = p.head;
    b.key = p.key * s.dk;
    b.width = s.dv;
    b.keys = a.nk * s.dk;
    b.values = a.nv * s.dv;
    b.owner = true;
    b.leads = leads;
    gdn_keep(&g, &b, &room.rows, step_saved(a, s, lane.run), at, n);
}

// Row `row` of the pass, by a warp: x, its outputs, times gates that have had their activation.
DEVICE void step_norm_row(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                          int64_t row, const float *x, const float *gate, const float *gain)
{
    const int32_t thread = threadIdx.x % WARP;
    struct gated_norm_args norm = {};
    norm.dim = s.dv;
    norm.eps = a.eps;
    norm.activation = ACT_NONE;
    float *y = a.y + row * a.ldy + p.head * s.dv;
    gated_norm_head<4, false, true>(
        &norm, x, gate, gain, [&](int32_t i, const vec<4> &v) { vec_store<4>(y + i, v); },
        gated_norm_take<4>(gate, gain, s.dv, thread), thread, WARP, NULL);
}

// n rows of outputs, which lie in the places of saved values: a warp a row.
DEVICE void step_norm(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                      const struct step_lane &lane, const struct step_room &room, int32_t at, int32_t n)
{
    const int32_t warps = (int32_t)blockDim.x / WARP;
#pragma unroll 1
    for (int32_t t = (int32_t)threadIdx.x / WARP; t < n; t += warps)
        step_norm_row(a, s, p, lane.row + at + t, room.saved.v + t * room.saved.stride, room.gates + t * s.dv,
                      room.gain);
}

#endif
