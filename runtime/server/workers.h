// SPDX-License-Identifier: Apache-2.0
//
// The threads that read bodies, render conversations and write replies, so that neither the engine nor the connections wait
// for it. Invariant: an exchange is in at most one worker at a time, and once more in the queue at most.

#ifndef SERVER_WORKERS_H
#define SERVER_WORKERS_H

#include "runtime/error.h"

struct workers;
struct exchange;

bool workers_open(struct workers **out, int count, struct error *error);
// Runs what is queued, and ends the threads.
void workers_close(struct workers *workers);

// exchange_run will be called for it, after this call or for the last time still to return. Takes a reference meanwhile.
void workers_add(struct workers *workers, struct exchange *exchange);

#endif
