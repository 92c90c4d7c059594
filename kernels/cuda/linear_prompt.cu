// SPDX-License-Identifier: Apache-2.0
//
// linear_args, prompt class: rows are prepared once, then parts of the same encoding go in one launch of tiles.
// Invariant: see prompt.cuh.

#include "kernels/cuda/wide.cuh"

// A thread has eight k of a row; four neighbours share a block's sum.
__global__ void __launch_bounds__(256) prompt_prepare_kernel(const struct pass *pass, int multiple, const float *x,
                                                             int64_t ldx, int k, int aligned, prepared to)
{
    pdl_trigger();
    pdl_wait();
    int64_t item = (int64_t)blockIdx.x * 256 + threadIdx.x, rows = (int64_t)pass->rows * multiple;
    int64_t at = item >> 2, r = at / to.blocks;
    int block = (int)(at - r * to.blocks), l = item & 3;
    float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (r < rows)
        load_eight(x + r * ldx, block * 32 + l * 8, k, aligned != 0, v);
    float sum = sum_eight(v);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (r >= rows)
        return;
    uint4 high, low;
    split_eight(v, &high, &low);
    unsigned char *place = to.data + (r * to.blocks + block) * 64 + l * 16;
    *(uint4 *)place = high;
    *(uint4 *)(place + to.part_bytes) = low;
    if (l == 0)
        to.sums[r * to.blocks + block] = sum;
}

cudaError_t prompt_prepare(cudaStream_t stream, const struct pass *pass, int multiple, const float *x, int64_t ldx,
                           int k, int64_t rows, const prepared &to)
{
    int64_t items = rows * to.blocks * 4;
    return launch(stream, dim3((unsigned int)((items + 255) / 256)), dim3(256), 0, prompt_prepare_kernel, pass,
                  multiple, x, ldx, k, rows_aligned(x, ldx), to);
}

// The parts of one launch: those of args that `take` names, one encoding and XP.
struct prompt_plan {
    prepared x;
    int32_t take, aligned; // bits of parts; of parts whose y takes 16 bytes at a time
};

template <class SHAPE>
__global__ void __launch_bounds__(TILE_THREADS, SHAPE::NT <= 8 ? 2 : 1)
    linear_prompt_kernel(const __grid_constant__ struct linear_args a, const __grid_constant__ prompt_plan plan)
{
    SHARED_ROOM(memory);
    constexpr int NT = SHAPE::NT;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, unit = blockIdx.y, i = 0;
    for (;; i++) {
        int units = plan.take >> i & 1 ? (a.part[i].w.n + 255) / 256 : 0;
        if (unit < units)
            break;
        unit -= units;
    }
    const linear_part &part = a.part[i];
    int pair = unit * TILE_WARPS + warp, first = blockIdx.x * NT * 8, rows = 0;
    bool live = pair * 32 < part.w.n;
    float acc[NT][8];
    pdl_trigger();
    tile_run<SHAPE>(
        &part.w, 0, live ? pair : 0, memory, plan.x,
        [&](int32_t *list) {
            pdl_wait();
            rows = a.pass->rows * (a.row_multiple > 1 ? a.row_multiple : 1) - first;
            for (int r = threadIdx.x; r < NT * 8; r += TILE_THREADS)
                list[r] = r < rows ? first + r : -1;
            return rows;
        },
        acc);
    if (!live)
        return;
    float factor = part.alpha * (part.w.global ? *part.w.global : 1.0f);
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            int r = t * 8 + sum_row(c, lane);
            float v[4];
            for (int o = 0; o < 4; o++)
                v[o] = activate(acc[t][2 * o + c] * factor, part.activation);
            if (r < rows)
                store_four(part.y + (int64_t)(first + r) * part.ldy, pair * 32 + sum_output(0, lane), part.w.n,
                           plan.aligned >> i & 1, v);
        }
}

template <class CODE, int NT, int XP>
static cudaError_t prompt_launch(cudaStream_t stream, const struct linear_args *args, const prompt_plan &plan,
                                 int units, int64_t rows)
{
    const dim3 grid((unsigned int)((rows + NT * 8 - 1) / (NT * 8)), units);
    return with_tile_shape<CODE, NT, XP>([&](auto shape) {
        typedef decltype(shape) SHAPE;
        return launch(stream, grid, dim3(TILE_THREADS), (size_t)(SHAPE::BYTES), linear_prompt_kernel<SHAPE>, *args,
                      plan);
    });
}

cudaError_t linear_prompt(cudaStream_t stream, const struct linear_args *args, int capacity)
{
    int64_t rows = (int64_t)capacity * (args->row_multiple > 1 ? args->row_multiple : 1);
    prompt_plan plan = {};
    int taken = 0; // parts that are done
    for (int i = 0; i < args->parts; i++)
        taken |= wide_available(&args->part[i].w) << i;
    cudaError_t error = taken ? linear_wide(stream, args, capacity, taken, false) : cudaSuccess;
    if (error != cudaSuccess || taken == (1 << args->parts) - 1)
        return error;
    plan.x = prepared_at(args->scratch, rows, args->k);
    error = prompt_prepare(stream, args->pass, args->row_multiple > 1 ? args->row_multiple : 1, args->x, args->ldx,
                           args->k, rows, plan.x);
    for (int i = 0; i < args->parts; i++)
        if ((uintptr_t)args->part[i].y % 16 == 0 && args->part[i].ldy % 4 == 0)
            plan.aligned |= 1 << i;
    for (int i = 0; i < args->parts && error == cudaSuccess; i++) {
        const struct weight *w = &args->part[i].w;
        int units = 0;
        plan.take = 0;
        for (int j = i; j < args->parts; j++) {
            const struct weight *other = &args->part[j].w;
            if (taken >> j & 1 || !same_code(w, other) || prompt_parts(w) != prompt_parts(other))
                continue;
            plan.take |= 1 << j;
            units += (other->n + 255) / 256;
        }
        taken |= plan.take;
        if (units == 0)
            continue;
        with_code(w, [&](auto code) {
            typedef typename decltype(code)::type CODE;
            if constexpr (wide_only<CODE>::VALUE)
                error = cudaErrorInvalidValue;
            else if (prompt_parts(w) == 2)
                error = prompt_launch<CODE, 4, 2>(stream, args, plan, units, rows);
            else if (rows <= 64)
                error = prompt_launch<CODE, 8, 1>(stream, args, plan, units, rows);
            else
                error = prompt_launch<CODE, 16, 1>(stream, args, plan, units, rows);
        });
    }
    return error;
}

cudaError_t linear_prompt_glu(cudaStream_t stream, const struct glu_args *glu, const struct linear_args *args,
                              int capacity)
{
    for (int i = 0; i < args->parts; i++)
        if (!wide_available(&args->part[i].w))
            return cudaErrorNotSupported;
    return linear_wide(stream, args, capacity, (1 << args->parts) - 1, false, glu);
}
