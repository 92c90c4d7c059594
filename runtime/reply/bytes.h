// SPDX-License-Identifier: Apache-2.0
//
// Bytes that grow. Invariant: after a failed growth `failed` stays set, and what is there stays readable.

#ifndef REPLY_BYTES_H
#define REPLY_BYTES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Zero-initialised it is empty.
struct bytes {
    char *data;
    size_t size, room;
    bool failed;
};

// Makes room for `more` bytes. false: there is no memory.
static inline bool bytes_reserve(struct bytes *b, size_t more)
{
    if (more <= b->room - b->size)
        return !b->failed;
    size_t room = 2 * b->room + 64;
    if (__builtin_add_overflow(room, more, &room))
        room = SIZE_MAX;
    char *data = room < SIZE_MAX ? realloc(b->data, room) : NULL;
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->room = room;
    return !b->failed;
}

static inline void bytes_add(struct bytes *b, const char *text, size_t count)
{
    if (!count || !bytes_reserve(b, count))
        return;
    memcpy(b->data + b->size, text, count);
    b->size += count;
}

static inline void bytes_text(struct bytes *b, const char *text)
{
    bytes_add(b, text, strlen(text));
}

// Drops the first `count` bytes.
static inline void bytes_drop(struct bytes *b, size_t count)
{
    if (count && count < b->size)
        memmove(b->data, b->data + count, b->size - count);
    b->size -= count;
}

static inline void bytes_free(struct bytes *b)
{
    free(b->data);
    *b = (struct bytes){0};
}

#endif
