// SPDX-License-Identifier: Apache-2.0
//
// The choice of blocks of prompt rows (others: index.cu): a block of four neighbouring rows, whose scores are one product of 16x8x16 with
// the pooled rows, straight from memory to fragments, by all warps; then a warp a row chooses.
//
// A row of the product is one of four heads of one of four rows; queries are three bf16 parts, so that products are exact. A row's blocks are
// taken in ranges: each adds its scores behind those that were chosen so far, and the best of both are kept.
// Invariant: a score depends on the query and the pooled row alone. The choice is by whole scores, and ids ascend in the list that
// it is made of, so how long ranges are changes nothing; equal scores go to the lower block.

#ifndef CUDA_INDEX_ROWS_CUH
#define CUDA_INDEX_ROWS_CUH

#include "kernels/cuda/cache_rows.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/kv.cuh"
#include "kernels/cuda/launch.cuh"

enum {
    CHOOSE_ROWS = 4,       // of a block; a warp each chooses
    CHOOSE_WARPS = 4,      // that make scores,
    CHOOSE_WARPS_FEW = 12, // or of rows so few that a block has a multiprocessor for itself
    CHOOSE_HEADS = 4,
    CHOOSE_PARTS = 3,
    CHOOSE_TILES = 2, // products of eight pooled rows that a warp makes at a time
    CHOOSE_KEYS = 8 * CHOOSE_TILES,
    CHOOSE_RANGE = 2048, // blocks
    CHOOSE_KEEP = 1024,  // at most
    CHOOSE_VECTOR = 4,   // scores that a lane counts at a time
    CHOOSE_PAD = 8,      // numbers behind a row's scores, against bank conflicts
};
static_assert(CHOOSE_KEEP < CHOOSE_RANGE, "a row's list is longer than what is kept of it");

// Shared memory of a block, followed by each row's scores, then each row's ids of the `keep` that are chosen so far.
template <int DIM> struct choose_space {
    __align__(16) uint32_t q[CHOOSE_PARTS][DIM / 16][WARP][4];
};

// Scores of a row that have a place: a multiple of what a warp counts at a time.
static __host__ __device__ inline int32_t choose_room(int32_t keep)
{
    const int32_t step = CHOOSE_VECTOR * WARP;
    return (keep + CHOOSE_RANGE + step - 1) / step * step;
}

// What a warp knows of its row.
struct choose_row {
    float *score;
    int32_t *id;        // of those chosen so far
    int32_t kept;       // how many were chosen so far
    uint32_t threshold; // no score below is wanted any more
};

// Rows from .. to - 1 of the pass, of one lane, and the most blocks that one of them chooses from; 0: none has a choice.
struct choose_run {
    int32_t from, to, most;
    const uint32_t *table;
};

DEVICE int32_t choose_blocks(const struct index_select_args *a, int32_t r)
{
    const int32_t n = (a->pass->position[r] + 1) / a->ratio;
    return n > a->keep ? n : 0;
}

// The run that begins at row `from`, up to row `end`.
DEVICE struct choose_run choose_run_of(const struct index_select_args *a, int32_t from, int32_t end)
{
    const int32_t lane = a->pass->lane[from];
    struct choose_run run = {from, from, 0, a->lanes.table[lane]};
    for (; run.to < end && a->pass->lane[run.to] == lane; run.to++) {
        const int32_t n = choose_blocks(a, run.to);
        run.most = n > run.most ? n : run.most;
    }
    return run;
}

// ---- scores --------------------------------------------------------------------------------------------------------------------

// Queries in parts: word i of lane (g, t) of step s is row g / 2, head g % 2 + 2 (i % 2), dims as rows_keys() lays them out.
template <int DIM>
DEVICE void choose_queries(const struct index_select_args *a, struct choose_space<DIM> *s, int32_t first, int32_t rows)
{
    for (int32_t n = (int32_t)threadIdx.x; n < DIM / 16 * WARP * 4; n += (int32_t)blockDim.x) {
        const int32_t i = n % 4, lane = n / 4 % WARP, step = n / (4 * WARP);
        const int32_t r = first + lane / 8, h = lane / 4 % 2 + i % 2 * 2;
        const int32_t d = step / 2 * 32 + lane % 4 * 8 + step % 2 * 4 + i / 2 * 2;
        float x = 0, y = 0;
        if (r < rows && h < a->heads) {
            const float *q = a->q + (int64_t)r * a->ldq + h * DIM + d;
            x = q[0];
            y = q[1];
        }
#pragma unroll
        for (int p = 0; p < CHOOSE_PARTS; p++) {
            const uint32_t part = mma_pair(x, y);
            s->q[p][step][lane][i] = part;
            x = __fadd_rn(x, -__uint_as_float(part << 16));
            y = __fadd_rn(y, -__uint_as_float(part & 0xffff0000u));
        }
    }
}

// Asks for the warp's pooled rows from block `at` on; beyond the run's: the last one.
template <int DIM>
DEVICE void choose_keys(const struct index_select_args *a, const struct choose_run &run, int32_t at,
                        uint4 (*key)[DIM / 32])
{
    const int32_t block = at + (int32_t)threadIdx.x % CHOOSE_KEYS;
    const uint64_t place = (uint64_t)(uintptr_t)kv_row(&a->lanes, &a->layout, run.table, KV_POOLED,
                                                       block < run.most ? block : run.most - 1, a->ratio);
#pragma unroll
    for (int u = 0; u < CHOOSE_TILES; u++)
        rows_keys<DIM, false>(key[u], place, u);
}

// Sums of a warp's pooled rows: a chain a part over the dims, then the parts, small ones first; relu; heads in pairs. Lane (g, t) has the
// score of row g / 2 and pooled row 2 t + g % 2.
template <int DIM>
DEVICE void choose_products(const struct choose_space<DIM> *s, const uint4 (*key)[DIM / 32], float *score)
{
    const int32_t lane = threadIdx.x % WARP;
    float c[CHOOSE_TILES][CHOOSE_PARTS][4] = {};
#pragma unroll
    for (int j = 0; j < DIM / 32; j++)
#pragma unroll
        for (int p = 0; p < CHOOSE_PARTS; p++) {
#pragma unroll
            for (int u = 0; u < CHOOSE_TILES; u++)
                mma_bf16(c[u][p], s->q[p][2 * j][lane], key[u][j].x, key[u][j].y);
#pragma unroll
            for (int u = 0; u < CHOOSE_TILES; u++)
                mma_bf16(c[u][p], s->q[p][2 * j + 1][lane], key[u][j].z, key[u][j].w);
        }
#pragma unroll
    for (int u = 0; u < CHOOSE_TILES; u++) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = __fadd_rn(__fadd_rn(c[u][2][i], c[u][1][i]), c[u][0][i]);
            x[i] = x[i] > 0 ? x[i] : 0.0f;
        }
        float sum[2] = {__fadd_rn(x[0], x[2]), __fadd_rn(x[1], x[3])};
#pragma unroll
        for (int i = 0; i < 2; i++)
            sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(WHOLE_WARP, sum[i], 4));
        score[u] = lane / 4 % 2 ? sum[1] : sum[0];
    }
}

// Scores of `count` blocks from `base` on, by WARPS warps. place: where the lane's row has those of its own ones, `own` of them.
template <int DIM, int WARPS>
DEVICE void choose_scores(const struct index_select_args *a, const struct choose_space<DIM> *s,
                          const struct choose_run &run, int32_t base, int32_t count, float *place, int32_t own)
{
    constexpr int STEP = WARPS * CHOOSE_KEYS;
    const int32_t lane = threadIdx.x % WARP, column = lane % 4 * 2 + lane / 4 % 2;
    uint4 key[2][CHOOSE_TILES][DIM / 32];
    auto take = [&](int32_t at, const uint4(*rows)[DIM / 32]) {
        float score[CHOOSE_TILES];
        choose_products<DIM>(s, rows, score);
#pragma unroll
        for (int u = 0; u < CHOOSE_TILES; u++)
            if (at + 8 * u + column < own)
                place[at + 8 * u + column] = score[u];
    };
    int32_t at = (int32_t)threadIdx.x / WARP * CHOOSE_KEYS;
    if (at < count)
        choose_keys<DIM>(a, run, base + at, key[0]);
    for (; at < count; at += 2 * STEP) {
        if (at + STEP < count)
            choose_keys<DIM>(a, run, base + at + STEP, key[1]);
        take(at, key[0]);
        if (at + STEP >= count)
            break;
        if (at + 2 * STEP < count)
            choose_keys<DIM>(a, run, base + at + 2 * STEP, key[0]);
        take(at + STEP, key[1]);
    }
}

// ---- choice --------------------------------------------------------------------------------------------------------------------

// How many of the row's scores are at least `least` > 0; those up to a multiple of what a warp counts at a time are 0.
DEVICE int32_t choose_count(const float *score, int32_t total, uint32_t least)
{
    uint32_t count[CHOOSE_VECTOR] = {};
#pragma unroll 4
    for (int32_t i = (int32_t)(threadIdx.x % WARP) * CHOOSE_VECTOR; i < total; i += CHOOSE_VECTOR * WARP) {
        const uint4 x = *reinterpret_cast<const uint4 *>(score + i);
        count[0] += x.x >= least;
        count[1] += x.y >= least;
        count[2] += x.z >= least;
        count[3] += x.w >= least;
    }
    return (int32_t)__reduce_add_sync(WHOLE_WARP, count[0] + count[1] + (count[2] + count[3]));
}

// The largest score, as bits.
DEVICE uint32_t choose_top(const float *score, int32_t total)
{
    uint32_t top = 0;
    for (int32_t i = (int32_t)(threadIdx.x % WARP) * CHOOSE_VECTOR; i < total; i += CHOOSE_VECTOR * WARP) {
        const uint4 x = *reinterpret_cast<const uint4 *>(score + i);
        const uint32_t low = x.x > x.y ? x.x : x.y, high = x.z > x.w ? x.z : x.w, both = low > high ? low : high;
        top = both > top ? both : top;
    }
    return __reduce_max_sync(WHOLE_WARP, top);
}

// Finds the threshold of the best `keep` of `total` > keep scores; returns how many that equal it are among them, or all of them.
DEVICE int32_t choose_threshold(struct choose_row *row, int32_t total, int32_t keep)
{
    enum { OCTAVES = 2 << 23 }; // below the largest score: where most thresholds are
    uint32_t low = row->threshold,
             high = choose_top(row->score, total) + 1; // at least keep from low on, fewer from high on
    uint32_t middle = high - low > 2 * OCTAVES ? high - OCTAVES : low + (high - low) / 2;
    int32_t above = 0; // from high on
    for (; high - low > 1; middle = low + (high - low) / 2) {
        const int32_t count = choose_count(row->score, total, middle);
        if (count >= keep)
            low = middle;
        else
            high = middle, above = count;
        if (count == keep) {
            row->threshold = low;
            return total;
        }
    }
    row->threshold = low;
    return keep - above;
}

// Writes what is chosen of a row's `total` scores, the last ones of which are those of blocks from `base` on: ids to `to`, or, where that is
// NULL, ids and scores to where those chosen so far lie.
DEVICE void choose_write(struct choose_row *row, int32_t total, int32_t base, int32_t equal, int32_t *to)
{
    const int32_t lane = threadIdx.x % WARP;
    const uint32_t before = (1u << lane) - 1;
    int32_t at = 0;
    for (int32_t from = 0; from < total; from += WARP) {
        const int32_t i = from + lane;
        const uint32_t bits = i < total ? __float_as_uint(row->score[i]) : 0;
        const int32_t id = i < row->kept ? row->id[i] : base + i - row->kept;
        const uint32_t same = __ballot_sync(WHOLE_WARP, i < total && bits == row->threshold);
        const bool taken =
            i < total && (bits > row->threshold || (bits == row->threshold && __popc(same & before) < equal));
        const uint32_t all = __ballot_sync(WHOLE_WARP, taken);
        const int32_t place = at + __popc(all & before);
        __syncwarp(); // everybody has read
        if (taken && to) {
            to[place] = id;
        } else if (taken) {
            row->score[place] = __uint_as_float(bits);
            row->id[place] = id;
        }
        at += __popc(all);
        equal -= __popc(same);
        __syncwarp();
    }
    row->kept = at;
}

// Chooses from the row's list, which has the scores of blocks base .. base + count - 1 at its end. last: the row has no more.
DEVICE void choose_best(const struct index_select_args *a, struct choose_row *row, int32_t r, int32_t base,
                        int32_t count, bool last)
{
    const int32_t total = row->kept + count, lane = threadIdx.x % WARP, step = CHOOSE_VECTOR * WARP;
    for (int32_t i = total + lane; i < (total + step - 1) / step * step; i += WARP)
        row->score[i] = 0;
    __syncwarp();
    const int32_t equal = choose_threshold(row, total, a->keep);
    choose_write(row, total, base, equal, last ? a->blocks + (int64_t)r * a->keep : NULL);
}

template <int DIM, int WARPS>
__global__ void __launch_bounds__(WARPS *WARP, WARPS == CHOOSE_WARPS ? 3 : 1)
    choose_kernel(const __grid_constant__ struct index_select_args a)
{
    SHARED_BYTES(space);
    struct choose_space<DIM> *s = reinterpret_cast<struct choose_space<DIM> *>(space);
    const int32_t room = choose_room(a.keep), warp = threadIdx.x / WARP, first = (int32_t)blockIdx.x * CHOOSE_ROWS;
    float *scores = reinterpret_cast<float *>(space + sizeof *s);
    int32_t *ids = reinterpret_cast<int32_t *>(scores + CHOOSE_ROWS * (room + CHOOSE_PAD));
    pdl_wait();
    pdl_trigger();
    const int32_t rows = a.pass->rows, end = first + CHOOSE_ROWS < rows ? first + CHOOSE_ROWS : rows;
    if (first >= end)
        return;
    if ((int32_t)threadIdx.x < end - first)
        a.counts[first + threadIdx.x] = choose_blocks(&a, first + (int32_t)threadIdx.x) ? a.keep : -1;
    choose_queries<DIM>(&a, s, first, rows);
    __syncthreads();
    for (int32_t from = first; from < end;) {
        const struct choose_run run = choose_run_of(&a, from, end);
        const int32_t scored = first + (int32_t)(threadIdx.x % WARP) / 8,
                      r = first + warp; // rows of the lane, of the warp
        const int32_t n = warp < CHOOSE_ROWS && r >= run.from && r < run.to ? choose_blocks(&a, r) : 0,
                      other = scored >= run.from && scored < run.to ? choose_blocks(&a, scored) : 0;
        struct choose_row row = {scores + warp * (room + CHOOSE_PAD), ids + warp * a.keep, 0, 0};
        for (int32_t base = 0; base < run.most; base += CHOOSE_RANGE) {
            const int32_t left = run.most - base, count = left < CHOOSE_RANGE ? left : CHOOSE_RANGE;
            float *place = scores + (scored - first) * (room + CHOOSE_PAD) + (base > 0 ? a.keep : 0);
            choose_scores<DIM, WARPS>(&a, s, run, base, count, place, other - base < count ? other - base : count);
            __syncthreads();
            if (n > base)
                choose_best(&a, &row, r, base, n - base < count ? n - base : count, n - base <= CHOOSE_RANGE);
            __syncthreads();
        }
        from = run.to;
    }
}

// Bytes of a block's shared memory: less than any card has.
template <int DIM> static size_t choose_bytes(const struct index_select_args *a)
{
    const size_t row = sizeof(float) * (size_t)(choose_room(a->keep) + CHOOSE_PAD) + sizeof(int32_t) * (size_t)a->keep;
    return sizeof(struct choose_space<DIM>) + CHOOSE_ROWS * row;
}

// Whether the rows' choices are made here: by class and shapes alone, and where pooled rows can be read sixteen bytes at a time.
static inline bool choose_fits(const struct index_select_args *a)
{
    const struct kv_layout *kv = &a->layout;
    return a->row_class == CLASS_PROMPT && kv->index_encoding == KV_BF16 &&
           (kv->index_dim == 64 || kv->index_dim == 128) && a->heads <= CHOOSE_HEADS && a->keep <= CHOOSE_KEEP &&
           a->lanes.page % a->ratio == 0 && kv_fits(&a->lanes, kv, 8, KV_POOLED) &&
           choose_bytes<128>(a) <= block_room();
}

template <int DIM> static cudaError_t choose_launch(cudaStream_t stream, const struct index_select_args *a, int rows)
{
    const unsigned blocks = blocks_for(rows, CHOOSE_ROWS);
    if (blocks <= (unsigned)multiprocessors())
        return launch(stream, blocks, CHOOSE_WARPS_FEW * WARP, choose_bytes<DIM>(a),
                      choose_kernel<DIM, CHOOSE_WARPS_FEW>, *a);
    return launch(stream, blocks, CHOOSE_WARPS * WARP, choose_bytes<DIM>(a), choose_kernel<DIM, CHOOSE_WARPS>, *a);
}

#endif
