// SPDX-License-Identifier: Apache-2.0
//
// The reader of replies: what each text means, and that it means the same however its bytes are cut. A case is read whole, in two
// pieces cut at every byte, byte by byte, and in random pieces. Red controls: a reader that forgets what it held back at a cut, and
// one that gives out what it should hold, must both be found.

#include "runtime/reply/json_stream.h"
#include "runtime/reply/reply.h"
#include "tests/reply_cases.h"
#include "tests/tap.h"

// What a reply was read as, pieces of the same kind joined: R(reasoning) C(content) 0:name{arguments}
struct transcript {
    struct bytes text, arguments;
    int kind, events, deltas;
    bool bad; // arguments that are not JSON, or text that is not whole characters
};

static bool whole_characters(const char *text, size_t bytes)
{
    json_t *json = json_stringn(text, bytes);
    json_decref(json);
    return json != NULL;
}

static void sink(void *user, const struct reply_event *event)
{
    struct transcript *t = user;
    char number[16];
    bool joins = t->events && t->kind == (int)event->kind;
    t->events++;
    t->deltas += event->kind == REPLY_CALL_ARGUMENTS;
    if (event->text && (!event->bytes || !whole_characters(event->text, event->bytes)))
        t->bad = true;
    if (event->kind == REPLY_CALL_BEGIN) {
        snprintf(number, sizeof number, "%d:", event->call);
        bytes_text(&t->text, number);
        bytes_text(&t->text, event->name);
        t->arguments.size = 0;
    } else if (event->kind == REPLY_CALL_ARGUMENTS) {
        bytes_add(&t->arguments, event->text, event->bytes);
    } else if (event->kind == REPLY_CALL_END) {
        json_t *json = json_loadb(t->arguments.data, t->arguments.size,
                                  JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, NULL);
        t->bad = t->bad || !json_is_object(json);
        json_decref(json);
        bytes_add(&t->text, t->arguments.data, t->arguments.size);
    } else if (joins) {
        t->text.size--;
        bytes_add(&t->text, event->text, event->bytes);
        bytes_text(&t->text, ")");
    } else {
        bytes_text(&t->text, event->kind == REPLY_REASONING ? "R(" : "C(");
        bytes_add(&t->text, event->text, event->bytes);
        bytes_text(&t->text, ")");
    }
    t->kind = (int)event->kind;
}

enum fault { FAULT_NONE, FAULT_FORGETS, FAULT_GIVES_OUT };

// Reads text[0..count), cut where cuts[i] is set before byte i. To be freed by transcript_free.
static struct transcript read_cut(const struct reply_options *options, const char *text, size_t count, const bool *cuts,
                                  enum fault fault)
{
    struct transcript t = {0};
    struct reply *reply = reply_new(options, NULL);
    size_t from = 0;
    for (size_t i = 1; i <= count; i++) {
        if (i < count && !cuts[i])
            continue;
        bool more = reply_feed(reply, text + from, i - from, sink, &t);
        from = i;
        if (!more)
            break;
        if (fault == FAULT_NONE || i == count)
            continue;
        if (fault == FAULT_GIVES_OUT)
            reply_end(reply, sink, &t);
        reply_free(reply);
        reply = reply_new(options, NULL);
    }
    reply_end(reply, sink, &t);
    if (reply_feed(reply, "more", 4, sink, &t))
        t.bad = true;
    reply_free(reply);
    bytes_add(&t.text, "", 1);
    return t;
}

static void transcript_free(struct transcript *t)
{
    bytes_free(&t->text);
    bytes_free(&t->arguments);
}

static unsigned seed = 1;
static unsigned random_below(unsigned limit)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % limit;
}

// How many of the cuts of text read otherwise than `expected`; -1 when arguments were bad.
static int differing(const struct reply_options *options, const char *text, size_t count, const char *expected,
                     enum fault fault, int random_cuts)
{
    bool *cuts = calloc(count + 1, sizeof *cuts);
    int found = 0;
    bool bad = false;
    for (size_t i = 0; i < count + 1 + (size_t)random_cuts; i++) {
        for (size_t k = 0; k < count; k++)
            cuts[k] = i < count ? k == i : i == count ? true : random_below(4) == 0;
        struct transcript t = read_cut(options, text, count, cuts, fault);
        found += strcmp(t.text.data, expected) != 0;
        bad = bad || t.bad;
        transcript_free(&t);
    }
    free(cuts);
    return bad ? -1 : found;
}

static struct transcript read_whole(const struct reply_options *options, const char *text, size_t count)
{
    bool *cuts = calloc(count + 1, sizeof *cuts);
    struct transcript t = read_cut(options, text, count, cuts, FAULT_NONE);
    free(cuts);
    return t;
}

static void check_case(const struct reply_case *c, const json_t *tools)
{
    struct reply_options options = options_of(c, tools);
    char detail[2048];
    size_t count = strlen(c->text);
    struct transcript t = read_whole(&options, c->text, count);
    int other = differing(&options, c->text, count, t.text.data, FAULT_NONE, 20);
    snprintf(detail, sizeof detail, "read as %s, expected %s; %d cuts are read otherwise, %s", t.text.data, c->expected,
             other, t.bad ? "bad events" : "good events");
    ok(!strcmp(t.text.data, c->expected) && !t.bad && other == 0, c->name, detail);
    transcript_free(&t);
}

static const char *const reply_pieces[] = {"<tool_call>",
                                           "</tool_call>",
                                           "<function=",
                                           "typed",
                                           "bare",
                                           ">",
                                           "\n",
                                           "</function>",
                                           "<parameter=",
                                           "</parameter>",
                                           "a",
                                           "s",
                                           "[",
                                           "]",
                                           "{",
                                           "}",
                                           "\"",
                                           "'",
                                           ",",
                                           ":",
                                           "1",
                                           "true",
                                           "None",
                                           "</think>",
                                           "<think>",
                                           "\\",
                                           "u12",
                                           "\\ud83d",
                                           "é",
                                           "😀",
                                           "\xf0\x9f",
                                           "\xff",
                                           " ",
                                           "<",
                                           "</",
                                           "=",
                                           "{\"name\": \"typed\", \"arguments\": ",
                                           "<tool_call>\n<function=typed>\n",
                                           "<parameter=s>\n",
                                           "\n</parameter>\n",
                                           "\n</function>\n</tool_call>",
                                           "<parameter=a>",
                                           "<parameter=so>",
                                           "stop",
                                           "st"};

// Texts of pieces of markers, values and characters, in no sensible order.
static void random_texts(const json_t *tools, int rounds)
{
    static const char *const stops[] = {"stop", "op<"};
    int different = 0, unsound = 0;
    for (int round = 0; round < rounds; round++) {
        struct bytes text = {0};
        for (unsigned i = 1 + random_below(24); i; i--)
            bytes_text(&text, reply_pieces[random_below(sizeof reply_pieces / sizeof *reply_pieces)]);
        struct reply_options o = {.dialect = (enum reply_dialect)random_below(3),
                                  .reasoning = random_below(2),
                                  .call_asked = random_below(2),
                                  .reasoning_open = "<think>",
                                  .reasoning_close = "</think>",
                                  .tools = tools,
                                  .stop = stops,
                                  .stop_count = (int)random_below(3),
                                  .parallel_calls = random_below(2)};
        struct transcript t = read_whole(&o, text.data, text.size);
        int other = differing(&o, text.data, text.size, t.text.data, FAULT_NONE, 4);
        different += other > 0;
        unsound += other < 0 || t.bad;
        if (other || t.bad)
            printf("# round %d, dialect %d, reasoning %d, stops %d, all %d: %.*s\n#   read as %s\n", round,
                   (int)o.dialect, o.reasoning, o.stop_count, o.parallel_calls, (int)text.size, text.data, t.text.data);
        transcript_free(&t);
        bytes_free(&text);
    }
    ok(different == 0, "random texts are read alike however they are cut", NULL);
    ok(unsound == 0, "and give valid arguments and whole characters", NULL);
}

static void red_controls(const json_t *tools)
{
    const struct reply_case call = {.dialect = REPLY_XML, .text = "a\n" XML("bare", "")};
    const struct reply_case stop = {.dialect = REPLY_PLAIN, .text = "abcDEFk", .stop = {"DEF"}};
    struct reply_options o = options_of(&call, tools), s = options_of(&stop, tools);
    ok(differing(&o, call.text, strlen(call.text), "C(a)0:bare{}", FAULT_FORGETS, 4) > 0,
       "red: a reader that forgets is found", NULL);
    ok(differing(&o, call.text, strlen(call.text), "C(a)0:bare{}", FAULT_GIVES_OUT, 4) > 0,
       "red: a reader that gives out markers is found", NULL);
    ok(differing(&s, stop.text, strlen(stop.text), "C(abc)", FAULT_GIVES_OUT, 4) > 0,
       "red: a reader that gives out stop strings is found", NULL);
}

// Text and arguments come as they are written, not at their end.
static void streaming(const json_t *tools)
{
    struct bytes text = {0};
    bytes_text(&text, "<tool_call>\n<function=write_file>\n<parameter=content>\n");
    for (int i = 0; i < 2000; i++)
        bytes_text(&text, "abc\n");
    bytes_text(&text, "</parameter>\n</function>\n</tool_call>");
    struct reply_options o = {.dialect = REPLY_XML, .tools = tools, .parallel_calls = true};
    bool *cuts = calloc(text.size, sizeof *cuts);
    for (size_t i = 0; i < text.size; i += 4)
        cuts[i] = true;
    struct transcript t = read_cut(&o, text.data, text.size, cuts, FAULT_NONE);
    ok(t.deltas > 1900 && !t.bad, "8 kB of an argument come in pieces", NULL);
    transcript_free(&t);
    bytes_free(&text);
    free(cuts);

    struct transcript now = {0};
    const char *stop[] = {"xyz"};
    o = (struct reply_options){.dialect = REPLY_XML, .tools = tools, .stop = stop, .stop_count = 1};
    struct reply *reply = reply_new(&o, NULL);
    reply_feed(reply, "ab <b> xy", 9, sink, &now);
    bytes_add(&now.text, "", 1);
    ok(!strcmp(now.text.data, "C(ab <b> )"), "no more than what may begin a stop string is held back", now.text.data);
    now.text.size--;
    bool more = reply_feed(reply, "z and", 5, sink, &now);
    ok(!more && reply_reason(reply) == REPLY_AT_STOP && reply_stop_index(reply) == 0, "which stop string it was", NULL);
    reply_end(reply, sink, &now);
    reply_free(reply);
    transcript_free(&now);
}

// Valid JSON keeps its value; what is not becomes valid.
static void json_streams(int rounds)
{
    static const char *const pieces[] = {
        "{",       "}",      "[",  "]",    "\"",        "'", ",",  ":",    " ",   "\n",   "1",
        "-",       ".5",     "e9", "true", "None",      "x", "\\", "\\\"", "\\u", "00e9", "\\ud83d\\ude00",
        "\\udc00", "\"a\":", "é",  "\t",   "[[[[[[[[[["};
    int invalid = 0, cut = 0;
    for (int round = 0; round < rounds; round++) {
        struct bytes text = {0}, whole = {0}, parts = {0};
        for (unsigned i = random_below(40); i; i--)
            bytes_text(&text, pieces[random_below(sizeof pieces / sizeof *pieces)]);
        struct json_stream a = {0}, b = {0};
        json_stream_feed(&a, text.data, text.size, &whole);
        json_stream_end(&a, &whole);
        for (size_t i = 0; i < text.size; i++)
            json_stream_feed(&b, text.data + i, 1, &parts);
        json_stream_end(&b, &parts);
        json_t *json = json_loadb(whole.data, whole.size, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
        invalid += !json;
        if (!json)
            printf("# %.*s -> %.*s\n", (int)text.size, text.data ? text.data : "", (int)whole.size, whole.data);
        cut += whole.size != parts.size || memcmp(whole.data, parts.data, whole.size) != 0;
        json_decref(json);
        bytes_free(&text);
        bytes_free(&whole);
        bytes_free(&parts);
    }
    ok(invalid == 0, "whatever comes, JSON goes out", NULL);
    ok(cut == 0, "the same however it is cut", NULL);
}

int main(void)
{
    json_t *tools = json_loads(case_tools, 0, NULL);
    for (size_t i = 0; i < sizeof reply_cases / sizeof *reply_cases; i++)
        check_case(&reply_cases[i], tools);
    streaming(tools);
    random_texts(tools, 4000);
    json_streams(20000);
    red_controls(tools);
    const char *empty[] = {""};
    struct reply_options bad = {.stop = empty, .stop_count = 1};
    struct error error;
    ok(!reply_new(&bad, &error), "an empty stop string is refused", error.text);
    json_decref(tools);
    return done();
}
