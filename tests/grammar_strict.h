// SPDX-License-Identifier: Apache-2.0
//
// Calls in XML of tools that are strict, and of ones that are not: what their grammars accept and reject, and schemas that are
// refused. A part of grammar_test.c, whose letters for front ends these are.

#ifndef GRAMMAR_STRICT_H
#define GRAMMAR_STRICT_H

struct language {
    char kind;
    const char *text;
    const char *yes[8], *no[8];
};

struct refusal {
    char kind;
    const char *text, *says;
};

#define GET(parameters) "<tool_call>\n<function=get>\n" parameters "</function>\n</tool_call>"
#define P(name, value)  "<parameter=" name ">\n" value "\n</parameter>\n"

static const struct language strict_languages[] = {
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"const\":\"a b\"}},\"required\":[\"s\"]}}",
     {GET(P("s", "a b"))},
     {GET(P("s", "x")), GET(P("s", "")), GET("")}},
    {'X', "{\"get\":{\"properties\":{\"s\":{\"const\":5}}}}", {GET(P("s", "5")), GET("")}, {GET(P("s", "6"))}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"enum\":[\"x\",1,null,true,[1,\"y\"],\"xy\",0.1]}},\"required\":[\"s\"]}}",
     {GET(P("s", "x")), GET(P("s", "1")), GET(P("s", "null")), GET(P("s", "true")), GET(P("s", "[1, \"y\"]")),
      GET(P("s", "xy")), GET(P("s", "0.1"))},
     {GET(P("s", "y")), GET(P("s", "2")), GET(P("s", "false")), GET(P("s", "\"x\"")), GET(P("s", "[1]"))}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"type\":[\"string\",\"null\"],\"enum\":[\"x\",1,null],\"title\":\"S\"}},"
     "\"required\":[\"s\"]}}",
     {GET(P("s", "x")), GET(P("s", "null"))},
     {GET(P("s", "1"))}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"anyOf\":[{\"enum\":[\"a\",\"b\"]},{\"const\":7},{\"type\":\"null\"}]}},"
     "\"required\":[\"s\"]}}",
     {GET(P("s", "a")), GET(P("s", "7")), GET(P("s", "null"))},
     {GET(P("s", "c")), GET(P("s", "8"))}},
    {'X',
     "{\"get\":{\"properties\":{\"a\":false,\"b\":{\"type\":\"integer\"},\"c\":true}}}",
     {GET(""), GET(P("b", "1")), GET(P("b", "1") P("c", "<x>"))},
     {GET(P("a", "1")), GET(P("b", "x"))}},
    {'X',
     "{\"get\":{\"properties\":{\"a\":{}},\"required\":[\"n\"],\"additionalProperties\":{\"type\":\"integer\"}}}",
     {GET(P("n", "3")), GET(P("a", "x") P("n", "3"))},
     {GET(P("n", "x")), GET(""), GET(P("a", "x"))}},
    {'X',
     "{\"get\":{\"additionalProperties\":{\"type\":\"integer\"}}}",
     {GET(""), GET(P("any", "3") P("other", "4"))},
     {GET(P("any", "x"))}},
    {'X', "{\"get\":{\"required\":[\"a\"]}}", {GET(P("a", "x"))}, {GET("")}},
    {'X', "{\"get\":{\"additionalProperties\":false}}", {GET("")}, {GET(P("any", "3"))}},
    {'x', "{\"get\":{\"additionalProperties\":false}}", {GET("")}, {GET(P("any", "3"))}},
    {'X', "{\"get\":{\"type\":\"object\"}}", {GET(""), GET(P("any", "<b>"))}, {}},
    {'X',
     "{\"get\":{\"properties\":{\"n\":{\"minimum\":3}},\"required\":[\"n\"],\"minProperties\":1,\"maxProperties\":1}}",
     {GET(P("n", "4"))},
     {GET(P("n", "2")), GET(P("n", "x")), GET("")}},
    {'X',
     "{\"get\":{\"allOf\":[{\"properties\":{\"n\":{\"type\":\"integer\"}}},{\"required\":[\"n\"]}]}}",
     {GET(P("n", "4"))},
     {GET(""), GET(P("n", "x"))}},
    // What is not strict keeps to names and types.
    {'x',
     "{\"get\":{\"properties\":{\"s\":{\"const\":5},\"t\":{\"enum\":[\"x\",1]}},\"required\":[\"s\",3],"
     "\"maxProperties\":1,\"anyOf\":[{}]}}",
     {GET(P("s", "abc")), GET(P("s", "5") P("t", "y"))},
     {GET(""), GET(P("u", "1"))}},
    {'x', "{\"get\":{\"properties\":{\"a\":false,\"b\":{}}}}", {GET(""), GET(P("b", "1"))}, {GET(P("a", "1"))}},
    // In JSON arguments are an object and nothing else.
    {'o',
     "{\"get\":{\"type\":[\"object\",\"null\"],\"nullable\":true,\"properties\":{\"n\":{}}}}",
     {"<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": 3}}\n</tool_call>"},
     {"<tool_call>\n{\"name\": \"get\", \"arguments\": null}\n</tool_call>"}},
    {'o',
     "{\"get\":{\"anyOf\":[{\"type\":\"string\"},{\"required\":[\"a\"]}]}}",
     {"<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 3}}\n</tool_call>"},
     {"<tool_call>\n{\"name\": \"get\", \"arguments\": \"a\"}\n</tool_call>",
      "<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>"}},
};

#define REF8                                                                                                           \
    "{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"},"             \
    "{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"}"
#define OF_S(schema) "{\"f\":{\"properties\":{\"s\":" schema "}}}"

static const struct refusal strict_refusals[] = {
    {'X', OF_S("{\"enum\":[\"a\"],\"pattern\":\"a\"}"), "#/properties/s: \"pattern\" beside enum or const"},
    {'X', OF_S("{\"const\":\"a\",\"maxLength\":3}"), "\"maxLength\" beside enum or const"},
    {'X', OF_S("{\"enum\":[]}"), "#/properties/s: enum, const and type allow no value"},
    {'X', OF_S("{\"enum\":\"a\"}"), "enum must be a list"},
    {'X', OF_S("{\"type\":[\"string\",\"null\"],\"const\":5}"), "allow no value"},
    {'X', OF_S("{\"enum\":[\"5\",1.5]}"), "cannot give the value \"5\""},
    {'X', OF_S("{\"enum\":[\" true\",false]}"), "cannot give the value \" true\""},
    {'X', OF_S("{\"type\":[\"string\",\"integer\"],\"enum\":[\"12\"]}"), "cannot give the value \"12\""},
    {'X', OF_S("{\"const\":\"a\\n</parameter>\\nb\"}"), "cannot give the value"},
    {'X', OF_S("{\"type\":[\"string\",\"integer\"],\"minimum\":3}"), "\"minimum\" of a strict tool's parameter"},
    {'X', OF_S("{\"type\":[\"string\",\"array\"],\"items\":{}}"), "\"items\" of a strict tool's parameter"},
    {'X', "{\"f\":{\"anyOf\":[{}]}}", "\"anyOf\" at the top of a strict tool's parameters"},
    {'X', "{\"f\":{\"properties\":{\"a\":{}},\"oneOf\":[{}]}}", "\"oneOf\" at the top"},
    {'X', "{\"f\":{\"enum\":[{}]}}", "\"enum\" at the top"},
    {'X', "{\"f\":{\"const\":{}}}", "\"const\" at the top"},
    {'X', "{\"f\":{\"propertyNames\":{}}}", "\"propertyNames\" at the top"},
    {'X', "{\"f\":{\"patternProperties\":{\"a\":{}}}}", "\"patternProperties\" at the top"},
    {'X', "{\"f\":{\"properties\":{\"a\":{},\"b\":{}},\"maxProperties\":1}}", "maxProperties of a strict"},
    {'X', "{\"f\":{\"maxProperties\":1}}", "maxProperties of a strict"},
    {'X', "{\"f\":{\"properties\":{\"a\":{}},\"minProperties\":1}}", "maxProperties of a strict"},
    {'X', "{\"f\":{\"properties\":[]}}", "properties must be an object"},
    {'X', "{\"f\":{\"properties\":{\"a\":{}},\"required\":\"a\"}}", "required a list of names"},
    {'X', "{\"f\":{\"properties\":{\"a\":{}},\"required\":[\"a\",3]}}", "required must be a list of names"},
    {'X', "{\"f\":{\"properties\":{\"a\":{}},\"required\":[\"b\"]}}", "\"b\" is required and none of the properties"},
    {'X', "{\"f\":{\"properties\":{\"a\":false},\"required\":[\"a\"]}}", "\"a\" is required, and its schema allows no"},
    {'X', "{\"f\":{\"properties\":{\"a>b\":{}}}}", "a name of 1 to 256 bytes"},
    {'x', "{\"f\":{\"properties\":{\"\":{}}}}", "a name of 1 to 256 bytes"},
    {'X',
     "{\"f\":{\"properties\":{\"a\":{\"$ref\":\"#/$defs/a\"}},\"$defs\":{\"a\":{\"anyOf\":[" REF8 "," REF8 "," REF8
     "]}}}}",
     "nested deeper"},
    {'X', OF_S("{\"pattern\":\"(\"}"), "tool \"f\": schema, #/properties/s: pattern, byte 1: ) is missing"},
    {'s', "{\"properties\":{\"a\":{\"pattern\":\"(\"}}}", "schema, #/properties/a: pattern, byte 1: ) is missing"},
    {'s', "{\"items\":{\"pattern\":\"\\\\b\",\"maxLength\":2}}", "schema, #/items: pattern, byte 1: \\b is not"},
    {'s', "{\"patternProperties\":{\"*\":{}}}", "patternProperties, byte 0: there is nothing to repeat"},
};

#endif
