// SPDX-License-Identifier: Apache-2.0
//
// The inside of an engine and of a stream, shared by engine*.c, stream.c, rounds.c, admission.c and the tests.
//
// Who may touch what when: a lane's fields belong to the device from engine_launch to engine_wait, to the host otherwise. So
// everything that reads or writes them, or gives memory back, waits first.

#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include "graphs/exchange.h"
#include "graphs/exec.h"
#include "graphs/store.h"
#include "runtime/cache/cache.h"
#include "runtime/constraint.h"
#include "runtime/copy_draft.h"
#include "runtime/depth.h"
#include "runtime/device.h"
#include "runtime/engine.h"
#include "runtime/history.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "runtime/pages.h"
#include "runtime/weights.h"
#include <stdatomic.h>
#include <stddef.h>

// What the graph store may keep, and what it holds at most when the engine has opened.
enum { GRAPH_COUNT = 512, GRAPH_BYTES = 256 << 20, GRAPH_WARM_BYTES = 64 << 20 };

// What host and device exchange once a round: the program takes it from the host and gives it back.
struct round_block {
    struct exchange exchange;
    struct lane lane[MAX_LANES];
    int32_t result[MAX_LANES * (1 + MAX_WINDOW)]; // a lane: count, then the new tokens
    int32_t failed;                               // a kernel could not read a row
    // Log-probabilities of the rows of a lane's window; pulled for lanes whose streams want them.
    _Alignas(EXCHANGE_UNIT) struct logprobs logprobs[MAX_LANES][MAX_WINDOW];
};

// What is exchanged with every program: all but the log-probabilities.
enum { EXCHANGED = offsetof(struct round_block, logprobs) };

// A lane's slot: its page table and tokens, and what it has claimed. Idle, it holds no pages.
struct slot {
    struct lane *lane;      // in the round block, host side
    struct mirror tokens;   // int32 [context + MAX_WINDOW + 2] ids by position
    struct mirror table;    // uint32 [table_size] page by position / page
    struct mirror masks;    // uint32 [window][mask_words(vocabulary)] tokens that its stream's grammar allows
    struct history history; // what penalties of its stream look at
    uint8_t *kept_run;      // of the target, run_bytes: the state that its stream can go back to; NULL: none is kept
    uint32_t *tags;         // [table_size] generation of each page of the table
    int32_t mapped;         // pages in the table
    uint32_t run;           // first page of the run
    uint32_t promise;       // pages that it may still claim
    int32_t draft;          // draft id, goes with the table: part of every graph key
    struct copy_index copy; // of its stream's tokens
    struct stream *stream;  // NULL: free
};

// The parts of what an engine allocates on the target, in bytes, but for weights.
struct engine_plan {
    int64_t passes, block, arena, keeps, tokens, tables, pages, history, masks,
        kept; // tokens, tables, history .. kept: of a lane
    uint32_t page_count, run_pages;
    int64_t page_bytes;
    int32_t table_size;
};

enum { GAPS_KEPT = 512 }; // times between two rounds that are kept, the newest

// The graphs that were captured at the start.
struct warm_set {
    int64_t graphs, bytes;
    double seconds;
};

struct engine {
    struct engine_options options;
    int context, lanes, kv_encoding;
    struct exec *exec;
    struct pack pack;
    struct weights weights;
    struct memory_plan sizes; // what context and lanes come to
    struct engine_plan plan;
    struct pages pages;
    struct cache *cache; // NULL: no states are kept
    uint8_t *arena;
    uint8_t *
        keeps; // of the target, LANE_KEEPS runs: where a request's prompt keeps states on its way; NULL: without a cache
    struct mirror passes; // struct pass [PASS_COUNT], then the arrays of their rows
    struct mirror block;  // struct round_block
    struct slot slot[MAX_LANES];
    float *logits; // host copy of logits where the device's are not visible
    struct graph_store *graphs;
    int64_t stamp;                // programs launched: says whose logits lie in the arena
    const struct program *flight; // launched and not waited for, or NULL
    struct stream *flight_stream; // whose chunk that is, or NULL
    struct stream *first, *last;  // that wait for admission, in order
    bool again;                   // one of them has to be looked at in the next turn, whatever else there is
    struct depth depth;
    double round_end;      // when the last program's end was seen, if that was a round; else 0
    uint64_t round_ended;  // the same by the device's clock
    bool between;          // the program that runs is a round that follows one
    double gap[GAPS_KEPT]; // host seconds between two rounds, gap n at n modulo GAPS_KEPT
    struct warm_set warm_set;
    void (*meanwhile)(void *user); // called after every launch, or NULL
    void *meanwhile_user;
    int64_t openings;   // streams whose drafts are left to the engine
    double chunk_start; // of the chunk in flight
    bool chunk_beside;  // replies waited for it
    double owed;        // seconds that rounds must get before the next prompt chunk
    double force;       // chance of a forced acceptance; negative: off
    uint64_t force_state;
    bool dead; // the target failed for good
    struct error cause;
    struct engine_counters counters;
};

struct stream {
    struct engine *engine;
    struct slot *slot;   // NULL: waits, or is over
    struct stream *next; // in the queue
    struct stream_options options;
    struct landing landing;
    struct token_bias *bias;       // of its options
    struct logprobs *logprobs;     // [positions], or NULL
    struct constraint *constraint; // its grammar, or NULL
    double copy_chance;            // that a copied token lands
    double guess_chance;           // that a draft which the grammar takes lands
    struct stream_counters counters;
    enum stream_phase phase;
    atomic_bool cancel;
    bool started;     // the prompt's draw has been made
    bool first_drawn; // first_token is what the prompt's last row draws
    bool row_saved;   // the prompt's last row is among the lane's saved streams, and not in the arena
    int32_t first_token;
    bool drafting;              // it may have drafts
    bool follows, kept_follows; // the head follows it; and did when the state was kept
    bool submitted;             // driven by engine_turn
    bool ignore_end;            // goes on after end tokens
    bool prompt_only, background;
    struct cache_pass pass;
    int *marks; // [mark_count] ascending positions of the prompt at which a state is worth keeping
    int mark_count;
    int positions;   // most that it may hold
    int32_t *prompt; // submitted: [prompt_count]
    int prompt_count;
    int reply_most;    // reply tokens at most
    int reply_from;    // position of the first reply token
    int reply_end;     // reply tokens that count, once it is finished
    int taken;         // reply tokens handed out
    int64_t served;    // number of the last round it was in
    double last_round; // when that ended
    // whose logits lie in the arena: reply tokens round_from .. round_from + rows - 1 were drawn by rows row_first ..
    int64_t stamp;
    int round_from, round_rows, row_first;
    int given_from, given; // reply tokens of the last stream_next or stream_take
    // the kept state: the prompt but for what may open a reply, made by prompt-class rows
    int kept_length; // in the slot's kept_run; 0: nothing is kept
    struct error cause;
};

static inline struct round_block *engine_block(const struct engine *engine)
{
    return engine->block.host;
}

// ---- engine_run.c ----------------------------------------------------------------------------------------------------------

// Launches a program for `count` lanes (NULL: a null lane), through the graph store unless the engine is eager. Waits for the
// program before it first.
bool engine_launch(struct engine *engine, const struct program *program, struct slot *const *slots, int count,
                   struct error *error);

// Waits for what was launched. False when the target failed or a kernel could not read a row; a
// stream whose chunk that was is then over.
bool engine_wait(struct engine *engine, struct error *error);

// Both.
bool engine_run(struct engine *engine, const struct program *program, struct slot *const *slots, int count,
                struct error *error);

// Captures the programs of every round of these lanes. False when there is no room for one more.
bool engine_capture(struct engine *engine, struct slot *const *slots, int count);

// Maps pages so that positions below `positions` are backed. False when the stream's promise is used up.
bool engine_map(struct engine *engine, struct slot *slot, int positions, struct error *error);

// Puts tokens from..from+count of the host's list where kernels read them.
void engine_push_tokens(struct slot *slot, int from, int count);

// Row i of the logits of the last program, [vocabulary], on the host.
const float *engine_logits(struct engine *engine, int row);

// Lanes of a compiled lane count that holds n lanes.
int engine_lane_count(int n);

// ---- stream.c --------------------------------------------------------------------------------------------------------------

// A stream without a lane; NULL with an error when memory is short or an option is out of range.
struct stream *stream_new(struct engine *engine, const struct stream_options *options, struct error *error);

// Gives a stream a lane, or says why not: then nothing has changed.
bool stream_attach(struct stream *stream, struct slot *slot, struct error *error);
// Gives lane and pages back, after the device has drained.
void stream_detach(struct stream *stream);

// Rows of the next chunk of the ids up to position `end`, at most `most`: as far as the states that it keeps on its way allow.
// 0: all have been read.
int stream_chunk_rows(const struct stream *stream, int end, int most);

// Runs that chunk. *rows: how many ran. wait: else it may still run when this returns.
bool stream_chunk(struct stream *stream, int end, int most, bool wait, int *rows, struct error *error);

// The stream's lane goes on at position `length` of its prompt; its run and its pages below are in place.
void stream_resume(struct stream *stream, int length, bool follows);

// Draws the first reply token, unless it is drawn: from the prompt's last row, before any other program runs.
bool stream_draw(struct stream *stream, struct error *error);

// Puts it in place; draws it first.
bool stream_first(struct stream *stream, struct error *error);

// Positions that tokens may still be put at, the pending one's included.
int stream_room(const struct stream *stream);

// Reply tokens that exist; the device must not be at work.
int stream_made(const struct stream *stream);

// Frees a stream that has no lane.
void stream_free(struct stream *stream);

// Takes the tokens up to the pending one into the penalties.
void stream_history(struct stream *stream);

// Keeps the log-probabilities of the last `rows` reply tokens, whose logits lie in the arena.
void stream_keep_logprobs(struct stream *stream);

void stream_fail(struct stream *stream, const struct error *cause);

// ---- admission.c -----------------------------------------------------------------------------------------------------------

// Pages for a stream of so many positions: its cache, one window more, and its run.
uint32_t admission_need(const struct engine *engine, int positions);

// A stream for a request, in no queue yet; false when it can never fit or memory is short.
bool admission_make(struct engine *engine, struct stream **out, const struct request *request, struct error *error);

// Gives a stream of a request a free lane and begins its prompt; false when there is no lane, or no room.
bool admission_begin(struct stream *stream);

// A stream that has a lane gives it back and waits again, first in line.
void admission_again(struct stream *stream);

// A finished reply: at an end token, its limit, or the end of its positions.
void admission_finish(struct stream *stream);

// Books the time of a chunk, and what replies are owed for it.
void admission_chunk_done(struct engine *engine, struct stream *stream, double seconds);

#endif
