// SPDX-License-Identifier: Apache-2.0
//
// Tokens to text to events; see answer.h.

#include "runtime/server/answer.h"
#include "runtime/model.h"

#include <stdlib.h>
#include <string.h>

bool string_add(struct string *text, const char *bytes, size_t count)
{
    if (text->room - text->count <= count) {
        size_t room = 2 * text->room + count + 64;
        char *longer = realloc(text->bytes, room);
        if (!longer)
            return false;
        text->bytes = longer;
        text->room = room;
    }
    if (count)
        memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
    text->bytes[text->count] = '\0';
    return true;
}

static bool keep_call(struct answer *a, const struct reply_event *event)
{
    if (event->call == a->call_room) {
        int room = 2 * a->call_room + 4;
        struct answer_call *calls = realloc(a->calls, (size_t)room * sizeof *calls);
        if (!calls)
            return false;
        a->calls = calls;
        a->call_room = room;
    }
    a->calls[event->call] = (struct answer_call){0};
    a->call_count = event->call + 1;
    return string_add(&a->calls[event->call].name, event->name, strlen(event->name));
}

static bool keep(struct answer *a, const struct reply_event *event)
{
    switch (event->kind) {
    case REPLY_REASONING:
        return string_add(&a->reasoning, event->text, event->bytes);
    case REPLY_CONTENT:
        return string_add(&a->content, event->text, event->bytes);
    case REPLY_CALL_BEGIN:
        return keep_call(a, event);
    case REPLY_CALL_ARGUMENTS:
        return string_add(&a->calls[event->call].arguments, event->text, event->bytes);
    case REPLY_CALL_END:
        return true;
    }
    return true;
}

static void take(void *user, const struct reply_event *event)
{
    struct answer *a = user;
    if (!keep(a, event))
        a->failed = true;
    a->sink(a->user, event);
}

bool answer_open(struct answer *a, const struct tokenizer *tokenizer, const struct answer_rules *rules,
                 void (*sink)(void *user, const struct reply_event *event), void *user, struct error *error)
{
    *a = (struct answer){.sink = sink, .user = user, .skip_special = !rules->keep_special};
    a->markers = rules->reply.reasoning_close || rules->reply.dialect != REPLY_PLAIN;
    tokenizer_stream_open(&a->stream, tokenizer, !rules->keep_special);
    sha256_begin(&a->hash);
    a->reply = reply_new(&rules->reply, error);
    a->open = a->reply != NULL;
    a->opener = rules->opener;
    return a->open;
}

void answer_begin(struct answer *a)
{
    if (a->opener)
        reply_feed(a->reply, a->opener, strlen(a->opener), take, a);
}

bool answer_is_end(int32_t id)
{
    for (int i = 0; i < model.end_count; i++)
        if (model.end_tokens[i] == id)
            return true;
    return false;
}

// Checkpoints differ in whether the markers of reasoning and calls are special tokens; as text they always count.
static bool is_marker(const struct answer *a, int32_t token)
{
    size_t bytes = 0;
    const char *text = a->markers ? tokenizer_token(a->stream.tokenizer, token, &bytes) : NULL;
    return text && reply_is_marker(text, bytes);
}

// Counts a token of so many bytes that came while the reply reasoned. With the one that ends the reasoning, or the reply, those that are made of
// nothing but its closing marker, and of what follows, are taken off again.
static void count_reasoning(struct answer *a, size_t bytes)
{
    if (a->uncounted)
        return;
    a->reasoning_tokens++;
    memmove(a->recent + 1, a->recent, ANSWER_RECENT - 1);
    a->recent[0] = (uint8_t)(bytes < UINT8_MAX ? bytes : UINT8_MAX);
    if (answer_reasons(a) && !a->stopped)
        return;
    size_t left = reply_behind_reasoning(a->reply);
    for (int i = 0; i < ANSWER_RECENT && left > 0 && a->recent[i] <= left && a->reasoning_tokens > 0; i++) {
        left -= a->recent[i];
        a->reasoning_tokens--;
    }
}

bool answer_feed(struct answer *a, int32_t token, struct error *error)
{
    const char *piece;
    size_t bytes;
    const uint8_t id[4] = {(uint8_t)token, (uint8_t)(token >> 8), (uint8_t)(token >> 16), (uint8_t)(token >> 24)};
    sha256_add(&a->hash, id, sizeof id);
    a->tokens++;
    a->ended = answer_is_end(token);
    if (a->ended)
        return true;
    a->stream.skip_special = a->skip_special && !is_marker(a, token);
    if (!tokenizer_stream_push(&a->stream, token, &piece, &bytes, error))
        return false;
    const bool reasoned = answer_reasons(a);
    bool more = !bytes || reply_feed(a->reply, piece, bytes, take, a);
    a->stopped = !more;
    if (reasoned)
        count_reasoning(a, bytes);
    if (a->failed)
        error_set(error, "no memory for the reply's text");
    return more && !a->failed;
}

bool answer_reasons(const struct answer *a)
{
    return reply_reasons(a->reply);
}

bool answer_blank(const struct answer *a, int32_t token)
{
    size_t bytes = 0;
    const char *text = tokenizer_token(a->stream.tokenizer, token, &bytes);
    for (size_t i = 0; text && i < bytes; i++)
        if (!strchr(" \n\t\r", text[i]))
            return false;
    return text && !answer_is_end(token);
}

void answer_end(struct answer *a)
{
    reply_end(a->reply, take, a); // a character that the limit cut is left out, streamed or whole
}

void answer_close(struct answer *a)
{
    if (a->open)
        reply_free(a->reply);
    free(a->content.bytes);
    free(a->reasoning.bytes);
    for (int i = 0; i < a->call_count; i++) {
        free(a->calls[i].name.bytes);
        free(a->calls[i].arguments.bytes);
    }
    free(a->calls);
    *a = (struct answer){0};
}
