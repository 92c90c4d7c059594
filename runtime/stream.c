// SPDX-License-Identifier: Apache-2.0
//
// One reply: its lane, its prompt in chunks, its first token, what it can go back to. The host decides only how many rows a
// pass has and how many drafts; tokens, acceptance and the commit of every state are the programs'.

#include "runtime/engine_state.h"
#include <stdlib.h>
#include <string.h>

#ifdef ENGINE_TEST
extern int engine_test_no_drain, engine_test_keep_other, engine_test_rewind_late, engine_test_row_lost;
#endif

enum { FOLLOW_EVERY = 8 };

// ---- lanes -----------------------------------------------------------------------------------------------------------------

// zero: unless a kept state is put in place of its states at once.
static void reset_lane(struct stream *s, bool zero)
{
    struct slot *slot = s->slot;
    struct lane *lane = slot->lane;
    const struct sampling *p = &s->options.sampling;
    struct round_block *block = s->engine->block.device;
    history_begin(&slot->history, p);
    *lane = (struct lane){.top_k = p->top_k,
                          .temperature = p->temperature,
                          .top_p = p->top_p,
                          .min_p = p->min_p,
                          .seed = p->seed,
                          .head_length = s->follows ? 0 : INT32_MAX,
                          .alternatives = s->options.logprobs > 0 ? s->options.logprobs : 0,
                          .logprobs = s->logprobs ? block->logprobs[slot - s->engine->slot] : NULL,
                          .penalties = slot->history.on ? slot->history.list.device : NULL,
                          .tokens = slot->tokens.device,
                          .run = pages_at(&s->engine->pages, slot->run)};
    if (zero)
        device_zero(lane->run, model.run_bytes);
    copy_index_reset(&slot->copy);
    s->started = s->first_drawn = s->row_saved = false;
    s->round_rows = s->given = s->taken = 0;
    s->kept_length = 0;
}

void stream_resume(struct stream *s, int length, bool follows)
{
    struct lane *lane = s->slot->lane;
    lane->length = length;
    s->follows = follows;
    lane->head_length = follows ? length - 1 : INT32_MAX; // its last cell read the token that may differ now
    lane->fold = lane->halt = 0;
    lane->mask = NULL;
    lane->streams_base = length - 1; // a state that was kept on the way has no others
    memset(lane->keep_at, 0, sizeof lane->keep_at);
    copy_index_reset(&s->slot->copy);
    history_reset(&s->slot->history);
    s->started = s->first_drawn = false;
    s->row_saved = true;
    s->round_rows = s->given = s->taken = 0;
}

// The biases of its options, which the caller may take back: a lane's history takes them in later.
static bool copy_bias(struct stream *s, struct error *error)
{
    struct sampling *p = &s->options.sampling;
    if (p->bias_count <= 0)
        return true;
    const size_t bytes = (size_t)p->bias_count * sizeof *s->bias;
    s->bias = malloc(bytes);
    if (!s->bias)
        return error_set(error, "no memory for %d logit biases", p->bias_count);
    memcpy(s->bias, p->bias, bytes);
    p->bias = s->bias;
    return true;
}

struct stream *stream_new(struct engine *e, const struct stream_options *options, struct error *error)
{
    if (options->logprobs > LOGPROBS_MOST) {
        error_set(error, "logprobs: at most %d alternatives are expected, found %d", LOGPROBS_MOST, options->logprobs);
        return NULL;
    }
    struct stream *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(error, "no memory for a stream");
        return NULL;
    }
    s->engine = e;
    s->options = *options;
    s->positions = engine_longest(e);
    if (options->positions > 0 && options->positions < s->positions)
        s->positions = options->positions;
    s->drafting = model.has_head && !e->options.no_drafts && options->drafts != 0;
    s->follows = s->drafting;
    // Where drafts are known not to pay, one stream in a few still has the head follow it, to see whether that has changed.
    if (s->drafting && options->drafts < 0 && depth_hopeless(&e->depth))
        s->follows = e->openings++ % FOLLOW_EVERY == 0;
    s->landing = e->depth.prior;
    s->copy_chance = s->guess_chance = 0.9;
    bool ok = history_check(&options->sampling, model.vocabulary, error) && copy_bias(s, error);
    if (ok && options->logprobs) {
        s->logprobs = calloc((size_t)s->positions + 1, sizeof *s->logprobs);
        ok = s->logprobs || error_set(error, "no memory for log-probabilities of %d tokens", s->positions);
    }
    if (ok && options->grammar)
        ok = (s->constraint = constraint_new(options, model.vocabulary, model.window, error)) != NULL;
    if (ok)
        return s;
    stream_free(s);
    return NULL;
}

void stream_free(struct stream *s)
{
    free(s->bias);
    constraint_free(s->constraint);
    free(s->logprobs);
    cache_drop(s);
    free(s->prompt);
    free(s->marks);
    free(s);
}

static void release_lane(struct engine *e, struct slot *slot)
{
    while (slot->mapped > 0)
        pages_release(&e->pages, ((const uint32_t *)slot->table.host)[--slot->mapped]);
    pages_release_run(&e->pages, slot->run, e->plan.run_pages);
    pages_unpromise(&e->pages, &slot->promise);
    slot->stream = NULL;
}

// Pages for a stream that begins at a kept state (NULL: at 0): the state's are shared, the others set aside, the run claimed.
static bool claim_lane(struct stream *s, struct slot *slot, const struct cache_state *state, struct error *error)
{
    struct pages *pages = &s->engine->pages;
    const uint32_t shared = state ? state->shared : 0, run = s->engine->plan.run_pages,
                   need = admission_need(s->engine, s->positions) - shared;
    uint32_t *table = slot->table.host;
    for (; slot->mapped < (int32_t)shared; slot->mapped++) {
        table[slot->mapped] = state->page[slot->mapped];
        slot->tags[slot->mapped] = pages->tag[table[slot->mapped]];
        pages_share(pages, table[slot->mapped]);
    }
    if (!pages_promise(pages, need, &slot->promise)) {
        if (s->engine->options.pool_pages)
            error_set(error,
                      "--pool-pages %d: %u pages are needed and %u are free; %u or more, or fewer streams, are needed",
                      s->engine->options.pool_pages, need, pages_available(pages),
                      (uint32_t)s->engine->options.pool_pages + need - pages_available(pages));
        else
            error_set(error,
                      "%u pages are needed and %u of %u are free; fewer streams or a smaller --context is needed", need,
                      pages_available(pages), pages->count);
    } else if (!pages_claim_run(pages, run, &slot->promise, &slot->run)) {
        pages_unpromise(pages, &slot->promise);
        error_set(error, "no %u consecutive pages are free for a stream's states", run);
    } else {
        if (shared)
            mirror_push(&slot->table, 0, shared * (int64_t)sizeof *table);
        return true;
    }
    while (slot->mapped > 0)
        pages_release(pages, table[--slot->mapped]);
    return false;
}

// Puts what a state keeps into the stream's lane. False when a copy failed, or there is no page to copy to.
static bool restore(struct stream *s, struct cache_state *state)
{
    struct engine *e = s->engine;
    struct slot *slot = s->slot;
    if (!state)
        return true;
    if (!engine_map(e, slot, state->length, NULL))
        return false;
    uint8_t *tail = pages_at(&e->pages, ((const uint32_t *)slot->table.host)[state->shared]);
    if (!cache_copy_out(e, state, tail, slot->lane->run))
        return false;
    stream_resume(s, state->length, s->follows && state->follows);
    return true;
}

static bool attach_at(struct stream *s, struct slot *slot, struct cache_state *state, struct error *error)
{
    if (!claim_lane(s, slot, state, error))
        return false;
    s->slot = slot;
    slot->stream = s;
    reset_lane(s, !state);
    if (restore(s, state))
        return true;
    release_lane(s->engine, slot);
    s->slot = NULL;
    return false;
}

bool stream_attach(struct stream *s, struct slot *slot, struct error *error)
{
    struct cache_state *state = cache_find(s);
    bool good = attach_at(s, slot, state, error);
    if (!good && state) { // no room beside the state, or it could not be copied: without it
        cache_unpin(s->engine, state);
        state = NULL;
        good = attach_at(s, slot, NULL, error);
    }
    if (good)
        cache_begin(s, state);
    return good;
}

void stream_detach(struct stream *s)
{
    struct engine *e = s->engine;
    struct slot *slot = s->slot;
    if (!slot)
        return;
    bool drain = true;
#ifdef ENGINE_TEST
    drain = !engine_test_no_drain;
#endif
    if (drain)
        engine_wait(e, NULL);
    if (!s->slot)
        return; // the wait ended the stream itself
    if (e->flight_stream == s)
        e->flight_stream = NULL;
    cache_drop(s);
    release_lane(e, slot);
    s->slot = NULL;
    s->kept_length = 0;
}

bool stream_open(struct engine *e, struct stream **out, const struct stream_options *options, struct error *error)
{
    *out = NULL;
    struct slot *slot = NULL;
    if (!engine_wait(e, error))
        return false;
    warm_aside(e);
    for (int i = 0; i < e->lanes && !slot; i++)
        if (!e->slot[i].stream)
            slot = &e->slot[i];
    if (!slot)
        return error_set(error, "no lane of %d is free", e->lanes);
    struct stream *s = stream_new(e, options, error);
    if (!s)
        return false;
    if (!stream_attach(s, slot, error)) {
        stream_free(s);
        return false;
    }
    *out = s;
    return true;
}

void stream_close(struct stream *s)
{
    if (!s)
        return;
    struct engine *e = s->engine;
    struct stream *before = NULL;
    for (struct stream *at = e->first; at; before = at, at = at->next) {
        if (at != s)
            continue;
        *(before ? &before->next : &e->first) = s->next;
        if (e->last == s)
            e->last = before;
        break;
    }
    stream_detach(s);
    stream_free(s);
}

void stream_fail(struct stream *s, const struct error *cause)
{
    if (s->phase == STREAM_FAILED)
        return;
    s->phase = STREAM_FAILED;
    s->cause = *cause;
    s->engine->counters.failed++;
    if (s->submitted)
        stream_detach(s);
}

// Why a stream cannot go on, or true.
static bool alive(const struct stream *s, struct error *error)
{
    if (s->phase == STREAM_FAILED) {
        if (error)
            *error = s->cause;
        return false;
    }
    if (s->phase == STREAM_CANCELLED || atomic_load(&((struct stream *)(uintptr_t)s)->cancel))
        return error_set(error, "the stream was cancelled");
    return s->slot ? true : error_set(error, "the stream has no lane yet");
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
    if (count <= s->positions - lane->length)
        return true;
    char what[80];
    snprintf(what, sizeof what, lane->length ? "%d token%s behind %d" : "%d token%s", count, plural(count),
             lane->length);
    return engine_too_long(s->engine, what, (int64_t)lane->length + count, error);
}

// Logits of the rows [first, first + rows) of the last chunk, a tail pass at a time.
static bool run_tail(struct stream *s, int first, int rows, void (*on_logits)(void *, int, const float *), void *user,
                     struct error *error)
{
    struct lane *lane = s->slot->lane;
    for (int done = 0; done < rows; done += lane->tail_rows) {
        lane->tail_first = first + done;
        lane->tail_rows = rows - done < model.tail ? rows - done : model.tail;
        bool saved = s->row_saved;
#ifdef ENGINE_TEST
        saved = saved && !engine_test_row_lost;
#endif
        if (!engine_run(s->engine, saved ? model.saved_tail : model.tail_program, &s->slot, 1, error))
            return false;
        for (int i = 0; on_logits && i < lane->tail_rows; i++)
            on_logits(user, lane->tail_first + i, engine_logits(s->engine, i));
    }
    return true;
}

// Where the next chunk of a stream that its caller drives keeps the state that it can go back to; 0: it does not.
static int rewind_place(const struct stream *s, int end, int rows)
{
    const int at = s->slot->lane->length, place = end - model.opening;
    return s->slot->kept_run && !s->prompt && place > at && place <= at + rows ? place : 0;
}

// Draws the token after the last row of the chunk that has just run.
static bool draw_first(struct stream *s, struct error *error)
{
    struct lane *lane = s->slot->lane;
    struct constraint *c = s->constraint;
    stream_history(s);
    if (c && !constraint_begin(c, s->slot->tokens.host, lane->length, error))
        return false;
    if (constraint_masks_now(c)) {
        if (!constraint_mask(c, &s->slot->masks, NULL, &(int){0}, error))
            return false;
        lane->mask = s->slot->masks.device;
    }
    const bool ran = run_tail(s, lane->length - 1, 1, NULL, NULL, error);
    lane->mask = NULL;
    if (!ran)
        return false;
    device_download(&s->first_token, s->engine->arena + model.drawn_offset, sizeof s->first_token);
    s->first_drawn = true;
    s->stamp = s->engine->stamp;
    s->round_from = s->row_first = 0;
    s->round_rows = 1;
    ((int32_t *)s->slot->tokens.host)[s->slot->lane->length] = s->first_token;
    s->reply_from = s->slot->lane->length;
    stream_keep_logprobs(s);
    return true;
}

int stream_chunk_rows(const struct stream *s, int end, int most)
{
    const int at = s->slot->lane->length, left = cache_next_stop(s, at, end) - at;
    return left < most ? left : most;
}

bool stream_chunk(struct stream *s, int end, int most, bool wait, int *rows, struct error *error)
{
    struct engine *e = s->engine;
    if (!engine_wait(e, error) || !alive(s, error))
        return false;
#ifdef ENGINE_TEST
    if (engine_test_keep_other)
        cache_reached(s);
#endif
    struct lane *lane = s->slot->lane;
    const int at = lane->length;
    *rows = stream_chunk_rows(s, end, most);
    const int place = rewind_place(s, end, *rows);
    cache_keep_on_way(s, at + *rows);
    if (place) {
        s->kept_length = 0;
        lane->keep_at[0] = place;
        lane->keep_run[0] = s->slot->kept_run;
    }
#ifdef ENGINE_TEST
    lane->keep_at[0] += place && engine_test_rewind_late;
#endif
    s->first_drawn = s->row_saved = false;
    lane->rows = *rows;
    lane->drafts = 0;
    const struct program *program = s->follows ? model.prompt : model.plain_prompt;
    if (!engine_map(e, s->slot, at + *rows + 1, error) || !engine_launch(e, program, &s->slot, 1, error))
        return false;
    e->counters.chunks++;
    e->counters.prompt_tokens += *rows;
    s->counters.prompt_tokens += *rows;
    if (!wait) {
        e->flight_stream = s;
        return true;
    }
    if (!engine_wait(e, error))
        return false;
    if (place) {
        s->kept_length = place;
        s->kept_follows = s->follows;
    }
    return true;
}

bool stream_prompt(struct stream *s, const int32_t *ids, int count, int chunk, int keep_logits,
                   void (*on_logits)(void *user, int position, const float *logits), void *user, struct error *error)
{
    if (!engine_wait(s->engine, error) || !alive(s, error))
        return false;
    struct lane *lane = s->slot->lane;
    if (s->started)
        return error_set(error, "the stream is in a reply; rewind it before adding to its prompt");
    if (!check_ids(s, ids, count, error))
        return false;
    double start = engine_seconds();
    int at = lane->length, end = at + count;
    int most = chunk > 0 && chunk < model.chunk ? chunk : model.chunk, rows;
    int logits_from = keep_logits > 0 ? end - keep_logits : end;
    memcpy((int32_t *)s->slot->tokens.host + at, ids, (size_t)count * sizeof *ids);
    engine_push_tokens(s->slot, at, count);
    lane->limit = end;
    for (; at < end; at += rows) {
        if (!stream_chunk(s, end, most, true, &rows, error))
            return false;
        int first = at > logits_from ? at : logits_from;
        if (first < at + rows && !run_tail(s, first, at + rows - first, on_logits, user, error))
            return false;
    }
    if (!draw_first(s, error)) // now: the rows of the last chunk are gone after the next program
        return false;
    s->counters.prompt_seconds += engine_seconds() - start;
    s->engine->counters.prompt_seconds += engine_seconds() - start;
    return true;
}

// ---- reply ----------------------------------------------------------------------------------------------------------------

int stream_room(const struct stream *s)
{
    return s->positions - s->slot->lane->length;
}

int stream_made(const struct stream *s)
{
    return s->started ? s->slot->lane->length - s->reply_from + 1 : 0;
}

bool stream_draw(struct stream *s, struct error *error)
{
    return s->first_drawn || draw_first(s, error);
}

bool stream_first(struct stream *s, struct error *error)
{
    struct engine *e = s->engine;
    if (!engine_wait(e, error) || !alive(s, error))
        return false;
    struct lane *lane = s->slot->lane;
    if (lane->length == 0)
        return error_set(error, "a reply needs a prompt");
    double start = engine_seconds();
    if (!stream_draw(s, error))
        return false;
    if (s->constraint && !constraint_read(s->constraint, &s->first_token, 1, error))
        return false;
    ((int32_t *)s->slot->tokens.host)[lane->length] = s->first_token;
    engine_push_tokens(s->slot, lane->length, 1);
    lane->limit = lane->length + 1;
    s->reply_from = lane->length;
    if (!s->drafting && s->follows) { // the head read the prompt for the sake of kept states
        s->follows = false;
        lane->head_length = INT32_MAX;
    }
    s->started = true;
    s->phase = STREAM_DECODING;
    s->round_from = s->row_first = s->taken = s->given = 0;
    s->round_rows = 1;
    s->last_round = engine_seconds();
    s->counters.reply_tokens++;
    s->counters.decode_seconds += s->last_round - start;
    e->counters.reply_tokens++;
    return true;
}

int stream_take(struct stream *s, int32_t *out, int room)
{
    s->given_from = s->taken;
    s->given = 0;
    if (!s->slot)
        return 0;
    int made = s->phase == STREAM_FINISHED ? s->reply_end : stream_made(s);
    s->given = made - s->taken < room ? made - s->taken : room;
    memcpy(out, (const int32_t *)s->slot->tokens.host + s->reply_from + s->taken, (size_t)s->given * sizeof *out);
    s->taken += s->given;
    return s->given;
}

bool stream_next(struct stream *s, int32_t out[16], int *count, struct error *error)
{
    *count = 0;
    if (!engine_wait(s->engine, error) || !alive(s, error))
        return false;
    if (!s->started && !stream_first(s, error))
        return false;
    while (s->phase == STREAM_DECODING && stream_made(s) == s->taken && stream_room(s) > 0)
        if (!engine_round(s->engine, error) || !alive(s, error))
            return false;
    *count = stream_take(s, out, MAX_WINDOW);
    return true;
}

const float *stream_logits(const struct stream *s, int i)
{
    int row = s->given_from + i - s->round_from;
    if (i < 0 || i >= s->given || row < 0 || row >= s->round_rows || s->stamp != s->engine->stamp)
        return NULL;
    return engine_logits(s->engine, s->row_first + row);
}

const int32_t *stream_tokens(const struct stream *s, int *count)
{
    *count = s->slot ? s->slot->lane->length + (s->started ? 1 : 0) : 0;
    return s->slot ? s->slot->tokens.host : NULL;
}

void stream_history(struct stream *s)
{
    const int upto = s->slot->lane->length + s->started;
    history_add(&s->slot->history, s->slot->tokens.host, upto, s->started ? s->reply_from : upto);
}

void stream_keep_logprobs(struct stream *s)
{
    if (!s->logprobs)
        return;
    const int64_t at = (int64_t)((const uint8_t *)engine_block(s->engine)->logprobs[s->slot - s->engine->slot] -
                                 (const uint8_t *)engine_block(s->engine)),
                  bytes = s->round_rows * (int64_t)sizeof *s->logprobs;
    mirror_pull(&s->engine->block, at, bytes);
    memcpy(&s->logprobs[s->round_from], (const uint8_t *)engine_block(s->engine) + at, (size_t)bytes);
}

const struct logprobs *stream_logprobs(const struct stream *s, int i)
{
    return s->logprobs && i >= 0 && i < s->taken ? &s->logprobs[i] : NULL;
}

// ---- going back -------------------------------------------------------------------------------------------------------------

int stream_rewind(struct stream *s)
{
    engine_wait(s->engine, NULL);
    if (!s->slot)
        return 0;
    struct lane *lane = s->slot->lane;
    int kept = s->kept_length;
    s->phase = STREAM_OPEN;
    if (kept == 0 || !device_copy(lane->run, s->slot->kept_run, model.run_bytes)) {
        reset_lane(s, true);
        return 0;
    }
    stream_resume(s, kept, s->kept_follows);
    return kept;
}

bool stream_continue(struct stream *s, const int32_t *ids, int count, struct error *error)
{
    if (!engine_wait(s->engine, error) || !alive(s, error))
        return false;
    int kept = s->kept_length;
    if (kept >= count || memcmp(s->slot->tokens.host, ids, (size_t)kept * sizeof *ids) != 0)
        s->kept_length = kept = 0;
    kept = stream_rewind(s);
    return stream_prompt(s, ids + kept, count - kept, 0, 0, NULL, NULL, error);
}

const struct stream_counters *stream_counters(const struct stream *s)
{
    return &s->counters;
}
