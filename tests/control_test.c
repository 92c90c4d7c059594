// SPDX-License-Identifier: Apache-2.0
//
// Draws, rows, gathered streams, acceptance: draws against a plain sort, and whole drafted rounds against undrafted ones.

#include "kernels/cpu/sampler.h"
#include "tests/kernel_rig.h"

// ---- draws -----------------------------------------------------------------------------------------------------------------

enum { MOST = 3000 };

static const float *sort_logits;

static int by_logit(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (sort_logits[i] != sort_logits[j])
        return sort_logits[i] > sort_logits[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

static double gumbel_of(uint64_t seed, int64_t position, int32_t id)
{
    uint64_t base = sampler_mix(sampler_mix(seed) ^ (uint64_t)position * 0xD1342543DE82EF95u);
    uint64_t k = sampler_mix(base + 0x9E3779B97F4A7C15u * ((uint64_t)id + 1)) >> 12;
    return -log(-log(((double)k + 0.5) / 4503599627370496.0));
}

// The draw by its definition: sort, keep, add noise, take the highest.
static int32_t plain_draw(const float *logits, int32_t n, const struct sampler *s, int64_t position)
{
    int32_t order[MOST], kept = s->top_k > 0 && s->top_k < n ? s->top_k : n, best = -1;
    double p[MOST], total = 0, before = 0, value = 0;
    for (int32_t i = 0; i < n; i++)
        order[i] = i;
    sort_logits = logits;
    qsort(order, (size_t)n, sizeof *order, by_logit);
    for (int32_t i = 0; i < kept; i++)
        total += p[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) / (double)s->temperature);
    for (int32_t i = 0; i < kept; i++) {
        if (i && s->top_p < 1 && before >= (double)s->top_p * total)
            break;
        before += p[i];
        if (i && p[i] < (double)s->min_p)
            break;
        double score = log(p[i]) + gumbel_of(s->seed, position, order[i]);
        if (best < 0 || score > value) {
            best = order[i];
            value = score;
        }
    }
    return best;
}

static void test_draws(void)
{
    static uint8_t scratch[SAMPLER_SCRATCH] __attribute__((aligned(64)));
    static const struct sampler settings[] = {
        {1, 1, 0, 0, 7},       {0.8f, 1, 0, 20, 7},      {1, 0.95f, 0, 20, 1},      {1.3f, 0.5f, 0, 0, 2},
        {1, 0.9f, 0.1f, 0, 3}, {0.6f, 1, 0.05f, 40, 4},  {2, 0.99f, 0, 1500, 5},    {1, 1, 0, 1, 6},
        {1, 1e-9f, 0, 0, 8},   {0.7f, 0.8f, 0, 1024, 9}, {0.01f, 0.9f, 0, 1025, 9}, {1, 1, 1, 0, 10},
    };
    float *logits = rig_floats(MOST, 1);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        bool good = true;
        for (int trial = 0; trial < 60; trial++) {
            const int32_t n = 1 + rig_below(MOST);
            for (int32_t j = 0; j < n; j++) // two kinds: spread, and coarse with many ties
                logits[j] = trial % 2 ? rig_float(9) : (float)rig_below(7) - 3;
            int32_t drawn = sampler_draw(logits, n, &settings[i], trial, scratch);
            good = good && drawn == plain_draw(logits, n, &settings[i], trial);
        }
        ok(good, "draw: T %g top_p %g min_p %g top_k %d as by sorting", (double)settings[i].temperature,
           (double)settings[i].top_p, (double)settings[i].min_p, settings[i].top_k);
    }
    int count[4] = {0};
    const float few[] = {logf(1), logf(2), logf(3), logf(4)};
    for (int i = 0; i < 20000; i++)
        count[sampler_draw(few, 4, &(struct sampler){1, 1, 0, 0, 11}, i, scratch)]++;
    bool share = true;
    for (int i = 0; i < 4; i++)
        share = share && abs(count[i] - 2000 * (i + 1)) < 250;
    ok(share, "draw: shares follow the probabilities (%d %d %d %d of 20000)", count[0], count[1], count[2], count[3]);
    const float odd[] = {-INFINITY, 1, NAN, 1, -0.0f}, none[] = {NAN, -INFINITY};
    ok(sampler_draw(odd, 5, &(struct sampler){0}, 0, scratch) == 1, "draw: greedy ties go to the lower id");
    bool legal = true;
    for (int i = 0; i < 200; i++) {
        int32_t t = sampler_draw(odd, 5, &(struct sampler){1, 0.99f, 0, 4, 3}, i, scratch);
        legal = legal && (t == 1 || t == 3 || t == 4);
    }
    ok(legal, "draw: NaN and -infinity are never drawn");
    ok(sampler_draw(none, 2, &(struct sampler){1, 0.9f, 0, 1, 3}, 0, scratch) == 1 &&
           sampler_draw(none, 1, &(struct sampler){1, 0.9f, 0, 1, 3}, 0, scratch) == 0,
       "draw: without a usable logit still an id");
    free(logits);
}

// A mask gives the draw of the same row with -infinity at every other id, and never another id.
static void test_masks(void)
{
    static uint8_t scratch[SAMPLER_SCRATCH] __attribute__((aligned(64)));
    static const struct sampler settings[] = {
        {0},
        {1, 1, 0, 0, 7},
        {0.8f, 1, 0, 20, 7},
        {1, 0.95f, 0.1f, 20, 1},
        {1.3f, 0.5f, 0, 0, 2},
        {2, 0.99f, 0, 1500, 5},
    };
    float *logits = rig_floats(MOST, 1), *masked = rig_floats(MOST, 1);
    uint32_t mask[(MOST + 31) / 32];
    bool same = true, legal = true;
    for (int trial = 0; trial < 600; trial++) {
        const int32_t n = 1 + rig_below(MOST), share = 1 + rig_below(trial % 3 ? 200 : 2);
        memset(mask, 0, sizeof mask);
        const int32_t one = rig_below(n);
        for (int32_t i = 0; i < n; i++) {
            logits[i] = trial % 2 ? rig_float(9) : (float)rig_below(7) - 3;
            const bool in = i == one || rig_below(share) == 0;
            mask[i / 32] |= (uint32_t)in << (i % 32);
            masked[i] = in ? logits[i] : -INFINITY;
        }
        struct sampler s = settings[trial % 6];
        const int32_t expected = sampler_draw(masked, n, &s, trial, scratch);
        s.mask = mask;
        const int32_t drawn = sampler_draw(logits, n, &s, trial, scratch);
        same = same && drawn == expected;
        legal = legal && (mask[drawn / 32] >> (drawn % 32) & 1);
    }
    ok(same && legal, "draw: a mask gives the draw of a row with -infinity elsewhere");
    const float none[] = {1, NAN, -INFINITY, NAN};
    const uint32_t last = 12;
    ok(sampler_draw(none, 4, &(struct sampler){1, 0.9f, 0, 3, 3, NULL, &last}, 0, scratch) == 2,
       "draw: without a usable logit the lowest id of the mask");
    free(masked);
    free(logits);
}

// ---- rounds ----------------------------------------------------------------------------------------------------------------

enum { VOCABULARY = 40, WIDTH = 24, CONTEXT = 300, LANES = 2, PROMPT = 21 };

struct round {
    const struct rig_ops *ops;
    struct lane lane[LANES];
    struct lane_set lanes;
    struct rig_pass trunk, head, last;
    bool streams_good;
    int64_t cut;
};

static uint64_t stir(uint64_t a, uint64_t b)
{
    return sampler_mix(a * 31 + b);
}

// What stands for the trunk: logits and streams of a position are a function of all tokens up to it.
static void model_row(const struct lane *lane, int32_t position, float *logits, float *streams)
{
    uint64_t h = 5;
    for (int32_t i = 0; i <= position; i++)
        h = stir(h, (uint64_t)lane->tokens[i]);
    for (int32_t i = 0; logits && i < VOCABULARY; i++)
        logits[i] = (float)(stir(h, (uint64_t)i) % 1000) / 150.0f;
    for (int32_t i = 0; streams && i < WIDTH; i++)
        streams[i] = (float)(stir(h, (uint64_t)(900 + i)) % 65536);
}

static void rows(struct round *t, struct rig_pass *p, int mode, int step)
{
    struct rows_args a = {&p->pass, t->lanes, mode, step, RIG_ROWS};
    launch(t->ops->rows, &a, t->cut);
}

static void draw(struct round *t, const struct rig_pass *p, const float *logits, int ahead, int store, int32_t *drawn)
{
    struct draw_args a = {&p->pass, t->lanes, VOCABULARY, VOCABULARY, ahead, store, logits, drawn};
    launch(t->ops->draw, &a, t->cut);
}

// Streams and logits of the live rows of the trunk pass; saves the streams. For FILL passes gather comes first.
static float *trunk(struct round *t, float *logits)
{
    float *x = rig_floats(RIG_ROWS * WIDTH, 1);
    rows(t, &t->trunk, ROWS_TRUNK, 0);
    for (int32_t r = 0; r < t->trunk.pass.rows; r++)
        model_row(&t->lane[t->trunk.lane[r]], t->trunk.position[r], logits + r * VOCABULARY, x + r * WIDTH);
    return x;
}

static void save(struct round *t, const float *x)
{
    struct save_streams_args a = {&t->trunk.pass, t->lanes, WIDTH, 64, x};
    launch(t->ops->save_streams, &a, t->cut);
}

// Gathers the streams of the head's cells and checks that they are those of the committed tokens, and the tokens the next.
static void head_cells(struct round *t, const float *x)
{
    float y[RIG_ROWS * WIDTH], expected[WIDTH];
    struct gather_args a = {&t->head.pass, x ? &t->trunk.pass : NULL, t->lanes, WIDTH, 64, x, y};
    launch(t->ops->gather, &a, t->cut);
    for (int32_t r = 0; r < t->head.pass.rows; r++) {
        const struct lane *lane = &t->lane[t->head.lane[r]];
        model_row(lane, t->head.position[r], NULL, expected);
        t->streams_good = t->streams_good && rig_same(y + r * WIDTH, expected, sizeof expected) &&
                          t->head.token[r] == lane->tokens[t->head.position[r] + 1];
    }
    struct commit_args commit = {&t->head.pass, t->lanes, 1};
    launch(t->ops->commit, &commit, t->cut);
}

// What stands for the head: it guesses the target's next draw, often rightly.
static void guess(struct round *t, int32_t *drawn)
{
    float logits[LANES * VOCABULARY];
    for (int32_t r = 0; r < t->last.pass.rows; r++) {
        const int32_t position = t->last.position[r];
        model_row(&t->lane[t->last.lane[r]], position + 1, logits + r * VOCABULARY, NULL);
        if (stir((uint64_t)position, 3) % 4 == 0)
            logits[r * VOCABULARY + (int)(stir((uint64_t)position, 4) % VOCABULARY)] += 9;
    }
    draw(t, &t->last, logits, 2, 2, drawn);
}

static void prompt(struct round *t, int chunk)
{
    static float logits[RIG_ROWS * VOCABULARY];
    for (int32_t at = 0; at < PROMPT; at += chunk) {
        for (int l = 0; l < LANES; l++)
            t->lane[l].rows = PROMPT - at < chunk ? PROMPT - at : chunk;
        float *x = trunk(t, logits);
        rows(t, &t->head, ROWS_FILL, 0);
        head_cells(t, x);
        save(t, x);
        struct commit_args commit = {&t->trunk.pass, t->lanes, 0};
        launch(t->ops->commit, &commit, t->cut);
        free(x);
    }
    int32_t drawn[LANES];
    for (int l = 0; l < LANES; l++) {
        t->lane[l].tail_first = PROMPT - 1;
        t->lane[l].tail_rows = 1;
    }
    rows(t, &t->last, ROWS_TAIL, 0);
    for (int32_t r = 0; r < LANES; r++)
        model_row(&t->lane[t->last.lane[r]], t->last.position[r], logits + r * VOCABULARY, NULL);
    draw(t, &t->last, logits, 1, 1, drawn);
    for (int l = 0; l < LANES; l++)
        t->lane[l].limit = PROMPT + 1;
}

// One round; then `drafts` drafts a lane for the next one.
static int round_turn(struct round *t, int drafts)
{
    static float logits[RIG_ROWS * VOCABULARY];
    int32_t drawn[RIG_ROWS], result[LANES * (1 + MAX_WINDOW)], before[LANES], got = 0;
    for (int l = 0; l < LANES; l++) {
        t->lane[l].rows = t->lane[l].length >= CONTEXT - 20 ? 0 : 1 + t->lane[l].drafts;
        before[l] = t->lane[l].length;
    }
    float *x = trunk(t, logits);
    save(t, x);
    draw(t, &t->trunk, logits, 1, -1, drawn);
    struct accept_args accept = {&t->trunk.pass, t->lanes, 0, drawn, result};
    launch(t->ops->accept, &accept, t->cut);
    free(x);
    for (int l = 0; l < LANES; l++) {
        const int32_t *r = result + l * (1 + MAX_WINDOW), n = t->lane[l].length - before[l];
        t->streams_good = t->streams_good && r[0] == n && (n == 0 || t->lane[l].fold == n) &&
                          rig_same(r + 1, t->lane[l].tokens + before[l] + 1, 4 * n);
        for (int i = 1; i < n; i++)
            t->streams_good = t->streams_good && r[i] + 1 != t->lane[l].halt;
        got += n;
    }
    rows(t, &t->head, ROWS_ABSORB, 0);
    head_cells(t, NULL);
    for (int step = 0; step < drafts; step++) {
        rows(t, &t->last, step ? ROWS_CHAIN : ROWS_LAST, step);
        guess(t, drawn);
    }
    for (int l = 0; l < LANES; l++) {
        t->streams_good = t->streams_good && t->lane[l].head_length == t->lane[l].length;
        t->lane[l].drafts = drafts;
    }
    return got;
}

// Rows that rule out ids 0 to 4; the tail has one row, a window up to MAX_WINDOW.
static const uint32_t *masks(void)
{
    static uint32_t words[MAX_WINDOW * 2];
    for (int i = 0; i < MAX_WINDOW * 2; i++)
        words[i] = i % 2 ? 0xff : ~(uint32_t)31;
    return words;
}

// Plays prompt and reply of both lanes; tokens: [LANES][CONTEXT + MAX_WINDOW + 1]. Returns rounds; *good: streams were right.
static int play(const struct rig_ops *ops, float temperature, int chunk, int drafts, int64_t cut, int32_t halt,
                int32_t *tokens, bool *good)
{
    static struct round t;
    memset(&t, 0, sizeof t);
    t.ops = ops;
    t.cut = cut;
    t.streams_good = true;
    t.lanes.count = LANES;
    rig_pass_begin(&t.trunk);
    rig_pass_begin(&t.head);
    rig_pass_begin(&t.last);
    for (int l = 0; l < LANES; l++) {
        t.lane[l] = (struct lane){.limit = PROMPT,
                                  .temperature = temperature,
                                  .top_p = 0.9f,
                                  .top_k = 30,
                                  .seed = 5,
                                  .halt = halt,
                                  .mask = halt ? masks() : NULL,
                                  .tokens = tokens + l * (CONTEXT + MAX_WINDOW + 1),
                                  .run = calloc(1, 64 + 4 * MAX_WINDOW * WIDTH)};
        t.lanes.lane[l] = &t.lane[l];
        for (int i = 0; i < PROMPT; i++)
            t.lane[l].tokens[i] = (i * 7 + l) % VOCABULARY;
    }
    prompt(&t, chunk);
    int turns = 0;
    while (round_turn(&t, drafts) > 0)
        turns++;
    for (int l = 0; l < LANES; l++)
        free(t.lane[l].run);
    *good = t.streams_good;
    return turns;
}

static void test_rounds(const struct rig_ops *ops)
{
    enum { ALL = LANES * (CONTEXT + MAX_WINDOW + 1), REPLY = CONTEXT - 20 };
    static int32_t plain[ALL], drafted[ALL];
    for (int kind = 0; kind < 2; kind++) {
        bool good;
        const float temperature = kind ? 0.8f : 0;
        int slow = play(ops, temperature, PROMPT, 0, 0, 0, plain, &good);
        ok(good, "%s rounds without drafts at temperature %g", ops->isa, (double)temperature);
        static const int drafts[] = {1, 3, 7, 14};
        for (int i = 0; i < 4; i++) {
            int fast = play(ops, temperature, 1 + 4 * i, drafts[i], i % 2 ? -1 : 2, 0, drafted, &good);
            bool same = true;
            for (int l = 0; l < LANES; l++)
                same = same && rig_same(plain + l * (ALL / LANES), drafted + l * (ALL / LANES), 4 * REPLY);
            // Most guesses are right, and a right guess is only drawn with the target's own noise.
            ok(same && fast * 10 < slow * (i ? 5 : 8),
               "%s %d drafts, temperature %g: the same tokens in %d rounds, not %d", ops->isa, drafts[i],
               (double)temperature, fast, slow);
            ok(good, "%s %d drafts, temperature %g: the head reads the committed streams and tokens", ops->isa,
               drafts[i], (double)temperature);
        }
    }
}

// Under masks, and with windows that end at id 7, drafts change nothing either.
static void test_masked_rounds(const struct rig_ops *ops)
{
    enum { ALL = LANES * (CONTEXT + MAX_WINDOW + 1), REPLY = CONTEXT - 20 };
    static int32_t plain[ALL], drafted[ALL];
    bool good, fine, same = true, legal = true;
    play(ops, 0.8f, PROMPT, 0, 0, 8, plain, &good);
    play(ops, 0.8f, PROMPT, 7, 0, 8, drafted, &fine);
    for (int l = 0; l < LANES; l++)
        for (int i = PROMPT; i < REPLY; i++) {
            same = same && plain[l * (ALL / LANES) + i] == drafted[l * (ALL / LANES) + i];
            legal = legal && plain[l * (ALL / LANES) + i] > 4;
        }
    ok(same && legal && good && fine, "%s masked rounds, drafted and not: the same tokens, all of them allowed",
       ops->isa);
}

int main(void)
{
    test_draws();
    test_masks();
    rig_each(test_rounds);
    rig_each(test_masked_rounds);
    return rig_done();
}
