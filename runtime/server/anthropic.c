// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/messages and /v1/messages/count_tokens: Anthropic's messages API, whole and streamed.
// Invariant: a stream's events, put together as the public API says, are the whole reply.

#include "runtime/server/anthropic.h"
#include "runtime/server/blocks.h"
#include "runtime/server/chat_request.h"
#include "runtime/server/routes.h"

#include <stdlib.h>
#include <string.h>

// Clients send it back with the reasoning; nothing here depends on it.
static const char signature[] = "pianola";

struct message {
    struct chat_request request;
    struct blocks blocks;
};

static json_t *call_id(const struct exchange *x, const struct block *block)
{
    return json_sprintf("toolu_%s_%d", x->id, block->call);
}

// A block as it is in a whole reply, or (empty) at its start in a stream.
static json_t *block_json(const struct exchange *x, const struct block *block, bool empty)
{
    switch (block->kind) {
    case BLOCK_REASONING:
        return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking",
                         empty ? json_string("") : string_json(&block->text), "signature", empty ? "" : signature);
    case BLOCK_TEXT:
        return json_pack("{s:s, s:o}", "type", "text", "text", empty ? json_string("") : string_json(&block->text));
    case BLOCK_CALL:
        return json_pack("{s:s, s:o, s:o, s:o}", "type", "tool_use", "id", call_id(x, block), "name",
                         string_json(&block->name), "input", empty ? json_object() : call_arguments(block));
    }
    return NULL;
}

static json_t *usage(int prompt, int cached, int reply)
{
    return json_pack("{s:i, s:i, s:i, s:i}", "input_tokens", prompt - cached, "cache_creation_input_tokens", 0,
                     "cache_read_input_tokens", cached, "output_tokens", reply);
}

static json_t *message_json(const struct exchange *x, json_t *content, const char *reason, json_t *sequence,
                            json_t *counts)
{
    return json_pack("{s:o, s:s, s:s, s:s, s:o, s:s?, s:o, s:o}", "id", json_sprintf("msg_%s", x->id), "type",
                     "message", "role", "assistant", "model", x->server->options.name, "content", content,
                     "stop_reason", reason, "stop_sequence", sequence, "usage", counts);
}

static void event(struct exchange *x, const char *name, json_t *data)
{
    if (data)
        json_object_set_new(data, "type", json_string(name));
    exchange_event(x, name, data);
}

static void begin(struct exchange *x)
{
    const struct message *m = x->state;
    if (!m->request.stream)
        return;
    exchange_stream(x);
    event(x, "message_start",
          json_pack("{s:o}", "message", message_json(x, json_array(), NULL, json_null(), usage(x->job->count, 0, 0))));
    event(x, "ping", json_object());
}

static json_t *delta_json(const struct reply_event *e)
{
    if (e->kind == REPLY_REASONING)
        return json_pack("{s:s, s:s%}", "type", "thinking_delta", "thinking", e->text, e->bytes);
    if (e->kind == REPLY_CONTENT)
        return json_pack("{s:s, s:s%}", "type", "text_delta", "text", e->text, e->bytes);
    return json_pack("{s:s, s:s%}", "type", "input_json_delta", "partial_json", e->text, e->bytes);
}

static void stop_block(struct exchange *x, int index)
{
    const struct message *m = x->state;
    if (m->blocks.list[index].kind == BLOCK_REASONING)
        event(x, "content_block_delta",
              json_pack("{s:i, s:{s:s, s:s}}", "index", index, "delta", "type", "signature_delta", "signature",
                        signature));
    event(x, "content_block_stop", json_pack("{s:i}", "index", index));
}

static void piece(struct exchange *x, const struct reply_event *e)
{
    struct message *m = x->state;
    struct block_change change = blocks_take(&m->blocks, e);
    x->answer.failed = x->answer.failed || m->blocks.failed;
    if (!m->request.stream)
        return;
    if (change.ended >= 0)
        stop_block(x, change.ended);
    if (change.began >= 0)
        event(x, "content_block_start",
              json_pack("{s:i, s:o}", "index", change.began, "content_block",
                        block_json(x, &m->blocks.list[change.began], true)));
    if (change.added >= 0)
        event(x, "content_block_delta", json_pack("{s:i, s:o}", "index", change.added, "delta", delta_json(e)));
}

// Why the reply ended, in the words of the API; *sequence is the stop sequence that was met, or null.
static const char *stop_reason(const struct exchange *x, const struct outcome *o, json_t **sequence)
{
    const struct message *m = x->state;
    const int stop = reply_stop_index(x->answer.reply);
    *sequence = stop >= 0 ? json_string(m->request.stops.text[stop]) : json_null();
    if (stop >= 0)
        return "stop_sequence";
    return !strcmp(o->reason, "length") ? "max_tokens" : !strcmp(o->reason, "tool_calls") ? "tool_use" : "end_turn";
}

static void end(struct exchange *x, const struct outcome *o)
{
    struct message *m = x->state;
    json_t *sequence, *counts = usage(o->prompt_tokens, o->cached_tokens, o->reply_tokens);
    const char *reason = stop_reason(x, o, &sequence);
    const int open = blocks_end(&m->blocks);
    if (!m->request.stream) {
        json_t *content = json_array();
        for (int i = 0; i < m->blocks.count; i++)
            json_array_append_new(content, block_json(x, &m->blocks.list[i], false));
        json_t *whole = message_json(x, content, reason, sequence, counts);
        add_measured(whole, x, o);
        exchange_json(x, 200, whole);
        return;
    }
    if (open >= 0)
        stop_block(x, open);
    json_t *last =
        json_pack("{s:{s:s, s:o}, s:o}", "delta", "stop_reason", reason, "stop_sequence", sequence, "usage", counts);
    add_measured(last, x, o);
    event(x, "message_delta", last);
    event(x, "message_stop", json_object());
}

static void fail(struct exchange *x, const char *type, const char *message)
{
    event(x, "error", json_pack("{s:{s:s, s:s}}", "error", "type", type, "message", message));
}

static void release(struct exchange *x)
{
    struct message *m = x->state;
    chat_request_close(&m->request);
    blocks_free(&m->blocks);
    free(m);
    x->state = NULL;
}

static const struct dialect dialect = {begin, piece, end, fail, release};

// The request as a job with its prompt, and x->state; NULL: an error was sent, or will be.
static struct job *read_request(struct exchange *x, bool counting, struct answer_rules *rules)
{
    json_t *root = exchange_input(x), *chat = root ? anthropic_translate(x, root, counting) : NULL;
    struct message *m = chat ? calloc(1, sizeof *m) : NULL;
    struct job *job = m ? job_new() : NULL;
    json_decref(root);
    if (!job) {
        json_decref(chat);
        free(m);
        return NULL;
    }
    x->state = m;
    if (chat_request_read(x, &m->request, chat, job, rules))
        return job;
    job_free(job);
    release(x);
    return NULL;
}

void messages_handle(struct exchange *x)
{
    struct answer_rules rules = {0};
    struct job *job = read_request(x, false, &rules);
    if (job)
        exchange_submit(x, job, &dialect, &rules, "messages");
}

void count_tokens_handle(struct exchange *x)
{
    struct answer_rules rules = {0};
    struct job *job = read_request(x, true, &rules);
    if (!job)
        return;
    exchange_json(x, 200, json_pack("{s:i}", "input_tokens", job->count));
    job_free(job);
    release(x);
}
