// SPDX-License-Identifier: Apache-2.0
//
// Finds one string in a text that comes in pieces. Invariant: `matched` is the length of the longest end of the text so far that
// begins the string, so it is what must be held back, and no more.

#ifndef REPLY_MATCHER_H
#define REPLY_MATCHER_H

#include "runtime/reply/bytes.h"

struct matcher {
    char *string;
    size_t length, matched;
    size_t *back; // the longest proper beginning of string[0..i] that is also its end
};

// The string is copied. false: there is no memory, and matcher_close is still needed. length > 0.
static inline bool matcher_open(struct matcher *m, const char *string, size_t length)
{
    *m = (struct matcher){.string = malloc(length), .length = length, .back = calloc(length, sizeof(size_t))};
    if (!m->string || !m->back)
        return false;
    memcpy(m->string, string, length);
    for (size_t i = 1, n = 0; i < length; i++) {
        while (n && string[i] != string[n])
            n = m->back[n - 1];
        n += string[i] == string[n];
        m->back[i] = n;
    }
    return true;
}

// Takes one byte; whether the string ends with it. After a match the matcher must be set back (matched = 0).
static inline bool matcher_take(struct matcher *m, char c)
{
    while (m->matched && m->string[m->matched] != c)
        m->matched = m->back[m->matched - 1];
    m->matched += m->string[m->matched] == c;
    return m->matched == m->length;
}

static inline void matcher_close(struct matcher *m)
{
    free(m->string);
    free(m->back);
}

#endif
