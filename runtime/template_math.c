// SPDX-License-Identifier: Apache-2.0
//
// Python's arithmetic for chat templates, on 64-bit integers: what does not fit is an error, never a wrong number.

#include "runtime/template.h"
#include <math.h>

static bool whole(struct value v, int64_t *out)
{
    if (v.kind != VALUE_INT && v.kind != VALUE_BOOL)
        return false;
    *out = v.kind == VALUE_INT ? v.integer : v.flag;
    return true;
}

static bool real(struct value v, double *out)
{
    int64_t integer;
    if (v.kind == VALUE_FLOAT)
        *out = v.real;
    else if (whole(v, &integer))
        *out = (double)integer;
    else
        return false;
    return true;
}

__attribute__((noreturn)) static void fail_operands(struct template_run *run, const char *op, struct value a,
                                                    struct value b)
{
    struct value undefined = a.kind == VALUE_UNDEFINED ? a : b;
    if (undefined.kind == VALUE_UNDEFINED)
        template_fail(run, "'%.80s' is undefined", undefined.hint);
    if (a.kind == VALUE_WIDE || b.kind == VALUE_WIDE)
        template_fail(run, "a number does not fit 64 bits");
    template_fail(run, "%s is not supported between %s and %s", op, value_type(a), value_type(b));
}

__attribute__((noreturn)) static void fail_overflow(struct template_run *run)
{
    template_fail(run, "a number does not fit 64 bits");
}

static struct value made_of(struct value result, struct value a, struct value b)
{
    result.trusted = a.trusted && b.trusted;
    return result;
}

static struct value joined(struct template_run *run, struct value a, struct value b)
{
    struct builder out = {0};
    bool markup = a.text->markup || b.text->markup;
    if (markup && !a.text->markup)
        a = text_escape(run, a.text);
    if (markup && !b.text->markup)
        b = text_escape(run, b.text);
    builder_text(run, &out, a.text, 0, a.text->size);
    builder_text(run, &out, b.text, 0, b.text->size);
    return builder_finish(run, &out, markup);
}

struct value value_add(struct template_run *run, struct value a, struct value b)
{
    int64_t x, y, sum;
    double u, v;
    if (a.kind == VALUE_TEXT && b.kind == VALUE_TEXT)
        return joined(run, a, b);
    if (whole(a, &x) && whole(b, &y)) {
        if (__builtin_add_overflow(x, y, &sum))
            fail_overflow(run);
        return made_of(value_int(sum), a, b);
    }
    if (real(a, &u) && real(b, &v))
        return made_of(value_float(u + v), a, b);
    if (a.kind != b.kind || (a.kind != VALUE_LIST && a.kind != VALUE_TUPLE))
        fail_operands(run, "+", a, b);
    template_steps(run, a.list->count + b.list->count);
    struct value list = value_list(run, a.kind, a.list->count + b.list->count);
    for (size_t i = 0; i < a.list->count; i++)
        list_push(run, list, a.list->items[i]);
    for (size_t i = 0; i < b.list->count; i++)
        list_push(run, list, b.list->items[i]);
    return made_of(list, a, b);
}

struct value value_sub(struct template_run *run, struct value a, struct value b)
{
    int64_t x, y, difference;
    double u, v;
    if (whole(a, &x) && whole(b, &y)) {
        if (__builtin_sub_overflow(x, y, &difference))
            fail_overflow(run);
        return made_of(value_int(difference), a, b);
    }
    if (!real(a, &u) || !real(b, &v))
        fail_operands(run, "-", a, b);
    return made_of(value_float(u - v), a, b);
}

static struct value repeated(struct template_run *run, struct value v, int64_t times)
{
    times = times < 0 ? 0 : times;
    if (times > TEMPLATE_OUTPUT_BYTES)
        template_fail(run, "a value is repeated too often");
    if (v.kind == VALUE_TEXT) {
        struct builder out = {0};
        for (int64_t i = 0; i < times && v.text->size; i++)
            builder_text(run, &out, v.text, 0, v.text->size);
        return builder_finish(run, &out, v.text->markup);
    }
    struct value list = value_list(run, v.kind, 0);
    for (int64_t i = 0; i < times && v.list->count; i++) {
        template_steps(run, v.list->count);
        for (size_t j = 0; j < v.list->count; j++)
            list_push(run, list, v.list->items[j]);
    }
    list.trusted = v.trusted;
    return list;
}

struct value value_mul(struct template_run *run, struct value a, struct value b)
{
    int64_t x = 0, y = 0, product;
    double u, v;
    bool x_whole = whole(a, &x), y_whole = whole(b, &y);
    if (x_whole && y_whole) {
        if (__builtin_mul_overflow(x, y, &product))
            fail_overflow(run);
        return made_of(value_int(product), a, b);
    }
    if (real(a, &u) && real(b, &v))
        return made_of(value_float(u * v), a, b);
    if (y_whole && a.kind >= VALUE_TEXT && a.kind <= VALUE_TUPLE)
        return repeated(run, a, y);
    if (x_whole && b.kind >= VALUE_TEXT && b.kind <= VALUE_TUPLE)
        return repeated(run, b, x);
    fail_operands(run, "*", a, b);
}

static void divisor(struct template_run *run, const char *op, struct value a, struct value b, double *u, double *v)
{
    if (!real(a, u) || !real(b, v))
        fail_operands(run, op, a, b);
    if (*v == 0)
        template_fail(run, "division by zero");
}

struct value value_div(struct template_run *run, struct value a, struct value b)
{
    double u, v;
    divisor(run, "/", a, b, &u, &v);
    return made_of(value_float(u / v), a, b);
}

// The remainder has the sign of the divisor.
static double real_mod(double u, double v)
{
    double rest = fmod(u, v);
    if (rest != 0 && (rest < 0) != (v < 0))
        rest += v;
    return rest != 0 ? rest : copysign(0.0, v);
}

struct value value_floordiv(struct template_run *run, struct value a, struct value b)
{
    int64_t x, y;
    double u, v;
    divisor(run, "//", a, b, &u, &v);
    if (whole(a, &x) && whole(b, &y)) {
        if (x == INT64_MIN && y == -1)
            fail_overflow(run);
        return made_of(value_int(x / y - (x % y != 0 && (x < 0) != (y < 0))), a, b);
    }
    double quotient = (u - real_mod(u, v)) / v, down = floor(quotient);
    if (quotient - down > 0.5)
        down += 1;
    return made_of(value_float(quotient != 0 ? down : copysign(0.0, u / v)), a, b);
}

struct value value_mod(struct template_run *run, struct value a, struct value b)
{
    int64_t x, y;
    double u, v;
    if (a.kind == VALUE_TEXT)
        template_fail(run, "unsupported: %% formatting of a string");
    divisor(run, "%", a, b, &u, &v);
    if (whole(a, &x) && whole(b, &y)) {
        int64_t rest = y == -1 ? 0 : x % y;
        return made_of(value_int(rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest), a, b);
    }
    return made_of(value_float(real_mod(u, v)), a, b);
}

struct value value_pow(struct template_run *run, struct value a, struct value b)
{
    int64_t x, y, result = 1;
    double u, v;
    if (whole(a, &x) && whole(b, &y) && y >= 0) {
        for (int64_t i = 0; i < y && x != 1 && (x != 0 || i == 0) && (x != -1 || i < (y & 1) + 2); i++)
            if (__builtin_mul_overflow(result, x, &result))
                fail_overflow(run);
        if (x == -1)
            result = y & 1 ? -1 : 1;
        return made_of(value_int(result), a, b);
    }
    if (!real(a, &u) || !real(b, &v))
        fail_operands(run, "**", a, b);
    if (u == 0 && v < 0)
        template_fail(run, "zero cannot be raised to a negative power");
    if (u < 0 && v != floor(v))
        template_fail(run, "unsupported: a complex result of **");
    double power = pow(u, v);
    if (isinf(power) && isfinite(u) && isfinite(v))
        template_fail(run, "the result of ** is too large");
    return made_of(value_float(power), a, b);
}

struct value value_neg(struct template_run *run, struct value a)
{
    int64_t x;
    if (a.kind == VALUE_FLOAT)
        return made_of(value_float(-a.real), a, a);
    if (!whole(a, &x))
        fail_operands(run, "unary -", a, a);
    if (x == INT64_MIN)
        fail_overflow(run);
    return made_of(value_int(-x), a, a);
}

struct value value_pos(struct template_run *run, struct value a)
{
    int64_t x;
    if (a.kind == VALUE_FLOAT)
        return a;
    if (!whole(a, &x))
        fail_operands(run, "unary +", a, a);
    return made_of(value_int(x), a, a);
}

// Unlike +, ~ does not escape what is joined to a |safe string: it joins the plain strings.
struct value value_concat(struct template_run *run, const struct value *parts, size_t count)
{
    struct builder out = {0};
    for (size_t i = 0; i < count; i++)
        print_value(run, &out, parts[i]);
    return builder_finish(run, &out, false);
}
