// SPDX-License-Identifier: Apache-2.0
//
// Texts of models, and what they are read as: R(reasoning) C(content) INDEX:NAME{ARGUMENTS}.

#ifndef REPLY_CASES_H
#define REPLY_CASES_H

#include "runtime/reply/reply.h"

struct reply_case {
    const char *name;
    enum reply_dialect dialect;
    const char *text, *expected;
    bool reasoning, no_tools, one_call, asked;
    const char *stop[4]; // NULL behind the last
};

static const char case_tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"write_file\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {"
    "\"path\": {\"type\": \"string\"}, \"content\": {\"type\": \"string\"}, \"mode\": {\"type\": [\"integer\", "
    "\"null\"]}}}}},"
    "{\"type\": \"function\", \"function\": {\"name\": \"typed\", \"parameters\": {\"type\": \"object\", \"$defs\": "
    "{\"list\": "
    "{\"type\": \"array\"}}, \"properties\": {\"i\": {\"type\": \"integer\"}, \"n\": {\"type\": \"number\"}, \"b\": "
    "{\"type\": "
    "\"boolean\"}, \"z\": {\"type\": \"null\"}, \"a\": {\"type\": \"array\"}, \"o\": {\"type\": \"object\"}, \"s\": "
    "{\"type\": "
    "\"string\"}, \"sn\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}, \"si\": {\"type\": [\"string\", "
    "\"integer\"]}, \"so\": {\"type\": [\"string\", \"object\"]}, \"r\": {\"$ref\": \"#/$defs/list\"}, \"e\": "
    "{\"enum\": [1, 2]}, "
    "\"any\": {}}}}},"
    "{\"type\": \"function\", \"name\": \"bare\"}]";

#define XML(name, body)      "<tool_call>\n<function=" name ">\n" body "</function>\n</tool_call>"
#define PARAMETER(key, text) "<parameter=" key ">\n" text "\n</parameter>\n"
#define TYPED(key, text)     XML("typed", PARAMETER(key, text))

static const struct reply_case reply_cases[] = {
    // Reasoning and content.
    {"plain text", REPLY_PLAIN, "Hello\n\nthere \n", "C(Hello\n\nthere \n)"},
    {"nothing", REPLY_XML, "", ""},
    {"reasoning that the prompt opened", REPLY_XML, "so\nit is\n</think>\n\nYes.", "R(so\nit is)C(Yes.)",
     .reasoning = true},
    {"reasoning that the model opens", REPLY_PLAIN, "<think>\nhm\n</think>\n\nYes.", "R(hm)C(Yes.)"},
    {"the opening marker again", REPLY_PLAIN, "<think>\nhm</think>Yes.", "R(hm)C(Yes.)", .reasoning = true},
    {"reasoning without an end", REPLY_XML, "hm\n\nwell", "R(hm\n\nwell)", .reasoning = true},
    {"an empty think block", REPLY_XML, "\n\n</think>\n\nYes.\n", "C(Yes.\n)", .reasoning = true},
    {"the marker later in content", REPLY_PLAIN, "a <think> b </think> c", "C(a <think> b </think> c)"},
    {"parts of markers", REPLY_XML, "a </thin </think", "R(a </thin </think)", .reasoning = true},
    {"blanks before content", REPLY_PLAIN, "  <thin", "C(  <thin)"},
    {"characters of every length", REPLY_PLAIN, "aé€😀", "C(aé€😀)"},
    {"bytes that are no characters", REPLY_PLAIN,
     "a\xff"
     "b\xe2\x82"
     "c",
     "C(a\xEF\xBF\xBD"
     "b\xEF\xBF\xBD"
     "c)"},
    {"a character cut short at the end", REPLY_PLAIN, "a\xf0\x9f\x98", "C(a)"},
    // Stop strings.
    {"a stop string", REPLY_PLAIN, "abcDEFGHIJk", "C(abc)", .stop = {"DEFGHIJ"}},
    {"almost a stop string", REPLY_PLAIN, "abcDEFGHI", "C(abcDEFGHI)", .stop = {"DEFGHIJ"}},
    {"a stop string that begins again", REPLY_PLAIN, "aababac", "C(aa)", .stop = {"babac"}},
    {"the first of two stop strings", REPLY_PLAIN, "xabcdX", "C(xa)", .stop = {"abcdX", "bc"}},
    {"the longer of two that end together", REPLY_PLAIN, "xabc", "C(x)", .stop = {"bc", "abc"}},
    {"a stop string in reasoning", REPLY_XML, "one two three", "R(one )", .reasoning = true, .stop = {"two"}},
    {"a stop string that is a marker's beginning", REPLY_XML, "hm\n</think>\n\nx<y", "R(hm)C(x)", .reasoning = true,
     .stop = {"<y"}},
    {"a stop string of several bytes a character", REPLY_PLAIN, "aé€b", "C(aé)", .stop = {"€"}},
    {"a stop string in a call", REPLY_XML, XML("write_file", PARAMETER("path", "a.STOP")),
     "0:write_file{\"path\":\"a.\"}", .stop = {"STOP"}},
    // XML calls.
    {"a call", REPLY_XML, XML("write_file", PARAMETER("path", "/a b") PARAMETER("content", "  x\n\ty \n")),
     "0:write_file{\"path\":\"/a b\",\"content\":\"  x\\n\\ty \\n\"}"},
    {"content, then a call", REPLY_XML, "I look.\n\n" XML("bare", "") "\n", "C(I look.)0:bare{}"},
    {"reasoning, then a call", REPLY_XML, "hm\n</think>\n\n" XML("bare", ""), "R(hm)0:bare{}", .reasoning = true},
    {"two calls", REPLY_XML, XML("bare", "") "\n" XML("write_file", PARAMETER("path", "p")),
     "0:bare{}1:write_file{\"path\":\"p\"}"},
    {"the first of two calls", REPLY_XML, XML("bare", "") "\n" XML("bare", ""), "0:bare{}", .one_call = true},
    {"text behind a call", REPLY_XML, "a\n" XML("bare", "") "\n\nb", "C(a)0:bare{}C(\nb)"},
    {"quotes and escapes in a string", REPLY_XML, TYPED("s", "\"a\" \\n \x01 é"),
     "0:typed{\"s\":\"\\\"a\\\" \\\\n \\u0001 é\"}"},
    {"a value on the marker's line", REPLY_XML, XML("typed", "<parameter=s>x</parameter>"), "0:typed{\"s\":\"x\"}"},
    {"an empty value", REPLY_XML, XML("typed", "<parameter=s>\n</parameter>\n<parameter=z></parameter>"),
     "0:typed{\"s\":\"\",\"z\":\"\"}"},
    {"markers inside a value", REPLY_XML,
     XML("write_file", PARAMETER("content", "<a></parameter></a>\n</function>\n<parameter=x>\n")),
     "0:write_file{\"content\":\"<a></parameter></a>\\n</function>\\n<parameter=x>\\n\"}"},
    {"a value without its end", REPLY_XML, XML("write_file", "<parameter=path>\np\n<parameter=content>\nc\n"),
     "0:write_file{\"path\":\"p\",\"content\":\"c\"}"},
    {"a call without any end", REPLY_XML, "<tool_call>\n<function=write_file>\n<parameter=path>\np\n",
     "0:write_file{\"path\":\"p\"}"},
    {"a call cut in a marker", REPLY_XML, "<tool_call>\n<function=write_file>\n<parameter=path>\np\n</param",
     "0:write_file{\"path\":\"p\"}"},
    {"a call cut in a marker's first sign", REPLY_XML, "<tool_call>\n<function=write_file>\n<parameter=path>\np\n<",
     "0:write_file{\"path\":\"p\"}"},
    {"a call cut behind a sign that is text", REPLY_XML, "<tool_call>\n<function=write_file>\n<parameter=path>\np <",
     "0:write_file{\"path\":\"p <\"}"},
    {"a second call cut in its marker", REPLY_XML, "a\n" XML("bare", "") "\n<tool", "C(a)0:bare{}"},
    {"a second call cut before it begins", REPLY_XML, XML("bare", "") "\n<tool_call>\n<function=ba", "0:bare{}"},
    {"a second JSON call cut before it begins", REPLY_JSON,
     "<tool_call>{\"name\": \"bare\"}</tool_call>\n<tool_call>\n{\"na", "0:bare{}"},
    {"a second call that is none", REPLY_XML, XML("bare", "") "<tool_call>\n<fun>", "0:bare{}C(<tool_call>\n<fun>)"},
    {"a call that is asked for, cut before it begins", REPLY_XML, "hm</think>\n\n<tool_call>\n<", "R(hm)",
     .reasoning = true, .asked = true},
    {"a JSON call that is asked for, cut before it begins", REPLY_JSON, "<tool_call>\n", "", .asked = true},
    {"a sign behind a call that is text", REPLY_XML, XML("bare", "") "\n<too much", "0:bare{}C(<too much)"},
    {"a call cut between parameters", REPLY_XML, "<tool_call>\n<function=write_file>\n" PARAMETER("path", "p") "<para",
     "0:write_file{\"path\":\"p\"}"},
    {"a function without its call", REPLY_XML, "<function=bare>\n</function>", "0:bare{}"},
    {"a call without the function's end", REPLY_XML, "<tool_call><function=bare></tool_call>x", "0:bare{}C(x)"},
    {"a parameter twice", REPLY_XML, XML("typed", PARAMETER("i", "1") PARAMETER("i", "2")), "0:typed{\"i\":1}"},
    {"a tool that is not offered", REPLY_XML, "a " XML("rm", "") " b", "C(a " XML("rm", "") " b)"},
    {"a call that is none", REPLY_XML, "Write <tool_call> and <function=bare> so.",
     "C(Write <tool_call> and <function=bare> so.)"},
    {"half a call", REPLY_XML, "a\n\n<tool_call>\n<function=ba", "C(a\n\n<tool_call>\n<function=ba)"},
    {"no tools", REPLY_XML, XML("bare", ""), "C(" XML("bare", "") ")", .no_tools = true},
    {"a JSON call where XML is usual", REPLY_XML,
     "<tool_call>\n{\"name\": \"typed\", \"arguments\": {\"i\": 1}}\n</tool_call>", "0:typed{\"i\":1}"},
    {"an XML call where JSON is usual", REPLY_JSON, XML("typed", PARAMETER("i", "1")), "0:typed{\"i\":1}"},
    // Calls in a think block.
    {"a call in an open think block", REPLY_XML, "hm\n" XML("typed", PARAMETER("i", "4")) "\n", "R(hm)0:typed{\"i\":4}",
     .reasoning = true},
    {"two calls in an open think block", REPLY_XML, "hm" XML("bare", "") XML("bare", ""), "R(hm)0:bare{}1:bare{}",
     .reasoning = true},
    {"the first of them", REPLY_XML, "hm" XML("bare", "") XML("bare", ""), "R(hm)0:bare{}", .reasoning = true,
     .one_call = true},
    {"a call in a think block that ends", REPLY_XML, "hm\n" XML("bare", "") "\n</think>\n\nx",
     "R(hm\n" XML("bare", "") ")C(x)", .reasoning = true},
    {"calls in a think block and behind it", REPLY_XML, "hm\n" XML("bare", "") "</think>" XML("typed", ""),
     "R(hm\n" XML("bare", "") ")0:typed{}", .reasoning = true},
    {"text behind a call in a think block", REPLY_XML, "hm\n" XML("bare", "") "\nwell",
     "R(hm\n" XML("bare", "") "\nwell)", .reasoning = true},
    {"half a call in a think block", REPLY_XML, "hm\n<tool_call>\n<function=typed>\n<parameter=s>\nx",
     "R(hm\n<tool_call>\n<function=typed>\n<parameter=s>\nx)", .reasoning = true},
    {"no call in a think block", REPLY_XML, "a <tool_call> b</think>c", "R(a <tool_call> b)C(c)", .reasoning = true},
    {"the block's end in a call's value", REPLY_XML, "hm\n<tool_call>\n<function=typed>\n<parameter=s>\nx</think>y",
     "R(hm\n<tool_call>\n<function=typed>\n<parameter=s>\nx)C(y)", .reasoning = true},
    // Types.
    {"an integer", REPLY_XML, TYPED("i", " 42 "), "0:typed{\"i\":42}"},
    {"an integer with a point", REPLY_XML, TYPED("i", "-42.0"), "0:typed{\"i\":-42}"},
    {"no integer", REPLY_XML, TYPED("i", "4x"), "0:typed{\"i\":\"4x\"}"},
    {"a long integer", REPLY_XML, TYPED("i", "123456789012345678"), "0:typed{\"i\":123456789012345678}"},
    {"a number", REPLY_XML, TYPED("n", "-1.50e-3"), "0:typed{\"n\":-1.50e-3}"},
    {"numbers that JSON has not", REPLY_XML, XML("typed", PARAMETER("n", ".5") PARAMETER("i", "+7")),
     "0:typed{\"n\":0.5,\"i\":7}"},
    {"no number", REPLY_XML, TYPED("n", "NaN"), "0:typed{\"n\":\"NaN\"}"},
    {"a boolean", REPLY_XML, TYPED("b", "true"), "0:typed{\"b\":true}"},
    {"Python's boolean", REPLY_XML, TYPED("b", "False"), "0:typed{\"b\":false}"},
    {"no boolean", REPLY_XML, TYPED("b", "yes"), "0:typed{\"b\":\"yes\"}"},
    {"null", REPLY_XML, XML("typed", PARAMETER("z", "null") PARAMETER("i", "None")), "0:typed{\"z\":null,\"i\":null}"},
    {"an array", REPLY_XML, TYPED("a", "[1, \"two\", {\"x\": [true]}]"), "0:typed{\"a\":[1,\"two\",{\"x\":[true]}]}"},
    {"an array without its end", REPLY_XML, TYPED("a", "[1, [\"two"), "0:typed{\"a\":[1,[\"two\"]]}"},
    {"Python's array", REPLY_XML, TYPED("a", "['it\\'s', \"a\", None, True, ]"),
     "0:typed{\"a\":[\"it's\",\"a\",null,true]}"},
    {"an array by reference", REPLY_XML, TYPED("r", "[2]"), "0:typed{\"r\":[2]}"},
    {"no array", REPLY_XML, TYPED("a", "one, two"), "0:typed{\"a\":\"one, two\"}"},
    {"markers in an array's string", REPLY_XML, TYPED("a", "[\"</parameter>\", 1]"),
     "0:typed{\"a\":[\"</parameter>\",1]}"},
    {"an object", REPLY_XML, TYPED("o", "{\"k\": 1.0,\n \"l\": {}}"), "0:typed{\"o\":{\"k\":1.0,\"l\":{}}}"},
    {"an object of words", REPLY_XML, TYPED("o", "{k: v w, l:}"), "0:typed{\"o\":{\"k\":\"v w\",\"l\":null}}"},
    {"null or a string", REPLY_XML, TYPED("sn", "None"), "0:typed{\"sn\":null}"},
    {"a string that begins like null", REPLY_XML, TYPED("sn", "nullable"), "0:typed{\"sn\":\"nullable\"}"},
    {"an integer or a string", REPLY_XML, TYPED("si", "12"), "0:typed{\"si\":12}"},
    {"a string that begins like an integer", REPLY_XML, TYPED("si", "12 o'clock"), "0:typed{\"si\":\"12 o'clock\"}"},
    {"an object or a string", REPLY_XML, TYPED("so", "{\"a\": 1}"), "0:typed{\"so\":{\"a\":1}}"},
    {"a string that begins like an object", REPLY_XML, TYPED("so", "{a}"), "0:typed{\"so\":\"{a}\"}"},
    {"types from an enumeration", REPLY_XML, TYPED("e", "2"), "0:typed{\"e\":2}"},
    {"any type", REPLY_XML, TYPED("any", "[1]"), "0:typed{\"any\":[1]}"},
    {"a parameter that is not declared", REPLY_XML, TYPED("other", "12"), "0:typed{\"other\":\"12\"}"},
    {"the tool of another form", REPLY_XML, XML("bare", PARAMETER("x", "1")), "0:bare{\"x\":\"1\"}"},
    // JSON calls.
    {"a JSON call", REPLY_JSON,
     "<tool_call>\n{\"name\": \"typed\", \"arguments\": {\"i\": 1, \"s\": \"a\\nb\"}}\n</tool_call>",
     "0:typed{\"i\":1,\"s\":\"a\\nb\"}"},
    {"two JSON calls", REPLY_JSON,
     "Look.\n<tool_call>{\"name\": \"bare\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": "
     "\"bare\"}</tool_call>",
     "C(Look.)0:bare{}1:bare{}"},
    {"numbers before the name", REPLY_JSON,
     "<tool_call>{\"arguments\": {\"a\": [0.1, 1e-7, 18446744073709551616, -99999999999999999999]}, \"name\": "
     "\"typed\"}</tool_call>",
     "0:typed{\"a\":[0.1,1e-7,18446744073709551616,-99999999999999999999]}"},
    {"numbers in a text", REPLY_JSON,
     "<tool_call>{\"name\": \"typed\", \"arguments\": \"{\\\"i\\\": 18446744073709551616, \\\"n\\\": "
     "0.1}\"}</tool_call>",
     "0:typed{\"i\":18446744073709551616,\"n\":0.1}"},
    {"arguments before the name", REPLY_JSON, "<tool_call>{\"arguments\": {\"i\": 1}, \"name\": \"typed\"}</tool_call>",
     "0:typed{\"i\":1}"},
    {"arguments in a string", REPLY_JSON,
     "<tool_call>{\"name\": \"typed\", \"arguments\": \"{\\\"i\\\": 1}\"}</tool_call>", "0:typed{\"i\":1}"},
    {"the end's text in a string", REPLY_JSON,
     "<tool_call>{\"name\": \"typed\", \"arguments\": {\"s\": \"</tool_call>\"}}</tool_call>",
     "0:typed{\"s\":\"</tool_call>\"}"},
    {"brackets that lack", REPLY_JSON,
     "<tool_call>{\"name\": \"typed\", \"arguments\": {\"a\": [1, {\"x\": \"y\"</tool_call> b",
     "0:typed{\"a\":[1,{\"x\":\"y\"}]}C(b)"},
    {"Python's JSON", REPLY_JSON, "<tool_call>{'name': 'typed', 'arguments': {'b': True}}</tool_call>",
     "0:typed{\"b\":true}"},
    {"other keys", REPLY_JSON,
     "<tool_call>{\"name\": \"typed\", \"parameters\": {\"i\": 1}, \"id\": \"x\"}</tool_call>", "0:typed{\"i\":1}"},
    {"a JSON call without its end", REPLY_JSON, "<tool_call>{\"name\": \"typed\", \"arguments\": {\"s\": \"x",
     "0:typed{\"s\":\"x\"}"},
    {"escapes of pairs", REPLY_JSON,
     "<tool_call>{\"name\": \"typed\", \"arguments\": {\"s\": \"\\ud83d\\ude00 \\ud83d x \\ude00 \\u12\"}}</tool_call>",
     "0:typed{\"s\":\"\\ud83d\\ude00 \\ufffd x \\ufffd \\\\u12\"}"},
    {"a JSON tool that is not offered", REPLY_JSON, "<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>",
     "C(<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>)"},
    {"no JSON call", REPLY_JSON, "<tool_call>\nrm\n</tool_call>", "C(<tool_call>\nrm\n</tool_call>)"},
    {"JSON without a name", REPLY_JSON, "<tool_call>{\"i\": 1}</tool_call>", "C(<tool_call>{\"i\": 1}</tool_call>)"},
    {"a JSON call in an open think block", REPLY_JSON,
     "hm\n<tool_call>{\"name\": \"bare\", \"arguments\": {}}</tool_call>", "R(hm)0:bare{}", .reasoning = true},
    {"a JSON call in a think block that ends", REPLY_JSON, "<tool_call>{\"name\": \"bare\"}</tool_call></think>x",
     "R(<tool_call>{\"name\": \"bare\"}</tool_call>)C(x)", .reasoning = true},
};

// How a case is read.
static inline struct reply_options options_of(const struct reply_case *c, const json_t *tools)
{
    struct reply_options o = {.dialect = c->dialect,
                              .reasoning = c->reasoning,
                              .reasoning_open = "<think>",
                              .reasoning_close = "</think>",
                              .tools = c->no_tools ? NULL : tools,
                              .stop = c->stop,
                              .call_asked = c->asked,
                              .parallel_calls = !c->one_call};
    while (c->stop[o.stop_count])
        o.stop_count++;
    return o;
}

#endif
