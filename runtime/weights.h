// SPDX-License-Identifier: Apache-2.0
//
// Where kernels read weights: in place on the CPU, copied to the device on a GPU. weights_cpu.c, weights_cuda.c.

#ifndef WEIGHTS_H
#define WEIGHTS_H

#include "runtime/device.h"
#include "runtime/pack.h"

struct weights {
    const uint8_t *resident; // as kernels see it
    struct mirror rows;      // struct row_source [model.table_count]
    struct mirror constants; // the programs' small tables
    void *memory[2];         // what a GPU holds: resident section, table section
    int64_t memory_bytes[2];
    int64_t spare;      // GPU: bytes that should stay free beside the weights; set before they are placed
    bool table_on_host; // GPU: the table section lies in pinned host memory
};

// Places the weights of an open pack; the pack stays open.
bool weights_place(struct weights *weights, const struct pack *pack, struct error *error);

// Generated weights for the model's entries; on the CPU they live in *pack.
bool weights_synthetic(struct weights *weights, struct pack *pack, const struct pack_shape *shape, struct error *error);

void weights_release(struct weights *weights);

// Puts the programs' small tables where kernels see them.
bool weights_constants(struct weights *weights, struct error *error);

#endif
