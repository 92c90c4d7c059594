// SPDX-License-Identifier: Apache-2.0
//
// Where kernels read weights: in place on the CPU, copied to the device on a GPU. weights_cpu.c, weights_cuda.c.

#ifndef WEIGHTS_H
#define WEIGHTS_H

#include "runtime/pack.h"

// Sets *weights to the resident section and rows[i] to n-gram table i, as kernels see them. The pack stays open.
bool weights_place(const struct pack *pack, const uint8_t **weights, struct row_source *rows, struct error *error);
void weights_release(const uint8_t **weights, struct row_source *rows);

#endif
