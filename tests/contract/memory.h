// SPDX-License-Identifier: Apache-2.0
//
// The target's memory, which a test may close: from then on nothing more is had of it, as on a card that is full. Of programs that are
// linked with MEMORY_WRAPS (tests.mk).

#ifndef CONTRACT_MEMORY_H
#define CONTRACT_MEMORY_H

#include <stdbool.h>

// Closes or opens it again, and counts anew.
void memory_close(bool closed);

// How often it was asked for some while it was closed.
int memory_refused(void);

#endif
