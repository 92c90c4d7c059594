// SPDX-License-Identifier: Apache-2.0
//
// A round: one window for each lane that is in a reply, in one program launch. What a lane's window holds is planned by
// expected tokens and measured cost; drafts come from the head or from the stream's own tokens.
// Invariants: a lane is in a round once; the program drafts and verifies before it commits, and commits once; a lane that the
// head does not follow, or whose drafts are the host's (copied, or a grammar's), has no rows in the head's passes.

#include "runtime/engine_state.h"
#include <string.h>

enum { UNTAKEN_MOST = 256 }; // a directly driven stream that nobody takes tokens from sits rounds out beyond that many
static const double LANDING_WEIGHT = 0.1, PRIOR_WEIGHT = 0.05, COPY_WEIGHT = 0.15;

struct window {
    struct slot *slot;
    struct stream *stream;
    int32_t place; // where copied drafts come from; 0: not copied
    bool bound;    // under a mask: its drafts are `draft`, which the grammar takes
    int32_t draft[MAX_WINDOW];
    double chance[DEPTH_MAX]; // that draft i lands
    int drafts;
};

struct round {
    int count; // lanes that take part
    struct window window[MAX_LANES];
    const struct program *program;
};

// ---- who takes part ----------------------------------------------------------------------------------------------------------

static bool takes_part(struct stream *s)
{
    return s && s->phase == STREAM_DECODING && stream_room(s) > 0 && !atomic_load(&s->cancel) &&
           (s->submitted || stream_made(s) - s->taken < UNTAKEN_MOST);
}

// The lanes in a reply, in lane order; when rows are short of lanes, those that were served longest ago.
static void collect(struct engine *e, struct round *r)
{
    *r = (struct round){0};
    for (int i = 0; i < e->lanes; i++)
        if (takes_part(e->slot[i].stream))
            r->window[r->count++] = (struct window){.slot = &e->slot[i], .stream = e->slot[i].stream};
    while (e->options.round_rows && r->count > e->options.round_rows) {
        int newest = 0;
        for (int i = 1; i < r->count; i++)
            if (r->window[i].stream->served >= r->window[newest].stream->served)
                newest = i;
        memmove(&r->window[newest], &r->window[newest + 1], (size_t)(--r->count - newest) * sizeof r->window[0]);
    }
}

// ---- drafts ------------------------------------------------------------------------------------------------------------------

static double expected(const double *chance, int drafts)
{
    double tokens = 1, landed = 1;
    for (int i = 0; i < drafts; i++)
        tokens += landed *= chance[i];
    return tokens;
}

// Whether the host writes the window's drafts.
static bool written(const struct window *w)
{
    return w->place > 0 || w->bound;
}

// Drafts of a window under a mask: the masks must be known before the round, so the head cannot make them. Sets w->bound.
static void bind(struct window *w, struct depth_lane *lane, int32_t place, int most)
{
    struct stream *s = w->stream;
    const struct lane *l = w->slot->lane;
    const int32_t *tokens = w->slot->tokens.host;
    int32_t copy[MAX_WINDOW];
    // What is copied may run into its own copy.
    for (int i = 0; place > 0 && i < most; i++)
        copy[i] = place + i > l->length ? copy[place + i - l->length - 1] : tokens[place + i];
    w->bound = true;
    lane->most = most < 1 ? 0 : constraint_drafts(s->constraint, copy, place > 0 ? most : 0, w->draft, most);
    for (int i = 0; i < DEPTH_MAX; i++)
        w->chance[i] = s->guess_chance;
}

// A stream whose grammar begins at a text: a window ends at the token that is that text; where it is no token, at every one.
static bool waits_for_text(const struct stream *s)
{
    return s->constraint && !s->constraint->active && s->constraint->marker < 0;
}

// Most drafts of a window, and where they come from: the source with more expected tokens.
static struct depth_lane source(struct window *w)
{
    struct stream *s = w->stream;
    const int wish = s->options.drafts, room = stream_room(s) - 1;
    struct depth_lane lane = {.chance = w->chance, .fixed = wish >= 0 || !s->drafting};
    lane.most = !s->drafting ? 0 : wish < 0 || wish > model.window - 1 ? model.window - 1 : wish;
    lane.most = lane.most < room ? lane.most : room;
    memcpy(w->chance, s->landing.chance, sizeof w->chance);
    const int most = waits_for_text(s) ? 0 : lane.most;
    if (!s->follows || most == 0)
        lane.most = 0; // unless there is something to copy
    const bool bound = constraint_masks_now(s->constraint), copies = most > 0 && !s->options.no_copy;
    const int32_t known = w->slot->lane->length + 1,
                  place = copies ? copy_index_find(&w->slot->copy, w->slot->tokens.host, known) : 0;
    if (bound)
        bind(w, &lane, place, most);
    if (bound || !copies)
        return lane;
    double copied[DEPTH_MAX];
    for (int i = 0; i < DEPTH_MAX; i++)
        copied[i] = s->copy_chance;
    if (place > 0 && expected(copied, most) > expected(w->chance, lane.most)) {
        w->place = place;
        lane.most = most;
        memcpy(w->chance, copied, sizeof copied);
    }
    return lane;
}

// The head's chain is as long as the deepest window, so a deep copied window beside a lane that the head drafts for would
// pay for drafts that nobody wanted. Either the copies are cut to the head's depth or the head rests: what promises more tokens.
static void balance(struct round *r, struct depth_lane *lanes)
{
    double cut = 0, rest = 0;
    int deepest = 0;
    for (int i = 0; i < r->count; i++)
        if (!written(&r->window[i]) && lanes[i].drafts > deepest)
            deepest = lanes[i].drafts;
    for (int i = 0; i < r->count && deepest > 0; i++) {
        const struct depth_lane *l = &lanes[i];
        const bool copies = written(&r->window[i]);
        cut += expected(l->chance, !copies || l->fixed || l->drafts < deepest ? l->drafts : deepest);
        rest += expected(l->chance, copies || l->fixed ? l->drafts : 0);
    }
    for (int i = 0; i < r->count && deepest > 0; i++) {
        if (lanes[i].fixed)
            continue;
        if (written(&r->window[i]) && cut > rest && lanes[i].drafts > deepest)
            lanes[i].drafts = deepest;
        else if (!written(&r->window[i]) && rest >= cut)
            lanes[i].drafts = 0;
    }
}

// The program of a round in which nobody drafts: the head's rows are saved, and taken in together before the ring of a lane is full.
static const struct program *undrafted(const struct round *r)
{
    for (int i = 0; i < r->count; i++) {
        const struct lane *l = r->window[i].slot->lane;
        if (r->window[i].stream->follows && l->length + 1 - l->head_length > MAX_WINDOW)
            return model.round[0];
    }
    return model.saving_round;
}

static void plan(struct engine *e, struct round *r)
{
    struct depth_lane lanes[MAX_LANES];
    for (int i = 0; i < r->count; i++)
        lanes[i] = source(&r->window[i]);
    int most_rows = e->options.round_rows ? e->options.round_rows : MAX_LANES * MAX_WINDOW, deepest = 0;
    depth_plan(&e->depth, lanes, r->count, most_rows);
    balance(r, lanes);
    bool head = false;
    for (int i = 0; i < r->count; i++) {
        struct stream *s = r->window[i].stream;
        const bool quiet = s->options.drafts < 0 && lanes[i].drafts == 0 && depth_quiet(&e->depth, r->count);
        if (s->follows && (quiet || r->window[i].bound)) {
            // Drafting has not paid for long, or cannot be done any more: the head is left behind until the next turn.
            s->follows = false;
            r->window[i].slot->lane->head_length = INT32_MAX;
        }
        head = head || s->follows || lanes[i].drafts > 0;
        r->window[i].drafts = lanes[i].drafts;
        deepest = lanes[i].drafts > deepest ? lanes[i].drafts : deepest;
    }
    r->program = !head ? model.plain_round : deepest > 0 ? model.round[deepest] : undrafted(r);
}

// ---- one lane of a round -----------------------------------------------------------------------------------------------------

static int32_t forced(struct engine *e, int drafts)
{
    int accepted = 0;
    for (; accepted < drafts; accepted++) {
        e->force_state = e->force_state * 6364136223846793005ull + 1442695040888963407ull;
        if ((double)(e->force_state >> 40) >= e->force * (1 << 24))
            break;
    }
    return accepted + 1;
}

// Writes what the lane's window is. False when a page is missing, which admission rules out.
static bool prepare(struct engine *e, const struct round *r, struct window *w, struct error *error)
{
    struct lane *lane = w->slot->lane;
    struct constraint *c = w->stream->constraint;
    stream_history(w->stream);
    if (w->bound && !constraint_mask(c, &w->slot->masks, w->draft, &w->drafts, error))
        return false;
    lane->mask = w->bound ? w->slot->masks.device : NULL;
    lane->halt = c && !c->active && c->marker >= 0 ? c->marker + 1 : 0;
    lane->rows = w->drafts + 1;
    lane->drafts = w->drafts;
    lane->headless = w->drafts == 0 || written(w);
    lane->force = e->force >= 0 ? forced(e, w->drafts) : 0;
    int32_t *tokens = w->slot->tokens.host;
    for (int i = 0; written(w) && i < w->drafts; i++)
        tokens[lane->length + 1 + i] = w->bound ? w->draft[i] : tokens[w->place + i];
    if (written(w))
        engine_push_tokens(w->slot, lane->length + 1, w->drafts);
    // The head's chain is as long as the program's, whatever the lane asked for.
    int drafts = lane->headless ? w->drafts : r->program->drafts;
    return engine_map(e, w->slot, lane->length + drafts + 2, error);
}

// Takes a lane's new tokens; `first` row of the pass, `i` place in the result block.
static void deliver(struct engine *e, const struct window *w, int i, int first, double seconds, double now)
{
    struct stream *s = w->stream;
    struct lane *lane = w->slot->lane;
    const int32_t *result = engine_block(e)->result + i * (1 + MAX_WINDOW);
    const int count = result[0], accepted = count - 1;
    memcpy((int32_t *)w->slot->tokens.host + lane->length + 1 - count, result + 1, (size_t)count * sizeof *result);
    s->stamp = e->stamp;
    s->row_first = first;
    s->round_rows = count;
    s->round_from = stream_made(s) - count;
    s->served = e->counters.rounds;
    stream_keep_logprobs(s);
    double gap = now - s->last_round;
    s->last_round = now;
    s->counters.longest_gap = gap > s->counters.longest_gap ? gap : s->counters.longest_gap;
    s->counters.rounds++;
    s->counters.drafted += w->drafts;
    s->counters.accepted += accepted;
    s->counters.reply_tokens += count;
    s->counters.decode_seconds += seconds;
    e->counters.drafted += w->drafts;
    e->counters.accepted += accepted;
    e->counters.reply_tokens += count;
    if (w->bound) {
        for (int k = 0; k < w->drafts && k <= accepted; k++)
            s->guess_chance += COPY_WEIGHT * ((k < accepted) - s->guess_chance);
    } else if (w->place > 0) {
        s->counters.copied += w->drafts;
        s->counters.copies_accepted += accepted;
        e->counters.copied += w->drafts;
        e->counters.copies_accepted += accepted;
        for (int k = 0; k < w->drafts && k <= accepted; k++)
            s->copy_chance += COPY_WEIGHT * ((k < accepted) - s->copy_chance);
    } else {
        landing_learn(&s->landing, w->drafts, accepted, LANDING_WEIGHT);
        landing_learn(&e->depth.prior, w->drafts, accepted, PRIOR_WEIGHT);
    }
    struct error cause;
    if (s->constraint && !constraint_read(s->constraint, result + 1, count, &cause))
        stream_fail(s, &cause);
    else if (s->submitted)
        admission_finish(s);
}

// ---- the round ---------------------------------------------------------------------------------------------------------------

static bool run(struct engine *e, struct round *r, struct error *error)
{
    struct slot *slots[MAX_LANES] = {NULL};
    for (int i = 0; i < r->count; i++)
        slots[i] = r->window[i].slot;
    if (engine_run(e, r->program, slots, engine_lane_count(r->count), error))
        return true;
    // A program has one flag for all lanes: whose row it was is not known.
    struct error cause = error ? *error : e->cause;
    for (int i = 0; i < r->count; i++)
        stream_fail(r->window[i].stream, &cause);
    return false;
}

bool engine_round(struct engine *e, struct error *error)
{
    struct round r;
    struct error cause = {0};
    collect(e, &r);
    if (r.count == 0)
        return true; // a chunk in flight may go on meanwhile
    if (!engine_wait(e, error))
        return false;
    plan(e, &r);
    double start = engine_seconds();
    for (int i = 0; i < r.count; i++) {
        if (prepare(e, &r, &r.window[i], &cause))
            continue;
        stream_fail(r.window[i].stream, &cause);
        memmove(&r.window[i], &r.window[i + 1], (size_t)(--r.count - i) * sizeof r.window[0]);
        i--;
    }
    if (r.count == 0 || !run(e, &r, &cause)) {
        if (error)
            *error = cause;
        return false;
    }
    double now = engine_seconds(), seconds = now - start;
    int first = 0, drafts = 0, luckiest = 0;
    e->counters.rounds++;
    e->counters.lane_rounds += r.count;
    e->counters.decode_seconds += seconds;
    e->counters.last_round = now;
    e->owed = e->owed > seconds ? e->owed - seconds : 0;
    for (int i = 0; i < r.count; i++) {
        int accepted = engine_block(e)->result[i * (1 + MAX_WINDOW)] - 1;
        luckiest = accepted > luckiest ? accepted : luckiest;
        drafts += r.window[i].drafts;
        deliver(e, &r.window[i], i, first, seconds, now);
        first += r.window[i].drafts + 1;
    }
    if (r.program != model.plain_round)
        depth_learn(&e->depth, r.count, drafts, luckiest, seconds);
    return true;
}
