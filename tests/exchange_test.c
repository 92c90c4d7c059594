// SPDX-License-Identifier: Apache-2.0
//
// The side of an exchange that faces its connection, without one: when a stream that is quiet sends a comment.

#include "runtime/server/exchange_side.h"
#include "tests/tap.h"

#include <string.h>

int main(void)
{
    static struct server server;
    struct exchange *x = exchange_new(&server, NULL);
    struct connection_side *side = x->side;
    exchange_quiet(x);
    ok(side->out_bytes == 0, "what is no stream sends no comment", NULL);
    exchange_stream(x);
    exchange_quiet(x);
    ok(side->out_bytes == 0, "nor does a stream that has just been opened", NULL);
    side->put -= QUIET_SECONDS + 1;
    exchange_quiet(x);
    ok(side->out_bytes == 3 && !memcmp(side->out, ":\n\n", 3), "one that was quiet for long does", NULL);
    side->put -= QUIET_SECONDS + 1;
    exchange_quiet(x);
    ok(side->out_bytes == 3, "but not before the last was taken", NULL);
    side->out_taken = side->out_bytes;
    exchange_event(x, NULL, json_object());
    exchange_quiet(x);
    ok(side->out_bytes - side->out_taken == 10, "nor soon after an event", NULL);
    exchange_drop(x);
    return done();
}
