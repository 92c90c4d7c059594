// SPDX-License-Identifier: Apache-2.0
//
// Replies of /v1/responses that were asked to be kept, in memory: the newest of them. A reply is seen only with the key that it
// was made with. Safe from several threads.

#ifndef SERVER_RESPONSE_STORE_H
#define SERVER_RESPONSE_STORE_H

#include <stdbool.h>
#include <stddef.h>

enum { STORE_COUNT = 1024, STORE_BYTES = 256 << 20 };

struct response_store;

// Keeps at most `count` replies of together at most `bytes`. NULL: no memory.
struct response_store *response_store_open(int count, size_t bytes);
void response_store_close(struct response_store *store);

// Keeps a reply: its JSON text, and that of the conversation that led to it and ends with it. One that is larger than the store is
// not kept. The texts are copied.
void response_store_put(struct response_store *store, const char *id, const char *key, const char *reply,
                        const char *history);
// A copy of the reply's text, or of the conversation's, to be freed; NULL: there is none of that id and key.
char *response_store_get(struct response_store *store, const char *id, const char *key, bool history);
// Whether there was one.
bool response_store_delete(struct response_store *store, const char *id, const char *key);

// For tests: what is kept.
int response_store_count(struct response_store *store, size_t *bytes);

#endif
