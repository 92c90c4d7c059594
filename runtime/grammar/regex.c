// SPDX-License-Identifier: Apache-2.0
//
// Regular expressions: alternatives, groups, classes, repeats, anchors at the ends. What would need memory of what was
// matched (back references, look-around, word boundaries) is refused by name.

#include "runtime/grammar/tree.h"
#include <string.h>

struct parser {
    struct tree tree;
    const char *text;
    size_t bytes, at;
    int depth;
};

static int32_t alternatives(struct parser *p);

static int32_t fail(struct parser *p, const char *what)
{
    return form_fail(p->tree.form, "regex, byte %zu: %s", p->at, what);
}

static bool have(const struct parser *p, const char *text)
{
    const size_t n = strlen(text);
    return p->at <= p->bytes && p->bytes - p->at >= n && !memcmp(p->text + p->at, text, n);
}

// Ranges of \d \w \s and their opposites; false for another letter.
static bool add_class(struct parser *p, int32_t points, char letter)
{
    static const struct tree_range digits[] = {{'0', '9'}}, spaces[] = {{'\t', '\r'}, {' ', ' '}},
                                   words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    const struct tree_range *set = letter == 'd' || letter == 'D'   ? digits
                                   : letter == 'w' || letter == 'W' ? words
                                   : letter == 's' || letter == 'S' ? spaces
                                                                    : NULL;
    const int count = set == digits ? 1 : set == words ? 4 : 2;
    uint32_t from = 0;
    if (!set)
        return false;
    const bool other = letter < 'a';
    for (int i = 0; i < count; i++) {
        if (!other)
            tree_add_range(&p->tree, points, set[i].first, set[i].last);
        else if (set[i].first > from)
            tree_add_range(&p->tree, points, from, set[i].first - 1);
        from = set[i].last + 1;
    }
    if (other)
        tree_add_range(&p->tree, points, from, POINT_MOST);
    return true;
}

// The character after a backslash, which is behind; the letters of classes are not for it.
static uint32_t escape(struct parser *p)
{
    static const char from[] = "nrtfv0ae", to[] = "\n\r\t\f\v\0\a\033";
    const char c = p->at < p->bytes ? p->text[p->at] : 0;
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        p->at++;
        return (uint8_t)to[known - from];
    }
    if (c == 'x' || c == 'u') {
        p->at++;
        if (p->at < p->bytes && p->text[p->at] == '{') {
            size_t end = p->at + 1;
            while (end < p->bytes && p->text[end] != '}' && end - p->at < 8)
                end++;
            p->at++;
            const uint32_t value = tree_hex(&p->tree, p->text, p->bytes, &p->at, (int)(end - p->at));
            if (!have(p, "}"))
                fail(p, "} is missing");
            p->at++;
            return value;
        }
        return tree_hex(&p->tree, p->text, p->bytes, &p->at, c == 'x' ? 2 : 4);
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9') || p->at >= p->bytes) {
        char what[96];
        snprintf(what, sizeof what, "\\%.1s is not supported", p->at < p->bytes ? p->text + p->at : "");
        fail(p, p->at < p->bytes ? what : "a character is expected after \\");
        p->at++;
        return 0;
    }
    return tree_point(&p->tree, p->text, p->bytes, &p->at);
}

// One character of a class, or a whole class such as \d: then *single is false.
static uint32_t member(struct parser *p, int32_t points, bool *single)
{
    *single = true;
    if (p->text[p->at] != '\\')
        return tree_point(&p->tree, p->text, p->bytes, &p->at);
    p->at++;
    if (p->at < p->bytes && add_class(p, points, p->text[p->at])) {
        p->at++;
        *single = false;
        return 0;
    }
    if (have(p, "b")) {
        p->at++;
        return '\b';
    }
    return escape(p);
}

static int32_t class(struct parser *p)
{
    const int32_t points = tree_node(&p->tree, TREE_POINTS);
    const bool other = have(p, "^");
    bool single, first = true;
    p->at += other;
    for (; p->at < p->bytes && (first || p->text[p->at] != ']') && !p->tree.form->failed; first = false) {
        if (have(p, "[:"))
            return fail(p, "classes such as [:alpha:] are not supported");
        const uint32_t low = member(p, points, &single);
        uint32_t high = low;
        if (!single)
            continue;
        if (p->at + 1 < p->bytes && p->text[p->at] == '-' && p->text[p->at + 1] != ']') {
            p->at++;
            high = member(p, points, &single);
            if (!single || high < low)
                return fail(p, "a range of a class must end above where it begins");
        }
        tree_add_range(&p->tree, points, low, high);
    }
    if (!have(p, "]"))
        return fail(p, "] is missing");
    p->at++;
    if (other)
        tree_invert(&p->tree, points);
    return points;
}

static int32_t group(struct parser *p)
{
    if (have(p, "?:")) {
        p->at += 2;
    } else if (have(p, "?P<") || (have(p, "?<") && !have(p, "?<=") && !have(p, "?<!"))) {
        while (p->at < p->bytes && p->text[p->at] != '>')
            p->at++;
        if (p->at++ >= p->bytes)
            return fail(p, "> is missing");
    } else if (have(p, "?=") || have(p, "?!") || have(p, "?<")) {
        return fail(p, "look-ahead and look-behind are not supported");
    } else if (have(p, "?")) {
        return fail(p, "flags and other (?...) groups are not supported");
    }
    const int32_t inside = alternatives(p);
    if (!have(p, ")"))
        return fail(p, ") is missing");
    p->at++;
    return inside;
}

static int32_t atom(struct parser *p)
{
    struct tree *t = &p->tree;
    const char c = p->text[p->at];
    if (strchr("*+?{", c) && c)
        return fail(p, "there is nothing to repeat");
    if (c == '^' || c == '$') {
        p->at++;
        return tree_node(t, c == '^' ? TREE_START : TREE_END);
    }
    if (c == '(') {
        p->at++;
        return group(p);
    }
    if (c == '[') {
        p->at++;
        return class(p);
    }
    if (c == '.') {
        p->at++;
        const int32_t any = tree_points(t, 0, '\n' - 1);
        tree_add_range(t, any, '\n' + 1, POINT_MOST);
        return any;
    }
    if (c == '\\') {
        const int32_t points = tree_node(t, TREE_POINTS);
        p->at++;
        if (p->at < p->bytes && add_class(p, points, p->text[p->at])) {
            p->at++;
            return points;
        }
        const uint32_t point = escape(p);
        tree_add_range(t, points, point, point);
        return points;
    }
    const uint32_t point = tree_point(t, p->text, p->bytes, &p->at);
    return tree_points(t, point, point);
}

static int32_t sequence(struct parser *p)
{
    struct tree *t = &p->tree;
    const int32_t all = tree_node(t, TREE_CAT);
    int32_t least, most;
    while (p->at < p->bytes && p->text[p->at] != '|' && p->text[p->at] != ')' && !t->form->failed) {
        int32_t one = atom(p);
        if (one >= 0 && tree_sign(t, p->text, p->bytes, &p->at, &least, &most)) {
            if (t->nodes[one].kind == TREE_START || t->nodes[one].kind == TREE_END)
                return fail(p, "an anchor cannot be repeated");
            one = tree_repeat(t, one, least, most);
            if (have(p, "?"))
                p->at++; // the shortest match first: the same texts
            else if (have(p, "+"))
                return fail(p, "possessive repeats are not supported");
        }
        tree_adopt(t, all, one);
    }
    return t->form->failed ? -1 : all;
}

static int32_t alternatives(struct parser *p)
{
    struct tree *t = &p->tree;
    if (++p->depth > FORM_DEPTH)
        return fail(p, "groups are nested too deeply (at most 64)");
    const int32_t all = tree_node(t, TREE_ALT);
    tree_adopt(t, all, sequence(p));
    while (have(p, "|") && !t->form->failed) {
        p->at++;
        tree_adopt(t, all, sequence(p));
    }
    p->depth--;
    return t->form->failed ? -1 : all;
}

// Takes the anchors off the ends of a whole alternative; with search, ends without one get any text.
static void anchor(struct tree *t, int32_t sequence, bool search)
{
    int32_t *link = &t->nodes[sequence].child, last = *link, before = -1;
    const bool ends = last >= 0 && t->nodes[last].kind == TREE_END;
    if (ends)
        *link = t->nodes[last].sibling;
    int32_t first = *link;
    for (; first >= 0 && t->nodes[first].sibling >= 0; first = t->nodes[first].sibling)
        before = first;
    const bool starts = first >= 0 && t->nodes[first].kind == TREE_START;
    if (starts && before >= 0)
        t->nodes[before].sibling = -1;
    else if (starts)
        *link = -1;
    if (search && !ends)
        tree_adopt(t, sequence, tree_repeat(t, tree_points(t, 0, POINT_MOST), 0, FORM_ENDLESS));
    if (!search || starts)
        return;
    const int32_t any = tree_repeat(t, tree_points(t, 0, POINT_MOST), 0, FORM_ENDLESS);
    int32_t tail = t->nodes[sequence].child;
    while (tail >= 0 && t->nodes[tail].sibling >= 0)
        tail = t->nodes[tail].sibling;
    if (tail >= 0)
        t->nodes[tail].sibling = any;
    else
        tree_adopt(t, sequence, any);
}

// Parses the whole pattern and takes its anchors off; its node, or -1. The caller closes p->tree.
static int32_t parse(struct parser *p, struct form *f, bool search)
{
    tree_open(&p->tree, f);
    const int32_t all = alternatives(p);
    if (!f->failed && p->at < p->bytes)
        fail(p, ") without (");
    for (int32_t s = all >= 0 && !f->failed ? p->tree.nodes[all].child : -1; s >= 0 && !f->failed;) {
        anchor(&p->tree, s, search);
        s = p->tree.nodes[s].sibling;
    }
    return f->failed ? -1 : all;
}

bool regex_lengths(struct form *f, const char *pattern, size_t bytes, bool search, int64_t *least, int64_t *most)
{
    struct parser p = {.text = pattern, .bytes = bytes};
    const int32_t all = parse(&p, f, search);
    if (all >= 0)
        tree_lengths(&p.tree, all, least, most);
    tree_close(&p.tree);
    return all >= 0;
}

int32_t regex_build(struct form *f, const char *pattern, size_t bytes, bool search, enum tree_text text, int32_t next)
{
    struct parser p = {.text = pattern, .bytes = bytes};
    const int32_t all = parse(&p, f, search);
    const int32_t first = all < 0 ? -1 : tree_build(&p.tree, all, text, next);
    tree_close(&p.tree);
    return first;
}
