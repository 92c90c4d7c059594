// SPDX-License-Identifier: Apache-2.0
//
// Running programs for lanes: binding, graph keys, and what host and device exchange around a program.
// Invariants: a lane of a pass is bound with its own table, and its graph key says which; nothing is launched while the host
// still has to read what the launch before it wrote; between the end of a round and the launch of the next one the host calls
// nothing of the target but for what a round seldom needs (a new page, copied drafts, masks).

#include "runtime/engine_state.h"

#ifdef ENGINE_TEST
int engine_test_shared_table, engine_test_no_drain;
int engine_test_keep_other; // red control: states on their way are taken when another prompt may have left its own there
int engine_test_row_lost;   // red control: a prompt that is kept whole draws from the rows of whoever was read last
int engine_test_rewind_late; // red control: the state to go back to is one row late
#endif

int engine_lane_count(int n)
{
    int count = 1;
    while (count < n)
        count *= 2;
    return count < model.lanes ? count : model.lanes;
}

// The first page of a lane that a pass may write to: the trunk writes from its length on, the head from the cell before.
static int32_t first_written(const struct engine *e, const struct slot *slot)
{
    const struct lane *lane = slot->lane;
    int32_t first = lane->length - 1;
    first = lane->head_length < first ? lane->head_length : first;
    return first > 0 ? first / e->options.page : 0;
}

enum { LEAST_ROWS = 32, ROWS_STEP = 2, HEAD_LAG = 1 }; // sizes that prompt passes are launched for: 32, 64, 128 ...

// Rows that a launch of the program is made for: those of the lanes rounded up, since a short prompt should not wait for the blocks of a
// long one. In a prompt the head lags behind the trunk by a cell at most.
static int32_t rows_for(const struct program *program, struct slot *const *slots, int count)
{
    int32_t rows = program == model.prompt ? HEAD_LAG : 0, most = LEAST_ROWS;
    if (program != model.plain_prompt && program != model.prompt)
        return program->rows;
    for (int i = 0; i < count; i++)
        rows += slots[i] ? slots[i]->lane->rows : 0;
    while (most < rows)
        most *= ROWS_STEP;
    return most < program->rows ? most : program->rows;
}

static struct bind bind_lanes(struct engine *e, const struct program *program, struct slot *const *slots, int count)
{
    struct round_block *block = e->block.device;
    struct bind b = {.arena = e->arena,
                     .weights = e->weights.resident,
                     .constants = e->weights.constants.device,
                     .pass = e->passes.device,
                     .rows = e->weights.rows.device,
                     .result = block->result,
                     .failed = &block->failed,
                     .kv_encoding = e->kv_encoding,
                     .most = rows_for(program, slots, count)};
    b.lanes.page = e->options.page;
    b.lanes.pages = e->pages.arena;
    b.lanes.page_bytes = e->pages.page_bytes;
    b.lanes.count = count;
    for (int i = 0; i < count; i++) {
        if (!slots[i])
            continue;
        pages_check(&e->pages, slots[i]->table.host, slots[i]->tags, slots[i]->mapped, first_written(e, slots[i]));
        b.lanes.lane[i] = &block->lane[slots[i] - e->slot];
        b.lanes.table[i] = slots[i]->table.device;
#ifdef ENGINE_TEST
        if (engine_test_shared_table && i > 0)
            b.lanes.table[i] = b.lanes.table[0];
#endif
    }
    return b;
}

static struct graph_key key_of(const struct engine *e, const struct program *program, const struct bind *b,
                               struct slot *const *slots)
{
    struct graph_key key = {.program = program,
                            .lanes = b->lanes.count,
                            .rows = b->most,
                            .generation = e->pages.generation,
                            .kv_encoding = e->kv_encoding};
    for (int i = 0; i < b->lanes.count; i++) {
        key.lane[i] = b->lanes.lane[i];
        key.table[i] = b->lanes.table[i];
        key.draft[i] = slots[i] ? slots[i]->draft : 0;
    }
    return key;
}

static bool is_prompt(const struct program *p)
{
    return p == model.plain_prompt || p == model.prompt || p == model.tail_program || p == model.saved_tail;
}

bool engine_capture(struct engine *e, struct slot *const *slots, int count)
{
    for (int i = 0; i < model.program_count; i++) {
        const struct program *p = model.programs[i];
        const bool tail = p == model.tail_program || p == model.saved_tail;
        if (is_prompt(p) && (count > 1 || !tail))
            continue; // prompts have keys by their lengths
        struct bind b = bind_lanes(e, p, slots, count);
        struct graph_key key = key_of(e, p, &b, slots);
        if (!graph_store_warm(e->graphs, e->exec, &key, &b, GRAPH_WARM_BYTES))
            return false;
    }
    return true;
}

// Books what the host took between two rounds, while the target had nothing to do.
static void book_launch(struct engine *e, const struct program *program)
{
    const struct exec_times *t = exec_times(e->exec);
    e->between = e->round_end > 0 && !is_prompt(program);
    if (e->between) {
        e->gap[e->counters.gaps++ % GAPS_KEPT] = t->begun - e->round_end;
        e->counters.host_seconds += t->begun - e->round_end;
        e->counters.launch_seconds += t->call;
    }
    e->round_end = 0;
}

static void book_end(struct engine *e, const struct program *program)
{
    const struct exchange *x = &engine_block(e)->exchange;
    if (e->between && x->begun > e->round_ended)
        e->counters.idle_seconds += (double)(x->begun - e->round_ended) * 1e-9;
    e->round_end = is_prompt(program) ? 0 : engine_seconds();
    e->round_ended = x->ended;
}

bool engine_launch(struct engine *e, const struct program *program, struct slot *const *slots, int count,
                   struct error *error)
{
    if (!engine_wait(e, error))
        return false;
    struct bind b = bind_lanes(e, program, slots, count);
    struct graph_key key = key_of(e, program, &b, slots);
    engine_block(e)->failed = 0;
    if (e->options.eager)
        exec_run(e->exec, program->emit, &b);
    else
        graph_store_run(e->graphs, e->exec, &key, &b);
    book_launch(e, program);
    e->flight = program;
    e->stamp++;
    if (e->meanwhile)
        e->meanwhile(e->meanwhile_user);
    return true;
}

bool engine_meanwhile(struct engine *e, void (*work)(void *user), void *user)
{
    const bool behind = work && exec_behind(e->exec);
    e->meanwhile = behind ? work : NULL;
    e->meanwhile_user = user;
    return behind;
}

// What befell the program that was waited for.
static bool outcome(struct engine *e, const struct program *program, struct error *error)
{
    struct error cause;
    if (!exec_sync(e->exec, &cause)) {
        e->dead = true;
        error_set(&e->cause, "%s: %s", program->name, cause.text);
        e->cause.code = cause.code;
        if (error)
            *error = e->cause;
        return false;
    }
    book_end(e, program);
    if (engine_block(e)->failed)
        return error_set(error,
                         "%s: a row of the n-gram table could not be read; is the weight file still there and whole?",
                         program->name);
    return true;
}

bool engine_wait(struct engine *e, struct error *error)
{
    if (e->dead) {
        if (error)
            *error = e->cause;
        return false;
    }
    if (!e->flight)
        return true;
    const struct program *program = e->flight;
    struct stream *stream = e->flight_stream;
    struct error cause = {0};
    e->flight = NULL;
    e->flight_stream = NULL;
    bool ok = outcome(e, program, &cause);
    if (stream)
        admission_chunk_done(e, stream, engine_seconds() - e->chunk_start);
    bool keeps = ok && stream;
#ifdef ENGINE_TEST
    keeps = keeps && !engine_test_keep_other;
#endif
    if (keeps)
        cache_reached(stream);
    if (ok)
        return true;
    if (error)
        *error = cause;
    if (!stream || e->dead)
        return false;
    stream_fail(stream, &cause); // it was that stream's chunk; others go on
    return true;
}

bool engine_run(struct engine *e, const struct program *program, struct slot *const *slots, int count,
                struct error *error)
{
    return engine_launch(e, program, slots, count, error) && engine_wait(e, error);
}

bool engine_map(struct engine *e, struct slot *slot, int positions, struct error *error)
{
    int page = e->options.page, need = (positions + page - 1) / page, first = slot->mapped;
    uint32_t *table = slot->table.host;
    for (; slot->mapped < need && slot->mapped < e->plan.table_size; slot->mapped++) {
        if (!pages_claim(&e->pages, &slot->promise, &table[slot->mapped]))
            return error_set(error,
                             "no page is set aside for position %d; fewer streams or a smaller --context is needed",
                             positions - 1);
        slot->tags[slot->mapped] = e->pages.tag[table[slot->mapped]];
    }
    if (slot->mapped > first)
        mirror_push(&slot->table, first * (int64_t)sizeof *table, (slot->mapped - first) * (int64_t)sizeof *table);
    return true;
}

void engine_push_tokens(struct slot *slot, int from, int count)
{
    mirror_push(&slot->tokens, from * (int64_t)sizeof(int32_t), count * (int64_t)sizeof(int32_t));
}

const float *engine_logits(struct engine *e, int row)
{
    int64_t bytes = model.logits_width * (int64_t)sizeof(float);
    return device_view(e->arena + model.logits_offset + row * bytes, bytes, e->logits);
}
