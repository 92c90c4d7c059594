// SPDX-License-Identifier: Apache-2.0
//
// Instruction sets: every kernel file is compiled once for each, with -DISA_NAME=portable|avx2|avx512|amx, and exports its
// kernels under names that end in the instruction set. The table of what this machine can run is in isa.c.
// Invariant: one process uses the kernels of one instruction set only, since they need not agree with each other in bits.

#ifndef ISA_H
#define ISA_H

#include <stdbool.h>

#define ISA_PASTE_2(name, isa) name##_##isa
#define ISA_PASTE(name, isa)   ISA_PASTE_2(name, isa)
#ifdef ISA_NAME
#define ISA_SYM(name) ISA_PASTE(name, ISA_NAME)
#endif

enum { ISA_COUNT = 4 };

// From the fastest to the most portable; "portable" always works.
extern const char *const isa_names[ISA_COUNT];

// Whether this machine and its kernel can run the named instruction set; false for an unknown name. For "amx" this asks the
// kernel for the tile state, for the whole process, so call it before threads are started.
bool isa_available(const char *name);

#endif
