// SPDX-License-Identifier: Apache-2.0
//
// The decode kernels of one model with its shapes as constants, for FIXED_ROWS rows. shapes.cuh is the model's: the generator wrote it.

#include "kernels/cuda/fixed_make.cuh"

#include "shapes.cuh"

#define JOINED(a, b) a##b
#define TABLE(rows)  JOINED(fixed_table_, rows)

extern "C" const struct fixed_table *TABLE(FIXED_ROWS)(void)
{
    return fixed_table_made<FIXED_ROWS, shape_list<LINEAR_SHAPES>, shape_list<EXPERTS_UP_SHAPES>,
                            shape_list<EXPERTS_DOWN_SHAPES>, shape_list<EXPERTS_BESIDE_SHAPES>>();
}
