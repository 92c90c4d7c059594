// SPDX-License-Identifier: Apache-2.0
//
// Making and freeing jobs.

#include "runtime/server/job.h"
#include "runtime/grammar/grammar.h"

#include <stdlib.h>

struct job *job_new(void)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    pthread_mutex_init(&job->lock, NULL);
    job->sampling.top_p = 1;
    return job;
}

void job_free(struct job *job)
{
    if (!job)
        return;
    pthread_mutex_destroy(&job->lock);
    free(job->ids);
    free(job->bias);
    free(job->marks);
    free(job->tokens);
    free(job->chances);
    grammar_release(job->grammar);
    free(job);
}

bool job_prepare(struct job *job, struct error *error)
{
    job->sampling.bias = job->bias;
    job->tokens = malloc((size_t)job->reply * sizeof *job->tokens);
    if (job->logprobs)
        job->chances = malloc((size_t)job->reply * sizeof *job->chances);
    if (!job->tokens || (job->logprobs && !job->chances))
        return error_set(error, "no memory for a reply of %d tokens", job->reply);
    return true;
}
