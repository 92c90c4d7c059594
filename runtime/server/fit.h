// SPDX-License-Identifier: Apache-2.0
//
// How many streams fit into the memory that is there, before anything loads.

#ifndef SERVER_FIT_H
#define SERVER_FIT_H

#include "runtime/engine.h"

// Sets options->lanes: to `wanted`, or to as many as fit when that is 0. Refuses with the number that would fit. Prints the plan on
// stderr unless quiet.
bool fit_lanes(struct engine_options *options, int wanted, struct error *error);

#endif
