// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/completions: a text or token ids go on. What is read is not split into reasoning or calls.

#include "runtime/json_exact.h"
#include "runtime/model.h"
#include "runtime/server/input.h"
#include "runtime/server/openai.h"
#include "runtime/server/routes.h"
#include "runtime/server/structured.h"

#include <stdlib.h>
#include <string.h>

struct completion {
    json_t *root;
    struct stops stops;
    bool stream, include_usage;
    int logprobs;   // alternatives; -1: none are wanted
    int shown;      // tokens whose log-probabilities were sent
    int64_t offset; // bytes of text before them
};

// ---- replies ---------------------------------------------------------------------------------------------------------------------

static json_t *envelope(const struct exchange *x)
{
    return json_pack("{s:o, s:s, s:I, s:s}", "id", json_sprintf("cmpl-%s", x->id), "object", "text_completion",
                     "created", (json_int_t)x->created, "model", x->server->options.name);
}

static json_t *take_logprobs(struct exchange *x)
{
    struct completion *c = x->state;
    const struct tokenizer *tokenizer = x->answer.stream.tokenizer;
    if (c->logprobs < 0)
        return json_null();
    json_t *tokens = json_array(), *chosen = json_array(), *tops = json_array(), *offsets = json_array();
    const int until = x->answer.tokens - (x->answer.ended ? 1 : 0);
    for (; c->shown < until; c->shown++) {
        const struct logprobs *p = &x->job->chances[c->shown];
        json_t *text = token_text(tokenizer, x->job->tokens[c->shown]), *top = json_object();
        for (int i = 0; i < p->count && i < c->logprobs; i++) {
            json_t *name = token_text(tokenizer, p->id[i]);
            if (!json_object_get(top, json_string_value(name)))
                json_object_set_new(top, json_string_value(name), json_real(json_nine_digits((double)p->logprob[i])));
            json_decref(name);
        }
        json_array_append_new(offsets, json_integer(c->offset));
        c->offset += (int64_t)json_string_length(text);
        json_array_append_new(tokens, text);
        json_array_append_new(chosen, json_real(json_nine_digits((double)p->chosen)));
        json_array_append_new(tops, top);
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", chosen, "top_logprobs", tops,
                     "text_offset", offsets);
}

static json_t *with_choice(struct exchange *x, json_t *text, const char *finish)
{
    json_t *root = envelope(x);
    json_object_set_new(root, "choices",
                        json_pack("[{s:i, s:o, s:o, s:s?}]", "index", 0, "text", text, "logprobs", take_logprobs(x),
                                  "finish_reason", finish));
    return root;
}

static void begin(struct exchange *x)
{
    if (((const struct completion *)x->state)->stream)
        exchange_stream(x);
}

static void piece(struct exchange *x, const struct reply_event *e)
{
    if (((const struct completion *)x->state)->stream)
        exchange_event(x, NULL, with_choice(x, json_stringn(e->text, e->bytes), NULL));
}

static void end(struct exchange *x, const struct outcome *o)
{
    const struct completion *c = x->state;
    const struct string *text = &x->answer.content;
    json_t *last =
        with_choice(x, c->stream || !text->count ? json_string("") : json_stringn(text->bytes, text->count), o->reason);
    add_measured(last, x, o);
    if (!c->include_usage)
        json_object_set_new(last, "usage", usage_json(o));
    if (!c->stream) {
        exchange_json(x, 200, last);
        return;
    }
    exchange_event(x, NULL, last);
    end_events(x, c->include_usage ? envelope(x) : NULL, o);
}

static void release(struct exchange *x)
{
    struct completion *c = x->state;
    json_decref(c->root);
    free(c);
    x->state = NULL;
}

static const struct dialect dialect = {begin, piece, end, fail_events, release};

// ---- requests --------------------------------------------------------------------------------------------------------------------

static bool read_ids(struct exchange *x, const json_t *list, struct job *job)
{
    const size_t count = json_array_size(list);
    job->ids = malloc((count + 1) * sizeof *job->ids);
    for (size_t i = 0; job->ids && i < count; i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= model.vocabulary) {
            char shown[80];
            exchange_error(x, 400, NULL, "invalid_value", "prompt",
                           "prompt[%zu]: a token id from 0 to %d is expected, found %s", i, model.vocabulary - 1,
                           input_show(id, shown));
            return false;
        }
        job->ids[i] = (int32_t)json_integer_value(id);
    }
    job->count = (int)count;
    return job->ids != NULL;
}

static bool read_text(struct exchange *x, const json_t *prompt, bool special, struct job *job)
{
    struct error error = {0};
    size_t count = 0;
    int32_t bos = special ? tokenizer_bos(x->tokenizer) : -1;
    if (!tokenizer_encode(x->tokenizer, json_string_value(prompt), json_string_length(prompt), true, &job->ids, &count,
                          &error)) {
        exchange_error(x, 400, NULL, NULL, "prompt", "%s", error.text);
        return false;
    }
    if (bos >= 0) {
        int32_t *longer = realloc(job->ids, (count + 1) * sizeof *longer);
        if (!longer)
            return false;
        memmove(longer + 1, longer, count * sizeof *longer);
        longer[0] = bos;
        job->ids = longer;
        count++;
    }
    job->count = (int)count;
    return true;
}

// A text, token ids, or an array that holds one of them.
static bool read_prompt(struct exchange *x, const struct fields *f, const json_t *prompt, struct job *job)
{
    const json_t *inner = json_array_size(prompt) == 1 ? json_array_get(prompt, 0) : NULL;
    if (json_is_string(inner) || json_is_array(inner))
        prompt = inner;
    if (json_is_string(prompt))
        return read_text(x, prompt, f->at[FIELD_ADD_SPECIAL_TOKENS].truth, job);
    if (json_is_array(prompt) && json_array_size(prompt) && !json_is_string(json_array_get(prompt, 0)))
        return read_ids(x, prompt, job);
    return ask_bad(x, "prompt", "one text or one array of token ids");
}

static bool ask(struct exchange *x, struct completion *c, struct fields *f, struct job *job)
{
    const uint64_t mask = SAMPLING_FIELDS | FIELD_BIT(FIELD_MAX_TOKENS) | FIELD_BIT(FIELD_LOGPROBS) |
                          FIELD_BIT(FIELD_BEST_OF) | FIELD_BIT(FIELD_ECHO) | FIELD_BIT(FIELD_ADD_SPECIAL_TOKENS);
    const json_t *options = json_object_get(c->root, "stream_options"), *suffix = json_object_get(c->root, "suffix");
    if (!ask_fields(x, f, c->root, mask) || !ask_model(x, c->root) || !ask_sampling(x, f, c->root, job) ||
        !ask_stops(x, json_object_get(c->root, "stop"), "stop", &c->stops))
        return false;
    if (f->at[FIELD_ECHO].truth)
        return ask_bad(x, "echo", "false");
    if (input_given(suffix) && json_string_length(suffix))
        return ask_bad(x, "suffix", "null");
    c->stream = f->at[FIELD_STREAM].truth;
    c->include_usage = c->stream && json_is_true(json_object_get(options, "include_usage"));
    c->logprobs = f->at[FIELD_LOGPROBS].given ? (int)f->at[FIELD_LOGPROBS].integer : -1;
    job->logprobs = c->logprobs == 0 ? -1 : c->logprobs < 0 ? 0 : c->logprobs;
    job->reply = f->at[FIELD_MAX_TOKENS].given ? (int)f->at[FIELD_MAX_TOKENS].integer : 0;
    return true;
}

void completions_handle(struct exchange *x)
{
    struct fields f;
    json_t *root = exchange_input(x);
    if (root && json_object_get(root, "messages") &&
        !json_object_get(root, "prompt")) { // some clients ask for chats here
        json_decref(root);
        chat_handle(x);
        return;
    }
    struct completion *c = root ? calloc(1, sizeof *c) : NULL;
    struct job *job = c ? job_new() : NULL;
    if (!job) {
        json_decref(root);
        free(c);
        return;
    }
    c->root = root;
    x->state = c;
    if (!ask(x, c, &f, job) || !structured_ask(x, root, NULL, job) ||
        !read_prompt(x, &f, json_object_get(root, "prompt"), job)) {
        job_free(job);
        release(x);
        return;
    }
    ask_seed(&f, job);
    const struct answer_rules rules = {
        .reply = {.dialect = REPLY_PLAIN, .stop = c->stops.text, .stop_count = c->stops.count, .parallel_calls = true},
        .keep_special = f.at[FIELD_SKIP_SPECIAL_TOKENS].given && !f.at[FIELD_SKIP_SPECIAL_TOKENS].truth,
    };
    exchange_submit(x, job, &dialect, &rules, "prompt");
}
