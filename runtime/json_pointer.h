// SPDX-License-Identifier: Apache-2.0
//
// JSON pointers as references of schemas have them: RFC 6901 behind a "#", its %XX decoded.

#ifndef JSON_POINTER_H
#define JSON_POINTER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>

enum { POINTER_STEP_BYTES = 256 }; // of a step's name and its end, at most

static inline int json_pointer_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

// One step of a pointer, decoded: %XX, ~0 and ~1. Returns what follows it; NULL when it is too long.
static inline const char *json_pointer_step(const char *from, char name[POINTER_STEP_BYTES])
{
    size_t n = 0;
    for (; *from && *from != '/'; from++) {
        char c = *from;
        if (c == '%' && json_pointer_digit(from[1]) >= 0 && json_pointer_digit(from[2]) >= 0) {
            c = (char)(16 * json_pointer_digit(from[1]) + json_pointer_digit(from[2]));
            from += 2;
        }
        if (c == '~' && (from[1] == '0' || from[1] == '1'))
            c = *++from == '0' ? '~' : '/';
        if (n + 1 >= POINTER_STEP_BYTES)
            return NULL;
        name[n++] = c;
    }
    name[n] = 0;
    return from;
}

// Whether it is "#" or "#/...".
static inline bool json_pointer_local(const char *reference)
{
    return reference && reference[0] == '#' && (!reference[1] || reference[1] == '/');
}

// What it leads to, borrowed from root; NULL: nowhere, or it is no local one.
static inline const json_t *json_pointer_target(const json_t *root, const char *reference)
{
    char name[POINTER_STEP_BYTES];
    if (!json_pointer_local(reference))
        return NULL;
    for (const char *at = reference + 1; root && *at == '/';) {
        at = json_pointer_step(at + 1, name);
        if (!at)
            return NULL;
        root = json_is_array(root) ? json_array_get(root, strtoul(name, NULL, 10)) : json_object_get(root, name);
    }
    return root;
}

#endif
