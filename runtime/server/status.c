// SPDX-License-Identifier: Apache-2.0
//
// /health, /metrics and /memory: what the engine and the server count, as others read it.

#include "runtime/json_exact.h"
#include "runtime/model.h"
#include "runtime/server/exchange.h"
#include "runtime/server/keys.h"
#include "runtime/server/metrics.h"
#include "runtime/server/structured.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

extern const double metrics_bounds[HISTOGRAM_STEPS];
extern const char *const metrics_ends[ENDS];

// A turn that takes longer than this is a hang.
static const double TURN_SECONDS = 60;

struct state {
    struct host_view host;
    struct metrics metrics; // a copy; its lock is not used
    bool well;
    const char *status;
    double age; // of the last round, seconds; negative: none yet
};

static bool judge(struct server *s, const struct host_view *host, const char **status)
{
    const bool hung = engine_seconds() - host->beat > TURN_SECONDS;
    *status = host->dead ? "failed" : hung ? "hung" : atomic_load(&s->draining) ? "draining" : "ok";
    return !strcmp(*status, "ok");
}

bool server_well(struct server *s, const char **status)
{
    struct host_view host;
    host_look(s->host, &host);
    return judge(s, &host, status);
}

static void look(struct server *s, struct state *state)
{
    host_look(s->host, &state->host);
    pthread_mutex_lock(&s->metrics.lock);
    memcpy(&state->metrics, &s->metrics, sizeof state->metrics);
    pthread_mutex_unlock(&s->metrics.lock);
    state->well = judge(s, &state->host, &state->status);
    const double last = state->host.engine.last_round;
    state->age = last > 0 ? engine_seconds() - last : -1;
}

// ---- /health -------------------------------------------------------------------------------------------------------------------

void health_handle(struct exchange *x)
{
    struct state st;
    look(x->server, &st);
    const struct engine_counters *e = &st.host.engine;
    const int code = st.well ? 200 : 503;
    if (x->server->keys && !strcmp(x->label, "-")) {
        exchange_json(x, code, json_pack("{s:s}", "status", st.status));
        return;
    }
    json_t *root =
        json_pack("{s:s, s:b, s:s, s:b, s:i, s:i, s:f, s:f}", "status", st.status, "ok", st.well, "backend",
                  engine_isa(x->server->engine), "busy", st.host.running > 0, "requests_running", st.host.running,
                  "requests_waiting", e->waiting + st.host.background, "last_round_age_seconds",
                  json_nine_digits(st.age), "uptime_seconds", json_nine_digits(engine_seconds() - x->server->started));
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {
        {"requests_total", e->submitted},
        {"completion_tokens_total", e->reply_tokens},
        {"prompt_tokens_total", e->prompt_tokens + e->cache.cached_tokens},
        {"cached_tokens_total", e->cache.cached_tokens},
        {"rounds_total", e->rounds},
        {"drafted_total", e->drafted},
        {"accepted_total", e->accepted},
        {"context_length", x->server->context},
        {"connections_requests", atomic_load(&x->server->exchanges)},
    };
    for (size_t i = 0; root && i < sizeof rows / sizeof *rows; i++)
        json_object_set_new(root, rows[i].name, json_integer(rows[i].value));
    json_t *streams = json_pack("{s:i, s:i, s:i, s:i}", "decoding", e->lanes_decoding, "prefilling", e->lanes_filling,
                                "free", e->lanes - e->lanes_decoding - e->lanes_filling, "max", e->lanes);
    json_t *pages = json_pack("{s:I, s:I, s:I, s:I}", "total", (json_int_t)e->pages, "claimed",
                              (json_int_t)e->pages_claimed, "promised", (json_int_t)e->pages_promised, "cached",
                              (json_int_t)(e->page_bytes ? e->cache.bytes / e->page_bytes : 0));
    if (root) {
        json_object_set_new(root, "prefill_seconds_total", json_real(json_nine_digits(e->prompt_seconds)));
        json_object_set_new(root, "decode_seconds_total", json_real(json_nine_digits(e->decode_seconds)));
        json_object_set_new(root, "completion_tokens_per_second", json_real(json_nine_digits(st.host.reply_rate)));
        json_object_set_new(root, "prompt_tokens_per_second", json_real(json_nine_digits(st.host.prompt_rate)));
        json_object_set_new(root, "streams", streams);
        json_object_set_new(root, "pages", pages);
        if (st.host.dead)
            json_object_set_new(root, "cause", json_string(st.host.cause));
    }
    exchange_json(x, code, root);
}

// ---- /metrics ------------------------------------------------------------------------------------------------------------------

// Every family appears under our prefix, under that of the reference engine, and under its vLLM name where it has one.
static const char *const prefixes[] = {"pianola:", "tensorfold:"};

struct page {
    FILE *file;
    const char *model;
};

static void head(const struct page *p, const char *prefix, const char *name, const char *type, const char *help)
{
    fprintf(p->file, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, help, prefix, name, type);
}

static void value(const struct page *p, const char *name, const char *other, const char *type, const char *help,
                  double v)
{
    for (size_t i = 0; i < 2; i++) {
        head(p, prefixes[i], name, type, help);
        fprintf(p->file, "%s%s %.17g\n", prefixes[i], name, v);
    }
    if (!other)
        return;
    head(p, "vllm:", other, type, help);
    fprintf(p->file, "vllm:%s{model_name=\"%s\"} %.17g\n", other, p->model, v);
}

static void histogram(const struct page *p, const char *prefix, const char *name, const char *help,
                      const struct histogram *h)
{
    int64_t sum = 0;
    head(p, prefix, name, "histogram", help);
    for (int i = 0; i < HISTOGRAM_STEPS; i++) {
        sum += h->step[i];
        fprintf(p->file, "%s%s_bucket{le=\"%g\"} %lld\n", prefix, name, metrics_bounds[i], (long long)sum);
    }
    fprintf(p->file, "%s%s_bucket{le=\"+Inf\"} %lld\n%s%s_sum %.9g\n%s%s_count %lld\n", prefix, name,
            (long long)h->count, prefix, name, h->sum, prefix, name, (long long)h->count);
}

static void ends(const struct page *p, const char *prefix, const struct metrics *m)
{
    head(p, prefix, "request_success_total", "counter", "replies that came to their end, by reason");
    for (int i = 0; i <= END_CALLS; i++)
        fprintf(p->file, "%srequest_success_total{finished_reason=\"%s\"} %lld\n", prefix, metrics_ends[i],
                (long long)m->ends[i]);
    head(p, prefix, "requests_total", "counter", "requests that are over, by the name of their key and by how");
    for (int k = 0; k < m->label_count; k++)
        for (int i = 0; i < ENDS; i++)
            if (m->labels[k].ends[i])
                fprintf(p->file, "%srequests_total{key=\"%s\",status=\"%s\"} %lld\n", prefix, m->labels[k].label,
                        metrics_ends[i], (long long)m->labels[k].ends[i]);
}

static void gauges(const struct page *p, const struct state *st)
{
    const struct engine_counters *e = &st->host.engine;
    const double used = e->pages > 0 ? (double)e->pages_claimed / (double)e->pages : 0;
    value(p, "requests_running", "num_requests_running", "gauge", "streams in a prompt or a reply",
          e->lanes_decoding + e->lanes_filling);
    value(p, "requests_waiting", "num_requests_waiting", "gauge", "requests that wait for a lane or pages",
          e->waiting + st->host.background);
    value(p, "kv_cache_usage_ratio", "kv_cache_usage_perc", "gauge", "pages in use, of all", used);
    value(p, "lanes_free", NULL, "gauge", "lanes without a stream", e->lanes - e->lanes_decoding - e->lanes_filling);
    value(p, "lanes", NULL, "gauge", "streams at a time, at most", e->lanes);
    value(p, "pages", NULL, "gauge", "pages of the pool", (double)e->pages);
    value(p, "pages_claimed", NULL, "gauge", "pages in use", (double)e->pages_claimed);
    value(p, "pages_promised", NULL, "gauge", "pages set aside for streams", (double)e->pages_promised);
    if (st->age >= 0)
        value(p, "last_round_age_seconds", NULL, "gauge", "since the last round", st->age);
    value(p, "up", NULL, "gauge", "1 while the engine is well", st->well);
}

static void counters(const struct page *p, const struct state *st)
{
    const struct engine_counters *e = &st->host.engine;
    const struct metrics *m = &st->metrics;
    value(p, "prompt_tokens_total", "prompt_tokens_total", "counter", "prompt tokens, cached ones too",
          (double)(e->prompt_tokens + e->cache.cached_tokens));
    value(p, "generation_tokens_total", "generation_tokens_total", "counter", "reply tokens", (double)e->reply_tokens);
    value(p, "reasoning_tokens_total", NULL, "counter", "of the replies that are over, tokens of reasoning",
          (double)m->reasoning_tokens);
    value(p, "mtp_drafted_total", "spec_decode_num_draft_tokens_total", "counter", "drafted tokens",
          (double)e->drafted);
    value(p, "mtp_accepted_total", "spec_decode_num_accepted_tokens_total", "counter", "drafted tokens that were right",
          (double)e->accepted);
    value(p, "decode_rounds_total", NULL, "counter", "rounds", (double)e->rounds);
    value(p, "prompt_chunks_total", NULL, "counter", "passes over a piece of a prompt", (double)e->chunks);
    value(p, "decode_seconds_total", NULL, "counter", "seconds in rounds", e->decode_seconds);
    value(p, "prefill_seconds_total", NULL, "counter", "seconds in prompts", e->prompt_seconds);
    value(p, "client_disconnections_total", NULL, "counter", "clients that went before their reply was out",
          (double)m->disconnected);
    value(p, "preemptions_total", "num_preemptions_total", "counter", "replies of the background that stepped aside",
          (double)st->host.replays);
    value(p, "graphs_replayed_total", NULL, "counter", "launches of captured graphs", (double)e->graphs_replayed);
    value(p, "graphs_eager_total", NULL, "counter", "launches without a graph", (double)e->graphs_eager);
    value(p, "graph_bytes", NULL, "gauge", "bytes of captured graphs", (double)e->graph_bytes);
    value(p, "round_gaps_total", NULL, "counter", "rounds that followed a round", (double)e->gaps);
    value(p, "round_host_seconds_total", NULL, "counter",
          "seconds from the end of a round to the launch of the next, of those", e->host_seconds);
    value(p, "round_launch_seconds_total", NULL, "counter", "seconds of handing over the rounds, of those",
          e->launch_seconds);
}

// Only what this engine has: one without a prompt cache, or without a folder for it, says nothing of it.
static void cache(const struct page *p, const struct cache_counters *c)
{
    const struct {
        const char *name, *vllm, *type, *help;
        int64_t value;
        bool disk;
    } rows[] = {
        {"prompt_tokens_cached_total", "prompt_tokens_cached_total", "counter",
         "prompt tokens that a kept state stood for", c->cached_tokens, false},
        {"prefix_cache_queries_total", "prefix_cache_queries_total", "counter", "prompts looked for in the cache",
         c->hits + c->misses, false},
        {"prefix_cache_hits_total", "prefix_cache_hits_total", "counter", "prompts that began at a kept state", c->hits,
         false},
        {"prompt_cache_bytes", NULL, "gauge", "bytes of kept states", c->bytes, false},
        {"prompt_cache_budget_bytes", NULL, "gauge", "bytes that kept states may take", c->budget, false},
        {"prompt_cache_states", NULL, "gauge", "kept states", c->states, false},
        {"prompt_cache_saved_total", NULL, "counter", "states that were kept", c->saved, false},
        {"prompt_cache_evicted_total", NULL, "counter", "states that went for others", c->evicted, false},
        {"prompt_cache_refused_total", NULL, "counter", "states larger than the cache", c->refused, false},
        {"prompt_cache_failed_total", NULL, "counter", "states that could not be kept or copied", c->failed, false},
        {"warm_passes_total", NULL, "counter", "prompts read before they were sent", c->warm_passes, false},
        {"warm_chunks_total", NULL, "counter", "passes over a piece of those", c->warm_chunks, false},
        {"warm_aside_total", NULL, "counter", "of them, those that gave way to a request", c->warm_aside, false},
        {"prompt_cache_disk_bytes", NULL, "gauge", "bytes of files of kept states", c->disk_bytes, true},
        {"prompt_cache_disk_states", NULL, "gauge", "kept states on disk", c->disk_states, true},
        {"prompt_cache_disk_reads_total", NULL, "counter", "states read from disk", c->disk_reads, true},
        {"prompt_cache_disk_writes_total", NULL, "counter", "states written to disk", c->disk_writes, true},
        {"prompt_cache_disk_refused_total", NULL, "counter", "files that were damaged or another build's",
         c->disk_refused, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].disk ? c->disk_budget > 0 : c->budget > 0)
            value(p, rows[i].name, rows[i].vllm, rows[i].type, rows[i].help, (double)rows[i].value);
}

void metrics_handle(struct exchange *x)
{
    static const struct {
        const char *name, *vllm, *help;
    } names[HISTOGRAMS] = {
        [HISTOGRAM_LATENCY] = {"request_latency_seconds", "e2e_request_latency_seconds", "from a request to its end"},
        [HISTOGRAM_FIRST] = {"time_to_first_token_seconds", "time_to_first_token_seconds",
                             "from a request to its first token"},
        [HISTOGRAM_DECODE] = {"request_decode_seconds", "request_decode_time_seconds",
                              "from the first token to the end"},
        [HISTOGRAM_PROMPT] = {"request_prefill_seconds", "request_prefill_time_seconds", "reading a prompt"},
        [HISTOGRAM_TOKEN] = {"tpot_seconds", "time_per_output_token_seconds", "a token after the first"},
    };
    struct state st;
    char *text = NULL;
    size_t bytes = 0;
    struct page page = {open_memstream(&text, &bytes), x->server->options.name};
    if (!page.file) {
        exchange_error(x, 500, NULL, NULL, NULL, "no memory for the page");
        return;
    }
    look(x->server, &st);
    gauges(&page, &st);
    counters(&page, &st);
    cache(&page, &st.host.engine.cache);
    for (size_t i = 0; i < 2; i++)
        ends(&page, prefixes[i], &st.metrics);
    for (int i = 0; i < HISTOGRAMS; i++) {
        histogram(&page, prefixes[0], names[i].name, names[i].help, &st.metrics.histogram[i]);
        histogram(&page, prefixes[1], names[i].name, names[i].help, &st.metrics.histogram[i]);
        histogram(&page, "vllm:", names[i].vllm, names[i].help, &st.metrics.histogram[i]);
    }
    fclose(page.file);
    exchange_text(x, 200, "text/plain; version=0.0.4; charset=utf-8", text, bytes);
    free(text);
}

// ---- /memory -------------------------------------------------------------------------------------------------------------------

// Bytes of a line such as "VmHWM:   1234 kB" of /proc/self/status, or -1.
static int64_t status_bytes(const char *name)
{
    char line[160];
    long long kilobytes = -1;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && kilobytes < 0 && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)) && sscanf(line + strlen(name), ": %lld", &kilobytes) != 1)
            kilobytes = -1;
    if (file)
        fclose(file);
    return kilobytes < 0 ? -1 : kilobytes * 1024;
}

void memory_handle(struct exchange *x)
{
    struct state st;
    look(x->server, &st);
    const struct engine_counters *e = &st.host.engine;
    if (!strcmp(x->query, "1")) {
        FILE *file = fopen("/proc/self/clear_refs", "we");
        if (file) {
            fputs("5", file);
            fclose(file);
        }
    }
    exchange_json(x, 200,
                  json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "grammar_bytes",
                            (json_int_t)structured_bytes(x->server->structured), "weight_bytes",
                            (json_int_t)model.weight_bytes, "arena_bytes", (json_int_t)model.arena_bytes, "pool_bytes",
                            (json_int_t)(e->pages * e->page_bytes), "pool_bytes_claimed",
                            (json_int_t)(e->pages_claimed * e->page_bytes), "pool_bytes_most",
                            (json_int_t)(e->pages_most * e->page_bytes), "cache_bytes", (json_int_t)e->cache.bytes,
                            "graph_bytes", (json_int_t)e->graph_bytes, "host_resident_bytes",
                            (json_int_t)status_bytes("VmRSS"), "host_peak_bytes", (json_int_t)status_bytes("VmHWM")));
}
