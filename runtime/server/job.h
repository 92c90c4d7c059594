// SPDX-License-Identifier: Apache-2.0
//
// What the engine thread is asked to do for one reply, whatever language the client speaks, and what has come of it so far.
//
// Who may touch what: the fields under "asked for" are constant from host_submit on. The engine thread writes those under
// "so far" with the lock held; anyone may read them with it. After a final stage the engine thread never touches the job again.

#ifndef SERVER_JOB_H
#define SERVER_JOB_H

#include "runtime/engine.h"
#include <pthread.h>
#include <stdatomic.h>

enum job_stage {
    JOB_QUEUED,   // not looked at by the engine yet
    JOB_ACCEPTED, // waits for a lane, is being read, or is in its reply
    // final
    JOB_FINISHED,  // at an end token, its limit or the context's end
    JOB_CANCELLED, // by job_cancel
    JOB_REFUSED,   // can never run: the client's to change
    JOB_FAILED,    // in a round or a chunk
    JOB_STUCK,     // its grammar could not be followed any further: the client's to change
    JOB_DEAD,      // the engine can serve no more
};

struct job {
    // asked for
    int32_t *ids; // the prompt [count]; owned
    int count;
    int reply;                 // most reply tokens, 1 or more
    struct sampling sampling;  // .bias points to bias
    struct token_bias *bias;   // owned, or NULL
    int logprobs;              // as in struct stream_options
    bool ignore_end;           // go on after end tokens
    struct grammar *grammar;   // that the reply must follow, held; or NULL
    const char *grammar_field; // of the request, which asked for it; static
    const char *grammar_after; // the text behind which it begins; NULL: at once. The server's
    bool no_drafts;            // one token a round; the tokens are the same
    bool background;           // steps aside for those that are not
    int *marks; // positions of the prompt where a state is worth keeping [mark_count], as in struct request; owned
    int mark_count;
    void (*changed)(
        void *user); // called by the engine thread, lock held, when something is new: must only wake somebody
    void *user;
    // so far
    pthread_mutex_t lock;
    enum job_stage stage;
    int made;                 // reply tokens in tokens
    int32_t *tokens;          // [reply]
    struct logprobs *chances; // [reply], or NULL when none are wanted
    struct stream_counters counters;
    double submitted, accepted, first, ended; // by engine_seconds; 0: not yet
    struct error cause;                       // of JOB_REFUSED, JOB_FAILED, JOB_STUCK, JOB_DEAD
    // anyone
    atomic_bool cancel;
    int base; // of its tokens, those that the prompt ends with already
    // the engine thread's own
    struct stream *stream;
    struct job *next;
    int taken;    // tokens taken from the stream
    int replayed; // of them, those made again after stepping aside: checked instead of kept
};

// A job with nothing asked for yet, greedy; NULL without memory.
struct job *job_new(void);
void job_free(struct job *job); // NULL is allowed; not before a final stage once it was submitted

// Makes room for the reply that is asked for. Call it once, before host_submit.
bool job_prepare(struct job *job, struct error *error);

static inline bool job_final(enum job_stage stage)
{
    return stage >= JOB_FINISHED;
}

#endif
