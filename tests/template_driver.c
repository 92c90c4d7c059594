// SPDX-License-Identifier: Apache-2.0
//
// Renders compiled chat templates and compares every byte with what Jinja2 made of the same input. tests/template.t compiles the
// templates of tests/fixtures/templates into the tables below and links them with this.
//     driver snippets FILE.json | driver family NAME CONVERSATIONS.json EXPECTED.json | driver render NAME CONVERSATION.json
//     driver arguments
// Invariant: prints one TAP line for each case (without the plan, which the script prints), and exits 0 unless it cannot run.

#include "runtime/chat.h"
#include "runtime/json_exact.h"
#include <stdlib.h>
#include <string.h>

extern const struct chat_template *const snippet_templates[];
extern const size_t snippet_count;
struct family {
    const char *name;
    const struct chat_template *templ;
};
extern const struct family families[];

enum { NOW = 1764374400 }; // as tests/fixtures/templates/make_expected.py

static json_t *load(const char *path)
{
    json_error_t problem;
    static char text[1 << 20];
    FILE *file = fopen(path, "rb");
    const size_t bytes = file ? fread(text, 1, sizeof text, file) : 0;
    if (file)
        fclose(file);
    json_t *json = json_exact_load(text, bytes, JSON_ALLOW_NUL, JSON_KEEP_ALL, &problem);
    if (!json) {
        fprintf(stderr, "%s:%d: %s\n", path, problem.line, problem.text);
        exit(1);
    }
    return json;
}

static void print_bytes(const char *label, const char *bytes, size_t size)
{
    printf("#   %s ", label);
    for (size_t i = 0; i < size && i < 3000; i++)
        printf(bytes[i] == '\n' ? "\\n" : "%c", bytes[i]);
    printf("\n");
}

// The provenance of a text covers it without gaps, in runs that differ.
static bool covers(const struct chat_segment *segments, size_t count, size_t bytes)
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (segments[i].begin != at || segments[i].end <= at || (i && segments[i].trusted == segments[i - 1].trusted))
            return false;
        at = segments[i].end;
    }
    return at == bytes;
}

// One TAP line: the render agrees with `expected` (an object with "expected" or "error").
static void judge(const char *name, const json_t *expected, bool ok, const char *text, size_t bytes,
                  const struct error *error)
{
    const json_t *want = json_object_get(expected, "expected");
    bool same =
        want ? ok && bytes == json_string_length(want) && memcmp(text, json_string_value(want), bytes) == 0 : !ok;
    printf("%s - %s\n", same ? "ok" : "not ok", name);
    if (same)
        return;
    if (want)
        print_bytes("expected", json_string_value(want), json_string_length(want));
    else
        printf("#   expected failure %s\n", json_string_value(json_object_get(expected, "error")));
    if (ok)
        print_bytes("found   ", text, bytes);
    else
        printf("#   found failure %s\n", error->text);
}

static void run_snippets(const char *path)
{
    json_t *file = load(path), *input = json_object_get(file, "input"), *cases = json_object_get(file, "cases"), *one;
    size_t i;
    json_array_foreach(cases, i, one)
    {
        struct error error = {0};
        char *text = NULL, name[160];
        size_t bytes = 0, count;
        struct span *spans = NULL;
        bool ok = i < snippet_count &&
                  template_render(snippet_templates[i], input, NOW, &text, &bytes, &spans, &count, &error);
        snprintf(name, sizeof name, "snippet %zu: %.100s", i + 1, json_string_value(json_object_get(one, "template")));
        for (char *c = name; *c; c++)
            if (*c == '#' || (unsigned char)*c < 32)
                *c = ' ';
        judge(name, one, ok, text, bytes, &error);
        if (ok)
            free(text), free(spans);
    }
    json_decref(file);
}

static const struct chat_template *family(const char *name)
{
    for (const struct family *f = families; f->name; f++)
        if (!strcmp(f->name, name))
            return f->templ;
    fprintf(stderr, "no family %s\n", name);
    exit(1);
}

// Splits a conversation { messages, tools, add_generation_prompt, ... } into chat_render's arguments.
static bool render(const struct chat_template *templ, const json_t *conversation, char **text, size_t *bytes,
                   struct chat_segment **segments, size_t *count, struct error *error)
{
    json_t *kwargs = json_copy((json_t *)(uintptr_t)conversation);
    json_t *messages = json_incref(json_object_get(kwargs, "messages")),
           *tools = json_incref(json_object_get(kwargs, "tools"));
    bool prompt = !json_is_false(json_object_get(kwargs, "add_generation_prompt"));
    json_object_del(kwargs, "name");
    json_object_del(kwargs, "messages");
    json_object_del(kwargs, "tools");
    json_object_del(kwargs, "add_generation_prompt");
    bool ok = chat_render_with(templ, messages, tools, kwargs, prompt, NOW, text, bytes, segments, count, error);
    json_decref(kwargs);
    json_decref(messages);
    json_decref(tools);
    return ok;
}

static void run_family(const char *name, const char *conversations_path, const char *expected_path)
{
    json_t *conversations = load(conversations_path), *expected = load(expected_path), *one;
    const struct chat_template *templ = family(name);
    size_t i;
    json_array_foreach(conversations, i, one)
    {
        struct error error = {0};
        char *text = NULL, label[160];
        size_t bytes = 0, count = 0;
        struct chat_segment *segments = NULL;
        bool ok = render(templ, one, &text, &bytes, &segments, &count, &error);
        snprintf(label, sizeof label, "%s: %.100s", name, json_string_value(json_object_get(one, "name")));
        if (ok && !covers(segments, count, bytes))
            printf("not ok - %s: segments do not cover the text\n", label);
        else
            judge(label, json_array_get(expected, i), ok, text, bytes, &error);
        if (ok)
            free(text), free(segments);
    }
    json_decref(conversations);
    json_decref(expected);
}

// Prints the text of one conversation with its untrusted parts in {braces}, or its error.
static void run_render(const char *name, const char *path)
{
    json_t *conversation = load(path);
    struct error error = {0};
    char *text;
    size_t bytes, count;
    struct chat_segment *segments;
    if (render(family(name), conversation, &text, &bytes, &segments, &count, &error)) {
        for (size_t i = 0; i < count; i++)
            printf("%s%.*s%s", segments[i].trusted ? "" : "{", (int)(segments[i].end - segments[i].begin),
                   text + segments[i].begin, segments[i].trusted ? "" : "}");
        free(text);
        free(segments);
    } else
        printf("error: %s\n", error.text);
    json_decref(conversation);
}

static void check(bool condition, const char *name)
{
    printf("%s - %s\n", condition ? "ok" : "not ok", name);
}

// chat_render refuses what is not a conversation, before any template runs; chat_trusted at the edges of segments.
static void run_arguments(void)
{
    struct error error = {0};
    char *text = NULL;
    size_t bytes = 0;
    json_t *list = json_array(), *number = json_integer(1), *extra = json_pack("{s:[]}", "messages");
    const struct chat_template *templ = family("embedded");
    check(!chat_present(), "a build without template says so");
    check(!chat_render(list, NULL, NULL, true, &text, &bytes, &error) && strstr(error.text, "no chat template"),
          "and renders nothing");
    check(!chat_render_with(templ, number, NULL, NULL, true, 0, &text, &bytes, NULL, NULL, &error) &&
              strstr(error.text, "messages: expected an array"),
          "messages must be an array");
    check(!chat_render_with(templ, list, number, NULL, true, 0, &text, &bytes, NULL, NULL, &error) &&
              strstr(error.text, "tools: expected an array"),
          "tools must be an array");
    check(!chat_render_with(templ, list, NULL, number, true, 0, &text, &bytes, NULL, NULL, &error) &&
              strstr(error.text, "expected an object"),
          "extra arguments must be an object");
    check(!chat_render_with(templ, list, NULL, extra, true, 0, &text, &bytes, NULL, NULL, &error) &&
              strstr(error.text, "'messages' cannot be given"),
          "extra arguments cannot replace the messages");
    check(chat_render_with(templ, list, NULL, NULL, true, 0, &text, &bytes, NULL, NULL, &error) && bytes == 22,
          "no messages, no segments asked for");
    free(text);
    json_decref(list);
    json_decref(number);
    json_decref(extra);
    const struct chat_segment s[3] = {{0, 4, true}, {4, 6, false}, {6, 9, true}};
    check(chat_trusted(s, 3, 0, 4) && chat_trusted(s, 3, 6, 9) && chat_trusted(s, 3, 1, 2), "inside trusted segments");
    check(!chat_trusted(s, 3, 3, 5) && !chat_trusted(s, 3, 4, 6) && !chat_trusted(s, 3, 5, 7),
          "touching an untrusted one");
    check(!chat_trusted(s, 3, 0, 9) && !chat_trusted(s, 3, 8, 10) && !chat_trusted(s, 0, 0, 1), "past the end");
    check(chat_trusted(s, 3, 5, 5), "an empty range");
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "snippets"))
        run_snippets(argv[2]);
    else if (argc == 5 && !strcmp(argv[1], "family"))
        run_family(argv[2], argv[3], argv[4]);
    else if (argc == 4 && !strcmp(argv[1], "render"))
        run_render(argv[2], argv[3]);
    else if (argc == 2 && !strcmp(argv[1], "arguments"))
        run_arguments();
    else {
        fprintf(stderr, "usage: see the head of tests/template_driver.c\n");
        return 1;
    }
    return 0;
}
