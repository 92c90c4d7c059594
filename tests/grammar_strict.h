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

#define OF_S(schema)    "{\"f\":{\"properties\":{\"s\":" schema "}}}"
#define NEEDS_S(schema) "{\"f\":{\"required\":[\"s\"],\"properties\":{\"a\":{\"type\":\"integer\"},\"s\":" schema "}}}"

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
    // Whole numbers of more than 64 bits keep their digits.
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"type\":\"integer\",\"enum\":[18446744073709551616,-9223372036854775809]}}}}",
     {GET(P("s", "18446744073709551616")), GET(P("s", "-9223372036854775809"))},
     {GET(P("s", "18446744073709551617")), GET(P("s", "1.8446744073709552e19")), GET(P("s", "1"))}},
    {'X',
     "{\"get\":{\"properties\":{\"s\":{\"enum\":[\"x\",18446744073709551616]}}}}",
     {GET(P("s", "18446744073709551616")), GET(P("s", "x"))},
     {GET(P("s", "\"18446744073709551616\"")), GET(P("s", "y"))}},
    {'o',
     "{\"get\":{\"properties\":{\"n\":{\"const\":[18446744073709551616,0.1]}}}}",
     {"<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": [18446744073709551616, 0.1]}}\n</tool_call>"},
     {"<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": [18446744073709551617, 0.1]}}\n</tool_call>"}},
    {'s', "{\"minLength\":1,\"maxLength\":99999999999999999999,\"type\":\"string\"}", {"\"a\""}, {"\"\""}},
    {'s',
     "{\"anyOf\":[{\"const\":18446744073709551616},{\"type\":\"integer\",\"minimum\":-18446744073709551616,"
     "\"maximum\":18446744073709551615,\"exclusiveMinimum\":0}]}",
     {"18446744073709551616", "999999999999999999", "1"},
     {"1.8446744073709552e19", "0", "-1", "18446744073709551617", "1.5"}},
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
    // Formats that are not known, or of another type than the values, say nothing.
    {'s', "{\"type\":\"string\",\"format\":\"colour\"}", {"\"any<\""}, {"3"}},
    {'s', "{\"type\":\"string\",\"format\":\"int64\"}", {"\"x\"", "\"12\""}, {"12"}},
    {'s', "{\"type\":\"string\",\"format\":\"password\",\"minLength\":2}", {"\"xy\""}, {"\"x\""}},
    {'s', "{\"type\":\"integer\",\"format\":\"date\"}", {"7", "-7"}, {"\"2020-01-01\""}},
    {'s', "{\"type\":\"number\",\"format\":\"float\"}", {"7.5", "-7"}, {"\"7\""}},
    {'s', "{\"type\":\"integer\",\"format\":\"uint64\"}", {"0", "999999999999999999"}, {"-1", "1.5"}},
    {'s', "{\"format\":\"uint8\"}", {"0", "255"}, {"256", "-1", "\"a\""}},
    {'s', "{\"type\":\"integer\",\"format\":\"int8\",\"minimum\":-1000,\"maximum\":5}", {"-128", "5"}, {"-129", "6"}},
    {'s', "{\"type\":\"integer\",\"format\":\"int8\",\"exclusiveMaximum\":127}", {"126"}, {"127"}},
    {'s', "{\"type\":\"integer\",\"format\":\"int8\",\"exclusiveMaximum\":200}", {"127"}, {"128"}},
    {'s', "{\"type\":\"integer\",\"minimum\":0,\"maximum\":1.8446744073709552e19}", {"0", "12345"}, {"-1"}},
    {'s', "{\"type\":\"integer\",\"format\":\"int32\",\"enum\":[1,2]}", {"1"}, {"3"}},
    {'s', "{\"type\":\"string\",\"format\":\"colour\",\"enum\":[\"a\"]}", {"\"a\""}, {"\"b\""}},
    {'s', "{\"type\":[\"string\",\"integer\"],\"format\":\"int32\"}", {"\"a\"", "5"}, {"null"}},
    {'s', "{\"type\":[\"string\",\"integer\"],\"format\":\"date\"}", {"\"2020-01-01\"", "5"}, {"\"a\""}},
    {'s',
     "{\"type\":\"string\",\"format\":\"colour\",\"allOf\":[{\"format\":\"date\"},{\"format\":\"hue\"}]}",
     {"\"2020-01-01\""},
     {"\"a\""}},
    {'X',
     OF_S("{\"type\":\"string\",\"format\":\"colour\"}"),
     {"<tool_call>\n<function=f>\n" P("s", "<b>") "</function>\n</tool_call>"},
     {}},
    {'X',
     OF_S("{\"type\":[\"string\",\"integer\"],\"format\":\"int32\"}"),
     {"<tool_call>\n<function=f>\n" P("s", "<b>") "</function>\n</tool_call>"},
     {}},
};

#define REF8                                                                                                           \
    "{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"},"             \
    "{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"}"
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
    {'X', OF_S("{\"anyOf\":[]}"), "#/properties/s: anyOf must be a list of schemas"},
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
    // What is found out about the whole grammar is said of a tool and a place, too.
    {'X', NEEDS_S("{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}"), "tool \"f\": schema, #/properties/s: no text"},
    {'o', NEEDS_S("{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}"), "tool \"f\": schema, #/properties/s: no text"},
    {'X', NEEDS_S("{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}"), "tool \"f\": schema, #/properties/s: no"},
    {'o', NEEDS_S("{\"items\":{\"enum\":[]},\"minItems\":1}"), "tool \"f\": schema, #/properties/s/items: no text"},
    {'o', NEEDS_S("{\"anyOf\":[{\"enum\":[]},false]}"), "tool \"f\": schema, #/properties/s/anyOf/"},
    {'o', NEEDS_S("{\"prefixItems\":[{},{\"enum\":[]}],\"minItems\":2}"), "#/properties/s/prefixItems/1: no text"},
    {'o',
     NEEDS_S("{\"type\":\"object\",\"properties\":{\"b\":{\"enum\":[]},\"c\":{\"enum\":[]}},\"required\":[\"c\"]}"),
     "tool \"f\": schema, #/properties/s/properties/c: no text"},
    {'X', "{\"f\":{\"$ref\":\"#\"}}", "tool \"f\": schema, #: "},
    {'o', "{\"f\":{\"required\":[\"a\"],\"additionalProperties\":false}}", "tool \"f\": schema, #/"},
    {'X', OF_S("{\"pattern\":\"^(a?){2,3}$\"}"), "tool \"f\": schema, #/properties/s: what is repeated a counted"},
    {'s', "{\"items\":{\"pattern\":\"^(a?){2,3}$\"}}", "schema, #/items: what is repeated a counted"},
    {'s', "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/a\"},{\"type\":\"null\"}]}}}",
     "schema, #/$defs/a: $ref leads to itself"},
    {'s', "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"properties\":{\"b\":{\"not\":{}}}}}}",
     "schema, #/$defs/a/properties/b: keyword \"not\""},
    {'o', OF_S("{\"type\":\"array\",\"uniqueItems\":true}"), "tool \"f\": schema, #/properties/s: uniqueItems"},
    {'o', OF_S("{\"type\":\"object\",\"required\":3}"),
     "tool \"f\": schema, #/properties/s: properties must be an object"},
    {'o', OF_S("{\"properties\":{\"b\":{}},\"propertyNames\":{}}"),
     "tool \"f\": schema, #/properties/s: propertyNames is"},
    {'o', OF_S("{\"propertyNames\":{\"not\":{}}}"),
     "tool \"f\": schema, #/properties/s/propertyNames: keyword \"not\""},
    {'o', OF_S("{\"additionalProperties\":{\"not\":{}}}"), "#/properties/s/additionalProperties: keyword \"not\""},
    {'X', "{\"f\":{\"additionalProperties\":{\"not\":{}}}}",
     "tool \"f\": schema, #/additionalProperties: keyword \"not\""},
    {'X', "{\"f\":{\"properties\":{\"a\":false},\"required\":[\"a\"]}}",
     "schema, #: \"a\" is required, and its schema"},
};

#endif
