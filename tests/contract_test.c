// SPDX-License-Identifier: Apache-2.0
//
// The exactness contracts on the embedded model, through the engine: ids and logit bits of a stream do not depend on drafts,
// prompt chunks, threads, pages, graphs or earlier use of the lane. Linked with the model's programs.

#include "runtime/engine.h"
#include "runtime/model.h"
#include "tests/stored_prompts.h"
#include "tests/tap.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SOME = 16, REPLY = 24 };

struct outcome {
    uint64_t ids, logits; // hashes
    int64_t drafted, accepted, rounds, tokens;
};

// One reply of REPLY tokens; hashes its ids and the logits that drew them.
static bool reply(struct engine *engine, const struct prompt *p, const struct stream_options *options, int chunk,
                  XXH3_state_t *ids, XXH3_state_t *logits, struct outcome *o, struct error *error)
{
    struct stream *s;
    int32_t out[16];
    int count = 1, total = 0;
    bool good =
        stream_open(engine, &s, options, error) && stream_prompt(s, p->ids, p->count, chunk, 0, NULL, NULL, error);
    bool ended = false;
    while (good && !ended && count > 0) {
        good = stream_next(s, out, &count, error);
        for (int i = 0; good && i < count && !ended; i++) {
            XXH3_64bits_update(ids, &out[i], sizeof out[i]);
            XXH3_64bits_update(logits, stream_logits(s, i), (size_t)model.vocabulary * sizeof(float));
            ended = ++total == REPLY || out[i] == model.end_tokens[0] || out[i] == model.end_tokens[1];
        }
    }
    if (good) {
        const struct stream_counters *c = stream_counters(s);
        o->drafted += c->drafted;
        o->accepted += c->accepted;
        o->rounds += c->rounds;
        o->tokens += total;
    }
    if (s)
        stream_close(s);
    return good;
}

// All prompts under one configuration.
static struct outcome run(const struct engine_options *options, float temperature, int drafts, int chunk,
                          int prompts_used)
{
    struct outcome o = {0};
    struct engine *engine;
    struct error error = {0};
    struct engine_options quiet = *options;
    quiet.quiet = true;
    XXH3_state_t *ids = XXH3_createState(), *logits = XXH3_createState();
    XXH3_64bits_reset(ids);
    XXH3_64bits_reset(logits);
    bool good = engine_open(&engine, &quiet, &error);
    for (int i = 0; good && i < prompts_used; i++) {
        struct stream_options stream = {
            .drafts = drafts,
            .sampling = {.temperature = temperature, .top_k = 20, .top_p = 0.9f, .seed = (uint64_t)i}};
        good = reply(engine, &prompts[i], &stream, chunk, ids, logits, &o, &error);
    }
    if (!good)
        printf("# %s\n", error.text);
    o.ids = good ? XXH3_64bits_digest(ids) : 0;
    o.logits = good ? XXH3_64bits_digest(logits) : 0;
    engine_close(engine);
    XXH3_freeState(ids);
    XXH3_freeState(logits);
    return o;
}

static void same(struct outcome a, struct outcome b, const char *name)
{
    ok(a.ids && a.ids == b.ids && a.logits == b.logits, name, a.ids == b.ids ? "the logits differ" : "the ids differ");
}

static void drafts(void)
{
    static const float temperatures[] = {0, 0.8f};
    for (int t = 0; t < 2; t++) {
        struct engine_options options = {.threads = 2};
        struct outcome plain = run(&options, temperatures[t], 0, 0, PROMPTS);
        struct outcome three = run(&options, temperatures[t], 3, 0, PROMPTS);
        struct outcome free_depth = run(&options, temperatures[t], -1, 0, PROMPTS);
        char name[160];
        snprintf(
            name, sizeof name,
            "drafted == undrafted at temperature %.1f, %d prompts (%.1f %% of drafts accepted, %.2f tokens a round)",
            (double)temperatures[t], PROMPTS, 100.0 * (double)three.accepted / (double)three.drafted,
            (double)(three.accepted + three.rounds) / (double)three.rounds);
        same(plain, three, name);
        same(plain, free_depth, "the same with the depth left to the engine");
        ok(three.accepted > 0 && plain.drafted == 0, "drafts were made and accepted, or were not made", "");
        for (int depth = 1; depth < model.window && t == 1; depth++) {
            snprintf(name, sizeof name, "drafted == undrafted at depth %d", depth);
            same(run(&options, 0.8f, 0, 0, SOME), run(&options, 0.8f, depth, 0, SOME), name);
        }
    }
}

static void places(void)
{
    struct engine_options base = {.threads = 1};
    struct outcome plain = run(&base, 0.8f, 3, 0, SOME);
    static const char *const orders[] = {"identity", "reversed", "shuffled"};
    static const int pages[] = {4, 16, 64, 256};
    char name[100];
    for (int p = 0; p < 4; p++)
        for (int o = 0; o < 3; o++) {
            struct engine_options options = {.threads = 2, .page = pages[p], .page_order = orders[o]};
            snprintf(name, sizeof name, "pages of %d, %s, 2 threads", pages[p], orders[o]);
            same(plain, run(&options, 0.8f, 3, 0, SOME), name);
        }
    struct engine_options eager = {.threads = 2, .eager = true};
    same(plain, run(&eager, 0.8f, 3, 0, SOME), "graph == eager");
    static const int chunks[] = {1, 3, 7, 16, 64};
    for (int c = 0; c < 5; c++) {
        snprintf(name, sizeof name, "prompt chunks of %d", chunks[c]);
        same(plain, run(&base, 0.8f, 3, chunks[c], SOME), name);
    }
}

static void kv_caches(void)
{
    static const char *const names[] = {"bf16", "fp8"};
    for (int k = 0; k < 2; k++) {
        struct engine_options options = {.threads = 2, .kv_cache = names[k]},
                              paged = {.threads = 1, .kv_cache = names[k], .page = 4, .page_order = "shuffled"};
        char name[100];
        snprintf(name, sizeof name, "%s cache: drafted, chunked and paged == plain", names[k]);
        same(run(&options, 0.8f, 0, 0, SOME), run(&paged, 0.8f, 4, 7, SOME), name);
    }
}

static void every_isa(void)
{
    char name[100];
    static const char *const isas[] = {"portable", "avx2", "avx512", "amx"};
    for (int i = 0; i < 4; i++) {
        struct engine_options one = {.threads = 1, .isa = isas[i]}, two = {.threads = 2, .isa = isas[i]};
        struct engine *engine;
        struct error error;
        struct engine_options probe = {.isa = isas[i], .quiet = true};
        if (!engine_open(&engine, &probe, &error))
            continue;
        engine_close(engine);
        snprintf(name, sizeof name, "%s: 1 thread whole == 2 threads in chunks of 7, drafted", isas[i]);
        same(run(&one, 0, 0, 0, SOME), run(&two, 0, 3, 7, SOME), name);
    }
}

// A turn that goes on from the kept state has the bits of one that begins afresh.
static void resumed(void)
{
    struct engine *engine;
    struct error error = {0};
    struct engine_options options = {.threads = 2, .quiet = true};
    struct stream_options stream = {.drafts = 3, .sampling = {.temperature = 0.8f, .top_p = 1, .seed = 5}};
    if (!engine_open(&engine, &options, &error)) {
        ok(false, "resumed == fresh", error.text);
        return;
    }
    int equal = 0, total = SOME;
    for (int i = 0; i < total; i++) {
        uint64_t hash[2];
        int32_t longer[IDS * 2];
        const struct prompt *p = &prompts[i];
        for (int way = 0; way < 2; way++) {
            struct stream *s;
            XXH3_state_t *h = XXH3_createState();
            XXH3_64bits_reset(h);
            bool good = stream_open(engine, &s, &stream, &error);
            int32_t out[16];
            int count = 0, held = p->count + 12;
            if (way == 0) {
                good = good && stream_prompt(s, p->ids, p->count, 0, 0, NULL, NULL, &error);
                for (int got = 0; good && got < 12; got += count)
                    good = stream_next(s, out, &count, &error) && count > 0;
                int n;
                memcpy(longer, stream_tokens(s, &n), (size_t)(p->count + 12) * sizeof *longer);
                memcpy(longer + held, p->ids, (size_t)p->count * sizeof *longer);
            }
            good = good && stream_continue(s, longer, held + p->count, &error);
            for (int got = 0; good && got < 12; got += count) {
                good = stream_next(s, out, &count, &error) && count > 0;
                for (int k = 0; good && k < count; k++)
                    XXH3_64bits_update(h, stream_logits(s, k), (size_t)model.vocabulary * sizeof(float));
            }
            hash[way] = good ? XXH3_64bits_digest(h) : (uint64_t)way;
            stream_close(s);
            XXH3_freeState(h);
        }
        equal += hash[0] == hash[1];
    }
    char detail[600];
    snprintf(detail, sizeof detail, "%d of %d equal %s", equal, total, error.text);
    ok(equal == total, "resumed == fresh", detail);
    engine_close(engine);
}

int main(void)
{
    ok(load_prompts() == PROMPTS, "prompts are loaded", "");
    drafts();
    places();
    kv_caches();
    every_isa();
    resumed();
    return done();
}
