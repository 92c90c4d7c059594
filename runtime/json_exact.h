// SPDX-License-Identifier: Apache-2.0
//
// JSON whose numbers stay what they were: whole numbers of more than 64 bits keep their digits, and what is written reads back as
// the same numbers. jansson has no value for either, so such a value is a string whose first byte no text has (0xff).
// Invariant: only json_exact_load and json_verbatim make such strings; whoever reads texts where they may be (schemas, arguments) asks for json_is_text.

#ifndef JSON_EXACT_H
#define JSON_EXACT_H

#include <jansson.h>
#include <stdbool.h>

// Whole numbers of more than 64 bits are kept where they are data: everywhere, or in a request (or a schema) what `const`, `enum`,
// `default`, `examples` and bounds of numbers hold, and the arguments of earlier calls. Elsewhere they are real.
enum json_kept { JSON_KEEP_ALL, JSON_KEEP_DATA };

// As json_loadb; cause may be NULL. (With JSON_ALLOW_NUL a text of two NULs and the digits of such a number is read as the number.)
json_t *json_exact_load(const char *text, size_t bytes, size_t flags, enum json_kept kept, json_error_t *cause);

// The digits of such a number, with its sign; NULL for all other values.
const char *json_wide(const json_t *value);
// json_is_string and json_string_value of texts alone, and json_is_number and json_number_value of such numbers too.
bool json_is_text(const json_t *value);
const char *json_text_value(const json_t *value);
bool json_is_numeric(const json_t *value);
double json_numeric_value(const json_t *value);

// A value that is written as this text, which must be JSON; NULL: no memory.
json_t *json_verbatim(const char *text, size_t bytes);

// The value as compact JSON: *bytes of it (may be NULL), to be freed; NULL: no memory, or a value that has no text.
char *json_exact_dump(const json_t *value, size_t *bytes);

// The same in ASCII, up to `most` bytes of it and a NUL; more bytes: *text is "". Gives whether it fits.
bool json_exact_short(const json_t *value, char *text, size_t most);

enum { JSON_REAL_BYTES = 40 };
// A real number in the fewest digits that read back as it.
void json_real_text(const json_t *real, char text[JSON_REAL_BYTES]);
// The same number in nine digits, which is as much as anything measured is worth.
double json_nine_digits(double value);

#endif
