// SPDX-License-Identifier: Apache-2.0
//
// check: whether this machine computes what the build machine computed. Reference rows (logits of a fixed list of ids, made
// with portable kernels and one thread) lie in NAME.check beside the binary. Every instruction set of this machine must agree
// with them within a bound, and with itself bit for bit whatever the threads, the chunks and the drafts.

#include "kernels/cpu/isa.h"
#include "runtime/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IDS = 48, ROWS = 4, REPLY = 16, VERSION = 1 };

static const double BOUND = 1e-4; // norm of the difference over the norm of the reference

struct check_header {
    char magic[8];
    uint32_t version, ids, rows, vocabulary;
    uint64_t identity;
};

static const char MAGIC[8] = "PNLCHECK";

// Logits of the last ROWS positions and greedy ids, computed one way.
struct result {
    float *rows; // [ROWS][vocabulary]
    int taken;
    int32_t reply[REPLY + MAX_WINDOW];
};

static size_t rows_bytes(void)
{
    return (size_t)ROWS * (size_t)model.vocabulary * sizeof(float);
}

static void make_ids(int32_t ids[IDS])
{
    for (int i = 0; i < IDS; i++) {
        uint64_t any = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
        ids[i] = (int32_t)((any ^ any >> 31) % (uint64_t)model.vocabulary);
    }
}

static void take_row(void *user, int position, const float *logits)
{
    struct result *r = user;
    (void)position;
    if (r->taken < ROWS)
        memcpy(r->rows + (size_t)r->taken * (size_t)model.vocabulary, logits,
               (size_t)model.vocabulary * sizeof *logits);
    r->taken++;
}

// Runs the list in chunks and continues it greedily. r->rows is the caller's.
static bool compute(struct engine *engine, int chunk, int drafts, struct result *r, struct error *error)
{
    int32_t ids[IDS];
    make_ids(ids);
    struct stream_options options = {.sampling = {.top_p = 1}, .drafts = drafts};
    struct stream *stream = NULL;
    r->taken = 0;
    bool ok = stream_open(engine, &stream, &options, error) &&
              stream_prompt(stream, ids, IDS, chunk, ROWS, take_row, r, error);
    for (int made = 0, count = 0; ok && made < REPLY; made += count) {
        ok = stream_next(stream, r->reply + made, &count, error);
        if (ok && !count)
            ok = error_set(error, "the context is full after %d tokens; raise --context", made);
    }
    stream_close(stream);
    if (ok && r->taken != ROWS)
        ok = error_set(error, "expected %d rows of logits, found %d", ROWS, r->taken);
    return ok;
}

static bool open_with(struct engine **engine, const struct settings *s, const char *isa, int threads,
                      struct error *error)
{
    struct engine_options options = cli_engine_options(s);
    options.isa = isa;
    options.threads = threads;
    options.lanes = 1;
    options.quiet = true;
    if (!options.context) {
        int need = IDS + REPLY + 2 * MAX_WINDOW;
        options.context = need < model.max_context ? need : model.max_context;
    }
    return engine_open(engine, &options, error);
}

// ---- the file of reference rows -----------------------------------------------------------------------------------------

static struct check_header header_expected(void)
{
    struct check_header h = {.version = VERSION,
                             .ids = IDS,
                             .rows = ROWS,
                             .vocabulary = (uint32_t)model.vocabulary,
                             .identity = model.identity};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    return h;
}

static bool record(const struct settings *s, struct error *error)
{
    struct result r = {.rows = malloc(rows_bytes())};
    struct engine *engine = NULL;
    struct output output = {0};
    struct check_header h = header_expected();
    bool ok = r.rows || error_set(error, "no memory for the reference rows");
    ok = ok && output_open(&output, s->record, error) && open_with(&engine, s, "portable", 1, error) &&
         compute(engine, 0, 0, &r, error);
    if (ok &&
        (fwrite(&h, sizeof h, 1, output.file) != 1 || fwrite(r.rows, 1, rows_bytes(), output.file) != rows_bytes()))
        ok = error_set(error, "%s: cannot be written; is the disk full?", s->record);
    ok = ok && output_commit(&output, error);
    output_abandon(&output);
    engine_close(engine);
    free(r.rows);
    return ok;
}

// The stored rows, malloc'd; NULL with an error.
static float *stored_rows(const struct settings *s, struct error *error)
{
    char path[4096], *text = NULL;
    size_t bytes = 0, expected = sizeof(struct check_header) + rows_bytes();
    if (!s->rows && !cli_beside(path, sizeof path, ".check", error))
        return NULL;
    const char *name = s->rows ? s->rows : path;
    if (!cli_read_file(name, expected + 1, &text, &bytes, error)) {
        size_t used = strlen(error->text);
        snprintf(error->text + used, sizeof error->text - used, "; make it with check --record FILE");
        return NULL;
    }
    struct check_header h = header_expected();
    float *rows = NULL;
    if (bytes < sizeof h || memcmp(text, MAGIC, sizeof MAGIC))
        error_set(error, "%s: not a file of reference rows; make it with check --record FILE", name);
    else if (memcmp(text, &h, sizeof h))
        error_set(error, "%s: made by another build of the model; make it again with check --record FILE", name);
    else if (bytes != expected)
        error_set(error, "%s: expected %zu bytes, found %zu; make it again with check --record FILE", name, expected,
                  bytes);
    else if ((rows = malloc(rows_bytes())))
        memcpy(rows, text + sizeof h, rows_bytes());
    else
        error_set(error, "no memory for the reference rows");
    free(text);
    return rows;
}

// ---- comparing ----------------------------------------------------------------------------------------------------------

static double distance(const float *rows, const float *reference)
{
    double difference = 0, norm = 0;
    size_t count = rows_bytes() / sizeof *rows;
    for (size_t i = 0; i < count; i++) {
        double d = (double)rows[i] - (double)reference[i];
        difference += d * d;
        norm += (double)reference[i] * (double)reference[i];
    }
    return norm > 0 ? sqrt(difference / norm) : difference > 0 ? INFINITY : 0;
}

// The ways that must not change a bit; the first is the one that others are compared with.
static const struct way {
    int threads, chunk, drafts;
} ways[] = {{1, 0, 0}, {1, 1, 0}, {1, 7, -1}, {2, 0, -1}, {2, 1, 0}, {2, 7, 0}};

enum { WAYS = sizeof ways / sizeof *ways };

// Checks one instruction set and prints its line. *agrees is the verdict; false: it could not be run at all.
static bool check_isa(const struct settings *s, const char *isa, const float *reference, bool *agrees,
                      struct error *error)
{
    struct result first = {.rows = malloc(rows_bytes())}, other = {.rows = malloc(rows_bytes())};
    struct engine *engine = NULL;
    int threads = 0, unequal = 0;
    double far = 0;
    bool ok = (first.rows && other.rows) || error_set(error, "no memory for rows of logits");
    for (int i = 0; ok && i < WAYS; i++) {
        const struct way *way = &ways[i];
        struct result *r = i ? &other : &first;
        if (way->threads != threads) {
            engine_close(engine);
            engine = NULL;
            ok = open_with(&engine, s, isa, threads = way->threads, error);
        }
        ok = ok && compute(engine, way->chunk, way->drafts, r, error);
        if (!ok)
            break;
        if (i == 0)
            far = distance(r->rows, reference);
        else if (memcmp(r->rows, first.rows, rows_bytes()) || memcmp(r->reply, first.reply, REPLY * sizeof *r->reply))
            printf("%-9s differs from itself with %d thread%s, chunks of %d, drafts %s\n", isa, way->threads,
                   plural(way->threads), way->chunk ? way->chunk : IDS, way->drafts ? "on" : "off"),
                unequal++;
    }
    engine_close(engine);
    free(first.rows);
    free(other.rows);
    if (!ok)
        return false;
    bool near = far <= BOUND; // false for NaN
    printf("%-9s distance from the reference %.1e (bound %.0e) %s; %d of %d ways equal bit for bit %s\n", isa, far,
           BOUND, near ? "ok" : "FAILED", WAYS - 1 - unequal, WAYS - 1, unequal ? "FAILED" : "ok");
    *agrees = *agrees && near && !unequal;
    return true;
}

static int check_run(const struct settings *settings, struct error *error)
{
    if (settings->record)
        return record(settings, error) ? 0 : EXIT_BAD;
    float *reference = stored_rows(settings, error);
    bool agrees = true, ok = reference != NULL;
    for (int i = ISA_COUNT - 1; ok && i >= 0; i--) {
        if (settings->isa ? strcmp(settings->isa, isa_names[i]) != 0 : !isa_available(isa_names[i]))
            continue;
        ok = check_isa(settings, isa_names[i], reference, &agrees, error);
    }
    free(reference);
    return !ok ? EXIT_BAD : agrees ? 0 : 1;
}

const struct command command_check = {
    .name = "check",
    .synopsis = "[--rows FILE] [--isa NAME] | --record FILE",
    .summary = "re-runs stored reference rows on this machine; exit code 1 when it disagrees",
    .notes = "Each instruction set of this machine is compared with the stored rows within a bound, and with itself "
             "bit for bit\n"
             "over threads 1 and 2, chunks of 1, 7 and all rows, and drafts on and off.",
    .flags = (ENGINE_FLAGS & ~FLAG_BIT(FLAG_THREADS)) | FLAG_BIT(FLAG_RECORD) | FLAG_BIT(FLAG_ROWS),
    .run = check_run,
};
