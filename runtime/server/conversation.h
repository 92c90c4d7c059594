// SPDX-License-Identifier: Apache-2.0
//
// A conversation as clients send it, made into what the checkpoint's template takes, and into a prompt. The messages are in
// OpenAI's shape; other dialects translate into it first.

#ifndef SERVER_CONVERSATION_H
#define SERVER_CONVERSATION_H

#include "runtime/reply/reply.h"
#include "runtime/server/job.h"
#include "runtime/tokenizer.h"

#include <jansson.h>

struct conversation {
    json_t *messages;  // as the template takes them
    json_t *tools;     // or NULL
    json_t *kwargs;    // the template's switches
    const char *wrong; // after a failure: the field that is at fault; static
};

// Reads messages, tools and the template's switches (the caller keeps all; tools and kwargs may be NULL). Contents
// become text, arguments of calls objects; leading system and developer messages become one. false: error says which
// message and why, c->wrong which field, and nothing is left to close.
bool conversation_read(struct conversation *c, const json_t *messages, json_t *tools, const json_t *kwargs,
                       struct error *error);
void conversation_close(struct conversation *c); // any that is zero or was read

// Renders and encodes it into the job's prompt, with a mark at each message's start. `opener` (or NULL) is text that the reply
// begins with; it is left out where *reasons: the prompt ends inside an open think block. A later system message that the template cannot render
// becomes a user message.
bool conversation_encode(struct conversation *c, struct tokenizer *tokenizer, const struct reply_style *style,
                         const char *opener, struct job *job, bool *reasons, struct error *error);

#endif
