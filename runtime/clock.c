// SPDX-License-Identifier: Apache-2.0
//
// The engine's clock, alone in its file so that the simulator can bring its own.

#include "runtime/engine.h"
#include <time.h>

double engine_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
