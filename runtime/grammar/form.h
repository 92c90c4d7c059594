// SPDX-License-Identifier: Apache-2.0
//
// The one form that every front end makes: rules over bytes, as a graph of nodes. A rule is entered by NODE_CALL and
// left by NODE_RETURN; a counted repeat carries its count beside the calls. A grammar is built back to front: a builder
// function is told the node that follows and returns the node that comes first, so nothing is patched but loops and
// rules. Invariants: sizes are bounded by the limits below whatever the input is; after form_finish every node can
// reach an end, no rule can call itself without a byte in between, and no counted repeat has a body that may be empty.

#ifndef GRAMMAR_FORM_H
#define GRAMMAR_FORM_H

#include "runtime/error.h"
#include <stddef.h>
#include <stdint.h>

enum {
    FORM_NODES = 1 << 18,
    FORM_RULES = 1 << 16,
    FORM_LOOPS = 1 << 16,
    FORM_SETS = 1 << 14,
    FORM_MARKS = 1 << 14,
    FORM_DEPTH = 64,          // nesting of schemas, groups and the like
    FORM_ENDLESS = INT32_MAX, // of a loop's most
};

enum form_kind {
    NODE_BYTES,  // a byte of set `arg`, then next
    NODE_SPLIT,  // next, or arg
    NODE_CALL,   // rule `arg`, then next
    NODE_RETURN, // the end of a rule
    NODE_TOKEN,  // the token with id `arg` as a whole, then next
    NODE_LOOP,   // loop `arg` from its first round on
    NODE_AGAIN,  // the end of the body of loop `arg`
};

struct form_node {
    int32_t kind, arg, next;
};

struct form_set {
    uint64_t bits[4]; // byte b: bit b % 64 of word b / 64
};

struct form_loop {
    int32_t least, most; // rounds; most: FORM_ENDLESS for no limit
    int32_t body, next;
    int32_t shape; // the loop whose body and next these are: itself, or one with other counts
};

struct form_rule {
    int32_t start; // -1: not defined yet
    int32_t nests; // 1: calls are refused where the stack is deep, since something else is possible there
};

// A part of the form that stands for one place of its source: from node `first`, and then `next`.
struct form_mark {
    int32_t first, next;
    int32_t from, to; // the nodes from..to - 1 were made for it
    char *place;
};

struct form {
    struct form_node *nodes;
    struct form_set *sets;
    struct form_loop *loops;
    struct form_rule *rules;
    int32_t node_count, set_count, loop_count, rule_count;
    int32_t node_room, set_room, loop_room, rule_room;
    struct form_mark *marks; // inner parts before those that hold them
    int32_t mark_count, mark_room;
    int32_t *set_slot; // [2 * FORM_SETS] number of a set + 1, by its hash
    int32_t root;      // rule
    int32_t lead;      // node: up to two line ends, then the root rule
    bool failed;       // a limit was hit or memory ran out: what the builders return means nothing
    struct error *error;
};

bool form_open(struct form *form, struct error *error);
void form_close(struct form *form);

// Sets the error of the form unless it has failed before; returns -1, which every builder function takes and returns.
int32_t form_fail(struct form *form, const char *format, ...) __attribute__((format(printf, 2, 3)));

// ---- pieces: each returns its first node --------------------------------------------------------------------------------------

int32_t form_set(struct form *form, const struct form_set *set, int32_t next);
int32_t form_range(struct form *form, int first, int last, int32_t next); // one byte of first..last
int32_t form_text(struct form *form, const char *text, size_t bytes, int32_t next);
int32_t form_token(struct form *form, int32_t id, int32_t next);
int32_t form_either(struct form *form, int32_t a, int32_t b); // -1 of one of them: the other
int32_t form_call(struct form *form, int32_t rule, int32_t next);
int32_t form_return(struct form *form);

// The first of several texts that share beginnings is one path: few states, whatever the number of texts. Sorts `texts`.
struct form_word {
    const char *text;
    size_t bytes;
    int32_t next; // what follows this one
};
int32_t form_words(struct form *form, struct form_word *words, size_t count);

// A loop: body is built between the two calls, with *again as what follows it.
//     int32_t loop = form_loop(form, least, most, next, &again);
//     first = form_loop_end(form, loop, build_body(form, again));
int32_t form_loop(struct form *form, int32_t least, int32_t most, int32_t next, int32_t *again);
int32_t form_loop_end(struct form *form, int32_t loop, int32_t body);

// A loop with other counts and the same body and next, so that masks of places in it are shared.
int32_t form_loop_like(struct form *form, int32_t loop, int32_t least, int32_t most);

// An endless repeat: the node at which another round begins or `next` does. Build the body with it as what follows,
// then end it.
int32_t form_star(struct form *form);
int32_t form_star_end(struct form *form, int32_t star, int32_t body, int32_t next);

// A node from which nothing leads on: what stands for what cannot be.
int32_t form_never(struct form *form);

// A rule that is defined later with form_define; -1 when there are too many.
int32_t form_rule(struct form *form);
void form_define(struct form *form, int32_t rule, int32_t start);

// Code points first..last as UTF-8; surrogates are left out.
int32_t form_points(struct form *form, uint32_t first, uint32_t last, int32_t next);

// ---- form_mark.c: places of the source, for what form_finish has to say ---------------------------------------------------------

// Notes a part and its place, such as "schema, #/properties/a"; no more than FORM_MARKS are kept.
void form_mark(struct form *form, int32_t from, int32_t first, int32_t next, const char *place);
void form_marks_free(struct form *form);
// The innermost place from which no end is reached, where what follows it has one; ends: for each node, whether it reaches its end.
// Places that are not known are "".
const char *form_never_place(const struct form *form, const uint8_t *ends);
// The innermost place that a node was made for, and the outermost that begins with a node.
const char *form_node_place(const struct form *form, int32_t node);
const char *form_start_place(const struct form *form, int32_t first);

// ---- the end ---------------------------------------------------------------------------------------------------------------------

// Checks and prunes. False with one line when the grammar allows nothing, when a rule is left-recursive (its name by
// name_of, which may be NULL), when a counted repeat may be empty, or when the form has failed. The line begins with the innermost
// place that is known to be at fault.
bool form_finish(struct form *form, const char *(*name_of)(const void *user, int32_t rule), const void *user);

static inline void form_set_add(struct form_set *set, int byte)
{
    set->bits[byte / 64] |= (uint64_t)1 << (byte % 64);
}

static inline bool form_set_has(const struct form_set *set, int byte)
{
    return (set->bits[byte / 64] >> (byte % 64) & 1) != 0;
}

#endif
