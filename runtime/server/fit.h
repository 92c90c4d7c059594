// SPDX-License-Identifier: Apache-2.0
//
// How many streams fit into the memory that is there, before anything loads.

#ifndef SERVER_FIT_H
#define SERVER_FIT_H

#include "runtime/engine.h"
#include "runtime/memory_plan.h"

struct fit {
    struct memory_plan plan;
    int64_t free_bytes; // -1: the system does not say
};

// Sets options->lanes: to `wanted`, or to as many as fit when that is 0. Refuses with the number that would fit.
bool fit_lanes(struct fit *fit, struct engine_options *options, int wanted, struct error *error);

// One line on stderr: what it takes, part by part, of what was free.
void fit_print(const struct fit *fit);

#endif
