// SPDX-License-Identifier: Apache-2.0
//
// Keys that are none of some others: a walk along the others' characters that ends as soon as a key differs.

#include "runtime/grammar/json.h"
#include <stdlib.h>
#include <string.h>

struct key {
    const char *text;
    size_t bytes;
};

struct others {
    struct json_form *json;
    int32_t rest; // any more characters, then the end
    int32_t end;
    int32_t wide; // a character beyond ASCII, then rest
};

static int by_text(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

// The UTF-8 character at `at`: how many bytes it has.
static uint32_t point_at(const struct key *k, size_t at, size_t *bytes)
{
    const uint8_t *p = (const uint8_t *)k->text + at;
    *bytes = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    uint32_t c = *bytes == 1 ? p[0] : p[0] & (0x7fu >> *bytes);
    for (size_t i = 1; i < *bytes; i++)
        c = c << 6 | (p[i] & 0x3f);
    return c;
}

// Characters of first..last that need no escape, then rest.
static int32_t others_between(struct others *o, uint32_t first, uint32_t last)
{
    struct form *f = o->json->form;
    struct form_set set = {{0}};
    bool any = false;
    for (uint32_t c = first < 0x20 ? 0x20 : first; c <= last && c < 0x80; c++)
        if (c != '"' && c != '\\') {
            form_set_add(&set, (int)c);
            any = true;
        }
    int32_t all = any ? form_set(f, &set, o->rest) : -1;
    if (first <= 0x80 && last == 0x10ffff)
        return form_either(f, all, o->wide);
    if (last >= 0x80)
        all = form_either(f, all, form_points(f, first < 0x80 ? 0x80 : first, last, o->rest));
    return all;
}

// Keys that share their characters up to `at`; sorted.
static int32_t walk(struct others *o, const struct key *keys, size_t count, size_t at, int depth)
{
    struct form *f = o->json->form;
    int32_t all = -1;
    uint32_t from = 0;
    if (depth > 256)
        return form_fail(f, "property names of at most 256 characters are expected beside additional properties");
    size_t i = 0;
    while (i < count && keys[i].bytes == at)
        i++;
    if (i == 0)
        all = o->end;
    for (size_t n; i < count && !f->failed; i += n) {
        size_t bytes, other;
        const uint32_t c = point_at(&keys[i], at, &bytes);
        for (n = 1; i + n < count && point_at(&keys[i + n], at, &other) == c;)
            n++;
        if (c > from)
            all = form_either(f, all, others_between(o, from, c - 1));
        const int32_t same = walk(o, keys + i, n, at + bytes, depth + 1);
        all = form_either(f, all, form_points(f, c, c, same));
        from = c + 1;
    }
    return form_either(f, all, others_between(o, from, 0x10ffff));
}

int32_t jform_other_key(struct json_form *j, const char *const *texts, size_t count, int32_t next)
{
    struct form *f = j->form;
    struct key *keys = calloc(count + 1, sizeof *keys);
    struct others o = {j, form_star(f), form_text(f, "\"", 1, next), 0};
    size_t kept = 0;
    if (!keys)
        return form_fail(f, "no memory for a grammar");
    for (size_t i = 0; i < count; i++) {
        bool escapes = false;
        for (const char *c = texts[i]; *c; c++)
            escapes = escapes || *c == '"' || *c == '\\' || (uint8_t)*c < 0x20;
        if (!escapes)
            keys[kept++] = (struct key){texts[i], strlen(texts[i])};
    }
    qsort(keys, kept, sizeof *keys, by_text);
    o.wide = form_points(f, 0x80, 0x10ffff, o.rest);
    struct form_set plain = {{0}};
    for (int b = 0x20; b < 0x80; b++)
        if (b != '"' && b != '\\')
            form_set_add(&plain, b);
    form_star_end(f, o.rest, form_either(f, form_set(f, &plain, o.rest), o.wide), o.end);
    const int32_t all = form_text(f, "\"", 1, walk(&o, keys, kept, 0, 0));
    free(keys);
    return all;
}
