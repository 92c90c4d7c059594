// SPDX-License-Identifier: Apache-2.0
//
// The toy's programs: the real ones' order of passes, with the real control kernels (rows, gather, save_streams, draw, accept,
// commit) around a few hashed ops. Programs are numbered as the generator numbers them.

#include "runtime/weights.h"
#include "tests/sim/toy.h"
#include "tests/sim/toy_ops.h"
#include <stddef.h>

enum { TRUNK_ROWS = TOY_LANES * TOY_WINDOW > TOY_CHUNK ? TOY_LANES *TOY_WINDOW : TOY_CHUNK, TAIL = 4 };

struct arena {
    uint64_t trunk[TRUNK_ROWS], head[TOY_LANES * MAX_WINDOW], last[TOY_LANES], tail[TRUNK_ROWS];
    float logits[TRUNK_ROWS][TOY_VOCABULARY], head_logits[TOY_LANES][TOY_VOCABULARY];
    int32_t drawn[TRUNK_ROWS], head_drawn[TOY_LANES];
};

#define LAUNCH(kernel, type, ...) exec_launch(e, kernel, &(const struct type){__VA_ARGS__}, sizeof(struct type), 0, 0)

static struct arena *arena_of(const struct bind *b)
{
    return (struct arena *)(void *)b->arena;
}

static void rows(struct exec *e, const struct bind *b, int pass, int mode, int step, int capacity)
{
    LAUNCH(KERNEL_rows, rows_args, .pass = &b->pass[pass], .lanes = b->lanes, .mode = mode, .step = step,
           .capacity = capacity);
}

static void gather(struct exec *e, const struct bind *b, int pass, int from, int64_t state, const uint64_t *x,
                   uint64_t *y)
{
    LAUNCH(KERNEL_gather, gather_args, .pass = &b->pass[pass], .from = from < 0 ? NULL : &b->pass[from],
           .lanes = b->lanes, .width = 2, .state = state, .x = (const float *)(const void *)x, .y = (float *)(void *)y);
}

static void toy(struct exec *e, const struct bind *b, int op, int pass, uint64_t *values, float *logits)
{
    LAUNCH(op, toy_args, .pass = &b->pass[pass], .lanes = b->lanes, .values = values, .logits = logits,
           .failed = b->failed);
}

static void trunk(struct exec *e, const struct bind *b, int direct, int decode)
{
    LAUNCH(TOY_TRUNK, toy_args, .pass = &b->pass[PASS_TRUNK], .lanes = b->lanes, .direct = direct, .decode = decode,
           .values = arena_of(b)->trunk, .failed = b->failed);
}

static void draw(struct exec *e, const struct bind *b, int pass, int ahead, int store, const float *logits,
                 int32_t *drawn)
{
    LAUNCH(KERNEL_draw, draw_args, .pass = &b->pass[pass], .lanes = b->lanes, .vocabulary = TOY_VOCABULARY,
           .ldl = TOY_VOCABULARY, .ahead = ahead, .store = store, .logits = logits, .drawn = drawn);
}

static void commit(struct exec *e, const struct bind *b, int pass, int head)
{
    LAUNCH(KERNEL_commit, commit_args, .pass = &b->pass[pass], .lanes = b->lanes, .head = head);
}

static void save(struct exec *e, const struct bind *b)
{
    LAUNCH(KERNEL_save_streams, save_streams_args, .pass = &b->pass[PASS_TRUNK], .lanes = b->lanes, .width = 2,
           .state = offsetof(struct toy_state, streams), .x = (const float *)(const void *)arena_of(b)->trunk);
}

static void prompt_of(struct exec *e, const struct bind *b, bool head)
{
    struct arena *a = arena_of(b);
    rows(e, b, PASS_TRUNK, ROWS_TRUNK, 0, TOY_CHUNK);
    trunk(e, b, 1, 0);
    if (head) {
        rows(e, b, PASS_HEAD, ROWS_FILL, 0, TOY_CHUNK);
        gather(e, b, PASS_HEAD, PASS_TRUNK, offsetof(struct toy_state, streams), a->trunk, a->head);
        toy(e, b, TOY_FILL, PASS_HEAD, a->head, NULL);
        commit(e, b, PASS_HEAD, 1);
    }
    save(e, b);
    commit(e, b, PASS_TRUNK, 0);
}

static void plain_prompt(struct exec *e, const struct bind *b)
{
    prompt_of(e, b, false);
}

static void prompt(struct exec *e, const struct bind *b)
{
    prompt_of(e, b, true);
}

static void tail_of(struct exec *e, const struct bind *b, int from, int64_t state)
{
    struct arena *a = arena_of(b);
    rows(e, b, PASS_TAIL, ROWS_TAIL, 0, TAIL);
    gather(e, b, PASS_TAIL, from, state, a->trunk, a->tail);
    toy(e, b, TOY_LOGITS, PASS_TAIL, a->tail, a->logits[0]);
    draw(e, b, PASS_TAIL, 1, -1, a->logits[0], a->drawn);
}

static void tail(struct exec *e, const struct bind *b)
{
    tail_of(e, b, PASS_TRUNK, -1);
}

static void saved_tail(struct exec *e, const struct bind *b)
{
    tail_of(e, b, -1, offsetof(struct toy_state, streams));
}

static void verify(struct exec *e, const struct bind *b, int drafts, bool head)
{
    struct arena *a = arena_of(b);
    const int direct = drafts == 0 || faults.drafted_state;
    rows(e, b, PASS_TRUNK, ROWS_TRUNK, 0, TOY_LANES * (drafts + 1));
    trunk(e, b, direct, 1);
    if (head)
        save(e, b);
    toy(e, b, TOY_LOGITS, PASS_TRUNK, a->trunk, a->logits[0]);
    draw(e, b, PASS_TRUNK, 1, -1, a->logits[0], a->drawn);
    for (int times = 0; times < (faults.commit_twice ? 2 : 1); times++)
        LAUNCH(KERNEL_accept, accept_args, .pass = &b->pass[PASS_TRUNK], .lanes = b->lanes, .direct = direct,
               .drawn = a->drawn, .result = b->result);
}

static void plain_round(struct exec *e, const struct bind *b)
{
    verify(e, b, 0, false);
}

static void saving_round(struct exec *e, const struct bind *b)
{
    verify(e, b, 0, true);
}

static void round_of(struct exec *e, const struct bind *b, int drafts)
{
    struct arena *a = arena_of(b);
    rows(e, b, PASS_HEAD, ROWS_ABSORB, 0, TOY_LANES * MAX_WINDOW);
    gather(e, b, PASS_HEAD, -1, offsetof(struct toy_state, streams), NULL, a->head);
    toy(e, b, TOY_FILL, PASS_HEAD, a->head, NULL);
    commit(e, b, PASS_HEAD, 1);
    for (int step = 0; step < drafts; step++) {
        rows(e, b, PASS_LAST, step ? ROWS_CHAIN : ROWS_LAST, step, TOY_LANES);
        if (step == 0)
            gather(e, b, PASS_LAST, PASS_HEAD, -1, a->head, a->last);
        toy(e, b, TOY_FILL, PASS_LAST, a->last, a->head_logits[0]);
        draw(e, b, PASS_LAST, 2, 2, a->head_logits[0], a->head_drawn);
    }
    verify(e, b, drafts, true);
}

#define ROUND(n)                                                                                                       \
    static void round_##n(struct exec *e, const struct bind *b)                                                        \
    {                                                                                                                  \
        round_of(e, b, n);                                                                                             \
    }
ROUND(0)
ROUND(1)
ROUND(2)
ROUND(3)
ROUND(4)
ROUND(5)

#define PROGRAM(title, k)                                                                                              \
    {                                                                                                                  \
        .name = #title, .rows = k, .launches = 1, .emit = title                                                        \
    }
static const struct program toy_programs[] = {
    PROGRAM(plain_prompt, TOY_CHUNK),
    PROGRAM(prompt, TOY_CHUNK),
    PROGRAM(tail, TAIL),
    PROGRAM(saved_tail, 1),
    PROGRAM(plain_round, TOY_LANES),
    PROGRAM(saving_round, TOY_LANES),
    {.name = "round_0", .rows = 4, .drafts = 0, .launches = 1, .emit = round_0},
    {.name = "round_1", .rows = 8, .drafts = 1, .launches = 1, .emit = round_1},
    {.name = "round_2", .rows = 12, .drafts = 2, .launches = 1, .emit = round_2},
    {.name = "round_3", .rows = 16, .drafts = 3, .launches = 1, .emit = round_3},
    {.name = "round_4", .rows = 20, .drafts = 4, .launches = 1, .emit = round_4},
    {.name = "round_5", .rows = 24, .drafts = 5, .launches = 1, .emit = round_5},
};
static const struct program *const programs[] = {
    &toy_programs[0], &toy_programs[1], &toy_programs[2], &toy_programs[3], &toy_programs[4],  &toy_programs[5],
    &toy_programs[6], &toy_programs[7], &toy_programs[8], &toy_programs[9], &toy_programs[10], &toy_programs[11],
};
static const int32_t end_tokens[] = {TOY_END};

const struct model model = {
    .name = "toy",
    .family = "toy",
    .checkpoint = "none",
    .command = "none",
    .vocabulary = TOY_VOCABULARY,
    .width = 2,
    .layers = 1,
    .max_context = TOY_CONTEXT,
    .lanes = TOY_LANES,
    .window = TOY_WINDOW,
    .chunk = TOY_CHUNK,
    .tail = TAIL,
    .opening = TOY_OPENING,
    .page_ratio = 4,
    .has_head = true,
    .has_weights = true,
    .arena_bytes = sizeof(struct arena),
    .run_bytes = sizeof(struct toy_state),
    .logits_offset = offsetof(struct arena, logits),
    .drawn_offset = offsetof(struct arena, drawn),
    .logits_width = TOY_VOCABULARY,
    .position_bytes = {16, 16, 16},
    .pass_rows = {TRUNK_ROWS, TOY_LANES *MAX_WINDOW, TOY_LANES, TAIL},
    .end_tokens = end_tokens,
    .end_count = 1,
    .plain_prompt = &toy_programs[0],
    .prompt = &toy_programs[1],
    .tail_program = &toy_programs[2],
    .saved_tail = &toy_programs[3],
    .plain_round = &toy_programs[4],
    .saving_round = &toy_programs[5],
    .round = {&toy_programs[6], &toy_programs[7], &toy_programs[8], &toy_programs[9], &toy_programs[10],
              &toy_programs[11]},
    .programs = programs,
    .program_count = 12,
};

const uint8_t *const embedded_pack = NULL, *const embedded_pack_end = NULL;
