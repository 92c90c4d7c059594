// SPDX-License-Identifier: Apache-2.0
//
// experts_up_args and experts_down_args: which kernel a launch takes. The decode class: experts_decode.cuh.
//
// Invariant: a kernel for the launch's shape is taken where there is one, and computes the same.

#include "kernels/cuda/experts_decode.cuh"
#include "kernels/cuda/fixed.cuh"

// Blocks that have something to do when every row chooses experts of its own.
static unsigned experts_blocks(const experts_plan &plan, int rows, int slots)
{
    const int64_t units = (int64_t)plan.groups * rows * slots, most = multiprocessors();
    return (unsigned)(units < most ? units : most);
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
    const experts_shape shape = {gated,
                                 args->experts,
                                 args->slots,
                                 args->inner,
                                 args->k,
                                 args->activation,
                                 args->early,
                                 code_shape_of(&args->up),
                                 gated ? code_shape_of(&args->gate) : code_shape()};
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
