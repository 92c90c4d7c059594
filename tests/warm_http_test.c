// SPDX-License-Identifier: Apache-2.0
//
// Kept prompts over HTTP, with the embedded model: the next turn begins behind the reply once the server was quiet, an
// edited one at the edit, another process where the last one ended; and each reply has the token ids that it has
// without a cache. With a template that has reasoning: what a reply says that it read from the cache when its reasoning
// was cut short and it went on.

#include "tests/http.h"
#include "tests/tap.h"

#include <sys/stat.h>

enum { TALK = 8192 };

static const char first[] =
    "{\"role\": \"user\", \"content\": \"What does the tar command do? Please explain what it is good for.\"}";
static const char second[] = ", {\"role\": \"user\", \"content\": \"And how do I list the files in an archive?\"}";
static const char edited[] = ", {\"role\": \"user\", \"content\": \"And what about gzip, the other command?\"}";

struct turn {
    int status, prompt, cached, reasoned;
    char text[2048], sha[80]; // as JSON; of its token ids
};

// budget: most tokens of reasoning.
static struct turn ask_within(int port, const char *messages, int budget)
{
    char body[TALK + 200];
    struct turn t = {0};
    snprintf(body, sizeof body, "{\"messages\": [%s], \"max_tokens\": 24, \"temperature\": 0, \"thinking_budget\": %d}",
             messages, budget);
    struct reply r = http_ask(port, "/v1/chat/completions", body);
    t.status = r.status;
    t.prompt = atoi(json_at(r.body.data, "usage.prompt_tokens"));
    t.cached = atoi(json_at(r.body.data, "usage.prompt_tokens_details.cached_tokens"));
    t.reasoned = atoi(json_at(r.body.data, "usage.completion_tokens_details.reasoning_tokens"));
    snprintf(t.text, sizeof t.text, "%s", json_at(r.body.data, "choices.0.message"));
    snprintf(t.sha, sizeof t.sha, "%s", json_at(r.body.data, "pianola.token_sha"));
    reply_free_all(&r);
    return t;
}

static struct turn ask(int port, const char *messages)
{
    return ask_within(port, messages, 1 << 20);
}

// A counter of /metrics, or -1.
static int metric(int port, const char *name)
{
    char line[120];
    struct reply r = http_get(port, "/metrics");
    snprintf(line, sizeof line, "\npianola:%s ", name);
    const char *at = r.body.data ? strstr(r.body.data, line) : NULL;
    const int found = at ? atoi(at + strlen(line)) : -1;
    reply_free_all(&r);
    return found;
}

static bool wait_for(int port, const char *name, int least)
{
    const double until = http_now() + REST_SECONDS;
    while (metric(port, name) < least && http_now() < until)
        http_sleep(0.02);
    return metric(port, name) >= least && server_rests(port);
}

static bool same(const struct turn *a, const struct turn *b)
{
    return a->status == 200 && b->status == 200 && a->sha[0] && !strcmp(a->sha, b->sha) && a->prompt == b->prompt;
}

// The embedded model with the template of another, whose prompts end in open reasoning. A reply whose reasoning is cut
// short is made in two parts, of which the second begins at the first one's state: that was not in the cache when the
// client asked.
static void budgets(const char *binary)
{
    const char *const none[] = {"--prompt-cache-gib", "0", "--context", "1024", "--quiet", NULL};
    const char *const kept[] = {"--prompt-cache-gib", "0.05", "--context", "1024", "--quiet", NULL};
    char detail[200];
    setenv("BINARY", binary, 1);
    struct served plain = serve_start(none), s = serve_start(kept);
    const struct turn right = ask_within(plain.port, first, 8), one = ask_within(s.port, first, 8),
                      again = ask_within(s.port, first, 8), whole = ask(s.port, first);
    snprintf(detail, sizeof detail, "%d of %d cached, then %d; %d and %d tokens of reasoning", one.cached, one.prompt,
             again.cached, one.reasoned, whole.reasoned);
    ok(same(&one, &right) && one.reasoned > 0 && one.reasoned < whole.reasoned && strcmp(one.sha, whole.sha),
       "a reply goes on after its budget of reasoning", detail);
    const struct turn least = ask_within(plain.port, first, 1);
    ok(one.reasoned == 8 && least.reasoned == 1, "and counts as many tokens of reasoning", detail);
    const struct turn nothing = ask_within(plain.port, first, 0);
    ok(nothing.reasoned == 0 && same(&nothing, &least), "a budget of nothing closes it at once and counts none",
       detail);
    ok(one.cached == 0 && right.cached == 0, "a first turn that went on read all of its prompt", detail);
    ok(same(&again, &right) && again.cached > 0 && again.cached <= one.prompt,
       "the same again, no more than its prompt", detail);
    serve_stop(&s);
    serve_stop(&plain);
}

int main(int argc, char **argv)
{
    char folder[64], talk[TALK], other[TALK], detail[200];
    snprintf(folder, sizeof folder, "build/tests/warm-http-%d", (int)getpid());
    const char *const none[] = {"--prompt-cache-gib", "0", "--context", "1024", "--quiet", NULL};
    const char *const kept[] = {
        "--prompt-cache-gib", "0.05", "--prompt-cache-disk", folder, "--context", "1024", "--quiet", NULL};
    struct served plain = serve_start(none), s = serve_start(kept);
    ok(plain.port && s.port, "two servers, one that keeps nothing", "");
    const struct turn one = ask(s.port, first), right = ask(plain.port, first);
    ok(same(&one, &right) && one.cached == 0 && right.cached == 0, "a first turn", "");
    ok(wait_for(s.port, "warm_passes_total", 1) && metric(plain.port, "warm_passes_total") == -1,
       "then a warm pass; none without a cache", "");
    snprintf(talk, sizeof talk, "%s, %s%s", first, one.text, second);
    snprintf(other, sizeof other, "%s, %s%s", first, one.text, edited);
    const struct turn two = ask(s.port, talk), right_two = ask(plain.port, talk);
    snprintf(detail, sizeof detail, "%d of %d cached, the turn before had %d", two.cached, two.prompt, one.prompt);
    ok(same(&two, &right_two) && two.cached > one.prompt && two.prompt - two.cached < 64,
       "the next turn begins behind the reply", detail);
    const struct turn again = ask(s.port, talk);
    ok(same(&again, &right_two) && again.cached >= two.prompt - 8, "the same again begins at its end", "");
    const struct turn three = ask(s.port, other), right_three = ask(plain.port, other);
    ok(same(&three, &right_three) && three.cached > one.prompt, "an edited message begins before it", "");
    ok(wait_for(s.port, "prompt_cache_disk_writes_total", 1), "states are written to the folder", "");
    serve_stop(&s);
    s = serve_start(kept);
    const struct turn later = ask(s.port, talk);
    snprintf(detail, sizeof detail, "%d of %d cached", later.cached, later.prompt);
    ok(same(&later, &right_two) && later.cached > one.prompt && metric(s.port, "prompt_cache_disk_reads_total") == 1,
       "another process begins where that one ended", detail);
    serve_stop(&s);
    serve_stop(&plain);
    char command[120];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ok(system(command) == 0, "the folder is away", "");
    const char *slash = argc ? strrchr(argv[0], '/') : NULL; // it lies beside this program
    snprintf(other, sizeof other, "%.*s/reasons", slash ? (int)(slash - argv[0]) : 1, slash ? argv[0] : ".");
    budgets(other);
    return done();
}
