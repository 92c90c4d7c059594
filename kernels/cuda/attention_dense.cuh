// SPDX-License-Identifier: Apache-2.0
//
// Dense attention of prompt rows: a block has neighbouring pairs of a row and a query head of one kv head, and brings each tile of 64
// keys and values to shared memory once for all of them.
//
// Many pairs (`dense_many`): a warp has sixteen of them for good, with all dims of their sums in registers. Half of the warps are a tile's
// keys or values behind the others, so that one half's softmax runs beside the other's scores. Few pairs (`dense_few`): a block has
// sixteen; its warps share a tile's keys for the scores and the dims for the values, and each takes all of the softmax.
// Invariant: both make the same chains (dense_tile.cuh), so that how many pairs a block has changes no bit, nor what lanes share one:
// rows of another lane take no part in a lane's tiles.

#ifndef CUDA_ATTENTION_DENSE_CUH
#define CUDA_ATTENTION_DENSE_CUH

#include "kernels/cuda/dense_tile.cuh"

enum {
    DENSE_SLOTS = 3, // tiles in shared memory: two at work, one on its way
    DENSE_FEW = 8,   // warps
};

// The block's pairs: of the last rows first, since these have the most positions.
template <int PAIRS> DEVICE struct dense_pairs dense_pairs_of(const struct attention_args *a)
{
    const int32_t kv_heads = a->layout.kv_heads, share = a->heads / kv_heads;
    const int32_t block = (int32_t)gridDim.x / kv_heads - 1 - (int32_t)blockIdx.x / kv_heads;
    return {(int32_t)blockIdx.x % kv_heads, share, block * PAIRS, a->pass->rows * share};
}

// Calls then(run) for each lane that has rows in the block.
template <int PAIRS, typename THEN>
DEVICE void dense_runs(const struct attention_args *a, const struct dense_pairs *pairs, const THEN &then)
{
    const int32_t rows = pairs->all / pairs->share, last = (pairs->first + PAIRS - 1) / pairs->share + 1;
    const int32_t end = last < rows ? last : rows;
    for (int32_t from = pairs->first / pairs->share; from < end;) {
        const struct dense_run run = dense_run_of(a, from, end);
        then(run);
        from = run.to;
        __syncthreads(); // nobody reads the tiles any more
    }
}

DEVICE int32_t dense_tiles(const struct dense_run &run)
{
    return (run.count + DENSE_TILE - 1) / DENSE_TILE;
}

DEVICE int64_t dense_value_offset(const struct attention_args *a)
{
    return kv_offset(&a->layout, a->lanes.page, KV_VALUES) - kv_offset(&a->layout, a->lanes.page, KV_KEYS);
}

// ---- many pairs ----------------------------------------------------------------------------------------------------------------

template <int DIM, int WARPS> static constexpr size_t dense_many_bytes(void)
{
    return WARPS * sizeof(struct dense_queries<DIM>) + DENSE_SLOTS * sizeof(struct dense_tile<DIM>);
}

// Item 2 t is the keys of tile t, item 2 t + 1 its values; item i lies in slot i % DENSE_SLOTS. A step asks for the next item, while the
// first half of the warps takes its own and the second half the one before.
template <int DIM, bool F32, int WARPS>
DEVICE void dense_many_run(const struct attention_args *a, const struct dense_pairs *pairs, const struct dense_run &run,
                           const struct dense_queries<DIM> *q, struct dense_tile<DIM> *slots, struct dense_sums *sums,
                           float (*out)[4])
{
    constexpr int EACH = DENSE_TILE / WARPS;
    const int64_t value_offset = dense_value_offset(a);
    const int32_t items = 2 * dense_tiles(run), behind = (int32_t)threadIdx.x / WARP / (WARPS / 2);
    const int32_t least = sums->position[0] < sums->position[1] ? sums->position[0] : sums->position[1];
    float score[DENSE_KEYS][4] = {};
    uint64_t place = dense_find<DIM, F32, EACH>(a, pairs, &run, 0);
    int32_t to = 1, mine = 0;
    dense_copy<DIM, F32, EACH>(slots, place, 0);
    __pipeline_commit();
    for (int32_t i = 0; i <= items; i++) {
        __pipeline_wait_prior(0);
        __syncthreads();
        if (i + 1 < items) {
            dense_copy<DIM, F32, EACH>(slots + to, place, i % 2 ? 0 : value_offset);
            __pipeline_commit();
            to = to + 1 < DENSE_SLOTS ? to + 1 : 0;
            if (i % 2 == 0 && i + 2 < items)
                place = dense_find<DIM, F32, EACH>(a, pairs, &run, i / 2 + 1);
        }
        const int32_t item = i - behind;
        if (item < 0 || item >= items)
            continue;
        if (item % 2 == 0) {
            dense_scores<DIM>(slots + mine, q, score);
        } else {
            const int32_t first = item / 2 * DENSE_TILE;
            float keep[2];
            if (__any_sync(WHOLE_WARP, first + DENSE_TILE > least + 1))
                dense_mask<DENSE_KEYS>(sums, score, first);
            if (dense_softmax(sums, score, keep))
                dense_keep<DIM / 8>(out, keep);
            dense_values<DIM, DIM>(slots + mine, score, 0, out);
        }
        mine = mine + 1 < DENSE_SLOTS ? mine + 1 : 0;
    }
}

template <int DIM, bool F32, int WARPS>
__global__ void __launch_bounds__(WARPS *WARP, 1) dense_many(const __grid_constant__ struct attention_args a)
{
    SHARED_BYTES(room);
    struct dense_queries<DIM> *q = reinterpret_cast<struct dense_queries<DIM> *>(room);
    struct dense_tile<DIM> *slots = reinterpret_cast<struct dense_tile<DIM> *>(q + WARPS);
    const int32_t warp = (int32_t)threadIdx.x / WARP;
    pdl_wait();
    pdl_trigger();
    const struct dense_pairs pairs = dense_pairs_of<WARPS * DENSE_PAIRS>(&a);
    if (pairs.first >= pairs.all)
        return;
    const int32_t first = pairs.first + warp * DENSE_PAIRS;
    struct dense_sums sums = dense_none();
    float out[DIM / 8][4] = {};
    dense_load_queries<DIM>(&a, &pairs, first, q + warp, 0, 1);
    __syncwarp();
    dense_runs<WARPS * DENSE_PAIRS>(&a, &pairs, [&](const struct dense_run &run) {
        dense_positions(&a, &pairs, &run, first, &sums);
        dense_many_run<DIM, F32, WARPS>(&a, &pairs, run, q + warp, slots, &sums, out);
    });
    dense_write<DIM, DIM>(&a, &pairs, first, 0, &sums, out);
}

// ---- few pairs -----------------------------------------------------------------------------------------------------------------

// Followed by `stages` pairs of tiles.
template <int DIM> struct dense_few_space {
    struct dense_queries<DIM> q;
    float4 score[2][DENSE_KEYS][WARP];
};

template <int DIM> static constexpr size_t dense_few_bytes(int stages)
{
    return sizeof(struct dense_few_space<DIM>) + 2 * (size_t)stages * sizeof(struct dense_tile<DIM>);
}

// A step has the values of its tile and the keys of the next one, in a stage. Scores of the next tile are made beside this one's softmax.
template <int DIM, bool F32>
DEVICE void dense_few_run(const struct attention_args *a, const struct dense_pairs *pairs, const struct dense_run &run,
                          const uint32_t (*q)[DIM / 16][4], float4 (*scores)[DENSE_KEYS][WARP],
                          struct dense_tile<DIM> *slots, int32_t stages, struct dense_sums *sums, float (*out)[4])
{
    constexpr int EACH = DENSE_TILE / DENSE_FEW, WIDTH = DIM / DENSE_FEW;
    const int64_t value_offset = dense_value_offset(a);
    const int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP, tiles = dense_tiles(run);
    uint64_t place = dense_find<DIM, F32, EACH>(a, pairs, &run, 0),
             next = dense_find<DIM, F32, EACH>(a, pairs, &run, 1);
    auto copy = [&](int32_t t) { // of step t
        struct dense_tile<DIM> *to = slots + (stages > 1 ? t % 2 * 2 : 0);
        dense_copy<DIM, F32, EACH>(to + 1, place, value_offset);
        place = next;
        dense_copy<DIM, F32, EACH>(to, place, 0); // behind the last tile: of nothing that is used
        __pipeline_commit();
        next = dense_find<DIM, F32, EACH>(a, pairs, &run, t + 2);
    };
    dense_copy<DIM, F32, EACH>(slots + 2 * (stages - 1), place, 0);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    float ahead[1][4] = {};
    dense_some_scores<DIM>(slots + 2 * (stages - 1), q, warp, ahead[0]);
    dense_mask<1>(sums, ahead, warp * 8);
    scores[0][warp][lane] = make_float4(ahead[0][0], ahead[0][1], ahead[0][2], ahead[0][3]);
    if (stages == 1)
        __syncthreads();
    copy(0);
    for (int32_t t = 0; t < tiles; t++) {
        const struct dense_tile<DIM> *stage = slots + (stages > 1 ? t % 2 * 2 : 0);
        __pipeline_wait_prior(0);
        __syncthreads();
        if (stages > 1 && t + 1 < tiles)
            copy(t + 1);
        float c[DENSE_KEYS][4], keep[2];
#pragma unroll
        for (int i = 0; i < 4; i++)
            ahead[0][i] = 0;
#pragma unroll
        for (int n = 0; n < DENSE_KEYS; n++) {
            const float4 x = scores[t % 2][n][lane];
            c[n][0] = x.x, c[n][1] = x.y, c[n][2] = x.z, c[n][3] = x.w;
        }
        dense_some_scores<DIM>(stage, q, warp, ahead[0]);
        dense_softmax(sums, c, keep);
        dense_keep<WIDTH / 8>(out, keep); // a factor of one changes nothing
        dense_values<DIM, WIDTH>(stage + 1, c, warp * WIDTH, out);
        dense_mask<1>(sums, ahead, (t + 1) * DENSE_TILE + warp * 8);
        scores[(t + 1) % 2][warp][lane] = make_float4(ahead[0][0], ahead[0][1], ahead[0][2], ahead[0][3]);
        if (stages == 1 && t + 1 < tiles) {
            __syncthreads();
            copy(t + 1);
        }
    }
}

template <int DIM, bool F32>
__global__ void __launch_bounds__(DENSE_FEW *WARP, 1)
    dense_few(const __grid_constant__ struct attention_args a, int32_t stages)
{
    SHARED_BYTES(room);
    struct dense_few_space<DIM> *s = reinterpret_cast<struct dense_few_space<DIM> *>(room);
    struct dense_tile<DIM> *slots = reinterpret_cast<struct dense_tile<DIM> *>(s + 1);
    constexpr int WIDTH = DIM / DENSE_FEW;
    const int32_t warp = (int32_t)threadIdx.x / WARP;
    pdl_wait();
    pdl_trigger();
    const struct dense_pairs pairs = dense_pairs_of<DENSE_PAIRS>(&a);
    if (pairs.first >= pairs.all)
        return;
    struct dense_sums sums = dense_none();
    float out[WIDTH / 8][4] = {};
    dense_load_queries<DIM>(&a, &pairs, pairs.first, &s->q, warp, DENSE_FEW);
    __syncthreads();
    uint32_t q[DENSE_PARTS][DIM / 16][4];
    dense_hold(&s->q, q);
    dense_runs<DENSE_PAIRS>(&a, &pairs, [&](const struct dense_run &run) {
        dense_positions(&a, &pairs, &run, pairs.first, &sums);
        dense_few_run<DIM, F32>(&a, &pairs, run, q, s->score, slots, stages, &sums, out);
    });
    dense_write<DIM, WIDTH>(&a, &pairs, pairs.first, warp * WIDTH, &sums, out);
}

// ---- launches ------------------------------------------------------------------------------------------------------------------

// Whether caches can be read sixteen bytes at a time, and rows of two numbers.
static inline bool attention_dense_shaped(const struct attention_args *a)
{
    const uint64_t rows = (uintptr_t)a->q | (uintptr_t)a->gate | (uintptr_t)a->y;
    return attention_rows_fits(a) && rows % 8 == 0 && (a->ldq | a->ldg | a->gate_stride | a->ldy) % 2 == 0;
}

// Rows that have choices are apart (attention_wide.cuh, attention_rows.cuh).
static inline bool attention_dense_fits(const struct attention_args *a)
{
    return attention_dense_shaped(a) && !a->counts;
}

// Blocks of so many pairs.
static int64_t dense_blocks(const struct attention_args *a, int rows, int pairs)
{
    const int32_t kv_heads = a->layout.kv_heads;
    return blocks_for((int64_t)rows * (a->heads / kv_heads), pairs) * (int64_t)kv_heads;
}

// What blocks of so many pairs take a tile, if each takes `cost`.
static int64_t dense_cost(const struct attention_args *a, int rows, int pairs, int cost)
{
    return (dense_blocks(a, rows, pairs) + multiprocessors() - 1) / multiprocessors() * cost;
}

template <int DIM, bool F32, int WARPS>
static cudaError_t dense_many_launch(cudaStream_t stream, const struct attention_args *a, int rows)
{
    return launch(stream, (unsigned)dense_blocks(a, rows, WARPS * DENSE_PAIRS), WARPS * WARP,
                  dense_many_bytes<DIM, WARPS>(), dense_many<DIM, F32, WARPS>, *a);
}

// Takes what is soonest done for so many rows: few pairs a block for few rows, which have many blocks then.
template <int DIM, bool F32>
static cudaError_t dense_launch(cudaStream_t stream, const struct attention_args *a, int rows)
{
    enum { FEW_COST = 9, SOME_COST = 18, MANY_COST = 30, SOME = 4, MANY = 8 };
    const int64_t few = dense_cost(a, rows, DENSE_PAIRS, FEW_COST),
                  some = dense_cost(a, rows, SOME * DENSE_PAIRS, SOME_COST),
                  many = dense_cost(a, rows, MANY * DENSE_PAIRS, MANY_COST);
    if (many <= some && many <= few && dense_many_bytes<DIM, MANY>() <= block_room())
        return dense_many_launch<DIM, F32, MANY>(stream, a, rows);
    if (some <= few && dense_many_bytes<DIM, SOME>() <= block_room())
        return dense_many_launch<DIM, F32, SOME>(stream, a, rows);
    const int stages = dense_few_bytes<DIM>(2) <= block_room() ? 2 : 1;
    return launch(stream, (unsigned)dense_blocks(a, rows, DENSE_PAIRS), DENSE_FEW * WARP, dense_few_bytes<DIM>(stages),
                  dense_few<DIM, F32>, *a, stages);
}

// do_it(shape), of whose type DIM and F32 are those of attention_dense_shaped() arguments.
template <int D, bool F> struct dense_shape {
    static constexpr int DIM = D;
    static constexpr bool F32 = F;
};
template <class DO> static cudaError_t with_dense_shape(const struct attention_args *a, DO do_it)
{
    const bool f32 = a->layout.encoding == KV_F32;
    if (a->layout.dim == 256)
        return f32 ? do_it(dense_shape<256, true>()) : do_it(dense_shape<256, false>());
    return f32 ? do_it(dense_shape<128, true>()) : do_it(dense_shape<128, false>());
}

static cudaError_t attention_dense(cudaStream_t stream, const struct attention_args *a, int rows)
{
    return with_dense_shape(a,
                            [&](auto s) { return dense_launch<decltype(s)::DIM, decltype(s)::F32>(stream, a, rows); });
}

#endif
