// SPDX-License-Identifier: Apache-2.0
//
// residual_rows(): a block has a row at a time, a thread four neighbouring numbers of every stream, so that the experts are summed
// once and a row's streams are read once. Of so few rows that half of the card would be idle two blocks, a cluster, have a row.
//
// Invariant: the same operations in the same order as moe_sum, hc_inject and norm one after the other, whose block has as many
// threads for a stream as this one, or two, for a row.

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mixture.cuh"
#include "kernels/cuda/residual_rows.cuh"
#if defined(CUDA_FIBERS) // tests/cuda_fake
#include "kernels/cuda/mma.cuh"
#include <cuda_pipeline.h>
#define pair_pack               mma_pair
#define SHARED_ROOM             SHARED_BYTES
#define copy16(to, from, bytes) __pipeline_memcpy_async(to, from, bytes)
#define copy_commit             __pipeline_commit
template <int N> static inline void copy_wait(void)
{
    __pipeline_wait_prior(N);
}
#else
#include "kernels/cuda/device.cuh"
#endif
#include "kernels/cuda/prepared.cuh"

enum {
    ROWS_THREADS = 1024,
    ROWS_FEW = 640,
    STREAMS = ROWS_STREAMS,
    RING = 20,                       // pieces of 16 bytes that a thread has on their way
    RING_SLOTS = WARP - 1 - STREAMS, // experts of a row at most, whose numbers a warp's lanes hold
};

struct row_step {
    struct moe_sum_args sum;
    struct hc_inject_args inject;
    struct norm_args norm;
    struct residual_prepared to;
};

// Sums over a row's PARTS blocks, by whole warps, each as block_sum() makes it. space: as many floats for every warp as there are sums.
template <int PARTS> DEVICE void block_sums(float (&x)[STREAMS], float (*space)[WARP])
{
    const int lane = threadIdx.x % WARP, warps = blockDim.x / WARP,
              warp = threadIdx.x / WARP + (PARTS > 1 ? (int)(blockIdx.x % PARTS) * warps : 0);
    if (PARTS > 1)
        cluster_wait(); // the others are there
#pragma unroll
    for (int c = 0; c < STREAMS; c++) {
        x[c] = warp_sum<WARP>(x[c]);
        if (PARTS > 1 && lane < PARTS)
            *cluster_map(&space[c][warp], (unsigned)lane) = x[c];
        if (PARTS == 1 && lane == 0)
            space[c][warp] = x[c];
    }
    if (PARTS > 1)
        cluster_sync();
    else
        __syncthreads();
#pragma unroll
    for (int c = 0; c < STREAMS; c++)
        x[c] = warp_sum<WARP>(lane < PARTS * warps ? space[c][lane] : 0.0f);
}

// What becomes of the thread's numbers of row r, injected: stored normed, or prepared. sums: of the squares of the row.
template <bool PREPARE>
DEVICE void residual_finish(const struct row_step &a, int64_t r, int32_t i, vec<4> (&kept)[STREAMS],
                            const float (&sums)[STREAMS], const vec<4> (&weight)[STREAMS])
{
    const int32_t dim = a.inject.dim;
#pragma unroll
    for (int c = 0; c < STREAMS; c++) {
        const float factor = 1.0f / sqrtf(sums[c] / (float)dim + a.norm.eps);
#pragma unroll
        for (int j = 0; j < 4; j++)
            kept[c].v[j] = f_mul(f_mul(kept[c].v[j], factor), weight[c].v[j]);
        if (!PREPARE) {
            vec_store<4>(a.norm.y + r * a.norm.ldy + (int64_t)c * dim + i, kept[c]);
            continue;
        }
        const struct prepared_place place = prepared_place_of(c * dim + i);
        put_prepared(a.to.data + (r * a.to.blocks * 4 + place.piece) * 16 + place.byte, a.to.part_bytes, a.to.parts,
                     c * dim + i, kept[c]);
        if (i == 0)
            a.to.factors[r * STREAMS + c] = factor;
    }
}

template <bool SUM, bool PREPARE, int THREADS, int PARTS>
__global__ void __launch_bounds__(THREADS, !SUM && THREADS == ROWS_FEW ? 2 : 1)
    residual_rows_kernel(const __grid_constant__ struct row_step a)
{
    SHARED_ROOM(memory); // [STREAMS][WARP]
    constexpr int AHEAD = THREADS <= ROWS_FEW ? MOE_MORE : MOE_AHEAD;
    constexpr bool WEIGHTS_FIRST = PARTS > 1; // there are registers for it
    const int64_t r = blockIdx.x / PARTS;
    const int32_t dim = a.inject.dim, i = (int32_t)(blockIdx.x % PARTS * blockDim.x + threadIdx.x) * 4;
    float *row = a.inject.r + r * STREAMS * dim + i, gates[STREAMS], sums[STREAMS] = {};
    vec<4> kept[STREAMS], weight[STREAMS], y = {};
    if (WEIGHTS_FIRST && i < dim)
#pragma unroll
        for (int c = 0; c < STREAMS; c++)
            weight[c] = vec_load<4>(a.norm.w + (int64_t)c * dim + i);
    pdl_wait();
    pdl_trigger();
    const int32_t live = *(const volatile int32_t *)&a.inject.pass->rows; // looked at when all else is on its way
#pragma unroll
    for (int c = 0; c < STREAMS; c++) {
        gates[c] = a.inject.inject[r * a.inject.ldi + c];
        if (i < dim)
            kept[c] = vec_load<4>(row + (int64_t)c * dim);
    }
    if (i < dim)
        y = SUM ? moe_sum_at<4, AHEAD>(a.sum, r, i) : vec_load<4>(a.inject.y + r * dim + i);
    if (r >= live)
        return;
    if (PARTS > 1)
        cluster_arrive_read();
#pragma unroll
    for (int c = 0; c < STREAMS; c++) {
        const float inject = f_mul(2.0f, f_sigmoid(gates[c]));
        if (i >= dim)
            continue;
        if (!WEIGHTS_FIRST)
            weight[c] = vec_load<4>(a.norm.w + (int64_t)c * dim + i);
#pragma unroll
        for (int j = 0; j < 4; j++)
            kept[c].v[j] = fmaf(inject, y.v[j], kept[c].v[j]);
        vec_store<4>(row + (int64_t)c * dim, kept[c]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            sums[c] = fmaf(kept[c].v[j], kept[c].v[j], sums[c]);
    }
    block_sums<PARTS>(sums, (float(*)[WARP])memory);
    if (i >= dim) // in whole warps, where rows are prepared
        return;
    residual_finish<PREPARE>(a, r, i, kept, sums, weight);
}

// The same, of streams in whole warps, by as many blocks as there are multiprocessors. A thread's pieces of rows go through a
// ring in shared memory of its own, some rows ahead of what is added; what all threads want of a row, its weights and gates, is
// in the lanes of each warp, a row ahead.
struct row_ring {
    unsigned char *memory; // the thread's first place
    int32_t step, pieces;  // bytes from a place to the next; pieces of a row
    int32_t place;         // that is taken next, and filled again
    int32_t piece;         // that is asked for next, of `row`
    int64_t row;
};

// Asks for the next piece of the block's rows below `live`: the experts' outputs, the shared one's, then the streams'.
template <bool SUM> DEVICE void ring_ask(const struct row_step &a, struct row_ring *ring, int32_t i, int32_t live)
{
    if (ring->row < live) {
        const int32_t dim = a.inject.dim, stream = ring->piece - (ring->pieces - STREAMS);
        const float *from = stream >= 0                 ? a.inject.r + (ring->row * STREAMS + stream) * dim
                            : !SUM                      ? a.inject.y + ring->row * dim
                            : ring->piece < a.sum.slots ? a.sum.routed + (ring->row * a.sum.slots + ring->piece) * dim
                                                        : a.sum.shared + ring->row * a.sum.lds;
        copy16(ring->memory + ring->place * ring->step, from + i, 16);
        if (++ring->piece == ring->pieces) {
            ring->piece = 0;
            ring->row += gridDim.x;
        }
    }
    copy_commit();
}

// Takes the next piece, and asks for another one in its place.
template <bool SUM> DEVICE vec<4> ring_take(const struct row_step &a, struct row_ring *ring, int32_t i, int32_t live)
{
    copy_wait<RING - 1>();
    const vec<4> taken = vec_load<4>((const float *)(ring->memory + ring->place * ring->step));
    ring_ask<SUM>(a, ring, i, live);
    ring->place = ring->place + 1 == RING ? 0 : ring->place + 1;
    return taken;
}

// A lane's number of row r: experts' weights, the shared one's gate, the gates of the streams.
template <bool SUM> DEVICE float ring_number(const struct row_step &a, int64_t r, int32_t live, int lane)
{
    const int slots = SUM ? a.sum.slots : 0, stream = lane - slots - 1;
    if (r >= live || stream >= STREAMS)
        return 0;
    if (lane < slots)
        return a.sum.weights[r * slots + lane];
    if (stream >= 0)
        return a.inject.inject[r * a.inject.ldi + stream];
    return SUM && a.sum.gate ? a.sum.gate[r * a.sum.ldg] : 0;
}

template <bool SUM, bool PREPARE>
__global__ void __launch_bounds__(ROWS_FEW, 1) residual_ring_kernel(const __grid_constant__ struct row_step a)
{
    SHARED_ROOM(memory);
    __shared__ float space[2][STREAMS][WARP];
    const int32_t i = (int32_t)threadIdx.x * 4, dim = a.inject.dim, slots = SUM ? a.sum.slots : 0;
    const int lane = threadIdx.x % WARP;
    const bool shared = SUM && a.sum.shared;
    struct row_ring ring = {
        memory + threadIdx.x * 16, (int32_t)blockDim.x * 16, (SUM ? slots + shared : 1) + STREAMS, 0, 0, blockIdx.x};
    vec<4> weight[STREAMS];
#pragma unroll
    for (int c = 0; c < STREAMS; c++)
        weight[c] = vec_load<4>(a.norm.w + (int64_t)c * dim + i);
    pdl_wait();
    pdl_trigger();
    const int32_t live = a.inject.pass->rows;
    for (int p = 0; p < RING; p++) { // places in their order
        ring.place = p;
        ring_ask<SUM>(a, &ring, i, live);
    }
    ring.place = 0;
    float next = ring_number<SUM>(a, blockIdx.x, live, lane);
    for (int64_t r = blockIdx.x, turn = 0; r < live; r += gridDim.x, turn ^= 1) {
        const float raw = next, gate = f_sigmoid(raw);
        vec<4> kept[STREAMS], y = {};
        float sums[STREAMS] = {};
        next = ring_number<SUM>(a, r + gridDim.x, live, lane);
        if (!SUM)
            y = ring_take<SUM>(a, &ring, i, live);
        for (int s = 0; s < slots; s++) {
            const vec<4> t = ring_take<SUM>(a, &ring, i, live);
            const float by = __shfl_sync(WHOLE_WARP, raw, s);
#pragma unroll
            for (int j = 0; j < 4; j++)
                y.v[j] = fmaf(by, t.v[j], y.v[j]);
        }
        if (shared) {
            const vec<4> t = ring_take<SUM>(a, &ring, i, live);
            const float by = a.sum.gate ? __shfl_sync(WHOLE_WARP, gate, slots) : 1.0f;
#pragma unroll
            for (int j = 0; j < 4; j++)
                y.v[j] = fmaf(by, t.v[j], y.v[j]);
        }
#pragma unroll
        for (int c = 0; c < STREAMS; c++) {
            kept[c] = ring_take<SUM>(a, &ring, i, live);
            const float inject = f_mul(2.0f, __shfl_sync(WHOLE_WARP, gate, slots + 1 + c));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                kept[c].v[j] = fmaf(inject, y.v[j], kept[c].v[j]);
                sums[c] = fmaf(kept[c].v[j], kept[c].v[j], sums[c]);
            }
            vec_store<4>(a.inject.r + (r * STREAMS + c) * dim + i, kept[c]);
        }
        block_sums<1>(sums, space[turn]);
        residual_finish<PREPARE>(a, r, i, kept, sums, weight);
    }
}

// Whether the card and the shapes have room for rings, and there are rows for all multiprocessors.
static bool ring_fits(const struct row_step *a, unsigned threads, bool sum, int rows)
{
    static int room = 0;
    if (room == 0)
        room = card_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    return a->inject.dim % (4 * WARP) == 0 && threads <= ROWS_FEW && (!sum || a->sum.slots <= RING_SLOTS) &&
           (int)(RING * 16 * threads + 2048) <= room && rows > multiprocessors();
}

template <bool SUM, bool PREPARE>
static cudaError_t residual_rows_launch(cudaStream_t stream, const struct row_step &a, int rows)
{
    const unsigned threads = threads_for(a.inject.dim, 4, ROWS_THREADS);
    if (ring_fits(&a, threads, SUM, rows))
        return launch(stream, (unsigned)multiprocessors(), threads, (size_t)(RING * 16 * threads),
                      residual_ring_kernel<SUM, PREPARE>, a);
    const size_t space = sizeof(float) * STREAMS * WARP;
    if (a.inject.dim % (4 * WARP * 2) == 0 && threads <= ROWS_FEW && 2 * rows <= multiprocessors() &&
        clusters_available())
        return launch_cluster(stream, dim3(2 * (unsigned)rows), threads / 2, space, 2,
                              residual_rows_kernel<SUM, PREPARE, ROWS_FEW / 2, 2>, a);
    if (threads <= ROWS_FEW)
        return launch(stream, (unsigned)rows, threads, space, residual_rows_kernel<SUM, PREPARE, ROWS_FEW, 1>, a);
    return launch(stream, (unsigned)rows, threads, space, residual_rows_kernel<SUM, PREPARE, ROWS_THREADS, 1>, a);
}

cudaError_t residual_rows(cudaStream_t stream, const struct moe_sum_args *sum, const struct hc_inject_args *inject,
                          const struct norm_args *norm, const struct residual_prepared *to, int rows)
{
    const int32_t dim = inject->dim, all = STREAMS * dim;
    struct row_step a = {};
    if (inject->streams != STREAMS || norm->groups != STREAMS || norm->dim != dim || norm->ldx != all ||
        dim > 4 * ROWS_THREADS || (to && (dim % (4 * WARP) || to->blocks != all / 32)))
        return cudaErrorNotSupported;
    if (!vec_fits(inject->r, 0, dim) || !vec_fits(norm->w, 0, dim) || !vec_fits(norm->y, norm->ldy, dim) ||
        (sum ? !moe_sum_wide(sum) || sum->width != dim : !vec_fits(inject->y, 0, dim)))
        return cudaErrorNotSupported;
    a.inject = *inject;
    a.norm = *norm;
    if (sum)
        a.sum = *sum;
    if (to) {
        a.to = *to;
        return sum ? residual_rows_launch<true, true>(stream, a, rows)
                   : residual_rows_launch<false, true>(stream, a, rows);
    }
    return sum ? residual_rows_launch<true, false>(stream, a, rows)
               : residual_rows_launch<false, false>(stream, a, rows);
}
