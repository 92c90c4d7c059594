// SPDX-License-Identifier: Apache-2.0
//
// bench --turns: time from handing a chat's next turn in to its first token, by how much of it the prompt cache has.
// Invariant: a table is printed only when every reply to one conversation is the same, whatever was kept.

#include "runtime/bench.h"
#include "runtime/cli.h"
#include "runtime/turns.h"

#include <stdlib.h>
#include <string.h>

struct bench_turns {
    struct engine *engine;
    int32_t *ids; // for the longest conversation
    struct number_list histories;
    int fresh, reply, repeats;
    bool synthetic;
    char load[BENCH_LOAD];
    struct turn *turns; // [histories.count][TURN_CASES][repeats]
    double *values;     // [repeats]
};

static struct turn *turns_of(const struct bench_turns *b, int history, int which)
{
    return b->turns + ((size_t)history * TURN_CASES + (size_t)which) * (size_t)b->repeats;
}

// ---- setting up ------------------------------------------------------------------------------------------------------------

// --turns measures nothing else.
static bool check_flags(const struct settings *s, struct error *error)
{
    static const struct {
        enum flag flag;
        const char *name;
    } others[] = {{FLAG_PROMPT_ROWS, "--prompt"}, {FLAG_ACCEPT, "--accept"}, {FLAG_DRAFTS, "--drafts"},
                  {FLAG_BESIDE, "--beside"},      {FLAG_PER_OP, "--per-op"}, {FLAG_GNUPLOT, "--gnuplot"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (settings_given(s, others[i].flag))
            return error_set(error, "--turns: measures turns alone; leave %s out", others[i].name);
    return true;
}

static bool open_engine(struct bench_turns *b, const struct settings *s, int longest, struct error *error)
{
    struct engine_options options = cli_engine_options(s);
    options.no_rewind = true; // turns resume from the prompt cache
    const int64_t need = turn_positions(longest, b->fresh);
    if (!settings_given(s, FLAG_CONTEXT))
        options.context = (int)(need < model.max_context ? need : model.max_context);
    if (options.context && need > options.context)
        return error_set(error,
                         "--turns %d: with the turn and its reply that is %lld positions, and the context holds %d",
                         longest, (long long)need, options.context);
    const struct memory_request request = {
        .context = options.context, .lanes = options.lanes, .page = options.page, .kv_cache = options.kv_cache};
    struct memory_plan plan;
    if (!memory_plan_make(&plan, &request, error))
        return false;
    const int64_t pages = (need + model.window + plan.page) / plan.page + plan.run_pages;
    if (options.pool_pages && pages > options.pool_pages) // those of kept states are none of it
        return error_set(error, "--pool-pages %d: --turns %d takes %lld pages", options.pool_pages, longest,
                         (long long)pages);
    options.cache_bytes = settings_given(s, FLAG_CACHE_GIB) ? (int64_t)(s->cache_gib * (1 << 30))
                                                            : turn_cache_bytes((int)need, plan.page, plan.kv_encoding);
    if (options.cache_bytes == 0)
        return error_set(error, "--turns: a prompt cache is what it measures, and --prompt-cache-gib 0 leaves none");
    if (!engine_open(&b->engine, &options, error))
        return false;
    b->engine->options.quiet = true; // no line a prompt
    return true;
}

static bool open_turns(struct bench_turns *b, const struct settings *s, struct error *error)
{
    int64_t longest = 0;
    b->histories = s->turns;
    b->fresh = (int)s->turn_tokens;
    b->reply = (int)s->decode_rows;
    b->repeats = (int)s->repeat;
    b->synthetic = s->weights && !strcmp(s->weights, "synthetic");
    if (!check_flags(s, error))
        return false;
    for (int i = 0; i < b->histories.count; i++) {
        longest = b->histories.number[i] > longest ? b->histories.number[i] : longest;
        if (!turn_check((int)b->histories.number[i], b->reply, b->fresh, error))
            return false;
    }
    b->ids = bench_ids((int)longest + b->fresh, b->synthetic, error);
    if (!b->ids || !open_engine(b, s, (int)longest, error))
        return false;
    const size_t repeats = (size_t)b->repeats;
    b->turns = calloc((size_t)b->histories.count * TURN_CASES * repeats, sizeof *b->turns);
    b->values = calloc(repeats, sizeof *b->values);
    return (b->turns && b->values) || error_set(error, "no memory for %d repeats", b->repeats);
}

// ---- measuring -------------------------------------------------------------------------------------------------------------

// Cold ones last: the others begin at what the prompt before left.
static bool measure(struct bench_turns *b, int at, struct error *error)
{
    struct turn_talk talk;
    bool ok = turn_open(&talk, b->engine, b->ids, (int)b->histories.number[at], b->reply, b->fresh, error);
    for (int i = 0; ok && i < b->repeats; i++)
        for (int which = TURN_RESUMED; ok && which < TURN_CASES; which++)
            ok = turn_play(b->engine, &talk, (enum turn_case)which, &turns_of(b, at, which)[i], error);
    for (int i = 0; ok && i < b->repeats; i++)
        ok = turn_play(b->engine, &talk, TURN_COLD, &turns_of(b, at, TURN_COLD)[i], error);
    const struct turn *first = turns_of(b, at, TURN_COLD);
    for (int which = 0; ok && which < TURN_CASES; which++)
        for (int i = 0; ok && i < b->repeats; i++)
            ok = turn_same(first, turn_names[TURN_COLD], &turns_of(b, at, which)[i], turn_names[which], error);
    turn_close(&talk);
    return ok;
}

// ---- printing --------------------------------------------------------------------------------------------------------------

enum figure { FIRST, RESTORE, PASS };

// One figure of all repeats.
static const double *series_of(const struct bench_turns *b, const struct turn *turns, enum figure figure)
{
    for (int i = 0; i < b->repeats; i++)
        b->values[i] = figure == FIRST ? turns[i].first : figure == RESTORE ? turns[i].restore : turns[i].pass;
    return b->values;
}

static void print_case(const struct bench_turns *b, int at, int which)
{
    const struct turn *t = turns_of(b, at, which);
    const int n = b->repeats;
    const double *first = series_of(b, t, FIRST);
    printf("  %8lld  %-8s %8d %8d %7d  %9.2f  (%.2f to %.2f)", (long long)b->histories.number[at], turn_names[which],
           t->cached, t->read, t->chunks, 1e3 * bench_median(first, n), 1e3 * bench_least(first, n),
           1e3 * bench_best(first, n));
    if (which != TURN_COLD)
        printf(", state in place in %.2f", 1e3 * bench_median(series_of(b, t, RESTORE), n));
    if (which == TURN_WARM)
        printf(", pass before: %d tokens in %.2f", t->pass_read, 1e3 * bench_median(series_of(b, t, PASS), n));
    putchar('\n');
}

static void print_text(const struct bench_turns *b)
{
    printf("%s%s: %s kernels, %d thread%s, median of %d, load before %s\n", model.name,
           b->synthetic ? " (synthetic weights)" : "", engine_isa(b->engine), engine_threads(b->engine),
           plural(engine_threads(b->engine)), b->repeats, b->load);
    printf("a turn of %d new tokens after a history that ends with a reply of %d; replies are the same in all cases\n",
           b->fresh, b->reply);
    printf("  %8s  %-8s %8s %8s %7s  %9s\n", "history", "case", "cached", "read", "chunks", "first, ms");
    for (int at = 0; at < b->histories.count; at++)
        for (int which = 0; which < TURN_CASES; which++)
            print_case(b, at, which);
}

static json_t *case_json(const struct bench_turns *b, int at, int which)
{
    const struct turn *t = turns_of(b, at, which);
    const int n = b->repeats;
    json_t *root = json_pack("{s:I, s:s, s:i, s:i, s:i, s:o}", "history", (json_int_t)b->histories.number[at], "case",
                             turn_names[which], "cached_tokens", t->cached, "read_tokens", t->read, "chunks", t->chunks,
                             "first_token_seconds", bench_series(series_of(b, t, FIRST), n));
    if (which != TURN_COLD)
        json_object_set_new(root, "restore_seconds", bench_series(series_of(b, t, RESTORE), n));
    if (which == TURN_WARM) {
        json_object_set_new(root, "pass_tokens", json_integer(t->pass_read));
        json_object_set_new(root, "pass_seconds", bench_series(series_of(b, t, PASS), n));
    }
    return root;
}

static void print_json(const struct bench_turns *b)
{
    json_t *all = json_array();
    for (int at = 0; at < b->histories.count; at++)
        for (int which = 0; which < TURN_CASES; which++)
            json_array_append_new(all, case_json(b, at, which));
    json_t *root = json_pack("{s:s, s:b, s:s, s:i, s:s, s:i, s:i, s:i, s:o}", "name", model.name, "synthetic",
                             b->synthetic, "isa", engine_isa(b->engine), "threads", engine_threads(b->engine), "load",
                             b->load, "repeats", b->repeats, "turn_tokens", b->fresh, "reply", b->reply, "turns", all);
    json_dumpf(root, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(root);
}

bool bench_turns(const struct settings *settings, struct error *error)
{
    struct bench_turns b = {0};
    bool ok = open_turns(&b, settings, error);
    bench_load(b.load);
    for (int at = 0; ok && at < b.histories.count; at++)
        ok = measure(&b, at, error);
    if (ok)
        (settings->json ? print_json : print_text)(&b);
    engine_close(b.engine);
    free(b.ids);
    free(b.turns);
    free(b.values);
    return ok;
}
