// SPDX-License-Identifier: Apache-2.0
//
// Requests of OpenAI's responses API, in the shape of its chat.

#ifndef SERVER_RESPONSES_H
#define SERVER_RESPONSES_H

#include "runtime/server/blocks.h"
#include "runtime/server/exchange.h"

// What chat would be asked, as a new object; root stays the caller's. `before` are the messages of the reply that this one goes on from,
// or NULL. *history are the messages without the instructions, new, for a later request. NULL: an error was sent.
json_t *responses_translate(struct exchange *x, const json_t *root, const json_t *before, json_t **history);

// The reply as a message of a conversation.
json_t *responses_message(const struct exchange *x, const struct blocks *blocks);

// The id of a call, as the client knows it.
json_t *responses_call_id(const struct exchange *x, const struct block *block);

#endif
