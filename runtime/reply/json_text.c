// SPDX-License-Identifier: Apache-2.0
//
// Strings, numbers and words as JSON.
// Invariant: what is added is valid JSON whatever the text.

#include "runtime/reply/json_stream.h"

#include <stdio.h>
#include <strings.h>

void write_escaped(struct bytes *out, const char *text, size_t count)
{
    static const char names[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    size_t plain = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)text[i];
        const char *named = c ? strchr(names, (char)c) : NULL;
        char code[8];
        if (!named && c >= 0x20)
            continue;
        bytes_add(out, text + plain, i - plain);
        plain = i + 1;
        if (named)
            snprintf(code, sizeof code, "\\%c", letters[named - names]);
        else
            snprintf(code, sizeof code, "\\u%04x", c ? c : 0xFFFDu);
        bytes_text(out, code);
    }
    bytes_add(out, text + plain, count - plain);
}

static size_t digits(const char *text, size_t at, size_t count)
{
    size_t from = at;
    while (at < count && text[at] >= '0' && text[at] <= '9')
        at++;
    return at - from;
}

// The parts of a number as JSON has them, or also +1, .5 and 5.
struct number {
    const char *whole, *fraction, *exponent;
    size_t whole_count, fraction_count, exponent_count;
    bool negative;
};

static bool number_parse(struct number *n, const char *text, size_t count)
{
    size_t at = count && (text[0] == '-' || text[0] == '+');
    *n = (struct number){.whole = text + at, .negative = count && text[0] == '-'};
    n->whole_count = digits(text, at, count);
    at += n->whole_count;
    if (at < count && text[at] == '.') {
        n->fraction = text + ++at;
        n->fraction_count = digits(text, at, count);
        at += n->fraction_count;
    }
    if ((!n->whole_count && !n->fraction_count) || (n->whole_count > 1 && n->whole[0] == '0'))
        return false;
    n->exponent = text + at;
    n->exponent_count = count - at;
    if (at < count && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        const bool small = at < count && text[at] == '-';
        at += at < count && (text[at] == '-' || text[at] == '+');
        const size_t exponent = digits(text, at, count);
        if (!exponent || exponent > 3)
            return false;
        size_t value = 0;
        for (size_t i = 0; i < exponent; i++)
            value = 10 * value + (size_t)(text[at + i] - '0');
        if (exponent == 3 && !small && n->whole_count + value > 308) // no reader's range is left
            return false;
        at += exponent;
    }
    return at == count;
}

static void number_whole(struct bytes *out, const struct number *n)
{
    if (n->negative)
        bytes_text(out, "-");
    if (n->whole_count)
        bytes_add(out, n->whole, n->whole_count);
    else
        bytes_text(out, "0");
}

bool write_number(struct bytes *out, const char *text, size_t count)
{
    struct number n;
    if (!number_parse(&n, text, count))
        return false;
    number_whole(out, &n);
    if (n.fraction_count) {
        bytes_text(out, ".");
        bytes_add(out, n.fraction, n.fraction_count);
    }
    bytes_add(out, n.exponent, n.exponent_count);
    return true;
}

bool write_integer(struct bytes *out, const char *text, size_t count)
{
    struct number n;
    if (!number_parse(&n, text, count) || n.exponent_count)
        return false;
    for (size_t i = 0; i < n.fraction_count; i++)
        if (n.fraction[i] != '0')
            return false;
    number_whole(out, &n);
    return true;
}

static bool word_is(const char *text, size_t count, const char *word)
{
    return count == strlen(word) && !strncasecmp(text, word, count);
}

const char *word_literal(const char *text, size_t count)
{
    if (word_is(text, count, "true"))
        return "true";
    if (word_is(text, count, "false"))
        return "false";
    return word_is(text, count, "null") || word_is(text, count, "none") ? "null" : NULL;
}

void write_string(struct bytes *out, const char *text, size_t count)
{
    bytes_text(out, "\"");
    write_escaped(out, text, count);
    bytes_text(out, "\"");
}

void write_word(struct bytes *out, const char *text, size_t count)
{
    const char *literal = word_literal(text, count);
    if (literal)
        bytes_text(out, literal);
    else if (!write_number(out, text, count))
        write_string(out, text, count);
}
