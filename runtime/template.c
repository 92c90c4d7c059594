// SPDX-License-Identifier: Apache-2.0
//
// One render of a compiled chat template: its arena, its limits, its way out when something fails, its output and its loops.
// Invariant: template_render leaves nothing allocated but its result, however the render ends.

#include "runtime/template.h"
#include <stdlib.h>
#include <string.h>

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    _Alignas(16) char bytes[];
};

enum { BLOCK_BYTES = 64 << 10 };

void template_fail(struct template_run *run, const char *format, ...)
{
    char text[sizeof run->error->text];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (run->line)
        error_set(run->error, "%.120s:%d: %.350s", run->name, run->line, text);
    else // before the first statement: about the input
        error_set(run->error, "%.120s: %.350s", run->name, text);
    longjmp(run->failed, 1);
}

void template_fail_undefined(struct template_run *run, struct value v)
{
    template_fail(run, "'%.80s' is undefined", v.hint);
}

void template_steps(struct template_run *run, size_t count)
{
    if (count > TEMPLATE_STEPS || (run->steps += (int64_t)count) > TEMPLATE_STEPS)
        template_fail(run, "the template runs too long on this conversation (%d steps)", TEMPLATE_STEPS);
}

void *template_alloc(struct template_run *run, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > TEMPLATE_ARENA_BYTES)
        template_fail(run, "the conversation needs too much memory (limit %d bytes)", TEMPLATE_ARENA_BYTES);
    bytes = (bytes + 15) & ~(size_t)15;
    struct arena_block *block = run->arena;
    if (!block || block->size - block->used < bytes) {
        size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        if (run->arena_bytes + room > TEMPLATE_ARENA_BYTES)
            template_fail(run, "the conversation needs too much memory (limit %d bytes)", TEMPLATE_ARENA_BYTES);
        block = malloc(sizeof *block + room);
        if (!block)
            template_fail(run, "out of memory");
        *block = (struct arena_block){.next = run->arena, .size = room};
        run->arena = block;
        run->arena_bytes += room;
    }
    void *result = block->bytes + block->used;
    block->used += bytes;
    return result;
}

static void arena_free(struct arena_block *block)
{
    while (block) {
        struct arena_block *next = block->next;
        free(block);
        block = next;
    }
}

struct value template_name(struct template_run *run, const char *name)
{
    const struct text key = {.data = name, .size = strlen(name), .trusted = true};
    const struct value *found = dict_get(run, run->input, value_text(&key));
    if (found)
        return *found;
    for (size_t i = 0; i < run->template->constant_count; i++)
        if (strcmp(run->template->constants[i].name, name) == 0)
            return value_text(&run->template->constants[i].text);
    return value_undefined(name);
}

// Output ----------------------------------------------------------------------------------------------------------------------

void output_value(struct template_run *run, struct value v)
{
    print_value(run, run->out, v);
}

void output_text(struct template_run *run, const struct text *text)
{
    builder_text(run, run->out, text, 0, text->size);
}

struct builder *output_to(struct template_run *run, struct builder *b)
{
    struct builder *before = run->out;
    run->out = b;
    return before;
}

struct value call_macro(struct template_run *run, struct value callee, const char *name, void *scope,
                        const struct value *arguments)
{
    if (callee.kind == VALUE_UNDEFINED)
        template_fail(run, "'%s' is undefined", name);
    if (callee.kind != VALUE_MACRO)
        template_fail(run, "'%s' is not a macro but %s", name, value_type(callee));
    template_steps(run, 1);
    if (++run->depth > TEMPLATE_DEPTH)
        template_fail(run, "macro calls nest deeper than %d", TEMPLATE_DEPTH);
    struct builder inner = {0};
    struct builder *outer = output_to(run, &inner);
    int line = run->line;
    callee.macro->call(run, scope, arguments);
    run->line = line;
    output_to(run, outer);
    run->depth--;
    return builder_finish(run, &inner, false);
}

// Loops -----------------------------------------------------------------------------------------------------------------------

void loop_begin(struct template_run *run, struct loop *loop, struct value v)
{
    const struct list *elements = value_elements(run, v);
    const struct value none = value_undefined("there is no previous item");
    *loop =
        (struct loop){.items = elements->items, .count = elements->count, .index0 = -1, .item = none, .previous = none};
}

bool loop_next(struct template_run *run, struct loop *loop)
{
    if (loop->position == loop->count)
        return false;
    template_steps(run, 1);
    loop->saved_item = loop->item;
    loop->saved_previous = loop->previous;
    loop->previous = loop->item;
    loop->item = loop->items[loop->position++];
    loop->index0++;
    return true;
}

void loop_skip(struct loop *loop)
{
    loop->item = loop->saved_item;
    loop->previous = loop->saved_previous;
    loop->index0--;
}

struct value loop_nextitem(const struct loop *loop)
{
    return loop->position < loop->count ? loop->items[loop->position] : value_undefined("there is no next item");
}

// The render ------------------------------------------------------------------------------------------------------------------

// Everything between setjmp and its use lies behind `run`, so that no local is lost when a failure returns here.
static bool execute(struct template_run *run, const json_t *input, struct builder *out)
{
    if (setjmp(run->failed))
        return false;
    run->input = value_from_json(run, input, 0);
    run->out = out;
    run->template->render(run);
    builder_bytes(run, out, "", 1, true); // room for the NUL
    return true;
}

static bool take(const struct builder *out, char **text, size_t *bytes, struct span **spans, size_t *span_count)
{
    *text = malloc(out->size);
    *spans = malloc((out->span_count + 1) * sizeof **spans);
    if (!*text || !*spans) {
        free(*text);
        free(*spans);
        return false;
    }
    memcpy(*text, out->data, out->size);
    *bytes = out->size - 1;
    *span_count = 0;
    for (size_t i = 0, from = 0; i < out->span_count && from < *bytes; i++) {
        struct span span = out->spans[i];
        span.end = span.end < *bytes ? span.end : *bytes;
        (*spans)[(*span_count)++] = span;
        from = span.end;
    }
    return true;
}

bool template_render(const struct chat_template *templ, const json_t *input, time_t now, char **text, size_t *bytes,
                     struct span **spans, size_t *span_count, struct error *error)
{
    struct error unused;
    if (!json_is_object(input))
        return error_set(error, "chat template: the input is not an object");
    struct template_run *run = calloc(1, sizeof *run);
    if (!run)
        return error_set(error, "out of memory");
    struct builder out = {0};
    run->error = error ? error : &unused;
    run->name = templ->name ? templ->name : "chat template";
    run->template = templ;
    run->now = now;
    bool ok = execute(run, input, &out);
    if (ok && !take(&out, text, bytes, spans, span_count))
        ok = error_set(error, "out of memory");
    arena_free(run->arena);
    free(run);
    return ok;
}
