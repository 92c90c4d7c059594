// SPDX-License-Identifier: Apache-2.0
//
// A model's nearly-JSON, as it comes, as valid JSON.
// Invariant: the output so far followed by that of json_stream_end is one valid JSON value of at most JSON_STREAM_DEPTH levels,
// whatever came; of valid input it is the same value.

#ifndef REPLY_JSON_STREAM_H
#define REPLY_JSON_STREAM_H

#include "runtime/reply/bytes.h"

enum { JSON_STREAM_DEPTH = 64 };

// Zero-initialised it stands before a value.
struct json_stream {
    char stack[JSON_STREAM_DEPTH]; // '{' or '['
    int depth;
    int skipped; // open brackets from the deepest level on, whose contents are left out
    int state;
    bool comma;  // there was a value before, so the next one needs a comma
    bool key;    // the string or word is a key
    bool done;   // the value is whole; nothing more is taken
    char quote;  // of the string that is open
    char hex[5]; // of an escape
    int hex_count;
    unsigned high; // the first half of a pair of escapes, or 0
    struct bytes word;
};

// Takes text until the value is whole; adds valid JSON to out. Returns how many bytes were taken. What is repaired: Python's
// literals and quotes, bare words (strings), lacking or trailing commas, raw line breaks in strings, escapes that JSON has not,
// brackets that do not match.
size_t json_stream_feed(struct json_stream *s, const char *text, size_t count, struct bytes *out);
// Closes what is open; s is then free.
void json_stream_end(struct json_stream *s, struct bytes *out);
// Whether a string is open.
bool json_stream_quoted(const struct json_stream *s);
void json_stream_free(struct json_stream *s);

// Adds text as the inside of a JSON string; it is well-formed UTF-8. A NUL, which most readers refuse in a key, becomes U+FFFD.
void write_escaped(struct bytes *out, const char *text, size_t count);
// Adds text as a JSON string.
void write_string(struct bytes *out, const char *text, size_t count);
// "true", "false" or "null" for these words in any case, and for None; NULL for others.
const char *word_literal(const char *text, size_t count);
// Adds text as a JSON number when it is one, also +1, .5 and 5. false: it is not, and nothing was added.
bool write_number(struct bytes *out, const char *text, size_t count);
// As write_number for whole numbers, also 5.0, which is written 5.
bool write_integer(struct bytes *out, const char *text, size_t count);
// Adds a word without quotes: a literal, a number, or else a string.
void write_word(struct bytes *out, const char *text, size_t count);

#endif
