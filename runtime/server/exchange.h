// SPDX-License-Identifier: Apache-2.0
//
// One request and its reply. What a dialect (a file that speaks one API) sees of the server.
//
// A handler gets the request, and either answers it (exchange_json, exchange_error) or fills a job and submits it with its
// dialect's functions, which then see the reply as it is made. Handlers and these functions run in a worker, one at a time for an
// exchange, so a dialect needs no locks. The client may vanish at any moment: then what is written goes nowhere, the job is
// cancelled, and `end` is not called, only `release`.

#ifndef SERVER_EXCHANGE_H
#define SERVER_EXCHANGE_H

#include "runtime/server/answer.h"
#include "runtime/server/job.h"
#include "runtime/server/server.h"
#include "runtime/tokenizer.h"

#include <jansson.h>

struct conversation;
struct exchange;
struct MHD_Connection;

enum error_style { STYLE_OPENAI, STYLE_ANTHROPIC };

struct route {
    const char *method, *path; // a path that ends in * takes any rest
    enum error_style style;
    bool open;   // needs no key
    bool quick;  // answers at once, without a body, in the thread of the connections
    bool tokens; // its reply is many times as large as its body, which is smaller than others may be
    void (*handle)(struct exchange *x);
};

// How a reply came out; all counts are of what was delivered.
struct outcome {
    const char *reason; // "stop", "length", "tool_calls"
    int prompt_tokens, cached_tokens, reply_tokens, reasoning_tokens;
    const struct stream_counters *counters;
    double queued, prompt, first, decode,
        total; // seconds: waiting for a lane, reading, to the first token, after it, all
    char token_sha[65];
};

struct dialect {
    // The request was accepted: the place to open a stream (exchange_stream).
    void (*begin)(struct exchange *x);
    // A piece of the reply.
    void (*piece)(struct exchange *x, const struct reply_event *event);
    // The reply is complete; x->answer holds all of it.
    void (*end)(struct exchange *x, const struct outcome *outcome);
    // The reply failed after the stream was open: one event that says so. (Before, exchange_error was called.)
    void (*fail)(struct exchange *x, const char *type, const char *message);
    // Frees x->state. Always called, once, when the reply is made or its client has gone.
    void (*release)(struct exchange *x);
};

enum { EXCHANGE_NAMES = 8 };

struct exchange {
    struct server *server;
    const struct route *route;
    struct tokenizer *tokenizer; // of the worker that runs now
    uint64_t number;
    char id[40];      // of the reply, without its prefix
    char label[64];   // of the key that was given, or "-"
    char rest[256];   // of the path, where the route ends in *, without escapes; a name of the model fits
    char query[256];  // behind the ?
    char allowed[32]; // methods of a path that was asked for with another one
    char policy[384]; // Content-Security-Policy of what is sent; empty: none
    char *body;
    size_t body_bytes;
    double started;
    int64_t created;
    // of the dialect
    const struct dialect *dialect;
    void *state;
    struct {
        const char *ours, *theirs; // static
    } renamed[EXCHANGE_NAMES];     // fields that the client calls otherwise than OpenAI's chat does
    int renamed_count;
    struct job *job;
    struct answer answer;
    const struct conversation *conversation; // of a chat, part of the state; NULL: none
    struct connection_side *side;            // exchange.c and http.c only
};

// ---- answering ---------------------------------------------------------------------------------------------------------------

// Replies that wait to be read are held up to REPLIES_MOST bytes; beyond that one over REPLY_SMALL is a 503, and a stream of which
// more waits is cut; beyond twice as many, one over REPLY_LEAST.
// The whole reply: status and JSON (stolen). NULL: out of memory.
void exchange_json(struct exchange *x, int status, json_t *body);
// The same for other bodies; `type` is a constant; bytes are copied.
void exchange_text(struct exchange *x, int status, const char *type, const char *text, size_t bytes);
// The same with a text that was made by malloc and is taken.
void exchange_own(struct exchange *x, int status, const char *type, char *text, size_t bytes);
// An error in the style of the route. type, code and param may be NULL: then they follow from the status, or are null.
__attribute__((format(printf, 6, 7))) void exchange_error(struct exchange *x, int status, const char *type,
                                                          const char *code, const char *param, const char *format, ...);
// Opens a stream of server-sent events: status 200.
void exchange_stream(struct exchange *x);
// One event; data is stolen; name may be NULL.
void exchange_event(struct exchange *x, const char *name, json_t *data);
// A line of the stream that is not JSON, such as "[DONE]".
void exchange_line(struct exchange *x, const char *data);
// No more comes.
void exchange_close(struct exchange *x);
// Whether status or stream have been sent.
bool exchange_opened(const struct exchange *x);

// ---- asking ------------------------------------------------------------------------------------------------------------------

// The body as JSON, within the limits of input.h; NULL after an error was sent.
json_t *exchange_input(struct exchange *x);
// Takes the job (also on failure) and hands it to the engine. `rules` say how its text is read; see answer.h. `param` is the
// field that holds the prompt: "messages" or "prompt". Sends an error and returns false when the job cannot be.
bool exchange_submit(struct exchange *x, struct job *job, const struct dialect *dialect,
                     const struct answer_rules *rules, const char *param);

// ---- for http.c and workers.c ---------------------------------------------------------------------------------------------------

struct exchange *exchange_new(struct server *server, struct MHD_Connection *connection);
void exchange_hold(struct exchange *x);
void exchange_drop(struct exchange *x);
// The reply is made: frees everything but its output, which its client may take long to read.
void exchange_done(struct exchange *x);
// The client has gone: cancels the job.
void exchange_gone(struct exchange *x);
// Time has passed: a stream that was quiet for long sends a comment, which clients leave out.
void exchange_quiet(struct exchange *x);
// Something is new: a worker will call exchange_run.
void exchange_wake(struct exchange *x);
void exchange_run(struct exchange *x, struct tokenizer *tokenizer);

#endif
