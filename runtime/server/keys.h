// SPDX-License-Identifier: Apache-2.0
//
// Who may ask: a file of `label: key` lines, mode 0600. Keys are compared by digest, all of them, in constant time.

#ifndef SERVER_KEYS_H
#define SERVER_KEYS_H

#include "runtime/error.h"
#include <stdbool.h>
#include <stddef.h>

struct keys;

// Reads the file; false when others may read it, when it has no key, or when a line is not `label: key`.
bool keys_open(struct keys **out, const char *path, struct error *error);
void keys_close(struct keys *keys);

// Reads the file again; on failure the keys stay as they were.
bool keys_reload(struct keys *keys, struct error *error);

// Whether a key is known; its label is copied.
bool keys_find(struct keys *keys, const char *key, char *label, size_t size);

#endif
