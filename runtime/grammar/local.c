// SPDX-License-Identifier: Apache-2.0
//
// Local places: sets of configurations above a hole, each with a number, and where each class of bytes leads from them.

#include "runtime/grammar/match.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { LOCAL_SLOTS = 2 * STATES_MOST, LOCAL_CONFIGS = GRAMMAR_CONFIGS };

static void free_masks(struct locals *l)
{
    for (int32_t i = 0; i < l->count; i++) {
        struct local_mask *m = l->at[i].mask;
        if (!m)
            continue;
        free(m->ids);
        free(m->words);
        free(m->exits);
        free(m);
    }
    l->mask_bytes = 0;
}

bool locals_open(struct grammar *g)
{
    struct locals *l = &g->locals;
    *l = (struct locals){.room = 16};
    l->at = calloc((size_t)l->room, sizeof *l->at);
    l->next = calloc((size_t)l->room * (size_t)g->classes, sizeof *l->next);
    l->slot = calloc(LOCAL_SLOTS, sizeof *l->slot);
    l->count = 1; // place 0 has no configurations: dead
    return l->at && l->next && l->slot && frames_open(&l->frames);
}

void locals_close(struct grammar *g)
{
    struct locals *l = &g->locals;
    free_masks(l);
    frames_close(&l->frames);
    free(l->at);
    free(l->configs);
    free(l->slot);
    free(l->next);
    *l = (struct locals){0};
}

void locals_trim(struct grammar *g)
{
    struct locals *l = &g->locals;
    const bool many = l->count > STATES_MOST / 2 || l->frames.count > FRAMES_MOST / 2 ||
                      l->count * (int64_t)g->classes * (int64_t)sizeof *l->next > TABLE_BYTES / 2;
    if (!many && l->mask_bytes <= MASK_BYTES)
        return;
    free_masks(l);
    l->count = 1;
    l->config_count = 0;
    l->frames.count = 2;
    memset(l->slot, 0, LOCAL_SLOTS * sizeof *l->slot);
    memset(l->frames.slot, 0, 2 * (size_t)l->frames.room * sizeof *l->frames.slot);
}

static int by_config(const void *a, const void *b)
{
    const struct grammar_config *x = a, *y = b;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    return (x->frame > y->frame) - (x->frame < y->frame);
}

static bool grow(struct grammar *g, int32_t configs)
{
    struct locals *l = &g->locals;
    if (l->count == STATES_MOST || (l->count + 1) * (int64_t)g->classes * (int64_t)sizeof *l->next > TABLE_BYTES)
        return grammar_fail(g, GRAMMAR_LARGE,
                            "the grammar is too ambiguous: one token leads to too many places; fewer alternatives are "
                            "needed, or such as part earlier");
    if (l->count == l->room) {
        const int32_t room = 2 * l->room;
        struct local *at = realloc(l->at, (size_t)room * sizeof *at);
        l->at = at ? at : l->at;
        int32_t *next = realloc(l->next, (size_t)room * (size_t)g->classes * sizeof *next);
        l->next = next ? next : l->next;
        if (!at || !next)
            return grammar_starve(g);
        l->room = room;
    }
    if (l->config_count + configs > l->config_room) {
        const int32_t room =
            2 * l->config_room > l->config_count + configs ? 2 * l->config_room : l->config_count + configs + 64;
        struct grammar_config *grown = realloc(l->configs, (size_t)room * sizeof *grown);
        if (!grown)
            return grammar_starve(g);
        l->configs = grown;
        l->config_room = room;
    }
    return true;
}

int32_t locals_find(struct grammar *g, struct grammar_config *configs, int32_t count)
{
    struct locals *l = &g->locals;
    int32_t kept = 0;
    if (count == 0)
        return 0;
    qsort(configs, (size_t)count, sizeof *configs, by_config);
    for (int32_t i = 1; i < count; i++) // counts that were made alike
        if (by_config(&configs[i], &configs[kept]))
            configs[++kept] = configs[i];
    count = kept + 1;
    const size_t bytes = (size_t)count * sizeof *configs;
    uint32_t at = (uint32_t)XXH3_64bits(configs, bytes) % LOCAL_SLOTS;
    for (; l->slot[at]; at = (at + 1) % LOCAL_SLOTS) {
        const struct local *p = &l->at[l->slot[at] - 1];
        if (p->count == count && !memcmp(l->configs + p->first, configs, bytes))
            return l->slot[at] - 1;
    }
    if (!grow(g, count))
        return -1;
    struct local *p = &l->at[l->count];
    *p = (struct local){.first = l->config_count, .count = count, .plain = -1};
    for (int32_t i = 0; i < count; i++)
        p->exits = p->exits || configs[i].node == CONFIG_EXIT;
    p->alone = p->exits && count == 1;
    memcpy(l->configs + p->first, configs, bytes);
    l->config_count += count;
    for (int32_t i = 0; i < g->classes; i++)
        l->next[l->count * (int64_t)g->classes + i] = -1;
    l->slot[at] = l->count + 1;
    return l->count++;
}

int32_t locals_step(struct grammar *g, int32_t local, int class)
{
    struct locals *l = &g->locals;
    const int64_t at = local * (int64_t)g->classes + class;
    if (l->next[at] >= 0)
        return l->next[at];
    struct grammar_config out[LOCAL_CONFIGS], from[LOCAL_CONFIGS];
    const struct local *p = &l->at[local];
    struct collect c;
    memcpy(from, l->configs + p->first, (size_t)p->count * sizeof *from);
    collect_begin(&c, g, &l->frames, out, LOCAL_CONFIGS);
    if (!collect_step(&c, from, p->count, g->byte_of[class]))
        return -1;
    const int32_t to = locals_find(g, out, c.count);
    if (to >= 0)
        l->next[at] = to;
    return to;
}

// Where every plain character leads, if that is one place and nothing is left on the way; else 0. -1: failed.
static int32_t plain_step(struct grammar *g, int32_t local)
{
    int32_t to = -1;
    for (int i = 0; i < g->plain_classes; i++) {
        const int32_t one = locals_step(g, local, g->plain_class[i]);
        if (one <= 0 || g->locals.at[one].exits || (to >= 0 && one != to))
            return one < 0 ? -1 : 0;
        to = one;
    }
    return to;
}

int locals_plain(struct grammar *g, int32_t local)
{
    int32_t chain[PLAIN_MOST + 1], to;
    int depth = 0, room = 0;
    for (; g->locals.at[local].plain < 0 && depth < PLAIN_MOST; local = to) {
        chain[depth++] = local;
        to = plain_step(g, local);
        if (to == local || to <= 0) {
            room = to == local ? PLAIN_MOST : 0;
            g->locals.at[local].plain = (int16_t)room;
            depth--;
            break;
        }
    }
    room = g->locals.at[local].plain;
    while (depth-- > 0) {
        room = room < PLAIN_MOST ? room + 1 : room;
        g->locals.at[chain[depth]].plain = (int16_t)room;
    }
    return room;
}
