// SPDX-License-Identifier: Apache-2.0
//
// Histories. See history.h.

#include "runtime/history.h"
#include "kernels/cpu/kernel.h"
#include <math.h>
#include <stdlib.h>

bool history_wanted(const struct sampling *s)
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

static bool check(const struct sampling *s, int vocabulary, struct error *error)
{
    if (!isfinite(s->presence) || !isfinite(s->frequency) || !isfinite(s->repetition) || s->repetition < 0)
        return error_set(error, "penalties must be numbers, and the repetition penalty not negative");
    for (int i = 0; i < s->bias_count; i++)
        if (s->bias[i].id < 0 || s->bias[i].id >= vocabulary || !isfinite(s->bias[i].bias))
            return error_set(error, "logit bias %d: an id below %d and a number are expected, found %d and %g", i,
                             vocabulary, s->bias[i].id, (double)s->bias[i].bias);
    return true;
}

// Memory of the target for `rows` rows of old values.
static bool open_kept(struct history *h, int rows, struct error *error)
{
    struct penalties *p = list_of(h);
    h->kept_bytes = rows * p->room * (int64_t)sizeof(float);
    if (rows == 0)
        return true;
    p->kept = device_alloc(h->kept_bytes, "the penalties of a stream", error);
    return p->kept != NULL;
}

bool history_open(struct history *h, const struct sampling *s, int vocabulary, int positions, int rows,
                  struct error *error)
{
    *h = (struct history){.biases = s->bias_count};
    if (!check(s, vocabulary, error))
        return false;
    int64_t most = positions + MAX_WINDOW < vocabulary ? positions + MAX_WINDOW : vocabulary;
    h->where = calloc((size_t)vocabulary, sizeof *h->where);
    if (!h->where)
        return error_set(error, "no memory for the penalties of a stream");
    if (!mirror_open(&h->list,
                     (int64_t)sizeof(struct penalties) + (most + s->bias_count) * (int64_t)sizeof(struct penalised),
                     "the penalties of a stream", error)) {
        history_close(h);
        return false;
    }
    struct penalties *p = list_of(h);
    *p = (struct penalties){.presence = s->presence,
                            .frequency = s->frequency,
                            .repetition = s->repetition != 0 ? s->repetition : 1,
                            .count = s->bias_count,
                            .room = most + s->bias_count + MAX_WINDOW};
    if (!open_kept(h, rows, error)) {
        history_close(h);
        return false;
    }
    for (int i = 0; i < s->bias_count; i++) {
        if (h->where[s->bias[i].id]) {
            error_set(error, "logit bias %d: id %d is there twice", i, s->bias[i].id);
            history_close(h);
            return false;
        }
        h->where[s->bias[i].id] = i + 1;
        tokens_of(h)[i] = (struct penalised){.id = s->bias[i].id, .bias = s->bias[i].bias};
    }
    return true;
}

void history_close(struct history *h)
{
    free(h->where);
    if (h->list.host) {
        device_free(list_of(h)->kept, h->kept_bytes);
        mirror_close(&h->list);
    }
    *h = (struct history){0};
}

void history_reset(struct history *h)
{
    struct penalties *p = list_of(h);
    h->upto = 0;
    if (!p)
        return;
    for (; p->count > h->biases; p->count--)
        h->where[tokens_of(h)[p->count - 1].id] = 0;
    for (int i = 0; i < h->biases; i++)
        tokens_of(h)[i].count = tokens_of(h)[i].seen = 0;
}

void history_add(struct history *h, const int32_t *tokens, int upto, int reply_from)
{
    struct penalties *p = list_of(h);
    if (!p)
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
