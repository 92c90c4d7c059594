// SPDX-License-Identifier: Apache-2.0
//
// conv, gdn and gated_norm of a (lane, key head) in one go, by the first GDN_STEP_THREADS threads of a block.
//
// A unit owns the channels of its query and key and of the value heads that share the key: their history, saved rows, states and
// outputs. Its columns, those of the value heads laid end to end, are taken in turns of GDN_STEP_COLUMNS, each thread
// a part of GDN_STEP_EACH of them, whose state stays in registers over all rows.
//
// Invariant: the operations of conv, gdn and gated_norm in their order, by the same functions, so the same bits. What a turn or a
// piece of rows reads again is written by the last one that reads it.

#ifndef CUDA_GDN_STEP_CUH
#define CUDA_GDN_STEP_CUH

#include "kernels/cuda/conv.cuh"
#include "kernels/cuda/gated_norm.cuh"
#include "kernels/cuda/gdn_stage.cuh"
#include "kernels/cuda/launch.cuh"

enum {
    GDN_STEP_THREADS = 512,
    GDN_STEP_WARPS = GDN_STEP_THREADS / WARP,
    GDN_STEP_EACH = 2, // columns of a thread
    GDN_STEP_COLUMNS = GDN_STEP_THREADS / STATE_PARTS * GDN_STEP_EACH,
    GDN_STEP_ROWS = 4, // staged at a time
    GDN_STEP_FOLD = 3, // saved rows staged at a time
    GDN_STEP_TAPS = 4,
    GDN_STEP_DEPTH = GDN_STEP_TAPS - 1,
    GDN_STEP_HELD = 2, // channels of a thread
    GDN_STEP_SHARED = 48 << 10,
};

// ---- shapes --------------------------------------------------------------------------------------------------------------------

// What all threads of a unit know. It begins the unit's shared memory: registers are for the state.
struct gdn_unit {
    uint8_t *run;
    int32_t l, row, rows, fold;             // lane; its rows of the pass; pending rows
    int32_t key_head, head, heads, columns; // first value head, value heads, their dv laid end to end
    int32_t shift;                          // dv is 1 << shift
    int32_t spare;                          // to a multiple of 16 bytes
};

static_assert(sizeof(struct gdn_unit) % 16 == 0, "stages begin at a multiple of 16");

// The template's PER for keys of dk.
static __host__ __device__ inline int32_t gdn_step_per(int32_t dk)
{
    return dk <= 32 ? 4 : dk <= 64 ? 8 : 16;
}

// Bytes of shared memory of a unit, to begin at a multiple of 16.
static __host__ __device__ inline int32_t gdn_step_bytes(const struct gdn_args *a)
{
    const int32_t share = a->nv / a->nk, padded = STATE_PARTS * gdn_step_per(a->dk);
    return (int32_t)sizeof(struct gdn_unit) +
           4 * (GDN_STEP_FOLD * gdn_stage_stride(padded, share * a->dv, share, 0) +
                (GDN_STEP_DEPTH + GDN_STEP_ROWS) * gdn_stage_stride(padded, share * a->dv, share, 1));
}

// Whether units can do the three ops in passes of `rows`: by shapes alone.
static inline bool gdn_step_fits(const struct conv_args *conv, const struct gdn_args *gdn,
                                 const struct gated_norm_args *norm, int rows)
{
    if (conv->taps != GDN_STEP_TAPS || conv->dilation != 1 || conv->direct != gdn->direct || conv->y != gdn->c ||
        conv->ldy != gdn->ldc || conv->bias || !vec_fits(conv->w, 0, GDN_STEP_TAPS))
        return false;
    if (gdn->nk < 1 || gdn->nv % gdn->nk || gdn->dk != STATE_PARTS * gdn_step_per(gdn->dk) || gdn->dv < 16 ||
        GDN_STEP_COLUMNS % gdn->dv || gdn->state % 16 || gdn->nv / gdn->nk * GDN_STEP_ROWS > GDN_STEP_THREADS ||
        2 * gdn->dk + gdn->nv / gdn->nk * gdn->dv > GDN_STEP_HELD * GDN_STEP_THREADS ||
        conv->channels != 2 * gdn->nk * gdn->dk + gdn->nv * gdn->dv || gdn_step_bytes(gdn) > GDN_STEP_SHARED)
        return false;
    return norm->x == gdn->y && norm->ldx == gdn->ldy && norm->heads == gdn->nv && norm->dim == gdn->dv &&
           !norm->norm_after && vec_fits(norm->x, norm->ldx, norm->dim) && vec_fits(norm->y, norm->ldy, norm->dim) &&
           vec_fits(norm->z, norm->ldz, norm->dim) && vec_fits(norm->w, 0, norm->dim) &&
           rows <= conv->lanes.count * MAX_WINDOW;
}

// ---- a unit --------------------------------------------------------------------------------------------------------------------

struct gdn_ops {
    const struct conv_args &conv;
    const struct gdn_args &gdn;
    const struct gated_norm_args &norm;
};

// By one thread.
DEVICE void gdn_unit_open(const struct gdn_ops &o, struct gdn_unit *u, int32_t l, int32_t key_head)
{
    const struct lane *lane = o.gdn.lanes.lane[l];
    u->run = lane->run;
    u->l = l;
    u->row = o.gdn.pass->lane_first[l];
    u->rows = o.gdn.pass->lane_rows[l];
    u->fold = lane->fold;
    u->key_head = key_head;
    u->heads = o.gdn.nv / o.gdn.nk;
    u->head = key_head * u->heads;
    u->columns = u->heads * o.gdn.dv;
    u->shift = 0;
    while (1 << u->shift < o.gdn.dv)
        u->shift++;
}

// The stages of saved rows and of rows.
template <int PER> DEVICE struct gdn_stage gdn_unit_saved(const struct gdn_unit *u, float *memory)
{
    return gdn_stage_at(memory, STATE_PARTS * PER, u->columns, u->heads, 0);
}

template <int PER> DEVICE struct gdn_stage gdn_unit_stage(const struct gdn_unit *u, float *memory)
{
    return gdn_stage_at(memory + GDN_STEP_FOLD * gdn_unit_saved<PER>(u, memory).stride, STATE_PARTS * PER, u->columns,
                        u->heads, 1);
}

// The thread's first column of a turn, among the unit's.
DEVICE int32_t gdn_unit_column(int32_t turn)
{
    return turn * GDN_STEP_COLUMNS + (int32_t)threadIdx.x / STATE_PARTS * GDN_STEP_EACH;
}

// Where its state is at home; NULL: the unit has no such columns.
DEVICE float *gdn_unit_home(const struct gdn_ops &o, const struct gdn_unit *u, int32_t turn)
{
    const int32_t column = gdn_unit_column(turn), head = u->head + (column >> u->shift);
    float *state = reinterpret_cast<float *>(u->run + o.gdn.state);
    return column < u->columns ? state + (int64_t)head * o.gdn.dk * o.gdn.dv + (column & (o.gdn.dv - 1)) : NULL;
}

// Stores the state to `home` and loads the next one from `next`; NULL: not. A row of both at a time.
template <int PER>
DEVICE void gdn_unit_move(const struct gdn_args &a, float *home, float *next, float (*state)[GDN_STEP_EACH])
{
    const int32_t part = threadIdx.x % STATE_PARTS;
#pragma unroll
    for (int n = 0; n < PER; n++) {
        const int32_t i = state_element(n, part) * a.dv;
        if (home)
            state_store(home + i, state[n]);
        if (next)
            state_load(state[n], next + i);
    }
}

// ---- rows ----------------------------------------------------------------------------------------------------------------------

// Channel j of the unit: query, key, values.
struct gdn_channel {
    float *x; // in the stage, its rows `stride` apart
    int32_t stride, channel;
};

template <int PER>
DEVICE struct gdn_channel gdn_unit_channel(const struct gdn_ops &o, const struct gdn_unit *u, float *memory, int32_t j)
{
    const struct gdn_stage s = gdn_unit_stage<PER>(u, memory);
    const int32_t dk = STATE_PARTS * PER, i = j < dk ? j : j < 2 * dk ? j - dk : j - 2 * dk;
    struct gdn_channel c;
    c.x = (j < dk ? s.q : j < 2 * dk ? s.k : s.v) + i;
    c.stride = s.stride;
    c.channel = i + (j < dk       ? u->key_head * dk
                     : j < 2 * dk ? (o.gdn.nk + u->key_head) * dk
                                  : 2 * o.gdn.nk * dk + u->head * o.gdn.dv);
    return c;
}

// Asks for the inputs of rows at .. at + n - 1 of the lane, and the GDN_STEP_DEPTH before them.
DEVICE void gdn_unit_fetch(const struct conv_args &a, const struct gdn_unit *u, const struct gdn_channel &c, int32_t at,
                           int32_t n)
{
    // Rows before the lane's first are history and saved rows, laid end to end.
    const float *past = reinterpret_cast<const float *>(u->run + a.state) + (int64_t)u->fold * a.channels + c.channel;
    const float *here = a.u + (int64_t)(u->row + at) * a.ldu + c.channel;
#pragma unroll
    for (int d = 0; d < GDN_STEP_DEPTH; d++)
        __pipeline_memcpy_async(c.x + d * c.stride,
                                at == 0 ? past + (int64_t)d * a.channels : here + (d - GDN_STEP_DEPTH) * a.ldu, 4);
#pragma unroll 1
    for (int32_t r = 0; r < n; r++)
        __pipeline_memcpy_async(c.x + (GDN_STEP_DEPTH + r) * c.stride, here + r * a.ldu, 4);
}

// n rows of a channel: outputs take the places of inputs that are no longer wanted. last: nobody reads its history after, which
// moves on, as do its saved rows.
DEVICE void gdn_unit_convolve(const struct conv_args &a, const struct gdn_unit *u, const struct gdn_channel &c,
                              const vec<4> &w, int32_t at, int32_t n, bool last)
{
    float *history = reinterpret_cast<float *>(u->run + a.state) + c.channel, held[GDN_STEP_TAPS];
#pragma unroll
    for (int d = 0; d < GDN_STEP_DEPTH; d++) {
        held[d] = c.x[d * c.stride];
        if (last && !a.direct && at == 0 && u->fold > 0)
            history[d * a.channels] = held[d];
    }
#pragma unroll 1
    for (int32_t r = 0; r < n; r++) {
        held[GDN_STEP_DEPTH] = c.x[(GDN_STEP_DEPTH + r) * c.stride];
        c.x[r * c.stride] = conv_output<GDN_STEP_TAPS, 1>(w.v, held, 0.0f, a.activation);
        if (last && !a.direct)
            history[(int64_t)(GDN_STEP_DEPTH + at + r) * a.channels] = held[GDN_STEP_DEPTH];
#pragma unroll
        for (int d = 0; d < GDN_STEP_DEPTH; d++)
            held[d] = held[d + 1];
    }
#pragma unroll
    for (int d = 0; d < GDN_STEP_DEPTH; d++)
        if (last && a.direct && at + n == u->rows)
            history[d * a.channels] = held[d];
}

// Rows at .. at + n - 1 of the lane to the stage, queries and keys not normalised yet. Loads the state from `next`, unless NULL,
// while it waits for the inputs.
template <int PER>
DEVICE void gdn_unit_prepare(const struct gdn_ops &o, const struct gdn_unit *u, float *memory, int32_t at, int32_t n,
                             bool last, float *next, float (*state)[GDN_STEP_EACH])
{
    const int32_t thread = (int32_t)threadIdx.x, count = 2 * STATE_PARTS * PER + u->columns;
    const int32_t item = GDN_STEP_THREADS - 1 - thread; // the last threads have the fewest channels
    struct gdn_raw raw = {};
    vec<4> w[GDN_STEP_HELD];
#pragma unroll
    for (int m = 0; m < GDN_STEP_HELD; m++)
        if (thread + m * GDN_STEP_THREADS < count)
            w[m] =
                vec_load<4>(o.conv.w + gdn_unit_channel<PER>(o, u, memory, thread + m * GDN_STEP_THREADS).channel * 4);
#pragma unroll 1
    for (int32_t j = thread; j < count; j += GDN_STEP_THREADS)
        gdn_unit_fetch(o.conv, u, gdn_unit_channel<PER>(o, u, memory, j), at, n);
    __pipeline_commit();
    if (item < n * u->heads)
        raw = gdn_raw_of(&o.gdn, u->row + at + item / u->heads, u->head + item % u->heads);
    if (next)
        gdn_unit_move<PER>(o.gdn, NULL, next, state);
    __pipeline_wait_prior(0);
#pragma unroll
    for (int m = 0; m < GDN_STEP_HELD; m++)
        if (thread + m * GDN_STEP_THREADS < count)
            gdn_unit_convolve(o.conv, u, gdn_unit_channel<PER>(o, u, memory, thread + m * GDN_STEP_THREADS), w[m], at,
                              n, last);
    if (item < n * u->heads) {
        const struct gdn_stage s = gdn_unit_stage<PER>(u, memory);
        const int32_t place = item / u->heads * s.stride + item % u->heads;
        gdn_raw_scalars(raw, &s.decay[place], &s.beta[place]);
    }
}

// Number j of the unit's part of a saved row: key, values, decays, betas.
struct gdn_kept {
    float *x;   // in a stage
    int64_t at; // in the row
};

template <int PER>
DEVICE struct gdn_kept gdn_unit_kept(const struct gdn_args &a, const struct gdn_unit *u, const struct gdn_stage &s,
                                     int32_t j)
{
    const int32_t dk = STATE_PARTS * PER, i = j < dk ? j : j < dk + u->columns ? j - dk : j - dk - u->columns;
    const int32_t keys = a.nk * dk, values = a.nv * a.dv;
    if (j < dk)
        return {s.k + i, u->key_head * dk + i};
    if (j < dk + u->columns)
        return {s.v + i, keys + u->head * a.dv + i};
    return {s.decay + i, keys + values + u->head + i + (i < u->heads ? 0 : a.nv - u->heads)};
}

// Stages saved rows from row `base` on; commits.
template <int PER>
DEVICE void gdn_unit_pending(const struct gdn_ops &o, const struct gdn_unit *u, float *memory, int32_t base)
{
    const struct gdn_stage s = gdn_unit_saved<PER>(u, memory);
    const int32_t n = u->fold - base < GDN_STEP_FOLD ? u->fold - base : GDN_STEP_FOLD;
    const int64_t ld = gdn_saved_width(&o.gdn);
    const float *saved = gdn_saved(&o.gdn, u->run) + base * ld;
#pragma unroll 1
    for (int32_t j = threadIdx.x; j < STATE_PARTS * PER + u->columns + 2 * u->heads; j += GDN_STEP_THREADS) {
        const struct gdn_kept kept = gdn_unit_kept<PER>(o.gdn, u, s, j);
#pragma unroll 1
        for (int32_t r = 0; r < n; r++)
            __pipeline_memcpy_async(kept.x + r * s.stride, saved + r * ld + kept.at, 4);
    }
    __pipeline_commit();
}

// Saves n staged rows as rows at .. of the window: those parts that nobody reads after the turn.
template <int PER>
DEVICE void gdn_unit_keep(const struct gdn_ops &o, const struct gdn_unit *u, float *memory, int32_t turn, bool whole,
                          int32_t at, int32_t n)
{
    const struct gdn_stage s = gdn_unit_stage<PER>(u, memory);
    const int64_t ld = gdn_saved_width(&o.gdn);
    const int32_t first = turn * GDN_STEP_COLUMNS, dk = STATE_PARTS * PER;
    float *saved = gdn_saved(&o.gdn, u->run) + at * ld;
#pragma unroll 1
    for (int32_t j = threadIdx.x; j < dk + u->columns + 2 * u->heads; j += GDN_STEP_THREADS) {
        const struct gdn_kept kept = gdn_unit_kept<PER>(o.gdn, u, s, j);
        const bool value = j >= dk && j < dk + u->columns;
        const bool over =
            value ? j - dk >= first && j - dk < first + GDN_STEP_COLUMNS : first + GDN_STEP_COLUMNS >= u->columns;
#pragma unroll 1
        for (int32_t r = 0; (whole || over) && r < n; r++)
            saved[r * ld + kept.at] = kept.x[r * s.stride];
    }
}

// Folds what is pending into the turn's columns. The first saved rows are staged.
template <int PER>
DEVICE void gdn_unit_fold(const struct gdn_ops &o, const struct gdn_unit *u, float *memory, int32_t turn,
                          float (*state)[GDN_STEP_EACH])
{
#pragma unroll 1
    for (int32_t base = 0; base < u->fold; base += GDN_STEP_FOLD) {
        if (base > 0) {
            some_wait(GDN_STEP_THREADS);
            gdn_unit_pending<PER>(o, u, memory, base);
            __pipeline_wait_prior(0);
            some_wait(GDN_STEP_THREADS);
        }
        const int32_t column = gdn_unit_column(turn), n = u->fold - base;
        const struct gdn_stage s = gdn_stage_of(gdn_unit_saved<PER>(u, memory), column, column >> u->shift);
        if (column < u->columns)
            gdn_fold<PER, false>(&s, n < GDN_STEP_FOLD ? n : GDN_STEP_FOLD, state, threadIdx.x % STATE_PARTS);
    }
}

// The heads of columns first .. first + width - 1 of n staged rows of outputs, a warp each.
template <int PER>
DEVICE void gdn_unit_norm(const struct gdn_ops &o, const struct gdn_unit *u, float *memory, int32_t first,
                          int32_t width, int32_t at, int32_t n)
{
    const struct gated_norm_args *a = &o.norm;
    const struct gdn_stage s = gdn_unit_stage<PER>(u, memory);
    const int32_t lane = threadIdx.x % WARP, heads = width >> u->shift;
#pragma unroll 1
    for (int32_t item = (int32_t)threadIdx.x / WARP; item < n * heads; item += GDN_STEP_WARPS) {
        const int32_t t = item / heads, column = first + item % heads * a->dim, place = u->head * a->dim + column;
        const int64_t r = u->row + at + t;
        const float *z = a->z + r * a->ldz + place;
        gated_norm_head<4, false, true>(a, s.v + t * s.stride + column, z, a->w, a->y + r * a->ldy + place,
                                        gated_norm_take<4>(z, a->w, a->dim, lane), lane, WARP, NULL);
    }
}

// Whether all rows and pending rows of the lane are staged at once: then turns share them, and the first one saves and the last
// one normalises for all.
DEVICE bool gdn_unit_whole(const struct gdn_unit *u)
{
    return u->rows <= GDN_STEP_ROWS && u->fold <= GDN_STEP_FOLD;
}

// Brings rows at .. at + n - 1 of the lane and, before the first of them, what is pending; folds that.
template <int PER>
DEVICE void gdn_unit_begin(const struct gdn_ops &o, const struct gdn_unit *u, float *memory, int32_t turn, int32_t at,
                           int32_t n, float (*state)[GDN_STEP_EACH])
{
    const bool whole = gdn_unit_whole(u), anew = !whole || turn == 0;
    if (!whole && (at > 0 || turn > 0))
        some_wait(GDN_STEP_THREADS);
    if (anew) {
        const bool last = whole || (turn + 1) * GDN_STEP_COLUMNS >= u->columns;
        if (at == 0 && u->fold > 0)
            gdn_unit_pending<PER>(o, u, memory, 0);
        gdn_unit_prepare<PER>(o, u, memory, at, n, last, at == 0 && turn == 0 ? gdn_unit_home(o, u, 0) : NULL, state);
        some_wait(GDN_STEP_THREADS);
        const struct gdn_stage s = gdn_unit_stage<PER>(u, memory);
        gdn_stage_keys<1>(&s, s.q, s.k, s.stride, n, STATE_PARTS * PER, STATE_PARTS * PER, GDN_STEP_THREADS);
    }
    if (at == 0 && u->fold > 0) {
        gdn_unit_fold<PER>(o, u, memory, turn, state);
        if (!o.gdn.direct)
            gdn_unit_move<PER>(o.gdn, gdn_unit_home(o, u, turn), NULL, state);
    }
    if (anew)
        some_wait(GDN_STEP_THREADS);
}

// Rows at .. at + n - 1 of the lane through the turn's columns.
template <int PER>
DEVICE void gdn_unit_rows(const struct gdn_ops &o, const struct gdn_unit *u, float *memory, int32_t turn, int32_t at,
                          int32_t n, float (*state)[GDN_STEP_EACH])
{
    gdn_unit_begin<PER>(o, u, memory, turn, at, n, state);
    if (!o.gdn.direct && (turn == 0 || !gdn_unit_whole(u))) {
        gdn_unit_keep<PER>(o, u, memory, turn, gdn_unit_whole(u), at, n);
        some_wait(GDN_STEP_THREADS);
    }
    const int32_t column = gdn_unit_column(turn);
    if (column < u->columns) {
        const struct gdn_stage s = gdn_stage_of(gdn_unit_stage<PER>(u, memory), column, column >> u->shift);
        gdn_run<PER, false>(&s, n, state, threadIdx.x % STATE_PARTS, GDN_STEP_EACH, s.v, s.stride);
    }
    const bool whole = gdn_unit_whole(u);
    const int32_t left = u->columns - turn * GDN_STEP_COLUMNS;
    if (!whole || left <= GDN_STEP_COLUMNS) {
        some_wait(GDN_STEP_THREADS);
        gdn_unit_norm<PER>(o, u, memory, whole ? 0 : turn * GDN_STEP_COLUMNS,
                           whole                     ? u->columns
                           : left < GDN_STEP_COLUMNS ? left
                                                     : GDN_STEP_COLUMNS,
                           at, n);
    }
}

// conv, gdn and gated_norm of lane l and one key head, for shapes that gdn_step_fits() takes, dk = STATE_PARTS PER. All of the
// block's first GDN_STEP_THREADS threads call it, and no other; it uses barrier 1 (some_wait) and gdn_step_bytes() of `shared`,
// which nobody else touches from a barrier before the call to one after it.
template <int PER>
DEVICE void gdn_step_unit(const struct conv_args &conv, const struct gdn_args &gdn, const struct gated_norm_args &norm,
                          int32_t l, int32_t key_head, float *shared)
{
    if (!gdn.lanes.lane[l] || gdn.pass->lane_rows[l] == 0)
        return;
    const struct gdn_ops o = {conv, gdn, norm};
    struct gdn_unit *u = reinterpret_cast<struct gdn_unit *>(shared);
    float *memory = shared + sizeof *u / sizeof *shared, state[PER][GDN_STEP_EACH];
    if (threadIdx.x == 0)
        gdn_unit_open(o, u, l, key_head);
    some_wait(GDN_STEP_THREADS);
#pragma unroll 1
    for (int32_t turn = 0; turn * GDN_STEP_COLUMNS < u->columns; turn++) {
#pragma unroll 1
        for (int32_t at = 0; at < u->rows; at += GDN_STEP_ROWS)
            gdn_unit_rows<PER>(o, u, memory, turn, at, u->rows - at < GDN_STEP_ROWS ? u->rows - at : GDN_STEP_ROWS,
                               state);
        gdn_unit_move<PER>(gdn, gdn.direct ? gdn_unit_home(o, u, turn) : NULL, gdn_unit_home(o, u, turn + 1), state);
    }
}

// Asks for the unit's state and weights, by the same threads, while other work is under way: a hint, which changes no bits.
// lane->run never changes, so it may come before pdl_wait().
DEVICE void gdn_step_prefetch(const struct conv_args &conv, const struct gdn_args &gdn, int32_t l, int32_t key_head)
{
    if (!gdn.lanes.lane[l])
        return;
    const int32_t share = gdn.nv / gdn.nk, first = (int32_t)threadIdx.x * 128, step = GDN_STEP_THREADS * 128;
    const int32_t size = share * gdn.dk * gdn.dv * 4, key = gdn.dk * GDN_STEP_TAPS * 4;
    const int32_t values = share * gdn.dv * GDN_STEP_TAPS * 4;
    const uint8_t *state = gdn.lanes.lane[l]->run + gdn.state + (int64_t)key_head * size;
    const uint8_t *w = reinterpret_cast<const uint8_t *>(conv.w);
    for (int32_t i = first; i < size; i += step)
        prefetch_l2(state + i);
    for (int32_t i = first; i < key; i += step) {
        prefetch_l2(w + key_head * key + i);
        prefetch_l2(w + (gdn.nk + key_head) * key + i);
    }
    for (int32_t i = first; i < values; i += step)
        prefetch_l2(w + 2 * gdn.nk * key + key_head * values + i);
}

#endif
