// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target: a compiled chat template renders any JSON or fails with a message; it never crashes, never leaks, and the
// provenance of what it renders covers it exactly.
//     lua5.4 gen/template.lua tests/fixtures/templates/flash_next.jinja build/fuzz_template.c
//     clang -g -O1 -fsanitize=fuzzer,address,undefined -std=gnu11 -I. -o build/fuzz_template tests/fuzz/template_render.c
//         build/fuzz_template.c runtime/template*.c runtime/chat.c runtime/json_exact.c -ljansson -lutf8proc -lm
//     build/fuzz_template -max_total_time=60 CORPUS     (the lines of tests/fixtures/templates/conversations.json are a good one)

#include "runtime/chat.h"
#include "runtime/json_exact.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *json = json_exact_load((const char *)data, size, JSON_ALLOW_NUL, JSON_KEEP_ALL, NULL);
    if (!json)
        return 0;
    json_t *messages = json_is_object(json) ? json_object_get(json, "messages") : json;
    json_t *tools = json_object_get(json, "tools"), *kwargs = json_is_object(json) ? json_copy(json) : NULL;
    if (kwargs) {
        json_object_del(kwargs, "messages");
        json_object_del(kwargs, "tools");
        json_object_del(kwargs, "add_generation_prompt");
    }
    struct error error = {0};
    char *text;
    size_t bytes, count;
    struct chat_segment *segments;
    if (chat_render_segments(messages, tools, kwargs, true, &text, &bytes, &segments, &count, &error)) {
        size_t at = 0;
        for (size_t i = 0; i < count; i++) {
            if (segments[i].begin != at || segments[i].end <= at)
                abort();
            at = segments[i].end;
        }
        if (at != bytes || strlen(text) > bytes)
            abort();
        free(text);
        free(segments);
    } else if (!error.text[0]) {
        abort();
    }
    json_decref(kwargs);
    json_decref(json);
    return 0;
}
