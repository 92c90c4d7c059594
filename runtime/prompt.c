// SPDX-License-Identifier: Apache-2.0
//
// A rendered conversation to token ids: cut at the added tokens that lie in trusted bytes, the rest encoded as plain text.
// Cutting there changes nothing, since the tokenizer itself cuts at added tokens before anything else.

#include "runtime/prompt.h"

#include <stdlib.h>
#include <string.h>

struct ids {
    int32_t *list;
    size_t count, room;
};

static bool ids_add(struct ids *ids, const int32_t *more, size_t count, struct error *error)
{
    if (count > ids->room - ids->count) {
        size_t room = 2 * ids->room + count + 64;
        int32_t *list = room > SIZE_MAX / sizeof *list ? NULL : realloc(ids->list, room * sizeof *list);
        if (!list)
            return error_set(error, "no memory for the prompt's tokens");
        ids->list = list;
        ids->room = room;
    }
    if (count)
        memcpy(ids->list + ids->count, more, count * sizeof *more);
    ids->count += count;
    return true;
}

// The longest added token whose text starts at `at` and ends by `end`, or NULL.
static const struct tokenizer_added *added_at(const struct tokenizer_tables *tables, const char *text, size_t at,
                                              size_t end)
{
    const struct tokenizer_added *best = NULL;
    for (uint32_t i = 0; i < tables->added_count; i++) {
        const struct tokenizer_added *t = &tables->added[i];
        if (t->bytes && t->bytes <= end - at && (!best || t->bytes > best->bytes) && text[at] == t->text[0] &&
            !memcmp(text + at, t->text, t->bytes))
            best = t;
    }
    return best;
}

// Encodes text[from, to) without added tokens.
static bool add_plain(struct tokenizer *tokenizer, const char *text, size_t from, size_t to, struct ids *ids,
                      struct error *error)
{
    int32_t *more = NULL;
    size_t count = 0;
    if (from == to)
        return true;
    if (!tokenizer_encode_text(tokenizer, text + from, to - from, &more, &count, error))
        return false;
    bool ok = ids_add(ids, more, count, error);
    free(more);
    return ok;
}

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f' || c == '\v';
}

// Takes the added token at `at`: the plain text before it, from *from on, then the token; *from moves behind it.
static bool take(struct tokenizer *tokenizer, const char *text, size_t bytes, size_t at,
                 const struct tokenizer_added *t, size_t *from, struct ids *ids, struct error *error)
{
    size_t before = at, after = at + t->bytes;
    while ((t->flags & TOKENIZER_LSTRIP) && before > *from && blank(text[before - 1]))
        before--;
    while ((t->flags & TOKENIZER_RSTRIP) && after < bytes && blank(text[after]))
        after++;
    if (!add_plain(tokenizer, text, *from, before, ids, error) || !ids_add(ids, &t->id, 1, error))
        return false;
    *from = after;
    return true;
}

bool prompt_encode(struct tokenizer *tokenizer, const struct tokenizer_tables *tables, const char *text, size_t bytes,
                   const struct chat_segment *segments, size_t segment_count, int32_t **ids, size_t *count,
                   struct error *error)
{
    struct ids found = {malloc(64 * sizeof(int32_t)), 0, 64};
    size_t from = 0;
    bool ok = found.list || error_set(error, "no memory for the prompt's tokens");
    for (size_t i = 0; ok && i < segment_count; i++) {
        size_t at = segments[i].begin > from ? segments[i].begin : from;
        while (ok && segments[i].trusted && at < segments[i].end) {
            const struct tokenizer_added *t = added_at(tables, text, at, segments[i].end);
            if (t)
                ok = take(tokenizer, text, bytes, at, t, &from, &found, error);
            at = t ? from : at + 1;
        }
    }
    ok = ok && add_plain(tokenizer, text, from, bytes, &found, error);
    if (!ok) {
        free(found.list);
        return false;
    }
    *ids = found.list;
    *count = found.count;
    return true;
}
