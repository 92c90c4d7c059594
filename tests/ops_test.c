// SPDX-License-Identifier: Apache-2.0
//
// The row-wise kernels (norms, streams, n-grams, gates, router, sums): against plain double formulas at odd shapes, and bit for
// bit whether a row runs alone or in company, and however items are cut.

#include "tests/kernel_rig.h"
#include <unistd.h>

enum { ROWS = 7, WIDTH = 1200 }; // WIDTH: fp32 a row in every buffer

// A row-wise op: `run` works on the rows of the pass, whose buffers begin at the given pointers (rows WIDTH apart unless the
// op has no leading dimension); `expect` gives one row in double. x, y, z are inputs; `out` also holds what is updated.
struct rows_in {
    const float *x, *y, *z;
};

struct subject {
    const char *name;
    int32_t ld[3], ld_out, compare; // fp32 a row of the inputs and the output; how many of the output count
    void (*run)(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut);
    void (*expect)(int32_t position, struct rows_in in, const float *before, double *out);
};

static float weight[WIDTH], frequency[32];

static double silu_of(double x)
{
    return x * sigmoid_of(x);
}

static double rms_of(const double *x, int n, double eps)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum / n + eps);
}

static void widen(double *y, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = (double)x[i];
}

// ---- norms -----------------------------------------------------------------------------------------------------------------

static void norm_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct norm_args a = {pass, 3, 149, WIDTH, WIDTH, 1e-5f, in.x, weight, out};
    launch(ops->norm, &a, cut);
}

static void norm_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)position, (void)before;
    widen(out, in.x, 3 * 149);
    for (int g = 0; g < 3; g++) {
        double f = rms_of(out + g * 149, 149, 1e-5);
        for (int i = g * 149; i < (g + 1) * 149; i++)
            out[i] *= f * (double)weight[i];
    }
}

static void gated_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct gated_norm_args a = {pass, 5, 37, WIDTH, WIDTH, WIDTH, ACT_SIGMOID, 0, 1e-6f, in.x, in.y, weight, out};
    launch(ops->gated_norm, &a, cut);
}

static void gated_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)position, (void)before;
    widen(out, in.x, 5 * 37);
    for (int h = 0; h < 5; h++) {
        double f = rms_of(out + h * 37, 37, 1e-6);
        for (int i = 0; i < 37; i++)
            out[h * 37 + i] *= f * (double)weight[i] * sigmoid_of((double)in.y[h * 37 + i]);
    }
}

static void after_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct gated_norm_args a = {pass, 5, 37, WIDTH, WIDTH, WIDTH, ACT_SILU, 1, 1e-6f, in.x, in.y, weight, out};
    launch(ops->gated_norm, &a, cut);
}

static void after_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)position, (void)before;
    for (int i = 0; i < 5 * 37; i++)
        out[i] = (double)in.x[i] * silu_of((double)in.y[i]);
    for (int g = 0; g < 5; g++) {
        double f = rms_of(out + g * 37, 37, 1e-6);
        for (int i = g * 37; i < (g + 1) * 37; i++)
            out[i] *= f * (double)weight[i];
    }
}

static void head_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct head_norm_args a = {pass, 6, 100, 50, 22, WIDTH, WIDTH, 1e-6f, in.x, weight, frequency, out};
    launch(ops->head_norm, &a, cut);
}

static void head_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)before;
    for (int h = 0; h < 6; h++) {
        double *y = out + h * 50;
        widen(y, in.x + h * 100, 50);
        double f = rms_of(y, 50, 1e-6);
        for (int i = 0; i < 50; i++)
            y[i] *= f * (double)weight[i];
        for (int i = 0; i < 11; i++) {
            double angle = (double)(float)((float)position * frequency[i]), low = y[i], high = y[i + 11];
            y[i] = low * cos(angle) - high * sin(angle);
            y[i + 11] = high * cos(angle) + low * sin(angle);
        }
    }
}

// ---- element-wise ------------------------------------------------------------------------------------------------------------

static void add_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct add_args a = {pass, 1111, WIDTH, WIDTH, out, in.x};
    launch(ops->add, &a, cut);
}

static void add_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)position;
    for (int i = 0; i < 1111; i++)
        out[i] = (double)before[i] + (double)in.x[i];
}

static void glu_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct glu_args a = {pass, 1111, WIDTH, WIDTH, WIDTH, ACT_SILU, in.x, in.y, out};
    launch(ops->glu, &a, cut);
}

static void glu_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)position, (void)before;
    for (int i = 0; i < 1111; i++)
        out[i] = silu_of((double)in.x[i]) * (double)in.y[i];
}

static void relu2_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct glu_args a = {pass, 600, 0, WIDTH, WIDTH, ACT_RELU2, NULL, in.x, out};
    launch(ops->glu, &a, cut);
}

static void relu2_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)position, (void)before;
    for (int i = 0; i < 600; i++)
        out[i] = in.x[i] > 0 ? (double)in.x[i] * (double)in.x[i] : 0;
}

// ---- streams: 3 of 257 ---------------------------------------------------------------------------------------------------------

static void mix_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct hc_mix_args a = {pass, 3, 257, in.x, in.y, out};
    launch(ops->hc_mix, &a, cut);
}

static void mix_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)position, (void)before;
    for (int d = 0; d < 257; d++) {
        out[d] = 0;
        for (int c = 0; c < 3; c++)
            out[d] += sigmoid_of((double)in.y[c * 257 + d]) * (double)in.x[c * 257 + d] / 3;
    }
}

static void inject_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct hc_inject_args a = {pass, 3, 257, WIDTH, in.x, in.y, out};
    launch(ops->hc_inject, &a, cut);
}

static void inject_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)position;
    for (int i = 0; i < 3 * 257; i++)
        out[i] = (double)before[i] + 2 * sigmoid_of((double)in.x[i / 257]) * (double)in.y[i % 257];
}

static void streams_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct streams_add_args a = {pass, 3, 257, in.x, in.y, out};
    launch(ops->streams_add, &a, cut);
}

static void streams_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)position, (void)before;
    for (int i = 0; i < 3 * 257; i++)
        out[i] = (double)in.x[i % 257] + (double)in.y[i];
}

static void gate_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct ple_gate_args a = {pass, 3, 257, in.x, in.y, in.z, out};
    launch(ops->ple_gate, &a, cut);
}

static void gate_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)position, (void)before;
    for (int c = 0; c < 3; c++) {
        double s = 0;
        for (int d = 0; d < 257; d++)
            s += (double)in.x[c * 257 + d] * (double)in.y[c * 257 + d] / sqrt(257);
        s = s == 0 ? 0 : copysign(sqrt(fmax(fabs(s), 1e-6)), s);
        for (int d = 0; d < 257; d++)
            out[c * 257 + d] = sigmoid_of(s) * (double)in.z[d];
    }
}

static void ple_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct ple_add_args a = {pass, 771, in.x, in.y, out};
    launch(ops->ple_add, &a, cut);
}

static void ple_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)position;
    for (int i = 0; i < 771; i++)
        out[i] = (double)before[i] + (double)in.x[i] + silu_of((double)in.y[i]);
}

// ---- the sum of experts: 4 slots of 301 ------------------------------------------------------------------------------------------

static void sum_run(const struct rig_ops *ops, const struct pass *pass, struct rows_in in, float *out, int64_t cut)
{
    struct moe_sum_args a = {pass, 4, 301, WIDTH, WIDTH, WIDTH, in.x, in.y, in.z, in.z + 400, out};
    launch(ops->moe_sum, &a, cut);
}

static void sum_expect(int32_t position, struct rows_in in, const float *before, double *out)
{
    (void)position, (void)before;
    for (int i = 0; i < 301; i++) {
        out[i] = sigmoid_of((double)in.z[400]) * (double)in.z[i];
        for (int s = 0; s < 4; s++)
            out[i] += (double)in.y[s] * (double)in.x[s * 301 + i];
    }
}

static const struct subject subjects[] = {
    {"norm", {WIDTH, WIDTH, WIDTH}, WIDTH, 3 * 149, norm_run, norm_expect},
    {"gated_norm", {WIDTH, WIDTH, WIDTH}, WIDTH, 5 * 37, gated_run, gated_expect},
    {"gated_norm after", {WIDTH, WIDTH, WIDTH}, WIDTH, 5 * 37, after_run, after_expect},
    {"head_norm", {WIDTH, WIDTH, WIDTH}, WIDTH, 300, head_run, head_expect},
    {"add", {WIDTH, WIDTH, WIDTH}, WIDTH, 1111, add_run, add_expect},
    {"glu", {WIDTH, WIDTH, WIDTH}, WIDTH, 1111, glu_run, glu_expect},
    {"glu without gate", {WIDTH, WIDTH, WIDTH}, WIDTH, 600, relu2_run, relu2_expect},
    {"hc_mix", {771, 771, WIDTH}, 257, 257, mix_run, mix_expect},
    {"hc_inject", {WIDTH, 257, WIDTH}, 771, 771, inject_run, inject_expect},
    {"streams_add", {257, 771, WIDTH}, 771, 771, streams_run, streams_expect},
    {"ple_gate", {771, 771, 257}, 771, 771, gate_run, gate_expect},
    {"ple_add", {771, 771, WIDTH}, 771, 771, ple_run, ple_expect},
    {"moe_sum", {4 * 301, 4, WIDTH}, WIDTH, 301, sum_run, sum_expect},
};

static void begin_rows(struct rig_pass *p, int first, int rows)
{
    rig_pass_begin(p);
    rig_pass_add(p, 0, 1000 + 37 * first, rows);
    for (int r = 0; r < rows; r++)
        p->position[r] = 1000 + 37 * (first + r);
}

static void test_subject(const struct rig_ops *ops, const struct subject *s)
{
    static struct rig_pass p;
    float *in[3], *before = rig_floats(ROWS * s->ld_out, 2);
    for (int i = 0; i < 3; i++)
        in[i] = rig_floats(ROWS * s->ld[i], 3);
    float *together = rig_copy(before, ROWS * s->ld_out), *other = rig_copy(before, ROWS * s->ld_out);
    double expected[WIDTH];
    begin_rows(&p, 0, ROWS);
    s->run(ops, &p.pass, (struct rows_in){in[0], in[1], in[2]}, together, 0);
    bool close = true, untouched = true;
    for (int r = 0; r < ROWS; r++) {
        struct rows_in row = {in[0] + r * s->ld[0], in[1] + r * s->ld[1], in[2] + r * s->ld[2]};
        s->expect(p.position[r], row, before + r * s->ld_out, expected);
        close = close && rig_close(together + r * s->ld_out, expected, s->compare, 2e-6);
        untouched = untouched && rig_same(together + r * s->ld_out + s->compare, before + r * s->ld_out + s->compare,
                                          4 * (s->ld_out - s->compare));
    }
    ok(close && untouched, "%s %s: agrees with the formula, writes its own elements only", ops->isa, s->name);
    for (int r = 0; r < ROWS; r++) {
        begin_rows(&p, r, 1);
        struct rows_in row = {in[0] + r * s->ld[0], in[1] + r * s->ld[1], in[2] + r * s->ld[2]};
        s->run(ops, &p.pass, row, other + r * s->ld_out, 1);
    }
    ok(rig_same(together, other, 4 * ROWS * s->ld_out), "%s %s: a row alone has the same bits", ops->isa, s->name);
    memcpy(other, before, sizeof(float) * (size_t)(ROWS * s->ld_out));
    begin_rows(&p, 0, ROWS);
    s->run(ops, &p.pass, (struct rows_in){in[0], in[1], in[2]}, other, -2);
    ok(rig_same(together, other, 4 * ROWS * s->ld_out), "%s %s: cuts do not matter", ops->isa, s->name);
    for (int i = 0; i < 3; i++)
        free(in[i]);
    free(before);
    free(together);
    free(other);
}

// ---- the router ----------------------------------------------------------------------------------------------------------------

static bool route_row(const struct route_args *a, const float *l, const int32_t *ids, const float *weights)
{
    double p[64], top = -1e9, total = 0, chosen = 0;
    bool used[64] = {false};
    for (int e = 0; e < a->experts; e++)
        top = fmax(top, (double)l[e]);
    for (int e = 0; e < a->experts; e++)
        total += p[e] = a->sigmoid ? sigmoid_of((double)l[e]) : exp((double)l[e] - top);
    for (int s = 0; s < a->slots; s++) {
        int best = -1;
        for (int e = 0; e < a->experts; e++) {
            double value = (a->sigmoid ? p[e] : (double)l[e]) + (a->bias ? (double)a->bias[e] : 0);
            double other =
                best < 0 ? 0 : (a->sigmoid ? p[best] : (double)l[best]) + (a->bias ? (double)a->bias[best] : 0);
            if (!used[e] && (best < 0 || value > other))
                best = e;
        }
        used[best] = true;
        chosen += p[best];
        if (ids[s] != best)
            return false;
    }
    for (int s = 0; s < a->slots; s++) {
        double w = p[ids[s]] / (a->normalise ? chosen : a->sigmoid ? 1 : total) * (double)a->factor;
        if (fabs(w - (double)weights[s]) > 1e-6)
            return false;
    }
    return true;
}

static void test_route(const struct rig_ops *ops)
{
    static struct rig_pass p;
    static float logits[40 * 53], bias[53], weights[40 * 5], weights_cut[40 * 5];
    static int32_t ids[40 * 5], ids_cut[40 * 5];
    for (int i = 0; i < 40 * 53; i++)
        logits[i] = (float)rig_below(9) * 0.5f - 2; // many ties
    for (int e = 0; e < 53; e++)
        bias[e] = (float)rig_below(3) * 0.25f;
    rig_pass_begin(&p);
    rig_pass_add(&p, 0, 0, 40);
    for (int kind = 0; kind < 4; kind++) {
        struct route_args a = {&p.pass, 53,     5, kind >= 2, kind % 2, 53, 2.5f, logits, kind >= 2 ? bias : NULL,
                               ids,     weights};
        launch(ops->route, &a, 0);
        bool good = true;
        for (int r = 0; r < 40; r++)
            good = good && route_row(&a, logits + r * 53, ids + r * 5, weights + r * 5);
        ok(good, "%s route: %s, %s: the highest, ties to the lower id", ops->isa, kind >= 2 ? "sigmoid" : "softmax",
           kind % 2 ? "normalised" : "plain");
        a.ids = ids_cut;
        a.weights = weights_cut;
        launch(ops->route, &a, -3);
        ok(rig_same(ids, ids_cut, sizeof ids) && rig_same(weights, weights_cut, sizeof weights),
           "%s route: cuts do not matter", ops->isa);
    }
    logits[3] = NAN;
    struct route_args a = {&p.pass, 53, 5, 0, 1, 53, 1, logits, NULL, ids, weights};
    launch(ops->route, &a, 0);
    bool distinct = true;
    for (int s = 0; s < 5; s++)
        for (int t = 0; t < 5; t++)
            distinct = distinct && ids[s] >= 0 && ids[s] < 53 && (s == t || ids[s] != ids[t]);
    ok(distinct, "%s route: a NaN among the logits still gives distinct experts", ops->isa);
}

// ---- n-grams -------------------------------------------------------------------------------------------------------------------

static const int64_t multiplier[] = {23703573157769, 20109073645365, 8052911324071};
static const int64_t size[] = {20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
                               20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171};
static const int64_t vector[2][16] = {
    {16410909, 39682429, 55103279, 60931720, 87006904, 116506179, 131512017, 152932897, 169641436, 182022480, 209277433,
     237891023, 256841529, 277007269, 290665954, 300984276},
    {14605717, 24410875, 49313567, 72177428, 86060820, 104022010, 130963819, 146886202, 161523077, 195939126, 219424565,
     220811782, 248020141, 275228530, 284297999, 309645223},
};

// A sparse file whose row i (4 bytes) is read as its number: rows that no test vector names are holes, which read as zero.
static int ngram_file(const int64_t *rows, int n)
{
    char path[] = "/tmp/ngram-XXXXXX";
    int file = mkstemp(path);
    unlink(path);
    for (int i = 0; i < n; i++) {
        float number = (float)(i + 1);
        if (pwrite(file, &number, 4, 64 + rows[i] * 4) != 4)
            abort();
    }
    if (ftruncate(file, 64 + 4 * (int64_t)320001446) != 0)
        abort();
    return file;
}

static void test_ngram(const struct rig_ops *ops)
{
    static struct rig_pass p;
    int32_t tokens[] = {9707, 1, 2, 3, 248044, 9707, 5}, failed = 0;
    int64_t offset[16] = {0};
    for (int i = 1; i < 16; i++)
        offset[i] = offset[i - 1] + size[i - 1];
    struct lane lane = {.tokens = tokens};
    struct row_source source = {.file = ngram_file(vector[0], 32), .offset = 64, .row_bytes = 4};
    float y[6 * 16], again[6 * 16];
    struct ngram_args a = {.pass = &p.pass,
                           .lanes = {.count = 1, .lane = {&lane}},
                           .heads = 16,
                           .dim = 1,
                           .ngram = 3,
                           .eos = 248044,
                           .encoding = ENC_F32,
                           .multiplier = multiplier,
                           .size = size,
                           .offset = offset,
                           .table = &source,
                           .failed = &failed,
                           .y = y};
    rig_pass_begin(&p);
    rig_pass_add(&p, 0, 0, 6);
    launch(ops->ngram, &a, 0);
    bool start = true, middle = true, cut = true;
    for (int i = 0; i < 16; i++) {
        start = start && y[i] == (float)(i + 1);
        middle = middle && y[3 * 16 + i] == (float)(16 + i + 1);
        cut = cut && y[5 * 16 + i] == (float)(i + 1); // after a separator as at the start
    }
    ok(start, "%s ngram: rows of the first vector, at the start of a stream", ops->isa);
    ok(middle, "%s ngram: rows of the second vector", ops->isa);
    ok(cut && !failed, "%s ngram: a separator cuts both bigram and trigram", ops->isa);
    a.y = again;
    launch(ops->ngram, &a, -5);
    ok(rig_same(y, again, sizeof y), "%s ngram: cuts do not matter", ops->isa);
    if (ftruncate(source.file, 64 + 4 * vector[1][0] + 2) != 0)
        abort();
    launch(ops->ngram, &a, 0);
    ok(failed == 1 && again[3 * 16] == 0 && again[0] == 0,
       "%s ngram: a row that the file ends in is zeros and is reported", ops->isa);
    close(source.file);
}

static void test_isa(const struct rig_ops *ops)
{
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        test_subject(ops, &subjects[i]);
    test_route(ops);
    test_ngram(ops);
}

int main(void)
{
    for (int i = 0; i < WIDTH; i++)
        weight[i] = 1 + rig_float(0.9f);
    for (int i = 0; i < 32; i++)
        frequency[i] = powf(1e7f, -(float)i / 11);
    rig_each(test_isa);
    return rig_done();
}
