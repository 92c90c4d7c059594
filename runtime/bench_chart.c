// SPDX-License-Identifier: Apache-2.0
//
// bench's charts: time of each kernel of a run, and two saved runs side by side by groups of kernels.
// Groups are those of this program whatever wrote the files, so that runs of two versions can be compared.

#include "runtime/bench.h"
#include "runtime/cli.h"

#include <stdlib.h>
#include <string.h>

void bench_print_chart(const struct bench *b)
{
    struct bench_row rows[BENCH_ROWS];
    const struct bench_part round = bench_round(b);
    const int count = bench_rows(&round, false, rows);
    bench_sort(rows, count);
    printf(
        "# gnuplot reads this and writes an SVG to standard output.\n"
        "set terminal svg size 900,%d font 'sans-serif,12'\n"
        "set title \"%s on %s: %.0f us in kernels a round, launches one by one\" noenhanced\n"
        "set style fill solid 0.7\nset xlabel 'microseconds'\nset yrange [%d.5:-0.5]\nset ytics noenhanced\nunset key\n"
        "$time << END\n",
        120 + 24 * count, model.name, engine_isa(b->engine), b->kernel_seconds * 1e6, count - 1);
    for (int i = 0; i < count; i++)
        printf("%.1f \"%s, %d\"\n", rows[i].seconds * 1e6, rows[i].op, rows[i].launches);
    printf("END\nplot $time using ($1/2):0:($1/2):(0.35):ytic(2) with boxxyerror\n");
}

// ---- saved runs ---------------------------------------------------------------------------------------------------------------

enum { FILE_MOST = 1 << 24, BARS = 24, BAR_WIDTH = 48 };

// Groups of a part of a run, and how long that part takes as it runs, its launches overlapping.
struct part {
    struct bench_row group[BENCH_ROWS];
    int count;
    double whole;
};

struct saved {
    json_t *root;
    const char *name;
    int prompt; // tokens
    struct part round, read;
};

static bool unfit(const char *path, const char *what, struct error *error)
{
    return error_set(error, "%s: %s; expected what bench --json prints", path, what);
}

// The groups of a list of kernels.
static bool read_part(const json_t *kernels, const char *path, struct part *part, struct error *error)
{
    struct bench_row rows[BENCH_ROWS];
    size_t i;
    json_t *kernel;
    int count = 0;
    json_array_foreach(kernels, i, kernel)
    {
        const char *op = json_string_value(json_object_get(kernel, "op"));
        const json_t *seconds = json_object_get(kernel, "seconds"), *launches = json_object_get(kernel, "launches");
        const double value = json_number_value(seconds);
        if (!op || !json_is_number(seconds) || !json_is_integer(launches) || !(value >= 0 && value < 1e6) ||
            count == BENCH_ROWS)
            return unfit(path, "a kernel without op, launches or seconds", error);
        const json_int_t number = json_integer_value(launches);
        rows[count++] = (struct bench_row){
            .op = op, .launches = number > 0 && number < 1 << 24 ? (int)number : 1, .seconds = value};
    }
    part->count = bench_groups(rows, count, part->group);
    return true;
}

// Seconds of so many tokens at a saved rate; 0: the file does not say.
static double seconds_of(const json_t *root, const char *rate, double tokens)
{
    const double median = json_number_value(json_object_get(json_object_get(root, rate), "median"));
    return median > 0 ? tokens / median : 0;
}

static bool read_saved(struct saved *s, const char *path, struct error *error)
{
    char *text = NULL;
    size_t bytes = 0;
    if (!cli_read_file(path, FILE_MOST, &text, &bytes, error))
        return false;
    json_error_t cause;
    s->root = json_loadb(text, bytes, 0, &cause);
    free(text);
    const json_t *kernels = json_object_get(s->root, "kernels"), *prompt = json_object_get(s->root, "prompt");
    s->name = json_string_value(json_object_get(s->root, "name"));
    if (!s->root)
        return unfit(path, "not JSON", error);
    if (!s->name || json_array_size(kernels) == 0)
        return unfit(path, "no name or no kernels in it", error);
    s->prompt = json_is_integer(prompt) ? (int)json_integer_value(prompt) : 0;
    s->round.whole = seconds_of(s->root, "decode_tokens_per_second", 1);
    s->read.whole = seconds_of(s->root, "prompt_tokens_per_second", s->prompt);
    return read_part(kernels, path, &s->round, error) &&
           read_part(json_object_get(s->root, "prompt_kernels"), path, &s->read, error);
}

// ---- two runs -----------------------------------------------------------------------------------------------------------------

struct bar {
    const char *name;
    double before, after; // seconds
};

static const struct bench_row *group_in(const struct part *part, const char *name)
{
    for (int i = 0; i < part->count; i++)
        if (!strcmp(part->group[i].op, name))
            return &part->group[i];
    return NULL;
}

static double seconds_in(const struct part *part, const char *name)
{
    const struct bench_row *group = group_in(part, name);
    return group ? group->seconds : 0;
}

static int longest(const void *a, const void *b)
{
    const struct bar *x = a, *y = b;
    const double p = x->before > x->after ? x->before : x->after, q = y->before > y->after ? y->before : y->after;
    return (p < q) - (p > q);
}

// The groups of either run, the longest first, then the whole as it runs.
static int make_bars(const struct part *before, const struct part *after, struct bar bars[BARS])
{
    const struct part *both[] = {before, after};
    int count = 0;
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < both[p]->count; i++) {
            const char *name = both[p]->group[i].op;
            if (count < BARS - 1 && (p == 0 || !group_in(before, name)))
                bars[count++] = (struct bar){name, seconds_in(before, name), seconds_in(after, name)};
        }
    qsort(bars, (size_t)count, sizeof *bars, longest);
    if (before->whole > 0 && after->whole > 0)
        bars[count++] = (struct bar){"as it runs", before->whole, after->whole};
    return count;
}

static void print_bar(const char *name, double seconds, double most, char mark)
{
    char bar[BAR_WIDTH + 1];
    const int length = (int)(seconds / most * BAR_WIDTH + 0.5);
    memset(bar, mark, (size_t)length);
    bar[length] = '\0';
    printf("  %-16s %10.1f %s\n", name, seconds * 1e6, bar);
}

static void text_part(const char *title, const struct bar *bars, int count)
{
    double most = 0, before = 0, after = 0;
    for (int i = 0; i < count; i++) {
        const bool whole = !strcmp(bars[i].name, "as it runs");
        most = bars[i].before > most ? bars[i].before : most;
        most = bars[i].after > most ? bars[i].after : most;
        before += whole ? 0 : bars[i].before;
        after += whole ? 0 : bars[i].after;
    }
    printf("%s, us: launches one by one %.1f before (=), %.1f after (#)\n", title, before * 1e6, after * 1e6);
    for (int i = 0; i < count && most > 0; i++) {
        print_bar(bars[i].name, bars[i].before, most, '=');
        print_bar("", bars[i].after, most, '#');
    }
}

static void chart_part(const char *title, const struct bar *bars, int count)
{
    printf("set title \"%s\" noenhanced\n$time << END\n", title);
    for (int i = 0; i < count; i++)
        printf("\"%s\" %.1f %.1f\n", bars[i].name, bars[i].before * 1e6, bars[i].after * 1e6);
    printf("END\nplot $time using 2:xtic(1) title 'before', '' using 3 title 'after'\n");
}

static void print_both(const struct saved *before, const struct saved *after, bool prompts, bool gnuplot)
{
    char title[96];
    struct bar bars[BARS];
    int count = make_bars(&before->round, &after->round, bars);
    if (gnuplot)
        printf("# gnuplot reads this and writes an SVG to standard output.\n"
               "set terminal svg size %d,400 font 'sans-serif,12'\nset style data histogram\n"
               "set style histogram clustered\nset style fill solid 0.7\nset ylabel 'microseconds'\n"
               "set yrange [0:*]\nset xtics rotate by -30 noenhanced\nset multiplot layout 1,%d\n",
               prompts ? 1200 : 700, prompts ? 2 : 1);
    else
        printf("before: %s, after: %s\n", before->name, after->name);
    (gnuplot ? chart_part : text_part)("a round", bars, count);
    if (prompts) {
        snprintf(title, sizeof title, "a prompt of %d tokens", before->prompt);
        count = make_bars(&before->read, &after->read, bars);
        (gnuplot ? chart_part : text_part)(title, bars, count);
    }
    if (gnuplot)
        printf("unset multiplot\n");
}

bool bench_compare(const char *before, const char *after, bool gnuplot, struct error *error)
{
    struct saved one = {0}, two = {0};
    bool ok = read_saved(&one, before, error) && read_saved(&two, after, error);
    const bool prompts = ok && one.read.count > 0 && two.read.count > 0;
    if (prompts && one.prompt != two.prompt)
        ok = error_set(error, "--before and --after: prompts of %d and %d tokens; run both with one --prompt",
                       one.prompt, two.prompt);
    if (ok)
        print_both(&one, &two, prompts, gnuplot);
    json_decref(one.root);
    json_decref(two.root);
    return ok && cli_flush(error);
}
