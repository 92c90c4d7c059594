// SPDX-License-Identifier: Apache-2.0
//
// One server: its engine thread (host.h), its workers (workers.h), its connections (http.h), and what it was started with.
// A request is one exchange (exchange.h). README.md in this folder says how the parts work together.

#ifndef SERVER_H
#define SERVER_H

#include "runtime/engine.h"
#include "runtime/reply/reply.h"
#include "runtime/server/host.h"
#include "runtime/server/metrics.h"

#include <stdatomic.h>

enum {
    SERVER_ALIASES = 16,
    BODY_MOST = 32 << 20,     // bytes of a request's body
    TOKENS_BODY = 4 << 20,    // of one that asks for tokens or their text, whose reply takes many times that
    TOKEN_BYTES = 16,         // more for each position of a long context
    BODY_LARGE = 1 << 20,     // from which on the process gives memory back when the request is over
    BODIES_MOST = 256 << 20,  // bytes of all bodies that are held
    REPLIES_MOST = 256 << 20, // bytes of all replies that wait to be read
    REPLY_SMALL = 64 << 10,   // up to which one may wait beside those
    REPLY_LEAST = 4 << 10,    // and beside twice as many
    HEADERS_MOST = 16 << 10,  // bytes of a request's line and headers
    LINKS_MOST = 16384,       // connections at a time
    JOBS_MOST = 1024,         // requests for the engine at a time
};

struct keys;
struct response_store;
struct structured;
struct workers;
struct watch;
struct warm;
struct MHD_Daemon;

struct server_options {
    const char *host; // NULL: 127.0.0.1
    int port;         // 0: any that is free
    const char *name; // of the model, in replies
    const char *alias[SERVER_ALIASES];
    int alias_count;
    int max_tokens;           // of a reply whose request names no limit
    struct sampling sampling; // where a request says nothing
    const char *thinking;     // "on", "off", NULL: the template's own
    const char *effort;       // reasoning_effort where a request says nothing, or NULL
    int budget;               // most tokens of reasoning where a request says nothing; negative: no limit
    const char *key_file;     // NULL: anyone may ask
    bool no_log;              // no line a request on stderr
};

struct server {
    struct server_options options;
    int context;              // positions of a stream: the context, or what the pool holds of it
    struct reply_style style; // how the model writes
    char closing[64];         // text that ends its reasoning
    struct engine *engine;    // the host's
    struct host *host;
    struct workers *workers;
    struct watch *watch;
    struct warm *warm; // NULL: the engine keeps no states
    struct keys *keys; // NULL: none
    struct MHD_Daemon *daemon;
    struct metrics metrics;
    int socket; // bound, until the listener has it; -1: none
    int port;   // that it listens on
    double started;
    int64_t created;                  // seconds since 1970
    atomic_uint_fast64_t number;      // of the last request
    atomic_int_fast64_t body_bytes;   // of all bodies that are held
    atomic_int_fast64_t reply_bytes;  // of all replies that wait to be read
    atomic_int jobs;                  // exchanges with a job that is not final
    atomic_int exchanges;             // requests whose reply is not out
    atomic_bool draining;             // takes no new requests
    atomic_bool large;                // a request with a large body is over: the watch gives its memory back
    struct response_store *responses; // that were asked to be kept
    struct structured *structured;    // grammars; NULL: replies cannot follow any
    void *extra;                      // of whoever adds to the server; see routes.c
};

// Everything that needs no engine, so that what is wrong is known before one loads: keys are read, the address is
// taken, though nobody is let in. On failure *out is NULL. The caller closes it.
bool server_open(struct server **out, const struct server_options *options, struct error *error);

// Starts serving: engine thread, workers, listener. The engine is the server's until server_close, after a failure too.
bool server_start(struct server *server, struct engine *engine, struct error *error);

// Whether it serves: the engine lives and its thread comes by. *status: "ok", "failed", "hung" or "draining". /health says the same.
bool server_well(struct server *server, const char **status);

// Stops listening, lets what is being answered finish for up to `seconds`, and cancels the rest.
void server_drain(struct server *server, double seconds, bool (*hurry)(void *user), void *user);

// Ends everything; server_drain first, or replies are cut.
void server_close(struct server *server);

#endif
