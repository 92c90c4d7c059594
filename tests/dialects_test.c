// SPDX-License-Identifier: Apache-2.0
//
// The dialects of chat: requests go in, what the model says is scripted, and what would be sent is looked at. Invariants: a
// stream put together is the whole reply, however the text came; the same conversation has the same prompt in every dialect; a
// reply that is sent back renders as it was. Red control: a lost event.

#include "tests/dialects_refused.h"

// ---- requests --------------------------------------------------------------------------------------------------------------------

static const char schema[] =
    "{\"type\": \"object\", \"properties\": {\"path\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}}}";

static json_t *tools_of(const struct dialect_test *d)
{
    json_t *parameters = json_loads(schema, 0, NULL);
    if (d->handle == messages_handle)
        return json_pack("[{s:s, s:s, s:o, s:b}]", "name", "list", "description", "Lists.", "input_schema", parameters,
                         "strict", 0);
    if (d->handle == responses_handle)
        return json_pack("[{s:s, s:s, s:s, s:o, s:b}]", "type", "function", "name", "list", "description", "Lists.",
                         "parameters", parameters, "strict", 0);
    return json_pack("[{s:s, s:{s:s, s:s, s:o, s:b}}]", "type", "function", "function", "name", "list", "description",
                     "Lists.", "parameters", parameters, "strict", 0);
}

// A request with tools; messages (stolen) in the dialect's own shape.
static json_t *request(const struct dialect_test *d, json_t *messages, bool stream)
{
    json_t *body = json_pack("{s:i, s:b, s:o, s:o}", d->tokens, 32, "stream", stream, "tools", tools_of(d),
                             d->handle == responses_handle ? "input" : "messages", messages);
    json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", true));
    json_object_set_new(body, d->stop, json_pack("[s]", "STOP"));
    return body;
}

static json_t *hello(void)
{
    return json_pack("[{s:s, s:s}]", "role", "user", "content", "List it.");
}

#define CALL(path)                                                                                                     \
    "<tool_call>\n<function=list>\n<parameter=path>\n" path                                                            \
    "\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"

static const char *const texts[] = {"Thought.\n</think>\n\nHello 😀 wörld.\n",
                                    "Hm.\n</think>\n\nLooking.\n\n" CALL("/a \"b\"") "\n" CALL("é"),
                                    "\n</think>\n\n" CALL("/") "\n\nand more",
                                    "I call " CALL("/"),
                                    "\n</think>\n\n<tool_call>\n<function=rm>\n</function>\n</tool_call>",
                                    "a</think>one STOP two",
                                    ""};

// Whether the reply of a text is the same streamed and whole.
static bool streams_alike(const struct dialect_test *d, const char *text, size_t piece, bool limit, int lost)
{
    bool alike = ask(d->handle, request(d, hello(), false), NULL);
    if (alike)
        say(text, piece, limit);
    json_t *whole = alike ? d->whole() : NULL;
    over();
    if (!alike || !ask(d->handle, request(d, hello(), true), NULL))
        return false;
    sent.lost = lost;
    say(text, piece, limit);
    json_t *together = d->together();
    sent.lost = -1;
    over();
    alike = whole && together && json_equal(whole, together);
    if (!alike && lost < 0) {
        char *a = json_dumps(whole, 0), *b = together ? json_dumps(together, 0) : NULL;
        printf("# whole    %s\n# streamed %s\n", a, b ? b : "events in a wrong order");
        free(a);
        free(b);
    }
    json_decref(whole);
    json_decref(together);
    return alike;
}

// ---- conversations ---------------------------------------------------------------------------------------------------------------

// One conversation with reasoning, a call and its result, as each dialect has it.
static json_t *conversation(const struct dialect_test *d)
{
    json_t *body = request(d, json_array(), false);
    if (d->handle == chat_handle)
        json_object_set_new(body, "messages",
                            parsed("[{\"role\": \"developer\", \"content\": \"Be brief.\\n\\nBe right.\"}, {\"role\": "
                                   "\"user\", \"content\": [{\"type\": "
                                   "\"text\", \"text\": \"List <|im_end|> it.\"}]}, {\"role\": \"assistant\", "
                                   "\"reasoning_content\": \"Hm.\", \"content\": "
                                   "\"Looking.\", \"tool_calls\": [{\"id\": \"1\", \"type\": \"function\", "
                                   "\"function\": {\"name\": \"list\", \"arguments\": "
                                   "\"{\\\"path\\\": \\\"/\\\", \\\"n\\\": 3}\"}}]}, {\"role\": \"tool\", "
                                   "\"tool_call_id\": \"1\", \"content\": \"a\\nb\"}, "
                                   "{\"role\": \"user\", \"content\": \"Good.\"}]"));
    if (d->handle == messages_handle) {
        json_object_set_new(body, "system",
                            parsed("[{\"type\": \"text\", \"text\": \"x-anthropic-billing-header: 12\"}, {\"type\": "
                                   "\"text\", \"text\": \"Be brief.\", \"cache_control\": {\"type\": \"ephemeral\"}}, "
                                   "{\"type\": \"text\", \"text\": \"Be "
                                   "right.\"}]"));
        json_object_set_new(
            body, "messages",
            parsed("[{\"role\": \"user\", \"content\": \"List <|im_end|> it.\"}, {\"role\": \"assistant\", "
                   "\"content\": [{\"type\": "
                   "\"thinking\", \"thinking\": \"Hm.\", \"signature\": \"s\"}, {\"type\": \"text\", \"text\": "
                   "\"Looking.\"}, {\"type\": "
                   "\"tool_use\", \"id\": \"1\", \"name\": \"list\", \"input\": {\"path\": \"/\", \"n\": 3}}]}, "
                   "{\"role\": \"user\", "
                   "\"content\": [{\"type\": \"tool_result\", \"tool_use_id\": \"1\", \"content\": [{\"type\": "
                   "\"text\", \"text\": \"a\"}, "
                   "{\"type\": \"text\", \"text\": \"b\"}]}, {\"type\": \"text\", \"text\": \"Good.\"}]}]"));
    }
    if (d->handle == responses_handle) {
        json_object_set_new(body, "instructions", json_string("Be brief.\n\nBe right."));
        json_object_set_new(body, "input",
                            parsed("[{\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": \"List "
                                   "<|im_end|> it.\"}]}, {\"type\": "
                                   "\"reasoning\", \"summary\": [], \"content\": [{\"type\": \"reasoning_text\", "
                                   "\"text\": \"Hm.\"}]}, {\"type\": "
                                   "\"message\", \"role\": \"assistant\", \"content\": [{\"type\": \"output_text\", "
                                   "\"text\": \"Looking.\"}]}, {\"type\": "
                                   "\"function_call\", \"call_id\": \"1\", \"name\": \"list\", \"arguments\": "
                                   "\"{\\\"path\\\": \\\"/\\\", \\\"n\\\": 3}\"}, "
                                   "{\"type\": \"function_call_output\", \"call_id\": \"1\", \"output\": \"a\\nb\"}, "
                                   "{\"role\": \"user\", \"content\": "
                                   "\"Good.\"}]"));
    }
    return body;
}

// What a client sends after the reply of texts[1], with the calls' results.
static json_t *next_turn(const struct dialect_test *d)
{
    json_t *list = hello(), *item;
    size_t i;
    if (d->handle == chat_handle) {
        json_t *message = json_object_get(json_array_get(json_object_get(sent.whole, "choices"), 0), "message");
        json_array_append(list, message);
        json_array_foreach(json_object_get(message, "tool_calls"), i, item)
            json_array_append_new(list, json_pack("{s:s, s:O, s:s}", "role", "tool", "tool_call_id",
                                                  json_object_get(item, "id"), "content", "ok"));
    } else if (d->handle == messages_handle) {
        json_t *results = json_array();
        json_array_append_new(
            list, json_pack("{s:s, s:O}", "role", "assistant", "content", json_object_get(sent.whole, "content")));
        json_array_foreach(json_object_get(sent.whole, "content"), i,
                           item) if (!strcmp(text_at(item, "type"), "tool_use"))
            json_array_append_new(results, json_pack("{s:s, s:O, s:s}", "type", "tool_result", "tool_use_id",
                                                     json_object_get(item, "id"), "content", "ok"));
        json_array_append_new(list, json_pack("{s:s, s:o}", "role", "user", "content", results));
    } else {
        json_array_clear(list);
        json_array_foreach(json_object_get(sent.whole, "output"), i,
                           item) if (!strcmp(text_at(item, "type"), "function_call"))
            json_array_append_new(list, json_pack("{s:s, s:O, s:s}", "type", "function_call_output", "call_id",
                                                  json_object_get(item, "call_id"), "output", "ok"));
    }
    json_t *body = request(d, list, false);
    if (d->handle == responses_handle)
        json_object_set(body, "previous_response_id", json_object_get(sent.whole, "id"));
    return body;
}

// The prompt that a body makes, to be freed; "" when it is refused.
static char *prompt_of(const struct dialect_test *d, json_t *body)
{
    char *text = NULL;
    size_t bytes;
    struct error error;
    if (!ask(d->handle, body, NULL))
        printf("# %s: %s\n", d->name, text_at(sent.whole, "message"));
    else if (!tokenizer_decode(tokenizer, exchange.job->ids, (size_t)exchange.job->count, false, &text, &bytes, &error))
        text = NULL;
    over();
    return text ? text : strdup("");
}

static void prompts(void)
{
    char *one[3], *next[3];
    for (int i = 0; i < 3; i++) {
        one[i] = prompt_of(&dialects[i], conversation(&dialects[i]));
        next[i] = NULL;
        if (ask(dialects[i].handle, request(&dialects[i], hello(), false), NULL)) {
            say(texts[1], 1000, false);
            json_t *body = next_turn(&dialects[i]);
            over();
            next[i] = prompt_of(&dialects[i], body);
        }
    }
    ok(*one[0] && strstr(one[0], "Be right.") && !strcmp(one[0], one[1]) && !strcmp(one[0], one[2]),
       "a conversation has one prompt in every dialect", NULL);
    ok(next[0] && next[1] && next[2] && strstr(next[0], texts[1]) && !strcmp(next[0], next[1]) &&
           !strcmp(next[0], next[2]),
       "and so has what follows a reply, which renders as it was written", next[2]);
    for (int i = 0; i < 3; i++) {
        free(one[i]);
        free(next[i]);
    }
}

#include "tests/dialects_numbers.h"

// ---- the rest --------------------------------------------------------------------------------------------------------------------

static void refusals(void)
{
    static const struct {
        handler *handle;
        const char *body, *message;
    } bodies[] = {
        {messages_handle, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", "max_tokens: Field required"},
        {messages_handle, "{\"max_tokens\": 1, \"messages\": []}", "at least one message"},
        {messages_handle, "{\"max_tokens\": 1, \"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}",
         "messages.0.role"},
        {messages_handle, "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": 1}]}",
         "messages.0.content"},
        {messages_handle,
         "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
         "type image"},
        {messages_handle, "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": [1]}]}", "type (none)"},
        {messages_handle, "{\"max_tokens\": true, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
         "max_tokens"},
        {messages_handle,
         "{\"max_tokens\": 1, \"system\": 3, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", "system"},
        {messages_handle,
         "{\"max_tokens\": 1, \"tools\": [{\"type\": \"web_search\"}], \"messages\": [{\"role\": \"user\", "
         "\"content\": \"x\"}]}",
         "tools.0"},
        {messages_handle,
         "{\"max_tokens\": 1, \"tool_choice\": {\"type\": \"any\"}, \"messages\": [{\"role\": \"user\", \"content\": "
         "\"x\"}]}",
         "tool"},
        {messages_handle,
         "{\"max_tokens\": 1, \"thinking\": {\"type\": 1}, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
         "thinking.type"},
        {messages_handle,
         "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"tool_result\"}]}]}",
         "tool_use_id"},
        {responses_handle, "{}", "input"},
        {responses_handle, "{\"input\": []}", "input"},
        {responses_handle, "{\"input\": [{\"type\": \"image_generation_call\"}]}", "input[0]"},
        {responses_handle, "{\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_image\"}]}]}",
         "text only"},
        {responses_handle,
         "{\"input\": [{\"type\": \"function_call\", \"call_id\": \"1\", \"name\": \"f\", \"arguments\": \"[\"}]}",
         "arguments"},
        {responses_handle, "{\"input\": \"x\", \"previous_response_id\": \"resp_none\"}", "resp_none"},
        {responses_handle, "{\"input\": \"x\", \"background\": true}", "background"},
        {responses_handle, "{\"input\": \"x\", \"tools\": [{\"type\": \"mcp\"}]}", "tools[0]"},
        {responses_handle, "{\"input\": \"x\", \"instructions\": []}", "instructions"},
        {responses_handle, "{\"input\": \"x\", \"store\": 1}", "store"},
        {responses_handle, "{\"input\": \"x\", \"text\": {\"format\": {\"type\": \"xml\"}}}", "text.format"},
        {responses_handle, "{\"input\": \"x\", \"max_output_tokens\": 0}", "max_"},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        bool took = ask(bodies[i].handle, parsed(bodies[i].body), NULL);
        if (took || sent.status < 400 || sent.status > 404 ||
            !strstr(text_at(sent.whole, "message"), bodies[i].message)) {
            printf("# %s: %d %s\n", bodies[i].body, sent.status, text_at(sent.whole, "message"));
            wrong++;
        }
        over();
    }
    ok(!wrong, "what cannot be done is refused with its field", NULL);
}

// A call that the limit cuts says so, and its arguments can be read all the same, though they lack what is required.
static void cut_calls(void)
{
    static const char *const ends[] = {"\"finish_reason\":\"length\"", "\"stop_reason\":\"max_tokens\"",
                                       "\"reason\":\"max_output_tokens\""};
    bool good = true;
    for (int i = 0; i < 3; i++) {
        const struct dialect_test *d = &dialects[i];
        json_t *body = request(d, hello(), false), *tool = json_array_get(json_object_get(body, "tools"), 0);
        tool = d->handle == chat_handle ? json_object_get(tool, "function") : tool;
        json_object_set_new(tool, "strict", json_true());
        json_object_set_new(json_object_get(tool, d->handle == messages_handle ? "input_schema" : "parameters"),
                            "required", parsed("[\"path\", \"n\"]"));
        good = ask(d->handle, body, NULL) && good;
        say("\n</think>\n\n<tool_call>\n<function=list>\n<parameter=path>\n/a \"b", 5, true);
        json_t *reply = d->whole();
        char *text = arguments_in(d, reply);
        json_t *arguments = text ? parsed(text) : NULL;
        if (!strstr(sent.written, ends[i]) || !json_is_object(arguments) ||
            strcmp(text_at(arguments, "path"), "/a \"b") || json_object_get(arguments, "n")) {
            printf("# %s\n", sent.written);
            good = false;
        }
        json_decref(arguments);
        json_decref(reply);
        free(text);
        over();
    }
    ok(good, "a call that is cut is told from one that is whole, and is JSON", NULL);
}

// Tokens of reasoning are those before the closing marker, however that is cut into tokens.
static void reasoning_counts(void)
{
    static const struct {
        const char *text;
        size_t piece;
        int tokens;
        const char *stop; // NULL: STOP
    } rows[] = {{"Thought.\n</think>\n\nHello", 1, 9, NULL},
                {"\n</think>\n\nHello", 1, 1, NULL},
                {"a<</think>b", 1, 2, NULL},
                {"a</thin</think>b", 1, 7, NULL},
                {"Thought", 1, 7, NULL},
                {"a</thi", 1, 6, NULL},
                {"a STOP", 1, 6, NULL},
                {"ab</think>c", 1, 2, "</think>"},
                {"ab</think>\n\nc", 3, 1, "b</think>\n"},
                {"a</think>c", 1000, 1, "</think>"},
                {"ab</think>c", 1, 2, "think>"},
                {"ab</think>c", 1, 2, "</thi"},
                {"ab</think>c", 1, 2, "k>c"},
                {"ab</think>c", 3, 1, "b</"},
                {"a</think>c", 1000, 1, "hink"},
                {"ab<c", 1, 2, "b<"},
                {"a\n</think>", 1, 2, "\n</"},
                {"ab</c", 1, 5, "</c"}};
    bool good = true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *body = request(&dialects[0], hello(), false);
        if (rows[i].stop)
            json_object_set_new(body, "stop", json_string(rows[i].stop));
        ask(chat_handle, body, NULL);
        say(rows[i].text, rows[i].piece, false);
        if (exchange.answer.reasoning_tokens != rows[i].tokens) {
            printf("# %s: %d tokens\n", rows[i].text, exchange.answer.reasoning_tokens);
            good = false;
        }
        over();
    }
    ask(chat_handle, request(&dialects[0], hello(), false), NULL);
    say("\n</think>\n\n", 1000, false); // the marker is one token
    good = good && exchange.answer.reasoning_tokens == 1;
    over();
    ok(good, "markers are no tokens of reasoning", NULL);
}

static void kept_replies(void)
{
    const struct dialect_test *d = &dialects[2];
    ask(d->handle, request(d, hello(), false), NULL);
    say(texts[0], 1000, false);
    json_t *whole = json_incref(sent.whole);
    over();
    ask(response_get_handle, json_object(), "resp_id");
    ok(sent.status == 200 && json_equal(sent.whole, whole), "a kept reply is given back as it was", NULL);
    over();
    ask(response_delete_handle, json_object(), "resp_id");
    ok(sent.status == 200, "and deleted", NULL);
    over();
    while (response_store_delete(server.responses, "resp_id", "key")) // of other tests: they share the id
        ;
    ask(response_get_handle, json_object(), "resp_id");
    ok(sent.status == 404, "once", NULL);
    over();
    json_decref(whole);

    struct response_store *store = response_store_open(4, 100);
    char id[8];
    size_t bytes;
    for (int i = 0; i < 10; i++) {
        snprintf(id, sizeof id, "%d", i);
        response_store_put(store, id, "k", "0123456789", "abc");
    }
    char *old = response_store_get(store, "5", "k", false), *new = response_store_get(store, "6", "k", true),
         *other = response_store_get(store, "6", "other", true);
    ok(!old && new && !strcmp(new, "abc") && !other &&response_store_count(store, &bytes) == 4 && bytes == 60,
       "the newest are kept, each for its key", NULL);
    response_store_put(store, "big", "k", "0123456789012345678901234567890123456789012345678901234567890123456789",
                       "x");
    ok(response_store_count(store, &bytes) == 2 && bytes <= 100, "within a number of bytes", NULL);
    free(old);
    free(new);
    free(other);
    response_store_close(store);
}

static void counting(void)
{
    json_t *body = request(&dialects[1], hello(), false);
    int count = ask(messages_handle, json_copy(body), NULL) ? exchange.job->count : 0;
    over();
    json_object_del(body, "max_tokens");
    ask(count_tokens_handle, body, NULL);
    ok(count > 10 && json_integer_value(json_object_get(sent.whole, "input_tokens")) == count,
       "count_tokens counts what the request would read", NULL);
    over();
}

static int occurrences(const char *text, const char *part)
{
    int count = 0;
    for (; (text = strstr(text, part)); text++)
        count++;
    return count;
}

// The page's policy lets one script and one style through, by their hashes; anything else in the page would not work.
static void page(void)
{
    static const char *const forbidden[] = {
        "http:", "https:", " src=", " href=", " style=", " onclick", " onload", "innerHTML", "eval("};
    ask(page_handle, json_object(), NULL);
    int bad = !sent.text || sent.status != 200 || occurrences(sent.text, "<script") != 1 ||
              occurrences(sent.text, "<style") != 1;
    for (size_t i = 0; !bad && i < sizeof forbidden / sizeof *forbidden; i++)
        bad += occurrences(sent.text, forbidden[i]);
    ok(!bad, "the page holds nothing that its policy forbids", NULL);
    ok(occurrences(exchange.policy, "'sha256-") == 2 && strstr(exchange.policy, "default-src 'none'"),
       "which names its script and its style", exchange.policy);
    over();
}

int main(void)
{
    struct error error;
    if (!tokenizer_open(&tokenizer, &tokenizer_tables, &error))
        return 1;
    server = (struct server){
        .context = 4096, .options = {.name = "m", .max_tokens = 64}, .style = reply_style_of(&chat_template)};
    server.responses = response_store_open(STORE_COUNT, STORE_BYTES);
    for (size_t d = 0; d < sizeof dialects / sizeof *dialects; d++) {
        char name[96];
        bool alike = true;
        for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
            for (size_t piece = 1; piece < 20000; piece = 7 * piece + 1)
                alike = streams_alike(&dialects[d], texts[t], piece, t == 0, -1) && alike;
        snprintf(name, sizeof name, "%s: a stream put together is the whole reply", dialects[d].name);
        ok(alike, name, NULL);
        snprintf(name, sizeof name, "red: %s: a lost event is found", dialects[d].name);
        ok(!streams_alike(&dialects[d], texts[1], 1000, false, 5), name, NULL);
    }
    prompts();
    counting();
    refusals();
    mistyped_refused();
    places_named();
    values_shown();
    wide_numbers();
    numbers_replied();
    numbers_asked();
    cut_calls();
    tools_refused();
    reasoning_counts();
    page();
    kept_replies();
    forget();
    response_store_close(server.responses);
    tokenizer_close(tokenizer);
    return done();
}
