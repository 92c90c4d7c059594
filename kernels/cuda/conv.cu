// SPDX-License-Identifier: Apache-2.0
//
// The causal depthwise convolution, with a history that windows can be rolled back from.
//
// Invariant: a thread owns its channel's column of history and saved rows in the first tile of a lane's rows; other tiles read
// inputs of this pass only. So nothing is read after another thread wrote it, and an output depends on its taps alone.

#include "kernels/cuda/conv.cuh"
#include "kernels/cuda/launch.cuh"

// Rows of a tile: many, or, of one lane's few rows, which would leave most of the card without work, so few that tiles but the first still
// have all older inputs in the pass.
enum { CONV_THREADS = 128, CONV_TILE = 64, CONV_TILE_FEW = 8, CONV_FEW_ROWS = 1024, CONV_STEP = 8 };

// One thread's columns. Row t < 0 of the lane's inputs is row t + depth + fold of history and saved rows laid end to end.
struct conv_column {
    float *history, *saved;
    const float *u;
    float *y;
    int32_t rows, fold;
};

DEVICE float conv_past(const struct conv_args *a, const struct conv_column *c, int32_t depth, int32_t index)
{
    return index < depth ? c->history[(int64_t)index * a->channels] : c->saved[(int64_t)(index - depth) * a->channels];
}

// Moves the history on by `count` of what is pending and the rows of the pass, to `to`, which may be the history.
DEVICE void conv_shift(const struct conv_args *a, const struct conv_column *c, int32_t depth, int32_t count, float *to)
{
    const int32_t past = depth + c->fold;
    for (int32_t i = 0; count > 0 && i < depth; i++) {
        const int32_t from = i + count;
        to[(int64_t)i * a->channels] =
            from < past ? conv_past(a, c, depth, from) : c->u[(int64_t)(from - past) * a->ldu];
    }
}

// Moves the history on by what is pending (a window), or by that and the rows of the pass (direct), and saves a window's rows.
DEVICE void conv_finish(const struct conv_args *a, const struct conv_column *c, int32_t depth)
{
    conv_shift(a, c, depth, c->fold + (a->direct ? c->rows : 0), c->history);
    for (int32_t r = 0; !a->direct && r < c->rows; r++)
        c->saved[(int64_t)r * a->channels] = c->u[(int64_t)r * a->ldu];
}

// Rows first .. last - 1 of one channel, CONV_STEP at a time.
template <int TAPS, int DILATION>
DEVICE void conv_rows(const struct conv_args *a, const struct conv_column *c, const float *w, float bias, int32_t first,
                      int32_t last)
{
    constexpr int DEPTH = DILATION * (TAPS - 1);
    float x[DEPTH + CONV_STEP];
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        x[d] = first == 0 ? conv_past(a, c, DEPTH, d + c->fold) : c->u[(int64_t)(first - DEPTH + d) * a->ldu];
    for (int32_t r = first; r < last; r += CONV_STEP) {
#pragma unroll
        for (int n = 0; n < CONV_STEP; n++)
            x[DEPTH + n] = r + n < last ? c->u[(int64_t)(r + n) * a->ldu] : 0.0f;
#pragma unroll
        for (int n = 0; n < CONV_STEP; n++)
            if (r + n < last)
                c->y[(int64_t)(r + n) * a->ldy] = conv_output<TAPS, DILATION>(w, x + n, bias, a->activation);
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            x[d] = x[d + CONV_STEP];
    }
}

// Any shape, one tile.
DEVICE void conv_rows_any(const struct conv_args *a, const struct conv_column *c, int32_t j, float bias)
{
    const int32_t depth = a->dilation * (a->taps - 1);
    for (int32_t r = 0; r < c->rows; r++) {
        float sum = bias;
        for (int32_t i = 0; i < a->taps; i++) {
            const int32_t t = r - a->dilation * (a->taps - 1 - i);
            const float x = t >= 0 ? c->u[(int64_t)t * a->ldu] : conv_past(a, c, depth, t + depth + c->fold);
            sum = fmaf(a->w[(int64_t)j * a->taps + i], x, sum);
        }
        c->y[(int64_t)r * a->ldy] = f_activate(sum, a->activation);
    }
}

// TAPS 0: any shape, one tile.
template <int TAPS, int DILATION, int TILE>
__global__ void __launch_bounds__(CONV_THREADS) conv_kernel(const __grid_constant__ struct conv_args a)
{
    static_assert(TILE >= DILATION * (TAPS - 1), "a tile's history is in the one before");
    const int32_t j = (int32_t)(blockIdx.x * CONV_THREADS + threadIdx.x), l = (int32_t)blockIdx.z;
    const int32_t first = (int32_t)blockIdx.y * TILE;
    float w[TAPS ? TAPS : 1] = {}, bias = 0;
    if (j < a.channels) {
#pragma unroll
        for (int i = 0; i < TAPS; i++)
            w[i] = a.w[(int64_t)j * TAPS + i];
        bias = a.bias ? a.bias[j] : 0.0f;
    }
    pdl_wait();
    pdl_trigger();
    const struct lane *lane = a.lanes.lane[l];
    if (!lane || j >= a.channels || first >= a.pass->lane_rows[l])
        return;
    const int32_t depth = a.dilation * (a.taps - 1), row = a.pass->lane_first[l];
    struct conv_column c;
    c.history = reinterpret_cast<float *>(lane->run + a.state) + j;
    c.saved = c.history + (int64_t)depth * a.channels;
    c.u = a.u + (int64_t)row * a.ldu + j;
    c.y = a.y + (int64_t)row * a.ldy + j;
    c.rows = a.pass->lane_rows[l];
    c.fold = lane->fold;
    if constexpr (TAPS > 0)
        conv_rows<TAPS, DILATION>(&a, &c, w, bias, first, c.rows < first + TILE ? c.rows : first + TILE);
    else
        conv_rows_any(&a, &c, j, bias);
    if (first > 0)
        return;
    for (int32_t i = 0; a.direct && i < LANE_KEEPS; i++) {
        const int32_t behind = lane_keeps(lane, i, c.rows);
        if (behind)
            conv_shift(&a, &c, depth, c.fold + behind, reinterpret_cast<float *>(lane->keep_run[i] + a.state) + j);
    }
    conv_finish(&a, &c, depth);
}

template <int DILATION> static cudaError_t conv_launch(cudaStream_t stream, const struct conv_args *a, int rows)
{
    constexpr int FEW = DILATION * CONV_TILE_FEW;
    const unsigned blocks = blocks_for(a->channels, CONV_THREADS), lanes = (unsigned)a->lanes.count;
    if (lanes == 1 && rows <= CONV_FEW_ROWS)
        return launch(stream, dim3(blocks, blocks_for(rows, FEW)), CONV_THREADS, 0, conv_kernel<4, DILATION, FEW>, *a);
    return launch(stream, dim3(blocks, blocks_for(rows, CONV_TILE), lanes), CONV_THREADS, 0,
                  conv_kernel<4, DILATION, CONV_TILE>, *a);
}

extern "C" cudaError_t cuda_conv(cudaStream_t stream, const struct conv_args *a, int rows)
{
    if (a->taps == 4 && a->dilation == 1)
        return conv_launch<1>(stream, a, rows);
    if (a->taps == 4 && a->dilation == 3)
        return conv_launch<3>(stream, a, rows);
    return launch(stream, dim3(blocks_for(a->channels, CONV_THREADS), 1, (unsigned)a->lanes.count), CONV_THREADS, 0,
                  conv_kernel<0, 1, CONV_TILE>, *a);
}
