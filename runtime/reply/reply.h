// SPDX-License-Identifier: Apache-2.0
//
// The text of a reply, as it comes, as reasoning, content and tool calls.
// Invariant: how the bytes are cut changes no event but where pieces of text are cut; text is held back only while it may be the
// beginning of a stop string or of a marker.

#ifndef REPLY_H
#define REPLY_H

#include "runtime/error.h"
#include "runtime/template.h"
#include <jansson.h>
#include <stddef.h>

// How a model writes a call.
enum reply_dialect {
    REPLY_PLAIN, // it has no tools
    REPLY_XML,   // <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> </function> </tool_call>
    REPLY_JSON   // <tool_call> {"name": NAME, "arguments": {...}} </tool_call>
};

enum reply_kind {
    REPLY_REASONING,
    REPLY_CONTENT,
    REPLY_CALL_BEGIN,     // call, name
    REPLY_CALL_ARGUMENTS, // call, a piece of the JSON text of its arguments, which are one object
    REPLY_CALL_END        // call: the pieces are whole now, and valid JSON
};

// One event; its pointers hold during the sink's call only. Text is whole UTF-8 characters.
struct reply_event {
    enum reply_kind kind;
    const char *text; // of REASONING, CONTENT, CALL_ARGUMENTS; not NUL-terminated
    size_t bytes;
    int call;         // of CALL_*: its index in this reply, from 0
    const char *name; // of CALL_BEGIN
};

// What a reply is to be read as. Stop strings are copied and tools are held; the markers must stay until reply_free.
struct reply_options {
    enum reply_dialect dialect;
    bool reasoning;                               // the prompt ended inside an open think block
    const char *reasoning_open, *reasoning_close; // NULL: the model does not think
    const json_t *tools;                          // OpenAI's array of tools; NULL or empty: no calls are looked for
    const char *const *stop;                      // NUL-terminated, none empty
    int stop_count;                               // at most REPLY_STOPS
    bool parallel_calls;                          // false: the reply ends with its first whole call
    bool call_asked;                              // the reply is calls: one that is cut before it begins is no content
};

enum { REPLY_STOPS = 64 };

// Why reply_feed wants no more.
enum reply_end_reason {
    REPLY_OPEN,     // it does want more
    REPLY_AT_STOP,  // a stop string was met
    REPLY_AT_CALL,  // the first call is whole, and parallel_calls is false
    REPLY_NO_MEMORY // text was lost
};

struct reply;
typedef void reply_sink(void *user, const struct reply_event *event);

// NULL: error says why.
struct reply *reply_new(const struct reply_options *options, struct error *error);

// Takes the next `count` bytes, cut anywhere, also inside a character; ill-formed UTF-8 becomes U+FFFD. Calls sink for what is
// certain. false: nothing more is wanted, reply_reason says why; reply_end must still be called.
bool reply_feed(struct reply *reply, const char *bytes, size_t count, reply_sink *sink, void *user);

// The reply is over: gives out what was held back, but for a character that was cut short. A call whose arguments were begun is
// closed so that they are valid JSON; one that had not come that far is content, but left out where nothing but calls can come: where
// they are asked for, and directly behind another call.
void reply_end(struct reply *reply, reply_sink *sink, void *user);
void reply_free(struct reply *reply);

enum reply_end_reason reply_reason(const struct reply *reply);
// Whether what was read so far ends inside a think block.
bool reply_reasons(const struct reply *reply);
// How many bytes at the end of what was read belong to the closing marker of the last think block or stand behind it, at the moment
// when reply_reasons turns false; text that may begin a stop string is not read yet. Where a stop string is met inside a think
// block: from the closing marker on of which that string has a part, 0: it has none.
size_t reply_behind_reasoning(const struct reply *reply);
// The index of the stop string that was met, or -1.
int reply_stop_index(const struct reply *reply);
// Calls begun so far.
int reply_calls(const struct reply *reply);
// Whether the last call was closed by reply_end and not by the model: with a reply that ran out of tokens its arguments may lack
// their end.
bool reply_call_cut(const struct reply *reply);

// How the model of a chat template writes.
struct reply_style {
    enum reply_dialect dialect;
    const char *reasoning_open, *reasoning_close; // NULL where the template knows no think block
    unsigned efforts;                             // which levels the template takes, by their place in the order
};

// Finds out by rendering conversations with a call and with reasoning. A template that refuses them has neither.
struct reply_style reply_style_of(const struct chat_template *templ);

// The level of reasoning that the template takes and that is nearest to the one asked for, the higher of two: one of "minimal", "low",
// "medium", "high", "xhigh", "max"; "none" for none. NULL: `asked` is none of these.
const char *reply_effort(const struct reply_style *style, const char *asked);

// Whether a token's text is a marker of reasoning or calls.
bool reply_is_marker(const char *text, size_t bytes);

// Whether a rendered prompt ends inside an open think block.
bool reply_prompt_reasons(const struct reply_style *style, const char *prompt, size_t bytes);

// The text that begins a call of `name`, or of any tool where it is NULL: what a prompt ends with when a call is asked for. It is
// malloc'd; NULL when the dialect is REPLY_PLAIN or memory ran out. The reply must be fed this text first.
char *reply_call_opener(enum reply_dialect dialect, const char *name);

#endif
