// SPDX-License-Identifier: Apache-2.0
//
// The engine thread: the only one that calls the engine. Jobs come in through a mailbox, what became of them goes back into
// the jobs. Its turn: cancels and new jobs, engine_turn, delivery. With nothing to do it sleeps on a condition.
// Invariants: a job reaches exactly one final stage; a stream is closed in the turn that its job ends; jobs of the background
// are handed to the engine only while no other waits, and step aside when one does.

#ifndef SERVER_HOST_H
#define SERVER_HOST_H

#include "runtime/server/job.h"

struct host;

// What the other threads may see of the engine, as it was after the last turn.
struct host_view {
    struct engine_counters engine;
    int running;                    // jobs that are not final
    int background;                 // of them, held back for others
    double reply_rate, prompt_rate; // tokens a second, of late
    int64_t replays;                // jobs of the background that stepped aside
    double beat;                    // when the thread last came by
    bool busy;                      // it had work then
    bool dead;                      // the engine can serve no more
    char cause[512];                // why
};

// Starts the thread; the engine is its own from here to host_close.
bool host_open(struct host **out, struct engine *engine, struct error *error);
// Ends every job that is left as cancelled, and the thread. The engine is the caller's again.
void host_close(struct host *host);

// Hands a prepared job in. It is final at once (JOB_DEAD) when the engine is.
void host_submit(struct host *host, struct job *job);

// Asks for a job's end: it becomes JOB_CANCELLED before the next chunk or round, unless it ends otherwise first.
// The caller knows that the job is not freed meanwhile.
void host_cancel(struct host *host, struct job *job);

void host_look(struct host *host, struct host_view *view);

// For what is done while nobody waits (warm turns). `idle` is called with the engine, in the engine thread, after turns without
// any work, with the time at which work was last seen; it returns when it wants to be called next (engine_seconds), 0: when
// something has changed. It returns soon, and leaves no stream open that holds a lane. NULL ends it.
void host_on_idle(struct host *host, double (*idle)(void *user, struct engine *engine, double since), void *user);

#endif
