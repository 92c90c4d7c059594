// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target: the reader of replies. The first four bytes choose dialect, reasoning, stops and cuts; the rest is a model's text.
//     clang -g -O1 -fsanitize=fuzzer,address,undefined -std=gnu11 -I. -o build/fuzz_reply tests/fuzz/reply.c
//         runtime/reply/{reply,text,call_xml,call_json,json_stream,json_text,schema}.c runtime/tokenizer_text.c runtime/json_exact.c -ljansson -lutf8proc
//     build/fuzz_reply -max_total_time=60
// Invariants: no crash; read whole and read in pieces it gives the same text and arguments; arguments are valid JSON.

#include "runtime/reply/reply.h"
#include "runtime/reply/bytes.h"
#include "tests/reply_cases.h"
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// All events, text of one kind joined.
struct record {
    struct bytes all, arguments;
    int kind;
};

static void sink(void *user, const struct reply_event *event)
{
    struct record *r = user;
    char kind = (char)('0' + event->kind);
    if (r->kind != (int)event->kind + 1)
        bytes_add(&r->all, &kind, 1);
    r->kind = (int)event->kind + 1;
    if (event->text)
        bytes_add(&r->all, event->text, event->bytes);
    if (event->kind == REPLY_CALL_BEGIN)
        r->arguments.size = 0;
    if (event->kind == REPLY_CALL_ARGUMENTS)
        bytes_add(&r->arguments, event->text, event->bytes);
    if (event->kind != REPLY_CALL_END)
        return;
    json_t *json = json_loadb(r->arguments.data, r->arguments.size, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    if (!json_is_object(json))
        abort();
    json_decref(json);
}

static struct record read_in(const struct reply_options *options, const char *text, size_t count, size_t piece)
{
    struct record r = {0};
    struct reply *reply = reply_new(options, NULL);
    for (size_t at = 0; at < count; at += piece)
        if (!reply_feed(reply, text + at, count - at < piece ? count - at : piece, sink, &r))
            break;
    reply_end(reply, sink, &r);
    reply_free(reply);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const stops[] = {"<", "</t", "ab"};
    static json_t *tools;
    if (!tools)
        tools = json_loads(case_tools, 0, NULL);
    if (size < 4)
        return 0;
    struct reply_options options = {.dialect = (enum reply_dialect)(data[0] % 3),
                                    .reasoning = data[1] & 1,
                                    .reasoning_open = data[1] & 2 ? NULL : "<think>",
                                    .reasoning_close = "</think>",
                                    .tools = tools,
                                    .stop = stops,
                                    .stop_count = data[2] % 4,
                                    .call_asked = data[1] & 8,
                                    .parallel_calls = data[1] & 4};
    const char *text = (const char *)data + 4;
    struct record whole = read_in(&options, text, size - 4, SIZE_MAX / 2);
    struct record parts = read_in(&options, text, size - 4, 1 + data[3] % 8);
    if (whole.all.size != parts.all.size || (whole.all.size && memcmp(whole.all.data, parts.all.data, whole.all.size)))
        abort();
    bytes_free(&whole.all);
    bytes_free(&whole.arguments);
    bytes_free(&parts.all);
    bytes_free(&parts.arguments);
    return 0;
}
