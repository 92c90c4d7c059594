// SPDX-License-Identifier: Apache-2.0
//
// plan: the memory that this model takes for a context and a number of lanes, before anything loads; no weight is read.
// The sizes are those that engine_open claims: both come from memory_plan_make.

#include "runtime/cli.h"
#include "runtime/device.h"
#include "runtime/memory_plan.h"
#include "runtime/pool.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

// What a run adds to the process: the tokenizer's tables, a reply's text, counters; and for each launch of a kept graph its
// arguments.
enum { OWN_BYTES = 1 << 20, LAUNCH_BYTES = 512 };

struct plan {
    struct memory_plan memory;
    int threads;
    int64_t process_bytes;    // the program itself, as it is resident now, and what a run adds to it
    int64_t embedded_bytes;   // tables inside the binary, which opening it reads
    int64_t total, available; // available: -1 when the system does not say
};

static const char *const part_names[RUN_PARTS] = {"recurrent", "tails", "windows", "streams", "alignment"};

// Resident bytes of this process: code, libraries and their data, since nothing is loaded yet.
static int64_t process_resident(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long long size = 0, resident = 0;
    if (file && fscanf(file, "%lld %lld", &size, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

static bool make_plan(struct plan *p, const struct settings *s, struct error *error)
{
    *p = (struct plan){.threads = s->threads ? (int)s->threads : pool_cores()};
    const struct memory_request request = {
        .context = (int)s->context,
        .lanes = (int)s->lanes,
        .page = (int)s->page,
        .pool_pages = (int)s->pool_pages,
        .threads = p->threads,
        .kv_cache = s->kv_cache,
        .cache_bytes = settings_given(s, FLAG_CACHE_GIB) ? (int64_t)(s->cache_gib * (1 << 30)) : 0};
    if (!memory_plan_make(&p->memory, &request, error))
        return false;
    int64_t run = 0;
    for (int i = 0; i < RUN_PARTS; i++)
        run += model.run_parts[i];
    if (run != model.run_bytes)
        return error_set(error, "the parts of a lane's state add up to %lld bytes, expected %lld: build again",
                         (long long)run, (long long)model.run_bytes);
    p->process_bytes = process_resident() + OWN_BYTES;
    for (int i = 0; i < model.program_count; i++)
        p->process_bytes += (int64_t)model.programs[i]->launches * LAUNCH_BYTES;
    p->embedded_bytes = embedded_pack ? model.table_bytes : 0;
    p->total = p->memory.total + p->process_bytes + p->embedded_bytes;
    p->available = device_free_bytes();
    return true;
}

// The convolution tails as checkpoints count them, in bf16; kept here in fp32.
static int64_t bf16_tails(void)
{
    return model.run_parts[RUN_TAILS] / 2;
}

static json_t *state_json(void)
{
    json_t *state = json_object();
    for (int i = 0; i < RUN_PARTS; i++)
        json_object_set_new(state, part_names[i], json_integer(model.run_parts[i]));
    json_object_set_new(state, "recurrent_layers", json_integer(model.recurrent_layers));
    json_object_set_new(state, "tails_in_bf16", json_integer(bf16_tails()));
    return state;
}

static void print_json(const struct plan *p)
{
    const struct memory_plan *m = &p->memory;
    json_t *kv = json_object();
    for (int i = 0; i < KV_KINDS; i++)
        json_object_set_new(kv, kv_kinds[i], json_integer(model.position_bytes[i]));
    json_t *root = json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:o, s:o}", "name", model.name, "context", m->context,
                             "lanes", m->lanes, "page", m->page, "threads", p->threads, "kv_cache",
                             kv_kinds[m->kv_encoding], "kv_bytes_a_token", kv, "state_bytes_a_lane", state_json());
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {
        {"weight_bytes", model.weight_bytes},
        {"table_bytes", model.table_bytes},
        {"arena_bytes", model.arena_bytes},
        {"run_bytes_a_lane", model.run_bytes},
        {"page_bytes", m->page_bytes},
        {"pages", m->pages},
        {"whole_pages", m->whole_pages},
        {"run_pages_a_lane", m->run_pages},
        {"kv_bytes", m->kv_bytes},
        {"run_bytes", m->run_bytes},
        {"cache_bytes", m->cache_bytes},
        {"scratch_bytes", m->scratch_bytes},
        {"tables_bytes", m->tables_bytes},
        {"kept_bytes", m->kept_bytes},
        {"keep_bytes", m->keep_bytes},
        {"draw_bytes", m->draw_bytes},
        {"process_bytes", p->process_bytes + p->embedded_bytes},
        {"total_bytes", p->total},
        {"available_bytes", p->available},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        json_object_set_new(root, rows[i].name, json_integer(rows[i].value));
    json_object_set_new(root, "fits", p->available < 0 ? json_null() : json_boolean(p->total <= p->available));
    json_dumpf(root, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(root);
}

static void row(const char *name, int64_t bytes, const char *note)
{
    char size[24];
    printf("  %-22s %10s  %15lld B  %s\n", name, cli_bytes(size, bytes), (long long)bytes, note);
}

// A lane's state part by part; the parts add up to what is allocated for it.
static void print_state(void)
{
    char note[96] = "";
    printf("state of a lane, whatever its length:\n");
    if (model.recurrent_layers)
        snprintf(note, sizeof note, "fp32, %d layers of %lld B", model.recurrent_layers,
                 (long long)(model.run_parts[RUN_RECURRENT] / model.recurrent_layers));
    row("recurrent state", model.run_parts[RUN_RECURRENT], note);
    snprintf(note, sizeof note, "rows of convolutions, fp32; in bf16 %lld B", (long long)bf16_tails());
    row("convolution tails", model.run_parts[RUN_TAILS], note);
    snprintf(note, sizeof note, "the last %d rows a layer, to go back to when drafts are refused", MAX_WINDOW);
    row("window rows", model.run_parts[RUN_WINDOWS], note);
    row("saved streams", model.run_parts[RUN_STREAMS], "rows that the draft head has yet to read");
    row("alignment", model.run_parts[RUN_ALIGNMENT], "");
    row("sum", model.run_bytes, "");
}

static void print_kv(const struct plan *p)
{
    printf("kv bytes a token:\n");
    for (int i = 0; i < KV_KINDS; i++) {
        const char *note = memory_kv_note(i);
        char mark[16];
        snprintf(mark, sizeof mark, "%s%s", kv_kinds[i], i == p->memory.kv_encoding ? " *" : "");
        row(mark, model.position_bytes[i], note ? note : "exact");
    }
}

static void print_text(const struct plan *p)
{
    const struct memory_plan *m = &p->memory;
    char note[96], size[24], other[24];
    printf("%s: context %d, %d lane%s, pages of %d positions, kv cache %s, %d thread%s\n", model.name, m->context,
           m->lanes, plural(m->lanes), m->page, kv_kinds[m->kv_encoding], p->threads, plural(p->threads));
    row("weights", model.weight_bytes, "");
    row("arena", model.arena_bytes, "activations of every program");
    snprintf(note, sizeof note, "%lld pages of %lld B%s", (long long)(m->kv_bytes / m->page_bytes),
             (long long)m->page_bytes, m->pages < m->whole_pages ? "; streams may wait for pages" : "");
    row("kv cache", m->kv_bytes, note);
    snprintf(note, sizeof note, "%lld pages; a lane's state takes %lld B", (long long)(m->run_bytes / m->page_bytes),
             (long long)model.run_bytes);
    row("states", m->run_bytes, note);
    snprintf(note, sizeof note, "%u pages of kept prompt states", m->cache_pages);
    if (m->cache_pages)
        row("prompt cache", m->cache_bytes, note);
    if (m->keep_bytes)
        row("states on their way", m->keep_bytes, "that a prompt keeps in the middle of a pass");
    row("scratch", m->scratch_bytes, "of the threads");
    row("tables", m->tables_bytes, "page tables and token ids");
    row("kept states", m->kept_bytes, "to go back to for the next turn; serve has none");
    snprintf(note, sizeof note, "penalties, logit bias: %s a lane, grammars: %s", cli_bytes(size, m->history_bytes),
             cli_bytes(other, m->mask_bytes));
    row("draws", m->draw_bytes, note);
    row("process", p->process_bytes, "code, libraries, tokenizer, graphs");
    if (p->embedded_bytes)
        row("tables in the binary", p->embedded_bytes, "n-gram rows");
    row("total", p->total, "resident when running");
    if (model.table_bytes && !p->embedded_bytes)
        row("n-gram table", model.table_bytes, "in the file, read by row, not in memory");
    print_state();
    print_kv(p);
    if (p->available < 0)
        printf("memory available: unknown\n");
    else
        printf("memory available: %s; the plan %s (%s)\n", cli_bytes(size, p->available),
               p->total <= p->available ? "fits" : "does not fit", cli_bytes(other, p->total));
}

static int plan_run(const struct settings *settings, struct error *error)
{
    struct plan plan;
    if (!make_plan(&plan, settings, error))
        return EXIT_BAD;
    (settings->json ? print_json : print_text)(&plan);
    return 0;
}

const struct command command_plan = {
    .name = "plan",
    .synopsis = "[--context N] [--lanes N] [--kv-cache KIND] [--page N] [--pool-pages N] [--prompt-cache-gib G] "
                "[--threads N] [--json]",
    .summary = "memory plan for a context and a number of lanes; loads nothing",
    .flags = FLAG_BIT(FLAG_HELP) | FLAG_BIT(FLAG_CONTEXT) | FLAG_BIT(FLAG_LANES) | FLAG_BIT(FLAG_KV_CACHE) |
             FLAG_BIT(FLAG_PAGE) | FLAG_BIT(FLAG_POOL_PAGES) | FLAG_BIT(FLAG_THREADS) | FLAG_BIT(FLAG_CACHE_GIB) |
             FLAG_BIT(FLAG_JSON),
    .run = plan_run,
};
