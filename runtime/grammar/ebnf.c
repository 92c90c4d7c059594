// SPDX-License-Identifier: Apache-2.0
//
// Grammar texts: rules `name ::= ...` of texts, classes, groups, repeats, alternatives and other rules; `root` is the
// reply.

#include "runtime/grammar/match.h"
#include "runtime/grammar/tree.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { NAME_MOST = 64, NAME_SLOTS = 2 * FORM_RULES };

struct named {
    const char *text; // in the grammar's text
    size_t bytes;
    int32_t rule, tree; // tree: -1: not defined
};

struct parser {
    struct tree tree;
    const char *text;
    size_t bytes, at;
    int depth;
    struct named *names;
    int32_t count, room;
    int32_t *slot; // [NAME_SLOTS] number + 1
};

static int32_t alternatives(struct parser *p);

static int32_t fail(struct parser *p, const char *what)
{
    int line = 1;
    for (size_t i = 0; i < p->at && i < p->bytes; i++)
        line += p->text[i] == '\n';
    return form_fail(p->tree.form, "grammar, line %d: %s", line, what);
}

static void skip(struct parser *p)
{
    while (p->at < p->bytes) {
        const char c = p->text[p->at];
        if (c == '#')
            while (p->at < p->bytes && p->text[p->at] != '\n')
                p->at++;
        else if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
            p->at++;
        else
            break;
    }
}

static char next(const struct parser *p)
{
    return p->at < p->bytes ? p->text[p->at] : 0;
}

static size_t name_length(const struct parser *p)
{
    size_t n = 0;
    for (; p->at + n < p->bytes; n++) {
        const char c = p->text[p->at + n];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_'))
            break;
    }
    return n;
}

// Whether a new rule begins here.
static bool at_rule(struct parser *p)
{
    const size_t kept = p->at, n = name_length(p);
    p->at += n;
    skip(p);
    const bool yes = n > 0 && p->bytes - p->at >= 3 && !memcmp(p->text + p->at, "::=", 3);
    p->at = kept;
    return yes;
}

// The rule of the name that stands here, made at its first sight; the name is behind then.
static int32_t named(struct parser *p)
{
    const size_t n = name_length(p);
    const char *text = p->text + p->at;
    if (n > NAME_MOST)
        return fail(p, "names of at most 64 characters are expected");
    uint32_t at = (uint32_t)XXH3_64bits(text, n) % NAME_SLOTS;
    p->at += n;
    for (; p->slot[at]; at = (at + 1) % NAME_SLOTS) {
        const struct named *known = &p->names[p->slot[at] - 1];
        if (known->bytes == n && !memcmp(known->text, text, n))
            return p->slot[at] - 1;
    }
    const int32_t rule = form_rule(p->tree.form);
    if (rule < 0)
        return -1;
    if (p->count == p->room) {
        const int32_t room = p->room ? 2 * p->room : 64;
        struct named *grown = realloc(p->names, (size_t)room * sizeof *grown);
        if (!grown)
            return form_fail(p->tree.form, "no memory for a grammar");
        p->names = grown;
        p->room = room;
    }
    p->names[p->count] = (struct named){text, n, rule, -1};
    p->slot[at] = p->count + 1;
    return p->count++;
}

// A character of a text or a class.
static uint32_t character(struct parser *p)
{
    static const char from[] = "nrt\\\"'[]-^/.", to[] = "\n\r\t\\\"'[]-^/.";
    if (next(p) != '\\')
        return tree_point(&p->tree, p->text, p->bytes, &p->at);
    p->at++;
    const char c = next(p), *known = c ? strchr(from, c) : NULL;
    p->at++;
    if (known)
        return (uint8_t)to[known - from];
    if (c == 'x' || c == 'u' || c == 'U')
        return tree_hex(&p->tree, p->text, p->bytes, &p->at, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    fail(p, "after \\ one of n r t x u U or a sign is expected");
    return 0;
}

static int32_t text(struct parser *p, char quote)
{
    const int32_t all = tree_node(&p->tree, TREE_CAT);
    p->at++;
    while (p->at < p->bytes && next(p) != quote && !p->tree.form->failed) {
        const uint32_t c = character(p);
        tree_adopt(&p->tree, all, tree_points(&p->tree, c, c));
    }
    if (p->at++ >= p->bytes)
        return fail(p, "a text is not closed");
    return all;
}

static int32_t class(struct parser *p)
{
    const int32_t points = tree_node(&p->tree, TREE_POINTS);
    p->at++;
    const bool other = next(p) == '^';
    p->at += other;
    while (p->at < p->bytes && next(p) != ']' && !p->tree.form->failed) {
        const uint32_t low = character(p);
        uint32_t high = low;
        if (p->at + 1 < p->bytes && next(p) == '-' && p->text[p->at + 1] != ']') {
            p->at++;
            high = character(p);
        }
        if (high < low)
            return fail(p, "a range of a class must end above where it begins");
        tree_add_range(&p->tree, points, low, high);
    }
    if (p->at++ >= p->bytes)
        return fail(p, "] is missing");
    if (other)
        tree_invert(&p->tree, points);
    return points;
}

static int32_t atom(struct parser *p)
{
    const char c = next(p);
    if (c == '"' || c == '\'')
        return text(p, c);
    if (c == '[')
        return class(p);
    if (c == '.') {
        p->at++;
        return tree_points(&p->tree, 0, POINT_MOST);
    }
    if (c == '(') {
        p->at++;
        const int32_t inside = alternatives(p);
        skip(p);
        if (next(p) != ')')
            return fail(p, ") is missing");
        p->at++;
        return inside;
    }
    if (name_length(p) == 0)
        return fail(p, "a text, a class, a group or a name is expected");
    const int32_t name = named(p), call = tree_node(&p->tree, TREE_CALL);
    if (call >= 0 && name >= 0)
        p->tree.nodes[call].least = p->names[name].rule;
    return name < 0 ? -1 : call;
}

static int32_t sequence(struct parser *p)
{
    const int32_t all = tree_node(&p->tree, TREE_CAT);
    int32_t least, most;
    for (skip(p); p->at < p->bytes && next(p) != '|' && next(p) != ')' && !at_rule(p); skip(p)) {
        int32_t one = atom(p);
        if (one >= 0 && tree_sign(&p->tree, p->text, p->bytes, &p->at, &least, &most))
            one = tree_repeat(&p->tree, one, least, most);
        if (p->tree.form->failed)
            return -1;
        tree_adopt(&p->tree, all, one);
    }
    return all;
}

static int32_t alternatives(struct parser *p)
{
    if (++p->depth > FORM_DEPTH)
        return fail(p, "groups are nested too deeply (at most 64)");
    const int32_t all = tree_node(&p->tree, TREE_ALT);
    tree_adopt(&p->tree, all, sequence(p));
    while (next(p) == '|' && !p->tree.form->failed) {
        p->at++;
        tree_adopt(&p->tree, all, sequence(p));
    }
    p->depth--;
    return p->tree.form->failed ? -1 : all;
}

static void rules(struct parser *p)
{
    for (skip(p); p->at < p->bytes && !p->tree.form->failed; skip(p)) {
        if (!at_rule(p)) {
            fail(p, "name ::= ... is expected");
            return;
        }
        const int32_t name = named(p);
        skip(p);
        p->at += 3;
        const int32_t tree = alternatives(p);
        if (name < 0 || tree < 0)
            return;
        if (next(p) == ')') {
            fail(p, ") without (");
            return;
        }
        if (p->names[name].tree >= 0) {
            fail(p, "a rule is defined twice");
            return;
        }
        p->names[name].tree = tree;
    }
}

static void define(struct parser *p)
{
    struct form *f = p->tree.form;
    for (int32_t i = 0; i < p->count && !f->failed; i++) {
        const struct named *n = &p->names[i];
        if (n->tree < 0) {
            form_fail(f, "grammar: rule %.*s is not defined", (int)n->bytes, n->text);
            return;
        }
        form_define(f, n->rule, tree_build(&p->tree, n->tree, TREE_PLAIN, form_return(f)));
        if (n->bytes == 4 && !memcmp(n->text, "root", 4))
            f->root = n->rule;
    }
    if (f->root < 0)
        form_fail(f, "grammar: a rule root ::= ... is expected");
}

static const char *name_of(const void *user, int32_t rule)
{
    static _Thread_local char name[NAME_MOST + 1];
    const struct parser *p = user;
    for (int32_t i = 0; i < p->count; i++)
        if (p->names[i].rule == rule) {
            snprintf(name, sizeof name, "%.*s", (int)p->names[i].bytes, p->names[i].text);
            return name;
        }
    return NULL;
}

bool grammar_text(struct grammar **out, const struct grammar_vocabulary *v, const char *grammar, size_t bytes,
                  struct error *error)
{
    struct form form;
    struct parser p = {.text = grammar, .bytes = bytes, .slot = calloc(NAME_SLOTS, sizeof *p.slot)};
    *out = NULL;
    if (!p.slot || !form_open(&form, error)) {
        free(p.slot);
        return error_set(error, "no memory for a grammar");
    }
    tree_open(&p.tree, &form);
    rules(&p);
    if (!form.failed)
        define(&p);
    const bool good = form_finish(&form, name_of, &p);
    tree_close(&p.tree);
    free(p.names);
    free(p.slot);
    if (good)
        return grammar_make(out, v, &form, error);
    form_close(&form);
    return false;
}
