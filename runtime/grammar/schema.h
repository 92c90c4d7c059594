// SPDX-License-Identifier: Apache-2.0
//
// The inside of the schema front end: a job, and schemas made flat before they become forms.

#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H

#include "runtime/grammar/json.h"
#include "runtime/json_exact.h"

enum { SCHEMA_VISITS = 1 << 19, SCHEMA_PATH = 160, SCHEMA_REFS = 1 << 12 };

enum schema_types {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_OBJECT = 4,
    TYPE_ARRAY = 8,
    TYPE_STRING = 16,
    TYPE_NUMBER = 32,
    TYPE_INTEGER = 64,
    TYPE_ALL = TYPE_NULL | TYPE_BOOLEAN | TYPE_OBJECT | TYPE_ARRAY | TYPE_STRING | TYPE_NUMBER | TYPE_INTEGER,
};

// What a keyword is about.
enum schema_word {
    WORD_UNKNOWN,
    WORD_NOTE,  // says nothing about values
    WORD_WHOLE, // about values of every type
    WORD_OBJECT,
    WORD_ARRAY,
    WORD_STRING,
    WORD_NUMBER,
};

struct schema_ref {
    const json_t *target;
    const char *name; // as it was first referred to
    int32_t rule;
};

struct schema_job {
    struct form *form;
    struct json_form json;
    const json_t *root;
    json_t *made;            // array: owns the schemas that were made by merging
    struct schema_ref *refs; // [SCHEMA_REFS]
    int32_t ref_count, ref_done;
    int32_t *ref_slot;      // [2 * SCHEMA_REFS] number + 1, by the target's address
    int64_t visits;         // work that was charged
    const char *tool;       // whose schema it is, for messages that come later; NULL: none
    char path[SCHEMA_PATH]; // of the schema in hand, for messages
};

bool schema_open(struct schema_job *job, struct form *form, const json_t *root);
void schema_close(struct schema_job *job);

// What a schema stands for, and then next.
int32_t schema_value(struct schema_job *job, const json_t *schema, int depth, int32_t next);
// The values that a flat schema with enum or const allows, as a list that the job owns; NULL: failed.
const json_t *schema_given(struct schema_job *job, const json_t *flat);
// Defines the rules of all references that were met. Call last.
void schema_define(struct schema_job *job);

// oneOf asks for exactly one way: fulfilled where the ways exclude each other; false with the form failed when they may not.
bool schema_all_apart(struct schema_job *job, const json_t *ways);

// Counts work (entries that are copied or compared); false: it is more than a schema may cost.
bool schema_charge(struct schema_job *job, int64_t work);

// A message that begins with the place; returns -1.
int32_t schema_fail(struct schema_job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Puts the place and the keyword before the message of an expression that could not be read, if there is one; returns `first`.
int32_t schema_blame(struct schema_job *job, const char *keyword, int32_t first);
// Notes the part of the form that was made for the schema in hand: nodes from `from` on. See form_mark.
void schema_mark(struct schema_job *job, int32_t from, int32_t first, int32_t next);
// Adds /name, or /index, to the path; returns what schema_up takes to go back.
size_t schema_down(struct schema_job *job, const char *name);
size_t schema_down_at(struct schema_job *job, size_t index);
void schema_up(struct schema_job *job, size_t before);

// Whole numbers of a keyword such as maxItems; `otherwise` when it is not there. -1: failed.
int32_t schema_count(struct schema_job *job, const json_t *schema, const char *keyword, int32_t otherwise);

// ---- schema_parts.c: values of one type, for a flat schema; all begin and end without blanks -----------------------------------

int32_t schema_object(struct schema_job *job, const json_t *schema, int depth, int32_t next);
int32_t schema_array(struct schema_job *job, const json_t *schema, int depth, int32_t next);
int32_t schema_string(struct schema_job *job, const json_t *schema, int32_t next);
int32_t schema_number(struct schema_job *job, const json_t *schema, bool integer, int32_t next);
// A string's text as it is, without <, and then `close`, which begins at one or at the line end before it.
int32_t schema_text(struct schema_job *job, const json_t *schema, const char *close, int32_t next);

// ---- schema_format.c ---------------------------------------------------------------------------------------------------------

struct schema_bounds {
    const char *low, *high; // digits, or NULL
};

// What a format is about: WORD_STRING, WORD_NUMBER, or WORD_NOTE where it says nothing that is known.
enum schema_word schema_format_word(const json_t *format);
// The expression of a format of texts; NULL: it says nothing of them, or the form has failed, since it cannot be followed.
const char *schema_format_pattern(struct schema_job *job, const json_t *format);
// The bounds of a format of numbers.
struct schema_bounds schema_format_bounds(const json_t *format);

// ---- schema_flat.c -----------------------------------------------------------------------------------------------------------

enum schema_word schema_word(const char *keyword);
// The types that a schema allows: by `type`, else by the keywords that it has.
int schema_type_set(struct schema_job *job, const json_t *schema);

// The schema that a reference names, or NULL.
const json_t *schema_target(struct schema_job *job, const json_t *reference);
// The target when the schema is nothing but a reference, else NULL.
const json_t *schema_only_reference(const json_t *schema);
// The same schema without $ref and allOf at its top, and without a format that says nothing of its values; every keyword was looked
// at. NULL: failed. The job owns it.
const json_t *schema_flat(struct schema_job *job, const json_t *schema, int depth);
// A schema that both meet; NULL: failed.
const json_t *schema_both(struct schema_job *job, const json_t *a, const json_t *b);
// Whether no value can meet both flat schemas, as far as that is easy to see.
bool schema_apart(struct schema_job *job, const json_t *a, const json_t *b);

#endif
