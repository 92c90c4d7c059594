// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the prompt cache share: random conversations, and requests served to their end.

#ifndef CACHE_RIG_H
#define CACHE_RIG_H

#include "runtime/cache/cache_state.h"
#include "tests/tap.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { RIG_IDS = 1024, RIG_REPLY = 16, RIG_MARKS = 8 };

static uint64_t rig_state = 1;

static inline int below(int n)
{
    rig_state = rig_state * 6364136223846793005ull + 1442695040888963407ull;
    return n > 0 ? (int)((rig_state >> 33) % (uint64_t)n) : 0;
}

struct talk {
    int32_t ids[RIG_IDS];
    int count;
    int marks[RIG_MARKS];
    int mark_count;
};

// What a request gives.
struct served {
    int32_t id[RIG_REPLY];
    uint64_t logits[RIG_REPLY]; // hashes
    int count;
    int64_t drafted, accepted, cached, read; // read: prompt rows that ran
    int turns;
};

struct ask {
    const struct talk *talk;
    int reply, drafts;
    bool sampled, prompt_only;
};

static inline void say_more(struct talk *t, int count)
{
    for (; count > 0 && t->count < RIG_IDS; count--)
        t->ids[t->count++] = below(model.vocabulary);
}

static inline struct stream *rig_submit(struct engine *e, const struct ask *a)
{
    struct error error = {0};
    struct stream *s = NULL;
    struct request r = {.ids = a->talk->ids,
                        .count = a->talk->count,
                        .reply = a->reply,
                        .ignore_end = true,
                        .prompt_only = a->prompt_only,
                        .marks = a->talk->marks,
                        .mark_count = a->talk->mark_count,
                        .options = {.drafts = a->drafts, .no_copy = true, .sampling = {.top_p = 1, .seed = 5}}};
    if (a->sampled)
        r.options.sampling = (struct sampling){.temperature = 0.9f, .top_k = 30, .top_p = 0.95f, .seed = 9};
    if (!stream_submit(e, &s, &r, &error))
        printf("# %s\n", error.text);
    return s;
}

static inline void rig_take(struct stream *s, struct served *out)
{
    int32_t ids[RIG_REPLY];
    int n = stream_take(s, ids, RIG_REPLY - out->count);
    for (int i = 0; i < n; i++, out->count++) {
        const float *logits = stream_logits(s, i);
        out->id[out->count] = ids[i];
        out->logits[out->count] = logits ? XXH3_64bits(logits, (size_t)model.vocabulary * sizeof *logits) : 1;
    }
}

// Serves one request alone.
static inline struct served serve(struct engine *e, const struct ask *a)
{
    struct served out = {0};
    struct stream *s = rig_submit(e, a);
    bool busy;
    for (; s && stream_phase(s) < STREAM_FINISHED && out.turns < 10000; out.turns++) {
        engine_turn(e, &busy, NULL);
        rig_take(s, &out);
    }
    if (s) {
        const struct stream_counters *c = stream_counters(s);
        out.drafted = c->drafted, out.accepted = c->accepted, out.cached = c->cached_tokens,
        out.read = c->prompt_tokens;
        if (stream_phase(s) != STREAM_FINISHED)
            out.count = -1;
    }
    stream_close(s);
    return out;
}

// Whether rows that were seen in both have the same bits: a first token that comes with the round after it leaves none.
static inline bool same_logits(const struct served *a, const struct served *b)
{
    bool same = true;
    for (int i = 0; i < RIG_REPLY; i++)
        same = same && (a->logits[i] == b->logits[i] || a->logits[i] == 1 || b->logits[i] == 1);
    return same;
}

// Equal ids, logit bits and drafts: the head's cells decide what is drafted.
static inline bool same_reply(const struct served *a, const struct served *b)
{
    return a->count > 0 && a->count == b->count && !memcmp(a->id, b->id, (size_t)a->count * sizeof a->id[0]) &&
           !memcmp(a->logits, b->logits, (size_t)a->count * sizeof a->logits[0]) && a->drafted == b->drafted &&
           a->accepted == b->accepted;
}

static inline struct engine *rig_open(struct engine_options options)
{
    struct engine *e;
    struct error error = {0};
    options.quiet = true;
    options.threads = options.threads ? options.threads : 2;
    options.context = options.context ? options.context : 512;
    options.page = options.page ? options.page : 8;
    if (!engine_open(&e, &options, &error))
        printf("# %s\n", error.text);
    return e;
}

static inline struct cache_counters counted(const struct engine *e)
{
    struct engine_counters c;
    engine_counters(e, &c);
    return c.cache;
}

#endif
