// SPDX-License-Identifier: Apache-2.0
//
// Forms of replies from a request on: what a chat asks for becomes a grammar, and the embedded model's replies under it
// are calls of offered tools with arguments that fit, or values of the schema. What cannot be met is refused before a
// token. The way from the job to the engine is that of the engine thread.

// Types of parameters and types of schemas stand beside each other here, so their names must differ.
#include "runtime/grammar/schema.h"
#include "runtime/reply/schema.h"
#include "runtime/server/structured.h"
#include "tests/dialects_rig.h"

enum { SEEDS = 6, REPLY = 120 };

static struct engine *engine;

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":{\"n\":{"
    "\"type\":"
    "\"integer\",\"minimum\":1,\"maximum\":50},\"how\":{\"enum\":[\"fast\",\"slow\"]}},\"required\":[\"n\",\"how\"],"
    "\"additionalProperties\":false}}},{\"type\":\"function\",\"function\":{\"name\":\"go\",\"parameters\":{\"type\":"
    "\"object\","
    "\"properties\":{}}}}]";

// A chat without reasoning; `more` is put among its fields.
static json_t *chat(const char *more, bool with_tools)
{
    json_t *body = json_pack("{s:[{s:s, s:s}], s:i, s:f, s:{s:b}}", "messages", "role", "user", "content", "Please do.",
                             "max_tokens", REPLY, "temperature", 1.0, "chat_template_kwargs", "enable_thinking", 0);
    json_t *extra = json_loads(more, 0, NULL);
    json_object_update(body, extra);
    json_decref(extra);
    if (with_tools)
        json_object_set_new(body, "tools", json_loads(tools, 0, NULL));
    return body;
}

// Runs the job that was made, and reads its reply. True: it came to its end.
static bool run(uint64_t seed)
{
    struct exchange *x = &exchange;
    struct error error;
    struct stream *s = NULL;
    int32_t token;
    bool busy = true, more = true;
    struct sampling sampling = x->job->sampling;
    sampling.seed = seed;
    const struct request r = {.ids = x->job->ids,
                              .count = x->job->count,
                              .reply = REPLY,
                              .options = {.sampling = sampling,
                                          .drafts = -1,
                                          .grammar = x->job->grammar,
                                          .grammar_after = x->job->grammar_after,
                                          .grammar_read = x->job->base}};
    if (!stream_submit(engine, &s, &r, &error)) {
        printf("# %s\n", error.text);
        return false;
    }
    while (busy && engine_turn(engine, &busy, &error))
        ;
    answer_begin(&x->answer);
    while (more && stream_take(s, &token, 1) == 1)
        more = answer_feed(&x->answer, token, &error);
    answer_end(&x->answer);
    stream_close(s);
    return x->answer.ended || x->answer.stopped; // stopped: behind its first call
}

static void ignore(struct exchange *x, const struct reply_event *event)
{
    (void)x;
    (void)event;
}

// Asks and runs with one seed; the exchange stays open for the caller to look at.
static bool reply(json_t *body, uint64_t seed)
{
    static struct dialect quiet;
    bool good = ask(chat_handle, body, NULL);
    if (!good)
        return false;
    quiet = *exchange.dialect;
    quiet.piece = ignore;
    exchange.dialect = &quiet;
    return run(seed);
}

static bool call_fits(const struct answer_call *call, const char *name)
{
    json_t *arguments = json_loads(call->arguments.bytes ? call->arguments.bytes : "", 0, NULL);
    const json_t *n = json_object_get(arguments, "n"), *how = json_object_get(arguments, "how");
    bool good = call->name.bytes && (!name || !strcmp(call->name.bytes, name));
    if (good && !strcmp(call->name.bytes, "get"))
        good = json_is_integer(n) && json_integer_value(n) >= 1 && json_integer_value(n) <= 50 && json_is_string(how) &&
               (!strcmp(json_string_value(how), "fast") || !strcmp(json_string_value(how), "slow"));
    else
        good = good && !strcmp(call->name.bytes, "go") && json_is_object(arguments);
    json_decref(arguments);
    return good;
}

static void test_calls(enum reply_dialect dialect, const char *title)
{
    char name[120], detail[200] = "";
    int ended = 0, wrong = 0, named = 0;
    server.style.dialect = dialect;
    for (int i = 0; i < 2 * SEEDS; i++) {
        const bool one = i % 2;
        json_t *body = chat(one ? "{\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"get\"}}}"
                                : "{\"tool_choice\":\"required\",\"parallel_tool_calls\":false}",
                            true);
        const bool whole = reply(body, (uint64_t)i);
        const struct answer *a = &exchange.answer;
        ended += whole;
        named += whole && one;
        if (whole && (a->call_count != 1 || !call_fits(&a->calls[0], one ? "get" : NULL) || a->content.count)) {
            wrong++;
            snprintf(detail, sizeof detail, "%d calls, text %.60s, first %.60s", a->call_count,
                     a->content.bytes ? a->content.bytes : "", a->call_count ? a->calls[0].arguments.bytes : "");
        }
        over();
    }
    snprintf(name, sizeof name, "%s: calls that are asked for are calls of what is offered, and fit", title);
    printf("# %d of %d came to their end\n", ended, 2 * SEEDS);
    ok(ended > SEEDS && named > 0 && wrong == 0, name, detail);
}

// A tool whose schema cannot be compiled: its name and its parameters' names are kept to. Strict, it is refused.
static void test_loose(enum reply_dialect dialect, const char *title)
{
    static const char tool[] = "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"strict\":%s,"
                               "\"parameters\":%s}}],\"tool_choice\":\"required\",\"parallel_tool_calls\":false}";
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"n\":{\"enum\":[1]}},\"required\":[\"n\"],\"contains\":{}}", "null",
        "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"},\"x\":false},\"required\":[\"n\",\"x\","
        "\"y\","
        "3],\"additionalProperties\":false}"};
    enum { SCHEMAS = sizeof schemas / sizeof *schemas };
    char name[120], more[400], detail[200] = "";
    int ended = 0, wrong = 0;
    server.style.dialect = dialect;
    for (int i = 0; i < SEEDS; i++) {
        snprintf(more, sizeof more, tool, "false", schemas[i % SCHEMAS]);
        const bool whole = reply(chat(more, false), (uint64_t)i);
        const struct answer *a = &exchange.answer;
        json_t *arguments = whole && a->call_count == 1 ? json_loads(a->calls[0].arguments.bytes, 0, NULL) : NULL;
        ended += whole;
        if (whole && (!json_is_object(arguments) || strcmp(a->calls[0].name.bytes, "get") ||
                      (i % SCHEMAS != 1 && !json_object_get(arguments, "n")))) {
            wrong++;
            snprintf(detail, sizeof detail, "%d calls, text %.60s", a->call_count,
                     a->content.bytes ? a->content.bytes : "");
        }
        json_decref(arguments);
        over();
    }
    snprintf(name, sizeof name, "%s: a tool whose schema cannot be compiled is called by its name", title);
    printf("# %d of %d came to their end\n", ended, SEEDS);
    ok(ended > SEEDS / 4 && wrong == 0, name, detail);
    for (int i = 0; i < SCHEMAS; i++) {
        snprintf(more, sizeof more, tool, "false", schemas[i]);
        wrong += !ask(chat_handle, chat(more, false), NULL);
        over();
    }
    // Beside a strict tool, and beside a form.
    static const char *const beside[] = {"\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{"
                                         "\"name\":\"other\",\"strict\":true}},",
                                         "\"response_format\":{\"type\":\"json_object\"},\"tools\":["};
    for (int i = 0; i < 2; i++) {
        snprintf(more, sizeof more, "{%s{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":%s}}]}",
                 beside[i], schemas[0]);
        wrong += !ask(chat_handle, chat(more, false), NULL);
        over();
    }
    snprintf(name, sizeof name, "%s: and none of those is refused", title);
    ok(wrong == 0, name, NULL);
    snprintf(more, sizeof more, tool, "true", schemas[0]);
    const bool took = ask(chat_handle, chat(more, false), NULL);
    snprintf(name, sizeof name, "%s: a strict one is refused", title);
    ok(!took && sent.status == 400 && strstr(text_at(sent.whole, "message"), "contains"), name, NULL);
    over();
}

// Texts of a strict tool keep to their limits in every dialect, and what cannot be kept to is refused.
static void test_limits(enum reply_dialect dialect, const char *title)
{
    static const char tool[] =
        "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"strict\":true,"
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\","
        "\"minLength\":2,\"maxLength\":9},\"b\":{\"type\":\"string\",\"pattern\":\"%s\"}},"
        "\"required\":[\"a\",\"b\"]}}}],\"tool_choice\":\"required\",\"parallel_tool_calls\":false}";
    char more[600], name[120], detail[200] = "";
    int ended = 0, wrong = 0;
    server.style.dialect = dialect;
    for (int i = 0; i < SEEDS; i++) {
        snprintf(more, sizeof more, tool, "^[xy]{3}[0-9]$");
        const bool whole = reply(chat(more, false), (uint64_t)i);
        const struct answer *a = &exchange.answer;
        json_t *arguments = whole && a->call_count == 1 ? json_loads(a->calls[0].arguments.bytes, 0, NULL) : NULL;
        const char *text = text_at(arguments, "a"), *other = text_at(arguments, "b");
        size_t length = 0;
        for (const char *c = text; *c; c++)
            length += (*c & 0xc0) != 0x80;
        ended += whole;
        if (whole && (length < 2 || length > 9 || strlen(other) != 4 || strspn(other, "xy") != 3 || other[3] < '0' ||
                      other[3] > '9')) {
            wrong++;
            snprintf(detail, sizeof detail, "%.180s", a->call_count ? a->calls[0].arguments.bytes : "no call");
        }
        json_decref(arguments);
        over();
    }
    snprintf(name, sizeof name, "%s: texts of a strict tool keep to their limits", title);
    printf("# %d of %d came to their end\n", ended, SEEDS);
    ok(ended > SEEDS / 2 && wrong == 0, name, detail);
    snprintf(more, sizeof more, tool, "(?=x)");
    const bool took = ask(chat_handle, chat(more, false), NULL);
    snprintf(name, sizeof name, "%s: limits that cannot be kept to are refused", title);
    ok(!took && sent.status == 400 && strstr(text_at(sent.whole, "message"), "look-ahead"), name, NULL);
    over();
}

// Values that a strict tool's schema gives come out as those values, also behind what the schema is joined from. joined: of the schema.
static void test_given(enum reply_dialect dialect, const char *title, const char *joined)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x "
        "y\",1,null,true,[\"z\"]]},\"b\":{\"enum\":[7,1e300]},"
        "\"c\":{\"type\":[\"string\",\"boolean\"],\"enum\":[\"1\",false]}},\"required\":[\"a\",\"b\",\"c\"]}";
    static const char *const values[][5] = {
        {"\"x y\"", "1", "null", "true", "[\"z\"]"}, {"7", "1e300"}, {"\"1\"", "false"}};
    char parameters[600], more[900];
    snprintf(parameters, sizeof parameters, joined, schema);
    snprintf(more, sizeof more,
             "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"strict\":true,\"parameters\":%s}}],"
             "\"tool_choice\":\"required\",\"parallel_tool_calls\":false}",
             parameters);
    static const char *const names[] = {"a", "b", "c"};
    char name[120], detail[200] = "";
    int ended = 0, wrong = 0;
    server.style.dialect = dialect;
    for (int i = 0; i < SEEDS / 2; i++) {
        const bool whole = reply(chat(more, false), (uint64_t)i);
        const struct answer *a = &exchange.answer;
        json_t *arguments = whole && a->call_count == 1 ? json_loads(a->calls[0].arguments.bytes, 0, NULL) : NULL;
        ended += whole;
        for (int k = 0; whole && k < 3; k++) {
            bool found = false;
            for (int v = 0; v < 5 && values[k][v]; v++) {
                json_t *value = json_loads(values[k][v], JSON_DECODE_ANY, NULL);
                found = found || json_equal(value, json_object_get(arguments, names[k]));
                json_decref(value);
            }
            wrong += !found;
        }
        if (whole)
            snprintf(detail, sizeof detail, "%.180s", a->call_count ? a->calls[0].arguments.bytes : "no call");
        json_decref(arguments);
        over();
    }
    snprintf(name, sizeof name, "%s: given values of a strict tool come out as they are, schema %.24s", title, joined);
    printf("# %d of %d came to their end\n", ended, SEEDS / 2);
    ok(ended > 1 && wrong == 0, name, detail);
}

static void test_limits_of_messages(void)
{
    static const char body[] =
        "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"name\":\"f\","
        "\"strict\":true,\"input_schema\":{\"properties\":{\"a\":{\"pattern\":\"(?=x)\"}}}}],"
        "\"tool_choice\":{\"type\":\"any\"}}";
    server.style.dialect = REPLY_XML;
    const bool took = ask(messages_handle, json_loads(body, 0, NULL), NULL);
    const char *message = text_at(sent.whole, "message");
    ok(!took && sent.status == 400 && strstr(message, "look-ahead"), "messages: a strict tool is strict", message);
    over();
}

// With tools and a schema a reply is a call or a value.
static void test_either(void)
{
    int ended = 0, wrong = 0;
    server.style.dialect = REPLY_XML;
    for (int i = 0; i < SEEDS; i++) {
        json_t *body = chat(
            "{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"r\",\"schema\":{\"enum\":[3,"
            "\"three\"]}}}}",
            i % 2);
        const bool whole = reply(body, (uint64_t)i);
        const struct answer *a = &exchange.answer;
        const char *text = a->content.bytes ? a->content.bytes : "";
        ended += whole;
        wrong += whole && !(a->call_count == 0 && (!strcmp(text, "3") || !strcmp(text, "\"three\""))) &&
                 !(i % 2 && a->call_count > 0 && call_fits(&a->calls[0], NULL));
        over();
    }
    ok(ended > SEEDS / 2 && wrong == 0, "a schema, beside tools or not", NULL);
}

static void test_refusals(void)
{
    static const struct {
        const char *more, *says;
    } bodies[] = {
        {"{\"response_format\":{\"type\":\"xml\"}}", "type must be one of"},
        {"{\"response_format\":{\"type\":\"json_schema\"}}", "json_schema must be an object"},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"contains\":{}}}}}",
         "\"contains\" is not supported"},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":null}}}",
         "json_schema must be an object"},
        {"{\"response_format\":{}}", "type must be one of"},
        {"{\"guided_json\":\"{\"}", "guided_json: the text is not valid JSON"},
        {"{\"guided_regex\":\"(\"}", ") is missing"},
        {"{\"guided_choice\":[]}", "at least one text"},
        {"{\"guided_choice\":[1]}", "array of texts"},
        {"{\"guided_grammar\":\"root ::= x\"}", "rule x is not defined"},
        {"{\"guided_choice\":[\"a\"],\"guided_regex\":\"a\"}", "only one form"},
        {"{\"guided_choice\":[\"a\"],\"ignore_eos\":true}", "leave it out"},
        {"{\"structured_outputs\":{\"structural_tag\":{}}}", "are understood"},
        {"{\"structured_outputs\":3}", "an object is expected"},
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        char name[100];
        const bool took = ask(chat_handle, chat(bodies[i].more, false), NULL);
        const char *message = text_at(sent.whole, "message");
        snprintf(name, sizeof name, "400: %s", bodies[i].says);
        ok(!took && sent.status == 400 && strstr(message, bodies[i].says), name, message);
        over();
    }
}

// A form is refused under the name that the client's dialect has for it, and so is one that fails in the middle of a reply.
static void test_names(void)
{
    static const struct {
        handler *handle;
        const char *name, *param, *body; // %s: the form
    } ways[] = {
        {chat_handle, "response_format", "response_format",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":{\"type\":\"json_schema\",\"json_"
         "schema\":{%s}}}"},
        {responses_handle, "text.format", "text.format",
         "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",%s}}}"},
        {messages_handle, "output_format", NULL,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":9,\"output_format\":{\"type\":\"json_"
         "schema\",%s}}"},
        {messages_handle, "output_config.format", NULL,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":9,\"output_config\":{\"format\":{"
         "\"type\":\"json_schema\",%s}}}"},
    };
    static const char *const refused[] = {"\"schema\":null", "\"name\":\"x\"", "\"schema\":3",
                                          "\"schema\":{\"contains\":{}}"};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        bool good = true;
        char body[512], text[128];
        for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
            snprintf(body, sizeof body, ways[w].body, refused[i]);
            snprintf(text, sizeof text, "%s: ", ways[w].name);
            const bool took = ask(ways[w].handle, json_loads(body, 0, NULL), NULL);
            const char *param = json_string_value(json_object_get(sent.whole, "param"));
            good = good && !took && sent.status == 400 &&
                   strstr(text_at(sent.whole, "message"), text) == text_at(sent.whole, "message") &&
                   (!ways[w].param || (param && !strcmp(param, ways[w].param)));
            if (!good)
                printf("# %s: %d %s\n", body, sent.status, text_at(sent.whole, "message"));
            over();
        }
        snprintf(body, sizeof body, ways[w].body, "\"schema\":{\"type\":\"null\"}");
        good = ask(ways[w].handle, json_loads(body, 0, NULL), NULL) && good;
        good = good && exchange.job->grammar && !strcmp(exchange.job->grammar_field, ways[w].name);
        over();
        snprintf(text, sizeof text, "a form is called %s where it is asked for so", ways[w].name);
        ok(good, text, NULL);
    }
    static const char *const others[] = {"{}", "{\"type\":\"text\"}", "[]", "3"};
    bool good = true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char body[256];
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":9,\"output_format\":%s}",
                 others[i]);
        good = !ask(messages_handle, json_loads(body, 0, NULL), NULL) && sent.status == 400 && good;
        over();
    }
    ok(good, "an output_format that is no schema is refused", NULL);
}

// What stands beside a schema has a type, too.
static void test_beside(void)
{
    static const struct {
        handler *handle;
        const char *name, *body;
    } ways[] = {
        {chat_handle, "response_format.json_schema",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":{\"type\":\"json_schema\",\"json_"
         "schema\":{\"schema\":{\"type\":\"null\"},\"%s\":%s}}}"},
        {responses_handle, "text.format",
         "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"null\"},\"%s\":%s}}}"},
        {messages_handle, "output_format",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":9,\"output_format\":{\"type\":\"json_"
         "schema\",\"schema\":{\"type\":\"null\"},\"%s\":%s}}"},
        {chat_handle, "response_format.json_schema",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
         "\"name\":\"f\"}}],\"tool_choice\":\"required\",\"response_format\":{\"type\":\"json_schema\",\"json_"
         "schema\":{\"schema\":{\"type\":\"null\"},\"%s\":%s}}}"},
    };
    static const struct {
        const char *key, *value;
        bool good;
    } rows[] = {
        {"strict", "\"yes\"", false},   {"strict", "1", false},         {"strict", "null", true},
        {"strict", "false", true},      {"name", "3", false},           {"name", "[\"r\"]", false},
        {"name", "\"r\"", true},        {"name", "null", true},         {"description", "{}", false},
        {"description", "true", false}, {"description", "\"d\"", true},
    };
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        int wrong = 0;
        char body[512], name[128];
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            snprintf(body, sizeof body, ways[w].body, rows[i].key, rows[i].value);
            snprintf(name, sizeof name, "%s.%s", ways[w].name, rows[i].key);
            const bool took = ask(ways[w].handle, json_loads(body, 0, NULL), NULL);
            const char *message = text_at(sent.whole, "message");
            if (rows[i].good ? !took
                             : took || sent.status != 400 || strcmp(text_at(sent.whole, "param"), name) ||
                                   strncmp(message, name, strlen(name))) {
                printf("# %s: %d %s\n", body, sent.status, message);
                wrong++;
            }
            over();
        }
        snprintf(name, sizeof name, "%s: strict, name and description of the wrong type are refused", ways[w].name);
        ok(!wrong, name, NULL);
    }
}

// Where a call is asked for the form does not count, but what is no form is refused all the same.
static void test_forms_beside_calls(void)
{
    static const struct {
        const char *form, *says; // NULL: taken
    } rows[] = {
        {"\"response_format\":{\"type\":\"json_object\"}", NULL},
        {"\"guided_regex\":\"a+\"", NULL},
        {"\"response_format\":3", "response_format: type must be"},
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format: json_schema must be"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":3}}", "response_format: a schema"},
        {"\"guided_regex\":3", "guided_regex: a text"},
        {"\"guided_choice\":\"a\"", "guided_choice: an array"},
        {"\"structured_outputs\":[]", "structured_outputs: an object"},
    };
    int wrong = 0;
    server.style.dialect = REPLY_XML;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char more[256];
        snprintf(more, sizeof more, "{\"tool_choice\":\"required\",%s}", rows[i].form);
        const bool took = ask(chat_handle, chat(more, true), NULL);
        const char *message = text_at(sent.whole, "message");
        if (rows[i].says ? took || sent.status != 400 || strncmp(message, rows[i].says, strlen(rows[i].says)) : !took) {
            printf("# %s: %d %s\n", more, sent.status, message);
            wrong++;
        }
        over();
    }
    ok(!wrong, "what is no form is refused beside a call that is asked for", NULL);
}

// Forms that are given in other ways, and a grammar that is asked for twice.
static void test_ways(void)
{
    static const char *const same[] = {
        "{\"guided_json\":{\"type\":\"null\"}}",
        "{\"guided_json\":\"{\\\"type\\\": \\\"null\\\"}\"}",
        "{\"structured_outputs\":{\"json\":{\"type\":\"null\"},\"regex\":null}}",
        "{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{\"type\":\"null\"}}"
        "}}",
    };
    const struct grammar *first = NULL;
    bool good = true, shared = true;
    for (int i = 0; i < 4; i++) {
        good = reply(chat(same[i], false), 1) && good;
        good = good && exchange.answer.content.bytes && !strcmp(exchange.answer.content.bytes, "null");
        first = first ? first : exchange.job->grammar;
        shared = shared && exchange.job->grammar == first;
        over();
    }
    ok(good, "a schema comes in four ways", NULL);
    ok(shared, "and is compiled once", NULL);
    good = reply(chat("{\"response_format\":{\"type\":\"text\"}}", false), 1) || true;
    ok(good && !exchange.job->grammar, "text has no form", NULL);
    over();
}

int main(void)
{
    struct error error = {.text = ""};
    const struct engine_options options = {.threads = 2, .quiet = true, .context = 1024, .lanes = 1};
    server = (struct server){
        .context = 1024, .options = {.name = "m", .max_tokens = 64}, .style = reply_style_of(&chat_template)};
    if (!tokenizer_open(&tokenizer, &tokenizer_tables, &error) || !structured_open(&server.structured, &error) ||
        !engine_open(&engine, &options, &error)) {
        ok(false, "the engine opens", error.text);
        return done();
    }
    test_calls(REPLY_XML, "XML");
    test_calls(REPLY_JSON, "JSON");
    test_loose(REPLY_XML, "XML");
    test_loose(REPLY_JSON, "JSON");
    test_limits(REPLY_XML, "XML");
    test_limits(REPLY_JSON, "JSON");
    static const char *const joined[] = {"%s", "{\"$ref\":\"#/$defs/p%%20q\",\"$defs\":{\"p q\":%s}}",
                                         "{\"$ref\":\"#/$defs/p~1q/anyOf/0\",\"$defs\":{\"p/q\":{\"anyOf\":[%s]}}}",
                                         "{\"allOf\":[%s]}"};
    for (size_t i = 0; i < sizeof joined / sizeof *joined; i++) {
        test_given(REPLY_XML, "XML", joined[i]);
        test_given(REPLY_JSON, "JSON", joined[i]);
    }
    test_limits_of_messages();
    test_either();
    test_refusals();
    test_names();
    test_beside();
    test_forms_beside_calls();
    test_ways();
    forget();
    engine_close(engine);
    structured_close(server.structured);
    tokenizer_close(tokenizer);
    return done();
}
