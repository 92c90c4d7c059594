// SPDX-License-Identifier: Apache-2.0
//
// The listener and its connections, over libmicrohttpd: one thread moves bytes, checks headers and keys, collects bodies, and
// sleeps otherwise. An exchange that waits for the engine has its connection suspended; the watch looks after it.

#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include "runtime/server/server.h"

// Takes the address of the options: server->socket, server->port. Nobody is let in yet.
bool http_bind(struct server *server, struct error *error);
bool http_open(struct server *server, struct error *error);
// Takes no more connections.
void http_quiet(struct server *server);
// Every exchange must be over.
void http_close(struct server *server);

#endif
