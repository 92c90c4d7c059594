// SPDX-License-Identifier: Apache-2.0
//
// Copy drafts. See copy_draft.h.

#include "runtime/copy_draft.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

bool copy_index_open(struct copy_index *index)
{
    *index = (struct copy_index){.place = calloc(COPY_SLOTS, sizeof *index->place)};
    return index->place != NULL;
}

void copy_index_close(struct copy_index *index)
{
    free(index->place);
    *index = (struct copy_index){0};
}

void copy_index_reset(struct copy_index *index)
{
    if (index->indexed > 0)
        memset(index->place, 0, COPY_SLOTS * sizeof *index->place);
    index->indexed = 0;
}

// The slot of the COPY_MATCH tokens that end before `end`.
static int32_t *slot_of(const struct copy_index *index, const int32_t *tokens, int32_t end)
{
    return &index->place[XXH3_64bits(tokens + end - COPY_MATCH, COPY_MATCH * sizeof *tokens) % COPY_SLOTS];
}

int32_t copy_index_find(struct copy_index *index, const int32_t *tokens, int32_t count)
{
    int32_t end = index->indexed > COPY_MATCH ? index->indexed : COPY_MATCH;
    for (; end < count; end++)
        *slot_of(index, tokens, end) = end;
    index->indexed = count > index->indexed ? count : index->indexed;
    if (count < COPY_MATCH)
        return 0;
    int32_t place = *slot_of(index, tokens, count);
    bool same = place > 0 && place < count &&
                !memcmp(tokens + place - COPY_MATCH, tokens + count - COPY_MATCH, COPY_MATCH * sizeof *tokens);
    return same ? place : 0;
}
