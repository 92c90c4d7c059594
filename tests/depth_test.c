// SPDX-License-Identifier: Apache-2.0
//
// The depth controller against rounds of known cost and streams of known acceptance, with noise: where drafts never land it
// must settle on none, where they do it must come close to the best fixed depth, and it must follow a change of the text.

#include "runtime/depth.h"
#include <stdio.h>
#include <string.h>

enum { MOST = 5, STEPS = 8 };

static int tests, failures;
static uint64_t state = 1;

static void ok(bool good, const char *name, double value)
{
    tests++;
    failures += !good;
    printf("%s %d - %s (%.3f)\n", good ? "ok" : "not ok", tests, name, value);
}

static double random_unit(void)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(state >> 40) / (1 << 24);
}

// What a round takes: a fixed part, a part a draft of the deepest lane, a part a row, and what else comes with the deepest lane's drafts;
// now and then something else ran. most: drafts at most.
struct machine {
    double draft, row;
    int most;
    double more[STEPS];
};

static double round_seconds(const struct machine *m, const struct depth_lane *lanes, int n)
{
    int deepest = 0, rows = 0;
    for (int l = 0; l < n; l++) {
        deepest = lanes[l].drafts > deepest ? lanes[l].drafts : deepest;
        rows += lanes[l].drafts + 1;
    }
    double noise = 1 + 0.1 * random_unit() + (random_unit() < 0.02 ? 4 * random_unit() : 0);
    return (1 + m->draft * deepest + m->row * (rows - 1) + m->more[deepest]) * noise;
}

// Tokens a second of n lanes over `rounds` rounds; fixed < 0: the controller decides.
static double speed(struct depth *d, const struct machine *m, int n, double acceptance, int fixed, int rounds)
{
    struct landing landing[MAX_LANES];
    double tokens = 0, seconds = 0;
    for (int l = 0; l < n; l++)
        landing[l] = d->prior;
    for (int r = 0; r < rounds; r++) {
        struct depth_lane lanes[MAX_LANES] = {0};
        int drafts = 0, luckiest = 0;
        for (int l = 0; l < n; l++)
            lanes[l] = (struct depth_lane){
                .chance = landing[l].chance, .most = fixed < 0 ? m->most : fixed, .fixed = fixed >= 0};
        depth_plan(d, lanes, n, MAX_LANES * MAX_WINDOW);
        double took = round_seconds(m, lanes, n);
        for (int l = 0; l < n; l++) {
            int accepted = 0;
            while (accepted < lanes[l].drafts && random_unit() < acceptance)
                accepted++;
            landing_learn(&landing[l], lanes[l].drafts, accepted, 0.1);
            landing_learn(&d->prior, lanes[l].drafts, accepted, 0.05);
            tokens += accepted + 1;
            drafts += lanes[l].drafts;
            luckiest = accepted > luckiest ? accepted : luckiest;
        }
        depth_learn(d, n, drafts, luckiest, took);
        seconds += took;
    }
    return tokens / seconds;
}

static double best_fixed(const struct machine *m, int n, double acceptance)
{
    double best = 0;
    for (int k = 0; k <= m->most; k++) {
        struct depth scratch;
        depth_init(&scratch, m->most);
        double s = speed(&scratch, m, n, acceptance, k, 4000);
        best = s > best ? s : best;
    }
    return best;
}

int main(void)
{
    // A large model on a GPU: rows are cheap. A small one on a CPU: each draft costs a third of a round, or more than one. Kernels that
    // know four rows and eight: a fifth row costs as much as three more behind it.
    static const struct machine machines[] = {{0.04, 0.03, MOST, {0}},
                                              {0.2, 0.15, MOST, {0}},
                                              {0.8, 0.6, MOST, {0}},
                                              {0, 0, 7, {0, 0.27, 0.51, 0.66, 1.03, 1.22, 1.41, 1.51}}};
    static const double chances[] = {0, 0.3, 0.6, 0.8, 0.95};
    char name[120];
    for (int m = 0; m < 4; m++)
        for (int n = 1; n <= 4; n *= 2)
            for (int c = 0; c < 5; c++) {
                struct depth d;
                depth_init(&d, machines[m].most);
                double own = 0;
                for (int i = 0; i < 10; i++) // ten streams, one after the other
                    own += speed(&d, &machines[m], n, chances[c], -1, 400) / 10;
                double best = best_fixed(&machines[m], n, chances[c]);
                snprintf(name, sizeof name, "machine %d, %d lanes, acceptance %.2f: close to the best depth", m, n,
                         chances[c]);
                ok(own >= (chances[c] > 0 ? 0.93 : 0.97) * best, name, own / best);
            }
    double first = 0;
    struct depth d;
    for (int i = 0; i < 40; i++) {
        depth_init(&d, machines[3].most);
        first += speed(&d, &machines[3], 1, 0.9, -1, 300) / 40;
    }
    first /= best_fixed(&machines[3], 1, 0.9);
    ok(first > 0.96, "the first reply is not held back by a draft that costs much before ones that cost little", first);
    depth_init(&d, MOST);
    speed(&d, &machines[0], 1, 0, -1, 3000);
    speed(&d, &machines[0], 1, 0.9, -1, 1500); // the text became predictable
    double after = speed(&d, &machines[0], 1, 0.9, -1, 2000), best = best_fixed(&machines[0], 1, 0.9);
    ok(after > 0.9 * best, "a text that becomes predictable is noticed", after / best);
    speed(&d, &machines[1], 1, 0, -1, 500);
    after = speed(&d, &machines[1], 1, 0, -1, 2000);
    best = best_fixed(&machines[1], 1, 0);
    ok(after > 0.97 * best, "and one that ceases to be", after / best);
    printf("1..%d\n", tests);
    return failures != 0;
}
