// SPDX-License-Identifier: Apache-2.0
//
// bench of drafts: rounds of every depth at acceptances that are forced, and rounds whose depth the engine chooses.
// Invariant: a cell is in a table only if its rounds had the depth, and its drafts the luck, that it stands for; and a cell
// that is the engine's own begins without anything that cells before it taught the engine.

#include "runtime/bench.h"
#include "runtime/cli.h"

#include <math.h>
#include <stdlib.h>

// ---- rounds -------------------------------------------------------------------------------------------------------------------

// Tokens that a round of so many drafts makes on average.
static double tokens_of(int drafts, double chance)
{
    double tokens = 1, landed = 1;
    for (int i = 0; i < drafts; i++)
        tokens += landed *= chance;
    return tokens;
}

static bool cell_round(struct bench *b, struct stream **streams, struct bench_cell *cell, bool timed,
                       struct error *error)
{
    int32_t ids[MAX_WINDOW];
    struct stream_counters before[MAX_LANES];
    int64_t made = 0;
    for (int i = 0; i < cell->lanes; i++)
        before[i] = *stream_counters(streams[i]);
    if (!engine_round(b->engine, error))
        return false;
    for (int i = 0; i < cell->lanes; i++) {
        const struct stream_counters *now = stream_counters(streams[i]);
        const int64_t drafts = now->drafted - before[i].drafted, landed = now->accepted - before[i].accepted;
        if (now->rounds == before[i].rounds)
            continue;
        (timed ? cell->timed : cell->early)[drafts]++;
        cell->landed += landed;
        cell->tried += landed + (landed < drafts);
        cell->expected += timed ? tokens_of((int)drafts, cell->chance) : 0;
        made += stream_take(streams[i], ids, MAX_WINDOW);
    }
    cell->rounds += timed;
    cell->made += timed ? made : 0;
    return made > 0 || error_set(error, "the context is full; raise --context or lower --prompt and --decode");
}

bool bench_cell(struct bench *b, double chance, int asked, int lanes, struct bench_cell *cell, struct error *error)
{
    struct stream *streams[MAX_LANES] = {NULL};
    const struct stream_options options = {.sampling = {.top_p = 1}, .drafts = asked, .no_copy = true};
    const int warm = asked < 0 ? BENCH_SETTLE : BENCH_WARM_ROUNDS, least = asked < 0 ? BENCH_CYCLE : BENCH_LEAST_ROUNDS;
    *cell = (struct bench_cell){.asked = asked, .lanes = lanes, .chance = chance};
    if (asked < 0)
        depth_init(&b->engine->depth, model.window - 1);
    if (asked != 0)
        engine_force_acceptance(b->engine, chance);
    bool ok = bench_open_streams(b, streams, lanes, &options, error);
    for (int i = 0; ok && i < warm; i++)
        ok = cell_round(b, streams, cell, false, error);
    const double start = cli_seconds();
    while (ok && (cell->rounds < least || cell->made < (int64_t)b->tokens * lanes))
        ok = cell_round(b, streams, cell, true, error);
    cell->seconds = cli_seconds() - start;
    engine_force_acceptance(b->engine, -1);
    for (int i = 0; i < lanes; i++)
        stream_close(streams[i]);
    return ok;
}

bool bench_cell_check(const struct bench_cell *cell, double chance, int asked, int lanes, struct error *error)
{
    const int found = cell->lanes;
    if (found != lanes)
        return error_set(error, "--accept: rounds of %d lanes were asked for, and %d were timed", lanes, found);
    for (int i = 0; i < MAX_WINDOW && asked >= 0; i++)
        if (i != asked && cell->early[i] + cell->timed[i] > 0)
            return error_set(error, "--drafts %d: a round had %d drafts; raise --round-rows or --context", asked, i);
    // Left alone, the engine first looks at rounds of none and of one.
    if (asked < 0 && (!cell->early[0] || !cell->early[1]))
        return error_set(error, "--accept: the engine was to choose its depth, and never looked at rounds of %d drafts",
                         cell->early[0] > 0);
    if (cell->tried == 0)
        return true;
    const double tried = (double)cell->tried, seen = (double)cell->landed / tried,
                 most = 5 * sqrt(chance * (1 - chance) / tried);
    return fabs(seen - chance) <= most ||
           error_set(error, "--accept %.3g: of %lld drafts that were looked at %lld were accepted", chance,
                     (long long)cell->tried, (long long)cell->landed);
}

// ---- tables -------------------------------------------------------------------------------------------------------------------

// Cell `column` of the row of an acceptance; column drafts.count is the engine's own.
static int place(const struct bench *b, int row, int column)
{
    return 1 + row * (b->drafts.count + 1) + column;
}

static int asked_of(const struct bench *b, int column)
{
    return column < b->drafts.count ? (int)b->drafts.number[column] : -1;
}

static bool measure(struct bench *b, struct bench_cell *cell, double chance, int asked, int lanes, struct error *error)
{
    return bench_cell(b, chance, asked, lanes, cell, error) && bench_cell_check(cell, chance, asked, lanes, error);
}

static bool measure_repeat(struct bench *b, const struct bench_table *t, struct bench_cell *cell, struct error *error)
{
    bool ok = measure(b, cell, 0, 0, t->lanes, error);
    for (int row = 0; ok && row < b->accept.count; row++)
        for (int column = 0; ok && column <= b->drafts.count; column++)
            ok = measure(b, &cell[place(b, row, column)], b->accept.number[row], asked_of(b, column), t->lanes, error);
    return ok && measure(b, &cell[t->count - 1], 0, 0, t->lanes, error);
}

bool bench_drafts(struct bench *b, struct error *error)
{
    bool ok = true;
    for (int lanes = 1; ok && lanes <= b->lanes; lanes += b->lanes > 1 ? b->lanes - 1 : 1) {
        struct bench_table *t = &b->table[b->tables++];
        *t = (struct bench_table){.lanes = lanes, .count = place(b, b->accept.count, 0) + 1};
        t->cell = calloc((size_t)t->count * (size_t)b->repeats, sizeof *t->cell);
        ok = t->cell || error_set(error, "no memory for %d repeats", b->repeats);
        for (int i = 0; ok && i < b->repeats; i++)
            ok = measure_repeat(b, t, t->cell + (size_t)i * (size_t)t->count, error);
    }
    return ok;
}

void bench_drafts_free(struct bench *b)
{
    for (int i = 0; i < b->tables; i++)
        free(b->table[i].cell);
}

// ---- figures ------------------------------------------------------------------------------------------------------------------

enum figure { RATE, TIMES, ROUND };

static double rate(const struct bench_cell *cell)
{
    return cell->expected / cell->seconds;
}

// One figure of a cell in all repeats. TIMES: of the undrafted rounds of its repeat.
static const double *series(const struct bench *b, const struct bench_table *t, int at, enum figure figure,
                            double values[BENCH_REPEATS])
{
    for (int i = 0; i < b->repeats; i++) {
        const struct bench_cell *all = t->cell + (size_t)i * (size_t)t->count, *cell = &all[at];
        const double plain = (rate(&all[0]) + rate(&all[t->count - 1])) / 2;
        values[i] = figure == ROUND   ? cell->seconds / (double)cell->rounds
                    : figure == TIMES ? rate(cell) / plain
                    : at == 0         ? plain
                                      : rate(cell);
    }
    return values;
}

static double median(const struct bench *b, const struct bench_table *t, int at, enum figure figure)
{
    double values[BENCH_REPEATS];
    return bench_median(series(b, t, at, figure, values), b->repeats);
}

// The counts of a cell in all repeats together.
static struct bench_cell sum(const struct bench *b, const struct bench_table *t, int at)
{
    struct bench_cell all = t->cell[at];
    for (int i = 1; i < b->repeats; i++) {
        const struct bench_cell *cell = &t->cell[(size_t)i * (size_t)t->count + (size_t)at];
        all.rounds += cell->rounds;
        all.made += cell->made;
        all.tried += cell->tried;
        all.landed += cell->landed;
        for (int d = 0; d < MAX_WINDOW; d++)
            all.timed[d] += cell->timed[d];
    }
    return all;
}

// Share of a lane's rounds by drafts; the mean of those.
static double shares(const struct bench_cell *all, double share[MAX_WINDOW])
{
    double mean = 0;
    for (int d = 0; d < MAX_WINDOW; d++) {
        share[d] = (double)all->timed[d] / ((double)all->rounds * all->lanes);
        mean += d * share[d];
    }
    return mean;
}

static void print_chosen(const struct bench *b, const struct bench_table *t, int at)
{
    const struct bench_cell all = sum(b, t, at);
    double share[MAX_WINDOW];
    printf("  %5.2f a round:", shares(&all, share));
    const char *comma = "";
    for (int d = 0; d < MAX_WINDOW; d++) {
        if (share[d] >= 0.005) {
            printf("%s %d %.0f %%", comma, d, 100 * share[d]);
            comma = ",";
        }
    }
    putchar('\n');
}

void bench_drafts_text(const struct bench *b)
{
    for (int i = 0; i < b->tables; i++) {
        const struct bench_table *t = &b->table[i];
        printf("drafts, %d lane%s: tok/s at a forced acceptance over all luck, and times the undrafted %.2f\n  %6s",
               t->lanes, plural(t->lanes), median(b, t, 0, RATE), "accept");
        for (int c = 0; c < b->drafts.count; c++)
            printf(" %13d ", asked_of(b, c));
        printf(" %14s  drafts that it chose\n", "the engine's");
        for (int row = 0; row < b->accept.count; row++) {
            printf("  %6.3g", b->accept.number[row]);
            for (int c = 0; c <= b->drafts.count; c++)
                printf(" %8.2f %5.2f", median(b, t, place(b, row, c), RATE), median(b, t, place(b, row, c), TIMES));
            print_chosen(b, t, place(b, row, b->drafts.count));
        }
    }
}

static json_t *cell_json(const struct bench *b, const struct bench_table *t, int at)
{
    const struct bench_cell all = sum(b, t, at);
    double values[BENCH_REPEATS], share[MAX_WINDOW];
    const double mean = shares(&all, share);
    json_t *root =
        json_pack("{s:f, s:I, s:I, s:I, s:I}", "mean_drafts", mean, "rounds", (json_int_t)all.rounds, "tokens",
                  (json_int_t)all.made, "looked_at", (json_int_t)all.tried, "accepted", (json_int_t)all.landed);
    json_t *list = json_array();
    for (int d = 0; d < model.window; d++)
        json_array_append_new(list, json_real(share[d]));
    json_object_set_new(root, "share_by_drafts", list);
    json_object_set_new(root, "tokens_per_second", bench_series(series(b, t, at, RATE, values), b->repeats));
    json_object_set_new(root, "times_undrafted", bench_series(series(b, t, at, TIMES, values), b->repeats));
    json_object_set_new(root, "round_seconds", bench_series(series(b, t, at, ROUND, values), b->repeats));
    return root;
}

void bench_drafts_json(const struct bench *b, json_t *root)
{
    double values[BENCH_REPEATS];
    json_t *tables = json_array();
    for (int i = 0; i < b->tables; i++) {
        const struct bench_table *t = &b->table[i];
        json_t *rows = json_array();
        for (int row = 0; row < b->accept.count; row++) {
            json_t *fixed = json_array();
            for (int c = 0; c < b->drafts.count; c++) {
                json_t *cell = cell_json(b, t, place(b, row, c));
                json_object_set_new(cell, "drafts", json_integer(asked_of(b, c)));
                json_array_append_new(fixed, cell);
            }
            json_array_append_new(rows, json_pack("{s:f, s:o, s:o}", "acceptance", b->accept.number[row], "fixed",
                                                  fixed, "chosen", cell_json(b, t, place(b, row, b->drafts.count))));
        }
        json_array_append_new(tables, json_pack("{s:i, s:o, s:o}", "lanes", t->lanes, "undrafted_tokens_per_second",
                                                bench_series(series(b, t, 0, RATE, values), b->repeats), "rows", rows));
    }
    json_object_set_new(root, "drafting", tables);
}
