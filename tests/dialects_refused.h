// SPDX-License-Identifier: Apache-2.0
//
// What dialects of chat refuse by the name of a field: wrong types, what is no tool, and places in a conversation. A part of dialects_test.c.

#ifndef DIALECTS_REFUSED_H
#define DIALECTS_REFUSED_H

#include "tests/dialects_rig.h"

// Fields of the wrong type, behind a request that is right without them; message: how what is said begins.
static const struct {
    handler *handle;
    const char *field, *message;
} mistyped[] = {
    {chat_handle, "\"chat_template_kwargs\": {\"enable_thinking\": 5}",
     "chat_template_kwargs.enable_thinking: true or"},
    {messages_handle, "\"chat_template_kwargs\": {\"enable_thinking\": 5}",
     "chat_template_kwargs.enable_thinking: true or"},
    {responses_handle, "\"chat_template_kwargs\": {\"enable_thinking\": 5}",
     "chat_template_kwargs.enable_thinking: true or"},
    {chat_handle, "\"chat_template_kwargs\": {\"enable_thinking\": \"false\"}",
     "chat_template_kwargs.enable_thinking: true or"},
    {chat_handle, "\"enable_thinking\": true, \"chat_template_kwargs\": {\"enable_thinking\": []}",
     "chat_template_kwargs.enable_thinking: true or"},
    {chat_handle, "\"chat_template_kwargs\": {\"thinking\": 1}", "chat_template_kwargs.thinking: true or"},
    {chat_handle, "\"chat_template_kwargs\": {\"reasoning_effort\": 2}",
     "chat_template_kwargs.reasoning_effort: one of"},
    {chat_handle, "\"chat_template_kwargs\": {\"enable_thinking\": null, \"thinking\": false, \"clear_thinking\": 1}",
     NULL},
    {responses_handle, "\"reasoning\": {\"effort\": 2}", "reasoning.effort: one of"},
    {responses_handle, "\"reasoning\": \"high\"", "reasoning: an object"},
    {responses_handle, "\"reasoning\": {\"summary\": 1}", "reasoning.summary: a text"},
    {responses_handle, "\"reasoning\": {\"summary\": null, \"effort\": null}", NULL},
    {responses_handle, "\"previous_response_id\": 5", "previous_response_id: a text"},
    {responses_handle, "\"previous_response_id\": null", NULL},
    {responses_handle, "\"metadata\": []", "metadata: an object of texts"},
    {responses_handle, "\"metadata\": {\"a\": 1}", "metadata: an object of texts"},
    {responses_handle, "\"metadata\": {\"a\": \"b\"}, \"background\": false", NULL},
    {responses_handle, "\"background\": \"no\"", "background: only false"},
    {messages_handle, "\"output_config\": {\"effort\": 2}", "output_config.effort: one of"},
    {responses_handle, "\"conversation\": \"conv_1\"", "conversation: conversations are not kept here: send"},
    {responses_handle, "\"conversation\": {\"id\": \"conv_1\"}", "conversation: conversations are not kept"},
    {responses_handle, "\"prompt\": {\"id\": \"pmpt_1\"}", "prompt: prompts are not kept here: send"},
    {responses_handle, "\"conversation\": null, \"prompt\": null", NULL},
    {responses_handle, "\"include\": \"x\"", "include: an array is expected, found \"x\""},
    {responses_handle, "\"include\": [\"reasoning.encrypted_content\", \"file_search_call.results\"]",
     "include[1]: only \"reasoning.encrypted_content\" is expected, found \"file_search_call.results\""},
    {responses_handle, "\"include\": [3]", "include[0]: only \"reasoning.encrypted_content\" is expected, found 3"},
    {responses_handle, "\"include\": [\"reasoning.encrypted_content\"]", NULL},
    {responses_handle, "\"truncation\": \"automatic\"", "truncation: one of auto, disabled is expected, found \"aut"},
    {responses_handle, "\"truncation\": 3", "truncation: one of auto, disabled is expected, found 3"},
    {responses_handle, "\"truncation\": \"auto\"", NULL},
    {responses_handle, "\"top_logprobs\": \"x\"", "top_logprobs: a whole number from 0 to 20"},
    {responses_handle, "\"top_logprobs\": 2", "top_logprobs: 0, since only /v1/chat/completions"},
    {responses_handle, "\"top_logprobs\": 0, \"max_tool_calls\": 3", NULL},
    {responses_handle, "\"max_tool_calls\": 0.5", "max_tool_calls: a whole number from 1 to"},
    {responses_handle, "\"user\": 3", "user: a text is expected, found 3"},
    {responses_handle, "\"safety_identifier\": {}", "safety_identifier: a text is expected, found {}"},
    {responses_handle, "\"prompt_cache_key\": []", "prompt_cache_key: a text is expected, found []"},
    {responses_handle, "\"service_tier\": \"gold\"", "service_tier: one of auto, default, flex, scale, priority is"},
    {responses_handle, "\"service_tier\": \"auto\", \"user\": \"me\", \"prompt_cache_key\": \"k\"", NULL},
    {responses_handle, "\"text\": 3", "text: an object is expected, found 3"},
    {responses_handle, "\"text\": {\"verbosity\": 3}", "text.verbosity: one of low, medium, high is expected"},
    {responses_handle, "\"text\": {\"verbosity\": \"low, medium\"}", "text.verbosity: one of low, medium, high"},
    {responses_handle, "\"text\": {\"verbosity\": \"low\"}", NULL},
    {responses_handle, "\"stream_options\": []", "stream_options: an object is expected, found []"},
    {responses_handle, "\"stream_options\": {\"include_obfuscation\": 1}", "stream_options.include_obfuscation: true"},
    {responses_handle, "\"stream_options\": {\"include_obfuscation\": false}", NULL},
    {responses_handle, "\"input\": [{\"role\": \"user\"}]", "input[0]: content: a text, or parts"},
    {responses_handle, "\"input\": [{\"role\": \"assistant\", \"content\": null}]", "input[0]: content: a text, or"},
    {responses_handle, "\"input\": [{\"type\": \"function_call_output\", \"call_id\": \"1\"}]",
     "input[0]: call_id and"},
    {responses_handle, "\"tool_choice\": {\"type\": \"web_search\"}",
     "tool_choice: \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": NAME} is expected, found {"},
    {responses_handle, "\"tool_choice\": {\"type\": \"function\", \"name\": \"f\"}", "tools: an array of at least one"},
    {responses_handle, "\"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"f\"}}",
     "tool_choice: \"none\""},
    {chat_handle, "\"tool_choice\": \"any\"",
     "tool_choice: \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": NAME}} is "
     "expected, "
     "found \"any\""},
    {chat_handle, "\"tool_choice\": 5", "tool_choice: \"none\", \"auto\", \"required\" or {\"type\":"},
    {chat_handle, "\"tool_choice\": {\"type\": \"tool\", \"function\": {\"name\": \"f\"}}",
     "tool_choice: \"none\", \"auto\""},
    {chat_handle,
     "\"tools\": [{\"function\": {\"name\": \"f\"}}, {\"function\": {\"name\": \"g\"}}], "
     "\"tool_choice\": {\"function\": {\"name\": \"h\"}}",
     "tool_choice: the name of one of the tools is expected, which are \"f\", \"g\", found \"h\""},
    {messages_handle,
     "\"tools\": [{\"name\": \"f\", \"input_schema\": {}}], \"tool_choice\": {\"type\": \"tool\", \"name\": \"h\"}",
     "tool_choice: the name of one of the tools is expected, which are \"f\", found \"h\""},
    {messages_handle, "\"tool_choice\": \"auto\"",
     "tool_choice: {\"type\": \"none\"}, \"auto\" or \"any\" as the type, or"},
    {messages_handle, "\"tool_choice\": {\"type\": \"required\"}", "tool_choice: {\"type\": \"none\"}, \"auto\" or"},
    {messages_handle, "\"tool_choice\": {\"type\": \"tool\"}", "tool_choice: {\"type\": \"none\"}, \"auto\" or"},
    {messages_handle, "\"tool_choice\": {\"type\": \"auto\", \"disable_parallel_tool_use\": 1}",
     "tool_choice.disable_parallel_tool_use: true or false is expected, found 1"},
    {messages_handle, "\"tool_choice\": {\"type\": \"auto\", \"disable_parallel_tool_use\": true}", NULL},
};

static void mistyped_refused(void)
{
    int wrong = 0;
    for (size_t i = 0; i < sizeof mistyped / sizeof *mistyped; i++) {
        char body[512];
        const char *message = mistyped[i].message;
        snprintf(body, sizeof body, "{\"max_tokens\": 1, %s, %s}",
                 strstr(mistyped[i].field, "\"input\"")   ? "\"model\": null"
                 : mistyped[i].handle == responses_handle ? "\"input\": \"x\""
                                                          : "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]",
                 mistyped[i].field);
        const bool took = ask(mistyped[i].handle, parsed(body), NULL);
        if (message ? took || sent.status != 400 || strncmp(text_at(sent.whole, "message"), message, strlen(message))
                    : !took) {
            printf("# %s: %d %s\n", body, sent.status, text_at(sent.whole, "message"));
            wrong++;
        }
        over();
    }
    ok(!wrong, "fields of the wrong type are refused by name", NULL);
}

// A conversation that is nested too deep for the template, and arguments that are no object, in the client's words for where they are.
static void places_named(void)
{
    enum { DEEP = 64 };
    static const char brackets[] = "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[";
    static const struct {
        handler *handle;
        const char *body, *param, *message; // %s: brackets; message: NULL for those
    } rows[] = {
        {chat_handle,
         "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": "
         "\"{\\\"a\\\": %s}\"}}]}]}",
         "messages", NULL},
        {responses_handle,
         "{\"input\": [{\"role\": \"user\", \"content\": \"x\"}, {\"type\": \"function_call\", \"call_id\": \"1\", "
         "\"name\": \"f\", \"arguments\": \"{\\\"a\\\": %s}\"}]}",
         "input", NULL},
        {responses_handle,
         "{\"instructions\": \"x\", \"input\": [{\"role\": \"user\", \"content\": \"x\"}, {\"type\": "
         "\"function_call\", "
         "\"call_id\": \"1\", \"name\": \"f\", \"arguments\": \"%s\"}]}",
         "input", "input[1]: arguments: the text of a JSON object"},
    };
    int wrong = 0;
    char deep[2 * DEEP + 1], body[512];
    memcpy(deep, brackets, DEEP);
    memset(deep + DEEP, ']', DEEP);
    deep[2 * DEEP] = '\0';
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *message = rows[i].message ? rows[i].message : "the conversation nests deeper than";
        snprintf(body, sizeof body, rows[i].body, deep);
        const bool took = ask(rows[i].handle, parsed(body), NULL);
        if (took || strcmp(text_at(sent.whole, "param"), rows[i].param) ||
            !strstr(text_at(sent.whole, "message"), message)) {
            printf("# %s: %s: %s\n", body, text_at(sent.whole, "param"), text_at(sent.whole, "message"));
            wrong++;
        }
        over();
    }
    ok(!wrong, "what is wrong in a conversation is said of the dialect's own field", NULL);
}

// Values are shown as a client would write them.
static void values_shown(void)
{
    static const char *const texts[] = {"2.1",   "-0.3",          "0.30000000000000004", "3", "[0.1,{\"a\":2.1}]",
                                        "1e300", "\"2.1\\u00e9\""};
    int wrong = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char shown[80];
        json_t *value = json_loads(texts[i], JSON_DECODE_ANY, NULL);
        if (strcasecmp(input_show(value, shown), texts[i]))
            printf("# %s: %s\n", texts[i], shown), wrong++;
        json_decref(value);
    }
    ok(!wrong, "numbers are shown with the digits that they need", NULL);
}

// ---- tools -----------------------------------------------------------------------------------------------------------------------

static const struct {
    handler *handle;
    const char *body, *tool;
} tool_ways[] = {
    {chat_handle, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [%s]}",
     "{\"type\": \"function\", \"function\": {\"name\": %s, \"description\": %s, \"parameters\": %s}}"},
    {chat_handle,
     "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tool_choice\": \"none\", \"tools\": [%s]}",
     "{\"type\": \"function\", \"function\": {\"name\": %s, \"description\": %s, \"parameters\": %s}}"},
    {messages_handle, "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [%s]}",
     "{\"type\": \"custom\", \"name\": %s, \"description\": %s, \"input_schema\": %s}"},
    {responses_handle, "{\"input\": \"x\", \"tools\": [%s]}",
     "{\"type\": \"function\", \"name\": %s, \"description\": %s, \"parameters\": %s}"},
};

static const struct {
    const char *name, *text, *schema, *field; // field: that is at fault, SCHEMA as the dialect calls it; NULL: none
} no_tools[] = {
    {"\"f\"", "\"d\"", "{}", NULL},
    {"\"f\"", "null", "{}", NULL},
    {"3", "\"d\"", "{}", "name"},
    {"\"\"", "\"d\"", "{}", "name"},
    {"null", "\"d\"", "{}", "name"},
    {"\"a>b\"", "\"d\"", "{}", "name"},
    {"\"a\\nb\"", "\"d\"", "{}", "name"},
    {"\"f\"", "3", "{}", "description"},
    {"\"f\"", "[\"d\"]", "{}", "description"},
    {"\"f\"", "\"d\"", "3", "SCHEMA"},
    {"\"f\"", "\"d\"", "{\"type\": \"array\"}", "SCHEMA.type"},
    {"\"f\"", "\"d\"", "{\"type\": [\"string\", \"null\"]}", "SCHEMA.type"},
    {"\"f\"", "\"d\"", "{\"type\": [\"object\", \"null\"]}", NULL},
    {"\"f\"", "\"d\"", "{\"properties\": {\"a-b c.d\": {}}}", NULL},
    {"\"f\"", "\"d\"", "{\"properties\": {\"a\": {}, \"\": {}}}", "SCHEMA.properties"},
    {"\"f\"", "\"d\"", "{\"properties\": {\"a<b\": {}}}", "SCHEMA.properties"},
    {"\"f\"", "\"d\"", "{\"properties\": {\"a>b\": {}}}", "SCHEMA.properties"},
    {"\"f\"", "\"d\"", "{\"properties\": {\"a\\nb\": {}}}", "SCHEMA.properties"},
};

enum { TOOL_WAYS = sizeof tool_ways / sizeof *tool_ways, NO_TOOLS = sizeof no_tools / sizeof *no_tools };

// Whether row t, one more for a name that is there twice, is answered as it should be.
static bool tool_answered(size_t w, size_t t, bool xml)
{
    char tool[512], body[1200], twice[1040], field[80];
    handler *handle = tool_ways[w].handle;
    const bool doubled = t == NO_TOOLS;
    const char *at = doubled ? "name" : no_tools[t].field, *more = "";
    if (at && !xml && !strcmp(at, "SCHEMA.properties")) // names of parameters are markers in XML alone
        at = NULL;
    if (at && !strncmp(at, "SCHEMA", 6)) {
        more = at + 6;
        at = handle == messages_handle ? "input_schema" : "parameters";
    }
    t = doubled ? 0 : t;
    snprintf(tool, sizeof tool, tool_ways[w].tool, no_tools[t].name, no_tools[t].text, no_tools[t].schema);
    snprintf(twice, sizeof twice, doubled ? "%s, %s" : "%s", tool, tool);
    snprintf(body, sizeof body, tool_ways[w].body, twice);
    snprintf(field, sizeof field,
             handle == messages_handle ? "tools.%d.%s%s: "
             : handle == chat_handle   ? "tools[%d].function.%s%s: "
                                       : "tools[%d].%s%s: ",
             doubled, at ? at : "", more);
    const bool took = ask(handle, parsed(body), NULL);
    const char *message = text_at(sent.whole, "message");
    const bool good = at ? !took && sent.status == 400 && !strncmp(message, field, strlen(field)) : took;
    if (!good)
        printf("# %s: %d %s\n", body, sent.status, message);
    over();
    return good;
}

// What is no tool is refused in every dialect, whether the model can call any or not.
static void tools_refused(void)
{
    static const enum reply_dialect styles[] = {REPLY_PLAIN, REPLY_XML};
    const enum reply_dialect before = server.style.dialect;
    for (int s = 0; s < 2; s++) {
        int wrong = 0;
        server.style.dialect = styles[s];
        for (size_t w = 0; w < TOOL_WAYS; w++)
            for (size_t t = 0; t <= NO_TOOLS; t++)
                wrong += !tool_answered(w, t, s == 1);
        for (size_t w = 0; w < TOOL_WAYS; w++) {
            char body[256];
            snprintf(body, sizeof body, tool_ways[w].body, "5");
            const bool took = ask(tool_ways[w].handle, parsed(body), NULL);
            const char *message = text_at(sent.whole, "message");
            wrong += took || (!strstr(message, "tools.0: an object") && !strstr(message, "tools[0]: an object"));
            over();
        }
        ok(!wrong, s ? "and by one that has them" : "what is no tool is refused by a model without calls", NULL);
    }
    server.style.dialect = before;
}

#endif
