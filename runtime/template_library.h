// SPDX-License-Identifier: Apache-2.0
//
// The filters, tests, methods and functions that compiled chat templates call. Each takes the value it is applied to and an
// array with one value for each parameter, in the order that gen/template_signatures.lua lists them, UNSET where none was given.
// Jinja2's names and meaning; anything that Jinja2 would raise ends the render.

#ifndef TEMPLATE_LIBRARY_H
#define TEMPLATE_LIBRARY_H

#include "runtime/template.h"

typedef struct value template_filter(struct template_run *run, struct value self, const struct value *args);
typedef bool template_test(struct template_run *run, struct value self, const struct value *args);

template_filter filter_abs, filter_attr, filter_capitalize, filter_default, filter_dictsort, filter_escape,
    filter_first, filter_float, filter_indent, filter_int, filter_items, filter_join, filter_last, filter_length,
    filter_list, filter_lower, filter_max, filter_min, filter_replace, filter_reverse, filter_round, filter_safe,
    filter_sort, filter_string, filter_sum, filter_title, filter_tojson, filter_trim, filter_unique, filter_upper;

template_test test_boolean, test_callable, test_defined, test_divisibleby, test_eq, test_even, test_false, test_float,
    test_ge, test_gt, test_in, test_integer, test_iterable, test_le, test_lower, test_lt, test_mapping, test_ne,
    test_none, test_number, test_odd, test_sameas, test_sequence, test_string, test_true, test_undefined, test_upper;

template_filter method_capitalize, method_copy, method_count, method_endswith, method_find, method_get, method_index,
    method_isalnum, method_isalpha, method_isdigit, method_isspace, method_items, method_join, method_keys,
    method_lower, method_lstrip, method_removeprefix, method_removesuffix, method_replace, method_rfind, method_rsplit,
    method_rstrip, method_split, method_splitlines, method_startswith, method_strip, method_title, method_upper,
    method_values;

// `self` is unused.
template_filter function_range, function_raise_exception, function_strftime_now;

// namespace(mapping, ...) and dict(mapping, ...): copies the pairs of `from` into `into`.
void dict_update(struct template_run *run, struct value into, struct value from);

// Shared pieces.
struct value text_strip(struct template_run *run, const struct text *text, const struct text *chars, bool left,
                        bool right);
struct value text_case(struct template_run *run, const struct text *text,
                       int style); // 'u' upper, 'l' lower, 'c' capitalize, 't' title
struct value text_replace(struct template_run *run, const struct text *text, const struct text *from,
                          const struct text *to, int64_t count);
struct value text_lines(struct template_run *run, const struct text *text);
// An argument as a whole number, `usual` where it was not given or is none.
int64_t argument_int(struct template_run *run, struct value argument, const char *what, int64_t usual);
bool argument_truth(struct template_run *run, struct value argument, bool usual);
#endif
