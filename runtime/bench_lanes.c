// SPDX-License-Identifier: Apache-2.0
//
// bench of several streams: what lanes make together, what drafts make at a given acceptance, and what a reply keeps beside a
// prompt that is being read.

#include "runtime/bench.h"
#include "runtime/cli.h"

#include <stdlib.h>

enum { LANE_PROMPT = 512 };

// ---- lanes together -----------------------------------------------------------------------------------------------------------

// Streams of `lanes` different prompts, each with its first token.
static bool open_streams(struct bench *b, struct stream **streams, int lanes, const struct stream_options *options,
                         struct error *error)
{
    const int count = b->prompt - lanes < LANE_PROMPT ? b->prompt - lanes : LANE_PROMPT;
    int32_t ids[MAX_WINDOW];
    int made;
    for (int i = 0; i < lanes; i++)
        if (!stream_open(b->engine, &streams[i], options, error) ||
            !stream_prompt(streams[i], b->ids + i, count, 0, 0, NULL, NULL, error) || !stream_first(streams[i], error))
            return false;
    for (int i = 0; i < lanes; i++)
        made = stream_take(streams[i], ids, MAX_WINDOW);
    (void)made;
    return true;
}

// A few rounds, and then more until every lane has made so many tokens: *tokens of all lanes in the *seconds of those.
static bool run_rounds(struct bench *b, struct stream **streams, int lanes, int each, double *seconds, int64_t *tokens,
                       struct error *error)
{
    int32_t ids[MAX_WINDOW];
    int64_t made = 0;
    double start = cli_seconds();
    *tokens = 0;
    for (int round = 0; round <= BENCH_WARM_ROUNDS || made < (int64_t)each * lanes; round++) {
        if (round == BENCH_WARM_ROUNDS) {
            start = cli_seconds();
            made = 0;
        }
        if (!engine_round(b->engine, error))
            return false;
        int64_t now = 0;
        for (int i = 0; i < lanes; i++)
            now += stream_take(streams[i], ids, MAX_WINDOW);
        if (now == 0)
            return error_set(error, "the context is full; raise --context or lower --prompt and --decode");
        made += now;
    }
    *seconds = cli_seconds() - start;
    *tokens = made;
    return true;
}

// Tokens a second of all lanes together; 0 on failure.
static double rate_of(struct bench *b, int lanes, const struct stream_options *options, struct error *error)
{
    struct stream *streams[MAX_LANES] = {NULL};
    double seconds = 1;
    int64_t tokens = 0;
    bool ok = open_streams(b, streams, lanes, options, error) &&
              run_rounds(b, streams, lanes, b->tokens, &seconds, &tokens, error);
    for (int i = 0; i < lanes; i++) {
        if (ok && streams[i]) {
            b->drafted += stream_counters(streams[i])->drafted;
            b->accepted += stream_counters(streams[i])->accepted;
        }
        stream_close(streams[i]);
    }
    return ok ? (double)tokens / seconds : 0;
}

bool bench_lanes(struct bench *b, struct error *error)
{
    struct stream_options options = {.sampling = {.top_p = 1}};
    for (int n = 1; n <= b->lanes; n++) {
        if (n != b->lanes && (n & (n - 1)))
            continue;
        b->lanes_rate[n] = rate_of(b, n, &options, error);
        if (b->lanes_rate[n] <= 0)
            return false;
    }
    return true;
}

// ---- drafts at a given acceptance -----------------------------------------------------------------------------------------------

bool bench_accept(struct bench *b, double chance, int drafts, struct error *error)
{
    struct stream_options plain = {.sampling = {.top_p = 1}}, drafted = plain;
    double before, after;
    drafted.drafts = drafts;
    drafted.no_copy = true;
    before = rate_of(b, 1, &plain, error);
    b->drafted = b->accepted = 0;
    engine_force_acceptance(b->engine, chance);
    b->forced_rate = before > 0 ? rate_of(b, 1, &drafted, error) : 0;
    b->forced_drafted = b->drafted;
    b->forced_accepted = b->accepted;
    engine_force_acceptance(b->engine, -1);
    after = b->forced_rate > 0 ? rate_of(b, 1, &plain, error) : 0;
    b->forced_plain = (before + after) / 2;
    b->drafted = b->accepted = 0;
    return after > 0;
}

// ---- a reply beside a prompt ------------------------------------------------------------------------------------------------------

static bool turns_until(struct bench *b, struct stream *stream, enum stream_phase phase, struct stream *reader,
                        int64_t *taken, struct error *error)
{
    int32_t ids[MAX_WINDOW];
    bool busy = true;
    while (stream_phase(stream) < phase) {
        if (!engine_turn(b->engine, &busy, error))
            return false;
        for (int n = 1; reader && n > 0; *taken += n)
            n = stream_take(reader, ids, MAX_WINDOW);
        if (!busy && stream_phase(stream) < phase) // it waits for pages that the other one keeps
            return error_set(error, "--beside: the pool has no room for both streams: use a larger --pool-pages, or "
                                    "ask for less");
    }
    if (stream_phase(stream) == STREAM_FAILED)
        return error_set(error, "%s", stream_error(stream));
    return true;
}

bool bench_beside(struct bench *b, int prompt, struct error *error)
{
    int32_t *ids = malloc((size_t)prompt * sizeof *ids);
    struct stream *reply = NULL, *reader = NULL;
    struct engine_counters before, after;
    int64_t taken = 0, during = 0;
    if (!ids)
        return error_set(error, "no memory for %d ids", prompt);
    for (int i = 0; i < prompt; i++)
        ids[i] = b->ids[i % b->prompt];
    struct request first = {.ids = b->ids,
                            .count = b->prompt < LANE_PROMPT ? b->prompt : LANE_PROMPT,
                            .ignore_end = true},
                   second = {.ids = ids, .count = prompt, .reply = 4, .ignore_end = true};
    first.options.sampling.top_p = second.options.sampling.top_p = 1;
    bool ok = stream_submit(b->engine, &reply, &first, error) &&
              turns_until(b, reply, STREAM_DECODING, reply, &taken, error) &&
              stream_submit(b->engine, &reader, &second, error);
    engine_counters(b->engine, &before);
    double start = cli_seconds();
    ok = ok && turns_until(b, reader, STREAM_DECODING, reply, &during, error);
    double seconds = cli_seconds() - start;
    engine_counters(b->engine, &after);
    if (ok) {
        double rounds = after.decode_seconds - before.decode_seconds,
               chunks = after.prompt_seconds - before.prompt_seconds;
        b->beside = prompt;
        b->beside_share = rounds / (rounds + chunks);
        b->beside_rate = (double)during / seconds;
        b->beside_prompt = prompt / seconds;
        b->beside_gap = stream_counters(reply)->longest_gap;
    }
    stream_close(reply);
    stream_close(reader);
    free(ids);
    return ok;
}
