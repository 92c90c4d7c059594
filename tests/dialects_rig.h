// SPDX-License-Identifier: Apache-2.0
//
// The dialects of chat without a server: the functions of exchange.h, which keep what would be sent, a scripted model, and
// streams put together as clients do it.

#ifndef DIALECTS_RIG_H
#define DIALECTS_RIG_H

#include "runtime/chat.h"
#include "runtime/json_exact.h"
#include "runtime/model.h"
#include "runtime/server/chat_request.h"
#include "runtime/server/response_store.h"
#include "runtime/server/routes.h"
#include "tests/tap.h"

#include <stdlib.h>
#include <string.h>

// ---- the exchange's functions ----------------------------------------------------------------------------------------------------

static struct {
    int status;     // of a whole reply, 0: none
    char *written;  // it
    json_t *whole;  // as a client reads it
    char *text;     // of one that is not JSON
    json_t *events; // of a stream, as sent; NULL: none was opened
    bool submitted;
    int count; // events
    int lost;  // event that is not delivered, or -1
} sent = {.lost = -1};

static void forget(void)
{
    json_decref(sent.whole);
    json_decref(sent.events);
    free(sent.text);
    free(sent.written);
    sent.text = sent.written = NULL;
    sent.whole = sent.events = NULL;
    sent.status = sent.count = 0;
    sent.submitted = false;
}

// What is sent (stolen), as a client reads it; *written: to be freed.
static json_t *through(json_t *value, char **written)
{
    size_t bytes;
    *written = json_exact_dump(value, &bytes);
    json_decref(value);
    return *written ? json_exact_load(*written, bytes, JSON_ALLOW_NUL, JSON_KEEP_ALL, NULL) : NULL;
}

void exchange_json(struct exchange *x, int status, json_t *body)
{
    (void)x;
    json_decref(sent.whole);
    free(sent.written);
    sent.status = status;
    sent.whole = through(body, &sent.written);
}

void exchange_text(struct exchange *x, int status, const char *type, const char *text, size_t bytes)
{
    const bool json = !strcmp(type, "application/json");
    exchange_json(x, status, json ? json_exact_load(text, bytes, 0, JSON_KEEP_ALL, NULL) : NULL);
    sent.text = json ? NULL : strndup(text, bytes);
}

void exchange_error(struct exchange *x, int status, const char *type, const char *code, const char *param,
                    const char *format, ...)
{
    char text[768];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    exchange_json(x, status,
                  json_pack("{s:s?, s:s?, s:s?, s:s}", "type", type, "code", code, "param", param, "message", text));
}

void exchange_stream(struct exchange *x)
{
    (void)x;
    sent.events = json_array();
}

void exchange_event(struct exchange *x, const char *name, json_t *data)
{
    char *written;
    (void)x;
    data = through(data, &written);
    free(written);
    if (name && strcmp(name, json_string_value(json_object_get(data, "type")))) // a client may read either
        json_object_set_new(data, "type", json_string("the name of the event is another"));
    if (sent.count++ == sent.lost)
        json_decref(data);
    else
        json_array_append_new(sent.events, data);
}

void exchange_line(struct exchange *x, const char *data)
{
    (void)x;
    (void)data;
}

json_t *exchange_input(struct exchange *x)
{
    struct error error;
    json_t *root = input_parse("the body", x->body, x->body_bytes, &error);
    if (!root)
        exchange_error(x, 400, NULL, NULL, NULL, "%s", error.text);
    return root;
}

static void pass_on(void *user, const struct reply_event *event)
{
    struct exchange *x = user;
    x->dialect->piece(x, event);
}

bool exchange_submit(struct exchange *x, struct job *job, const struct dialect *dialect,
                     const struct answer_rules *rules, const char *param)
{
    struct error error;
    (void)param;
    x->job = job;
    x->dialect = dialect;
    sent.submitted = true;
    return answer_open(&x->answer, x->tokenizer, rules, pass_on, x, &error);
}

// ---- asking ------------------------------------------------------------------------------------------------------------------------

static struct server server;
static struct tokenizer *tokenizer;
static struct exchange exchange;

typedef void handler(struct exchange *x);

static json_t *parsed(const char *text)
{
    json_error_t error;
    json_t *json = json_exact_load(text, strlen(text), 0, JSON_KEEP_ALL, &error);
    if (!json)
        printf("# %s at %d of %s\n", error.text, error.position, text);
    return json;
}

// Hands a body's text, which is taken, to a handler. False: it was answered at once.
static bool ask_text(handler *handle, char *body, const char *rest)
{
    forget();
    exchange = (struct exchange){.server = &server, .tokenizer = tokenizer, .created = 1, .body = body};
    exchange.body_bytes = strlen(exchange.body);
    snprintf(exchange.id, sizeof exchange.id, "id");
    snprintf(exchange.label, sizeof exchange.label, "key");
    snprintf(exchange.rest, sizeof exchange.rest, "%s", rest ? rest : "");
    handle(&exchange);
    return sent.submitted;
}

static bool ask(handler *handle, json_t *body, const char *rest)
{
    char *text = json_exact_dump(body, NULL);
    json_decref(body);
    return ask_text(handle, text, rest);
}

// The reply: tokens of text, which is encoded in pieces of so many characters. limit: it ran out of tokens.
static void say(const char *text, size_t piece, bool limit)
{
    static const struct stream_counters counters;
    struct exchange *x = &exchange;
    struct error error;
    x->dialect->begin(x);
    answer_begin(&x->answer);
    for (bool more = true; *text && more;) {
        size_t bytes = 0, count = 0;
        for (size_t i = 0; i < piece && text[bytes]; i++)
            do
                bytes++;
            while (((unsigned char)text[bytes] & 0xC0) == 0x80);
        int32_t *ids = NULL;
        tokenizer_encode(tokenizer, text, bytes, false, &ids, &count, &error);
        for (size_t i = 0; i < count && more; i++)
            more = answer_feed(&x->answer, ids[i], &error);
        free(ids);
        text += bytes;
    }
    answer_end(&x->answer);
    const char *reason = limit ? "length" : x->answer.call_count ? "tool_calls" : "stop";
    const struct outcome outcome = {
        .reason = reason, .prompt_tokens = 20, .cached_tokens = 4, .reply_tokens = 9, .counters = &counters};
    x->dialect->end(x, &outcome);
}

static void over(void)
{
    struct exchange *x = &exchange;
    if (x->dialect)
        x->dialect->release(x);
    answer_close(&x->answer);
    job_free(x->job);
    free(x->body);
    x->dialect = NULL;
    x->job = NULL;
    x->body = NULL;
}

// ---- streams put together --------------------------------------------------------------------------------------------------------

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static void append(json_t *object, const char *key, const char *more)
{
    json_object_set_new(object, key, json_sprintf("%s%s", text_at(object, key), more));
}

// OpenAI's chat: the message and the end, as the choice of a whole reply.
static json_t *chat_together(void)
{
    json_t *message = json_pack("{s:s, s:s}", "role", "assistant", "content", ""), *event, *usage = NULL;
    const char *finish = "";
    size_t i;
    json_array_foreach(sent.events, i, event)
    {
        json_t *choice = json_array_get(json_object_get(event, "choices"), 0),
               *delta = json_object_get(choice, "delta");
        json_t *piece = json_array_get(json_object_get(delta, "tool_calls"), 0),
               *calls = json_object_get(message, "tool_calls");
        append(message, "content", text_at(delta, "content"));
        if (*text_at(delta, "reasoning_content"))
            append(message, "reasoning_content", text_at(delta, "reasoning_content"));
        if (piece && !calls)
            json_object_set_new(message, "tool_calls", calls = json_array());
        if (piece && json_object_get(piece, "id")) {
            json_array_append_new(calls, json_deep_copy(piece));
            json_object_del(json_array_get(calls, json_array_size(calls) - 1), "index");
        } else if (piece) {
            json_t *call = json_array_get(calls, (size_t)json_integer_value(json_object_get(piece, "index")));
            append(json_object_get(call, "function"), "arguments",
                   text_at(json_object_get(piece, "function"), "arguments"));
        }
        if (*text_at(choice, "finish_reason"))
            finish = text_at(choice, "finish_reason");
        if (json_object_get(event, "usage"))
            usage = json_object_get(event, "usage");
    }
    if (json_object_get(message, "tool_calls") && !*text_at(message, "content"))
        json_object_set_new(message, "content", json_null());
    return json_pack("{s:o, s:s, s:O?}", "message", message, "finish", finish, "usage", usage);
}

static json_t *chat_whole(void)
{
    json_t *choice = json_array_get(json_object_get(sent.whole, "choices"), 0);
    return json_pack("{s:O, s:s, s:O}", "message", json_object_get(choice, "message"), "finish",
                     text_at(choice, "finish_reason"), "usage", json_object_get(sent.whole, "usage"));
}

// Anthropic's: blocks, the end, and the counts of the last event. NULL: the events break the order that the API promises.
static json_t *messages_together(void)
{
    json_t *content = json_array(), *event, *last = NULL;
    bool good = true, open = false, stopped = false;
    size_t i;
    json_array_foreach(sent.events, i, event)
    {
        const char *type = text_at(event, "type");
        json_t *block = json_array_get(content, json_array_size(content) - 1), *delta = json_object_get(event, "delta");
        good = good && !stopped && (i > 0) == (strcmp(type, "message_start") != 0);
        if (!strcmp(type, "content_block_start")) {
            good = good && !open &&
                   json_integer_value(json_object_get(event, "index")) == (json_int_t)json_array_size(content);
            json_array_append_new(content, json_deep_copy(json_object_get(event, "content_block")));
            open = true;
        } else if (!strcmp(type, "content_block_delta")) {
            good = good && open &&
                   json_integer_value(json_object_get(event, "index")) + 1 == (json_int_t)json_array_size(content);
            append(block, "text", text_at(delta, "text"));
            append(block, "thinking", text_at(delta, "thinking"));
            append(block, "partial", text_at(delta, "partial_json"));
            append(block, "signature", text_at(delta, "signature"));
        } else if (!strcmp(type, "content_block_stop")) {
            good = good && open;
            open = false;
            if (!strcmp(text_at(block, "type"), "tool_use"))
                json_object_set_new(block, "input",
                                    json_exact_load(text_at(block, "partial"), strlen(text_at(block, "partial")), 0,
                                                    JSON_KEEP_ALL, NULL));
        } else if (!strcmp(type, "message_delta")) {
            last = event;
        } else if (!strcmp(type, "message_stop")) {
            stopped = last != NULL && !open;
        }
    }
    json_array_foreach(content, i, event)
    {
        static const char *const kept[] = {"thinking", "text", "tool_use"};
        for (size_t k = 0; k < 3; k++) // append has made the fields of other types as well
            if (strcmp(text_at(event, "type"), kept[k]))
                json_object_del(event, kept[k]);
        if (strcmp(text_at(event, "type"), "thinking"))
            json_object_del(event, "signature");
        json_object_del(event, "partial");
    }
    json_t *end = json_object_get(last, "delta");
    json_t *all = json_pack("{s:o, s:s?, s:O?, s:O?}", "content", content, "reason",
                            json_string_value(json_object_get(end, "stop_reason")), "sequence",
                            json_object_get(end, "stop_sequence"), "usage", json_object_get(last, "usage"));
    if (good && stopped)
        return all;
    json_decref(all);
    return NULL;
}

static json_t *messages_whole(void)
{
    return json_pack("{s:O, s:s, s:O, s:O}", "content", json_object_get(sent.whole, "content"), "reason",
                     text_at(sent.whole, "stop_reason"), "sequence", json_object_get(sent.whole, "stop_sequence"),
                     "usage", json_object_get(sent.whole, "usage"));
}

// The responses API's: items from their events, and the rest from the last event. NULL: the events contradict each other.
static json_t *responses_together(void)
{
    json_t *output = json_array(), *event, *response = NULL;
    struct string text = {0};
    bool good = true;
    size_t i;
    json_array_foreach(sent.events, i, event)
    {
        const char *type = text_at(event, "type"), *end = strrchr(type, '.');
        good = good && json_integer_value(json_object_get(event, "sequence_number")) == (json_int_t)i;
        if (!strcmp(type, "response.output_item.added"))
            text.count = 0;
        if (end && !strcmp(end, ".delta"))
            string_add(&text, text_at(event, "delta"), strlen(text_at(event, "delta")));
        if (end && !strcmp(end, ".done") && (json_object_get(event, "text") || json_object_get(event, "arguments"))) {
            const char *all = json_object_get(event, "text") ? text_at(event, "text") : text_at(event, "arguments");
            good = good && strlen(all) == text.count && (!text.count || !memcmp(all, text.bytes, text.count));
        }
        if (!strcmp(type, "response.output_item.done"))
            json_array_append(output, json_object_get(event, "item"));
        if (!strcmp(type, "response.completed") || !strcmp(type, "response.incomplete"))
            response = json_deep_copy(json_object_get(event, "response"));
    }
    free(text.bytes);
    good = good && json_equal(output, json_object_get(response, "output"));
    json_decref(output);
    if (good)
        return response;
    json_decref(response);
    return NULL;
}

static json_t *responses_whole(void)
{
    return json_incref(sent.whole);
}

struct dialect_test {
    const char *name, *tokens, *stop;
    handler *handle;
    json_t *(*whole)(void), *(*together)(void);
};

static const struct dialect_test dialects[] = {
    {"chat", "max_tokens", "stop", chat_handle, chat_whole, chat_together},
    {"messages", "max_tokens", "stop_sequences", messages_handle, messages_whole, messages_together},
    {"responses", "max_output_tokens", "stop", responses_handle, responses_whole, responses_together},
};

#endif
