// SPDX-License-Identifier: Apache-2.0
//
// /v1/models, /tokenize and /detokenize.

#include "runtime/model.h"
#include "runtime/server/conversation.h"
#include "runtime/server/openai.h"
#include "runtime/server/routes.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- models ----------------------------------------------------------------------------------------------------------------------

// In the words of OpenAI's clients, vLLM's and Anthropic's.
static json_t *model_json(const struct server *s, const char *name)
{
    char since[32] = "";
    const time_t created = (time_t)s->created;
    struct tm when;
    if (gmtime_r(&created, &when))
        strftime(since, sizeof since, "%Y-%m-%dT%H:%M:%SZ", &when);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:i, s:i, s:s, s:s, s:s}", "id", name, "object", "model", "created",
                     (json_int_t)s->created, "owned_by", "pianola", "root", s->options.name, "context_length",
                     s->context, "max_model_len", s->context, "type", "model", "display_name", name, "created_at",
                     since);
}

void models_handle(struct exchange *x)
{
    const struct server *s = x->server;
    json_t *list = json_array();
    for (int i = -1; i < s->options.alias_count; i++) {
        const char *name = i < 0 ? s->options.name : s->options.alias[i];
        if (!*x->rest)
            json_array_append_new(list, model_json(s, name));
        else if (!strcmp(name, x->rest)) {
            json_decref(list);
            exchange_json(x, 200, model_json(s, name));
            return;
        }
    }
    if (!*x->rest) {
        exchange_json(x, 200, json_pack("{s:s, s:b, s:o}", "object", "list", "has_more", false, "data", list));
        return;
    }
    json_decref(list);
    exchange_error(x, 404, NULL, "model_not_found", "model", "the model \"%.100s\" is not served here", x->rest);
}

// ---- tokens ----------------------------------------------------------------------------------------------------------------------

// The ids of a text, or of a conversation.
static bool encode(struct exchange *x, const json_t *root, const struct fields *f, struct job *job)
{
    const json_t *prompt = json_object_get(root, "prompt");
    struct error error = {0};
    size_t count = 0;
    if (json_is_string(prompt)) {
        bool special = !f->at[FIELD_ADD_SPECIAL_TOKENS].given || f->at[FIELD_ADD_SPECIAL_TOKENS].truth;
        bool ok = tokenizer_encode(x->tokenizer, json_string_value(prompt), json_string_length(prompt), true, &job->ids,
                                   &count, &error);
        job->count = (int)count;
        const int32_t bos = tokenizer_bos(x->tokenizer);
        int32_t *longer = ok && special && bos >= 0 ? realloc(job->ids, (count + 1) * sizeof *longer) : NULL;
        if (longer) {
            memmove(longer + 1, longer, count * sizeof *longer);
            longer[0] = bos;
            job->ids = longer;
            job->count++;
        }
        if (!ok)
            exchange_error(x, 400, NULL, NULL, "prompt", "%s", error.text);
        return ok;
    }
    if (!prompt && !json_object_get(root, "messages")) {
        exchange_error(x, 400, NULL, NULL, "prompt", "prompt, a text, or messages, an array, is expected");
        return false;
    }
    struct conversation c;
    bool reasons;
    bool ok = conversation_read(&c, json_object_get(root, "messages"), json_object_get(root, "tools"),
                                json_object_get(root, "chat_template_kwargs"), &error) &&
              conversation_encode(&c, x->tokenizer, &x->server->style, NULL, job, &reasons, &error);
    conversation_close(&c);
    if (!ok)
        exchange_error(x, 400, NULL, NULL, prompt ? "prompt" : c.wrong, prompt ? "prompt: a text is expected" : "%s",
                       error.text);
    return ok;
}

static bool add_text(struct string *out, const struct tokenizer *tokenizer, int32_t id)
{
    json_t *text = token_text(tokenizer, id);
    char *written = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
    const bool good = written && string_add(out, written, strlen(written));
    free(written);
    json_decref(text);
    return good;
}

// Written without a tree of values, which would take many times the reply's bytes.
static void send_tokens(struct exchange *x, const struct job *job, bool texts)
{
    struct string out = {0};
    char piece[96];
    snprintf(piece, sizeof piece, "{\"count\":%d,\"max_model_len\":%d,\"tokens\":[", job->count, x->server->context);
    bool good = string_add(&out, piece, strlen(piece));
    for (int i = 0; good && i < job->count; i++) {
        snprintf(piece, sizeof piece, i ? ",%d" : "%d", job->ids[i]);
        good = string_add(&out, piece, strlen(piece));
    }
    const char *between = texts ? "],\"token_strs\":[" : "],\"token_strs\":null", *end = texts ? "]}" : "}";
    good = good && string_add(&out, between, strlen(between));
    for (int i = 0; good && texts && i < job->count; i++)
        good = (i == 0 || string_add(&out, ",", 1)) && add_text(&out, x->tokenizer, job->ids[i]);
    if (good && string_add(&out, end, strlen(end))) {
        exchange_own(x, 200, "application/json", out.bytes, out.count);
        return;
    }
    free(out.bytes);
    exchange_json(x, 500, NULL);
}

void tokenize_handle(struct exchange *x)
{
    struct fields f;
    json_t *root = exchange_input(x);
    struct job *job = root ? job_new() : NULL;
    const uint64_t mask = FIELD_BIT(FIELD_ADD_SPECIAL_TOKENS) | FIELD_BIT(FIELD_RETURN_TOKEN_STRS);
    if (job && ask_fields(x, &f, root, mask) && ask_model(x, root) && encode(x, root, &f, job))
        send_tokens(x, job, f.at[FIELD_RETURN_TOKEN_STRS].truth);
    job_free(job);
    json_decref(root);
}

static void decode(struct exchange *x, const json_t *list)
{
    struct error error = {0};
    const size_t count = json_array_size(list);
    int32_t *ids = malloc((count + 1) * sizeof *ids);
    char *text = NULL;
    size_t bytes = 0, at = 0;
    for (; ids && at < count; at++) {
        const json_t *id = json_array_get(list, at);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= model.vocabulary)
            break;
        ids[at] = (int32_t)json_integer_value(id);
    }
    if (ids && (!json_is_array(list) || at < count))
        exchange_error(x, 400, NULL, "invalid_value", "tokens",
                       "tokens: an array of token ids from 0 to %d is expected", model.vocabulary - 1);
    else if (ids && tokenizer_decode(x->tokenizer, ids, count, false, &text, &bytes, &error))
        exchange_json(x, 200, json_pack("{s:s%}", "prompt", text, bytes));
    else
        exchange_error(x, 400, NULL, NULL, "tokens", "%s", ids ? error.text : "no memory for the tokens");
    free(ids);
    free(text);
}

void detokenize_handle(struct exchange *x)
{
    json_t *root = exchange_input(x);
    if (root && ask_model(x, root))
        decode(x, json_object_get(root, "tokens"));
    json_decref(root);
}
