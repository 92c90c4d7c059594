// SPDX-License-Identifier: Apache-2.0
//
// The parts of a DeltaNet layer's step (gdn_step.cu) for passes of a row a lane, which update their states: a state is updated where it
// lies in shared memory, so that a block needs little more room and few registers, and warps have roles until the row is prepared.
//
// Invariant: the operations of conv, gdn and gated_norm in their order, by the functions that gdn_step_kernel() calls, so the same bits.
// A lane of more rows than one, or with pending ones, is done a row at a time.

#ifndef CUDA_GDN_ROW_CUH
#define CUDA_GDN_ROW_CUH

#include "kernels/cuda/gdn_step.cuh"

// Roles of warps. The first three have the channels of step_first(), ROW_MANY a thread. Each from ROW_STATE on brings STATE_PARTS pieces
// of the state and takes them home; the last one, ROW_SCALARS, has the row's scalars too.
enum {
    ROW_KEYS,
    ROW_QUERIES,
    ROW_VALUES,
    ROW_NORM,
    ROW_STATE,
    ROW_SCALARS = STEP_THREADS / WARP - 1,
    ROW_MANY = STEP_VALUES / WARP,
    ROW_EACH = 2,  // columns that a thread has in registers at a time
    ROW_BOXES = 4, // at most: one for STATE_PARTS pieces
};

DEVICE int32_t row_role(void)
{
    return (int32_t)threadIdx.x / WARP;
}

// ---- shared memory -------------------------------------------------------------------------------------------------------------

struct row_room {
    float *state;                  // [dk / STEP_PIECE] pieces
    float *gain, *gates, *outputs; // [dv]; gates have had their activation
    float *inputs;                 // [STEP_DEPTH][2 dk] of the convolution: the last ones of keys and queries
    struct gdn_stage pending, row; // a row each
    uint64_t *box;                 // [ROW_BOXES] of the state
    uint32_t *said;                // whether this block writes the key head's history
};

static __host__ __device__ inline int32_t row_room_floats(const struct step_shape &s)
{
    const int32_t ends = 2 * ROW_BOXES + 1;
    return step_pieces(s) * step_pitch(s) + 3 * s.dv + 2 * STEP_DEPTH * s.dk + step_saved_stride(s) +
           gdn_stage_stride(s.dk, s.dv) + ends;
}

DEVICE struct row_room row_room_at(const struct step_shape &s, float *at)
{
    struct row_room room;
    room.state = at;
    room.gain = room.state + step_pieces(s) * step_pitch(s);
    room.gates = room.gain + s.dv;
    room.outputs = room.gates + s.dv;
    room.inputs = room.outputs + s.dv;
    room.pending.k = room.pending.q = room.inputs + 2 * STEP_DEPTH * s.dk;
    room.pending.v = room.pending.k + s.dk;
    room.pending.decay = room.pending.v + s.dv;
    room.pending.beta = room.pending.decay + 1;
    room.pending.stride = step_saved_stride(s);
    room.row = gdn_stage_at(room.pending.k + room.pending.stride, s.dk, s.dv);
    room.box = reinterpret_cast<uint64_t *>(room.row.k + room.row.stride);
    room.said = reinterpret_cast<uint32_t *>(room.box + ROW_BOXES);
    return room;
}

// ---- the state -------------------------------------------------------------------------------------------------------------------

// The warp's piece for this thread, or -1: nothing.
DEVICE int32_t row_piece(const struct step_shape &s)
{
    const int32_t thread = threadIdx.x % WARP, piece = (row_role() - ROW_STATE) * STATE_PARTS + thread;
    return row_role() >= ROW_STATE && thread < STATE_PARTS && piece < step_pieces(s) ? piece : -1;
}

// Asks for the state, each warp for its pieces. They may be waited for behind a barrier.
DEVICE void row_ask_state(const struct step_shape &s, const struct row_room &room, const float *home)
{
    const int32_t piece = row_piece(s), n = STEP_PIECE * s.dv;
    const unsigned bytes = (unsigned)n * (unsigned)sizeof(float);
    uint64_t *box = room.box + row_role() - ROW_STATE;
    if (piece >= 0 && piece % STATE_PARTS == 0)
        bulk_open(box, STATE_PARTS * bytes);
    __syncwarp();
    if (piece >= 0)
        bulk_take(room.state + piece * step_pitch(s), home + piece * n, bytes, box);
}

DEVICE void row_await_state(const struct step_shape &s, const struct row_room &room)
{
    for (int32_t i = 0; i < step_pieces(s) / STATE_PARTS; i++)
        bulk_wait(room.box + i);
}

// Sends it home, behind a barrier before which all have called bulk_written(); bulk_given() waits.
DEVICE void row_give_state(const struct step_shape &s, const struct row_room &room, float *home)
{
    const int32_t piece = row_piece(s), n = STEP_PIECE * s.dv;
    if (piece >= 0)
        bulk_give(home + piece * n, room.state + piece * step_pitch(s), (unsigned)n * (unsigned)sizeof(float));
}

// Updates the state by a prepared row, and with READ leaves outputs.
template <int PER, bool READ>
DEVICE void row_update(const struct step_shape &s, const struct row_room &room, const struct gdn_stage &row)
{
    const int32_t part = threadIdx.x % STATE_PARTS, group = threadIdx.x % WARP / STATE_PARTS,
                  strips = STATE_EACH / ROW_EACH;
    if (row_role() * STATE_COLUMNS >= s.dv)
        return;
#pragma unroll 1
    for (int32_t i = 0; i < strips; i++) {
        const int32_t column = i * (s.dv / strips) + (row_role() * (WARP / STATE_PARTS) + group) * ROW_EACH;
        float *const at = room.state + part * step_pitch(s) + column;
        float state[PER][ROW_EACH];
#pragma unroll
        for (int n = 0; n < PER; n++)
            gdn_values<ROW_EACH>(state[n], at + n / 4 * STATE_PARTS * step_pitch(s) + n % 4 * s.dv);
        const float out =
            gdn_step<PER, READ, ROW_EACH>(state, row.k, row.q, row.v + column, *row.decay, *row.beta, part);
#pragma unroll
        for (int n = 0; n < PER; n++)
            *reinterpret_cast<float2 *>(at + n / 4 * STATE_PARTS * step_pitch(s) + n % 4 * s.dv) = {state[n][0],
                                                                                                    state[n][1]};
        if (READ && part < ROW_EACH)
            room.outputs[column + state_column<ROW_EACH>(part)] = out;
    }
}

// Folds what is pending, a row at a time. All threads, behind a barrier; the last row's readers may still be at it.
template <int PER>
DEVICE void row_fold(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                     const struct step_lane &lane, const struct row_room &room)
{
    const int32_t keys = a.nk * s.dk, values = a.nv * s.dv;
#pragma unroll 1
    for (int32_t t = 0; t < lane.fold; t++) {
        const float *saved = step_saved(a, s, lane.run) + t * step_saved_width(a, s);
        __syncthreads();
        for (int32_t i = (int32_t)threadIdx.x; i < s.dk; i += STEP_THREADS)
            room.pending.k[i] = __ldcg(saved + p.key * s.dk + i);
        for (int32_t i = (int32_t)threadIdx.x; i < s.dv; i += STEP_THREADS)
            room.pending.v[i] = __ldcg(saved + keys + p.head * s.dv + i);
        if (threadIdx.x < 2)
            room.pending.decay[threadIdx.x] = __ldcg(saved + keys + values + threadIdx.x * a.nv + p.head);
        __syncthreads();
        row_update<PER, false>(s, room, room.pending);
    }
}

// ---- the row ---------------------------------------------------------------------------------------------------------------------

// What a thread needs of its channels beside the row's own inputs: weights, and the inputs before them, oldest first.
struct row_taken {
    vec<STEP_TAPS> w[ROW_MANY];
    float x[ROW_MANY][STEP_DEPTH];
};

DEVICE int32_t row_channels(const struct step_shape &s)
{
    return row_role() == ROW_VALUES ? s.dv : s.dk;
}

// Takes that for row `at` of the lane. Of the first row it is on its way before pdl_wait().
DEVICE void row_take(struct row_taken &taken, const struct step_args &a, const struct step_shape &s,
                     const struct step_place &p, const struct step_lane &lane, int32_t at)
{
    const int32_t width = (int32_t)step_width(a, s), thread = threadIdx.x % WARP,
                  first = step_first(a, s, p, row_role()) + thread;
    const float *history = reinterpret_cast<const float *>(lane.run + a.history) + first, *w = a.w + first * STEP_TAPS;
#pragma unroll
    for (int d = 0; d < STEP_DEPTH; d++) {
        const int32_t before = at + d - STEP_DEPTH; // of the lane's rows
        const float *x =
            before < 0 ? history + (lane.fold + at + d) * width : a.u + (lane.row + before) * a.ldu + first;
#pragma unroll
        for (int m = 0; m < ROW_MANY; m++)
            if (thread + m * WARP < row_channels(s))
                taken.x[m][d] = __ldcg(x + m * WARP);
    }
#pragma unroll
    for (int m = 0; m < ROW_MANY; m++)
        if (thread + m * WARP < row_channels(s))
            taken.w[m] = vec_load<STEP_TAPS>(w + m * WARP * STEP_TAPS);
}

// The row's channels of the warp: convolved, keys and queries normalised, to its stage; of a last row the inputs that the history wants
// go there, or to shared memory where other blocks may still read what is there.
DEVICE void row_convolve(const struct row_taken &taken, const struct step_args &a, const struct step_shape &s,
                         const struct step_place &p, const struct step_lane &lane, const struct row_room &room,
                         int32_t at, bool last)
{
    const int32_t role = row_role(), thread = threadIdx.x % WARP, first = step_first(a, s, p, role) + thread;
    const float *u = a.u + (lane.row + at) * a.ldu + first;
    const bool values = role == ROW_VALUES;
    float *past = values ? reinterpret_cast<float *>(lane.run + a.history) + first : room.inputs + role * s.dk + thread;
    const int32_t width = values ? (int32_t)step_width(a, s) : 2 * s.dk;
    float now[ROW_MANY], held[GDN_LANE] = {};
#pragma unroll
    for (int m = 0; m < ROW_MANY; m++)
        now[m] = thread + m * WARP < row_channels(s) ? __ldcg(u + m * WARP) : 0.0f;
#pragma unroll
    for (int m = 0; m < ROW_MANY; m++) {
        const float x[STEP_TAPS] = {taken.x[m][0], taken.x[m][1], taken.x[m][2], now[m]};
        if (thread + m * WARP < row_channels(s))
            held[m] = conv_output<STEP_TAPS, 1>(taken.w[m].v, x, 0.0f, ACT_NONE);
    }
#pragma unroll
    for (int d = 0; d < STEP_DEPTH; d++)
#pragma unroll
        for (int m = 0; m < ROW_MANY; m++)
            if (last && thread + m * WARP < row_channels(s))
                past[d * width + m * WARP] = d + 1 < STEP_DEPTH ? taken.x[m][d + 1] : now[m];
    f_silus<ROW_MANY>(held);
    if (!values)
        gdn_normalise(role == ROW_KEYS ? room.row.k : room.row.q, held, s.dk, s.dk,
                      role == ROW_KEYS ? 1.0f : 1.0f / sqrtf((float)s.dk), thread);
#pragma unroll
    for (int m = 0; m < ROW_MANY; m++)
        if (values && thread + m * WARP < s.dv)
            room.row.v[thread + m * WARP] = held[m];
}

// Behind this, numbers of the launch before are there; nothing else is waited for.
DEVICE void row_begin(int32_t at)
{
    if (at > 0)
        return;
    pdl_wait();
    pdl_trigger();
}

// The row's gates, and before the first row the norm's weights.
DEVICE void row_gates(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                      const struct step_lane &lane, const struct row_room &room, int32_t at)
{
    const int32_t i = threadIdx.x % WARP * 4;
    const bool mine = i < s.dv;
    if (mine && at == 0)
        vec_store<4>(room.gain + i, vec_load<4>(a.gain + i));
    row_begin(at);
    if (!mine)
        return;
    vec<4> z = vec_load<4>(a.z + (lane.row + at) * a.ldz + p.head * s.dv + i);
    if (a.gate == ACT_SILU)
        f_silus<4>(z.v);
    else if (a.gate == ACT_SIGMOID)
        f_sigmoids(z.v);
    vec_store<4>(room.gates + i, z);
}

// The row's decay and beta, by one thread.
DEVICE void row_scalars(const struct step_args &a, const struct step_place &p, const struct step_lane &lane,
                        const struct row_room &room, int32_t at)
{
    const int32_t r = lane.row + at;
    struct gdn_raw raw = {a.a_log[p.head], 0, a.dt_bias[p.head], 0};
    row_begin(at);
    raw.a = a.a[r * a.lda + p.head];
    raw.b = a.b[r * a.ldb + p.head];
    gdn_raw_scalars(raw, room.row.decay, room.row.beta);
}

// Prepares row `at` of the lane, up to the next barrier; of the first row everything that is older is asked for before pdl_wait().
DEVICE void row_prepare(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                        const struct step_lane &lane, const struct row_room &room, int32_t at)
{
    if (row_role() <= ROW_VALUES) {
        struct row_taken taken;
        row_take(taken, a, s, p, lane, at);
        row_begin(at);
        row_convolve(taken, a, s, p, lane, room, at, at + 1 == lane.rows);
    } else if (row_role() == ROW_NORM)
        row_gates(a, s, p, lane, room, at);
    else if (threadIdx.x == ROW_SCALARS * WARP)
        row_scalars(a, p, lane, room, at);
    else
        row_begin(at);
}

// Whether a block that found `before` of `blocks` at the counter is the last one, which then clears it. By one thread.
DEVICE uint32_t row_last(unsigned int *counter, unsigned int before, unsigned int blocks)
{
    const bool last = before == blocks - 1;
    if (last)
        *counter = 0;
    return last;
}

// Moves the history of the key head's channels on, by the last block that has read it.
DEVICE void row_remember(const struct step_args &a, const struct step_shape &s, const struct step_place &p,
                         const struct step_lane &lane, const struct row_room &room)
{
    const int64_t width = step_width(a, s);
    float *history = reinterpret_cast<float *>(lane.run + a.history);
    for (int32_t j = (int32_t)threadIdx.x; j < 2 * s.dk; j += STEP_THREADS) {
        const int32_t kind = j < s.dk ? ROW_KEYS : ROW_QUERIES;
#pragma unroll
        for (int d = 0; d < STEP_DEPTH; d++)
            history[d * width + step_first(a, s, p, kind) + j - kind * s.dk] = room.inputs[2 * d * s.dk + j];
    }
}

#endif
