// SPDX-License-Identifier: Apache-2.0
//
// Expressions to forms. See tree.h.

#include "runtime/grammar/tree.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tree_open(struct tree *t, struct form *form)
{
    *t = (struct tree){.form = form};
}

void tree_close(struct tree *t)
{
    free(t->nodes);
    free(t->ranges);
    *t = (struct tree){0};
}

// Doubles an array that is full. False: the form has failed.
static bool room(struct tree *t, void **array, int32_t count, int32_t *have, int32_t most, size_t size)
{
    if (t->form->failed)
        return false;
    if (count == most)
        return form_fail(t->form, "the expression is too long"), false;
    if (count < *have)
        return true;
    const int32_t wanted = *have ? 2 * *have : 64;
    void *grown = realloc(*array, (size_t)wanted * size);
    if (!grown)
        return form_fail(t->form, "no memory for a grammar"), false;
    *array = grown;
    *have = wanted;
    return true;
}

int32_t tree_node(struct tree *t, int32_t kind)
{
    if (!room(t, (void **)&t->nodes, t->node_count, &t->node_room, TREE_NODES, sizeof *t->nodes))
        return -1;
    t->nodes[t->node_count] = (struct tree_node){kind, -1, -1, 0, 0};
    return t->node_count++;
}

void tree_adopt(struct tree *t, int32_t parent, int32_t child)
{
    if (parent < 0 || child < 0)
        return;
    t->nodes[child].sibling = t->nodes[parent].child;
    t->nodes[parent].child = child;
}

void tree_add_range(struct tree *t, int32_t points, uint32_t first, uint32_t last)
{
    if (points < 0 || !room(t, (void **)&t->ranges, t->range_count, &t->range_room, TREE_RANGES, sizeof *t->ranges))
        return;
    struct tree_node *n = &t->nodes[points];
    if (n->most == 0)
        n->least = t->range_count;
    t->ranges[t->range_count++] = (struct tree_range){first, last};
    n->most++;
}

int32_t tree_points(struct tree *t, uint32_t first, uint32_t last)
{
    const int32_t n = tree_node(t, TREE_POINTS);
    tree_add_range(t, n, first, last);
    return t->form->failed ? -1 : n;
}

int32_t tree_repeat(struct tree *t, int32_t child, int32_t least, int32_t most)
{
    const int32_t n = tree_node(t, TREE_REPEAT);
    if (n < 0 || child < 0)
        return -1;
    t->nodes[n].least = least;
    t->nodes[n].most = most;
    tree_adopt(t, n, child);
    return n;
}

static int by_first(const void *a, const void *b)
{
    const struct tree_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

// Sorts the ranges of a node and joins those that touch, so that no code point is in two.
static void tidy(struct tree *t, struct tree_node *n)
{
    struct tree_range *r = t->ranges + n->least;
    int32_t kept = 0;
    if (n->most == 0)
        return;
    qsort(r, (size_t)n->most, sizeof *r, by_first);
    for (int32_t i = 1; i < n->most; i++) {
        if (r[i].first > r[kept].last && r[i].first - r[kept].last > 1)
            r[++kept] = r[i];
        else if (r[i].last > r[kept].last)
            r[kept].last = r[i].last;
    }
    n->most = kept + 1;
}

void tree_invert(struct tree *t, int32_t points)
{
    if (points < 0 || t->form->failed)
        return;
    tidy(t, &t->nodes[points]);
    const int32_t from = t->nodes[points].least, count = t->nodes[points].most;
    uint32_t at = 0;
    t->nodes[points].most = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct tree_range r = t->ranges[from + i];
        if (r.first > at)
            tree_add_range(t, points, at, r.first - 1);
        at = r.last + 1;
    }
    if (at <= POINT_MOST)
        tree_add_range(t, points, at, POINT_MOST);
}

// ---- building --------------------------------------------------------------------------------------------------------------

// A code point that a JSON string writes with a backslash.
static int32_t escaped(struct form *f, uint32_t c, int32_t next)
{
    static const char letters[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    char text[8];
    for (size_t i = 0; i + 1 < sizeof letters; i += 2)
        if ((uint8_t)letters[i] == c) {
            snprintf(text, sizeof text, "\\%c", letters[i + 1]);
            return form_text(f, text, 2, next);
        }
    snprintf(text, sizeof text, "\\u%04x", c & 0xff);
    return form_text(f, text, 6, next);
}

static int32_t points(struct form *f, const struct tree_range *r, enum tree_text text, int32_t next)
{
    uint32_t first = r->first;
    int32_t all = -1;
    if (text != TREE_JSON)
        return form_points(f, first, r->last, next);
    for (first = first ? first : 1; first <= r->last && first < 0x20; first++)
        all = form_either(f, all, escaped(f, first, next));
    while (first <= r->last && !f->failed) {
        uint32_t last = r->last;
        if (first == '"' || first == '\\') {
            all = form_either(f, all, escaped(f, first++, next));
            continue;
        }
        last = first < '"' && last >= '"' ? '"' - 1 : first < '\\' && last >= '\\' ? '\\' - 1 : last;
        all = form_either(f, all, form_points(f, first, last, next));
        first = last + 1;
    }
    return all;
}

// Single bytes of the ranges are one set; the rest are paths.
static int32_t build_points(struct tree *t, struct tree_node *n, enum tree_text text, int32_t next)
{
    struct form_set set = {{0}};
    int32_t all = -1;
    bool single = false;
    tidy(t, n);
    for (int32_t i = 0; i < n->most; i++) {
        struct tree_range r = t->ranges[n->least + i];
        const uint32_t from = text == TREE_JSON && r.first < 0x20 ? 0x20 : r.first;
        for (uint32_t c = from; c <= r.last && c < 0x80; c++)
            if (text == TREE_BETWEEN && (c == '<' || !c)) {
                continue;
            } else if (text != TREE_JSON || (c != '"' && c != '\\')) {
                form_set_add(&set, (int)c);
                single = true;
            } else {
                all = form_either(t->form, all, escaped(t->form, c, next));
            }
        if (r.first < from) {
            const struct tree_range low = {r.first, r.last < 0x1f ? r.last : 0x1f};
            all = form_either(t->form, all, points(t->form, &low, text, next));
        }
        if (r.last >= 0x80) {
            r.first = r.first < 0x80 ? 0x80 : r.first;
            all = form_either(t->form, all, points(t->form, &r, text, next));
        }
    }
    if (single)
        all = form_either(t->form, form_set(t->form, &set, next), all);
    return all >= 0 ? all : form_never(t->form);
}

static int32_t build_repeat(struct tree *t, const struct tree_node n, enum tree_text text, int32_t next)
{
    struct form *f = t->form;
    int32_t again;
    if (n.most == 0)
        return next;
    if (n.most == 1 && n.least == 1)
        return tree_build(t, n.child, text, next);
    if (n.most == 1)
        return form_either(f, tree_build(t, n.child, text, next), next);
    if (n.most == FORM_ENDLESS && n.least < 2) {
        const int32_t star = form_star(f), body = tree_build(t, n.child, text, star);
        const int32_t all = form_star_end(f, star, body, next);
        return n.least == 0 || all < 0 ? all : body;
    }
    const int32_t loop = form_loop(f, n.least, n.most, next, &again);
    return form_loop_end(f, loop, tree_build(t, n.child, text, again));
}

int32_t tree_build(struct tree *t, int32_t node, enum tree_text text, int32_t next)
{
    if (node < 0 || next < 0 || t->form->failed)
        return -1;
    struct tree_node *n = &t->nodes[node];
    int32_t all = -1;
    switch (n->kind) {
    case TREE_CAT:
        for (int32_t child = n->child; child >= 0 && next >= 0; child = t->nodes[child].sibling)
            next = tree_build(t, child, text, next);
        return next;
    case TREE_ALT:
        for (int32_t child = n->child; child >= 0 && !t->form->failed; child = t->nodes[child].sibling)
            all = form_either(t->form, tree_build(t, child, text, next), all);
        return all;
    case TREE_POINTS:
        return build_points(t, n, text, next);
    case TREE_REPEAT:
        return build_repeat(t, *n, text, next);
    case TREE_CALL:
        return form_call(t->form, n->least, next);
    default:
        return form_fail(t->form, "^ and $ are understood only at the ends of the whole expression");
    }
}

// ---- lengths ---------------------------------------------------------------------------------------------------------------

static int64_t at_most(int64_t x)
{
    return x < FORM_ENDLESS ? x : FORM_ENDLESS;
}

void tree_lengths(const struct tree *t, int32_t node, int64_t *least, int64_t *most)
{
    const struct tree_node *n = &t->nodes[node];
    int64_t low, high;
    *least = *most = n->kind == TREE_POINTS;
    if (n->kind == TREE_CALL)
        *most = FORM_ENDLESS;
    for (int32_t child = n->child; child >= 0; child = t->nodes[child].sibling) {
        tree_lengths(t, child, &low, &high);
        if (n->kind == TREE_ALT) {
            *least = child == n->child || low < *least ? low : *least;
            *most = high > *most ? high : *most;
        } else if (n->kind == TREE_CAT) {
            *least = at_most(*least + low);
            *most = at_most(*most + high);
        } else if (n->kind == TREE_REPEAT) {
            *least = at_most(low * n->least);
            *most = high == 0 || n->most == 0 ? 0 : n->most == FORM_ENDLESS ? FORM_ENDLESS : at_most(high * n->most);
        }
    }
}

// ---- what both texts have in common --------------------------------------------------------------------------------------------

static int32_t number(struct tree *t, const char *text, size_t bytes, size_t *at)
{
    int64_t value = -1;
    for (; *at < bytes && text[*at] >= '0' && text[*at] <= '9' && value <= TREE_COUNT; ++*at)
        value = (value < 0 ? 0 : value * 10) + (text[*at] - '0');
    if (value > TREE_COUNT)
        form_fail(t->form, "byte %zu: a repeat count of at most %d is expected", *at, TREE_COUNT);
    return value > TREE_COUNT ? -1 : (int32_t)value;
}

bool tree_sign(struct tree *t, const char *text, size_t bytes, size_t *at, int32_t *least, int32_t *most)
{
    const char sign = *at < bytes ? text[*at] : 0;
    if (sign == '*' || sign == '+' || sign == '?') {
        *least = sign == '+';
        *most = sign == '?' ? 1 : FORM_ENDLESS;
        ++*at;
        return true;
    }
    if (sign != '{')
        return false;
    ++*at;
    *least = *most = number(t, text, bytes, at);
    if (*at < bytes && text[*at] == ',') {
        ++*at;
        *most = number(t, text, bytes, at);
        *most = *most < 0 ? FORM_ENDLESS : *most;
    }
    if (!t->form->failed && (*at >= bytes || text[*at] != '}' || *least < 0 || *least > *most))
        form_fail(t->form, "byte %zu: a repeat {m}, {m,} or {m,n} with m <= n is expected", *at);
    ++*at;
    return !t->form->failed;
}

uint32_t tree_point(struct tree *t, const char *text, size_t bytes, size_t *at)
{
    const uint8_t *p = (const uint8_t *)text + *at;
    const size_t left = bytes - *at;
    const int more = p[0] < 0x80                   ? 0
                     : p[0] >= 0xc2 && p[0] < 0xe0 ? 1
                     : p[0] >= 0xe0 && p[0] < 0xf0 ? 2
                     : p[0] >= 0xf0 && p[0] < 0xf5 ? 3
                                                   : -1;
    uint32_t c = more == 0 ? p[0] : p[0] & (0x3fu >> more);
    bool good = more >= 0 && left > (size_t)more;
    for (int i = 1; good && i <= more; i++) {
        good = (p[i] & 0xc0) == 0x80;
        c = c << 6 | (p[i] & 0x3f);
    }
    static const uint32_t smallest[] = {0, 0x80, 0x800, 0x10000};
    if (!good || c < smallest[more] || c > POINT_MOST || (c >= 0xd800 && c <= 0xdfff)) {
        form_fail(t->form, "byte %zu: well-formed UTF-8 is expected", *at);
        ++*at;
        return 0;
    }
    *at += 1 + (size_t)more;
    return c;
}

uint32_t tree_hex(struct tree *t, const char *text, size_t bytes, size_t *at, int digits)
{
    uint32_t value = 0;
    for (int i = 0; i < digits; i++, ++*at) {
        const char c = *at < bytes ? text[*at] : 0;
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) {
            form_fail(t->form, "byte %zu: %d hexadecimal digits are expected", *at, digits);
            return 0;
        }
        value = value << 4 | (uint32_t)digit;
    }
    if (value > POINT_MOST || (value >= 0xd800 && value <= 0xdfff))
        form_fail(t->form, "byte %zu: %x is no character", *at, value);
    return value;
}
