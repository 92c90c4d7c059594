// SPDX-License-Identifier: Apache-2.0
//
// eval: logits of the last positions of a list of ids, and the greedy continuation. Nothing is printed and no file appears
// unless all of it was computed.

#include "runtime/cli.h"
#include "runtime/memory_plan.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "logits are written as they lie in memory");

enum { SHOWN = 5, ROOM = MAX_WINDOW + 2, MAX_TEXT = 1 << 28 };

struct eval {
    const struct settings *settings;
    int32_t *ids;
    int count, keep;
    struct output output;
    bool failed;
    float *last; // [vocabulary] logits of the last position
    int32_t *reply;
    int replied;
};

static void take_logits(void *user, int position, const float *logits)
{
    struct eval *e = user;
    size_t vocabulary = (size_t)model.vocabulary;
    if (e->output.file && position >= e->count - e->keep)
        e->failed |= fwrite(logits, sizeof *logits, vocabulary, e->output.file) != vocabulary;
    if (position == e->count - 1)
        memcpy(e->last, logits, vocabulary * sizeof *logits);
}

static bool read_ids(struct eval *e, struct error *error)
{
    const struct settings *s = e->settings;
    if (!s->tokens == !s->tokens_file)
        return error_set(error, "eval: give --tokens 1,2,3 or --tokens-file FILE");
    char *text = NULL;
    size_t bytes = s->tokens ? strlen(s->tokens) : 0;
    if (s->tokens_file && !cli_read_file(s->tokens_file, MAX_TEXT, &text, &bytes, error))
        return false;
    bool ok = cli_parse_ids(text ? text : s->tokens, bytes, s->tokens_file ? s->tokens_file : "--tokens",
                            model.vocabulary, &e->ids, &e->count, error);
    free(text);
    if (ok && !e->count)
        return error_set(error, "%s: expected at least one id, found none",
                         s->tokens_file ? s->tokens_file : "--tokens");
    return ok;
}

static bool check_request(struct eval *e, struct error *error)
{
    const struct settings *s = e->settings;
    if (settings_given(s, FLAG_LAST) && !s->out)
        return error_set(error, "--last: needs --out FILE");
    e->keep = settings_given(s, FLAG_LAST) ? (int)s->last : 1;
    if (e->keep > e->count)
        return error_set(error, "--last: expected at most %d, the number of ids, found %d", e->count, e->keep);
    return true;
}

// Collects M greedy ids in e->reply.
static bool continue_greedily(struct eval *e, struct stream *stream, struct error *error)
{
    int want = (int)e->settings->greedy;
    e->reply = malloc(((size_t)want + MAX_WINDOW) * sizeof *e->reply);
    if (!e->reply)
        return error_set(error, "no memory for %d ids", want);
    while (e->replied < want) {
        int count = 0;
        if (!stream_next(stream, e->reply + e->replied, &count, error))
            return false;
        if (!count)
            return error_set(error, "the context is full after %d of %d ids; raise --context", e->replied, want);
        e->replied += count;
    }
    e->replied = want;
    return true;
}

static void print_best(const float *logits)
{
    int best[SHOWN], count = 0;
    for (int32_t id = 0; id < model.vocabulary; id++) {
        int at = count < SHOWN ? count++ : SHOWN;
        for (; at > 0 && logits[id] > logits[best[at - 1]]; at--)
            if (at < SHOWN)
                best[at] = best[at - 1];
        if (at < SHOWN)
            best[at] = id;
    }
    for (int i = 0; i < count; i++)
        printf("%d %.6g\n", best[i], (double)logits[best[i]]);
}

static bool evaluate(struct eval *e, struct engine *engine, struct error *error)
{
    const struct settings *s = e->settings;
    const int64_t positions = e->count + (s->greedy ? s->greedy - 1 : 0); // the last id of a reply needs none
    char what[80];
    snprintf(what, sizeof what, "%d id%s and %lld of a reply", e->count, plural(e->count), (long long)s->greedy);
    if (positions > engine_longest(engine))
        return engine_too_long(engine, what, positions, error);
    struct stream_options options = {.sampling = {.temperature = 0, .top_p = 1},
                                     .drafts = s->no_drafts || !s->greedy ? 0 : -1};
    struct stream *stream = NULL;
    if (!stream_open(engine, &stream, &options, error))
        return false;
    bool logits = s->out || !s->greedy;
    bool ok = stream_prompt(stream, e->ids, e->count, (int)(s->chunk ? s->chunk : s->solo_chunk), logits ? e->keep : 0,
                            logits ? take_logits : NULL, e, error);
    if (ok && e->failed)
        ok = error_set(error, "%s: cannot be written; is the disk full?", s->out);
    ok = ok && (!s->greedy || continue_greedily(e, stream, error));
    stream_close(stream);
    return ok && (!s->out || output_commit(&e->output, error));
}

// A context that was not asked for holds what was asked for, as far as the model goes.
static bool fit_context(struct eval *e, struct engine_options *options, struct error *error)
{
    const int64_t greedy = e->settings->greedy, need = e->count + greedy + ROOM;
    if (!settings_given(e->settings, FLAG_CONTEXT) && need > 8192)
        options->context = (int)(need < model.max_context ? need : model.max_context);
    const int context = memory_context(options->context);
    if (e->count > context || e->count + greedy - 1 > context) // the last id of a reply needs no position
        return error_set(
            error, "%d id%s and %lld of a reply do not fit: the context is %d positions; use --context N up to %d",
            e->count, plural(e->count), (long long)greedy, context, model.max_context);
    return true;
}

static int eval_run(const struct settings *settings, struct error *error)
{
    struct eval e = {.settings = settings};
    struct engine *engine = NULL;
    bool ok = read_ids(&e, error) && check_request(&e, error);
    if (ok) {
        struct engine_options options = cli_engine_options(settings);
        e.last = malloc((size_t)model.vocabulary * sizeof *e.last);
        ok = (e.last || error_set(error, "no memory for a row of logits")) && fit_context(&e, &options, error) &&
             (!settings->out || output_open(&e.output, settings->out, error)) && engine_open(&engine, &options, error);
    }
    ok = ok && evaluate(&e, engine, error);
    output_abandon(&e.output);
    for (int i = 0; ok && i < e.replied; i++)
        printf(i ? " %d" : "%d", e.reply[i]);
    if (ok && e.replied)
        putchar('\n');
    if (ok && !settings->greedy && !settings->out)
        print_best(e.last);
    engine_close(engine);
    free(e.ids);
    free(e.last);
    free(e.reply);
    return ok ? 0 : EXIT_BAD;
}

const struct command command_eval = {
    .name = "eval",
    .synopsis = "(--tokens 1,2,3 | --tokens-file FILE) [--last N --out FILE] [--greedy M] [--chunk C]",
    .summary = "logits of a list of token ids, and their greedy continuation",
    .notes = "Without --out and --greedy: the best ids of the last position with their logits.",
    .flags = ENGINE_FLAGS | FLAG_BIT(FLAG_TOKENS) | FLAG_BIT(FLAG_TOKENS_FILE) | FLAG_BIT(FLAG_LAST) |
             FLAG_BIT(FLAG_OUT) | FLAG_BIT(FLAG_GREEDY) | FLAG_BIT(FLAG_CHUNK),
    .run = eval_run,
};
