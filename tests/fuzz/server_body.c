// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target: bodies of requests, up to the numbers in them.
//   clang -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/server_body.c runtime/server/input.c runtime/json_exact.c -o fuzz_body -ljansson -lm
//   ./fuzz_body -max_total_time=60
// Invariants: no crash and no leak; what passes is the same when it was written and read again; it is no deeper and no larger than the limits; every number that passes is within
// the range that a wrong one is told; a message is one line.

#include "runtime/json_exact.h"
#include "runtime/server/input.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int depth(const json_t *value)
{
    int most = 0;
    size_t i;
    json_t *item;
    const char *key;
    json_array_foreach((json_t *)(uintptr_t)value, i, item)
    {
        int d = depth(item);
        most = d > most ? d : most;
    }
    json_object_foreach((json_t *)(uintptr_t)value, key, item)
    {
        int d = depth(item);
        most = d > most ? d : most;
    }
    return most + (json_is_array(value) || json_is_object(value));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error error = {0};
    struct fields fields;
    char shown[80];
    json_t *root = input_parse("the body", (const char *)data, size, &error);
    if (!root) {
        if (!*error.text || strchr(error.text, '\n'))
            abort();
        return 0;
    }
    char *written = json_exact_dump(root, NULL);
    json_t *again = written ? input_parse("the body", written, strlen(written), &error) : NULL;
    if (!json_equal(root, again))
        abort();
    json_decref(again);
    free(written);
    if (depth(root) > INPUT_DEPTH || strlen(input_show(root, shown)) >= sizeof shown)
        abort();
    for (int i = 0; i < FIELD_COUNT; i++) {
        bool good = fields_read(&fields, root, FIELD_BIT(i), &error);
        const struct field_value *v = &fields.at[i];
        if (good && v->given && (!isfinite(v->real) || fabs(v->real) > 9.3e18))
            abort();
        if (!good && (!fields.wrong || !strstr(error.text, fields.wrong)))
            abort();
    }
    json_decref(root);
    return 0;
}
