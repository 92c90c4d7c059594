// SPDX-License-Identifier: Apache-2.0
//
// The CPU kernels of each instruction set, by kernel number.

#ifndef KERNELS_H
#define KERNELS_H

#include "graphs/exec.h"
#include "kernels/cpu/kernel.h"

// The kernels of an ISA by name ([KERNEL_COUNT]), or NULL when this machine or build lacks it; the best with NULL. *chosen
// gets its name.
const struct kernel *const *kernels_find(const char *isa, const char **chosen);

#endif
