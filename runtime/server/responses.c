// SPDX-License-Identifier: Apache-2.0
//
// /v1/responses: OpenAI's responses API, whole and streamed; GET and DELETE of those that are kept.
// Invariant: a stream's last event holds the whole reply, as the request without stream has it.

#include "runtime/server/responses.h"
#include "runtime/json_exact.h"
#include "runtime/server/chat_request.h"
#include "runtime/server/input.h"
#include "runtime/server/response_store.h"
#include "runtime/server/routes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct response {
    struct chat_request request;
    struct blocks blocks;
    json_t *root;    // the request
    json_t *history; // messages up to this reply, without instructions
    bool stream, store;
    int sequence; // of the next event
};

// ---- replies -----------------------------------------------------------------------------------------------------------------------

static json_t *item_id(const struct exchange *x, int index)
{
    static const char *const prefixes[] = {[BLOCK_REASONING] = "rs", [BLOCK_TEXT] = "msg", [BLOCK_CALL] = "fc"};
    const struct response *r = x->state;
    return json_sprintf("%s_%s_%d", prefixes[r->blocks.list[index].kind], x->id, index);
}

static json_t *part_json(const struct block *block, bool empty)
{
    json_t *text = empty ? json_string("") : string_json(&block->text);
    if (block->kind == BLOCK_REASONING)
        return json_pack("{s:s, s:o}", "type", "reasoning_text", "text", text);
    return json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text", text, "annotations", "logprobs");
}

static json_t *item_json(const struct exchange *x, int index, bool empty)
{
    const struct response *r = x->state;
    const struct block *block = &r->blocks.list[index];
    const char *status = empty ? "in_progress" : "completed";
    json_t *content = json_array();
    if (!empty && block->kind != BLOCK_CALL)
        json_array_append_new(content, part_json(block, false));
    switch (block->kind) {
    case BLOCK_REASONING:
        return json_pack("{s:o, s:s, s:[], s:o, s:s}", "id", item_id(x, index), "type", "reasoning", "summary",
                         "content", content, "status", status);
    case BLOCK_TEXT:
        return json_pack("{s:o, s:s, s:s, s:s, s:o}", "id", item_id(x, index), "type", "message", "status", status,
                         "role", "assistant", "content", content);
    case BLOCK_CALL:
        json_decref(content);
        return json_pack("{s:o, s:s, s:s, s:o, s:o, s:o}", "id", item_id(x, index), "type", "function_call", "status",
                         status, "call_id", responses_call_id(x, block), "name", string_json(&block->name), "arguments",
                         empty ? json_string("") : string_json(&block->text));
    }
    return NULL;
}

// A field of the request as the reply repeats it.
static void repeat(json_t *reply, const struct response *r, const char *key, json_t *otherwise)
{
    json_t *given = json_object_get(r->root, key);
    if (input_given(given)) {
        json_decref(otherwise);
        otherwise = json_incref(given);
    }
    json_object_set_new(reply, key, otherwise);
}

static json_t *usage(const struct outcome *o)
{
    return json_pack("{s:i, s:{s:i}, s:i, s:{s:i}, s:i}", "input_tokens", o->prompt_tokens, "input_tokens_details",
                     "cached_tokens", o->cached_tokens, "output_tokens", o->reply_tokens, "output_tokens_details",
                     "reasoning_tokens", o->reasoning_tokens, "total_tokens", o->prompt_tokens + o->reply_tokens);
}

// The reply as it is now; outcome NULL: in progress.
static json_t *response_json(struct exchange *x, const char *status, const struct outcome *o)
{
    struct response *r = x->state;
    const struct sampling *s = &x->job->sampling;
    json_t *output = json_array();
    for (int i = 0; o && i < r->blocks.count; i++)
        json_array_append_new(output, item_json(x, i, false));
    json_t *reply =
        json_pack("{s:o, s:s, s:I, s:s, s:n, s:n, s:s, s:o, s:b}", "id", json_sprintf("resp_%s", x->id), "object",
                  "response", "created_at", (json_int_t)x->created, "status", status, "error", "incomplete_details",
                  "model", x->server->options.name, "output", output, "store", r->store);
    if (!strcmp(status, "incomplete"))
        json_object_set_new(reply, "incomplete_details", json_pack("{s:s}", "reason", "max_output_tokens"));
    repeat(reply, r, "instructions", json_null());
    repeat(reply, r, "max_output_tokens", json_null());
    repeat(reply, r, "metadata", json_object());
    repeat(reply, r, "parallel_tool_calls", json_true());
    repeat(reply, r, "previous_response_id", json_null());
    repeat(reply, r, "reasoning", json_pack("{s:n, s:n}", "effort", "summary"));
    repeat(reply, r, "temperature", json_real(round(1e6 * s->temperature) / 1e6));
    repeat(reply, r, "text", json_pack("{s:{s:s}}", "format", "type", "text"));
    repeat(reply, r, "tool_choice", json_string("auto"));
    repeat(reply, r, "tools", json_array());
    repeat(reply, r, "top_p", json_real(round(1e6 * s->top_p) / 1e6));
    repeat(reply, r, "truncation", json_string("disabled"));
    json_object_set_new(reply, "usage", o ? usage(o) : json_null());
    return reply;
}

static void event(struct exchange *x, const char *name, json_t *data)
{
    struct response *r = x->state;
    json_object_set_new(data, "type", json_string(name));
    json_object_set_new(data, "sequence_number", json_integer(r->sequence++));
    exchange_event(x, name, data);
}

static void begin(struct exchange *x)
{
    const struct response *r = x->state;
    if (!r->stream)
        return;
    exchange_stream(x);
    event(x, "response.created", json_pack("{s:o}", "response", response_json(x, "in_progress", NULL)));
    event(x, "response.in_progress", json_pack("{s:o}", "response", response_json(x, "in_progress", NULL)));
}

// Where an event happened; content: in which part.
static json_t *place(const struct exchange *x, int index, bool content)
{
    json_t *place = json_pack("{s:o, s:i}", "item_id", item_id(x, index), "output_index", index);
    if (content)
        json_object_set_new(place, "content_index", json_integer(0));
    return place;
}

static void open_item(struct exchange *x, int index)
{
    const struct response *r = x->state;
    const struct block *block = &r->blocks.list[index];
    event(x, "response.output_item.added",
          json_pack("{s:i, s:o}", "output_index", index, "item", item_json(x, index, true)));
    if (block->kind == BLOCK_CALL)
        return;
    json_t *data = place(x, index, true);
    json_object_set_new(data, "part", part_json(block, true));
    event(x, "response.content_part.added", data);
}

static void close_item(struct exchange *x, int index)
{
    static const char *const names[] = {[BLOCK_REASONING] = "response.reasoning_text.done",
                                        [BLOCK_TEXT] = "response.output_text.done",
                                        [BLOCK_CALL] = "response.function_call_arguments.done"};
    const struct response *r = x->state;
    const struct block *block = &r->blocks.list[index];
    const bool call = block->kind == BLOCK_CALL;
    json_t *data = place(x, index, !call);
    json_object_set_new(data, call ? "arguments" : "text", string_json(&block->text));
    if (call)
        json_object_set_new(data, "name", string_json(&block->name));
    if (block->kind == BLOCK_TEXT)
        json_object_set_new(data, "logprobs", json_array());
    event(x, names[block->kind], data);
    if (!call) {
        data = place(x, index, true);
        json_object_set_new(data, "part", part_json(block, false));
        event(x, "response.content_part.done", data);
    }
    event(x, "response.output_item.done",
          json_pack("{s:i, s:o}", "output_index", index, "item", item_json(x, index, false)));
}

static void piece(struct exchange *x, const struct reply_event *e)
{
    static const char *const names[] = {[BLOCK_REASONING] = "response.reasoning_text.delta",
                                        [BLOCK_TEXT] = "response.output_text.delta",
                                        [BLOCK_CALL] = "response.function_call_arguments.delta"};
    struct response *r = x->state;
    struct block_change change = blocks_take(&r->blocks, e);
    x->answer.failed = x->answer.failed || r->blocks.failed;
    if (!r->stream)
        return;
    if (change.ended >= 0)
        close_item(x, change.ended);
    if (change.began >= 0)
        open_item(x, change.began);
    if (change.added < 0)
        return;
    const enum block_kind kind = r->blocks.list[change.added].kind;
    json_t *data = place(x, change.added, kind != BLOCK_CALL);
    json_object_set_new(data, "delta", json_stringn(e->text, e->bytes));
    if (kind == BLOCK_TEXT)
        json_object_set_new(data, "logprobs", json_array());
    event(x, names[kind], data);
}

static void keep(struct exchange *x, const json_t *reply)
{
    const struct response *r = x->state;
    json_array_append_new(r->history, responses_message(x, &r->blocks));
    char *text = json_exact_dump(reply, NULL), *history = json_exact_dump(r->history, NULL);
    if (text && history)
        response_store_put(x->server->responses, json_string_value(json_object_get(reply, "id")), x->label, text,
                           history);
    free(text);
    free(history);
}

static void end(struct exchange *x, const struct outcome *o)
{
    struct response *r = x->state;
    const bool cut = !strcmp(o->reason, "length");
    const int open = blocks_end(&r->blocks);
    if (r->stream && open >= 0)
        close_item(x, open);
    json_t *reply = response_json(x, cut ? "incomplete" : "completed", o);
    add_measured(reply, x, o);
    if (r->store)
        keep(x, reply);
    if (r->stream)
        event(x, cut ? "response.incomplete" : "response.completed", json_pack("{s:o}", "response", reply));
    else
        exchange_json(x, 200, reply);
}

static void fail(struct exchange *x, const char *type, const char *message)
{
    json_t *reply = response_json(x, "failed", NULL);
    json_object_set_new(reply, "error", json_pack("{s:s, s:s}", "code", type, "message", message));
    event(x, "response.failed", json_pack("{s:o}", "response", reply));
}

static void release(struct exchange *x)
{
    struct response *r = x->state;
    chat_request_close(&r->request);
    blocks_free(&r->blocks);
    json_decref(r->root);
    json_decref(r->history);
    free(r);
    x->state = NULL;
}

static const struct dialect dialect = {begin, piece, end, fail, release};

// ---- requests --------------------------------------------------------------------------------------------------------------------

// The conversation that the request goes on from, or NULL. false: it names one that is not there; an error was sent.
static bool find_previous(struct exchange *x, const json_t *root, json_t **before)
{
    const json_t *previous = json_object_get(root, "previous_response_id");
    *before = NULL;
    if (!input_given(previous))
        return true;
    const char *id = json_string_value(previous);
    if (!id)
        return ask_bad(x, "previous_response_id", "a text");
    char *text = response_store_get(x->server->responses, id, x->label, true);
    if (text)
        *before = json_loads(text, JSON_ALLOW_NUL, NULL);
    free(text);
    if (!*before)
        exchange_error(x, 404, NULL, "previous_response_not_found", "previous_response_id",
                       "previous_response_id: there is no response %.60s; the newest %d that were stored are kept", id,
                       STORE_COUNT);
    return *before != NULL;
}

static bool read_request(struct exchange *x, struct job *job, struct answer_rules *rules)
{
    struct response *r = x->state;
    json_t *before, *chat;
    const json_t *store = json_object_get(r->root, "store");
    if (input_given(store) && !json_is_boolean(store))
        return ask_bad(x, "store", "true or false");
    r->store = !json_is_false(store);
    if (!find_previous(x, r->root, &before))
        return false;
    chat = responses_translate(x, r->root, before, &r->history);
    json_decref(before);
    if (!chat || !chat_request_read(x, &r->request, chat, job, rules))
        return false;
    r->stream = r->request.stream;
    return true;
}

void responses_handle(struct exchange *x)
{
    struct answer_rules rules = {0};
    json_t *root = exchange_input(x);
    struct response *r = root ? calloc(1, sizeof *r) : NULL;
    struct job *job = r ? job_new() : NULL;
    if (!job) {
        json_decref(root);
        free(r);
        return;
    }
    r->root = root;
    x->state = r;
    if (read_request(x, job, &rules)) {
        exchange_submit(x, job, &dialect, &rules, "input");
        return;
    }
    job_free(job);
    release(x);
}

static void not_there(struct exchange *x)
{
    exchange_error(x, 404, NULL, "response_not_found", NULL, "there is no response %.60s", x->rest);
}

void response_get_handle(struct exchange *x)
{
    char *text = response_store_get(x->server->responses, x->rest, x->label, false);
    if (text)
        exchange_text(x, 200, "application/json", text, strlen(text));
    else
        not_there(x);
    free(text);
}

void response_delete_handle(struct exchange *x)
{
    if (response_store_delete(x->server->responses, x->rest, x->label))
        exchange_json(x, 200, json_pack("{s:s, s:s, s:b}", "id", x->rest, "object", "response", "deleted", true));
    else
        not_there(x);
}
