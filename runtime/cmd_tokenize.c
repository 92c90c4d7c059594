// SPDX-License-Identifier: Apache-2.0
//
// tokenize and detokenize: text to ids and back, whole input or line by line as JSON. Needs no weights.

#include "runtime/cli.h"
#include "runtime/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 1 << 30 };

typedef bool convert(const struct settings *settings, struct tokenizer *tokenizer, const char *text, size_t bytes,
                     long line, struct error *error);

static bool print_ids(const struct settings *s, struct tokenizer *t, const char *text, size_t bytes, const char *before,
                      const char *between, const char *after, struct error *error)
{
    int32_t *ids = NULL;
    size_t count = 0;
    if (!tokenizer_encode(t, text, bytes, !s->plain, &ids, &count, error))
        return false;
    fputs(before, stdout);
    for (size_t i = 0; i < count; i++)
        printf("%s%d", i ? between : "", ids[i]);
    puts(after);
    free(ids);
    return true;
}

static bool tokenize_text(const struct settings *s, struct tokenizer *t, const char *text, size_t bytes, long line,
                          struct error *error)
{
    (void)line;
    return print_ids(s, t, text, bytes, "", " ", "", error);
}

struct counted {
    int32_t id;
    int64_t count;
};

static int commonest(const void *a, const void *b)
{
    const struct counted *x = a, *y = b;
    return x->count != y->count ? (x->count < y->count) - (x->count > y->count) : (x->id > y->id) - (x->id < y->id);
}

static bool draft_vocabulary(const struct settings *s, struct tokenizer *t, const char *text, size_t bytes, long line,
                             struct error *error)
{
    const int32_t vocabulary = tokenizer_vocabulary(t);
    const int32_t wanted = (int32_t)s->draft_vocab; // no more than there are: options.c
    struct counted *list = malloc((size_t)vocabulary * sizeof *list);
    int32_t *ids = NULL;
    size_t count = 0;
    (void)line;
    bool ok = list ? tokenizer_encode(t, text, bytes, !s->plain, &ids, &count, error)
                   : error_set(error, "no memory for %d ids", vocabulary);
    for (int32_t i = 0; ok && i < vocabulary; i++)
        list[i] = (struct counted){.id = i};
    for (size_t i = 0; ok && i < count; i++)
        list[ids[i]].count++;
    if (ok)
        qsort(list, (size_t)vocabulary, sizeof *list, commonest);
    for (int32_t i = 0; ok && i < wanted; i++)
        printf("%d\n", list[i].id);
    free(list);
    free(ids);
    return ok;
}

static json_t *parse_line(const char *text, size_t bytes, long line, const char *expected, struct error *error)
{
    json_error_t where;
    json_t *value = json_loadb(text, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
    if (!value)
        error_set(error, "line %ld: expected %s: %s", line, expected, where.text);
    return value;
}

static bool tokenize_json(const struct settings *s, struct tokenizer *t, const char *text, size_t bytes, long line,
                          struct error *error)
{
    json_t *value = parse_line(text, bytes, line, "a JSON string", error);
    if (!value)
        return false;
    bool ok = json_is_string(value)
                  ? print_ids(s, t, json_string_value(value), json_string_length(value), "[", ", ", "]", error)
                  : error_set(error, "line %ld: expected a JSON string, found %.60s", line, text);
    json_decref(value);
    return ok;
}

static bool detokenize_text(const struct settings *s, struct tokenizer *t, const char *text, size_t bytes, long line,
                            struct error *error)
{
    (void)line;
    int32_t *ids = NULL;
    int count = 0;
    char *out = NULL;
    size_t out_bytes = 0;
    if (!cli_parse_ids(text, bytes, "standard input", tokenizer_vocabulary(t), &ids, &count, error))
        return false;
    bool ok = tokenizer_decode(t, ids, (size_t)count, s->skip_special, &out, &out_bytes, error);
    if (ok)
        fwrite(out, 1, out_bytes, stdout);
    free(ids);
    free(out);
    return ok;
}

// The ids of a JSON array, malloc'd; NULL with an error.
static int32_t *array_ids(const json_t *array, int32_t vocabulary, long line, struct error *error)
{
    size_t count = json_array_size(array);
    int32_t *ids = malloc((count + 1) * sizeof *ids);
    if (!ids)
        error_set(error, "line %ld: no memory for %zu ids", line, count);
    for (size_t i = 0; ids && i < count; i++) {
        const json_t *id = json_array_get(array, i);
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value >= vocabulary) {
            error_set(error, "line %ld: id number %zu: expected a whole number from 0 to %d", line, i + 1,
                      vocabulary - 1);
            free(ids);
            return NULL;
        }
        ids[i] = (int32_t)value;
    }
    return ids;
}

static bool detokenize_json(const struct settings *s, struct tokenizer *t, const char *text, size_t bytes, long line,
                            struct error *error)
{
    json_t *array = parse_line(text, bytes, line, "a JSON array of ids", error);
    if (!array)
        return false;
    char *out = NULL;
    size_t out_bytes = 0;
    int32_t *ids = NULL;
    bool ok = json_is_array(array);
    if (!ok)
        error_set(error, "line %ld: expected a JSON array of ids, found %.60s", line, text);
    ok = ok && (ids = array_ids(array, tokenizer_vocabulary(t), line, error)) &&
         tokenizer_decode(t, ids, json_array_size(array), s->skip_special, &out, &out_bytes, error);
    json_t *string = ok ? json_stringn(out, out_bytes) : NULL;
    if (string) {
        json_dumpf(string, stdout, JSON_ENCODE_ANY);
        putchar('\n');
    } else if (ok) {
        ok = error_set(error, "line %ld: the decoded text is not valid UTF-8", line);
    }
    json_decref(string);
    json_decref(array);
    free(ids);
    free(out);
    return ok;
}

static int convert_input(const struct settings *s, convert *whole, convert *one, struct error *error)
{
    struct tokenizer *tokenizer = NULL;
    char *text = NULL;
    size_t bytes = 0;
    bool ok =
        tokenizer_open(&tokenizer, &tokenizer_tables, error) && cli_read_file("-", MAX_TEXT, &text, &bytes, error);
    if (ok && !s->jsonl)
        ok = whole(s, tokenizer, text, bytes, 1, error);
    long line = 1;
    for (size_t at = 0; ok && s->jsonl && at < bytes; line++) {
        char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end ? (size_t)(end - text) - at : bytes - at;
        text[at + length] = '\0';
        size_t blank = strspn(text + at, " \t\r");
        ok = blank == length || one(s, tokenizer, text + at, length, line, error);
        at += length + 1;
    }
    free(text);
    tokenizer_close(tokenizer);
    return ok ? 0 : EXIT_BAD;
}

static int tokenize_run(const struct settings *settings, struct error *error)
{
    if (settings->draft_vocab && settings->jsonl)
        return error_set(error, "tokenize: give --draft-vocab or --jsonl") ? 0 : EXIT_BAD;
    return convert_input(settings, settings->draft_vocab ? draft_vocabulary : tokenize_text, tokenize_json, error);
}

static int detokenize_run(const struct settings *settings, struct error *error)
{
    return convert_input(settings, detokenize_text, detokenize_json, error);
}

const struct command command_tokenize = {
    .name = "tokenize",
    .synopsis = "[--jsonl] [--plain] [--draft-vocab N] < TEXT",
    .summary = "text on standard input to token ids",
    .notes = "With --jsonl: one JSON string a line in, one JSON array a line out; blank lines are passed over.\n"
             "With --draft-vocab: a list for make DRAFT_VOCAB=FILE.",
    .flags = FLAG_BIT(FLAG_HELP) | FLAG_BIT(FLAG_JSONL) | FLAG_BIT(FLAG_PLAIN) | FLAG_BIT(FLAG_DRAFT_VOCAB),
    .run = tokenize_run,
};

const struct command command_detokenize = {
    .name = "detokenize",
    .synopsis = "[--jsonl] [--skip-special] < IDS",
    .summary = "token ids on standard input to text",
    .notes = "With --jsonl: one JSON array a line in, one JSON string a line out; blank lines are passed over.",
    .flags = FLAG_BIT(FLAG_HELP) | FLAG_BIT(FLAG_JSONL) | FLAG_BIT(FLAG_SKIP_SPECIAL),
    .run = detokenize_run,
};
