// SPDX-License-Identifier: Apache-2.0
//
// The stored prompts of the embedded model, and beginnings of them. Paths are from the repository's root.

#ifndef STORED_PROMPTS_H
#define STORED_PROMPTS_H

#include <jansson.h>
#include <stdint.h>

enum { PROMPTS = 200, IDS = 1024 };

struct prompt {
    int32_t ids[IDS];
    int count;
};

static struct prompt prompts[PROMPTS];

static int load_file(const char *path, int at)
{
    json_error_t why;
    json_t *list = json_load_file(path, 0, &why), *one;
    size_t i;
    json_array_foreach(list, i, one)
    {
        json_t *ids = json_object_get(one, "prompt_ids");
        if (at == PROMPTS || json_array_size(ids) > IDS)
            continue;
        prompts[at].count = (int)json_array_size(ids);
        for (int k = 0; k < prompts[at].count; k++)
            prompts[at].ids[k] = (int32_t)json_integer_value(json_array_get(ids, (size_t)k));
        at++;
    }
    json_decref(list);
    return at;
}

// The stored prompts, then beginnings of them: other lengths, so that blocks, pages and chunks end everywhere.
static int load_prompts(void)
{
    int count =
        load_file("tests/fixtures/embedded/more_replies.json", load_file("tests/fixtures/embedded/replies.json", 0));
    for (int i = 0, stored = count; stored > 0 && count < PROMPTS; i++, count++) {
        prompts[count] = prompts[i % stored];
        prompts[count].count = 1 + prompts[count].count * (3 + i % 5) / 9;
    }
    return count;
}

#endif
