// SPDX-License-Identifier: Apache-2.0
//
// Lanes on the embedded model: every stream of a round has the ids and the logit bits that it has alone, whatever shares the
// round, wherever its pages lie and whenever it came; and requests through a small pool, with cancels, leave nothing behind.
// Linked with the model's programs and with a page pool that poisons pages that are given back.

#include "tests/contract/scene.h"
#include "tests/tap.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPTS = 8, REPLY = SCENE_REPLY, IDS = 160, DETAIL = 1400 };

struct prompt {
    int32_t ids[IDS];
    int count;
};

static struct prompt prompts[PROMPTS];

static struct scene_prompt texts[PROMPTS];
static struct scene_reply alone[PROMPTS * WAYS];

static bool load_prompts(void)
{
    json_error_t why;
    json_t *list = json_load_file("tests/fixtures/embedded/replies.json", 0, &why);
    int count = 0;
    for (size_t i = 0; i < json_array_size(list) && count < PROMPTS; i++) {
        json_t *ids = json_object_get(json_array_get(list, i), "prompt_ids");
        struct prompt *p = &prompts[count];
        p->count = (int)json_array_size(ids);
        if (p->count < 1 || p->count > IDS)
            continue;
        for (int k = 0; k < p->count; k++)
            p->ids[k] = (int32_t)(json_integer_value(json_array_get(ids, (size_t)k)) % model.vocabulary);
        count++;
    }
    json_decref(list);
    // One prompt that repeats itself, so that drafts are copied.
    struct prompt *last = &prompts[PROMPTS - 1];
    int half = last->count < IDS / 3 ? last->count : IDS / 3;
    for (int i = half; i < 3 * half; i++)
        last->ids[i] = last->ids[i - half];
    last->count = 3 * half;
    for (int i = 0; i < PROMPTS; i++)
        texts[i] = (struct scene_prompt){prompts[i].ids, prompts[i].count};
    return count == PROMPTS;
}

static bool make_alone(const char *kv_cache)
{
    memset(alone, 0, sizeof alone);
    struct engine *e;
    struct error error;
    struct engine_options options = {.threads = 2, .quiet = true, .context = 256, .eager = true, .kv_cache = kv_cache};
    bool good = engine_open(&e, &options, &error);
    for (int p = 0; good && p < PROMPTS; p++)
        for (int way = WAY_GREEDY; good && way <= WAY_SAMPLED; way++)
            good = scene_alone(e, texts, p, way, &alone[p * WAYS + way], &error);
    engine_close(e);
    return good;
}

static void scene(const struct engine_options *base, struct scene_part *part, int count, const char *name)
{
    struct engine *e;
    struct error error = {0};
    struct engine_options options = *base;
    char detail[DETAIL] = "", text[240];
    options.quiet = true;
    options.context = 256;
    options.lanes = options.lanes ? options.lanes : model.lanes;
    if (!engine_open(&e, &options, &error)) {
        ok(false, name, error.text);
        return;
    }
    int wrong = scene_play(e, part, count, texts, alone, detail);
    struct engine_counters c;
    engine_counters(e, &c);
    snprintf(text, sizeof text, "%s (%lld rounds, %.1f lanes each)", name, (long long)c.rounds,
             (double)c.lane_rounds / (double)(c.rounds ? c.rounds : 1));
    ok(wrong == 0, text, detail);
    engine_close(e);
}

static void lane_counts(void)
{
    static const int drafts[] = {0, 3, -1, 1, 5, 0, 2, -1};
    char name[100];
    for (int n = 1; n <= model.lanes; n++)
        for (int graph = 0; graph < 2; graph++) {
            struct scene_part part[MAX_LANES] = {0};
            for (int i = 0; i < n; i++)
                part[i] = (struct scene_part){.prompt = (i + n) % PROMPTS, .drafts = drafts[(i + n) % 8], .way = i % 2};
            struct engine_options options = {.threads = 1 + graph, .eager = !graph};
            snprintf(name, sizeof name, "%d lanes, different prompts, %s: concurrent == alone", n,
                     graph ? "graphs" : "eager");
            scene(&options, part, n, name);
        }
}

static void equal_prompts(void)
{
    for (int drafted = 0; drafted < 2; drafted++) {
        struct scene_part part[MAX_LANES] = {0};
        for (int i = 0; i < model.lanes; i++)
            part[i] = (struct scene_part){.prompt = 2, .drafts = drafted ? 3 : 0, .way = WAY_SAMPLED};
        struct engine_options options = {.threads = 2};
        scene(&options, part, model.lanes, drafted ? "equal prompts, drafted" : "equal prompts, undrafted");
    }
}

// Lanes end and are taken again by others, in every order; pages lie anywhere.
static void staggered(void)
{
    static const char *const orders[] = {"identity", "reversed", "shuffled"};
    static const int pages[] = {4, 64, 16};
    char name[100];
    for (int o = 0; o < 3; o++) {
        struct scene_part part[12] = {0};
        for (int i = 0; i < 12; i++)
            part[i] = (struct scene_part){
                .prompt = (5 * i + o) % PROMPTS, .drafts = i % 3 == 0 ? 0 : i % 5 - 1, .arrives = 3 * i, .way = i % 2};
        struct engine_options options = {.threads = 2, .page = pages[o], .page_order = orders[o]};
        snprintf(name, sizeof name, "staggered, pages of %d, %s", pages[o], orders[o]);
        scene(&options, part, 12, name);
    }
}

// The other encodings of the cache: other bits, the same contract.
static void encodings(void)
{
    static const char *const kinds[] = {"bf16", "fp8"};
    char name[100];
    for (int k = 0; k < 2; k++) {
        struct scene_part part[6] = {0};
        for (int i = 0; i < 6; i++)
            part[i] = (struct scene_part){.prompt = i, .drafts = i % 3 - 1, .arrives = 2 * i, .way = i % 2};
        struct engine_options options = {.threads = 2, .page = 8, .page_order = "shuffled", .kv_cache = kinds[k]};
        snprintf(name, sizeof name, "staggered, a cache of %s", kinds[k]);
        if (make_alone(kinds[k]))
            scene(&options, part, 6, name);
        else
            ok(false, name, "");
    }
}

static void few_rows(void)
{
    struct scene_part part[MAX_LANES] = {0};
    for (int i = 0; i < model.lanes; i++)
        part[i] = (struct scene_part){.prompt = i, .drafts = -1};
    struct engine_options options = {.threads = 2, .round_rows = model.lanes > 1 ? model.lanes - 1 : 1};
    scene(&options, part, model.lanes, "fewer rows than lanes: the longest unserved first");
}

static void copies(void)
{
    struct engine *e;
    struct error error = {0};
    struct engine_options options = {.threads = 2, .quiet = true, .context = 256, .lanes = model.lanes};
    struct scene_part part[2] = {{.prompt = PROMPTS - 1, .drafts = 5}, {.prompt = 1, .drafts = 2, .way = WAY_SAMPLED}};
    char detail[DETAIL] = "";
    if (!engine_open(&e, &options, &error)) {
        ok(false, "copied drafts", error.text);
        return;
    }
    int wrong = scene_play(e, part, model.lanes > 1 ? 2 : 1, texts, alone, detail);
    struct engine_counters c;
    engine_counters(e, &c);
    ok(wrong == 0, "drafts copied from the stream's own tokens, beside drafts of the head", detail);
    ok(c.copied > 0, "and some were copied", "none was");
    engine_close(e);
}

// ---- requests ----------------------------------------------------------------------------------------------------------------

static struct request request_of(int i)
{
    const struct prompt *p = &prompts[i % PROMPTS];
    return (struct request){.ids = p->ids,
                            .count = p->count,
                            .reply = REPLY,
                            .ignore_end = true,
                            .options = scene_options(i % PROMPTS, i % 2, i % 3 ? -1 : 0)};
}

static bool right_ids(struct stream *s, int i)
{
    int32_t out[2 * REPLY];
    int n = stream_take(s, out, 2 * REPLY);
    return n == REPLY && !memcmp(out, alone[i % PROMPTS * WAYS + i % 2].id, sizeof alone[0].id);
}

// Twelve requests over a pool that holds about two: all are served in turn with their own bytes, cancels leave nothing behind.
static void requests(void)
{
    enum { COUNT = 12 };
    struct engine *e;
    struct error error = {0};
    struct engine_options options = {
        .threads = 2, .quiet = true, .context = 256, .lanes = model.lanes, .page = 16, .page_order = "shuffled"};
    if (!engine_open(&e, &options, &error)) {
        ok(false, "requests", error.text);
        return;
    }
    options.pool_pages = (int)(2 * admission_need(e, IDS + REPLY));
    engine_close(e);
    struct stream *s[COUNT];
    bool busy = true, good = engine_open(&e, &options, &error);
    for (int i = 0; good && i < COUNT; i++) {
        struct request r = request_of(i);
        good = stream_submit(e, &s[i], &r, &error);
    }
    struct engine_counters c;
    int served = 0, right = 0, turns = 0, most = 0;
    for (; good && served < COUNT && turns < 2000; turns++) {
        if (turns == 5)
            stream_cancel(s[COUNT - 1]); // while it waits
        if (turns == 9)
            stream_cancel(s[1]);
        good = engine_turn(e, &busy, &error);
        engine_counters(e, &c);
        most = c.lanes_decoding > most ? c.lanes_decoding : most;
        for (int i = 0; i < COUNT; i++)
            if (s[i] && stream_phase(s[i]) >= STREAM_FINISHED) {
                right += stream_phase(s[i]) == STREAM_CANCELLED || right_ids(s[i], i);
                served++;
                stream_close(s[i]);
                s[i] = NULL;
            }
    }
    engine_counters(e, &c);
    char detail[DETAIL];
    snprintf(detail, sizeof detail, "%d of %d right, %d turns, %lld waits, %lld cancelled, at most %d lanes; %s", right,
             COUNT, turns, (long long)c.waited, (long long)c.cancelled, most, error.text);
    ok(good && right == COUNT && c.waited > 0 && c.cancelled == 2, "requests through a small pool: each reply its own",
       detail);
    ok(c.pages_claimed == 0 && c.pages_promised == 0 && !c.waiting, "and every page and promise is back", "");
    engine_close(e);
}

// A request that the pool cannot hold even when it is empty is refused at once, with the numbers; the largest that it can hold
// is served.
static void refusals(void)
{
    struct engine *e;
    struct error error = {0};
    struct engine_options options = {.threads = 2, .quiet = true, .context = 256, .page = 16, .eager = true};
    if (!engine_open(&e, &options, &error)) {
        ok(false, "refusals", error.text);
        return;
    }
    options.pool_pages = (int)admission_need(e, prompts[0].count + REPLY);
    engine_close(e);
    struct request r = request_of(0);
    struct stream *fits = NULL, *never = NULL;
    bool busy = true, good = engine_open(&e, &options, &error);
    r.reply = 255 - r.count;
    bool refused = good && !stream_submit(e, &never, &r, &error);
    ok(refused && strstr(error.text, "and the pool has"), "a request that can never fit is refused with the numbers",
       error.text);
    r.reply = 256;
    ok(good && !stream_submit(e, &never, &r, &error) && strstr(error.text, "context"), "so is one past the context",
       error.text);
    r.reply = REPLY;
    good = good && stream_submit(e, &fits, &r, &error);
    while (good && busy)
        good = engine_turn(e, &busy, &error);
    ok(good && stream_phase(fits) == STREAM_FINISHED && right_ids(fits, 0), "the largest that fits is served",
       error.text);
    stream_close(fits);
    engine_close(e);
}

// Penalties and bias look at the stream's own tokens: drafted and beside others they give what one token a round gives alone.
static bool penalised(struct engine *e, int drafts, bool company, struct scene_reply *r, struct logprobs *logprobs,
                      struct error *error)
{
    struct scene_part part = {.prompt = 1, .way = WAY_PENALISED, .drafts = drafts}, other = {.prompt = 2, .drafts = 3};
    bool good = !company || scene_begin(e, &other, &texts[2], error);
    good = good && scene_begin(e, &part, &texts[1], error);
    while (good && part.reply.count < REPLY) {
        good = engine_round(e, error);
        scene_take(&part);
    }
    for (int i = 0; good && i < REPLY; i++)
        logprobs[i] = *stream_logprobs(part.stream, i);
    stream_close(part.stream);
    stream_close(other.stream);
    *r = part.reply;
    return good;
}

static void penalties(void)
{
    struct engine *e;
    struct error error = {0};
    struct engine_options options = {.threads = 2, .quiet = true, .context = 256, .lanes = model.lanes};
    struct scene_reply plain = {0}, drafted = {0}, shared = {0};
    static struct logprobs of_plain[REPLY], of_drafted[REPLY], of_shared[REPLY];
    bool good = engine_open(&e, &options, &error) && penalised(e, 0, false, &plain, of_plain, &error) &&
                penalised(e, 3, false, &drafted, of_drafted, &error) &&
                penalised(e, 5, model.lanes > 1, &shared, of_shared, &error);
    ok(good && !memcmp(&plain, &drafted, sizeof plain) && !memcmp(&plain, &shared, sizeof plain),
       "penalties and logit bias: drafted and concurrent == alone", error.text);
    ok(good && memcmp(plain.id, alone[WAYS + WAY_SAMPLED].id, sizeof plain.id) != 0, "and they change the reply", "");
    ok(good && !memcmp(of_plain, of_drafted, sizeof of_plain) && !memcmp(of_plain, of_shared, sizeof of_plain),
       "log-probabilities: drafted and concurrent == alone", "");
    bool right = good;
    for (int i = 0; right && i < REPLY; i++)
        for (int k = 0; k < 5; k++)
            right = right && of_plain[i].count == 5 && of_plain[i].logprob[k] <= 0 &&
                    of_plain[i].chosen <= of_plain[i].logprob[0] &&
                    (k == 0 || of_plain[i].logprob[k] <= of_plain[i].logprob[k - 1]);
    ok(right, "and fall from the likeliest on", "");
    engine_close(e);
}

// A long prompt beside a reply: the reply goes on between chunks and keeps its share.
static void beside(void)
{
    struct engine *e;
    struct error error = {0};
    struct engine_options options = {
        .threads = 2, .quiet = true, .context = 1024, .lanes = 2, .busy_chunk = 32, .decode_share = 0.5f};
    static int32_t ids[900];
    for (int i = 0; i < 900; i++)
        ids[i] = prompts[i / IDS % PROMPTS].ids[i % 20];
    struct request small = {.ids = prompts[0].ids, .count = prompts[0].count, .reply = 400, .ignore_end = true},
                   large = {.ids = ids, .count = 900, .reply = 4, .ignore_end = true};
    struct stream *a = NULL, *b = NULL;
    bool busy, good = model.lanes > 1 && engine_open(&e, &options, &error);
    if (!good) {
        ok(model.lanes < 2, "a reply beside a prompt", error.text);
        return;
    }
    good = stream_submit(e, &a, &small, &error);
    for (int i = 0; good && i < 3; i++)
        good = engine_turn(e, &busy, &error);
    good = good && stream_submit(e, &b, &large, &error);
    struct engine_counters before, after;
    engine_counters(e, &before);
    while (good && (stream_phase(b) == STREAM_WAITING || stream_phase(b) == STREAM_FILLING))
        good = engine_turn(e, &busy, &error);
    engine_counters(e, &after);
    double rounds = after.decode_seconds - before.decode_seconds, chunks = after.prompt_seconds - before.prompt_seconds;
    char detail[DETAIL];
    snprintf(detail, sizeof detail, "rounds %.1f ms, chunks %.1f ms (%lld); %s", rounds * 1e3, chunks * 1e3,
             (long long)(after.chunks - before.chunks), error.text);
    ok(good && after.chunks - before.chunks >= 20, "a long prompt is read in busy chunks beside a reply", detail);
    ok(good && rounds > 0.4 * (rounds + chunks), "and the reply keeps its share of the time", detail);
    printf("# share of the reply %.2f, longest gap %.1f ms\n", rounds / (rounds + chunks),
           1e3 * stream_counters(a)->longest_gap);
    stream_close(a);
    stream_close(b);
    engine_close(e);
}

int main(void)
{
    ok(load_prompts(), "prompts are loaded", "");
    ok(make_alone(NULL), "replies of streams alone", "");
    lane_counts();
    equal_prompts();
    staggered();
    few_rows();
    copies();
    requests();
    refusals();
    penalties();
    beside();
    encodings();
    return done();
}
