// SPDX-License-Identifier: Apache-2.0
//
// Warm turns: what is read after a reply is what the next turn's prompt begins with, whatever the client says in it, with reasoning
// that is stripped or sent back, with calls and their results; and little is left to read. The embedded model's tokenizer, a template
// with tools and reasoning. Red control: a reply that the client changed.

#include "runtime/chat.h"
#include "runtime/server/conversation.h"
#include "runtime/server/warm.h"
#include "tests/tap.h"
#include <stdlib.h>
#include <string.h>

static struct tokenizer *tokenizer;
static struct reply_style style;

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"edit\", \"description\": \"Edits.\", \"parameters\": "
    "{\"type\": "
    "\"object\", \"properties\": {\"path\": {\"type\": \"string\"}}, \"required\": [\"path\"]}}}]";

static const char *const words[] = {"Thanks. And then?", " a space before",  "\n\na new line", "A", "B", "",
                                    "<|im_end|>",        "\xc3\xa9t\xc3\xa9"};

// How a client goes on.
enum client { SENDS_REASONING, DROPS_REASONING };

struct scene {
    const char *name, *messages;
    const char *content, *reasoning; // of the reply
    int calls;
    enum client client;
    int renderings; // that are read: two where the client's habit is not known and makes a difference
};

static json_t *reply_of(const struct scene *s)
{
    json_t *reply = json_pack("{s:s, s:s}", "role", "assistant", "content", s->content), *calls = json_array();
    if (s->reasoning)
        json_object_set_new(reply, "reasoning_content", json_string(s->reasoning));
    for (int i = 0; i < s->calls; i++)
        json_array_append_new(calls,
                              json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", "call_x", "type", "function", "function",
                                        "name", "edit", "arguments", "{\"path\": \"/a \\\"b\\\"\", \"more\": [1, 2]}"));
    if (s->calls)
        json_object_set(reply, "tool_calls", calls);
    json_decref(calls);
    return reply;
}

static bool encode(const json_t *messages, struct job *job)
{
    struct conversation c;
    struct error error;
    bool reasons;
    json_t *tools = json_loads(tools_text, 0, NULL);
    bool good = conversation_read(&c, messages, tools, NULL, &error) &&
                conversation_encode(&c, tokenizer, &style, NULL, job, &reasons, &error);
    if (!good)
        printf("# %s\n", error.text);
    conversation_close(&c);
    json_decref(tools);
    return good;
}

// What the client sends next: the reply as it came, or without what it drops, and its words or the results of the calls.
static json_t *next_turn(const struct scene *s, const json_t *reply, const char *text)
{
    json_t *messages = json_loads(s->messages, 0, NULL), *message = json_deep_copy(reply);
    if (s->client == DROPS_REASONING)
        json_object_del(message, "reasoning_content");
    json_array_append_new(messages, message);
    for (int i = 0; i < s->calls; i++)
        json_array_append_new(messages,
                              json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", "call_x", "content", text));
    if (!s->calls)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", text));
    return messages;
}

static int same_ids(const struct job *a, const struct job *b)
{
    int n = 0;
    while (n < a->count && n < b->count && a->ids[n] == b->ids[n])
        n++;
    return n;
}

static void play(const struct scene *s)
{
    struct conversation c;
    struct error error;
    json_t *messages = json_loads(s->messages, 0, NULL), *tools = json_loads(tools_text, 0, NULL), *reply = reply_of(s);
    char name[200], detail[200] = "";
    int wrong = 0, most = 0;
    bool good = conversation_read(&c, messages, tools, NULL, &error);
    struct job *jobs[2] = {NULL, NULL}, *before = job_new();
    const int count = good ? warm_render(&c, reply, tokenizer, &style, jobs) : 0;
    struct job *warm = count == 2 && s->client == SENDS_REASONING ? jobs[1] : jobs[0];
    good = count == s->renderings && encode(messages, before);
    for (size_t i = 0; good && i < sizeof words / sizeof *words; i++) {
        struct job *job = job_new();
        json_t *next = next_turn(s, reply, words[i]);
        good = encode(next, job);
        const int same = good ? same_ids(warm, job) : 0, left = job->count - warm->count;
        most = left > most ? left : most;
        wrong += same < warm->count - 1 || left > 64 * (s->calls > 1 ? s->calls : 1);
        if (same < warm->count - 1)
            snprintf(detail, sizeof detail, "words %zu: %d of %d ids are the same", i, same, warm->count);
        job_free(job);
        json_decref(next);
    }
    for (int i = 0; good && i < warm->mark_count; i++)
        wrong += warm->marks[i] > warm->count;
    snprintf(name, sizeof name,
             "%s: the next turn begins with what was read (%d ids, %d behind the prompt; %d left at most)", s->name,
             good ? warm->count : 0, good ? warm->count - same_ids(warm, before) : 0, most);
    ok(good && wrong == 0 && warm->count > same_ids(warm, before), name, detail);
    // Red control: the client changed the reply.
    struct job *changed = job_new();
    json_object_set_new(reply, "content", json_string("Something else."));
    json_t *next = next_turn(s, reply, words[0]);
    ok(good && encode(next, changed) && same_ids(warm, changed) < warm->count - 1,
       "red: a changed reply is not what was read", "");
    job_free(changed);
    json_decref(next);
    job_free(jobs[0]);
    job_free(jobs[1]);
    job_free(before);
    conversation_close(&c);
    json_decref(messages);
    json_decref(tools);
    json_decref(reply);
}

#define USER "{\"role\": \"user\", \"content\": \"How do I list files?\"}"
#define CALLED                                                                                                         \
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"c\", \"type\": \"function\", "           \
    "\"function\": "                                                                                                   \
    "{\"name\": \"edit\", \"arguments\": \"{}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"c\", \"content\": "      \
    "\"done\"}"
#define CALLED_REASONED                                                                                                \
    "{\"role\": \"assistant\", \"content\": \"\", \"reasoning_content\": \"So.\", \"tool_calls\": [{\"id\": \"c\", "   \
    "\"type\": "                                                                                                       \
    "\"function\", \"function\": {\"name\": \"edit\", \"arguments\": \"{}\"}}]}, {\"role\": \"tool\", "                \
    "\"tool_call_id\": \"c\", "                                                                                        \
    "\"content\": \"done\"}"

static const struct scene scenes[] = {
    {"a reply", "[" USER "]", "With `ls`.", NULL, 0, DROPS_REASONING, 1},
    {"a reply with blanks around it", "[" USER "]", "\n With `ls`. \n\n", NULL, 0, DROPS_REASONING, 1},
    {"reasoning that is dropped", "[" USER "]", "With `ls`.", "They want ls.", 0, DROPS_REASONING, 2},
    {"reasoning that is sent back", "[" USER "]", "With `ls`.", "They want ls.", 0, SENDS_REASONING, 2},
    {"a call", "[{\"role\": \"system\", \"content\": \"Be brief.\"}, " USER "]", "I edit it.", NULL, 1, DROPS_REASONING,
     1},
    {"two calls", "[" USER "]", "", NULL, 2, DROPS_REASONING, 1},
    {"a call after a call, reasoning dropped", "[" USER ", " CALLED "]", "", "Again.", 1, DROPS_REASONING, 1},
    {"a call after a call, reasoning sent back", "[" USER ", " CALLED_REASONED "]", "", "Again.", 1, SENDS_REASONING,
     1},
    {"a reply after a call, reasoning stripped", "[" USER ", " CALLED_REASONED "]", "Done.", "It worked.", 0,
     SENDS_REASONING, 1},
};

int main(void)
{
    struct error error;
    if (!tokenizer_open(&tokenizer, &tokenizer_tables, &error))
        return 1;
    style = reply_style_of(&chat_template);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        play(&scenes[i]);
    tokenizer_close(tokenizer);
    return done();
}
