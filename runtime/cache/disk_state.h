// SPDX-License-Identifier: Apache-2.0
//
// The inside of the folder of kept states: what the engine thread and the two others share.

#ifndef CACHE_DISK_STATE_H
#define CACHE_DISK_STATE_H

#include "runtime/cache/disk.h"
#include <pthread.h>

enum { DISK_BUFFERS = 3 };

enum transfer_stage {
    TRANSFER_NONE,
    TRANSFER_RUNS, // blocks go through the buffers
    TRANSFER_LEFT, // its thread is to drop it
    TRANSFER_DONE,
    TRANSFER_BAD,
};

// One file on its way through the buffers, in or out. Under `lock`, but for the contents of a buffer, which belong to one side.
struct transfer {
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop;
    enum transfer_stage stage;
    uint64_t blocks, put, taken; // put - taken <= DISK_BUFFERS
    uint8_t *buffer[DISK_BUFFERS];
    char name[CACHE_FILE_NAME];
    int32_t *ids; // written: [length], the entry's afterwards
    int length;
    bool follows;
    double seconds; // read: spent in it
    struct error error;
};

struct disk {
    int folder, lock;
    struct cache_shape shape;
    struct disk_entry *first;
    struct disk_counters counters;
    struct transfer in, out;
    struct disk_entry *reading; // what `in` is of
    double rate;
    struct disk_entry *doomed; // under out.lock: to be removed
};

// disk_threads.c
bool disk_start(struct disk *disk, struct error *error);
void disk_stop(struct disk *disk);
void disk_remove(struct disk *disk, struct disk_entry *entry); // in the background; takes the entry over

// Waits on a transfer's condition, its lock held, for at most so many seconds.
void transfer_wait(struct transfer *transfer, double seconds);

extern const char disk_unfinished[]; // name of the file that is being written

#endif
