// SPDX-License-Identifier: Apache-2.0
//
// The next turn of a chat at the level of tokens, for benches and tests: one conversation that is sent with nothing
// kept, after its last reply, twice, and after a warm pass, through the engine's own requests and its prompt cache.
// Invariant: every case sends the same ids, so all of them have the same reply, whichever was played before.

#ifndef TURNS_H
#define TURNS_H

#include "runtime/engine.h"

enum turn_case {
    TURN_COLD,    // nothing is kept
    TURN_RESUMED, // the prompt before is kept; the reply to it and the turn are read
    TURN_AGAIN,   // this very prompt is kept
    TURN_WARM,    // a warm pass has read all that the turn begins with
    TURN_CASES,
};
extern const char *const turn_names[TURN_CASES];

enum {
    TURN_REPLY = 4,   // reply tokens that are made and compared
    TURN_HEAD = 5,    // tokens that close a reply and open a message, as chat templates have them
    TURN_OPENING = 4, // tokens that open the reply: the last of the new ones
    TURN_PROMPT = 32, // least tokens of the prompt before
};

// A conversation: the prompt before, the reply to it, the fixed head of the next turn, and what is new in that. A
// prompt has marks where the server's have them, at beginnings of messages.
struct turn_talk {
    int32_t *ids;               // [count]
    int before, history, count; // ids up to the end of: the prompt before; the head; everything
    int marks[3];               // beginnings of: the reply before, the message that is new, the reply to it
};

// What playing a case took.
struct turn {
    double first;     // seconds from handing the request in to its first token
    double restore;   // seconds to put a kept state in place and do nothing else; 0 where there is none
    double pass;      // seconds of the warm pass before
    int cached, read; // tokens of the prompt that a state stood for, and that were read
    int chunks;       // in which they were read
    int pass_read;    // tokens that the warm pass read
    int32_t reply[TURN_REPLY];
    uint64_t logits; // hash of the row that the first token was drawn from, or the last one that came with it
};

// Whether a conversation of these lengths can be; see turn_open. False: error says what is missing.
bool turn_check(int history, int reply, int fresh, struct error *error);

// Makes a conversation of `history` tokens, the last of them a reply of `reply` tokens and the turn's head, and of
// `fresh` new ones. All but the reply's are those of ids[history + fresh]; the engine makes the reply, and keeps the
// prompt before it. Needs turn_positions of context. The caller closes the talk, also after a failure.
bool turn_open(struct turn_talk *talk, struct engine *engine, const int32_t *ids, int history, int reply, int fresh,
               struct error *error);
void turn_close(struct turn_talk *talk);

// Positions that an engine must hold for such a conversation.
int turn_positions(int history, int fresh);

// Memory that its kept states take at most, in bytes, so that no case finds one given up.
int64_t turn_cache_bytes(int positions, int page, int kv_encoding);

// Brings the cache to where the case begins, and plays it. False when the engine fails, or when a state that the case
// is about was not kept. The engine does nothing else meanwhile.
bool turn_play(struct engine *engine, const struct turn_talk *talk, enum turn_case which, struct turn *out,
               struct error *error);

// Whether two cases of one conversation have the same reply, and the first logits bit for bit; else a line, exit code
// 1.
bool turn_same(const struct turn *a, const char *a_name, const struct turn *b, const char *b_name, struct error *error);

#endif
