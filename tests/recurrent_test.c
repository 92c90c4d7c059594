// SPDX-License-Identifier: Apache-2.0
//
// conv, gdn and mamba: against plain double recurrences, and bit for bit across chunks, windows with rejected rows, and cuts.
//
// Two lanes play the same kind of sequence on their own schedules; a lane also sits passes out while rows of it are pending.

#include "tests/kernel_rig.h"

enum { ROWS = 90, LANES = 2 };

// One recurrent op with its shapes: rows of inputs in, rows of outputs out.
struct subject {
    const char *name;
    int32_t inputs, outputs; // fp32 a row
    int64_t state_bytes;     // of a lane
    void (*run)(const struct rig_ops *ops, const struct pass *pass, const struct lane_set *lanes, const float *in,
                float *out, int direct, int64_t cut);
    void (*reference)(const float *in, double *out); // ROWS rows of one lane
};

// ---- conv ----------------------------------------------------------------------------------------------------------------

enum { CHANNELS = 147, TAPS = 4, DILATION = 3 };
static float conv_w[CHANNELS * TAPS], conv_bias[CHANNELS];

static void conv_subject(const struct rig_ops *ops, const struct pass *pass, const struct lane_set *lanes,
                         const float *in, float *out, int direct, int64_t cut)
{
    struct conv_args a = {.pass = pass,
                          .lanes = *lanes,
                          .channels = CHANNELS,
                          .taps = TAPS,
                          .dilation = DILATION,
                          .activation = ACT_SILU,
                          .ldu = CHANNELS,
                          .ldy = CHANNELS,
                          .direct = direct,
                          .u = in,
                          .w = conv_w,
                          .bias = conv_bias,
                          .y = out};
    launch(ops->conv, &a, cut);
}

static void conv_reference(const float *in, double *out)
{
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < CHANNELS; j++) {
            double sum = (double)conv_bias[j];
            for (int i = 0; i < TAPS; i++) {
                int at = r - DILATION * (TAPS - 1 - i);
                sum += at < 0 ? 0 : (double)conv_w[j * TAPS + i] * (double)in[at * CHANNELS + j];
            }
            out[r * CHANNELS + j] = sum * sigmoid_of(sum);
        }
}

// ---- gdn -----------------------------------------------------------------------------------------------------------------

enum { NK = 2, NV = 6, DK = 19, DV = 83, GDN_C = 2 * NK * DK + NV * DV, GDN_IN = GDN_C + 2 * NV };
static float gdn_log[NV], gdn_bias[NV];

static void gdn_subject(const struct rig_ops *ops, const struct pass *pass, const struct lane_set *lanes,
                        const float *in, float *out, int direct, int64_t cut)
{
    static float prepared[RIG_ROWS * (2 * NK * DK + 2 * NV)];
    struct gdn_args a = {.pass = pass,
                         .lanes = *lanes,
                         .nk = NK,
                         .nv = NV,
                         .dk = DK,
                         .dv = DV,
                         .ldc = GDN_IN,
                         .ldb = GDN_IN,
                         .lda = GDN_IN,
                         .ldy = NV * DV,
                         .direct = direct,
                         .c = in,
                         .b = in + GDN_C,
                         .a = in + GDN_C + NV,
                         .a_log = gdn_log,
                         .dt_bias = gdn_bias,
                         .prepared = prepared,
                         .y = out};
    launch(ops->gdn, &a, cut);
}

static void gdn_head(const float *in, double *out, int h)
{
    static double s[DK][DV];
    memset(s, 0, sizeof s);
    for (int r = 0; r < ROWS; r++, in += GDN_IN, out += NV * DV) {
        const float *q = in + h / (NV / NK) * DK, *k = q + NK * DK, *v = in + 2 * NK * DK + h * DV;
        double qq = 1e-6, kk = 1e-6, x = (double)in[GDN_C + NV + h] + (double)gdn_bias[h];
        for (int i = 0; i < DK; i++) {
            qq += (double)q[i] * (double)q[i];
            kk += (double)k[i] * (double)k[i];
        }
        double decay = exp(-exp((double)gdn_log[h]) * (x > 20 ? x : log1p(exp(x))));
        double beta = sigmoid_of((double)in[GDN_C + h]);
        for (int j = 0; j < DV; j++) {
            double read = 0, o = 0;
            for (int i = 0; i < DK; i++)
                read += (s[i][j] *= decay) * (double)k[i] / sqrt(kk);
            for (int i = 0; i < DK; i++) {
                s[i][j] += (double)k[i] / sqrt(kk) * beta * ((double)v[j] - read);
                o += s[i][j] * (double)q[i] / sqrt(qq) / sqrt(DK);
            }
            out[h * DV + j] = o;
        }
    }
}

static void gdn_reference(const float *in, double *out)
{
    for (int h = 0; h < NV; h++)
        gdn_head(in, out, h);
}

// ---- mamba ---------------------------------------------------------------------------------------------------------------

enum {
    HEADS = 6,
    DIM = 37,
    GROUPS = 2,
    SIZE = 21,
    MAMBA_C = HEADS * DIM + 2 * GROUPS * SIZE,
    MAMBA_IN = MAMBA_C + HEADS
};
static float mamba_log[HEADS], mamba_bias[HEADS], mamba_d[HEADS];

static void mamba_subject(const struct rig_ops *ops, const struct pass *pass, const struct lane_set *lanes,
                          const float *in, float *out, int direct, int64_t cut)
{
    struct mamba_args a = {.pass = pass,
                           .lanes = *lanes,
                           .heads = HEADS,
                           .dim = DIM,
                           .groups = GROUPS,
                           .state_dim = SIZE,
                           .ldc = MAMBA_IN,
                           .ldt = MAMBA_IN,
                           .ldy = HEADS * DIM,
                           .direct = direct,
                           .dt_min = 0.5f,
                           .c = in,
                           .dt = in + MAMBA_C,
                           .a_log = mamba_log,
                           .dt_bias = mamba_bias,
                           .d = mamba_d,
                           .y = out};
    launch(ops->mamba, &a, cut);
}

static void mamba_reference(const float *in, double *out)
{
    static double s[HEADS][DIM][SIZE];
    memset(s, 0, sizeof s);
    for (int r = 0; r < ROWS; r++, in += MAMBA_IN, out += HEADS * DIM)
        for (int h = 0; h < HEADS; h++) {
            const float *b = in + HEADS * DIM + h / (HEADS / GROUPS) * SIZE, *c = b + GROUPS * SIZE;
            double dt = log1p(exp((double)in[MAMBA_C + h] + (double)mamba_bias[h]));
            dt = dt < 0.5 ? 0.5 : dt;
            double decay = exp(-exp((double)mamba_log[h]) * dt);
            for (int i = 0; i < DIM; i++) {
                double x = (double)in[h * DIM + i], y = (double)mamba_d[h] * x;
                for (int j = 0; j < SIZE; j++) {
                    s[h][i][j] = s[h][i][j] * decay + dt * x * (double)b[j];
                    y += s[h][i][j] * (double)c[j];
                }
                out[h * DIM + i] = y;
            }
        }
}

static const struct subject subjects[] = {
    {"conv", CHANNELS, CHANNELS, 4 * CHANNELS *(DILATION *(TAPS - 1) + MAX_WINDOW), conv_subject, conv_reference},
    {"gdn", GDN_IN, NV *DV, 4 * (NV * DK * DV + MAX_WINDOW * (NK * DK + NV * DV + 2 * NV)), gdn_subject, gdn_reference},
    {"mamba", MAMBA_IN, HEADS *DIM, 4 * (HEADS * DIM * SIZE + MAX_WINDOW * (HEADS * DIM + GROUPS * SIZE + HEADS)),
     mamba_subject, mamba_reference},
};

// ---- schedules -----------------------------------------------------------------------------------------------------------

// How a lane plays its sequence: chunk > 0: prompt passes of that many rows; window > 0: windows of 1 .. window rows, of which
// a random part is accepted; the others held random inputs. Both: passes of either kind in turn.
struct schedule {
    int chunk, window;
    int64_t cut;
};

struct player {
    struct lane lane;
    const float *in; // [ROWS][inputs]
    float *out;      // [ROWS][outputs]
};

// One pass over the lanes that `take` names. Rows of a window beyond those accepted get junk inputs and their outputs are
// dropped; an accepted row's output is kept.
static void play_pass(const struct rig_ops *ops, const struct subject *s, struct player *players, const int *take,
                      const int *good, int direct, int64_t cut)
{
    static struct rig_pass pass;
    struct lane_set lanes = {.count = LANES};
    const int64_t rows = take[0] + take[1] + 1;
    float *in = rig_floats(rows * s->inputs, 3), *out = rig_floats(rows * s->outputs, 1);
    rig_pass_begin(&pass);
    for (int l = 0; l < LANES; l++) {
        struct player *p = &players[l];
        lanes.lane[l] = &p->lane;
        rig_pass_add(&pass, l, p->lane.length, take[l]);
        for (int r = 0; r < good[l]; r++)
            memcpy(in + (int64_t)(pass.pass.lane_first[l] + r) * s->inputs,
                   p->in + (int64_t)(p->lane.length + r) * s->inputs, (size_t)s->inputs * sizeof *in);
    }
    s->run(ops, &pass.pass, &lanes, in, out, direct, cut);
    for (int l = 0; l < LANES; l++) {
        struct player *p = &players[l];
        if (take[l] == 0)
            continue;
        memcpy(p->out + (int64_t)p->lane.length * s->outputs, out + (int64_t)pass.pass.lane_first[l] * s->outputs,
               (size_t)(good[l] * s->outputs) * sizeof *out);
        p->lane.length += good[l];
        p->lane.fold = direct ? 0 : good[l];
    }
    free(in);
    free(out);
}

// Plays the sequences of both lanes to their ends.
static void play(const struct rig_ops *ops, const struct subject *s, struct player *players, struct schedule how)
{
    for (int l = 0; l < LANES; l++) {
        players[l].lane = (struct lane){.run = calloc(1, (size_t)s->state_bytes)};
        players[l].out = calloc((size_t)(ROWS * s->outputs), sizeof(float));
    }
    for (int turn = 0; players[0].lane.length < ROWS || players[1].lane.length < ROWS; turn++) {
        int take[LANES], good[LANES], direct = how.window == 0 || (how.chunk > 0 && turn % 3 == 2);
        for (int l = 0; l < LANES; l++) {
            int left = ROWS - players[l].lane.length;
            int idle = how.window > 0 && rig_below(3) == 0;
            take[l] = idle || left == 0 ? 0 : direct ? how.chunk : 1 + rig_below(how.window);
            take[l] = direct && take[l] > left ? left : take[l];
            good[l] = take[l] == 0 ? 0 : direct ? take[l] : 1 + rig_below(take[l]);
            good[l] = good[l] > left ? left : good[l];
        }
        play_pass(ops, s, players, take, good, direct, how.cut);
    }
}

static void test_subject(const struct rig_ops *ops, const struct subject *s)
{
    static const struct schedule schedules[] = {{1, 0, 0},  {7, 0, 3},  {64, 0, -5}, {ROWS, 0, 1}, {0, 1, 0},
                                                {0, 2, -1}, {0, 16, 2}, {5, 4, 1},   {1, 8, 0}};
    struct player first[LANES], other[LANES];
    double *expected = malloc((size_t)(ROWS * s->outputs) * sizeof *expected);
    float *in[LANES];
    for (int l = 0; l < LANES; l++)
        first[l].in = other[l].in = in[l] = rig_floats((int64_t)ROWS * s->inputs, 1.5f);
    play(ops, s, first, (struct schedule){ROWS, 0, 0});
    for (int l = 0; l < LANES; l++) {
        s->reference(in[l], expected);
        ok(rig_close(first[l].out, expected, (int64_t)ROWS * s->outputs, 2e-5),
           "%s %s: lane %d agrees with the formula", ops->isa, s->name, l);
    }
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        play(ops, s, other, schedules[i]);
        bool same = true;
        for (int l = 0; l < LANES; l++) {
            same = same && rig_same(first[l].out, other[l].out, 4 * (int64_t)ROWS * s->outputs);
            free(other[l].out);
            free(other[l].lane.run);
        }
        ok(same, "%s %s: same bits with chunks of %d, windows up to %d, %ld items a call", ops->isa, s->name,
           schedules[i].chunk, schedules[i].window, (long)schedules[i].cut);
    }
    for (int l = 0; l < LANES; l++) {
        free(first[l].out);
        free(first[l].lane.run);
        free(in[l]);
    }
    free(expected);
}

// ---- states that a pass keeps on its way -----------------------------------------------------------------------------------

// A prompt's pass: rows `before` .. `end` - 1, behind a window that is pending; it keeps the states behind row at[i] - 1.
struct way {
    int before, at[LANE_KEEPS], end;
    int64_t cut;
};

// Whether the rows behind row `from` - 1 have their bits where they go on from a run.
static bool goes_on(const struct rig_ops *ops, const struct subject *s, const struct player *right, uint8_t *run,
                    int from, int64_t cut)
{
    struct player p[LANES] = {*right, *right};
    const int rows[LANES] = {ROWS - from, 0};
    const int64_t done = (int64_t)from * s->outputs;
    p[0].lane = (struct lane){.run = run, .length = from};
    p[0].out = calloc((size_t)(ROWS * s->outputs), sizeof(float));
    play_pass(ops, s, p, rows, rows, 1, cut);
    const bool same = rig_same(p[0].out + done, right->out + done, 4 * (int64_t)(ROWS - from) * s->outputs);
    free(p[0].out);
    return same;
}

// right: what lane 0 has without any of that. late: rows that the states are kept too late.
static bool keeps(const struct rig_ops *ops, const struct subject *s, const struct player *right, const struct way *way,
                  int late)
{
    struct player p[LANES] = {*right, *right};
    const int window[LANES] = {way->before, 0}, rows[LANES] = {way->end - way->before, 0};
    p[0].lane = (struct lane){.run = calloc(1, (size_t)s->state_bytes)};
    p[0].out = calloc((size_t)(ROWS * s->outputs), sizeof(float));
    play_pass(ops, s, p, window, window, 0, way->cut);
    for (int i = 0; i < LANE_KEEPS; i++) {
        p[0].lane.keep_at[i] = way->at[i] ? way->at[i] + late : 0;
        p[0].lane.keep_run[i] = malloc((size_t)s->state_bytes);
        memset(p[0].lane.keep_run[i], 0x5a, (size_t)s->state_bytes);
    }
    play_pass(ops, s, p, rows, rows, 1, way->cut);
    bool same = rig_same(p[0].out, right->out, 4 * (int64_t)way->end * s->outputs);
    for (int i = 0; i < LANE_KEEPS; i++)
        same = same && (!way->at[i] || goes_on(ops, s, right, p[0].lane.keep_run[i], way->at[i], way->cut));
    same = same && goes_on(ops, s, right, p[0].lane.run, way->end, way->cut);
    for (int i = 0; i < LANE_KEEPS; i++)
        free(p[0].lane.keep_run[i]);
    free(p[0].lane.run);
    free(p[0].out);
    return same;
}

static void test_keeps(const struct rig_ops *ops, const struct subject *s)
{
    static const struct way ways[] = {{0, {1, 2}, 80, 0},   {0, {40, 79}, 80, 3},  {3, {4, 20}, 70, 0},
                                      {5, {0, 33}, 70, -1}, {2, {16, 18}, 18, 0},  {1, {0, 9}, 9, 1},
                                      {0, {3, 4}, 5, 0},    {16, {17, 80}, 81, -5}};
    struct player right[LANES];
    bool good = true, found = true;
    for (int l = 0; l < LANES; l++)
        right[l].in = rig_floats((int64_t)ROWS * s->inputs, 1.5f);
    play(ops, s, right, (struct schedule){ROWS, 0, 0});
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        good = good && keeps(ops, s, right, &ways[i], 0);
        found = found && !keeps(ops, s, right, &ways[i], 1);
    }
    ok(good, "%s %s: from states kept on the way the rows behind them have their bits", ops->isa, s->name);
    ok(found, "%s %s: red: states of one row later are found", ops->isa, s->name);
    for (int l = 0; l < LANES; l++) {
        free((float *)(uintptr_t)right[l].in);
        free(right[l].out);
        free(right[l].lane.run);
    }
}

static void test_isa(const struct rig_ops *ops)
{
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) {
        test_subject(ops, &subjects[i]);
        test_keeps(ops, &subjects[i]);
    }
}

static void fill(float *x, int n, float scale)
{
    for (int i = 0; i < n; i++)
        x[i] = rig_float(scale);
}

int main(void)
{
    fill(conv_w, CHANNELS * TAPS, 1);
    fill(conv_bias, CHANNELS, 1);
    fill(gdn_log, NV, 1);
    fill(gdn_bias, NV, 1);
    fill(mamba_log, HEADS, 1);
    fill(mamba_bias, HEADS, 1);
    fill(mamba_d, HEADS, 1);
    rig_each(test_isa);
    return rig_done();
}
