// SPDX-License-Identifier: Apache-2.0
//
// plan: the memory that this model takes for a context and a number of lanes, before anything loads. The parts are those that
// engine_open claims, computed by the same rules: pages of whole positions, a run of whole pages a lane, one arena.

#include "runtime/cli.h"
#include "runtime/pool.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_CONTEXT = 8192, DEFAULT_PAGE = 64, PAGE_ALIGN = 64, KINDS = 3 };

static const char *const kv_names[KINDS] = {"f32", "bf16", "fp8"};

struct plan {
    int kv, context, lanes, page, threads;
    int64_t page_bytes, kv_pages, run_pages; // pages: of all lanes
    int64_t kv_bytes, run_bytes;             // of all lanes
    int64_t scratch_bytes, tables_bytes;     // of the threads; page tables and token ids
    int64_t kept_bytes, process_bytes;       // a kept state a lane; the program itself, as it is resident now
    int64_t total, available;                // available: -1 when the system does not say
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

// MemAvailable of /proc/meminfo in bytes, or -1.
static int64_t memory_available(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    long long kilobytes = -1;
    while (file && kilobytes < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld", &kilobytes) != 1)
            kilobytes = -1;
    if (file)
        fclose(file);
    return kilobytes < 0 ? -1 : (int64_t)kilobytes * 1024;
}

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

static bool sizes(struct plan *p, const struct settings *s, struct error *error)
{
    int most = model.max_context < DEFAULT_CONTEXT ? model.max_context : DEFAULT_CONTEXT;
    p->context = s->context ? (int)s->context : most;
    p->lanes = (int)s->lanes;
    p->page = s->page ? (int)s->page : DEFAULT_PAGE;
    p->threads = s->threads ? (int)s->threads : pool_cores();
    if (p->context > model.max_context)
        return error_set(error, "--context: expected at most %d, the model's limit, found %d", model.max_context,
                         p->context);
    if (p->lanes > model.lanes)
        return error_set(error, "--lanes: expected at most %d, which this binary was built for, found %d", model.lanes,
                         p->lanes);
    if (p->page % 4 || p->page > 4096)
        return error_set(error, "--page: expected a multiple of 4 up to 4096, found %d", p->page);
    for (int i = 0; i < KINDS; i++)
        if (s->kv_cache && !strcmp(s->kv_cache, kv_names[i]))
            p->kv = i;
    return true;
}

static bool make_plan(struct plan *p, const struct settings *s, struct error *error)
{
    *p = (struct plan){0};
    if (!sizes(p, s, error))
        return false;
    int64_t bytes = p->page * model.position_bytes[p->kv];
    p->page_bytes = bytes ? ceil_div(bytes, PAGE_ALIGN) * PAGE_ALIGN : (int64_t)PAGE_ALIGN * p->page;
    p->kv_pages = p->lanes * (ceil_div(p->context + MAX_WINDOW, p->page) + 1);
    p->run_pages = p->lanes * ceil_div(model.run_bytes, p->page_bytes);
    p->kv_bytes = p->kv_pages * p->page_bytes;
    p->run_bytes = p->run_pages * p->page_bytes;
    p->scratch_bytes = (int64_t)p->threads * KERNEL_SCRATCH;
    p->tables_bytes = p->lanes * (((int64_t)p->context + MAX_WINDOW + 2) * 4 + (p->kv_pages / p->lanes) * 4);
    p->kept_bytes = p->lanes * model.run_bytes;
    p->process_bytes = process_resident();
    p->total = model.weight_bytes + model.arena_bytes + p->kv_bytes + p->run_bytes + p->scratch_bytes +
               p->tables_bytes + p->kept_bytes + p->process_bytes;
    p->available = memory_available();
    return true;
}

static void print_json(const struct plan *p)
{
    json_t *kv = json_object();
    for (int i = 0; i < KINDS; i++)
        json_object_set_new(kv, kv_names[i], json_integer(model.position_bytes[i]));
    json_t *root =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:o}", "name", model.name, "context", p->context, "lanes", p->lanes,
                  "page", p->page, "threads", p->threads, "kv_cache", kv_names[p->kv], "kv_bytes_a_token", kv);
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {
        {"weight_bytes", model.weight_bytes},
        {"table_bytes", model.table_bytes},
        {"arena_bytes", model.arena_bytes},
        {"run_bytes_a_lane", model.run_bytes},
        {"page_bytes", p->page_bytes},
        {"pages", p->kv_pages + p->run_pages},
        {"kv_bytes", p->kv_bytes},
        {"run_bytes", p->run_bytes},
        {"scratch_bytes", p->scratch_bytes},
        {"tables_bytes", p->tables_bytes},
        {"kept_bytes", p->kept_bytes},
        {"process_bytes", p->process_bytes},
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

static void print_text(const struct plan *p)
{
    char note[96], size[24], other[24];
    printf("%s: context %d, %d lane%s, pages of %d positions, kv cache %s, %d threads\n", model.name, p->context,
           p->lanes, p->lanes == 1 ? "" : "s", p->page, kv_names[p->kv], p->threads);
    row("weights", model.weight_bytes, "");
    row("arena", model.arena_bytes, "activations of every program");
    snprintf(note, sizeof note, "%lld pages of %lld B", (long long)p->kv_pages, (long long)p->page_bytes);
    row("kv cache", p->kv_bytes, note);
    snprintf(note, sizeof note, "%lld pages; state of a lane: %lld B", (long long)p->run_pages,
             (long long)model.run_bytes);
    row("recurrent states", p->run_bytes, note);
    row("scratch", p->scratch_bytes, "of the threads");
    row("tables", p->tables_bytes, "page tables and token ids");
    row("kept states", p->kept_bytes, "to go back to for the next turn");
    row("process", p->process_bytes, "code and libraries");
    row("total", p->total, "");
    printf("kv bytes a token:");
    for (int i = 0; i < KINDS; i++)
        printf(" %s %lld%s", kv_names[i], (long long)model.position_bytes[i], i + 1 < KINDS ? "," : "\n");
    if (model.table_bytes)
        printf("n-gram table: %s in the file, read by row, not in memory\n", cli_bytes(size, model.table_bytes));
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
    .synopsis = "[--context N] [--lanes N] [--kv-cache KIND] [--page N] [--threads N] [--json]",
    .summary = "memory plan for a context and a number of lanes; loads nothing",
    .flags = FLAG_BIT(FLAG_HELP) | FLAG_BIT(FLAG_CONTEXT) | FLAG_BIT(FLAG_LANES) | FLAG_BIT(FLAG_KV_CACHE) |
             FLAG_BIT(FLAG_PAGE) | FLAG_BIT(FLAG_THREADS) | FLAG_BIT(FLAG_JSON),
    .run = plan_run,
};
