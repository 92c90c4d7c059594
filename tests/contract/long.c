// SPDX-License-Identifier: Apache-2.0
//
// Long prompts with generated weights: three equal ones at once with shuffled pages, each with the bits of one alone.

#include "tests/contract/contract.h"
#include "tests/contract/scene.h"
#include <stdlib.h>

enum { AT_ONCE = 3 };

static void one_length(struct engine *e, int length)
{
    int32_t *ids = malloc((size_t)length * sizeof *ids);
    struct scene_prompt prompt = {ids, length};
    struct scene_reply right[WAYS];
    struct error error = {0};
    char detail[256] = "", name[120];
    uint64_t state = 5;
    for (int i = 0; ids && i < length; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        ids[i] = (int32_t)((state >> 33) % (uint64_t)model.vocabulary);
    }
    int wrong = 1;
    if (ids && scene_alone(e, &prompt, 0, WAY_SAMPLED, &right[WAY_SAMPLED], &error)) {
        struct scene_part parts[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++)
            parts[i] = (struct scene_part){.way = WAY_SAMPLED, .drafts = i};
        wrong = scene_play(e, parts, AT_ONCE, &prompt, right, detail);
    }
    snprintf(name, sizeof name, "%s: %d equal prompts of %d tokens at once, pages of %d shuffled", model.name, AT_ONCE,
             length, e->options.page);
    contract_ok(wrong == 0, name, wrong && !detail[0] ? error.text : detail);
    printf("# logits of the last token %016llx\n", (unsigned long long)right[WAY_SAMPLED].logits[SCENE_REPLY - 1]);
    free(ids);
}

void contract_long(int count, char **lengths)
{
    struct engine *e;
    struct error error = {0};
    struct engine_options options = {
        .synthetic = true, .quiet = true, .lanes = AT_ONCE, .page = 256, .page_order = "shuffled"};
    for (int i = 0; i < count; i++)
        options.context = atoi(lengths[i]) + 64 > options.context ? atoi(lengths[i]) + 64 : options.context;
    bool good = engine_open(&e, &options, &error);
    contract_ok(good, "an engine with generated weights", error.text);
    for (int i = 0; good && i < count; i++)
        one_length(e, atoi(lengths[i]));
    engine_close(e);
}
