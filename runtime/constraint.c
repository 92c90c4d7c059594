// SPDX-License-Identifier: Apache-2.0
//
// Grammars of streams. See constraint.h.

#include "runtime/constraint.h"
#include "runtime/grammar/match.h"
#include <stdlib.h>
#include <string.h>

#ifdef CONSTRAINT_TEST
int constraint_test_first_row;
#endif

static const char dead_end[] = "no token of this model continues the reply as the grammar asks";

struct constraint *constraint_new(const struct stream_options *o, int32_t vocabulary, int32_t rows, struct error *error)
{
    struct constraint *c = calloc(1, sizeof *c);
    const size_t bytes = o->grammar_after ? strlen(o->grammar_after) : 0;
    if (!c) {
        error_set(error, "no memory for a stream's grammar");
        return NULL;
    }
    if (bytes >= CONSTRAINT_AFTER || o->grammar->vocabulary->vocabulary != vocabulary) {
        free(c);
        error_set(error, "a grammar of this model that begins after less than %d bytes is expected", CONSTRAINT_AFTER);
        return NULL;
    }
    c->grammar = grammar_hold(o->grammar);
    c->rows = rows;
    c->words = mask_words(vocabulary);
    c->after_bytes = bytes;
    memcpy(c->after, o->grammar_after ? o->grammar_after : "", bytes);
    c->marker = bytes ? grammar_marker(c->grammar->vocabulary, c->after, bytes) : -1;
    c->read = o->grammar_read;
    return c;
}

void constraint_free(struct constraint *c)
{
    if (!c)
        return;
    grammar_release(c->grammar);
    free(c);
}

// A call of the grammar that matters has failed, or found a dead end; returns false.
static bool fail(struct constraint *c)
{
    const enum grammar_fault fault = grammar_fault(c->grammar);
    c->stuck = fault == GRAMMAR_LARGE || fault == GRAMMAR_FITS;
    return false;
}

static bool start(struct constraint *c, bool lead, struct error *error)
{
    c->active = true;
    return grammar_begin(c->grammar, &c->state, lead, error) || fail(c);
}

bool constraint_begin(struct constraint *c, const int32_t *tokens, int count, struct error *error)
{
    const int read = c->read < count ? c->read : count;
    c->active = c->over = false;
    c->tail_bytes = 0;
    if (c->after_bytes == 0 && !start(c, false, error))
        return false;
    return constraint_read(c, tokens + count - read, read, error);
}

// The text to begin after, where it is no token of its own: the bytes behind it are the grammar's.
static bool look_for(struct constraint *c, int32_t token, struct error *error)
{
    size_t bytes;
    const char *text = grammar_token(c->grammar->vocabulary, token, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        if (c->tail_bytes == sizeof c->tail) {
            memmove(c->tail, c->tail + CONSTRAINT_AFTER, CONSTRAINT_AFTER);
            c->tail_bytes = CONSTRAINT_AFTER;
        }
        c->tail[c->tail_bytes++] = text[i];
        if (c->tail_bytes >= c->after_bytes &&
            !memcmp(c->tail + c->tail_bytes - c->after_bytes, c->after, c->after_bytes))
            return start(c, true, error) &&
                   (grammar_advance_bytes(c->grammar, &c->state, text + i + 1, bytes - i - 1, error) || fail(c));
    }
    return true;
}

bool constraint_read(struct constraint *c, const int32_t *tokens, int count, struct error *error)
{
    for (int i = 0; i < count && !c->over; i++) {
        if (c->active) {
            if (!grammar_advance(c->grammar, &c->state, tokens[i], error))
                return fail(c);
            c->over = c->state.count == 0; // an end token
        } else if (c->marker >= 0 ? tokens[i] == c->marker && !start(c, true, error) : !look_for(c, tokens[i], error)) {
            return false;
        }
    }
    return true;
}

int constraint_drafts(struct constraint *c, const int32_t *copy, int copies, int32_t *drafts, int room)
{
    struct grammar *g = c->grammar;
    int32_t guess[MAX_WINDOW];
    int count = 0, guessed = 0, taken = 0;
    grammar_copy(&c->path, &c->state);
    while (count < room) {
        struct grammar_state before;
        grammar_copy(&before, &c->path);
        if (count < copies && grammar_advance(g, &c->path, copy[count], NULL) && c->path.count > 0) {
            drafts[count] = copy[count];
            count++;
            continue;
        }
        grammar_copy(&c->path, &before);
        if (copies > count)
            copies = count; // what is copied no longer goes with the reply
        guessed = grammar_guess(g, &c->path, guess, room - count < MAX_WINDOW ? room - count : MAX_WINDOW);
        for (taken = 0; taken < guessed && grammar_advance(g, &c->path, guess[taken], NULL); taken++)
            drafts[count++] = guess[taken];
        if (taken < guessed || guessed == 0)
            break;
    }
    return count;
}

bool constraint_mask(struct constraint *c, const struct mirror *masks, const int32_t *drafts, int *count,
                     struct error *error)
{
    uint32_t *rows = masks->host;
    struct error cause;
    int32_t allowed = 0;
    int row = 0;
    grammar_copy(&c->path, &c->state);
    for (; row <= *count && row < c->rows; row++) {
        if (row > 0 && !grammar_advance(c->grammar, &c->path, drafts[row - 1], &cause))
            break;
        if (!grammar_mask(c->grammar, &c->path, rows + (int64_t)row * c->words, &allowed, row ? &cause : error))
            break;
        if (allowed == 0) {
            error_set(row ? &cause : error, "%s", dead_end);
            break;
        }
    }
    if (row == 0)
        return fail(c);
#ifdef CONSTRAINT_TEST
    for (int i = 1; constraint_test_first_row && i < row; i++)
        memcpy(rows + (int64_t)i * c->words, rows, (size_t)c->words * sizeof *rows);
#endif
    *count = row - 1;
    mirror_push(masks, 0, (int64_t)row * c->words * (int64_t)sizeof *rows);
    return true;
}
