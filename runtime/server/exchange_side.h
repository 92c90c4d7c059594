// SPDX-License-Identifier: Apache-2.0
//
// The half of an exchange that faces its connection, shared by exchange.c, workers.c and http.c.
// Invariant: a connection is suspended exactly while `suspended` is set, and only the thread that clears it, with the lock
// held, resumes it; so a connection is never resumed after it has gone.

#ifndef SERVER_EXCHANGE_SIDE_H
#define SERVER_EXCHANGE_SIDE_H

#include "runtime/server/exchange.h"

#include <microhttpd.h>

enum {
    READ_SECONDS = 600, // that a client may take to read a reply that is complete
    CUT_SECONDS = 1,    // until a connection that is cut for its reply's size is closed
    QUIET_SECONDS = 15, // of a stream, after which a comment shows clients and proxies that it lives
};

enum side_state { SIDE_NOTHING, SIDE_WHOLE, SIDE_STREAM };

struct connection_side {
    atomic_int references;
    pthread_mutex_t lock;
    // under lock
    struct MHD_Connection *connection; // NULL: gone
    bool suspended, gone, closed;      // closed: no more output comes
    bool cut;                          // gone, but by our own doing: it could not be kept
    enum side_state state;
    int status;
    const char *type;
    char *out;
    size_t out_bytes, out_taken, out_room; // out_room: booked in server->reply_bytes
    double put;                            // when something last was, or the stream was opened
    // of the thread of the connections
    bool queued, complete;     // a response was queued; the body has come whole
    int early;                 // status of an error found while the body came, 0: none
    int link;                  // in the watch, -1: none
    size_t body_room, counted; // counted: bytes booked in server->body_bytes
    // of the workers' queue, under its lock
    struct exchange *next;
    bool scheduled, again;
    // of the worker that runs the exchange
    bool handled, began, over;
    int fed; // tokens read
    const char *param;
    int prompt_count;   // of the request
    int budget;         // most tokens of reasoning; 0: no limit, negative: none
    const char *forced; // what the answer must begin with behind its reasoning, or NULL
    const char *insert; // text that goes in after `keep` tokens, when the job has ended for it; else NULL
    int keep;
    struct stream_counters earlier; // of the job before it was asked anew
};

// Takes what the engine has made since last time; exchange_news.c.
void exchange_progress(struct exchange *x);

bool exchange_is_gone(struct exchange *x);
// How a reply that was made to its end came out, in the words of metrics.h: as `reason`, unless it could not be kept to be read.
const char *exchange_came_out(struct exchange *x, const char *reason);
const char *exchange_error_type(int status, enum error_style style);

// Puts a connection that waits for output back to work. Lock held.
void side_resume(struct connection_side *side);

#endif
