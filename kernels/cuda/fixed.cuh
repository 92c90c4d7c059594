// SPDX-License-Identifier: Apache-2.0
//
// The kernels for one shape that a binary has: a table for each number of rows of a tile, by fixed.cu, which is compiled for a model.
// A binary may lack them all.
//
// Invariant: a launcher takes such a kernel only when its own plan is the one that the kernel was made with.

#ifndef CUDA_FIXED_CUH
#define CUDA_FIXED_CUH

#include "kernels/cuda/experts_beside.cuh"
#include "kernels/cuda/linear_plan.cuh"

struct linear_fixed {
    linear_shape shape;
    linear_plan plan;
    void (*kernel)(linear_args, linear_plan);
};

template <class ARGS> struct experts_fixed {
    experts_shape shape;
    experts_plan plan;
    void (*kernel)(ARGS, experts_plan, int);
};

struct beside_fixed {
    beside_shape shape;
    experts_plan plan;
    void (*kernel)(experts_up_args, beside_args, experts_plan);
};

struct fixed_table {
    const linear_fixed *linear;
    const experts_fixed<experts_up_args> *up;
    const experts_fixed<experts_down_args> *down;
    const beside_fixed *beside;
    int32_t linears, ups, downs, besides;
};

extern "C" {
__attribute__((weak)) const struct fixed_table *fixed_table_1(void);
__attribute__((weak)) const struct fixed_table *fixed_table_2(void);
__attribute__((weak)) const struct fixed_table *fixed_table_4(void);
__attribute__((weak)) const struct fixed_table *fixed_table_8(void);
}

// The binary's table for `rows` rows (of a tile, or of a launch of experts), or NULL.
static inline const struct fixed_table *fixed_table_in(int rows)
{
    const struct fixed_table *(*const tables[])(void) = {fixed_table_1, fixed_table_2, fixed_table_4, fixed_table_8};
    if (rows != 1 && rows != 2 && rows != 4 && rows != 8)
        return NULL;
    const struct fixed_table *(*const table)(void) = tables[rows == 8 ? 3 : rows / 2];
    return table ? table() : NULL;
}

// Whether launches look at the tables (cuda_fixed_use()), and how many found theirs.
inline bool fixed_used = true;
inline int64_t fixed_taken = 0;

// The same, NULL on cards that its kernels are not compiled for: they are for compute capability 9.
static inline const struct fixed_table *fixed_table_for(int rows)
{
    static int major = -1;
    if (major < 0)
        major = card_attribute(cudaDevAttrComputeCapabilityMajor);
    return fixed_used && major == 9 ? fixed_table_in(rows) : NULL;
}

// The kernel for a launch, or NULL.
static inline decltype(linear_fixed::kernel) linear_find(const struct fixed_table *table, const linear_shape &shape,
                                                         const linear_plan &plan)
{
    for (int32_t i = 0; i < table->linears; i++)
        if (linear_shape_same(table->linear[i].shape, shape) &&
            linear_plan_is(plan, table->linear[i].plan, shape.parts))
            return fixed_taken++, table->linear[i].kernel;
    return NULL;
}

template <class ARGS>
static inline decltype(experts_fixed<ARGS>::kernel) experts_find(const experts_fixed<ARGS> *fixed, int32_t count,
                                                                 const experts_shape &shape, const experts_plan &plan)
{
    for (int32_t i = 0; i < count; i++)
        if (fixed[i].kernel && experts_shape_same(fixed[i].shape, shape) &&
            experts_plan_same(fixed[i].plan, plan, shape.gated))
            return fixed_taken++, fixed[i].kernel;
    return NULL;
}

// The same of a launch with choices and a product beside it.
static inline decltype(beside_fixed::kernel) beside_find(const struct fixed_table *table, const beside_shape &shape,
                                                         const experts_plan &plan)
{
    for (int32_t i = 0; i < table->besides; i++)
        if (table->beside[i].kernel && beside_shape_same(table->beside[i].shape, shape) &&
            experts_plan_same(table->beside[i].plan, plan, shape.up.gated))
            return fixed_taken++, table->beside[i].kernel;
    return NULL;
}

#endif
