// SPDX-License-Identifier: Apache-2.0
//
// linear_args, prompt class, on warpgroups: rows are prepared once a form, then parts of the same encoding go in one
// launch of tiles.
// Invariant: see wide.cuh.

#include "kernels/cuda/wide.cuh"

bool wide_available(const struct weight *w)
{
#if defined(CUDA_EMULATION)
    return roomy() && wide_encoding(w);
#elif defined(WITH_WGMMA)
    static int state = -1;
    if (state < 0) {
        state = card_attribute(cudaDevAttrComputeCapabilityMajor) == 9;
    }
    return state && wide_encoding(w);
#else
    (void)w;
    return false;
#endif
}

// ---- tiles -------------------------------------------------------------------------------------------------------------------

// The parts of one launch: those of args that `take` names, of one encoding, number of parts of x and slices of k.
struct wide_plan {
    wide_rows x;
    int32_t take, aligned; // bits of parts; of parts whose y takes 16 bytes at a time
    int32_t slices, early; // of k; whether weights are asked for before the rows are there
    int32_t before,
        beside;  // whether the next launch reads the same rows and may run beside this one; whether this is such a one
    float *sums; // of blocks of APART_GROUPS warpgroups: [slices][rows][width], which another launch adds
    int32_t rows, width;
};
enum { APART_GROUPS = 3 };

// The part and the pair of panels in it of the n-th pair of a launch; a pair too many: part -1.
struct wide_pair {
    int part, pair;
};

__device__ __forceinline__ wide_pair wide_pair_of(const struct linear_args &a, const wide_plan &plan, int pair)
{
    for (int i = 0; i < a.parts; i++) {
        const int pairs = plan.take >> i & 1 ? (a.part[i].w.n + 31) / 32 : 0;
        if (pair < pairs)
            return {i, pair};
        pair -= pairs;
    }
    return {-1, 0};
}

// A warp without a pair multiplies the launch's first and stores nothing.
__device__ __forceinline__ lane_weights wide_place_of(const struct linear_args &a, const wide_plan &plan,
                                                      wide_pair found, int lane)
{
    const int part = found.part < 0 ? __ffs(plan.take) - 1 : found.part;
    return lane_place(&a.part[part].w, 0, found.pair, lane);
}

// Finishes and stores four neighbouring sums of a row, from output `at` of a part on.
template <bool HALF>
__device__ __forceinline__ void linear_wide_finish(const struct linear_args &a, const wide_plan &plan, int part_number,
                                                   int at, int64_t row, const float4 &sum)
{
    const linear_part &part = a.part[part_number];
    const float factor = part.alpha * (part.w.global ? *part.w.global : 1.0f);
    const float scale = HALF ? factor * __ldcg(plan.x.scale + row) : factor;
    float v[4] = {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
    if (part.activation != ACT_NONE)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = activate(v[i], part.activation);
    store_four(part.y + row * part.ldy, at, part.w.n, plan.aligned >> part_number & 1, v);
}

// The same of the warp's outputs of rows first .. first + rows - 1, of which a block of a cluster has every so many.
template <class CODE, int ROWS>
__device__ __forceinline__ void linear_wide_store(const struct linear_args &a, const wide_plan &plan, wide_pair found,
                                                  float *sums, int slice, int first, int rows)
{
    const int lane = threadIdx.x & 31, o = lane % 8 * 4;
#pragma unroll 1
    for (int r = slice * 4 + lane / 8; r < ROWS && r < rows; r += 4 * plan.slices)
        linear_wide_finish<wide_code<CODE>::HALF>(a, plan, found.part, found.pair * 32 + o, first + r,
                                                  wide_sum(sums + r * PARKED + o, plan.slices));
}

// Puts a warp's sums of a slice where the launch that adds them finds them.
template <int NT>
__device__ __forceinline__ void linear_wide_leave(const wide_plan &plan, int slice, int first, int rows,
                                                  const float acc[2][NT * 4])
{
    const int lane = threadIdx.x & 31,
              column = (blockIdx.y * (APART_GROUPS * 4) + (threadIdx.x >> 5)) * 32 + sum_output(0, lane);
    float *to = plan.sums + ((int64_t)slice * plan.rows + first) * plan.width + column;
    if (column >= plan.width)
        return;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int r = n * 8 + sum_row(c, lane);
            if (r < rows)
                *(float4 *)(to + (int64_t)r * plan.width) =
                    make_float4(acc[0][n * 4 + c], acc[0][n * 4 + c + 2], acc[1][n * 4 + c], acc[1][n * 4 + c + 2]);
        }
}

// Adds what the slices left, in ascending order: four outputs of a row a thread.
template <bool HALF>
__global__ void __launch_bounds__(256)
    linear_wide_sum_kernel(const __grid_constant__ struct linear_args a, const __grid_constant__ wide_plan plan)
{
    pdl_trigger();
    pdl_wait();
    const uint32_t all = blockIdx.x * 256 + threadIdx.x, fours = (uint32_t)plan.width / 4, row = all / fours;
    const int column = (int)(all - row * fours) * 4;
    if ((int)row >= a.pass->rows * (a.row_multiple > 1 ? a.row_multiple : 1))
        return;
    const wide_pair found = wide_pair_of(a, plan, column / 32);
    const float *from = plan.sums + (int64_t)row * plan.width + column;
    float4 part[SLICES_WIDE];
#pragma unroll
    for (int s = 0; s < SLICES_WIDE; s++)
        part[s] =
            s < plan.slices ? *(const float4 *)(from + (int64_t)s * plan.rows * plan.width) : make_float4(0, 0, 0, 0);
    linear_wide_finish<HALF>(a, plan, found.part, found.pair * 32 + column % 32, row, wide_added(part));
}

// What the warps that multiply do with the tile of rows first .. first + rows - 1.
template <class SHAPE>
__device__ __forceinline__ void linear_wide_multiply(const struct linear_args &a, const wide_plan &plan,
                                                     wide_tile<SHAPE> &tile, int slice, int first, int rows)
{
    constexpr int NT = SHAPE::NT;
    static_assert(SHAPE::WARPS * SHAPE::ROWS * PARKED * 4 <= SHAPE::STAGES * SHAPE::STAGE, "sums go where stages were");
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const wide_pair found = wide_pair_of(a, plan, blockIdx.y * SHAPE::WARPS + warp);
    float acc[2][NT * 4];
    wide_taker<SHAPE> taker;
    taker.find(tile);
    wide_run<SHAPE, NT>(tile, taker, wide_place_of(a, plan, found, lane), acc);
    if constexpr (SHAPE::GROUPS == APART_GROUPS)
        return linear_wide_leave<NT>(plan, slice, first, rows, acc);
    float *sums = (float *)tile.memory + warp * (SHAPE::ROWS * PARKED);
    barrier_some(1, SHAPE::WARPS * 32); // all are done with the stages
    wide_park<NT, 0, NT>(sums, acc);
    if (plan.slices > 1)
        cluster_sync();
    else
        __syncwarp();
    if (found.part >= 0)
        linear_wide_store<typename SHAPE::CODE, SHAPE::ROWS>(a, plan, found, sums, slice, first, rows);
    if (plan.slices > 1) { // sums stay until all blocks have read them
        __syncwarp();
        cluster_arrive_read();
        cluster_wait();
    }
}

// Blocks that share a tile of rows and outputs are neighbours along x: a slice of k each. A launch beside the one before needs no wait
// to read rows, since that one let it begin only behind its own wait; it waits before it ends.
template <class CODE, int NT, int PARTS, int GROUPS, int SHARE>
__global__ void __launch_bounds__(GROUPS * 128 + 128, GROUPS == 1 ? 2 : 1)
    linear_wide_kernel(const __grid_constant__ struct linear_args a, const __grid_constant__ wide_plan plan)
{
    typedef wide_shape<CODE, NT, PARTS, GROUPS, SHARE> SHAPE;
    SHARED_ROOM(memory);
    const int warp = threadIdx.x >> 5, slice = blockIdx.x % plan.slices, first = blockIdx.x / plan.slices * SHAPE::ROWS;
    int rows = 0, early = 0;
    wide_tile<SHAPE> tile;
    wide_sources<SHAPE> weights;
    wide_copier<SHAPE> copier;
    if (!plan.before)
        pdl_trigger();
    wide_open<SHAPE>(&tile, memory, plan.x, slice, plan.slices);
    if (warp >= SHAPE::WARPS) {
        copier.find(tile);
        weights.find([&](int w, int half) {
            return wide_place_of(a, plan, wide_pair_of(a, plan, blockIdx.y * SHAPE::WARPS + w), half * 16);
        });
        for (; plan.early && early < SHAPE::STAGES && early < tile.main_stages; early++, tile.advance())
            wide_copy_weights<SHAPE>(tile, copier, weights, early);
        tile.slot = 0;
        tile.parity = 0;
    }
    if (!plan.beside)
        pdl_wait();
    if (plan.before)
        pdl_trigger();
    rows = __ldcg(&a.pass->rows) * (a.row_multiple > 1 ? a.row_multiple : 1) - first;
    __syncthreads();
    if (rows <= 0) { // so do all blocks of the cluster
        copy_wait<0>();
        pdl_wait();
        return;
    }
    if (warp >= SHAPE::WARPS) {
        registers_fewer<SHAPE::COPY_REGISTERS>();
        wide_copy<SHAPE>(tile, copier, weights, early, SHAPE::ROWS, [&](int r) { return r < rows ? first + r : -1; });
        if (plan.slices > 1 && GROUPS != APART_GROUPS) {
            cluster_sync();
            cluster_sync();
        }
    } else {
        registers_more<SHAPE::REGISTERS>();
        linear_wide_multiply<SHAPE>(a, plan, tile, slice, first, rows);
    }
    pdl_wait();
}

enum { LEAST_ROWS = 32, SOME_ROWS = 64, FEW_ROWS = 128 };

template <class CODE, int NT, int PARTS, int GROUPS, int SHARE = wide_share<NT, GROUPS>::USUAL>
static cudaError_t wide_launch(cudaStream_t stream, const struct linear_args *args, const wide_plan &plan, int pairs,
                               int64_t rows)
{
    typedef wide_shape<CODE, NT, PARTS, GROUPS, SHARE> SHAPE;
    const dim3 grid((unsigned int)((rows + SHAPE::ROWS - 1) / SHAPE::ROWS * plan.slices),
                    (pairs + SHAPE::WARPS - 1) / SHAPE::WARPS);
    auto kernel = linear_wide_kernel<CODE, NT, PARTS, GROUPS, SHARE>;
    return launch_cluster(stream, grid, dim3(SHAPE::THREADS), (size_t)SHAPE::BYTES, (unsigned)plan.slices, kernel,
                          *args, plan);
}

// Whether slices may leave their sums in scratch, behind the rows.
static bool wide_apart_fits(const struct linear_args *args, const wide_plan &plan, int pairs)
{
    return plan.slices > 1 && (int64_t)plan.slices * pairs * 128 <= 3 * (int64_t)args->k;
}

// Blocks for many outputs, so that rows are brought once, which are as large as a multiprocessor and leave their slices' sums
// to a launch of its own: as clusters they would not fill the card.
template <class CODE>
static cudaError_t wide_launch_apart(cudaStream_t stream, const struct linear_args *args, wide_plan plan, int pairs,
                                     int64_t rows)
{
    typedef wide_shape<CODE, 8, 2, APART_GROUPS> SHAPE;
    const dim3 grid((unsigned int)((rows + SHAPE::ROWS - 1) / SHAPE::ROWS * plan.slices),
                    (pairs + SHAPE::WARPS - 1) / SHAPE::WARPS);
    plan.sums = (float *)(((uintptr_t)(plan.x.scale + rows) + 15) / 16 * 16);
    plan.rows = (int32_t)rows;
    plan.width = pairs * 32;
    plan.before = plan.beside = 0; // what adds the sums is no product of the same rows
    const int64_t fours = rows * (plan.width / 4);
    const cudaError_t error = launch(stream, grid, dim3(SHAPE::THREADS), (size_t)SHAPE::BYTES,
                                     linear_wide_kernel<CODE, 8, 2, APART_GROUPS, 1>, *args, plan);
    if (error != cudaSuccess)
        return error;
    return launch(stream, dim3((unsigned int)((fours + 255) / 256)), dim3(256), 0,
                  linear_wide_sum_kernel<wide_code<CODE>::HALF>, *args, plan);
}

// Blocks of a launch.
static int64_t wide_blocks(int64_t rows, int tile, int pairs, const wide_plan &plan)
{
    return (rows + tile - 1) / tile * ((pairs + 3) / 4) * plan.slices;
}

// Matrices of few outputs take few blocks of one warpgroup, and rows in two parts; where larger blocks fill the card, those, which bring
// rows and weights half as often. A launch for few rows mostly has no more blocks than there are multiprocessors: narrow tiles of outputs,
// and, since a block then waits for its copies, most stages on their way; tiles of few rows leave more room for them.
template <class CODE>
static cudaError_t wide_launch_code(cudaStream_t stream, const struct linear_args *args, const wide_plan &plan,
                                    int pairs, int64_t rows, int parts)
{
    if constexpr (wide_code<CODE>::AVAILABLE) {
        const int64_t room = rows <= FEW_ROWS ? multiprocessors() : 0;
        if (rows <= LEAST_ROWS)
            return parts == 2 ? wide_launch<CODE, 4, 2, 1>(stream, args, plan, pairs, rows)
                              : wide_launch<CODE, 4, 1, 1>(stream, args, plan, pairs, rows);
        if (parts == 2 && rows > FEW_ROWS && pairs > 8 && wide_apart_fits(args, plan, pairs))
            return wide_launch_apart<CODE>(stream, args, plan, pairs, rows);
        constexpr int NT = wide_code<CODE>::FOLD ? 8 : 16;
        const int64_t large = (rows + 8 * NT - 1) / (8 * NT) * ((pairs + 7) / 8) * plan.slices;
        if (parts == 2 && rows > FEW_ROWS && pairs > 4 && large >= multiprocessors())
            return wide_launch<CODE, NT, 2, 2>(stream, args, plan, pairs, rows);
        if (parts == 2)
            return wide_blocks(rows, 32, pairs, plan) <= room
                       ? wide_launch<CODE, 4, 2, 1>(stream, args, plan, pairs, rows)
                       : wide_launch<CODE, 8, 2, 1>(stream, args, plan, pairs, rows);
        if (rows <= SOME_ROWS && wide_blocks(rows, 64, pairs, plan) <= room)
            return wide_launch<CODE, 8, 1, 1, 1>(stream, args, plan, pairs, rows);
        if (rows <= FEW_ROWS)
            return wide_launch<CODE, NT, 1, 1>(stream, args, plan, pairs, rows);
        return wide_launch<CODE, NT, 1, 2>(stream, args, plan, pairs, rows);
    }
    return cudaErrorInvalidValue;
}

// Rows of a launch for `capacity` rows.
static int64_t linear_wide_most(const struct linear_args *args, int capacity)
{
    return (int64_t)capacity * (args->row_multiple > 1 ? args->row_multiple : 1);
}

wide_rows linear_wide_rows(const struct linear_args *args, int capacity, int parts)
{
    const int64_t rows = linear_wide_most(args, capacity);
    bool staged = false;
    for (int i = 0; i < args->parts; i++)
        staged = staged || (parts >> i & 1 && tall_takes(&args->part[i].w, rows));
    return wide_rows_at(args->scratch, rows, args->k, staged);
}

cudaError_t linear_wide(cudaStream_t stream, const struct linear_args *args, int capacity, int parts, bool there,
                        const struct glu_args *glu)
{
    const int multiple = args->row_multiple > 1 ? args->row_multiple : 1;
    const int64_t rows = linear_wide_most(args, capacity);
    wide_plan plan = {};
    int prepared = 0; // 1 + half + 2 * second part
    cudaError_t error = cudaSuccess;
    plan.x = linear_wide_rows(args, capacity, parts);
    // Of more rows, blocks wait for each other's places, and the first stage would wait for all that was asked for.
    plan.early = rows <= FEW_ROWS;
    bool second = false, beside = false;
    for (int i = 0; i < args->parts; i++) {
        second = second || (parts >> i & 1 && prompt_parts(&args->part[i].w) == 2);
        if ((uintptr_t)args->part[i].y % 16 == 0 && args->part[i].ldy % 4 == 0)
            plan.aligned |= 1 << i;
    }
    for (int i = 0; i < args->parts && error == cudaSuccess; i++) {
        const struct weight *w = &args->part[i].w;
        int pairs = 0;
        if (!(parts >> i & 1))
            continue;
        plan.take = 0;
        plan.slices = wide_slices(w);
        const bool tall = tall_takes(w, rows);
        for (int j = i; j < args->parts; j++) {
            const struct weight *other = &args->part[j].w;
            if (!(parts >> j & 1) || !same_code(w, other) || prompt_parts(w) != prompt_parts(other) ||
                wide_slices(other) != plan.slices || tall_takes(other, rows) != tall)
                continue;
            plan.take |= 1 << j;
            pairs += weight_pairs(other);
        }
        parts &= ~plan.take;
        const int form = 1 + wide_half(w) + 2 * second;
        if (form != prepared && !there)
            error = wide_prepare(stream, args->pass, multiple, args->x, args->ldx, args->k, rows, wide_half(w),
                                 second ? 2 : 1, false, plan.x, glu);
        plan.beside = beside && (form == prepared || there);
        beside = plan.before =
            plan.early && parts; // another launch comes; of few rows none of them leaves sums to one more
        prepared = form;
        if (error == cudaSuccess && tall && tall_pays(rows, pairs / 4, plan.slices))
            error = linear_tall(stream, args, plan.x, plan.take, plan.aligned, plan.slices, rows);
        else if (error == cudaSuccess)
            with_code(w, [&](auto code) {
                error =
                    wide_launch_code<typename decltype(code)::type>(stream, args, plan, pairs, rows, prompt_parts(w));
            });
    }
    return error;
}
