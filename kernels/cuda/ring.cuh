// SPDX-License-Identifier: Apache-2.0
//
// Weights of the decode class on their way: a block's ring of slots in shared memory. A slot holds a stage: some consecutive
// blocks of k of the unit's panels, first all codes, then all scales, as in the pack.
//
// One warp puts stages, sixteen take them. There is one block on each multiprocessor, and the ring takes what room
// there is: blocks of the next kernel beside it would come to lie two on one multiprocessor and none on another.
// Invariant: stages are taken in the order in which they were put; nobody leaves a kernel while a copy is under way.

#ifndef RING_CUH
#define RING_CUH

#include "kernels/cuda/x_form.cuh"

enum {
    WARPS = 16, // that take; one more puts, and a kernel may have others behind it
    TAKERS = 32 * WARPS,
    THREADS = TAKERS + 32,
    BLOCK_THREADS = TAKERS + 128, // whole warpgroups: only they can have registers dealt out anew
    SLOTS_MOST = 6,
};

// Bytes of the scales of a block (affine, int4: of a group) and panel that go through the ring.
__host__ __device__ constexpr int ring_scale_bytes(int encoding)
{
    return encoding == ENC_AFFINE || encoding == ENC_INT4 ? 64
           : encoding == ENC_NVFP4                        ? 32
           : encoding == ENC_MXFP8                        ? 16
                                                          : 0;
}

// How long stages are: all of k where a stage of that fits into `limit` bytes, for then the unit's panels are
// neighbours in the pack; else one or two blocks a warp, or what fits into `long_limit`: every stage keeps the warp
// that puts busy, however short, but the first one of a kernel is waited for as a whole. Which warp has a block does
// not depend on it.
struct stage_rule {
    int32_t limit, long_limit;
};

// Blocks of a stage of w when `splits` warps share a pair.
static constexpr int stage_step(const struct weight *w, int splits, const stage_rule &rule)
{
    const int grain = weight_grain(w);
    const int bytes = 2 * WARPS * grain * (code_block_bytes(w->encoding, w->bits) + ring_scale_bytes(w->encoding));
    const int each = ((w->k + 31) / 32 + splits * grain - 1) / (splits * grain), few = bytes * 4 <= rule.limit ? 2 : 1;
    const int fit = rule.long_limit / bytes > few ? rule.long_limit / bytes : few;
    const int stages = bytes * each <= rule.limit || each < fit ? 1 : (each + fit - 1) / fit;
    return splits * grain * ((each + stages - 1) / stages); // stages of a unit are about equally long
}

__host__ __device__ __forceinline__ constexpr int group_shift(const struct weight *w)
{
    return w->encoding != ENC_AFFINE && w->encoding != ENC_INT4 ? 0 : w->group >= 128 ? 2 : w->group >= 64 ? 1 : 0;
}

// Bytes of n blocks of a panel in a stage, at most: one that does not begin with a group has parts of one more.
static constexpr int stage_panel_bytes(const struct weight *w, int n)
{
    const int shift = group_shift(w),
              groups = weight_grain(w) >= 1 << shift ? n >> shift : ((n + (1 << shift) - 2) >> shift) + 1;
    return n * code_block_bytes(w->encoding, w->bits) + groups * ring_scale_bytes(w->encoding);
}

// Bytes of a slot that holds stages of w.
static constexpr int stage_bytes(const struct weight *w, int splits, const stage_rule &rule)
{
    return 2 * (WARPS / splits) * stage_panel_bytes(w, stage_step(w, splits, rule));
}

// A weight as the warp that puts sees it, worked out by the launcher.
struct stage_source {
    const uint8_t *data, *scale;
    int64_t data_stride, scale_stride; // of an expert
    int32_t panels, panel_bytes, scale_panel;
    int32_t data_bytes, scale_bytes, shift; // of a block; of a group of 1 << shift blocks
    int32_t blocks, step, scale_at;         // of k; of a stage; where scales lie in a slot
    int32_t stride;                         // panels from a pair of a unit to the next
    int32_t x_at;                           // where x lies in a slot (eight.cuh)
    int32_t grain;                          // neighbouring blocks of a warp
};

static constexpr stage_source stage_source_make(const struct weight *w, int splits, const stage_rule &rule)
{
    stage_source s = {w->data, w->scale, w->data_stride, w->scale_stride};
    s.blocks = (w->k + 31) / 32;
    s.data_bytes = code_block_bytes(w->encoding, w->bits);
    s.scale_bytes = ring_scale_bytes(w->encoding);
    s.panels = (w->n + 15) / 16;
    s.panel_bytes = s.blocks * s.data_bytes;
    s.scale_panel = scale_panel_bytes(w);
    s.shift = group_shift(w);
    s.step = stage_step(w, splits, rule);
    s.grain = weight_grain(w);
    s.scale_at = 2 * (WARPS / splits) * s.step * s.data_bytes;
    s.stride = 2;
    return s;
}

// Whether two sources differ in nothing but where they are.
static inline bool stage_source_same(const stage_source &a, const stage_source &b)
{
    return a.panels == b.panels && a.panel_bytes == b.panel_bytes && a.scale_panel == b.scale_panel &&
           a.data_bytes == b.data_bytes && a.scale_bytes == b.scale_bytes && a.shift == b.shift &&
           a.blocks == b.blocks && a.step == b.step && a.scale_at == b.scale_at && a.stride == b.stride &&
           a.x_at == b.x_at && a.grain == b.grain;
}

// By all threads of a block of BLOCK_THREADS, which have 96 registers each at first: TAKE for those that take, LEAVE for the others,
// where they can be dealt out anew.
template <int TAKE, int LEAVE> __device__ __forceinline__ void ring_registers(void)
{
    static_assert(TAKE * TAKERS + LEAVE * (BLOCK_THREADS - TAKERS) <= 96 * BLOCK_THREADS, "registers of a block");
    if (threadIdx.x < TAKERS)
        registers_more<TAKE>();
    else
        registers_fewer<LEAVE>();
}

struct ring_barriers {
    uint64_t full[SLOTS_MOST], empty[SLOTS_MOST];
    uint64_t rows;      // of x, rows.cuh
    uint64_t rows_free; // a residual before it has been read
};

// A thread's view of the ring: whoever puts and whoever takes has its own.
struct weight_ring {
    ring_barriers *barriers;
    unsigned char *memory;
    int32_t slot_bytes, slots, slot;
    uint32_t parity;
};

__device__ __forceinline__ weight_ring ring_view(ring_barriers *barriers, unsigned char *memory, int slot_bytes,
                                                 int slots)
{
    return {barriers, memory, slot_bytes, slots, 0, 0};
}

// Called by one thread; the others may use the ring after a barrier.
__device__ __forceinline__ void ring_open(ring_barriers *b, int slots)
{
    for (int i = 0; i < slots; i++) {
        stage_open(b->full + i, STAGE_PUTTERS);
        stage_open(b->empty + i, WARPS);
    }
    stage_open(&b->rows, STAGE_PUTTERS);
    stage_open(&b->rows_free, WARPS);
    stage_opened();
}

__device__ __forceinline__ void ring_next(weight_ring *r)
{
    if (++r->slot == r->slots) {
        r->slot = 0;
        r->parity ^= 1;
    }
}

// A lane's scales of a stage that begins with block b, where they do not go through the ring: whoever takes reads them.
__device__ __forceinline__ void stage_scales_soon(const stage_source &s, const uint8_t *scale, int b, bool mine)
{
    if (mine && s.scale_bytes == 0 && s.scale_panel > 0)
        load_soon(scale + (b >> 2) * 4);
}

// Puts the stages of blocks from .. to - 1 of `most` (16 at most) panels, pair after pair from panel `first` on, as far as there are so many; `put` counts stages.
// Lanes 0 .. 15 have a panel's codes each, 16 .. 31 its scales.
__device__ __forceinline__ void ring_put(weight_ring *r, const stage_source &s, int64_t expert, int first, int most,
                                         int from, int to, int *put, int lane)
{
    const int count = s.stride == 2 && s.panels - first < most ? s.panels - first : most, piece = lane & 15,
              of_scales = lane >> 4;
    const bool whole = to - from == s.blocks && s.step >= s.blocks && s.stride == 2; // then panels are neighbours
    const bool mine = piece < (whole ? 1 : count) && (!of_scales || s.scale_bytes);
    const int times = whole ? count : 1, panel = first + (piece >> 1) * s.stride + (piece & 1);
    const uint8_t *source = of_scales ? s.scale + expert * s.scale_stride + (int64_t)panel * s.scale_panel
                                      : s.data + expert * s.data_stride + (int64_t)panel * s.panel_bytes;
    for (int b = from; b < to; b += s.step) {
        const int n = to - b < s.step ? to - b : s.step, group = b >> s.shift, data = n * s.data_bytes,
                  scales = (((b + n - 1) >> s.shift) - group + 1) * s.scale_bytes;
        if (*put >= r->slots)
            stage_wait(r->barriers->empty + r->slot, r->parity ^ 1);
        uint64_t *full = r->barriers->full + r->slot;
        stage_expect(full, count * (data + scales), lane);
        stage_copy(r->memory + r->slot * r->slot_bytes + (of_scales ? s.scale_at + piece * scales : piece * data),
                   source + (of_scales ? group * s.scale_bytes : b * s.data_bytes), times * (of_scales ? scales : data),
                   full, mine);
        stage_commit(full);
        stage_scales_soon(s, source, b, of_scales && piece < count);
        ++*put;
        ring_next(r);
    }
}

// The oldest stage, when it is there.
__device__ __forceinline__ const unsigned char *ring_take(const weight_ring *r)
{
    stage_wait(r->barriers->full + r->slot, r->parity);
    return r->memory + r->slot * r->slot_bytes;
}

// The warp has finished with the oldest stage.
__device__ __forceinline__ void ring_give(weight_ring *r, int lane)
{
    __syncwarp();
    if (lane == 0)
        stage_arrive(r->barriers->empty + r->slot);
    ring_next(r);
}

#endif
