// SPDX-License-Identifier: Apache-2.0
//
// A queue of exchanges and the threads that serve it; see workers.h.

#include "runtime/server/workers.h"
#include "runtime/server/exchange_side.h"

#include <stdlib.h>
#include <string.h>

enum { WORKERS_MOST = 16 };

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct exchange *first, *last;
    bool stop;
    pthread_t thread[WORKERS_MOST];
    int count;
};

// Lock held.
static void append(struct workers *w, struct exchange *x)
{
    x->side->next = NULL;
    if (w->last)
        w->last->side->next = x;
    else
        w->first = x;
    w->last = x;
    pthread_cond_signal(&w->wake);
}

static struct exchange *take(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->stop)
        pthread_cond_wait(&w->wake, &w->lock);
    struct exchange *x = w->first;
    if (x) {
        w->first = x->side->next;
        w->last = w->first ? w->last : NULL;
    }
    pthread_mutex_unlock(&w->lock);
    return x;
}

static void *run(void *argument)
{
    struct workers *w = argument;
    struct tokenizer *tokenizer = NULL;
    struct error error;
    tokenizer_open(&tokenizer, &tokenizer_tables, &error); // server_open has checked that it can be
    for (struct exchange *x; (x = take(w));) {
        exchange_run(x, tokenizer);
        pthread_mutex_lock(&w->lock);
        const bool again = x->side->again;
        x->side->again = false;
        x->side->scheduled = again;
        if (again)
            append(w, x);
        pthread_mutex_unlock(&w->lock);
        if (!again)
            exchange_drop(x);
    }
    tokenizer_close(tokenizer);
    return NULL;
}

void workers_add(struct workers *w, struct exchange *x)
{
    pthread_mutex_lock(&w->lock);
    if (x->side->scheduled) {
        x->side->again = true;
    } else {
        x->side->scheduled = true;
        exchange_hold(x);
        append(w, x);
    }
    pthread_mutex_unlock(&w->lock);
}

bool workers_open(struct workers **out, int count, struct error *error)
{
    struct workers *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return error_set(error, "no memory for the server's threads");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    for (; w->count < count && w->count < WORKERS_MOST; w->count++) {
        int failed = pthread_create(&w->thread[w->count], NULL, run, w);
        if (failed) {
            workers_close(w);
            return error_set(error, "a thread of the server cannot be started: %s", strerror(failed));
        }
    }
    *out = w;
    return true;
}

void workers_close(struct workers *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->count; i++)
        pthread_join(w->thread[i], NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
