// SPDX-License-Identifier: Apache-2.0
//
// Grammars by themselves, over the embedded model's vocabulary: what each front end accepts, rejects and refuses; masks
// against every token tried one by one. Red controls: a tree of tokens that forgot one, and ends of a local place that
// were forgotten, must be found.

#include "runtime/grammar/match.h"
#include "runtime/json_exact.h"
#include "runtime/model.h"
#include "tests/grammar_strict.h"
#include "tests/tap.h"
#include <stdlib.h>
#include <string.h>

static struct grammar_vocabulary *vocabulary;
static uint64_t seed = 1;

static uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

// The front end by the kind's first letter: Schema, Json object, Regex, Text, Choice (lines), Xml tools, strict ones (X), tOols in JSON.
static struct grammar *make(char kind, const char *text, struct error *error)
{
    struct grammar *g = NULL;
    json_t *json =
        strchr("sxXo", kind) ? json_exact_load(text, strlen(text), JSON_DECODE_ANY, JSON_KEEP_DATA, NULL) : NULL;
    struct grammar_tool tools[8];
    const char *lines[16], *name;
    size_t bytes[16];
    int count = 0;
    json_t *value;
    if (kind == 's')
        grammar_schema(&g, vocabulary, json, error);
    if (kind == 'j')
        grammar_json_object(&g, vocabulary, error);
    if (kind == 'r')
        grammar_regex(&g, vocabulary, text, strlen(text), error);
    if (kind == 't')
        grammar_text(&g, vocabulary, text, strlen(text), error);
    if (strchr("xXo", kind)) {
        json_object_foreach(json, name, value) tools[count++] = (struct grammar_tool){name, value, kind == 'X'};
        grammar_tool_call(&g, vocabulary, kind != 'o' ? GRAMMAR_TOOL_XML : GRAMMAR_TOOL_JSON, tools, count, true, NULL,
                          error);
    }
    if (kind == 'c') {
        for (const char *at = text; *at; at += bytes[count - 1] + (at[bytes[count - 1]] == '\n')) {
            lines[count] = at;
            bytes[count++] = strcspn(at, "\n");
        }
        grammar_choice(&g, vocabulary, lines, bytes, count, error);
    }
    json_decref(json);
    return g;
}

// Markers are tokens: where the text has one it is taken whole.
static bool accepts(struct grammar *g, const char *text)
{
    struct grammar_state s;
    struct error error;
    bool good = grammar_begin(g, &s, false, &error);
    while (good && *text) {
        const size_t bytes = text[0] == '<' ? strcspn(text, ">") + 1 : 1;
        const int32_t id = bytes > 1 ? grammar_marker(vocabulary, text, bytes) : -1;
        good = id >= 0 ? grammar_advance(g, &s, id, &error) : grammar_advance_bytes(g, &s, text, 1, &error);
        text += id >= 0 ? bytes : 1;
    }
    return good && grammar_may_end(&s);
}

// ---- front ends ------------------------------------------------------------------------------------------------------------

static const struct language languages[] = {
    {'r', "a+b?|c{2,3}", {"a", "aaab", "cc", "ccc"}, {"", "b", "c", "cccc", "ab ", "abb"}},
    {'r', "^(?:\\d{1,3}\\.){3}\\d+$", {"1.22.333.4"}, {"1.2.3", "1.2.3.", "1234.1.1.1"}},
    {'r', "[^a-c\\]]\\x41.\\u00e9", {"dA-é", "éAéé"}, {"aA-é", "]A-é", "dA\né", "dB-é"}},
    {'r', "(a|b(c|d)*)*e", {"e", "abcdcde", "bbbe"}, {"ace", "abcd"}},
    {'r', "\\w\\W\\s\\S", {"a- x"}, {"a-xx", "-- x"}},
    {'r', "", {""}, {"a"}},
    {'c', "yes\nno\nnot\nno", {"yes", "no", "not"}, {"", "n", "nott", "yesno"}},
    {'t',
     "root ::= greet \" \" name+ # one\ngreet ::= \"hi\" | 'yo'\nname ::= [A-Z] [a-z]{0,2} | \"(\" root \")\"",
     {"hi Al", "yo AlBo", "hi (yo X)"},
     {"hi", "hi al", "hi (yo X", "hiAl"}},
    {'t', "root ::= item (\",\" item)*\nitem ::= \"\\x41\" .?", {"A", "AA,Ab", "Aé"}, {"", "B", "Ab,c"}},
    {'j',
     "",
     {"{}", "{ \"a\" : [1, {\"b\":null}] }", "{\"\\u00e9\\ud83d\\ude00\":-1.5e+3}"},
     {"[]", "{", "{\"a\"}", "{\"a\":01}", "{\"a\":\"\n\"}", "{\"a\":\"\\ud83d\"}", "{\"a\":1,}", "{\"a\":tru}"}},
    {'s',
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"},\"c\":{}},"
     "\"required\":[\"b\"]}",
     {"{\"b\":\"\"}", "{\"a\":-3,\"b\":\"x\"}", "{\"b\":\"x\",\"c\":{}}"},
     {"{}", "{\"a\":1}", "{\"b\":\"x\",\"a\":1}", "{\"a\":1.5,\"b\":\"\"}", "{\"b\":\"\",\"d\":1}"}},
    {'s',
     "{\"properties\":{\"ab\":{\"const\":1}},\"additionalProperties\":{\"type\":\"boolean\"}}",
     {"{}", "{\"ab\":1}", "{\"a\":true,\"abc\":false}", "{\"ab\":1,\"é\":true}"},
     {"{\"ab\":true}", "{\"a\":1}"}},
    {'s',
     "{\"type\":\"array\",\"items\":{\"enum\":[\"x\",1,null]},\"minItems\":1,\"maxItems\":3}",
     {"[1]", "[\"x\", 1 ,null]"},
     {"[]", "[2]", "[1,1,1,1]", "[1,]"}},
    {'s',
     "{\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"boolean\"}],\"items\":{\"type\":\"integer\"},\"minItems\":1}",
     {"[null]", "[null,true]", "[null,true,3,4]"},
     {"[]", "[true]", "[null,1]", "[null,true,null]"}},
    {'s',
     "{\"type\":\"string\",\"minLength\":2,\"maxLength\":4}",
     {"\"ab\"", "\"é\\n\\u00e9x\"", "\"\\ud83d\\ude00a\""},
     {"\"a\"", "\"abcde\"", "ab"}},
    {'s',
     "{\"type\":\"string\",\"pattern\":\"^a\\\"[\\\\\\\\b]$\"}",
     {"\"a\\\"\\\\\"", "\"a\\\"b\""},
     {"\"a\"\"", "\"xa\\\"b\""}},
    {'s',
     "{\"type\":\"string\",\"pattern\":\"^([A-Z]{2}|x.?y)$\",\"minLength\":2,\"maxLength\":3}",
     {"\"AB\"", "\"xy\"", "\"xéy\""},
     {"\"A\"", "\"xABy\""}},
    {'s', "{\"type\":\"string\",\"pattern\":\"b+\"}", {"\"abc\"", "\"b\""}, {"\"\"", "\"ac\""}},
    {'s',
     "{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":105}",
     {"-12", "-9", "0", "7", "99", "104"},
     {"-13", "105", "-0", "1.0", "00", "1000"}},
    {'s',
     "{\"type\":\"number\",\"exclusiveMinimum\":0.5,\"maximum\":20.25}",
     {"0.51", "1", "20.25", "3.999", "20.250", "19"},
     {"0.5", "0.50", "0", "20.26", "21", "-1"}},
    {'s',
     "{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-28\"", "\"1999-12-31\""},
     {"\"2024-02-30\"", "\"2024-13-01\""}},
    {'s',
     "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
     "\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}}}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
     {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
    {'s',
     "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},"
     "{\"properties\":{\"a\":{\"minimum\":5},\"b\":{\"type\":\"null\"}}}]}",
     {"{\"a\":5}", "{\"a\":70,\"b\":null}"},
     {"{}", "{\"a\":4}", "{\"a\":5,\"b\":1}"}},
    {'s',
     "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},"
     "\"required\":[\"k\",\"x\"]},{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"]}]"
     "}",
     {"{\"k\":\"a\",\"x\":1}", "{\"k\":\"b\"}"},
     {"{\"k\":\"a\"}", "{\"k\":\"b\",\"x\":1}"}},
    {'s', "{\"type\":[\"string\",\"null\"],\"enum\":[\"q\",null,3]}", {"\"q\"", "null"}, {"3"}},
    {'s',
     "{\"const\":{\"a\":[1,\"\\\"\"]}}",
     {"{\"a\":[1,\"\\\"\"]}", "{ \"a\" : [ 1 , \"\\\"\" ] }"},
     {"{}", "{\"a\":[1]}"}},
    {'s',
     "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1,\"maxProperties\":2,"
     "\"propertyNames\":{\"pattern\":\"^[a-z]+$\"}}",
     {"{\"a\":1}", "{\"a\":1,\"bc\":2}"},
     {"{}", "{\"A\":1}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    {'s', "{\"properties\":{\"a\":false,\"b\":true}}", {"{}", "{\"b\":[]}"}, {"{\"a\":1}"}},
    {'x',
     "{\"get\":{\"properties\":{\"n\":{\"type\":\"integer\"},\"s\":{\"type\":\"string\"}},\"required\":[\"n\"]},\"go\":"
     "{}}",
     {"<tool_call>\n<function=get>\n<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\n</par\n\n</parameter>\n</"
      "function>\n</tool_call>",
      "<tool_call>\n<function=go>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n</function>\n</tool_call>",
      "<tool_call>\n<function=set>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=n>\nx\n</parameter>\n</function>\n</tool_call>"}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"type\":\"string\",\"maxLength\":3}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\n\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\nabc\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\né\n\"\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=s>\nabcd\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\na</\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\n</parameter>\n</parameter>\n</function>\n</tool_call>"}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"type\":\"string\",\"minLength\":2}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\nab\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\na much longer text\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=s>\n\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>"}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":2}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\nab\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\nabc\n</parameter>\n</function>\n</tool_call>"}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"type\":\"string\",\"maxLength\":0}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\n\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>"}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"type\":\"string\",\"pattern\":\"^[a-c]+$\"}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\nabcabc\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=s>\n\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\nabd\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\nab\n\n</parameter>\n</function>\n</tool_call>"}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"type\":\"string\",\"pattern\":\"b.\"}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\nb1\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\na b-c\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\nb\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\nb1<\n</parameter>\n</function>\n</tool_call>"}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"type\":[\"string\",\"null\"],\"format\":\"date\"}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\n2026-11-30\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=s>\ntoday\n</parameter>\n</function>\n</tool_call>"}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"type\":\"string\"}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\n<b>\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\n\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=s>\n\n</parameter>\n\n</parameter>\n</function>\n</tool_call>"}},
    {'x',
     "{\"get\":{\"properties\":{\"s\":{\"type\":\"string\",\"maxLength\":3,\"pattern\":\"^a\"}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\nbcdefg\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=s>\n\n</parameter>\n\n</parameter>\n</function>\n</tool_call>"}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"null\"}],"
     "\"default\":null,\"title\":\"S\"}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\nabc\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\nnull\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=s>\nabcd\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\n12345\n</parameter>\n</function>\n</tool_call>"}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"type\":\"string\",\"maxLength\":2000000}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\nabc\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=s>\n<\n</parameter>\n</function>\n</tool_call>"}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\n<abc>\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\nnull\n</parameter>\n</function>\n</tool_call>"},
     {}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"oneOf\":[{\"type\":\"string\",\"pattern\":\"^a$\"},{\"type\":\"integer\","
     "\"minimum\":7}]}},\"required\":[\"s\"]}}",
     {"<tool_call>\n<function=get>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\n8\n</parameter>\n</function>\n</tool_call>"},
     {"<tool_call>\n<function=get>\n<parameter=s>\nb\n</parameter>\n</function>\n</tool_call>",
      "<tool_call>\n<function=get>\n<parameter=s>\n3\n</parameter>\n</function>\n</tool_call>"}},
    {'o',
     "{\"get\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"]}}",
     {"<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": 3}}\n</tool_call>"},
     {"<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>",
      "{\"name\": \"get\", \"arguments\": {\"n\": 3}}"}},
};

static void test_languages(const struct language *languages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct error error = {.text = ""};
        char detail[600] = "", name[80];
        struct grammar *g = make(languages[i].kind, languages[i].text, &error);
        snprintf(detail, sizeof detail, "%s", error.text);
        bool good = g != NULL;
        for (int k = 0; good && k < 8 && languages[i].yes[k]; k++)
            if (!accepts(g, languages[i].yes[k])) {
                snprintf(detail, sizeof detail, "rejects %s", languages[i].yes[k]);
                good = false;
            }
        for (int k = 0; good && k < 8 && languages[i].no[k]; k++)
            if (accepts(g, languages[i].no[k])) {
                snprintf(detail, sizeof detail, "accepts %s", languages[i].no[k]);
                good = false;
            }
        snprintf(name, sizeof name, "%c %.60s", languages[i].kind, languages[i].text);
        for (char *c = name; *c; c++)
            *c = *c == '\n' || *c == '#' ? ' ' : *c;
        ok(good, name, detail);
        grammar_release(g);
    }
}

static const struct refusal refusals[] = {
    {'r', "a(", ") is missing"},
    {'r', "a)", ") without ("},
    {'r', "*a", "nothing to repeat"},
    {'r', "(?=a)", "look-ahead"},
    {'r', "(a)\\1", "\\1 is not supported"},
    {'r', "\\bx", "\\b is not supported"},
    {'r', "a^b", "^ and $"},
    {'r', "(a?){2,5}", "must not be able to be empty"},
    {'r', "[z-a]", "must end above"},
    {'r', "a{3,2}", "m <= n"},
    {'r', "[^\\x00-\\x{10ffff}]", "no text meets"},
    {'t', "root ::= root \"a\" | \"b\"", "begins with itself"},
    {'t', "root ::= x \"a\"\nx ::= y*\ny ::= x \"c\"", "begins with itself"},
    {'t', "root ::= x", "rule x is not defined"},
    {'t', "x ::= \"a\"", "root"},
    {'t', "root ::= \"a", "not closed"},
    {'t', "root ::= \"a\" root", "no text meets"},
    {'s', "{\"type\":\"object\",\"not\":{}}", "\"not\" is not supported"},
    {'s', "{\"properties\":{\"a\":{\"if\":{}}}}", "#/properties/a: keyword \"if\" is not supported"},
    {'s', "{\"type\":\"integer\",\"multipleOf\":3}", "multipleOf is not supported"},
    {'s', "{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems is not supported"},
    {'s', "{\"type\":\"string\",\"format\":\"regex\"}", "schema, #: format \"regex\" is not supported"},
    {'s', "{\"type\":\"string\",\"format\":3}", "format must be a text"},
    // A whole number of more than 64 bits is no text, wherever it comes from.
    {'s', "{\"$ref\":\"#/default\",\"default\":{\"pattern\":99999999999999999999}}", "pattern must be a text"},
    {'s', "{\"$ref\":\"#/default\",\"default\":{\"type\":99999999999999999999}}", "type must be one of"},
    {'s', "{\"$ref\":\"#/default\",\"default\":{\"format\":99999999999999999999}}", "format must be a text"},
    {'s', "{\"$ref\":\"#/default\",\"default\":{\"required\":[99999999999999999999]}}",
     "required must be a list of names"},
    {'s', "{\"$ref\":\"#/default\",\"default\":{\"$ref\":99999999999999999999}}", "$ref \"\" is not supported"},
    {'s', "{\"minimum\":1e30}", "schema, #: numbers have at most 18 digits"},
    {'s', "{\"properties\":{\"a\":{\"maximum\":-1e30}}}", "schema, #/properties/a: numbers have at most 18 digits"},
    {'s', "{\"type\":\"object\",\"minProperties\":2}", "minProperties above 1"},
    {'s', "{\"type\":\"thing\"}", "type must be"},
    {'s', "{\"$ref\":\"#/$defs/x\"}", "leads nowhere"},
    {'s', "{\"$ref\":\"http://x/y\"}", "is not supported"},
    {'s', "{\"allOf\":[{\"$ref\":\"#\"},{\"minLength\":1}]}", "refers to itself"},
    {'s', "{\"$ref\":\"#\"}", "no text meets"},
    {'s', "false", "no text meets"},
    {'s', "3", "a schema must be"},
    {'s', "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "oneOf may both fit"},
    {'s', "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no text meets"},
    {'s', "{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":3}", "where the pattern or format keeps them"},
    {'s', "{\"enum\":[1],\"minimum\":3}", "beside enum"},
    {'o', "{\"f\":{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}}", "tool \"f\": schema"},
    {'X', "{\"f\":{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"(?=a)\"}}}}", "look-ahead"},
    {'X', "{\"f\":{\"properties\":{\"a\":{\"type\":\"string\",\"format\":\"idn-email\"}}}}", "format \"idn-email\""},
    {'X', "{\"f\":{\"properties\":{\"a\":{\"pattern\":\"^<\"}},\"required\":[\"a\"]}}", "no text meets"},
    {'X',
     "{\"f\":{\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"null\"}],"
     "\"minLength\":1}}}}",
     "anyOf stands alone"},
    {'X', "{\"f\":{\"properties\":{\"a\":{\"oneOf\":[{\"type\":\"string\"},{\"maxLength\":3}]}}}}", "may both fit"},
    {'X',
     "{\"f\":{\"properties\":{\"a\":{\"$ref\":\"#/$defs/a\"}},\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
     "a\"},{\"$ref\":\"#/$defs/a\"}]}}}}",
     "nested deeper"},
};

// Text that is nested or long enough to hurt: refused in a line, whatever the kind.
static bool survives(char kind, const char *open, const char *close, int depth)
{
    const size_t a = strlen(open), z = strlen(close);
    char *text = malloc((a + z) * (size_t)depth + 16), *at = text;
    struct error error = {.text = ""};
    at += sprintf(at, "%s", kind == 't' ? "root ::= " : "");
    for (int i = 0; i < depth; i++, at += a)
        memcpy(at, open, a);
    for (int i = 0; i < depth; i++, at += z)
        memcpy(at, close, z);
    *at = 0;
    json_t *json = kind == 's' ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    struct grammar *g = kind == 's' && !json ? NULL : make(kind, text, &error);
    const bool good = g || error.text[0] || (kind == 's' && !json);
    grammar_release(g);
    json_decref(json);
    free(text);
    return good;
}

static void test_refusals(const struct refusal *refusals, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct error error = {.text = ""};
        char name[100];
        struct grammar *g = make(refusals[i].kind, refusals[i].text, &error);
        snprintf(name, sizeof name, "refused: %s", refusals[i].says);
        ok(!g && strstr(error.text, refusals[i].says), name, error.text);
        grammar_release(g);
    }
}

static void test_nesting(void)
{
    ok(survives('r', "(", ")", 60000) && survives('t', "(", ")", 60000) && survives('r', "(a|", "b)", 60000) &&
           survives('s', "{\"items\":", "", 1) && survives('s', "{\"items\":", "{}}", 1) &&
           survives('r', "(", "{1,900})", 60) && survives('r', "(a|b)*", "a(a|b){900}", 1),
       "hostile nesting ends in a line", NULL);
    char *deep = malloc(40000), *at = deep;
    for (int i = 0; i < 1500; i++)
        at += sprintf(at, "{\"items\":");
    at += sprintf(at, "{}");
    for (int i = 0; i < 1500; i++)
        at += sprintf(at, "}");
    struct error error = {.text = ""};
    struct grammar *g = make('s', deep, &error);
    ok(!g && strstr(error.text, "nested deeper"), "a schema nested 1500 deep is refused", error.text);
    free(deep);
}

// Alternatives that nothing tells apart have more places at once than are followed: refused when that is so from the
// beginning, else a fault of the grammar and not of the text.
static void test_ambiguity(void)
{
    char text[8192], inside[9000], *at = text;
    struct error error = {.text = ""};
    static struct grammar_state s;
    for (int i = 0; i < 70; i++)
        at += sprintf(at, "%s{\"type\":\"string\",\"pattern\":\"a*%.*s\"}", i ? "," : "{\"anyOf\":[", i,
                      "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb");
    strcpy(at, "]}");
    struct grammar *g = make('s', text, &error);
    ok(!g && strstr(error.text, "too ambiguous"), "what is too ambiguous at its first token is refused", error.text);
    grammar_release(g);
    snprintf(inside, sizeof inside, "{\"required\":[\"a\"],\"properties\":{\"a\":%s}}", text);
    g = make('s', inside, &error);
    const bool made = g && grammar_begin(g, &s, false, &error);
    ok(made && !grammar_advance_bytes(g, &s, "{\"b", 3, &error) && grammar_fault(g) == GRAMMAR_DENIES,
       "a text that is not allowed is the text's fault", error.text);
    ok(made && grammar_begin(g, &s, false, &error) && grammar_fault(g) == GRAMMAR_FITS &&
           !grammar_advance_bytes(g, &s, "{\"a\":\"", 6, &error) && grammar_fault(g) == GRAMMAR_LARGE &&
           strstr(error.text, "too ambiguous"),
       "what becomes too ambiguous is the grammar's", error.text);
    grammar_release(g);
}

// ---- masks -----------------------------------------------------------------------------------------------------------------

// Tokens whose bit is not what trying them says.
static int differences(struct grammar *g, const struct grammar_state *s, const uint32_t *mask)
{
    static struct grammar_state t;
    struct error error;
    int wrong = 0;
    for (int32_t id = 0; id < model.vocabulary; id++) {
        size_t bytes;
        grammar_token(vocabulary, id, &bytes);
        grammar_copy(&t, s);
        const bool may = bytes > 0 && grammar_advance(g, &t, id, &error);
        wrong += may != ((mask[id / 32] >> (id % 32) & 1) != 0);
    }
    return wrong;
}

// One of the tokens that a mask allows, short ones and closing ones rather.
static int32_t pick(const uint32_t *mask, int32_t count)
{
    int32_t best = -1;
    for (int k = 0; k < 5; k++) {
        uint32_t skip = below((uint32_t)count);
        int32_t id = 0;
        size_t bytes;
        for (;; id++)
            if ((mask[id / 32] >> (id % 32) & 1) && skip-- == 0)
                break;
        const char *text = grammar_token(vocabulary, id, &bytes);
        if (best < 0 || bytes < 3)
            best = id;
        if (bytes > 0 && strchr("\"}],)", text[0]))
            return id;
    }
    return best;
}

// Walks at random; counts states, tokens that are wrong, and states without a token.
static void wander(struct grammar *g, int walks, int steps, int every, int *states, int *wrong, int *dead)
{
    uint32_t *mask = calloc((size_t)mask_words(model.vocabulary), sizeof *mask);
    struct grammar_state s;
    struct error error;
    for (int w = 0; w < walks; w++) {
        bool good = grammar_begin(g, &s, w % 2, &error);
        for (int k = 0; good && k < steps && s.count > 0; k++) {
            int32_t count = 0;
            good = grammar_mask(g, &s, mask, &count, &error);
            *dead += !good || count == 0;
            if (!good || count == 0)
                break;
            if (k % every == 0) {
                ++*states;
                *wrong += differences(g, &s, mask);
            }
            good = grammar_advance(g, &s, pick(mask, count), &error);
            *dead += !good;
        }
    }
    free(mask);
}

static const char *const wandered[] = {
    "j",
    "s{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"na\":{\"type\":\"integer\",\"minimum\":-5,"
    "\"maximum\":1234},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":9},\"maxItems\":4},\"kind\":{\"enum\":["
    "\"one\",\"only\",\"two\"]},"
    "\"child\":{\"$ref\":\"#\"},\"when\":{\"type\":\"string\",\"format\":\"date-time\"}},\"required\":[\"name\"],"
    "\"additionalProperties\":{\"type\":\"number\"}}",
    "r([a-z]+( [a-z0-9]{1,8}){2,5}[.!?]\\n?)*",
    "troot ::= expr (\"\\n\" expr)*\nexpr ::= term ([-+] term)*\nterm ::= [0-9]+ | \"(\" expr \")\" | name\nname ::= "
    "[a-z_]{1,6}",
    "x{\"get\":{\"properties\":{\"n\":{\"type\":\"integer\"},\"s\":{\"type\":\"string\"}},\"required\":[\"n\"]},\"go\":"
    "{}}",
    "o{\"get\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}},\"set\":{}}",
};

static void test_masks(void)
{
    int states = 0, wrong = 0, dead = 0;
    for (size_t i = 0; i < sizeof wandered / sizeof *wandered; i++) {
        struct error error = {.text = ""};
        struct grammar *g = make(wandered[i][0], wandered[i] + 1, &error);
        if (g)
            wander(g, 10, 80, 7, &states, &wrong, &dead);
        else
            wrong++;
        grammar_release(g);
    }
    char detail[200];
    snprintf(detail, sizeof detail, "%d states, %d tokens wrong, %d dead ends", states, wrong, dead);
    ok(states > 200 && wrong == 0 && dead == 0, "masks are what trying every token says", detail);
}

// The tree forgets a token that every string may have: the comparison must see it.
static void test_red(void)
{
    struct error error;
    int states = 0, wrong = 0, dead = 0;
    uint32_t node = 1;
    while (node < vocabulary->nodes && vocabulary->byte[node] != 'e')
        node = vocabulary->skip[node];
    const int32_t kept = vocabulary->token[node];
    vocabulary->token[node] = -1;
    struct grammar *g = make('j', "", &error);
    wander(g, 4, 60, 1, &states, &wrong, &dead);
    ok(kept >= 0 && wrong > 0, "red control: a tree that forgot a token", NULL);
    vocabulary->token[node] = kept;
    grammar_release(g);
    // What follows a string's end within a token is forgotten.
    g = make('j', "", &error);
    struct grammar_state s;
    uint32_t *mask = calloc((size_t)mask_words(model.vocabulary), sizeof *mask);
    int32_t count;
    bool good = grammar_begin(g, &s, false, &error) && grammar_advance_bytes(g, &s, "{\"a", 3, &error) &&
                grammar_mask(g, &s, mask, &count, &error) && differences(g, &s, mask) == 0;
    for (int32_t i = 1; i < g->locals.count; i++)
        if (g->locals.at[i].mask)
            g->locals.at[i].mask->exit_count = 0;
    good = good && grammar_mask(g, &s, mask, &count, &error);
    ok(good && differences(g, &s, mask) > 0, "red control: ends of a string that lead nowhere", NULL);
    free(mask);
    grammar_release(g);
}

static void test_guesses(void)
{
    struct error error;
    struct grammar *g = make(
        's', "{\"properties\":{\"description\":{\"const\":\"unchangeable\"}},\"required\":[\"description\"]}", &error);
    struct grammar_state s;
    int32_t guess[16];
    int count = 0;
    bool good = g && grammar_begin(g, &s, false, &error) && grammar_advance_bytes(g, &s, "{\"", 2, &error);
    count = good ? grammar_guess(g, &s, guess, 16) : 0;
    for (int i = 0; good && i < count; i++)
        good = grammar_advance(g, &s, guess[i], &error);
    ok(good && count > 1, "what the grammar forces is guessed and allowed", NULL);
    grammar_release(g);
}

int main(void)
{
    struct error error;
    if (!grammar_vocabulary_open(&vocabulary, &tokenizer_tables, model.vocabulary, model.end_tokens, model.end_count,
                                 &error)) {
        ok(false, "the vocabulary opens", error.text);
        return done();
    }
    test_languages(languages, sizeof languages / sizeof *languages);
    test_languages(strict_languages, sizeof strict_languages / sizeof *strict_languages);
    test_refusals(refusals, sizeof refusals / sizeof *refusals);
    test_refusals(strict_refusals, sizeof strict_refusals / sizeof *strict_refusals);
    test_nesting();
    test_ambiguity();
    test_masks();
    test_red();
    test_guesses();
    grammar_vocabulary_close(vocabulary);
    return done();
}
