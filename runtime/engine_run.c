// SPDX-License-Identifier: Apache-2.0
//
// Running programs for a lane: binding, graph keys, and what host and device exchange around a program.

#include "runtime/engine_state.h"
#include <stddef.h>

struct bind engine_bind(struct engine *e, struct slot *slot)
{
    struct round_block *block = e->block.device;
    struct bind b = {.arena = e->arena,
                     .weights = e->weights.resident,
                     .pass = e->passes.device,
                     .rows = e->weights.rows.device,
                     .result = block->result,
                     .failed = &block->failed,
                     .kv_encoding = e->kv_encoding};
    b.lanes.page = e->options.page;
    b.lanes.pages = e->pages.arena;
    b.lanes.page_bytes = e->pages.page_bytes;
    b.lanes.count = 1;
    b.lanes.lane[0] = &block->lane[slot - e->slot];
    b.lanes.table[0] = slot->table.device;
    return b;
}

bool engine_run(struct engine *e, const struct program *program, struct slot *slot, struct error *error)
{
    struct bind b = engine_bind(e, slot);
    struct graph_key key = {.program = program,
                            .lanes = 1,
                            .rows = program->rows,
                            .generation = e->pages.generation,
                            .kv_encoding = e->kv_encoding,
                            .lane = {b.lanes.lane[0]},
                            .table = {b.lanes.table[0]},
                            .draft = {slot->draft}};
    engine_block(e)->failed = 0;
    mirror_push(&e->block, 0, sizeof(struct round_block));
    if (e->options.eager)
        program->emit(e->exec, &b);
    else
        graph_store_run(e->graphs, e->exec, &key, &b);
    mirror_pull(&e->block, 0, sizeof(struct round_block));
    struct error cause;
    if (!exec_sync(e->exec, &cause))
        return error_set(error, "%s: %s", program->name, cause.text);
    if (engine_block(e)->failed)
        return error_set(error,
                         "%s: a row of the n-gram table could not be read; is the weight file still there and whole?",
                         program->name);
    return true;
}

bool engine_map(struct engine *e, struct slot *slot, int positions, struct error *error)
{
    int page = e->options.page, need = (positions + page - 1) / page, first = slot->mapped;
    uint32_t *table = slot->table.host;
    for (; slot->mapped < need && slot->mapped < e->table_size; slot->mapped++)
        if (!pages_claim(&e->pages, &table[slot->mapped]))
            return error_set(error, "no page is free for position %d; fewer streams or a smaller --context is needed",
                             positions - 1);
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
