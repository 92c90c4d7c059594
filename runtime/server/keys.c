// SPDX-License-Identifier: Apache-2.0
//
// The key file; see keys.h. Invariant: how long a look-up takes says nothing about the keys.

#include "runtime/server/keys.h"
#include "runtime/server/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEYS_MOST = 256, LABEL_MOST = 63, LINE_MOST = 1024 };

struct key {
    char label[LABEL_MOST + 1];
    uint8_t digest[32];
};

struct table {
    int count;
    struct key key[KEYS_MOST];
};

struct keys {
    pthread_mutex_t lock;
    char *path;
    struct table table;
};

static void digest(const char *text, uint8_t out[32])
{
    struct sha256 hash;
    sha256_begin(&hash);
    sha256_add(&hash, text, strlen(text));
    sha256_end(&hash, out);
}

// One line: empty, a comment, or `label: key`.
static bool read_line(struct table *t, const char *path, int number, char *line, struct error *error)
{
    line[strcspn(line, "\r\n")] = '\0';
    char *label = line + strspn(line, " \t");
    if (!*label || *label == '#')
        return true;
    char *colon = strchr(label, ':');
    char *key = colon ? colon + 1 + strspn(colon + 1, " \t") : NULL;
    if (!key || colon == label || colon - label > LABEL_MOST || !*key || key[strcspn(key, " \t")])
        return error_set(error, "%s: line %d: \"label: key\" is expected, the key without blanks", path, number);
    for (const char *c = label; c < colon; c++) // it is printed in logs and metrics
        if ((unsigned char)*c < '!' || (unsigned char)*c > '~' || *c == '"' || *c == '\\')
            return error_set(
                error, "%s: line %d: a label is of letters, digits and signs but for quotes, blanks and backslashes",
                path, number);
    if (t->count == KEYS_MOST)
        return error_set(error, "%s: more than %d keys", path, KEYS_MOST);
    struct key *k = &t->key[t->count++];
    snprintf(k->label, sizeof k->label, "%.*s", (int)(colon - label), label);
    digest(key, k->digest);
    return true;
}

// Opens a file that nobody else may read, and that can be read again; nothing that a reader would wait for. NULL: error says why.
static FILE *open_file(const char *path, struct error *error)
{
    struct stat status;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool opened = fd >= 0 && !fstat(fd, &status);
    FILE *file = NULL;
    if (!opened)
        error_set(error, "%s: cannot be opened: %s", path, strerror(errno));
    else if (!S_ISREG(status.st_mode))
        error_set(error, "%s: it is no file; one that SIGHUP can read again is expected", path);
    else if (status.st_mode & 077)
        error_set(error, "%s: others may read it (mode %03o); run: chmod 600 %s", path, status.st_mode & 0777, path);
    else if (!(file = fdopen(fd, "r")))
        error_set(error, "%s: cannot be opened: %s", path, strerror(errno));
    if (!file && fd >= 0)
        close(fd);
    return file;
}

static bool read_file(struct table *t, const char *path, struct error *error)
{
    char line[LINE_MOST];
    FILE *file = open_file(path, error);
    bool ok = file != NULL;
    for (int number = 1; ok && fgets(line, sizeof line, file); number++)
        ok = (strlen(line) + 1 < sizeof line && (strchr(line, '\n') || feof(file))) // else it goes on, or has a NUL
                 ? read_line(t, path, number, line, error)
                 : error_set(error, "%s: line %d: at most %d bytes of text are expected", path, number, LINE_MOST - 2);
    if (file)
        fclose(file);
    explicit_bzero(line, sizeof line);
    return ok && (t->count || error_set(error, "%s: it has no key; write \"label: key\" lines", path));
}

bool keys_open(struct keys **out, const char *path, struct error *error)
{
    struct keys *k = calloc(1, sizeof *k);
    *out = NULL;
    if (!k || !(k->path = strdup(path))) {
        free(k);
        return error_set(error, "no memory for the keys");
    }
    if (!read_file(&k->table, path, error)) {
        free(k->path);
        free(k);
        return false;
    }
    pthread_mutex_init(&k->lock, NULL);
    *out = k;
    return true;
}

void keys_close(struct keys *k)
{
    if (!k)
        return;
    pthread_mutex_destroy(&k->lock);
    free(k->path);
    explicit_bzero(k, sizeof *k);
    free(k);
}

bool keys_reload(struct keys *k, struct error *error)
{
    struct table *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(error, "no memory for the keys");
    bool ok = read_file(t, k->path, error);
    if (ok) {
        pthread_mutex_lock(&k->lock);
        k->table = *t;
        pthread_mutex_unlock(&k->lock);
    }
    free(t);
    return ok;
}

bool keys_find(struct keys *k, const char *key, char *label, size_t size)
{
    uint8_t given[32];
    int found = -1;
    digest(key, given);
    pthread_mutex_lock(&k->lock);
    for (int i = 0; i < k->table.count; i++) {
        uint8_t differs = 0;
        for (int j = 0; j < 32; j++)
            differs |= given[j] ^ k->table.key[i].digest[j];
        found = differs ? found : i;
    }
    if (found >= 0)
        snprintf(label, size, "%s", k->table.key[found].label);
    pthread_mutex_unlock(&k->lock);
    return found >= 0;
}
