// SPDX-License-Identifier: Apache-2.0
//
// How many tokens to draft next: the depth with the most expected tokens a second, from measured acceptance and measured
// cost of a round of each depth. Zero when drafting does not pay. Changes speed only.

#ifndef DEPTH_H
#define DEPTH_H

#include <stdint.h>

enum { DEPTH_MAX = 15 };

struct depth {
    double landing[DEPTH_MAX];     // chance that draft i lands, given that those before it did
    double seconds[DEPTH_MAX + 1]; // of a round with i drafts; 0: not measured yet
    int64_t rounds;
    int most;
};

// most: the largest depth that the build has.
void depth_init(struct depth *depth, int most);

int depth_choose(struct depth *depth);

// After a round: how many drafts it had, how many were accepted, how long it took.
void depth_learn(struct depth *depth, int drafts, int accepted, double seconds);

#endif
