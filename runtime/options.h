// SPDX-License-Identifier: Apache-2.0
//
// The command line, parsed from one table: every flag's name, kind, range and help is one row of options.c, and a command
// says which rows it takes. A number is accepted only if all of it is a number within the range of its row.

#ifndef OPTIONS_H
#define OPTIONS_H

#include "runtime/error.h"
#include <stdbool.h>
#include <stdint.h>

enum flag {
    FLAG_HELP,
    // engine
    FLAG_THREADS,
    FLAG_ISA,
    FLAG_CONTEXT,
    FLAG_LANES,
    FLAG_PAGE,
    FLAG_PAGE_ORDER,
    FLAG_KV_CACHE,
    FLAG_MMAP,
    FLAG_PACK,
    FLAG_WEIGHTS,
    FLAG_NO_DRAFTS,
    FLAG_EAGER,
    FLAG_POOL_PAGES,
    FLAG_ROUND_ROWS,
    FLAG_SOLO_CHUNK,
    FLAG_BUSY_CHUNK,
    FLAG_QUIET,
    // run
    FLAG_PROMPT,
    FLAG_FILE,
    FLAG_SYSTEM,
    FLAG_COUNT_TOKENS,
    FLAG_TEMPERATURE,
    FLAG_TOP_K,
    FLAG_TOP_P,
    FLAG_MIN_P,
    FLAG_SEED,
    FLAG_RAW,
    // eval
    FLAG_TOKENS,
    FLAG_TOKENS_FILE,
    FLAG_LAST,
    FLAG_OUT,
    FLAG_GREEDY,
    FLAG_CHUNK,
    // tokenize, detokenize
    FLAG_JSONL,
    FLAG_PLAIN,
    FLAG_SKIP_SPECIAL,
    FLAG_DRAFT_VOCAB,
    // info, plan, check, bench
    FLAG_JSON,
    FLAG_RECORD,
    FLAG_ROWS,
    FLAG_PROMPT_ROWS,
    FLAG_DECODE_ROWS,
    FLAG_REPEAT,
    FLAG_GNUPLOT,
    FLAG_PER_OP,
    FLAG_BEFORE,
    FLAG_AFTER,
    FLAG_ACCEPT,
    FLAG_DRAFTS,
    FLAG_BESIDE,
    FLAG_TURNS,
    FLAG_TURN_TOKENS,
    // serve
    FLAG_HOST,
    FLAG_PORT,
    FLAG_PARALLEL,
    FLAG_NAME,
    FLAG_ALIAS,
    FLAG_REPLY_TOKENS,
    FLAG_DECODE_SHARE,
    FLAG_KEY_FILE,
    FLAG_CACHE_GIB,
    FLAG_CACHE_DISK,
    FLAG_CACHE_DISK_GIB,
    FLAG_THINKING,
    FLAG_EFFORT,
    FLAG_BUDGET,
    FLAG_COUNT,
};

enum { TEXTS_MOST = 16, NUMBERS_MOST = 16 };

// Of a flag that can be given several times.
struct text_list {
    const char *text[TEXTS_MOST];
    int count;
};

// Of a flag that takes several numbers, separated by commas.
struct number_list {
    int64_t number[NUMBERS_MOST];
    int count;
};

struct real_list {
    double number[NUMBERS_MOST];
    int count;
};

typedef unsigned __int128 flag_set; // bit i: flag i

// The most that this build takes, where a flag's value ends there: positions, streams, prompt rows a pass, drafts a
// round.
struct build_limits {
    int64_t context, lanes, chunk, drafts;
    int64_t vocabulary; // ids of the tokenizer
};

// What the flags said. Numbers that were not given keep the value that options_defaults wrote.
struct settings {
    flag_set given; // on the command line
    bool help, map, no_drafts, eager, quiet, raw, jsonl, plain, skip_special, json, per_op, gnuplot;
    const char *isa, *page_order, *kv_cache, *pack, *weights, *prompt, *file, *system, *tokens, *tokens_file, *out,
        *record, *rows;
    const char *host, *name, *key_file, *cache_disk, *thinking, *effort;
    struct text_list alias;
    const char *before, *after;
    struct number_list turns, drafts;
    struct real_list accept;
    int64_t threads, context, lanes, page, count, top_k, last, greedy, chunk, prompt_rows, decode_rows, repeat;
    uint64_t seed;
    int64_t port, parallel, reply_tokens, budget; // parallel: 0: as many as fit
    int64_t pool_pages, round_rows, solo_chunk, busy_chunk, beside, draft_vocab, turn_tokens;
    double temperature, top_p, min_p, decode_share, cache_gib, cache_disk_gib;
};

struct command {
    const char *name, *synopsis, *summary, *notes;                    // notes: further lines of --help, or NULL
    flag_set flags;                                                   // that it takes
    int (*run)(const struct settings *settings, struct error *error); // the exit code; 2 needs a filled error
};

#define FLAG_BIT(flag) ((flag_set)1 << (flag))
#define ENGINE_FLAGS                                                                                                   \
    (FLAG_BIT(FLAG_HELP) | FLAG_BIT(FLAG_THREADS) | FLAG_BIT(FLAG_ISA) | FLAG_BIT(FLAG_CONTEXT) |                      \
     FLAG_BIT(FLAG_MMAP) | FLAG_BIT(FLAG_KV_CACHE) | FLAG_BIT(FLAG_PAGE) | FLAG_BIT(FLAG_PAGE_ORDER) |                 \
     FLAG_BIT(FLAG_NO_DRAFTS) | FLAG_BIT(FLAG_EAGER) | FLAG_BIT(FLAG_PACK) | FLAG_BIT(FLAG_WEIGHTS) |                  \
     FLAG_BIT(FLAG_QUIET) | FLAG_BIT(FLAG_POOL_PAGES) | FLAG_BIT(FLAG_SOLO_CHUNK))

// What else an engine takes that serves several streams.
#define SHARING_FLAGS                                                                                                  \
    (FLAG_BIT(FLAG_ROUND_ROWS) | FLAG_BIT(FLAG_BUSY_CHUNK) | FLAG_BIT(FLAG_DECODE_SHARE) | FLAG_BIT(FLAG_LANES))

static inline bool settings_given(const struct settings *settings, enum flag flag)
{
    return settings->given >> flag & 1;
}

// Defaults that no flag has changed: sampling from the arguments, the rest as the help says.
void options_defaults(struct settings *settings, float temperature, int top_k, float top_p, float min_p);

// Parses the arguments after the command's name, and the environment's GRAPHS (off: as --eager). Of a flag that is given again
// the last value counts; --alias takes them all, --turns refuses a second
// list. Texts point into argv. On failure error names the flag, what was expected and what was found.
bool options_parse(struct settings *settings, const struct command *command, const struct build_limits *limits,
                   int argc, char **argv, struct error *error);

// Prints a command's usage, and every flag that it takes with the range that this build has and its default.
void options_help(FILE *file, const char *program, const struct command *command, const struct build_limits *limits);

#endif
