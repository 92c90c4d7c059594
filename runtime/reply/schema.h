// SPDX-License-Identifier: Apache-2.0
//
// What a tool's JSON schema says about the type of a parameter, and a parameter's text as JSON of that type.

#ifndef REPLY_SCHEMA_H
#define REPLY_SCHEMA_H

#include "runtime/reply/bytes.h"
#include <jansson.h>

enum { CALL_NAME_BYTES = 256 }; // most bytes of the name of a tool or of a parameter

enum {
    PARAMETER_STRING = 1,
    PARAMETER_INTEGER = 2,
    PARAMETER_NUMBER = 4,
    PARAMETER_BOOLEAN = 8,
    PARAMETER_NULL = 16,
    PARAMETER_ARRAY = 32,
    PARAMETER_OBJECT = 64,
    PARAMETER_ANY = 127
};

// Whether it can be the name of a tool, or of a parameter that is written as a marker: 1 to CALL_NAME_BYTES bytes, none of
// which ends a marker or its line.
static inline bool call_name_fits(const char *name)
{
    const size_t bytes = strlen(name);
    return bytes >= 1 && bytes <= CALL_NAME_BYTES && !strpbrk(name, "<>\r\n");
}

// The function object of the tool of that name (not NUL-terminated), borrowed from tools; NULL: it is not offered. A tool is
// {"type": "function", "function": {...}} or the function object itself.
const json_t *tools_find(const json_t *tools, const char *name, size_t bytes);

// The types that a parameter may have: PARAMETER_ANY where the schema says nothing about a declared one, a string for
// one that it does not declare. Bad schemas count as silent.
unsigned schema_types(const json_t *function, const char *key, size_t bytes);
// Whether the schema declares it.
bool schema_declares(const json_t *function, const char *key, size_t bytes);

// Whether text, of which more may come, can be nothing but a string any more.
bool value_is_string(unsigned types, const char *text, size_t bytes);
// Adds a whole value as JSON of one of the types; as a string when it fits none.
void value_write(struct bytes *out, unsigned types, const char *text, size_t bytes);

#endif
