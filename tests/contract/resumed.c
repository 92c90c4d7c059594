// SPDX-License-Identifier: Apache-2.0
//
// Prompts that begin at kept states: what is made from there has the ids, logit bits and log-probabilities of the whole prompt read at
// once, for states at odd places, of whole prompts, and kept in the middle of a pass, on pages that other streams hold too.
//
// Red control: a byte of every kept state is changed, which must be found.

#include "runtime/cache/cache_state.h"
#include "tests/contract/contract.h"
#include <string.h>

enum { TURNS_MOST = 2000, CACHE_BYTES = 96 << 20, INTERVAL = 40, SHORTEST = 33 };

static bool differs(const struct scene_reply *a, const struct scene_reply *b)
{
    for (int i = 0; i < SCENE_REPLY; i++)
        if (a->id[i] != b->id[i] || a->logprobs[i] != b->logprobs[i] ||
            (a->logits[i] != 1 && a->logits[i] != b->logits[i]))
            return true; // 1: the row was gone before it could be looked at
    return a->count != b->count;
}

// Serves a request to its end. False when it failed; *cached: tokens that a kept state stood for.
static bool serve(struct engine *e, const struct request *r, struct scene_part *part, int64_t *cached)
{
    struct error error;
    bool busy, good = stream_submit(e, &part->stream, r, &error);
    for (int i = 0; good && i < TURNS_MOST && stream_phase(part->stream) < STREAM_FINISHED; i++) {
        good = engine_turn(e, &busy, &error);
        scene_take(part);
    }
    good = good && stream_phase(part->stream) == STREAM_FINISHED;
    *cached = part->stream ? stream_counters(part->stream)->cached_tokens : 0;
    stream_close(part->stream);
    return good;
}

// A prompt that parts from this one at `at`, then this one, from there; then again, kept whole.
static void one_prompt(struct engine *e, const struct scene_prompt *p, int number, enum way way, int at,
                       const struct scene_reply *right, int *wrong, int *missed)
{
    int32_t other[1024];
    int64_t cached;
    struct scene_part part = {0};
    memcpy(other, p->ids, (size_t)p->count * sizeof *other);
    for (int i = at; i < p->count; i++)
        other[i] = (other[i] + 1) % model.vocabulary;
    struct request first = {.ids = other,
                            .count = p->count,
                            .marks = &at,
                            .mark_count = 1,
                            .prompt_only = true,
                            .options = scene_options(number, WAY_GREEDY, -1)};
    *wrong += !serve(e, &first, &part, &cached);
    for (int again = 0; again < 2; again++) {
        const struct request r = {.ids = p->ids,
                                  .count = p->count,
                                  .reply = SCENE_REPLY,
                                  .ignore_end = true,
                                  .options = scene_options(number, way, (number + again) % 4)};
        part = (struct scene_part){0};
        *wrong += !serve(e, &r, &part, &cached) || differs(&part.reply, right);
        *missed += cached < (again ? p->count : at);
    }
}

static void break_states(struct engine *e)
{
    uint8_t bytes[64];
    for (const struct cache_state *s = e->cache->store.first; s; s = s->next)
        for (uint32_t i = s->shared; i < s->page_count; i++)
            for (int64_t at = 0; at + 64 <= e->pages.page_bytes; at += 1024) {
                uint8_t *page = pages_at(&e->pages, s->page[i]) + at;
                device_download(bytes, page, sizeof bytes);
                bytes[2] ^= 0x41;
                device_upload(page, bytes, sizeof bytes);
                device_settle();
            }
}

void contract_resumed(int context, const struct scene_prompt *prompts, int count, const struct scene_reply *right)
{
    struct engine *e;
    struct error error = {0};
    struct engine_options options = {.threads = 2,
                                     .quiet = true,
                                     .context = context,
                                     .lanes = 2,
                                     .page = 8,
                                     .page_order = "shuffled",
                                     .synthetic = !model.has_weights,
                                     .cache_bytes = CACHE_BYTES,
                                     .cache_interval = INTERVAL};
    int wrong = 0, missed = 0, broken = 0, asked = 0;
    char name[160], detail[120];
    bool good = engine_open(&e, &options, &error);
    for (int p = 0; good && p < count; p++) {
        const struct scene_prompt *prompt = &prompts[p];
        if (prompt->count < SHORTEST)
            continue;
        const enum way way = (enum way)(p % WAYS);
        one_prompt(e, prompt, p, way, prompt->count * (3 + p % 4) / 8, &right[p * WAYS + (int)way], &wrong, &missed);
        asked += 2;
        if (p + 1 == count) { // red control
            int64_t cached;
            struct scene_part part = {0};
            const struct request r = {.ids = prompt->ids,
                                      .count = prompt->count,
                                      .reply = SCENE_REPLY,
                                      .ignore_end = true,
                                      .options = scene_options(p, way, 0)};
            break_states(e);
            broken = !serve(e, &r, &part, &cached) || differs(&part.reply, &right[p * WAYS + (int)way]);
        }
    }
    snprintf(name, sizeof name, "%s: %d prompts from kept states: resumed == fresh", model.name, asked);
    snprintf(detail, sizeof detail, "%d differ, %d began too early; %.60s", wrong, missed, error.text);
    contract_ok(good && wrong == 0 && missed == 0 && asked > 0, name, detail);
    contract_ok(broken, "red: bytes of a kept state that were changed are found", "");
    engine_close(e);
}
