// SPDX-License-Identifier: Apache-2.0
//
// The indexer of sparse attention: pooled keys of completed blocks, and the choice of a row's blocks. A cluster chooses for a row;
// where a pass has few rows, several score the blocks of one that has many, and the last of them to come chooses.
//
// Invariant: a pooled row depends on its block's raw keys as stored and on the block's number; a score on the query and the
// pooled row alone. The choice is by integer counts, so it does not depend on how blocks are spread. Equal scores (the relu
// makes many zeros) go to the lower block. Counters are zero between launches.

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/index_rows.cuh"
#include "kernels/cuda/pool.cuh"
#include "kernels/cuda/scan.cuh"

// ---- index_pool: a warp a row; those that complete a block pool it -------------------------------------------------------------

__global__ void __launch_bounds__(WARP) index_pool_kernel(const __grid_constant__ struct index_pool_args a)
{
    extern __shared__ float row[]; // [index_dim]
    const struct kv_layout *kv = &a.layout;
    const int64_t r = blockIdx.x;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows)
        return;
    const int32_t position = a.pass->position[r];
    if ((position + 1) % a.ratio != 0)
        return;
    const uint32_t *table = a.lanes.table[a.pass->lane[r]];
    const struct pool_keys keys = {kv_row(&a.lanes, kv, table, KV_INDEX, position + 1 - a.ratio, 1), kv->index_bytes,
                                   NULL, 0, a.ratio};
    pool_block(&a, keys, table, position, row, (int32_t)threadIdx.x);
}

extern "C" cudaError_t cuda_index_pool(cudaStream_t stream, const struct index_pool_args *a, int rows)
{
    return launch(stream, (unsigned)rows, WARP, sizeof(float) * (size_t)a->layout.index_dim, index_pool_kernel, *a);
}

// ---- index_select: a cluster a row, each block a range of the row's blocks ------------------------------------------------------

enum {
    SELECT_THREADS = 256,
    SELECT_PARTS = 8,
    SELECT_HEADS = 4, // query heads at once
    SELECT_LANES = 8, // threads that share a pooled row
    SELECT_MANY = 4,  // pooled rows that they read at once
    SELECT_DIGIT = 8, // bits of a level of the radix descent
    SELECT_LEVELS = 32 / SELECT_DIGIT,
    SELECT_BINS = 1 << SELECT_DIGIT,
    SELECT_SCORES = 8192, // scores of a block of a cluster, at most
    SELECT_ALONE = 16384, // and of one that is alone
    SELECT_FEW_ROWS = 128,
    SELECT_CLUSTERS = 15, // that run at once
    SELECT_SHARED = 3072, // blocks of a row from which on several clusters score them
};

// How many blocks of a row's clusters have left their scores in scratch.
static __device__ unsigned int select_counter[INDEX_SCORES_ROWS];

// Shared memory of a block.
struct select_space {
    uint32_t bins[SELECT_LEVELS][SELECT_BINS];
    uint64_t scan[SELECT_THREADS / WARP];
    uint32_t found, left;                 // prefix of the last score that is in, and how many with it are wanted
    uint32_t above, equal;                // of this block's scores: above it, equal to it
    uint32_t arrived, last[SELECT_PARTS]; // whether this block, and which of the cluster's, came last
    float score[1];                       // as many as the launch gives
};

// Scores of blocks begin .. begin + count - 1.
template <int D>
DEVICE void select_scores(const struct index_select_args *a, int64_t r, int32_t begin, int32_t count, float *score,
                          bool fast)
{
    const struct kv_layout *kv = &a->layout;
    const int32_t part = threadIdx.x % SELECT_LANES, first = part * D, dim = kv->index_dim;
    const uint32_t *table = a->lanes.table[a->pass->lane[r]];
    const int32_t ahead = (first < dim ? first : 0) * (kv->index_encoding == KV_F32 ? 4 : 2);
    const float scale = 1.0f / sqrtf((float)dim), *query = a->q + r * a->ldq;
    for (int32_t group = 0; group < a->heads; group += SELECT_HEADS) {
        float q[SELECT_HEADS][D];
#pragma unroll
        for (int h = 0; h < SELECT_HEADS; h++)
#pragma unroll
            for (int d = 0; d < D; d++) {
                const bool real = group + h < a->heads && first + d < dim;
                q[h][d] = real ? query[(int64_t)(group + h) * dim + first + d] : 0.0f;
            }
        // Whole warps take the loop, so that the sums below have all their lanes; SELECT_MANY rows are under way at once, and the next
        // ones are asked for while these are multiplied.
        constexpr int STEP = SELECT_THREADS / SELECT_LANES;
        const uint8_t *row[SELECT_MANY];
        auto find = [&](int32_t start) {
#pragma unroll
            for (int u = 0; u < SELECT_MANY; u++) {
                const int32_t i = start + u * STEP + (int32_t)threadIdx.x % WARP / SELECT_LANES;
                row[u] = kv_row(&a->lanes, kv, table, KV_POOLED, begin + (i < count ? i : count - 1), a->ratio);
            }
        };
        int32_t start = (int32_t)threadIdx.x / WARP * (WARP / SELECT_LANES);
        if (start < count)
            find(start);
        for (; start < count; start += SELECT_MANY * STEP) {
            float key[SELECT_MANY][D];
#pragma unroll
            for (int u = 0; u < SELECT_MANY; u++)
                kv_load<D>(key[u], row[u], 0, dim, kv->index_encoding, first, fast);
            if (start + SELECT_MANY * STEP < count) {
                find(start + SELECT_MANY * STEP);
#pragma unroll
                for (int u = 0; u < SELECT_MANY; u++)
                    prefetch_l2(row[u] + ahead);
            }
#pragma unroll
            for (int u = 0; u < SELECT_MANY; u++) {
                const int32_t i = start + u * STEP + (int32_t)threadIdx.x % WARP / SELECT_LANES;
                float sum = group == 0 || i >= count ? 0.0f : score[i];
#pragma unroll
                for (int h = 0; h < SELECT_HEADS; h++) {
                    float dot = 0;
#pragma unroll
                    for (int d = 0; d < D; d++)
                        dot = fmaf(q[h][d], key[u][d], dot);
                    dot = warp_sum<SELECT_LANES>(dot);
                    sum = __fadd_rn(sum, dot > 0 ? dot : 0.0f);
                }
                if (part == 0 && i < count)
                    score[i] = group + SELECT_HEADS >= a->heads ? f_mul(sum, scale) : sum;
                __syncwarp();
            }
        }
    }
}

// Counts a level's digits of the scores that have the prefix so far.
DEVICE void select_count(struct select_space *s, int level, int32_t count)
{
    const int shift = SELECT_DIGIT * (SELECT_LEVELS - 1 - level);
    const uint32_t found = s->found;
    for (int32_t i = (int32_t)threadIdx.x; i < count; i += SELECT_THREADS) {
        const uint32_t bits = __float_as_uint(s->score[i]) >> shift;
        if (level == 0 || bits >> SELECT_DIGIT == found)
            atomicAdd(&s->bins[level][bits % SELECT_BINS], 1u);
    }
}

// Takes one digit more, from the counts of the whole cluster: thread t has bin t from the top.
DEVICE void select_level(struct select_space *s, int level, int32_t parts)
{
    static_assert(SELECT_BINS == SELECT_THREADS, "a bin a thread");
    const uint32_t found = s->found, left = s->left, bin = SELECT_BINS - 1 - threadIdx.x;
    uint32_t sum = 0;
    cluster_sync();
#pragma unroll SELECT_PARTS
    for (int32_t p = 0; p < parts; p++)
        sum += *cluster_map(&s->bins[level][bin], (unsigned)p);
    const uint32_t before = (uint32_t)block_scan<SELECT_THREADS>(sum, s->scan);
    if (before < left && left <= before + sum) {
        s->found = found << SELECT_DIGIT | bin;
        s->left = left - before;
    }
    __syncthreads();
}

// Where the next chosen block of a row goes, and how many of those that equal the last score are still wanted.
struct select_place {
    int32_t at, left;
};

// Writes the chosen blocks of this part, ascending, behind those of the parts before it; `next` moves on by those of all parts.
DEVICE void select_write(const struct index_select_args *a, struct select_space *s, int64_t r, int32_t begin,
                         int32_t count, int32_t part, int32_t parts, struct select_place *next)
{
    const uint32_t found = s->found;
    const int32_t each = (count + SELECT_THREADS - 1) / SELECT_THREADS | 1, // odd, against bank conflicts
        from = (int32_t)threadIdx.x * each < count ? (int32_t)threadIdx.x * each : count;
    const int32_t to = from + each < count ? from + each : count;
    uint64_t mine = 0; // scores above in the high half, equal in the low half
    for (int32_t i = from; i < to; i++) {
        const uint32_t bits = __float_as_uint(s->score[i]);
        mine += bits > found ? 1ull << 32 : bits == found;
    }
    const uint64_t before = block_scan<SELECT_THREADS>(mine, s->scan);
    if (threadIdx.x == SELECT_THREADS - 1) {
        s->above = (uint32_t)((before + mine) >> 32);
        s->equal = (uint32_t)(before + mine);
    }
    cluster_sync();
    int32_t at = 0, left = 0;
    for (int32_t p = 0; p < parts; p++) {
        const int32_t equal = (int32_t)*cluster_map(&s->equal, (unsigned)p),
                      taken = equal < next->left ? equal : next->left;
        if (p == part)
            at = next->at, left = next->left;
        next->at += (int32_t)*cluster_map(&s->above, (unsigned)p) + taken;
        next->left -= taken;
    }
    const int32_t above = (int32_t)(before >> 32), equal = (int32_t)(uint32_t)before;
    at += above + (equal < left ? equal : left);
    left = equal < left ? left - equal : 0;
    for (int32_t i = from; i < to; i++) {
        const uint32_t bits = __float_as_uint(s->score[i]);
        if (bits > found || (bits == found && left-- > 0))
            a->blocks[r * a->keep + at++] = begin + i;
    }
    cluster_sync();
}

// The range of the row's n blocks that is one of `parts`.
struct select_range {
    int32_t begin, count;
};

DEVICE struct select_range select_range_of(int32_t n, int32_t part, int32_t parts)
{
    const int32_t size = (n + parts - 1) / parts, begin = size * part < n ? size * part : n;
    return {begin, n - begin < size ? n - begin : size};
}

// Scores the row's n blocks with all of its clusters. Returns whether this one came last: it has the scores of its own
// parts then, and makes the choice.
template <int D>
DEVICE bool select_together(const struct index_select_args *a, struct select_space *s, int64_t r, int32_t n,
                            int32_t parts, bool fast)
{
    const int32_t part = (int32_t)blockIdx.x, blocks = parts * (int32_t)gridDim.z;
    cluster_arrive_read();
    const struct select_range scored = select_range_of(n, (int32_t)blockIdx.z * parts + part, blocks);
    float *scores = (float *)a->scratch + r * INDEX_SCORES;
    select_scores<D>(a, r, scored.begin, scored.count, s->score, fast);
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < scored.count; i += SELECT_THREADS)
        __stcg(scores + scored.begin + i, s->score[i]);
    const bool mine = come_last(&select_counter[r], (unsigned)blocks, &s->arrived);
    cluster_wait(); // all blocks of the cluster have begun
    if ((int32_t)threadIdx.x < parts)
        *cluster_map(&s->last[part], threadIdx.x) = mine;
    cluster_sync();
    bool last = false;
    for (int32_t p = 0; p < parts; p++)
        last = last || s->last[p];
    if (!last)
        return false;
    const struct select_range chosen = select_range_of(n, part, parts);
    for (int32_t i = (int32_t)threadIdx.x; i < chosen.count; i += SELECT_THREADS)
        s->score[i] = __ldcg(scores + chosen.begin + i);
    __syncthreads();
    return true;
}

template <int D>
__global__ void __launch_bounds__(SELECT_THREADS)
    index_select_kernel(const __grid_constant__ struct index_select_args a, int32_t parts, int32_t most, int32_t alone,
                        bool fast)
{
    extern __shared__ __align__(16) uint8_t shared[];
    struct select_space *s = reinterpret_cast<struct select_space *>(shared);
    const int32_t part = (int32_t)blockIdx.x, share = (int32_t)blockIdx.z, shares = (int32_t)gridDim.z;
    const int64_t r = blockIdx.y;
    if (share == 0)
        pdl_wait();
    const volatile struct pass *pass = a.pass; // so that neither number waits for the other
    const int32_t *position_of = pass->position;
    const int32_t live = pass->rows, n = (__ldcg(position_of + r) + 1) / a.ratio;
    const bool together = shares > 1 && n >= SELECT_SHARED && n <= INDEX_SCORES && n <= most * parts;
    if (share > 0 && (r >= live || !together))
        return; // the row's first cluster waits; passes of the decode class lie there (launch.cuh)
    pdl_wait();
    pdl_trigger();
    if (r >= live)
        return;
    if (n <= alone) // many rows: a block has one for itself, and the rest of its cluster goes
        parts = 1;
    if (part >= parts)
        return;
    if (share == 0 && part == 0 && threadIdx.x == 0)
        a.counts[r] = n <= a.keep ? -1 : a.keep;
    if (n <= a.keep)
        return;
    for (int level = 0; level < SELECT_LEVELS; level++)
        s->bins[level][threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        s->found = 0;
        s->left = (uint32_t)a.keep;
    }
    if (together && !select_together<D>(&a, s, r, n, parts, fast))
        return;
    // Ranges that the cluster's blocks have room for, one after the other; where there are several, scores are made anew each time.
    const int32_t ranges = (n + most * parts - 1) / (most * parts), length = ranges > 1 ? most * parts : n;
    auto each_range = [&](bool first, auto then) {
        for (int32_t from = 0; from < n; from += length) {
            const struct select_range own = select_range_of(n - from < length ? n - from : length, part, parts);
            if ((first && !together) || ranges > 1) {
                __syncthreads(); // nobody may still read the scores of the range before
                select_scores<D>(&a, r, from + own.begin, own.count, s->score, fast);
                __syncthreads();
            }
            then(from + own.begin, own.count);
        }
    };
    for (int level = 0; level < SELECT_LEVELS; level++) {
        each_range(level == 0, [&](int32_t, int32_t count) { select_count(s, level, count); });
        select_level(s, level, parts);
    }
    struct select_place next = {0, (int32_t)s->left};
    each_range(false, [&](int32_t begin, int32_t count) { select_write(&a, s, r, begin, count, part, parts, &next); });
}

template <int D> static cudaError_t select_launch(cudaStream_t stream, const struct index_select_args *a, int rows)
{
    const bool fast = kv_fits(&a->lanes, &a->layout, D, KV_POOLED) && a->lanes.page % a->ratio == 0;
    const int32_t parts = clusters_available() ? SELECT_PARTS : 1, wanted = parts > 1 ? SELECT_SCORES : SELECT_ALONE;
    const int32_t room =
        (int32_t)(((int64_t)block_room() - (int64_t)sizeof(struct select_space)) / (int64_t)sizeof(float));
    const int32_t most = room < wanted ? room : wanted;
    if (most < 1)
        return cudaErrorInvalidValue;
    const int32_t shares = a->scratch && rows <= INDEX_SCORES_ROWS ? SELECT_CLUSTERS / rows : 1;
    return launch_cluster(stream, dim3((unsigned)parts, (unsigned)rows, (unsigned)shares), SELECT_THREADS,
                          sizeof(struct select_space) + sizeof(float) * (size_t)most, (unsigned)parts,
                          index_select_kernel<D>, *a, parts, most, rows > SELECT_FEW_ROWS ? most : 0, fast);
}

extern "C" cudaError_t cuda_index_select(cudaStream_t stream, const struct index_select_args *a, int rows)
{
    if (choose_fits(a))
        return a->layout.index_dim == 128 ? choose_launch<128>(stream, a, rows) : choose_launch<64>(stream, a, rows);
    if (a->layout.index_dim <= 4 * SELECT_LANES)
        return select_launch<4>(stream, a, rows);
    if (a->layout.index_dim <= 8 * SELECT_LANES)
        return select_launch<8>(stream, a, rows);
    if (a->layout.index_dim <= 16 * SELECT_LANES)
        return select_launch<16>(stream, a, rows);
    return cudaErrorInvalidValue;
}
