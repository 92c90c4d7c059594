// SPDX-License-Identifier: Apache-2.0
//
// The read ceiling: how fast the threads of a pool can read memory on this machine, measured with plain wide loads.
// A decode step can be no faster than its bytes at this rate.

#ifndef CEILING_H
#define CEILING_H

#include "runtime/pool.h"

struct ceiling;

// Claims and touches a buffer of `bytes` (rounded up to a multiple of 4096 a thread), a slice a thread, in huge pages where
// the system gives them. NULL with an error when there is no memory. The pool must outlive it. The caller closes it.
struct ceiling *ceiling_open(struct pool *pool, int64_t bytes, struct error *error);
void ceiling_close(struct ceiling *ceiling);

// Reads the whole buffer a few times, with several access patterns, and returns the best rate in bytes a second.
double ceiling_measure(struct ceiling *ceiling);

#endif
