// SPDX-License-Identifier: Apache-2.0
//
// conv, gdn and mamba on the device: against the CPU target over a sequence, and bit for bit across chunks, windows with
// rejected rows, folds, lanes and capacities.

#ifndef CUDA_OPS_STATE_CUH
#define CUDA_OPS_STATE_CUH

#include "tests/cuda_ops_rig.cuh"

enum { STEPS = 90, PLAYERS = 2, STATE_ROWS = 2 * STEPS };

// One recurrent op with its shapes.
struct subject {
    const char *name;
    int32_t inputs, outputs; // fp32 a row
    int64_t state_bytes;
    double bound;
    // Runs the op on either side over the rows of `pass`.
    void (*run)(const struct subject *s, bool device, const struct pass *pass, const struct lane_set *lanes,
                const float *in, float *out, int direct, int capacity);
    int32_t shape[8];
    const float *constant[4];
    float *prepared;
};

static void run_conv(const struct subject *s, bool device, const struct pass *pass, const struct lane_set *lanes,
                     const float *in, float *out, int direct, int capacity)
{
    struct conv_args a = {pass,       *lanes, s->shape[0], s->shape[1], s->shape[2],    ACT_SILU,       s->inputs,
                          s->outputs, direct, 0,           in,          s->constant[0], s->constant[1], out};
    device ? gpu(cuda_conv, &a, capacity) : cpu(&kernel_conv_portable, &a);
}

static void run_gdn(const struct subject *s, bool device, const struct pass *pass, const struct lane_set *lanes,
                    const float *in, float *out, int direct, int capacity)
{
    const int32_t nk = s->shape[0], nv = s->shape[1], dk = s->shape[2], dv = s->shape[3], c = 2 * nk * dk + nv * dv;
    struct gdn_args a = {pass,           *lanes,      nk,     nv, dk, dv,     s->inputs,   s->inputs,
                         s->inputs,      s->outputs,  direct, 0,  in, in + c, in + c + nv, s->constant[0],
                         s->constant[1], s->prepared, out};
    device ? gpu(cuda_gdn, &a, capacity) : cpu(&kernel_gdn_portable, &a);
}

static void run_mamba(const struct subject *s, bool device, const struct pass *pass, const struct lane_set *lanes,
                      const float *in, float *out, int direct, int capacity)
{
    const int32_t heads = s->shape[0], dim = s->shape[1], groups = s->shape[2], size = s->shape[3];
    struct mamba_args a = {
        pass,           *lanes,         heads,          dim,  groups, size, s->inputs,
        s->inputs,      s->outputs,     direct,         0.3f, 0,      in,   in + heads * dim + 2 * groups * size,
        s->constant[0], s->constant[1], s->constant[2], out};
    device ? gpu(cuda_mamba, &a, capacity) : cpu(&kernel_mamba_portable, &a);
}

// How the lanes play: chunk > 0: prompt passes of so many rows; window > 0: windows of 1 .. window rows of which a random part
// is accepted; both: either kind in turn. alone: one lane a pass.
struct schedule {
    int chunk, window;
    bool alone;
    int capacity; // 0: the rows of the pass
    bool solo;    // alone: the lane is the only one of its pass, as in a prompt's
};

struct theatre {
    struct pass *pass;
    struct lane_set lanes;
    struct lane *lane[PLAYERS];
    float *in, *out;  // rows of a pass
    uint8_t *kept[2]; // as large as a run
};

static const float *script[PLAYERS]; // [STEPS][inputs] of each lane

// One pass over the lanes that have rows; accepted rows go to `result`. solo: of a lane that is the only one with rows, and of the pass.
static void play_pass(const struct subject *s, const struct theatre *t, bool device, const int *rows,
                      const int *accepted, int direct, int capacity, bool solo, float *const *result)
{
    struct lane_set lanes = t->lanes;
    if (solo) {
        lanes.count = 1;
        lanes.lane[0] = t->lane[rows[0] == 0];
    }
    pass_clear(t->pass);
    for (int l = 0; l < PLAYERS; l++) {
        if (rows[l] == 0)
            continue;
        const int32_t at = t->pass->rows, done = t->lane[l]->length;
        pass_add(t->pass, solo ? 0 : l, done, rows[l]);
        for (int i = 0; i < rows[l]; i++)
            for (int j = 0; j < s->inputs; j++)
                t->in[(at + i) * s->inputs + j] =
                    i < accepted[l] ? script[l][(done + i) * s->inputs + j] : rig_float(1);
    }
    const int64_t n = t->pass->rows;
    const float *out = t->out;
    if (device) {
        push_pass(t->pass, STATE_ROWS);
        push(t->in, n * s->inputs * 4);
        for (int l = 0; l < PLAYERS; l++)
            push(t->lane[l], sizeof *t->lane[l]);
    }
    s->run(s, device, t->pass, &lanes, t->in, t->out, direct, capacity ? capacity : (int)n);
    if (device)
        out = pull(t->out, n * s->outputs);
    for (int l = 0; l < PLAYERS; l++)
        for (int i = 0; i < accepted[l] && rows[l]; i++)
            memcpy(result[l] + (t->lane[l]->length + i) * s->outputs,
                   out + (t->pass->lane_first[solo ? 0 : l] + i) * s->outputs, 4 * (size_t)s->outputs);
    for (int l = 0; l < PLAYERS; l++)
        if (rows[l]) {
            t->lane[l]->length += accepted[l];
            t->lane[l]->fold = direct ? 0 : accepted[l];
        }
}

static void play(const struct subject *s, const struct theatre *t, bool device, const struct schedule *how,
                 float *const *result)
{
    for (int l = 0; l < PLAYERS; l++) {
        t->lane[l]->length = t->lane[l]->fold = 0;
        memset(t->lane[l]->run, 0, (size_t)s->state_bytes);
        if (device)
            push(t->lane[l]->run, s->state_bytes);
    }
    for (int turn = 0; t->lane[0]->length < STEPS || t->lane[1]->length < STEPS; turn++) {
        const bool direct = how->chunk > 0 && (how->window == 0 || rig_below(2));
        int rows[PLAYERS], accepted[PLAYERS];
        for (int l = 0; l < PLAYERS; l++) {
            const int left = STEPS - t->lane[l]->length;
            rows[l] = direct ? how->chunk : 1 + (how->window ? rig_below(how->window) : 0);
            rows[l] = how->alone && turn % PLAYERS != l ? 0 : rows[l];
            if (direct)
                rows[l] = rows[l] < left ? rows[l] : left;
            accepted[l] = direct || rows[l] == 0 ? rows[l] : 1 + rig_below(rows[l]);
            accepted[l] = accepted[l] < left ? accepted[l] : left;
            rows[l] = left ? rows[l] : 0;
        }
        if (rows[0] + rows[1] > 0)
            play_pass(s, t, device, rows, accepted, direct, how->capacity, how->solo && (rows[0] == 0 || rows[1] == 0),
                      result);
    }
}

// ---- states that a pass keeps on its way -------------------------------------------------------------------------------------

// A prompt's pass of lane 0 alone: rows `before` .. `end` - 1, behind a window that is pending; it keeps the states behind row at[i] - 1.
struct way {
    int before, at[LANE_KEEPS], end, capacity;
};

// Rows from the lane's length on, up to `end`; the bits of lane 0 are those of `right`.
static bool state_rows(const struct subject *s, const struct theatre *t, int end, int direct, int capacity,
                       float *const *result, const float *right)
{
    const int from = t->lane[0]->length, rows[PLAYERS] = {end - from, 0};
    if (rows[0] > 0)
        play_pass(s, t, true, rows, rows, direct, capacity, true, result);
    return same(result[0] + from * s->outputs, right + from * s->outputs, 4 * (int64_t)rows[0] * s->outputs);
}

// late: rows that the states are kept too late.
static bool state_keeps(const struct subject *s, const struct theatre *t, const struct way *way, int late,
                        float *const *result, const float *right)
{
    struct lane *lane = t->lane[0];
    uint8_t *own = lane->run, *kept[LANE_KEEPS] = {t->kept[0], t->kept[1]};
    lane->length = lane->fold = 0;
    memset(own, 0, (size_t)s->state_bytes);
    push(own, s->state_bytes);
    state_rows(s, t, way->before, 0, 0, result, right);
    for (int i = 0; i < LANE_KEEPS; i++) {
        memset(kept[i], 0x5a, (size_t)s->state_bytes);
        push(kept[i], s->state_bytes);
        lane->keep_at[i] = way->at[i] ? way->at[i] + late : 0;
        lane->keep_run[i] = kept[i];
    }
    bool good = state_rows(s, t, way->end, 1, way->capacity, result, right);
    memset(lane->keep_at, 0, sizeof lane->keep_at);
    good = state_rows(s, t, STEPS, 1, way->capacity, result, right) && good;
    for (int i = 0; i < LANE_KEEPS; i++) {
        lane->run = kept[i];
        lane->length = way->at[i], lane->fold = 0;
        good = (!way->at[i] || state_rows(s, t, STEPS, 1, way->capacity, result, right)) && good;
    }
    lane->run = own;
    lane->keep_run[0] = lane->keep_run[1] = NULL;
    return good;
}

static void state_keep_check(const struct subject *s, const struct theatre *t, float *const *result, const float *right)
{
    static const struct way ways[] = {{0, {1, 2}, 80, 0},    {0, {40, 79}, 80, 0},  {3, {4, 20}, 70, 180},
                                      {5, {0, 33}, 70, 0},   {2, {16, 18}, 18, 0},  {1, {0, 9}, 9, 0},
                                      {0, {3, 4}, 5, 0},     {16, {17, 80}, 81, 0}, {0, {16, 48}, 64, 180},
                                      {0, {63, 64}, 65, 180}};
    bool good = true, found = true;
    for (const struct way &way : ways) {
        good = state_keeps(s, t, &way, 0, result, right) && good;
        found = found && !state_keeps(s, t, &way, 1, result, right);
    }
    ok(good, "%s: from states kept on the way the rows behind them have their bits", s->name);
    ok(found, "%s: red: states of one row later are found", s->name);
}

static void state_check(struct subject *s, struct theatre *t)
{
    static const struct schedule schedules[] = {
        {1, 0, false, 0},         {7, 0, false, 0},   {64, 0, true, 0},   {STEPS, 0, false, 180},
        {64, 0, false, 180},      {0, 1, false, 0},   {0, 6, false, 0},   {0, 16, true, 0},
        {5, 4, true, 40},         {0, 6, false, 150}, {7, 16, true, 180}, {64, 0, true, 0, true},
        {7, 16, true, 180, true},
    };
    t->in = take<float>((int64_t)STATE_ROWS * s->inputs);
    t->out = take<float>((int64_t)STATE_ROWS * s->outputs);
    t->pass = take_pass(STATE_ROWS);
    t->lanes = {};
    t->lanes.count = PLAYERS + 1; // and a null lane
    for (int l = 0; l < PLAYERS; l++) {
        t->lanes.lane[l] = t->lane[l] = take_lane(s->state_bytes, 8);
        script[l] = take_floats((int64_t)STEPS * s->inputs, 1);
        t->kept[l] = take<uint8_t>(s->state_bytes);
    }
    float *want[PLAYERS], *first[PLAYERS], *again[PLAYERS];
    const size_t bytes = 4 * (size_t)STEPS * (size_t)s->outputs;
    for (int l = 0; l < PLAYERS; l++) {
        want[l] = (float *)malloc(bytes);
        first[l] = (float *)malloc(bytes);
        again[l] = (float *)malloc(bytes);
    }
    push_all();
    static const struct schedule whole = {STEPS, 0, false, 0, false};
    play(s, t, false, &whole, want);
    play(s, t, true, &whole, first);
    ok(close_to(first[0], want[0], STEPS * s->outputs, s->bound) &&
           close_to(first[1], want[1], STEPS * s->outputs, s->bound),
       "%s: agrees with the CPU target to %g", s->name, s->bound);
    for (const struct schedule &how : schedules) {
        play(s, t, true, &how, again);
        ok(same(again[0], first[0], (int64_t)bytes) && same(again[1], first[1], (int64_t)bytes),
           "%s: same bits in chunks of %d, windows of %d%s, capacity %d", s->name, how.chunk, how.window,
           how.solo    ? ", a lane a pass alone"
           : how.alone ? ", one lane a pass"
                       : "",
           how.capacity);
    }
    state_keep_check(s, t, again, first[0]);
    for (int l = 0; l < PLAYERS; l++) {
        free(want[l]);
        free(first[l]);
        free(again[l]);
    }
}

static void test_states(void)
{
    static const int convs[][3] = {{147, 4, 3}, {256, 4, 1}, {130, 3, 2}};
    for (const int *c : convs) {
        char name[64];
        struct theatre t;
        rig_reset();
        struct subject s = {
            name, c[0], c[0], 4 * (int64_t)c[0] * (c[2] * (c[1] - 1) + MAX_WINDOW), 3e-6, run_conv, {c[0], c[1], c[2]},
            {},   NULL};
        s.constant[0] = take_floats(c[0] * c[1], 1);
        s.constant[1] = c[1] == 3 ? NULL : take_floats(c[0], 1);
        snprintf(name, sizeof name, "conv %d, %d taps, dilation %d", c[0], c[1], c[2]);
        state_check(&s, &t);
    }
    static const int gdns[][4] = {{2, 6, 19, 83},  {1, 3, 128, 128}, {2, 6, 128, 16}, {2, 2, 128, 32},
                                  {1, 4, 128, 16}, {2, 2, 64, 32},   {1, 2, 200, 24}, {1, 9, 16, 16}};
    for (const int *g : gdns) {
        char name[64];
        struct theatre t;
        rig_reset();
        const int32_t c = 2 * g[0] * g[2] + g[1] * g[3];
        struct subject s = {name,
                            c + 2 * g[1],
                            g[1] * g[3],
                            4 * ((int64_t)g[1] * g[2] * g[3] + MAX_WINDOW * (g[0] * g[2] + g[1] * g[3] + 2 * g[1])),
                            2e-5,
                            run_gdn,
                            {g[0], g[1], g[2], g[3]},
                            {},
                            NULL};
        s.constant[0] = take_floats(g[1], 1);
        s.constant[1] = take_floats(g[1], 1);
        s.prepared = take<float>((int64_t)STATE_ROWS * (2 * g[0] * g[2] + 2 * g[1]));
        snprintf(name, sizeof name, "gdn %d keys, %d values, %d x %d", g[0], g[1], g[2], g[3]);
        state_check(&s, &t);
    }
    static const int mambas[][4] = {{6, 37, 2, 21}, {4, 64, 2, 128}, {2, 16, 1, 256}};
    for (const int *m : mambas) {
        char name[64];
        struct theatre t;
        rig_reset();
        const int32_t inner = m[0] * m[1], shared = m[2] * m[3];
        struct subject s = {name,
                            inner + 2 * shared + m[0],
                            inner,
                            4 * ((int64_t)inner * m[3] + MAX_WINDOW * (inner + shared + m[0])),
                            3e-5,
                            run_mamba,
                            {m[0], m[1], m[2], m[3]},
                            {},
                            NULL};
        s.constant[0] = take_floats(m[0], 1);
        s.constant[1] = take_floats(m[0], 1);
        s.constant[2] = take_floats(m[0], 1);
        snprintf(name, sizeof name, "mamba %d heads of %d x %d", m[0], m[1], m[3]);
        state_check(&s, &t);
    }
}

#endif
