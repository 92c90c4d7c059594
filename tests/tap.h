// SPDX-License-Identifier: Apache-2.0
//
// TAP for C tests: ok() for each check, `return done();` at the end of main.

#ifndef TAP_H
#define TAP_H

#include <stdbool.h>
#include <stdio.h>

static int tap_tests, tap_failures;

// detail may be NULL or empty; it is shown when the check fails.
static inline void ok(bool good, const char *name, const char *detail)
{
    tap_tests++;
    tap_failures += !good;
    printf("%s %d - %s\n", good ? "ok" : "not ok", tap_tests, name);
    if (!good && detail && *detail)
        printf("# %s\n", detail);
}

// Prints the plan; the exit code of the test.
static inline int done(void)
{
    printf("1..%d\n", tap_tests);
    return tap_failures != 0;
}

#endif
