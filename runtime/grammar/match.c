// SPDX-License-Identifier: Apache-2.0
//
// Following a grammar: frames, closures, steps over bytes and tokens. See match.h.

#include "runtime/grammar/match.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

bool grammar_fail(struct grammar *g, enum grammar_fault fault, const char *why)
{
    if (!g->failed) {
        error_set(g->error, "%s", why);
        g->fault = fault;
    }
    g->failed = true;
    return false;
}

bool grammar_starve(struct grammar *g)
{
    return grammar_fail(g, GRAMMAR_STARVED, "no memory to follow a grammar");
}

enum grammar_fault grammar_fault(const struct grammar *g)
{
    return g->fault;
}

void grammar_call(struct grammar *g, struct error *error)
{
    g->error = error;
    g->failed = false;
    g->fault = GRAMMAR_FITS;
    g->work = WORK_MOST;
}

// ---- frames ----------------------------------------------------------------------------------------------------------------

bool frames_open(struct frames *s)
{
    *s = (struct frames){.room = 64, .count = 2};
    s->at = calloc((size_t)s->room, sizeof *s->at);
    s->slot = calloc(2 * (size_t)s->room, sizeof *s->slot);
    if (!s->at || !s->slot)
        return false;
    s->at[FRAME_ROOT] = s->at[FRAME_HOLE] = (struct frame){.parent = -1};
    return true;
}

void frames_close(struct frames *s)
{
    free(s->at);
    free(s->slot);
    *s = (struct frames){0};
}

static uint32_t frame_slot(const struct frames *s, int32_t node, int32_t least, int32_t most, int32_t parent)
{
    const int32_t key[4] = {node, least, most, parent};
    return (uint32_t)XXH3_64bits(key, sizeof key) & (uint32_t)(2 * s->room - 1);
}

static bool frames_grow(struct frames *s)
{
    const int32_t room = 2 * s->room;
    struct frame *at = realloc(s->at, (size_t)room * sizeof *at);
    if (!at)
        return false;
    s->at = at;
    int32_t *slot = calloc(2 * (size_t)room, sizeof *slot);
    if (!slot)
        return false;
    free(s->slot);
    s->slot = slot;
    s->room = room;
    for (int32_t i = 2; i < s->count; i++) {
        uint32_t to = frame_slot(s, at[i].node, at[i].least, at[i].most, at[i].parent);
        while (slot[to])
            to = (to + 1) & (uint32_t)(2 * room - 1);
        slot[to] = i + 1;
    }
    return true;
}

int32_t frames_find(struct grammar *g, struct frames *s, int32_t node, int32_t least, int32_t most, int32_t parent)
{
    uint32_t at = frame_slot(s, node, least, most, parent);
    for (; s->slot[at]; at = (at + 1) & (uint32_t)(2 * s->room - 1)) {
        const struct frame *f = &s->at[s->slot[at] - 1];
        if (f->node == node && f->least == least && f->most == most && f->parent == parent)
            return s->slot[at] - 1;
    }
    if (s->count == FRAMES_MOST) {
        grammar_fail(g, GRAMMAR_LARGE, "the grammar has too many places");
        return -1;
    }
    if (s->count == s->room) {
        if (!frames_grow(s)) {
            grammar_starve(g);
            return -1;
        }
        return frames_find(g, s, node, least, most, parent);
    }
    s->at[s->count] = (struct frame){node, least, most, parent, s->at[parent].depth + 1};
    s->slot[at] = s->count + 1;
    return s->count++;
}

// ---- closures --------------------------------------------------------------------------------------------------------------

void collect_begin(struct collect *c, struct grammar *g, struct frames *frames, struct grammar_config *out,
                   int32_t room)
{
    *c = (struct collect){g, frames, out, 0, room};
    g->seen_count = 0;
    if (++g->stamp == 0) { // stamps went round
        memset(g->seen, 0, SEEN_SLOTS * sizeof *g->seen);
        g->stamp = 1;
    }
}

// Whether (node, frame) is new in this closure.
static bool is_new(struct grammar *g, int32_t node, int32_t frame)
{
    uint32_t at = ((uint32_t)node * 0x9E3779B1u ^ (uint32_t)frame * 0x85EBCA77u) >> 7;
    for (at %= SEEN_SLOTS; g->seen[at].stamp == g->stamp; at = (at + 1) % SEEN_SLOTS)
        if (g->seen[at].node == node && g->seen[at].frame == frame)
            return false;
    if (g->seen_count++ >= SEEN_MOST || g->work-- <= 0)
        return grammar_fail(g, GRAMMAR_LARGE,
                            "the grammar is too ambiguous: one text can be read in too many ways; fewer alternatives "
                            "are needed, or such as part earlier");
    g->seen[at] = (struct seen){node, frame, g->stamp};
    return true;
}

static bool keep(struct collect *c, int32_t node, int32_t frame)
{
    if (c->count == c->room)
        return grammar_fail(c->grammar, GRAMMAR_LARGE,
                            "the grammar is too ambiguous: one text can be read in too many ways; fewer alternatives "
                            "are needed, or such as part earlier");
    c->out[c->count++] = (struct grammar_config){node, frame};
    return true;
}

// A call pushes where it goes on, unless nothing comes after it in its rule.
static int32_t frame_of_call(struct collect *c, const struct form_node *n, int32_t frame)
{
    const struct form *f = &c->grammar->form;
    const int32_t depth = c->frames->at[frame].depth;
    if (f->nodes[n->next].kind == NODE_RETURN)
        return frame;
    if (depth >= DEPTH_MOST || (depth >= DEPTH_NESTS && f->rules[n->arg].nests))
        return -1;
    return frames_find(c->grammar, c->frames, n->next, 0, 0, frame);
}

bool collect_add(struct collect *c, int32_t node, int32_t frame)
{
    // What is still to be looked at. A loop's head is its number beyond the nodes: it has its count in the frame.
    struct grammar_config stack[SEEN_MOST];
    struct grammar *g = c->grammar;
    const struct form *f = &g->form;
    int32_t depth = 0;
#define PUSH(n, at)                                                                                                    \
    do {                                                                                                               \
        const int32_t push_node = (n), push_frame = (at);                                                              \
        if (push_frame >= 0 && is_new(g, push_node, push_frame))                                                       \
            stack[depth++] = (struct grammar_config){push_node, push_frame};                                           \
    } while (0)
    PUSH(node, frame);
    while (depth > 0 && !g->failed) {
        const struct grammar_config at = stack[--depth];
        const struct frame top = c->frames->at[at.frame];
        if (at.node >= f->node_count) {
            const struct form_loop *l = &f->loops[at.node - f->node_count];
            if (top.most > 0)
                PUSH(l->body, at.frame);
            if (top.least == 0)
                PUSH(l->next, top.parent);
            continue;
        }
        const struct form_node *n = &f->nodes[at.node];
        switch (n->kind) {
        case NODE_SPLIT:
            PUSH(n->next, at.frame);
            PUSH(n->arg, at.frame);
            break;
        case NODE_CALL:
            PUSH(f->rules[n->arg].start, frame_of_call(c, n, at.frame));
            break;
        case NODE_RETURN:
            if (at.frame <= FRAME_HOLE)
                keep(c, at.frame == FRAME_ROOT ? CONFIG_END : CONFIG_EXIT, at.frame);
            else
                PUSH(top.node, top.parent);
            break;
        case NODE_LOOP: {
            const struct form_loop *l = &f->loops[n->arg];
            PUSH(f->node_count + l->shape, frames_find(g, c->frames, ~l->shape, l->least, l->most, at.frame));
            break;
        }
        case NODE_AGAIN: {
            const int32_t least = top.least > 0 ? top.least - 1 : 0,
                          most = top.most == FORM_ENDLESS ? top.most : top.most - 1;
            PUSH(f->node_count + n->arg, frames_find(g, c->frames, ~n->arg, least, most, top.parent));
            break;
        }
        default:
            keep(c, at.node, at.frame);
        }
    }
#undef PUSH
    return !g->failed;
}

bool collect_step(struct collect *c, const struct grammar_config *from, int32_t count, int byte)
{
    const struct form *f = &c->grammar->form;
    for (int32_t i = 0; i < count; i++) {
        if (from[i].node < 0 || f->nodes[from[i].node].kind != NODE_BYTES)
            continue;
        const struct form_node *n = &f->nodes[from[i].node];
        if (form_set_has(&f->sets[n->arg], byte) && !collect_add(c, n->next, from[i].frame))
            return false;
    }
    return !c->grammar->failed;
}

// ---- the public calls ------------------------------------------------------------------------------------------------------

bool grammar_begin(struct grammar *g, struct grammar_state *s, bool lead, struct error *error)
{
    struct collect c;
    grammar_call(g, error);
    collect_begin(&c, g, &g->frames, s->config, GRAMMAR_CONFIGS);
    const bool good = collect_add(&c, lead ? g->form.lead : g->form.rules[g->form.root].start, FRAME_ROOT);
    s->count = c.count;
    return good;
}

static bool advance(struct grammar *g, struct grammar_state *s, const char *bytes, size_t count)
{
    struct grammar_config from[GRAMMAR_CONFIGS];
    struct collect c;
    for (size_t i = 0; i < count; i++) {
        memcpy(from, s->config, (size_t)s->count * sizeof *from);
        const int32_t had = s->count;
        collect_begin(&c, g, &g->frames, s->config, GRAMMAR_CONFIGS);
        if (!collect_step(&c, from, had, (uint8_t)bytes[i]))
            return false;
        s->count = c.count;
        if (c.count == 0)
            return grammar_fail(g, GRAMMAR_DENIES, "the grammar does not allow this text");
    }
    return true;
}

bool grammar_advance_bytes(struct grammar *g, struct grammar_state *s, const char *bytes, size_t count,
                           struct error *error)
{
    grammar_call(g, error);
    return advance(g, s, bytes, count);
}

static bool is_end(const struct grammar_vocabulary *v, int32_t token)
{
    for (int32_t i = 0; i < v->end_count; i++)
        if (v->end[i] == token)
            return true;
    return false;
}

bool grammar_advance(struct grammar *g, struct grammar_state *s, int32_t token, struct error *error)
{
    const struct grammar_vocabulary *v = g->vocabulary;
    grammar_call(g, error);
    if (token < 0 || token >= v->vocabulary)
        return grammar_fail(g, GRAMMAR_DENIES, "the token is outside the vocabulary");
    if (is_end(v, token)) {
        const bool over = grammar_may_end(s);
        s->count = 0;
        return over || grammar_fail(g, GRAMMAR_DENIES, "the grammar does not allow the reply to end here");
    }
    if (!(v->outside[token / 8] >> (token % 8) & 1)) {
        const uint32_t at = v->tables->offset[token], end = v->tables->offset[token + 1];
        return advance(g, s, v->tables->bytes + at, end - at);
    }
    struct grammar_config from[GRAMMAR_CONFIGS];
    struct collect c;
    const int32_t had = s->count;
    memcpy(from, s->config, (size_t)had * sizeof *from);
    collect_begin(&c, g, &g->frames, s->config, GRAMMAR_CONFIGS);
    for (int32_t i = 0; i < had; i++) {
        const struct form_node *n = from[i].node >= 0 ? &g->form.nodes[from[i].node] : NULL;
        if (n && n->kind == NODE_TOKEN && n->arg == token && !collect_add(&c, n->next, from[i].frame))
            return false;
    }
    s->count = c.count;
    return c.count > 0 || grammar_fail(g, GRAMMAR_DENIES, "the grammar does not allow this token");
}

bool grammar_may_end(const struct grammar_state *s)
{
    for (int32_t i = 0; i < s->count; i++)
        if (s->config[i].node == CONFIG_END)
            return true;
    return false;
}

// ---- making and releasing ----------------------------------------------------------------------------------------------------

// Bytes that are in the same sets are one class.
static void make_classes(struct grammar *g)
{
    uint64_t sign[256] = {0};
    for (int32_t i = 0; i < g->form.set_count; i++) {
        const uint64_t mark = XXH3_64bits(&i, sizeof i);
        for (int b = 0; b < 256; b++)
            if (form_set_has(&g->form.sets[i], b))
                sign[b] = sign[b] * 0x9E3779B97F4A7C15u + mark;
    }
    for (int b = 0; b < 256; b++) {
        int class = 0;
        while (class < g->classes && sign[g->byte_of[class]] != sign[b])
            class ++;
        if (class == g->classes)
            g->byte_of[g->classes++] = (uint8_t)b;
        g->class_of[b] = (uint8_t) class;
        if (is_plain(b) && !memchr(g->plain_class, class, (size_t)g->plain_classes))
            g->plain_class[g->plain_classes++] = (uint8_t) class;
    }
}

// A place too large to begin with is refused here and not in the reply: with and without the line ends before it, up to
// the end of any first token.
static bool try_first(struct grammar *g, struct error *error)
{
    struct grammar_state *first = malloc(sizeof *first);
    uint32_t *words = calloc((size_t)(g->vocabulary->vocabulary + 31) / 32, sizeof *words);
    int32_t allowed;
    bool good = (first && words) || error_set(error, "no memory for a grammar");
    for (int lead = 0; good && lead < 2; lead++)
        good = grammar_begin(g, first, lead, error) && grammar_mask(g, first, words, &allowed, error);
    free(first);
    free(words);
    return good;
}

bool grammar_make(struct grammar **out, const struct grammar_vocabulary *v, struct form *form, struct error *error)
{
    struct grammar *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g) {
        form_close(form);
        return error_set(error, "no memory for a grammar");
    }
    atomic_init(&g->holders, 1);
    g->form = *form;
    g->vocabulary = v;
    make_classes(g);
    g->seen = calloc(SEEN_SLOTS, sizeof *g->seen);
    g->path = calloc((size_t)v->longest + 1, sizeof *g->path);
    if (!g->seen || !g->path || !frames_open(&g->frames) || !locals_open(g)) {
        grammar_release(g);
        return error_set(error, "no memory for a grammar");
    }
    if (!try_first(g, error)) {
        grammar_release(g);
        return false;
    }
    grammar_count(g);
    *out = g;
    return true;
}

struct grammar *grammar_hold(struct grammar *g)
{
    atomic_fetch_add(&g->holders, 1);
    return g;
}

void grammar_release(struct grammar *g)
{
    if (!g || atomic_fetch_sub(&g->holders, 1) > 1)
        return;
    form_close(&g->form);
    frames_close(&g->frames);
    locals_close(g);
    free(g->seen);
    free(g->path);
    free(g->exits);
    free(g);
}

int64_t grammar_bytes(const struct grammar *g)
{
    return atomic_load(&g->bytes);
}

void grammar_count(struct grammar *g)
{
    const struct form *f = &g->form;
    const struct locals *l = &g->locals;
    const int64_t bytes =
        (int64_t)sizeof *g + f->node_room * (int64_t)sizeof *f->nodes + f->set_room * (int64_t)sizeof *f->sets +
        f->loop_room * (int64_t)sizeof *f->loops + f->rule_room * (int64_t)sizeof *f->rules +
        (g->frames.room + l->frames.room) * (int64_t)(sizeof(struct frame) + 2 * sizeof(int32_t)) +
        l->room * (int64_t)(sizeof *l->at + (size_t)g->classes * sizeof *l->next) +
        l->config_room * (int64_t)sizeof *l->configs + l->mask_bytes + 2 * STATES_MOST * (int64_t)sizeof *l->slot;
    atomic_store(&g->bytes, bytes);
}
