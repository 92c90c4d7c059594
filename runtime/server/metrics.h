// SPDX-License-Identifier: Apache-2.0
//
// What the server counts about its replies, for /metrics and /health. The engine counts rounds, tokens and pages itself.
// Invariant: a family that cannot be counted honestly is left out.

#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct outcome;
struct server;
struct exchange;

enum histogram_name {
    HISTOGRAM_LATENCY,
    HISTOGRAM_FIRST,
    HISTOGRAM_DECODE,
    HISTOGRAM_PROMPT,
    HISTOGRAM_TOKEN,
    HISTOGRAMS
};
enum { HISTOGRAM_STEPS = 16, METRICS_LABELS = 64 };
enum end_kind { END_STOP, END_LENGTH, END_CALLS, END_CANCELLED, END_FAILED, END_REFUSED, ENDS };

struct histogram {
    int64_t step[HISTOGRAM_STEPS + 1]; // the last one: longer than all bounds
    int64_t count;
    double sum;
};

// Requests by the name of their key.
struct label_count {
    char label[64];
    int64_t ends[ENDS];
};

struct metrics {
    pthread_mutex_t lock;
    int64_t ends[ENDS], disconnected;
    struct label_count labels[METRICS_LABELS]; // the last one: of all that came later
    int label_count;
    int64_t prompt_tokens, cached_tokens, reply_tokens, reasoning_tokens;
    struct histogram histogram[HISTOGRAMS];
};

void metrics_open(struct metrics *metrics);
void metrics_close(struct metrics *metrics);

// A reply is over, of a client known by `label`; end: "stop", "length", "tool_calls", "cancelled", "failed", "refused".
void metrics_reply(struct metrics *metrics, const char *label, const struct outcome *outcome, const char *end);
// A client went before its reply was out.
void metrics_disconnected(struct metrics *metrics);

void metrics_handle(struct exchange *exchange); // GET /metrics
void health_handle(struct exchange *exchange);  // GET /health
void memory_handle(struct exchange *exchange);  // GET /memory

#endif
