// SPDX-License-Identifier: Apache-2.0
//
// The log. What a client sent never gets into it, but for the name of its key, which is ours.

#include "runtime/server/log.h"

#include <stdio.h>

void log_reply(const struct exchange *x, const struct outcome *o, const char *end)
{
    const struct stream_counters *c = o->counters;
    if (x->server->options.no_log)
        return;
    fprintf(stderr,
            "done id=req-%s path=%s key=%s end=%s prompt=%d cached=%d reply=%d reasoning=%d rounds=%lld drafted=%lld "
            "accepted=%lld "
            "first=%.4f decode=%.4f total=%.4f token_sha=%.12s\n",
            x->id, x->route->path, x->label, end, o->prompt_tokens, o->cached_tokens, o->reply_tokens,
            o->reasoning_tokens, (long long)c->rounds, (long long)c->drafted, (long long)c->accepted, o->first,
            o->decode, o->total, o->token_sha);
}
