// SPDX-License-Identifier: Apache-2.0
//
// Decoding, whole and streamed. Both run the same left-to-right repair over the bytes of the tokens, so their results are equal.

#include "runtime/tokenizer.h"
#include "runtime/tokenizer_text.h"
#include <stdlib.h>
#include <string.h>

// The bytes of one id; bytes 0 where it is skipped. NULL with the error set when it is not in the vocabulary.
static const char *piece_of(const struct tokenizer *t, int32_t id, bool skip_special, size_t *bytes,
                            struct error *error)
{
    const char *text = tokenizer_token(t, id, bytes);
    if (!text)
        error_set(error, "tokenizer: id %d is not in the vocabulary of %d", id, tokenizer_vocabulary(t));
    else if (skip_special && tokenizer_is_special(t, id))
        *bytes = 0;
    return text;
}

bool tokenizer_decode(struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special, char **text,
                      size_t *bytes, struct error *error)
{
    size_t total = 0, piece, used;
    for (size_t i = 0; i < count; i++) {
        if (!piece_of(t, ids[i], skip_special, &piece, error))
            return false;
        total += piece;
    }
    char *raw = malloc(total + 1);
    if (!raw)
        return error_set(error, "tokenizer: out of memory");
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const char *from = piece_of(t, ids[i], skip_special, &piece, error);
        memcpy(raw + at, from, piece);
        at += piece;
    }
    if (!utf8_valid(raw, total)) {
        size_t repaired = utf8_repair(raw, total, true, NULL, &used);
        char *good = malloc(repaired + 1);
        if (good)
            utf8_repair(raw, total, true, good, &used);
        free(raw);
        if (!good)
            return error_set(error, "tokenizer: out of memory");
        raw = good;
        total = repaired;
    }
    raw[total] = 0;
    *text = raw;
    *bytes = total;
    return true;
}

void tokenizer_stream_open(struct tokenizer_stream *stream, const struct tokenizer *tokenizer, bool skip_special)
{
    stream->tokenizer = tokenizer;
    stream->skip_special = skip_special;
    stream->held_bytes = 0;
    stream->piece[0] = 0;
}

bool tokenizer_stream_push(struct tokenizer_stream *stream, int32_t id, const char **text, size_t *bytes,
                           struct error *error)
{
    char raw[TOKENIZER_TOKEN_BYTES + sizeof stream->held];
    size_t piece, used;
    const char *from = piece_of(stream->tokenizer, id, stream->skip_special, &piece, error);
    if (!from)
        return false;
    memcpy(raw, stream->held, stream->held_bytes);
    memcpy(raw + stream->held_bytes, from, piece);
    piece += stream->held_bytes;
    *bytes = utf8_repair(raw, piece, false, stream->piece, &used);
    stream->piece[*bytes] = 0;
    *text = stream->piece;
    stream->held_bytes = (uint8_t)(piece - used);
    memcpy(stream->held, raw + used, piece - used);
    return true;
}

void tokenizer_stream_flush(struct tokenizer_stream *stream, const char **text, size_t *bytes)
{
    size_t used;
    *bytes = utf8_repair((const char *)stream->held, stream->held_bytes, true, stream->piece, &used);
    stream->piece[*bytes] = 0;
    *text = stream->piece;
    stream->held_bytes = 0;
}
