// SPDX-License-Identifier: Apache-2.0
//
// Prompt-class products on warpgroups (sm_90a): tiles of 8 NT rows by 128 outputs a group of four warps, a pair of
// panels a warp.
//
// Rows of x are prepared in scratch as 16-bit numbers in the order of fragments, once or, where PARTS is 2, with a
// second part of what the first leaves; fp16 rows are scaled by a power of two of the row, and have the sums of each
// block of 32 k beside them. One warpgroup brings tiles of rows and weights to shared memory by asynchronous copies,
// stage after stage; the others decode weights in registers while the products of the block before run. Where outputs
// are few and k is long, the blocks of a cluster share a tile, a slice of k each, and each finishes some of its rows
// with all blocks' sums.
//
// Invariant: a row's result is, slice after slice added in ascending order, one chain over the slice's ascending
// blocks, then over its share of the blocks' sums, whatever NT, its place and its company; PARTS and slices come from
// the weight's shape. A stage is read when all its copies have arrived at its barrier `full`, and its place is filled
// again when all warps that multiply have arrived at `empty`, with the products that read it waited for.

#ifndef WIDE_CUH
#define WIDE_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/prompt.cuh"
#include "kernels/cuda/wide_code.cuh"

// Where prepared rows lie: row r of part p at data + p * part_bytes + r * 64 * blocks; its sums, 16 bits each, at sums
// + r * sum_bytes, zeros behind the last; what its products are to be multiplied with at scale[r].
struct wide_rows {
    unsigned char *data, *sums;
    float *scale;
    int64_t part_bytes;
    int32_t blocks, sum_bytes;
};

static inline wide_rows wide_rows_at(void *scratch, int64_t rows, int k)
{
    wide_rows p;
    p.blocks = (k + 31) / 32;
    p.part_bytes = rows * p.blocks * 64;
    p.sum_bytes = (p.blocks + 63) / 64 * 128;
    p.data = (unsigned char *)scratch;
    p.sums = p.data + 2 * p.part_bytes;
    p.scale = (float *)(p.sums + rows * p.sum_bytes);
    return p;
}

// Whether the card and the build have the products, and the weight a form for them.
bool wide_available(const struct weight *w);

// Whether rows for the weight are fp16.
static inline bool wide_half(const struct weight *w)
{
    return w->encoding == ENC_AFFINE;
}

enum { SLICES_WIDE = 8 }; // slices of k at most: the blocks that a cluster may have on every card

// Slices of k of a weight's tiles: of those with few outputs, as long as a slice has enough stages to pay for the sum.
static inline int wide_slices(const struct weight *w)
{
    const int stages = (w->k + 63) / 64, most = w->n <= PRECISE_OUTPUTS ? SLICES_WIDE : w->n <= 5120 ? 4 : 1;
    const int least = w->n <= PRECISE_OUTPUTS ? 10 : 20;
    int slices = 1;
    while (slices < most && stages / (2 * slices) >= least)
        slices *= 2;
    return slices;
}

// Prepares pass->rows * multiple rows of x for at most `rows`, in `parts` parts.
cudaError_t wide_prepare(cudaStream_t stream, const struct pass *pass, int multiple, const float *x, int64_t ldx, int k,
                         int64_t rows, bool half, int parts, const wide_rows &to);

// cuda_linear of the parts whose bits `parts` has; cuda_experts_up and cuda_experts_down. Prompt class; every weight of
// theirs is wide_available().
cudaError_t linear_wide(cudaStream_t stream, const struct linear_args *args, int rows, int parts);
cudaError_t experts_up_wide(cudaStream_t stream, const struct experts_up_args *args, int rows);
cudaError_t experts_down_wide(cudaStream_t stream, const struct experts_down_args *args, int rows);

// A block of GROUPS warpgroups that multiply, and one that copies; tiles have at most 8 NT rows. A stage: 64 k of the
// rows, then the warps' weights.
template <class CODE, int NT, int PARTS, int GROUPS> struct wide_shape {
    static constexpr int ROWS = NT * 8, WARPS = GROUPS * 4, THREADS = WARPS * 32 + 128, PLANE = ROWS * 128;
    static constexpr int WEIGHTS_AT = PARTS * PLANE;
    static constexpr int STAGE = (WEIGHTS_AT + 2 * WARPS * CODE::BLOCK_BYTES + 1023) / 1024 * 1024;
    static constexpr int BLOCKS = GROUPS == 1 && NT > 4 ? 2 : 1; // that share a multiprocessor
    static constexpr int ROOM = (BLOCKS == 2 ? 108 : 220) * 1024 / STAGE;
    static constexpr int REGISTERS = GROUPS == 1 ? 216 : 232; // of a thread that multiplies, where COPY_REGISTERS copy
    static constexpr int STAGES = ROOM < 2 ? 2 : ROOM > 8 ? 8 : ROOM;
    // What the place may lack to 1024, stages, barriers, rows.
    static constexpr int BYTES = 1024 + STAGES * (STAGE + 16) + ROWS * 4;
};

// What a block's threads know of the tile.
template <class CODE, int NT, int PARTS, int GROUPS> struct wide_tile {
    typedef wide_shape<CODE, NT, PARTS, GROUPS> SHAPE;
    unsigned char *memory;  // at a multiple of 1024
    uint64_t *full, *empty; // barriers of the stages
    int32_t *rows;          // [8 NT] numbers among the prepared rows, -1: none
    wide_rows x;
    int first_stage, main_stages, stages; // of the whole k, the first of the slice; of the slice: those of weights, all
    int first_group, groups;              // sixteen blocks' sums each, of the slice

    __device__ __forceinline__ unsigned char *stage(int s) const
    {
        return memory + s % SHAPE::STAGES * SHAPE::STAGE;
    }
};

// Opens slice `slice` of a tile, by all threads: what depends on shapes alone.
template <class CODE, int NT, int PARTS, int GROUPS>
__device__ __forceinline__ void wide_open(wide_tile<CODE, NT, PARTS, GROUPS> *tile, unsigned char *memory,
                                          const wide_rows &x, int slice, int slices)
{
    typedef wide_shape<CODE, NT, PARTS, GROUPS> SHAPE;
    tile->memory = wgmma_align(memory);
    tile->full = (uint64_t *)(tile->memory + SHAPE::STAGES * SHAPE::STAGE);
    tile->empty = tile->full + SHAPE::STAGES;
    tile->rows = (int32_t *)(tile->empty + SHAPE::STAGES);
    tile->x = x;
    const int all = (x.blocks + 1) / 2, groups = (x.blocks + 15) / 16;
    tile->first_stage = share_begin(all, slice, slices);
    tile->main_stages = share_begin(all, slice + 1, slices) - tile->first_stage;
    tile->first_group = share_begin(groups, slice, slices);
    tile->groups = share_begin(groups, slice + 1, slices) - tile->first_group;
    tile->stages = tile->main_stages + (wide_code<CODE>::BIASED ? (tile->groups + 3) / 4 : 0);
    if (threadIdx.x < SHAPE::STAGES) {
        barrier_init(tile->full + threadIdx.x, 128);
        barrier_init(tile->empty + threadIdx.x, SHAPE::WARPS);
    }
}

// Fills rows[8 NT] by READY, when what they depend on is there; returns what it returns: how many there are.
template <class CODE, int NT, int PARTS, int GROUPS, class READY>
__device__ __forceinline__ int wide_begin(const wide_tile<CODE, NT, PARTS, GROUPS> &tile, READY ready)
{
    const int count = ready(tile.rows);
    __syncthreads();
    return count;
}

enum { COPY_REGISTERS = 40 };

// Where a warp that copies finds weights: those of every fourth of the warps that multiply. next: bytes from a pair's
// first panel to its second.
template <int GROUPS> struct wide_sources {
    lane_weights place[GROUPS];
    int next[GROUPS];

    // PLACE: a lane's place in a warp's pair.
    template <class PLACE> __device__ __forceinline__ void find(PLACE place_of)
    {
        const int warp = threadIdx.x >> 5 & 3;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            place[g] = place_of(4 * g + warp, threadIdx.x & 31);
            place[g].data = place_of(4 * g + warp, 0).data;
            next[g] = (int)(place_of(4 * g + warp, 16).data - place[g].data);
        }
    }
};

// Starts the copies of stage s of the weights.
template <class CODE, int NT, int PARTS, int GROUPS>
__device__ __forceinline__ void wide_copy_weights(const wide_tile<CODE, NT, PARTS, GROUPS> &tile,
                                                  const wide_sources<GROUPS> &from, int s)
{
    const int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, blocks = tile.x.blocks,
              first = 2 * (tile.first_stage + s);
    unsigned char *to = tile.stage(s) + wide_shape<CODE, NT, PARTS, GROUPS>::WEIGHTS_AT;
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int i = 0; i < 2; i++) { // a last block that is not there is the one before once more, times zeros
            const int block = first + i < blocks ? first + i : blocks - 1;
            unsigned char *weights = to + (2 * (4 * g + warp) + i) * CODE::BLOCK_BYTES;
            wide_request<wide_code<CODE>::ROWS>(weights, from.place[g].data, from.next[g], block, lane);
            CODE::request_scale(weights, from.place[g], block, lane);
        }
}

// The warpgroup that copies: all stages of the first 8 USED rows and of the warps' weights, whose first `early` stages
// are under way. A thread has the same piece of every sixteenth row.
template <class CODE, int NT, int PARTS, int GROUPS, int USED>
__device__ __forceinline__ void wide_copy(const wide_tile<CODE, NT, PARTS, GROUPS> &tile,
                                          const wide_sources<GROUPS> &weights, int early)
{
    typedef wide_shape<CODE, NT, PARTS, GROUPS> SHAPE;
    constexpr uint32_t NOWHERE = 0xffffffffu;
    const int thread = threadIdx.x & 127, piece = thread & 7, first = thread >> 3, blocks = tile.x.blocks;
    uint32_t from[(USED + 1) / 2]; // pieces from x.data on
#pragma unroll
    for (int i = 0; i < (USED + 1) / 2; i++) {
        const int row = tile.rows[first + i * 16];
        from[i] = row < 0 ? NOWHERE : (uint32_t)(row * (blocks * 4)) + piece;
    }
    for (int s = 0; s < tile.stages; s++) {
        unsigned char *to = tile.stage(s);
        if (s >= SHAPE::STAGES)
            barrier_wait(tile.empty + s % SHAPE::STAGES, (s / SHAPE::STAGES - 1) & 1);
        if (wide_code<CODE>::BIASED && s >= tile.main_stages) {
            const int group = (s - tile.main_stages) * 4 + piece / 2;
            const unsigned char *sums = tile.x.sums + (tile.first_group + group) * 32 + piece % 2 * 16;
            for (int r = first; r < USED * 8; r += 16) {
                const int row = group < tile.groups ? tile.rows[r] : -1;
                copy16(to + wgmma_place(r, piece), row < 0 ? tile.x.sums : sums + (int64_t)row * tile.x.sum_bytes,
                       row < 0 ? 0 : 16);
            }
        } else {
            const int at = tile.first_stage + s;
            if (s >= early)
                wide_copy_weights<CODE, NT, PARTS, GROUPS>(tile, weights, s);
            const bool inside = at * 8 + piece < blocks * 4;
#pragma unroll
            for (int i = 0; i < (USED + 1) / 2; i++) {
                const bool live = inside && from[i] != NOWHERE;
                const unsigned char *source = tile.x.data + (live ? (int64_t)(from[i] + at * 8) * 16 : 0);
#pragma unroll
                for (int p = 0; p < PARTS; p++)
                    copy16(to + p * SHAPE::PLANE + wgmma_place(first + i * 16, piece), source + p * tile.x.part_bytes,
                           live ? 16 : 0);
            }
        }
        barrier_arrive_copied(tile.full + s % SHAPE::STAGES);
    }
}

// Products of one block's fragments with 8 USED rows: part p, step j of the block that begins at piece `piece`.
template <class CODE, int USED, int PARTS, int PLANE>
__device__ __forceinline__ void wide_block(const uint32_t a[2][2][4], const unsigned char *x, int piece,
                                           float acc[2][USED * 4])
{
    const wgmma_source rows = wgmma_rows(x);
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
            for (int t = 0; t < 2; t++)
                wgmma<USED, wide_code<CODE>::HALF>(acc[t], a[j][t], wgmma_at(rows, p * PLANE, piece + 2 * j));
}

// Sums that a scale is left for, to the tile's: acc += scale * fresh.
template <class CODE, int USED>
__device__ __forceinline__ void wide_fold(const CODE &code, float fresh[2][USED * 4], float acc[2][USED * 4])
{
    float scale[4], bias;
#pragma unroll
    for (int o = 0; o < 4; o++)
        code.outcome(o, &scale[o], &bias);
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int i = 0; i < USED * 4; i++) {
            acc[t][i] = fmaf(scale[2 * t + (i >> 1 & 1)], fresh[t][i], acc[t][i]);
            fresh[t][i] = 0;
        }
}

// Waits for stage s, whose rows products may read then.
template <class CODE, int NT, int PARTS, int GROUPS>
__device__ __forceinline__ const unsigned char *wide_next(const wide_tile<CODE, NT, PARTS, GROUPS> &tile, int s)
{
    typedef wide_shape<CODE, NT, PARTS, GROUPS> SHAPE;
    barrier_wait(tile.full + s % SHAPE::STAGES, s / SHAPE::STAGES & 1);
    wgmma_publish();
    return tile.stage(s);
}

// Gives the place of stage s back: the warp's products with it are done.
template <class CODE, int NT, int PARTS, int GROUPS>
__device__ __forceinline__ void wide_release(const wide_tile<CODE, NT, PARTS, GROUPS> &tile, int s)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(tile.empty + s % wide_shape<CODE, NT, PARTS, GROUPS>::STAGES);
}

// The tile's products with the first 8 USED rows: acc[t][4 n + i] of row 8 n + 2 (lane % 4) + i % 2 and the lane's
// output 2 t + i / 2, without the row's scale. By warpgroups that multiply; place: the lane's in the warp's pair.
template <class CODE, int NT, int PARTS, int GROUPS, int USED>
__device__ __forceinline__ void wide_run(const wide_tile<CODE, NT, PARTS, GROUPS> &tile, const lane_weights &place,
                                         float acc[2][USED * 4])
{
    typedef wide_shape<CODE, NT, PARTS, GROUPS> SHAPE;
    typedef wide_code<CODE> WIDE;
    constexpr int FOLD = WIDE::FOLD;
    const int lane = threadIdx.x & 31, blocks = tile.x.blocks;
    const int codes = wide_piece(0, lane >> 4, lane >> 2 & 3, lane & 3);
    float fresh[2][FOLD ? USED * 4 : 1];
    uint32_t a[2][2][2][4];
    CODE code;
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int i = 0; i < USED * 4; i++) {
            acc[t][i] = 0;
            if constexpr (FOLD != 0)
                fresh[t][i] = 0;
        }
    for (int s = 0; s < tile.main_stages; s++) {
        const unsigned char *at = wide_next<CODE, NT, PARTS, GROUPS>(tile, s);
        const unsigned char *weights = at + SHAPE::WEIGHTS_AT + (threadIdx.x >> 5) * 2 * CODE::BLOCK_BYTES;
#pragma unroll
        for (int i = 0; i < 2; i++) { // no branch in here: fragments are made while products run
            wide_fetch<CODE, WIDE>(code, weights + i * CODE::BLOCK_BYTES, lane, codes);
            WIDE::fragments(code, lane & 3, a[i]);
            wgmma_fence(a[i]);
            if constexpr (FOLD != 0)
                wide_block<CODE, USED, PARTS, SHAPE::PLANE>(a[i], at, 4 * i, fresh);
            else
                wide_block<CODE, USED, PARTS, SHAPE::PLANE>(a[i], at, 4 * i, acc);
            wgmma_commit();
            wgmma_wait<1>();
            if (i == 0 && s > 0)
                wide_release<CODE, NT, PARTS, GROUPS>(tile, s - 1);
        }
        if constexpr (FOLD != 0) {
            wgmma_settle<USED * 4>(fresh[0]);
            wgmma_settle<USED * 4>(fresh[1]);
            wide_fold<CODE, USED>(code, fresh, acc);
        }
    }
    wgmma_wait<0>();
    if constexpr (WIDE::BIASED) {
        wide_release<CODE, NT, PARTS, GROUPS>(tile, tile.main_stages - 1);
        for (int s = tile.main_stages; s < tile.stages; s++) {
            const unsigned char *at = wide_next<CODE, NT, PARTS, GROUPS>(tile, s);
            for (int b = 0, first = (s - tile.main_stages) * 4; b < 4 && first + b < tile.groups; b++) {
                WIDE::bias_fragments(place, 16 * (tile.first_group + first + b), blocks, lane & 3, a[0]);
                wgmma_fence(a[0]);
#pragma unroll
                for (int p = 0; p < 2; p++)
#pragma unroll
                    for (int t = 0; t < 2; t++)
                        wgmma<USED, WIDE::HALF>(acc[t], a[0][p][t], wgmma_at(wgmma_rows(at), 0, 2 * b));
                wgmma_commit();
                wgmma_wait<0>();
            }
            wide_release<CODE, NT, PARTS, GROUPS>(tile, s);
        }
    }
#pragma unroll
    for (int t = 0; t < 2; t++) {
        wgmma_settle<USED * 4>(acc[t]);
#pragma unroll
        for (int i = 0; i < USED * 4; i++)
            acc[t][i] *= WIDE::factor();
    }
}

// Where a warp's sums wait for their rows: row by row, so that few instructions, in a loop, finish and store them.
enum { PARKED = 36 }; // floats a row of 32 outputs

template <class CODE, int NT, int PARTS, int GROUPS>
__device__ __forceinline__ float *wide_parking(const wide_tile<CODE, NT, PARTS, GROUPS> &tile, int warp)
{
    typedef wide_shape<CODE, NT, PARTS, GROUPS> SHAPE;
    static_assert(SHAPE::WARPS * SHAPE::ROWS * PARKED * 4 <= SHAPE::STAGES * SHAPE::STAGE, "sums go where stages were");
    return (float *)tile.memory + warp * (SHAPE::ROWS * PARKED);
}

// Puts the warp's sums there, when all warps that multiply are done with the stages.
template <class CODE, int NT, int PARTS, int GROUPS, int USED>
__device__ __forceinline__ void wide_park(const wide_tile<CODE, NT, PARTS, GROUPS> &tile, const float acc[2][USED * 4])
{
    const int lane = threadIdx.x & 31;
    float *to = wide_parking(tile, threadIdx.x >> 5) + sum_output(0, lane);
    barrier_some(1, wide_shape<CODE, NT, PARTS, GROUPS>::WARPS * 32);
#pragma unroll
    for (int n = 0; n < USED; n++)
#pragma unroll
        for (int c = 0; c < 2; c++)
            *(float4 *)(to + (n * 8 + sum_row(c, lane)) * PARKED) =
                make_float4(acc[0][n * 4 + c], acc[0][n * 4 + 2 + c], acc[1][n * 4 + c], acc[1][n * 4 + 2 + c]);
}

// Four sums that the blocks of a cluster parked at the same place, added in ascending order of the slices.
__device__ __forceinline__ float4 wide_sum(float *parked, int slices)
{
    if (slices == 1)
        return *(const float4 *)parked;
    float4 part[SLICES_WIDE];
#pragma unroll
    for (int s = 0; s < SLICES_WIDE; s++)
        part[s] = s < slices ? *(const float4 *)cluster_map(parked, s) : make_float4(0, 0, 0, 0);
    float4 sum = part[0];
#pragma unroll
    for (int s = 1; s < SLICES_WIDE; s++) {
        sum.x += part[s].x;
        sum.y += part[s].y;
        sum.z += part[s].z;
        sum.w += part[s].w;
    }
    return sum;
}

#endif
