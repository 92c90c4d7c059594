// SPDX-License-Identifier: Apache-2.0
//
// Text below the tokenizer: well-formed UTF-8, normalisation, and character classes. No function reads past the bytes it is given.

#ifndef TOKENIZER_TEXT_H
#define TOKENIZER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Memory that grows and is used again; zero-initialised it is empty.
struct scratch {
    void *data;
    size_t room; // bytes
};

// Makes room for count items of `size` bytes; the contents are lost. False when memory runs out.
bool scratch_reserve(struct scratch *scratch, size_t count, size_t size);
void scratch_free(struct scratch *scratch);
// Frees it where a long text has made it larger than most are.
void scratch_rest(struct scratch *scratch);

bool utf8_valid(const char *text, size_t bytes);

// Copies text to out (room for 3 * bytes; NULL only counts) with U+FFFD for each ill-formed sequence, the longest prefix of a
// character counting as one. A character that the end cuts short is replaced too when `final`, otherwise left: *used says how
// much was read. Returns the bytes of the result.
size_t utf8_repair(const char *text, size_t bytes, bool final, char *out, size_t *used);

// The code point at text (well-formed, bytes > 0) and its length.
uint32_t utf8_code(const char *text, size_t *length);
// The start of the character that ends at `end` > 0.
size_t utf8_before(const char *text, size_t end);

bool code_is_space(uint32_t code); // White_Space
bool code_is_word(uint32_t code);  // letters, marks, decimal digits, connectors, joiners

// Normalisation form C of well-formed text. *out is `text` itself where nothing can change, else it points into `result`. Takes
// time proportional to bytes * log(bytes) whatever the text. False when memory runs out.
bool text_nfc(const char *text, size_t bytes, struct scratch *codes, struct scratch *result, const char **out,
              size_t *out_bytes);

#endif
