// SPDX-License-Identifier: Apache-2.0
//
// One line that says what is wrong and what to do. Functions that can fail take a `struct error *`, return false and fill it.

#ifndef ERROR_H
#define ERROR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

struct error {
    char text[512];
    int code; // exit code: 2 bad input, 3 the target failed and the process must be started anew
};

// Fills e and returns false, so that `return error_set(e, ...)` reads well. e may be NULL.
__attribute__((format(printf, 2, 3))) static inline bool error_set(struct error *e, const char *format, ...)
{
    if (e) {
        e->code = 2;
        va_list list;
        va_start(list, format);
        vsnprintf(e->text, sizeof e->text, format, list);
        va_end(list);
    }
    return false;
}

// What follows the word for so many things.
static inline const char *plural(long long count)
{
    return count == 1 ? "" : "s";
}

// The same for a target that cannot go on.
#define error_fatal(e, ...) (error_set(e, __VA_ARGS__), (e) ? (void)((e)->code = 3) : (void)0, false)

#endif
