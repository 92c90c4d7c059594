// SPDX-License-Identifier: Apache-2.0
//
// How many tokens to draft next: the windows with the most expected tokens a second, from measured acceptance of each stream
// and measured cost of a round by lanes and drafts. Zero when drafting does not pay. Changes speed only.

#ifndef DEPTH_H
#define DEPTH_H

#include "kernels/cpu/kernel.h"
#include <stdbool.h>
#include <stdint.h>

enum { DEPTH_MAX = MAX_WINDOW - 1 };

// Chance that draft i lands, given that those before it did.
struct landing {
    double chance[DEPTH_MAX];
};

void landing_init(struct landing *landing);
// After a round with drafts; weight: of this round, 0 to 1.
void landing_learn(struct landing *landing, int drafts, int accepted, double weight);

// What rounds cost and when to look again, by lanes in the round.
struct depth {
    int most;                                   // drafts that the build has
    double seconds[MAX_LANES + 1][MAX_WINDOW];  // of a round with d drafts a lane; 0: not measured
    uint8_t samples[MAX_LANES + 1][MAX_WINDOW]; // of seconds, the first few
    int64_t rounds[MAX_LANES + 1];              // planned
    int64_t probe[MAX_LANES + 1];               // round of the next look at another depth
    int64_t pause[MAX_LANES + 1];               // rounds between looks while drafting does not pay
    bool near[MAX_LANES + 1];                   // one draft was nearly worth its time at the last plan
    struct landing prior;                       // of all streams: where a new one begins
};

// One lane of a plan.
struct depth_lane {
    const double *chance; // [most]
    int most;             // drafts that it may have, 0 .. depth->most
    bool fixed;           // it gets exactly `most`
    int drafts;           // out
};

// most: the largest depth that the build has.
void depth_init(struct depth *depth, int most);

// Fills in the drafts of n lanes, 1 <= n <= MAX_LANES. row_limit: most rows of the round, at least n.
void depth_plan(struct depth *depth, struct depth_lane *lanes, int n, int row_limit);

// Whether drafts of the head are so far from worth their time that not even its cache needs to be kept up: by what all streams
// have shown (a new stream), and by what the rounds of n lanes have shown for long (one in its reply).
bool depth_hopeless(const struct depth *depth);
bool depth_quiet(const struct depth *depth, int n);

// After a round: lanes, drafts of all of them, how many the luckiest lane had accepted, how long it took.
void depth_learn(struct depth *depth, int lanes, int drafts, int accepted, double seconds);

#endif
