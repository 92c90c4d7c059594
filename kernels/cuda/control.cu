// SPDX-License-Identifier: Apache-2.0
//
// Rows of a pass, moves of rows between passes, and the ends of passes: everything that a round decides without its host.
//
// Invariant: only `accept` and `commit` change what a lane has committed (length, fold, head_length), and only for lanes that
// have rows in their pass; so a lane that sits a pass out keeps its pending rows.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

DEVICE int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

// ---- rows: one block; thread l counts the rows of lane l, then all write them ------------------------------------------------

enum { ROWS_THREADS = 256 };

// First position and number of rows that a lane has in a pass; *ahead: its token is tokens[position + ahead].
DEVICE int32_t rows_of(const struct rows_args *a, const struct lane *lane, int32_t *first, int32_t *ahead)
{
    const int32_t length = lane->length, rows = lane->rows;
    *ahead = a->mode != ROWS_TRUNK && a->mode != ROWS_TAIL;
    switch (a->mode) {
    case ROWS_TRUNK:
        *first = length;
        return rows;
    case ROWS_FILL:
        *first = lane->head_length;
        return rows > 0 ? least(length + rows, lane->limit - 1) - *first : 0;
    case ROWS_TAIL:
        *first = lane->tail_first;
        return lane->tail_rows;
    case ROWS_ABSORB:
        // Older cells have no streams any more; leaving them out costs drafts, never replies.
        *first = lane->head_length > lane->streams_base ? lane->head_length : lane->streams_base;
        return rows > 0 ? length - *first : 0;
    case ROWS_LAST:
        *first = length - 1;
        return rows > 0 && *first >= 0 && !lane->headless;
    default: // as many lanes as in ROWS_LAST: a chain goes on from the same row
        *first = length - 1 + a->step;
        return rows > 0 && length > 0 && !lane->headless;
    }
}

__global__ void __launch_bounds__(ROWS_THREADS) rows_kernel(const __grid_constant__ struct rows_args a)
{
    __shared__ int32_t start[MAX_LANES], count[MAX_LANES], position[MAX_LANES], ahead[MAX_LANES];
    __shared__ const int32_t *tokens[MAX_LANES];
    const int32_t thread = threadIdx.x;
    pdl_wait();
    pdl_trigger(); // after the wait: gdn_step.cu reads states before its own, and relies on it
    if (thread < WARP) {
        const struct lane *lane = thread < a.lanes.count ? a.lanes.lane[thread] : NULL;
        int32_t first = 0, next = 0, rows = lane ? rows_of(&a, lane, &first, &next) : 0, before = 0, mine = 0;
        for (int32_t l = 0; l < MAX_LANES; l++) {
            int32_t of = __shfl_sync(WHOLE_WARP, rows, l);
            of = of < 0 ? 0 : least(of, a.capacity - before);
            if (thread == l) {
                start[l] = before;
                count[l] = mine = of;
                position[l] = first;
                ahead[l] = next;
                tokens[l] = lane ? lane->tokens : NULL;
            }
            before += of;
        }
        if (thread < MAX_LANES) {
            a.pass->lane_first[thread] = start[thread];
            a.pass->lane_rows[thread] = mine;
        }
        if (thread == 0)
            a.pass->rows = before;
    }
    __syncthreads();
    for (int32_t l = 0; l < MAX_LANES; l++)
        for (int32_t i = thread; i < count[l]; i += ROWS_THREADS) {
            a.pass->lane[start[l] + i] = l;
            a.pass->position[start[l] + i] = position[l] + i;
            a.pass->token[start[l] + i] = tokens[l][position[l] + i + ahead[l]];
        }
}

extern "C" cudaError_t cuda_rows(cudaStream_t stream, const struct rows_args *a, int rows)
{
    (void)rows;
    return launch(stream, 1, ROWS_THREADS, 0, rows_kernel, *a);
}

// ---- gather, save_streams: a block a part of a row -----------------------------------------------------------------------------

enum { COPY_THREADS = 128, COPY_EACH = 4 };

template <int W> DEVICE void copy_part(float *to, const float *from, int32_t width)
{
    vec<W> t[COPY_EACH];
    const int32_t first = (int32_t)(blockIdx.x * COPY_EACH * COPY_THREADS + threadIdx.x) * W;
#pragma unroll
    for (int n = 0; n < COPY_EACH; n++) {
        t[n] = vec<W>{};
        if (from && first + n * COPY_THREADS * W < width)
            t[n] = vec_load<W>(from + first + n * COPY_THREADS * W);
    }
#pragma unroll
    for (int n = 0; n < COPY_EACH; n++)
        if (first + n * COPY_THREADS * W < width)
            vec_store<W>(to + first + n * COPY_THREADS * W, t[n]);
}

DEVICE const float *gather_source(const struct gather_args *a, int32_t l, int32_t position)
{
    const struct lane *lane = a->lanes.lane[l];
    if (a->from && a->from->lane_rows[l] > 0) {
        const int32_t index = position - a->from->position[a->from->lane_first[l]];
        if (index >= 0 && index < a->from->lane_rows[l])
            return a->x + (int64_t)(a->from->lane_first[l] + index) * a->width;
    }
    if (a->state < 0 || position < lane->streams_base)
        return NULL;
    return reinterpret_cast<const float *>(lane->run + a->state) + (int64_t)(position % MAX_WINDOW) * a->width;
}

template <int W>
__global__ void __launch_bounds__(COPY_THREADS) gather_kernel(const __grid_constant__ struct gather_args a)
{
    const int64_t r = blockIdx.y;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows)
        return;
    copy_part<W>(a.y + r * a.width, gather_source(&a, a.pass->lane[r], a.pass->position[r]), a.width);
}

extern "C" cudaError_t cuda_gather(cudaStream_t stream, const struct gather_args *a, int rows)
{
    const bool wide = vec_fits(a->x, a->width, a->width) && vec_fits(a->y, a->width, a->width) &&
                      (a->state < 0 || a->state % 16 == 0);
    const dim3 grid(blocks_for(a->width, (wide ? 4 : 1) * COPY_THREADS * COPY_EACH), (unsigned)rows);
    if (wide)
        return launch(stream, grid, COPY_THREADS, 0, gather_kernel<4>, *a);
    return launch(stream, grid, COPY_THREADS, 0, gather_kernel<1>, *a);
}

template <int W>
__global__ void __launch_bounds__(COPY_THREADS) save_streams_kernel(const __grid_constant__ struct save_streams_args a)
{
    const int64_t r = blockIdx.y;
    pdl_wait();
    pdl_trigger();
    if (r >= a.pass->rows)
        return;
    const int32_t l = a.pass->lane[r], position = a.pass->position[r];
    struct lane *lane = a.lanes.lane[l];
    const int32_t first = a.pass->lane_first[l], last = first + a.pass->lane_rows[l] - 1;
    const int64_t place = (int64_t)(position % MAX_WINDOW) * a.width;
#pragma unroll
    for (int32_t i = 0; i < LANE_KEEPS; i++)
        if (lane_keeps(lane, i, a.pass->lane_rows[l]) == r - first + 1)
            copy_part<W>(reinterpret_cast<float *>(lane->keep_run[i] + a.state) + place, a.x + r * a.width, a.width);
    if (last - r >= MAX_WINDOW)
        return;
    if (r == last && blockIdx.x == 0 && threadIdx.x == 0) {
        const int32_t known = least(lane->streams_base, a.pass->position[first]);
        lane->streams_base = position - MAX_WINDOW + 1 > known ? position - MAX_WINDOW + 1 : known;
    }
    copy_part<W>(reinterpret_cast<float *>(lane->run + a.state) + place, a.x + r * a.width, a.width);
}

extern "C" cudaError_t cuda_save_streams(cudaStream_t stream, const struct save_streams_args *a, int rows)
{
    const bool wide = vec_fits(a->x, a->width, a->width) && a->state % 16 == 0;
    const dim3 grid(blocks_for(a->width, (wide ? 4 : 1) * COPY_THREADS * COPY_EACH), (unsigned)rows);
    if (wide)
        return launch(stream, grid, COPY_THREADS, 0, save_streams_kernel<4>, *a);
    return launch(stream, grid, COPY_THREADS, 0, save_streams_kernel<1>, *a);
}

// ---- accept, commit: one block, a warp a lane -----------------------------------------------------------------------------------

__global__ void __launch_bounds__(MAX_LANES *WARP) accept_kernel(const __grid_constant__ struct accept_args a)
{
    const int32_t l = threadIdx.x / WARP, i = threadIdx.x % WARP;
    pdl_wait();
    pdl_trigger();
    if (l >= a.lanes.count)
        return;
    int32_t *result = a.result + l * (1 + MAX_WINDOW);
    struct lane *lane = a.lanes.lane[l];
    const int32_t rows = lane ? a.pass->lane_rows[l] : 0;
    if (rows <= 0) {
        if (i == 0)
            result[0] = 0;
        return;
    }
    const int32_t *drawn = a.drawn + a.pass->lane_first[l];
    const int32_t length = lane->length, drafts = least(lane->drafts, rows - 1), force = lane->force;
    int32_t *tokens = lane->tokens;
    const int32_t token = i < rows ? drawn[i] : 0;
    const bool equal =
        i < drafts && (force ? i + 1 < force : tokens[length + 1 + i] == token) && token + 1 != lane->halt;
    const int32_t accepted = __ffs((int)~__ballot_sync(WHOLE_WARP, equal)) - 1;
    if (i <= accepted) {
        result[1 + i] = token;
        tokens[length + 1 + i] = token;
    }
    if (i == 0) {
        lane->accepted = accepted;
        lane->length = length + accepted + 1;
        lane->fold = a.direct ? 0 : accepted + 1;
        lane->limit = length + accepted + 2;
        result[0] = accepted + 1;
    }
}

extern "C" cudaError_t cuda_accept(cudaStream_t stream, const struct accept_args *a, int rows)
{
    (void)rows;
    return launch(stream, 1, MAX_LANES * WARP, 0, accept_kernel, *a);
}

__global__ void __launch_bounds__(WARP) commit_kernel(const __grid_constant__ struct commit_args a)
{
    const int32_t l = threadIdx.x;
    pdl_wait();
    pdl_trigger();
    struct lane *lane = l < a.lanes.count ? a.lanes.lane[l] : NULL;
    const int32_t rows = lane ? a.pass->lane_rows[l] : 0;
    if (rows == 0)
        return;
    if (a.head) {
        lane->head_length = a.pass->position[a.pass->lane_first[l]] + rows;
    } else {
        lane->length += rows;
        lane->fold = 0;
    }
}

extern "C" cudaError_t cuda_commit(cudaStream_t stream, const struct commit_args *a, int rows)
{
    (void)rows;
    return launch(stream, 1, WARP, 0, commit_kernel, *a);
}
