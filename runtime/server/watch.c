// SPDX-License-Identifier: Apache-2.0
//
// epoll over the sockets of all connections, for hang-ups alone; see watch.h. libmicrohttpd is told of a farewell only by a new
// edge, and misses one that came together with the last bytes: such a connection is shut down here.

#include "runtime/server/watch.h"
#include "runtime/server/exchange.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64, SWEEP_MS = 250 };
static const double HUNG_SECONDS = 1;

struct link {
    int socket; // -1: free
    uint32_t generation;
    bool hung;       // the client sends no more
    double deadline; // 0: none
    struct exchange *exchange;
};

struct watch {
    pthread_mutex_t lock;
    pthread_t thread;
    int poll, stop; // descriptors
    bool running;
    atomic_bool *large;
    int first_free;                       // no free link has a lower number
    struct exchange *visited[LINKS_MOST]; // of the thread
    struct link link[LINKS_MOST];
};

static uint64_t key(const struct watch *w, int i)
{
    return (uint64_t)w->link[i].generation << 32 | (uint32_t)i;
}

// Lock held. Wants to know, once, when the client hangs up; at once when it has.
static void arm(struct watch *w, int i, int how)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = key(w, i)};
    epoll_ctl(w->poll, how, w->link[i].socket, &event);
}

// Lock held. A request that is not whole when its client hangs up never will be.
static void set_deadline(struct link *link, double seconds)
{
    if (link->hung && (seconds <= 0 || seconds > HUNG_SECONDS))
        seconds = HUNG_SECONDS;
    link->deadline = seconds > 0 ? engine_seconds() + seconds : 0;
}

static void hang_up(struct watch *w, uint64_t which)
{
    const uint32_t i = (uint32_t)which;
    struct exchange *x = NULL;
    pthread_mutex_lock(&w->lock);
    if (i < LINKS_MOST && w->link[i].socket >= 0 && key(w, (int)i) == which) {
        x = w->link[i].exchange;
        w->link[i].hung = true;
        if (x)
            exchange_hold(x);
        else
            set_deadline(&w->link[i], HUNG_SECONDS);
    }
    pthread_mutex_unlock(&w->lock);
    if (!x)
        return;
    exchange_gone(x);
    exchange_drop(x);
}

// The thread of the connections sees a socket that was shut down, and closes it. Exchanges are visited without the lock: theirs
// is taken before it elsewhere.
static void sweep(struct watch *w)
{
    const double now = engine_seconds();
    int count = 0;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < LINKS_MOST; i++) {
        if (w->link[i].socket >= 0 && w->link[i].deadline > 0 && now > w->link[i].deadline) {
            w->link[i].deadline = 0;
            shutdown(w->link[i].socket, SHUT_RDWR);
        }
        if (w->link[i].exchange) {
            exchange_hold(w->link[i].exchange);
            w->visited[count++] = w->link[i].exchange;
        }
    }
    pthread_mutex_unlock(&w->lock);
    while (count) {
        exchange_quiet(w->visited[--count]);
        exchange_drop(w->visited[count]);
    }
#ifdef __GLIBC__
    if (atomic_exchange(w->large, false))
        malloc_trim(0); // a worker's heap else keeps all that it ever took
#endif
}

static void *run(void *argument)
{
    struct watch *w = argument;
    struct epoll_event events[EVENTS];
    double swept = engine_seconds();
    for (;;) {
        int count = epoll_wait(w->poll, events, EVENTS, SWEEP_MS);
        for (int i = 0; i < count; i++) {
            if (events[i].data.u64 == UINT64_MAX)
                return NULL;
            hang_up(w, events[i].data.u64);
        }
        if (engine_seconds() - swept >= SWEEP_MS / 1000.0) {
            sweep(w);
            swept = engine_seconds();
        }
    }
}

bool watch_open(struct watch **out, atomic_bool *large, struct error *error)
{
    struct watch *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return error_set(error, "no memory for the connections");
    for (int i = 0; i < LINKS_MOST; i++)
        w->link[i].socket = -1;
    w->large = large;
    pthread_mutex_init(&w->lock, NULL);
    w->poll = epoll_create1(EPOLL_CLOEXEC);
    w->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    if (w->poll < 0 || w->stop < 0 || epoll_ctl(w->poll, EPOLL_CTL_ADD, w->stop, &event)) {
        error_set(error, "connections cannot be watched: %s", strerror(errno));
        watch_close(w);
        return false;
    }
    int failed = pthread_create(&w->thread, NULL, run, w);
    if (failed) {
        error_set(error, "a thread of the server cannot be started: %s", strerror(failed));
        watch_close(w);
        return false;
    }
    w->running = true;
    *out = w;
    return true;
}

void watch_close(struct watch *w)
{
    const uint64_t one = 1;
    if (!w)
        return;
    if (w->running && write(w->stop, &one, sizeof one) == sizeof one)
        pthread_join(w->thread, NULL);
    if (w->poll >= 0)
        close(w->poll);
    if (w->stop >= 0)
        close(w->stop);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

int watch_open_link(struct watch *w, int socket)
{
    int i;
    pthread_mutex_lock(&w->lock);
    for (i = w->first_free; i < LINKS_MOST && w->link[i].socket >= 0; i++)
        ;
    if (i < LINKS_MOST)
        w->link[i] = (struct link){.socket = socket, .generation = w->link[i].generation + 1};
    if (i < LINKS_MOST)
        arm(w, i, EPOLL_CTL_ADD);
    w->first_free = i;
    pthread_mutex_unlock(&w->lock);
    return i < LINKS_MOST ? i : -1;
}

void watch_close_link(struct watch *w, int i)
{
    watch_end(w, i);
    pthread_mutex_lock(&w->lock);
    epoll_ctl(w->poll, EPOLL_CTL_DEL, w->link[i].socket, NULL);
    w->link[i].socket = -1;
    w->link[i].generation++;
    if (i < w->first_free)
        w->first_free = i;
    pthread_mutex_unlock(&w->lock);
}

void watch_begin(struct watch *w, int i, struct exchange *x)
{
    exchange_hold(x);
    pthread_mutex_lock(&w->lock);
    struct link *link = &w->link[i];
    link->exchange = x;
    link->deadline = 0;
    arm(w, i, EPOLL_CTL_MOD);
    pthread_mutex_unlock(&w->lock);
}

void watch_end(struct watch *w, int i)
{
    pthread_mutex_lock(&w->lock);
    struct exchange *x = w->link[i].exchange;
    w->link[i].exchange = NULL;
    w->link[i].generation++; // what is still on its way is of the exchange that was
    arm(w, i, EPOLL_CTL_MOD);
    pthread_mutex_unlock(&w->lock);
    if (x)
        exchange_drop(x);
}

void watch_deadline(struct watch *w, int i, double seconds)
{
    pthread_mutex_lock(&w->lock);
    set_deadline(&w->link[i], seconds);
    pthread_mutex_unlock(&w->lock);
}

void watch_cut(struct watch *w)
{
    for (int i = 0; i < LINKS_MOST; i++) {
        pthread_mutex_lock(&w->lock);
        struct exchange *x = w->link[i].exchange;
        if (x)
            exchange_hold(x);
        if (w->link[i].socket >= 0)
            shutdown(w->link[i].socket, SHUT_RDWR);
        pthread_mutex_unlock(&w->lock);
        if (x) {
            exchange_gone(x);
            exchange_drop(x);
        }
    }
}
