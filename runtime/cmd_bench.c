// SPDX-License-Identifier: Apache-2.0
//
// bench: decode and prompt speed, each kernel's rate, and the machine's read ceiling measured between the repeats of the same
// run, so that a share compares like with like on a machine that others use too.

#include "runtime/bench.h"
#include "runtime/cli.h"

#include <stdlib.h>
#include <string.h>

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const double *values, int count)
{
    double sorted[2 * BENCH_REPEATS];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, order);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

// ---- measuring --------------------------------------------------------------------------------------------------------

static bool open_stream(struct bench *b, struct stream **stream, int drafts, int prompt, struct error *error)
{
    struct stream_options options = {.sampling = {.top_p = 1}, .drafts = drafts};
    if (!stream_open(b->engine, stream, &options, error))
        return false;
    return stream_prompt(*stream, b->ids, prompt, 0, 0, NULL, NULL, error);
}

// What passed between the rounds since `before`, on average.
static void book_gaps(struct bench *b, int i, const struct engine_counters *before)
{
    struct engine_counters after;
    engine_counters(b->engine, &after);
    const double rounds = (double)(after.gaps - before->gaps);
    if (rounds < 1)
        return;
    b->host[i] = (after.host_seconds - before->host_seconds) / rounds;
    b->idle[i] = (after.idle_seconds - before->idle_seconds) / rounds;
    b->launch[i] = (after.launch_seconds - before->launch_seconds) / rounds;
    double gap[GAPS_KEPT];
    int count = 0;
    for (int64_t n = after.gaps - 1; n >= before->gaps && count < GAPS_KEPT; n--)
        gap[count++] = b->engine->gap[n % GAPS_KEPT];
    qsort(gap, (size_t)count, sizeof *gap, order);
    b->host_half[i] = gap[count / 2];
    b->host_most[i] = gap[count * 9 / 10];
}

// Decodes at least `tokens` tokens after the first; *rate in tokens a second.
static bool decode(struct stream *stream, int tokens, double *rate, struct error *error)
{
    int32_t ids[MAX_WINDOW];
    int count = 0, made = 0;
    if (!stream_next(stream, ids, &count, error))
        return false;
    double start = cli_seconds();
    while (made < tokens) {
        if (!stream_next(stream, ids, &count, error))
            return false;
        if (!count)
            return error_set(error, "the context is full; raise --context or lower --prompt and --decode");
        made += count;
    }
    *rate = made / (cli_seconds() - start);
    return true;
}

static bool repeat(struct bench *b, int i, struct error *error)
{
    struct stream *stream = NULL;
    double before = ceiling_measure(b->ceiling), start = cli_seconds();
    bool ok = open_stream(b, &stream, 0, b->prompt, error);
    b->prompt_rate[i] = b->prompt / (cli_seconds() - start);
    struct engine_counters counters;
    engine_counters(b->engine, &counters);
    ok = ok && decode(stream, b->tokens, &b->decode_rate[i], error);
    book_gaps(b, i, &counters);
    stream_close(stream);
    double after = ceiling_measure(b->ceiling);
    b->ceiling_rate[2 * i] = before;
    b->ceiling_rate[2 * i + 1] = after;
    b->share[i] = b->decode_rate[i] * (double)b->bytes_a_token / ((before + after) / 2);
    if (!ok || !b->drafting)
        return ok;
    stream = NULL;
    ok = open_stream(b, &stream, -1, b->prompt, error) && decode(stream, b->tokens, &b->drafted_rate[i], error);
    if (ok) {
        b->drafted += stream_counters(stream)->drafted;
        b->accepted += stream_counters(stream)->accepted;
    }
    stream_close(stream);
    return ok;
}

// Time of each launch of the prompt's program, added up over the chunks of one prompt.
static bool profile_prompt(struct bench *b, struct error *error)
{
    struct stream *stream = NULL;
    exec_profile(b->engine->exec, b->prompt_program->emit, b->prompt_seconds);
    bool ok = open_stream(b, &stream, 0, b->prompt, error);
    exec_profile(b->engine->exec, NULL, NULL);
    stream_close(stream);
    return ok;
}

// Time of each launch of a plain round, averaged over a few rounds.
static bool profile(struct bench *b, struct error *error)
{
    struct stream *stream = NULL;
    int32_t ids[MAX_WINDOW];
    int count = 0;
    bool ok = open_stream(b, &stream, 0, b->prompt, error) && stream_next(stream, ids, &count, error) &&
              stream_next(stream, ids, &count, error);
    exec_profile(b->engine->exec, b->program->emit, b->seconds);
    double start = cli_seconds();
    for (int i = 0; ok && i < BENCH_PROFILED; i++)
        ok = stream_next(stream, ids, &count, error);
    b->round_seconds = (cli_seconds() - start) / BENCH_PROFILED;
    exec_profile(b->engine->exec, NULL, NULL);
    stream_close(stream);
    for (int i = 0; i < b->program->launches; i++) {
        b->seconds[i] /= BENCH_PROFILED;
        b->kernel_seconds += b->seconds[i];
    }
    return ok;
}

// ---- setting up -------------------------------------------------------------------------------------------------------

int32_t *bench_ids(int wanted, bool synthetic, struct error *error)
{
    static const char text[] =
        "To list the files of a package, ask the package manager. The manual page of a command tells "
        "which options it takes and what they do; the files that it reads come last. ";
    struct tokenizer *tokenizer = NULL;
    int32_t *piece = NULL, *ids = malloc((size_t)wanted * sizeof *ids);
    size_t count = 0;
    if (!ids) {
        error_set(error, "no memory for %d ids", wanted);
        return NULL;
    }
    if (!synthetic && tokenizer_tables.vocabulary && tokenizer_open(&tokenizer, &tokenizer_tables, NULL))
        tokenizer_encode(tokenizer, text, sizeof text - 1, false, &piece, &count, NULL);
    for (int i = 0; i < wanted; i++) {
        uint64_t any = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
        ids[i] = count ? piece[(size_t)i % count] : (int32_t)((any >> 33) % (uint64_t)model.vocabulary);
    }
    free(piece);
    tokenizer_close(tokenizer);
    return ids;
}

// Flags that go together, and those that do not.
static bool check_flags(const struct settings *s, struct error *error)
{
    const bool accept = s->accept.count > 0;
    const flag_set drawn = FLAG_BIT(FLAG_BEFORE) | FLAG_BIT(FLAG_AFTER);
    if ((s->given & drawn) && (s->given & drawn) != drawn)
        return error_set(error, "--before and --after: both files are needed");
    if ((s->given & drawn) && (s->given & ~(drawn | FLAG_BIT(FLAG_GNUPLOT) | FLAG_BIT(FLAG_QUIET))))
        return error_set(error,
                         "--before and --after draw saved runs and measure nothing: of other flags only --gnuplot "
                         "goes with them");
    if (s->gnuplot && s->json)
        return error_set(error, "--gnuplot and --json: both are all that is printed; give one of them");
    if (settings_given(s, FLAG_TURNS))
        return true; // bench_turns looks at the others
    if (settings_given(s, FLAG_TURN_TOKENS) || settings_given(s, FLAG_CACHE_GIB))
        return error_set(error, "--turn-tokens and --prompt-cache-gib are of --turns, which is missing");
    if (settings_given(s, FLAG_DRAFTS) && !accept)
        return error_set(error, "--drafts is of --accept, which is missing");
    if (accept && s->no_drafts)
        return error_set(error, "--accept times drafts, and --no-drafts makes none: leave one of them out");
    if (accept && (!model.has_head || model.window < 2))
        return error_set(error, "--accept: this build drafts nothing; leave it out");
    if (s->beside && model.lanes < 2)
        return error_set(error, "--beside: two lanes are needed, and this build has one; make LANES=2 builds more");
    if (s->beside && settings_given(s, FLAG_LANES) && s->lanes < 2)
        return error_set(error, "--beside: two lanes are needed, and --lanes %lld asks for one: leave it out",
                         (long long)s->lanes);
    if (s->lanes > 1 && s->prompt_rows <= s->lanes)
        return error_set(error, "--prompt: expected more than %lld tokens for %lld lanes, found %lld",
                         (long long)s->lanes, (long long)s->lanes, (long long)s->prompt_rows);
    if (accept && s->prompt_rows < 2)
        return error_set(error, "--prompt: expected at least 2 tokens for --accept, found 1");
    return true;
}

// Positions of a stream that decodes, the rounds before the clock starts and one that ends beyond its last token
// included.
static int64_t positions_of(const struct bench *b)
{
    const int64_t rounds = b->accept.count > 0 ? BENCH_SETTLE + BENCH_CYCLE : BENCH_WARM_ROUNDS,
                  rows = (rounds + 2) * model.window, more = 4 * MAX_WINDOW + BENCH_PROFILED;
    return b->prompt + b->tokens + (rows > more ? rows : more);
}

static bool open_engine(struct bench *b, const struct settings *s, struct error *error)
{
    struct engine_options options = cli_engine_options(s);
    int64_t need = positions_of(b);
    b->lanes = (int)s->lanes;
    if (s->beside) {
        options.lanes = options.lanes < 2 ? 2 : options.lanes;
        need = s->beside > need ? s->beside + need : 2 * need;
    }
    if (!settings_given(s, FLAG_CONTEXT))
        options.context = (int)(need < model.max_context ? need : model.max_context);
    int64_t context = options.context;
    if (context && need > context)
        return error_set(error, "%s need %lld positions, the context holds %lld",
                         s->beside ? "--beside, --prompt and --decode" : "--prompt and --decode", (long long)need,
                         (long long)context);
    return engine_open(&b->engine, &options, error) &&
           (need <= engine_longest(b->engine) || engine_too_long(b->engine, "--prompt and --decode", need, error));
}

static bool open_bench(struct bench *b, const struct settings *s, struct error *error)
{
    b->prompt = (int)s->prompt_rows;
    b->tokens = (int)s->decode_rows;
    b->repeats = (int)s->repeat;
    b->synthetic = s->weights && !strcmp(s->weights, "synthetic");
    b->drafting = model.has_head && !s->no_drafts;
    b->program = model.plain_round;
    b->prompt_program = model.plain_prompt;
    b->per_op = s->per_op;
    b->accept = s->accept;
    b->drafts = s->drafts;
    b->ids = bench_ids(b->prompt, b->synthetic, error);
    if (!b->ids || !open_engine(b, s, error))
        return false;
    b->bytes_a_token = b->program->bytes;
    int64_t bytes = model.weight_bytes;
    bytes = bytes < BENCH_LEAST_BYTES ? BENCH_LEAST_BYTES : bytes > BENCH_MOST_BYTES ? BENCH_MOST_BYTES : bytes;
    b->pool = pool_open(engine_threads(b->engine), 0, error);
    b->ceiling = b->pool ? ceiling_open(b->pool, bytes, error) : NULL;
    b->seconds = calloc((size_t)b->program->launches, sizeof *b->seconds);
    b->prompt_seconds = calloc((size_t)b->prompt_program->launches, sizeof *b->prompt_seconds);
    b->lanes_seconds = calloc((size_t)b->program->launches, sizeof *b->lanes_seconds);
    if (!b->ceiling)
        return false;
    return (b->seconds && b->prompt_seconds && b->lanes_seconds) || error_set(error, "no memory");
}

void bench_load(char load[BENCH_LOAD])
{
    FILE *file = fopen("/proc/loadavg", "r");
    if (!file || !fgets(load, BENCH_LOAD, file))
        snprintf(load, BENCH_LOAD, "unknown");
    load[strcspn(load, "\n")] = '\0';
    if (file)
        fclose(file);
}

static int bench_run(const struct settings *settings, struct error *error)
{
    if (!check_flags(settings, error))
        return EXIT_BAD;
    if (settings_given(settings, FLAG_BEFORE))
        return bench_compare(settings->before, settings->after, settings->gnuplot, error) ? 0 : EXIT_BAD;
    if (settings_given(settings, FLAG_TURNS))
        return bench_turns(settings, error) ? 0 : EXIT_BAD;
    struct bench *b = calloc(1, sizeof *b);
    bool ok = b || error_set(error, "no memory");
    ok = ok && open_bench(b, settings, error);
    if (ok)
        bench_load(b->load);
    for (int i = 0; ok && i < b->repeats; i++)
        ok = repeat(b, i, error);
    ok = ok && (b->lanes < 2 || bench_lanes(b, error)) && (b->accept.count == 0 || bench_drafts(b, error)) &&
         (!settings->beside || bench_beside(b, (int)settings->beside, error));
    ok = ok && (settings->eager || bench_graphs(b, error));
    ok = ok && profile(b, error) &&
         (!b->per_op || (profile_prompt(b, error) && (b->lanes < 2 || bench_lanes_profile(b, error))));
    if (ok)
        (settings->json ? bench_print_json : settings->gnuplot ? bench_print_chart : bench_print_text)(b);
    if (b) {
        ceiling_close(b->ceiling);
        pool_close(b->pool);
        engine_close(b->engine);
        free(b->seconds);
        free(b->prompt_seconds);
        free(b->lanes_seconds);
        free(b->ids);
        bench_drafts_free(b);
    }
    free(b);
    return ok ? 0 : EXIT_BAD;
}

const struct command command_bench = {
    .name = "bench",
    .synopsis = "[--prompt N] [--decode N] [--repeat N] [--weights synthetic] [--lanes N] [--accept P,P,... "
                "[--drafts N-N]] [--beside N] [--per-op] [--turns N,N,... [--turn-tokens N]] [--before FILE --after "
                "FILE] [--json] [--gnuplot]",
    .summary = "decode and prompt speed, each kernel's rate, and the share of the machine's read ceiling",
    .notes =
        "Figures are medians over the repeats. The ceiling is measured before and after every repeat; a share "
        "compares a\n"
        "repeat with the two measurements around it. --weights synthetic needs no weight file.\n"
        "--lanes: also 1, 2, 4, 8 streams together. --json and --gnuplot: one of them.\n"
        "--accept: also a table of drafted rounds, of one lane and of all of --lanes: a row a chance that a draft "
        "lands, "
        "a column\n"
        "for each of --drafts a round (0.6,0.8,0.9 and 1-7, say), the last for as many as the engine finds to pay, "
        "from "
        "what it\n"
        "measures itself. tok/s and times undrafted rounds before and after; tokens a round are those of the chance, "
        "not "
        "of luck.\n"
        "--beside: also a reply while a prompt is read, its share of the time and its longest gap.\n"
        "host us/round: from the end of a round to the launch of the next, while the target waits; programs: what each "
        "graph\n"
        "costs, and its time against the same launches one after the other.\n"
        "--per-op runs launches one by one, so their times hold what overlaps otherwise, and ops that share a launch "
        "have one\n"
        "each; with --lanes also those of a round of all lanes.\n"
        "--before and --after, alone or with --gnuplot: bars of the time of each group of kernels in two runs that "
        "--json "
        "printed,\n"
        "which may be of other versions of the program.\n"
        "--turns, alone: milliseconds from handing a chat's next turn in to its first token. The history of N tokens "
        "ends\n"
        "with a reply of --decode tokens and the turn's fixed head; --turn-tokens are new. cold: nothing is kept; "
        "resumed: the\n"
        "prompt before is kept; again: this prompt is; warm: the history was read by a warm pass. Exit code 1: the "
        "replies differ.",
    .flags = ENGINE_FLAGS | FLAG_BIT(FLAG_JSON) | FLAG_BIT(FLAG_PROMPT_ROWS) | FLAG_BIT(FLAG_DECODE_ROWS) |
             FLAG_BIT(FLAG_REPEAT) | FLAG_BIT(FLAG_PER_OP) | FLAG_BIT(FLAG_GNUPLOT) | SHARING_FLAGS |
             FLAG_BIT(FLAG_ACCEPT) | FLAG_BIT(FLAG_DRAFTS) | FLAG_BIT(FLAG_BESIDE) | FLAG_BIT(FLAG_TURNS) |
             FLAG_BIT(FLAG_TURN_TOKENS) | FLAG_BIT(FLAG_CACHE_GIB) | FLAG_BIT(FLAG_BEFORE) | FLAG_BIT(FLAG_AFTER),
    .run = bench_run,
};
