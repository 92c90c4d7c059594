// SPDX-License-Identifier: Apache-2.0
//
// Red controls of what identifies a lane: the same scene is right as it is, and wrong when graphs are keyed without lanes and their
// tables, or when the lanes of a group read through one table. The faults are compiled into this program's copies of
// graphs/store.c and runtime/engine_run.c. The wrong key comes last: it may write where no lane was meant to, and a process that it
// stops has found it.

#include "graphs/store.h"
#include "tests/contract/contract.h"
#include <signal.h>
#include <string.h>
#include <unistd.h>

extern int engine_test_shared_table;

struct outcome {
    bool opened;
    int wrong;
    int64_t replayed;
    char detail[256];
};

// Different prompts on every lane, drafted in turn, with graphs.
static struct outcome play(int context, const struct scene_prompt *prompts, int count, const struct scene_reply *right)
{
    struct scene_part parts[SCENE_PARTS];
    struct outcome o = {0};
    struct engine *e;
    struct error error = {0};
    struct engine_counters c = {0};
    const struct engine_options options = {.threads = 2,
                                           .quiet = true,
                                           .context = context,
                                           .lanes = model.lanes,
                                           .page = 16,
                                           .page_order = "shuffled",
                                           .synthetic = !model.has_weights};
    for (int i = 0; i < model.lanes; i++)
        parts[i] = (struct scene_part){
            .prompt = (7 * i + 5) % count, .drafts = i % 3, .arrives = i, .way = (enum way)(i % WAYS)};
    o.opened = engine_open(&e, &options, &error);
    if (!o.opened) {
        snprintf(o.detail, sizeof o.detail, "%.200s", error.text);
        return o;
    }
    o.wrong = scene_play(e, parts, model.lanes, prompts, right, o.detail);
    engine_counters(e, &c);
    o.replayed = c.graphs_replayed;
    engine_close(e);
    return o;
}

#define WRONG_KEY "red: graphs keyed without lanes and tables are found"

static void stopped(int signal)
{
    (void)signal;
    contract_ok(true, WRONG_KEY, "");
    _exit(contract_done());
}

void contract_faults(int context, const struct scene_prompt *prompts, int count, const struct scene_reply *right)
{
    char name[160];
    struct outcome o = play(context, prompts, count, right);
    snprintf(name, sizeof name, "%s: %d lanes come one after the other, %lld graphs replayed: each is alone",
             model.name, model.lanes, (long long)o.replayed);
    contract_ok(o.opened && o.wrong == 0 && o.replayed > 0, name, o.detail);
    engine_test_shared_table = 1;
    o = play(context, prompts, count, right);
    engine_test_shared_table = 0;
    contract_ok(o.opened && o.wrong > 0, "red: lanes of a group that share a table are found", o.detail);
    graph_test_ignore_tables = 1;
    signal(SIGSEGV, stopped);
    signal(SIGBUS, stopped);
    signal(SIGABRT, stopped);
    o = play(context, prompts, count, right);
    graph_test_ignore_tables = 0;
    contract_ok(o.opened && o.wrong > 0, WRONG_KEY, o.detail);
}
