// SPDX-License-Identifier: Apache-2.0
//
// The draft depth. See depth.h.

#include "runtime/depth.h"

static const double LANDING_WEIGHT = 0.1, SECONDS_WEIGHT = 0.2;
enum { PROBE_EVERY = 24 };

void depth_init(struct depth *depth, int most)
{
    *depth = (struct depth){.most = most < DEPTH_MAX ? most : DEPTH_MAX};
    for (int i = 0; i < DEPTH_MAX; i++)
        depth->landing[i] = i == 0 ? 0.8 : 0.75;
}

// Seconds of a round of k drafts, extrapolated along the measured ones: a round costs a fixed part and a part a draft.
static double cost(const struct depth *d, int k)
{
    if (d->seconds[k] > 0)
        return d->seconds[k];
    int below = -1, above = -1;
    for (int i = k - 1; i >= 0 && below < 0; i--)
        if (d->seconds[i] > 0)
            below = i;
    for (int i = k + 1; i <= d->most && above < 0; i++)
        if (d->seconds[i] > 0)
            above = i;
    if (below < 0 && above < 0)
        return 1 + 0.2 * k;
    if (below >= 0 && above >= 0)
        return d->seconds[below] + (d->seconds[above] - d->seconds[below]) * (k - below) / (above - below);
    int known = below >= 0 ? below : above;
    return d->seconds[known] * (1 + 0.2 * k) / (1 + 0.2 * known);
}

int depth_choose(struct depth *d)
{
    int best = 0;
    double best_rate = 0, tokens = 1, chance = 1;
    for (int k = 0; k <= d->most; k++) {
        if (k > 0) {
            chance *= d->landing[k - 1];
            tokens += chance;
        }
        double rate = tokens / cost(d, k);
        if (rate > best_rate) {
            best_rate = rate;
            best = k;
        }
    }
    // A look at a neighbour now and then keeps its cost and chance fresh; a depth of zero learns nothing by itself.
    if (d->rounds % PROBE_EVERY == PROBE_EVERY - 1) {
        int up = (d->rounds / PROBE_EVERY) % 2 == 0;
        best = up && best < d->most ? best + 1 : best > 0 ? best - 1 : best;
    }
    return best;
}

void depth_learn(struct depth *d, int drafts, int accepted, double seconds)
{
    d->rounds++;
    for (int i = 0; i < drafts && i <= accepted; i++)
        d->landing[i] += LANDING_WEIGHT * ((i < accepted) - d->landing[i]);
    double *s = &d->seconds[drafts];
    *s = *s > 0 ? *s + SECONDS_WEIGHT * (seconds - *s) : seconds;
}
