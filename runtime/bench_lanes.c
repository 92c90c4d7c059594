// SPDX-License-Identifier: Apache-2.0
//
// bench of several streams: what lanes make together, and what a reply keeps beside a prompt that is being read.

#include "runtime/bench.h"
#include "runtime/cli.h"

#include <stdlib.h>

enum { LANE_PROMPT = 512 };

// ---- lanes together -----------------------------------------------------------------------------------------------------------

bool bench_open_streams(struct bench *b, struct stream **streams, int lanes, const struct stream_options *options,
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

bool bench_lanes(struct bench *b, struct error *error)
{
    struct bench_cell cell;
    for (int n = 1; n <= b->lanes; n++) {
        if (n != b->lanes && (n & (n - 1)))
            continue;
        if (!bench_cell(b, 0, 0, n, &cell, error))
            return false;
        b->lanes_rate[n] = (double)cell.made / cell.seconds;
    }
    return true;
}

bool bench_lanes_profile(struct bench *b, struct error *error)
{
    struct stream *streams[MAX_LANES] = {NULL};
    const struct stream_options options = {.sampling = {.top_p = 1}};
    int32_t ids[MAX_WINDOW];
    bool ok = bench_open_streams(b, streams, b->lanes, &options, error);
    for (int i = 0; ok && i < BENCH_WARM_ROUNDS + BENCH_PROFILED; i++) {
        if (i == BENCH_WARM_ROUNDS)
            exec_profile(b->engine->exec, b->program->emit, b->lanes_seconds);
        ok = engine_round(b->engine, error);
        for (int lane = 0; ok && lane < b->lanes; lane++)
            stream_take(streams[lane], ids, MAX_WINDOW);
    }
    exec_profile(b->engine->exec, NULL, NULL);
    for (int i = 0; i < b->lanes; i++)
        stream_close(streams[i]);
    for (int i = 0; i < b->program->launches; i++)
        b->lanes_seconds[i] /= BENCH_PROFILED;
    return ok;
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
