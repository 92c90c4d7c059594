// SPDX-License-Identifier: Apache-2.0
//
// kv_append, index_pool, index_select and attention: against plain double references that read the caches' own encodings, and
// bit for bit across page sizes, orders of pages, chunks of a prompt, and cuts.

#include "kernels/cpu/kv.h"
#include "tests/kernel_rig.h"

enum { ROWS = 150, LANES = 2, RATIO = 4, MOST_PAGES = 256 };

// A layer's shapes and encodings.
struct shape {
    int32_t heads, kv_heads, dim, index_heads, index_dim, rotary, keep, encoding;
};

// What a lane puts in, and what comes out.
struct sequence {
    float *k, *v, *index, *q, *iq, *gate; // [ROWS][...]
    float *y;                             // [ROWS][heads * dim]
    int32_t *blocks, *counts;
};

enum order { IDENTITY, REVERSED, SHUFFLED };

// How a lane's sequence is run.
struct setting {
    int32_t page, chunk;
    int32_t rejected; // rows of other inputs that are run ahead of each chunk, and written over by it
    enum order order;
    int64_t cut;
};

static float index_w[64], frequency[32];

// ---- caches ----------------------------------------------------------------------------------------------------------------

struct cache {
    struct lane lane[LANES];
    struct lane_set lanes;
    struct kv_layout layout;
    uint32_t table[LANES][MOST_PAGES];
};

static void cache_open(struct cache *c, const struct shape *s, const struct setting *how)
{
    const int32_t width = s->kv_heads * s->dim, pages = (ROWS + how->page - 1) / how->page;
    memset(c, 0, sizeof *c);
    c->layout = (struct kv_layout){.encoding = s->encoding,
                                   .kv_heads = s->kv_heads,
                                   .dim = s->dim,
                                   .index_dim = s->index_dim,
                                   .base = 32,
                                   .index_encoding = s->encoding == KV_F32 ? KV_F32 : KV_BF16};
    c->layout.key_bytes = s->encoding == KV_F32    ? 4 * width
                          : s->encoding == KV_BF16 ? 2 * width
                                                   : width + 4 * s->kv_heads;
    c->layout.index_bytes = s->index_dim * (s->encoding == KV_F32 ? 4 : 2);
    c->lanes = (struct lane_set){.count = LANES, .page = how->page};
    c->lanes.page_bytes =
        how->page * (32 + 2 * c->layout.key_bytes + c->layout.index_bytes + c->layout.index_bytes / RATIO);
    c->lanes.pages = malloc((size_t)(c->lanes.page_bytes * pages * LANES));
    memset(c->lanes.pages, 0xff, (size_t)(c->lanes.page_bytes * pages * LANES));
    uint32_t page[MOST_PAGES];
    for (int32_t i = 0; i < pages * LANES; i++)
        page[i] = (uint32_t)(how->order == REVERSED ? pages * LANES - 1 - i : i);
    for (int32_t i = pages * LANES - 1; how->order == SHUFFLED && i > 0; i--) {
        int32_t j = rig_below(i + 1);
        uint32_t t = page[i];
        page[i] = page[j];
        page[j] = t;
    }
    for (int32_t l = 0; l < LANES; l++) {
        memcpy(c->table[l], page + l * pages, (size_t)pages * sizeof *page);
        c->lanes.lane[l] = &c->lane[l];
        c->lanes.table[l] = c->table[l];
    }
}

// ---- running ---------------------------------------------------------------------------------------------------------------

// Runs rows of every lane from `position` on through the four ops. Inputs are gathered to pass order, outputs spread back.
static void run_pass(const struct rig_ops *ops, const struct shape *s, struct cache *c, struct sequence *q,
                     int32_t position, int32_t rows, int64_t cut)
{
    static struct rig_pass p;
    const int32_t kw = s->kv_heads * s->dim, qw = s->heads * s->dim, iw = s->index_heads * s->index_dim;
    const struct sequence in = {.k = rig_floats(2 * rows * kw, 1),
                                .v = rig_floats(2 * rows * kw, 1),
                                .index = rig_floats(2 * rows * s->index_dim, 1),
                                .q = rig_floats(2 * rows * qw, 1),
                                .iq = rig_floats(2 * rows * iw, 1),
                                .gate = rig_floats(2 * rows * qw, 1),
                                .y = rig_floats(2 * rows * qw, 1),
                                .blocks = calloc((size_t)(2 * rows), 4 * (size_t)s->keep),
                                .counts = calloc((size_t)(2 * rows), 4)};
    rig_pass_begin(&p);
    for (int32_t l = 0; l < LANES; l++) {
        rig_pass_add(&p, l, position, rows);
        const size_t at = (size_t)(l * rows), from = (size_t)position, n = (size_t)rows * sizeof(float);
        memcpy(in.k + at * (size_t)kw, q[l].k + from * (size_t)kw, n * (size_t)kw);
        memcpy(in.v + at * (size_t)kw, q[l].v + from * (size_t)kw, n * (size_t)kw);
        memcpy(in.q + at * (size_t)qw, q[l].q + from * (size_t)qw, n * (size_t)qw);
        memcpy(in.gate + at * (size_t)qw, q[l].gate + from * (size_t)qw, n * (size_t)qw);
        memcpy(in.iq + at * (size_t)iw, q[l].iq + from * (size_t)iw, n * (size_t)iw);
        memcpy(in.index + at * (size_t)s->index_dim, q[l].index + from * (size_t)s->index_dim,
               n * (size_t)s->index_dim);
    }
    struct kv_append_args append = {&p.pass, c->lanes, c->layout, kw, kw, s->index_dim, in.k, in.v, in.index};
    struct index_pool_args pool = {&p.pass, c->lanes, c->layout, RATIO, s->rotary, 1e-6f, index_w, frequency};
    struct index_select_args select = {&p.pass, c->lanes, c->layout, s->index_heads, RATIO, s->keep,
                                       iw,      in.iq,    in.blocks, in.counts,      NULL,  CLASS_DECODE};
    struct attention_args attend = {.pass = &p.pass,
                                    .lanes = c->lanes,
                                    .layout = c->layout,
                                    .heads = s->heads,
                                    .ldq = qw,
                                    .ldg = qw,
                                    .gate_stride = s->dim,
                                    .ldy = qw,
                                    .ratio = RATIO,
                                    .keep = s->keep,
                                    .scale = 0.7f,
                                    .q = in.q,
                                    .gate = in.gate,
                                    .blocks = in.blocks,
                                    .counts = in.counts,
                                    .y = in.y};
    launch(ops->kv_append, &append, cut);
    launch(ops->index_pool, &pool, cut);
    launch(ops->index_select, &select, cut);
    launch(ops->attention, &attend, cut);
    for (int32_t l = 0; l < LANES; l++) {
        const size_t at = (size_t)(l * rows), to = (size_t)position;
        memcpy(q[l].y + to * (size_t)qw, in.y + at * (size_t)qw, (size_t)(rows * qw) * sizeof(float));
        memcpy(q[l].blocks + to * (size_t)s->keep, in.blocks + at * (size_t)s->keep, (size_t)(rows * s->keep) * 4);
        memcpy(q[l].counts + to, in.counts + at, (size_t)rows * 4);
    }
    void *all[] = {in.k, in.v, in.index, in.q, in.iq, in.gate, in.y, in.blocks, in.counts};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void sequence_open(struct sequence *q, const struct shape *s)
{
    const int32_t kw = s->kv_heads * s->dim, qw = s->heads * s->dim;
    *q = (struct sequence){.k = rig_floats(ROWS * kw, 1),
                           .v = rig_floats(ROWS * kw, 1),
                           .index = rig_floats(ROWS * s->index_dim, 1),
                           .q = rig_floats(ROWS * qw, 1),
                           .iq = rig_floats(ROWS * s->index_heads * s->index_dim, 1),
                           .gate = rig_floats(ROWS * qw, 2),
                           .y = rig_floats(ROWS * qw, 1),
                           .blocks = malloc(4 * (size_t)(ROWS * s->keep)),
                           .counts = malloc(4 * ROWS)};
    // Every third row asks with a query that gives few blocks a score above zero, so that many tie.
    for (int32_t r = 0; r < ROWS; r += 3)
        memset(q->iq + r * s->index_heads * s->index_dim, 0, (size_t)(s->index_heads * s->index_dim) * sizeof(float));
}

static void sequence_close(struct sequence *q)
{
    void *all[] = {q->k, q->v, q->index, q->q, q->iq, q->gate, q->y, q->blocks, q->counts};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void run(const struct rig_ops *ops, const struct shape *s, struct sequence *q, const struct setting *how)
{
    struct cache c;
    cache_open(&c, s, how);
    struct sequence junk[LANES];
    for (int l = 0; l < LANES; l++)
        sequence_open(&junk[l], s);
    for (int32_t at = 0; at < ROWS; at += how->chunk) {
        if (how->rejected > 0)
            run_pass(ops, s, &c, junk, at, ROWS - at < how->rejected ? ROWS - at : how->rejected, how->cut);
        run_pass(ops, s, &c, q, at, ROWS - at < how->chunk ? ROWS - at : how->chunk, how->cut);
    }
    for (int l = 0; l < LANES; l++)
        sequence_close(&junk[l]);
    free(c.lanes.pages);
}

// ---- reference -------------------------------------------------------------------------------------------------------------

// The value that a cache gives back, one encoding after the other, written from the definitions.
static double stored(float x, int32_t encoding, double scale)
{
    if (encoding == KV_F32 || x == 0)
        return (double)x;
    int e;
    frexp((double)x / scale, &e);
    double step = encoding == KV_BF16 ? ldexp(1, e - 8) : ldexp(1, (e < -5 ? -5 : e) - 4);
    return nearbyint((double)x / scale / step) * step * scale;
}

static double scale_of(const float *x, int32_t n, int32_t encoding)
{
    float top = 0;
    for (int32_t i = 0; i < n; i++)
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    return encoding == KV_FP8 ? (double)(top / 448.0f) : 1;
}

// Pooled row of block b from raw rows of the sequence.
static void pooled(const struct shape *s, const struct sequence *q, int32_t b, double *row)
{
    const int32_t encoding = s->encoding == KV_F32 ? KV_F32 : KV_BF16, half = s->rotary / 2;
    double square = 0;
    for (int32_t d = 0; d < s->index_dim; d++) {
        row[d] = 0;
        for (int32_t i = 0; i < RATIO; i++)
            row[d] += stored(q->index[(b * RATIO + i) * s->index_dim + d], encoding, 1) / RATIO;
        square += row[d] * row[d];
    }
    for (int32_t d = 0; d < s->index_dim; d++)
        row[d] *= (double)index_w[d] / sqrt(square / s->index_dim + 1e-6);
    for (int32_t i = 0; i < half; i++) {
        double angle = (double)(float)((float)(b * RATIO) * frequency[i]), x = row[i], y = row[i + half];
        row[i] = x * cos(angle) - y * sin(angle);
        row[i + half] = y * cos(angle) + x * sin(angle);
    }
    for (int32_t d = 0; encoding == KV_BF16 && d < s->index_dim; d++)
        row[d] = stored((float)row[d], encoding, 1);
}

// Whether the blocks of row r are a right choice: ascending, and no block left out beats one that is in. Scores that differ
// by less than rounding may stand either way, exact ties (zeros) may not.
static bool right_choice(const struct shape *s, const struct sequence *q, int32_t r)
{
    const int32_t n = (r + 1) / RATIO, *blocks = q->blocks + r * s->keep;
    double score[ROWS], row[64], worst = 1e9;
    bool in[ROWS] = {false};
    if (n <= s->keep)
        return q->counts[r] == -1;
    for (int32_t b = 0; b < n; b++) {
        pooled(s, q, b, row);
        score[b] = 0;
        for (int32_t h = 0; h < s->index_heads; h++) {
            double dot = 0;
            for (int32_t d = 0; d < s->index_dim; d++)
                dot += (double)q->iq[(r * s->index_heads + h) * s->index_dim + d] * row[d];
            score[b] += dot > 0 ? dot : 0;
        }
    }
    int32_t last = -1;
    for (int32_t i = 0; i < s->keep; i++) {
        if (blocks[i] < 0 || blocks[i] >= n || (i && blocks[i] <= blocks[i - 1]))
            return false;
        in[blocks[i]] = true;
        worst = score[blocks[i]] < worst ? score[blocks[i]] : worst;
        last = score[blocks[i]] == 0 ? blocks[i] : last;
    }
    for (int32_t b = 0; b < n; b++)
        if (!in[b] && (score[b] > worst + 1e-2 * (s->encoding != KV_F32) + 1e-5 || (score[b] == 0 && b < last)))
            return false;
    return q->counts[r] == s->keep;
}

static void attend(const struct shape *s, const struct sequence *q, int32_t r, int32_t h, double *y)
{
    const int32_t kvh = h / (s->heads / s->kv_heads), tail = (r + 1) / RATIO * RATIO;
    bool use[ROWS] = {false};
    for (int32_t p = 0; p <= r; p++)
        use[p] = q->counts[r] < 0 || p >= tail;
    for (int32_t i = 0; i < q->counts[r]; i++)
        for (int32_t j = 0; j < RATIO; j++)
            use[q->blocks[r * s->keep + i] * RATIO + j] = true;
    double total = 0;
    memset(y, 0, (size_t)s->dim * sizeof *y);
    for (int32_t p = 0; p <= r; p++) {
        const float *k = q->k + (p * s->kv_heads + kvh) * s->dim, *v = q->v + (p * s->kv_heads + kvh) * s->dim;
        double dot = 0, ks = scale_of(k, s->dim, s->encoding), vs = scale_of(v, s->dim, s->encoding);
        for (int32_t d = 0; d < s->dim; d++)
            dot += (double)q->q[(r * s->heads + h) * s->dim + d] * stored(k[d], s->encoding, ks);
        double weight = use[p] ? exp(dot * 0.7) : 0;
        total += weight;
        for (int32_t d = 0; d < s->dim; d++)
            y[d] += weight * stored(v[d], s->encoding, vs);
    }
    for (int32_t d = 0; d < s->dim; d++)
        y[d] *= sigmoid_of((double)q->gate[(r * s->heads + h) * s->dim + d]) / total;
}

static void check(const char *isa, const char *name, const struct shape *s, const struct sequence *q)
{
    double y[256];
    bool close = true, choice = true;
    for (int32_t r = 0; r < ROWS; r += 1 + r / 8) {
        choice = choice && right_choice(s, q, r);
        for (int32_t h = 0; h < s->heads; h++) {
            attend(s, q, r, h, y);
            close = close && rig_close(q->y + (r * s->heads + h) * s->dim, y, s->dim, 1e-5);
        }
    }
    ok(choice, "%s %s: chosen blocks are the best, in order", isa, name);
    ok(close, "%s %s: attention agrees with the formula", isa, name);
}

// ---- tests -----------------------------------------------------------------------------------------------------------------

static void test_shape(const struct rig_ops *ops, const char *name, const struct shape *s)
{
    static const struct setting settings[] = {
        {4, ROWS, 0, IDENTITY, 0},  {4, 7, 0, SHUFFLED, 3},     {16, 64, 0, REVERSED, -2}, {16, 1, 0, SHUFFLED, 0},
        {64, ROWS, 0, SHUFFLED, 1}, {256, 33, 0, IDENTITY, -1}, {12, 10, 0, REVERSED, 2},  {16, 3, 9, SHUFFLED, -3},
    };
    struct sequence q[LANES], other[LANES];
    for (int l = 0; l < LANES; l++) {
        sequence_open(&q[l], s);
        other[l] = q[l];
        other[l].y = rig_floats(ROWS * s->heads * s->dim, 1);
        other[l].blocks = malloc(4 * (size_t)(ROWS * s->keep));
        other[l].counts = malloc(4 * ROWS);
    }
    run(ops, s, q, &(struct setting){64, ROWS, 0, IDENTITY, 0});
    for (int l = 0; l < LANES; l++)
        check(ops->isa, name, s, &q[l]);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const struct setting *how = &settings[i];
        run(ops, s, other, how);
        bool same = true;
        for (int l = 0; l < LANES; l++)
            same = same && rig_same(q[l].y, other[l].y, 4 * ROWS * s->heads * s->dim) &&
                   rig_same(q[l].counts, other[l].counts, 4 * ROWS);
        ok(same, "%s %s: same bits with pages of %d (order %d), chunks of %d after %d rejected, %ld a call", ops->isa,
           name, how->page, how->order, how->chunk, how->rejected, (long)how->cut);
    }
    for (int l = 0; l < LANES; l++) {
        free(other[l].y);
        free(other[l].blocks);
        free(other[l].counts);
        sequence_close(&q[l]);
    }
}

// Every E4M3 number keeps its code; what lies half way goes to the even code; what is too large to the largest.
static void test_codes(void)
{
    bool exact = true, even = true;
    for (int code = 0; code < 0x7e; code++) {
        const double step = code < 8 ? ldexp(1, -9) : ldexp(1, code / 8 - 10);
        const double value = code < 8 ? code * step : (8 + code % 8) * step;
        for (int sign = 0; sign < 2; sign++) {
            const double signed_value = sign ? -value : value, half = sign ? -step / 2 : step / 2;
            uint8_t decoded[16] = {(uint8_t)(code | sign << 7)};
            exact = exact && e4m3_encode((float)signed_value) == (code | sign << 7) &&
                    (double)vf_first(e4m3_decode(decoded)) == signed_value;
            even = even && (e4m3_encode((float)(signed_value + half)) & 0x7f) == code + code % 2 &&
                   e4m3_encode((float)(signed_value + half * 1.01)) % 0x80 == code + 1 &&
                   e4m3_encode((float)(signed_value + half * 0.99)) % 0x80 == code;
        }
    }
    ok(exact, "fp8: every number keeps its code");
    ok(even, "fp8: to the nearest code, ties to even");
    ok(e4m3_encode(1e9f) == 0x7e && e4m3_encode(-449.0f) == 0xfe && e4m3_encode(-NAN) % 0x80 == 0x7f,
       "fp8: what is too large becomes the largest");
}

static void test_isa(const struct rig_ops *ops)
{
    test_shape(ops, "sparse f32", &(struct shape){6, 2, 80, 3, 24, 8, 5, KV_F32});
    test_shape(ops, "sparse bf16", &(struct shape){4, 2, 32, 2, 32, 16, 9, KV_BF16});
    test_shape(ops, "dense bf16", &(struct shape){5, 1, 19, 2, 16, 8, 99, KV_BF16});
    test_shape(ops, "sparse fp8", &(struct shape){4, 2, 36, 1, 16, 4, 7, KV_FP8});
}

int main(void)
{
    for (int i = 0; i < 64; i++)
        index_w[i] = 1 + rig_float(0.5f);
    for (int i = 0; i < 32; i++)
        frequency[i] = powf(10000, -(float)i / 8);
    test_codes();
    rig_each(test_isa);
    return rig_done();
}
