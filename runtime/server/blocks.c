// SPDX-License-Identifier: Apache-2.0
//
// Events to blocks; see blocks.h.

#include "runtime/server/blocks.h"
#include "runtime/json_exact.h"

#include <stdlib.h>
#include <string.h>

static enum block_kind kind_of(const struct reply_event *event)
{
    return event->kind == REPLY_REASONING ? BLOCK_REASONING : event->kind == REPLY_CONTENT ? BLOCK_TEXT : BLOCK_CALL;
}

int blocks_end(struct blocks *b)
{
    if (!b->count || !b->list[b->count - 1].open)
        return -1;
    b->list[b->count - 1].open = false;
    return b->count - 1;
}

static bool begin(struct blocks *b, const struct reply_event *event)
{
    if (b->count == b->room) {
        int room = 2 * b->room + 4;
        struct block *list = realloc(b->list, (size_t)room * sizeof *list);
        if (!list)
            return false;
        b->list = list;
        b->room = room;
    }
    struct block *block = &b->list[b->count++];
    *block = (struct block){.kind = kind_of(event), .call = event->call, .open = true};
    return event->kind != REPLY_CALL_BEGIN || string_add(&block->name, event->name, strlen(event->name));
}

struct block_change blocks_take(struct blocks *b, const struct reply_event *event)
{
    struct block_change change = {-1, -1, -1};
    const struct block *last = b->count ? &b->list[b->count - 1] : NULL;
    const bool fits = last && last->open && last->kind == kind_of(event) && event->kind != REPLY_CALL_BEGIN;
    if (event->kind == REPLY_CALL_END) {
        change.ended = blocks_end(b);
        return change;
    }
    if (!fits) {
        change.ended = blocks_end(b);
        if (!begin(b, event)) {
            b->failed = true;
            return change;
        }
        change.began = b->count - 1;
    }
    if (event->kind == REPLY_CALL_BEGIN)
        return change;
    change.added = b->count - 1;
    b->failed = b->failed || !string_add(&b->list[b->count - 1].text, event->text, event->bytes);
    return change;
}

void blocks_free(struct blocks *b)
{
    for (int i = 0; i < b->count; i++) {
        free(b->list[i].name.bytes);
        free(b->list[i].text.bytes);
    }
    free(b->list);
    *b = (struct blocks){0};
}

json_t *string_json(const struct string *text)
{
    return text->count ? json_stringn(text->bytes, text->count) : json_string("");
}

json_t *call_arguments(const struct block *block)
{
    const struct string *text = &block->text;
    json_t *object =
        text->count ? json_loadb(text->bytes, text->count, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL) : NULL;
    json_t *same = json_is_object(object) ? json_verbatim(text->bytes, text->count) : json_object();
    json_decref(object);
    return same;
}
