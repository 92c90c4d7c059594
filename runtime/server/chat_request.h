// SPDX-License-Identifier: Apache-2.0
//
// A chat in OpenAI's shape, read into a job and the rules of its reply. Other dialects of chat translate their requests into
// this shape, so that every dialect means the same by a tool, a limit or a stop string.

#ifndef SERVER_CHAT_REQUEST_H
#define SERVER_CHAT_REQUEST_H

#include "runtime/server/conversation.h"
#include "runtime/server/openai.h"

struct chat_request {
    json_t *root; // stop strings and tools point into it
    struct conversation conversation;
    struct stops stops;
    char *opener; // text that the reply was made to begin with, or NULL
    bool stream, include_usage, logprobs;
    int alternatives; // of log-probabilities
};

// Reads root (stolen), encodes its prompt into the job, and sets the rules, which point into r: it must live until the exchange is
// released. false: an error was sent. r is zero before, and is closed by the caller in either case.
bool chat_request_read(struct exchange *x, struct chat_request *r, json_t *root, struct job *job,
                       struct answer_rules *rules);
void chat_request_close(struct chat_request *r); // any that is zero or was read

#endif
