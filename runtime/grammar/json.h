// SPDX-License-Identifier: Apache-2.0
//
// Pieces of JSON as forms: blanks, strings, numbers, any value, values that are given.

#ifndef GRAMMAR_JSON_H
#define GRAMMAR_JSON_H

#include "runtime/grammar/form.h"
#include <jansson.h>

enum { JSON_BLANKS = 32 }; // most blanks between two tokens of JSON

// Rules that all of a grammar's JSON shares; made when they are first needed.
struct json_form {
    struct form *form;
    int32_t blank, string, escape, number, integer, value, object, array; // rules, -1: not made yet
    int32_t counted;                                                      // loop of a string's characters
};

void jform_open(struct json_form *json, struct form *form);

int32_t jform_blank(struct json_form *json, int32_t next);  // up to JSON_BLANKS blanks
int32_t jform_string(struct json_form *json, int32_t next); // any string
int32_t jform_number(struct json_form *json,
                     int32_t next); // any number of at most 18 digits before and after the point
int32_t jform_integer(struct json_form *json, int32_t next); // any of at most 18 digits
int32_t jform_value(struct json_form *json, int32_t next);   // anything
int32_t jform_object(struct json_form *json, int32_t next);  // any object
int32_t jform_array(struct json_form *json, int32_t next);   // any array

// One character of a string, escapes included.
int32_t jform_character(struct json_form *json, int32_t next);
// A string of least..most characters.
int32_t jform_length(struct json_form *json, int32_t least, int32_t most, int32_t next);
// Any string that is none of the texts, written without escapes.
int32_t jform_other_key(struct json_form *json, const char *const *texts, size_t count, int32_t next);

// A sign between blanks.
int32_t jform_sign(struct json_form *json, char sign, int32_t next);

// Exactly these values, blanks as JSON has them.
int32_t jform_constant(struct json_form *json, const json_t *value, int depth, int32_t next);

// Numbers within bounds, as decimal digits; a bound that is NULL is open. integer: no fraction. Without an exponent.
struct json_bounds {
    const char *low, *high; // such as "-12.5"
    bool above, below;      // the bound itself is left out
    bool integer;
};
// What is wrong with bounds, or NULL.
const char *jform_bounds_fault(const struct json_bounds *bounds);
// bounds: nothing is wrong with them.
int32_t jform_between(struct json_form *json, const struct json_bounds *bounds, int32_t next);

#endif
