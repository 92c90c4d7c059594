// SPDX-License-Identifier: Apache-2.0
//
// linear_args: which kernel a launch takes. The decode class: linear_decode.cuh.
//
// Invariant: a kernel for the launch's shape is taken where there is one, and computes the same.

#include "kernels/cuda/fixed.cuh"
#include "kernels/cuda/linear_decode.cuh"
#include "kernels/cuda/linear_streams.cuh"
#include "kernels/cuda/norm_split.cuh"

// do_it(code, flag) for the kernel of the parts' encodings.
template <class DO> static void linear_kernel(const struct linear_args *a, int form, const DO &do_it)
{
    const struct weight *first = &a->part[0].w, *other = first;
    bool two = true; // encodings at most
    for (int i = 1; i < a->parts; i++) {
        const struct weight *w = &a->part[i].w;
        if (same_code(other, first))
            other = w;
        two = two && (same_code(w, first) || same_code(w, other));
    }
    if (same_code(other, first) || !two)
        with_kernel(first, !two, form, do_it);
    else
        with_two_kernel(first, other, form, do_it);
}

// Takes the rows of a launch apart. norm: makes them of a residual before, or NULL.
static cudaError_t linear_split(cudaStream_t stream, const struct linear_args *args, const linear_plan &plan,
                                const struct residual_row *norm)
{
    const struct split_rows split = {
        args->x,       plan.step.up,      args->ldx,      plan.step.ld_up, args->k,
        plan.capacity, plan.room.aligned, plan.room.form, plan.staged,     (uint8_t *)args->scratch + plan.rows_at};
    const unsigned warps = SPLIT_THREADS / 32, blocks = ((unsigned)args->k + 31) / 32;
    if (norm) {
        const unsigned threads = threads_for(args->k, 4, NORM_THREADS);
        const struct norm_split a = {args->pass, *norm, args->ldx, split};
        return launch(stream, dim3((unsigned)(plan.tiles * TILE_ROWS)), dim3(threads), (size_t)args->k * sizeof(float),
                      (int)threads * 4 < args->k ? norm_split_kernel<NORM_KEEP> : norm_split_kernel<1>, a);
    }
    return launch(stream, dim3((blocks + warps - 1) / warps, (unsigned)plan.tiles), dim3(SPLIT_THREADS), 0,
                  split_kernel, split);
}

// norm: of the rows, where they are made before the launch and taken apart; else NULL.
static cudaError_t linear_launch(cudaStream_t stream, const struct linear_args *args, const linear_step *step, int rows,
                                 const struct residual_row *norm = NULL)
{
    size_t shared = 0;
    const card_room card = card_here();
    const int64_t all = (int64_t)rows * (args->row_multiple > 1 ? args->row_multiple : 1);
    const int tile = tile_rows_for(card, all);
    linear_plan plan = linear_plan_make(card, args, step, all, &shared);
    if (plan.units == 0)
        return cudaErrorInvalidValue;
    const int before = linear_before_kind(step);
    if ((before && !linear_before_fits(plan, args->k, before)) || (norm && !plan.apart))
        return cudaErrorNotSupported;
    plan.room.aligned = rows_aligned(args->x, args->ldx);
    void (*kernel)(linear_args, linear_plan) = NULL;
    linear_kernel(args, linear_form(plan), [&](auto code, auto form) {
        kernel = linear_rows_kernel<typename decltype(code)::type, decltype(form)::value, shape_given>;
    });
    plan.cluster =
        linear_may_cluster(plan) &&
        plan.units / plan.slices <= clusters_at_once((const void *)kernel, BLOCK_THREADS, shared, plan.slices);
    const struct fixed_table *table = fixed_table_for(tile);
    auto fixed = table ? linear_find(table, linear_shape_of(args, step), plan) : NULL;
    if (before && !fixed)
        return cudaErrorNotSupported;
    const cudaError_t error = plan.apart ? linear_split(stream, args, plan, norm) : cudaSuccess;
    if (error != cudaSuccess)
        return error;
    return launch_cluster(stream, dim3(plan.blocks + plan.step.rows), dim3(BLOCK_THREADS), shared,
                          plan.cluster ? (unsigned)plan.slices : 1u, fixed ? fixed : kernel, *args, plan);
}

extern "C" cudaError_t cuda_linear(cudaStream_t stream, const struct linear_args *args, int rows)
{
    return args->row_class == CLASS_PROMPT ? linear_prompt(stream, args, rows)
                                           : linear_launch(stream, args, NULL, rows);
}

// args: of glu and of the product of its rows. step: what else the launch does.
static cudaError_t glu_linear(cudaStream_t stream, const void *const *args, linear_step step, int rows)
{
    const struct glu_args *glu = (const struct glu_args *)args[0];
    struct linear_args linear = *(const struct linear_args *)args[1];
    if (linear.row_multiple > 1 || !glu->g || glu->activation != ACT_SILU || glu->width != linear.k ||
        rows_aligned(glu->g, glu->ldg) != rows_aligned(glu->u, glu->ldu))
        return cudaErrorNotSupported;
    if (linear.row_class == CLASS_PROMPT)
        return step.rows ? cudaErrorNotSupported : linear_prompt_glu(stream, glu, &linear, rows);
    linear.x = glu->g;
    linear.ldx = glu->ldg;
    step.glu = 1;
    step.up = glu->u;
    step.ld_up = glu->ldu;
    return linear_launch(stream, &linear, &step, rows);
}

extern "C" cudaError_t cuda_glu_linear(cudaStream_t stream, const void *const *args, int rows)
{
    return glu_linear(stream, args, linear_step(), rows);
}

// Where the product's blocks and the rows are more than the multiprocessors, rows wait for blocks that have ended.
extern "C" cudaError_t cuda_route_glu_linear(cudaStream_t stream, const void *const *args, int rows)
{
    linear_step step = {};
    step.route = *(const struct route_args *)args[0];
    step.rows = rows;
    return route_fits(&step.route) ? glu_linear(stream, args + 1, step, rows) : cudaErrorNotSupported;
}

// An addition to a residual, its norm, and the product of the normed rows, which others may read too. One row is made by each block for
// itself, where it can afford that, in kernels for one shape alone; rows that are taken apart before are made in the launch that does it.
extern "C" cudaError_t cuda_add_norm_linear(cudaStream_t stream, const void *const *args, int rows)
{
    const struct add_args *add = (const struct add_args *)args[0];
    const struct norm_args *norm = (const struct norm_args *)args[1];
    const struct linear_args *linear = (const struct linear_args *)args[2];
    const int32_t k = linear->k;
    if (linear->row_class != CLASS_DECODE || linear->row_multiple > 1 || k % (rows > 1 ? NORM_WHOLE : 32) ||
        k > (rows > 1 ? (int)NORM_MOST : (int)RESIDUAL_MOST) || add->width != k || norm->groups != 1 ||
        norm->dim != k || norm->x != add->x || norm->y != linear->x || norm->y == add->x || norm->y == add->y ||
        !rows_aligned(add->x, add->ldx) || !rows_aligned(add->y, add->ldy) || !rows_aligned(norm->w, 0) ||
        !rows_aligned(norm->y, norm->ldy))
        return cudaErrorNotSupported;
    const struct residual_row row = {add->x, add->y, norm->w, norm->y, norm->eps, NULL};
    linear_step step = {};
    if (rows > 1)
        return add->ldx == k && add->ldy == k && norm->ldx == k && norm->ldy == linear->ldx
                   ? linear_launch(stream, linear, NULL, rows, &row)
                   : cudaErrorNotSupported;
    step.before = row;
    return linear_launch(stream, linear, &step, rows);
}

// What cuda_linear_mix() makes of its ops; false: not of these.
static bool mix_step(const struct linear_args *linear, const struct hc_mix_args *mix, linear_step *step)
{
    if (linear->row_multiple > 1 || linear->parts != 1 || mix->streams != STREAMS_MOST || mix->dim % 32 ||
        linear->part[0].w.n != mix->streams * mix->dim || linear->part[0].activation != ACT_NONE)
        return false;
    step->xn = mix->xn;
    step->y = mix->y;
    step->dim = mix->dim;
    return true;
}

extern "C" cudaError_t cuda_linear_mix(cudaStream_t stream, const void *const *args, int rows)
{
    const struct linear_args *linear = (const struct linear_args *)args[0];
    const struct hc_mix_args *mix = (const struct hc_mix_args *)args[1];
    linear_step step = {};
    if (linear->row_class == CLASS_PROMPT)
        return linear_mix_prompt(stream, linear, mix, NULL, rows);
    return mix_step(linear, mix, &step) ? linear_launch(stream, linear, &step, rows) : cudaErrorNotSupported;
}

// From one block's output to the next block's input, of one row, in two launches: the first product makes the normed streams for
// itself, and the second one, which begins when all have read the streams, injects beside the mix.
static cudaError_t streams_row(cudaStream_t stream, const void *const *args, int rows)
{
    const struct hc_inject_args *inject = (const struct hc_inject_args *)args[0];
    const struct norm_args *norm = (const struct norm_args *)args[1];
    const struct linear_args *down = (const struct linear_args *)args[2], *up = (const struct linear_args *)args[3];
    const struct hc_mix_args *mix = (const struct hc_mix_args *)args[4];
    const int32_t dim = mix->dim, k = STREAMS_MOST * dim;
    linear_step first = {}, second = {};
    if (rows != 1 || !mix_step(up, mix, &second) || down->row_multiple > 1 || down->k != k ||
        inject->streams != STREAMS_MOST || !inject->inject || inject->dim != dim || norm->groups != STREAMS_MOST ||
        norm->dim != dim || norm->x != inject->r || norm->y != down->x || mix->xn != norm->y ||
        !rows_aligned(inject->r, dim) || !rows_aligned(inject->y, 0) || !rows_aligned(norm->w, 0) ||
        !rows_aligned(norm->y, 0))
        return cudaErrorNotSupported;
    first.before = {inject->r, inject->y, norm->w, norm->y, norm->eps, inject->inject};
    second.update = {inject->r, inject->y, inject->inject};
    const cudaError_t error = linear_launch(stream, down, &first, rows);
    return error == cudaSuccess ? linear_launch(stream, up, &second, rows) : error;
}

static bool prompt_class(const void *linear)
{
    return ((const struct linear_args *)linear)->row_class == CLASS_PROMPT;
}

extern "C" cudaError_t cuda_inject_norm_mix(cudaStream_t stream, const void *const *args, int rows)
{
    return prompt_class(args[2]) ? linear_streams_prompt(stream, NULL, args, rows) : streams_row(stream, args, rows);
}

// A decode row's sum of experts would be made by each block: ten rows more to read (NOTES.md).
extern "C" cudaError_t cuda_sum_inject_norm_mix(cudaStream_t stream, const void *const *args, int rows)
{
    return prompt_class(args[3]) ? linear_streams_prompt(stream, (const struct moe_sum_args *)args[0], args + 1, rows)
                                 : cudaErrorNotSupported;
}
