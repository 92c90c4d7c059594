// SPDX-License-Identifier: Apache-2.0
//
// rows, gather, save_streams, accept, commit and draw on the device: exactly what the CPU target does.

#ifndef CUDA_OPS_CONTROL_CUH
#define CUDA_OPS_CONTROL_CUH

#include "graphs/exchange.h"
#include "tests/cuda_ops_rig.cuh"

extern "C" cudaError_t cuda_take(cudaStream_t stream, const void *host, void *device, int units);
extern "C" cudaError_t cuda_give(cudaStream_t stream, void *host, const void *device, int units);

enum { CONTROL_LANES = 5, CONTROL_ROWS = 64, WIDTH = 40, TOKENS = 120 };

struct control_rig {
    struct pass *pass, *from;
    struct lane_set lanes;
    struct lane *lane[CONTROL_LANES];
    float *x, *y;
    int32_t *drawn, *result;
};

// Random lanes, one of them null, in a state that a round may leave.
static void control_open(struct control_rig *c)
{
    rig_reset();
    c->lanes = {};
    c->lanes.count = CONTROL_LANES;
    for (int l = 0; l < CONTROL_LANES; l++) {
        struct lane *t = c->lane[l] = take_lane(4 * MAX_WINDOW * WIDTH, TOKENS);
        for (int i = 0; i < MAX_WINDOW * WIDTH; i++)
            ((float *)t->run)[i] = rig_float(1);
        for (int i = 0; i < LANE_KEEPS; i++) {
            t->keep_run[i] = take<uint8_t>(4 * MAX_WINDOW * WIDTH);
            memset(t->keep_run[i], 0, 4 * MAX_WINDOW * WIDTH);
        }
        for (int i = 0; i < TOKENS; i++)
            t->tokens[i] = rig_below(3);
        t->length = 20 + rig_below(40);
        t->rows = rig_below(4) ? 1 + rig_below(MAX_WINDOW) : 0;
        t->drafts = t->rows ? rig_below(t->rows) : 0;
        t->fold = rig_below(4);
        t->head_length = t->length - rig_below(6);
        t->streams_base = t->length - 1 - rig_below(8);
        t->limit = t->length + rig_below(t->rows + 2);
        t->tail_first = t->length - 3;
        t->tail_rows = rig_below(4);
        t->headless = rig_below(3) == 0;
        t->force = rig_below(3) == 0 ? 1 + rig_below(6) : 0;
        if (l != 2)
            c->lanes.lane[l] = t;
    }
    c->pass = take_pass(CONTROL_ROWS);
    c->from = take_pass(CONTROL_ROWS);
    c->x = take_floats(CONTROL_ROWS * WIDTH, 1);
    c->y = take<float>(CONTROL_ROWS * WIDTH);
    c->drawn = take<int32_t>(CONTROL_ROWS);
    for (int i = 0; i < CONTROL_ROWS; i++)
        c->drawn[i] = rig_below(3);
    c->result = take<int32_t>(CONTROL_LANES * (1 + MAX_WINDOW));
}

// Whether the whole arena is the same on both sides, pointers taken back.
static bool control_same(void)
{
    uint8_t *seen = pull(rig_host, (int64_t)rig_used);
    for (int i = 0; i < rig_slot_count; i++) {
        uint8_t *place = seen + (rig_slots[i] - rig_host), *there;
        memcpy(&there, place, sizeof there);
        there = there ? rig_host + (there - rig_device) : NULL;
        memcpy(place, &there, sizeof there);
    }
    return same(seen, rig_host, (int64_t)rig_used);
}

static void test_rows_of_passes(void)
{
    static const char *const names[] = {"trunk", "fill", "tail", "absorb", "last", "chain"};
    for (int mode = ROWS_TRUNK; mode <= ROWS_CHAIN; mode++) {
        bool good = true;
        for (int trial = 0; trial < 12; trial++) {
            struct control_rig c;
            control_open(&c);
            struct rows_args a = {c.pass, c.lanes, mode, trial % 3, trial % 4 == 3 ? 10 : CONTROL_ROWS};
            push_all();
            gpu(cuda_rows, &a, a.capacity);
            cpu(&kernel_rows_portable, &a);
            good = good && control_same();
        }
        ok(good, "rows of mode %s: the CPU target's", names[mode]);
    }
}

static void test_moves(void)
{
    bool gathered = true, saved = true;
    for (int trial = 0; trial < 24; trial++) {
        struct control_rig c;
        control_open(&c);
        struct rows_args trunk = {c.from, c.lanes, ROWS_TRUNK, 0, CONTROL_ROWS};
        struct rows_args fill = {c.pass, c.lanes, trial % 2 ? ROWS_FILL : ROWS_ABSORB, 0, CONTROL_ROWS};
        cpu(&kernel_rows_portable, &trunk);
        cpu(&kernel_rows_portable, &fill);
        struct gather_args gather = {
            c.pass, trial % 3 ? c.from : NULL, c.lanes, WIDTH - trial % 2, trial % 4 == 3 ? -1 : 0, c.x, c.y};
        push_all();
        gpu(cuda_gather, &gather, CONTROL_ROWS);
        cpu(&kernel_gather_portable, &gather);
        gathered = gathered && control_same();
        struct save_streams_args save = {c.from, c.lanes, WIDTH - trial % 2, 0, c.x};
        if (trial % 2 == 0) { // a prompt longer than the ring
            pass_clear(c.from);
            pass_add(c.from, 1, 30, 40);
            pass_add(c.from, 3, 5, 7);
        }
        for (int l = 0; l < CONTROL_LANES; l++)
            for (int i = 0; i < LANE_KEEPS; i++) // in this pass, or outside of it
                c.lane[l]->keep_at[i] = c.lane[l]->length - 1 + rig_below(3 + c.from->lane_rows[l]);
        push_all();
        gpu(cuda_save_streams, &save, CONTROL_ROWS);
        cpu(&kernel_save_streams_portable, &save);
        saved = saved && control_same();
    }
    ok(gathered, "gather: the CPU target's rows");
    ok(saved, "save_streams: the CPU target's ring and base");
}

static void test_ends(void)
{
    bool accepted = true, committed = true;
    for (int trial = 0; trial < 24; trial++) {
        struct control_rig c;
        control_open(&c);
        struct rows_args trunk = {c.pass, c.lanes, ROWS_TRUNK, 0, CONTROL_ROWS};
        cpu(&kernel_rows_portable, &trunk);
        struct accept_args accept = {c.pass, c.lanes, trial % 2, c.drawn, c.result};
        struct commit_args commit = {c.pass, c.lanes, trial % 2};
        memset(c.result, 0, sizeof(int32_t) * CONTROL_LANES * (1 + MAX_WINDOW));
        push_all();
        gpu(cuda_accept, &accept, CONTROL_ROWS);
        cpu(&kernel_accept_portable, &accept);
        accepted = accepted && control_same();
        gpu(cuda_commit, &commit, CONTROL_ROWS);
        cpu(&kernel_commit_portable, &commit);
        committed = committed && control_same();
    }
    ok(accepted, "accept: the CPU target's lanes and results");
    ok(committed, "commit: the CPU target's lanes");
}

// A block is taken whole but for its first word, and given back whole with the program's number in that word.
static void test_exchange(void)
{
    bool taken = true, given = true;
    for (int units = 3; units < 400; units = units * 5 / 2) {
        rig_reset();
        uint8_t *host = take<uint8_t>(units * EXCHANGE_UNIT), *device = take<uint8_t>(units * EXCHANGE_UNIT);
        for (int i = 0; i < units * EXCHANGE_UNIT; i++)
            host[i] = (uint8_t)rig_below(256);
        struct exchange *from = (struct exchange *)host;
        from->done = 6, from->wanted = 7, from->begun = from->ended = 0;
        push_all();
        uint8_t *there = rig_device + (device - rig_host), *here = rig_device + (host - rig_host);
        rig_check(cuda_take(NULL, here, there, units), "take");
        rig_check(cudaDeviceSynchronize(), "take");
        struct exchange *seen = (struct exchange *)pull(device, units * EXCHANGE_UNIT);
        taken = taken && seen->wanted == 7 && seen->begun > 0 && seen->done != 7 &&
                memcmp(seen + 1, from + 1, (size_t)units * EXCHANGE_UNIT - sizeof *seen) == 0;
        for (int i = (int)sizeof *from; i < units * EXCHANGE_UNIT; i++)
            device[i] = (uint8_t)rig_below(256);
        rig_check(cudaMemcpy(there + sizeof *from, device + sizeof *from, (size_t)units * EXCHANGE_UNIT - sizeof *from,
                             cudaMemcpyHostToDevice),
                  "copy");
        rig_check(cuda_give(NULL, here, there, units), "give");
        rig_check(cudaDeviceSynchronize(), "give");
        seen = (struct exchange *)pull(host, units * EXCHANGE_UNIT);
        given = given && seen->done == 7 && seen->wanted == 7 && seen->ended >= seen->begun && seen->begun > 0 &&
                memcmp(seen + 1, device + sizeof *from, (size_t)units * EXCHANGE_UNIT - sizeof *seen) == 0;
    }
    ok(taken, "take: the host's block but for its first word, and when it began");
    ok(given, "give: the program's block and its number");
}

// ---- draws -------------------------------------------------------------------------------------------------------------------------

struct draw_setting {
    float temperature, top_p, min_p;
    int32_t top_k;
};

// kind 0: spread; 1: many ties; 2: NaN and infinities among them; 3: one value everywhere.
static void draw_logits(float *x, int64_t n, int kind)
{
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int j = 0; j < 4; j++)
            sum += rig_float(4);
        x[i] = kind == 3 ? 1.5f : kind == 1 ? floorf(sum) : sum;
        if (kind == 2 && rig_below(9) == 0)
            x[i] = rig_below(3) ? -INFINITY : NAN;
    }
}

static void draw_check(int32_t vocabulary, int32_t rows, int kind)
{
    static const struct draw_setting settings[] = {
        {0, 1, 0, 0}, {0.8f, 1, 0, 0},       {0.8f, 0.95f, 0, 20}, {0.8f, 0.9f, 0.05f, 0}, {1.3f, 1, 0.1f, 0},
        {1, 1, 0, 3}, {0.7f, 0.5f, 0, 5000}, {1, 0, 0, 0},         {5, 0.999f, 0, 2000},   {0.8f, 0.95f, 0.02f, 40},
    };
    bool good = true;
    for (const struct draw_setting &s : settings) {
        rig_reset();
        struct lane_set lanes = {};
        lanes.count = 3;
        struct pass *pass = take_pass(rows + 2);
        for (int l = 0; l < 3; l += 2) {
            struct lane *lane = take_lane(64, 64);
            lane->temperature = s.temperature;
            lane->top_p = s.top_p;
            lane->min_p = s.min_p;
            lane->top_k = s.top_k;
            lane->seed = rig_next();
            lanes.lane[l] = lane;
            pass_add(pass, l, 9 + l, l ? rows - rows / 2 : rows / 2);
        }
        float *logits = take<float>((int64_t)rows * (vocabulary + 4));
        int32_t *drawn = take<int32_t>(rows + 2);
        for (int32_t r = 0; r < rows; r++)
            draw_logits(logits + (int64_t)r * (vocabulary + 4), vocabulary, kind);
        struct draw_args a = {pass, lanes, vocabulary, vocabulary + 4, 2, 3, logits, drawn, NULL};
        push_all();
        gpu(cuda_draw, &a, rows + 2);
        cpu(&kernel_draw_portable, &a);
        const int32_t *got = pull(drawn, rows + 2);
        for (int32_t r = 0; r < rows + 2; r++)
            if (got[r] != drawn[r]) {
                printf("# temperature %g, top_p %g, min_p %g, top_k %d: row %d drew %d, not %d\n",
                       (double)s.temperature, (double)s.top_p, (double)s.min_p, s.top_k, r, got[r], drawn[r]);
                good = false;
            }
        for (int l = 0; l < 3; l += 2)
            good = good && same(pull(lanes.lane[l]->tokens, 64), lanes.lane[l]->tokens, 256);
    }
    ok(good, "draw of %d, logits of kind %d: the CPU target's tokens", vocabulary, kind);
}

// Penalties, bias and log-probabilities: a window of tokens that are drafts, some of them in the list, some of them twice.
static struct penalties *draw_list(int32_t vocabulary, struct lane *lane)
{
    const int32_t most = vocabulary < 3000 ? vocabulary / 2 : 1500;
    struct penalties *p =
        (struct penalties *)take<uint8_t>((int64_t)(sizeof(struct penalties) + most * sizeof(struct penalised)));
    struct penalised *t = (struct penalised *)(p + 1);
    memset(p, 0, sizeof *p);
    p->presence = 0.5f;
    p->frequency = 0.3f;
    p->repetition = 1.3f;
    p->count = most;
    p->room = most + MAX_WINDOW;
    p->kept = take<float>(MAX_WINDOW * p->room);
    for (int32_t i = 0; i < most; i++) {
        const int32_t count = rig_below(3);
        t[i] = {(int32_t)((int64_t)i * vocabulary / most), count, count || rig_below(2),
                rig_below(4) ? 0 : rig_float(3)};
    }
    for (int i = 0; i < 64; i++)
        lane->tokens[i] = rig_below(3) ? t[rig_below(most)].id : rig_below(vocabulary);
    lane->tokens[lane->length + 3] = lane->tokens[lane->length + 1];
    return p;
}

// Rows of a mask: few tokens, half of them, one.
static const uint32_t *draw_mask(int32_t vocabulary, int32_t rows, int kind)
{
    const int32_t words = mask_words(vocabulary);
    uint32_t *mask = take<uint32_t>((int64_t)rows * words);
    memset(mask, 0, (size_t)(rows * words) * sizeof *mask);
    for (int32_t r = 0; r < rows; r++) {
        const int32_t count = r == rows - 1 ? 1 : kind ? vocabulary / 2 : 5;
        for (int32_t i = 0; i < count; i++) {
            const int32_t id = rig_below(vocabulary);
            mask[r * words + id / 32] |= 1u << (id % 32);
        }
    }
    return mask;
}

static void draw_penalised(int32_t vocabulary, int32_t rows, int kind)
{
    bool drawn_well = true, restored = true, ranked = true;
    for (int trial = 0; trial < 8; trial++) {
        rig_reset();
        struct lane_set lanes = {};
        lanes.count = 2;
        struct pass *pass = take_pass(2 * rows);
        for (int l = 0; l < 2; l++) {
            struct lane *lane = take_lane(64, 64);
            lane->temperature = trial % 3 ? 0.8f : 0;
            lane->top_p = trial % 4 ? 0.95f : 1;
            lane->top_k = trial % 2 ? 20 : 0;
            lane->seed = rig_next();
            lane->length = 9 + l;
            if (l == 0 || trial % 2) {
                struct penalties *p = draw_list(vocabulary, lane);
                lane->penalties = p;
                slot(&lane->penalties);
                slot(&p->kept);
            }
            if (trial % 4 != 1 && vocabulary != 5000) {
                lane->mask = draw_mask(vocabulary, rows, l);
                slot(&lane->mask);
            }
            if (l == 1 || trial % 3) {
                lane->alternatives = trial == 5 ? 0 : 1 + rig_below(LOGPROBS_MOST);
                lane->logprobs = take<struct logprobs>(MAX_WINDOW);
                memset(lane->logprobs, 0, MAX_WINDOW * sizeof *lane->logprobs);
                slot(&lane->logprobs);
            }
            lanes.lane[l] = lane;
            pass_add(pass, l, lane->length, rows);
        }
        const int64_t ld = vocabulary + 4;
        float *logits = take<float>(2 * rows * ld);
        int32_t *drawn = take<int32_t>(2 * rows);
        for (int32_t r = 0; r < 2 * rows; r++)
            draw_logits(logits + r * ld, vocabulary, kind);
        const bool head = trial == 7; // draws that are stored have no log-probabilities; these are of every third token
        int32_t *ids = take<int32_t>(vocabulary);
        for (int32_t i = 0; i < vocabulary; i++)
            ids[i] = 3 * i + 1;
        struct draw_args a = {pass,           lanes,  vocabulary, (int32_t)ld,      head ? 2 : 1,
                              head ? 20 : -1, logits, drawn,      head ? ids : NULL};
        float *before = (float *)malloc((size_t)(2 * rows * ld) * sizeof *before);
        memcpy(before, logits, (size_t)(2 * rows * ld) * sizeof *before);
        push_all();
        gpu(cuda_draw, &a, 2 * rows);
        cpu(&kernel_draw_portable, &a);
        drawn_well = drawn_well && same(pull(drawn, 2 * rows), drawn, 8 * rows);
        restored =
            restored && same(pull(logits, 2 * rows * ld), before, 8 * rows * ld) && same(logits, before, 8 * rows * ld);
        for (int l = 0; l < 2; l++)
            if (lanes.lane[l]->logprobs)
                ranked = ranked && same(pull(lanes.lane[l]->logprobs, MAX_WINDOW), lanes.lane[l]->logprobs,
                                        MAX_WINDOW * (int64_t)sizeof(struct logprobs));
        free(before);
    }
    ok(drawn_well, "draw with penalties and masks of %d, logits of kind %d: the CPU target's tokens", vocabulary, kind);
    ok(restored, "and the logits are as they were");
    ok(ranked, "and the log-probabilities are the CPU target's");
}

static void test_draws(int largest)
{
    for (int kind = 0; kind < 4; kind++) {
        draw_penalised(40, 4, kind);
        draw_penalised(5000, 3, kind);
        if (largest)
            draw_penalised(248320, 4, kind);
    }
    for (int kind = 0; kind < 4; kind++) {
        draw_check(7, 6, kind);
        draw_check(1000, 8, kind);
        draw_check(6144, 4, kind);
        if (largest)
            draw_check(248320, 2, kind);
    }
}

#endif
