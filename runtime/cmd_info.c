// SPDX-License-Identifier: Apache-2.0
//
// info: what was built: family, shapes, encodings, programs, and for one token's round the kernels and the bytes they move.
// Loads nothing; everything is read from the tables that the generator wrote.

#include "graphs/exec.h"
#include "kernels/cpu/isa.h"
#include "runtime/cli.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GROUPS = 64 };

static const char *const encoding_names[ENC_COUNT] = {"f32",   "bf16",      "f16", "affine", "nvfp4",
                                                      "mxfp8", "fp8_block", "fp8", "int4"};

// A sum over rows that share a name.
struct group {
    char name[48];
    int64_t count, bytes, flops;
};

struct groups {
    struct group group[MAX_GROUPS];
    int count;
};

static void groups_add(struct groups *groups, const char *name, int64_t bytes, int64_t flops)
{
    int i = 0;
    while (i < groups->count && strcmp(groups->group[i].name, name))
        i++;
    if (i == MAX_GROUPS)
        return;
    if (i == groups->count)
        snprintf(groups->group[groups->count++].name, sizeof groups->group[i].name, "%s", name);
    groups->group[i].count++;
    groups->group[i].bytes += bytes;
    groups->group[i].flops += flops;
}

static void group_entries(struct groups *groups)
{
    for (int i = 0; i < model.entry_count; i++) {
        const struct pack_entry *e = &model.entries[i];
        char name[48];
        const char *base = e->encoding >= 0 && e->encoding < ENC_COUNT ? encoding_names[e->encoding] : "unknown";
        if (e->encoding == ENC_AFFINE || e->encoding == ENC_INT4)
            snprintf(name, sizeof name, "%s %d bits, group %d", base, e->bits, e->group);
        else
            snprintf(name, sizeof name, "%s", base);
        if (e->section == PACK_TABLE)
            snprintf(name + strlen(name), sizeof name - strlen(name), " (table, in the file)");
        groups_add(groups, name, e->bytes, 0);
    }
}

static const struct program *one_token(void)
{
    return model.plain_round ? model.plain_round : model.program_count ? model.programs[0] : NULL;
}

static void group_ops(struct groups *groups, const struct program *program)
{
    for (int i = 0; program && i < program->launches; i++)
        groups_add(groups, program->ops[i].op, program->ops[i].bytes, program->ops[i].flops);
}

// ---- JSON -----------------------------------------------------------------------------------------------------------

static json_t *groups_json(const struct groups *groups, bool flops)
{
    json_t *array = json_array();
    for (int i = 0; i < groups->count; i++) {
        const struct group *g = &groups->group[i];
        json_t *row =
            json_pack("{s:s, s:I, s:I}", "name", g->name, "count", (json_int_t)g->count, "bytes", (json_int_t)g->bytes);
        if (flops)
            json_object_set_new(row, "flops", json_integer(g->flops));
        json_array_append_new(array, row);
    }
    return array;
}

// Numbers of rows that a GPU's decode kernels are made for.
static const int fixed_rows[] = {1, 2, 4, 8};

static json_t *fixed_json(void)
{
    json_t *fixed = json_object();
    for (size_t i = 0; i < sizeof fixed_rows / sizeof *fixed_rows; i++) {
        char rows[8];
        snprintf(rows, sizeof rows, "%d", fixed_rows[i]);
        if (exec_fixed_kernels(fixed_rows[i]))
            json_object_set_new(fixed, rows, json_integer(exec_fixed_kernels(fixed_rows[i])));
    }
    return fixed;
}

static json_t *programs_json(void)
{
    json_t *array = json_array();
    for (int i = 0; i < model.program_count; i++) {
        const struct program *p = model.programs[i];
        json_array_append_new(array, json_pack("{s:s, s:i, s:i, s:i, s:I, s:I}", "name", p->name, "rows", p->rows,
                                               "drafts", p->drafts, "launches", p->launches, "bytes",
                                               (json_int_t)p->bytes, "flops", (json_int_t)p->flops));
    }
    return array;
}

static void print_json(const struct groups *encodings, const struct groups *ops, const char *isa)
{
    char identity[24];
    snprintf(identity, sizeof identity, "%016llx", (unsigned long long)model.identity);
    json_t *facts = json_object();
    for (int i = 0; i < model.fact_count; i++)
        json_object_set_new(facts, model.facts[i].name, json_string(model.facts[i].value));
    json_t *ends = json_array();
    for (int i = 0; i < model.end_count; i++)
        json_array_append_new(ends, json_integer(model.end_tokens[i]));
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:b, s:o, s:o}", "name", model.name, "family",
                  model.family, "checkpoint", model.checkpoint, "command", model.command, "identity", identity, "isa",
                  isa, "vocabulary", model.vocabulary, "width", model.width, "layers", model.layers, "max_context",
                  model.max_context, "draft_head", model.has_head, "end_tokens", ends, "facts", facts);
    json_object_set_new(root, "weight_bytes", json_integer(model.weight_bytes));
    json_object_set_new(root, "table_bytes", json_integer(model.table_bytes));
    json_object_set_new(root, "arena_bytes", json_integer(model.arena_bytes));
    json_object_set_new(root, "run_bytes", json_integer(model.run_bytes));
    json_object_set_new(root, "encodings", groups_json(encodings, false));
    json_object_set_new(root, "kernels", groups_json(ops, true));
    json_object_set_new(root, "programs", programs_json());
    json_object_set_new(root, "fixed_kernels", fixed_json());
    json_dumpf(root, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(root);
}

// ---- text -----------------------------------------------------------------------------------------------------------

static void print_groups(const struct groups *groups)
{
    char size[24];
    for (int i = 0; i < groups->count; i++)
        printf("  %-34s %5lld  %10s\n", groups->group[i].name, (long long)groups->group[i].count,
               cli_bytes(size, groups->group[i].bytes));
}

static void print_text(const struct groups *encodings, const struct groups *ops, const char *isa)
{
    char a[24], b[24], c[24], d[24];
    printf("%s: %s, %s\nbuilt by: %s\nidentity: %016llx\n", model.name, model.family, model.checkpoint, model.command,
           (unsigned long long)model.identity);
    for (int i = 0; i < model.fact_count; i++)
        printf("  %-34s %s\n", model.facts[i].name, model.facts[i].value);
    printf("  %-34s", "end tokens");
    for (int i = 0; i < model.end_count; i++)
        printf(" %d", model.end_tokens[i]);
    printf("\nkernels on this machine: %s (available:", isa);
    for (int i = 0; i < ISA_COUNT; i++)
        if (isa_available(isa_names[i]))
            printf(" %s", isa_names[i]);
    printf(")\nweights: %s in memory, %s in tables that stay in the file; arena %s, state %s a lane\n",
           cli_bytes(a, model.weight_bytes), cli_bytes(b, model.table_bytes), cli_bytes(c, model.arena_bytes),
           cli_bytes(d, model.run_bytes));
    print_groups(encodings);
    const struct program *program = one_token();
    if (program)
        printf("a token (%s): %d kernels, %s, %.3f GFLOP\n", program->name, program->launches,
               cli_bytes(a, program->bytes), (double)program->flops * 1e-9);
    print_groups(ops);
    for (size_t i = 0; i < sizeof fixed_rows / sizeof *fixed_rows; i++)
        if (exec_fixed_kernels(fixed_rows[i]))
            printf("decode kernels made for these shapes, rows %d: %d\n", fixed_rows[i],
                   exec_fixed_kernels(fixed_rows[i]));
    printf("programs:\n  %-16s %6s %7s %9s %12s %10s\n", "name", "rows", "drafts", "launches", "bytes", "GFLOP");
    for (int i = 0; i < model.program_count; i++) {
        const struct program *p = model.programs[i];
        printf("  %-16s %6d %7d %9d %12s %10.3f\n", p->name, p->rows, p->drafts, p->launches, cli_bytes(a, p->bytes),
               (double)p->flops * 1e-9);
    }
}

static int info_run(const struct settings *settings, struct error *error)
{
    struct groups *groups = calloc(2, sizeof *groups);
    if (!groups) {
        error_set(error, "no memory");
        return EXIT_BAD;
    }
    group_entries(&groups[0]);
    group_ops(&groups[1], one_token());
    (settings->json ? print_json : print_text)(&groups[0], &groups[1], cli_isa(settings));
    free(groups);
    return 0;
}

const struct command command_info = {
    .name = "info",
    .synopsis = "[--json]",
    .summary = "what was built: family, shapes, encodings, kernels and bytes a token, programs",
    .flags = FLAG_BIT(FLAG_HELP) | FLAG_BIT(FLAG_JSON) | FLAG_BIT(FLAG_ISA),
    .run = info_run,
};
