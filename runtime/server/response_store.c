// SPDX-License-Identifier: Apache-2.0
//
// A ring of kept replies, oldest first; see response_store.h.

#include "runtime/server/response_store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct kept {
    char id[64], key[64];
    char *reply, *history; // reply NULL: deleted
    size_t bytes;
};

struct response_store {
    pthread_mutex_t lock;
    int first, count, most;
    size_t bytes, bytes_most;
    struct kept ring[]; // [most]
};

struct response_store *response_store_open(int count, size_t bytes)
{
    struct response_store *store = calloc(1, sizeof *store + (size_t)count * sizeof store->ring[0]);
    if (!store)
        return NULL;
    store->most = count;
    store->bytes_most = bytes;
    pthread_mutex_init(&store->lock, NULL);
    return store;
}

static void empty(struct response_store *store, struct kept *kept)
{
    store->bytes -= kept->bytes;
    free(kept->reply);
    free(kept->history);
    *kept = (struct kept){0};
}

static struct kept *at(struct response_store *store, int index)
{
    return &store->ring[(store->first + index) % store->most];
}

static void drop_oldest(struct response_store *store)
{
    empty(store, at(store, 0));
    store->first = (store->first + 1) % store->most;
    store->count--;
}

void response_store_close(struct response_store *store)
{
    if (!store)
        return;
    while (store->count)
        drop_oldest(store);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

void response_store_put(struct response_store *store, const char *id, const char *key, const char *reply,
                        const char *history)
{
    struct kept kept = {.bytes = strlen(reply) + strlen(history) + 2};
    if (kept.bytes > store->bytes_most || strlen(id) >= sizeof kept.id || strlen(key) >= sizeof kept.key)
        return;
    strcpy(kept.id, id);
    strcpy(kept.key, key);
    kept.reply = strdup(reply);
    kept.history = strdup(history);
    if (!kept.reply || !kept.history) {
        free(kept.reply);
        free(kept.history);
        return;
    }
    pthread_mutex_lock(&store->lock);
    while (store->count == store->most || (store->count && store->bytes + kept.bytes > store->bytes_most))
        drop_oldest(store);
    *at(store, store->count++) = kept;
    store->bytes += kept.bytes;
    pthread_mutex_unlock(&store->lock);
}

// Lock held.
static struct kept *find(struct response_store *store, const char *id, const char *key)
{
    for (int i = store->count - 1; i >= 0; i--) {
        struct kept *kept = at(store, i);
        if (kept->reply && !strcmp(kept->id, id) && !strcmp(kept->key, key))
            return kept;
    }
    return NULL;
}

char *response_store_get(struct response_store *store, const char *id, const char *key, bool history)
{
    pthread_mutex_lock(&store->lock);
    const struct kept *kept = find(store, id, key);
    char *text = kept ? strdup(history ? kept->history : kept->reply) : NULL;
    pthread_mutex_unlock(&store->lock);
    return text;
}

bool response_store_delete(struct response_store *store, const char *id, const char *key)
{
    pthread_mutex_lock(&store->lock);
    struct kept *kept = find(store, id, key);
    if (kept)
        empty(store, kept);
    while (store->count && !at(store, 0)->reply)
        drop_oldest(store);
    pthread_mutex_unlock(&store->lock);
    return kept != NULL;
}

int response_store_count(struct response_store *store, size_t *bytes)
{
    int count = 0;
    pthread_mutex_lock(&store->lock);
    for (int i = 0; i < store->count; i++)
        count += at(store, i)->reply != NULL;
    *bytes = store->bytes;
    pthread_mutex_unlock(&store->lock);
    return count;
}
