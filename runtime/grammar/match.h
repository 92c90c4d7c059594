// SPDX-License-Identifier: Apache-2.0
//
// The inside of a grammar that is being matched.
//
// A place in a grammar is a set of configurations: a node that waits for a byte or a token, and a stack. Stacks are
// chains of frames that exist once, so equal stacks have equal numbers. A mask depends on little of a stack: what a
// token can do before it leaves the innermost rule is found once for that rule's part of the place (a `local` place,
// whose stacks end in FRAME_HOLE), and what it does after leaving is followed from the ends that were found. So one
// list serves every string of every document.

#ifndef GRAMMAR_MATCH_H
#define GRAMMAR_MATCH_H

#include "runtime/grammar/form.h"
#include "runtime/grammar/grammar.h"
#include <stdatomic.h>

enum {
    FRAME_ROOT = 0,   // below it the grammar is over
    FRAME_HOLE = 1,   // below it is whatever called
    CONFIG_END = -1,  // node: the grammar may be over
    CONFIG_EXIT = -2, // node: the local place was left
    DEPTH_MOST = 1024,
    DEPTH_NESTS = 768,      // rules that nest are refused above
    FRAMES_MOST = 1 << 20,  // that one grammar may see
    STATES_MOST = 1 << 16,  // local places kept at once
    TABLE_BYTES = 16 << 20, // of their transitions
    MASK_BYTES = 16 << 20,  // of their masks
    WORK_MOST = 1 << 23,    // steps that one call may take
    SEEN_SLOTS = 1 << 14,
    SEEN_MOST = SEEN_SLOTS / 2,
    PLAIN_NOT = 255,
    PLAIN_MOST = 254,
};

// The tree of the tokens' bytes in preorder: node i has its children at i + 1, skip[i + 1], ... up to skip[i].
struct grammar_vocabulary {
    const struct tokenizer_tables *tables;
    int32_t vocabulary, longest; // longest: bytes of a token
    uint32_t nodes;
    uint32_t *skip;
    int32_t *token; // -1: none ends here
    uint16_t *depth;
    uint8_t *byte;
    uint8_t *plain;      // levels below a node whose descendants are plain characters alone; PLAIN_NOT
    int32_t (*twins)[2]; // ids with the same bytes: the one in the tree, another one
    int32_t twin_count;
    int32_t *end;
    int32_t end_count;
    uint8_t *outside; // one bit an id that is not in the tree
};

struct frame {
    int32_t node;        // where a call goes on; ~loop for a counted repeat
    int32_t least, most; // rounds of the repeat that must and may follow
    int32_t parent;      // frame
    int32_t depth;
};

struct frames {
    struct frame *at;
    int32_t count, room;
    int32_t *slot; // [2 * room] number + 1
};

// The tokens that a local place allows by itself, and the tree's nodes at which it was left with something to follow.
struct local_mask {
    int32_t *ids;    // [count] when they are few
    uint32_t *words; // else
    int32_t count;
    uint32_t *exits;
    int32_t exit_count;
};

struct local {
    int32_t first, count; // of its configurations
    int16_t plain;        // so many plain characters, any of them, lead on within the place; -1: not known yet
    bool exits, alone;    // it holds CONFIG_EXIT; and nothing else
    struct local_mask *mask;
};

struct locals {
    struct frames frames;
    struct local *at;
    int32_t count, room;
    struct grammar_config *configs;
    int32_t config_count, config_room;
    int32_t *slot; // [2 * STATES_MOST] number + 1
    int32_t *next; // [room][classes]; -1: not known yet, 0: dead
    int64_t mask_bytes;
};

struct seen {
    int32_t node, frame;
    uint32_t stamp;
};

struct grammar {
    atomic_int holders;
    atomic_llong bytes; // as grammar_count found them last
    struct form form;
    const struct grammar_vocabulary *vocabulary;
    uint8_t class_of[256], byte_of[256]; // bytes that no set tells apart; one byte of each class
    int32_t classes;
    uint8_t plain_class[256]; // classes of plain characters
    int plain_classes;
    struct frames frames;
    struct locals locals;
    struct seen *seen; // [SEEN_SLOTS]
    uint32_t stamp;
    int32_t seen_count;
    int64_t work; // left for this call
    struct error *error;
    bool failed;
    enum grammar_fault fault; // of the last call
    // of a walk over the tree
    int32_t *path;   // [longest + 1] local place by depth
    uint32_t *exits; // a stack of lists
    int32_t exit_count, exit_room;
};

// What a closure collects.
struct collect {
    struct grammar *grammar;
    struct frames *frames;
    struct grammar_config *out;
    int32_t count, room;
};

// Takes a finished form over. False when memory is short; the form is then closed.
bool grammar_make(struct grammar **out, const struct grammar_vocabulary *vocabulary, struct form *form,
                  struct error *error);

bool frames_open(struct frames *frames);
void frames_close(struct frames *frames);
// The number of a frame, or -1 when there are too many or it is too deep.
int32_t frames_find(struct grammar *grammar, struct frames *frames, int32_t node, int32_t least, int32_t most,
                    int32_t parent);

// Begins a closure; then adds all configurations that (node, frame) stands for. False when the bounds are hit:
// grammar->failed.
void collect_begin(struct collect *collect, struct grammar *grammar, struct frames *frames, struct grammar_config *out,
                   int32_t room);
bool collect_add(struct collect *collect, int32_t node, int32_t frame);
// Adds what configurations become after a byte.
bool collect_step(struct collect *collect, const struct grammar_config *from, int32_t count, int byte);

// ASCII that a JSON string holds as it is.
static inline bool is_plain(int byte)
{
    return byte >= 0x20 && byte < 0x7f && byte != '"' && byte != '\\';
}

bool locals_open(struct grammar *grammar);
void locals_close(struct grammar *grammar);
// Forgets all local places when they have become many. Not while one is in use.
void locals_trim(struct grammar *grammar);
// The local place of a set of configurations (sorts them); -1: grammar->failed.
int32_t locals_find(struct grammar *grammar, struct grammar_config *configs, int32_t count);
// Where a byte's class leads from a local place, found out and kept; -1: grammar->failed.
int32_t locals_step(struct grammar *grammar, int32_t local, int class);

// Takes stock of grammar_bytes.
void grammar_count(struct grammar *grammar);

// How many plain characters lead on from a local place, up to PLAIN_MOST; 0 too when grammar->failed.
int locals_plain(struct grammar *grammar, int32_t local);

// Every public call begins with it.
void grammar_call(struct grammar *grammar, struct error *error);

// Notes why the call in progress fails; returns false.
bool grammar_fail(struct grammar *grammar, enum grammar_fault fault, const char *why);
bool grammar_starve(struct grammar *grammar); // for lack of memory

#endif
