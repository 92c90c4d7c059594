// SPDX-License-Identifier: Apache-2.0
//
// A reply as the blocks that newer dialects speak of: reasoning, text, calls, in the order in which they came.
// Invariant: at most the last block is open.

#ifndef SERVER_BLOCKS_H
#define SERVER_BLOCKS_H

#include "runtime/server/answer.h"
#include <jansson.h>

enum block_kind { BLOCK_REASONING, BLOCK_TEXT, BLOCK_CALL };

struct block {
    enum block_kind kind;
    int call;           // of a call: its index
    bool open;          // more of it may come
    struct string name; // of a call
    struct string text; // of a call: its arguments
};

struct blocks {
    struct block *list;
    int count, room;
    bool failed; // out of memory
};

// What an event did to the blocks, in this order.
struct block_change {
    int ended; // the block that ended with it, or -1
    int began; // the block that began with it, or -1
    int added; // the block that its text belongs to, or -1
};

struct block_change blocks_take(struct blocks *blocks, const struct reply_event *event);
// Ends what is open: its index, or -1.
int blocks_end(struct blocks *blocks);
void blocks_free(struct blocks *blocks);

json_t *string_json(const struct string *text);
// The arguments of a call as an object.
json_t *call_arguments(const struct block *block);

#endif
