// SPDX-License-Identifier: Apache-2.0
//
// The simulator: the real scheduler, pool, graph store and control kernels over a toy model, with a stubbed clock and a seeded
// schedule of arrivals, lengths, cancels and failures. Every reply must be what plain recomputation gives, the head's cache must
// hold what it should, and everything that was taken must come back. A failure prints its seed; `sim_test --seed N` replays it.
// Red controls break one contract each; the simulator must find every one.

#include "runtime/cache/cache_state.h"
#include "tests/sim/toy.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENTS = 10, TICKS = 160, RED_ROUNDS = 100000, STOCK = 4, MARKS = 6, POOL_MOST = 512 };

extern int engine_test_shared_table, engine_test_no_drain, engine_test_keep_other, engine_test_rewind_late;
extern int engine_test_row_lost, cache_test_share_tail, cache_test_keep_late;

struct client {
    struct stream *stream; // NULL: nobody
    bool direct;           // drives the stream itself, with several turns
    int32_t ids[TOY_CONTEXT + 8], right[TOY_CONTEXT + 8];
    uint64_t outputs[TOY_CONTEXT + 8];
    int count, reply, got, turns;
    bool ignore_end, prompt_only;
    struct sampling sampling;
    struct token_bias bias[2];
};

// Conversations that prompts go on from, so that kept states are found.
struct stock {
    int32_t ids[TOY_CONTEXT];
    int count;
};

struct episode {
    uint64_t seed;
    struct stock stock[STOCK];
    struct engine *engine;
    struct client client[CLIENTS];
    int64_t replies, refused;
    char finding[700];
};

static void find(struct episode *x, const struct client *c, const char *what)
{
    if (!x->finding[0])
        snprintf(x->finding, sizeof x->finding, "client %d (%s, prompt %d, reply %d, got %d): %s", (int)(c - x->client),
                 c->direct ? "direct" : "request", c->count, c->reply, c->got, what);
}

// ---- what is right -----------------------------------------------------------------------------------------------------------

static void know(struct client *c)
{
    memcpy(c->right, c->ids, (size_t)c->count * sizeof c->ids[0]);
    toy_reply(c->right, c->count, c->reply, &c->sampling, c->outputs);
    c->got = 0;
}

static void check_tokens(struct episode *x, struct client *c, const int32_t *out, int n)
{
    if (c->got + n > c->reply || memcmp(out, c->right + c->count + c->got, (size_t)n * sizeof *out) != 0)
        find(x, c, "tokens are not those of the stream alone");
    c->got += n;
}

// Cells of the head that it has taken in are those of this stream.
static void check_head(struct episode *x, struct client *c)
{
    const struct slot *slot = c->stream->slot;
    const struct pages *pages = &x->engine->pages;
    const int page = x->engine->options.page;
    if (!slot || !c->stream->follows)
        return;
    for (int p = 0; p < slot->lane->head_length && p + 1 < c->count + c->got; p++) {
        const uint8_t *at = pages_at(pages, ((const uint32_t *)slot->table.host)[p / page]);
        if (((const uint64_t *)(const void *)at)[page + p % page] != toy_head_cell(c->outputs[p], c->right[p + 1])) {
            find(x, c, "a cell of the head's cache is wrong");
            return;
        }
    }
}

static void leave(struct episode *x, struct client *c)
{
    engine_wait(x->engine, NULL);
    stream_close(c->stream);
    c->stream = NULL;
    x->replies++;
}

// ---- clients -----------------------------------------------------------------------------------------------------------------

static bool read_some(struct client *c, int from, int to, struct error *error)
{
    return stream_prompt(c->stream, c->ids + from, to - from, 1 + (int)toy_below(TOY_CHUNK), 0, NULL, NULL, error);
}

static void invent(struct episode *x, struct client *c, bool direct)
{
    const struct stock *old = &x->stock[toy_below(STOCK)];
    *c = (struct client){.direct = direct};
    c->count = 1 + (int)toy_below(toy_below(4) ? 20 : 60);
    c->reply = 1 + (int)toy_below(toy_below(4) ? 16 : 40);
    for (int i = 0; i < c->count; i++)
        c->ids[i] = (int32_t)toy_below(TOY_VOCABULARY);
    for (int i = 12; i < c->count && toy_below(3) == 0; i++) // text that repeats itself
        c->ids[i] = c->ids[i - 12];
    // Mostly the beginning of an older conversation, or all of it: another turn, an edited one, or the same again.
    int same = toy_below(3) ? (int)toy_below((uint32_t)old->count + 1) : old->count;
    same = same < c->count || toy_below(2) ? same : c->count;
    if (!direct && toy_below(4) && same + 2 < TOY_CONTEXT) {
        memcpy(c->ids, old->ids, (size_t)same * sizeof c->ids[0]);
        c->count = same > c->count ? same + (int)toy_below(2) : c->count;
        c->count = c->count > 0 ? c->count : 1;
    }
    if (c->count + c->reply > TOY_CONTEXT)
        c->reply = TOY_CONTEXT - c->count;
    c->prompt_only = !direct && toy_below(10) == 0;
    c->ignore_end = toy_below(2);
    c->turns = (int)toy_below(3);
    c->sampling = (struct sampling){.top_p = 1, .seed = toy_random()};
    if (toy_below(3) == 0) {
        c->sampling.temperature = 0.25f + (float)toy_below(4) / 4;
        c->sampling.top_k = toy_below(2) ? (int)toy_below(12) : 0;
        c->sampling.top_p = toy_below(16) ? 1 : 0.9f;
    }
    if (toy_below(4) == 0) {
        c->sampling.presence = (float)toy_below(5) / 2 - 1;
        c->sampling.frequency = (float)toy_below(5) / 2 - 1;
        c->sampling.repetition = toy_below(2) ? 1.5f : 0;
        c->bias[0] = (struct token_bias){(int32_t)toy_below(12), 3};
        c->bias[1] = (struct token_bias){12 + (int32_t)toy_below(12), -4.5f};
        c->sampling.bias = c->bias;
        c->sampling.bias_count = (int)toy_below(3);
    }
}

static struct stream_options options_of(const struct client *c)
{
    return (struct stream_options){
        .sampling = c->sampling, .drafts = (int)toy_below(8) - 1, .no_copy = toy_below(2), .positions = 0};
}

static int make_marks(int *marks, int count)
{
    const int n = (int)toy_below(MARKS + 1);
    for (int i = 0, at = 0; i < n; i++) {
        at += (int)toy_below((uint32_t)(count - at) / 2 + 1);
        marks[i] = at;
    }
    return n;
}

static void arrive(struct episode *x, struct client *c, bool direct)
{
    struct error error;
    int marks[MARKS];
    invent(x, c, direct);
    struct stream_options options = options_of(c);
    faults.armed = true;
    if (direct) {
        options.positions = TOY_CONTEXT;
        stream_open(x->engine, &c->stream, &options, &error);
    } else {
        struct request r = {.ids = c->ids,
                            .count = c->count,
                            .reply = c->reply,
                            .ignore_end = c->ignore_end,
                            .prompt_only = c->prompt_only,
                            .background = toy_below(4) == 0,
                            .marks = marks,
                            .mark_count = make_marks(marks, c->count),
                            .options = options};
        if (!stream_submit(x->engine, &c->stream, &r, &error))
            x->refused++;
    }
    faults.armed = false;
    if (!c->stream)
        return;
    know(c);
    const int first = toy_below(3) ? 0 : (int)toy_below((uint32_t)c->count); // of a prompt in two calls
    if (direct && !((first == 0 || read_some(c, 0, first, &error)) && read_some(c, first, c->count, &error)))
        leave(x, c);
}

// A direct client: some tokens, then another turn that goes on from the kept state, then away.
static void drive(struct episode *x, struct client *c)
{
    int32_t out[MAX_WINDOW];
    int n;
    struct error error;
    if (!stream_next(c->stream, out, &n, &error)) {
        leave(x, c); // its round failed
        return;
    }
    if (c->got + n > c->reply)
        n = c->reply - c->got;
    check_tokens(x, c, out, n);
    if (n > 0 && c->got < c->reply)
        return;
    check_head(x, c);
    const int behind = c->count + c->got + 2, more = toy_below(3) ? behind : 1 + (int)toy_below((uint32_t)behind);
    if (c->turns-- > 0 && more + 4 < TOY_CONTEXT) {
        memcpy(c->ids, c->right, (size_t)(c->count + c->got) * sizeof c->ids[0]);
        c->ids[behind - 2] = 1;
        c->ids[behind - 1] = (int32_t)toy_below(TOY_VOCABULARY);
        if (toy_below(4) == 0)
            c->ids[toy_below((uint32_t)more)] ^= 1; // the history was edited
        c->count = more;
        c->reply = 2 + (int)toy_below((uint32_t)(TOY_CONTEXT - more - 2));
        know(c);
        if (stream_continue(c->stream, c->ids, c->count, &error))
            return;
    }
    leave(x, c);
}

// While the target is at work: some take what there is.
static void hand_out(void *user)
{
    struct episode *x = user;
    int32_t out[TOY_CONTEXT];
    for (int i = 0; i < CLIENTS; i++) {
        struct client *c = &x->client[i];
        if (c->stream && !c->direct && stream_phase(c->stream) < STREAM_FINISHED && toy_below(2))
            check_tokens(x, c, out, stream_take(c->stream, out, toy_below(3) ? TOY_CONTEXT : 3));
    }
}

// A request: takes what there is, and leaves when it is over.
static void watch(struct episode *x, struct client *c)
{
    int32_t out[TOY_CONTEXT];
    int n = stream_take(c->stream, out, toy_below(3) ? TOY_CONTEXT : 3);
    check_tokens(x, c, out, n);
    enum stream_phase phase = stream_phase(c->stream);
    if (phase < STREAM_FINISHED)
        return;
    if (phase == STREAM_FINISHED) {
        check_tokens(x, c, out, stream_take(c->stream, out, TOY_CONTEXT));
        bool ended = false;
        for (int i = 0; i < c->got; i++)
            if (!c->ignore_end && c->right[c->count + i] == TOY_END && i < c->got - 1)
                find(x, c, "the reply went on after an end token");
            else
                ended = ended || (!c->ignore_end && c->right[c->count + i] == TOY_END);
        if (c->got != (c->prompt_only ? 0 : c->reply) && !ended)
            find(x, c, "the reply is too short");
        check_head(x, c);
        struct stock *new = &x->stock[toy_below(STOCK)];
        new->count = c->count + c->got;
        memcpy(new->ids, c->right, (size_t) new->count * sizeof new->ids[0]);
    }
    leave(x, c);
}

// ---- an episode --------------------------------------------------------------------------------------------------------------

// Idle lanes may get each other's table: a table's identity is in every key, so no graph may be replayed with the old one.
static void swap_tables(struct engine *e)
{
    struct slot *a = &e->slot[toy_below((uint32_t)e->lanes)], *b = &e->slot[toy_below((uint32_t)e->lanes)];
    if (a == b || a->stream || b->stream)
        return;
    struct slot t = *a;
    a->table = b->table, a->tags = b->tags, a->draft = b->draft;
    b->table = t.table, b->tags = t.tags, b->draft = t.draft;
}

static void count_states(const struct engine *e, uint16_t *states)
{
    for (const struct cache_state *s = e->cache ? e->cache->store.first : NULL; s; s = s->next)
        for (uint32_t i = 0; i < s->page_count; i++)
            states[s->page[i]]++;
}

// Every page's holders, counted anew.
static void check_pool(struct episode *x)
{
    const struct engine *e = x->engine;
    const struct pages *p = &e->pages;
    uint16_t lanes[POOL_MOST] = {0}, states[POOL_MOST] = {0};
    uint32_t held = 0, kept = 0, only = 0, promised = 0;
    for (int i = 0; i < e->lanes; i++) {
        const struct slot *s = &e->slot[i];
        for (int k = 0; k < s->mapped; k++)
            lanes[((const uint32_t *)s->table.host)[k]]++;
        for (uint32_t k = 0; s->stream && k < e->plan.run_pages; k++)
            lanes[s->run + k]++;
        promised += s->promise;
        if (!s->stream && (s->mapped || s->promise))
            find(x, x->client, "an idle lane holds pages");
    }
    count_states(e, states);
    for (uint32_t i = 0; i < p->count; i++) {
        held += lanes[i] || states[i];
        kept += states[i] > 0;
        only += states[i] && !lanes[i];
        if (lanes[i] != p->lanes[i] || states[i] != p->states[i])
            find(x, x->client, "a page's holders are miscounted");
    }
    if (held != p->claimed || kept != p->kept || only != p->reclaimable || promised != p->promised)
        find(x, x->client, "pages are lost");
    if (promised > p->count - held + only)
        find(x, x->client, "pages are promised and missing");
    if (kept > e->sizes.cache_pages)
        find(x, x->client, "states hold more than their budget");
}

static bool open_engine(struct episode *x)
{
    static const char *const orders[] = {"identity", "reversed", "shuffled"};
    static const int pages[] = {4, 8, 16, 32};
    struct error error;
    struct engine_options o = {.synthetic = true,
                               .quiet = true,
                               .lanes = 1 + (int)toy_below(TOY_LANES),
                               .page = pages[toy_below(4)],
                               .page_order = orders[toy_below(3)],
                               .eager = toy_below(8) == 0,
                               .round_rows = toy_below(4) ? 0 : 1 + (int)toy_below(12),
                               .busy_chunk = 1 + (int)toy_below(TOY_CHUNK),
                               .solo_chunk = 1 + (int)toy_below(TOY_CHUNK),
                               .decode_share = (float)toy_below(4) / 4 - 0.25f,
                               .context = TOY_CONTEXT};
    if (toy_below(2)) { // a pool that not every request fits
        int run = ((int)model.run_bytes + 16 * o.page - 1) / (16 * o.page);
        run = run > 0 ? run : 1;
        o.pool_pages = run + 2 + (int)toy_below((uint32_t)(o.lanes * (TOY_CONTEXT / o.page + 2 + run)));
    }
    if (toy_below(3)) {
        const int64_t page_bytes = (16 * o.page + 63) / 64 * 64;
        o.cache_bytes = page_bytes * (((int64_t)model.run_bytes + page_bytes - 1) / page_bytes + 1 + toy_below(60));
        o.cache_interval = 3 + (int)toy_below(40);
    }
    for (int i = 0; i < 20; i++) { // an engine that could not open has left nothing behind: the next one can
        faults.armed = toy_below(4) == 0;
        bool opened = engine_open(&x->engine, &o, &error);
        bool unlucky = faults.armed;
        faults.armed = false;
        if (opened) {
            engine_meanwhile(x->engine, hand_out, x);
            return true;
        }
        if (!unlucky)
            break;
    }
    find(x, x->client, error.text);
    return false;
}

static void tick(struct episode *x, bool arrivals)
{
    struct engine *e = x->engine;
    struct client *c = &x->client[toy_below(CLIENTS)];
    bool busy;
    if (arrivals && !c->stream && toy_below(3) == 0)
        arrive(x, c, toy_below(5) == 0);
    c = &x->client[toy_below(CLIENTS)];
    if (c->stream && !c->direct && toy_below(16) == 0) {
        stream_cancel(c->stream);
        if (toy_below(2)) // or it just goes, chunk in flight or not
        {
            stream_close(c->stream);
            c->stream = NULL;
        }
    }
    if (toy_below(4) == 0)
        swap_tables(e);
    if (toy_below(12) == 0) {
        const struct stock *s = &x->stock[toy_below(STOCK)];
        int marks[MARKS], count = 1 + (int)toy_below((uint32_t)s->count + 1);
        faults.armed = toy_below(4) == 0;
        if (count <= s->count)
            engine_warm(e, s->ids, count, marks, make_marks(marks, count));
    }
    faults.armed = toy_below(8) == 0; // in a turn, memory that is short costs time alone
    if (!engine_turn(e, &busy, NULL))
        find(x, x->client, "the engine stopped");
    faults.armed = false;
    for (int i = 0; i < CLIENTS && !x->finding[0]; i++)
        if (x->client[i].stream)
            (x->client[i].direct ? drive : watch)(x, &x->client[i]);
    check_pool(x);
    if (faults.late)
        find(x, x->client, "memory of the target was asked for after the start");
    toy_clock += 1e-5 * (double)toy_below(10);
}

// Of the cache, over all episodes: each must have happened, or the schedule is too tame.
static struct cache_counters sum;

static void add_up(const struct cache_counters *c)
{
    sum.hits += c->hits;
    sum.saved += c->saved;
    sum.evicted += c->evicted;
    sum.refused += c->refused;
    sum.failed += c->failed;
    sum.warm_passes += c->warm_passes;
    sum.warm_aside += c->warm_aside;
    sum.cached_tokens += c->cached_tokens;
}

// Plays one seed; returns the rounds that it had. A finding is left in x->finding.
static int64_t play(struct episode *x, uint64_t seed)
{
    *x = (struct episode){.seed = seed};
    toy_random_state = seed * 0x2545f4914f6cdd1du + 1;
    toy_clock = 1;
    if (!open_engine(x))
        return 0;
    faults.ready = true;
    faults.late = 0;
    for (int i = 0; i < TICKS && !x->finding[0]; i++)
        tick(x, true);
    int left = 1;
    for (int i = 0; left && i < 3000 && !x->finding[0]; i++) {
        tick(x, false);
        left = 0;
        for (int k = 0; k < CLIENTS; k++)
            left += x->client[k].stream != NULL;
    }
    if (left && !x->finding[0])
        find(x, x->client, "streams are stuck");
    struct engine_counters c;
    warm_aside(x->engine);
    engine_counters(x->engine, &c);
    if (!x->finding[0] && (c.pages_claimed * c.page_bytes != c.cache.bytes || c.pages_promised || c.waiting))
        find(x, x->client, "pages or promises are left over");
    add_up(&c.cache);
    faults.ready = false;
    if (!x->finding[0])
        engine_close(x->engine);
    return c.rounds;
}

// ---- main --------------------------------------------------------------------------------------------------------------------

static int tests, failures;

static void ok(bool good, const char *name, const char *detail)
{
    tests++;
    failures += !good;
    printf("%s %d - %s\n", good ? "ok" : "not ok", tests, name);
    if (!good && *detail)
        printf("# %s\n", detail);
}

static uint64_t running; // the seed that is played

static int64_t run(uint64_t seed, int64_t rounds, struct episode *x, int64_t *replies)
{
    int64_t done = 0;
    for (; done < rounds; seed++) {
        running = seed;
        done += 1 + play(x, seed);
        *replies += x->replies;
        if (x->finding[0])
            break;
    }
    return done;
}

// Whether a fault is found within RED_ROUNDS rounds, in a process of its own, since it may crash.
static void red(const char *name, bool *fault, int *hook)
{
    static struct episode x;
    char text[160];
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int64_t replies = 0;
        if (!freopen("/dev/null", "w", stderr))
            _exit(0);
        alarm(60);
        if (fault)
            *fault = true;
        if (hook)
            *hook = 1;
        run(1, RED_ROUNDS, &x, &replies);
        _exit(x.finding[0] ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    snprintf(text, sizeof text, "red: %s is found within %d rounds", name, RED_ROUNDS);
    ok(child > 0 && status != 0, text, "nothing was found");
}

// A crash must name its seed too.
static void crashed(int number)
{
    char text[100];
    int n = snprintf(text, sizeof text, "not ok %d - crashed by signal %d\n# seed %llu\n", tests + 1, number,
                     (unsigned long long)running);
    if (write(1, text, (size_t)n) < 0)
        _exit(3);
    _exit(2);
}

int main(int argc, char **argv)
{
    static struct episode x;
    int64_t rounds = 1000000, replies = 0;
    faults = (struct faults){.allocation = 1u << 26, .capture = 1u << 26, .row = 1u << 18, .copy = 1u << 25};
    if (argc == 3 && !strcmp(argv[1], "--seed")) {
        int64_t n = play(&x, strtoull(argv[2], NULL, 10));
        printf("%lld rounds, %lld replies; %s\n", (long long)n, (long long)x.replies,
               x.finding[0] ? x.finding : "no finding");
        return x.finding[0] != 0;
    }
    if (argc == 3 && !strcmp(argv[1], "--rounds"))
        rounds = strtoll(argv[2], NULL, 10);
    red("a grouped lane without its table", NULL, &engine_test_shared_table);
    red("a key without the table", NULL, &graph_test_ignore_tables);
    red("memory that is used again before the target drained", NULL, &engine_test_no_drain);
    red("a window that is committed twice", &faults.commit_twice, NULL);
    red("a state that holds drafted rows", &faults.drafted_state, NULL);
    red("a page of a kept state that is written", NULL, &cache_test_share_tail);
    red("a state that was kept on the way, one row late", NULL, &cache_test_keep_late);
    red("one that another prompt has left there", NULL, &engine_test_keep_other);
    red("a state to go back to, one row late", NULL, &engine_test_rewind_late);
    red("the last row of a prompt that is kept whole, from another prompt's rows", NULL, &engine_test_row_lost);
    red("memory that is asked for after the start", &faults.asks, NULL);
    fflush(stdout);
    signal(SIGABRT, crashed);
    signal(SIGSEGV, crashed);
    if (!freopen("/dev/null", "w", stderr)) // every failed capture is said there
        return 1;
    int64_t done = run(1, rounds, &x, &replies);
    char name[160], detail[800];
    snprintf(name, sizeof name, "%lld rounds, %lld replies: each is its own, everything comes back", (long long)done,
             (long long)replies);
    snprintf(detail, sizeof detail, "seed %llu: %s", (unsigned long long)x.seed, x.finding);
    ok(!x.finding[0], name, detail);
    snprintf(name, sizeof name,
             "and of the cache: %lld hits, %lld kept, %lld evicted, %lld refused, %lld failed, %lld warm passes",
             (long long)sum.hits, (long long)sum.saved, (long long)sum.evicted, (long long)sum.refused,
             (long long)sum.failed, (long long)sum.warm_passes);
    ok(x.finding[0] || (sum.hits && sum.evicted && sum.failed && sum.warm_passes && sum.warm_aside), name,
       "something never happened");
    printf("1..%d\n", tests);
    return failures != 0;
}
