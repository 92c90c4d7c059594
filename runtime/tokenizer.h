// SPDX-License-Identifier: Apache-2.0
//
// Byte-level BPE: text to token ids and back, from tables that gen/tokenizer.lua compiled out of tokenizer.json. Nothing is
// parsed at run time. Invariant: ids and decoded text equal those of the checkpoint's own tokenizer for every input.
//
// A struct tokenizer keeps scratch memory: one thread at a time may encode with it; open one object a thread to encode in
// parallel. Decoding, streams, and the lookups read only constant data and may run beside an encode.

#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "runtime/error.h"
#include <stddef.h>
#include <stdint.h>

// No token is longer than this many bytes; the generator refuses longer ones.
#define TOKENIZER_TOKEN_BYTES 4096

enum tokenizer_flag {
    TOKENIZER_SPECIAL = 1,      // encoded only when asked for, left out of decoded text when asked for
    TOKENIZER_NORMALIZED = 2,   // searched for in the normalised text instead of the text as given
    TOKENIZER_LSTRIP = 4,       // takes the white space before it
    TOKENIZER_RSTRIP = 8,       // takes the white space after it
    TOKENIZER_SINGLE_WORD = 16, // matches only between non-word characters
};

struct tokenizer_added {
    const char *text;
    uint32_t bytes;
    int32_t id;
    uint32_t flags; // of enum tokenizer_flag
};

// What the generator writes. Ids run 0..vocabulary-1; an id whose bytes are empty stands for no token.
struct tokenizer_tables {
    uint32_t vocabulary;    // 0: this build has no tokenizer
    const uint32_t *offset; // [vocabulary + 1] into bytes
    const char *bytes;
    const int32_t *byte_id;    // [256] the token of each single byte
    const int32_t *merge;      // [merges][3] left id, right id, joined id, by rank
    const int32_t *merge_slot; // [1 << merge_bits] rank or -1, open addressing by tokenizer_pair_hash
    const int32_t
        *word_slot; // [1 << word_bits] id or -1, by tokenizer_word_hash; NULL unless whole words skip the merges
    const struct tokenizer_added *added;
    const char *const *split; // PCRE2 patterns, applied one after the other
    const int32_t *eos;
    uint32_t merges;
    uint32_t merge_bits;
    uint32_t word_bits;
    uint32_t added_count;
    uint32_t split_count;
    uint32_t eos_count;
    int32_t bos; // -1: none is put before a prompt
    bool nfc;
};

extern const struct tokenizer_tables tokenizer_tables;

// First slot of a pair of ids, and of a word; the next slots follow in order. The generator fills the tables with the same functions.
static inline uint32_t tokenizer_pair_hash(int32_t left, int32_t right, uint32_t bits)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    return (uint32_t)(key * 0x9E3779B97F4A7C15u >> (64 - bits));
}

static inline uint32_t tokenizer_word_hash(const char *word, size_t bytes, uint32_t bits)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (uint8_t)word[i]) * 0x100000001B3u;
    return (uint32_t)(hash * 0x9E3779B97F4A7C15u >> (64 - bits));
}

struct tokenizer;

// Makes *out from tables, which must outlive it. Fails when the build has no tokenizer or memory runs out; *out is then NULL.
bool tokenizer_open(struct tokenizer **out, const struct tokenizer_tables *tables, struct error *error);
void tokenizer_close(struct tokenizer *tokenizer); // NULL is allowed

// Encodes `bytes` bytes of text; no byte is special, and ill-formed UTF-8 counts as U+FFFD. With parse_special false the text
// of a special token stays plain text; added tokens that are not special are found either way. On success *ids is a malloc'd
// array of *count ids (never NULL) that the caller frees; on failure both are left alone.
bool tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t bytes, bool parse_special, int32_t **ids,
                      size_t *count, struct error *error);

// The same without any added token: the text of each stays plain text.
bool tokenizer_encode_text(struct tokenizer *tokenizer, const char *text, size_t bytes, int32_t **ids, size_t *count,
                           struct error *error);

// Decodes ids to valid UTF-8, ill-formed sequences as U+FFFD. skip_special leaves special tokens out. An id that is not in the
// vocabulary is an error. On success *text is malloc'd, ends in a NUL that *bytes does not count, and is the caller's to free.
bool tokenizer_decode(struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special, char **text,
                      size_t *bytes, struct error *error);

// Decodes one id at a time without allocating. The pieces of all pushes and of the flush, put together, are what
// tokenizer_decode gives for all the ids at once; no piece ends inside a character.
struct tokenizer_stream {
    const struct tokenizer *tokenizer;
    bool skip_special;
    uint8_t held_bytes;
    uint8_t held[3];                                 // the start of a character that is not complete yet
    char piece[3 * (TOKENIZER_TOKEN_BYTES + 3) + 1]; // each ill-formed byte can grow to three
};

void tokenizer_stream_open(struct tokenizer_stream *stream, const struct tokenizer *tokenizer, bool skip_special);

// *text points into the stream and holds until its next call; *bytes may be 0. An id outside the vocabulary is an error and
// leaves the stream as it was.
bool tokenizer_stream_push(struct tokenizer_stream *stream, int32_t id, const char **text, size_t *bytes,
                           struct error *error);

// What is still held, as U+FFFD, and starts the stream afresh.
void tokenizer_stream_flush(struct tokenizer_stream *stream, const char **text, size_t *bytes);

// The id of the added token whose text this is, or -1.
int32_t tokenizer_special(const struct tokenizer *tokenizer, const char *text);
// Whether id is an added token that is special.
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);
// The bytes of one token as they are, perhaps a part of a character; NULL when id is not in the vocabulary.
const char *tokenizer_token(const struct tokenizer *tokenizer, int32_t id, size_t *bytes);
// One more than the largest id.
int32_t tokenizer_vocabulary(const struct tokenizer *tokenizer);
// The end tokens that tokenizer_config.json names.
const int32_t *tokenizer_eos(const struct tokenizer *tokenizer, size_t *count);
// The token that tokenizer_config.json wants before a prompt (add_bos_token), or -1.
int32_t tokenizer_bos(const struct tokenizer *tokenizer);

#endif
