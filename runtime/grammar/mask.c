// SPDX-License-Identifier: Apache-2.0
//
// Masks: which tokens may come next. A place is cut into local places, one a base (the frame of the innermost call).
// Each local place's list over the whole tree is made once; from the tree's nodes at which it is left, the walk goes on
// below its base. Invariant: a token is marked exactly when following its bytes leaves some configuration.

#include "runtime/grammar/match.h"
#include <stdlib.h>
#include <string.h>

enum { FEW_TOKENS = 2048, SPREAD_MOST = 400 }; // calls that one token may leave

// A list of nodes of the tree, on the grammar's stack of lists.
struct list {
    int32_t from, to, calls; // calls that were left before
};

struct based {
    int32_t base;
    struct grammar_config local;
};

// ---- cutting a place into local ones ---------------------------------------------------------------------------------------

// The frame of the innermost call, and the stack above it over a hole; rounds that no token can count out are made
// alike.
static int32_t above(struct grammar *g, int32_t frame, int32_t *base)
{
    int32_t chain[DEPTH_MOST + 2], depth = 0, local = FRAME_HOLE;
    const struct frame *at = g->frames.at;
    for (; frame > FRAME_HOLE && at[frame].node < 0 && depth < DEPTH_MOST; frame = at[frame].parent)
        chain[depth++] = frame;
    *base = frame;
    while (depth-- > 0 && local >= 0) {
        const struct frame *f = &at[chain[depth]];
        const int32_t longest = g->vocabulary->longest, least = f->least > longest ? longest + 1 : f->least;
        local = frames_find(g, &g->locals.frames, f->node, least, f->most > longest ? FORM_ENDLESS : f->most, local);
    }
    return local;
}

static int by_base(const void *a, const void *b)
{
    const struct based *x = a, *y = b;
    return (x->base > y->base) - (x->base < y->base);
}

// ---- walking ---------------------------------------------------------------------------------------------------------------

static bool push_exit(struct grammar *g, uint32_t node)
{
    if (g->exit_count == g->exit_room) {
        const int32_t room = g->exit_room ? 2 * g->exit_room : 1024;
        uint32_t *grown = realloc(g->exits, (size_t)room * sizeof *grown);
        if (!grown)
            return grammar_starve(g);
        g->exits = grown;
        g->exit_room = room;
    }
    g->exits[g->exit_count++] = node;
    return true;
}

static inline void mark(uint32_t *words, int32_t id)
{
    words[id / 32] |= (uint32_t)1 << (id % 32);
}

// Marks all tokens below a node; returns the node behind them.
static uint32_t mark_below(const struct grammar_vocabulary *v, uint32_t node, uint32_t *words)
{
    const uint32_t end = v->skip[node];
    for (uint32_t i = node + 1; i < end; i++)
        if (v->token[i] >= 0)
            mark(words, v->token[i]);
    return end;
}

// Marks the tokens below one node of the tree, read from a local place; ends at which it is left go on the stack.
static bool walk(struct grammar *g, int32_t local, uint32_t node, uint32_t *words)
{
    const struct grammar_vocabulary *v = g->vocabulary;
    const uint32_t end = v->skip[node];
    int32_t *path = g->path;
    path[v->depth[node]] = local;
    for (uint32_t i = node + 1; i < end;) {
        const int class = g->class_of[v->byte[i]];
        const int32_t from = path[v->depth[i] - 1];
        int32_t to = g->locals.next[from * (int64_t)g->classes + class];
        if (to < 0 && (to = locals_step(g, from, class)) < 0)
            return false;
        if (to == 0) {
            i = v->skip[i];
            continue;
        }
        if (v->token[i] >= 0)
            mark(words, v->token[i]);
        const bool exits = g->locals.at[to].exits, alone = g->locals.at[to].alone;
        if (exits && v->skip[i] > i + 1 && !push_exit(g, i))
            return false;
        path[v->depth[i]] = to;
        if (alone || (v->plain[i] != PLAIN_NOT && v->skip[i] > i + 1 && locals_plain(g, to) >= v->plain[i]))
            i = alone ? v->skip[i] : mark_below(v, i, words);
        else
            i++;
    }
    return !g->failed;
}

static int32_t count_bits(const uint32_t *words, int32_t n)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        count += __builtin_popcount(words[i]);
    return count;
}

// The list of a local place over the whole tree, made at its first use.
static const struct local_mask *mask_of(struct grammar *g, int32_t local)
{
    if (g->locals.at[local].mask)
        return g->locals.at[local].mask;
    const int32_t words = (g->vocabulary->vocabulary + 31) / 32, from = g->exit_count;
    struct local_mask *m = calloc(1, sizeof *m);
    uint32_t *all = calloc((size_t)words, sizeof *all);
    if (m && all && walk(g, local, 0, all)) {
        m->count = count_bits(all, words);
        m->exit_count = g->exit_count - from;
        m->exits = malloc(((size_t)m->exit_count + 1) * sizeof *m->exits);
        if (m->count <= FEW_TOKENS)
            m->ids = malloc(((size_t)m->count + 1) * sizeof *m->ids);
        else
            m->words = all;
    }
    if (!m || !m->exits || (!m->ids && !m->words)) {
        free(m ? m->exits : NULL);
        free(m);
        free(all);
        grammar_starve(g);
        return NULL;
    }
    for (int32_t i = 0; i < m->exit_count; i++)
        m->exits[i] = g->exits[from + i];
    for (int32_t w = 0, n = 0; m->ids && w < words; w++)
        for (uint32_t bits = all[w]; bits; bits &= bits - 1)
            m->ids[n++] = 32 * w + __builtin_ctz(bits);
    if (m->ids)
        free(all);
    g->exit_count = from;
    g->locals.mask_bytes += (int64_t)sizeof *m + 4 * (int64_t)(m->exit_count + (m->ids ? m->count : words));
    g->locals.at[local].mask = m;
    return m;
}

// The list at the tree's root; ends go on the stack.
static bool whole(struct grammar *g, int32_t local, uint32_t *words)
{
    const struct local_mask *m = mask_of(g, local);
    const int32_t n = (g->vocabulary->vocabulary + 31) / 32;
    if (!m)
        return false;
    for (int32_t i = 0; m->ids && i < m->count; i++)
        mark(words, m->ids[i]);
    for (int32_t i = 0; m->words && i < n; i++)
        words[i] |= m->words[i];
    for (int32_t i = 0; i < m->exit_count; i++)
        if (!push_exit(g, m->exits[i]))
            return false;
    return true;
}

static bool spread(struct grammar *g, const struct grammar_config *configs, int32_t count, const struct list *list,
                   uint32_t *words);

// Goes on below a base, from the nodes at which what is above it was left.
static bool spread_below(struct grammar *g, int32_t base, const struct list *left, uint32_t *words)
{
    const struct frame frame = g->frames.at[base];
    struct grammar_config *below;
    struct collect c;
    if (left->to == left->from || base == FRAME_ROOT)
        return true;
    if (left->calls > SPREAD_MOST)
        return grammar_fail(g, GRAMMAR_LARGE, "the grammar is too deep to follow");
    below = malloc(GRAMMAR_CONFIGS * sizeof *below);
    if (!below)
        return grammar_starve(g);
    collect_begin(&c, g, &g->frames, below, GRAMMAR_CONFIGS);
    const bool good = collect_add(&c, frame.node, frame.parent) && spread(g, below, c.count, left, words);
    free(below);
    return good;
}

// One base: its part of the place is `local`.
static bool spread_local(struct grammar *g, int32_t base, struct grammar_config *local, int32_t count,
                         const struct list *list, uint32_t *words)
{
    const int32_t place = locals_find(g, local, count), from = g->exit_count;
    if (place < 0 || (!list && !whole(g, place, words)))
        return false;
    for (int32_t k = list ? list->from : 0; list && k < list->to; k++)
        if (!walk(g, place, g->exits[k], words))
            return false;
    const struct list left = {from, g->exit_count, list ? list->calls + 1 : 1};
    const bool good = spread_below(g, base, &left, words);
    g->exit_count = from;
    return good;
}

// The part of each base, together in `based`; tokens that are named are marked. -1: failed.
static int32_t cut(struct grammar *g, const struct grammar_config *configs, int32_t count, const struct list *list,
                   uint32_t *words, struct based *based)
{
    int32_t n = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct form_node *at = configs[i].node < 0 ? NULL : &g->form.nodes[configs[i].node];
        if (at && at->kind == NODE_TOKEN && !list)
            mark(words, at->arg);
        if (!at || at->kind != NODE_BYTES)
            continue;
        based[n].local = (struct grammar_config){configs[i].node, above(g, configs[i].frame, &based[n].base)};
        if (based[n++].local.frame < 0)
            return -1;
    }
    qsort(based, (size_t)n, sizeof *based, by_base);
    return n;
}

// Marks what a place allows below the nodes of a list (NULL: the root).
static bool spread(struct grammar *g, const struct grammar_config *configs, int32_t count, const struct list *list,
                   uint32_t *words)
{
    struct based *based = malloc(((size_t)count + 1) * sizeof *based);
    struct grammar_config *local = malloc(((size_t)count + 1) * sizeof *local);
    if (!based || !local)
        grammar_starve(g);
    const int32_t n = g->failed ? -1 : cut(g, configs, count, list, words, based);
    bool good = n >= 0;
    for (int32_t i = 0, same; good && i < n; i += same) {
        for (same = 0; i + same < n && based[i + same].base == based[i].base; same++)
            local[same] = based[i + same].local;
        good = spread_local(g, based[i].base, local, same, list, words);
    }
    free(based);
    free(local);
    return good;
}

bool grammar_mask(struct grammar *g, const struct grammar_state *s, uint32_t *words, int32_t *count,
                  struct error *error)
{
    const struct grammar_vocabulary *v = g->vocabulary;
    const int32_t n = (v->vocabulary + 31) / 32;
    grammar_call(g, error);
    g->exit_count = 0;
    memset(words, 0, (size_t)n * sizeof *words);
    *count = 0;
    locals_trim(g);
    if (!spread(g, s->config, s->count, NULL, words))
        return false;
    for (int32_t i = 0; i < v->twin_count; i++)
        if (words[v->twins[i][0] / 32] >> (v->twins[i][0] % 32) & 1)
            mark(words, v->twins[i][1]);
    for (int32_t i = 0; i < v->end_count && grammar_may_end(s); i++)
        mark(words, v->end[i]);
    *count = count_bits(words, n);
    grammar_count(g);
    return true;
}

// ---- guesses ---------------------------------------------------------------------------------------------------------------

// The one byte that a place allows, or -1.
static int only_byte(const struct grammar *g, const struct grammar_state *s)
{
    int byte = -1;
    for (int32_t i = 0; i < s->count; i++) {
        const struct form_node *n = s->config[i].node >= 0 ? &g->form.nodes[s->config[i].node] : NULL;
        if (!n || n->kind != NODE_BYTES)
            return -1;
        const struct form_set *set = &g->form.sets[n->arg];
        for (int w = 0; w < 4; w++) {
            if (!set->bits[w])
                continue;
            const int b = 64 * w + __builtin_ctzll(set->bits[w]);
            if (set->bits[w] & (set->bits[w] - 1) || (byte >= 0 && byte != b))
                return -1;
            byte = b;
        }
    }
    return byte;
}

// The longest token that the bytes begin with, or -1.
static int32_t longest(const struct grammar_vocabulary *v, const uint8_t *bytes, int count, int *used)
{
    int32_t token = -1;
    uint32_t node = 0;
    for (int i = 0; i < count; i++) {
        uint32_t child = node + 1;
        while (child < v->skip[node] && v->byte[child] != bytes[i])
            child = v->skip[child];
        if (child >= v->skip[node])
            break;
        node = child;
        if (v->token[node] >= 0) {
            token = v->token[node];
            *used = i + 1;
        }
    }
    return token;
}

int grammar_guess(struct grammar *g, const struct grammar_state *state, int32_t *tokens, int room)
{
    enum { MOST = 128 };
    struct grammar_state s;
    uint8_t bytes[MOST];
    int count = 0, found = 0, used = 0, byte;
    const struct form_node *first =
        state->count == 1 && state->config[0].node >= 0 ? &g->form.nodes[state->config[0].node] : NULL;
    if (room < 1)
        return 0;
    if (first && first->kind == NODE_TOKEN) {
        tokens[0] = first->arg;
        return 1;
    }
    grammar_copy(&s, state);
    while (count < MOST && (byte = only_byte(g, &s)) >= 0) {
        bytes[count++] = (uint8_t)byte;
        if (!grammar_advance_bytes(g, &s, (const char *)&bytes[count - 1], 1, NULL))
            return 0;
    }
    for (int at = 0; at < count && found < room; at += used) {
        tokens[found] = longest(g->vocabulary, bytes + at, count - at, &used);
        if (tokens[found++] < 0)
            return found - 1;
    }
    return found;
}
