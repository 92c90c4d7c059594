// SPDX-License-Identifier: Apache-2.0
//
// The turns that `bench --turns` times, on the embedded model: how many tokens each case finds and reads, the same reply and the
// same bits in all of them, in any order. Red controls: a kept state whose bytes were changed, and a cache that keeps nothing of it.

#include "runtime/turns.h"
#include "tests/cache_rig.h"

static int32_t ids[1024];

struct scene {
    const char *name;
    struct engine_options options;
    int history, reply, fresh;
};

static const struct scene scenes[] = {
    {"pages of 8", {.lanes = 2, .page_order = "shuffled", .cache_interval = 64}, 200, 11, 20},
    {"pages of 64, small chunks", {.page = 64, .solo_chunk = 24, .busy_chunk = 7}, 300, 40, 64},
    {"one new token", {.cache_interval = 32}, 60, 1, 1},
    {"fewer new tokens than open a reply", {.no_drafts = true}, 128, 5, TURN_OPENING - 1},
};

static const enum turn_case orders[][TURN_CASES] = {
    {TURN_RESUMED, TURN_AGAIN, TURN_WARM, TURN_COLD},
    {TURN_COLD, TURN_WARM, TURN_AGAIN, TURN_RESUMED},
    {TURN_AGAIN, TURN_COLD, TURN_RESUMED, TURN_WARM},
};
enum { ORDERS = sizeof orders / sizeof *orders };

static struct engine *open_for(const struct scene *s)
{
    struct engine_options options = s->options;
    options.cache_bytes = turn_cache_bytes(512, 64, 0);
    return rig_open(options);
}

// A prompt's tokens all come from a state or are read, and the state is the one that the case is about.
static bool counts_right(const struct turn_talk *t, enum turn_case which, const struct turn *p)
{
    const int cached[TURN_CASES] = {0, t->before, t->count, t->history};
    const int pass_read = which == TURN_WARM ? t->history - t->before : 0;
    return p->cached == cached[which] && p->cached + p->read == t->count && (p->chunks > 0) == (p->read > 0) &&
           p->first > 0 && p->pass_read == pass_read && (p->pass > 0) == (pass_read > 0) &&
           (which == TURN_COLD) == (p->restore <= 0);
}

static void play(const struct scene *s)
{
    struct engine *e = open_for(s), *plain = rig_open((struct engine_options){.page = 16});
    struct turn_talk talk = {0};
    struct error error = {0};
    struct turn turn, first = {0};
    char name[200], detail[200] = "";
    int wrong = 0, differ = 0;
    bool good = e && plain && turn_open(&talk, e, ids, s->history, s->reply, s->fresh, &error);
    for (int i = 0; good && i < ORDERS * TURN_CASES; i++) {
        const enum turn_case which = orders[i / TURN_CASES][i % TURN_CASES];
        good = turn_play(e, &talk, which, &turn, &error);
        if (!good)
            break;
        if (i == 0)
            first = turn;
        wrong += !counts_right(&talk, which, &turn);
        differ += turn.logits == 0 || !turn_same(&first, "first", &turn, turn_names[which], &error);
        if (wrong && !*detail)
            snprintf(detail, sizeof detail, "%s: cached %d, read %d in %d chunks, pass %d", turn_names[which],
                     turn.cached, turn.read, turn.chunks, turn.pass_read);
    }
    snprintf(name, sizeof name, "%s: %d tokens, %d before the turn: what each case finds and reads", s->name,
             talk.count, talk.before);
    ok(good && wrong == 0, name, good ? detail : error.text);
    // An engine without a cache, driven by its caller.
    struct stream *alone = NULL;
    const struct stream_options greedy = {.sampling = {.top_p = 1}};
    int32_t reply[MAX_WINDOW];
    int made = 0, count = 0;
    good = good && stream_open(plain, &alone, &greedy, &error) &&
           stream_prompt(alone, talk.ids, talk.count, 0, 0, NULL, NULL, &error);
    for (; good && made < TURN_REPLY; made += count) {
        good = stream_next(alone, reply, &count, &error) && made + count <= TURN_REPLY;
        differ += good && memcmp(reply, first.reply + made, (size_t)count * sizeof *reply) != 0;
    }
    ok(good && differ == 0, "all have one reply and its bits, and an engine without a cache has it too", error.text);
    stream_close(alone);
    turn_close(&talk);
    engine_close(plain);
    engine_close(e);
}

// Zeros in the recurrent state that was kept of the prompt before.
static int spoil(struct engine *e, int length)
{
    int spoiled = 0;
    for (struct cache_state *s = cache_store(e)->first; s; s = s->next)
        for (uint32_t i = s->shared + 1; s->length == length && i < s->page_count; i++, spoiled++)
            memset(pages_at(&e->pages, s->page[i]), 0, (size_t)e->pages.page_bytes);
    return spoiled;
}

static void red(void)
{
    const struct scene *s = &scenes[0];
    struct engine *e = open_for(s);
    struct turn_talk talk = {0};
    struct error error = {0};
    struct turn cold, resumed, spoiled;
    bool good = e && turn_open(&talk, e, ids, s->history, s->reply, s->fresh, &error) &&
                turn_play(e, &talk, TURN_COLD, &cold, &error) && turn_play(e, &talk, TURN_RESUMED, &resumed, &error) &&
                turn_same(&cold, "cold", &resumed, "resumed", &error) && spoil(e, talk.before) > 0 &&
                turn_play(e, &talk, TURN_RESUMED, &spoiled, &error);
    ok(good && !turn_same(&cold, "cold", &spoiled, "resumed", &error) && error.code == 1 &&
           strstr(error.text, "cold") && strstr(error.text, "resumed"),
       "red: a changed state is seen by the reply, exit code 1", error.text);
    turn_close(&talk);
    // As many bytes as one state of few positions takes.
    engine_close(e);
    e = rig_open((struct engine_options){.cache_bytes = model.run_bytes + 16 * 8 * model.position_bytes[0]});
    good = e && turn_open(&talk, e, ids, 400, s->reply, s->fresh, &error);
    ok(good && !turn_play(e, &talk, TURN_RESUMED, &resumed, &error) && error.code == 2 &&
           strstr(error.text, "--prompt-cache-gib"),
       "red: a case whose state was not kept is refused", error.text);
    turn_close(&talk);
    ok(!turn_open(&talk, e, ids, TURN_PROMPT + TURN_HEAD, 1, 4, &error) && strstr(error.text, "at least"),
       "a history that leaves no prompt is refused", error.text);
    turn_close(&talk);
    engine_close(e);
}

// Turns until a request has its first tokens; how many came together.
static int first_tokens(struct engine *e, struct stream *s)
{
    int32_t taken[MAX_WINDOW];
    bool busy = true;
    int count = 0;
    for (int i = 0; s && i < 100 && count == 0 && engine_turn(e, &busy, NULL); i++)
        count = stream_take(s, taken, MAX_WINDOW);
    return busy ? count : 0;
}

static void first_goes_out(void)
{
    struct engine *e = rig_open((struct engine_options){.lanes = 2});
    struct talk talk = {0};
    say_more(&talk, 40);
    const struct ask ask = {.talk = &talk, .reply = 12};
    struct stream *one = rig_submit(e, &ask);
    const int alone = first_tokens(e, one);
    struct stream *two = rig_submit(e, &ask);
    const int beside = first_tokens(e, two);
    ok(alone == 1, "the first token of a stream alone does not wait for the round after it", "");
    ok(beside == 2, "beside a reply, which waits for that round, it does", "");
    stream_close(one);
    stream_close(two);
    engine_close(e);
}

int main(void)
{
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        ids[i] = below(model.vocabulary);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        play(&scenes[i]);
    red();
    first_goes_out();
    return done();
}
