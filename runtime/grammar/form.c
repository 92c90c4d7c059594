// SPDX-License-Identifier: Apache-2.0
//
// Building a grammar's graph. See form.h.

#include "runtime/grammar/form.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { WORDS_DEPTH = 512 };

bool form_open(struct form *f, struct error *error)
{
    *f = (struct form){.error = error, .root = -1, .lead = -1};
    f->set_slot = calloc(2 * FORM_SETS, sizeof *f->set_slot);
    return f->set_slot ? true : error_set(error, "no memory for a grammar");
}

void form_close(struct form *f)
{
    free(f->nodes);
    free(f->sets);
    free(f->loops);
    free(f->rules);
    free(f->set_slot);
    form_marks_free(f);
    *f = (struct form){0};
}

int32_t form_fail(struct form *f, const char *format, ...)
{
    if (!f->failed && f->error) {
        f->error->code = 2;
        va_list list;
        va_start(list, format);
        vsnprintf(f->error->text, sizeof f->error->text, format, list);
        va_end(list);
    }
    f->failed = true;
    return -1;
}

// Room for one more element of an array; its number, or -1.
static int32_t more(struct form *f, void **array, int32_t *count, int32_t *room, int32_t most, size_t size)
{
    if (f->failed)
        return -1;
    if (*count == most)
        return form_fail(f, "the grammar is too large: at most %d nodes, %d rules and %d counted repeats are allowed",
                         FORM_NODES, FORM_RULES, FORM_LOOPS);
    if (*count == *room) {
        const int32_t wanted = *room ? 2 * *room : 64;
        void *grown = realloc(*array, (size_t)wanted * size);
        if (!grown)
            return form_fail(f, "no memory for a grammar");
        *array = grown;
        *room = wanted;
    }
    return (*count)++;
}

static int32_t node(struct form *f, int32_t kind, int32_t arg, int32_t next)
{
    const int32_t i = more(f, (void **)&f->nodes, &f->node_count, &f->node_room, FORM_NODES, sizeof *f->nodes);
    if (i >= 0)
        f->nodes[i] = (struct form_node){kind, arg, next};
    return i;
}

// The number of a set; equal sets have one number.
static int32_t number_of(struct form *f, const struct form_set *set)
{
    uint32_t at = (uint32_t)XXH3_64bits(set, sizeof *set) % (2 * FORM_SETS);
    for (; f->set_slot[at]; at = (at + 1) % (2 * FORM_SETS))
        if (!memcmp(&f->sets[f->set_slot[at] - 1], set, sizeof *set))
            return f->set_slot[at] - 1;
    const int32_t i = more(f, (void **)&f->sets, &f->set_count, &f->set_room, FORM_SETS, sizeof *f->sets);
    if (i < 0)
        return -1;
    f->sets[i] = *set;
    f->set_slot[at] = i + 1;
    return i;
}

int32_t form_set(struct form *f, const struct form_set *set, int32_t next)
{
    const int32_t number = number_of(f, set);
    return number < 0 ? -1 : node(f, NODE_BYTES, number, next);
}

int32_t form_range(struct form *f, int first, int last, int32_t next)
{
    struct form_set set = {{0}};
    for (int b = first; b <= last; b++)
        form_set_add(&set, b);
    return form_set(f, &set, next);
}

int32_t form_text(struct form *f, const char *text, size_t bytes, int32_t next)
{
    while (bytes-- > 0 && next >= 0)
        next = form_range(f, (uint8_t)text[bytes], (uint8_t)text[bytes], next);
    return next;
}

int32_t form_token(struct form *f, int32_t id, int32_t next)
{
    return node(f, NODE_TOKEN, id, next);
}

int32_t form_either(struct form *f, int32_t a, int32_t b)
{
    return a < 0 ? b : b < 0 ? a : node(f, NODE_SPLIT, b, a);
}

int32_t form_call(struct form *f, int32_t rule, int32_t next)
{
    return rule < 0 ? -1 : node(f, NODE_CALL, rule, next);
}

int32_t form_return(struct form *f)
{
    return node(f, NODE_RETURN, 0, -1);
}

int32_t form_loop(struct form *f, int32_t least, int32_t most, int32_t next, int32_t *again)
{
    const int32_t i = more(f, (void **)&f->loops, &f->loop_count, &f->loop_room, FORM_LOOPS, sizeof *f->loops);
    *again = -1;
    if (i < 0)
        return -1;
    f->loops[i] = (struct form_loop){least, most, -1, next, i};
    *again = node(f, NODE_AGAIN, i, -1);
    return i;
}

int32_t form_loop_end(struct form *f, int32_t loop, int32_t body)
{
    if (loop < 0 || body < 0 || f->failed)
        return -1;
    f->loops[loop].body = body;
    return node(f, NODE_LOOP, loop, -1);
}

int32_t form_star(struct form *f)
{
    return node(f, NODE_SPLIT, -1, -1);
}

int32_t form_star_end(struct form *f, int32_t star, int32_t body, int32_t next)
{
    if (star < 0 || body < 0 || next < 0 || f->failed)
        return -1;
    f->nodes[star].next = body;
    f->nodes[star].arg = next;
    return star;
}

int32_t form_never(struct form *f)
{
    return form_set(f, &(struct form_set){{0}}, form_return(f));
}

int32_t form_loop_like(struct form *f, int32_t loop, int32_t least, int32_t most)
{
    const int32_t i = more(f, (void **)&f->loops, &f->loop_count, &f->loop_room, FORM_LOOPS, sizeof *f->loops);
    if (i < 0 || loop < 0)
        return -1;
    f->loops[i] = (struct form_loop){least, most, f->loops[loop].body, f->loops[loop].next, loop};
    return node(f, NODE_LOOP, i, -1);
}

int32_t form_rule(struct form *f)
{
    const int32_t i = more(f, (void **)&f->rules, &f->rule_count, &f->rule_room, FORM_RULES, sizeof *f->rules);
    if (i >= 0)
        f->rules[i] = (struct form_rule){-1, 0};
    return i;
}

void form_define(struct form *f, int32_t rule, int32_t start)
{
    if (rule >= 0 && !f->failed)
        f->rules[rule].start = start;
}

// ---- words -----------------------------------------------------------------------------------------------------------------

static int by_text(const void *a, const void *b)
{
    const struct form_word *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

// Bytes from `at` on that all of the words share; the first and the last of a sorted range tell.
static size_t shared(const struct form_word *words, size_t count, size_t at)
{
    const struct form_word *a = &words[0], *z = &words[count - 1];
    size_t n = at;
    while (n < a->bytes && n < z->bytes && a->text[n] == z->text[n])
        n++;
    return n - at;
}

// Words of a sorted range, from byte `at` on, which they share up to there. As deep as words that begin one another.
static int32_t words_from(struct form *f, struct form_word *w, size_t count, size_t at, int depth)
{
    if (depth > WORDS_DEPTH)
        return form_fail(f, "words of a grammar may begin one another at most %d deep", WORDS_DEPTH);
    const size_t common = shared(w, count, at), to = at + common;
    int32_t first = -1;
    for (size_t i = 0, n; i < count; i += n) {
        for (n = 1; i + n < count && w[i].bytes > to && w[i + n].text[to] == w[i].text[to];)
            n++;
        if (w[i].bytes == to) { // ends here; equal words follow each other
            n = 1;
            first = form_either(f, first, w[i].next);
            continue;
        }
        int32_t tail =
            n == 1 ? form_text(f, w[i].text + to, w[i].bytes - to, w[i].next) : words_from(f, w + i, n, to, depth + 1);
        if (f->failed)
            return -1;
        first = form_either(f, first, tail);
    }
    return form_text(f, w[0].text + at, common, first);
}

int32_t form_words(struct form *f, struct form_word *words, size_t count)
{
    if (count == 0)
        return form_fail(f, "a choice needs at least one text");
    qsort(words, count, sizeof *words, by_text);
    return words_from(f, words, count, 0, 0);
}

// ---- code points -----------------------------------------------------------------------------------------------------------

static int encode(uint32_t c, uint8_t out[4])
{
    if (c < 0x80)
        return out[0] = (uint8_t)c, 1;
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (uint8_t)(0x80 | (c & 0x3f));
    out[0] = (uint8_t)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

// Two ends of one length whose bytes from some place on are 80..bf: byte ranges, one after the other.
static int32_t range_path(struct form *f, uint32_t first, uint32_t last, int32_t next)
{
    uint8_t a[4], z[4];
    const int n = encode(first, a);
    encode(last, z);
    for (int i = n - 1; i >= 0 && next >= 0; i--)
        next = form_range(f, a[i], z[i], next);
    return next;
}

// The end of the largest range from `first` on, up to last, that is one path.
static uint32_t path_end(uint32_t first, uint32_t last)
{
    static const uint32_t longest[] = {0x7f, 0x7ff, 0xffff, 0x10ffff};
    for (int i = 0; i < 4; i++)
        if (first <= longest[i]) {
            last = last < longest[i] ? last : longest[i];
            break;
        }
    if (first < 0x80)
        return last;
    for (int bits = 18; bits > 0; bits -= 6) {
        const uint32_t low = ((uint32_t)1 << bits) - 1;
        if ((first & ~low) == (last & ~low))
            continue; // the bytes above are the same
        if (first & low)
            last = first | low; // up to the end of this block
        else if ((last & low) != low)
            last = (last & ~low) - 1; // whole blocks
    }
    return last;
}

int32_t form_points(struct form *f, uint32_t first, uint32_t last, int32_t next)
{
    int32_t all = -1;
    while (first <= last && !f->failed) {
        if (first >= 0xd800 && first <= 0xdfff) {
            first = 0xe000;
            continue;
        }
        const uint32_t most = first < 0xd800 && last > 0xd7ff ? 0xd7ff : last, end = path_end(first, most);
        all = form_either(f, all, range_path(f, first, end, next));
        first = end + 1;
    }
    return all;
}
