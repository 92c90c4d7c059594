// SPDX-License-Identifier: Apache-2.0
//
// The prompt cache on the embedded model: a request that begins at a kept state has the ids, logit bits and drafts of one that
// does not, wherever the state lies and whatever went before; and what the cache holds, gives up and says about it.
// `--more` plays longer conversations. Linked with the model's programs and a page pool that checks what is written.

#include "tests/cache_rig.h"

enum { CONVERSATIONS = 300, BRANCHES = 12, GROUP = 60, INTERVAL = 16, MIB = 1 << 20 };

static struct engine *plain; // keeps nothing
static bool more;

// ---- conversations -----------------------------------------------------------------------------------------------------------

static int shared(const struct talk *a, const struct talk *b)
{
    int n = 0;
    while (n < a->count && n < b->count && a->ids[n] == b->ids[n])
        n++;
    return n;
}

// The next version of a conversation: another turn, a changed last message, a changed history, an old place again.
static void next_version(struct talk *t, const struct served *reply)
{
    const int way = below(8), before = t->mark_count > 1 ? t->marks[t->mark_count - 2] : t->count / 2;
    if (way == 0 && before > 0)
        t->count = before; // the last message is edited
    else if (way == 1)
        t->ids[below(t->count)] ^= 1; // compaction, a changed date: anything
    else if (way == 2)
        t->count = 1 + below(t->count);
    else if (way > 4)
        t->count -= t->count > 3 ? below(3) : 0; // the opening of the reply is spelled in another way
    while (t->mark_count > 0 && t->marks[t->mark_count - 1] > t->count)
        t->mark_count--;
    for (int i = 0; way > 2 && i < reply->count && t->count < RIG_IDS; i++)
        t->ids[t->count++] = reply->id[i];
    if (t->mark_count + 2 > RIG_MARKS) {
        memmove(t->marks, t->marks + 2, (RIG_MARKS - 2) * sizeof t->marks[0]);
        t->mark_count -= 2;
    }
    t->marks[t->mark_count++] = t->count;
    say_more(t, 1 + below(more ? 60 : 14));
    t->marks[t->mark_count++] = t->count;
    say_more(t, 1 + below(3));
}

struct tally {
    int wrong, short_of, requests;
    int64_t cached, prompt;
};

// One conversation among others that begin as it does. seen: earlier versions, which the shared prefix is measured against.
static void converse(struct engine *cached, struct talk *seen, int *seen_count, struct tally *tally)
{
    struct talk *t = &seen[BRANCHES];
    const int turns = more ? 5 : 2;
    *t = (struct talk){0};
    if (*seen_count > 0 && below(3)) { // a system text that others have
        const struct talk *other = &seen[below(*seen_count)];
        t->count = 1 + below(other->count < 40 ? other->count : 40);
        memcpy(t->ids, other->ids, (size_t)t->count * sizeof t->ids[0]);
    }
    say_more(t, 3 + below(more ? 80 : 20));
    for (int turn = 0; turn < turns && t->count < 400; turn++) {
        const struct ask ask = {.talk = t, .reply = below(3) ? 1 : 3, .drafts = below(2) ? 2 : 0, .sampled = below(2)};
        const struct served fresh = serve(plain, &ask), resumed = serve(cached, &ask);
        int most = 0;
        for (int i = 0; i < *seen_count; i++) {
            const int n = shared(&seen[i], t);
            most = n > most ? n : most;
        }
        tally->requests++;
        tally->cached += resumed.cached;
        tally->prompt += t->count;
        tally->wrong += !same_reply(&fresh, &resumed) || resumed.cached + resumed.read != t->count;
        tally->short_of += resumed.cached < most - INTERVAL;
        seen[*seen_count < BRANCHES ? (*seen_count)++ : below(BRANCHES)] = *t;
        next_version(t, &fresh);
    }
}

static void conversations(void)
{
    static struct talk seen[BRANCHES + 1];
    struct tally tally = {0};
    const struct engine_options options = {
        .cache_bytes = (int64_t)600 * MIB, .cache_interval = INTERVAL, .page_order = "shuffled", .lanes = 2};
    struct cache_counters c = {0};
    char name[200], detail[200];
    const int group = more ? GROUP / 4 : GROUP; // a store has states of so many prompts at most
    for (int i = 0; i < CONVERSATIONS; i += group) {
        struct engine *cached = rig_open(options);
        int seen_count = 0;
        for (int k = 0; cached && k < group; k++)
            converse(cached, seen, &seen_count, &tally);
        c.hits += counted(cached).hits;
        c.evicted += counted(cached).evicted;
        c.cached_tokens += counted(cached).cached_tokens;
        engine_close(cached);
    }
    snprintf(name, sizeof name,
             "%d conversations, %d requests: resumed == fresh (%.0f %% of %lld prompt tokens cached)", CONVERSATIONS,
             tally.requests, 100.0 * (double)tally.cached / (double)tally.prompt, (long long)tally.prompt);
    snprintf(detail, sizeof detail, "%d differ", tally.wrong);
    ok(tally.requests >= 2 * CONVERSATIONS && tally.wrong == 0, name, detail);
    snprintf(detail, sizeof detail, "%d requests fall short; %lld states were given up", tally.short_of,
             (long long)c.evicted);
    ok(c.evicted == 0 && tally.short_of == 0, "cached tokens are the longest shared prefix less one interval at most",
       detail);
    snprintf(detail, sizeof detail, "%lld hits, cached %lld and %lld", (long long)c.hits, (long long)c.cached_tokens,
             (long long)tally.cached);
    ok(c.hits > CONVERSATIONS / 2 && c.cached_tokens == tally.cached, "and are counted", detail);
}

// ---- every place -------------------------------------------------------------------------------------------------------------

// A state at each place around the boundaries of blocks, pages, chunks and windows; another prompt goes on from it.
static void places(const struct engine_options *options, int from, int to, int step, const char *name)
{
    char detail[200] = "";
    int wrong = 0, missed = 0;
    struct engine *cached = rig_open(*options);
    for (int at = from; cached && at <= to; at += step) {
        struct talk t = {.marks = {at}, .mark_count = 1};
        say_more(&t, to + 10);
        serve(cached, &(struct ask){.talk = &t, .prompt_only = true});
        for (int i = at; i < t.count; i++) // others follow, from the very next token on
            t.ids[i] = (t.ids[i] + 1) % model.vocabulary;
        for (int after = 1 + at % 4; after < 10; after += 3) {
            t.count = at + after;
            const struct ask ask = {.talk = &t, .reply = 3, .drafts = 2};
            const struct served fresh = serve(plain, &ask), resumed = serve(cached, &ask);
            wrong += !same_reply(&fresh, &resumed);
            missed += resumed.cached < at || resumed.cached > t.count;
            if (!same_reply(&fresh, &resumed) || resumed.cached < at)
                snprintf(detail, sizeof detail, "%d differ, %d missed; the last at %d: cached %lld", wrong, missed, at,
                         (long long)resumed.cached);
        }
    }
    ok(cached && wrong == 0 && missed == 0, name, detail);
    engine_close(cached);
}

static void all_places(void)
{
    struct engine_options small = {.cache_bytes = 200 * MIB, .cache_interval = 500, .solo_chunk = 12};
    places(&small, 17, 50, 1, "resumed == fresh at every place around pages of 8, chunks of 12, blocks of 4");
    struct engine_options large = {.cache_bytes = 200 * MIB, .cache_interval = 5000, .page = 64};
    places(&large, model.chunk - 1, model.chunk + 1, 1, "and around the largest chunk");
}

// ---- room --------------------------------------------------------------------------------------------------------------------

static int64_t state_bytes(const struct engine *e, int positions)
{
    return ((int)e->plan.run_pages + (positions + e->options.page - 1) / e->options.page) * e->pages.page_bytes;
}

// A cache that holds about three states: what is given up costs time alone, and the newest are there.
static void small_budget(void)
{
    struct engine *e = rig_open((struct engine_options){.lanes = 2});
    const int64_t bytes = 3 * state_bytes(e, 60);
    struct talk t[4] = {0};
    int wrong = 0, again = 0;
    engine_close(e);
    e = rig_open((struct engine_options){.lanes = 2, .cache_bytes = bytes, .cache_interval = 100});
    for (int i = 0; i < 4; i++)
        say_more(&t[i], 24 + 3 * i);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 4; i++) {
            const struct ask ask = {.talk = &t[(i + round) % 4], .reply = 3, .drafts = 2};
            const struct served fresh = serve(plain, &ask), first = serve(e, &ask), second = serve(e, &ask);
            wrong += !same_reply(&fresh, &first) || !same_reply(&fresh, &second);
            again += second.cached >= t[(i + round) % 4].count - model.opening;
        }
    const struct cache_counters c = counted(e);
    ok(wrong == 0 && c.evicted > 0 && c.bytes <= bytes, "a small budget: states go, replies stay", "");
    ok(again == 12, "the states that were kept last are found", "");
    engine_close(e);
    e = rig_open((struct engine_options){.cache_bytes = bytes / 3, .cache_interval = 400});
    serve(e, &(struct ask){.talk = &t[0], .reply = 1});
    say_more(&t[1], 400);
    const struct served one = serve(e, &(struct ask){.talk = &t[1], .reply = 1});
    ok(one.count == 1 && counted(e).refused > 0 && counted(e).evicted == 0 && counted(e).states == 1,
       "a state larger than the budget is refused, and none goes for it", "");
    engine_close(e);
}

// Requests together need the whole pool: states go, so that nobody waits for what a state holds.
static void promises(void)
{
    enum { COUNT = 6 };
    struct engine *e = rig_open((struct engine_options){.lanes = 2, .context = 256});
    const int pool = (int)(2 * admission_need(e, 100)), cache = 40 * MIB;
    struct talk t[COUNT] = {0};
    struct stream *s[COUNT];
    struct served got[COUNT] = {{{0}}};
    bool busy = true;
    int wrong = 0, turns = 0;
    engine_close(e);
    e = rig_open((struct engine_options){
        .lanes = model.lanes, .context = 256, .pool_pages = pool, .cache_bytes = cache, .cache_interval = 10});
    for (int i = 0; i < COUNT; i++) {
        say_more(&t[i], 60 + i);
        s[i] = rig_submit(e, &(struct ask){.talk = &t[i], .reply = 6, .drafts = 2});
    }
    for (int left = COUNT; left > 0 && turns < 2000; turns++) {
        engine_turn(e, &busy, NULL);
        const struct pages *p = &e->pages;
        wrong += p->promised > p->count - p->claimed + p->reclaimable;
        for (int i = 0; i < COUNT; i++) {
            if (s[i])
                rig_take(s[i], &got[i]);
            if (s[i] && stream_phase(s[i]) >= STREAM_FINISHED) {
                stream_close(s[i]);
                s[i] = NULL;
                left--;
            }
        }
    }
    for (int i = 0; i < COUNT; i++) {
        const struct served fresh = serve(plain, &(struct ask){.talk = &t[i], .reply = 6, .drafts = 2});
        wrong += memcmp(fresh.id, got[i].id, sizeof fresh.id) != 0 || !same_logits(&fresh, &got[i]);
    }
    struct engine_counters c;
    engine_counters(e, &c);
    ok(wrong == 0 && turns < 2000, "a pool that is smaller than lanes and cache: every promise is kept", "");
    ok(c.pages_promised == 0 && c.pages_claimed * c.page_bytes == c.cache.bytes, "and only states hold pages after it",
       "");
    engine_close(e);
}

// ---- warm passes -------------------------------------------------------------------------------------------------------------

static int turn_until_idle(struct engine *e)
{
    bool busy = true;
    int turns = 0;
    for (; busy && turns < 1000; turns++)
        engine_turn(e, &busy, NULL);
    return turns;
}

static void warm_begins(void)
{
    struct engine *e = rig_open((struct engine_options){.cache_bytes = 200 * MIB, .lanes = 1, .busy_chunk = 8});
    struct talk t = {0};
    say_more(&t, 100);
    ok(!engine_warm(plain, t.ids, t.count, NULL, 0), "no warm pass without a cache", "");
    ok(!engine_warm(e, t.ids, 0, NULL, 0), "nor of nothing", "");
    const bool begun = engine_warm(e, t.ids, t.count, NULL, 0);
    const int turns = turn_until_idle(e);
    struct cache_counters c = counted(e);
    ok(begun && c.warm_passes == 1 && c.warm_chunks == 13 && turns >= 13, "a warm pass: a busy chunk a turn", "");
    say_more(&t, 7);
    const struct ask ask = {.talk = &t, .reply = 4, .drafts = 2};
    const struct served fresh = serve(plain, &ask), resumed = serve(e, &ask);
    ok(same_reply(&fresh, &resumed) && resumed.cached == 100 && resumed.read == 7,
       "a request begins where the pass ended, and reads what is new", "");
    struct engine_counters all;
    engine_counters(e, &all);
    ok(all.submitted == 1 && all.finished == 1 && all.lanes_filling == 0 && all.pages_promised == 0,
       "a pass is no request, and leaves its lane", "");
    engine_close(e);
}

// Passes beside requests: none of them waits for more than one busy chunk.
static void warm_gives_way(void)
{
    struct engine *e = rig_open((struct engine_options){.cache_bytes = 200 * MIB, .lanes = 1, .busy_chunk = 8});
    struct talk t = {0}, other = {0};
    bool busy;
    say_more(&t, 120);
    say_more(&other, 60);
    struct stream *s = rig_submit(e, &(struct ask){.talk = &other, .reply = 4});
    engine_turn(e, &busy, NULL);
    const bool begun = engine_warm(e, t.ids, t.count, NULL, 0);
    while (stream_phase(s) < STREAM_FINISHED)
        engine_turn(e, &busy, NULL);
    ok(begun && counted(e).warm_chunks == 0 && counted(e).warm_passes == 0,
       "a pass that is asked for while a prompt fills runs no chunk", "");
    stream_close(s);
    engine_warm(e, t.ids, t.count, NULL, 0);
    for (int i = 0; i < 3; i++)
        engine_turn(e, &busy, NULL);
    const int64_t chunks = counted(e).warm_chunks;
    s = rig_submit(e, &(struct ask){.talk = &t, .reply = 4, .drafts = 2}); // the very conversation
    struct served got = {0};
    engine_turn(e, &busy, NULL);
    rig_take(s, &got);
    ok(chunks == 3 && counted(e).warm_chunks == 3 && got.count == 1 && counted(e).warm_aside == 1,
       "a request that comes during a pass is read in the next turn", "");
    while (stream_phase(s) < STREAM_FINISHED) {
        engine_turn(e, &busy, NULL);
        rig_take(s, &got);
    }
    const int64_t cached = stream_counters(s)->cached_tokens;
    got.drafted = stream_counters(s)->drafted, got.accepted = stream_counters(s)->accepted;
    stream_close(s);
    const struct served fresh = serve(plain, &(struct ask){.talk = &t, .reply = 4, .drafts = 2});
    ok(cached == 24 && same_reply(&fresh, &got), "and goes on from what the pass had reached", "");
    engine_warm(e, other.ids, other.count, NULL, 0); // of what is kept already
    engine_warm(e, t.ids, t.count - 3, NULL, 0);
    engine_turn(e, &busy, NULL);
    engine_close(e); // in the middle of it
}

// Conversations that just fill the cache, in turns: with warm passes after each reply none begins at 0 that did not without.
static int64_t hits_of(bool warmed, int64_t bytes, int64_t *cached)
{
    enum { TALKS = 5, TURNS = 3 };
    struct engine *e = rig_open((struct engine_options){.cache_bytes = bytes, .lanes = 2, .cache_interval = 100});
    struct talk t[TALKS] = {0};
    bool busy;
    rig_state = 77;
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < TALKS; i++) {
            say_more(&t[i], 20);
            t[i].marks[0] = t[i].count;
            t[i].mark_count = 1;
            say_more(&t[i], model.opening); // the opening of the reply, which the next turn spells in another way
            const struct served r = serve(e, &(struct ask){.talk = &t[i], .reply = 5});
            t[i].count -= model.opening;
            for (int k = 0; k < r.count; k++)
                t[i].ids[t[i].count++] = r.id[k];
            if (warmed)
                engine_warm(e, t[i].ids, t[i].count, NULL, 0);
            do
                engine_turn(e, &busy, NULL);
            while (busy);
        }
    const struct cache_counters c = counted(e);
    *cached = c.cached_tokens;
    engine_close(e);
    return c.hits;
}

static void warm_takes_nothing(void)
{
    struct engine *e = rig_open((struct engine_options){.lanes = 2});
    const int64_t one = state_bytes(e, 100), page = e->pages.page_bytes;
    char name[200], detail[200];
    int worse = 0, more_read = 0;
    int64_t hits[2] = {0}, cached[2] = {0};
    engine_close(e);
    for (int64_t bytes = 4 * one; bytes <= 11 * one; bytes += 2 * one - 13 * page) {
        int64_t c[2];
        const int64_t without = hits_of(false, bytes, &c[0]), with = hits_of(true, bytes, &c[1]);
        worse += with < without;
        more_read += c[1] < c[0];
        hits[0] += without, hits[1] += with;
        cached[0] += c[0], cached[1] += c[1];
    }
    snprintf(name, sizeof name,
             "five conversations under a full cache: hits %lld without warm passes, %lld with, tokens %lld and %lld",
             (long long)hits[0], (long long)hits[1], (long long)cached[0], (long long)cached[1]);
    snprintf(detail, sizeof detail, "fewer hits under %d budgets, fewer tokens under %d", worse, more_read);
    ok(worse == 0, name, detail);
}

int main(int argc, char **argv)
{
    more = argc > 1 && !strcmp(argv[1], "--more");
    plain = rig_open((struct engine_options){.page = 64});
    conversations();
    all_places();
    small_budget();
    promises();
    warm_begins();
    warm_gives_way();
    warm_takes_nothing();
    engine_close(plain);
    return done();
}
