// SPDX-License-Identifier: Apache-2.0
//
// Watches the connections themselves: a client that hangs up is noticed at once, also while its reply is being made and nothing
// is read from it or written to it; a client that takes too long to send a request, or to read a reply, is cut.
// A client that closes its sending half counts as gone: HTTP clients do not do that while they wait.
// Invariant: a socket is touched here only between watch_open_link and watch_close_link, which the connections' thread calls
// before it closes the socket.

#ifndef SERVER_WATCH_H
#define SERVER_WATCH_H

#include "runtime/error.h"
#include <stdatomic.h>

struct watch;
struct exchange;

// large: set when a large request is over; then what the allocator kept of it goes back to the system.
bool watch_open(struct watch **out, atomic_bool *large, struct error *error);
void watch_close(struct watch *watch);

// A connection and its socket; -1 when there are too many.
int watch_open_link(struct watch *watch, int socket);
void watch_close_link(struct watch *watch, int link);

// From now on exchange_gone is called when the client hangs up. Holds the exchange until watch_end.
void watch_begin(struct watch *watch, int link, struct exchange *exchange);
void watch_end(struct watch *watch, int link);

// The connection is cut when it has not come to the next step after so many seconds; 0: never.
void watch_deadline(struct watch *watch, int link, double seconds);

// Cuts every connection, and calls exchange_gone for all that wait.
void watch_cut(struct watch *watch);

#endif
