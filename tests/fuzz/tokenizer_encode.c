// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target: encoding and decoding of arbitrary bytes with the embedded model's tokenizer.
//   lua5.4 gen/tokenizer.lua models/embedded/tokenizer.json build/fuzz_tokenizer_tables.c
//   clang -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/tokenizer_encode.c runtime/tokenizer.c
//     runtime/tokenizer_bpe.c runtime/tokenizer_decode.c runtime/tokenizer_text.c build/fuzz_tokenizer_tables.c
//     -o build/fuzz_tokenizer -lpcre2-8 -lutf8proc
//   build/fuzz_tokenizer -max_total_time=60
// Invariants: text that is encoded and decoded comes back in normal form C, ill-formed sequences as U+FFFD; ids that are made
// from the bytes decode alike whole and streamed, to whole characters; an id outside the vocabulary is refused.

#include "runtime/tokenizer.h"
#include "runtime/tokenizer_text.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool good)
{
    if (!good)
        abort();
}

static struct scratch codes, result;

// A copy of the normal form that the caller frees.
static char *normal_form(const char *text, size_t bytes, size_t *out_bytes)
{
    const char *out;
    check(text_nfc(text, bytes, &codes, &result, &out, out_bytes));
    char *copy = malloc(*out_bytes + 1);
    memcpy(copy, out, *out_bytes);
    return copy;
}

static void round_trip(struct tokenizer *t, const char *text, size_t bytes, bool special)
{
    int32_t *ids;
    size_t count, used, back_bytes, want_bytes, have_bytes;
    struct error error;
    char *back;
    check(tokenizer_encode(t, text, bytes, special, &ids, &count, &error));
    check(tokenizer_decode(t, ids, count, false, &back, &back_bytes, &error));
    char *repaired = malloc(3 * bytes + 1);
    size_t repaired_bytes = utf8_repair(text, bytes, true, repaired, &used);
    check(utf8_valid(repaired, repaired_bytes));
    char *want = normal_form(repaired, repaired_bytes, &want_bytes);
    // Text on both sides of an added token is normalised apart; its normal form is that of the whole.
    char *have = normal_form(back, back_bytes, &have_bytes);
    check(have_bytes == want_bytes && memcmp(have, want, want_bytes) == 0);
    for (size_t i = 0; i < count; i++)
        check(special || !tokenizer_is_special(t, ids[i]));
    free(have);
    free(want);
    free(repaired);
    free(back);
    free(ids);
}

static void stream(struct tokenizer *t, const uint8_t *data, size_t size, bool skip)
{
    static struct tokenizer_stream s;
    size_t count = size / 2, bytes, piece_bytes, at = 0;
    int32_t *ids = malloc((count + 1) * sizeof *ids);
    struct error error;
    char *whole;
    const char *piece;
    for (size_t i = 0; i < count; i++)
        ids[i] = (data[2 * i] << 8 | data[2 * i + 1]) % tokenizer_vocabulary(t);
    check(tokenizer_decode(t, ids, count, skip, &whole, &bytes, &error));
    check(utf8_valid(whole, bytes));
    tokenizer_stream_open(&s, t, skip);
    for (size_t i = 0; i <= count; i++) {
        if (i < count)
            check(tokenizer_stream_push(&s, ids[i], &piece, &piece_bytes, &error));
        else
            tokenizer_stream_flush(&s, &piece, &piece_bytes);
        check(utf8_valid(piece, piece_bytes) && piece_bytes <= bytes - at);
        check(memcmp(whole + at, piece, piece_bytes) == 0);
        at += piece_bytes;
    }
    check(at == bytes);
    check(!tokenizer_stream_push(&s, tokenizer_vocabulary(t), &piece, &piece_bytes, &error));
    free(whole);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *t;
    struct error error;
    if (!t)
        check(tokenizer_open(&t, &tokenizer_tables, &error));
    if (size == 0)
        return 0;
    bool flag = data[0] & 1;
    if (data[0] & 2)
        stream(t, data + 1, size - 1, flag);
    else
        round_trip(t, (const char *)data + 1, size - 1, flag);
    return 0;
}
