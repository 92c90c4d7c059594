// SPDX-License-Identifier: Apache-2.0
//
// serve: the model over HTTP until a signal ends it. SIGTERM or SIGINT: no new requests, those that run are finished; a second
// one cuts them; before it listens they end it at once. SIGHUP: reads the keys again. An engine that fails for good ends the process with exit code 3.

#include "runtime/cli.h"
#include "runtime/server/fit.h"
#include "runtime/server/keys.h"
#include "runtime/server/notify.h"
#include "runtime/server/server.h"

#include <errno.h>
#include <jansson.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { DRAIN_SECONDS = 30, EXIT_ENGINE = 3 };

static const double GIB = 1 << 30;
static const int heeded[] = {SIGTERM, SIGINT, SIGHUP};

// Blocks the signals for every thread, so that only this one takes them.
static void hold_signals(sigset_t *set)
{
    sigemptyset(set);
    for (size_t i = 0; i < sizeof heeded / sizeof *heeded; i++)
        sigaddset(set, heeded[i]);
    pthread_sigmask(SIG_BLOCK, set, NULL);
}

// The next signal, or 0 after a while.
static int next_signal(const sigset_t *set, long milliseconds)
{
    const struct timespec wait = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
    int number = sigtimedwait(set, NULL, &wait);
    return number > 0 ? number : 0;
}

// While the engine opens, which may take minutes, nothing is there to be finished: a thread looks after the signals that end the
// process, and lets them.
struct opening {
    sigset_t set;
    atomic_bool over;
    pthread_t thread;
    bool watched;
};

static void *end_at_once(void *user)
{
    struct opening *o = user;
    while (!atomic_load(&o->over)) {
        const int number = next_signal(&o->set, 50);
        if (number) {
            pthread_sigmask(SIG_UNBLOCK, &o->set, NULL);
            raise(number);
        }
    }
    return NULL;
}

static void opening_begin(struct opening *o)
{
    sigemptyset(&o->set);
    sigaddset(&o->set, SIGTERM);
    sigaddset(&o->set, SIGINT);
    atomic_init(&o->over, false);
    o->watched = !pthread_create(&o->thread, NULL, end_at_once, o);
}

static void opening_end(struct opening *o)
{
    atomic_store(&o->over, true);
    if (o->watched)
        pthread_join(o->thread, NULL);
}

static void reload(struct server *server)
{
    struct error error = {0};
    if (!server->keys)
        return;
    if (keys_reload(server->keys, &error))
        fprintf(stderr, "keys were read again\n");
    else
        fprintf(stderr, "keys stay as they were: %s\n", error.text);
}

static bool asked_again(void *user)
{
    int number = next_signal(user, 0);
    return number == SIGTERM || number == SIGINT;
}

// Says that all is well, as often as systemd wants to hear it; says nothing when it is not, and is started anew.
static void watchdog(struct server *server, double every, double *next)
{
    const char *status;
    if (every > 0 && engine_seconds() >= *next && server_well(server, &status)) {
        notify("WATCHDOG=1");
        *next = engine_seconds() + every / 3;
    }
}

static int serve_until_signal(struct server *server, sigset_t *set, struct error *error)
{
    struct host_view view;
    const double every = notify_watchdog();
    double next = 0;
    for (;;) {
        int number = next_signal(set, 250);
        if (number == SIGHUP)
            reload(server);
        else if (number)
            break;
        watchdog(server, every, &next);
        host_look(server->host, &view);
        if (view.dead) {
            error_set(error, "%s", view.cause);
            fprintf(stderr, "the engine failed for good: %s\n", view.cause);
            notify("STOPPING=1\nSTATUS=the engine failed for good");
            server_drain(server, 2, NULL, NULL);
            return EXIT_ENGINE;
        }
    }
    fprintf(stderr, "no new requests; finishing those that run, up to %d s\n", DRAIN_SECONDS);
    notify("STOPPING=1\nSTATUS=finishing replies");
    server_drain(server, DRAIN_SECONDS, asked_again, set);
    return 0;
}

// Names go into replies, lines of the log and the errors of clients.
static bool check_name(const char *flag, const char *name, struct error *error)
{
    enum { NAME_BYTES = 200 };
    bool plain = *name && strlen(name) <= NAME_BYTES;
    for (const char *at = name; plain && *at; at++)
        plain = (unsigned char)*at >= ' ' && *at != 127;
    json_t *text = plain ? json_string(name) : NULL; // NULL, too, for what is no UTF-8
    json_decref(text);
    return text || error_set(error, "%s: a name of 1 to %d bytes of UTF-8 without control characters is expected", flag,
                             NAME_BYTES);
}

// The name and its aliases, each once.
static bool read_names(struct server_options *o, const struct settings *s, struct error *error)
{
    o->name = s->name ? s->name : model.name;
    if (s->name && !check_name("--name", s->name, error))
        return false;
    for (int i = 0; i < s->alias.count; i++) {
        const char *alias = s->alias.text[i];
        bool known = !strcmp(alias, o->name);
        for (int k = 0; k < o->alias_count; k++)
            known = known || !strcmp(alias, o->alias[k]);
        if (!check_name("--alias", alias, error))
            return false;
        if (!known)
            o->alias[o->alias_count++] = alias;
    }
    return true;
}

static struct server_options read_options(const struct settings *s)
{
    return (struct server_options){
        .host = s->host,
        .port = (int)s->port,
        .max_tokens = (int)s->reply_tokens,
        .sampling = {.temperature = (float)s->temperature,
                     .top_k = (int)s->top_k,
                     .top_p = (float)s->top_p,
                     .min_p = (float)s->min_p},
        .thinking = s->thinking,
        .effort = s->effort,
        .budget = (int)s->budget,
        .key_file = s->key_file,
        .no_log = s->quiet,
    };
}

// Anyone who can reach the port can ask.
static void warn_open(const struct settings *s)
{
    const char *host = s->host;
    if (!s->quiet && !s->key_file && host && strcmp(host, "localhost") && strncmp(host, "127.", 4) &&
        strcmp(host, "::1"))
        fprintf(stderr, "--host %s: other machines can reach this, and no --api-key-file says who may ask\n", host);
}

static void announce(const struct settings *s, const struct server *server)
{
    const char *host = s->host ? s->host : "127.0.0.1";
    const bool v6 = strchr(host, ':') != NULL;
    printf("listening on http://%s%s%s:%d\n", v6 ? "[" : "", host, v6 ? "]" : "", server->port);
    if (fflush(stdout)) // nobody reads it: no reason to fail
        clearerr(stdout);
    notify("READY=1");
}

// A pool that holds less than a whole context of one stream is what requests have to fit into.
static void warn_pool(const struct engine *engine, const struct settings *s)
{
    const int longest = engine_longest(engine);
    if (longest < engine_context(engine))
        fprintf(
            stderr,
            "--pool-pages %lld: the longest request has %d positions, prompt and reply together, of the context's %d\n",
            (long long)s->pool_pages, longest, engine_context(engine));
}

// Prompts whose states can never be kept are read from the beginning each time; whoever turned the cache off knows that.
static void warn_cache(const struct engine *engine, const struct settings *s)
{
    const int kept = engine_longest_kept(engine), longest = engine_longest(engine);
    if ((settings_given(s, FLAG_CACHE_GIB) && s->cache_gib == 0) || kept >= longest)
        return;
    if (kept)
        fprintf(
            stderr,
            "the prompt cache keeps states of up to %d positions: longer prompts, of up to %d, are read from there on "
            "each time; raise --prompt-cache-gib or --pool-pages\n",
            kept, longest);
    else
        fprintf(stderr, "the prompt cache has no room for one state: every prompt is read from its beginning; raise "
                        "--prompt-cache-gib or --pool-pages, or lower --context or --parallel\n");
}

static struct engine_options read_engine(const struct settings *s)
{
    struct engine_options options = cli_engine_options(s);
    options.no_rewind = true; // turns resume from the prompt cache
    options.cache_bytes = settings_given(s, FLAG_CACHE_GIB) ? (int64_t)(s->cache_gib * GIB) : -1;
    options.cache_disk = s->cache_disk;
    options.cache_disk_bytes = (int64_t)(s->cache_disk_gib * GIB);
    return options;
}

// What a request has freed goes back to the system: else the allocator learns from one large request to keep as much.
static void keep_little(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, BODY_LARGE);
    mallopt(M_TRIM_THRESHOLD, 2 * BODY_LARGE);
#endif
}

static int serve_run(const struct settings *settings, struct error *error)
{
    struct engine_options options = read_engine(settings);
    struct server_options server_options = read_options(settings);
    struct engine *engine = NULL;
    struct server *server = NULL;
    struct opening opening;
    struct fit fit;
    sigset_t set;
    int code = EXIT_BAD, wanted = (int)settings->parallel;
    hold_signals(&set);
    keep_little();
    if (!wanted && settings_given(settings, FLAG_LANES))
        wanted = (int)settings->lanes;
    opening_begin(&opening);
    const bool opened = read_names(&server_options, settings, error) && server_open(&server, &server_options, error) &&
                        fit_lanes(&fit, &options, wanted, error) && engine_open(&engine, &options, error);
    opening_end(&opening);
    if (opened && server_start(server, engine, error)) {
        if (!settings->quiet) {
            fit_print(&fit);
            warn_pool(engine, settings);
            warn_cache(engine, settings);
        }
        warn_open(settings);
        announce(settings, server);
        code = serve_until_signal(server, &set, error);
    }
    server_close(server);
    engine_close(engine);
    return code;
}

const struct command command_serve = {
    .name = "serve",
    .synopsis = "[--host NAME] [--port N] [--parallel N] [--context N] [--api-key-file FILE] ...",
    .summary = "the model over HTTP: OpenAI's and Anthropic's APIs",
    .notes =
        "Prints its address when it is ready, then one line a reply on stderr.\n"
        "SIGTERM: finishes what runs; SIGHUP: reads the keys again. Exit code 3: the engine failed, start it anew.",
    .flags = ENGINE_FLAGS | FLAG_BIT(FLAG_HOST) | FLAG_BIT(FLAG_PORT) | FLAG_BIT(FLAG_PARALLEL) | FLAG_BIT(FLAG_NAME) |
             FLAG_BIT(FLAG_ALIAS) | FLAG_BIT(FLAG_REPLY_TOKENS) | FLAG_BIT(FLAG_DECODE_SHARE) |
             FLAG_BIT(FLAG_ROUND_ROWS) | FLAG_BIT(FLAG_BUSY_CHUNK) | FLAG_BIT(FLAG_KEY_FILE) |
             FLAG_BIT(FLAG_TEMPERATURE) | FLAG_BIT(FLAG_TOP_K) | FLAG_BIT(FLAG_TOP_P) | FLAG_BIT(FLAG_MIN_P) |
             FLAG_BIT(FLAG_CACHE_GIB) | FLAG_BIT(FLAG_CACHE_DISK) | FLAG_BIT(FLAG_CACHE_DISK_GIB) |
             FLAG_BIT(FLAG_THINKING) | FLAG_BIT(FLAG_EFFORT) | FLAG_BIT(FLAG_BUDGET),
    .run = serve_run,
};
