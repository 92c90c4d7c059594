// SPDX-License-Identifier: Apache-2.0
//
// Numbers between bounds: digit by digit, knowing whether the digits so far are still those of a bound. Magnitudes are
// built from the last digit to the first; both signs of an interval are built apart.

#include "runtime/grammar/json.h"
#include <string.h>

enum { DIGITS = 18 };
_Static_assert(DIGITS == 18, "messages say so");

// A bound without its sign.
struct decimal {
    char whole[DIGITS + 2],
        part[DIGITS + 2]; // digits before and after the point; whole without leading zeros but for "0"
    bool open;            // no bound
    bool strict;          // the bound itself is left out
};

struct between {
    struct form *form;
    struct decimal low, high;
    bool integer;
    int32_t next;
    int32_t part[DIGITS + 1][2]
                [2]; // first node after k digits behind the point, by being on the low and on the high bound
};

// *negative: its sign. False when it has too many digits behind the point.
static bool parse(const char *text, struct decimal *d, bool *negative)
{
    *d = (struct decimal){.open = text == NULL};
    *negative = text && *text == '-';
    text = text ? text + *negative : "0";
    while (*text == '0' && text[1] >= '0' && text[1] <= '9')
        text++;
    size_t n = strspn(text, "0123456789");
    if (n > DIGITS) { // beyond every number that is written
        d->open = true;
        n = 0;
    }
    memcpy(d->whole, text, n);
    text += strspn(text, "0123456789");
    if (*text != '.')
        return true;
    n = strlen(++text);
    while (n > 0 && text[n - 1] == '0')
        n--;
    if (n > DIGITS)
        return false;
    memcpy(d->part, text, n);
    return true;
}

static bool is_zero(const struct decimal *d)
{
    return !d->open && !strcmp(d->whole, "0") && !d->part[0];
}

// Whether a number may end after k digits behind the point.
static bool may_end(const struct between *b, int k, int on_low, int on_high)
{
    const bool low_left = on_low && strlen(b->low.part) > (size_t)k,
               high_left = on_high && strlen(b->high.part) > (size_t)k;
    return !(on_low && (low_left || b->low.strict)) && !(on_high && !high_left && b->high.strict);
}

static char part_digit(const struct decimal *d, int k)
{
    return strlen(d->part) > (size_t)k ? d->part[k] : '0';
}

// One digit between those of the bounds that the number is on; after[i][j]: what follows when it is still on low, on
// high.
static int32_t digit(struct form *f, char low, char high, int on_low, int on_high, int32_t after[2][2])
{
    int32_t all = -1;
    if (low > high)
        return form_never(f);
    if (low == high)
        return form_range(f, low, low, after[on_low][on_high]);
    if (on_low)
        all = form_either(f, all, form_range(f, low, low, after[1][0]));
    if (on_high)
        all = form_either(f, all, form_range(f, high, high, after[0][1]));
    low = (char)(low + on_low);
    high = (char)(high - on_high);
    return low <= high ? form_either(f, all, form_range(f, low, high, after[0][0])) : all;
}

static void build_part(struct between *b)
{
    struct form *f = b->form;
    for (int k = DIGITS; k >= 0; k--)
        for (int on = 0; on < 4; on++) {
            const int l = on & 1, h = on >> 1;
            int32_t here = k > 0 && may_end(b, k, l, h) ? b->next : -1;
            if (k < DIGITS)
                here = form_either(f, here,
                                   digit(f, l ? part_digit(&b->low, k) : '0', h ? part_digit(&b->high, k) : '9', l, h,
                                         b->part[k + 1]));
            b->part[k][l][h] = here >= 0 ? here : form_never(f);
        }
}

// Magnitudes with n digits before the point.
static int32_t of_length(struct between *b, int n)
{
    struct form *f = b->form;
    const int lows = (int)strlen(b->low.whole) == n, highs = !b->high.open && (int)strlen(b->high.whole) == n;
    int32_t after[2][2], here[2][2];
    for (int on = 0; on < 4; on++) {
        const int l = on & 1, h = on >> 1;
        int32_t end = may_end(b, 0, l, h) ? b->next : -1;
        if (!b->integer)
            end = form_either(f, end, form_text(f, ".", 1, b->part[0][l][h]));
        after[l][h] = end >= 0 ? end : form_never(f);
    }
    for (int i = n - 1; i >= 0; i--) {
        for (int on = 0; on < 4; on++) {
            const int l = on & 1 && lows, h = on >> 1 && highs;
            const char least = i == 0 && n > 1 ? '1' : '0';
            here[on & 1][on >> 1] = digit(f, l ? b->low.whole[i] : least, h ? b->high.whole[i] : '9', l, h, after);
        }
        memcpy(after, here, sizeof after);
    }
    return after[lows][highs];
}

// Magnitudes between b->low, which is not open, and b->high.
static int32_t magnitudes(struct between *b)
{
    const int least = (int)strlen(b->low.whole), most = b->high.open ? DIGITS : (int)strlen(b->high.whole);
    int32_t all = -1;
    if (!b->integer)
        build_part(b);
    for (int n = least; n <= most && !b->form->failed; n++)
        all = form_either(b->form, all, of_length(b, n));
    return all >= 0 ? all : form_never(b->form);
}

const char *jform_bounds_fault(const struct json_bounds *bounds)
{
    struct decimal low, high;
    bool low_negative, high_negative;
    if (!parse(bounds->low, &low, &low_negative) || !parse(bounds->high, &high, &high_negative))
        return "bounds of numbers may have at most 18 digits behind the point";
    if ((low.open && bounds->low && !low_negative) || (high.open && bounds->high && high_negative))
        return "numbers have at most 18 digits, and a bound leaves none of those";
    return NULL;
}

int32_t jform_between(struct json_form *j, const struct json_bounds *bounds, int32_t next)
{
    struct form *f = j->form;
    struct decimal low, high, zero = {.whole = "0"};
    bool low_negative, high_negative;
    parse(bounds->low, &low, &low_negative);
    parse(bounds->high, &high, &high_negative);
    low.strict = bounds->above;
    high.strict = bounds->below;
    low_negative = low.open || (low_negative && !is_zero(&low));
    high_negative = high_negative && !is_zero(&high);
    int32_t all = -1;
    if (!high_negative) {
        struct between b = {f, low_negative ? zero : low, high, bounds->integer, next, {{{0}}}};
        all = magnitudes(&b);
    }
    if (low_negative) {
        struct between b = {f, high_negative ? high : zero, low, bounds->integer, next, {{{0}}}};
        if (!high_negative)
            b.low.strict = true; // 0 has no sign
        all = form_either(f, all, form_text(f, "-", 1, magnitudes(&b)));
    }
    return all;
}
