// SPDX-License-Identifier: Apache-2.0
//
// The exactness matrix of one model. Prompts are as long as pages, blocks of four, chunks and windows, one less and one more, and
// long enough that attention chooses blocks.
//
// Red control: the replies of one part are compared with another way's, which must be found.

#include "graphs/exec.h"
#include "tests/contract/contract.h"
#include "tests/contract/scene.h"
#include <string.h>

enum { LONGEST = 330, CONTEXT = 384 };

static const int lengths[] = {1, 3, 4, 5, 6, 7, 8, 15, 16, 17, 33, 63, 64, 65, 129, 255, 256, 257, 320, LONGEST};
enum { PROMPTS = sizeof lengths / sizeof *lengths };

static int32_t ids[PROMPTS][LONGEST];
static struct scene_prompt prompts[PROMPTS];
static struct scene_reply right[PROMPTS * WAYS];

// Ids of a small walk: some runs repeat, so that drafts are copied as well.
static void make_prompts(void)
{
    uint64_t state = 99;
    for (int p = 0; p < PROMPTS; p++) {
        for (int i = 0; i < lengths[p]; i++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            ids[p][i] = i >= 48 && p % 3 == 0 ? ids[p][i - 24] : (int32_t)((state >> 33) % (uint64_t)model.vocabulary);
        }
        prompts[p] = (struct scene_prompt){ids[p], lengths[p]};
    }
}

static bool make_right(const char *kv_cache, struct error *error)
{
    struct engine *e;
    struct engine_options options = {.threads = 2,
                                     .quiet = true,
                                     .context = CONTEXT,
                                     .eager = true,
                                     .kv_cache = kv_cache,
                                     .synthetic = !model.has_weights};
    exec_fixed_use(false); // so that kernels for one shape are held against general ones
    bool good = engine_open(&e, &options, error);
    for (int p = 0; good && p < PROMPTS; p++)
        for (int way = 0; good && way < WAYS; way++)
            good = scene_alone(e, prompts, p, way, &right[p * WAYS + way], error);
    engine_close(e);
    exec_fixed_use(true);
    return good;
}

static void play(struct engine_options options, struct scene_part *parts, int count, const char *name)
{
    struct engine *e;
    struct error error = {0};
    char detail[256] = "", text[240];
    options.quiet = true;
    options.context = CONTEXT;
    options.synthetic = !model.has_weights;
    options.lanes = options.lanes ? options.lanes : model.lanes;
    if (!engine_open(&e, &options, &error)) {
        contract_ok(false, name, error.text);
        return;
    }
    int wrong = scene_play(e, parts, count, prompts, right, detail);
    struct engine_counters c;
    engine_counters(e, &c);
    snprintf(text, sizeof text, "%s: %s (%d streams, %lld rounds, %.1f lanes each, %lld of %lld drafts)", model.name,
             name, count, (long long)c.rounds, (double)c.lane_rounds / (double)(c.rounds ? c.rounds : 1),
             (long long)c.accepted, (long long)c.drafted);
    contract_ok(wrong == 0, text, detail);
    engine_close(e);
}

// Every prompt once, coming one after the other; drafts and ways in turn.
static int staggered(struct scene_part *parts, int turn)
{
    static const int drafts[] = {0, 3, -1, 1, 5};
    for (int p = 0; p < PROMPTS; p++)
        parts[p] = (struct scene_part){.prompt = (7 * p + turn) % PROMPTS,
                                       .drafts = drafts[(p + turn) % 5],
                                       .arrives = 2 * p,
                                       .way = (p + turn / 2) % WAYS};
    return PROMPTS;
}

static void places(bool whole)
{
    static const char *const orders[] = {"identity", "reversed", "shuffled"};
    static const int pages[] = {4, 16, 64, 256};
    for (int p = 0; p < 4; p++)
        for (int o = 0; o < 3; o++) {
            struct scene_part parts[SCENE_PARTS];
            char name[120];
            if (!whole && o != (p + 2) % 3)
                continue;
            const bool eager = (p + o) % 2;
            struct engine_options options = {
                .threads = 1 + p % 2, .page = pages[p], .page_order = orders[o], .eager = eager};
            snprintf(name, sizeof name, "staggered, pages of %d, %s, %s", pages[p], orders[o],
                     eager ? "eager" : "graphs");
            play(options, parts, staggered(parts, 3 * p + o), name);
        }
}

// Equal prompts at once, drawn alike, and different ones: every number of lanes, with null lanes where that is no power of two.
static void together(bool whole)
{
    for (int n = whole ? 1 : model.lanes; n <= model.lanes; n++)
        for (int equal = 0; equal < 2; equal++) {
            struct scene_part parts[SCENE_PARTS];
            char name[120];
            for (int i = 0; i < n; i++)
                parts[i] = (struct scene_part){.prompt = equal ? PROMPTS - 2 : (5 * i + n) % PROMPTS,
                                               .drafts = equal ? 3 : i % 4,
                                               .way = equal ? WAY_SAMPLED : i % WAYS};
            struct engine_options options = {.threads = 2, .page = 16, .page_order = "reversed"};
            snprintf(name, sizeof name, "%d lanes at once, %s prompts", n, equal ? "equal" : "different");
            play(options, parts, n, name);
        }
}

// A prompt in chunks, or (0) in two calls, of which the first ends as a prompt does.
static bool read_in_chunks(struct stream *s, int prompt, int chunk, struct error *error)
{
    const int32_t *all = ids[prompt];
    const int count = lengths[prompt], first = chunk ? count : count / 2;
    return (first == 0 || stream_prompt(s, all, first, chunk, 0, NULL, NULL, error)) &&
           (first == count || stream_prompt(s, all + first, count - first, 0, 0, NULL, NULL, error));
}

// Prompt chunks of any size make the same bits.
static void chunks(void)
{
    static const int sizes[] = {1, 7, 64, 0};
    struct engine *e;
    struct error error = {0};
    struct engine_options options = {
        .threads = 2, .quiet = true, .context = CONTEXT, .page = 4, .synthetic = !model.has_weights};
    bool good = engine_open(&e, &options, &error);
    for (int s = 0; good && s < 4; s++) {
        int wrong = 0;
        char name[120];
        for (int p = s % 3; p < PROMPTS && good; p += 3) {
            struct scene_part part = {.prompt = p, .way = WAY_SAMPLED};
            struct stream_options o = scene_options(p, WAY_SAMPLED, 0);
            good = stream_open(e, &part.stream, &o, &error) && read_in_chunks(part.stream, p, sizes[s], &error) &&
                   stream_first(part.stream, &error);
            scene_take(&part);
            while (good && part.reply.count < SCENE_REPLY) {
                good = engine_round(e, &error);
                scene_take(&part);
            }
            wrong += !good || memcmp(&part.reply, &right[p * WAYS + WAY_SAMPLED], sizeof part.reply) != 0;
            stream_close(part.stream);
        }
        if (sizes[s])
            snprintf(name, sizeof name, "%s: prompt chunks of %d", model.name, sizes[s]);
        else
            snprintf(name, sizeof name, "%s: a prompt in two calls", model.name);
        contract_ok(good && wrong == 0, name, error.text);
    }
    engine_close(e);
}

// Another encoding of the cache has other bits and the same contract.
static void caches(void)
{
    static const char *const kinds[] = {"f32", "bf16", "fp8"};
    struct error error = {0};
    for (int k = 0; k < 3; k++) {
        struct scene_part parts[SCENE_PARTS];
        struct engine_options options = {.threads = 2, .page = 8, .page_order = "shuffled", .kv_cache = kinds[k]};
        char name[120];
        if (k == device_kv_encoding)
            continue;
        snprintf(name, sizeof name, "staggered, a cache of %s", kinds[k]);
        if (make_right(kinds[k], &error))
            play(options, parts, staggered(parts, k), name);
        else
            contract_ok(false, name, error.text);
    }
}

static void red_control(void)
{
    struct scene_part part = {.prompt = 3, .way = WAY_SAMPLED, .drafts = 2};
    struct scene_reply kept = right[3 * WAYS + WAY_SAMPLED];
    struct engine *e;
    struct error error = {0};
    struct engine_options options = {.threads = 1, .quiet = true, .context = CONTEXT, .synthetic = !model.has_weights};
    char detail[256] = "";
    right[3 * WAYS + WAY_SAMPLED].logits[SCENE_REPLY - 1] ^= 1;
    int wrong = engine_open(&e, &options, &error) ? scene_play(e, &part, 1, prompts, right, detail) : 0;
    right[3 * WAYS + WAY_SAMPLED] = kept;
    contract_ok(wrong == 1 && strstr(detail, "logits"), "red: one bit of a row of logits is found", detail);
    engine_close(e);
}

static bool begin(void)
{
    struct error error = {0};
    make_prompts();
    bool good = make_right(NULL, &error);
    contract_ok(good, "replies of streams alone", error.text);
    return good;
}

void contract_matrix(bool whole)
{
    if (!begin())
        return;
    red_control();
    places(whole);
    together(whole);
    chunks();
    contract_resumed(CONTEXT, prompts, PROMPTS, right);
    contract_ready(CONTEXT, prompts, PROMPTS, right);
    caches();
    contract_pool();
}

void contract_keys(void)
{
    if (begin())
        contract_faults(CONTEXT, prompts, PROMPTS, right);
}
