// SPDX-License-Identifier: Apache-2.0
//
// A line filter over the tokenizer for tests/tokenizer.t, linked with generated tables. Lines in, one line out for each:
//   E hex   encode, special text stays text      S hex   encode, special text is parsed     -> ids
//   D ids   decode                               K ids   decode, special tokens left out    -> hex
//   T ids   decode by stream, K-like pieces put together, checked to be whole characters    -> hex
// A failed call answers "! " and its message.

#include "runtime/tokenizer.h"
#include <stdlib.h>
#include <string.h>

static unsigned nibble(char digit)
{
    return (unsigned)(digit <= '9' ? digit - '0' : digit - 'a' + 10) & 15;
}

static size_t from_hex(const char *hex, char *out)
{
    size_t n = 0;
    for (; hex[0] > ' ' && hex[1] > ' '; hex += 2)
        out[n++] = (char)(nibble(hex[0]) << 4 | nibble(hex[1]));
    return n;
}

static void print_hex(const char *text, size_t bytes)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < bytes; i++) {
        putchar(digit[(unsigned char)text[i] >> 4]);
        putchar(digit[(unsigned char)text[i] & 15]);
    }
}

static bool encode(struct tokenizer *t, char *line, bool special, struct error *error)
{
    int32_t *ids;
    size_t count;
    char *text = malloc(strlen(line) + 1);
    size_t bytes = from_hex(line, text);
    bool good = tokenizer_encode(t, text, bytes, special, &ids, &count, error);
    free(text);
    if (!good)
        return false;
    for (size_t i = 0; i < count; i++)
        printf(i ? " %d" : "%d", ids[i]);
    free(ids);
    return true;
}

static bool stream(struct tokenizer *t, const int32_t *ids, size_t count, struct error *error)
{
    static struct tokenizer_stream s;
    const char *piece;
    size_t bytes;
    tokenizer_stream_open(&s, t, false);
    for (size_t i = 0; i < count; i++) {
        if (!tokenizer_stream_push(&s, ids[i], &piece, &bytes, error))
            return false;
        if (bytes && ((unsigned char)piece[0] & 0xC0) == 0x80)
            return error_set(error, "a piece begins inside a character");
        print_hex(piece, bytes);
    }
    tokenizer_stream_flush(&s, &piece, &bytes);
    print_hex(piece, bytes);
    return true;
}

static bool decode(struct tokenizer *t, char kind, char *line, struct error *error)
{
    int32_t *ids = malloc((strlen(line) + 1) * sizeof *ids);
    size_t count = 0, bytes;
    char *end, *text;
    for (long id; id = strtol(line, &end, 10), end != line; line = end)
        ids[count++] = (int32_t)id;
    bool good =
        kind == 'T' ? stream(t, ids, count, error) : tokenizer_decode(t, ids, count, kind == 'K', &text, &bytes, error);
    free(ids);
    if (good && kind != 'T') {
        print_hex(text, bytes);
        free(text);
    }
    return good;
}

int main(void)
{
    struct tokenizer *t;
    struct error error;
    char *line = NULL;
    size_t room = 0;
    if (!tokenizer_open(&t, &tokenizer_tables, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 2;
    }
    while (getline(&line, &room, stdin) > 1) {
        bool good = line[0] == 'E' || line[0] == 'S' ? encode(t, line + 2, line[0] == 'S', &error)
                                                     : decode(t, line[0], line + 2, &error);
        if (!good)
            printf("! %s", error.text);
        putchar('\n');
    }
    free(line);
    tokenizer_close(t);
    return 0;
}
