// SPDX-License-Identifier: Apache-2.0
//
// experts_up_args and experts_down_args, prompt class, on warpgroups: a unit of work is a tile of an expert's pairs by
// eight warps' outputs. Blocks take runs of neighbouring units, mostly of one expert, and the warpgroup that copies runs
// ahead of the two that multiply across the ends of units, so that the memory does not rest there.
//
// Gated: a warp has a panel of gate and the same one of up, so that both meet in the warp.
// Invariant: see wide.cuh and experts_prompt.cuh. A unit's products are cut to the least number of rows that holds its
// pairs, and neither that nor the size of tiles changes a bit.

#include "kernels/cuda/experts_prompt.cuh"
#include "kernels/cuda/wide.cuh"

enum { LIST_UNITS = 12 }; // tiles of a block's run at most

struct list_row {
    int32_t x, pair; // number of the prepared row; row * slots + slot
};

// Blocks for tiles of TILE pairs. HALF: two share a multiprocessor, so that there are many warps: of few pairs weights are
// nearly all there is to bring, and decoding them what there is to do. Rows are cut into CHUNKs of 8 while sums are finished.
// DEEP: stages as long as there is room for two.
template <class CODE, int TILE, bool DEEP> struct expert_form {
    static constexpr bool FOLD = wide_code<CODE>::FOLD != 0, HALF = TILE < (FOLD ? TILE_MORE : TILE_MANY);
    static constexpr int NT = !FOLD || TILE == TILE_MORE ? TILE / 8 : HALF ? 2 : 8, CHUNK = HALF ? 1 : 4, WARPS = 8;
    static constexpr int PARK = WARPS * CHUNK * 8 * PARKED * 4;
    static constexpr int LIST = LIST_UNITS * (int)(sizeof(expert_tile) + NT * 8 * sizeof(list_row));
    static constexpr int BEHIND = (PARK + LIST + 15) / 16 * 16, ROOM = (HALF ? 112 : 224) * 1024 - 1280 - BEHIND;
    static constexpr int LONG = 2 * NT * 1024 + 4 * WARPS * CODE::BLOCK_BYTES; // a stage of 128 k
    static constexpr int PLANES = DEEP ? 4 : !FOLD && 3 * LONG <= ROOM ? 2 : 1;
    typedef wide_form<CODE, NT, 1, 2, PLANES, HALF ? 2 : 1, ROOM, !HALF ? 56 : NT <= 2 ? 48 : 32> SHAPE;
    static constexpr int BYTES = SHAPE::BYTES + BEHIND;
};

// The experts' matrices as the kernel sees them, worked out by the launcher.
struct expert_source {
    const uint8_t *data, *scale;
    const float *global;
    int64_t data_stride, scale_stride;        // of an expert
    int32_t panels, panel_bytes, panel_scale; // bytes of a panel's codes and scales
    int32_t quarter, shift;                   // bytes from a quarter's scales to the next; log2 of the blocks a group
};

static expert_source expert_source_make(const struct weight *w)
{
    expert_source s = {w->data, w->scale, w->global, w->data_stride, w->scale_stride};
    if (!w->data)
        return s;
    s.panels = (w->n + 15) / 16;
    s.panel_bytes = (w->k + 31) / 32 * code_block_bytes(w->encoding, w->bits);
    s.panel_scale = scale_panel_bytes(w);
    s.quarter = w->encoding == ENC_AFFINE ? 16 : w->encoding == ENC_NVFP4 || w->encoding == ENC_MXFP8 ? 4 : 0;
    s.shift = w->group >= 128 ? 2 : w->group >= 64 ? 1 : 0;
    return s;
}

// A launch: y[pair][n] from rows of x, by gate and up, or by up alone.
struct expert_launch {
    expert_source gate, up; // gate.data NULL: none
    wide_rows x;
    float *y;
    void *groups;
    int32_t n, experts, divisor, activation; // row pair / divisor of x
    int32_t columns, tile, aligned;          // units of a tile; pairs of one; whether y takes 16 bytes at a time
    unsigned char *prepared;                 // NULL, or where pairs go as rows of n that are prepared, in place of y
};

// A block's run of units, and in shared memory its tiles and their rows.
struct expert_run {
    int begin, end, columns; // units
    int first;               // of the first tile's pairs
    expert_tile *tiles;
    list_row *rows;

    // do_it(tile, its rows, column) of each unit that has pairs.
    template <class DO> __device__ __forceinline__ void each(DO do_it) const
    {
        const int from = begin / columns;
        for (int unit = begin, q = 0, column = begin - from * columns; unit < end; unit++) {
            const expert_tile tile = tiles[q];
            if (tile.count > 0)
                do_it(tile, rows + (tile.first - first), column);
            if (++column == columns) {
                column = 0;
                q++;
            }
        }
    }
};

// Finds the block's run, by all threads; two barriers of the block.
template <class FORM> __device__ __forceinline__ expert_run expert_open(const expert_launch &a, unsigned char *behind)
{
    constexpr int ROWS = FORM::SHAPE::ROWS;
    const expert_groups g = groups_at(a.groups, a.experts);
    const int parts = tile_parts(a.tile, ROWS), units = *g.tiles * parts * a.columns;
    expert_run run;
    run.columns = a.columns;
    run.begin = share_begin(units, (int)blockIdx.x, (int)gridDim.x);
    run.end = share_begin(units, (int)blockIdx.x + 1, (int)gridDim.x);
    run.tiles = (expert_tile *)(behind + FORM::PARK);
    run.rows = (list_row *)(run.tiles + LIST_UNITS);
    run.first = 0;
    const int from = run.begin / a.columns, last = (run.end - 1) / a.columns;
    for (int e = threadIdx.x; e < a.experts && run.begin < run.end; e += FORM::SHAPE::THREADS) {
        const int tiles = (g.start[e + 1] - g.start[e] + a.tile - 1) / a.tile, first = g.first_tile[e] * parts;
        for (int q = from > first ? from : first; q <= last && q < first + tiles * parts; q++)
            run.tiles[q - from] = tile_of(g, e, (q - first) / parts, (q - first) % parts, a.tile, ROWS);
    }
    __syncthreads();
    if (run.begin < run.end) {
        const expert_tile end = run.tiles[last - from];
        run.first = run.tiles[0].first;
        for (int i = threadIdx.x; i < end.first + end.count - run.first; i += FORM::SHAPE::THREADS) {
            const int pair = g.pairs[run.first + i];
            run.rows[i] = {pair / a.divisor, pair};
        }
    }
    __syncthreads();
    return run;
}

// Where panel `half` of warp `warp` of a column begins: the first is gate's, where there is one. A panel that is missing
// is the last one.
__device__ __forceinline__ lane_weights expert_place(const expert_launch &a, int expert, int column, int warp, int half)
{
    const bool gated = a.gate.data != NULL;
    const expert_source &s = gated && half == 0 ? a.gate : a.up;
    const int at = gated ? column * 8 + warp : (column * 8 + warp) * 2 + half,
              panel = at < s.panels ? at : s.panels - 1;
    return {s.data + expert * s.data_stride + (int64_t)panel * s.panel_bytes,
            s.scale + expert * s.scale_stride + (int64_t)panel * s.panel_scale, s.shift};
}

// A lane's scales.
__device__ __forceinline__ lane_weights expert_lane(const expert_launch &a, int expert, int column, int warp, int lane)
{
    lane_weights place = expert_place(a, expert, column, warp, lane >> 4);
    place.scale += (lane >> 2 & 3) * a.up.quarter;
    return place;
}

// Stores outputs o .. o + 3 of a pair.
__device__ __forceinline__ void expert_store(const expert_launch &a, int pair, int o, const float (&v)[4])
{
    if (!a.prepared) {
        store_four(a.y + (int64_t)pair * a.n, o, a.n, a.aligned != 0, v);
        return;
    }
    if (o >= a.n)
        return;
    // As wide_prepare() would put them: pieces 2 j and 2 j + 1 of the block, of eight k the word.
    unsigned char *place = a.prepared + ((int64_t)pair * a.n + o / 32 * 32) * 2 + o / 4 % 2 * 32 + o / 8 % 4 * 4;
    *(uint32_t *)place = pair_pack(v[0], v[2]);
    *(uint32_t *)(place + 16) = pair_pack(v[1], v[3]);
}

// What becomes of `count` rows of a warp's sums, of gate and up.
template <class CODE>
__device__ __forceinline__ void expert_finish_gated(const expert_launch &a, const float *sums, const list_row *rows,
                                                    int count, int expert, int panel)
{
    const int lane = threadIdx.x & 31, o = lane % 4 * 4;
    const float up = a.up.global ? a.up.global[expert] : 1.0f, gate = a.gate.global ? a.gate.global[expert] : 1.0f;
    if (panel * 16 >= a.n)
        return;
#pragma unroll 1
    for (int r = lane / 4; r < count; r += 8) {
        const float scale = wide_code<CODE>::HALF ? a.x.scale[rows[r].x] : 1.0f;
        const float4 g = *(const float4 *)(sums + r * PARKED + o), u = *(const float4 *)(sums + r * PARKED + 16 + o);
        const float of_gate[4] = {g.x, g.y, g.z, g.w}, of_up[4] = {u.x, u.y, u.z, u.w};
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = activate(of_gate[i] * (gate * scale), ACT_SILU) * (of_up[i] * (up * scale));
        expert_store(a, rows[r].pair, panel * 16 + o, v);
    }
}

// The same of up alone.
template <class CODE>
__device__ __forceinline__ void expert_finish(const expert_launch &a, const float *sums, const list_row *rows,
                                              int count, int expert, int pair)
{
    const int lane = threadIdx.x & 31, o = lane % 8 * 4;
    const float up = a.up.global ? a.up.global[expert] : 1.0f;
    if (pair * 32 >= a.n)
        return;
#pragma unroll 1
    for (int r = lane / 8; r < count; r += 4) {
        const float scale = wide_code<CODE>::HALF ? up * a.x.scale[rows[r].x] : up;
        const float4 u = *(const float4 *)(sums + r * PARKED + o);
        float v[4] = {u.x * scale, u.y * scale, u.z * scale, u.w * scale};
        if (a.activation != ACT_NONE)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = activate(v[i], a.activation);
        expert_store(a, rows[r].pair, pair * 32 + o, v);
    }
}

// A unit's products and what becomes of them, by the warpgroups that multiply.
template <class FORM> struct expert_unit {
    typedef typename FORM::SHAPE SHAPE;
    typedef typename SHAPE::CODE CODE;
    const expert_launch &a;
    wide_tile<SHAPE> &ring;
    const wide_taker<SHAPE> &taker;
    const expert_tile &tile;
    const list_row *rows;
    int column;

    // Rows 8 FIRST and on of the sums.
    template <int USED, int FIRST> __device__ __forceinline__ void finish(const float acc[2][USED * 4]) const
    {
        constexpr int COUNT = USED - FIRST < FORM::CHUNK ? USED - FIRST : FORM::CHUNK;
        const int warp = threadIdx.x >> 5, left = tile.count - FIRST * 8;
        if (FIRST > 0 && left <= 0)
            return;
        float *park = (float *)ring.behind + warp * (FORM::CHUNK * 8 * PARKED);
        __syncwarp();
        wide_park<USED, FIRST, COUNT>(park, acc);
        __syncwarp();
        const int count = left < COUNT * 8 ? left : COUNT * 8;
        if (a.gate.data)
            expert_finish_gated<CODE>(a, park, rows + FIRST * 8, count, tile.expert, column * 8 + warp);
        else
            expert_finish<CODE>(a, park, rows + FIRST * 8, count, tile.expert, column * 8 + warp);
        if constexpr (FIRST + COUNT < USED)
            finish<USED, FIRST + COUNT>(acc);
    }

    template <int USED> __device__ __forceinline__ void run(void) const
    {
        float acc[2][USED * 4];
        wide_run<SHAPE, USED>(ring, taker, expert_lane(a, tile.expert, column, threadIdx.x >> 5, threadIdx.x & 31),
                              acc);
        finish<USED, 0>(acc);
    }

    // Of a full tile, or of the least size that holds its rows where there are registers for more than one.
    __device__ __forceinline__ void run(void) const
    {
        constexpr int NT = SHAPE::NT;
        if constexpr (NT >= 8) {
            if (tile.count <= NT * 2)
                return run<NT / 4>();
            if (tile.count <= NT * 4)
                return run<NT / 2>();
            if constexpr (wide_code<CODE>::ROWS ==
                          1) // with codes of more bits there are no registers for one size more (C7512)
                if (tile.count <= NT * 6)
                    return run<NT * 3 / 4>();
        }
        return run<NT>();
    }
};

template <class CODE, int TILE, bool DEEP>
__global__ void __launch_bounds__(384, expert_form<CODE, TILE, DEEP>::SHAPE::BLOCKS)
    experts_wide_kernel(const __grid_constant__ expert_launch a)
{
    typedef expert_form<CODE, TILE, DEEP> FORM;
    typedef typename FORM::SHAPE SHAPE;
    SHARED_ROOM(memory);
    wide_tile<SHAPE> ring;
    pdl_trigger();
    wide_open<SHAPE>(&ring, memory, a.x, 0, 1);
    pdl_wait();
    const expert_run run = expert_open<FORM>(a, ring.behind);
    if (threadIdx.x >= SHAPE::WARPS * 32) {
        registers_fewer<SHAPE::COPY_REGISTERS>();
        wide_copier<SHAPE> copier;
        copier.find(ring);
        run.each([&](const expert_tile &tile, const list_row *rows, int column) {
            wide_sources<SHAPE> weights;
            weights.find([&](int w, int half) { return expert_place(a, tile.expert, column, w, half); });
            wide_copy<SHAPE>(ring, copier, weights, 0, tile.count, [&](int r) { return rows[r].x; });
        });
    } else {
        registers_more<SHAPE::REGISTERS>();
        wide_taker<SHAPE> taker;
        taker.find(ring);
        run.each([&](const expert_tile &tile, const list_row *rows, int column) {
            const expert_unit<FORM> unit = {a, ring, taker, tile, rows, column};
            unit.run();
        });
    }
}

// Launches a, whose tiles and columns are still to be set, for at most `pairs` pairs.
template <class CODE, int TILE, bool DEEP = false>
static cudaError_t experts_wide_launch(cudaStream_t stream, const expert_launch &a, int64_t pairs)
{
    typedef expert_form<CODE, TILE, DEEP> FORM;
    typedef typename FORM::SHAPE SHAPE;
    const int64_t tiles = (int64_t)most_tiles(pairs, a.experts, a.tile) * tile_parts(a.tile, SHAPE::ROWS),
                  units = tiles * a.columns;
    // As many blocks as run at once, or as it takes for runs to have place in the lists.
    const int64_t least = (int64_t)(LIST_UNITS - 2) * a.columns, blocks = (units + least - 1) / least,
                  most = (int64_t)multiprocessors() * SHAPE::BLOCKS;
    const int64_t grid = blocks > most ? blocks : units < most ? units : most;
    return launch(stream, dim3((unsigned)grid), dim3(SHAPE::THREADS), (size_t)FORM::BYTES,
                  experts_wide_kernel<CODE, TILE, DEEP>, a);
}

// Tiles of few pairs and long rows of codes of 4 bits: the longer a stage, the less often warps meet; but those of an
// unfinished last stage are for nothing.
template <class CODE> static cudaError_t experts_wide_few(cudaStream_t stream, const expert_launch &a, int64_t pairs)
{
    const int blocks = a.x.blocks, idle = (blocks + 7) / 8 * 8 - blocks;
    if constexpr (code_equal<CODE, code_nvfp4>::value)
        if (blocks >= 32 && idle * 8 <= blocks)
            return experts_wide_launch<CODE, TILE_FEW, true>(stream, a, pairs);
    return experts_wide_launch<CODE, TILE_FEW>(stream, a, pairs);
}

static cudaError_t experts_wide(cudaStream_t stream, const struct weight *w, expert_launch a, int64_t pairs)
{
    cudaError_t error = cudaErrorInvalidValue;
    a.tile = expert_tile_rows(pairs, a.experts);
    a.columns = ((a.n + 15) / 16 + (a.gate.data ? 7 : 15)) / (a.gate.data ? 8 : 16);
    with_code(w, [&](auto code) {
        typedef typename decltype(code)::type CODE;
        if constexpr (wide_code<CODE>::AVAILABLE)
            error = a.tile == TILE_FEW    ? experts_wide_few<CODE>(stream, a, pairs)
                    : a.tile == TILE_SOME ? experts_wide_launch<CODE, TILE_SOME>(stream, a, pairs)
                    : a.tile == TILE_MORE ? experts_wide_launch<CODE, TILE_MORE>(stream, a, pairs)
                                          : experts_wide_launch<CODE, TILE_MANY>(stream, a, pairs);
    });
    return error;
}

cudaError_t experts_up_wide(cudaStream_t stream, const struct experts_up_args *args, const wide_rows *to, int rows)
{
    const wide_rows x = wide_rows_at(args->scratch, rows, args->k);
    const cudaError_t error =
        wide_prepare(stream, args->pass, 1, args->x, args->ldx, args->k, rows, wide_half(&args->up), 1, true, x);
    if (error != cudaSuccess)
        return error;
    expert_launch a = {expert_source_make(&args->gate), expert_source_make(&args->up), x, args->h, args->groups};
    a.n = args->inner;
    a.experts = args->experts;
    a.divisor = args->slots;
    a.activation = args->activation;
    a.aligned = (uintptr_t)args->h % 16 == 0 && args->inner % 4 == 0;
    a.prepared = to ? to->data : NULL;
    return experts_wide(stream, &args->up, a, (int64_t)rows * args->slots);
}

cudaError_t experts_down_wide(cudaStream_t stream, const struct experts_down_args *args, bool there, int rows)
{
    const int64_t pairs = (int64_t)rows * args->slots;
    const wide_rows x = wide_rows_at(args->scratch, pairs, args->k);
    const cudaError_t error = there ? cudaSuccess
                                    : wide_prepare(stream, args->pass, args->slots, args->h, args->k, args->k, pairs,
                                                   wide_half(&args->down), 1, false, x);
    if (error != cudaSuccess)
        return error;
    expert_launch a = {{}, expert_source_make(&args->down), x, args->y, args->groups};
    a.n = args->n;
    a.experts = args->experts;
    a.divisor = 1;
    a.activation = ACT_NONE;
    a.aligned = (uintptr_t)args->y % 16 == 0 && args->n % 4 == 0;
    return experts_wide(stream, &args->down, a, pairs);
}
