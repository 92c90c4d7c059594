// SPDX-License-Identifier: Apache-2.0
//
// A parsed expression: what regular expressions and grammar texts have in common, and how it becomes a form.

#ifndef GRAMMAR_TREE_H
#define GRAMMAR_TREE_H

#include "runtime/grammar/form.h"

enum { TREE_NODES = 1 << 17, TREE_RANGES = 1 << 17, TREE_COUNT = 1 << 20, POINT_MOST = 0x10ffff };

enum tree_kind {
    TREE_CAT,    // the children, which are linked last first; none: the empty text
    TREE_ALT,    // one of the children
    TREE_POINTS, // a code point of the ranges
    TREE_REPEAT, // the child, least..most times
    TREE_CALL,   // rule `least`
    TREE_START,
    TREE_END, // anchors
};

struct tree_node {
    int32_t kind, child, sibling;
    int32_t least, most; // of a repeat; of points: first range and how many
};

struct tree_range {
    uint32_t first, last;
};

struct tree {
    struct form *form; // its error is the tree's
    struct tree_node *nodes;
    struct tree_range *ranges;
    int32_t node_count, node_room, range_count, range_room;
};

void tree_open(struct tree *tree, struct form *form);
void tree_close(struct tree *tree);

// A new node, or -1 when there are too many.
int32_t tree_node(struct tree *tree, int32_t kind);
void tree_adopt(struct tree *tree, int32_t parent, int32_t child); // puts it before the other children
int32_t tree_points(struct tree *tree, uint32_t first, uint32_t last);
int32_t tree_repeat(struct tree *tree, int32_t child, int32_t least, int32_t most);

// Adds a range to the last TREE_POINTS node; turns it into all other code points.
void tree_add_range(struct tree *tree, int32_t points, uint32_t first, uint32_t last);
void tree_invert(struct tree *tree, int32_t points);

// How code points are written: as they are, inside a JSON string, or as they are between markers, where none is < or NUL.
enum tree_text { TREE_PLAIN, TREE_JSON, TREE_BETWEEN };

// The first node of what `node` stands for, followed by next. Anchors are refused.
int32_t tree_build(struct tree *tree, int32_t node, enum tree_text text, int32_t next);

// The characters that a match of `node` has, at least and at most (FORM_ENDLESS: any number).
void tree_lengths(const struct tree *tree, int32_t node, int64_t *least, int64_t *most);

// Parses a repeat sign at text[*at], if there is one: * + ? {m} {m,} {m,n}. Returns whether there was; false with the
// form failed when it is wrong.
bool tree_sign(struct tree *tree, const char *text, size_t bytes, size_t *at, int32_t *least, int32_t *most);

// One code point of UTF-8 at text[*at]; ill-formed bytes fail the form.
uint32_t tree_point(struct tree *tree, const char *text, size_t bytes, size_t *at);
// The value of `digits` hexadecimal digits at text[*at].
uint32_t tree_hex(struct tree *tree, const char *text, size_t bytes, size_t *at, int digits);

// The characters that a match has, as tree_lengths; false: the form has failed.
bool regex_lengths(struct form *form, const char *pattern, size_t bytes, bool search, int64_t *least, int64_t *most);

// Builds what a regular expression matches, as a whole: ^ and $ may stand at its ends. search: ends without an anchor
// may have any text beside them, as the keyword `pattern` has it.
int32_t regex_build(struct form *form, const char *pattern, size_t bytes, bool search, enum tree_text text,
                    int32_t next);

#endif
