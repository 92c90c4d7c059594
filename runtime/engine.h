// SPDX-License-Identifier: Apache-2.0
//
// The engine: one model, its lanes, and rounds over them. One thread at a time may call it.
//
// A stream is one reply being made: prompt rows first (prompt-class, in chunks; the last few are of the decode class), then rounds,
// each of which yields one token or more. Drafts change how many tokens a round yields, never which; nor do other streams.
//
// Two ways to drive streams, which may be mixed:
//   stream_open, stream_prompt, stream_next        the caller decides what runs when: a command line
//   stream_submit, engine_turn, stream_take        the engine does: admission, chunks between rounds, one round for all lanes

#ifndef ENGINE_H
#define ENGINE_H

#include "kernels/cpu/kernel.h"
#include "runtime/error.h"
#include <stdbool.h>
#include <stdint.h>

struct engine;
struct grammar;
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
    int pool_pages;         // pages of the pool; 0: every lane can hold a whole context
    int round_rows;         // most rows of a round; 0: no limit
    int solo_chunk;         // prompt rows a pass while nothing decodes; 0: the largest
    int busy_chunk;         // prompt rows a pass beside replies; 0: a quarter of the largest
    float decode_share;     // share of the time that replies keep while a prompt is read; 0: 0.25; negative: none
    bool map;               // map the weight file instead of reading it
    bool synthetic;         // generated weights instead of a file
    bool no_drafts;         // leave the draft head out
    bool eager;             // no captured graphs
    bool no_rewind;         // streams that the caller drives keep no state to go back to: stream_rewind empties them
    bool quiet;             // no progress and start-up lines on stderr

    int64_t cache_bytes;      // what kept prompt states may take beside the lanes; 0: no prompt cache;
                              // negative: 16 GiB, on a CPU no more than the lanes take
    const char *cache_disk;   // folder of kept states that outlive the process; NULL: none
    int64_t cache_disk_bytes; // what that folder may take; 0: 16 GiB
    int cache_interval;       // positions between states of a long prompt; 0: by the size of a state
};

enum { BIAS_MOST = 1024 }; // logit biases of a stream at most

struct token_bias {
    int32_t id;
    float bias;
};

struct sampling {
    float temperature; // 0: greedy
    int top_k;         // 0: off
    float top_p;       // 1: off
    float min_p;       // 0: off
    uint64_t seed;
    float presence, frequency;     // off a logit once, and per use, for tokens of the reply; 0: off
    float repetition;              // divides the logits of tokens of prompt and reply; 0 or 1: off
    const struct token_bias *bias; // added to logits before everything else; copied; distinct ids, at most BIAS_MOST
    int bias_count;
};

struct stream_options {
    struct sampling sampling;
    int drafts;   // most drafts a round: 0 none, -1: as many as pay, n: always n
    bool no_copy; // no drafts from the stream's own tokens
    int logprobs; // alternatives a token whose log-probabilities are kept, up to 20; -1: the token's own alone; 0: none
    int positions; // most positions that the stream will hold; 0: the context. Pages for that many are set aside
    // What the reply must follow, or NULL: runtime/grammar. The stream holds it until it is closed. It begins with the
    // reply, or right after the first `grammar_after` in the reply (such as the end of its reasoning). Tokens are drawn
    // among those that it allows, end tokens among them where it may end; log-probabilities are those before. Drafts
    // change speed only here too.
    struct grammar *grammar;
    const char *grammar_after; // copied
    int grammar_read;          // so many of the prompt's last tokens are the beginning of the reply
};

struct stream_counters {
    int64_t prompt_tokens, reply_tokens, rounds, drafted, accepted, copied, copies_accepted; // prompt_tokens: read here
    double prompt_seconds, decode_seconds, longest_gap; // gap: between two rounds of a reply, seconds
    int64_t cached_tokens;                              // of the prompt, that a kept state stood for
};

// The prompt cache, for /metrics. A hit: a request whose prompt began at a kept state.
struct cache_counters {
    int64_t hits, misses, cached_tokens, saved, evicted, refused, failed; // refused: larger than the budget
    int64_t states, bytes, budget;                                        // kept now; budget 0: there is no cache
    int64_t disk_states, disk_bytes, disk_budget, disk_reads, disk_writes, disk_refused; // refused: damaged or foreign
    int64_t warm_passes, warm_chunks, warm_aside;                                        // aside: passes that gave way
};

// For /metrics and /health.
struct engine_counters {
    int64_t rounds, lane_rounds, chunks, drafted, accepted, copied, copies_accepted, reply_tokens, prompt_tokens;
    int64_t submitted, admitted, waited, refused, cancelled, finished, failed;
    int64_t graphs_replayed, graphs_captured, graphs_eager, graphs_evicted, graphs_failed, graph_bytes;
    int64_t pages, pages_claimed, pages_promised, pages_most, page_bytes;
    int lanes, lanes_decoding, lanes_filling, waiting;
    double decode_seconds, prompt_seconds, last_round; // last_round: when, by engine_seconds
    // Rounds that follow a round: how many, what passed from the end of the one before to the moment from which the target had
    // work again, the same as the target saw it (0: it has no clock), and what handing over the program took.
    int64_t gaps;
    double host_seconds, idle_seconds, launch_seconds;
    int64_t warm_graphs, warm_graph_bytes; // captured at the start
    double warm_graph_seconds;
    struct cache_counters cache;
};

// Opens the model of this binary: plans memory, reads weights, claims lanes. Prints kernels, threads and memory on stderr
// unless quiet. On failure *out is NULL and error says what to do. The caller closes it.
bool engine_open(struct engine **out, const struct engine_options *options, struct error *error);
void engine_close(struct engine *engine);

const char *engine_isa(const struct engine *engine);
int engine_threads(const struct engine *engine);
int engine_context(const struct engine *engine);
int engine_longest(const struct engine *engine); // positions of one stream: the context, or what the pool holds of it
// Positions of the longest prompt whose state can be kept; 0: none.
int engine_longest_kept(const struct engine *engine);
// Fails: `what` takes more positions than one stream can have. Says which flag lacks and what it takes.
bool engine_too_long(const struct engine *engine, const char *what, int64_t positions, struct error *error);
int engine_chunk(const struct engine *engine); // most prompt rows a pass
void engine_counters(const struct engine *engine, struct engine_counters *counters);

// Seconds of a clock that never goes back.
double engine_seconds(void);

// Benches only: from now on each draft is accepted with this chance, right or wrong, so replies mean nothing. Negative: off.
void engine_force_acceptance(struct engine *engine, double chance);

// From now on calls `work` whenever something was launched, while the target is at it: what streams have made can be handed out then.
// It may call stream_take, stream_phase, stream_counters and stream_logprobs, and nothing that waits or changes streams. False, and
// nothing is called, on a target that is done when a launch returns. NULL: no more.
bool engine_meanwhile(struct engine *engine, void (*work)(void *user), void *user);

// One window for every lane that is in a reply, in one program launch. False when the program failed; the streams in it are
// then over. True without doing anything when no lane is in a reply.
bool engine_round(struct engine *engine, struct error *error);

// ---- the caller decides ----------------------------------------------------------------------------------------------------

// Takes a free lane and sets pages aside; false when there is none, or not enough. The caller closes the stream, which frees lane and pages.
bool stream_open(struct engine *engine, struct stream **out, const struct stream_options *options, struct error *error);
void stream_close(struct stream *stream);

// Adds prompt ids after what the stream holds and runs them in chunks of `chunk` rows (0: the largest). Refuses ids outside
// the vocabulary and contexts that would overflow; then nothing has changed. keep_logits: how many of the last positions
// leave their logits to on_logits (called in order with [vocabulary] fp32, valid during the call); 0 and NULL: none.
bool stream_prompt(struct stream *stream, const int32_t *ids, int count, int chunk, int keep_logits,
                   void (*on_logits)(void *user, int position, const float *logits), void *user, struct error *error);

// The next tokens of the reply: 1 .. MAX_WINDOW ids into out[16]; the first call draws from the prompt's last row. Runs a round
// (of all lanes that are in a reply) when the stream has no tokens left from an earlier one.
// *count is 0 when the context is full. Tokens after an end token are the caller's to drop (stream_rewind is not needed then).
bool stream_next(struct stream *stream, int32_t out[16], int *count, struct error *error);

// Logits of the row that drew token i of the last stream_next or stream_take: [vocabulary] fp32. NULL when another program
// has run since.
const float *stream_logits(const struct stream *stream, int i);

// Log-probabilities of reply token i, when the stream was opened with logprobs; else NULL.
const struct logprobs *stream_logprobs(const struct stream *stream, int i);

// Ids that the stream holds (prompt, reply so far), in order; valid until the next call on the stream.
const int32_t *stream_tokens(const struct stream *stream, int *count);

// Goes back to the last kept state: the prompt but for what may open a reply, before any reply. Returns the number of tokens
// that are left; the caller feeds the rest with stream_prompt. 0 (an empty stream) when nothing was kept.
int stream_rewind(struct stream *stream);

// The longest prefix of ids that a rewind would keep is reused, the rest run: what a chat does for its next turn.
bool stream_continue(struct stream *stream, const int32_t *ids, int count, struct error *error);

const struct stream_counters *stream_counters(const struct stream *stream);

// Asks for the end of the stream, from any thread: seen before the next chunk or round.
void stream_cancel(struct stream *stream);

// ---- the engine decides ----------------------------------------------------------------------------------------------------

enum stream_phase {
    STREAM_OPEN,     // of stream_open, before its reply
    STREAM_WAITING,  // for a lane, pages, or a run of pages
    STREAM_FILLING,  // its prompt is being read
    STREAM_DECODING, // in a reply
    STREAM_FINISHED, // at an end token, its reply limit or the context's end
    STREAM_CANCELLED,
    STREAM_FAILED, // stream_error says why
};

struct request {
    const int32_t *ids; // the prompt; copied
    int count;
    int reply;       // most reply tokens; 0: what the context leaves
    bool ignore_end; // go on after end tokens
    // Positions of the prompt, ascending, at which a state is worth keeping: where another prompt is likely to part from
    // this one (beginnings of messages, the end of a shared system text). Copied. The cache adds the end and an interval.
    const int *marks;
    int mark_count;
    bool prompt_only; // ends FINISHED, without a token, when the prompt has been read
    bool background;  // waits behind requests that are not, and its prompt is read after theirs
    struct stream_options options;
};

// Hands a request in; it waits until a lane is free and pages for its prompt, its reply and one window can be set aside. One
// that can never fit is refused with the numbers. The caller closes the stream in any phase, between turns.
bool stream_submit(struct engine *engine, struct stream **out, const struct request *request, struct error *error);

// One turn: cancels, admission (first come, first served), one prompt chunk unless replies are owed time, one round, but not where
// the chunk has given the only stream its first token. *busy: there is more to do, now. Not while all that there is waits for a lane or
// pages that a stream to be closed holds. False only when the engine can serve no more; what befalls one stream is told by its phase.
bool engine_turn(struct engine *engine, bool *busy, struct error *error);

// Reads a prompt in the background so that a request that begins with it finds its state kept: the engine's own stream, one
// busy chunk a turn, and only in turns in which nothing waits, decodes or fills. As soon as something does, the pass ends and
// keeps the state that it had reached. One pass at a time: a new one ends the one before. False, and nothing happens, when
// there is no prompt cache, when the pass could not fit, or when an id is outside the vocabulary.
bool engine_warm(struct engine *engine, const int32_t *ids, int count, const int *marks, int mark_count);

enum stream_phase stream_phase(const struct stream *stream);
const char *stream_error(const struct stream *stream);
// Whether it failed because its grammar could not be followed any further, which is the request's own fault.
bool stream_stuck(const struct stream *stream);

// Takes up to `room` reply tokens that were not taken yet; returns how many.
int stream_take(struct stream *stream, int32_t *out, int room);

#endif
