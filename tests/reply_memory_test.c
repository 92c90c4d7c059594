// SPDX-License-Identifier: Apache-2.0
//
// The reader of replies without memory: every text is read again and again, and each time the next allocation fails. Either the reply
// is as it should be, or it says that memory ran out; nothing crashes. Built with sim/alloc.h before every source of the reader.

#include "runtime/reply/bytes.h"
#include "runtime/reply/reply.h"
#include "tests/reply_cases.h"
#include "tests/tap.h"

#include <string.h>

#undef malloc
#undef calloc
#undef realloc

static int countdown = -1; // the allocation that fails, from 0; -1: none
static int failures;

static bool fails(void)
{
    if (countdown < 0)
        return false;
    failures += countdown == 0;
    return countdown-- == 0;
}

void *sim_malloc(size_t size)
{
    return fails() ? NULL : malloc(size);
}

void *sim_calloc(size_t count, size_t size)
{
    return fails() ? NULL : calloc(count, size);
}

void *sim_realloc(void *old, size_t size)
{
    return fails() ? NULL : realloc(old, size);
}

struct seen {
    char text[8192];
    size_t count;
};

static void sink(void *user, const struct reply_event *event)
{
    struct seen *s = user;
    const char *text = event->kind == REPLY_CALL_BEGIN ? event->name : event->text;
    size_t bytes = event->kind == REPLY_CALL_BEGIN ? strlen(text) : event->bytes;
    for (size_t i = 0; text && i < bytes && s->count < sizeof s->text; i++)
        s->text[s->count++] = text[i];
}

// Reads a case; false: memory ran out and the reader said so.
static bool read_case(const struct reply_case *c, const json_t *tools, struct seen *seen)
{
    const struct reply_options o = options_of(c, tools);
    seen->count = 0;
    struct reply *reply = reply_new(&o, NULL);
    if (!reply)
        return false;
    for (const char *at = c->text; *at; at++)
        if (!reply_feed(reply, at, 1, sink, seen))
            break;
    reply_end(reply, sink, seen);
    bool whole = reply_reason(reply) != REPLY_NO_MEMORY;
    reply_free(reply);
    return whole;
}

int main(void)
{
    json_t *tools = json_loads(case_tools, 0, NULL);
    static struct seen expected, seen;
    int wrong = 0, tried = 0;
    for (size_t i = 0; i < sizeof reply_cases / sizeof *reply_cases; i++) {
        countdown = -1;
        read_case(&reply_cases[i], tools, &expected);
        for (int n = 0, before = -1; failures != before; n++, tried++) {
            before = failures;
            countdown = n;
            if (read_case(&reply_cases[i], tools, &seen) &&
                (seen.count != expected.count || memcmp(seen.text, expected.text, seen.count))) {
                printf("# %s, allocation %d: %.*s\n", reply_cases[i].name, n, (int)seen.count, seen.text);
                wrong++;
            }
        }
    }
    countdown = -1;
    ok(tried > 500 && failures > 300, "every allocation failed once", NULL);
    ok(!wrong, "a reply is whole, or says that memory ran out", NULL);
    json_decref(tools);
    return done();
}
