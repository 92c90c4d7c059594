// SPDX-License-Identifier: Apache-2.0
//
// The end of building: what can never end is cut off, and what a matcher could not follow is refused. Everything here
// takes time in proportion to the size of the form.

#include "runtime/grammar/form.h"
#include <stdlib.h>
#include <string.h>

// For each node, which nodes its answer depends on, turned around: edges from what was found out to who may learn from
// it.
struct edges {
    int32_t *first; // [nodes + 1] into from
    int32_t *from;
    int32_t count;
};

struct check {
    struct form *form;
    struct edges edges;
    int32_t *queue;
    uint8_t *ends, *empty; // a node can reach its end; and can without a byte
};

// The nodes that the answer of node i depends on.
static int dependencies(const struct form *f, int32_t i, int32_t out[3])
{
    const struct form_node *n = &f->nodes[i];
    int count = 0;
    switch (n->kind) {
    case NODE_BYTES:
    case NODE_TOKEN:
        out[count++] = n->next;
        break;
    case NODE_SPLIT:
        out[count++] = n->next;
        out[count++] = n->arg;
        break;
    case NODE_CALL:
        if (f->rules[n->arg].start >= 0)
            out[count++] = f->rules[n->arg].start;
        out[count++] = n->next;
        break;
    case NODE_LOOP:
        out[count++] = f->loops[n->arg].body;
        out[count++] = f->loops[n->arg].next;
        break;
    default:
        break;
    }
    return count;
}

static bool make_edges(struct check *c)
{
    const struct form *f = c->form;
    struct edges *e = &c->edges;
    int32_t on[3];
    e->first = calloc((size_t)f->node_count + 2, sizeof *e->first);
    if (!e->first)
        return false;
    for (int32_t i = 0; i < f->node_count; i++)
        for (int k = dependencies(f, i, on); k-- > 0;)
            e->first[on[k] + 2]++;
    for (int32_t i = 0; i <= f->node_count; i++)
        e->first[i + 1] += e->first[i];
    e->count = e->first[f->node_count + 1];
    e->from = calloc((size_t)e->count + 1, sizeof *e->from);
    for (int32_t i = 0; e->from && i < f->node_count; i++)
        for (int k = dependencies(f, i, on); k-- > 0;)
            e->from[e->first[on[k] + 1]++] = i;
    return e->from != NULL;
}

// Whether node i has the answer, given what is known. bytes: a byte may be on the way.
static bool answer(const struct form *f, int32_t i, const uint8_t *known, bool bytes)
{
    const struct form_node *n = &f->nodes[i];
    const struct form_loop *l = n->kind == NODE_LOOP ? &f->loops[n->arg] : NULL;
    static const struct form_set none;
    switch (n->kind) {
    case NODE_BYTES:
        return bytes && known[n->next] && memcmp(&f->sets[n->arg], &none, sizeof none) != 0;
    case NODE_TOKEN:
        return bytes && known[n->next];
    case NODE_SPLIT:
        return known[n->next] || known[n->arg];
    case NODE_CALL:
        return f->rules[n->arg].start >= 0 && known[f->rules[n->arg].start] && known[n->next];
    case NODE_LOOP:
        return known[l->next] && (l->least == 0 || known[l->body]);
    default:
        return true;
    }
}

static uint8_t *spread(struct check *c, bool bytes)
{
    const struct form *f = c->form;
    uint8_t *known = calloc((size_t)f->node_count + 1, 1);
    int32_t waiting = 0;
    for (int32_t i = 0; known && i < f->node_count; i++)
        if (f->nodes[i].kind == NODE_RETURN || f->nodes[i].kind == NODE_AGAIN ||
            (f->nodes[i].kind == NODE_LOOP && answer(f, i, known, bytes))) {
            known[i] = 1;
            c->queue[waiting++] = i;
        }
    while (known && waiting > 0) {
        const int32_t i = c->queue[--waiting];
        for (int32_t k = c->edges.first[i]; k < c->edges.first[i + 1]; k++) {
            const int32_t from = c->edges.from[k];
            if (!known[from] && answer(f, from, known, bytes)) {
                known[from] = 1;
                c->queue[waiting++] = from;
            }
        }
    }
    return known;
}

// Ways that never end are cut: a split keeps its other way, a loop whose body never ends has no rounds.
static void prune(struct check *c)
{
    struct form *f = c->form;
    for (int32_t i = 0; i < f->node_count; i++) {
        struct form_node *n = &f->nodes[i];
        if (n->kind == NODE_SPLIT && !c->ends[n->next])
            n->next = n->arg;
        else if (n->kind == NODE_SPLIT && !c->ends[n->arg])
            n->arg = n->next;
    }
    for (int32_t i = 0; i < f->loop_count; i++)
        if (f->loops[i].body >= 0 && !c->ends[f->loops[i].body])
            f->loops[i].most = 0;
}

// Fails with a message that begins with a place, if one is known.
static bool fault(struct form *f, const char *place, const char *text)
{
    form_fail(f, "%s%s%s", place, *place ? ": " : "", text);
    return false;
}

static bool check_loops(struct check *c)
{
    struct form *f = c->form;
    for (int32_t i = 0; i < f->loop_count; i++) {
        struct form_loop *l = &f->loops[i];
        if (l->body < 0 || !c->empty[l->body])
            continue;
        l->least = 0;
        if (l->most != FORM_ENDLESS && l->most > 1)
            return fault(f, form_node_place(f, l->body),
                         "what is repeated a counted number of times must not be able to be empty");
    }
    return true;
}

// ---- left recursion ----------------------------------------------------------------------------------------------------------

// The rules that rule r may begin with, before any byte, found on demand: an explicit stack of nodes that are to be
// looked at, with marks that say in whose turn a node was seen. Nodes belong to one rule, so this is linear in all.
struct left {
    int32_t *stack, depth;
    int32_t *seen;  // [nodes] rule + 1
    int32_t *first; // [rules + 1] into calls
    int32_t *calls; // rules called before a byte
    int32_t count, room;
};

static bool add_call(struct left *l, int32_t rule)
{
    if (l->count == l->room) {
        const int32_t room = l->room ? 2 * l->room : 256;
        int32_t *grown = realloc(l->calls, (size_t)room * sizeof *grown);
        if (!grown)
            return false;
        l->calls = grown;
        l->room = room;
    }
    l->calls[l->count++] = rule;
    return true;
}

static void look_at(struct left *l, int32_t node, int32_t rule)
{
    if (node >= 0 && l->seen[node] != rule + 1) {
        l->seen[node] = rule + 1;
        l->stack[l->depth++] = node;
    }
}

static bool calls_of(const struct check *c, struct left *l, int32_t rule)
{
    const struct form *f = c->form;
    look_at(l, f->rules[rule].start, rule);
    while (l->depth > 0) {
        const struct form_node *n = &f->nodes[l->stack[--l->depth]];
        const struct form_loop *loop = n->kind == NODE_LOOP || n->kind == NODE_AGAIN ? &f->loops[n->arg] : NULL;
        if (n->kind == NODE_SPLIT) {
            look_at(l, n->next, rule);
            look_at(l, n->arg, rule);
        } else if (loop) {
            if (n->kind == NODE_LOOP && loop->most > 0)
                look_at(l, loop->body, rule);
            if (n->kind == NODE_AGAIN || loop->least == 0 || c->empty[loop->body])
                look_at(l, loop->next, rule);
        } else if (n->kind == NODE_CALL) {
            const int32_t start = f->rules[n->arg].start;
            if (start < 0)
                continue;
            if (!add_call(l, n->arg))
                return false;
            if (c->empty[start])
                look_at(l, n->next, rule);
        }
    }
    return true;
}

// A rule on a cycle of first calls, or -1.
static int32_t find_cycle(const struct form *f, const struct left *l, int32_t *state, int32_t *path)
{
    for (int32_t r = 0; r < f->rule_count; r++) {
        int32_t depth = 0;
        if (state[r])
            continue;
        path[depth++] = r;
        state[r] = l->first[r] + 1; // 1 + the next call to follow; negative: done
        while (depth > 0) {
            const int32_t at = path[depth - 1];
            if (state[at] - 1 == l->first[at + 1]) {
                state[at] = -1;
                depth--;
                continue;
            }
            const int32_t called = l->calls[state[at]++ - 1];
            if (state[called] > 0)
                return called;
            if (state[called] == 0) {
                state[called] = l->first[called] + 1;
                path[depth++] = called;
            }
        }
    }
    return -1;
}

static bool check_left(struct check *c, const char *(*name_of)(const void *, int32_t), const void *user)
{
    struct form *f = c->form;
    const size_t nodes = (size_t)f->node_count + 1, rules = (size_t)f->rule_count + 1;
    struct left l = {.stack = calloc(nodes, sizeof(int32_t)),
                     .seen = calloc(nodes, sizeof(int32_t)),
                     .first = calloc(rules, sizeof(int32_t))};
    int32_t *state = calloc(rules, sizeof *state), *path = calloc(rules, sizeof *path), found = -1;
    bool memory = l.stack && l.seen && l.first && state && path;
    for (int32_t r = 0; memory && r < f->rule_count; r++) {
        l.first[r] = l.count;
        memory = calls_of(c, &l, r);
        l.first[r + 1] = l.count;
    }
    if (memory)
        found = find_cycle(f, &l, state, path);
    free(l.stack);
    free(l.seen);
    free(l.first);
    free(l.calls);
    free(state);
    free(path);
    if (!memory)
        return form_fail(f, "no memory for a grammar"), false;
    if (found < 0)
        return true;
    const char *name = name_of ? name_of(user, found) : NULL, *place = form_start_place(f, f->rules[found].start);
    if (*place)
        return fault(f, place, "$ref leads to itself again with nothing in between");
    form_fail(f, "rule %s begins with itself (left recursion): write it as a repeat", name ? name : "of the grammar");
    return false;
}

static bool check_all(struct check *c, const char *(*name_of)(const void *, int32_t), const void *user)
{
    struct form *f = c->form;
    const int32_t start = f->root >= 0 ? f->rules[f->root].start : -1;
    c->queue = calloc((size_t)f->node_count + 1, sizeof *c->queue);
    if (!c->queue || !make_edges(c) || !(c->ends = spread(c, true)) || !(c->empty = spread(c, false)))
        return form_fail(f, "no memory for a grammar"), false;
    if (start < 0 || !c->ends[start])
        return fault(f, form_never_place(f, c->ends), "no text meets what is asked for");
    prune(c);
    return check_loops(c) && check_left(c, name_of, user);
}

bool form_finish(struct form *f, const char *(*name_of)(const void *, int32_t), const void *user)
{
    if (f->root >= 0 && !f->failed) {
        const int32_t whole = form_call(f, f->root, form_return(f)), line = form_range(f, '\n', '\n', whole);
        f->lead = form_either(f, form_range(f, '\n', '\n', form_either(f, whole, line)), whole);
    }
    if (f->failed)
        return false;
    struct check c = {.form = f};
    const bool good = check_all(&c, name_of, user);
    free(c.queue);
    free(c.edges.first);
    free(c.edges.from);
    free(c.ends);
    free(c.empty);
    free(f->set_slot);
    form_marks_free(f);
    f->set_slot = NULL;
    return good;
}
