// SPDX-License-Identifier: Apache-2.0
//
// One reply: prompt rows in chunks, then rounds. The host decides only how many rows a pass has and how many drafts; tokens,
// acceptance and the commit of every state are the programs'.

#include "runtime/engine_state.h"
#include <stdlib.h>
#include <string.h>

static void reset_lane(struct stream *s)
{
    struct slot *slot = s->slot;
    struct lane *lane = slot->lane;
    const struct sampling *p = &s->options.sampling;
    *lane = (struct lane){.top_k = p->top_k,
                          .temperature = p->temperature,
                          .top_p = p->top_p,
                          .min_p = p->min_p,
                          .seed = p->seed,
                          .tokens = slot->tokens.device,
                          .run = pages_at(&s->engine->pages, slot->run)};
    device_zero(lane->run, model.run_bytes);
    s->started = false;
    s->last_rows = 0;
    s->kept_length = 0;
}

bool stream_open(struct engine *e, struct stream **out, const struct stream_options *options, struct error *error)
{
    *out = NULL;
    struct slot *slot = NULL;
    for (int i = 0; i < e->lanes && !slot; i++)
        if (!e->slot[i].stream)
            slot = &e->slot[i];
    if (!slot)
        return error_set(error, "all %d lanes are busy", e->lanes);
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(error, "no memory for a stream");
    if (!pages_claim_run(&e->pages, e->run_pages, &slot->run)) {
        free(s);
        return error_set(error, "no %u consecutive pages are free for a stream's states", e->run_pages);
    }
    s->engine = e;
    s->slot = slot;
    s->options = *options;
    s->drafting = model.has_head && !e->options.no_drafts && options->drafts != 0;
    slot->stream = s;
    slot->draft = ++e->draft_ids;
    depth_init(&s->depth, model.window - 1);
    reset_lane(s);
    *out = s;
    return true;
}

void stream_close(struct stream *s)
{
    if (!s)
        return;
    struct engine *e = s->engine;
    struct slot *slot = s->slot;
    while (slot->mapped > 0)
        pages_release(&e->pages, ((const uint32_t *)slot->table.host)[--slot->mapped]);
    pages_release_run(&e->pages, slot->run, e->run_pages);
    slot->stream = NULL;
    device_free(s->kept_run, model.run_bytes);
    free(s);
}

// ---- prompt ---------------------------------------------------------------------------------------------------------------

static bool check_ids(const struct stream *s, const int32_t *ids, int count, struct error *error)
{
    const struct lane *lane = s->slot->lane;
    if (count < 1)
        return error_set(error, "a prompt needs at least one token");
    for (int i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= model.vocabulary)
            return error_set(error, "token %d: id %d is outside the vocabulary of %d", i, ids[i], model.vocabulary);
    if (count > s->engine->context - lane->length)
        return error_set(error,
                         "%d tokens do not fit: the context is %d positions and %d are taken; use --context N up to %d",
                         count, s->engine->context, lane->length, model.max_context);
    return true;
}

// Logits of the rows [first, first + rows) of the last chunk, a tail pass at a time.
static bool run_tail(struct stream *s, int first, int rows, void (*on_logits)(void *, int, const float *), void *user,
                     struct error *error)
{
    struct lane *lane = s->slot->lane;
    for (int done = 0; done < rows; done += lane->tail_rows) {
        lane->tail_first = first + done;
        lane->tail_rows = rows - done < model.tail ? rows - done : model.tail;
        if (!engine_run(s->engine, model.tail_program, s->slot, error))
            return false;
        for (int i = 0; on_logits && i < lane->tail_rows; i++)
            on_logits(user, lane->tail_first + i, engine_logits(s->engine, i));
    }
    return true;
}

// Keeps the state for a rewind: everything but the last token of the prompt, made by prompt-class rows.
static void keep_state(struct stream *s)
{
    if (!s->kept_run)
        s->kept_run = device_alloc(model.run_bytes, "a kept state", NULL);
    if (!s->kept_run)
        return; // costs time on the next turn, nothing else
    device_copy(s->kept_run, s->slot->lane->run, model.run_bytes);
    s->kept_length = s->slot->lane->length;
}

static bool run_chunk(struct stream *s, int rows, struct error *error)
{
    struct lane *lane = s->slot->lane;
    lane->rows = rows;
    lane->drafts = 0;
    const struct program *program = s->drafting ? model.prompt : model.plain_prompt;
    if (!engine_map(s->engine, s->slot, lane->length + rows + 1, error))
        return false;
    return engine_run(s->engine, program, s->slot, error);
}

bool stream_prompt(struct stream *s, const int32_t *ids, int count, int chunk, int keep_logits,
                   void (*on_logits)(void *user, int position, const float *logits), void *user, struct error *error)
{
    struct lane *lane = s->slot->lane;
    if (s->started)
        return error_set(error, "the stream is in a reply; rewind it before adding to its prompt");
    if (!check_ids(s, ids, count, error))
        return false;
    double start = engine_seconds();
    int at = lane->length, end = at + count, most = chunk > 0 && chunk < model.chunk ? chunk : model.chunk;
    int logits_from = keep_logits > 0 ? end - keep_logits : end;
    memcpy((int32_t *)s->slot->tokens.host + at, ids, (size_t)count * sizeof *ids);
    engine_push_tokens(s->slot, at, count);
    lane->limit = end;
    while (at < end) {
        int stop = at < end - 1 ? end - 1 : end; // the state before the last token is kept
        int rows = stop - at < most ? stop - at : most;
        if (at == end - 1)
            keep_state(s);
        if (!run_chunk(s, rows, error))
            return false;
        int first = at > logits_from ? at : logits_from;
        if (first < at + rows && !run_tail(s, first, at + rows - first, on_logits, user, error))
            return false;
        at += rows;
    }
    s->counters.prompt_tokens += count;
    s->counters.prompt_seconds += engine_seconds() - start;
    return true;
}

// ---- reply ----------------------------------------------------------------------------------------------------------------

// The first token: drawn from the prompt's last row.
static bool first_token(struct stream *s, int32_t *out, int *count, struct error *error)
{
    struct lane *lane = s->slot->lane;
    if (lane->length == 0)
        return error_set(error, "a reply needs a prompt");
    if (!run_tail(s, lane->length - 1, 1, NULL, NULL, error))
        return false;
    int32_t token, *tokens = s->slot->tokens.host;
    device_download(&token, s->engine->arena + model.drawn_offset, sizeof token);
    tokens[lane->length] = token;
    engine_push_tokens(s->slot, lane->length, 1);
    lane->limit = lane->length + 1;
    s->started = true;
    out[0] = token;
    *count = s->last_rows = 1;
    s->counters.reply_tokens++;
    return true;
}

static int choose_drafts(struct stream *s, int room)
{
    int drafts = depth_choose(&s->depth);
    if (s->options.drafts > 0)
        drafts = s->options.drafts < model.window ? s->options.drafts : model.window - 1;
    return drafts < room - 1 ? drafts : room - 1;
}

bool stream_next(struct stream *s, int32_t out[16], int *count, struct error *error)
{
    struct engine *e = s->engine;
    struct lane *lane = s->slot->lane;
    int room = e->context - lane->length;
    *count = 0;
    if (room <= 0 && s->started)
        return true;
    double start = engine_seconds();
    if (!s->started) {
        bool ok = first_token(s, out, count, error);
        s->counters.decode_seconds += engine_seconds() - start;
        return ok;
    }
    int drafts = s->drafting ? choose_drafts(s, room) : 0;
    lane->rows = drafts + 1;
    lane->drafts = drafts;
    if (!engine_map(e, s->slot, lane->length + drafts + 2, error) ||
        !engine_run(e, s->drafting ? model.round[drafts] : model.plain_round, s->slot, error))
        return false;
    const int32_t *result = engine_block(e)->result;
    *count = s->last_rows = result[0];
    memcpy(out, result + 1, (size_t)*count * sizeof *out);
    memcpy((int32_t *)s->slot->tokens.host + lane->length + 1 - *count, out, (size_t)*count * sizeof *out);
    double seconds = engine_seconds() - start;
    if (s->drafting)
        depth_learn(&s->depth, drafts, *count - 1, seconds);
    s->counters.rounds++;
    s->counters.drafted += drafts;
    s->counters.accepted += *count - 1;
    s->counters.reply_tokens += *count;
    s->counters.decode_seconds += seconds;
    return true;
}

const float *stream_logits(const struct stream *s, int i)
{
    return i < 0 || i >= s->last_rows ? NULL : engine_logits(s->engine, i);
}

const int32_t *stream_tokens(const struct stream *s, int *count)
{
    *count = s->slot->lane->length + (s->started ? 1 : 0);
    return s->slot->tokens.host;
}

// ---- going back -------------------------------------------------------------------------------------------------------------

int stream_rewind(struct stream *s)
{
    struct lane *lane = s->slot->lane;
    int kept = s->kept_run ? s->kept_length : 0;
    if (kept == 0) {
        reset_lane(s);
        return 0;
    }
    device_copy(lane->run, s->kept_run, model.run_bytes);
    lane->length = lane->head_length = kept;
    lane->fold = 0;
    lane->streams_base = kept > MAX_WINDOW ? kept - MAX_WINDOW : 0;
    s->started = false;
    s->last_rows = 0;
    return kept;
}

bool stream_continue(struct stream *s, const int32_t *ids, int count, struct error *error)
{
    int kept = s->kept_run ? s->kept_length : 0;
    if (kept >= count || memcmp(s->slot->tokens.host, ids, (size_t)kept * sizeof *ids) != 0)
        s->kept_length = kept = 0;
    kept = stream_rewind(s);
    return stream_prompt(s, ids + kept, count - kept, 0, 0, NULL, NULL, error);
}

const struct stream_counters *stream_counters(const struct stream *s)
{
    return &s->counters;
}
