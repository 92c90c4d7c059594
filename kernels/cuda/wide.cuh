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

// Where prepared rows lie, in pieces of 16 bytes: piece i of eight of 64 k (stage s) of row r of part p at data + p * part_bytes + 16
// (s * stage_step + r * row_step + (i ^ r & mask)); its sums, 16 bits each, as stages of 64, zeros behind the last, at sums
// likewise, with sum_row and sum_stage; what its products are to be multiplied with at scale[r]. Rows lie one after the
// other (mask 0), so that a tile may take any, or all rows' stages do (mask 7), as they are in shared memory (wgmma_place()),
// so that a tile of neighbours is one copy a stage.
struct wide_rows {
    unsigned char *data, *sums;
    float *scale;
    int64_t part_bytes;
    int32_t blocks, row_step, stage_step, sum_row, sum_stage, mask;
};

static inline wide_rows wide_rows_at(void *scratch, int64_t rows, int k, bool staged = false)
{
    wide_rows p;
    const int32_t sum_stages = ((k + 31) / 32 + 63) / 64;
    p.blocks = (k + 31) / 32;
    p.part_bytes = rows * p.blocks * 64;
    p.data = (unsigned char *)scratch;
    p.sums = p.data + 2 * p.part_bytes;
    p.scale = (float *)(p.sums + rows * sum_stages * 128);
    p.mask = staged ? 7 : 0;
    p.row_step = staged ? 8 : p.blocks * 4;
    p.stage_step = staged ? (int32_t)rows * 8 : 8;
    p.sum_row = staged ? 8 : sum_stages * 8;
    p.sum_stage = p.stage_step;
    return p;
}

// Piece `piece` of all of row r, counted from data; of its sums, from sums.
__device__ __forceinline__ int64_t wide_at(const wide_rows &x, int64_t r, int piece)
{
    return (int64_t)(piece >> 3) * x.stage_step + r * x.row_step + ((piece & 7) ^ ((int)r & x.mask));
}
__device__ __forceinline__ int64_t wide_sums_at(const wide_rows &x, int64_t r, int piece)
{
    return (int64_t)(piece >> 3) * x.sum_stage + r * x.sum_row + ((piece & 7) ^ ((int)r & x.mask));
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

// Prepares pass->rows * multiple rows of x for at most `rows`, in `parts` parts. early: the launch right before lets the
// next one start only when all launches before it have ended, and neither writes x nor reads or writes `to`. glu: of its outputs, which are
// stored nowhere, instead of x.
cudaError_t wide_prepare(cudaStream_t stream, const struct pass *pass, int multiple, const float *x, int64_t ldx, int k,
                         int64_t rows, bool half, int parts, bool early, const wide_rows &to,
                         const struct glu_args *glu = NULL);

// cuda_linear of the parts whose bits `parts` has; cuda_experts_up and cuda_experts_down. Prompt class; every weight of
// theirs is wide_available(). there: rows lie in scratch as the weights need them (linear_wide_rows(); experts: wide_rows_at()), all in
// one form, and x is not looked at. glu: as in wide_prepare(). to: where they are to lie, one bf16 part, in place of h; whole blocks of k;
// NULL: h.
wide_rows linear_wide_rows(const struct linear_args *args, int rows, int parts);
cudaError_t linear_wide(cudaStream_t stream, const struct linear_args *args, int rows, int parts, bool there,
                        const struct glu_args *glu = NULL);
// The same for many rows, of the parts that `take` names: of one encoding and as many slices of k, such that tall_takes() says so of
// each, and tall_pays() of all their tiles of 128 outputs (tall.cuh); rows lie in x already, by stages.
bool tall_takes(const struct weight *w, int64_t rows);
bool tall_pays(int64_t rows, int tiles, int slices);
cudaError_t linear_tall(cudaStream_t stream, const struct linear_args *args, const wide_rows &x, int take, int aligned,
                        int slices, int64_t rows);
cudaError_t experts_up_wide(cudaStream_t stream, const struct experts_up_args *args, const wide_rows *to, int rows);
cudaError_t experts_down_wide(cudaStream_t stream, const struct experts_down_args *args, bool there, int rows);

// A block of GROUPS warpgroups that multiply, and one that copies; tiles have at most 8 NT rows. A stage: 64 PLANES k of
// the rows, then the warps' weights. SHARE blocks share a multiprocessor, and each has ROOM bytes for stages; a thread
// that copies has COPY registers.
template <class WEIGHT, int TILES, int X_PARTS, int WARPGROUPS, int PER_STAGE, int SHARE, int ROOM, int COPY>
struct wide_form {
    typedef WEIGHT CODE;
    static constexpr int NT = TILES, PARTS = X_PARTS, GROUPS = WARPGROUPS, PLANES = PER_STAGE, BLOCKS = SHARE;
    static constexpr int ROWS = NT * 8, WARPS = GROUPS * 4, THREADS = WARPS * 32 + 128, PLANE = ROWS * 128;
    static constexpr int EACH = 2 * PLANES; // blocks of 32 k a stage
    static constexpr int WEIGHTS_AT = PLANES * PARTS * PLANE, WARP_BYTES = EACH * CODE::BLOCK_BYTES;
    static constexpr int STAGE = (WEIGHTS_AT + WARPS * WARP_BYTES + 1023) / 1024 * 1024;
    static constexpr int FIT = ROOM / STAGE, STAGES = FIT < 2 ? 2 : FIT > 8 ? 8 : FIT;
    // Of a thread that multiplies: what the compiler gives each at first (launch bounds) is dealt out anew.
    static constexpr int COPY_REGISTERS = COPY;
    static constexpr int REGISTERS = GROUPS == 1   ? 256 - COPY
                                     : GROUPS == 3 ? (512 - COPY) / 24 * 8
                                     : BLOCKS == 2 ? 120 - COPY / 2
                                                   : 252 - COPY / 2;
    // What the place may lack to 1024, stages, their barriers.
    static constexpr int BYTES = 1024 + STAGES * (STAGE + 16);
};

// Those of linear. SHARE: blocks that share a multiprocessor; one alone has twice the stages on their way.
template <int NT, int GROUPS> struct wide_share {
    static constexpr int USUAL = GROUPS == 1 && NT > 4 ? 2 : 1;
};
template <class CODE, int NT, int PARTS, int GROUPS, int SHARE = wide_share<NT, GROUPS>::USUAL>
struct wide_shape : wide_form<CODE, NT, PARTS, GROUPS, 1, SHARE, (SHARE == 2 ? 108 : 220) * 1024, 40> {
};

// What a block's threads know of the tile.
template <class SHAPE> struct wide_tile {
    unsigned char *memory;    // at a multiple of 1024
    shared_place full, empty; // barriers of the stages
    unsigned char *behind;    // what the kernel has of its own
    wide_rows x;
    int first_stage, main_stages, stages; // of the whole k, the first of the slice; of the slice: those of weights, all
    int first_group, groups;              // sixteen blocks' sums each, of the slice
    int slot, parity;                     // of the stage that comes next, and of its barrier `full`

    __device__ __forceinline__ int stage(void) const // from memory on
    {
        return slot * SHAPE::STAGE;
    }
    __device__ __forceinline__ void advance(void)
    {
        const bool last = slot == SHAPE::STAGES - 1;
        slot = last ? 0 : slot + 1;
        parity ^= last;
    }
};

// Opens slice `slice` of a tile, by all threads: what depends on shapes alone. A barrier of the block comes before
// stages.
template <class SHAPE>
__device__ __forceinline__ void wide_open(wide_tile<SHAPE> *tile, unsigned char *memory, const wide_rows &x, int slice,
                                          int slices)
{
    tile->memory = wgmma_align(memory);
    uint64_t *barriers = (uint64_t *)(tile->memory + SHAPE::STAGES * SHAPE::STAGE);
    tile->full = shared_opaque(barriers);
    tile->empty = tile->full + SHAPE::STAGES * 8;
    tile->behind = (unsigned char *)(barriers + 2 * SHAPE::STAGES);
    tile->x = x;
    tile->slot = 0;
    tile->parity = 0;
    const int all = (x.blocks + SHAPE::EACH - 1) / SHAPE::EACH, groups = (x.blocks + 15) / 16;
    tile->first_stage = share_begin(all, slice, slices);
    tile->main_stages = share_begin(all, slice + 1, slices) - tile->first_stage;
    tile->first_group = share_begin(groups, slice, slices);
    tile->groups = share_begin(groups, slice + 1, slices) - tile->first_group;
    tile->stages = tile->main_stages + (wide_code<typename SHAPE::CODE>::BIASED ? (tile->groups + 3) / 4 : 0);
    if (threadIdx.x < SHAPE::STAGES) {
        barrier_init(barriers + threadIdx.x, 128);
        barrier_init(barriers + SHAPE::STAGES + threadIdx.x, SHAPE::WARPS * ARRIVALS);
    }
}

// Where a thread that copies finds its pieces of weights: those of every fourth of the warps that multiply.
template <class SHAPE> struct wide_sources {
    static constexpr int ROWS = wide_code<typename SHAPE::CODE>::ROWS;
    wide_pieces<ROWS> of[SHAPE::GROUPS];

    // place_of(warp, half): where a panel of a warp's pair begins.
    template <class PLACE> __device__ __forceinline__ void find(PLACE place_of)
    {
        const int warp = threadIdx.x >> 5 & 3;
#pragma unroll
        for (int g = 0; g < SHAPE::GROUPS; g++)
            of[g].find(place_of(4 * g + warp, 0), place_of(4 * g + warp, 1), threadIdx.x & 31);
    }
};

// A thread that copies: where its pieces of the first stage go. It has the same piece of every sixteenth row.
template <class SHAPE> struct wide_copier {
    typedef wide_code<typename SHAPE::CODE> WIDE;
    wide_places<WIDE::ROWS> codes;
    shared_place scales, rows;

    __device__ __forceinline__ void find(const wide_tile<SHAPE> &tile)
    {
        const int thread = threadIdx.x & 127, lane = thread & 31;
        unsigned char *block = tile.memory + SHAPE::WEIGHTS_AT + (thread >> 5) * SHAPE::WARP_BYTES;
        codes.find_to(block, lane);
        scales = shared_opaque(block + SHAPE::EACH * WIDE::ROWS * 512 + WIDE::template to<SHAPE::EACH>(lane));
        rows = shared_opaque(tile.memory + wgmma_place(thread >> 3, thread & 7));
    }
};

// Starts the copies of the weights of the stage that begins with block `first`, to the place of the stage that comes
// next. WHOLE: all its blocks are there; else those that are not are the last one once more, times zeros.
template <class SHAPE, bool WHOLE>
__device__ __forceinline__ void wide_copy_blocks(const wide_tile<SHAPE> &tile, const wide_copier<SHAPE> &to,
                                                 const wide_sources<SHAPE> &from, int first)
{
    typedef wide_code<typename SHAPE::CODE> WIDE;
    constexpr int EACH = SHAPE::EACH, PANEL = WIDE::ROWS * 256; // bytes of a block of a panel
    const int blocks = tile.x.blocks, stage = tile.stage();
#pragma unroll
    for (int g = 0; g < SHAPE::GROUPS; g++) {
        const int64_t begin = (int64_t)first * PANEL;
        const int at = stage + g * 4 * SHAPE::WARP_BYTES;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int more = WHOLE || first + i < blocks ? i : blocks - 1 - first;
            wide_request(to.codes, at + i * WIDE::ROWS * 512, from.of[g], begin + more * PANEL);
        }
        WIDE::template request<EACH>(to.scales + at, from.of[g], first, blocks, threadIdx.x & 31);
    }
}

// The same of stage s of the slice.
template <class SHAPE>
__device__ __forceinline__ void wide_copy_weights(const wide_tile<SHAPE> &tile, const wide_copier<SHAPE> &to,
                                                  const wide_sources<SHAPE> &from, int s)
{
    const int first = SHAPE::EACH * (tile.first_stage + s);
    if (first + SHAPE::EACH <= tile.x.blocks)
        wide_copy_blocks<SHAPE, true>(tile, to, from, first);
    else
        wide_copy_blocks<SHAPE, false>(tile, to, from, first);
}

// The rows' pieces of stage s: from[i] of every sixteenth row, counted in pieces from x.data on, NOWHERE: not looked at.
// WHOLE: all blocks of k are there, else zeros.
enum : uint32_t { NOWHERE = 0xffffffffu };
template <class SHAPE, bool WHOLE, int TURNS>
__device__ __forceinline__ void wide_copy_rows(const wide_tile<SHAPE> &tile, shared_place to,
                                               const uint32_t (&from)[TURNS], int s, int count)
{
    const int stage = (tile.first_stage + s) * SHAPE::PLANES, at = stage * tile.x.stage_step, piece = threadIdx.x & 7;
    to += tile.stage();
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        if (i * 16 >= count)
            break;
        const unsigned char *source = tile.x.data + (int64_t)(from[i] + (uint32_t)at) * 16;
        if (from[i] != NOWHERE)
#pragma unroll
            for (int k = 0; k < SHAPE::PLANES; k++) {
                const bool live = WHOLE || stage * 8 + k * 8 + piece < tile.x.blocks * 4;
#pragma unroll
                for (int p = 0; p < SHAPE::PARTS; p++)
                    copy16(to + ((k * SHAPE::PARTS + p) * SHAPE::PLANE + i * 2048),
                           live ? source + p * tile.x.part_bytes + k * 128 : tile.x.data,
                           live ? 16 : 0); // PLANES > 1: rows apart
            }
    }
}

// The warpgroup that copies: all stages of the first `count` rows and of the warps' weights, whose first `early` stages
// are under way. row_of(r): the number among the prepared rows, -1: none. Nobody looks at sums of rows that are not there.
template <class SHAPE, class ROW>
__device__ __forceinline__ void wide_copy(wide_tile<SHAPE> &tile, const wide_copier<SHAPE> &to,
                                          const wide_sources<SHAPE> &weights, int early, int count, const ROW &row_of)
{
    constexpr int TURNS = (SHAPE::NT + 1) / 2;
    const int thread = threadIdx.x & 127, piece = thread & 7, first = thread >> 3, blocks = tile.x.blocks;
    uint32_t from[TURNS];
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        const int row = first + i * 16 < count ? row_of(first + i * 16) : -1;
        from[i] = row < 0 ? NOWHERE : (uint32_t)wide_at(tile.x, row, piece);
    }
    for (int s = 0; s < tile.stages; s++, tile.advance()) {
        barrier_wait_idle(tile.empty + tile.slot * 8, tile.parity ^ 1);
        if (wide_code<typename SHAPE::CODE>::BIASED && s >= tile.main_stages) {
            const int group = (s - tile.main_stages) * 4 + piece / 2, at = (tile.first_group + group) * 2 + piece % 2;
            for (int r = first; r < SHAPE::ROWS && r < count; r += 16) {
                const int row = group < tile.groups ? row_of(r) : -1;
                copy16(to.rows + (tile.stage() + (r - first) * 128),
                       row < 0 ? tile.x.sums : tile.x.sums + wide_sums_at(tile.x, row, at) * 16, row < 0 ? 0 : 16);
            }
        } else if (SHAPE::EACH * (tile.first_stage + s + 1) <= blocks) {
            if (s >= early)
                wide_copy_blocks<SHAPE, true>(tile, to, weights, SHAPE::EACH * (tile.first_stage + s));
            wide_copy_rows<SHAPE, true>(tile, to.rows, from, s, count);
        } else {
            if (s >= early)
                wide_copy_blocks<SHAPE, false>(tile, to, weights, SHAPE::EACH * (tile.first_stage + s));
            wide_copy_rows<SHAPE, false>(tile, to.rows, from, s, count);
        }
        barrier_arrive_copied(tile.full + tile.slot * 8);
    }
}

// Products of one block's fragments with 8 USED rows: part p, step j of the block that begins at piece `piece`.
template <class SHAPE, int USED>
__device__ __forceinline__ void wide_block(const uint32_t a[2][2][4], const wgmma_source &rows, int piece,
                                           float acc[2][USED * 4])
{
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int p = 0; p < SHAPE::PARTS; p++)
#pragma unroll
            for (int t = 0; t < 2; t++)
                wgmma<USED, wide_code<typename SHAPE::CODE>::HALF>(acc[t], a[j][t],
                                                                   wgmma_at(rows, p * SHAPE::PLANE, piece + 2 * j));
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

// A thread that multiplies: where it finds what it needs of the first stage.
template <class SHAPE> struct wide_taker {
    typedef wide_code<typename SHAPE::CODE> WIDE;
    wide_places<WIDE::ROWS> codes;
    shared_place scales;
    wgmma_source rows;
    int lane;

    __device__ __forceinline__ void find(const wide_tile<SHAPE> &tile)
    {
        unsigned char *block = tile.memory + SHAPE::WEIGHTS_AT + (threadIdx.x >> 5) * SHAPE::WARP_BYTES;
        lane = threadIdx.x & 31;
        codes.find_from(block, lane);
        scales = shared_opaque(block + SHAPE::EACH * WIDE::ROWS * 512 + WIDE::template from<SHAPE::EACH>(lane));
        rows = wgmma_rows(tile.memory); // the same for all threads, which the compiler is to see
    }
};

// Waits for the stage that comes next, whose rows products may read then.
template <class SHAPE> __device__ __forceinline__ void wide_next(const wide_tile<SHAPE> &tile)
{
    barrier_wait(tile.full + tile.slot * 8, tile.parity);
    wgmma_publish();
}

// Gives the place of a stage back: the warp's products with it are done.
template <class SHAPE> __device__ __forceinline__ void wide_release(const wide_tile<SHAPE> &tile, int slot)
{
    __syncwarp();
    barrier_arrive(tile.empty + slot * 8);
}

// The biases' share, by products with the blocks' sums.
template <class SHAPE, int USED>
__device__ __forceinline__ void wide_biases(wide_tile<SHAPE> &tile, const wide_taker<SHAPE> &taker,
                                            const lane_weights &place, float acc[2][USED * 4])
{
    typedef wide_code<typename SHAPE::CODE> WIDE;
    for (int s = 0; s < tile.stages - tile.main_stages; s++, tile.advance()) {
        wide_next<SHAPE>(tile);
        const wgmma_source rows = wgmma_at(taker.rows, tile.stage(), 0);
        for (int b = 0; b < 4 && 4 * s + b < tile.groups; b++) {
            uint32_t a[2][2][4];
            WIDE::bias_fragments(place, 16 * (tile.first_group + 4 * s + b), tile.x.blocks, threadIdx.x & 3, a);
            wgmma_fence(a);
#pragma unroll
            for (int p = 0; p < 2; p++)
#pragma unroll
                for (int t = 0; t < 2; t++)
                    wgmma<USED, WIDE::HALF>(acc[t], a[p][t], wgmma_at(rows, 0, 2 * b));
            wgmma_commit();
            wgmma_wait<0>();
        }
        wide_release<SHAPE>(tile, tile.slot);
    }
}

// The tile's products with the first 8 USED rows: acc[t][4 n + i] of row 8 n + 2 (lane % 4) + i % 2 and the lane's
// output 2 t + i / 2, without the row's scale. By warpgroups that multiply; place: the lane's in the warp's pair.
template <class SHAPE, int USED>
__device__ __forceinline__ void wide_run(wide_tile<SHAPE> &tile, const wide_taker<SHAPE> &taker,
                                         const lane_weights &place, float acc[2][USED * 4])
{
    typedef typename SHAPE::CODE CODE;
    typedef wide_code<CODE> WIDE;
    constexpr int FOLD = WIDE::FOLD;
    constexpr int EACH = SHAPE::EACH, CODES = WIDE::ROWS * 512;
    // Whether a stage's products are waited for before the next one begins, and is given back then: long stages, where
    // other warps have work meanwhile, and the loop is short.
    constexpr bool DRAIN = SHAPE::PLANES > 1;
    // Whether a block's codes are brought to registers while the products of the block before are asked for.
    constexpr bool AHEAD = SHAPE::NT <= 2 || SHAPE::REGISTERS > 200;
    static_assert(FOLD == 0 || EACH == 2, "scales are applied two blocks at a time");
    float fresh[2][FOLD ? USED * 4 : 1];
    constexpr int SETS = SHAPE::REGISTERS < 200 && SHAPE::NT > 4 ? 1 : 2; // of fragments
    uint32_t a[SETS][2][2][4];
    int before = 0; // where the stage before is
    CODE code[2];
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int i = 0; i < USED * 4; i++) {
            acc[t][i] = 0;
            if constexpr (FOLD != 0)
                fresh[t][i] = 0;
        }
    for (int s = 0; s < tile.main_stages; s++) {
        const int stage = tile.stage();
        const wgmma_source rows = wgmma_at(taker.rows, stage, 0);
        const auto fetch = [&](int i) {
            wide_fetch<CODE, WIDE>(code[i & 1], taker.codes, stage + i * CODES);
            WIDE::fetch(code[i & 1], taker.scales + stage, place.group_shift, i);
        };
        wide_next<SHAPE>(tile);
        if (AHEAD)
            fetch(0);
#pragma unroll
        for (int i = 0; i < EACH; i++) { // no branch in here: fragments are made while products run
            if (!AHEAD)
                fetch(i);
            if (SETS == 1)
                wgmma_wait<0>();
            WIDE::fragments(code[i & 1], taker.lane & 3, a[i % SETS]);
            if (AHEAD && i + 1 < EACH)
                fetch(i + 1);
            wgmma_fence(a[i % SETS]);
            const wgmma_source plane = wgmma_at(rows, i / 2 * SHAPE::PARTS * SHAPE::PLANE, 0);
            if constexpr (FOLD != 0)
                wide_block<SHAPE, USED>(a[i % SETS], plane, i % 2 * 4, fresh);
            else
                wide_block<SHAPE, USED>(a[i % SETS], plane, i % 2 * 4, acc);
            wgmma_commit();
            if (DRAIN && i == EACH - 1)
                wgmma_wait<0>();
            else
                wgmma_wait<1>();
            if (!DRAIN && i == 0 && s > 0)
                wide_release<SHAPE>(tile, before);
        }
        if constexpr (FOLD != 0) {
            wgmma_settle<USED * 4>(fresh[0]);
            wgmma_settle<USED * 4>(fresh[1]);
            wide_fold<CODE, USED>(code[0], fresh, acc);
        }
        if (DRAIN)
            wide_release<SHAPE>(tile, tile.slot);
        before = tile.slot;
        tile.advance();
    }
    wgmma_wait<0>();
    if (!DRAIN)
        wide_release<SHAPE>(tile, before);
    if constexpr (WIDE::BIASED)
        wide_biases<SHAPE, USED>(tile, taker, place, acc);
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

// Puts rows 8 FIRST .. 8 (FIRST + COUNT) - 1 of a warp's sums there.
template <int USED, int FIRST, int COUNT>
__device__ __forceinline__ void wide_park(float *to, const float acc[2][USED * 4])
{
    const int lane = threadIdx.x & 31;
    to += sum_output(0, lane);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int n = (FIRST + i) * 4 + c;
            *(float4 *)(to + (i * 8 + sum_row(c, lane)) * PARKED) =
                make_float4(acc[0][n], acc[0][n + 2], acc[1][n], acc[1][n + 2]);
        }
}

// Four sums of all slices, in ascending order; zeros of those that are not there.
__device__ __forceinline__ float4 wide_added(const float4 (&part)[SLICES_WIDE])
{
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

// The same of those that the blocks of a cluster parked at the same place.
__device__ __forceinline__ float4 wide_sum(float *parked, int slices)
{
    if (slices == 1)
        return *(const float4 *)parked;
    float4 part[SLICES_WIDE];
#pragma unroll
    for (int s = 0; s < SLICES_WIDE; s++)
        part[s] = s < slices ? *(const float4 *)cluster_map(parked, s) : make_float4(0, 0, 0, 0);
    return wide_added(part);
}

#endif
