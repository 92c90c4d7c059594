// SPDX-License-Identifier: Apache-2.0
//
// Which part of a form stands for which place of its source, so that what is found out about the whole form can be said of a place.

#include "runtime/grammar/form.h"
#include <stdlib.h>
#include <string.h>

void form_mark(struct form *f, int32_t from, int32_t first, int32_t next, const char *place)
{
    if (f->failed || first < 0 || f->mark_count == FORM_MARKS)
        return;
    if (f->mark_count == f->mark_room) {
        const int32_t room = f->mark_room ? 2 * f->mark_room : 64;
        struct form_mark *grown = realloc(f->marks, (size_t)room * sizeof *grown);
        f->marks = grown ? grown : f->marks;
        f->mark_room = grown ? room : f->mark_room;
    }
    char *copy = f->mark_count < f->mark_room ? strdup(place) : NULL;
    if (copy)
        f->marks[f->mark_count++] = (struct form_mark){first, next, from, f->node_count, copy};
    else
        form_fail(f, "no memory for a grammar");
}

void form_marks_free(struct form *f)
{
    for (int32_t i = 0; i < f->mark_count; i++)
        free(f->marks[i].place);
    free(f->marks);
    f->marks = NULL;
    f->mark_count = f->mark_room = 0;
}

static bool lies_in(const char *place, const char *outer)
{
    const size_t bytes = strlen(outer);
    return bytes == 0 || (!strncmp(place, outer, bytes) && (place[bytes] == '\0' || place[bytes] == '/'));
}

// From the outermost part on, which comes last, into the parts that are at fault themselves.
const char *form_never_place(const struct form *f, const uint8_t *ends)
{
    const char *place = "";
    for (int32_t i = f->mark_count; i-- > 0 && f->mark_count < FORM_MARKS;) {
        const struct form_mark *m = &f->marks[i];
        if (!ends[m->first] && m->next >= 0 && ends[m->next] && lies_in(m->place, place))
            place = m->place;
    }
    return place;
}

const char *form_node_place(const struct form *f, int32_t node)
{
    for (int32_t i = 0; i < f->mark_count; i++)
        if (f->marks[i].from <= node && node < f->marks[i].to)
            return f->marks[i].place;
    return "";
}

const char *form_start_place(const struct form *f, int32_t first)
{
    for (int32_t i = f->mark_count; i-- > 0;)
        if (f->marks[i].first == first)
            return f->marks[i].place;
    return "";
}
