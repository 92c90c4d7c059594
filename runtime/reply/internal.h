// SPDX-License-Identifier: Apache-2.0
//
// A reply that is being read: bytes -> whole characters -> up to a stop string -> states below, which consume `text`.
// Invariant: what a state consumes depends on the text and never on how it came in; a state that cannot tell yet consumes nothing
// and waits, unless the text is final.

#ifndef REPLY_INTERNAL_H
#define REPLY_INTERNAL_H

#include "runtime/reply/json_stream.h"
#include "runtime/reply/matcher.h"
#include "runtime/reply/reply.h"
#include "runtime/reply/schema.h"

enum reply_state {
    REPLY_START,       // whether it opens a think block
    REPLY_THINK_BEGIN, // line breaks before reasoning
    REPLY_THINK,
    REPLY_THINK_END, // line breaks behind the think block
    REPLY_TEXT,
    REPLY_CALL,
    REPLY_AFTER_CALL // blanks behind a call
};

// What a step could do.
enum step {
    STEP_MORE, // nothing until there is more text
    STEP_ON,   // something was consumed or the state changed
    STEP_BAD,  // of a call that has not begun: it is none
    STEP_CUT   // the same, since the reply ends in its beginning
};

enum value_kind_of_call {
    CALL_STRING, // streamed as a string
    CALL_HELD,   // until its type is certain, or its end
    CALL_JSON,   // streamed through json_stream
    CALL_DROPPED // given before
};

struct call {
    enum reply_dialect dialect; // PLAIN: not known yet
    int phase;                  // of the dialect
    const json_t *function;
    enum value_kind_of_call kind;
    unsigned types;
    bool entered;       // the line break behind the parameter's marker was dealt with
    bool second;        // there was a parameter before
    struct bytes keys;  // of parameters so far, each with its NUL
    struct bytes value; // of a held parameter; in JSON, of an object whose name comes late
    struct json_stream json;
    size_t scanned; // in JSON: how much of text went into it
};

struct reply {
    struct reply_options options;
    bool calls_wanted;
    struct bytes raw;  // a character that is not whole
    struct bytes held; // text that may begin a stop string
    struct bytes text; // not consumed
    struct matcher stops[REPLY_STOPS];
    enum reply_state state;
    enum reply_end_reason reason;
    int stop_index;
    bool final;    // nothing comes behind `text`
    bool complete; // the only call that is wanted is whole
    reply_sink *sink;
    void *user;

    size_t behind;          // bytes of the closing marker and of what stood behind it when it was found
    size_t gap;             // line breaks that are content only if more text follows
    size_t plain;           // bytes at the beginning of text in which no call is looked for
    struct bytes arguments; // of an event to come
    int calls, calls_whole;
    bool call_cut;
    bool follows; // the call that is read stands directly behind another one
    struct call call;

    // A call inside a think block counts only if the block is never closed: its events wait, and so does its text.
    bool tentative;
    struct matcher closing; // finds the end of the block
    bool closed;            // it did
    struct bytes queue;     // events
    struct bytes taken;     // text that they were made from
};

// Drops `count` bytes of text, which were understood.
void reply_consume(struct reply *reply, size_t count);
void reply_emit_text(struct reply *reply, enum reply_kind kind, const char *text, size_t count);
// The three events of a call. Pieces of arguments are gathered in reply->arguments.
void reply_call_begin(struct reply *reply, const char *name);
void reply_call_flush(struct reply *reply);
void reply_call_end(struct reply *reply, bool cut);

// One step of REPLY_CALL in a dialect; STEP_BAD only before reply_call_begin. text begins with the marker then.
enum step call_xml_step(struct reply *reply);
enum step call_json_step(struct reply *reply);
// Forgets the call; that it ran out of memory stays known.
void call_free(struct reply *reply);

// One step of any state.
enum step reply_step(struct reply *reply);

static inline bool text_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// What may stand at a place of a text.
enum match { MATCH_NO, MATCH_PART, MATCH_FULL };

// PART: the text ends before it can be told.
static inline enum match text_match(const char *text, size_t count, const char *marker)
{
    size_t length = strlen(marker), have = count < length ? count : length;
    return have && memcmp(text, marker, have) ? MATCH_NO : have < length ? MATCH_PART : MATCH_FULL;
}

#endif
