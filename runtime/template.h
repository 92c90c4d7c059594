// SPDX-License-Identifier: Apache-2.0
//
// The runtime that compiled chat templates call: Python's values as Jinja2 sees them, and operations on them.
//
// Three invariants. Memory: everything a render makes lies in its arena and goes with it; values are never freed one by one.
// Failure: an operation that fails does not return; it leaves through template_fail, which template_render catches, so generated
// code needs no checks. Provenance: each byte of each string knows whether it came from the template (trusted) or from
// the input (not), through every operation, so that a message can never spell a control token.

#ifndef TEMPLATE_H
#define TEMPLATE_H

#include "runtime/error.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum {
    TEMPLATE_OUTPUT_BYTES = 64 << 20, // most bytes of a rendered conversation, and of any one string
    TEMPLATE_ARENA_BYTES = 512 << 20, // most bytes of all values of a render
    TEMPLATE_DEPTH = 64,              // nesting of input values, of printed values, and of macro calls
    TEMPLATE_STEPS = 20 * 1000 * 1000 // loop passes, calls and elements looked at
};

enum value_kind {
    VALUE_MISSING, // an argument that was not given; never seen by templates
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_WIDE, // a whole number of more than 64 bits, which is printed and compared; `digits` are its text
    VALUE_FLOAT,
    VALUE_TEXT,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_VIEW,      // d.items(), d.keys(), d.values(), range(): has a length, no index
    VALUE_GENERATOR, // what lazy filters give: always true, no length, walked once
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_MACRO,
    VALUE_METHOD // d.items without a call
};

// A run of bytes of one provenance; runs follow each other from byte 0.
struct span {
    size_t end;
    bool trusted;
};

// A string, UTF-8. spans is NULL where all bytes have the provenance `trusted`. markup: made by |safe or |escape; joining a plain
// string to it escapes that string, as Markup does.
struct text {
    const char *data;
    size_t size;
    const struct span *spans;
    size_t span_count;
    bool trusted;
    bool markup;
};

struct list;
struct dict;
struct macro;

struct value {
    uint8_t kind;
    bool trusted; // of numbers, booleans and containers: made by the template; of a text: see struct text
    union {
        bool flag;
        int64_t integer;
        double real;
        const char *digits;
        const struct text *text;
        struct list *list;
        struct dict *dict;
        const struct macro *macro;
        const char *hint; // of an undefined value or a method: the name that was looked up
    };
};

struct list {
    struct value *items;
    size_t count, room;
    bool consumed; // of a generator
};

// Pairs in insertion order; `index` is an open hash table over them once there are many, of index_size (a power of two) slots.
struct dict {
    struct value *keys, *values;
    size_t count, room;
    uint32_t *index;
    size_t index_size;
};

struct template_run;

// The variables at the top of a template are a struct of its own; a macro sees them through `scope`.
typedef struct value macro_function(struct template_run *run, void *scope, const struct value *arguments);
struct macro {
    const char *name;
    macro_function *call;
};

// A string that grows; lives in the arena.
struct builder {
    char *data;
    size_t size, room;
    struct span *spans;
    size_t span_count, span_room;
};

// One `for`. Items are walked by next/skip; previous and next are what loop.previtem and loop.nextitem give.
struct loop {
    const struct value *items;
    size_t count, position;
    int64_t index0;
    struct value item, previous, saved_item, saved_previous;
};

struct arena_block;

struct template_run {
    jmp_buf failed;
    struct error *error;
    const char *name; // of the template, for messages
    int line;         // of the statement that runs
    int depth;
    int64_t steps;
    struct arena_block *arena;
    size_t arena_bytes;
    struct builder *out;
    struct value input; // dict: what the template's free names are looked up in
    const struct chat_template *template;
    time_t now; // for strftime_now
};

// A string that the checkpoint gives to its template (bos_token ...), trusted.
struct template_constant {
    const char *name;
    struct text text;
};

// What the generator emits.
struct chat_template {
    const char *name; // NULL: the checkpoint has no template
    void (*render)(struct template_run *run);
    const struct template_constant *constants;
    size_t constant_count;
};

// Renders `templ` with the names in `input` (an object) into *text (malloc, NUL-terminated, *bytes long) and *spans (malloc,
// covering the text). `now` is the time strftime_now tells. false: error is filled, nothing is allocated. Strings of input must
// stay until it returns. Safe from several threads.
bool template_render(const struct chat_template *templ, const json_t *input, time_t now, char **text, size_t *bytes,
                     struct span **spans, size_t *span_count, struct error *error);

// Ends the render with a message that starts with the template's name and line.
__attribute__((noreturn, format(printf, 2, 3))) void template_fail(struct template_run *run, const char *format, ...);
// Ends the render because of the use of an undefined value.
__attribute__((noreturn)) void template_fail_undefined(struct template_run *run, struct value v);
// Counts work; ends the render when there has been too much.
void template_steps(struct template_run *run, size_t count);
// Memory of the render, 16-byte aligned, not cleared.
void *template_alloc(struct template_run *run, size_t count, size_t size);

// Constructors.
#define NONE  ((struct value){.kind = VALUE_NONE, .trusted = true})
#define UNSET ((struct value){.kind = VALUE_MISSING})
static inline struct value value_bool(bool flag)
{
    return (struct value){.kind = VALUE_BOOL, .trusted = true, .flag = flag};
}
static inline struct value value_int(int64_t integer)
{
    return (struct value){.kind = VALUE_INT, .trusted = true, .integer = integer};
}
static inline struct value value_float(double real)
{
    return (struct value){.kind = VALUE_FLOAT, .trusted = true, .real = real};
}
static inline struct value value_text(const struct text *text)
{
    return (struct value){.kind = VALUE_TEXT, .trusted = true, .text = text};
}
static inline struct value value_undefined(const char *hint)
{
    return (struct value){.kind = VALUE_UNDEFINED, .trusted = true, .hint = hint};
}
static inline struct value value_macro(const struct macro *macro)
{
    return (struct value){.kind = VALUE_MACRO, .trusted = true, .macro = macro};
}
static inline bool value_numeric(struct value v)
{
    return v.kind >= VALUE_BOOL && v.kind <= VALUE_FLOAT;
}
// Of a numeric value.
static inline double value_number(struct value v)
{
    switch (v.kind) {
    case VALUE_BOOL:
        return v.flag;
    case VALUE_INT:
        return (double)v.integer;
    case VALUE_WIDE:
        return strtod(v.digits, NULL);
    default:
        return v.real;
    }
}
// Whether its elements lie in v.list.
static inline bool value_listlike(struct value v)
{
    return v.kind >= VALUE_LIST && v.kind <= VALUE_GENERATOR;
}
struct value value_list(struct template_run *run, enum value_kind kind, size_t room);
void list_push(struct template_run *run, struct value list, struct value item);
struct value value_dict(struct template_run *run, enum value_kind kind);
void dict_set(struct template_run *run, struct value dict, struct value key, struct value item);
// The value at key, or NULL.
const struct value *dict_get(struct template_run *run, struct value dict, struct value key);
struct value value_from_json(struct template_run *run, const json_t *json, int depth);

// Strings. `trusted` of plain bytes; the others carry provenance over. Sizes and offsets are bytes.
void builder_bytes(struct template_run *run, struct builder *b, const char *bytes, size_t count, bool trusted);
void builder_text(struct template_run *run, struct builder *b, const struct text *text, size_t from, size_t to);
struct value builder_finish(struct template_run *run, struct builder *b, bool markup);
struct value text_cut(struct template_run *run, const struct text *text, size_t from, size_t to);
bool text_trusted(const struct text *text, size_t at);
size_t text_length(const char *data, size_t size);
// Byte offset of code point `index` of data, size where there are fewer.
size_t text_offset(const char *data, size_t size, size_t index);
// The bytes of the code point at `at` (at least 1, never past size); *code is it, or U+FFFD.
size_t text_code(const char *data, size_t size, size_t at, uint32_t *code);
bool text_is_space(uint32_t code);
struct value text_escape(struct template_run *run, const struct text *text);

// Printing: str(), repr() and JSON. indent NULL: one line; separators NULL: the usual ones.
struct json_style {
    const struct text *indent, *item_separator, *key_separator;
    bool ascii, sort_keys;
};
void print_value(struct template_run *run, struct builder *b, struct value v);
void print_repr(struct template_run *run, struct builder *b, struct value v);
void print_json(struct template_run *run, struct builder *b, struct value v, const struct json_style *style);
// The string of a value: itself where it is one.
const struct text *value_string(struct template_run *run, struct value v);
const char *value_type(struct value v); // Python's name of the type
bool float_repr(double real, char out[80]);

// What generated code calls. Order and meaning of operands are Python's.
struct value template_name(struct template_run *run, const char *name);
bool value_truth(struct template_run *run, struct value v);
struct value value_attribute(struct template_run *run, struct value v, const struct text *name);
struct value value_item(struct template_run *run, struct value v, struct value key);
struct value value_slice(struct template_run *run, struct value v, struct value from, struct value to,
                         struct value step);
struct value value_add(struct template_run *run, struct value a, struct value b);
struct value value_sub(struct template_run *run, struct value a, struct value b);
struct value value_mul(struct template_run *run, struct value a, struct value b);
struct value value_div(struct template_run *run, struct value a, struct value b);
struct value value_floordiv(struct template_run *run, struct value a, struct value b);
struct value value_mod(struct template_run *run, struct value a, struct value b);
struct value value_pow(struct template_run *run, struct value a, struct value b);
struct value value_neg(struct template_run *run, struct value a);
struct value value_pos(struct template_run *run, struct value a);
struct value value_concat(struct template_run *run, const struct value *parts, size_t count);
bool value_eq(struct template_run *run, struct value a, struct value b);
bool value_lt(struct template_run *run, struct value a, struct value b);
bool value_le(struct template_run *run, struct value a, struct value b);
bool value_in(struct template_run *run, struct value a, struct value b);
// The elements that walking v gives, as a list (v itself where it is one). A generator is used up.
struct list *value_elements(struct template_run *run, struct value v);
// As value_elements, but none for any false value: what map, select and reject walk.
struct list *value_elements_if_true(struct template_run *run, struct value v);
// Unpacks v into count values.
void value_unpack(struct template_run *run, struct value v, struct value *into, size_t count);
void namespace_set(struct template_run *run, struct value v, const char *name, const struct text *key,
                   struct value item);
struct value call_macro(struct template_run *run, struct value callee, const char *name, void *scope,
                        const struct value *args);

void output_value(struct template_run *run, struct value v);
void output_text(struct template_run *run, const struct text *text);
// Output goes to b from here on; returns where it went before.
struct builder *output_to(struct template_run *run, struct builder *b);

void loop_begin(struct template_run *run, struct loop *loop, struct value v);
bool loop_next(struct template_run *run, struct loop *loop);
void loop_skip(struct loop *loop); // the filter refused the item that loop_next gave
struct value loop_nextitem(const struct loop *loop);

// Filters, tests, methods and functions are declared in template_library.h; a fixed number of arguments, UNSET where not given.
#endif
