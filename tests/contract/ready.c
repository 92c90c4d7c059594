// SPDX-License-Identifier: Apache-2.0
//
// An engine that has opened needs no more of the target's memory: with all of it refused, streams with penalties and logit bias open, in
// every lane and after each other, with the replies that they have alone, and go back to kept states.
//
// Red control: what is asked for while the memory is closed is refused and counted.

#include "tests/contract/contract.h"
#include "tests/contract/memory.h"
#include <string.h>

enum { STREAMS = 12, SOME = 6 };

// A second turn from the kept state has the tokens of a stream that read it whole.
static bool second_turn(struct engine *e, const struct scene_prompt *p, struct error *error)
{
    const struct stream_options o = scene_options(1, WAY_PENALISED, 2);
    int32_t ids[1024], out[2][SOME + MAX_WINDOW];
    memcpy(ids, p->ids, (size_t)p->count * sizeof *ids);
    ids[p->count] = ids[p->count + 1] = 1;
    bool good = true;
    for (int way = 0; good && way < 2; way++) {
        struct stream *s = NULL;
        int n = 0;
        good = stream_open(e, &s, &o, error);
        if (way == 0)
            good = good && stream_prompt(s, ids, p->count, 0, 0, NULL, NULL, error) &&
                   stream_next(s, out[0], &n, error) && stream_continue(s, ids, p->count + 2, error) &&
                   stream_counters(s)->prompt_tokens == p->count + 2 + model.opening;
        else
            good = good && stream_prompt(s, ids, p->count + 2, 0, 0, NULL, NULL, error);
        for (int got = 0; good && got < SOME; got += n)
            good = stream_next(s, out[way] + got, &n, error) && n > 0;
        stream_close(s);
    }
    return good && !memcmp(out[0], out[1], SOME * sizeof out[0][0]);
}

void contract_ready(int context, const struct scene_prompt *prompts, int count, const struct scene_reply *right)
{
    struct engine *e;
    struct error error = {0};
    struct engine_options options = {
        .threads = 2, .quiet = true, .context = context, .lanes = model.lanes, .synthetic = !model.has_weights};
    struct scene_part parts[STREAMS];
    char name[160], detail[256] = "";
    for (int i = 0; i < STREAMS; i++)
        parts[i] = (struct scene_part){.prompt = (5 * i + 2) % count,
                                       .drafts = i % 4,
                                       .arrives = i / 2,
                                       .way = i % 3 ? WAY_PENALISED : WAY_SAMPLED};
    bool good = engine_open(&e, &options, &error);
    memory_close(true);
    const bool red = !device_alloc(64, "a red control", NULL) && memory_refused() == 1;
    memory_close(true);
    const int wrong = good ? scene_play(e, parts, STREAMS, prompts, right, detail) : STREAMS;
    good = good && second_turn(e, &prompts[count - 1], &error);
    const int asked = memory_refused();
    memory_close(false);
    snprintf(name, sizeof name, "%s: with no memory after the start, penalised streams == alone", model.name);
    contract_ok(good && wrong == 0, name, detail[0] ? detail : error.text);
    snprintf(detail, sizeof detail, "%d times", asked);
    contract_ok(asked == 0, "and none was asked for", detail);
    contract_ok(red, "red: memory that is asked for after the start is refused and counted", "");
    engine_close(e);
}
