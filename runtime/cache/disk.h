// SPDX-License-Identifier: Apache-2.0
//
// The folder of kept states: what lies in it, one state being read and one being written beside the engine's work, and which files
// go when the folder is full. The engine thread calls; a reader and a writer thread do what may take time.
// Invariants: one process owns the folder; a file has its name only once it is whole and on the disk, so a process that ends at
// any moment loses at most the file it was writing; all files together take at most the budget.

#ifndef CACHE_DISK_H
#define CACHE_DISK_H

#include "runtime/cache/file.h"

struct disk;

// A file of the folder.
struct disk_entry {
    struct disk_entry *next;
    char name[CACHE_FILE_NAME];
    int32_t *ids; // [length]; NULL: of another build, or damaged: nothing but its bytes are known
    int length;
    bool follows;
    int users; // streams that are to begin here
    int64_t bytes, used;
};

struct disk_counters {
    int64_t states, bytes, budget, reads, writes, refused;
};

// Opens the folder (made when it is missing), takes it for this process, and looks through it.
bool disk_open(struct disk **out, const char *folder, int64_t budget, const struct cache_shape *shape,
               struct error *error);
// What is being written is finished when all of it was handed over, else dropped.
void disk_close(struct disk *disk);
void disk_count(const struct disk *disk, struct disk_counters *counters);

// The longest state of more than `least` and at most `most` ids that these begin with; NULL when there is none.
struct disk_entry *disk_find(struct disk *disk, const int32_t *ids, int most, int least);
// Bytes a second that reading has shown; a guess before that.
double disk_rate(const struct disk *disk);
// Removes a file that turned out to be damaged.
void disk_refuse(struct disk *disk, struct disk_entry *entry);

// ---- reading: one state at a time --------------------------------------------------------------------------------------------

enum disk_news { DISK_WAIT, DISK_BLOCK, DISK_END, DISK_BAD };

// False while another state is read.
bool disk_read_begin(struct disk *disk, struct disk_entry *entry);
// The next block, in order, until disk_read_taken; DISK_END after the last. seconds: how long to wait for one.
enum disk_news disk_read_next(struct disk *disk, double seconds, const void **block);
void disk_read_taken(struct disk *disk);
// Ends the reading, at any time.
void disk_read_end(struct disk *disk);
// Why it was bad.
const char *disk_read_error(const struct disk *disk);

// ---- writing: one state at a time --------------------------------------------------------------------------------------------

// Makes room in the folder and begins a file. False when one is being written or the state is larger than the budget.
// *there: it is in the folder already.
bool disk_write_begin(struct disk *disk, const int32_t *ids, int length, bool follows, bool *there);
// A buffer for the next block, or NULL for now; seconds: how long to wait for one.
void *disk_write_room(struct disk *disk, double seconds);
// The buffer holds the block. After the last one the file is finished in the background.
void disk_write_put(struct disk *disk);
void disk_write_abort(struct disk *disk);
// Takes in what was finished; true while a file is being written.
bool disk_write_goes_on(struct disk *disk);

#endif
