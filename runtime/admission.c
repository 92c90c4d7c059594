// SPDX-License-Identifier: Apache-2.0
//
// Requests: who gets a lane when, whose prompt is read when, and when a reply is over.
// Invariants: first come, first served; a stream is admitted only when every page that it can ever need is set aside; while
// replies are made they keep their share of the time; what a stream held is back before its phase says that it is over.

#include "runtime/engine_state.h"
#include <stdlib.h>
#include <string.h>

uint32_t admission_need(const struct engine *e, int positions)
{
    const int page = e->options.page, need = (positions + model.window + 1 + page - 1) / page;
    return (uint32_t)(need < e->plan.table_size ? need : e->plan.table_size) + e->plan.run_pages;
}

int engine_longest(const struct engine *e)
{
    const int64_t pages = (int64_t)e->pages.count - e->plan.run_pages,
                  held = pages * e->options.page - model.window - 1;
    return held < e->context ? (int)held : e->context;
}

// A state's pages are within the cache's budget, and its page and run of its own are claimed beside those that its stream holds.
int engine_longest_kept(const struct engine *e)
{
    const int64_t page = e->options.page, own = 1 + (int64_t)e->plan.run_pages,
                  budget = ((int64_t)e->sizes.cache_pages - e->plan.run_pages) * page,
                  beside = ((int64_t)e->pages.count - own - e->plan.run_pages) * page - model.window - 1,
                  held = budget < beside ? budget : beside;
    return held < 1 ? 0 : held < e->context ? (int)held : e->context;
}

bool engine_too_long(const struct engine *e, const char *what, int64_t positions, struct error *error)
{
    const int64_t need =
        (positions + model.window + 1 + e->options.page - 1) / e->options.page + (int64_t)e->plan.run_pages;
    const int64_t least = need - ((int64_t)e->pages.count - e->options.pool_pages);
    const bool pool = engine_longest(e) < e->context;
    char flag[48] = "";
    if (positions > e->context || !pool)
        return error_set(
            error, "%s: %lld positions are needed, and the context is %d: use --context N up to %d, or ask for less",
            what, (long long)positions, e->context, model.max_context);
    if (e->options.pool_pages)
        snprintf(flag, sizeof flag, "use --pool-pages %lld or more, or ", (long long)least);
    return error_set(error,
                     "%s: %lld positions are needed, and the pool's %u pages hold one stream of %d: %sask for less",
                     what, (long long)positions, e->pages.count, engine_longest(e), flag);
}

static bool check_request(struct engine *e, const struct request *r, int *reply, struct error *error)
{
    if (r->count < 1)
        return error_set(error, "a prompt needs at least one token");
    if (r->ignore_end && r->options.grammar)
        return error_set(error, "a reply that follows a grammar ends where that ends: leave ignore_eos out");
    for (int i = 0; i < r->count; i++)
        if (r->ids[i] < 0 || r->ids[i] >= model.vocabulary)
            return error_set(error, "token %d: id %d is outside the vocabulary of %d", i, r->ids[i], model.vocabulary);
    if (r->count >= e->context || r->reply > e->context - r->count)
        return error_set(error, "a prompt of %d tokens and a reply of up to %d do not fit the context of %d positions",
                         r->count, r->reply > 0 ? r->reply : 1, e->context);
    for (int i = 0; i < r->mark_count; i++)
        if (r->marks[i] < 0 || r->marks[i] > r->count || (i > 0 && r->marks[i] < r->marks[i - 1]))
            return error_set(error, "mark %d: positions of the prompt of %d tokens in order are expected, found %d", i,
                             r->count, r->marks[i]);
    *reply = r->prompt_only ? 0 : r->reply > 0 ? r->reply : e->context - r->count;
    uint32_t need = admission_need(e, r->count + *reply);
    if (need > e->pages.count)
        return error_set(
            error,
            "a prompt of %d tokens and a reply of up to %d need %u pages of %d positions (%u of them for its "
            "states), and the pool has %u: ask for a shorter reply, or start with a larger --pool-pages",
            r->count, *reply, need, e->options.page, e->plan.run_pages, e->pages.count);
    return true;
}

// First come, first served; those in the background behind all others.
static void enqueue(struct engine *e, struct stream *s)
{
    struct stream **at = &e->first;
    while (*at && (s->background || !(*at)->background))
        at = &(*at)->next;
    s->next = *at;
    *at = s;
    e->last = s->next ? e->last : s;
}

static bool copy_prompt(struct stream *s, const struct request *r)
{
    s->prompt = malloc((size_t)r->count * sizeof *s->prompt);
    s->marks = r->mark_count > 0 ? malloc((size_t)r->mark_count * sizeof *s->marks) : NULL;
    if (!s->prompt || (r->mark_count > 0 && !s->marks))
        return false;
    memcpy(s->prompt, r->ids, (size_t)r->count * sizeof *s->prompt);
    if (s->marks)
        memcpy(s->marks, r->marks, (size_t)r->mark_count * sizeof *s->marks);
    s->prompt_count = r->count;
    s->mark_count = r->mark_count;
    return true;
}

bool admission_make(struct engine *e, struct stream **out, const struct request *r, struct error *error)
{
    int reply = 0;
    *out = NULL;
    if (!check_request(e, r, &reply, error))
        return false;
    struct stream_options options = r->options;
    options.positions = r->count + reply;
    struct stream *s = stream_new(e, &options, error);
    if (!s)
        return false;
    if (!copy_prompt(s, r)) {
        stream_free(s);
        return error_set(error, "no memory for a request of %d tokens", r->count);
    }
    s->reply_most = reply;
    s->ignore_end = r->ignore_end;
    s->prompt_only = r->prompt_only;
    s->background = r->background;
    s->submitted = true;
    s->phase = STREAM_WAITING;
    // States are kept with the head's cells, so that whoever goes on from them may draft.
    if (e->cache && model.has_head && !e->options.no_drafts && !depth_hopeless(&e->depth))
        s->follows = true;
    *out = s;
    return true;
}

bool stream_submit(struct engine *e, struct stream **out, const struct request *r, struct error *error)
{
    if (!admission_make(e, out, r, error)) {
        e->counters.refused++;
        return false;
    }
    enqueue(e, *out);
    e->counters.submitted++;
    return true;
}

// ---- ends ------------------------------------------------------------------------------------------------------------------

static bool ends(int32_t token)
{
    for (int i = 0; i < model.end_count; i++)
        if (model.end_tokens[i] == token)
            return true;
    return false;
}

void admission_finish(struct stream *s)
{
    const int32_t *tokens = (const int32_t *)s->slot->tokens.host + s->reply_from;
    int made = stream_made(s), end = made < s->reply_most ? 0 : s->reply_most;
    for (int i = made - s->round_rows; !s->ignore_end && i < made && (end == 0 || i < end); i++)
        if (i >= 0 && ends(tokens[i]))
            end = i + 1;
    if (end == 0 && stream_room(s) <= 0)
        end = made;
    if (end == 0)
        return;
    s->reply_end = end;
    s->phase = STREAM_FINISHED;
    s->engine->counters.finished++;
}

static void cancel(struct stream *s)
{
    s->phase = STREAM_CANCELLED;
    s->engine->counters.cancelled++;
    stream_detach(s);
}

static void take_cancels(struct engine *e)
{
    for (int i = 0; i < e->lanes; i++) {
        struct stream *s = e->slot[i].stream;
        if (s && s->submitted && (s->phase == STREAM_FILLING || s->phase == STREAM_DECODING) && atomic_load(&s->cancel))
            cancel(s);
    }
    struct stream *before = NULL;
    for (struct stream *s = e->first, *next; s; s = next) {
        next = s->next;
        if (!atomic_load(&s->cancel)) {
            before = s;
            continue;
        }
        *(before ? &before->next : &e->first) = next;
        e->last = next ? e->last : before;
        s->next = NULL;
        cancel(s);
    }
}

// ---- admission and prompts ---------------------------------------------------------------------------------------------------

static struct slot *free_slot(struct engine *e)
{
    for (int i = 0; i < e->lanes; i++)
        if (!e->slot[i].stream)
            return &e->slot[i];
    return NULL;
}

bool admission_begin(struct stream *s)
{
    struct slot *slot = free_slot(s->engine);
    if (!slot || !stream_attach(s, slot, NULL))
        return false;
    memcpy(slot->tokens.host, s->prompt, (size_t)s->prompt_count * sizeof *s->prompt);
    engine_push_tokens(slot, 0, s->prompt_count);
    slot->lane->limit = s->prompt_count;
    s->phase = STREAM_FILLING;
    return true;
}

void admission_again(struct stream *s)
{
    struct engine *e = s->engine;
    stream_detach(s);
    s->phase = STREAM_WAITING;
    s->next = e->first;
    e->first = s;
    e->last = s->next ? e->last : s;
    e->counters.admitted--;
    e->again = true;
}

static void admit(struct engine *e)
{
    while (e->first) {
        struct stream *s = e->first;
        if (!admission_begin(s)) {
            e->counters.waited++;
            return;
        }
        e->first = s->next;
        e->last = e->first ? e->last : NULL;
        s->next = NULL;
        s->served = ++e->counters.admitted;
    }
}

static bool before(const struct stream *a, const struct stream *b)
{
    return a->background != b->background ? b->background : a->served < b->served;
}

// The stream in a phase that was admitted first; those in the background after all others.
static struct stream *oldest(struct engine *e, enum stream_phase phase)
{
    struct stream *found = NULL;
    for (int i = 0; i < e->lanes; i++) {
        struct stream *s = e->slot[i].stream;
        if (s && s->submitted && s->phase == phase && !cache_loading(s) && (!found || before(s, found)))
            found = s;
    }
    return found;
}

// A prompt without a reply is over when all of it has been read.
static void end_prompt(struct stream *s)
{
    engine_wait(s->engine, NULL);
    if (s->phase != STREAM_FILLING)
        return; // its last chunk failed
    cache_end(s);
    stream_detach(s);
    s->phase = STREAM_FINISHED;
    s->engine->counters.finished++;
}

// The prompt has been read: its first token, then the states that its last chunk has left, while the head still follows.
static bool end_fill(struct stream *s, struct error *cause)
{
    if (!stream_draw(s, cause))
        return false;
    cache_reached(s);
    cache_end(s);
    if (!stream_first(s, cause))
        return false;
    admission_finish(s);
    return true;
}

// One chunk of the oldest prompt, unless replies are owed time. The chunk that ends a prompt draws its first token, as a prompt that is kept
// whole does at once: then that is whose; else NULL.
static struct stream *fill(struct engine *e)
{
    struct stream *s = oldest(e, STREAM_FILLING);
    const bool beside = oldest(e, STREAM_DECODING) != NULL;
    struct error cause = {0};
    if (!s || (beside && e->owed > 0))
        return NULL;
    const int at = s->slot->lane->length, end = s->prompt_count;
    const int most = beside ? e->options.busy_chunk : e->options.solo_chunk;
    const double start = engine_seconds();
    int rows = stream_chunk_rows(s, end, most);
    if (rows == 0 && s->prompt_only) {
        end_prompt(s);
        return NULL;
    }
    const bool last = at + rows == end && !s->prompt_only;
    const bool ok = (rows == 0 || stream_chunk(s, end, most, last, &rows, &cause)) && (!last || end_fill(s, &cause));
    if (!ok) {
        stream_fail(s, &cause);
        return NULL;
    }
    e->chunk_beside = beside;
    if (last)
        admission_chunk_done(e, s, engine_seconds() - start);
    else
        e->chunk_start = start;
    return last ? s : NULL;
}

void admission_chunk_done(struct engine *e, struct stream *s, double seconds)
{
    const double share = (double)e->options.decode_share;
    e->counters.prompt_seconds += seconds;
    if (s)
        s->counters.prompt_seconds += seconds;
    e->owed = e->chunk_beside ? e->owed + seconds * share / (1 - share) : 0;
}

// Whether any lane but that of one stream (or NULL) fills, decodes or waits for its state; the warm pass does not count.
static bool on_lanes(const struct engine *e, const struct stream *but)
{
    bool any = false;
    for (int i = 0; i < e->lanes; i++) {
        const struct stream *s = e->slot[i].stream;
        any = any || (s && s != but && !warm_is(s) && (s->phase == STREAM_FILLING || s->phase == STREAM_DECODING));
    }
    return any;
}

static bool working(const struct engine *e)
{
    return e->first || on_lanes(e, NULL);
}

bool engine_turn(struct engine *e, bool *busy, struct error *error)
{
    struct error cause;
    *busy = false;
    if (!engine_wait(e, error))
        return false;
    e->again = false;
    take_cancels(e);
    if (working(e))
        warm_aside(e);
    admit(e);
    cache_load(e, !oldest(e, STREAM_DECODING) && !oldest(e, STREAM_FILLING));
    const struct stream *begun = fill(e);
    // A first token goes out before the round after it, where nobody else waits for that.
    const bool out = begun && !e->first && !on_lanes(e, begun);
    if (!out && !engine_round(e, &cause) && e->dead) {
        if (error)
            *error = cause;
        return false;
    }
    const bool work = working(e);
    if (!work)
        warm_step(e);
    const bool writes = cache_write(e, !work);
    // who waits now waits for a stream to be closed, but for one that was sent back
    *busy = e->again || on_lanes(e, NULL) || (!work && (warm_waits(e) || writes));
    return true;
}

// ---- what callers see --------------------------------------------------------------------------------------------------------

void stream_cancel(struct stream *s)
{
    atomic_store(&s->cancel, true);
}

enum stream_phase stream_phase(const struct stream *s)
{
    return s->phase;
}

const char *stream_error(const struct stream *s)
{
    return s->cause.text;
}

bool stream_stuck(const struct stream *s)
{
    return s->phase == STREAM_FAILED && s->constraint && s->constraint->stuck;
}
