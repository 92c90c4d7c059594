// SPDX-License-Identifier: Apache-2.0
//
// Reasoning, content, and where calls begin.
// Invariant: a call that is malformed or not offered stays text, to the byte. Line breaks around think blocks and calls belong to
// the template, which writes them again on the next turn; they are no content.

#include "runtime/reply/internal.h"

enum marker { MARKER_NONE = -1, MARKER_CALL, MARKER_FUNCTION, MARKER_CLOSE };

// The first of the markers in text, or what may become one at its end (*marker NONE); count where there is neither.
static size_t find(const struct reply *reply, bool calls, bool closing, enum marker *marker)
{
    const char *const markers[] = {calls ? "<tool_call>" : NULL,
                                   calls && reply->options.dialect == REPLY_XML ? "<function=" : NULL,
                                   closing ? reply->options.reasoning_close : NULL};
    const char *text = reply->text.data;
    size_t count = reply->text.size;
    *marker = MARKER_NONE;
    for (size_t i = 0; i < count; i++)
        for (int m = MARKER_CALL; m <= MARKER_CLOSE; m++) {
            if (!markers[m] || text[i] != markers[m][0] || (m != MARKER_CLOSE && i < reply->plain))
                continue;
            enum match match = text_match(text + i, count - i, markers[m]);
            if (match == MATCH_FULL)
                *marker = (enum marker)m;
            if (match == MATCH_FULL || (match == MATCH_PART && !reply->final))
                return i;
        }
    return count;
}

// Gives out `count` bytes of text, but keeps line breaks at their end back.
static void give(struct reply *reply, enum reply_kind kind, size_t count)
{
    size_t end = count;
    while (end && reply->text.data[end - 1] == '\n')
        end--;
    reply_emit_text(reply, kind, reply->text.data, end);
    reply->gap += count - end;
    reply_consume(reply, count);
}

static enum step start_step(struct reply *reply)
{
    const char *open = reply->options.reasoning_open;
    size_t at = 0;
    while (at < reply->text.size && text_blank(reply->text.data[at]))
        at++;
    enum match match = open ? text_match(reply->text.data + at, reply->text.size - at, open) : MATCH_NO;
    if (match == MATCH_PART && !reply->final)
        return STEP_MORE;
    if (match == MATCH_FULL)
        reply_consume(reply, at + strlen(open));
    reply->state = match == MATCH_FULL || reply->options.reasoning ? REPLY_THINK_BEGIN : REPLY_TEXT;
    return STEP_ON;
}

static enum step lines_step(struct reply *reply, enum reply_state next)
{
    size_t at = 0;
    while (at < reply->text.size && reply->text.data[at] == '\n')
        at++;
    bool more = at < reply->text.size;
    reply_consume(reply, at);
    if (!more)
        return STEP_MORE;
    reply->state = next;
    return STEP_ON;
}

static enum step think_step(struct reply *reply)
{
    enum marker marker;
    size_t at = find(reply, reply->calls_wanted, true, &marker);
    give(reply, REPLY_REASONING, at);
    if (marker == MARKER_NONE)
        return STEP_MORE;
    if (marker == MARKER_CLOSE) {
        reply->behind = reply->text.size;
        reply_consume(reply, strlen(reply->options.reasoning_close));
        reply->gap = 0;
        reply->state = REPLY_THINK_END;
        return STEP_ON;
    }
    reply->tentative = true;
    reply->state = REPLY_CALL;
    return STEP_ON;
}

static enum step text_step(struct reply *reply)
{
    enum marker marker;
    size_t at = find(reply, reply->calls_wanted, false, &marker);
    if (reply->calls_wanted) {
        give(reply, REPLY_CONTENT, at);
    } else {
        reply_emit_text(reply, REPLY_CONTENT, reply->text.data, at);
        reply_consume(reply, at);
    }
    if (marker == MARKER_NONE) {
        if (reply->final && reply->gap) { // nothing follows that they could belong to
            reply->gap--;
            reply_emit_text(reply, REPLY_CONTENT, "\n", 1);
        }
        return STEP_MORE;
    }
    reply->follows = false;
    reply->state = REPLY_CALL;
    return STEP_ON;
}

// The beginning of a call in which the reply ends is no content.
static enum step leave_out(struct reply *reply)
{
    reply_consume(reply, reply->text.size);
    call_free(reply);
    reply->state = REPLY_AFTER_CALL;
    return STEP_MORE;
}

// Behind a call: another one, or text, which ends a think block's hope to be one of calls.
static enum step after_step(struct reply *reply)
{
    size_t at = 0;
    while (at < reply->text.size && text_blank(reply->text.data[at]))
        at++;
    reply_consume(reply, at);
    if (!reply->text.size)
        return STEP_MORE;
    const enum match next = text_match(reply->text.data, reply->text.size, "<tool_call>");
    if (next == MATCH_PART && !reply->final)
        return STEP_MORE;
    if (next == MATCH_PART && !reply->tentative)
        return leave_out(reply);
    if (!reply->tentative) {
        reply->follows = next == MATCH_FULL;
        reply->state = reply->follows ? REPLY_CALL : REPLY_TEXT;
        return STEP_ON;
    }
    enum marker marker;
    at = find(reply, true, false, &marker);
    if (at > 0 || (marker == MARKER_NONE && reply->final))
        return STEP_BAD;
    if (marker == MARKER_NONE)
        return STEP_MORE;
    reply->state = REPLY_CALL;
    return STEP_ON;
}

// Models of one dialect now and then write the other: what follows the marker tells. PLAIN: nothing does yet.
static enum reply_dialect dialect_of(const struct reply *reply)
{
    const size_t most = 64; // blanks
    size_t at = strlen("<tool_call>");
    if (text_match(reply->text.data, reply->text.size, "<function=") != MATCH_NO)
        return REPLY_XML;
    while (at < reply->text.size && at < most && text_blank(reply->text.data[at]))
        at++;
    if (at == reply->text.size && !reply->final)
        return REPLY_PLAIN;
    return at < reply->text.size && reply->text.data[at] == '{' ? REPLY_JSON : REPLY_XML;
}

static enum step call_step(struct reply *reply)
{
    if (reply->call.dialect == REPLY_PLAIN)
        reply->call.dialect = dialect_of(reply);
    if (reply->call.dialect == REPLY_PLAIN)
        return STEP_MORE;
    enum step step = reply->call.dialect == REPLY_XML ? call_xml_step(reply) : call_json_step(reply);
    if (step == STEP_CUT && !reply->tentative && (reply->follows || reply->options.call_asked))
        return leave_out(reply);
    step = step == STEP_CUT ? STEP_BAD : step;
    if (step != STEP_BAD || reply->tentative)
        return step;
    // None after all. Its marker is content, and what follows is looked at again.
    reply_emit_text(reply, REPLY_CONTENT, reply->text.data, 1);
    reply_consume(reply, 1);
    call_free(reply);
    reply->state = REPLY_TEXT;
    return STEP_ON;
}

enum step reply_step(struct reply *reply)
{
    switch (reply->state) {
    case REPLY_START:
        return start_step(reply);
    case REPLY_THINK_BEGIN:
        return lines_step(reply, REPLY_THINK);
    case REPLY_THINK:
        return think_step(reply);
    case REPLY_THINK_END:
        return lines_step(reply, REPLY_TEXT);
    case REPLY_TEXT:
        return text_step(reply);
    case REPLY_CALL:
        return call_step(reply);
    case REPLY_AFTER_CALL:
        return after_step(reply);
    }
    return STEP_MORE;
}
