// SPDX-License-Identifier: Apache-2.0
//
// The one table of paths. A new path or dialect is one line in routes.c and one file with its handler.

#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include "runtime/server/exchange.h"

// Bytes of a list of methods.
enum { ROUTES_ALLOWED = 32 };

// The route of a request, or NULL; allowed: the methods for which the path is there, as `Allow` lists them. HEAD is for what GET is
// for. A rest that a path ending in * takes is put into rest[size].
const struct route *routes_find(const char *path, const char *method, char *rest, size_t size,
                                char allowed[ROUTES_ALLOWED]);

// Handlers, each in the file of its dialect.
void chat_handle(struct exchange *x);        // openai_chat.c
void completions_handle(struct exchange *x); // openai_completions.c
void messages_handle(struct exchange *x);    // anthropic.c
void count_tokens_handle(struct exchange *x);
void responses_handle(struct exchange *x); // responses.c
void response_get_handle(struct exchange *x);
void response_delete_handle(struct exchange *x);
void page_handle(struct exchange *x);   // page.c
void models_handle(struct exchange *x); // models.c
void tokenize_handle(struct exchange *x);
void detokenize_handle(struct exchange *x);

#endif
