// SPDX-License-Identifier: Apache-2.0
//
// Lists, dicts and what Jinja2 does with any value: truth, attributes, items, slices, walking.
// Invariant: an absent attribute or item is an undefined value, never an error; using an undefined value for more than
// printing, testing or walking is an error.

#define _GNU_SOURCE // memmem
#include "runtime/json_exact.h"
#include "runtime/template.h"
#include <math.h>
#include <string.h>

const char *value_type(struct value v)
{
    static const char *const names[] = {
        "missing", "undefined", "NoneType",  "bool",      "int",  "int",       "float", "str",
        "list",    "tuple",     "dict view", "generator", "dict", "namespace", "macro", "method",
    };
    return names[v.kind];
}

// Lists and dicts -------------------------------------------------------------------------------------------------------------

struct value value_list(struct template_run *run, enum value_kind kind, size_t room)
{
    struct list *list = template_alloc(run, 1, sizeof *list);
    *list = (struct list){.room = room};
    if (room)
        list->items = template_alloc(run, room, sizeof *list->items);
    return (struct value){.kind = (uint8_t)kind, .trusted = true, .list = list};
}

void list_push(struct template_run *run, struct value value, struct value item)
{
    struct list *list = value.list;
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 8;
        struct value *items = template_alloc(run, room, sizeof *items);
        if (list->count)
            memcpy(items, list->items, list->count * sizeof *items);
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = item;
}

struct value value_dict(struct template_run *run, enum value_kind kind)
{
    struct dict *dict = template_alloc(run, 1, sizeof *dict);
    *dict = (struct dict){0};
    return (struct value){.kind = (uint8_t)kind, .trusted = true, .dict = dict};
}

static uint64_t mix(uint64_t hash)
{
    hash ^= hash >> 32;
    hash *= 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 32;
}

// Equal keys have equal hashes: 1, 1.0 and True are one key.
static uint64_t key_hash(struct template_run *run, struct value key)
{
    uint64_t hash = 0xCBF29CE484222325u;
    switch (key.kind) {
    case VALUE_TEXT:
        for (size_t i = 0; i < key.text->size; i++)
            hash = (hash ^ (unsigned char)key.text->data[i]) * 0x100000001B3u;
        return mix(hash);
    case VALUE_BOOL:
    case VALUE_INT:
    case VALUE_WIDE:
    case VALUE_FLOAT: {
        double real = value_number(key) + 0.0;
        memcpy(&hash, &real, sizeof hash);
        return mix(hash == 1ull << 63 ? 0 : hash);
    }
    case VALUE_TUPLE:
        if (++run->depth > TEMPLATE_DEPTH)
            template_fail(run, "values nest deeper than %d", TEMPLATE_DEPTH);
        for (size_t i = 0; i < key.list->count; i++)
            hash = mix(hash + key_hash(run, key.list->items[i]));
        run->depth--;
        return hash;
    case VALUE_LIST:
    case VALUE_DICT:
        template_fail(run, "a %s cannot be a key", value_type(key));
    default:
        return mix(hash + key.kind);
    }
}

enum { INDEX_FROM = 12 }; // pairs from which a dict is hashed

// The slot of the index that holds key, or the free one where it belongs.
static size_t index_slot(struct template_run *run, const struct dict *dict, struct value key)
{
    size_t slot = key_hash(run, key) & (dict->index_size - 1);
    while (dict->index[slot] && !value_eq(run, dict->keys[dict->index[slot] - 1], key))
        slot = (slot + 1) & (dict->index_size - 1);
    return slot;
}

static size_t dict_find(struct template_run *run, const struct dict *dict, struct value key)
{
    if (dict->index) {
        uint32_t found = dict->index[index_slot(run, dict, key)];
        return found ? found - 1 : dict->count;
    }
    if (key.kind != VALUE_TEXT)
        key_hash(run, key); // refuses what cannot be a key
    for (size_t i = 0; i < dict->count; i++)
        if (value_eq(run, dict->keys[i], key))
            return i;
    return dict->count;
}

static void dict_grow(struct template_run *run, struct dict *dict)
{
    size_t room = dict->room ? dict->room * 2 : 4;
    if (room > UINT32_MAX / 4)
        template_fail(run, "a dict grows past %zu pairs", dict->count);
    struct value *keys = template_alloc(run, room, 2 * sizeof *keys), *values = keys + room;
    if (dict->count) {
        memcpy(keys, dict->keys, dict->count * sizeof *keys);
        memcpy(values, dict->values, dict->count * sizeof *values);
    }
    dict->keys = keys;
    dict->values = values;
    dict->room = room;
    if (room < INDEX_FROM)
        return;
    dict->index_size = room * 2; // a power of two, at most half full
    dict->index = template_alloc(run, dict->index_size, sizeof *dict->index);
    memset(dict->index, 0, dict->index_size * sizeof *dict->index);
    for (size_t i = 0; i < dict->count; i++)
        dict->index[index_slot(run, dict, keys[i])] = (uint32_t)i + 1;
}

void dict_set(struct template_run *run, struct value value, struct value key, struct value item)
{
    struct dict *dict = value.dict;
    size_t at = dict_find(run, dict, key);
    if (at == dict->count) {
        if (dict->count == dict->room)
            dict_grow(run, dict);
        dict->keys[at] = key;
        if (dict->index)
            dict->index[index_slot(run, dict, key)] = (uint32_t)at + 1;
        dict->count++;
    }
    dict->values[at] = item;
}

const struct value *dict_get(struct template_run *run, struct value value, struct value key)
{
    size_t at = dict_find(run, value.dict, key);
    return at < value.dict->count ? &value.dict->values[at] : NULL;
}

static struct value text_from_json(struct template_run *run, const char *data, size_t size)
{
    struct text *text = template_alloc(run, 1, sizeof *text);
    *text = (struct text){.data = data, .size = size};
    return value_text(text);
}

struct value value_from_json(struct template_run *run, const json_t *json, int depth)
{
    if (depth > TEMPLATE_DEPTH)
        template_fail(run, "the conversation nests deeper than %d", TEMPLATE_DEPTH);
    struct value v = NONE;
    switch (json_typeof(json)) {
    case JSON_OBJECT: {
        v = value_dict(run, VALUE_DICT);
        const char *key;
        size_t size;
        json_t *item, *object = (json_t *)(uintptr_t)json; // jansson iterates without changing
        json_object_keylen_foreach(object, key, size, item)
            dict_set(run, v, text_from_json(run, key, size), value_from_json(run, item, depth + 1));
        break;
    }
    case JSON_ARRAY:
        v = value_list(run, VALUE_LIST, json_array_size(json));
        for (size_t i = 0; i < json_array_size(json); i++)
            list_push(run, v, value_from_json(run, json_array_get(json, i), depth + 1));
        break;
    case JSON_STRING:
        if (!json_wide(json))
            return text_from_json(run, json_string_value(json), json_string_length(json));
        v = (struct value){.kind = VALUE_WIDE, .digits = json_wide(json)};
        break;
    case JSON_INTEGER:
        v = value_int(json_integer_value(json));
        break;
    case JSON_REAL:
        v = value_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        v = value_bool(json_is_true(json));
        break;
    default:
        break;
    }
    v.trusted = false;
    return v;
}

// Truth, attributes, items ----------------------------------------------------------------------------------------------------

bool value_truth(struct template_run *run, struct value v)
{
    (void)run;
    switch (v.kind) {
    case VALUE_MISSING:
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
        return v.flag;
    case VALUE_INT:
        return v.integer != 0;
    case VALUE_FLOAT:
        return v.real != 0;
    case VALUE_TEXT:
        return v.text->size != 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
        return v.list->count != 0;
    case VALUE_DICT:
        return v.dict->count != 0;
    default: // a number of more than 64 bits, too
        return true;
    }
}

static bool is_method(const char *names, const struct text *name)
{
    const char *at = memmem(names, strlen(names), name->data, name->size);
    while (at && name->size) {
        if ((at == names || at[-1] == ' ') && (at[name->size] == ' ' || !at[name->size]))
            return true;
        at = memmem(at + 1, strlen(at + 1), name->data, name->size);
    }
    return false;
}

static struct value undefined_name(struct template_run *run, const struct text *name)
{
    size_t size = name->size < 80 ? name->size : 80;
    char *copy = template_alloc(run, size + 1, 1);
    memcpy(copy, name->data, size);
    copy[size] = 0;
    return value_undefined(copy);
}

static struct value bound_method(struct template_run *run, struct value v, const struct text *name)
{
    static const char *const of_dict = "items keys values get copy pop update clear setdefault popitem fromkeys";
    static const char *const of_list = "append count index insert pop remove reverse sort clear copy extend";
    const char *names = v.kind == VALUE_DICT ? of_dict : v.kind == VALUE_LIST ? of_list : "";
    struct value result = undefined_name(run, name);
    if (is_method(names, name))
        result.kind = VALUE_METHOD;
    return result;
}

struct value value_attribute(struct template_run *run, struct value v, const struct text *name)
{
    if (v.kind == VALUE_UNDEFINED)
        template_fail_undefined(run, v);
    if (v.kind == VALUE_DICT) {
        struct value method = bound_method(run, v, name);
        if (method.kind == VALUE_METHOD)
            return method;
    }
    if (v.kind == VALUE_DICT || v.kind == VALUE_NAMESPACE) {
        const struct value *found = dict_get(run, v, value_text(name));
        return found ? *found : undefined_name(run, name);
    }
    return bound_method(run, v, name);
}

// A whole number as an index; false for other kinds.
static bool as_index(struct value key, int64_t *index)
{
    if (key.kind != VALUE_INT && key.kind != VALUE_BOOL)
        return false;
    *index = key.kind == VALUE_INT ? key.integer : key.flag;
    return true;
}

struct value value_item(struct template_run *run, struct value v, struct value key)
{
    int64_t index;
    if (v.kind == VALUE_UNDEFINED)
        template_fail_undefined(run, v);
    if (v.kind == VALUE_DICT) {
        bool hashable = key.kind != VALUE_LIST && key.kind != VALUE_DICT;
        const struct value *found = hashable ? dict_get(run, v, key) : NULL;
        if (found)
            return *found;
    } else if ((v.kind == VALUE_LIST || v.kind == VALUE_TUPLE) && as_index(key, &index)) {
        int64_t count = (int64_t)v.list->count;
        index += index < 0 ? count : 0;
        if (index >= 0 && index < count)
            return v.list->items[index];
    } else if (v.kind == VALUE_TEXT && as_index(key, &index)) {
        int64_t count = (int64_t)text_length(v.text->data, v.text->size);
        index += index < 0 ? count : 0;
        if (index >= 0 && index < count) {
            size_t at = text_offset(v.text->data, v.text->size, (size_t)index);
            return text_cut(run, v.text, at, at + text_offset(v.text->data + at, v.text->size - at, 1));
        }
    } else if (v.kind == VALUE_VIEW && as_index(key, &index)) {
        template_fail(run, "unsupported: an index into range() or a dict view");
    }
    if (key.kind == VALUE_TEXT)
        return v.kind == VALUE_NAMESPACE ? value_attribute(run, v, key.text) : bound_method(run, v, key.text);
    return value_undefined("an index that is out of range");
}

static bool slice_part(struct template_run *run, struct value part, int64_t *out)
{
    if (part.kind == VALUE_MISSING || part.kind == VALUE_NONE)
        return false;
    if (part.kind == VALUE_UNDEFINED)
        template_fail_undefined(run, part);
    if (!as_index(part, out))
        template_fail(run, "a slice bound must be a whole number, found %s", value_type(part));
    return true;
}

// Python's slice.indices for `count` elements: first element, step, and how many are taken.
static int64_t slice_plan(struct template_run *run, const struct value parts[3], int64_t count, int64_t *first,
                          int64_t *step)
{
    int64_t stop;
    if (!slice_part(run, parts[2], step))
        *step = 1;
    if (*step == 0)
        template_fail(run, "a slice step cannot be zero");
    if (*step > INT32_MAX || *step < -INT32_MAX)
        *step = *step > 0 ? INT32_MAX : -INT32_MAX;
    int64_t low = *step < 0 ? -1 : 0, high = *step < 0 ? count - 1 : count;
    bool from = slice_part(run, parts[0], first), to = slice_part(run, parts[1], &stop);
    if (!from)
        *first = *step < 0 ? high : low;
    else if (*first < 0)
        *first = *first + count < low ? low : *first + count;
    if (!to)
        stop = *step < 0 ? low : high;
    else if (stop < 0)
        stop = stop + count < low ? low : stop + count;
    *first = *first > high ? high : *first;
    stop = stop > high ? high : stop;
    if (*step > 0)
        return stop > *first ? (stop - *first - 1) / *step + 1 : 0;
    return *first > stop ? (*first - stop - 1) / -*step + 1 : 0;
}

static struct value slice_text(struct template_run *run, const struct text *text, int64_t first, int64_t step,
                               int64_t taken)
{
    const char *data = text->data;
    if (step == 1 || taken <= 1) {
        size_t from = text_offset(data, text->size, (size_t)(taken ? first : 0));
        size_t bytes = text_offset(data + from, text->size - from, (size_t)taken);
        return text_cut(run, text, from, from + bytes);
    }
    size_t count = text_length(data, text->size);
    size_t *offsets = template_alloc(run, count + 1, sizeof *offsets);
    for (size_t i = 0, at = 0; i <= count; i++) {
        offsets[i] = at;
        at += text_offset(data + at, text->size - at, 1);
    }
    struct builder b = {0};
    for (int64_t i = 0; i < taken; i++, first += step)
        builder_text(run, &b, text, offsets[first], offsets[first + 1]);
    return builder_finish(run, &b, text->markup);
}

struct value value_slice(struct template_run *run, struct value v, struct value from, struct value to,
                         struct value step_)
{
    const struct value parts[3] = {from, to, step_};
    int64_t first, step;
    if (v.kind == VALUE_UNDEFINED)
        template_fail_undefined(run, v);
    if (v.kind == VALUE_TEXT) {
        int64_t count = (int64_t)text_length(v.text->data, v.text->size);
        int64_t taken = slice_plan(run, parts, count, &first, &step);
        return slice_text(run, v.text, first, step, taken);
    }
    if (v.kind != VALUE_LIST && v.kind != VALUE_TUPLE)
        template_fail(run, "a %s cannot be sliced", value_type(v));
    int64_t taken = slice_plan(run, parts, (int64_t)v.list->count, &first, &step);
    template_steps(run, (size_t)taken);
    struct value result = value_list(run, v.kind, (size_t)taken);
    result.trusted = v.trusted;
    for (int64_t i = 0; i < taken; i++, first += step)
        list_push(run, result, v.list->items[first]);
    return result;
}

// Walking ---------------------------------------------------------------------------------------------------------------------

struct list *value_elements(struct template_run *run, struct value v)
{
    struct value result;
    if (value_listlike(v)) {
        struct list *list = v.list;
        if (v.kind == VALUE_GENERATOR) {
            if (list->consumed)
                return value_list(run, VALUE_LIST, 0).list;
            list->consumed = true;
        }
        return list;
    }
    if (v.kind == VALUE_UNDEFINED)
        return value_list(run, VALUE_LIST, 0).list;
    if (v.kind == VALUE_DICT) {
        result = value_list(run, VALUE_LIST, v.dict->count);
        for (size_t i = 0; i < v.dict->count; i++)
            list_push(run, result, v.dict->keys[i]);
        return result.list;
    }
    if (v.kind != VALUE_TEXT)
        template_fail(run, "a %s cannot be walked", value_type(v));
    result = value_list(run, VALUE_LIST, text_length(v.text->data, v.text->size));
    for (size_t at = 0; at < v.text->size;) {
        size_t next = at + text_offset(v.text->data + at, v.text->size - at, 1);
        list_push(run, result, text_cut(run, v.text, at, next));
        at = next;
    }
    return result.list;
}

struct list *value_elements_if_true(struct template_run *run, struct value v)
{
    return value_truth(run, v) ? value_elements(run, v) : value_list(run, VALUE_LIST, 0).list;
}

void value_unpack(struct template_run *run, struct value v, struct value *into, size_t count)
{
    const struct list *list = value_elements(run, v);
    if (list->count != count)
        template_fail(run, "expected %zu values to unpack, found %zu", count, list->count);
    for (size_t i = 0; i < count; i++)
        into[i] = list->items[i];
}

void namespace_set(struct template_run *run, struct value v, const char *name, const struct text *key,
                   struct value item)
{
    if (v.kind != VALUE_NAMESPACE)
        template_fail(run, "cannot assign to an attribute of '%s': it is not a namespace but %s", name, value_type(v));
    dict_set(run, v, value_text(key), item);
}
