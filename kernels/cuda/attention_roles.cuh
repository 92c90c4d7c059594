// SPDX-License-Identifier: Apache-2.0
//
// Attention over bf16 caches on the matrix units where a block has a multiprocessor for itself: as attention_mma_kernel
// (attention_mma.cuh), but no warp waits for all others. Some warps copy tiles of keys, some of values, eight multiply keys by queries, some
// take the softmax, and eight multiply values by weights: each is at a tile of its own, and they meet at turns of places in shared memory
// (turns.cuh) alone.
//
// Keys are the left operand of their product, so that up to eight query heads are half the work of sixteen: N is how many octets of heads
// there are.
// Invariant: the sums of attention_tile.cuh in the same order. A warp of scores has its dims of the queries for good, one of values its
// dims, one of weights its heads.

#ifndef CUDA_ATTENTION_ROLES_CUH
#define CUDA_ATTENTION_ROLES_CUH

#include "kernels/cuda/attention_sums.cuh"
#include "kernels/cuda/turns.cuh"

enum {
    ROLE_COPIES = 2,                    // warps that copy keys, and as many that copy values
    ROLE_ROWS = MMA_TILE / ROLE_COPIES, // of a tile, of such a warp
    ROLE_AHEAD = WARP / ROLE_ROWS,      // tiles whose rows it finds at once, one a lane
    ROLE_PAD = 4,                       // numbers behind a head's scores, against bank conflicts
};

// Warps, in this order: of values, which also end the block's row; of scores; of weights, with MMA_EACH heads; those that copy.
template <int N> struct role_warps {
    static constexpr int HEADS = 8 * N, WEIGHTS = HEADS / MMA_EACH, SCORES_FROM = MMA_WARPS,
                         WEIGHTS_FROM = 2 * MMA_WARPS, COPIES_FROM = WEIGHTS_FROM + WEIGHTS,
                         THREADS = (COPIES_FROM + 2 * ROLE_COPIES) * WARP;
};

// Of a place: that it is full, and that it is free again.
struct role_turns {
    uint64_t full, free;
};

// The weights of a tile, in two parts, and what the sums before them are multiplied with; behind a unit's last tile also how it is added
// to those that wait (attention_long.cuh).
struct role_weights {
    __align__(16) uint16_t part[2][MMA_HEADS][MMA_TILE + MMA_PAD];
    float keep[MMA_HEADS];
    float2 fold[LONG_LEVELS][MMA_HEADS];
};

// What a block does.
struct role_task {
    struct long_place place;
    struct attention_heads heads;
    struct attention_row row;
    struct mma_span span;
    struct long_units units;
};

// Shared memory of a block, followed by KEYS tiles of keys and VALUES of values.
template <int DIM, int N> struct role_space : mma_ends<DIM> {
    static constexpr int WAYS = mma_share<DIM>::WAYS, SCORES = 2, WEIGHTS = 3;
    static constexpr int KEYS = DIM < 256 ? 8 : N == 1 ? 6 : 5, VALUES = DIM < 256 ? 8 : N == 1 ? 5 : 4;
    __align__(16) float score[SCORES][WAYS][8 * N][MMA_TILE + ROLE_PAD];
    struct role_weights weight[WEIGHTS];
    struct role_task task;
    struct role_turns key_turn[KEYS], value_turn[VALUES], score_turn[SCORES], weight_turn[WEIGHTS];
};

template <int DIM, int N> static constexpr size_t role_bytes(void)
{
    return sizeof(struct role_space<DIM, N>) +
           (role_space<DIM, N>::KEYS + role_space<DIM, N>::VALUES) * sizeof(struct mma_tile<DIM>);
}

// One of COUNT places, which are used in turn.
template <int COUNT> struct role_place {
    int32_t at, turn;

    __device__ __forceinline__ void next(void)
    {
        at = at + 1 < COUNT ? at + 1 : 0;
        turn += at == 0;
    }
    __device__ __forceinline__ void full(struct role_turns *turns) const // waits until it is
    {
        turn_wait(&turns[at].full, turn);
    }
    __device__ __forceinline__ void free(struct role_turns *turns) const
    {
        turn_wait(&turns[at].free, turn + 1);
    }
};

DEVICE void role_open(struct role_turns *turns, int count, unsigned full, unsigned free)
{
    for (int i = 0; i < count; i++) {
        turn_open(&turns[i].full, full * ARRIVALS);
        turn_open(&turns[i].free, free * ARRIVALS);
    }
}

template <int DIM, int N> DEVICE void role_open_all(struct role_space<DIM, N> *s)
{
    constexpr unsigned WAYS = mma_share<DIM>::WAYS;
    role_open(s->key_turn, role_space<DIM, N>::KEYS, ROLE_COPIES, WAYS);
    role_open(s->value_turn, role_space<DIM, N>::VALUES, ROLE_COPIES, MMA_WARPS);
    role_open(s->score_turn, role_space<DIM, N>::SCORES, WAYS, role_warps<N>::WEIGHTS);
    role_open(s->weight_turn, role_space<DIM, N>::WEIGHTS, role_warps<N>::WEIGHTS, MMA_WARPS);
    turn_opened();
}

// ---- warps that copy ---------------------------------------------------------------------------------------------------------------

// Where a row is: what the page table says, and the row's place in the page.
struct role_found {
    uint32_t page;
    int32_t at;
};

// What a warp copies, keys or values: `copier` is which of those warps it is, `base` where they begin in page 0, `step` bytes from a
// position to the next one in a page.
struct role_source {
    const struct attention_row *row;
    const uint8_t *base;
    int64_t step;
    int32_t copier;
};

// The lane's row of tiles first .. first + ROLE_AHEAD - 1; beyond the end the last one.
DEVICE struct role_found role_find(const struct attention_args *a, const struct role_source *source,
                                   const struct mma_span &span, int32_t first)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    const int32_t i =
        span.begin + (first + lane / ROLE_ROWS) * MMA_TILE + source->copier * ROLE_ROWS + lane % ROLE_ROWS;
    const uint32_t position = (uint32_t)attention_position(a, source->row, i < span.end ? i : span.end - 1);
    const uint32_t page = position / (uint32_t)a->lanes.page;
    return {source->row->table[page], (int32_t)(position - page * (uint32_t)a->lanes.page)};
}

DEVICE const uint8_t *role_row(const struct attention_args *a, const struct role_source *source,
                               const struct role_found &found)
{
    return source->base + (int64_t)found.page * a->lanes.page_bytes + found.at * source->step;
}

// When the warp has asked for all that may be read before.
DEVICE void role_wait(void)
{
    pdl_wait();
    pdl_trigger();
}

// Asks for the warp's rows of a tile, of which `live` are positions; the others become zeros. mine: of lane `first` + r, row r; `even` says
// that they follow each other at the distance of two rows of a page, so that one lane can ask for all without looking.
template <int DIM>
DEVICE void role_take(uint64_t *turn, struct mma_tile<DIM> *tile, const uint8_t *mine, const struct role_source *source,
                      int32_t first, int32_t live, bool even)
{
    constexpr int CHUNKS = DIM / 8;
    const int32_t lane = (int32_t)threadIdx.x % WARP, r = lane - first;
    uint16_t(*to)[DIM + MMA_PAD] = tile->row + source->copier * ROLE_ROWS;
    if (even && live >= ROLE_ROWS) {
        const uint8_t *from = (const uint8_t *)__shfl_sync(WHOLE_WARP, (unsigned long long)mine, first);
        if (turn_taker()) {
            turn_come_bytes(turn, ROLE_ROWS * DIM * 2);
#pragma unroll
            for (int i = 0; i < ROLE_ROWS; i++)
                turn_take(turn, to[i], from + i * source->step, DIM * 2);
        } else {
            turn_come(turn);
        }
        __syncwarp();
        return;
    }
    const int32_t rows = live < 0 ? 0 : live < ROLE_ROWS ? live : ROLE_ROWS;
    for (int32_t i = rows * CHUNKS + lane; i < ROLE_ROWS * CHUNKS; i += WARP)
        *reinterpret_cast<uint4 *>(&to[i / CHUNKS][i % CHUNKS * 8]) = make_uint4(0, 0, 0, 0);
    __syncwarp();
    if (lane == 0)
        turn_come_bytes(turn, (unsigned)(rows * DIM * 2));
    else
        turn_come(turn);
    __syncwarp();
    if (r >= 0 && r < rows)
        turn_take(turn, to[r], mine, DIM * 2);
}

// found: of the first tiles and the next ones.
template <int DIM, int COUNT>
DEVICE void role_copies(const struct attention_args *a, struct role_turns *turns, struct mma_tile<DIM> *tiles,
                        const struct role_source *source, const struct mma_span &span, struct role_found *found)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    struct role_place<COUNT> to = {
        0, 0
    };
    const uint8_t *mine = NULL;
    bool even = false;
    for (int32_t t = 0; t < span.tiles; t++, to.next()) {
        const int32_t first = t % ROLE_AHEAD * ROLE_ROWS;
        if (t == COUNT)
            role_wait();
        if (first == 0) {
            mine = role_row(a, source, found[0]);
            found[0] = found[1];
            found[1] = role_find(a, source, span, t + 2 * ROLE_AHEAD);
            const unsigned long long before = __shfl_sync(WHOLE_WARP, (unsigned long long)mine, lane & -ROLE_ROWS);
            even = !__any_sync(WHOLE_WARP, mine != (const uint8_t *)before + lane % ROLE_ROWS * source->step);
        }
        to.free(turns);
        role_take<DIM>(&turns[to.at].full, tiles + to.at, mine, source, first,
                       span.end - span.begin - t * MMA_TILE - source->copier * ROLE_ROWS, even);
    }
    if (span.tiles <= COUNT)
        role_wait();
}

// A warp that copies. What it copies may be read before the wait if a->early says so.
template <int DIM, int N>
DEVICE void role_copier(const struct attention_args *a, struct role_space<DIM, N> *s, struct mma_tile<DIM> *keys,
                        const struct role_task &task, int32_t warp)
{
    const bool values = warp >= ROLE_COPIES;
    const uint8_t *base = a->lanes.pages + kv_offset(&a->layout, a->lanes.page, values ? KV_VALUES : KV_KEYS);
    const struct role_source source = {&task.row, base + 2 * task.heads.kv_head * DIM, kv_bytes(&a->layout, KV_KEYS),
                                       warp % ROLE_COPIES};
    struct role_found found[2] = {};
#pragma unroll
    for (int i = 0; i < 2 && task.span.tiles > 0; i++)
        found[i] = role_find(a, &source, task.span, i * ROLE_AHEAD);
    if (!a->early) {
#pragma unroll
        for (int i = 0; i < 2 && task.span.tiles > 0; i++)
#pragma unroll
            for (int at = 0; at < 2 * DIM; at += MMA_LINE)
                prefetch_l2(role_row(a, &source, found[i]) + at);
        role_wait();
    }
    if (values)
        role_copies<DIM, role_space<DIM, N>::VALUES>(a, s->value_turn, keys + role_space<DIM, N>::KEYS, &source,
                                                     task.span, found);
    else
        role_copies<DIM, role_space<DIM, N>::KEYS>(a, s->key_turn, keys, &source, task.span, found);
}

// ---- warps of scores ---------------------------------------------------------------------------------------------------------------

// The warp's dims of the queries: pair k of a step and an octet has head g, dims 2 t + 8 k and the next. Heads that do not exist are zeros.
template <int DIM, int N>
DEVICE void role_queries(const struct attention_args *a, int64_t r, const struct attention_heads *heads, int32_t warp,
                         float2 (*q)[N][2])
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    const float *from = a->q + r * a->ldq + (int64_t)heads->first * DIM + warp * mma_share<DIM>::WIDTH + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < mma_share<DIM>::STEPS; step++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int32_t h = n * 8 + lane / 4;
                q[step][n][k] = {0, 0};
                if (h < heads->count)
                    q[step][n][k] = __ldcg(reinterpret_cast<const float2 *>(from + h * DIM + step * 16 + k * 8));
            }
}

// The same scaled and in parts, as fragments.
template <int STEPS, int N> DEVICE void role_split(float scale, float2 (*q)[N][2], uint32_t (*parts)[MMA_Q_PARTS][N][2])
{
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float low = f_mul(q[step][n][k].x, scale), high = f_mul(q[step][n][k].y, scale);
#pragma unroll
                for (int p = 0; p < MMA_Q_PARTS; p++) {
                    const uint32_t pair = mma_pair(low, high);
                    parts[step][p][n][k] = pair;
                    low = __fadd_rn(low, -__uint_as_float(pair << 16));
                    high = __fadd_rn(high, -__uint_as_float(pair & 0xffff0000u));
                }
            }
}

// The warp's share of the scores of all tiles: key g or g + 8 of each half of a tile, heads 2 t and 2 t + 1 of each octet.
template <int DIM, int N>
DEVICE void role_scores(struct role_space<DIM, N> *s, const struct mma_tile<DIM> *keys, int32_t tiles, int32_t warp,
                        const uint32_t (*q)[MMA_Q_PARTS][N][2])
{
    constexpr int STEPS = mma_share<DIM>::STEPS;
    const int32_t lane = (int32_t)threadIdx.x % WARP, g = lane / 4;
    struct role_place<role_space<DIM, N>::KEYS> key = {
        0, 0
    };
    struct role_place<role_space<DIM, N>::SCORES> to = {
        0, 0
    };
    for (int32_t t = 0; t < tiles; t++, key.next(), to.next()) {
        uint32_t a[STEPS][2][4];
        float c[2][N][4] = {};
        key.full(s->key_turn);
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                mma_load<false>(a[step][half],
                                mma_place_of(&keys[key.at].row[half * 16 + lane % 16][warp * mma_share<DIM>::WIDTH +
                                                                                      step * 16 + lane / 16 * 8]));
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int p = 0; p < MMA_Q_PARTS; p++)
#pragma unroll
                for (int half = 0; half < 2; half++)
#pragma unroll
                    for (int n = 0; n < N; n++)
                        mma_bf16(c[half][n], a[step][half], q[step][p][n][0], q[step][p][n][1]);
        turn_come_warp(&s->key_turn[key.at].free);
        to.free(s->score_turn);
        float(*score)[MMA_TILE + ROLE_PAD] = s->score[to.at][warp];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    score[n * 8 + lane % 4 * 2 + i % 2][half * 16 + i / 2 * 8 + g] = c[half][n][i];
        turn_come_warp(&s->score_turn[to.at].full);
    }
}

// ---- warps of weights --------------------------------------------------------------------------------------------------------------

// The softmax of the warp's heads over all tiles, a position a lane.
template <int DIM, int N>
DEVICE void role_softmax(struct role_space<DIM, N> *s, const struct mma_span &span, const struct long_units &units,
                         int32_t warp, struct mma_sums *sums)
{
    struct role_place<role_space<DIM, N>::SCORES> from = {
        0, 0
    };
    struct role_place<role_space<DIM, N>::WEIGHTS> to = {
        0, 0
    };
    struct mma_sums held[LONG_LEVELS];
    int32_t unit = 0, end = long_end(units, 0);
    for (int32_t t = 0; t < span.tiles; t++, from.next(), to.next()) {
        float score[MMA_EACH];
        struct role_weights *w = &s->weight[to.at];
        from.full(s->score_turn);
#pragma unroll
        for (int n = 0; n < MMA_EACH; n++)
            score[n] = mma_score_sum<mma_share<DIM>::WAYS, 8 * N>(s->score[from.at], warp * MMA_EACH + n);
        turn_come_warp(&s->score_turn[from.at].free);
        to.free(s->weight_turn);
        mma_weigh(score, span.end - span.begin - t * MMA_TILE, warp, sums, w->keep, w->part);
        if (t + 1 == end) {
            const bool last = unit + 1 == units.count;
            long_close(w->fold, held, sums, warp, unit++, last);
            if (!last)
                end = long_end(units, unit);
        }
        turn_come_warp(&s->weight_turn[to.at].full);
    }
}

// ---- warps of values ---------------------------------------------------------------------------------------------------------------

// The warp's dims of the block's weighted values.
template <int DIM, int N>
DEVICE void role_values(struct role_space<DIM, N> *s, const struct mma_tile<DIM> *values, int32_t tiles,
                        const struct long_units &units, int32_t warp, float (*out)[4])
{
    constexpr int COLUMNS = mma_share<DIM>::COLUMNS;
    struct role_place<role_space<DIM, N>::VALUES> value = {
        0, 0
    };
    struct role_place<role_space<DIM, N>::WEIGHTS> from = {
        0, 0
    };
    float held[LONG_LEVELS][COLUMNS][4];
    int32_t unit = 0, end = long_end(units, 0);
    for (int32_t t = 0; t < tiles; t++, value.next(), from.next()) {
        const struct role_weights *w = &s->weight[from.at];
        from.full(s->weight_turn);
        value.full(s->value_turn);
        if (warp < mma_share<DIM>::WAYS)
            mma_values<DIM>(w->part, w->keep, values + value.at, out);
        turn_come_warp(&s->value_turn[value.at].free);
        if (t + 1 == end) {
            const bool last = unit + 1 == units.count;
            long_fold<COLUMNS>(w->fold, held, out, unit++, last);
            if (!last)
                end = long_end(units, unit);
        }
        turn_come_warp(&s->weight_turn[from.at].free);
    }
}

// ---- the kernel --------------------------------------------------------------------------------------------------------------------

// What the block does, which many steps say: the warps that copy find out, and tell the others.
DEVICE struct role_task role_task_of(const struct attention_args *a, int32_t block)
{
    struct role_task task = {};
    task.place = long_place_of(a, block / MMA_PARTS);
    if (task.place.leave)
        return task;
    if (!task.place.real || !task.place.dense)
        pdl_wait();
    if (!task.place.real)
        return task;
    task.heads = attention_heads_of(a, MMA_HEADS, task.place.group);
    task.row = attention_row_at(a, task.place.r, task.place.lane, task.place.position,
                                task.place.dense ? -1 : __ldcg(a->counts + task.place.r));
    task.span = long_span<MMA_PARTS>(task.place, task.row.count, block % MMA_PARTS, &task.units);
    return task;
}

// The block's shared memory as a place that the compiler keeps in a register instead of asking for it wherever it is used.
DEVICE uint8_t *role_room(uint8_t *room)
{
#if defined(CUDA_FIBERS)
    return room;
#else
    uint32_t at = (uint32_t)__cvta_generic_to_shared(room);
    asm volatile("" : "+r"(at));
    return (uint8_t *)__cvta_shared_to_generic(at);
#endif
}

template <int DIM, int N>
__global__ void __launch_bounds__(role_warps<N>::THREADS, 1)
    attention_roles_kernel(const __grid_constant__ struct attention_args a)
{
    SHARED_BYTES(bytes);
    constexpr int PARTS = MMA_PARTS, STEPS = mma_share<DIM>::STEPS, HEADS = role_warps<N>::HEADS;
    uint8_t *room = role_room(bytes);
    struct role_space<DIM, N> *s = reinterpret_cast<struct role_space<DIM, N> *>(room);
    struct mma_tile<DIM> *keys = reinterpret_cast<struct mma_tile<DIM> *>(room + sizeof *s);
    const int32_t part = (int32_t)blockIdx.x % PARTS, warp = (int32_t)threadIdx.x / WARP;
    const bool copies = warp >= role_warps<N>::COPIES_FROM;
    struct role_task task;
    if (threadIdx.x == 0)
        role_open_all<DIM, N>(s);
    if (copies) {
        task = role_task_of(&a, (int32_t)blockIdx.x);
        if (threadIdx.x == role_warps<N>::COPIES_FROM * WARP) {
            box_open(&s->came, mma_bytes<DIM, PARTS, HEADS>(task.heads.count));
            s->task = task;
        }
    }
    __syncthreads();
    if (s->task.place.leave)
        return; // others wait
    if (!s->task.place.real) {
        role_wait();
        return;
    }
    cluster_arrive_read();
    if (copies) {
        role_copier<DIM, N>(&a, s, keys, task, warp - role_warps<N>::COPIES_FROM);
        cluster_wait();
        return;
    }
    const struct mma_span span = s->task.span;
    const struct long_units units = s->task.units;
    if (!a.early)
        pdl_wait();
    if (warp >= role_warps<N>::WEIGHTS_FROM) {
        const int32_t w = warp - role_warps<N>::WEIGHTS_FROM;
        struct mma_sums sums = mma_none();
        role_wait();
        role_softmax<DIM, N>(s, span, units, w, &sums);
        cluster_wait(); // all blocks have opened their boxes
        mma_put_sums<DIM, PARTS>(s, &sums, w, part);
        return;
    }
    const struct attention_heads heads = s->task.heads;
    if (warp >= role_warps<N>::SCORES_FROM) {
        const int32_t w = warp - role_warps<N>::SCORES_FROM;
        if (w < mma_share<DIM>::WAYS) {
            float2 x[STEPS][N][2];
            uint32_t q[STEPS][MMA_Q_PARTS][N][2];
            role_queries<DIM, N>(&a, s->task.place.r, &heads, w, x);
            role_wait();
            role_split<STEPS, N>(a.scale, x, q);
            role_scores<DIM, N>(s, keys, span.tiles, w, q);
        } else {
            role_wait();
        }
        cluster_wait();
        return;
    }
    const struct mma_item first = mma_item_of(&a, s->task.place.r, &heads, DIM / PARTS, part, (int32_t)threadIdx.x);
    float out[mma_share<DIM>::COLUMNS][4] = {};
    role_wait();
    role_values<DIM, N>(s, keys + role_space<DIM, N>::KEYS, span.tiles, units, warp, out);
    cluster_wait();
    mma_put_out<DIM, PARTS>(s, out, heads.count, part);
    const struct long_place place = s->task.place;
    mma_end<DIM, PARTS>(&a, s, place, &heads, first);
}

#endif
