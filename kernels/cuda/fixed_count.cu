// SPDX-License-Identifier: Apache-2.0
//
// How many kernels for one shape a binary has, as far as they can be taken, and whether they are. Asks no card.

#include "kernels/cuda/fixed.cuh"

static bool linear_usable(const linear_fixed &fixed, int rows)
{
    return fixed.kernel && linear_plan_is(linear_plan_of(fixed.shape, rows), fixed.plan, fixed.shape.parts);
}

template <class ARGS> static int experts_usable(const experts_fixed<ARGS> *fixed, int32_t count, int rows)
{
    int usable = 0;
    for (int32_t i = 0; i < count; i++)
        usable += fixed[i].kernel &&
                  experts_plan_same(experts_plan_of(fixed[i].shape, rows), fixed[i].plan, fixed[i].shape.gated);
    return usable;
}

static bool beside_usable(const beside_fixed &fixed)
{
    return fixed.kernel && experts_plan_same(beside_plan_of(fixed.shape), fixed.plan, fixed.shape.up.gated);
}

// For `rows` rows: those whose plan is what a launch of so many rows would have on the card that they are made for.
extern "C" int cuda_fixed_count(int rows)
{
    const struct fixed_table *table = fixed_table_in(rows);
    int usable = 0;
    for (int32_t i = 0; table && i < table->linears; i++)
        usable += linear_usable(table->linear[i], rows);
    for (int32_t i = 0; table && i < table->besides; i++)
        usable += beside_usable(table->beside[i]);
    return table
               ? usable + experts_usable(table->up, table->ups, rows) + experts_usable(table->down, table->downs, rows)
               : 0;
}

// For comparisons: launches from now on take the general kernels, or again those of their shapes. Graphs keep what they have.
extern "C" void cuda_fixed_use(int used)
{
    fixed_used = used != 0;
}
