// SPDX-License-Identifier: Apache-2.0
//
// Prompt-class products on warpgroups for many rows (sm_90a): tiles of 8 NT rows by 128 outputs. A warp has sixteen outputs, two
// of each lane's four, so that a fragment is made once for up to 256 rows; the other warpgroup has the other two. A block takes
// tile after tile. Four warps ask the copy engine for the rows, which lie in scratch as they do in shared memory (wide_rows,
// staged), and for weights as they lie in memory, and runs ahead across the ends of tiles.
//
// Where k is cut into slices, a block takes them one after the other and adds them up.
// Invariant: the sums are those of wide.cuh to the bit: the same chains of the same numbers, slices added in ascending order.

#ifndef TALL_CUH
#define TALL_CUH

#include "kernels/cuda/wide.cuh"

// What a warp of a tall tile makes of its weights: CODES bytes of a panel's 64 k, in SCALES bytes pieces of SCALE bytes of scales, one
// each 1 << shift blocks of 32 k at most. A lane's codes of a block begin LANE bytes behind those of the lane before in its four, and
// are in lines of 64 bytes, the even ones of which it finds from one place on and the odd ones from another. TURN: rows of sums that
// are on their way out at a time.
template <class CODE> struct tall_code;
template <> struct tall_code<code_affine<4>> {
    typedef wide_code<code_affine<4>> WIDE;
    static constexpr int CODES = 512, SCALES = 128, SCALE = 64, LANE = 64, TURN = 32;
    uint2 q, s;

    // Of block i of the stage: codes and scales are where the lane's begin.
    __device__ __forceinline__ void fetch(const shared_place (&codes)[2], int at, shared_place scales, int shift, int i)
    {
        q = shared_load<uint2>(codes[0] + (at + i * 256));
        s = shared_load<uint2>(scales + (at + (i >> shift) * SCALE));
    }
    __device__ __forceinline__ void fragments(uint32_t a[2][4]) const
    {
        WIDE::output(q.x, s.x, &a[0][0], &a[1][0], &a[0][2], &a[1][2]);
        WIDE::output(q.y, s.y, &a[0][1], &a[1][1], &a[0][3], &a[1][3]);
    }
};
// Four lines of a lane, pairs of neighbouring k. Lanes of odd number take lines of odd number first, so that fewer ask the same banks.
template <> struct tall_code<code_bf16> {
    static constexpr int CODES = 2048, SCALES = 0, SCALE = 0, LANE = 256, TURN = 16;
    uint2 v[4];

    __device__ __forceinline__ void fetch(const shared_place (&codes)[2], int at, shared_place, int, int i)
    {
#pragma unroll
        for (int n = 0; n < 4; n++)
            v[n] = shared_load<uint2>(codes[n & 1] + (at + i * 1024 + n / 2 * 128));
    }
    __device__ __forceinline__ void fragments(uint32_t a[2][4]) const
    {
        const uint32_t even = threadIdx.x & 1 ? 0x1054u : 0x5410u, odd = threadIdx.x & 1 ? 0x3276u : 0x7632u;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            a[j][0] = __byte_perm(v[2 * j].x, v[2 * j + 1].x, even);
            a[j][1] = __byte_perm(v[2 * j].y, v[2 * j + 1].y, even);
            a[j][2] = __byte_perm(v[2 * j].x, v[2 * j + 1].x, odd);
            a[j][3] = __byte_perm(v[2 * j].y, v[2 * j + 1].y, odd);
        }
    }
};

template <class WEIGHT, int TILES, bool SLICED> struct tall_shape {
    typedef WEIGHT CODE;
    typedef tall_code<CODE> TALL;
    static constexpr bool SLICES = SLICED;
    static constexpr int NT = TILES, ROWS = NT * 8, WARPS = 8, PANELS = 8, OUTPUTS = 128, THREADS = 384;
    static constexpr int PLANE = ROWS * 128, CODES_AT = PLANE, SCALES_AT = CODES_AT + PANELS * TALL::CODES;
    static constexpr int STAGE = (SCALES_AT + PANELS * TALL::SCALES + 1023) / 1024 * 1024;
    // Behind the stages: sums on their way out, two halves of TURN rows a pair, factors of rows a pair, barriers.
    static constexpr int TURN = TALL::TURN, PARK = 2 * TURN * PARKED * 4, FACTORS = ROWS * 4;
    static constexpr int BEHIND = 4 * (PARK + FACTORS);
    static constexpr int FIT = (226 * 1024 - 1024 - BEHIND) / (STAGE + 16), STAGES = FIT > 8 ? 8 : FIT;
    static constexpr int BYTES = 1024 + STAGES * (STAGE + 16) + BEHIND;
    static constexpr int COPY_REGISTERS = 40, REGISTERS = 232;
};

// The parts of a launch that `take` names, all of one encoding and as many slices; units: tiles of rows are neighbours.
struct tall_plan {
    wide_rows x;
    int32_t take, aligned, slices,
        tiles;          // bits of parts; of parts whose y takes 16 bytes at a time; tiles of 128 outputs
    int32_t rows, team; // prepared at most; blocks of a cluster
};

// A block's number in its cluster.
__device__ __forceinline__ int tall_rank(const tall_plan &plan)
{
    return (int)blockIdx.x % plan.team;
}

// Where a block is: the part, which 128 of its outputs, the first row.
struct tall_unit {
    int part, tile, first;
};

// Neighbouring tiles of 128 outputs of the same rows are one unit of a cluster.
__device__ __forceinline__ tall_unit tall_unit_of(const struct linear_args &a, const tall_plan &plan, int unit,
                                                  int row_tiles, int rows)
{
    int tile = unit / row_tiles, part = 0;
    const int first = (unit - tile * row_tiles) * rows;
    tile = tile * plan.team + tall_rank(plan);
    for (;; part++) {
        const int tiles = plan.take >> part & 1 ? a.part[part].w.n / 128 : 0;
        if (tile < tiles)
            return {part, tile, first};
        tile -= tiles;
    }
}

// A slice of k: its stages of weights, and the groups of sixteen blocks' sums that are its share, which lie four a stage.
struct tall_slice {
    int first_stage, stages, first_group, end_group;
};

template <class SHAPE> __device__ __forceinline__ tall_slice tall_slice_of(const wide_rows &x, int slice, int slices)
{
    const int all = x.blocks / 2, groups = (x.blocks + 15) / 16;
    tall_slice s;
    s.first_stage = share_begin(all, slice, slices);
    s.stages = share_begin(all, slice + 1, slices) - s.first_stage;
    s.first_group = share_begin(groups, slice, slices);
    s.end_group = share_begin(groups, slice + 1, slices);
    return s;
}

// The ring of stages as a thread goes through it.
template <class SHAPE> struct tall_ring {
    unsigned char *memory;
    uint64_t *full, *empty;
    int slot, parity;

    __device__ __forceinline__ void open(unsigned char *room)
    {
        memory = wgmma_align(room);
        full = (uint64_t *)(memory + SHAPE::STAGES * SHAPE::STAGE + SHAPE::BEHIND);
        empty = full + SHAPE::STAGES;
        slot = 0;
        parity = 0;
    }
    __device__ __forceinline__ void advance(void)
    {
        const bool last = slot == SHAPE::STAGES - 1;
        slot = last ? 0 : slot + 1;
        parity ^= last;
    }
};

// ---- copies ------------------------------------------------------------------------------------------------------------------

// A lane's piece of each stage: `bytes` from `from` + ((2 s) >> shift) * step to `to` behind the stage's beginning, of so many blocks.
struct tall_piece {
    const unsigned char *from;
    int64_t step;
    int to, bytes, shift, team;
};

// Rows of an eighth or a quarter of a tile: what block `rank` of a cluster and its warp number `warp` bring, of `rows`.
template <class SHAPE> __device__ __forceinline__ int tall_share(int warp, int rank, int team, int rows, int *begin)
{
    const int each = SHAPE::ROWS / 4 / team, left = rows - (warp * team + rank) * each;
    *begin = (warp * team + rank) * each;
    return left < 0 ? 0 : left < each ? left : each;
}

// Each of the four warps that copy has a quarter of a stage: lanes 0 and 1 the codes of a panel each, 2 and 3 its scales, 4 rows, which
// the blocks of a cluster bring for each other. (A warp asks for one copy after the other, and a stage takes no longer than its products.)
template <class SHAPE>
__device__ __forceinline__ tall_piece tall_piece_of(const struct linear_args &a, const tall_plan &plan,
                                                    const tall_unit &unit, int rows, int lane)
{
    typedef typename SHAPE::TALL TALL;
    const struct weight *w = &a.part[unit.part].w;
    const int warp = (int)(threadIdx.x >> 5) - SHAPE::WARPS, panel = 2 * warp + lane % 2;
    const lane_weights place = lane_place(w, 0, unit.tile * 4 + warp, panel % 2 * 16);
    if (lane < 2)
        return {place.data, TALL::CODES, SHAPE::CODES_AT + panel * TALL::CODES, TALL::CODES, 1, 1};
    if (lane < 4)
        return {place.scale,
                TALL::SCALE,
                SHAPE::SCALES_AT + panel * TALL::SCALES,
                place.group_shift ? TALL::SCALE : 2 * TALL::SCALE,
                place.group_shift,
                1};
    int begin;
    const int count = tall_share<SHAPE>(warp, tall_rank(plan), plan.team, rows, &begin);
    return {plan.x.data + (int64_t)(unit.first + begin) * 128,
            (int64_t)plan.x.stage_step * 16,
            begin * 128,
            lane == 4 ? count * 128 : 0,
            1,
            plan.team};
}

// A warp that copies: its share of all stages of a unit.
template <class SHAPE>
__device__ __forceinline__ void tall_copy(const struct linear_args &a, const tall_plan &plan, tall_ring<SHAPE> &ring,
                                          const tall_unit &unit)
{
    const int lane = threadIdx.x & 31, left = plan.rows - unit.first, rows = left < SHAPE::ROWS ? left : SHAPE::ROWS;
    const tall_piece piece = tall_piece_of<SHAPE>(a, plan, unit, rows, lane);
    int row_bytes = 0, bytes = lane < 4 ? piece.bytes : 0, begin;
    for (int rank = 0; rank < plan.team; rank++)
        row_bytes += 128 * tall_share<SHAPE>((int)(threadIdx.x >> 5) - SHAPE::WARPS, rank, plan.team, rows, &begin);
#pragma unroll
    for (int step = 2; step > 0; step /= 2)
        bytes += __shfl_xor_sync(0xffffffffu, bytes, step);
    bytes += row_bytes; // of lane 0
    const auto stage = [&](const unsigned char *from, int all, bool mine) {
        uint64_t *full = ring.full + ring.slot;
        barrier_wait_idle(shared_opaque(ring.empty + ring.slot), ring.parity ^ 1);
        if (lane == 0)
            stage_announce(full, all);
        if (mine && piece.bytes > 0)
            stage_send(ring.memory + ring.slot * SHAPE::STAGE + piece.to, from, piece.bytes, full, piece.team);
        __syncwarp();
        ring.advance();
    };
    for (int slice = 0; slice < plan.slices; slice++) {
        const tall_slice mine = tall_slice_of<SHAPE>(plan.x, slice, plan.slices);
#pragma unroll 1
        for (int s = mine.first_stage; s < mine.first_stage + mine.stages; s++)
            stage(piece.from + ((2 * s) >> piece.shift) * piece.step, bytes, true);
        if constexpr (wide_code<typename SHAPE::CODE>::BIASED)
#pragma unroll 1
            for (int s = mine.first_group >> 2; s <= (mine.end_group - 1) >> 2; s++)
                stage(plan.x.sums + (piece.from - plan.x.data) + (int64_t)s * plan.x.sum_stage * 16, row_bytes,
                      lane == 4);
    }
}

// ---- products ----------------------------------------------------------------------------------------------------------------

// Gives the place of a stage back to all blocks that bring rows there: the warp's products with it are done.
template <class SHAPE> __device__ __forceinline__ void tall_release(const tall_ring<SHAPE> &ring, int slot, int team)
{
    const int lane = threadIdx.x & 31;
    __syncwarp();
    if (lane < team)
        barrier_arrive_at(shared_opaque(ring.empty + slot), lane);
}

// Where a lane finds its weights in the first stage: lines of even and of odd number.
struct tall_taker {
    shared_place codes[2], scales;
    wgmma_source rows;
};

template <class SHAPE> __device__ __forceinline__ tall_taker tall_taker_of(const tall_ring<SHAPE> &ring)
{
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, panel = warp % 4 * 2 + (lane >> 4),
              quarter = lane >> 2 & 3;
    const int half = warp / 4 * 8; // of a lane's four outputs
    tall_taker taker;
    const int turned = SHAPE::TALL::LANE > 64 ? (lane & 1) * 64 : 0;
    unsigned char *codes = ring.memory + SHAPE::CODES_AT + panel * SHAPE::TALL::CODES + (lane & 3) * SHAPE::TALL::LANE +
                           quarter * 16 + half;
    taker.codes[0] = shared_opaque(codes + turned);
    taker.codes[1] = shared_opaque(codes + (64 ^ turned));
    taker.scales = shared_opaque(ring.memory + SHAPE::SCALES_AT + panel * SHAPE::TALL::SCALES + quarter * 16 + half);
    taker.rows = wgmma_rows(ring.memory);
    return taker;
}

// The products of a slice's stages.
template <class SHAPE>
__device__ __forceinline__ void tall_run(tall_ring<SHAPE> &ring, const tall_taker &taker, int stages, int shift,
                                         int team, float *acc)
{
    typedef typename SHAPE::TALL TALL;
    uint32_t a[2][2][4];
    TALL code[2];
    int before = 0;
    for (int s = 0; s < stages; s++) {
        const int at = ring.slot * SHAPE::STAGE;
        const wgmma_source rows = wgmma_at(taker.rows, at, 0);
        stage_wait_here(ring.full + ring.slot, ring.parity);
        code[0].fetch(taker.codes, at, taker.scales, shift, 0);
        code[1].fetch(taker.codes, at, taker.scales, shift, 1);
#pragma unroll
        for (int i = 0; i < 2; i++) { // no branch in here
            code[i].fragments(a[i]);
            wgmma_fence_half(a[i]);
#pragma unroll
            for (int j = 0; j < 2; j++)
                wgmma<SHAPE::NT, wide_code<typename SHAPE::CODE>::HALF>(acc, a[i][j], wgmma_at(rows, 0, 4 * i + 2 * j));
            wgmma_commit();
            wgmma_wait<1>();
            if (i == 0 && s > 0)
                tall_release<SHAPE>(ring, before, team);
        }
        before = ring.slot;
        ring.advance();
    }
    wgmma_wait<0>();
    tall_release<SHAPE>(ring, before, team);
}

// The words of scale and bias of a lane's two outputs and blocks 2 l, 2 l + 1, 2 l + 8 and 2 l + 9 of sixteen.
struct tall_biases {
    uint2 word[4];
};

__device__ __forceinline__ tall_biases tall_biases_of(const uint8_t *scale, int shift, int group, int blocks)
{
    tall_biases b;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int block = 16 * group + 2 * ((int)threadIdx.x & 3) + (k & 1) + (k >> 1) * 8;
        b.word[k] = make_uint2(0, 0); // a scale of 0 and a bias of 0
        if (block < blocks)
            b.word[k] = load_kept8(scale + (int64_t)(block >> shift) * 64);
    }
    return b;
}

// The biases' share, by products with the blocks' sums.
template <class SHAPE>
__device__ __forceinline__ void tall_bias(tall_ring<SHAPE> &ring, const tall_taker &taker, const wide_rows &x,
                                          const tall_slice &slice, const uint8_t *scale, int shift, int team,
                                          float *acc)
{
    typedef wide_code<typename SHAPE::CODE> WIDE;
    tall_biases next = tall_biases_of(scale, shift, slice.first_group, x.blocks);
    for (int g = slice.first_group; g < slice.end_group;) {
        const wgmma_source rows = wgmma_at(taker.rows, ring.slot * SHAPE::STAGE, 0);
        stage_wait_here(ring.full + ring.slot, ring.parity);
        do {
            const tall_biases now = next;
            uint32_t a[2][4];
            next = tall_biases_of(scale, shift, g + 1 < slice.end_group ? g + 1 : g, x.blocks);
#pragma unroll
            for (int c = 0; c < 2; c++) {
                WIDE::bias_pair(now.word[2 * c].x, now.word[2 * c + 1].x, &a[0][2 * c], &a[1][2 * c]);
                WIDE::bias_pair(now.word[2 * c].y, now.word[2 * c + 1].y, &a[0][2 * c + 1], &a[1][2 * c + 1]);
            }
            wgmma_fence_half(a);
#pragma unroll
            for (int p = 0; p < 2; p++)
                wgmma<SHAPE::NT, WIDE::HALF>(acc, a[p], wgmma_at(rows, 0, 2 * (g & 3)));
            wgmma_commit();
            wgmma_wait<0>();
            g++;
        } while (g < slice.end_group && (g & 3));
        tall_release<SHAPE>(ring, ring.slot, team);
        ring.advance();
    }
}

// Finishes and stores a unit's sums: the two warps that share a pair of panels put TURN rows beside each other, then store them as
// whole lines. factor[r]: of row r of the tile.
template <class SHAPE>
__device__ __forceinline__ void tall_store(const struct linear_args &a, const tall_plan &plan, const tall_unit &unit,
                                           float *park, const float *factor, int rows, const float *acc)
{
    constexpr int TURN = SHAPE::TURN;
    const linear_part &part = a.part[unit.part];
    const float more = part.alpha * (part.w.global ? *part.w.global : 1.0f);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, pair = warp % 4, o = lane % 8 * 4;
    float *to = park + sum_row(0, lane) * PARKED + sum_output(0, lane) + warp / 4 * 2;
#pragma unroll
    for (int turn = 0; turn < SHAPE::ROWS / TURN; turn++) {
#pragma unroll
        for (int i = 0; i < TURN / 8; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int n = (turn * (TURN / 8) + i) * 4 + c;
                *(float2 *)(to + ((turn % 2 * TURN + i * 8) + c) * PARKED) = make_float2(acc[n], acc[n + 2]);
            }
        barrier_some(2 + pair, 64);
#pragma unroll 1
        for (int r = warp / 4 * 4 + lane / 8; r < TURN && turn * TURN + r < rows; r += 8) {
            const float4 sum = *(const float4 *)(park + (turn % 2 * TURN + r) * PARKED + o);
            const float scale = more * factor[turn * TURN + r];
            float v[4] = {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
            if (part.activation != ACT_NONE)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    v[i] = activate(v[i], part.activation);
            store_four(part.y + (int64_t)(unit.first + turn * TURN + r) * part.ldy, (unit.tile * 4 + pair) * 32 + o,
                       part.w.n, plan.aligned >> unit.part & 1, v);
        }
    }
}

// What the warps that multiply do with a unit, `rows` of whose rows there are.
template <class SHAPE>
__device__ __forceinline__ void tall_multiply(const struct linear_args &a, const tall_plan &plan,
                                              tall_ring<SHAPE> &ring, const tall_taker &taker, const tall_unit &unit,
                                              int rows)
{
    typedef wide_code<typename SHAPE::CODE> WIDE;
    constexpr int SUMS = SHAPE::NT * 4;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, pair = warp % 4;
    const lane_weights place = lane_place(&a.part[unit.part].w, 0, unit.tile * 4 + pair, lane);
    float *park = (float *)(ring.memory + SHAPE::STAGES * SHAPE::STAGE + pair * SHAPE::PARK);
    float *factor = (float *)(ring.memory + SHAPE::STAGES * SHAPE::STAGE + 4 * SHAPE::PARK + pair * SHAPE::FACTORS);
    float acc[SUMS], total[SHAPE::SLICES ? SUMS : 1];
    barrier_some(2 + pair, 64); // both are done with the factors and the parked sums of the tile before
    for (int r = warp / 4 * 32 + lane; r < SHAPE::ROWS; r += 64)
        factor[r] = WIDE::HALF && r < rows ? plan.x.scale[unit.first + r] : 1.0f;
    for (int slice = 0; slice < (SHAPE::SLICES ? plan.slices : 1); slice++) {
        const tall_slice mine = tall_slice_of<SHAPE>(plan.x, slice, plan.slices);
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            acc[i] = 0;
        tall_run<SHAPE>(ring, taker, mine.stages, place.group_shift, plan.team, acc);
        if constexpr (WIDE::BIASED)
            tall_bias<SHAPE>(ring, taker, plan.x, mine, place.scale + warp / 4 * 8, place.group_shift, plan.team, acc);
        wgmma_settle<SUMS>(acc);
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            acc[i] *= WIDE::factor();
            if constexpr (SHAPE::SLICES)
                total[i] = slice == 0 ? acc[i] : total[i] + acc[i];
        }
    }
    tall_store<SHAPE>(a, plan, unit, park, factor, rows, SHAPE::SLICES ? total : acc);
}

template <class SHAPE>
__global__ void __launch_bounds__(SHAPE::THREADS, 1)
    linear_tall_kernel(const __grid_constant__ struct linear_args a, const __grid_constant__ tall_plan plan)
{
    SHARED_ROOM(memory);
    const int warp = threadIdx.x >> 5;
    tall_ring<SHAPE> ring;
    ring.open(memory);
    if (threadIdx.x < SHAPE::STAGES) {
        stage_open(ring.full + threadIdx.x, 4);
        barrier_init(ring.empty + threadIdx.x, SHAPE::WARPS * plan.team);
    }
    stage_opened();
    pdl_trigger();
    pdl_wait();
    cluster_sync();
    const int rows = a.pass->rows * (a.row_multiple > 1 ? a.row_multiple : 1);
    const int row_tiles = (rows + SHAPE::ROWS - 1) / SHAPE::ROWS, units = row_tiles * plan.tiles / plan.team;
    if (warp >= SHAPE::WARPS) {
        registers_fewer<SHAPE::COPY_REGISTERS>();
        for (int u = blockIdx.x / plan.team; u < units; u += gridDim.x / plan.team)
            tall_copy<SHAPE>(a, plan, ring, tall_unit_of(a, plan, u, row_tiles, SHAPE::ROWS));
    } else {
        registers_more<SHAPE::REGISTERS>();
        const tall_taker taker = tall_taker_of<SHAPE>(ring);
        for (int u = blockIdx.x / plan.team; u < units; u += gridDim.x / plan.team) {
            const tall_unit unit = tall_unit_of(a, plan, u, row_tiles, SHAPE::ROWS);
            tall_multiply<SHAPE>(a, plan, ring, taker, unit, rows - unit.first);
        }
    }
    cluster_arrive_read(); // the others send to this block's barriers up to their end
    cluster_wait();
}

#endif
