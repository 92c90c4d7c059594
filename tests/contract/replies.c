// SPDX-License-Identifier: Apache-2.0
//
// Greedy replies of the embedded model to the stored prompts, as a file: one target's replies against another's. Two targets add
// in different orders, so a reply may differ where the best two tokens are close; drafts may not change one.

#include "runtime/engine_state.h"
#include "tests/contract/contract.h"
#include "tests/stored_prompts.h"
#include <math.h>
#include <string.h>

enum { REPLY = 48 };
static const double SHARE = 0.95, LOW_MARGIN = 0.25; // of the distance between the best two logits

struct made {
    int32_t id[REPLY];
    float margin[REPLY];
};

static struct made made[PROMPTS], stored[PROMPTS];

static float margin_of(const float *logits)
{
    float best = -INFINITY, second = -INFINITY;
    for (int i = 0; logits && i < model.vocabulary; i++) {
        second = logits[i] > best ? best : logits[i] > second ? logits[i] : second;
        best = logits[i] > best ? logits[i] : best;
    }
    return best - second;
}

static bool is_end(int32_t id)
{
    for (int i = 0; i < model.end_count; i++)
        if (model.end_tokens[i] == id)
            return true;
    return false;
}

static bool reply_to(struct engine *e, const struct prompt *p, int drafts, struct made *m, struct error *error)
{
    struct stream_options options = {.drafts = drafts, .sampling = {.top_p = 1}};
    struct stream *s;
    int32_t out[16];
    int made_count = 0, count = 1;
    bool good = stream_open(e, &s, &options, error) && stream_prompt(s, p->ids, p->count, 0, 0, NULL, NULL, error);
    while (good && count > 0 && made_count < REPLY) {
        good = stream_next(s, out, &count, error);
        for (int i = 0; good && i < count && made_count < REPLY; i++, made_count++) {
            m->id[made_count] = out[i];
            m->margin[made_count] = drafts ? 0 : margin_of(stream_logits(s, i));
            if (is_end(out[i])) // what follows is no reply
                count = 0;
        }
    }
    stream_close(s);
    return good;
}

static void compare(void)
{
    int equal = 0, close = 0;
    double worst = 0;
    for (int p = 0; p < PROMPTS; p++) {
        int i = 0;
        while (i < REPLY && made[p].id[i] == stored[p].id[i])
            i++;
        equal += i == REPLY;
        if (i == REPLY)
            continue;
        close += (double)stored[p].margin[i] < LOW_MARGIN;
        worst = fmax(worst, (double)stored[p].margin[i]);
    }
    char name[160];
    snprintf(name, sizeof name,
             "%d of %d replies are the other target's, the others differ first at margins up to %.4f", equal, PROMPTS,
             worst);
    contract_ok(equal >= SHARE * PROMPTS && equal + close == PROMPTS, name, "");
}

void contract_replies(const char *path, bool comparing, const char *kv_cache)
{
    struct engine *e;
    struct error error = {0};
    struct engine_options options = {.quiet = true, .kv_cache = kv_cache};
    bool good = load_prompts() == PROMPTS && engine_open(&e, &options, &error);
    for (int p = 0; good && p < PROMPTS; p++)
        good = reply_to(e, &prompts[p], 0, &made[p], &error);
    contract_ok(good, "replies of the stored prompts", error.text);
    if (!good)
        return;
    FILE *file = fopen(path, comparing ? "rb" : "wb");
    good = file && (comparing ? fread(stored, sizeof stored, 1, file) : fwrite(made, sizeof made, 1, file)) == 1;
    contract_ok(good, path, "cannot be read or written");
    if (file)
        fclose(file);
    if (good && comparing) {
        int same = 0;
        compare();
        for (int p = 0; p < PROMPTS; p++) {
            struct made drafted = {0};
            same += reply_to(e, &prompts[p], 3, &drafted, &error) && !memcmp(drafted.id, made[p].id, sizeof drafted.id);
        }
        contract_ok(same == PROMPTS, "drafted == undrafted for all of them", error.text);
    }
    engine_close(e);
}
