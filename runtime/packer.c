// SPDX-License-Identifier: Apache-2.0
//
// packer PLAN OUT: makes a pack from a checkpoint, as the plan of gen/pack.lua says. Exit code 2 and one line when anything
// is wrong; then OUT is what it was before.

#include "runtime/packer.h"

#include <time.h>
#include <unistd.h>

struct progress {
    bool terminal, shown;
    double next_time;
    int64_t next_bytes, total;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// A line a second on a terminal, a line a gigabyte elsewhere.
static void show_progress(struct progress *p, int64_t done)
{
    if (p->terminal ? now() < p->next_time : done < p->next_bytes)
        return;
    fprintf(stderr, "%spacking weights: %.1f of %.1f GB%s", p->terminal ? "\r" : "", (double)done * 1e-9,
            (double)p->total * 1e-9, p->terminal ? "" : "\n");
    p->next_time = now() + 1;
    p->next_bytes = done + 1000000000;
    p->shown = true;
}

static bool pack_items(const struct plan *plan, struct output *out, struct error *error)
{
    struct progress p = {.terminal = isatty(2), .next_time = now() + 1, .next_bytes = 1000000000};
    p.total = (int64_t)(plan->shape.weight_bytes + plan->shape.table_bytes);
    bool ok = true;
    for (int section = PACK_RESIDENT; ok && section <= PACK_TABLE; section++) {
        if (section == PACK_TABLE)
            for (int64_t i = 0; ok && i < plan->item_count; i++)
                if (plan->items[i].entry.section == PACK_TABLE)
                    ok = item_pack_globals(plan, &plan->items[i], out, error);
        for (int64_t i = 0; ok && i < plan->item_count; i++) {
            if (plan->items[i].entry.section != section)
                continue;
            ok = item_pack(plan, &plan->items[i], out, error);
            show_progress(&p, output_done(out));
        }
    }
    if (p.shown && p.terminal)
        fprintf(stderr, "\n");
    return ok;
}

int main(int argc, char **argv)
{
    struct error error = {0};
    struct plan plan;
    struct output *out = NULL;
    if (argc != 3) {
        fprintf(stderr, "usage: packer PLAN OUT\n");
        return 2;
    }
    bool ok = plan_read(&plan, argv[1], &error);
    if (ok) {
        ok = plan_open_files(&plan, &error) && output_begin(&out, argv[2], &plan.shape, &error);
        if (ok && !pack_items(&plan, out, &error)) {
            output_drop(out);
            ok = false;
        } else if (ok)
            ok = output_end(out, &error);
        plan_free(&plan);
    }
    if (!ok)
        fprintf(stderr, "packer: %s\n", error.text);
    return ok ? 0 : 2;
}
