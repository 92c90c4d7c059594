// SPDX-License-Identifier: Apache-2.0
//
// Numbers on their way through the dialects: what the model wrote is what clients read, and what clients wrote is what the model
// reads. A part of dialects_test.c.

#ifndef DIALECTS_NUMBERS_H
#define DIALECTS_NUMBERS_H

#include "tests/dialects_refused.h"

// Whole numbers of more than 64 bits are kept where they are data, and real elsewhere; beside them no other loses a digit.
static void wide_numbers(void)
{
    static const char text[] =
        "{\"a\":18446744073709551615,\"b\":[-9223372036854775809,-9223372036854775808],"
        "\"c\":9007199254740993,\"d\":\"\\\"99999999999999999999\",\"e\":12345678901234567890e2,"
        "\"enum\":[-9223372036854775809,[12345678901234567890.5]],\"f\":{\"input\":{\"n\":18446744073709551616}}}";
    struct error error;
    json_t *root = input_parse("the body", text, sizeof text - 1, &error), *list = json_object_get(root, "b");
    ok(root && json_real_value(json_object_get(root, "a")) == 0x1p64 && json_is_real(json_array_get(list, 0)) &&
           json_integer_value(json_array_get(list, 1)) == INT64_MIN &&
           json_integer_value(json_object_get(root, "c")) == 9007199254740993 &&
           !strcmp(text_at(root, "d"), "\"99999999999999999999") &&
           json_real_value(json_object_get(root, "e")) == 12345678901234567890e2,
       "whole numbers of more than 64 bits are taken as real ones, and no others", root ? NULL : error.text);
    char *again = json_exact_dump(root, NULL);
    ok(again && strstr(again, "\"enum\":[-9223372036854775809,[1.2345678901234567e19]],\"f\":{\"input\":{\"n\":"
                              "18446744073709551616}}"),
       "but where they are data, which keep their digits", again);
    free(again);
    json_decref(root);
    root = input_parse("the body", "{\"a\":\n1e999}", 13, &error);
    ok(!root && !strcmp(error.text, "the body, line 2, column 5: a number is too large"),
       "one that no real number holds is named by its place", error.text);
    static const char seed[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"seed\":18446744073709551615}";
    const bool took = ask_text(chat_handle, strdup(seed), NULL);
    ok(!took && !strncmp(text_at(sent.whole, "message"), "seed: a whole number from -2^63", 31),
       "a seed of more than 64 bits is refused by name", text_at(sent.whole, "message"));
    over();
    static const char content[] = "{\"messages\":[{\"role\":\"user\",\"content\":18446744073709551615}]}";
    ok(!ask_text(chat_handle, strdup(content), NULL) && strstr(text_at(sent.whole, "message"), "a text or an array"),
       "no such number is taken for a text", text_at(sent.whole, "message"));
    over();
}

// A tool whose arguments are numbers.
static const char numbers_schema[] =
    "{\"type\":\"object\",\"properties\":{\"real\":{\"type\":\"number\"},\"whole\":{\"type\":\"integer\"},"
    "\"list\":{\"type\":\"array\"},\"one\":{\"type\":\"integer\",\"enum\":[18446744073709551617,-9223372036854775809],"
    "\"maximum\":340282366920938463463374607431768211455,\"default\":0.1}}}";

#define NUMBERS_CALL                                                                                                   \
    "\n</think>\n\n<tool_call>\n<function=list>\n<parameter=real>\n-3.14159265358979312\n</"                           \
    "parameter>\n<parameter=whole>\n"                                                                                  \
    "123456789012345678901234567890\n</parameter>\n<parameter=list>\n[0.1, 1.10, 1e-7, 9007199254740993, "             \
    "18446744073709551617, 1E5]\n</parameter>\n</function>\n</tool_call>"
#define NUMBERS                                                                                                        \
    "{\"real\":-3.14159265358979312,\"whole\":123456789012345678901234567890,\"list\":[0.1,1.10,1e-7,"                 \
    "9007199254740993,"                                                                                                \
    "18446744073709551617,1E5]}"

static json_t *numbers_request(const struct dialect_test *d, json_t *messages, bool stream)
{
    json_t *body = request(d, messages, stream), *tool = json_array_get(json_object_get(body, "tools"), 0);
    if (d->handle == chat_handle)
        tool = json_object_get(tool, "function");
    json_object_set_new(tool, d->handle == messages_handle ? "input_schema" : "parameters", parsed(numbers_schema));
    return body;
}

// The arguments' text in what was sent whole, or put together from a stream; to be freed.
static char *arguments_in(const struct dialect_test *d, const json_t *reply)
{
    const json_t *calls, *item = reply;
    size_t i;
    if (d->handle == messages_handle) {
        calls = json_object_get(reply, "content");
        return json_exact_dump(json_object_get(json_array_get(calls, json_array_size(calls) - 1), "input"), NULL);
    }
    if (d->handle == chat_handle) {
        calls = json_object_get(json_object_get(reply, "message"), "tool_calls");
        return strdup(text_at(json_object_get(json_array_get(calls, 0), "function"), "arguments"));
    }
    json_array_foreach(
        json_object_get(reply, "output"), i,
        item) if (!strcmp(text_at(item, "type"), "function_call")) return strdup(text_at(item, "arguments"));
    return NULL;
}

// What the model wrote comes back as the same numbers, whole and streamed.
static void numbers_replied(void)
{
    for (int i = 0; i < 3; i++) {
        const struct dialect_test *d = &dialects[i];
        char name[96], *texts_of[2] = {NULL};
        bool digits = true, same = true;
        for (int stream = 0; stream < 2; stream++) {
            if (!ask(d->handle, numbers_request(d, hello(), stream), NULL))
                continue;
            say(NUMBERS_CALL, 5, false);
            if (!stream && d->handle == messages_handle) // whose arguments are no text
                digits = sent.written && strstr(sent.written, "\"input\":" NUMBERS);
            json_t *reply = stream ? d->together() : d->whole();
            texts_of[stream] = arguments_in(d, reply);
            json_decref(reply);
            over();
        }
        for (int stream = 0; stream < 2; stream++) {
            json_t *read = texts_of[stream] ? parsed(texts_of[stream]) : NULL, *wanted = parsed(NUMBERS);
            same = same && read && json_equal(read, wanted);
            json_decref(read);
            json_decref(wanted);
        }
        snprintf(name, sizeof name, "%s: the model's numbers are the client's, whole and streamed", d->name);
        ok(digits && same, name, texts_of[0]);
        for (int k = 0; k < 2; k++)
            free(texts_of[k]);
    }
}

// What clients wrote is what the model reads: schemas, and calls that are sent back.
static void numbers_asked(void)
{
    char *one[3];
    for (int i = 0; i < 3; i++) {
        const struct dialect_test *d = &dialects[i];
        json_t *list = hello(), *body;
        if (d->handle == chat_handle)
            json_array_append_new(list, json_pack("{s:s, s:[{s:s, s:{s:s, s:s}}]}", "role", "assistant", "tool_calls",
                                                  "id", "1", "function", "name", "list", "arguments", NUMBERS));
        else if (d->handle == messages_handle)
            json_array_append_new(list,
                                  json_pack("{s:s, s:[{s:s, s:s, s:s, s:o}]}", "role", "assistant", "content", "type",
                                            "tool_use", "id", "1", "name", "list", "input", parsed(NUMBERS)));
        else
            json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s}", "type", "function_call", "call_id", "1",
                                                  "name", "list", "arguments", NUMBERS));
        body = numbers_request(d, list, false);
        one[i] = prompt_of(d, body);
    }
    ok(strstr(one[0], "[18446744073709551617, -9223372036854775809]") &&
           strstr(one[0], "\"maximum\": 340282366920938463463374607431768211455, \"default\": 0.1"),
       "the numbers of a schema are in the prompt as they were written", one[0]);
    ok(strstr(one[0], "<parameter=whole>\n123456789012345678901234567890\n") &&
           strstr(one[0], "[0.1, 1.1, 1e-07, 9007199254740993, 18446744073709551617, 100000.0]"),
       "and so are those of earlier calls, real ones as templates have them", one[0]);
    ok(!strcmp(one[0], one[1]) && !strcmp(one[0], one[2]), "in every dialect", one[1]);
    for (int i = 0; i < 3; i++)
        free(one[i]);
}

#endif
