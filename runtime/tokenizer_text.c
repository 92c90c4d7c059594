// SPDX-License-Identifier: Apache-2.0
//
// UTF-8, NFC and character classes for the tokenizer.

#include "runtime/tokenizer_text.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { SCRATCH_KEPT = 1 << 20 };

enum sequence { SEQUENCE_GOOD, SEQUENCE_BAD, SEQUENCE_CUT };

bool scratch_reserve(struct scratch *scratch, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return false;
    if (bytes <= scratch->room && scratch->data)
        return true;
    bytes += bytes / 4 + 64;
    free(scratch->data);
    scratch->data = malloc(bytes);
    scratch->room = scratch->data ? bytes : 0;
    return scratch->data != NULL;
}

void scratch_free(struct scratch *scratch)
{
    free(scratch->data);
    *scratch = (struct scratch){0};
}

void scratch_rest(struct scratch *scratch)
{
    if (scratch->room > SCRATCH_KEPT)
        scratch_free(scratch);
}

// The sequence at text (bytes > 0): a character, or the prefix of one that cannot go on, or one that the end cuts short.
static enum sequence sequence_at(const char *text, size_t bytes, size_t *length)
{
    const uint8_t *p = (const uint8_t *)text;
    uint8_t lead = p[0], low = 0x80, high = 0xBF;
    *length = 1;
    if (lead < 0x80)
        return SEQUENCE_GOOD;
    if (lead < 0xC2 || lead > 0xF4)
        return SEQUENCE_BAD;
    size_t want = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead == 0xE0)
        low = 0xA0; // no overlong forms
    else if (lead == 0xED)
        high = 0x9F; // no surrogates
    else if (lead == 0xF0)
        low = 0x90;
    else if (lead == 0xF4)
        high = 0x8F; // nothing above U+10FFFF
    for (size_t i = 1; i < want; i++) {
        *length = i;
        if (i == bytes)
            return SEQUENCE_CUT;
        if (p[i] < low || p[i] > high)
            return SEQUENCE_BAD;
        low = 0x80;
        high = 0xBF;
    }
    *length = want;
    return SEQUENCE_GOOD;
}

bool utf8_valid(const char *text, size_t bytes)
{
    size_t length;
    for (size_t at = 0; at < bytes; at += length)
        if (sequence_at(text + at, bytes - at, &length) != SEQUENCE_GOOD)
            return false;
    return true;
}

size_t utf8_repair(const char *text, size_t bytes, bool final, char *out, size_t *used)
{
    size_t at = 0, written = 0;
    while (at < bytes) {
        size_t length;
        enum sequence kind = sequence_at(text + at, bytes - at, &length);
        if (kind == SEQUENCE_CUT && !final)
            break;
        const char *from = kind == SEQUENCE_GOOD ? text + at : "\xEF\xBF\xBD";
        size_t add = kind == SEQUENCE_GOOD ? length : 3;
        if (out)
            memcpy(out + written, from, add);
        written += add;
        at += length;
    }
    *used = at;
    return written;
}

uint32_t utf8_code(const char *text, size_t *length)
{
    const uint8_t *p = (const uint8_t *)text;
    if (p[0] < 0x80) {
        *length = 1;
        return p[0];
    }
    size_t want = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    uint32_t code = p[0] & (0x7Fu >> want);
    for (size_t i = 1; i < want; i++)
        code = code << 6 | (p[i] & 0x3Fu);
    *length = want;
    return code;
}

size_t utf8_before(const char *text, size_t end)
{
    do
        end--;
    while (end > 0 && ((uint8_t)text[end] & 0xC0) == 0x80);
    return end;
}

bool code_is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

bool code_is_word(uint32_t code)
{
    // Circled and squared letters are alphabetic symbols; the joiners belong to words.
    if ((code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
        (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189) || code == 0x200C ||
        code == 0x200D)
        return true;
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

// Below U+0300 every character is its own normal form and nothing composes with what precedes it.
static bool surely_nfc(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((uint8_t)text[i] >= 0xCC)
            return false;
    return true;
}

// The tables that tokenizers of published checkpoints normalise by are those of Unicode 9.0. What later versions gave a combining
// class or a composition is a plain starter to them, so it is kept out of utf8proc's sight, whichever version that has. U+11A7,
// before the Hangul finals, composes with nothing, but some versions of utf8proc drop it after a syllable. In order.
static const struct {
    int32_t first, last;
} apart[] = {{0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
             {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},
             {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x105C0, 0x105F3}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D},
             {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
             {0x1133B, 0x1133B}, {0x11380, 0x113E2}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
             {0x11935, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
             {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
             {0x11F41, 0x11F42}, {0x16100, 0x16139}, {0x16D40, 0x16D79}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
             {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}};

static bool stands_apart(int32_t code)
{
    size_t low = 0, high = sizeof apart / sizeof *apart;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (apart[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof apart / sizeof *apart && apart[low].first <= code;
}

static int combining_class(int32_t code)
{
    return code < 0x300 || stands_apart(code) ? 0 : utf8proc_get_property(code)->combining_class;
}

// Canonical order: the marks between two starters by combining class, equal ones as they were. A count for each class keeps a
// long run of marks, which a plain insertion sort would make quadratic, cheap. spare: room for `count` codes.
static void order_marks(int32_t *codes, size_t count, int32_t *spare)
{
    for (size_t first = 0; first < count;) {
        size_t last = first;
        bool ordered = true;
        int before = 0;
        for (int now; last < count && (now = combining_class(codes[last])) != 0; last++) {
            ordered = ordered && now >= before;
            before = now;
        }
        if (!ordered) {
            size_t start[257] = {0};
            for (size_t i = first; i < last; i++)
                start[combining_class(codes[i]) + 1]++;
            for (int c = 0; c < 256; c++)
                start[c + 1] += start[c];
            for (size_t i = first; i < last; i++)
                spare[start[combining_class(codes[i])]++] = codes[i];
            memcpy(codes + first, spare, (last - first) * sizeof *codes);
        }
        first = last + 1;
    }
}

bool text_nfc(const char *text, size_t bytes, struct scratch *codes, struct scratch *result, const char **out,
              size_t *out_bytes)
{
    *out = text;
    *out_bytes = bytes;
    if (surely_nfc(text, bytes))
        return true;
    // A character of n bytes decomposes to at most 4 codes, of one byte to one code; twice the bytes are enough for both.
    size_t room = 2 * bytes + 4;
    if (!scratch_reserve(codes, 2 * room, sizeof(int32_t)))
        return false;
    int32_t *decomposed = codes->data;
    size_t count = 0, length;
    for (size_t at = 0; at < bytes; at += length) {
        int boundary = 0;
        int32_t code = (int32_t)utf8_code(text + at, &length);
        if (stands_apart(code)) {
            decomposed[count++] = code;
            continue;
        }
        utf8proc_ssize_t made = utf8proc_decompose_char(code, decomposed + count, (utf8proc_ssize_t)(room - count),
                                                        UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        if (made < 0 || (size_t)made > room - count)
            return false;
        count += (size_t)made;
    }
    order_marks(decomposed, count, decomposed + room);
    if (!scratch_reserve(result, count, 4))
        return false;
    uint8_t *write = result->data;
    for (size_t first = 0, last; first < count; first = last) {
        last = first + 1;
        if (!stands_apart(decomposed[first]))
            while (last < count && !stands_apart(decomposed[last]))
                last++;
        utf8proc_ssize_t composed = utf8proc_normalize_utf32(decomposed + first, (utf8proc_ssize_t)(last - first),
                                                             UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        if (composed < 0)
            return false;
        for (utf8proc_ssize_t i = 0; i < composed; i++)
            write += utf8proc_encode_char(decomposed[first + (size_t)i], write);
    }
    *out = result->data;
    *out_bytes = (size_t)(write - (uint8_t *)result->data);
    return true;
}
