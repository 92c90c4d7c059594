// SPDX-License-Identifier: Apache-2.0
//
// The folder of kept states as the engine sees it: its files, and the two transfers. See disk.h.

#include "runtime/cache/disk_state.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const double RATE_GUESS = 1e9, RATE_WEIGHT = 0.3; // bytes a second; weight of a new measurement

// ---- the files ---------------------------------------------------------------------------------------------------------------

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static bool named(const char *name)
{
    static const char digits[] = "0123456789abcdef";
    return strlen(name) == 49 && strspn(name, digits) == 16 && name[16] == '-' && strspn(name + 17, digits) == 32;
}

static void enter(struct disk *d, struct disk_entry *entry)
{
    entry->next = d->first;
    d->first = entry;
    d->counters.states += entry->ids != NULL;
    d->counters.bytes += entry->bytes;
}

static void leave(struct disk *d, struct disk_entry *entry)
{
    struct disk_entry **at = &d->first;
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    d->counters.states -= entry->ids != NULL;
    d->counters.bytes -= entry->bytes;
}

static void drop(struct disk *d, struct disk_entry *entry)
{
    leave(d, entry);
    disk_remove(d, entry);
}

void disk_refuse(struct disk *d, struct disk_entry *entry)
{
    d->counters.refused++;
    drop(d, entry);
}

// One file of the folder: of this build it is a state, of another it is bytes that go first.
static bool look_at(struct disk *d, const char *name, struct error *error)
{
    struct stat st;
    struct cache_file file = {.fd = -1};
    char ours[17];
    if (!named(name) || fstatat(d->folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
        return true;
    struct disk_entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return error_set(error, "no memory for the files of the prompt cache's folder");
    memcpy(entry->name, name, strlen(name) + 1);
    entry->bytes = st.st_size;
    entry->used = st.st_mtim.tv_sec * 1000000000ll + st.st_mtim.tv_nsec;
    snprintf(ours, sizeof ours, "%016llx", (unsigned long long)cache_shape_hash(&d->shape));
    const int fd = memcmp(name, ours, 16) == 0 ? openat(d->folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (fd >= 0 && cache_file_open(&file, fd, &d->shape, NULL)) {
        entry->ids = file.ids;
        entry->length = file.head.length;
        entry->follows = file.head.follows;
        file.ids = NULL;
        cache_file_close(&file);
    } else {
        d->counters.refused++;
    }
    enter(d, entry);
    return true;
}

static bool look_through(struct disk *d, struct error *error)
{
    const int copy = openat(d->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = copy >= 0 ? fdopendir(copy) : NULL;
    bool good = true;
    if (!list) {
        if (copy >= 0)
            close(copy);
        return error_set(error, "the prompt cache's folder cannot be read: %s", strerror(errno));
    }
    for (struct dirent *file = readdir(list); file && good; file = readdir(list))
        good = look_at(d, file->d_name, error);
    closedir(list);
    unlinkat(d->folder, disk_unfinished, 0); // of a process that ended in the middle of it
    return good;
}

static bool begins(const struct disk_entry *entry, const int32_t *ids)
{
    return !memcmp(entry->ids, ids, (size_t)entry->length * sizeof *ids);
}

struct disk_entry *disk_find(struct disk *d, const int32_t *ids, int most, int least)
{
    struct disk_entry *found = NULL;
    for (struct disk_entry *e = d->first; e; e = e->next)
        if (e->ids && e->length > least && e->length <= most && (!found || e->length > found->length) && begins(e, ids))
            found = e;
    return found;
}

static bool superseded(const struct disk *d, const struct disk_entry *x)
{
    for (const struct disk_entry *e = d->first; e; e = e->next)
        if (e->ids && e->length > x->length && begins(x, e->ids))
            return true;
    return false;
}

// Worth of a file, ascending: of no use, superseded, in use since.
static int worth(const struct disk *d, const struct disk_entry *e)
{
    return !e->ids ? 0 : superseded(d, e) ? 1 : 2;
}

// Removes files until `bytes` more fit; false when they never do.
static bool make_room(struct disk *d, int64_t bytes)
{
    while (d->counters.bytes + bytes > d->counters.budget) {
        struct disk_entry *worst = NULL;
        int least = 0;
        for (struct disk_entry *e = d->first; e; e = e->next) {
            if (e->users > 0)
                continue;
            const int value = worth(d, e);
            if (!worst || value < least || (value == least && e->used < worst->used)) {
                worst = e;
                least = value;
            }
        }
        if (!worst)
            return false;
        drop(d, worst);
    }
    return true;
}

// ---- open and close ----------------------------------------------------------------------------------------------------------

static bool take_folder(struct disk *d, const char *folder, struct error *error)
{
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return error_set(error, "%s: the prompt cache's folder cannot be made: %s", folder, strerror(errno));
    d->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->folder < 0)
        return error_set(error, "%s: cannot be opened: %s", folder, strerror(errno));
    d->lock = openat(d->folder, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (d->lock < 0)
        return error_set(error, "%s: cannot be written to: %s", folder, strerror(errno));
    return flock(d->lock, LOCK_EX | LOCK_NB) == 0 ||
           error_set(error, "%s: another process uses this folder; give each its own", folder);
}

bool disk_open(struct disk **out, const char *folder, int64_t budget, const struct cache_shape *shape,
               struct error *error)
{
    struct disk *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d)
        return error_set(error, "no memory for the prompt cache's folder");
    *d = (struct disk){.folder = -1, .lock = -1, .shape = *shape, .counters.budget = budget, .rate = RATE_GUESS};
    if (take_folder(d, folder, error) && look_through(d, error) && disk_start(d, error)) {
        make_room(d, 0);
        *out = d;
        return true;
    }
    disk_close(d);
    return false;
}

void disk_close(struct disk *d)
{
    if (!d)
        return;
    disk_stop(d);
    while (d->first) {
        struct disk_entry *entry = d->first;
        d->first = entry->next;
        free(entry->ids);
        free(entry);
    }
    if (d->lock >= 0)
        close(d->lock);
    if (d->folder >= 0)
        close(d->folder);
    free(d);
}

void disk_count(const struct disk *d, struct disk_counters *counters)
{
    *counters = d->counters;
}

double disk_rate(const struct disk *d)
{
    return d->rate;
}

// ---- reading -----------------------------------------------------------------------------------------------------------------

static void begin(struct transfer *t, const char *name, uint64_t blocks)
{
    memcpy(t->name, name, CACHE_FILE_NAME);
    t->blocks = blocks;
    t->put = t->taken = 0;
    t->seconds = 0;
    t->stage = TRANSFER_RUNS;
    pthread_cond_broadcast(&t->changed);
}

static uint64_t block_count(const struct disk *d, int length)
{
    return (uint64_t)((length - 1) / d->shape.page) + 1 + d->shape.run_pages;
}

bool disk_read_begin(struct disk *d, struct disk_entry *entry)
{
    struct transfer *t = &d->in;
    pthread_mutex_lock(&t->lock);
    const bool free_now = t->stage == TRANSFER_NONE && !d->reading;
    if (free_now)
        begin(t, entry->name, block_count(d, entry->length));
    pthread_mutex_unlock(&t->lock);
    if (free_now)
        d->reading = entry;
    return free_now;
}

enum disk_news disk_read_next(struct disk *d, double seconds, const void **block)
{
    struct transfer *t = &d->in;
    enum disk_news news = DISK_WAIT;
    pthread_mutex_lock(&t->lock);
    if (t->put == t->taken && t->taken < t->blocks && t->stage == TRANSFER_RUNS && seconds > 0)
        transfer_wait(t, seconds);
    *block = t->buffer[t->taken % DISK_BUFFERS];
    if (t->put > t->taken)
        news = DISK_BLOCK;
    else if (t->stage == TRANSFER_BAD)
        news = DISK_BAD;
    else if (t->taken == t->blocks)
        news = DISK_END;
    pthread_mutex_unlock(&t->lock);
    return news;
}

void disk_read_taken(struct disk *d)
{
    pthread_mutex_lock(&d->in.lock);
    d->in.taken++;
    pthread_cond_broadcast(&d->in.changed);
    pthread_mutex_unlock(&d->in.lock);
}

void disk_read_end(struct disk *d)
{
    struct transfer *t = &d->in;
    struct disk_entry *entry = d->reading;
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
    pthread_mutex_lock(&t->lock);
    const bool whole = t->taken == t->blocks && t->stage != TRANSFER_BAD;
    const double rate = (double)t->blocks * (double)d->shape.page_bytes / (t->seconds > 1e-9 ? t->seconds : 1e-9);
    t->stage = t->stage == TRANSFER_RUNS ? TRANSFER_LEFT : TRANSFER_NONE;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    d->reading = NULL;
    if (!whole)
        return;
    d->rate += RATE_WEIGHT * (rate - d->rate);
    d->counters.reads++;
    entry->used = now();
    utimensat(d->folder, entry->name, times, AT_SYMLINK_NOFOLLOW);
}

const char *disk_read_error(const struct disk *d)
{
    return d->in.error.text;
}

// ---- writing -----------------------------------------------------------------------------------------------------------------

bool disk_write_begin(struct disk *d, const int32_t *ids, int length, bool follows, bool *there)
{
    struct transfer *t = &d->out;
    const int64_t bytes =
        (int64_t)block_count(d, length) * (d->shape.page_bytes + 8) + length * 4ll + 3ll * CACHE_FILE_PAGE;
    char name[CACHE_FILE_NAME] = {0};
    cache_file_name(name, &d->shape, ids, length);
    *there = false;
    for (struct disk_entry *e = d->first; e && !*there; e = e->next)
        *there = !strcmp(e->name, name) && (e->follows || !follows);
    if (*there || bytes > d->counters.budget || disk_write_goes_on(d) || !make_room(d, bytes))
        return false;
    int32_t *copy = malloc((size_t)length * sizeof *ids);
    if (!copy)
        return false;
    memcpy(copy, ids, (size_t)length * sizeof *ids);
    pthread_mutex_lock(&t->lock);
    t->ids = copy;
    t->length = length;
    t->follows = follows;
    begin(t, name, block_count(d, length));
    pthread_mutex_unlock(&t->lock);
    return true;
}

void *disk_write_room(struct disk *d, double seconds)
{
    struct transfer *t = &d->out;
    void *buffer = NULL;
    pthread_mutex_lock(&t->lock);
    if (t->put - t->taken == DISK_BUFFERS && t->stage == TRANSFER_RUNS && seconds > 0)
        transfer_wait(t, seconds);
    if (t->stage == TRANSFER_RUNS && t->put < t->blocks && t->put - t->taken < DISK_BUFFERS)
        buffer = t->buffer[t->put % DISK_BUFFERS];
    pthread_mutex_unlock(&t->lock);
    return buffer;
}

void disk_write_put(struct disk *d)
{
    pthread_mutex_lock(&d->out.lock);
    d->out.put++;
    pthread_cond_broadcast(&d->out.changed);
    pthread_mutex_unlock(&d->out.lock);
}

void disk_write_abort(struct disk *d)
{
    struct transfer *t = &d->out;
    pthread_mutex_lock(&t->lock);
    if (t->stage == TRANSFER_RUNS && t->put < t->blocks)
        t->stage = TRANSFER_LEFT;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

// A file of the same name, whose place the new one has taken.
static void replaced(struct disk *d, const char *name)
{
    for (struct disk_entry *e = d->first; e; e = e->next)
        if (!strcmp(e->name, name)) {
            leave(d, e);
            free(e->ids);
            free(e);
            return;
        }
}

static void add_written(struct disk *d)
{
    struct transfer *t = &d->out;
    struct stat st;
    struct disk_entry *entry = calloc(1, sizeof *entry);
    if (!entry || fstatat(d->folder, t->name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        free(entry); // the next process finds it
        return;
    }
    replaced(d, t->name);
    memcpy(entry->name, t->name, sizeof entry->name);
    entry->ids = t->ids;
    entry->length = t->length;
    entry->follows = t->follows;
    entry->bytes = st.st_size;
    entry->used = now();
    t->ids = NULL;
    enter(d, entry);
    d->counters.writes++;
}

bool disk_write_goes_on(struct disk *d)
{
    struct transfer *t = &d->out;
    pthread_mutex_lock(&t->lock);
    const enum transfer_stage stage = t->stage;
    if (stage == TRANSFER_DONE || stage == TRANSFER_BAD)
        t->stage = TRANSFER_NONE;
    pthread_mutex_unlock(&t->lock);
    if (stage == TRANSFER_RUNS || stage == TRANSFER_LEFT)
        return true;
    if (stage == TRANSFER_DONE)
        add_written(d);
    else if (stage == TRANSFER_BAD && t->error.text[0]) // empty: it was given up
        fprintf(stderr, "prompt cache: %s; the prompt will be read again\n", t->error.text);
    free(t->ids);
    t->ids = NULL;
    return false;
}
