// SPDX-License-Identifier: Apache-2.0
//
// The text of one reply: token ids in, whole characters out, split into reasoning, content and tool calls. Everything that
// was made is kept as well, for replies that are sent whole.
// Invariant: tokens are read one by one, so a reply's text, its end and its counts do not depend on how rounds grouped them.

#ifndef SERVER_ANSWER_H
#define SERVER_ANSWER_H

#include "runtime/reply/reply.h"
#include "runtime/server/sha256.h"
#include "runtime/tokenizer.h"

struct string {
    char *bytes; // ends in a NUL that count does not count; NULL: empty
    size_t count, room;
};

struct answer_call {
    struct string name, arguments;
};

struct answer_rules {
    struct reply_options reply; // as reply.h says; its texts are copied by reply_new
    bool keep_special;          // special tokens are text too
    const char *opener;         // text that the prompt ends with and the reply begins with, or NULL
    int budget; // most tokens of reasoning; closing it takes the place of the last of them; 0: no limit, < 0: none
    const char *forced; // text in place of the first token that is not blank behind the reasoning, or NULL
};

// Tokens that the marker of a reasoning's end may be made of.
enum { ANSWER_RECENT = 16 };

struct answer {
    struct tokenizer_stream stream;
    struct reply *reply;
    const char *opener;
    bool skip_special, markers; // markers: of reasoning and calls are text even so
    bool open, stopped;         // stopped: a stop string was met
    bool ended;                 // the last token was an end token
    struct string content, reasoning;
    struct answer_call *calls;
    int call_count, call_room;
    int tokens, reasoning_tokens;  // read so far; markers of reasoning are none of it
    bool uncounted;                // what comes is no reasoning of the model's
    uint8_t recent[ANSWER_RECENT]; // bytes of the last tokens, the newest first
    struct sha256 hash;
    bool failed; // out of memory: the reply cannot be completed
    void (*sink)(void *user, const struct reply_event *event);
    void *user;
};

bool string_add(struct string *text, const char *bytes, size_t count);

bool answer_open(struct answer *answer, const struct tokenizer *tokenizer, const struct answer_rules *rules,
                 void (*sink)(void *user, const struct reply_event *event), void *user, struct error *error);
// Before the first token: reads the opener.
void answer_begin(struct answer *answer);
// The next token. False when the reply ends with it: at a stop string, or an error.
bool answer_feed(struct answer *answer, int32_t token, struct error *error);
// What is still held back.
void answer_end(struct answer *answer);
// Whether it ends inside a think block as it stands.
bool answer_reasons(const struct answer *answer);
// Whether a token ends a reply.
bool answer_is_end(int32_t token);
// Whether a token is white space alone, and no end.
bool answer_blank(const struct answer *answer, int32_t token);
void answer_close(struct answer *answer); // any that is zero or was opened

#endif
