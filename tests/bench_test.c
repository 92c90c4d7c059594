// SPDX-License-Identifier: Apache-2.0
//
// What `bench --accept` times, on the embedded model: rounds have the depth and the luck that their cell is for, whatever was
// timed before; groups of ops lose no launch. Red controls: cells of another depth, another acceptance, another number of lanes,
// and a column of the engine's own that has a fixed depth, are each refused.

#include "runtime/bench.h"
#include "tests/cache_rig.h"

static int32_t ids[64];

struct asked {
    double chance;
    int drafts, lanes;
};

static bool cell_of(struct bench *b, const struct asked *a, struct bench_cell *cell, struct error *error)
{
    return bench_cell(b, a->chance, a->drafts, a->lanes, cell, error);
}

static bool is(const struct bench_cell *cell, const struct asked *a, struct error *error)
{
    return bench_cell_check(cell, a->chance, a->drafts, a->lanes, error);
}

// Luck that is certain leaves nothing to chance: tokens are those that are expected.
static bool counts_right(const struct bench *b, const struct bench_cell *cell, const struct asked *a)
{
    int64_t rounds = 0, warm = 0;
    for (int i = 0; i < MAX_WINDOW; i++) {
        rounds += cell->timed[i];
        warm += cell->early[i];
    }
    const bool certain = a->chance <= 0 || a->chance >= 1, fixed = a->drafts >= 0;
    const int early = fixed ? BENCH_WARM_ROUNDS : BENCH_SETTLE, least = fixed ? BENCH_LEAST_ROUNDS : BENCH_CYCLE;
    return rounds == cell->rounds * a->lanes && warm == early * a->lanes && cell->rounds >= least &&
           cell->made >= (int64_t)b->tokens * a->lanes && cell->seconds > 0 &&
           (!certain || cell->expected == (double)cell->made);
}

static void cells(struct bench *b)
{
    static const struct asked asked[] = {{0, 0, 1},   {0.6, 1, 1}, {0.9, 5, 1}, {1, 3, 1},   {0, 2, 1},
                                         {0.8, 3, 2}, {1, -1, 1},  {0, -1, 1},  {0.8, -1, 2}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        const struct asked *a = &asked[i];
        struct bench_cell cell;
        struct error error = {0};
        char name[120], how[24];
        snprintf(how, sizeof how, a->drafts < 0 ? "the engine's" : "%d", a->drafts);
        snprintf(name, sizeof name, "a cell of %.1f, %s drafts, %d lane%s is that", a->chance, how, a->lanes,
                 plural(a->lanes));
        const bool good = cell_of(b, a, &cell, &error) && is(&cell, a, &error);
        ok(good && counts_right(b, &cell, a), name, error.text);
    }
}

static void red(struct bench *b)
{
    static const struct {
        struct asked made, taken;
        const char *name, *says;
    } faults[] = {
        {{0.8, 2, 1}, {0.8, 3, 1}, "red: rounds of another depth", "--drafts 3: a round had 2"},
        {{0.95, 3, 1}, {0.5, 3, 1}, "red: another acceptance", "--accept 0.5: of"},
        {{0.8, 3, 1}, {1, 3, 1}, "red: drafts that do not land where all should", "--accept 1: of"},
        {{0.8, 1, 2}, {0.8, 1, 1}, "red: more lanes", "1 lanes were asked for, and 2"},
        {{0.8, 3, 1},
         {0.8, -1, 1},
         "red: the engine's column with a fixed depth",
         "never looked at rounds of 0 drafts"},
        {{0.8, 0, 1}, {0.8, -1, 1}, "red: the engine's column without drafts", "never looked at rounds of 1 drafts"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct bench_cell cell;
        struct error error = {0};
        const bool made = cell_of(b, &faults[i].made, &cell, &error) && is(&cell, &faults[i].made, &error);
        ok(made && !is(&cell, &faults[i].taken, &error) && strstr(error.text, faults[i].says), faults[i].name,
           error.text);
    }
}

// An engine that has been taught that rounds without drafts cost nothing never drafts; a cell begins without that.
static void begins_anew(struct bench *b)
{
    const struct asked a = {1, -1, 1};
    struct depth *d = &b->engine->depth;
    struct bench_cell cell;
    struct error error = {0};
    for (int i = 0; i <= d->most; i++) {
        d->seconds[1][i] = i == 0 ? 1e-12 : 1;
        d->samples[1][i] = 3;
    }
    ok(cell_of(b, &a, &cell, &error) && is(&cell, &a, &error) && d->seconds[1][0] > 1e-9,
       "a cell of the engine's own begins without what others taught it", error.text);
}

static void groups(void)
{
    const struct program *program = model.plain_round;
    struct bench_row rows[BENCH_ROWS], all[BENCH_ROWS];
    double *seconds = calloc((size_t)program->launches, sizeof *seconds), sum = 0;
    for (int i = 0; i < program->launches; i++)
        seconds[i] = i + 1;
    const struct bench_part part = {.program = program, .seconds = seconds, .passes = 3, .share = 1};
    const int count = bench_rows(&part, true, rows), found = bench_groups(rows, count, all);
    int launches = 0;
    for (int i = 0; i < found; i++) {
        launches += all[i].launches;
        sum += all[i].seconds;
    }
    const double wanted = (double)program->launches * (program->launches + 1) / 2;
    ok(found > 4 && launches == 3 * program->launches && sum == wanted, "groups have every launch and its time once",
       "");
    const struct bench_row odd[] = {{.op = "route", .launches = 1, .seconds = 1},
                                    {.op = "rout", .launches = 2, .seconds = 2},
                                    {.op = "experts_up experts_down", .launches = 4, .seconds = 4},
                                    {.op = "", .launches = 8, .seconds = 8}};
    ok(bench_groups(odd, 4, all) == 2 && !strcmp(all[0].op, "router") && all[0].seconds == 1 &&
           !strcmp(all[1].op, "other") && all[1].launches == 14,
       "an op that no group knows is in the last", "");
    free(seconds);
}

int main(void)
{
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        ids[i] = below(model.vocabulary);
    struct bench b = {.ids = ids, .prompt = 24, .tokens = 64, .repeats = 1};
    b.engine = rig_open((struct engine_options){.lanes = 2, .context = 1536});
    if (b.engine) {
        cells(&b);
        red(&b);
        begins_anew(&b);
    }
    ok(b.engine != NULL, "an engine", "");
    groups();
    engine_close(b.engine);
    return done();
}
