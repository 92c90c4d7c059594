// SPDX-License-Identifier: Apache-2.0
//
// The next turn of a chat at the level of tokens; see turns.h. The order of cases is free: each brings the cache to where it
// begins, which costs least when cold ones come last.

#include "runtime/turns.h"
#include "runtime/engine_state.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { STATES = 24 }; // kept at messages and ends

const char *const turn_names[TURN_CASES] = {"cold", "resumed", "again", "warm"};

int turn_positions(int history, int fresh)
{
    return history + fresh + TURN_REPLY + MAX_WINDOW;
}

// States at an interval weigh about as much as the pages between them, unless they are so large that they lie farther apart.
int64_t turn_cache_bytes(int positions, int page, int kv_encoding)
{
    const int64_t position = model.position_bytes[kv_encoding], own = model.run_bytes + 2 * page * position;
    return 2 * positions * position + (STATES + positions / CACHE_MOST_INTERVAL) * own;
}

// ---- requests --------------------------------------------------------------------------------------------------------------

static bool turn_once(struct engine *e, const struct stream *s, struct error *error)
{
    bool busy = false;
    if (!engine_turn(e, &busy, error))
        return false;
    if (stream_phase(s) == STREAM_FAILED)
        return error_set(error, "%s", stream_error(s));
    return busy || stream_phase(s) >= STREAM_FINISHED ||
           error_set(error,
                     "the request waits for memory that nothing will free: a smaller --prompt-cache-gib is needed");
}

// The first `count` ids as a request; drafts would change how the engine reads prompts with what it learns of them.
static bool submit(struct engine *e, struct stream **s, const struct turn_talk *t, int count, int reply,
                   struct error *error)
{
    int marks = 0;
    while (marks < 3 && t->marks[marks] <= count)
        marks++;
    const struct request request = {.ids = t->ids,
                                    .count = count,
                                    .reply = reply,
                                    .ignore_end = true,
                                    .marks = t->marks,
                                    .mark_count = marks,
                                    .prompt_only = reply == 0,
                                    .options = {.sampling = {.top_p = 1}}};
    return stream_submit(e, s, &request, error);
}

// Serves the first `count` ids to the end of a reply, into reply[most]. out: what the first token took, or NULL.
static bool serve(struct engine *e, const struct turn_talk *t, int count, int32_t *reply, int most, struct turn *out,
                  struct error *error)
{
    struct stream *s = NULL;
    const int64_t chunks = e->counters.chunks;
    const double start = engine_seconds();
    bool ok = submit(e, &s, t, count, most, error);
    for (int made = 0; ok && made < most;) {
        ok = turn_once(e, s, error);
        const int took = ok ? stream_take(s, reply + made, most - made) : 0;
        if (out && made == 0 && took > 0) {
            out->first = engine_seconds() - start;
            const float *logits = stream_logits(s, took - 1); // brought to the host for the comparison alone
            out->cached = (int)stream_counters(s)->cached_tokens;
            out->read = (int)stream_counters(s)->prompt_tokens;
            out->chunks = (int)(e->counters.chunks - chunks);
            out->logits = logits ? XXH3_64bits(logits, (size_t)model.vocabulary * sizeof *logits) : 0;
        }
        made += took;
    }
    stream_close(s);
    return ok;
}

// Sees to it that the state of the first `count` ids is kept; *seconds: how long that took, its copy included.
static bool keep(struct engine *e, const struct turn_talk *t, int count, double *seconds, struct error *error)
{
    struct stream *s = NULL;
    const double start = engine_seconds();
    bool ok = submit(e, &s, t, count, 0, error);
    while (ok && stream_phase(s) < STREAM_FINISHED)
        ok = turn_once(e, s, error);
    device_settle();
    *seconds = engine_seconds() - start;
    stream_close(s);
    return ok;
}

static bool warm_pass(struct engine *e, const struct turn_talk *t, struct turn *out, struct error *error)
{
    const int64_t read = e->counters.prompt_tokens;
    const double start = engine_seconds();
    bool busy = true;
    if (!engine_warm(e, t->ids, t->history, t->marks, 2))
        return error_set(error, "the engine takes no warm pass of %d tokens", t->history);
    while (busy)
        if (!engine_turn(e, &busy, error))
            return false;
    out->pass = engine_seconds() - start;
    out->pass_read = (int)(e->counters.prompt_tokens - read);
    return true;
}

// ---- a conversation --------------------------------------------------------------------------------------------------------

bool turn_check(int history, int reply, int fresh, struct error *error)
{
    const int before = history - reply - TURN_HEAD;
    if (reply < 1 || fresh < 1 || before < TURN_PROMPT)
        return error_set(error,
                         "a turn after %d tokens, %d of them a reply and %d the turn's head, leaves %d for the prompt "
                         "before: at least %d are needed",
                         history, reply, TURN_HEAD, before, TURN_PROMPT);
    return true;
}

bool turn_open(struct turn_talk *t, struct engine *e, const int32_t *ids, int history, int reply, int fresh,
               struct error *error)
{
    const int before = history - reply - TURN_HEAD;
    *t = (struct turn_talk){.before = before, .history = history, .count = history + fresh};
    if (!turn_check(history, reply, fresh, error))
        return false;
    t->marks[0] = before - TURN_OPENING;
    t->marks[1] = history - TURN_HEAD + 2; // behind what closes the reply
    t->marks[2] = fresh > TURN_OPENING ? t->count - TURN_OPENING : t->count;
    t->ids = malloc((size_t)t->count * sizeof *t->ids);
    if (!t->ids)
        return error_set(error, "no memory for %d ids", t->count);
    memcpy(t->ids, ids, (size_t)t->count * sizeof *ids);
    cache_forget(e, 0);
    return serve(e, t, before, t->ids + before, reply, NULL, error);
}

void turn_close(struct turn_talk *t)
{
    free(t->ids);
    *t = (struct turn_talk){0};
}

// ---- cases -----------------------------------------------------------------------------------------------------------------

bool turn_play(struct engine *e, const struct turn_talk *t, enum turn_case which, struct turn *out, struct error *error)
{
    const int from[TURN_CASES] = {0, t->before, t->count, t->history}; // where the state is that the case begins at
    double seconds;
    *out = (struct turn){0};
    if (which != TURN_AGAIN)
        cache_forget(e, which == TURN_COLD ? 0 : t->before);
    bool ok = which == TURN_COLD || keep(e, t, which == TURN_AGAIN ? t->count : t->before, &seconds, error);
    ok = ok && (which != TURN_WARM || warm_pass(e, t, out, error)) &&
         serve(e, t, t->count, out->reply, TURN_REPLY, out, error) &&
         (which == TURN_COLD || keep(e, t, from[which], &out->restore, error));
    if (ok && out->cached != from[which])
        return error_set(error,
                         "a turn of %d tokens was to begin at a kept state of %d and began at %d: a larger "
                         "--prompt-cache-gib is needed",
                         t->count, from[which], out->cached);
    return ok;
}

bool turn_same(const struct turn *a, const char *a_name, const struct turn *b, const char *b_name, struct error *error)
{
    int at = 0;
    while (at < TURN_REPLY && a->reply[at] == b->reply[at])
        at++;
    if (at == TURN_REPLY && a->logits == b->logits)
        return true;
    if (at < TURN_REPLY)
        error_set(error, "the replies differ: token %d is %d %s and %d %s", at, a->reply[at], a_name, b->reply[at],
                  b_name);
    else
        error_set(error, "the logits of the first token differ, %s and %s", a_name, b_name);
    error->code = 1;
    return false;
}
