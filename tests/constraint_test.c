// SPDX-License-Identifier: Apache-2.0
//
// Replies of the embedded model under grammars: for random schemas they always parse and meet the schema, drafted or
// not and whatever shares the round they are the same tokens, a grammar that begins after the reasoning leaves the
// reasoning alone, a dead end ends its request only, and none of them needs memory of the target after the start. Red
// control: rows that are masked by the first row's mask must be found.

#include "runtime/engine_state.h"
#include "runtime/grammar/match.h"
#include "tests/contract/memory.h"
#include "tests/tap.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

extern int constraint_test_first_row;

enum { REPLY = 90, SCHEMAS = 40, LANES = 4, TEXT = 4096 };

static struct grammar_vocabulary *vocabulary;
static struct tokenizer *tokenizer;
static uint64_t seed = 3;

static uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

// ---- random schemas and whether a value meets one ----------------------------------------------------------------------------

static json_t *random_schema(int depth);

static json_t *random_object(int depth)
{
    static const char *const names[] = {"a", "ab", "name", "größe", "x y"};
    json_t *properties = json_object(), *required = json_array();
    const uint32_t first = below(3), count = 1 + below(3);
    for (uint32_t i = first; i < first + count && i < 5; i++) {
        json_object_set_new(properties, names[i], random_schema(depth - 1));
        if (below(2))
            json_array_append_new(required, json_string(names[i]));
    }
    return json_pack("{s:s,s:o,s:o,s:b}", "type", "object", "properties", properties, "required", required,
                     "additionalProperties", 0);
}

static json_t *random_schema(int depth)
{
    const int low = (int)below(40) - 20;
    switch (below(depth > 0 ? 10 : 7)) {
    case 0:
        return json_pack("{s:s}", "type", below(2) ? "boolean" : "null");
    case 1:
        return json_pack("{s:s,s:i,s:i}", "type", "integer", "minimum", low, "maximum", low + (int)below(300));
    case 2:
        return json_pack("{s:s,s:i,s:i}", "type", "string", "minLength", (int)below(3), "maxLength", 3 + (int)below(6));
    case 3:
        return json_pack("{s:[s,s,i,n]}", "enum", "red", "rose", low);
    case 4:
        return json_pack("{s:[{s:s},{s:s,s:i}]}", "anyOf", "type", "null", "type", "string", "maxLength", 4);
    case 5:
        return json_pack("{s:{s:[i,s]}}", "const", "k", low, "v\"\n");
    case 6:
        return json_pack("{s:s,s:i}", "type", "number", "minimum", low);
    case 7:
        return json_pack("{s:s,s:o,s:i,s:i}", "type", "array", "items", random_schema(depth - 1), "minItems",
                         (int)below(2), "maxItems", 1 + (int)below(2));
    default:
        return random_object(depth);
    }
}

static size_t characters(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((uint8_t)*text & 0xc0) != 0x80;
    return n;
}

static bool meets(const json_t *schema, const json_t *value);

static bool meets_object(const json_t *schema, const json_t *value)
{
    json_t *properties = json_object_get(schema, "properties"), *one, *name;
    const char *key;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)value, key, one)
    {
        if (!json_object_get(properties, key) || !meets(json_object_get(properties, key), one))
            return false;
    }
    json_array_foreach(json_object_get(schema, "required"), i, name)
    {
        if (!json_object_get(value, json_string_value(name)))
            return false;
    }
    return true;
}

static bool in_range(const json_t *schema, const char *least, const char *most, double n)
{
    const json_t *low = json_object_get(schema, least), *high = json_object_get(schema, most);
    return (!low || n >= json_number_value(low)) && (!high || n <= json_number_value(high));
}

static bool meets_type(const json_t *schema, const char *type, const json_t *value)
{
    size_t i;
    json_t *one;
    if (!strcmp(type, "string"))
        return json_is_string(value) &&
               in_range(schema, "minLength", "maxLength", (double)characters(json_string_value(value)));
    if (!strcmp(type, "integer") || !strcmp(type, "number"))
        return (type[0] == 'i' ? json_is_integer(value) : json_is_number(value)) &&
               in_range(schema, "minimum", "maximum", json_number_value(value));
    if (!strcmp(type, "array")) {
        json_array_foreach(value, i, one)
        {
            if (!meets(json_object_get(schema, "items"), one))
                return false;
        }
        return json_is_array(value) && in_range(schema, "minItems", "maxItems", (double)json_array_size(value));
    }
    return !strcmp(type, "object")    ? json_is_object(value) && meets_object(schema, value)
           : !strcmp(type, "boolean") ? json_is_boolean(value)
                                      : json_is_null(value);
}

static bool meets(const json_t *schema, const json_t *value)
{
    const json_t *list = json_object_get(schema, "enum"), *ways = json_object_get(schema, "anyOf");
    const json_t *one = json_object_get(schema, "const"), *type = json_object_get(schema, "type");
    bool any = !list && !ways;
    for (size_t i = 0; i < json_array_size(list); i++)
        any = any || json_equal(json_array_get(list, i), value);
    for (size_t i = 0; i < json_array_size(ways); i++)
        any = any || meets(json_array_get(ways, i), value);
    return any && (!one || json_equal(one, value)) && (!type || meets_type(schema, json_string_value(type), value));
}

// ---- replies -----------------------------------------------------------------------------------------------------------------

struct reply {
    int32_t id[REPLY];
    int count;
    enum stream_phase phase;
    char error[200];
    int64_t drafted, accepted;
};

struct ask {
    struct grammar *grammar;
    const char *after, *prompt;
    int drafts;
    uint64_t seed;
    float temperature;
    bool ignore_end;
    const struct reply *said; // the prompt ends with so many of its tokens already
    int read;
};

static struct stream *submit(struct engine *e, const struct ask *ask, struct error *error)
{
    int32_t *ids;
    size_t count;
    struct stream *s = NULL;
    if (!tokenizer_encode(tokenizer, ask->prompt, strlen(ask->prompt), true, &ids, &count, error))
        return NULL;
    int32_t all[512];
    memcpy(all, ids, count * sizeof *all);
    if (ask->read)
        memcpy(all + count, ask->said->id, (size_t)ask->read * sizeof *all);
    const struct request r = {
        .ids = all,
        .count = (int)count + ask->read,
        .reply = REPLY,
        .ignore_end = ask->ignore_end,
        .options = {.sampling = {.temperature = ask->temperature, .top_p = 0.95f, .top_k = 50, .seed = ask->seed},
                    .drafts = ask->drafts,
                    .grammar = ask->grammar,
                    .grammar_after = ask->after,
                    .grammar_read = ask->read}};
    stream_submit(e, &s, &r, error);
    free(ids);
    return s;
}

// Runs what was asked, all at once.
static bool play(struct engine *e, const struct ask *asks, int count, struct reply *replies, struct error *error)
{
    struct stream *streams[LANES];
    bool busy = true, good = true;
    for (int i = 0; i < count; i++) {
        streams[i] = submit(e, &asks[i], error);
        good = good && streams[i];
    }
    while (good && busy)
        good = engine_turn(e, &busy, error);
    for (int i = 0; i < count; i++) {
        if (!streams[i])
            continue;
        struct reply *r = &replies[i];
        *r = (struct reply){.phase = stream_phase(streams[i])};
        r->count = stream_take(streams[i], r->id, REPLY);
        r->drafted = stream_counters(streams[i])->drafted;
        r->accepted = stream_counters(streams[i])->accepted;
        snprintf(r->error, sizeof r->error, "%.199s", stream_error(streams[i]));
        stream_close(streams[i]);
    }
    return good;
}

static bool same(const struct reply *a, const struct reply *b)
{
    return a->count == b->count && a->phase == b->phase && !memcmp(a->id, b->id, (size_t)a->count * sizeof a->id[0]);
}

static bool is_end(int32_t id)
{
    for (int i = 0; i < model.end_count; i++)
        if (model.end_tokens[i] == id)
            return true;
    return false;
}

static bool ended(const struct reply *r)
{
    return r->count > 0 && is_end(r->id[r->count - 1]);
}

static void text_of(const struct reply *r, char text[TEXT])
{
    char *made = NULL;
    size_t bytes = 0;
    struct error error;
    text[0] = 0;
    if (tokenizer_decode(tokenizer, r->id, (size_t)(r->count - ended(r)), false, &made, &bytes, &error))
        snprintf(text, TEXT, "%s", made);
    free(made);
}

// ---- the tests ---------------------------------------------------------------------------------------------------------------

static const char prompt[] =
    "<|im_start|>user\nShow me an example in JSON.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

struct made {
    json_t *schema;
    struct grammar *grammar;
    struct reply plain;
} made[SCHEMAS];

static struct ask ask_of(int i, int drafts)
{
    return (struct ask){.grammar = made[i].grammar,
                        .prompt = prompt,
                        .drafts = drafts,
                        .seed = (uint64_t)i,
                        .temperature = i % 4 ? 0.9f : 0};
}

static void test_schemas(struct engine *e)
{
    int finished = 0, wrong = 0;
    char text[TEXT], detail[600] = "";
    struct error error;
    bool good = true;
    for (int i = 0; good && i < SCHEMAS; i++) {
        made[i].schema = random_schema(2);
        good = grammar_schema(&made[i].grammar, vocabulary, made[i].schema, &error);
        const struct ask ask = good ? ask_of(i, 0) : (struct ask){0};
        good = good && play(e, &ask, 1, &made[i].plain, &error);
        text_of(&made[i].plain, text);
        json_t *value = ended(&made[i].plain) ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        finished += ended(&made[i].plain);
        if (good && (made[i].plain.phase != STREAM_FINISHED ||
                     (ended(&made[i].plain) && (!value || !meets(made[i].schema, value))))) {
            wrong++;
            char *schema = json_dumps(made[i].schema, 0);
            snprintf(detail, sizeof detail, "%.200s gives %.200s %.100s", schema, text, made[i].plain.error);
            free(schema);
        }
        json_decref(value);
    }
    if (!good)
        snprintf(detail, sizeof detail, "%s", error.text);
    ok(good && wrong == 0 && finished > SCHEMAS * 3 / 4, "replies meet their schemas", detail);
    printf("# %d of %d replies came to their end\n", finished, SCHEMAS);
}

// Replies that differ from the undrafted ones that were made alone.
static int changed(struct engine *e, int drafts, int together, int64_t *drafted, int64_t *accepted)
{
    struct error error;
    int count = 0;
    for (int i = 0; i + together <= SCHEMAS; i += together) {
        struct ask asks[LANES];
        struct reply replies[LANES];
        for (int k = 0; k < together; k++)
            asks[k] = ask_of(i + k, drafts);
        if (!play(e, asks, together, replies, &error))
            return SCHEMAS;
        for (int k = 0; k < together; k++) {
            count += !same(&replies[k], &made[i + k].plain);
            *drafted += replies[k].drafted;
            *accepted += replies[k].accepted;
        }
    }
    return count;
}

static void test_drafts(struct engine *e)
{
    int64_t drafted = 0, accepted = 0;
    char detail[120];
    const int alone = changed(e, model.window - 1, 1, &drafted, &accepted);
    snprintf(detail, sizeof detail, "%d of %d differ", alone, SCHEMAS);
    ok(alone == 0 && drafted > 0 && accepted > 0, "drafted as undrafted under masks", detail);
    printf("# %lld drafts, %lld accepted\n", (long long)drafted, (long long)accepted);
    const int company = changed(e, -1, LANES, &drafted, &accepted);
    snprintf(detail, sizeof detail, "%d of %d differ", company, SCHEMAS);
    ok(company == 0, "four at once as alone under masks", detail);
    constraint_test_first_row = 1;
    ok(changed(e, model.window - 1, 1, &drafted, &accepted) > 0, "red control: every row under the first row's mask",
       NULL);
    constraint_test_first_row = 0;
}

// The part of a reply up to `after` is the reply's without a grammar; what follows is the grammar's.
static void test_after(struct engine *e)
{
    static const char thinks[] = "<|im_start|>user\nIs it late?<|im_end|>\n<|im_start|>assistant\n<think>\n";
    const char *choices[] = {"perhaps not"};
    struct grammar *g = NULL;
    struct error error = {.text = ""};
    struct reply free_reply, plain, drafted, text;
    char words[TEXT];
    bool good = grammar_choice(&g, vocabulary, choices, NULL, 1, &error);
    int begun = 0, follows = 0, equal = 0;
    for (int i = 0; good && i < 6; i++) {
        struct ask ask = {.prompt = thinks, .seed = (uint64_t)i, .temperature = 0.8f};
        good = play(e, &ask, 1, &free_reply, &error);
        // A grammar may begin after any token's text: here after one that the reply without a grammar has.
        const bool marks = i % 2 == 0;
        ask.grammar = g;
        size_t bytes = 0;
        const char *piece = grammar_token(vocabulary, free_reply.id[3], &bytes);
        char after[40];
        snprintf(after, sizeof after, "%.*s", (int)bytes, piece);
        ask.after = marks ? "</think>" : after;
        good = good && play(e, &ask, 1, &plain, &error);
        ask.drafts = -1;
        good = good && play(e, &ask, 1, &drafted, &error);
        ask.drafts = model.window - 1;
        good = good && play(e, &ask, 1, &text, &error);
        text_of(&plain, words);
        const char *at = strstr(words, ask.after);
        equal += same(&plain, &drafted) && same(&plain, &text);
        begun += at != NULL;
        if (at) {
            at += strlen(ask.after);
            at += strspn(at, "\n");
            follows += !strncmp(at, choices[0], strlen(at) < strlen(choices[0]) ? strlen(at) : strlen(choices[0])) &&
                       strlen(at) <= strlen(choices[0]);
        } else {
            follows += same(&plain, &free_reply);
        }
    }
    snprintf(words, sizeof words, "%d begun, %d right, %d equal %s", begun, follows, equal, error.text);
    ok(good && begun >= 3 && follows == 6 && equal == 6, "a grammar that begins in the reply", words);
    grammar_release(g);
}

// A reply whose beginning is in the prompt already goes on in its grammar.
static void test_read(struct engine *e)
{
    int whole = 0, wrong = 0;
    bool good = true;
    struct error error = {.text = ""};
    for (int i = 0; good && i < 12; i++) {
        struct ask ask = ask_of(i, -1);
        struct reply rest;
        char text[2 * TEXT], more[TEXT];
        ask.said = &made[i].plain;
        ask.read = made[i].plain.count / 2;
        good = play(e, &ask, 1, &rest, &error);
        struct reply first = made[i].plain;
        first.count = ask.read;
        text_of(&first, text);
        text_of(&rest, more);
        json_t *value = good && ended(&rest) ? json_loads(strcat(text, more), JSON_DECODE_ANY, NULL) : NULL;
        whole += good && ended(&rest);
        wrong += good && (rest.phase != STREAM_FINISHED || (ended(&rest) && (!value || !meets(made[i].schema, value))));
        json_decref(value);
    }
    ok(good && whole > 4 && wrong == 0, "a reply that the prompt begins goes on in its grammar", error.text);
}

// Log-probabilities are those of the model, of tokens that a mask rules out too.
static void test_logprobs(struct engine *e)
{
    const char *choices[] = {"zq"};
    struct grammar *g = NULL;
    struct stream *s = NULL;
    struct error error = {.text = ""};
    bool good = grammar_choice(&g, vocabulary, choices, NULL, 1, &error), outside = false, higher = false;
    const struct stream_options o = {.logprobs = 3, .grammar = g, .sampling = {.top_p = 1}};
    int32_t *ids, out[16];
    size_t count;
    int got;
    good = good && tokenizer_encode(tokenizer, prompt, strlen(prompt), true, &ids, &count, &error) &&
           stream_open(e, &s, &o, &error) && stream_prompt(s, ids, (int)count, 0, 0, NULL, NULL, &error) &&
           stream_next(s, out, &got, &error);
    const struct logprobs *p = good ? stream_logprobs(s, 0) : NULL;
    for (int i = 0; p && i < p->count; i++) {
        outside = outside || p->id[i] != out[0];
        higher = higher || p->logprob[i] > p->chosen;
    }
    ok(p && p->count == 3 && outside && higher && p->chosen > -60, "log-probabilities are those before the mask",
       error.text);
    stream_close(s);
    if (good)
        free(ids);
    grammar_release(g);
}

// The model has no token for what the grammar wants: that request fails, the one beside it does not.
static void test_dead_end(struct engine *e)
{
    struct grammar_vocabulary *poor = NULL;
    struct grammar *g = NULL;
    struct error error = {.text = ""};
    struct reply replies[2], alone;
    bool good =
        grammar_vocabulary_open(&poor, &tokenizer_tables, model.vocabulary, model.end_tokens, model.end_count, &error);
    for (uint32_t i = 0; good && i < poor->nodes; i++)
        if (poor->depth[i] == 1 && poor->byte[i] == '7')
            for (uint32_t k = i; k < poor->skip[i]; k++)
                poor->token[k] = -1;
    const char *choices[] = {"1 or 7"};
    good = good && grammar_choice(&g, poor, choices, NULL, 1, &error);
    struct ask asks[2] = {{.grammar = g, .prompt = prompt, .drafts = -1}, {.prompt = prompt, .drafts = -1}};
    good = good && play(e, &asks[1], 1, &alone, &error) && play(e, asks, 2, replies, &error);
    ok(good && replies[0].phase == STREAM_FAILED && strstr(replies[0].error, "no token of this model"),
       "a dead end fails its request", good ? replies[0].error : error.text);
    ok(good && same(&replies[1], &alone), "and leaves the others alone", NULL);
    asks[0].ignore_end = true;
    ok(!submit(e, &asks[0], &error) && strstr(error.text, "ignore_eos"), "a grammar and ignore_eos do not go together",
       error.text);
    grammar_release(g);
    grammar_vocabulary_close(poor);
}

int main(void)
{
    struct error error = {.text = ""};
    struct engine *e = NULL;
    const struct engine_options options = {.threads = 2, .quiet = true, .context = 256, .lanes = LANES};
    if (!grammar_vocabulary_open(&vocabulary, &tokenizer_tables, model.vocabulary, model.end_tokens, model.end_count,
                                 &error) ||
        !tokenizer_open(&tokenizer, &tokenizer_tables, &error) || !engine_open(&e, &options, &error)) {
        ok(false, "the engine opens", error.text);
        return done();
    }
    memory_close(true);
    test_schemas(e);
    test_drafts(e);
    test_after(e);
    test_read(e);
    test_logprobs(e);
    test_dead_end(e);
    ok(memory_refused() == 0, "no memory of the target was asked for after the start", NULL);
    memory_close(false);
    for (int i = 0; i < SCHEMAS; i++) {
        json_decref(made[i].schema);
        grammar_release(made[i].grammar);
    }
    engine_close(e);
    tokenizer_close(tokenizer);
    grammar_vocabulary_close(vocabulary);
    return done();
}
