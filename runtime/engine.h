// SPDX-License-Identifier: Apache-2.0
//
// The engine: one model, its lanes, and rounds over them. One thread at a time may call it.
//
// A stream is one reply being made: prompt rows first (prompt-class, in chunks), then rounds, each of which yields one token
// or more. Drafts change how many tokens a round yields, never which.

#ifndef ENGINE_H
#define ENGINE_H

#include "runtime/error.h"
#include <stdbool.h>
#include <stdint.h>

struct engine;
struct stream;

struct engine_options {
    const char *pack;       // path of the weight file; NULL: embedded in the binary, else NAME.pack beside it
    const char *isa;        // "portable", "avx2", "avx512", "amx"; NULL: the best that this machine has
    int threads;            // 0: one a core
    int context;            // positions a stream may hold; 0: the model's own limit, at most 8192
    int lanes;              // 0: 1
    int page;               // positions a page, a multiple of 4; 0: 64
    const char *page_order; // test: "identity" (default), "reversed", "shuffled"
    const char *kv_cache;   // "f32", "bf16", "fp8"; NULL: the default of the build
    bool map;               // map the weight file instead of reading it
    bool synthetic;         // generated weights instead of a file
    bool no_drafts;         // leave the draft head out
    bool eager;             // no captured graphs
    bool quiet;             // no progress and start-up lines on stderr
};

struct sampling {
    float temperature; // 0: greedy
    int top_k;         // 0: off
    float top_p;       // 1: off
    float min_p;       // 0: off
    uint64_t seed;
};

struct stream_options {
    struct sampling sampling;
    int drafts; // most drafts a round: 0 none, -1: as many as pay
};

struct stream_counters {
    int64_t prompt_tokens, reply_tokens, rounds, drafted, accepted;
    double prompt_seconds, decode_seconds;
};

// Opens the model of this binary: plans memory, reads weights, claims lanes. Prints kernels, threads and memory on stderr
// unless quiet. On failure *out is NULL and error says what to do. The caller closes it.
bool engine_open(struct engine **out, const struct engine_options *options, struct error *error);
void engine_close(struct engine *engine);

const char *engine_isa(const struct engine *engine);
int engine_threads(const struct engine *engine);
int engine_context(const struct engine *engine);
int engine_chunk(const struct engine *engine); // most prompt rows a pass

// Takes a free lane; false when there is none. The caller closes the stream, which frees lane and pages.
bool stream_open(struct engine *engine, struct stream **out, const struct stream_options *options, struct error *error);
void stream_close(struct stream *stream);

// Adds prompt ids after what the stream holds and runs them in chunks of `chunk` rows (0: the largest). Refuses ids outside
// the vocabulary and contexts that would overflow; then nothing has changed. keep_logits: how many of the last positions
// leave their logits to on_logits (called in order with [vocabulary] fp32, valid during the call); 0 and NULL: none.
bool stream_prompt(struct stream *stream, const int32_t *ids, int count, int chunk, int keep_logits,
                   void (*on_logits)(void *user, int position, const float *logits), void *user, struct error *error);

// The next tokens of the reply: 1 .. MAX_WINDOW ids into out[16]; the first call draws from the prompt's last row.
// *count is 0 when the context is full. Tokens after an end token are the caller's to drop (stream_rewind is not needed then).
bool stream_next(struct stream *stream, int32_t out[16], int *count, struct error *error);

// Logits of the row that drew token i of the last stream_next (or of the prompt's last row): [vocabulary] fp32.
const float *stream_logits(const struct stream *stream, int i);

// Ids that the stream holds (prompt, reply so far), in order; valid until the next call on the stream.
const int32_t *stream_tokens(const struct stream *stream, int *count);

// Goes back to the last kept state: the end of the prompt but one token, before any reply. Returns the number of tokens
// that are left; the caller feeds the rest with stream_prompt. 0 (an empty stream) when nothing was kept.
int stream_rewind(struct stream *stream);

// The longest prefix of ids that a rewind would keep is reused, the rest run: what a chat does for its next turn.
bool stream_continue(struct stream *stream, const int32_t *ids, int count, struct error *error);

const struct stream_counters *stream_counters(const struct stream *stream);

#endif
