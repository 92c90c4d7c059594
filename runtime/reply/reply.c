// SPDX-License-Identifier: Apache-2.0
//
// What goes into a reply and comes out: whole characters up to a stop string; events, or their queue.
// Invariant: one stop matcher stands before everything that reads the text.

#include "runtime/reply/internal.h"

#include "runtime/tokenizer_text.h"

enum { STOP_BYTES = 4096 };

struct reply *reply_new(const struct reply_options *options, struct error *error)
{
    if (options->stop_count < 0 || options->stop_count > REPLY_STOPS) {
        error_set(error, "stop: at most %d strings", REPLY_STOPS);
        return NULL;
    }
    for (int i = 0; i < options->stop_count; i++)
        if (!options->stop[i][0] || strlen(options->stop[i]) > STOP_BYTES) {
            error_set(error, "stop: each string must have 1 to %d bytes", STOP_BYTES);
            return NULL;
        }
    struct reply *reply = calloc(1, sizeof *reply);
    bool good = reply != NULL;
    for (int i = 0; good && i < options->stop_count; i++)
        good = matcher_open(&reply->stops[i], options->stop[i], strlen(options->stop[i]));
    if (good && options->reasoning_close)
        good = matcher_open(&reply->closing, options->reasoning_close, strlen(options->reasoning_close));
    if (!good) {
        error_set(error, "out of memory");
        reply_free(reply);
        return NULL;
    }
    reply->options = *options;
    reply->options.stop = NULL;
    reply->options.tools = json_incref((json_t *)(uintptr_t)options->tools);
    reply->calls_wanted = options->dialect != REPLY_PLAIN && json_array_size(options->tools) > 0;
    reply->stop_index = -1;
    return reply;
}

void call_free(struct reply *reply)
{
    struct call *call = &reply->call;
    reply->text.failed = reply->text.failed || call->keys.failed || call->value.failed || call->json.word.failed;
    bytes_free(&call->keys);
    bytes_free(&call->value);
    json_stream_free(&call->json);
    *call = (struct call){0};
}

void reply_free(struct reply *reply)
{
    if (!reply)
        return;
    for (int i = 0; i < REPLY_STOPS; i++)
        matcher_close(&reply->stops[i]);
    matcher_close(&reply->closing);
    call_free(reply);
    json_decref((json_t *)(uintptr_t)reply->options.tools);
    struct bytes *all[] = {&reply->raw, &reply->held, &reply->text, &reply->arguments, &reply->queue, &reply->taken};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        bytes_free(all[i]);
    free(reply);
}

enum reply_end_reason reply_reason(const struct reply *reply)
{
    return reply->reason;
}

bool reply_reasons(const struct reply *reply)
{
    return reply->tentative || reply->state == REPLY_THINK_BEGIN || reply->state == REPLY_THINK ||
           (reply->state == REPLY_START && reply->options.reasoning);
}

size_t reply_behind_reasoning(const struct reply *reply)
{
    return reply->behind;
}

int reply_stop_index(const struct reply *reply)
{
    return reply->stop_index;
}

int reply_calls(const struct reply *reply)
{
    return reply->calls;
}

bool reply_call_cut(const struct reply *reply)
{
    return reply->call_cut;
}

// ---- events -------------------------------------------------------------------------------------------------------------

static void send(struct reply *reply, struct reply_event event)
{
    if (!reply->complete)
        reply->sink(reply->user, &event);
}

// An event in the queue: this, then its text or name.
struct queued {
    enum reply_kind kind;
    int call;
    size_t bytes;
};

static void queue(struct reply *reply, enum reply_kind kind, const char *text, size_t bytes)
{
    struct queued q = {kind, reply->calls - 1, bytes};
    bytes_add(&reply->queue, (const char *)&q, sizeof q);
    bytes_add(&reply->queue, text, bytes);
}

void reply_emit_text(struct reply *reply, enum reply_kind kind, const char *text, size_t count)
{
    while (count && reply->gap) {
        static const char lines[] = "\n\n\n\n\n\n\n\n";
        size_t some = reply->gap < sizeof lines - 1 ? reply->gap : sizeof lines - 1;
        reply->gap -= some;
        send(reply, (struct reply_event){.kind = kind, .text = lines, .bytes = some});
    }
    if (count)
        send(reply, (struct reply_event){.kind = kind, .text = text, .bytes = count});
}

void reply_call_begin(struct reply *reply, const char *name)
{
    reply->calls++;
    if (reply->tentative)
        queue(reply, REPLY_CALL_BEGIN, name, strlen(name) + 1);
    else
        send(reply, (struct reply_event){.kind = REPLY_CALL_BEGIN, .call = reply->calls - 1, .name = name});
}

void reply_call_flush(struct reply *reply)
{
    struct bytes *b = &reply->arguments;
    if (b->size && reply->tentative)
        queue(reply, REPLY_CALL_ARGUMENTS, b->data, b->size);
    else if (b->size)
        send(reply, (struct reply_event){
                        .kind = REPLY_CALL_ARGUMENTS, .call = reply->calls - 1, .text = b->data, .bytes = b->size});
    b->size = 0;
}

void reply_call_end(struct reply *reply, bool cut)
{
    reply_call_flush(reply);
    reply->calls_whole += !cut;
    reply->call_cut = cut;
    if (reply->tentative) {
        queue(reply, REPLY_CALL_END, NULL, 0);
        return;
    }
    send(reply, (struct reply_event){.kind = REPLY_CALL_END, .call = reply->calls - 1});
    reply->complete = !reply->options.parallel_calls;
}

// The think block was never closed, so the calls in it are calls.
static void accept_queue(struct reply *reply)
{
    size_t at = 0;
    reply->tentative = false;
    while (at < reply->queue.size) {
        struct queued q;
        memcpy(&q, reply->queue.data + at, sizeof q);
        const char *text = reply->queue.data + at + sizeof q;
        at += sizeof q + q.bytes;
        if (q.call == 0 || reply->options.parallel_calls)
            send(reply, (struct reply_event){.kind = q.kind,
                                             .call = q.call,
                                             .text = q.kind == REPLY_CALL_ARGUMENTS ? text : NULL,
                                             .bytes = q.kind == REPLY_CALL_ARGUMENTS ? q.bytes : 0,
                                             .name = q.kind == REPLY_CALL_BEGIN ? text : NULL});
    }
    reply->queue.size = 0;
    if (!reply->options.parallel_calls)
        reply->calls = 1;
}

// It is reasoning after all: its text is read again, without looking for calls in the first `plain` bytes.
static void refuse_queue(struct reply *reply)
{
    struct bytes text = reply->taken;
    reply->taken = (struct bytes){0};
    size_t understood = text.size + 1; // with the beginning of the marker that was none
    bytes_add(&text, reply->text.data, reply->text.size);
    bytes_free(&reply->text);
    reply->text = text;
    reply->plain = reply->final ? text.size : understood;
    reply->queue.size = reply->arguments.size = 0;
    reply->calls = reply->calls_whole = 0;
    reply->call_cut = reply->tentative = reply->closed = false;
    reply->state = REPLY_THINK;
    call_free(reply);
}

// ---- text in ------------------------------------------------------------------------------------------------------------

void reply_consume(struct reply *reply, size_t count)
{
    if (reply->tentative)
        bytes_add(&reply->taken, reply->text.data, count);
    bytes_drop(&reply->text, count);
    reply->plain -= count < reply->plain ? count : reply->plain;
}

static bool broken(const struct reply *r)
{
    return r->raw.failed || r->held.failed || r->text.failed || r->arguments.failed || r->queue.failed ||
           r->taken.failed || r->call.keys.failed || r->call.value.failed || r->call.json.word.failed;
}

// Whether the text from `from` on closes the think block around a call that waits.
static void watch_closing(struct reply *reply, size_t from)
{
    for (size_t i = from; i < reply->text.size && !reply->closed; i++)
        reply->closed = matcher_take(&reply->closing, reply->text.data[i]);
}

static void steps(struct reply *reply)
{
    while (!reply->complete && !broken(reply)) {
        bool before = reply->tentative;
        if (before && reply->closed) {
            refuse_queue(reply);
            continue;
        }
        enum step step = reply_step(reply);
        if (!before && reply->tentative) {
            reply->closing.matched = 0;
            reply->closed = false;
            if (reply->closing.length)
                watch_closing(reply, 0);
        }
        if (step == STEP_MORE || (step == STEP_BAD && reply->final && reply->calls_whole))
            break;
        if (step == STEP_BAD) // only of calls that wait
            refuse_queue(reply);
    }
    reply_call_flush(reply);
    if (broken(reply))
        reply->reason = REPLY_NO_MEMORY;
}

// Gives `count` bytes to the states.
static void pass(struct reply *reply, const char *text, size_t count)
{
    size_t from = reply->text.size;
    bytes_add(&reply->text, text, count);
    if (reply->tentative && reply->closing.length && !reply->text.failed)
        watch_closing(reply, from);
    steps(reply);
}

// Of what was read and held when a stop string was met inside a think block, which is the first of `held`: how many bytes at the
// end are the closing marker and what follows it, or the beginning of one, where the stop string holds some of that.
static size_t behind_stop(const struct reply *reply)
{
    const char *marker = reply->options.reasoning_close;
    const size_t bytes = marker ? strlen(marker) : 0, stop = reply->stops[reply->stop_index].length;
    const size_t before = bytes && reply->text.size >= bytes ? bytes - 1 : bytes ? reply->text.size : 0;
    const size_t all = before + reply->held.size;
    for (size_t i = 0; bytes && i < before + stop; i++) {
        const size_t most = all - i < bytes ? all - i : bytes;
        size_t same = 0;
        for (; same < most; same++) {
            const size_t at = i + same;
            const char c =
                at < before ? reply->text.data[reply->text.size - before + at] : reply->held.data[at - before];
            if (c != marker[same])
                break;
        }
        if (same == most)
            return all - i;
    }
    return 0;
}

// Looks for stop strings in the new bytes of `held`, from `from` on, and passes on what cannot belong to one.
static void match_stops(struct reply *reply, size_t from)
{
    size_t longest = 0, keep = 0, end = reply->held.size;
    for (size_t i = from; i < reply->held.size && reply->stop_index < 0; i++)
        for (int s = 0; s < reply->options.stop_count; s++)
            if (matcher_take(&reply->stops[s], reply->held.data[i]) && reply->stops[s].length > longest) {
                longest = reply->stops[s].length;
                reply->stop_index = s;
                end = i + 1;
            }
    for (int s = 0; s < reply->options.stop_count && reply->stop_index < 0; s++)
        if (reply->stops[s].matched > keep)
            keep = reply->stops[s].matched;
    size_t good = end - (reply->stop_index < 0 ? keep : longest);
    pass(reply, reply->held.data, good);
    bytes_drop(&reply->held, good);
    if (reply->complete)
        reply->stop_index = -1;
    if (reply->stop_index >= 0 && reply_reasons(reply))
        reply->behind = behind_stop(reply);
    if (reply->reason == REPLY_OPEN && (reply->complete || reply->stop_index >= 0))
        reply->reason = reply->complete ? REPLY_AT_CALL : REPLY_AT_STOP;
}

bool reply_feed(struct reply *reply, const char *bytes, size_t count, reply_sink *sink, void *user)
{
    if (reply->final || reply->reason != REPLY_OPEN)
        return false;
    reply->sink = sink;
    reply->user = user;
    bytes_add(&reply->raw, bytes, count);
    size_t from = reply->held.size, used;
    if (reply->raw.failed || !bytes_reserve(&reply->held, 3 * reply->raw.size)) {
        reply->reason = REPLY_NO_MEMORY;
        return false;
    }
    if (reply->raw.size)
        reply->held.size +=
            utf8_repair(reply->raw.data, reply->raw.size, false, reply->held.data + reply->held.size, &used);
    else
        used = 0;
    bytes_drop(&reply->raw, used);
    match_stops(reply, from);
    return reply->reason == REPLY_OPEN;
}

void reply_end(struct reply *reply, reply_sink *sink, void *user)
{
    if (reply->final || reply->reason == REPLY_NO_MEMORY)
        return;
    reply->sink = sink;
    reply->user = user;
    reply->final = true;
    if (reply->reason == REPLY_OPEN)
        pass(reply, reply->held.data, reply->held.size);
    else
        steps(reply);
    if (!reply->tentative || broken(reply))
        return;
    if (reply->calls_whole) {
        accept_queue(reply);
        return;
    }
    refuse_queue(reply);
    steps(reply);
}
