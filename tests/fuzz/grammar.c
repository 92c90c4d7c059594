// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target: schemas, regular expressions, grammar texts and tool calls, and replies under what compiles.
//   clang -g -O1 -fsanitize=fuzzer,address,undefined -std=gnu11 -I. tests/fuzz/grammar.c runtime/grammar/*.c runtime/reply/{schema,json_stream,json_text}.c runtime/json_exact.c -o fuzz_grammar -ljansson -lxxhash
//   ./fuzz_grammar -max_len=600 -timeout=10 -max_total_time=60 tests/fuzz/corpus/grammar
// The first byte chooses the kind, the second seeds a walk. Invariants: no crash, no leak, an error says something; a mask is what
// trying every token says; a place is no dead end; whatever the text is, compiling and walking end soon.

#include "runtime/grammar/match.h"
#include "runtime/json_exact.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { EXTRA = 24, VOCABULARY = 256 + EXTRA, STEPS = 24 };

static struct grammar_vocabulary *open_vocabulary(void)
{
    static const char *const more[EXTRA] = {"<s>",  "<tool_call>", "</tool_call>", "ab",   "abc", "\":", "\",", "\"}",
                                            "}}",   "]}",          "\": \"",       "true", "nul", "12",  "123", "  ",
                                            "\n\n", "ab",          "\xc3\xa9",     "\xa9", "((",  "))",  "aaa", "e+"};
    static uint32_t offset[VOCABULARY + 1];
    static char bytes[512];
    static struct tokenizer_added added[3];
    static struct tokenizer_tables tables = {
        .vocabulary = VOCABULARY, .offset = offset, .bytes = bytes, .added = added, .added_count = 3};
    struct grammar_vocabulary *v;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        offset[i + 1] = (uint32_t)i + 1;
    }
    for (int i = 0; i < EXTRA; i++) {
        const size_t n = strlen(more[i]);
        memcpy(bytes + offset[256 + i], more[i], n);
        offset[257 + i] = offset[256 + i] + (uint32_t)n;
        if (i < 3)
            added[i] = (struct tokenizer_added){more[i], (uint32_t)n, 256 + i, 0};
    }
    const int32_t end = 256;
    if (!grammar_vocabulary_open(&v, &tables, VOCABULARY, &end, 1, NULL))
        abort();
    return v;
}

static struct grammar *compile(const struct grammar_vocabulary *v, int kind, const char *text, size_t bytes,
                               struct error *error)
{
    struct grammar *g = NULL;
    json_t *json = kind == 0 || kind > 2 ? json_exact_load(text, bytes, JSON_DECODE_ANY, JSON_KEEP_DATA, NULL) : NULL;
    const struct grammar_tool tool = {"f", json, bytes % 2 == 1};
    if (kind == 1)
        grammar_regex(&g, v, text, bytes, error);
    else if (kind == 2)
        grammar_text(&g, v, text, bytes, error);
    else if (!json)
        error_set(error, "no JSON");
    else if (kind == 0)
        grammar_schema(&g, v, json, error);
    else
        grammar_tool_call(&g, v, kind == 3 ? GRAMMAR_TOOL_XML : GRAMMAR_TOOL_JSON, &tool, 1, kind == 3, NULL, error);
    json_decref(json);
    return g;
}

// The mask of a place against every token; what it allows is returned by its place in the list.
static int compare(struct grammar *g, const struct grammar_state *s, const uint32_t *mask, int32_t *list)
{
    static struct grammar_state t;
    struct error error = {.text = ""};
    int count = 0;
    for (int32_t id = 0; id < VOCABULARY; id++) {
        grammar_copy(&t, s);
        const bool in = (mask[id / 32] >> (id % 32) & 1) != 0, may = grammar_advance(g, &t, id, &error);
        if (in != may && !strstr(error.text, "too "))
            abort();
        if (in)
            list[count++] = id;
    }
    return count;
}

static void follow(struct grammar *g, uint32_t seed)
{
    static struct grammar_state s;
    uint32_t mask[(VOCABULARY + 31) / 32];
    int32_t list[VOCABULARY], guess[8], count;
    struct error error;
    if (!grammar_begin(g, &s, seed & 1, &error))
        return;
    for (int k = 0; k < STEPS && s.count > 0; k++) {
        if (!grammar_mask(g, &s, mask, &count, &error))
            return; // too ambiguous
        if (compare(g, &s, mask, list) != count || count == 0)
            abort();
        grammar_guess(g, &s, guess, 8);
        seed = seed * 1664525u + 1013904223u;
        if (!grammar_advance(g, &s, list[(seed >> 8) % (uint32_t)count], &error) && !strstr(error.text, "too "))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct grammar_vocabulary *v;
    struct error error = {.text = ""};
    if (!v)
        v = open_vocabulary();
    if (size < 2)
        return 0;
    struct grammar *g = compile(v, data[0] % 5, (const char *)data + 2, size - 2, &error);
    if (g)
        follow(g, data[1]);
    else if (!error.text[0])
        abort();
    grammar_release(g);
    return 0;
}
