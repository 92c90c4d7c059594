// SPDX-License-Identifier: Apache-2.0
//
// Part of tests/cuda_emulation.h: launches as programmatic dependent launch may have them at the worst. With EMULATED_LAUNCH=early what a
// block does before pdl_wait() finds device memory as it was before the launch before this one, but for what a block of that one had stored
// behind a fence when it let this one begin. So a read that should be behind the wait gives other bits, as does a missing fence. And the
// first blocks may store nothing before the wait, since others may still read what was there; EMULATED_LAUNCH=reads leaves that out, for
// kernels of prompt rows that know who reads (wide_rows.cu). Red control: with EMULATED_FENCES=lost no fence counts.
//
// Invariant: what the host copies, fills or waits for is seen by everything that is launched after it.

#ifndef CUDA_EMULATION_EARLY_H
#define CUDA_EMULATION_EARLY_H

enum { EARLY_PIECES = 4096, EARLY_STALE = 1 << 18, EARLY_STEP = 256 };

// Device memory, and for each piece of it what the next launch finds before its wait (where `known`), and what was there at this launch.
struct emulated_piece {
    unsigned char *at, *base, *now;
    size_t bytes;
};
struct emulated_stale {
    unsigned char *at, *base;
    size_t bytes;
};
static struct {
    struct emulated_piece piece[EARLY_PIECES];
    struct emulated_stale stale[EARLY_STALE];
    int count, stale_count;
    bool known, wanted, asked, stores, unfenced;
    bool released, late; // of the blocks that run: they may go on; some block let the next launch begin behind its wait
} early;

static bool early_wanted(void)
{
    if (!early.asked) { // the environment does not change
        const char *launch = getenv("EMULATED_LAUNCH"), *fences = getenv("EMULATED_FENCES");
        early.unfenced = fences && strcmp(fences, "lost") == 0;
        early.stores = launch && strcmp(launch, "reads") == 0; // are allowed
        early.wanted = early.stores || (launch && strcmp(launch, "early") == 0);
        early.asked = true;
    }
    return early.wanted;
}

// The host has waited.
static void early_settle(void)
{
    early.known = false;
}

static void early_add(void *at, size_t bytes)
{
    early_settle();
    if (!early_wanted())
        return;
    if (early.count == EARLY_PIECES)
        exit(printf("Bail out! too many pieces of memory\n"));
    early.piece[early.count++] = {(unsigned char *)at, (unsigned char *)malloc(bytes), (unsigned char *)malloc(bytes),
                                  bytes};
}

static void early_drop(void *at)
{
    early_settle();
    for (int i = 0; i < early.count; i++)
        if (early.piece[i].at == at) {
            free(early.piece[i].base);
            free(early.piece[i].now);
            early.piece[i] = early.piece[--early.count];
            return;
        }
}

// What of memory is not as it is found before the wait.
static void early_compare(void)
{
    early.stale_count = 0;
    for (int i = 0; early.known && i < early.count; i++) {
        const struct emulated_piece *p = &early.piece[i];
        for (size_t at = 0; at < p->bytes; at += EARLY_STEP) {
            const size_t n = p->bytes - at < EARLY_STEP ? p->bytes - at : EARLY_STEP;
            if (memcmp(p->at + at, p->base + at, n) == 0)
                continue;
            if (early.stale_count == EARLY_STALE)
                exit(printf("Bail out! a launch has written too much\n"));
            early.stale[early.stale_count++] = {p->at + at, p->base + at, n};
        }
    }
}

// Exchanges memory with what is found before the wait.
static void early_swap(void)
{
    unsigned char held[EARLY_STEP];
    for (int i = 0; i < early.stale_count; i++) {
        const struct emulated_stale *s = &early.stale[i];
        memcpy(held, s->at, s->bytes);
        memcpy(s->at, s->base, s->bytes);
        memcpy(s->base, held, s->bytes);
    }
}

static void early_keep(void)
{
    for (int i = 0; i < early.count; i++)
        memcpy(early.piece[i].now, early.piece[i].at, early.piece[i].bytes);
}

// Whether memory is what it was at this launch, as far as it has to be.
static bool early_same(void)
{
    bool same = true;
    for (int i = 0; same && !early.stores && i < early.count; i++)
        same = memcmp(early.piece[i].now, early.piece[i].at, early.piece[i].bytes) == 0;
    return same;
}

// Around a launch.
static void early_begin(void)
{
    early.late = false;
    if (!early_wanted())
        return;
    early_compare();
    early_keep();
}
static void early_end(void)
{
    if (!early_wanted() ||
        (early.known && !early.late)) // all began the next one before their wait: it may run beside what is older
        return;
    for (int i = 0; i < early.count; i++) {
        unsigned char *base = early.piece[i].base;
        early.piece[i].base = early.piece[i].now;
        early.piece[i].now = base;
    }
    early.known = true;
}

#endif
