// SPDX-License-Identifier: Apache-2.0
//
// run: one answer to a prompt, or a chat on a terminal. What is printed is the reply's text as it is made, in whole characters;
// everything else goes to stderr.

#define _GNU_SOURCE // getline
#include "runtime/cli.h"
#include "runtime/memory_plan.h"
#include "runtime/prompt.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TEXT = 1 << 28 };

enum stop { STOP_END, STOP_COUNT, STOP_CONTEXT, STOP_INTERRUPT };

static const char *const stop_names[] = {"end token", "token limit", "context full", "interrupted"};

struct run {
    const struct settings *settings;
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct stream *stream;
    struct tokenizer_stream text;
    json_t *messages;
    int32_t *reply;
    int replied, room;
    int64_t taken; // tokens of all replies, end tokens too
    enum stop stop;
};

static volatile sig_atomic_t interrupted;

static void interrupt(int signal_number)
{
    (void)signal_number;
    if (interrupted)
        _exit(EXIT_INTERRUPTED); // the first one was not heeded, by a long prompt for example
    interrupted = 1;
}

// Ctrl-C: restarts a system call while a reply is written, ends it while a line is awaited.
static void listen_for_interrupts(bool restart)
{
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = restart ? SA_RESTART : 0};
    sigaction(SIGINT, &action, NULL);
}

// ---- prompt to ids ----------------------------------------------------------------------------------------------------

static bool add_message(struct run *r, const char *role, const char *text, size_t bytes, struct error *error)
{
    json_t *content = json_stringn(text, bytes);
    if (!content)
        return error_set(error, "the prompt is not valid UTF-8");
    json_t *message = json_object();
    if (!message || json_object_set_new(message, "role", json_string(role)) ||
        json_object_set_new(message, "content", content) || json_array_append_new(r->messages, message))
        return error_set(error, "no memory for a message");
    return true;
}

static bool encode_raw(struct run *r, const char *text, size_t bytes, int32_t **ids, size_t *count, struct error *error)
{
    int32_t bos = tokenizer_bos(r->tokenizer);
    if (!tokenizer_encode(r->tokenizer, text, bytes, true, ids, count, error))
        return false;
    if (bos < 0 || (*count && (*ids)[0] == bos))
        return true;
    int32_t *longer = realloc(*ids, (*count + 1) * sizeof **ids);
    if (!longer) {
        free(*ids);
        return error_set(error, "no memory for the prompt's tokens");
    }
    memmove(longer + 1, longer, *count * sizeof *longer);
    longer[0] = bos;
    *ids = longer;
    ++*count;
    return true;
}

// The conversation as the template renders it, with the opening of a reply.
static bool encode_messages(struct run *r, int32_t **ids, size_t *count, struct error *error)
{
    char *text = NULL;
    size_t bytes = 0, segment_count = 0;
    struct chat_segment *segments = NULL;
    if (!chat_present())
        return error_set(error, "this build's checkpoint has no chat template; use --raw");
    if (!chat_render_segments(r->messages, NULL, NULL, true, &text, &bytes, &segments, &segment_count, error))
        return false;
    bool ok = prompt_encode(r->tokenizer, &tokenizer_tables, text, bytes, segments, segment_count, ids, count, error);
    free(text);
    free(segments);
    return ok;
}

// A seed that follows from the prompt, so that a repeated command repeats its reply.
static uint64_t seed_of(const int32_t *ids, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ (uint32_t)ids[i]) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}

static bool check_room(const struct settings *s, size_t count, struct error *error)
{
    const int context = memory_context((int)s->context);
    if (!count)
        return error_set(error, "the prompt is empty");
    if (count > (size_t)context)
        return error_set(error, "the prompt has %zu tokens, the context holds %d; raise --context or shorten it", count,
                         context);
    return true;
}

// Opens the stream at the first turn; later turns continue it.
static bool feed(struct run *r, const int32_t *ids, size_t count, struct error *error)
{
    const struct settings *s = r->settings;
    if (!check_room(s, count, error))
        return false;
    if (!r->stream) {
        struct stream_options options = {
            .sampling = {.temperature = (float)s->temperature,
                         .top_k = (int)s->top_k,
                         .top_p = (float)s->top_p,
                         .min_p = (float)s->min_p,
                         .seed = settings_given(s, FLAG_SEED) ? s->seed : seed_of(ids, count)},
            .drafts = s->no_drafts ? 0 : -1,
        };
        if (!stream_open(r->engine, &r->stream, &options, error))
            return false;
    }
    return stream_continue(r->stream, ids, (int)count, error);
}

// ---- reply ------------------------------------------------------------------------------------------------------------

static bool is_end(int32_t id)
{
    for (int i = 0; i < model.end_count; i++)
        if (model.end_tokens[i] == id)
            return true;
    return false;
}

static bool keep(struct run *r, int32_t id, struct error *error)
{
    if (r->replied == r->room) {
        int room = 2 * r->room + 256;
        int32_t *longer = realloc(r->reply, (size_t)room * sizeof *longer);
        if (!longer)
            return error_set(error, "no memory for the reply's tokens");
        r->reply = longer;
        r->room = room;
    }
    r->reply[r->replied++] = id;
    return true;
}

static bool show(struct run *r, int32_t id, struct error *error)
{
    const char *piece;
    size_t bytes;
    if (!tokenizer_stream_push(&r->text, id, &piece, &bytes, error))
        return false;
    return fwrite(piece, 1, bytes, stdout) == bytes || cli_flush(error);
}

// Takes the tokens of one round; *done when the reply has ended.
static bool take(struct run *r, const int32_t *ids, int count, bool *done, struct error *error)
{
    for (int i = 0; i < count && !*done; i++) {
        r->taken++;
        if (is_end(ids[i])) {
            r->stop = STOP_END;
            *done = true;
            continue;
        }
        if (!keep(r, ids[i], error) || !show(r, ids[i], error))
            return false;
        if (r->settings->count && r->replied >= r->settings->count) {
            r->stop = STOP_COUNT;
            *done = true;
        }
    }
    return cli_flush(error);
}

// Makes and prints one reply; its ids are in r->reply.
static bool answer(struct run *r, struct error *error)
{
    r->replied = 0;
    tokenizer_stream_open(&r->text, r->tokenizer, true);
    for (bool done = false; !done;) {
        int32_t ids[MAX_WINDOW];
        int count = 0;
        if (interrupted) {
            r->stop = STOP_INTERRUPT;
            break;
        }
        if (!stream_next(r->stream, ids, &count, error))
            return false;
        if (!count) {
            r->stop = STOP_CONTEXT;
            break;
        }
        if (!take(r, ids, count, &done, error))
            return false;
    }
    const char *piece;
    size_t bytes;
    tokenizer_stream_flush(&r->text, &piece, &bytes);
    fwrite(piece, 1, bytes, stdout);
    putchar('\n');
    return cli_flush(error);
}

static double rate(int64_t tokens, double seconds)
{
    return seconds > 0 ? (double)tokens / seconds : 0;
}

static void summary(const struct run *r)
{
    if (r->settings->quiet || !r->stream)
        return;
    const struct stream_counters *c = stream_counters(r->stream);
    fprintf(stderr, "prompt %lld token%s, %.1f tok/s; reply %lld token%s", (long long)c->prompt_tokens,
            plural(c->prompt_tokens), rate(c->prompt_tokens, c->prompt_seconds), (long long)r->taken, plural(r->taken));
    if (r->taken > 1) // the first one is the prompt's
        fprintf(stderr, ", %.1f tok/s", rate(c->reply_tokens, c->decode_seconds));
    fprintf(stderr, "; drafted %lld, accepted %lld; stop: %s\n", (long long)c->drafted, (long long)c->accepted,
            stop_names[r->stop]);
}

// ---- one answer, and a chat ---------------------------------------------------------------------------------------------

// The prompt's text: of -p, of -f, or of a pipe. One final newline of a file is not part of a message.
static bool read_prompt(const struct settings *s, char **text, size_t *bytes, struct error *error)
{
    if (s->prompt && s->file)
        return error_set(error, "run: give -p or -f, not both");
    if (s->prompt) {
        *text = strdup(s->prompt);
        *bytes = strlen(s->prompt);
        if (!*text)
            return error_set(error, "no memory for the prompt");
    } else if (!cli_read_file(s->file ? s->file : "-", MAX_TEXT, text, bytes, error)) {
        return false;
    } else if (!s->raw && *bytes && (*text)[*bytes - 1] == '\n') {
        (*text)[--*bytes] = '\0';
    }
    return *bytes || error_set(error, "the prompt is empty; give -p TEXT, -f FILE or text on standard input");
}

// The ids of the one prompt, malloc'd. Needs no engine, so that what is wrong is said before one loads.
static bool encode_once(struct run *r, int32_t **ids, size_t *count, struct error *error)
{
    char *text = NULL;
    size_t bytes = 0;
    bool ok = read_prompt(r->settings, &text, &bytes, error);
    if (ok && r->settings->raw)
        ok = encode_raw(r, text, bytes, ids, count, error);
    else
        ok = ok && add_message(r, "user", text, bytes, error) && encode_messages(r, ids, count, error);
    free(text);
    return ok && check_room(r->settings, *count, error);
}

// One turn of a chat. What goes wrong with a turn (a full context, say) is told, and the turn is forgotten.
static bool turn(struct run *r, const char *line, size_t bytes, struct error *error)
{
    int32_t *ids = NULL;
    size_t count = 0, turns = json_array_size(r->messages), reply_bytes = 0;
    char *reply = NULL;
    bool ok = add_message(r, "user", line, bytes, error) && encode_messages(r, &ids, &count, error) &&
              feed(r, ids, count, error);
    if (!ok) {
        fprintf(stderr, "%s (/new starts over)\n", error->text);
        while (json_array_size(r->messages) > turns)
            json_array_remove(r->messages, json_array_size(r->messages) - 1);
        free(ids);
        return true;
    }
    ok = answer(r, error) &&
         tokenizer_decode(r->tokenizer, r->reply, (size_t)r->replied, true, &reply, &reply_bytes, error) &&
         add_message(r, "assistant", reply, reply_bytes, error);
    free(ids);
    free(reply);
    return ok;
}

static bool start_messages(struct run *r, struct error *error)
{
    json_array_clear(r->messages);
    const char *text = r->settings->system;
    return !text || add_message(r, "system", text, strlen(text), error);
}

static bool chat(struct run *r, struct error *error)
{
    char *line = NULL;
    size_t room = 0;
    bool ok = true;
    fprintf(stderr, "%s: /exit or Ctrl-D ends, /new starts over, Ctrl-C stops a reply\n", model.name);
    while (ok) {
        fputs("> ", stderr);
        interrupted = 0;
        listen_for_interrupts(false);
        ssize_t got = getline(&line, &room, stdin);
        listen_for_interrupts(true);
        if (got < 0) {
            fputc('\n', stderr);
            break;
        }
        while (got > 0 && (line[got - 1] == '\n' || line[got - 1] == '\r'))
            line[--got] = '\0';
        if (!strcmp(line, "/exit"))
            break;
        if (!strcmp(line, "/new"))
            ok = start_messages(r, error);
        else if (got)
            ok = turn(r, line, (size_t)got, error);
    }
    free(line);
    return ok;
}

static int run_run(const struct settings *settings, struct error *error)
{
    struct run r = {.settings = settings};
    int32_t *ids = NULL;
    size_t count = 0;
    bool chatting = !settings->prompt && !settings->file && isatty(STDIN_FILENO);
    bool ok = !(settings->raw && (settings->system || chatting)) ||
              error_set(error, settings->system ? "--raw: takes no --system" : "--raw: needs -p, -f or piped text");
    r.messages = json_array();
    ok = ok && (r.messages || error_set(error, "no memory")) &&
         tokenizer_open(&r.tokenizer, &tokenizer_tables, error) && start_messages(&r, error) &&
         (chatting || encode_once(&r, &ids, &count, error));
    if (ok) {
        struct engine_options options = cli_engine_options(settings);
        ok = engine_open(&r.engine, &options, error);
    }
    if (ok)
        listen_for_interrupts(true);
    ok = ok && (chatting ? chat(&r, error) : (feed(&r, ids, count, error) && answer(&r, error)));
    if (ok)
        summary(&r);
    stream_close(r.stream);
    engine_close(r.engine);
    tokenizer_close(r.tokenizer);
    json_decref(r.messages);
    free(r.reply);
    free(ids);
    if (!ok)
        return EXIT_BAD;
    return !chatting && r.stop == STOP_INTERRUPT && interrupted ? EXIT_INTERRUPTED : 0;
}

const struct command command_run = {
    .name = "run",
    .synopsis = "[-p TEXT | -f FILE | < TEXT] [-n N] [--temperature T] ...",
    .summary = "one answer, streamed; a chat on a terminal without a prompt",
    .notes = "In a chat: /exit or Ctrl-D ends it, /new starts over, Ctrl-C stops a reply. A summary goes to stderr.\n"
             "The seed follows from the prompt unless --seed is given, so a repeated command repeats its reply.\n"
             "One final newline of a file or a pipe is not part of the message, unless --raw.",
    .flags = ENGINE_FLAGS | FLAG_BIT(FLAG_PROMPT) | FLAG_BIT(FLAG_FILE) | FLAG_BIT(FLAG_SYSTEM) |
             FLAG_BIT(FLAG_COUNT_TOKENS) | FLAG_BIT(FLAG_TEMPERATURE) | FLAG_BIT(FLAG_TOP_K) | FLAG_BIT(FLAG_TOP_P) |
             FLAG_BIT(FLAG_MIN_P) | FLAG_BIT(FLAG_SEED) | FLAG_BIT(FLAG_RAW),
    .run = run_run,
};
