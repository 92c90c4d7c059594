// SPDX-License-Identifier: Apache-2.0
//
// The table of flags and the parser over it. Invariant: no other place reads a number from the command line.

#include "runtime/options.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// KIND_TEXTS: can be given several times. KIND_INTEGERS, KIND_REALS: separated by commas. KIND_RANGES: also A-B, ascending.
// KIND_AUTO: a whole number, or "auto" for 0.
enum kind {
    KIND_SWITCH,
    KIND_TEXT,
    KIND_TEXTS,
    KIND_CHOICE,
    KIND_UNSIGNED,
    KIND_INTEGER, // this one and those below have a range
    KIND_INTEGERS,
    KIND_RANGES,
    KIND_REALS,
    KIND_AUTO,
    KIND_REAL
};

struct flag_row {
    const char *name, *other; // other: a second spelling, or NULL
    enum kind kind;
    size_t offset; // in struct settings
    const char *value, *help;
    double least, most;  // of numbers, both allowed; least of a text: bytes that it needs
    const char *choices; // of KIND_CHOICE, separated by |
};

#define AT(member) offsetof(struct settings, member)
#define SWITCH(name, member, help)                                                                                     \
    {                                                                                                                  \
        name, NULL, KIND_SWITCH, AT(member), NULL, help, 0, 0, NULL                                                    \
    }
#define TEXT(name, other, member, v, help)                                                                             \
    {                                                                                                                  \
        name, other, KIND_TEXT, AT(member), v, help, 0, 0, NULL                                                        \
    }
#define NAMED(name, other, member, v, help) /* a text that names a file or the like */                                 \
    {                                                                                                                  \
        name, other, KIND_TEXT, AT(member), v, help, 1, 0, NULL                                                        \
    }
#define CHOICE(name, member, choices, help)                                                                            \
    {                                                                                                                  \
        name, NULL, KIND_CHOICE, AT(member), choices, help, 0, 0, choices                                              \
    }
#define INTEGER(name, member, v, least, most, help)                                                                    \
    {                                                                                                                  \
        name, NULL, KIND_INTEGER, AT(member), v, help, least, most, NULL                                               \
    }
#define REAL(name, member, v, least, most, help)                                                                       \
    {                                                                                                                  \
        name, NULL, KIND_REAL, AT(member), v, help, least, most, NULL                                                  \
    }

static const double MANY = 2147483647;

// clang-format off
static const struct flag_row rows[FLAG_COUNT] = {
    [FLAG_HELP]         = SWITCH("--help", help, "print this and end"),
    [FLAG_THREADS]      = INTEGER("--threads", threads, "N", 0, 512, "threads; 0: one a core"),
    [FLAG_ISA]          = CHOICE("--isa", isa, "portable|avx2|avx512|amx", "instruction set; default: the best that this machine has"),
    [FLAG_CONTEXT]      = INTEGER("--context", context, "N", 0, 1 << 24, "positions a stream may hold; 0: the model's limit, at most 8192"),
    [FLAG_LANES]        = INTEGER("--lanes", lanes, "N", 1, 8, "streams at a time"),
    [FLAG_PAGE]         = INTEGER("--page", page, "N", 0, 4096, "positions a cache page, a multiple of 4; 0: 64"),
    [FLAG_PAGE_ORDER]   = {"--kv-page-test", "--page-order", KIND_CHOICE, AT(page_order), "identity|reversed|shuffled", "order of cache pages, for tests; replies are the same", 0, 0, "identity|reversed|shuffled"},
    [FLAG_KV_CACHE]     = CHOICE("--kv-cache", kv_cache, "f32|bf16|fp8", "encoding of the attention cache; default f32 on a CPU, bf16 on a GPU"),
    [FLAG_MMAP]         = SWITCH("--mmap", map, "map the weight file instead of reading it"),
    [FLAG_PACK]         = NAMED("--pack", NULL, pack, "FILE", "weight file; default: embedded, else NAME.pack beside the binary"),
    [FLAG_WEIGHTS]      = CHOICE("--weights", weights, "file|synthetic", "synthetic: generated weights, no file is read"),
    [FLAG_NO_DRAFTS]    = SWITCH("--no-drafts", no_drafts, "one token a round; replies are the same"),
    [FLAG_EAGER]        = SWITCH("--eager", eager, "no captured graphs; results are the same. So does GRAPHS=off in the environment"),
    [FLAG_POOL_PAGES]   = INTEGER("--pool-pages", pool_pages, "N", 0, MANY, "pages of the streams; 0: every lane can hold a whole context, or what the card has room for. The prompt cache's come on top"),
    [FLAG_ROUND_ROWS]   = INTEGER("--round-rows", round_rows, "N", 0, 128, "most rows of a round; lanes over that take turns; 0: no limit"),
    [FLAG_SOLO_CHUNK]   = INTEGER("--solo-chunk", solo_chunk, "N", 0, 1 << 24, "prompt rows a pass while nothing decodes; 0: the most"),
    [FLAG_BUSY_CHUNK]   = INTEGER("--busy-chunk", busy_chunk, "N", 0, 1 << 24, "prompt rows a pass beside replies; 0: a quarter of the most, no more than 512"),
    [FLAG_QUIET]        = SWITCH("--quiet", quiet, "nothing on stderr but errors"),
    [FLAG_PROMPT]       = {"-p", "--prompt", KIND_TEXT, AT(prompt), "TEXT", "the prompt", 0, 0, NULL},
    [FLAG_FILE]         = NAMED("-f", "--file", file, "FILE", "read the prompt from FILE; -: from standard input"),
    [FLAG_SYSTEM]       = TEXT("--system", NULL, system, "TEXT", "a system message before the prompt"),
    [FLAG_COUNT_TOKENS] = {"-n", "--max-tokens", KIND_INTEGER, AT(count), "N", "most tokens of a reply; 0: until the context is full", 0, 1 << 24, NULL},
    [FLAG_TEMPERATURE]  = REAL("--temperature", temperature, "T", 0, 100, "0: greedy; default: the model's"),
    [FLAG_TOP_K]        = INTEGER("--top-k", top_k, "K", 0, MANY, "draw among the K best; 0: off; default: the model's"),
    [FLAG_TOP_P]        = REAL("--top-p", top_p, "P", 0, 1, "draw among the best that hold P of the probability; 1: off; default: the model's"),
    [FLAG_MIN_P]        = REAL("--min-p", min_p, "P", 0, 1, "drop tokens less than P times as probable as the best; 0: off; default: the model's"),
    [FLAG_SEED]         = {"--seed", NULL, KIND_UNSIGNED, AT(seed), "N", "seed of the draws; default: made from the prompt's ids, so a repeated command repeats its reply", 0, 0x1p64, NULL},
    [FLAG_RAW]          = SWITCH("--raw", raw, "no chat template: the prompt as it is, special tokens included"),
    [FLAG_TOKENS]       = TEXT("--tokens", NULL, tokens, "1,2,3", "token ids"),
    [FLAG_TOKENS_FILE]  = NAMED("--tokens-file", NULL, tokens_file, "FILE", "file of token ids, separated by commas or white space; -: standard input"),
    [FLAG_LAST]         = INTEGER("--last", last, "N", 1, 1 << 24, "how many of the last positions leave their logits in --out; default 1"),
    [FLAG_OUT]          = NAMED("--out", NULL, out, "FILE", "float32 little-endian logits, row-major [N, vocabulary]"),
    [FLAG_GREEDY]       = INTEGER("--greedy", greedy, "M", 1, 1 << 24, "print M ids of the greedy continuation; end tokens do not stop it"),
    [FLAG_CHUNK]        = INTEGER("--chunk", chunk, "C", 0, 1 << 24, "prompt rows a pass; 0: the most; results are the same"),
    [FLAG_JSONL]        = SWITCH("--jsonl", jsonl, "one JSON value a line, in and out"),
    [FLAG_PLAIN]        = SWITCH("--plain", plain, "the text of special tokens is plain text"),
    [FLAG_SKIP_SPECIAL] = SWITCH("--skip-special", skip_special, "leave special tokens out"),
    [FLAG_DRAFT_VOCAB]  = INTEGER("--draft-vocab", draft_vocab, "N", 16, 1 << 24, "print the N ids that a draft head should know: those of the text, the commonest first, then the lowest"),
    [FLAG_JSON]         = SWITCH("--json", json, "print JSON"),
    [FLAG_GNUPLOT]      = SWITCH("--gnuplot", gnuplot, "print a chart of time a kernel, as a script for gnuplot"),
    [FLAG_RECORD]       = NAMED("--record", NULL, record, "FILE", "make the reference rows with portable kernels and one thread, and write them to FILE"),
    [FLAG_ROWS]         = NAMED("--rows", NULL, rows, "FILE", "reference rows; default: NAME.check beside the binary"),
    [FLAG_PROMPT_ROWS]  = INTEGER("--prompt", prompt_rows, "N", 1, 1 << 20, "prompt tokens to time; the context holds them and --decode; default 512"),
    [FLAG_DECODE_ROWS]  = INTEGER("--decode", decode_rows, "N", 1, 1 << 20, "tokens to decode a repeat; default 32"),
    [FLAG_REPEAT]       = INTEGER("--repeat", repeat, "N", 1, 1000, "repeats, of which the median counts; default 5"),
    [FLAG_ACCEPT]       = {"--accept", NULL, KIND_REALS, AT(accept), "P,P,...", "time drafted rounds whose drafts are accepted with these chances, right or wrong", 0, 1, NULL},
    [FLAG_DRAFTS]       = {"--drafts", NULL, KIND_RANGES, AT(drafts), "N,N-N,...", "drafts a round of --accept, beside as many as pay", 1, 15, NULL},
    [FLAG_BESIDE]       = INTEGER("--beside", beside, "N", 2, 1 << 24, "time a reply beside a prompt of N tokens that is being read"),
    [FLAG_TURNS]        = {"--turns", NULL, KIND_INTEGERS, AT(turns), "N,N,...", "time to the first token of a chat's next turn behind a history of N tokens", 48, 1 << 24, NULL},
    [FLAG_TURN_TOKENS]  = INTEGER("--turn-tokens", turn_tokens, "N", 1, 1 << 20, "tokens that are new in that turn; default 64"),
    [FLAG_PER_OP]       = SWITCH("--per-op", per_op, "time of each op and shape, of a round and of a prompt"),
    [FLAG_BEFORE]       = NAMED("--before", NULL, before, "FILE", "draw two runs side by side: what bench --json printed, and with --per-op a prompt too"),
    [FLAG_AFTER]        = NAMED("--after", NULL, after, "FILE", "the run that --before is compared with"),
    [FLAG_HOST]         = NAMED("--host", NULL, host, "NAME", "address to listen on; default 127.0.0.1, which only this machine can reach"),
    [FLAG_PORT]         = INTEGER("--port", port, "N", 0, 65535, "port to listen on; 0: any that is free; default 8080"),
    [FLAG_PARALLEL]     = {"--parallel", NULL, KIND_AUTO, AT(parallel), "N|auto", "streams at a time; auto: as many as fit, at most the lanes of this build; default auto", 1, 8, NULL},
    [FLAG_NAME]         = {"--name", NULL, KIND_TEXT, AT(name), "ID", "name of the model for clients; default: that of the build", 1, 0, NULL},
    [FLAG_ALIAS]        = {"--alias", NULL, KIND_TEXTS, AT(alias), "ID", "another name of the model; up to 16 times", 1, 0, NULL},
    [FLAG_REPLY_TOKENS] = INTEGER("--max-tokens", reply_tokens, "N", 1, 1 << 24, "most tokens of a reply whose request names no limit; default 4096"),
    [FLAG_DECODE_SHARE] = REAL("--decode-share", decode_share, "F", 0, 0.9, "share of the time that replies keep while a prompt is read; default 0.25"),
    [FLAG_KEY_FILE]     = NAMED("--api-key-file", NULL, key_file, "FILE", "who may ask: lines of \"label: key\", mode 0600; SIGHUP reads it again; default: anyone"),
    [FLAG_CACHE_GIB]    = REAL("--prompt-cache-gib", cache_gib, "G", 0, 1 << 20, "memory for states of prompts that were read; 0: none; default: 16, on a CPU no more than the lanes take"),
    [FLAG_CACHE_DISK]   = NAMED("--prompt-cache-disk", NULL, cache_disk, "DIR", "folder for states that outlive the process; default: none"),
    [FLAG_CACHE_DISK_GIB] = REAL("--prompt-cache-disk-gib", cache_disk_gib, "G", 0.001, 1 << 20, "what that folder may take; default 16"),
    [FLAG_THINKING]     = CHOICE("--thinking", thinking, "on|off", "whether replies begin with reasoning where a request says nothing; default: the template's"),
    [FLAG_EFFORT]       = CHOICE("--reasoning-effort", effort, "none|minimal|low|medium|high|xhigh|max", "for templates that know it, where a request says nothing"),
    [FLAG_BUDGET]       = INTEGER("--thinking-budget", budget, "N", 0, 1 << 24, "most tokens of reasoning where a request says nothing; default: no limit"),
};
// clang-format on

void options_defaults(struct settings *settings, float temperature, int top_k, float top_p, float min_p)
{
    *settings = (struct settings){
        .lanes = 1,
        .prompt_rows = 512,
        .decode_rows = 32,
        .repeat = 5,
        .turn_tokens = 64,
        .port = 8080,
        .reply_tokens = 4096,
        .decode_share = 0.25,
        .cache_gib = 1,
        .cache_disk_gib = 16,
        .budget = -1,
        .temperature = (double)temperature,
        .top_k = top_k,
        .top_p = (double)top_p,
        .min_p = (double)min_p,
    };
}

// ---- ranges ---------------------------------------------------------------------------------------------------------

// Flags whose values end where the build does, and what builds more.
static const struct {
    enum flag flag;
    size_t offset; // in struct build_limits
    const char *more;
} built[] = {
    {FLAG_CONTEXT, offsetof(struct build_limits, context), ""},
    {FLAG_PROMPT_ROWS, offsetof(struct build_limits, context), ""},
    {FLAG_DECODE_ROWS, offsetof(struct build_limits, context), ""},
    {FLAG_BESIDE, offsetof(struct build_limits, context), ""},
    {FLAG_TURNS, offsetof(struct build_limits, context), ""},
    {FLAG_TURN_TOKENS, offsetof(struct build_limits, context), ""},
    {FLAG_GREEDY, offsetof(struct build_limits, context), ""},
    {FLAG_LAST, offsetof(struct build_limits, context), ""},
    {FLAG_LANES, offsetof(struct build_limits, lanes), "; make LANES=N builds more"},
    {FLAG_PARALLEL, offsetof(struct build_limits, lanes), "; make LANES=N builds more"},
    {FLAG_CHUNK, offsetof(struct build_limits, chunk), "; make CHUNK=N builds more"},
    {FLAG_SOLO_CHUNK, offsetof(struct build_limits, chunk), "; make CHUNK=N builds more"},
    {FLAG_BUSY_CHUNK, offsetof(struct build_limits, chunk), "; make CHUNK=N builds more"},
    {FLAG_DRAFT_VOCAB, offsetof(struct build_limits, vocabulary), ""},
    {FLAG_DRAFTS, offsetof(struct build_limits, drafts), "; make WINDOW=N builds more"},
};

// The row with the most that it takes in this build. *more: what builds more, "" where nothing does.
static struct flag_row fitted(const struct flag_row *row, const struct build_limits *limits, const char **more)
{
    struct flag_row fit = *row;
    *more = "";
    for (size_t i = 0; i < sizeof built / sizeof *built; i++) {
        const double most = (double)*(const int64_t *)(const void *)((const char *)limits + built[i].offset);
        if (row != &rows[built[i].flag] || most >= row->most || most < row->least)
            continue;
        fit.most = most;
        *more = built[i].more;
    }
    return fit;
}

// ---- values ---------------------------------------------------------------------------------------------------------

static bool digits(const char *text)
{
    text += *text == '-';
    return *text && text[strspn(text, "0123456789")] == '\0';
}

static bool in_range(const struct flag_row *row, double value)
{
    return value >= row->least && value <= row->most; // false for NaN
}

static bool real(const char *text, double *value)
{
    char *end = NULL;
    if (!*text || text[strspn(text, "+-.0123456789eE")])
        return false;
    *value = strtod(text, &end);
    return end != text && !*end;
}

static bool bad_number(const struct flag_row *row, const char *name, const char *text, const char *more,
                       struct error *error)
{
    const char *what = row->kind == KIND_REAL ? "a number" : "a whole number";
    if (row->kind == KIND_UNSIGNED)
        return error_set(error, "%s: expected %s from 0 to 18446744073709551615, found \"%.60s\"", name, what, text);
    return error_set(error, "%s: expected %s from %.10g to %.10g, found \"%.60s\"%s", name, what, row->least, row->most,
                     text, digits(text) && strtod(text, NULL) > row->most ? more : "");
}

static bool one_of(const struct flag_row *row, const char *text)
{
    size_t bytes = strlen(text);
    if (strchr(text, '|'))
        return false;
    for (const char *at = row->choices; bytes && (at = strstr(at, text)); at += bytes)
        if ((at == row->choices || at[-1] == '|') && (at[bytes] == '|' || !at[bytes]))
            return true;
    return false;
}

// The next part of a list into part[size], "" when it does not fit; *at moves behind its comma. False behind the last one.
static bool next_part(const char **at, char *part, size_t size)
{
    if (!*at)
        return false;
    const size_t bytes = strcspn(*at, ",");
    snprintf(part, size, "%.*s", (int)(bytes < size ? bytes : 0), *at);
    *at = (*at)[bytes] ? *at + bytes + 1 : NULL;
    return true;
}

static bool too_many(const char *name, struct error *error)
{
    return error_set(error, "%s: at most %d are expected", name, NUMBERS_MOST);
}

static bool bad_list(const struct flag_row *row, const char *name, const char *text, const char *what,
                     struct error *error)
{
    return error_set(error, "%s: expected %s from %.10g to %.10g separated by commas, found \"%.60s\"", name, what,
                     row->least, row->most, text);
}

// Adds a number that is not in the list; one that is there counts once. False: there are too many.
static bool add_number(struct number_list *list, int64_t value, const char *name, struct error *error)
{
    for (int i = 0; i < list->count; i++)
        if (list->number[i] == value)
            return true;
    if (list->count == NUMBERS_MOST)
        return too_many(name, error);
    list->number[list->count++] = value;
    return true;
}

static bool set_numbers(struct number_list *list, const struct flag_row *row, const char *name, const char *text,
                        struct error *error)
{
    char part[16];
    if (list->count)
        return error_set(error, "%s: was given before; give all its numbers at once, separated by commas", name);
    for (const char *at = text; next_part(&at, part, sizeof part);) {
        const long long value = digits(part) ? strtoll(part, NULL, 10) : 0;
        if (!digits(part) || !in_range(row, (double)value))
            return bad_list(row, name, text, "whole numbers", error);
        if (!add_number(list, value, name, error))
            return false;
    }
    return true;
}

static bool set_reals(struct real_list *list, const struct flag_row *row, const char *name, const char *text,
                      struct error *error)
{
    char part[32];
    for (const char *at = text; next_part(&at, part, sizeof part);) {
        double value;
        bool known = false;
        if (!real(part, &value) || !in_range(row, value))
            return bad_list(row, name, text, "numbers", error);
        for (int i = 0; i < list->count; i++)
            known = known || list->number[i] == value;
        if (!known && list->count == NUMBERS_MOST)
            return too_many(name, error);
        if (!known)
            list->number[list->count++] = value;
    }
    return true;
}

// "A" or "A-B" with A <= B, of at most four digits each.
static bool range(const char *part, int64_t *from, int64_t *to)
{
    char first[8], second[8] = "";
    const size_t bytes = strcspn(part, "-");
    snprintf(first, sizeof first, "%.*s", (int)bytes, part);
    snprintf(second, sizeof second, "%s", part[bytes] ? part + bytes + 1 : first);
    if (!digits(first) || !digits(second) || *second == '-' || strlen(first) > 4 || strlen(second) > 4)
        return false;
    *from = strtoll(first, NULL, 10);
    *to = strtoll(second, NULL, 10);
    return *from <= *to;
}

// window: whether a build with a larger WINDOW takes more.
static bool set_ranges(struct number_list *list, const struct flag_row *row, const char *name, const char *text,
                       bool window, struct error *error)
{
    char part[16];
    int64_t from = 0, to = 0, most = 0;
    for (const char *at = text; next_part(&at, part, sizeof part);) {
        if (!range(part, &from, &to) || (double)from < row->least)
            return bad_list(row, name, text, "whole numbers or ranges like 1-3", error);
        most = to > most ? to : most;
        for (int64_t value = from; value <= to && in_range(row, (double)value); value++)
            if (!add_number(list, value, name, error))
                return false;
    }
    if (in_range(row, (double)most))
        return true;
    if (window && (double)most <= rows[FLAG_DRAFTS].most)
        return error_set(error, "%s: this build drafts at most %.10g a round, found %lld; make WINDOW=%lld builds that",
                         name, row->most, (long long)most, (long long)most + 1);
    return bad_list(row, name, text, "whole numbers or ranges like 1-3", error);
}

static bool lacks_text(const char *name, struct error *error)
{
    return error_set(error, "%s: expected a text, found none", name);
}

// more: what a number that is too large is told.
static bool set_value(struct settings *settings, const struct flag_row *row, const char *name, const char *text,
                      const char *more, struct error *error)
{
    char *member = (char *)settings + row->offset;
    errno = 0;
    switch (row->kind) {
    case KIND_SWITCH:
        *(bool *)member = true;
        return true;
    case KIND_TEXT:
        *(const char **)member = text;
        return (double)strlen(text) >= row->least || lacks_text(name, error);
    case KIND_TEXTS: {
        if ((double)strlen(text) < row->least)
            return lacks_text(name, error);
        struct text_list *list = (struct text_list *)(void *)member;
        if (list->count == TEXTS_MOST)
            return error_set(error, "%s: at most %d are expected", name, TEXTS_MOST);
        list->text[list->count++] = text;
        return true;
    }
    case KIND_INTEGERS:
        return set_numbers((struct number_list *)(void *)member, row, name, text, error);
    case KIND_RANGES:
        return set_ranges((struct number_list *)(void *)member, row, name, text, *more, error);
    case KIND_REALS:
        return set_reals((struct real_list *)(void *)member, row, name, text, error);
    case KIND_CHOICE:
        if (!one_of(row, text))
            return error_set(error, "%s: expected one of %s, found \"%.60s\"", name, row->choices, text);
        *(const char **)member = text;
        return true;
    case KIND_AUTO:
        if (!strcmp(text, "auto")) {
            *(int64_t *)(void *)member = 0;
            return true;
        } // fall through
    case KIND_INTEGER: {
        long long value = digits(text) ? strtoll(text, NULL, 10) : 0;
        if (!digits(text) || errno || !in_range(row, (double)value))
            return bad_number(row, name, text, more, error);
        *(int64_t *)member = value;
        return true;
    }
    case KIND_UNSIGNED: {
        unsigned long long value = digits(text) && *text != '-' ? strtoull(text, NULL, 10) : 0;
        if (!digits(text) || *text == '-' || errno)
            return bad_number(row, name, text, more, error);
        *(uint64_t *)member = value;
        return true;
    }
    case KIND_REAL: {
        double value;
        if (!real(text, &value) || !in_range(row, value))
            return bad_number(row, name, text, more, error);
        *(double *)member = value;
        return true;
    }
    }
    return false;
}

// ---- arguments --------------------------------------------------------------------------------------------------------

static bool same(const char *name, const char *text, size_t bytes)
{
    return name && strlen(name) == bytes && !memcmp(name, text, bytes);
}

static const struct flag_row *find(const struct command *command, const char *text, size_t bytes, int *index)
{
    for (int i = 0; i < FLAG_COUNT; i++)
        if (command->flags >> i & 1 && (same(rows[i].name, text, bytes) || same(rows[i].other, text, bytes))) {
            *index = i;
            return &rows[i];
        }
    return NULL;
}

// GRAPHS=off is --eager for whatever starts the binary without flags of its own. Commands without --eager look at it too: a
// mistake in it is found where it was made.
static bool read_environment(struct settings *settings, struct error *error)
{
    const char *graphs = getenv("GRAPHS");
    if (!graphs || !strcmp(graphs, "on"))
        return true;
    if (strcmp(graphs, "off"))
        return error_set(error, "GRAPHS in the environment: expected on or off, found \"%.60s\"", graphs);
    settings->eager = true;
    return true;
}

// One argument with its value, which may be the next.
struct argument {
    int index; // in rows
    const struct flag_row *row;
    const char *value; // NULL: a switch
};

// Reads the argument at *at and moves *at to its last word.
static bool read_argument(struct argument *a, const struct command *command, int argc, char **argv, int *at,
                          struct error *error)
{
    const char *text = argv[*at];
    if (text[0] != '-' || !text[1])
        return error_set(error, "%s: unexpected argument \"%.60s\"; see %s --help", command->name, text, command->name);
    const size_t bytes = strcspn(text, "=");
    a->index = FLAG_HELP;
    a->row = same("-h", text, bytes) ? &rows[FLAG_HELP] : find(command, text, bytes, &a->index);
    if (!a->row)
        return error_set(error, "%s: unknown flag \"%.60s\"; see %s --help", command->name, text, command->name);
    a->value = text[bytes] ? text + bytes + 1 : NULL;
    if (a->row->kind == KIND_SWITCH && a->value)
        return error_set(error, "%s: takes no value, found \"%.60s\"", a->row->name, a->value);
    if (a->row->kind != KIND_SWITCH && !a->value) {
        if (++*at == argc)
            return error_set(error, "%s: a value is missing (%s)", a->row->name, a->row->value);
        a->value = argv[*at];
    }
    return true;
}

// Values are looked at when it is known which is the last of its flag: those before it do not count, right or wrong.
bool options_parse(struct settings *settings, const struct command *command, const struct build_limits *limits,
                   int argc, char **argv, struct error *error)
{
    struct argument a;
    int last[FLAG_COUNT] = {0};
    for (int i = 0; i < argc; i++) {
        if (!read_argument(&a, command, argc, argv, &i, error))
            return false;
        last[a.index] = i;
    }
    for (int i = 0; i < argc; i++) {
        const char *more;
        if (!read_argument(&a, command, argc, argv, &i, error))
            return false;
        const struct flag_row fit = fitted(a.row, limits, &more);
        const bool counts = i == last[a.index] || fit.kind == KIND_TEXTS || fit.kind == KIND_INTEGERS;
        if (counts && !set_value(settings, &fit, fit.name, a.value, more, error))
            return false;
        settings->given |= FLAG_BIT(a.index);
    }
    return settings->help || read_environment(settings, error);
}

void options_help(FILE *file, const char *program, const struct command *command, const struct build_limits *limits)
{
    fprintf(file, "%s %s %s\n%s.\n", program, command->name, command->synopsis, command->summary);
    if (command->notes)
        fprintf(file, "%s\n", command->notes);
    fputc('\n', file);
    for (int i = 0; i < FLAG_COUNT; i++) {
        const char *more;
        const struct flag_row fit = fitted(&rows[i], limits, &more), *row = &fit;
        if (!(command->flags >> i & 1))
            continue;
        char left[96];
        snprintf(left, sizeof left, "%s%s%s%s%s", row->name, row->other ? ", " : "", row->other ? row->other : "",
                 row->value ? " " : "", row->value ? row->value : "");
        fprintf(file, "  %-34s %s", left, row->help);
        if (row->kind >= KIND_INTEGER)
            fprintf(file, " (%.10g to %.10g)", row->least, row->most);
        fputc('\n', file);
    }
}
