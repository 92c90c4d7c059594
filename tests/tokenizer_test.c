// SPDX-License-Identifier: Apache-2.0
//
// The tokenizer on hand-written tables: streams, special tokens, marks, flags and errors. No generated file is needed.

#include "runtime/tokenizer.h"
#include <stdlib.h>
#include <string.h>

enum { SPECIAL = 256, PLAIN, AB, ABC, HOLE, VOCABULARY };

static int tests, failures;

static void ok(bool good, const char *name)
{
    printf("%sok %d - %s\n", good ? "" : "not ", ++tests, name);
    failures += !good;
}

// Tables of the 256 bytes, two added tokens, two merges and one id without a token.
static uint32_t offset[VOCABULARY + 1];
static char bytes[512];
static int32_t byte_id[256], merge_slot[16];
static const int32_t merge[] = {'a', 'b', AB, AB, 'c', ABC};
static const struct tokenizer_added added[] = {
    {"<s>", 3, SPECIAL, TOKENIZER_SPECIAL | TOKENIZER_LSTRIP},
    {"<p>", 3, PLAIN, TOKENIZER_RSTRIP | TOKENIZER_SINGLE_WORD},
};
static const char *const split[] = {"[a-z]+|[0-9]"};
static const int32_t eos[] = {SPECIAL};
static const struct tokenizer_tables tables = {
    .vocabulary = VOCABULARY,
    .offset = offset,
    .bytes = bytes,
    .byte_id = byte_id,
    .merge = merge,
    .merge_slot = merge_slot,
    .added = added,
    .split = split,
    .eos = eos,
    .merges = 2,
    .merge_bits = 4,
    .added_count = 2,
    .split_count = 1,
    .eos_count = 1,
    .bos = -1,
    .nfc = true,
};

static void fill_tables(void)
{
    const char *more[] = {"<s>", "<p>", "ab", "abc", ""};
    for (int i = 0; i < 256; i++) {
        byte_id[i] = i;
        bytes[i] = (char)i;
        offset[i + 1] = (uint32_t)i + 1;
    }
    for (int i = SPECIAL; i < VOCABULARY; i++) {
        size_t n = strlen(more[i - SPECIAL]);
        memcpy(bytes + offset[i], more[i - SPECIAL], n);
        offset[i + 1] = offset[i] + (uint32_t)n;
    }
    memset(merge_slot, -1, sizeof merge_slot);
    for (int rank = 0; rank < 2; rank++) {
        uint32_t slot = tokenizer_pair_hash(merge[3 * rank], merge[3 * rank + 1], 4);
        while (merge_slot[slot] >= 0)
            slot = (slot + 1) & 15;
        merge_slot[slot] = rank;
    }
}

static bool encodes(struct tokenizer *t, const char *text, bool special, const int32_t *want, size_t want_count)
{
    int32_t *ids;
    size_t count;
    if (!tokenizer_encode(t, text, strlen(text), special, &ids, &count, NULL))
        return false;
    bool good = count == want_count && memcmp(ids, want, count * sizeof *ids) == 0;
    free(ids);
    return good;
}

#define ENCODES(text, special, ...)                                                                                    \
    encodes(t, text, special, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void test_encode(struct tokenizer *t)
{
    int32_t *ids;
    size_t count;
    ok(ENCODES("abcab", true, ABC, AB), "merges by rank");
    ok(ENCODES("ab1ab", true, AB, '1', AB), "the pattern splits words");
    ok(ENCODES("-ab", true, '-', AB), "what the pattern leaves out is a piece too");
    ok(ENCODES("a \n<s>b", true, 'a', SPECIAL, 'b'), "a special token takes the white space before it");
    ok(ENCODES("<s>", false, '<', 's', '>'), "a special token that is not asked for is text");
    ok(ENCODES("<p> \ta", false, PLAIN, 'a'), "an added token takes the white space after it");
    ok(ENCODES("x<p>", false, 'x', '<', 'p', '>'), "a single word needs no letter beside it");
    ok(ENCODES("\xC3\xA9<p>", false, 0xC3, 0xA9, '<', 'p', '>'), "a letter of two bytes is a letter too");
    ok(ENCODES("e\xCC\x81", false, 0xC3, 0xA9), "text is composed");
    ok(ENCODES("q\xCC\x81\xCC\xA3", false, 'q', 0xCC, 0xA3, 0xCC, 0x81), "marks are put in order");
    ok(ENCODES("\xEA\xB0\x80\xE1\x86\xA7", false, 0xEA, 0xB0, 0x80, 0xE1, 0x86, 0xA7), "U+11A7 after a syllable stays");
    ok(ENCODES("q\xE1\xB7\xBA\xCC\xA1", false, 'q', 0xE1, 0xB7, 0xBA, 0xCC, 0xA1),
       "a mark that came after Unicode 9.0 stays where it is");
    ok(ENCODES("\xFF", false, 0xEF, 0xBF, 0xBD), "an ill-formed byte is U+FFFD");
    ok(ENCODES("\xED\xA0\x80", false, 0xEF, 0xBF, 0xBD, 0xEF, 0xBF, 0xBD, 0xEF, 0xBF, 0xBD),
       "a surrogate is ill-formed");
    ok(tokenizer_encode(t, "", 0, true, &ids, &count, NULL) && count == 0 && ids, "no text gives no ids");
    free(ids);
}

// Streams ids and compares every piece; pieces has one more entry for the flush.
static bool streams(struct tokenizer *t, const int32_t *ids, size_t count, const char *const *pieces)
{
    static struct tokenizer_stream s;
    const char *text;
    size_t n;
    tokenizer_stream_open(&s, t, true);
    for (size_t i = 0; i < count; i++)
        if (!tokenizer_stream_push(&s, ids[i], &text, &n, NULL) || n != strlen(pieces[i]) ||
            memcmp(text, pieces[i], n) != 0)
            return false;
    tokenizer_stream_flush(&s, &text, &n);
    return n == strlen(pieces[count]) && memcmp(text, pieces[count], n) == 0;
}

static void test_stream(struct tokenizer *t)
{
    static struct tokenizer_stream s;
    struct error error;
    const char *text;
    size_t n;
    ok(streams(t, (const int32_t[]){0xF0, 0x9F, 0x98, 0x80, 'x'}, 5,
               (const char *const[]){"", "", "", "\xF0\x9F\x98\x80", "x", ""}),
       "a character is held until it is whole");
    ok(streams(t, (const int32_t[]){0xE2, 0x82}, 2, (const char *const[]){"", "", "\xEF\xBF\xBD"}),
       "the flush replaces what is cut short");
    ok(streams(t, (const int32_t[]){0xE2, ABC}, 2,
               (const char *const[]){"",
                                     "\xEF\xBF\xBD"
                                     "abc",
                                     ""}),
       "what cannot go on is replaced at once");
    ok(streams(t, (const int32_t[]){0xC3, SPECIAL, 0xA9}, 3, (const char *const[]){"", "", "\xC3\xA9", ""}),
       "a special token that is left out does not part a character");
    tokenizer_stream_open(&s, t, false);
    ok(!tokenizer_stream_push(&s, VOCABULARY, &text, &n, &error) && strstr(error.text, "not in the vocabulary") != NULL,
       "an id past the vocabulary is refused");
    ok(!tokenizer_stream_push(&s, HOLE, &text, &n, &error), "an id without a token is refused");
}

static void test_decode(struct tokenizer *t)
{
    char *text;
    size_t n;
    const int32_t ids[] = {SPECIAL, ABC, PLAIN, 0xC3};
    ok(tokenizer_decode(t, ids, 4, false, &text, &n, NULL) && strcmp(text, "<s>abc<p>\xEF\xBF\xBD") == 0 &&
           n == strlen(text),
       "decode");
    free(text);
    ok(tokenizer_decode(t, ids, 4, true, &text, &n, NULL) && strcmp(text, "abc<p>\xEF\xBF\xBD") == 0,
       "decode without special tokens");
    free(text);
    ok(!tokenizer_decode(t, (const int32_t[]){-1}, 1, false, &text, &n, NULL), "a negative id is refused");
}

static void test_look_up(struct tokenizer *t)
{
    size_t n;
    ok(tokenizer_special(t, "<s>") == SPECIAL && tokenizer_special(t, "<p>") == PLAIN, "added tokens by their text");
    ok(tokenizer_special(t, "<s") == -1 && tokenizer_special(t, "ab") == -1, "other text is no added token");
    ok(tokenizer_is_special(t, SPECIAL) && !tokenizer_is_special(t, PLAIN) && !tokenizer_is_special(t, -1),
       "which ids are special");
    ok(tokenizer_vocabulary(t) == VOCABULARY && tokenizer_eos(t, &n)[0] == SPECIAL && n == 1 && tokenizer_bos(t) == -1,
       "the rest");
}

int main(void)
{
    static const struct tokenizer_tables none = {.vocabulary = 0};
    struct tokenizer *t;
    struct error error;
    fill_tables();
    ok(!tokenizer_open(&t, &none, &error) && !t && strstr(error.text, "TOKENIZER=path") != NULL,
       "no tables, no tokenizer");
    if (!tokenizer_open(&t, &tables, &error)) {
        printf("Bail out! %s\n", error.text);
        return 1;
    }
    test_encode(t);
    test_stream(t);
    test_decode(t);
    test_look_up(t);
    tokenizer_close(t);
    printf("1..%d\n", tests);
    return failures != 0;
}
