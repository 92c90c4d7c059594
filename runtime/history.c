// SPDX-License-Identifier: Apache-2.0
//
// Histories. See history.h.

#include "runtime/history.h"
#include "kernels/cpu/kernel.h"
#include <math.h>
#include <stdlib.h>

static bool wanted(const struct sampling *s)
{
    return s->presence != 0 || s->frequency != 0 || (s->repetition != 0 && s->repetition != 1) || s->bias_count > 0;
}

static struct penalties *list_of(const struct history *h)
{
    return h->list.host;
}

static struct penalised *tokens_of(const struct history *h)
{
    return (struct penalised *)(void *)(list_of(h) + 1);
}

bool history_check(const struct sampling *s, int vocabulary, struct error *error)
{
    if (!isfinite(s->presence) || !isfinite(s->frequency) || !isfinite(s->repetition) || s->repetition < 0)
        return error_set(error, "penalties must be numbers, and the repetition penalty not negative");
    if (s->bias_count < 0 || s->bias_count > BIAS_MOST)
        return error_set(error, "at most %d logit biases are expected, found %d", BIAS_MOST, s->bias_count);
    for (int i = 0; i < s->bias_count; i++) {
        if (s->bias[i].id < 0 || s->bias[i].id >= vocabulary || !isfinite(s->bias[i].bias))
            return error_set(error, "logit bias %d: an id below %d and a number are expected, found %d and %g", i,
                             vocabulary, s->bias[i].id, (double)s->bias[i].bias);
        for (int k = 0; k < i; k++)
            if (s->bias[k].id == s->bias[i].id)
                return error_set(error, "logit bias %d: id %d is there twice", i, s->bias[i].id);
    }
    return true;
}

// ---- a lane's memory ---------------------------------------------------------------------------------------------------------

// Entries of the longest list: ids are distinct.
static int64_t most_entries(int vocabulary, int positions)
{
    const int64_t most = (int64_t)positions + MAX_WINDOW + BIAS_MOST;
    return most < vocabulary ? most : vocabulary;
}

static int64_t list_bytes(int vocabulary, int positions)
{
    return (int64_t)sizeof(struct penalties) + most_entries(vocabulary, positions) * (int64_t)sizeof(struct penalised);
}

static int64_t kept_bytes(int64_t room)
{
    return device_apart ? MAX_WINDOW * room * (int64_t)sizeof(float) : 0;
}

// Of `where`, which is the host's.
static int64_t where_bytes(int vocabulary)
{
    return device_apart ? 0 : vocabulary * (int64_t)sizeof(int32_t);
}

int64_t history_bytes(int vocabulary, int positions)
{
    return list_bytes(vocabulary, positions) + kept_bytes(most_entries(vocabulary, positions) + MAX_WINDOW) +
           where_bytes(vocabulary);
}

int64_t history_claimed(const struct history *h, int vocabulary)
{
    return h->list.bytes + kept_bytes(h->room) + where_bytes(vocabulary);
}

bool history_open(struct history *h, int vocabulary, int positions, struct error *error)
{
    *h = (struct history){.room = most_entries(vocabulary, positions) + MAX_WINDOW};
    h->where = calloc((size_t)vocabulary, sizeof *h->where);
    if (!h->where)
        return error_set(error, "no memory for the penalties of a lane");
    if (!mirror_open(&h->list, list_bytes(vocabulary, positions), "the penalties of a lane", error))
        return false;
    if (device_apart)
        h->kept = device_alloc(kept_bytes(h->room), "what penalties change", error);
    return h->kept || !device_apart;
}

void history_close(struct history *h)
{
    free(h->where);
    if (h->kept)
        device_free(h->kept, kept_bytes(h->room));
    if (h->list.host)
        mirror_close(&h->list);
    *h = (struct history){0};
}

// ---- a stream ----------------------------------------------------------------------------------------------------------------

// Takes entries off the list until `left` are there.
static void cut(struct history *h, int32_t left)
{
    struct penalties *p = list_of(h);
    for (; p->count > left; p->count--)
        h->where[tokens_of(h)[p->count - 1].id] = 0;
}

void history_begin(struct history *h, const struct sampling *s)
{
    struct penalties *p = list_of(h);
    cut(h, 0);
    h->on = wanted(s);
    h->upto = 0;
    h->biases = s->bias_count;
    *p = (struct penalties){.presence = s->presence,
                            .frequency = s->frequency,
                            .repetition = s->repetition != 0 ? s->repetition : 1,
                            .count = s->bias_count,
                            .kept = h->kept,
                            .room = h->room};
    for (int i = 0; i < s->bias_count; i++) {
        h->where[s->bias[i].id] = i + 1;
        tokens_of(h)[i] = (struct penalised){.id = s->bias[i].id, .bias = s->bias[i].bias};
    }
}

void history_reset(struct history *h)
{
    h->upto = 0;
    cut(h, h->biases);
    for (int i = 0; i < h->biases; i++)
        tokens_of(h)[i].count = tokens_of(h)[i].seen = 0;
}

void history_add(struct history *h, const int32_t *tokens, int upto, int reply_from)
{
    struct penalties *p = list_of(h);
    if (!h->on)
        return;
    for (; h->upto < upto; h->upto++) {
        const int32_t id = tokens[h->upto];
        if (!h->where[id]) {
            tokens_of(h)[p->count] = (struct penalised){.id = id};
            h->where[id] = ++p->count;
        }
        struct penalised *t = &tokens_of(h)[h->where[id] - 1];
        t->seen = 1;
        t->count += h->upto >= reply_from;
    }
    mirror_push(&h->list, 0, (int64_t)sizeof *p + p->count * (int64_t)sizeof tokens_of(h)[0]);
}
