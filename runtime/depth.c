// SPDX-License-Identifier: Apache-2.0
//
// The draft depth. See depth.h.
//
// A round's cost is measured, never assumed: the first rounds of each lane count try no drafts, one, half of the most, and the most: kernels
// know certain numbers of rows, so a draft more may cost much and the ones behind it little. While
// drafting does not pay, one round in 64, then ever fewer, has a draft, so that a text that becomes predictable is noticed.

#include "runtime/depth.h"

enum { PROBE_EVERY = 24, QUIET_FIRST = 64, QUIET_MOST = 1024, QUIET_HOPEFUL = 8, QUIET_LONG = 256, SURE = 3 };
static const double MARGIN = 1.02, NEAR = 0.95; // what drafts must promise, times none; what is worth a closer look

void landing_init(struct landing *landing)
{
    for (int i = 0; i < DEPTH_MAX; i++)
        landing->chance[i] = i == 0 ? 0.8 : 0.75;
}

void landing_learn(struct landing *landing, int drafts, int accepted, double weight)
{
    for (int i = 0; i < drafts && i <= accepted; i++)
        landing->chance[i] += weight * ((i < accepted) - landing->chance[i]);
}

void depth_init(struct depth *depth, int most)
{
    *depth = (struct depth){.most = most < DEPTH_MAX ? most : DEPTH_MAX};
    landing_init(&depth->prior);
    for (int n = 0; n <= MAX_LANES; n++)
        depth->pause[n] = QUIET_FIRST;
}

// Seconds of a round of k drafts a lane, extrapolated along the measured ones: a round costs a fixed part and a part a draft.
static double cost(const struct depth *d, int n, int k)
{
    const double *seconds = d->seconds[n];
    if (seconds[k] > 0)
        return seconds[k];
    int below = -1, above = -1;
    for (int i = k - 1; i >= 0 && below < 0; i--)
        if (seconds[i] > 0)
            below = i;
    for (int i = k + 1; i <= d->most && above < 0; i++)
        if (seconds[i] > 0)
            above = i;
    if (below < 0 && above < 0)
        return 1 + 0.2 * k;
    if (below >= 0 && above >= 0)
        return seconds[below] + (seconds[above] - seconds[below]) * (k - below) / (above - below);
    int second = -1; // the line through the two highest that are known
    for (int i = below - 1; i >= 0 && second < 0; i--)
        if (seconds[i] > 0)
            second = i;
    if (second >= 0 && seconds[below] > seconds[second])
        return seconds[below] + (seconds[below] - seconds[second]) * (k - below) / (below - second);
    int known = below >= 0 ? below : above;
    return seconds[known] * (1 + 0.2 * k) / (1 + 0.2 * known);
}

static int lane_drafts(const struct depth_lane *lane, int k)
{
    return lane->fixed || lane->most < k ? lane->most : k;
}

static double expected(const struct depth_lane *lane, int drafts)
{
    double tokens = 1, chance = 1;
    for (int i = 0; i < drafts; i++)
        tokens += chance *= lane->chance[i];
    return tokens;
}

// Expected tokens a second when every lane drafts at most k.
static double rate(const struct depth *d, const struct depth_lane *lanes, int n, int k)
{
    double tokens = 0;
    int drafts = 0;
    for (int l = 0; l < n; l++) {
        tokens += expected(&lanes[l], lane_drafts(&lanes[l], k));
        drafts += lane_drafts(&lanes[l], k);
    }
    return tokens / cost(d, n, (drafts + n - 1) / n);
}

static int best_depth(const struct depth *d, const struct depth_lane *lanes, int n, int most)
{
    int best = 0;
    double none = rate(d, lanes, n, 0), best_rate = none * MARGIN;
    for (int k = 1; k <= most; k++) {
        double r = rate(d, lanes, n, k);
        if (r > best_rate) {
            best_rate = r;
            best = k;
        }
    }
    return best;
}

// The depth of this round, which now and then is another than the best, to keep costs and chances fresh.
static int look_around(struct depth *d, int n, int best, int most)
{
    int64_t round = d->rounds[n]++;
    const int try[] = {0, most > 0, (most + 1) / 2, most};
    for (int i = 0; i < 4 && round < 16; i++)
        if (d->samples[n][try[i]] < SURE)
            return try[i];
    if (round < d->probe[n])
        return best;
    d->probe[n] = round + (best > 0 ? PROBE_EVERY : d->pause[n]);
    if (best == 0) {
        d->pause[n] = d->pause[n] * 2 < QUIET_MOST ? d->pause[n] * 2 : QUIET_MOST;
        return most > 0;
    }
    d->pause[n] = QUIET_FIRST;
    switch (round / PROBE_EVERY % 3) {
    case 0:
        return best < most ? best + 1 : best;
    case 1:
        return best - 1;
    default:
        return round / PROBE_EVERY % 9 == 2 ? 0 : best;
    }
}

// Takes drafts away until the round has at most row_limit rows, the least likely first.
static void limit_rows(struct depth_lane *lanes, int n, int row_limit)
{
    int rows = 0;
    for (int l = 0; l < n; l++)
        rows += 1 + lanes[l].drafts;
    for (; rows > row_limit; rows--) {
        int worst = -1;
        double least = 2;
        for (int l = 0; l < n; l++) {
            double last = lanes[l].drafts > 0
                              ? expected(&lanes[l], lanes[l].drafts) - expected(&lanes[l], lanes[l].drafts - 1)
                              : 3;
            if (last < least) {
                least = last;
                worst = l;
            }
        }
        if (worst < 0)
            return;
        lanes[worst].drafts--;
    }
}

void depth_plan(struct depth *d, struct depth_lane *lanes, int n, int row_limit)
{
    int most = 0;
    bool free_lane = false;
    for (int l = 0; l < n; l++) {
        free_lane = free_lane || !lanes[l].fixed;
        if (!lanes[l].fixed && lanes[l].most > most)
            most = lanes[l].most;
    }
    d->near[n] = most > 0 && rate(d, lanes, n, 1) > NEAR * rate(d, lanes, n, 0);
    int k = free_lane ? look_around(d, n, best_depth(d, lanes, n, most), most) : 0;
    double round = cost(d, n, k), row = k > 0 ? (round - cost(d, n, 0)) / k / n : 0, all = rate(d, lanes, n, k);
    for (int l = 0; l < n; l++) {
        lanes[l].drafts = lane_drafts(&lanes[l], k);
        // Beside other lanes, a row that brings less than half of what its time brings elsewhere is left out.
        while (n > 1 && !lanes[l].fixed && lanes[l].drafts > 1 &&
               expected(&lanes[l], lanes[l].drafts) - expected(&lanes[l], lanes[l].drafts - 1) < 0.5 * row * all)
            lanes[l].drafts--;
    }
    limit_rows(lanes, n, row_limit);
}

bool depth_hopeless(const struct depth *d)
{
    int n = 0;
    for (int i = 1; i <= MAX_LANES; i++)
        n = d->rounds[i] > d->rounds[n] ? i : n;
    if (d->most < 1 || d->samples[n][0] < SURE || d->samples[n][1] < SURE)
        return false;
    const struct depth_lane lane = {.chance = d->prior.chance, .most = d->most};
    for (int k = 1; k <= d->most; k++)
        if (expected(&lane, k) / cost(d, n, k) > NEAR / cost(d, n, 0))
            return false;
    return true;
}

bool depth_quiet(const struct depth *d, int n)
{
    return d->pause[n] >= QUIET_LONG && !d->near[n];
}

void depth_learn(struct depth *d, int lanes, int drafts, int accepted, double seconds)
{
    int k = (drafts + lanes - 1) / lanes;
    double *s = &d->seconds[lanes][k];
    // Noise only ever makes a round longer: of the first times the shortest counts; later a shorter time counts more, and a much
    // longer one counts as a little longer.
    double seen = *s > 0 && seconds > 1.5 * *s ? 1.5 * *s : seconds;
    if (d->samples[lanes][k] < SURE) {
        d->samples[lanes][k]++;
        *s = *s > 0 && *s < seen ? *s : seen;
    } else {
        *s += (seen < *s ? 0.3 : 0.1) * (seen - *s);
    }
    if (accepted > 0 && d->near[lanes] && d->pause[lanes] > QUIET_HOPEFUL) {
        d->pause[lanes] = QUIET_HOPEFUL;
        if (d->probe[lanes] > d->rounds[lanes] + QUIET_HOPEFUL)
            d->probe[lanes] = d->rounds[lanes] + QUIET_HOPEFUL;
    }
}
