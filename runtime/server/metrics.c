// SPDX-License-Identifier: Apache-2.0
//
// Counting replies; see metrics.h. status.c prints.

#include "runtime/server/metrics.h"
#include "runtime/server/exchange.h"

#include <stdio.h>
#include <string.h>

const double metrics_bounds[HISTOGRAM_STEPS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                0.5,   1,      2.5,   5,    10,    30,   100, 300};

const char *const metrics_ends[ENDS] = {"stop", "length", "tool_calls", "cancelled", "failed", "refused"};

void metrics_open(struct metrics *m)
{
    *m = (struct metrics){0};
    pthread_mutex_init(&m->lock, NULL);
}

void metrics_close(struct metrics *m)
{
    pthread_mutex_destroy(&m->lock);
}

static void observe(struct histogram *h, double seconds)
{
    int step = 0;
    while (step < HISTOGRAM_STEPS && seconds > metrics_bounds[step])
        step++;
    h->step[step]++;
    h->count++;
    h->sum += seconds;
}

static struct label_count *find(struct metrics *m, const char *label)
{
    for (int i = 0; i < m->label_count; i++)
        if (!strcmp(m->labels[i].label, label))
            return &m->labels[i];
    if (m->label_count == METRICS_LABELS)
        return &m->labels[METRICS_LABELS - 1];
    struct label_count *l = &m->labels[m->label_count++];
    snprintf(l->label, sizeof l->label, "%s", m->label_count == METRICS_LABELS ? "others" : label);
    return l;
}

void metrics_reply(struct metrics *m, const char *label, const struct outcome *o, const char *end)
{
    int kind = 0;
    while (kind < ENDS - 1 && strcmp(metrics_ends[kind], end))
        kind++;
    pthread_mutex_lock(&m->lock);
    m->ends[kind]++;
    find(m, label)->ends[kind]++;
    m->prompt_tokens += kind == END_REFUSED ? 0 : o->prompt_tokens;
    m->cached_tokens += o->cached_tokens;
    m->reply_tokens += o->reply_tokens;
    m->reasoning_tokens += o->reasoning_tokens;
    if (kind <= END_CALLS) {
        observe(&m->histogram[HISTOGRAM_LATENCY], o->total);
        observe(&m->histogram[HISTOGRAM_FIRST], o->first);
        observe(&m->histogram[HISTOGRAM_DECODE], o->decode);
        observe(&m->histogram[HISTOGRAM_PROMPT], o->prompt);
        if (o->reply_tokens > 1)
            observe(&m->histogram[HISTOGRAM_TOKEN], o->decode / (o->reply_tokens - 1));
    }
    pthread_mutex_unlock(&m->lock);
}

void metrics_disconnected(struct metrics *m)
{
    pthread_mutex_lock(&m->lock);
    m->disconnected++;
    pthread_mutex_unlock(&m->lock);
}
