// SPDX-License-Identifier: Apache-2.0
//
// A pool that is half of what all lanes with whole contexts would need: eight requests on four lanes, some waiting, each with the
// tokens and log-probabilities that it has alone; idle lanes hold no page.

#include "tests/contract/contract.h"
#include "tests/contract/scene.h"
#include <stdlib.h>
#include <string.h>

enum { REQUESTS = 8, LANES = 4, CONTEXT = 40960, REPLY = 12, PARTS = 40 };

struct answer {
    int32_t id[REPLY];
    struct logprobs logprobs[REPLY];
};

static struct request request_of(const int32_t *ids, int unit, int i)
{
    struct request r = {.ids = ids + 3 * i, .count = unit * (1 + i % 3) + i, .reply = REPLY, .ignore_end = true};
    r.options = scene_options(i, i % 2 ? WAY_SAMPLED : WAY_GREEDY, i % 3 - 1);
    r.options.logprobs = 3;
    return r;
}

// Takes a finished stream's reply.
static bool finish(struct stream *s, struct answer *a)
{
    int32_t out[REPLY];
    bool good = stream_phase(s) == STREAM_FINISHED && stream_take(s, out, REPLY) == REPLY;
    for (int i = 0; good && i < REPLY; i++) {
        const struct logprobs *l = stream_logprobs(s, i);
        a->id[i] = out[i];
        good = l != NULL;
        if (l)
            a->logprobs[i] = *l;
    }
    return good;
}

// Submits requests first .. first + count - 1 and turns the engine until all are over.
static bool serve(struct engine *e, const int32_t *ids, int unit, int first, int count, struct answer *answers,
                  struct error *error)
{
    struct stream *s[REQUESTS] = {NULL};
    int over = 0;
    bool busy = true, good = true;
    for (int i = 0; good && i < count; i++) {
        struct request r = request_of(ids, unit, first + i);
        good = stream_submit(e, &s[i], &r, error);
    }
    while (good && over < count) {
        good = engine_turn(e, &busy, error);
        for (int i = 0; good && i < count; i++)
            if (s[i] && stream_phase(s[i]) >= STREAM_FINISHED) {
                good = finish(s[i], &answers[first + i]);
                stream_close(s[i]);
                s[i] = NULL;
                over++;
            }
    }
    for (int i = 0; i < count; i++)
        stream_close(s[i]);
    return good;
}

static bool play(struct engine *e, int context, char *detail)
{
    static struct answer alone[REQUESTS], together[REQUESTS];
    const int unit = context / PARTS, longest = 3 * unit + 4 * REQUESTS;
    int32_t *ids = malloc((size_t)longest * sizeof *ids);
    struct engine_counters idle, after;
    struct error error = {0};
    uint64_t state = 17;
    for (int i = 0; ids && i < longest; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        ids[i] = (int32_t)((state >> 33) % (uint64_t)model.vocabulary);
    }
    engine_counters(e, &idle);
    bool good = ids != NULL;
    for (int i = 0; good && i < REQUESTS; i++)
        good = serve(e, ids, unit, i, 1, alone, &error);
    good = good && serve(e, ids, unit, 0, REQUESTS, together, &error);
    engine_counters(e, &after);
    snprintf(detail, 256, "idle %lld pages, at most %lld of %lld, %lld waits; %.120s", (long long)idle.pages_claimed,
             (long long)after.pages_most, (long long)after.pages, (long long)after.waited, error.text);
    free(ids);
    return good && !memcmp(alone, together, sizeof alone) && idle.pages_claimed == 0 && after.pages_claimed == 0 &&
           after.waited > 0;
}

void contract_pool(void)
{
    struct engine *e;
    struct error error = {0};
    struct engine_options options = {.threads = 2,
                                     .quiet = true,
                                     .lanes = LANES < model.lanes ? LANES : model.lanes,
                                     .context = CONTEXT < model.max_context ? CONTEXT : model.max_context,
                                     .synthetic = !model.has_weights,
                                     .page = 64,
                                     .page_order = "shuffled"};
    const struct memory_request request = {.context = options.context, .lanes = options.lanes, .page = options.page};
    struct memory_plan plan;
    char name[200], detail[256] = "";
    bool good = memory_plan_make(&plan, &request, &error);
    options.pool_pages = good ? (int)plan.whole_pages / 2 : 0;
    good = good && engine_open(&e, &options, &error);
    snprintf(name, sizeof name, "%s: half a pool, %d lanes of %d positions: %d requests, some waiting", model.name,
             options.lanes, options.context, REQUESTS);
    contract_ok(good && play(e, options.context, detail), name, good ? detail : error.text);
    printf("# %s\n", detail);
    if (good)
        engine_close(e);
}
