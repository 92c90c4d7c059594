// SPDX-License-Identifier: Apache-2.0
//
// What was read of a reply, sent back as a client sends it, renders to the text that the model wrote: the prompt of a turn and its
// reply are the beginning of the next turn's prompt, with tools, several calls and reasoning, by every family's template. A
// template that leaves old reasoning out must render all before that reply as it was. Red control: a byte of the reply is lost.

#include "runtime/chat.h"
#include "runtime/reply/bytes.h"
#include "runtime/reply/reply.h"
#include "tests/tap.h"

extern const struct chat_template template_qwen3, template_qwen3_coder, template_qwen3_6, template_flash_next,
    template_nemotron, template_embedded;
const struct chat_template chat_template; // chat.c asks for one; none of the tests do

static const char tools_text[] = "[{\"type\": \"function\", \"function\": {\"name\": \"edit\", \"description\": "
                                 "\"Edits.\", \"parameters\": {\"type\": \"object\", "
                                 "\"properties\": {\"path\": {\"type\": \"string\"}, \"lines\": {\"type\": \"array\", "
                                 "\"items\": {\"type\": \"integer\"}}, "
                                 "\"count\": {\"type\": \"integer\"}}, \"required\": [\"path\"]}}}]";

struct turn {
    const char *name, *reasoning, *content;
    int calls;
};

struct family {
    const char *name;
    const struct chat_template *templ;
    enum reply_dialect dialect;
    bool thinks, keeps; // keeps: reasoning of the last turns is rendered again
};

static char *render(const struct family *f, json_t *messages, json_t *tools, bool prompt)
{
    char *text = NULL;
    size_t bytes;
    struct error error = {0};
    if (!chat_render_with(f->templ, messages, tools, NULL, prompt, 0, &text, &bytes, NULL, NULL, &error))
        printf("# %s: %s\n", f->name, error.text);
    return text;
}

// The message of a turn as it should be.
static json_t *true_message(const struct turn *turn)
{
    json_t *message = json_pack("{s:s, s:s}", "role", "assistant", "content", turn->content), *calls = json_array();
    if (turn->reasoning)
        json_object_set_new(message, "reasoning_content", json_string(turn->reasoning));
    for (int i = 0; i < turn->calls; i++)
        json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:{s:s, s:[i, i], s:i}}}", "id", "c", "type",
                                               "function", "function", "name", "edit", "arguments", "path",
                                               "/a \"b\"\n <c>", "lines", 1, 2, "count", 3));
    if (turn->calls)
        json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    return message;
}

// What the model writes behind the prompt, as its template writes it; NULL where the template would have begun otherwise.
static char *model_text(const struct family *f, json_t *messages, json_t *tools, const struct turn *turn,
                        const char *prompt)
{
    json_t *more = json_copy(messages);
    json_array_append_new(more, true_message(turn));
    char *all = render(f, more, tools, false), *end, *next;
    json_decref(more);
    if (!all || strncmp(all, prompt, strlen(prompt))) {
        free(all);
        return NULL;
    }
    memmove(all, all + strlen(prompt), strlen(all + strlen(prompt)) + 1);
    for (end = all; (next = strstr(end + 1, "<|im_end|>"));)
        end = next;
    *end = 0;
    return all;
}

struct message {
    struct bytes reasoning, content, arguments;
    json_t *calls;
    char name[64];
};

static void sink(void *user, const struct reply_event *event)
{
    struct message *m = user;
    if (event->kind == REPLY_REASONING)
        bytes_add(&m->reasoning, event->text, event->bytes);
    if (event->kind == REPLY_CONTENT)
        bytes_add(&m->content, event->text, event->bytes);
    if (event->kind == REPLY_CALL_ARGUMENTS)
        bytes_add(&m->arguments, event->text, event->bytes);
    if (event->kind == REPLY_CALL_BEGIN)
        snprintf(m->name, sizeof m->name, "%s", event->name);
    if (event->kind != REPLY_CALL_END)
        return;
    json_array_append_new(m->calls,
                          json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", "c", "type", "function", "function", "name",
                                    m->name, "arguments", json_loadb(m->arguments.data, m->arguments.size, 0, NULL)));
    m->arguments.size = 0;
}

// The reply as a client keeps it, as a message.
static json_t *read_reply(const struct reply_style *style, json_t *tools, bool reasons, const char *text)
{
    struct reply_options options = {
        style->dialect, reasons, style->reasoning_open, style->reasoning_close, tools, NULL, 0, true, false};
    struct message m = {.calls = json_array()};
    struct reply *reply = reply_new(&options, NULL);
    reply_feed(reply, text, strlen(text), sink, &m);
    reply_end(reply, sink, &m);
    reply_free(reply);
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content",
                                json_stringn(m.content.data ? m.content.data : "", m.content.size));
    if (m.reasoning.size)
        json_object_set_new(message, "reasoning_content", json_stringn(m.reasoning.data, m.reasoning.size));
    if (json_array_size(m.calls))
        json_object_set(message, "tool_calls", m.calls);
    json_decref(m.calls);
    bytes_free(&m.reasoning);
    bytes_free(&m.content);
    bytes_free(&m.arguments);
    return message;
}

static void append_answer(json_t *messages, int calls)
{
    for (int i = 0; i < calls; i++)
        json_array_append_new(messages,
                              json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", "c", "content", "done"));
    if (!calls)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", "go on"));
}

// Whether one turn of the conversation and the next fit. messages ends with a user's or a tool's; the reply and what answers it
// are appended. *query: bytes of the conversation up to the last user's message, of which all must stay.
static bool turn_fits(const struct family *f, const struct reply_style *style, json_t *messages, json_t *tools,
                      const struct turn *turn, bool broken, size_t *query, int *compared)
{
    char *prompt = render(f, messages, tools, true), *text = model_text(f, messages, tools, turn, prompt);
    if (!text) { // nothing that the model would write
        free(prompt);
        return true;
    }
    bool reasons = reply_prompt_reasons(style, prompt, strlen(prompt));
    struct bytes whole = {0};
    ++*compared;
    bytes_text(&whole, prompt);
    bytes_text(&whole, text);
    json_array_append_new(messages, read_reply(style, tools, reasons, text + broken));
    append_answer(messages, turn->calls);
    char *next = render(f, messages, tools, true), *before = render(f, messages, tools, false);
    size_t same = turn->calls || f->keeps ? whole.size : *query;
    bool fits = next && strlen(next) >= same && !memcmp(next, whole.data, same) && strstr(next + *query, turn->content);
    if (!fits && !broken && next)
        printf("# %s, %s\n# ---- written\n%.*s\n# ---- rendered\n%s\n", f->name, turn->name, (int)whole.size,
               whole.data, next);
    if (!turn->calls && before)
        *query = strlen(before);
    free(prompt);
    free(text);
    free(next);
    free(before);
    bytes_free(&whole);
    return fits;
}

static bool conversation_fits(const struct family *f, bool broken)
{
    static const struct turn turns[] = {{"a call", "I must edit.", "", 1},
                                        {"text and two calls", "Twice more.\n\nThen done.", "Editing.", 2},
                                        {"an answer", "Done.", "It is done.\n\n- one\n- two", 0},
                                        {"an answer without reasoning", NULL, "Yes.", 0}};
    struct reply_style style = reply_style_of(f->templ);
    json_t *tools = json_loads(tools_text, 0, NULL);
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "system", "content", "Be brief.", "role", "user",
                                 "content", "Edit it.");
    bool fits = true;
    int compared = 0;
    char *begin = render(f, messages, f->dialect == REPLY_PLAIN ? NULL : tools, false);
    size_t query = strlen(begin);
    free(begin);
    for (size_t i = 0; fits && i < sizeof turns / sizeof *turns; i++)
        fits = turn_fits(f, &style, messages, f->dialect == REPLY_PLAIN ? NULL : tools,
                         f->dialect == REPLY_PLAIN ? &turns[3] : &turns[i], broken, &query, &compared);
    json_decref(messages);
    json_decref(tools);
    return fits && compared >= (broken ? 1 : 3);
}

int main(void)
{
    static const struct family families[] = {{"flash_next", &template_flash_next, REPLY_XML, true, true},
                                             {"qwen3_6", &template_qwen3_6, REPLY_XML, true, false},
                                             {"qwen3", &template_qwen3, REPLY_JSON, true, false},
                                             {"qwen3_coder", &template_qwen3_coder, REPLY_XML, false, true},
                                             {"nemotron", &template_nemotron, REPLY_XML, true, false},
                                             {"embedded", &template_embedded, REPLY_PLAIN, false, true}};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const struct family *f = &families[i];
        struct reply_style style = reply_style_of(f->templ);
        char name[80];
        snprintf(name, sizeof name, "%s: the dialect and the think block are found", f->name);
        ok(style.dialect == f->dialect && (style.reasoning_open != NULL) == f->thinks, name, NULL);
        snprintf(name, sizeof name, "%s: a reply renders as it was written on the next turn", f->name);
        ok(conversation_fits(f, false), name, NULL);
    }
    ok(!conversation_fits(&families[0], true), "red: a lost byte is found", NULL);
    ok(reply_is_marker("<think>", 7) && reply_is_marker("</tool_call>", 12) && !reply_is_marker("<think", 6) &&
           !reply_is_marker("<|im_end|>", 10),
       "markers of reasoning and calls", NULL);
    const struct reply_style named = reply_style_of(&template_flash_next), silent = reply_style_of(&template_qwen3);
    ok(!strcmp(reply_effort(&named, "high"), "xhigh") && !strcmp(reply_effort(&named, "max"), "xhigh") &&
           !strcmp(reply_effort(&named, "minimal"), "low") && !strcmp(reply_effort(&named, "medium"), "medium") &&
           !strcmp(reply_effort(&silent, "high"), "high") && !reply_effort(&named, "very"),
       "levels of reasoning go to the nearest that the template takes", NULL);
    char *opener = reply_call_opener(REPLY_XML, "edit"), *any = reply_call_opener(REPLY_JSON, NULL);
    ok(opener && !strcmp(opener, "<tool_call>\n<function=edit>\n") && any && !strcmp(any, "<tool_call>\n{\"name\": \""),
       "openers of calls", NULL);
    free(opener);
    free(any);
    return done();
}
