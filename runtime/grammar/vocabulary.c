// SPDX-License-Identifier: Apache-2.0
//
// The tree of all tokens' bytes that masks are found with. Added tokens are not in it: no text leads to them.

#include "runtime/grammar/match.h"
#include <stdlib.h>
#include <string.h>

struct piece {
    const char *bytes;
    uint32_t count;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    const int order = memcmp(x->bytes, y->bytes, x->count < y->count ? x->count : y->count);
    if (order)
        return order;
    if (x->count != y->count)
        return x->count < y->count ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static uint32_t shared(const struct piece *a, const struct piece *b)
{
    uint32_t n = 0;
    while (n < a->count && n < b->count && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

// The tokens of the tree in the order of their bytes.
static struct piece *collect(struct grammar_vocabulary *v, uint32_t *count)
{
    const struct tokenizer_tables *t = v->tables;
    struct piece *pieces = calloc((size_t)t->vocabulary + 1, sizeof *pieces);
    *count = 0;
    for (int32_t id = 0; pieces && id < v->vocabulary; id++) {
        const uint32_t at = (uint32_t)id < t->vocabulary ? t->offset[id] : 0;
        const uint32_t bytes = (uint32_t)id < t->vocabulary ? t->offset[id + 1] - at : 0;
        if (bytes == 0 || (v->outside[id / 8] >> (id % 8) & 1)) {
            v->outside[id / 8] |= (uint8_t)(1 << (id % 8));
            continue;
        }
        pieces[(*count)++] = (struct piece){t->bytes + at, bytes, id};
        v->longest = (int32_t)bytes > v->longest ? (int32_t)bytes : v->longest;
    }
    if (pieces)
        qsort(pieces, *count, sizeof *pieces, by_bytes);
    return pieces;
}

static bool reserve(struct grammar_vocabulary *v, const struct piece *pieces, uint32_t count)
{
    uint64_t nodes = 1;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t same = i ? shared(&pieces[i - 1], &pieces[i]) : 0;
        nodes += pieces[i].count - same;
        v->twin_count += i > 0 && same == pieces[i].count;
    }
    v->nodes = (uint32_t)nodes;
    v->skip = malloc(nodes * sizeof *v->skip);
    v->token = malloc(nodes * sizeof *v->token);
    v->depth = malloc(nodes * sizeof *v->depth);
    v->byte = malloc(nodes * sizeof *v->byte);
    v->plain = malloc(nodes * sizeof *v->plain);
    v->twins = calloc((size_t)v->twin_count + 1, sizeof *v->twins);
    return v->skip && v->token && v->depth && v->byte && v->plain && v->twins;
}

// The path of the token before is still open: nodes below where the next one leaves it end there.
static bool plant(struct grammar_vocabulary *v, const struct piece *pieces, uint32_t count)
{
    uint32_t *open = calloc((size_t)v->longest + 1, sizeof *open), at = 1, depth = 0;
    int32_t twins = 0;
    if (!open)
        return false;
    v->token[0] = -1;
    v->depth[0] = v->byte[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct piece *p = &pieces[i];
        const uint32_t same = i ? shared(p - 1, p) : 0;
        if (i && same == p->count) {
            v->twins[twins][0] = v->token[open[depth]];
            v->twins[twins++][1] = p->id;
            continue;
        }
        for (; depth > same; depth--)
            v->skip[open[depth]] = at;
        for (; depth < p->count; at++) {
            v->byte[at] = (uint8_t)p->bytes[depth];
            v->depth[at] = (uint16_t)++depth;
            v->token[at] = depth == p->count ? p->id : -1;
            open[depth] = at;
        }
    }
    for (;; depth--) {
        v->skip[open[depth]] = at;
        if (depth == 0)
            break;
    }
    free(open);
    return true;
}

static void find_plain(struct grammar_vocabulary *v)
{
    for (uint32_t i = v->nodes; i-- > 0;) {
        int levels = 0;
        for (uint32_t child = i + 1; child < v->skip[i] && levels < PLAIN_NOT; child = v->skip[child]) {
            const int below =
                !is_plain(v->byte[child]) || v->plain[child] >= PLAIN_MOST ? PLAIN_NOT : v->plain[child] + 1;
            levels = below > levels ? below : levels;
        }
        v->plain[i] = (uint8_t)levels;
    }
}

bool grammar_vocabulary_open(struct grammar_vocabulary **out, const struct tokenizer_tables *tables, int32_t vocabulary,
                             const int32_t *end, int end_count, struct error *error)
{
    struct grammar_vocabulary *v = calloc(1, sizeof *v);
    uint32_t count = 0;
    *out = NULL;
    if (tables->vocabulary == 0) {
        free(v);
        return error_set(error, "this build has no tokenizer, so replies cannot follow a grammar");
    }
    if (!v)
        return error_set(error, "no memory for the tree of tokens");
    v->tables = tables;
    v->vocabulary = vocabulary;
    v->outside = calloc((size_t)vocabulary / 8 + 1, 1);
    v->end = calloc((size_t)end_count + 1, sizeof *v->end);
    bool good = v->outside && v->end;
    for (uint32_t i = 0; good && i < tables->added_count; i++)
        if (tables->added[i].id < vocabulary)
            v->outside[tables->added[i].id / 8] |= (uint8_t)(1 << (tables->added[i].id % 8));
    for (int i = 0; good && i < end_count; i++) {
        v->end[v->end_count++] = end[i];
        v->outside[end[i] / 8] |= (uint8_t)(1 << (end[i] % 8));
    }
    struct piece *pieces = good ? collect(v, &count) : NULL;
    good = pieces && reserve(v, pieces, count) && plant(v, pieces, count);
    free(pieces);
    if (good) {
        find_plain(v);
        *out = v;
        return true;
    }
    grammar_vocabulary_close(v);
    return error_set(error, "no memory for the tree of tokens");
}

void grammar_vocabulary_close(struct grammar_vocabulary *v)
{
    if (!v)
        return;
    free(v->skip);
    free(v->token);
    free(v->depth);
    free(v->byte);
    free(v->plain);
    free(v->twins);
    free(v->end);
    free(v->outside);
    free(v);
}

int32_t grammar_marker(const struct grammar_vocabulary *v, const char *text, size_t bytes)
{
    const struct tokenizer_tables *t = v->tables;
    for (uint32_t i = 0; i < t->added_count; i++)
        if (t->added[i].bytes == bytes && t->added[i].id < v->vocabulary && !memcmp(t->added[i].text, text, bytes))
            return t->added[i].id;
    return -1;
}

const char *grammar_token(const struct grammar_vocabulary *v, int32_t id, size_t *bytes)
{
    const struct tokenizer_tables *t = v->tables;
    if (id < 0 || (uint32_t)id >= t->vocabulary) {
        *bytes = 0;
        return "";
    }
    *bytes = t->offset[id + 1] - t->offset[id];
    return t->bytes + t->offset[id];
}

int64_t grammar_vocabulary_bytes(const struct grammar_vocabulary *v)
{
    return (int64_t)sizeof *v +
           (int64_t)v->nodes * (int64_t)(sizeof *v->skip + sizeof *v->token + sizeof *v->depth + 2) + v->vocabulary / 8;
}
