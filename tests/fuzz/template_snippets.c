// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target: the first two bytes choose one of the templates of tests/fixtures/templates/snippets.json, which together use every
// filter, test and method; the rest is its input, any JSON object. A render never crashes and never leaks. After tests/template.t:
//     clang -g -O1 -fsanitize=fuzzer,address,undefined -std=gnu11 -I. -o build/fuzz_snippets tests/fuzz/template_snippets.c
//         build/test_template/cases.c runtime/template*.c runtime/chat.c runtime/json_exact.c -ljansson -lutf8proc -lm
//     build/fuzz_snippets -max_total_time=60 CORPUS     (one file: two bytes, then the "input" of snippets.json)

#include "runtime/json_exact.h"
#include "runtime/template.h"
#include <stdlib.h>

extern const struct chat_template *const snippet_templates[];
extern const size_t snippet_count;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    json_t *json = json_exact_load((const char *)data + 2, size - 2, JSON_ALLOW_NUL, JSON_KEEP_ALL, NULL);
    struct error error = {0};
    char *text;
    size_t bytes, count;
    struct span *spans;
    const struct chat_template *templ = snippet_templates[(data[0] | data[1] << 8) % snippet_count];
    if (json && template_render(templ, json, 0, &text, &bytes, &spans, &count, &error)) {
        if (bytes ? !count || spans[count - 1].end != bytes : count)
            abort();
        free(text);
        free(spans);
    }
    json_decref(json);
    return 0;
}
