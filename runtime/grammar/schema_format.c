// SPDX-License-Identifier: Apache-2.0
//
// The formats of a schema: those of texts as expressions, those of numbers as bounds. Any other is a note, as JSON Schema has it,
// but for well-known ones of texts that cannot be followed.

#include "runtime/grammar/schema.h"
#include <string.h>

// clang-format off
#define YEAR  "[1-9]\\d{3}"
#define DATE  YEAR "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))"
#define TIME  "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define OCTET "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define HEX   "[0-9a-fA-F]"
#define WEB   "[A-Za-z0-9._~!$&'()*+,;=:@-]"
// clang-format on

static const struct {
    const char *name, *pattern; // NULL: it cannot be followed
} texts[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", "P(\\d{1,4}Y(\\d{1,2}M(\\d{1,2}D)?)?|\\d{1,2}M(\\d{1,2}D)?|\\d{1,4}D|\\d{1,3}W|"
                 "T(\\d{1,4}H(\\d{1,2}M(\\d{1,2}S)?)?|\\d{1,4}M(\\d{1,2}S)?|\\d{1,6}S))"},
    {"uuid", HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}"},
    {"email", "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@" LABEL "(\\." LABEL "){1,6}"},
    {"hostname", LABEL "(\\." LABEL "){0,6}"},
    {"ipv4", OCTET "(\\." OCTET "){3}"},
    {"ipv6", HEX "{1,4}(:" HEX "{1,4}){7}"},
    {"uri",
     "[a-z][a-z0-9+.-]{0,15}://" LABEL "(\\." LABEL "){0,6}(:[1-9]\\d{0,3})?(/" WEB "*)*(\\?" WEB "*)?(#" WEB "*)?"},
    {"idn-email", NULL},
    {"idn-hostname", NULL},
    {"iri", NULL},
    {"iri-reference", NULL},
    {"uri-reference", NULL},
    {"uri-template", NULL},
    {"json-pointer", NULL},
    {"relative-json-pointer", NULL},
    {"regex", NULL},
};

// Numbers have fewer digits than the bounds of 64 bits.
static const struct {
    const char *name;
    struct schema_bounds bounds;
} numbers[] = {
    {"int8", {"-128", "127"}}, {"int16", {"-32768", "32767"}}, {"int32", {"-2147483648", "2147483647"}},
    {"uint8", {"0", "255"}},   {"uint16", {"0", "65535"}},     {"uint32", {"0", "4294967295"}},
    {"uint64", {"0", NULL}},
};

enum schema_word schema_format_word(const json_t *format)
{
    const char *name = json_text_value(format);
    for (size_t i = 0; name && i < sizeof texts / sizeof *texts; i++)
        if (!strcmp(texts[i].name, name))
            return WORD_STRING;
    const struct schema_bounds bounds = schema_format_bounds(format);
    return bounds.low || bounds.high ? WORD_NUMBER : WORD_NOTE;
}

struct schema_bounds schema_format_bounds(const json_t *format)
{
    const char *name = json_text_value(format);
    for (size_t i = 0; name && i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(numbers[i].name, name))
            return numbers[i].bounds;
    return (struct schema_bounds){0};
}

const char *schema_format_pattern(struct schema_job *job, const json_t *format)
{
    const char *name = json_text_value(format);
    for (size_t i = 0; name && i < sizeof texts / sizeof *texts; i++) {
        if (strcmp(texts[i].name, name))
            continue;
        if (!texts[i].pattern)
            schema_fail(job, "format \"%s\" is not supported: leave it out, or give a pattern", name);
        return texts[i].pattern;
    }
    return NULL;
}
