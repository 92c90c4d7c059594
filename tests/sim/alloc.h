// SPDX-License-Identifier: Apache-2.0
//
// Included before every runtime source of the simulator, and of other tests without memory: allocations that can be made to fail.

#ifndef SIM_ALLOC_H
#define SIM_ALLOC_H

#include <stdlib.h>

void *sim_malloc(size_t size);
void *sim_calloc(size_t count, size_t size);

#define malloc sim_malloc
#define calloc sim_calloc

#ifdef SIM_REALLOC
void *sim_realloc(void *old, size_t size);
#define realloc sim_realloc
#endif

#endif
