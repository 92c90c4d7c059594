// SPDX-License-Identifier: Apache-2.0
//
// What the generator tells the runtime about the model it was compiled for: constants, tables and programs.
// The one instance, `model`, is emitted as build/NAME/gen/model.c.

#ifndef MODEL_H
#define MODEL_H

#include "kernels/cpu/ops.h"
#include "runtime/pack.h"

struct exec; // graphs/exec.h: where launches go (run now, or record)

// The passes that programs work in; one block each, owned by the engine.
enum pass_name { PASS_TRUNK, PASS_HEAD, PASS_LAST, PASS_TAIL, PASS_COUNT };

// Everything a program binds: pointers that identify. Contents change between rounds; pointers are what a graph captures.
struct bind {
    uint8_t *arena;
    const uint8_t *weights;   // the pack's resident section
    const uint8_t *constants; // small tables of the programs
    struct lane_set lanes;
    struct pass *pass;             // [PASS_COUNT]
    const struct row_source *rows; // the n-gram tables, or NULL
    int32_t *result;               // [MAX_LANES][1 + MAX_WINDOW]: count and new tokens
    int32_t *failed;               // set by kernels that could not read a row
    int32_t kv_encoding;
    int32_t most; // rows of a pass of a prompt, the tail's apart: launches are made for so many
};

// One op of a program, for info and bench: where it came from, what it moves.
struct model_op {
    const char *op, *where, *shape; // e.g. "linear", "models/flashnext.lua:41 layer 3", "320x10240 bf16"
    int64_t bytes, flops;           // of a full pass
};

// A program: a static list of launches for one shape.
struct program {
    const char *name;
    int32_t rows, drafts; // rows capacity of its main pass, drafts it makes
    int32_t launches;
    int64_t bytes, flops;       // moved and computed by a full pass
    const struct model_op *ops; // [launches]
    void (*emit)(struct exec *, const struct bind *);
};

// What a lane's run is made of. Recurrent states and tails are the architecture's; the rest lets a round go back.
enum run_part { RUN_RECURRENT, RUN_TAILS, RUN_WINDOWS, RUN_STREAMS, RUN_ALIGNMENT, RUN_PARTS };

struct model_fact {
    const char *name, *value; // rows of `info`
};

struct model {
    const char *name, *family, *checkpoint, *command;
    uint64_t identity; // of the pack's entries; a pack of another build is refused
    int32_t vocabulary, width, layers, max_context;
    int32_t lanes, window, chunk, tail; // most lanes, rows of a window, prompt rows a pass, rows of a tail pass
    int32_t
        opening; // tokens that open a reply at most, by any template: what goes on from a prompt in another way leaves those out
    int32_t page_ratio;         // positions that one pooled row stands for
    bool has_head, has_weights; // has_weights: false in a build from a config without tensors
    int64_t arena_bytes, run_bytes;
    int64_t run_parts[RUN_PARTS];        // bytes of a lane's run by enum run_part; their sum is run_bytes
    int32_t recurrent_layers;            // that RUN_RECURRENT is of
    int64_t logits_offset, drawn_offset; // of kept buffers in the arena
    int64_t logits_width;
    int64_t position_bytes[3]; // bytes a position of all caches, by kv encoding
    int32_t pass_rows[PASS_COUNT];
    const int32_t *end_tokens;
    int32_t end_count;
    float temperature, top_p, min_p; // from generation_config.json
    int32_t top_k;
    const struct program *plain_prompt, *prompt; // prompt: NULL without a head
    const struct program *tail_program, *plain_round;
    const struct program
        *saved_tail; // the same as tail_program for the last row of a prompt whose kept state is in place
    const struct program *saving_round;      // without drafts; its rows are saved for the head; NULL without a head
    const struct program *round[MAX_WINDOW]; // by drafts; NULL where there is none
    const struct program *const *programs;   // all of them
    int32_t program_count;
    const struct pack_entry *entries;
    int32_t entry_count;
    int64_t weight_bytes, table_bytes; // resident section, table section
    const int32_t *tables;             // entry numbers of the n-gram tables
    int32_t table_count;
    const uint64_t *constants; // small tables of the programs
    int64_t constant_bytes;
    const struct model_fact *facts;
    int32_t fact_count;
};

extern const struct model model;

// The pack inside the binary, or NULL.
extern const uint8_t *const embedded_pack, *const embedded_pack_end;

#endif
