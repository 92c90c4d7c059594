// SPDX-License-Identifier: Apache-2.0
//
// What the dialects share; see openai.h.

#include "runtime/server/openai.h"
#include "runtime/json_exact.h"
#include "runtime/model.h"
#include "runtime/server/input.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void ask_rename(struct exchange *x, const char *ours, const char *theirs)
{
    for (int i = 0; i < x->renamed_count; i++)
        if (!strcmp(x->renamed[i].ours, ours)) {
            x->renamed[i].theirs = theirs;
            return;
        }
    if (x->renamed_count == EXCHANGE_NAMES)
        return;
    x->renamed[x->renamed_count].ours = ours;
    x->renamed[x->renamed_count++].theirs = theirs;
}

const char *ask_name(const struct exchange *x, const char *ours)
{
    for (int i = 0; i < x->renamed_count; i++)
        if (!strcmp(x->renamed[i].ours, ours))
            return x->renamed[i].theirs;
    return ours;
}

bool ask_fields(struct exchange *x, struct fields *fields, const json_t *root, uint64_t mask)
{
    struct error error = {0};
    if (fields_read(fields, root, mask, &error))
        return true;
    const char *name = ask_name(x, fields->wrong); // the text begins with the field
    exchange_error(x, 400, NULL, "invalid_value", name, "%s%s", name, error.text + strlen(fields->wrong));
    return false;
}

bool ask_model(struct exchange *x, const json_t *root)
{
    const struct server_options *o = &x->server->options;
    const json_t *model_name = json_object_get(root, "model");
    if (!input_given(model_name))
        return true;
    const char *name = json_string_value(model_name);
    bool known = name && !strcmp(name, o->name);
    for (int i = 0; name && i < o->alias_count; i++)
        known = known || !strcmp(name, o->alias[i]);
    if (!known && name)
        exchange_error(x, 404, NULL, "model_not_found", "model",
                       "the model \"%.100s\" is not served here; %s is (--alias adds names)", name, o->name);
    else if (!known)
        exchange_error(x, 400, NULL, "invalid_value", "model", "model: a text is expected");
    return known;
}

static bool ask_bias(struct exchange *x, const json_t *map, struct job *job)
{
    const char *key;
    json_t *value;
    if (!input_given(map) || (json_is_object(map) && !json_object_size(map)))
        return true;
    if (!json_is_object(map) || json_object_size(map) > BIAS_MOST) {
        exchange_error(x, 400, NULL, "invalid_value", "logit_bias",
                       "logit_bias: an object of at most %d entries is expected", BIAS_MOST);
        return false;
    }
    job->bias = calloc(json_object_size(map), sizeof *job->bias);
    json_object_foreach((json_t *)(uintptr_t)map, key, value)
    {
        char *end = NULL;
        const long id = *key >= '0' && *key <= '9' ? strtol(key, &end, 10) : -1;
        const double bias = json_is_number(value) ? json_number_value(value) : NAN;
        bool ok = job->bias && id >= 0 && !*end && id < model.vocabulary && bias >= -100 && bias <= 100;
        for (int i = 0; ok && i < job->sampling.bias_count; i++)
            ok = job->bias[i].id != id;
        if (!ok) {
            exchange_error(x, 400, NULL, "invalid_value", "logit_bias",
                           "logit_bias: token ids from 0 to %d, each once, with numbers from -100 to 100 are expected",
                           model.vocabulary - 1);
            return false;
        }
        job->bias[job->sampling.bias_count++] = (struct token_bias){(int32_t)id, (float)bias};
    }
    return true;
}

static bool ask_priority(struct exchange *x, const json_t *priority, struct job *job)
{
    const char *word = json_string_value(priority);
    char shown[80];
    job->background = word && !strcmp(word, "background");
    if (!input_given(priority) || job->background || (word && !strcmp(word, "normal")))
        return true;
    exchange_error(x, 400, NULL, "invalid_value", "priority",
                   "priority: one of background, normal is expected, found %s", input_show(priority, shown));
    return false;
}

static float real_or(const struct fields *f, enum field field, float otherwise)
{
    return f->at[field].given ? (float)f->at[field].real : otherwise;
}

bool ask_sampling(struct exchange *x, const struct fields *f, const json_t *root, struct job *job)
{
    const struct sampling *d = &x->server->options.sampling;
    struct sampling *s = &job->sampling;
    s->temperature = real_or(f, FIELD_TEMPERATURE, d->temperature);
    s->top_p = real_or(f, FIELD_TOP_P, d->top_p);
    s->min_p = real_or(f, FIELD_MIN_P, d->min_p);
    s->top_k = f->at[FIELD_TOP_K].given ? (int)f->at[FIELD_TOP_K].integer : d->top_k;
    s->top_k = s->top_k < 0 ? 0 : s->top_k;
    s->presence = real_or(f, FIELD_PRESENCE_PENALTY, 0);
    s->frequency = real_or(f, FIELD_FREQUENCY_PENALTY, 0);
    s->repetition = real_or(f, FIELD_REPETITION_PENALTY, 0);
    job->ignore_end = f->at[FIELD_IGNORE_EOS].truth;
    job->no_drafts = f->at[FIELD_DRAFT].given && !f->at[FIELD_DRAFT].truth;
    return ask_priority(x, json_object_get(root, "priority"), job) &&
           ask_bias(x, json_object_get(root, "logit_bias"), job);
}

void ask_seed(const struct fields *f, struct job *job)
{
    struct sha256 hash;
    uint8_t digest[32];
    if (f->at[FIELD_SEED].given) {
        job->sampling.seed = (uint64_t)f->at[FIELD_SEED].integer;
        return;
    }
    sha256_begin(&hash);
    sha256_add(&hash, job->ids, (size_t)job->count * sizeof *job->ids);
    sha256_end(&hash, digest);
    memcpy(&job->sampling.seed, digest, sizeof job->sampling.seed);
}

bool ask_bad(struct exchange *x, const char *field, const char *expected)
{
    const char *name = ask_name(x, field);
    exchange_error(x, 400, NULL, "invalid_value", name, "%s: %s is expected", name, expected);
    return false;
}

bool ask_wrong(struct exchange *x, const char *field, const char *expected, const json_t *found)
{
    const char *name = ask_name(x, field);
    char shown[80];
    exchange_error(x, 400, NULL, "invalid_value", name, "%s: %s is expected, found %s", name, expected,
                   input_show(found, shown));
    return false;
}

bool ask_refuse(struct exchange *x, const char *field, const struct error *error)
{
    exchange_error(x, 400, NULL, "invalid_value", field, "%s", error->text);
    return false;
}

// ---- thinking --------------------------------------------------------------------------------------------------------------------

// A switch of the template that neither the request nor its kwargs name.
static void set_default(json_t *kwargs, const char *name, json_t *value)
{
    if (input_given(json_object_get(kwargs, name)))
        json_decref(value);
    else
        json_object_set_new(kwargs, name, value);
}

// 0 as an answer has it, whose 0 is no limit.
static int budget_of(int64_t tokens)
{
    return tokens > 0 ? (int)tokens : -1;
}

void ask_thinking_defaults(const struct exchange *x, json_t *kwargs, int *budget)
{
    const struct server_options *o = &x->server->options;
    if (o->thinking)
        set_default(kwargs, "enable_thinking", json_boolean(!strcmp(o->thinking, "on")));
    const char *level = o->effort ? reply_effort(&x->server->style, o->effort) : NULL;
    if (level && !strcmp(level, "none"))
        set_default(kwargs, "enable_thinking", json_false());
    else if (level)
        set_default(kwargs, "reasoning_effort", json_string(level));
    *budget = o->budget < 0 ? 0 : budget_of(o->budget);
}

static bool ask_effort(struct exchange *x, const json_t *effort, const char *field, json_t *kwargs)
{
    const char *level = json_is_string(effort) ? reply_effort(&x->server->style, json_string_value(effort)) : NULL;
    if (!level)
        return ask_bad(x, field, "one of none, minimal, low, medium, high, xhigh, max");
    const bool none = !strcmp(level, "none");
    set_default(kwargs, "enable_thinking", json_boolean(!none));
    if (none)
        json_object_del(kwargs, "reasoning_effort");
    else
        json_object_set_new(kwargs, "reasoning_effort", json_string(level));
    return true;
}

// The template's switches that are read here as well; what others are is the template's to know.
static bool ask_kwargs(struct exchange *x, const json_t *kwargs)
{
    const json_t *enable = json_object_get(kwargs, "enable_thinking"), *thinking = json_object_get(kwargs, "thinking");
    if (input_given(enable) && !json_is_boolean(enable))
        return ask_bad(x, "chat_template_kwargs.enable_thinking", "true or false");
    return !input_given(thinking) || json_is_boolean(thinking) ||
           ask_bad(x, "chat_template_kwargs.thinking", "true or false");
}

bool ask_thinking(struct exchange *x, const struct fields *f, const json_t *root, json_t *kwargs, int *budget)
{
    const json_t *effort = json_object_get(root, "reasoning_effort"),
                 *thinking = json_object_get(root, "enable_thinking");
    const char *field = "reasoning_effort";
    if (!ask_kwargs(x, kwargs))
        return false;
    if (input_given(thinking) && !json_is_boolean(thinking))
        return ask_bad(x, "enable_thinking", "true or false");
    if (input_given(thinking))
        json_object_set(kwargs, "enable_thinking", (json_t *)(uintptr_t)thinking);
    else if (input_given(json_object_get(kwargs, "thinking")))
        set_default(kwargs, "enable_thinking", json_incref(json_object_get(kwargs, "thinking")));
    if (!input_given(effort)) {
        effort = json_object_get(kwargs, "reasoning_effort");
        field = "chat_template_kwargs.reasoning_effort";
    }
    if (input_given(effort) && !ask_effort(x, effort, field, kwargs))
        return false;
    ask_thinking_defaults(x, kwargs, budget);
    if (f->at[FIELD_THINKING_BUDGET].given)
        *budget = budget_of(f->at[FIELD_THINKING_BUDGET].integer);
    return true;
}

// ---- text ------------------------------------------------------------------------------------------------------------------------

bool ask_stops(struct exchange *x, const json_t *stop, const char *name, struct stops *stops)
{
    *stops = (struct stops){0};
    if (!input_given(stop))
        return true;
    const size_t count = json_is_array(stop) ? json_array_size(stop) : 1;
    for (size_t i = 0; i < count && count <= STOPS_MOST; i++) {
        const json_t *one = json_is_array(stop) ? json_array_get(stop, i) : stop;
        if (json_is_string(one) && json_string_length(one) > 0 && json_string_length(one) <= 512)
            stops->text[stops->count++] = json_string_value(one);
    }
    if ((size_t)stops->count == count)
        return true;
    name = ask_name(x, name);
    exchange_error(x, 400, NULL, "invalid_value", name, "%s: a text, or up to %d texts, of 1 to 512 bytes is expected",
                   name, STOPS_MOST);
    return false;
}

// ---- replies ---------------------------------------------------------------------------------------------------------------------

json_t *usage_json(const struct outcome *o)
{
    return json_pack("{s:i, s:i, s:i, s:{s:i}, s:{s:i}}", "prompt_tokens", o->prompt_tokens, "completion_tokens",
                     o->reply_tokens, "total_tokens", o->prompt_tokens + o->reply_tokens, "prompt_tokens_details",
                     "cached_tokens", o->cached_tokens, "completion_tokens_details", "reasoning_tokens",
                     o->reasoning_tokens);
}

void add_measured(json_t *root, const struct exchange *x, const struct outcome *o)
{
    const struct stream_counters *c = o->counters;
    const double rate = o->decode > 0 && o->reply_tokens > 1 ? (o->reply_tokens - 1) / o->decode : 0;
    json_t *block =
        json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:I, s:I, s:I, s:{s:I, s:I}, s:b}", "token_sha",
                  o->token_sha, "seconds", json_nine_digits(o->total), "tokens_per_second", json_nine_digits(rate),
                  "prefill_seconds", json_nine_digits(o->prompt), "decode_seconds", json_nine_digits(o->decode),
                  "time_to_first_token", json_nine_digits(o->first), "context_window", x->server->context,
                  "context_used", o->prompt_tokens + o->reply_tokens, "rounds", (json_int_t)c->rounds, "drafted",
                  (json_int_t)c->drafted, "accepted", (json_int_t)c->accepted, "drafts", "drafted",
                  (json_int_t)c->drafted, "accepted", (json_int_t)c->accepted, "exact_mode", true);
    if (!root || !block)
        return;
    json_object_set(root, "pianola", block);
    json_object_set_new(root, "tensorfold", block);
}

json_t *token_text(const struct tokenizer *tokenizer, int32_t id)
{
    char *text = NULL;
    size_t bytes = 0;
    struct error error;
    if (!tokenizer_decode((struct tokenizer *)(uintptr_t)tokenizer, &id, 1, false, &text, &bytes, &error))
        return json_string("");
    json_t *value = json_stringn(text, bytes);
    free(text);
    return value;
}

json_t *token_bytes(const struct tokenizer *tokenizer, int32_t id)
{
    size_t bytes = 0;
    const char *token = tokenizer_token(tokenizer, id, &bytes);
    json_t *list = json_array();
    for (size_t i = 0; token && i < bytes; i++)
        json_array_append_new(list, json_integer((uint8_t)token[i]));
    return list;
}

void end_events(struct exchange *x, json_t *chunk, const struct outcome *o)
{
    if (chunk) {
        json_object_set_new(chunk, "choices", json_array());
        json_object_set_new(chunk, "usage", usage_json(o));
        add_measured(chunk, x, o);
        exchange_event(x, NULL, chunk);
    }
    exchange_line(x, "[DONE]");
}

void fail_events(struct exchange *x, const char *type, const char *message)
{
    exchange_event(x, NULL,
                   json_pack("{s:{s:s, s:s, s:n, s:n}}", "error", "message", message, "type", type, "param", "code"));
    exchange_line(x, "[DONE]");
}
