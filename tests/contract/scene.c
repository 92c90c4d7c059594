// SPDX-License-Identifier: Apache-2.0
//
// Scenes of streams. See scene.h.

#include "tests/contract/scene.h"
#include <string.h>
#include <xxhash.h>

enum { ROUNDS_MOST = 2000 };

struct stream_options scene_options(int prompt, enum way way, int drafts)
{
    static struct token_bias bias[2];
    struct stream_options o = {.drafts = drafts, .sampling = {.top_p = 1, .seed = (uint64_t)prompt + 7}};
    bias[0] = (struct token_bias){7 % model.vocabulary, 2};
    bias[1] = (struct token_bias){8 % model.vocabulary, -3};
    if (way != WAY_GREEDY) {
        o.sampling.temperature = 0.9f;
        o.sampling.top_k = 30;
        o.sampling.top_p = 0.95f;
    }
    if (way == WAY_PENALISED) {
        o.sampling.presence = 0.5f;
        o.sampling.frequency = 0.75f;
        o.sampling.repetition = 1.3f;
        o.sampling.bias = bias;
        o.sampling.bias_count = 2;
        o.logprobs = 5;
    }
    return o;
}

void scene_take(struct scene_part *part)
{
    struct scene_reply *r = &part->reply;
    int32_t out[MAX_WINDOW];
    int n = stream_take(part->stream, out, MAX_WINDOW);
    for (int i = 0; i < n && r->count < SCENE_REPLY; i++, r->count++) {
        const float *logits = stream_logits(part->stream, i);
        const struct logprobs *logprobs = stream_logprobs(part->stream, r->count);
        r->id[r->count] = out[i];
        r->logits[r->count] = logits ? XXH3_64bits(logits, (size_t)model.vocabulary * sizeof *logits) : 1;
        r->logprobs[r->count] = logprobs ? XXH3_64bits(logprobs, sizeof *logprobs) : 0;
    }
}

bool scene_begin(struct engine *engine, struct scene_part *part, const struct scene_prompt *prompt, struct error *error)
{
    struct stream_options o = scene_options(part->prompt, part->way, part->drafts);
    if (!stream_open(engine, &part->stream, &o, error) ||
        !stream_prompt(part->stream, prompt->ids, prompt->count, 0, 0, NULL, NULL, error) ||
        !stream_first(part->stream, error))
        return false;
    scene_take(part);
    return true;
}

bool scene_alone(struct engine *engine, const struct scene_prompt *prompts, int prompt, enum way way,
                 struct scene_reply *reply, struct error *error)
{
    struct scene_part part = {.prompt = prompt, .way = way};
    bool good = scene_begin(engine, &part, &prompts[prompt], error);
    while (good && part.reply.count < SCENE_REPLY) {
        good = engine_round(engine, error);
        scene_take(&part);
    }
    stream_close(part.stream);
    *reply = part.reply;
    return good;
}

static bool same(const struct scene_part *p, const struct scene_prompt *prompts, const struct scene_reply *right,
                 char *detail)
{
    for (int i = 0; i < SCENE_REPLY; i++) {
        const char *what = p->reply.id[i] != right->id[i]               ? "id"
                           : p->reply.logits[i] != right->logits[i]     ? "row of logits"
                           : p->reply.logprobs[i] != right->logprobs[i] ? "row of log-probabilities"
                                                                        : NULL;
        if (!what)
            continue;
        snprintf(detail, 256, "prompt of %d tokens, way %d, drafts %d: %s %d differs", prompts[p->prompt].count, p->way,
                 p->drafts, what, i);
        return false;
    }
    return true;
}

int scene_play(struct engine *engine, struct scene_part *parts, int count, const struct scene_prompt *prompts,
               const struct scene_reply *right, char *detail)
{
    struct error error = {0};
    struct engine_counters c;
    int done = 0, wrong = 0;
    for (int round = 0; done < count && round < ROUNDS_MOST; round++) {
        for (int i = 0; i < count; i++) {
            struct scene_part *p = &parts[i];
            engine_counters(engine, &c);
            if (p->stream || p->reply.count || p->arrives > round || c.lanes_decoding == c.lanes)
                continue;
            if (!scene_begin(engine, p, &prompts[p->prompt], &error))
                snprintf(detail, 256, "prompt %d: %.200s", p->prompt, error.text);
        }
        if (!engine_round(engine, &error))
            snprintf(detail, 256, "%.200s", error.text);
        for (int i = 0; i < count; i++) {
            struct scene_part *p = &parts[i];
            if (!p->stream)
                continue;
            scene_take(p);
            if (p->reply.count < SCENE_REPLY)
                continue;
            wrong += !same(p, prompts, &right[p->prompt * WAYS + (int)p->way], detail);
            stream_close(p->stream);
            p->stream = NULL;
            done++;
        }
    }
    engine_counters(engine, &c);
    if (c.pages_claimed || c.pages_promised)
        snprintf(detail, 256, "%lld pages are still claimed, %lld promised", (long long)c.pages_claimed,
                 (long long)c.pages_promised);
    return wrong + (count - done) + (c.pages_claimed != 0) + (c.pages_promised != 0);
}
