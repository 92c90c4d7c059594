// SPDX-License-Identifier: Apache-2.0
//
// The two threads of the folder: one reads blocks and verifies them, one writes blocks, finishes files and removes others.
// Invariant: a transfer's thread alone touches its file; a block is published under the lock once its buffer is whole.

#include "runtime/cache/disk_state.h"
#include "runtime/device.h"
#include "runtime/engine.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char disk_unfinished[] = "unfinished";

void transfer_wait(struct transfer *t, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_cond_timedwait(&t->changed, &t->lock, &until);
}

// The lock is held, also on return; it is open meanwhile.
static void end_transfer(struct transfer *t, bool good, const struct error *error)
{
    t->error = *error;
    if (t->stage == TRANSFER_LEFT)
        t->stage = TRANSFER_NONE;
    else
        t->stage = good ? TRANSFER_DONE : TRANSFER_BAD;
    pthread_cond_broadcast(&t->changed);
}

// ---- reading -----------------------------------------------------------------------------------------------------------------

static bool read_block(struct transfer *t, const struct cache_file *file, uint64_t i, struct error *error)
{
    pthread_mutex_unlock(&t->lock);
    const double start = engine_seconds();
    const bool good = cache_file_block(file, i, t->buffer[i % DISK_BUFFERS], error);
    const double seconds = engine_seconds() - start;
    pthread_mutex_lock(&t->lock);
    t->seconds += seconds;
    t->put += good;
    pthread_cond_broadcast(&t->changed);
    return good;
}

static void read_state(struct disk *d)
{
    struct transfer *t = &d->in;
    struct cache_file file = {.fd = -1};
    struct error error = {0};
    pthread_mutex_unlock(&t->lock);
    const double start = engine_seconds();
    const int fd = openat(d->folder, t->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    bool good = fd >= 0 ? cache_file_open(&file, fd, &d->shape, &error)
                        : error_set(&error, "could not be opened: %s", strerror(errno));
    good = good && (file.head.blocks == t->blocks || error_set(&error, "has changed"));
    const double seconds = engine_seconds() - start;
    pthread_mutex_lock(&t->lock);
    t->seconds = seconds;
    while (good && t->put < t->blocks && t->stage == TRANSFER_RUNS && !t->stop) {
        if (t->put - t->taken == DISK_BUFFERS)
            pthread_cond_wait(&t->changed, &t->lock);
        else
            good = read_block(t, &file, t->put, &error);
    }
    cache_file_close(&file);
    end_transfer(t, good, &error);
}

static void *reader(void *user)
{
    struct disk *d = user;
    struct transfer *t = &d->in;
    pthread_mutex_lock(&t->lock);
    while (!t->stop) {
        if (t->stage == TRANSFER_RUNS && t->put == 0)
            read_state(d);
        else if (t->stage == TRANSFER_LEFT)
            end_transfer(t, false, &t->error);
        else
            pthread_cond_wait(&t->changed, &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

// ---- writing -----------------------------------------------------------------------------------------------------------------

// The file is whole: it gets its name, and the name reaches the disk.
static bool publish(struct disk *d, struct cache_file *file, const char *name, struct error *error)
{
    if (!cache_file_finish(file, error))
        return false;
    return (renameat(d->folder, disk_unfinished, d->folder, name) == 0 && fsync(d->folder) == 0) ||
           error_set(error, "a kept state could not be named: %s", strerror(errno));
}

static void write_state(struct disk *d)
{
    struct transfer *t = &d->out;
    struct cache_file file = {.fd = -1};
    struct error error = {0};
    pthread_mutex_unlock(&t->lock);
    unlinkat(d->folder, disk_unfinished, 0);
    const int fd = openat(d->folder, disk_unfinished, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool good = fd >= 0 ? cache_file_create(&file, fd, &d->shape, t->ids, t->length, t->follows, &error)
                        : error_set(&error, "a kept state could not be written: %s", strerror(errno));
    pthread_mutex_lock(&t->lock);
    while (good && t->taken < t->blocks && t->stage == TRANSFER_RUNS && !(t->stop && t->put < t->blocks)) {
        if (t->put == t->taken) {
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        const uint64_t i = t->taken;
        pthread_mutex_unlock(&t->lock);
        good = cache_file_put(&file, i, t->buffer[i % DISK_BUFFERS], &error);
        pthread_mutex_lock(&t->lock);
        t->taken++;
        pthread_cond_broadcast(&t->changed);
    }
    good = good && t->taken == t->blocks && t->stage == TRANSFER_RUNS;
    pthread_mutex_unlock(&t->lock);
    good = good && publish(d, &file, t->name, &error);
    cache_file_close(&file);
    if (!good)
        unlinkat(d->folder, disk_unfinished, 0);
    pthread_mutex_lock(&t->lock);
    end_transfer(t, good, &error);
}

static void remove_doomed(struct disk *d)
{
    struct disk_entry *entry = d->doomed;
    d->doomed = entry->next;
    pthread_mutex_unlock(&d->out.lock);
    unlinkat(d->folder, entry->name, 0);
    free(entry->ids);
    free(entry);
    pthread_mutex_lock(&d->out.lock);
}

static void *writer(void *user)
{
    struct disk *d = user;
    struct transfer *t = &d->out;
    pthread_mutex_lock(&t->lock);
    while (!t->stop || d->doomed || t->stage == TRANSFER_RUNS) {
        if (d->doomed)
            remove_doomed(d);
        else if (t->stage == TRANSFER_RUNS)
            write_state(d);
        else if (t->stage == TRANSFER_LEFT)
            end_transfer(t, false, &t->error);
        else
            pthread_cond_wait(&t->changed, &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

void disk_remove(struct disk *d, struct disk_entry *entry)
{
    pthread_mutex_lock(&d->out.lock);
    entry->next = d->doomed;
    d->doomed = entry;
    pthread_cond_broadcast(&d->out.changed);
    pthread_mutex_unlock(&d->out.lock);
}

// ---- start and end -----------------------------------------------------------------------------------------------------------

static bool start(struct disk *d, struct transfer *t, void *(*run)(void *), struct error *error)
{
    pthread_condattr_t attributes;
    for (int i = 0; i < DISK_BUFFERS; i++) {
        t->buffer[i] = device_host_alloc(d->shape.page_bytes, "blocks of kept states", error);
        if (!t->buffer[i])
            return false;
    }
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    t->started = pthread_create(&t->thread, NULL, run, d) == 0;
    return t->started || error_set(error, "no thread for the prompt cache's folder could be started");
}

bool disk_start(struct disk *d, struct error *error)
{
    return start(d, &d->in, reader, error) && start(d, &d->out, writer, error);
}

static void stop(struct disk *d, struct transfer *t)
{
    if (t->started) {
        pthread_mutex_lock(&t->lock);
        t->stop = true;
        pthread_cond_broadcast(&t->changed);
        pthread_mutex_unlock(&t->lock);
        pthread_join(t->thread, NULL);
        pthread_cond_destroy(&t->changed);
        pthread_mutex_destroy(&t->lock);
    }
    for (int i = 0; i < DISK_BUFFERS; i++)
        device_host_free(t->buffer[i], d->shape.page_bytes);
    free(t->ids);
}

void disk_stop(struct disk *d)
{
    stop(d, &d->in);
    stop(d, &d->out);
}
