// SPDX-License-Identifier: Apache-2.0
//
// Warm turns: after a chat reply the conversation is rendered as its next turn will be, up to where the client's words begin, and
// read while nobody waits. So the next turn begins behind the reply.

#ifndef SERVER_WARM_H
#define SERVER_WARM_H

#include "runtime/server/exchange.h"

struct warm;

// Takes the host's idle time. *out stays NULL where the engine keeps no states: then there is nothing to do.
bool warm_open(struct warm **out, struct host *host, struct error *error);
// After the host was closed.
void warm_close(struct warm *warm); // NULL is allowed

// In a worker, once the reply of an exchange with a conversation is out. What fails here costs time on the next turn alone.
void warm_offer(struct warm *warm, struct exchange *x);

// The ids that the next turn will begin with, whatever the client says in it, as jobs that are the caller's; how many. `reply` is the
// assistant's message in OpenAI's shape. Two where it has reasoning, and nothing tells whether the client will send it back.
int warm_render(const struct conversation *conversation, const json_t *reply, struct tokenizer *tokenizer,
                const struct reply_style *style, struct job *jobs[2]);

#endif
