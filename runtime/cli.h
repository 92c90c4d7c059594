// SPDX-License-Identifier: Apache-2.0
//
// What the commands share: opening the engine from the flags, reading input, lists of ids, output files that appear whole or
// not at all.

#ifndef CLI_H
#define CLI_H

#include "runtime/engine.h"
#include "runtime/model.h"
#include "runtime/options.h"

enum { EXIT_BAD = 2, EXIT_INTERRUPTED = 130 };

extern const struct command command_run, command_eval, command_tokenize, command_detokenize, command_info, command_plan,
    command_check, command_bench, command_serve;

// The engine options that the flags say; points into settings.
struct engine_options cli_engine_options(const struct settings *settings);

// Instruction set that the engine would choose: the one asked for, else the first available.
const char *cli_isa(const struct settings *settings);

// Monotonic seconds.
double cli_seconds(void);

// Reads all of a file ("-": standard input), at most `limit` bytes. On success *text is malloc'd, ends in a NUL that *bytes does
// not count, and is the caller's to free.
bool cli_read_file(const char *path, size_t limit, char **text, size_t *bytes, struct error *error);

// Reads ids separated by commas (one between two ids) or white space and checks them against `vocabulary`. `where` names the source in errors.
// On success *ids is malloc'd ([*count], never NULL) and the caller's to free.
bool cli_parse_ids(const char *text, size_t bytes, const char *where, int32_t vocabulary, int32_t **ids, int *count,
                   struct error *error);

// A file that appears under its name when it is complete. A name that is no regular file (a pipe, a device) is written directly.
struct output {
    FILE *file;
    const char *path;
    char temporary[4096]; // empty: written directly
};

bool output_open(struct output *output, const char *path, struct error *error);
// Closes and renames; on failure removes what was written. output->file is NULL afterwards.
bool output_commit(struct output *output, struct error *error);
// Closes and removes; does nothing after output_commit.
void output_abandon(struct output *output);

// Flushes standard output; false when any of it could not be written.
bool cli_flush(struct error *error);

// A size for people: "12.3 MB", in a buffer of at least 24 bytes, which is returned.
const char *cli_bytes(char *buffer, int64_t bytes);

// The path "DIRECTORY OF THE BINARY/NAME SUFFIX"; false when it does not fit or the binary cannot be found.
bool cli_beside(char *buffer, size_t size, const char *suffix, struct error *error);

#endif
