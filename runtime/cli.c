// SPDX-License-Identifier: Apache-2.0
//
// What the commands share. Invariant: no output file is seen half written, whatever fails.

#define _GNU_SOURCE // fopen "e", readlink
#include "runtime/cli.h"
#include "kernels/cpu/isa.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct engine_options cli_engine_options(const struct settings *settings)
{
    return (struct engine_options){
        .pack = settings->pack,
        .isa = settings->isa,
        .threads = (int)settings->threads,
        .context = (int)settings->context,
        .lanes = (int)settings->lanes,
        .page = (int)settings->page,
        .page_order = settings->page_order,
        .kv_cache = settings->kv_cache,
        .map = settings->map,
        .synthetic = settings->weights && !strcmp(settings->weights, "synthetic"),
        .pool_pages = (int)settings->pool_pages,
        .round_rows = (int)settings->round_rows,
        .solo_chunk = (int)settings->solo_chunk,
        .busy_chunk = (int)settings->busy_chunk,
        .decode_share = settings->decode_share > 0 ? (float)settings->decode_share : -1,
        .no_drafts = settings->no_drafts,
        .eager = settings->eager,
        .quiet = settings->quiet,
    };
}

const char *cli_isa(const struct settings *settings)
{
    if (settings->isa)
        return settings->isa;
    for (int i = 0; i < ISA_COUNT; i++)
        if (isa_available(isa_names[i]))
            return isa_names[i];
    return "portable";
}

double cli_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- input ----------------------------------------------------------------------------------------------------------

static bool read_stream(FILE *file, const char *path, size_t limit, char **text, size_t *bytes, struct error *error)
{
    size_t size = 0, capacity = 1 << 16;
    char *buffer = malloc(capacity);
    while (buffer) {
        size_t got = fread(buffer + size, 1, capacity - size - 1, file);
        size += got;
        if (size > limit || !got)
            break;
        if (capacity - size < 2) {
            char *larger = capacity > SIZE_MAX / 2 ? NULL : realloc(buffer, capacity *= 2);
            if (!larger)
                free(buffer);
            buffer = larger;
        }
    }
    if (!buffer)
        return error_set(error, "%s: no memory to read it", path);
    if (ferror(file) || size > limit) {
        free(buffer);
        return ferror(file) ? error_set(error, "%s: cannot be read: %s", path, strerror(errno))
                            : error_set(error, "%s: more than %zu bytes", path, limit);
    }
    buffer[size] = '\0';
    *text = buffer;
    *bytes = size;
    return true;
}

bool cli_read_file(const char *path, size_t limit, char **text, size_t *bytes, struct error *error)
{
    if (!strcmp(path, "-"))
        return read_stream(stdin, "standard input", limit, text, bytes, error);
    FILE *file = fopen(path, "re");
    struct stat status;
    if (!file)
        return error_set(error, "%s: cannot be opened: %s", path, strerror(errno));
    bool ok;
    if (!fstat(fileno(file), &status) && S_ISDIR(status.st_mode))
        ok = error_set(error, "%s: expected a file, found a directory", path);
    else
        ok = read_stream(file, path, limit, text, bytes, error);
    fclose(file);
    return ok;
}

static bool separator(char c)
{
    return c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

bool cli_parse_ids(const char *text, size_t bytes, const char *where, int32_t vocabulary, int32_t **ids, int *count,
                   struct error *error)
{
    if (bytes > INT_MAX)
        return error_set(error, "%s: more than %d bytes of ids", where, INT_MAX);
    int32_t *list = malloc((bytes / 2 + 1) * sizeof *list);
    if (!list)
        return error_set(error, "%s: no memory for the ids", where);
    int found = 0;
    bool comma = false, lacks = false; // a comma stands between two ids
    for (size_t i = 0; i < bytes && !lacks;) {
        if (separator(text[i])) {
            lacks = text[i] == ',' && (comma || !found);
            comma = comma || text[i] == ',';
            i++;
            continue;
        }
        size_t first = i;
        int64_t id = 0;
        for (; i < bytes && text[i] >= '0' && text[i] <= '9'; i++)
            id = id > INT32_MAX ? id : id * 10 + (text[i] - '0');
        bool number = i > first && (i == bytes || separator(text[i]));
        if (!number || id >= vocabulary) {
            while (i < bytes && !separator(text[i]))
                i++;
            int shown = i - first < 40 ? (int)(i - first) : 40;
            free(list);
            return error_set(error, "%s: id number %d: expected an id from 0 to %d, found \"%.*s\"", where, found + 1,
                             vocabulary - 1, shown, text + first);
        }
        list[found++] = (int32_t)id;
        comma = false;
    }
    if (lacks || comma) {
        free(list);
        return error_set(error, "%s: id number %d: expected an id from 0 to %d beside the comma, found none", where,
                         found + 1, vocabulary - 1);
    }
    *ids = list;
    *count = found;
    return true;
}

// ---- output ---------------------------------------------------------------------------------------------------------

bool output_open(struct output *output, const char *path, struct error *error)
{
    struct stat status;
    *output = (struct output){.path = path};
    if (!stat(path, &status) && !S_ISREG(status.st_mode)) {
        output->file = fopen(path, "we");
    } else {
        int length = snprintf(output->temporary, sizeof output->temporary, "%s.%ld.part", path, (long)getpid());
        if (length < 0 || length >= (int)sizeof output->temporary)
            return error_set(error, "%.60s...: the name is too long", path);
        output->file = fopen(output->temporary, "wxe");
    }
    if (!output->file)
        return error_set(error, "%s: cannot be written: %s", path, strerror(errno));
    return true;
}

void output_abandon(struct output *output)
{
    if (!output->file)
        return;
    fclose(output->file);
    output->file = NULL;
    if (*output->temporary)
        unlink(output->temporary);
}

bool output_commit(struct output *output, struct error *error)
{
    bool ok = !fflush(output->file) && !ferror(output->file);
    if (!ok) {
        error_set(error, "%s: cannot be written: %s", output->path, strerror(errno));
        output_abandon(output);
        return false;
    }
    fclose(output->file);
    output->file = NULL;
    if (*output->temporary && rename(output->temporary, output->path)) {
        error_set(error, "%s: cannot be renamed to: %s", output->path, strerror(errno));
        unlink(output->temporary);
        return false;
    }
    return true;
}

bool cli_flush(struct error *error)
{
    if (fflush(stdout) || ferror(stdout))
        return error_set(error, "standard output cannot be written: %s", strerror(errno));
    return true;
}

const char *cli_bytes(char *buffer, int64_t bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 999.95 && unit < 4) {
        value /= 1000;
        unit++;
    }
    snprintf(buffer, 24, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return buffer;
}

bool cli_beside(char *buffer, size_t size, const char *suffix, struct error *error)
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return error_set(error, "/proc/self/exe: cannot be read: %s; name the file by a flag", strerror(errno));
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    int directory = slash ? (int)(slash - path) : 0;
    int wrote = snprintf(buffer, size, "%.*s/%s%s", directory, path, model.name, suffix);
    if (wrote < 0 || (size_t)wrote >= size)
        return error_set(error, "%s: the path is too long", path);
    return true;
}
