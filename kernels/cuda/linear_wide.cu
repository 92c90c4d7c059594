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

// ---- rows --------------------------------------------------------------------------------------------------------------------

// Four words of each of four neighbouring lanes, turned: lane l gets word l of each of them.
__device__ __forceinline__ uint4 turned(uint32_t *w, int l)
{
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t got = __shfl_xor_sync(0xffffffffu, l & 1 ? w[i] : w[i + 1], 1);
        w[i] = l & 1 ? got : w[i];
        w[i + 1] = l & 1 ? w[i + 1] : got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t got = __shfl_xor_sync(0xffffffffu, l & 2 ? w[i] : w[i + 2], 2);
        w[i] = l & 2 ? got : w[i];
        w[i + 2] = l & 2 ? w[i + 2] : got;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

// Eight k of a row, and of what is left of them, as 16 bits: pair 2 j + c is k 4 j + c and 4 j + c + 2.
template <bool HALF> __device__ __forceinline__ void wide_pairs(float *v, uint32_t *w)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = i / 2 * 4 + i % 2;
        w[i] = HALF ? half_pack(v[at], v[at + 2]) : pair_pack(v[at], v[at + 2]);
        v[at] -= HALF ? half_float(w[i] & 0xffffu) : bits_float(w[i] << 16);
        v[at + 2] -= HALF ? half_float(w[i] >> 16) : bits_float(w[i] & 0xffff0000u);
    }
}

// The power of two that brings a row's largest magnitude below 2^10.
__device__ __forceinline__ float wide_row_scale(float most)
{
    int e = (int)(__float_as_uint(most) >> 23 & 255u) - 127;
    e = e < -100 ? -100 : e > 120 ? 120 : e;
    return __uint_as_float((uint32_t)(127 + 9 - e) << 23);
}

// The largest magnitude of a row, by the TEAM threads that share it, of which t is one; space: 8 floats of shared
// memory.
template <int TEAM>
__device__ __forceinline__ float wide_row_most(const float *row, int k, int items, bool aligned, bool live, int t,
                                               float *space)
{
    float top = 0;
    for (int item = t; live && item < items; item += TEAM) {
        float v[8];
        load_eight(row, item * 8, k, aligned, v);
#pragma unroll
        for (int i = 0; i < 8; i++)
            top = fmaxf(top, fabsf(v[i]));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    if (TEAM > 32) {
        space[threadIdx.x / 32] = top;
        __syncthreads();
        for (int i = 0; i < 8; i++)
            top = fmaxf(top, space[i]);
    }
    return top;
}

// Stores a thread's eight k of a row as its piece at `place`, in as many parts as x is held in. By whole warps; mine:
// has some.
template <bool HALF>
__device__ __forceinline__ void wide_put(float *v, int parts, unsigned char *place, const wide_rows &to, int l,
                                         bool mine)
{
    for (int p = 0; p < parts; p++) {
        uint32_t w[4];
        wide_pairs<HALF>(v, w);
        const uint4 all = turned(w, l);
        if (mine)
            *(uint4 *)(place + p * to.part_bytes) = all;
    }
}

// bf16: eight k a thread, of whatever row.
__global__ void __launch_bounds__(256)
    wide_prepare_kernel(const struct pass *pass, int multiple, const float *x, int64_t ldx, int k, int aligned,
                        int parts, bool early, wide_rows to)
{
    pdl_trigger();
    if (!early)
        pdl_wait();
    const uint32_t all = blockIdx.x * 256 + threadIdx.x, items = (uint32_t)to.blocks * 4, r = all / items;
    const int item = (int)(all - r * items);
    const bool mine = r < (uint32_t)(pass->rows * multiple);
    float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (mine)
        load_eight(x + r * ldx, item * 8, k, aligned != 0, v);
    wide_put<false>(v, parts, to.data + (int64_t)all * 16, to, threadIdx.x & 3, mine);
    if (early) // who waits for this launch waits for the one before
        pdl_wait();
}

// fp16, whose rows have a scale: TEAM threads a row, of which each takes eight k at a time.
template <int TEAM>
__global__ void __launch_bounds__(256)
    wide_prepare_half_kernel(const struct pass *pass, int multiple, const float *x, int64_t ldx, int k, int aligned,
                             int parts, bool early, wide_rows to)
{
    __shared__ float space[8];
    pdl_trigger();
    if (!early)
        pdl_wait();
    const int t = threadIdx.x % TEAM, l = t & 3, items = to.blocks * 4;
    const int64_t r = (int64_t)blockIdx.x * (256 / TEAM) + threadIdx.x / TEAM, rows = (int64_t)pass->rows * multiple;
    const bool live = r < rows;
    uint16_t *sums = (uint16_t *)(to.sums + r * to.sum_bytes);
    const float scale = wide_row_scale(wide_row_most<TEAM>(x + r * ldx, k, items, aligned != 0, live, t, space));
    if (live && t == 0)
        to.scale[r] = 1.0f / scale;
    for (int item = t; item - t < items; item += TEAM) { // whole warps, for the shuffles
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const bool mine = live && item < items;
        if (mine)
            load_eight(x + r * ldx, item * 8, k, aligned != 0, v);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] *= scale;
        float sum = sum_eight(v);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (mine && l == 0)
            sums[item >> 2] = (uint16_t)half_pack(sum, 0);
        wide_put<true>(v, parts, to.data + (r * to.blocks * 4 + item) * 16, to, l, mine);
    }
    for (int b = to.blocks + t; live && b < to.sum_bytes / 2; b += TEAM)
        sums[b] = 0;
    if (early)
        pdl_wait();
}

cudaError_t wide_prepare(cudaStream_t stream, const struct pass *pass, int multiple, const float *x, int64_t ldx, int k,
                         int64_t rows, bool half, int parts, bool early, const wide_rows &to)
{
    const int team = k <= 1024 ? 32 : 256;
    const int64_t items = half ? rows * team : rows * to.blocks * 4;
    auto kernel = !half         ? wide_prepare_kernel
                  : team == 256 ? wide_prepare_half_kernel<256>
                                : wide_prepare_half_kernel<32>;
    return launch(stream, dim3((unsigned int)((items + 255) / 256)), dim3(256), 0, kernel, pass, multiple, x, ldx, k,
                  rows_aligned(x, ldx), parts, early, to);
}

// ---- tiles -------------------------------------------------------------------------------------------------------------------

// The parts of one launch: those of args that `take` names, of one encoding, number of parts of x and slices of k.
struct wide_plan {
    wide_rows x;
    int32_t take, aligned; // bits of parts; of parts whose y takes 16 bytes at a time
    int32_t slices, early; // of k; whether weights are asked for before the rows are there
    float *sums;           // of blocks of APART_GROUPS warpgroups: [slices][rows][width], which another launch adds
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
    const float scale = HALF ? factor * plan.x.scale[row] : factor;
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

// Blocks that share a tile of rows and outputs are neighbours along x: a slice of k each.
template <class CODE, int NT, int PARTS, int GROUPS>
__global__ void __launch_bounds__(GROUPS * 128 + 128, GROUPS == 1 ? 2 : 1)
    linear_wide_kernel(const __grid_constant__ struct linear_args a, const __grid_constant__ wide_plan plan)
{
    typedef wide_shape<CODE, NT, PARTS, GROUPS> SHAPE;
    SHARED_ROOM(memory);
    const int warp = threadIdx.x >> 5, slice = blockIdx.x % plan.slices, first = blockIdx.x / plan.slices * SHAPE::ROWS;
    int rows = 0, early = 0;
    wide_tile<SHAPE> tile;
    wide_sources<SHAPE> weights;
    wide_copier<SHAPE> copier;
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
    pdl_wait();
    rows = a.pass->rows * (a.row_multiple > 1 ? a.row_multiple : 1) - first;
    __syncthreads();
    if (rows <= 0) { // so do all blocks of the cluster
        copy_wait<0>();
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
}

enum { LEAST_ROWS = 32, FEW_ROWS = 128 };

template <class CODE, int NT, int PARTS, int GROUPS>
static cudaError_t wide_launch(cudaStream_t stream, const struct linear_args *args, const wide_plan &plan, int pairs,
                               int64_t rows)
{
    typedef wide_shape<CODE, NT, PARTS, GROUPS> SHAPE;
    const dim3 grid((unsigned int)((rows + SHAPE::ROWS - 1) / SHAPE::ROWS * plan.slices),
                    (pairs + SHAPE::WARPS - 1) / SHAPE::WARPS);
    auto kernel = linear_wide_kernel<CODE, NT, PARTS, GROUPS>;
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
    const int64_t fours = rows * (plan.width / 4);
    const cudaError_t error = launch(stream, grid, dim3(SHAPE::THREADS), (size_t)SHAPE::BYTES,
                                     linear_wide_kernel<CODE, 8, 2, APART_GROUPS>, *args, plan);
    if (error != cudaSuccess)
        return error;
    return launch(stream, dim3((unsigned int)((fours + 255) / 256)), dim3(256), 0,
                  linear_wide_sum_kernel<wide_code<CODE>::HALF>, *args, plan);
}

// Matrices of few outputs take few blocks of one warpgroup, and rows in two parts. A launch for few rows has fewer
// blocks than there are multiprocessors: narrow tiles of outputs, and for the least rows, which leave room for it, most
// stages on their way.
template <class CODE>
static cudaError_t wide_launch_code(cudaStream_t stream, const struct linear_args *args, const wide_plan &plan,
                                    int pairs, int64_t rows, int parts)
{
    if constexpr (wide_code<CODE>::AVAILABLE) {
        if (rows <= LEAST_ROWS)
            return parts == 2 ? wide_launch<CODE, 4, 2, 1>(stream, args, plan, pairs, rows)
                              : wide_launch<CODE, 4, 1, 1>(stream, args, plan, pairs, rows);
        if (parts == 2 && rows > FEW_ROWS && pairs > 8 && wide_apart_fits(args, plan, pairs))
            return wide_launch_apart<CODE>(stream, args, plan, pairs, rows);
        if (parts == 2)
            return wide_launch<CODE, 8, 2, 1>(stream, args, plan, pairs, rows);
        constexpr int NT = wide_code<CODE>::FOLD ? 8 : 16;
        if (rows <= FEW_ROWS)
            return wide_launch<CODE, NT, 1, 1>(stream, args, plan, pairs, rows);
        return wide_launch<CODE, NT, 1, 2>(stream, args, plan, pairs, rows);
    }
    return cudaErrorInvalidValue;
}

cudaError_t linear_wide(cudaStream_t stream, const struct linear_args *args, int capacity, int parts, bool there)
{
    const int multiple = args->row_multiple > 1 ? args->row_multiple : 1;
    const int64_t rows = (int64_t)capacity * multiple;
    wide_plan plan = {};
    int prepared = 0; // 1 + half + 2 * second part
    cudaError_t error = cudaSuccess;
    plan.x = wide_rows_at(args->scratch, rows, args->k);
    // Of more rows, blocks wait for each other's places, and the first stage would wait for all that was asked for.
    plan.early = rows <= FEW_ROWS;
    bool second = false;
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
        for (int j = i; j < args->parts; j++) {
            const struct weight *other = &args->part[j].w;
            if (!(parts >> j & 1) || !same_code(w, other) || prompt_parts(w) != prompt_parts(other) ||
                wide_slices(other) != plan.slices)
                continue;
            plan.take |= 1 << j;
            pairs += weight_pairs(other);
        }
        parts &= ~plan.take;
        const int form = 1 + wide_half(w) + 2 * second;
        if (form != prepared && !there)
            error = wide_prepare(stream, args->pass, multiple, args->x, args->ldx, args->k, rows, wide_half(w),
                                 second ? 2 : 1, false, plan.x);
        prepared = form;
        if (error == cudaSuccess)
            with_code(w, [&](auto code) {
                error =
                    wide_launch_code<typename decltype(code)::type>(stream, args, plan, pairs, rows, prompt_parts(w));
            });
    }
    return error;
}
