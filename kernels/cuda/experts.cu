// SPDX-License-Identifier: Apache-2.0
//
// experts_up_args and experts_down_args: which kernel a launch takes. The decode class: experts_decode.cuh; with the choices of experts and
// a shared expert's product in one step, experts_beside.cuh.
//
// Invariant: a kernel for the launch's shape is taken where there is one, and computes the same.

#include "kernels/cuda/experts_decode.cuh"
#include "kernels/cuda/fixed.cuh"

// Blocks that have something to do when every row chooses experts of its own, with a product beside them if there is one.
static unsigned experts_blocks(const experts_plan &plan, int rows, int slots)
{
    const int64_t units = (int64_t)plan.groups * rows * slots + plan.shared_units, most = multiprocessors();
    return (unsigned)(units < most ? units : most);
}

static experts_shape experts_up_shape_of(const struct experts_up_args *args)
{
    const bool gated = args->gate.data != NULL;
    return {gated,
            args->experts,
            args->slots,
            args->inner,
            args->k,
            args->activation,
            args->early,
            code_shape_of(&args->up),
            gated ? code_shape_of(&args->gate) : code_shape()};
}

extern "C" cudaError_t cuda_experts_up(cudaStream_t stream, const struct experts_up_args *args, int rows)
{
    if (args->row_class == CLASS_PROMPT)
        return experts_up_prompt(stream, args, rows);
    size_t shared = 0;
    const bool gated = args->gate.data != NULL;
    experts_plan plan = experts_plan_make(card_here(), &args->up, gated ? &args->gate : NULL, rows, args->slots,
                                          args->experts, &shared);
    plan.room.aligned = rows_aligned(args->x, args->ldx);
    const struct fixed_table *table = fixed_table_for(rows);
    const experts_shape shape = experts_up_shape_of(args);
    auto kernel = table ? experts_find(table->up, table->ups, shape, plan) : NULL;
    if (!kernel)
        with_kernel(&args->up, gated && !same_code(&args->up, &args->gate), FORM_FEW,
                    [&](auto code, auto) { kernel = experts_up_kernel<typename decltype(code)::type, experts_given>; });
    return launch(stream, dim3(experts_blocks(plan, rows, args->slots)), dim3(BLOCK_THREADS), shared, kernel, *args,
                  plan, rows * args->slots);
}

extern "C" cudaError_t cuda_experts_down(cudaStream_t stream, const struct experts_down_args *args, int rows)
{
    if (args->row_class == CLASS_PROMPT)
        return experts_down_prompt(stream, args, rows);
    size_t shared = 0;
    experts_plan plan = experts_plan_make(card_here(), &args->down, NULL, rows, args->slots, args->experts, &shared);
    plan.room.aligned = rows_aligned(args->h, args->k);
    const struct fixed_table *table = fixed_table_for(rows);
    const experts_shape shape = {0, args->experts, args->slots, args->n, args->k, 0, 0, code_shape_of(&args->down), {}};
    auto kernel = table ? experts_find(table->down, table->downs, shape, plan) : NULL;
    if (!kernel)
        with_kernel(&args->down, false, FORM_FEW, [&](auto code, auto) {
            kernel = experts_down_kernel<typename decltype(code)::type, experts_given>;
        });
    return launch(stream, dim3(experts_blocks(plan, rows, args->slots)), dim3(BLOCK_THREADS), shared, kernel, *args,
                  plan, rows * args->slots);
}

// Whether a launch of experts_up may make its choices, and glu's product, by what is told of them; shapes.lua says the same.
static bool beside_takes(const struct route_args *route, const struct glu_args *glu, const struct linear_args *linear,
                         const struct experts_up_args *up)
{
    return up->row_class == CLASS_DECODE && linear->row_class == CLASS_DECODE && route_fits(route) && !route->sigmoid &&
           !route->bias && route->experts == up->experts && route->slots == up->slots && route->ids == up->ids &&
           linear->row_multiple <= 1 && linear->parts == 1 && linear->part[0].activation == ACT_NONE && glu->g &&
           glu->activation == ACT_SILU && glu->width == linear->k &&
           rows_aligned(glu->g, glu->ldg) == rows_aligned(glu->u, glu->ldu);
}

// Choices, glu with its product, experts_up and experts_down in two launches: the first three's work beside experts_up, in kernels for one
// shape alone. Others are left to their ops.
extern "C" cudaError_t cuda_route_experts(cudaStream_t stream, const void *const *args, int rows)
{
    const struct route_args *route = (const struct route_args *)args[0];
    const struct glu_args *glu = (const struct glu_args *)args[1];
    const struct linear_args *linear = (const struct linear_args *)args[2];
    const struct experts_up_args *up = (const struct experts_up_args *)args[3];
    const struct fixed_table *table = fixed_table_for(rows);
    if (rows != 1 || !table || table->besides == 0 || !beside_takes(route, glu, linear, up))
        return cudaErrorNotSupported;
    size_t shared = 0;
    const struct weight *own = &linear->part[0].w;
    experts_plan plan = experts_plan_make(card_here(), &up->up, up->gate.data ? &up->gate : NULL, rows, up->slots,
                                          up->experts, &shared, own);
    plan.room.aligned = rows_aligned(up->x, up->ldx);
    const beside_shape shape = {experts_up_shape_of(up), own->n, own->k, code_shape_of(own)};
    auto kernel = beside_find(table, shape, plan);
    if (!kernel)
        return cudaErrorNotSupported;
    const beside_args beside = {*route,         glu->g, glu->u, glu->ldg, glu->ldu, rows_aligned(glu->g, glu->ldg),
                                linear->part[0]};
    const cudaError_t error = launch(stream, dim3(experts_blocks(plan, rows, up->slots)), dim3(BLOCK_THREADS), shared,
                                     kernel, *up, beside, plan);
    return error == cudaSuccess ? cuda_experts_down(stream, (const struct experts_down_args *)args[4], rows) : error;
}
