// SPDX-License-Identifier: Apache-2.0
//
// What the generator tells the runtime about the model it was compiled for: constants, tables and programs.
// The one instance, `model`, is emitted as build/NAME/gen/model.c.

#ifndef MODEL_H
#define MODEL_H

#include "kernels/cpu/ops.h"
#include "runtime/pack.h"

struct exec; // graphs/exec.h: where launches go (run now, or record)

// Everything a program binds: pointers that identify. Contents change between rounds; pointers are what a graph captures.
struct bind {
    uint8_t *arena;
    const uint8_t *weights;        // the pack's resident section
    struct lane_set lanes;
    const struct row_source *rows; // the n-gram table, or NULL
    int32_t kv_encoding;
};

// A program: a static list of launches for one shape.
struct program {
    const char *name;
    int32_t rows, drafts; // rows capacity a lane, drafts it makes
    int32_t launches;
    int64_t bytes, flops; // weights read and arithmetic of one full pass at one lane
    void (*emit)(struct exec *, const struct bind *);
};

struct model_fact {
    const char *name, *value; // rows of `info`
};

// One op of a program, for info and bench: where it came from, what it moves.
struct model_op {
    const char *op, *where, *shape; // e.g. "linear", "models/flashnext.lua:41", "320x10240 bf16"
    int64_t bytes, flops;
};

struct model {
    const char *name, *family, *checkpoint, *command;
    uint64_t identity; // of shapes and pack entries; a pack of another build is refused
    int32_t vocabulary, width, layers, max_context, max_lanes, max_window, chunk, tail;
    bool has_head, has_weights; // has_weights: false in a build from a config without tensors
    int64_t arena_bytes, run_bytes;
    // bytes a position of the caches, by kv encoding; all layers and the head's
    int64_t page_bytes_per_position[3];
    int64_t pass_offset[4]; // arena offsets of the pass blocks: trunk, head, tail, chain
    int64_t logits_offset, drawn_offset, result_offset;
    int32_t end_tokens[16], end_count;
    float temperature, top_p, min_p; // from generation_config.json
    int32_t top_k;
    const struct program *prompt, *tail_program, *absorb; // absorb NULL without a head
    const struct program *round[MAX_WINDOW];              // by drafts 0 .. max_window - 1; NULL above
    const struct pack_entry *entries;
    int32_t entry_count;
    int64_t weight_bytes, row_bytes; // resident section, table section
    const struct model_fact *facts;
    int32_t fact_count;
    const struct model_op *ops; // of round[0]
    int32_t op_count;
};

extern const struct model model;

// The pack inside the binary, or NULL and 0.
extern const uint8_t *const embedded_pack;
extern const uint64_t embedded_pack_bytes;

#endif
