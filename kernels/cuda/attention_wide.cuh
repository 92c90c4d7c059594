// SPDX-License-Identifier: Apache-2.0
//
// Attention of prompt rows on warpgroups (sm_90a): neighbouring pairs of a row and a query head of one kv head, as in attention_dense.cuh,
// but a warpgroup has 64 of them; two share a block and its tiles where there are many, one a tile's keys or values behind the other.
//
// Rows with choices take all tiles of 64 positions that one of the block's rows has a chosen block in, and mask what they did not
// choose themselves. That costs what the tiles cost, so only rows before WIDE_POSITIONS go here; those behind bring what they chose
// alone (attention_rows.cuh). A row's tiles are summed in chunks, whose sums are added in ascending order: where rows are few, a cluster of
// blocks has a chunk each.
// Invariant: tiles lie at absolute multiples of 64 positions and ascend. A tile of which a pair has nothing leaves its sums as they
// are: its weights are 0 and the factor is 1. So no bit depends on the rows that share a block. Which way a row goes follows from its position.

#ifndef CUDA_ATTENTION_WIDE_CUH
#define CUDA_ATTENTION_WIDE_CUH

#include "kernels/cuda/attention_dense.cuh"
#include "kernels/cuda/attention_wgmma.cuh"

enum {
    WIDE_POSITIONS = 8192,
    WIDE_SLOTS = 3,  // tiles in shared memory: two at work, one on its way
    WIDE_CHUNK = 32, // tiles that a row's sums are made of, before they are added to those of the chunks before
    WIDE_PARTS = WIDE_POSITIONS / (WIDE_CHUNK * DENSE_TILE),
    WIDE_ROWS = 12, // that a block has pairs of, at most, if they have choices
    WIDE_RATIO = 4, // positions of a block that is chosen: two words of bits are four tiles
    WIDE_BITS = DENSE_TILE / WIDE_RATIO,
};

// What the block's rows chose of a chunk: bit b % 32 of word b / 32 is block b. live: tiles of which a row chose something.
struct wide_choice {
    uint32_t word[WIDE_ROWS][WIDE_CHUNK * WIDE_BITS / 32];
    uint32_t live;
};

template <int DIM, int GROUPS> static constexpr size_t wide_bytes(void)
{
    return (GROUPS * DENSE_PARTS + WIDE_SLOTS) * sizeof(struct wide_tile<DIM>) + sizeof(struct wide_choice) +
           WIDE_ALIGN;
}

// ---- copies --------------------------------------------------------------------------------------------------------------------

// Asks for EACH rows of a tile, by a warp of a group; `offset` is that of values behind keys.
template <int DIM, bool F32, int EACH> DEVICE void wide_copy(struct wide_tile<DIM> *to, uint64_t place, int64_t offset)
{
    constexpr int PIECES = DIM / DENSE_PIECE;
    const int32_t thread = dense_opaque((int32_t)threadIdx.x), lane = thread % WARP, piece = lane % PIECES,
                  first = thread / WARP % WIDE_WARPS * EACH;
#pragma unroll
    for (int n = 0; n < EACH * PIECES / WARP; n++) {
        const int32_t row = n * WARP / PIECES + lane / PIECES;
        const uint8_t *from =
            reinterpret_cast<const uint8_t *>((uintptr_t)__shfl_sync(WHOLE_WARP, place, row)) + offset;
        uint16_t *into = wide_place<DIM>(to, first + row, piece);
        if constexpr (F32)
            *reinterpret_cast<uint4 *>(into) = rows_load<true>(from, piece * DENSE_PIECE);
        else
            __pipeline_memcpy_async(into, from + piece * 16, 16);
    }
}

// Where the lane's key of the tile lies, of a group's warps, as dense_find().
template <int DIM, bool F32>
DEVICE uint64_t wide_find(const struct attention_args *a, const struct dense_pairs *pairs, const struct dense_run &run,
                          int32_t tile)
{
    constexpr int EACH = DENSE_TILE / WIDE_WARPS;
    const int32_t row = (int32_t)threadIdx.x / WARP % WIDE_WARPS * EACH + (int32_t)threadIdx.x % EACH,
                  at = tile * DENSE_TILE + row, i = at < run.count ? at : run.count - 1;
    return (uint64_t)(uintptr_t)(kv_row(&a->lanes, &a->layout, run.table, KV_KEYS, i, 1) +
                                 (F32 ? 4 : 2) * pairs->kv_head * DIM);
}

// Queries of the warp's sixteen pairs of its group, in parts, scaled as in dense_load_queries().
template <int DIM>
DEVICE void wide_queries(const struct attention_args *a, const struct dense_pairs *pairs, int32_t first,
                         struct wide_tile<DIM> *q)
{
    constexpr int PIECES = DIM / DENSE_PIECE;
    const float scale = f_mul(a->scale, 1.44269504f);
    const int32_t lane = threadIdx.x % WARP, row = (int32_t)threadIdx.x / WARP % WIDE_WARPS * DENSE_PAIRS;
#pragma unroll 8
    for (int32_t i = lane; i < DENSE_PAIRS * PIECES; i += WARP) {
        const int32_t pair = i / PIECES, piece = i % PIECES, p = first + pair, r = p / pairs->share,
                      head = pairs->kv_head * pairs->share + p - r * pairs->share;
        uint32_t word[DENSE_PARTS][4];
        const float *from = a->q + (int64_t)r * a->ldq + (int64_t)head * DIM + piece * DENSE_PIECE;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float2 x = p < pairs->all ? *reinterpret_cast<const float2 *>(from + 2 * n) : float2{0, 0};
            dense_split(f_mul(x.x, scale), f_mul(x.y, scale), &word[0][n], &word[1][n]);
        }
#pragma unroll
        for (int part = 0; part < DENSE_PARTS; part++)
            *reinterpret_cast<uint4 *>(wide_place<DIM>(q + part, row + pair, piece)) =
                make_uint4(word[part][0], word[part][1], word[part][2], word[part][3]);
    }
}

// ---- choices -------------------------------------------------------------------------------------------------------------------

// Adds what row r chose from its `at`-th block on, four of them, and the positions behind its last whole block, if at is 0.
DEVICE void wide_mark(const struct attention_args *a, uint32_t *word, int32_t r, int32_t at, int32_t base)
{
    const int32_t chosen = a->counts[r], position = a->pass->position[r] + 1;
    uint32_t bits = 0;
    int32_t place = -1;
    auto add = [&](int32_t block) {
        const int32_t i = block - base;
        if (i < 0 || i >= WIDE_CHUNK * WIDE_BITS)
            return;
        if (i / 32 != place && bits)
            atomicOr(&word[place], bits);
        bits = (i / 32 == place ? bits : 0) | 1u << i % 32;
        place = i / 32;
    };
    int32_t block[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        block[i] = at + i < chosen ? a->blocks[(int64_t)r * a->keep + at + i] : -1;
#pragma unroll
    for (int i = 0; i < 4; i++)
        add(block[i]);
    if (at == 0 && position % WIDE_RATIO)
        add(position / WIDE_RATIO);
    if (bits)
        atomicOr(&word[place], bits);
}

// Finds what the run's rows chose of a chunk. Returns its tiles of which one of them has something.
template <int THREADS>
DEVICE uint32_t wide_choices(const struct attention_args *a, const struct dense_pairs *pairs,
                             const struct dense_run &run, struct wide_choice *choice, int32_t chunk)
{
    constexpr int WORDS = WIDE_CHUNK * WIDE_BITS / 32;
    const int32_t left = dense_tiles(run) - chunk * WIDE_CHUNK, thread = threadIdx.x;
    const uint32_t all = left < WIDE_CHUNK ? (1u << left) - 1 : ~0u;
    __syncthreads(); // nobody reads the tiles and the choices of the chunk before
    if (!a->counts)
        return all;
    const int32_t first = pairs->first / pairs->share, each = (a->keep + 3) / 4;
    for (int32_t i = thread; i < WIDE_ROWS * WORDS; i += THREADS) {
        const int32_t r = first + i / WORDS;
        choice->word[i / WORDS][i % WORDS] = r >= run.from && r < run.to && a->counts[r] < 0 ? ~0u : 0;
    }
    __syncthreads();
    for (int32_t i = thread; i < (run.to - run.from) * each; i += THREADS) {
        const int32_t r = run.from + i / each;
        if (a->counts[r] >= 0)
            wide_mark(a, choice->word[r - first], r, i % each * 4, chunk * WIDE_CHUNK * WIDE_BITS);
    }
    __syncthreads();
    static_assert((int)WIDE_CHUNK == (int)WARP, "a lane a tile");
    if (thread < WARP) {
        uint32_t any = 0;
#pragma unroll
        for (int r = 0; r < WIDE_ROWS; r++)
            any |= choice->word[r][thread / 2] >> thread % 2 * WIDE_BITS;
        any = __ballot_sync(WHOLE_WARP, (any & ((1u << WIDE_BITS) - 1)) != 0);
        choice->live = any;
    }
    __syncthreads();
    return all & wide_uniform(choice->live);
}

// Takes scores out of what the lane's pairs did not choose of a tile of the chunk. row: the pairs' rows of the choice.
DEVICE void wide_mask(const struct wide_choice *choice, const int32_t *row, int32_t tile, float (*c)[4])
{
    uint32_t bits[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        bits[h] = choice->word[row[h]][tile / 2] >> (tile % 2 * WIDE_BITS + (int32_t)threadIdx.x % 4 / 2);
#pragma unroll
    for (int n = 0; n < DENSE_KEYS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = bits[i / 2] >> 2 * n & 1 ? c[n][i] : -INFINITY;
}

// ---- a chunk -------------------------------------------------------------------------------------------------------------------

// Takes a tile's number out of those that are left.
DEVICE int32_t wide_take(uint32_t *left)
{
    const int32_t tile = __ffs((int32_t)*left) - 1;
    *left &= *left - 1;
    return tile;
}

// Weights of a tile as fragments of its products with values.
DEVICE void wide_weights(const float (*c)[4], uint32_t (*weight)[DENSE_PARTS][4])
{
#pragma unroll
    for (int k = 0; k < DENSE_STEPS; k++)
#pragma unroll
        for (int w = 0; w < 4; w++)
            dense_split(c[2 * k + w / 2][w % 2 * 2], c[2 * k + w / 2][w % 2 * 2 + 1], &weight[k][0][w],
                        &weight[k][1][w]);
}

// Copies of the keys, or of the values, of a chunk's tiles, one after the other, by a group of warps. Items lie in the slots in turn: keys of tile
// 0, keys of tile 1, values of tile 0, keys of tile 2, values of tile 1 and so on.
template <int DIM, bool F32> struct wide_flow {
    enum { EACH = DENSE_TILE / WIDE_WARPS };
    uint64_t place;            // of the warp's rows of the tile that comes next
    uint32_t left;             // tiles behind it
    int32_t base, count, slot; // tiles before the chunk; tiles to be asked for; where the next one lies
    int64_t offset;            // behind keys

    __device__ __forceinline__ void find(const struct attention_args *a, const struct dense_pairs *pairs,
                                         const struct dense_run &run)
    {
        if (left)
            place = wide_find<DIM, F32>(a, pairs, run, base + wide_take(&left));
    }
    // Asks for the next tile, if there is one; the one behind it lies `step` slots on.
    __device__ __forceinline__ void ask(const struct attention_args *a, const struct dense_pairs *pairs,
                                        const struct dense_run &run, struct wide_tile<DIM> *slots, int32_t step)
    {
        if (count > 0) {
            wide_copy<DIM, F32, EACH>(slots + slot, place, offset);
            find(a, pairs, run); // its address is there when it is needed
        }
        __pipeline_commit();
        slot = (slot + step) % WIDE_SLOTS;
        count--;
    }
};

// Begins a step: what was asked for in the one before has come.
DEVICE void wide_step(void)
{
    __pipeline_wait_prior(0);
    wide_publish();
    __syncthreads();
}

// Takes the chunk's tiles `live`. A group's steps are the scores of the first tile, then two a tile: the products of the next tile's scores, and this
// one's softmax beside them, and the products of values. Groups are a step apart, so that one has softmax when the other has values; before
// those each asks for the item of the next step: the first group for keys, the second one for values. All come to one barrier.
template <int DIM, bool F32, int GROUPS>
DEVICE void wide_run(const struct attention_args *a, const struct dense_pairs *pairs, const struct dense_run &run,
                     const struct wide_tile<DIM> *q, struct wide_tile<DIM> *slots, const struct wide_choice *choice,
                     const int32_t *row, int32_t chunk, uint32_t live, struct dense_sums *sums, float (*out)[4])
{
    const int32_t group = (int32_t)wide_uniform(threadIdx.x / (WIDE_WARPS * WARP)), count = __popc(live);
    const int32_t base = chunk * WIDE_CHUNK, last = 2 * count;
    // The group's own copies; a single group has values to itself too.
    struct wide_flow<DIM, F32> flow = {0, live, base, count, group ? 2 : 0, group ? dense_value_offset(a) : 0},
                               values = {
        0, live, base, count, 2, dense_value_offset(a)
    };
    float c[DENSE_KEYS][4] = {}, ahead[DENSE_KEYS][4] = {}, keep[2] = {};
    bool changed = false;
    int32_t slot = 0;
    auto next = [&](void) {
        const struct wide_tile<DIM> *tile = slots + slot;
        slot = slot + 1 < WIDE_SLOTS ? slot + 1 : 0;
        return tile;
    };
    flow.find(a, pairs, run);
    if (GROUPS == 1)
        values.find(a, pairs, run);
    if (group == 0) {
        flow.ask(a, pairs, run, slots, 1);
        flow.ask(a, pairs, run, slots, 2);
    }
#pragma unroll 1
    for (int32_t step = -group; step < last + GROUPS - group; step++) {
        wide_step();
        if (step < 0 || step > last)
            continue; // the other group's
        if (step == 0) {
            if (group > 0)
                flow.ask(a, pairs, run, slots, 2);
            wide_scores_begin<DIM>(next(), q, c);
            wide_scores_end(c);
        } else if (step % 2) {
            const int32_t tile = wide_take(&live);
            if (GROUPS == 1)
                values.ask(a, pairs, run, slots, 2);
            wide_scores_begin<DIM>(next(), q, ahead); // behind the last tile: of nothing that is used
            if (a->counts)
                wide_mask(choice, row, tile, c);
            dense_mask<DENSE_KEYS>(sums, c, (base + tile) * DENSE_TILE);
            changed = dense_softmax(sums, c, keep);
            wide_scores_end(ahead);
        } else {
            uint32_t weight[DENSE_STEPS][DENSE_PARTS][4];
            flow.ask(a, pairs, run, slots, 2);
            wide_weights(c, weight); // here, so that both halves of a step take about as long
            if (changed)
                dense_keep<DIM / 8>(out, keep);
            wide_values<DIM>(next(), weight, out);
#pragma unroll
            for (int n = 0; n < DENSE_KEYS; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    c[n][e] = ahead[n][e];
        }
    }
}

// ---- chunks of a row -------------------------------------------------------------------------------------------------------------

// How sums of a pair and those of another of its chunks are added: out * keep + other * weight, or one of them as it is, if the pair has
// nothing of the other chunk.
struct wide_join {
    float keep, weight;
    bool old, fresh; // there are any
};

DEVICE float wide_added(const struct wide_join &join, float out, float other)
{
    return !join.fresh ? out : !join.old ? other : fmaf(other, join.weight, f_mul(out, join.keep));
}

// Adds the other's maximum and total.
DEVICE struct wide_join wide_joined(float *top, float *total, float other_top, float other_total)
{
    const float most = fmaxf(*top, other_top), base = most == -INFINITY ? 0.0f : most;
    const struct wide_join join = {dense_exp2(__fadd_rn(*top, -base)), dense_exp2(__fadd_rn(other_top, -base)),
                                   *top != -INFINITY, other_top != -INFINITY};
    *top = most;
    *total = wide_added(join, *total, other_total);
    return join;
}

// Where the lane's pair g + 8 h of sixteen from `first` on has its first two outputs.
template <int DIM>
DEVICE float *wide_output(const struct attention_args *a, const struct dense_pairs *pairs, int32_t first, int32_t h)
{
    const int32_t lane = threadIdx.x % WARP, p = first + lane / 4 + 8 * h, row = p / pairs->share;
    return a->y + (int64_t)row * a->ldy + (int64_t)(pairs->kv_head * pairs->share + p - row * pairs->share) * DIM +
           lane % 4 * 2;
}

// Leaves what the run's pairs have so far in their places of y, and begins anew.
template <int DIM>
DEVICE void wide_leave(const struct attention_args *a, const struct dense_pairs *pairs, int32_t first,
                       struct dense_sums *sums, float (*out)[4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (sums->position[h] < 0)
            continue;
        float *y = wide_output<DIM>(a, pairs, first, h);
        sums->top[h] = -INFINITY;
        sums->total[h] = 0;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            *reinterpret_cast<float2 *>(y + n * 8) = {out[n][2 * h], out[n][2 * h + 1]};
            out[n][2 * h] = out[n][2 * h + 1] = 0;
        }
    }
}

// Adds the chunk's sums to those that were left; before: their maxima and totals.
template <int DIM>
DEVICE void wide_return(const struct attention_args *a, const struct dense_pairs *pairs, int32_t first,
                        const struct dense_sums *before, struct dense_sums *sums, float (*out)[4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (sums->position[h] < 0)
            continue;
        const float *y = wide_output<DIM>(a, pairs, first, h);
        float top = before->top[h], total = before->total[h];
        const struct wide_join join = wide_joined(&top, &total, sums->top[h], sums->total[h]);
        sums->top[h] = top;
        sums->total[h] = total;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            const float2 was = *reinterpret_cast<const float2 *>(y + n * 8);
            out[n][2 * h] = wide_added(join, was.x, out[n][2 * h]);
            out[n][2 * h + 1] = wide_added(join, was.y, out[n][2 * h + 1]);
        }
    }
}

// What a block of a cluster has of a chunk, for the others.
template <int DIM> struct wide_part {
    float out[WIDE_PAIRS][DIM + 8], top[WIDE_PAIRS], total[WIDE_PAIRS][4];
};

// Adds the blocks' chunks, in order. Each writes sixteen pairs, each of its warps a share of the dims.
template <int DIM>
DEVICE void wide_merge(const struct attention_args *a, const struct dense_pairs *pairs, struct wide_part<DIM> *part,
                       const struct dense_sums *own, const float (*out)[4])
{
    constexpr int WIDTH = DIM / WIDE_WARPS;
    const int32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const int32_t rank = (int32_t)blockIdx.x % WIDE_PARTS, mine = rank * DENSE_PAIRS, dim = warp * WIDTH + t * 2;
    __syncthreads(); // nobody reads the tiles any more
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t p = warp * DENSE_PAIRS + g + 8 * h;
        part->top[p] = own->top[h];
        part->total[p][t] = own->total[h];
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            *reinterpret_cast<float2 *>(&part->out[p][n * 8 + t * 2]) = {out[n][2 * h], out[n][2 * h + 1]};
    }
    cluster_sync();
    struct dense_sums sums = dense_none();
    float sum[WIDTH / 8][4] = {};
    for (int32_t i = 0; i < WIDE_PARTS; i++) {
        const struct wide_part<DIM> *other = cluster_map(part, (unsigned)i);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int32_t p = mine + g + 8 * h;
            const struct wide_join join = wide_joined(&sums.top[h], &sums.total[h], other->top[p], other->total[p][t]);
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++) {
                const float2 x = *reinterpret_cast<const float2 *>(&other->out[p][dim + n * 8]);
                sum[n][2 * h] = wide_added(join, sum[n][2 * h], x.x);
                sum[n][2 * h + 1] = wide_added(join, sum[n][2 * h + 1], x.y);
            }
        }
    }
    dense_write<DIM, WIDTH>(a, pairs, pairs->first + mine, warp * WIDTH, &sums, sum);
    cluster_sync();
}

// ---- the kernel ----------------------------------------------------------------------------------------------------------------

// The rows of a run that go here: those before WIDE_POSITIONS.
DEVICE struct dense_run wide_rows(const struct attention_args *a, struct dense_run run)
{
    while (run.to > run.from && a->pass->position[run.to - 1] >= WIDE_POSITIONS)
        run.to--;
    run.count = run.to > run.from ? a->pass->position[run.to - 1] + 1 : 0;
    return run;
}

// The block's pairs, as dense_pairs_of(); PARTS neighbouring blocks have the same ones.
template <int PAIRS, int PARTS> DEVICE struct dense_pairs wide_pairs_of(const struct attention_args *a)
{
    const int32_t kv_heads = a->layout.kv_heads, share = a->heads / kv_heads, own = (int32_t)blockIdx.x / PARTS;
    const int32_t block = (int32_t)gridDim.x / PARTS / kv_heads - 1 - own / kv_heads;
    return {own % kv_heads, share, block * PAIRS, a->pass->rows * share};
}

// PARTS: blocks of a cluster, which have a chunk each; 1: a block has all chunks one after the other.
template <int DIM, bool F32, int GROUPS, int PARTS>
__global__ void __launch_bounds__(GROUPS *WIDE_WARPS *WARP, 1)
    attention_wide_kernel(const __grid_constant__ struct attention_args a)
{
    constexpr int THREADS = GROUPS * WIDE_WARPS * WARP, PAIRS = GROUPS * WIDE_PAIRS;
    SHARED_BYTES(room);
    struct wide_tile<DIM> *q = reinterpret_cast<struct wide_tile<DIM> *>(wide_align(room)),
                          *slots = q + GROUPS * DENSE_PARTS;
    struct wide_choice *choice = reinterpret_cast<struct wide_choice *>(slots + WIDE_SLOTS);
    const int32_t warp = (int32_t)threadIdx.x / WARP, group = (int32_t)wide_uniform(threadIdx.x / (WIDE_WARPS * WARP));
    pdl_wait();
    pdl_trigger();
    const struct dense_pairs pairs = wide_pairs_of<PAIRS, PARTS>(&a);
    if (pairs.first >= pairs.all)
        return;
    const int32_t first = pairs.first + warp * DENSE_PAIRS, begin = pairs.first / pairs.share,
                  own = first + (int32_t)(threadIdx.x % WARP) / 4;
    const int32_t row[2] = {own / pairs.share - begin, (own + 8) / pairs.share - begin};
    struct dense_sums sums = dense_none();
    float out[DIM / 8][4] = {};
    q += group * DENSE_PARTS;
    wide_queries<DIM>(&a, &pairs, first, q);
    dense_runs<PAIRS>(&a, &pairs, [&](const struct dense_run &whole) {
        const struct dense_run run = wide_rows(&a, whole);
        const int32_t chunks = (dense_tiles(run) + WIDE_CHUNK - 1) / WIDE_CHUNK;
        dense_positions(&a, &pairs, &run, first, &sums);
        for (int32_t chunk = PARTS > 1 ? (int32_t)blockIdx.x % PARTS : 0, done = 0; chunk < chunks; chunk += PARTS) {
            const uint32_t live = wide_choices<THREADS>(&a, &pairs, run, choice, chunk);
            if (!live)
                continue;
            const struct dense_sums before = sums;
            if (PARTS == 1 && done)
                wide_leave<DIM>(&a, &pairs, first, &sums, out);
            wide_run<DIM, F32, GROUPS>(&a, &pairs, run, q, slots, choice, row, chunk, live, &sums, out);
            if (PARTS == 1 && done)
                wide_return<DIM>(&a, &pairs, first, &before, &sums, out);
            done = 1;
        }
    });
    if constexpr (PARTS > 1)
        wide_merge<DIM>(&a, &pairs, reinterpret_cast<struct wide_part<DIM> *>(slots), &sums, out);
    else
        dense_write<DIM, DIM>(&a, &pairs, first, 0, &sums, out);
}

// ---- launches ------------------------------------------------------------------------------------------------------------------

// Whether the card has products of warpgroups and the room, and rows of a block have a place for their choices: by shapes alone.
static inline bool attention_wide_fits(const struct attention_args *a)
{
#if defined(CUDA_FIBERS) || defined(WITH_WGMMA)
    static int state = -1;
    if (state < 0)
        state = card_attribute(cudaDevAttrComputeCapabilityMajor) == 9 && wide_bytes<256, 2>() <= block_room();
    const int32_t share = a->heads / a->layout.kv_heads, rows = (2 * WIDE_PAIRS + share - 2) / share + 1;
    return state && a->counts && attention_dense_shaped(a) && a->ratio == WIDE_RATIO && rows <= WIDE_ROWS;
#else
    (void)a;
    return false;
#endif
}

template <int DIM, bool F32, int GROUPS, int PARTS>
static cudaError_t wide_launch(cudaStream_t stream, const struct attention_args *a, int rows)
{
    return launch_cluster(stream, dim3((unsigned)(PARTS * dense_blocks(a, rows, GROUPS * WIDE_PAIRS))),
                          GROUPS * WIDE_WARPS * WARP, wide_bytes<DIM, GROUPS>(), PARTS,
                          attention_wide_kernel<DIM, F32, GROUPS, PARTS>, *a);
}

// Takes what is soonest done for so many rows: few have their chunks beside each other.
template <int DIM, bool F32>
static cudaError_t wide_choose(cudaStream_t stream, const struct attention_args *a, int rows)
{
    enum { ONE_COST = 5, TWO_COST = 8, CHUNKS = 2 }; // of a tile; chunks of a row about the middle
    const int64_t beside =
        (WIDE_PARTS * dense_blocks(a, rows, WIDE_PAIRS) + multiprocessors() - 1) / multiprocessors() * ONE_COST;
    return beside < CHUNKS * dense_cost(a, rows, 2 * WIDE_PAIRS, TWO_COST)
               ? wide_launch<DIM, F32, 1, WIDE_PARTS>(stream, a, rows)
               : wide_launch<DIM, F32, 2, 1>(stream, a, rows);
}

static cudaError_t attention_wide(cudaStream_t stream, const struct attention_args *a, int rows)
{
    return with_dense_shape(a,
                            [&](auto s) { return wide_choose<decltype(s)::DIM, decltype(s)::F32>(stream, a, rows); });
}

#endif
